/*
 * tok_unigram.c - the Unigram model: of all ways to write a word as tokens, the one of the highest sum of scores (log
 * probabilities), found from left to right; an earlier way wins over an equal one.
 *
 * Tokens are sorted by text, and a search narrows the range that shares the bytes read so far. A character that is no token
 * costs the lowest score minus 10 and gives the unknown token, or its bytes; neighbouring unknowns are one.
 */
#include <float.h>
#include <stdlib.h>

#include "tok_int.h"

#define UNK_PENALTY 10.0

typedef struct { const char *text; uint32_t len, id; } entry;
struct unigram {
    uint32_t n;
    entry *e;           /* ascending by text */
    uint32_t from[257]; /* those that begin with byte b are e[from[b], from[b + 1]) */
    double *score;      /* by id */
    double unk_score;
};

static int by_text(const void *x, const void *y)
{
    const entry *a = x, *b = y;
    int c = memcmp(a->text, b->text, MIN(a->len, b->len));
    if (c == 0) c = (a->len > b->len) - (a->len < b->len);
    return c ? c : (a->id > b->id) - (a->id < b->id);
}

void unigram_close(tok *t)
{
    if (!t->uni) return;
    mem_free(&t->m, t->uni->e);
    mem_free(&t->m, t->uni->score);
    mem_free(&t->m, t->uni);
}

/* Sorts; of equal texts the last id stays. */
static void sort_entries(unigram *u)
{
    uint32_t n = 0;
    if (u->n) qsort(u->e, u->n, sizeof *u->e, by_text);
    for (uint32_t i = 0; i < u->n; i++) {
        bool again = i + 1 < u->n && u->e[i].len == u->e[i + 1].len && memcmp(u->e[i].text, u->e[i + 1].text, u->e[i].len) == 0;
        if (!again && u->e[i].len) u->e[n++] = u->e[i];
    }
    u->n = n;
    for (uint32_t b = 0, i = 0; b <= 256; b++) {
        while (i < n && (uint8_t)u->e[i].text[0] < b) i++;
        u->from[b] = i;
    }
}

tess_status unigram_open(tok *t, const kvs *k, tess_error *err)
{
    uint64_t n;
    const uint32_t *v = kvs_array(k, TOK_K_SCORES, KV_U32S, &n);
    if (n != (uint64_t)t->n_vocab * 2)
        return ERR(err, TESS_E_FORMAT, "%s: not one score for each of %u tokens", TOK_K_SCORES, t->n_vocab);
    unigram *u = t->uni = mem_zalloc(&t->m, sizeof *u);
    if (u) u->e = mem_calloc(&t->m, t->n_vocab + 1, sizeof *u->e);
    if (u) u->score = mem_calloc(&t->m, t->n_vocab + 1, sizeof *u->score);
    if (!u || !u->e || !u->score) return ERR(err, TESS_E_NOMEM, "no memory for %u tokens", t->n_vocab);
    double least = DBL_MAX;
    for (uint32_t id = 0; id < t->n_vocab; id++) {
        memcpy(&u->score[id], v + (size_t)id * 2, 8);
        if (!(u->score[id] >= -DBL_MAX && u->score[id] <= DBL_MAX))
            return ERR(err, TESS_E_FORMAT, "%s: score of id %u is not a number", TOK_K_SCORES, id);
        least = MIN(least, u->score[id]);
        size_t len;
        const char *text = vocab_text(t, id, &len);
        if (t->kind[id] == KIND_VOCAB) u->e[u->n++] = (entry){text, (uint32_t)len, id};
    }
    u->unk_score = least - UNK_PENALTY;
    sort_entries(u);
    return TESS_OK;
}

/* The best way to the end of a prefix: its last token begins at `start`. id TOK_NONE = no way yet. */
typedef struct { double score; size_t start; uint32_t id; } node;

static void offer(node *to, double score, size_t start, uint32_t id)
{
    if (to->id == TOK_NONE || score > to->score) *to = (node){score, start, id};
}

/* Extends the best way to i by every token that begins there. */
static void extend(const unigram *u, const char *s, size_t n, size_t i, node *best, uint32_t unk)
{
    uint32_t lo = u->from[(uint8_t)s[i]], hi = u->from[(uint8_t)s[i] + 1], one = uni_len(s + i);
    bool single = false;
    for (size_t d = 1; lo < hi; d++) { /* all of [lo, hi) begin with s[i, i + d) */
        if (u->e[lo].len == d) {
            offer(&best[i + d], u->score[u->e[lo].id] + best[i].score, i, u->e[lo].id);
            single = single || d == one;
            lo++;
        }
        if (i + d == n) break;
        uint8_t want = (uint8_t)s[i + d];
        uint32_t a = lo, b = hi;
        while (a < b) { /* the first whose byte is not less */
            uint32_t mid = a + (b - a) / 2;
            if ((uint8_t)u->e[mid].text[d] < want) a = mid + 1;
            else b = mid;
        }
        lo = a;
        for (b = hi; a < b;) { /* the first whose byte is greater */
            uint32_t mid = a + (b - a) / 2;
            if ((uint8_t)u->e[mid].text[d] <= want) a = mid + 1;
            else b = mid;
        }
        hi = a;
    }
    if (!single) offer(&best[i + one], u->unk_score + best[i].score, i, unk);
}

/* s[0, n) as one token of unknown text: another entry of that text, its bytes, or the unknown token. */
static tess_status put_unknown(tok_run *r, const char *s, size_t n)
{
    const tok *t = r->t;
    uint32_t id = vocab_find(t, s, n);
    if (id != TOK_NONE) return tok_run_put(r, &id, 1);
    size_t k = t->flags & TOK_MODEL_BYTE_FALLBACK ? 0 : n + 1;
    while (k < n && t->fallback_id[(uint8_t)s[k]] != TOK_NONE) k++;
    if (k != n) return tok_run_put(r, &t->unk, 1);
    for (k = 0; k < n; k++) TRY(tok_run_put(r, &t->fallback_id[(uint8_t)s[k]], 1));
    return TESS_OK;
}

tess_status unigram_word(tok_run *r, const char *s, size_t n)
{
    const tok *t = r->t;
    size_t bytes;
    node *best = n < SIZE_MAX && size_mul3(n + 1, sizeof *best, 1, &bytes) ? tok_run_work(r, 0, bytes) : NULL;
    if (!best) return tok_run_nomem(r);
    for (size_t i = 0; i <= n; i++) best[i] = (node){0, 0, TOK_NONE};
    for (size_t i = 0; i < n; i += uni_len(s + i)) extend(t->uni, s, n, i, best, t->unk == TOK_NONE ? TOK_NONE - 1 : t->unk);
    size_t count = 0; /* the way back, turned round at the end of best */
    for (size_t at = n; at > 0; at = best[at].start) best[n - count++].score = (double)at;
    for (size_t i = n - count + 1, from = 0; i <= n; i++) {
        size_t at = (size_t)best[i].score;
        const node *b = &best[at];
        bool unknown = b->id == t->unk || b->id == TOK_NONE - 1;
        if (unknown && t->unk == TOK_NONE)
            return ERR(r->err, TESS_E_FORMAT, "a character is not in the vocabulary, which has no unknown token");
        bool joins = unknown && i < n && best[(size_t)best[i + 1].score].id == t->unk;
        if (joins) continue;
        TRY(unknown ? put_unknown(r, s + from, at - from) : tok_run_put(r, &b->id, 1));
        from = at;
    }
    return TESS_OK;
}
