/* tok_index.c - see tok_index.h. */
#include "tok_index.h"

#include <stdlib.h>

#include "hash.h"

tess_status tok_index_build(tok_index *x, tok_spec *s, tess_error *err)
{
    uint32_t n_slots = 16;
    while (n_slots < s->n_vocab * 2) n_slots *= 2;
    x->mask = n_slots - 1;
    x->slots = arena_alloc(&s->a, n_slots, sizeof *x->slots);
    if (!x->slots) return ERR(err, TESS_E_NOMEM, "no memory for %u tokens", s->n_vocab);
    for (uint32_t id = 0; id < s->n_vocab; id++) {
        uint32_t i = (uint32_t)hash64(s->text[id], s->len[id], 0) & x->mask;
        while (x->slots[i]) i = (i + 1) & x->mask;
        x->slots[i] = id + 1;
    }
    return TESS_OK;
}

int64_t tok_index_find(const tok_index *x, const tok_spec *s, const char *text, size_t len)
{
    for (uint32_t i = (uint32_t)hash64(text, len, 0) & x->mask; x->slots[i]; i = (i + 1) & x->mask) {
        uint32_t id = x->slots[i] - 1;
        if (s->len[id] == len && memcmp(s->text[id], text, len) == 0) return id;
    }
    return -1;
}

typedef struct {
    tok_cut *all;
    size_t n, cap;
} cuts;

static bool is_first_byte(char c) { return ((unsigned char)c & 0xc0) != 0x80; }

/* Appends all ways to cut token id. */
static bool put_cuts(const tok_spec *s, const tok_index *x, uint32_t id, float score, const uint8_t *use, cuts *c)
{
    const char *text = s->text[id];
    size_t len = s->len[id];
    uint32_t chars = 0, at = 0;
    for (size_t i = 0; i < len; i++) chars += is_first_byte(text[i]);
    for (size_t i = 1; i < len; i++) {
        if (!is_first_byte(text[i])) continue;
        at++;
        int64_t left = tok_index_find(x, s, text, i), right = left < 0 ? -1 : tok_index_find(x, s, text + i, len - i);
        if (right < 0 || !(use[left] & use[right] & TOK_CUT_SIDE)) continue;
        if (!mem_grow(s->m, &c->all, &c->cap, c->n + 1, sizeof *c->all)) return false;
        c->all[c->n++] = (tok_cut){score, {(uint32_t)left, (uint32_t)right, id}, {at, chars - at}};
    }
    return true;
}

tess_status tok_merges_of_scores(tok_spec *s, const tok_index *x, const float *score, const uint8_t *use,
                                 int (*order)(const void *, const void *), tess_error *err)
{
    cuts c = {0};
    bool ok = true;
    for (uint32_t id = 0; id < s->n_vocab && ok; id++)
        if (use[id] & TOK_CUT_WHOLE) ok = put_cuts(s, x, id, score[id], use, &c);
    if (c.n) qsort(c.all, c.n, sizeof *c.all, order);
    s->merges = ok ? arena_alloc(&s->a, c.n + 1, 3 * sizeof *s->merges) : NULL;
    for (size_t i = 0; i < c.n && s->merges; i++) memcpy(s->merges + 3 * i, c.all[i].id, sizeof c.all[i].id);
    s->n_merges = c.n;
    mem_free(s->m, c.all);
    return s->merges ? TESS_OK : ERR(err, TESS_E_NOMEM, "no memory for the merges of %u tokens", s->n_vocab);
}
