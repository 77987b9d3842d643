/*
 * tok.h - tokenizer: text to ids and back, from the "tok.*" key-values of a container. No JSON here.
 *
 * tok_open builds tables over the key-values, which must outlive the tok; then the tok is immutable and any
 * thread may use it. The list of "tok.*" keys is in tok_keys.h, written by formats/hf_tokenizer.c.
 */
#ifndef TESS_TOK_H
#define TESS_TOK_H
#include "kvs.h"
#include "mem.h"

typedef struct tok tok;
tess_status tok_open(const kvs *k, const mem *m, tok **out, tess_error *err); /* UNSUPPORTED: no tokenizer in k */
void tok_close(tok *t);
uint32_t tok_size(const tok *t); /* highest id + 1 */
const char *tok_text(const tok *t, int32_t id, size_t *len); /* vocabulary text, terminated; NULL = no such id */
int32_t tok_find(const tok *t, const char *text, size_t len); /* id of a vocabulary entry or added token, -1 = none */

typedef struct { size_t off, len; } tok_span;
typedef struct { int32_t *ids; size_t n, cap; } tok_ids;     /* grown with the tok's mem; release with tok_ids_free */
/* flags: TESS_TOK_ADD_SPECIAL, TESS_TOK_PLAIN. plain[n_plain]: ascending spans of text in which no special token is
 * recognized (an added token that overlaps one is text). Appends to out. */
tess_status tok_encode(const tok *t, const char *text, size_t len, uint32_t flags, const tok_span *plain, size_t n_plain,
                       tok_ids *out, tess_error *err);
void tok_ids_free(const tok *t, tok_ids *ids);
/* Batch decode, as tokenizers' decode(ids, skip_special_tokens): appends UTF-8 to out. flags: TESS_DETOK_SPECIAL. */
tess_status tok_decode(const tok *t, const int32_t *ids, size_t n, uint32_t flags, buf *out, tess_error *err);

/* Streaming: see tess_stream in tessera.h; joined pieces equal the batch decode. */
typedef struct tok_stream tok_stream;
tess_status tok_stream_open(const tok *t, uint32_t flags, const char *const *stop, uint32_t n_stop, tok_stream **out, tess_error *err);
tess_status tok_stream_push(tok_stream *s, int32_t id, const char **text, size_t *len, bool *stopped, tess_error *err);
tess_status tok_stream_flush(tok_stream *s, const char **text, size_t *len, tess_error *err);
void tok_stream_close(tok_stream *s);
#endif
