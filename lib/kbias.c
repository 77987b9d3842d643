/*
 * kbias.c - see kbias.h.
 *
 * What is kept apart is always chosen on the host. Of a rank on a device the vectors and rows that decide are brought to pinned
 * memory first; afterwards the heads of all its layers go to one block of the device's memory, and `heads` leads there.
 */
#include "kbias.h"
#include "device.h"

#include <math.h>

enum { SAMPLE = 8 }; /* rows of a head's W_k that are looked at */

/* Memory of the host, pinned when ranks are on devices. */
typedef struct {
    void *block; /* all of it */
    int32_t *ids;       /* [SAMPLE] */
    float *rows;        /* [SAMPLE][hidden_size] */
    float *norm, *bias; /* copies from a device: [hidden_size], [n_kv_heads][k_dim] */
} desk;

typedef struct {
    kbias *b;
    const tess_model *m;
    desk *on;
    uint32_t layer, rank, kind, n_pairs; /* rope of the layer; n_pairs 0: none */
    const model_linear *k;
    const float *norm, *bias; /* the norm's weights (NULL: no norm) and the bias of the rank's heads, on the host */
} layer_view;

static layer_view layer_at(kbias *b, desk *on, uint32_t layer, uint32_t rank)
{
    const tess_model *m = b->m;
    const arch *a = &m->a;
    const model_linear *k = &m->layers[(size_t)layer * m->shards.n_ranks + rank].k;
    bool rope = a->rope_kind != ROPE_NONE && a->attn[a->layer_attn[layer]].rope_on;
    return (layer_view){
        b, m, on, layer, rank, a->rope_kind, rope ? a->rope_dims / 2 : 0, k, m->rank[rank].layers[layer].attn.w, k->bias};
}

static uint32_t n_heads(const tess_model *m, uint32_t rank)
{
    return m->shards.rank[rank].kv_head.hi - m->shards.rank[rank].kv_head.lo;
}

static tess_status no_memory(const kbias *b, tess_error *err)
{
    return ERR(err, TESS_E_NOMEM, "no memory for the K biases of %u layers", b->m->a.n_layers);
}

static tess_status desk_open(const kbias *b, desk *on, tess_error *err)
{
    const arch *a = &b->m->a;
    const size_t ids = 16; /* 64 bytes */
    const size_t rows = (size_t)SAMPLE * a->hidden_size, bias = (size_t)a->n_kv_heads * arch_k_dim(a);
    const size_t bytes = (ids + rows + a->hidden_size + bias) * sizeof(float);
    if (!b->comm) on->block = mem_alloc(&b->m->m, bytes);
    else if (device_host_alloc(&on->block, bytes)) on->block = NULL;
    if (!on->block) return no_memory(b, err);
    on->ids = on->block;
    on->rows = (float *)on->block + ids;
    on->norm = on->rows + rows;
    on->bias = on->norm + a->hidden_size;
    return TESS_OK;
}

static void desk_close(const kbias *b, desk *on)
{
    if (b->comm) device_host_free(on->block);
    else mem_free(&b->m->m, on->block);
}

/* ---- ranks on devices ---- */

static tess_status failed(const kbias *b, uint32_t rank, const char *what, int code, tess_error *err)
{
    return code ? devices_fail(comm_devices(b->comm), rank, what, code, err) : TESS_OK;
}

static tess_status bring_vectors(layer_view *v, tess_error *err)
{
    const kbias *b = v->b;
    const size_t norm = v->m->a.hidden_size * sizeof(float),
                 bias = (size_t)n_heads(v->m, v->rank) * arch_k_dim(&v->m->a) * sizeof(float);
    void *stream = comm_stream(b->comm, v->rank);
    int code = comm_select(b->comm, v->rank);
    if (!code && v->norm) code = device_copy(v->on->norm, v->norm, norm, stream);
    if (!code) code = device_copy(v->on->bias, v->bias, bias, stream);
    if (!code) code = device_stream_sync(stream);
    if (v->norm) v->norm = v->on->norm;
    v->bias = v->on->bias;
    return failed(b, v->rank, "the K biases can not be read", code, err);
}

static size_t align16(size_t n) { return (n + 15) / 16 * 16; }

/* The block of a rank, whose address on the device is `there`: for each layer its heads, then their flat parts. Fills it and turns
 * b->heads to it; or only measures it (stage NULL). */
static size_t put_heads(kbias *b, uint32_t rank, uint8_t *stage, const uint8_t *there)
{
    const uint32_t n = n_heads(b->m, rank), n_ranks = b->m->shards.n_ranks;
    const size_t list = n * sizeof(op_kbias_head), flat = arch_k_dim(&b->m->a) * sizeof(float);
    size_t at = 0;
    for (uint32_t i = rank; i < b->m->a.n_layers * n_ranks; i += n_ranks) {
        const op_kbias_head *from = b->heads[i];
        op_kbias_head *to = stage ? (op_kbias_head *)(void *)(stage + at) : NULL;
        if (!from) continue;
        if (to) {
            memcpy(to, from, list);
            b->heads[i] = (const op_kbias_head *)(const void *)(there + at);
        }
        at += align16(list);
        for (uint32_t g = 0; g < n; g++) {
            if (!from[g].flat) continue;
            if (to) {
                memcpy(stage + at, from[g].flat, flat);
                to[g].flat = (const float *)(const void *)(there + at);
            }
            at += align16(flat);
        }
    }
    return at;
}

static tess_status move_heads(kbias *b, uint32_t rank, tess_error *err)
{
    void *stage = NULL, *stream = comm_stream(b->comm, rank);
    size_t n = put_heads(b, rank, NULL, NULL);
    if (n == 0) return TESS_OK;
    int code = comm_select(b->comm, rank);
    if (!code) code = device_host_alloc(&stage, n);
    if (!code) code = device_alloc(&b->there[rank], n);
    if (!code) {
        put_heads(b, rank, stage, b->there[rank]);
        code = device_copy(b->there[rank], stage, n, stream);
    }
    if (!code) code = device_stream_sync(stream);
    device_host_free(stage);
    return failed(b, rank, "the K biases can not be copied", code, err);
}

/* ---- the choice ---- */

/* Rows ids of W_k, as floats. */
static tess_status take_rows(const layer_view *v, uint32_t n_rows, tess_error *err)
{
    const uint32_t n = v->m->a.hidden_size;
    op_embed_args e = {.w = &v->k->w,
                       .row_hi = v->k->w.n_rows,
                       .ids = v->on->ids,
                       .n_tokens = n_rows,
                       .n = n,
                       .scale = 1,
                       .y = v->on->rows,
                       .ys = n};
    if (!v->b->comm) return v->m->ops->embed(&e, 0, 1), TESS_OK;
    void *stream = comm_stream(v->b->comm, v->rank);
    int code = v->m->feed ? feed_enter(v->m->feed, v->rank, v->layer, stream) : 0;
    if (!code) code = v->m->cuda->embed(&e, stream); /* pinned memory is the device's as well */
    if (!code) code = device_stream_sync(stream);
    return failed(v->b, v->rank, "rows of K can not be read", code, err);
}

/* Square of what an element of W_k x is for the local head g, when x has unit variance before the norm's weights. 0, so that all
 * of the bias counts as large, where no norm stands before attention. */
static tess_status spread(const layer_view *v, uint32_t g, double *out, tess_error *err)
{
    const arch *a = &v->m->a;
    uint32_t n = a->hidden_size, k_dim = arch_k_dim(a), n_rows = MIN(k_dim, (uint32_t)SAMPLE);
    double sum = 0;
    *out = 0;
    if (!v->norm || a->block_kind == BLOCK_POST || a->block_kind == BLOCK_POST_SUM) return TESS_OK;
    for (uint32_t i = 0; i < n_rows; i++) v->on->ids[i] = (int32_t)(g * k_dim + k_dim * i / n_rows);
    TRY(take_rows(v, n_rows, err));
    for (uint32_t i = 0; i < n_rows * n; i++) {
        float w = a->norm_kind == NORM_RMS_PLUS1 ? 1.0f + v->norm[i % n] : v->norm[i % n];
        double x = (double)v->on->rows[i] * (double)w;
        sum += x * x;
    }
    *out = sum / n_rows;
    return TESS_OK;
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

/* *any: at least one head keeps something. */
static tess_status fill_layer(layer_view *v, const op_kbias_head **out, bool *any, tess_error *err)
{
    uint32_t n = n_heads(v->m, v->rank), k_dim = arch_k_dim(&v->m->a);
    bool mine = false;
    *out = NULL;
    if (!v->bias || n == 0) return TESS_OK;
    op_kbias_head *h = arena_alloc(&v->b->store, n, sizeof *h);
    if (!h) return no_memory(v->b, err);
    if (v->b->comm) TRY(bring_vectors(v, err));
    for (uint32_t g = 0; g < n; g++) {
        const float *bias = v->bias + (size_t)g * k_dim;
        double least;
        TRY(spread(v, g, &least, err));
        choose_pairs(&h[g], v, bias, least);
        if (!choose_flat(v->b, &h[g], bias, 2 * v->n_pairs, k_dim, least)) return no_memory(v->b, err);
        mine = mine || h[g].n_pairs || h[g].flat;
    }
    if (mine) *out = h;
    *any = *any || mine;
    return TESS_OK;
}

/* All ranks' layers. Streamed ones (feed.h) are brought for it, as in a run. */
static tess_status fill_layers(kbias *b, desk *on, bool *any, tess_error *err)
{
    const uint32_t n_ranks = b->m->shards.n_ranks;
    feed *f = b->m->feed;
    uint32_t rank = 0;
    const int code = f ? feed_begin(f, &rank) : 0;
    tess_status st = failed(b, rank, "the layers can not be copied", code, err);
    for (uint32_t i = 0; st >= 0 && i < b->m->a.n_layers * n_ranks; i++) {
        layer_view v = layer_at(b, on, i / n_ranks, i % n_ranks);
        st = fill_layer(&v, &b->heads[i], any, err);
    }
    if (f) feed_end(f);
    return st;
}

tess_status kbias_open(kbias *b, const tess_model *m, comm *c, tess_error *err)
{
    const arch *a = &m->a;
    const uint32_t n_ranks = m->shards.n_ranks, n = a->n_layers * n_ranks;
    bool any = false;
    desk on = {0};
    *b = (kbias){.m = m, .comm = c};
    if (!(a->biases & BIAS_QKV) || a->qk_norm != QK_NORM_NONE || a->qkv_clip > 0 || a->kv_lora) return TESS_OK;
    arena_init(&b->store, &m->m);
    b->heads = arena_alloc(&b->store, n, sizeof *b->heads);
    tess_status st = b->heads ? desk_open(b, &on, err) : no_memory(b, err);
    if (st >= 0) st = fill_layers(b, &on, &any, err);
    desk_close(b, &on);
    for (uint32_t r = 0; st >= 0 && c && r < n_ranks; r++) st = move_heads(b, r, err);
    if (st < 0 || !any) kbias_close(b);
    return st;
}

void kbias_close(kbias *b)
{
    for (uint32_t r = 0; r < MAX_RANKS; r++) {
        if (!b->there[r]) continue;
        (void)comm_select(b->comm, r);
        device_free(b->there[r]);
    }
    if (b->store.m) arena_free(&b->store);
    *b = (kbias){0};
}

void kbias_lanes(const float *cs, uint32_t n_cs, uint32_t lo, uint32_t hi, float *lanes)
{
    for (uint32_t pos = lo; pos < hi; pos++)
        for (uint32_t i = 0; i < 2 * n_cs; i++)
            lanes[((size_t)(pos / 8) * 2 * n_cs + i) * 8 + pos % 8] = cs[(size_t)pos * 2 * n_cs + i];
}
