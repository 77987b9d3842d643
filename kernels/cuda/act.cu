/* act.cu - activation functions of feed-forward layers, column by column. */
#include "cu_act.cuh"

static __global__ void act_cells(op_act_args a)
{
    uint32_t i = cell_column();
    if (i >= a.n) return;
    CELL_ROWS (t, a.count ? *a.count : a.n_tokens) a.y[t * a.ys + i] = act_cell(a, t, i);
}

int cu_act(const op_act_args *a, void *stream)
{
    if (a->n_tokens == 0 || a->n == 0) return cudaSuccess;
    return LAUNCH(act_cells, cell_grid(a->n_tokens, a->n), cell_threads(a->n), 0, (cudaStream_t)stream, *a);
}

int cu_act_load(void) { return cu_load(act_cells); }
