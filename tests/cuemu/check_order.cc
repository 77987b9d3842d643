/* check_order.cc - what happened before what: operations of streams, barriers, flags, fences (see check.h). */
#include "check.h"

#include <algorithm>
#include <unordered_map>

std::vector<check_launch_info> check_launches;
std::vector<check_uid> check_uids;
static std::unordered_map<uintptr_t, know_ref> flags; /* by address: what a release left there */
static know_ref host_know, slot_know[EMU_SLOTS];
static uint32_t slot_seq[EMU_SLOTS], next_slot;

void check_order_reset(void)
{
    check_launches.clear();
    check_uids.assign(1, check_uid());
    flags.clear();
    host_know.reset();
    for (know_ref &k : slot_know) k.reset();
    for (uint32_t &s : slot_seq) s = 0;
}

uint32_t check_uid_new(uint32_t launch, uint32_t block)
{
    check_uids.push_back({launch, block});
    return (uint32_t)check_uids.size() - 1;
}

/* ---- knowledge ---- */
static bool op_known(const check_know *k, uint32_t uid)
{
    const check_launch_info &l = check_launches[check_uids[uid].launch];
    return k->clock[l.slot] >= l.seq;
}

bool know_has(const check_know *k, const stamp &s)
{
    if (!k) return false;
    if (op_known(k, (uint32_t)s.uid)) return true;
    for (const check_entry &e : k->entries) {
        if (e.uid != s.uid) continue;
        if (s.epoch < e.epoch) return true;
        if (s.epoch > e.epoch || s.flags & STAMP_BLOCK) continue;
        if (s.tid == e.tid && !(s.flags & STAMP_WARP) && s.sub <= e.sub) return true;
        if (s.tid / 32 == e.tid / 32 && s.sub < e.warp_sub) return true;
    }
    return false;
}

static void entry_add(check_know *k, const check_entry &e)
{
    if (op_known(k, e.uid)) return;
    for (check_entry &o : k->entries) {
        if (o.uid != e.uid) continue;
        if (o.epoch > e.epoch) return;
        if (o.epoch == e.epoch && o.tid != e.tid) continue;
        if (o.epoch == e.epoch) {
            o.sub = std::max(o.sub, e.sub);
            o.warp_sub = std::max(o.warp_sub, e.warp_sub);
        } else {
            o = e;
        }
        return;
    }
    k->entries.push_back(e);
}

know_ref know_merge(const know_ref &a, const know_ref &b)
{
    if (!b || a == b) return a;
    if (!a) return b;
    const know_ref k = std::make_shared<check_know>();
    for (int i = 0; i < EMU_SLOTS; i++) k->clock[i] = std::max(a->clock[i], b->clock[i]);
    for (const check_entry &e : a->entries) entry_add(k.get(), e);
    for (const check_entry &e : b->entries) entry_add(k.get(), e);
    return k;
}

static know_ref know_copy(const know_ref &from)
{
    return from ? std::make_shared<check_know>(*from) : std::make_shared<check_know>();
}

/* ---- operations of streams ---- */
void check_submit(CUstream_st *s, emu_op *op)
{
    op->slot = s ? (uint32_t)s->slot : 0;
    op->seq = ++slot_seq[op->slot];
    op->know = host_know;
}

void check_node(emu_op *node)
{
    node->slot = 1 + next_slot++ % (EMU_SLOTS - 1);
    node->seq = ++slot_seq[node->slot];
}

static uint32_t launch_add(const emu_op *op, const char *name, dim3 grid, dim3 block)
{
    check_launches.push_back({name, op->device, grid, block, op->slot, op->seq});
    return (uint32_t)check_launches.size() - 1;
}

void check_op_start(emu_op *op)
{
    op->know = op->parent ? op->parent->know : know_merge(op->know, slot_know[op->slot]);
    for (const emu_op_ref &o : op->after) op->know = know_merge(op->know, o->know);
    if (!op->know) op->know = know_copy(nullptr);
    if (op->launch) op->launch->uid = launch_add(op, op->launch->name.c_str(), op->launch->grid, op->launch->block);
}

uint32_t check_copy_uid(emu_op *op)
{
    if (!op->know) op->know = know_copy(op->know);
    if (!op->uid) op->uid = check_uid_new(launch_add(op, op->kind == OP_FILL ? "(fill)" : "(copy)", dim3(1), dim3(1)), 0);
    return op->uid;
}

void check_op_done(emu_op *op)
{
    const know_ref k = know_copy(op->know);
    k->clock[op->slot] = std::max(k->clock[op->slot], op->seq);
    op->know = k;
    if (op->parent) op->parent->know = know_merge(op->parent->know, k);
    else slot_know[op->slot] = k;
}

void check_host_wait(const emu_op *op) { host_know = know_merge(host_know, op->know); }

/* ---- blocks ---- */
void check_block_end(emu_block *b)
{
    know_ref *k = &b->launch->op->know;
    *k = know_merge(*k, b->know);
    for (const emu_thread &t : b->threads) *k = know_merge(*k, t.know);
}

void check_barrier(emu_block *b)
{
    if (b->epoch < EPOCH_MAX) b->epoch++;
    for (emu_thread &t : b->threads) {
        b->know = know_merge(b->know, t.know);
        t.know.reset();
        t.sub = t.warp_sub = 0;
    }
}

void check_syncwarp(emu_thread **lanes, uint32_t mask)
{
    uint16_t sub = 0;
    know_ref k;
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        sub = std::max(sub, lanes[i]->sub);
        k = know_merge(k, lanes[i]->know);
    }
    if (sub < SUB_MAX) sub++;
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        lanes[i]->sub = lanes[i]->warp_sub = sub;
        lanes[i]->know = k;
    }
}

/* ---- flags ---- */
/* All that the running thread did (before its last fence, if `fenced`) and knows. */
static know_ref snapshot(bool fenced)
{
    emu_thread *t = emu.cur;
    const emu_block *b = t->block;
    const know_ref k = know_copy(know_merge(b->know, t->know));
    const bool then = fenced && t->fence_epoch != b->epoch;
    const check_entry own = {b->uid, fenced ? t->fence_epoch : (uint16_t)b->epoch, t->index, fenced ? t->fence_sub : t->sub,
                             then ? (uint16_t)0 : t->warp_sub};
    k->entries.push_back(own);
    if (!fenced && t->sub < SUB_MAX) t->sub++;
    return k;
}

void check_release(const void *p, bool relaxed, bool rmw)
{
    know_ref &flag = flags[(uintptr_t)p];
    if (!relaxed) flag = snapshot(false);
    else if (emu.cur->fenced) flag = rmw ? know_merge(flag, snapshot(true)) : snapshot(true);
    else if (!rmw) flag.reset(); /* whoever reads this learns nothing */
}

void check_acquire(const void *p, bool relaxed)
{
    emu_thread *t = emu.cur;
    const auto i = flags.find((uintptr_t)p);
    if (i == flags.end() || !i->second) return;
    if (relaxed) {
        t->pending = know_merge(t->pending, i->second);
    } else if (t->acquired != i->second) {
        t->acquired = i->second;
        t->know = know_merge(t->know, i->second);
    }
}

void check_fence(void)
{
    emu_thread *t = emu.cur;
    t->fenced = true;
    t->fence_epoch = (uint16_t)t->block->epoch;
    t->fence_sub = t->sub;
    if (t->sub < SUB_MAX) t->sub++;
    t->know = know_merge(t->know, t->pending);
    t->pending.reset();
}
