/*
 * check.cc - the checked build: kernels are compiled with clang -fsanitize=thread, whose library is not linked: the functions
 * that it calls for each load and store are here. Checked are bounds to the byte, freed and foreign memory, alignment,
 * reads of what nobody wrote, and races (check.h says how). Peer faults on plain stores are played here too: a store
 * is seen before it happens, so it is put right, or rather wrong, at the thread's next call.
 */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

extern char __executable_start, _end; /* of the linker: what the program was loaded to */

uint32_t check_copy_uid(emu_op *op);

bool cuemu_checked(void) { return true; }

static void map_fixed(uintptr_t at, size_t size)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap(reinterpret_cast<void *>(at), size, PROT_READ | PROT_WRITE, flags, -1, 0) != MAP_FAILED) return;
    perror("cuemu: reserving addresses for checks");
    exit(99);
}

void check_init(void)
{
    map_fixed(CELLS, EMU_STACKS * ARENA_SIZE * (sizeof(cell) / 4));
    map_fixed(BYTE_CELLS, EMU_STACKS * ARENA_SIZE * sizeof(cell));
    map_fixed(WRITTEN, EMU_STACKS * (ARENA_SIZE / 8));
    check_order_reset();
}

static void cells_forget(uintptr_t at, size_t size)
{
    madvise(reinterpret_cast<void *>(cell_of(at)), size / 4 * sizeof(cell), MADV_DONTNEED);
    madvise(reinterpret_cast<void *>(byte_cells_of(at)), size * sizeof(cell), MADV_DONTNEED);
}

void check_reset(void)
{
    for (int i = 0; i < EMU_STACKS; i++) cells_forget(arena_at(i), ARENA_SIZE);
    check_order_reset();
}

/* ---- which bytes were written ---- */
bool written_all(uintptr_t a, size_t n)
{
    for (; n && a % 8; a++, n--)
        if (!(*written_of(a) >> a % 8 & 1)) return false;
    for (; n >= 8; a += 8, n -= 8)
        if (*written_of(a) != 0xff) return false;
    for (; n; a++, n--)
        if (!(*written_of(a) >> a % 8 & 1)) return false;
    return true;
}

static void written_bit(uintptr_t a, bool yes)
{
    const uint8_t bit = (uint8_t)(1u << a % 8);
    *written_of(a) = (uint8_t)(yes ? *written_of(a) | bit : *written_of(a) & ~bit);
}

void written_set(uintptr_t a, size_t n, bool yes)
{
    for (; n && a % 8; a++, n--) written_bit(a, yes);
    if (n >= 8) memset(written_of(a), yes ? 0xff : 0, n / 8);
    for (a += n / 8 * 8, n %= 8; n; a++, n--) written_bit(a, yes);
}

void check_alloc(const emu_alloc *a) { written_set(a->at, a->size, a->arena == EMU_PINNED); }
void check_free(const emu_alloc *a) { cells_forget(a->base, a->span); }
void check_shared(emu_block *, char *at, size_t size) { written_set((uintptr_t)at, size, false); }

void check_block_start(emu_block *b)
{
    if (check_uids.size() > UID_MAX) { /* numbers start anew: nothing before this is remembered */
        for (int i = 0; i < EMU_STACKS; i++) cells_forget(arena_at(i), ARENA_SIZE);
        check_uids.assign(1, check_uid());
    }
    const dim3 g = b->launch->grid;
    b->uid = check_uid_new(b->launch->uid, b->idx.x + g.x * (b->idx.y + g.y * b->idx.z));
    b->epoch = 0;
    b->know = b->launch->op->know;
    if (b->launch->smem) written_set((uintptr_t)b->dyn_at, b->launch->smem, false);
}

/* ---- races ---- */
/* Whoever accesses: a thread, or (NULL) the copy engine for an operation. */
struct actor {
    const emu_thread *t;
    uint32_t uid;
    const check_know *know, *own; /* of the block or operation; of the thread since the last barrier */
};

static bool happened(const stamp &s, const actor &a)
{
    if (!s.uid) return true;
    if (s.uid == a.uid && a.t) {
        if (s.epoch < a.t->block->epoch || s.epoch == EPOCH_MAX || s.sub == SUB_MAX) return true;
        if (!(s.flags & (STAMP_WARP | STAMP_BLOCK)) && s.tid == a.t->index) return true;
        if (!(s.flags & STAMP_BLOCK) && s.tid / 32 == a.t->index / 32 && s.sub < a.t->warp_sub) return true;
    } else if (s.uid == a.uid) {
        return true;
    }
    return know_has(a.know, s) || know_has(a.own, s);
}

static std::string who(const stamp &s)
{
    const check_launch_info &l = check_launches[check_uids[s.uid].launch];
    const uint32_t b = check_uids[s.uid].block, t = (uint32_t)s.tid;
    char text[256];
    if (l.name[0] == '(') snprintf(text, sizeof text, "a %s of device %d", l.name.c_str(), l.device);
    else
        snprintf(text, sizeof text, "kernel %s, device %d, block (%u,%u,%u), thread (%u,%u,%u)", l.name.c_str(), l.device,
                 b % l.grid.x, b / l.grid.x % l.grid.y, b / l.grid.x / l.grid.y, t % l.block.x, t / l.block.x % l.block.y,
                 t / l.block.x / l.block.y);
    return text;
}

static stamp stamp_of(const actor &a, bool atomic)
{
    stamp s;
    s.uid = a.uid & UID_MAX;
    s.tid = a.t ? a.t->index & 1023u : 0u;
    s.epoch = a.t ? a.t->block->epoch & EPOCH_MAX : 0u;
    s.sub = a.t ? a.t->sub & SUB_MAX : 0u;
    s.flags = atomic ? STAMP_ATOMIC : 0;
    s.split = 0;
    return s;
}

/* Device whose work it is. */
static int device_of(const stamp &s) { return check_launches[check_uids[s.uid].launch].device; }

/*
 * Brings the reader that a cell keeps up to date. One that happened before this one is replaced: whoever knows of this one knows of it.
 * Else several of one warp or block at one time are kept as one, and of several blocks the last, but rather one of
 * another device than the memory's own: its order hangs on flags.
 */
static void reader_note(stamp *r, const actor &a, stamp mine, int arena)
{
    if (r->uid && !happened(*r, a)) {
        if (r->uid != mine.uid) {
            if (device_of(*r) != arena && device_of(mine) == arena) return;
        } else if (r->epoch == mine.epoch) {
            unsigned flags = r->flags & ~(unsigned)STAMP_ATOMIC;
            if (r->tid != mine.tid) flags |= r->tid / 32 == mine.tid / 32 ? STAMP_WARP : STAMP_BLOCK;
            if (r->flags & mine.flags & STAMP_ATOMIC) flags |= STAMP_ATOMIC;
            mine.flags = flags & 7;
            if (r->sub > mine.sub) mine.sub = r->sub;
        }
    }
    *r = mine;
}

/* False: `against` is the access that this one is in no order with. */
static bool cell_use(cell *c, const actor &a, bool write, bool atomic, int arena, stamp *against)
{
    if (arena == EMU_SHARED && c->w.uid != a.uid) c->w = stamp(); /* what former blocks did in this slot is nothing to us */
    if (arena == EMU_SHARED && c->r.uid != a.uid) c->r = stamp();
    if (!(atomic && c->w.flags & STAMP_ATOMIC) && !happened(c->w, a)) return *against = c->w, false;
    if (write && !(atomic && c->r.flags & STAMP_ATOMIC) && !happened(c->r, a)) return *against = c->r, false;
    if (!write) return reader_note(&c->r, a, stamp_of(a, atomic), arena), true;
    c->w = stamp_of(a, atomic);
    c->r = stamp();
    return true;
}

/* Bytes [from, to) of the word at w. Its cell splits into those of its bytes at the first access to a part, until a write of the whole. */
static bool word_use(uintptr_t w, unsigned from, unsigned to, const actor &a, bool write, bool atomic, int arena, stamp *against)
{
    cell *c = cell_of(w), *bytes = byte_cells_of(w);
    const bool whole = to - from == 4;
    if (whole && !c->w.split) return cell_use(c, a, write, atomic, arena, against);
    if (!c->w.split)
        for (int i = 0; i < 4; i++) bytes[i] = *c;
    c->w.split = 1;
    for (unsigned i = from; i < to; i++)
        if (!cell_use(&bytes[i], a, write, atomic, arena, against)) return false;
    if (whole && write) *c = bytes[0];
    return true;
}

static bool range_use(uintptr_t at, size_t size, const actor &a, bool write, bool atomic, stamp *against)
{
    const int arena = arena_of(at);
    for (uintptr_t w = at & ~(uintptr_t)3; w < at + size; w += 4) {
        const unsigned from = w < at ? (unsigned)(at - w) : 0, to = w + 4 > at + size ? (unsigned)(at + size - w) : 4;
        if (!word_use(w, from, to, a, write, atomic, arena, against)) return false;
    }
    return true;
}

/* ---- one access of a kernel ---- */
static void illegal(uintptr_t at, unsigned size, bool write)
{
    emu_fail(cudaErrorIllegalAddress, "illegal %s of 0x%llx (%u bytes): %s", write ? "write" : "read", (unsigned long long)at, size,
             emu_describe(at, emu.cur->block->launch->device).c_str());
}

static bool shared_inside(const emu_block *b, uintptr_t at, unsigned size)
{
    if (at >= (uintptr_t)b->dyn_at) return at + size <= (uintptr_t)b->dyn_at + b->launch->smem;
    for (const emu_site &s : b->sites)
        if (at >= (uintptr_t)s.at && at + size <= (uintptr_t)s.at + s.size) return true;
    return false;
}

/* False: local memory or a constant of the program, which nobody else changes; there is nothing more to check. */
static bool place_check(uintptr_t at, unsigned size, bool write)
{
    const emu_thread *t = emu.cur;
    const emu_block *b = t->block;
    if (emu_stack_has(t, at)) return false;
    const int arena = arena_of(at), device = b->launch->device;
    if (arena < 0) {
        const uintptr_t args = (uintptr_t)b->launch->args.data();
        const bool constant = at >= (uintptr_t)&__executable_start && at + size <= (uintptr_t)&_end;
        if (!write && (constant || (at >= args && at + size <= args + b->launch->args.size()))) return false;
        illegal(at, size, write);
    }
    if (arena == EMU_SHARED) {
        if (!shared_inside(b, at, size)) illegal(at, size, write);
        return true;
    }
    const emu_alloc *a = emu_find(at);
    const bool mine = arena == device || arena == EMU_PINNED || (arena < EMU_DEVICES && emu.device[device].peers >> arena & 1);
    if (!a || !a->live || !mine || at < a->at || at + size > a->at + a->size) illegal(at, size, write);
    return true;
}

/* The store that follows is to be lost or mangled; the load that follows meets a turned bit, until it is turned back. */
static void undo_note(uintptr_t at, unsigned size, bool load)
{
    emu_thread *t = emu.cur;
    const int arena = arena_of(at);
    if (arena >= EMU_DEVICES || arena == t->block->launch->device || size > sizeof t->undo || !emu_peer_fault_hits(load)) return;
    t->undo_at = reinterpret_cast<void *>(at);
    t->undo_size = size;
    memcpy(t->undo, t->undo_at, size);
    if (load) *static_cast<uint8_t *>(t->undo_at) ^= 1;
}

void check_settle(emu_thread *t)
{
    if (!t->undo_at) return;
    uint8_t *p = static_cast<uint8_t *>(t->undo_at);
    t->undo_at = nullptr;
    if (emu.set.peer_fault == CUEMU_PEER_DROP || emu.set.peer_fault == CUEMU_PEER_LOAD) memcpy(p, t->undo, t->undo_size);
    if (emu.set.peer_fault == CUEMU_PEER_ZERO) memset(p, 0, t->undo_size);
    if (emu.set.peer_fault == CUEMU_PEER_FLIP) p[0] ^= 1;
}

static void access_check(uintptr_t at, unsigned size, bool write, bool atomic)
{
    const emu_thread *t = emu.cur;
    const char *kind = atomic ? "atomic access" : write ? "write" : "read";
    if (!place_check(at, size, write)) return;
    if (!write && !emu.set.loose && !written_all(at, size))
        emu_fail(cudaErrorLaunchFailure, "uninitialized read of 0x%llx (%u bytes): %s", (unsigned long long)at, size,
                 emu_describe(at, t->block->launch->device).c_str());
    const actor a = {t, t->block->uid, t->block->know.get(), t->know.get()};
    stamp s;
    if (!range_use(at, size, a, write, atomic, &s) && !emu.set.loose)
        emu_fail(cudaErrorLaunchFailure, "race: %s of %u bytes at 0x%llx (%s) is in no order with the access by %s",
                 kind, size, (unsigned long long)at, emu_describe(at, t->block->launch->device).c_str(), who(s).c_str());
    if (write) written_set(at, size, true);
    if (!atomic && emu.set.peer_fault != CUEMU_PEER_OK) undo_note(at, size, !write);
}

void check_access(const void *p, unsigned size, bool write, bool atomic) { access_check((uintptr_t)p, size, write, atomic); }

static inline void seen(const void *p, unsigned size, bool write, bool aligned)
{
    if (!emu_on_fiber()) return; /* host code of a .cu file */
    check_settle(emu.cur);
    const uintptr_t at = (uintptr_t)p;
    if (aligned && at % size && !emu_stack_has(emu.cur, at))
        emu_fail(cudaErrorMisalignedAddress, "misaligned %s of %u bytes at 0x%llx: %s", write ? "write" : "read", size,
                 (unsigned long long)at, emu_describe(at, emu.cur->block->launch->device).c_str());
    access_check(at, size, write, false);
}

static void range_seen(const void *p, size_t n, bool write)
{
    const char *at = static_cast<const char *>(p);
    for (; n; at += n < 16 ? n : 16, n -= n < 16 ? n : 16) seen(at, n < 16 ? (unsigned)n : 16, write, false);
}

/* ---- copies ---- */
void check_cp(const emu_cp *c, bool issue)
{
    if (!issue) {
        written_set((uintptr_t)c->dst, c->size, true);
        return;
    }
    if (c->n) access_check((uintptr_t)c->src, c->n, false, false);
    access_check((uintptr_t)c->dst, c->size, true, false);
    written_set((uintptr_t)c->dst, c->size, false);
}

static bool side_check(emu_op *op, const void *p, bool write)
{
    const uintptr_t at = (uintptr_t)p;
    const emu_alloc *f = emu_find(at);
    const actor a = {nullptr, check_copy_uid(op), op->know.get(), nullptr};
    stamp s;
    if (!f || !f->live || at < f->at || op->width > f->size - (at - f->at))
        return true; /* nothing of ours, or reported elsewhere */
    if (range_use(at, op->width, a, write, false, &s) || emu.set.loose) return true;
    emu_report("race: a %s by %s of device %d at 0x%llx (%s) is in no order with the access by %s", write ? "write" : "read",
               op->kind == OP_FILL ? "a fill" : "a copy", op->device, (unsigned long long)at,
               emu_describe(at, arena_of(at)).c_str(), who(s).c_str());
    emu_fail_device(op->device, cudaErrorLaunchFailure);
    op->error = cudaErrorLaunchFailure;
    return false;
}

void check_host_copy(emu_op *op)
{
    for (size_t i = 0; i < op->rows; i++) {
        const char *d = op->dst + i * op->dst_stride, *s = op->src + i * op->src_stride;
        if (op->kind == OP_COPY && op->staged.empty() && !side_check(op, s, false)) return;
        if (!side_check(op, d, true)) return;
        const emu_alloc *to = emu_find((uintptr_t)d),
                        *from = op->kind == OP_COPY && op->staged.empty() ? emu_find((uintptr_t)s) : nullptr;
        if (!to || !to->live) continue;
        for (size_t j = 0; from && j < op->width; j++) /* what was never written stays so */
            written_set((uintptr_t)d + j, 1, written_all((uintptr_t)s + j, 1));
        if (!from) written_set((uintptr_t)d, op->width, true);
        if (to->arena == EMU_PINNED) written_set((uintptr_t)d, op->width, true);
    }
}

/* ---- what the compiler calls ---- */
extern "C" {
void __tsan_init(void);
void __tsan_init(void) {}
#define TSAN(n) \
    void __tsan_read##n(void *p); \
    void __tsan_write##n(void *p); \
    void __tsan_unaligned_read##n(void *p); \
    void __tsan_unaligned_write##n(void *p); \
    void __tsan_read_write##n(void *p); \
    void __tsan_unaligned_read_write##n(void *p); \
    void __tsan_read##n(void *p) { seen(p, n, false, true); } \
    void __tsan_write##n(void *p) { seen(p, n, true, true); } \
    void __tsan_unaligned_read##n(void *p) { seen(p, n, false, false); } \
    void __tsan_unaligned_write##n(void *p) { seen(p, n, true, false); } \
    void __tsan_read_write##n(void *p) { seen(p, n, false, true), seen(p, n, true, true); } \
    void __tsan_unaligned_read_write##n(void *p) { seen(p, n, false, false), seen(p, n, true, false); }
TSAN(1)
TSAN(2)
TSAN(4)
TSAN(8)
TSAN(16)
void __tsan_vptr_update(void **, void *);
void __tsan_vptr_read(void **);
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void __tsan_func_entry(void *);
void __tsan_func_exit(void);
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}

/* What memcpy and its kin are called in objects of the checked build. */
void *cuemu_memcpy(void *d, const void *s, size_t n);
void *cuemu_memmove(void *d, const void *s, size_t n);
void *cuemu_memset(void *d, int byte, size_t n);
void *cuemu_memmove(void *d, const void *s, size_t n)
{
    if (emu.cur) range_seen(s, n, false), range_seen(d, n, true), check_settle(emu.cur);
    return memmove(d, s, n);
}
void *cuemu_memcpy(void *d, const void *s, size_t n) { return cuemu_memmove(d, s, n); }
void *cuemu_memset(void *d, int byte, size_t n)
{
    if (emu.cur) range_seen(d, n, true), check_settle(emu.cur);
    return memset(d, byte, n);
}
}
