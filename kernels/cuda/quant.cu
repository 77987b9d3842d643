/* quant.cu - groups of int8 from rows of floats; a warp is one group of one row, a lane one column. */
#include "cu_rows.cuh"

enum { QUANT_WARPS = 4 };

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
    quant_leaves leaf;
    uint32_t groups = quant_cut(a, &leaf);
    if (groups == UINT32_MAX) return cudaErrorInvalidValue;
    if (a->n_tokens == 0 || groups == 0) return cudaSuccess;
    dim3 grid(cu_ceil(groups, QUANT_WARPS), grid_y(a->n_tokens));
    return LAUNCH(quant_groups, grid, QUANT_WARPS * WARP, 0, (cudaStream_t)stream, *a, leaf);
}

int cu_quant_load(void) { return cu_load(quant_groups); }
