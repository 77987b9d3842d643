/*
 * container_rehash.h - for tests: makes every hash of the first part of a .tess file, held in memory, right
 * again after bytes were changed, so that the rules behind the hashes are reached. Trusts nothing: the bytes
 * may be anything.
 */
#ifndef TESS_CONTAINER_REHASH_H
#define TESS_CONTAINER_REHASH_H
#include "hash.h"

enum { RH_HEAD = 4096, RH_TRAILER = 64, RH_TABLE = 512, RH_REC = 48 };

static inline void rh_put64(uint8_t *p, uint64_t v) { memcpy(p, &v, 8); }

/* Offset of section `kind` inside the file, 0 when there is none or it does not fit. */
static inline uint64_t rh_section(const uint8_t *f, size_t n, uint32_t kind, uint64_t *len, uint32_t *rec)
{
    uint32_t count = MIN((uint32_t)rd16(f + 78), 32u);
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *s = f + RH_TABLE + i * RH_REC;
        if (rd32(s) != kind || !range_in(rd64(s + 16), rd64(s + 24), n)) continue;
        *len = rd64(s + 24);
        if (rec) *rec = rd32(s + 8);
        return rd64(s + 16);
    }
    *len = 0;
    return 0;
}

static inline void rh_chunks(uint8_t *f, size_t n)
{
    uint64_t plen, clen;
    uint32_t prec = 64, crec = 32;
    uint64_t pieces = rh_section(f, n, 5, &plen, &prec), chunks = rh_section(f, n, 6, &clen, &crec);
    if (!pieces || !chunks || prec < 64 || crec < 32) return;
    for (uint64_t i = 0; i < plen / prec; i++) {
        const uint8_t *p = f + pieces + i * prec;
        uint64_t first = rd64(p + 40), count = MIN((uint64_t)rd32(p + 48), 4096u);
        for (uint64_t c = 0; c < count && first < clen / crec && c < clen / crec - first; c++) {
            uint8_t *k = f + chunks + (first + c) * crec;
            if (rd16(p + 8) == 0 && range_in(rd64(k), rd32(k + 8), n))
                rh_put64(k + 16, hash64(f + rd64(k), rd32(k + 8), hash_mix(rd32(p), rd32(p + 4), c)));
        }
    }
}

static inline void rh_blobs(uint8_t *f, size_t n)
{
    uint64_t blen, dlen;
    uint32_t rec = 48;
    uint64_t blobs = rh_section(f, n, 8, &blen, &rec), data = rh_section(f, n, 12, &dlen, NULL);
    for (uint64_t i = 0; blobs && data && rec >= 48 && i < blen / rec; i++) {
        uint8_t *b = f + blobs + i * rec;
        if (range_in(rd64(b + 8), rd64(b + 16), dlen))
            hash128(f + data + rd64(b + 8), (size_t)rd64(b + 16), b + 32);
    }
}

static inline void rehash(uint8_t *f, size_t n, bool with_chunks)
{
    if (n < RH_HEAD + RH_TRAILER) return;
    uint32_t count = MIN((uint32_t)rd16(f + 78), 32u);
    uint8_t *t = f + n - RH_TRAILER;
    if (with_chunks) {
        rh_chunks(f, n);
        rh_blobs(f, n);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *s = f + RH_TABLE + i * RH_REC;
        if (rd32(s + 8) && range_in(rd64(s + 16), rd64(s + 24), n))
            hash128(f + rd64(s + 16), (size_t)rd64(s + 24), s + 32);
    }
    hash128(f + RH_TABLE, count * RH_REC, f + 112);
    hash128(f, 4080, f + 4080);
    memcpy(t + 32, f + 4080, 16);
    memcpy(t + 48, f + 72, 4); /* split_no, split_count */
    rh_put64(t + 56, hash64(t, 56, 0));
}
#endif
