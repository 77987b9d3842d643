/* t_cuemu.cc - the emulator's own tests: kernels that are right run on every seed, with the right values. */
#include "ptx.cuh"

#include "cuemu_test.h"

static cudaStream_t stream;

static void begin(unsigned seed)
{
    cuemu_reset(seed);
    CU(cudaSetDevice(0));
    CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
}
static void end(void)
{
    CU(cudaStreamSynchronize(stream));
    CU(cudaStreamDestroy(stream));
    CHECK(cuemu_report_count() == 0);
}
/* A test body for each seed. */
#define SEEDED(name) \
    static void name##_once(void); \
    static void name(void **) \
    { \
        for (unsigned seed = 1; seed <= test_seeds(20); seed++) { \
            begin(seed); \
            name##_once(); \
            end(); \
        } \
    } \
    static void name##_once(void)

template <class T> static T *device_new(size_t n)
{
    void *p;
    CU(cudaMalloc(&p, n * sizeof(T)));
    return static_cast<T *>(p);
}
template <class T> static void to_host(T *dst, const T *src, size_t n)
{
    CU(cudaMemcpyAsync(dst, src, n * sizeof(T), cudaMemcpyDefault, stream));
    CU(cudaStreamSynchronize(stream));
}

/* ---- elementwise, many blocks; parameters of many sizes ---- */
struct axpy_args { char pad; double a; int n; };
__global__ void k_axpy(float *y, const float *x, axpy_args p, char c)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < p.n && c == 'c') y[i] += (float)p.a * x[i];
}
SEEDED(elementwise)
{
    enum { N = 1000 };
    float h[N], *x = device_new<float>(N), *y = device_new<float>(N);
    for (int i = 0; i < N; i++) h[i] = (float)i;
    CU(cudaMemcpyAsync(x, h, sizeof h, cudaMemcpyDefault, stream));
    CU(cudaMemcpyAsync(y, x, sizeof h, cudaMemcpyDefault, stream));
    CU(LAUNCH(k_axpy, dim3((N + 127) / 128), dim3(128), 0, stream, y, x, axpy_args{'x', 2.0, N}, 'c'));
    to_host(h, y, N);
    for (int i = 0; i < N; i++) CHECK(h[i] == 3.0f * (float)i);
}

/* ---- shared memory, barriers, shuffles, votes ---- */
template <int THREADS, bool DYNAMIC> __global__ void k_reduce(uint32_t *out, const uint32_t *x)
{
    SHARED(uint32_t, part, [THREADS / 32]);
    DYN_SHARED(uint32_t, all);
    const int t = (int)threadIdx.x;
    uint32_t v = x[blockIdx.x * THREADS + threadIdx.x];
    if (DYNAMIC) {
        all[t] = v;
        __syncthreads();
        v = all[THREADS - 1 - t];
    }
    for (int m = 16; m > 0; m /= 2) v += __shfl_xor_sync(0xffffffffu, v, m);
    if (t % 32 == 0) part[t / 32] = v;
    if (__syncthreads_count(t % 3 == 0) != (THREADS + 2) / 3) v = 0;
    if (t < 32) {
        v = t < THREADS / 32 ? part[t] : 0;
        for (int m = 16; m > 0; m /= 2) v += __shfl_down_sync(0xffffffffu, v, m);
        if (t == 0) out[blockIdx.x] = v;
    }
}
SEEDED(barriers_and_shuffles)
{
    enum { N = 256, BLOCKS = 9 };
    uint32_t h[N * BLOCKS], got[BLOCKS], *x = device_new<uint32_t>(N * BLOCKS), *y = device_new<uint32_t>(BLOCKS);
    for (uint32_t i = 0; i < N * BLOCKS; i++) h[i] = i * 2654435761u;
    CU(cudaMemcpyAsync(x, h, sizeof h, cudaMemcpyDefault, stream));
    for (int dynamic = 0; dynamic < 2; dynamic++) {
        if (dynamic) CU(LAUNCH((k_reduce<N, true>), dim3(BLOCKS), dim3(N), N * 4, stream, y, x));
        else CU(LAUNCH((k_reduce<N, false>), dim3(BLOCKS), dim3(N), 0, stream, y, x));
        to_host(got, y, BLOCKS);
        for (int b = 0; b < BLOCKS; b++) {
            uint32_t sum = 0;
            for (int i = 0; i < N; i++) sum += h[b * N + i];
            CHECK(got[b] == sum);
        }
    }
}

__global__ void k_warp(int *o)
{
    const int lane = (int)threadIdx.x;
    const unsigned low = __ballot_sync(0xffffffffu, lane < 5);
    int r[8];
    r[0] = __shfl_sync(0xffffffffu, lane, 7, 16);
    r[1] = __shfl_up_sync(0xffffffffu, lane, 3, 8);
    r[2] = __shfl_down_sync(0xffffffffu, lane, 3, 8);
    r[3] = __any_sync(0xffffffffu, lane == 31) && !__all_sync(0xffffffffu, lane == 31);
    r[4] = lane < 16 ? __shfl_xor_sync(0x0000ffffu, lane, 1) : __shfl_xor_sync(0xffff0000u, lane, 2);
    r[5] = (int)__reduce_add_sync(0xffffffffu, (unsigned)lane);
    r[6] = (int)low;
    r[7] = __popc(low) + __ffs(8) + __clz(1) + (int)__byte_perm(0x33221100u, 0x77665544u, 0x0007u);
    __syncwarp();
    for (int i = 0; i < 8; i++) o[lane * 8 + i] = r[i];
}
SEEDED(warp_operations)
{
    int h[256], *o = device_new<int>(256);
    CU(LAUNCH(k_warp, dim3(1), dim3(32), 0, stream, o));
    to_host(h, o, 256);
    for (int l = 0; l < 32; l++) {
        const int *r = h + l * 8;
        CHECK(r[0] == (l & 16) + 7 && r[1] == (l % 8 < 3 ? l : l - 3) && r[2] == (l % 8 > 4 ? l : l + 3) && r[3] == 1);
        CHECK(r[4] == (l < 16 ? l ^ 1 : l ^ 2) && r[5] == 496 && r[6] == 31 && r[7] == 5 + 4 + 31 + 0x77);
    }
}

/* ---- atomics, fences, last block ---- */
__global__ void k_last_block(uint32_t *part, uint32_t *count, uint32_t *out)
{
    SHARED(uint32_t, last, [1]);
    if (threadIdx.x == 0) {
        part[blockIdx.x] = blockIdx.x + 1;
        __threadfence();
        last[0] = atomicAdd(count, 1u) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (last[0] && threadIdx.x == 0) {
        uint32_t s = 0;
        for (uint32_t i = 0; i < gridDim.x; i++) s += part[i];
        *out = s;
    }
}
SEEDED(last_block_sums)
{
    enum { BLOCKS = 40 };
    uint32_t got, *p = device_new<uint32_t>(BLOCKS + 2);
    CU(cudaMemsetAsync(p, 0, (BLOCKS + 2) * 4, stream));
    CU(LAUNCH(k_last_block, dim3(BLOCKS), dim3(64), 0, stream, p, p + BLOCKS, p + BLOCKS + 1));
    to_host(&got, p + BLOCKS + 1, 1);
    CHECK(got == BLOCKS * (BLOCKS + 1) / 2);
}

/* ---- flags between devices, through peer memory and through pinned memory ---- */
struct ring_args { uint32_t *flag[4]; float *data[4]; int rank, n; uint64_t deadline; uint32_t *expired; };
__global__ void k_exchange(ring_args a)
{
    const int t = (int)threadIdx.x;
    a.data[a.rank][t] = (float)(a.rank * 100 + t);
    __syncthreads();
    if (t < a.n) {
        st_release_sys(a.flag[t] + a.rank, 1);
        const uint64_t start = globaltimer();
        while (ld_acquire_sys(a.flag[a.rank] + t) == 0) {
            if (globaltimer() - start > a.deadline) {
                atomicExch(a.expired, 1u);
                break;
            }
            sleep_ns(100);
        }
    }
    __syncthreads();
    float sum = 0;
    for (int r = 0; r < a.n; r++) sum += a.data[r][t];
    a.data[a.rank][32 + t] = sum;
}
static void exchange(int n, bool pinned, int leave_out, uint32_t *expired)
{
    ring_args a = {};
    cudaStream_t s[4];
    void *p;
    a.n = n;
    a.deadline = 2000000000;
    CU(cudaMallocHost(&p, 4));
    a.expired = static_cast<uint32_t *>(p);
    *a.expired = 0;
    for (int r = 0; r < n; r++) {
        CU(cudaSetDevice(r));
        for (int o = 0; o < n && !pinned; o++)
            if (o != r) CU(cudaDeviceEnablePeerAccess(o, 0));
        CU(cudaStreamCreateWithFlags(&s[r], cudaStreamNonBlocking));
        CU(pinned ? cudaMallocHost(&p, 16) : cudaMalloc(&p, 16));
        a.flag[r] = static_cast<uint32_t *>(p);
        CU(pinned ? cudaMallocHost(&p, 64 * 4) : cudaMalloc(&p, 64 * 4));
        a.data[r] = static_cast<float *>(p);
        CU(cudaMemset(a.flag[r], 0, 16));
        CU(cudaMemset(a.data[r], 0, 256));
    }
    for (int r = 0; r < n; r++) {
        a.rank = r;
        CU(cudaSetDevice(r));
        if (r != leave_out) CU(LAUNCH(k_exchange, dim3(1), dim3(32), 0, s[r], a));
    }
    for (int r = 0; r < n; r++) {
        float h[64];
        CU(cudaStreamSynchronize(s[r]));
        CU(cudaMemcpy(h, a.data[r], sizeof h, cudaMemcpyDefault));
        for (int i = 0; i < 32 && leave_out < 0; i++) CHECK(h[32 + i] == (float)(n * i + 50 * n * (n - 1)));
        CU(cudaStreamDestroy(s[r]));
    }
    *expired = *a.expired;
    CU(cudaSetDevice(0));
}
SEEDED(flags_between_devices)
{
    uint32_t expired;
    exchange(4, false, -1, &expired);
    CHECK(!expired);
    exchange(3, true, -1, &expired);
    CHECK(!expired);
    exchange(3, true, 1, &expired); /* one rank never comes: the deadline of 2 s passes in virtual time */
    CHECK(expired);
}

/* ---- cp.async, ldmatrix, mma ---- */
__global__ void k_mma(const uint16_t *a, const uint16_t *b, float *d, const int8_t *qa, const int8_t *qb, int *qd)
{
    SHARED(uint16_t, sa, [16][24]); /* rows of 48 bytes */
    SHARED(uint16_t, sb, [16][8]);
    const int l = (int)threadIdx.x, g = l / 4, c = l % 4;
    cp_async_16(&sa[l / 2][l % 2 * 8], a + l * 8);
    cp_async_commit();
    if (l < 16) cp_async_16(&sb[l][0], b + l * 8);
    cp_async_commit();
    cp_async_wait<1>();
    cp_async_wait<0>();
    __syncthreads();
    uint32_t ra[4], rb[2], qra[4], qrb[2];
    float s[4] = {1, 2, 3, 4};
    int32_t q[4] = {};
    ldmatrix_x4(ra, &sa[l % 8 + l / 8 % 2 * 8][l / 16 * 8]);
    ldmatrix_x2_trans(rb, &sb[l % 16][0]);
    mma_f16(s, ra, rb);
    for (int i = 0; i < 4; i++) d[(g + i / 2 * 8) * 8 + 2 * c + i % 2] = s[i];
    for (int i = 0; i < 4; i++) memcpy(&qra[i], qa + (g + i % 2 * 8) * 32 + i / 2 * 16 + 4 * c, 4);
    for (int i = 0; i < 2; i++) memcpy(&qrb[i], qb + g * 32 + i * 16 + 4 * c, 4);
    mma_s8(q, qra, qrb);
    for (int i = 0; i < 4; i++) qd[(g + i / 2 * 8) * 8 + 2 * c + i % 2] = q[i] + dp4a((int)qra[0], (int)qrb[0], 0) * 0;
}
static uint16_t half_of(int v) /* small integers are exact */
{
    uint32_t u = __float_as_uint((float)v);
    return v == 0 ? 0 : (uint16_t)((u >> 16 & 0x8000) | (((u >> 23 & 255) - 112) << 10) | (u >> 13 & 1023));
}
SEEDED(tensor_cores)
{
    uint16_t ha[256], hb[128], *a = device_new<uint16_t>(256), *b = device_new<uint16_t>(128);
    int8_t qa[512], qb[256], *da = device_new<int8_t>(512), *db = device_new<int8_t>(256);
    float hd[128], *d = device_new<float>(128);
    int hq[128], *dq = device_new<int>(128);
    for (int i = 0; i < 512; i++) qa[i] = (int8_t)(i * 37 % 256 - 128);
    for (int i = 0; i < 256; i++) qb[i] = (int8_t)(i * 91 % 256 - 128), ha[i] = half_of(i % 23 - 11);
    for (int i = 0; i < 128; i++) hb[i] = half_of(i % 17 - 8);
    CU(cudaMemcpyAsync(a, ha, sizeof ha, cudaMemcpyDefault, stream));
    CU(cudaMemcpyAsync(b, hb, sizeof hb, cudaMemcpyDefault, stream));
    CU(cudaMemcpyAsync(da, qa, sizeof qa, cudaMemcpyDefault, stream));
    CU(cudaMemcpyAsync(db, qb, sizeof qb, cudaMemcpyDefault, stream));
    CU(LAUNCH(k_mma, dim3(1), dim3(32), 0, stream, a, b, d, da, db, dq));
    to_host(hd, d, 128);
    to_host(hq, dq, 128);
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 8; c++) {
            int s = 1 + c % 2 + r / 8 * 2, q = 0;
            for (int k = 0; k < 16; k++) s += ((r * 16 + k) % 23 - 11) * ((k * 8 + c) % 17 - 8);
            for (int k = 0; k < 32; k++) q += qa[r * 32 + k] * qb[c * 32 + k];
            CHECK(hd[r * 8 + c] == (float)s && hq[r * 8 + c] == q);
        }
}

/* 64 x 256 x 32 numbers twice: cores of 128 bytes lie in K first, 256 bytes for 8 rows of A and 8 columns of B. */
__global__ void k_wgmma(const uint8_t *a, const uint8_t *b, float *d)
{
    SHARED(uint8_t, sa, [64 * 16 * 2]);
    SHARED(uint8_t, sb, [256 * 16 * 2]);
    float sum[32][4];
    for (int n = 0; n < 32; n++)
        for (int i = 0; i < 4; i++) sum[n][i] = (float)i;
    for (uint32_t i = threadIdx.x; i < sizeof sb / 16; i += blockDim.x) {
        if (i < sizeof sa / 16) cp_async_16(sa + i * 16, a + i * 16);
        cp_async_16(sb + i * 16, b + i * 16);
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_async_shared();
    __syncthreads();
    for (int turn = 0; turn < 2; turn++) {
        wgmma_begin();
        wgmma_bf16(sum, wgmma_cores_at(sa, 128, 256), wgmma_cores_at(sb, 128, 256));
        wgmma_commit();
        wgmma_wait<1>();
    }
    wgmma_wait<0>();
    const uint32_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    for (uint32_t n = 0; n < 32; n++)
        for (uint32_t i = 0; i < 4; i++) d[(row + i / 2 * 8) * 256 + n * 8 + threadIdx.x % 4 * 2 + i % 2] = sum[n][i];
}
static uint16_t bf16_of(int v) { return (uint16_t)(__float_as_uint((float)v) >> 16); }
SEEDED(warpgroups)
{
    static uint16_t ha[64 * 16], hb[256 * 16];
    static float hd[64 * 256];
    uint8_t *a = device_new<uint8_t>(sizeof ha), *b = device_new<uint8_t>(sizeof hb);
    float *d = device_new<float>(64 * 256);
    for (int m = 0; m < 64; m++) /* A[m][k] = (m * 16 + k) % 23 - 11, B[k][n] = (k * 256 + n) % 17 - 8 */
        for (int k = 0; k < 16; k++) ha[m / 8 * 128 + k / 8 * 64 + m % 8 * 8 + k % 8] = bf16_of((m * 16 + k) % 23 - 11);
    for (int n = 0; n < 256; n++)
        for (int k = 0; k < 16; k++) hb[n / 8 * 128 + k / 8 * 64 + k % 8 * 8 + n % 8] = bf16_of((k * 256 + n) % 17 - 8);
    CU(cudaMemcpyAsync(a, ha, sizeof ha, cudaMemcpyDefault, stream));
    CU(cudaMemcpyAsync(b, hb, sizeof hb, cudaMemcpyDefault, stream));
    CU(LAUNCH(k_wgmma, dim3(1), dim3(128), 0, stream, a, b, d));
    to_host(hd, d, 64 * 256);
    for (int m = 0; m < 64; m++)
        for (int n = 0; n < 256; n++) {
            int s = m % 16 / 8 * 2 + n % 2;
            for (int k = 0; k < 16; k++) s += 2 * ((m * 16 + k) % 23 - 11) * ((k * 256 + n) % 17 - 8);
            CHECK(hd[m * 256 + n] == (float)s);
        }
}

/* ---- streams, events, graphs, pinned memory ---- */
__global__ void k_add(int *x, int v) { x[threadIdx.x] += v; }
__global__ void k_double(int *x) { x[threadIdx.x] *= 2; }
SEEDED(events_and_graphs)
{
    int h[32], *x = device_new<int>(32);
    cudaStream_t other;
    cudaEvent_t fork, join;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CU(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CU(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CU(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    CU(cudaMemsetAsync(x, 0, 128, stream));
    CU(LAUNCH(k_add, dim3(1), dim3(32), 0, stream, x, 3));
    CU(cudaEventRecord(fork, stream));
    CU(cudaStreamWaitEvent(other, fork, 0));
    CU(LAUNCH(k_double, dim3(1), dim3(32), 0, other, x));
    CU(cudaEventRecord(join, other));
    CU(cudaStreamWaitEvent(stream, join, 0));
    CU(LAUNCH(k_add, dim3(1), dim3(32), 0, stream, x, 1)); /* 7 */
    CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CU(LAUNCH(k_double, dim3(1), dim3(32), 0, stream, x));
    CU(cudaEventRecord(fork, stream));
    CU(cudaStreamWaitEvent(other, fork, 0));
    CU(LAUNCH(k_add, dim3(1), dim3(32), 0, other, x, 5));
    CU(cudaEventRecord(join, other));
    CU(cudaStreamWaitEvent(stream, join, 0));
    CU(LAUNCH(k_double, dim3(1), dim3(32), 0, stream, x));
    CU(cudaStreamEndCapture(stream, &graph));
    CU(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) CU(cudaGraphLaunch(exec, stream)); /* x -> 4x + 10 */
    to_host(h, x, 32);
    for (int i = 0; i < 32; i++) CHECK(h[i] == 64 * 7 + 16 * 10 + 40 + 10);
    CU(cudaGraphExecDestroy(exec));
    CU(cudaGraphDestroy(graph));
    CU(cudaEventDestroy(fork));
    CU(cudaEventDestroy(join));
    CU(cudaStreamDestroy(other));
}

/* A copy from pinned memory reads when it runs, one from pageable memory at the call. */
SEEDED(sources_of_copies)
{
    int *pinned, page = 1, h[2], *x = device_new<int>(2);
    CU(cudaMallocHost((void **)&pinned, 4));
    *pinned = 1;
    CU(cudaMemcpyAsync(x, pinned, 4, cudaMemcpyDefault, stream));
    CU(cudaMemcpyAsync(x + 1, &page, 4, cudaMemcpyDefault, stream));
    *pinned = page = 2;
    to_host(h, x, 2);
    CHECK(h[0] == 2 && h[1] == 1);
    CU(cudaFreeHost(pinned));
}

__global__ void k_grid_sync(uint32_t *count, uint32_t *x)
{
    if (threadIdx.x == 0) {
        x[blockIdx.x] = 1;
        __threadfence();
        atomicAdd(count, 1u);
        while (ld_acquire_sys(count) < gridDim.x) {}
        x[4 + blockIdx.x] = x[0] + x[1] + x[2] + x[3];
    }
    __syncthreads();
}
SEEDED(cooperative_launch)
{
    uint32_t *x = device_new<uint32_t>(9), *count = x + 8, h[4];
    void *args[] = {&count, &x};
    CU(cudaMemsetAsync(x, 0, 36, stream));
    CU(cudaLaunchCooperativeKernel(k_grid_sync, dim3(4), dim3(64), args, 0, stream));
    to_host(h, x + 4, 4);
    for (int i = 0; i < 4; i++) CHECK(h[i] == 4);
    CHECK(cudaLaunchCooperativeKernel(k_grid_sync, dim3(5), dim3(64), args, 0, stream) == cudaErrorCooperativeLaunchTooLarge);
    CHECK(cudaGetLastError() == cudaErrorCooperativeLaunchTooLarge && cudaGetLastError() == cudaSuccess);
}

/* One seed gives one order, another seed another. */
static uint64_t switches_of(unsigned seed)
{
    begin(seed);
    uint32_t expired;
    exchange(4, false, -1, &expired);
    const uint64_t n = cuemu_switches();
    end();
    return n;
}
static void seeds_repeat(void **)
{
    unsigned differ = 0;
    for (unsigned s = 1; s < 6; s++) {
        const uint64_t n = switches_of(s);
        CHECK(n == switches_of(s));
        differ += n != switches_of(s + 100);
    }
    CHECK(differ > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elementwise),       cmocka_unit_test(barriers_and_shuffles), cmocka_unit_test(warp_operations),
        cmocka_unit_test(last_block_sums),   cmocka_unit_test(flags_between_devices), cmocka_unit_test(tensor_cores),
        cmocka_unit_test(warpgroups),
        cmocka_unit_test(events_and_graphs), cmocka_unit_test(sources_of_copies),     cmocka_unit_test(cooperative_launch),
        cmocka_unit_test(seeds_repeat),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
