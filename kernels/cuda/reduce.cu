/* reduce.cu - the sum over leaves in the tree of ops.h, then bias, scale and residual; or the shares of such a sum beside each other. */
#include "cu_rows.cuh"

static __global__ void reduce_cells(op_reduce_args a, const __grid_constant__ reduce_parts part)
{
    uint32_t i = cell_column();
    if (i >= a.n) return;
    CELL_ROWS (t, a.n_tokens) a.y[t * a.ys + i] = sum_cell(a, part, t, i);
}

int cu_reduce(const op_reduce_args *a, void *stream)
{
    reduce_parts part = {};
    if (a->n_tokens == 0 || a->n == 0) return cudaSuccess;
    if (!reduce_is_sound(a)) return cudaErrorInvalidValue;
    for (uint32_t l = 0; l < a->n_leaves; l++) part.at[l] = a->parts[l];
    return LAUNCH(reduce_cells, cell_grid(a->n_tokens, a->n), cell_threads(a->n), 0, (cudaStream_t)stream, *a, part);
}

int cu_reduce_load(void) { return cu_load(reduce_cells); }
