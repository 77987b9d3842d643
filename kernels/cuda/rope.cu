/* rope.cu - rotates pairs of columns in place; a thread is one pair of one head. */
#include "cu_heads.cuh"

static __global__ void rope_pairs(op_rope_args a)
{
    uint32_t half = a.dims / 2, at = cell_column(), h = at / half;
    if (h >= a.n_heads) return;
    CELL_ROWS (t, a.n_tokens) rope_pair(a, t, h, at % half);
}

int cu_rope(const op_rope_args *a, void *stream)
{
    uint32_t n = a->n_heads * (a->dims / 2);
    if (a->kind == ROPE_NONE || a->n_tokens == 0 || n == 0) return cudaSuccess;
    return LAUNCH(rope_pairs, cell_grid(a->n_tokens, n), cell_threads(n), 0, (cudaStream_t)stream, *a);
}

int cu_rope_load(void) { return cu_load(rope_pairs); }
