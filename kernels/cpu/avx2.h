/*
 * avx2.h - what the avx2_*.c files share (x86-64 with AVX2, FMA and F16C; never called on a CPU without them).
 *
 * The rule that gives equal bits: a vector lane does, in the same order, exactly the operations that ref.c does for one
 * element. Lanes are 8 rows of a weight, 8 positions of K, 8 dimensions of V, or 8 elements; no lane is ever added to another,
 * except in lanes8_total, whose order is part of the contract.
 *
 * Other instruction sets: avx512_*.c and avxvnni_*.c define one or both of these and include the avx2_*.c file of that name.
 *   ISA_AVX512  vectors of 16 lanes (F, BW, DQ, VL) where many products are taken: V() and VB below. Two blocks of 8 lanes lie side
 *               by side in one vector and never meet, so a lane still does what it does in AVX2.
 *   ISA_VNNI    products of bytes by vpdpbusd. They are summed in 32 bits without saturation, hence to the same integers.
 * Functions that differ have names of their own, which the list below gives them; all others are AVX2's.
 */
#ifndef TESS_AVX2_H
#define TESS_AVX2_H
#include <immintrin.h>
#include <math.h>

#include "cpu.h"

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* ---- names and vectors of the instruction set ---- */
#ifdef ISA_AVX512
#define avx2_tile_get avx512_tile_get
#define avx2_tile_k8 avx512_tile_k8
#define avx2_linear_floats avx512_linear_floats
#define avx2_attn avx512_attn
#endif
#if defined(ISA_AVX512) && defined(ISA_VNNI)
#define avx2_linear avx512vnni_linear
#define avx2_experts avx512vnni_experts
#elif defined(ISA_AVX512)
#define avx2_linear avx512_linear
#define avx2_experts avx512_experts
#elif defined(ISA_VNNI)
#define avx2_linear avxvnni_linear
#define avx2_experts avxvnni_experts
#endif

INLINE __m128i load64(const void *p) { return _mm_loadl_epi64((const __m128i *)p); }
INLINE __m128i load128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
INLINE __m256i load256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* A vector of VB blocks of 8 lanes, vf of floats and vi of integers. V(op) is the intrinsic of that width. */
#ifdef ISA_AVX512
enum { VB = 2 };
typedef __m512 vf;
typedef __m512i vi;
#define V(op) _mm512_##op
INLINE vi v_and(vi a, vi b) { return _mm512_and_si512(a, b); }
INLINE vi v_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
INLINE vi v_blocks(const __m256i *b) { return _mm512_inserti64x4(_mm512_castsi256_si512(b[0]), b[1], 1); }
INLINE vf v_as_float(vi v) { return _mm512_castsi512_ps(v); }
#else
enum { VB = 1 };
typedef __m256 vf;
typedef __m256i vi;
#define V(op) _mm256_##op
INLINE vi v_and(vi a, vi b) { return _mm256_and_si256(a, b); }
INLINE vi v_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
INLINE vi v_blocks(const __m256i *b) { return b[0]; }
INLINE vf v_as_float(vi v) { return _mm256_castsi256_ps(v); }
#endif

/*
 * The tile: n_b row blocks of 8 lanes by n_t tokens, every accumulator a chain in ascending k.
 *   acc[t * as + b * 8 + lane] = chain over k of fma(w[b][k * step + lane], x[t][k], .)
 * from 0, or from what acc holds (`more`), so that a chain may be cut at any k. step counts elements of the dtype. What lies
 * `ahead` bytes behind each weight is prefetched, which may be no memory at all.
 * Shapes that exist: n_b = 2 with n_t 1..6; n_b = 4 with n_t 1..3, with 16 lanes 1..6.
 */
enum { TILE_T = 6, TILE_B = 4 };
typedef void (*avx2_tile)(const uint8_t *const *w, size_t step, const float *const *x, size_t n_k, float *acc, size_t as, bool more,
                          size_t ahead);
avx2_tile avx2_tile_get(uint32_t dtype, uint32_t n_b, uint32_t n_t);
/* The same shapes for K of int8 pages: [k / 4][8 lanes][4]; step is not used, and sums begin at 0. */
avx2_tile avx2_tile_k8(uint32_t n_b, uint32_t n_t);
void avx2_k8_to_f32(const uint8_t *block, uint32_t n_k, float *out); /* one block of 8 lanes to [n_k][8] */
#ifdef ISA_AVX512
/*
 * The wide tile, for weights that were widened to floats beforehand because many tokens meet them: rows of WIDE floats, ws apart,
 * by n tokens, in tiles of at most WIDE_T that are as equal as can be.
 *   acc[t * as + i] = chain over k of fma(w[k * ws + i], x[t * xs + k], .)   from 0, or what acc holds (`more`)
 */
enum { WIDE = 32, WIDE_T = 12 };
void avx512_wide_tokens(const float *w, size_t ws, const float *x, size_t xs, size_t n_k, uint32_t n, float *acc, size_t as, bool more);
/* The row tile, for V and few tokens: ROW elements of f32, f16 or int8 that lie together, at every step of k `step` elements on.
 *   acc[t * as + i] = what it holds, then chain over k of fma(w[k * step + i], x[t][k], .) */
enum { ROW = 64 };
typedef void (*avx512_row)(const uint8_t *w, size_t step, const float *const *x, size_t n_k, float *acc, size_t as, size_t ahead);
avx512_row avx512_row_get(uint32_t dtype, uint32_t n_t); /* n_t: 1..TILE_T */
/* Steps [0, n_k) of four blocks of 8 lanes of a float dtype to rows of WIDE floats, n_k of them. step and ahead: as of the tile. */
void avx512_widen(uint32_t dtype, const uint8_t *const *w, size_t step, size_t n_k, size_t ahead, float *out);
void avx512_widen_k8(const uint8_t *const *w, size_t n_k, size_t ahead, float *out); /* the same of K of int8 pages */
#endif
/* Row blocks of the tile for n_t tokens: as many accumulators as registers. */
static inline uint32_t avx2_tile_blocks(uint32_t n_t) { return VB == 2 || n_t <= 3 ? 4 : 2; }
/* The tiles of at most `most` tokens that n tokens are cut into are as equal as can be: the size of tile number i. */
static inline uint32_t tile_cut(uint32_t n, uint32_t i, uint32_t most)
{
    uint32_t tiles = (n + most - 1) / most;
    return n * (i + 1) / tiles - n * i / tiles;
}

void avx2_linear(const op_linear_args *a, uint32_t thread, uint32_t n_threads);
void avx2_experts(const op_experts_args *a, uint32_t thread, uint32_t n_threads);
void avx2_linear_floats(const op_linear_args *a, run_share *s); /* the part of avx2_linear that is in avx2_linear.c */
void avx2_kv_write(const op_kv_write_args *a, uint32_t thread, uint32_t n_threads);
void avx2_attn(const op_attn_args *a, uint32_t thread, uint32_t n_threads);

/* ---- tails: the first n lanes ---- */
INLINE __m256i lane_index(void) { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
INLINE __m256i lane_mask(uint32_t n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)MIN(n, 8)), lane_index()); }
INLINE __m256 load_some(const float *p, uint32_t n) /* n >= 8: all; other lanes are 0 */
{
    return n >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, lane_mask(n));
}
INLINE void store_some(float *p, __m256 v, uint32_t n)
{
    if (n >= 8) _mm256_storeu_ps(p, v);
    else _mm256_maskstore_ps(p, lane_mask(n), v);
}

/* 8 elements of a float dtype, or int8. */
INLINE __m256 widen8(uint32_t dt, const uint8_t *p)
{
    if (dt == DT_I8) return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load64(p)));
    if (dt == DT_F32) return _mm256_loadu_ps((const float *)(const void *)p);
    __m128i h = load128(p);
    if (dt == DT_F16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* ((0+4)+(2+6)) + ((1+5)+(3+7)) */
INLINE float lanes8_total(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/*
 * Sums of row blocks [b, b + n_b), at most TILE_B, for tokens [t0, t0 + n): those of block j stand at acc[j], `step` floats from
 * token to token. Stores the lanes that belong to the run. Tokens go first: the blocks of a token fill cache lines, which would be
 * gone before the next block's turn, since tokens are often so far apart that their lines share few sets of a cache.
 */
INLINE void store_tokens(const op_linear_args *a, const run_share *s, uint64_t b, uint32_t n_b, uint32_t t0, uint32_t n,
                         const float *const *acc, size_t step)
{
    uint32_t lane0[TILE_B], lane1[TILE_B], row[TILE_B];
    for (uint32_t j = 0; j < n_b; j++) block_rows(s, b + j, &lane0[j], &lane1[j], &row[j]);
    float *y = a->y + (a->sum_leaves ? 0 : s->leaf) * a->yl + t0 * a->ys;
    for (uint32_t t = 0; t < n; t++, y += a->ys)
        for (uint32_t j = 0; j < n_b; j++) {
            const float *from = acc[j] + t * step, *bias = a->bias ? a->bias + row[j] : NULL;
            float *to = y + row[j];
            if (lane1[j] - lane0[j] == TILE_ROWS) {
                __m256 v = _mm256_loadu_ps(from);
                _mm256_storeu_ps(to, bias ? _mm256_add_ps(v, _mm256_loadu_ps(bias)) : v);
                continue;
            }
            for (uint32_t i = 0; i < lane1[j] - lane0[j]; i++) to[i] = bias ? from[lane0[j] + i] + bias[i] : from[lane0[j] + i];
        }
}

/*
 * The tree of ops.h while leaves come one after another: like a binary counter, as many sums wait as the number of leaves before
 * has ones, those of the longest runs first. A leaf takes the place behind them; runs of equal length are added at once, and at
 * the last leaf all that wait. Where leaves are stored apart, each takes place 0.
 */
enum { LEAF_PLACES = 4 };
INLINE uint32_t leaf_place(const op_linear_args *a, uint32_t leaf)
{
    return a->sum_leaves ? (uint32_t)__builtin_popcount(leaf) : 0;
}
/* n sums (a multiple of 8) of the leaf stand at its place; places are `step` floats apart. True: place 0 is to be stored. */
INLINE bool leaf_done(const op_linear_args *a, uint32_t leaf, float *sums, size_t step, size_t n)
{
    if (!a->sum_leaves) return true;
    bool last = leaf + 1 == a->w->n_leaves;
    for (uint32_t at = leaf_place(a, leaf), m = leaf; at && (last || (m & 1)); at--, m >>= 1) {
        float *to = sums + (at - 1) * step;
        for (size_t i = 0; i < n; i += 8)
            _mm256_storeu_ps(to + i, _mm256_add_ps(_mm256_loadu_ps(to + i), _mm256_loadu_ps(to + step + i)));
    }
    return last;
}

/* ---- functions; see ref.c for what they compute ---- */
INLINE __m256 set8(float x) { return _mm256_set1_ps(x); }
INLINE __m256 neg8(__m256 x) { return _mm256_xor_ps(x, set8(-0.0f)); }
INLINE __m256 abs8(__m256 x) { return _mm256_andnot_ps(set8(-0.0f), x); }

/* exp(x) = p * 2^n: gives p; the low bits of *t, shifted to the exponent, are n. Of 8 lanes and of 16. */
#define EXP_PARTS(name, vec, mm) \
    INLINE vec name(vec x, vec *t) \
    { \
        *t = mm##fmadd_ps(x, mm##set1_ps(EXP_LOG2E), mm##set1_ps(EXP_MAGIC)); \
        vec n = mm##sub_ps(*t, mm##set1_ps(EXP_MAGIC)); \
        vec r = mm##fmadd_ps(n, mm##set1_ps(-EXP_LN2_LO), mm##fmadd_ps(n, mm##set1_ps(-EXP_LN2_HI), x)); \
        vec p = mm##fmadd_ps(mm##set1_ps(EXP_C6), r, mm##set1_ps(EXP_C5)); \
        p = mm##fmadd_ps(p, r, mm##set1_ps(EXP_C4)); \
        p = mm##fmadd_ps(p, r, mm##set1_ps(EXP_C3)); \
        p = mm##fmadd_ps(p, r, mm##set1_ps(EXP_C2)); \
        p = mm##fmadd_ps(p, r, mm##set1_ps(1.0f)); \
        return mm##fmadd_ps(p, r, mm##set1_ps(1.0f)); \
    }
EXP_PARTS(exp_parts8, __m256, _mm256_)
#ifdef ISA_AVX512
EXP_PARTS(exp_parts16, __m512, _mm512_)
#endif

/* Where no result is beyond float: x <= 0 or NaN (any NaN comes out). */
INLINE __m256 exp8_low(__m256 x)
{
    __m256 t, p = exp_parts8(x, &t);
    __m256i bits = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23));
    __m256 y = _mm256_andnot_ps(_mm256_cmp_ps(x, set8(EXP_MIN), _CMP_LT_OQ), _mm256_castsi256_ps(bits));
    return _mm256_or_ps(y, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)); /* all bits set are a NaN */
}
/* The same of a vector, and a vector's blocks of 8 lanes added to 8 sums, one after another. */
#ifdef ISA_AVX512
INLINE vf v_exp_low(vf x)
{
    vf t, p = exp_parts16(x, &t);
    vi bits = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(t), 23));
    bits = _mm512_maskz_mov_epi32(_mm512_cmp_ps_mask(x, _mm512_set1_ps(EXP_MIN), _CMP_NLT_UQ), bits);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_epi32(-1)));
}
INLINE __m256 v_add_to8(__m256 sum, vf v)
{
    return _mm256_add_ps(_mm256_add_ps(sum, _mm512_castps512_ps256(v)), _mm512_extractf32x8_ps(v, 1));
}
#else
INLINE vf v_exp_low(vf x) { return exp8_low(x); }
INLINE __m256 v_add_to8(__m256 sum, vf v) { return _mm256_add_ps(sum, v); }
#endif
INLINE __m256 exp8(__m256 x)
{
    __m256 y = _mm256_blendv_ps(exp8_low(x), set8(INFINITY), _mm256_cmp_ps(x, set8(EXP_MAX), _CMP_GT_OQ));
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

INLINE __m256 tanh8(__m256 x)
{
    __m256 a = abs8(x), z = _mm256_mul_ps(x, x);
    __m256 p = _mm256_fmadd_ps(set8(TANH_C4), z, set8(TANH_C3));
    p = _mm256_fmadd_ps(p, z, set8(TANH_C2));
    p = _mm256_fmadd_ps(p, z, set8(TANH_C1));
    p = _mm256_fmadd_ps(p, z, set8(TANH_C0));
    __m256 near0 = _mm256_fmadd_ps(_mm256_mul_ps(x, z), p, x);
    __m256 e = _mm256_add_ps(exp8(_mm256_add_ps(a, a)), set8(1.0f));
    __m256 far = _mm256_sub_ps(set8(1.0f), _mm256_div_ps(set8(2.0f), e));
    far = _mm256_or_ps(abs8(far), _mm256_and_ps(x, set8(-0.0f)));
    return _mm256_blendv_ps(far, near0, _mm256_cmp_ps(a, set8(TANH_SMALL), _CMP_LT_OQ));
}

INLINE __m256 soft_cap8(__m256 x, float cap)
{
    return cap > 0.0f ? _mm256_mul_ps(set8(cap), tanh8(_mm256_div_ps(x, set8(cap)))) : x;
}
#endif
