/* head_sums.cu - sums of squares of each head; a block is one head of one row. */
#include "cu_ops.cuh"

static __global__ void head_squares(op_head_sums_args a)
{
    SHARED(float, stage, [SUM_STAGE + 8]);
    size_t t = blockIdx.x / a.n_heads, h = blockIdx.x % a.n_heads;
    float s = block_lanes8(a.x + t * a.xs + h * a.head_dim, a.head_dim, 0.0f, true, stage);
    if (threadIdx.x == 0) a.y[t * a.ys + h] = s;
}

int cu_head_sums(const op_head_sums_args *a, void *stream)
{
    uint64_t blocks = (uint64_t)a->n_tokens * a->n_heads;
    if (blocks == 0) return cudaSuccess;
    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    return LAUNCH(head_squares, (uint32_t)blocks, WARP, 0, (cudaStream_t)stream, *a);
}

int cu_head_sums_load(void) { return cu_load(head_squares); }
