/* hash.c - the only user of xxHash. */
#include "hash.h"

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

uint64_t hash64(const void *p, size_t n, uint64_t seed) { return XXH3_64bits_withSeed(p, n, seed); }

static void digest_put(XXH128_hash_t h, uint8_t out[16])
{
    memcpy(out, &h.low64, 8);
    memcpy(out + 8, &h.high64, 8);
}
void hash128(const void *p, size_t n, uint8_t out[16]) { digest_put(XXH3_128bits(p, n), out); }

uint64_t hash_mix(uint64_t tensor, uint64_t piece, uint64_t chunk)
{
    uint64_t v[3] = {tensor, piece, chunk};
    return XXH3_64bits(v, sizeof v);
}

struct hash_stream { XXH3_state_t s; };
size_t hash_stream_size(void) { return sizeof(hash_stream); }
void hash_stream_reset(hash_stream *s)
{
    XXH3_INITSTATE(&s->s);
    XXH3_128bits_reset(&s->s);
}
void hash_stream_update(hash_stream *s, const void *p, size_t n) { XXH3_128bits_update(&s->s, p, n); }
void hash_stream_final(const hash_stream *s, uint8_t out[16]) { digest_put(XXH3_128bits_digest(&s->s), out); }
