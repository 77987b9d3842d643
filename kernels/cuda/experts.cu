/*
 * experts.cu - a linear of every expert on its own pairs; a block is 32 rows of one expert times some of its pairs.
 *
 * Only the device knows how the pairs are spread. The grid has blocks for a fair share of the pairs of each expert; those of an
 * expert with more walk on, those of one with fewer leave at once.
 */
#include "cu_weight.cuh"

static __global__ void expert_rows(op_experts_args a)
{
    SHARED(float, w, [LIN_W_FLOATS]);
    SHARED(float, x, [LIN_X_FLOATS]);
    for (uint32_t e = blockIdx.z; e < a.n_local; e += gridDim.z) {
        const op_expert &m = a.w[e];
        uint32_t first = a.first[e], n = a.first[e + 1] - first;
        lin_job j = {};
        j.data = m.data, j.block_stride = m.block_stride, j.dtype = m.dtype, j.bias = m.bias;
        j.n_rows = j.hi = a.n_rows, j.n_k = a.n_k, j.n_tokens = n;
        j.x = a.x ? a.x + first * a.xs : nullptr, j.xs = a.xs;
        j.xq = a.xq ? a.xq + first : nullptr, j.xqs = a.xqs;
        j.y = a.y + first * a.ys, j.ys = a.ys;
        for (uint32_t t0 = blockIdx.y * LIN_TOKENS; t0 < n; t0 += gridDim.y * LIN_TOKENS)
            lin_block<LIN_TOKENS / LIN_WARPS>(j, (uint64_t)blockIdx.x * LIN_BLOCKS, t0, w, x);
    }
}

int cu_experts(const op_experts_args *a, void *stream)
{
    if (a->n_local == 0 || a->n_rows == 0 || a->n_max == 0) return cudaSuccess;
    dim3 grid(cu_ceil(a->n_rows, WARP), grid_y(cu_ceil(cu_ceil(a->n_max, a->n_local), LIN_TOKENS)), grid_y(a->n_local));
    return LAUNCH(expert_rows, grid, LIN_THREADS, 0, (cudaStream_t)stream, *a);
}

int cu_experts_load(void) { return cu_load(expert_rows); }
