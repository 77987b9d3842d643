/*
 * t_base.c - lib/base: sizes, errors, memory, arena, UTF-8, half floats, key-values, threads, files.
 *
 * The half conversions are tested over all 65536 patterns, and their rounding against a slow version that picks the nearest
 * of all values; UTF-8 over every code point and every two-byte sequence; key-values under every cut and every single-byte
 * change of a file (they must be read or refused, never crash; run under asan).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dtype.h"
#include "hash.h"
#include "kvs.h"
#include "mem.h"
#include "os.h"
#include "pool.h"
#include "utf8.h"

/* ---- sizes and errors ---- */

static void sizes_overflow(void **state)
{
    UNUSED(state);
    uint64_t r = 7;
    size_t s;
    assert_true(u64_add(UINT64_MAX - 1, 1, &r) && r == UINT64_MAX);
    assert_false(u64_add(UINT64_MAX, 1, &r));
    assert_true(u64_mul(1ull << 32, (1ull << 32) - 1, &r));
    assert_false(u64_mul(1ull << 32, 1ull << 32, &r));
    assert_true(u64_align(0, 64, &r) && r == 0);
    assert_true(u64_align(65, 64, &r) && r == 128);
    assert_false(u64_align(UINT64_MAX - 3, 64, &r));
    assert_true(size_mul3(1024, 1024, 1024, &s) && s == 1u << 30);
    assert_false(size_mul3((1ull << 62) + 4, 4, 4, &s)); /* wraps to 64 in plain arithmetic */
    assert_false(size_mul3(1ull << 32, 1ull << 32, 0x10, &s));
    assert_false(size_mul3(1ull << 62, 2, 1, &s)); /* more than PTRDIFF_MAX */
    assert_true(range_in(10, 5, 15));
    assert_false(range_in(10, 6, 15));
    assert_true(range_in(15, 0, 15));
    assert_false(range_in(16, 0, 15));
    assert_false(range_in(5, UINT64_MAX, 15));
    assert_int_equal(ceil_div(UINT64_MAX, 1), UINT64_MAX);
    assert_int_equal(ceil_div(33, 32), 2);
    assert_int_equal(ceil_div(0, 32), 0);
}

static void errors_are_one_line(void **state)
{
    UNUSED(state);
    tess_error e;
    char longest[2000];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(ERR(&e, TESS_E_FORMAT, "bad \n name \x1b[31m %d", 5), TESS_E_FORMAT);
    assert_string_equal(e.text, "bad ? name ?[31m 5");
    assert_int_equal(ERR(NULL, TESS_E_IO, "nobody listens"), TESS_E_IO);
    ERR(&e, TESS_E_IO, "%s", longest);
    assert_int_equal(strlen(e.text), sizeof e.text - 1);
    err_prefix(&e, TESS_E_IO, "%s", "file");
    assert_int_equal(strlen(e.text), sizeof e.text - 1);
    assert_memory_equal(e.text, "file: xxx", 9);
    errno = ENOENT;
    err_set_os(&e, TESS_E_IO, "f");
    assert_int_equal(e.os_code, ENOENT);
    assert_string_equal(e.text, "f: No such file or directory");
    err_prefix(&e, TESS_E_IO, "%s", longest);
    assert_int_equal(strlen(e.text), sizeof e.text - 1);
}

/* ---- memory ---- */

typedef struct { size_t live, blocks, fail_at, calls; } counter;
static void *count_alloc(void *user, size_t size, size_t align)
{
    counter *c = user;
    if (++c->calls == c->fail_at) return NULL;
    c->live += size;
    c->blocks++;
    return aligned_alloc(align, size);
}
static void count_release(void *user, void *p, size_t size)
{
    counter *c = user;
    c->live -= size;
    c->blocks--;
    free(p);
}
static mem counted(counter *c) { return (mem){c, count_alloc, count_release, NULL}; }

static void memory_is_returned_with_its_size(void **state)
{
    UNUSED(state);
    counter c = {0};
    mem m = counted(&c);
    char *p = mem_alloc(&m, 0);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 64, 0);
    p = mem_realloc(&m, p, 1000);
    memset(p, 1, 1000);
    p = mem_realloc(&m, p, 100000);
    for (int i = 0; i < 1000; i++) assert_int_equal(p[i], 1);
    assert_null(mem_realloc(&m, p, SIZE_MAX - 8)); /* p still holds */
    mem_free(&m, p);
    mem_free(&m, NULL);
    assert_null(mem_alloc(&m, SIZE_MAX));
    assert_null(mem_alloc(&m, (size_t)PTRDIFF_MAX));
    assert_null(mem_calloc(&m, 1ull << 33, 1ull << 33));
    char *z = mem_calloc(&m, 10, 10);
    for (int i = 0; i < 100; i++) assert_int_equal(z[i], 0);
    mem_free(&m, z);
    int *array = NULL;
    size_t cap = 0;
    for (size_t i = 0; i < 1000; i++) {
        assert_true(mem_grow(&m, &array, &cap, i + 1, sizeof *array));
        array[i] = (int)i;
    }
    for (int i = 0; i < 1000; i++) assert_int_equal(array[i], i);
    assert_false(mem_grow(&m, &array, &cap, SIZE_MAX / 2, sizeof *array));
    mem_free(&m, array);
    assert_int_equal(c.blocks, 0);
    assert_int_equal(c.live, 0);
}

static void host_needs_both_callbacks(void **state)
{
    UNUSED(state);
    mem m;
    tess_error e;
    tess_host h = {.struct_size = sizeof h, .alloc = count_alloc};
    assert_int_equal(mem_from_host(&m, &h, &e), TESS_E_ARG);
    h.release = count_release;
    assert_int_equal(mem_from_host(&m, &h, &e), TESS_OK);
    h.struct_size = 8;
    assert_int_equal(mem_from_host(&m, &h, &e), TESS_E_ARG);
    assert_int_equal(mem_from_host(&m, NULL, NULL), TESS_OK);
}

static void buf_keeps_its_failure(void **state)
{
    UNUSED(state);
    counter c = {.fail_at = 2};
    mem m = counted(&c);
    buf b;
    buf_init(&b, &m);
    assert_true(buf_puts(&b, "abc"));
    char big[600];
    memset(big, 'y', sizeof big);
    big[599] = 0;
    assert_false(buf_puts(&b, big)); /* the second allocation fails */
    assert_false(buf_putc(&b, 'd'));
    assert_true(b.failed);
    assert_int_equal(b.len, 3);
    buf_free(&b);
    buf_init(&b, &m);
    assert_true(buf_printf(&b, "%s-%d", big, 42)); /* longer than the small buffer of buf_printf */
    assert_int_equal(b.len, 602);
    assert_memory_equal(b.data + 598, "y-42", 4);
    assert_true(buf_put(&b, NULL, 0));
    buf_free(&b);
    assert_int_equal(c.blocks, 0);
}

static void arena_frees_all(void **state)
{
    UNUSED(state);
    counter c = {0};
    mem m = counted(&c);
    arena a;
    arena_init(&a, &m);
    for (size_t i = 0; i < 5000; i++) {
        unsigned char *p = arena_alloc(&a, i % 97, 3);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t j = 0; j < i % 97 * 3; j++) assert_int_equal(p[j], 0);
        memset(p, 0xff, i % 97 * 3);
    }
    assert_non_null(arena_alloc(&a, 1 << 20, 1)); /* larger than a block */
    assert_string_equal(arena_strndup(&a, "hello world", 5), "hello");
    assert_null(arena_alloc(&a, UINT64_MAX, 1));
    assert_null(arena_alloc(&a, 1ull << 40, 1ull << 30));
    arena_free(&a);
    assert_int_equal(c.blocks, 0);
    c.fail_at = c.calls + 1;
    assert_null(arena_alloc(&a, 1, 1));
    arena_free(&a);
}

/* ---- UTF-8 ---- */

static void utf8_all_code_points(void **state)
{
    UNUSED(state);
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        char s[8] = {0};
        uint32_t back, n = utf8_encode(cp, s);
        bool surrogate = cp >= 0xd800 && cp <= 0xdfff;
        if (surrogate) {
            assert_int_equal(utf8_decode(s, n, &back), 0);
            continue;
        }
        assert_int_equal(n, cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4);
        assert_int_equal(utf8_decode(s, n, &back), n);
        assert_int_equal(back, cp);
        assert_true(utf8_valid(s, n));
        for (uint32_t cut = 1; cut < n; cut++) {
            assert_int_equal(utf8_decode(s, cut, &back), 0);
            assert_int_equal(utf8_partial_tail(s, cut), cut);
        }
        assert_int_equal(utf8_partial_tail(s, n), 0);
    }
}

static void utf8_refuses(void **state)
{
    UNUSED(state);
    static const struct { const char *s; uint32_t n, bad; } cases[] = {
        {"\x80", 1, 1}, {"\xbf", 1, 1}, {"\xc0\x80", 2, 1}, {"\xc1\xbf", 2, 1},             /* lone tail, overlong */
        {"\xe0\x80\x80", 3, 1}, {"\xe0\x9f\xbf", 3, 1}, {"\xed\xa0\x80", 3, 1},             /* overlong, surrogate */
        {"\xf0\x80\x80\x80", 4, 1}, {"\xf0\x8f\xbf\xbf", 4, 1}, {"\xf4\x90\x80\x80", 4, 1}, /* overlong, too large */
        {"\xf5\x80\x80\x80", 4, 1}, {"\xff", 1, 1}, {"\xfe\xfe", 2, 1},
        {"\xe2\x82", 2, 2}, {"\xe2\x82""A", 3, 2}, {"\xf0\x9f\x98""A", 4, 3}, {"\xf0\x9f", 2, 2}, {"\xc3(", 2, 1},
    };
    uint32_t cp;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(utf8_decode(cases[i].s, cases[i].n, &cp), 0);
        assert_false(utf8_valid(cases[i].s, cases[i].n));
        assert_int_equal(utf8_bad_len(cases[i].s, cases[i].n), cases[i].bad);
    }
    assert_true(utf8_valid("", 0));
    assert_true(utf8_valid("a\0b", 3));
    assert_int_equal(utf8_partial_tail("ab\xf0\x9f\x98", 5), 3);
    assert_int_equal(utf8_partial_tail("ab\x80\x80", 4), 0);
    assert_int_equal(utf8_partial_tail("\x80\x80\x80\x80", 4), 0);
    assert_int_equal(utf8_partial_tail("ab\xe0\x80", 4), 0); /* can not become a character */
    assert_int_equal(utf8_partial_tail("", 0), 0);
    for (unsigned a = 0; a < 65536; a++) { /* a second opinion on two bytes */
        char s[2] = {(char)(a >> 8), (char)a};
        bool lead = a >> 8 < 0x80, tail = (a & 0xff) < 0x80;
        bool two = a >> 8 >= 0xc2 && a >> 8 <= 0xdf && (a & 0xc0) == 0x80;
        assert_int_equal(utf8_valid(s, 2), (lead && tail) || two);
    }
}

/* ---- half floats ---- */

static float f16_slow(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 0x3ff;
    double v = e == 0 ? ldexp(m, -24) : e == 31 ? (m ? NAN : INFINITY) : ldexp(1024 + m, e - 25);
    return (float)(h & 0x8000 ? -v : v);
}

static bool same_bits(float a, float b) { return memcmp(&a, &b, 4) == 0; }

static void half_all_patterns(void **state)
{
    UNUSED(state);
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        float f = f16_to_f32(h), slow = f16_slow(h);
        if (isnan(slow)) {
            assert_true(isnan(f) && isnan(f16_to_f32(f32_to_f16(f))));
            assert_int_equal(f32_to_f16(f), h | 0x200); /* made quiet, payload and sign kept */
        } else {
            assert_true(same_bits(f, slow));
            assert_int_equal(f32_to_f16(f), h);
        }
        float b = bf16_to_f32(h);
        uint32_t bits;
        memcpy(&bits, &b, 4);
        assert_int_equal(bits, i << 16);
        if (isnan(b)) assert_int_equal(f32_to_bf16(b), h | 0x40);
        else assert_int_equal(f32_to_bf16(b), h);
    }
}

/* Between two neighbours a < b (patterns h, h + 1): just below the middle, the middle, just above. */
static void check_rounding(uint16_t h, float a, float b, uint16_t (*narrow)(float))
{
    float mid = (float)(((double)a + (double)b) / 2);
    uint16_t even = h & 1 ? (uint16_t)(h + 1) : h;
    assert_int_equal(narrow(nextafterf(mid, a)), h);
    assert_int_equal(narrow(mid), even);
    assert_int_equal(narrow(nextafterf(mid, b)), (uint16_t)(h + 1));
    assert_int_equal(narrow(-mid), even | 0x8000);
}

static void half_rounding(void **state)
{
    UNUSED(state);
    for (uint32_t i = 0; i < 0x7bff; i++) check_rounding((uint16_t)i, f16_to_f32((uint16_t)i), f16_to_f32((uint16_t)(i + 1)), f32_to_f16);
    for (uint32_t i = 0x80; i < 0x7f7f; i++) check_rounding((uint16_t)i, bf16_to_f32((uint16_t)i), bf16_to_f32((uint16_t)(i + 1)), f32_to_bf16);
    assert_int_equal(f32_to_f16(65519.996f), 0x7bff); /* below the middle between the largest and infinity */
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(f32_to_f16(1e-30f), 0);
    assert_int_equal(f32_to_f16(-1e-30f), 0x8000);
    assert_int_equal(f32_to_bf16(3.4e38f), 0x7f80);
    assert_int_equal(f32_to_bf16(-0.0f), 0x8000);
    float v[5] = {1, -2.5f, 1e-8f, INFINITY, 0.1f}, back[5];
    uint16_t h[5];
    for (uint32_t dt = DT_F16; dt <= DT_BF16; dt++) {
        dtype_from_f32(dt, v, h, 5);
        dtype_to_f32(dt, h, back, 5);
        for (int i = 0; i < 5; i++) assert_true(same_bits(back[i], dt == DT_F16 ? f16_to_f32(f32_to_f16(v[i])) : bf16_to_f32(f32_to_bf16(v[i]))));
    }
}

/* ---- layouts ---- */

static void layout_sizes(void **state)
{
    UNUSED(state);
    uint64_t n, k[3] = {64, 33, 1}, huge = 1ull << 60;
    assert_true(layout_bytes(DT_BF16, LAYOUT_ROWS, 9, k, 1, &n) && n == 9 * 64 * 2);
    assert_true(layout_bytes(DT_F32, LAYOUT_TILE8, 9, k, 3, &n) && n == 2 * 8 * 98 * 4);
    assert_true(layout_bytes(DT_Q8, LAYOUT_TILE8, 8, k, 3, &n) && n == (2 + 2 + 1) * Q8_TILE);
    assert_true(layout_bytes(DT_Q4, LAYOUT_TILE8, 17, k, 1, &n) && n == 3 * 2 * Q4_TILE);
    assert_false(layout_bytes(DT_Q8, LAYOUT_ROWS, 8, k, 1, &n));
    assert_false(layout_bytes(99, LAYOUT_ROWS, 8, k, 1, &n));
    assert_false(layout_bytes(DT_F32, 2, 8, k, 1, &n));
    assert_false(layout_bytes(DT_F32, LAYOUT_ROWS, 1 << 20, &huge, 1, &n));
    assert_true(layout_bytes(DT_F32, LAYOUT_TILE8, 0, k, 1, &n) && n == 0);
    assert_int_equal(dtype_by_name("bf16"), DT_BF16);
    assert_int_equal(dtype_by_name("BF16"), 0);
    assert_null(dtype_get(0));
    assert_null(dtype_get(DT_COUNT));
}

static void tiles_round_trip(void **state)
{
    UNUSED(state);
    enum { ROWS = 19, K = 37 };
    for (uint32_t esize = 2; esize <= 4; esize += 2) {
        uint8_t src[ROWS * K * 4], back[ROWS * K * 4], *tile = malloc(24 * K * esize + 1);
        for (size_t i = 0; i < sizeof src; i++) src[i] = (uint8_t)(i * 131 + 7);
        for (uint64_t rows = 1; rows <= ROWS; rows++) {
            uint64_t padded = (rows + 7) / 8 * 8;
            memset(tile, 0xee, 24 * K * esize + 1);
            tile8_pack(tile, src, K * esize, rows, K, esize);
            assert_int_equal(tile[padded * K * esize], 0xee); /* nothing past the end */
            for (uint64_t r = 0; r < padded; r++)
                for (uint64_t k = 0; k < K; k++) {
                    static const uint8_t zero[4];
                    const uint8_t *want = r < rows ? src + (r * K + k) * esize : zero;
                    assert_memory_equal(tile + ((r / 8 * K + k) * 8 + r % 8) * esize, want, esize);
                }
            tile8_unpack(back, K * esize, tile, rows, K, esize);
            assert_memory_equal(back, src, rows * K * esize);
        }
        free(tile);
    }
}

/* ---- hashes ---- */

static void hashes_are_known(void **state)
{
    UNUSED(state);
    assert_int_equal(hash64("", 0, 0), 0x2d06800538d394c2ull); /* published value of XXH3_64bits("") */
    char data[5000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i * 7);
    uint8_t once[16], parts[16];
    hash128(data, sizeof data, once);
    hash_stream *s = aligned_alloc(64, (hash_stream_size() + 63) / 64 * 64);
    hash_stream_reset(s);
    for (size_t at = 0, n; at < sizeof data; at += n) {
        n = MIN(sizeof data - at, at % 613 + 1);
        hash_stream_update(s, data + at, n);
    }
    hash_stream_final(s, parts);
    assert_memory_equal(once, parts, 16);
    free(s);
    assert_true(hash_mix(1, 2, 3) != hash_mix(1, 3, 2));
    assert_true(hash64(data, 10, 1) != hash64(data, 10, 2));
}

/* ---- key-values ---- */

static void *kvs_sample(size_t *len)
{
    kvs_builder *b;
    tess_error e;
    void *out;
    static const float f[3] = {1, -2, 3.5f};
    static const uint32_t u[2] = {7, 0xffffffff};
    static const char *const s[3] = {"alpha", "", "\xc3\xa9t\xc3\xa9"};
    static const size_t lens[3] = {5, 0, 5};
    assert_int_equal(kvs_builder_open(&mem_libc, &b, &e), TESS_OK);
    kvs_put_u64(b, "z.u64", UINT64_MAX);
    kvs_put_i64(b, "a.i64", -5);
    kvs_put_f64(b, "m.f64", -0.0);
    kvs_put_bool(b, "bool", true);
    kvs_put_str(b, "str", "text", 4);
    kvs_put_str(b, "empty", "", 0);
    kvs_put_array(b, "f32s", KV_F32S, f, 3);
    kvs_put_array(b, "u32s", KV_U32S, u, 2);
    kvs_put_array(b, "none", KV_U8S, NULL, 0);
    kvs_put_strs(b, "strs", s, lens, 3);
    assert_int_equal(kvs_build(b, &out, len, &e), TESS_OK);
    kvs_builder_close(b);
    return out;
}

static void kvs_round_trip(void **state)
{
    UNUSED(state);
    size_t len, n;
    uint64_t count;
    void *data = kvs_sample(&len);
    kvs k;
    assert_int_equal(kvs_open(&k, &mem_libc, data, len, NULL), TESS_OK);
    assert_int_equal(k.count, 10);
    for (uint32_t i = 1; i < k.count; i++) assert_true(memcmp(k.items[i - 1].key, k.items[i].key, 1) <= 0);
    assert_true(kvs_u64(&k, "z.u64", 0) == UINT64_MAX);
    assert_int_equal(kvs_i64(&k, "a.i64", 0), -5);
    assert_true(signbit(kvs_f64(&k, "m.f64", 1)));
    assert_true(kvs_bool(&k, "bool", false));
    assert_int_equal(kvs_u64(&k, "str", 99), 99); /* another type: the default */
    assert_int_equal(kvs_u64(&k, "zz", 98), 98);
    assert_memory_equal(kvs_str(&k, "str", &n), "text", 4);
    assert_int_equal(n, 4);
    assert_non_null(kvs_str(&k, "empty", &n));
    assert_int_equal(n, 0);
    const float *f = kvs_array(&k, "f32s", KV_F32S, &count);
    assert_int_equal(count, 3);
    assert_true(same_bits(f[2], 3.5f));
    assert_null(kvs_array(&k, "f32s", KV_U32S, &count));
    const kv *v = kvs_find(&k, "strs");
    assert_memory_equal(kv_strs_at(v, 0, &n), "alpha", 5);
    kv_strs_at(v, 1, &n);
    assert_int_equal(n, 0);
    assert_memory_equal(kv_strs_at(v, 2, &n), "\xc3\xa9t\xc3\xa9", 5);
    assert_int_equal(n, 5);
    kvs_close(&k);
    mem_free(&mem_libc, data);
}

static void kvs_builder_refuses(void **state)
{
    UNUSED(state);
    char key[300];
    memset(key, 'k', sizeof key);
    key[299] = 0;
    for (int c = 0; c < 4; c++) {
        kvs_builder *b;
        void *out;
        size_t len;
        tess_error e;
        assert_int_equal(kvs_builder_open(&mem_libc, &b, &e), TESS_OK);
        if (c == 0) kvs_put_bool(b, "x", true), kvs_put_u64(b, "x", 1);
        if (c == 1) kvs_put_u64(b, key, 1);
        if (c == 2) kvs_put_u64(b, "", 1);
        if (c == 3) kvs_put_array(b, "x", KV_STR, "abc", 3);
        assert_int_equal(kvs_build(b, &out, &len, &e), TESS_E_ARG);
        assert_null(out);
        kvs_builder_close(b);
    }
}

/* Reads everything that a reader may touch. */
static uint64_t kvs_touch(const kvs *k)
{
    uint64_t sum = 0;
    size_t n;
    for (uint32_t i = 0; i < k->count; i++) {
        const kv *v = &k->items[i];
        if (v->type == KV_STR || v->type == KV_U8S)
            for (uint64_t j = 0; j < v->n; j++) sum += ((const uint8_t *)v->data)[j];
        else if (v->type == KV_STRS)
            for (uint64_t j = 0; j < v->n; j++) {
                const char *s = kv_strs_at(v, j, &n);
                while (n) sum += (uint8_t)s[--n];
            }
        else sum += rd32(v->data);
    }
    return sum;
}

static void kvs_hostile_bytes(void **state)
{
    UNUSED(state);
    size_t len;
    char *good = kvs_sample(&len);
    kvs k;
    for (size_t cut = 0; cut < len; cut++) { /* a block of its own, so that asan sees a read past the end */
        void *p = mem_alloc(&mem_libc, cut);
        memcpy(p, good, cut);
        assert_int_equal(kvs_open(&k, &mem_libc, p, cut, NULL), TESS_E_FORMAT);
        mem_free(&mem_libc, p);
    }
    void *p = mem_alloc(&mem_libc, len);
    uint64_t sum = 0;
    for (size_t at = 0; at < len; at++)
        for (int flip = 1; flip < 256; flip += flip < 8 || flip >= 128 ? 1 : 15) {
            memcpy(p, good, len);
            ((char *)p)[at] = (char)(good[at] ^ flip);
            tess_status st = kvs_open(&k, &mem_libc, p, len, NULL);
            assert_true(st == TESS_OK || st == TESS_E_FORMAT);
            if (st == TESS_OK) {
                sum += kvs_touch(&k);
                kvs_close(&k);
            }
        }
    assert_true(sum != 0);
    mem_free(&mem_libc, p);
    mem_free(&mem_libc, good);
}

static void kvs_out_of_memory(void **state)
{
    UNUSED(state);
    for (size_t fail = 1; fail < 12; fail++) {
        counter c = {.fail_at = fail};
        mem m = counted(&c);
        kvs_builder *b;
        void *out = NULL;
        size_t len;
        tess_error e;
        if (kvs_builder_open(&m, &b, &e) == TESS_OK) {
            for (int i = 0; i < 40; i++) {
                char key[16];
                snprintf(key, sizeof key, "key%d", i);
                kvs_put_str(b, key, "some text, so that the arena is used", 36);
            }
            tess_status st = kvs_build(b, &out, &len, &e);
            assert_true(st == TESS_OK || st == TESS_E_NOMEM);
            mem_free(&m, out);
            kvs_builder_close(b);
        } else assert_int_equal(e.status, TESS_E_NOMEM);
        assert_int_equal(c.blocks, 0);
    }
}

/* ---- threads ---- */

typedef struct { pool *p; uint64_t slots[64]; uint64_t errors, sum; } team;

/* Every thread writes its slot, and after the barrier reads all of them. */
static void team_run(void *arg, uint32_t thread, uint32_t n)
{
    team *t = arg;
    for (uint64_t round = 1; round <= 50; round++) {
        t->slots[thread] = round * 1000 + thread;
        pool_barrier(t->p, thread);
        for (uint32_t i = 0; i < n; i++)
            if (t->slots[i] != round * 1000 + i) __atomic_fetch_add(&t->errors, 1, __ATOMIC_RELAXED);
        pool_barrier(t->p, thread);
    }
}
static void item_run(void *arg, uint64_t item, uint32_t thread)
{
    team *t = arg;
    UNUSED(thread);
    __atomic_fetch_add(&t->sum, item, __ATOMIC_RELAXED);
    __atomic_fetch_add(&t->slots[item % 64], 1, __ATOMIC_RELAXED);
}

static void pool_more_threads_than_cpus(void **state)
{
    UNUSED(state);
    static const uint32_t sizes[] = {1, 2, 3, 8, 33, 64};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        team t = {0};
        assert_int_equal(pool_open(&mem_libc, NULL, sizes[i], &t.p, NULL), TESS_OK);
        assert_int_equal(pool_size(t.p), sizes[i]);
        for (int run = 0; run < 20; run++) pool_run(t.p, team_run, &t);
        assert_int_equal(t.errors, 0);
        memset(t.slots, 0, sizeof t.slots);
        pool_each(t.p, 6400, item_run, &t);
        for (int s = 0; s < 64; s++) assert_int_equal(t.slots[s], 100);
        assert_int_equal(t.sum, 6400ull * 6399 / 2);
        pool_each(t.p, 0, item_run, &t);
        usleep(2000); /* the team goes to sleep */
        pool_run(t.p, team_run, &t);
        assert_int_equal(t.errors, 0);
        pool_close(t.p);
    }
    pool *p;
    tess_error e;
    assert_int_equal(pool_open(&mem_libc, NULL, 100000, &p, &e), TESS_E_ARG);
    assert_null(p);
    pool_close(NULL);
}

enum { LOCK_TURNS = 100 };
typedef struct { os_lock *l; uint32_t inside, most, turns; } lock_job;
static void lock_run(void *arg, uint32_t thread, uint32_t n)
{
    lock_job *j = arg;
    UNUSED(thread), UNUSED(n);
    for (int i = 0; i < LOCK_TURNS; i++) {
        os_lock_take(j->l);
        j->inside++;
        j->most = MAX(j->most, j->inside);
        usleep(1); /* so that others would be here too */
        j->turns++;
        j->inside--;
        os_lock_drop(j->l);
    }
}

static void a_lock_has_one_holder(void **state)
{
    UNUSED(state);
    pool *p;
    lock_job j = {.l = os_lock_open(&mem_libc)};
    assert_non_null(j.l);
    assert_int_equal(pool_open(&mem_libc, NULL, 4, &p, NULL), TESS_OK);
    pool_run(p, lock_run, &j);
    assert_int_equal(j.most, 1);
    assert_int_equal(j.turns, 4 * LOCK_TURNS);
    pool_close(p);
    os_lock_close(&mem_libc, j.l);
    os_lock_take(NULL);
    os_lock_drop(NULL);
    os_lock_close(&mem_libc, NULL);
}

static void shares_cover_everything(void **state)
{
    UNUSED(state);
    for (uint64_t total = 0; total < 100; total++)
        for (uint64_t grain = 1; grain < 10; grain += 3)
            for (uint32_t n = 1; n < 9; n++) {
                uint64_t at = 0, lo, hi;
                for (uint32_t i = 0; i < n; i++) {
                    pool_share(total, grain, i, n, &lo, &hi);
                    assert_true(lo == at && hi >= lo && (lo % grain == 0 || lo == total));
                    at = hi;
                }
                assert_int_equal(at, total);
            }
}

/* ---- files ---- */

static char dir[64];
static int make_dir(void **state)
{
    UNUSED(state);
    snprintf(dir, sizeof dir, "/tmp/t_base.XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}
static int remove_dir(void **state)
{
    UNUSED(state);
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}
static const char *in_dir(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}
static int dir_entries(void)
{
    char command[128];
    snprintf(command, sizeof command, "exit $(ls -A '%s' | wc -l)", dir);
    return WEXITSTATUS(system(command));
}

static void out_commit_and_abort(void **state)
{
    UNUSED(state);
    os_out o;
    tess_error e;
    char *text;
    size_t len;
    umask(027);
    assert_int_equal(os_out_open(&o, &mem_libc, in_dir("a"), &e), TESS_OK);
    assert_int_equal(os_out_reserve(&o, 100, &e), TESS_OK);
    assert_int_equal(os_out_pwrite(&o, "world", 5, 6, &e), TESS_OK);
    assert_int_equal(os_out_pwrite(&o, "hello ", 6, 0, &e), TESS_OK);
    assert_int_equal(os_out_truncate(&o, 11, &e), TESS_OK);
    assert_false(os_exists(in_dir("a")));
    assert_int_equal(os_out_commit(&o, false, &e), TESS_OK);
    os_out_abort(&o);
    os_out_abort(&o);
    assert_int_equal(os_read_whole(in_dir("a"), 100, &mem_libc, &text, &len, &e), TESS_OK);
    assert_int_equal(len, 11);
    assert_string_equal(text, "hello world");
    mem_free(&mem_libc, text);
    struct stat st;
    assert_int_equal(stat(in_dir("a"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_equal(os_read_whole(in_dir("a"), 5, &mem_libc, &text, &len, &e), TESS_E_FORMAT);

    assert_int_equal(os_out_open(&o, &mem_libc, in_dir("a"), &e), TESS_OK);
    assert_int_equal(os_out_pwrite(&o, "x", 1, 0, &e), TESS_OK);
    assert_int_equal(os_out_commit(&o, false, &e), TESS_E_IO); /* exists */
    assert_non_null(strstr(e.text, "--force"));
    assert_int_equal(os_out_commit(&o, true, &e), TESS_OK);
    os_out_abort(&o);
    assert_int_equal(os_read_whole(in_dir("a"), 5, &mem_libc, &text, &len, &e), TESS_OK);
    assert_int_equal(len, 1);
    mem_free(&mem_libc, text);

    assert_int_equal(os_out_open(&o, &mem_libc, in_dir("b"), &e), TESS_OK);
    os_out_abort(&o);
    assert_int_equal(dir_entries(), 1); /* only a: no temporary is left */
    assert_int_equal(os_out_open(&o, &mem_libc, in_dir("no/such/folder"), &e), TESS_E_IO);
    os_out_abort(&o);
    assert_int_equal(os_out_open(&o, &mem_libc, in_dir("c/"), &e), TESS_E_ARG);
    os_out_abort(&o);
}

static void out_full_disk(void **state)
{
    UNUSED(state);
    pid_t pid = fork(); /* the limit would hit the test's own log */
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit limit = {65536, 65536};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        static char block[100000];
        os_out o;
        tess_error e;
        int rc = 0;
        if (os_out_open(&o, &mem_libc, in_dir("full"), &e) != TESS_OK) rc = 1;
        else if (os_out_pwrite(&o, block, sizeof block, 0, &e) != TESS_E_IO || e.os_code != EFBIG) rc = 2;
        else if (os_out_reserve(&o, 1 << 20, &e) != TESS_E_IO) rc = 3;
        os_out_abort(&o);
        _exit(rc);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_false(os_exists(in_dir("full")));
    assert_int_equal(dir_entries(), 1);
}

static void reading_refuses(void **state)
{
    UNUSED(state);
    os_file f;
    tess_error e;
    char byte[64];
    const void *map;
    assert_int_equal(os_open_read(&f, dir, &e), TESS_E_IO);
    assert_non_null(strstr(e.text, "directory"));
    assert_int_equal(mkfifo(in_dir("fifo"), 0600), 0);
    assert_int_equal(os_open_read(&f, in_dir("fifo"), &e), TESS_E_IO); /* must not hang */
    unlink(in_dir("fifo"));
    assert_int_equal(os_open_read(&f, "/dev/zero", &e), TESS_E_IO);
    assert_int_equal(os_open_read(&f, in_dir("missing"), &e), TESS_E_IO);
    assert_int_equal(e.os_code, ENOENT);
    os_close(&f);

    assert_int_equal(os_open_read(&f, in_dir("a"), &e), TESS_OK);
    assert_int_equal(f.size, 1);
    assert_int_equal(os_pread(&f, byte, 1, 0, "a", &e), TESS_OK);
    assert_int_equal(os_pread(&f, byte, 2, 0, "a", &e), TESS_E_IO); /* short */
    assert_non_null(strstr(e.text, "a: ends at offset 1"));
    assert_int_equal(os_map(&f, 0, 4096, &map, "a", &e), TESS_E_ARG);
    assert_int_equal(os_map(&f, 0, 0, &map, "a", &e), TESS_E_ARG);
    assert_int_equal(os_map(&f, 0, 1, &map, "a", &e), TESS_OK);
    assert_int_equal(*(const char *)map, 'x');
    os_unmap(map, 1);
    assert_false(os_file_changed(&f));
    assert_int_equal(truncate(in_dir("a"), 0), 0);
    assert_true(os_file_changed(&f));
    os_close(&f);
    os_close(&f);
}

static void machine(void **state)
{
    UNUSED(state);
    uint64_t t = os_now_ns();
    usleep(1000);
    assert_true(os_now_ns() - t >= 1000000);
    assert_true(os_mem_available() > 0);
    char *p = os_page_alloc(1 << 20);
    assert_non_null(p);
    for (size_t i = 0; i < 1 << 20; i += 4096) assert_int_equal(p[i], 0);
    memset(p, 7, 1 << 20);
    os_page_drop(p + 1, 2 * 65536 - 2); /* whole pages of any size up to 64 KB, not those at the ends */
    os_page_drop(p + (1 << 19), 100);
    assert_int_equal(p[0], 7);
    assert_int_equal(p[2 * 65536 - 1], 7);
    assert_int_equal(p[2 * 65536], 7);
    assert_int_equal(p[1 << 19], 7);
    assert_int_equal(p[65535], 0);
    os_page_free(p, 1 << 20);
    uint64_t a = 0, b = 0;
    os_random(&a, 8);
    os_random(&b, 8);
    assert_true(a != b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_overflow),
        cmocka_unit_test(errors_are_one_line),
        cmocka_unit_test(memory_is_returned_with_its_size),
        cmocka_unit_test(host_needs_both_callbacks),
        cmocka_unit_test(buf_keeps_its_failure),
        cmocka_unit_test(arena_frees_all),
        cmocka_unit_test(utf8_all_code_points),
        cmocka_unit_test(utf8_refuses),
        cmocka_unit_test(half_all_patterns),
        cmocka_unit_test(half_rounding),
        cmocka_unit_test(layout_sizes),
        cmocka_unit_test(tiles_round_trip),
        cmocka_unit_test(hashes_are_known),
        cmocka_unit_test(kvs_round_trip),
        cmocka_unit_test(kvs_builder_refuses),
        cmocka_unit_test(kvs_hostile_bytes),
        cmocka_unit_test(kvs_out_of_memory),
        cmocka_unit_test(pool_more_threads_than_cpus),
        cmocka_unit_test(a_lock_has_one_holder),
        cmocka_unit_test(shares_cover_everything),
        cmocka_unit_test(out_commit_and_abort),
        cmocka_unit_test(out_full_disk),
        cmocka_unit_test(reading_refuses),
        cmocka_unit_test(machine),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
