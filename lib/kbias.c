/* kbias.c - see kbias.h. */
#include "kbias.h"

#include <math.h>

enum { SAMPLE = 8 }; /* rows of a head's W_k that are looked at */

typedef struct {
    kbias *b;
    const tess_model *m;
    float *rows; /* [SAMPLE][hidden_size] */
    uint32_t layer, rank, kind, n_pairs; /* rope of the layer; n_pairs 0: none */
    const model_linear *k;
} layer_view;

static layer_view layer_at(kbias *b, const tess_model *m, float *rows, uint32_t layer, uint32_t rank)
{
    const arch *a = &m->a;
    bool on = a->rope_kind != ROPE_NONE && a->attn[a->layer_attn[layer]].rope_on;
    return (layer_view){b, m, rows, layer, rank, a->rope_kind, on ? a->rope_dims / 2 : 0,
                        &m->layers[(size_t)layer * m->shards.n_ranks + rank].k};
}

/* Square of what an element of W_k x is for the local head g, when x has unit variance before the norm's weights. 0, so that all
 * of the bias counts as large, where no norm stands before attention. */
static double spread(const layer_view *v, uint32_t g)
{
    const arch *a = &v->m->a;
    const float *norm = v->m->rank[v->rank].layers[v->layer].attn.w;
    uint32_t n = a->hidden_size, k_dim = arch_k_dim(a), n_rows = MIN(k_dim, (uint32_t)SAMPLE);
    int32_t ids[SAMPLE];
    double sum = 0;
    if (!norm || a->block_kind == BLOCK_POST || a->block_kind == BLOCK_POST_SUM) return 0;
    for (uint32_t i = 0; i < n_rows; i++) ids[i] = (int32_t)(g * k_dim + k_dim * i / n_rows);
    op_embed_args e = {.w = &v->k->w, .row_hi = v->k->w.n_rows, .ids = ids, .n_tokens = n_rows, .n = n, .scale = 1, .y = v->rows, .ys = n};
    v->m->ops->embed(&e, 0, 1);
    for (uint32_t i = 0; i < n_rows * n; i++) {
        float w = a->norm_kind == NORM_RMS_PLUS1 ? 1.0f + norm[i % n] : norm[i % n];
        double x = (double)v->rows[i] * (double)w;
        sum += x * x;
    }
    return sum / n_rows;
}

static double square(const op_kbias_pair *p) { return (double)p->ba * (double)p->ba + (double)p->bb * (double)p->bb; }

/* The pairs of largest bias above `least`, equal ones by index. */
static void choose_pairs(op_kbias_head *h, const layer_view *v, const float *bias, double least)
{
    for (uint32_t i = 0; i < v->n_pairs; i++) {
        uint32_t at = h->n_pairs, da = v->kind == ROPE_HALF ? i : 2 * i, db = v->kind == ROPE_HALF ? i + v->n_pairs : da + 1;
        op_kbias_pair p = {i, da, db, bias[da], bias[db]};
        if (!(square(&p) > least) || !isfinite(square(&p))) continue;
        while (at > 0 && square(&h->pair[at - 1]) < square(&p)) at--;
        if (at == KBIAS_PAIRS) continue;
        h->n_pairs = MIN(h->n_pairs + 1, (uint32_t)KBIAS_PAIRS);
        for (uint32_t j = h->n_pairs - 1; j > at; j--) h->pair[j] = h->pair[j - 1];
        h->pair[at] = p;
    }
}

/* The bias behind the rotated dimensions, when one element of it exceeds `least`. */
static bool choose_flat(kbias *b, op_kbias_head *h, const float *bias, uint32_t first, uint32_t k_dim, double least)
{
    double most = 0;
    for (uint32_t d = first; d < k_dim; d++) most = fmax(most, (double)bias[d] * (double)bias[d]);
    if (!(most > least) || !isfinite(most)) return true;
    float *flat = arena_alloc(&b->store, k_dim, sizeof *flat);
    if (!flat) return false;
    memcpy(flat + first, bias + first, (k_dim - first) * sizeof *flat);
    h->flat = flat;
    return true;
}

/* *any: at least one head keeps something. False: no memory. */
static bool fill_layer(const layer_view *v, const op_kbias_head **out, bool *any)
{
    const shard_range own = v->m->shards.rank[v->rank].kv_head;
    uint32_t n = own.hi - own.lo, k_dim = arch_k_dim(&v->m->a);
    bool mine = false;
    *out = NULL;
    if (!v->k->bias || n == 0) return true;
    op_kbias_head *h = arena_alloc(&v->b->store, n, sizeof *h);
    if (!h) return false;
    for (uint32_t g = 0; g < n; g++) {
        const float *bias = v->k->bias + (size_t)g * k_dim;
        double least = spread(v, g);
        choose_pairs(&h[g], v, bias, least);
        if (!choose_flat(v->b, &h[g], bias, 2 * v->n_pairs, k_dim, least)) return false;
        mine = mine || h[g].n_pairs || h[g].flat;
    }
    if (mine) *out = h;
    *any = *any || mine;
    return true;
}

tess_status kbias_open(kbias *b, const tess_model *m, tess_error *err)
{
    const arch *a = &m->a;
    const uint32_t n_ranks = m->shards.n_ranks, n = a->n_layers * n_ranks;
    bool any = false;
    *b = (kbias){0};
    if (!(a->biases & BIAS_QKV) || a->qk_norm != QK_NORM_NONE || a->qkv_clip > 0 || a->kv_lora) return TESS_OK;
    arena_init(&b->store, &m->m);
    float *rows = mem_calloc(&m->m, (uint64_t)SAMPLE * a->hidden_size, sizeof *rows);
    b->heads = arena_alloc(&b->store, n, sizeof *b->heads);
    bool ok = rows && b->heads;
    for (uint32_t i = 0; ok && i < n; i++) {
        layer_view v = layer_at(b, m, rows, i / n_ranks, i % n_ranks);
        ok = fill_layer(&v, &b->heads[i], &any);
    }
    mem_free(&m->m, rows);
    if (!ok || !any) kbias_close(b);
    return ok ? TESS_OK : ERR(err, TESS_E_NOMEM, "no memory for the K biases of %u layers", a->n_layers);
}

void kbias_close(kbias *b)
{
    if (b->store.m) arena_free(&b->store);
    *b = (kbias){0};
}

void kbias_lanes(const float *cs, uint32_t n_cs, uint32_t lo, uint32_t hi, float *lanes)
{
    for (uint32_t pos = lo; pos < hi; pos++)
        for (uint32_t i = 0; i < 2 * n_cs; i++)
            lanes[((size_t)(pos / 8) * 2 * n_cs + i) * 8 + pos % 8] = cs[(size_t)pos * 2 * n_cs + i];
}
