/*
 * t_tok_golden.c - small tokenizers of every kind that model families use (tests/data/tok, made by tests/tools/make-tokenizers.py)
 * against what the tokenizers library made of the same texts: ids without and with special tokens, decoded text, streamed text.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>

#include "tessera.h"
#include "tok_keys.h"
#include "tok_kit.h"

/* Fails with the name of the tokenizer, the text and what was wanted. */
static void check_ids(const kit *x, const json_t *c, const char *key, uint32_t flags)
{
    const json_t *text = json_object_get(c, "text"), *want = json_object_get(c, key);
    tok_ids ids = {0};
    tess_error err;
    if (tok_encode(x->t, json_string_value(text), json_string_length(text), flags, NULL, 0, &ids, &err) < 0) fail_msg("%s", err.text);
    bool same = ids.n == json_array_size(want);
    for (size_t i = 0; same && i < ids.n; i++) same = ids.ids[i] == json_integer_value(json_array_get(want, i));
    if (!same) {
        char *dump = json_dumps(c, JSON_COMPACT | JSON_ENSURE_ASCII);
        print_error("%s of %.600s\ngot %zu:", key, dump, ids.n);
        for (size_t i = 0; i < ids.n; i++) print_error(" %d", ids.ids[i]);
        print_error("\n");
        free(dump);
        fail();
    }
    tok_ids_free(x->t, &ids);
}

static void check_text(const buf *got, const json_t *c, const char *key, const char *how)
{
    const json_t *want = json_object_get(c, key);
    size_t n = json_string_length(want);
    if (got->len == n && (n == 0 || memcmp(got->data, json_string_value(want), n) == 0)) return;
    char *dump = json_dumps(c, JSON_COMPACT | JSON_ENSURE_ASCII);
    print_error("%s, %s of %.600s\ngot %.*s\n", key, how, dump, (int)got->len, got->data ? got->data : "");
    free(dump);
    fail();
}

static void check_decode(const kit *x, const json_t *c, const char *key, uint32_t flags)
{
    const json_t *list = json_object_get(c, "ids_special");
    size_t n = json_array_size(list), len;
    int32_t ids[1024];
    buf out;
    tok_stream *s;
    const char *text;
    bool stopped = false;
    tess_error err;
    buf_init(&out, &mem_libc);
    assert_true(n <= 1024);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    if (tok_decode(x->t, ids, n, flags, &out, &err) < 0) fail_msg("%s", err.text);
    check_text(&out, c, key, "at once");
    out.len = 0;
    assert_true(tok_stream_open(x->t, flags, NULL, 0, &s, &err) == TESS_OK);
    for (size_t i = 0; i < n; i++) {
        assert_true(tok_stream_push(s, ids[i], &text, &len, &stopped, &err) == TESS_OK && !stopped);
        assert_true(buf_put(&out, text, len));
    }
    assert_true(tok_stream_flush(s, &text, &len, &err) == TESS_OK && buf_put(&out, text, len));
    tok_stream_close(s);
    check_text(&out, c, key, "streamed");
    buf_free(&out);
}

static void same_as_tokenizers(void **state)
{
    const char *name = *state;
    char path[256];
    json_error_t why;
    snprintf(path, sizeof path, "tests/data/tok/%s.json", name);
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &why);
    if (!root) fail_msg("%s: %s", path, why.text);
    char *made = json_dumps(json_object_get(root, "tokenizer"), JSON_COMPACT);
    json_t *cases = json_object_get(root, "cases");
    kit x;
    tess_error err;
    if (kit_open(&x, made, strlen(made), &err) < 0) fail_msg("%s: %s", name, err.text);
    assert_true(json_array_size(cases) > 40);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        check_ids(&x, c, "ids", 0);
        check_ids(&x, c, "ids_special", TESS_TOK_ADD_SPECIAL);
        check_decode(&x, c, "decoded", 0);
        check_decode(&x, c, "decoded_special", TESS_DETOK_SPECIAL);
    }
    kit_close(&x);
    free(made);
    json_decref(root);
}

/* Units of the trie with any bits: texts are tokenized to something, and nothing outside the table is read. */
static void damaged_charsmap(void **state)
{
    (void)state;
    json_error_t why;
    json_t *root = json_load_file("tests/data/tok/unigram-xlmr.json", JSON_ALLOW_NUL, &why);
    assert_non_null(root);
    char *made = json_dumps(json_object_get(root, "tokenizer"), JSON_COMPACT);
    json_t *cases = json_object_get(root, "cases");
    kit x;
    uint64_t n, seed = 1;
    assert_true(kit_open(&x, made, strlen(made), NULL) == TESS_OK);
    uint32_t *units = (uint32_t *)(uintptr_t)kvs_array(&x.k, TOK_K_CHARSMAP, KV_U32S, &n);
    assert_true(units && n > 100);
    for (int round = 0; round < 400; round++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint32_t at = round % 4 ? (uint32_t)(seed >> 33) % (uint32_t)n : 0, old = units[at];
        units[at] = round % 2 ? (uint32_t)(seed >> 17) : old ^ 1u << (seed >> 59);
        for (size_t i = 0; i < json_array_size(cases); i++) {
            const json_t *text = json_object_get(json_array_get(cases, i), "text");
            tok_ids ids = {0};
            assert_true(tok_encode(x.t, json_string_value(text), json_string_length(text), 0, NULL, 0, &ids, NULL) == TESS_OK);
            tok_ids_free(x.t, &ids);
        }
        units[at] = old;
    }
    kit_close(&x);
    free(made);
    json_decref(root);
}

int main(void)
{
    static char names[][24] = {"unigram-xlmr", "unigram-t5", "unigram-albert", "unigram-bytes", "bpe-deepseek", "bpe-o200k",
                               "bpe-llama3",   "bpe-falcon", "spm-llama2",     "spm-gemma",     "wordpiece-uncased", "wordpiece-cased"};
    struct CMUnitTest tests[ARRAY_LEN(names) + 1] = {[ARRAY_LEN(names)] = cmocka_unit_test(damaged_charsmap)};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        tests[i] = (struct CMUnitTest){.name = names[i], .test_func = same_as_tokenizers, .initial_state = names[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
