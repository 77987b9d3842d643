/*
 * sched.cc - the scheduler: which thread of which block of which device runs next.
 *
 * One slice starts operations of streams, fills the devices with blocks and runs one block for a while. Inside a block a
 * warp is drawn, and its lanes run one after another, each until it waits. Unfairness finds more faults than chance alone:
 * half of the time some warps of a block are starved until the others wait, some blocks are left after every warp and
 * others never, blocks start out of order, and a device may be slow for some slices.
 *
 * Time is virtual and stands nearly still while anything happens. When all threads that can run have polled in vain
 * (a sweep over every one of them changes nothing), it jumps ahead by doubling steps, so that deadlines inside kernels expire
 * soon; after 100 s of that it is a hang, which is reported, and the launches that poll end with cudaErrorLaunchTimeout.
 */
#include "emu.h"

#include <algorithm>
#include <stdio.h>
#include <string.h>

static const uint64_t HANG_NS = 100000000000u;

void emu_event(void)
{
    emu.events++;
    emu.idle = emu.waited = 0;
    emu.jump = 1000;
}

void emu_poll(const void *at, uint64_t value)
{
    emu_thread *t = emu.cur;
    bool seen = false;
    for (int i = 0; i < EMU_POLLS; i++) seen |= t->poll_at[i] == at && t->poll_value[i] == value;
    if (!seen) {
        t->poll_at[t->n_polls % EMU_POLLS] = at;
        t->poll_value[t->n_polls++ % EMU_POLLS] = value;
        emu_event();
        if (emu_below(4)) return; /* mostly a first look goes on at once */
    } else {
        emu.idle++;
    }
    check_settle(t);
    t->last_poll = at;
    t->last_value = value;
    t->polling = true;
    emu_leave();
    t->polling = false;
}

void emu_ready(emu_thread *t)
{
    emu_block *b = t->block;
    t->state = T_READY;
    b->stopped[t->index / 32] &= ~(1u << t->index % 32);
    b->ready[t->index / 32] |= 1u << t->index % 32;
    b->ready_warps |= 1u << t->index / 32;
}

void emu_wait(emu_state state, const char *site)
{
    emu_thread *t = emu.cur;
    emu_block *b = t->block;
    const unsigned w = t->index / 32;
    t->state = state;
    t->site = site;
    if (state == T_BARRIER) b->stopped[w] |= 1u << t->index % 32;
    b->ready[w] &= ~(1u << t->index % 32);
    if (!b->ready[w]) b->ready_warps &= ~(1u << w);
    emu_leave();
}

/* ---- blocks ---- */
int emu_max_resident(unsigned threads, size_t smem)
{
    (void)smem;
    const int by_threads = (int)(EMU_DEVICE_THREADS / (threads ? threads : 1));
    return by_threads < emu.set.sms ? (by_threads ? by_threads : 1) : emu.set.sms;
}

static void unfairness_draw(emu_block *b)
{
    const uint64_t r = emu_random();
    b->starved = r & 1 ? (uint32_t)(r >> 32) : 0;
    b->leave = (int)(r >> 1 & 3);
}

static void threads_make(emu_block *b)
{
    const dim3 d = b->launch->block;
    b->threads.resize(b->n);
    for (unsigned i = 0; i < b->n; i++) {
        emu_thread *t = &b->threads[i];
        t->block = b;
        t->index = (uint16_t)i;
        t->tid = make_uint3(i % d.x, i / d.x % d.y, i / d.x / d.y);
        emu_ready(t);
        t->state = T_NEW;
    }
}

static void block_start(const std::shared_ptr<emu_launch> &l, uint32_t number)
{
    emu_block *b = new emu_block();
    const dim3 g = l->grid, d = l->block;
    b->launch = l;
    b->idx = make_uint3(number % g.x, number / g.x % g.y, number / g.x / g.y);
    b->n = d.x * d.y * d.z;
    b->n_warps = b->n / 32;
    b->shared_slot = emu_shared_slot();
    b->static_at = reinterpret_cast<char *>(arena_at(EMU_SHARED) + (uintptr_t)b->shared_slot * EMU_SHARED_STRIDE);
    b->dyn_at = b->static_at + EMU_SHARED_STRIDE - EMU_PAGE - (l->smem + 15) / 16 * 16;
    if (l->smem) memset(b->dyn_at, 0xff, l->smem);
    threads_make(b);
    unfairness_draw(b);
    check_block_start(b);
    emu_device *dev = &emu.device[l->device];
    dev->blocks.push_back(b);
    dev->threads += b->n;
    l->resident++;
    emu_event();
}

static void block_remove(emu_block *b)
{
    emu_device *dev = &emu.device[b->launch->device];
    dev->blocks.erase(std::find(dev->blocks.begin(), dev->blocks.end(), b));
    dev->threads -= b->n;
    for (emu_thread &t : b->threads) {
        emu_stack_drop(&t);
        delete t.cp;
        delete t.wgmma;
    }
    emu_shared_return(b->shared_slot);
    b->launch->resident--;
    delete b;
}

static void launch_remove(const std::shared_ptr<emu_launch> &l)
{
    std::vector<std::shared_ptr<emu_launch>> &v = emu.device[l->device].launches;
    v.erase(std::find(v.begin(), v.end(), l));
}

static void block_end(emu_block *b)
{
    const std::shared_ptr<emu_launch> l = b->launch;
    check_block_end(b);
    block_remove(b);
    emu_event();
    if (++l->n_done < l->n_blocks) return;
    launch_remove(l);
    emu_op_finish(l->op, cudaSuccess);
}

void emu_kill(const std::shared_ptr<emu_launch> &launch, cudaError_t code)
{
    const std::shared_ptr<emu_launch> l = launch; /* the caller's may be in the list that shrinks */
    emu_device *dev = &emu.device[l->device];
    for (size_t i = dev->blocks.size(); i-- > 0;)
        if (dev->blocks[i]->launch == l) block_remove(dev->blocks[i]);
    launch_remove(l);
    emu_event();
    emu_fail_device(l->device, code);
    emu_op_finish(l->op, code);
}

void emu_launch_start(const std::shared_ptr<emu_launch> &l)
{
    l->start = emu.now + emu.device[l->device].delay;
    emu.device[l->device].launches.push_back(l);
}

/* The next block, out of order: one of up to 16 that are due. */
static bool block_draw(emu_launch *l, uint32_t *number)
{
    while (l->window.size() < 16 && l->next < l->n_blocks) l->window.push_back((uint32_t)l->next++);
    if (l->window.empty() || l->start > emu.now) return false;
    const size_t i = emu_below((uint32_t)l->window.size());
    *number = l->window[i];
    l->window[i] = l->window.back();
    l->window.pop_back();
    return true;
}

static void device_fill_blocks(emu_device *d)
{
    for (;;) {
        const size_t n = d->launches.size(), first = n ? emu_below((uint32_t)n) : 0;
        bool started = false;
        for (size_t i = 0; i < n && !started; i++) {
            const std::shared_ptr<emu_launch> l = d->launches[(first + i) % n];
            const unsigned threads = l->block.x * l->block.y * l->block.z;
            if (!d->blocks.empty() && ((int)d->blocks.size() >= emu.set.sms || d->threads + threads > EMU_DEVICE_THREADS)) continue;
            uint32_t number;
            if (!block_draw(l.get(), &number)) continue;
            block_start(l, number);
            started = true;
        }
        if (!started) return;
    }
}

/* ---- threads ---- */
/* A thread has ended: nobody may wait for it. */
static void thread_end(emu_thread *t)
{
    emu_block *b = t->block;
    const unsigned w = t->index / 32;
    b->ready[w] &= ~(1u << t->index % 32);
    if (!b->ready[w]) b->ready_warps &= ~(1u << w);
    b->stopped[w] |= 1u << t->index % 32;
    b->n_done++;
    emu_event();
    if (b->n_waiting == 0 && b->groups[w].empty()) return;
    const emu_thread *other = nullptr;
    for (unsigned i = 0; i < b->n && !other; i++) {
        const emu_thread *o = &b->threads[i];
        const bool waits = o->state == T_BARRIER || (o->state == T_WARP && o->index / 32 == w && o->warp->mask >> t->index % 32 & 1);
        if (waits) other = o;
    }
    if (!other) return;
    emu_report("divergence: the thread ended while thread (%u,%u,%u) waits for it at the %s of %s [%s]", other->tid.x, other->tid.y,
               other->tid.z, other->state == T_BARRIER ? "barrier" : "warp operation", other->site, emu_where(t).c_str());
    b->launch->killed = true;
    b->launch->code = cudaErrorLaunchFailure;
}

/* False: the block is no more. */
static bool thread_run(emu_block *b, emu_thread *t)
{
    emu.now++;
    emu_enter(t);
    if (b->launch->killed) return emu_kill(b->launch, b->launch->code), false;
    if (t->state != T_DONE) return true;
    thread_end(t);
    if (b->launch->killed) return emu_kill(b->launch, b->launch->code), false;
    if (b->n_done < b->n) return true;
    block_end(b);
    return false;
}

static bool warp_run(emu_block *b, unsigned w, bool *polled)
{
    const uint32_t mask = b->ready[w], r = (uint32_t)emu_random(), step = r & 64 ? 1 : 31;
    for (uint32_t i = 0, lane = r & 31; i < 32; i++, lane = (lane + step) & 31) {
        emu_thread *t = &b->threads[w * 32 + lane];
        if (!(mask & b->ready[w] & 1u << lane)) continue;
        if (!thread_run(b, t)) return false;
        *polled |= t->polling;
    }
    return true;
}

static void block_run(emu_block *b)
{
    static const uint32_t leave_of[4] = {0, 1, 8, 2}; /* one chance in so many; 0: never */
    bool polled = false;
    while (b->ready_warps) {
        uint32_t may = b->ready_warps & ~b->starved;
        if (!may) may = b->ready_warps;
        const uint32_t turn = emu_below(32), high = may >> turn << turn;
        const unsigned w = (unsigned)__builtin_ctz(high ? high : may);
        if (!warp_run(b, w, &polled)) return;
        if (polled || (leave_of[b->leave] && !emu_below(leave_of[b->leave]))) break;
    }
    if (polled && b->starved && !emu_below(4)) b->starved = 0; /* who is starved may be who is polled for */
}

/* ---- slices ---- */
static bool block_stuck(const emu_block *b) { return b->ready_warps == 0; }

static void deadlock(emu_block *b)
{
    const emu_thread *t = nullptr;
    unsigned waiting = 0;
    for (const emu_thread &o : b->threads)
        if (o.state != T_DONE && (waiting++ == 0)) t = &o;
    emu_report("deadlock: %u of %u threads wait and none can run; the first at the %s of %s [%s]", waiting, b->n,
               t->state == T_BARRIER ? "barrier" : "warp operation", t->site, emu_where(t).c_str());
    emu_kill(b->launch, cudaErrorLaunchFailure);
}

/* Runs every thread that can run once. */
static void sweep(void)
{
    for (emu_device &d : emu.device) {
        const std::vector<emu_block *> blocks = d.blocks;
        if (!blocks.empty()) emu_view((int)(&d - emu.device));
        for (emu_block *b : blocks) {
            if (std::find(d.blocks.begin(), d.blocks.end(), b) == d.blocks.end()) continue;
            bool polled, alive = true;
            for (unsigned w = 0; w < b->n_warps && alive; w++) alive = warp_run(b, w, &polled);
        }
    }
}

static void hang(void)
{
    std::vector<std::shared_ptr<emu_launch>> dead;
    for (emu_device &d : emu.device)
        for (emu_block *b : d.blocks)
            for (emu_thread &t : b->threads) {
                if (!t.polling || std::find(dead.begin(), dead.end(), b->launch) != dead.end()) continue;
                dead.push_back(b->launch);
                emu_report("hang: nothing but polls for %d s of virtual time; polled is 0x%llx = %s, value %llu [%s]", (int)(HANG_NS / 1000000000),
                           (unsigned long long)(uintptr_t)t.last_poll, emu_describe((uintptr_t)t.last_poll, b->launch->device).c_str(),
                           (unsigned long long)t.last_value, emu_where(&t).c_str());
            }
    for (const std::shared_ptr<emu_launch> &l : dead) emu_kill(l, cudaErrorLaunchTimeout);
}

/* All that runs polls in vain: let time pass. */
static void time_pass(void)
{
    const uint64_t events = emu.events, next = emu_ops_next_start();
    emu.idle = 0;
    sweep();
    if (emu.events != events) return;
    uint64_t step = emu.jump;
    if (next > emu.now && next - emu.now < step) step = next - emu.now;
    emu.now += step;
    emu.waited += step;
    emu.jump *= 2;
    emu.idle = 0;
    if (emu.waited > HANG_NS) hang();
}

static emu_block *block_choose(void)
{
    unsigned n = 0, live[EMU_DEVICES];
    for (unsigned d = 0; d < EMU_DEVICES; d++)
        if (!emu.device[d].blocks.empty()) live[n++] = d;
    if (!n) return nullptr;
    if (!emu_below(64)) emu.device[live[emu_below(n)]].slow = emu_below(2);
    unsigned d = live[emu_below(n)];
    if (emu.device[d].slow && emu_below(16)) d = live[emu_below(n)];
    const std::vector<emu_block *> &v = emu.device[d].blocks;
    const size_t first = emu_below((uint32_t)v.size());
    for (size_t i = 0; i < v.size(); i++)
        if (!block_stuck(v[(first + i) % v.size()])) return v[(first + i) % v.size()];
    return v[first];
}

bool emu_slice(void)
{
    bool started = false;
    for (int tries = 0; tries < 4 && emu_ops_start(); tries++) started = true;
    for (emu_device &d : emu.device)
        if (!d.launches.empty()) device_fill_blocks(&d);
    emu_block *b = block_choose();
    if (!b) {
        const uint64_t next = emu_ops_next_start();
        if (next > emu.now) emu.now = next;
        return started || next;
    }
    if (block_stuck(b)) {
        deadlock(b);
        return true;
    }
    const int device = b->launch->device;
    emu_view(device);
    block_run(b);
    if (emu.idle > 64 + 4 * emu.device[device].threads) time_pass();
    return true;
}

bool emu_drive(bool (*done)(void *), void *arg)
{
    if (done(arg)) return true;
    emu_handlers();
    emu_watchdog(true);
    bool ok = true;
    while (ok && !done(arg)) ok = emu_slice();
    emu_watchdog(false);
    emu_view(-1);
    if (!ok) emu_report("the host waits for work that nothing will ever start");
    return ok;
}

/* ---- what kernels call ---- */
int cuemu_syncthreads(int op, int predicate, const char *site)
{
    emu_thread *t = emu.cur;
    emu_block *b = t->block;
    check_settle(t);
    if (b->n_done) emu_fail(cudaErrorLaunchFailure, "divergence: barrier at %s, but %u threads of the block have ended", site, b->n_done);
    if (b->n_waiting && (b->sync_op != op || !emu_same_site(b->site, site)))
        emu_fail(cudaErrorLaunchFailure, "divergence: barrier at %s while other threads wait at the one of %s", site, b->site);
    b->site = site;
    b->sync_op = op;
    b->count += predicate;
    if (++b->n_waiting < b->n) {
        emu_wait(T_BARRIER, site);
        return t->result;
    }
    const int result = op == CUEMU_COUNT ? b->count : op == CUEMU_AND ? b->count == (int)b->n : b->count > 0;
    b->n_waiting = 0;
    b->count = 0;
    check_barrier(b);
    b->unseen = false;
    for (emu_thread &o : b->threads) {
        b->unseen = b->unseen || o.unseen;
        o.result = result;
        emu_ready(&o);
    }
    unfairness_draw(b);
    emu_event();
    if (emu_below(2)) emu_leave();
    return result;
}

void *cuemu_shared(const void *site, size_t size, const char *name)
{
    emu_block *b = emu.cur->block;
    for (const emu_site &s : b->sites)
        if (s.site == site) return s.at;
    const size_t at = (b->static_used + 15) / 16 * 16;
    if (size > EMU_STATIC_SHARED - at)
        emu_fail(cudaErrorInvalidConfiguration, "static shared memory: %s makes more than %d bytes", name, EMU_STATIC_SHARED);
    b->static_used = at + size;
    memset(b->static_at + at, 0xff, size);
    b->sites.push_back({site, b->static_at + at, size, name});
    check_shared(b, b->static_at + at, size);
    return b->static_at + at;
}

void *cuemu_dyn_shared(void) { return emu.cur->block->dyn_at; }

uint3 cuemu_thread_idx(void) { return emu.cur->tid; }
uint3 cuemu_block_idx(void) { return emu.cur->block->idx; }
dim3 cuemu_block_dim(void) { return emu.cur->block->launch->block; }
dim3 cuemu_grid_dim(void) { return emu.cur->block->launch->grid; }

uint64_t globaltimer(void) { return emu.now += 64; }

void sleep_ns(uint32_t ns)
{
    (void)ns; /* time passes when nobody has anything to do */
    emu.idle++;
    check_settle(emu.cur);
    emu.cur->polling = true;
    emu_leave();
    emu.cur->polling = false;
}
