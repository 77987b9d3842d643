/*
 * after_ops.h - what follows linear operations on a device in the same launch (op_cuda_table.linears); plain C, no CUDA header.
 *
 * The rows of a linear operation come in parts: 32 columns of a feed-forward, a head of q, k or v, 32 columns of the hidden state.
 * The blocks that make a part count the rows that they have written, and the one that completes it does what follows for
 * this part: it waits for nobody, and which block it is changes no bit. The counts lie in device memory; they are 0 before the launch
 * and 0 again after it, and only one launch may use them at a time.
 *
 *   ACT    act(a[0].y, a[1].y) or act(a[0].y), then its groups (or not)
 *   HEADS  a[0..2] are q, k, v: norms of the heads of q and of k (or not), rope of both (or not), K and V to pages
 *   ROWS   the sum over a[0]'s leaves, which all are here, with bias and residual; then (or not) a norm of the row, then its groups
 */
#ifndef TESS_AFTER_OPS_H
#define TESS_AFTER_OPS_H
#include "ops.h"

struct op_counts {
    uint32_t *at; /* in device memory */
    uint32_t n;
};
enum { AFTER_ACT = 1, AFTER_HEADS, AFTER_ROWS };
enum { AFTER_TOKENS = 64 /* with more a launch is little beside its work */, AFTER_PART = 32 };
struct op_after {
    uint32_t what;
    struct op_counts counts;
    const op_act_args *act;
    const op_norm_args *head_norm[2];
    const op_rope_args *rope[2];
    const op_kv_write_args *kv;
    const op_reduce_args *sum;
    const op_norm_args *norm;
    const op_quant_args *quant;
};

/* Counts that suffice for ranks with so many columns of feed-forward and of the hidden state, heads of q, k and v together, leaves. */
static inline uint32_t after_counts(uint32_t ffn, uint32_t hidden, uint32_t heads, uint32_t leaves)
{
    const uint32_t cols = ffn > hidden ? ffn : hidden, parts = cols / AFTER_PART + 2, tiles = 4; /* of 64 tokens: 4 at most */
    return (parts > heads ? parts : heads) * tiles + AFTER_TOKENS * leaves;
}
#endif
