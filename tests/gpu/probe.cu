/*
 * probe.cu - see probe.h. The copy and the loops of mma stand beside the kernels of the library as what the same device does when
 * nothing else is to be done.
 */
#include "cu_ops.cuh"
#include "ptx.cuh"

#include "probe.h"

static uint32_t attribute(cudaDeviceAttr what, uint32_t device)
{
    int v = 0;
    if (cudaDeviceGetAttribute(&v, what, (int)device) == cudaSuccess && v > 0) return (uint32_t)v;
    (void)cudaGetLastError();
    return 0;
}

int probe_get(uint32_t device, probe_props *out)
{
    out->clock_khz = attribute(cudaDevAttrClockRate, device);
    out->mem_khz = attribute(cudaDevAttrMemoryClockRate, device);
    out->bus_bits = attribute(cudaDevAttrGlobalMemoryBusWidth, device);
    out->l2_bytes = attribute(cudaDevAttrL2CacheSize, device);
    return cudaSuccess;
}

/* ---- memory ---- */

static __global__ void fill_words(uint32_t *p, size_t n, uint32_t seed)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        uint32_t v = ((uint32_t)i ^ seed) * 2654435761u;
        v = (v ^ v >> 15) * 2246822519u;
        p[i] = (v ^ v >> 13) & 0x3fff3fffu;
    }
}
int probe_fill(void *p, size_t n, uint32_t seed, void *stream)
{
    const size_t words = n / 4, blocks = (words + PROBE_THREADS - 1) / PROBE_THREADS;
    if (words == 0) return cudaSuccess;
    return LAUNCH(fill_words, (uint32_t)(blocks < 4096 ? blocks : 4096), PROBE_THREADS, 0, (cudaStream_t)stream, static_cast<uint32_t *>(p), words, seed);
}

/* Four loads of 16 bytes are under way in each thread. */
static __global__ void copy_words(uint4 *dst, const uint4 *src, size_t n)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        const uint4 a = src[i], b = src[i + step], c = src[i + 2 * step], d = src[i + 3 * step];
        dst[i] = a, dst[i + step] = b, dst[i + 2 * step] = c, dst[i + 3 * step] = d;
    }
    for (; i < n; i += step) dst[i] = src[i];
}
int probe_copy(void *dst, const void *src, size_t n, uint32_t blocks, void *stream)
{
    return LAUNCH(copy_words, blocks, PROBE_THREADS, 0, (cudaStream_t)stream, static_cast<uint4 *>(dst), static_cast<const uint4 *>(src), n / 16);
}

static __device__ __forceinline__ uint32_t any_of(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }
static __global__ void read_words(uint32_t *sink, const uint4 *src, size_t n)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t sum = 0;
    for (; i + 3 * step < n; i += 4 * step) {
        const uint4 a = src[i], b = src[i + step], c = src[i + 2 * step], d = src[i + 3 * step];
        sum += any_of(a) + any_of(b) + any_of(c) + any_of(d);
    }
    for (; i < n; i += step) sum += any_of(src[i]);
    if (sum == 0x9e3779b9u) atomicAdd(sink, 1u); /* so that the loads are needed */
}
int probe_read(uint32_t *sink, const void *src, size_t n, uint32_t blocks, void *stream)
{
    return LAUNCH(read_words, blocks, PROBE_THREADS, 0, (cudaStream_t)stream, sink, static_cast<const uint4 *>(src), n / 16);
}

/* ---- tensor cores: chains that do not wait for each other ---- */

static __global__ void mma_bf16_chains(float *sink, uint32_t turns)
{
    const uint32_t one = 0x3c003c00u + threadIdx.x; /* pairs of small numbers */
    const uint32_t a[4] = {one, one + 1, one + 2, one + 3}, b[2] = {one + 4, one + 5};
    float d[PROBE_MMAS][4] = {};
    for (uint32_t i = 0; i < turns; i++)
#pragma unroll
        for (int j = 0; j < PROBE_MMAS; j++) mma_bf16(d[j], a, b);
    float sum = 0;
    for (int j = 0; j < PROBE_MMAS; j++) sum += d[j][0] + d[j][1] + d[j][2] + d[j][3];
    sink[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
int probe_mma_bf16(float *sink, uint32_t turns, uint32_t blocks, void *stream)
{
    return LAUNCH(mma_bf16_chains, blocks, PROBE_THREADS, 0, (cudaStream_t)stream, sink, turns);
}

static __global__ void mma_s8_chains(int32_t *sink, uint32_t turns)
{
    const uint32_t one = 0x01020301u + threadIdx.x;
    const uint32_t a[4] = {one, one + 1, one + 2, one + 3}, b[2] = {one ^ 0x01010101u, one + 5};
    int32_t d[PROBE_MMAS][4] = {};
    for (uint32_t i = 0; i < turns; i++)
#pragma unroll
        for (int j = 0; j < PROBE_MMAS; j++) mma_s8(d[j], a, b);
    uint32_t sum = 0;
    for (int j = 0; j < PROBE_MMAS; j++) sum += (uint32_t)d[j][0] + (uint32_t)d[j][1] + (uint32_t)d[j][2] + (uint32_t)d[j][3];
    sink[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = (int32_t)sum;
}
int probe_mma_s8(int32_t *sink, uint32_t turns, uint32_t blocks, void *stream)
{
    return LAUNCH(mma_s8_chains, blocks, PROBE_THREADS, 0, (cudaStream_t)stream, sink, turns);
}

/* ---- launches and time ---- */

static __global__ void nothing(uint32_t) {}
int probe_nothing(void *stream) { return LAUNCH(nothing, 1, 32, 0, (cudaStream_t)stream, 0u); }

int probe_load(void) { return cu_load(fill_words, copy_words, read_words, mma_bf16_chains, mma_s8_chains, nothing); }

int probe_mark_open(void **mark)
{
    cudaEvent_t v = nullptr;
    cudaError_t e = cudaEventCreate(&v);
    *mark = e == cudaSuccess ? v : nullptr;
    return e;
}
void probe_mark_close(void *mark)
{
    if (mark) (void)cudaEventDestroy((cudaEvent_t)mark);
}
int probe_mark(void *mark, void *stream) { return cudaEventRecord((cudaEvent_t)mark, (cudaStream_t)stream); }
int probe_ms(void *from, void *to, float *ms)
{
    cudaError_t e = cudaEventSynchronize((cudaEvent_t)to);
    return e == cudaSuccess ? cudaEventElapsedTime(ms, (cudaEvent_t)from, (cudaEvent_t)to) : e;
}
