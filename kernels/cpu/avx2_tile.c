/*
 * avx2_tile.c - the one inner loop of weights times activations and of both products of attention; avx2.h says what it computes.
 *
 * The body is written once with dtype and shape as constants; each instance is a function of its own, in which all
 * accumulators stay in registers (2 x 6 and 4 x 3 take 12 of 16). Float weights are widened in the loop: two instructions per 8
 * of them, used for n_t tokens.
 */
#include "avx2.h"

INLINE void tile_body(uint32_t dt, uint32_t n_b, uint32_t n_t, const uint8_t *const *w, size_t step, const float *const *x,
                      size_t n_k, float *acc, size_t as, bool more, size_t ahead)
{
    __m256 s[TILE_T * 2], held[TILE_B];
    const uint8_t *p[TILE_B];
    const float *q[TILE_T];
    UNROLL for (uint32_t b = 0; b < n_b; b++) p[b] = w[b];
    UNROLL for (uint32_t t = 0; t < n_t; t++) q[t] = x[t];
    UNROLL for (uint32_t i = 0; i < n_b * n_t; i++) s[i] =
        more ? _mm256_loadu_ps(acc + i % n_t * as + i / n_t * 8) : _mm256_setzero_ps();
    size_t bytes = step * (dt == DT_F32 ? 4 : dt == DT_I8 ? 1 : 2), off = 0;
    uintptr_t next[TILE_B]; /* a cache line holds 2 or 4 steps of a block, so blocks take turns */
    UNROLL for (uint32_t b = 0; b < TILE_B; b++) next[b] = (uintptr_t)p[b % n_b] + ahead;
    for (size_t k = 0; k < n_k; k++, off += bytes) {
        if (dt == DT_F32) _mm_prefetch((const char *)(next[(k & 1) + 2] + off), _MM_HINT_T0);
        _mm_prefetch((const char *)(next[k & (dt == DT_F32 ? 1 : 3)] + off), _MM_HINT_T0);
        if (n_t > n_b) { /* the shorter side is held in registers, the longer one passes through one */
            UNROLL for (uint32_t b = 0; b < n_b; b++) held[b] = widen8(dt, p[b] + off);
            UNROLL for (uint32_t t = 0; t < n_t; t++)
            {
                __m256 x8 = _mm256_broadcast_ss(q[t] + k);
                UNROLL for (uint32_t b = 0; b < n_b; b++) s[b * n_t + t] = _mm256_fmadd_ps(held[b], x8, s[b * n_t + t]);
            }
        } else {
            UNROLL for (uint32_t t = 0; t < n_t; t++) held[t] = _mm256_broadcast_ss(q[t] + k);
            UNROLL for (uint32_t b = 0; b < n_b; b++)
            {
                __m256 w8 = widen8(dt, p[b] + off);
                UNROLL for (uint32_t t = 0; t < n_t; t++) s[b * n_t + t] = _mm256_fmadd_ps(w8, held[t], s[b * n_t + t]);
            }
        }
    }
    UNROLL for (uint32_t i = 0; i < n_b * n_t; i++) _mm256_storeu_ps(acc + i % n_t * as + i / n_t * 8, s[i]);
}

/* The same of int8 K: 4 columns of 8 rows lie together, and a lane takes its byte of them by shifting. */
INLINE __m256 byte_of(__m256i v, int i)
{
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(v, 24 - 8 * i), 24));
}
void avx2_k8_to_f32(const uint8_t *block, uint32_t n_k, float *out)
{
    for (uint32_t k = 0; k < n_k; k += 4, block += 32) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)block);
        UNROLL for (int i = 0; i < 4; i++)
        {
            if (k + (uint32_t)i >= n_k) break;
            _mm256_storeu_ps(out + (k + (uint32_t)i) * 8, byte_of(v, i));
        }
    }
}

INLINE void tile_body_k8(uint32_t n_b, uint32_t n_t, const uint8_t *const *w, const float *const *x, size_t n_k, float *acc,
                         size_t as, size_t ahead)
{
    __m256 s[TILE_T * 2], held[TILE_T];
    const uint8_t *p[TILE_B];
    const float *q[TILE_T];
    UNROLL for (uint32_t b = 0; b < n_b; b++) p[b] = w[b];
    UNROLL for (uint32_t t = 0; t < n_t; t++) q[t] = x[t];
    UNROLL for (uint32_t i = 0; i < n_b * n_t; i++) s[i] = _mm256_setzero_ps();
    for (size_t k = 0, off = 0; k < n_k; k += 4, off += 32) {
        UNROLL for (uint32_t b = 0; b < n_b; b++) _mm_prefetch((const char *)((uintptr_t)p[b] + off + ahead), _MM_HINT_T0);
        UNROLL for (int i = 0; i < 4; i++)
        {
            if (k + (size_t)i >= n_k) break;
            UNROLL for (uint32_t t = 0; t < n_t; t++) held[t] = _mm256_broadcast_ss(q[t] + k + i);
            size_t at = off;
            __asm__ volatile("" : "+r"(at)); /* the codes are loaded anew: kept for all four i, they would push sums out of registers */
            UNROLL for (uint32_t b = 0; b < n_b; b++)
            {
                __m256 w8 = byte_of(_mm256_loadu_si256((const __m256i *)(const void *)(p[b] + at)), i);
                UNROLL for (uint32_t t = 0; t < n_t; t++) s[b * n_t + t] = _mm256_fmadd_ps(w8, held[t], s[b * n_t + t]);
            }
        }
    }
    UNROLL for (uint32_t i = 0; i < n_b * n_t; i++) _mm256_storeu_ps(acc + i % n_t * as + i / n_t * 8, s[i]);
}

#define TILE(name, dt, n_b, n_t) \
    static void name##_##n_b##x##n_t(const uint8_t *const *w, size_t step, const float *const *x, size_t n_k, float *acc, \
                                     size_t as, bool more, size_t ahead) \
    { \
        tile_body(dt, n_b, n_t, w, step, x, n_k, acc, as, more, ahead); \
    }
#define TILES(name, dt) \
    TILE(name, dt, 2, 1) \
    TILE(name, dt, 2, 2) TILE(name, dt, 2, 3) TILE(name, dt, 2, 4) TILE(name, dt, 2, 5) TILE(name, dt, 2, 6) TILE(name, dt, 4, 1) \
        TILE(name, dt, 4, 2) TILE(name, dt, 4, 3)
TILES(f32, DT_F32)
TILES(f16, DT_F16)
TILES(bf16, DT_BF16)
TILES(i8, DT_I8)
#define K8(n_b, n_t) \
    static void k8_##n_b##x##n_t(const uint8_t *const *w, size_t step, const float *const *x, size_t n_k, float *acc, size_t as, \
                                 bool more, size_t ahead) \
    { \
        UNUSED(step), UNUSED(more); \
        tile_body_k8(n_b, n_t, w, x, n_k, acc, as, ahead); \
    }
K8(2, 1) K8(2, 2) K8(2, 3) K8(2, 4) K8(2, 5) K8(2, 6) K8(4, 1) K8(4, 2) K8(4, 3)

#define TWO(name) \
    { \
        name##_2x1, name##_2x2, name##_2x3, name##_2x4, name##_2x5, name##_2x6 \
    }
#define FOUR(name) \
    { \
        name##_4x1, name##_4x2, name##_4x3, 0, 0, 0 \
    }

avx2_tile avx2_tile_get(uint32_t dtype, uint32_t n_b, uint32_t n_t)
{
    static const avx2_tile tiles[4][2][TILE_T] = {
        {TWO(f32), FOUR(f32)}, {TWO(f16), FOUR(f16)}, {TWO(bf16), FOUR(bf16)}, {TWO(i8), FOUR(i8)}};
    return tiles[dtype == DT_I8 ? 3 : dtype - DT_F32][n_b == 4][n_t - 1];
}

avx2_tile avx2_tile_k8(uint32_t n_b, uint32_t n_t)
{
    static const avx2_tile tiles[2][TILE_T] = {TWO(k8), FOUR(k8)};
    return tiles[n_b == 4][n_t - 1];
}
