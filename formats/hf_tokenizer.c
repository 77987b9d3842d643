/* hf_tokenizer.c - model, added tokens and named tokens of tokenizer.json; see hf_tokenizer.h. */
#include "hf_tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "hf_tok_ops.h"
#include "json.h"
#include "utf8.h"

/* ---- vocabulary ---- */

static int64_t vocab_id(const json_t *vocab, const char *s, size_t n)
{
    const json_t *v = json_object_getn(vocab, s, n);
    return v ? (int64_t)json_integer_value(v) : -1;
}

/* {"text": id, ...} */
static bool read_vocab(tj_reader *r, const json_t *vocab)
{
    tok_spec *s = r->spec;
    const char *key;
    size_t key_len;
    json_t *v, *o = (json_t *)vocab; /* only read */
    int64_t top = -1;
    if (!json_is_object(vocab)) return tj_fail(r, TESS_E_FORMAT, "model.vocab is not an object");
    json_object_keylen_foreach(o, key, key_len, v)
    {
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return tj_fail(r, TESS_E_FORMAT, "model.vocab \"%.60s\": not an id", key);
        if (json_integer_value(v) > top) top = json_integer_value(v);
    }
    if ((uint64_t)(top + 1) > 4 * (uint64_t)json_object_size(vocab) + 65536)
        return tj_fail(r, TESS_E_FORMAT, "model.vocab: highest id %lld among %zu tokens", (long long)top, json_object_size(vocab));
    r->st = tok_spec_vocab(s, (uint64_t)(top + 1), r->err);
    if (r->st < 0) return false;
    json_object_keylen_foreach(o, key, key_len, v)
    {
        size_t id = (size_t)json_integer_value(v);
        if (s->text[id])
            return tj_fail(r, TESS_E_FORMAT, "model.vocab: \"%.60s\" and \"%.60s\" both have id %zu", s->text[id], key, id);
        s->text[id] = key;
        s->len[id] = key_len;
    }
    return true;
}

/* The two sides of a merge: ["a", "b"] or "a b". */
static bool merge_sides(const json_t *m, const char *side[2], size_t len[2])
{
    if (json_is_array(m) && json_array_size(m) == 2) {
        for (size_t i = 0; i < 2; i++) {
            const json_t *v = json_array_get(m, i);
            if (!json_is_string(v)) return false;
            side[i] = json_string_value(v);
            len[i] = json_string_length(v);
        }
        return true;
    }
    if (!json_is_string(m)) return false;
    const char *s = json_string_value(m);
    size_t n = json_string_length(m);
    const char *space = memchr(s, ' ', n);
    if (!space || memchr(space + 1, ' ', n - (size_t)(space + 1 - s))) return false;
    side[0] = s, len[0] = (size_t)(space - s);
    side[1] = space + 1, len[1] = n - len[0] - 1;
    return true;
}

/* Ids of the sides and of what they make; false: one is not in the vocabulary. joined is scratch. */
static bool merge_ids(const json_t *vocab, const char *side[2], const size_t len[2], size_t prefix, buf *joined, uint32_t out[3])
{
    if (len[1] < prefix) return false;
    joined->len = 0;
    if (!buf_put(joined, side[0], len[0]) || !buf_put(joined, side[1] + prefix, len[1] - prefix)) return false;
    int64_t id[3] = {vocab_id(vocab, side[0], len[0]), vocab_id(vocab, side[1], len[1]),
                     vocab_id(vocab, joined->data ? joined->data : "", joined->len)};
    for (int i = 0; i < 3; i++) {
        if (id[i] < 0) return false;
        out[i] = (uint32_t)id[i];
    }
    return true;
}

static bool read_merges(tj_reader *r, const json_t *vocab, const json_t *merges)
{
    tok_spec *s = r->spec;
    if (!json_is_array(merges)) return tj_fail(r, TESS_E_FORMAT, "model.merges is not a list");
    size_t n = json_array_size(merges), prefix = s->prefix ? strlen(s->prefix) : 0;
    buf joined;
    buf_init(&joined, s->m);
    s->merges = arena_alloc(&s->a, n + 1, 3 * sizeof *s->merges);
    if (!s->merges) return tj_fail(r, TESS_E_NOMEM, "no memory for %zu merges", n);
    for (size_t i = 0; i < n && r->st == TESS_OK; i++) {
        const json_t *m = json_array_get(merges, i);
        const char *side[2];
        size_t len[2];
        if (json_is_string(m) && strncmp(json_string_value(m), "#version", 8) == 0) continue;
        if (!merge_sides(m, side, len)) tj_fail(r, TESS_E_FORMAT, "model.merges[%zu] is not a pair of texts", i);
        else if (!merge_ids(vocab, side, len, prefix, &joined, s->merges + s->n_merges * 3))
            tj_fail(r, TESS_E_FORMAT, "model.merges[%zu]: \"%.60s\" and \"%.60s\" or what they make is not in the vocabulary", i,
                    side[0], side[1]);
        s->n_merges++;
    }
    buf_free(&joined);
    return r->st == TESS_OK;
}

static void warn_no_merges(const tok_spec *s)
{
    for (uint32_t i = 0; i < s->n_vocab && s->n_merges == 0; i++) {
        uint32_t cp;
        if (!s->text[i] || s->len[i] == 0 || utf8_decode(s->text[i], s->len[i], &cp) == s->len[i]) continue;
        mem_log(s->m, TESS_LOG_WARN,
                "tokenizer.json: the merge list is empty though the vocabulary has longer entries, such as \"%.60s\"", s->text[i]);
        return;
    }
}

/* ---- models ---- */

static bool read_unk(tj_reader *r, const json_t *model, const json_t *vocab)
{
    size_t len;
    const char *unk = tj_str(r, model, "model", "unk_token", &len);
    if (!unk) return r->st == TESS_OK;
    r->spec->unk = vocab_id(vocab, unk, len);
    return r->spec->unk >= 0 || tj_fail(r, TESS_E_FORMAT, "model.unk_token \"%.60s\" is not in the vocabulary", unk);
}

static bool read_bpe(tj_reader *r, const json_t *model)
{
    tok_spec *s = r->spec;
    const json_t *vocab = json_object_get(model, "vocab"), *dropout = json_object_get(model, "dropout");
    size_t len;
    s->model = "bpe";
    if (json_is_number(dropout) && json_number_value(dropout) != 0)
        return tj_fail(r, TESS_E_UNSUPPORTED, "model.dropout is not supported");
    s->prefix = tj_str(r, model, "model", "continuing_subword_prefix", &len);
    s->suffix = tj_str(r, model, "model", "end_of_word_suffix", &len);
    if (tj_bool(r, model, "model", "fuse_unk", false)) s->flags |= TOK_MODEL_FUSE_UNK;
    if (tj_bool(r, model, "model", "byte_fallback", false)) s->flags |= TOK_MODEL_BYTE_FALLBACK;
    if (tj_bool(r, model, "model", "ignore_merges", false)) s->flags |= TOK_MODEL_IGNORE_MERGES;
    if (!read_vocab(r, vocab) || !read_unk(r, model, vocab) || !read_merges(r, vocab, json_object_get(model, "merges")))
        return false;
    warn_no_merges(s);
    return true;
}

static bool read_wordpiece(tj_reader *r, const json_t *model)
{
    tok_spec *s = r->spec;
    size_t len;
    s->model = "wordpiece";
    s->prefix = tj_str(r, model, "model", "continuing_subword_prefix", &len);
    if (!s->prefix) s->prefix = "##";
    int64_t most = tj_int(r, model, "model", "max_input_chars_per_word", 100);
    if (most < 1) return tj_fail(r, TESS_E_FORMAT, "model.max_input_chars_per_word is not a positive number");
    s->word_max = (uint64_t)most;
    return read_vocab(r, json_object_get(model, "vocab")) && read_unk(r, model, json_object_get(model, "vocab"));
}

/* A score as tokenizers reads it. Its JSON reader takes the digits as one whole number, rounds that, and divides it by a power of
 * ten, which rounds again: one in eight comes out a unit in the last place off. That decides between cuts of the same tokens in
 * another order, such as those of "-----", whose sums differ by rounding alone. The digits are the fewest that give the number:
 * so every writer of these files prints it. */
static double read_score(double exact)
{
    char text[40], power[24], *p;
    double v = fabs(exact);
    int digits = 15;
    do snprintf(text, sizeof text, "%.*e", digits - 1, v);
    while (strtod(text, NULL) != v && digits++ < 17);
    uint64_t whole = 0;
    for (p = text; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9') whole = whole * 10 + (uint64_t)(*p - '0');
    long exponent = strtol(*p ? p + 1 : p, NULL, 10) - (digits - 1);
    v = (double)whole;
    for (; exponent < -308; exponent += 308) v /= 1e308;
    snprintf(power, sizeof power, "1e%ld", labs(exponent));
    v = exponent < 0 ? v / strtod(power, NULL) : v * strtod(power, NULL);
    return exact < 0 ? -v : v;
}

/* [["text", score], ...]; the place in the list is the id. */
static bool read_unigram(tj_reader *r, const json_t *model)
{
    tok_spec *s = r->spec;
    const json_t *vocab = json_object_get(model, "vocab");
    size_t n = json_array_size(vocab);
    s->model = "unigram";
    if (!json_is_array(vocab)) return tj_fail(r, TESS_E_FORMAT, "model.vocab is not a list");
    if (tj_bool(r, model, "model", "byte_fallback", false)) s->flags |= TOK_MODEL_BYTE_FALLBACK;
    s->unk = tj_int(r, model, "model", "unk_id", -1);
    if (s->unk < -1 || s->unk >= (int64_t)n) return tj_fail(r, TESS_E_FORMAT, "model.unk_id %lld is not an id", (long long)s->unk);
    r->st = tok_spec_vocab(s, n, r->err);
    s->scores = r->st == TESS_OK ? arena_alloc(&s->a, n + 1, sizeof *s->scores) : NULL;
    if (!s->scores) return tj_fail(r, TESS_E_NOMEM, "no memory for %zu tokens", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *pair = json_array_get(vocab, i), *text = json_array_get(pair, 0), *score = json_array_get(pair, 1);
        if (!json_is_string(text) || !json_is_number(score))
            return tj_fail(r, TESS_E_FORMAT, "model.vocab[%zu] is not [text, score]", i);
        s->text[i] = json_string_value(text);
        s->len[i] = json_string_length(text);
        s->scores[i] = read_score(json_number_value(score));
    }
    return true;
}

static bool read_model(tj_reader *r, const json_t *model)
{
    size_t len;
    if (!json_is_object(model)) return tj_fail(r, TESS_E_FORMAT, "model is missing");
    const char *type = tj_str(r, model, "model", "type", &len);
    if (!type) { /* old files say it by what they have */
        if (r->st < 0) return false;
        type = json_object_get(model, "merges") ? "BPE" : json_is_array(json_object_get(model, "vocab")) ? "Unigram" : "WordPiece";
    }
    if (strcmp(type, "BPE") == 0) return read_bpe(r, model);
    if (strcmp(type, "WordPiece") == 0) return read_wordpiece(r, model);
    if (strcmp(type, "Unigram") == 0) return read_unigram(r, model);
    return tj_fail(r, TESS_E_UNSUPPORTED, "model.type \"%.60s\" is not supported", type);
}

/* ---- added tokens ---- */

typedef struct {
    json_t *by_text;  /* text -> id of the model (a new object for lists) */
    uint64_t n_model; /* entries of the model */
    uint64_t next;    /* the next free id */
} id_space;

static spec_added *find_added(tok_spec *s, const json_t *known, const char *text, size_t len)
{
    const json_t *v = json_object_getn(known, text, len);
    return v ? &s->added[json_integer_value(v)] : NULL;
}

/* The id is the one that the text has in the vocabulary, else the next free one: "id" in the file is not looked at, as in
 * tokenizers. A text that comes twice has the flags of its last entry. */
static bool add_token(tj_reader *r, const json_t *o, size_t i, id_space *ids, json_t *known)
{
    static const struct {
        const char *key;
        uint8_t flag;
    } flags[] = {{"single_word", TOK_ADDED_SINGLE_WORD},
                 {"lstrip", TOK_ADDED_LSTRIP},
                 {"rstrip", TOK_ADDED_RSTRIP},
                 {"normalized", TOK_ADDED_NORMALIZED},
                 {"special", TOK_ADDED_SPECIAL}};
    tok_spec *s = r->spec;
    char path[40];
    snprintf(path, sizeof path, "added_tokens[%zu]", i);
    spec_added a = {0};
    a.text = tj_str(r, o, path, "content", &a.len);
    if (!a.text) return tj_fail(r, TESS_E_FORMAT, "%s.content is missing", path);
    for (size_t k = 0; k < ARRAY_LEN(flags); k++)
        if (tj_bool(r, o, path, flags[k].key, false)) a.flags |= flags[k].flag;
    if (r->st < 0 || a.len == 0) return r->st == TESS_OK;
    spec_added *old = find_added(s, known, a.text, a.len);
    if (old) return old->flags = a.flags, true;
    int64_t id = vocab_id(ids->by_text, a.text, a.len);
    int64_t said = tj_int(r, o, path, "id", -1);
    a.id = (uint32_t)(id >= 0 ? (uint64_t)id : ids->next++);
    if (said >= 0 && said != (int64_t)a.id)
        mem_log(s->m, TESS_LOG_WARN, "tokenizer.json: %s \"%.60s\" has id %u, not %lld as the file says", path, a.text, a.id,
                (long long)said);
    json_t *at = json_integer((json_int_t)s->n_added);
    if (json_object_setn_new_nocheck(known, a.text, a.len, at) != 0) return tj_fail(r, TESS_E_NOMEM, "no memory for added tokens");
    r->st = tok_spec_add(s, a, r->err);
    return r->st == TESS_OK;
}

static bool read_added(tj_reader *r, const json_t *list, id_space *ids)
{
    if (!list || json_is_null(list)) return true;
    if (!json_is_array(list)) return tj_fail(r, TESS_E_FORMAT, "added_tokens is not a list");
    json_t *known = json_object();
    ids->next = ids->n_model;
    for (size_t i = 0; i < json_array_size(list) && r->st == TESS_OK; i++) add_token(r, json_array_get(list, i), i, ids, known);
    json_decref(known);
    return r->st == TESS_OK;
}

/* ---- named tokens ---- */

static int64_t any_id(const tok_spec *s, const json_t *by_text, const char *text, size_t len)
{
    for (size_t i = 0; i < s->n_added; i++)
        if (s->added[i].len == len && memcmp(s->added[i].text, text, len) == 0) return s->added[i].id;
    return vocab_id(by_text, text, len);
}

/* Texts of bos_token and so on: a string, or an object with "content". */
static tess_status put_named(const tok_spec *s, const json_t *by_text, const char *config, size_t len, kvs_builder *b,
                             tess_error *err)
{
    static const char *const names[] = {"bos", "eos", "unk", "pad"};
    json_t *root;
    TRY(jsonr_parse_object(config, len, JSONR_ALLOW_NUL, "tokenizer_config.json", &root, err));
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char key[32];
        snprintf(key, sizeof key, "%s_token", names[i]);
        const json_t *v = json_object_get(root, key);
        if (json_is_object(v)) v = json_object_get(v, "content");
        if (!json_is_string(v)) continue;
        const char *text = json_string_value(v);
        size_t n = json_string_length(v);
        tok_spec_put_named(b, names[i], text, n, any_id(s, by_text, text, n));
    }
    json_decref(root);
    return TESS_OK;
}

/* ---- all of it ---- */

/* text -> id for lists of [text, score]; the model's own object otherwise. A new reference. */
static json_t *texts_of(const tok_spec *s, const json_t *model)
{
    json_t *vocab = json_object_get(model, "vocab");
    if (json_is_object(vocab)) return json_incref(vocab);
    json_t *o = json_object();
    for (uint32_t i = 0; o && i < s->n_vocab; i++) json_object_setn_new_nocheck(o, s->text[i], s->len[i], json_integer(i));
    return o;
}

static void read_all(tj_reader *r, const json_t *root, json_t **by_text)
{
    const json_t *model = json_object_get(root, "model"), *version = json_object_get(root, "version");
    if (version && !(json_is_string(version) && strcmp(json_string_value(version), "1.0") == 0)) {
        tj_fail(r, TESS_E_UNSUPPORTED, "version is not \"1.0\"");
        return;
    }
    if (!read_model(r, model)) return;
    tj_read_ops(r, root);
    if (r->st < 0) return;
    *by_text = texts_of(r->spec, model);
    if (!*by_text) {
        tj_fail(r, TESS_E_NOMEM, "no memory for the vocabulary");
        return;
    }
    id_space ids = {.by_text = *by_text, .n_model = json_object_size(*by_text)};
    read_added(r, json_object_get(root, "added_tokens"), &ids);
}

tess_status hf_tokenizer_put(const mem *m, const char *json, size_t len, const char *config, size_t config_len, kvs_builder *b,
                             tess_error *err)
{
    json_t *root, *by_text = NULL;
    TRY(jsonr_parse_object(json, len, JSONR_ALLOW_NUL, "tokenizer.json", &root, err));
    tok_spec s;
    tok_spec_init(&s, m);
    tj_reader r = {.spec = &s, .err = err, .st = TESS_OK, .file = "tokenizer.json"};
    read_all(&r, root, &by_text);
    if (r.st == TESS_OK) r.st = tok_spec_put(&s, b, err);
    if (r.st == TESS_OK && config) r.st = put_named(&s, by_text, config, config_len, b, err);
    json_decref(by_text);
    tok_spec_free(&s);
    json_decref(root);
    return r.st;
}
