/*
 * container_write.c - the data of a container: boxes are pulled, hashed, encoded and written by the threads of
 * the pool.
 *
 * Chunks are handled in the order of the file, in batches. Offsets are given in that order by one thread:
 * before the batch when all its sizes are known (raw), else between encoding and writing, each chunk waiting in
 * its slot. So the bytes of the file do not depend on the number of threads, every box is pulled once, and
 * memory is a few chunks per thread.
 *
 * Hashes of rows go to an array per tensor, which lives from the tensor's first chunk to its last.
 */
#include "container_priv.h"

enum { BATCH_MAX = 64, SLOT_BYTES = 48 << 20 };

typedef struct { uint32_t piece, c; } job;
typedef struct { uint8_t *in, *out, *planes, *tmp; ct_enc *enc; } worker;
typedef struct {
    ct_writer *w;
    ct_read_fn read;
    void *user;
    uint32_t n_workers, n_slots, n_jobs;
    worker *workers;
    uint8_t *slots;
    bool placed;        /* the chunks of this batch have their offsets */
    job jobs[BATCH_MAX];
    uint32_t at, at_chunk; /* next chunk: index into order, chunk of that piece */
    uint32_t failed;
    tess_error err;
} state;

/* ---- one chunk ---- */

static tess_status encode(state *s, const job *j, worker *k, uint8_t *out, uint32_t thread, tess_error *err)
{
    ct_writer *w = s->w;
    const ct_piece *p = &w->pieces[j->piece];
    ct_wtensor *t = &w->tensors[p->tensor];
    const arch_axis *x = ct_waxis(w, &t->t);
    ct_chunk *c = &w->chunks[p->first_chunk + j->c];
    uint64_t leaf[MAX_LEAVES], bytes = 0, rows = 0, row0 = p->row0 + (uint64_t)j->c * p->rows_per_chunk;
    uint32_t n = ct_piece_leaves(&t->t, x, p, leaf), all = ct_split_k(&t->t) ? x->n_leaves : 1;
    ct_chunk_bytes(&t->t, p, leaf, n, j->c, &bytes, &rows); /* cannot overflow: the piece did not */
    bool tile = t->t.layout == LAYOUT_TILE8 && !dtype_is_quant(t->t.dtype);
    uint8_t *in = t->coded || tile ? k->in : out;
    TRY(s->read(s->user, t->user, row0, rows, p->k0, p->n_k, in, thread, err));
    ct_hash_rows(&t->t, in, rows, leaf, n, t->hashes + row0 * all + p->leaf0, all, k->tmp);
    *c = (ct_chunk){
        .off = c->off, .usize = (uint32_t)bytes, .csize = (uint32_t)bytes, .codec = CT_CODEC_RAW, .nplanes = 1};
    if (t->coded) {
        if (!ct_encode(k->enc, t->t.dtype, in, (uint32_t)bytes, out, k->planes, c))
            return ERR(err, TESS_E_NOMEM, "%s: no memory to compress", w->path);
    } else if (tile) {
        uint32_t esize = dtype_get(t->t.dtype)->block_bytes;
        tile8_pack(out, in, (size_t)p->n_k * esize, rows, p->n_k, esize);
    }
    c->hash = hash64(out, c->csize, hash_mix(p->tensor, p->piece_no, j->c));
    return TESS_OK;
}

static tess_status put(state *s, const job *j, const uint8_t *bytes, tess_error *err)
{
    const ct_piece *p = &s->w->pieces[j->piece];
    const ct_chunk *c = &s->w->chunks[p->first_chunk + j->c];
    return os_out_pwrite(&s->w->parts[p->split_file].out, bytes, c->csize, c->off, err);
}

static uint8_t *slot(const state *s, uint64_t i) { return s->slots + i * s->w->max_box; }

static void fail(state *s, const tess_error *err)
{
    if (!__atomic_exchange_n(&s->failed, 1, __ATOMIC_RELAXED))
        s->err = *err; /* read after the pool has joined */
}

static void encode_item(void *arg, uint64_t i, uint32_t thread)
{
    state *s = arg;
    worker *k = &s->workers[thread];
    uint8_t *out = s->placed ? k->out : slot(s, i);
    tess_error err = {0};
    if (__atomic_load_n(&s->failed, __ATOMIC_RELAXED)) return;
    if (encode(s, &s->jobs[i], k, out, thread, &err) < 0 || (s->placed && put(s, &s->jobs[i], out, &err) < 0))
        fail(s, &err);
}

static void put_item(void *arg, uint64_t i, uint32_t thread)
{
    state *s = arg;
    tess_error err = {0};
    UNUSED(thread);
    if (!__atomic_load_n(&s->failed, __ATOMIC_RELAXED) && put(s, &s->jobs[i], slot(s, i), &err) < 0)
        fail(s, &err);
}

/* ---- placing ---- */

static uint64_t align_to(uint64_t v, uint64_t a)
{
    return ceil_div(v, a) * a;
} /* of file offsets: far below 2^64 */

/* Most bytes that the segment of the piece at order[at] may take. */
static uint64_t segment_bound(const ct_writer *w, uint32_t at)
{
    int32_t layer = w->tensors[w->pieces[w->order[at]].tensor].t.layer;
    uint32_t no = w->pieces[w->order[at]].piece_no;
    uint64_t sum = CT_SEGMENT_ALIGN;
    for (; at < w->n_pieces; at++) {
        const ct_piece *p = &w->pieces[w->order[at]];
        if (p->piece_no != no || w->tensors[p->tensor].t.layer != layer) break;
        sum += p->usize + (uint64_t)CT_PIECE_ALIGN * (p->n_chunks + 1);
    }
    return sum;
}

static uint64_t meta_bound(const ct_writer *w)
{
    uint64_t sum = 1 << 14;
    sum += w->n_chunks * REC_CHNK + w->n_pieces * (REC_PIEC + REC_SEGM) +
           w->n_tensors * (REC_TENS + CT_MAX_NAME) + w->kv_len + w->prov_len;
    for (uint32_t i = 0; i < w->n_blobs; i++) sum += w->blobs[i].csize + CT_BLOB_ALIGN;
    return sum;
}

static tess_status next_part(ct_writer *w, tess_error *err)
{
    if (w->n_parts == CT_MAX_PARTS)
        return ERR(err, TESS_E_ARG, "%s: more than %d parts; use a larger --split-max-size", w->path,
                   CT_MAX_PARTS);
    if (!mem_grow(w->m, &w->parts, &w->cap_parts, w->n_parts + 1, sizeof *w->parts))
        return ERR(err, TESS_E_NOMEM, "%s: no memory", w->path);
    TRY(os_out_open(&w->parts[w->n_parts].out, w->m, w->path, err));
    w->parts[w->n_parts++].end = CT_HEAD_SIZE;
    return TESS_OK;
}

/* Begins the segment of piece order[at]; a part is cut before a segment that might not fit any more. */
static tess_status begin_segment(ct_writer *w, uint32_t at, tess_error *err)
{
    const ct_piece *p = &w->pieces[w->order[at]];
    uint64_t end = w->parts[w->n_parts - 1].end;
    if (w->o.split_max && end > CT_HEAD_SIZE) {
        uint64_t need = end + segment_bound(w, at) + CT_TRAILER_SIZE + (w->n_parts == 1 ? meta_bound(w) : 0);
        if (need > w->o.split_max) TRY(next_part(w, err));
    }
    ct_wpart *part = &w->parts[w->n_parts - 1];
    part->end = align_to(part->end, CT_SEGMENT_ALIGN);
    w->segments[w->n_segments++] = (ct_segment){.layer = w->tensors[p->tensor].t.layer,
                                                .piece_rank = p->piece_no,
                                                .split_file = w->n_parts - 1,
                                                .off = part->end};
    return TESS_OK;
}

static tess_status place(ct_writer *w, uint32_t at, uint32_t c, tess_error *err)
{
    ct_piece *p = &w->pieces[w->order[at]];
    ct_chunk *k = &w->chunks[p->first_chunk + c];
    if (c == 0) {
        const ct_segment *last = w->n_segments ? &w->segments[w->n_segments - 1] : NULL;
        if (!last || last->layer != w->tensors[p->tensor].t.layer || last->piece_rank != p->piece_no)
            TRY(begin_segment(w, at, err));
    }
    ct_wpart *part = &w->parts[w->n_parts - 1];
    if (c == 0 || !p->raw_contig) part->end = align_to(part->end, CT_PIECE_ALIGN);
    if (c == 0) {
        p->split_file = w->n_parts - 1;
        p->off = part->end;
    }
    k->off = part->end;
    part->end += k->csize;
    p->stored_len = part->end - p->off;
    ct_segment *s = &w->segments[w->n_segments - 1];
    s->len = part->end - s->off;
    if (part->end > CT_FILE_MAX) return ERR(err, TESS_E_UNSUPPORTED, "%s: larger than 2^48 bytes", w->path);
    return TESS_OK;
}

/* ---- batches ---- */

/* The decoded size of a chunk, which is its stored size when the piece is raw. */
static uint32_t chunk_usize(const ct_writer *w, const ct_piece *p, uint32_t c)
{
    const ct_tensor *t = &w->tensors[p->tensor].t;
    uint64_t leaf[MAX_LEAVES], bytes = 0, rows = 0;
    uint32_t n = ct_piece_leaves(t, ct_waxis(w, t), p, leaf);
    ct_chunk_bytes(t, p, leaf, n, c, &bytes, &rows);
    return (uint32_t)bytes;
}

static tess_status want_hashes(ct_writer *w, ct_wtensor *t, tess_error *err)
{
    if (t->hashes) return TESS_OK;
    uint64_t leaves = ct_split_k(&t->t) ? w->axes[t->t.axis].n_leaves : 1, n;
    if (u64_mul(ct_view_of(&t->t).rows, leaves, &n)) t->hashes = mem_calloc(w->m, n, sizeof *t->hashes);
    return t->hashes ? TESS_OK
                     : ERR(err, TESS_E_NOMEM, "%s: no memory for the hashes of tensor \"%.100s\"", w->path,
                           t->t.name);
}

/* Takes the next jobs: raw ones alone, up to BATCH_MAX, or a mix, up to the number of slots. */
static tess_status take_batch(state *s, uint32_t *starts, tess_error *err)
{
    ct_writer *w = s->w;
    s->n_jobs = 0;
    s->placed = true;
    while (s->at < w->n_pieces) {
        ct_piece *p = &w->pieces[w->order[s->at]];
        if (s->n_jobs == BATCH_MAX || (!(s->placed && p->raw_contig) && s->n_jobs >= s->n_slots)) break;
        s->placed &= p->raw_contig;
        TRY(want_hashes(w, &w->tensors[p->tensor], err));
        starts[s->n_jobs] = s->at;
        w->chunks[p->first_chunk + s->at_chunk].csize = chunk_usize(w, p, s->at_chunk);
        s->jobs[s->n_jobs++] = (job){w->order[s->at], s->at_chunk};
        if (++s->at_chunk == p->n_chunks) {
            s->at_chunk = 0;
            s->at++;
        }
    }
    return TESS_OK;
}

static void finish_tensor(ct_writer *w, ct_wtensor *t)
{
    uint64_t leaves = ct_split_k(&t->t) ? w->axes[t->t.axis].n_leaves : 1;
    hash128(t->hashes, (size_t)(ct_view_of(&t->t).rows * leaves * 8), t->t.content_hash);
    mem_free(w->m, t->hashes);
    t->hashes = NULL;
}

static tess_status place_batch(state *s, const uint32_t *starts, tess_error *err)
{
    for (uint32_t i = 0; i < s->n_jobs; i++) TRY(place(s->w, starts[i], s->jobs[i].c, err));
    return TESS_OK;
}

static tess_status run_batch(state *s, pool *p, uint64_t *done, tess_error *err)
{
    ct_writer *w = s->w;
    uint32_t starts[BATCH_MAX];
    TRY(take_batch(s, starts, err));
    if (s->placed) TRY(place_batch(s, starts, err));
    pool_each(p, s->n_jobs, encode_item, s);
    if (!s->failed && !s->placed) {
        TRY(place_batch(s, starts, err));
        pool_each(p, s->n_jobs, put_item, s);
    }
    if (s->failed) {
        if (err) *err = s->err;
        return s->err.status < 0 ? s->err.status
                                 : ERR(err, TESS_E_IO, "%s: the source could not be read", w->path);
    }
    for (uint32_t i = 0; i < s->n_jobs; i++) {
        const ct_piece *q = &w->pieces[s->jobs[i].piece];
        ct_wtensor *t = &w->tensors[q->tensor];
        *done += w->chunks[q->first_chunk + s->jobs[i].c].usize;
        if (--t->chunks_left == 0) finish_tensor(w, t);
    }
    return TESS_OK;
}

/* ---- buffers ---- */

static void close_state(state *s)
{
    const mem *m = s->w->m;
    for (uint32_t i = 0; s->workers && i < s->n_workers; i++) {
        mem_free(m, s->workers[i].in);
        mem_free(m, s->workers[i].tmp);
        ct_enc_close(s->workers[i].enc);
    }
    mem_free(m, s->workers);
    mem_free(m, s->slots);
}

static tess_status open_state(state *s, tess_error *err)
{
    ct_writer *w = s->w;
    size_t box = (size_t)w->max_box;
    s->workers = mem_calloc(w->m, s->n_workers, sizeof *s->workers);
    if (!s->workers) goto nomem;
    for (uint32_t i = 0; i < s->n_workers; i++) {
        worker *k = &s->workers[i];
        if (!(k->in = mem_calloc(w->m, 3, box)) || !(k->tmp = mem_alloc(w->m, (size_t)w->max_tmp))) goto nomem;
        k->out = k->in + box;
        k->planes = k->out + box;
        if (w->any_coded) TRY(ct_enc_open(w->m, &k->enc, err));
    }
    s->n_slots = (uint32_t)MAX(s->n_workers, MIN((uint64_t)4 * s->n_workers, SLOT_BYTES / MAX(w->max_box, 1)));
    s->n_slots = MIN(s->n_slots, (uint32_t)BATCH_MAX);
    if (w->any_coded && !(s->slots = mem_calloc(w->m, s->n_slots, box))) goto nomem;
    return TESS_OK;
nomem:
    return ERR(err, TESS_E_NOMEM, "%s: no memory for buffers of %zu bytes", w->path, box);
}

tess_status ct_write_data(ct_writer *w, pool *p, ct_read_fn read, void *user, ct_progress_fn progress,
                          void *progress_user, tess_error *err)
{
    state s = {.w = w, .read = read, .user = user, .n_workers = pool_size(p)};
    uint64_t done = 0;
    if (w->n_pieces == 0) return TESS_OK;
    tess_status st = TESS_OK;
    if (!w->any_coded && !w->o.split_max)
        st = os_out_reserve(&w->parts[0].out, CT_HEAD_SIZE + w->data_bytes, err); /* a full disk is told now */
    if (st == TESS_OK) st = open_state(&s, err);
    while (st == TESS_OK && s.at < w->n_pieces) {
        st = run_batch(&s, p, &done, err);
        if (st == TESS_OK && progress) progress(progress_user, done, w->data_bytes);
    }
    close_state(&s);
    return st;
}

tess_status ct_write(ct_writer *w, pool *p, ct_read_fn read, void *user, ct_progress_fn progress,
                     void *progress_user, tess_error *err)
{
    if (w->done) return ERR(err, TESS_E_ARG, "%s: is written already", w->path);
    w->done = true;
    TRY(ct_plan(w, p, read, user, err));
    TRY(ct_write_data(w, p, read, user, progress, progress_user, err));
    return ct_write_meta(w, err);
}
