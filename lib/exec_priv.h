/* exec_priv.h - the state of an executor, shared by the files exec*.c. */
#ifndef TESS_EXEC_PRIV_H
#define TESS_EXEC_PRIV_H
#include "exec.h"
#include "kbias.h"

typedef struct {
    const tess_model *model;
    uint32_t rank, first_thread, n_threads;
    float *act;        /* arena of activations */
    plan body, head;
    float *scratch;    /* attention */
    size_t scratch_floats;
    pool_gate *gate;   /* of the team */
    float *each;       /* [n_threads][each_floats] memory of the threads themselves, for few rows */
    uint64_t each_floats;
    /* With few rows a thread has a copy of this, in which `each` is its own part: */
    bool few;
    shard_range own[W_COUNT]; /* fuse_columns */
    /* Of the run under way, in memory of the rank. */
    const uint32_t *pos, *seq;
    uint8_t *const *const *tables[ARCH_MAX_ATTN_KINDS];
    const float *alibi;
    const float *const *kbias_cs[ARCH_MAX_ATTN_KINDS], *const *kbias_lanes[ARCH_MAX_ATTN_KINDS]; /* of each sequence (ops.h) */
    /* Of a rank on a device (exec_buffers.c). */
    void *stream;      /* NULL: the rank is a team of CPU threads */
    const op_cuda_table *cuda; /* the model's, but see exec_joint.c */
    int code;          /* first failure of an operation in this run */
    void *gemm;        /* scratch of large prompts, NULL: there are none here (exec_gemm) */
    bool gemm_wide;    /* by wgmma, which was tried */
    const prog_instr *gemm_last; /* the last linear operation, if it went that way: what it made of x is still in the scratch */
    float *logits;     /* [EXEC_HEAD_ROWS][logits_stride], the rank's rows of the vocabulary */
    uint32_t logits_stride;
    float *shares;     /* exec_sums.c */
    size_t shares_floats;
    const prog_instr *shared_sum; /* of which every rank has its share there; NULL: none */
    uint32_t *counts;  /* [n_counts], all 0 between launches (after_ops.h) */
    uint32_t n_counts;
} rank_state;

typedef struct exec_device exec_device;

/* cos and sin of positions [0, rows) by kind of attention, for prompts of one key (exec_rope.c) */
typedef struct {
    uint32_t key, rows[ARCH_MAX_ATTN_KINDS];
    float *inv[ARCH_MAX_ATTN_KINDS], *cs[ARCH_MAX_ATTN_KINDS];
    float *lanes[ARCH_MAX_ATTN_KINDS]; /* of cs, with kbias (kernels/ops.h) */
    /* of the first copied rows of cs and lanes, in memory of a device (exec_buffers.c) */
    float *copy[MAX_RANKS][ARCH_MAX_ATTN_KINDS], *lanes_copy[MAX_RANKS][ARCH_MAX_ATTN_KINDS];
    uint32_t copied[MAX_RANKS][ARCH_MAX_ATTN_KINDS];
} rope_set;

/* A shape of decoding steps (exec_graph.c). */
enum { STEP_GRAPHS = 16 };
typedef struct {
    uint32_t n_rows, positions, rope_key; /* n_rows 0: none */
    bool refused;  /* it can not be recorded */
    bool recorded; /* on all devices */
    uint64_t used; /* the last step that it was of */
    void *graph[MAX_RANKS]; /* of each rank's device */
} step_graph;

struct exec {
    mem m;
    const tess_model *model;
    const kv_pool *kv;
    pool *threads;
    program body, head;
    rank_state rank[MAX_RANKS];
    pool_gate gates[MAX_RANKS];
    uint32_t max_rows;
    float *logits;     /* [EXEC_HEAD_ROWS][stride] of all ranks */
    size_t logits_stride;
    rope_set *ropes;   /* exec_rope.c */
    uint32_t n_ropes;
    size_t cap_ropes;
    kbias kbias;       /* of int8 pages; on the CPU with the tables of each sequence of the batch: */
    const float **kbias_cs[ARCH_MAX_ATTN_KINDS], **kbias_lanes[ARCH_MAX_ATTN_KINDS];
    uint32_t kbias_seqs; /* room in them */
    float *alibi;      /* [n_heads][alibi_rows], NULL: none */
    uint32_t alibi_rows;
    comm *comm;        /* NULL: all ranks are on the CPU */
    exec_device *device;
    uint64_t two_from; /* exec_sums.c */
    bool gemm;         /* all devices can, and may, compute large prompts near the exact text only */
    uint32_t *taken;   /* [rank][instruction], exec_shares.c; CPU only */
    bool broken;       /* a device is lost: the context can only be closed */
    step_graph graphs[STEP_GRAPHS], *graph; /* graph: of the step under way, or NULL */
    uint64_t step;
    /* of the run under way */
    const program *prog;
    const exec_batch *batch;
    uint32_t n_rows, positions; /* positions: attention reckons with so many */
    const uint32_t *cancel;
    uint32_t stop[2];
    bool stopped;
};

static inline const plan *plan_of(const exec *x, const rank_state *k) { return x->prog == &x->body ? &k->body : &k->head; }

static inline float *slot_at(const exec *x, const rank_state *k, uint16_t slot, size_t *stride)
{
    const plan *l = plan_of(x, k);
    const prog_slot *s = &x->prog->slots[slot];
    *stride = l->stride[s->width];
    if (k->few && s->each) return k->each + l->each_off[slot];
    if (s->width == W_LOGITS && k->logits) return *stride = k->logits_stride, k->logits;
    return s->width == W_LOGITS ? x->logits + x->model->shards.rank[k->rank].vocab.lo : k->act + l->off[slot];
}

/* Columns of an output that this thread computes, of 0 to `all`: what OWN instructions of few rows give it, else all of them (of which
 * the operation takes its share itself). */
static inline shard_range columns_of(const exec *x, const rank_state *k, const prog_instr *c, uint32_t all)
{
    return k->few && c->how == HOW_OWN ? k->own[x->prog->slots[c->out].width] : (shard_range){0, all};
}

/* Calls operation `name` with the arguments `args`: on the CPU this thread's share of it, on a device all of it into the rank's stream.
 * Uses x, k, t, n of the place where it stands. After a failure a device rank does nothing more in this run. */
#define RUN(name, args)                                          \
    do {                                                         \
        if (!k->stream) x->model->ops->name(&(args), t, n);      \
        else if (!k->code) k->code = k->cuda->name(&(args), k->stream); \
    } while (0)

/* exec_shares.c */
enum { SHARES_ROWS = 32 };
tess_status exec_shares_open(exec *x, tess_error *err);
void exec_shares_reset(exec *x);
void exec_shares(const exec *x, rank_state *k, const prog_instr *c, uint32_t *taken);
static inline uint32_t *shares_of(const exec *x, const rank_state *k, size_t instr) { return x->taken + k->rank * x->prog->n_code + instr; }

/* exec.c */
const model_linear *exec_linear(const exec *x, const rank_state *k, const prog_instr *c);
/* Whether the linear operation with the weight of c goes through op_cuda_table.gemm in this run: the number of rows decides. What
 * chooses experts is small and never does. Leaves are summed at once there, so a rank has one partial sum. */
static inline bool exec_gemm(const exec *x, const rank_state *k, const prog_instr *c)
{
    if (!x->gemm || c->weight == WT_NONE || c->weight == WT_ROUTER || c->weight == WT_SH_SWITCH) return false;
    return x->n_rows >= op_cuda_gemm_from(exec_linear(x, k, c)->w.dtype);
}
static inline bool exec_cancelled(const exec *x) { return x->cancel && __atomic_load_n(x->cancel, __ATOMIC_RELAXED); }
/* Arguments of the sum c on this rank, all columns; parts: [MAX_LEAVES], filled. */
op_reduce_args exec_sum(const exec *x, const rank_state *k, const prog_instr *c, const float **parts);
/* a of the columns [lo, hi) alone, but for a->y, which is where `lo` comes to. */
static inline void exec_sum_columns(op_reduce_args *a, const float **parts, uint32_t lo, uint32_t hi)
{
    for (uint32_t l = 0; l < a->n_leaves; l++) parts[l] += lo;
    if (a->bias) a->bias += lo;
    if (a->residual) a->residual += lo;
    a->n = hi - lo;
}
void exec_instr(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n);
/* exec_joint.c: c and the c->joined instructions behind it, in one launch of the rank's device. */
void exec_joint(const exec *x, rank_state *k, const prog_instr *c);
/* exec_graph.c. graph_begin: before the threads of the devices give the body; graph_give, on each of them, puts it into the stream of its
 * rank, by `give` or as a graph that `give` was recorded into; graph_end: when all have. give: false when the run ended early. */
void graph_begin(exec *x);
void graph_give(exec *x, uint32_t leader, bool (*give)(exec *x, uint32_t leader));
void graph_end(exec *x);
void graphs_end(exec *x); /* buffers move; nothing runs at this time */
uint32_t exec_positions_bound(const exec_batch *b);
/* exec_buffers.c: memory of the ranks on devices. */
tess_status device_open(exec *x, tess_error *err);
void device_close(exec *x);
tess_status device_prepare(exec *x, const exec_batch *b, tess_error *err);
tess_status device_no_memory(const exec *x, uint32_t r, const char *what, uint64_t bytes, int code, tess_error *err);
/* A larger block of device memory with the contents of src (NULL: none); the old one goes. Nothing runs at this time. */
tess_status device_renew(exec *x, uint32_t r, const char *what, float **old, const float *src, uint64_t floats, tess_error *err);
/* exec_device.c: the ranks on devices. */
tess_status device_body(exec *x, tess_error *err);
tess_status device_head(exec *x, const uint32_t *rows, tess_error *err);
tess_status device_head_best(exec *x, const uint32_t *rows, uint32_t k, sampler_best *const *out, tess_error *err);
/* Shared slot `slot` of rank `owner`, where `reader` can read it. */
float *device_shared(const exec *x, const rank_state *reader, const rank_state *owner, uint16_t slot, size_t *stride);
void device_embed(const exec *x, rank_state *k, const prog_instr *c);
bool device_outboxes(const exec *x);                     /* some rank's sums go through memory of the host */
bool device_agree(exec *x, uint32_t leader, bool well);  /* waits for the threads of the other devices; whether all are well */
/* exec_sums.c: sums over ranks in two steps. Whether c is one in this run; a rank's share, before the barrier; all shares beside each
 * other, behind it. open: once the outboxes are planned; reach: memory of rank r for a run of so many rows. */
void sums_open(exec *x);
tess_status sums_reach(exec *x, uint32_t r, uint32_t n_rows, tess_error *err);
bool sums_in_two(const exec *x, const rank_state *k, const prog_instr *c);
void sums_share(const exec *x, rank_state *k, const prog_instr *c);
op_reduce_args sums_beside(const exec *x, const rank_state *k, const prog_instr *c, const float **parts);
/* exec_gemm.c: large prompts on devices. open and close: memory of a rank, while the comm has its device selected. */
tess_status gemm_allow(exec *x, tess_error *err);
tess_status gemm_open(exec *x, uint32_t r, tess_error *err);
void gemm_close(rank_state *k);
/* A linear operation of which exec_gemm is true. */
void gemm_run(const exec *x, rank_state *k, const prog_instr *c, const op_linear_args *l);
/* Prompts and single rows are two kinds of work: a call for each run of rows of one kind. */
void device_attn(const exec *x, rank_state *k, const op_attn_args *all);

/* exec_rope.c: tables for the sequences of a batch up to max_pos; the table of a key that was among the last ones */
tess_status exec_positions(exec *x, const uint32_t *keys, uint32_t n_seqs, uint32_t max_pos, tess_error *err);
/* The set of a key that was among the last ones; NULL: the model has no rope. */
const rope_set *exec_rope_set(const exec *x, uint32_t key);
const float *exec_rope_table(const exec *x, const rank_state *k, uint32_t key, uint32_t kind);
/* What of the layer's K bias its pages do not hold; NULL: nothing is kept apart. */
const op_kbias *exec_kbias(const exec *x, const rank_state *k, uint32_t layer, op_kbias *b);
void exec_positions_close(exec *x);
/* exec_moe.c: the operations of mixtures of experts. */
void exec_moe(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n);
#endif
