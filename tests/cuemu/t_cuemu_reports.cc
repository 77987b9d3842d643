/*
 * t_cuemu_reports.cc - every kind of report is provoked, on several seeds, and must name kernel, device, block and thread,
 * and what is wrong. Faults that only the checked build sees are expected there alone.
 */
#include "ptx.cuh"

#include "cuemu_expect.h"

/* ---- addresses ---- */
__global__ void k_write(float *p, int i) { if (threadIdx.x == 7) p[i] = 1; }
__global__ void k_read(float *p, const float *q, int i) { if (threadIdx.x == 7) p[0] = q[i]; }

SEEDED(past_the_end)
{
    CU(LAUNCH(k_write, dim3(2), dim3(32), 0, stream, device_new<float>(64), 64));
    expect(cudaErrorIllegalAddress, "illegal write", "allocation of 256 bytes at offset 256", "[kernel k_write, device 0, block (");
}
SEEDED(past_the_end_by_bytes)
{
    float *p = device_new<float>(3);
    CU(LAUNCH(k_write, dim3(1), dim3(32), 0, stream, p, 3));
    expect_checked(cudaErrorIllegalAddress, "illegal write", "allocation of 12 bytes at offset 12", "thread (7,0,0)]");
}
SEEDED(before_the_start)
{
    float *p = device_new<float>(3);
    CU(LAUNCH(k_write, dim3(1), dim3(32), 0, stream, p, -1));
    expect_checked(cudaErrorIllegalAddress, "illegal write", "4 before an allocation of 12 bytes", "thread (7,0,0)]");
}
SEEDED(freed)
{
    float *p = device_new<float>(100);
    CU(cudaFree(p));
    CU(LAUNCH(k_write, dim3(1), dim3(32), 0, stream, p, 3));
    expect(cudaErrorIllegalAddress, "illegal write", "freed allocation of 400 bytes at offset 12", "thread (7,0,0)]");
}
SEEDED(null_pointer)
{
    CU(LAUNCH(k_read, dim3(1), dim3(32), 0, stream, device_new<float>(1), nullptr, 2));
    expect(cudaErrorIllegalAddress, "illegal read of 0x8", "null pointer", "kernel k_read, device 0, block (0,0,0), thread (7,0,0)]");
}
SEEDED(no_peer_access)
{
    CU(cudaSetDevice(1));
    float *p = device_new<float>(64);
    CU(cudaMemset(p, 0, 256));
    CU(cudaSetDevice(0));
    CU(LAUNCH(k_read, dim3(1), dim3(32), 0, stream, device_new<float>(1), p, 3));
    expect(cudaErrorIllegalAddress, "illegal read", "device 1, live allocation of 256 bytes at offset 12, no peer access", "kernel k_read, device 0");
    begin((unsigned)cuemu_seed());
    CU(cudaDeviceEnablePeerAccess(1, 0));
    CU(cudaSetDevice(1));
    p = device_new<float>(64);
    CU(cudaMemset(p, 0, 256));
    CU(cudaSetDevice(0));
    CU(LAUNCH(k_read, dim3(1), dim3(32), 0, stream, device_new<float>(1), p, 3));
    expect_clean();
}
SEEDED(memory_of_the_host)
{
    static float somewhere[64];
    CU(LAUNCH(k_write, dim3(1), dim3(32), 0, stream, somewhere, 3));
    expect_checked(cudaErrorIllegalAddress, "illegal write", "memory of the host", "kernel k_write");
}
__global__ void k_misaligned(uint4 *p) { p[threadIdx.x] = make_uint4(1, 2, 3, 4); }
SEEDED(misaligned)
{
    CU(LAUNCH(k_misaligned, dim3(1), dim3(32), 0, stream, reinterpret_cast<uint4 *>(device_new<float>(256) + 1)));
    expect(cudaErrorMisalignedAddress, "misaligned", "kernel k_misaligned, device 0, block (0,0,0)", nullptr);
}
__global__ void k_shared_end(float *p)
{
    DYN_SHARED(float, s);
    s[threadIdx.x] = 1;
    p[threadIdx.x] = s[threadIdx.x];
}
SEEDED(dynamic_shared_memory_is_short)
{
    CU(LAUNCH(k_shared_end, dim3(1), dim3(64), 63 * 4 - 12, stream, device_new<float>(64)));
    expect(cudaErrorIllegalAddress, "illegal write", "shared memory", "kernel k_shared_end");
}
__global__ void k_static_end(float *p)
{
    SHARED(float, s, [32]);
    SHARED(float, after, [32]);
    s[threadIdx.x] = after[threadIdx.x] = 1;
    __syncthreads();
    const int i = (int)threadIdx.x + (p[0] == 0); /* the compiler must not know */
    p[threadIdx.x] = s[i];
}
SEEDED(static_shared_memory_is_short)
{
    float *p = device_new<float>(32);
    CU(cudaMemset(p, 0, 128));
    CU(LAUNCH(k_static_end, dim3(1), dim3(32), 0, stream, p));
    if (!cuemu_checked()) { /* the neighbour's values are read */
        CU(cudaStreamSynchronize(stream));
        CU(cudaStreamDestroy(stream));
    } else {
        CHECK(cudaStreamSynchronize(stream) != cudaSuccess);
        CHECK(strstr(cuemu_report_text(), "kernel k_static_end"));
        CU(cudaDeviceReset());
        CU(cudaStreamDestroy(stream));
    }
}
__attribute__((noinline)) static int deep(volatile int *p, int n)
{
    volatile int big[64];
    big[0] = n;
    return n == 0 ? p[0] : deep(big, n - 1) + big[0];
}
__global__ void k_deep(int *p) { p[threadIdx.x] = deep(p, 100000); }
SEEDED(stack_overflow)
{
    CU(LAUNCH(k_deep, dim3(1), dim3(32), 0, stream, device_new<int>(32)));
    expect(cudaErrorIllegalAddress, "stack overflow", "kernel k_deep", nullptr);
}

/* ---- barriers and warps ---- */
__global__ void k_divergent(int *p, int how)
{
    const int t = (int)threadIdx.x;
    if (how == 0 && t < 32) __syncthreads();
    if (how == 1 && t == 3) return;
    if (how == 2 && t < 40) __syncthreads();
    else __syncthreads();
    if (how == 3 && t >= 16) return;
    if (how == 3) p[t] = __shfl_xor_sync(0xffffffffu, t, 1);
    if (how == 4) p[t] = __shfl_sync(t % 32 < 16 ? 0xffffu : 0xffff0000u, t, 20);
    if (how == 5) p[t] = t % 2 ? __shfl_xor_sync(0xffffffffu, t, 1) : (int)__ballot_sync(0xffffffffu, t);
    if (how == 6 && t < 32) __syncwarp(1);
}
SEEDED(divergence)
{
    static const char *const words[7] = {"divergence: ", "divergence: ", "divergence: ", "divergence: ", "takes no part", "divergence: ", "not in its own mask"};
    for (int how = 0; how < 7; how++) {
        if (how) begin((unsigned)cuemu_seed());
        CU(LAUNCH(k_divergent, dim3(1), dim3(64), 0, stream, device_new<int>(64), how));
        expect(cudaErrorLaunchFailure, words[how], "t_cuemu_reports.cc:", "kernel k_divergent");
    }
}
__global__ void k_deadlock(int *p)
{
    if (threadIdx.x < 32) __syncthreads();
    else p[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0), __syncwarp();
    if (threadIdx.x >= 32) sleep_ns(10), st_relaxed_sys(reinterpret_cast<uint32_t *>(p), 1);
    if (threadIdx.x >= 32) while (ld_relaxed_sys(reinterpret_cast<uint32_t *>(p)) != 7) sleep_ns(100);
}
__global__ void k_spin(uint32_t *p) { while (ld_acquire_sys(p + threadIdx.x / 32) == 0) {} }
SEEDED(hang)
{
    uint32_t *p = device_new<uint32_t>(2);
    CU(cudaMemset(p, 0, 8));
    CU(LAUNCH(k_spin, dim3(1), dim3(64), 0, stream, p));
    expect(cudaErrorLaunchTimeout, "hang: ", "device 0, live allocation of 8 bytes at offset", "kernel k_spin, device 0, block (0,0,0), thread (");
    begin((unsigned)cuemu_seed());
    int *q = device_new<int>(64);
    CU(cudaMemset(q, 0, 256));
    CU(LAUNCH(k_deadlock, dim3(1), dim3(64), 0, stream, q));
    expect(cudaErrorLaunchTimeout, "hang: ", "kernel k_deadlock", nullptr);
}
__global__ void k_lanes(int *p)
{
    if (threadIdx.x == 0) __syncthreads();
    else p[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);
}
SEEDED(deadlock)
{
    CU(LAUNCH(k_lanes, dim3(1), dim3(32), 0, stream, device_new<int>(32)));
    CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
    CHECK(strstr(cuemu_report_text(), "waits at the barrier of") || strstr(cuemu_report_text(), "deadlock: "));
    CHECK(strstr(cuemu_report_text(), "kernel k_lanes"));
    CU(cudaDeviceReset());
    CU(cudaStreamDestroy(stream));
}
__global__ void k_busy(int *p)
{
    volatile int x = 1;
    while (x) {}
    p[0] = x;
}
static void watchdog(void **)
{
    begin(1);
    cuemu_set_watchdog(1);
    CU(LAUNCH(k_busy, dim3(1), dim3(32), 0, stream, device_new<int>(1)));
    expect(cudaErrorLaunchTimeout, "watchdog: ", "kernel k_busy", nullptr);
    cuemu_reset(1);
}

/* ---- wgmma ---- */
__global__ void k_wgmma(const uint8_t *x, float *y, int how)
{
    SHARED(uint8_t, s, [256 * 16 * 2]);
    float sum[32][4] = {};
    for (uint32_t i = threadIdx.x; i < sizeof s / 16; i += blockDim.x) cp_async_16(s + i * 16, x + i * 16);
    cp_async_commit();
    if (how == 1) fence_async_shared(); /* too early */
    cp_async_wait<0>();
    if (how > 1 && (how > 2 || threadIdx.x != 77)) fence_async_shared();
    __syncthreads();
    wgmma_bf16(sum, wgmma_cores_at(s, 128, 256), wgmma_cores_at(s, 128, how == 4 ? 256 + 256 * (threadIdx.x == 5) : 256));
    wgmma_commit();
    wgmma_wait<0>();
    y[threadIdx.x] = sum[0][0];
}
SEEDED(wgmma_of_what_it_can_not_see)
{
    uint8_t *x = device_new<uint8_t>(8192);
    float *y = device_new<float>(128);
    CU(cudaMemsetAsync(x, 0, 8192, stream));
    for (int how = 0; how < 5; how++) {
        CU(LAUNCH(k_wgmma, dim3(1), dim3(128), 0, stream, x, y, how));
        if (how == 3) {
            CU(cudaStreamSynchronize(stream));
            continue;
        }
        expect(cudaErrorLaunchFailure, how < 3 ? "no fence.proxy.async" : "names other matrices", "kernel k_wgmma", nullptr);
        begin((unsigned)cuemu_seed());
        x = device_new<uint8_t>(8192), y = device_new<float>(128);
        CU(cudaMemsetAsync(x, 0, 8192, stream));
    }
}

/* ---- asynchronous copies, ldmatrix ---- */
__global__ void k_cp(float *y, const float *x, int how)
{
    SHARED(float, s, [2][32]);
    const int t = (int)threadIdx.x;
    cp_async_4(&s[0][t], x + t);
    if (how != 1) cp_async_commit();
    cp_async_4(&s[1][t], x + 32 + t);
    cp_async_commit();
    if (how == 0) cp_async_wait<2>();
    else if (how == 1) cp_async_wait<1>();
    else cp_async_wait<0>();
    __syncthreads();
    y[t] = s[0][t ^ 1];
}
SEEDED(read_before_the_copy_lands)
{
    float h[64], *x = device_new<float>(64), *y = device_new<float>(32);
    for (int i = 0; i < 64; i++) h[i] = (float)i;
    CU(cudaMemcpyAsync(x, h, sizeof h, cudaMemcpyDefault, stream));
    for (int how = 0; how < 3; how++) {
        CU(LAUNCH(k_cp, dim3(1), dim3(32), 0, stream, y, x, how));
        if (cuemu_checked() && how < 2) {
            expect(cudaErrorLaunchFailure, "uninitialized", "kernel k_cp", nullptr);
            begin((unsigned)cuemu_seed());
            x = device_new<float>(64), y = device_new<float>(32);
            CU(cudaMemcpyAsync(x, h, sizeof h, cudaMemcpyDefault, stream));
            continue;
        }
        float got[32];
        unsigned wrong = 0;
        CU(cudaMemcpyAsync(got, y, sizeof got, cudaMemcpyDefault, stream));
        CU(cudaStreamSynchronize(stream));
        for (int i = 0; i < 32; i++) wrong += got[i] != (float)(i ^ 1);
        CHECK(how < 2 ? wrong > 0 : wrong == 0);
    }
    expect_clean();
}

/* ---- the host's calls ---- */
SEEDED(calls_that_are_wrong)
{
    float h[4] = {}, *p = device_new<float>(4);
    cudaStream_t other;
    cuemu_set_fail_launch(1);
    CHECK(LAUNCH(k_write, dim3(1), dim3(32), 0, stream, p, 0) == cudaErrorLaunchFailure);
    CU(LAUNCH(k_write, dim3(1), dim3(32), 0, stream, p, 0));
    CHECK(LAUNCH(k_write, dim3(1), dim3(2048), 0, stream, p, 0) == cudaErrorInvalidConfiguration);
    CHECK(LAUNCH(k_write, dim3(1), dim3(32), 60000, stream, p, 0) == cudaErrorInvalidConfiguration);
    CU(cudaFuncSetAttribute(k_write, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000));
    CU(LAUNCH(k_write, dim3(1), dim3(32), 60000, stream, p, 0));
    CHECK(cuemu_report_count() == 0);
    CHECK(LAUNCH(k_write, dim3(1), dim3(33), 0, stream, p, 0) == cudaErrorInvalidConfiguration);
    CHECK(LAUNCH(k_write, dim3(1), dim3(32), 0, nullptr, p, 0) == cudaErrorInvalidResourceHandle);
    CU(cudaSetDevice(1));
    CHECK(LAUNCH(k_write, dim3(1), dim3(32), 0, stream, p, 0) == cudaErrorInvalidResourceHandle);
    CHECK(cudaStreamCreateWithFlags(&other, 0) == cudaErrorInvalidValue);
    CU(cudaSetDevice(0));
    CHECK(cudaFree(p + 1) == cudaErrorInvalidValue);
    CHECK(cuemu_report_count() == 5);
    for (int way = 0; way < 4; way++) { /* pinned memory that a copy reads or writes, or has read or written */
        void *pinned;
        CU(cudaMallocHost(&pinned, 16));
        memset(pinned, 0, 16);
        CU(cudaMemcpyAsync(way & 1 ? pinned : p, way & 1 ? p : pinned, 16, cudaMemcpyDefault, stream));
        if (way & 2) CU(cudaStreamSynchronize(stream));
        CU(cudaFreeHost(pinned));
    }
    CHECK(cuemu_report_count() == 7);
    CU(cudaFree(p));
    CHECK(cudaFree(p) == cudaErrorInvalidValue);
    CU(cudaMemcpyAsync(device_new<float>(3), h, sizeof h, cudaMemcpyDefault, stream)); /* one byte too many and more */
    CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
    CHECK(cuemu_report_count() == 9);
    CU(cudaDeviceReset());
    CU(cudaStreamDestroy(stream));
}
SEEDED(allocations_fail)
{
    void *p;
    cuemu_set_fail_alloc(2);
    CU(cudaMalloc(&p, 10));
    CHECK(cudaMalloc(&p, 10) == cudaErrorMemoryAllocation && !p);
    CU(cudaMallocHost(&p, 10));
    cuemu_set_memory(1000);
    CHECK(cudaMalloc(&p, 991) == cudaErrorMemoryAllocation);
    CU(cudaMalloc(&p, 990));
    CHECK(cuemu_live_bytes() == 10 + 10 + 990);
    expect_clean();
}

/* ---- writes to a peer that get lost ---- */
__global__ void k_store(uint32_t *p) { st_release_sys(p + threadIdx.x, 0x11223344u); }
__global__ void k_plain_store(uint32_t *p) { p[threadIdx.x] = 0x11223344u; }
SEEDED(peer_writes_are_mangled)
{
    static const uint32_t flag_of[4] = {0x11223344, 0xeeeeeeee, 0, 0x11223345};
    for (int kind = CUEMU_PEER_OK; kind <= CUEMU_PEER_FLIP; kind++) {
        for (int how = 0; how < 3; how++) { /* flag, copy, plain store */
            uint32_t h[32], *x = device_new<uint32_t>(32), *y;
            if (how == 2 && !cuemu_checked()) continue;
            for (uint32_t &v : h) v = 0x11223344u;
            CU(cudaMemcpyAsync(x, h, sizeof h, cudaMemcpyDefault, stream));
            CU(cudaSetDevice(1));
            y = device_new<uint32_t>(32);
            CU(cudaMemset(y, 0xee, 128));
            CU(cudaSetDevice(0));
            cudaDeviceEnablePeerAccess(1, 0), cudaGetLastError();
            cuemu_set_peer_fault(static_cast<cuemu_peer_fault>(kind), how == 1 ? 1 : 0);
            if (how == 0) CU(LAUNCH(k_store, dim3(1), dim3(32), 0, stream, y));
            if (how == 1) CU(cudaMemcpyAsync(y, x, 128, cudaMemcpyDefault, stream));
            if (how == 2) CU(LAUNCH(k_plain_store, dim3(1), dim3(32), 0, stream, y));
            CU(cudaMemcpyAsync(h, y, 128, cudaMemcpyDefault, stream));
            CU(cudaStreamSynchronize(stream));
            cuemu_set_peer_fault(CUEMU_PEER_OK, 0);
            unsigned right = 0, same = 0;
            for (uint32_t v : h) right += v == flag_of[0], same += v == flag_of[kind];
            CHECK(kind == CUEMU_PEER_OK ? right == 32 : how == 1 ? right < 32 && right >= (kind == CUEMU_PEER_FLIP ? 31u : 0u) : same == 32);
        }
    }
    expect_clean();
}

__global__ void k_load(uint32_t *p, const uint32_t *from) { p[threadIdx.x] = from[threadIdx.x]; }
SEEDED(peer_loads_are_mangled)
{
    for (unsigned n = 0; n < 2; n++) { /* all loads, the first one */
        uint32_t h[32], *x = device_new<uint32_t>(32), *y;
        CU(cudaSetDevice(1));
        y = device_new<uint32_t>(32);
        CU(cudaMemset(y, 0xee, 128));
        CU(cudaSetDevice(0));
        cudaDeviceEnablePeerAccess(1, 0), cudaGetLastError();
        for (int again = 0; again < 2; again++) { /* what is there stays right */
            cuemu_set_peer_fault(again ? CUEMU_PEER_OK : CUEMU_PEER_LOAD, n);
            CU(LAUNCH(k_load, dim3(1), dim3(32), 0, stream, x, y));
            CU(cudaMemcpyAsync(h, x, 128, cudaMemcpyDefault, stream));
            CU(cudaStreamSynchronize(stream));
            unsigned right = 0, turned = 0;
            for (uint32_t v : h) right += v == 0xeeeeeeee, turned += v == 0xeeeeeeef;
            CHECK(right + turned == 32 && turned == (again || !cuemu_checked() ? 0u : n ? 1u : 32u));
        }
    }
    expect_clean();
}

/* A device that comes late is waited for in virtual time, and runs out of a deadline that is shorter. */
__global__ void k_signal(uint32_t *p) { if (threadIdx.x == 0) st_release_sys(p, 1); }
__global__ void k_await(uint32_t *p, uint64_t deadline, uint32_t *late)
{
    const uint64_t start = globaltimer();
    if (threadIdx.x == 0) {
        while (ld_acquire_sys(p) == 0 && globaltimer() - start < deadline) sleep_ns(1000);
        *late = globaltimer() - start >= deadline;
    }
}
SEEDED(late_device)
{
    for (int i = 0; i < 2; i++) {
        uint32_t *p, late, *d = device_new<uint32_t>(1);
        cudaStream_t s;
        CU(cudaMallocHost((void **)&p, 4));
        *p = 0;
        CU(cudaSetDevice(1));
        CU(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        cuemu_set_delay(1, 5000000000);
        CU(LAUNCH(k_signal, dim3(1), dim3(32), 0, s, p));
        CU(cudaSetDevice(0));
        CU(LAUNCH(k_await, dim3(1), dim3(32), 0, stream, p, i ? (uint64_t)1000000000 : (uint64_t)10000000000, d));
        CU(cudaMemcpyAsync(&late, d, 4, cudaMemcpyDefault, stream));
        CU(cudaStreamSynchronize(stream));
        CHECK(late == (uint32_t)i);
        CU(cudaStreamSynchronize(s));
        CU(cudaStreamDestroy(s));
    }
    expect_clean();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(past_the_end), cmocka_unit_test(past_the_end_by_bytes), cmocka_unit_test(before_the_start),
        cmocka_unit_test(freed), cmocka_unit_test(null_pointer), cmocka_unit_test(no_peer_access),
        cmocka_unit_test(memory_of_the_host), cmocka_unit_test(misaligned),
        cmocka_unit_test(dynamic_shared_memory_is_short), cmocka_unit_test(static_shared_memory_is_short),
        cmocka_unit_test(stack_overflow), cmocka_unit_test(divergence), cmocka_unit_test(hang), cmocka_unit_test(deadlock),
        cmocka_unit_test(wgmma_of_what_it_can_not_see), cmocka_unit_test(watchdog), cmocka_unit_test(read_before_the_copy_lands), cmocka_unit_test(calls_that_are_wrong),
        cmocka_unit_test(allocations_fail), cmocka_unit_test(peer_writes_are_mangled),
        cmocka_unit_test(peer_loads_are_mangled), cmocka_unit_test(late_device),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
