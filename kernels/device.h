/*
 * device.h - the only door of lib/ to CUDA devices; plain C, no CUDA header.
 *
 * kernels/cuda/device.cu implements it over the CUDA runtime (linked statically; the driver is opened by it at run time, so
 * that one binary starts on any machine), kernels/cuda_stub.c for builds without CUDA: there are no devices then.
 *
 * Functions return 0 or a code of the runtime, for which device_error has a sentence. They act on the device that the calling
 * thread selected last, except where a device is named. A stream is in order; a function that takes one returns before its
 * work is done, and memory of the host that takes part in a copy must be pinned (device_host_alloc) and stay until then.
 * An address names one place of one device or of the host in all functions and kernels (unified addresses).
 */
#ifndef TESS_DEVICE_H
#define TESS_DEVICE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    char name[128];
    uint64_t mem_total, mem_free; /* bytes */
    uint32_t major, minor;        /* compute capability */
    uint32_t n_sms;
} device_props;

bool device_built(void);                    /* compiled with CUDA */
int device_count(uint32_t *n);              /* 0 devices and a code where there is no driver */
int device_get(uint32_t device, device_props *out); /* selects the device */
int device_select(uint32_t device);
const char *device_error(int code);         /* static text */
/* Whether the device still answers: after a failed kernel it may be lost for the process. Clears what can be cleared. */
bool device_usable(uint32_t device);

int device_alloc(void **p, size_t n);       /* 256-byte aligned; *p = NULL on failure */
void device_free(void *p);                  /* NULL is fine; waits until the device is idle */
int device_host_alloc(void **p, size_t n);  /* pinned memory of the host, which kernels of all devices may use as well */
void device_host_free(void *p);

int device_stream_open(void **stream);
void device_stream_close(void *stream);     /* NULL is fine */
int device_stream_sync(void *stream);       /* waits; a failure of anything before it shows here at the latest */
/* From and to any device or the host. Not before `stream` has reached this point; finished before its next operation. */
int device_copy(void *dst, const void *src, size_t n, void *stream);
/* rows pieces of `width` bytes, dst_stride and src_stride bytes from one to the next. */
int device_copy_rows(void *dst, size_t dst_stride, const void *src, size_t src_stride, size_t width, size_t rows, void *stream);
int device_fill(void *p, int byte, size_t n, void *stream);

int device_event_open(void **event);
void device_event_close(void *event);       /* NULL is fine */
int device_event_record(void *event, void *stream);
int device_event_wait(void *event, void *stream); /* the stream, also of another device, waits for what was recorded */
int device_event_sync(void *event);               /* the calling thread does */

/* From begin on, what is put into the stream does not run but becomes a graph. After the end the stream is
 * as it was; *graph = NULL on failure. Meanwhile this thread neither waits nor allocates. */
int device_capture_begin(void *stream);
int device_capture_end(void *stream, void **graph);
int device_graph_launch(void *graph, void *stream); /* all of it, in its order, with the arguments that it was recorded with */
void device_graph_close(void *graph);               /* NULL is fine; it must not be running */

/* Kernels of `device` may use memory of `peer` after device_peer_enable (twice is fine). */
bool device_peer_possible(uint32_t device, uint32_t peer);
int device_peer_enable(uint32_t device, uint32_t peer); /* selects the device */

#ifdef __cplusplus
}
#endif
#endif
