/*
 * container_plan.c - the writer's lists, and the plan made from them before any data is pulled.
 *
 * The plan fixes everything but the sizes of coded chunks: order of the tensors (by name), layout of each,
 * pieces, chunks, and the order in which pieces are written: layer, piece number, tensor. Whether float
 * matrices are coded is judged per tensor on up to three samples of whole rows, which do not depend on the
 * number of pieces, so that the same checkpoint gives the same choice for every --tp.
 */
#include <stdio.h>
#include <stdlib.h>

#include "container_priv.h"
#include "utf8.h"

enum { SAMPLE_BYTES = 1 << 17, SAMPLES = 3, SAVE_PERCENT = 10 };

typedef unsigned long long ull;

tess_status ct_writer_open(const char *path, const ct_write_options *o, const mem *m, ct_writer **out,
                           tess_error *err)
{
    *out = NULL;
    if (o->kind < CT_KIND_MODEL || o->kind > CT_KIND_TRAIN)
        return ERR(err, TESS_E_ARG, "%s: kind %u is not known", path, o->kind);
    if (o->store > CT_STORE_ZSTD) return ERR(err, TESS_E_ARG, "%s: store %u is not known", path, o->store);
    if (o->tp > UINT16_MAX) return ERR(err, TESS_E_ARG, "%s: tp %u is above %d", path, o->tp, UINT16_MAX);
    if (o->split_max && o->split_max < (1 << 16))
        return ERR(err, TESS_E_ARG, "%s: a part of %llu bytes is too small, want at least 65536", path,
                   (ull)o->split_max);
    if (!o->force && !o->split_max && os_exists(path))
        return ERR(err, TESS_E_IO, "%s: exists already; use --force to replace it", path);
    ct_writer *w = mem_zalloc(m, sizeof *w);
    if (!w) return ERR(err, TESS_E_NOMEM, "%s: no memory", path);
    w->m = m;
    w->o = *o;
    if (w->o.tp == 0) w->o.tp = 1;
    arena_init(&w->a, m);
    if (o->writer) snprintf(w->writer, sizeof w->writer, "%.32s", o->writer);
    w->path = mem_strndup(m, path, strlen(path));
    tess_status st = TESS_OK;
    if (!w->path || !mem_grow(m, &w->parts, &w->cap_parts, 1, sizeof *w->parts))
        st = ERR(err, TESS_E_NOMEM, "%s: no memory", path);
    else if ((st = os_out_open(&w->parts[0].out, m, path, err)) ==
             TESS_OK) { /* now, so that a bad directory is told before the work */
        w->parts[0].end = CT_HEAD_SIZE;
        w->n_parts = 1;
    }
    if (st < 0) {
        ct_writer_close(w);
        return st;
    }
    *out = w;
    return TESS_OK;
}

void ct_writer_close(ct_writer *w)
{
    if (!w) return;
    for (uint32_t i = 0; i < w->n_parts; i++) os_out_abort(&w->parts[i].out);
    for (size_t i = 0; i < w->n_tensors; i++) mem_free(w->m, w->tensors[i].hashes);
    for (uint32_t i = 0; i < w->n_blobs; i++) mem_free(w->m, w->blobs[i].stored);
    mem_free(w->m, w->parts);
    mem_free(w->m, w->tensors);
    mem_free(w->m, w->kv);
    mem_free(w->m, w->prov);
    mem_free(w->m, w->pieces);
    mem_free(w->m, w->chunks);
    mem_free(w->m, w->segments);
    mem_free(w->m, w->order);
    mem_free(w->m, w->path);
    arena_free(&w->a);
    mem_free(w->m, w);
}

tess_status ct_add_axis(ct_writer *w, const arch_axis *a, uint32_t *index, tess_error *err)
{
    const char *why = ct_axis_bad(a);
    if (why) return ERR(err, TESS_E_ARG, "%s: axis of kind %u: %s", w->path, a->kind, why);
    if (w->n_axes == CT_MAX_AXES) return ERR(err, TESS_E_ARG, "%s: more than %d axes", w->path, CT_MAX_AXES);
    *index = w->n_axes;
    w->axes[w->n_axes++] = *a;
    return TESS_OK;
}

/* What must hold between a new tensor and those before it. */
static const char *relations_bad(const ct_writer *w, const ct_tensor *t)
{
    if (t->split_dim != CT_SPLIT_NONE) {
        if (t->split_dim >= t->rank || t->rank > 2)
            return "split_dim: is not a dimension of a vector or matrix";
        if (t->axis >= w->n_axes || t->shape[t->split_dim] != w->axes[t->axis].dim)
            return "axis: has not the length of the split dimension";
    }
    if (t->layer < -1 || t->layer > 65535 || t->role > UINT16_MAX || t->part > 4)
        return "layer, role or part: out of range";
    if (t->alias == CT_NO_ALIAS) return NULL;
    if (t->alias >= w->n_tensors) return "alias: comes before its target";
    const ct_tensor *o = &w->tensors[t->alias].t;
    if (o->alias != CT_NO_ALIAS) return "alias: its target is an alias";
    if (o->dtype != t->dtype || o->rank != t->rank || memcmp(o->shape, t->shape, sizeof o->shape) != 0 ||
        o->split_dim != t->split_dim || (t->split_dim != CT_SPLIT_NONE && o->axis != t->axis))
        return "alias: differs from its target in type, shape or split";
    return NULL;
}

tess_status ct_add_tensor(ct_writer *w, const ct_tensor *in, uint32_t *index, tess_error *err)
{
    ct_tensor t = *in;
    const char *why = ct_name_bad(in->name, strnlen(in->name, CT_MAX_NAME + 1));
    if (why) return ERR(err, TESS_E_ARG, "%s: tensor name \"%.100s\" %s", w->path, in->name, why);
    for (uint32_t i = t.rank; i < 4; i++) t.shape[i] = 0;
    t.layout = dtype_is_quant(t.dtype) ? LAYOUT_TILE8 : LAYOUT_ROWS; /* decided by ct_plan */
    if (!(why = ct_shape_bad(&t))) why = relations_bad(w, &t);
    if (why) return ERR(err, TESS_E_ARG, "%s: tensor \"%.100s\": %s", w->path, in->name, why);
    if (w->n_tensors == CT_MAX_TENSORS)
        return ERR(err, TESS_E_ARG, "%s: more than %d tensors", w->path, CT_MAX_TENSORS);
    t.name = arena_strndup(&w->a, in->name, strlen(in->name));
    if (!t.name || !mem_grow(w->m, &w->tensors, &w->cap_tensors, w->n_tensors + 1, sizeof *w->tensors))
        return ERR(err, TESS_E_NOMEM, "%s: no memory", w->path);
    *index = (uint32_t)w->n_tensors;
    w->tensors[w->n_tensors++] = (ct_wtensor){.t = t, .user = *index};
    return TESS_OK;
}

static tess_status set_bytes(ct_writer *w, uint8_t **dst, size_t *dst_len, const void *src, size_t len,
                             tess_error *err)
{
    uint8_t *p = (uint8_t *)mem_strndup(w->m, src, len);
    if (!p) return ERR(err, TESS_E_NOMEM, "%s: no memory", w->path);
    mem_free(w->m, *dst);
    *dst = p;
    *dst_len = len;
    return TESS_OK;
}

tess_status ct_set_kv(ct_writer *w, const void *kv_bytes, size_t len, tess_error *err)
{
    kvs k;
    TRY(set_bytes(w, &w->kv, &w->kv_len, kv_bytes, len, err));
    tess_status st = kvs_open(&k, w->m, w->kv, len, err);
    if (st == TESS_OK) kvs_close(&k);
    return st;
}

tess_status ct_set_provenance(ct_writer *w, const char *json, size_t len, tess_error *err)
{
    if (!utf8_valid(json, len)) return ERR(err, TESS_E_ARG, "%s: provenance is not UTF-8", w->path);
    return set_bytes(w, &w->prov, &w->prov_len, json, len, err);
}

tess_status ct_add_blob(ct_writer *w, const char *name, const void *data, size_t len, tess_error *err)
{
    const char *why = ct_name_bad(name, strnlen(name, CT_MAX_NAME + 1));
    if (!why && strchr(name, '/')) why = "has a slash";
    for (uint32_t i = 0; !why && i < w->n_blobs; i++)
        if (strcmp(w->blobs[i].name, name) == 0) why = "is given twice";
    if (!why && len > CT_BLOB_MAX) why = "is of more than 256 MiB";
    if (!why && w->n_blobs == CT_MAX_BLOBS) why = "is one too many";
    if (why) return ERR(err, TESS_E_ARG, "%s: blob \"%.100s\" %s", w->path, name, why);
    ct_wblob b = {
        .name = arena_strndup(&w->a, name, strlen(name)), .stored = mem_alloc(w->m, len), .usize = len};
    if (!b.name || !b.stored) {
        mem_free(w->m, b.stored);
        return ERR(err, TESS_E_NOMEM, "%s: no memory for blob \"%.100s\"", w->path, name);
    }
    b.csize = ct_zip(w->m, data, len, b.stored);
    if (b.csize == 0) {
        b.csize = len;
        if (len) memcpy(b.stored, data, len);
    }
    hash128(data, len, b.plain_hash);
    w->blobs[w->n_blobs++] = b;
    return TESS_OK;
}

/* ---- sampling ---- */

typedef struct { ct_writer *w; ct_read_fn read; void *user; uint32_t failed; tess_error err; } sampler_state;

/* Sizes of the samples of one tensor, plain and coded. */
static tess_status sample_tensor(sampler_state *s, ct_wtensor *t, uint32_t thread, uint64_t *plain,
                                 uint64_t *coded, tess_error *err)
{
    const mem *m = s->w->m;
    ct_view v = ct_view_of(&t->t);
    uint64_t row = v.k * dtype_get(t->t.dtype)->block_bytes, n = MIN(v.rows, MAX(SAMPLE_BYTES / row, 1));
    uint32_t count = v.rows > SAMPLES * n ? SAMPLES : 1;
    if (count == 1) n = MIN(v.rows, MAX(SAMPLES * SAMPLE_BYTES / row, 1));
    size_t bytes = (size_t)(row * n); /* a row is at most 2 MiB: ct_rows_per_chunk was asked before */
    tess_status st = TESS_OK;
    ct_enc *e = NULL;
    uint8_t *buf3 = mem_calloc(m, 3, bytes);
    if (!buf3) return ERR(err, TESS_E_NOMEM, "%s: no memory to sample tensors", s->w->path);
    if ((st = ct_enc_open(m, &e, err)) < 0) goto done;
    for (uint32_t i = 0; i < count; i++) {
        ct_chunk c;
        uint64_t row0 = (v.rows - n) * i / (SAMPLES - 1);
        if ((st = s->read(s->user, t->user, row0, n, 0, v.k, buf3, thread, err)) < 0) goto done;
        if (!ct_encode(e, t->t.dtype, buf3, (uint32_t)bytes, buf3 + bytes, buf3 + 2 * bytes, &c)) {
            st = ERR(err, TESS_E_NOMEM, "%s: no memory to sample tensors", s->w->path);
            goto done;
        }
        *plain += c.usize;
        *coded += c.csize;
    }
done:
    ct_enc_close(e);
    mem_free(m, buf3);
    return st;
}

static void sample_item(void *arg, uint64_t i, uint32_t thread)
{
    sampler_state *s = arg;
    ct_wtensor *t = &s->w->tensors[i];
    uint64_t plain = 0, coded = 0;
    tess_error err = {0};
    if (!t->coded || __atomic_load_n(&s->failed, __ATOMIC_RELAXED)) return;
    if (sample_tensor(s, t, thread, &plain, &coded, &err) < 0) {
        if (!__atomic_exchange_n(&s->failed, 1, __ATOMIC_RELAXED)) s->err = err;
        return;
    }
    t->coded = coded * 100 <= plain * (100 - SAVE_PERCENT);
}

/* Sets coded and layout of every tensor. */
static tess_status choose_coding(ct_writer *w, pool *p, ct_read_fn read, void *user, tess_error *err)
{
    for (size_t i = 0; i < w->n_tensors; i++) {
        const ct_tensor *t = &w->tensors[i].t;
        bool floats = dtype_get(t->dtype)->is_float && t->rank == 2, quant = dtype_is_quant(t->dtype);
        w->tensors[i].coded = t->alias == CT_NO_ALIAS && ((floats && w->o.store != CT_STORE_RAW) ||
                                                          (quant && w->o.store == CT_STORE_ZSTD));
    }
    if (w->o.store == CT_STORE_AUTO) {
        sampler_state s = {.w = w, .read = read, .user = user};
        pool_each(p, w->n_tensors, sample_item, &s);
        if (s.failed) return ERR(err, s.err.status, "%s", s.err.text);
    }
    for (size_t i = 0; i < w->n_tensors; i++) {
        ct_wtensor *t = &w->tensors[i];
        const ct_wtensor *o = t->t.alias == CT_NO_ALIAS ? t : &w->tensors[t->t.alias];
        bool floats = dtype_get(t->t.dtype)->is_float && t->t.rank == 2;
        t->t.layout = dtype_is_quant(t->t.dtype) || (floats && !o->coded) ? LAYOUT_TILE8 : LAYOUT_ROWS;
        w->any_coded |= t->coded;
        w->any_tile8 |= t->t.layout == LAYOUT_TILE8;
    }
    return TESS_OK;
}

/* ---- order, pieces, chunks ---- */

static int name_cmp(const void *x, const void *y)
{
    const ct_wtensor *a = x, *b = y;
    return strcmp(a->t.name, b->t.name);
}

/* By name, as the file wants it; aliases follow their targets to the new places. */
static tess_status sort_tensors(ct_writer *w, tess_error *err)
{
    size_t n = w->n_tensors;
    if (n == 0) return TESS_OK;
    uint32_t *place = mem_calloc(w->m, n, sizeof *place);
    if (!place) return ERR(err, TESS_E_NOMEM, "%s: no memory", w->path);
    qsort(w->tensors, n, sizeof *w->tensors, name_cmp);
    for (size_t i = 0; i < n; i++) place[w->tensors[i].user] = (uint32_t)i;
    tess_status st = TESS_OK;
    for (size_t i = 0; i < n; i++) {
        ct_tensor *t = &w->tensors[i].t;
        if (t->alias != CT_NO_ALIAS) t->alias = place[t->alias];
        if (i && strcmp(t->name, w->tensors[i - 1].t.name) == 0)
            st = ERR(err, TESS_E_ARG, "%s: tensor \"%.100s\" is given twice", w->path, t->name);
    }
    mem_free(w->m, place);
    return st;
}

static tess_status plan_piece(ct_writer *w, uint32_t ti, uint32_t n, uint32_t no, tess_error *err)
{
    ct_wtensor *t = &w->tensors[ti];
    const arch_axis *x = ct_waxis(w, &t->t);
    ct_piece *p = &w->pieces[w->n_pieces++];
    uint64_t k[MAX_LEAVES], bytes, rows;
    ct_piece_box(&t->t, x, n, no, p);
    uint32_t n_leaves = ct_piece_leaves(&t->t, x, p, k);
    p->tensor = ti;
    p->raw_contig = !t->coded;
    p->rows_per_chunk = ct_rows_per_chunk(&t->t, p, k, n_leaves);
    if (p->rows_per_chunk == 0 || !layout_bytes(t->t.dtype, t->t.layout, p->n_rows, k, n_leaves, &p->usize))
        return ERR(err, TESS_E_UNSUPPORTED,
                   "%s: tensor \"%.100s\": its rows are longer than the format allows (8 rows of a matrix, or "
                   "a vector, in 16 MiB)",
                   w->path, t->t.name);
    uint64_t chunks = ceil_div(p->n_rows, p->rows_per_chunk);
    p->first_chunk = w->n_chunks;
    p->n_chunks = (uint32_t)chunks;
    w->n_chunks += chunks;
    if (w->n_chunks > CT_MAX_CHUNKS)
        return ERR(err, TESS_E_UNSUPPORTED, "%s: more than %d chunks", w->path, CT_MAX_CHUNKS);
    t->chunks_left += chunks;
    if (ct_chunk_bytes(&t->t, p, k, n_leaves, 0, &bytes, &rows)) w->max_box = MAX(w->max_box, bytes);
    w->max_tmp = MAX(w->max_tmp, ct_hash_tmp(&t->t, k, n_leaves));
    w->data_bytes += p->usize;
    return TESS_OK;
}

static tess_status plan_pieces(ct_writer *w, tess_error *err)
{
    uint64_t total = 0, bytes;
    for (size_t i = 0; i < w->n_tensors; i++) {
        ct_tensor *t = &w->tensors[i].t;
        const arch_axis *x = ct_waxis(w, t);
        t->n_pieces = t->alias != CT_NO_ALIAS ? 0 : x ? ct_axis_pieces(x, w->o.tp) : 1;
        t->first_piece = (uint32_t)total;
        total += t->n_pieces;
        if (t->n_pieces == 0) continue;
        ct_view v = ct_view_of(t);
        w->param_count += v.rows * v.k; /* at most 2^20 times 2^48 */
        if (!ct_logical_bytes(t, x, &bytes) || bytes > CT_FILE_MAX)
            return ERR(err, TESS_E_UNSUPPORTED, "%s: tensor \"%.100s\" is too large", w->path, t->name);
        w->logical_bytes += bytes;
    }
    if (total > CT_MAX_PIECES)
        return ERR(err, TESS_E_UNSUPPORTED, "%s: more than %d pieces", w->path, CT_MAX_PIECES);
    w->pieces = mem_calloc(w->m, total, sizeof *w->pieces);
    w->segments = mem_calloc(w->m, total, sizeof *w->segments);
    w->order = mem_calloc(w->m, total, sizeof *w->order);
    if (!w->pieces || !w->segments || !w->order)
        return ERR(err, TESS_E_NOMEM, "%s: no memory for %llu pieces", w->path, (ull)total);
    for (uint32_t i = 0; i < w->n_tensors; i++)
        for (uint32_t p = 0; p < w->tensors[i].t.n_pieces; p++)
            TRY(plan_piece(w, i, w->tensors[i].t.n_pieces, p, err));
    w->chunks = mem_calloc(w->m, w->n_chunks, sizeof *w->chunks);
    return w->chunks ? TESS_OK
                     : ERR(err, TESS_E_NOMEM, "%s: no memory for %llu chunks", w->path, (ull)w->n_chunks);
}

typedef struct { int32_t layer; uint32_t piece_no, piece; } rank_key;
static int rank_cmp(const void *x, const void *y)
{
    const rank_key *a = x, *b = y;
    if (a->layer != b->layer) return a->layer < b->layer ? -1 : 1;
    if (a->piece_no != b->piece_no) return a->piece_no < b->piece_no ? -1 : 1;
    return (a->piece > b->piece) - (a->piece < b->piece); /* pieces are numbered in the order of tensors */
}

static tess_status order_pieces(ct_writer *w, tess_error *err)
{
    if (w->n_pieces == 0) return TESS_OK;
    rank_key *key = mem_calloc(w->m, w->n_pieces, sizeof *key);
    if (!key) return ERR(err, TESS_E_NOMEM, "%s: no memory", w->path);
    for (uint32_t i = 0; i < w->n_pieces; i++)
        key[i] = (rank_key){w->tensors[w->pieces[i].tensor].t.layer, w->pieces[i].piece_no, i};
    qsort(key, w->n_pieces, sizeof *key, rank_cmp);
    for (uint32_t i = 0; i < w->n_pieces; i++) w->order[i] = key[i].piece;
    mem_free(w->m, key);
    return TESS_OK;
}

/* Rows that no chunk can hold are refused before anybody allocates for them. */
static tess_status check_rows(const ct_writer *w, tess_error *err)
{
    for (size_t i = 0; i < w->n_tensors; i++) {
        const ct_tensor *t = &w->tensors[i].t;
        uint64_t row = ct_view_of(t).k *
                       dtype_get(t->dtype)->block_bytes; /* below 2^46; whole rows: the same for every tp */
        if (!dtype_is_quant(t->dtype) && row * (t->rank == 1 ? 1 : TILE_ROWS) > CT_CHUNK_MAX)
            return ERR(err, TESS_E_UNSUPPORTED,
                       "%s: tensor \"%.100s\": its rows are longer than the format allows (8 rows of a matrix, "
                       "or a vector, in 16 MiB)",
                       w->path, t->name);
    }
    return TESS_OK;
}

tess_status ct_plan(ct_writer *w, pool *p, ct_read_fn read, void *user, tess_error *err)
{
    TRY(sort_tensors(w, err));
    TRY(check_rows(w, err));
    TRY(choose_coding(w, p, read, user, err));
    TRY(plan_pieces(w, err));
    return order_pieces(w, err);
}
