/*
 * exec_moe.c - mixtures of experts: choosing, grouping rows by expert, the experts of a rank, their weighted sum.
 *
 * A pair is a row and one of its chosen experts. A rank numbers the pairs of its own experts by expert, then by row, so that each
 * expert meets its rows as one block: one linear operation over all of them. The slot W_ROUTE holds ids (u32) and weights
 * of every row; the slot W_PAIRS (u32) is laid out as
 *   first[n_local + 1]   pair at which each local expert starts; the last is the number of pairs
 *   row[rows * used]     row of each pair
 *   pair[rows * used]    pair of choice j of row t at t * used + j, or OP_NO_PAIR when another rank has the expert
 */
#include "exec_priv.h"

typedef struct {
    uint32_t *first, *row, *pair, n_local, used;
    uint32_t most;         /* pairs that there can be */
    const uint32_t *count; /* how many there are: on a device only kernels may look */
} pair_list;

static pair_list pairs_at(const exec *x, const rank_state *k, uint16_t slot)
{
    const shard_rank *s = &x->model->shards.rank[k->rank];
    size_t stride;
    pair_list l = {.first = (uint32_t *)(void *)slot_at(x, k, slot, &stride),
                   .n_local = s->expert.hi - s->expert.lo,
                   .used = x->model->a.experts_used};
    l.most = x->n_rows * l.used;
    l.count = l.first + l.n_local;
    l.row = l.first + l.n_local + 1;
    l.pair = l.row + l.most;
    return l;
}

/* ids[t * is + j], w[t * is + j] */
static uint32_t *route_at(const exec *x, const rank_state *k, uint16_t slot, float **w, size_t *is)
{
    float *p = slot_at(x, k, slot, is);
    *w = p + x->model->a.experts_used;
    return (uint32_t *)(void *)p;
}

static void run_route(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    const arch *m = &x->model->a;
    const model_layer_rank *l = &x->model->layers[(size_t)c->layer * x->model->shards.n_ranks + k->rank];
    op_route_args a = {.kind = m->router_kind,
                       .n_experts = m->n_experts,
                       .n_used = m->experts_used,
                       .n_groups = m->router_groups,
                       .groups_used = m->router_groups_used,
                       .norm = m->router_norm != 0,
                       .scale = (float)m->router_scale,
                       .correction = l->router_correction,
                       .n_tokens = x->n_rows};
    a.x = slot_at(x, k, c->in[0], &a.xs);
    a.ids = route_at(x, k, c->out, &a.w, &a.is);
    a.ws = a.is;
    RUN(route, a);
}

static void run_pairs(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    pair_list l = pairs_at(x, k, c->out);
    float *w;
    op_pairs_args a = {.n_tokens = x->n_rows,
                       .n_used = l.used,
                       .lo = x->model->shards.rank[k->rank].expert.lo,
                       .n_local = l.n_local,
                       .first = l.first,
                       .row = l.row,
                       .pair = l.pair};
    a.ids = route_at(x, k, c->in[0], &w, &a.is);
    RUN(pairs, a);
}

static void run_gather(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    pair_list l = pairs_at(x, k, c->in[2]);
    op_gather_args a = {.rows = l.row, .n = l.most, .cols = x->model->a.hidden_size, .count = l.count};
    a.x = slot_at(x, k, c->in[0], &a.xs);
    a.y = slot_at(x, k, c->out, &a.ys);
    if (l.n_local) RUN(gather, a);
}

static void run_experts(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    const arch *m = &x->model->a;
    const model_layer_rank *layer = &x->model->layers[(size_t)c->layer * x->model->shards.n_ranks + k->rank];
    pair_list l = pairs_at(x, k, c->in[2]);
    bool down = c->weight == WT_EXP_DOWN, up = c->weight == WT_EXP_UP;
    op_experts_args a = {.w = down ? layer->exp_down : up ? layer->exp_up : layer->exp_gate,
                         .types = down ? layer->exp_down_types : up ? layer->exp_up_types : layer->exp_gate_types,
                         .n_local = l.n_local,
                         .n_rows = down ? m->hidden_size : m->moe_ffn_size,
                         .n_k = down ? m->moe_ffn_size : m->hidden_size,
                         .n_max = l.most,
                         .first = l.first,
                         .xqs = l.most};
    size_t stride;
    a.x = slot_at(x, k, c->in[0], &a.xs);
    if (c->in[1] != NO_SLOT) a.xq = (const op_group *)(const void *)slot_at(x, k, c->in[1], &stride);
    a.y = slot_at(x, k, c->out, &a.ys);
    if (l.n_local) RUN(experts, a);
}

static void run_quant_pairs(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    pair_list l = pairs_at(x, k, c->in[2]);
    const arch *m = &x->model->a;
    const uint32_t leaf[1] = {c->weight == WT_EXP_DOWN ? m->moe_ffn_size : m->hidden_size};
    op_quant_args a = {.n_tokens = l.most, .n_leaves = 1, .leaf_k = leaf, .count = l.count};
    size_t stride;
    a.x = slot_at(x, k, c->in[0], &a.xs);
    a.y = (op_group *)(void *)slot_at(x, k, c->out, &stride);
    if (l.n_local) RUN(quant, a);
}

static void run_pair_act(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    pair_list l = pairs_at(x, k, c->in[2]);
    const arch *m = &x->model->a;
    op_act_args a = {.act = m->act,
                     .alpha = (float)m->act_alpha,
                     .limit = (float)m->act_limit,
                     .n_tokens = l.most,
                     .n = m->moe_ffn_size,
                     .count = l.count};
    a.g = slot_at(x, k, c->in[0], &a.gs);
    if (c->in[1] != NO_SLOT) a.u = slot_at(x, k, c->in[1], &a.us);
    a.y = slot_at(x, k, c->out, &a.ys);
    if (l.n_local) RUN(act, a);
}

static void run_mix(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    const shard_plan *s = &x->model->shards;
    const shard_range own = s->rank[k->rank].expert_leaf;
    pair_list l = pairs_at(x, k, c->in[2]);
    float *w;
    op_mix_args a = {.pair = l.pair,
                     .ps = l.used,
                     .n_used = l.used,
                     .leaf = s->expert.leaf + own.lo,
                     .n_leaves = own.hi - own.lo,
                     .n_tokens = x->n_rows,
                     .n = x->model->a.hidden_size};
    a.ids = route_at(x, k, c->in[1], &w, &a.is);
    a.w = w;
    a.ws = a.is;
    a.x = slot_at(x, k, c->in[0], &a.xs);
    a.y = slot_at(x, k, c->out, &a.ys);
    a.yl = a.ys * k->body.rows;
    if (a.n_leaves) RUN(mix, a);
}

static void run_gate(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    op_switch_args a = {.n_tokens = x->n_rows, .n = x->model->a.hidden_size};
    a.x = slot_at(x, k, c->in[0], &a.xs);
    a.g = slot_at(x, k, c->in[1], &a.gs);
    a.y = slot_at(x, k, c->out, &a.ys);
    RUN(gate, a);
}

void exec_moe(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    switch (c->op) {
    case PROG_ROUTE: run_route(x, k, c, t, n); break;
    case PROG_PAIRS: run_pairs(x, k, c, t, n); break;
    case PROG_GATHER: run_gather(x, k, c, t, n); break;
    case PROG_EXPERTS: run_experts(x, k, c, t, n); break;
    case PROG_QUANT: run_quant_pairs(x, k, c, t, n); break;
    case PROG_PAIR_ACT: run_pair_act(x, k, c, t, n); break;
    case PROG_MIX: run_mix(x, k, c, t, n); break;
    default: run_gate(x, k, c, t, n); break;
    }
}
