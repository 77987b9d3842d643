/*
 * t_spm.c - tokenizer.model of SentencePiece: small models (tests/data/spm, made by tests/tools/make-spm.py) give what transformers
 * makes of them; files that are damaged, or mean what is not supported, are refused;
 * memory may run out anywhere.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "spm_tokenizer.h"
#include "tok_golden.h"

static tess_status open_spm(kit *x, const spm_files *f, tess_error *err)
{
    kvs_builder *b = NULL;
    *x = (kit){0};
    tess_status st = kvs_builder_open(&mem_libc, &b, err);
    if (st == TESS_OK) st = spm_tokenizer_put(&mem_libc, f, b, err);
    if (st == TESS_OK) st = kvs_build(b, &x->data, &x->size, err);
    kvs_builder_close(b);
    if (st == TESS_OK) st = kvs_open(&x->k, &mem_libc, x->data, x->size, err);
    if (st == TESS_OK) st = tok_open(&x->k, &mem_libc, &x->t, err);
    if (st < 0) kit_close(x);
    return st;
}

static spm_file read_file(const char *name)
{
    char path[256];
    spm_file f = {0};
    char *data;
    tess_error err;
    snprintf(path, sizeof path, "tests/data/spm/%s.model", name);
    if (os_read_whole(path, 1 << 20, &mem_libc, &data, &f.len, &err) < 0) fail_msg("%s", err.text);
    f.data = data;
    return f;
}
static void free_file(spm_file f) { mem_free(&mem_libc, (void *)(uintptr_t)f.data); }

static void same_as_transformers(void **state)
{
    const char *name = *state;
    char path[256];
    json_error_t why;
    tess_error err;
    kit x;
    snprintf(path, sizeof path, "tests/data/spm/%s.json", name);
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &why);
    if (!root) fail_msg("%s: %s", path, why.text);
    char *config = json_dumps(json_object_get(root, "config"), JSON_COMPACT);
    spm_files f = {.model = read_file(name), .config = {config, strlen(config)}};
    if (open_spm(&x, &f, &err) < 0) fail_msg("%s: %s", name, err.text);
    check_cases(&x, json_object_get(root, "cases"));
    kit_close(&x);
    free_file(f.model);
    free(config);
    json_decref(root);
}

/* ---- small models, put together field by field ---- */

static void put_varint(buf *b, uint64_t v)
{
    for (; v > 127; v >>= 7) buf_putc(b, (char)(v | 128));
    buf_putc(b, (char)v);
}
static void put_number(buf *b, uint32_t field, uint64_t v)
{
    put_varint(b, field << 3);
    put_varint(b, v);
}
static void put_bytes(buf *b, uint32_t field, const void *p, size_t n)
{
    put_varint(b, field << 3 | 2);
    put_varint(b, n);
    buf_put(b, p, n);
}
static void put_piece(buf *b, const char *text, float score, uint32_t type)
{
    buf m;
    buf_init(&m, &mem_libc);
    put_bytes(&m, 1, text, strlen(text));
    put_varint(&m, 2 << 3 | 5);
    buf_put(&m, &score, 4);
    if (type != 1) put_number(&m, 3, type);
    put_bytes(b, 1, m.data, m.len);
    buf_free(&m);
}
/* A sub-message of one number. */
static void put_setting(buf *b, uint32_t sub, uint32_t field, uint64_t v)
{
    buf m;
    buf_init(&m, &mem_libc);
    put_number(&m, field, v);
    put_bytes(b, sub, m.data, m.len);
    buf_free(&m);
}
/* <unk> <s> </s>, then "▁ a b ▁a ab" from id 3; BPE; settings that come twice are merged. */
static buf small_model(void)
{
    buf b;
    buf_init(&b, &mem_libc);
    put_piece(&b, "<unk>", 0, 2);
    put_piece(&b, "<s>", 0, 3);
    put_piece(&b, "</s>", 0, 3);
    put_piece(&b, "▁", -3, 1);
    put_piece(&b, "a", -4, 1);
    put_piece(&b, "b", -5, 1);
    put_piece(&b, "▁a", -2, 1);
    put_piece(&b, "ab", -1, 1);
    put_setting(&b, 2, 3, 1);
    put_setting(&b, 2, 3, 2);
    put_setting(&b, 3, 4, 0);
    return b;
}

static spm_file text_file(const char *s) { return (spm_file){s, s ? strlen(s) : 0}; }
static spm_files around(const buf *model, const char *config, const char *special, const char *added)
{
    return (spm_files){{model->data, model->len}, text_file(config), text_file(special), text_file(added)};
}

/* Fails unless text has these ids, ended by -1, with special ones. */
static void expect_ids(const spm_files *f, const char *text, const int32_t *want)
{
    kit x;
    tess_error err;
    tok_ids ids = {0};
    if (open_spm(&x, f, &err) < 0) fail_msg("%s", err.text);
    if (tok_encode(x.t, text, strlen(text), TESS_TOK_ADD_SPECIAL, NULL, 0, &ids, &err) < 0) fail_msg("%s", err.text);
    for (size_t i = 0; i <= ids.n; i++)
        if (i == ids.n ? want[i] != -1 : want[i] != ids.ids[i])
            fail_msg("\"%s\": id %zu of %zu is %d, not %d", text, i, ids.n, i < ids.n ? ids.ids[i] : -1, want[i]);
    tok_ids_free(x.t, &ids);
    kit_close(&x);
}
#define IDS(...) ((const int32_t[]){__VA_ARGS__, -1})

static void options_of_the_files_around(void **state)
{
    (void)state;
    buf b = small_model();
    spm_files f = around(&b, NULL, NULL, NULL);
    expect_ids(&f, "ab a", IDS(1, 3, 7, 6)); /* "ab" has the best score */
    expect_ids(&f, "a<s>a", IDS(1, 6, 1, 6));
    expect_ids(&f, "", IDS(1));
    f = around(&b, "{\"add_bos_token\":false,\"add_eos_token\":true}", NULL, NULL);
    expect_ids(&f, "a", IDS(6, 2));
    f = around(&b, "{\"legacy\":false}", NULL, NULL);
    expect_ids(&f, "a<s>a", IDS(1, 6, 1, 4));
    f = around(&b, "{\"add_prefix_space\":false}", NULL, NULL);
    expect_ids(&f, "a a", IDS(1, 4, 6));
    f = around(&b, "{\"bos_token\":null}", NULL, NULL);
    expect_ids(&f, "a", IDS(6));
    f = around(&b, "{\"bos_token\":{\"content\":\"</s>\"}}", NULL, NULL);
    expect_ids(&f, "a", IDS(2, 6));
    f = around(&b, NULL, "{\"additional_special_tokens\":[\"<x>\",\"ab\"],\"pad_token\":\"<p>\"}", "{\"<x>\":9,\"<y>\":8}");
    expect_ids(&f, "a<x><y>ab<p>", IDS(1, 6, 9, 8, 7, 10));
    f = around(&b, "{\"added_tokens_decoder\":{\"5\":{\"content\":\"<r>\",\"special\":true}}}", NULL, "{\"<x>\":9}");
    expect_ids(&f, "a<r>", IDS(1, 6, 5));
    f = around(&b, "{\"tokenizer_class\":\"LlamaTokenizerFast\"}", NULL, NULL);
    expect_ids(&f, "a", IDS(1, 6));
    /* found in the text as it is, though it says "normalized": normalized it would have the prefix */
    f = around(&b, "{\"added_tokens_decoder\":{\"8\":{\"content\":\"<n>\",\"normalized\":true}}}", NULL, NULL);
    expect_ids(&f, "a<n>", IDS(1, 6, 8));
    put_piece(&b, "ba", -1, 1); /* id 8; of "ab" and "ba", which have the same score, the lower id is first */
    f = around(&b, NULL, NULL, NULL);
    expect_ids(&f, " aba", IDS(1, 3, 3, 7, 4));
    buf_free(&b);
}

static void refused(const spm_files *f, const char *needle)
{
    kit x;
    tess_error err;
    if (open_spm(&x, f, &err) == TESS_OK) fail_msg("accepted, wanted \"%s\"", needle);
    if (!strstr(err.text, needle)) fail_msg("wanted \"%s\" in: %s", needle, err.text);
}
/* The small model with one more field behind it. */
static void refused_with(void (*add)(buf *b), const char *needle)
{
    buf b = small_model();
    add(&b);
    spm_files f = around(&b, NULL, NULL, NULL);
    refused(&f, needle);
    buf_free(&b);
}

static void add_word_model(buf *b) { put_setting(b, 2, 3, 3); }
static void add_suffix(buf *b) { put_setting(b, 2, 24, 1); }
static void add_denormalizer(buf *b) { put_bytes(b, 5, "\x12\x01x", 3); }
static void add_twin(buf *b) { put_piece(b, "ab", 0, 1); }
static void add_unknown(buf *b) { put_piece(b, "?", 0, 2); }
static void add_empty(buf *b) { put_piece(b, "", 0, 1); }
static void add_latin1(buf *b) { put_piece(b, "\xe9", 0, 1); }
static void add_nan(buf *b) { put_piece(b, "c", (float)NAN, 1); }
static void add_type(buf *b) { put_piece(b, "c", 0, 7); }
static void add_large_type(buf *b)
{
    put_bytes(b, 1,
              "\x0a\x01"
              "c\x18\x81\x80\x80\x80\x10",
              9);
} /* 2^32 + 1 */
static void add_number_for_text(buf *b) { put_bytes(b, 1, "\x08\x01", 2); }
static void add_number_for_piece(buf *b) { put_number(b, 1, 5); }
static void add_long(buf *b)
{
    buf_put(b,
            "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
            "abc",
            14);
}
static void add_long_varint(buf *b) { buf_put(b, "\x30\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12); }
static void add_group(buf *b) { put_varint(b, 6 << 3 | 3); }
static void add_field_zero(buf *b) { put_number(b, 0, 1); }
static void add_charsmap(buf *b) { put_bytes(b, 3, "\x12\x05\xff\x00\x00\x00y", 7); }

static void refuses_bad_models(void **state)
{
    static const struct {
        void (*add)(buf *b);
        const char *needle;
    } bad[] = {{add_word_model, "model type 3"},
               {add_suffix, "treat_whitespace_as_suffix"},
               {add_denormalizer, "denormalizer"},
               {add_twin, "\"ab\" comes twice"},
               {add_unknown, "second piece of type unknown"},
               {add_empty, "without a text"},
               {add_latin1, "without a text"},
               {add_nan, "without a finite score"},
               {add_type, "unknown type"},
               {add_large_type, "unknown type"},
               {add_number_for_text, "another type"},
               {add_number_for_piece, "another type"},
               {add_long, "bad field"},
               {add_long_varint, "bad field"},
               {add_group, "bad field"},
               {add_field_zero, "bad field"},
               {add_charsmap, "character map is not a trie"}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) refused_with(bad[i].add, bad[i].needle);
    spm_files f = {.model = text_file("IQ== 0\nIg== 1\n")};
    refused(&f, "tiktoken");
    f.model = (spm_file){"", 0};
    refused(&f, "no pieces");
    f.model = text_file("version https://git-lfs.github.com/spec/v1\n");
    refused(&f, "is no SentencePiece model: bad field at offset");
}

static void refuses_bad_files_around(void **state)
{
    (void)state;
    buf b = small_model();
    static const struct {
        const char *config, *added, *needle;
    } bad[] = {{"[]", NULL, "tokenizer_config.json"},
               {"{\"add_bos_token\":1}", NULL, "tokenizer_config.json: add_bos_token is not true or false"},
               {"{\"tokenizer_class\":\"T5TokenizerFast\"}", NULL, "\"T5TokenizerFast\""},
               {"{\"tokenizer_class\":\"CamembertTokenizer\"}", NULL, "tokenizer.json is needed"},
               {"{\"added_tokens_decoder\":{\"x\":{\"content\":\"y\"}}}", NULL, "added_tokens_decoder.x"},
               {"{\"added_tokens_decoder\":{\"9\":{}}}", NULL, "added_tokens_decoder.9"},
               {"{\"added_tokens_decoder\":{\"-1\":{\"content\":\"y\"}}}", NULL, "id -1"},
               {"{\"added_tokens_decoder\":{\"99999999999\":{\"content\":\"y\"}}}", NULL, "id 99999999999"},
               {"{\"added_tokens_decoder\":{\"9\":{\"content\":\"\"}}}", NULL, "no text"},
               {"{\"added_tokens_decoder\":{\"9\":{\"content\":\"ab\"}}}", NULL, "has id 9 there and 7"},
               {"{\"added_tokens_decoder\":{\"4\":{\"content\":\"ab\"}}}", NULL, "has id 4 there and 7"},
               {NULL, "{\"y\":\"z\"}", "added_tokens.json: \"y\" is not an id"},
               {NULL, "{\"y\":1.5}", "is not an id"},
               {NULL, "{\"y\":", "added_tokens.json"}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        spm_files f = around(&b, bad[i].config, NULL, bad[i].added);
        refused(&f, bad[i].needle);
    }
    buf_free(&b);
}

/* ---- memory that runs out ---- */

typedef struct {
    long left;
    size_t live;
} purse;
static void *purse_alloc(void *user, size_t size, size_t align)
{
    purse *p = user;
    if (p->left-- <= 0) return NULL;
    void *q = aligned_alloc(align, (size + align - 1) / align * align);
    p->live += q != NULL;
    return q;
}
static void purse_release(void *user, void *ptr, size_t size)
{
    purse *p = user;
    UNUSED(size);
    p->live -= ptr != NULL;
    free(ptr);
}

static void every_allocation_may_fail(void **state)
{
    static const char *const names[] = {"bpe-plain", "unigram-plain"};
    (void)state;
    for (size_t n = 0; n < ARRAY_LEN(names); n++) {
        spm_files f = {.model = read_file(names[n]), .added = text_file("{\"<more>\":400}")};
        tess_status st = TESS_E_NOMEM;
        long allowed = 0;
        for (; st < 0; allowed++) {
            purse p = {.left = allowed};
            mem m = {.user = &p, .alloc = purse_alloc, .release = purse_release};
            kvs_builder *b;
            tess_error err;
            assert_true(kvs_builder_open(&mem_libc, &b, &err) == TESS_OK);
            st = spm_tokenizer_put(&m, &f, b, &err);
            if (st < 0 && st != TESS_E_NOMEM) fail_msg("%ld allocations: %s", allowed, err.text);
            if (p.live) fail_msg("%ld allocations: %zu blocks are not given back", allowed, p.live);
            kvs_builder_close(b);
            assert_true(allowed < 10000);
        }
        assert_true(allowed > 10);
        free_file(f.model);
    }
}

/* Every cut and many changed bytes of real models: refused, or a tokenizer that works. */
static void survives_changes(void **state)
{
    static const char *const names[] = {"bpe-plain", "unigram-user"};
    static const char text[] = "The quick <tool> \xe2\x96\x81[x] caf\xc3\xa9 \xef\xbc\xa1";
    uint64_t seed = 1;
    uint32_t opened = 0;
    kit x;
    (void)state;
    for (size_t n = 0; n < ARRAY_LEN(names); n++) {
        spm_files f = {.model = read_file(names[n])};
        size_t whole = f.model.len;
        char *data = (char *)(uintptr_t)f.model.data;
        for (size_t i = 0; i < 3000; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            size_t at = (size_t)(seed >> 33) % whole;
            char old = data[at];
            f.model.len = i < 600 ? at : whole;
            data[at] = (char)(i % 2 ? seed >> 17 : (uint64_t)old ^ 1u << (seed >> 61));
            if (open_spm(&x, &f, NULL) == TESS_OK) {
                tok_ids ids = {0};
                assert_true(tok_encode(x.t, text, sizeof text - 1, TESS_TOK_ADD_SPECIAL, NULL, 0, &ids, NULL) == TESS_OK);
                tok_ids_free(x.t, &ids);
                kit_close(&x);
                opened++;
            }
            data[at] = old;
        }
        free_file(f.model);
    }
    assert_true(opened > 100);
}

int main(void)
{
    static char names[][16] = {"bpe-llama", "bpe-gemma", "bpe-plain", "bpe-first", "bpe-more", "unigram-plain", "unigram-user"};
    struct CMUnitTest tests[ARRAY_LEN(names) + 5] = {[ARRAY_LEN(names)] = cmocka_unit_test(options_of_the_files_around),
                                                     cmocka_unit_test(refuses_bad_models),
                                                     cmocka_unit_test(refuses_bad_files_around),
                                                     cmocka_unit_test(survives_changes),
                                                     cmocka_unit_test(every_allocation_may_fail)};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        tests[i] = (struct CMUnitTest){.name = names[i], .test_func = same_as_transformers, .initial_state = names[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
