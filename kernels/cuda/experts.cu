/*
 * experts.cu - a linear of every expert on its own pairs, by the blocks of linear.cu.
 *
 * Only the device knows how the pairs are spread. The work is a list of items: for each expert in order, its pairs in tiles of
 * `per`. The host knows how many items there can be at most and makes the grid for that; each block looks its item up in the
 * bounds of the experts, and those behind the end of the list leave at once. So no expert with many pairs holds the others
 * up, and a step of one token has blocks for the experts that it chose only. Each type that occurs among the weights has a
 * launch, for which the experts of other types have no items. How many pairs an expert is likely to have decides the shape of the
 * blocks; no choice changes a bit.
 */
#include "lin_float.cuh"
#include "lin_gemv.cuh"
#include "lin_mma.cuh"

/* Item i of the list with tiles of `per` pairs: its expert as a job, and its first pair. The same for all warps of a block. */
DEV bool expert_item(const op_experts_args &a, uint32_t types, uint32_t per, uint32_t i, lin_job &j, uint32_t &t0)
{
    const uint32_t lane = threadIdx.x % WARP;
    for (uint32_t e0 = 0; e0 < a.n_local; e0 += WARP) {
        const uint32_t mine = e0 + lane;
        uint32_t n = 0;
        if (mine < a.n_local && types >> a.w[mine].dtype & 1) n = (a.first[mine + 1] - a.first[mine] + per - 1) / per;
        uint32_t end = n; /* of the items of the experts e0 .. mine */
#pragma unroll
        for (uint32_t d = 1; d < WARP; d *= 2) {
            const uint32_t before = __shfl_up_sync(~0u, end, d);
            if (lane >= d) end += before;
        }
        const uint32_t all = __shfl_sync(~0u, end, WARP - 1);
        if (i >= all) {
            i -= all;
            continue;
        }
        const uint32_t at = (uint32_t)__ffs((int)__ballot_sync(~0u, i < end)) - 1, e = e0 + at, first = a.first[e];
        const op_expert &m = a.w[e];
        t0 = (i - __shfl_sync(~0u, end - n, at)) * per;
        j = {};
        j.data = m.data, j.block_stride = m.block_stride, j.dtype = m.dtype, j.bias = m.bias;
        j.n_rows = j.hi = a.n_rows, j.n_k = a.n_k, j.n_tokens = a.first[e + 1] - first;
        j.x = a.x ? a.x + first * a.xs : nullptr, j.xs = a.xs;
        j.xq = a.xq ? a.xq + first : nullptr, j.xqs = a.xqs;
        j.y = a.y + first * a.ys, j.ys = a.ys;
        return true;
    }
    return false;
}

static __global__ void expert_rows(op_experts_args a)
{
    SHARED(float, w, [LIN_W_FLOATS]);
    SHARED(float, x, [LIN_X_FLOATS]);
    lin_job j;
    uint32_t t0;
    for (uint32_t i = blockIdx.y; expert_item(a, a.types, LIN_TOKENS, i, j, t0); i += gridDim.y)
        lin_block<LIN_TOKENS / LIN_WARPS>(j, (uint64_t)blockIdx.x * LIN_BLOCKS, t0, w, x);
}

template <uint32_t DT, uint32_t M>
static __global__ void CU_BOUNDS((gemv_shape<DT, M>::THREADS), 4) expert_gemv(op_experts_args a, uint32_t wk)
{
    typedef gemv_shape<DT, M> S;
    SHARED(uint8_t, smem, [S::SHARED_BYTES]);
    lin_job j;
    uint32_t t0;
    for (uint32_t i = blockIdx.y; expert_item(a, 1u << DT, M, i, j, t0); i += gridDim.y)
        gemv_block<DT, M>(j, (uint64_t)blockIdx.x * (S::WARPS / wk), wk, t0, smem);
}

template <uint32_t DT, class S> static __global__ void CU_BOUNDS(S::THREADS, 1) expert_mma(op_experts_args a)
{
    SHARED(uint8_t, smem, [S::SHARED_BYTES]);
    lin_job j;
    uint32_t t0;
    for (uint32_t i = blockIdx.y; expert_item(a, 1u << DT, S::TOKENS, i, j, t0); i += gridDim.y)
        mma_block<S>(j, (uint64_t)blockIdx.x * S::BLOCKS, t0, smem);
}

template <uint32_t DT, class S> static __global__ void CU_BOUNDS(S::THREADS, 2) expert_float(op_experts_args a)
{
    SHARED(uint8_t, smem, [S::SHARED_BYTES]);
    lin_job j;
    uint32_t t0;
    for (uint32_t i = blockIdx.y; expert_item(a, 1u << DT, S::TOKENS, i, j, t0); i += gridDim.y)
        float_block<S>(j, (uint64_t)blockIdx.x * S::BLOCKS, t0, smem);
}

/* Blocks of `rows` rows, and most items with tiles of `per` pairs: that is when every expert has pairs and the last tile of each, but
 * one expert's, is a single pair. */
static dim3 item_grid(const op_experts_args *a, uint32_t rows, uint32_t per)
{
    uint32_t busy = a->n_local < a->n_max ? a->n_local : a->n_max;
    return dim3(cu_ceil(a->n_rows, rows), grid_y(busy + (a->n_max - busy) / per));
}

template <uint32_t DT, uint32_t M> static int launch_gemv(const op_experts_args *a, cudaStream_t stream)
{
    typedef gemv_shape<DT, M> S;
    uint32_t wk = gemv_share<DT, M>(cu_ceil(a->n_k, GROUP_K));
    dim3 grid = item_grid(a, TILE_ROWS * S::WARPS / wk, M);
    return LAUNCH((expert_gemv<DT, M>), grid, S::THREADS, 0, stream, *a, wk);
}
template <uint32_t DT, class S> static int launch_mma(const op_experts_args *a, cudaStream_t stream)
{
    dim3 grid = item_grid(a, TILE_ROWS * S::BLOCKS, S::TOKENS);
    return LAUNCH((expert_mma<DT, S>), grid, S::THREADS, 0, stream, *a);
}

template <uint32_t DT, class S> static int launch_float(const op_experts_args *a, cudaStream_t stream)
{
    dim3 grid = item_grid(a, TILE_ROWS * S::BLOCKS, S::TOKENS);
    return LAUNCH((expert_float<DT, S>), grid, S::THREADS, 0, stream, *a);
}

/* By the pairs of an expert when all have equally many; few experts are chosen by few tokens, and more than one pair is rare then. */
template <uint32_t DT> static int launch_groups(const op_experts_args *a, cudaStream_t stream)
{
    uint32_t share = a->n_max / a->n_local;
    if (a->n_max * (uint64_t)2 < a->n_local) return launch_gemv<DT, 1>(a, stream);
    if (share < 2) return launch_gemv<DT, 2>(a, stream);
    if (share < 4) return launch_gemv<DT, 4>(a, stream);
    if (share <= 16) return launch_mma<DT, mma_few<DT>>(a, stream);
    if (share <= 128) return launch_mma<DT, mma_some<DT>>(a, stream);
    return launch_mma<DT, mma_many<DT>>(a, stream);
}

template <uint32_t DT> static int launch_floats(const op_experts_args *a, cudaStream_t stream)
{
    uint32_t share = a->n_max / a->n_local;
    if (share < 2) return launch_float<DT, float_2<DT>>(a, stream);
    if (share <= 16) return launch_float<DT, float_few<DT>>(a, stream);
    return launch_float<DT, float_many<DT>>(a, stream);
}

int cu_experts(const op_experts_args *a, void *stream_)
{
    if (a->n_local == 0 || a->n_rows == 0 || a->n_max == 0) return cudaSuccess;
    if (!cu_aligned(a->xq, 8)) return cudaErrorMisalignedAddress;
    cudaStream_t stream = (cudaStream_t)stream_;
    op_experts_args plain = *a; /* q8 and q4 as floats */
    plain.types = a->xq ? 0 : a->types & (1u << DT_Q8 | 1u << DT_Q4);
    int e = cudaSuccess;
    for (uint32_t dtype = 1; dtype < DT_COUNT && e == cudaSuccess; dtype++) {
        if (!(a->types >> dtype & 1)) continue;
        switch (dtype) {
        case DT_F32: e = launch_floats<DT_F32>(a, stream); break;
        case DT_F16: e = launch_floats<DT_F16>(a, stream); break;
        case DT_BF16: e = launch_floats<DT_BF16>(a, stream); break;
        case DT_Q8: if (a->xq) e = launch_groups<DT_Q8>(a, stream); break;
        case DT_Q4: if (a->xq) e = launch_groups<DT_Q4>(a, stream); break;
        default: e = cudaErrorInvalidValue; break;
        }
    }
    if (e != cudaSuccess || plain.types == 0) return e;
    return LAUNCH(expert_rows, item_grid(a, WARP, LIN_TOKENS), LIN_THREADS, 0, stream, plain);
}

template <uint32_t DT> static int load_groups(void)
{
    return cu_load(expert_gemv<DT, 1>, expert_gemv<DT, 2>, expert_gemv<DT, 4>, expert_mma<DT, mma_few<DT>>,
                   expert_mma<DT, mma_some<DT>>, expert_mma<DT, mma_many<DT>>);
}
template <uint32_t DT> static int load_floats(void)
{
    return cu_load(expert_float<DT, float_2<DT>>, expert_float<DT, float_few<DT>>, expert_float<DT, float_many<DT>>);
}
int cu_experts_load(void)
{
    static int (*const load[])(void) = {load_groups<DT_Q8>, load_groups<DT_Q4>, load_floats<DT_F32>, load_floats<DT_F16>,
                                        load_floats<DT_BF16>};
    int e = cu_load(expert_rows);
    for (size_t i = 0; i < ARRAY_LEN(load) && e == cudaSuccess; i++) e = load[i]();
    return e;
}
