/* hf_config_priv.h - reading numbers out of one JSON object with one error path: the first failure stays, later
 * reads give their defaults. Shared by hf_config.c and hf_rope.c. */
#ifndef TESS_HF_CONFIG_PRIV_H
#define TESS_HF_CONFIG_PRIV_H
#include "hf_config.h"
#include "json.h"

typedef struct { const json_t *root; const char *file; tess_status st; tess_error *err; } cfg;
/* Members; absent and null are alike. Keys may be alternatives: "hidden_size|n_embd", the first present one
 * counts. */
const json_t *cfg_get(const json_t *o, const char *keys);
bool cfg_has(const json_t *o, const char *keys); /* null counts as well */
uint32_t cfg_u32(cfg *c, const char *keys, uint32_t def, bool required);
/* Where null does not mean what absence means: some families have a default of their own, and null switches it off. */
uint32_t cfg_u32_or_null(cfg *c, const char *keys, uint32_t absent, uint32_t null);
double cfg_f64(cfg *c, const json_t *o, const char *keys, double def);
bool cfg_bool(cfg *c, const char *keys, bool def);
const char *cfg_str(cfg *c, const json_t *o, const char *keys, const char *def);
void cfg_fail(cfg *c, tess_status st, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Rope of the attention kinds: full[0] for full attention, full[1] for sliding windows; rotary: share of
 * head_dim that turns. */
/* The positions that a scaling is made for, at least max_ctx. */
uint32_t hf_rope_reach(const arch_attn *t, uint32_t max_ctx);
tess_status hf_rope_read(cfg *c, const family *f, uint32_t max_ctx, arch_attn kinds[2], double *rotary);
/* The factors of longrope, where the scaling is of that type. */
void hf_rope_factors(cfg *c, arch *a);
/* hf_moe.c: experts, and which layers have them. */
void hf_moe_read(cfg *c, const family *f, arch *a);
#endif
