/* gate.cu - a shared expert's output times the sigmoid of its switch. */
#include "cu_ops.cuh"

static __global__ void gate_cells(op_switch_args a)
{
    uint32_t i = cell_column();
    if (i >= a.n) return;
    CELL_ROWS (t, a.n_tokens) a.y[t * a.ys + i] = a.x[t * a.xs + i] * logistic(a.g[t * a.gs]);
}

int cu_gate(const op_switch_args *a, void *stream)
{
    if (a->n_tokens == 0 || a->n == 0) return cudaSuccess;
    return LAUNCH(gate_cells, cell_grid(a->n_tokens, a->n), cell_threads(a->n), 0, (cudaStream_t)stream, *a);
}

int cu_gate_load(void) { return cu_load(gate_cells); }
