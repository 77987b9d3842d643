/* kvs.c - see kvs.h for the layout. */
#include "kvs.h"

#include <stdlib.h>

#include "utf8.h"

enum { HEAD = 8, RECORD = 16, KEY_MAX = 255 };

typedef struct { char *key; uint32_t key_len, type; uint64_t n; void *data; size_t bytes; } entry;
struct kvs_builder {
    const mem *m;
    arena a;
    entry *e;
    size_t n, cap;
    tess_status failed;
    char why[320];
};

tess_status kvs_builder_open(const mem *m, kvs_builder **out, tess_error *err)
{
    *out = mem_zalloc(m, sizeof **out);
    if (!*out) return ERR(err, TESS_E_NOMEM, "no memory for key-values");
    (*out)->m = m;
    arena_init(&(*out)->a, m);
    return TESS_OK;
}

void kvs_builder_close(kvs_builder *b)
{
    if (!b) return;
    arena_free(&b->a);
    mem_free(b->m, b->e);
    mem_free(b->m, b);
}

static void builder_fail(kvs_builder *b, tess_status st, const char *key, const char *what)
{
    if (b->failed) return;
    tess_error e;
    b->failed = ERR(&e, st, "key-value \"%.200s\": %s", key, what);
    memcpy(b->why, e.text, sizeof b->why - 1);
}

/* Room for a payload of `bytes` under key, or NULL after a remembered failure. */
static void *put(kvs_builder *b, const char *key, uint32_t type, uint64_t n, size_t bytes)
{
    size_t len = strlen(key);
    if (b->failed) return NULL;
    if (len == 0 || len > KEY_MAX || !utf8_valid(key, len)) return builder_fail(b, TESS_E_ARG, key, "not a valid key"), NULL;
    if (!mem_grow(b->m, &b->e, &b->cap, b->n + 1, sizeof *b->e)) return builder_fail(b, TESS_E_NOMEM, key, "no memory"), NULL;
    entry *e = &b->e[b->n];
    *e = (entry){arena_strndup(&b->a, key, len), (uint32_t)len, type, n, arena_alloc(&b->a, bytes, 1), bytes};
    if (!e->key || !e->data) return builder_fail(b, TESS_E_NOMEM, key, "no memory"), NULL;
    b->n++;
    return e->data;
}

static void put_bytes(kvs_builder *b, const char *key, uint32_t type, uint64_t n, const void *data, size_t bytes)
{
    void *p = put(b, key, type, n, bytes);
    if (p && bytes) memcpy(p, data, bytes);
}

void kvs_put_u64(kvs_builder *b, const char *key, uint64_t v) { put_bytes(b, key, KV_U64, 1, &v, 8); }
void kvs_put_i64(kvs_builder *b, const char *key, int64_t v) { put_bytes(b, key, KV_I64, 1, &v, 8); }
void kvs_put_f64(kvs_builder *b, const char *key, double v) { put_bytes(b, key, KV_F64, 1, &v, 8); }
void kvs_put_bool(kvs_builder *b, const char *key, bool v)
{
    uint64_t u = v;
    put_bytes(b, key, KV_BOOL, 1, &u, 8);
}
void kvs_put_str(kvs_builder *b, const char *key, const char *s, size_t n) { put_bytes(b, key, KV_STR, n, s, n); }

static size_t elem_size(uint32_t type) { return type == KV_U32S || type == KV_I32S || type == KV_F32S ? 4 : type == KV_U8S ? 1 : 0; }

void kvs_put_array(kvs_builder *b, const char *key, int type, const void *data, uint64_t n)
{
    size_t bytes, size = elem_size((uint32_t)type);
    if (size == 0 || !size_mul3(n, size, 1, &bytes)) builder_fail(b, TESS_E_ARG, key, "not a type of array, or too long");
    else put_bytes(b, key, (uint32_t)type, n, data, bytes);
}

void kvs_put_strs(kvs_builder *b, const char *key, const char *const *s, const size_t *lens, uint64_t n)
{
    uint64_t total = 0, table = (n + 1) * 4;
    bool fits = n <= UINT32_MAX / 8;
    for (uint64_t i = 0; fits && i < n; i++) fits = u64_add(total, lens[i], &total);
    if (!fits || total > UINT32_MAX) {
        builder_fail(b, TESS_E_ARG, key, "more than 4 GiB of strings");
        return;
    }
    char *p = put(b, key, KV_STRS, n, (size_t)(table + total));
    if (!p) return;
    uint32_t off = 0;
    for (uint64_t i = 0; i < n; i++) {
        memcpy(p + i * 4, &off, 4);
        if (lens[i]) memcpy(p + table + off, s[i], lens[i]);
        off += (uint32_t)lens[i];
    }
    memcpy(p + n * 4, &off, 4);
}

static int key_cmp(const char *a, size_t na, const char *b, size_t nb)
{
    int c = memcmp(a, b, MIN(na, nb));
    return c ? c : (na > nb) - (na < nb);
}
static int entry_cmp(const void *x, const void *y)
{
    const entry *a = x, *b = y;
    return key_cmp(a->key, a->key_len, b->key, b->key_len);
}

static bool put_padded(buf *out, const void *p, size_t n)
{
    static const char zero[8];
    return buf_put(out, p, n) && buf_put(out, zero, (8 - n % 8) % 8);
}

tess_status kvs_build(kvs_builder *b, void **out, size_t *len, tess_error *err)
{
    *out = NULL;
    *len = 0;
    if (b->failed) return ERR(err, b->failed, "%s", b->why);
    if (b->n) qsort(b->e, b->n, sizeof *b->e, entry_cmp);
    buf o;
    buf_init(&o, b->m);
    uint32_t head[2] = {(uint32_t)b->n, 0};
    buf_put(&o, head, sizeof head);
    for (size_t i = 0; i < b->n; i++) {
        const entry *e = &b->e[i];
        if (i && entry_cmp(e - 1, e) == 0) {
            buf_free(&o);
            return ERR(err, TESS_E_ARG, "key-value \"%.200s\" is put twice", e->key);
        }
        uint8_t rec[RECORD] = {(uint8_t)e->key_len, (uint8_t)(e->key_len >> 8), (uint8_t)e->type};
        memcpy(rec + 8, &e->n, 8);
        buf_put(&o, rec, sizeof rec);
        put_padded(&o, e->key, e->key_len);
        put_padded(&o, e->data, e->bytes);
    }
    if (o.failed) {
        buf_free(&o);
        return ERR(err, TESS_E_NOMEM, "no memory for the key-value section");
    }
    *out = o.data;
    *len = o.len;
    return TESS_OK;
}

/* ---- reading ---- */

/* Bytes of the payload of v, of which `room` bytes exist at data; false when it does not fit or is malformed. */
static bool payload_bytes(const kv *v, const uint8_t *data, uint64_t room, uint64_t *bytes)
{
    switch (v->type) {
    case KV_U64: case KV_I64: case KV_F64: *bytes = 8; return v->n == 1 && room >= 8;
    case KV_BOOL: *bytes = 8; return v->n == 1 && room >= 8 && rd64(data) <= 1;
    case KV_STR: *bytes = v->n; return v->n <= room && utf8_valid((const char *)data, (size_t)v->n);
    case KV_STRS: {
        uint64_t table;
        if (!u64_add(v->n, 1, &table) || !u64_mul(table, 4, &table) || table > room) return false;
        uint32_t last = 0;
        for (uint64_t i = 0; i <= v->n; i++) {
            uint32_t off = rd32(data + i * 4);
            if (off < last || (i == 0 && off != 0)) return false;
            last = off;
        }
        *bytes = table + last;
        return *bytes <= room;
    }
    default: {
        size_t size = elem_size(v->type);
        return size && u64_mul(v->n, size, bytes) && *bytes <= room;
    }
    }
}

static bool zero_until_8(const uint8_t *p, uint64_t *pos, uint64_t len)
{
    for (; *pos % 8; (*pos)++)
        if (*pos >= len || p[*pos] != 0) return false;
    return true;
}

/* Parses the record at *pos into v; NULL when good, else what is wrong. */
static const char *parse_record(const uint8_t *p, uint64_t len, uint64_t *pos, kv *v)
{
    if (!range_in(*pos, RECORD, len)) return "record is cut off";
    const uint8_t *r = p + *pos;
    *v = (kv){.key_len = rd16(r), .type = r[2], .n = rd64(r + 8)};
    if (r[3] || rd32(r + 4)) return "reserved bytes are not zero";
    *pos += RECORD;
    if (v->key_len == 0 || v->key_len > KEY_MAX || !range_in(*pos, v->key_len, len)) return "bad key length";
    v->key = (const char *)p + *pos;
    if (!utf8_valid(v->key, v->key_len) || memchr(v->key, 0, v->key_len)) return "key is not text";
    *pos += v->key_len;
    if (!zero_until_8(p, pos, len)) return "padding is not zero";
    uint64_t bytes;
    v->data = p + *pos;
    if (!payload_bytes(v, p + *pos, len - *pos, &bytes)) return "value is malformed or cut off";
    *pos += bytes;
    return zero_until_8(p, pos, len) ? NULL : "padding is not zero";
}

tess_status kvs_open(kvs *k, const mem *m, const void *data, size_t len, tess_error *err)
{
    *k = (kvs){.m = m};
    const uint8_t *p = data;
    const char *why = NULL;
    uint64_t pos = HEAD;
    if (len < HEAD || rd32(p + 4) != 0) return ERR(err, TESS_E_FORMAT, "key-values: bad head");
    uint32_t count = rd32(p);
    if (count > (len - HEAD) / RECORD) return ERR(err, TESS_E_FORMAT, "key-values: %u records do not fit in %zu bytes", count, len);
    k->items = mem_calloc(m, MAX(count, 1u), sizeof *k->items);
    if (!k->items) return ERR(err, TESS_E_NOMEM, "no memory for %u key-values", count);
    for (; k->count < count; k->count++) {
        kv *v = &k->items[k->count];
        if ((why = parse_record(p, len, &pos, v))) break;
        if (k->count && key_cmp(v[-1].key, v[-1].key_len, v->key, v->key_len) >= 0) {
            why = "keys do not ascend";
            break;
        }
    }
    if (!why && pos != len) why = "bytes are left at the end";
    if (!why) return TESS_OK;
    uint32_t at = k->count;
    kvs_close(k);
    return ERR(err, TESS_E_FORMAT, "key-values: record %u of %u near byte %llu: %s", at, count, (unsigned long long)pos, why);
}

void kvs_close(kvs *k)
{
    if (k->items) mem_free(k->m, k->items);
    *k = (kvs){.m = k->m};
}

const kv *kvs_find(const kvs *k, const char *key)
{
    size_t len = strlen(key);
    uint32_t lo = 0, hi = k->count;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        int c = key_cmp(k->items[mid].key, k->items[mid].key_len, key, len);
        if (c == 0) return &k->items[mid];
        if (c < 0) lo = mid + 1;
        else hi = mid;
    }
    return NULL;
}

static const kv *find_type(const kvs *k, const char *key, uint32_t type)
{
    const kv *v = kvs_find(k, key);
    return v && v->type == type ? v : NULL;
}
uint64_t kvs_u64(const kvs *k, const char *key, uint64_t def)
{
    const kv *v = find_type(k, key, KV_U64);
    return v ? rd64(v->data) : def;
}
int64_t kvs_i64(const kvs *k, const char *key, int64_t def)
{
    const kv *v = find_type(k, key, KV_I64);
    return v ? (int64_t)rd64(v->data) : def;
}
double kvs_f64(const kvs *k, const char *key, double def)
{
    const kv *v = find_type(k, key, KV_F64);
    if (v) memcpy(&def, v->data, 8);
    return def;
}
bool kvs_bool(const kvs *k, const char *key, bool def)
{
    const kv *v = find_type(k, key, KV_BOOL);
    return v ? rd64(v->data) != 0 : def;
}
const char *kvs_str(const kvs *k, const char *key, size_t *len)
{
    const kv *v = find_type(k, key, KV_STR);
    *len = v ? (size_t)v->n : 0;
    return v ? v->data : NULL;
}
const void *kvs_array(const kvs *k, const char *key, int type, uint64_t *n)
{
    const kv *v = find_type(k, key, (uint32_t)type);
    *n = v ? v->n : 0;
    return v ? v->data : NULL;
}
const char *kv_strs_at(const kv *v, uint64_t i, size_t *len)
{
    const uint8_t *p = v->data;
    uint32_t lo = rd32(p + i * 4), hi = rd32(p + i * 4 + 4);
    *len = hi - lo;
    return (const char *)p + (v->n + 1) * 4 + lo;
}
