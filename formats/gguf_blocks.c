/*
 * gguf_blocks.c - see gguf_blocks.h.
 *
 * Layouts, all little-endian; "nibbles" of 16 bytes are elements 0..15 in their low and 16..31 in their high halves. Source: the
 * structures and comments of ggml-common.h, and gguf-py's quants.py.
 *   Q8_0    34  f16 d; i8 q[32]
 *   Q4_0    18  f16 d; nibbles - 8                              Q4_1  20  f16 d, m; nibbles
 *   Q5_0    22  f16 d; u32 high; nibbles, bit i of high above element i; - 16
 *   Q5_1    24  f16 d, m; u32 high; nibbles, likewise
 *   IQ4_NL  18  f16 d; nibbles, which index a table             MXFP4 17  u8 exponent of d, with bias 127; nibbles likewise
 * Blocks of 256 elements, in 8 groups of 32 (g below) or 16 runs of 16 (r below):
 *   Q4_K   144  f16 d, dmin; u8 scales[12], 6 bits of scale and of minimum for each g; u8 q[128], groups 2i and 2i + 1 in the
 *               low and high halves of q[32 i ..]
 *   Q5_K   176  f16 d, dmin; scales[12]; u8 high[32], bit g of high[e] above element e of g; q[128] as Q4_K
 *   Q6_K   210  u8 low[128], high[64]; i8 scale[16], one for each r; f16 d; code - 32
 *   Q2_K    84  u8 scales[16], low half the scale and high half the minimum of r; u8 q[64]; f16 d, dmin
 *   Q3_K   110  u8 high[32]; u8 q[64]; u8 scales[12], 6 bits less 32 for each r; f16 d. Without its high bit a code is less 4
 *   IQ4_XS 136  f16 d; u16 scales_high; u8 scales_low[4], 6 bits less 32 for each g; 8 times nibbles, as IQ4_NL
 * Q2_K, Q3_K and the high bits of Q6_K hold 4 groups in one run of 32 bytes, 2 bits each: the halves of the block in turn,
 * groups in ascending order within.
 */
#include "gguf_blocks.h"

#include "quant.h"

/* Element e has scale d[e / 16] and minimum m[e / 16]. A minimum of -0 is none: adding it keeps the sign of a zero. */
typedef struct {
    float d[2], m[2];
    int8_t q[GROUP_K];
} group;

static const int8_t levels_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t levels_fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}; /* twice the value */

static float half(const uint8_t *p) { return f16_to_f32(rd16(p)); }

static void one_scale(group *x, float d, float m)
{
    x->d[0] = x->d[1] = d;
    x->m[0] = x->m[1] = m;
}

static void nibbles(group *x, const uint8_t *p, int less)
{
    for (int i = 0; i < 16; i++) {
        x->q[i] = (int8_t)((p[i] & 15) - less);
        x->q[i + 16] = (int8_t)((p[i] >> 4) - less);
    }
}

static void nibbles_of(group *x, const uint8_t *p, const int8_t levels[16])
{
    for (int i = 0; i < 16; i++) {
        x->q[i] = levels[p[i] & 15];
        x->q[i + 16] = levels[p[i] >> 4];
    }
}

static void nibbles_high(group *x, const uint8_t *p, uint32_t high, int less)
{
    nibbles(x, p, less);
    for (int i = 0; i < GROUP_K; i++) x->q[i] = (int8_t)(x->q[i] + (int)((high >> i & 1) << 4));
}

/* ---- blocks of one group ---- */

static void group_q8_0(const uint8_t *p, uint32_t g, group *x)
{
    UNUSED(g);
    one_scale(x, half(p), -0.0f);
    memcpy(x->q, p + 2, GROUP_K);
}
static void group_q4_0(const uint8_t *p, uint32_t g, group *x)
{
    UNUSED(g);
    one_scale(x, half(p), -0.0f);
    nibbles(x, p + 2, 8);
}
static void group_q4_1(const uint8_t *p, uint32_t g, group *x)
{
    UNUSED(g);
    one_scale(x, half(p), half(p + 2));
    nibbles(x, p + 4, 0);
}
static void group_q5_0(const uint8_t *p, uint32_t g, group *x)
{
    UNUSED(g);
    one_scale(x, half(p), -0.0f);
    nibbles_high(x, p + 6, rd32(p + 2), 16);
}
static void group_q5_1(const uint8_t *p, uint32_t g, group *x)
{
    UNUSED(g);
    one_scale(x, half(p), half(p + 2));
    nibbles_high(x, p + 8, rd32(p + 4), 0);
}
static void group_iq4_nl(const uint8_t *p, uint32_t g, group *x)
{
    UNUSED(g);
    one_scale(x, half(p), -0.0f);
    nibbles_of(x, p + 2, levels_iq4);
}
static void group_mxfp4(const uint8_t *p, uint32_t g, group *x)
{
    UNUSED(g);
    uint32_t bits = p[0] < 2 ? 0x200000u << p[0] : (p[0] - 1u) << 23; /* 2^(e - 128), for levels that are twice the values */
    float d;
    memcpy(&d, &bits, 4);
    one_scale(x, d, -0.0f);
    nibbles_of(x, p + 1, levels_fp4);
}

/* ---- blocks of eight groups ---- */

/* Scale and minimum of group g of Q4_K and Q5_K: those of the first four in the low 6 bits of bytes 0..3 and 4..7; of the others
 * the low 4 bits in bytes 8..11, the high 2 above those of the first four. */
static void scale_k(const uint8_t *p, uint32_t g, group *x)
{
    const uint8_t *s = p + 4;
    uint32_t d = g < 4 ? s[g] & 63u : (s[g + 4] & 15u) | (uint32_t)(s[g - 4] >> 6) << 4;
    uint32_t m = g < 4 ? s[g + 4] & 63u : (uint32_t)(s[g + 4] >> 4) | (uint32_t)(s[g] >> 6) << 4;
    one_scale(x, half(p) * (float)d, -(half(p + 2) * (float)m));
}

static void group_q4_k(const uint8_t *p, uint32_t g, group *x)
{
    scale_k(p, g, x);
    for (int e = 0; e < GROUP_K; e++) x->q[e] = (int8_t)((p[16 + g / 2 * 32 + (uint32_t)e] >> g % 2 * 4) & 15);
}
static void group_q5_k(const uint8_t *p, uint32_t g, group *x)
{
    scale_k(p, g, x);
    for (int e = 0; e < GROUP_K; e++)
        x->q[e] = (int8_t)(((p[48 + g / 2 * 32 + (uint32_t)e] >> g % 2 * 4) & 15) | ((p[16 + e] >> g) & 1) << 4);
}
static void group_q6_k(const uint8_t *p, uint32_t g, group *x)
{
    const uint8_t *low = p + g / 4 * 64 + g % 2 * 32, *high = p + 128 + g / 4 * 32, *scale = p + 192 + 2 * g;
    for (int r = 0; r < 2; r++) {
        x->d[r] = half(p + 208) * (float)(int8_t)scale[r];
        x->m[r] = -0.0f;
    }
    for (int e = 0; e < GROUP_K; e++)
        x->q[e] = (int8_t)((((low[e] >> g % 4 / 2 * 4) & 15) | ((high[e] >> g % 4 * 2) & 3) << 4) - 32);
}
static void group_q2_k(const uint8_t *p, uint32_t g, group *x)
{
    const uint8_t *q = p + 16 + g / 4 * 32;
    for (uint32_t r = 0; r < 2; r++) {
        x->d[r] = half(p + 80) * (float)(p[2 * g + r] & 15);
        x->m[r] = -(half(p + 82) * (float)(p[2 * g + r] >> 4));
    }
    for (int e = 0; e < GROUP_K; e++) x->q[e] = (int8_t)((q[e] >> g % 4 * 2) & 3);
}
static void group_q3_k(const uint8_t *p, uint32_t g, group *x)
{
    const uint8_t *q = p + 32 + g / 4 * 32, *s = p + 96;
    for (uint32_t r = 0; r < 2; r++) { /* low 4 bits: the halves of bytes 0..7; high 2 bits: bytes 8..11, four in each */
        uint32_t i = 2 * g + r, low = (s[i % 8] >> i / 8 * 4) & 15u, high = (s[8 + i % 4] >> i / 4 * 2) & 3u;
        x->d[r] = half(p + 108) * (float)((int)(low | high << 4) - 32);
        x->m[r] = -0.0f;
    }
    for (int e = 0; e < GROUP_K; e++) x->q[e] = (int8_t)(((q[e] >> g % 4 * 2) & 3) - (p[e] >> g & 1 ? 0 : 4));
}
static void group_iq4_xs(const uint8_t *p, uint32_t g, group *x)
{
    uint32_t low = (p[4 + g / 2] >> g % 2 * 4) & 15u, high = (uint32_t)rd16(p + 2) >> 2 * g & 3;
    one_scale(x, half(p) * (float)((int)(low | high << 4) - 32), -0.0f);
    nibbles_of(x, p + 8 + 16 * g, levels_iq4);
}

/* ---- types ---- */

typedef struct {
    uint32_t dtype, elems, bytes, like;
    void (*get)(const uint8_t *block, uint32_t g, group *x);
} block_type;

static const block_type types[] = {
    {SRC_Q8_0, 32, 34, DT_Q8, group_q8_0},       {SRC_Q4_0, 32, 18, DT_Q4, group_q4_0},   {SRC_Q4_1, 32, 20, DT_Q4, group_q4_1},
    {SRC_Q5_0, 32, 22, DT_Q8, group_q5_0},       {SRC_Q5_1, 32, 24, DT_Q8, group_q5_1},   {SRC_IQ4_NL, 32, 18, DT_Q8, group_iq4_nl},
    {SRC_MXFP4, 32, 17, DT_Q8, group_mxfp4},     {SRC_Q2_K, 256, 84, DT_Q4, group_q2_k},  {SRC_Q3_K, 256, 110, DT_Q4, group_q3_k},
    {SRC_Q4_K, 256, 144, DT_Q4, group_q4_k},     {SRC_Q5_K, 256, 176, DT_Q8, group_q5_k}, {SRC_Q6_K, 256, 210, DT_Q8, group_q6_k},
    {SRC_IQ4_XS, 256, 136, DT_Q8, group_iq4_xs},
};

static const block_type *type_of(uint32_t dtype)
{
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (types[i].dtype == dtype) return &types[i];
    return NULL;
}

bool gguf_block_size(uint32_t dtype, uint32_t *elems, uint32_t *bytes)
{
    const block_type *t = type_of(dtype);
    *elems = t ? t->elems : 0;
    *bytes = t ? t->bytes : 0;
    return t;
}

uint32_t gguf_block_like(uint32_t dtype)
{
    const block_type *t = type_of(dtype);
    return t ? t->like : 0;
}

static void group_f32(const group *x, float *out)
{
    for (int e = 0; e < GROUP_K; e++) out[e] = x->d[e / 16] * (float)x->q[e] + x->m[e / 16];
}

void gguf_block_f32(uint32_t dtype, const uint8_t *block, float *out)
{
    const block_type *t = type_of(dtype);
    group x;
    for (uint32_t g = 0; g < t->elems / GROUP_K; g++) {
        t->get(block, g, &x);
        group_f32(&x, out + g * GROUP_K);
    }
}

/* What is taken off the codes q, so that they are 0 to 15 if they can be: 8 if that will do, as d * 8 is an f16 when d is. */
static int32_t lowest(const int8_t q[GROUP_K])
{
    int32_t lo = 0, hi = 0;
    for (int e = 0; e < GROUP_K; e++) {
        lo = MIN(lo, q[e]);
        hi = MAX(hi, q[e]);
    }
    return lo < 0 && lo >= -8 && hi < 8 ? -8 : lo;
}

/* The group as a block of type dt with the codes that it has. False: no block holds them. */
static bool keep_codes(const group *x, uint32_t dt, uint8_t *block)
{
    int32_t q[GROUP_K], low = dt == DT_Q4 ? lowest(x->q) : 0;
    if (x->d[0] != x->d[1] || x->m[0] != x->m[1] || (dt == DT_Q8 && x->m[0] != 0)) return false;
    for (int e = 0; e < GROUP_K; e++) q[e] = x->q[e] - low;
    return quant_from_codes(dt, x->d[0], x->d[0] * (float)low + x->m[0], q, block);
}

tess_status gguf_blocks(const source *s, uint32_t i, uint64_t row, uint64_t k0, uint64_t n_k, uint32_t dt, uint8_t *dst,
                        tess_error *err)
{
    enum { STEP = 4096 };
    const src_tensor *t = &s->tensors[i];
    const block_type *type = type_of(t->dtype);
    uint8_t raw[STEP];
    float v[GROUP_K];
    group x;
    if (!type || k0 % GROUP_K) return ERR(err, TESS_E_ARG, "%s: tensor \"%s\" has no blocks there", s->paths[t->file], t->name);
    uint64_t first = k0 / type->elems, n_raw = 0, most = STEP / type->bytes, last = ceil_div(k0 + n_k, type->elems);
    for (uint64_t k = k0; k < k0 + n_k; k += GROUP_K, dst += quant_block_bytes(dt)) {
        uint64_t b = k / type->elems;
        if (b >= first + n_raw) { /* raw holds blocks [first, first + n_raw) of the row */
            first = b;
            n_raw = MIN(most, last - b);
            TRY(s->read(s, i, row, 1, first * type->elems, n_raw * type->elems, true, raw, err));
        }
        uint32_t n = (uint32_t)MIN((uint64_t)GROUP_K, k0 + n_k - k);
        type->get(raw + (b - first) * type->bytes, (uint32_t)(k % type->elems / GROUP_K), &x);
        if (n == GROUP_K && keep_codes(&x, dt, dst)) continue;
        group_f32(&x, v);
        if (!quant_fit(dt, v, n, dst))
            return ERR(
                err, TESS_E_UNSUPPORTED,
                "%s: tensor \"%s\" holds NaN, infinity or a value too large for %s in row %llu, column %llu on; use --type bf16",
                s->paths[t->file], t->name, dtype_get(dt)->name, (unsigned long long)row, (unsigned long long)k);
    }
    return TESS_OK;
}
