/*
 * reduce.cu - the sum over leaves in the tree of ops.h, then bias, scale and residual.
 *
 * Leaves may lie in memory of peers or of the host: each is read once. Adding neighbours at distance 1, 2, 4 and carrying the
 * odd one along is the tree: its left half always holds a power of two of leaves.
 */
#include "cu_ops.cuh"

typedef struct {
    const float *at[MAX_LEAVES];
} reduce_parts;

static __global__ void reduce_cells(op_reduce_args a, reduce_parts part)
{
    uint32_t i = cell_column();
    if (i >= a.n) return;
    CELL_ROWS (t, a.n_tokens) {
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
        a.y[t * a.ys + i] = a.residual ? a.residual[t * a.rs + i] + s : s;
    }
}

int cu_reduce(const op_reduce_args *a, void *stream)
{
    reduce_parts part = {};
    if (a->n_tokens == 0 || a->n == 0) return cudaSuccess;
    if (a->n_leaves == 0 || a->n_leaves > MAX_LEAVES) return cudaErrorInvalidValue;
    for (uint32_t l = 0; l < a->n_leaves; l++) part.at[l] = a->parts[l];
    return LAUNCH(reduce_cells, cell_grid(a->n_tokens, a->n), cell_threads(a->n), 0, (cudaStream_t)stream, *a, part);
}

int cu_reduce_load(void) { return cu_load(reduce_cells); }
