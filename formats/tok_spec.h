/*
 * tok_spec.h - a tokenizer as the converters gather it, and its way into the "tok.*" key-values (base/tok_keys.h).
 *
 * Texts are terminated by a zero byte behind their length; what does not outlive the spec is copied into its arena.
 */
#ifndef TESS_TOK_SPEC_H
#define TESS_TOK_SPEC_H
#include "kvs.h"
#include "tok_keys.h"

typedef struct {
    uint32_t n;
    uint32_t word[TOK_OPS_MAX * TOK_OP_WORDS];
    const char *text[TOK_OPS_MAX * TOK_OP_TEXTS];
    size_t len[TOK_OPS_MAX * TOK_OP_TEXTS];
} spec_ops;
typedef struct { const char *text; size_t len; uint32_t id; uint8_t flags; } spec_added;
enum { SPEC_POST_MAX = 64 };
typedef struct {
    const mem *m;
    arena a;
    const char *model;
    uint64_t flags;             /* TOK_MODEL_* */
    uint32_t n_vocab;
    const char **text;          /* n_vocab; NULL = no such id */
    size_t *len;
    uint32_t *merges;           /* 3 per merge */
    uint64_t n_merges;
    double *scores;             /* n_vocab, or NULL */
    int64_t unk;                /* -1 = none */
    const char *prefix, *suffix; /* NULL = none */
    uint64_t word_max;          /* 0 = not given */
    spec_added *added;          /* in the arena of its maker, or mem */
    size_t n_added, added_cap;
    spec_ops norm, pre, dec;
    uint32_t *map_units;        /* of TOK_N_PRECOMPILED, with its texts; NULL = none */
    size_t n_map_units, map_text_len;
    const char *map_text;
    bool has_dec;
    int32_t post[SPEC_POST_MAX];
    uint32_t n_post;
    bool has_post;
} tok_spec;

void tok_spec_init(tok_spec *s, const mem *m);
void tok_spec_free(tok_spec *s);
/* Room for n ids, all holes. */
tess_status tok_spec_vocab(tok_spec *s, uint64_t n, tess_error *err);
/* Appends an operation; texts may be NULL. False: the list is full. */
bool tok_spec_op(spec_ops *o, uint32_t code, uint32_t a, uint32_t b, uint32_t c, const char *t0, size_t n0, const char *t1,
                 size_t n1);
/* The table of TOK_N_PRECOMPILED: the number of bytes of a trie (u32), the trie (u32 units, see lib/tok_charsmap.c) and the
 * replacements (UTF-8, each ended by a zero byte), which stay where they are. what names it in messages. */
tess_status tok_spec_charsmap(tok_spec *s, const uint8_t *raw, size_t n, const char *what, tess_error *err);
tess_status tok_spec_add(tok_spec *s, spec_added a, tess_error *err);
tess_status tok_spec_put(const tok_spec *s, kvs_builder *b, tess_error *err);
/* "tok.NAME_token" and, id >= 0, "tok.NAME_id". */
void tok_spec_put_named(kvs_builder *b, const char *name, const char *text, size_t len, int64_t id);
#endif
