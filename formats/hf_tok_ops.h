/* hf_tok_ops.h - the lists of operations of tokenizer.json; for the readers of tokenizers in formats/ only. */
#ifndef TESS_HF_TOK_OPS_H
#define TESS_HF_TOK_OPS_H
#include <jansson.h>

#include "tok_spec.h"

/* Reads typed members; the first failure is kept in st, and all later reads give their default. */
typedef struct {
    tok_spec *spec;
    tess_error *err;
    tess_status st;
    const char *file; /* for messages */
} tj_reader;

/* path is what messages call o, such as "model". Absent or null gives def; another type fails. */
bool tj_bool(tj_reader *r, const json_t *o, const char *path, const char *key, bool def);
int64_t tj_int(tj_reader *r, const json_t *o, const char *path, const char *key, int64_t def);
/* NULL when absent or null; the text lives as long as o. */
const char *tj_str(tj_reader *r, const json_t *o, const char *path, const char *key, size_t *len);
bool tj_fail(tj_reader *r, tess_status st, const char *fmt, ...) PRINTF_LIKE(3, 4); /* false */

/* hf_charsmap.c: the table of a Precompiled normalizer into r->spec. */
void tj_read_charsmap(tj_reader *r, const json_t *o, const char *path);
/* Members "normalizer", "pre_tokenizer", "decoder", "post_processor" of root into r->spec. */
void tj_read_ops(tj_reader *r, const json_t *root);
#endif
