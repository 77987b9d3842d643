/*
 * t_container.c - the container: round trips over types, pieces, stores and parts; damage; the rules behind the
 * hashes.
 *
 * Contents come from a generator that gives the value of any (tensor, row, column) at any time, so nothing
 * large is kept and what is read can be compared wherever it is read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <signal.h>

#include <cmocka.h>

#include "container.h"
#include "container_rehash.h"
#include "os.h"

static char dir[64];
static char *at(const char *name) /* path in the test's directory; four live at a time */
{
    static char path[4][256];
    static int i;
    i = (i + 1) % 4;
    snprintf(path[i], sizeof path[i], "%s/%s", dir, name);
    return path[i];
}
static int set_up(void **state)
{
    UNUSED(state);
    snprintf(dir, sizeof dir, "/tmp/t_container.XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}
static int tear_down(void **state)
{
    char cmd[128];
    UNUSED(state);
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    return system(cmd);
}

static tess_error last_error;
static tess_error *const err = &last_error; /* for calls that must succeed */
#define OK(x) \
    do { \
        if ((x) < 0) fail_msg("%s: %s", #x, last_error.text); \
    } while (0)

/* ---- generated model ---- */

enum { MAX_T = 32 };
typedef struct {
    ct_tensor t[MAX_T];
    uint32_t n;
    arch_axis axis[4];
    uint32_t n_axes;
    bool noise; /* all bits random: nothing can be saved */
    uint32_t fail_at; /* the callback fails at this tensor + 1 */
} model;

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u ^ (b + 1) * 0xc2b2ae3d27d4eb4fu ^ (c + 7) * 0x165667b19e3779f9u;
    x ^= x >> 31;
    x *= 0xbf58476d1ce4e5b9u;
    return x ^ x >> 29;
}

static void put_value(const model *m, uint32_t ti, uint64_t r, uint64_t k, uint8_t *dst)
{
    uint32_t dt = m->t[ti].dtype;
    uint64_t h = mix(ti, r, k);
    size_t n = dtype_get(dt)->block_bytes;
    if (m->noise || !dtype_get(dt)->is_float) memcpy(dst, &h, n);
    else {
        float f = ((float)(h & 1023) + (float)(h >> 10 & 1023) + (float)(h >> 20 & 1023) +
                   (float)(h >> 30 & 1023) - 2046) *
                  2e-5f;
        dtype_from_f32(dt, &f, dst, 1);
    }
}

static uint32_t leaves_of(const model *m, uint32_t ti, uint64_t k0, uint64_t n_k, uint64_t lo[MAX_LEAVES],
                          uint64_t len[MAX_LEAVES])
{
    const ct_tensor *t = &m->t[ti];
    if (t->split_dim + 1 != t->rank) {
        lo[0] = k0;
        len[0] = n_k;
        return 1;
    }
    const arch_axis *x = &m->axis[t->axis];
    uint32_t n = 0;
    for (uint32_t l = 0; l < x->n_leaves; l++) {
        uint64_t from = axis_elem(x, x->leaf[l]), to = axis_elem(x, x->leaf[l + 1]);
        if (from < k0 || to > k0 + n_k) continue;
        lo[n] = from;
        len[n++] = to - from;
    }
    return n;
}

/* Byte-exact tile image of a box of q8/q4, by the definition in dtype.h. */
static void put_tiles(const model *m, uint32_t ti, uint64_t row0, uint64_t n_rows, uint64_t k0, uint64_t n_k,
                      uint8_t *dst)
{
    uint64_t lo[MAX_LEAVES], len[MAX_LEAVES];
    uint32_t n = leaves_of(m, ti, k0, n_k, lo, len);
    bool q4 = m->t[ti].dtype == DT_Q4;
    for (uint64_t r0 = 0; r0 < n_rows; r0 += 8)
        for (uint32_t l = 0; l < n; l++)
            for (uint64_t g = 0; g < len[l]; g += 32, dst += q4 ? 160 : 272) {
                memset(dst, 0, q4 ? 160 : 272);
                for (uint64_t r = 0; r < 8 && r0 + r < n_rows; r++) {
                    uint64_t row = row0 + r0 + r;
                    uint16_t d = (uint16_t)(mix(ti, row, lo[l] + g + 1000000) & 0x3bff),
                             mn = (uint16_t)(d ^ 0x8100);
                    memcpy(dst + r * 2, &d, 2);
                    if (q4) memcpy(dst + 16 + r * 2, &mn, 2);
                    for (uint64_t k = 0; k < 32 && g + k < len[l]; k++) {
                        uint8_t q = (uint8_t)mix(ti, row, lo[l] + g + k);
                        if (!q4) dst[16 + k / 4 * 32 + r * 4 + k % 4] = q;
                        else {
                            uint64_t j = k / 8, hi = k % 8 / 4, i = k % 4;
                            dst[32 + j * 32 + r * 4 + i] |= (uint8_t)((q & 15) << (hi ? 4 : 0));
                        }
                    }
                }
            }
}

static tess_status model_read(void *user, uint32_t ti, uint64_t row0, uint64_t n_rows, uint64_t k0,
                              uint64_t n_k, void *dst, uint32_t thread, tess_error *e)
{
    const model *m = user;
    UNUSED(thread);
    if (m->fail_at == ti + 1) return ERR(e, TESS_E_IO, "the source broke");
    if (dtype_is_quant(m->t[ti].dtype)) put_tiles(m, ti, row0, n_rows, k0, n_k, dst);
    else {
        size_t size = dtype_get(m->t[ti].dtype)->block_bytes;
        for (uint64_t r = 0; r < n_rows; r++)
            for (uint64_t k = 0; k < n_k; k++)
                put_value(m, ti, row0 + r, k0 + k, (uint8_t *)dst + (r * n_k + k) * size);
    }
    return TESS_OK;
}

static uint32_t add_axis(model *m, uint32_t kind, uint32_t unit, uint64_t dim)
{
    arch_axis *x = &m->axis[m->n_axes];
    *x = (arch_axis){.kind = kind, .unit = unit, .dim = dim, .n_units = (uint32_t)ceil_div(dim, unit)};
    x->n_leaves = MIN(x->n_units, (uint32_t)MAX_LEAVES);
    for (uint32_t i = 0; i <= x->n_leaves; i++) x->leaf[i] = (uint32_t)((uint64_t)x->n_units * i / x->n_leaves);
    return m->n_axes++;
}

static uint32_t add(model *m, const char *name, uint32_t dt, uint64_t rows, uint64_t cols, uint32_t split,
                    uint32_t axis, int32_t layer)
{
    ct_tensor *t = &m->t[m->n];
    *t = (ct_tensor){.name = (char *)(uintptr_t)name,
                     .dtype = dt,
                     .rank = cols ? 2 : 1,
                     .shape = {rows, cols},
                     .layer = layer,
                     .role = ROLE_O,
                     .alias = CT_NO_ALIAS,
                     .split_dim = split,
                     .axis = axis,
                     .src_dtype = dt};
    return m->n++;
}

/* Awkward on purpose: 9 heads of 20, an ffn with a short last unit, rows that are no multiple of 8. */
static void make_model(model *m, uint32_t dt, bool noise)
{
    *m = (model){.noise = noise};
    uint32_t q = add_axis(m, AXIS_Q_HEADS, 20, 180), kv_ax = add_axis(m, AXIS_KV_HEADS, 20, 60),
             ffn = add_axis(m, AXIS_FFN, 32, 333), voc = add_axis(m, AXIS_VOCAB, 64, 1001);
    add(m, "model.embed_tokens.weight", dt, 1001, 90, 0, voc, -1);
    add(m, "model.norm.weight", DT_F32, 90, 0, 255, 0, -1);
    uint32_t e = 0;
    for (int32_t l = 0; l < 2; l++) {
        const char *const names[2][7] = {{"l0.q", "l0.k", "l0.o", "l0.up", "l0.down", "l0.norm", "l0.qb"},
                                         {"l1.q", "l1.k", "l1.o", "l1.up", "l1.down", "l1.norm", "l1.qb"}};
        add(m, names[l][0], dt, 180, 90, 0, q, l);
        add(m, names[l][1], dt, 60, 90, 0, kv_ax, l);
        add(m, names[l][2], dt, 90, 180, 1, q, l);
        add(m, names[l][3], dt, 333, 90, 0, ffn, l);
        add(m, names[l][4], dt, 90, 333, 1, ffn, l);
        add(m, names[l][5], DT_F32, 90, 0, 255, 0, l);
        add(m, names[l][6], DT_BF16, 180, 0, 0, q, l);
    }
    add(m, "ids", DT_I32, 7, 5, 255, 0, -1);
    uint32_t head = add(m, "lm_head.weight", dt, 1001, 90, 0, voc, -1);
    m->t[head].alias = e;
}

static tess_status write_model(const model *m, const char *path, ct_write_options o, pool *p, tess_error *e)
{
    ct_writer *w;
    kvs_builder *b;
    void *kv_bytes;
    size_t len;
    uint32_t index;
    if (!o.kind) o.kind = CT_KIND_MODEL;
    if (!o.writer) o.writer = "tessera test";
    tess_status st = ct_writer_open(path, &o, &mem_libc, &w, e);
    if (st < 0) return st;
    OK(kvs_builder_open(&mem_libc, &b, err));
    kvs_put_u64(b, "arch.n_layers", 2);
    kvs_put_str(b, "arch.family", "test", 4);
    OK(kvs_build(b, &kv_bytes, &len, err));
    kvs_builder_close(b);
    OK(ct_set_kv(w, kv_bytes, len, err));
    mem_free(&mem_libc, kv_bytes);
    OK(ct_set_provenance(w, "{\"a\":1}", 7, err));
    char text[3000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)('a' + i % 13);
    OK(ct_add_blob(w, "tokenizer.json", text, sizeof text, err));
    OK(ct_add_blob(w, "config.json", "{}", 2, err));
    OK(ct_add_blob(w, "empty", "", 0, err));
    for (uint32_t i = 0; i < m->n_axes; i++) OK(ct_add_axis(w, &m->axis[i], &index, err));
    for (uint32_t i = 0; i < m->n; i++) OK(ct_add_tensor(w, &m->t[i], &index, err));
    model copy = *m;
    st = ct_write(w, p, model_read, &copy, NULL, NULL, e);
    ct_writer_close(w);
    return st;
}

static uint32_t model_index(const model *m, const char *name)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (strcmp(m->t[i].name, name) == 0) return m->t[i].alias == CT_NO_ALIAS ? i : m->t[i].alias;
    fail_msg("tensor %s is unknown", name);
    return 0;
}

/* Rows [from, from + n) of a piece in both layouts against the generator. */
static void check_rows(const model *m, const ct_file *f, uint32_t piece, uint64_t from, uint64_t n,
                       ct_scratch *s)
{
    const ct_piece *p = &ct_get(f)->pieces[piece];
    const ct_tensor *t = &ct_get(f)->tensors[p->tensor];
    uint32_t ti = model_index(m, t->name);
    uint64_t lo[MAX_LEAVES], len[MAX_LEAVES], bytes;
    uint32_t nl = leaves_of(m, ti, p->k0, p->n_k, lo, len);
    model copy = *m;
    size_t e = dtype_get(t->dtype)->block_bytes;
    assert_true(layout_bytes(t->dtype, LAYOUT_TILE8, n, len, nl, &bytes));
    uint8_t *want = malloc(bytes), *got = malloc(bytes + 64), *tiled = malloc(bytes);
    OK(model_read(&copy, ti, p->row0 + from, n, p->k0, p->n_k, want, 0, err));
    if (!dtype_is_quant(t->dtype)) {
        size_t row = p->n_k * e;
        memset(got, 0xee, bytes);
        OK(ct_read_rows(f, piece, from, n, LAYOUT_ROWS, got, row, s, err));
        assert_memory_equal(got, want, row * n);
        if (n * (row + 2) <= bytes + 64) { /* a wider stride, and the gap stays */
            memset(got, 0xee, bytes);
            OK(ct_read_rows(f, piece, from, n, LAYOUT_ROWS, got, row + 2, s, err));
            for (uint64_t r = 0; r < n; r++) {
                assert_memory_equal(got + r * (row + 2), want + r * row, row);
                if (r + 1 < n) assert_int_equal(got[r * (row + 2) + row], 0xee);
            }
        }
    }
    if (from % 8 == 0 && (dtype_get(t->dtype)->is_float || dtype_is_quant(t->dtype))) {
        if (dtype_is_quant(t->dtype)) memcpy(tiled, want, bytes);
        else tile8_pack(tiled, want, p->n_k * e, n, p->n_k, (uint32_t)e);
        memset(got, 0xee, bytes);
        OK(ct_read_rows(f, piece, from, n, LAYOUT_TILE8, got, 0, s, err));
        assert_memory_equal(got, tiled, bytes);
        const void *map = ct_map_piece(f, piece);
        if (map && t->layout == LAYOUT_TILE8 && from == 0 && n == p->n_rows)
            assert_memory_equal(map, tiled, bytes);
    }
    free(want);
    free(got);
    free(tiled);
}

static void check_file(const model *m, const ct_file *f)
{
    const ct_info *o = ct_get(f);
    ct_scratch *s;
    OK(ct_scratch_open(&mem_libc, &s, err));
    assert_int_equal(o->n_tensors, m->n);
    for (uint32_t i = 0; i < o->n_pieces; i++) {
        const ct_piece *p = &o->pieces[i];
        check_rows(m, f, i, 0, p->n_rows, s);
        for (uint64_t from = 0; from < p->n_rows; from += 1 + p->n_rows / 3)
            check_rows(m, f, i, from, MIN(p->n_rows - from, 1 + from * 5 % 23), s);
        for (uint32_t c = 0; c < p->n_chunks; c++) OK(ct_check_chunk(f, p->first_chunk + c, s, err));
    }
    ct_scratch_close(s);
}

static void print_line(void *user, const char *line)
{
    UNUSED(user);
    printf("%s\n", line);
}

static void verify_good(const ct_file *f, pool *p)
{
    ct_verify_result r;
    OK(ct_verify(f, CT_VERIFY_DEEP, p, print_line, NULL, NULL, &r, err));
    assert_int_equal(r.errors, 0);
}

/* ---- round trips ---- */

static void test_round_trips(void **state)
{
    static const uint32_t types[] = {DT_F32, DT_F16, DT_BF16, DT_Q8, DT_Q4}, tps[] = {1, 2, 3, 4, 8, 20};
    UNUSED(state);
    pool *p;
    OK(pool_open(&mem_libc, 3, &p, err));
    for (size_t d = 0; d < ARRAY_LEN(types); d++) {
        model m;
        uint8_t first[MAX_T][16], uuid[16];
        make_model(&m, types[d], false);
        for (size_t i = 0; i < ARRAY_LEN(tps) * 3; i++) {
            uint32_t tp = tps[i / 3], store = (uint32_t)(i % 3);
            ct_file *f;
            ct_write_options o = {.tp = tp, .store = store, .force = true};
            OK(write_model(&m, at("m.tess"), o, i % 2 ? p : NULL, err));
            OK(ct_open(at("m.tess"), i % 4 == 3 ? CT_NO_MMAP : 0, &mem_libc, &f, err));
            check_file(&m, f);
            verify_good(f, p);
            const ct_info *c = ct_get(f);
            if (i == 0) memcpy(uuid, c->uuid, 16);
            assert_memory_equal(uuid, c->uuid, 16);
            for (uint32_t t = 0; t < c->n_tensors; t++) {
                uint8_t hash[16];
                if (i == 0) memcpy(first[t], c->tensors[t].content_hash, 16);
                assert_memory_equal(first[t], c->tensors[t].content_hash, 16);
                OK(ct_content_hash(f, t, p, hash, err));
                assert_memory_equal(first[t], hash, 16);
            }
            if (store == CT_STORE_RAW) /* nothing but maps */
                for (uint32_t k = 0; k < c->n_pieces; k++) assert_true(c->pieces[k].raw_contig);
            ct_close(f);
        }
    }
    pool_close(p);
}

static void test_store_auto(void **state)
{
    UNUSED(state);
    for (int noise = 0; noise < 2; noise++) {
        model m;
        ct_file *f;
        make_model(&m, DT_BF16, noise);
        OK(write_model(&m, at("a.tess"), (ct_write_options){.tp = 2, .force = true}, NULL, err));
        OK(ct_open(at("a.tess"), 0, &mem_libc, &f, err));
        int64_t q = ct_find(f, "l0.q");
        const ct_tensor *t = &ct_get(f)->tensors[q];
        assert_int_equal(t->layout, noise ? LAYOUT_TILE8 : LAYOUT_ROWS);
        assert_int_equal(ct_get(f)->pieces[t->first_piece].raw_contig, noise);
        int64_t head = ct_find(f, "lm_head.weight");
        assert_int_equal(ct_get(f)->tensors[head].alias, ct_find(f, "model.embed_tokens.weight"));
        assert_int_equal(ct_get(f)->tensors[head].n_pieces, 2);
        assert_int_equal(ct_find(f, "nothing"), -1);
        check_file(&m, f);
        ct_close(f);
    }
}

static void test_blobs_and_kv(void **state)
{
    UNUSED(state);
    model m = {0};
    ct_file *f;
    char *data;
    size_t len;
    OK(write_model(&m, at("t.tess"), (ct_write_options){.kind = CT_KIND_TOKENIZER, .created = 5}, NULL, err));
    OK(ct_open(at("t.tess"), 0, &mem_libc, &f, err));
    const ct_info *o = ct_get(f);
    assert_int_equal(o->kind, CT_KIND_TOKENIZER);
    assert_int_equal(o->n_tensors, 0);
    assert_int_equal(o->created, 5);
    assert_string_equal(o->writer, "tessera test");
    assert_string_equal(o->prov, "{\"a\":1}");
    assert_int_equal(kvs_u64(o->kv, "arch.n_layers", 0), 2);
    OK(ct_read_blob(f, (uint32_t)ct_find_blob(f, "tokenizer.json"), &mem_libc, &data, &len, err));
    assert_int_equal(len, 3000);
    for (size_t i = 0; i < len; i++) assert_int_equal(data[i], 'a' + i % 13);
    assert_int_equal(data[len], 0);
    mem_free(&mem_libc, data);
    OK(ct_read_blob(f, (uint32_t)ct_find_blob(f, "empty"), &mem_libc, &data, &len, err));
    assert_int_equal(len, 0);
    mem_free(&mem_libc, data);
    assert_int_equal(ct_find_blob(f, "x"), -1);
    verify_good(f, NULL);
    ct_close(f);
}

/* All patterns of 16 bits, several chunks, through the coder. */
static tess_status pattern_read(void *user, uint32_t t, uint64_t row0, uint64_t n_rows, uint64_t k0,
                                uint64_t n_k, void *dst, uint32_t thread, tess_error *e)
{
    UNUSED(user); UNUSED(t); UNUSED(k0); UNUSED(thread); UNUSED(e);
    for (uint64_t i = 0; i < n_rows * n_k; i++) {
        uint64_t v = row0 * n_k + i;
        uint16_t u = v % 7 == 0 ? (uint16_t)(v / 7)
                                : (uint16_t)(0x3c00 + v % 5); /* compressible, with every pattern in it */
        memcpy((uint8_t *)dst + i * 2, &u, 2);
    }
    return TESS_OK;
}
static void test_all_patterns(void **state)
{
    UNUSED(state);
    for (uint32_t dt = DT_F16; dt <= DT_BF16; dt++) {
        ct_writer *w;
        ct_file *f;
        ct_scratch *s;
        uint32_t i;
        ct_write_options o = {.kind = CT_KIND_MODEL, .store = CT_STORE_ZSTD, .force = true};
        ct_tensor t = {.name = (char *)(uintptr_t) "w",
                       .dtype = dt,
                       .rank = 2,
                       .shape = {1793, 1024},
                       .layer = -1,
                       .alias = CT_NO_ALIAS,
                       .split_dim = 255};
        OK(ct_writer_open(at("p.tess"), &o, &mem_libc, &w, err));
        OK(ct_add_tensor(w, &t, &i, err));
        OK(ct_write(w, NULL, pattern_read, NULL, NULL, NULL, err));
        ct_writer_close(w);
        OK(ct_open(at("p.tess"), 0, &mem_libc, &f, err));
        OK(ct_scratch_open(&mem_libc, &s, err));
        assert_int_equal(ct_get(f)->chunks[0].codec, CT_CODEC_ZSTD);
        assert_true(ct_get(f)->n_chunks > 2);
        size_t n = 1793 * 1024 * 2;
        uint8_t *a = malloc(n), *b = malloc(n);
        OK(ct_read_rows(f, 0, 0, 1793, LAYOUT_ROWS, a, 2048, s, err));
        pattern_read(NULL, 0, 0, 1793, 0, 1024, b, 0, NULL);
        assert_memory_equal(a, b, n);
        free(a);
        free(b);
        ct_scratch_close(s);
        ct_close(f);
    }
}

/* ---- files in memory ---- */

static uint8_t *slurp(const char *path, size_t *n)
{
    char *p;
    OK(os_read_whole(path, 1 << 30, &mem_libc, &p, n, err));
    return (uint8_t *)p;
}
static void spill(const char *path, const uint8_t *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}
static tess_status try_open(const char *path, tess_error *e)
{
    ct_file *f;
    memset(e, 0, sizeof *e);
    tess_status st = ct_open(path, 0, &mem_libc, &f, e);
    if (st < 0) assert_null(f);
    ct_close(f);
    return st;
}
/* Errors of open or of a full verify; 0 = the file passes as good. */
static uint64_t count_errors(const char *path, int depth)
{
    ct_file *f;
    ct_verify_result r = {0};
    tess_error e = {0};
    if (ct_open(path, 0, &mem_libc, &f, &e) < 0) {
        assert_true(strlen(e.text) > 0);
        return 1;
    }
    tess_status st = ct_verify(f, depth, NULL, NULL, NULL, NULL, &r, &e);
    ct_close(f);
    return r.errors + (st < 0);
}

static uint8_t *small_file(size_t *n, uint32_t store, uint32_t dt)
{
    model m;
    make_model(&m, dt, false);
    OK(write_model(&m, at("s.tess"), (ct_write_options){.tp = 2, .store = store, .force = true}, NULL, err));
    return slurp(at("s.tess"), n);
}

static void test_flips(void **state)
{
    UNUSED(state);
    size_t n;
    uint8_t *p = small_file(&n, CT_STORE_AUTO, DT_BF16);
    const char *path = at("flip.tess");
    uint64_t seed = 5;
    for (uint32_t kind = 0; kind <= 14; kind++) { /* 0: header, 13: trailer, 14: data */
        uint64_t from = 0, size = 4096;
        if (kind == 13) from = n - 64, size = 64;
        else if (kind == 14) from = 4096, size = rd64(p + 88);
        else if (kind) {
            uint64_t l = 0;
            from = rh_section(p, n, kind, &l, NULL);
            size = l;
        }
        for (int i = 0; size && i < 60; i++) {
            uint64_t pos = from + mix(seed++, kind, 0) % size;
            uint8_t old = p[pos];
            p[pos] = (uint8_t)(old ^ (1u << (seed % 8)));
            spill(path, p, n);
            if (!count_errors(path, CT_VERIFY_FULL))
                fail_msg("flip at %llu of kind %u is not seen", (unsigned long long)pos, kind);
            rehash(p, n, i % 2);
            spill(path, p, n);
            count_errors(path, CT_VERIFY_DEEP); /* whatever it says, it must not crash */
            p[pos] = old;
            rehash(p, n, true);
        }
    }
    spill(path, p, n);
    assert_int_equal(count_errors(path, CT_VERIFY_DEEP), 0);
    mem_free(&mem_libc, p);
}

static void test_truncation(void **state)
{
    UNUSED(state);
    size_t n;
    tess_error e;
    uint8_t *p = small_file(&n, CT_STORE_RAW, DT_BF16), *big;
    const char *path = at("cut.tess");
    for (int i = 0; i < 200; i++) {
        size_t cut = i < 32 ? (size_t)rd64(p + 512 + (size_t)(i / 3) * 48 + 16) + (size_t)(i % 3) - 1
                            : mix(9, (uint64_t)i, 1) % n;
        if (i >= 190) cut = (size_t)(199 - i);
        if (i == 189) cut = n - 1;
        if (cut >= n) continue;
        spill(path, p, cut);
        assert_true(try_open(path, &e) < 0);
        assert_non_null(strstr(e.text, "cut.tess"));
    }
    big = malloc(n + 100);
    memcpy(big, p, n);
    memset(big + n, 0, 100);
    spill(path, big, n + 100);
    assert_int_equal(try_open(path, &e), TESS_E_FORMAT);
    free(big);
    mem_free(&mem_libc, p);
}

/* ---- rules: a field is changed, the hashes are made right again, and the reader must name the rule ---- */

typedef struct { uint32_t kind, rec, off, width; uint64_t value; const char *text; } rule;
enum { STRS = 1, AXES, BNDS, TENS, PIEC, CHNK, SEGM, BLOB, PROV, CSHA, KEYV, BDAT };

static void test_rules(void **state)
{
    static const rule rules[] = {
        {0, 0, 8, 2, 2, "ver_major"},
        {0, 0, 12, 4, 4095, "header_size"},
        {0, 0, 16, 4, 0x04030201, "endian"},
        {0, 0, 20, 4, 1, "reserved"},
        {0, 0, 24, 8, 2, "feat_incompat"},
        {0, 0, 24, 8, 0, "tile8"},
        {0, 0, 64, 8, 4096, "file_size"},
        {0, 0, 72, 2, 1, "split_no"},
        {0, 0, 74, 2, 0, "split_no"},
        {0, 0, 74, 2, 2, "name does not end"},
        {0, 0, 76, 2, 0, "tp_size"},
        {0, 0, 76, 2, 3, "n_pieces"},
        {0, 0, 78, 2, 33, "n_sections"},
        {0, 0, 78, 2, 5, "section"},
        {0, 0, 80, 8, 0, "data_off"},
        {0, 0, 88, 8, UINT64_MAX, "data_len"},
        {0, 0, 88, 8, 64, "section"},
        {0, 0, 96, 8, 1, "logical_bytes"},
        {0, 0, 104, 8, 1, "param_count"},
        {0, 0, 128, 1, 0xff, "writer"},
        {0, 0, 168, 8, 1, "trailer_off"},
        {0, 0, 176, 2, 9, "kind"},
        {0, 0, 176, 2, 0, "kind"},
        {0, 0, 178, 2, 1, "reserved"},
        {0, 0, 300, 1, 1, "reserved"},
        {0, 0, 4000, 1, 1, "after the section table"},
        {0, 0, 512, 4, 77, "not known"},
        {0, 0, 512, 4, 2, "twice"},
        {0, 0, 516, 4, 8, "reserved"},
        {0, 0, 520, 4, 0, "rec_size"},
        {0, 0, 520, 4, 5000, "rec_size"},
        {0, 0, 524, 4, 1, "reserved"},
        {0, 0, 528, 8, UINT64_MAX - 63, "section[0]"},
        {0, 0, 536, 8, UINT64_MAX, "section[0]"},
        {0, 0, 528, 8, 0, "section[0]"},
        {0, 0, 512 + 48 * 3 + 8, 4, 64, "rec_size"},
        {0, 0, 512, 4, 0, "required"},
        {0, 0, 516, 4, 3, "flags"},
        {AXES, 0, 0, 4, 0xffffffff, "name_off"},
        {AXES, 0, 6, 2, 6, "kind"},
        {AXES, 0, 8, 4, 0, "unit"},
        {AXES, 0, 8, 4, 21, ""},
        {AXES, 0, 12, 4, 3, "n_pieces"},
        {AXES, 0, 16, 8, 0, ""},
        {AXES, 0, 16, 8, UINT64_MAX, ""},
        {AXES, 0, 16, 8, 179, ""},
        {AXES, 0, 24, 4, 0xffffffff, "bounds_idx"},
        {AXES, 0, 28, 4, 0, "parent_axis"},
        {AXES, 0, 32, 4, 0, "n_leaves"},
        {AXES, 0, 32, 4, 9, "n_leaves"},
        {AXES, 0, 32, 4, 1, ""},
        {AXES, 0, 36, 4, 0xfffffff0, "bounds_idx"},
        {BNDS, 0, 0, 4, 1, "bounds"},
        {BNDS, 4, 0, 4, 0, "bounds"},
        {TENS, 1, 0, 4, 0, "name"},
        {TENS, 0, 4, 2, 0, "name"},
        {TENS, 0, 4, 2, 300, "name"},
        {TENS, 0, 6, 1, 0, "dtype"},
        {TENS, 0, 6, 1, 99, "dtype"},
        {TENS, 0, 7, 1, 0, "rank"},
        {TENS, 0, 7, 1, 5, "rank"},
        {TENS, 0, 8, 8, 0, "shape"},
        {TENS, 0, 8, 8, UINT64_MAX, "shape"},
        {TENS, 0, 16, 8, 0, "shape"},
        {TENS, 0, 24, 8, 1, "shape"},
        {TENS, 0, 40, 4, 0xfffffffe, "layer"},
        {TENS, 0, 46, 1, 5, "part"},
        {TENS, 0, 47, 1, 2, "reserved"},
        {TENS, 0, 47, 1, 1, "owner_or_alias"},
        {TENS, 0, 48, 1, 4, ""},
        {TENS, 0, 49, 1, 2, "layout"},
        {TENS, 0, 49, 1, 1, "layout"},
        {TENS, 0, 50, 2, 2, "block_rows"},
        {TENS, 0, 54, 2, 0, "axis"},
        {TENS, 0, 60, 4, 2, "n_pieces"},
        {TENS, 0, 64, 8, 1, "first_piece"},
        {TENS, 0, 90, 2, 1, "reserved"},
        {TENS, 0, 127, 1, 1, "reserved"},
        {TENS, 3, 54, 2, 60, "axis"},
        {TENS, 3, 48, 1, 0, ""},
        {TENS, 1, 49, 1, 0, "usize"},
        {PIEC, 0, 0, 4, 1, "tensor"},
        {PIEC, 0, 4, 4, 1, "piece_no"},
        {PIEC, 0, 8, 2, 1, "split_file"},
        {PIEC, 0, 10, 2, 4, "reserved"},
        {PIEC, 0, 12, 4, 0, "rows_per_chunk"},
        {PIEC, 0, 12, 4, 4, "rows_per_chunk"},
        {PIEC, 0, 16, 8, 1, "off"},
        {PIEC, 0, 16, 8, 0, "off"},
        {PIEC, 0, 16, 8, UINT64_MAX - 63, "off"},
        {PIEC, 0, 24, 8, UINT64_MAX, "off"},
        {PIEC, 0, 24, 8, 1, ""},
        {PIEC, 0, 32, 8, 0, "usize"},
        {PIEC, 0, 40, 8, 1, "first_chunk"},
        {PIEC, 0, 40, 8, UINT64_MAX, "first_chunk"},
        {PIEC, 0, 48, 4, 2, "n_chunks"},
        {PIEC, 0, 48, 4, 0, "n_chunks"},
        {PIEC, 0, 52, 4, 1, "reserved"},
        {PIEC, 0, 56, 8, 1, "reserved"},
        {CHNK, 0, 0, 8, 0, "off"},
        {CHNK, 0, 0, 8, UINT64_MAX, "off"},
        {CHNK, 0, 8, 4, 0xffffffff, ""},
        {CHNK, 0, 8, 4, 0, ""},
        {CHNK, 0, 12, 4, 0, "usize"},
        {CHNK, 0, 24, 1, 2, "codec"},
        {CHNK, 0, 25, 1, 1, "filter"},
        {CHNK, 0, 26, 1, 2, "filter"},
        {CHNK, 0, 27, 1, 2, "filter"},
        {CHNK, 0, 24, 1, 1, ""},
        {CHNK, 0, 28, 4, 1, "reserved"},
        {SEGM, 0, 0, 4, 5, ""},
        {SEGM, 0, 4, 2, 1, ""},
        {SEGM, 0, 6, 2, 1, ""},
        {SEGM, 0, 8, 8, 8192, ""},
        {SEGM, 0, 8, 8, 1, "4096"},
        {SEGM, 0, 16, 8, 1, "union"},
        {SEGM, 2, 0, 4, 0xffffffff, "ascend"},
        {BLOB, 0, 6, 2, 2, "flags"},
        {BLOB, 0, 6, 2, 1, "csize"},
        {BLOB, 0, 8, 8, 8, "off"},
        {BLOB, 0, 16, 8, UINT64_MAX, "csize"},
        {BLOB, 0, 24, 8, UINT64_MAX, "csize"},
        {BLOB, 0, 0, 4, 0, "slash|name"},
        {KEYV, 0, 0, 4, 0xffffffff, "KEYV"},
        {KEYV, 0, 4, 4, 1, "KEYV"},
        {PROV, 0, 0, 1, 0xff, "UTF-8"},
        {STRS, 0, 0, 1, '/', ""},
        {STRS, 0, 10, 1, 1, ""},
        {STRS, 0, 10, 1, 0xc0, ""},
    };
    UNUSED(state);
    size_t n;
    uint8_t *p = small_file(&n, CT_STORE_RAW, DT_BF16), keep[8];
    const char *path = at("rule.tess");
    for (size_t i = 0; i < ARRAY_LEN(rules); i++) {
        const rule *r = &rules[i];
        uint64_t len = 0, base = 0;
        uint32_t rec = 1;
        if (r->kind) base = rh_section(p, n, r->kind, &len, &rec);
        uint8_t *field = p + base + (uint64_t)r->rec * rec + r->off;
        memcpy(keep, field, 8);
        memcpy(field, &r->value, r->width);
        rehash(p, n, false);
        spill(path, p, n);
        tess_error e;
        tess_status st = try_open(path, &e);
        bool found = strstr(r->text, "|") != NULL || strstr(e.text, r->text) != NULL;
        if (st >= 0 || st == TESS_E_CHECKSUM || !found || !strstr(e.text, "rule.tess"))
            fail_msg("rule %zu (kind %u, off %u, value %llu): status %d, \"%s\", want \"%s\"", i, r->kind,
                     r->off, (unsigned long long)r->value, st, e.text, r->text);
        memcpy(field, keep, 8);
    }
    rehash(p, n, false);
    spill(path, p, n);
    assert_int_equal(count_errors(path, CT_VERIFY_DEEP), 0);
    mem_free(&mem_libc, p);
}

/* Coded chunks whose bytes are hostile and whose hashes are right. */
static void test_bad_frames(void **state)
{
    UNUSED(state);
    size_t n;
    uint8_t *p = small_file(&n, CT_STORE_ZSTD, DT_BF16);
    uint64_t len;
    uint32_t rec = 1;
    uint64_t chunks = rh_section(p, n, CHNK, &len, &rec), seen = 0;
    const char *path = at("frame.tess");
    for (uint64_t c = 0; c < len / rec; c++) {
        const uint8_t *k = p + chunks + c * rec;
        uint8_t *data = p + rd64(k), old[24];
        if (k[24] != CT_CODEC_ZSTD) continue;
        uint64_t zstd = 16 + rd32(data); /* plane 1 */
        for (uint64_t i = 0; i < 40; i++) {
            uint64_t pos = i < 16 ? i : zstd + (i - 16) / 2;
            memcpy(old, data + pos, 1);
            data[pos] = (uint8_t)(i % 2 ? 0xff : data[pos] + 1 + i);
            if (data[pos] == old[0]) continue;
            rehash(p, n, true);
            spill(path, p, n);
            if (!count_errors(path, CT_VERIFY_DEEP))
                fail_msg("chunk %llu byte %llu", (unsigned long long)c, (unsigned long long)pos);
            seen++;
            memcpy(data + pos, old, 1);
        }
        if (c > 4) break;
    }
    assert_true(seen > 30);
    mem_free(&mem_libc, p);
}

static void test_swapped_chunks(void **state)
{
    UNUSED(state);
    size_t n;
    uint8_t *p = small_file(&n, CT_STORE_RAW, DT_BF16);
    uint64_t len;
    uint32_t rec = 1;
    uint64_t pieces = rh_section(p, n, PIEC, &len, &rec), a = 0, b = 0;
    for (uint64_t i = 0; i < len / rec && !b;
         i++) /* two pieces of the same size: the norms of both layers, f32[90] */
        for (uint64_t j = i + 1; j < len / rec && !b; j++) {
            const uint8_t *x = p + pieces + i * rec, *y = p + pieces + j * rec;
            if (rd64(x + 24) == rd64(y + 24) && rd32(x) != rd32(y)) {
                uint8_t *tmp = malloc(rd64(x + 24));
                a = rd64(x + 16);
                b = rd64(y + 16);
                memcpy(tmp, p + a, rd64(x + 24));
                memcpy(p + a, p + b, rd64(x + 24));
                memcpy(p + b, tmp, rd64(x + 24));
                free(tmp);
            }
        }
    assert_true(b != 0);
    spill(at("swap.tess"), p, n);
    assert_int_equal(count_errors(at("swap.tess"), CT_VERIFY_QUICK), 0);
    assert_int_equal(count_errors(at("swap.tess"), CT_VERIFY_FULL), 2);
    rehash(p, n, true); /* with hashes made right the contents are still those of another tensor */
    spill(at("swap.tess"), p, n);
    assert_int_equal(count_errors(at("swap.tess"), CT_VERIFY_FULL), 0);
    assert_int_equal(count_errors(at("swap.tess"), CT_VERIFY_DEEP), 2);
    mem_free(&mem_libc, p);
}

static void test_padding(void **state)
{
    UNUSED(state);
    size_t n;
    uint8_t *p = small_file(&n, CT_STORE_RAW, DT_BF16);
    uint64_t end = 4096 + rd64(p + 88), len;
    assert_true(end % 64 != 0 || rh_section(p, n, STRS, &len, NULL) == end);
    uint64_t gap = n - 64 - 1; /* before the trailer, when the last section does not fill its line */
    uint64_t bdat = rh_section(p, n, BDAT, &len, NULL);
    if (bdat + len <= gap) {
        p[gap] = 1;
        spill(at("pad.tess"), p, n);
        assert_int_equal(count_errors(at("pad.tess"), CT_VERIFY_FULL), 1);
    }
    mem_free(&mem_libc, p);
}

/* Padding rows of tiles: hashes of chunks and contents are right, and yet deep sees that they are not zero. */
static void test_tile_padding(void **state)
{
    UNUSED(state);
    for (uint32_t dt = DT_BF16; dt <= DT_Q4; dt++) {
        size_t n;
        ct_file *f;
        uint8_t *p = small_file(&n, CT_STORE_RAW, dt);
        OK(ct_open(at("s.tess"), 0, &mem_libc, &f, err));
        const ct_piece *q = &ct_get(f)->pieces[ct_get(f)->tensors[ct_find(f, "l0.o")].first_piece];
        assert_int_equal(q->n_rows % 8, 2);
        p[q->off + q->usize - 1] = 1; /* the last byte is of the last lane */
        ct_close(f);
        rehash(p, n, true);
        spill(at("tile.tess"), p, n);
        assert_int_equal(count_errors(at("tile.tess"), CT_VERIFY_FULL), 0);
        assert_int_equal(count_errors(at("tile.tess"), CT_VERIFY_DEEP), 1);
        mem_free(&mem_libc, p);
    }
}

/* A file that is cut while it is open: an error with the place, no signal, and other readers go on. */
static void test_cut_while_open(void **state)
{
    UNUSED(state);
    model m;
    ct_file *f;
    ct_scratch *s;
    tess_error e;
    make_model(&m, DT_BF16, false);
    OK(write_model(&m, at("open.tess"), (ct_write_options){.store = CT_STORE_RAW, .force = true}, NULL, err));
    OK(ct_open(at("open.tess"), CT_NO_MMAP, &mem_libc, &f, err));
    OK(ct_scratch_open(&mem_libc, &s, err));
    assert_int_equal(truncate(at("open.tess"), 5000), 0);
    uint32_t last = ct_get(f)->n_chunks - 1;
    assert_int_equal(ct_check_chunk(f, last, s, &e), TESS_E_IO);
    assert_non_null(strstr(e.text, "open.tess"));
    assert_int_equal(ct_check_chunk(f, last + 1, s, &e), TESS_E_ARG);
    assert_int_equal(ct_read_rows(f, 0, 1, 5, LAYOUT_TILE8, &e, 0, s, &e), TESS_E_ARG);
    assert_int_equal(ct_read_rows(f, 0, 0, UINT64_MAX, LAYOUT_ROWS, &e, 0, s, &e), TESS_E_ARG);
    ct_scratch_close(s);
    ct_close(f);
}

/* A file of format 1.0 as the first version wrote it; every later version reads it. TESS_WRITE_GOLDEN=FILE
 * writes one. */
static void make_golden(model *m)
{
    *m = (model){0};
    uint32_t ffn = add_axis(m, AXIS_FFN, 32, 100);
    add(m, "bf16", DT_BF16, 100, 24, 0, ffn, 0);
    add(m, "bf16.k", DT_BF16, 12, 100, 1, ffn, 0);
    add(m, "f16", DT_F16, 20, 33, 255, 0, 0);
    add(m, "f32", DT_F32, 20, 33, 255, 0, 0);
    add(m, "q4", DT_Q4, 12, 100, 1, ffn, 1);
    add(m, "q8", DT_Q8, 100, 40, 0, ffn, 1);
    add(m, "vector", DT_F32, 100, 0, 0, ffn, -1);
    m->t[add(m, "zz", DT_BF16, 100, 24, 0, ffn, -1)].alias = 0;
}
static void test_golden(void **state)
{
    UNUSED(state);
    static const char *const files[] = {"tests/data/container-1.0-raw.tess",
                                        "tests/data/container-1.0-zstd.tess"};
    model m;
    make_golden(&m);
    for (uint32_t i = 0; i < 2; i++) {
        ct_file *f;
        if (getenv("TESS_WRITE_GOLDEN"))
            OK(write_model(
                &m, files[i],
                (ct_write_options){.tp = 2, .store = i ? CT_STORE_ZSTD : CT_STORE_RAW, .force = true}, NULL,
                err));
        OK(ct_open(files[i], 0, &mem_libc, &f, err));
        check_file(&m, f);
        verify_good(f, NULL);
        ct_close(f);
    }
}

/* ---- parts ---- */

static void test_split(void **state)
{
    UNUSED(state);
    model m;
    ct_file *f;
    tess_error e;
    char name[64];
    size_t n1, n2;
    make_model(&m, DT_F32, false);
    OK(write_model(&m, at("set.tess"), (ct_write_options){.tp = 3, .store = CT_STORE_AUTO, .split_max = 200000},
                   NULL, err));
    assert_false(os_exists(at("set.tess")));
    OK(write_model(&m, at("one.tess"),
                   (ct_write_options){.tp = 3, .store = CT_STORE_AUTO, .split_max = 1u << 30}, NULL, err));
    assert_true(os_exists(at("one.tess")));
    uint32_t parts = 0;
    for (uint32_t c = 2; c < 20 && !parts; c++) {
        snprintf(name, sizeof name, "set-00001-of-%05u.tess", c);
        if (os_exists(at(name))) parts = c;
    }
    assert_true(parts >= 3);
    for (uint32_t i = 0; i < parts; i++) { /* any part opens the set */
        snprintf(name, sizeof name, "set-%05u-of-%05u.tess", i + 1, parts);
        OK(ct_open(at(name), 0, &mem_libc, &f, err));
        assert_int_equal(ct_get(f)->n_splits, parts);
        if (i == 1) {
            check_file(&m, f);
            verify_good(f, NULL);
        }
        ct_close(f);
        struct stat s;
        assert_int_equal(stat(at(name), &s), 0);
        assert_true(s.st_size <= 200000);
    }
    /* the second part of another conversion of the same tensors */
    m.noise = true;
    OK(write_model(&m, at("other.tess"),
                   (ct_write_options){.tp = 3, .store = CT_STORE_RAW, .split_max = 200000}, NULL, err));
    char path2[64];
    snprintf(path2, sizeof path2, "set-00002-of-%05u.tess", parts);
    uint8_t *p1 = slurp(at(path2), &n1);
    uint32_t oparts = 0;
    for (uint32_t c = 2; c < 20 && !oparts; c++) {
        snprintf(name, sizeof name, "other-00002-of-%05u.tess", c);
        if (os_exists(at(name))) oparts = c;
    }
    uint8_t *p2 = slurp(at(name), &n2);
    spill(at(path2), p2, n2);
    snprintf(name, sizeof name, "set-00001-of-%05u.tess", parts);
    assert_int_equal(try_open(at(name), &e), TESS_E_FORMAT);
    assert_non_null(strstr(e.text, "uuid"));
    assert_non_null(strstr(e.text, "set-00002"));
    spill(at(path2), p1, n1);
    assert_int_equal(try_open(at(name), &e), TESS_OK);
    assert_int_equal(unlink(at(path2)), 0);
    assert_int_equal(try_open(at(name), &e), TESS_E_IO);
    assert_non_null(strstr(e.text, "set-00002"));
    mem_free(&mem_libc, p1);
    mem_free(&mem_libc, p2);
}

/* ---- writing ---- */

static int count_dir(void)
{
    char cmd[128];
    int n = -1;
    snprintf(cmd, sizeof cmd, "ls -A '%s' | wc -l", dir);
    FILE *f = popen(cmd, "r");
    if (f && fscanf(f, "%d", &n) != 1) n = -1;
    if (f) pclose(f);
    return n;
}

static void test_write_errors(void **state)
{
    UNUSED(state);
    model m;
    tess_error e;
    make_model(&m, DT_BF16, false);
    OK(write_model(&m, at("w.tess"), (ct_write_options){.tp = 1, .force = true}, NULL, err));
    int before = count_dir();
    assert_int_equal(write_model(&m, at("w.tess"), (ct_write_options){.tp = 1}, NULL, &e), TESS_E_IO);
    assert_non_null(strstr(e.text, "--force"));
    assert_int_equal(write_model(&m, at("no/such/w.tess"), (ct_write_options){.tp = 1}, NULL, &e), TESS_E_IO);
    for (uint32_t store = 0; store < 3; store++) {
        m.fail_at = 5;
        assert_int_equal(write_model(&m, at("x.tess"), (ct_write_options){.tp = 1, .store = store}, NULL, &e),
                         TESS_E_IO);
        assert_string_equal(e.text, "the source broke");
    }
    m.fail_at = 0;
    /* a limit on the size of files stands for a full disk */
    struct rlimit old, small = {30000, 30000};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (uint32_t store = 0; store < 3; store++)
        for (uint64_t split = 0; split < 200000; split += 150000)
            assert_int_equal(write_model(&m, at("x.tess"),
                                         (ct_write_options){.tp = 2, .store = store, .split_max = split}, NULL,
                                         &e),
                             TESS_E_IO);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(count_dir(), before); /* no temporary file is left */
}

static void test_writer_arguments(void **state)
{
    UNUSED(state);
    ct_writer *w;
    uint32_t i;
    tess_error e;
    ct_write_options o = {.kind = CT_KIND_MODEL};
    OK(ct_writer_open(at("args.tess"), &o, &mem_libc, &w, err));
    arch_axis x = {.kind = AXIS_FFN, .unit = 32, .dim = 100, .n_units = 4, .n_leaves = 2, .leaf = {0, 2, 4}};
    OK(ct_add_axis(w, &x, &i, err));
    x.leaf[1] = 4;
    assert_int_equal(ct_add_axis(w, &x, &i, &e), TESS_E_ARG);
    ct_tensor good = {.name = (char *)(uintptr_t) "a",
                      .dtype = DT_BF16,
                      .rank = 2,
                      .shape = {100, 10},
                      .layer = -1,
                      .alias = CT_NO_ALIAS,
                      .split_dim = 0},
              t = good;
    OK(ct_add_tensor(w, &t, &i, err));
    static const char *const names[] = {"", "/x", "../x", "a/../b", "a\nb", "\xff", "\xc2\x85"};
    for (size_t k = 0; k < ARRAY_LEN(names); k++) {
        t = good;
        t.name = (char *)(uintptr_t)names[k];
        assert_int_equal(ct_add_tensor(w, &t, &i, &e), TESS_E_ARG);
        assert_int_equal(ct_add_blob(w, names[k], "", 0, &e), TESS_E_ARG);
    }
    t = good, t.dtype = 77;
    assert_int_equal(ct_add_tensor(w, &t, &i, &e), TESS_E_ARG);
    t = good, t.shape[0] = 99;
    assert_int_equal(ct_add_tensor(w, &t, &i, &e), TESS_E_ARG);
    t = good, t.axis = 1;
    assert_int_equal(ct_add_tensor(w, &t, &i, &e), TESS_E_ARG);
    t = good, t.alias = 3;
    assert_int_equal(ct_add_tensor(w, &t, &i, &e), TESS_E_ARG);
    t = good, t.dtype = DT_Q8, t.rank = 1, t.split_dim = 255;
    assert_int_equal(ct_add_tensor(w, &t, &i, &e), TESS_E_ARG);
    assert_int_equal(ct_set_kv(w, "x", 1, &e), TESS_E_FORMAT);
    OK(ct_add_tensor(w, &good, &i, err)); /* the same name again is seen when writing */
    model m = {0};
    assert_int_equal(ct_write(w, NULL, model_read, &m, NULL, NULL, &e), TESS_E_ARG);
    assert_non_null(strstr(e.text, "twice"));
    ct_writer_close(w);
    assert_false(os_exists(at("args.tess")));
}

/* Equal input gives equal bytes, whatever the threads. */
static void test_reproducible(void **state)
{
    UNUSED(state);
    model m;
    make_model(&m, DT_BF16, false);
    pool *p;
    size_t n1, n2;
    OK(pool_open(&mem_libc, 4, &p, err));
    for (uint32_t store = 0; store < 3; store++) {
        OK(write_model(&m, at("r1.tess"), (ct_write_options){.tp = 4, .store = store, .force = true}, NULL,
                       err));
        OK(write_model(&m, at("r2.tess"), (ct_write_options){.tp = 4, .store = store, .force = true}, p, err));
        uint8_t *a = slurp(at("r1.tess"), &n1), *b = slurp(at("r2.tess"), &n2);
        assert_int_equal(n1, n2);
        assert_memory_equal(a, b, n1);
        mem_free(&mem_libc, a);
        mem_free(&mem_libc, b);
    }
    pool_close(p);
}

static void test_not_containers(void **state)
{
    UNUSED(state);
    tess_error e;
    spill(at("empty.tess"), (const uint8_t *)"", 0);
    assert_int_equal(try_open(at("empty.tess"), &e), TESS_E_FORMAT);
    assert_non_null(strstr(e.text, "empty"));
    char text[9000];
    memset(text, 'x', sizeof text);
    spill(at("text.tess"), (const uint8_t *)text, sizeof text);
    assert_int_equal(try_open(at("text.tess"), &e), TESS_E_FORMAT);
    assert_non_null(strstr(e.text, "magic"));
    memset(text, 0, sizeof text);
    spill(at("zero.tess"), (const uint8_t *)text, sizeof text);
    assert_int_equal(try_open(at("zero.tess"), &e), TESS_E_FORMAT);
    assert_non_null(strstr(e.text, "not written"));
    assert_int_equal(mkfifo(at("fifo"), 0600), 0);
    assert_int_equal(try_open(at("fifo"), &e), TESS_E_IO);
    assert_int_equal(try_open(dir, &e), TESS_E_IO);
    assert_int_equal(try_open("/dev/zero", &e), TESS_E_IO);
    assert_int_equal(try_open(at("missing"), &e), TESS_E_IO);
}

static void test_faults(void **state)
{
    UNUSED(state);
    model m;
    ct_file *f;
    const char *path;
    uint64_t off;
    make_model(&m, DT_BF16, false);
    OK(write_model(&m, at("f.tess"), (ct_write_options){.store = CT_STORE_RAW, .force = true}, NULL, err));
    OK(ct_open(at("f.tess"), 0, &mem_libc, &f, err));
    const uint8_t *map = ct_map_piece(f, 0);
    if (map) {
        assert_true(ct_fault(f, map + 5, &path, &off));
        assert_int_equal(off, ct_get(f)->pieces[0].off + 5);
        assert_string_equal(path, at("f.tess"));
    }
    assert_false(ct_fault(f, &m, &path, &off));
    ct_close(f);
}

/* Every allocation fails once: an error, nothing leaked (under ASan), no file left. */
static int alloc_left;
static void *counting_alloc(void *user, size_t size, size_t align)
{
    UNUSED(user);
    return alloc_left-- > 0 ? aligned_alloc(align, size) : NULL;
}
static void counting_free(void *user, void *p, size_t size)
{
    UNUSED(user);
    UNUSED(size);
    free(p);
}
static void test_no_memory(void **state)
{
    UNUSED(state);
    const mem m = {NULL, counting_alloc, counting_free, NULL};
    model src = {0};
    ct_file *f;
    ct_writer *w;
    uint32_t i;
    src.n = 0;
    uint32_t ax = add_axis(&src, AXIS_FFN, 32, 100);
    add(&src, "a", DT_BF16, 100, 64, 0, ax, 0);
    add(&src, "b", DT_F32, 100, 0, 255, 0, 0);
    bool done = false;
    for (int n = 0; n < 400 && !done; n++) {
        tess_error e = {0};
        alloc_left = n;
        ct_write_options o = {.kind = CT_KIND_MODEL, .tp = 2, .force = true};
        tess_status st = ct_writer_open(at("oom.tess"), &o, &m, &w, &e);
        if (st == TESS_OK) {
            st = ct_add_axis(w, &src.axis[0], &i, &e);
            for (uint32_t t = 0; st == TESS_OK && t < src.n; t++) st = ct_add_tensor(w, &src.t[t], &i, &e);
            if (st == TESS_OK) st = ct_add_blob(w, "blob", "some bytes", 10, &e);
            if (st == TESS_OK) st = ct_write(w, NULL, model_read, &src, NULL, NULL, &e);
            ct_writer_close(w);
        }
        if (st == TESS_OK) st = ct_open(at("oom.tess"), 0, &m, &f, &e);
        if (st == TESS_OK) {
            ct_verify_result r;
            st = ct_verify(f, CT_VERIFY_DEEP, NULL, NULL, NULL, NULL, &r, &e);
            ct_close(f);
        }
        if (st < 0 && st != TESS_E_NOMEM) fail_msg("allocation %d: %s", n, e.text);
        done = st == TESS_OK;
    }
    assert_true(done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),    cmocka_unit_test(test_store_auto),
        cmocka_unit_test(test_blobs_and_kv),   cmocka_unit_test(test_all_patterns),
        cmocka_unit_test(test_flips),          cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_rules),          cmocka_unit_test(test_bad_frames),
        cmocka_unit_test(test_swapped_chunks), cmocka_unit_test(test_padding),
        cmocka_unit_test(test_tile_padding),   cmocka_unit_test(test_cut_while_open),
        cmocka_unit_test(test_golden),         cmocka_unit_test(test_split),
        cmocka_unit_test(test_write_errors),   cmocka_unit_test(test_writer_arguments),
        cmocka_unit_test(test_reproducible),   cmocka_unit_test(test_not_containers),
        cmocka_unit_test(test_faults),         cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests_name("container", tests, set_up, tear_down);
}
