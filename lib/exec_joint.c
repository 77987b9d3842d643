/*
 * exec_joint.c - instructions that program_join put together, in as few launches of a device as they fit in.
 *
 * While such a group is walked, the rank's table of operations is one that notes them instead of launching (its "stream" is the
 * note), so that every instruction makes its arguments as it does alone. What was noted decides what goes in one launch: linear
 * operations of one input and what follows them (after_ops.h), rows of the residual stream, attention with the groups of its
 * output. What fits nowhere is launched alone, in its place. A rank that holds nothing of a weight notes nothing for it.
 */
#include "after_ops.h"
#include "exec_priv.h"

enum { NOTES = 16 }; /* more are given in pieces: rows of many rope tables are many operations */
typedef struct {
    uint8_t op; /* PROG_* */
    union {
        op_reduce_args reduce;
        op_norm_args norm;
        op_quant_args quant;
        op_linear_args linear;
        op_act_args act;
        op_rope_args rope;
        op_kv_write_args kv;
        op_attn_args attn;
    } a;
    union {
        const float *parts[MAX_LEAVES];
        uint32_t leaf[MAX_LEAVES];
        op_kbias kbias;
    } list; /* what the arguments point at on the caller's stack */
} note;
typedef struct {
    note op[NOTES];
    uint32_t n;
    const op_cuda_table *cuda;
    void *stream;
    op_counts counts;
    int code;
} notes;

static void give(notes *l);

static note *new_note(notes *l, uint8_t op)
{
    if (l->n == NOTES) give(l);
    note *o = &l->op[l->n++];
    o->op = op;
    return o;
}

static int note_reduce(const op_reduce_args *a, void *list)
{
    note *o = new_note(list, PROG_REDUCE);
    memcpy(o->list.parts, a->parts, MIN(a->n_leaves, (uint32_t)MAX_LEAVES) * sizeof *a->parts);
    o->a.reduce = *a;
    o->a.reduce.parts = o->list.parts;
    return 0;
}

static int note_norm(const op_norm_args *a, void *list)
{
    new_note(list, PROG_NORM)->a.norm = *a;
    return 0;
}

static int note_quant(const op_quant_args *a, void *list)
{
    note *o = new_note(list, PROG_QUANT);
    memcpy(o->list.leaf, a->leaf_k, MIN(a->n_leaves, (uint32_t)MAX_LEAVES) * sizeof *a->leaf_k);
    o->a.quant = *a;
    o->a.quant.leaf_k = o->list.leaf;
    return 0;
}

static int note_linear(const op_linear_args *a, void *list)
{
    new_note(list, PROG_LINEAR)->a.linear = *a;
    return 0;
}

static int note_act(const op_act_args *a, void *list)
{
    new_note(list, PROG_ACT)->a.act = *a;
    return 0;
}

static int note_rope(const op_rope_args *a, void *list)
{
    new_note(list, PROG_ROPE)->a.rope = *a;
    return 0;
}

static const op_kbias *copy_kbias(note *o, const op_kbias *kb)
{
    if (kb) o->list.kbias = *kb;
    return kb ? &o->list.kbias : NULL;
}

static int note_kv_write(const op_kv_write_args *a, void *list)
{
    note *o = new_note(list, PROG_KV_WRITE);
    o->a.kv = *a;
    o->a.kv.kbias = copy_kbias(o, a->kbias);
    return 0;
}

static int note_attn(const op_attn_args *a, void *list)
{
    note *o = new_note(list, PROG_ATTN);
    o->a.attn = *a;
    o->a.attn.kbias = copy_kbias(o, a->kbias);
    return 0;
}

static const op_cuda_table noting = {.reduce = note_reduce, .norm = note_norm, .quant = note_quant, .linear = note_linear,
                                     .act = note_act, .rope = note_rope, .kv_write = note_kv_write, .attn = note_attn};

/* Note i when it is there and of this kind, else NULL. */
static const note *at(const notes *l, uint32_t i, uint8_t op) { return i < l->n && l->op[i].op == op ? &l->op[i] : NULL; }

/* The groups of x in note i, or NULL. */
static const op_quant_args *groups_of(const notes *l, uint32_t i, const float *x)
{
    const note *q = at(l, i, PROG_QUANT);
    return q && q->a.quant.x == x ? &q->a.quant : NULL;
}

/* The norm in note i of x, and the groups behind it; gives how many notes these are. */
static uint32_t norm_of_row(const notes *l, uint32_t i, const float *x, const op_norm_args **norm, const op_quant_args **quant)
{
    const note *m = at(l, i, PROG_NORM);
    *norm = m && m->a.norm.groups == 1 && (!x || m->a.norm.x == x) ? &m->a.norm : NULL;
    *quant = *norm ? groups_of(l, i + 1, (*norm)->y) : NULL;
    return (*norm ? 1u : 0u) + (*quant ? 1u : 0u);
}

/* Which of q and k a norm or rope in place is of: 0 or 1; 2: neither. */
static uint32_t which_head(const op_linear_args *a, const float *x) { return x == a[0].y ? 0 : x == a[1].y ? 1 : 2; }

static uint32_t follow_heads(const notes *l, uint32_t i, const op_linear_args *a, op_after *o)
{
    uint32_t k;
    for (k = i; k < l->n; k++) {
        const note *m = &l->op[k];
        const uint32_t w = m->op == PROG_NORM ? which_head(a, m->a.norm.y) : m->op == PROG_ROPE ? which_head(a, m->a.rope.x) : 2;
        if (w == 2 || o->rope[w] || (m->op == PROG_NORM && o->head_norm[w])) break;
        if (m->op == PROG_NORM) o->head_norm[w] = &m->a.norm;
        else o->rope[w] = &m->a.rope;
    }
    const note *pages = at(l, k, PROG_KV_WRITE);
    if (!pages) return 0;
    o->kv = &pages->a.kv;
    o->what = AFTER_HEADS;
    return k + 1 - i;
}

/* What follows n linear operations from note i on; gives how many notes it is, 0: none. */
static uint32_t follow(const notes *l, uint32_t i, const op_linear_args *a, uint32_t n, op_after *o)
{
    const note *c = at(l, i, PROG_ACT), *s = at(l, i, PROG_REDUCE);
    *o = (op_after){.counts = l->counts};
    if (n == 3) return follow_heads(l, i, a, o);
    if (c) {
        o->what = AFTER_ACT;
        o->act = &c->a.act;
        o->quant = groups_of(l, i + 1, c->a.act.y);
        return o->quant ? 2 : 1;
    }
    if (!s || n != 1) return 0;
    o->what = AFTER_ROWS;
    o->sum = &s->a.reduce;
    return 1 + norm_of_row(l, i + 1, s->a.reduce.y, &o->norm, &o->quant);
}

static uint32_t give_linears(notes *l, uint32_t i)
{
    op_linear_args a[3];
    op_after after;
    uint32_t n = 0;
    for (; n < ARRAY_LEN(a) && at(l, i + n, PROG_LINEAR) && l->op[i + n].a.linear.x == l->op[i].a.linear.x &&
           l->op[i + n].a.linear.xq == l->op[i].a.linear.xq; n++)
        a[n] = l->op[i + n].a.linear;
    const uint32_t more = follow(l, i + n, a, n, &after);
    l->code = l->cuda->linears(a, n, more ? &after : NULL, l->stream);
    return n + more;
}

static uint32_t give_rows(notes *l, uint32_t i)
{
    const note *s = at(l, i, PROG_REDUCE);
    const op_norm_args *norm;
    const op_quant_args *quant;
    const uint32_t n = norm_of_row(l, s ? i + 1 : i, s ? s->a.reduce.y : NULL, &norm, &quant);
    if (n) l->code = l->cuda->rows(s ? &s->a.reduce : NULL, norm, quant, l->stream);
    else if (s) l->code = l->cuda->reduce(&s->a.reduce, l->stream);
    else l->code = l->cuda->norm(&l->op[i].a.norm, l->stream);
    return n + (s || n == 0 ? 1 : 0);
}

static uint32_t give_attn(notes *l, uint32_t i)
{
    const op_attn_args *a = &l->op[i].a.attn;
    const op_quant_args *quant = groups_of(l, i + 1, a->out);
    if (quant && quant->n_tokens == a->b.n_tokens) l->code = l->cuda->attn_groups(a, quant, &l->counts, l->stream);
    else quant = NULL, l->code = l->cuda->attn(a, l->stream);
    return quant ? 2 : 1;
}

/* The operations from note i on that go in one launch; gives how many. */
static uint32_t give_some(notes *l, uint32_t i)
{
    const note *o = &l->op[i];
    switch (o->op) {
    case PROG_LINEAR: return give_linears(l, i);
    case PROG_ATTN: return give_attn(l, i);
    case PROG_QUANT: l->code = l->cuda->quant(&o->a.quant, l->stream); return 1;
    case PROG_ACT: l->code = l->cuda->act(&o->a.act, l->stream); return 1;
    case PROG_ROPE: l->code = l->cuda->rope(&o->a.rope, l->stream); return 1;
    case PROG_KV_WRITE: l->code = l->cuda->kv_write(&o->a.kv, l->stream); return 1;
    default: return give_rows(l, i); /* a sum, a norm */
    }
}

static void give(notes *l)
{
    for (uint32_t i = 0; i < l->n && !l->code;) i += give_some(l, i);
    l->n = 0;
}

void exec_joint(const exec *x, rank_state *k, const prog_instr *c)
{
    notes l;
    l.n = 0, l.code = 0, l.cuda = k->cuda, l.stream = k->stream, l.counts = (op_counts){k->counts, k->n_counts};
    k->cuda = &noting;
    k->stream = &l;
    for (uint32_t i = 0; i <= c->joined; i++) exec_instr(x, k, &c[i], 0, 1);
    k->cuda = l.cuda;
    k->stream = l.stream;
    give(&l);
    if (!k->code) k->code = l.code;
}
