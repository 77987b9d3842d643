/* shard.c - see shard.h. */
#include "shard.h"

#include <math.h>

/* Leaves of rank r: the cumulative share, rounded to the nearest leaf; equal shares give L * r / R exactly. */
static uint32_t cut(uint32_t n_leaves, uint32_t r, uint32_t n_ranks, const double *shares)
{
    if (!shares) return (uint32_t)((uint64_t)n_leaves * r / n_ranks);
    double before = 0, all = 0;
    for (uint32_t i = 0; i < n_ranks; i++) {
        if (i < r) before += shares[i];
        all += shares[i];
    }
    return (uint32_t)(before / all * n_leaves + 0.5);
}

static shard_range leaves_of(const arch_axis *x, uint32_t r, uint32_t n, const double *shares)
{
    return (shard_range){cut(x->n_leaves, r, n, shares), cut(x->n_leaves, r + 1, n, shares)};
}
static shard_range elems_of(const arch_axis *x, shard_range leaf)
{
    return (shard_range){(uint32_t)axis_elem(x, x->leaf[leaf.lo]), (uint32_t)axis_elem(x, x->leaf[leaf.hi])};
}

tess_status shard_make(const arch *a, uint32_t n_ranks, const double *shares, shard_plan *out, tess_error *err)
{
    *out = (shard_plan){.n_ranks = n_ranks};
    if (n_ranks < 1 || n_ranks > MAX_RANKS) return ERR(err, TESS_E_ARG, "%u ranks asked for; 1 to %d are possible", n_ranks, MAX_RANKS);
    for (uint32_t i = 0; shares && i < n_ranks; i++)
        if (!(shares[i] > 0) || !isfinite(shares[i])) return ERR(err, TESS_E_ARG, "share %u of the split is not a positive number", i);
    arch_axis_of(a, AXIS_Q_HEADS, &out->q);
    arch_axis_of(a, AXIS_KV_HEADS, &out->kv);
    arch_axis_of(a, AXIS_FFN, &out->ffn);
    arch_axis_of(a, AXIS_VOCAB, &out->vocab);
    arch_axis_of(a, AXIS_EXPERT, &out->expert);
    arch_axis_of(a, AXIS_SHARED, &out->shared);
    if (!arch_axis_of(a, AXIS_V_HEADS, &out->v)) out->v = out->q;
    uint32_t group = a->n_heads / a->n_kv_heads;
    for (uint32_t r = 0; r < n_ranks; r++) {
        shard_rank *k = &out->rank[r];
        k->q_leaf = leaves_of(&out->q, r, n_ranks, shares);
        k->ffn_leaf = leaves_of(&out->ffn, r, n_ranks, shares);
        k->vocab_leaf = leaves_of(&out->vocab, r, n_ranks, shares);
        k->ffn = elems_of(&out->ffn, k->ffn_leaf);
        k->expert_leaf = leaves_of(&out->expert, r, n_ranks, shares);
        k->shared_leaf = leaves_of(&out->shared, r, n_ranks, shares);
        k->expert = elems_of(&out->expert, k->expert_leaf);
        k->shared = elems_of(&out->shared, k->shared_leaf);
        k->vocab = elems_of(&out->vocab, k->vocab_leaf);
        k->q_head = (shard_range){out->q.leaf[k->q_leaf.lo], out->q.leaf[k->q_leaf.hi]};
        if (k->q_head.hi > k->q_head.lo) k->kv_head = (shard_range){k->q_head.lo / group, (k->q_head.hi - 1) / group + 1};
    }
    return TESS_OK;
}
