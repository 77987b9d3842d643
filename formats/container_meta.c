/*
 * container_meta.c - the end of writing: sections, uuid, trailers, headers, a check by reading back, commit.
 *
 * Order on disk: data and sections and trailers, sync, header pages (a part without one has no magic), sync,
 * then the parts are opened as a reader would and every rule is checked, then renamed, the first part last: its
 * name is the commit.
 */
#include <stdio.h>
#include <stdlib.h>

#include "container_priv.h"

enum { N_SECTIONS = SEC_COUNT - 2 }; /* all but CSHA; PROV only when given */

typedef struct { buf sec[SEC_COUNT]; } sections;

static void put_name(sections *s, uint8_t *rec, const char *name)
{
    size_t n = strlen(name);
    wr32(rec, s->sec[SEC_STRS].len);
    wr16(rec + 4, n);
    buf_put(&s->sec[SEC_STRS], name, n);
}

static uint32_t put_bound(sections *s, uint32_t v) /* returns the index that it got */
{
    uint32_t at = (uint32_t)(s->sec[SEC_BNDS].len / REC_BNDS);
    buf_put(&s->sec[SEC_BNDS], &v, sizeof v);
    return at;
}

static void put_axes(const ct_writer *w, sections *s)
{
    static const char *const names[] = {"none", "q_heads", "kv_heads", "ffn", "vocab", "expert", "shared", "v_heads"};
    for (uint32_t i = 0; i < w->n_axes; i++) {
        const arch_axis *x = &w->axes[i];
        uint8_t r[REC_AXES] = {0};
        uint32_t n = ct_axis_pieces(x, w->o.tp), first = 0, leaf = 0;
        for (uint32_t p = 0; p <= n; p++) {
            uint32_t at = put_bound(s, x->leaf[x->n_leaves * p / n]);
            if (p == 0) first = at;
        }
        for (uint32_t l = 0; l <= x->n_leaves; l++) {
            uint32_t at = put_bound(s, x->leaf[l]);
            if (l == 0) leaf = at;
        }
        put_name(s, r, names[x->kind]);
        wr16(r + 6, x->kind);
        wr32(r + 8, x->unit);
        wr32(r + 12, n);
        wr64(r + 16, x->dim);
        wr32(r + 24, first);
        wr32(r + 28, CT_NONE);
        wr32(r + 32, x->n_leaves);
        wr32(r + 36, leaf);
        buf_put(&s->sec[SEC_AXES], r, sizeof r);
    }
}

static void put_tensor(const ct_writer *w, sections *s, const ct_tensor *t)
{
    uint8_t r[REC_TENS] = {0};
    bool alias = t->alias != CT_NO_ALIAS;
    put_name(s, r, t->name);
    r[6] = (uint8_t)t->dtype;
    r[7] = (uint8_t)t->rank;
    for (uint32_t d = 0; d < 4; d++) wr64(r + 8 + d * 8, t->shape[d]);
    wr32(r + 40, (uint32_t)t->layer);
    wr16(r + 44, t->role);
    r[46] = (uint8_t)t->part;
    r[47] = alias ? TENSOR_ALIAS : 0;
    r[48] = (uint8_t)t->split_dim;
    r[49] = (uint8_t)t->layout;
    wr16(r + 50, 1);
    wr16(r + 52, dtype_get(t->dtype)->block);
    wr16(r + 54, t->split_dim == CT_SPLIT_NONE ? 0xffff : t->axis);
    wr32(r + 56, t->alias);
    wr32(r + 60, t->n_pieces);
    wr64(r + 64, t->first_piece);
    memcpy(r + 72, alias ? w->tensors[t->alias].t.content_hash : t->content_hash, 16);
    r[88] = (uint8_t)t->src_dtype;
    wr32(r + 92, t->expert);
    buf_put(&s->sec[SEC_TENS], r, sizeof r);
}

static void put_pieces(const ct_writer *w, sections *s)
{
    for (uint64_t i = 0; i < w->n_pieces; i++) {
        const ct_piece *p = &w->pieces[i];
        uint8_t r[REC_PIEC] = {0};
        wr32(r, p->tensor);
        wr32(r + 4, p->piece_no);
        wr16(r + 8, p->split_file);
        wr16(r + 10, p->raw_contig ? PIECE_RAW_CONTIG : 0);
        wr32(r + 12, p->rows_per_chunk);
        wr64(r + 16, p->off);
        wr64(r + 24, p->stored_len);
        wr64(r + 32, p->usize);
        wr64(r + 40, p->first_chunk);
        wr32(r + 48, p->n_chunks);
        buf_put(&s->sec[SEC_PIEC], r, sizeof r);
    }
    for (uint64_t i = 0; i < w->n_chunks; i++) {
        const ct_chunk *c = &w->chunks[i];
        uint8_t r[REC_CHNK] = {0};
        wr64(r, c->off);
        wr32(r + 8, c->csize);
        wr32(r + 12, c->usize);
        wr64(r + 16, c->hash);
        r[24] = c->codec;
        r[25] = c->filter;
        r[26] = c->esize;
        r[27] = c->nplanes;
        buf_put(&s->sec[SEC_CHNK], r, sizeof r);
    }
    for (uint32_t i = 0; i < w->n_segments; i++) {
        const ct_segment *g = &w->segments[i];
        uint8_t r[REC_SEGM] = {0};
        wr32(r, (uint32_t)g->layer);
        wr16(r + 4, g->piece_rank);
        wr16(r + 6, g->split_file);
        wr64(r + 8, g->off);
        wr64(r + 16, g->len);
        buf_put(&s->sec[SEC_SEGM], r, sizeof r);
    }
}

static int blob_cmp(const void *x, const void *y)
{
    const ct_wblob *a = x, *b = y;
    return strcmp(a->name, b->name);
}

static void put_blobs(ct_writer *w, sections *s)
{
    static const uint8_t zero[CT_BLOB_ALIGN];
    buf *data = &s->sec[SEC_BDAT];
    qsort(w->blobs, w->n_blobs, sizeof *w->blobs, blob_cmp);
    for (uint32_t i = 0; i < w->n_blobs; i++) {
        const ct_wblob *b = &w->blobs[i];
        uint8_t r[REC_BLOB] = {0};
        buf_put(data, zero, (CT_BLOB_ALIGN - data->len % CT_BLOB_ALIGN) % CT_BLOB_ALIGN);
        put_name(s, r, b->name);
        wr16(r + 6, b->csize < b->usize ? BLOB_ZSTD : 0);
        wr64(r + 8, data->len);
        wr64(r + 16, b->csize);
        wr64(r + 24, b->usize);
        hash128(b->stored, b->csize, r + 32);
        buf_put(data, b->stored, b->csize);
        buf_put(&s->sec[SEC_BLOB], r, sizeof r);
    }
}

/* What the file says, without regard to pieces, coding and parts: names, types, shapes, contents, key-values,
 * blobs. */
static bool derive_uuid(const ct_writer *w, uint8_t uuid[16])
{
    buf b;
    uint8_t hash[16];
    buf_init(&b, w->m);
    buf_put(&b, &w->o.kind, sizeof w->o.kind);
    for (size_t i = 0; i < w->n_tensors; i++) {
        const ct_tensor *t = &w->tensors[i].t;
        buf_put(&b, t->name, strlen(t->name) + 1);
        buf_put(&b, &t->dtype, sizeof t->dtype);
        buf_put(&b, t->shape, sizeof t->shape);
        buf_put(&b, t->content_hash, 16);
    }
    hash128(w->kv, w->kv_len, hash);
    buf_put(&b, hash, 16);
    for (uint32_t i = 0; i < w->n_blobs; i++) {
        buf_put(&b, w->blobs[i].name, strlen(w->blobs[i].name) + 1);
        buf_put(&b, w->blobs[i].plain_hash, 16);
    }
    bool ok = !b.failed;
    if (ok) hash128(b.data, b.len, uuid);
    buf_free(&b);
    return ok;
}

static bool build_sections(ct_writer *w, sections *s)
{
    static const uint8_t no_kv[8]; /* a key-value section without records */
    bool ok = true;
    for (uint32_t k = 0; k < SEC_COUNT; k++) buf_init(&s->sec[k], w->m);
    put_axes(w, s);
    for (size_t i = 0; i < w->n_tensors; i++) put_tensor(w, s, &w->tensors[i].t);
    put_pieces(w, s);
    put_blobs(w, s);
    if (w->kv) buf_put(&s->sec[SEC_KEYV], w->kv, w->kv_len);
    else buf_put(&s->sec[SEC_KEYV], no_kv, sizeof no_kv);
    buf_put(&s->sec[SEC_PROV], w->prov, w->prov_len);
    for (uint32_t k = 0; k < SEC_COUNT; k++) ok &= !s->sec[k].failed;
    return ok;
}

/* Writes the sections after the data of part 1 and fills the table of h; returns the end of the last one. */
static tess_status write_sections(ct_writer *w, const sections *s, ct_head *h, uint64_t *end, tess_error *err)
{
    static const uint8_t rec[SEC_COUNT] = {0,        1,        REC_AXES, REC_BNDS, REC_TENS, REC_PIEC, REC_CHNK,
                                           REC_SEGM, REC_BLOB, 1,        32,       1,        1};
    static const uint8_t order[] = {SEC_STRS, SEC_AXES, SEC_BNDS, SEC_TENS, SEC_PIEC, SEC_CHNK,
                                    SEC_SEGM, SEC_BLOB, SEC_KEYV, SEC_PROV, SEC_BDAT};
    _Static_assert(sizeof order == N_SECTIONS, "every section that is written");
    uint64_t at = w->parts[0].end;
    for (uint32_t i = 0; i < N_SECTIONS; i++) {
        uint32_t k = order[i];
        const buf *b = &s->sec[k];
        if (k == SEC_PROV && b->len == 0) continue;
        at = ceil_div(at, CT_SECTION_ALIGN) * CT_SECTION_ALIGN;
        ct_section *t = &h->sec[h->n_sections++];
        uint32_t flags = k == SEC_PROV ? 0 : k == SEC_BDAT ? SEC_REQUIRED | SEC_LAZY : SEC_REQUIRED;
        *t = (ct_section){.kind = k, .flags = flags, .rec = rec[k], .off = at, .len = b->len};
        hash128(b->data, b->len, t->hash);
        if (b->len) TRY(os_out_pwrite(&w->parts[0].out, b->data, b->len, at, err));
        at += b->len;
    }
    *end = at;
    return TESS_OK;
}

static tess_status write_heads(ct_writer *w, ct_head *h, uint64_t meta_end, tess_error *err)
{
    tess_status st = TESS_OK;
    uint8_t trailer[CT_TRAILER_SIZE];
    uint8_t *pages = mem_calloc(w->m, w->n_parts, CT_HEAD_SIZE);
    if (!pages) return ERR(err, TESS_E_NOMEM, "%s: no memory for headers", w->path);
    ct_table_hash(h, h->index_hash);
    for (uint32_t i = 0; st == TESS_OK && i < w->n_parts; i++) {
        ct_wpart *p = &w->parts[i];
        uint64_t end = i == 0 ? meta_end : p->end;
        h->split_no = i;
        if (i == 1) h->n_sections = 0;
        h->data_len = p->end - CT_HEAD_SIZE;
        h->file_size = ceil_div(end, CT_SECTION_ALIGN) * CT_SECTION_ALIGN + CT_TRAILER_SIZE;
        ct_head_put(h, pages + (size_t)i * CT_HEAD_SIZE, trailer);
        st = os_out_pwrite(&p->out, trailer, sizeof trailer, h->file_size - CT_TRAILER_SIZE, err);
        if (st == TESS_OK) st = os_out_truncate(&p->out, h->file_size, err); /* what was reserved too much */
        if (st == TESS_OK) st = os_out_sync(&p->out, err);
    }
    for (uint32_t i = 0; st == TESS_OK && i < w->n_parts; i++)
        st = os_out_pwrite(&w->parts[i].out, pages + (size_t)i * CT_HEAD_SIZE, CT_HEAD_SIZE, 0, err);
    mem_free(w->m, pages);
    return st;
}

/* ---- commit ---- */

static tess_status read_back(ct_writer *w, tess_error *err)
{
    const char **paths = mem_calloc(w->m, w->n_parts, sizeof *paths);
    ct_file *f = NULL;
    if (!paths) return ERR(err, TESS_E_NOMEM, "%s: no memory", w->path);
    for (uint32_t i = 0; i < w->n_parts; i++) paths[i] = w->parts[i].out.tmp;
    tess_status st = ct_open_list(paths, w->n_parts, CT_NO_MMAP, w->m, &f, err);
    mem_free(w->m, paths);
    ct_close(f);
    return st < 0 ? err_prefix(err, st, "%s: what was written does not read back", w->path) : TESS_OK;
}

/* Gives part i its final name: the path as it is, or base-00001-of-00004.tess. */
static tess_status name_part(ct_writer *w, uint32_t i, tess_error *err)
{
    os_out *o = &w->parts[i].out;
    size_t len = strlen(w->path), room = len + 40;
    if (w->n_parts == 1) return TESS_OK;
    if (len > 5 && strcmp(w->path + len - 5, ".tess") == 0) len -= 5;
    char *name = mem_alloc(w->m, room);
    if (!name) return ERR(err, TESS_E_NOMEM, "%s: no memory", w->path);
    snprintf(name, room, "%.*s-%05u-of-%05u.tess", (int)len, w->path, i + 1, w->n_parts);
    mem_free(o->m, o->path); /* the temporary file is in the same directory, so its target may still change */
    o->path = name;
    if (w->o.force || !os_exists(name)) return TESS_OK;
    return ERR(err, TESS_E_IO, "%s: exists already; use --force to replace it", name);
}

/* Takes back the parts that were renamed already, so that no half of a set is left. */
static void take_back(ct_writer *w)
{
    for (uint32_t i = 0; i < w->n_parts; i++) {
        os_out *o = &w->parts[i].out;
        if (!o->committed) continue;
        char *tmp = o->tmp;
        o->tmp = o->path;
        o->path = tmp;
        o->committed = false; /* os_out_abort unlinks o->tmp */
    }
}

static tess_status commit(ct_writer *w, tess_error *err)
{
    for (uint32_t i = 0; i < w->n_parts; i++) TRY(name_part(w, i, err));
    for (uint32_t i = w->n_parts; i-- > 0;) {
        tess_status st = os_out_commit(&w->parts[i].out, w->o.force, err);
        if (st < 0) {
            take_back(w);
            return st;
        }
    }
    return TESS_OK;
}

tess_status ct_write_meta(ct_writer *w, tess_error *err)
{
    ct_head h = {.split_count = w->n_parts,
                 .tp = w->o.tp,
                 .kind = w->o.kind,
                 .incompat = w->any_tile8 ? CT_INCOMPAT_TILE8 : 0,
                 .logical_bytes = w->logical_bytes,
                 .param_count = w->param_count,
                 .created = w->o.created};
    sections s;
    uint64_t end = 0;
    memcpy(h.writer, w->writer, sizeof h.writer);
    tess_status st =
        build_sections(w, &s) ? TESS_OK : ERR(err, TESS_E_NOMEM, "%s: no memory for the index", w->path);
    if (w->o.uuid) memcpy(h.uuid, w->o.uuid, 16);
    else if (st == TESS_OK && !derive_uuid(w, h.uuid))
        st = ERR(err, TESS_E_NOMEM, "%s: no memory for the index", w->path);
    if (st == TESS_OK) st = write_sections(w, &s, &h, &end, err);
    if (st == TESS_OK) st = write_heads(w, &h, end, err);
    for (uint32_t k = 0; k < SEC_COUNT; k++) buf_free(&s.sec[k]);
    if (st == TESS_OK) st = read_back(w, err);
    return st == TESS_OK ? commit(w, err) : st;
}
