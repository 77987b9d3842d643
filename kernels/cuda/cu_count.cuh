/* cu_count.cuh - the last of several blocks goes on: how blocks count what they have written of a part (after_ops.h). */
#ifndef TESS_CU_COUNT_CUH
#define TESS_CU_COUNT_CUH
#include "cu_ops.cuh"
#include "after_ops.h"

/* Adds the n rows that this block has written to a count that ends at `all`. True in the block that ends it, for all of its threads: they
 * see what all others wrote before they counted, and the count is 0 again. flag: shared; by all threads of a block. */
DEV bool count_ends(uint32_t *count, uint32_t n, uint32_t all, uint32_t *flag)
{
    __syncthreads(); /* what the threads wrote; and flag was read */
    if (threadIdx.x == 0) {
        __threadfence();
        *flag = atomicAdd(count, n) + n == all;
        if (*flag) atomicExch(count, 0u);
        __threadfence();
    }
    __syncthreads();
    return *flag != 0;
}
#endif
