/* hash.h - XXH3; the only user of xxHash. Digests are stored little-endian: low 64 bits first. */
#ifndef TESS_HASH_H
#define TESS_HASH_H
#include "base.h"
uint64_t hash64(const void *p, size_t n, uint64_t seed);
void hash128(const void *p, size_t n, uint8_t out[16]);
/* Seed of a chunk's hash: swapped chunks do not verify. */
uint64_t hash_mix(uint64_t tensor, uint64_t piece, uint64_t chunk);
typedef struct hash_stream hash_stream; /* 128 bits, fed in pieces */
size_t hash_stream_size(void);          /* bytes of state, 64-byte aligned, given by the caller */
void hash_stream_reset(hash_stream *s);
void hash_stream_update(hash_stream *s, const void *p, size_t n);
void hash_stream_final(const hash_stream *s, uint8_t out[16]);
#endif
