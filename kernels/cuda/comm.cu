/* comm.cu - see comm_ops.h. */
#include "comm_ops.h"
#include "cu.cuh"
#include "ptx.cuh"

enum { FLAG_THREADS = 32, WORD_THREADS = 256, WORD_BLOCKS = 8, NAP_NS = 100 };

/* Waits for one flag; COMM_*, and the value that it had last. */
static __device__ uint32_t wait_flag(const uint32_t *flag, uint32_t epoch, const uint32_t *abort_word, uint64_t deadline_ns, uint32_t *value)
{
    const uint32_t code = comm_code(epoch), ahead = comm_code(epoch + 1), before = comm_code(epoch - 1);
    const uint64_t start = globaltimer();
    for (;;) {
        uint32_t v = *value = ld_acquire_sys(flag);
        if (v == code || v == ahead) return COMM_OK;
        if (v != before) return COMM_DAMAGED;
        if (ld_relaxed_sys(abort_word) != 0) return COMM_ABORTED;
        if (globaltimer() - start > deadline_ns) return COMM_LATE;
        sleep_ns(NAP_NS);
    }
}

/* One block of a warp; thread i deals with rank i. What this rank's stream did before is released with the flags. When the ranks
 * have given up, the barriers that are still in the streams do nothing: flags mean nothing any more, and the first report counts. */
static __global__ void flags_kernel(comm_flags_args a)
{
    SHARED(uint32_t, kind, [FLAG_THREADS]);
    SHARED(uint32_t, value, [FLAG_THREADS]);
    const uint32_t i = threadIdx.x;
    const uint32_t epoch = *a.passed + 1; /* kernels of one stream: no other one counts meanwhile */
    const bool over = ld_relaxed_sys(a.abort) != 0;
    kind[i] = COMM_OK;
    value[i] = 0;
    if (!over && i < COMM_MAX && a.out[i]) st_release_sys(a.out[i], comm_code(epoch));
    if (!over && i < COMM_MAX && a.in[i]) {
        uint32_t v = 0;
        kind[i] = wait_flag(a.in[i], epoch, a.abort, a.deadline_ns, &v);
        value[i] = v;
    }
    __syncthreads();
    if (i != 0) return;
    *a.passed = epoch;
    uint32_t worst = 0;
    for (uint32_t j = 1; j < COMM_MAX; j++)
        if (kind[j] > kind[worst]) worst = j;
    if (kind[worst] <= COMM_ABORTED) return;
    st_relaxed_sys(&a.record->peer, worst);
    st_relaxed_sys(&a.record->epoch, epoch);
    st_relaxed_sys(&a.record->value, value[worst]);
    st_relaxed_sys(&a.record->kind, kind[worst]);
    st_relaxed_sys(a.abort, 1);
}

static __global__ void pattern_kernel(uint32_t *dst, uint32_t n, uint32_t seed)
{
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) dst[i] = comm_pattern(seed, i);
}

static __global__ void copy_kernel(uint32_t *dst, const uint32_t *src, uint32_t n)
{
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) dst[i] = src[i];
}

int comm_flags(const comm_flags_args *a, void *stream) { return LAUNCH(flags_kernel, 1, FLAG_THREADS, 0, (cudaStream_t)stream, *a); }
int comm_write_pattern(uint32_t *dst, uint32_t n, uint32_t seed, void *stream)
{
    return LAUNCH(pattern_kernel, WORD_BLOCKS, WORD_THREADS, 0, (cudaStream_t)stream, dst, n, seed);
}
int comm_copy_words(uint32_t *dst, const uint32_t *src, uint32_t n, void *stream)
{
    return LAUNCH(copy_kernel, WORD_BLOCKS, WORD_THREADS, 0, (cudaStream_t)stream, dst, src, n);
}
