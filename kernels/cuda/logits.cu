/* logits.cu - scale and soft cap of logits. */
#include "cu_ops.cuh"

static __global__ void logits_cells(op_logits_args a)
{
    uint32_t i = cell_column();
    if (i >= a.n) return;
    CELL_ROWS (t, a.n_tokens) a.y[t * a.ys + i] = soft_cap(a.x[t * a.xs + i] * a.scale, a.cap);
}

int cu_logits(const op_logits_args *a, void *stream)
{
    if (a->n_tokens == 0 || a->n == 0) return cudaSuccess;
    return LAUNCH(logits_cells, cell_grid(a->n_tokens, a->n), cell_threads(a->n), 0, (cudaStream_t)stream, *a);
}

int cu_logits_load(void) { return cu_load(logits_cells); }
