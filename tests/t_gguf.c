/*
 * t_gguf.c - the GGUF reader: metadata of every type, dequantization against values of another package, what
 * becomes of the blocks in q8 and q4, a llama model with interleaved q and k rows, every cut and every single-byte change of a file.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gguf_blocks.h"
#include "gguf_config.h"
#include "quant.h"

enum { U8 = 0, U32 = 4, F32 = 6, BOOL = 7, STR = 8, ARR = 9, U64 = 10, F64 = 12 };
enum { Q_F32 = 0, Q_Q4_1 = 3 };

static char path[64];

static int make_path(void **state)
{
    UNUSED(state);
    snprintf(path, sizeof path, "/tmp/t_gguf.XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}
static int drop_path(void **state)
{
    UNUSED(state);
    return unlink(path);
}

/* ---- building files ---- */

typedef struct { buf head, info, data; uint32_t n_kv, n_tensors; } gg;

static void p32(buf *b, uint32_t v) { buf_put(b, &v, 4); }
static void p64(buf *b, uint64_t v) { buf_put(b, &v, 8); }
static void pstr(buf *b, const char *s)
{
    p64(b, strlen(s));
    buf_puts(b, s);
}
static void gg_init(gg *g)
{
    memset(g, 0, sizeof *g);
    buf_init(&g->head, &mem_libc);
    buf_init(&g->info, &mem_libc);
    buf_init(&g->data, &mem_libc);
}
static void kv_head(gg *g, const char *key, uint32_t type)
{
    g->n_kv++;
    pstr(&g->head, key);
    p32(&g->head, type);
}
static void kv_u32(gg *g, const char *key, uint32_t v)
{
    kv_head(g, key, U32);
    p32(&g->head, v);
}
static void kv_f32(gg *g, const char *key, float v)
{
    kv_head(g, key, F32);
    buf_put(&g->head, &v, 4);
}
static void kv_str(gg *g, const char *key, const char *v)
{
    kv_head(g, key, STR);
    pstr(&g->head, v);
}
/* dims innermost first, as in the file */
static void tensor(gg *g, const char *name, uint32_t type, uint64_t d0, uint64_t d1, const void *data, size_t n)
{
    g->n_tensors++;
    pstr(&g->info, name);
    p32(&g->info, d1 ? 2 : 1);
    p64(&g->info, d0);
    if (d1) p64(&g->info, d1);
    p32(&g->info, type);
    p64(&g->info, g->data.len);
    buf_put(&g->data, data, n);
    while (g->data.len % 32) buf_putc(&g->data, 0);
}
/* The whole file; frees g. */
static buf gg_done(gg *g, uint32_t version)
{
    buf f;
    buf_init(&f, &mem_libc);
    buf_puts(&f, "GGUF");
    p32(&f, version);
    p64(&f, g->n_tensors);
    p64(&f, g->n_kv);
    buf_put(&f, g->head.data, g->head.len);
    buf_put(&f, g->info.data, g->info.len);
    while (f.len % 32) buf_putc(&f, 0);
    buf_put(&f, g->data.data, g->data.len);
    buf_free(&g->head);
    buf_free(&g->info);
    buf_free(&g->data);
    assert_false(f.failed);
    return f;
}
static void put_file(const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}
static source *open_good(buf *f)
{
    source *s;
    tess_error err;
    put_file(f->data, f->len);
    buf_free(f);
    if (gguf_open(path, &mem_libc, &s, &err) < 0) fail_msg("%s", err.text);
    return s;
}
static void expect_error(buf *f, const char *needle)
{
    source *s;
    tess_error err;
    put_file(f->data, f->len);
    buf_free(f);
    if (gguf_open(path, &mem_libc, &s, &err) == TESS_OK) fail_msg("accepted, wanted \"%s\"", needle);
    if (!strstr(err.text, needle) || !strstr(err.text, path))
        fail_msg("wanted \"%s\" in: %s", needle, err.text);
}

/* ---- metadata ---- */

static void reads_metadata(void **state)
{
    gg g;
    size_t len;
    UNUSED(state);
    gg_init(&g);
    kv_u32(&g, "b.u32", 7);
    kv_head(&g, "a.u64", U64);
    p64(&g.head, 1ull << 40);
    kv_f32(&g, "c.f32", 0.5f);
    kv_head(&g, "c.f64", F64);
    double d = 0.25;
    buf_put(&g.head, &d, 8);
    kv_head(&g, "flag", BOOL);
    buf_putc(&g.head, 1);
    kv_str(&g, "name", "Tessera");
    kv_head(&g, "strings", ARR);
    p32(&g.head, STR);
    p64(&g.head, 3);
    pstr(&g.head, "one");
    pstr(&g.head, "");
    pstr(&g.head, "three");
    kv_head(&g, "numbers", ARR);
    p32(&g.head, U32);
    p64(&g.head, 2);
    p32(&g.head, 11);
    p32(&g.head, 12);
    buf f = gg_done(&g, 3);
    source *s = open_good(&f);
    assert_int_equal(gguf_u64(s, "b.u32", 0), 7);
    assert_int_equal(gguf_u64(s, "a.u64", 0), 1ull << 40);
    assert_int_equal(gguf_u64(s, "absent", 5), 5);
    assert_int_equal(gguf_u64(s, "name", 5), 5);
    assert_true(gguf_f64(s, "c.f32", 0) == 0.5 && gguf_f64(s, "c.f64", 0) == 0.25 &&
                gguf_f64(s, "b.u32", 0) == 7);
    assert_int_equal(gguf_u64(s, "flag", 0), 1);
    assert_memory_equal(gguf_str(s, "name", &len), "Tessera", 7);
    assert_int_equal(len, 7);
    const gguf_kv *strings = gguf_find(s, "strings"), *numbers = gguf_find(s, "numbers");
    assert_true(strings && strings->n == 3 && numbers && numbers->n == 2 && rd32(numbers->data + 4) == 12);
    assert_memory_equal(gguf_str_at(strings, 2, &len), "three", 5);
    assert_int_equal(len, 5);
    assert_non_null(gguf_str_at(strings, 1, &len));
    assert_int_equal(len, 0);
    assert_null(gguf_str_at(strings, 3, &len));
    assert_null(gguf_str_at(numbers, 0, &len));
    assert_null(gguf_find(s, "string"));
    source_close(s);
}

/* ---- values ---- */

static uint32_t seed = 1;
static uint8_t rnd(void)
{
    seed = seed * 1664525 + 1013904223;
    return (uint8_t)(seed >> 24);
}
/* tests/data/gguf/blocks.gguf, made by tests/tools/make-gguf-blocks.py: of each type a tensor of random blocks, and as NAME.f32 the
 * values that llama.cpp's Python package gives for them. */
static const struct { const char *name; uint32_t dtype, elems, bytes; } block_types[] = {
    {"Q8_0", SRC_Q8_0, 32, 34},   {"Q4_0", SRC_Q4_0, 32, 18},      {"Q4_1", SRC_Q4_1, 32, 20},      {"Q5_0", SRC_Q5_0, 32, 22},
    {"Q5_1", SRC_Q5_1, 32, 24},   {"IQ4_NL", SRC_IQ4_NL, 32, 18},  {"MXFP4", SRC_MXFP4, 32, 17},    {"Q2_K", SRC_Q2_K, 256, 84},
    {"Q3_K", SRC_Q3_K, 256, 110}, {"Q4_K", SRC_Q4_K, 256, 144},    {"Q5_K", SRC_Q5_K, 256, 176},    {"Q6_K", SRC_Q6_K, 256, 210},
    {"IQ4_XS", SRC_IQ4_XS, 256, 136}};
enum { ROWS = 4, COLS = 768 };

static source *open_blocks(void)
{
    source *s;
    tess_error err;
    const char *dir = getenv("TESS_TEST_DATA");
    char name[512];
    snprintf(name, sizeof name, "%s/gguf/blocks.gguf", dir ? dir : "tests/data");
    if (gguf_open(name, &mem_libc, &s, &err) < 0) fail_msg("%s", err.text);
    return s;
}

/* What the tensor of type t holds, by the other package; its index in *i. */
static void want_values(const source *s, size_t t, float want[ROWS * COLS], uint32_t *i)
{
    char name[32];
    uint64_t rows, cols;
    tess_error err;
    snprintf(name, sizeof name, "%s.f32", block_types[t].name);
    int64_t at = source_find(s, block_types[t].name), plain = source_find(s, name);
    assert_true(at >= 0 && plain >= 0);
    *i = (uint32_t)at;
    assert_int_equal(s->tensors[at].dtype, block_types[t].dtype);
    source_dims(&s->tensors[at], &rows, &cols);
    assert_true(rows == ROWS && cols == COLS);
    assert_int_equal(s->read(s, (uint32_t)plain, 0, ROWS, 0, COLS, false, want, &err), TESS_OK);
}

static void dequantizes(void **state)
{
    static const uint64_t boxes[][4] = {{0, 4, 0, 768}, {3, 1, 0, 768}, {1, 3, 256, 512}, {2, 2, 37, 1}, {0, 4, 5, 758}, {3, 1, 300, 270}};
    static float want[ROWS * COLS], got[ROWS * COLS];
    static uint8_t all[ROWS * COLS * 4];
    UNUSED(state);
    source *s = open_blocks();
    for (size_t t = 0; t < ARRAY_LEN(block_types); t++) {
        uint32_t i, elems = block_types[t].elems, bytes = block_types[t].bytes;
        size_t row = COLS / elems * bytes;
        want_values(s, t, want, &i);
        assert_int_equal(s->read(s, i, 0, ROWS, 0, COLS, true, all, NULL), TESS_OK);
        for (size_t x = 0; x < ARRAY_LEN(boxes); x++) {
            const uint64_t *b = boxes[x];
            assert_int_equal(s->read(s, i, b[0], b[1], b[2], b[3], false, got, NULL), TESS_OK);
            for (uint64_t r = 0; r < b[1]; r++)
                for (uint64_t k = 0; k < b[3]; k++)
                    if (memcmp(&want[(b[0] + r) * COLS + b[2] + k], &got[r * b[3] + k], 4) != 0)
                        fail_msg("%s box %zu row %d column %d: %a, not %a", block_types[t].name, x, (int)r, (int)k,
                                 (double)got[r * b[3] + k], (double)want[(b[0] + r) * COLS + b[2] + k]);
            bool whole = b[2] % elems == 0 && b[3] % elems == 0; /* raw: whole blocks only */
            assert_int_equal(s->read(s, i, b[0], b[1], b[2], b[3], true, got, NULL), whole ? TESS_OK : TESS_E_ARG);
            size_t part = b[3] / elems * bytes, skip = b[2] / elems * bytes;
            for (uint64_t r = 0; whole && r < b[1]; r++)
                assert_memory_equal((uint8_t *)got + r * part, all + (b[0] + r) * row + skip, part);
        }
    }
    source_close(s);
}

/* How far a group of 32 may lie from its values: kept codes by the rounding of their scale and minimum to f16 alone (0 where both
 * are f16 already), fitted q8 by half a step, fitted q4 by half a step in the mean of squares. */
enum { KEPT, ROUNDED, FITTED };
static bool group_near(uint32_t dt, int how, const float *want, const uint8_t *block)
{
    float got[GROUP_K], lo = want[0], hi = want[0];
    double sum = 0, most = 0;
    quant_block_f32(dt, block, got);
    for (int e = 0; e < GROUP_K; e++) {
        double d = fabs((double)got[e] - (double)want[e]);
        lo = fminf(lo, want[e]), hi = fmaxf(hi, want[e]);
        sum += d * d;
        if (!(d <= most)) most = d;
    }
    double top = fmax(fabs((double)lo), fabs((double)hi)), f16 = 0x1p-11 * (top + ((double)hi - (double)lo)) + 0x1p-25;
    if (how == KEPT) return most == 0;
    if (how == ROUNDED) return most <= f16;
    if (dt == DT_Q8) return most <= top / 127 / 2 + f16 + 127 * 0x1p-25;
    return sqrt(sum / GROUP_K) <= ((double)hi - (double)lo) / 15 / 2 + f16 + 15 * 0x1p-25;
}

static void makes_blocks(void **state)
{
    static const struct { const char *name; uint32_t dt; int how; } cases[] = {
        {"Q8_0", DT_Q8, KEPT},   {"Q5_0", DT_Q8, KEPT},   {"IQ4_NL", DT_Q8, KEPT}, {"Q4_0", DT_Q8, KEPT},   {"Q4_0", DT_Q4, KEPT},
        {"Q4_1", DT_Q4, KEPT},   {"Q4_K", DT_Q4, ROUNDED}, {"Q5_1", DT_Q8, FITTED}, {"Q5_K", DT_Q8, FITTED}, {"Q6_K", DT_Q8, FITTED},
        {"Q2_K", DT_Q4, FITTED}, {"Q3_K", DT_Q4, FITTED}, {"IQ4_XS", DT_Q8, FITTED}, {"Q6_K", DT_Q4, FITTED}, {"Q4_K", DT_Q8, FITTED}};
    static float want[ROWS * COLS];
    UNUSED(state);
    source *s = open_blocks();
    for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
        uint8_t out[COLS / GROUP_K * Q8_BLOCK], part[COLS / GROUP_K * Q8_BLOCK];
        uint32_t i, size = quant_block_bytes(cases[c].dt), odd = 0;
        size_t t = 0;
        tess_error err;
        while (strcmp(block_types[t].name, cases[c].name) != 0) t++;
        want_values(s, t, want, &i);
        for (uint64_t r = 0; r < ROWS; r++) {
            if (s->blocks(s, i, r, 0, COLS, cases[c].dt, out, &err) < 0) fail_msg("%s", err.text);
            for (uint64_t g = 0; g < COLS / GROUP_K; g++) odd += !group_near(cases[c].dt, cases[c].how, want + r * COLS + g * GROUP_K, out + g * size);
            /* the same from any group on, and a short last group with zeros behind it */
            assert_int_equal(s->blocks(s, i, r, 96, 600, cases[c].dt, part, &err), TESS_OK);
            assert_memory_equal(part, out + 3 * size, 18 * size);
        }
        if (odd) fail_msg("%s to %s: %u of %d groups are too far off", cases[c].name, dtype_get(cases[c].dt)->name, odd, ROWS * COLS / GROUP_K);
        assert_int_equal(s->blocks(s, i, 0, 16, 32, cases[c].dt, part, &err), TESS_E_ARG);
    }
    source_close(s);
}

/* ---- hostile files ---- */

static void refuses_bad_files(void **state)
{
    static const uint8_t zero[4096];
    gg g;
    buf f;
    UNUSED(state);
    gg_init(&g);
    f = gg_done(&g, 4);
    expect_error(&f, "version 4");
    gg_init(&g);
    f = gg_done(&g, 0x03000000);
    expect_error(&f, "big-endian");
    gg_init(&g);
    kv_u32(&g, "a", 1);
    kv_u32(&g, "a", 1);
    f = gg_done(&g, 3);
    expect_error(&f, "twice");
    gg_init(&g);
    g.n_kv = UINT32_MAX;
    f = gg_done(&g, 3);
    expect_error(&f, "65536");
    gg_init(&g);
    g.n_tensors = 1u << 30;
    f = gg_done(&g, 3);
    expect_error(&f, "more tensors");
    gg_init(&g);
    g.n_kv = 1;
    p64(&g.head, UINT64_MAX);
    f = gg_done(&g, 3);
    expect_error(&f, "ends inside");
    static const uint32_t elems[] = {STR, U64, ARR, 13, U8};
    for (size_t i = 0; i < ARRAY_LEN(elems); i++) { /* arrays of 2^62 elements, and of arrays */
        gg_init(&g);
        kv_head(&g, "a", ARR);
        p32(&g.head, elems[i]);
        p64(&g.head, 1ull << 62);
        f = gg_done(&g, 3);
        expect_error(&f, "at offset");
    }
    gg_init(&g);
    kv_u32(&g, "general.alignment", 0);
    f = gg_done(&g, 3);
    expect_error(&f, "general.alignment");
    static const struct { uint32_t type; uint64_t d0, d1; size_t bytes; const char *needle; } bad[] = {
        {Q_F32, 1ull << 32, 1ull << 32, 64, "dimension"},
        {Q_F32, (1ull << 62) + 4, 4, 64, "dimension"},
        {Q_F32, 0, 0, 64, "dimension"},
        {Q_F32, 16, 2, 64, "cut off"},
        {16, 256, 1, 66, "IQ2_XXS); supported are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K"},
        {99, 16, 1, 64, "unknown"},
        {Q_Q4_1, 33, 1, 64, "whole blocks"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        gg_init(&g);
        tensor(&g, "t", bad[i].type, bad[i].d0, bad[i].d1, zero, bad[i].bytes);
        f = gg_done(&g, 3);
        expect_error(&f, bad[i].needle);
    }
    gg_init(&g);
    tensor(&g, "t", Q_F32, 8, 0, zero, 32);
    tensor(&g, "t", Q_F32, 8, 0, zero, 32);
    f = gg_done(&g, 3);
    expect_error(&f, "twice");
    gg_init(&g);
    tensor(&g, "t", Q_F32, 8, 0, zero, 64); /* 32 bytes more than its shape */
    tensor(&g, "u", Q_F32, 8, 0, zero, 32);
    f = gg_done(&g, 3);
    expect_error(&f, "data offset");
    gg_init(&g);
    tensor(&g, "../t", Q_F32, 8, 0, zero, 32);
    f = gg_done(&g, 3);
    expect_error(&f, "bad tensor name");
}

/* ---- a model ---- */

enum { HIDDEN = 8, HEADS = 2, KV = 1, HD = 4, FFN = 32, VOCAB = 5 };

static void matrix(gg *g, const char *name, uint64_t rows, uint64_t cols, float base)
{
    float v[64 * 64];
    for (uint64_t i = 0; i < rows * MAX(cols, 1); i++) v[i] = base + (float)i;
    tensor(g, name, Q_F32, cols ? cols : rows, cols ? rows : 0, v, rows * MAX(cols, 1) * 4);
}

static void build_llama(gg *g, float theta)
{
    gg_init(g);
    kv_str(g, "general.architecture", "llama");
    kv_u32(g, "llama.block_count", 1);
    kv_u32(g, "llama.context_length", 64);
    kv_u32(g, "llama.embedding_length", HIDDEN);
    kv_u32(g, "llama.feed_forward_length", FFN);
    kv_u32(g, "llama.attention.head_count", HEADS);
    kv_u32(g, "llama.attention.head_count_kv", KV);
    kv_f32(g, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    kv_f32(g, "llama.rope.freq_base", theta);
    kv_u32(g, "tokenizer.ggml.eos_token_id", 2);
    kv_u32(g, "tokenizer.ggml.eot_token_id", 3);
    kv_u32(g, "tokenizer.ggml.bos_token_id", 1);
    matrix(g, "token_embd.weight", VOCAB, HIDDEN, 0);
    matrix(g, "output_norm.weight", HIDDEN, 0, 1);
    matrix(g, "blk.0.attn_norm.weight", HIDDEN, 0, 2);
    matrix(g, "blk.0.ffn_norm.weight", HIDDEN, 0, 3);
    matrix(g, "blk.0.attn_q.weight", HEADS * HD, HIDDEN, 0);
    matrix(g, "blk.0.attn_k.weight", KV * HD, HIDDEN, 0);
    matrix(g, "blk.0.attn_v.weight", KV * HD, HIDDEN, 0);
    matrix(g, "blk.0.attn_output.weight", HIDDEN, HEADS * HD, 0);
    matrix(g, "blk.0.ffn_gate.weight", FFN, HIDDEN, 0);
    matrix(g, "blk.0.ffn_up.weight", FFN, HIDDEN, 0);
    matrix(g, "blk.0.ffn_down.weight", HIDDEN, FFN, 0);
}

static const weight *find_weight(const weight_plan *p, const char *name)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (strcmp(p->w[i].name, name) == 0) return &p->w[i];
    fail_msg("no weight %s", name);
    return NULL;
}

static void maps_llama(void **state)
{
    gg g;
    gguf_config c;
    weight_plan p;
    tess_error err;
    float v[HEADS * HD * HIDDEN];
    uint16_t half[2];
    UNUSED(state);
    build_llama(&g, 500000);
    buf f = gg_done(&g, 3);
    source *s = open_good(&f);
    if (gguf_config_read(s, &c, &err) < 0) fail_msg("%s", err.text);
    assert_true(c.tied && c.a.n_kv_heads == KV && c.a.head_dim == HD && c.a.vocab_size == VOCAB &&
                c.a.attn[0].rope_theta == 500000);
    if (family_plan(c.fam->names, "", s, &c.a, c.tied, &mem_libc, &p, &err) < 0) fail_msg("%s", err.text);
    assert_int_equal(c.a.tied_head, 1);
    assert_int_equal(find_weight(&p, "lm_head.weight")->alias, 0);
    /* q: row i of the first half of a head is stored at 2i, of the second half at 2i + 1 */
    const weight *q = find_weight(&p, "model.layers.0.self_attn.q_proj.weight");
    static const int order[HEADS * HD] = {0, 2, 1, 3, 4, 6, 5, 7};
    assert_int_equal(family_read(s, q, DT_F32, 0, HEADS * HD, 0, HIDDEN, v, &err), TESS_OK);
    for (int r = 0; r < HEADS * HD; r++)
        for (int k = 0; k < HIDDEN; k++) assert_true(v[r * HIDDEN + k] == (float)(order[r] * HIDDEN + k));
    assert_int_equal(family_read(s, q, DT_BF16, 5, 2, 3, 1, half, &err), TESS_OK);
    assert_int_equal(half[0], f32_to_bf16(6 * HIDDEN + 3));
    assert_int_equal(half[1], f32_to_bf16(5 * HIDDEN + 3));
    const weight *o = find_weight(&p, "model.layers.0.self_attn.v_proj.weight");
    assert_int_equal(family_read(s, o, DT_F32, 1, 1, 0, HIDDEN, v, &err), TESS_OK);
    assert_true(v[0] == HIDDEN);
    /* a vector as a column or as a row */
    const weight *n = find_weight(&p, "model.norm.weight");
    assert_int_equal(family_read(s, n, DT_F32, 2, 3, 0, 1, v, &err), TESS_OK);
    assert_true(v[0] == 3 && v[2] == 5);
    assert_int_equal(family_read(s, n, DT_F32, 0, 1, 2, 3, v, &err), TESS_OK);
    assert_true(v[0] == 3 && v[2] == 5);
    family_plan_close(&p);
    /* end ids */
    kvs_builder *b;
    void *bytes;
    size_t len;
    kvs k;
    uint64_t n_eos;
    assert_int_equal(kvs_builder_open(&mem_libc, &b, &err), TESS_OK);
    gguf_generation_put(s, b);
    assert_int_equal(kvs_build(b, &bytes, &len, &err), TESS_OK);
    assert_int_equal(kvs_open(&k, &mem_libc, bytes, len, &err), TESS_OK);
    const int32_t *eos = kvs_array(&k, "gen.eos", KV_I32S, &n_eos);
    assert_true(n_eos == 2 && eos[0] == 2 && eos[1] == 3 && kvs_i64(&k, "gen.bos", -1) == 1);
    kvs_close(&k);
    kvs_builder_close(b);
    mem_free(&mem_libc, bytes);
    source_close(s);
}

static void recognizes_llama3_rope(void **state)
{
    gg g;
    gguf_config c;
    tess_error err;
    UNUSED(state);
    /* head_dim 4: wave lengths 2 pi and 2 pi sqrt(theta); with theta 1e12 the second is beyond 8192 / 1 */
    for (int known = 0; known < 2; known++) {
        float divisors[2] = {1, known ? 8.0f : 7.0f};
        build_llama(&g, 1e12f);
        tensor(&g, "rope_freqs.weight", Q_F32, 2, 0, divisors, sizeof divisors);
        buf f = gg_done(&g, 3);
        source *s = open_good(&f);
        tess_status st = gguf_config_read(s, &c, &err);
        if (known) {
            assert_int_equal(st, TESS_OK);
            assert_true(c.a.attn[0].rope_scale == ROPE_SCALE_LLAMA3 && c.a.attn[0].factor == 8 &&
                        c.a.attn[0].orig_ctx == 8192);
        } else {
            assert_int_equal(st, TESS_E_UNSUPPORTED);
            assert_non_null(strstr(err.text, "rope_freqs"));
        }
        source_close(s);
    }
}

/* Every cut, and random changes of a byte: refused or read, never a crash. */
static void survives_changes(void **state)
{
    gg g;
    source *s;
    gguf_config c;
    UNUSED(state);
    build_llama(&g, 10000);
    buf f = gg_done(&g, 3);
    for (size_t cut = 0; cut < f.len; cut += cut < 2200 ? 1 : 97) {
        put_file(f.data, cut);
        assert_true(gguf_open(path, &mem_libc, &s, NULL) < 0);
    }
    for (size_t i = 0; i < 2200; i++) {
        uint8_t old = (uint8_t)f.data[i];
        f.data[i] = (char)(old ^ (uint8_t)(1 << rnd() % 8));
        put_file(f.data, f.len);
        if (gguf_open(path, &mem_libc, &s, NULL) == TESS_OK) {
            weight_plan p;
            if (gguf_config_read(s, &c, NULL) == TESS_OK &&
                family_plan(c.fam->names, "", s, &c.a, c.tied, &mem_libc, &p, NULL) == TESS_OK)
                family_plan_close(&p);
            source_close(s);
        }
        f.data[i] = (char)old;
    }
    buf_free(&f);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make_path, drop_path)
    const struct CMUnitTest tests[] = {
        CASE(reads_metadata), CASE(dequantizes),            CASE(makes_blocks),     CASE(refuses_bad_files),
        CASE(maps_llama),     CASE(recognizes_llama3_rope), CASE(survives_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
