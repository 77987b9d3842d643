/*
 * tok_index.h - ids of a tok_spec by text, and merges from scores.
 *
 * SentencePiece's BPE has no list of merges: it joins two neighbours when their joined text is a token, the one of the highest
 * score first. That is BPE over the list of all ways to cut a token into two tokens, by falling score of the token; what comes
 * first among equal scores is the caller's choice.
 */
#ifndef TESS_TOK_INDEX_H
#define TESS_TOK_INDEX_H
#include "tok_spec.h"

typedef struct {
    uint32_t *slots, mask;
} tok_index; /* hash table of id + 1, in the arena of the spec */

/* Over s->text, which has no holes. */
tess_status tok_index_build(tok_index *x, tok_spec *s, tess_error *err);
/* The first id with this text, -1 = none. */
int64_t tok_index_find(const tok_index *x, const tok_spec *s, const char *text, size_t len);

/* One way to cut token id[2] into tokens id[0] and id[1], and their lengths in characters. */
typedef struct {
    float score;
    uint32_t id[3], chars[2];
} tok_cut;
enum { TOK_CUT_WHOLE = 1, TOK_CUT_SIDE = 2 };
/* s->merges, from the scores of all tokens. use: TOK_CUT_* of each token: whether it is cut, whether it may be a side. order
 * compares two tok_cut; it must be total. */
tess_status tok_merges_of_scores(tok_spec *s, const tok_index *x, const float *score, const uint8_t *use,
                                 int (*order)(const void *, const void *), tess_error *err);
#endif
