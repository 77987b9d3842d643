/*
 * warp.cc - operations of a warp, atomics, and the twins of ptx.cuh.
 *
 * A warp operation is executed by the lane that arrives last, for all lanes of the mask, through the pointers that they left
 * on their stacks. Fragment layouts are those of the PTX ISA, as kernels/cuda/ptx.cuh states them; sums of f16 and bf16
 * products are taken in f32 in ascending K (a tensor core has another order).
 */
#include "emu.h"

#include <string.h>

static void mismatch(const cuemu_warp_args *w, const emu_thread *o)
{
    const char *what = o->state == T_DONE ? "has ended" : o->state == T_BARRIER ? "waits at the barrier of" : "takes part in the one of";
    emu_fail(cudaErrorLaunchFailure, "divergence: warp operation at %s (mask 0x%x), but lane %d of the mask %s %s", w->site, w->mask,
             o->index % 32, what, o->state == T_DONE ? "" : o->site);
}

/* The group that the running thread joins. Lanes that wait elsewhere for this one never get it. */
static emu_group *group_find(const cuemu_warp_args *w, uint32_t lane)
{
    const emu_thread *t = emu.cur, *first = t - lane;
    std::vector<emu_group> &groups = t->block->groups[t->index / 32];
    const uint32_t stopped = t->block->stopped[t->index / 32] & w->mask;
    emu_group *found = nullptr;
    if (stopped) mismatch(w, first + __builtin_ctz(stopped));
    for (emu_group &g : groups) {
        if (g.mask == w->mask && g.op == w->op && emu_same_site(g.site, w->site)) found = &g;
        else if (g.arrived & w->mask && g.mask >> lane & 1) mismatch(w, first + __builtin_ctz(g.arrived & w->mask));
    }
    if (found) return found;
    groups.push_back({w->mask, 0, w->op, w->site});
    return &groups.back();
}

void cuemu_warp(const cuemu_warp_args *w)
{
    emu_thread *t = emu.cur, *lanes[32];
    const uint32_t lane = t->index % 32;
    check_settle(t);
    if (!(w->mask >> lane & 1)) emu_fail(cudaErrorLaunchFailure, "divergence: lane %u is not in its own mask 0x%x at %s", lane, w->mask, w->site);
    emu_group *g = group_find(w, lane);
    t->warp = w;
    g->arrived |= 1u << lane;
    if (g->arrived != w->mask) {
        emu_wait(T_WARP, w->site);
        return;
    }
    std::vector<emu_group> &groups = t->block->groups[t->index / 32];
    *g = groups.back();
    groups.pop_back();
    for (unsigned i = 0; i < 32; i++) lanes[i] = t - lane + i;
    emu_warp_run(lanes, w->mask);
    for (unsigned i = 0; i < 32; i++)
        if (w->mask >> i & 1) emu_ready(lanes[i]);
    emu_event();
    if (!emu_below(4)) emu_leave();
}

static uint64_t value_of(const cuemu_warp_args *w)
{
    uint64_t v = 0;
    memcpy(&v, w->io, w->size);
    return v;
}

static void shuffle(emu_thread **lanes, uint32_t mask)
{
    uint64_t v[32];
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) v[i] = value_of(lanes[i]->warp);
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        const cuemu_warp_args *w = lanes[i]->warp;
        const int width = w->width, low = i & ~(width - 1);
        int from = i;
        if (width < 1 || width > 32 || (width & (width - 1))) emu_fail(cudaErrorLaunchFailure, "shuffle of width %d at %s", width, w->site);
        switch (w->op) {
        case CUEMU_SHFL: from = low + (w->arg & (width - 1)); break;
        case CUEMU_SHFL_UP: from = i - w->arg < low ? i : i - w->arg; break;
        case CUEMU_SHFL_DOWN: from = i + w->arg >= low + width ? i : i + w->arg; break;
        default: from = (i ^ w->arg) >= low + width ? i : i ^ w->arg;
        }
        if (from < 0 || from > 31 || !(mask >> from & 1))
            emu_fail(cudaErrorLaunchFailure, "shuffle at %s: lane %d reads lane %d, which takes no part (mask 0x%x)", w->site, i, from, mask);
        memcpy(w->io, &v[from], w->size);
    }
}

static void reduce(emu_thread **lanes, uint32_t mask, int op)
{
    uint32_t r = 0;
    bool first = true;
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        const uint32_t v = (uint32_t)value_of(lanes[i]->warp);
        switch (first ? CUEMU_SHFL : op) {
        case CUEMU_RADD: r += v; break;
        case CUEMU_RAND: r &= v; break;
        case CUEMU_ROR: r |= v; break;
        case CUEMU_RXOR: r ^= v; break;
        default: r = v;
        }
        first = false;
    }
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) memcpy(lanes[i]->warp->io, &r, 4);
}

static void ballot(emu_thread **lanes, uint32_t mask)
{
    uint32_t r = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1 && value_of(lanes[i]->warp)) r |= 1u << i;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) memcpy(lanes[i]->warp->io, &r, 4);
}

static void ldmatrix(emu_thread **lanes, const cuemu_warp_args *first)
{
    const int count = first->arg;
    const bool trans = first->width;
    uint16_t m[4][8][8];
    emu_thread *self = emu.cur;
    for (int i = 0; i < 8 * count; i++) {
        const void *row = lanes[i]->warp->a;
        emu.cur = lanes[i]; /* whose access it is, should it be reported */
        if ((uintptr_t)row % 16) emu_fail(cudaErrorMisalignedAddress, "ldmatrix at %s from %p, which is no multiple of 16", first->site, row);
        check_access(row, 16, false, false);
        memcpy(m[i / 8][i % 8], row, 16);
    }
    emu.cur = self;
    for (int l = 0; l < 32; l++) {
        uint32_t *r = static_cast<uint32_t *>(lanes[l]->warp->io);
        for (int j = 0; j < count; j++) {
            const int a = l / 4, b = 2 * (l % 4);
            r[j] = trans ? m[j][b][a] | (uint32_t)m[j][b + 1][a] << 16 : m[j][a][b] | (uint32_t)m[j][a][b + 1] << 16;
        }
    }
}

float cuemu_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    if (exponent) return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
    const float v = (float)fraction * 0x1p-24f;
    return sign ? -v : v;
}
static float from_bf16(uint16_t h) { return __uint_as_float((uint32_t)h << 16); }

/* A (16 x 16) and B (16 x 8) of the warp as floats. */
static void fragments(emu_thread **lanes, float (*convert)(uint16_t), float a[16][16], float b[16][8])
{
    for (int l = 0; l < 32; l++) {
        const uint16_t *ra = static_cast<const uint16_t *>(lanes[l]->warp->a), *rb = static_cast<const uint16_t *>(lanes[l]->warp->b);
        const int g = l / 4, c = l % 4 * 2;
        for (int r = 0; r < 4; r++)
            for (int i = 0; i < 2; i++) a[g + r % 2 * 8][c + i + r / 2 * 8] = convert(ra[2 * r + i]);
        for (int r = 0; r < 2; r++)
            for (int i = 0; i < 2; i++) b[c + i + r * 8][g] = convert(rb[2 * r + i]);
    }
}

static void mma_float(emu_thread **lanes, float (*convert)(uint16_t))
{
    float a[16][16], b[16][8];
    fragments(lanes, convert, a, b);
    for (int l = 0; l < 32; l++) {
        float *d = static_cast<float *>(lanes[l]->warp->io);
        for (int i = 0; i < 4; i++) {
            const int row = l / 4 + i / 2 * 8, column = l % 4 * 2 + i % 2;
            for (int k = 0; k < 16; k++) d[i] = fmaf(a[row][k], b[k][column], d[i]);
        }
    }
}

static void mma_bytes(emu_thread **lanes)
{
    int a[16][32], b[32][8];
    for (int l = 0; l < 32; l++) {
        const int8_t *ra = static_cast<const int8_t *>(lanes[l]->warp->a), *rb = static_cast<const int8_t *>(lanes[l]->warp->b);
        const int g = l / 4, c = l % 4 * 4;
        for (int r = 0; r < 4; r++)
            for (int i = 0; i < 4; i++) a[g + r % 2 * 8][c + i + r / 2 * 16] = ra[4 * r + i];
        for (int r = 0; r < 2; r++)
            for (int i = 0; i < 4; i++) b[c + i + r * 16][g] = rb[4 * r + i];
    }
    for (int l = 0; l < 32; l++) {
        int32_t *d = static_cast<int32_t *>(lanes[l]->warp->io);
        for (int i = 0; i < 4; i++) {
            const int row = l / 4 + i / 2 * 8, column = l % 4 * 2 + i % 2;
            uint32_t sum = (uint32_t)d[i]; /* wraps, as the instruction does */
            for (int k = 0; k < 32; k++) sum += (uint32_t)(a[row][k] * b[k][column]);
            d[i] = (int32_t)sum;
        }
    }
}

/* A line of a core, read for a lane. */
static void core_line(emu_thread *lane, const wgmma_cores *m, uint32_t core, uint32_t k_core, uint32_t line, float v[8])
{
    const char *p = static_cast<const char *>(m->p) + (size_t)core * m->other_step + (size_t)k_core * m->k_step + line * 16;
    uint16_t h[8];
    emu.cur = lane;
    check_access(p, 16, false, false);
    memcpy(h, p, 16);
    for (int i = 0; i < 8; i++) v[i] = from_bf16(h[i]);
}
/* The warp's 16 rows of A times 16 columns, with all of B. */
static void wgmma(emu_thread **lanes)
{
    static float a[2][8][2][8], b[2][8][256], sum[16][256]; /* one thread runs everything; this is much for a stack */
    emu_thread *self = emu.cur;
    const wgmma_cores ma = *static_cast<const wgmma_cores *>(self->warp->a), mb = *static_cast<const wgmma_cores *>(self->warp->b);
    const uint32_t core = self->index / 32 % 4 * 2;
    for (int l = 0; l < 32; l++)
        if (memcmp(lanes[l]->warp->a, &ma, sizeof ma) || memcmp(lanes[l]->warp->b, &mb, sizeof mb))
            emu_fail(cudaErrorLaunchFailure, "wgmma at %s: lane %d names other matrices", self->warp->site, l);
    for (uint32_t i = 0; i < 32; i++) core_line(lanes[i], &ma, core + i / 16, i / 8 % 2, i % 8, a[i / 16][i % 8][i / 8 % 2]);
    for (uint32_t i = 0; i < 512; i++) core_line(lanes[i % 32], &mb, i / 16, i / 8 % 2, i % 8, &b[i / 8 % 2][i % 8][i / 16 * 8]);
    emu.cur = self;
    emu.n_wgmmas++;
    for (int l = 0; l < 32; l++)
        for (int n = 0; n < 32; n++)
            for (int i = 0; i < 4; i++) sum[l / 4 + i / 2 * 8][n * 8 + l % 4 * 2 + i % 2] = static_cast<const float(*)[4]>(lanes[l]->warp->io)[n][i];
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 256; n++) sum[r][n] = fmaf(a[r / 8][r % 8][k / 8][k % 8], b[k / 8][k % 8][n], sum[r][n]);
    for (int l = 0; l < 32; l++)
        for (int n = 0; n < 32; n++)
            for (int i = 0; i < 4; i++) static_cast<float(*)[4]>(lanes[l]->warp->io)[n][i] = sum[l / 4 + i / 2 * 8][n * 8 + l % 4 * 2 + i % 2] + (emu.set.bad_wgmma ? 1.0f : 0.0f);
}

void emu_warp_run(emu_thread **lanes, uint32_t mask)
{
    const cuemu_warp_args *w = emu.cur->warp;
    switch (w->op) {
    case CUEMU_WSYNC: check_syncwarp(lanes, mask); break;
    case CUEMU_SHFL:
    case CUEMU_SHFL_UP:
    case CUEMU_SHFL_DOWN:
    case CUEMU_SHFL_XOR: shuffle(lanes, mask); break;
    case CUEMU_BALLOT: ballot(lanes, mask); break;
    case CUEMU_LDMATRIX: ldmatrix(lanes, w); break;
    case CUEMU_MMA_F16: mma_float(lanes, cuemu_f16); break;
    case CUEMU_MMA_BF16: mma_float(lanes, from_bf16); break;
    case CUEMU_MMA_S8: mma_bytes(lanes); break;
    case CUEMU_WGMMA: wgmma(lanes); break;
    default: reduce(lanes, mask, w->op);
    }
}

/* ---- atomics and flags ---- */
static uint64_t load(const void *p, unsigned size)
{
    uint64_t v = 0;
    memcpy(&v, p, size);
    return v;
}

static void store(void *p, const void *v, unsigned size)
{
    const int arena = arena_of((uintptr_t)p);
    uint8_t bytes[8];
    memcpy(bytes, v, size);
    if (arena >= 0 && arena < EMU_DEVICES && arena != emu.cur->block->launch->device && emu_peer_fault_hits(false)) {
        if (emu.set.peer_fault == CUEMU_PEER_DROP) return;
        if (emu.set.peer_fault == CUEMU_PEER_ZERO) memset(bytes, 0, size);
        if (emu.set.peer_fault == CUEMU_PEER_FLIP) bytes[0] ^= 1;
    }
    memcpy(p, bytes, size);
}

static void aligned(const void *p, unsigned size)
{
    if ((uintptr_t)p % size) emu_fail(cudaErrorMisalignedAddress, "access of %u bytes at %p, which is not aligned", size, p);
}

void cuemu_peek(const void *p, void *out, unsigned size)
{
    check_settle(emu.cur);
    aligned(p, size);
    if (!emu_below(4)) emu_leave();
    check_access(p, size, false, true);
    check_access(p, size, true, true);
    memcpy(out, p, size);
    emu.cur->peek_old = load(p, size);
    check_acquire(p, true);
}

void cuemu_poke(void *p, const void *v, unsigned size)
{
    const bool changed = emu.cur->peek_old != load(v, size);
    check_release(p, true, true);
    store(p, v, size);
    if (changed) emu_event();
    else emu_poll(p, emu.cur->peek_old);
}

void cuemu_fence(void)
{
    check_settle(emu.cur);
    check_fence();
}

static uint32_t flag_load(const uint32_t *p, bool relaxed)
{
    check_settle(emu.cur);
    aligned(p, 4);
    if (!emu_below(4)) emu_leave();
    check_access(p, 4, false, true);
    const uint32_t v = (uint32_t)load(p, 4);
    check_acquire(p, relaxed);
    emu_poll(p, v);
    return v;
}
uint32_t ld_acquire_sys(const uint32_t *p) { return flag_load(p, false); }
uint32_t ld_relaxed_sys(const uint32_t *p) { return flag_load(p, true); }

static void flag_store(uint32_t *p, uint32_t v, bool relaxed)
{
    check_settle(emu.cur);
    aligned(p, 4);
    if (!emu_below(4)) emu_leave();
    check_access(p, 4, true, true);
    check_release(p, relaxed, false);
    store(p, &v, 4);
    emu_event();
}
void st_release_sys(uint32_t *p, uint32_t v) { flag_store(p, v, false); }
void st_relaxed_sys(uint32_t *p, uint32_t v) { flag_store(p, v, true); }

/* ---- cp.async ---- */
static void cp_land(const emu_cp *c)
{
    memcpy(c->dst, c->src, c->n);
    memset(c->dst + c->n, 0, c->size - c->n);
    check_cp(c, false);
}

/* Lands at once, or (one chance in two) at the wait; until then 0xff stands there, and the source is read late as well. */
void cuemu_cp_async(void *dst, const void *src, uint32_t size, uint32_t n)
{
    emu_thread *t = emu.cur;
    check_settle(t);
    if ((uintptr_t)dst % size || ((uintptr_t)src % size && n)) emu_fail(cudaErrorMisalignedAddress, "cp.async of %u bytes from %p to %p", size, src, dst);
    if (arena_of((uintptr_t)dst) != EMU_SHARED) emu_fail(cudaErrorIllegalAddress, "cp.async to %p, which is no shared memory", dst);
    if (n > size) emu_fail(cudaErrorInvalidValue, "cp.async of %u bytes reads %u", size, n);
    const emu_cp c = {static_cast<char *>(dst), static_cast<const char *>(src), size, n, emu_below(2) == 0, t->cp_group};
    check_cp(&c, true);
    if (!c.late) return cp_land(&c);
    memset(dst, 0xff, size);
    if (!t->cp) t->cp = new std::vector<emu_cp>();
    t->cp->push_back(c);
}

void cp_async_commit(void) { emu.cur->cp_group++; }

void cuemu_cp_wait(int groups)
{
    emu_thread *t = emu.cur;
    check_settle(t);
    t->unseen = t->cp_group > 0;
    if (!t->cp) return;
    std::vector<emu_cp> rest;
    for (const emu_cp &c : *t->cp) {
        if (c.group < t->cp_group - groups) cp_land(&c);
        else rest.push_back(c);
    }
    *t->cp = rest;
}

/* ---- wgmma: what was queued is done at the wait, the latest time at which it may read ---- */
void fence_async_shared(void) { emu.cur->unseen = false; }

void cuemu_wgmma(void *d, wgmma_cores a, wgmma_cores b, const char *site)
{
    emu_thread *t = emu.cur;
    check_settle(t);
    if (t->block->unseen) emu_fail(cudaErrorLaunchFailure, "wgmma at %s: no fence.proxy.async before the last barrier behind what threads copied", site);
    if ((uintptr_t)a.p % 16 || (uintptr_t)b.p % 16) emu_fail(cudaErrorMisalignedAddress, "wgmma at %s of %p and %p", site, a.p, b.p);
    if (!t->wgmma) t->wgmma = new std::vector<emu_wgmma>();
    t->wgmma->push_back({d, a, b, site, t->wgmma_group});
}
void wgmma_commit(void) { emu.cur->wgmma_group++; }
void cuemu_wgmma_wait(int groups)
{
    emu_thread *t = emu.cur;
    check_settle(t);
    while (t->wgmma && !t->wgmma->empty() && t->wgmma->front().group < t->wgmma_group - groups) {
        const emu_wgmma m = t->wgmma->front();
        const cuemu_warp_args w = {CUEMU_WGMMA, 0xffffffffu, m.site, m.d, sizeof(float[32][4]), 0, 32, &m.a, &m.b};
        t->wgmma->erase(t->wgmma->begin());
        cuemu_warp(&w);
    }
}
