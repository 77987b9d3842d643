/* cuda_table.cu - the table of cuda_ops.h. */
#include "best_ops.h"
#include "cu_ops.cuh"

static const op_cuda_table table = {
    cu_quant,  cu_linear, cu_embed, cu_norm,  cu_head_sums, cu_norm_sums, cu_rope,    cu_kv_write, cu_attn, cu_act,
    cu_reduce, cu_logits, cu_clamp, cu_route, cu_pairs,     cu_gather,    cu_experts, cu_mix,      cu_gate,
    cu_gemm,
    cu_rows,   cu_linears, cu_attn_groups,
};

const op_cuda_table *op_cuda_get(void) { return &table; }

int op_cuda_load(void)
{
    static int (*const load[])(void) = {
        cu_quant_load,    cu_linear_load, cu_embed_load,   cu_norm_load,   cu_head_sums_load, cu_norm_sums_load, cu_rope_load,
        cu_kv_write_load, cu_attn_load,   cu_act_load,     cu_reduce_load, cu_logits_load,    cu_clamp_load,     cu_route_load,
        cu_pairs_load,    cu_gather_load, cu_experts_load, cu_mix_load,    cu_gate_load,      cu_gemm_load,
        cu_pairs_load,    cu_gather_load, cu_experts_load, cu_mix_load,    cu_gate_load,      cu_rows_load,
        best_load,
    };
    int e = cudaSuccess;
    for (size_t i = 0; i < ARRAY_LEN(load) && e == cudaSuccess; i++) e = load[i]();
    return e;
}
