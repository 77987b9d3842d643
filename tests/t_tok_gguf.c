/*
 * t_tok_gguf.c - tokenizers of GGUF files: a byte-level one and a SentencePiece one written here, refusals, and a published file
 * (path in TESS_SMOLLM2_GGUF) against the goldens of its tokenizer.json.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "gguf_tokenizer.h"
#include "tok_kit.h"

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, STR = 8, ARR = 9 };

typedef struct { buf kv; uint32_t n; } gg;

static void p32(buf *b, uint32_t v) { buf_put(b, &v, 4); }
static void p64(buf *b, uint64_t v) { buf_put(b, &v, 8); }
static void pstr(buf *b, const char *s, size_t n)
{
    p64(b, n);
    buf_put(b, s, n);
}
static void key(gg *g, const char *name, uint32_t type)
{
    g->n++;
    pstr(&g->kv, name, strlen(name));
    p32(&g->kv, type);
}
static void kv_str(gg *g, const char *name, const char *v)
{
    key(g, name, STR);
    pstr(&g->kv, v, strlen(v));
}
static void kv_u32(gg *g, const char *name, uint32_t v)
{
    key(g, name, U32);
    p32(&g->kv, v);
}
static void kv_bool(gg *g, const char *name, bool v)
{
    key(g, name, BOOL);
    buf_putc(&g->kv, v);
}
static void arr(gg *g, const char *name, uint32_t elem, uint64_t n)
{
    key(g, name, ARR);
    p32(&g->kv, elem);
    p64(&g->kv, n);
}

/* Writes the file, opens it as a source and its tokenizer as x; removes the file. The metadata is released. */
static tess_status open_gguf(gg *g, kit *x, tess_error *err)
{
    char path[] = "/tmp/t_tok_gguf.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    buf f;
    buf_init(&f, &mem_libc);
    buf_puts(&f, "GGUF");
    p32(&f, 3);
    p64(&f, 1);
    p64(&f, g->n);
    buf_put(&f, g->kv.data, g->kv.len);
    pstr(&f, "t", 1);
    p32(&f, 1);
    p64(&f, 8);
    p32(&f, 0);
    p64(&f, 0);
    while (f.len % 32) buf_putc(&f, 0);
    for (int i = 0; i < 32; i++) buf_putc(&f, 0);
    assert_int_equal(write(fd, f.data, f.len), (ssize_t)f.len);
    close(fd);
    source *s = NULL;
    kvs_builder *b = NULL;
    *x = (kit){0};
    tess_status st = gguf_open(path, &mem_libc, &s, err);
    if (st == TESS_OK) st = kvs_builder_open(&mem_libc, &b, err);
    if (st == TESS_OK) st = gguf_tokenizer_put(&mem_libc, s, b, err);
    if (st == TESS_OK) st = kvs_build(b, &x->data, &x->size, err);
    kvs_builder_close(b);
    source_close(s);
    unlink(path);
    buf_free(&f);
    buf_free(&g->kv);
    if (st == TESS_OK) st = kvs_open(&x->k, &mem_libc, x->data, x->size, err);
    if (st == TESS_OK) st = tok_open(&x->k, &mem_libc, &x->t, err);
    if (st < 0) kit_close(x);
    return st;
}

static void check_ids(const kit *x, const char *text, uint32_t flags, const int32_t *want, size_t n)
{
    tok_ids ids = {0};
    assert_int_equal(tok_encode(x->t, text, strlen(text), flags, NULL, 0, &ids, NULL), TESS_OK);
    for (size_t i = 0; i < MIN(ids.n, n); i++)
        if (ids.ids[i] != want[i]) fail_msg("\"%s\": id %zu is %d, not %d", text, i, ids.ids[i], want[i]);
    assert_int_equal(ids.n, n);
    tok_ids_free(x->t, &ids);
}
#define IDS(x, text, ...) check_ids(x, text, 0, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4)

/* 256 bytes, "12", "<|end|>" (control), "  " (user-defined). */
static void byte_level_file(gg *g, const char *pre)
{
    *g = (gg){0};
    buf_init(&g->kv, &mem_libc);
    kv_str(g, "tokenizer.ggml.model", "gpt2");
    if (pre) kv_str(g, "tokenizer.ggml.pre", pre);
    kv_str(g, "tokenizer.chat_template", "{{ 1 }}");
    kv_u32(g, "tokenizer.ggml.bos_token_id", 257);
    kv_u32(g, "tokenizer.ggml.eos_token_id", 257);
    arr(g, "tokenizer.ggml.tokens", STR, 259);
    for (uint32_t cp = '!', id = 0; id < 256; cp++, id++) {
        if (cp == 0x7f) cp = 0xa1;
        if (cp == 0xad) cp = 0xae;
        char c[4];
        pstr(&g->kv, c, utf8_encode(cp, c));
    }
    pstr(&g->kv, "12", 2);
    pstr(&g->kv, "<|end|>", 7);
    pstr(&g->kv, "  ", 2);
    arr(g, "tokenizer.ggml.token_type", I32, 259);
    for (uint32_t id = 0; id < 259; id++) p32(&g->kv, id == 257 ? 3 : id == 258 ? 4 : 1);
    arr(g, "tokenizer.ggml.merges", STR, 1);
    pstr(&g->kv, "1 2", 3);
}

static void byte_level(void **state)
{
    UNUSED(state);
    gg g;
    kit x;
    tess_error e = {0};
    byte_level_file(&g, "gpt-2");
    if (open_gguf(&g, &x, &e) < 0) fail_msg("%s", e.text);
    IDS(&x, "a12<|end|>  b", 64, 256, 257, 258, 65);
    check_ids(&x, "a", TESS_TOK_ADD_SPECIAL, (const int32_t[]){64}, 1);
    size_t len;
    assert_memory_equal(kvs_str(&x.k, "tok.eos_token", &len), "<|end|>", 7);
    assert_int_equal(kvs_u64(&x.k, "tok.eos_id", 0), 257);
    assert_memory_equal(kvs_str(&x.k, "chat.template", &len), "{{ 1 }}", 7);
    kit_close(&x);
    byte_level_file(&g, "smollm"); /* digits one by one */
    kv_bool(&g, "tokenizer.ggml.add_bos_token", true);
    if (open_gguf(&g, &x, &e) < 0) fail_msg("%s", e.text);
    IDS(&x, "12", 16, 17);
    check_ids(&x, "a", TESS_TOK_ADD_SPECIAL, (const int32_t[]){257, 64}, 2);
    kit_close(&x);
    static const char *const names[] = {NULL, "falcon", "llama-bpe", "qwen2", "tekken", "gpt-4o", "deepseek-coder", "deepseek-v3"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) { /* every pattern compiles, and covers its text */
        byte_level_file(&g, names[i]);
        if (open_gguf(&g, &x, &e) < 0) fail_msg("%s", e.text);
        const char *text = "It's 12 ÄÖ, 中文\r\n \t!";
        tok_ids ids = {0};
        buf o;
        buf_init(&o, &mem_libc);
        assert_int_equal(tok_encode(x.t, text, strlen(text), 0, NULL, 0, &ids, NULL), TESS_OK);
        assert_int_equal(tok_decode(x.t, ids.ids, ids.n, 0, &o, NULL), TESS_OK);
        assert_int_equal(o.len, strlen(text));
        assert_memory_equal(o.data, text, o.len);
        buf_free(&o);
        tok_ids_free(x.t, &ids);
        kit_close(&x);
    }
    byte_level_file(&g, "nonesuch");
    assert_int_equal(open_gguf(&g, &x, &e), TESS_E_UNSUPPORTED);
    assert_non_null(strstr(e.text, "nonesuch"));
}

static void sentencepiece(void **state)
{
    UNUSED(state);
    static const struct {
        const char *text;
        float score;
        uint32_t type;
    } more[] = {{"▁", -9, 1},  {"a", -10, 1},  {"b", -11, 1}, {"c", -12, 1}, {"ab", -1, 1},
                {"bc", -2, 1}, {"abc", -3, 1}, {"▁a", -4, 1}, {"▁ab", -5, 1}};
    gg g = {0};
    kit x;
    tess_error e = {0};
    buf_init(&g.kv, &mem_libc);
    kv_str(&g, "tokenizer.ggml.model", "llama");
    kv_u32(&g, "tokenizer.ggml.bos_token_id", 1);
    kv_u32(&g, "tokenizer.ggml.padding_token_id", UINT32_MAX);
    uint32_t n = 3 + 256 + ARRAY_LEN(more);
    arr(&g, "tokenizer.ggml.tokens", STR, n);
    static const char *const named[] = {"<unk>", "<s>", "</s>"};
    for (int i = 0; i < 3; i++) pstr(&g.kv, named[i], strlen(named[i]));
    for (unsigned i = 0; i < 256; i++) {
        char code[8];
        snprintf(code, sizeof code, "<0x%02X>", i);
        pstr(&g.kv, code, 6);
    }
    for (size_t i = 0; i < ARRAY_LEN(more); i++) pstr(&g.kv, more[i].text, strlen(more[i].text));
    arr(&g, "tokenizer.ggml.scores", F32, n);
    for (uint32_t i = 0; i < n; i++) {
        float score = i < 259 ? 0 : more[i - 259].score;
        buf_put(&g.kv, &score, 4);
    }
    arr(&g, "tokenizer.ggml.token_type", I32, n);
    for (uint32_t i = 0; i < n; i++) p32(&g.kv, i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : more[i - 259].type);
    if (open_gguf(&g, &x, &e) < 0) fail_msg("%s", e.text);
    IDS(&x, "abc", 259, 265); /* "ab", then "abc" before "▁ab" */
    IDS(&x, "ab", 267);
    IDS(&x, "bc", 259, 264);
    IDS(&x, "xbc", 259, 123, 264);
    check_ids(&x, "<s>b", TESS_TOK_ADD_SPECIAL, (const int32_t[]){1, 1, 259, 261}, 4);
    kit_close(&x);
}

static void published(void **state)
{
    UNUSED(state);
    const char *gguf = getenv("TESS_SMOLLM2_GGUF"), *roots[] = {getenv("TESS_SHARED"), "../shared", "../../shared"};
    char path[400] = "";
    for (size_t i = 0; i < ARRAY_LEN(roots) && !*path; i++) {
        if (roots[i]) snprintf(path, sizeof path, "%s/models/smollm2/tokenizer_golden.json", roots[i]);
        if (!os_exists(path)) *path = 0;
    }
    if (!gguf || !*path) {
        printf("skip: TESS_SMOLLM2_GGUF is not set, or no goldens beside the tree\n");
        skip();
    }
    tess_error e = {0};
    source *s;
    kvs_builder *b;
    kit x = {0};
    if (gguf_open(gguf, &mem_libc, &s, &e) < 0) fail_msg("%s", e.text);
    assert_int_equal(kvs_builder_open(&mem_libc, &b, NULL), TESS_OK);
    if (gguf_tokenizer_put(&mem_libc, s, b, &e) < 0) fail_msg("%s", e.text);
    assert_int_equal(kvs_build(b, &x.data, &x.size, NULL), TESS_OK);
    kvs_builder_close(b);
    source_close(s);
    assert_int_equal(kvs_open(&x.k, &mem_libc, x.data, x.size, NULL), TESS_OK);
    assert_int_equal(tok_open(&x.k, &mem_libc, &x.t, NULL), TESS_OK);
    json_t *cases = json_load_file(path, JSON_ALLOW_NUL, NULL);
    assert_true(json_array_size(cases) > 0);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *want = json_object_get(c, "ids"), *text = json_object_get(c, "text");
        tok_ids ids = {0};
        assert_int_equal(tok_encode(x.t, json_string_value(text), json_string_length(text), 0, NULL, 0, &ids, NULL), TESS_OK);
        assert_int_equal(ids.n, json_array_size(want));
        for (size_t k = 0; k < ids.n; k++)
            if (ids.ids[k] != json_integer_value(json_array_get(want, k))) fail_msg("case %zu, id %zu is %d", i, k, ids.ids[k]);
        tok_ids_free(x.t, &ids);
    }
    json_decref(cases);
    kit_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(byte_level), cmocka_unit_test(sentencepiece), cmocka_unit_test(published)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
