/*
 * container_codec.c - payloads of chunks and blobs. The only file that includes zstd.
 *
 * A coded chunk is plain zstd (q8, q4) or byte planes: u32 plane_csize[4], then the planes. A plane is stored
 * as it is when its csize equals its length, else it is one zstd frame. Float weights have about 2.6 bits of
 * information in the exponent and none to save in the mantissa, so the planes of the mantissa stay raw and
 * decode at the speed of a copy.
 *
 * Frames are written with Huffman coding only (level -100000, literals always compressed): matches on an
 * exponent plane are false ones and make it larger. These are ordinary frames to a decoder. The parameter is
 * not in the stable interface of zstd: where it is refused, level 1 is used.
 *
 * The decoder believes nothing: one frame that ends where the plane ends, no dictionary, the size declared and
 * exact.
 */
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>
#include <zstd_errors.h>

#include "container_priv.h"
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { HUFFMAN_LEVEL = -100000, BLOB_LEVEL = 3 };

struct ct_enc { const mem *m; ZSTD_CCtx *c; };

static void *zstd_alloc(void *opaque, size_t n) { return mem_alloc(opaque, n); }
static void zstd_free(void *opaque, void *p) { mem_free(opaque, p); }
static ZSTD_customMem custom_mem(const mem *m)
{
    ZSTD_customMem c = {zstd_alloc, zstd_free, NULL};
    memcpy(&c.opaque, &m, sizeof m); /* zstd takes a plain pointer and does not write through it */
    return c;
}

tess_status ct_enc_open(const mem *m, ct_enc **out, tess_error *err)
{
    ct_enc *e = *out = mem_zalloc(m, sizeof *e);
    if (e) e->m = m;
    if (e) e->c = ZSTD_createCCtx_advanced(custom_mem(m));
    if (!e || !e->c) {
        ct_enc_close(e);
        *out = NULL;
        return ERR(err, TESS_E_NOMEM, "no memory for a compressor");
    }
    size_t a = ZSTD_CCtx_setParameter(e->c, ZSTD_c_compressionLevel, HUFFMAN_LEVEL);
    size_t b = ZSTD_CCtx_setParameter(e->c, ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
    if (ZSTD_isError(a) || ZSTD_isError(b)) {
        ZSTD_CCtx_reset(e->c, ZSTD_reset_session_and_parameters);
        ZSTD_CCtx_setParameter(e->c, ZSTD_c_compressionLevel, 1);
    }
    return TESS_OK;
}

void ct_enc_close(ct_enc *e)
{
    if (!e) return;
    ZSTD_freeCCtx(e->c);
    mem_free(e->m, e);
}

struct ZSTD_DCtx_s *ct_dctx_open(const mem *m) { return ZSTD_createDCtx_advanced(custom_mem(m)); }
void ct_dctx_close(struct ZSTD_DCtx_s *d) { ZSTD_freeDCtx(d); }

/* ---- planes ---- */

/* u = (p0 & 0x80) << 8 | p1 << 7 | (p0 & 0x7f): sign and mantissa in p0, the exponent in p1. */
NOINLINE static void bf16_split(const uint8_t *restrict src, uint8_t *restrict p0, uint8_t *restrict p1,
                                size_t n)
{
    size_t i = 0;
#if defined(__SSE2__)
    const __m128i sign = _mm_set1_epi16(0x80), mant = _mm_set1_epi16(0x7f), byte = _mm_set1_epi16(0xff);
    for (; i + 16 <= n; i += 16) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * i));
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * i + 16));
        __m128i a0 = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(a, 8), sign), _mm_and_si128(a, mant));
        __m128i b0 = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(b, 8), sign), _mm_and_si128(b, mant));
        __m128i a1 = _mm_and_si128(_mm_srli_epi16(a, 7), byte), b1 = _mm_and_si128(_mm_srli_epi16(b, 7), byte);
        _mm_storeu_si128((__m128i *)(void *)(p0 + i), _mm_packus_epi16(a0, b0));
        _mm_storeu_si128((__m128i *)(void *)(p1 + i), _mm_packus_epi16(a1, b1));
    }
#endif
    for (; i < n; i++) {
        uint32_t u = rd16(src + 2 * i);
        p0[i] = (uint8_t)((u >> 8 & 0x80) | (u & 0x7f));
        p1[i] = (uint8_t)(u >> 7);
    }
}

NOINLINE static void bf16_join(uint8_t *restrict dst, const uint8_t *restrict p0, const uint8_t *restrict p1,
                               size_t n)
{
    size_t i = 0;
#if defined(__SSE2__)
    const __m128i zero = _mm_setzero_si128(), sign = _mm_set1_epi16((short)0x8000), mant = _mm_set1_epi16(0x7f);
    for (; i + 16 <= n; i += 16) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(p0 + i));
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(p1 + i));
        for (int h = 0; h < 2; h++) {
            __m128i x = h ? _mm_unpackhi_epi8(a, zero) : _mm_unpacklo_epi8(a, zero);
            __m128i e = h ? _mm_unpackhi_epi8(b, zero) : _mm_unpacklo_epi8(b, zero);
            x = _mm_or_si128(_mm_and_si128(_mm_slli_epi16(x, 8), sign), _mm_and_si128(x, mant));
            _mm_storeu_si128((__m128i *)(void *)(dst + 2 * i + 16 * h), _mm_or_si128(x, _mm_slli_epi16(e, 7)));
        }
    }
#endif
    for (; i < n; i++)
        wr16(dst + 2 * i, (uint32_t)(p0[i] & 0x80) << 8 | (uint32_t)p1[i] << 7 | (p0[i] & 0x7fu));
}

NOINLINE static void bytes_split(const uint8_t *restrict src, uint8_t *restrict planes, size_t n,
                                 uint32_t esize)
{
    for (uint32_t b = 0; b < esize; b++)
        for (size_t i = 0; i < n; i++) planes[b * n + i] = src[i * esize + b];
}

NOINLINE static void bytes_join(uint8_t *restrict dst, const uint8_t *const *planes, size_t n, uint32_t esize)
{
    size_t i = 0;
    if (esize == 2) {
        for (; i < n; i++) wr16(dst + 2 * i, (uint32_t)planes[0][i] | (uint32_t)planes[1][i] << 8);
        return;
    }
#if defined(__SSE2__)
    for (; i + 16 <= n; i += 16) {
        __m128i p[4], lo[2], hi[2];
        for (int b = 0; b < 4; b++) p[b] = _mm_loadu_si128((const __m128i *)(const void *)(planes[b] + i));
        for (int b = 0; b < 2; b++) {
            lo[b] = _mm_unpacklo_epi8(p[2 * b], p[2 * b + 1]);
            hi[b] = _mm_unpackhi_epi8(p[2 * b], p[2 * b + 1]);
        }
        __m128i *o = (__m128i *)(void *)(dst + 4 * i);
        _mm_storeu_si128(o, _mm_unpacklo_epi16(lo[0], lo[1]));
        _mm_storeu_si128(o + 1, _mm_unpackhi_epi16(lo[0], lo[1]));
        _mm_storeu_si128(o + 2, _mm_unpacklo_epi16(hi[0], hi[1]));
        _mm_storeu_si128(o + 3, _mm_unpackhi_epi16(hi[0], hi[1]));
    }
#endif
    for (; i < n; i++)
        wr32(dst + 4 * i, planes[0][i] | (uint32_t)planes[1][i] << 8 | (uint32_t)planes[2][i] << 16 |
                              (uint32_t)planes[3][i] << 24);
}

/* ---- encoding ---- */

/* One frame of fewer than n bytes and at most room: its size; 0 = does not fit or does not help. */
static size_t frame_put(ct_enc *e, uint8_t *dst, size_t room, const uint8_t *src, size_t n, bool *nomem)
{
    if (n < 2) return 0;
    size_t got = ZSTD_compress2(e->c, dst, MIN(room, n - 1), src, n);
    if (!ZSTD_isError(got)) return got;
    *nomem |= ZSTD_getErrorCode(got) == ZSTD_error_memory_allocation;
    return 0;
}

/* Planes of n elements into dst (room bytes); 0 = they do not fit. try_mask: planes that may shrink. */
static size_t planes_put(ct_enc *e, const uint8_t *planes, size_t n, uint32_t n_planes, uint32_t try_mask,
                         uint8_t *dst, size_t room, bool *nomem)
{
    size_t pos = CT_PLANE_HEAD;
    if (room <= pos) return 0;
    memset(dst, 0, CT_PLANE_HEAD);
    for (uint32_t i = 0; i < n_planes; i++) {
        const uint8_t *p = planes + i * n;
        size_t got = try_mask >> i & 1 ? frame_put(e, dst + pos, room - pos, p, n, nomem) : 0;
        if (got == 0) {
            if (room - pos < n) return 0;
            memcpy(dst + pos, p, n);
            got = n;
        }
        wr32(dst + i * 4, got);
        pos += got;
    }
    return pos;
}

bool ct_encode(ct_enc *e, uint32_t dtype, const uint8_t *src, uint32_t n, uint8_t *dst, uint8_t *planes,
               ct_chunk *c)
{
    bool nomem = false;
    size_t got;
    c->usize = n;
    c->codec = CT_CODEC_ZSTD;
    c->filter = FILTER_NONE;
    c->esize = 0;
    c->nplanes = 1;
    if (dtype == DT_BF16) {
        bf16_split(src, planes, planes + n / 2, n / 2);
        c->filter = FILTER_BF16;
        c->esize = c->nplanes = 2;
        got = planes_put(e, planes, n / 2, 2, 2, dst, n - 1, &nomem);
    } else if (dtype == DT_F16 || dtype == DT_F32) {
        uint8_t esize = dtype == DT_F16 ? 2 : 4;
        bytes_split(src, planes, n / esize, esize);
        c->filter = FILTER_PLANES;
        c->esize = c->nplanes = esize;
        got = planes_put(e, planes, n / esize, esize, 15, dst, n - 1, &nomem);
    } else got = frame_put(e, dst, n, src, n, &nomem);
    if (got == 0) {
        memcpy(dst, src, n);
        c->codec = CT_CODEC_RAW;
        c->filter = FILTER_NONE;
        c->esize = 0;
        c->nplanes = 1;
        got = n;
    }
    c->csize = (uint32_t)got;
    return !nomem;
}

/* ---- decoding ---- */

const char *ct_codec_bad(uint32_t dtype, const ct_chunk *c)
{
    bool plain = c->filter == FILTER_NONE && c->esize == 0 && c->nplanes == 1;
    if (c->codec == CT_CODEC_RAW)
        return !plain                 ? "raw chunk with a filter"
               : c->csize != c->usize ? "raw chunk with csize other than usize"
                                      : NULL;
    if (c->codec != CT_CODEC_ZSTD) return "codec: is not known";
    if (c->csize == 0 || c->csize >= c->usize) return "csize: is not below usize";
    if (plain) return NULL;
    uint32_t esize = dtype == DT_F32 ? 4 : 2, want = dtype == DT_BF16 ? FILTER_BF16 : FILTER_PLANES;
    if (!dtype_get(dtype)->is_float || (c->filter != want && c->filter != FILTER_PLANES) || c->esize != esize ||
        c->nplanes != esize)
        return "filter, esize, nplanes: not a set that the dtype allows";
    return c->csize < CT_PLANE_HEAD ? "csize: no room for the head of the planes" : NULL;
}

static const char *frame_get(ZSTD_DCtx *d, uint8_t *dst, size_t want, const uint8_t *src, size_t n)
{
    if (n < 4 || rd32(src) != ZSTD_MAGICNUMBER) return "is not a zstd frame";
    if (ZSTD_getDictID_fromFrame(src, n) != 0) return "zstd frame wants a dictionary";
    if (ZSTD_findFrameCompressedSize(src, n) != n) return "zstd frame does not end where its data end";
    if (ZSTD_getFrameContentSize(src, n) != want) return "zstd frame does not declare the right size";
    size_t got = ZSTD_decompressDCtx(d, dst, want, src, n);
    return ZSTD_isError(got) || got != want ? "zstd frame is malformed" : NULL;
}

const char *ct_decode(struct ZSTD_DCtx_s *d, const ct_chunk *c, const uint8_t *stored, uint8_t *dst,
                      uint8_t *planes)
{
    if (c->codec == CT_CODEC_RAW) {
        memcpy(dst, stored, c->usize);
        return NULL;
    }
    if (c->nplanes == 1) return frame_get(d, dst, c->usize, stored, c->csize);
    size_t n = c->usize / c->esize, pos = CT_PLANE_HEAD;
    const uint8_t *p[4] = {0};
    if (n * c->esize != c->usize) return "usize is not a multiple of the element size";
    for (uint32_t i = 0; i < 4; i++) {
        size_t size = rd32(stored + i * 4);
        if (i >= c->nplanes && size != 0) return "head of the planes: unused size is not zero";
        if (i >= c->nplanes) continue;
        if (size > n || !range_in(pos, size, c->csize))
            return "head of the planes: a plane reaches beyond the chunk";
        p[i] = stored + pos;
        if (size != n) {
            const char *why = frame_get(d, planes + i * n, n, stored + pos, size);
            if (why) return why;
            p[i] = planes + i * n;
        }
        pos += size;
    }
    if (pos != c->csize) return "bytes are left after the planes";
    if (c->filter == FILTER_BF16) bf16_join(dst, p[0], p[1], n);
    else bytes_join(dst, p, n, c->esize);
    return NULL;
}

/* ---- blobs ---- */

size_t ct_zip(const mem *m, const void *src, size_t n, void *dst)
{
    ZSTD_CCtx *c = n >= 64 ? ZSTD_createCCtx_advanced(custom_mem(m)) : NULL;
    if (!c) return 0;
    size_t got = ZSTD_compressCCtx(c, dst, n - n / 10, src, n, BLOB_LEVEL);
    ZSTD_freeCCtx(c);
    return ZSTD_isError(got) ? 0 : got;
}

const char *ct_unzip(struct ZSTD_DCtx_s *d, const void *src, size_t n, void *dst, size_t want)
{
    return frame_get(d, dst, want, src, n);
}
