/* exec_priv.h - the state of an executor, shared by exec.c and exec_moe.c. */
#ifndef TESS_EXEC_PRIV_H
#define TESS_EXEC_PRIV_H
#include "exec.h"

typedef struct {
    const tess_model *model;
    uint32_t rank, first_thread, n_threads;
    float *act;        /* arena of activations */
    plan body, head;
    float *scratch;    /* attention */
    size_t scratch_floats;
    pool_gate gate;
} rank_state;

struct exec {
    mem m;
    const tess_model *model;
    const kv_pool *kv;
    pool *threads;
    program body, head;
    rank_state rank[MAX_RANKS];
    uint32_t max_rows;
    float *logits;     /* [EXEC_HEAD_ROWS][stride] of all ranks */
    size_t logits_stride;
    float *rope[2][ARCH_MAX_ATTN_KINDS], *inv[2][ARCH_MAX_ATTN_KINDS]; /* [1]: of long prompts, when they differ */
    uint32_t rope_rows[2][ARCH_MAX_ATTN_KINDS];
    float *alibi;      /* [n_heads][alibi_rows], NULL: none */
    uint32_t alibi_rows;
    /* of the run under way */
    const program *prog;
    const exec_batch *batch;
    uint32_t n_rows;
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
    return s->width == W_LOGITS ? x->logits + x->model->shards.rank[k->rank].vocab.lo : k->act + l->off[slot];
}

/* exec_moe.c: the operations of mixtures of experts. */
void exec_moe(const exec *x, const rank_state *k, const prog_instr *c, uint32_t t, uint32_t n);
#endif
