/*
 * cu_ops.cuh - the functions behind cuda_ops.h, one in each .cu, and how they cut work into blocks.
 *
 * An operation with nothing to do launches nothing (a grid may not be empty). Pointers of the argument structs go to the kernels as
 * they are; small arrays of the host are copied into structs that travel as kernel parameters.
 */
#ifndef TESS_CU_OPS_CUH
#define TESS_CU_OPS_CUH
#include "cu_math.cuh"
#include "cuda_ops.h"

int cu_quant(const op_quant_args *a, void *stream);
int cu_linear(const op_linear_args *a, void *stream);
int cu_gemm(const op_gemm_args *a, void *stream);
int cu_embed(const op_embed_args *a, void *stream);
int cu_norm(const op_norm_args *a, void *stream);
int cu_head_sums(const op_head_sums_args *a, void *stream);
int cu_norm_sums(const op_norm_sums_args *a, void *stream);
int cu_rope(const op_rope_args *a, void *stream);
int cu_kv_write(const op_kv_write_args *a, void *stream);
int cu_attn(const op_attn_args *a, void *stream);
int cu_act(const op_act_args *a, void *stream);
int cu_reduce(const op_reduce_args *a, void *stream);
int cu_logits(const op_logits_args *a, void *stream);
int cu_clamp(const op_clamp_args *a, void *stream);
int cu_route(const op_route_args *a, void *stream);
int cu_pairs(const op_pairs_args *a, void *stream);
int cu_gather(const op_gather_args *a, void *stream);
int cu_experts(const op_experts_args *a, void *stream);
int cu_mix(const op_mix_args *a, void *stream);
int cu_gate(const op_switch_args *a, void *stream);
int cu_rows(const op_reduce_args *sum, const op_norm_args *a, const op_quant_args *quant, void *stream);
int cu_linears(const op_linear_args *a, uint32_t n, const op_after *after, void *stream);
int cu_attn_groups(const op_attn_args *a, const op_quant_args *quant, const op_counts *counts, void *stream);

/* Loads the kernels of an operation onto the selected device. */
int cu_quant_load(void);
int cu_linear_load(void);
int cu_gemm_load(void);
int cu_embed_load(void);
int cu_norm_load(void);
int cu_head_sums_load(void);
int cu_norm_sums_load(void);
int cu_rope_load(void);
int cu_kv_write_load(void);
int cu_attn_load(void);
int cu_act_load(void);
int cu_reduce_load(void);
int cu_logits_load(void);
int cu_clamp_load(void);
int cu_route_load(void);
int cu_pairs_load(void);
int cu_gather_load(void);
int cu_experts_load(void);
int cu_mix_load(void);
int cu_gate_load(void);
int cu_rows_load(void);
template <class... K> static inline int cu_load(K *...kernel)
{
    struct cudaFuncAttributes attr;
    int e = cudaSuccess;
    ((e = e == cudaSuccess ? cudaFuncGetAttributes(&attr, reinterpret_cast<const void *>(kernel)) : e), ...);
    return e;
}

enum { WARP = 32 };
static inline uint32_t cu_ceil(uint64_t a, uint32_t b) { return (uint32_t)((a + b - 1) / b); }
/* As cuda_ops.h asks for. */
static inline bool cu_aligned(const void *p, size_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; }
static inline bool cu_aligned(const op_weight *w)
{
    for (uint32_t i = 0; i < w->n_parts * w->n_leaves; i++)
        if (!cu_aligned(w->runs[i].data, 16) || w->runs[i].block_stride % 16) return false;
    return true;
}
/* Threads of a block for n columns: whole warps, not more than `most`. */
static inline uint32_t cu_threads(uint32_t n, uint32_t most) { return n < most ? cu_ceil(n, WARP) * WARP : most; }

/* ---- elementwise work: a thread is one column of rows y, y + gridDim.y, ... ---- */
enum { CELL_THREADS = 256 };
static inline uint32_t grid_y(uint32_t n) { return n < CU_GRID_Y ? n : CU_GRID_Y; }
static inline dim3 cell_grid(uint32_t n_rows, uint32_t n) { return dim3(cu_ceil(n, CELL_THREADS), grid_y(n_rows)); }
static inline uint32_t cell_threads(uint32_t n) { return cu_threads(n, CELL_THREADS); }
DEV uint32_t cell_column() { return blockIdx.x * blockDim.x + threadIdx.x; }
/* for (each row t of the thread) */
#define CELL_ROWS(t, n_rows) for (size_t t = blockIdx.y, t##_end = (n_rows); t < t##_end; t += gridDim.y)
#endif
