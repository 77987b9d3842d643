/* absent.cc - stands in for kernels that are not there yet; a real definition replaces each of these. */
#include "cu.cuh"

#include "cuda_ops.h"

extern "C" {
__attribute__((weak)) const op_cuda_table *op_cuda_get(void) { return nullptr; }
__attribute__((weak)) size_t op_cuda_attn_scratch(uint32_t, uint32_t, uint32_t, uint32_t) { return 0; }
}
