/*
 * t_cuda_attn.c - pages and attention on a CUDA device against ref: bytes of pages, bits of results.
 *
 * Pages hold 0xff, which is NaN in every type, before rows are written; each page is an allocation of its own. Pages that
 * no row's window reaches are gone, and their entries in the tables are NULL. Every second world of int8 pages keeps a K bias
 * apart: pairs, a flat part, both or nothing of each head.
 */
#include "after_ops.h"
#include "cuda_kit.h"
#include "ops_kbias.h"

enum { MAX_PAGES = 80, MAX_ROWS = 320 };
typedef struct {
    op_kv kv;
    size_t bytes; /* of a page */
    uint32_t n_seq, len[MAX_SEQ];
    uint8_t *host[MAX_SEQ][MAX_PAGES], *dev[MAX_SEQ][MAX_PAGES];
    uint8_t *const *tables[MAX_SEQ]; /* of the host */
    uint8_t *const *const *dev_tables;
    float v_unit;      /* V is this times random numbers; 0: 1 */
    kept_bias *bias;   /* NULL: none */
    op_kbias dev_bias; /* its struct on the host, all else on the device */
} world;

static uint32_t pages_of(const world *w, uint32_t s) { return (w->len[s] + w->kv.page_tokens - 1) / w->kv.page_tokens; }

/* Tables of no pairs are NULL. */
static op_kbias bias_on_device(const kept_bias *b, uint32_t heads, uint32_t k_dim)
{
    const float *cs[MAX_SEQ] = {NULL}, *lanes[MAX_SEQ] = {NULL};
    op_kbias_head *head = must(malloc(heads * sizeof *head));
    memcpy(head, b->head, heads * sizeof *head);
    for (uint32_t h = 0; h < heads; h++) head[h].flat = DEV_COPY(head[h].flat, k_dim);
    for (uint32_t s = 0; b->floats && s < MAX_SEQ; s++)
        cs[s] = DEV_COPY(b->cs[s], b->floats), lanes[s] = DEV_COPY(b->lanes[s], b->floats);
    op_kbias d = {DEV_COPY(head, heads), b->arg.n_cs, dev_copy(cs, sizeof cs), dev_copy(lanes, sizeof lanes)};
    free(head);
    return d;
}

/* unit: what the biases are multiplied with. They are added to K in no way here; so K in pages is as large as they are. */
static void bias_scale(kept_bias *b, uint32_t heads, uint32_t k_dim, float unit)
{
    for (uint32_t h = 0; h < heads; h++) {
        float *flat = (float *)(uintptr_t)b->head[h].flat;
        for (uint32_t d = 0; flat && d < k_dim; d++) flat[d] *= unit;
        for (uint32_t i = 0; i < b->head[h].n_pairs; i++) b->head[h].pair[i].ba *= unit, b->head[h].pair[i].bb *= unit;
    }
}

/* full: the first sequence is max_len long. */
static void world_open_unit(world *w, uint32_t dtype, uint32_t page, uint32_t heads, uint32_t k_dim, uint32_t v_dim, uint32_t max_len, float unit, bool full)
{
    *w = (world){.kv = {.dtype = dtype,
                        .page_tokens = page,
                        .n_kv_heads = heads,
                        .k_dim = k_dim,
                        .v_dim = v_dim,
                        .layer_off = 64 * (uint64_t)rnd(3)},
                 .n_seq = between(1, MAX_SEQ)};
    op_kv_layout(&w->kv);
    w->bytes = w->kv.layer_off + heads * w->kv.head_bytes;
    for (uint32_t s = 0; s < w->n_seq; s++) {
        w->len[s] = full && s == 0 ? max_len : between(1, max_len);
        for (uint32_t i = 0; i < pages_of(w, s); i++) {
            w->host[s][i] = must(malloc(w->bytes));
            memset(w->host[s][i], 0xff, w->bytes);
            w->dev[s][i] = dev_copy(w->host[s][i], w->bytes);
        }
        w->tables[s] = w->host[s];
    }
    if (dtype != DT_I8 || rnd(2)) return;
    w->bias = bias_make(heads, k_dim, max_len);
    bias_scale(w->bias, heads, k_dim, unit);
    w->dev_bias = bias_on_device(w->bias, heads, k_dim);
}
static void world_open(world *w, uint32_t dtype, uint32_t page, uint32_t heads, uint32_t k_dim, uint32_t v_dim, uint32_t max_len)
{
    world_open_unit(w, dtype, page, heads, k_dim, v_dim, max_len, 1, false);
}
/* After entries of dev changed. */
static void world_tables(world *w)
{
    uint8_t *const *at[MAX_SEQ];
    for (uint32_t s = 0; s < w->n_seq; s++) at[s] = dev_copy(w->dev[s], sizeof w->dev[s]);
    w->dev_tables = dev_copy(at, sizeof at);
}
static void world_close(world *w)
{
    for (uint32_t s = 0; s < w->n_seq; s++)
        for (uint32_t i = 0; i < MAX_PAGES; i++) free(w->host[s][i]);
    bias_free(w->bias, w->kv.n_kv_heads);
    dev_free_all();
}

/* All positions of all sequences, in one call; values that are hard for int8 among them when `hard`. */
static void world_write(world *w, bool hard)
{
    const float odd[] = {0, -0.0f, 1e-40f, 1e-7f, 7.6e-6f, 65504.0f * 127, 65520, 3e38f, NAN, INFINITY, -INFINITY};
    uint32_t n = 0, at = 0, heads = w->kv.n_kv_heads;
    for (uint32_t s = 0; s < w->n_seq; s++) n += w->len[s];
    uint32_t *pos = must(calloc(n, sizeof *pos)), *seq = must(calloc(n, sizeof *seq));
    for (uint32_t s = 0; s < w->n_seq; s++)
        for (uint32_t p = 0; p < w->len[s]; p++, at++) pos[at] = p, seq[at] = s;
    size_t ks = (size_t)heads * w->kv.k_dim + rnd(3), vs = (size_t)heads * w->kv.v_dim + rnd(3);
    float *k = reals(ks * n), *v = reals(vs * n);
    for (size_t i = 0; w->v_unit > 0 && i < vs * n; i++) v[i] *= w->v_unit;
    for (uint32_t i = 0; hard && i < n / 2 + 1; i++)
        k[rnd((uint32_t)(ks * n))] = odd[rnd(ARRAY_LEN(odd))], v[rnd((uint32_t)(vs * n))] = odd[rnd(ARRAY_LEN(odd))];
    for (size_t i = 0; hard && i < ks; i++) k[i] *= 1e-6f; /* a row whose scale is not a normal number of f16 */
    op_kv_write_args a = {.kv = w->kv, .b = {n, pos, seq, w->tables}, .k = k, .v = v, .ks = ks, .vs = vs};
    if (w->bias) a.kbias = &w->bias->arg;
    op_table_ref.kv_write(&a, 0, 1);
    a.b = (op_batch){n, DEV_COPY(pos, n), DEV_COPY(seq, n), w->dev_tables};
    a.k = DEV_COPY(k, ks * n), a.v = DEV_COPY(v, vs * n);
    if (w->bias) a.kbias = &w->dev_bias;
    ON_DEVICE(kv_write, &a);
    free(pos), free(seq), free(k), free(v);
}

static void check_pages(const world *w)
{
    uint8_t *got = must(malloc(w->bytes));
    for (uint32_t s = 0; s < w->n_seq; s++)
        for (uint32_t i = 0; i < pages_of(w, s); i++) {
            dev_move(got, w->dev[s][i], w->bytes, false);
            if (memcmp(got, w->host[s][i], w->bytes) != 0) fail_msg("page %u of sequence %u, type %u, differs", i, s, w->kv.dtype);
        }
    free(got);
}

static void kv_write_is_equal(void **state)
{
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 45; i++) {
        world w;
        world_open(&w,
                   i % 3 == 2 ? DT_I8
                   : i % 3    ? DT_F16
                              : DT_F32,
                   16u << rnd(3), between(1, 3), between(1, 70), between(1, 70), 100);
        world_tables(&w);
        world_write(&w, i % 2 != 0);
        check_pages(&w);
        world_close(&w);
    }
}

/* Of each sequence its last few positions, in order. */
static uint32_t last_rows(const world *w, uint32_t most, uint32_t *pos, uint32_t *seq)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < w->n_seq; s++) {
        uint32_t k = between(MIN(most, w->len[s]) / 2 + 1, MIN(most, w->len[s]));
        for (uint32_t i = 0; i < k && n < MAX_ROWS; i++, n++) pos[n] = w->len[s] - k + i, seq[n] = s;
    }
    return n;
}
/* Pages before every row's window are gone. */
static void drop_pages(world *w, const op_attn_args *a)
{
    for (uint32_t s = 0; s < w->n_seq; s++) {
        uint32_t lo = w->len[s];
        for (uint32_t t = 0; t < a->b.n_tokens; t++)
            if (a->b.seq[t] == s) lo = MIN(lo, a->window && a->b.pos[t] >= a->window ? a->b.pos[t] + 1 - a->window : 0);
        for (uint32_t i = 0; (i + 1) * w->kv.page_tokens <= lo; i++) free(w->host[s][i]), w->host[s][i] = w->dev[s][i] = NULL;
    }
}

/* On the device, with chunks split over blocks (when there is room for it) and without. */
static void attn_on_device(op_attn_args a, float *want, const world *w, size_t n)
{
    uint32_t most = 0;
    size_t cols = (size_t)a.n_heads * a.kv.v_dim;
    for (uint32_t t = 0; t < a.b.n_tokens; t++) most = MAX(most, a.b.pos[t] + 1);
    a.q = DEV_COPY(a.q, a.qs * a.b.n_tokens);
    a.sinks = DEV_COPY(a.sinks, a.n_heads), a.bias = DEV_COPY(a.bias, a.n_heads * a.bias_stride);
    if (w->bias) a.kbias = &w->dev_bias;
    a.b = (op_batch){a.b.n_tokens, DEV_COPY(a.b.pos, a.b.n_tokens), DEV_COPY(a.b.seq, a.b.n_tokens), w->dev_tables};
    for (int split = 0; split < 2; split++) {
        float *got = guarded(n), *scratch = NULL;
        a.max_pos = split ? most + rnd(300) : rnd(2) * most;
        a.scratch_floats = split ? op_cuda_attn_scratch(a.b.n_tokens, a.n_heads, a.kv.v_dim, a.max_pos) : 0;
        float *host = guarded(a.scratch_floats), *back = guarded(a.scratch_floats);
        scratch = dev_guarded(host, a.scratch_floats);
        a.scratch = scratch;
        a.out = dev_guarded(got, n);
        ON_DEVICE(attn, &a);
        dev_fetch(got, a.out, n);
        check_equal(split ? "attn, split" : "attn", want, got, n, a.b.n_tokens, cols, a.os);
        dev_fetch(back, scratch, a.scratch_floats);
        check_equal("scratch", back, back, a.scratch_floats, 1, a.scratch_floats, MAX(a.scratch_floats, (size_t)1));
        release(got), release(host), release(back);
    }
}

enum { MLA = 1, HARD = 2, EDGE = 4 };
#define FAST_NEAR 4e-3f /* of the unit of V, whose numbers reach 4 */
static void attn_case(uint32_t dtype, uint32_t page, uint32_t k_dim, uint32_t v_dim, uint32_t max_len, uint32_t most_rows,
                      uint32_t what)
{
    world w;
    uint32_t kv_heads = what & MLA ? 1 : between(1, 3), group = what & MLA ? 19 : between(1, 10), pos[MAX_ROWS], seq[MAX_ROWS],
             skip = rnd(group);
    world_open(&w, dtype, page, kv_heads, k_dim, v_dim, max_len);
    world_tables(&w);
    world_write(&w, what & HARD);
    op_attn_args a = {.kv = w.kv,
                      .b = {last_rows(&w, most_rows, pos, seq), pos, seq, w.tables},
                      .group = group,
                      .kv_head0 = rnd(3),
                      .kbias = w.bias ? &w.bias->arg : NULL,
                      .scale = 1.0f / sqrtf((float)k_dim)};
    a.q_head0 = a.kv_head0 * group + skip; /* a rank may begin and end within a group */
    a.n_heads = kv_heads * group - skip - rnd(group - (kv_heads == 1 ? skip : 0));
    a.softcap = rnd(3) ? 0.0f : 2.5f;
    const uint32_t windows[] = {0, 0, 1, 7, 16, 31, 32, 33, 255, 256, 257, between(1, max_len)};
    a.window = windows[rnd(ARRAY_LEN(windows))];
    drop_pages(&w, &a);
    world_tables(&w);
    a.bias_stride = (max_len + 255) / 256 * 256;
    a.qs = (size_t)a.n_heads * k_dim + rnd(4), a.os = (size_t)a.n_heads * v_dim + rnd(4);
    size_t n = a.os * a.b.n_tokens;
    float *q = reals(a.qs * a.b.n_tokens), *sinks = reals(a.n_heads), *bias = reals(a.n_heads * a.bias_stride), *want = guarded(n);
    if (what & HARD) q[rnd((uint32_t)(a.qs * a.b.n_tokens))] = rnd(2) ? NAN : 3e38f;
    a.q = q, a.out = want, a.sinks = rnd(3) ? NULL : sinks, a.bias = rnd(3) ? NULL : bias;
    op_table_ref.attn(&a, 0, 1);
    attn_on_device(a, want, &w, n);
    release(want);
    free(q), free(sinks), free(bias);
    world_close(&w);
}

static void attn_is_equal(void **state)
{
    (void)state;
    const uint32_t dims[] = {16, 24, 32, 64, 80, 96, 112, 128, 256}, types[] = {DT_F32, DT_F16, DT_I8};
    NEED_DEVICE();
    for (uint32_t i = 0; i < ARRAY_LEN(dims) * 3; i++) {
        uint32_t dim = dims[i / 3], type = types[i % 3];
        attn_case(type, 16u << i % 3, dim, dim, 40, 5, 0);
        attn_case(type, 16u << rnd(3), dim - rnd(4), between(1, 100), 90, 30, 0);
        attn_case(type, 16u << rnd(3), dim, dim, 1000, 3, 0);
    }
    for (uint32_t i = 0; i < 3; i++) {
        attn_case(types[i], 32, 40, 32, 600, 4, MLA);
        attn_case(types[i], 16, 16, 16, 300, 100, 0); /* 300 rows */
        for (uint32_t k = 0; k < 4; k++) attn_case(types[i], 16, between(1, 40), between(1, 40), 600, 6, HARD);
    }
}

/* ---- the fast path: near ref, and one row has the same bits however it is computed ---- */
/* Rows [t0, t0 + n) alone, all their heads; bits of base. */
static void fast_rows(op_attn_args a, const float *base, uint32_t t0, uint32_t n, bool split, const char *what)
{
    size_t cols = (size_t)a.n_heads * a.kv.v_dim, out = a.os * n;
    float *got = guarded(out);
    a.b.pos += t0, a.b.seq += t0, a.b.n_tokens = n, a.q += t0 * a.qs;
    a.scratch_floats = split ? op_cuda_attn_scratch(n, a.n_heads, a.kv.v_dim, a.max_pos) : 0;
    float *host = guarded(a.scratch_floats), *back = guarded(a.scratch_floats);
    a.scratch = dev_guarded(host, a.scratch_floats);
    a.out = dev_guarded(got, out);
    a.single = n == 1;
    ON_DEVICE(attn, &a);
    dev_fetch(got, a.out, out);
    check_equal(what, base + t0 * a.os, got, out, n, cols, a.os);
    dev_fetch(back, a.scratch, a.scratch_floats);
    check_equal("scratch", back, back, a.scratch_floats, 1, a.scratch_floats, MAX(a.scratch_floats, (size_t)1));
    release(got), release(host), release(back);
}

/* A number stays within most of ref's; what is no finite number is none here either. */
static void fast_near(const op_attn_args *a, const float *want, const float *got, float most)
{
    for (uint32_t t = 0; t < a->b.n_tokens; t++)
        for (uint32_t i = 0; i < a->n_heads * a->kv.v_dim; i++) {
            float x = want[t * a->os + i], y = got[t * a->os + i];
            if (!isfinite(x) && !isfinite(y)) continue;
            if (!(fabsf(x - y) <= most))
                fail_msg("type %u, %u of %u dims, row %u (%u), column %u: %.9g, ref has %.9g", a->kv.dtype, a->kv.k_dim,
                         a->kv.v_dim, t, a->b.pos[t], i, (double)y, (double)x);
        }
}

static void fast_on_device(op_attn_args a, const float *want, const world *w, float most, float *base)
{
    op_attn_args host = a;
    size_t n = a.os * a.b.n_tokens;
    a.fast = true;
    a.max_pos = 1;
    for (uint32_t t = 0; t < a.b.n_tokens; t++) a.max_pos = MAX(a.max_pos, a.b.pos[t] + 1);
    a.q = DEV_COPY(a.q, a.qs * a.b.n_tokens);
    a.sinks = DEV_COPY(a.sinks, a.n_heads), a.bias = DEV_COPY(a.bias, a.n_heads * a.bias_stride);
    if (w->bias) a.kbias = &w->dev_bias;
    a.b = (op_batch){a.b.n_tokens, DEV_COPY(a.b.pos, a.b.n_tokens), DEV_COPY(a.b.seq, a.b.n_tokens), w->dev_tables};
    a.out = dev_guarded(base, n);
    ON_DEVICE(attn, &a);
    dev_fetch(base, a.out, n);
    check_equal("fast, untouched", base, base, n, a.b.n_tokens, (size_t)a.n_heads * a.kv.v_dim, a.os);
    if (most > 0) fast_near(&host, want, base, most);
    fast_rows(a, base, 0, a.b.n_tokens, true, "fast, split");
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t t0 = rnd(a.b.n_tokens), k = i ? 1 : between(1, a.b.n_tokens - t0);
        fast_rows(a, base, t0, k, i == 1, i ? "fast, a row alone" : "fast, some rows");
    }
    if (a.n_heads < 2) return;
    uint32_t cut = between(1, a.n_heads - 1), g = (a.q_head0 + cut) / a.group - a.kv_head0; /* the heads of another rank */
    op_attn_args r = a;
    r.q_head0 += cut, r.n_heads -= cut, r.kv_head0 += g, r.kv.n_kv_heads -= g, r.kv.layer_off += g * a.kv.head_bytes;
    r.q += (size_t)cut * a.kv.k_dim, r.out += (size_t)cut * a.kv.v_dim;
    op_kbias kb = w->dev_bias;
    kb.head += w->bias ? g : 0;
    if (w->bias) r.kbias = &kb;
    if (r.sinks) r.sinks += cut;
    if (r.bias) r.bias += cut * a.bias_stride;
    float *got = guarded(n);
    ON_DEVICE(attn, &r);
    dev_fetch(got, a.out, n);
    check_equal("fast, some heads", base, got, n, a.b.n_tokens, (size_t)a.n_heads * a.kv.v_dim, a.os);
    release(got);
}

/* Once more with pages of another size. */
static void fast_case(uint32_t dtype, uint32_t k_dim, uint32_t v_dim, uint32_t group, uint32_t max_len, uint32_t most_rows,
                      float v_unit, uint32_t what)
{
    uint64_t start = rng;
    float *first = NULL;
    size_t n = 0;
    for (uint32_t page = 16; page <= 64; page *= 4) {
        world w;
        uint32_t pos[MAX_ROWS], seq[MAX_ROWS];
        rng = start;
        world_open_unit(&w, dtype, page, 2, k_dim, v_dim, max_len, 0.01f, what & EDGE);
        w.v_unit = v_unit;
        world_tables(&w);
        world_write(&w, what & HARD);
        op_attn_args a = {.kv = w.kv,
                          .b = {last_rows(&w, most_rows, pos, seq), pos, seq, w.tables},
                          .group = group,
                          .kv_head0 = rnd(3),
                          .kbias = w.bias ? &w.bias->arg : NULL,
                          .scale = 1.0f / sqrtf((float)k_dim)};
        uint32_t skip = rnd(group);
        a.q_head0 = a.kv_head0 * group + skip, a.n_heads = 2 * group - skip - rnd(group);
        a.softcap = rnd(3) ? 0.0f : 2.5f;
        const uint32_t windows[] = {0, 0, 1, 31, 32, 33, 255, 256, 257, between(1, max_len)};
        a.window = what & EDGE ? max_len - 259 : windows[rnd(ARRAY_LEN(windows))];
        drop_pages(&w, &a);
        world_tables(&w);
        a.bias_stride = (max_len + 255) / 256 * 256;
        a.qs = (size_t)a.n_heads * k_dim + rnd(4), a.os = (size_t)a.n_heads * v_dim + rnd(4);
        n = a.os * a.b.n_tokens;
        float *q = reals(a.qs * a.b.n_tokens), *sinks = reals(a.n_heads), *bias = reals(a.n_heads * a.bias_stride),
              *want = guarded(n), *base = guarded(n);
        if (what & HARD) q[rnd((uint32_t)(a.qs * a.b.n_tokens))] = rnd(2) ? NAN : 3e38f;
        a.q = q, a.out = want, a.sinks = rnd(3) ? NULL : sinks, a.bias = rnd(3) ? NULL : bias;
        op_table_ref.attn(&a, 0, 1);
        fast_on_device(a, want, &w, what & HARD ? 0 : FAST_NEAR * v_unit, base);
        if (first)
            check_equal("fast, other pages", first, base, n, a.b.n_tokens, (size_t)a.n_heads * v_dim, a.os), release(base),
                release(first);
        else first = base;
        release(want);
        free(q), free(sinks), free(bias);
        world_close(&w);
    }
}

static void fast_is_right(void **state)
{
    (void)state;
    const uint32_t dims[] = {16, 24, 32, 64, 80, 96, 112, 128, 256}, groups[] = {1, 3, 7, 9, 4, 2, 71};
    NEED_DEVICE();
    for (uint32_t i = 0; i < ARRAY_LEN(dims) * 2; i++) {
        uint32_t dim = dims[i / 2], type = i % 2 ? DT_I8 : DT_F16;
        fast_case(type, dim, dim, groups[i % 6], 40, 20, 1, 0);
        fast_case(type, dim, dims[rnd(6)], groups[rnd(6)], 700, 3, 1, 0);
    }
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t type = i ? DT_I8 : DT_F16;
        fast_case(type, 32, 24, 71, 60, 2, 1, 0);
        fast_case(type, 40, 16, 3, 300, 100, 1, 0);
        fast_case(type, 16, 16, 2, 90, 6, i ? 1e-5f : 1e-3f, 0);
        for (uint32_t k = 0; k < 4; k++) fast_case(type, 24, 16, 3, 300, 40, 1, HARD);
        /* Windows begin at positions 250 to 259: rows of one block see chunks 0 and 1, or 1 and 2; some see all three. */
        fast_case(type, 16, 16, 1, 514, 10, 1, EDGE);
        fast_case(type, 16, 16, 1, 560, 10, 1, EDGE);
    }
}

/* More chunks than attn_merge.cu takes at a time, on few pages that the table names again and again. What a row meets first is page 0,
 * so that its greatest score comes later. */
static void long_case(uint32_t dtype, bool on_tensor_cores)
{
    enum { LEN = 33100, PAGES = LEN / 64 + 1, OWN = 5 };
    world w = {.kv = {.dtype = dtype, .page_tokens = 64, .n_kv_heads = 1, .k_dim = 16, .v_dim = 16}, .n_seq = 1};
    uint8_t *host[PAGES], *dev[PAGES], *const *tables = host;
    const uint32_t pos = LEN - 1, seq = 0;
    op_kv_layout(&w.kv);
    for (uint32_t i = 0; i < OWN; i++) {
        w.host[0][i] = (uint8_t *)reals(w.kv.head_bytes / sizeof(float));
        for (uint16_t *h = (uint16_t *)(void *)w.host[0][i], *end = h + w.kv.head_bytes / 2; dtype == DT_F16 && h < end; h++)
            *h = (uint16_t)(rnd(2) << 15 | between(10, 15) << 10 | rnd(1024));
        w.dev[0][i] = dev_copy(w.host[0][i], w.kv.head_bytes);
    }
    for (uint32_t i = 0; i < PAGES; i++) {
        uint32_t own = i < 8 ? 0 : i < 300 ? 1 + i % 2 : i % OWN;
        host[i] = w.host[0][own], dev[i] = w.dev[0][own];
    }
    uint8_t *const *there = dev_copy(dev, sizeof dev);
    w.dev_tables = dev_copy(&there, sizeof there);
    float *q = reals(2 * 16), want[2 * 16], *base = guarded(2 * 16);
    op_attn_args a = {.kv = w.kv, .b = {1, &pos, &seq, &tables}, .q = q, .qs = 2 * 16, .n_heads = 2, .group = 2, .scale = 1, .out = want, .os = 2 * 16};
    op_table_ref.attn(&a, 0, 1);
    if (on_tensor_cores) fast_on_device(a, want, &w, FAST_NEAR, base);
    else attn_on_device(a, want, &w, 2 * 16);
    release(base);
    free(q);
    world_close(&w);
}
static void many_chunks(void **state)
{
    (void)state;
    NEED_DEVICE();
    long_case(DT_F32, false);
    long_case(DT_F16, true);
}

/* ---- the output as groups, in the same launch ---- */
/* One row of each sequence; leaves are whole heads. Out has the bits that it has alone, groups are those of it. */
static void groups_case(uint32_t dtype, uint32_t k_dim, uint32_t v_dim, uint32_t max_len, bool mma)
{
    world w;
    uint32_t kv_heads = between(1, 3), group = between(1, 10), heads = kv_heads * group, pos[MAX_ROWS], seq[MAX_ROWS], leaf[8], leaves = 0, groups = 0;
    world_open(&w, dtype, 32, kv_heads, k_dim, v_dim, max_len);
    world_tables(&w);
    world_write(&w, false);
    op_attn_args a = {.kv = w.kv, .b = {last_rows(&w, 1, pos, seq), NULL, NULL, w.dev_tables}, .group = group, .n_heads = heads, .fast = mma,
                      .single = mma, .kbias = w.bias ? &w.dev_bias : NULL, .scale = 1.0f / sqrtf((float)k_dim)};
    const uint32_t n = a.b.n_tokens;
    for (uint32_t left = heads; left > 0; leaves++, left -= leaf[leaves - 1] / v_dim) {
        leaf[leaves] = (leaves == 7 ? left : between(1, left)) * v_dim;
        groups += (leaf[leaves] + GROUP_K - 1) / GROUP_K;
    }
    a.b.pos = DEV_COPY(pos, n), a.b.seq = DEV_COPY(seq, n);
    a.qs = (size_t)heads * k_dim + rnd(4), a.os = (size_t)heads * v_dim + rnd(4);
    const size_t n_out = a.os * n, words = (size_t)groups * n * sizeof(op_group) / sizeof(float);
    float *q = reals(a.qs * n), *alone = guarded(n_out), *out = guarded(n_out), *want = guarded(words), *got = guarded(words);
    for (uint32_t s = 0; s < n; s++) a.max_pos = MAX(a.max_pos, pos[s] + 1);
    a.q = DEV_COPY(q, a.qs * n);
    a.scratch_floats = op_cuda_attn_scratch(n, heads, v_dim, a.max_pos);
    float *room = guarded(a.scratch_floats);
    a.scratch = dev_guarded(room, a.scratch_floats);
    a.out = dev_guarded(alone, n_out);
    ON_DEVICE(attn, &a);
    dev_fetch(alone, a.out, n_out);
    a.out = dev_guarded(out, n_out);
    uint32_t zero[256] = {0}, back[256];
    const op_counts counts = {(uint32_t *)DEV_COPY(zero, ARRAY_LEN(zero)), ARRAY_LEN(zero)};
    op_quant_args quant = {.x = alone, .xs = a.os, .n_tokens = n, .n_leaves = leaves, .leaf_k = leaf, .y = (op_group *)(void *)want};
    op_table_ref.quant(&quant, 0, 1);
    quant.x = a.out, quant.y = (op_group *)(void *)dev_guarded(got, words);
    dev_ok(cuda->attn_groups(&a, &quant, &counts, stream), "attn_groups");
    dev_ok(device_stream_sync(stream), "attn_groups");
    dev_fetch(out, a.out, n_out);
    dev_fetch(got, (const float *)(const void *)quant.y, words);
    dev_move(back, counts.at, sizeof back, false);
    check_equal("attn_groups", alone, out, n_out, n, (size_t)heads * v_dim, a.os);
    for (size_t i = 0; i < words; i++)
        if (as_bits(want[i]) != as_bits(got[i]))
            fail_msg("type %u, %u of %u heads, %u leaves: word %zu of the groups of %u rows differs", dtype, v_dim, heads, leaves, i, n);
    assert_memory_equal(zero, back, sizeof back);
    release(alone), release(out), release(want), release(got), release(room);
    free(q);
    world_close(&w);
}

static void attn_groups_are_equal(void **state)
{
    (void)state;
    static const uint32_t types[] = {DT_F32, DT_F16, DT_I8};
    NEED_DEVICE();
    for (uint32_t i = 0; i < 36; i++) {
        const uint32_t dim = 8 * between(1, 16);
        groups_case(types[i % 3], dim, i % 4 ? dim : 8 * between(1, 5), i % 2 ? 900 : 60, i % 6 > 2);
    }
    groups_case(DT_I8, 24, 13, 60, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kv_write_is_equal), cmocka_unit_test(attn_groups_are_equal), cmocka_unit_test(attn_is_equal),
                                       cmocka_unit_test(fast_is_right), cmocka_unit_test(many_chunks)};
    RUN_CUDA_TESTS(tests);
}
