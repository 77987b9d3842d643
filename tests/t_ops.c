/*
 * t_ops.c - kernels: ref.c against double precision, every other table against ref.c bit for bit, nothing written outside.
 *
 * Outputs lie between guards and have gaps between rows, all filled with one bit pattern that must survive. "Equal" means the
 * same bits, or NaN in both.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "hash.h"
#include "ops.h"
#include "pool.h"

enum { GUARD = 64 };
static const uint32_t poison = 0x7fc0dead;

/* ---- random numbers and buffers ---- */
static uint64_t rng = 88172645463325252u;
static uint32_t rnd(uint32_t n)
{
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
    return (uint32_t)((rng >> 16) % n);
}
static uint32_t between(uint32_t lo, uint32_t hi) { return lo + rnd(hi - lo + 1); }
static float real(void) { return ((float)rnd(1 << 20) / (1 << 19) - 1.0f) * (rnd(8) ? 1.0f : 4.0f); }
static float as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static uint32_t as_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static void *must(void *p)
{
    assert_non_null(p);
    return p;
}
static float *reals(size_t n)
{
    float *p = must(malloc((n + 1) * sizeof *p));
    for (size_t i = 0; i < n; i++) p[i] = real();
    return p;
}
static float *guarded(size_t n)
{
    float *p = must(malloc((n + 2 * GUARD) * sizeof *p));
    for (size_t i = 0; i < n + 2 * GUARD; i++) memcpy(p + i, &poison, 4);
    return p + GUARD;
}
static void release(float *p) { free(p - GUARD); }
static bool same(float a, float b) { return as_bits(a) == as_bits(b) || (isnan(a) && isnan(b)); }
/* rows x cols with a stride are the same; all else, n floats and their guards, is untouched. */
static void check_equal(const char *what, const float *want, const float *got, size_t n, size_t rows, size_t cols, size_t stride)
{
    for (ptrdiff_t i = -GUARD; i < (ptrdiff_t)n + GUARD; i++) {
        bool inside = i >= 0 && (size_t)i < rows * stride && (size_t)i % stride < cols;
        if (inside && !same(want[i], got[i])) fail_msg("%s: element %td: %a, want %a", what, i, (double)got[i], (double)want[i]);
        if (!inside && as_bits(got[i]) != poison) fail_msg("%s: element %td was written", what, i);
    }
}
static void check_near(const char *what, double want, float got, double tol)
{
    if (!(fabs(want - (double)got) <= tol)) fail_msg("%s: %.9g, want %.9g", what, (double)got, want);
}
static const uint32_t floats[] = {DT_F32, DT_F16, DT_BF16};
static const op_table *fast; /* NULL: this CPU has none */

#define EACH_THREAD(fn, args, n) \
    do { \
        uint32_t n_ = (n); /* may be random */ \
        for (uint32_t i_ = 0; i_ < n_; i_++) fn(args, i_, n_); \
    } while (0)

static int skip_without_fast(void **state)
{
    (void)state;
    if (!fast) printf("skip: this CPU has no other table than ref\n");
    return 0;
}
#define NEED_FAST() \
    do { \
        if (!fast) skip(); \
    } while (0)

/* ---- functions ---- */
static double ulps(float got, double want)
{
    int e;
    frexp(want, &e);
    return fabs((double)got - want) / ldexp(1, MAX(e - 24, -149));
}

static void exp_is_right(void **state)
{
    (void)state;
    for (int sign = 0; sign < 2; sign++) {
        float before = 1.0f;
        for (uint32_t u = 0; u < 0x42b20000; u += 487) {
            float x = as_float(u | (uint32_t)sign << 31), y = op_exp(x);
            double want = exp((double)x);
            if (want >= 0x1p-126 && want <= 0x1.fffffep127 && !(ulps(y, want) <= 1.0)) fail_msg("exp(%a): %g ulp", (double)x, ulps(y, want));
            if (sign ? y > before : y < before) fail_msg("exp is not monotone at %a", (double)x);
            before = y;
        }
    }
    assert_true(op_exp(0.0f) == 1.0f && op_exp(-0.0f) == 1.0f);
    assert_true(op_exp(-88.0f) == 0.0f && op_exp(-1e30f) == 0.0f && op_exp(-INFINITY) == 0.0f);
    assert_true(op_exp(-87.336f) > 0.0f && op_exp(88.7228f) < INFINITY);
    assert_true(isinf(op_exp(88.73f)) && isinf(op_exp(1e30f)) && isinf(op_exp(INFINITY)));
    assert_true(isnan(op_exp(NAN)) && isnan(op_exp(as_float(0xffc12345))));
}

static void tanh_is_right(void **state)
{
    (void)state;
    for (uint32_t u = 1; u < 0x41a00000; u += 997) {
        float x = as_float(u), y = op_tanh(x);
        if (!(ulps(y, tanh((double)x)) <= 2.0)) fail_msg("tanh(%a): %g ulp", (double)x, ulps(y, tanh((double)x)));
        if (!same(op_tanh(-x), -y)) fail_msg("tanh is not odd at %a", (double)x);
    }
    assert_true(op_tanh(INFINITY) == 1.0f && op_tanh(-1e30f) == -1.0f && isnan(op_tanh(NAN)));
}

static double act_double(uint32_t act, double x)
{
    double u = sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
    switch (act) {
    case ACT_SILU: return x / (1 + exp(-x));
    case ACT_GELU: return 0.5 * x * erfc(-x / sqrt(2));
    case ACT_GELU_TANH: return x / (1 + exp(-2 * u));
    case ACT_RELU: return x > 0 ? x : 0;
    default: return x > 0 ? x * x : 0;
    }
}

static void activations_are_right(void **state)
{
    (void)state;
    for (uint32_t act = 0; act <= ACT_RELU2; act++)
        for (uint32_t u = 0; u < 0x41600000; u += 3989)
            for (uint32_t sign = 0; sign < 2; sign++) {
                float x = as_float(u | sign << 31), y;
                op_act_args a = {.act = act, .g = &x, .n_tokens = 1, .n = 1, .y = &y};
                op_table_ref.act(&a, 0, 1);
                check_near("activation", act_double(act, (double)x), y, 4e-7 * fabs((double)x) * MAX(1.0, act == ACT_RELU2 ? fabs((double)x) : 1) + 1e-44);
            }
}

/* ---- linear, embed ---- */
typedef struct {
    op_weight w;
    op_run runs[64];
    uint8_t *data[64];
    uint32_t n;
} test_weight;

/* A weight in parts and leaves; lanes outside the runs hold NaN, and so do the gaps between row blocks. */
static void weight_make(test_weight *x, uint32_t dtype, uint32_t parts, uint32_t leaves, uint32_t rows, uint32_t n_k)
{
    size_t es = dtype == DT_F32 ? 4 : 2;
    *x = (test_weight){.w = {dtype, rows, n_k, leaves, parts, NULL}, .n = parts * leaves};
    x->w.runs = x->runs;
    for (uint32_t p = 0; p < parts; p++) {
        uint32_t row0 = rows * p / parts, skip = rnd(8), n_rows = rows * (p + 1) / parts - row0;
        for (uint32_t l = 0; l < leaves; l++) {
            uint32_t k0 = n_k * l / leaves, k = n_k * (l + 1) / leaves - k0, blocks = (skip + n_rows + 7) / 8, gap = rnd(3);
            size_t stride = (size_t)(k + gap) * 8 * es;
            uint8_t *d = must(malloc(blocks * stride + 1));
            float nan = NAN;
            for (size_t i = 0; i < blocks * stride / es; i++) dtype_from_f32(dtype, &nan, d + i * es, 1);
            for (uint32_t r = skip; r < skip + n_rows; r++)
                for (uint32_t i = 0; i < k; i++) {
                    float v = real();
                    dtype_from_f32(dtype, &v, d + r / 8 * stride + ((size_t)i * 8 + r % 8) * es, 1);
                }
            x->data[p * leaves + l] = d;
            x->runs[p * leaves + l] = (op_run){d, stride, skip, row0, n_rows, k0, k};
        }
    }
}
static void weight_free(test_weight *x)
{
    for (uint32_t i = 0; i < x->n; i++) free(x->data[i]);
}
/* Element (row, k) within leaf l. */
static double weight_at(const test_weight *x, uint32_t row, uint32_t l, uint32_t k)
{
    uint32_t p = 0;
    while (row >= x->runs[p * x->w.n_leaves].row0 + x->runs[p * x->w.n_leaves].n_rows) p++;
    const op_run *r = &x->runs[p * x->w.n_leaves + l];
    uint32_t at = row - r->row0 + r->row_skip;
    float v;
    dtype_to_f32(x->w.dtype, r->data + at / 8 * r->block_stride + ((size_t)k * 8 + at % 8) * (x->w.dtype == DT_F32 ? 4 : 2), &v, 1);
    return (double)v;
}

static void linear_case(uint32_t dtype, uint32_t rows, uint32_t n_k, uint32_t tokens, bool versus_double)
{
    test_weight w;
    uint32_t leaves = rnd(3) ? 1 : between(1, MIN(8u, n_k));
    weight_make(&w, dtype, between(1, MIN(4u, rows)), leaves, rows, n_k);
    size_t xs = n_k + rnd(5), ys = rows + rnd(5), yl = ys * tokens, n = yl * leaves;
    float *x = reals(xs * tokens), *bias = leaves == 1 && rnd(2) ? reals(rows) : NULL, *y[2] = {guarded(n), guarded(n)};
    op_linear_args a = {.w = &w.w, .bias = bias, .x = x, .xs = xs, .n_tokens = tokens, .y = y[0], .ys = ys, .yl = yl};
    EACH_THREAD(op_table_ref.linear, &a, between(1, 5));
    for (uint32_t l = 0; versus_double && l < leaves; l++)
        for (uint32_t t = 0; t < tokens; t++)
            for (uint32_t r = 0; r < rows; r++) {
                double s = 0, abs = 1e-3;
                for (uint32_t k = 0; k < w.runs[l].n_k; k++) {
                    double v = weight_at(&w, r, l, k) * (double)x[t * xs + w.runs[l].k0 + k];
                    s += v, abs += fabs(v);
                }
                check_near("linear", bias ? s + (double)bias[r] : s, y[0][l * yl + t * ys + r], abs * 3e-6);
            }
    if (fast) {
        a.y = y[1];
        EACH_THREAD(fast->linear, &a, between(1, 5));
        check_equal("linear", y[0], y[1], n, tokens * (size_t)leaves, rows, ys);
    }
    check_equal("linear, ref", y[0], y[0], n, tokens * (size_t)leaves, rows, ys);
    release(y[0]), release(y[1]);
    free(x), free(bias);
    weight_free(&w);
}

static void linear_is_right(void **state)
{
    (void)state;
    for (int i = 0; i < 60; i++) linear_case(floats[i % 3], between(1, 40), between(1, 90), between(1, 9), true);
}
static void linear_is_equal(void **state)
{
    (void)state;
    for (uint32_t rows = 1; rows <= 70; rows++)
        for (int d = 0; d < 3; d++) linear_case(floats[d], rows, between(1, 350) * 2 - 1, between(1, 33), false);
    for (uint32_t tokens = 1; tokens <= 33; tokens++)
        for (int d = 0; d < 3; d++) linear_case(floats[d], between(1, 70), between(1, 100), tokens, false);
    linear_case(DT_BF16, 40, 2000, 13, false); /* K and tokens are cut in blocks */
    linear_case(DT_F16, 24, 9000, 20, false);
    linear_case(DT_F32, 17, 40, 230, false);
}

static void embed_is_right(void **state)
{
    (void)state;
    for (int i = 0; i < 60; i++) {
        test_weight w;
        uint32_t rows = between(1, 50), n = between(1, 150), lo = rnd(30), tokens = between(1, 12), threads = between(1, 5);
        weight_make(&w, floats[i % 3], between(1, MIN(3u, rows)), 1, rows, n);
        size_t ys = n + rnd(4);
        float *y = guarded(ys * tokens), *want = guarded(ys * tokens), scale = rnd(2) ? 1.0f : 1.7f;
        int32_t ids[12];
        for (uint32_t t = 0; t < tokens; t++) {
            ids[t] = (int32_t)rnd(lo + rows + 20) - 5;
            bool mine = ids[t] >= (int32_t)lo && ids[t] < (int32_t)(lo + rows);
            for (uint32_t c = 0; c < n; c++) want[t * ys + c] = mine ? (float)weight_at(&w, (uint32_t)ids[t] - lo, 0, c) * scale : 0.0f;
        }
        op_embed_args a = {.w = &w.w, .row_lo = lo, .row_hi = lo + rows, .ids = ids, .n_tokens = tokens, .n = n, .scale = scale, .y = y, .ys = ys};
        const op_table *ops = rnd(2) && fast ? fast : &op_table_ref;
        EACH_THREAD(ops->embed, &a, threads);
        check_equal("embed", want, y, ys * tokens, tokens, n, ys);
        release(y), release(want);
        weight_free(&w);
    }
}

/* ---- norm, rope ---- */
static void norm_double(const op_norm_args *a, const float *x, double *y)
{
    double mean = 0, sq = 0;
    if (a->kind == NORM_LAYER)
        for (uint32_t i = 0; i < a->n; i++) mean += (double)x[i] / a->n;
    for (uint32_t i = 0; i < a->n; i++) sq += ((double)x[i] - mean) * ((double)x[i] - mean) / a->n;
    for (uint32_t i = 0; i < a->n; i++) {
        double w = (double)a->w[i] + (a->kind == NORM_RMS_PLUS1);
        y[i] = ((double)x[i] - mean) / sqrt(sq + (double)a->eps) * w + (a->kind == NORM_LAYER && a->b ? (double)a->b[i] : 0);
    }
}

static void norm_is_right(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 400; i++) {
        uint32_t n = i < 70 ? i + 1 : between(1, 700), groups = rnd(2) ? 1 : between(1, 4), tokens = between(1, 6);
        size_t stride = n * (size_t)groups + rnd(4), total = stride * tokens;
        float *x = reals(total), *w = reals(n), *b = reals(n), *y[2] = {guarded(total), guarded(total)};
        double want[700];
        op_norm_args a = {.kind = i % 3, .x = x, .xs = stride, .n_tokens = tokens, .n = n, .groups = groups, .w = w, .b = rnd(2) ? b : NULL, .eps = 1e-5f, .y = y[0], .ys = stride};
        EACH_THREAD(op_table_ref.norm, &a, between(1, 5));
        for (size_t t = 0; t < tokens; t++)
            for (size_t g = 0; g < groups; g++) {
                norm_double(&a, x + t * stride + g * n, want);
                for (uint32_t k = 0; n > 1 && k < n; k++) check_near("norm", want[k], y[0][t * stride + g * n + k], 2e-5 * (1 + fabs(want[k])));
            }
        if (fast) {
            a.y = y[1];
            bool in_place = rnd(2);
            for (size_t t = 0; in_place && t < tokens; t++) memcpy(y[1] + t * stride, x + t * stride, n * (size_t)groups * sizeof *x);
            if (in_place) a.x = y[1];
            EACH_THREAD(fast->norm, &a, between(1, 5));
            check_equal("norm", y[0], y[1], total, tokens, n * (size_t)groups, stride);
        }
        release(y[0]), release(y[1]);
        free(x), free(w), free(b);
    }
}

static void rope_is_right(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t dim = between(1, 40) * 2, dims = rnd(2) ? dim : between(0, dim / 2) * 2, heads = between(1, 5), tokens = between(1, 7), half = dims / 2;
        uint32_t kind = i % 2 ? ROPE_HALF : ROPE_PAIRS, pos[7];
        size_t stride = (size_t)dim * heads + rnd(3), n = stride * tokens;
        float *x = reals(n), *cs = reals(20 * (size_t)dims), *y[2] = {guarded(n), guarded(n)};
        for (size_t t = 0; t < tokens; t++) {
            pos[t] = rnd(20);
            for (int k = 0; k < 2; k++) memcpy(y[k] + t * stride, x + t * stride, (size_t)dim * heads * sizeof *x);
        }
        for (int k = 0; k < 2; k++) {
            op_rope_args a = {.kind = kind, .dims = dims, .x = y[k], .xs = stride, .n_tokens = tokens, .n_heads = heads, .head_dim = dim, .pos = pos, .cs = cs};
            EACH_THREAD((k && fast ? fast : &op_table_ref)->rope, &a, between(1, 5));
        }
        for (size_t j = 0; j < (size_t)tokens * heads; j++)
            for (uint32_t d = 0; d < dim; d++) {
                const float *in = x + j / heads * stride + j % heads * dim, *f = cs + (size_t)pos[j / heads] * dims;
                bool second = kind == ROPE_HALF ? d >= half : d % 2;
                uint32_t p = kind == ROPE_HALF ? d % MAX(half, 1u) : d / 2, other = kind == ROPE_HALF ? (second ? d - half : d + half) : d ^ 1;
                double want = d >= dims ? (double)in[d] : (double)in[d] * (double)f[2 * p] + (second ? 1 : -1) * (double)in[other] * (double)f[2 * p + 1];
                check_near("rope", want, y[0][j / heads * stride + j % heads * dim + d], 4e-6);
            }
        check_equal("rope", y[0], y[1], n, tokens, (size_t)dim * heads, stride);
        release(y[0]), release(y[1]);
        free(x), free(cs);
    }
}

/* ---- elementwise ---- */
static void elementwise_is_equal(void **state)
{
    (void)state;
    NEED_FAST();
    for (uint32_t i = 0; i < 400; i++) {
        uint32_t n = i < 80 ? i + 1 : between(1, 300), tokens = between(1, 5), leaves = between(1, 8), threads = between(1, 5);
        size_t stride = n + rnd(4), total = stride * tokens;
        float *y[2] = {guarded(total), guarded(total)}, *in[8];
        for (int l = 0; l < 8; l++) in[l] = reals(total);
        for (size_t k = 0; k < total; k++) in[0][k] *= 10;
        for (int k = 0; k < 2; k++) {
            const op_table *ops = k ? fast : &op_table_ref;
            op_act_args act = {.act = i % 5, .g = in[0], .u = i & 8 ? in[1] : NULL, .gs = stride, .us = stride, .n_tokens = tokens, .n = n, .y = y[k], .ys = stride};
            EACH_THREAD(ops->act, &act, threads);
        }
        check_equal("act", y[0], y[1], total, tokens, n, stride);
        for (int k = 0; k < 2; k++) {
            op_reduce_args r = {.parts = (const float *const *)in, .n_leaves = leaves, .ps = stride, .bias = i & 1 ? in[7] : NULL, .residual = i & 2 ? y[k] : NULL, .rs = stride,
                                .scale = i & 4 ? 0.22f : 1.0f, .n_tokens = tokens, .n = n, .y = y[k], .ys = stride};
            EACH_THREAD((k ? fast : &op_table_ref)->reduce, &r, threads);
        }
        check_equal("reduce", y[0], y[1], total, tokens, n, stride);
        for (int k = 0; k < 2; k++) {
            op_logits_args l = {.x = y[k], .xs = stride, .scale = 0.7f, .cap = i % 2 ? 3.0f : 0.0f, .n_tokens = tokens, .n = n, .y = y[k], .ys = stride};
            EACH_THREAD((k ? fast : &op_table_ref)->logits, &l, threads);
        }
        check_equal("logits", y[0], y[1], total, tokens, n, stride);
        release(y[0]), release(y[1]);
        for (int l = 0; l < 8; l++) free(in[l]);
    }
}

/* Every float bit pattern class through the vector forms of exp, tanh and the activations. */
static void functions_are_equal(void **state)
{
    (void)state;
    NEED_FAST();
    enum { N = 1 << 14 };
    float *x = reals(N), *y[2] = {guarded(N), guarded(N)};
    for (uint32_t round = 0; round < 24; round++) {
        for (uint32_t i = 0; i < N; i++) x[i] = round % 2 ? as_float(rnd(1u << 16) << 16 | rnd(1u << 16)) : real() * 30.0f;
        for (uint32_t what = 0; what <= ACT_RELU2 + 1; what++) {
            for (int k = 0; k < 2; k++) {
                const op_table *ops = k ? fast : &op_table_ref;
                op_act_args a = {.act = what, .g = x, .n_tokens = 1, .n = N, .y = y[k]};
                op_logits_args l = {.x = x, .scale = 1, .cap = 1, .n_tokens = 1, .n = N, .y = y[k]};
                if (what <= ACT_RELU2) ops->act(&a, 0, 1);
                else ops->logits(&l, 0, 1);
            }
            check_equal("function", y[0], y[1], N, 1, N, N);
        }
    }
    release(y[0]), release(y[1]);
    free(x);
}

static void tree_is_right(void **state)
{
    (void)state;
    float v[5] = {0x1p24f, 1, 1, 1, -0x1p24f}, y; /* 2^24 + 1 is rounded to 2^24 */
    const float *parts[5] = {v, v + 1, v + 2, v + 3, v + 4};
    const float want[6] = {0, 0x1p24f, 0x1p24f, 0x1p24f, 0x1p24f + 2, 2};
    for (uint32_t n = 1; n <= 5; n++)
        for (int k = 0; k < 2; k++) {
            op_reduce_args r = {.parts = parts, .n_leaves = n, .scale = 1, .n_tokens = 1, .n = 1, .y = &y};
            (k && fast ? fast : &op_table_ref)->reduce(&r, 0, 1);
            if (!same(y, want[n])) fail_msg("tree of %u leaves: %a", n, (double)y);
        }
}

/* ---- pages, attention ---- */
enum { MAX_SEQ = 3, MAX_ROWS = 40, MAX_PAGES = 80 };
typedef struct {
    op_kv kv;
    uint32_t n_seq, len[MAX_SEQ]; /* positions written */
    float *k[MAX_SEQ], *v[MAX_SEQ]; /* [pos][head][dim], as the pages hold them */
    uint8_t *pages[MAX_SEQ][MAX_PAGES];
    uint8_t *const *tables[MAX_SEQ];
} world;

static void world_make(world *w, uint32_t dtype, uint32_t page, uint32_t heads, uint32_t k_dim, uint32_t v_dim, uint32_t max_len)
{
    *w = (world){.kv = {.dtype = dtype, .page_tokens = page, .n_kv_heads = heads, .k_dim = k_dim, .v_dim = v_dim, .layer_off = 64 * (uint64_t)rnd(3)}, .n_seq = between(1, MAX_SEQ)};
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
        op_kv_write_args a = {w->kv, {w->len[s], pos, seq, w->tables}, w->k[s], w->v[s], (size_t)heads * k_dim, (size_t)heads * v_dim};
        const op_table *ops = rnd(2) && fast ? fast : &op_table_ref;
        EACH_THREAD(ops->kv_write, &a, between(1, 5));
        free(pos), free(seq);
        for (size_t i = 0; i < nk && dtype == DT_F16; i++) w->k[s][i] = f16_to_f32(f32_to_f16(w->k[s][i]));
        for (size_t i = 0; i < nv && dtype == DT_F16; i++) w->v[s][i] = f16_to_f32(f32_to_f16(w->v[s][i]));
    }
}
static void world_free(world *w)
{
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
        world_make(&w, i % 2 ? DT_F16 : DT_F32, 16u << rnd(3), heads, kd, vd, 100);
        for (uint32_t s = 0; s < w.n_seq; s++)
            for (uint32_t p = 0; p < (w.len[s] + w.kv.page_tokens - 1) / w.kv.page_tokens * w.kv.page_tokens; p++)
                for (uint32_t j = 0; j < heads * (kd + vd); j++) {
                    uint32_t h = j / (kd + vd), d = j % (kd + vd), slot = p % w.kv.page_tokens;
                    const uint8_t *at = w.pages[s][p / w.kv.page_tokens] + w.kv.layer_off + h * w.kv.head_bytes;
                    at += d < kd ? ((size_t)(slot / 8 * kd + d) * 8 + slot % 8) * es : w.kv.v_off + (slot * (size_t)vd + d - kd) * es;
                    float got;
                    dtype_to_f32(w.kv.dtype, at, &got, 1);
                    float want = p >= w.len[s] ? NAN : d < kd ? w.k[s][((size_t)p * heads + h) * kd + d] : w.v[s][((size_t)p * heads + h) * vd + d - kd];
                    if (!same(want, got)) fail_msg("slot %u of head %u, dim %u: %g, want %g", p, h, d, (double)got, (double)want);
                }
        world_free(&w);
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
        for (uint32_t d = 0; d < w->kv.k_dim; d++) dot += (double)a->q[t * a->qs + h * w->kv.k_dim + d] * (double)w->k[sq][((size_t)j * heads + g) * w->kv.k_dim + d];
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

typedef struct { const op_table *ops; op_attn_args a; pool *p; } attn_job;
static void attn_thread(void *arg, uint32_t thread, uint32_t n) { ((attn_job *)arg)->ops->attn(&((attn_job *)arg)->a, thread, n); }
static void attn_barrier(void *user, uint32_t thread) { pool_barrier(user, thread); }

static void attn_fast(const op_attn_args *a, float *out, uint32_t threads, uint32_t max_pos)
{
    attn_job j = {fast, *a, NULL};
    assert_int_equal(pool_open(&mem_libc, threads, &j.p, NULL), TESS_OK);
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
    world_make(&w, dtype, 16u << rnd(3), kv_heads, k_dim, v_dim, max_len);
    op_attn_args a = {.kv = w.kv, .b = {attn_rows(&w, most_rows, pos, seq), pos, seq, w.tables}, .group = group, .kv_head0 = rnd(3), .scale = 1.0f / sqrtf((float)k_dim)};
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
        for (uint32_t d = 0; d < v_dim; d++) check_near("attn", want[d], y[0][j / a.n_heads * a.os + j % a.n_heads * v_dim + d], 3e-5);
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
    for (uint32_t i = 0; i < 60; i++) attn_case(i % 2 ? DT_F16 : DT_F32, between(1, 40), between(1, 40), i % 10 == 0 ? 800 : 60, 5, true);
}
static void attn_is_equal(void **state)
{
    (void)state;
    const uint32_t dims[] = {8, 16, 24, 32, 64, 80, 112, 128, 256};
    NEED_FAST();
    for (uint32_t i = 0; i < ARRAY_LEN(dims); i++)
        for (int j = 0; j < 12; j++) {
            uint32_t v_dim = j % 6 ? dims[i] : between(1, 100);
            attn_case(j % 2 ? DT_F16 : DT_F32, dims[i], v_dim, j < 8 ? 90 : dims[i] > 80 ? 400 : 1100, j < 4 ? 1 : between(1, 30), false);
        }
}

/* ---- NaN and infinity ---- */
static void bad_numbers_stay_in_their_row(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
            const op_table *ops = k && fast ? fast : &op_table_ref;
            enum { N = 40, T = 9 };
            float *x = reals(N * T), w[N], y[N * T];
            for (int c = 0; c < N; c++) x[4 * N + c] = bad[i], w[c] = 1;
            op_norm_args n = {.kind = NORM_LAYER, .x = x, .xs = N, .n_tokens = T, .n = N, .groups = 1, .w = w, .eps = 1e-6f, .y = y, .ys = N};
            ops->norm(&n, 0, 1);
            test_weight tw;
            weight_make(&tw, DT_F16, 1, 1, N, N);
            op_linear_args l = {.w = &tw.w, .x = x, .xs = N, .n_tokens = T, .y = y, .ys = N};
            ops->linear(&l, 0, 1);
            for (int c = 0; c < N * T; c++)
                if (c / N != 4 && !isfinite(y[c])) fail_msg("row %d is not finite", c / N);
            weight_free(&tw);
            free(x);
        }
}

static void attn_bears_bad_numbers(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    for (size_t i = 0; i < 4 * ARRAY_LEN(bad); i++) {
        world w;
        world_make(&w, DT_F32, 16, 1, 16, 16, 300);
        uint32_t pos[MAX_ROWS], seq[MAX_ROWS];
        op_attn_args a = {.kv = w.kv, .b = {attn_rows(&w, 6, pos, seq), pos, seq, w.tables}, .group = 3, .scale = 0.25f, .n_heads = 3, .qs = 48, .os = 48};
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

/* The bits themselves, of the reference: they may change only on purpose, and not with compiler, options or C library. */
static void bits_are_pinned(void **state)
{
    (void)state;
    enum { N = 96, T = 3, HEADS = 6 };
    rng = 88172645463325252u;
    float *x = reals(N * T), *w = reals(N), y[N * T], part[N * T];
    const float *parts[3] = {y, x, part};
    test_weight tw;
    memset(y, 0, sizeof y);
    weight_make(&tw, DT_BF16, 1, 1, N, N);
    op_linear_args l = {.w = &tw.w, .x = x, .xs = N, .n_tokens = T, .y = part, .ys = N};
    op_table_ref.linear(&l, 0, 1);
    op_norm_args n = {.kind = NORM_RMS, .x = part, .xs = N, .n_tokens = T, .n = N, .groups = 1, .w = w, .eps = 1e-5f, .y = y, .ys = N};
    op_table_ref.norm(&n, 0, 1);
    for (uint32_t act = 0; act <= ACT_RELU2; act++) {
        op_act_args g = {.act = act, .g = y, .u = act % 2 ? x : NULL, .gs = N, .us = N, .n_tokens = T, .n = N, .y = y, .ys = N};
        op_table_ref.act(&g, 0, 1);
        op_reduce_args r = {.parts = parts, .n_leaves = 3, .ps = N, .bias = w, .scale = 0.3f, .n_tokens = T, .n = N, .y = y, .ys = N};
        op_table_ref.reduce(&r, 0, 1);
    }
    op_logits_args c = {.x = y, .xs = N, .scale = 0.5f, .cap = 5, .n_tokens = T, .n = N, .y = y, .ys = N};
    op_table_ref.logits(&c, 0, 1);
    uint64_t dense = hash64(y, sizeof y, 0);
    world k;
    world_make(&k, DT_F16, 16, 2, 16, 16, 300);
    uint32_t pos[T] = {0, k.len[0] / 2, k.len[0] - 1}, seq[T] = {0};
    op_attn_args a = {.kv = k.kv, .b = {T, pos, seq, k.tables}, .q = y, .qs = N, .n_heads = HEADS, .group = 3, .scale = 0.25f, .sinks = w, .out = part, .os = N};
    op_table_ref.attn(&a, 0, 1);
    uint64_t attn = hash64(part, sizeof part, 0);
    if (dense != 0xca703a140a48d226 || attn != 0xe5ec8624988bca59)
        fail_msg("hashes %016llx and %016llx", (unsigned long long)dense, (unsigned long long)attn);
    world_free(&k);
    weight_free(&tw);
    free(x), free(w);
}

static void tables_are_found(void **state)
{
    (void)state;
    assert_ptr_equal(op_table_get("ref"), &op_table_ref);
    assert_non_null(op_table_get(NULL));
    assert_ptr_equal(op_table_get("auto"), op_table_get(NULL));
    assert_null(op_table_get("abacus"));
    assert_string_equal(op_table_get("ref")->name, "ref");
    op_kv pg = {.dtype = DT_F16, .page_tokens = 32, .n_kv_heads = 3, .k_dim = 20, .v_dim = 5};
    op_kv_layout(&pg);
    assert_int_equal(pg.v_off, 1280);
    assert_int_equal(pg.head_bytes, 1280 + 320);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_found),
        cmocka_unit_test(exp_is_right),
        cmocka_unit_test(tanh_is_right),
        cmocka_unit_test(activations_are_right),
        cmocka_unit_test(functions_are_equal),
        cmocka_unit_test(linear_is_right),
        cmocka_unit_test(linear_is_equal),
        cmocka_unit_test(embed_is_right),
        cmocka_unit_test(norm_is_right),
        cmocka_unit_test(rope_is_right),
        cmocka_unit_test(elementwise_is_equal),
        cmocka_unit_test(tree_is_right),
        cmocka_unit_test(kv_write_is_right),
        cmocka_unit_test(attn_is_right),
        cmocka_unit_test(attn_is_equal),
        cmocka_unit_test(bad_numbers_stay_in_their_row),
        cmocka_unit_test(attn_bears_bad_numbers),
        cmocka_unit_test(bits_are_pinned),
    };
    fast = op_table_get("auto");
    if (fast == &op_table_ref) fast = NULL;
    return cmocka_run_group_tests(tests, skip_without_fast, NULL);
}
