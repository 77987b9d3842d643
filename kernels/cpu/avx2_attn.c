/*
 * avx2_attn.c - attention over pages.
 *
 * A tile is up to Q_MAX queries that read one kv head: the heads of its group for one or more consecutive rows of a sequence.
 * Queries are numbered row by row, so the queries of consecutive rows are consecutive. A chunk of 256 positions is handled at
 * once: scores of all its positions for all queries (K blocks of 8 positions are the row blocks of avx2_tile, the queries its
 * tokens), softmax per query, then sums over V (8 dimensions are a block, probabilities are the activations), joined to the
 * query's running state, whose O is kept in the output row itself.
 *
 * Masks: a score lane of a position that its row does not see is dropped by the softmax. In V a lane is a dimension, so a position
 * that a row does not see must not enter the chain: pages that all rows see in full are done for all queries together, others
 * row by row over just their positions.
 *
 * Threads take tiles in turn. When there are so few (row, kv head) pairs that threads would idle, they take single chunks
 * instead, leave (m, l, o) of each in scratch, meet at the barrier, and merge.
 */
#include "avx2.h"

enum { Q_MAX = 24, STRIPE = TILE_B * 8, SLICE = 4 * STRIPE, WIDE_DIM = 256, PAGE_MAX = 64 };
enum { LANES = VB * 8 };
enum { Q_STEP = WIDE_DIM + 16 }; /* so that copies of q do not share sets of a cache */

typedef struct {
    const op_attn_args *a;
    uint32_t t0, n_rows; /* rows of the batch: one sequence, consecutive positions */
    uint32_t g, h0, n_h; /* local kv head, first query head, heads */
    const float *q[Q_MAX];
    float *o[Q_MAX];                           /* where O of each query is kept */
    bool first[Q_MAX];                         /* no chunk was joined yet */
    _Alignas(32) float max[Q_MAX], sum[Q_MAX]; /* M, L */
    _Alignas(32) float m[Q_MAX], l[Q_MAX];     /* of the chunk */
    _Alignas(32) float fa[Q_MAX], fb[Q_MAX];   /* factors of the old and the new part */
    _Alignas(64) float ks[ATTN_CHUNK], vs[ATTN_CHUNK]; /* int8: scales of the chunk's seen positions */
    float kept[Q_MAX][2 * KBIAS_PAIRS + 1];    /* kbias: factors of c and s of each pair, then what is the same everywhere */
    _Alignas(64) float s[Q_MAX][ATTN_CHUNK];   /* scores, then probabilities; by position % ATTN_CHUNK */
#ifdef ISA_AVX512
    _Alignas(64) float own_q[Q_MAX * Q_STEP];  /* copies of q, where the wide tile takes them */
#endif
} attn_tile;

/* What of a chunk is seen: by rows [r0, r1) of the tile, positions [lo, hi) by at least one of them. */
typedef struct {
    uint32_t r0, r1, lo, hi, base;
} seen;

static uint32_t row_pos(const attn_tile *x, uint32_t r) { return x->a->b.pos[x->t0 + r]; }
static uint32_t row_lo(const attn_tile *x, uint32_t r) { return attn_lo(x->a->window, row_pos(x, r)); }

/* Positions ascend with the rows, and so do the windows' starts: the rows that see something of a chunk are a range. */
static seen chunk_seen(const attn_tile *x, uint32_t base)
{
    seen c = {0, x->n_rows, 0, 0, base};
    while (c.r0 < c.r1 && row_pos(x, c.r0) < base) c.r0++;
    while (c.r1 > c.r0 && row_lo(x, c.r1 - 1) - base >= ATTN_CHUNK && row_lo(x, c.r1 - 1) >= base) c.r1--;
    if (c.r0 == c.r1) return c;
    c.lo = MAX(base, row_lo(x, c.r0));
    c.hi = MIN(base + ATTN_CHUNK, row_pos(x, c.r1 - 1) + 1);
    return c;
}

/* ---- scores ---- */
static const uint8_t *k_block(const attn_tile *x, uint32_t p)
{
    const op_kv *pg = &x->a->kv;
    return kv_head(pg, &x->a->b, x->t0, p, x->g) + kv_k_at(pg, p % pg->page_tokens / TILE_ROWS * TILE_ROWS, 0) * kv_esize(pg);
}
static const uint8_t *v_row(const attn_tile *x, uint32_t p)
{
    const op_kv *pg = &x->a->kv;
    return kv_head(pg, &x->a->b, x->t0, p, x->g) + pg->v_off + (size_t)(p % pg->page_tokens) * pg->v_dim * kv_esize(pg);
}
/* Distance for the prefetch: pages lie anywhere, so hardware does not find the next one. */
static size_t ahead_to(const uint8_t *next, const uint8_t *now) { return (size_t)((uintptr_t)next - (uintptr_t)now); }

/* K blocks of positions p, p + 8, .. (n_b of them); a block outside [lo, hi) may have no page: a seen one stands in. */
static void k_blocks(const attn_tile *x, const seen *c, uint32_t p, uint32_t n_b, const uint8_t **w)
{
    const uint8_t *good = k_block(x, MAX(p, c->lo));
    for (uint32_t b = 0; b < n_b; b++) {
        uint32_t at = p + b * TILE_ROWS;
        w[b] = at < c->hi && at + TILE_ROWS > c->lo ? k_block(x, at) : good;
    }
}

/* Where K of the next chunk begins: of this kv head, or of the next one, which is likely to follow; else NULL. */
static const uint8_t *next_chunk(const attn_tile *x, const seen *c)
{
    const op_kv *pg = &x->a->kv;
    uint32_t base = c->base + ATTN_CHUNK;
    if (base <= row_pos(x, x->n_rows - 1)) return k_block(x, base);
    return x->g + 1 < pg->n_kv_heads ? k_block(x, row_lo(x, 0)) + pg->head_bytes : NULL;
}

/* Scales lie behind K and V of a page, one or two cache lines each: asked for together, and a chunk ahead. */
static void prefetch_scales(const attn_tile *x, uint32_t lo, uint32_t hi)
{
    const op_kv *pg = &x->a->kv;
    for (uint32_t p = lo; p < hi; p = (p / pg->page_tokens + 1) * pg->page_tokens) {
        const uint8_t *s = kv_scales(pg, kv_head(pg, &x->a->b, x->t0, p, x->g), false);
        for (uint32_t i = 0; i < 4 * pg->page_tokens; i += 64) _mm_prefetch((const char *)s + i, _MM_HINT_T0);
    }
}

/* Scales of 8 positions at a time: they lie in one page, which is there when one of them is seen. */
static void load_scales(attn_tile *x, const seen *c)
{
    const op_kv *pg = &x->a->kv;
    uint32_t end = row_pos(x, x->n_rows - 1) + 1, next = c->base + ATTN_CHUNK;
    if (c->base <= row_lo(x, 0)) prefetch_scales(x, c->lo, c->hi); /* the first chunk: nothing did so before */
    if (next < end) prefetch_scales(x, next, MIN(end, next + ATTN_CHUNK));
    for (uint32_t p = c->lo / 8 * 8; p < c->hi; p += 8) {
        uint8_t *head = kv_head(pg, &x->a->b, x->t0, p, x->g);
        size_t at = 2 * (size_t)(p % pg->page_tokens);
        const void *k = kv_scales(pg, head, false) + at, *v = kv_scales(pg, head, true) + at;
        _mm256_store_ps(x->ks + (p - c->base), _mm256_cvtph_ps(_mm_loadu_si128(k)));
        _mm256_store_ps(x->vs + (p - c->base), _mm256_cvtph_ps(_mm_loadu_si128(v)));
    }
}

/* Many queries read K and V several times, which are then widened to floats first: by AVX-512, or where int8 K would take as many
 * instructions as the products. */
static bool many_queries(const attn_tile *x, uint32_t n_q) { return n_q > TILE_T && x->a->kv.k_dim <= WIDE_DIM; }

#ifndef ISA_AVX512
static void widen_blocks(const attn_tile *x, const uint8_t **w, uint32_t n_b, size_t ahead, float (*wide)[WIDE_DIM * 8])
{
    uint32_t k_dim = x->a->kv.k_dim;
    for (uint32_t b = 0; b < n_b; b++) {
        for (uint32_t i = 0; i < k_dim * 8; i += 64) _mm_prefetch((const char *)((uintptr_t)w[b] + i + ahead), _MM_HINT_T0);
        avx2_k8_to_f32(w[b], k_dim, wide[b]);
        w[b] = (const uint8_t *)wide[b];
    }
}

#endif

static avx2_tile score_tile(uint32_t dtype, uint32_t n_b, uint32_t n_t)
{
    return dtype == DT_I8 ? avx2_tile_k8(n_b, n_t) : avx2_tile_get(dtype, n_b, n_t);
}

/* Scores of positions [p, p + width), whose K blocks are w[n_b]. */
static void block_scores(attn_tile *x, const seen *c, uint32_t p, const uint8_t **w, uint32_t n_b, size_t ahead)
{
    const op_kv *pg = &x->a->kv;
    uint32_t q0 = c->r0 * x->n_h, n_q = (c->r1 - c->r0) * x->n_h;
#ifdef ISA_AVX512
    _Alignas(64) float wide[WIDE_DIM * WIDE];
    if (many_queries(x, n_q)) {
        if (pg->dtype == DT_I8) avx512_widen_k8(w, pg->k_dim, ahead, wide);
        else avx512_widen(pg->dtype, w, TILE_ROWS, pg->k_dim, ahead, wide);
        avx512_wide_tokens(wide, WIDE, x->own_q + q0 * Q_STEP, Q_STEP, pg->k_dim, n_q, &x->s[q0][p - c->base], ATTN_CHUNK, false);
        return;
    }
    const bool widen = false;
#else
    const bool widen = pg->dtype == DT_I8 && many_queries(x, n_q);
    _Alignas(32) float wide[TILE_B][WIDE_DIM * 8];
    if (widen) widen_blocks(x, w, n_b, ahead, wide), ahead = 0;
#endif
    for (uint32_t i = 0, done = 0; done < n_q; i++) {
        uint32_t n_t = tile_cut(n_q, i, TILE_T);
        for (uint32_t b = 0; b < n_b; b += avx2_tile_blocks(n_t)) {
            avx2_tile tile = score_tile(widen ? DT_F32 : pg->dtype, MIN(n_b, avx2_tile_blocks(n_t)), n_t);
            tile(w + b, TILE_ROWS, x->q + q0 + done, pg->k_dim, &x->s[q0 + done][p - c->base + b * TILE_ROWS], ATTN_CHUNK, false,
                 done ? 0 : ahead);
        }
        done += n_t;
    }
}

static void tile_scores(attn_tile *x, const seen *c)
{
    uint32_t n_b = avx2_tile_blocks(tile_cut((c->r1 - c->r0) * x->n_h, 0, TILE_T)), width = n_b * TILE_ROWS;
    for (uint32_t p = c->lo / width * width; p < c->hi; p += width) {
        const uint8_t *w[TILE_B];
        k_blocks(x, c, p, n_b, w);
        block_scores(x, c, p, w, n_b, ahead_to(p + width < c->hi ? k_block(x, p + width) : v_row(x, c->lo), w[0]));
    }
}

/* ---- K bias ---- */
static void kbias_factors(const op_kbias_head *h, const float *q, uint32_t k_dim, float *kept)
{
    float flat = 0.0f;
    for (uint32_t d = 0; h->flat && d < k_dim; d++) flat = fmaf(q[d], h->flat[d], flat);
    for (uint32_t i = 0; i < h->n_pairs; i++) {
        const op_kbias_pair *p = &h->pair[i];
        kept[2 * i] = fmaf(q[p->da], p->ba, q[p->db] * p->bb);
        kept[2 * i + 1] = fmaf(q[p->db], p->ba, -(q[p->da] * p->bb));
    }
    kept[2 * h->n_pairs] = flat;
}

/* Scores of n queries from i on at positions j .. j + 15 of the chunk times their scale, plus what the query makes of the bias. */
INLINE void kbias_block(attn_tile *x, const op_kbias_head *h, uint32_t i, const uint32_t n, uint32_t j, const float *lanes, size_t at,
                        size_t next)
{
    __m256 e[2][3];
    UNROLL for (uint32_t t = 0; t < n; t++) e[0][t] = e[1][t] = set8(x->kept[i + t][2 * h->n_pairs]);
    for (uint32_t k = 0; k < h->n_pairs; k++) {
        const float *cs = lanes + at + h->pair[k].i * 16, *f = &x->kept[i][2 * k];
        __m256 c0 = _mm256_loadu_ps(cs), s0 = _mm256_loadu_ps(cs + 8);
        __m256 c1 = _mm256_loadu_ps(cs + next), s1 = _mm256_loadu_ps(cs + next + 8);
        UNROLL for (uint32_t t = 0; t < n; t++, f += sizeof x->kept[0] / sizeof *f) {
            __m256 a = set8(f[0]), b = set8(f[1]);
            e[0][t] = _mm256_fmadd_ps(s0, b, _mm256_fmadd_ps(c0, a, e[0][t]));
            e[1][t] = _mm256_fmadd_ps(s1, b, _mm256_fmadd_ps(c1, a, e[1][t]));
        }
    }
    __m256 ks0 = _mm256_load_ps(x->ks + j), ks1 = _mm256_load_ps(x->ks + j + 8);
    UNROLL for (uint32_t t = 0; t < n; t++) {
        float *s = &x->s[i + t][j];
        _mm256_store_ps(s, _mm256_fmadd_ps(_mm256_load_ps(s), ks0, e[0][t]));
        _mm256_store_ps(s + 8, _mm256_fmadd_ps(_mm256_load_ps(s + 8), ks1, e[1][t]));
    }
}

static void tile_kbias(attn_tile *x, const seen *c)
{
    const op_kbias *kb = x->a->kbias;
    const op_kbias_head *h = &kb->head[x->g];
    const float *lanes = kb->lanes[x->a->b.seq[x->t0]]; /* NULL when nothing is rotated */
    const size_t next = (size_t)kb->n_cs * 16;
    uint32_t end = c->r1 * x->n_h;
    for (uint32_t p = c->lo / 16 * 16; p < c->hi; p += 16) {
        size_t at = p / 8 * next;
        uint32_t i = c->r0 * x->n_h, j = p - c->base;
        for (; i + 3 <= end; i += 3) kbias_block(x, h, i, 3, j, lanes, at, next);
        if (end - i == 2) kbias_block(x, h, i, 2, j, lanes, at, next);
        else if (end - i == 1) kbias_block(x, h, i, 1, j, lanes, at, next);
    }
}

/* ---- softmax ---- */
#ifndef ISA_AVX512
INLINE __m256 seen_lanes(uint32_t j, uint32_t lo, uint32_t hi) /* positions j .. j + 7 that lie in [lo, hi) */
{
    __m256i at = _mm256_add_epi32(_mm256_set1_epi32((int)j), lane_index());
    __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)lo), at), end = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)hi), at);
    return _mm256_castsi256_ps(_mm256_andnot_si256(below, end));
}
#endif
/* Lanes of V that are not seen become -inf: no maximum, and exp makes 0 of them. */
INLINE vf only_seen(vf v, uint32_t j, uint32_t lo, uint32_t hi)
{
    if (j >= lo && j + LANES <= hi) return v;
#ifdef ISA_AVX512
    uint32_t from = lo > j ? lo - j : 0, to = hi > j ? MIN(hi - j, LANES) : 0;
    uint32_t lanes = from < to ? (0xffffu << from) & (0xffffu >> (LANES - to)) : 0;
    return _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), (__mmask16)lanes, v);
#else
    return _mm256_blendv_ps(set8(-INFINITY), v, seen_lanes(j, lo, hi));
#endif
}

/* Scores as the softmax takes them, over the vectors that hold positions [lo, hi), and their maximum per lane. ready: they were
 * scaled already. */
INLINE vf final_scores(const attn_tile *x, float *s, uint32_t lo, uint32_t hi, bool int8, bool ready)
{
    const vf scale = V(set1_ps)(x->a->scale);
    vf max = V(set1_ps)(-INFINITY);
    for (uint32_t j = lo / LANES * LANES; j < hi; j += LANES) {
        vf v = V(load_ps)(s + j);
        if (int8) v = V(mul_ps)(v, V(load_ps)(x->ks + j));
        if (!ready) v = V(mul_ps)(v, scale);
        v = only_seen(v, j, lo, hi);
        V(store_ps)(s + j, v);
        max = V(max_ps)(v, max); /* a NaN loses, as in ref.c */
    }
    return max;
}

/* Scales, soft cap and bias, where there are any, in place. */
static void cap_and_bias(const attn_tile *x, float *s, uint32_t lo, uint32_t hi, bool int8, const float *bias, float own)
{
    for (uint32_t j = lo / 8 * 8; j < hi; j += 8) {
        __m256 v = _mm256_load_ps(s + j);
        if (int8) v = _mm256_mul_ps(v, _mm256_load_ps(x->ks + j));
        v = soft_cap8(_mm256_mul_ps(v, set8(x->a->scale)), x->a->softcap);
        if (bias) v = _mm256_add_ps(v, _mm256_sub_ps(_mm256_loadu_ps(bias + j), set8(own)));
        _mm256_store_ps(s + j, v);
    }
}
/* Query i over positions [lo, hi) of the chunk at `base`, counted from its start. */
static void query_softmax(attn_tile *x, uint32_t i, uint32_t base, uint32_t lo, uint32_t hi)
{
    const float *bias = x->a->bias ? x->a->bias + (x->h0 + i % x->n_h) * x->a->bias_stride : NULL;
    float *s = x->s[i], lanes[LANES], m = -INFINITY;
    bool int8 = x->a->kv.dtype == DT_I8, scale = int8 && !x->a->kbias; /* tile_kbias has applied the scale of K */
    __m256 sum = _mm256_setzero_ps();
    vf max;
    if (bias || x->a->softcap > 0.0f) {
        cap_and_bias(x, s, lo, hi, scale, bias ? bias + base : NULL, bias ? bias[row_pos(x, i / x->n_h)] : 0.0f);
        max = final_scores(x, s, lo, hi, false, true);
    } else max = scale ? final_scores(x, s, lo, hi, true, false) : final_scores(x, s, lo, hi, false, false);
    V(storeu_ps)(lanes, max);
    for (uint32_t k = 0; k < LANES; k++) m = lanes[k] > m ? lanes[k] : m;
    const vf all_m = V(set1_ps)(m);
    for (uint32_t j = lo / LANES * LANES; j < hi; j += LANES) {
        vf p = v_exp_low(V(sub_ps)(V(load_ps)(s + j), all_m));
        V(store_ps)(s + j, int8 ? V(mul_ps)(p, V(load_ps)(x->vs + j)) : p);
        sum = v_add_to8(sum, p); /* adding 0 changes nothing: the sum is never -0 */
    }
    x->m[i] = m;
    x->l[i] = lanes8_total(sum);
}

/* M, L and the factors for O of queries [q0, q1). All lanes are computed; those of other queries are not taken over. */
static void state_join(attn_tile *x, uint32_t q0, uint32_t q1)
{
    _Alignas(32) float max[8], sum[8];
    for (uint32_t i = q0 / 8 * 8; i < q1; i += 8) {
        __m256 om = _mm256_load_ps(x->max + i), m = _mm256_load_ps(x->m + i), nm = _mm256_max_ps(m, om);
        __m256 fa = exp8(_mm256_sub_ps(om, nm)), fb = exp8(_mm256_sub_ps(m, nm));
        __m256 l = _mm256_mul_ps(_mm256_load_ps(x->l + i), fb);
        _mm256_store_ps(x->fa + i, fa);
        _mm256_store_ps(x->fb + i, fb);
        _mm256_store_ps(max, nm);
        _mm256_store_ps(sum, _mm256_fmadd_ps(_mm256_load_ps(x->sum + i), fa, l));
        for (uint32_t k = MAX(i, q0); k < MIN(i + 8, q1); k++) {
            x->max[k] = x->first[k] ? x->m[k] : max[k - i];
            x->sum[k] = x->first[k] ? x->l[k] : sum[k - i];
        }
    }
}

/* ---- values ---- */
/* n lanes: o = first ? add : fma(o, fa, add * fb) */
INLINE void join_some(float *o, const float *add, bool first, float fa, float fb, uint32_t n)
{
    __m256 v = _mm256_loadu_ps(add);
    if (!first) v = _mm256_fmadd_ps(load_some(o, n), set8(fa), _mm256_mul_ps(v, set8(fb)));
    store_some(o, v, n);
}

/* Adds positions [p, end) of one page to the sums acc[query][SLICE] of queries [q0, q0 + n_q). off: where the dimensions of
 * each of n_b blocks start. */
static void value_run(attn_tile *x, const seen *c, uint32_t p, uint32_t end, const uint32_t *off, uint32_t n_b, uint32_t q0,
                      uint32_t n_q, float (*acc)[SLICE])
{
    const op_kv *pg = &x->a->kv;
    const uint8_t *v = v_row(x, p), *w[SLICE / 8];
    const uint8_t *next = end < c->hi ? v_row(x, end) : next_chunk(x, c);
    size_t ahead = next ? ahead_to(next, v) : 0;
    for (uint32_t b = 0; b < n_b; b++) w[b] = v + off[b] * kv_esize(pg);
#ifdef ISA_AVX512
    for (uint32_t b = 0; n_q > TILE_T && b < n_b; b += TILE_B) {
        _Alignas(64) float wide[PAGE_MAX * WIDE];
        avx512_widen(pg->dtype, w + b, pg->v_dim, end - p, ahead, wide);
        avx512_wide_tokens(wide, WIDE, &x->s[q0][p - c->base], ATTN_CHUNK, end - p, n_q, &acc[q0][b * 8], SLICE, true);
    }
    if (n_q > TILE_T) return;
    if (pg->v_dim % ROW == 0) { /* then blocks lie one after another, and are n_b of v_dim's as well as of whole rows */
        const float *prob[TILE_T];
        for (uint32_t t = 0; t < n_q; t++) prob[t] = &x->s[q0 + t][p - c->base];
        for (uint32_t b = 0; b < n_b; b += ROW / 8)
            avx512_row_get(pg->dtype, n_q)(w[b], pg->v_dim, prob, end - p, &acc[q0][b * 8], SLICE, ahead);
        return;
    }
#endif
    for (uint32_t i = 0, done = 0; done < n_q; i++) {
        uint32_t n_t = tile_cut(n_q, i, TILE_T), step = avx2_tile_blocks(n_t), q = q0 + done;
        avx2_tile tile = avx2_tile_get(pg->dtype, step, n_t);
        const float *prob[TILE_T];
        for (uint32_t t = 0; t < n_t; t++) prob[t] = &x->s[q + t][p - c->base];
        for (uint32_t b = 0; b < n_b; b += step)
            tile(w + b, pg->v_dim, prob, end - p, &acc[q][b * 8], SLICE, true, done ? 0 : ahead);
        done += n_t;
    }
}

/* Dimensions [d0, d0 + SLICE) of O. The last block of a width that is no multiple of 8 overlaps the one before it; blocks are
 * filled up to whole stripes with repetitions, which are dropped. */
static void tile_values(attn_tile *x, const seen *c, uint32_t d0)
{
    const op_kv *pg = &x->a->kv;
    _Alignas(32) float acc[Q_MAX][SLICE];
    uint32_t off[SLICE / 8], q0 = c->r0 * x->n_h, q1 = c->r1 * x->n_h;
    uint32_t n_b = MIN((uint32_t)SLICE, (pg->v_dim - d0 + STRIPE - 1) / STRIPE * STRIPE) / 8;
    for (uint32_t b = 0; b < n_b; b++) off[b] = MIN(d0 + 8 * b, pg->v_dim - 8);
    for (uint32_t i = q0; i < q1; i++) memset(acc[i], 0, n_b * 8 * sizeof **acc);
    uint32_t all_lo = row_lo(x, c->r1 - 1), all_hi = row_pos(x, c->r0) + 1; /* positions that every row sees */
    for (uint32_t p = c->lo, end; p < c->hi; p = end) {
        end = MIN(c->hi, (p / pg->page_tokens + 1) * pg->page_tokens);
        if (p >= all_lo && end <= all_hi) value_run(x, c, p, end, off, n_b, q0, q1 - q0, acc);
        else
            for (uint32_t r = c->r0; r < c->r1; r++) {
                uint32_t lo = MAX(p, row_lo(x, r)), hi = MIN(end, row_pos(x, r) + 1);
                if (lo < hi) value_run(x, c, lo, hi, off, n_b, r * x->n_h, x->n_h, acc);
            }
    }
    for (uint32_t i = q0; i < q1; i++)
        for (uint32_t b = 0; b < n_b && d0 + 8 * b < pg->v_dim; b++) {
            uint32_t d = d0 + 8 * b, skip = d - off[b]; /* lanes that the block before has as well */
            float *from = &acc[i][b * 8];
            if (skip) memmove(from, from + skip, (8 - skip) * sizeof *from);
            join_some(x->o[i] + d, from, x->first[i], x->fa[i], x->fb[i], pg->v_dim - d);
        }
}

static void tile_chunk(attn_tile *x, uint32_t base)
{
    seen c = chunk_seen(x, base);
    if (c.r0 == c.r1) return;
    uint32_t q0 = c.r0 * x->n_h, q1 = c.r1 * x->n_h;
    if (x->a->kv.dtype == DT_I8) load_scales(x, &c);
    tile_scores(x, &c);
    if (x->a->kbias) tile_kbias(x, &c);
    for (uint32_t i = q0; i < q1; i++) {
        uint32_t r = i / x->n_h, lo = MAX(base, row_lo(x, r)), hi = MIN(base + ATTN_CHUNK, row_pos(x, r) + 1);
        query_softmax(x, i, base, lo - base, hi - base);
    }
    state_join(x, q0, q1);
    for (uint32_t d = 0; d < x->a->kv.v_dim; d += SLICE) tile_values(x, &c, d);
    for (uint32_t i = q0; i < q1; i++) x->first[i] = false;
}

/* ---- a tile from start to end ---- */
/* out = (O * c) / L, with the sink's share in L. */
static void head_finish(const op_attn_args *a, uint32_t h, float max, float sum, float *out)
{
    float c = 1.0f;
    if (a->sinks) {
        float m = a->sinks[h] > max ? a->sinks[h] : max;
        __m256 e = exp8(_mm256_setr_ps(max - m, a->sinks[h] - m, 0, 0, 0, 0, 0, 0));
        c = _mm256_cvtss_f32(e);
        sum = fmaf(sum, c, _mm256_cvtss_f32(_mm256_permute_ps(e, 1)));
    }
    for (uint32_t d = 0; d < a->kv.v_dim; d += 8) {
        uint32_t n = a->kv.v_dim - d;
        store_some(out + d, _mm256_div_ps(_mm256_mul_ps(load_some(out + d, n), set8(c)), set8(sum)), n);
    }
}

static void tile_open(attn_tile *x, const op_attn_args *a, uint32_t t0, uint32_t n_rows, uint32_t g, uint32_t h0, uint32_t n_h)
{
    x->a = a;
    x->t0 = t0, x->n_rows = n_rows;
    x->g = g, x->h0 = h0, x->n_h = n_h;
    memset(x->max, 0, sizeof x->max);
    memset(x->sum, 0, sizeof x->sum);
    memset(x->m, 0, sizeof x->m);
    memset(x->l, 0, sizeof x->l);
    for (uint32_t i = 0; i < n_rows * n_h; i++) {
        size_t t = t0 + i / n_h, h = h0 + i % n_h;
        x->q[i] = a->q + t * a->qs + h * a->kv.k_dim;
        x->o[i] = a->out + t * a->os + h * a->kv.v_dim;
        x->first[i] = true;
#ifdef ISA_AVX512
        if (many_queries(x, n_rows * n_h)) memcpy(x->own_q + i * Q_STEP, x->q[i], a->kv.k_dim * sizeof(float));
#endif
        if (a->kbias) kbias_factors(&a->kbias->head[g], x->q[i], a->kv.k_dim, x->kept[i]);
    }
}

static void tile_run(attn_tile *x)
{
    uint32_t end = row_pos(x, x->n_rows - 1) + 1;
    for (uint32_t base = row_lo(x, 0) / ATTN_CHUNK * ATTN_CHUNK; base < end; base += ATTN_CHUNK) tile_chunk(x, base);
    for (uint32_t i = 0; i < x->n_rows * x->n_h; i++) head_finish(x->a, x->h0 + i % x->n_h, x->max[i], x->sum[i], x->o[i]);
}

/* Rows from t0 on that one tile may hold: same sequence, consecutive positions, at most `most`. */
static uint32_t rows_together(const op_batch *b, uint32_t t0, uint32_t most)
{
    uint32_t n = 1;
    while (n < most && t0 + n < b->n_tokens && b->seq[t0 + n] == b->seq[t0] && b->pos[t0 + n] == b->pos[t0] + n) n++;
    return n;
}

/* Query heads of one kv head are cut in equal parts of at most Q_MAX. */
typedef struct {
    uint32_t h0, n_h;
} head_part;
static uint32_t head_parts(const op_attn_args *a, uint32_t g, uint32_t i, head_part *p)
{
    uint32_t h0, h1;
    attn_heads(a, g, &h0, &h1);
    uint32_t n = (h1 - h0 + Q_MAX - 1) / Q_MAX;
    if (i < n) *p = (head_part){h0 + (h1 - h0) * i / n, (h1 - h0) * (i + 1) / n - (h1 - h0) * i / n};
    return n;
}

static void attn_tiles(const op_attn_args *a, uint32_t thread, uint32_t n_threads)
{
    attn_tile x;
    head_part p;
    uint32_t turn = 0;
    for (uint32_t g = 0; g < a->kv.n_kv_heads; g++)
        for (uint32_t i = 0; i < head_parts(a, g, i, &p); i++)
            for (uint32_t t = 0, n; t < a->b.n_tokens; t += n) {
                n = rows_together(&a->b, t, Q_MAX / p.n_h);
                if (turn++ % n_threads != thread) continue;
                tile_open(&x, a, t, n, g, p.h0, p.n_h);
                tile_run(&x);
            }
}

/* ---- chunks over threads ---- */
static uint32_t row_chunks(const op_attn_args *a, uint32_t t, uint32_t *first)
{
    *first = attn_lo(a->window, a->b.pos[t]) / ATTN_CHUNK;
    return a->b.pos[t] / ATTN_CHUNK + 1 - *first;
}

/* The part of one chunk: m, l, o[v_dim]. Those of a row lie together, [head][chunk]. */
static float *part_at(const op_attn_args *a, uint64_t chunks_before, uint32_t n_chunks, uint32_t h, uint32_t chunk)
{
    return a->scratch + (chunks_before * a->n_heads + (uint64_t)h * n_chunks + chunk) * ((uint64_t)a->kv.v_dim + 2);
}

/* All threads answer alike: the question depends on the arguments alone. */
static bool split_chunks(const op_attn_args *a, uint32_t n_threads)
{
    uint64_t pairs = (uint64_t)a->b.n_tokens * a->kv.n_kv_heads, chunks = 0;
    if (!a->barrier || pairs >= 4 * (uint64_t)n_threads || pairs % n_threads == 0) return false;
    for (uint32_t t = 0, first; t < a->b.n_tokens; t++) chunks += row_chunks(a, t, &first);
    return chunks > a->b.n_tokens && chunks * a->n_heads * ((uint64_t)a->kv.v_dim + 2) <= a->scratch_floats;
}

static void attn_parts(const op_attn_args *a, uint32_t thread, uint32_t n_threads)
{
    attn_tile x;
    head_part p;
    uint64_t before = 0, lo, hi, total = 0, item = 0;
    for (uint32_t t = 0, first; t < a->b.n_tokens; t++) total += row_chunks(a, t, &first);
    pool_share(total * a->kv.n_kv_heads, 1, thread, n_threads, &lo, &hi);
    for (uint32_t t = 0, first, n; t < a->b.n_tokens; t++, before += n) {
        n = row_chunks(a, t, &first);
        for (uint32_t g = 0; g < a->kv.n_kv_heads; g++)
            for (uint32_t c = 0; c < n; c++, item++) {
                if (item < lo || item >= hi) continue;
                for (uint32_t i = 0; i < head_parts(a, g, i, &p); i++) {
                    tile_open(&x, a, t, 1, g, p.h0, p.n_h);
                    for (uint32_t h = 0; h < p.n_h; h++) x.o[h] = part_at(a, before, n, p.h0 + h, c) + 2;
                    tile_chunk(&x, (first + c) * ATTN_CHUNK);
                    for (uint32_t h = 0; h < p.n_h; h++) x.o[h][-2] = x.max[h], x.o[h][-1] = x.sum[h];
                }
            }
    }
}

/* The same steps as state_join and join_some take, for one query. */
static void merge_head(const op_attn_args *a, uint32_t t, uint32_t h, const float *part, uint32_t n)
{
    uint32_t v_dim = a->kv.v_dim;
    float *out = a->out + t * a->os + (size_t)h * v_dim, max = part[0], sum = part[1];
    memcpy(out, part + 2, v_dim * sizeof *out);
    for (uint32_t c = 1; c < n; c++) {
        part += v_dim + 2;
        float m = part[0] > max ? part[0] : max;
        __m256 e = exp8(_mm256_setr_ps(max - m, part[0] - m, 0, 0, 0, 0, 0, 0));
        float fa = _mm256_cvtss_f32(e), fb = _mm256_cvtss_f32(_mm256_permute_ps(e, 1));
        sum = fmaf(sum, fa, part[1] * fb);
        max = m;
        for (uint32_t d = 0; d < v_dim; d++) out[d] = fmaf(out[d], fa, part[2 + d] * fb);
    }
    head_finish(a, h, max, sum, out);
}

static void attn_merge(const op_attn_args *a, uint32_t thread, uint32_t n_threads)
{
    uint64_t before = 0, lo, hi, item = 0;
    pool_share((uint64_t)a->b.n_tokens * a->n_heads, 1, thread, n_threads, &lo, &hi);
    for (uint32_t t = 0, first, n; t < a->b.n_tokens; t++, before += n) {
        n = row_chunks(a, t, &first);
        for (uint32_t h = 0; h < a->n_heads; h++, item++)
            if (item >= lo && item < hi) merge_head(a, t, h, part_at(a, before, n, h, 0), n);
    }
}

void avx2_attn(const op_attn_args *a, uint32_t thread, uint32_t n_threads)
{
    if (a->kv.v_dim < 8) { /* narrower than a vector */
        op_table_ref.attn(a, thread, n_threads);
        return;
    }
    if (!split_chunks(a, n_threads)) {
        attn_tiles(a, thread, n_threads);
        return;
    }
    attn_parts(a, thread, n_threads);
    a->barrier(a->barrier_user, thread);
    attn_merge(a, thread, n_threads);
}
