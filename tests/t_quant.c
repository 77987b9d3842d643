/*
 * t_quant.c - fitting of q8 and q4 against the plain rules of Q8_0 and Q4_1, blocks and tiles, values that can not be
 * quantized.
 */
#include "ops_common.h"
#include "quant.h"

static double gauss(void)
{
    double u = ((double)rnd(1 << 24) + 1) / ((1 << 24) + 1), v = (double)rnd(1 << 24) / (1 << 24);
    return sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v);
}

/* The plain rules, values as the block gives them back. */
static void plain_q8(const float *x, float *out)
{
    float amax = 0;
    for (int i = 0; i < 32; i++) amax = fmaxf(amax, fabsf(x[i]));
    float d = f16_to_f32(f32_to_f16(amax / 127)), id = amax > 0 ? 127 / amax : 0;
    for (int i = 0; i < 32; i++) out[i] = d * roundf(x[i] * id);
}
static void plain_q4(const float *x, float *out)
{
    float lo = x[0], hi = x[0];
    for (int i = 0; i < 32; i++) lo = fminf(lo, x[i]), hi = fmaxf(hi, x[i]);
    float d = (hi - lo) / 15, id = d > 0 ? 1 / d : 0, rd = f16_to_f32(f32_to_f16(d)), rm = f16_to_f32(f32_to_f16(lo));
    for (int i = 0; i < 32; i++) out[i] = rd * fminf(15, floorf((x[i] - lo) * id + 0.5f)) + rm;
}

/* Sums of squared errors of both over random groups of one shape; weights of a row share a magnitude. */
static void compare(uint32_t dt, float scale, float mean, int shape, double *ours, double *plain)
{
    enum { GROUPS = 4000 };
    *ours = *plain = 0;
    for (int g = 0; g < GROUPS; g++) {
        float x[32], a[32], b[32];
        uint8_t block[Q8_BLOCK];
        for (int i = 0; i < 32; i++) {
            double v = gauss();
            if (shape == 1) v *= 1 + 3 * (rnd(16) == 0); /* outliers */
            if (shape == 2) v = v * v * v;
            x[i] = mean + scale * (float)v;
        }
        assert_true(quant_fit(dt, x, 32, block));
        quant_block_f32(dt, block, a);
        if (dt == DT_Q8) plain_q8(x, b);
        else plain_q4(x, b);
        for (int i = 0; i < 32; i++) {
            *ours += ((double)a[i] - (double)x[i]) * ((double)a[i] - (double)x[i]);
            *plain += ((double)b[i] - (double)x[i]) * ((double)b[i] - (double)x[i]);
        }
    }
}

static void no_worse_than_the_plain_rules(void **state)
{
    (void)state;
    const float scales[] = {1e-3f, 0.02f, 0.2f, 3.0f};
    for (size_t s = 0; s < ARRAY_LEN(scales); s++)
        for (int shape = 0; shape < 3; shape++)
            for (int shifted = 0; shifted < 2; shifted++) {
                double ours, plain, mean = shifted ? (double)scales[s] * 0.7 : 0;
                compare(DT_Q8, scales[s], (float)mean, shape, &ours, &plain);
                if (!(ours <= plain)) fail_msg("q8, shape %d: %g, plain %g", shape, sqrt(ours), sqrt(plain));
                double q8 = sqrt(ours / plain);
                compare(DT_Q4, scales[s], (float)mean, shape, &ours, &plain);
                if (!(ours <= plain * 0.95)) fail_msg("q4, shape %d: %g, plain %g", shape, sqrt(ours), sqrt(plain));
                if (s == 1) printf("error to that of the plain rule, shape %d, mean %g: q8 %.4f, q4 %.4f\n", shape, mean, q8, sqrt(ours / plain));
            }
}

/* What can be represented comes back as it was. */
static void exact_values_stay(void **state)
{
    (void)state;
    for (int i = 0; i < 2000; i++) {
        float x[32], y[32], d = f16_to_f32((uint16_t)between(0x1400, 0x3c00)), m = -d * (float)rnd(12);
        uint8_t block[Q8_BLOCK], want[Q8_BLOCK];
        uint32_t dt = i % 2 ? DT_Q8 : DT_Q4, n = rnd(4) ? 32 : between(2, 31);
        m = f16_to_f32(f32_to_f16(m));
        memset(want, 0, sizeof want);
        for (uint32_t j = 0; j < n; j++) {
            int q = dt == DT_Q8 ? (int)rnd(255) - 127 : (int)rnd(16);
            if (j == 0) q = dt == DT_Q8 ? 127 : 0;
            if (j == 1) q = dt == DT_Q8 ? -127 : 15;
            x[j] = dt == DT_Q8 ? d * (float)q : d * (float)q + m;
        }
        assert_true(quant_fit(dt, x, n, block));
        quant_block_f32(dt, block, y);
        for (uint32_t j = 0; j < n; j++)
            if (!(fabsf(x[j] - y[j]) <= 1e-6f * d)) fail_msg("%s: %a became %a, d %a", dtype_get(dt)->name, (double)x[j], (double)y[j], (double)d);
        for (uint32_t j = n; dt == DT_Q8 && j < 32; j++) assert_int_equal(block[2 + j], 0);
    }
}

static void hard_groups(void **state)
{
    (void)state;
    uint8_t block[Q8_BLOCK];
    float x[32], y[32];
    for (int t = 0; t < 2; t++) {
        uint32_t dt = t ? DT_Q8 : DT_Q4;
        const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
        for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
            for (int j = 0; j < 32; j++) x[j] = j == 5 ? bad[i] : 1;
            assert_false(quant_fit(dt, x, 32, block));
            assert_false(quant_fit(dt, x + 5, 1, block));
        }
        const float same_value[] = {0, -0.0f, 1, -3.5f, 1e-30f, 1e-42f, 60000};
        for (size_t i = 0; i < ARRAY_LEN(same_value); i++) {
            for (int j = 0; j < 32; j++) x[j] = same_value[i];
            assert_true(quant_fit(dt, x, 32, block));
            quant_block_f32(dt, block, y);
            for (int j = 0; j < 32; j++) check_near("constant group", (double)x[j], y[j], 1e-3 * fabs((double)x[j]) + 3e-8);
        }
        for (int i = 0; i < 3000; i++) { /* no code -128, whatever the values */
            for (int j = 0; j < 32; j++) x[j] = -fabsf(real()) * (rnd(2) ? 1.0f : 1e-7f);
            assert_true(quant_fit(DT_Q8, x, 32, block));
            for (int j = 0; j < 32; j++) assert_true((int8_t)block[2 + j] != -128);
        }
    }
}

/* Tiles as dtype.h states them, written out here element by element. */
static void tiles_are_as_specified(void **state)
{
    (void)state;
    for (int i = 0; i < 40; i++) {
        uint32_t dt = i % 2 ? DT_Q8 : DT_Q4, rows = between(1, 8), n_leaves = between(1, 3);
        uint64_t k[3] = {between(1, 70), between(1, 40), between(1, 33)}, n_k = 0, tiles = 0, bytes;
        for (uint32_t l = 0; l < n_leaves; l++) n_k += k[l], tiles += (k[l] + 31) / 32;
        float *x = reals(n_k * rows);
        assert_true(layout_stride(dt, LAYOUT_TILE8, k, n_leaves, &bytes));
        assert_int_equal(bytes, tiles * quant_tile_bytes(dt));
        uint8_t *dst = must(malloc(bytes)), back[Q8_BLOCK], block[Q8_BLOCK];
        memset(dst, 0xee, bytes);
        assert_true(quant_rows(dt, x, n_k, rows, k, n_leaves, dst));
        const uint8_t *tile = dst;
        uint64_t col = 0;
        for (uint32_t l = 0; l < n_leaves; col += k[l++])
            for (uint64_t at = 0; at < k[l]; at += 32, tile += quant_tile_bytes(dt))
                for (uint32_t r = 0; r < 8; r++) {
                    float y[32] = {0};
                    memset(block, 0, sizeof block);
                    if (r < rows) {
                        assert_true(quant_fit(dt, x + r * n_k + col + at, (uint32_t)MIN(32, k[l] - at), block));
                        quant_block_f32(dt, block, y);
                    }
                    float d = f16_to_f32(rd16(tile + 2 * r)), m = dt == DT_Q4 ? f16_to_f32(rd16(tile + 16 + 2 * r)) : 0;
                    for (uint32_t j = 0; j < 32; j++) {
                        int q = dt == DT_Q8 ? (int8_t)tile[16 + j / 4 * 32 + 4 * r + j % 4]
                                            : tile[32 + j / 8 * 32 + 4 * r + j % 4] >> (j % 8 < 4 ? 0 : 4) & 15;
                        if (!same(d * (float)q + m, y[j] + 0.0f)) fail_msg("tile: row %u, k %u", r, j);
                    }
                    quant_get(dt, tile, r, back);
                    assert_memory_equal(block, back, quant_block_bytes(dt));
                }
        free(x), free(dst);
    }
}

static void q4_0_is_exact(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++)
        for (int sign = 0; sign < 2; sign++) {
            uint8_t src[18], block[Q4_BLOCK];
            uint16_t d = (uint16_t)(h | (uint32_t)sign << 15);
            float y[32];
            memcpy(src, &d, 2);
            for (int i = 0; i < 16; i++) src[2 + i] = (uint8_t)rnd(256);
            bool ok = quant_from_q4_0(src, block);
            assert_int_equal(ok, f16_to_f32((uint16_t)h) * 8 < 65520.0f);
            if (!ok) continue;
            quant_block_f32(DT_Q4, block, y);
            for (int i = 0; i < 32; i++) {
                int q = src[2 + i % 16] >> (i < 16 ? 0 : 4) & 15;
                if (y[i] != f16_to_f32(d) * (float)(q - 8)) fail_msg("Q4_0: d %#x, code %d", d, q);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_worse_than_the_plain_rules), cmocka_unit_test(exact_values_stay), cmocka_unit_test(hard_groups),
        cmocka_unit_test(tiles_are_as_specified),        cmocka_unit_test(q4_0_is_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
