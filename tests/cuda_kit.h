/*
 * cuda_kit.h - for t_cuda_*.c: operations of a CUDA device against ref.c, bit for bit.
 *
 * A test fills the arguments of an operation with host memory and runs ref; then takes a copy of the arguments whose pointers lead
 * to device memory of the same contents (dev_copy) and runs the device. Outputs lie between guards there too. Every buffer
 * is an allocation of its own, so that tests/cuemu sees the first byte out of bounds. All runs on one stream of device 0;
 * without a device the tests are skipped.
 */
#ifndef TESS_CUDA_KIT_H
#define TESS_CUDA_KIT_H
#include "cuda_ops.h"
#include "device.h"
#include "ops_weight.h"

static const op_cuda_table *cuda; /* NULL: no device */
static void *stream;
static struct {
    void **p;
    size_t n, cap;
} dev_mem;

static inline void dev_ok(int code, const char *what)
{
    if (code) fail_msg("%s: %s", what, device_error(code));
}
static inline void *dev_alloc(size_t n)
{
    void *p;
    dev_ok(device_alloc(&p, MAX(n, (size_t)1)), "device_alloc");
    if (dev_mem.n == dev_mem.cap) {
        dev_mem.cap = dev_mem.cap * 2 + 64;
        dev_mem.p = must(realloc(dev_mem.p, dev_mem.cap * sizeof *dev_mem.p));
    }
    return dev_mem.p[dev_mem.n++] = p;
}
/* Copies go through pinned memory, as device.h has it. */
static inline void dev_move(void *dst, const void *src, size_t n, bool to_device)
{
    void *pin;
    if (n == 0) return;
    dev_ok(device_host_alloc(&pin, n), "device_host_alloc");
    if (to_device) memcpy(pin, src, n);
    dev_ok(device_copy(to_device ? dst : pin, to_device ? pin : src, n, stream), "device_copy");
    dev_ok(device_stream_sync(stream), "device_stream_sync");
    if (!to_device) memcpy(dst, pin, n);
    device_host_free(pin);
}
/* A copy on the device; NULL of NULL. */
static inline void *dev_copy(const void *src, size_t n)
{
    if (!src) return NULL;
    void *p = dev_alloc(n);
    dev_move(p, src, n, true);
    return p;
}
#define DEV_COPY(p, n) dev_copy(p, (n) * sizeof *(p))
/* The same of a buffer of guarded(), guards included; and back, to another such buffer. */
static inline float *dev_guarded(const float *p, size_t n)
{
    return (float *)dev_copy(p - GUARD, (n + 2 * GUARD) * sizeof *p) + GUARD;
}
static inline void dev_fetch(float *to, const float *dev, size_t n)
{
    dev_move(to - GUARD, dev - GUARD, (n + 2 * GUARD) * sizeof *to, false);
}
static inline void dev_free_all(void)
{
    for (size_t i = 0; i < dev_mem.n; i++) device_free(dev_mem.p[i]);
    dev_mem.n = 0;
}

/* A weight whose runs are on the device; the list of runs stays here. */
typedef struct {
    op_weight w;
    op_run runs[64];
} dev_weight;
static inline void dev_weight_make(dev_weight *d, const test_weight *h)
{
    d->w = h->w;
    d->w.runs = d->runs;
    for (uint32_t i = 0; i < h->n; i++) {
        const op_run *r = &h->runs[i];
        uint64_t blocks = ((uint64_t)r->row_skip + r->n_rows + TILE_ROWS - 1) / TILE_ROWS;
        d->runs[i] = *r;
        d->runs[i].data = dev_copy(r->data, blocks * r->block_stride);
    }
}

/* Runs an operation and waits for it. */
#define ON_DEVICE(op, args) \
    do { \
        dev_ok(cuda->op(args, stream), #op); \
        dev_ok(device_stream_sync(stream), #op); \
    } while (0)
#define NEED_DEVICE() \
    do { \
        if (!cuda) skip(); \
    } while (0)

static inline int cuda_open(void **state)
{
    uint32_t n = 0;
    (void)state;
    const char *seed = getenv("OPS_SEED"); /* other numbers, other shapes */
    if (seed) rng ^= strtoull(seed, NULL, 0) * 0x9e3779b97f4a7c15u;
    if (device_count(&n) != 0 || n == 0) {
        printf("skip: no CUDA device\n");
        return 0;
    }
    cuda = op_cuda_get();
    if (!cuda || device_select(0) != 0 || op_cuda_load() != 0 || device_stream_open(&stream) != 0) return -1;
    return 0;
}
static inline int cuda_close(void **state)
{
    (void)state;
    dev_free_all();
    free(dev_mem.p);
    device_stream_close(stream);
    return 0;
}
#define RUN_CUDA_TESTS(tests) return cmocka_run_group_tests(tests, cuda_open, cuda_close)
#endif
