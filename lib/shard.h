/*
 * shard.h - which part of every axis a rank holds: pure arithmetic, no memory.
 *
 * Ranks are cut at leaf boundaries (arch.h), by shares when --split asks for them. A rank may hold nothing of an axis and
 * still joins every collective. A rank needs the kv heads that its q heads read, so a kv head can be on several ranks.
 */
#ifndef TESS_SHARD_H
#define TESS_SHARD_H
#include "arch.h"

enum { MAX_RANKS = 8 };
typedef struct { uint32_t lo, hi; } shard_range;
typedef struct {
    shard_range q_leaf, ffn_leaf, vocab_leaf, expert_leaf, shared_leaf; /* leaves of the axis */
    shard_range q_head, kv_head;              /* heads */
    shard_range ffn, vocab, shared;           /* elements, rows */
    shard_range expert;                       /* experts */
} shard_rank;
typedef struct {
    uint32_t n_ranks;
    arch_axis q, kv, ffn, vocab, expert, shared, v; /* v: the leaves of q in elements of v; without leaves: the model has none */
    shard_rank rank[MAX_RANKS];
} shard_plan;

/* shares: n_ranks positive weights or NULL for equal ones. */
tess_status shard_make(const arch *a, uint32_t n_ranks, const double *shares, shard_plan *out, tess_error *err);
/* Which rank computes leaf i of an axis whose ranges are chosen by `get`. */
static inline bool shard_has(shard_range r, uint32_t i) { return i >= r.lo && i < r.hi; }
#endif
