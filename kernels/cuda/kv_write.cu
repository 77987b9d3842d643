/* kv_write.cu - K and V of new rows into their pages; a block is one warp: one kv head of one row. */
#include "cu_heads.cuh"

template <uint32_t DT> static __global__ void write_rows(op_kv_write_args a, op_kbias kb)
{
    store_k<DT>(a, kb, blockIdx.x, blockIdx.y, threadIdx.x);
    store_v<DT>(a, blockIdx.x, blockIdx.y, threadIdx.x);
}

int cu_kv_write(const op_kv_write_args *a, void *stream)
{
    dim3 grid(a->b.n_tokens, a->kv.n_kv_heads);
    if (a->b.n_tokens == 0 || a->kv.n_kv_heads == 0) return cudaSuccess;
    op_kbias none = {}, kb = a->kbias ? *a->kbias : none;
    switch (a->kv.dtype) {
    case DT_F32: return LAUNCH(write_rows<DT_F32>, grid, WARP, 0, (cudaStream_t)stream, *a, none);
    case DT_F16: return LAUNCH(write_rows<DT_F16>, grid, WARP, 0, (cudaStream_t)stream, *a, none);
    case DT_I8: return LAUNCH(write_rows<DT_I8>, grid, WARP, 0, (cudaStream_t)stream, *a, kb);
    default: return cudaErrorInvalidValue;
    }
}

int cu_kv_write_load(void) { return cu_load(write_rows<DT_F32>, write_rows<DT_F16>, write_rows<DT_I8>); }
