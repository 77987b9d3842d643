/*
 * cuda_ops.h - the operations of ops.h on a CUDA device; plain C, no CUDA header.
 *
 * The argument structs are those of the CPU. What they point at lies in memory that kernels of the device can read: its own, a
 * peer's, pinned memory of the host. On the host lie only the struct itself, op_weight with its runs (whose data are
 * device addresses), op_kbias (what it points at is on the device), and the small arrays parts, leaf_k and leaf. A call
 * puts its kernels into the stream and returns 0 or a code for device_error; nothing waits for the device. Threads and
 * barriers of the CPU have no meaning here.
 *
 * Alignment: data and block_stride of a weight are multiples of 16, groups lie at multiples of 8; floats need no more than their own
 * 4 (rows of 16-byte multiples are copied faster). linear and experts refuse others with cudaErrorMisalignedAddress and start
 * nothing; of the experts' weights, which lie on the device, only the groups are looked at.
 */
#ifndef TESS_CUDA_OPS_H
#define TESS_CUDA_OPS_H
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * linear for large prompts of --compute auto, by tensor cores (sm_80 and later): y[t][row] = w row times x[t] over all leaves, + bias[row]
 * when bias is not NULL. Near that text, not its bits: the weights (q8: d * q, q4: d * q + m) and x are rounded to bf16, to nearest even;
 * products are exact and sums f32, in ascending leaves and in each in ascending K, 16 columns a step. So y differs from the exact sum of products by
 * at most 2^-7.9 of the sum of their magnitudes (K to 2^16). The bits of y[t][row] depend on that row of w, its leaves and x[t] alone.
 * scratch: device memory of op_cuda_gemm_scratch bytes, at a multiple of 16. x_ready: the last call with this scratch had the same x, n_tokens and
 * columns of leaves. wide: by wgmma; op_cuda_gemm_wide must have said that the device has it. Floats of type f32 are refused.
 */
typedef struct {
    const op_weight *w; const float *bias; const float *x; size_t xs; uint32_t n_tokens; float *y; size_t ys;
    void *scratch; bool x_ready, wide;
} op_gemm_args;

typedef struct op_after op_after;   /* after_ops.h */
typedef struct op_counts op_counts;
typedef struct {
    int (*quant)(const op_quant_args *a, void *stream);
    int (*linear)(const op_linear_args *a, void *stream);
    int (*embed)(const op_embed_args *a, void *stream);
    int (*norm)(const op_norm_args *a, void *stream);
    int (*head_sums)(const op_head_sums_args *a, void *stream);
    int (*norm_sums)(const op_norm_sums_args *a, void *stream);
    int (*rope)(const op_rope_args *a, void *stream);
    int (*kv_write)(const op_kv_write_args *a, void *stream);
    int (*attn)(const op_attn_args *a, void *stream);
    int (*act)(const op_act_args *a, void *stream);
    int (*reduce)(const op_reduce_args *a, void *stream);
    int (*logits)(const op_logits_args *a, void *stream);
    int (*clamp)(const op_clamp_args *a, void *stream);
    int (*route)(const op_route_args *a, void *stream);
    int (*pairs)(const op_pairs_args *a, void *stream);
    int (*gather)(const op_gather_args *a, void *stream);
    int (*experts)(const op_experts_args *a, void *stream);
    int (*mix)(const op_mix_args *a, void *stream);
    int (*gate)(const op_switch_args *a, void *stream);
    int (*gemm)(const op_gemm_args *a, void *stream);
    /* Several operations in one launch, each with the bits that it has alone.
     * rows: sum (or NULL), norm (of one group), quant (or NULL), each of the rows that the one before it writes; what one reads
     * must not be what another one writes but for that. linears: n of the same x and xq on the same rows, each to a y of its own,
     * then what `after` says (or NULL). attn_groups: attention, then its output as groups. Where the shapes do not allow
     * one launch, they take several. */
    int (*rows)(const op_reduce_args *sum, const op_norm_args *norm, const op_quant_args *quant, void *stream);
    int (*linears)(const op_linear_args *a, uint32_t n, const op_after *after, void *stream);
    int (*attn_groups)(const op_attn_args *a, const op_quant_args *quant, const op_counts *counts, void *stream);
} op_cuda_table;

const op_cuda_table *op_cuda_get(void); /* NULL: built without CUDA */
/* Loads all kernels onto the selected device. Once for each device before a kernel waits for others: loading at the first launch
 * may wait for the device, and so for that kernel. */
int op_cuda_load(void);
/* Floats of scratch in device memory that attn needs; see op_attn_scratch. */
size_t op_cuda_attn_scratch(uint32_t n_tokens, uint32_t n_heads, uint32_t v_dim, uint32_t max_pos);
/* Tokens from which on gemm is faster than linear for weights of this type; UINT32_MAX: it does not take them. q8 and q4: the same. */
uint32_t op_cuda_gemm_from(uint32_t dtype);
/* Whether the selected device has wgmma, and this program was built for it. It does not say that the results are right: try it. */
bool op_cuda_gemm_wide(void);
size_t op_cuda_gemm_scratch(const op_weight *w, uint32_t n_tokens);

#ifdef __cplusplus
}
#endif
#endif
