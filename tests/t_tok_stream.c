/*
 * t_tok_stream.c - streamed text: whole characters only, joined pieces equal to the batch decode, stop strings, every kind of
 * decoder.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tok_kit.h"

static kit open_text(const char *json)
{
    kit x;
    tess_error e = {0};
    if (kit_open(&x, json, strlen(json), &e) < 0) fail_msg("%s", e.text);
    return x;
}
static kit open_bytes(const char *const *merges)
{
    kit x;
    tess_error e = {0};
    if (kit_byte_level(&x, merges, NULL, "", BYTE_LEVEL_REST, &e) < 0) fail_msg("%s", e.text);
    return x;
}
static kit open_pieces(void)
{
    kit x;
    tess_error e = {0};
    if (kit_pieces(&x, "", &e) < 0) fail_msg("%s", e.text);
    return x;
}

static void expect(const char *text, size_t len, const char *want)
{
    if (len != strlen(want) || (len && memcmp(text, want, len) != 0)) fail_msg("piece \"%.*s\", not \"%s\"", (int)len, text, want);
}

/* Pushes n ids; want[i] is the piece after id i, want[n] what the flush gives. */
static void check_pieces(const kit *x, const int32_t *ids, size_t n, const char *const *want)
{
    tok_stream *s;
    const char *text;
    size_t len;
    bool stopped;
    assert_int_equal(tok_stream_open(x->t, 0, NULL, 0, &s, NULL), TESS_OK);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(tok_stream_push(s, ids[i], &text, &len, &stopped, NULL), TESS_OK);
        assert_false(stopped);
        expect(text, len, want[i]);
    }
    assert_int_equal(tok_stream_flush(s, &text, &len, NULL), TESS_OK);
    expect(text, len, want[n]);
    assert_int_equal(tok_stream_flush(s, &text, &len, NULL), TESS_OK);
    assert_int_equal(len, 0);
    tok_stream_close(s);
}

static void check_joined(const kit *x, const int32_t *ids, size_t n, uint32_t flags)
{
    buf batch, joined;
    buf_init(&batch, &mem_libc);
    buf_init(&joined, &mem_libc);
    assert_int_equal(tok_decode(x->t, ids, n, flags, &batch, NULL), TESS_OK);
    tok_stream *s;
    const char *text;
    size_t len;
    bool stopped;
    assert_int_equal(tok_stream_open(x->t, flags, NULL, 0, &s, NULL), TESS_OK);
    for (int round = 0; round < 2; round++) { /* a flush makes the stream new */
        joined.len = 0;
        for (size_t i = 0; i <= n; i++) {
            if (i < n) assert_int_equal(tok_stream_push(s, ids[i], &text, &len, &stopped, NULL), TESS_OK);
            else assert_int_equal(tok_stream_flush(s, &text, &len, NULL), TESS_OK);
            assert_true(len == 0 || utf8_valid(text, len));
            assert_true(buf_put(&joined, text, len));
        }
        if (batch.len != joined.len || (batch.len && memcmp(batch.data, joined.data, batch.len) != 0))
            fail_msg("batch \"%.*s\", stream \"%.*s\"", (int)batch.len, batch.data, (int)joined.len, joined.data);
    }
    tok_stream_close(s);
    buf_free(&batch);
    buf_free(&joined);
}
#define N_OF(...) (sizeof((const int32_t[]){__VA_ARGS__}) / 4)
#define JOINED(x, ...) check_joined(x, (const int32_t[]){__VA_ARGS__}, N_OF(__VA_ARGS__), 0)

static void byte_level(void **state)
{
    UNUSED(state);
    static const char *const merges[] = {"ð Ł", "ĺ Ģ", NULL}; /* U+1F600 in two tokens */
    kit x = open_bytes(merges);
    check_pieces(&x, (const int32_t[]){71, 72, 220, 256, 257, 0}, 6, (const char *const[]){"h", "i", " ", "", "😀", "!", ""});
    check_pieces(&x, (const int32_t[]){71, 256}, 2, (const char *const[]){"h", "", "\xef\xbf\xbd"});
    check_pieces(&x, (const int32_t[]){257, 71}, 2,
                 (const char *const[]){"\xef\xbf\xbd\xef\xbf\xbd", "h", ""}); /* a prompt ended inside a character */
    JOINED(&x, 71, 256, 71, 256, 256, 257, 257, 172, 0);
    kit_close(&x);
}

static void pieces(void **state)
{
    UNUSED(state);
    kit x = open_pieces();
    check_pieces(&x, (const int32_t[]){268, 259, 243, 162, 155, 131, 13, 260, 261, 262, 262, 263}, 12,
                 (const char *const[]){"hello", " ", "", "", "", "😀", "\n", "h", "e", "l", "l", "o", ""});
    check_pieces(&x, (const int32_t[]){268, 268}, 2, (const char *const[]){"hello", " hello", ""});
    check_pieces(&x, (const int32_t[]){243, 162, 260}, 3, (const char *const[]){"", "", "\xef\xbf\xbd\xef\xbf\xbdh", ""});
    check_pieces(&x, (const int32_t[]){243, 162}, 2, (const char *const[]){"", "", "\xef\xbf\xbd\xef\xbf\xbd"});
    JOINED(&x, 268, 259, 243, 162, 155, 131, 13, 260, 261, 262, 262, 263);
    JOINED(&x, 259, 268, 1, 268, 2);
    JOINED(&x, 200, 13, 100, 260, 13); /* bad from the first byte on */
    JOINED(&x, 259, 259, 0, 259);
    check_joined(&x, (const int32_t[]){1, 268, 243, 2}, 4, TESS_DETOK_SPECIAL);
    kit_close(&x);
}

/* A vocabulary of words under any decoder. */
#define WORDS(decoder) \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"ab\":0,\"▁ab\":1,\"▁\":2,\"##c\":3,\"d</w>\":4,\"e\":5,\".\":6,\"n't\":7," \
    "\"<0x41>\":8,\"<0xE2>\":9,\"  x \":10,\" \":11,\"xy\":12,\"x\":13},\"merges\":[]}" decoder "}"

static void check_decoder(const char *decoder)
{
    char json[1200];
    snprintf(json, sizeof json, WORDS("%s"), decoder);
    kit x = open_text(json);
    uint32_t seed = 5;
    for (int round = 0; round < 300; round++) {
        int32_t ids[12];
        size_t n = 0;
        seed = seed * 1664525u + 1013904223u;
        for (uint32_t k = seed >> 16; n < (seed >> 8) % 12; k = k * 75 + 74) ids[n++] = (int32_t)(k % 14);
        bool valid_then_bad = false; /* the one case where a stream can not equal the batch */
        for (size_t i = 0; i + 1 < n; i++) valid_then_bad = valid_then_bad || (ids[i] == 8 && ids[i + 1] == 9);
        if (!valid_then_bad) check_joined(&x, ids, n, 0);
    }
    kit_close(&x);
}

static void every_decoder(void **state)
{
    UNUSED(state);
    check_decoder("");
    check_decoder(",\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"▁\",\"prepend_scheme\":\"always\",\"split\":true}");
    check_decoder(",\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"▁\",\"prepend_scheme\":\"never\",\"split\":true}");
    check_decoder(",\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}");
    check_decoder(",\"decoder\":{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"}");
    check_decoder(",\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":1}");
    check_decoder(",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[]}");
    check_decoder(",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
                  "\",\"start\":2,\"stop\":2}]}");
    check_decoder(
        ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Replace\","
        "\"pattern\":{\"String\":\"xy\"},\"content\":\"-\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":0,\"stop\":1}]}");
    check_decoder(",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Replace\",\"pattern\":{"
                  "\"Regex\":\"x+\"},\"content\":\"-\"},"
                  "{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true},{\"type\":\"Metaspace\",\"replacement\":\"▁\"},{"
                  "\"type\":\"ByteFallback\"}]}");
    check_decoder(
        ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteLevel\"},{\"type\":\"BPEDecoder\",\"suffix\":\"b\"}]}");
}

static void known_decodes(void **state)
{
    UNUSED(state);
    static const struct { const char *decoder, *want; } cases[] = {
        {"", "ab ##c . n't"},
        {",\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}", "abc.n't"},
        {",\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":false}", "abc . n't"},
        {",\"decoder\":{\"type\":\"Fuse\"}", "ab##c.n't"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char json[1200];
        snprintf(json, sizeof json, WORDS("%s"), cases[i].decoder);
        kit x = open_text(json);
        buf o;
        buf_init(&o, &mem_libc);
        assert_int_equal(tok_decode(x.t, (const int32_t[]){0, 3, 6, 7}, 4, 0, &o, NULL), TESS_OK);
        expect(o.data, o.len, cases[i].want);
        buf_free(&o);
        kit_close(&x);
    }
}

/* ---- stop strings ---- */

/* Streams text, one character per id, into *got; true when a stop string ended it. */
static bool stream_text(const kit *x, const char *text, const char *const *stop, uint32_t n_stop, bool flush, buf *got)
{
    tok_ids ids = {0};
    tok_stream *s;
    const char *piece;
    size_t len;
    bool stopped = false;
    got->len = 0;
    assert_int_equal(tok_encode(x->t, text, strlen(text), 0, NULL, 0, &ids, NULL), TESS_OK);
    assert_int_equal(tok_stream_open(x->t, 0, stop, n_stop, &s, NULL), TESS_OK);
    for (size_t i = 0; i < ids.n && !stopped; i++) {
        assert_int_equal(tok_stream_push(s, ids.ids[i], &piece, &len, &stopped, NULL), TESS_OK);
        assert_true(buf_put(got, piece, len));
    }
    if (stopped) { /* nothing comes after */
        assert_int_equal(tok_stream_push(s, 65, &piece, &len, &stopped, NULL), TESS_OK);
        assert_true(stopped && len == 0);
    }
    if (flush) {
        assert_int_equal(tok_stream_flush(s, &piece, &len, NULL), TESS_OK);
        assert_true(buf_put(got, piece, len));
    }
    assert_true(buf_putc(got, 0));
    tok_stream_close(s);
    tok_ids_free(x->t, &ids);
    return stopped;
}

static void stop_strings(void **state)
{
    UNUSED(state);
    kit x = open_bytes(NULL);
    buf got;
    buf_init(&got, &mem_libc);
    const char *one[] = {"bHb"}, *never[] = {"bHx"}, *two[] = {"bHb", "Lb"}, *nested[] = {"b", "Hb", "LbHb"};
    assert_true(stream_text(&x, "lYLbHbFA", one, 1, true, &got));
    assert_string_equal(got.data, "lYL");
    assert_false(stream_text(&x, "lYLbHbFA", never, 1, true, &got));
    assert_string_equal(got.data, "lYLbHbFA");
    assert_false(stream_text(&x, "lYLbH", never, 1, false, &got));
    assert_string_equal(got.data, "lYL"); /* "bH" waits */
    assert_false(stream_text(&x, "lYLbH", never, 1, true, &got));
    assert_string_equal(got.data, "lYLbH");
    assert_true(stream_text(&x, "lYLbHbFA", two, 2, true, &got));
    assert_string_equal(got.data, "lY");
    assert_true(stream_text(&x, "HHbb", nested, 3, true, &got));
    assert_string_equal(got.data, "H"); /* "b" and "Hb" end at once: the longer one counts */
    const char *repeat[] = {"aab"};
    assert_true(stream_text(&x, "aaaab", repeat, 1, true, &got));
    assert_string_equal(got.data, "aa");
    buf_free(&got);
    tok_stream *s;
    const char *empty[] = {""};
    assert_int_equal(tok_stream_open(x.t, 0, empty, 1, &s, NULL), TESS_E_ARG);
    assert_null(s);
    kit_close(&x);
}

/* A push costs the same however much came before. */
static void long_stream(void **state)
{
    UNUSED(state);
    kit x = open_pieces();
    const char *stop[] = {"hellohello"}, *text;
    tok_stream *s;
    size_t len, total = 0;
    bool stopped;
    assert_int_equal(tok_stream_open(x.t, 0, stop, 1, &s, NULL), TESS_OK);
    for (int i = 0; i < 1000000; i++) {
        assert_int_equal(tok_stream_push(s, i % 3 ? 268 : 13, &text, &len, &stopped, NULL), TESS_OK);
        total += len;
    }
    assert_int_equal(tok_stream_flush(s, &text, &len, NULL), TESS_OK);
    assert_int_equal(total + len, 333334 + 666666 * 6);
    tok_stream_close(s);
    kit_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(byte_level),    cmocka_unit_test(pieces),
                                       cmocka_unit_test(every_decoder), cmocka_unit_test(known_decodes),
                                       cmocka_unit_test(stop_strings),  cmocka_unit_test(long_stream)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
