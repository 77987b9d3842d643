/*
 * avx2_quant.c - q8 and q4 weights, and activations as groups for them.
 *
 * Integers: a vector holds 4 columns of 8 rows; 4 activations are broadcast against it. vpmaddubsw wants one unsigned side:
 * of q8 that is |w|, the sign going to the activation (|w| <= 128, |x| <= 127, so a pair is within 32512 and never
 * saturates); codes of q4 are unsigned themselves, and 8 products of a lane (at most 30480) still fit in 16 bits. All sums of
 * a group are exact, so how they are taken is free; the f32 chain over groups is that of ref.c.
 *
 * Few tokens: a thread walks its row blocks as 4 (or 2) streams, as in avx2_linear.c; sums stay in registers.
 * Many tokens: the codes of half a q8 tile, or of half of two q4 tiles, stay in registers while up to T_BLOCK tokens pass, whose
 * groups of one number lie one after another; integer sums of the first half wait in a buffer, and so do the chains.
 * Four row blocks follow on each other, so that the groups come from L1.
 * Without groups (compute f32) tiles are turned into floats and multiplied by avx2_tile.
 */
#include "avx2.h"

enum { FEW = 4, T_BLOCK = 128, B_BLOCK = 4, PAIR = 2 * TILE_ROWS, AHEAD = 1536, F32_GROUPS = 12 };

INLINE __m256i load256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE __m256 load_f16x8(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)); }
INLINE __m256i four_of(const op_group *x, uint32_t j)
{
    int32_t v;
    memcpy(&v, x->q + 4 * j, 4);
    return _mm256_set1_epi32(v);
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
    const __m256i ones = _mm256_set1_epi16(1);
    const uint32_t steps = dt == DT_Q8 ? 8 : 4;
    UNROLL for (uint32_t t = 0; t < n_t; t++) dot[t] = _mm256_setzero_si256();
    UNROLL for (uint32_t j = 0; j < steps; j++)
    {
        __m256i w, hi;
        if (dt == DT_Q8) w = load256(tile + 16 + 32 * j), hi = _mm256_abs_epi8(w);
        else q4_pair(tile, j, &w, &hi);
        UNROLL for (uint32_t t = 0; t < n_t; t++)
        {
            if (dt == DT_Q8) {
                __m256i p = _mm256_maddubs_epi16(hi, _mm256_sign_epi8(four_of(x + t, j), w));
                dot[t] = _mm256_add_epi32(dot[t], _mm256_madd_epi16(p, ones));
            } else { /* 16-bit sums until the end */
                dot[t] = _mm256_add_epi16(dot[t], _mm256_maddubs_epi16(w, four_of(x + t, 2 * j)));
                dot[t] = _mm256_add_epi16(dot[t], _mm256_maddubs_epi16(hi, four_of(x + t, 2 * j + 1)));
            }
        }
    }
    if (dt == DT_Q4)
        UNROLL for (uint32_t t = 0; t < n_t; t++) dot[t] = _mm256_madd_epi16(dot[t], ones);
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
                store_tokens(a, s, b[j], 0, n_t, sums[0] + j * n_t * TILE_ROWS, TILE_ROWS);
        }
    }
}

/* ---- tiles in registers, many tokens ---- */
/* Half a tile of q8, columns [4 * from, 4 * from + 16): |w| and signs take 8 registers. vpsignb costs as much as a product, an
 * exclusive or half of that: where w < 0, |w| * ~x = w * x - |w|, so a row's sum that starts from the |w| of its negative codes
 * is exact. ~x >= -128 and |w| <= 128, so a pair is at least -32768. */
typedef struct {
    __m256i u[4], flip[4], start;
} q8_half;
INLINE q8_half q8_half_of(const uint8_t *tile, uint32_t from)
{
    q8_half h = {.start = _mm256_setzero_si256()};
    UNROLL for (uint32_t j = 0; j < 4; j++)
    {
        __m256i w = load256(tile + 16 + 32 * (from + j));
        h.u[j] = _mm256_abs_epi8(w);
        h.flip[j] = _mm256_cmpgt_epi8(_mm256_setzero_si256(), w);
        __m256i pairs = _mm256_maddubs_epi16(_mm256_and_si256(h.u[j], h.flip[j]), _mm256_set1_epi8(1));
        h.start = _mm256_add_epi32(h.start, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return h;
}
INLINE __m256i q8_half_dot(const q8_half *h, const op_group *x, uint32_t from, __m256i dot)
{
    UNROLL for (uint32_t j = 0; j < 4; j++)
    {
        __m256i p = _mm256_maddubs_epi16(h->u[j], _mm256_xor_si256(four_of(x, from + j), h->flip[j]));
        dot = _mm256_add_epi32(dot, _mm256_madd_epi16(p, _mm256_set1_epi16(1)));
    }
    return dot;
}

static void q8_many(const uint8_t *tile, const op_group *x, uint32_t n, float *acc)
{
    __m256 d = load_f16x8(tile);
    __m256i part[T_BLOCK];
    q8_half h = q8_half_of(tile, 0);
    for (uint32_t t = 0; t < n; t++) part[t] = q8_half_dot(&h, x + t, 0, h.start);
    h = q8_half_of(tile, 4);
    for (uint32_t t = 0; t < n; t++, x++, acc += TILE_ROWS) {
        __m256i dot = q8_half_dot(&h, x, 4, _mm256_add_epi32(part[t], h.start));
        _mm256_storeu_ps(acc, add_group(DT_Q8, _mm256_loadu_ps(acc), dot, d, d, x));
    }
}

/* Adds four columns times four of two q4 tiles, u, to their 16-bit sums. The order is held by hand: with a tree of sums, which the
 * compiler would make, codes leave the registers. */
INLINE void q4_half_dots(__m256i u[2][4], const op_group *x, uint32_t from, __m256i dot[2])
{
    UNROLL for (uint32_t j = 0; j < 4; j++)
    {
        __m256i x4 = four_of(x, from + j);
        __asm__("" : "+x"(x4));
        UNROLL for (uint32_t b = 0; b < 2; b++)
        {
            dot[b] = _mm256_add_epi16(dot[b], _mm256_maddubs_epi16(u[b][j], x4));
            __asm__("" : "+x"(dot[b]));
        }
    }
}
INLINE void q4_finish(__m256i dot, __m256 d, __m256 m, const op_group *x, float *acc)
{
    dot = _mm256_madd_epi16(dot, _mm256_set1_epi16(1));
    _mm256_storeu_ps(acc, add_group(DT_Q4, _mm256_loadu_ps(acc), dot, d, m, x));
}

/* Two tiles at once: an activation is broadcast for both, as loads were the limit. Half the columns of both take 8 registers. */
static void q4_many(const uint8_t *const tile[2], const op_group *x, uint32_t n, float *const acc[2])
{
    __m256i part[T_BLOCK][2], u[2][4];
    __m256 d[2], m[2];
    UNROLL for (uint32_t b = 0; b < 2; b++)
    {
        d[b] = load_f16x8(tile[b]), m[b] = load_f16x8(tile[b] + 16);
        UNROLL for (uint32_t j = 0; j < 2; j++) q4_pair(tile[b], j, &u[b][2 * j], &u[b][2 * j + 1]);
    }
    for (uint32_t t = 0; t < n; t++) {
        __m256i dot[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        q4_half_dots(u, x + t, 0, dot);
        part[t][0] = dot[0], part[t][1] = dot[1];
    }
    UNROLL for (uint32_t b = 0; b < 2; b++) UNROLL for (uint32_t j = 0; j < 2; j++)
        q4_pair(tile[b], 2 + j, &u[b][2 * j], &u[b][2 * j + 1]);
    for (uint32_t t = 0; t < n; t++) {
        __m256i dot[2] = {part[t][0], part[t][1]};
        q4_half_dots(u, x + t, 4, dot);
        UNROLL for (uint32_t b = 0; b < 2; b++) q4_finish(dot[b], d[b], m[b], x + t, acc[b] + t * TILE_ROWS);
    }
}

INLINE void prefetch_tile(const uint8_t *tile, uint32_t bytes, size_t ahead)
{
    for (uint32_t line = 0; line < bytes; line += 64) _mm_prefetch((const char *)((uintptr_t)tile + ahead + line), _MM_HINT_T0);
}

/* One leaf of row blocks [b, b + n_b) for tokens [t0, t0 + n): acc[block][token][lane]. x: the leaf's groups of token t0. Of an odd
 * number of q4 blocks the last is done twice; the second sums lie behind, where acc has room. */
static void quant_panel(const op_linear_args *a, const run_share *s, const op_group *x, uint64_t b, uint32_t n_b, uint32_t n,
                        float *acc)
{
    const op_run *r = s->run;
    const bool q8 = a->w->dtype == DT_Q8;
    const uint32_t bytes = tile_bytes(a->w->dtype), step = q8 ? 1 : 2;
    const size_t each = (size_t)n * TILE_ROWS;
    memset(acc, 0, ceil_div(n_b, step) * step * each * sizeof *acc);
    const uint8_t *w = r->data + b * r->block_stride;
    for (uint32_t k = 0; k < r->n_k; k += GROUP_K, w += bytes, x += a->xqs)
        for (uint32_t j = 0; j < n_b; j += step) {
            const uint8_t *tile[2] = {w + j * r->block_stride, w + MIN(j + 1, n_b - 1) * r->block_stride};
            float *sums[2] = {acc + j * each, acc + (j + 1) * each};
            for (uint32_t i = 0; i < step; i++) prefetch_tile(tile[i], bytes, 4 * bytes);
            if (q8) q8_many(tile[0], x, n, sums[0]);
            else q4_many(tile, x, n, sums);
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
                if (!leaf_done(a, l, sums[0], ARRAY_LEN(sums[0]), (size_t)n_b * n * TILE_ROWS)) continue;
                for (uint32_t j = 0; j < n_b; j++) store_tokens(a, s, b + j, t0, n, sums[0] + (size_t)j * n * TILE_ROWS, TILE_ROWS);
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
            uint32_t n_t = avx2_tile_cut(n, i);
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
                for (uint32_t j = 0; j < 2 && b + j < s->b1; j++) store_tokens(a, s, b + j, t0, n, sums[0] + j * TILE_ROWS, PAIR);
            }
        }
}

void avx2_linear_quant(const op_linear_args *a, run_share *s)
{
    if (!a->xq) quant_f32(a, s);
    else if (a->n_tokens <= FEW) quant_few(a, s);
    else quant_many(a, s);
}

/* ---- activations ---- */
INLINE int32_t max_lane(__m256i v)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}
INLINE int32_t sum_lanes(__m256i v)
{
    __m128i m = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

static void group_of(const float *x, uint32_t n, op_group *y)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256 v[4];
    __m256i top = _mm256_setzero_si256(), q[4];
    for (uint32_t i = 0; i < 4; i++) {
        v[i] = n > 8 * i ? load_some(x + 8 * i, n - 8 * i) : _mm256_setzero_ps();
        top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
    }
    int32_t bits = max_lane(top);
    float amax;
    memcpy(&amax, &bits, 4);
    if (bits >= 0x7f800000 || amax < QUANT_MIN) {
        memset(y, 0, sizeof *y);
        if (bits >= 0x7f800000) y->d = y->s = NAN;
        return;
    }
    __m256 inv = set8(127.0f / amax);
    for (uint32_t i = 0; i < 4; i++) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inv)); /* to nearest even */
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
    __m256i all = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    _mm256_storeu_si256((__m256i *)(void *)y->q, _mm256_permutevar8x32_epi32(all, order));
    y->d = amax / 127.0f;
    y->s = y->d * (float)sum_lanes(sum);
}

void avx2_quant(const op_quant_args *a, uint32_t thread, uint32_t n_threads)
{
    group_walk walk = group_walk_start(a, thread, n_threads);
    const float *x;
    op_group *y;
    for (uint32_t n; group_walk_next(&walk, &x, &n, &y);) group_of(x, n, y);
}
