/*
 * avx2_tile.c - the one inner loop of weights times activations and of both products of attention; avx2.h says what it computes.
 *
 * The body is written once with dtype and shape as constants; each instance is a function of its own, in which all
 * accumulators stay in registers (2 x 6 and 4 x 3 vectors of 8 lanes take 12 of 16; 4 x 6 in vectors of 16 lanes take 12 of 32).
 * Float weights are widened in the loop: two instructions per 8 of them, used for n_t tokens.
 */
#include "avx2.h"

/* 8 elements of each of VB blocks. */
INLINE vf widen(uint32_t dt, const uint8_t *const *p, size_t off)
{
#ifdef ISA_AVX512
    const uint8_t *a = p[0] + off, *b = p[1] + off;
    if (dt == DT_F32) return v_as_float(v_blocks((const __m256i[]){load256(a), load256(b)}));
    if (dt == DT_I8) return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_unpacklo_epi64(load64(a), load64(b))));
    __m256i h = _mm256_inserti128_si256(_mm256_castsi128_si256(load128(a)), load128(b), 1);
    if (dt == DT_F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
#else
    return widen8(dt, p[0] + off);
#endif
}

INLINE void tile_body(uint32_t dt, uint32_t n_b, uint32_t n_t, const uint8_t *const *w, size_t step, const float *const *x,
                      size_t n_k, float *acc, size_t as, bool more, size_t ahead)
{
    const uint32_t n_v = n_b / VB;
    vf s[TILE_T * 2], held[TILE_B];
    const uint8_t *p[TILE_B];
    const float *q[TILE_T];
    UNROLL for (uint32_t b = 0; b < n_b; b++) p[b] = w[b];
    UNROLL for (uint32_t t = 0; t < n_t; t++) q[t] = x[t];
    UNROLL for (uint32_t i = 0; i < n_v * n_t; i++) s[i] =
        more ? V(loadu_ps)(acc + i % n_t * as + i / n_t * VB * 8) : V(setzero_ps)();
    size_t bytes = step * (dt == DT_F32 ? 4 : dt == DT_I8 ? 1 : 2), off = 0;
    uintptr_t next[TILE_B]; /* a cache line holds 2 or 4 steps of a block, so blocks take turns */
    UNROLL for (uint32_t b = 0; b < TILE_B; b++) next[b] = (uintptr_t)p[b % n_b] + ahead;
    for (size_t k = 0; k < n_k; k++, off += bytes) {
        if (dt == DT_F32) _mm_prefetch((const char *)(next[(k & 1) + 2] + off), _MM_HINT_T0);
        _mm_prefetch((const char *)(next[k & (dt == DT_F32 ? 1 : 3)] + off), _MM_HINT_T0);
        if (n_t > n_v) { /* the shorter side is held in registers, the longer one passes through one */
            UNROLL for (uint32_t v = 0; v < n_v; v++) held[v] = widen(dt, p + v * VB, off);
            UNROLL for (uint32_t t = 0; t < n_t; t++)
            {
                vf xs = V(set1_ps)(q[t][k]);
                UNROLL for (uint32_t v = 0; v < n_v; v++) s[v * n_t + t] = V(fmadd_ps)(held[v], xs, s[v * n_t + t]);
            }
        } else {
            UNROLL for (uint32_t t = 0; t < n_t; t++) held[t] = V(set1_ps)(q[t][k]);
            UNROLL for (uint32_t v = 0; v < n_v; v++)
            {
                vf ws = widen(dt, p + v * VB, off);
                UNROLL for (uint32_t t = 0; t < n_t; t++) s[v * n_t + t] = V(fmadd_ps)(ws, held[t], s[v * n_t + t]);
            }
        }
    }
    UNROLL for (uint32_t i = 0; i < n_v * n_t; i++) V(storeu_ps)(acc + i % n_t * as + i / n_t * VB * 8, s[i]);
}

/* The same of int8 K: 4 columns of 8 rows lie together, and a lane takes its byte of them by shifting. */
INLINE vf byte_of(vi v, int i)
{
    switch (i) { /* shifts take constants alone */
    case 0: v = V(slli_epi32)(v, 24); break;
    case 1: v = V(slli_epi32)(v, 16); break;
    case 2: v = V(slli_epi32)(v, 8); break;
    default: break; /* 3 */
    }
    return V(cvtepi32_ps)(V(srai_epi32)(v, 24));
}
#ifndef ISA_AVX512 /* one for all */
void avx2_k8_to_f32(const uint8_t *block, uint32_t n_k, float *out)
{
    for (uint32_t k = 0; k < n_k; k += 4, block += 32) {
        __m256i v = load256(block);
        UNROLL for (int i = 0; i < 4; i++)
        {
            if (k + (uint32_t)i >= n_k) break;
            _mm256_storeu_ps(out + (k + (uint32_t)i) * 8, byte_of(v, i));
        }
    }
}
#endif

INLINE vi codes_of(const uint8_t *const *p, size_t off)
{
    __m256i codes[VB];
    UNROLL for (uint32_t b = 0; b < VB; b++) codes[b] = load256(p[b] + off);
    return v_blocks(codes);
}
INLINE void tile_body_k8(uint32_t n_b, uint32_t n_t, const uint8_t *const *w, const float *const *x, size_t n_k, float *acc,
                         size_t as, size_t ahead)
{
    const uint32_t n_v = n_b / VB;
    vf s[TILE_T * 2], held[TILE_T];
    const uint8_t *p[TILE_B];
    const float *q[TILE_T];
    UNROLL for (uint32_t b = 0; b < n_b; b++) p[b] = w[b];
    UNROLL for (uint32_t t = 0; t < n_t; t++) q[t] = x[t];
    UNROLL for (uint32_t i = 0; i < n_v * n_t; i++) s[i] = V(setzero_ps)();
    for (size_t k = 0, off = 0; k < n_k; k += 4, off += 32) {
        UNROLL for (uint32_t b = 0; b < n_b; b++) _mm_prefetch((const char *)((uintptr_t)p[b] + off + ahead), _MM_HINT_T0);
        vi four[TILE_B];
        UNROLL for (uint32_t v = 0; v < n_v; v++) four[v] = codes_of(p + v * VB, off);
        UNROLL for (int i = 0; i < 4; i++)
        {
            if (k + (size_t)i >= n_k) break;
            UNROLL for (uint32_t t = 0; t < n_t; t++) held[t] = V(set1_ps)(q[t][k + (size_t)i]);
            size_t at = off;
            /* 16 registers: codes are loaded anew, as sums would leave registers if they were kept for all four i */
            if (VB == 1) __asm__ volatile("" : "+r"(at));
            UNROLL for (uint32_t v = 0; v < n_v; v++)
            {
                vf ws = byte_of(VB == 1 ? codes_of(p + v * VB, at) : four[v], i);
                UNROLL for (uint32_t t = 0; t < n_t; t++) s[v * n_t + t] = V(fmadd_ps)(ws, held[t], s[v * n_t + t]);
            }
        }
    }
    UNROLL for (uint32_t i = 0; i < n_v * n_t; i++) V(storeu_ps)(acc + i % n_t * as + i / n_t * VB * 8, s[i]);
}

#define TILE(name, dt, n_b, n_t) \
    static void name##_##n_b##x##n_t(const uint8_t *const *w, size_t step, const float *const *x, size_t n_k, float *acc, \
                                     size_t as, bool more, size_t ahead) \
    { \
        tile_body(dt, n_b, n_t, w, step, x, n_k, acc, as, more, ahead); \
    }
#ifdef ISA_AVX512
#define TILES_WIDE(name, dt) TILE(name, dt, 4, 4) TILE(name, dt, 4, 5) TILE(name, dt, 4, 6)
#else
#define TILES_WIDE(name, dt)
#endif
#define TILES(name, dt) \
    TILE(name, dt, 2, 1) \
    TILE(name, dt, 2, 2) TILE(name, dt, 2, 3) TILE(name, dt, 2, 4) TILE(name, dt, 2, 5) TILE(name, dt, 2, 6) TILE(name, dt, 4, 1) \
        TILE(name, dt, 4, 2) TILE(name, dt, 4, 3) TILES_WIDE(name, dt)
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
#ifdef ISA_AVX512
K8(4, 4) K8(4, 5) K8(4, 6)
#define FOUR(name) \
    { \
        name##_4x1, name##_4x2, name##_4x3, name##_4x4, name##_4x5, name##_4x6 \
    }
#else
#define FOUR(name) \
    { \
        name##_4x1, name##_4x2, name##_4x3, 0, 0, 0 \
    }
#endif

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
