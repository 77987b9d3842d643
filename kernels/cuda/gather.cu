/* gather.cu - rows of pairs, side by side. */
#include "cu_ops.cuh"

static __global__ void gather_cells(op_gather_args a)
{
    uint32_t i = cell_column();
    if (i >= a.cols) return;
    CELL_ROWS (p, a.count ? *a.count : a.n) a.y[p * a.ys + i] = a.x[a.rows[p] * a.xs + i];
}

int cu_gather(const op_gather_args *a, void *stream)
{
    if (a->n == 0 || a->cols == 0) return cudaSuccess;
    return LAUNCH(gather_cells, cell_grid(a->n, a->cols), cell_threads(a->cols), 0, (cudaStream_t)stream, *a);
}

int cu_gather_load(void) { return cu_load(gather_cells); }
