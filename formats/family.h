/*
 * family.h - model families as rows of data, and the map from the tensors of a checkpoint to the weights of a
 * model.
 *
 * A family row says how config.json numbers become an arch (hf_config.c and gguf_config.c read it) and how
 * tensors are named. A name rule gives the name of one role; "%d" is the layer; ".weight" and ".bias" are
 * appended. A second "%d" is the expert. A rule may stand for several roles in one tensor (fused q, k, v; gate and up), whose rows are then
 * taken apart while they are read, and may be stored transposed. Rows of a family with a peculiarity that no
 * number expresses have an `adjust` function in hf_config.c.
 *
 * family_plan finds every weight that the arch demands (role_shape) in a source, checks its shape and type,
 * resolves tied heads, and refuses by name what is missing, misshapen, or left over.
 */
#ifndef TESS_FAMILY_H
#define TESS_FAMILY_H
#include "source.h"

enum { FUSE_NONE = 0, FUSE_QKV = 1 /* rows of q, then k, then v */,
       FUSE_QKV_GROUPS = 2 /* for each kv head: its q heads, k, v */, FUSE_GATE_UP = 3,
       FUSE_EXPERTS = 4 /* three dimensions: the matrix of each expert */,
       FUSE_KV_B = 6 /* for each head: rows of k (of which each head's matrix is turned over), then of v */,
       FUSE_EXPERTS_GATE_UP = 5 /* the same of gate and up, one above the other */,
       FUSE_HEADS = 7 /* three dimensions: the matrices of the heads, taken as one, one above the other */ };
enum {
    NAME_T = 1 /* matrix is stored columns by rows */,
    NAME_ROPE_PAIRS = 2 /* rows of a head interleave its two halves */,
    NAME_TWO_NORMS = 4 /* only in models of BLOCK_PARALLEL2 */,
    NAME_ONE_NORM = 8 /* only in others */,
    NAME_BARE = 16 /* no ".weight" follows; the bias is "_bias" */,
    NAME_READ = 32 /* another spelling, never written */,
    NAME_ALTERNATE = 64 /* rows of gate and up alternate */,
    NAME_SKIP2 = 128 /* two rows before the first */
};
typedef struct { const char *name; uint8_t role, fuse, flags; } name_rule;

enum {
    WINDOW_NONE = 0,
    WINDOW_ALL,
    WINDOW_QWEN /* from max_window_layers on */,
    WINDOW_ALTERNATE /* even layers */,
    WINDOW_PATTERN /* all but each n-th */,
    WINDOW_QWEN2_MOE /* even layers below max_window_layers, when use_sliding_window */,
    WINDOW_QWEN_MOE /* all, when use_sliding_window */
};
typedef struct {
    const char *key;
    uint16_t bits;
    bool on;
} bias_key; /* config key, BIAS_* that it switches, its default */

/* What a mixture of experts has where config.json does not say. 0: n and used must be given, width is that of a feed-forward,
 * groups, groups_used and scale are 1. first: so many dense layers come before those with experts. */
typedef struct { uint32_t n, used, width, shared_width, n_shared, groups, groups_used, first; double scale; } moe_defaults;

/* norm_topk_prob; moe_intermediate_size; shared_intermediate_size; n_shared_experts; n_group and topk_group; first_k_dense_replace;
 * decoder_sparse_step; mlp_only_layers; routed_scaling_factor; moe_num_shared_experts and moe_layer_*. */
enum { MOE_NORM = 1, MOE_WIDTH = 2, MOE_SHARED_WIDTH = 4, MOE_N_SHARED = 8, MOE_GROUPS = 16, MOE_FIRST = 32, MOE_SPARSE = 64,
       MOE_DENSE = 128, MOE_SCALE = 256, MOE_ERNIE = 512 };

typedef struct {
    const char *model_type;   /* of config.json */
    const char *class_name;   /* of "architectures": base models and other heads are refused by it */
    const char *prefix;       /* part of the names that checkpoints of the base model leave out; "" = none */
    const name_rule *names;   /* ends with a NULL name */
    uint8_t norm_kind, block_kind, qk_norm, act, gated_ffn, rope_kind, windows;
    uint16_t biases;          /* that need no key */
    bias_key bias[3];
    bool tied;                /* default of tie_word_embeddings */
    bool ffn_4h;              /* feed-forward width defaults to 4 x hidden */
    bool scale_embed;         /* embedding times sqrt(hidden) */
    /* Keys of which families have one each, and do not follow those of others; NULL: the usual one, "": none. */
    const char *eps_key, *act_key, *ffn_key, *kv_key; /* rms_norm_eps, hidden_act, intermediate_size, num_key_value_heads */
    bool no_head_dim;         /* does not follow head_dim */
    bool gelu_tanh;           /* "gelu" means the tanh form */
    double rope_theta, rotary, eps; /* defaults */
    bool partial;             /* follows partial_rotary_factor */
    double rope_local; /* default theta of sliding layers; 0 = they share all parameters with the full ones */
    int adjust;               /* ADJUST_* */
    bool moe;                 /* may have experts */
    uint8_t router_kind, router_norm; /* ROUTER_*; default of norm_topk_prob */
    bool shared_switch;       /* the shared expert has one */
    bool latent;              /* latent attention (kv_lora_rank) */
    bool correction;          /* scores of experts are corrected for the choice */
    bool clip;                /* follows clip_qkv */
    uint8_t rope_sliding;     /* 1: only layers with a window have rope; 2: the same in models with windows */
    uint32_t pattern;         /* default of sliding_window_pattern */
    uint32_t max_ctx;         /* where config.json does not say; 0: it must */
    uint32_t kv_heads, head_dim, q_lora; /* the same; 0: n_heads, hidden / n_heads, none */
    uint32_t window;          /* default of sliding_window; null in config.json is none */
    uint32_t orig_ctx;        /* default of original_max_position_embeddings; 0: what the scaling says, or max_ctx */
    uint32_t rotary_dim;      /* default of rotary_dim; 0: the family does not have this key */
    uint16_t moe_keys;        /* MOE_* that it follows */
    moe_defaults experts;
} family;
enum { ADJUST_NONE = 0, ADJUST_FALCON, ADJUST_NEOX, ADJUST_SMOLLM3, ADJUST_GEMMA2, ADJUST_GEMMA3, ADJUST_GPT2,
       ADJUST_GRANITE, ADJUST_PHI, ADJUST_BLOOM, ADJUST_OPT, ADJUST_MPT, ADJUST_STABLELM, ADJUST_OLMO, ADJUST_COHERE,
       ADJUST_GLM4_MOE, ADJUST_GPT_OSS, ADJUST_DEEPSEEK2, ADJUST_DEEPSEEK3 };

const family *family_by_model_type(const char *model_type); /* NULL when unknown */
void family_list(char *dst, size_t n);                      /* "llama, mistral, ..." for messages, and the names below */
const char *hf_wrapper_name(size_t i); /* model types of which the language part is read (hf_wrapper.c); NULL: no more */

/* Families of GGUF files; names are the rules of llama.cpp's tensor names. */
typedef struct {
    const char *arch;         /* general.architecture */
    const char *model_type;   /* the family row that describes the model */
    const name_rule *names;
    bool router_norm;         /* weights of the chosen experts add up to 1 where the file does not say */
} gguf_family;
const gguf_family *family_by_gguf(const char *arch, size_t len);
void family_gguf_list(char *dst, size_t n);

/* Where row r of a weight lies in the source tensor: base + r / block * stride + r % block, after undoing the
 * interleaving of heads of `pairs` rows when pairs != 0. Transposed: of rows and columns k_base on. */
typedef struct { uint32_t src; bool transposed; uint32_t pairs; uint64_t base, block, stride, k_base, turn, turn_stride; } row_map;
typedef struct {
    char name[96];            /* canonical, as role_name */
    uint32_t role, part;
    int32_t layer, expert;    /* -1 = none */
    uint64_t rows, cols;      /* cols 0: a vector of `rows` elements */
    row_map map;
    int32_t alias;            /* weight whose data this one shares, -1 = none */
} weight;
typedef struct { const mem *m; weight *w; uint32_t n; size_t cap; } weight_plan;
/* tied: what the configuration says; a->tied_head is set to what holds. */
tess_status family_plan(const name_rule *names, const char *prefix, const source *s, arch *a, bool tied,
                        const mem *m, weight_plan *out, tess_error *err);
void family_plan_close(weight_plan *p);

/* The way back: the tensor that a checkpoint of the family stores for a rule, put together from weights of a
 * plan. Its row (or, when transposed, column) map(r) is row r of from[i].weight. */
typedef struct {
    char name[256];
    uint32_t rank, n;
    uint64_t shape[2];
    bool transposed;
    struct { uint32_t weight; row_map map; } from[3];
} family_tensor;
/* False when the model has no such tensor, or shares the data of another. */
bool family_stored(const name_rule *r, const arch *a, const weight_plan *p, uint32_t part, int32_t layer,
                   int32_t expert, family_tensor *t);
/* Where row r goes, and how many rows from there on lie one after another. */
uint64_t family_map_row(const row_map *m, uint64_t r, uint64_t *run);
/* A box of a weight in the float type dtype, without gaps. A vector is a column of rows: row0, n_rows; or a
 * row: k0, n_k. */
tess_status family_read(const source *s, const weight *w, uint32_t dtype, uint64_t row0, uint64_t n_rows,
                        uint64_t k0, uint64_t n_k, void *dst, tess_error *err);
/* Finite values that the narrower type would round to infinity are an error: the model would be silently broken. */
tess_status family_check_fits(const source *s, const weight *w, uint32_t dtype, const float *v, uint64_t n, tess_error *err);
/* The raw blocks of a box of a matrix that is not stored transposed; row_bytes of them in each row. */
tess_status family_read_blocks(const source *s, const weight *w, uint64_t row0, uint64_t n_rows, uint64_t k0,
                               uint64_t n_k, size_t row_bytes, uint8_t *dst, tess_error *err);
#endif
