/*
 * emu.h - inside the emulator: CUDA's runtime and devices on one CPU thread, for tests.
 *
 * Every CUDA thread is a fiber with a stack of its own; all devices, blocks and fibers live in one scheduler, which the host thread
 * that waits for something drives (emu_drive). So a run repeats exactly from its seed (several threads: host.cc). The order is random and unfair on
 * purpose: warps starve, blocks are left early, devices are slow for a while.
 *   fiber.cc   stacks and the switch                         sched.cc  blocks, barriers, polls, virtual time, hangs
 *   warp.cc    warp operations, mma, cp.async: ptx.cuh       mem.cc    arenas, allocations, faults
 *   ops.cc     what streams hold: launches, copies, events   host.cc   cudaXxx: devices, memory, streams, graphs
 *   report.cc  seed, settings, reports                       check.cc  the checked build: every access of a kernel
 *
 * Addresses. Arena i is 64 GiB at ARENA_BASE + (i << 36): devices 0 to 7, then pinned host memory, shared memory, stacks.
 * Allocations end at a closed page (up to 255 bytes of slack, as they are aligned to 256), are filled with 0xff, and are
 * never used again once freed. Device memory is closed (PROT_NONE) to whom it does not belong: each first access of a
 * view (a device, or the host: -1) to an allocation faults, and mem.cc opens it or reports. Copies use a second mapping.
 *
 * Order of events for the checked build: a task is an operation of a stream and has a vector clock over stream slots.
 */
#ifndef CUEMU_EMU_H
#define CUEMU_EMU_H

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuemu.h"
#include "cuemu_api.h"
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

enum {
    EMU_DEVICES = 8, EMU_PINNED = 8, EMU_SHARED = 9, EMU_STACKS = 10, EMU_ARENAS = 11,
    EMU_SLOTS = 64,               /* stream slots of vector clocks; slot 0 is the host */
    EMU_PAGE = 4096, EMU_STACK = 64 << 10, EMU_STACK_STRIDE = 128 << 10,
    EMU_STATIC_SHARED = 48 << 10, EMU_MAX_SHARED = 99 << 10, EMU_MAX_SHARED_90 = 227 << 10, EMU_SHARED_STRIDE = 512 << 10, EMU_MAX_THREADS = 1024,
    EMU_DEVICE_THREADS = 2048,    /* resident on a device */
    EMU_POLLS = 4
};
static const uintptr_t ARENA_BASE = 0x200000000000u, ARENA_SIZE = (uintptr_t)1 << 36;
static inline uintptr_t arena_at(int i) { return ARENA_BASE + (uintptr_t)i * ARENA_SIZE; }
static inline int arena_of(uintptr_t a) /* -1: none of ours */
{
    return a >= ARENA_BASE && a < ARENA_BASE + EMU_ARENAS * ARENA_SIZE ? (int)((a - ARENA_BASE) / ARENA_SIZE) : -1;
}

struct emu_alloc {
    uintptr_t at;
    size_t size;      /* asked for */
    size_t span;      /* whole pages, without the closed one */
    uintptr_t base;   /* of the pages */
    int arena;
    bool live, open;  /* open: the present view may use it */
};

struct emu_launch;
struct emu_stack;
struct emu_block;
struct check_know;

enum emu_state : uint8_t { T_NEW, T_READY, T_BARRIER, T_WARP, T_DONE };

struct emu_cp { char *dst; const char *src; uint32_t size, n; bool late; int group; };

/* A wgmma under way. */
struct emu_wgmma { void *d; wgmma_cores a, b; const char *site; int group; };

struct emu_thread {
    void *sp;
    emu_stack *stack;
    emu_block *block;
    uint3 tid;
    uint16_t index;                /* in the block; lane = index % 32 */
    emu_state state;
    bool polling;                  /* left at a poll */
    const char *site;              /* of the barrier or warp operation that it waits in */
    int result;
    const cuemu_warp_args *warp;
    const void *poll_at[EMU_POLLS], *last_poll; /* what it read lately, and where it stands */
    uint64_t poll_value[EMU_POLLS], last_value;
    unsigned n_polls;
    uint64_t peek_old;
    std::vector<emu_cp> *cp;       /* under way; NULL: none yet */
    int cp_group;
    bool unseen;                   /* it brought something into shared memory that wgmma might not see yet */
    std::vector<emu_wgmma> *wgmma; /* under way; NULL: none yet */
    int wgmma_group;
    /* check.cc */
    uint16_t sub, warp_sub, fence_epoch, fence_sub;
    bool fenced;
    std::shared_ptr<check_know> know, pending, acquired;
    /* a plain store to a peer that a fault takes back, or the turned bit of a load */
    void *undo_at;
    unsigned undo_size;
    uint8_t undo[16];
};

/* Lanes of a warp that wait in one operation; mask: all that it wants. */
struct emu_group { uint32_t mask, arrived; int op; const char *site; };

struct emu_site { const void *site; char *at; size_t size; const char *name; };

struct emu_block {
    std::shared_ptr<emu_launch> launch;
    uint3 idx;
    unsigned n, n_done, n_waiting, n_warps;
    std::vector<emu_thread> threads;
    uint32_t ready[EMU_MAX_THREADS / 32]; /* lanes that may run, by warp */
    uint32_t ready_warps, starved;
    uint32_t stopped[EMU_MAX_THREADS / 32]; /* lanes that have ended or wait at the barrier, by warp */
    std::vector<emu_group> groups[EMU_MAX_THREADS / 32];
    int sync_op, count, leave;    /* of a barrier's predicates; how early the block is left: 0 never .. 3 */
    bool unseen;                  /* by wgmma: what some thread brought before the last barrier */
    int shared_slot;
    char *static_at, *dyn_at;
    size_t static_used;
    std::vector<emu_site> sites;
    const char *site;
    /* check.cc */
    uint32_t uid, epoch;
    std::shared_ptr<check_know> know;
};

struct emu_op;
typedef std::shared_ptr<emu_op> emu_op_ref;

struct emu_launch {
    std::string name;
    const char *site;
    void (*call)(const void *fn, const void *args);
    const void *fn;
    std::vector<char> args;
    dim3 grid, block;
    size_t smem;
    bool cooperative, killed;
    cudaError_t code;             /* why it was killed */
    int device;
    uint64_t n_blocks, next, n_done, start; /* start: not before this time */
    std::vector<uint32_t> window; /* blocks that may come next */
    unsigned resident;
    emu_op *op;
    uint32_t uid;                 /* check.cc: its place in the table of launches */
};

enum emu_kind { OP_NOP, OP_LAUNCH, OP_COPY, OP_FILL, OP_GRAPH, OP_HOST };

/* What a stream holds. Done when it and all before it in its stream are. */
struct emu_op {
    emu_kind kind;
    int device;
    bool started, done;
    cudaError_t error;
    std::vector<emu_op_ref> after; /* besides the one before it in the stream */
    std::shared_ptr<emu_launch> launch;
    char *dst;
    const char *src;
    size_t dst_stride, src_stride, width, rows;
    int byte;
    std::vector<char> staged;      /* pageable source, read at the call */
    cudaHostFn_t host_fn;
    void *host_arg;
    cudaGraphExec_t graph;
    size_t parts_left;             /* of a graph: nodes that are not done */
    emu_op_ref parent;             /* the graph of a node */
    double time_ms;
    /* check.cc: its number, and what happened before it; when it is done, before its end */
    uint32_t slot, seq, uid;
    std::shared_ptr<check_know> know;
};

struct CUstream_st {
    int device, slot;
    bool hidden;                   /* of a graph's nodes */
    std::deque<emu_op_ref> queue;
    emu_op_ref last;               /* newest, done or not */
    CUgraph_st *capture;
    bool capture_origin;
    size_t capture_tail;           /* node + 1 in the graph, 0: none */
    std::vector<size_t> capture_deps;
};

struct CUevent_st {
    int device;
    emu_op_ref op;
    CUgraph_st *capture;
    size_t node;
};

struct emu_node { emu_op_ref op; std::vector<size_t> after; };
struct CUgraph_st { std::vector<emu_node> nodes; };
struct CUgraphExec_st { std::vector<emu_node> nodes; };

struct emu_device {
    cudaError_t sticky;
    uint32_t peers;                /* bit d: kernels here may use the memory of d */
    size_t used;
    unsigned threads;              /* resident */
    std::vector<std::shared_ptr<emu_launch>> launches;
    std::vector<emu_block *> blocks;
    uint64_t delay;
    bool slow;
};

struct emu_settings {
    int devices, sms, watchdog, capability, fail_on; /* fail_on: whose launches count for fail_launch; -1: all */
    size_t memory;
    bool peer_possible, quiet, loose, bad_wgmma;
    unsigned fail_alloc, fail_launch, fail_copy, peer_fault_n, queue;
    cuemu_peer_fault peer_fault;
};

struct emu_state_all {
    uint64_t seed, random, now;    /* now: virtual nanoseconds */
    uint64_t events, idle, jump, waited; /* progress made; polls in vain since; next step of time; time jumped since */
    uint64_t switches, n_allocs, n_launches, n_waits, n_wgmmas;
    emu_settings set;
    emu_device device[EMU_DEVICES];
    std::vector<CUstream_st *> streams;
    emu_thread *cur;
    void *main_sp;
    int view;                      /* whose accesses are open: a device, -1 the host */
    std::vector<std::pair<const void *, size_t>> smem_allowed; /* dynamic shared memory of kernels that asked */
    unsigned reports;
    std::string first_report;
};
extern emu_state_all emu;
static inline int emu_max_shared(void) { return emu.set.capability >= 90 ? EMU_MAX_SHARED_90 : EMU_MAX_SHARED; } /* of a block */

/* report.cc */
void emu_start(void);              /* once: settings, arenas */
uint64_t emu_random(void);
static inline bool emu_same_site(const char *a, const char *b) { return a == b || strcmp(a, b) == 0; }
static inline uint32_t emu_below(uint32_t n) { return (uint32_t)((emu_random() >> 32) * n >> 32); }
void emu_report(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* adds place and seed */
std::string emu_where(const emu_thread *t);
/* A report about the running thread; ends its launch and does not come back. */
void emu_fail(cudaError_t code, const char *fmt, ...) __attribute__((format(printf, 2, 3), noreturn));
bool emu_peer_fault_hits(bool load); /* counts one peer write, or load */

/* fiber.cc */
/* Whether the caller is a CUDA thread. emu.cur says so of the OS thread that drives alone: others may be in host code of a .cu file. */
static inline bool emu_on_fiber(void) { return arena_of((uintptr_t)__builtin_frame_address(0)) == EMU_STACKS; }
void emu_enter(emu_thread *t);     /* runs t until it waits or ends */
void emu_leave(void);              /* the running thread waits */
void emu_abandon(void) __attribute__((noreturn)); /* the running thread is never continued */
void emu_stack_drop(emu_thread *t); /* gives back the stack of a thread that is not running */
bool emu_stack_has(const emu_thread *t, uintptr_t a);
bool emu_stack_guard(uintptr_t a); /* below a stack */
uintptr_t emu_stack_top(const emu_thread *t);

/* sched.cc */
bool emu_drive(bool (*done)(void *), void *arg); /* false: nothing can go on */
bool emu_slice(void);
void emu_kill(const std::shared_ptr<emu_launch> &l, cudaError_t code);
void emu_poll(const void *at, uint64_t value);   /* the running thread read a flag */
void emu_event(void);
void emu_launch_start(const std::shared_ptr<emu_launch> &l);
void emu_ready(emu_thread *t);
void emu_wait(emu_state state, const char *site);
int emu_max_resident(unsigned threads, size_t smem);

/* warp.cc */
void emu_warp_run(emu_thread **lanes, uint32_t mask);
void emu_cp_finish(emu_thread *t, int groups);

/* mem.cc */
void emu_mem_init(void);
void emu_mem_reset(void);
void emu_handlers(void);           /* SIGSEGV, SIGALRM and their stack for this OS thread */
void emu_view(int view);
emu_alloc *emu_find(uintptr_t a);  /* live or freed allocation that a belongs to, or its closed page */
cudaError_t emu_malloc(int arena, size_t size, void **out);
cudaError_t emu_release(int arena, void *p);
char *emu_alias(const void *p);    /* address for the copy engine */
std::string emu_describe(uintptr_t a, int view);
int emu_shared_slot(void);
void emu_shared_return(int slot);
void emu_watchdog(bool on);
size_t emu_live_bytes(void);

/* ops.cc */
emu_op_ref emu_op_new(emu_kind kind, int device);
cudaError_t emu_submit(CUstream_st *s, const emu_op_ref &op);
bool emu_ops_start(void);          /* starts one operation that may start; false: none */
void emu_op_finish(emu_op *op, cudaError_t e);
void emu_copy_now(emu_op *op);
void emu_fill_now(emu_op *op);
bool emu_ops_pending(int device);  /* -1: any */
uint64_t emu_ops_next_start(void); /* of delayed launches; 0: none */
void emu_fail_device(int device, cudaError_t code);

/* check.cc; empty in the fast build */
void check_init(void);
void check_reset(void);
void check_alloc(const emu_alloc *a);
void check_free(const emu_alloc *a);
void check_block_start(emu_block *b);
void check_block_end(emu_block *b);
void check_shared(emu_block *b, char *at, size_t size);
void check_barrier(emu_block *b);
void check_syncwarp(emu_thread **lanes, uint32_t mask);
void check_access(const void *p, unsigned size, bool write, bool atomic);
void check_acquire(const void *p, bool relaxed);
void check_release(const void *p, bool relaxed, bool rmw);
void check_fence(void);
void check_host_copy(emu_op *op);  /* a copy or fill is about to run */
void check_submit(CUstream_st *s, emu_op *op);
void check_op_start(emu_op *op);
void check_op_done(emu_op *op);
void check_host_wait(const emu_op *op);
void check_node(emu_op *node);     /* of a graph that starts */
void check_cp(const emu_cp *c, bool issue);
void check_settle(emu_thread *t);  /* takes back a store that a peer fault hits, and what a load met */

#endif
