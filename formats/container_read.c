/*
 * container_read.c - bytes of an open container: maps, chunks, rows, blobs.
 *
 * Rows come from whole chunks: a chunk is read with pread into private memory and its hash is checked there
 * before anything looks at it. When stored and wanted layout agree and the chunk is wanted whole, it is read
 * straight into the caller's buffer. A scratch keeps the last chunk decoded, so that reading a piece in small
 * steps decodes each chunk once.
 */
#include "container_priv.h"

typedef unsigned long long ull;

bool ct_room(const mem *m, uint8_t **p, size_t *cap, size_t want)
{
    if (want <= *cap) return true;
    mem_free(m, *p);
    *cap = 0;
    if (!(*p = mem_alloc(m, want))) return false;
    *cap = want;
    return true;
}

tess_status ct_scratch_open(const mem *m, ct_scratch **out, tess_error *err)
{
    ct_scratch *s = *out = mem_zalloc(m, sizeof *s);
    if (s) s->m = m;
    if (s) s->dctx = ct_dctx_open(m);
    if (s && s->dctx) return TESS_OK;
    ct_scratch_close(s);
    *out = NULL;
    return ERR(err, TESS_E_NOMEM, "no memory to decode chunks");
}

void ct_scratch_close(ct_scratch *s)
{
    if (!s) return;
    ct_dctx_close(s->dctx);
    mem_free(s->m, s->stored);
    mem_free(s->m, s->plain);
    mem_free(s->m, s->planes);
    mem_free(s->m, s->tmp);
    mem_free(s->m, s);
}

const void *ct_map_piece(const ct_file *f, uint32_t piece)
{
    const ct_piece *p = &f->pieces[piece];
    const uint8_t *map = f->parts[p->split_file].map;
    return map && p->raw_contig ? map + p->off : NULL;
}

bool ct_fault(const ct_file *f, const void *addr, const char **path, uint64_t *off)
{
    for (uint32_t i = 0; i < f->n_parts; i++) {
        const ct_part *p = &f->parts[i];
        uintptr_t a = (uintptr_t)addr, base = (uintptr_t)p->map;
        if (!p->map || a < base || a - base >= ceil_div(p->file.size, 4096) * 4096) continue;
        *path = p->path;
        *off = a - base;
        return true;
    }
    return false;
}

/* ---- chunks ---- */

uint32_t ct_piece_of_chunk(const ct_file *f, uint64_t chunk)
{
    uint32_t lo = 0,
             hi = f->info.n_pieces; /* the last piece whose first_chunk is not above chunk; none is empty */
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (f->pieces[mid].first_chunk <= chunk) lo = mid;
        else hi = mid;
    }
    return lo;
}

static tess_status check_hash(const ct_file *f, uint32_t piece, uint64_t chunk, const void *bytes,
                              tess_error *err)
{
    const ct_piece *p = &f->pieces[piece];
    const ct_chunk *c = &f->chunks[chunk];
    uint64_t no = chunk - p->first_chunk, got = hash64(bytes, c->csize, hash_mix(p->tensor, p->piece_no, no));
    if (got == c->hash) return TESS_OK;
    return ERR(err, TESS_E_CHECKSUM,
               "%s: at offset %llu: tensor \"%.120s\" piece %u chunk %llu: hash is %016llx, want %016llx; the "
               "file is damaged, copy or convert it again",
               f->parts[p->split_file].path, (ull)c->off, f->tensors[p->tensor].name, p->piece_no, (ull)no,
               (ull)got, (ull)c->hash);
}

tess_status ct_load_chunk(const ct_file *f, uint32_t piece, uint64_t chunk, uint8_t *dst, bool always,
                          tess_error *err)
{
    const ct_piece *p = &f->pieces[piece];
    const ct_part *part = &f->parts[p->split_file];
    const ct_chunk *c = &f->chunks[chunk];
    TRY(os_pread(&part->file, dst, c->csize, c->off, part->path, err));
    return (f->flags & CT_NO_VERIFY) && !always ? TESS_OK : check_hash(f, piece, chunk, dst, err);
}

static tess_status no_memory(const ct_file *f, tess_error *err)
{
    return ERR(err, TESS_E_NOMEM, "%s: no memory to read a chunk", f->info.path);
}

tess_status ct_check_chunk(const ct_file *f, uint64_t chunk, ct_scratch *s, tess_error *err)
{
    if (chunk >= f->info.n_chunks)
        return ERR(err, TESS_E_ARG, "%s: chunk %llu of %u", f->info.path, (ull)chunk, f->info.n_chunks);
    uint32_t piece = ct_piece_of_chunk(f, chunk);
    const ct_chunk *c = &f->chunks[chunk];
    const uint8_t *map = ct_map_piece(f, piece);
    if (map)
        return check_hash(f, piece, chunk, map + (c->off - f->pieces[piece].off),
                          err); /* the bytes that will be used */
    if (!ct_room(s->m, &s->stored, &s->stored_cap, c->csize)) return no_memory(f, err);
    return ct_load_chunk(f, piece, chunk, s->stored, true, err);
}

/* Chunk, decoded, in s->plain. */
static tess_status plain_chunk(const ct_file *f, uint32_t piece, uint64_t chunk, ct_scratch *s, tess_error *err)
{
    const ct_chunk *c = &f->chunks[chunk];
    if (s->file == f && s->chunk == chunk && s->hash == c->hash) return TESS_OK;
    s->file = NULL;
    if (!ct_room(s->m, &s->plain, &s->plain_cap, c->usize)) return no_memory(f, err);
    if (c->codec == CT_CODEC_RAW) TRY(ct_load_chunk(f, piece, chunk, s->plain, false, err));
    else {
        if (!ct_room(s->m, &s->stored, &s->stored_cap, c->csize) ||
            !ct_room(s->m, &s->planes, &s->planes_cap, c->usize))
            return no_memory(f, err);
        TRY(ct_load_chunk(f, piece, chunk, s->stored, false, err));
        const char *why = ct_decode(s->dctx, c, s->stored, s->plain, s->planes);
        const ct_piece *p = &f->pieces[piece];
        if (why)
            return ct_bad(err, f->parts[p->split_file].path, c->off,
                          "tensor \"%.120s\" piece %u chunk %llu: %s", f->tensors[p->tensor].name, p->piece_no,
                          (ull)(chunk - p->first_chunk), why);
    }
    s->file = f;
    s->chunk = chunk;
    s->hash = c->hash;
    return TESS_OK;
}

/* ---- rows ---- */

typedef struct {
    const ct_file *f;
    const ct_piece *p;
    const ct_tensor *t;
    uint32_t piece, want;
    uint64_t row_bytes, block_bytes; /* of a row in LAYOUT_ROWS (floats), of 8 rows in LAYOUT_TILE8 */
    uint32_t esize;
} reader;

/* Rows of a tiled image from row `from` of it: floats to rows. */
static void untile(const reader *r, const uint8_t *src, uint64_t from, uint64_t n, uint8_t *dst, size_t stride)
{
    src += from / TILE_ROWS * r->block_bytes;
    uint64_t in = from % TILE_ROWS, head = in ? MIN(n, TILE_ROWS - in) : 0;
    if (head) {
        tile8_unpack(dst, stride, src + in * r->esize, head, r->p->n_k, r->esize);
        src += r->block_bytes;
    }
    if (n > head) tile8_unpack(dst + head * stride, stride, src, n - head, r->p->n_k, r->esize);
}

/* Zeroes the rows from `rows` on in a block of 8. */
static void clear_tail(const reader *r, uint8_t *block, uint32_t rows)
{
    if (!dtype_is_quant(r->t->dtype)) {
        size_t lane = r->esize, keep = rows * lane;
        for (uint64_t k = 0; k < r->p->n_k; k++)
            memset(block + k * TILE_ROWS * lane + keep, 0, TILE_ROWS * lane - keep);
        return;
    }
    size_t tile = r->t->dtype == DT_Q8 ? Q8_TILE : Q4_TILE, head = r->t->dtype == DT_Q8 ? 16 : 32;
    for (uint8_t *b = block; b < block + r->block_bytes; b += tile) {
        for (size_t h = 0; h < head; h += 16) memset(b + h + rows * 2, 0, 16 - rows * 2);
        for (size_t q = head; q < tile; q += 32) memset(b + q + rows * 4, 0, 32 - rows * 4);
    }
}

/* Rows [from, from + n) of a decoded chunk, whose first byte is src, to dst in the wanted layout. */
static void put_rows(const reader *r, const uint8_t *src, uint64_t from, uint64_t n, uint8_t *dst,
                     size_t stride)
{
    if (r->want == LAYOUT_ROWS) {
        if (r->t->layout == LAYOUT_TILE8) untile(r, src, from, n, dst, stride);
        else
            for (uint64_t i = 0; i < n; i++)
                memcpy(dst + i * stride, src + (from + i) * r->row_bytes, r->row_bytes);
        return;
    }
    if (r->t->layout == LAYOUT_ROWS) {
        tile8_pack(dst, src + from * r->row_bytes, r->row_bytes, n, r->p->n_k, r->esize);
        return;
    }
    uint64_t blocks = ceil_div(n, TILE_ROWS);
    memcpy(dst, src + from / TILE_ROWS * r->block_bytes, blocks * r->block_bytes);
    if (n % TILE_ROWS) clear_tail(r, dst + (blocks - 1) * r->block_bytes, (uint32_t)(n % TILE_ROWS));
}

/* Rows [from, from + n) of chunk c of the piece. */
static tess_status read_part(const reader *r, uint32_t c, uint64_t from, uint64_t n, uint8_t *dst,
                             size_t stride, ct_scratch *s, tess_error *err)
{
    const ct_piece *p = r->p;
    uint64_t chunk = p->first_chunk + c,
             rows = MIN((uint64_t)p->rows_per_chunk, p->n_rows - (uint64_t)c * p->rows_per_chunk);
    const ct_chunk *k = &r->f->chunks[chunk];
    bool whole = from == 0 && n == rows && (r->want == LAYOUT_TILE8 || stride == r->row_bytes);
    if (whole && r->want == r->t->layout && k->codec == CT_CODEC_RAW)
        return ct_load_chunk(r->f, r->piece, chunk, dst, false, err);
    TRY(plain_chunk(r->f, r->piece, chunk, s, err));
    put_rows(r, s->plain, from, n, dst, stride);
    return TESS_OK;
}

static tess_status reader_init(reader *r, const ct_file *f, uint32_t piece, uint32_t layout, tess_error *err)
{
    const ct_piece *p = &f->pieces[piece];
    const ct_tensor *t = &f->tensors[p->tensor];
    const dtype_info *d = dtype_get(t->dtype);
    uint64_t k[MAX_LEAVES];
    uint32_t n = ct_piece_leaves(t, ct_axis_of(f, t), p, k);
    *r = (reader){.f = f, .p = p, .t = t, .piece = piece, .want = layout, .esize = d->block_bytes};
    bool ok = layout == LAYOUT_ROWS ? !dtype_is_quant(t->dtype)
                                    : layout == LAYOUT_TILE8 && (d->is_float || dtype_is_quant(t->dtype));
    if (!ok || !layout_stride(t->dtype, LAYOUT_TILE8, k, n, &r->block_bytes))
        return ERR(err, TESS_E_ARG, "%s: tensor \"%.120s\" of type %s cannot be read in layout %u",
                   f->info.path, t->name, d->name, layout);
    r->row_bytes = r->block_bytes / TILE_ROWS;
    return TESS_OK;
}

tess_status ct_read_rows(const ct_file *f, uint32_t piece, uint64_t row0, uint64_t n_rows, uint32_t layout,
                         void *dst, size_t dst_stride, ct_scratch *s, tess_error *err)
{
    reader r;
    if (piece >= f->info.n_pieces)
        return ERR(err, TESS_E_ARG, "%s: piece %u of %u", f->info.path, piece, f->info.n_pieces);
    TRY(reader_init(&r, f, piece, layout, err));
    if (!range_in(row0, n_rows, r.p->n_rows) || (layout == LAYOUT_TILE8 && row0 % TILE_ROWS))
        return ERR(err, TESS_E_ARG,
                   "%s: tensor \"%.120s\": rows %llu to %llu of %llu cannot be read in layout %u", f->info.path,
                   r.t->name, (ull)row0, (ull)(row0 + n_rows), (ull)r.p->n_rows, layout);
    uint8_t *d = dst;
    for (uint64_t row = row0, end = row0 + n_rows; row < end;) {
        uint32_t c = (uint32_t)(row / r.p->rows_per_chunk);
        uint64_t from = row % r.p->rows_per_chunk, n = MIN(end - row, r.p->rows_per_chunk - from);
        TRY(read_part(&r, c, from, n, d, dst_stride, s, err));
        d += layout == LAYOUT_ROWS ? n * dst_stride : ceil_div(n, TILE_ROWS) * r.block_bytes;
        row += n;
    }
    return TESS_OK;
}

/* ---- blobs ---- */

tess_status ct_read_blob(const ct_file *f, uint32_t blob, const mem *m, char **out, size_t *len,
                         tess_error *err)
{
    *out = NULL;
    *len = 0;
    if (blob >= f->info.n_blobs)
        return ERR(err, TESS_E_ARG, "%s: blob %u of %u", f->info.path, blob, f->info.n_blobs);
    const ct_blob *b = &f->blobs[blob];
    uint64_t off = f->sec[SEC_BDAT].off + b->off;
    uint8_t hash[16];
    struct ZSTD_DCtx_s *d = NULL;
    const char *why;
    tess_status st = TESS_OK;
    char *plain = NULL, *stored = mem_alloc(m, (size_t)b->csize + 1);
    if (!stored) goto nomem;
    if ((st = os_pread(&f->parts[0].file, stored, (size_t)b->csize, off, f->info.path, err)) < 0) goto done;
    hash128(stored, (size_t)b->csize, hash);
    if (memcmp(hash, b->hash, 16) != 0) {
        st = ERR(err, TESS_E_CHECKSUM,
                 "%s: at offset %llu: blob \"%.120s\": its hash does not match; the file is damaged",
                 f->info.path, (ull)off, b->name);
        goto done;
    }
    if (b->zstd) {
        if (!(plain = mem_alloc(m, (size_t)b->usize + 1)) || !(d = ct_dctx_open(m))) goto nomem;
        if ((why = ct_unzip(d, stored, (size_t)b->csize, plain, (size_t)b->usize))) {
            st = ct_bad(err, f->info.path, off, "blob \"%.120s\": %s", b->name, why);
            goto done;
        }
        mem_free(m, stored);
        stored = plain;
        plain = NULL;
    }
    stored[b->usize] = 0;
    *out = stored;
    *len = (size_t)b->usize;
    stored = NULL;
    goto done;
nomem:
    st = ERR(err, TESS_E_NOMEM, "%s: no memory for blob \"%.120s\" of %llu bytes", f->info.path, b->name,
             (ull)b->usize);
done:
    ct_dctx_close(d);
    mem_free(m, plain);
    mem_free(m, stored);
    return st;
}
