/*
 * avx2_quant.c - linear; q8 and q4 weights.
 *
 * Integers: a vector holds 4 columns of 8 rows; 4 activations are broadcast against it. vpmaddubsw wants one unsigned side:
 * of q8 that is |w|, the sign going to the activation (|w| <= 128, |x| <= 127, so a pair is within 32512 and never
 * saturates); codes of q4 are unsigned themselves, and 8 products of a lane (at most 30480) still fit in 16 bits. All sums of
 * a group are exact, so how they are taken is free; the f32 chain over groups is that of ref.c. vpdpbusd does both steps at once,
 * and sums in 32 bits.
 *
 * Few tokens: a thread walks its row blocks as 4 (or 2) streams, as in avx2_linear.c; sums stay in registers.
 * Many tokens: the codes of half of two tiles (of half a q8 tile where there is no vpdpbusd) stay in registers while up to T_BLOCK
 * tokens pass, whose groups of one number lie one after another; integer sums of the first half wait in a buffer, and so do the
 * chains. With 16 lanes a tile is those of two row blocks, and twice as many registers hold all of it: there is no first half, and
 * four tokens pass side by side, so that eight chains of products are under way where each would wait for itself.
 * Four row blocks follow on each other, so that the groups come from L1.
 * Without groups (compute f32) tiles are turned into floats and multiplied by avx2_tile.
 */
#include "avx2.h"

enum { FEW = 4, T_BLOCK = VB == 2 ? 64 : 128, B_BLOCK = 4, PAIR = 2 * TILE_ROWS, AHEAD = 1536, F32_GROUPS = 12 };
enum { LANES = VB * TILE_ROWS, FOURS = GROUP_K / 4, HELD = VB * FOURS / 2 }; /* HELD: fours of columns that stay in registers */
enum { TOK = VB == 2 ? 4 : 1, X_ZERO = 128 }; /* TOK: tokens side by side */

/*
 * What differs between instruction sets, for vectors of 8 lanes and of V's: a lane of u (unsigned bytes) times the same of s
 * (signed), added to acc. dot_q8 sums in 32 bits. dot_q4 may sum in 16 bits until dot_q4_end.
 */
#ifdef ISA_VNNI
enum { VNNI = 1 };
#define DOTS(name, vec, mm, dpbusd) \
    INLINE vec name##_q8(vec acc, vec u, vec s) { return dpbusd(acc, u, s); } \
    INLINE vec name##_q4(vec acc, vec u, vec s) { return dpbusd(acc, u, s); } \
    INLINE vec name##_q4_end(vec acc) { return acc; }
#else
enum { VNNI = 0 };
#define DOTS(name, vec, mm, dpbusd) \
    INLINE vec name##_q8(vec acc, vec u, vec s) \
    { \
        return mm##_add_epi32(acc, mm##_madd_epi16(mm##_maddubs_epi16(u, s), mm##_set1_epi16(1))); \
    } \
    INLINE vec name##_q4(vec acc, vec u, vec s) { return mm##_add_epi16(acc, mm##_maddubs_epi16(u, s)); } \
    INLINE vec name##_q4_end(vec acc) { return mm##_madd_epi16(acc, mm##_set1_epi16(1)); }
#endif
#ifdef ISA_AVX512
DOTS(dot8, __m256i, _mm256, _mm256_dpbusd_epi32)
DOTS(dot, vi, _mm512, _mm512_dpbusd_epi32)
#else
DOTS(dot8, __m256i, _mm256, _mm256_dpbusd_avx_epi32)
#define dot_q8 dot8_q8
#define dot_q4 dot8_q4
#define dot_q4_end dot8_q4_end
#endif
/* A value that the compiler shall not compute in another way. In tests, where a vector of AVX-512 is no register, nothing. */
#if defined(ISA_AVX512) && defined(__AVX512F__)
#define HOLD(v) __asm__("" : "+v"(v))
#elif defined(ISA_AVX512)
#define HOLD(v) (void)(v)
#else
#define HOLD(v) __asm__("" : "+x"(v))
#endif

INLINE __m256 load_f16x8(const uint8_t *p) { return _mm256_cvtph_ps(load128(p)); }
INLINE int32_t four_at(const void *q, uint32_t j)
{
    int32_t v;
    memcpy(&v, (const uint8_t *)q + 4 * j, 4);
    return v;
}
INLINE void q4_pair(const uint8_t *tile, uint32_t j, __m256i *lo, __m256i *hi)
{
    __m256i b = load256(tile + 32 + 32 * j), low = _mm256_set1_epi8(15);
    *lo = _mm256_and_si256(b, low);
    *hi = _mm256_and_si256(_mm256_srli_epi16(b, 4), low);
}

/* ---- one tile, one token at a time, codes from memory: for few tokens ---- */
INLINE void dots_few(uint32_t dt, const uint8_t *tile, const op_group *x, uint32_t n_t, __m256i *dot)
{
    const uint32_t steps = dt == DT_Q8 ? 8 : 4;
    UNROLL for (uint32_t t = 0; t < n_t; t++) dot[t] = _mm256_setzero_si256();
    UNROLL for (uint32_t j = 0; j < steps; j++)
    {
        __m256i w, hi;
        if (dt == DT_Q8) w = load256(tile + 16 + 32 * j), hi = _mm256_abs_epi8(w);
        else q4_pair(tile, j, &w, &hi);
        UNROLL for (uint32_t t = 0; t < n_t; t++)
        {
            if (dt == DT_Q8) dot[t] = dot8_q8(dot[t], hi, _mm256_sign_epi8(_mm256_set1_epi32(four_at(x[t].q, j)), w));
            else {
                dot[t] = dot8_q4(dot[t], w, _mm256_set1_epi32(four_at(x[t].q, 2 * j)));
                dot[t] = dot8_q4(dot[t], hi, _mm256_set1_epi32(four_at(x[t].q, 2 * j + 1)));
            }
        }
    }
    if (dt == DT_Q4)
        UNROLL for (uint32_t t = 0; t < n_t; t++) dot[t] = dot8_q4_end(dot[t]);
}

INLINE __m256 add_group(uint32_t dt, __m256 acc, __m256i dot, __m256 d, __m256 m, const op_group *x)
{
    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(d, set8(x->d)), acc);
    return dt == DT_Q4 ? _mm256_fmadd_ps(m, set8(x->s), acc) : acc;
}

/* n_b streams by n_t tokens: acc[b * n_t + t][lane]; x: the leaf's first group, groups xqs apart. */
INLINE void few_body(uint32_t dt, uint32_t n_b, uint32_t n_t, const uint8_t *const *w, uint32_t n_groups, const op_group *x,
                     size_t xqs, float *out)
{
    __m256 acc[B_BLOCK * 2];
    const uint8_t *p[B_BLOCK];
    UNROLL for (uint32_t b = 0; b < n_b; b++) p[b] = w[b];
    UNROLL for (uint32_t i = 0; i < n_b * n_t; i++) acc[i] = _mm256_setzero_ps();
    for (uint32_t g = 0; g < n_groups; g++, x += xqs)
        UNROLL for (uint32_t b = 0; b < n_b; b++)
        {
            __m256i dot[FEW];
            for (uint32_t line = 0; line < tile_bytes(dt); line += 64)
                _mm_prefetch((const char *)((uintptr_t)p[b] + line + AHEAD), _MM_HINT_T0);
            dots_few(dt, p[b], x, n_t, dot);
            __m256 d = load_f16x8(p[b]), m = dt == DT_Q4 ? load_f16x8(p[b] + 16) : d;
            UNROLL for (uint32_t t = 0; t < n_t; t++)
                acc[b * n_t + t] = add_group(dt, acc[b * n_t + t], dot[t], d, m, x + t);
            p[b] += tile_bytes(dt);
        }
    UNROLL for (uint32_t i = 0; i < n_b * n_t; i++) _mm256_storeu_ps(out + 8 * i, acc[i]);
}

typedef void (*few_fn)(const uint8_t *const *w, uint32_t n_groups, const op_group *x, size_t xqs, float *out);
#define FEW_FN(name, dt, n_b, n_t) \
    static void name##_##n_t(const uint8_t *const *w, uint32_t n_groups, const op_group *x, size_t xqs, float *out) \
    { \
        few_body(dt, n_b, n_t, w, n_groups, x, xqs, out); \
    }
#define FEW_FNS(name, dt) FEW_FN(name, dt, 4, 1) FEW_FN(name, dt, 4, 2) FEW_FN(name, dt, 2, 3) FEW_FN(name, dt, 2, 4)
FEW_FNS(q8, DT_Q8)
FEW_FNS(q4, DT_Q4)

static void quant_few(const op_linear_args *a, run_share *s)
{
    static const few_fn fns[2][FEW] = {{q8_1, q8_2, q8_3, q8_4}, {q4_1, q4_2, q4_3, q4_4}};
    uint32_t n_t = a->n_tokens, n_b = n_t <= 2 ? 4 : 2;
    uint64_t each = ceil_div(s->b1 - s->b0, n_b);
    float sums[LEAF_PLACES][B_BLOCK * 2 * TILE_ROWS];
    for (uint64_t i = 0; i < each; i++) {
        const op_group *x = a->xq;
        uint64_t b[B_BLOCK];
        for (uint32_t j = 0; j < n_b; j++) b[j] = s->b0 + j * each + i;
        for (uint32_t l = 0; l < a->w->n_leaves; l++) {
            run_leaf(s, l);
            const op_run *r = s->run;
            const uint8_t *w[B_BLOCK];
            uint32_t n_groups = (r->n_k + GROUP_K - 1) / GROUP_K;
            for (uint32_t j = 0; j < n_b; j++) /* the last stream may be shorter: it repeats a block, whose sums are dropped */
                w[j] = r->data + (b[j] < s->b1 ? b[j] : s->b0 + i) * r->block_stride;
            fns[a->w->dtype == DT_Q4][n_t - 1](w, n_groups, x, a->xqs, sums[leaf_place(a, l)]);
            x += n_groups * a->xqs;
            if (!leaf_done(a, l, sums[0], ARRAY_LEN(sums[0]), (size_t)n_b * n_t * TILE_ROWS)) continue;
            for (uint32_t j = 0; j < n_b && b[j] < s->b1; j++)
                store_tokens(a, s, b[j], 1, 0, n_t, &(const float *){sums[0] + j * n_t * TILE_ROWS}, TILE_ROWS);
        }
    }
}

/* ---- tiles in registers, many tokens ---- */
/* The f16 numbers at `at` of VB tiles. */
INLINE vf scales_of(const uint8_t *const *tile, size_t at)
{
#ifdef ISA_AVX512
    return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(load128(tile[0] + at)), load128(tile[1] + at), 1));
#else
    return load_f16x8(tile[0] + at);
#endif
}
/* acc + dot * (d * x.d), with minima (or NULL) + m * x.s */
INLINE void add_groups(float *acc, vi dot, vf d, const vf *m, const op_group *x)
{
    vf s = V(fmadd_ps)(V(cvtepi32_ps)(dot), V(mul_ps)(d, V(set1_ps)(x->d)), V(loadu_ps)(acc));
    V(storeu_ps)(acc, m ? V(fmadd_ps)(*m, V(set1_ps)(x->s), s) : s);
}

#ifndef ISA_VNNI
/* Fours of columns [from, from + HELD) of a q8 tile: |w| and signs take 8 registers, or 16. vpsignb costs as much as a product, an
 * exclusive or half of that: where w < 0, |w| * ~x = w * x - |w|, so a row's sum that starts from the |w| of its negative codes
 * is exact. ~x >= -128 and |w| <= 128, so a pair is at least -32768. */
typedef struct {
    vi u[HELD], flip[HELD], start;
} q8_held;
INLINE q8_held q8_held_of(const uint8_t *const *tile, uint32_t from)
{
    q8_held h = {.start = V(set1_epi32)(0)};
    UNROLL for (uint32_t j = 0; j < HELD; j++)
    {
        __m256i u[VB], flip[VB];
        UNROLL for (uint32_t b = 0; b < VB; b++)
        {
            __m256i w = load256(tile[b] + 16 + 32 * (from + j));
            u[b] = _mm256_abs_epi8(w);
            flip[b] = _mm256_cmpgt_epi8(_mm256_setzero_si256(), w);
        }
        h.u[j] = v_blocks(u), h.flip[j] = v_blocks(flip);
        h.start = dot_q8(h.start, v_and(h.u[j], h.flip[j]), V(set1_epi8)(1));
    }
    return h;
}
INLINE vi q8_held_dot(const q8_held *h, const op_group *x, uint32_t from, vi dot)
{
    UNROLL for (uint32_t j = 0; j < HELD; j++)
        dot = dot_q8(dot, h->u[j], v_xor(V(set1_epi32)(four_at(x->q, from + j)), h->flip[j]));
    return dot;
}

static void q8_many(const uint8_t *const *tile, const op_group *x, const uint8_t *q, uint32_t n, float *const sums[2])
{
    UNUSED(q);
    float *acc = sums[0];
    vf d = scales_of(tile, 0);
    vi part[T_BLOCK];
    q8_held h = q8_held_of(tile, 0);
    if (HELD < FOURS) {
        for (uint32_t t = 0; t < n; t++) part[t] = q8_held_dot(&h, x + t, 0, h.start);
        h = q8_held_of(tile, HELD);
    }
    for (uint32_t t = 0; t < n; t++, x++, acc += LANES) {
        vi dot = HELD < FOURS ? V(add_epi32)(part[t], h.start) : h.start;
        add_groups(acc, q8_held_dot(&h, x, FOURS - HELD, dot), d, NULL, x);
    }
}
#endif

/*
 * Two tiles at once: an activation is broadcast for both, as loads were the limit. What is held takes 8 registers, or 16.
 * q8 with vpdpbusd, whose sums have room: x + 128 is the unsigned side, so that nothing has to be done about signs of weights.
 * (x + 128) * w = x * w + 128 * w, so a row's sum starts from -128 times its codes.
 */
INLINE void held_of(uint32_t dt, const uint8_t *const *tile, uint32_t from, vi *u)
{
    UNROLL for (uint32_t j = 0; j < HELD; j += 2)
    {
        __m256i lo[VB], hi[VB];
        UNROLL for (uint32_t b = 0; b < VB; b++)
        {
            const uint8_t *q = tile[b] + 16 + 32 * (from + j);
            if (dt == DT_Q8) lo[b] = load256(q), hi[b] = load256(q + 32);
            else q4_pair(tile[b], (from + j) / 2, &lo[b], &hi[b]);
        }
        u[j] = v_blocks(lo), u[j + 1] = v_blocks(hi);
    }
}
INLINE vi start_of(uint32_t dt, const uint8_t *const *tile)
{
    vi sum = V(set1_epi32)(0), u[HELD];
    for (uint32_t from = 0; dt == DT_Q8 && from < FOURS; from += HELD) {
        held_of(dt, tile, from, u);
        UNROLL for (uint32_t j = 0; j < HELD; j++) sum = dot_q8(sum, V(set1_epi8)((char)X_ZERO), u[j]);
    }
    return V(sub_epi32)(V(set1_epi32)(0), sum);
}
/* n_t tokens. The order is held by hand: with a tree of sums, which the compiler would make, codes leave the registers. */
INLINE void held_dots(uint32_t dt, uint32_t n_t, vi u[2][HELD], const uint8_t *q, size_t step, uint32_t from, vi dot[][2])
{
    UNROLL for (uint32_t j = 0; j < HELD; j++)
        UNROLL for (uint32_t t = 0; t < n_t; t++)
        {
            vi x4 = V(set1_epi32)(four_at(q + t * step, from + j));
            HOLD(x4);
            UNROLL for (uint32_t b = 0; b < 2; b++)
            {
                dot[t][b] = dt == DT_Q8 ? dot_q8(dot[t][b], x4, u[b][j]) : dot_q4(dot[t][b], u[b][j], x4);
                HOLD(dot[t][b]);
            }
        }
}

typedef struct {
    vi u[2][HELD], start[2];
    vf d[2], m[2];
} two_held;
/* The last (or only) half of the columns for n_t tokens, and the ends of their sums. */
INLINE void two_tokens(uint32_t dt, uint32_t n_t, two_held *h, vi part[][2], const op_group *x, const uint8_t *q, size_t step,
                       float *a0, float *a1)
{
    vi dot[TOK][2];
    UNROLL for (uint32_t t = 0; t < n_t; t++)
        UNROLL for (uint32_t b = 0; b < 2; b++) dot[t][b] = HELD < FOURS ? part[t][b] : h->start[b];
    held_dots(dt, n_t, h->u, q, step, FOURS - HELD, dot);
    UNROLL for (uint32_t t = 0; t < n_t; t++)
        UNROLL for (uint32_t b = 0; b < 2; b++)
            add_groups((b ? a1 : a0) + t * LANES, dt == DT_Q4 ? dot_q4_end(dot[t][b]) : dot[t][b], h->d[b],
                       dt == DT_Q4 ? &h->m[b] : NULL, x + t);
}

/* q: the codes of the groups x, `step` bytes from token to token. */
INLINE void two_many(uint32_t dt, const uint8_t *const *tile, const op_group *x, const uint8_t *q, size_t step, uint32_t n,
                     float *const acc[2])
{
    vi part[T_BLOCK][2];
    two_held h;
    UNROLL for (uint32_t b = 0; b < 2; b++)
    {
        h.d[b] = h.m[b] = scales_of(tile + b * VB, 0), h.start[b] = start_of(dt, tile + b * VB);
        if (dt == DT_Q4) h.m[b] = scales_of(tile + b * VB, 16);
        held_of(dt, tile + b * VB, 0, h.u[b]);
    }
    if (HELD < FOURS) {
        for (uint32_t t = 0; t < n; t++) {
            vi dot[1][2] = {{h.start[0], h.start[1]}};
            held_dots(dt, 1, h.u, q + t * step, step, 0, dot);
            part[t][0] = dot[0][0], part[t][1] = dot[0][1];
        }
        UNROLL for (uint32_t b = 0; b < 2; b++) held_of(dt, tile + b * VB, HELD, h.u[b]);
    }
    uint32_t t = 0;
    float *a0 = acc[0], *a1 = acc[1];
    for (; t + TOK <= n; t += TOK) two_tokens(dt, TOK, &h, part + t, x + t, q + t * step, step, a0 + t * LANES, a1 + t * LANES);
    for (; t < n; t++) two_tokens(dt, 1, &h, part + t, x + t, q + t * step, step, a0 + t * LANES, a1 + t * LANES);
}
static void q4_many(const uint8_t *const *tile, const op_group *x, uint32_t n, float *const acc[2])
{
    two_many(DT_Q4, tile, x, (const uint8_t *)x->q, sizeof *x, n, acc);
}
#ifdef ISA_VNNI
static void q8_many(const uint8_t *const *tile, const op_group *x, const uint8_t *q, uint32_t n, float *const acc[2])
{
    two_many(DT_Q8, tile, x, q, GROUP_K, n, acc);
}
#endif
/* The codes of x plus X_ZERO, for q8_many of VNNI. */
static void codes_from_zero(const op_group *x, uint32_t n, uint8_t *q)
{
    for (uint32_t t = 0; t < n; t++, x++, q += GROUP_K)
        _mm256_store_si256((__m256i *)(void *)q, _mm256_xor_si256(load256(x->q), _mm256_set1_epi8((char)X_ZERO)));
}

INLINE void prefetch_tile(const uint8_t *tile, uint32_t bytes, size_t ahead)
{
    for (uint32_t line = 0; line < bytes; line += 64) _mm_prefetch((const char *)((uintptr_t)tile + ahead + line), _MM_HINT_T0);
}

/* One leaf of row blocks [b, b + n_b) for tokens [t0, t0 + n): acc[vector][token][LANES]. x: the leaf's groups of token t0. Where
 * blocks do not come out even the last is done again; those sums lie behind, where acc has room. */
static void quant_panel(const op_linear_args *a, const run_share *s, const op_group *x, uint64_t b, uint32_t n_b, uint32_t n,
                        float *acc)
{
    const op_run *r = s->run;
    const bool q8 = a->w->dtype == DT_Q8;
    const uint32_t bytes = tile_bytes(a->w->dtype), step = q8 && !VNNI ? VB : 2 * VB;
    const size_t each = (size_t)n * LANES;
    memset(acc, 0, ceil_div(n_b, step) * step * n * TILE_ROWS * sizeof *acc);
    const uint8_t *w = r->data + b * r->block_stride;
    _Alignas(32) uint8_t codes[T_BLOCK * GROUP_K];
    for (uint32_t k = 0; k < r->n_k; k += GROUP_K, w += bytes, x += a->xqs) {
        if (q8 && VNNI) codes_from_zero(x, n, codes);
        for (uint32_t j = 0; j < n_b; j += step) {
            const uint8_t *tile[2 * VB];
            float *sums[2] = {acc + j / VB * each, acc + (j / VB + 1) * each};
            for (uint32_t i = 0; i < step; i++) {
                tile[i] = w + MIN(j + i, n_b - 1) * r->block_stride;
                prefetch_tile(tile[i], bytes, 4 * bytes);
            }
            if (q8) q8_many(tile, x, codes, n, sums);
            else q4_many(tile, x, n, sums);
        }
    }
}

static void quant_many(const op_linear_args *a, run_share *s)
{
    float sums[LEAF_PLACES][B_BLOCK * T_BLOCK * TILE_ROWS];
    for (uint32_t t0 = 0; t0 < a->n_tokens; t0 += T_BLOCK)
        for (uint64_t b = s->b0; b < s->b1; b += B_BLOCK) {
            uint32_t n = MIN((uint32_t)T_BLOCK, a->n_tokens - t0), n_b = (uint32_t)MIN((uint64_t)B_BLOCK, s->b1 - b);
            const op_group *x = a->xq + t0;
            for (uint32_t l = 0; l < a->w->n_leaves; l++) {
                run_leaf(s, l);
                quant_panel(a, s, x, b, n_b, n, sums[leaf_place(a, l)]);
                x += ceil_div(s->run->n_k, GROUP_K) * a->xqs;
                if (!leaf_done(a, l, sums[0], ARRAY_LEN(sums[0]), (size_t)ceil_div(n_b, VB) * n * LANES)) continue;
                const float *from[B_BLOCK];
                for (uint32_t j = 0; j < B_BLOCK; j++) from[j] = sums[0] + (size_t)(j / VB) * n * LANES + j % VB * TILE_ROWS;
                store_tokens(a, s, b, n_b, t0, n, from, LANES);
            }
        }
}

/* ---- as floats ---- */
/* n groups of one row block to [k][8]. */
static void tiles_to_f32(uint32_t dt, const uint8_t *tile, uint32_t n, float *out)
{
    for (uint32_t g = 0; g < n; g++, tile += tile_bytes(dt)) {
        __m256 d = load_f16x8(tile), m = dt == DT_Q4 ? load_f16x8(tile + 16) : d;
        for (uint32_t i = 0; i < GROUP_K; i++, out += TILE_ROWS) {
            __m256i v; /* 8 lanes of 4 bytes: byte i % 4 of each, sign-extended */
            uint32_t shift = 24 - 8 * (i % 4);
            if (dt == DT_Q8) v = load256(tile + 16 + i / 4 * 32);
            else {
                v = load256(tile + 32 + i / 8 * 32);
                if (i % 8 >= 4) v = _mm256_srli_epi16(v, 4);
                v = _mm256_and_si256(v, _mm256_set1_epi8(15));
            }
            v = _mm256_srai_epi32(_mm256_slli_epi32(v, (int)shift), 24);
            __m256 f = _mm256_mul_ps(d, _mm256_cvtepi32_ps(v));
            _mm256_storeu_ps(out, dt == DT_Q4 ? _mm256_add_ps(f, m) : f);
        }
    }
}

/* One leaf of row blocks b and b + 1 (if in the share) for tokens [t0, t0 + n): acc[token][PAIR]. */
static void f32_pair(const op_linear_args *a, const run_share *s, uint64_t b, uint32_t t0, uint32_t n, float *acc)
{
    enum { STEP = F32_GROUPS * GROUP_K };
    const op_run *r = s->run;
    float w[2][STEP * TILE_ROWS];
    uint32_t bytes = tile_bytes(a->w->dtype), k = 0, two = b + 1 < s->b1;
    do {
        uint32_t n_k = MIN((uint32_t)STEP, r->n_k - k), n_g = (n_k + GROUP_K - 1) / GROUP_K;
        const uint8_t *tile = r->data + b * r->block_stride + (size_t)(k / GROUP_K) * bytes;
        const uint8_t *wp[2] = {(const uint8_t *)w[0], (const uint8_t *)w[two]};
        tiles_to_f32(a->w->dtype, tile, n_g, w[0]);
        if (two) tiles_to_f32(a->w->dtype, tile + r->block_stride, n_g, w[1]);
        for (uint32_t i = 0, done = 0; done < n; i++) {
            uint32_t n_t = tile_cut(n, i, TILE_T);
            const float *x[TILE_T];
            for (uint32_t t = 0; t < n_t; t++) x[t] = a->x + (t0 + done + t) * a->xs + r->k0 + k;
            avx2_tile_get(DT_F32, 2, n_t)(wp, TILE_ROWS, x, n_k, acc + done * PAIR, PAIR, k > 0, 0);
            done += n_t;
        }
        k += n_k;
    } while (k < r->n_k);
}

static void quant_f32(const op_linear_args *a, run_share *s)
{
    float sums[LEAF_PLACES][T_BLOCK * PAIR];
    for (uint32_t t0 = 0; t0 < a->n_tokens; t0 += T_BLOCK)
        for (uint64_t b = s->b0; b < s->b1; b += 2) {
            uint32_t n = MIN((uint32_t)T_BLOCK, a->n_tokens - t0);
            for (uint32_t l = 0; l < a->w->n_leaves; l++) {
                run_leaf(s, l);
                f32_pair(a, s, b, t0, n, sums[leaf_place(a, l)]);
                if (!leaf_done(a, l, sums[0], ARRAY_LEN(sums[0]), (size_t)n * PAIR)) continue;
                const float *from[2] = {sums[0], sums[0] + TILE_ROWS};
                store_tokens(a, s, b, (uint32_t)MIN(2, s->b1 - b), t0, n, from, PAIR);
            }
        }
}

void avx2_linear(const op_linear_args *a, uint32_t thread, uint32_t n_threads)
{
    run_walk walk = run_walk_start(a, thread, n_threads);
    run_share s;
    while (a->n_tokens && run_walk_next(&walk, &s)) {
        if (!dtype_is_quant(a->w->dtype)) avx2_linear_floats(a, &s);
        else if (!a->xq) quant_f32(a, &s);
        else if (a->n_tokens <= FEW) quant_few(a, &s);
        else quant_many(a, &s);
    }
}

void avx2_experts(const op_experts_args *a, uint32_t thread, uint32_t n_threads)
{
    experts_by(avx2_linear, a, thread, n_threads);
}
