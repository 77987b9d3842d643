/*
 * kvs.h - typed key-values: the section of a container that the runtime reads instead of JSON.
 *
 * Layout of the serialized form (little-endian): u32 count, u32 zero; then count records, strictly ascending by key
 * bytes, each: u16 key_len, u8 type, u8 zero, u32 zero, u64 n, key bytes, zero padding to 8; payload; zero padding to 8.
 * Payload: U64/I64/F64/BOOL: one u64 (n = 1). STR: n bytes. U32S/I32S/F32S/U8S: n elements. STRS: n strings as
 * u32 offsets[n + 1] from the start of the bytes that follow them. Keys are like "arch.hidden_size".
 *
 * The builder sorts. The reader validates all at kvs_open and then only hands out views into the caller's bytes,
 * which must stay alive and 8-byte aligned.
 */
#ifndef TESS_KVS_H
#define TESS_KVS_H
#include "mem.h"

enum { KV_U64 = 1, KV_I64, KV_F64, KV_BOOL, KV_STR, KV_U32S, KV_I32S, KV_F32S, KV_U8S, KV_STRS };

typedef struct kvs_builder kvs_builder;
tess_status kvs_builder_open(const mem *m, kvs_builder **out, tess_error *err);
void kvs_builder_close(kvs_builder *b);
/* All put functions remember a failure (memory, key twice, key longer than 255), which kvs_build reports. */
void kvs_put_u64(kvs_builder *b, const char *key, uint64_t v);
void kvs_put_i64(kvs_builder *b, const char *key, int64_t v);
void kvs_put_f64(kvs_builder *b, const char *key, double v);
void kvs_put_bool(kvs_builder *b, const char *key, bool v);
void kvs_put_str(kvs_builder *b, const char *key, const char *s, size_t n);
void kvs_put_array(kvs_builder *b, const char *key, int type, const void *data, uint64_t n); /* U32S I32S F32S U8S */
void kvs_put_strs(kvs_builder *b, const char *key, const char *const *s, const size_t *lens, uint64_t n);
/* Serializes; *out is one mem block that the caller frees. Equal contents give equal bytes. */
tess_status kvs_build(kvs_builder *b, void **out, size_t *len, tess_error *err);

typedef struct { const char *key; uint32_t key_len; uint32_t type; uint64_t n; const void *data; } kv;
typedef struct { const mem *m; kv *items; uint32_t count; } kvs; /* items ascend by key */
tess_status kvs_open(kvs *k, const mem *m, const void *data, size_t len, tess_error *err);
void kvs_close(kvs *k);
const kv *kvs_find(const kvs *k, const char *key); /* NULL when absent */
/* Typed reads; absent or of another type: the default. */
uint64_t kvs_u64(const kvs *k, const char *key, uint64_t def);
int64_t kvs_i64(const kvs *k, const char *key, int64_t def);
double kvs_f64(const kvs *k, const char *key, double def);
bool kvs_bool(const kvs *k, const char *key, bool def);
const char *kvs_str(const kvs *k, const char *key, size_t *len);                  /* not terminated; NULL when absent */
const void *kvs_array(const kvs *k, const char *key, int type, uint64_t *n);      /* NULL when absent */
const char *kv_strs_at(const kv *v, uint64_t i, size_t *len);                     /* element i of a STRS value */
#endif
