/*
 * host.cc - the functions of cuda_runtime_api.h that the project calls. What is missing here is a link error.
 *
 * Several host threads may call; one at a time does. Whoever waits drives the scheduler; the others wait for it. Calls draw nothing, and
 * streams keep their operations apart: as long as threads give to different streams and nobody waits before all was given, a
 * run repeats from its seed whichever of them came first. A full queue (CUEMU_QUEUE) makes threads wait earlier, and then it does not.
 * The default stream takes no launches and no asynchronous copies: own, non-blocking streams only.
 */
#include "emu.h"

#include <mutex>
#include <stdio.h>
#include <string.h>
#undef cudaLaunchCooperativeKernel
#undef cudaFuncSetAttribute
#undef cudaOccupancyMaxActiveBlocksPerMultiprocessor

static std::recursive_mutex lock;
struct guard {
    guard() { lock.lock(), emu_start(); }
    ~guard() { lock.unlock(); }
    guard(const guard &) = delete;
    guard &operator=(const guard &) = delete;
};

static thread_local int current;
static thread_local cudaError_t last_error;

static cudaError_t give(cudaError_t e)
{
    if (e != cudaSuccess) last_error = e;
    return e;
}
static cudaError_t sticky(void) { return emu.device[current].sticky; }

/* Every call but the simplest: no device, or one that failed, refuses. */
static cudaError_t usable(void)
{
    if (emu.cur) emu_fail(cudaErrorNotSupported, "a kernel calls the host's functions");
    if (emu.set.devices == 0) return cudaErrorNoDevice;
    return sticky();
}

#define ENTER() \
    guard held; \
    { \
        const cudaError_t refused = usable(); \
        if (refused != cudaSuccess) return give(refused); \
    }

/* ---- waiting ---- */
static bool op_is_done(void *op) { return static_cast<emu_op *>(op)->done; }
static bool device_is_idle(void *device) { return !emu_ops_pending(*static_cast<int *>(device)); }

static cudaError_t wait_op(const emu_op_ref &op)
{
    emu.n_waits++;
    if (!op) return sticky();
    if (!emu_drive(op_is_done, op.get())) return cudaErrorUnknown;
    check_host_wait(op.get());
    if (op->error != cudaSuccess) return op->error;
    return emu.device[op->device].sticky;
}

static cudaError_t wait_device(int device)
{
    emu.n_waits++;
    if (!emu_drive(device_is_idle, &device)) return cudaErrorUnknown;
    for (CUstream_st *s : emu.streams)
        if (s->device == device && s->last) check_host_wait(s->last.get());
    return emu.device[device].sticky;
}

/* Counts a launch for the fault that is set. */
static bool launch_fails(const CUstream_st *s)
{
    const bool counts = emu.set.fail_launch && (emu.set.fail_on < 0 || (s && s->device == emu.set.fail_on));
    return counts && --emu.set.fail_launch == 0;
}

/* ---- devices ---- */
extern "C" {

cudaError_t cudaGetDeviceCount(int *count)
{
    guard held;
    *count = emu.set.devices;
    return emu.set.devices ? cudaSuccess : give(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device)
{
    guard held;
    if (device < 0 || device >= emu.set.devices) return give(emu.set.devices ? cudaErrorInvalidDevice : cudaErrorNoDevice);
    current = device;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device)
{
    *device = current;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    guard held;
    if (device < 0 || device >= emu.set.devices) return give(cudaErrorInvalidDevice);
    memset(static_cast<void *>(p), 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "cuemu %d", device);
    p->totalGlobalMem = emu.set.memory;
    p->sharedMemPerBlock = EMU_STATIC_SHARED;
    p->sharedMemPerBlockOptin = (size_t)emu_max_shared();
    p->warpSize = 32;
    p->maxThreadsPerBlock = EMU_MAX_THREADS;
    p->multiProcessorCount = emu.set.sms;
    p->major = emu.set.capability / 10;
    p->minor = emu.set.capability % 10;
    p->cooperativeLaunch = 1;
    p->unifiedAddressing = 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int device)
{
    guard held;
    if (device < 0 || device >= emu.set.devices) return give(cudaErrorInvalidDevice);
    switch (attr) {
    case cudaDevAttrMultiProcessorCount: *value = emu.set.sms; break;
    case cudaDevAttrComputeCapabilityMajor: *value = emu.set.capability / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = emu.set.capability % 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = EMU_STATIC_SHARED; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = emu_max_shared(); break;
    case cudaDevAttrMaxThreadsPerBlock: *value = EMU_MAX_THREADS; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    case cudaDevAttrUnifiedAddressing: *value = 1; break;
    default: return give(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *v) { return *v = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { return *v = 13000, cudaSuccess; }

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    guard held;
    if (device < 0 || device >= emu.set.devices || peer < 0 || peer >= emu.set.devices) return give(cudaErrorInvalidDevice);
    *can = emu.set.peer_possible && device != peer;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    ENTER();
    if (peer < 0 || peer >= emu.set.devices || peer == current) return give(cudaErrorInvalidDevice);
    if (flags) return give(cudaErrorInvalidValue);
    if (!emu.set.peer_possible) return give(cudaErrorPeerAccessUnsupported);
    if (emu.device[current].peers >> peer & 1) return give(cudaErrorPeerAccessAlreadyEnabled);
    emu.device[current].peers |= 1u << peer;
    return cudaSuccess;
}
cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    ENTER();
    if (peer < 0 || peer >= EMU_DEVICES || !(emu.device[current].peers >> peer & 1)) return give(cudaErrorPeerAccessNotEnabled);
    emu.device[current].peers &= ~(1u << peer);
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void)
{
    ENTER();
    return give(wait_device(current));
}
/* Forgets a sticky error; memory stays (a real reset frees it). */
cudaError_t cudaDeviceReset(void)
{
    guard held;
    emu.device[current].sticky = cudaSuccess;
    return last_error = cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    ENTER();
    *total = emu.set.memory;
    *free_bytes = emu.set.memory - emu.device[current].used;
    return cudaSuccess;
}

/* ---- errors ---- */
cudaError_t cudaGetLastError(void)
{
    guard held;
    const cudaError_t e = sticky() != cudaSuccess ? sticky() : last_error;
    last_error = cudaSuccess;
    return e;
}
cudaError_t cudaPeekAtLastError(void)
{
    guard held;
    return sticky() != cudaSuccess ? sticky() : last_error;
}

static const struct { cudaError_t code; const char *name, *text; } errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {cudaErrorCooperativeLaunchTooLarge, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};
const char *cudaGetErrorName(cudaError_t e)
{
    for (const auto &i : errors)
        if (i.code == e) return i.name;
    return "cudaErrorUnknown";
}
const char *cudaGetErrorString(cudaError_t e)
{
    for (const auto &i : errors)
        if (i.code == e) return i.text;
    return "unknown error";
}

/* ---- memory ---- */
cudaError_t cudaMalloc(void **p, size_t n)
{
    ENTER();
    return give(emu_malloc(current, n, p));
}
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags)
{
    (void)flags;
    ENTER();
    return give(emu_malloc(EMU_PINNED, n, p));
}
cudaError_t cudaMallocHost(void **p, size_t n) { return cudaHostAlloc(p, n, 0); }
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
    (void)flags;
    return *device = host, cudaSuccess;
}
/* Who frees pinned memory has to wait for the copies from and to it; that the real call happens to wait for them is said nowhere. */
static void copies_are_done(const emu_alloc *a)
{
    for (const CUstream_st *s : emu.streams)
        for (const emu_op_ref &op : s->queue) {
            if (op->done || (op->kind != OP_COPY && op->kind != OP_FILL) || !op->rows) continue;
            const uintptr_t d = (uintptr_t)op->dst, from = (uintptr_t)op->src, end = a->at + a->size;
            const bool reads = op->kind == OP_COPY && from < end && from + (op->rows - 1) * op->src_stride + op->width > a->at;
            const bool writes = d < end && d + (op->rows - 1) * op->dst_stride + op->width > a->at;
            if (reads || writes)
                emu_report("pinned memory of %zu bytes is freed while a copy of device %d still %s it", a->size, op->device, reads ? "reads" : "writes");
        }
}

/* Frees even on a device that failed; waits for its work, and of pinned memory for that of all devices, and keeps other threads out
 * meanwhile, as real ones have been seen to do. */
static cudaError_t release(int arena, void *p)
{
    guard held;
    if (!p) return cudaSuccess;
    const emu_alloc *a = emu_find((uintptr_t)p);
    int device = a && a->arena < EMU_DEVICES ? a->arena : -1;
    if (a && a->live && a->arena == EMU_PINNED) copies_are_done(a);
    emu_drive(device_is_idle, &device);
    const cudaError_t e = emu_release(arena, p);
    return give(e == cudaSuccess && device >= 0 ? emu.device[device].sticky : e);
}
cudaError_t cudaFree(void *p) { return release(0, p); }
cudaError_t cudaFreeHost(void *p) { return release(EMU_PINNED, p); }

static bool pageable(const void *p) { return arena_of((uintptr_t)p) < 0; }

static emu_op_ref copy_op(void *dst, size_t dst_stride, const void *src, size_t src_stride, size_t width, size_t rows)
{
    emu_op_ref op = emu_op_new(OP_COPY, current);
    op->dst = static_cast<char *>(dst);
    op->src = static_cast<const char *>(src);
    op->dst_stride = dst_stride;
    op->src_stride = src_stride;
    op->width = width;
    op->rows = rows;
    return op;
}

/* Pageable sources are read at the call and pageable targets are there at its end, as with the real runtime. */
static cudaError_t copy_async(const emu_op_ref &op, cudaStream_t stream)
{
    if (emu.set.fail_copy && --emu.set.fail_copy == 0) return cudaErrorLaunchFailure;
    if (!stream) {
        emu_report("an asynchronous copy in the default stream");
        return cudaErrorInvalidResourceHandle;
    }
    if (stream->capture && (pageable(op->src) || pageable(op->dst))) return cudaErrorStreamCaptureUnsupported;
    if (pageable(op->src) && op->rows) op->staged.assign(op->src, op->src + (op->rows - 1) * op->src_stride + op->width);
    const cudaError_t e = emu_submit(stream, op);
    return e == cudaSuccess && pageable(op->dst) ? wait_op(op) : e;
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    ENTER();
    return n ? give(copy_async(copy_op(dst, 0, src, 0, n, 1), stream)) : cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void *dst, int to, const void *src, int from, size_t n, cudaStream_t stream)
{
    (void)to, (void)from;
    return cudaMemcpyAsync(dst, src, n, cudaMemcpyDefault, stream);
}
cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_stride, const void *src, size_t src_stride, size_t width, size_t rows,
                              cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    ENTER();
    if (width > dst_stride || width > src_stride) return give(cudaErrorInvalidValue);
    return width && rows ? give(copy_async(copy_op(dst, dst_stride, src, src_stride, width, rows), stream)) : cudaSuccess;
}
/* In no order with non-blocking streams: it is done at once. */
cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, cudaMemcpyKind kind)
{
    (void)kind;
    ENTER();
    if (!n) return cudaSuccess;
    const emu_op_ref op = copy_op(dst, 0, src, 0, n, 1);
    check_submit(nullptr, op.get());
    emu_copy_now(op.get());
    check_op_done(op.get());
    check_host_wait(op.get());
    return give(op->error);
}
cudaError_t cudaMemsetAsync(void *p, int byte, size_t n, cudaStream_t stream)
{
    ENTER();
    if (!n) return cudaSuccess;
    if (!stream) return give(cudaErrorInvalidResourceHandle);
    const emu_op_ref op = emu_op_new(OP_FILL, current);
    op->dst = static_cast<char *>(p);
    op->byte = byte;
    op->width = n;
    op->rows = 1;
    return give(emu_submit(stream, op));
}
cudaError_t cudaMemset(void *p, int byte, size_t n)
{
    ENTER();
    if (!n) return cudaSuccess;
    const emu_op_ref op = emu_op_new(OP_FILL, current);
    op->dst = static_cast<char *>(p);
    op->byte = byte;
    op->width = n;
    op->rows = 1;
    check_submit(nullptr, op.get());
    emu_fill_now(op.get());
    check_op_done(op.get());
    check_host_wait(op.get());
    return give(op->error);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p)
{
    guard held;
    const int arena = arena_of((uintptr_t)p);
    memset(a, 0, sizeof *a);
    a->type = arena < 0 ? cudaMemoryTypeUnregistered : arena == EMU_PINNED ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    a->device = arena >= 0 && arena < EMU_DEVICES ? arena : 0;
    a->devicePointer = const_cast<void *>(p);
    return cudaSuccess;
}

/* ---- streams ---- */
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    static int made;
    ENTER();
    if (!(flags & cudaStreamNonBlocking)) {
        emu_report("a stream that is not cudaStreamNonBlocking");
        return give(cudaErrorInvalidValue);
    }
    CUstream_st *s = new CUstream_st();
    s->device = current;
    s->slot = 1 + made++ % (EMU_SLOTS - 1);
    emu.streams.push_back(s);
    *stream = s;
    return cudaSuccess;
}
static bool stream_is_empty(void *stream)
{
    const CUstream_st *s = static_cast<CUstream_st *>(stream);
    return s->queue.empty() || s->queue.back()->done;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    guard held;
    if (!stream) return give(cudaErrorInvalidResourceHandle);
    emu_drive(stream_is_empty, stream);
    for (size_t i = 0; i < emu.streams.size(); i++)
        if (emu.streams[i] == stream) emu.streams.erase(emu.streams.begin() + (long)i--);
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    ENTER();
    if (!stream) return give(cudaErrorInvalidResourceHandle);
    if (stream->capture) return give(cudaErrorStreamCaptureUnsupported);
    return give(wait_op(stream->last));
}
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    ENTER();
    if (!stream_is_empty(stream)) {
        emu_handlers();
        emu_slice();
        emu_view(-1);
    }
    if (!stream_is_empty(stream)) return cudaErrorNotReady;
    if (stream->last) check_host_wait(stream->last.get());
    return sticky();
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *arg)
{
    ENTER();
    const emu_op_ref op = emu_op_new(OP_HOST, current);
    op->host_fn = fn;
    op->host_arg = arg;
    return give(emu_submit(stream, op));
}

/* ---- events ---- */
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    ENTER();
    *event = new CUevent_st();
    (*event)->device = current;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    guard held;
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    ENTER();
    if (!event || !stream) return give(cudaErrorInvalidResourceHandle);
    const emu_op_ref op = emu_op_new(OP_NOP, stream->device);
    event->op = op;
    const cudaError_t e = emu_submit(stream, op);
    event->capture = stream->capture;
    event->node = stream->capture_tail;
    return give(e);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    ENTER();
    if (!event || !stream) return give(cudaErrorInvalidResourceHandle);
    if (!event->op) return cudaSuccess;
    if (event->capture) { /* the stream joins the capture */
        if (stream->capture && stream->capture != event->capture) return give(cudaErrorStreamCaptureUnsupported);
        stream->capture = event->capture;
        stream->capture_deps.push_back(event->node - 1);
        return cudaSuccess;
    }
    const emu_op_ref op = emu_op_new(OP_NOP, stream->device);
    op->after.push_back(event->op);
    return give(emu_submit(stream, op));
}
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    ENTER();
    return give(wait_op(event->op));
}
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    ENTER();
    if (!event->op) return sticky();
    if (!event->op->done) {
        emu_handlers();
        emu_slice();
        emu_view(-1);
    }
    if (!event->op->done) return cudaErrorNotReady;
    check_host_wait(event->op.get());
    return sticky();
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    ENTER();
    if (!from->op || !to->op || !from->op->done || !to->op->done) return give(cudaErrorNotReady);
    *ms = (float)(to->op->time_ms - from->op->time_ms);
    return cudaSuccess;
}

/* ---- graphs ---- */
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    (void)mode;
    ENTER();
    if (!stream || stream->capture) return give(cudaErrorStreamCaptureUnsupported);
    stream->capture = new CUgraph_st();
    stream->capture_origin = true;
    stream->capture_tail = 0;
    stream->capture_deps.clear();
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    ENTER();
    if (!stream || !stream->capture_origin) return give(cudaErrorStreamCaptureUnsupported);
    CUgraph_st *g = *graph = stream->capture;
    for (CUstream_st *s : emu.streams)
        if (s->capture == g) {
            s->capture = nullptr;
            s->capture_tail = 0;
            s->capture_deps.clear();
        }
    stream->capture_origin = false;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    ENTER();
    *exec = new CUgraphExec_st();
    (*exec)->nodes = graph->nodes;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    ENTER();
    if (!exec || !stream) return give(cudaErrorInvalidResourceHandle);
    emu.n_launches++;
    if (launch_fails(stream)) return give(cudaErrorLaunchFailure);
    const emu_op_ref op = emu_op_new(OP_GRAPH, stream->device);
    op->graph = exec;
    return give(emu_submit(stream, op));
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    guard held;
    int all = -1;
    emu_drive(device_is_idle, &all);
    delete exec;
    return cudaSuccess;
}

} /* extern "C" */

/* ---- launches ---- */
extern "C" cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *fn)
{
    ENTER();
    if (!fn) return give(cudaErrorInvalidDeviceFunction);
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = EMU_MAX_THREADS;
    return cudaSuccess;
}

cudaError_t cuemu_func_smem(const void *fn, int bytes)
{
    ENTER();
    if (bytes < 0 || bytes > emu_max_shared()) return give(cudaErrorInvalidValue);
    for (auto &i : emu.smem_allowed)
        if (i.first == fn) return i.second = (size_t)bytes, cudaSuccess;
    emu.smem_allowed.push_back({fn, (size_t)bytes});
    return cudaSuccess;
}

cudaError_t cuemu_occupancy(int *n, const void *fn, int threads, size_t smem)
{
    (void)fn;
    ENTER();
    *n = emu_max_resident((unsigned)threads, smem) / emu.set.sms;
    if (*n == 0) *n = 1;
    return cudaSuccess;
}

static cudaError_t launch_legal(const cuemu_kernel *k, dim3 g, dim3 b, size_t smem, cudaStream_t stream, bool cooperative)
{
    const uint64_t threads = (uint64_t)b.x * b.y * b.z, blocks = (uint64_t)g.x * g.y * g.z;
    size_t allowed = EMU_STATIC_SHARED;
    for (const auto &i : emu.smem_allowed)
        if (i.first == k->fn && i.second > allowed) allowed = i.second;
    if (!stream) {
        emu_report("launch of %s at %s in the default stream", k->name, k->site);
        return cudaErrorInvalidResourceHandle;
    }
    if (stream->device != current) {
        emu_report("launch of %s at %s in a stream of device %d while device %d is current", k->name, k->site, stream->device, current);
        return cudaErrorInvalidResourceHandle;
    }
    if (!threads || threads > EMU_MAX_THREADS || b.z > 64 || !blocks || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535 || smem > allowed)
        return cudaErrorInvalidConfiguration;
    if (threads % 32) {
        emu_report("launch of %s at %s with %llu threads: blocks are whole warps", k->name, k->site, (unsigned long long)threads);
        return cudaErrorInvalidConfiguration;
    }
    if (cooperative && blocks > (uint64_t)emu_max_resident((unsigned)threads, smem)) return cudaErrorCooperativeLaunchTooLarge;
    return cudaSuccess;
}

cudaError_t cuemu_launch(const cuemu_kernel *k, dim3 grid, dim3 block, size_t smem, cudaStream_t stream, bool cooperative)
{
    ENTER();
    emu.n_launches++;
    if (launch_fails(stream)) return give(cudaErrorLaunchFailure);
    const cudaError_t e = launch_legal(k, grid, block, smem, stream, cooperative);
    if (e != cudaSuccess) return give(e);
    const emu_op_ref op = emu_op_new(OP_LAUNCH, current);
    const std::shared_ptr<emu_launch> l = std::make_shared<emu_launch>();
    const char *name = k->name;
    l->name = name;
    l->site = k->site;
    l->call = k->call;
    l->fn = k->fn;
    l->args.assign(static_cast<const char *>(k->args), static_cast<const char *>(k->args) + k->args_size);
    l->grid = grid;
    l->block = block;
    l->smem = smem;
    l->cooperative = cooperative;
    l->device = current;
    l->n_blocks = (uint64_t)grid.x * grid.y * grid.z;
    l->op = op.get();
    op->launch = l;
    return give(emu_submit(stream, op));
}
