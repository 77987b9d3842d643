/* norm.cu - RMS and layer norms; a block is one group of one row. */
#include "cu_ops.cuh"

enum { NORM_THREADS = 256 };

static __global__ void norm_groups(op_norm_args a)
{
    SHARED(float, stage, [SUM_STAGE + 8]);
    size_t t = blockIdx.x / a.groups, g = blockIdx.x % a.groups;
    const float *x = a.x + t * a.xs + g * a.n, *w = a.w + g * a.gs, *b = a.kind == NORM_LAYER && a.b ? a.b + g * a.gs : nullptr;
    float *y = a.y + t * a.ys + g * a.n; /* may be x: a thread writes what it alone reads from here on */
    float n = (float)a.n, mean = a.kind == NORM_LAYER ? block_lanes8(x, a.n, 0.0f, false, stage) / n : 0.0f;
    float r = 1.0f / sqrtf(block_lanes8(x, a.n, mean, true, stage) / n + a.eps);
    for (uint32_t i = threadIdx.x; i < a.n; i += blockDim.x) {
        float v = (x[i] - mean) * r;
        v = v * (a.kind == NORM_RMS_PLUS1 ? 1.0f + w[i] : w[i]);
        y[i] = b ? v + b[i] : v;
    }
}

int cu_norm(const op_norm_args *a, void *stream)
{
    uint64_t blocks = (uint64_t)a->n_tokens * a->groups;
    if (blocks == 0 || a->n == 0) return cudaSuccess;
    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    return LAUNCH(norm_groups, (uint32_t)blocks, cu_threads(a->n, NORM_THREADS), 0, (cudaStream_t)stream, *a);
}

int cu_norm_load(void) { return cu_load(norm_groups); }
