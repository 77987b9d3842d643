/* gguf_config_priv.h - reading the numbers "<architecture>.<name>" of a GGUF file with one error path: the first failure stays.
 * Shared by gguf_config.c and gguf_rope.c. */
#ifndef TESS_GGUF_CONFIG_PRIV_H
#define TESS_GGUF_CONFIG_PRIV_H
#include "gguf_config.h"

typedef struct { const source *s; const char *arch; char key[160]; tess_status st; tess_error *err; } gcfg;

/* The full key, valid until the next call. */
const char *gcfg_key(gcfg *c, const char *name);
/* A whole number, or a list of equal ones (some files give one for each layer); anything else fails, as do required ones
 * that are missing. */
uint32_t gcfg_u32(gcfg *c, const char *name, uint64_t def, bool required);
double gcfg_f64(gcfg *c, const char *name, double def);
/* Rope of full attention (kinds[0]) and of sliding windows (kinds[1]). */
void gguf_rope_read(gcfg *c, const family *f, const arch *a, arch_attn kinds[2]);
/* What tensors say of the rope of a: the divisors of llama3 scaling, the factors of longrope. After its layers were read. */
tess_status gguf_rope_tensors(gcfg *c, arch *a);
#endif
