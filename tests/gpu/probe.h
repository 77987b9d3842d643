/*
 * probe.h - what gpu_bench asks of a device beyond device.h: clocks, random memory, its own speeds, and the time between two
 * points of a stream. probe.cu implements it; plain C, no CUDA header. Functions return 0 or a code for device_error, act on the
 * device that was selected last, and do not wait unless they say so.
 */
#ifndef TESS_PROBE_H
#define TESS_PROBE_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint32_t clock_khz, mem_khz, bus_bits, l2_bytes;
} probe_props; /* 0: the runtime does not tell */
int probe_get(uint32_t device, probe_props *out);
int probe_load(void); /* all kernels of probe.cu onto the device */

/* Words of no order without bits 14, 15, 30, 31: of f16 in [0, 2), of f32 as well, of int8 any but with its top bits in half of the
 * bytes. n: a multiple of 4. */
int probe_fill(void *p, size_t n, uint32_t seed, void *stream);
/* n bytes, a multiple of 16, by as many blocks of 256 threads: to dst; only read, *sink being written where the sum says so. */
int probe_copy(void *dst, const void *src, size_t n, uint32_t blocks, void *stream);
int probe_read(uint32_t *sink, const void *src, size_t n, uint32_t blocks, void *stream);
/* Blocks of 8 warps that do PROBE_MMAS * turns mma each: m16n8k16 of bf16, or m16n8k32 of int8. sink: 256 words a block. */
enum { PROBE_MMAS = 8, PROBE_THREADS = 256 };
int probe_mma_bf16(float *sink, uint32_t turns, uint32_t blocks, void *stream);
int probe_mma_s8(int32_t *sink, uint32_t turns, uint32_t blocks, void *stream);
int probe_nothing(void *stream); /* an empty kernel of one warp */

/* Points of a stream with a time. */
int probe_mark_open(void **mark);
void probe_mark_close(void *mark); /* NULL is fine */
int probe_mark(void *mark, void *stream);
int probe_ms(void *from, void *to, float *ms); /* waits for `to` */

#ifdef __cplusplus
}
#endif
#endif
