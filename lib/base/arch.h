/*
 * arch.h - a model family as plain data: numbers and enums, no code, no names of families in the forward pass.
 *
 * Filled from config.json or GGUF keys by formats/hf_config.c and gguf_config.c, stored in the container under
 * "arch.*" keys (ARCH_FIELDS and ARCH_FIELDS_MORE below), range-checked by arch_check at both ends.
 *
 * roles: every weight of a model has a role. The table role_info gives its canonical name (the Hugging Face llama names,
 * %d = layer), how it is split for tensor parallelism, and what it is. Values are part of the file format: append only.
 */
#ifndef TESS_ARCH_H
#define TESS_ARCH_H
#include "dtype.h"
#include "kvs.h"

enum { ARCH_MAX_LAYERS = 512, ARCH_MAX_ATTN_KINDS = 4, ARCH_MAX_EXPERTS = 1024, ARCH_MAX_USED = 64,
       ARCH_MAX_FACTORS = 256 };
enum { NORM_RMS = 0, NORM_LAYER = 1, NORM_RMS_PLUS1 = 2 /* weight + 1, gemma */,
       NORM_LAYER_PLUS1 = 3 /* the same, nemotron */ };
enum { BLOCK_PRE = 0, BLOCK_POST = 1 /* olmo2 */, BLOCK_PARALLEL = 2 /* attn and ffn read one norm */,
       BLOCK_PARALLEL2 = 3 /* two norms */, BLOCK_SANDWICH = 4 /* pre and post norms, gemma2 */,
       BLOCK_POST_SUM = 5 /* norms of the sums x + attn and x + ffn, and none at the end; opt-350m */ };
enum { ACT_SILU = 0, ACT_GELU = 1 /* erf */, ACT_GELU_TANH = 2, ACT_RELU = 3, ACT_RELU2 = 4,
       ACT_SWIGLU_CLAMP = 5 /* gated; gpt_oss */ };
enum { ROPE_NONE = 0, ROPE_HALF = 1 /* pairs (i, i + d/2) */, ROPE_PAIRS = 2 /* pairs (2i, 2i + 1) */ };
enum { ROPE_SCALE_NONE = 0, ROPE_SCALE_LINEAR, ROPE_SCALE_DYNAMIC, ROPE_SCALE_YARN, ROPE_SCALE_LLAMA3, ROPE_SCALE_LONG };
enum { QK_NORM_NONE = 0, QK_NORM_HEAD = 1 /* over head_dim, qwen3 */, QK_NORM_ALL = 2 /* over all heads, olmo2 */,
       QK_NORM_EACH = 3 /* over head_dim, each head with weights of its own, cohere */ };
/* How experts are chosen and weighted: softmax over all; softmax over the chosen; sigmoid of each (deepseek_v3). */
enum { ROUTER_SOFTMAX = 0, ROUTER_CHOSEN = 1, ROUTER_SIGMOID = 2 };
enum { BIAS_QKV = 1, BIAS_O = 2, BIAS_FFN_IN = 4, BIAS_FFN_OUT = 8, BIAS_NORM = 16, BIAS_HEAD = 32, BIAS_ROUTER = 64,
       BIAS_EXPERTS = 128, BIAS_QK_NORM = 256,
       BIAS_LATENT = 512 };
/* A bias on scores that grows with distance. Slopes by head as in the first paper; in bfloat16 and before the scale (falcon); mpt. */
enum { ALIBI_NONE = 0, ALIBI_PLAIN = 1, ALIBI_BF16 = 2, ALIBI_MPT = 3 };

typedef struct {
    uint32_t window;       /* 0 = all positions, else a query sees its last `window` positions, itself included */
    uint32_t rope_scale;   /* ROPE_SCALE_* */
    uint32_t rope_on;      /* 0: layers of this kind have no rope */
    double rope_theta;
    double factor, low_freq, high_freq;      /* linear/dynamic/yarn/llama3 */
    double beta_fast, beta_slow, attn_factor; /* yarn; attn_factor multiplies cos and sin (1 = none) */
    uint32_t orig_ctx;
    uint32_t yarn_exact;   /* bounds of the yarn ramp are not rounded to whole dimensions */
} arch_attn;

/* X(type, name, minimum, maximum) of every scalar that is stored as "arch.<name>". */
#define ARCH_FIELDS(X)                          \
    X(u32, n_layers, 1, ARCH_MAX_LAYERS)        \
    X(u32, hidden_size, 1, 1 << 20)             \
    X(u32, vocab_size, 1, 1 << 24)              \
    X(u32, n_heads, 1, 4096)                    \
    X(u32, n_kv_heads, 1, 4096)                 \
    X(u32, head_dim, 1, 4096)                   \
    X(u32, v_head_dim, 1, 4096)                 \
    X(u32, ffn_size, 0, 1 << 24)                \
    X(u32, max_ctx, 1, 1 << 30)                 \
    X(u32, norm_kind, 0, 3)                     \
    X(u32, block_kind, 0, 5)                    \
    X(u32, act, 0, 5)                           \
    X(u32, gated_ffn, 0, 1)                     \
    X(u32, rope_kind, 0, 2)                     \
    X(u32, rope_dims, 0, 4096)                  \
    X(u32, qk_norm, 0, 3)                       \
    X(u32, biases, 0, 1023)                     \
    X(u32, tied_head, 0, 1)                     \
    X(u32, learned_pos, 0, 1)                   \
    X(u32, n_attn_kinds, 1, ARCH_MAX_ATTN_KINDS)\
    X(f64, norm_eps, 0, 1)                      \
    X(f64, embed_scale, 0, 1e9)                 \
    X(f64, attn_scale, 0, 1e9)                  \
    X(f64, residual_scale, 0, 1e9)              \
    X(f64, logit_scale, 0, 1e9)                 \
    X(f64, attn_softcap, 0, 1e9)                \
    X(f64, logit_softcap, 0, 1e9)

/* X(type, name, minimum, maximum, default) of scalars that came later: stored when they differ from the default. */
#define ARCH_FIELDS_MORE(X)                         \
    X(u32, n_experts, 0, ARCH_MAX_EXPERTS, 0)       \
    X(u32, experts_used, 0, ARCH_MAX_USED, 0)       \
    X(u32, moe_ffn_size, 0, 1 << 24, 0)             \
    X(u32, shared_ffn_size, 0, 1 << 24, 0)          \
    X(u32, shared_switch, 0, 1, 0)                  \
    X(u32, router_kind, 0, 2, 0)                    \
    X(u32, router_norm, 0, 1, 0)                    \
    X(u32, router_groups, 1, ARCH_MAX_EXPERTS, 1)   \
    X(u32, router_groups_used, 1, ARCH_MAX_EXPERTS, 1) \
    X(u32, router_correction, 0, 1, 0)              \
    X(f64, router_scale, 0, 1e9, 1)                 \
    X(f64, qkv_clip, 0, 1e30, 0)                    \
    X(u32, norm_affine, 0, 1, 1)                    \
    X(u32, embed_norm, 0, 1, 0)                     \
    X(u32, alibi, 0, 3, 0)                          \
    X(f64, alibi_max, 0, 1e6, 8)                    \
    X(u32, sinks, 0, 1, 0)                          \
    X(u32, q_lora, 0, 1 << 16, 0)                   \
    X(u32, kv_lora, 0, 1 << 16, 0)                  \
    X(f64, latent_eps, 1e-12, 1, 1e-6)              \
    X(f64, act_alpha, 0, 1e6, 1.702)                \
    X(f64, act_limit, 0, 1e6, 7)                    \
    X(u32, attn_scale_by_layer, 0, 1, 0)            \
    X(u32, residual_normed, 0, 1, 0)                \
    X(u32, rope_odd, 0, 1, 0)

#define ARCH_TYPE_u32 uint32_t
#define ARCH_TYPE_f64 double
typedef struct {
#define X(t, n, lo, hi) ARCH_TYPE_##t n;
    ARCH_FIELDS(X)
#undef X
#define X(t, n, lo, hi, def) ARCH_TYPE_##t n;
    ARCH_FIELDS_MORE(X)
#undef X
    char family[32];                        /* "llama", for messages only */
    uint8_t layer_attn[ARCH_MAX_LAYERS];    /* index of attn[] of each layer */
    uint8_t layer_moe[ARCH_MAX_LAYERS];     /* 1: the layer's feed-forward is a mixture of experts */
    uint32_t n_factors;                     /* ROPE_SCALE_LONG: rope_dims / 2 factors of the frequencies, for prompts up to */
    float short_factor[ARCH_MAX_FACTORS], long_factor[ARCH_MAX_FACTORS]; /* orig_ctx and for longer ones */
    arch_attn attn[ARCH_MAX_ATTN_KINDS];
} arch;

/* Widths of K and V in KV pages, for each kv head. */
static inline uint32_t arch_k_dim(const arch *a) { return a->kv_lora ? a->kv_lora + a->rope_dims : a->head_dim; }
static inline uint32_t arch_v_dim(const arch *a) { return a->kv_lora ? a->kv_lora : a->v_head_dim; }

/* Dimensions that frequencies are spread over: one less than rope_dims where rope_odd is set (gpt_neox, of an odd share). */
static inline uint32_t arch_rope_spread(const arch *a) { return a->rope_dims - (a->rope_odd && a->rope_dims ? 1 : 0); }

void arch_default(arch *a); /* zero, multipliers 1, one attention kind, silu, gated, rope half */
tess_status arch_check(const arch *a, tess_error *err); /* ranges and relations; names the field */
/* The index of this kind of attention in attn[], added when it is new; -1: there are ARCH_MAX_ATTN_KINDS others. */
int arch_add_attn(arch *a, const arch_attn *t);
void arch_put(const arch *a, kvs_builder *b);
tess_status arch_get(arch *a, const kvs *k, tess_error *err);

/* ---- roles ---- */
enum { AXIS_NONE = 0, AXIS_Q_HEADS = 1, AXIS_KV_HEADS = 2, AXIS_FFN = 3, AXIS_VOCAB = 4, AXIS_EXPERT = 5,
       AXIS_SHARED = 6 /* width of a shared expert */, AXIS_V_HEADS = 7 /* q heads, v_head_dim wide */,
       AXIS_COUNT = 8 };
enum { ROLE_NONE = 0, ROLE_EMBED = 1, ROLE_HEAD = 2, ROLE_FINAL_NORM = 3, ROLE_ATTN_NORM = 4, ROLE_Q = 5, ROLE_K = 6, ROLE_V = 7,
       ROLE_O = 8, ROLE_Q_NORM = 9, ROLE_K_NORM = 10, ROLE_FFN_NORM = 11, ROLE_GATE = 12, ROLE_UP = 13, ROLE_DOWN = 14,
       ROLE_POST_ATTN_NORM = 15, ROLE_POST_FFN_NORM = 16, ROLE_POS_EMBED = 17, ROLE_ROUTER = 18,
       ROLE_ROUTER_CORRECTION = 19 /* added to scores for the choice alone */, ROLE_EXP_GATE = 20, ROLE_EXP_UP = 21, ROLE_EXP_DOWN = 22,
       ROLE_SH_GATE = 23, ROLE_SH_UP = 24, ROLE_SH_DOWN = 25, ROLE_SH_SWITCH = 26 /* its sigmoid weighs the shared expert */,
       ROLE_EMBED_NORM = 27, ROLE_Q_EACH = 28, ROLE_K_EACH = 29 /* norm of each head */, ROLE_SINKS = 30,
       /* latent attention (kv_lora > 0): K and V of all heads come from one latent vector; see program.c */
       ROLE_Q_A = 31, ROLE_Q_A_NORM = 32, ROLE_KV_A = 33, ROLE_KV_A_NORM = 34, ROLE_K_B = 35 /* of each head kv_lora x nope: latent from query */,
       ROLE_V_B = 36, ROLE_LATENT_O = 37, ROLE_COUNT = 38 };
enum { PART_DATA = 0, PART_BIAS = 3 };

typedef struct {
    const char *name;   /* canonical, without ".weight"/".bias": "model.layers.%d.self_attn.q_proj"; a second %d is the expert or head */
    bool per_layer;
    bool matrix;        /* two dimensions, follows --type; else one dimension, kept as float */
    uint8_t row_axis;   /* rows split along this axis (AXIS_NONE: not) */
    uint8_t k_axis;     /* columns split along this axis: the sum over them is taken per leaf */
} role_info;
const role_info *role_get(uint32_t role); /* NULL when unknown */
/* Tensors of a role in a layer that are numbered (the second %d of the name): experts, or heads; 0: there is one, without number. */
uint32_t role_instances(const arch *a, uint32_t role);
static inline bool role_is_numbered(uint32_t role)
{
    return (role >= ROLE_EXP_GATE && role <= ROLE_EXP_DOWN) || role == ROLE_Q_EACH || role == ROLE_K_EACH;
}
/* Shape that the model demands: rows x cols (cols 0 for vectors); false when the model has no such weight in that layer
 * (layer -1 for weights outside layers). */
bool role_shape(const arch *a, uint32_t role, uint32_t part, int32_t layer, uint64_t *rows, uint64_t *cols);
/* Writes the canonical tensor name, such as "model.layers.3.mlp.experts.7.up_proj.weight" (expert -1: none). */
void role_name(uint32_t role, uint32_t part, int32_t layer, int32_t expert, char *dst, size_t n);

/* ---- split axes ---- */
/* unit: elements per unit (head_dim; 32 for ffn; 64 for vocab; 1 for experts, whose tensors are not cut). Leaves belong to the model: leaf i of L = min(8, units)
 * is the units [units * i / L, units * (i + 1) / L). A file's pieces are whole leaves: piece p of P = min(N, L) is the leaves
 * [L * p / P, L * (p + 1) / P); ranks are cut the same way, rank r of R holding the leaves [L * r / R, L * (r + 1) / R),
 * which may be none. Heads axes count heads; kv heads of a rank are those that its q heads touch. */
typedef struct { uint32_t kind, unit, n_units, n_leaves; uint64_t dim; uint32_t leaf[MAX_LEAVES + 1]; /* in units */ } arch_axis;
bool arch_axis_of(const arch *a, uint32_t kind, arch_axis *out); /* false: the model has no such axis */
static inline uint64_t axis_elem(const arch_axis *x, uint32_t unit) /* unit bound to elements; the last unit may be partial */
{
    uint64_t e = (uint64_t)unit * x->unit;
    return e < x->dim ? e : x->dim;
}
#endif
