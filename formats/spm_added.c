/* spm_added.c - added tokens, named tokens and options of the files around tokenizer.model; see spm_tokenizer.h. */
#include <stdio.h>
#include <stdlib.h>

#include "hf_tok_ops.h"
#include "json.h"
#include "spm_priv.h"
#include "utf8.h"

/* ---- options ---- */

/* Classes of transformers whose ids are not those of the pieces, or that prepare texts in a way of their own. */
static const char other_classes[] =
    " XLMRobertaTokenizer CamembertTokenizer BarthezTokenizer MBartTokenizer MBart50Tokenizer NllbTokenizer M2M100Tokenizer"
    " SeamlessM4TTokenizer XGLMTokenizer PegasusTokenizer T5Tokenizer UdopTokenizer AlbertTokenizer XLNetTokenizer"
    " DebertaV2Tokenizer RemBertTokenizer BigBirdTokenizer ReformerTokenizer FNetTokenizer LayoutXLMTokenizer CpmTokenizer ";

static tess_status check_class(const spm_state *x, tj_reader *r)
{
    char word[64];
    size_t len;
    const char *name = tj_str(r, x->config, "", "tokenizer_class", &len);
    if (!name || len >= sizeof word - 2) return r->st;
    if (len > 4 && strcmp(name + len - 4, "Fast") == 0) len -= 4;
    snprintf(word, sizeof word, " %.*s ", (int)len, name);
    if (!memchr(name, ' ', len) && strstr(other_classes, word))
        return ERR(x->err, TESS_E_UNSUPPORTED,
                   "tokenizer_config.json: tokenizer_class \"%s\" is not read from tokenizer.model; tokenizer.json is needed",
                   name);
    return r->st;
}

static tess_status open_json(const spm_file *f, const char *what, json_t **out, tess_error *err)
{
    return f->data ? jsonr_parse_object(f->data, f->len, JSONR_ALLOW_NUL, what, out, err) : TESS_OK;
}

tess_status spm_open_config(spm_state *x)
{
    tj_reader r = {.spec = &x->spec, .err = x->err, .st = TESS_OK, .file = "tokenizer_config.json"};
    TRY(open_json(&x->files->config, r.file, &x->config, x->err));
    TRY(open_json(&x->files->special, "special_tokens_map.json", &x->special, x->err));
    TRY(check_class(x, &r));
    x->prefix = tj_bool(&r, x->config, "", "add_prefix_space", true);
    x->first_only = !tj_bool(&r, x->config, "", "legacy", true);
    x->add_bos = tj_bool(&r, x->config, "", "add_bos_token", true);
    x->add_eos = tj_bool(&r, x->config, "", "add_eos_token", false);
    return r.st;
}

void spm_close_config(spm_state *x)
{
    json_decref(x->config);
    json_decref(x->special);
}

/* ---- added tokens ---- */

tess_status spm_add(spm_state *x, uint32_t id, const char *text, size_t len, uint8_t flags)
{
    tok_spec *s = &x->spec;
    x->next = MAX(x->next, id + 1);
    for (size_t i = 0; i < s->n_added; i++) {
        if (s->added[i].id != id) continue;
        s->added[i].text = text;
        s->added[i].len = len;
        s->added[i].flags = flags;
        return TESS_OK;
    }
    return tok_spec_add(s, (spec_added){text, len, id, flags}, x->err);
}

/* A token of a JSON file; an id of the model gets this name (the index keeps the old one). text is copied. */
static tess_status add_named(spm_state *x, int64_t id, const char *text, size_t len, uint8_t flags, const char *file)
{
    enum { IDS_MAX = 1 << 24 };
    if (id < 0 || id >= IDS_MAX || len == 0)
        return ERR(x->err, TESS_E_FORMAT, "%s: token \"%.60s\" has no text, or its id %lld is not below %d", file, text,
                   (long long)id, IDS_MAX);
    const char *kept = arena_strndup(&x->spec.a, text, len);
    if (!kept) return ERR(x->err, TESS_E_NOMEM, "no memory for added tokens");
    int64_t other = spm_find(x, text, len);
    if (other >= 0 && other != id)
        return ERR(x->err, TESS_E_FORMAT, "%s: token \"%.60s\" has id %lld there and %lld in tokenizer.model", file, text,
                   (long long)id, (long long)other);
    if (id < x->spec.n_vocab) {
        x->spec.text[id] = kept;
        x->spec.len[id] = len;
    }
    return spm_add(x, (uint32_t)id, kept, len, flags);
}

/* {"id": {"content": text, ...}, ...} */
static tess_status read_decoder_list(spm_state *x, const json_t *list)
{
    static const struct {
        const char *key;
        uint8_t flag;
    } flags[] = {{"single_word", TOK_ADDED_SINGLE_WORD},
                 {"lstrip", TOK_ADDED_LSTRIP},
                 {"rstrip", TOK_ADDED_RSTRIP},
                 {"normalized", TOK_ADDED_NORMALIZED},
                 {"special", TOK_ADDED_SPECIAL}};
    tj_reader r = {.spec = &x->spec, .err = x->err, .st = TESS_OK, .file = "tokenizer_config.json"};
    const char *key;
    json_t *v, *o = (json_t *)(uintptr_t)list; /* only read */
    json_object_foreach(o, key, v)
    {
        char path[64], *end;
        size_t len;
        uint8_t bits = 0;
        snprintf(path, sizeof path, "added_tokens_decoder.%.20s", key);
        long long id = strtoll(key, &end, 10);
        const char *text = tj_str(&r, v, path, "content", &len);
        if (*key == 0 || *end || !text) tj_fail(&r, TESS_E_FORMAT, "%s is not an id with \"content\"", path);
        for (size_t i = 0; i < ARRAY_LEN(flags); i++)
            if (tj_bool(&r, v, path, flags[i].key, false)) bits |= flags[i].flag;
        if (x->prefix) bits &= (uint8_t)~TOK_ADDED_NORMALIZED; /* a text that has the prefix would not be found */
        if (r.st < 0) return r.st;
        TRY(add_named(x, id, text, len, bits, r.file));
    }
    return TESS_OK;
}

/* added_tokens.json: {"text": id, ...} */
static tess_status read_added_file(spm_state *x)
{
    json_t *root = NULL, *v;
    const char *text, file[] = "added_tokens.json";
    size_t len;
    tess_status st = open_json(&x->files->added, file, &root, x->err);
    json_object_keylen_foreach(root, text, len, v)
    {
        if (st < 0) break;
        st = json_is_integer(v) ? add_named(x, json_integer_value(v), text, len, 0, file)
                                : ERR(x->err, TESS_E_FORMAT, "%s: \"%.60s\" is not an id", file, text);
    }
    json_decref(root);
    return st;
}

/* A text or an object with "content"; NULL = neither. */
static const char *token_text(const json_t *v, size_t *len)
{
    if (json_is_object(v)) v = json_object_get(v, "content");
    *len = json_string_length(v);
    return *len ? json_string_value(v) : NULL;
}

/* The id of a token, which is made special; a text that is none yet gets the next free id. */
static tess_status make_special(spm_state *x, const json_t *v)
{
    tok_spec *s = &x->spec;
    size_t len;
    const char *text = token_text(v, &len);
    if (!text) return TESS_OK;
    for (size_t i = 0; i < s->n_added; i++)
        if (s->added[i].len == len && memcmp(s->added[i].text, text, len) == 0) {
            s->added[i].flags |= TOK_ADDED_SPECIAL;
            return TESS_OK;
        }
    int64_t id = spm_find(x, text, len);
    return add_named(x, id >= 0 ? id : x->next, text, len, TOK_ADDED_SPECIAL, "tokenizer_config.json");
}

/* What tokenizer_config.json says of key, else special_tokens_map.json; NULL = neither has it. */
static const json_t *named(const spm_state *x, const char *key)
{
    const json_t *v = json_object_get(x->config, key);
    return v ? v : json_object_get(x->special, key);
}

tess_status spm_read_added(spm_state *x)
{
    static const char *const keys[] = {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
    static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens"};
    const json_t *decoder = json_object_get(x->config, "added_tokens_decoder");
    x->next = x->spec.n_vocab;
    for (uint32_t id = 0; id < x->spec.n_vocab; id++) {
        uint32_t type = x->model.pieces[id].type;
        if (type != PIECE_CONTROL && type != PIECE_UNKNOWN) continue;
        TRY(spm_add(x, id, x->spec.text[id], x->spec.len[id], TOK_ADDED_SPECIAL));
    }
    if (json_is_object(decoder)) TRY(read_decoder_list(x, decoder));
    else TRY(read_added_file(x));
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) TRY(make_special(x, named(x, keys[i])));
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        const json_t *list = named(x, lists[i]);
        for (size_t k = 0; k < json_array_size(list); k++) TRY(make_special(x, json_array_get(list, k)));
    }
    return TESS_OK;
}

/* ---- named tokens ---- */

static int64_t any_id(const spm_state *x, const char *text, size_t len)
{
    for (size_t i = 0; i < x->spec.n_added; i++)
        if (x->spec.added[i].len == len && memcmp(x->spec.added[i].text, text, len) == 0) return x->spec.added[i].id;
    return spm_find(x, text, len);
}

tess_status spm_put_named(spm_state *x, kvs_builder *b)
{
    static const char *const names[] = {"bos", "eos", "unk", "pad"};
    const int64_t own[] = {x->model.bos, x->model.eos, x->model.unk, x->model.pad};
    int64_t id[ARRAY_LEN(names)];
    tok_spec *s = &x->spec;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char key[32];
        size_t len;
        snprintf(key, sizeof key, "%s_token", names[i]);
        const json_t *v = named(x, key);
        const char *text = token_text(v, &len);
        id[i] = v ? -1 : own[i]; /* null says that there is none */
        if (text) id[i] = any_id(x, text, len);
        else if (id[i] >= 0) text = s->text[id[i]], len = s->len[id[i]];
        if (text) tok_spec_put_named(b, names[i], text, len, id[i]);
    }
    s->has_post = true;
    if (x->add_bos && id[0] >= 0) s->post[s->n_post++] = (int32_t)id[0];
    s->post[s->n_post++] = -1;
    if (x->add_eos && id[1] >= 0) s->post[s->n_post++] = (int32_t)id[1];
    return TESS_OK;
}
