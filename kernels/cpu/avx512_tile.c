/*
 * avx512_tile.c - weights times activations with vectors of 16 lanes; the source is that of AVX2, see avx2.h. And two more tiles.
 *
 * An instruction that widens a weight runs on the same two pipes as the products. In a tile of 4 blocks by 6 tokens there is one
 * for every two products. The wide tile is for weights that were widened once for many tokens: it is 2 vectors by 12 tokens, whose
 * 24 sums take 14 loads for 24 products. The row tile is for a few tokens and V, where 16 dimensions lie together: they take two
 * instructions less than those of two blocks that may be apart.
 */
#define ISA_AVX512
#include "avx2_tile.c"

INLINE void wide_body(uint32_t n_t, const float *w, size_t ws, const float *x, size_t xs, size_t n_k, float *acc, size_t as,
                      bool more)
{
    vf s[WIDE_T][2];
    const float *q[WIDE_T / 3]; /* of every third token: addresses of the others are (q, xs, 4) and (q, xs, 8) */
    UNROLL for (uint32_t i = 0; i < WIDE_T / 3; i++) q[i] = x + 3 * i * xs;
    UNROLL for (uint32_t t = 0; t < n_t; t++)
        UNROLL for (uint32_t v = 0; v < 2; v++) s[t][v] = more ? _mm512_loadu_ps(acc + t * as + v * 16) : _mm512_setzero_ps();
    for (size_t k = 0; k < n_k; k++, w += ws) {
        const vf w0 = _mm512_loadu_ps(w), w1 = _mm512_loadu_ps(w + 16);
        UNROLL for (uint32_t t = 0; t < n_t; t++)
        {
            const vf x16 = _mm512_set1_ps(q[t / 3][t % 3 * xs]);
            s[t][0] = _mm512_fmadd_ps(w0, x16, s[t][0]);
            s[t][1] = _mm512_fmadd_ps(w1, x16, s[t][1]);
        }
        UNROLL for (uint32_t i = 0; i < WIDE_T / 3; i++) q[i]++;
    }
    UNROLL for (uint32_t t = 0; t < n_t; t++)
        UNROLL for (uint32_t v = 0; v < 2; v++) _mm512_storeu_ps(acc + t * as + v * 16, s[t][v]);
}

#define WIDE_FN(n_t) \
    static void wide_##n_t(const float *w, size_t ws, const float *x, size_t xs, size_t n_k, float *acc, size_t as, bool more) \
    { \
        wide_body(n_t, w, ws, x, xs, n_k, acc, as, more); \
    }
WIDE_FN(1) WIDE_FN(2) WIDE_FN(3) WIDE_FN(4) WIDE_FN(5) WIDE_FN(6)
WIDE_FN(7) WIDE_FN(8) WIDE_FN(9) WIDE_FN(10) WIDE_FN(11) WIDE_FN(12)

typedef void (*wide_fn)(const float *w, size_t ws, const float *x, size_t xs, size_t n_k, float *acc, size_t as, bool more);
void avx512_wide_tokens(const float *w, size_t ws, const float *x, size_t xs, size_t n_k, uint32_t n, float *acc, size_t as, bool more)
{
    static const wide_fn fns[WIDE_T] = {wide_1, wide_2, wide_3, wide_4,  wide_5,  wide_6,
                                        wide_7, wide_8, wide_9, wide_10, wide_11, wide_12};
    for (uint32_t i = 0, done = 0, n_t; done < n; i++, done += n_t) {
        n_t = tile_cut(n, i, WIDE_T);
        fns[n_t - 1](w, ws, x + done * xs, xs, n_k, acc + done * as, as, more);
    }
}

/* 16 elements that lie together. */
INLINE vf widen16(uint32_t dt, const uint8_t *p)
{
    if (dt == DT_I8) return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load128(p)));
    if (dt == DT_F16) return _mm512_cvtph_ps(load256(p));
    return _mm512_loadu_ps(p);
}
INLINE void row_body(uint32_t dt, uint32_t n_t, const uint8_t *w, size_t step, const float *const *x, size_t n_k, float *acc,
                     size_t as, size_t ahead)
{
    enum { N_V = ROW / 16 };
    const size_t esize = dt == DT_F32 ? 4 : dt == DT_F16 ? 2 : 1;
    vf s[TILE_T][N_V], held[TILE_T];
    const float *q[TILE_T];
    UNROLL for (uint32_t t = 0; t < n_t; t++)
    {
        q[t] = x[t];
        UNROLL for (uint32_t v = 0; v < N_V; v++) s[t][v] = _mm512_loadu_ps(acc + t * as + v * 16);
    }
    for (size_t k = 0; k < n_k; k++, w += step * esize) {
        UNROLL for (size_t i = 0; i < esize; i++) _mm_prefetch((const char *)((uintptr_t)w + ahead + i * 64), _MM_HINT_T0);
        UNROLL for (uint32_t t = 0; t < n_t; t++) held[t] = _mm512_set1_ps(q[t][k]);
        UNROLL for (uint32_t v = 0; v < N_V; v++)
        {
            const vf wide = widen16(dt, w + v * 16 * esize);
            UNROLL for (uint32_t t = 0; t < n_t; t++) s[t][v] = _mm512_fmadd_ps(wide, held[t], s[t][v]);
        }
    }
    UNROLL for (uint32_t t = 0; t < n_t; t++)
        UNROLL for (uint32_t v = 0; v < N_V; v++) _mm512_storeu_ps(acc + t * as + v * 16, s[t][v]);
}

#define ROW_FN(name, dt, n_t) \
    static void name##_##n_t(const uint8_t *w, size_t step, const float *const *x, size_t n_k, float *acc, size_t as, \
                             size_t ahead) \
    { \
        row_body(dt, n_t, w, step, x, n_k, acc, as, ahead); \
    }
#define ROW_FNS(name, dt) \
    ROW_FN(name, dt, 1) ROW_FN(name, dt, 2) ROW_FN(name, dt, 3) ROW_FN(name, dt, 4) ROW_FN(name, dt, 5) ROW_FN(name, dt, 6)
ROW_FNS(row_f32, DT_F32)
ROW_FNS(row_f16, DT_F16)
ROW_FNS(row_i8, DT_I8)

avx512_row avx512_row_get(uint32_t dtype, uint32_t n_t)
{
    static const avx512_row fns[3][TILE_T] = {{row_f32_1, row_f32_2, row_f32_3, row_f32_4, row_f32_5, row_f32_6},
                                              {row_f16_1, row_f16_2, row_f16_3, row_f16_4, row_f16_5, row_f16_6},
                                              {row_i8_1, row_i8_2, row_i8_3, row_i8_4, row_i8_5, row_i8_6}};
    return fns[dtype == DT_I8 ? 2 : dtype == DT_F16 ? 1 : 0][n_t - 1];
}

INLINE void widen_body(uint32_t dt, const uint8_t *const *w, size_t step, size_t n_k, size_t ahead, float *out)
{
    size_t bytes = step * (dt == DT_F32 ? 4 : dt == DT_I8 ? 1 : 2), off = 0;
    const uint8_t *p[TILE_B] = {w[0], w[1], w[2], w[3]};
    for (size_t k = 0; k < n_k; k++, off += bytes, out += WIDE) {
        _mm_prefetch((const char *)((uintptr_t)p[k & 3] + ahead + off), _MM_HINT_T0); /* a cache line holds 2 or 4 steps */
        if (dt == DT_F32) _mm_prefetch((const char *)((uintptr_t)p[~k & 3] + ahead + off), _MM_HINT_T0);
        UNROLL for (uint32_t v = 0; v < 2; v++) _mm512_storeu_ps(out + v * 16, widen(dt, p + v * 2, off));
    }
}
void avx512_widen(uint32_t dtype, const uint8_t *const *w, size_t step, size_t n_k, size_t ahead, float *out)
{
    switch (dtype) {
    case DT_F32: widen_body(DT_F32, w, step, n_k, ahead, out); break;
    case DT_F16: widen_body(DT_F16, w, step, n_k, ahead, out); break;
    case DT_BF16: widen_body(DT_BF16, w, step, n_k, ahead, out); break;
    default: widen_body(DT_I8, w, step, n_k, ahead, out); break;
    }
}

void avx512_widen_k8(const uint8_t *const *w, size_t n_k, size_t ahead, float *out)
{
    for (size_t k = 0, off = 0; k < n_k; k += 4, off += 32)
        UNROLL for (uint32_t v = 0; v < 2; v++)
        {
            const uint8_t *p0 = w[2 * v] + off, *p1 = w[2 * v + 1] + off;
            _mm_prefetch((const char *)((uintptr_t)p0 + ahead), _MM_HINT_T0);
            _mm_prefetch((const char *)((uintptr_t)p1 + ahead), _MM_HINT_T0);
            const vi codes = v_blocks((const __m256i[]){load256(p0), load256(p1)});
            UNROLL for (int i = 0; i < 4; i++)
                if (k + (size_t)i < n_k) _mm512_storeu_ps(out + (k + (size_t)i) * WIDE + v * 16, byte_of(codes, i));
        }
}
