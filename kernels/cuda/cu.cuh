/*
 * cu.cuh - how kernels are written here, so that one source compiles with nvcc and as plain C++ for tests/cuemu.
 *
 * Besides ptx.cuh this is the only file that knows which of the two compiles it. The rules for .cu files:
 *   LAUNCH(kernel, grid, block, smem, stream, args...) launches and yields a cudaError_t; every argument is given. A kernel
 *     template with commas goes in parentheses: LAUNCH((k<1, 2>), ...). Nothing else launches (but cudaLaunchCooperativeKernel).
 *   SHARED(float, part, [32]); is static shared memory, DYN_SHARED(float, x); the dynamic part; both are aligned to 16.
 *   Blocks are whole warps. All threads reach every barrier and none returns before one; shuffles and votes order no memory,
 *   exchange in shared memory inside a warp takes __syncwarp(). Polled data and data that other blocks write meanwhile
 *   go through ptx.cuh or atomics, never through volatile.
 *   No mutable __device__ variables, no lambdas, no std:: in kernels; streams are non-blocking ones, never the default stream.
 */
#ifndef TESS_CU_CUH
#define TESS_CU_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#ifdef __CUDACC__
#define LAUNCH(kernel, grid, block, smem, stream, ...) \
    (kernel<<<(grid), (block), (smem), (stream)>>>(__VA_ARGS__), cudaGetLastError())
#define SHARED(T, name, dims) __shared__ __align__(16) T name dims
#define DYN_SHARED(T, name) \
    extern __shared__ __align__(16) unsigned char cu_dyn_shared[]; \
    T *const name = reinterpret_cast<T *>(cu_dyn_shared)
#define CU_NOINLINE __noinline__
#define CU_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks) /* registers so that `blocks` fit on a multiprocessor */
#define CU_GRID_Y 65535 /* what a grid may have in y and z; little in tests/cuemu, so that every loop over blocks is walked */
#define CU_PARAM __grid_constant__ const /* a kernel parameter that a function takes by reference: no copy of it is made */
#else
#include <cuemu.h> /* defines the same names */
#define CU_BOUNDS(threads, blocks)
#define CU_PARAM const
#endif

#endif
