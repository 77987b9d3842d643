/*
 * fuzz_tok.c - libFuzzer: the tokenizer. The first byte chooses: a tokenizer.json (the bytes up to a zero byte) and a text, or a
 * text for one of three fixed tokenizers, with plain spans from the second byte on. Ids must be in range, a byte-level
 * decode must give the text back (U+FFFD for what is not UTF-8), and a stream must join to the batch.
 */
#include "../tok_kit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok) __builtin_trap();
}

static void valid_copy(buf *o, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp, len = utf8_decode(s + i, n - i, &cp);
        must(len ? buf_put(o, s + i, len) : buf_put(o, "\xef\xbf\xbd", 3));
        i += len ? len : utf8_bad_len(s + i, n - i);
    }
}

static void check_stream(const kit *x, const tok_ids *ids, const buf *batch)
{
    tok_stream *s;
    const char *stop[] = {"\x01\x02never", "zz\x01"}, *text;
    size_t len;
    bool stopped = false;
    buf joined;
    buf_init(&joined, &mem_libc);
    must(tok_stream_open(x->t, TESS_DETOK_SPECIAL, stop, 2, &s, NULL) == TESS_OK);
    for (size_t i = 0; i < ids->n && !stopped; i++) {
        must(tok_stream_push(s, ids->ids[i], &text, &len, &stopped, NULL) == TESS_OK);
        must(utf8_valid(text, len));
        must(buf_put(&joined, text, len));
    }
    must(tok_stream_flush(s, &text, &len, NULL) == TESS_OK);
    must(buf_put(&joined, text, len));
    if (!stopped) must(joined.len == batch->len && (batch->len == 0 || memcmp(joined.data, batch->data, batch->len) == 0));
    tok_stream_close(s);
    buf_free(&joined);
}

static void run_text(const kit *x, const char *text, size_t n, uint8_t spans, bool exact)
{
    tok_span plain[2] = {{n / 4, spans % 16u}, {n / 2, spans / 16u}};
    size_t n_plain = 0;
    while (n_plain < 2 && plain[n_plain].off + plain[n_plain].len <= (n_plain ? n : n / 2)) n_plain++;
    tok_ids ids = {0};
    buf batch, want;
    buf_init(&batch, &mem_libc);
    buf_init(&want, &mem_libc);
    tess_status st = tok_encode(x->t, text, n, TESS_TOK_ADD_SPECIAL, plain, n_plain, &ids, NULL);
    must(st == TESS_OK || !exact);
    for (size_t i = 0; i < ids.n; i++) must(ids.ids[i] >= 0 && ids.ids[i] < INT32_MAX);
    must(tok_decode(x->t, ids.ids, ids.n, TESS_DETOK_SPECIAL, &batch, NULL) == TESS_OK || !exact);
    if (exact) {
        valid_copy(&want, text, n);
        must(want.len == batch.len && (want.len == 0 || memcmp(want.data, batch.data, want.len) == 0));
        check_stream(x, &ids, &batch);
    }
    buf_free(&batch);
    buf_free(&want);
    tok_ids_free(x->t, &ids);
}

#define TOKENS "\"added_tokens\":[{\"id\":300,\"content\":\"<a>\",\"special\":true},{\"id\":301,\"content\":\"<a>b\",\"normalized\":true}],"
#define SPLIT "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":" \
    "\"(?i:'s|'t)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\w+\"},\"behavior\":\"Isolated\"," \
    "\"invert\":false}," BYTE_LEVEL_BARE "]},\"decoder\":" BYTE_LEVEL

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const merges[] = {"a b", "ab c", "Ġ a", "Ġ Ġ", "1 2", "Ã ©", NULL};
    if (size < 2) return 0;
    const char *text = (const char *)data + 2;
    size_t n = size - 2;
    kit x;
    switch (data[0] % 4) {
    case 0: {
        const char *zero = memchr(text, 0, n);
        size_t len = zero ? (size_t)(zero - text) : n;
        if (kit_open(&x, text, len, NULL) < 0) return 0;
        run_text(&x, text + len, n - len, data[1], false);
        break;
    }
    case 1:
        must(kit_byte_level(&x, merges, NULL, "", TOKENS BYTE_LEVEL_REST, NULL) == TESS_OK);
        run_text(&x, text, n, data[1], true);
        break;
    case 2:
        must(kit_byte_level(&x, merges, NULL, "\"ignore_merges\":true,", TOKENS SPLIT, NULL) == TESS_OK);
        run_text(&x, text, n, data[1], true);
        break;
    default:
        must(kit_pieces(&x, "", NULL) == TESS_OK);
        run_text(&x, text, n, data[1], false);
    }
    kit_close(&x);
    return 0;
}
