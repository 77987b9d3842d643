/* cu_rows.cuh - what sums, norms and groups of rows are made of, for the operations alone (reduce, norm, quant) and together. */
#ifndef TESS_CU_ROWS_CUH
#define TESS_CU_ROWS_CUH
#include "cu_ops.cuh"

/* ---- reduce ---- */
typedef struct {
    const float *at[MAX_LEAVES];
} reduce_parts;

/*
 * Column i of row t. Leaves may lie in memory of peers or of the host: each is read once. Adding neighbours at distance 1, 2, 4 and
 * carrying the odd one along is the tree of ops.h: its left half always holds a power of two of leaves.
 */
DEV float reduce_cell(const op_reduce_args &a, const reduce_parts &part, size_t t, uint32_t i)
{
    float v[MAX_LEAVES];
#pragma unroll
    for (uint32_t l = 0; l < MAX_LEAVES; l++) v[l] = l < a.n_leaves ? part.at[l][t * a.ps + i] : 0.0f;
#pragma unroll
    for (uint32_t w = 1; w < MAX_LEAVES; w *= 2)
#pragma unroll
        for (uint32_t l = 0; l + w < MAX_LEAVES; l += 2 * w)
            if (l + w < a.n_leaves) v[l] = v[l] + v[l + w];
    float s = a.bias ? v[0] + a.bias[i] : v[0];
    s = s * a.scale;
    return a.residual ? a.residual[t * a.rs + i] + s : s;
}

/* The same, or the column from the share that it is in. */
DEV float sum_cell(const op_reduce_args &a, const reduce_parts &part, size_t t, uint32_t i)
{
    return a.share ? part.at[i / a.share][t * a.ps + i % a.share] : reduce_cell(a, part, t, i);
}

/* Whether these are as ops.h has them. */
static inline bool reduce_is_sound(const op_reduce_args *a)
{
    if (a->n_leaves == 0 || a->n_leaves > MAX_LEAVES) return false;
    return !a->share || (!a->bias && !a->residual && a->scale == 1 && a->n_leaves == cu_ceil(a->n, a->share));
}

/* ---- norm ---- */
/* Group g of row t, by a block; stage: shared, SUM_STAGE + 8 floats. */
DEV void norm_group(const op_norm_args &a, size_t t, size_t g, float *stage)
{
    const float *x = a.x + t * a.xs + g * a.n, *w = a.w + g * a.gs, *b = a.kind == NORM_LAYER && a.b ? a.b + g * a.gs : nullptr;
    float *y = a.y + t * a.ys + g * a.n; /* may be x: a thread writes what it alone reads from here on */
    float n = (float)a.n, mean = a.kind == NORM_LAYER ? block_lanes8(x, a.n, 0.0f, false, stage) / n : 0.0f;
    float r = 1.0f / sqrtf(block_lanes8(x, a.n, mean, true, stage) / n + a.eps);
    for (uint32_t i = threadIdx.x; i < a.n; i += blockDim.x) {
        float v = (x[i] - mean) * r;
        v = v * (a.kind == NORM_RMS_PLUS1 ? 1.0f + w[i] : w[i]);
        y[i] = b ? v + b[i] : v;
    }
}

/* ---- quant ---- */
typedef struct {
    uint32_t k[MAX_LEAVES], n;
} quant_leaves;

/* The columns of group g (counted over all leaves): the first, and how many. */
DEV uint32_t group_columns(const quant_leaves &leaf, uint32_t g, size_t *col)
{
    size_t at = 0;
    for (uint32_t l = 0; l < leaf.n; l++) {
        uint32_t in_leaf = (leaf.k[l] + GROUP_K - 1) / GROUP_K;
        if (g < in_leaf) {
            *col = at + (size_t)g * GROUP_K;
            return min(leaf.k[l] - g * GROUP_K, (uint32_t)GROUP_K);
        }
        g -= in_leaf;
        at += leaf.k[l];
    }
    *col = at;
    return 0;
}

/* By all lanes of a warp; x of lanes behind the group's end is 0. */
DEV void quant_group(float x, uint32_t lane, op_group *y)
{
    uint32_t top = bits_of(x) & 0x7fffffff; /* magnitudes compare as their bits do, NaN above infinity */
    for (uint32_t w = WARP / 2; w > 0; w /= 2) top = max(top, __shfl_xor_sync(~0u, top, w));
    bool finite = top < 0x7f800000;
    float amax = float_of(top), inv = 127.0f / amax;
    int32_t q = finite && amax >= QUANT_MIN ? round_even(x * inv) : 0, sum = q;
    for (uint32_t w = WARP / 2; w > 0; w /= 2) sum += __shfl_xor_sync(~0u, sum, w);
    y->q[lane] = (int8_t)q;
    if (lane == 0) {
        y->d = !finite ? cu_nan() : amax >= QUANT_MIN ? amax / 127.0f : 0.0f;
        y->s = y->d * (float)sum;
    }
}

/* Whether q makes groups of all of these rows. */
static inline bool quant_is_of(const op_quant_args *q, const float *x, size_t xs, uint32_t n_tokens)
{
    return q->x == x && q->xs == xs && q->n_tokens == n_tokens && !q->count;
}

/* Leaves as kernels take them; gives the number of groups, UINT32_MAX when there are too many leaves. */
static inline uint32_t quant_cut(const op_quant_args *a, quant_leaves *leaf)
{
    uint32_t groups = 0;
    *leaf = {};
    if (a->n_leaves > MAX_LEAVES) return UINT32_MAX;
    leaf->n = a->n_leaves;
    for (uint32_t l = 0; l < a->n_leaves; l++) {
        leaf->k[l] = a->leaf_k[l];
        groups += cu_ceil(leaf->k[l], GROUP_K);
    }
    return groups;
}

/* ---- a row's norm, and then its first `groups` groups, by a block ---- */
DEV void norm_and_groups(const op_norm_args &a, const op_quant_args &q, const quant_leaves &leaf, uint32_t groups, size_t t, float *stage)
{
    const uint32_t lane = threadIdx.x % WARP;
    norm_group(a, t, 0, stage); /* begins with a barrier, as block_lanes8 does */
    __syncthreads();
    for (uint32_t g = threadIdx.x / WARP; g < groups; g += blockDim.x / WARP) {
        size_t col;
        const uint32_t n = group_columns(leaf, g, &col);
        quant_group(lane < n ? q.x[t * q.xs + col + lane] : 0.0f, lane, q.y + (size_t)g * q.n_tokens + t);
    }
}
#endif
