/*
 * place.c - see place.h.
 *
 * Reading and copying overlap by halves: while the copies out of one half of the pinned memory run, the other half is
 * filled. Only the calling thread talks to devices.
 */
#include <stdlib.h>

#include "device.h"
#include "model.h"

#define NO_LAYER UINT32_MAX
enum { TWIN_BLOCK = 1 << 20, ALIGN = 256, CHUNKS = 4 };

typedef struct { uint8_t *host; size_t used, cap; void *on[MAX_RANKS]; } twin_block;
struct place {
    const mem *m;
    twin_block *twins;
    size_t n_twins, cap_twins;
    place_want *parts; /* sorted by piece when reading */
    size_t n_parts, cap_parts;
    uint32_t n_layers, layer;     /* layer: of the next part */
    uint64_t bytes[MAX_RANKS];    /* of the parts that are in no layer */
    uint64_t all[MAX_RANKS];      /* of all parts */
    uint64_t *of_layer[MAX_RANKS]; /* [n_layers] of its parts */
    bool fed[MAX_RANKS];          /* the layers stay on the host */
    void *block[MAX_RANKS];
    void *stream[MAX_RANKS];
};

tess_status place_open(const mem *m, uint32_t n_layers, place **out, tess_error *err)
{
    place *p = *out = mem_zalloc(m, sizeof *p);
    uint64_t *sums = mem_calloc(m, (uint64_t)n_layers * MAX_RANKS + 1, sizeof *sums);
    if (!p || !sums) {
        mem_free(m, p);
        mem_free(m, sums);
        *out = NULL;
        return ERR(err, TESS_E_NOMEM, "no memory for the plan of device memory");
    }
    p->m = m;
    p->n_layers = n_layers;
    p->layer = NO_LAYER;
    for (uint32_t r = 0; r < MAX_RANKS; r++) p->of_layer[r] = sums + (size_t)r * n_layers;
    return TESS_OK;
}

void place_layer(place *p, uint32_t layer) { p->layer = layer; }

/* What only loading needs. */
static void drop_host(place *p)
{
    for (size_t i = 0; i < p->n_twins; i++) {
        mem_free(p->m, p->twins[i].host);
        p->twins[i].host = NULL;
    }
    mem_free(p->m, p->parts);
    p->parts = NULL;
    p->n_parts = p->cap_parts = 0;
}

static void drop_blocks(tess_model *m)
{
    place *p = m->place;
    for (uint32_t r = 0; r < m->devices.n; r++) {
        (void)device_select(m->devices.id[r]);
        device_free(p->block[r]);
        p->block[r] = NULL;
        for (size_t i = 0; i < p->n_twins; i++) {
            device_free(p->twins[i].on[r]);
            p->twins[i].on[r] = NULL;
        }
    }
    m->device_bytes = 0;
}

void place_close(tess_model *m)
{
    place *p = m->place;
    if (!p) return;
    feed_close(m->feed);
    m->feed = NULL;
    drop_blocks(m);
    for (uint32_t r = 0; r < m->devices.n; r++) {
        (void)device_select(m->devices.id[r]);
        device_stream_close(p->stream[r]);
    }
    drop_host(p);
    mem_free(p->m, p->of_layer[0]);
    mem_free(p->m, p->twins);
    mem_free(p->m, p);
    m->place = NULL;
}

void *place_twin(place *p, uint64_t n, size_t size)
{
    uint64_t bytes;
    twin_block *b = p->n_twins ? &p->twins[p->n_twins - 1] : NULL;
    if (!u64_mul(n, size, &bytes) || !u64_align(bytes, ALIGN, &bytes) || bytes > (uint64_t)PTRDIFF_MAX) return NULL;
    if (!b || b->cap - b->used < bytes) {
        if (!mem_grow(p->m, &p->twins, &p->cap_twins, p->n_twins + 1, sizeof *p->twins)) return NULL;
        b = &p->twins[p->n_twins];
        *b = (twin_block){.cap = MAX((size_t)bytes, (size_t)TWIN_BLOCK)};
        if (!(b->host = mem_zalloc(p->m, b->cap))) return NULL;
        p->n_twins++;
    }
    void *at = b->host + b->used;
    b->used += (size_t)bytes;
    return at;
}

tess_status place_part(place *p, const place_want *w, tess_error *err)
{
    uint64_t bytes, end, all, *sum = p->layer == NO_LAYER ? &p->bytes[w->rank] : &p->of_layer[w->rank][p->layer];
    if (!mem_grow(p->m, &p->parts, &p->cap_parts, p->n_parts + 1, sizeof *p->parts))
        return ERR(err, TESS_E_NOMEM, "no memory for the plan of device memory");
    place_want *mine = &p->parts[p->n_parts++];
    *mine = *w;
    mine->layer = p->layer;
    mine->at = *sum;
    if (!u64_mul(w->n_blocks, w->len, &bytes) || !u64_align(bytes, ALIGN, &bytes) || !u64_add(mine->at, bytes, &end) ||
        !u64_add(p->all[w->rank], bytes, &all))
        return ERR(err, TESS_E_FORMAT, "the weights of a rank are too large");
    *sum = end;
    p->all[w->rank] = all;
    return TESS_OK;
}

void place_retarget(place *p, const uint8_t **data, uint64_t *stride)
{
    place_want *w = &p->parts[p->n_parts - 1];
    w->data = data;
    w->stride = stride;
}

/* ---- addresses ---- */

static uint64_t twin_bytes(const place *p)
{
    uint64_t n = 0;
    for (size_t i = 0; i < p->n_twins; i++) n += p->twins[i].cap;
    return n;
}

/* Bytes of a rank's block: all parts, or with the layers fed two buffers in their place. */
static uint64_t block_bytes(const place *p, uint32_t r, bool fed)
{
    uint64_t most[2] = {0};
    for (uint32_t i = 0; fed && i < p->n_layers; i++) most[i & 1] = MAX(most[i & 1], p->of_layer[r][i]);
    return fed ? p->bytes[r] + most[0] + most[1] + ALIGN : p->all[r] + ALIGN;
}

/* What all ranks of a device take of it together. */
static uint64_t device_need(const tess_model *m, uint32_t id, bool fed)
{
    uint64_t need = 0;
    for (uint32_t r = 0; r < m->devices.n; r++)
        if (m->devices.id[r] == id) need += block_bytes(m->place, r, fed) + twin_bytes(m->place);
    return need;
}

static tess_status no_room(uint32_t id, bool fed, uint64_t need, uint64_t have, tess_error *err)
{
    const unsigned long long n = need >> 20, h = have >> 20;
    if (fed)
        return ERR(
            err, TESS_E_NOMEM,
            "cuda:%u: two layers and the weights that always stay need %llu MB of device memory, %llu MB are free; use more devices, or a smaller type of weights",
            id, n, h);
    return ERR(
        err, TESS_E_NOMEM,
        "cuda:%u: the weights need %llu MB of device memory, %llu MB are free; use more devices, or a smaller type of weights, or stream the layers",
        id, n, h);
}

/* Which ranks are fed: all of a device, or none. */
static tess_status choose_fed(tess_model *m, tess_error *err)
{
    place *p = m->place;
    for (uint32_t r = 0; r < m->devices.n; r++) {
        device_props d;
        const uint32_t id = m->devices.id[r];
        int code = device_get(id, &d);
        if (code) return devices_fail(&m->devices, r, "the device can not be used", code, err);
        const uint64_t whole = device_need(m, id, false);
        p->fed[r] = m->stream == TESS_STREAM_ON || (m->stream == TESS_STREAM_AUTO && whole > d.mem_free);
        const uint64_t need = p->fed[r] ? device_need(m, id, true) : whole;
        if (need > d.mem_free) return no_room(id, p->fed[r], need, d.mem_free, err);
    }
    return TESS_OK;
}

/* Host memory and copies of a rank that is fed. Who did not ask for it is told. */
static tess_status open_feed(tess_model *m, uint32_t r, tess_error *err)
{
    const place *p = m->place;
    const uint64_t bytes = p->all[r] - p->bytes[r];
    if (!m->feed) TRY(feed_open(&m->m, &m->devices, p->n_layers, &m->feed, err));
    TRY(feed_rank_open(m->feed, r, p->of_layer[r], (uint8_t *)p->block[r] + p->bytes[r], err));
    m->stream_bytes += bytes;
    mem_log(&m->m, m->stream == TESS_STREAM_ON ? TESS_LOG_INFO : TESS_LOG_WARN,
            "%s: %.1f MB of its layers stay in %s memory of the host and are copied in every step; its weights take %.1f MB of the device, two layers at a time",
            devices_name(&m->devices, r).text, (double)bytes * 1e-6, feed_pinned(m->feed, r) ? "pinned" : "pageable",
            (double)(block_bytes(p, r, true) + twin_bytes(p)) * 1e-6);
    return TESS_OK;
}

/* Without a feed layers lie one behind another, behind what is in none: their parts become parts of the block. */
static void join_layers(place *p, uint32_t r)
{
    uint64_t at = p->bytes[r];
    for (uint32_t i = 0; i < p->n_layers; i++) {
        const uint64_t bytes = p->of_layer[r][i];
        p->of_layer[r][i] = at;
        at += bytes;
    }
    for (size_t i = 0; i < p->n_parts; i++) {
        place_want *w = &p->parts[i];
        if (w->rank != r || w->layer == NO_LAYER) continue;
        w->at += p->of_layer[r][w->layer];
        w->layer = NO_LAYER;
    }
}

/* Block and twins of rank r. */
static tess_status take_block(tess_model *m, uint32_t r, tess_error *err)
{
    place *p = m->place;
    const uint64_t bytes = block_bytes(p, r, p->fed[r]), all = bytes + twin_bytes(p);
    int code = device_select(m->devices.id[r]);
    if (!code && !p->stream[r]) code = device_stream_open(&p->stream[r]);
    if (code) return devices_fail(&m->devices, r, "the device can not be used", code, err);
    code = device_alloc(&p->block[r], (size_t)bytes);
    for (size_t i = 0; !code && i < p->n_twins; i++) code = device_alloc(&p->twins[i].on[r], p->twins[i].cap);
    m->device_bytes += all;
    return code ? ERR(err, TESS_E_NOMEM, "%s: no %llu MB of memory for the weights: %s", devices_name(&m->devices, r).text,
                      (unsigned long long)(all >> 20) + 1, device_error(code))
                : TESS_OK;
}

/* What was free may be gone by now, or lie in pieces: then layers are fed as if it had not been free. */
static tess_status take_blocks(tess_model *m, tess_error *err)
{
    place *p = m->place;
    for (uint32_t r = 0; r < m->devices.n;) {
        tess_status st = take_block(m, r, err);
        if (st >= 0) {
            r++;
            continue;
        }
        if (st != TESS_E_NOMEM || m->stream != TESS_STREAM_AUTO || p->fed[r]) return st;
        drop_blocks(m);
        for (uint32_t o = 0; o < m->devices.n; o++) p->fed[o] = p->fed[o] || m->devices.id[o] == m->devices.id[r];
        r = 0;
    }
    return TESS_OK;
}

static tess_status take_memory(tess_model *m, tess_error *err)
{
    place *p = m->place;
    TRY(choose_fed(m, err));
    TRY(take_blocks(m, err));
    for (uint32_t r = 0; r < m->devices.n; r++) {
        if (p->fed[r] && p->all[r] > p->bytes[r]) TRY(open_feed(m, r, err));
        else join_layers(p, r); /* also of a rank that has nothing of any layer */
    }
    for (size_t i = 0; i < p->n_parts; i++) {
        const place_want *w = &p->parts[i];
        *w->data = (w->layer == NO_LAYER ? (const uint8_t *)p->block[w->rank] : feed_device(m->feed, w->rank, w->layer)) + w->at;
        *w->stride = w->len;
    }
    return TESS_OK;
}

/* The device's twin of an address in a twin block. NULL stays NULL. */
static const void *twin_of(const place *p, uint32_t r, const void *host)
{
    for (size_t i = 0; host && i < p->n_twins; i++) {
        const twin_block *b = &p->twins[i];
        size_t off = (size_t)((uintptr_t)host - (uintptr_t)b->host);
        if (off < b->cap) return (const uint8_t *)b->on[r] + off;
    }
    return NULL;
}

static void move_norm(const place *p, uint32_t r, model_norm *n)
{
    n->w = twin_of(p, r, n->w);
    n->b = twin_of(p, r, n->b);
}

/* Norms were read once; every rank on a device gets the addresses of its own. */
static tess_status move_norms(tess_model *m, const model_rank *host, uint32_t r, tess_error *err)
{
    const place *p = m->place;
    model_rank *k = &m->rank[r];
    model_layer_norms *l = arena_alloc(&m->store, m->a.n_layers, sizeof *l);
    if (!l) return ERR(err, TESS_E_NOMEM, "no memory for norms");
    memcpy(l, host->layers, m->a.n_layers * sizeof *l);
    k->layers = l;
    k->final_norm = host->final_norm;
    k->embed_norm = host->embed_norm;
    move_norm(p, r, &k->final_norm);
    move_norm(p, r, &k->embed_norm);
    for (uint32_t i = 0; i < m->a.n_layers; i++) {
        model_norm *const n[] = {&l[i].attn, &l[i].ffn, &l[i].post_attn, &l[i].post_ffn, &l[i].q, &l[i].k, &l[i].q_a, &l[i].kv_a};
        for (size_t j = 0; j < ARRAY_LEN(n); j++) move_norm(p, r, n[j]);
    }
    return TESS_OK;
}

static void move_experts(const place *p, uint32_t r, op_expert **w, uint32_t n)
{
    for (uint32_t e = 0; *w && e < n; e++) (*w)[e].bias = twin_of(p, r, (*w)[e].bias);
    const void *there = twin_of(p, r, *w);
    memcpy(w, &there, sizeof there); /* nothing on the host looks into it any more */
}

static void move_layer(const tess_model *m, uint32_t i, uint32_t r)
{
    const place *p = m->place;
    model_layer_rank *l = &m->layers[(size_t)i * m->shards.n_ranks + r];
    const shard_rank *s = &m->shards.rank[r];
    model_linear *const w[] = {&l->q,   &l->k,    &l->v,      &l->o,       &l->gate,  &l->up,      &l->down,
                               &l->q_a, &l->kv_a, &l->router, &l->sh_gate, &l->sh_up, &l->sh_down, &l->sh_switch};
    for (size_t j = 0; j < ARRAY_LEN(w); j++) w[j]->bias = twin_of(p, r, w[j]->bias);
    for (uint32_t h = 0; m->a.kv_lora && h < s->q_head.hi - s->q_head.lo; h++) {
        l->k_b[h].bias = twin_of(p, r, l->k_b[h].bias);
        l->v_b[h].bias = twin_of(p, r, l->v_b[h].bias);
    }
    uint32_t n = s->expert.hi - s->expert.lo;
    move_experts(p, r, &l->exp_gate, n);
    move_experts(p, r, &l->exp_up, n);
    move_experts(p, r, &l->exp_down, n);
    l->router_correction = twin_of(p, r, l->router_correction);
    l->sinks = twin_of(p, r, l->sinks);
}

static tess_status move_twins(tess_model *m, tess_error *err)
{
    place *p = m->place;
    const model_rank host = m->rank[0];
    for (uint32_t r = 0; r < m->devices.n; r++) {
        TRY(move_norms(m, &host, r, err));
        m->rank[r].head.bias = twin_of(p, r, m->rank[r].head.bias);
        for (uint32_t i = 0; i < m->a.n_layers; i++) move_layer(m, i, r);
    }
    for (uint32_t r = 0; r < m->devices.n; r++) {
        int code = device_select(m->devices.id[r]);
        for (size_t i = 0; !code && i < p->n_twins; i++)
            code = device_copy(p->twins[i].on[r], p->twins[i].host, p->twins[i].used, p->stream[r]);
        if (!code) code = device_stream_sync(p->stream[r]);
        if (code) return devices_fail(&m->devices, r, "copying vectors failed", code, err);
    }
    return TESS_OK;
}

/* ---- reading ---- */

/* Rows within the piece; stride: of row blocks. */
typedef struct {
    uint32_t piece;
    uint64_t row0, n_rows, stride, chunk0, n_chunks;
} read_item;
typedef struct {
    tess_model *m;
    const ct_info *info;
    ct_scratch **scratch; /* [n_threads] */
    uint32_t n_threads;
    read_item *items;
    size_t n_items, cap_items, n_half; /* n_half: items in one half of the pinned memory */
    uint8_t *slots;
    size_t slot_bytes;
    size_t first;  /* item in slot 0 of the half that is being filled */
    uint8_t *half;
    uint32_t stop; /* atomic */
    tess_error error;
    place_progress *g;
} reader;

static int by_piece(const void *a, const void *b)
{
    const place_want *x = a, *y = b;
    return x->piece < y->piece ? -1 : x->piece > y->piece;
}

static bool meets(const place_want *w, uint64_t b0, uint64_t b1) { return w->block0 < b1 && b0 < w->block0 + w->n_blocks; }

/* First part of a piece. */
static size_t first_part(const place *p, uint32_t piece)
{
    size_t lo = 0, hi = p->n_parts;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (p->parts[mid].piece < piece) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

static bool item_wanted(const place *p, size_t first, const read_item *it)
{
    uint64_t b0 = it->row0 / TILE_ROWS, b1 = ceil_div(it->row0 + it->n_rows, TILE_ROWS);
    for (size_t i = first; i < p->n_parts && p->parts[i].piece == it->piece; i++)
        if (meets(&p->parts[i], b0, b1)) return true;
    return false;
}

static uint64_t block_stride(const ct_info *info, const ct_piece *p)
{
    const ct_tensor *t = &info->tensors[p->tensor];
    uint64_t k[MAX_LEAVES] = {p->n_k}, stride = 0;
    uint32_t n = 1;
    if (t->split_dim == 1) {
        const arch_axis *x = &info->axes[t->axis];
        for (n = 0; n < p->n_leaves; n++) k[n] = axis_elem(x, x->leaf[p->leaf0 + n + 1]) - axis_elem(x, x->leaf[p->leaf0 + n]);
    }
    layout_stride(t->dtype, LAYOUT_TILE8, k, n, &stride);
    return stride;
}

/* Items of about four chunks of every piece that somebody needs. */
static tess_status plan_piece(reader *s, uint32_t piece, tess_error *err)
{
    const place *p = s->m->place;
    const ct_piece *c = &s->info->pieces[piece];
    size_t first = first_part(p, piece);
    if (first == p->n_parts || p->parts[first].piece != piece) return TESS_OK;
    for (uint64_t chunk = 0; chunk < c->n_chunks; chunk += CHUNKS) {
        read_item it = {.piece = piece, .row0 = chunk * c->rows_per_chunk, .stride = block_stride(s->info, c), .chunk0 = chunk,
                        .n_chunks = MIN((uint64_t)CHUNKS, c->n_chunks - chunk)};
        it.n_rows = MIN(it.n_chunks * c->rows_per_chunk, c->n_rows - it.row0);
        if (!item_wanted(p, first, &it)) continue;
        if (!mem_grow(p->m, &s->items, &s->cap_items, s->n_items + 1, sizeof *s->items))
            return ERR(err, TESS_E_NOMEM, "no memory to plan the loading");
        s->items[s->n_items++] = it;
        s->slot_bytes = MAX(s->slot_bytes, (size_t)(ceil_div(it.n_rows, TILE_ROWS) * it.stride));
    }
    return TESS_OK;
}

typedef struct { uint32_t split_file, piece; uint64_t off; } file_place;
static int by_offset(const void *a, const void *b)
{
    const file_place *x = a, *y = b;
    if (x->split_file != y->split_file) return x->split_file < y->split_file ? -1 : 1;
    return x->off < y->off ? -1 : x->off > y->off;
}

static tess_status plan_reading(reader *s, tess_error *err)
{
    place *p = s->m->place;
    file_place *order = mem_calloc(p->m, MAX(s->info->n_pieces, 1u), sizeof *order);
    if (!order) return ERR(err, TESS_E_NOMEM, "no memory to plan the loading");
    qsort(p->parts, p->n_parts, sizeof *p->parts, by_piece);
    for (uint32_t i = 0; i < s->info->n_pieces; i++) order[i] = (file_place){s->info->pieces[i].split_file, i, s->info->pieces[i].off};
    qsort(order, s->info->n_pieces, sizeof *order, by_offset);
    tess_status st = TESS_OK;
    for (uint32_t i = 0; st >= 0 && i < s->info->n_pieces; i++) st = plan_piece(s, order[i].piece, err);
    mem_free(p->m, order);
    return st;
}

/* Parts of fed layers go from the slot to where they stay. */
static void keep_parts(const reader *s, const read_item *it, const uint8_t *slot)
{
    const place *p = s->m->place;
    const uint64_t b0 = it->row0 / TILE_ROWS, b1 = ceil_div(it->row0 + it->n_rows, TILE_ROWS);
    for (size_t i = first_part(p, it->piece); i < p->n_parts && p->parts[i].piece == it->piece; i++) {
        const place_want *w = &p->parts[i];
        if (w->layer == NO_LAYER || !meets(w, b0, b1)) continue;
        uint8_t *to = feed_host(s->m->feed, w->rank, w->layer) + w->at;
        for (uint64_t b = MAX(b0, w->block0); b < MIN(b1, w->block0 + w->n_blocks); b++)
            memcpy(to + (b - w->block0) * w->len, slot + (b - b0) * it->stride + w->off, (size_t)w->len);
    }
}

/* The TILE8 image of item first + i into its slot. */
static void read_one(void *arg, uint64_t i, uint32_t thread)
{
    reader *s = arg;
    if (__atomic_load_n(&s->stop, __ATOMIC_ACQUIRE)) return;
    const read_item *it = &s->items[s->first + i];
    uint8_t *dst = s->half + i * s->slot_bytes;
    const uint8_t *host = s->m->tiles[it->piece]; /* tables that stay on the host as well have been read and checked */
    tess_error e;
    tess_status st = TESS_OK;
    if (host) memcpy(dst, host + it->row0 / TILE_ROWS * it->stride, (size_t)(ceil_div(it->n_rows, TILE_ROWS) * it->stride));
    else st = ct_read_rows(s->m->file, it->piece, it->row0, it->n_rows, LAYOUT_TILE8, dst, 0, s->scratch[thread], &e);
    if (st >= 0 && s->m->feed) keep_parts(s, it, dst);
    if (st < 0 && __atomic_exchange_n(&s->stop, 1, __ATOMIC_ACQ_REL) == 0) s->error = e;
}

/* Copies an item from its slot to every rank that has a part of it. */
static tess_status send_one(reader *s, const read_item *it, const uint8_t *slot, tess_error *err)
{
    const place *p = s->m->place;
    uint64_t b0 = it->row0 / TILE_ROWS, b1 = ceil_div(it->row0 + it->n_rows, TILE_ROWS);
    for (size_t i = first_part(p, it->piece); i < p->n_parts && p->parts[i].piece == it->piece; i++) {
        const place_want *w = &p->parts[i];
        if (w->layer != NO_LAYER || !meets(w, b0, b1)) continue;
        uint64_t lo = MAX(b0, w->block0), hi = MIN(b1, w->block0 + w->n_blocks);
        uint8_t *dst = (uint8_t *)p->block[w->rank] + w->at + (lo - w->block0) * w->len;
        int code = device_select(s->m->devices.id[w->rank]);
        if (!code)
            code = device_copy_rows(dst, (size_t)w->len, slot + (lo - b0) * it->stride + w->off, (size_t)it->stride, (size_t)w->len,
                                    (size_t)(hi - lo), p->stream[w->rank]);
        if (code) return devices_fail(&s->m->devices, w->rank, "copying weights failed", code, err);
    }
    return TESS_OK;
}

static tess_status wait_copies(const reader *s, tess_error *err)
{
    const tess_model *m = s->m;
    for (uint32_t r = 0; r < m->devices.n; r++) {
        int code = device_select(m->devices.id[r]);
        if (!code) code = device_stream_sync(m->place->stream[r]);
        if (code) return devices_fail(&m->devices, r, "copying weights failed", code, err);
    }
    return TESS_OK;
}

static tess_status report(reader *s, size_t n, tess_error *err)
{
    const tess_model_params *o = s->g->params;
    for (size_t i = s->first; i < s->first + n; i++) {
        const read_item *it = &s->items[i];
        const ct_piece *c = &s->info->pieces[it->piece];
        if (s->m->tiles[it->piece]) continue; /* counted when it was checked */
        for (uint64_t k = 0; k < it->n_chunks; k++) {
            s->g->done += s->info->chunks[c->first_chunk + it->chunk0 + k].usize;
            s->m->read_bytes += s->info->chunks[c->first_chunk + it->chunk0 + k].csize;
        }
    }
    if (o && o->progress && o->progress(o->progress_user, MIN(s->g->done, s->g->total), s->g->total))
        return ERR(err, TESS_E_CANCELLED, "loading was cancelled");
    return TESS_OK;
}

static tess_status read_all(reader *s, pool *threads, tess_error *err)
{
    for (uint32_t turn = 0; s->first < s->n_items; turn ^= 1) {
        size_t n = MIN(s->n_half, s->n_items - s->first);
        s->half = s->slots + turn * s->n_half * s->slot_bytes;
        pool_each(threads, n, read_one, s);
        if (s->stop) {
            if (err) *err = s->error;
            return s->error.status;
        }
        TRY(wait_copies(s, err)); /* of the other half, which is filled next */
        for (size_t i = 0; i < n; i++) TRY(send_one(s, &s->items[s->first + i], s->half + i * s->slot_bytes, err));
        TRY(report(s, n, err));
        s->first += n;
    }
    return TESS_OK;
}

static tess_status read_parts(tess_model *m, pool *threads, place_progress *g, tess_error *err)
{
    const mem *host = m->place->m;
    reader s = {.m = m, .info = ct_get(m->file), .n_threads = pool_size(threads), .n_half = pool_size(threads), .g = g};
    void *slots = NULL;
    tess_status st = plan_reading(&s, err);
    if (st >= 0 && !(s.scratch = mem_calloc(host, s.n_threads, sizeof *s.scratch)))
        st = ERR(err, TESS_E_NOMEM, "no memory to load the model");
    for (uint32_t i = 0; st >= 0 && i < s.n_threads; i++) st = ct_scratch_open(host, &s.scratch[i], err);
    if (st >= 0 && s.n_items) {
        int code = device_host_alloc(&slots, 2 * s.n_half * s.slot_bytes);
        if (code)
            st = ERR(err, TESS_E_NOMEM, "no %zu MB of pinned memory to load the model: %s", (2 * s.n_half * s.slot_bytes) >> 20,
                     device_error(code));
    }
    s.slots = slots;
    if (st >= 0) st = read_all(&s, threads, err);
    tess_status late = wait_copies(&s, st < 0 ? NULL : err); /* also after a failure: slots are in use until then */
    if (st >= 0) st = late;
    device_host_free(slots);
    for (uint32_t i = 0; s.scratch && i < s.n_threads; i++) ct_scratch_close(s.scratch[i]);
    mem_free(host, s.scratch);
    mem_free(host, s.items);
    return st;
}

tess_status place_weights(tess_model *m, pool *threads, place_progress *g, tess_error *err)
{
    TRY(take_memory(m, err));
    TRY(move_twins(m, err));
    TRY(read_parts(m, threads, g, err));
    drop_host(m->place);
    return TESS_OK;
}
