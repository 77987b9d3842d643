/*
 * tok_golden.h - for tests: compares a tokenizer with a list of cases {"text", "ids", "ids_special", "decoded", "decoded_special"}.
 * Decoded are the ids with special tokens, streamed as well as at once.
 */
#ifndef TESS_TOK_GOLDEN_H
#define TESS_TOK_GOLDEN_H
#include <jansson.h>

#include "tessera.h"
#include "tok_kit.h"

/* Fails with the name of the tokenizer, the text and what was wanted. */
static inline void check_ids(const kit *x, const json_t *c, const char *key, uint32_t flags)
{
    const json_t *text = json_object_get(c, "text"), *want = json_object_get(c, key);
    tok_ids ids = {0};
    tess_error err;
    if (tok_encode(x->t, json_string_value(text), json_string_length(text), flags, NULL, 0, &ids, &err) < 0)
        fail_msg("%s", err.text);
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

static inline void check_text(const buf *got, const json_t *c, const char *key, const char *how)
{
    const json_t *want = json_object_get(c, key);
    size_t n = json_string_length(want);
    if (got->len == n && (n == 0 || memcmp(got->data, json_string_value(want), n) == 0)) return;
    char *dump = json_dumps(c, JSON_COMPACT | JSON_ENSURE_ASCII);
    print_error("%s, %s of %.600s\ngot %.*s\n", key, how, dump, (int)got->len, got->data ? got->data : "");
    free(dump);
    fail();
}

static inline void check_decode(const kit *x, const json_t *c, const char *key, uint32_t flags)
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

static inline void check_cases(const kit *x, const json_t *cases)
{
    assert_true(json_array_size(cases) > 40);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        check_ids(x, c, "ids", 0);
        check_ids(x, c, "ids_special", TESS_TOK_ADD_SPECIAL);
        check_decode(x, c, "decoded", 0);
        check_decode(x, c, "decoded_special", TESS_DETOK_SPECIAL);
    }
}
#endif
