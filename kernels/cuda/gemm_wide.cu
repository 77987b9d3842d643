/*
 * gemm_wide.cu - the product of gemm.cu by wgmma, for devices of compute capability 9.0 (cuda.mk compiles this file for sm_90a alone).
 *
 * Operands lie in shared memory as gemm_mma.cuh has them, and wgmma reads them there: A are the 64 tokens of a warpgroup, B the 256 rows of the
 * block, which has two or three warpgroups. They copy a stage with cp.async while another is multiplied: at the barrier of piece p all
 * of it has come, and the products of piece p - 2 are done (wait<1> of the turn before), so that its stage takes piece p - 2 + ST.
 * Two or three makes no difference to a bit.
 */
#include "gemm_mma.cuh"

/* Of G warpgroups. */
template <uint32_t G> struct gemm_wide_tile : gemm_tile<32, 8 * G, 128 * G, 8> {};

#if PTX_WGMMA
template <class S> DEV void wide_block(const gemm_args &a, const op_run *leaves, uint32_t n_pieces, uint64_t block0, uint32_t tok0, uint8_t *stage)
{
    const uint32_t group = threadIdx.x / (4 * WARP), warp = threadIdx.x / WARP;
    gemm_place at = {};
    float acc[1][S::ROWS][4] = {};
#pragma unroll
    for (uint32_t s = 0; s + 2 < S::ST; s++) {
        if (at.piece < n_pieces) gemm_load<S>(a, leaves, at, block0, tok0, stage + s * S::STAGE);
        cp_async_commit();
    }
    wgmma_settle(acc[0]);
    for (uint32_t p = 0; p < n_pieces; p++) {
        const uint8_t *now = stage + p % S::ST * S::STAGE, *x = now + S::X + group * 8 * GEMM_STRIP;
        cp_async_wait<(int)S::ST - 3>();
        fence_async_shared();
        __syncthreads(); /* piece p has come for all, and the stage of piece p - 2 is free */
        wgmma_begin();
#pragma unroll
        for (uint32_t s = 0; s < GEMM_KS / 16; s++)
            wgmma_bf16(acc[0], wgmma_cores_at(x + s * 256, 128, GEMM_STRIP), wgmma_cores_at(now + s * 256, 128, GEMM_STRIP));
        wgmma_commit();
        if (at.piece < n_pieces) gemm_load<S>(a, leaves, at, block0, tok0, stage + at.piece % S::ST * S::STAGE);
        cp_async_commit();
        wgmma_wait<1>();
    }
    wgmma_wait<0>();
    wgmma_settle(acc[0]);
    gemm_put(a, leaves[0], block0, tok0 + warp * 16, acc);
}
#endif

template <uint32_t G> static __global__ void CU_BOUNDS(128 * G, 1) gemm_wide(gemm_args a, gemm_runs runs, uint32_t n_pieces)
{
#if PTX_WGMMA
    typedef gemm_wide_tile<G> S;
    DYN_SHARED(uint8_t, stage);
    const op_run *leaves = runs.run + blockIdx.z * runs.n_leaves;
    const uint64_t block0 = (uint64_t)blockIdx.y * S::ROWS;
    if (block0 < run_blocks(leaves[0])) wide_block<S>(a, leaves, n_pieces, block0, blockIdx.x * S::TOKENS * TILE_ROWS, stage);
#endif
}

template <uint32_t G> static int load(void)
{
    int e = cudaFuncSetAttribute(gemm_wide<G>, cudaFuncAttributeMaxDynamicSharedMemorySize, gemm_wide_tile<G>::SHARED);
    return e == cudaSuccess ? cu_load(gemm_wide<G>) : e;
}
int gemm_wide_load(void)
{
    int device, major = 0;
    int e = cudaGetDevice(&device);
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (e == cudaSuccess && major != 9) e = cudaErrorNoKernelImageForDevice;
    if (e == cudaSuccess) e = load<2>();
    return e == cudaSuccess ? load<3>() : e;
}

typedef struct {
    dim3 grid;
    uint64_t cost; /* bytes that a multiprocessor is given for a stage, which is what bounds it, times blocks one after another */
} wide_plan;
template <uint32_t G> static wide_plan plan(uint32_t n_tokens, uint32_t most, uint32_t parts, uint32_t sms)
{
    typedef gemm_wide_tile<G> S;
    wide_plan p;
    p.grid = dim3(cu_ceil(n_tokens, S::TOKENS * TILE_ROWS), cu_ceil(most, S::ROWS), parts);
    p.cost = S::STAGE * (((uint64_t)p.grid.x * p.grid.y * parts + sms - 1) / sms);
    return p;
}

int gemm_wide_launch(const gemm_args *a, const gemm_runs *runs, uint32_t most, uint32_t n_pieces, cudaStream_t stream)
{
    int device, sms = 1;
    int e = cudaGetDevice(&device);
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (e != cudaSuccess) return e;
    const wide_plan two = plan<2>(a->n_tokens, most, runs->n_parts, (uint32_t)sms), three = plan<3>(a->n_tokens, most, runs->n_parts, (uint32_t)sms);
    if (three.cost < two.cost) return LAUNCH(gemm_wide<3>, three.grid, gemm_wide_tile<3>::THREADS, gemm_wide_tile<3>::SHARED, stream, *a, *runs, n_pieces);
    return LAUNCH(gemm_wide<2>, two.grid, gemm_wide_tile<2>::THREADS, gemm_wide_tile<2>::SHARED, stream, *a, *runs, n_pieces);
}
