/*
 * container_check.c - sections into tables, and every rule about them. The only parser of the index.
 *
 * Order of trust: counts against section lengths (container_open.c), then names, axes, tensors, pieces, chunks,
 * the layout of each part, segments, blobs, key-values. After ct_parse_tables every number of a table may be
 * used without a further test: boxes lie in their tensors, chunks in their pieces, pieces in their parts, and
 * sizes follow from shapes alone.
 */
#include <stdio.h>
#include <stdlib.h>

#include "container_priv.h"
#include "utf8.h"

typedef unsigned long long ull;

static const char *const sec_name[SEC_COUNT] = {"?",    "STRS", "AXES", "BNDS", "TENS", "PIEC", "CHNK",
                                                "SEGM", "BLOB", "PROV", "CSHA", "KEYV", "BDAT"};

/* Record i of a section is wrong, at byte `at` of it. */
PRINTF_LIKE(6, 7)
static tess_status rec_bad(const ct_file *f, uint32_t kind, uint64_t i, uint32_t at, tess_error *err,
                           const char *fmt, ...)
{
    char text[360];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return ct_bad(err, f->parts[0].path, f->sec[kind].off + i * f->sec[kind].rec + at, "%s[%llu].%s",
                  sec_name[kind], (ull)i, text);
}

static const uint8_t *rec_at(const ct_file *f, uint32_t kind, uint64_t i)
{
    return f->sec[kind].data + i * f->sec[kind].rec;
}

static tess_status no_memory(const ct_file *f, tess_error *err)
{
    return ERR(err, TESS_E_NOMEM, "%s: no memory for the index", f->parts[0].path);
}

static tess_status check_count(const ct_file *f, uint32_t kind, uint64_t limit, tess_error *err)
{
    if (f->sec[kind].count <= limit) return TESS_OK;
    return ct_bad(err, f->parts[0].path, f->sec[kind].off, "%s: %llu records, the limit is %llu",
                  sec_name[kind], (ull)f->sec[kind].count, (ull)limit);
}

static bool bytes_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i]) return false;
    return true;
}

/* Copies the name that a record refers to (name_off at byte 0, name_len at byte 4). */
static tess_status get_name(ct_file *f, uint32_t kind, uint64_t i, char **out, tess_error *err)
{
    const uint8_t *p = rec_at(f, kind, i);
    uint64_t off = rd32(p), len = rd16(p + 4);
    if (!range_in(off, len, f->sec[SEC_STRS].len))
        return rec_bad(f, kind, i, 0, err, "name_off: the name lies outside the strings");
    const char *s = (const char *)f->sec[SEC_STRS].data + off, *why = ct_name_bad(s, (size_t)len);
    if (why) return rec_bad(f, kind, i, 0, err, "name: %s", why);
    *out = arena_strndup(&f->a, s, (size_t)len);
    return *out ? TESS_OK : no_memory(f, err);
}

/* ---- axes ---- */

/* n bounds from index `first` of BNDS. */
static tess_status get_bounds(const ct_file *f, uint64_t i, uint32_t at, uint32_t first, uint32_t n,
                              uint32_t *out, tess_error *err)
{
    if (!range_in(first, n, f->sec[SEC_BNDS].count))
        return rec_bad(f, SEC_AXES, i, at, err, "bounds_idx: %u bounds from %u lie outside BNDS", n, first);
    for (uint32_t j = 0; j < n; j++) out[j] = rd32(f->sec[SEC_BNDS].data + ((uint64_t)first + j) * REC_BNDS);
    return TESS_OK;
}

static tess_status parse_axis(ct_file *f, uint32_t i, tess_error *err)
{
    const uint8_t *p = rec_at(f, SEC_AXES, i);
    arch_axis *x = &f->axes[i];
    char *name;
    uint32_t piece[MAX_LEAVES + 1];
    TRY(get_name(f, SEC_AXES, i, &name, err));
    *x = (arch_axis){.kind = rd16(p + 6), .unit = rd32(p + 8), .n_leaves = rd32(p + 32), .dim = rd64(p + 16)};
    if (x->n_leaves == 0 || x->n_leaves > MAX_LEAVES)
        return rec_bad(f, SEC_AXES, i, 32, err, "n_leaves: is %u", x->n_leaves);
    if (x->unit == 0) return rec_bad(f, SEC_AXES, i, 8, err, "unit: is 0");
    x->n_units = (uint32_t)MIN(ceil_div(x->dim, x->unit), (uint64_t)UINT32_MAX);
    TRY(get_bounds(f, i, 36, rd32(p + 36), x->n_leaves + 1, x->leaf, err));
    const char *why = ct_axis_bad(x);
    if (why) return rec_bad(f, SEC_AXES, i, 6, err, "%s", why);
    uint32_t n = rd32(p + 12), parent = rd32(p + 28);
    if (n != ct_axis_pieces(x, f->info.tp))
        return rec_bad(f, SEC_AXES, i, 12, err, "n_pieces: is %u, want %u", n, ct_axis_pieces(x, f->info.tp));
    if (parent != CT_NONE && (parent >= f->info.n_axes || parent == i))
        return rec_bad(f, SEC_AXES, i, 28, err, "parent_axis: %u is out of range", parent);
    TRY(get_bounds(f, i, 24, rd32(p + 24), n + 1, piece, err));
    for (uint32_t j = 0; j <= n; j++)
        if (piece[j] != x->leaf[x->n_leaves * j / n])
            return rec_bad(f, SEC_AXES, i, 24, err, "bounds: piece bound %u is %u, want the leaf bound %u", j,
                           piece[j], x->leaf[x->n_leaves * j / n]);
    return TESS_OK;
}

static tess_status parse_axes(ct_file *f, tess_error *err)
{
    TRY(check_count(f, SEC_AXES, CT_MAX_AXES, err));
    f->info.n_axes = (uint32_t)f->sec[SEC_AXES].count;
    if (!(f->axes = arena_alloc(&f->a, f->info.n_axes, sizeof *f->axes))) return no_memory(f, err);
    for (uint32_t i = 0; i < f->info.n_axes; i++) TRY(parse_axis(f, i, err));
    return TESS_OK;
}

/* ---- tensors ---- */

static tess_status parse_tensor(ct_file *f, uint32_t i, tess_error *err)
{
    const uint8_t *p = rec_at(f, SEC_TENS, i);
    ct_tensor *t = &f->tensors[i];
    TRY(get_name(f, SEC_TENS, i, &t->name, err));
    if (i && strcmp(t[-1].name, t->name) >= 0)
        return rec_bad(f, SEC_TENS, i, 0, err, "name: \"%.100s\" does not come after the name before it",
                       t->name);
    t->dtype = p[6];
    t->rank = p[7];
    for (uint32_t d = 0; d < 4; d++) t->shape[d] = rd64(p + 8 + d * 8);
    t->layer = (int32_t)rd32(p + 40);
    t->role = rd16(p + 44);
    t->part = p[46];
    t->split_dim = p[48];
    t->layout = p[49];
    t->axis = rd16(p + 54);
    t->alias = rd32(p + 56);
    t->n_pieces = rd32(p + 60);
    t->src_dtype = p[88];
    t->expert = rd32(p + 92);
    memcpy(t->content_hash, p + 72, 16);
    const char *why = ct_shape_bad(t);
    if (why) return rec_bad(f, SEC_TENS, i, 6, err, "%s", why);
    if (t->layer < -1 || t->layer > 65535) return rec_bad(f, SEC_TENS, i, 40, err, "layer: is %d", t->layer);
    if (t->part > 4) return rec_bad(f, SEC_TENS, i, 46, err, "part: %u is not known", t->part);
    if (p[47] & ~TENSOR_ALIAS || p[89] || rd16(p + 90) || !bytes_zero(p + 96, 32))
        return rec_bad(f, SEC_TENS, i, 47, err, "reserved bytes: are not zero");
    if (rd16(p + 50) != 1 || rd16(p + 52) != dtype_get(t->dtype)->block)
        return rec_bad(f, SEC_TENS, i, 50, err, "block_rows, block_cols: are not those of the dtype");
    if (((p[47] & TENSOR_ALIAS) == 0) != (t->alias == CT_NO_ALIAS))
        return rec_bad(f, SEC_TENS, i, 56, err, "owner_or_alias: does not agree with the flags");
    return TESS_OK;
}

static tess_status check_split(const ct_file *f, uint32_t i, tess_error *err)
{
    const ct_tensor *t = &f->tensors[i];
    uint32_t want = t->alias == CT_NO_ALIAS ? 1 : 0;
    if (t->split_dim == CT_SPLIT_NONE) {
        if (t->axis != 0xffff)
            return rec_bad(f, SEC_TENS, i, 54, err, "axis: is %u for a tensor that is not split", t->axis);
    } else {
        if (t->split_dim >= t->rank || t->rank > 2)
            return rec_bad(f, SEC_TENS, i, 48, err, "split_dim: is %u for rank %u", t->split_dim, t->rank);
        if (t->axis >= f->info.n_axes)
            return rec_bad(f, SEC_TENS, i, 54, err, "axis: %u is out of range", t->axis);
        const arch_axis *x = &f->axes[t->axis];
        if (t->shape[t->split_dim] != x->dim)
            return rec_bad(f, SEC_TENS, i, 8, err, "shape[%u]: is %llu, its axis has %llu", t->split_dim,
                           (ull)t->shape[t->split_dim], (ull)x->dim);
        if (want) want = ct_axis_pieces(x, f->info.tp);
    }
    if (t->n_pieces != want)
        return rec_bad(f, SEC_TENS, i, 60, err, "n_pieces: is %u, want %u", t->n_pieces, want);
    return TESS_OK;
}

static tess_status check_alias(const ct_file *f, uint32_t i, tess_error *err)
{
    const ct_tensor *t = &f->tensors[i];
    if (t->alias == CT_NO_ALIAS) return TESS_OK;
    if (t->alias >= f->info.n_tensors)
        return rec_bad(f, SEC_TENS, i, 56, err, "owner_or_alias: %u is out of range", t->alias);
    const ct_tensor *o = &f->tensors[t->alias];
    if (o->alias != CT_NO_ALIAS)
        return rec_bad(f, SEC_TENS, i, 56, err, "owner_or_alias: the target is an alias itself");
    if (t->dtype != o->dtype || t->rank != o->rank || memcmp(t->shape, o->shape, sizeof t->shape) != 0 ||
        t->layout != o->layout || t->split_dim != o->split_dim || t->axis != o->axis ||
        memcmp(t->content_hash, o->content_hash, 16) != 0)
        return rec_bad(f, SEC_TENS, i, 56, err,
                       "owner_or_alias: the target differs in type, shape, split or content");
    return TESS_OK;
}

static tess_status parse_tensors(ct_file *f, tess_error *err)
{
    const ct_head *h = &f->parts[0].head;
    uint64_t logical = 0, params = 0, bytes;
    bool tiled = false;
    TRY(check_count(f, SEC_TENS, CT_MAX_TENSORS, err));
    uint32_t n = f->info.n_tensors = (uint32_t)f->sec[SEC_TENS].count;
    if (!(f->tensors = arena_alloc(&f->a, n, sizeof *f->tensors))) return no_memory(f, err);
    for (uint32_t i = 0; i < n; i++) TRY(parse_tensor(f, i, err));
    for (uint32_t i = 0; i < n; i++) {
        const ct_tensor *t = &f->tensors[i];
        TRY(check_split(f, i, err));
        TRY(check_alias(f, i, err));
        if (t->alias != CT_NO_ALIAS) continue;
        ct_view v = ct_view_of(t);
        if (!ct_logical_bytes(t, ct_axis_of(f, t), &bytes) || bytes > CT_FILE_MAX ||
            !u64_add(logical, bytes, &logical) || !u64_add(params, v.rows * v.k, &params))
            return rec_bad(f, SEC_TENS, i, 8, err, "shape: too many bytes");
        tiled |= t->layout == LAYOUT_TILE8;
    }
    if (logical != h->logical_bytes)
        return ct_bad(err, f->parts[0].path, 96, "header.logical_bytes: is %llu, the tensors have %llu",
                      (ull)h->logical_bytes, (ull)logical);
    if (params != h->param_count)
        return ct_bad(err, f->parts[0].path, 104, "header.param_count: is %llu, the tensors have %llu",
                      (ull)h->param_count, (ull)params);
    if (tiled != ((h->incompat & CT_INCOMPAT_TILE8) != 0))
        return ct_bad(err, f->parts[0].path, 24,
                      "header.feat_incompat: bit 0 (tile8) does not agree with the tensors");
    return TESS_OK;
}

/* ---- pieces and chunks ---- */

static tess_status parse_chunk(ct_file *f, const ct_tensor *t, const ct_piece *p, uint32_t c, uint64_t usize,
                               uint64_t *pos, tess_error *err)
{
    uint64_t i = p->first_chunk + c;
    const uint8_t *r = rec_at(f, SEC_CHNK, i);
    ct_chunk *k = &f->chunks[i];
    *k = (ct_chunk){.off = rd64(r),
                    .csize = rd32(r + 8),
                    .usize = rd32(r + 12),
                    .hash = rd64(r + 16),
                    .codec = r[24],
                    .filter = r[25],
                    .esize = r[26],
                    .nplanes = r[27]};
    if (rd32(r + 28)) return rec_bad(f, SEC_CHNK, i, 28, err, "reserved bytes: are not zero");
    if (k->usize != usize)
        return rec_bad(f, SEC_CHNK, i, 12, err, "usize: is %u, its rows have %llu bytes", k->usize, (ull)usize);
    const char *why = ct_codec_bad(t->dtype, k);
    if (why) return rec_bad(f, SEC_CHNK, i, 24, err, "%s", why);
    if (p->raw_contig && k->codec != CT_CODEC_RAW)
        return rec_bad(f, SEC_CHNK, i, 24, err, "codec: is %u in a piece that is flagged raw", k->codec);
    uint64_t want = *pos;
    if (!p->raw_contig) want = ceil_div(want, CT_PIECE_ALIGN) * CT_PIECE_ALIGN; /* below 2^48: no overflow */
    if (k->off != want)
        return rec_bad(f, SEC_CHNK, i, 0, err, "off: is %llu, want %llu", (ull)k->off, (ull)want);
    if (!range_in(k->off - p->off, k->csize, p->stored_len))
        return rec_bad(f, SEC_CHNK, i, 8, err, "csize: %u bytes reach beyond the piece", k->csize);
    *pos = k->off + k->csize;
    return TESS_OK;
}

static tess_status parse_chunks(ct_file *f, uint32_t i, const uint64_t *k, uint32_t n_leaves, tess_error *err)
{
    ct_piece *p = &f->pieces[i];
    const ct_tensor *t = &f->tensors[p->tensor];
    uint64_t pos = p->off, bytes, rows;
    for (uint32_t c = 0; c < p->n_chunks; c++) {
        if (!ct_chunk_bytes(t, p, k, n_leaves, c, &bytes, &rows) || bytes == 0 || bytes > CT_CHUNK_MAX)
            return rec_bad(f, SEC_PIEC, i, 12, err, "rows_per_chunk: %u rows are more than 16 MiB",
                           p->rows_per_chunk);
        TRY(parse_chunk(f, t, p, c, bytes, &pos, err));
    }
    if (pos - p->off != p->stored_len)
        return rec_bad(f, SEC_PIEC, i, 24, err, "stored_len: is %llu, the chunks have %llu", (ull)p->stored_len,
                       (ull)(pos - p->off));
    return TESS_OK;
}

static tess_status parse_piece(ct_file *f, uint32_t ti, uint32_t no, uint64_t *first_chunk, tess_error *err)
{
    ct_tensor *t = &f->tensors[ti];
    uint32_t i = t->first_piece + no;
    const uint8_t *r = rec_at(f, SEC_PIEC, i);
    ct_piece *p = &f->pieces[i];
    uint64_t k[MAX_LEAVES], bytes;
    ct_piece_box(t, ct_axis_of(f, t), t->n_pieces, no, p);
    uint32_t n_leaves = ct_piece_leaves(t, ct_axis_of(f, t), p, k), flags = rd16(r + 10);
    p->tensor = ti;
    p->split_file = rd16(r + 8);
    p->raw_contig = (flags & PIECE_RAW_CONTIG) != 0;
    p->rows_per_chunk = rd32(r + 12);
    p->off = rd64(r + 16);
    p->stored_len = rd64(r + 24);
    p->usize = rd64(r + 32);
    p->first_chunk = rd64(r + 40);
    p->n_chunks = rd32(r + 48);
    if (rd32(r) != ti || rd32(r + 4) != no)
        return rec_bad(f, SEC_PIEC, i, 0, err, "tensor, piece_no: are %u, %u, want %u, %u", rd32(r),
                       rd32(r + 4), ti, no);
    if (flags & ~(uint32_t)PIECE_RAW_CONTIG || rd32(r + 52) || rd64(r + 56))
        return rec_bad(f, SEC_PIEC, i, 10, err, "reserved bits: are not zero");
    if (p->split_file >= f->n_parts)
        return rec_bad(f, SEC_PIEC, i, 8, err, "split_file: is %u of %u", p->split_file, f->n_parts);
    const ct_head *h = &f->parts[p->split_file].head;
    if (p->off % CT_PIECE_ALIGN || p->off < CT_HEAD_SIZE ||
        !range_in(p->off - CT_HEAD_SIZE, p->stored_len, h->data_len))
        return rec_bad(f, SEC_PIEC, i, 16, err, "off: %llu bytes at %llu are not in the data of the part",
                       (ull)p->stored_len, (ull)p->off);
    if (!layout_bytes(t->dtype, t->layout, p->n_rows, k, n_leaves, &bytes) || p->usize != bytes)
        return rec_bad(f, SEC_PIEC, i, 32, err, "usize: is %llu, the box has %llu", (ull)p->usize, (ull)bytes);
    if (p->rows_per_chunk == 0 || (t->rank > 1 && p->rows_per_chunk % TILE_ROWS))
        return rec_bad(f, SEC_PIEC, i, 12, err, "rows_per_chunk: is %u", p->rows_per_chunk);
    if (p->n_chunks != ceil_div(p->n_rows, p->rows_per_chunk))
        return rec_bad(f, SEC_PIEC, i, 48, err, "n_chunks: is %u", p->n_chunks);
    if (p->first_chunk != *first_chunk || !range_in(p->first_chunk, p->n_chunks, f->sec[SEC_CHNK].count))
        return rec_bad(f, SEC_PIEC, i, 40, err, "first_chunk: is %llu", (ull)p->first_chunk);
    if (!p->raw_contig && t->layout == LAYOUT_TILE8 && dtype_get(t->dtype)->is_float)
        return rec_bad(f, SEC_PIEC, i, 10, err, "flags: tiled floats must be raw");
    *first_chunk += p->n_chunks;
    return parse_chunks(f, i, k, n_leaves, err);
}

static tess_status parse_pieces(ct_file *f, tess_error *err)
{
    uint64_t next = 0, chunk = 0;
    TRY(check_count(f, SEC_PIEC, CT_MAX_PIECES, err));
    TRY(check_count(f, SEC_CHNK, CT_MAX_CHUNKS, err));
    f->info.n_pieces = (uint32_t)f->sec[SEC_PIEC].count;
    f->info.n_chunks = (uint32_t)f->sec[SEC_CHNK].count;
    f->pieces = arena_alloc(&f->a, f->info.n_pieces, sizeof *f->pieces);
    f->chunks = arena_alloc(&f->a, f->info.n_chunks, sizeof *f->chunks);
    if (!f->pieces || !f->chunks) return no_memory(f, err);
    for (uint32_t i = 0; i < f->info.n_tensors; i++) {
        ct_tensor *t = &f->tensors[i];
        uint64_t first = rd64(rec_at(f, SEC_TENS, i) + 64);
        if (first != next || !range_in(first, t->n_pieces, f->info.n_pieces))
            return rec_bad(f, SEC_TENS, i, 64, err, "first_piece: is %llu, want %llu", (ull)first, (ull)next);
        t->first_piece = (uint32_t)first;
        for (uint32_t n = 0; n < t->n_pieces; n++) TRY(parse_piece(f, i, n, &chunk, err));
        next += t->n_pieces;
    }
    if (next != f->info.n_pieces)
        return rec_bad(f, SEC_PIEC, next, 0, err, "tensor: the piece belongs to no tensor");
    if (chunk != f->info.n_chunks)
        return rec_bad(f, SEC_CHNK, chunk, 0, err, "off: the chunk belongs to no piece");
    for (uint32_t i = 0; i < f->info.n_tensors; i++) {
        ct_tensor *t = &f->tensors[i];
        if (t->alias == CT_NO_ALIAS) continue;
        t->first_piece = f->tensors[t->alias].first_piece;
        t->n_pieces = f->tensors[t->alias].n_pieces;
    }
    return TESS_OK;
}

/* ---- layout of the parts ---- */

typedef struct { uint64_t off; uint32_t part, piece; } place;
static int place_cmp(const void *x, const void *y)
{
    const place *a = x, *b = y;
    if (a->part != b->part) return a->part < b->part ? -1 : 1;
    if (a->off != b->off) return a->off < b->off ? -1 : 1;
    return (a->piece > b->piece) - (a->piece < b->piece);
}

static tess_status sort_pieces(ct_file *f, tess_error *err)
{
    uint32_t n = f->info.n_pieces;
    place *q = mem_calloc(f->m, MAX(n, 1u), sizeof *q);
    f->order = mem_calloc(f->m, MAX(n, 1u), sizeof *f->order);
    if (!q || !f->order) {
        mem_free(f->m, q);
        return no_memory(f, err);
    }
    for (uint32_t i = 0; i < n; i++) q[i] = (place){f->pieces[i].off, f->pieces[i].split_file, i};
    qsort(q, n, sizeof *q, place_cmp);
    for (uint32_t i = 0; i < n; i++) f->order[i] = q[i].piece;
    mem_free(f->m, q);
    return TESS_OK;
}

/* Pieces in file order neither overlap nor leave room for anything but padding, from the header to data_len. */
static tess_status check_layout(const ct_file *f, tess_error *err)
{
    uint32_t n = f->info.n_pieces, at = 0;
    for (uint32_t part = 0; part < f->n_parts; part++) {
        uint64_t end = CT_HEAD_SIZE;
        for (; at < n && f->pieces[f->order[at]].split_file == part; at++) {
            const ct_piece *p = &f->pieces[f->order[at]];
            if (p->off < end)
                return rec_bad(f, SEC_PIEC, f->order[at], 16, err, "off: the piece overlaps another one");
            if (p->off - end >= CT_SEGMENT_ALIGN)
                return rec_bad(f, SEC_PIEC, f->order[at], 16, err, "off: unknown bytes lie before the piece");
            end = p->off + p->stored_len;
        }
        if (end != CT_HEAD_SIZE + f->parts[part].head.data_len)
            return ct_bad(err, f->parts[part].path, 88, "header.data_len: is %llu, the pieces end at %llu",
                          (ull)f->parts[part].head.data_len, (ull)end);
    }
    return TESS_OK;
}

static tess_status parse_segments(ct_file *f, tess_error *err)
{
    TRY(check_count(f, SEC_SEGM, f->info.n_pieces, err));
    uint32_t n = f->info.n_segments = (uint32_t)f->sec[SEC_SEGM].count, at = 0;
    if (!(f->segments = arena_alloc(&f->a, n, sizeof *f->segments))) return no_memory(f, err);
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *r = rec_at(f, SEC_SEGM, i);
        ct_segment *s = &f->segments[i];
        *s = (ct_segment){.layer = (int32_t)rd32(r),
                          .piece_rank = rd16(r + 4),
                          .split_file = rd16(r + 6),
                          .off = rd64(r + 8),
                          .len = rd64(r + 16)};
        if (i && (s->layer < s[-1].layer || (s->layer == s[-1].layer && s->piece_rank <= s[-1].piece_rank)))
            return rec_bad(f, SEC_SEGM, i, 0, err, "layer, piece_rank: do not ascend");
        if (s->off % CT_SEGMENT_ALIGN)
            return rec_bad(f, SEC_SEGM, i, 8, err, "off: %llu is not a multiple of 4096", (ull)s->off);
        uint64_t begin = 0, end = 0;
        for (uint32_t first = at; at < f->info.n_pieces; at++) {
            const ct_piece *p = &f->pieces[f->order[at]];
            if (f->tensors[p->tensor].layer != s->layer || p->piece_no != s->piece_rank ||
                p->split_file != s->split_file)
                break;
            if (at == first) begin = p->off;
            end = p->off + p->stored_len;
        }
        if (end == 0 || begin != s->off || end - begin != s->len)
            return rec_bad(f, SEC_SEGM, i, 8, err, "off, len: are not the union of the pieces of the segment");
    }
    if (at != f->info.n_pieces)
        return ct_bad(err, f->parts[0].path, f->sec[SEC_SEGM].off, "SEGM: piece %u is in no segment",
                      f->order[at]);
    return TESS_OK;
}

/* ---- blobs, key-values ---- */

static tess_status parse_blobs(ct_file *f, tess_error *err)
{
    uint64_t end = 0;
    TRY(check_count(f, SEC_BLOB, CT_MAX_BLOBS, err));
    f->info.n_blobs = (uint32_t)f->sec[SEC_BLOB].count;
    if (!(f->blobs = arena_alloc(&f->a, f->info.n_blobs, sizeof *f->blobs))) return no_memory(f, err);
    for (uint32_t i = 0; i < f->info.n_blobs; i++) {
        const uint8_t *r = rec_at(f, SEC_BLOB, i);
        ct_blob *b = &f->blobs[i];
        TRY(get_name(f, SEC_BLOB, i, &b->name, err));
        if (strchr(b->name, '/')) return rec_bad(f, SEC_BLOB, i, 0, err, "name: has a slash");
        if (i && strcmp(b[-1].name, b->name) >= 0)
            return rec_bad(f, SEC_BLOB, i, 0, err, "name: does not come after the name before it");
        uint32_t flags = rd16(r + 6);
        b->zstd = (flags & BLOB_ZSTD) != 0;
        b->off = rd64(r + 8);
        b->csize = rd64(r + 16);
        b->usize = rd64(r + 24);
        memcpy(b->hash, r + 32, 16);
        if (flags & ~(uint32_t)BLOB_ZSTD) return rec_bad(f, SEC_BLOB, i, 6, err, "flags: unknown bits");
        if (b->usize > CT_BLOB_MAX || b->csize > b->usize || (!b->zstd && b->csize != b->usize) ||
            (b->zstd && b->csize == b->usize))
            return rec_bad(f, SEC_BLOB, i, 16, err, "csize, usize: %llu, %llu", (ull)b->csize, (ull)b->usize);
        if (b->off != ceil_div(end, CT_BLOB_ALIGN) * CT_BLOB_ALIGN ||
            !range_in(b->off, b->csize, f->sec[SEC_BDAT].len))
            return rec_bad(f, SEC_BLOB, i, 8, err,
                           "off: %llu bytes at %llu of BDAT are not where they should be", (ull)b->csize,
                           (ull)b->off);
        end = b->off + b->csize;
    }
    if (end != f->sec[SEC_BDAT].len)
        return ct_bad(err, f->parts[0].path, f->sec[SEC_BDAT].off,
                      "BDAT: has %llu bytes, the blobs end at %llu", (ull)f->sec[SEC_BDAT].len, (ull)end);
    return TESS_OK;
}

static tess_status parse_keyv(ct_file *f, tess_error *err)
{
    const ct_sec *s = &f->sec[SEC_KEYV], *prov = &f->sec[SEC_PROV];
    tess_status st = kvs_open(&f->kv, f->m, s->data, (size_t)s->len, err);
    if (st < 0) return err_prefix(err, st, "%s: at offset %llu: KEYV", f->parts[0].path, (ull)s->off);
    if (prov->data && !utf8_valid((const char *)prov->data, (size_t)prov->len))
        return ct_bad(err, f->parts[0].path, prov->off, "PROV: is not UTF-8");
    return TESS_OK;
}

tess_status ct_parse_tables(ct_file *f, tess_error *err)
{
    f->info.tp = f->parts[0].head.tp;
    TRY(parse_axes(f, err));
    TRY(parse_tensors(f, err));
    TRY(parse_pieces(f, err));
    TRY(sort_pieces(f, err));
    TRY(check_layout(f, err));
    TRY(parse_segments(f, err));
    TRY(parse_blobs(f, err));
    return parse_keyv(f, err);
}
