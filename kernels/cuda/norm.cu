/* norm.cu - RMS and layer norms; a block is one group of one row. */
#include "cu_rows.cuh"

enum { NORM_THREADS = 256 };

static __global__ void norm_groups(op_norm_args a)
{
    SHARED(float, stage, [SUM_STAGE + 8]);
    norm_group(a, blockIdx.x / a.groups, blockIdx.x % a.groups, stage);
}

int cu_norm(const op_norm_args *a, void *stream)
{
    uint64_t blocks = (uint64_t)a->n_tokens * a->groups;
    if (blocks == 0 || a->n == 0) return cudaSuccess;
    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    return LAUNCH(norm_groups, (uint32_t)blocks, cu_threads(a->n, NORM_THREADS), 0, (cudaStream_t)stream, *a);
}

int cu_norm_load(void) { return cu_load(norm_groups); }
