/*
 * exec.c - see exec.h.
 *
 * Every thread walks the same list. Before an instruction with sync it waits: for its rank's team, or for all threads where
 * partial sums of other ranks are read. All threads take the decision to stop together: thread 0 looks at the cancel
 * flag before such a common barrier and leaves its answer in one of two words in turn, so that no thread can still
 * be reading the word that thread 0 writes next.
 */
#include "exec_priv.h"

static void gate_wait(void *user, uint32_t thread)
{
    UNUSED(thread);
    pool_gate_wait(user);
}

const model_linear *exec_linear(const exec *x, const rank_state *k, const prog_instr *c)
{
    const model_layer_rank *l = &x->model->layers[(size_t)c->layer * x->model->shards.n_ranks + k->rank];
    switch (c->weight) {
    case WT_Q: return &l->q;
    case WT_K: return &l->k;
    case WT_V: return &l->v;
    case WT_O: return &l->o;
    case WT_GATE: return &l->gate;
    case WT_UP: return &l->up;
    case WT_DOWN: return &l->down;
    case WT_Q_A: return &l->q_a;
    case WT_KV_A: return &l->kv_a;
    case WT_ROUTER: return &l->router;
    case WT_SH_GATE: return &l->sh_gate;
    case WT_SH_UP: return &l->sh_up;
    case WT_SH_DOWN: return &l->sh_down;
    case WT_SH_SWITCH: return &l->sh_switch;
    default: return &x->model->rank[k->rank].head;
    }
}

static const model_norm *norm_of(const exec *x, const rank_state *k, const prog_instr *c)
{
    const model_rank *m = &x->model->rank[k->rank];
    const model_layer_norms *n = &m->layers[c->layer];
    switch (c->weight) {
    case WT_NORM_ATTN: return &n->attn;
    case WT_NORM_FFN: return &n->ffn;
    case WT_NORM_POST_ATTN: return &n->post_attn;
    case WT_NORM_POST_FFN: return &n->post_ffn;
    case WT_NORM_Q: return &n->q;
    case WT_NORM_K: return &n->k;
    case WT_NORM_EMBED: return &m->embed_norm;
    case WT_NORM_Q_A: return &n->q_a;
    case WT_NORM_KV_A: return &n->kv_a;
    default: return &m->final_norm;
    }
}

static shard_range heads_of(const exec *x, uint32_t rank, bool kv_heads)
{
    const shard_rank *s = &x->model->shards.rank[rank];
    return kv_heads ? s->kv_head : s->q_head;
}

static uint32_t n_heads_of(const exec *x, const rank_state *k, bool kv_heads)
{
    shard_range h = heads_of(x, k->rank, kv_heads);
    return h.hi - h.lo;
}

static void run_linear(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    const model_linear *l = exec_linear(x, k, c);
    bool partial = c->weight == WT_O || c->weight == WT_DOWN || c->weight == WT_SH_DOWN; /* their bias is added behind the tree */
    op_linear_args a = {.w = &l->w, .bias = partial ? NULL : l->bias, .n_tokens = x->n_rows};
    size_t stride;
    a.x = slot_at(x, k, c->in[0], &a.xs);
    if (c->in[1] != NO_SLOT) a.xq = (const op_group *)(const void *)slot_at(x, k, c->in[1], &stride), a.xqs = x->n_rows;
    a.y = slot_at(x, k, c->out, &a.ys);
    a.yl = a.ys * plan_of(x, k)->rows;
    shard_range rows = columns_of(x, k, c, l->w.n_rows);
    a.row_lo = rows.lo, a.row_hi = rows.hi;
    a.sum_leaves = partial && x->prog->fused && x->prog->n_ranks == 1; /* all leaves are here: their sum needs no room for each */
    const bool gemm = exec_gemm(x, k, c), some = l->w.n_leaves && rows.lo < rows.hi;
    if (some && gemm) gemm_run(x, k, c, &a);
    else if (some) RUN(linear, a);
    if (x->gemm) k->gemm_last = some && gemm ? c : NULL; /* on a device: of one thread alone */
}

static void run_quant(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    const op_weight *w = &exec_linear(x, k, c)->w;
    uint32_t leaf[MAX_LEAVES] = {w->n_k};
    size_t stride;
    if (!w->n_rows || !w->n_leaves || exec_gemm(x, k, c)) return; /* nobody reads them on this rank */
    for (uint32_t l = 0; w->n_leaves > 1 && l < w->n_leaves; l++) leaf[l] = w->runs[l].n_k;
    op_quant_args a = {.n_tokens = x->n_rows, .n_leaves = w->n_leaves, .leaf_k = leaf};
    a.x = slot_at(x, k, c->in[0], &a.xs);
    a.y = (op_group *)(void *)slot_at(x, k, c->out, &stride);
    if (k->few && c->how == HOW_OWN) { /* groups of 32 columns: leaves end between groups, but for the last one */
        shard_range own = columns_of(x, k, c, 0);
        a.n_leaves = 1;
        leaf[0] = own.hi - own.lo;
        a.x += own.lo;
        a.y += (size_t)(own.lo / GROUP_K) * a.n_tokens;
    }
    RUN(quant, a);
}

static void run_norm(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    const arch *m = &x->model->a;
    const model_norm *w = norm_of(x, k, c);
    bool head = c->weight == WT_NORM_Q || c->weight == WT_NORM_K;
    op_norm_args a = {.kind = m->norm_kind == NORM_LAYER_PLUS1 ? (uint32_t)NORM_LAYER : m->norm_kind,
                      .n_tokens = x->n_rows,
                      .n = head ? m->head_dim : m->hidden_size,
                      .w = w->w,
                      .b = w->b,
                      .eps = (float)m->norm_eps,
                      .groups = head ? n_heads_of(x, k, c->weight == WT_NORM_K) : 1};
    if (c->weight == WT_NORM_Q_A || c->weight == WT_NORM_KV_A) {
        a.n = c->weight == WT_NORM_Q_A ? m->q_lora : m->kv_lora;
        a.eps = (float)m->latent_eps;
    }
    if (head && m->qk_norm == QK_NORM_EACH) {
        a.gs = m->head_dim;
        a.w += (size_t)heads_of(x, k->rank, c->weight == WT_NORM_K).lo * a.gs;
    }
    a.x = slot_at(x, k, c->in[0], &a.xs);
    a.y = slot_at(x, k, c->out, &a.ys);
    shard_range own = columns_of(x, k, c, a.groups * a.n);
    a.groups = (own.hi - own.lo) / a.n; /* whole heads */
    a.x += own.lo;
    a.y += own.lo;
    a.w += own.lo / a.n * a.gs;
    if (a.b) a.b += own.lo / a.n * a.gs;
    if (a.groups) RUN(norm, a);
}

static void run_head_sums(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    op_head_sums_args a = {.n_tokens = x->n_rows, .n_heads = n_heads_of(x, k, c->weight == WT_NORM_K), .head_dim = x->model->a.head_dim};
    a.x = slot_at(x, k, c->in[0], &a.xs);
    a.y = slot_at(x, k, c->out, &a.ys);
    if (a.n_heads) RUN(head_sums, a);
}

/* A slot of another rank that this rank reads. */
static float *shared_at(const exec *x, const rank_state *k, const rank_state *owner, uint16_t slot, size_t *stride)
{
    return k->stream ? device_shared(x, k, owner, slot, stride) : slot_at(x, owner, slot, stride);
}

/* Every head once, in head order: a kv head that several ranks hold is taken from the first of them. */
static uint32_t gather_sums(const exec *x, const rank_state *k, const prog_instr *c, op_sum_part parts[MAX_RANKS])
{
    uint32_t n = 0, next = 0;
    for (uint32_t r = 0; r < x->model->shards.n_ranks; r++) {
        shard_range h = heads_of(x, r, c->weight == WT_NORM_K);
        uint32_t lo = MAX(h.lo, next);
        if (lo >= h.hi) continue;
        op_sum_part *p = &parts[n++];
        p->s = shared_at(x, k, &x->rank[r], c->in[1], &p->ss) + (lo - h.lo);
        p->n = h.hi - lo;
        next = h.hi;
    }
    return n;
}

static void run_norm_sums(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    const arch *m = &x->model->a;
    bool kv_heads = c->weight == WT_NORM_K;
    shard_range h = heads_of(x, k->rank, kv_heads);
    op_sum_part parts[MAX_RANKS];
    op_norm_sums_args a = {.n_tokens = x->n_rows,
                           .cols = (h.hi - h.lo) * m->head_dim,
                           .n = (kv_heads ? m->n_kv_heads : m->n_heads) * m->head_dim,
                           .parts = parts,
                           .w = norm_of(x, k, c)->w + (size_t)h.lo * m->head_dim,
                           .eps = (float)m->norm_eps};
    a.n_parts = gather_sums(x, k, c, parts);
    a.x = slot_at(x, k, c->in[0], &a.xs);
    a.y = slot_at(x, k, c->out, &a.ys);
    if (a.cols) RUN(norm_sums, a);
}

static void run_clamp(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    const arch *m = &x->model->a;
    const uint8_t width = x->prog->slots[c->out].width;
    op_clamp_args a = {.n_tokens = x->n_rows, .limit = (float)m->qkv_clip,
                       .n = n_heads_of(x, k, width != W_Q) * (width == W_V ? m->v_head_dim : m->head_dim)};
    shard_range own = columns_of(x, k, c, a.n);
    a.x = slot_at(x, k, c->out, &a.xs) + own.lo;
    a.n = own.hi - own.lo;
    if (a.n) RUN(clamp, a);
}

static void run_rope(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    const arch *m = &x->model->a;
    op_rope_args a = {.kind = m->rope_kind, .dims = m->rope_dims, .n_tokens = x->n_rows, .head_dim = m->head_dim, .pos = k->pos,
                      .n_heads = n_heads_of(x, k, c->weight == WT_NORM_K)};
    shard_range own = columns_of(x, k, c, a.n_heads * m->head_dim);
    a.x = slot_at(x, k, c->out, &a.xs) + own.lo;
    a.n_heads = (own.hi - own.lo) / m->head_dim;
    if (m->kv_lora) a.x += c->weight == WT_NORM_K ? m->kv_lora : m->head_dim - m->rope_dims; /* the rotated part is last */
    if (a.n_heads == 0) return;
    const exec_batch *b = x->batch; /* runs of rows that take the same table */
    for (uint32_t row = 0, end; row < b->n_rows; row = end) {
        uint32_t key = b->rope_key[b->seq[row]];
        for (end = row + 1; end < b->n_rows && b->rope_key[b->seq[end]] == key;) end++;
        op_rope_args run = a;
        run.x += row * a.xs;
        run.pos += row;
        run.n_tokens = end - row;
        run.cs = exec_rope_table(x, k, key, m->layer_attn[c->layer]);
        RUN(rope, run);
    }
}

static op_kv kv_of(const exec *x, const rank_state *k, uint32_t layer, op_batch *b)
{
    uint32_t g = x->kv->layer_group[layer];
    op_kv v = x->kv->groups[g].kv[k->rank];
    v.layer_off = x->kv->layer_index[layer] * x->kv->groups[g].layer_bytes[k->rank];
    *b = (op_batch){x->n_rows, k->pos, k->seq, k->tables[g]};
    return v;
}

/* Heads of K, or of V, in the columns of a thread. */
static void write_own(const exec *x, rank_state *k, op_kv_write_args a, bool is_k, shard_range own)
{
    const uint32_t t = 0, n = 1, dim = is_k ? a.kv.k_dim : a.kv.v_dim, head = own.lo / dim;
    a.kv.n_kv_heads = (own.hi - own.lo) / dim;
    a.kv.layer_off += head * a.kv.head_bytes;
    a.k = is_k ? a.k + own.lo : NULL;
    a.v = is_k ? NULL : a.v + own.lo;
    op_kbias kb;
    if (a.kbias) kb = *a.kbias, kb.head += head, a.kbias = &kb;
    if (a.kv.n_kv_heads) RUN(kv_write, a);
}

static void run_kv_write(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    op_kv_write_args a = {0};
    op_kbias kb;
    a.kbias = exec_kbias(x, k, c->layer, &kb);
    a.kv = kv_of(x, k, c->layer, &a.b);
    a.k = slot_at(x, k, c->in[0], &a.ks);
    a.v = slot_at(x, k, c->in[1], &a.vs);
    if (k->few && c->how == HOW_OWN) {
        write_own(x, k, a, true, k->own[W_K]);
        write_own(x, k, a, false, k->own[W_V]);
    } else if (a.kv.n_kv_heads) RUN(kv_write, a);
}

/* The rotated part of a head on a device: a sum of one term is a copy. */
static void copy_rotated(const exec *x, rank_state *k, const float *from, size_t from_stride, float *to, size_t to_stride)
{
    const uint32_t t = 0, n = 1;
    op_reduce_args a = {.parts = &from,
                        .n_leaves = 1,
                        .ps = from_stride,
                        .scale = 1,
                        .n_tokens = x->n_rows,
                        .n = x->model->a.rope_dims,
                        .y = to,
                        .ys = to_stride};
    RUN(reduce, a);
}

/* Each head by its own matrix: from the query into the latent space, its rotated part copied behind; or from there to values. */
static void run_heads(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    const arch *m = &x->model->a;
    const model_layer_rank *l = &x->model->layers[(size_t)c->layer * x->model->shards.n_ranks + k->rank];
    bool absorb = c->op == PROG_ABSORB;
    uint32_t in_dim = absorb ? m->head_dim : m->kv_lora, out_dim = absorb ? arch_k_dim(m) : m->v_head_dim;
    size_t xs, ys;
    const float *in = slot_at(x, k, c->in[0], &xs);
    float *out = slot_at(x, k, c->out, &ys);
    for (uint32_t h = 0; h < n_heads_of(x, k, false); h++) {
        op_linear_args a = {.w = absorb ? &l->k_b[h].w : &l->v_b[h].w, .x = in + (size_t)h * in_dim, .xs = xs, .n_tokens = x->n_rows,
                            .y = out + (size_t)h * out_dim, .ys = ys};
        RUN(linear, a);
        if (absorb && k->stream)
            copy_rotated(x, k, in + (size_t)(h + 1) * in_dim - m->rope_dims, xs, out + (size_t)h * out_dim + m->kv_lora, ys);
        for (uint32_t row = t; absorb && !k->stream && row < x->n_rows; row += n)
            memcpy(out + row * ys + (size_t)h * out_dim + m->kv_lora, in + row * xs + (size_t)(h + 1) * in_dim - m->rope_dims,
                   m->rope_dims * sizeof *out);
    }
}

static void run_attn(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    const arch *m = &x->model->a;
    const shard_rank *s = &x->model->shards.rank[k->rank];
    op_attn_args a = {.n_heads = s->q_head.hi - s->q_head.lo,
                      .q_head0 = s->q_head.lo,
                      .kv_head0 = s->kv_head.lo,
                      .group = m->n_heads / m->n_kv_heads,
                      .scale = (float)(m->attn_scale / (m->attn_scale_by_layer ? c->layer + 1.0 : 1.0)),
                      .softcap = (float)m->attn_softcap,
                      .window = m->attn[m->layer_attn[c->layer]].window,
                      .scratch = k->scratch,
                      .scratch_floats = k->scratch_floats,
                      .barrier = k->stream || n != k->n_threads ? NULL : gate_wait,
                      .barrier_user = k->gate,
                      .max_pos = x->positions};
    const float *sinks = x->model->layers[(size_t)c->layer * x->model->shards.n_ranks + k->rank].sinks;
    if (sinks) a.sinks = sinks + s->q_head.lo;
    op_kbias kb;
    a.kbias = exec_kbias(x, k, c->layer, &kb);
    if (k->alibi) a.bias = k->alibi + (size_t)s->q_head.lo * x->alibi_rows, a.bias_stride = x->alibi_rows;
    a.kv = kv_of(x, k, c->layer, &a.b);
    a.q = slot_at(x, k, c->in[0], &a.qs);
    a.out = slot_at(x, k, c->out, &a.os);
    a.fast = k->stream && x->model->compute != TESS_COMPUTE_F32 && a.kv.dtype != DT_F32;
    if (a.fast && a.n_heads) device_attn(x, k, &a);
    else if (a.n_heads) RUN(attn, a);
}

static void run_act(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    const shard_rank *s = &x->model->shards.rank[k->rank];
    shard_range all = x->prog->slots[c->out].width == W_SHARED ? s->shared : s->ffn, own = columns_of(x, k, c, all.hi - all.lo);
    const arch *m = &x->model->a;
    op_act_args a = {
        .act = m->act, .alpha = (float)m->act_alpha, .limit = (float)m->act_limit, .n_tokens = x->n_rows, .n = own.hi - own.lo};
    a.g = slot_at(x, k, c->in[0], &a.gs) + own.lo;
    if (c->in[1] != NO_SLOT) a.u = slot_at(x, k, c->in[1], &a.us) + own.lo;
    a.y = slot_at(x, k, c->out, &a.ys) + own.lo;
    if (a.n) RUN(act, a);
}

static shard_range part_leaves(const shard_rank *r, uint8_t width)
{
    switch (width) {
    case W_PART_O: return r->q_leaf;
    case W_PART_DOWN: return r->ffn_leaf;
    case W_PART_SHARED: return r->shared_leaf;
    default: return r->expert_leaf;
    }
}

/* Addresses of the L leaves of a split sum, wherever their ranks keep them. */
static uint32_t gather_leaves(const exec *x, const rank_state *k, const prog_instr *c, const float **parts, size_t *stride)
{
    const shard_plan *s = &x->model->shards;
    const uint8_t width = x->prog->slots[c->in[0]].width;
    const bool summed = exec_gemm(x, k, c); /* by each rank */
    uint32_t n = 0;
    if (k->body.leaves[width] == 1 && s->n_ranks == 1) { /* summed by the linear operation, or only one */
        parts[0] = slot_at(x, k, c->in[0], stride);
        return 1;
    }
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        shard_range own = part_leaves(&s->rank[r], width);
        float *p = shared_at(x, k, &x->rank[r], c->in[0], stride);
        if (summed && own.lo < own.hi) parts[n++] = p;
        for (uint32_t l = own.lo; l < own.hi && !summed; l++) parts[l] = p + (size_t)(l - own.lo) * *stride * x->rank[r].body.rows;
        if (!summed) n = MAX(n, own.hi);
    }
    return n;
}

op_reduce_args exec_sum(const exec *x, const rank_state *k, const prog_instr *c, const float **parts)
{
    op_reduce_args a = {.parts = parts, .n_leaves = 1, .scale = 1, .n_tokens = x->n_rows, .n = x->model->a.hidden_size};
    if (x->prog->slots[c->in[0]].shared) {
        a.n_leaves = gather_leaves(x, k, c, parts, &a.ps);
        if (c->weight != WT_NONE) a.bias = exec_linear(x, k, c)->bias;
    } else parts[0] = slot_at(x, k, c->in[0], &a.ps);
    if (c->scaled) a.scale = (float)x->model->a.residual_scale;
    if (c->in[1] != NO_SLOT) a.residual = slot_at(x, k, c->in[1], &a.rs);
    a.y = slot_at(x, k, c->out, &a.ys);
    return a;
}

static void run_reduce(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    const float *parts[MAX_LEAVES];
    op_reduce_args a = c == k->shared_sum ? sums_beside(x, k, c, parts) : exec_sum(x, k, c, parts);
    shard_range own = columns_of(x, k, c, a.n);
    exec_sum_columns(&a, parts, own.lo, own.hi);
    a.y += own.lo;
    if (a.n) RUN(reduce, a);
}

static void run_embed(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    const arch *m = &x->model->a;
    bool pos = c->weight == WT_POS;
    if (k->stream) {
        device_embed(x, k, c);
        return;
    }
    op_embed_args a = {.w = pos ? &x->model->pos_embed : &x->model->embed,
                       .row_hi = pos ? m->max_ctx : m->vocab_size,
                       .n_tokens = x->n_rows,
                       .n = m->hidden_size,
                       .ids = pos ? (const int32_t *)x->batch->pos : x->batch->ids,
                       .scale = pos ? 1 : (float)m->embed_scale};
    a.y = slot_at(x, k, c->out, &a.ys);
    RUN(embed, a);
}

static void run_logits(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    const arch *m = &x->model->a;
    const shard_rank *s = &x->model->shards.rank[k->rank];
    op_logits_args a = {
        .scale = (float)m->logit_scale, .cap = (float)m->logit_softcap, .n_tokens = x->n_rows, .n = s->vocab.hi - s->vocab.lo};
    a.y = slot_at(x, k, c->out, &a.ys);
    a.x = a.y;
    a.xs = a.ys;
    if (a.n && (m->logit_scale != 1 || m->logit_softcap > 0)) RUN(logits, a);
}

void exec_instr(const exec *x, rank_state *k, const prog_instr *c, uint32_t t, uint32_t n)
{
    switch (c->op) {
    case PROG_EMBED: run_embed(x, k, c, t, n); break;
    case PROG_NORM: run_norm(x, k, c, t, n); break;
    case PROG_QUANT:
        if (c->in[2] != NO_SLOT) exec_moe(x, k, c, t, n);
        else run_quant(x, k, c, t, n);
        break;
    case PROG_LINEAR: run_linear(x, k, c, t, n); break;
    case PROG_HEAD_SUMS: run_head_sums(x, k, c, t, n); break;
    case PROG_NORM_SUMS: run_norm_sums(x, k, c, t, n); break;
    case PROG_CLAMP: run_clamp(x, k, c, t, n); break;
    case PROG_ROPE: run_rope(x, k, c, t, n); break;
    case PROG_KV_WRITE: run_kv_write(x, k, c, t, n); break;
    case PROG_ATTN: run_attn(x, k, c, t, n); break;
    case PROG_ACT: run_act(x, k, c, t, n); break;
    case PROG_REDUCE: run_reduce(x, k, c, t, n); break;
    case PROG_ABSORB:
    case PROG_EXPAND: run_heads(x, k, c, t, n); break;
    case PROG_LOGITS: run_logits(x, k, c, t, n); break;
    default: exec_moe(x, k, c, t, n); break;
    }
}

/* All threads see the same answer: thread 0 leaves it before a common barrier. */
static bool stop_here(exec *x, uint32_t thread, uint32_t turn)
{
    if (thread == 0) x->stop[turn] = exec_cancelled(x);
    pool_barrier(x->threads, thread);
    if (x->stop[turn] && thread == 0) x->stopped = true;
    return x->stop[turn];
}

/* The rank as one of its threads sees it when the rows are few. */
static rank_state few_view(const exec *x, const rank_state *k, uint32_t t)
{
    rank_state v = *k;
    v.few = true;
    v.each += t * v.each_floats;
    fuse_columns(&x->model->a, &x->model->shards.rank[k->rank], t, k->n_threads, v.own);
    return v;
}

static void run_program(void *arg, uint32_t thread, uint32_t n_threads)
{
    exec *x = arg;
    UNUSED(n_threads);
    rank_state *k = x->rank, view;
    while (thread >= k->first_thread + k->n_threads) k++;
    uint32_t t = thread - k->first_thread, turn = 0;
    bool few = x->prog->fused && x->n_rows <= FEW_ROWS;
    if (few) view = few_view(x, k, t), k = &view;
    for (size_t i = 0; i < x->prog->n_code; i++) {
        const prog_instr *c = &x->prog->code[i];
        uint8_t sync = few ? c->sync_few : c->sync;
        if (sync == 1) pool_gate_wait(k->gate);
        else if (sync == 2) {
            if (stop_here(x, thread, turn)) return;
            turn ^= 1;
        }
        if (few && c->how != HOW_SHARE) exec_instr(x, k, c, 0, 1);
        else if (x->n_rows >= SHARES_ROWS && (c->op == PROG_LINEAR || c->op == PROG_ATTN)) exec_shares(x, k, c, shares_of(x, k, i));
        else exec_instr(x, k, c, t, k->n_threads);
    }
}

tess_status exec_body(exec *x, const exec_batch *b, const uint32_t *cancel, tess_error *err)
{
    x->prog = &x->body;
    x->batch = b;
    x->n_rows = b->n_rows;
    x->cancel = cancel;
    x->stopped = false;
    if (x->broken) return ERR(err, TESS_E_BROKEN, "a device was lost; the context can only be closed");
    if (x->comm) TRY(device_body(x, err));
    else exec_shares_reset(x), pool_run(x->threads, run_program, x);
    return x->stopped ? ERR(err, TESS_E_CANCELLED, "the step was cancelled") : TESS_OK;
}

/* The chosen rows of the body's last state to where the head reads them. */
static void take_rows(exec *x, const uint32_t *rows, uint32_t n)
{
    for (uint32_t r = 0; r < x->model->shards.n_ranks; r++) {
        rank_state *k = &x->rank[r];
        size_t stride_in = k->body.stride[W_HIDDEN], stride_out = k->head.stride[W_HIDDEN];
        const float *in = k->act + k->body.off[x->body.out_slot];
        float *head = k->act; /* the head's slots lie behind the body's (open_rank), so the hidden rows stay */
        for (uint32_t i = 0; i < n; i++)
            memcpy(head + k->head.off[x->head.in_slot] + i * stride_out, in + rows[i] * stride_in,
                   x->model->a.hidden_size * sizeof *in);
    }
}

tess_status exec_head(exec *x, const uint32_t *rows, uint32_t n, const float **logits, size_t *stride, tess_error *err)
{
    if (!x->comm) take_rows(x, rows, n);
    x->prog = &x->head;
    x->n_rows = n;
    x->cancel = NULL;
    if (x->comm) TRY(device_head(x, rows, err));
    else exec_shares_reset(x), pool_run(x->threads, run_program, x);
    *logits = x->logits;
    *stride = x->logits_stride;
    return TESS_OK;
}

tess_status exec_head_best(exec *x, const uint32_t *rows, uint32_t n, uint32_t k, sampler_best *const *out, tess_error *err)
{
    x->prog = &x->head;
    x->n_rows = n;
    x->cancel = NULL;
    return device_head_best(x, rows, k, out, err);
}

/* ---- open, prepare, close ---- */

static tess_status open_rank(exec *x, uint32_t r, tess_error *err)
{
    const tess_model *m = x->model;
    rank_state *k = &x->rank[r];
    uint32_t n = pool_size(x->threads), ranks = m->shards.n_ranks;
    k->model = m;
    k->rank = r;
    if (x->comm) k->stream = comm_stream(x->comm, r), k->cuda = m->cuda;
    k->first_thread = n * r / ranks;
    k->n_threads = n * (r + 1) / ranks - k->first_thread;
    k->gate = &x->gates[r];
    pool_gate_init(k->gate, k->n_threads, pool_spins(x->threads));
    TRY(plan_make(&x->body, &m->a, &m->shards, r, x->max_rows, &k->body, err));
    TRY(plan_make(&x->head, &m->a, &m->shards, r, EXEC_HEAD_ROWS, &k->head, err));
    for (size_t i = 0; i < x->head.n_slots; i++) k->head.off[i] += k->body.floats;
    size_t bytes;
    if (x->comm) return TESS_OK; /* device_open takes the memory */
    if (!size_mul3(k->body.floats + k->head.floats, sizeof(float), 1, &bytes) || !(k->act = mem_alloc(&x->m, bytes)))
        return ERR(err, TESS_E_NOMEM, "no memory for the activations of rank %u (%llu MB)", r,
                   (unsigned long long)((k->body.floats + k->head.floats) >> 18));
    k->each_floats = (MAX(k->body.each_floats, k->head.each_floats) + 31) / 16 * 16; /* a cache line between threads */
    if (!size_mul3(k->each_floats, k->n_threads, sizeof(float), &bytes) || !(k->each = mem_alloc(&x->m, bytes)))
        return ERR(err, TESS_E_NOMEM, "no memory for the threads of rank %u", r);
    return TESS_OK;
}

/* Where threads share memory: few rows go the ways of fuse.c. */
static void fuse_programs(exec *x)
{
    uint32_t n_threads[MAX_RANKS], n = pool_size(x->threads), ranks = x->model->shards.n_ranks;
    for (uint32_t r = 0; r < ranks; r++) n_threads[r] = n * (r + 1) / ranks - n * r / ranks;
    program_fuse(&x->body, &x->model->a, &x->model->shards, n_threads);
    program_fuse(&x->head, &x->model->a, &x->model->shards, n_threads);
}

tess_status exec_open(const tess_model *m, const kv_pool *kv_, comm *c, uint32_t max_rows, exec **out, tess_error *err)
{
    *out = NULL;
    exec *x = mem_zalloc(&m->m, sizeof *x);
    if (!x) return ERR(err, TESS_E_NOMEM, "no memory for a context");
    x->m = m->m;
    x->model = m;
    x->kv = kv_;
    x->comm = c;
    x->max_rows = max_rows;
    tess_status st = pool_open(&x->m, &m->cpus, c ? comm_leaders(c) : MAX(m->n_threads, m->shards.n_ranks), &x->threads, err);
    if (st >= 0 && nodes_used(m)) pool_place(x->threads, &m->cpus, m->shards.n_ranks);
    bool exact = m->compute != TESS_COMPUTE_F32; /* else q8 and q4 are computed as floats */
    if (st >= 0) st = program_body(&m->a, exact ? m->quant : NULL, &x->m, &x->body, err);
    if (st >= 0) st = program_head(&m->a, exact && m->head_quant, &x->m, &x->head, err);
    if (st >= 0 && !c) fuse_programs(x);
    if (st >= 0 && c) program_join(&x->body, m->shards.n_ranks), program_join(&x->head, m->shards.n_ranks);
    for (uint32_t r = 0; st >= 0 && r < m->shards.n_ranks; r++) st = open_rank(x, r, err);
    if (st >= 0) x->logits_stride = x->rank[0].head.stride[W_LOGITS];
    if (st >= 0 && c) st = device_open(x, err);
    else if (st >= 0) {
        x->logits = mem_calloc(&x->m, EXEC_HEAD_ROWS * (uint64_t)x->logits_stride, sizeof *x->logits);
        if (!x->logits) st = ERR(err, TESS_E_NOMEM, "no memory for logits");
        else st = exec_shares_open(x, err);
    }
    if (st >= 0 && kv_->groups[0].kv[0].dtype == DT_I8) st = kbias_open(&x->kbias, m, c, err);
    if (st < 0) exec_close(x);
    else *out = x;
    return st;
}

void exec_close(exec *x)
{
    if (!x) return;
    pool_close(x->threads);
    if (x->comm) device_close(x);
    for (uint32_t r = 0; r < MAX_RANKS; r++) {
        rank_state *k = &x->rank[r];
        mem_free(&x->m, k->act);
        mem_free(&x->m, k->each);
        mem_free(&x->m, k->scratch);
        plan_free(&x->m, &k->body);
        plan_free(&x->m, &k->head);
    }
    exec_positions_close(x);
    kbias_close(&x->kbias);
    program_free(&x->body);
    program_free(&x->head);
    mem_free(&x->m, x->logits);
    mem_free(&x->m, x->taken);
    mem m = x->m;
    mem_free(&m, x);
}

static tess_status scratch_reach(exec *x, const exec_batch *b, tess_error *err)
{
    for (uint32_t r = 0; r < x->model->shards.n_ranks; r++) {
        rank_state *k = &x->rank[r];
        size_t want = op_attn_scratch(b->n_rows, n_heads_of(x, k, false), arch_v_dim(&x->model->a), b->max_pos + 1, k->n_threads);
        if (want <= k->scratch_floats) continue;
        float *p = mem_alloc(&x->m, want * sizeof *p);
        if (!p) return ERR(err, TESS_E_NOMEM, "no memory for attention over %u positions", b->max_pos + 1);
        mem_free(&x->m, k->scratch);
        k->scratch = p;
        k->scratch_floats = want;
    }
    return TESS_OK;
}

tess_status exec_prepare(exec *x, const exec_batch *b, tess_error *err)
{
    TRY(exec_positions(x, b->rope_key, b->n_seqs, b->max_pos, err));
    x->positions = x->comm ? exec_positions_bound(b) : b->max_pos + 1;
    if (x->comm) return device_prepare(x, b, err);
    TRY(scratch_reach(x, b, err));
    for (uint32_t r = 0; r < x->model->shards.n_ranks; r++) {
        rank_state *k = &x->rank[r];
        k->pos = b->pos, k->seq = b->seq, k->alibi = x->alibi;
        for (uint32_t g = 0; g < x->kv->n_groups; g++) k->tables[g] = b->tables[g][r];
    }
    return TESS_OK;
}
