/*
 * cu_attn.cuh - what the attention kernels share: scratch of split chunks, the last step, and who does what.
 *
 * attn.cu does the arithmetic of ops.h for every shape; attn_mma.cu is the fast path on tensor cores; attn_merge.cu joins the chunks
 * of either. scratch: [row][head][slot][2 + v_dim], (m, l, o) of a chunk, slot 0 being the chunk where the row's window begins.
 */
#ifndef TESS_CU_ATTN_CUH
#define TESS_CU_ATTN_CUH
#include "cu_count.cuh"
#include "cu_kv.cuh"
#include "cu_rows.cuh"

DEV uint32_t attn_lo(uint32_t window, uint32_t pos) { return window && pos >= window ? pos + 1 - window : 0; }

/* Scratch of a row's head, slot by slot. */
DEV float *slot_of(const op_attn_args &a, uint32_t slots, size_t t, uint32_t h, uint32_t slot)
{
    return a.scratch + ((t * a.n_heads + h) * slots + slot) * (2 + (size_t)a.kv.v_dim);
}

/* c and L of ops.h's last step. */
DEV void attn_finish(const op_attn_args &a, uint32_t h, float max, float *sum, float *c)
{
    *c = 1.0f;
    if (!a.sinks) return;
    float top = a.sinks[h] > max ? a.sinks[h] : max;
    *c = cu_exp(max - top);
    *sum = fmaf(*sum, *c, cu_exp(a.sinks[h] - top));
}

/* Query heads [h0, h1) of the rank that read its kv head g, from the part-th `most` of them on. */
DEV void attn_heads(const op_attn_args &a, uint32_t g, uint32_t part, uint32_t most, uint32_t *h0, uint32_t *n_h)
{
    uint32_t first = (g + a.kv_head0) * a.group, last = first + a.group;
    uint32_t lo = (first > a.q_head0 ? first - a.q_head0 : 0) + part * most;
    uint32_t hi = min(last > a.q_head0 ? last - a.q_head0 : 0, a.n_heads);
    *h0 = lo;
    *n_h = lo < hi ? min(hi - lo, most) : 0;
}

/* Chunks that a row can have. */
static inline uint32_t attn_slots(uint32_t window, uint32_t max_pos)
{
    uint32_t all = cu_ceil(max_pos, ATTN_CHUNK), in_window = window / ATTN_CHUNK + 2;
    return window && in_window < all ? in_window : all;
}

/* Whether the chunks of all rows are split over blocks: there are some, few rows, and room for what they leave. */
enum { ATTN_SPLIT_MAX = 2048 /* rows times heads */, ATTN_SCRATCH_MAX = 64 << 20 /* floats */ };
static inline bool attn_split(const op_attn_args *a, uint32_t slots)
{
    uint64_t cells = (uint64_t)a->b.n_tokens * a->n_heads, need = cells * slots * (2 + (uint64_t)a->kv.v_dim);
    return slots >= 2 && slots < 65535 && cells <= ATTN_SPLIT_MAX && need <= a->scratch_floats;
}

/* ---- out as groups, leaf by leaf: whoever completes a leaf of a row (whole heads) makes its groups ---- */
typedef struct {
    op_quant_args quant;
    quant_leaves leaf; /* n 0: no groups */
    uint32_t *counts;
} attn_after;

/* Heads [h0, h0 + n_h) of row t are written. By all threads of a block; flag: shared. */
DEV void attn_groups_of(const attn_after &f, uint32_t v_dim, size_t t, uint32_t h0, uint32_t n_h, uint32_t *flag)
{
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    uint32_t first = 0, g0 = 0; /* the leaf's first head and group */
    for (uint32_t l = 0; l < f.leaf.n; l++) {
        const uint32_t heads = f.leaf.k[l] / v_dim, groups = (f.leaf.k[l] + GROUP_K - 1) / GROUP_K, lo = max(first, h0),
                       hi = min(first + heads, h0 + n_h);
        if (lo < hi && count_ends(&f.counts[t * f.leaf.n + l], hi - lo, heads, flag))
            for (uint32_t g = warp; g < groups; g += warps) {
                const uint32_t n = min(f.leaf.k[l] - g * GROUP_K, (uint32_t)GROUP_K);
                const float *x = f.quant.x + t * f.quant.xs + (size_t)first * v_dim + g * GROUP_K;
                quant_group(lane < n ? x[lane] : 0.0f, lane, f.quant.y + (size_t)(g0 + g) * f.quant.n_tokens + t);
            }
        first += heads;
        g0 += groups;
    }
}

/* attn_merge.cu: out of all rows and heads from their slots. */
int cu_attn_merge(const op_attn_args *a, const attn_after *after, uint32_t slots, cudaStream_t stream);
int cu_attn_merge_load(void);
/* attn_mma.cu. *fits false: this shape, or this device, is not for it; nothing was launched. Neither depends on the batch. */
int cu_attn_mma(const op_attn_args *a, const attn_after *after, cudaStream_t stream, bool *fits);
int cu_attn_mma_load(void);
#endif
