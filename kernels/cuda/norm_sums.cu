/* norm_sums.cu - a norm over all heads from the sums of squares that every rank gathered; a block is one row. */
#include "cu_ops.cuh"

enum { SUM_PARTS = 64, NORM_THREADS = 256 };
typedef struct {
    op_sum_part part[SUM_PARTS];
} norm_parts;

static __global__ void norm_by_sums(op_norm_sums_args a, norm_parts parts)
{
    SHARED(float, shared_r, [1]);
    size_t t = blockIdx.x;
    if (threadIdx.x == 0) {
        float s = 0.0f;
        for (uint32_t p = 0; p < a.n_parts; p++)
            for (uint32_t h = 0; h < parts.part[p].n; h++) s += parts.part[p].s[t * parts.part[p].ss + h];
        shared_r[0] = 1.0f / sqrtf(s / (float)a.n + a.eps);
    }
    __syncthreads();
    float r = shared_r[0];
    for (uint32_t i = threadIdx.x; i < a.cols; i += blockDim.x) a.y[t * a.ys + i] = (a.x[t * a.xs + i] * r) * a.w[i];
}

int cu_norm_sums(const op_norm_sums_args *a, void *stream)
{
    norm_parts parts = {};
    if (a->n_tokens == 0 || a->cols == 0) return cudaSuccess;
    if (a->n_parts > SUM_PARTS) return cudaErrorInvalidValue;
    for (uint32_t p = 0; p < a->n_parts; p++) parts.part[p] = a->parts[p];
    return LAUNCH(norm_by_sums, a->n_tokens, cu_threads(a->cols, NORM_THREADS), 0, (cudaStream_t)stream, *a, parts);
}

int cu_norm_sums_load(void) { return cu_load(norm_by_sums); }
