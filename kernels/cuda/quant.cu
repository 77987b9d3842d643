/* quant.cu - groups of int8 from rows of floats; a warp is one group of one row, a lane one column. */
#include "cu_ops.cuh"

enum { QUANT_WARPS = 4 };
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

static __global__ void quant_groups(op_quant_args a, quant_leaves leaf)
{
    uint32_t g = blockIdx.x * QUANT_WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    size_t col, n_rows = a.count ? *a.count : a.n_tokens;
    uint32_t n = group_columns(leaf, g, &col);
    if (n == 0) return; /* a whole warp */
    for (size_t t = blockIdx.y; t < n_rows; t += gridDim.y)
        quant_group(lane < n ? a.x[t * a.xs + col + lane] : 0.0f, lane, a.y + (size_t)g * a.n_tokens + t);
}

int cu_quant(const op_quant_args *a, void *stream)
{
    quant_leaves leaf = {};
    uint32_t groups = 0;
    if (a->n_leaves > MAX_LEAVES) return cudaErrorInvalidValue;
    leaf.n = a->n_leaves;
    for (uint32_t l = 0; l < a->n_leaves; l++) {
        leaf.k[l] = a->leaf_k[l];
        groups += cu_ceil(leaf.k[l], GROUP_K);
    }
    if (a->n_tokens == 0 || groups == 0) return cudaSuccess;
    dim3 grid(cu_ceil(groups, QUANT_WARPS), grid_y(a->n_tokens));
    return LAUNCH(quant_groups, grid, QUANT_WARPS * WARP, 0, (cudaStream_t)stream, *a, leaf);
}

int cu_quant_load(void) { return cu_load(quant_groups); }
