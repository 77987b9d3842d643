/*
 * avx2_ops.c - the operations that are neither linear nor attention, and the tables of all x86 instruction sets, which have
 * these in common. Arithmetic as in ref.c, 8 elements at once.
 */
#include "avx2.h"

/* ---- activations as groups ---- */
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

static void avx2_quant(const op_quant_args *a, uint32_t thread, uint32_t n_threads)
{
    group_walk walk = group_walk_start(a, thread, n_threads);
    const float *x;
    op_group *y;
    for (uint32_t n; group_walk_next(&walk, &x, &n, &y);) group_of(x, n, y);
}

/* ---- norm ---- */
static float mean_of(const float *x, uint32_t n)
{
    __m256 s = _mm256_setzero_ps();
    for (uint32_t i = 0; i < n; i += 8) s = _mm256_add_ps(s, load_some(x + i, n - i)); /* s is never -0: adding 0 keeps it */
    return lanes8_total(s) / (float)n;
}

static float square_sum(const float *x, uint32_t n, float shift)
{
    __m256 s = _mm256_setzero_ps(), c = set8(shift);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 d = _mm256_sub_ps(_mm256_loadu_ps(x + i), c);
        s = _mm256_fmadd_ps(d, d, s);
    }
    if (i < n) {
        __m256 d = _mm256_and_ps(_mm256_sub_ps(load_some(x + i, n - i), c), _mm256_castsi256_ps(lane_mask(n - i)));
        s = _mm256_fmadd_ps(d, d, s);
    }
    return lanes8_total(s);
}

static void norm_row(const op_norm_args *a, const float *x, size_t g, float *y)
{
    float mean = a->kind == NORM_LAYER ? mean_of(x, a->n) : 0.0f;
    float r = 1.0f / sqrtf(square_sum(x, a->n, mean) / (float)a->n + a->eps);
    const float *weight = a->w + g * a->gs, *bias = a->kind == NORM_LAYER && a->b ? a->b + g * a->gs : NULL;
    for (uint32_t i = 0; i < a->n; i += 8) {
        uint32_t n = a->n - i;
        __m256 v = _mm256_mul_ps(_mm256_sub_ps(load_some(x + i, n), set8(mean)), set8(r)), w = load_some(weight + i, n);
        if (a->kind == NORM_RMS_PLUS1) w = _mm256_add_ps(set8(1.0f), w);
        v = _mm256_mul_ps(v, w);
        if (bias) v = _mm256_add_ps(v, load_some(bias + i, n));
        store_some(y + i, v, n);
    }
}

static void avx2_norm(const op_norm_args *a, uint32_t thread, uint32_t n_threads)
{
    uint64_t lo, hi;
    pool_share((uint64_t)a->n_tokens * a->groups, 1, thread, n_threads, &lo, &hi);
    for (uint64_t i = lo; i < hi; i++) {
        size_t t = i / a->groups, g = i % a->groups, at = g * a->n;
        norm_row(a, a->x + t * a->xs + at, g, a->y + t * a->ys + at);
    }
}

static void avx2_head_sums(const op_head_sums_args *a, uint32_t thread, uint32_t n_threads)
{
    uint64_t lo, hi;
    pool_share((uint64_t)a->n_tokens * a->n_heads, 1, thread, n_threads, &lo, &hi);
    for (uint64_t i = lo; i < hi; i++) {
        size_t t = i / a->n_heads, h = i % a->n_heads;
        a->y[t * a->ys + h] = square_sum(a->x + t * a->xs + h * a->head_dim, a->head_dim, 0.0f);
    }
}

static void avx2_norm_sums(const op_norm_sums_args *a, uint32_t thread, uint32_t n_threads)
{
    uint64_t lo, hi;
    pool_share(a->n_tokens, 1, thread, n_threads, &lo, &hi);
    for (size_t t = lo; t < hi; t++) {
        float r = 1.0f / sqrtf(norm_sums_total(a, t) / (float)a->n + a->eps);
        for (uint32_t i = 0; i < a->cols; i += 8) {
            uint32_t n = a->cols - i;
            __m256 v = _mm256_mul_ps(load_some(a->x + t * a->xs + i, n), set8(r));
            store_some(a->y + t * a->ys + i, _mm256_mul_ps(v, load_some(a->w + i, n)), n);
        }
    }
}

/* ---- rope ---- */
INLINE void rope_one(float *pa, float *pb, float c, float s)
{
    float a = *pa, b = *pb;
    *pa = fmaf(a, c, -(b * s));
    *pb = fmaf(a, s, b * c);
}

static void rope_half(float *x, const float *cs, uint32_t half)
{
    uint32_t i = 0;
    for (; i + 8 <= half; i += 8) {
        __m256 u = _mm256_loadu_ps(cs + 2 * i), v = _mm256_loadu_ps(cs + 2 * i + 8); /* c0 s0 .. c3 s3, c4 s4 .. */
        __m256 lo = _mm256_permute2f128_ps(u, v, 0x20), hi = _mm256_permute2f128_ps(u, v, 0x31);
        __m256 c = _mm256_shuffle_ps(lo, hi, 0x88), s = _mm256_shuffle_ps(lo, hi, 0xdd);
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + half);
        _mm256_storeu_ps(x + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(x + i + half, _mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c)));
    }
    for (; i < half; i++) rope_one(x + i, x + i + half, cs[2 * i], cs[2 * i + 1]);
}

static void rope_pairs(float *x, const float *cs, uint32_t half)
{
    uint32_t i = 0;
    for (; i + 4 <= half; i += 4) {
        __m256 v = _mm256_loadu_ps(x + 2 * i), f = _mm256_loadu_ps(cs + 2 * i);      /* a b a b ..., c s c s ... */
        __m256 t = _mm256_mul_ps(_mm256_movehdup_ps(v), _mm256_permute_ps(f, 0xb1)); /* b s, b c */
        _mm256_storeu_ps(x + 2 * i, _mm256_fmaddsub_ps(_mm256_moveldup_ps(v), f, t));
    }
    for (; i < half; i++) rope_one(x + 2 * i, x + 2 * i + 1, cs[2 * i], cs[2 * i + 1]);
}

static void avx2_rope(const op_rope_args *a, uint32_t thread, uint32_t n_threads)
{
    uint32_t half = a->dims / 2;
    uint64_t lo, hi;
    if (a->kind == ROPE_NONE) return;
    pool_share((uint64_t)a->n_tokens * a->n_heads, 1, thread, n_threads, &lo, &hi);
    for (uint64_t j = lo; j < hi; j++) {
        size_t t = j / a->n_heads;
        float *x = a->x + t * a->xs + j % a->n_heads * a->head_dim;
        const float *cs = a->cs + (size_t)a->pos[t] * 2 * half;
        if (a->kind == ROPE_HALF) rope_half(x, cs, half);
        else rope_pairs(x, cs, half);
    }
}

/* ---- elementwise ---- */
INLINE __m256 gelu8(__m256 x)
{
    __m256 a = _mm256_min_ps(abs8(x), set8(GELU_MAX));
    __m256 sq = _mm256_mul_ps(a, a), low = _mm256_fmsub_ps(a, a, sq);
    __m256 e = exp8(_mm256_mul_ps(set8(-0.5f), sq));
    e = _mm256_fmadd_ps(e, _mm256_mul_ps(set8(-0.5f), low), e);
    __m256 t = _mm256_div_ps(set8(1.0f), _mm256_fmadd_ps(set8(GELU_K), a, set8(1.0f)));
    __m256 p = _mm256_fmadd_ps(set8(GELU_C8), t, set8(GELU_C7));
    p = _mm256_fmadd_ps(p, t, set8(GELU_C6));
    p = _mm256_fmadd_ps(p, t, set8(GELU_C5));
    p = _mm256_fmadd_ps(p, t, set8(GELU_C4));
    p = _mm256_fmadd_ps(p, t, set8(GELU_C3));
    p = _mm256_fmadd_ps(p, t, set8(GELU_C2));
    p = _mm256_fmadd_ps(p, t, set8(GELU_C1));
    p = _mm256_fmadd_ps(p, t, set8(GELU_C0));
    __m256 tail = _mm256_mul_ps(e, p), positive = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GE_OQ);
    return _mm256_mul_ps(x, _mm256_blendv_ps(tail, _mm256_sub_ps(set8(1.0f), tail), positive));
}

INLINE __m256 act8(uint32_t act, __m256 x)
{
    __m256 one = set8(1.0f), u;
    switch (act) {
    case ACT_SILU: return _mm256_div_ps(x, _mm256_add_ps(one, exp8(neg8(x))));
    case ACT_GELU: return gelu8(x);
    case ACT_GELU_TANH:
        u = _mm256_mul_ps(x, _mm256_fmadd_ps(_mm256_mul_ps(set8(GELU_TANH_B), x), x, one));
        return _mm256_div_ps(x, _mm256_add_ps(one, exp8(_mm256_mul_ps(set8(GELU_TANH_A), u))));
    case ACT_RELU: return _mm256_max_ps(_mm256_setzero_ps(), x);
    default: u = _mm256_max_ps(_mm256_setzero_ps(), x); return _mm256_mul_ps(u, u);
    }
}

INLINE __m256 swiglu_clamp8(__m256 g, __m256 u, float alpha, float limit)
{
    g = _mm256_min_ps(set8(limit), g); /* of a NaN the second operand, itself, is taken */
    u = _mm256_max_ps(set8(-limit), _mm256_min_ps(set8(limit), u));
    __m256 e = exp8(neg8(_mm256_mul_ps(set8(alpha), g)));
    return _mm256_mul_ps(_mm256_add_ps(u, set8(1.0f)), _mm256_div_ps(g, _mm256_add_ps(set8(1.0f), e)));
}

static void avx2_act(const op_act_args *a, uint32_t thread, uint32_t n_threads)
{
    cell_walk walk = cell_walk_start(a->count ? *a->count : a->n_tokens, a->n, thread, n_threads);
    for (uint32_t t, c0, c1; cell_walk_next(&walk, &t, &c0, &c1);) {
        const float *g = a->g + t * a->gs, *u = a->u ? a->u + t * a->us : NULL;
        for (uint32_t i = c0; i < c1; i += 8) {
            __m256 v = load_some(g + i, c1 - i);
            if (a->act == ACT_SWIGLU_CLAMP) {
                store_some(a->y + t * a->ys + i, swiglu_clamp8(v, load_some(u + i, c1 - i), a->alpha, a->limit), c1 - i);
                continue;
            }
            v = act8(a->act, v);
            if (u) v = _mm256_mul_ps(v, load_some(u + i, c1 - i));
            store_some(a->y + t * a->ys + i, v, c1 - i);
        }
    }
}

/* The tree of ops.h from below: neighbours at distance 1, 2, 4 are added; one without a neighbour waits. */
INLINE __m256 leaf_tree(__m256 *v, uint32_t n)
{
    for (uint32_t d = 1; d < n; d *= 2)
        for (uint32_t i = 0; i + d < n; i += 2 * d) v[i] = _mm256_add_ps(v[i], v[i + d]);
    return v[0];
}

static void avx2_reduce(const op_reduce_args *a, uint32_t thread, uint32_t n_threads)
{
    if (a->n_leaves > MAX_LEAVES) {
        ref_reduce(a, thread, n_threads);
        return;
    }
    cell_walk walk = cell_walk_start(a->n_tokens, a->n, thread, n_threads);
    for (uint32_t t, c0, c1; cell_walk_next(&walk, &t, &c0, &c1);)
        for (uint32_t i = c0; i < c1; i += 8) {
            uint32_t n = c1 - i;
            __m256 v[MAX_LEAVES];
            for (uint32_t l = 0; l < a->n_leaves; l++) v[l] = load_some(a->parts[l] + t * a->ps + i, n);
            __m256 s = leaf_tree(v, a->n_leaves);
            if (a->bias) s = _mm256_add_ps(s, load_some(a->bias + i, n));
            s = _mm256_mul_ps(s, set8(a->scale));
            if (a->residual) s = _mm256_add_ps(load_some(a->residual + t * a->rs + i, n), s);
            store_some(a->y + t * a->ys + i, s, n);
        }
}

static void avx2_logits(const op_logits_args *a, uint32_t thread, uint32_t n_threads)
{
    cell_walk walk = cell_walk_start(a->n_tokens, a->n, thread, n_threads);
    for (uint32_t t, c0, c1; cell_walk_next(&walk, &t, &c0, &c1);)
        for (uint32_t i = c0; i < c1; i += 8) {
            __m256 v = _mm256_mul_ps(load_some(a->x + t * a->xs + i, c1 - i), set8(a->scale));
            store_some(a->y + t * a->ys + i, soft_cap8(v, a->cap), c1 - i);
        }
}

static void avx2_mix(const op_mix_args *a, uint32_t thread, uint32_t n_threads)
{
    cell_walk walk = cell_walk_start(a->n_tokens, a->n, thread, n_threads);
    for (uint32_t t, c0, c1; cell_walk_next(&walk, &t, &c0, &c1);) {
        const uint32_t *ids = a->ids + t * a->is, *pair = a->pair + t * a->ps;
        const float *w = a->w + t * a->ws;
        for (uint32_t l = 0; l < a->n_leaves; l++)
            for (uint32_t i = c0; i < c1; i += 8) {
                __m256 s = _mm256_setzero_ps();
                for (uint32_t j = 0; j < a->n_used; j++)
                    if (ids[j] >= a->leaf[l] && ids[j] < a->leaf[l + 1])
                        s = _mm256_fmadd_ps(set8(w[j]), load_some(a->x + pair[j] * a->xs + i, c1 - i), s);
                store_some(a->y + l * a->yl + t * a->ys + i, s, c1 - i);
            }
    }
}

static void avx2_gate(const op_switch_args *a, uint32_t thread, uint32_t n_threads)
{
    cell_walk walk = cell_walk_start(a->n_tokens, a->n, thread, n_threads);
    for (uint32_t t, c0, c1; cell_walk_next(&walk, &t, &c0, &c1);) {
        __m256 g = set8(1.0f / (1.0f + op_exp(-a->g[t * a->gs])));
        for (uint32_t i = c0; i < c1; i += 8)
            store_some(a->y + t * a->ys + i, _mm256_mul_ps(load_some(a->x + t * a->xs + i, c1 - i), g), c1 - i);
    }
}

/* Of 8 elements, the last of n filled up with -inf, which neither the maximum nor the sum sees. */
static __m256 load_open(const float *x, size_t n)
{
    if (n >= 8) return _mm256_loadu_ps(x);
    __m256i mask = lane_mask((uint32_t)n);
    return _mm256_blendv_ps(set8(-INFINITY), _mm256_maskload_ps(x, mask), _mm256_castsi256_ps(mask));
}

static float row_max(const float *x, size_t n)
{
    float lane[8], max = -INFINITY;
    __m256 max8 = set8(-INFINITY);
    for (size_t i = 0; i < n; i += 8) max8 = _mm256_max_ps(max8, load_open(x + i, n - i));
    _mm256_storeu_ps(lane, max8);
    for (int i = 0; i < 8; i++) max = MAX(max, lane[i]);
    return max;
}

/* A term has two parts: whole 2^-16 of the exp, and what is below them. Both are cut exactly, and 128 of each add up in 32 bits. */
static uint64_t avx2_exp_sum(const float *x, size_t n, float one, float *max)
{
    enum { RUN = 128 * 8 };
    const __m256 scale = set8(0x1p16f), rest = set8(one * 0x1p-16f);
    uint64_t sum = 0;
    *max = row_max(x, n);
    for (size_t i = 0; *max > -INFINITY && i < n; i += RUN) {
        uint32_t high[8], low[8];
        __m256i high8 = _mm256_setzero_si256(), low8 = high8;
        for (size_t j = i, end = MIN(n, i + RUN); j < end; j += 8) {
            __m256 e = _mm256_mul_ps(exp8_low(_mm256_sub_ps(load_open(x + j, n - j), set8(*max))), scale);
            __m256i whole = _mm256_cvttps_epi32(e);
            e = _mm256_mul_ps(_mm256_sub_ps(e, _mm256_cvtepi32_ps(whole)), rest);
            high8 = _mm256_add_epi32(high8, whole);
            low8 = _mm256_add_epi32(low8, _mm256_cvttps_epi32(e));
        }
        _mm256_storeu_si256((__m256i *)(void *)high, high8);
        _mm256_storeu_si256((__m256i *)(void *)low, low8);
        for (int k = 0; k < 8; k++) sum += high[k] * (uint64_t)(one * 0x1p-16f) + low[k];
    }
    return sum;
}

/* ---- the tables ---- */
void avxvnni_linear(const op_linear_args *a, uint32_t thread, uint32_t n_threads);
void avxvnni_experts(const op_experts_args *a, uint32_t thread, uint32_t n_threads);
void avx512_linear(const op_linear_args *a, uint32_t thread, uint32_t n_threads);
void avx512_experts(const op_experts_args *a, uint32_t thread, uint32_t n_threads);
void avx512_attn(const op_attn_args *a, uint32_t thread, uint32_t n_threads);
void avx512vnni_linear(const op_linear_args *a, uint32_t thread, uint32_t n_threads);
void avx512vnni_experts(const op_experts_args *a, uint32_t thread, uint32_t n_threads);

#define TABLE(isa, linear_, experts_, attn_) \
    { \
        .name = isa, .quant = avx2_quant, .linear = linear_, .embed = ref_embed, .norm = avx2_norm, .head_sums = avx2_head_sums, \
        .norm_sums = avx2_norm_sums, .rope = avx2_rope, .kv_write = avx2_kv_write, .attn = attn_, .act = avx2_act, \
        .reduce = avx2_reduce, .logits = avx2_logits, .clamp = ref_clamp, .route = ref_route, .pairs = ref_pairs, \
        .gather = ref_gather, .experts = experts_, .mix = avx2_mix, .gate = avx2_gate, .exp_sum = avx2_exp_sum, \
    }
const op_table op_table_avx2 = TABLE("avx2", avx2_linear, avx2_experts, avx2_attn);
const op_table op_table_avxvnni = TABLE("avxvnni", avxvnni_linear, avxvnni_experts, avx2_attn);
const op_table op_table_avx512 = TABLE("avx512", avx512_linear, avx512_experts, avx512_attn);
const op_table op_table_avx512vnni = TABLE("avx512vnni", avx512vnni_linear, avx512vnni_experts, avx512_attn);
