/*
 * container_kit.h - for the tests of the container: a directory, a model whose values come from a generator,
 * files in memory.
 *
 * The generator gives the value of any (tensor, row, column) at any time, so nothing large is kept and what is
 * read can be compared wherever it is read.
 */
#ifndef TESS_CONTAINER_KIT_H
#define TESS_CONTAINER_KIT_H
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
static inline char *at(const char *name) /* path in the test's directory; four live at a time */
{
    static char path[4][256];
    static int i;
    i = (i + 1) % 4;
    snprintf(path[i], sizeof path[i], "%s/%s", dir, name);
    return path[i];
}
static inline int set_up(void **state)
{
    UNUSED(state);
    snprintf(dir, sizeof dir, "/tmp/t_container.XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}
static inline int tear_down(void **state)
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

static inline uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u ^ (b + 1) * 0xc2b2ae3d27d4eb4fu ^ (c + 7) * 0x165667b19e3779f9u;
    x ^= x >> 31;
    x *= 0xbf58476d1ce4e5b9u;
    return x ^ x >> 29;
}

static inline void put_value(const model *m, uint32_t ti, uint64_t r, uint64_t k, uint8_t *dst)
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

static inline uint32_t leaves_of(const model *m, uint32_t ti, uint64_t k0, uint64_t n_k,
                                 uint64_t lo[MAX_LEAVES], uint64_t len[MAX_LEAVES])
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
static inline void put_tiles(const model *m, uint32_t ti, uint64_t row0, uint64_t n_rows, uint64_t k0,
                             uint64_t n_k, uint8_t *dst)
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

static inline tess_status model_read(void *user, uint32_t ti, uint64_t row0, uint64_t n_rows, uint64_t k0,
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

static inline uint32_t add_axis(model *m, uint32_t kind, uint32_t unit, uint64_t dim)
{
    arch_axis *x = &m->axis[m->n_axes];
    *x = (arch_axis){.kind = kind, .unit = unit, .dim = dim, .n_units = (uint32_t)ceil_div(dim, unit)};
    x->n_leaves = MIN(x->n_units, (uint32_t)MAX_LEAVES);
    for (uint32_t i = 0; i <= x->n_leaves; i++) x->leaf[i] = (uint32_t)((uint64_t)x->n_units * i / x->n_leaves);
    return m->n_axes++;
}

static inline uint32_t add(model *m, const char *name, uint32_t dt, uint64_t rows, uint64_t cols,
                           uint32_t split, uint32_t axis, int32_t layer)
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
static inline void make_model(model *m, uint32_t dt, bool noise)
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

static inline tess_status write_model(const model *m, const char *path, ct_write_options o, pool *p,
                                      tess_error *e)
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

static inline uint32_t model_index(const model *m, const char *name)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (strcmp(m->t[i].name, name) == 0) return m->t[i].alias == CT_NO_ALIAS ? i : m->t[i].alias;
    fail_msg("tensor %s is unknown", name);
    return 0;
}

/* Rows [from, from + n) of a piece in both layouts against the generator. */
static inline void check_rows(const model *m, const ct_file *f, uint32_t piece, uint64_t from, uint64_t n,
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

static inline void check_file(const model *m, const ct_file *f)
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

static inline void print_line(void *user, const char *line)
{
    UNUSED(user);
    printf("%s\n", line);
}

static inline void verify_good(const ct_file *f, pool *p)
{
    ct_verify_result r;
    OK(ct_verify(f, CT_VERIFY_DEEP, p, print_line, NULL, NULL, &r, err));
    assert_int_equal(r.errors, 0);
}

/* ---- files in memory ---- */

static inline uint8_t *slurp(const char *path, size_t *n)
{
    char *p;
    OK(os_read_whole(path, 1 << 30, &mem_libc, &p, n, err));
    return (uint8_t *)p;
}
static inline void spill(const char *path, const uint8_t *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}
static inline tess_status try_open(const char *path, tess_error *e)
{
    ct_file *f;
    memset(e, 0, sizeof *e);
    tess_status st = ct_open(path, 0, &mem_libc, &f, e);
    if (st < 0) assert_null(f);
    ct_close(f);
    return st;
}
/* Errors of open or of a full verify; 0 = the file passes as good. */
static inline uint64_t count_errors(const char *path, int depth)
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

static inline uint8_t *small_file(size_t *n, uint32_t store, uint32_t dt)
{
    model m;
    make_model(&m, dt, false);
    OK(write_model(&m, at("s.tess"), (ct_write_options){.tp = 2, .store = store, .force = true}, NULL, err));
    return slurp(at("s.tess"), n);
}
#endif
