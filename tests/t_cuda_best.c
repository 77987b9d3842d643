/*
 * t_cuda_best.c - draws from what a device tells of a row of logits: the id and the bits of the logprob that sampler_draw gives for
 * the whole row, however many ranks the leaves are cut into; rows that no draw can be made from are noticed.
 */
#include "arch.h"
#include "best_ops.h"
#include "cuda_kit.h"
#include "sampler.h"

enum { ROWS = 3 };

/* Logits of odd rows: equal ones, masked ones, none at all, no numbers. */
static void fill_row(float *x, uint32_t n)
{
    const uint32_t kind = rnd(7);
    for (uint32_t i = 0; i < n; i++) x[i] = kind == 0 ? (float)rnd(3) : 8 * real();
    for (uint32_t i = 0; kind == 1 && i < n; i++)
        if (rnd(4)) x[i] = -INFINITY;
    for (uint32_t i = 0; kind == 2 && i < n; i++) x[i] = rnd(n) ? -INFINITY : x[i];
    if (kind == 3) x[rnd(n)] = rnd(2) ? NAN : INFINITY;
    if (kind == 4) x[rnd(n)] = 90; /* nearly certain */
}

static bool drawable(float x) { return x > -INFINITY && x < INFINITY; }

/* Where the best of x[lo, hi) stands that comes after what is at `last` (hi: before all); hi when there is none. */
static uint32_t next_of(const float *x, uint32_t lo, uint32_t hi, uint32_t last)
{
    uint32_t best = hi;
    for (uint32_t i = lo; i < hi; i++) {
        const bool after = last == hi || x[i] < x[last] || (x[i] == x[last] && i > last);
        if (drawable(x[i]) && after && (best == hi || x[i] > x[best])) best = i;
    }
    return best;
}

/* The record of the leaf x[lo, hi), field by field: a joined draw would not show ids behind the last open one. */
static void check_record(const float *x, uint32_t lo, uint32_t hi, uint32_t k, const best_leaf *r)
{
    const best_id *id = (const best_id *)(const void *)(r + 1);
    uint32_t n_open = 0, n_bad = 0, at = hi;
    for (uint32_t i = lo; i < hi; i++) n_open += drawable(x[i]), n_bad += !(x[i] < INFINITY);
    if (r->n_open != n_open || r->n_bad != n_bad || r->n != MIN(k, n_open))
        fail_msg("leaf %u to %u, k %u: %u open, %u bad, %u ids, want %u, %u, %u", lo, hi, k, r->n_open, r->n_bad, r->n, n_open,
                 n_bad, MIN(k, n_open));
    for (uint32_t i = 0; i < r->n; i++) {
        at = next_of(x, lo, hi, at);
        if (id[i].id != at || id[i].x != x[at]) fail_msg("leaf %u to %u: id %u is %u, want %u", lo, hi, i, id[i].id, at);
        if (i == 0) assert_true(r->max == x[at]);
    }
    if (n_open == 0) assert_true(r->max == -INFINITY);
}

/* Of ROWS rows of n logits, with leaves [0, cut) on one rank and the others on the next. */
static void best_on_device(const float *x, uint32_t n, uint32_t k, uint32_t cut, sampler_best *out)
{
    const arch a = {.vocab_size = n};
    arch_axis axis;
    const best_leaf *leaf[ROWS][BEST_LEAVES];
    uint8_t *got[2];
    arch_axis_of(&a, AXIS_VOCAB, &axis);
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t lo = r ? cut : 0, hi = r ? axis.n_leaves : cut, first = (uint32_t)axis_elem(&axis, axis.leaf[lo]);
        const size_t bytes = ROWS * (hi - lo) * best_bytes(k);
        best_args b = {.x = DEV_COPY(x, (size_t)ROWS * n), .xs = n, .n_rows = ROWS, .n_leaves = hi - lo, .first_id = first, .k = k};
        b.x += first;
        b.y = dev_alloc(bytes);
        for (uint32_t i = 0; i <= hi - lo; i++) b.leaf[i] = (uint32_t)axis_elem(&axis, axis.leaf[lo + i]) - first;
        dev_ok(best_of_leaves(&b, stream), "best");
        dev_ok(device_stream_sync(stream), "best");
        got[r] = must(calloc(1, bytes + 1));
        dev_move(got[r], b.y, bytes, false);
        for (uint32_t t = 0; t < ROWS; t++)
            for (uint32_t i = lo; i < hi; i++) {
                leaf[t][i] = (const best_leaf *)(void *)(got[r] + ((size_t)t * (hi - lo) + i - lo) * best_bytes(k));
                check_record(x + (size_t)t * n, b.leaf[i - lo] + first, b.leaf[i - lo + 1] + first, k, leaf[t][i]);
            }
    }
    for (uint32_t t = 0; t < ROWS; t++) sampler_best_join(leaf[t], axis.n_leaves, k, &out[t]);
    free(got[0]), free(got[1]);
    dev_free_all();
}

static void same_draw(const float *x, uint32_t n, const sampler_best *b, const tess_seq_params *p)
{
    sampler_work w = {.m = &mem_libc};
    for (uint64_t step = 0; step < 4; step++) {
        int32_t want = 0, got = 0;
        float want_lp = 0, got_lp = 0;
        tess_error e;
        tess_status st = sampler_draw(x, n, NULL, 0, 0, p, step, &w, &want, &want_lp, &e);
        assert_int_equal(st == TESS_E_NONFINITE, b->n_bad > 0 || b->n_open == 0);
        if (st == TESS_E_NONFINITE) continue;
        if (st < 0 || sampler_draw_best(b, p, step, &w, &got, &got_lp, &e) < 0) fail_msg("%s", e.text);
        if (want != got || memcmp(&want_lp, &got_lp, sizeof got_lp) != 0)
            fail_msg("%u logits, top-k %d: id %d, logprob %a, want %d, %a", n, p->top_k, got, (double)got_lp, want,
                     (double)want_lp);
    }
    sampler_free(&w);
}

static void draws_are_equal(void **state)
{
    static const uint32_t sizes[] = {1, 5, 32, 64, 65, 272, 513, 1100, 9000}, ks[] = {1, 2, 7, 40, 64};
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 2 * ARRAY_LEN(sizes); i++) {
        const uint32_t n = sizes[i / 2], k = ks[rnd(ARRAY_LEN(ks))];
        float *x = must(malloc((size_t)ROWS * n * sizeof *x));
        sampler_best b[ROWS];
        for (uint32_t t = 0; t < ROWS; t++) fill_row(x + (size_t)t * n, n);
        best_on_device(x, n, k, rnd(2), b);
        for (uint32_t t = 0; t < ROWS; t++)
            for (uint32_t j = 0; j < 6; j++) {
                tess_seq_params p = {.top_p = 1, .repeat_penalty = 1, .seed = j};
                p.temperature = j ? 0.2f + 0.4f * (float)j : 0;
                p.top_k = (int32_t)(j == 3 ? 1 + rnd(k) : k);
                if (j == 2 || j == 4) p.top_p = 0.6f;
                if (j >= 4) p.min_p = 0.05f;
                assert_int_equal(sampler_best_k(&p), j ? p.top_k : 1);
                same_draw(x + (size_t)t * n, n, &b[t], &p);
            }
        free(x);
    }
}

/* Not for the best ids alone. */
static void others_need_all(void **state)
{
    (void)state;
    tess_seq_params p = {.top_p = 1, .repeat_penalty = 1.1f, .repeat_last_n = -1};
    assert_int_equal(sampler_best_k(&p), 0);
    p = (tess_seq_params){.top_p = 0.9f, .repeat_penalty = 1, .temperature = 1};
    assert_int_equal(sampler_best_k(&p), 0);
    p.top_k = BEST_MOST + 1;
    assert_int_equal(sampler_best_k(&p), 0);
    p.top_k = BEST_MOST;
    assert_int_equal(sampler_best_k(&p), BEST_MOST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(draws_are_equal), cmocka_unit_test(others_need_all)};
    RUN_CUDA_TESTS(tests);
}
