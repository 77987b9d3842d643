/* t_sampler.c - penalties, filters and draws against known values and frequencies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include <math.h>

#include "ops.h"
#include "sampler.h"

static tess_seq_params off(void)
{
    tess_seq_params p = {.struct_size = sizeof p,
                         .temperature = 1,
                         .top_p = 1,
                         .repeat_penalty = 1,
                         .repeat_last_n = -1,
                         .seed = 7};
    return p;
}
static const float five[5] = {-0.916290732f, -1.203972804f, -1.609437912f, -2.659260037f,
                              -3.506557897f}; /* ln .4 .3 .2 .07 .03 */

static uint32_t kept(const float *x, size_t n, const tess_seq_params *p, sampler_work *w)
{
    uint32_t k = 0;
    tess_error err = {0};
    assert_int_equal(sampler_filter(x, n, NULL, 0, 0, p, w, &k, &err), TESS_OK);
    return k;
}
static void check_prefix(const tess_seq_params *p, uint32_t want)
{
    sampler_work w = {.m = &mem_libc};
    assert_int_equal(kept(five, 5, p, &w), want);
    for (uint32_t i = 0; i < want; i++) assert_int_equal(w.idx[i], i);
    sampler_free(&w);
}

static void filters_keep_expected_sets(void **state)
{
    UNUSED(state);
    static const struct {
        float v;
        uint32_t n;
    } tp[] = {{0.69f, 2}, {0.70f, 2}, {0.71f, 3}, {0.0001f, 1}, {0, 1}, {1, 5}};
    static const struct {
        float v;
        uint32_t n;
    } mp[] = {{0.5f, 3}, {0.75f, 2}, {0.76f, 1}, {1, 1}, {0, 5}};
    static const struct {
        int32_t v;
        uint32_t n;
    } tk[] = {{1, 1}, {3, 3}, {100, 5}, {0, 5}, {-1, 5}};
    for (size_t i = 0; i < ARRAY_LEN(tp); i++) {
        tess_seq_params p = off();
        p.top_p = tp[i].v;
        check_prefix(&p, tp[i].n);
    }
    for (size_t i = 0; i < ARRAY_LEN(mp); i++) {
        tess_seq_params p = off();
        p.min_p = mp[i].v;
        check_prefix(&p, mp[i].n);
    }
    for (size_t i = 0; i < ARRAY_LEN(tk); i++) {
        tess_seq_params p = off();
        p.top_k = tk[i].v;
        check_prefix(&p, tk[i].n);
    }
}

static void many_equal_logits(void **state)
{
    UNUSED(state);
    enum { N = 100000 };
    float *x = calloc(N, sizeof *x);
    assert_non_null(x);
    sampler_work w = {.m = &mem_libc};
    tess_seq_params p = off();
    assert_int_equal(kept(x, N, &p, &w), N);
    p.top_p = 0.9999999f;
    uint32_t k = kept(x, N, &p, &w);
    assert_true(k > N - 100 && k <= N);
    p.top_p = 0.5f;
    k = kept(x, N, &p, &w);
    assert_true(k >= N / 2 - 1 && k <= N / 2 + 1);
    for (uint32_t i = 0; i < k; i++) assert_int_equal(w.idx[i], i); /* equals in id order */
    sampler_free(&w);
    free(x);
}

static void temperature_values(void **state)
{
    UNUSED(state);
    static const float a[4] = {0, 80, -80, 79.9999f}, b[3] = {1000, 999, 0};
    sampler_work w = {.m = &mem_libc};
    tess_seq_params p = off();
    p.temperature = 0.5f;
    assert_int_equal(kept(a, 4, &p, &w), 4);
    assert_int_equal(w.idx[0], 1);
    assert_true(fabs((double)w.p[0] - 0.50005) <= 1e-5);
    assert_true(fabs((double)w.p[1] - 0.49995) <= 1e-5);
    assert_true(w.p[2] >= 0 && w.p[2] < 1e-30f && w.p[3] == 0);
    p.temperature = 1;
    assert_int_equal(kept(b, 3, &p, &w), 3);
    assert_true(fabs((double)w.p[0] - 0.7311) <= 1e-4 && fabs((double)w.p[1] - 0.2689) <= 1e-4 && w.p[2] == 0);
    sampler_free(&w);
}

static void cold_is_greedy(void **state)
{
    UNUSED(state);
    static const float x[5] = {1, 3, -INFINITY, 3, 2};
    static const float cold[] = {0, 1e-30f, 1e-45f};
    sampler_work w = {.m = &mem_libc};
    tess_error err;
    for (size_t c = 0; c < ARRAY_LEN(cold); c++)
        for (uint64_t step = 0; step < 200; step++) {
            tess_seq_params p = off();
            int32_t id;
            float lp;
            p.temperature = cold[c];
            assert_int_equal(sampler_draw(x, 5, NULL, 0, 0, &p, step, &w, &id, &lp, &err), TESS_OK);
            if (c == 1) assert_true(id == 1 || id == 3); /* finite division: equals share the mass */
            else assert_int_equal(id, 1);
            assert_true(fabs((double)lp - (3 - log(exp(1) + 2 * exp(3) + exp(2)))) <= 1e-6);
        }
    sampler_free(&w);
}

static void nonfinite_is_refused(void **state)
{
    UNUSED(state);
    const float nan_row[3] = {1, NAN, 2}, inf_row[3] = {1, INFINITY, 2}, masked[2] = {-INFINITY, -INFINITY};
    sampler_work w = {.m = &mem_libc};
    for (int greedy = 0; greedy < 2; greedy++) {
        tess_seq_params p = off();
        tess_error err;
        int32_t id;
        float lp;
        p.temperature = greedy ? 0 : 1;
        assert_int_equal(sampler_draw(nan_row, 3, NULL, 0, 0, &p, 0, &w, &id, &lp, &err), TESS_E_NONFINITE);
        assert_int_equal(sampler_draw(inf_row, 3, NULL, 0, 0, &p, 0, &w, &id, &lp, &err), TESS_E_NONFINITE);
        assert_int_equal(sampler_draw(masked, 2, NULL, 0, 0, &p, 0, &w, &id, &lp, &err), TESS_E_NONFINITE);
        assert_int_equal(sampler_draw(masked, 0, NULL, 0, 0, &p, 0, &w, &id, &lp, &err), TESS_E_ARG);
    }
    sampler_free(&w);
}

static void bad_parameters_are_refused(void **state)
{
    UNUSED(state);
    static const float bad_t[] = {-1, NAN, INFINITY}, bad_unit[] = {-0.1f, 1.1f, NAN},
                       bad_rep[] = {0, -1, NAN, INFINITY};
    tess_error err;
    for (size_t i = 0; i < ARRAY_LEN(bad_t); i++) {
        tess_seq_params p = off();
        p.temperature = bad_t[i];
        assert_int_equal(sampler_check(&p, &err), TESS_E_ARG);
        assert_non_null(strstr(err.text, "temperature"));
    }
    for (size_t i = 0; i < ARRAY_LEN(bad_unit); i++) {
        tess_seq_params p = off(), q = off();
        p.top_p = bad_unit[i];
        q.min_p = bad_unit[i];
        assert_int_equal(sampler_check(&p, &err), TESS_E_ARG);
        assert_int_equal(sampler_check(&q, &err), TESS_E_ARG);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad_rep); i++) {
        tess_seq_params p = off();
        p.repeat_penalty = bad_rep[i];
        assert_int_equal(sampler_check(&p, &err), TESS_E_ARG);
    }
    tess_seq_params p = off();
    p.repeat_last_n = -2;
    assert_int_equal(sampler_check(&p, &err), TESS_E_ARG);
    p = off();
    p.frequency_penalty = NAN;
    assert_int_equal(sampler_check(&p, &err), TESS_E_ARG);
}

/* Probability of id under p, from the filter's output. */
static double prob_of(const float *x, size_t n, const int32_t *h, size_t n_h, size_t n_prompt,
                      const tess_seq_params *p, uint32_t id)
{
    sampler_work w = {.m = &mem_libc};
    uint32_t k = 0;
    double r = -1;
    assert_int_equal(sampler_filter(x, n, h, n_h, n_prompt, p, &w, &k, NULL), TESS_OK);
    for (uint32_t i = 0; i < k; i++)
        if (w.idx[i] == id) r = (double)w.p[i];
    sampler_free(&w);
    return r;
}
static void check_logits(const double *want, const float *x, size_t n, const int32_t *h, size_t n_h,
                         size_t n_prompt, const tess_seq_params *p)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += exp(want[i]);
    for (uint32_t i = 0; i < n; i++)
        assert_true(fabs(prob_of(x, n, h, n_h, n_prompt, p, i) - exp(want[i]) / sum) <= 1e-6);
}

static void penalties(void **state)
{
    UNUSED(state);
    static const float x[4] = {2, -2, 1.9f, 0.5f};
    static const int32_t h[3] = {0, 1, 0};
    tess_seq_params p = off();
    p.repeat_penalty = 1.2f;
    check_logits((const double[]){2 / 1.2, -2.4, 1.9, 0.5}, x, 4, h, 3, 0, &p); /* once each */
    check_logits((const double[]){2 / 1.2, -2.4, 1.9, 0.5}, x, 4, h, 3, 3, &p); /* the prompt counts */
    p.repeat_last_n = 1;
    check_logits((const double[]){2 / 1.2, -2, 1.9, 0.5}, x, 4, h, 3, 0, &p);
    p.repeat_last_n = 0;
    check_logits((const double[]){2, -2, 1.9, 0.5}, x, 4, h, 3, 0, &p);
    p = off();
    p.presence_penalty = 0.5f;
    p.frequency_penalty = 0.25f;
    check_logits((const double[]){2, -2, 1.9, 0.5}, x, 4, h, 3, 3, &p); /* prompt only: nothing */
    check_logits((const double[]){2 - 1.0, -2 - 0.75, 1.9, 0.5}, x, 4, h, 3, 0, &p);
    check_logits((const double[]){2 - 0.75, -2 - 0.75, 1.9, 0.5}, x, 4, h, 3, 1, &p);
    int32_t id;
    sampler_work w = {.m = &mem_libc};
    p.temperature = 0;
    assert_int_equal(sampler_draw(x, 4, h, 3, 0, &p, 0, &w, &id, NULL, NULL), TESS_OK);
    assert_int_equal(id, 2);
    static const int32_t outside[1] = {4};
    tess_error err;
    assert_int_equal(sampler_draw(x, 4, outside, 1, 0, &p, 0, &w, &id, NULL, &err), TESS_E_ARG);
    assert_int_equal(sampler_draw(x, 4, h, 3, 4, &p, 0, &w, &id, NULL, &err), TESS_E_ARG);
    sampler_free(&w);
}

/* Chi-square of 20000 draws against the wanted probabilities; 4 degrees of freedom at most: 18.5 is the 0.999
 * quantile. */
static double chi_square(const tess_seq_params *p, const double *want)
{
    enum { DRAWS = 20000 };
    uint32_t seen[5] = {0};
    sampler_work w = {.m = &mem_libc};
    for (uint64_t step = 0; step < DRAWS; step++) {
        int32_t id = -1;
        assert_int_equal(sampler_draw(five, 5, NULL, 0, 0, p, step, &w, &id, NULL, NULL), TESS_OK);
        assert_true(id >= 0 && id < 5);
        seen[id]++;
    }
    double chi = 0;
    for (int i = 0; i < 5; i++) {
        double e = want[i] * DRAWS;
        if (want[i] == 0) assert_int_equal(seen[i], 0);
        else chi += ((double)seen[i] - e) * ((double)seen[i] - e) / e;
    }
    sampler_free(&w);
    return chi;
}
static void frequencies(void **state)
{
    UNUSED(state);
    tess_seq_params p = off();
    assert_true(chi_square(&p, (const double[]){.4, .3, .2, .07, .03}) < 18.5);
    p.seed = 0;
    assert_true(chi_square(&p, (const double[]){.4, .3, .2, .07, .03}) < 18.5);
    p.top_k = 3;
    assert_true(chi_square(&p, (const double[]){.4 / .9, .3 / .9, .2 / .9, 0, 0}) < 18.5);
    p = off();
    p.top_p = 0.5f;
    assert_true(chi_square(&p, (const double[]){.4 / .7, .3 / .7, 0, 0, 0}) < 18.5);
    p = off();
    p.temperature = 0.5f; /* squares: .16 .09 .04 .0049 .0009 */
    double s = .16 + .09 + .04 + .0049 + .0009;
    assert_true(chi_square(&p, (const double[]){.16 / s, .09 / s, .04 / s, .0049 / s, .0009 / s}) < 18.5);
    assert_false(chi_square(&p, (const double[]){.4, .3, .2, .07, .03}) < 18.5); /* the check can fail */
}

static void draw_depends_on_seed_and_step_only(void **state)
{
    UNUSED(state);
    sampler_work w = {.m = &mem_libc}, v = {.m = &mem_libc};
    tess_seq_params p = off(), q = off();
    int32_t a, b;
    uint32_t differ = 0;
    q.seed = 8;
    for (uint64_t step = 0; step < 64; step++) {
        assert_int_equal(sampler_draw(five, 5, NULL, 0, 0, &p, step, &w, &a, NULL, NULL), TESS_OK);
        assert_int_equal(sampler_draw(five, 5, NULL, 0, 0, &p, step, &v, &b, NULL, NULL), TESS_OK);
        assert_int_equal(a, b);
        assert_int_equal(sampler_draw(five, 5, NULL, 0, 0, &q, step, &v, &b, NULL, NULL), TESS_OK);
        differ += a != b;
    }
    assert_true(differ > 20);
    sampler_free(&w);
    sampler_free(&v);
}

/* Against a plain full sort on random rows with many equal values. */
static int by_logit(const void *a, const void *b)
{
    const float *const *x = a, *const *y = b;
    if (**x != **y) return **x > **y ? -1 : 1;
    return *x < *y ? -1 : *x > *y;
}
static void selection_equals_full_sort(void **state)
{
    UNUSED(state);
    enum { N = 3000 };
    static float x[N];
    static const float *order[N];
    uint32_t rng = 12345;
    sampler_work w = {.m = &mem_libc};
    for (int round = 0; round < 30; round++) {
        for (int i = 0; i < N; i++) {
            rng = rng * 1664525u + 1013904223u;
            x[i] = (rng >> 28) == 0 ? -INFINITY : (float)(rng >> 20) / (round % 2 ? 512.0f : 1e9f);
            order[i] = &x[i];
        }
        qsort(order, N, sizeof *order, by_logit);
        tess_seq_params p = off();
        if (round % 3 == 0) p.top_k = 1 + round * 100;
        if (round % 3 == 1) p.top_p = 0.03f * (float)(round + 1);
        uint32_t k = kept(x, N, &p, &w);
        assert_true(k > 0);
        for (uint32_t i = 0; i < k; i++) assert_int_equal(w.idx[i], (uint32_t)(order[i] - x));
        double sum = 0;
        for (uint32_t i = 0; i < k; i++) sum += (double)w.p[i];
        assert_true(fabs(sum - 1) <= 1e-5);
    }
    sampler_free(&w);
}

/* The sum behind a logprob: the same of every table of operations, and near that of doubles. Masks, equal logits, short rows. */
static void sums_of_exp(void **state)
{
    (void)state;
    enum { N = 3001 };
    static float x[N];
    const op_table *ops = op_table_get(NULL);
    uint32_t r = 1;
    for (uint32_t round = 0; round < 60; round++) {
        const size_t n = round < 20 ? round : N - round;
        const float one = round % 2 ? 0x1p40f : 0x1p34f, scale = (float)(round % 7) * 6;
        for (size_t i = 0; i < n; i++) {
            r = r * 1664525u + 1013904223u;
            x[i] = (float)(r >> 8) * 0x1p-24f * scale;
            if (round % 5 == 4 && r >> 30) x[i] = -INFINITY;
        }
        float max[2], want = -INFINITY;
        const uint64_t ref = op_table_ref.exp_sum(x, n, one, &max[0]), fast = ops->exp_sum(x, n, one, &max[1]);
        double sum = 0;
        for (size_t i = 0; i < n; i++) want = fmaxf(want, x[i]);
        for (size_t i = 0; i < n && want > -INFINITY; i++) sum += exp((double)x[i] - (double)want);
        assert_true(max[0] == want && max[1] == want);
        assert_true(ref == fast);
        assert_true(fabs((double)ref / (double)one - sum) <= 2e-7 * sum + (double)n / (double)one);
    }
}

/* The logprob of the best of n logits is x[best] - ln(sum of exp), by doubles; leaves far below the best one have no part. */
static void logprobs(void **state)
{
    (void)state;
    enum { N = 1500 };
    static float x[N];
    sampler_work w = {.m = &mem_libc};
    tess_seq_params p = off();
    p.temperature = 0;
    for (uint32_t round = 0; round < 8; round++) {
        double sum = 0;
        for (uint32_t i = 0; i < N; i++) x[i] = (float)(i * 2654435761u >> 24) * (round < 4 ? 0.01f : 2.0f);
        for (uint32_t i = 0; round % 4 == 1 && i < 700; i++) x[i] = -INFINITY;
        for (uint32_t i = 0; round % 4 == 2 && i < 700; i++) x[i] -= 1000;
        x[round % 4 == 3 ? 0 : 1400] = 600;
        for (uint32_t i = 0; i < N; i++) sum += exp((double)x[i] - 600);
        int32_t id;
        float logprob;
        tess_error err;
        assert_int_equal(sampler_draw(x, N, NULL, 0, 0, &p, 0, &w, &id, &logprob, &err), TESS_OK);
        assert_int_equal(id, round % 4 == 3 ? 0 : 1400);
        assert_true(fabs((double)logprob + log(sum)) <= 1e-6);
    }
    sampler_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filters_keep_expected_sets),
        cmocka_unit_test(many_equal_logits),
        cmocka_unit_test(temperature_values),
        cmocka_unit_test(cold_is_greedy),
        cmocka_unit_test(nonfinite_is_refused),
        cmocka_unit_test(bad_parameters_are_refused),
        cmocka_unit_test(penalties),
        cmocka_unit_test(frequencies),
        cmocka_unit_test(draw_depends_on_seed_and_step_only),
        cmocka_unit_test(selection_equals_full_sort),
        cmocka_unit_test(sums_of_exp),
        cmocka_unit_test(logprobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
