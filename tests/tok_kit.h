/* tok_kit.h - for tests: a tokenizer from the text of a tokenizer.json, and small tokenizer.json texts. */
#ifndef TESS_TOK_KIT_H
#define TESS_TOK_KIT_H
#include <stdio.h>
#include <stdlib.h>

#include "hf_tokenizer.h"
#include "os.h"
#include "tok.h"
#include "utf8.h"

typedef struct { void *data; size_t size; kvs k; tok *t; } kit;

static inline void kit_close(kit *x)
{
    tok_close(x->t);
    kvs_close(&x->k);
    mem_free(&mem_libc, x->data);
    *x = (kit){0};
}

/* The status of the first step that failed. */
static inline tess_status kit_open(kit *x, const char *json, size_t len, tess_error *err)
{
    kvs_builder *b = NULL;
    *x = (kit){0};
    tess_status st = kvs_builder_open(&mem_libc, &b, err);
    if (st == TESS_OK) st = hf_tokenizer_put(&mem_libc, json, len, NULL, 0, b, err);
    if (st == TESS_OK) st = kvs_build(b, &x->data, &x->size, err);
    kvs_builder_close(b);
    if (st == TESS_OK) st = kvs_open(&x->k, &mem_libc, x->data, x->size, err);
    if (st == TESS_OK) st = tok_open(&x->k, &mem_libc, &x->t, err);
    if (st < 0) kit_close(x);
    return st;
}

static inline void put_json_string(buf *o, const char *s, size_t n)
{
    buf_putc(o, '"');
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '"' || s[i] == '\\') buf_putc(o, '\\');
        buf_putc(o, s[i]);
    }
    buf_putc(o, '"');
}

/* Puts "text": id for the 256 characters of the byte-level alphabet in order, ids 0 to 255. */
static inline void put_alphabet(buf *o)
{
    for (uint32_t cp = '!', id = 0; id < 256; cp++) {
        if (cp == 0x7f) cp = 0xa1;
        if (cp == 0xad) cp = 0xae;
        char c[4];
        if (id) buf_putc(o, ',');
        put_json_string(o, c, utf8_encode(cp, c));
        buf_printf(o, ":%u", id++);
    }
}

/* A byte-level BPE: the alphabet, what the merges make (ids from 256 on), then the extra texts. merges: pairs "a b"
 * ended by NULL; extra: texts ended by NULL; model: further members of the model, rest: of the document. */
static inline void put_byte_level(buf *o, const char *const *merges, const char *const *extra, const char *model, const char *rest)
{
    uint32_t id = 256;
    buf_puts(o, "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",");
    buf_printf(o, "%s\"vocab\":{", model);
    put_alphabet(o);
    for (const char *const *m = merges; m && *m; m++) {
        const char *space = strchr(*m, ' ');
        buf_puts(o, ",\"");
        buf_put(o, *m, (size_t)(space - *m));
        buf_printf(o, "%s\":%u", space + 1, id++);
    }
    for (const char *const *e = extra; e && *e; e++) buf_printf(o, ",\"%s\":%u", *e, id++);
    buf_puts(o, "},\"merges\":[");
    for (const char *const *m = merges; m && *m; m++) buf_printf(o, "%s\"%s\"", m == merges ? "" : ",", *m);
    buf_printf(o, "]},%s}", rest);
}
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}"
#define BYTE_LEVEL_BARE "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}"
#define BYTE_LEVEL_REST "\"pre_tokenizer\":" BYTE_LEVEL ",\"decoder\":" BYTE_LEVEL

static inline tess_status kit_byte_level(kit *x, const char *const *merges, const char *const *extra, const char *model,
                                         const char *rest, tess_error *err)
{
    buf o;
    buf_init(&o, &mem_libc);
    put_byte_level(&o, merges, extra, model, rest);
    tess_status st = kit_open(x, o.data, o.len, err);
    buf_free(&o);
    return st;
}

/* A SentencePiece-style BPE: <unk> <s> </s>, 256 bytes, then "▁ h e l o ▁h ▁he ▁hel ▁hell ▁hello w ▁w !" from id 259; post: further
 * members of the document. */
static inline void put_pieces(buf *o, const char *post)
{
    static const char *const more[] = {"▁", "h", "e", "l", "o", "▁h", "▁he", "▁hel", "▁hell", "▁hello", "w", "▁w", "!"};
    buf_puts(o, "{\"version\":\"1.0\",\"added_tokens\":[");
    static const char *const named[] = {"<unk>", "<s>", "</s>"};
    for (int i = 0; i < 3; i++)
        buf_printf(o,
                   "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                   "\"special\":true}",
                   i ? "," : "", i, named[i]);
    buf_puts(
        o,
        "],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"▁\"},"
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"▁\"}]},"
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"▁\"},\"content\":\" \"},"
        "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},");
    buf_printf(o, "%s\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,\"vocab\":{",
               post);
    for (int i = 0; i < 3; i++) buf_printf(o, "\"%s\":%d,", named[i], i);
    for (unsigned i = 0; i < 256; i++) buf_printf(o, "\"<0x%02X>\":%u,", i, i + 3);
    for (unsigned i = 0; i < ARRAY_LEN(more); i++) buf_printf(o, "%s\"%s\":%u", i ? "," : "", more[i], 259 + i);
    buf_puts(o, "},\"merges\":[\"▁ h\",\"▁h e\",\"▁he l\",\"▁hel l\",\"▁hell o\",\"▁ w\"]}}");
}

static inline tess_status kit_pieces(kit *x, const char *post, tess_error *err)
{
    buf o;
    buf_init(&o, &mem_libc);
    put_pieces(&o, post);
    tess_status st = kit_open(x, o.data, o.len, err);
    buf_free(&o);
    return st;
}
#endif
