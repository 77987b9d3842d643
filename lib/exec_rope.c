/*
 * exec_rope.c - what depends on positions: tables of cos and sin, biases of alibi; see rope.h for their numbers.
 *
 * Where frequencies depend on the length of the submitted prompt (dynamic, longrope), a sequence carries a rope key, and
 * tables are kept in sets by key: 0 for prompts within the length that the model was made for (all prompts of other models),
 * LONG_PROMPT where only that the prompt is longer matters, else the prompt's length. A set that no sequence of the batch
 * names gives its place up when there are more sets than sequences. Tables are made here, before a step, never while it runs.
 */
#include "exec_priv.h"
#include "rope.h"

enum { LONG_PROMPT = 1, ROPE_BLOCK = 256 };

uint32_t exec_rope_key(const arch *a, size_t n)
{
    uint32_t key = 0;
    for (uint32_t i = 0; i < a->n_attn_kinds && a->rope_kind != ROPE_NONE; i++) {
        const arch_attn *t = &a->attn[i];
        if (!t->rope_on || n <= t->orig_ctx) continue;
        if (t->rope_scale == ROPE_SCALE_LONG) key = MAX(key, (uint32_t)LONG_PROMPT);
        if (t->rope_scale == ROPE_SCALE_DYNAMIC) key = (uint32_t)MIN(n, (size_t)UINT32_MAX); /* at least 2 */
    }
    return key;
}

static const float *factors(const arch *a, const arch_attn *t, uint32_t key)
{
    if (t->rope_scale != ROPE_SCALE_LONG) return NULL;
    return key == LONG_PROMPT || key > t->orig_ctx ? a->long_factor : a->short_factor;
}

/* Rows of the table are made in blocks as positions are reached: a short prompt does not pay for a long context. */
static tess_status reach(exec *x, rope_set *s, uint32_t kind, uint32_t rows, tess_error *err)
{
    const arch *a = &x->model->a;
    const arch_attn *attn = &a->attn[kind];
    uint32_t dims = a->rope_dims, have = s->rows[kind], want = (rows + ROPE_BLOCK - 1) / ROPE_BLOCK * ROPE_BLOCK;
    if (rows <= have || dims == 0) return TESS_OK;
    if (!s->inv[kind]) {
        s->inv[kind] = mem_calloc(&x->m, dims / 2, sizeof(float));
        if (!s->inv[kind]) return ERR(err, TESS_E_NOMEM, "no memory for the rope table");
    }
    if (have == 0) rope_inv_freq(attn, arch_rope_spread(a), factors(a, attn, s->key), s->key, s->inv[kind]);
    size_t bytes;
    want = MAX(want, MIN(have * 2, a->max_ctx));
    float *t = size_mul3(want, dims, sizeof *t, &bytes) ? mem_realloc(&x->m, s->cs[kind], bytes) : NULL;
    if (!t) return ERR(err, TESS_E_NOMEM, "no memory for the rope table of %u positions", want);
    rope_fill(attn, s->inv[kind], dims, have, want, t + (size_t)have * dims);
    s->cs[kind] = t;
    if (x->kbias.heads) {
        float *lanes = mem_realloc(&x->m, s->lanes[kind], bytes);
        if (!lanes) return ERR(err, TESS_E_NOMEM, "no memory for the rope table of %u positions", want);
        kbias_lanes(t, dims / 2, have, want, lanes);
        s->lanes[kind] = lanes;
    }
    s->rows[kind] = want;
    return TESS_OK;
}

static rope_set *find_set(const exec *x, uint32_t key)
{
    for (uint32_t i = 0; i < x->n_ropes; i++)
        if (x->ropes[i].key == key) return &x->ropes[i];
    return NULL;
}

static bool key_used(const uint32_t *keys, uint32_t n, uint32_t key)
{
    for (uint32_t i = 0; i < n; i++)
        if (keys[i] == key) return true;
    return false;
}

/* A set for the key: there already, or a new one, or that of a key which is not among keys. */
static tess_status take_set(exec *x, uint32_t key, const uint32_t *keys, uint32_t n, rope_set **out, tess_error *err)
{
    if ((*out = find_set(x, key))) return TESS_OK;
    for (uint32_t i = 0; i < x->n_ropes && x->n_ropes > n; i++) {
        rope_set *s = &x->ropes[i];
        if (key_used(keys, n, s->key)) continue;
        s->key = key;
        memset(s->rows, 0, sizeof s->rows);
        memset(s->copied, 0, sizeof s->copied);
        *out = s;
        return TESS_OK;
    }
    if (!mem_grow(&x->m, &x->ropes, &x->cap_ropes, x->n_ropes + 1u, sizeof *x->ropes))
        return ERR(err, TESS_E_NOMEM, "no memory for a rope table");
    *out = &x->ropes[x->n_ropes++];
    **out = (rope_set){.key = key};
    return TESS_OK;
}

/* The table is made anew when it grows, to at least twice its length. */
static tess_status alibi_reach(exec *x, uint32_t rows, tess_error *err)
{
    const arch *a = &x->model->a;
    size_t bytes;
    if (a->alibi == ALIBI_NONE || rows <= x->alibi_rows) return TESS_OK;
    uint32_t want = (MAX(rows, MIN(2 * x->alibi_rows, a->max_ctx)) + 255) / 256 * 256;
    float *t = size_mul3(want, a->n_heads, sizeof *t, &bytes) ? mem_alloc(&x->m, bytes) : NULL;
    if (!t) return ERR(err, TESS_E_NOMEM, "no memory for the position biases of %u positions", want);
    for (uint32_t h = 0; h < a->n_heads; h++) alibi_fill(a, h, want, t + (size_t)h * want);
    mem_free(&x->m, x->alibi);
    x->alibi = t;
    x->alibi_rows = want;
    return TESS_OK;
}

/* The tables of every sequence, for what kbias keeps apart; for devices, put_batch of exec_buffers.c has them. */
static tess_status kbias_positions(exec *x, const uint32_t *keys, uint32_t n_seqs, tess_error *err)
{
    if (!x->kbias.heads || x->comm) return TESS_OK;
    for (uint32_t i = 0; i < x->model->a.n_attn_kinds && n_seqs > x->kbias_seqs; i++) {
        const float **cs = mem_calloc(&x->m, n_seqs, sizeof *cs), **lanes = mem_calloc(&x->m, n_seqs, sizeof *lanes);
        mem_free(&x->m, x->kbias_cs[i]);
        mem_free(&x->m, x->kbias_lanes[i]);
        x->kbias_cs[i] = cs, x->kbias_lanes[i] = lanes;
        if (cs && lanes) continue;
        x->kbias_seqs = 0;
        return ERR(err, TESS_E_NOMEM, "no memory for the rope tables of %u sequences", n_seqs);
    }
    x->kbias_seqs = MAX(x->kbias_seqs, n_seqs);
    for (uint32_t i = 0; i < n_seqs; i++) {
        const rope_set *s = find_set(x, keys[i]); /* NULL: the model has no rope */
        for (uint32_t kind = 0; s && kind < x->model->a.n_attn_kinds; kind++) {
            x->kbias_cs[kind][i] = s->cs[kind];
            x->kbias_lanes[kind][i] = s->lanes[kind];
        }
    }
    for (uint32_t r = 0; r < x->model->shards.n_ranks; r++)
        for (uint32_t kind = 0; kind < x->model->a.n_attn_kinds; kind++) {
            x->rank[r].kbias_cs[kind] = x->kbias_cs[kind];
            x->rank[r].kbias_lanes[kind] = x->kbias_lanes[kind];
        }
    return TESS_OK;
}

tess_status exec_positions(exec *x, const uint32_t *keys, uint32_t n_seqs, uint32_t max_pos, tess_error *err)
{
    const arch *a = &x->model->a;
    for (uint32_t i = 0; i < n_seqs && a->rope_kind != ROPE_NONE; i++) {
        rope_set *s;
        TRY(take_set(x, keys[i], keys, n_seqs, &s, err));
        for (uint32_t kind = 0; kind < a->n_attn_kinds; kind++) TRY(reach(x, s, kind, max_pos + 1, err));
    }
    TRY(kbias_positions(x, keys, n_seqs, err));
    return alibi_reach(x, max_pos + 1, err);
}

const rope_set *exec_rope_set(const exec *x, uint32_t key) { return find_set(x, key); }

const float *exec_rope_table(const exec *x, const rank_state *k, uint32_t key, uint32_t kind)
{
    const rope_set *s = find_set(x, key);
    return k->stream ? s->copy[k->rank][kind] : s->cs[kind];
}

const op_kbias *exec_kbias(const exec *x, const rank_state *k, uint32_t layer, op_kbias *b)
{
    const arch *m = &x->model->a;
    const op_kbias_head *heads = x->kbias.heads ? x->kbias.heads[(size_t)layer * x->model->shards.n_ranks + k->rank] : NULL;
    if (!heads) return NULL;
    *b = (op_kbias){heads, m->rope_dims / 2, k->kbias_cs[m->layer_attn[layer]], k->kbias_lanes[m->layer_attn[layer]]};
    return b;
}

void exec_positions_close(exec *x)
{
    for (uint32_t i = 0; i < x->n_ropes; i++)
        for (uint32_t kind = 0; kind < ARCH_MAX_ATTN_KINDS; kind++) {
            mem_free(&x->m, x->ropes[i].cs[kind]);
            mem_free(&x->m, x->ropes[i].lanes[kind]);
            mem_free(&x->m, x->ropes[i].inv[kind]);
        }
    for (uint32_t kind = 0; kind < ARCH_MAX_ATTN_KINDS; kind++) {
        mem_free(&x->m, x->kbias_cs[kind]);
        mem_free(&x->m, x->kbias_lanes[kind]);
    }
    mem_free(&x->m, x->ropes);
    mem_free(&x->m, x->alibi);
}
