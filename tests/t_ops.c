/* t_ops.c - kernels: ref.c against double precision, every other table against ref.c bit for bit, nothing written outside. */
#include "../kernels/cpu/cpu.h"
#include "ops_weight.h"

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
            if (want >= 0x1p-126 && want <= 0x1.fffffep127 && !(ulps(y, want) <= 1.0))
                fail_msg("exp(%a): %g ulp", (double)x, ulps(y, want));
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
                check_near("activation", act_double(act, (double)x), y,
                           4e-7 * fabs((double)x) * MAX(1.0, act == ACT_RELU2 ? fabs((double)x) : 1) + 1e-44);
            }
}

/* ---- linear, embed ---- */
/* The groups of x for w, made by both tables and compared; also writes what they stand for to x. */
static op_group *groups_make(const test_weight *w, float *x, size_t xs, uint32_t tokens)
{
    uint32_t leaf[8], n = 0;
    for (uint32_t l = 0; l < w->w.n_leaves; l++) leaf[l] = w->runs[l].n_k, n += (leaf[l] + 31) / 32;
    size_t len = (size_t)n * tokens * sizeof(op_group) / sizeof(float);
    float *y[2] = {guarded(len), guarded(len)};
    op_quant_args a = {.x = x, .xs = xs, .n_tokens = tokens, .n_leaves = w->w.n_leaves, .leaf_k = leaf};
    for (int i = 0; i < 2; i++) {
        a.y = (op_group *)(void *)y[i];
        EACH_THREAD((i && fast ? fast : &op_table_ref)->quant, &a, between(1, 5));
        check_equal("groups", y[i], y[i], len, 1, len, MAX(len, 1u));
    }
    for (size_t i = 0; i < (size_t)n * tokens; i++) {
        const op_group *g = (const op_group *)(void *)y[0] + i, *h = (const op_group *)(void *)y[1] + i;
        if (!same(g->d, h->d) || !same(g->s, h->s) || memcmp(g->q, h->q, 32) != 0) fail_msg("group %zu differs", i);
    }
    for (uint32_t l = 0, g = 0, col = 0; l < w->w.n_leaves; col += leaf[l], g += (leaf[l] + 31) / 32, l++)
        for (uint32_t t = 0; t < tokens; t++)
            for (uint32_t k = 0; k < leaf[l]; k++) {
                const op_group *at = (const op_group *)(void *)y[0] + (size_t)(g + k / 32) * tokens + t;
                float v = at->d * (float)at->q[k % 32], *old = &x[t * xs + col + k];
                if (!(fabsf(v - *old) <= at->d * 0.50001f)) fail_msg("group: %g became %g", (double)*old, (double)v);
                *old = v;
            }
    release(y[1]);
    return (op_group *)(void *)y[0];
}

static float tree_of(const float *all, size_t yl, size_t at, uint32_t lo, uint32_t hi)
{
    uint32_t h = 1;
    if (hi - lo == 1) return all[lo * yl + at];
    while (2 * h < hi - lo) h *= 2;
    return tree_of(all, yl, at, lo, lo + h) + tree_of(all, yl, at, lo + h, hi);
}

/* sum_leaves: the tree over what the operation gave apart, `all`. */
static void check_sum(op_linear_args a, const float *all, uint32_t rows)
{
    size_t n = a.n_tokens * a.ys;
    float *want = guarded(n);
    for (size_t t = 0; t < a.n_tokens; t++)
        for (uint32_t r = 0; r < rows; r++) want[t * a.ys + r] = tree_of(all, a.yl, t * a.ys + r, 0, a.w->n_leaves);
    a.sum_leaves = true;
    for (int i = 0; i < (fast ? 2 : 1); i++) {
        a.y = guarded(n);
        EACH_THREAD((i ? fast : &op_table_ref)->linear, &a, between(1, 3));
        check_equal("sum of leaves", want, a.y, n, a.n_tokens, rows, a.ys);
        release(a.y);
    }
    release(want);
}

/* Rows [row_lo, row_hi) alone: the same values, and nothing beside them. a: an operation whose y is `all`. */
static void check_rows(op_linear_args a, const float *all, size_t lines, uint32_t rows)
{
    size_t n = lines * a.ys;
    for (int i = 0; i < (fast ? 2 : 1); i++) {
        float *y = guarded(n);
        a.row_lo = rnd(rows), a.row_hi = between(a.row_lo + 1, rows);
        a.y = y;
        EACH_THREAD((i ? fast : &op_table_ref)->linear, &a, between(1, 3));
        for (size_t l = 0; l < lines; l++)
            for (size_t r = 0; r < a.ys; r++) {
                bool inside = r >= a.row_lo && r < a.row_hi;
                if (inside ? !same(y[l * a.ys + r], all[l * a.ys + r]) : as_bits(y[l * a.ys + r]) != poison)
                    fail_msg("row %zu of [%u, %u): %a", r, a.row_lo, a.row_hi, (double)y[l * a.ys + r]);
            }
        check_equal("rows", y, y, n, 1, n, n); /* the guards */
        release(y);
    }
}

enum { GROUPS = 1, VERSUS_DOUBLE = 2 };
static void linear_case(uint32_t dtype, uint32_t rows, uint32_t n_k, uint32_t tokens, uint32_t what)
{
    test_weight w;
    uint32_t leaves = rnd(3) ? 1 : between(1, MIN(8u, n_k));
    weight_make(&w, dtype, between(1, MIN(4u, rows)), leaves, rows, n_k);
    size_t xs = n_k + rnd(5), ys = rows + rnd(5), yl = ys * tokens, n = yl * leaves;
    float *x = reals(xs * tokens), *bias = leaves == 1 && rnd(2) ? reals(rows) : NULL, *y[2] = {guarded(n), guarded(n)};
    op_group *groups = what & GROUPS ? groups_make(&w, x, xs, tokens) : NULL;
    op_linear_args a = {.w = &w.w, .bias = bias, .x = groups ? NULL : x, .xs = xs, .n_tokens = tokens, .y = y[0], .ys = ys, .yl = yl, .xq = groups, .xqs = tokens};
    EACH_THREAD(op_table_ref.linear, &a, between(1, 5));
    for (uint32_t l = 0; what & VERSUS_DOUBLE && l < leaves; l++)
        for (uint32_t t = 0; t < tokens; t++)
            for (uint32_t r = 0; r < rows; r++) {
                double s = 0, abs = 1e-3;
                for (uint32_t k = 0; k < w.runs[l].n_k; k++) {
                    double v = weight_at(&w, r, l, k) * (double)x[t * xs + w.runs[l].k0 + k];
                    s += v, abs += fabs(v) + (dtype == DT_Q4 ? 0.4 * fabs((double)x[t * xs + w.runs[l].k0 + k]) : 0);
                }
                if (bias) abs += fabs((double)bias[r]);
                check_near("linear", bias ? s + (double)bias[r] : s, y[0][l * yl + t * ys + r], abs * 3e-6);
            }
    if (fast) {
        a.y = y[1];
        EACH_THREAD(fast->linear, &a, between(1, 5));
        check_equal("linear", y[0], y[1], n, tokens * (size_t)leaves, rows, ys);
    }
    check_equal("linear, ref", y[0], y[0], n, tokens * (size_t)leaves, rows, ys);
    check_rows(a, y[0], tokens * (size_t)leaves, rows);
    if (!bias) check_sum(a, y[0], rows);
    release(y[0]), release(y[1]);
    if (groups) release((float *)(void *)groups);
    free(x), free(bias);
    weight_free(&w);
}

static const struct { uint32_t dtype, what; } kinds[] = {
    {DT_F32, 0}, {DT_F16, 0}, {DT_BF16, 0}, {DT_Q8, GROUPS}, {DT_Q4, GROUPS}, {DT_Q8, 0}, {DT_Q4, 0},
};
static void linear_is_right(void **state)
{
    (void)state;
    for (size_t i = 0; i < 20 * ARRAY_LEN(kinds); i++) {
        size_t k = i % ARRAY_LEN(kinds);
        linear_case(kinds[k].dtype, between(1, 40), between(1, 90), between(1, 9), kinds[k].what | VERSUS_DOUBLE);
    }
}
static void linear_is_equal(void **state)
{
    (void)state;
    for (uint32_t rows = 1; rows <= 70; rows++)
        for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
            linear_case(kinds[k].dtype, rows, between(1, 350) * 2 - 1, between(1, 33), kinds[k].what);
    for (uint32_t tokens = 1; tokens <= 33; tokens++)
        for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
            linear_case(kinds[k].dtype, between(1, 70), between(1, 100), tokens, kinds[k].what);
    linear_case(DT_BF16, 40, 2000, 13, 0); /* K and tokens are cut in blocks */
    linear_case(DT_F16, 24, 9000, 20, 0);
    linear_case(DT_F32, 17, 40, 230, 0);
    for (uint32_t t = DT_Q8; t <= DT_Q4; t++) {
        linear_case(t, 41, 100, 300, GROUPS);
        linear_case(t, 17, 1000, 140, 0);
    }
}

/* Extreme codes and activations: no sum saturates or wraps. */
static void extremes_are_exact(void **state)
{
    (void)state;
    for (uint32_t dt = DT_Q8; dt <= DT_Q4; dt++)
        for (uint32_t i = 0; i < 40; i++) {
            const uint8_t codes[] = {0x80, 0x81, 0x7f, 0xff, 0xf0, 0x0f, 0};
            uint32_t tokens = i % 2 ? between(1, 4) : between(5, 20), what = i / 2;
            test_weight w;
            weight_make(&w, dt, 1, 1, 8, 64);
            uint8_t *d = w.data[0] + w.runs[0].row_skip / 8;
            for (size_t b = 0; b < (w.runs[0].row_skip + 15) / 8 * 2; b++) {
                uint8_t *tile = d + b / 2 * w.runs[0].block_stride + b % 2 * quant_tile_bytes(dt);
                for (uint32_t k = dt == DT_Q8 ? 16 : 32; k < quant_tile_bytes(dt); k++) tile[k] = codes[what < 6 ? what : rnd(7)];
            }
            float *x = must(malloc(64 * tokens * sizeof *x)), y[2][20 * 8];
            for (uint32_t k = 0; k < 64 * tokens; k++) x[k] = what % 3 == 0 || (what % 3 == 1 && k % 2) || (what > 6 && rnd(2)) ? -127.0f : 127.0f;
            op_group *g = groups_make(&w, x, 64, tokens);
            for (int k = 0; k < 2; k++) {
                op_linear_args a = {.w = &w.w, .n_tokens = tokens, .y = y[k], .ys = 8, .xq = g, .xqs = tokens};
                (k && fast ? fast : &op_table_ref)->linear(&a, 0, 1);
            }
            for (uint32_t t = 0; t < tokens; t++)
                for (uint32_t r = 0; r < 8; r++) {
                    double s = 0, abs = 1e-3;
                    for (uint32_t k = 0; k < 64; k++) {
                        double v = weight_at(&w, r, 0, k) * (double)x[t * 64 + k];
                        s += v, abs += fabs(v) + 60;
                    }
                    check_near("extreme", s, y[0][t * 8 + r], abs * 1e-6);
                    if (!same(y[0][t * 8 + r], y[1][t * 8 + r])) fail_msg("extreme: token %u, row %u", t, r);
                }
            release((float *)(void *)g);
            free(x);
            weight_free(&w);
        }
}

/* Groups of values that are hard: zero, subnormal, huge, not finite; what is not finite says so in its own group only. */
static void hard_groups_are_equal(void **state)
{
    (void)state;
    const float hard[] = {0, -0.0f, 1e-40f, 1e-31f, 1e-30f, 3e38f, -3.4e38f, NAN, INFINITY, -INFINITY};
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t n = between(1, 100), leaf[1] = {n}, groups = (n + 31) / 32;
        float *x = reals(n);
        op_group y[2][4];
        if (rnd(3) == 0) for (uint32_t k = 0; k < n; k++) x[k] *= rnd(2) ? 1e-30f : 1e-38f;
        uint32_t at = rnd(n), h = rnd(ARRAY_LEN(hard));
        x[at] = hard[h];
        for (int k = 0; k < 2; k++) {
            op_quant_args a = {.x = x, .xs = n, .n_tokens = 1, .n_leaves = 1, .leaf_k = leaf, .y = y[k]};
            (k && fast ? fast : &op_table_ref)->quant(&a, 0, 1);
        }
        for (uint32_t g = 0; g < groups; g++) {
            if (!same(y[0][g].d, y[1][g].d) || !same(y[0][g].s, y[1][g].s) || memcmp(y[0][g].q, y[1][g].q, 32) != 0) fail_msg("group %u differs", g);
            assert_int_equal(isfinite(y[0][g].d), g != at / 32 || h < 7);
            for (int k = 0; k < 32; k++) assert_true(y[0][g].q[k] != -128);
        }
        free(x);
    }
}

static void embed_is_right(void **state)
{
    (void)state;
    for (int i = 0; i < 60; i++) {
        test_weight w;
        uint32_t rows = between(1, 50), n = between(1, 150), lo = rnd(30), tokens = between(1, 12), threads = between(1, 5);
        weight_make(&w, i % 5 < 3 ? floats[i % 5] : i % 5 == 3 ? DT_Q8 : DT_Q4, between(1, MIN(3u, rows)), 1, rows, n);
        size_t ys = n + rnd(4);
        float *y = guarded(ys * tokens), *want = guarded(ys * tokens), scale = rnd(2) ? 1.0f : 1.7f;
        int32_t ids[12];
        for (uint32_t t = 0; t < tokens; t++) {
            ids[t] = (int32_t)rnd(lo + rows + 20) - 5;
            bool mine = ids[t] >= (int32_t)lo && ids[t] < (int32_t)(lo + rows);
            for (uint32_t c = 0; c < n; c++)
                want[t * ys + c] = mine ? (float)weight_at(&w, (uint32_t)ids[t] - lo, 0, c) * scale : 0.0f;
        }
        op_embed_args a = {
            .w = &w.w, .row_lo = lo, .row_hi = lo + rows, .ids = ids, .n_tokens = tokens, .n = n, .scale = scale, .y = y, .ys = ys};
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

/* One call over all heads by sums in parts of any cut: the same bits from every table and for every cut. */
static void norm_by_sums_is_right(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t dim = between(1, 70), heads = between(1, 9), tokens = between(1, 4), n = dim * heads;
        size_t xs = n + rnd(4), ss = heads + rnd(3);
        float *x = reals(xs * tokens), *w = reals(n), *y[2] = {guarded(xs * tokens), guarded(xs * tokens)};
        float *s = guarded(ss * tokens), *s2 = guarded(ss * tokens);
        op_head_sums_args h = {.x = x, .xs = xs, .n_tokens = tokens, .n_heads = heads, .head_dim = dim, .y = s, .ys = ss};
        EACH_THREAD(op_table_ref.head_sums, &h, between(1, 5));
        h.y = s2;
        EACH_THREAD((fast ? fast : &op_table_ref)->head_sums, &h, between(1, 5));
        check_equal("head_sums", s, s2, ss * tokens, tokens, heads, ss);
        uint32_t cut = rnd(heads + 1), from = rnd(heads), cols = (heads - from) * dim;
        op_sum_part whole = {s, ss, heads}, parts[2] = {{s, ss, cut}, {s + cut, ss, heads - cut}};
        op_norm_sums_args a = {.x = x, .xs = xs, .n_tokens = tokens, .cols = n, .n = n, .parts = &whole, .n_parts = 1, .w = w, .eps = 1e-5f, .y = y[0], .ys = xs};
        EACH_THREAD(op_table_ref.norm_sums, &a, between(1, 5));
        for (uint32_t t = 0; t < tokens; t++) {
            double sum = 0;
            for (uint32_t k = 0; k < n; k++) sum += (double)x[t * xs + k] * (double)x[t * xs + k];
            for (uint32_t k = 0; k < n; k++)
                check_near("norm_sums", (double)x[t * xs + k] / sqrt(sum / n + 1e-5) * (double)w[k], y[0][t * xs + k], 1e-4);
        }
        a.parts = parts, a.n_parts = 2, a.cols = cols, a.x = x + from * dim, a.w = w + from * dim, a.y = y[1] + from * dim;
        EACH_THREAD((fast ? fast : &op_table_ref)->norm_sums, &a, between(1, 5));
        for (uint32_t t = 0; t < tokens; t++)
            for (uint32_t k = from * dim; k < n; k++)
                if (!same(y[0][t * xs + k], y[1][t * xs + k])) fail_msg("norm_sums: column %u differs", k);
        release(y[0]), release(y[1]), release(s), release(s2);
        free(x), free(w);
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
        op_norm_args a = {.kind = i % 3,
                          .x = x,
                          .xs = stride,
                          .n_tokens = tokens,
                          .n = n,
                          .groups = groups,
                          .w = w,
                          .b = rnd(2) ? b : NULL,
                          .eps = 1e-5f,
                          .y = y[0],
                          .ys = stride};
        EACH_THREAD(op_table_ref.norm, &a, between(1, 5));
        for (size_t t = 0; t < tokens; t++)
            for (size_t g = 0; g < groups; g++) {
                norm_double(&a, x + t * stride + g * n, want);
                for (uint32_t k = 0; n > 1 && k < n; k++)
                    check_near("norm", want[k], y[0][t * stride + g * n + k], 2e-5 * (1 + fabs(want[k])));
            }
        if (fast) {
            a.y = y[1];
            bool in_place = rnd(2);
            for (size_t t = 0; in_place && t < tokens; t++)
                memcpy(y[1] + t * stride, x + t * stride, n * (size_t)groups * sizeof *x);
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
        uint32_t dim = between(1, 40) * 2, dims = rnd(2) ? dim : between(0, dim / 2) * 2, heads = between(1, 5),
                 tokens = between(1, 7), half = dims / 2;
        uint32_t kind = i % 2 ? ROPE_HALF : ROPE_PAIRS, pos[7];
        size_t stride = (size_t)dim * heads + rnd(3), n = stride * tokens;
        float *x = reals(n), *cs = reals(20 * (size_t)dims), *y[2] = {guarded(n), guarded(n)};
        for (size_t t = 0; t < tokens; t++) {
            pos[t] = rnd(20);
            for (int k = 0; k < 2; k++) memcpy(y[k] + t * stride, x + t * stride, (size_t)dim * heads * sizeof *x);
        }
        for (int k = 0; k < 2; k++) {
            op_rope_args a = {.kind = kind,
                              .dims = dims,
                              .x = y[k],
                              .xs = stride,
                              .n_tokens = tokens,
                              .n_heads = heads,
                              .head_dim = dim,
                              .pos = pos,
                              .cs = cs};
            EACH_THREAD((k && fast ? fast : &op_table_ref)->rope, &a, between(1, 5));
        }
        for (size_t j = 0; j < (size_t)tokens * heads; j++)
            for (uint32_t d = 0; d < dim; d++) {
                const float *in = x + j / heads * stride + j % heads * dim, *f = cs + (size_t)pos[j / heads] * dims;
                bool second = kind == ROPE_HALF ? d >= half : d % 2;
                uint32_t p = kind == ROPE_HALF ? d % MAX(half, 1u) : d / 2,
                         other = kind == ROPE_HALF ? (second ? d - half : d + half) : d ^ 1;
                double want = d >= dims
                                  ? (double)in[d]
                                  : (double)in[d] * (double)f[2 * p] + (second ? 1 : -1) * (double)in[other] * (double)f[2 * p + 1];
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
            op_act_args act = {.act = i % 5,
                               .g = in[0],
                               .u = i & 8 ? in[1] : NULL,
                               .gs = stride,
                               .us = stride,
                               .n_tokens = tokens,
                               .n = n,
                               .y = y[k],
                               .ys = stride};
            EACH_THREAD(ops->act, &act, threads);
        }
        check_equal("act", y[0], y[1], total, tokens, n, stride);
        for (int k = 0; k < 2; k++) {
            op_reduce_args r = {.parts = (const float *const *)in,
                                .n_leaves = leaves,
                                .ps = stride,
                                .bias = i & 1 ? in[7] : NULL,
                                .residual = i & 2 ? y[k] : NULL,
                                .rs = stride,
                                .scale = i & 4 ? 0.22f : 1.0f,
                                .n_tokens = tokens,
                                .n = n,
                                .y = y[k],
                                .ys = stride};
            EACH_THREAD((k ? fast : &op_table_ref)->reduce, &r, threads);
        }
        check_equal("reduce", y[0], y[1], total, tokens, n, stride);
        for (int k = 0; k < 2; k++) {
            op_logits_args l = {.x = y[k],
                                .xs = stride,
                                .scale = 0.7f,
                                .cap = i % 2 ? 3.0f : 0.0f,
                                .n_tokens = tokens,
                                .n = n,
                                .y = y[k],
                                .ys = stride};
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
            op_norm_args n = {
                .kind = NORM_LAYER, .x = x, .xs = N, .n_tokens = T, .n = N, .groups = 1, .w = w, .eps = 1e-6f, .y = y, .ys = N};
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

/* The bits themselves, of the reference: they may change only on purpose, and not with compiler, options or C library. */
static void bits_are_pinned(void **state)
{
    (void)state;
    enum { N = 96, T = 3 };
    rng = 88172645463325252u;
    float *x = reals(N * T), *w = reals(N), y[N * T], part[N * T];
    const float *parts[3] = {y, x, part};
    test_weight tw;
    memset(y, 0, sizeof y);
    weight_make(&tw, DT_BF16, 1, 1, N, N);
    op_linear_args l = {.w = &tw.w, .x = x, .xs = N, .n_tokens = T, .y = part, .ys = N};
    op_table_ref.linear(&l, 0, 1);
    op_norm_args n = {
        .kind = NORM_RMS, .x = part, .xs = N, .n_tokens = T, .n = N, .groups = 1, .w = w, .eps = 1e-5f, .y = y, .ys = N};
    op_table_ref.norm(&n, 0, 1);
    for (uint32_t act = 0; act <= ACT_RELU2; act++) {
        op_act_args g = {.act = act, .g = y, .u = act % 2 ? x : NULL, .gs = N, .us = N, .n_tokens = T, .n = N, .y = y, .ys = N};
        op_table_ref.act(&g, 0, 1);
        op_reduce_args r = {
            .parts = parts, .n_leaves = 3, .ps = N, .bias = w, .scale = 0.3f, .n_tokens = T, .n = N, .y = y, .ys = N};
        op_table_ref.reduce(&r, 0, 1);
    }
    op_logits_args c = {.x = y, .xs = N, .scale = 0.5f, .cap = 5, .n_tokens = T, .n = N, .y = y, .ys = N};
    op_table_ref.logits(&c, 0, 1);
    uint64_t h = hash64(y, sizeof y, 0);
    if (h != 0xca703a140a48d226) fail_msg("hash %016llx", (unsigned long long)h);
    weight_free(&tw);
    uint64_t hq = 0;
    for (uint32_t dt = DT_Q8; dt <= DT_Q4; dt++) {
        const uint32_t leaf[] = {N};
        op_group g[N / 32 * T];
        rng = 88172645463325252u;
        weight_make(&tw, dt, 1, 1, N, N);
        op_quant_args q = {.x = x, .xs = N, .n_tokens = T, .n_leaves = 1, .leaf_k = leaf, .y = g};
        op_table_ref.quant(&q, 0, 1);
        op_linear_args a = {.w = &tw.w, .n_tokens = T, .y = y, .ys = N, .xq = g, .xqs = T};
        op_table_ref.linear(&a, 0, 1);
        hq = hash64(y, sizeof y, hq);
        weight_free(&tw);
    }
    if (hq != 0x93e177c6f76efd88) fail_msg("hash of q8 and q4 %016llx", (unsigned long long)hq);
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
    const op_table *const others[] = {&op_table_avx2, &op_table_avxvnni, &op_table_avx512, &op_table_avx512vnni};
    for (size_t i = 0; i < ARRAY_LEN(others); i++) { /* a name finds its table or nothing */
        const op_table *t = op_table_get(others[i]->name);
        if (t) assert_ptr_equal(t, others[i]);
    }
    op_kv pg = {.dtype = DT_F16, .page_tokens = 32, .n_kv_heads = 3, .k_dim = 20, .v_dim = 5};
    op_kv_layout(&pg);
    assert_int_equal(pg.v_off, 1280);
    assert_int_equal(pg.head_bytes, 1280 + 320);
}

/* What CPUs say of themselves, and which kernels may run on them. */
static void instruction_sets_are_told_apart(void **state)
{
    (void)state;
    const uint32_t f16c_fma_xsave = 1u << 29 | 1 << 12 | 1 << 27, avx2 = 1 << 5, f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    const struct {
        const char *what;
        cpu_words w;
        uint32_t sets;
    } told[] = {
        {"none", {0}, 0},
        {"AVX2", {f16c_fma_xsave, avx2, 0, 0, 7}, CPU_AVX2},
        {"AVX2 without FMA", {f16c_fma_xsave & ~(1u << 12), avx2, 0, 0, 7}, 0},
        {"AVX2 without F16C", {f16c_fma_xsave & ~(1u << 29), avx2, 0, 0, 7}, 0},
        {"AVX2, registers not kept", {f16c_fma_xsave, avx2, 0, 0, 3}, 0},
        {"no XGETBV", {f16c_fma_xsave & ~(1u << 27), avx2, 0, 0, 7}, 0},
        {"AVX-VNNI", {f16c_fma_xsave, avx2, 0, 1 << 4, 7}, CPU_AVX2 | CPU_AVXVNNI},
        {"AVX-512", {f16c_fma_xsave, avx2 | f_dq_bw_vl, 0, 0, 0xe7}, CPU_AVX2 | CPU_AVX512},
        {"AVX-512 F alone", {f16c_fma_xsave, avx2 | 1 << 16, 1 << 11, 0, 0xe7}, CPU_AVX2},
        {"AVX-512 without VL", {f16c_fma_xsave, avx2 | (f_dq_bw_vl & ~(1u << 31)), 1 << 11, 0, 0xe7}, CPU_AVX2},
        {"AVX-512, registers not kept", {f16c_fma_xsave, avx2 | f_dq_bw_vl, 1 << 11, 0, 7}, CPU_AVX2},
        {"AVX-512 with VNNI", {f16c_fma_xsave, avx2 | f_dq_bw_vl, 1 << 11, 0, 0xe7}, CPU_AVX2 | CPU_AVX512 | CPU_AVX512VNNI},
        {"all", {f16c_fma_xsave, avx2 | f_dq_bw_vl, 1 << 11, 1 << 4, 0xe7}, CPU_AVX2 | CPU_AVXVNNI | CPU_AVX512 | CPU_AVX512VNNI},
    };
    for (size_t i = 0; i < ARRAY_LEN(told); i++)
        if (cpu_sets(&told[i].w) != told[i].sets) fail_msg("%s: %x, want %x", told[i].what, cpu_sets(&told[i].w), told[i].sets);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_found),
        cmocka_unit_test(instruction_sets_are_told_apart),
        cmocka_unit_test(exp_is_right),
        cmocka_unit_test(tanh_is_right),
        cmocka_unit_test(activations_are_right),
        cmocka_unit_test(functions_are_equal),
        cmocka_unit_test(linear_is_right),
        cmocka_unit_test(linear_is_equal),
        cmocka_unit_test(extremes_are_exact),
        cmocka_unit_test(hard_groups_are_equal),
        cmocka_unit_test(embed_is_right),
        cmocka_unit_test(norm_is_right),
        cmocka_unit_test(norm_by_sums_is_right),
        cmocka_unit_test(rope_is_right),
        cmocka_unit_test(elementwise_is_equal),
        cmocka_unit_test(tree_is_right),
        cmocka_unit_test(bad_numbers_stay_in_their_row),
        cmocka_unit_test(bits_are_pinned),
    };
    RUN_OPS_TESTS(tests);
}
