/*
 * container_verify.c - content hashes and ct_verify.
 *
 * QUICK  what ct_open checks, and the hashes of the blobs. FULL   also every chunk's hash, and that all bytes
 * which belong to nothing are zero. DEEP   also decodes: content hash of every tensor, zero padding of tiles,
 * NaN and Inf counts. A failure is reported and the check goes on. Weights are read with pread, so that a bad
 * disk is an error, not a signal.
 */
#include <stdio.h>

#include "container_priv.h"

typedef unsigned long long ull;
enum { BATCH = 64, GAP_BUF = 4096 };

/* ---- content hashes ---- */

typedef struct {
    const ct_file *f;
    const ct_tensor *t;
    uint32_t leaves;         /* of the whole tensor */
    uint64_t *hashes;        /* [rows][leaves] */
    ct_scratch **scratch;    /* per thread */
    uint64_t nonfinite;      /* atomic */
    uint32_t failed, bad_padding;
    tess_error err;
} hash_state;

static uint64_t count_nonfinite(uint32_t dtype, const uint8_t *p, size_t n)
{
    uint64_t count = 0;
    if (dtype == DT_F32)
        for (size_t i = 0; i < n; i++) count += (rd32(p + i * 4) & 0x7f800000u) == 0x7f800000u;
    else {
        uint32_t mask = dtype == DT_F16 ? 0x7c00 : 0x7f80;
        for (size_t i = 0; i < n; i++) count += (rd16(p + i * 2) & mask) == mask;
    }
    return count;
}

/* Scales and minima of q8/q4 tiles. */
static uint64_t count_bad_scales(uint32_t dtype, const uint8_t *p, size_t bytes)
{
    uint64_t count = 0;
    size_t tile = dtype == DT_Q8 ? Q8_TILE : Q4_TILE, n = dtype == DT_Q8 ? 8 : 16;
    for (size_t i = 0; i < bytes; i += tile) count += count_nonfinite(DT_F16, p + i, n);
    return count;
}

/* Rows `rows` to 7 of each tile of the row block at b are zero. */
static bool tail_is_zero(uint32_t dtype, const uint8_t *b, uint64_t block_bytes, uint32_t rows)
{
    bool quant = dtype_is_quant(dtype);
    size_t esize = dtype_get(dtype)->block_bytes, tile = !quant           ? esize * TILE_ROWS
                                                         : dtype == DT_Q8 ? Q8_TILE
                                                                          : Q4_TILE;
    size_t head = !quant ? 0 : dtype == DT_Q8 ? 16 : 32, lane = quant ? 4 : esize;
    for (uint64_t at = 0; at < block_bytes; at += tile) {
        for (size_t i = 0; i < head; i++)
            if (i % 16 / 2 >= rows && b[at + i]) return false;
        for (size_t i = head; i < tile; i++)
            if ((i - head) % (lane * TILE_ROWS) / lane >= rows && b[at + i]) return false;
    }
    return true;
}

static tess_status hash_chunk(hash_state *s, uint32_t piece, uint64_t c, uint32_t thread, tess_error *err)
{
    const ct_piece *p = &s->f->pieces[piece];
    ct_scratch *z = s->scratch[thread];
    uint64_t k[MAX_LEAVES], bytes, rows, row0 = c * p->rows_per_chunk, block = 0;
    uint32_t n = ct_piece_leaves(s->t, ct_axis_of(s->f, s->t), p, k),
             layout = dtype_is_quant(s->t->dtype) ? LAYOUT_TILE8 : LAYOUT_ROWS;
    size_t row_bytes = layout == LAYOUT_ROWS ? (size_t)p->n_k * dtype_get(s->t->dtype)->block_bytes : 0,
           tmp = ct_hash_tmp(s->t, k, n);
    ct_chunk_bytes(s->t, p, k, n, (uint32_t)c, &bytes, &rows);
    if (!ct_room(z->m, &z->tmp, &z->tmp_cap, (size_t)bytes + tmp))
        return ERR(err, TESS_E_NOMEM, "%s: no memory to hash a tensor", s->f->info.path);
    TRY(ct_read_rows(s->f, piece, row0, rows, layout, z->tmp, row_bytes, z, err));
    uint64_t at = (p->row0 + row0) * s->leaves + p->leaf0;
    ct_hash_rows(s->t, z->tmp, rows, k, n, s->hashes + at, s->leaves, z->tmp + bytes);
    uint64_t bad = layout == LAYOUT_TILE8 ? count_bad_scales(s->t->dtype, z->tmp, (size_t)bytes)
                   : dtype_get(s->t->dtype)->is_float
                       ? count_nonfinite(s->t->dtype, z->tmp, (size_t)(rows * p->n_k))
                       : 0;
    if (bad) __atomic_fetch_add(&s->nonfinite, bad, __ATOMIC_RELAXED);
    /* the stored image, where ct_read_rows left one; else tmp is it */
    const uint8_t *image = z->file == s->f && z->chunk == p->first_chunk + c ? z->plain : z->tmp;
    if (s->t->layout == LAYOUT_TILE8 && rows % TILE_ROWS &&
        layout_stride(s->t->dtype, LAYOUT_TILE8, k, n, &block) &&
        !tail_is_zero(s->t->dtype, image + rows / TILE_ROWS * block, block, (uint32_t)(rows % TILE_ROWS)))
        __atomic_store_n(&s->bad_padding, 1, __ATOMIC_RELAXED);
    return TESS_OK;
}

static void hash_item(void *arg, uint64_t i, uint32_t thread)
{
    hash_state *s = arg;
    tess_error err = {0};
    uint64_t chunk =
        s->f->pieces[s->t->first_piece].first_chunk + i; /* chunks of a tensor follow one another */
    uint32_t piece = ct_piece_of_chunk(s->f, chunk);
    if (__atomic_load_n(&s->failed, __ATOMIC_RELAXED)) return;
    if (hash_chunk(s, piece, chunk - s->f->pieces[piece].first_chunk, thread, &err) < 0)
        if (!__atomic_exchange_n(&s->failed, 1, __ATOMIC_RELAXED)) s->err = err;
}

static tess_status hash_tensor(const ct_file *f, uint32_t tensor, pool *p, ct_scratch **scratch,
                               uint8_t out[16], hash_state *s, tess_error *err)
{
    const ct_tensor *t = &f->tensors[tensor];
    const ct_piece *last = &f->pieces[t->first_piece + t->n_pieces - 1];
    *s = (hash_state){
        .f = f, .t = t, .scratch = scratch, .leaves = ct_split_k(t) ? f->axes[t->axis].n_leaves : 1};
    uint64_t n, bytes, room = os_mem_available(); /* a small coded file may claim very many short rows */
    if (u64_mul(ct_view_of(t).rows, s->leaves, &n) && (room == 0 || n <= room / 2 / sizeof *s->hashes))
        s->hashes = mem_calloc(f->m, n, sizeof *s->hashes);
    if (!s->hashes)
        return ERR(err, TESS_E_NOMEM, "%s: no memory to hash tensor \"%.120s\"", f->info.path, t->name);
    bytes = n * sizeof *s->hashes;
    pool_each(p, last->first_chunk + last->n_chunks - f->pieces[t->first_piece].first_chunk, hash_item, s);
    if (s->failed && err) *err = s->err;
    tess_status st = s->failed ? s->err.status : TESS_OK;
    if (st == TESS_OK) hash128(s->hashes, (size_t)bytes, out);
    mem_free(f->m, s->hashes);
    s->hashes = NULL;
    return st;
}

static void close_scratches(const ct_file *f, ct_scratch **s, uint32_t n)
{
    for (uint32_t i = 0; s && i < n; i++) ct_scratch_close(s[i]);
    mem_free(f->m, s);
}

static tess_status open_scratches(const ct_file *f, uint32_t n, ct_scratch ***out, tess_error *err)
{
    ct_scratch **s = *out = mem_calloc(f->m, n, sizeof *s);
    tess_status st = s ? TESS_OK : ERR(err, TESS_E_NOMEM, "%s: no memory", f->info.path);
    for (uint32_t i = 0; st == TESS_OK && i < n; i++) st = ct_scratch_open(f->m, &s[i], err);
    if (st == TESS_OK) return st;
    close_scratches(f, s, n);
    *out = NULL;
    return st;
}

tess_status ct_content_hash(const ct_file *f, uint32_t tensor, pool *p, uint8_t out[16], tess_error *err)
{
    ct_scratch **scratch;
    hash_state s;
    if (tensor >= f->info.n_tensors)
        return ERR(err, TESS_E_ARG, "%s: tensor %u of %u", f->info.path, tensor, f->info.n_tensors);
    TRY(open_scratches(f, pool_size(p), &scratch, err));
    tess_status st = hash_tensor(f, tensor, p, scratch, out, &s, err);
    close_scratches(f, scratch, pool_size(p));
    return st;
}

/* ---- verify ---- */

typedef struct {
    const ct_file *f;
    pool *p;
    void (*report)(void *user, const char *line);
    void *user;
    void (*progress)(void *user, uint64_t done, uint64_t total);
    ct_verify_result *out;
    ct_scratch **scratch;
    uint64_t first;            /* chunk of result[0] */
    tess_status result[BATCH];
    tess_error text[BATCH];
    uint8_t *bad_tensor;       /* a chunk of it failed already */
} verifier;

PRINTF_LIKE(2, 3)
static void fault(verifier *v, const char *fmt, ...)
{
    char line[700] = "FAIL ";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line + 5, sizeof line - 5, fmt, ap);
    va_end(ap);
    v->out->errors++;
    if (v->report) v->report(v->user, line);
}

static bool is_damage(tess_status st) { return st == TESS_E_CHECKSUM || st == TESS_E_FORMAT; }

static tess_status verify_blobs(verifier *v, tess_error *err)
{
    for (uint32_t i = 0; i < v->f->info.n_blobs; i++) {
        char *data;
        size_t len;
        tess_error e = {0};
        tess_status st = ct_read_blob(v->f, i, v->f->m, &data, &len, &e);
        mem_free(v->f->m, data);
        if (st < 0 && !is_damage(st)) {
            if (err) *err = e;
            return st;
        }
        if (st < 0) fault(v, "part=1 blob=%s: %s", v->f->blobs[i].name, e.text);
        v->out->bytes += v->f->blobs[i].csize;
    }
    return TESS_OK;
}

static void chunk_item(void *arg, uint64_t i, uint32_t thread)
{
    verifier *v = arg;
    uint64_t chunk = v->first + i;
    ct_scratch *s = v->scratch[thread];
    const ct_chunk *c = &v->f->chunks[chunk];
    v->result[i] =
        ct_room(s->m, &s->stored, &s->stored_cap, c->csize)
            ? ct_load_chunk(v->f, ct_piece_of_chunk(v->f, chunk), chunk, s->stored, true, &v->text[i])
            : ERR(&v->text[i], TESS_E_NOMEM, "%s: no memory to read a chunk", v->f->info.path);
}

static tess_status verify_chunks(verifier *v, tess_error *err)
{
    const ct_file *f = v->f;
    uint64_t total = 0;
    for (uint32_t i = 0; i < f->info.n_chunks; i++) total += f->chunks[i].csize;
    for (uint64_t done = 0; v->first < f->info.n_chunks; v->first += BATCH) {
        uint64_t n = MIN((uint64_t)BATCH, f->info.n_chunks - v->first);
        pool_each(v->p, n, chunk_item, v);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t chunk = v->first + i;
            const ct_piece *p = &f->pieces[ct_piece_of_chunk(f, chunk)];
            done += f->chunks[chunk].csize;
            if (v->result[i] == TESS_OK) continue;
            if (!is_damage(v->result[i])) {
                if (err) *err = v->text[i];
                return v->result[i];
            }
            v->bad_tensor[p->tensor] = 1;
            fault(v, "part=%u off=0x%llx tensor=%s piece=%u chunk=%llu: %s", p->split_file + 1,
                  (ull)f->chunks[chunk].off, f->tensors[p->tensor].name, p->piece_no,
                  (ull)(chunk - p->first_chunk), v->text[i].text);
        }
        if (v->progress) v->progress(v->user, done, total);
    }
    v->out->bytes += total;
    return TESS_OK;
}

/* Bytes [from, to) of a part are zero; a gap is always below one segment alignment. */
static tess_status verify_gap(verifier *v, uint32_t part, uint64_t from, uint64_t to, tess_error *err)
{
    uint8_t bytes[GAP_BUF];
    const ct_part *p = &v->f->parts[part];
    if (to <= from) return TESS_OK;
    size_t n = (size_t)MIN(to - from, (uint64_t)GAP_BUF);
    TRY(os_pread(&p->file, bytes, n, from, p->path, err));
    for (size_t i = 0; i < n; i++)
        if (bytes[i]) {
            fault(v, "part=%u off=0x%llx: padding is not zero", part + 1, (ull)(from + i));
            return TESS_OK;
        }
    return TESS_OK;
}

static tess_status verify_gaps(verifier *v, tess_error *err)
{
    const ct_file *f = v->f;
    uint32_t at = 0;
    for (uint32_t part = 0; part < f->n_parts; part++) {
        uint64_t end = CT_HEAD_SIZE;
        for (; at < f->info.n_pieces && f->pieces[f->order[at]].split_file == part; at++) {
            const ct_piece *p = &f->pieces[f->order[at]];
            for (uint32_t c = 0; c < p->n_chunks; c++) {
                const ct_chunk *k = &f->chunks[p->first_chunk + c];
                TRY(verify_gap(v, part, end, k->off, err));
                end = k->off + k->csize;
            }
        }
        const ct_head *h = &f->parts[part].head;
        for (uint32_t i = 0; i < h->n_sections; i++) {
            TRY(verify_gap(v, part, end, h->sec[i].off, err));
            end = h->sec[i].off + h->sec[i].len;
        }
        TRY(verify_gap(v, part, end, h->file_size - CT_TRAILER_SIZE, err));
    }
    for (uint32_t i = 0; i < f->info.n_blobs; i++) {
        uint64_t base = f->sec[SEC_BDAT].off,
                 end = i ? base + f->blobs[i - 1].off + f->blobs[i - 1].csize : base;
        TRY(verify_gap(v, 0, end, base + f->blobs[i].off, err));
    }
    return TESS_OK;
}

static tess_status verify_contents(verifier *v, tess_error *err)
{
    const ct_file *f = v->f;
    for (uint32_t i = 0; i < f->info.n_tensors; i++) {
        const ct_tensor *t = &f->tensors[i];
        hash_state s;
        uint8_t hash[16];
        tess_error e = {0};
        if (t->alias != CT_NO_ALIAS || v->bad_tensor[i]) continue;
        tess_status st = hash_tensor(f, i, v->p, v->scratch, hash, &s, &e);
        if (st < 0 && !is_damage(st)) {
            if (err) *err = e;
            return st;
        }
        v->out->nonfinite += s.nonfinite;
        if (st < 0) fault(v, "tensor=%s: %s", t->name, e.text);
        else if (memcmp(hash, t->content_hash, 16) != 0)
            fault(v, "tensor=%s: its content hash does not match", t->name);
        if (s.bad_padding) fault(v, "tensor=%s: padding rows of its tiles are not zero", t->name);
        if (v->progress) v->progress(v->user, i + 1, f->info.n_tensors);
    }
    return TESS_OK;
}

static tess_status verify_lazy_sections(verifier *v, tess_error *err)
{
    const ct_head *h = &v->f->parts[0].head;
    for (uint32_t i = 0; i < h->n_sections; i++) {
        const ct_section *s = &h->sec[i];
        if (s->kind != SEC_BDAT && s->kind != SEC_CSHA) continue;
        if (s->len > CT_META_MAX) {
            fault(v, "part=1 off=0x%llx: section of kind %u is larger than 1 GiB", (ull)s->off, s->kind);
            continue;
        }
        uint8_t hash[16], *data = mem_alloc(v->f->m, (size_t)s->len);
        if (!data) return ERR(err, TESS_E_NOMEM, "%s: no memory for %llu bytes", v->f->info.path, (ull)s->len);
        tess_status st = os_pread(&v->f->parts[0].file, data, (size_t)s->len, s->off, v->f->info.path, err);
        hash128(data, st == TESS_OK ? (size_t)s->len : 0, hash);
        mem_free(v->f->m, data);
        TRY(st);
        if (memcmp(hash, s->hash, 16) != 0)
            fault(v, "part=1 off=0x%llx: section of kind %u: its hash does not match", (ull)s->off, s->kind);
    }
    return TESS_OK;
}

tess_status ct_verify(const ct_file *f, int depth, pool *p, void (*report)(void *user, const char *line),
                      void *user, void (*progress)(void *user, uint64_t done, uint64_t total),
                      ct_verify_result *out, tess_error *err)
{
    *out = (ct_verify_result){0};
    verifier *v = mem_zalloc(f->m, sizeof *v);
    if (!v) return ERR(err, TESS_E_NOMEM, "%s: no memory", f->info.path);
    *v = (verifier){.f = f, .p = p, .report = report, .user = user, .progress = progress, .out = out};
    v->bad_tensor = mem_zalloc(f->m, f->info.n_tensors);
    tess_status st = v->bad_tensor ? open_scratches(f, pool_size(p), &v->scratch, err)
                                   : ERR(err, TESS_E_NOMEM, "%s: no memory", f->info.path);
    if (st == TESS_OK) st = verify_lazy_sections(v, err);
    if (st == TESS_OK) st = verify_blobs(v, err);
    if (st == TESS_OK && depth >= CT_VERIFY_FULL) st = verify_chunks(v, err);
    if (st == TESS_OK && depth >= CT_VERIFY_FULL) st = verify_gaps(v, err);
    if (st == TESS_OK && depth >= CT_VERIFY_DEEP) st = verify_contents(v, err);
    close_scratches(f, v->scratch, pool_size(p));
    mem_free(f->m, v->bad_tensor);
    mem_free(f->m, v);
    return st;
}
