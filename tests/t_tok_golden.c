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

#include "tok_golden.h"
#include "tok_keys.h"

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
    check_cases(&x, cases);
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

/* Scores that tokenizers reads a unit in the last place off; read exactly, both texts would be cut the other way round. */
static void scores_are_rounded_twice(void **state)
{
    (void)state;
    static const struct {
        const char *vocab, *text;
        int32_t want[4];
        size_t n;
    } cases[] = {
        {"[\"<unk>\",-20.0],[\"a\",-9.845830943105783],[\"aa\",-10.6341549699121]", "aaaaa", {1, 2, 2}, 3},
        {"[\"<unk>\",-20.0],[\"a\",-9.067041303026379],[\"aa\",-2.9947107078410737]", "aaaaa", {2, 2, 1}, 3},
        {"[\"<unk>\",-20.0],[\"a\",-6.475409381397345],[\"aa\",-10.323477347046595],[\"b\",-2.089585152567131]", "baaaaa", {3, 2, 2, 1}, 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[400];
        kit x;
        tok_ids ids = {0};
        tess_error e;
        snprintf(json, sizeof json, "{\"version\":\"1.0\",\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[%s]}}", cases[i].vocab);
        if (kit_open(&x, json, strlen(json), &e) < 0) fail_msg("%s", e.text);
        assert_int_equal(tok_encode(x.t, cases[i].text, strlen(cases[i].text), 0, NULL, 0, &ids, &e), TESS_OK);
        assert_int_equal(ids.n, cases[i].n);
        assert_memory_equal(ids.ids, cases[i].want, ids.n * sizeof *ids.ids);
        tok_ids_free(x.t, &ids);
        kit_close(&x);
    }
}

int main(void)
{
    static char names[][24] = {"unigram-xlmr", "unigram-t5", "unigram-albert", "unigram-bytes", "bpe-deepseek", "bpe-o200k",
                               "bpe-llama3",   "bpe-falcon", "spm-llama2",     "spm-gemma",     "wordpiece-uncased", "wordpiece-cased"};
    struct CMUnitTest tests[ARRAY_LEN(names) + 2] = {[ARRAY_LEN(names)] = cmocka_unit_test(damaged_charsmap),
                                                [ARRAY_LEN(names) + 1] = cmocka_unit_test(scores_are_rounded_twice)};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        tests[i] = (struct CMUnitTest){.name = names[i], .test_func = same_as_tokenizers, .initial_state = names[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
