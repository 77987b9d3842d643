/*
 * avx2_kv.c - writing K and V into pages. What is stored is what ref.c stores.
 */
#include "avx2.h"

/* n elements to f16, element i at p[i * stride]. */
static void store_f16(uint8_t *p, size_t stride, const float *x, uint32_t n)
{
    uint16_t h[8];
    for (uint32_t i = 0; i < n; i += 8) {
        uint32_t some = MIN(8, n - i);
        _mm_storeu_si128((__m128i *)(void *)h, _mm256_cvtps_ph(load_some(x + i, n - i), _MM_FROUND_TO_NEAREST_INT));
        if (stride == 1) memcpy(p + 2 * i, h, 2 * (size_t)some);
        else
            for (uint32_t j = 0; j < some; j++) memcpy(p + 2 * stride * (i + j), &h[j], 2);
    }
}

/* The scale of a row of an int8 page; *inv is NaN when all codes are to be 0. */
static uint16_t row_scale(const float *x, uint32_t n, float *inv)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_setzero_si256();
    for (uint32_t i = 0; i < n; i += 8)
        top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(load_some(x + i, n - i)), magnitude));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    float amax = _mm_cvtss_f32(_mm_castsi128_ps(m));
    uint16_t h = f32_to_f16(amax / 127.0f);
    h = _mm_cvtsi128_si32(m) >= 0x7f800000 ? 0x7e00 : h > 0x7bff ? 0x7bff : h;
    *inv = h == 0 || h == 0x7e00 ? NAN : 1.0f / f16_to_f32(h);
    return h;
}

/* n codes in steps of `unit` (8 or 4) bytes: byte i at p[i / unit * stride + i % unit]. */
INLINE void store_i8(uint8_t *p, uint32_t unit, size_t stride, const float *x, uint32_t n, float inv)
{
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 v = isnan(inv) ? _mm256_setzero_ps() : _mm256_mul_ps(load_some(x + i, n - i), set8(inv));
        v = _mm256_min_ps(_mm256_max_ps(v, set8(-127.0f)), set8(127.0f));
        __m256i q = _mm256_cvtps_epi32(v);
        __m128i w = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
        uint8_t b[16];
        _mm_storeu_si128((__m128i *)(void *)b, _mm_packs_epi16(w, w));
        uint32_t some = MIN(8, n - i);
        for (uint32_t j = 0; j < some; j += unit) memcpy(p + (i + j) / unit * stride, b + j, MIN(unit, some - j));
    }
}

/* K of row t without the bias that is kept apart. */
static void kbias_subtract(const op_kv_write_args *a, uint32_t t, uint32_t g, const float *k, float *out)
{
    const op_kbias *kb = a->kbias;
    const op_kbias_head *h = &kb->head[g];
    const float *cs = kb->cs[a->b.seq[t]]; /* NULL when nothing is rotated */
    uint32_t n = a->kv.k_dim;
    memcpy(out, k, n * sizeof *out);
    for (uint32_t d = 0; h->flat && d < n; d += 8)
        store_some(out + d, _mm256_sub_ps(load_some(out + d, n - d), load_some(h->flat + d, n - d)), n - d);
    for (uint32_t i = 0; i < h->n_pairs; i++) {
        const op_kbias_pair *p = &h->pair[i];
        size_t at = ((size_t)a->b.pos[t] * kb->n_cs + p->i) * 2;
        float c = cs[at], s = cs[at + 1];
        out[p->da] = out[p->da] - fmaf(p->ba, c, -(p->bb * s));
        out[p->db] = out[p->db] - fmaf(p->ba, s, p->bb * c);
    }
}

static void write_k8(const op_kv *pg, uint8_t *page, uint32_t slot, const float *k)
{
    float inv;
    uint16_t h = row_scale(k, pg->k_dim, &inv);
    memcpy(kv_scales(pg, page, false) + 2 * (size_t)slot, &h, 2);
    store_i8(page + kv_k_at(pg, slot, 0), 4, 32, k, pg->k_dim, inv);
}
static void write_v8(const op_kv *pg, uint8_t *page, uint32_t slot, const float *v)
{
    float inv;
    uint16_t h = row_scale(v, pg->v_dim, &inv);
    memcpy(kv_scales(pg, page, true) + 2 * (size_t)slot, &h, 2);
    store_i8(page + pg->v_off + (size_t)slot * pg->v_dim, 8, 8, v, pg->v_dim, inv);
}

void avx2_kv_write(const op_kv_write_args *a, uint32_t thread, uint32_t n_threads)
{
    const op_kv *pg = &a->kv;
    uint64_t lo, hi;
    if (pg->dtype == DT_F32) {
        ref_kv_write(a, thread, n_threads);
        return;
    }
    pool_share((uint64_t)a->b.n_tokens * pg->n_kv_heads, 1, thread, n_threads, &lo, &hi);
    for (uint64_t j = lo; j < hi; j++) {
        uint32_t t = (uint32_t)(j / pg->n_kv_heads), g = (uint32_t)(j % pg->n_kv_heads), slot = a->b.pos[t] % pg->page_tokens;
        uint8_t *page = kv_head(pg, &a->b, t, a->b.pos[t], g);
        const float *k = a->k ? a->k + t * a->ks + (size_t)g * pg->k_dim : NULL;
        const float *v = a->v ? a->v + t * a->vs + (size_t)g * pg->v_dim : NULL;
        if (pg->dtype == DT_I8) {
            float rest[KBIAS_DIM];
            if (k && a->kbias) kbias_subtract(a, t, g, k, rest), k = rest;
            if (k) write_k8(pg, page, slot, k);
            if (v) write_v8(pg, page, slot, v);
            continue;
        }
        if (k) store_f16(page + 2 * kv_k_at(pg, slot, 0), TILE_ROWS, k, pg->k_dim);
        if (v) store_f16(page + pg->v_off + (size_t)slot * pg->v_dim * 2, 1, v, pg->v_dim);
    }
}
