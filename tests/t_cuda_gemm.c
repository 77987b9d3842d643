/*
 * t_cuda_gemm.c - linear operations of large prompts on tensor cores (op_gemm_args): near the exact ones, whatever the shape. t_cuda_prompt.c has
 * whole models.
 */
#include <math.h>

#include "cuda_kit.h"

static float as_bf16(float v)
{
    uint16_t h;
    dtype_from_f32(DT_BF16, &v, &h, 1);
    dtype_to_f32(DT_BF16, &h, &v, 1);
    return v;
}

/* One product: shape, and on the host what goes into it. */
typedef struct {
    uint32_t dtype, rows, n_k, tokens;
    test_weight w;
    dev_weight d;
    float *x, *bias;
    size_t xs, ys;
} product;

static product product_make(uint32_t dtype, uint32_t parts, uint32_t leaves, uint32_t rows, uint32_t n_k, uint32_t tokens)
{
    product p = {.dtype = dtype, .rows = rows, .n_k = n_k, .tokens = tokens, .xs = n_k + rnd(5), .ys = rows + rnd(5)};
    weight_make(&p.w, dtype, parts, leaves, rows, n_k);
    p.x = reals(p.xs * tokens);
    p.bias = rnd(2) ? reals(rows) : NULL;
    return p;
}
static void product_free(product *p)
{
    weight_free(&p->w);
    free(p->x), free(p->bias);
    dev_free_all();
}

static bool wide; /* by wgmma; every test runs both ways where that is */
#define EACH_WAY() for (int way_ = 0; wide = way_ == 1, way_ <= op_cuda_gemm_wide(); way_++)

/* Tokens [first, first + n) on the device; gives the output between its guards. */
static float *product_run(product *p, uint32_t first, uint32_t n)
{
    float *y = guarded(p->ys * n), *dev;
    dev_weight_make(&p->d, &p->w);
    p->d.w.runs = p->d.runs;
    dev = dev_guarded(y, p->ys * n);
    op_gemm_args a = {.w = &p->d.w, .bias = DEV_COPY(p->bias, p->rows), .x = DEV_COPY(p->x + first * p->xs, (n - 1) * p->xs + p->n_k), .xs = p->xs, .n_tokens = n, .y = dev, .ys = p->ys, .wide = wide};
    a.scratch = dev_alloc(op_cuda_gemm_scratch(&p->d.w, n));
    ON_DEVICE(gemm, &a);
    dev_fetch(y, dev, p->ys * n);
    return y;
}

/* Sums of products in double: of the rounded numbers, of the numbers themselves, of magnitudes. */
typedef struct { double rounded, exact, size; } sums;
static sums product_at(const product *p, uint32_t row, uint32_t t)
{
    sums s = {0, 0, 0};
    const float *x = p->x + t * p->xs;
    for (uint32_t l = 0, k = 0; l < p->w.w.n_leaves; l++)
        for (uint32_t i = 0; i < p->w.runs[l].n_k; i++, k++) {
            const float w = (float)weight_at(&p->w, row, l, i);
            s.rounded += (double)as_bf16(w) * (double)as_bf16(x[k]);
            s.exact += (double)w * (double)x[k];
            s.size += fabs((double)w * (double)x[k]);
        }
    const double bias = p->bias ? (double)p->bias[row] : 0;
    return (sums){s.rounded + bias, s.exact + bias, s.size + fabs(bias)};
}

/* All of few, some of many: near the sum of rounded products as f32 sums are, and near the exact one as cuda_ops.h says. */
static void product_check(const product *p, const float *y)
{
    check_equal("gemm", y, y, p->ys * p->tokens, p->tokens, p->rows, p->ys); /* the guards */
    const uint32_t n = p->rows * p->tokens, tries = MIN(n, 2000u);
    for (uint32_t i = 0; i < tries; i++) {
        const uint32_t at = tries == n ? i : rnd(n), t = at / p->rows, row = at % p->rows;
        const double got = (double)y[t * p->ys + row];
        const sums s = product_at(p, row, t);
        if (!(fabs(got - s.rounded) <= 0x1p-17 * s.size + 1e-30) || !(fabs(got - s.exact) <= 0.0042 * s.size + 1e-30))
            fail_msg("type %u, %u x %u, %u tokens: token %u, row %u: %g, want %g (exact %g)", p->dtype, p->rows, p->n_k, p->tokens, t,
                     row, got, s.rounded, s.exact);
    }
}

static const uint32_t types[] = {DT_BF16, DT_F16, DT_Q8, DT_Q4};

static void gemm_case(uint32_t dtype, uint32_t parts, uint32_t leaves, uint32_t rows, uint32_t n_k, uint32_t tokens)
{
    product p = product_make(dtype, parts, leaves, rows, n_k, tokens);
    float *y = product_run(&p, 0, tokens);
    product_check(&p, y);
    release(y);
    product_free(&p);
}

static void gemm_is_near(void **state)
{
    (void)state;
    NEED_DEVICE();
    static const uint32_t tokens[] = {1, 7, 8, 9, 16, 63, 64, 65, 127, 128, 129, 300};
    for (uint32_t i = 0; i < 4 * ARRAY_LEN(tokens); i++) {
        wide = op_cuda_gemm_wide() && rnd(2);
        const uint32_t rows = between(1, 200), n_k = between(1, i % 4 ? 150 : 400);
        gemm_case(types[i % 4], between(1, MIN(6u, rows)), rnd(2) ? 1 : between(1, MIN(8u, n_k)), rows, n_k, tokens[i / 4]);
    }
    EACH_WAY() for (size_t k = 0; k < ARRAY_LEN(types); k++) {
        gemm_case(types[k], 1, 1, 257, 1300, 129); /* more pieces of K than stages, rows and tokens in tiles */
        gemm_case(types[k], 6, 8, 90, 8 * 33, 40); /* more runs than one launch takes */
        gemm_case(types[k], 1, 1, 8, 32, 128);
        gemm_case(types[k], 1, 2, 40, 128, 20); /* leaves that end where a stage does */
        gemm_case(types[k], 3, 1, 375, 40, 9); /* some parts need a block more than others */
        gemm_case(types[k], 2, 3, 560, 200, 20);
        gemm_case(types[k], 1, 2, 263, 700, 330);
    }
}

/* A token in other company, and after a call that left x where it is, has the same bits. */
static void gemm_of_a_row(void **state)
{
    (void)state;
    NEED_DEVICE();
    EACH_WAY() for (uint32_t i = 0; i < 8; i++) {
        product p = product_make(types[i % 4], 2, i % 3 + 1, between(1, 150), between(64, 300), 140);
        float *all = product_run(&p, 0, 140);
        const uint32_t first = rnd(130), n = between(1, 10);
        float *some = product_run(&p, first, n);
        for (uint32_t t = 0; t < n; t++)
            for (uint32_t r = 0; r < p.rows; r++) assert_true(same(all[(first + t) * p.ys + r], some[t * p.ys + r]));
        release(all), release(some);
        product_free(&p);
    }
}

static void x_is_kept(void **state)
{
    (void)state;
    NEED_DEVICE();
    product p = product_make(DT_Q8, 1, 1, 40, 100, 30), q = product_make(DT_BF16, 1, 1, 24, 100, 30);
    float *y = guarded(q.ys * 30), *dev = dev_guarded(y, q.ys * 30), *z = dev_alloc(p.ys * 30 * sizeof *z);
    dev_weight_make(&p.d, &p.w), dev_weight_make(&q.d, &q.w);
    memcpy(q.x, p.x, MIN(p.xs, q.xs) * sizeof *p.x);
    for (uint32_t t = 0; t < 30; t++) memcpy(q.x + t * q.xs, p.x + t * p.xs, 100 * sizeof *p.x);
    op_gemm_args a = {.w = &p.d.w, .x = DEV_COPY(p.x, 29 * p.xs + 100), .xs = p.xs, .n_tokens = 30, .y = z, .ys = p.ys};
    a.scratch = dev_alloc(op_cuda_gemm_scratch(&p.d.w, 30));
    ON_DEVICE(gemm, &a);
    a.w = &q.d.w, a.bias = DEV_COPY(q.bias, q.rows), a.x = NULL, a.y = dev, a.ys = q.ys, a.x_ready = true;
    ON_DEVICE(gemm, &a);
    dev_fetch(y, dev, q.ys * 30);
    product_check(&q, y);
    release(y);
    product_free(&p), product_free(&q);
}

/* What is not a number stays in its row of the output; nothing to do is no failure; what can not be done is one. */
static void gemm_edges(void **state)
{
    (void)state;
    NEED_DEVICE();
    EACH_WAY() {
        product p = product_make(DT_BF16, 1, 2, 20, 90, 17);
        p.x[3 * p.xs + 5] = NAN;
        float *y = product_run(&p, 0, 17);
        for (uint32_t t = 0; t < 17; t++)
            for (uint32_t r = 0; r < 20; r++) assert_int_equal(isnan(y[t * p.ys + r]) != 0, t == 3);
        release(y);
        product_free(&p);
    }
    op_run run = {.data = dev_alloc(4096), .block_stride = 512, .n_rows = 8, .n_k = 32};
    op_weight w = {.dtype = DT_BF16, .n_rows = 8, .n_k = 32, .n_leaves = 1, .n_parts = 1, .runs = &run};
    op_gemm_args a = {.w = &w};
    dev_ok(cuda->gemm(&a, stream), "gemm of no tokens");
    a.n_tokens = 1;
    w.dtype = DT_F32;
    assert_int_not_equal(cuda->gemm(&a, stream), 0);
    assert_true(op_cuda_gemm_from(DT_F32) == UINT32_MAX && op_cuda_gemm_from(DT_Q8) == op_cuda_gemm_from(DT_Q4));
    w.dtype = DT_BF16, run.data += 8;
    assert_int_not_equal(cuda->gemm(&a, stream), 0);
    dev_free_all();
}

/* What fills the last stage of a leaf up is no factor of anything: an infinity at the leaf's first column, or behind its end, stays one. */
static void gemm_of_infinities(void **state)
{
    (void)state;
    NEED_DEVICE();
    const float infinity = INFINITY;
    EACH_WAY() {
        product p = product_make(DT_BF16, 1, 2, 20, 90, 17);
        const op_run *leaf = &p.w.runs[0];
        const uint32_t lane = leaf->row_skip + 4; /* of row 4 */
        dtype_from_f32(DT_BF16, &infinity, p.w.data[0] + lane / 8 * leaf->block_stride + lane % 8 * 2, 1);
        p.x[5 * p.xs + leaf->n_k] = infinity;
        float *y = product_run(&p, 0, 17);
        for (uint32_t t = 0; t < 17; t++)
            for (uint32_t r = 0; r < 20; r++)
                if (t != 5 || r != 4) assert_int_equal(isinf(y[t * p.ys + r]) != 0, t == 5 || r == 4);
        release(y);
        product_free(&p);
    }
}

int main(void)
{
    setenv("CUEMU_CAPABILITY", "90", 1); /* virtual devices have wgmma */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm_is_near),
        cmocka_unit_test(gemm_of_a_row),
        cmocka_unit_test(x_is_kept),
        cmocka_unit_test(gemm_edges),
        cmocka_unit_test(gemm_of_infinities),
    };
    RUN_CUDA_TESTS(tests);
}
