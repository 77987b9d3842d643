/*
 * ops.cc - what streams hold. An operation may start when it is the first of its stream and all in `after` are done (events,
 * edges of graphs). Which of those that may start does so, and when, is drawn; copies run in one piece, on the second mapping.
 * A graph is one operation whose nodes run in hidden streams, one a node, ordered by their edges alone.
 */
#include "emu.h"

#include <algorithm>
#include <string.h>

emu_op_ref emu_op_new(emu_kind kind, int device)
{
    emu_op_ref op = std::make_shared<emu_op>();
    op->kind = kind;
    op->device = device;
    return op;
}

void emu_fail_device(int device, cudaError_t code)
{
    if (code != cudaSuccess && emu.device[device].sticky == cudaSuccess) emu.device[device].sticky = code;
}

/* While a stream is captured, what it is given becomes a node behind its last one. */
static void capture_node(CUstream_st *s, const emu_op_ref &op)
{
    emu_node n = {op, s->capture_deps};
    if (s->capture_tail) n.after.push_back(s->capture_tail - 1);
    s->capture->nodes.push_back(n);
    s->capture_tail = s->capture->nodes.size();
    s->capture_deps.clear();
}

static bool has_room(void *stream)
{
    CUstream_st *s = static_cast<CUstream_st *>(stream);
    while (!s->queue.empty() && s->queue.front()->done) s->queue.pop_front();
    return s->queue.size() < emu.set.queue;
}

cudaError_t emu_submit(CUstream_st *s, const emu_op_ref &op)
{
    if (s->capture) {
        capture_node(s, op);
        return cudaSuccess;
    }
    if (emu.set.queue && !emu_drive(has_room, s)) return cudaErrorUnknown;
    check_submit(s, op.get());
    s->queue.push_back(op);
    s->last = op;
    return cudaSuccess;
}

static emu_op_ref op_copy(const emu_op &from)
{
    emu_op_ref op = std::make_shared<emu_op>(from);
    if (from.launch) {
        op->launch = std::make_shared<emu_launch>(*from.launch);
        op->launch->op = op.get();
    }
    return op;
}

static void graph_start(const emu_op_ref &g)
{
    std::vector<emu_op_ref> made;
    g->parts_left = g->graph->nodes.size();
    for (const emu_node &n : g->graph->nodes) {
        emu_op_ref op = op_copy(*n.op);
        for (size_t i : n.after) op->after.push_back(made[i]);
        op->parent = g;
        made.push_back(op);
        CUstream_st *s = new CUstream_st();
        s->device = op->device;
        s->hidden = true;
        check_node(op.get());
        s->queue.push_back(op);
        emu.streams.push_back(s);
    }
    if (!g->parts_left) emu_op_finish(g.get(), cudaSuccess);
}

void emu_op_finish(emu_op *op, cudaError_t e)
{
    op->done = true;
    op->error = e;
    op->time_ms = (double)emu.now * 1e-6;
    check_op_done(op);
    emu_event();
    const emu_op_ref parent = op->parent;
    op->parent.reset();
    op->launch.reset();
    if (parent) {
        if (parent->error == cudaSuccess) parent->error = e;
        if (--parent->parts_left == 0) emu_op_finish(parent.get(), parent->error);
    }
}

/* ---- copies ---- */
/* A copy from one device to another that the set fault mangles. */
static void row_copy(const emu_op *op, char *dst, const char *src)
{
    const int to = arena_of((uintptr_t)dst), from = arena_of((uintptr_t)src);
    const bool peers = to >= 0 && to < EMU_DEVICES && from >= 0 && from < EMU_DEVICES && to != from;
    const cuemu_peer_fault fault = peers && emu_peer_fault_hits(false) ? emu.set.peer_fault : CUEMU_PEER_OK;
    if (fault == CUEMU_PEER_DROP) return;
    memmove(emu_alias(dst), emu_alias(src), op->width);
    if (fault == CUEMU_PEER_ZERO) memset(emu_alias(dst), 0, op->width);
    if (fault == CUEMU_PEER_FLIP) emu_alias(dst)[op->width / 2] ^= 4;
}

static bool range_ok(const void *p, size_t n, const char *what)
{
    const uintptr_t at = (uintptr_t)p;
    const emu_alloc *a = emu_find(at);
    if (arena_of(at) < 0) return true;
    if (a && a->live && at >= a->at && n <= a->size && at - a->at <= a->size - n) return true;
    emu_report("copy engine: %s of %zu bytes at 0x%llx: %s", what, n, (unsigned long long)at, emu_describe(at, arena_of(at)).c_str());
    return false;
}

void emu_copy_now(emu_op *op)
{
    const char *src = op->staged.empty() ? op->src : op->staged.data();
    check_host_copy(op);
    for (size_t i = 0; i < op->rows; i++) {
        char *d = op->dst + i * op->dst_stride;
        const char *s = src + i * op->src_stride;
        if (!range_ok(d, op->width, "write") || !range_ok(s, op->width, "read")) {
            emu_fail_device(op->device, cudaErrorIllegalAddress);
            op->error = cudaErrorIllegalAddress;
            return;
        }
        row_copy(op, d, s);
    }
}

void emu_fill_now(emu_op *op)
{
    check_host_copy(op);
    if (range_ok(op->dst, op->width, "fill")) {
        memset(emu_alias(op->dst), op->byte, op->width);
        return;
    }
    emu_fail_device(op->device, cudaErrorIllegalAddress);
    op->error = cudaErrorIllegalAddress;
}

/* ---- starting ---- */
static bool may_start(const emu_op *op)
{
    if (op->started) return false;
    for (const emu_op_ref &o : op->after)
        if (!o->done) return false;
    return true;
}

static void op_start(const emu_op_ref &op)
{
    op->started = true;
    check_op_start(op.get());
    op->after.clear();
    if (emu.device[op->device].sticky != cudaSuccess && op->kind != OP_NOP) {
        emu_op_finish(op.get(), emu.device[op->device].sticky);
        return;
    }
    switch (op->kind) {
    case OP_LAUNCH: emu_launch_start(op->launch); return;
    case OP_GRAPH: graph_start(op); return;
    case OP_COPY: emu_copy_now(op.get()); break;
    case OP_FILL: emu_fill_now(op.get()); break;
    case OP_HOST:
        emu_view(-1);
        op->host_fn(op->host_arg);
        break;
    case OP_NOP: break;
    }
    emu_op_finish(op.get(), op->error);
}

/* Forgets operations that are done, and hidden streams that have none left. */
static void streams_trim(void)
{
    for (size_t i = emu.streams.size(); i-- > 0;) {
        CUstream_st *s = emu.streams[i];
        while (!s->queue.empty() && s->queue.front()->done) s->queue.pop_front();
        if (!s->hidden || !s->queue.empty()) continue;
        emu.streams[i] = emu.streams.back();
        emu.streams.pop_back();
        delete s;
    }
}

bool emu_ops_start(void)
{
    streams_trim();
    const size_t n = emu.streams.size(), first = n ? emu_below((uint32_t)n) : 0;
    for (size_t i = 0; i < n; i++) {
        CUstream_st *s = emu.streams[(first + i) % n];
        if (s->queue.empty() || !may_start(s->queue.front().get())) continue;
        const emu_op_ref op = s->queue.front();
        op_start(op);
        return true;
    }
    return false;
}

bool emu_ops_pending(int device)
{
    streams_trim();
    for (const CUstream_st *s : emu.streams)
        if ((device < 0 || s->device == device) && !s->queue.empty()) return true;
    return false;
}

uint64_t emu_ops_next_start(void)
{
    uint64_t next = 0;
    for (const emu_device &d : emu.device)
        for (const std::shared_ptr<emu_launch> &l : d.launches)
            if (l->start > emu.now && (!next || l->start < next)) next = l->start;
    return next;
}
