/*
 * quant.c - see quant.h.
 *
 * Fitting: a number of ranges are tried (all of the values, and ranges cut a little at either end, whose outliers are then
 * clipped). For each the codes are taken by rounding; scale and minimum follow from the codes by weighted least squares;
 * both are rounded to f16; the codes are taken anew for exactly these; and the trial with the smallest error is kept. The
 * plain rule (absmax / 127; minimum and (max - min) / 15) is among the trials, so no group is worse than by it in the
 * error that is minimized. Weights of the errors are the magnitude plus a quarter of the rms: large values count for more.
 *
 * All loops run over 32 elements, the ones behind a short group having weight 0, so that compilers use vectors.
 */
#include "quant.h"

#include <math.h>

typedef struct {
    float x[GROUP_K], w[GROUP_K]; /* values; weights of their errors */
    float lo, hi;
    float err;                    /* of the best trial, whose scale, minimum and codes follow */
    uint16_t d, m;
    int32_t q[GROUP_K];
} fit;

/* False when a value is not finite. */
static bool fit_open(fit *f, const float *x, uint32_t n)
{
    float sum = 0;
    *f = (fit){.lo = x[0], .hi = x[0], .err = INFINITY};
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) return false;
        f->x[i] = x[i];
        f->lo = fminf(f->lo, x[i]);
        f->hi = fmaxf(f->hi, x[i]);
    }
    float amax = fmaxf(f->hi, -f->lo), unit = amax > 0 ? 1 / amax : 1; /* weights are relative: no overflow */
    if (!isfinite(unit)) unit = 1;
    for (uint32_t i = 0; i < n; i++) sum += x[i] * unit * (x[i] * unit);
    float rms = sqrtf(sum / (float)n);
    for (uint32_t i = 0; i < n; i++) f->w[i] = 0.25f * rms + fabsf(x[i] * unit) + 1e-6f;
    return true;
}

/* Nearest whole number in [lo, hi] of each (x - m) * inv. */
static void codes(const float *x, float m, float inv, float lo, float hi, int32_t *q)
{
    for (int i = 0; i < GROUP_K; i++) {
        float v = (x[i] - m) * inv;
        v = v < lo ? lo : v;
        v = v > hi ? hi : v;
        float t = v + 0x1.8p23f; /* rounds to nearest even; the integer stands in the low bits */
        int32_t u;
        memcpy(&u, &t, 4);
        q[i] = u - 0x4b400000;
    }
}

static float inverse(float d)
{
    float inv = 1 / d;
    return d != 0 && isfinite(inv) ? inv : 0;
}

/* Takes scale and minimum, rounded to f16, with the codes that fit them best, when that is better than what f holds. */
static void fit_try(fit *f, float d, float m, float lo, float hi)
{
    uint16_t hd = f32_to_f16(d), hm = f32_to_f16(m);
    float rd = f16_to_f32(hd), rm = f16_to_f32(hm), err = 0;
    int32_t q[GROUP_K];
    codes(f->x, rm, inverse(rd), lo, hi, q);
    float e[GROUP_K];
    for (int i = 0; i < GROUP_K; i++) {
        float r = rd * (float)q[i] + rm - f->x[i];
        e[i] = f->w[i] * r * r;
    }
    for (int i = 0; i < GROUP_K; i++) err += e[i];
    if (!(err < f->err)) return;
    f->err = err;
    f->d = hd;
    f->m = hm;
    memcpy(f->q, q, sizeof q);
}

/* ---- q8 ---- */
static void fit_q8(fit *f)
{
    enum { TRIALS = 8 };
    float amax = fmaxf(f->hi, -f->lo);
    fit_try(f, amax / 127, 0, -127, 127);
    if (!(f->err > 0)) return;
    for (int i = 0; i < TRIALS; i++) {
        float xq = 0, qq = 0;
        int32_t q[GROUP_K];
        codes(f->x, 0, (127.25f - 0.5f * (float)i) * inverse(amax), -127, 127, q);
        for (int j = 0; j < GROUP_K; j++) {
            xq += f->w[j] * f->x[j] * (float)q[j];
            qq += f->w[j] * (float)(q[j] * q[j]);
        }
        if (qq > 0) fit_try(f, xq / qq, 0, -127, 127);
    }
}

/* ---- q4 ---- */
/* The scale and minimum of least error for given codes. */
static void solve_q4(fit *f, const int32_t *q)
{
    float w = 0, wq = 0, wqq = 0, wx = 0, wxq = 0;
    for (int i = 0; i < GROUP_K; i++) {
        float a = f->w[i], c = (float)q[i], x = f->x[i];
        w += a;
        wq += a * c;
        wqq += a * c * c;
        wx += a * x;
        wxq += a * c * x;
    }
    float det = w * wqq - wq * wq;
    if (!(det > 1e-6f * w * wqq)) return; /* all codes alike */
    fit_try(f, (w * wxq - wq * wx) / det, (wqq * wx - wq * wxq) / det, 0, 15);
}

static void fit_q4(fit *f)
{
    enum { CUTS = 5, PASSES = 3 };
    float range = f->hi - f->lo, d = range / 15;
    fit_try(f, d, f->lo, 0, 15);
    if (!(f->err > 0)) return;
    for (int a = 0; a < CUTS; a++)
        for (int b = 0; b < CUTS; b++) {
            float lo = f->lo + 0.035f * (float)a * range, hi = f->hi - 0.035f * (float)b * range;
            int32_t q[GROUP_K];
            codes(f->x, lo, 15 * inverse(hi - lo), 0, 15, q);
            solve_q4(f, q);
        }
    for (int i = 0; i < PASSES; i++) {
        float before = f->err;
        int32_t q[GROUP_K];
        memcpy(q, f->q, sizeof q);
        solve_q4(f, q);
        if (!(f->err < before)) break;
    }
}

bool quant_fit(uint32_t dt, const float *x, uint32_t n, uint8_t *block)
{
    fit f;
    if (!fit_open(&f, x, n)) return false;
    if (dt == DT_Q8) fit_q8(&f);
    else fit_q4(&f);
    if (!isfinite(f.err) || (f.d & 0x7c00) == 0x7c00 || (f.m & 0x7c00) == 0x7c00) return false;
    memcpy(block, &f.d, 2);
    for (uint32_t i = n; i < GROUP_K; i++) f.q[i] = 0;
    if (dt == DT_Q8) {
        for (int i = 0; i < GROUP_K; i++) block[2 + i] = (uint8_t)f.q[i];
        return true;
    }
    memcpy(block + 2, &f.m, 2);
    for (int i = 0; i < GROUP_K / 2; i++) block[4 + i] = (uint8_t)(f.q[i] | f.q[i + GROUP_K / 2] << 4);
    return true;
}

/* ---- blocks and tiles ---- */

void quant_block_f32(uint32_t dt, const uint8_t *block, float out[GROUP_K])
{
    float d = f16_to_f32(rd16(block));
    if (dt == DT_Q8) {
        for (int i = 0; i < GROUP_K; i++) out[i] = d * (float)(int8_t)block[2 + i];
        return;
    }
    float m = f16_to_f32(rd16(block + 2));
    for (int i = 0; i < GROUP_K / 2; i++) {
        out[i] = d * (float)(block[4 + i] & 15) + m;
        out[i + GROUP_K / 2] = d * (float)(block[4 + i] >> 4) + m;
    }
}

void quant_put(uint32_t dt, uint8_t *tile, uint32_t r, const uint8_t *block)
{
    memcpy(tile + 2 * r, block, 2);
    if (dt == DT_Q8) {
        for (uint32_t j = 0; j < 8; j++) memcpy(tile + 16 + 32 * j + 4 * r, block + 2 + 4 * j, 4);
        return;
    }
    uint8_t q[GROUP_K];
    for (int i = 0; i < GROUP_K / 2; i++) q[i] = block[4 + i] & 15, q[i + GROUP_K / 2] = block[4 + i] >> 4;
    memcpy(tile + 16 + 2 * r, block + 2, 2);
    for (uint32_t j = 0; j < 4; j++)
        for (uint32_t i = 0; i < 4; i++) tile[32 + 32 * j + 4 * r + i] = (uint8_t)(q[8 * j + i] | q[8 * j + 4 + i] << 4);
}

void quant_get(uint32_t dt, const uint8_t *tile, uint32_t r, uint8_t *block)
{
    memcpy(block, tile + 2 * r, 2);
    if (dt == DT_Q8) {
        for (uint32_t j = 0; j < 8; j++) memcpy(block + 2 + 4 * j, tile + 16 + 32 * j + 4 * r, 4);
        return;
    }
    uint8_t q[GROUP_K];
    for (uint32_t j = 0; j < 4; j++)
        for (uint32_t i = 0; i < 4; i++) {
            uint8_t b = tile[32 + 32 * j + 4 * r + i];
            q[8 * j + i] = b & 15;
            q[8 * j + 4 + i] = b >> 4;
        }
    memcpy(block + 2, tile + 16 + 2 * r, 2);
    for (int i = 0; i < GROUP_K / 2; i++) block[4 + i] = (uint8_t)(q[i] | q[i + GROUP_K / 2] << 4);
}

bool quant_rows(uint32_t dt, const float *x, size_t stride, uint32_t n_rows, const uint64_t *k, uint32_t n_leaves,
                uint8_t *dst)
{
    uint8_t block[Q8_BLOCK];
    const uint32_t bytes = quant_tile_bytes(dt);
    for (uint32_t l = 0; l < n_leaves; x += k[l++])
        for (uint64_t at = 0; at < k[l]; at += GROUP_K, dst += bytes) {
            if (n_rows < TILE_ROWS) memset(dst, 0, bytes);
            for (uint32_t r = 0; r < n_rows; r++) {
                if (!quant_fit(dt, x + r * stride + at, (uint32_t)MIN((uint64_t)GROUP_K, k[l] - at), block)) return false;
                quant_put(dt, dst, r, block);
            }
        }
    return true;
}

bool quant_from_q4_0(const uint8_t *src, uint8_t *block)
{
    uint16_t m = f32_to_f16(-8 * f16_to_f32(rd16(src)));
    memcpy(block, src, 2);
    memcpy(block + 2, &m, 2);
    memcpy(block + 4, src + 2, GROUP_K / 2);
    return (m & 0x7c00) != 0x7c00;
}

/* Whether f16 holds s to 11 bits. */
static bool fits_f16(float s)
{
    return isfinite(s) && (s == 0 || (fabsf(s) >= 0x1p-14f && fabsf(s) <= 65504.0f) || f16_to_f32(f32_to_f16(s)) == s);
}

bool quant_from_codes(uint32_t dt, float d, float m, const int32_t q[GROUP_K], uint8_t *block)
{
    int32_t lo = dt == DT_Q4 ? 0 : -128, hi = dt == DT_Q4 ? 15 : 127;
    uint16_t hd = f32_to_f16(d), hm = f32_to_f16(m);
    if (!fits_f16(d) || !(fabsf(m) <= 65504.0f)) return false;
    for (int i = 0; i < GROUP_K; i++)
        if (q[i] < lo || q[i] > hi) return false;
    memcpy(block, &hd, 2);
    if (dt == DT_Q8) {
        for (int i = 0; i < GROUP_K; i++) block[2 + i] = (uint8_t)q[i];
        return true;
    }
    memcpy(block + 2, &hm, 2);
    for (int i = 0; i < GROUP_K / 2; i++) block[4 + i] = (uint8_t)(q[i] | q[i + GROUP_K / 2] << 4);
    return true;
}
