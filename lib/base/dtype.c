/* dtype.c - the table of element types, sizes of layouts, conversions. See dtype.h. */
#include "dtype.h"

static const dtype_info table[DT_COUNT] = {
    [DT_F32] = {"f32", 1, 4, true},
    [DT_F16] = {"f16", 1, 2, true},
    [DT_BF16] = {"bf16", 1, 2, true},
    [DT_Q8] = {"q8", GROUP_K, 34, false},
    [DT_Q4] = {"q4", GROUP_K, 20, false},
    [DT_I8] = {"i8", 1, 1, false},
    [DT_I32] = {"i32", 1, 4, false},
    [DT_U8] = {"u8", 1, 1, false},
};
_Static_assert(Q8_TILE == TILE_ROWS * 34 && Q4_TILE == TILE_ROWS * 20, "tiles are 8 blocks");

const dtype_info *dtype_get(uint32_t dt) { return dt < DT_COUNT && table[dt].name ? &table[dt] : NULL; }

int dtype_by_name(const char *name)
{
    for (int i = 1; i < DT_COUNT; i++)
        if (table[i].name && strcmp(table[i].name, name) == 0) return i;
    return 0;
}

bool layout_stride(uint32_t dt, uint32_t layout, const uint64_t *k, uint32_t n_leaves, uint64_t *bytes)
{
    const dtype_info *d = dtype_get(dt);
    if (!d || layout > LAYOUT_TILE8 || (layout == LAYOUT_ROWS && dtype_is_quant(dt))) return false;
    uint64_t blocks = 0, unit = (uint64_t)d->block_bytes * (layout == LAYOUT_TILE8 ? TILE_ROWS : 1);
    for (uint32_t i = 0; i < n_leaves; i++)
        if (!u64_add(blocks, ceil_div(k[i], d->block), &blocks)) return false;
    return u64_mul(blocks, unit, bytes);
}

bool layout_bytes(uint32_t dt, uint32_t layout, uint64_t rows, const uint64_t *k, uint32_t n_leaves, uint64_t *bytes)
{
    uint64_t stride;
    if (!layout_stride(dt, layout, k, n_leaves, &stride)) return false;
    return u64_mul(stride, layout == LAYOUT_TILE8 ? ceil_div(rows, TILE_ROWS) : rows, bytes);
}

/* One row block: the eight rows advance together, so that both sides are read and written in order. */
static void pack_block(uint8_t *d, const uint8_t *s, size_t stride, uint32_t rows, uint64_t n_k, uint32_t esize)
{
    if (rows < TILE_ROWS) memset(d, 0, (size_t)n_k * TILE_ROWS * esize);
    for (uint32_t r = 0; r < rows; r++) {
        const uint8_t *row = s + r * stride;
        if (esize == 2)
            for (uint64_t k = 0; k < n_k; k++) memcpy(d + (k * TILE_ROWS + r) * 2, row + k * 2, 2);
        else
            for (uint64_t k = 0; k < n_k; k++) memcpy(d + (k * TILE_ROWS + r) * 4, row + k * 4, 4);
    }
}

#if defined(__SSE2__)
#include <emmintrin.h>
/* 8 rows by 8 columns of 16-bit elements: a plain transpose in registers. */
static void pack8x8_u16(uint8_t *d, const uint8_t *s, size_t stride)
{
    __m128i r[8], a[8];
    for (int i = 0; i < 8; i++) r[i] = _mm_loadu_si128((const __m128i *)(const void *)(s + (size_t)i * stride));
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
    }
    for (int h = 0; h < 2; h++) { /* columns 4h .. 4h + 3 */
        __m128i b0 = _mm_unpacklo_epi32(a[h], a[2 + h]), b1 = _mm_unpackhi_epi32(a[h], a[2 + h]);
        __m128i b2 = _mm_unpacklo_epi32(a[4 + h], a[6 + h]), b3 = _mm_unpackhi_epi32(a[4 + h], a[6 + h]);
        __m128i *o = (__m128i *)(void *)(d + h * 64);
        _mm_storeu_si128(o, _mm_unpacklo_epi64(b0, b2));
        _mm_storeu_si128(o + 1, _mm_unpackhi_epi64(b0, b2));
        _mm_storeu_si128(o + 2, _mm_unpacklo_epi64(b1, b3));
        _mm_storeu_si128(o + 3, _mm_unpackhi_epi64(b1, b3));
    }
}
static uint64_t pack_fast_u16(uint8_t *d, const uint8_t *s, size_t stride, uint64_t n_k)
{
    uint64_t k = 0;
    for (; k + 8 <= n_k; k += 8) pack8x8_u16(d + k * 16, s + k * 2, stride);
    return k;
}
#else
static uint64_t pack_fast_u16(uint8_t *d, const uint8_t *s, size_t stride, uint64_t n_k)
{
    UNUSED(d); UNUSED(s); UNUSED(stride); UNUSED(n_k);
    return 0;
}
#endif

void tile8_pack(void *dst, const void *src, size_t src_stride, uint64_t n_rows, uint64_t n_k, uint32_t esize)
{
    uint8_t *d = dst;
    const uint8_t *s = src;
    for (uint64_t r = 0; r < n_rows; r += TILE_ROWS, d += n_k * TILE_ROWS * esize, s += TILE_ROWS * src_stride) {
        uint32_t rows = (uint32_t)MIN((uint64_t)TILE_ROWS, n_rows - r);
        uint64_t done = rows == TILE_ROWS && esize == 2 ? pack_fast_u16(d, s, src_stride, n_k) : 0;
        pack_block(d + done * TILE_ROWS * esize, s + done * esize, src_stride, rows, n_k - done, esize);
    }
}

void tile8_unpack(void *dst, size_t dst_stride, const void *src, uint64_t n_rows, uint64_t n_k, uint32_t esize)
{
    for (uint64_t r = 0; r < n_rows; r++) {
        const uint8_t *s = (const uint8_t *)src + (r / TILE_ROWS * n_k * TILE_ROWS + r % TILE_ROWS) * esize;
        uint8_t *d = (uint8_t *)dst + r * dst_stride;
        if (esize == 2)
            for (uint64_t k = 0; k < n_k; k++) memcpy(d + k * 2, s + k * TILE_ROWS * 2, 2);
        else
            for (uint64_t k = 0; k < n_k; k++) memcpy(d + k * 4, s + k * TILE_ROWS * 4, 4);
    }
}

static float bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff;
    if (e == 31) return bits_f32(sign | 0x7f800000 | m << 13 | (m ? 0x400000 : 0)); /* NaN is made quiet, as vcvtph2ps does */
    if (e) return bits_f32(sign | (e + 112) << 23 | m << 13);
    float f = (float)m * 0x1p-24f;
    return sign ? -f : f;
}

uint16_t f32_to_f16(float f)
{
    uint32_t u = f32_bits(f), a = u & 0x7fffffff;
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and above */
    if (a < 0x38800000) { /* subnormal: adding 0.5 rounds to a multiple of 2^-24 in the low bits */
        float r = bits_f32(a) + 0.5f;
        return (uint16_t)(sign | (f32_bits(r) - 0x3f000000));
    }
    uint32_t odd = a >> 13 & 1;
    return (uint16_t)(sign | ((a - 0x38000000 + 0xfff + odd) >> 13));
}

float bf16_to_f32(uint16_t h) { return bits_f32((uint32_t)h << 16); }

uint16_t f32_to_bf16(float f)
{
    uint32_t u = f32_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

void dtype_to_f32(uint32_t dt, const void *src, float *dst, size_t n)
{
    const uint8_t *s = src;
    if (dt == DT_F32) memcpy(dst, src, n * 4);
    else if (dt == DT_F16) for (size_t i = 0; i < n; i++) dst[i] = f16_to_f32(rd16(s + 2 * i));
    else for (size_t i = 0; i < n; i++) dst[i] = bf16_to_f32(rd16(s + 2 * i));
}

void dtype_from_f32(uint32_t dt, const float *src, void *dst, size_t n)
{
    uint8_t *d = dst;
    if (dt == DT_F32) {
        memcpy(dst, src, n * 4);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t h = dt == DT_F16 ? f32_to_f16(src[i]) : f32_to_bf16(src[i]);
        memcpy(d + 2 * i, &h, 2);
    }
}
