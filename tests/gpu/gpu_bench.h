/*
 * gpu_bench.h - the parts of gpu_bench, the speeds of a CUDA device beside what it could do at most.
 *
 * gpu_bench.c   command line, parts one after another within a time, what they share
 * machine.c     the device itself: memory, tensor cores, launches, the way from the host
 * kernels.c     linear operations and attention alone
 * ranks.c       the all-reduce
 * whole.c       a synthetic model of the shape of an 8B one, through the public interface
 *
 * Everything is printed as lines of JSON, {"name", "value", "unit"} and, where there is one, the bound: {"bound", "bound_is",
 * "fraction"}, fraction being how near the value comes to it (1 = reached). A part that was not run gives {"name", "skip": why},
 * one that failed {"name", "error"}. Times of kernels are those between two events of their stream; those of ranks.c and whole.c
 * are of the host's clock, waiting included, as a user has them.
 */
#ifndef TESS_GPU_BENCH_H
#define TESS_GPU_BENCH_H
#include "cuda_ops.h"
#include "device.h"
#include "mem.h"
#include "probe.h"

typedef struct {
    bool dry;  /* shapes that the emulator can do: values mean nothing */
    bool once; /* every kernel one time: a try of the real shapes */
    uint32_t device;
    const char *dir; /* for a file of 0.8 GB */
    double until;    /* gpu_now when no further part begins */
    device_props props;
    probe_props probe;
    double memory;     /* bytes a second that machine.c read or copied at most; before that of clock and bus; 0: not known */
    double bf16, int8; /* operations a second of the tensor cores by clock and kind of device; 0: not known */
    void *stream, *mark[2];
    void *owned[64]; /* device memory of the part under way */
    uint32_t n_owned, failed;
} gpu_bench;

double gpu_now(void); /* seconds */
/* Device memory until the part ends, with random words (probe_fill) unless seed is 0. */
tess_status gpu_alloc(gpu_bench *b, size_t n, uint32_t seed, void **out, tess_error *err);
tess_status gpu_upload(gpu_bench *b, const void *src, size_t n, void **out, tess_error *err);
void gpu_free_all(gpu_bench *b);

/* Seconds of one turn of work that run puts into the stream: the median of rounds of as many turns as take about 10 ms. turn
 * counts on, so that a turn can take other memory than the one before it (caches). */
typedef int (*gpu_work)(void *user, uint32_t turn, void *stream);
tess_status gpu_time(gpu_bench *b, gpu_work run, void *user, double *seconds, tess_error *err);
/* Copies of `bytes` that make more than any cache holds, 1 to `most`. */
uint32_t gpu_copies(const gpu_bench *b, uint64_t bytes, uint32_t most);

/* bound 0: there is none, or it is not known. */
void gpu_print(const char *name, double value, const char *unit, double bound, const char *bound_is);
void gpu_skip(const char *name, const char *why);
bool gpu_late(const gpu_bench *b, const char *name); /* the time is over: `name` has been skipped */

#define DEV_TRY(call, what) \
    do { \
        int code_ = (call); \
        if (code_) return ERR(err, TESS_E_DEVICE, "%s: %s", (what), device_error(code_)); \
    } while (0)

tess_status part_machine(gpu_bench *b, tess_error *err);
tess_status part_linear(gpu_bench *b, tess_error *err);
tess_status part_attention(gpu_bench *b, tess_error *err);
tess_status part_ranks(gpu_bench *b, tess_error *err);
tess_status part_model(gpu_bench *b, tess_error *err);
#endif
