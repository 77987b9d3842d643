/* utf8.c - strict UTF-8, after table 3-7 of the Unicode standard. */
#include "utf8.h"

/* Bytes that a lead byte asks for, and the legal range of the second byte; 0 = not a lead byte. */
static uint32_t lead_info(uint8_t c, uint8_t *lo, uint8_t *hi)
{
    *lo = 0x80;
    *hi = 0xbf;
    if (c < 0x80) return 1;
    if (c < 0xc2 || c > 0xf4) return 0;
    if (c < 0xe0) return 2;
    if (c == 0xe0) *lo = 0xa0;
    if (c == 0xed) *hi = 0x9f;
    if (c < 0xf0) return 3;
    if (c == 0xf0) *lo = 0x90;
    if (c == 0xf4) *hi = 0x8f;
    return 4;
}

/* Bytes at p that belong to one well-formed prefix; *need is the whole length (0 when the lead byte is bad). */
static uint32_t well_formed(const uint8_t *p, size_t n, uint32_t *need)
{
    uint8_t lo, hi;
    *need = lead_info(p[0], &lo, &hi);
    if (*need == 0) return 0;
    uint32_t i = 1;
    for (; i < *need && i < n; i++) {
        if (p[i] < lo || p[i] > hi) break;
        lo = 0x80;
        hi = 0xbf;
    }
    return i;
}

uint32_t utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    const uint8_t *p = (const uint8_t *)s;
    uint32_t need;
    if (well_formed(p, n, &need) != need || need == 0) return 0;
    switch (need) {
    case 1: *cp = p[0]; break;
    case 2: *cp = (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu); break;
    case 3: *cp = (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu); break;
    default: *cp = (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu); break;
    }
    return need;
}

uint32_t utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) return out[0] = (char)cp, 1;
    uint32_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const uint8_t lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (uint32_t i = n - 1; i > 0; i--, cp >>= 6) out[i] = (char)(0x80 | (cp & 0x3f));
    out[0] = (char)(lead[n] | cp);
    return n;
}

bool utf8_valid(const char *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        if ((uint8_t)p[i] < 0x80) {
            i++;
            continue;
        }
        uint32_t cp, len = utf8_decode(p + i, n - i, &cp);
        if (len == 0) return false;
        i += len;
    }
    return true;
}

uint32_t utf8_bad_len(const char *p, size_t n)
{
    uint32_t need, got = well_formed((const uint8_t *)p, n, &need);
    return got == 0 ? 1 : got;
}

uint32_t utf8_partial_tail(const char *p, size_t n)
{
    for (uint32_t back = 1; back <= 3 && back <= n; back++) {
        uint8_t c = (uint8_t)p[n - back];
        if ((c & 0xc0) == 0x80) continue;
        uint32_t need, got = well_formed((const uint8_t *)p + n - back, back, &need);
        return got == back && need > back ? back : 0;
    }
    return 0;
}
