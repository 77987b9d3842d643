/* device.cu - device.h over the CUDA runtime. Host code only. */
#include <cuda_runtime.h>

#include "device.h"

bool device_built(void) { return true; }

int device_count(uint32_t *n)
{
    int count = 0;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e != cudaSuccess) (void)cudaGetLastError();
    *n = e == cudaSuccess ? (uint32_t)count : 0;
    return e;
}

int device_select(uint32_t device) { return cudaSetDevice((int)device); }

int device_get(uint32_t device, device_props *out)
{
    struct cudaDeviceProp p;
    size_t free_bytes = 0, total = 0;
    *out = {};
    cudaError_t e = cudaSetDevice((int)device);
    if (e == cudaSuccess) e = cudaGetDeviceProperties(&p, (int)device);
    if (e == cudaSuccess) e = cudaMemGetInfo(&free_bytes, &total);
    if (e != cudaSuccess) return e;
    for (size_t i = 0; i + 1 < sizeof out->name && p.name[i]; i++) out->name[i] = p.name[i];
    out->mem_total = total;
    out->mem_free = free_bytes;
    out->major = (uint32_t)p.major;
    out->minor = (uint32_t)p.minor;
    out->n_sms = (uint32_t)p.multiProcessorCount;
    return 0;
}

const char *device_error(int code) { return cudaGetErrorString((cudaError_t)code); }

bool device_usable(uint32_t device)
{
    bool ok = cudaSetDevice((int)device) == cudaSuccess;
    (void)cudaGetLastError();
    return ok && cudaDeviceSynchronize() == cudaSuccess && cudaGetLastError() == cudaSuccess;
}

int device_alloc(void **p, size_t n)
{
    *p = nullptr;
    cudaError_t e = cudaMalloc(p, n ? n : 1);
    if (e == cudaSuccess) return 0;
    (void)cudaGetLastError(); /* running out of memory is no reason to refuse the next call */
    *p = nullptr;
    return e;
}

void device_free(void *p)
{
    if (p) (void)cudaFree(p);
}

int device_host_alloc(void **p, size_t n)
{
    *p = nullptr;
    cudaError_t e = cudaHostAlloc(p, n ? n : 1, cudaHostAllocPortable | cudaHostAllocMapped);
    if (e == cudaSuccess) return 0;
    (void)cudaGetLastError();
    *p = nullptr;
    return e;
}

void device_host_free(void *p)
{
    if (p) (void)cudaFreeHost(p);
}

int device_stream_open(void **stream)
{
    cudaStream_t s = nullptr;
    cudaError_t e = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    *stream = e == cudaSuccess ? s : nullptr;
    return e;
}

void device_stream_close(void *stream)
{
    if (stream) (void)cudaStreamDestroy((cudaStream_t)stream);
}

int device_stream_sync(void *stream) { return cudaStreamSynchronize((cudaStream_t)stream); }

int device_copy(void *dst, const void *src, size_t n, void *stream)
{
    return n ? cudaMemcpyAsync(dst, src, n, cudaMemcpyDefault, (cudaStream_t)stream) : cudaSuccess;
}

int device_copy_rows(void *dst, size_t dst_stride, const void *src, size_t src_stride, size_t width, size_t rows, void *stream)
{
    if (width == 0 || rows == 0) return cudaSuccess;
    if (width == dst_stride && width == src_stride) return device_copy(dst, src, width * rows, stream);
    return cudaMemcpy2DAsync(dst, dst_stride, src, src_stride, width, rows, cudaMemcpyDefault, (cudaStream_t)stream);
}

int device_fill(void *p, int byte, size_t n, void *stream)
{
    return n ? cudaMemsetAsync(p, byte, n, (cudaStream_t)stream) : cudaSuccess;
}

int device_event_open(void **event)
{
    cudaEvent_t v = nullptr;
    cudaError_t e = cudaEventCreateWithFlags(&v, cudaEventDisableTiming);
    *event = e == cudaSuccess ? v : nullptr;
    return e;
}

void device_event_close(void *event)
{
    if (event) (void)cudaEventDestroy((cudaEvent_t)event);
}

int device_event_record(void *event, void *stream) { return cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream); }
int device_event_wait(void *event, void *stream) { return cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0); }
int device_event_sync(void *event) { return cudaEventSynchronize((cudaEvent_t)event); }

int device_capture_begin(void *stream) { return cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeThreadLocal); }

int device_capture_end(void *stream, void **graph)
{
    cudaGraph_t made = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaError_t e = cudaStreamEndCapture((cudaStream_t)stream, &made);
    if (e == cudaSuccess) e = cudaGraphInstantiate(&exec, made, 0);
    if (made) (void)cudaGraphDestroy(made);
    if (e != cudaSuccess) (void)cudaGetLastError(); /* what can not be recorded can still be launched */
    *graph = e == cudaSuccess ? exec : nullptr;
    return e;
}

int device_graph_launch(void *graph, void *stream) { return cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)stream); }

void device_graph_close(void *graph)
{
    if (graph) (void)cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

bool device_peer_possible(uint32_t device, uint32_t peer)
{
    int can = 0;
    cudaError_t e = cudaDeviceCanAccessPeer(&can, (int)device, (int)peer);
    if (e != cudaSuccess) (void)cudaGetLastError();
    return e == cudaSuccess && can != 0;
}

int device_peer_enable(uint32_t device, uint32_t peer)
{
    cudaError_t e = cudaSetDevice((int)device);
    if (e == cudaSuccess) e = cudaDeviceEnablePeerAccess((int)peer, 0);
    if (e != cudaSuccess) (void)cudaGetLastError();
    return e == cudaErrorPeerAccessAlreadyEnabled ? cudaSuccess : e;
}
