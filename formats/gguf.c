/*
 * gguf.c - reads GGUF version 2 and 3 (little-endian) as a source of tensors and typed metadata.
 *
 * Layout: "GGUF", u32 version, u64 n_tensors, u64 n_kv; n_kv times: string key, u32 type, value; n_tensors
 * times: string name, u32 n_dims, u64 dims[n_dims] (innermost first), u32 type, u64 offset from the data;
 * padding to general.alignment; the data. A string is u64 length and bytes. An array is u32 element type, u64
 * count, elements.
 *
 * The metadata is read into private memory piece by piece as parsing asks for it, so no count or length of the
 * file is believed before the bytes that it speaks of were read. Keys point into that memory after it stopped
 * growing. Enforced: no key or tensor twice, arrays of scalars or strings only, dims 1 to 4 with at least one
 * element, offsets aligned, ascending without overlap or gap beyond padding, data inside the file.
 */
#include <stdio.h>
#include <stdlib.h>

#include "gguf_blocks.h"
#include "utf8.h"

enum { T_U8, T_I8, T_U16, T_I16, T_U32, T_I32, T_F32, T_BOOL, T_STR, T_ARR, T_U64, T_I64, T_F64, T_COUNT };
enum { MAX_KV = 1 << 16, READ_STEP = 1 << 20, MAX_META = 1 << 30 };

typedef struct {
    gguf_kv pub;         /* first: gguf_str_at finds the index behind it */
    size_t key_off, data_off;
    uint64_t *index;     /* offsets of the strings of an array from data; NULL otherwise */
} entry;

typedef struct { uint8_t *data; size_t len, cap; entry *kv; uint32_t n_kv; } gguf_impl;

/* The reader: position in the metadata; everything before `pos` is in memory. */
typedef struct { source *s; gguf_impl *g; size_t pos; tess_error *err; } cursor;

/* Those that are read come first, and the message of set_type lists them so. */
static const struct { uint32_t id; const char *name; uint32_t dtype; } types[] = {
    {0, "F32", DT_F32},       {1, "F16", DT_F16},         {30, "BF16", DT_BF16},      {8, "Q8_0", SRC_Q8_0},
    {2, "Q4_0", SRC_Q4_0},    {3, "Q4_1", SRC_Q4_1},      {6, "Q5_0", SRC_Q5_0},      {7, "Q5_1", SRC_Q5_1},
    {10, "Q2_K", SRC_Q2_K},   {11, "Q3_K", SRC_Q3_K},     {12, "Q4_K", SRC_Q4_K},     {13, "Q5_K", SRC_Q5_K},
    {14, "Q6_K", SRC_Q6_K},   {20, "IQ4_NL", SRC_IQ4_NL}, {23, "IQ4_XS", SRC_IQ4_XS}, {39, "MXFP4", SRC_MXFP4},
    {9, "Q8_1", 0},           {15, "Q8_K", 0},            {16, "IQ2_XXS", 0},         {17, "IQ2_XS", 0},
    {18, "IQ3_XXS", 0},       {19, "IQ1_S", 0},           {21, "IQ3_S", 0},           {22, "IQ2_S", 0},
    {24, "I8", 0},            {25, "I16", 0},             {26, "I32", 0},             {27, "I64", 0},
    {28, "F64", 0},           {29, "IQ1_M", 0},           {34, "TQ1_0", 0},           {35, "TQ2_0", 0},
    {40, "NVFP4", 0},         {41, "Q1_0", 0},
};

static const char *path_of(const cursor *c) { return c->s->paths[0]; }

static tess_status bad(const cursor *c, const char *what)
{
    return ERR(c->err, TESS_E_FORMAT, "%s: at offset %zu: %s", path_of(c), c->pos, what);
}

/* Makes the next n bytes available and returns them; the pointer holds until the next call. */
static tess_status take(cursor *c, uint64_t n, const uint8_t **out)
{
    gguf_impl *g = c->g;
    const os_file *f = &c->s->files[0];
    if (!range_in(c->pos, n, f->size))
        return bad(c, "the file ends inside the metadata, or a length in it is wrong");
    size_t want = c->pos + (size_t)n;
    if (want > MAX_META) return bad(c, "metadata is larger than 1 GiB");
    if (want > g->len) {
        size_t end = (size_t)MIN(f->size, (uint64_t)want + READ_STEP);
        if (!mem_grow(c->s->m, &g->data, &g->cap, end, 1))
            return ERR(c->err, TESS_E_NOMEM, "%s: no memory for its metadata", path_of(c));
        TRY(os_pread(f, g->data + g->len, end - g->len, g->len, path_of(c), c->err));
        g->len = end;
    }
    *out = g->data + c->pos;
    c->pos = want;
    return TESS_OK;
}

static tess_status take_u32(cursor *c, uint32_t *v)
{
    const uint8_t *p;
    TRY(take(c, 4, &p));
    *v = rd32(p);
    return TESS_OK;
}
static tess_status take_u64(cursor *c, uint64_t *v)
{
    const uint8_t *p;
    TRY(take(c, 8, &p));
    *v = rd64(p);
    return TESS_OK;
}
/* A string: its offset and length. */
static tess_status take_str(cursor *c, size_t *off, uint64_t *len)
{
    const uint8_t *p;
    TRY(take_u64(c, len));
    *off = c->pos;
    return take(c, *len, &p);
}

static uint32_t scalar_size(uint32_t type)
{
    static const uint8_t size[T_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < T_COUNT ? size[type] : 0;
}

static tess_status take_str_array(cursor *c, entry *e)
{
    /* Every string takes at least 8 bytes: a count that the file cannot hold is refused before the index is
     * allocated. */
    if (e->pub.n > (c->s->files[0].size - c->pos) / 8) return bad(c, "array is longer than the file");
    e->index = mem_calloc(c->s->m, e->pub.n + 1, sizeof *e->index);
    if (!e->index)
        return ERR(c->err, TESS_E_NOMEM, "%s: no memory for an array of %llu strings", path_of(c),
                   (unsigned long long)e->pub.n);
    for (uint64_t i = 0; i < e->pub.n; i++) {
        size_t off;
        uint64_t len;
        e->index[i] = c->pos - e->data_off;
        TRY(take_str(c, &off, &len));
    }
    return TESS_OK;
}

/* The value of e, whose type was read. data_off: first byte of the scalar, string or elements. */
static tess_status take_value(cursor *c, entry *e)
{
    const uint8_t *p;
    uint64_t bytes;
    if (e->pub.type == T_STR) return take_str(c, &e->data_off, &e->pub.n);
    if (e->pub.type != T_ARR) {
        uint32_t size = scalar_size(e->pub.type);
        if (!size) return bad(c, "unknown type of a value");
        e->data_off = c->pos;
        e->pub.n = 1;
        return take(c, size, &p);
    }
    TRY(take_u32(c, &e->pub.elem_type));
    TRY(take_u64(c, &e->pub.n));
    e->data_off = c->pos;
    if (e->pub.elem_type == T_STR) return take_str_array(c, e);
    uint32_t size = scalar_size(e->pub.elem_type);
    if (!size || !u64_mul(size, e->pub.n, &bytes))
        return bad(c, "array of arrays, of an unknown type, or too long");
    return take(c, bytes, &p);
}

static int entry_cmp(const void *x, const void *y)
{
    const gguf_kv *a = &((const entry *)x)->pub, *b = &((const entry *)y)->pub;
    int c = memcmp(a->key, b->key, MIN(a->key_len, b->key_len));
    return c ? c : (a->key_len > b->key_len) - (a->key_len < b->key_len);
}

static tess_status parse_kv(cursor *c, uint64_t n)
{
    gguf_impl *g = c->g;
    if (n > MAX_KV) return bad(c, "more than 65536 keys");
    g->kv = mem_calloc(c->s->m, n + 1, sizeof *g->kv);
    if (!g->kv)
        return ERR(c->err, TESS_E_NOMEM, "%s: no memory for %llu keys", path_of(c), (unsigned long long)n);
    for (uint64_t i = 0; i < n; i++) {
        entry *e = &g->kv[g->n_kv++];
        uint64_t key_len;
        TRY(take_str(c, &e->key_off, &key_len));
        e->pub.key_len = (size_t)key_len;
        if (key_len == 0 || key_len > 65535 || !utf8_valid((const char *)g->data + e->key_off, (size_t)key_len))
            return bad(c, "a key is empty, too long or not UTF-8");
        TRY(take_u32(c, &e->pub.type));
        TRY(take_value(c, e));
    }
    return TESS_OK;
}

/* Called when the metadata stopped moving. */
static tess_status link_kv(cursor *c)
{
    gguf_impl *g = c->g;
    for (uint32_t i = 0; i < g->n_kv; i++) {
        g->kv[i].pub.key = (const char *)g->data + g->kv[i].key_off;
        g->kv[i].pub.data = g->data + g->kv[i].data_off;
    }
    if (g->n_kv) qsort(g->kv, g->n_kv, sizeof *g->kv, entry_cmp);
    for (uint32_t i = 1; i < g->n_kv; i++)
        if (entry_cmp(&g->kv[i - 1], &g->kv[i]) == 0)
            return ERR(c->err, TESS_E_FORMAT, "%s: key \"%.*s\" occurs twice", path_of(c),
                       (int)MIN(g->kv[i].pub.key_len, (size_t)100), g->kv[i].pub.key);
    return TESS_OK;
}

/* ---- tensors ---- */

static tess_status set_type(const cursor *c, const char *name, uint32_t id, src_tensor *t)
{
    char list[256] = "";
    size_t len = 0;
    for (uint32_t i = 0; i < ARRAY_LEN(types); i++) {
        if (types[i].dtype)
            len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", i ? ", " : "", types[i].name); /* 97 bytes in all */
        if (types[i].id != id) continue;
        t->dtype = types[i].dtype;
        t->like = gguf_block_like(t->dtype);
        t->type = types[i].name;
        if (t->dtype) return TESS_OK;
    }
    return ERR(c->err, TESS_E_UNSUPPORTED, "%s: tensor \"%s\" has type %u (%s); supported are %s", path_of(c), name, id,
               t->type ? t->type : "unknown", list);
}

/* Size of t; its dims were read. */
static tess_status set_size(const cursor *c, const char *name, src_tensor *t)
{
    uint32_t elems, bytes;
    uint64_t n = 1;
    if (!source_block(t->dtype, &elems, &bytes)) return bad(c, "type without a size");
    for (uint32_t i = 0; i < t->rank; i++)
        if (t->shape[i] == 0 || !u64_mul(n, t->shape[i], &n) || n > (1ull << 48))
            return ERR(c->err, TESS_E_FORMAT, "%s: tensor \"%s\": dimension %u is %llu", path_of(c), name, i,
                       (unsigned long long)t->shape[i]);
    if (t->shape[t->rank - 1] % elems)
        return ERR(c->err, TESS_E_FORMAT, "%s: tensor \"%s\": rows of %llu are not whole blocks of %u",
                   path_of(c), name, (unsigned long long)t->shape[t->rank - 1], elems);
    t->nbytes = n / elems * bytes; /* n <= 2^48, bytes <= 210 */
    return TESS_OK;
}

static tess_status parse_tensor(cursor *c)
{
    src_tensor t = {0};
    size_t name_off;
    uint64_t name_len, dims[4];
    uint32_t type;
    char name[256];
    TRY(take_str(c, &name_off, &name_len));
    if (name_len > 255 || !source_name_ok((const char *)c->g->data + name_off, (size_t)name_len))
        return bad(c, "bad tensor name");
    memcpy(name, c->g->data + name_off, (size_t)name_len);
    name[name_len] = 0;
    TRY(take_u32(c, &t.rank));
    if (t.rank < 1 || t.rank > 4)
        return ERR(c->err, TESS_E_FORMAT, "%s: tensor \"%s\" has %u dimensions, want 1 to 4", path_of(c), name,
                   t.rank);
    for (uint32_t i = 0; i < t.rank; i++) TRY(take_u64(c, &dims[i]));
    for (uint32_t i = 0; i < t.rank; i++) t.shape[i] = dims[t.rank - 1 - i];
    TRY(take_u32(c, &type));
    TRY(take_u64(c, &t.off));
    TRY(set_type(c, name, type, &t));
    TRY(set_size(c, name, &t));
    return source_add_tensor(c->s, &t, name, (size_t)name_len, c->err);
}

static int off_cmp(const void *x, const void *y)
{
    const src_tensor *a = x, *b = y;
    return (a->off > b->off) - (a->off < b->off);
}

/* Turns offsets into file offsets after checking that the tensors lie one after another inside the file. */
static tess_status place_tensors(cursor *c, uint64_t data_off, uint64_t align)
{
    source *s = c->s;
    uint64_t at = 0, size = s->files[0].size;
    if (s->n_tensors) qsort(s->tensors, s->n_tensors, sizeof *s->tensors, off_cmp);
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        src_tensor *t = &s->tensors[i];
        if (t->off != at)
            return ERR(c->err, TESS_E_FORMAT, "%s: tensor \"%s\" is at data offset %llu, want %llu", path_of(c),
                       t->name, (unsigned long long)t->off, (unsigned long long)at);
        if (data_off > size || !range_in(t->off, t->nbytes, size - data_off))
            return ERR(c->err, TESS_E_FORMAT, "%s: tensor \"%s\" ends beyond the file: the file is cut off",
                       path_of(c), t->name);
        if (!u64_align(at + t->nbytes, align, &at)) return bad(c, "size overflows");
        t->off += data_off;
    }
    return source_sort(s, c->err);
}

static tess_status parse(cursor *c)
{
    const uint8_t *p;
    uint32_t version;
    uint64_t n_tensors, n_kv, data_off, align;
    TRY(take(c, 4, &p));
    if (memcmp(p, "GGUF", 4) != 0) return ERR(c->err, TESS_E_FORMAT, "%s: is not a GGUF file", path_of(c));
    TRY(take_u32(c, &version));
    if (version != 2 && version != 3)
        return ERR(c->err, TESS_E_UNSUPPORTED, "%s: GGUF version %u%s; versions 2 and 3 are read", path_of(c),
                   version, version > 0xffff ? " (big-endian)" : "");
    TRY(take_u64(c, &n_tensors));
    TRY(take_u64(c, &n_kv));
    TRY(parse_kv(c, n_kv));
    if (n_tensors > (c->s->files[0].size - c->pos) / 24)
        return bad(c, "more tensors than the file can describe");
    for (uint64_t i = 0; i < n_tensors; i++) TRY(parse_tensor(c));
    TRY(link_kv(c));
    align = gguf_u64(c->s, "general.alignment", 32);
    if (align < 8 || align > 65536 || (align & (align - 1)))
        return bad(c, "general.alignment is not a power of two from 8 to 65536");
    if (!u64_align(c->pos, align, &data_off)) return bad(c, "size overflows");
    return place_tensors(c, data_off, align);
}

static void close_gguf(source *s)
{
    gguf_impl *g = s->impl;
    for (uint32_t i = 0; i < g->n_kv; i++) mem_free(s->m, g->kv[i].index);
    mem_free(s->m, g->kv);
    mem_free(s->m, g->data);
    mem_free(s->m, g);
}

tess_status gguf_open(const char *path, const mem *m, source **out, tess_error *err)
{
    uint32_t index;
    tess_status st;
    source *s;
    *out = NULL;
    TRY(source_new(m, "gguf", &s, err));
    gguf_impl *g = s->impl = mem_zalloc(m, sizeof *g);
    if (!g) {
        st = ERR(err, TESS_E_NOMEM, "%s: no memory", path);
        goto fail;
    }
    s->close = close_gguf;
    s->blocks = gguf_blocks;
    if ((st = source_add_file(s, path, &index, err)) < 0) goto fail;
    cursor c = {s, g, 0, err};
    if ((st = parse(&c)) < 0) goto fail;
    *out = s;
    return TESS_OK;
fail:
    source_close(s);
    return st;
}

/* ---- metadata ---- */

const gguf_kv *gguf_find(const source *s, const char *key)
{
    const gguf_impl *g = s->impl;
    entry want = {.pub = {.key = key, .key_len = strlen(key)}};
    entry *e = g->n_kv ? bsearch(&want, g->kv, g->n_kv, sizeof *g->kv, entry_cmp) : NULL;
    return e ? &e->pub : NULL;
}

/* Scalar of this type at p as a signed and a floating number; false when the type is none. */
static bool scalar_at(uint32_t type, const uint8_t *p, int64_t *i, double *d)
{
    float f;
    if (!scalar_size(type)) return false;
    switch (type) {
    case T_U8: case T_BOOL: *i = p[0]; break;
    case T_I8: *i = (int8_t)p[0]; break;
    case T_U16: *i = rd16(p); break;
    case T_I16: *i = (int16_t)rd16(p); break;
    case T_U32: *i = rd32(p); break;
    case T_I32: *i = (int32_t)rd32(p); break;
    case T_F32: memcpy(&f, p, 4); *d = (double)f; *i = -1; return true;
    case T_F64: memcpy(d, p, 8); *i = -1; return true;
    default: *i = (int64_t)rd64(p); break;
    }
    *d = (double)*i;
    return true;
}

uint64_t gguf_u64(const source *s, const char *key, uint64_t def)
{
    const gguf_kv *v = gguf_find(s, key);
    return v && v->type != T_ARR ? gguf_u64_at(v, 0, def) : def;
}

double gguf_f64(const source *s, const char *key, double def)
{
    const gguf_kv *v = gguf_find(s, key);
    int64_t i;
    double d;
    return v && scalar_at(v->type, v->data, &i, &d) ? d : def;
}

uint64_t gguf_count(const gguf_kv *v) { return v->type == T_ARR ? v->n : 1; }

uint64_t gguf_u64_at(const gguf_kv *v, uint64_t i, uint64_t def)
{
    uint32_t type = v->type == T_ARR ? v->elem_type : v->type;
    int64_t n;
    double d;
    bool ok = i < gguf_count(v) && scalar_at(type, v->data + i * scalar_size(type), &n, &d) && n >= 0;
    return ok ? (uint64_t)n : def;
}

const char *gguf_str(const source *s, const char *key, size_t *len)
{
    const gguf_kv *v = gguf_find(s, key);
    *len = 0;
    if (!v || v->type != T_STR) return NULL;
    *len = (size_t)v->n;
    return (const char *)v->data;
}

const char *gguf_str_at(const gguf_kv *v, uint64_t i, size_t *len)
{
    const entry *e = (const entry *)(const void *)v;
    *len = 0;
    if (v->type != T_ARR || v->elem_type != T_STR || i >= v->n) return NULL;
    const uint8_t *p = v->data + e->index[i];
    *len = (size_t)rd64(p);
    return (const char *)p + 8;
}
