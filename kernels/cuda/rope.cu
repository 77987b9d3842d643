/* rope.cu - rotates pairs of columns in place; a thread is one pair of one head. */
#include "cu_ops.cuh"

static __global__ void rope_pairs(op_rope_args a)
{
    uint32_t half = a.dims / 2, at = cell_column(), h = at / half, i = at % half;
    if (h >= a.n_heads) return;
    uint32_t ia = a.kind == ROPE_HALF ? i : 2 * i, ib = a.kind == ROPE_HALF ? i + half : 2 * i + 1;
    CELL_ROWS (t, a.n_tokens) {
        const float *cs = a.cs + ((size_t)a.pos[t] * half + i) * 2;
        float *x = a.x + t * a.xs + (size_t)h * a.head_dim, c = cs[0], s = cs[1], va = x[ia], vb = x[ib];
        x[ia] = fmaf(va, c, -(vb * s));
        x[ib] = fmaf(va, s, vb * c);
    }
}

int cu_rope(const op_rope_args *a, void *stream)
{
    uint32_t n = a->n_heads * (a->dims / 2);
    if (a->kind == ROPE_NONE || a->n_tokens == 0 || n == 0) return cudaSuccess;
    return LAUNCH(rope_pairs, cell_grid(a->n_tokens, n), cell_threads(n), 0, (cudaStream_t)stream, *a);
}

int cu_rope_load(void) { return cu_load(rope_pairs); }
