/*
 * tok_added.c - added tokens: opening, look-up, and finding them in a text.
 *
 * A set is sorted by text; a search narrows the range of tokens that share the bytes seen so far, so that a step costs one
 * binary search and a byte that begins no token costs one look-up. Matches are leftmost, and the longest there. Inside plain
 * spans nothing matches but tokens of whitespace alone: they steer no model, and some vocabularies spell indentation
 * with them. A token that overlaps a plain span only in part does not match either, and hides no other.
 */
#include <stdlib.h>

#include "tok_int.h"

static int text_cmp(const char *a, size_t na, const char *b, size_t nb)
{
    int c = memcmp(a, b, MIN(na, nb));
    return c ? c : (na > nb) - (na < nb);
}
static int by_id(const void *x, const void *y)
{
    const added_token *a = x, *b = y;
    return (a->id > b->id) - (a->id < b->id);
}
static int by_entry_text(const void *x, const void *y)
{
    const added_entry *a = x, *b = y;
    int c = text_cmp(a->text, a->len, b->text, b->len);
    return c ? c : (a->token->id > b->token->id) - (a->token->id < b->token->id);
}

const added_token *added_find_id(const tok *t, uint32_t id)
{
    uint32_t lo = 0, hi = t->n_added;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (t->added[mid].id < id) lo = mid + 1;
        else hi = mid;
    }
    return lo < t->n_added && t->added[lo].id == id ? &t->added[lo] : NULL;
}

const added_token *added_find_text(const tok *t, const char *s, size_t n)
{
    const added_entry *e = t->by_text.e;
    uint32_t lo = 0, hi = t->by_text.n;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (text_cmp(e[mid].text, e[mid].len, s, n) < 0) lo = mid + 1;
        else hi = mid;
    }
    return lo < t->by_text.n && e[lo].len == n && memcmp(e[lo].text, s, n) == 0 ? e[lo].token : NULL;
}

/* Sorts, drops empty and repeated texts, and indexes by first byte. */
static void set_finish(added_set *s)
{
    if (s->n) qsort(s->e, s->n, sizeof *s->e, by_entry_text);
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const added_entry *e = &s->e[i];
        if (e->len == 0 || (n && s->e[n - 1].len == e->len && memcmp(s->e[n - 1].text, e->text, e->len) == 0)) continue;
        s->longest = MAX(s->longest, (uint32_t)e->len);
        s->e[n++] = *e;
    }
    s->n = n;
    for (uint32_t b = 0, i = 0; b <= 256; b++) {
        while (i < n && (uint8_t)s->e[i].text[0] < b) i++;
        s->from[b] = i;
    }
}

static void set_add(added_set *s, const char *text, size_t len, const added_token *token)
{
    s->e[s->n++] = (added_entry){text, len, token};
}

static bool is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp, len = utf8_decode(s + i, n - i, &cp);
        if (len == 0 || !(uni_is_space(cp) || cp == 0x2581)) return false;
        i += len;
    }
    return true;
}

/* The form in which a normalized token is looked for and shown. */
static tess_status normalize_token(tok_run *r, tok *t, added_token *a)
{
    if (!(a->flags & TOK_ADDED_NORMALIZED) || t->norm.n == 0) return TESS_OK;
    r->norm.text.len = r->norm.attr.len = 0;
    static const char zeros[64];
    bool ok = buf_put(&r->norm.text, a->text, a->len);
    for (size_t i = 0; ok && i < a->len; i += MIN(sizeof zeros, a->len - i))
        ok = buf_put(&r->norm.attr, zeros, MIN(sizeof zeros, a->len - i));
    if (!ok) return tok_run_nomem(r);
    TRY(norm_run(r));
    a->shown_len = r->norm.text.len;
    a->shown = arena_strndup(&t->a, r->norm.text.data ? r->norm.text.data : "", a->shown_len);
    return a->shown ? TESS_OK : tok_run_nomem(r);
}

static tess_status read_tokens(tok *t, const kvs *k, tess_error *err)
{
    uint64_t n, n_flags;
    const uint32_t *ids = kvs_array(k, TOK_K_ADDED_IDS, KV_U32S, &n);
    const uint8_t *flags = kvs_array(k, TOK_K_ADDED_FLAGS, KV_U8S, &n_flags);
    const kv *text = kvs_find(k, TOK_K_ADDED_TEXT);
    if (n == 0 && !text) return TESS_OK;
    if (n > 1 << 24 || n_flags != n || !text || text->type != KV_STRS || text->n != n)
        return ERR(err, TESS_E_FORMAT, "%s, %s and %s do not belong together", TOK_K_ADDED_IDS, TOK_K_ADDED_TEXT,
                   TOK_K_ADDED_FLAGS);
    if (n == 0) return TESS_OK;
    t->added = arena_alloc(&t->a, n, sizeof *t->added);
    if (!t->added) return ERR(err, TESS_E_NOMEM, "no memory for %llu added tokens", (unsigned long long)n);
    for (uint64_t i = 0; i < n; i++) {
        size_t len;
        const char *s = kv_strs_at(text, i, &len);
        if (len == 0 || s[len - 1] != 0 || ids[i] >= INT32_MAX || !utf8_valid(s, len))
            return ERR(err, TESS_E_FORMAT, "%s: entry %llu is malformed", TOK_K_ADDED_TEXT, (unsigned long long)i);
        len--;
        t->added[i] = (added_token){s, len, s, len, ids[i], flags[i], false, is_blank(s, len)};
    }
    t->n_added = (uint32_t)n;
    qsort(t->added, n, sizeof *t->added, by_id);
    for (uint32_t i = 0; i < t->n_added; i++) {
        uint32_t id = t->added[i].id;
        if (i && t->added[i - 1].id == id) return ERR(err, TESS_E_FORMAT, "%s: id %u is there twice", TOK_K_ADDED_IDS, id);
        if (id < t->n_vocab) t->kind[id] = KIND_ADDED;
        t->size = MAX(t->size, id + 1);
    }
    return TESS_OK;
}

tess_status added_open(tok *t, const kvs *k, tess_error *err)
{
    TRY(read_tokens(t, k, err));
    added_set *sets[] = {&t->raw, &t->normalized, &t->by_text};
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
        sets[i]->e = arena_alloc(&t->a, MAX(t->n_added, 1u), sizeof(added_entry));
        if (!sets[i]->e) return ERR(err, TESS_E_NOMEM, "no memory for %u added tokens", t->n_added);
    }
    tok_run r;
    tok_run_init(&r, t, NULL, err);
    tess_status st = TESS_OK;
    for (uint32_t i = 0; i < t->n_added && st == TESS_OK; i++) {
        added_token *a = &t->added[i];
        if ((st = normalize_token(&r, t, a)) < 0) break;
        set_add(&t->by_text, a->text, a->len, a);
        set_add(a->flags & TOK_ADDED_NORMALIZED ? &t->normalized : &t->raw, a->shown, a->shown_len, a);
    }
    tok_run_free(&r);
    TRY(st);
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) set_finish(sets[i]);
    for (uint32_t i = 0; i < t->n_added; i++) {
        const added_token *same = added_find_text(t, t->added[i].shown, t->added[i].shown_len);
        t->added[i].hidden = same && (same->flags & TOK_ADDED_SPECIAL);
    }
    return TESS_OK;
}

/* Bytes from s + i on up to the next plain one, at most `max`. Positions are asked for in ascending order. */
static size_t plain_room(plain_view *v, size_t i, size_t max)
{
    if (v->attr) {
        size_t k = 0;
        while (k < max && !(v->attr[i + k] & ATTR_PLAIN)) k++;
        return k;
    }
    size_t at = v->base + i;
    while (v->cur < v->n && v->spans[v->cur].off + v->spans[v->cur].len <= at) v->cur++;
    if (v->cur == v->n) return max;
    return v->spans[v->cur].off <= at ? 0 : MIN(max, v->spans[v->cur].off - at);
}

/* The longest token at s[0, n); a token that is not blank has at most `room` bytes. */
static const added_token *longest_at(const added_set *set, const char *s, size_t n, size_t room, size_t *len)
{
    const added_token *best = NULL;
    uint32_t lo = set->from[(uint8_t)s[0]], hi = set->from[(uint8_t)s[0] + 1];
    for (size_t d = 1; lo < hi; d++) { /* all of [lo, hi) begin with s[0, d) */
        if (set->e[lo].len == d) {
            if (d <= room || set->e[lo].token->blank) best = set->e[lo].token, *len = d;
            lo++;
        }
        if (d == n) break;
        uint8_t want = (uint8_t)s[d];
        uint32_t a = lo, b = hi; /* first with a byte >= want */
        while (a < b) {
            uint32_t mid = a + (b - a) / 2;
            if ((uint8_t)set->e[mid].text[d] < want) a = mid + 1;
            else b = mid;
        }
        lo = a;
        for (b = hi; a < b;) { /* first with a byte > want */
            uint32_t mid = a + (b - a) / 2;
            if ((uint8_t)set->e[mid].text[d] <= want) a = mid + 1;
            else b = mid;
        }
        hi = a;
    }
    return best;
}

const added_token *added_next(const added_set *set, plain_view *plain, const char *s, size_t n, size_t from, size_t *begin,
                              size_t *end)
{
    if (set->n == 0) return NULL;
    for (size_t i = from; i < n; i++) {
        uint8_t b = (uint8_t)s[i];
        if (set->from[b] == set->from[b + 1]) continue;
        size_t len = 0, room = plain_room(plain, i, MIN(n - i, set->longest));
        const added_token *a = longest_at(set, s + i, n - i, room, &len);
        if (!a) continue;
        *begin = i;
        *end = i + len;
        return a;
    }
    return NULL;
}
