/*
 * tok_model.c - words to ids. Short words are kept in a cache of the call.
 *
 * BPE: a word becomes symbols (one per byte in byte mode, else one per character, with the unknown token or bytes for what the
 * vocabulary lacks), which tok_bpe.c merges. Text without word boundaries (SentencePiece style) is first cut in front of the
 * character that no token has inside, "▁" as a rule: no merge reaches across such a cut, so the ids are the same, and the cache
 * helps there too.
 */
#include <stdio.h>

#include "hash.h"
#include "tok_int.h"

/* ---- symbols ---- */

/* State of turning characters into symbols. An unknown token waits until it is known whether the next one joins it. */
typedef struct {
    tok_run *r;
    uint32_t *ids;
    size_t n;
    bool unk_waits;
} symbols;

static void put_symbol(symbols *y, uint32_t id)
{
    if (y->unk_waits) y->ids[y->n++] = y->r->t->unk;
    y->unk_waits = false;
    y->ids[y->n++] = id;
}

/* s[0, n) is in no vocabulary: its bytes, or the unknown token, or nothing. */
static void put_unknown(symbols *y, const char *s, size_t n)
{
    const tok *t = y->r->t;
    if (t->flags & TOK_MODEL_BYTE_FALLBACK) {
        size_t k = 0;
        while (k < n && t->fallback_id[(uint8_t)s[k]] != TOK_NONE) k++;
        if (k == n) { /* an unknown token that waits stays behind these, as in tokenizers */
            for (k = 0; k < n; k++) y->ids[y->n++] = t->fallback_id[(uint8_t)s[k]];
            return;
        }
    }
    if (t->unk == TOK_NONE) return;
    if (y->unk_waits && !(t->flags & TOK_MODEL_FUSE_UNK)) y->ids[y->n++] = t->unk;
    y->unk_waits = true;
}

/* One character with the prefix of inner and the suffix of last ones. */
static tess_status put_affixed(symbols *y, const char *c, size_t len, bool first, bool last)
{
    const tok *t = y->r->t;
    buf b;
    buf_init(&b, &t->m);
    if (!first) buf_put(&b, t->prefix, t->prefix_len);
    buf_put(&b, c, len);
    if (last) buf_put(&b, t->suffix, t->suffix_len);
    if (b.failed) {
        buf_free(&b);
        return tok_run_nomem(y->r);
    }
    uint32_t id = vocab_find(t, b.data, b.len);
    if (id != TOK_NONE) put_symbol(y, id);
    else put_unknown(y, b.data, b.len);
    buf_free(&b);
    return TESS_OK;
}

static tess_status chars_to_symbols(symbols *y, const char *s, size_t n)
{
    const tok *t = y->r->t;
    bool affixes = t->prefix_len || t->suffix_len;
    for (size_t i = 0; i < n;) {
        uint32_t len = uni_len(s + i);
        if (affixes) {
            TRY(put_affixed(y, s + i, len, i == 0, i + len == n));
        } else {
            uint32_t id = len == 1 ? t->byte_id[(uint8_t)s[i]] : vocab_find(t, s + i, len);
            if (id != TOK_NONE) put_symbol(y, id);
            else put_unknown(y, s + i, len);
        }
        i += len;
    }
    if (y->unk_waits) y->ids[y->n++] = t->unk;
    return TESS_OK;
}

/* ---- BPE ---- */

/* ignore_merges: a word that is a token as a whole. */
static uint32_t whole_word(tok_run *r, const char *s, size_t n)
{
    const tok *t = r->t;
    if (!t->byte_mode) return vocab_find(t, s, n);
    if (n > t->longest) return TOK_NONE;
    char small[256], *p = small;
    if (n * 2 > sizeof small && !(p = tok_run_work(r, 1, n * 2))) return TOK_NONE;
    size_t k = 0;
    for (size_t i = 0; i < n; i++) k += utf8_encode(uni_byte_char((uint8_t)s[i]), p + k);
    return vocab_find(t, p, k);
}

static tess_status bpe_word(tok_run *r, const char *s, size_t n)
{
    const tok *t = r->t;
    size_t bytes;
    if (!size_mul3(n + 1, t->prefix_len + t->suffix_len + 1, sizeof(uint32_t), &bytes)) return tok_run_nomem(r);
    symbols y = {.r = r, .ids = tok_run_work(r, 0, bytes)};
    if (!y.ids) return tok_run_nomem(r);
    if (t->flags & TOK_MODEL_IGNORE_MERGES) {
        uint32_t id = whole_word(r, s, n);
        if (id != TOK_NONE) return tok_run_put(r, &id, 1);
    }
    if (t->byte_mode) {
        for (size_t i = 0; i < n; i++) y.ids[i] = t->byte_id[(uint8_t)s[i]];
        y.n = n;
    } else {
        TRY(chars_to_symbols(&y, s, n));
    }
    size_t count = bpe_merge(r, y.ids, y.n);
    return count == SIZE_MAX ? tok_run_nomem(r) : tok_run_put(r, y.ids, count);
}

/* ---- WordPiece: the longest piece that fits, from left to right; all or the unknown token ---- */

static tess_status put_unk(tok_run *r)
{
    if (r->t->unk == TOK_NONE) return ERR(r->err, TESS_E_FORMAT, "a word is not in the vocabulary, which has no unknown token");
    return tok_run_put(r, &r->t->unk, 1);
}

static tess_status wordpiece_word(tok_run *r, const char *s, size_t n)
{
    const tok *t = r->t;
    size_t chars = 0;
    for (size_t i = 0; i < n; i += uni_len(s + i)) chars++;
    if (chars > t->word_max) return put_unk(r);
    char *text = tok_run_work(r, 1, t->prefix_len + n);
    uint32_t *ids = tok_run_work(r, 0, (n + 1) * sizeof *ids);
    if (!text || !ids) return tok_run_nomem(r);
    if (t->prefix_len) memcpy(text, t->prefix, t->prefix_len);
    size_t count = 0;
    for (size_t a = 0; a < n;) {
        size_t skip = a ? 0 : t->prefix_len, b = MIN(n, a + t->longest);
        memcpy(text + t->prefix_len, s + a, n - a);
        uint32_t id = TOK_NONE;
        for (; b > a; b--) {
            if (b < n && ((uint8_t)s[b] & 0xc0) == 0x80) continue; /* inside a character */
            id = vocab_find(t, text + skip, t->prefix_len - skip + b - a);
            if (id != TOK_NONE) break;
        }
        if (id == TOK_NONE) return put_unk(r);
        ids[count++] = id;
        a = b;
    }
    return tok_run_put(r, ids, count);
}

/* ---- words of any model ---- */

static tess_status new_word(tok_run *r, const char *s, size_t n)
{
    switch (r->t->model) {
    case MODEL_BPE: return bpe_word(r, s, n);
    case MODEL_UNIGRAM: return unigram_word(r, s, n);
    default: return wordpiece_word(r, s, n);
    }
}

static tess_status cached_word(tok_run *r, const char *s, size_t n)
{
    if (n > CACHE_KEY || r->text_len < 2048) return new_word(r, s, n);
    if (!r->cache) r->cache = mem_zalloc(&r->t->m, CACHE_SLOTS * sizeof *r->cache);
    if (!r->cache) return new_word(r, s, n); /* fine as well */
    cache_slot *c = &r->cache[hash64(s, n, 0) % CACHE_SLOTS];
    if (c->len == n && memcmp(c->key, s, n) == 0) return tok_run_put(r, c->ids, c->n);
    size_t before = r->out->n;
    TRY(new_word(r, s, n));
    size_t count = r->out->n - before;
    if (count > CACHE_IDS) return TESS_OK;
    c->len = (uint8_t)n;
    c->n = (uint8_t)count;
    memcpy(c->key, s, n);
    if (count) memcpy(c->ids, r->out->ids + before, count * sizeof *c->ids);
    return TESS_OK;
}

/* BPE: cuts in front of each t->cut that follows something else. */
static tess_status bpe_cut(tok_run *r, const char *s, size_t n)
{
    const tok *t = r->t;
    size_t from = 0, i = 0;
    while (i < n) {
        const char *hit = memmem(s + i, n - i, t->cut, t->cut_len);
        if (!hit) break;
        size_t at = (size_t)(hit - s);
        if (at > i && at > from) {
            TRY(cached_word(r, s + from, at - from));
            from = at;
        }
        i = at + t->cut_len;
    }
    return from < n ? cached_word(r, s + from, n - from) : TESS_OK;
}

tess_status tok_model_word(tok_run *r, const char *s, size_t n) { return r->t->cut_len ? bpe_cut(r, s, n) : cached_word(r, s, n); }

/* ---- opening ---- */

/* Symbols of the 256 bytes in the byte-level alphabet; false when the vocabulary lacks one. */
static bool find_byte_symbols(tok *t)
{
    bool all = true;
    for (uint32_t b = 0; b < 256; b++) {
        char c[4];
        t->byte_id[b] = vocab_find(t, c, utf8_encode(uni_byte_char((uint8_t)b), c));
        all = all && t->byte_id[b] != TOK_NONE;
    }
    return all;
}

static bool wants_byte_mode(const tok *t)
{
    if (t->pre.n == 0 || t->pre.op[t->pre.n - 1].code != TOK_P_BYTE_LEVEL || t->prefix_len || t->suffix_len) return false;
    for (uint32_t i = 0; i + 1 < t->pre.n; i++)
        if (t->pre.op[i].code == TOK_P_BYTE_LEVEL) return false;
    for (uint32_t i = 0; i < t->norm.n; i++)
        if (t->norm.op[i].code == TOK_N_BYTE_LEVEL) return false;
    return true;
}

/* May words be cut in front of every c that follows another character: c is a symbol, and no merge makes such a text. */
static void find_cut(tok *t, const kvs *k, const char *c)
{
    size_t len = strlen(c), n;
    if (t->prefix_len || t->suffix_len || (t->flags & TOK_MODEL_IGNORE_MERGES) || vocab_find(t, c, len) == TOK_NONE) return;
    uint64_t count;
    const uint32_t *m = kvs_array(k, TOK_K_MERGES, KV_U32S, &count);
    for (uint64_t i = 2; i < count; i += 3) {
        const char *s = vocab_text(t, m[i], &n), *p = s;
        while ((p = memmem(p, n - (size_t)(p - s), c, len))) {
            if (p > s && ((size_t)(p - s) < len || memcmp(p - len, c, len) != 0)) return;
            p += len;
        }
    }
    memcpy(t->cut, c, len);
    t->cut_len = (uint32_t)len;
}

tess_status tok_model_open(tok *t, const kvs *k, tess_error *err)
{
    size_t n;
    const char *name = kvs_str(k, TOK_K_MODEL, &n);
    t->flags = kvs_u64(k, TOK_K_FLAGS, 0);
    uint64_t unk = kvs_u64(k, TOK_K_UNK, TOK_NONE);
    if (unk != TOK_NONE && unk >= t->n_vocab)
        return ERR(err, TESS_E_FORMAT, "%s: %llu is not an id", TOK_K_UNK, (unsigned long long)unk);
    t->unk = (uint32_t)unk;
    t->prefix = kvs_str(k, TOK_K_PREFIX, &t->prefix_len);
    t->suffix = kvs_str(k, TOK_K_SUFFIX, &t->suffix_len);
    t->word_max = kvs_u64(k, TOK_K_WORD_MAX, 100);
    for (uint32_t b = 0; b < 256; b++) {
        char code[8];
        t->fallback_id[b] = vocab_find(t, code, (size_t)snprintf(code, sizeof code, "<0x%02X>", b));
    }
    if (n == 7 && memcmp(name, "unigram", n) == 0) return t->model = MODEL_UNIGRAM, unigram_open(t, k, err);
    if (n == 9 && memcmp(name, "wordpiece", n) == 0) return t->model = MODEL_WORDPIECE, TESS_OK;
    if (n != 3 || memcmp(name, "bpe", n) != 0)
        return ERR(err, TESS_E_UNSUPPORTED, "%s: \"%.*s\" is not known to this version", TOK_K_MODEL, (int)MIN(n, 40u),
                   name ? name : "");
    t->model = MODEL_BPE;
    t->byte_mode = wants_byte_mode(t) && find_byte_symbols(t);
    if (t->byte_mode) return TESS_OK;
    for (uint32_t b = 0; b < 256; b++) {
        char c = (char)b;
        t->byte_id[b] = b < 128 ? vocab_find(t, &c, 1) : TOK_NONE;
    }
    find_cut(t, k, "\xe2\x96\x81");
    return TESS_OK;
}
