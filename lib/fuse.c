/*
 * fuse.c - how the threads of a team share a program when the rows are few (FEW_ROWS, as in decoding).
 *
 * Then an operation takes a few microseconds, a barrier is as dear as a norm, and a value that another core made is dearer than
 * one made again. So each instruction gets one of three ways:
 *
 *   EACH   every thread computes all of it into memory of its own (embedding, norms of the hidden state, activations as groups);
 *   OWN    every thread computes its own columns, cut once for a chain of instructions: heads for q, k, v up to their place in
 *          the pages; groups of 32 columns for gate, up, activation and groups; columns of the hidden state for o and down
 *          up to the residual;
 *   SHARE  the operation cuts itself, as with many rows.
 *
 * plan.c then leaves out the barriers between instructions of which each thread reads only what it wrote itself. A layer with
 * attention and a dense feed-forward keeps five: before attention, behind it, behind o with the residual, before down, behind
 * down. Several ranks wait once more before each sum of their partials (every thread could add all columns of all leaves itself,
 * but they are many, and other cores made them); post-norm blocks wait once for each such norm; experts keep the barriers of
 * their own operations. Who computes what never changes a bit of it, so fused equals unfused.
 *
 * On a device a launch is dear where a barrier is on the CPU, and memory is shared anyway. There program_join puts together what
 * follows each other, for exec_joint.c to launch as one: linear operations of one input with what works on their outputs head by head
 * or column by column; the sum over leaves with its residual, the norm behind it and its groups (with one rank behind the linear
 * operation, with several behind the barrier); attention with the groups of its output.
 */
#include "pool.h"
#include "program.h"

enum { GRAIN = 16 }; /* columns of the hidden state: a cache line */

static uint32_t len(shard_range r) { return r.hi - r.lo; }

/* What a cut divides on a rank. Of heads: those of q, then of k, then of v. */
static uint32_t cut_units(const arch *a, const shard_rank *s, uint32_t cut)
{
    switch (cut) {
    case CUT_HIDDEN: return (a->hidden_size + GRAIN - 1) / GRAIN;
    case CUT_HEADS: return len(s->q_head) + 2 * len(s->kv_head);
    case CUT_FFN: return (len(s->ffn) + GROUP_K - 1) / GROUP_K;
    default: return (len(s->shared) + GROUP_K - 1) / GROUP_K;
    }
}

/* A cut is used when no thread has more than 1/8 above its even share. */
static bool cut_even(const arch *a, const shard_plan *s, const uint32_t *n_threads, uint32_t cut)
{
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        uint64_t units = cut_units(a, &s->rank[r], cut), n = n_threads[r];
        if (8 * ((units + n - 1) / n) * n > 9 * units) return false;
    }
    return true;
}

static uint32_t cut_of_width(uint8_t width)
{
    switch (width) {
    case W_Q: case W_K: case W_V: return CUT_HEADS;
    case W_FFN: case W_GROUPS_FFN: return CUT_FFN;
    case W_SHARED: case W_GROUPS_SHARED: return CUT_SHARED;
    case W_HIDDEN: case W_PART_O: case W_PART_DOWN: case W_PART_SHARED: return CUT_HIDDEN;
    default: return CUT_COUNT;
    }
}

/* Instructions whose share can be any run of columns of their output. */
static uint32_t own_cut(const program *p, const arch *a, const prog_instr *c)
{
    if (c->op == PROG_KV_WRITE) return a->kv_lora ? CUT_COUNT : CUT_HEADS;
    if (c->out == NO_SLOT) return CUT_COUNT;
    uint32_t cut = cut_of_width(p->slots[c->out].width);
    switch (c->op) {
    case PROG_LINEAR: case PROG_NORM: case PROG_CLAMP: case PROG_ROPE: case PROG_ACT: break;
    case PROG_QUANT: return c->in[2] == NO_SLOT ? cut : CUT_COUNT;
    case PROG_REDUCE: return cut;
    default: return CUT_COUNT;
    }
    if (cut == CUT_HEADS && a->kv_lora) return CUT_COUNT;
    return c->op == PROG_NORM && cut == CUT_HIDDEN ? CUT_COUNT : cut;
}

/* Instructions that cost little beside a barrier. The state that leaves the program must be where all can read it. */
static bool is_cheap(const program *p, const prog_instr *c)
{
    if (c->out == NO_SLOT || c->out == p->out_slot || c->in_place) return false;
    const prog_slot *out = &p->slots[c->out];
    switch (c->op) {
    case PROG_EMBED: return true;
    case PROG_NORM: return out->width == W_HIDDEN;
    case PROG_QUANT: return c->in[2] == NO_SLOT && (out->width == W_GROUPS_HIDDEN || out->width == W_GROUPS_ATTN);
    case PROG_REDUCE: return !p->slots[c->in[0]].shared;
    default: return false;
    }
}

void program_fuse(program *p, const arch *a, const shard_plan *s, const uint32_t *n_threads)
{
    bool even[CUT_COUNT + 1] = {false};
    for (uint32_t i = 0; i < CUT_COUNT; i++) even[i] = cut_even(a, s, n_threads, i);
    for (size_t i = 0; i < p->n_code; i++) {
        prog_instr *c = &p->code[i];
        c->cut = (uint8_t)own_cut(p, a, c);
        c->how = is_cheap(p, c) ? HOW_EACH : even[c->cut] ? HOW_OWN : HOW_SHARE;
        if (c->how == HOW_EACH) p->slots[c->out].each = true;
    }
    p->fused = true;
    p->n_ranks = s->n_ranks;
}

/* The part of units [lo, hi) that lies in n units from `first` on, each `width` columns wide. */
static shard_range part_of(uint64_t lo, uint64_t hi, uint32_t first, uint32_t n, uint32_t width)
{
    uint64_t l = MAX(lo, first), h = MIN(hi, (uint64_t)first + n);
    if (l >= h) return (shard_range){0, 0};
    return (shard_range){(uint32_t)(l - first) * width, (uint32_t)(h - first) * width};
}

void fuse_columns(const arch *a, const shard_rank *s, uint32_t thread, uint32_t n_threads, shard_range own[W_COUNT])
{
    uint32_t q = len(s->q_head), n_kv = len(s->kv_head);
    uint64_t lo, hi;
    memset(own, 0, W_COUNT * sizeof *own);
    pool_share(a->hidden_size, GRAIN, thread, n_threads, &lo, &hi);
    own[W_HIDDEN] = own[W_PART_O] = own[W_PART_DOWN] = own[W_PART_SHARED] = (shard_range){(uint32_t)lo, (uint32_t)hi};
    pool_share(len(s->ffn), GROUP_K, thread, n_threads, &lo, &hi);
    own[W_FFN] = own[W_GROUPS_FFN] = (shard_range){(uint32_t)lo, (uint32_t)hi};
    pool_share(len(s->shared), GROUP_K, thread, n_threads, &lo, &hi);
    own[W_SHARED] = own[W_GROUPS_SHARED] = (shard_range){(uint32_t)lo, (uint32_t)hi};
    pool_share(q + 2 * (uint64_t)n_kv, 1, thread, n_threads, &lo, &hi);
    own[W_Q] = part_of(lo, hi, 0, q, a->head_dim);
    own[W_K] = part_of(lo, hi, q, n_kv, a->head_dim);
    own[W_V] = part_of(lo, hi, q + n_kv, n_kv, a->v_head_dim);
}

/* ---- devices ---- */

/* Instruction i when it is there, of this kind, and reads `slot`; else NULL. */
static const prog_instr *reads(const prog_instr *i, const prog_instr *end, uint8_t op, uint16_t slot)
{
    return i < end && i->op == op && i->in[0] == slot ? i : NULL;
}

/* Norms of the hidden state and the groups of one, as far as they are there; `slot` is what is normed. */
static const prog_instr *norm_and_groups(const program *p, const prog_instr *i, const prog_instr *end, uint16_t slot)
{
    if (!reads(i, end, PROG_NORM, slot) || p->slots[i->out].width != W_HIDDEN) return i;
    const prog_instr *q = reads(i + 1, end, PROG_QUANT, i->out);
    return q && q->in[2] == NO_SLOT ? q + 1 : i + 1;
}

/* Linear operations from c on that read the same; what other ranks read stays alone. */
static uint32_t linears_from(const program *p, const prog_instr *c, const prog_instr *end)
{
    uint32_t n = 0;
    while (n < 3 && c + n < end && c[n].op == PROG_LINEAR && c[n].in[0] == c->in[0] && c[n].in[1] == c->in[1] &&
           !p->slots[c[n].out].shared)
        n++;
    return MAX(n, 1u);
}

/* Behind n linear operations from c on: what works on their outputs, part by part. */
static const prog_instr *follow(const program *p, const prog_instr *c, uint32_t n, const prog_instr *end, uint32_t n_ranks)
{
    const prog_instr *i = c + n;
    if (n == 1 && n_ranks == 1 && p->slots[c->out].shared && reads(i, end, PROG_REDUCE, c->out))
        return norm_and_groups(p, i + 1, end, i->out);
    if (n < 3 && reads(i, end, PROG_ACT, c->out) && (n == 1 ? i->in[1] == NO_SLOT : i->in[1] == c[1].out)) {
        const prog_instr *q = reads(i + 1, end, PROG_QUANT, i->out);
        return q && q->in[2] == NO_SLOT ? q + 1 : i + 1;
    }
    if (n < 3) return i;
    while (i < end && (i->op == PROG_NORM || i->op == PROG_ROPE) && (i->out == c[0].out || i->out == c[1].out)) i++;
    return i < end && i->op == PROG_KV_WRITE && i->in[0] == c[1].out && i->in[1] == c[2].out ? i + 1 : c + n;
}

static const prog_instr *group_end(const program *p, const prog_instr *c, const prog_instr *end, uint32_t n_ranks)
{
    const prog_instr *q;
    switch (c->op) {
    case PROG_REDUCE: return norm_and_groups(p, c + 1, end, c->out);
    case PROG_NORM: return MAX(norm_and_groups(p, c, end, c->in[0]), c + 1);
    case PROG_LINEAR: return follow(p, c, linears_from(p, c, end), end, n_ranks);
    case PROG_ATTN:
        q = reads(c + 1, end, PROG_QUANT, c->out);
        return q && q->in[2] == NO_SLOT ? q + 1 : c + 1;
    default: return c + 1;
    }
}

void program_join(program *p, uint32_t n_ranks)
{
    p->stops = n_ranks == 1;
    for (size_t i = 0; i < p->n_code; i += 1u + p->code[i].joined)
        p->code[i].joined = (uint8_t)(group_end(p, &p->code[i], p->code + p->n_code, n_ranks) - &p->code[i] - 1);
}
