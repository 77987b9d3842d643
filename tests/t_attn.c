/*
 * t_attn.c - pages and attention: ref.c against double precision, the other tables against ref.c bit for bit.
 *
 * Every page is a block of memory of its own, filled with NaN before K and V are written; pages that no row's window reaches are
 * freed. Several sequences share a call, with one or more rows each.
 */
#include "ops_kbias.h"

enum { MAX_ROWS = 40, MAX_PAGES = 80 };
typedef struct {
    kept_bias *bias; /* NULL: none */
    op_kv kv;
    uint32_t n_seq, len[MAX_SEQ];   /* positions written */
    float *k[MAX_SEQ], *v[MAX_SEQ]; /* [pos][head][dim], as the pages hold them */
    uint8_t *pages[MAX_SEQ][MAX_PAGES];
    uint8_t *const *tables[MAX_SEQ];
} world;

/* Replaces rows that were written to an int8 page by what their codes stand for. which: 0 K, 1 V. */
static void read_codes(const op_kv *pg, const uint8_t *head, uint32_t slot, uint32_t which, float *x)
{
    uint32_t n = which ? pg->v_dim : pg->k_dim, groups = (pg->k_dim + 3) / 4;
    float d = f16_to_f32(rd16(head + pg->s_off + 2 * (which * pg->page_tokens + slot)));
    for (uint32_t i = 0; i < n; i++) {
        size_t at = which ? pg->v_off + (size_t)slot * pg->v_dim + i : ((slot / 8 * groups + i / 4) * 8 + slot % 8) * 4 + i % 4;
        float y = d * (float)(int8_t)head[at];
        if (!(fabsf(y - x[i]) <= 0.5001f * d + 127 * d * 0.0005f)) fail_msg("int8: %g became %g, scale %g", (double)x[i], (double)y, (double)d);
        x[i] = y;
    }
}

/* Adds sign times the bias as position pos of sequence s has it to a row of K. */
static void bias_add(const kept_bias *b, uint32_t s, uint32_t h, uint32_t pos, uint32_t k_dim, double sign, double *k)
{
    const op_kbias_head *head = &b->head[h];
    for (uint32_t d = 0; head->flat && d < k_dim; d++) k[d] += sign * (double)head->flat[d];
    for (uint32_t i = 0; i < head->n_pairs; i++) {
        const op_kbias_pair *p = &head->pair[i];
        size_t at = ((size_t)pos * b->arg.n_cs + p->i) * 2;
        double c = (double)b->cs[s][at], n = (double)b->cs[s][at + 1], ba = (double)p->ba, bb = (double)p->bb;
        k[p->da] += sign * (ba * c - bb * n);
        k[p->db] += sign * (ba * n + bb * c);
    }
}
/* All rows of K of a sequence: what is in the pages, or what was given. */
static void bias_rows(const world *w, uint32_t s, double sign)
{
    uint32_t heads = w->kv.n_kv_heads, n = w->kv.k_dim;
    double *row = must(malloc(n * sizeof *row));
    for (uint32_t i = 0; w->bias && i < w->len[s] * heads; i++) {
        float *k = w->k[s] + (size_t)i * n;
        for (uint32_t d = 0; d < n; d++) row[d] = (double)k[d];
        bias_add(w->bias, s, i % heads, i / heads, n, sign, row);
        for (uint32_t d = 0; d < n; d++) k[d] = (float)row[d];
    }
    free(row);
}

static void world_make(world *w, uint32_t dtype, uint32_t page, uint32_t heads, uint32_t k_dim, uint32_t v_dim, uint32_t max_len, kept_bias *bias)
{
    *w = (world){.bias = bias, .kv = {.dtype = dtype,
                        .page_tokens = page,
                        .n_kv_heads = heads,
                        .k_dim = k_dim,
                        .v_dim = v_dim,
                        .layer_off = 64 * (uint64_t)rnd(3)},
                 .n_seq = between(1, MAX_SEQ)};
    op_kv_layout(&w->kv);
    size_t bytes = w->kv.layer_off + heads * w->kv.head_bytes;
    for (uint32_t s = 0; s < w->n_seq; s++) {
        w->len[s] = between(1, max_len);
        size_t nk = (size_t)w->len[s] * heads * k_dim, nv = (size_t)w->len[s] * heads * v_dim;
        w->k[s] = reals(nk), w->v[s] = reals(nv);
        for (uint32_t i = 0; i * page < w->len[s]; i++) {
            w->pages[s][i] = must(malloc(bytes));
            memset(w->pages[s][i], 0xff, bytes); /* NaN in every slot */
        }
        w->tables[s] = w->pages[s];
        uint32_t *pos = must(calloc(w->len[s], sizeof *pos)), *seq = must(calloc(w->len[s], sizeof *seq));
        for (uint32_t t = 0; t < w->len[s]; t++) pos[t] = t, seq[t] = s;
        op_kv_write_args a = {w->kv, {w->len[s], pos, seq, w->tables}, w->k[s], w->v[s], (size_t)heads * k_dim,
                              (size_t)heads * v_dim, w->bias ? &w->bias->arg : NULL};
        bias_rows(w, s, 1); /* what comes is K with its bias */
        const op_table *ops = rnd(2) && fast ? fast : &op_table_ref;
        EACH_THREAD(ops->kv_write, &a, between(1, 5));
        bias_rows(w, s, -1);
        free(pos), free(seq);
        for (uint32_t i = 0; dtype == DT_I8 && i < w->len[s] * heads; i++) {
            const uint8_t *head = w->pages[s][i / heads / page] + w->kv.layer_off + i % heads * w->kv.head_bytes;
            read_codes(&w->kv, head, i / heads % page, 0, w->k[s] + (size_t)i * k_dim);
            read_codes(&w->kv, head, i / heads % page, 1, w->v[s] + (size_t)i * v_dim);
        }
        for (size_t i = 0; i < nk && dtype == DT_F16; i++) w->k[s][i] = f16_to_f32(f32_to_f16(w->k[s][i]));
        for (size_t i = 0; i < nv && dtype == DT_F16; i++) w->v[s][i] = f16_to_f32(f32_to_f16(w->v[s][i]));
    }
}
static void world_free(world *w)
{
    bias_free(w->bias, w->kv.n_kv_heads);
    for (uint32_t s = 0; s < w->n_seq; s++) {
        free(w->k[s]), free(w->v[s]);
        for (uint32_t i = 0; i < MAX_PAGES; i++) free(w->pages[s][i]);
    }
}

static void kv_write_is_right(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 40; i++) {
        world w;
        uint32_t heads = between(1, 3), kd = between(1, 40), vd = between(1, 40), es = i % 2 ? 2 : 4;
        world_make(&w, i % 2 ? DT_F16 : DT_F32, 16u << rnd(3), heads, kd, vd, 100, NULL);
        for (uint32_t s = 0; s < w.n_seq; s++)
            for (uint32_t p = 0; p < (w.len[s] + w.kv.page_tokens - 1) / w.kv.page_tokens * w.kv.page_tokens; p++)
                for (uint32_t j = 0; j < heads * (kd + vd); j++) {
                    uint32_t h = j / (kd + vd), d = j % (kd + vd), slot = p % w.kv.page_tokens;
                    const uint8_t *at = w.pages[s][p / w.kv.page_tokens] + w.kv.layer_off + h * w.kv.head_bytes;
                    at +=
                        d < kd ? ((size_t)(slot / 8 * kd + d) * 8 + slot % 8) * es : w.kv.v_off + (slot * (size_t)vd + d - kd) * es;
                    float got;
                    dtype_to_f32(w.kv.dtype, at, &got, 1);
                    float want = p >= w.len[s] ? NAN
                                 : d < kd      ? w.k[s][((size_t)p * heads + h) * kd + d]
                                               : w.v[s][((size_t)p * heads + h) * vd + d - kd];
                    if (!same(want, got)) fail_msg("slot %u of head %u, dim %u: %g, want %g", p, h, d, (double)got, (double)want);
                }
        world_free(&w);
    }
}

/* int8: both tables write the same bytes and nothing else, whatever the values. */
static void kv_write_int8_is_equal(void **state)
{
    (void)state;
    const float hard[] = {0, -0.0f, 1e-40f, 1e-7f, 7.6e-6f, 65504.0f * 127, 3e38f, NAN, INFINITY, -INFINITY};
    NEED_FAST();
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t heads = between(1, 3), kd = between(1, 70), vd = between(1, 70), n = between(1, 16), pos[16], seq[16] = {0};
        op_kv pg = {.dtype = DT_I8, .page_tokens = 16, .n_kv_heads = heads, .k_dim = kd, .v_dim = vd};
        op_kv_layout(&pg);
        uint8_t *page[2] = {must(malloc(heads * pg.head_bytes)), must(malloc(heads * pg.head_bytes))}, *const *tables[2] = {page, page + 1};
        float *k = reals((size_t)n * heads * kd), *v = reals((size_t)n * heads * vd);
        kept_bias *bias = rnd(2) ? bias_make(heads, kd, n) : NULL;
        float unit = rnd(3) ? 1.0f : hard[2 + rnd(4)];
        for (uint32_t j = 0; j < n * heads * kd; j++) k[j] *= unit;
        k[rnd(n * heads * kd)] = hard[rnd(ARRAY_LEN(hard))];
        v[rnd(n * heads * vd)] = hard[rnd(ARRAY_LEN(hard))];
        for (uint32_t t = 0; t < n; t++) pos[t] = t;
        for (int j = 0; j < 2; j++) {
            memset(page[j], 0xee, heads * pg.head_bytes);
            op_kv_write_args a = {pg, {n, pos, seq, &tables[j]}, k, v, (size_t)heads * kd, (size_t)heads * vd, bias ? &bias->arg : NULL};
            EACH_THREAD((j ? fast : &op_table_ref)->kv_write, &a, between(1, 5));
        }
        assert_memory_equal(page[0], page[1], heads * pg.head_bytes);
        for (int j = 0; j < 2; j++) free(page[j]);
        bias_free(bias, heads);
        free(k), free(v);
    }
}

static void attn_double(const world *w, const op_attn_args *a, uint32_t t, uint32_t h, double *out)
{
    static double s[2048];
    uint32_t heads = w->kv.n_kv_heads, g = (a->q_head0 + h) / a->group - a->kv_head0, pos = a->b.pos[t], sq = a->b.seq[t];
    uint32_t lo = a->window && pos + 1 > a->window ? pos + 1 - a->window : 0;
    double max = a->sinks ? (double)a->sinks[h] : -1e300, sum = 0;
    for (uint32_t j = lo; j <= pos; j++) {
        double dot = 0;
        static double k[KBIAS_DIM];
        for (uint32_t d = 0; d < w->kv.k_dim; d++) k[d] = (double)w->k[sq][((size_t)j * heads + g) * w->kv.k_dim + d];
        if (w->bias) bias_add(w->bias, sq, g, j, w->kv.k_dim, 1, k);
        for (uint32_t d = 0; d < w->kv.k_dim; d++) dot += (double)a->q[t * a->qs + h * w->kv.k_dim + d] * k[d];
        dot *= (double)a->scale;
        s[j] = a->softcap > 0 ? (double)a->softcap * tanh(dot / (double)a->softcap) : dot;
        max = fmax(max, s[j]);
    }
    memset(out, 0, w->kv.v_dim * sizeof *out);
    for (uint32_t j = lo; j <= pos; j++) {
        double p = exp(s[j] - max);
        sum += p;
        for (uint32_t d = 0; d < w->kv.v_dim; d++) out[d] += p * (double)w->v[sq][((size_t)j * heads + g) * w->kv.v_dim + d];
    }
    if (a->sinks) sum += exp((double)a->sinks[h] - max);
    for (uint32_t d = 0; d < w->kv.v_dim; d++) out[d] /= sum;
}

/* Rows: of each sequence its last few positions, in order. */
static uint32_t attn_rows(const world *w, uint32_t most, uint32_t *pos, uint32_t *seq)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < w->n_seq; s++) {
        uint32_t k = between(1, MIN(most, w->len[s]));
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
        for (uint32_t i = 0; (i + 1) * w->kv.page_tokens <= lo; i++) free(w->pages[s][i]), w->pages[s][i] = NULL;
    }
}

typedef struct {
    const op_table *ops;
    op_attn_args a;
    pool *p;
} attn_job;
static void attn_thread(void *arg, uint32_t thread, uint32_t n) { ((attn_job *)arg)->ops->attn(&((attn_job *)arg)->a, thread, n); }
static void attn_barrier(void *user, uint32_t thread) { pool_barrier(user, thread); }

static void attn_fast(const op_attn_args *a, float *out, uint32_t threads, uint32_t max_pos)
{
    attn_job j = {fast, *a, NULL};
    assert_int_equal(pool_open(&mem_libc, NULL, threads, &j.p, NULL), TESS_OK);
    j.a.out = out;
    j.a.barrier = attn_barrier, j.a.barrier_user = j.p;
    j.a.scratch_floats = rnd(4) ? op_attn_scratch(a->b.n_tokens, a->n_heads, a->kv.v_dim, max_pos, threads) : 0;
    j.a.scratch = guarded(j.a.scratch_floats);
    pool_run(j.p, attn_thread, &j);
    check_equal("scratch", j.a.scratch, j.a.scratch, j.a.scratch_floats, 1, j.a.scratch_floats, MAX(j.a.scratch_floats, 1u));
    release(j.a.scratch);
    pool_close(j.p);
}

static void attn_case(uint32_t dtype, uint32_t k_dim, uint32_t v_dim, uint32_t max_len, uint32_t most_rows, bool versus_double)
{
    world w;
    uint32_t kv_heads = between(1, 3), group = between(1, 5), pos[MAX_ROWS], seq[MAX_ROWS], skip = rnd(group);
    kept_bias *bias = dtype == DT_I8 && rnd(2) ? bias_make(kv_heads, k_dim, max_len) : NULL;
    world_make(&w, dtype, 16u << rnd(3), kv_heads, k_dim, v_dim, max_len, bias);
    op_attn_args a = {.kv = w.kv,
                      .b = {attn_rows(&w, most_rows, pos, seq), pos, seq, w.tables},
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
    a.qs = (size_t)a.n_heads * k_dim + rnd(4), a.os = (size_t)a.n_heads * v_dim + rnd(4);
    size_t n = a.os * a.b.n_tokens, cols = (size_t)a.n_heads * v_dim;
    float *q = reals(a.qs * a.b.n_tokens), *sinks = reals(a.n_heads), *y[2] = {guarded(n), guarded(n)};
    double *want = must(malloc(v_dim * sizeof *want));
    a.q = q, a.out = y[0], a.sinks = rnd(3) ? NULL : sinks;
    EACH_THREAD(op_table_ref.attn, &a, between(1, 5));
    check_equal("attn, ref", y[0], y[0], n, a.b.n_tokens, cols, a.os);
    for (uint32_t j = 0; versus_double && j < a.b.n_tokens * a.n_heads; j++) {
        attn_double(&w, &a, j / a.n_heads, j % a.n_heads, want);
        for (uint32_t d = 0; d < v_dim; d++)
            check_near("attn", want[d], y[0][j / a.n_heads * a.os + j % a.n_heads * v_dim + d], w.bias ? 3e-3 : 3e-5);
    }
    if (fast) {
        attn_fast(&a, y[1], between(1, 5), max_len);
        check_equal("attn", y[0], y[1], n, a.b.n_tokens, cols, a.os);
    }
    release(y[0]), release(y[1]);
    free(q), free(sinks), free(want);
    world_free(&w);
}

static void attn_is_right(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 90; i++)
        attn_case(i % 3 == 2 ? DT_I8 : i % 3 ? DT_F16 : DT_F32, between(1, 40), between(1, 40), i % 10 == 0 ? 800 : 60, 5, true);
}
static void attn_is_equal(void **state)
{
    (void)state;
    const uint32_t dims[] = {8, 16, 24, 32, 64, 80, 112, 128, 256};
    NEED_FAST();
    for (uint32_t i = 0; i < ARRAY_LEN(dims); i++)
        for (int j = 0; j < 12; j++) {
            uint32_t v_dim = j % 6 ? dims[i] : between(1, 100);
            attn_case(j % 3 == 2 ? DT_I8 : j % 3 ? DT_F16 : DT_F32, dims[i] - (j % 5 == 4), v_dim,
                      j < 8          ? 90
                      : dims[i] > 80 ? 400
                                     : 1100,
                      j < 4 ? 1 : between(1, 30), false);
        }
}

/* ---- NaN and infinity ---- */
static void attn_bears_bad_numbers(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    for (size_t i = 0; i < 4 * ARRAY_LEN(bad); i++) {
        world w;
        world_make(&w, DT_F32, 16, 1, 16, 16, 300, NULL);
        uint32_t pos[MAX_ROWS], seq[MAX_ROWS];
        op_attn_args a = {.kv = w.kv,
                          .b = {attn_rows(&w, 6, pos, seq), pos, seq, w.tables},
                          .group = 3,
                          .scale = 0.25f,
                          .n_heads = 3,
                          .qs = 48,
                          .os = 48};
        float *q = reals(48 * a.b.n_tokens), *y[2] = {guarded(48 * a.b.n_tokens), guarded(48 * a.b.n_tokens)};
        q[17] = bad[i % 4];
        memcpy(w.pages[0][0] + w.kv.v_off * (i / 4 % 2), &bad[i % 4], 4); /* K or V of position 0 */
        a.q = q, a.out = y[0];
        op_table_ref.attn(&a, 0, 1);
        if (fast) {
            attn_fast(&a, y[1], 2, 300);
            check_equal("attn with bad numbers", y[0], y[1], 48 * (size_t)a.b.n_tokens, a.b.n_tokens, 48, 48);
        }
        release(y[0]), release(y[1]);
        free(q);
        world_free(&w);
    }
}

/* The bits themselves, of the reference: see t_ops.c. */
static void bits_are_pinned(void **state)
{
    (void)state;
    enum { N = 96, T = 3, HEADS = 6 };
    rng = 88172645463325252u;
    float *q = reals(N * T), *sinks = reals(HEADS), y[N * T];
    world k;
    world_make(&k, DT_F16, 16, 2, 16, 16, 300, NULL);
    uint32_t pos[T] = {0, k.len[0] / 2, k.len[0] - 1}, seq[T] = {0};
    op_attn_args a = {.kv = k.kv,
                      .b = {T, pos, seq, k.tables},
                      .q = q,
                      .qs = N,
                      .n_heads = HEADS,
                      .group = 3,
                      .scale = 0.25f,
                      .sinks = sinks,
                      .out = y,
                      .os = N};
    op_table_ref.attn(&a, 0, 1);
    uint64_t h = hash64(y, sizeof y, 0);
    if (h != 0x0313088d81675e88) fail_msg("hash %016llx", (unsigned long long)h);
    world_free(&k);
    rng = 88172645463325252u;
    world_make(&k, DT_I8, 16, 2, 16, 16, 300, NULL);
    uint32_t pos8[T] = {0, k.len[0] / 2, k.len[0] - 1};
    a.kv = k.kv, a.b.pos = pos8, a.b.tables = k.tables;
    op_table_ref.attn(&a, 0, 1);
    h = hash64(y, sizeof y, 0);
    if (h != 0x71eef40bc7f14069) fail_msg("hash of int8 %016llx", (unsigned long long)h);
    world_free(&k);
    free(q), free(sinks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_write_int8_is_equal),
        cmocka_unit_test(kv_write_is_right),      cmocka_unit_test(attn_is_right),   cmocka_unit_test(attn_is_equal),
        cmocka_unit_test(attn_bears_bad_numbers), cmocka_unit_test(bits_are_pinned),
    };
    RUN_OPS_TESTS(tests);
}
