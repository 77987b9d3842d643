/*
 * t_cuemu_races.cc - what only the checked build sees: accesses in no order, reads of what nobody wrote, bounds to the byte. Each
 * fault is one word in a kernel, or one call of the host, and stands beside the same kernel without it, which must give no
 * report: the report comes on every seed, whatever the order was, and so does the silence.
 */
#include "ptx.cuh"

#include "cuemu_expect.h"

/* A test runs `how` 0 .. n - 1 on several seeds; how 0 is the kernel that is right. */
#define CASES(name, n) \
    static void name##_case(int how); \
    static void name(void **) \
    { \
        for (unsigned seed = 1; seed <= test_seeds(SEEDS_EACH); seed++) \
            for (int how = 0; how < (n); how++) { \
                begin(seed); \
                name##_case(how); \
            } \
        cuemu_reset(1); \
    } \
    static void name##_case(int how)

static void expect_race(int how, const char *kernel)
{
    if (how == 0) expect_clean();
    else expect(cudaErrorLaunchFailure, "race: ", "is in no order with the access by kernel ", kernel);
}
static uint32_t *zeros(size_t n)
{
    uint32_t *p = device_new<uint32_t>(n);
    CU(cudaMemset(p, 0, n * 4));
    return p;
}

/* ---- inside a block ---- */
__global__ void k_turn(uint32_t *p, int how)
{
    SHARED(uint32_t, s, [128]);
    const uint32_t t = threadIdx.x;
    s[t] = 0;
    __syncthreads();
    for (uint32_t round = 0; round < 3; round++) {
        s[t] = t + round;
        if (how != 1) __syncthreads(); /* written before it is read */
        p[t] += s[(t + 64) % 128];
        if (how != 2) __syncthreads(); /* read before it is written again */
    }
}
CASES(barriers_of_a_block, 3)
{
    CU(LAUNCH(k_turn, dim3(1), dim3(128), 0, stream, zeros(128), how));
    expect_race(how, "[kernel k_turn, device 0, block (0,0,0), thread (");
}

__global__ void k_lanes(uint32_t *p, int how)
{
    DYN_SHARED(uint32_t, s);
    const uint32_t t = threadIdx.x;
    s[t] = 0;
    __syncthreads();
    s[t] = t;
    if (how == 0) __syncwarp();
    if (how == 2) (void)__shfl_xor_sync(~0u, t, 1); /* a shuffle orders no memory */
    if (how == 3) __syncwarp(t & 16 ? 0xffff0000u : 0x0000ffffu);
    p[t] = s[t ^ (how == 3 ? 1 : 17)];
}
CASES(lanes_of_a_warp, 3)
{
    CU(LAUNCH(k_lanes, dim3(1), dim3(64), 256, stream, zeros(64), how));
    expect_race(how, "[kernel k_lanes, ");
}
SEEDED(parts_of_a_warp)
{
    CU(LAUNCH(k_lanes, dim3(1), dim3(64), 256, stream, zeros(64), 3));
    expect_clean();
}

/* Bytes of one word by different lanes are no race; the same byte is. */
__global__ void k_bytes(uint8_t *p, int how)
{
    SHARED(uint8_t, s, [32]);
    const uint32_t t = threadIdx.x;
    s[t] = p[t];
    (void)__shfl_xor_sync(~0u, t, 1);
    s[t] = (uint8_t)(s[t] + 1);
    if (how == 1) s[t & ~1u] = 3;
    p[t] = s[t];
}
CASES(bytes_of_a_word, 2)
{
    CU(LAUNCH(k_bytes, dim3(1), dim3(32), 0, stream, reinterpret_cast<uint8_t *>(zeros(8)), how));
    expect_race(how, "[kernel k_bytes, ");
}

/* A word that a lane reads once more than the others, and then writes. */
__global__ void k_again(float *p)
{
    SHARED(float, s, [32]);
    const uint32_t t = threadIdx.x;
    s[t] = (float)t;
    __syncwarp();
    float sum = s[t ^ 1];
    __syncwarp();
    s[t] = s[t] + sum;
    p[t] = s[t];
}
SEEDED(read_by_others_before)
{
    CU(LAUNCH(k_again, dim3(1), dim3(32), 0, stream, device_new<float>(32)));
    expect_clean();
}

/* ---- between blocks ---- */
__global__ void k_blocks(uint32_t *p, int how)
{
    const uint32_t i = blockIdx.x * 32 + threadIdx.x;
    if (how == 0) p[i]++;
    if (how == 1) p[threadIdx.x] = 7; /* equal values, and yet */
    if (how == 2) p[blockIdx.x ? 64 + i : threadIdx.x] = blockIdx.x ? p[threadIdx.x] : 1;
    if (how == 3 && threadIdx.x == 0) blockIdx.x ? p[0]++ : atomicAdd(p, 1u);
}
CASES(blocks_of_a_launch, 4)
{
    CU(LAUNCH(k_blocks, dim3(2), dim3(32), 0, stream, zeros(128), how));
    expect_race(how, "[kernel k_blocks, device 0, block (");
}

__global__ void k_last(uint32_t *part, uint32_t *count, int how)
{
    SHARED(uint32_t, last, [1]);
    part[blockIdx.x * 32 + threadIdx.x] = threadIdx.x;
    if (how != 2) __syncthreads();
    if (threadIdx.x == 0) {
        if (how != 1) __threadfence();
        last[0] = atomicAdd(count, 1u) == gridDim.x - 1;
        if (how != 3) __threadfence();
    }
    __syncthreads();
    if (last[0])
        for (uint32_t b = 0; b < gridDim.x; b++) part[1024 + threadIdx.x] = part[b * 32 + threadIdx.x];
}
CASES(last_block, 4)
{
    uint32_t *p = zeros(2048);
    CU(LAUNCH(k_last, dim3(6), dim3(32), 0, stream, p, p + 2047, how));
    expect_race(how, "[kernel k_last, ");
}

/* ---- between streams and devices ---- */
__global__ void k_put(uint32_t *p, uint32_t v) { p[blockIdx.x * 32 + threadIdx.x] = v; }
__global__ void k_get(uint32_t *to, const uint32_t *p) { to[threadIdx.x] = p[threadIdx.x]; }

CASES(events_between_streams, 5)
{
    cudaStream_t other;
    cudaEvent_t event;
    uint32_t *p = zeros(64);
    CU(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CU(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    if (how == 2) CU(cudaEventRecord(event, other)); /* too early */
    if (how == 3) CU(LAUNCH(k_get, dim3(1), dim3(32), 0, other, p + 32, p));
    else CU(LAUNCH(k_put, dim3(1), dim3(32), 0, other, p, 5u));
    if (how != 2) CU(cudaEventRecord(event, other));
    if (how == 0 || how == 2) CU(cudaStreamWaitEvent(stream, event, 0));
    if (how == 4) CU(cudaMemcpyAsync(p + 32, p, 128, cudaMemcpyDefault, stream));
    else if (how == 3) CU(LAUNCH(k_put, dim3(1), dim3(32), 0, stream, p, 6u));
    else CU(LAUNCH(k_get, dim3(1), dim3(32), 0, stream, p + 32, p));
    (void)cudaStreamSynchronize(other);
    CU(cudaEventDestroy(event));
    const cudaError_t e = cudaStreamSynchronize(stream);
    CHECK((how == 0) == (e == cudaSuccess) && (how == 0) == (cuemu_report_count() == 0));
    if (how) CHECK(strstr(cuemu_report_text(), "race: ") && strstr(cuemu_report_text(), "in no order with"));
    CU(cudaDeviceReset());
    CU(cudaStreamDestroy(other));
    CU(cudaStreamDestroy(stream));
}
/* What the host waited for happened before what it gives then. */
SEEDED(waiting_on_the_host)
{
    cudaStream_t other;
    uint32_t *p = zeros(64);
    CU(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CU(LAUNCH(k_put, dim3(1), dim3(32), 0, other, p, 5u));
    CU(cudaStreamSynchronize(other));
    CU(LAUNCH(k_get, dim3(1), dim3(32), 0, stream, p + 32, p));
    while (cudaStreamQuery(stream) == cudaErrorNotReady) {}
    CU(LAUNCH(k_put, dim3(2), dim3(32), 0, other, p, 6u));
    CU(cudaDeviceSynchronize());
    CU(cudaMemcpy(p, p + 32, 128, cudaMemcpyDefault));
    CU(cudaStreamDestroy(other));
    expect_clean();
}
CASES(nodes_of_a_graph, 2)
{
    cudaStream_t other;
    cudaEvent_t fork, join;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    uint32_t *p = zeros(64);
    CU(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CU(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CU(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    if (how == 1) CU(cudaEventRecord(fork, stream));
    CU(LAUNCH(k_put, dim3(1), dim3(32), 0, stream, p, 5u));
    if (how == 0) CU(cudaEventRecord(fork, stream));
    CU(cudaStreamWaitEvent(other, fork, 0));
    CU(LAUNCH(k_get, dim3(1), dim3(32), 0, other, p + 32, p));
    CU(cudaEventRecord(join, other));
    CU(cudaStreamWaitEvent(stream, join, 0));
    CU(cudaStreamEndCapture(stream, &graph));
    CU(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 2; i++) CU(cudaGraphLaunch(exec, stream));
    const cudaError_t e = cudaStreamSynchronize(stream);
    CHECK((how == 0) == (e == cudaSuccess) && (how == 0) == (cuemu_report_count() == 0));
    CU(cudaDeviceReset());
    CU(cudaGraphExecDestroy(exec));
    CU(cudaGraphDestroy(graph));
    CU(cudaEventDestroy(fork));
    CU(cudaEventDestroy(join));
    CU(cudaStreamDestroy(other));
    CU(cudaStreamDestroy(stream));
}

/* Two devices exchange a block of data through flags, twice; the fault is on either side. */
struct swap_args {
    uint32_t *flag[2], *data[2], *out;
    int rank, how;
};
__global__ void k_swap(swap_args a)
{
    const uint32_t t = threadIdx.x;
    const int how = a.how;
    for (uint32_t round = 1; round <= 2; round++) {
        if (how == 1 && t == 0) st_release_sys(a.flag[!a.rank], round); /* before the data */
        a.data[a.rank][(round - 1) * 64 + t] = round * t;
        if (how != 2) __syncthreads(); /* the thread that raises the flag has to know of all */
        if (how != 1 && t == 0) {
            if (how == 3) st_relaxed_sys(a.flag[!a.rank], round);
            else st_release_sys(a.flag[!a.rank], round);
        }
        if (how != 4 && t == 0)
            while ((how == 5 ? ld_relaxed_sys(a.flag[a.rank]) : ld_acquire_sys(a.flag[a.rank])) < round) sleep_ns(100);
        if (how != 6) __syncthreads();
        a.out[t] = a.data[!a.rank][(round - 1) * 64 + t];
        if (how == 7) a.data[a.rank][(round - 1) * 64 + t] = 1; /* the peer may still read it */
    }
}
CASES(flags_between_devices, 8)
{
    swap_args a = {};
    cudaStream_t s[2];
    for (int r = 0; r < 2; r++) {
        CU(cudaSetDevice(r));
        CU(cudaDeviceEnablePeerAccess(!r, 0));
        CU(cudaStreamCreateWithFlags(&s[r], cudaStreamNonBlocking));
        a.flag[r] = zeros(1);
        a.data[r] = zeros(128);
    }
    for (int r = 0; r < 2; r++) {
        CU(cudaSetDevice(r));
        a.rank = r;
        a.how = how;
        a.out = zeros(64);
        CU(LAUNCH(k_swap, dim3(1), dim3(64), 0, s[r], a));
    }
    unsigned failed = 0;
    for (cudaStream_t i : s) failed += cudaStreamSynchronize(i) != cudaSuccess;
    CHECK((how == 0) == (failed == 0) && (how == 0) == (cuemu_report_count() == 0));
    if (how) {
        CHECK(strstr(cuemu_report_text(), "race: ") && strstr(cuemu_report_text(), "[kernel k_swap, device "));
        CHECK(strstr(cuemu_report_text(), "is in no order with the access by kernel k_swap, device "));
    }
    for (int r = 0; r < 2; r++) {
        CU(cudaSetDevice(r));
        CU(cudaDeviceReset());
        CU(cudaStreamDestroy(s[r]));
    }
    CU(cudaStreamDestroy(stream));
}

/* A third device learns of the first by way of the second. */
__global__ void k_relay(uint32_t *data, uint32_t *in, uint32_t *out, uint32_t *sink)
{
    const uint32_t t = threadIdx.x;
    if (!in) data[t] = t;
    if (in && t == 0)
        while (ld_acquire_sys(in) == 0) sleep_ns(100);
    __syncthreads();
    if (out && t == 0) st_release_sys(out, 1);
    if (!out) sink[t] = data[t];
}
SEEDED(word_of_mouth)
{
    cudaStream_t s[3];
    uint32_t *data = zeros(64), *flags = zeros(2), *sink = zeros(64);
    for (int r = 0; r < 3; r++) {
        CU(cudaSetDevice(r));
        if (r) CU(cudaDeviceEnablePeerAccess(0, 0));
        CU(cudaStreamCreateWithFlags(&s[r], cudaStreamNonBlocking));
        CU(LAUNCH(k_relay, dim3(1), dim3(64), 0, s[r], data, r ? flags + r - 1 : nullptr, r < 2 ? flags + r : nullptr, sink));
    }
    for (cudaStream_t i : s) {
        CU(cudaStreamSynchronize(i));
        CU(cudaStreamDestroy(i));
    }
    expect_clean();
}

/* The owner of memory reads it after a peer did: the peer's read is what a write must wait for. */
SEEDED(peers_read_first)
{
    uint32_t *p = zeros(64), *far;
    cudaStream_t other;
    CU(cudaSetDevice(1));
    CU(cudaDeviceEnablePeerAccess(0, 0));
    CU(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    far = zeros(32);
    CU(LAUNCH(k_get, dim3(1), dim3(32), 0, other, far, p));
    CU(cudaSetDevice(0));
    cuemu_set_delay(0, 1000000000);
    CU(LAUNCH(k_get, dim3(1), dim3(32), 0, stream, p + 32, p));
    CU(LAUNCH(k_put, dim3(1), dim3(32), 0, stream, p, 9u));
    CU(cudaStreamDestroy(other));
    expect(cudaErrorLaunchFailure, "race: write of 4 bytes", "the access by kernel k_get, device 1", "[kernel k_put, device 0, ");
}

/* ---- what nobody wrote ---- */
__global__ void k_unwritten(uint32_t *p, const uint32_t *q, int how)
{
    SHARED(uint32_t, s, [32]);
    DYN_SHARED(uint16_t, d);
    const uint32_t t = threadIdx.x;
    if (how == 0) p[t] = q[t];
    if (how == 1) p[t] = s[t];
    if (how == 2) d[2 * t] = 0, p[t] = reinterpret_cast<uint32_t *>(d)[t]; /* half of it */
    if (how == 3) atomicAdd(p + t, 1u);
}
CASES(memory_that_nobody_wrote, 6)
{
    uint32_t *q = device_new<uint32_t>(32), *r = zeros(32), h[32] = {};
    if (how == 4) CU(cudaMemcpyAsync(q, h, 124, cudaMemcpyDefault, stream)); /* but the last word */
    if (how == 5) { /* copies of it are no better */
        CU(cudaMemcpyAsync(r, q, 128, cudaMemcpyDefault, stream));
        q = r;
    }
    CU(LAUNCH(k_unwritten, dim3(1), dim3(32), 128, stream, device_new<uint32_t>(32), q, how > 3 ? 0 : how));
    expect(cudaErrorLaunchFailure, "uninitialized read of 0x",
           how == 1 || how == 2 ? "shared memory" : "device 0, live allocation of 128 bytes at offset ",
           "[kernel k_unwritten, device 0, block (0,0,0), thread (");
}
SEEDED(loose_after_faults)
{
    cuemu_set_loose(true);
    CU(LAUNCH(k_unwritten, dim3(1), dim3(32), 128, stream, device_new<uint32_t>(32), device_new<uint32_t>(32), 0));
    CU(LAUNCH(k_turn, dim3(1), dim3(128), 0, stream, zeros(128), 1));
    expect_clean();
    cuemu_set_loose(false);
}

/* ---- bounds ---- */
struct wide {
    uint32_t v[10];
};
__global__ void k_bounds(wide *p, const wide *q, char *pinned, int how)
{
    SHARED(wide, s, [2]);
    static const int constant = 1;
    const uint32_t t = threadIdx.x;
    if (how == 0 && t < 3) p[t] = q[t];
    if (how == 1 && t == 9) p[3] = q[0]; /* a structure: memcpy, or some moves */
    if (how == 2 && t == 9) p[0] = q[3];
    if (how == 3 && t == 9) memset(p + 2, 0, sizeof *p + 1);
    if (how == 4 && t == 9) s[blockDim.x / 16].v[0] = 1;
    if (how == 5 && t == 9) pinned[13]++;
    if (how == 6 && t == 9) *const_cast<volatile int *>(&constant) = 2;
}
CASES(bounds_to_the_byte, 7)
{
    static const char *const words[7] = {nullptr,
                                         "allocation of 120 bytes at offset 1",
                                         "allocation of 120 bytes at offset 1",
                                         "allocation of 120 bytes at offset 1",
                                         "shared memory",
                                         "pinned host memory, live allocation of 13 bytes at offset 13",
                                         "memory of the host"};
    char *pinned;
    wide *p = device_new<wide>(3);
    CU(cudaMemset(p, 0, 3 * sizeof *p));
    CU(cudaMallocHost((void **)&pinned, 13));
    CU(LAUNCH(k_bounds, dim3(1), dim3(32), 0, stream, p, p, pinned, how));
    if (how == 0) expect_clean();
    else expect(cudaErrorIllegalAddress, "illegal ", words[how], "[kernel k_bounds, device 0, block (0,0,0), thread (9,0,0)]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(barriers_of_a_block), cmocka_unit_test(lanes_of_a_warp),          cmocka_unit_test(parts_of_a_warp),
        cmocka_unit_test(bytes_of_a_word),     cmocka_unit_test(read_by_others_before),    cmocka_unit_test(blocks_of_a_launch),
        cmocka_unit_test(last_block),          cmocka_unit_test(events_between_streams),   cmocka_unit_test(waiting_on_the_host),
        cmocka_unit_test(nodes_of_a_graph),    cmocka_unit_test(flags_between_devices),    cmocka_unit_test(word_of_mouth),
        cmocka_unit_test(peers_read_first),    cmocka_unit_test(memory_that_nobody_wrote), cmocka_unit_test(loose_after_faults),
        cmocka_unit_test(bounds_to_the_byte),
    };
    if (!cuemu_checked()) return puts("this is for the checked build"), 1;
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
