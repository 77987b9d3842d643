/* program.c - builds the list of operations from arch; see program.h. No family has a name here: every choice is a field. */
#include "program.h"

static uint16_t slot_new(program *p, uint8_t width, bool shared)
{
    if (p->failed || p->n_slots >= NO_SLOT || !mem_grow(p->m, &p->slots, &p->cap_slots, p->n_slots + 1, sizeof *p->slots)) {
        p->failed = true;
        return 0;
    }
    p->slots[p->n_slots] = (prog_slot){.width = width, .shared = shared};
    return (uint16_t)p->n_slots++;
}

static void emit(program *p, prog_instr i)
{
    if (p->failed || !mem_grow(p->m, &p->code, &p->cap_code, p->n_code + 1, sizeof *p->code)) {
        p->failed = true;
        return;
    }
    p->code[p->n_code++] = i;
}

static uint16_t op(program *p, uint8_t what, uint8_t weight, uint16_t layer, uint8_t width, uint16_t a, uint16_t b)
{
    bool shared = width == W_PART_O || width == W_PART_DOWN || width == W_PART_EXPERT || width == W_PART_SHARED ||
                  width == W_LOGITS || width == W_SUMS;
    uint16_t out = slot_new(p, width, shared);
    emit(p, (prog_instr){.op = what, .weight = weight, .layer = layer, .in = {a, b, NO_SLOT}, .out = out});
    return out;
}

static uint8_t groups_width(uint8_t weight)
{
    switch (weight) {
    case WT_O: return W_GROUPS_ATTN;
    case WT_DOWN: return W_GROUPS_FFN;
    case WT_SH_DOWN: return W_GROUPS_SHARED;
    case WT_EXP_GATE: case WT_EXP_UP: return W_GROUPS_PAIR_X;
    case WT_EXP_DOWN: return W_GROUPS_PAIR_H;
    default: return W_GROUPS_HIDDEN;
    }
}

/* The groups of x when the weight takes quantized activations, made once for all weights that read x; else NO_SLOT. */
static uint16_t groups(program *p, uint8_t weight, uint16_t layer, uint16_t x, uint16_t pairs)
{
    if (!p->quant || !(p->quant[layer] >> weight & 1)) return NO_SLOT;
    if (p->groups_of == x) return p->groups;
    p->groups_of = x;
    p->groups = op(p, PROG_QUANT, weight, layer, groups_width(weight), x, NO_SLOT);
    if (!p->failed) p->code[p->n_code - 1].in[2] = pairs;
    return p->groups;
}

static uint16_t linear(program *p, uint8_t weight, uint16_t layer, uint8_t width, uint16_t x)
{
    uint16_t g = groups(p, weight, layer, x, NO_SLOT);
    return op(p, PROG_LINEAR, weight, layer, width, x, g);
}

static void op_in_place(program *p, uint8_t what, uint8_t weight, uint16_t layer, uint16_t slot)
{
    emit(p, (prog_instr){.op = what, .weight = weight, .layer = layer, .in = {slot, NO_SLOT, NO_SLOT}, .out = slot, .in_place = 1});
}

/* Norm of q or k in place over the heads of all ranks, by the gathered sums. */
static void norm_by_sums(program *p, uint8_t weight, uint16_t layer, uint16_t slot, uint16_t sums)
{
    emit(p, (prog_instr){.op = PROG_NORM_SUMS, .weight = weight, .layer = layer, .in = {slot, sums, NO_SLOT}, .out = slot, .in_place = 1});
}

/*
 * Latent attention: the pages hold one vector c and one rotated part per position for all heads. K of a head is
 * [k_b c, rotated part] and V is v_b c; instead of making them, the query is taken into the space of c (k_b' q, absorb),
 * attends to [c, rotated part] with c itself as V, and the result is taken back by v_b (expand).
 */
static uint16_t latent_attention(program *p, const arch *a, uint16_t layer, uint16_t n)
{
    uint16_t from = n;
    if (a->q_lora) {
        from = linear(p, WT_Q_A, layer, W_Q_A, n);
        op_in_place(p, PROG_NORM, WT_NORM_Q_A, layer, from);
    }
    uint16_t c = linear(p, WT_KV_A, layer, W_LATENT, n); /* beside q_a: they share the groups of n */
    uint16_t q = linear(p, WT_Q, layer, W_Q, from);
    op_in_place(p, PROG_NORM, WT_NORM_KV_A, layer, c);
    op_in_place(p, PROG_ROPE, WT_NORM_Q, layer, q);
    op_in_place(p, PROG_ROPE, WT_NORM_K, layer, c);
    emit(p, (prog_instr){.op = PROG_KV_WRITE, .layer = layer, .in = {c, c, NO_SLOT}, .out = NO_SLOT});
    uint16_t ql = op(p, PROG_ABSORB, WT_NONE, layer, W_Q_LATENT, q, NO_SLOT);
    uint16_t ol = op(p, PROG_ATTN, WT_NONE, layer, W_ATTN_LATENT, ql, NO_SLOT);
    uint16_t o = op(p, PROG_EXPAND, WT_NONE, layer, W_ATTN, ol, NO_SLOT);
    return linear(p, WT_O, layer, W_PART_O, o);
}

/* Attention on the normed rows n; gives the partial sums of o_proj. */
static uint16_t attention(program *p, const arch *a, uint16_t layer, uint16_t n)
{
    if (a->kv_lora) return latent_attention(p, a, layer, n);
    uint16_t q = linear(p, WT_Q, layer, W_Q, n);
    uint16_t k = linear(p, WT_K, layer, W_K, n);
    uint16_t v = linear(p, WT_V, layer, W_V, n);
    if (a->qk_norm == QK_NORM_HEAD || a->qk_norm == QK_NORM_EACH) {
        op_in_place(p, PROG_NORM, WT_NORM_Q, layer, q);
        op_in_place(p, PROG_NORM, WT_NORM_K, layer, k);
    }
    if (a->qk_norm == QK_NORM_ALL) {
        uint16_t sq = op(p, PROG_HEAD_SUMS, WT_NORM_Q, layer, W_SUMS, q, NO_SLOT);
        uint16_t sk = op(p, PROG_HEAD_SUMS, WT_NORM_K, layer, W_SUMS, k, NO_SLOT);
        norm_by_sums(p, WT_NORM_Q, layer, q, sq);
        norm_by_sums(p, WT_NORM_K, layer, k, sk);
    }
    if (a->qkv_clip > 0) {
        op_in_place(p, PROG_CLAMP, WT_NONE, layer, q);
        op_in_place(p, PROG_CLAMP, WT_NONE, layer, k);
        op_in_place(p, PROG_CLAMP, WT_NONE, layer, v);
    }
    if (a->rope_kind != ROPE_NONE && a->attn[a->layer_attn[layer]].rope_on) {
        op_in_place(p, PROG_ROPE, WT_NORM_Q, layer, q);
        op_in_place(p, PROG_ROPE, WT_NORM_K, layer, k);
    }
    emit(p, (prog_instr){.op = PROG_KV_WRITE, .layer = layer, .in = {k, v, NO_SLOT}, .out = NO_SLOT});
    uint16_t o = op(p, PROG_ATTN, WT_NONE, layer, W_ATTN, q, NO_SLOT);
    return linear(p, WT_O, layer, W_PART_O, o);
}

/* An operation on pairs, which reads the list of pairs as its last input. */
static uint16_t pair_op(program *p, uint8_t what, uint8_t weight, uint16_t layer, uint8_t width, uint16_t a, uint16_t b, uint16_t pairs)
{
    uint16_t out = op(p, what, weight, layer, width, a, b);
    if (!p->failed) p->code[p->n_code - 1].in[2] = pairs;
    return out;
}

/* The linear of each expert on its pairs; groups of x are for those experts that are q8 or q4. */
static uint16_t experts(program *p, uint8_t weight, uint16_t layer, uint8_t width, uint16_t x, uint16_t pairs)
{
    uint16_t g = groups(p, weight, layer, x, pairs);
    return pair_op(p, PROG_EXPERTS, weight, layer, width, x, g, pairs);
}

/* The shared expert on rows n: a dense feed-forward, added up over all ranks and weighed by its switch. */
static uint16_t shared_expert(program *p, const arch *a, uint16_t layer, uint16_t n)
{
    uint16_t g = a->gated_ffn ? linear(p, WT_SH_GATE, layer, W_SHARED, n) : NO_SLOT;
    uint16_t u = linear(p, WT_SH_UP, layer, W_SHARED, n);
    uint16_t h = op(p, PROG_ACT, WT_NONE, layer, W_SHARED, a->gated_ffn ? g : u, a->gated_ffn ? u : NO_SLOT);
    uint16_t parts = linear(p, WT_SH_DOWN, layer, W_PART_SHARED, h);
    uint16_t weight = a->shared_switch ? linear(p, WT_SH_SWITCH, layer, W_ONE, n) : NO_SLOT;
    uint16_t sum = op(p, PROG_REDUCE, WT_SH_DOWN, layer, W_HIDDEN, parts, NO_SLOT);
    return a->shared_switch ? op(p, PROG_GATE, WT_NONE, layer, W_HIDDEN, sum, weight) : sum;
}

/* Mixture of experts on rows n; gives partial sums, or with a shared expert the sum of all. */
static uint16_t mixture(program *p, const arch *a, uint16_t layer, uint16_t n)
{
    uint16_t router = linear(p, WT_ROUTER, layer, W_ROUTER, n);
    uint16_t route = op(p, PROG_ROUTE, WT_NONE, layer, W_ROUTE, router, NO_SLOT);
    uint16_t pairs = op(p, PROG_PAIRS, WT_NONE, layer, W_PAIRS, route, NO_SLOT);
    uint16_t x = pair_op(p, PROG_GATHER, WT_NONE, layer, W_PAIR_X, n, NO_SLOT, pairs);
    uint16_t g = a->gated_ffn ? experts(p, WT_EXP_GATE, layer, W_PAIR_H, x, pairs) : NO_SLOT;
    uint16_t u = experts(p, WT_EXP_UP, layer, W_PAIR_H, x, pairs);
    uint16_t h = pair_op(p, PROG_PAIR_ACT, WT_NONE, layer, W_PAIR_H, a->gated_ffn ? g : u, a->gated_ffn ? u : NO_SLOT, pairs);
    uint16_t y = experts(p, WT_EXP_DOWN, layer, W_PAIR_X, h, pairs);
    uint16_t parts = pair_op(p, PROG_MIX, WT_NONE, layer, W_PART_EXPERT, y, route, pairs);
    if (a->shared_ffn_size == 0) return parts;
    return op(p, PROG_REDUCE, WT_NONE, layer, W_HIDDEN, parts, shared_expert(p, a, layer, n));
}

/* Feed-forward on the normed rows n; gives the partial sums of down_proj. */
static uint16_t feed_forward(program *p, const arch *a, uint16_t layer, uint16_t n)
{
    if (a->layer_moe[layer]) return mixture(p, a, layer, n);
    uint16_t g = a->gated_ffn ? linear(p, WT_GATE, layer, W_FFN, n) : NO_SLOT;
    uint16_t u = linear(p, WT_UP, layer, W_FFN, n);
    uint16_t h = op(p, PROG_ACT, WT_NONE, layer, W_FFN, a->gated_ffn ? g : u, a->gated_ffn ? u : NO_SLOT);
    return linear(p, WT_DOWN, layer, W_PART_DOWN, h);
}

static uint16_t add_scaled(program *p, uint8_t weight, uint16_t layer, uint16_t parts, uint16_t x)
{
    uint16_t out = op(p, PROG_REDUCE, weight, layer, W_HIDDEN, parts, x);
    if (!p->failed) p->code[p->n_code - 1].scaled = 1;
    return out;
}

/* x + sum of the partials, or the normed sum where the block has a norm there. weight tells whose bias is added. */
static uint16_t join(program *p, const arch *a, uint16_t layer, uint16_t parts, uint8_t weight, uint8_t post_norm, uint16_t x)
{
    if (a->block_kind != BLOCK_POST && a->block_kind != BLOCK_SANDWICH) return add_scaled(p, weight, layer, parts, x);
    uint16_t t = op(p, PROG_REDUCE, weight, layer, W_HIDDEN, parts, NO_SLOT);
    t = op(p, PROG_NORM, post_norm, layer, W_HIDDEN, t, NO_SLOT);
    return add_scaled(p, WT_NONE, layer, t, x);
}

/* The first form of the transformer: norms stand behind the sums. */
static uint16_t block_post_sum(program *p, const arch *a, uint16_t layer, uint16_t x)
{
    x = add_scaled(p, WT_O, layer, attention(p, a, layer, x), x);
    op_in_place(p, PROG_NORM, WT_NORM_ATTN, layer, x);
    x = add_scaled(p, a->layer_moe[layer] ? WT_NONE : WT_DOWN, layer, feed_forward(p, a, layer, x), x);
    op_in_place(p, PROG_NORM, WT_NORM_FFN, layer, x);
    return x;
}

static uint16_t block(program *p, const arch *a, uint16_t layer, uint16_t x)
{
    if (a->block_kind == BLOCK_POST_SUM) return block_post_sum(p, a, layer, x);
    bool parallel = a->block_kind == BLOCK_PARALLEL || a->block_kind == BLOCK_PARALLEL2;
    uint16_t n = a->block_kind == BLOCK_POST ? x : op(p, PROG_NORM, WT_NORM_ATTN, layer, W_HIDDEN, x, NO_SLOT);
    uint16_t fn = n;
    if (a->block_kind == BLOCK_PARALLEL2) fn = op(p, PROG_NORM, WT_NORM_FFN, layer, W_HIDDEN, x, NO_SLOT);
    x = join(p, a, layer, attention(p, a, layer, n), WT_O, WT_NORM_POST_ATTN, a->residual_normed ? n : x);
    if (!parallel) fn = a->block_kind == BLOCK_POST ? x : op(p, PROG_NORM, WT_NORM_FFN, layer, W_HIDDEN, x, NO_SLOT);
    if (a->residual_normed) x = fn;
    return join(p, a, layer, feed_forward(p, a, layer, fn), a->layer_moe[layer] ? WT_NONE : WT_DOWN, WT_NORM_POST_FFN, x);
}

static tess_status finish(program *p, tess_error *err)
{
    p->quant = NULL;
    if (!p->failed) return TESS_OK;
    program_free(p);
    return ERR(err, TESS_E_NOMEM, "no memory for the list of operations");
}

tess_status program_body(const arch *a, const uint32_t *quant, const mem *m, program *out, tess_error *err)
{
    *out = (program){.m = m, .in_slot = NO_SLOT, .quant = quant, .groups_of = NO_SLOT};
    uint16_t x = op(out, PROG_EMBED, WT_NONE, 0, W_HIDDEN, NO_SLOT, NO_SLOT);
    if (a->learned_pos) x = op(out, PROG_REDUCE, WT_NONE, 0, W_HIDDEN, op(out, PROG_EMBED, WT_POS, 0, W_HIDDEN, NO_SLOT, NO_SLOT), x);
    if (a->embed_norm) x = op(out, PROG_NORM, WT_NORM_EMBED, 0, W_HIDDEN, x, NO_SLOT);
    for (uint16_t i = 0; i < a->n_layers; i++) x = block(out, a, i, x);
    out->out_slot = x;
    return finish(out, err);
}

tess_status program_head(const arch *a, bool quant, const mem *m, program *out, tess_error *err)
{
    const uint32_t head = 1u << WT_HEAD;
    *out = (program){.m = m, .quant = quant ? &head : NULL, .groups_of = NO_SLOT};
    out->in_slot = slot_new(out, W_HIDDEN, false);
    uint16_t n = out->in_slot;
    if (a->block_kind != BLOCK_POST_SUM) n = op(out, PROG_NORM, WT_NORM_FINAL, 0, W_HIDDEN, n, NO_SLOT);
    out->out_slot = linear(out, WT_HEAD, 0, W_LOGITS, n);
    if (a->logit_scale != 1 || a->logit_softcap > 0) op_in_place(out, PROG_LOGITS, WT_NONE, 0, out->out_slot);
    return finish(out, err);
}

void program_free(program *p)
{
    if (!p->m) return;
    mem_free(p->m, p->code);
    mem_free(p->m, p->slots);
    *p = (program){0};
}
