/* machine.c - what the device does when nothing else is to be done: the bounds of all else. See gpu_bench.h. */
#include "gpu_bench.h"

enum { TURNS = 2000 };
typedef struct {
    void *src, *dst;
    size_t bytes;
    uint32_t blocks, turns;
} room;

static int copy_once(void *user, uint32_t turn, void *stream)
{
    const room *r = user;
    UNUSED(turn);
    return probe_copy(r->dst, r->src, r->bytes, r->blocks, stream);
}
static int read_once(void *user, uint32_t turn, void *stream)
{
    const room *r = user;
    UNUSED(turn);
    return probe_read(r->dst, r->src, r->bytes, r->blocks, stream);
}
static int bf16_once(void *user, uint32_t turn, void *stream)
{
    const room *r = user;
    UNUSED(turn);
    return probe_mma_bf16(r->dst, r->turns, r->blocks, stream);
}
static int s8_once(void *user, uint32_t turn, void *stream)
{
    const room *r = user;
    UNUSED(turn);
    return probe_mma_s8(r->dst, r->turns, r->blocks, stream);
}
static int launch_once(void *user, uint32_t turn, void *stream)
{
    UNUSED(user);
    UNUSED(turn);
    return probe_nothing(stream);
}
static int send_once(void *user, uint32_t turn, void *stream)
{
    const room *r = user;
    UNUSED(turn);
    return device_copy(r->dst, r->src, r->bytes, stream);
}

static tess_status memory(gpu_bench *b, tess_error *err)
{
    room r = {.bytes = b->dry ? 1 << 16 : (size_t)1 << 30, .blocks = b->dry ? 4 : b->props.n_sms * 8};
    double by_clock = b->memory, copy, read;
    TRY(gpu_alloc(b, r.bytes, 1, &r.src, err));
    TRY(gpu_alloc(b, r.bytes, 2, &r.dst, err));
    TRY(gpu_time(b, copy_once, &r, &copy, err));
    TRY(gpu_time(b, read_once, &r, &read, err));
    copy = 2 * (double)r.bytes / copy;
    read = (double)r.bytes / read;
    gpu_print("memory, copy", copy * 1e-9, "GB/s", by_clock * 1e-9, "clock and bus of the memory");
    gpu_print("memory, read", read * 1e-9, "GB/s", by_clock * 1e-9, "clock and bus of the memory");
    b->memory = MAX(copy, read);
    return TESS_OK;
}

static tess_status tensor_cores(gpu_bench *b, tess_error *err)
{
    room r = {.blocks = b->dry ? 2 : b->props.n_sms * 4, .turns = b->dry ? 2 : TURNS};
    double bf16, s8, warps = (double)r.blocks * (PROBE_THREADS / 32.0) * r.turns * PROBE_MMAS;
    TRY(gpu_alloc(b, (size_t)r.blocks * PROBE_THREADS * sizeof(float), 0, &r.dst, err));
    TRY(gpu_time(b, bf16_once, &r, &bf16, err));
    TRY(gpu_time(b, s8_once, &r, &s8, err));
    gpu_print("tensor cores, bf16 mma.sync", warps * 2 * 16 * 8 * 16 / bf16 * 1e-12, "TFLOP/s", b->bf16 * 1e-12,
              "clock and kind of device");
    gpu_print("tensor cores, int8 mma.sync", warps * 2 * 16 * 8 * 32 / s8 * 1e-12, "TOP/s", b->int8 * 1e-12,
              "clock and kind of device");
    return TESS_OK;
}

static tess_status host(gpu_bench *b, tess_error *err)
{
    room r = {.bytes = b->dry ? 1 << 16 : (size_t)256 << 20};
    double launch, send;
    TRY(gpu_time(b, launch_once, NULL, &launch, err));
    gpu_print("launches one after another", launch * 1e6, "us", 0, NULL);
    TRY(gpu_alloc(b, r.bytes, 0, &r.dst, err));
    DEV_TRY(device_host_alloc(&r.src, r.bytes), "pinned memory");
    tess_status st = gpu_time(b, send_once, &r, &send, err);
    device_host_free(r.src);
    if (st >= 0) gpu_print("host to device, pinned", (double)r.bytes / send * 1e-9, "GB/s", 0, NULL);
    return st;
}

tess_status part_machine(gpu_bench *b, tess_error *err)
{
    TRY(memory(b, err));
    TRY(tensor_cores(b, err));
    return host(b, err);
}
