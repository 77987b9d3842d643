/*
 * cuda_stub.c - device.h, cuda_ops.h, comm_ops.h and best_ops.h of builds without CUDA: there are no devices, and whoever asks
 * for one is told so before anything is read. Every function that would need a device fails. Not compiled when kernels/cuda/ is.
 */
#include "best_ops.h"
#include "comm_ops.h"
#include "cuda_ops.h"
#include "device.h"

enum { NO_CUDA = 1 };

bool device_built(void) { return false; }
const char *device_error(int code) { return code ? "this program was built without CUDA" : "no error"; }
int device_count(uint32_t *n) { return *n = 0, NO_CUDA; }
int device_get(uint32_t device, device_props *out) { return UNUSED(device), *out = (device_props){0}, NO_CUDA; }
int device_select(uint32_t device) { return UNUSED(device), NO_CUDA; }
bool device_usable(uint32_t device) { return UNUSED(device), false; }

int device_alloc(void **p, size_t n) { return UNUSED(n), *p = NULL, NO_CUDA; }
void device_free(void *p) { UNUSED(p); }
int device_host_alloc(void **p, size_t n) { return UNUSED(n), *p = NULL, NO_CUDA; }
void device_host_free(void *p) { UNUSED(p); }

int device_stream_open(void **stream) { return *stream = NULL, NO_CUDA; }
void device_stream_close(void *stream) { UNUSED(stream); }
int device_stream_sync(void *stream) { return UNUSED(stream), NO_CUDA; }
int device_copy(void *dst, const void *src, size_t n, void *stream)
{
    return UNUSED(dst), UNUSED(src), UNUSED(n), UNUSED(stream), NO_CUDA;
}
int device_copy_rows(void *dst, size_t dst_stride, const void *src, size_t src_stride, size_t width, size_t rows, void *stream)
{
    UNUSED(dst_stride), UNUSED(src_stride), UNUSED(rows);
    return device_copy(dst, src, width, stream);
}
int device_fill(void *p, int byte, size_t n, void *stream) { return UNUSED(byte), device_copy(p, NULL, n, stream); }

int device_event_open(void **event) { return *event = NULL, NO_CUDA; }
void device_event_close(void *event) { UNUSED(event); }
int device_event_record(void *event, void *stream) { return UNUSED(event), UNUSED(stream), NO_CUDA; }
int device_event_wait(void *event, void *stream) { return UNUSED(event), UNUSED(stream), NO_CUDA; }
int device_event_sync(void *event) { return UNUSED(event), NO_CUDA; }

int device_capture_begin(void *stream) { return UNUSED(stream), NO_CUDA; }
int device_capture_end(void *stream, void **graph) { return UNUSED(stream), *graph = NULL, NO_CUDA; }
int device_graph_launch(void *graph, void *stream) { return UNUSED(graph), UNUSED(stream), NO_CUDA; }
void device_graph_close(void *graph) { UNUSED(graph); }

bool device_peer_possible(uint32_t device, uint32_t peer) { return UNUSED(device), UNUSED(peer), false; }
int device_peer_enable(uint32_t device, uint32_t peer) { return UNUSED(device), UNUSED(peer), NO_CUDA; }

const op_cuda_table *op_cuda_get(void) { return NULL; }
int op_cuda_load(void) { return NO_CUDA; }
size_t op_cuda_attn_scratch(uint32_t n_tokens, uint32_t n_heads, uint32_t v_dim, uint32_t max_pos)
{
    return UNUSED(n_tokens), UNUSED(n_heads), UNUSED(v_dim), UNUSED(max_pos), 0;
}
uint32_t op_cuda_gemm_from(uint32_t dtype) { return UNUSED(dtype), UINT32_MAX; }
bool op_cuda_gemm_wide(void) { return false; }
size_t op_cuda_gemm_scratch(const op_weight *w, uint32_t n_tokens) { return UNUSED(w), UNUSED(n_tokens), 0; }

int best_of_leaves(const best_args *a, void *stream) { return UNUSED(a), UNUSED(stream), NO_CUDA; }
int comm_flags(const comm_flags_args *a, void *stream) { return UNUSED(a), UNUSED(stream), NO_CUDA; }
int comm_write_pattern(uint32_t *dst, uint32_t n, uint32_t seed, void *stream)
{
    return UNUSED(dst), UNUSED(n), UNUSED(seed), UNUSED(stream), NO_CUDA;
}
int comm_copy_words(uint32_t *dst, const uint32_t *src, uint32_t n, void *stream)
{
    return UNUSED(dst), UNUSED(src), UNUSED(n), UNUSED(stream), NO_CUDA;
}
