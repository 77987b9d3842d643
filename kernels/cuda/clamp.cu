/* clamp.cu - limits of q, k and v, in place. */
#include "cu_ops.cuh"

static __global__ void clamp_cells(op_clamp_args a)
{
    uint32_t i = cell_column();
    if (i >= a.n) return;
    CELL_ROWS (t, a.n_tokens) {
        float x = a.x[t * a.xs + i];
        a.x[t * a.xs + i] = x < -a.limit ? -a.limit : x > a.limit ? a.limit : x;
    }
}

int cu_clamp(const op_clamp_args *a, void *stream)
{
    if (a->n_tokens == 0 || a->n == 0) return cudaSuccess;
    return LAUNCH(clamp_cells, cell_grid(a->n_tokens, a->n), cell_threads(a->n), 0, (cudaStream_t)stream, *a);
}

int cu_clamp_load(void) { return cu_load(clamp_cells); }
