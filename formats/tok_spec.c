/* tok_spec.c - see tok_spec.h. */
#include "tok_spec.h"

#include <stdio.h>

#include "utf8.h"

void tok_spec_init(tok_spec *s, const mem *m)
{
    memset(s, 0, sizeof *s);
    s->m = m;
    s->unk = -1;
    arena_init(&s->a, m);
}

void tok_spec_free(tok_spec *s)
{
    mem_free(s->m, s->added);
    arena_free(&s->a);
}

tess_status tok_spec_vocab(tok_spec *s, uint64_t n, tess_error *err)
{
    enum { IDS_MAX = 1 << 24 };
    if (n > IDS_MAX) return ERR(err, TESS_E_UNSUPPORTED, "tokenizer: %llu ids are more than %d", (unsigned long long)n, IDS_MAX);
    s->n_vocab = (uint32_t)n;
    s->text = arena_alloc(&s->a, n + 1, sizeof *s->text);
    s->len = arena_alloc(&s->a, n + 1, sizeof *s->len);
    return s->text && s->len ? TESS_OK : ERR(err, TESS_E_NOMEM, "no memory for a vocabulary of %llu tokens", (unsigned long long)n);
}

bool tok_spec_op(spec_ops *o, uint32_t code, uint32_t a, uint32_t b, uint32_t c, const char *t0, size_t n0, const char *t1,
                 size_t n1)
{
    if (o->n == TOK_OPS_MAX) return false;
    uint32_t *w = o->word + o->n * TOK_OP_WORDS;
    const char **t = o->text + o->n * TOK_OP_TEXTS;
    size_t *n = o->len + o->n * TOK_OP_TEXTS;
    w[0] = code, w[1] = a, w[2] = b, w[3] = c;
    t[0] = t0 ? t0 : "", n[0] = t0 ? n0 : 0;
    t[1] = t1 ? t1 : "", n[1] = t1 ? n1 : 0;
    o->n++;
    return true;
}

tess_status tok_spec_charsmap(tok_spec *s, const uint8_t *raw, size_t n, const char *what, tess_error *err)
{
    uint32_t trie = n >= 4 ? rd32(raw) : 1;
    if (trie % 4 || trie > n - 4) return ERR(err, TESS_E_FORMAT, "%s is not a trie and its texts", what);
    s->n_map_units = trie / 4;
    s->map_units = arena_alloc(&s->a, s->n_map_units + 1, sizeof *s->map_units);
    if (!s->map_units) return ERR(err, TESS_E_NOMEM, "no memory for %s", what);
    memcpy(s->map_units, raw + 4, trie);
    s->map_text = (const char *)raw + 4 + trie;
    s->map_text_len = n - 4 - trie;
    if (!utf8_valid(s->map_text, s->map_text_len)) return ERR(err, TESS_E_FORMAT, "%s: the replacements are not UTF-8", what);
    return TESS_OK;
}

tess_status tok_spec_add(tok_spec *s, spec_added a, tess_error *err)
{
    if (!mem_grow(s->m, &s->added, &s->added_cap, s->n_added + 1, sizeof *s->added))
        return ERR(err, TESS_E_NOMEM, "no memory for added tokens");
    s->added[s->n_added++] = a;
    return TESS_OK;
}

static void put_ops(kvs_builder *b, const char *key, const char *text_key, const spec_ops *o)
{
    kvs_put_array(b, key, KV_U32S, o->word, o->n * TOK_OP_WORDS);
    kvs_put_strs(b, text_key, o->text, o->len, o->n * TOK_OP_TEXTS);
}

static tess_status put_vocab(const tok_spec *s, kvs_builder *b, tess_error *err)
{
    uint32_t n_holes = 0;
    uint32_t *holes = mem_calloc(s->m, s->n_vocab + 1, sizeof *holes);
    const char **text = mem_calloc(s->m, s->n_vocab + 1, sizeof *text);
    size_t *len = mem_calloc(s->m, s->n_vocab + 1, sizeof *len);
    tess_status st = holes && text && len ? TESS_OK : ERR(err, TESS_E_NOMEM, "no memory for a vocabulary of %u tokens", s->n_vocab);
    for (uint32_t i = 0; i < s->n_vocab && st == TESS_OK; i++) {
        text[i] = s->text[i] ? s->text[i] : "";
        len[i] = s->text[i] ? s->len[i] + 1 : 1;
        if (!s->text[i]) holes[n_holes++] = i;
    }
    if (st == TESS_OK) {
        kvs_put_strs(b, TOK_K_VOCAB, text, len, s->n_vocab);
        if (n_holes) kvs_put_array(b, TOK_K_HOLES, KV_U32S, holes, n_holes);
    }
    mem_free(s->m, holes);
    mem_free(s->m, text);
    mem_free(s->m, len);
    return st;
}

static tess_status put_added(const tok_spec *s, kvs_builder *b, tess_error *err)
{
    size_t n = s->n_added;
    uint32_t *ids = mem_calloc(s->m, n + 1, sizeof *ids);
    uint8_t *flags = mem_calloc(s->m, n + 1, sizeof *flags);
    const char **text = mem_calloc(s->m, n + 1, sizeof *text);
    size_t *len = mem_calloc(s->m, n + 1, sizeof *len);
    tess_status st = ids && flags && text && len ? TESS_OK : ERR(err, TESS_E_NOMEM, "no memory for %zu added tokens", n);
    for (size_t i = 0; i < n && st == TESS_OK; i++) {
        ids[i] = s->added[i].id;
        flags[i] = s->added[i].flags;
        text[i] = s->added[i].text;
        len[i] = s->added[i].len + 1;
    }
    if (st == TESS_OK) {
        kvs_put_array(b, TOK_K_ADDED_IDS, KV_U32S, ids, n);
        kvs_put_array(b, TOK_K_ADDED_FLAGS, KV_U8S, flags, n);
        kvs_put_strs(b, TOK_K_ADDED_TEXT, text, len, n);
    }
    mem_free(s->m, ids);
    mem_free(s->m, flags);
    mem_free(s->m, text);
    mem_free(s->m, len);
    return st;
}

tess_status tok_spec_put(const tok_spec *s, kvs_builder *b, tess_error *err)
{
    TRY(put_vocab(s, b, err));
    if (s->n_added) TRY(put_added(s, b, err));
    kvs_put_str(b, TOK_K_MODEL, s->model, strlen(s->model));
    kvs_put_u64(b, TOK_K_FLAGS, s->flags);
    if (s->merges) kvs_put_array(b, TOK_K_MERGES, KV_U32S, s->merges, s->n_merges * 3);
    if (s->scores) kvs_put_array(b, TOK_K_SCORES, KV_U32S, s->scores, (uint64_t)s->n_vocab * 2);
    if (s->unk >= 0) kvs_put_u64(b, TOK_K_UNK, (uint64_t)s->unk);
    if (s->prefix && *s->prefix) kvs_put_str(b, TOK_K_PREFIX, s->prefix, strlen(s->prefix));
    if (s->suffix && *s->suffix) kvs_put_str(b, TOK_K_SUFFIX, s->suffix, strlen(s->suffix));
    if (s->word_max) kvs_put_u64(b, TOK_K_WORD_MAX, s->word_max);
    put_ops(b, TOK_K_NORM, TOK_K_NORM_TEXT, &s->norm);
    put_ops(b, TOK_K_PRE, TOK_K_PRE_TEXT, &s->pre);
    if (s->map_units) {
        kvs_put_array(b, TOK_K_CHARSMAP, KV_U32S, s->map_units, s->n_map_units);
        kvs_put_str(b, TOK_K_CHARSMAP_TEXT, s->map_text, s->map_text_len);
    }
    if (s->has_dec) put_ops(b, TOK_K_DEC, TOK_K_DEC_TEXT, &s->dec);
    if (s->has_post) kvs_put_array(b, TOK_K_POST, KV_I32S, s->post, s->n_post);
    return TESS_OK;
}

void tok_spec_put_named(kvs_builder *b, const char *name, const char *text, size_t len, int64_t id)
{
    char key[64];
    snprintf(key, sizeof key, "tok.%s_token", name);
    kvs_put_str(b, key, text, len);
    snprintf(key, sizeof key, "tok.%s_id", name);
    if (id >= 0) kvs_put_u64(b, key, (uint64_t)id);
}
