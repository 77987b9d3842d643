/*
 * source_tess.c - see source_tess.h.
 *
 * A read takes a scratch from a list that grows to the number of threads that read at once; the one returned
 * last is taken first, so a thread mostly meets its own last chunk again. A window of columns goes through a
 * buffer of whole rows of the piece, in steps of at most 1 MiB.
 */
#include "source_tess.h"

#include <pthread.h>
#include <stdio.h>

#include "quant.h"

enum { STEP = 1 << 20 };

typedef struct slot { struct slot *next; ct_scratch *scratch; uint8_t *rows; size_t cap; } slot;
typedef struct { ct_file *f; pthread_mutex_t lock; slot *idle; } tess_impl;

static slot *slot_take(const source *s, tess_error *err)
{
    tess_impl *t = s->impl;
    pthread_mutex_lock(&t->lock);
    slot *x = t->idle;
    if (x) t->idle = x->next;
    pthread_mutex_unlock(&t->lock);
    if (x) return x;
    x = mem_zalloc(s->m, sizeof *x);
    if (x && ct_scratch_open(s->m, &x->scratch, err) == TESS_OK) return x;
    if (!x) ERR(err, TESS_E_NOMEM, "%s: no memory to read it", s->paths[0]);
    mem_free(s->m, x);
    return NULL;
}

static void slot_give(const source *s, slot *x)
{
    tess_impl *t = s->impl;
    pthread_mutex_lock(&t->lock);
    x->next = t->idle;
    t->idle = x;
    pthread_mutex_unlock(&t->lock);
}

static void close_tess(source *s)
{
    tess_impl *t = s->impl;
    while (t->idle) {
        slot *x = t->idle;
        t->idle = x->next;
        ct_scratch_close(x->scratch);
        mem_free(s->m, x->rows);
        mem_free(s->m, x);
    }
    ct_close(t->f);
    pthread_mutex_destroy(&t->lock);
    mem_free(s->m, t);
}

/* What a read wants of one tensor: rows x columns from (row0, k0); element (r, k) to dst[(r * n_k + k) *
 * esize]. */
typedef struct { uint64_t row0, n_rows, k0, n_k; uint32_t esize, dtype; bool raw; uint8_t *dst; } box;

/* Columns [k0, k1) of row `row` of the box, whose bytes are at p. */
static void deliver(const box *b, uint64_t row, uint64_t k0, uint64_t k1, const uint8_t *p)
{
    uint64_t at = row * b->n_k + (k0 - b->k0);
    if (b->raw) memcpy(b->dst + at * b->esize, p, (size_t)((k1 - k0) * b->esize));
    else dtype_to_f32(b->dtype, p, (float *)(void *)b->dst + at, (size_t)(k1 - k0));
}

/* The part of the box that lies in piece `no`. */
static tess_status read_piece(const source *s, const tess_impl *t, uint32_t no, const box *b, slot *x,
                              tess_error *err)
{
    const ct_piece *p = &ct_get(t->f)->pieces[no];
    uint64_t r0 = MAX(b->row0, p->row0), r1 = MIN(b->row0 + b->n_rows, p->row0 + p->n_rows);
    uint64_t k0 = MAX(b->k0, p->k0), k1 = MIN(b->k0 + b->n_k, p->k0 + p->n_k);
    if (r0 >= r1 || k0 >= k1) return TESS_OK;
    size_t row_bytes = (size_t)(p->n_k * b->esize); /* at most 2 MiB: a rule of the format */
    if (b->raw && k0 == p->k0 && k1 == p->k0 + p->n_k)
        return ct_read_rows(t->f, no, r0 - p->row0, r1 - r0, LAYOUT_ROWS,
                            b->dst + ((r0 - b->row0) * b->n_k + (k0 - b->k0)) * b->esize,
                            (size_t)(b->n_k * b->esize), x->scratch, err);
    uint64_t per = MAX(STEP / row_bytes, 1);
    if (!mem_grow(s->m, &x->rows, &x->cap, (size_t)per * row_bytes, 1))
        return ERR(err, TESS_E_NOMEM, "%s: no memory to read it", s->paths[0]);
    for (uint64_t r = r0; r < r1; r += per) {
        uint64_t n = MIN(per, r1 - r);
        TRY(ct_read_rows(t->f, no, r - p->row0, n, LAYOUT_ROWS, x->rows, row_bytes, x->scratch, err));
        for (uint64_t i = 0; i < n; i++)
            deliver(b, r + i - b->row0, k0, k1, x->rows + i * row_bytes + (k0 - p->k0) * b->esize);
    }
    return TESS_OK;
}

/* ---- q8 and q4 ---- */

/* The leaves of K of a tensor, and which group of its row column `col`, a bound of groups, begins. */
typedef struct { uint32_t n; uint64_t bound[MAX_LEAVES + 1]; } k_leaves;

static k_leaves leaves_of(const ct_info *info, const ct_tensor *t)
{
    k_leaves l = {1, {0, t->shape[1]}};
    if (t->split_dim != 1) return l;
    const arch_axis *x = &info->axes[t->axis];
    l.n = x->n_leaves;
    for (uint32_t i = 0; i <= l.n; i++) l.bound[i] = axis_elem(x, x->leaf[i]);
    return l;
}

static uint64_t group_of(const k_leaves *l, uint64_t col)
{
    uint64_t n = 0;
    uint32_t i = 0;
    for (; i + 1 < l->n && col >= l->bound[i + 1]; i++) n += ceil_div(l->bound[i + 1] - l->bound[i], GROUP_K);
    return n + ceil_div(col - l->bound[i], GROUP_K);
}

/* Row `row` of the box from lane r of a row block of piece p. */
static void deliver_groups(const box *b, const k_leaves *l, const ct_piece *p, uint64_t row, uint32_t r,
                           const uint8_t *tile)
{
    uint8_t block[Q8_BLOCK];
    float v[GROUP_K];
    const uint64_t end = b->k0 + b->n_k, bytes = quant_block_bytes(b->dtype), g0 = group_of(l, b->k0);
    const uint64_t row_bytes = (group_of(l, end) - g0) * bytes;
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->bound[i] < p->k0 || l->bound[i + 1] > p->k0 + p->n_k) continue; /* a piece is whole leaves */
        for (uint64_t c = l->bound[i]; c < l->bound[i + 1]; c += GROUP_K, tile += quant_tile_bytes(b->dtype)) {
            uint64_t lo = MAX(c, b->k0), hi = MIN(MIN(c + GROUP_K, l->bound[i + 1]), end);
            if (lo >= hi) continue;
            quant_get(b->dtype, tile, r, block);
            if (b->raw) {
                memcpy(b->dst + row * row_bytes + (group_of(l, c) - g0) * bytes, block, bytes);
                continue;
            }
            quant_block_f32(b->dtype, block, v);
            memcpy((float *)(void *)b->dst + row * b->n_k + (lo - b->k0), v + (lo - c), (hi - lo) * sizeof *v);
        }
    }
}

static tess_status read_groups(const source *s, const tess_impl *t, uint32_t no, const box *b, const k_leaves *l,
                               slot *x, tess_error *err)
{
    const ct_piece *p = &ct_get(t->f)->pieces[no];
    uint64_t r0 = MAX(b->row0, p->row0), r1 = MIN(b->row0 + b->n_rows, p->row0 + p->n_rows);
    if (r0 >= r1 || MAX(b->k0, p->k0) >= MIN(b->k0 + b->n_k, p->k0 + p->n_k)) return TESS_OK;
    size_t stride = (size_t)((group_of(l, p->k0 + p->n_k) - group_of(l, p->k0)) * quant_tile_bytes(b->dtype));
    uint64_t per = MAX(STEP / stride, 1) * TILE_ROWS; /* 8 rows are at most a chunk of 16 MiB: a rule of the format */
    if (!mem_grow(s->m, &x->rows, &x->cap, (size_t)(per / TILE_ROWS) * stride, 1))
        return ERR(err, TESS_E_NOMEM, "%s: no memory to read it", s->paths[0]);
    for (uint64_t r = (r0 - p->row0) / TILE_ROWS * TILE_ROWS; r < r1 - p->row0; r += per) {
        uint64_t n = MIN(per, p->n_rows - r);
        TRY(ct_read_rows(t->f, no, r, n, LAYOUT_TILE8, x->rows, 0, x->scratch, err));
        for (uint64_t i = 0; i < n; i++) {
            uint64_t row = p->row0 + r + i;
            if (row < r0 || row >= r1) continue;
            deliver_groups(b, l, p, row - b->row0, (uint32_t)(i % TILE_ROWS), x->rows + i / TILE_ROWS * stride);
        }
    }
    return TESS_OK;
}

/* Raw groups: the box begins and ends where a leaf does, or a group of it. */
static bool at_groups(const k_leaves *l, uint64_t col)
{
    uint32_t i = 0;
    while (i + 1 < l->n && col >= l->bound[i + 1]) i++;
    return (col - l->bound[i]) % GROUP_K == 0 || col == l->bound[l->n];
}

static tess_status read_tess(const source *s, uint32_t i, uint64_t row0, uint64_t n_rows, uint64_t k0,
                             uint64_t n_k, bool raw, void *dst, tess_error *err)
{
    const tess_impl *t = s->impl;
    const ct_info *info = ct_get(t->f);
    const ct_tensor *ct = &info->tensors[i];
    const dtype_info *d = dtype_get(ct->dtype);
    uint64_t rows, cols;
    source_dims(&s->tensors[i], &rows, &cols);
    if (!range_in(row0, n_rows, rows) || !range_in(k0, n_k, cols))
        return ERR(err, TESS_E_ARG, "%s: box outside tensor \"%s\"", info->path, ct->name);
    if (ct->alias != CT_NO_ALIAS) ct = &info->tensors[ct->alias];
    bool quant = dtype_is_quant(ct->dtype);
    k_leaves l = {0};
    if (quant) l = leaves_of(info, ct);
    if ((!d->is_float && !quant) || (quant && raw && !(at_groups(&l, k0) && at_groups(&l, k0 + n_k))))
        return ERR(err, TESS_E_UNSUPPORTED, "%s: tensor \"%s\" of type %s cannot be converted", info->path,
                   ct->name, d->name);
    box b = {row0, n_rows, k0, n_k, d->block_bytes, ct->dtype, raw, dst};
    slot *x = slot_take(s, err);
    if (!x) return TESS_E_NOMEM;
    tess_status st = TESS_OK;
    for (uint32_t p = 0; p < ct->n_pieces && st == TESS_OK; p++)
        st = quant ? read_groups(s, t, ct->first_piece + p, &b, &l, x, err)
                   : read_piece(s, t, ct->first_piece + p, &b, x, err);
    slot_give(s, x);
    return st;
}

static tess_status add_tensors(source *s, const ct_info *info, tess_error *err)
{
    for (uint32_t i = 0; i < info->n_tensors; i++) {
        const ct_tensor *c = &info->tensors[i];
        src_tensor t = {.dtype = c->dtype, .rank = c->rank, .type = dtype_get(c->dtype)->name};
        memcpy(t.shape, c->shape, sizeof t.shape);
        TRY(source_add_tensor(s, &t, c->name, strlen(c->name), err));
    }
    return TESS_OK; /* ascending by name in the file already */
}

tess_status tess_source_open(const char *path, const mem *m, source **out, tess_error *err)
{
    uint32_t file;
    source *s;
    tess_status st;
    *out = NULL;
    TRY(source_new(m, "tess", &s, err));
    tess_impl *t = mem_zalloc(m, sizeof *t);
    if (!t) {
        st = ERR(err, TESS_E_NOMEM, "%s: no memory", path);
        goto fail;
    }
    if ((st = ct_open(path, CT_NO_MMAP, m, &t->f, err)) < 0) {
        mem_free(m, t);
        goto fail;
    }
    pthread_mutex_init(&t->lock, NULL);
    s->impl = t;
    s->close = close_tess;
    s->read = read_tess;
    if ((st = source_add_file(s, ct_get(t->f)->path, &file, err)) < 0) goto fail;
    if ((st = add_tensors(s, ct_get(t->f), err)) < 0) goto fail;
    *out = s;
    return TESS_OK;
fail:
    source_close(s);
    return st;
}

const ct_file *tess_source_file(const source *s) { return ((const tess_impl *)s->impl)->f; }

static int64_t index_in(const weight_plan *p, uint32_t tensor)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->w[i].map.src == tensor && p->w[i].alias < 0) return i;
    return -1;
}

static tess_status add_weight(const source *s, uint32_t i, weight_plan *out, tess_error *err)
{
    const ct_tensor *t = &ct_get(tess_source_file(s))->tensors[i];
    weight w = {.role = t->role,
                .part = t->part,
                .layer = t->layer,
                .expert = role_is_numbered(t->role) ? (int32_t)t->expert : -1,
                .rows = t->shape[0],
                .cols = t->rank == 2 ? t->shape[1] : 0,
                .alias = -1};
    w.map = (row_map){.src = i, .block = w.rows, .stride = w.rows};
    if (t->rank > 2 || strlen(t->name) >= sizeof w.name)
        return ERR(err, TESS_E_UNSUPPORTED, "%s: tensor \"%s\" is not one of a model", s->paths[0], t->name);
    memcpy(w.name, t->name, strlen(t->name) + 1);
    if (t->alias != CT_NO_ALIAS) {
        int64_t target = index_in(out, t->alias);
        if (target < 0)
            return ERR(err, TESS_E_FORMAT, "%s: tensor \"%s\" is an alias of an alias", s->paths[0], t->name);
        w.alias = (int32_t)target;
    }
    if (!mem_grow(out->m, &out->w, &out->cap, out->n + 1u, sizeof *out->w))
        return ERR(err, TESS_E_NOMEM, "no memory for the list of weights");
    out->w[out->n++] = w;
    return TESS_OK;
}

tess_status tess_source_plan(const source *s, const mem *m, weight_plan *out, tess_error *err)
{
    const ct_info *info = ct_get(tess_source_file(s));
    tess_status st = TESS_OK;
    *out = (weight_plan){.m = m};
    for (int aliases = 0; aliases < 2 && st == TESS_OK; aliases++) /* targets first */
        for (uint32_t i = 0; i < info->n_tensors && st == TESS_OK; i++)
            if ((info->tensors[i].alias != CT_NO_ALIAS) == aliases) st = add_weight(s, i, out, err);
    if (st < 0) family_plan_close(out);
    return st;
}
