/*
 * plan.c - memory and barriers of a program for one rank.
 *
 * Lifetimes: a slot lives from the instruction that writes it to the last that reads it. First fit: slots are placed in order
 * of birth at the lowest offset where no living slot is. A slot that other ranks read (partials, sums of heads) lives up to
 * the barrier of all ranks that follows its last reader: only then have all of them left it.
 *
 * Barriers depend on the program only, never on offsets: an instruction waits when it reads what was written, or overwrites
 * (in place, or by reuse of memory) what was read or written, since the last barrier. Reuse is made safe by letting a slot's
 * memory go only to instructions behind a barrier: a slot counts as living up to the barrier that follows its last reader.
 *
 * Instructions that a device does in one launch count as one: each slot of theirs lives through all of them.
 *
 * A fused program (fuse.c) has two sets of barriers, for many rows and for few, and memory serves both. With few rows no thread
 * waits for what only it reads and writes; slots that every thread makes for itself lie in its own memory, of another plan.
 */
#include "program.h"

/* What goes in one launch (program_join) has all its inputs and outputs at the same time. */
static void widen(program *p)
{
    for (uint32_t i = 0; i < p->n_code; i += 1u + p->code[i].joined)
        for (uint32_t j = 0; j <= p->code[i].joined; j++) {
            const prog_instr *c = &p->code[i + j];
            const uint16_t slot[] = {c->in[0], c->in[1], c->in[2], c->out};
            for (size_t k = 0; k < ARRAY_LEN(slot); k++) {
                if (slot[k] == NO_SLOT) continue;
                p->slots[slot[k]].first = MIN(p->slots[slot[k]].first, i);
                p->slots[slot[k]].last = MAX(p->slots[slot[k]].last, i + p->code[i].joined);
            }
        }
}

static void lifetimes(program *p)
{
    for (size_t i = 0; i < p->n_slots; i++) p->slots[i].first = UINT32_MAX, p->slots[i].last = 0;
    for (uint32_t i = 0; i < p->n_code; i++) {
        const prog_instr *c = &p->code[i];
        for (int j = 0; j < 3; j++)
            if (c->in[j] != NO_SLOT) p->slots[c->in[j]].last = i;
        if (c->out != NO_SLOT) {
            p->slots[c->out].first = MIN(p->slots[c->out].first, i);
            p->slots[c->out].last = MAX(p->slots[c->out].last, i);
        }
    }
    if (p->in_slot != NO_SLOT) p->slots[p->in_slot].first = 0;
    widen(p);
    p->slots[p->out_slot].last = (uint32_t)p->n_code;
}

/* Whether a thread touches only columns of its own of a slot that both instructions use. A linear operation reads all of its input;
 * the others read of it what they write. */
static bool same_thread(const program *p, const prog_instr *e, const prog_instr *c, uint16_t slot)
{
    if (p->slots[slot].each) return true;
    const prog_instr *reader = c->out == slot ? e : c;
    return e->how == HOW_OWN && c->how == HOW_OWN && e->cut == c->cut && (reader->op != PROG_LINEAR || reader->out == slot);
}

/* True when c must wait for instructions since `from`. */
static bool depends(const program *p, const prog_instr *c, uint32_t from, uint32_t i, bool few)
{
    for (uint32_t j = from; j < i; j++) {
        const prog_instr *e = &p->code[j];
        if (c->op == PROG_ATTN && e->op == PROG_KV_WRITE) return true;
        for (int k = 0; k < 3; k++) {
            uint16_t slot = c->in[k];
            if (slot != NO_SLOT && slot == e->out && !(few && same_thread(p, e, c, slot))) return true;
            slot = e->in[k];
            if (slot != NO_SLOT && slot == c->out && !(few && same_thread(p, e, c, slot))) return true;
        }
        if (c->out != NO_SLOT && c->out == e->out && !(few && same_thread(p, e, c, c->out))) return true;
    }
    return false;
}

/* The slot of other ranks that c reads, or NO_SLOT. */
static uint16_t reads_ranks(const program *p, const prog_instr *c)
{
    uint16_t s = c->op == PROG_REDUCE ? c->in[0] : c->op == PROG_NORM_SUMS ? c->in[1] : NO_SLOT;
    return s != NO_SLOT && p->slots[s].shared ? s : NO_SLOT;
}

static void barriers(program *p)
{
    uint32_t from = 0, from_all = 0, joined = 0; /* joined: end of the group of program_join */
    for (uint32_t i = 0; i < p->n_code; i++) {
        prog_instr *c = &p->code[i];
        uint16_t s = reads_ranks(p, c);
        c->sync = s != NO_SLOT && p->slots[s].first >= from_all ? 2 : depends(p, c, from, i, false) ? 1 : 0;
        if (c->sync == 2 && i < joined) c->sync = 1; /* one rank, in one launch with what it reads */
        if (p->stops && c->op == PROG_ATTN) c->sync = 2;
        joined = MAX(joined, i + 1 + c->joined);
        if (c->sync) from = i;
        if (c->sync == 2) from_all = i;
    }
}

/* With one rank no barrier is needed because of others; the one before attention takes over, where a step can be stopped. */
static void barriers_few(program *p)
{
    uint32_t from = 0, from_all = 0;
    for (uint32_t i = 0; i < p->n_code; i++) {
        prog_instr *c = &p->code[i];
        uint16_t s = reads_ranks(p, c);
        bool all = p->n_ranks > 1 ? s != NO_SLOT && p->slots[s].first >= from_all : c->op == PROG_ATTN;
        c->sync_few = all ? 2 : depends(p, c, from, i, true) ? 1 : 0;
        if (c->sync_few) from = i;
        if (c->sync_few == 2) from_all = i;
    }
}

/* Last instruction before the barrier that ends the life of a slot. */
static uint32_t until_barrier(const program *p, const prog_slot *s)
{
    uint32_t i = s->last + 1, j = i;
    while (i < p->n_code && p->code[i].sync < (s->shared ? 2 : 1)) i++;
    while (p->fused && j < p->n_code && p->code[j].sync_few < (s->shared && p->n_ranks > 1 ? 2 : 1)) j++;
    return MAX(i, j) - 1;
}

/* Floats of the groups of a row of k columns, and of the leaves that a rank holds of a split axis. */
static uint64_t group_floats(uint64_t k) { return ceil_div(k, GROUP_K) * (sizeof(op_group) / sizeof(float)); }
static uint64_t leaf_floats(const arch_axis *x, shard_range leaf)
{
    uint64_t n = 0;
    for (uint32_t l = leaf.lo; l < leaf.hi; l++) n += group_floats(axis_elem(x, x->leaf[l + 1]) - axis_elem(x, x->leaf[l]));
    return n;
}

static bool widths(const arch *a, const shard_plan *s, uint32_t rank, plan *out)
{
    const shard_rank *k = &s->rank[rank];
    uint32_t q = k->q_head.hi - k->q_head.lo, n_kv = k->kv_head.hi - k->kv_head.lo;
    const uint64_t w[W_COUNT] = {[W_HIDDEN] = a->hidden_size,
                                 [W_Q] = (uint64_t)q * a->head_dim,
                                 [W_K] = (uint64_t)n_kv * a->head_dim,
                                 [W_V] = (uint64_t)n_kv * a->v_head_dim,
                                 [W_ATTN] = (uint64_t)q * a->v_head_dim,
                                 [W_FFN] = k->ffn.hi - k->ffn.lo,
                                 [W_PART_O] = a->hidden_size,
                                 [W_PART_DOWN] = a->hidden_size,
                                 [W_LOGITS] = a->vocab_size,
                                 [W_SUMS] = q,
                                 [W_SHARED] = k->shared.hi - k->shared.lo,
                                 [W_PART_SHARED] = a->hidden_size,
                                 [W_PART_EXPERT] = a->hidden_size,
                                 [W_ROUTER] = a->n_experts,
                                 [W_ROUTE] = 2 * (uint64_t)a->experts_used,
                                 [W_PAIRS] = 2 * (uint64_t)a->experts_used + k->expert.hi - k->expert.lo + 1,
                                 [W_PAIR_X] = a->hidden_size,
                                 [W_PAIR_H] = a->moe_ffn_size,
                                 [W_ONE] = 1,
                                 [W_GROUPS_HIDDEN] = group_floats(MAX(a->hidden_size, a->q_lora)),
                                 [W_GROUPS_ATTN] = leaf_floats(&s->v, k->q_leaf),
                                 [W_GROUPS_FFN] = leaf_floats(&s->ffn, k->ffn_leaf),
                                 [W_GROUPS_SHARED] = leaf_floats(&s->shared, k->shared_leaf),
                                 [W_GROUPS_PAIR_X] = group_floats(a->hidden_size),
                                 [W_GROUPS_PAIR_H] = group_floats(a->moe_ffn_size),
                                 [W_Q_A] = a->q_lora,
                                 [W_LATENT] = arch_k_dim(a),
                                 [W_Q_LATENT] = (uint64_t)q * arch_k_dim(a),
                                 [W_ATTN_LATENT] = (uint64_t)q * arch_v_dim(a)};
    for (int i = 0; i < W_COUNT; i++) {
        uint64_t v;
        if (!u64_align(w[i], 16, &v) || v > UINT32_MAX) return false;
        out->stride[i] = (uint32_t)v;
        out->leaves[i] = 1;
    }
    out->leaves[W_PART_O] = k->q_leaf.hi - k->q_leaf.lo;
    out->leaves[W_PART_DOWN] = k->ffn_leaf.hi - k->ffn_leaf.lo;
    out->leaves[W_PART_SHARED] = k->shared_leaf.hi - k->shared_leaf.lo;
    out->leaves[W_PART_EXPERT] = k->expert_leaf.hi - k->expert_leaf.lo;
    out->leaves[W_PAIR_X] = out->leaves[W_PAIR_H] = out->leaves[W_GROUPS_PAIR_X] = out->leaves[W_GROUPS_PAIR_H] =
        k->expert.hi > k->expert.lo ? a->experts_used : 0;
    return true;
}

static uint64_t slot_floats(const plan *l, const prog_slot *s) { return (uint64_t)l->stride[s->width] * l->leaves[s->width] * l->rows; }

/* The logits of all ranks are one buffer of the executor: no room for them here. */
static bool placed(const prog_slot *s) { return s->width != W_LOGITS; }

/* Lowest offset for slot i beside the slots placed before it that live at the same time. */
static uint64_t first_fit(const program *p, const plan *l, size_t i)
{
    uint64_t at = 0, size = slot_floats(l, &p->slots[i]);
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t j = 0; j < i; j++) {
            const prog_slot *o = &p->slots[j];
            if (!placed(o) || until_barrier(p, o) < p->slots[i].first) continue;
            uint64_t end = l->off[j] + slot_floats(l, o);
            if (l->off[j] < at + size && at < end) at = end, moved = true;
        }
    }
    return at;
}

/* The same for the slots of which every thread has its own; nobody else waits for them. */
static uint64_t first_fit_each(const program *p, const plan *l, size_t i)
{
    uint64_t at = 0, size = (uint64_t)l->stride[p->slots[i].width] * FEW_ROWS;
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t j = 0; j < i; j++) {
            const prog_slot *o = &p->slots[j];
            if (!o->each || o->last < p->slots[i].first) continue;
            uint64_t end = l->each_off[j] + (uint64_t)l->stride[o->width] * FEW_ROWS;
            if (l->each_off[j] < at + size && at < end) at = end, moved = true;
        }
    }
    l->each_off[i] = at;
    return at + size;
}

tess_status plan_make(program *p, const arch *a, const shard_plan *s, uint32_t rank, uint32_t rows, plan *out, tess_error *err)
{
    *out = (plan){.rows = rows};
    lifetimes(p);
    barriers(p);
    if (p->fused) barriers_few(p);
    out->off = mem_calloc(p->m, p->n_slots, sizeof *out->off);
    out->each_off = mem_calloc(p->m, p->n_slots, sizeof *out->each_off);
    bool ok = out->off && out->each_off && widths(a, s, rank, out);
    if (p->fused && p->n_ranks == 1)
        out->leaves[W_PART_O] = out->leaves[W_PART_DOWN] = out->leaves[W_PART_SHARED] = 1; /* see run_linear */
    if (!ok) {
        plan_free(p->m, out);
        return ERR(err, TESS_E_NOMEM, "no memory to plan the activations");
    }
    for (size_t i = 0; i < p->n_slots; i++) {
        if (!placed(&p->slots[i])) continue;
        out->off[i] = first_fit(p, out, i);
        out->floats = MAX(out->floats, out->off[i] + slot_floats(out, &p->slots[i]));
        if (p->slots[i].each) out->each_floats = MAX(out->each_floats, first_fit_each(p, out, i));
    }
    return TESS_OK;
}

void plan_free(const mem *m, plan *p)
{
    mem_free(m, p->off);
    mem_free(m, p->each_off);
    *p = (plan){0};
}
