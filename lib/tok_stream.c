/*
 * tok_stream.c - streaming: the chain of decoders, fed id by id, and behind it the search for stop strings.
 *
 * Text that the chain gives is final. It waits in `held` while it may be the beginning of a stop string; the stop string
 * that is complete first ends the stream, of several that end at the same place the longest. A push costs time in the
 * length of what is new and of what waits, whatever came before.
 */
#include "tok_int.h"

struct tok_stream {
    mem m;
    tok_chain chain;
    uint32_t n_stop;
    char **stop;
    size_t *stop_len;
    buf text; /* from the chain: what waits, and after it what is new */
    buf out;  /* the last piece, until the next call */
    bool stopped;
};

tess_status tok_stream_open(const tok *t, uint32_t flags, const char *const *stop, uint32_t n_stop, tok_stream **out,
                            tess_error *err)
{
    *out = NULL;
    tok_stream *s = mem_zalloc(&t->m, sizeof *s);
    if (!s) goto nomem;
    s->m = t->m;
    buf_init(&s->text, &s->m);
    buf_init(&s->out, &s->m);
    chain_init(&s->chain, t, flags, true, &s->text);
    s->stop = mem_calloc(&s->m, MAX(n_stop, 1u), sizeof *s->stop);
    s->stop_len = mem_calloc(&s->m, MAX(n_stop, 1u), sizeof *s->stop_len);
    if (!s->stop || !s->stop_len) goto nomem;
    for (uint32_t i = 0; i < n_stop; i++) {
        size_t n = stop[i] ? strlen(stop[i]) : 0;
        if (n == 0) {
            tok_stream_close(s);
            return ERR(err, TESS_E_ARG, "stop string %u is empty", i);
        }
        s->stop_len[i] = n;
        s->stop[i] = mem_strndup(&s->m, stop[i], n);
        s->n_stop = i + 1;
        if (!s->stop[i]) goto nomem;
    }
    *out = s;
    return TESS_OK;
nomem:
    tok_stream_close(s);
    return ERR(err, TESS_E_NOMEM, "no memory for a stream of text");
}

void tok_stream_close(tok_stream *s)
{
    if (!s) return;
    mem m = s->m;
    chain_free(&s->chain);
    for (uint32_t i = 0; i < s->n_stop; i++) mem_free(&m, s->stop[i]);
    mem_free(&m, s->stop);
    mem_free(&m, s->stop_len);
    buf_free(&s->text);
    buf_free(&s->out);
    mem_free(&m, s);
}

/* The stop string that ends first in text; `from` bytes at its begin were searched before. SIZE_MAX = none; else where it
 * begins. */
static size_t find_stop(const tok_stream *s, size_t from)
{
    const char *p = s->text.data;
    for (size_t e = from + 1; e <= s->text.len; e++) {
        size_t begin = SIZE_MAX;
        for (uint32_t i = 0; i < s->n_stop; i++) {
            size_t n = s->stop_len[i];
            if (n <= e && memcmp(p + e - n, s->stop[i], n) == 0) begin = MIN(begin, e - n);
        }
        if (begin != SIZE_MAX) return begin;
    }
    return SIZE_MAX;
}

/* Moves what is final of s->text to s->out; the first `old` bytes waited already. */
static tess_status give(tok_stream *s, size_t old, bool all, bool *stopped, tess_error *err)
{
    size_t keep = 0, n = find_stop(s, old);
    s->out.len = 0;
    if (n != SIZE_MAX) {
        s->stopped = *stopped = true;
    } else {
        for (uint32_t i = 0; i < s->n_stop && !all; i++)
            keep = MAX(keep, held_suffix(s->text.data ? s->text.data : "", s->text.len, s->stop[i], s->stop_len[i]));
        n = s->text.len - keep;
    }
    if (!buf_put(&s->out, s->text.data, n)) return ERR(err, TESS_E_NOMEM, "no memory for a stream of text");
    if (keep) memmove(s->text.data, s->text.data + n, keep);
    s->text.len = keep;
    return TESS_OK;
}

tess_status tok_stream_push(tok_stream *s, int32_t id, const char **text, size_t *len, bool *stopped, tess_error *err)
{
    *text = NULL;
    *len = 0;
    *stopped = s->stopped;
    if (s->stopped) return TESS_OK;
    size_t old = s->text.len;
    TRY(chain_push(&s->chain, id, err));
    TRY(give(s, old, false, stopped, err));
    *text = s->out.data ? s->out.data : "";
    *len = s->out.len;
    return TESS_OK;
}

tess_status tok_stream_flush(tok_stream *s, const char **text, size_t *len, tess_error *err)
{
    *text = NULL;
    *len = 0;
    bool was = s->stopped, stopped = false;
    size_t old = s->text.len;
    tess_status st = chain_finish(&s->chain, err);
    if (st == TESS_OK && was) s->text.len = s->out.len = 0; /* what came after the stop string is dropped */
    if (st == TESS_OK && !was) st = give(s, old, true, &stopped, err);
    s->stopped = false;
    s->text.len = 0;
    TRY(st);
    if (was) return TESS_OK;
    *text = s->out.data ? s->out.data : "";
    *len = s->out.len;
    return TESS_OK;
}
