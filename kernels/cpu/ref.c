/*
 * ref.c - the definition of every operation: plain C, one rounding per written operation, no vectors.
 *
 * Compiled for the plain instruction set with -ffp-contract=off. fmaf is the fused multiply-add of IEEE 754 (exact product,
 * one rounding), whether the C library has it in hardware or not; division and sqrtf are correctly rounded. No other
 * function of the C library takes part: exp, tanh and the error function are the formulas below.
 * Every other table must give these bits. Speed is no aim here; clarity is.
 */
#include <math.h>

#include "cpu.h"

/* ---- functions ---- */
static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* x = n ln 2 + r with |r| <= ln 2 / 2; exp(r) by a polynomial of degree 6; n is added to the exponent field. */
float op_exp(float x)
{
    if (x != x) return x;
    if (x < EXP_MIN) return 0.0f;
    if (x > EXP_MAX) return INFINITY;
    float t = fmaf(x, EXP_LOG2E, EXP_MAGIC), n = t - EXP_MAGIC;
    float r = fmaf(n, -EXP_LN2_LO, fmaf(n, -EXP_LN2_HI, x));
    float p = fmaf(EXP_C6, r, EXP_C5);
    p = fmaf(p, r, EXP_C4);
    p = fmaf(p, r, EXP_C3);
    p = fmaf(p, r, EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    return float_of(bits_of(p) + (bits_of(t) << 23));
}

/* Odd polynomial near 0, else 1 - 2 / (exp(2|x|) + 1). */
float op_tanh(float x)
{
    float a = fabsf(x), z = x * x;
    float p = fmaf(TANH_C4, z, TANH_C3);
    p = fmaf(p, z, TANH_C2);
    p = fmaf(p, z, TANH_C1);
    p = fmaf(p, z, TANH_C0);
    if (a < TANH_SMALL) return fmaf(x * z, p, x);
    return copysignf(1.0f - 2.0f / (op_exp(a + a) + 1.0f), x);
}

static float act_silu(float x) { return x / (1.0f + op_exp(-x)); }

/* x times the normal distribution function. With a = |x| its tail is exp(-a^2 / 2) times a polynomial in 1 / (1 + k a). The
 * square is taken in two parts, so that the tail keeps its relative accuracy. */
static float act_gelu(float x)
{
    float a = fabsf(x);
    a = a < GELU_MAX ? a : GELU_MAX;
    float sq = a * a, low = fmaf(a, a, -sq);
    float e = op_exp(-0.5f * sq);
    e = fmaf(e, -0.5f * low, e);
    float t = 1.0f / fmaf(GELU_K, a, 1.0f);
    float p = fmaf(GELU_C8, t, GELU_C7);
    p = fmaf(p, t, GELU_C6);
    p = fmaf(p, t, GELU_C5);
    p = fmaf(p, t, GELU_C4);
    p = fmaf(p, t, GELU_C3);
    p = fmaf(p, t, GELU_C2);
    p = fmaf(p, t, GELU_C1);
    p = fmaf(p, t, GELU_C0);
    float tail = e * p;
    return x * (x >= 0.0f ? 1.0f - tail : tail);
}

/* 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3). */
static float act_gelu_tanh(float x)
{
    float u = x * fmaf(GELU_TANH_B * x, x, 1.0f);
    return x / (1.0f + op_exp(GELU_TANH_A * u));
}

static float act_relu(float x) { return 0.0f > x ? 0.0f : x; } /* NaN stays NaN */

static float act_apply(uint32_t act, float x)
{
    switch (act) {
    case ACT_SILU: return act_silu(x);
    case ACT_GELU: return act_gelu(x);
    case ACT_GELU_TANH: return act_gelu_tanh(x);
    case ACT_RELU: return act_relu(x);
    default: return act_relu(x) * act_relu(x); /* ACT_RELU2 */
    }
}

static float act_swiglu_clamp(float g, float u, float alpha, float limit)
{
    g = g > limit ? limit : g; /* NaN stays NaN */
    u = u > limit ? limit : u;
    u = u < -limit ? -limit : u;
    return (u + 1.0f) * (g / (1.0f + op_exp(-(alpha * g))));
}

static float soft_cap(float x, float cap) { return cap > 0.0f ? cap * op_tanh(x / cap) : x; }

/* Element i of an array of any float dtype, or of int8. */
static float widen(uint32_t dt, const uint8_t *p, size_t i)
{
    if (dt == DT_I8) return (float)(int8_t)p[i];
    if (dt == DT_F32) return float_of(rd32(p + 4 * i));
    return dt == DT_F16 ? f16_to_f32(rd16(p + 2 * i)) : bf16_to_f32(rd16(p + 2 * i));
}

static float lanes8_total(const float s[8]) { return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])); }

/* ---- weights times activations ---- */
/* Code of lane r, element i of a tile of q8 or q4. */
static int32_t tile_code(uint32_t dt, const uint8_t *tile, uint32_t r, uint32_t i)
{
    if (dt == DT_Q8) return (int8_t)tile[16 + i / 4 * 32 + 4 * r + i % 4];
    return tile[32 + i / 8 * 32 + 4 * r + i % 4] >> (i % 8 < 4 ? 0 : 4) & 15;
}
static float tile_scale(const uint8_t *tile, uint32_t r) { return f16_to_f32(rd16(tile + 2 * r)); }
static float tile_min(const uint8_t *tile, uint32_t r) { return f16_to_f32(rd16(tile + 16 + 2 * r)); }

/* Lane r, column k of a row block of any type. */
static float block_value(uint32_t dt, const uint8_t *block, uint32_t r, uint32_t k)
{
    if (!dtype_is_quant(dt)) return widen(dt, block, (size_t)k * TILE_ROWS + r);
    const uint8_t *tile = block + (size_t)(k / GROUP_K) * tile_bytes(dt);
    float v = tile_scale(tile, r) * (float)tile_code(dt, tile, r, k % GROUP_K); /* exact: 11 and 8 bits */
    return dt == DT_Q4 ? v + tile_min(tile, r) : v;
}

static void linear_dot(const op_linear_args *a, const run_share *s, const uint8_t *w, uint32_t t, float acc[TILE_ROWS])
{
    const float *x = a->x + t * a->xs + s->run->k0;
    for (uint32_t k = 0; k < s->run->n_k; k++)
        for (uint32_t i = 0; i < TILE_ROWS; i++) acc[i] = fmaf(block_value(a->w->dtype, w, i, k), x[k], acc[i]);
}

static void linear_groups(const op_linear_args *a, const run_share *s, const uint8_t *w, uint32_t t, float acc[TILE_ROWS])
{
    const op_group *x = a->xq + groups_before(a->w, s->leaf) * a->xqs + t;
    for (uint32_t k = 0; k < s->run->n_k; k += GROUP_K, w += tile_bytes(a->w->dtype), x += a->xqs)
        for (uint32_t i = 0; i < TILE_ROWS; i++) {
            int32_t dot = 0;
            for (uint32_t j = 0; j < GROUP_K; j++) dot += tile_code(a->w->dtype, w, i, j) * x->q[j];
            acc[i] = fmaf((float)dot, tile_scale(w, i) * x->d, acc[i]);
            if (a->w->dtype == DT_Q4) acc[i] = fmaf(tile_min(w, i), x->s, acc[i]);
        }
}

/* Row block b of one leaf. */
static void linear_block(const op_linear_args *a, const run_share *s, uint64_t b, uint32_t t, float acc[TILE_ROWS])
{
    const uint8_t *w = s->run->data + b * s->run->block_stride;
    memset(acc, 0, TILE_ROWS * sizeof *acc);
    if (a->xq && dtype_is_quant(a->w->dtype)) linear_groups(a, s, w, t, acc);
    else linear_dot(a, s, w, t, acc);
}

static void linear_store(const op_linear_args *a, const run_share *s, uint64_t b, uint32_t t, const float acc[TILE_ROWS])
{
    uint32_t lane0, lane1, row;
    block_rows(s, b, &lane0, &lane1, &row);
    float *y = a->y + (a->sum_leaves ? 0 : s->leaf) * a->yl + t * a->ys;
    for (uint32_t i = lane0; i < lane1; i++, row++) y[row] = a->bias ? acc[i] + a->bias[row] : acc[i];
}

/* Nearest even by the magic number, as a vector conversion rounds. */
static int32_t round_even(float x) { return (int32_t)(bits_of(x + 0x1.8p23f) - 0x4b400000u); }

static void quant_group(const float *x, uint32_t n, op_group *y)
{
    uint32_t top = 0; /* magnitudes compare as their bits do, NaN above infinity */
    int32_t sum = 0;
    memset(y, 0, sizeof *y);
    for (uint32_t i = 0; i < n; i++) top = MAX(top, bits_of(x[i]) & 0x7fffffff);
    if (top >= 0x7f800000) y->d = y->s = NAN;
    float amax = float_of(top);
    if (top >= 0x7f800000 || amax < QUANT_MIN) return;
    float inv = 127.0f / amax;
    for (uint32_t i = 0; i < n; i++) {
        y->q[i] = (int8_t)round_even(x[i] * inv);
        sum += y->q[i];
    }
    y->d = amax / 127.0f;
    y->s = y->d * (float)sum;
}

static void ref_quant(const op_quant_args *a, uint32_t thread, uint32_t n_threads)
{
    group_walk walk = group_walk_start(a, thread, n_threads);
    const float *x;
    op_group *y;
    for (uint32_t n; group_walk_next(&walk, &x, &n, &y);) quant_group(x, n, y);
}

static float leaf_tree(const float *const *parts, size_t at, uint32_t lo, uint32_t hi)
{
    uint32_t h = 1;
    if (hi - lo == 1) return parts[lo][at];
    while (h * 2 < hi - lo) h *= 2;
    return leaf_tree(parts, at, lo, lo + h) + leaf_tree(parts, at, lo + h, hi);
}

static void ref_linear(const op_linear_args *a, uint32_t thread, uint32_t n_threads)
{
    run_walk walk = run_walk_start(a, thread, n_threads);
    run_share s;
    while (run_walk_next(&walk, &s))
        for (uint64_t b = s.b0; b < s.b1; b++)
            for (uint32_t t = 0; t < a->n_tokens; t++) {
                float acc[MAX_LEAVES][TILE_ROWS], sum[TILE_ROWS];
                const float *parts[MAX_LEAVES];
                for (uint32_t l = 0; l < a->w->n_leaves; l++) {
                    run_leaf(&s, l);
                    parts[l] = acc[l];
                    linear_block(a, &s, b, t, acc[l]);
                    if (!a->sum_leaves) linear_store(a, &s, b, t, acc[l]);
                }
                for (uint32_t i = 0; a->sum_leaves && i < TILE_ROWS; i++) sum[i] = leaf_tree(parts, i, 0, a->w->n_leaves);
                if (a->sum_leaves) linear_store(a, &s, b, t, sum);
            }
}

/* The run of a one-leaf weight that holds local row `row`; NULL when none does. */
static const op_run *run_of_row(const op_weight *w, uint32_t row)
{
    for (uint32_t i = 0; i < w->n_parts; i++)
        if (row >= w->runs[i].row0 && row - w->runs[i].row0 < w->runs[i].n_rows) return &w->runs[i];
    return NULL;
}

void ref_embed(const op_embed_args *a, uint32_t thread, uint32_t n_threads)
{
    cell_walk walk = cell_walk_start(a->n_tokens, a->n, thread, n_threads);
    for (uint32_t t, c0, c1; cell_walk_next(&walk, &t, &c0, &c1);) {
        float *y = a->y + t * a->ys;
        int64_t id = a->ids[t];
        bool mine = id >= a->row_lo && id < a->row_hi;
        const op_run *r = mine ? run_of_row(a->w, (uint32_t)(id - a->row_lo)) : NULL;
        if (!r) {
            memset(y + c0, 0, (c1 - c0) * sizeof *y);
            continue;
        }
        uint64_t at = (uint64_t)r->row_skip + (uint32_t)(id - a->row_lo) - r->row0;
        const uint8_t *block = r->data + at / TILE_ROWS * r->block_stride;
        for (uint32_t i = c0; i < c1; i++) y[i] = block_value(a->w->dtype, block, at % TILE_ROWS, i) * a->scale;
    }
}

/* ---- norm, rope ---- */
static float mean_of(const float *x, uint32_t n)
{
    float s[8] = {0};
    for (uint32_t i = 0; i < n; i++) s[i % 8] += x[i];
    return lanes8_total(s) / (float)n;
}

/* Sum of the squares of x - shift. */
static float square_sum(const float *x, uint32_t n, float shift)
{
    float s[8] = {0};
    for (uint32_t i = 0; i < n; i++) {
        float d = x[i] - shift;
        s[i % 8] = fmaf(d, d, s[i % 8]);
    }
    return lanes8_total(s);
}

static void norm_row(const op_norm_args *a, const float *x, size_t g, float *y)
{
    const float *w = a->w + g * a->gs, *b = a->kind == NORM_LAYER && a->b ? a->b + g * a->gs : NULL;
    float mean = a->kind == NORM_LAYER ? mean_of(x, a->n) : 0.0f; /* x - 0 is x, bit for bit */
    float r = 1.0f / sqrtf(square_sum(x, a->n, mean) / (float)a->n + a->eps);
    for (uint32_t i = 0; i < a->n; i++) {
        float v = (x[i] - mean) * r;
        v = v * (a->kind == NORM_RMS_PLUS1 ? 1.0f + w[i] : w[i]);
        y[i] = b ? v + b[i] : v;
    }
}

static void ref_norm(const op_norm_args *a, uint32_t thread, uint32_t n_threads)
{
    uint64_t lo, hi;
    pool_share((uint64_t)a->n_tokens * a->groups, 1, thread, n_threads, &lo, &hi);
    for (uint64_t i = lo; i < hi; i++) {
        size_t t = i / a->groups, g = i % a->groups, at = g * a->n;
        norm_row(a, a->x + t * a->xs + at, g, a->y + t * a->ys + at);
    }
}

static void ref_head_sums(const op_head_sums_args *a, uint32_t thread, uint32_t n_threads)
{
    uint64_t lo, hi;
    pool_share((uint64_t)a->n_tokens * a->n_heads, 1, thread, n_threads, &lo, &hi);
    for (uint64_t i = lo; i < hi; i++) {
        size_t t = i / a->n_heads, h = i % a->n_heads;
        a->y[t * a->ys + h] = square_sum(a->x + t * a->xs + h * a->head_dim, a->head_dim, 0.0f);
    }
}

static void ref_norm_sums(const op_norm_sums_args *a, uint32_t thread, uint32_t n_threads)
{
    uint64_t lo, hi;
    pool_share(a->n_tokens, 1, thread, n_threads, &lo, &hi);
    for (size_t t = lo; t < hi; t++) {
        float r = 1.0f / sqrtf(norm_sums_total(a, t) / (float)a->n + a->eps);
        for (uint32_t i = 0; i < a->cols; i++) a->y[t * a->ys + i] = (a->x[t * a->xs + i] * r) * a->w[i];
    }
}

static void ref_rope(const op_rope_args *a, uint32_t thread, uint32_t n_threads)
{
    uint32_t half = a->dims / 2;
    uint64_t lo, hi;
    if (a->kind == ROPE_NONE) return;
    pool_share((uint64_t)a->n_tokens * a->n_heads, 1, thread, n_threads, &lo, &hi);
    for (uint64_t j = lo; j < hi; j++) {
        size_t t = j / a->n_heads;
        float *x = a->x + t * a->xs + j % a->n_heads * a->head_dim;
        const float *cs = a->cs + (size_t)a->pos[t] * 2 * half;
        for (uint32_t i = 0; i < half; i++) {
            uint32_t ia = a->kind == ROPE_HALF ? i : 2 * i, ib = a->kind == ROPE_HALF ? i + half : 2 * i + 1;
            float c = cs[2 * i], s = cs[2 * i + 1], va = x[ia], vb = x[ib];
            x[ia] = fmaf(va, c, -(vb * s));
            x[ib] = fmaf(va, s, vb * c);
        }
    }
}

/* ---- pages ---- */
/* inv: of int8, what codes are multiplied with; NaN: all codes are 0. */
static void kv_store(uint32_t dt, uint8_t *p, size_t i, float v, float inv)
{
    if (dt == DT_F32) memcpy(p + 4 * i, &v, 4);
    else if (dt == DT_F16) {
        uint16_t h = f32_to_f16(v);
        memcpy(p + 2 * i, &h, 2);
    } else {
        float q = inv == inv ? v * inv : 0.0f;
        q = q > -127.0f ? q : -127.0f;
        p[i] = (uint8_t)round_even(q < 127.0f ? q : 127.0f);
    }
}

/* Stores the scale of a row of an int8 page; gives its inverse, NaN when the codes are to be 0. */
static float kv_inverse(const op_kv *pg, const float *x, uint32_t n, uint8_t *scale)
{
    uint32_t top = 0;
    if (pg->dtype != DT_I8) return 0.0f;
    for (uint32_t i = 0; i < n; i++) top = MAX(top, bits_of(x[i]) & 0x7fffffff);
    uint16_t h = f32_to_f16(float_of(top) / 127.0f);
    h = top >= 0x7f800000 ? 0x7e00 : h > 0x7bff ? 0x7bff : h;
    memcpy(scale, &h, 2);
    return h == 0 || h == 0x7e00 ? NAN : 1.0f / f16_to_f32(h);
}

/* K of row t without the bias that is kept apart. */
static void kbias_subtract(const op_kbias *kb, const op_batch *b, uint32_t t, uint32_t g, const float *k, uint32_t n, float *out)
{
    const op_kbias_head *h = &kb->head[g];
    const float *cs = kb->cs[b->seq[t]]; /* NULL when nothing is rotated */
    for (uint32_t d = 0; d < n; d++) out[d] = h->flat ? k[d] - h->flat[d] : k[d];
    for (uint32_t i = 0; i < h->n_pairs; i++) {
        const op_kbias_pair *p = &h->pair[i];
        size_t at = ((size_t)b->pos[t] * kb->n_cs + p->i) * 2;
        float c = cs[at], s = cs[at + 1];
        out[p->da] = out[p->da] - fmaf(p->ba, c, -(p->bb * s));
        out[p->db] = out[p->db] - fmaf(p->ba, s, p->bb * c);
    }
}

void ref_kv_write(const op_kv_write_args *a, uint32_t thread, uint32_t n_threads)
{
    const op_kv *pg = &a->kv;
    uint64_t lo, hi;
    pool_share((uint64_t)a->b.n_tokens * pg->n_kv_heads, 1, thread, n_threads, &lo, &hi);
    for (uint64_t j = lo; j < hi; j++) {
        uint32_t t = (uint32_t)(j / pg->n_kv_heads), g = (uint32_t)(j % pg->n_kv_heads);
        uint32_t slot = a->b.pos[t] % pg->page_tokens;
        uint8_t *page = kv_head(pg, &a->b, t, a->b.pos[t], g);
        if (a->k) {
            const float *k = a->k + t * a->ks + (size_t)g * pg->k_dim;
            float rest[KBIAS_DIM];
            if (a->kbias) kbias_subtract(a->kbias, &a->b, t, g, k, pg->k_dim, rest), k = rest;
            float inv = kv_inverse(pg, k, pg->k_dim, kv_scales(pg, page, false) + 2 * (size_t)slot);
            for (uint32_t d = 0; d < pg->k_dim; d++) kv_store(pg->dtype, page, kv_k_at(pg, slot, d), k[d], inv);
        }
        if (a->v) {
            const float *v = a->v + t * a->vs + (size_t)g * pg->v_dim;
            float inv = kv_inverse(pg, v, pg->v_dim, kv_scales(pg, page, true) + 2 * (size_t)slot);
            for (uint32_t d = 0; d < pg->v_dim; d++) kv_store(pg->dtype, page + pg->v_off, (size_t)slot * pg->v_dim + d, v[d], inv);
        }
    }
}

/* ---- attention ---- */
typedef struct {
    float max, sum;
    bool first;
} softmax_state;

/* What the bias kept apart adds to the score of position j. */
static float kbias_score(const op_kbias *kb, uint32_t seq, uint32_t g, const float *q, uint32_t k_dim, uint32_t j)
{
    const op_kbias_head *h = &kb->head[g];
    const float *lanes = kb->lanes[seq];
    float e = 0.0f;
    for (uint32_t d = 0; h->flat && d < k_dim; d++) e = fmaf(q[d], h->flat[d], e);
    for (uint32_t i = 0; i < h->n_pairs; i++) {
        const op_kbias_pair *p = &h->pair[i];
        float qa = q[p->da], qb = q[p->db];
        size_t at = ((size_t)(j / 8) * kb->n_cs + p->i) * 16 + j % 8;
        e = fmaf(lanes[at], fmaf(qa, p->ba, qb * p->bb), e);
        e = fmaf(lanes[at + 8], fmaf(qb, p->ba, -(qa * p->bb)), e);
    }
    return e;
}

/* Scores of positions [p0, p1) of one chunk, at p[position % ATTN_CHUNK]; returns the greatest. */
static float attn_scores(const op_attn_args *a, uint32_t t, uint32_t h, uint32_t g, uint32_t p0, uint32_t p1, float *p)
{
    const op_kv *pg = &a->kv;
    const float *q = a->q + t * a->qs + (size_t)h * pg->k_dim;
    const float *bias = a->bias ? a->bias + h * a->bias_stride : NULL;
    float max = -INFINITY;
    for (uint32_t j = p0; j < p1; j++) {
        uint8_t *head = kv_head(pg, &a->b, t, j, g);
        float s = 0.0f;
        for (uint32_t d = 0; d < pg->k_dim; d++) s = fmaf(widen(pg->dtype, head, kv_k_at(pg, j % pg->page_tokens, d)), q[d], s);
        float ks = pg->dtype == DT_I8 ? f16_to_f32(rd16(kv_scales(pg, head, false) + j % pg->page_tokens * 2)) : 1.0f;
        s = a->kbias ? fmaf(s, ks, kbias_score(a->kbias, a->b.seq[t], g, q, pg->k_dim, j)) : s * ks;
        s = soft_cap(s * a->scale, a->softcap);
        if (bias) s = s + (bias[j] - bias[a->b.pos[t]]);
        p[j % ATTN_CHUNK] = s;
        max = s > max ? s : max;
    }
    return max;
}

static void attn_chunk(const op_attn_args *a, uint32_t t, uint32_t h, uint32_t g, uint32_t p0, uint32_t p1, softmax_state *st)
{
    const op_kv *pg = &a->kv;
    float p[ATTN_CHUNK], lanes[8] = {0};
    float m = attn_scores(a, t, h, g, p0, p1, p);
    for (uint32_t j = p0; j < p1; j++) {
        p[j % ATTN_CHUNK] = op_exp(p[j % ATTN_CHUNK] - m);
        lanes[j % 8] += p[j % ATTN_CHUNK];
        if (pg->dtype != DT_I8) continue;
        const uint8_t *vs = kv_scales(pg, kv_head(pg, &a->b, t, j, g), true);
        p[j % ATTN_CHUNK] = p[j % ATTN_CHUNK] * f16_to_f32(rd16(vs + j % pg->page_tokens * 2));
    }
    float l = lanes8_total(lanes), fa = 0.0f, fb = 1.0f;
    if (st->first) *st = (softmax_state){m, l, true};
    else {
        float max = m > st->max ? m : st->max;
        fa = op_exp(st->max - max);
        fb = op_exp(m - max);
        *st = (softmax_state){max, fmaf(st->sum, fa, l * fb), false};
    }
    float *out = a->out + t * a->os + (size_t)h * pg->v_dim;
    for (uint32_t d = 0; d < pg->v_dim; d++) {
        float o = 0.0f;
        for (uint32_t j = p0; j < p1; j++) {
            const uint8_t *v = kv_head(pg, &a->b, t, j, g) + pg->v_off;
            o = fmaf(widen(pg->dtype, v, (size_t)(j % pg->page_tokens) * pg->v_dim + d), p[j % ATTN_CHUNK], o);
        }
        out[d] = st->first ? o : fmaf(out[d], fa, o * fb);
    }
    st->first = false;
}

static void attn_head(const op_attn_args *a, uint32_t t, uint32_t h)
{
    uint32_t g = (a->q_head0 + h) / a->group - a->kv_head0, end = a->b.pos[t] + 1;
    softmax_state st = {0, 0, true};
    for (uint32_t p0 = attn_lo(a->window, a->b.pos[t]), p1; p0 < end; p0 = p1) {
        p1 = MIN(end, p0 / ATTN_CHUNK * ATTN_CHUNK + ATTN_CHUNK);
        attn_chunk(a, t, h, g, p0, p1, &st);
    }
    float *out = a->out + t * a->os + (size_t)h * a->kv.v_dim, scale = 1.0f;
    if (a->sinks) {
        float max = a->sinks[h] > st.max ? a->sinks[h] : st.max;
        scale = op_exp(st.max - max);
        st.sum = fmaf(st.sum, scale, op_exp(a->sinks[h] - max));
    }
    for (uint32_t d = 0; d < a->kv.v_dim; d++) out[d] = out[d] * scale / st.sum;
}

static void ref_attn(const op_attn_args *a, uint32_t thread, uint32_t n_threads)
{
    uint64_t lo, hi;
    pool_share((uint64_t)a->b.n_tokens * a->n_heads, 1, thread, n_threads, &lo, &hi);
    for (uint64_t j = lo; j < hi; j++) attn_head(a, (uint32_t)(j / a->n_heads), (uint32_t)(j % a->n_heads));
}

/* ---- elementwise ---- */
static void ref_act(const op_act_args *a, uint32_t thread, uint32_t n_threads)
{
    cell_walk walk = cell_walk_start(a->count ? *a->count : a->n_tokens, a->n, thread, n_threads);
    for (uint32_t t, c0, c1; cell_walk_next(&walk, &t, &c0, &c1);)
        for (uint32_t i = c0; i < c1; i++) {
            float g = a->g[t * a->gs + i];
            if (a->act == ACT_SWIGLU_CLAMP) a->y[t * a->ys + i] = act_swiglu_clamp(g, a->u[t * a->us + i], a->alpha, a->limit);
            else a->y[t * a->ys + i] = a->u ? act_apply(a->act, g) * a->u[t * a->us + i] : act_apply(a->act, g);
        }
}

void ref_reduce(const op_reduce_args *a, uint32_t thread, uint32_t n_threads)
{
    cell_walk walk = cell_walk_start(a->n_tokens, a->n, thread, n_threads);
    for (uint32_t t, c0, c1; cell_walk_next(&walk, &t, &c0, &c1);)
        for (uint32_t i = c0; i < c1; i++) {
            float v = leaf_tree(a->parts, t * a->ps + i, 0, a->n_leaves);
            if (a->bias) v = v + a->bias[i];
            v = v * a->scale; /* times 1 changes nothing */
            a->y[t * a->ys + i] = a->residual ? a->residual[t * a->rs + i] + v : v;
        }
}

static void ref_logits(const op_logits_args *a, uint32_t thread, uint32_t n_threads)
{
    cell_walk walk = cell_walk_start(a->n_tokens, a->n, thread, n_threads);
    for (uint32_t t, c0, c1; cell_walk_next(&walk, &t, &c0, &c1);)
        for (uint32_t i = c0; i < c1; i++) a->y[t * a->ys + i] = soft_cap(a->x[t * a->xs + i] * a->scale, a->cap);
}

void ref_clamp(const op_clamp_args *a, uint32_t thread, uint32_t n_threads)
{
    cell_walk walk = cell_walk_start(a->n_tokens, a->n, thread, n_threads);
    for (uint32_t t, c0, c1; cell_walk_next(&walk, &t, &c0, &c1);)
        for (float *x = a->x + t * a->xs + c0, *end = x + (c1 - c0); x < end; x++)
            *x = *x < -a->limit ? -a->limit : *x > a->limit ? a->limit : *x;
}

static void ref_experts(const op_experts_args *a, uint32_t thread, uint32_t n_threads)
{
    experts_by(ref_linear, a, thread, n_threads);
}

static uint64_t ref_exp_sum(const float *x, size_t n, float one, float *max)
{
    uint64_t sum = 0;
    *max = -INFINITY;
    for (size_t i = 0; i < n; i++) *max = MAX(*max, x[i]);
    for (size_t i = 0; *max > -INFINITY && i < n; i++) sum += (uint64_t)(op_exp(x[i] - *max) * one);
    return sum;
}

const op_table op_table_ref = {
    .name = "ref",
    .quant = ref_quant,
    .linear = ref_linear,
    .embed = ref_embed,
    .norm = ref_norm,
    .head_sums = ref_head_sums,
    .norm_sums = ref_norm_sums,
    .rope = ref_rope,
    .kv_write = ref_kv_write,
    .attn = ref_attn,
    .act = ref_act,
    .reduce = ref_reduce,
    .logits = ref_logits,
    .clamp = ref_clamp,
    .route = ref_route,
    .pairs = ref_pairs,
    .gather = ref_gather,
    .experts = ref_experts,
    .mix = ref_mix,
    .gate = ref_gate,
    .exp_sum = ref_exp_sum,
};
