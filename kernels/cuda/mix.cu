/* mix.cu - weighted sums over the chosen experts of each leaf. */
#include "cu_ops.cuh"

typedef struct {
    uint32_t bound[MAX_LEAVES + 1];
} mix_leaves;

static __global__ void mix_cells(op_mix_args a, mix_leaves leaf)
{
    uint32_t i = cell_column();
    if (i >= a.n) return;
    CELL_ROWS (t, a.n_tokens)
        for (uint32_t l = 0; l < a.n_leaves; l++) {
            float s = 0.0f;
            for (uint32_t j = 0; j < a.n_used; j++) {
                uint32_t e = a.ids[t * a.is + j];
                if (e >= leaf.bound[l] && e < leaf.bound[l + 1])
                    s = fmaf(a.w[t * a.ws + j], a.x[a.pair[t * a.ps + j] * a.xs + i], s);
            }
            a.y[l * a.yl + t * a.ys + i] = s;
        }
}

int cu_mix(const op_mix_args *a, void *stream)
{
    mix_leaves leaf = {};
    if (a->n_tokens == 0 || a->n == 0 || a->n_leaves == 0) return cudaSuccess;
    if (a->n_leaves > MAX_LEAVES) return cudaErrorInvalidValue;
    for (uint32_t l = 0; l <= a->n_leaves; l++) leaf.bound[l] = a->leaf[l];
    return LAUNCH(mix_cells, cell_grid(a->n_tokens, a->n), cell_threads(a->n), 0, (cudaStream_t)stream, *a, leaf);
}

int cu_mix_load(void) { return cu_load(mix_cells); }
