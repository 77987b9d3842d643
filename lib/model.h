/*
 * model.h - an open model: container, arch, tokenizer, template, and the weights as every rank sees them.
 *
 * Immutable after model_open, reference-counted (contexts hold it). Ranks of the CPU share one memory, so a piece is mapped or
 * decoded once, and each rank gets views (op_weight) of it; where ranks are on several nodes, of copies (nodes.h). Ranks on devices
 * have their parts in device memory (place.h): the views are the same, with addresses of the device in op_run.data and in every
 * vector.
 */
#ifndef TESS_MODEL_H
#define TESS_MODEL_H
#include "container.h"
#include "cuda_ops.h"
#include "devices.h"
#include "feed.h"
#include "nodes.h"
#include "ops.h"
#include "os.h"
#include "place.h"
#include "shard.h"
#include "tok.h"

typedef struct { op_weight w; const float *bias; } model_linear;  /* bias: of this rank's rows, or the whole for row-parallel */
typedef struct { const float *w, *b; } model_norm;                /* NULL w: absent; QK_NORM_EACH: [heads][head_dim] */
typedef struct {
    model_linear q, k, v, o, gate, up, down;
    model_linear q_a, kv_a, *k_b, *v_b;                      /* latent attention: k_b, v_b of each head of the rank */
    model_linear router, sh_gate, sh_up, sh_down, sh_switch; /* mixtures of experts */
    op_expert *exp_gate, *exp_up, *exp_down;                 /* of the experts of this rank, from shards.rank[r].expert.lo on */
    uint32_t exp_gate_types, exp_up_types, exp_down_types;   /* bits 1 << dtype of these */
    const float *router_correction, *sinks;                  /* sinks: of all heads */
} model_layer_rank;
typedef struct { model_norm attn, ffn, post_attn, post_ffn, q, k, q_a, kv_a; } model_layer_norms;
typedef struct {                                             /* of a rank: those of the CPU share what these point at */
    model_norm final_norm, embed_norm;
    model_layer_norms *layers;                               /* [n_layers] */
    model_linear head;
} model_rank;

struct tess_model {
    mem m;
    uint32_t refs;              /* atomic */
    ct_file *file;
    arch a;
    bool has_weights;
    tok *tokenizer;             /* NULL: none */
    char *chat_template;        /* NULL: none */
    size_t chat_template_len;
    char *bos_text, *eos_text;  /* for templates; NULL: none */
    tess_token *eos;
    uint32_t n_eos;
    tess_token bos, pad, unk;
    shard_plan shards;
    uint32_t n_threads;
    cpus cpus;                  /* that its threads may use */
    int32_t compute, stream;
    const op_table *ops;
    const op_cuda_table *cuda;  /* for ranks on devices */
    arena store;                /* views, vectors, decoded pieces' table */
    const uint8_t **tiles;      /* [n_pieces] TILE8 image, mapped or in `owned` */
    void **owned;               /* [n_pieces] decoded copies */
    nodes *nodes;               /* what was copied to the nodes of ranks, which then has no `tiles`; NULL: nothing */
    op_weight embed, pos_embed; /* whole tables in memory of the host, of which a token takes a row */
    model_rank rank[MAX_RANKS];
    model_layer_rank *layers;   /* [n_layers][n_ranks] */
    device_list devices;        /* n 0: all ranks are on the CPU */
    os_lock *turn;              /* of the contexts, whose work for several devices must not mingle (ctx.h); NULL: none are, or one */
    place *place;               /* what lies in memory of devices; NULL: nothing */
    feed *feed;                 /* what is copied there layer by layer; NULL: nothing. Its own lock guards it */
    uint32_t *quant;            /* [n_layers] bits 1 << WT_* (program.h) of weights that take quantized activations */
    bool head_quant;            /* the head does */
    uint64_t weight_bytes, read_bytes, device_bytes, stream_bytes;
    uint64_t token_bytes, token_macs; /* see tess_model_info */
    uint32_t weight_dtype;      /* of most parameters */
};

/* on: the CPUs to use; NULL: those of the calling thread. */
tess_status model_open(const char *path, const tess_model_params *p, const cpus *on, tess_model **out, tess_error *err);
void model_retain(tess_model *m);
void model_release(tess_model *m);
/* load.c: fills weights of a model whose file, arch, shards and ops are set; pool does the work. */
tess_status model_load(tess_model *m, pool *p, const tess_model_params *params, tess_error *err);
#endif
