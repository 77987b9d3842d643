/*
 * gguf_tokenizer.c - see gguf_tokenizer.h.
 *
 * Tokens of type control and unknown become special added tokens, those of type user-defined plain added tokens; none of them is
 * normalized.
 *
 * "smollm" splits digits one by one. Only 0 to 9 are taken here, not all of \p{N}: then the ids are those of the tokenizer.json
 * that transformers makes of the same GGUF, which splits no digits (the vocabulary has no token of two ASCII digits, so for them
 * it hardly matters). Files whose numbers are like U+00BD differ from llama.cpp in the space in front of them.
 *
 * "llama" is SentencePiece's BPE (tok_index.h); among merges of equal score the longer sides come first.
 */
#include "gguf_tokenizer.h"

#include "tok_index.h"
#include "utf8.h"

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4 };
enum { GGUF_I32 = 5, GGUF_U32 = 4, GGUF_F32 = 6, GGUF_STR = 8, GGUF_ARR = 9 }; /* types of values */
#define KEY(name) "tokenizer.ggml." name

typedef struct {
    const source *src;
    tok_spec spec;
    const gguf_kv *types; /* NULL = all normal */
    tok_index index;
    tess_error *err;
} reader;

static uint32_t type_of(const reader *r, uint32_t id) { return r->types ? rd32(r->types->data + (size_t)id * 4) : TYPE_NORMAL; }

/* An array under key with elements of one of two types; NULL when absent, and *st set when it is another thing. */
static const gguf_kv *array_of(reader *r, const char *key, uint32_t elem, uint32_t elem2, uint64_t n, tess_status *st)
{
    const gguf_kv *v = gguf_find(r->src, key);
    *st = TESS_OK;
    if (v && (v->type != GGUF_ARR || (v->elem_type != elem && v->elem_type != elem2) || (n && v->n != n)))
        *st = ERR(r->err, TESS_E_FORMAT, "%s: %s is not an array as it should be", r->src->paths[0], key);
    return v;
}

static tess_status read_tokens(reader *r)
{
    tess_status st;
    tok_spec *s = &r->spec;
    const gguf_kv *v = array_of(r, KEY("tokens"), GGUF_STR, GGUF_STR, 0, &st);
    TRY(st);
    if (!v || v->n == 0) return ERR(r->err, TESS_E_FORMAT, "%s: no tokenizer.ggml.tokens", r->src->paths[0]);
    TRY(tok_spec_vocab(s, v->n, r->err));
    r->types = array_of(r, KEY("token_type"), GGUF_I32, GGUF_U32, v->n, &st);
    TRY(st);
    for (uint32_t id = 0; id < s->n_vocab; id++) {
        const char *text = gguf_str_at(v, id, &s->len[id]);
        if (!utf8_valid(text, s->len[id])) return ERR(r->err, TESS_E_FORMAT, "%s: token %u is not UTF-8", r->src->paths[0], id);
        s->text[id] = arena_strndup(&s->a, text, s->len[id]);
        if (!s->text[id]) return ERR(r->err, TESS_E_NOMEM, "no memory for %u tokens", s->n_vocab);
    }
    return tok_index_build(&r->index, s, r->err);
}

static int64_t find_id(const reader *r, const char *s, size_t n) { return tok_index_find(&r->index, &r->spec, s, n); }

static tess_status read_added(reader *r)
{
    for (uint32_t id = 0; id < r->spec.n_vocab; id++) {
        uint32_t type = type_of(r, id);
        if ((type != TYPE_CONTROL && type != TYPE_UNKNOWN && type != TYPE_USER) || r->spec.len[id] == 0) continue;
        TRY(tok_spec_add(&r->spec, (spec_added){r->spec.text[id], r->spec.len[id], id, type == TYPE_USER ? 0 : TOK_ADDED_SPECIAL},
                         r->err));
    }
    return TESS_OK;
}

/* ---- gpt2 ---- */

#define DEEPSEEK3                                                                                                          \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*" \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(contraction) \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" contraction "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" contraction
#define CASED_TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

/* The patterns of each family, applied one after another; names that share them; whether whole words win over merges and
 * a BOS is added when the file does not say. */
static const struct { const char *names, *patterns[5]; bool whole_words, bos;
} families[] = {
    {" gpt-2 phi-2 mpt olmo jais trillion jina-es jina-de jina-v1-en jina-v2-es jina-v2-de roberta-bpe a.x-4.0 mellum ",
     {TOK_PATTERN_GPT2},
     0,
     0},
    {" starcoder refact command-r codeshell exaone minerva-7b ", {"\\p{N}", TOK_PATTERN_GPT2}, 0, 0},
    {" smollm ", {"[0-9]", TOK_PATTERN_GPT2}, 0, 0}, /* see the head of the file */
    {" llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral lfm2 ", {TOK_PATTERN_LLAMA3}, 1, 1},
    {" dbrx smaug-bpe ", {TOK_PATTERN_LLAMA3}, 0, 0},
    {" qwen2 deepseek-r1-qwen stablelm2 megrez ", {TOK_PATTERN_QWEN2}, 0, 0},
    {" falcon ", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", TOK_PATTERN_GPT2, "[0-9][0-9][0-9]"}, 0, 0},
    {" default ", {"[\\p{P}\\$\\+<=>\\^~\\|]+", TOK_PATTERN_GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, 0, 0},
    {" tekken ", {CASED("") "|\\p{N}" CASED_TAIL}, 1, 1},
    {" gpt-4o llama4 ", {CASED(CONTRACTION) "|\\p{N}{1,3}" CASED_TAIL}, 0, 0},
    {" deepseek-coder ", {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", "\\p{N}"}, 0, 0},
    {" deepseek-v3 ", {"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK3}, 0, 0}};

static int family_of(const char *pre, size_t len)
{
    char word[64] = " ";
    if (len == 0 || len > sizeof word - 3 || memchr(pre, ' ', len) || memchr(pre, 0, len)) return -1;
    memcpy(word + 1, pre, len);
    word[len + 1] = ' ';
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (strstr(families[i].names, word)) return (int)i;
    return -1;
}

static tess_status read_merges(reader *r)
{
    tess_status st;
    tok_spec *s = &r->spec;
    const gguf_kv *v = array_of(r, KEY("merges"), GGUF_STR, GGUF_STR, 0, &st);
    TRY(st);
    if (!v) return ERR(r->err, TESS_E_FORMAT, "%s: no tokenizer.ggml.merges", r->src->paths[0]);
    s->merges = arena_alloc(&s->a, v->n + 1, 3 * sizeof *s->merges);
    buf joined;
    buf_init(&joined, s->m);
    if (!s->merges) return ERR(r->err, TESS_E_NOMEM, "no memory for merges");
    for (uint64_t i = 0; i < v->n && st == TESS_OK; i++) {
        size_t n;
        const char *text = gguf_str_at(v, i, &n), *space = n > 1 ? memchr(text + 1, ' ', n - 1) : NULL;
        size_t left = space ? (size_t)(space - text) : n;
        joined.len = 0;
        if (!buf_put(&joined, text, left) || (space && !buf_put(&joined, space + 1, n - left - 1)))
            st = ERR(r->err, TESS_E_NOMEM, "no memory for merges");
        int64_t id[3] = {find_id(r, text, left), space ? find_id(r, space + 1, n - left - 1) : -1,
                         find_id(r, joined.data ? joined.data : "", joined.len)};
        if (st == TESS_OK && (id[0] < 0 || id[1] < 0 || id[2] < 0))
            st = ERR(r->err, TESS_E_FORMAT, "%s: tokenizer.ggml.merges[%llu] \"%.*s\" is not of tokens", r->src->paths[0],
                     (unsigned long long)i, (int)MIN(n, 60u), text);
        for (int k = 0; k < 3; k++) s->merges[s->n_merges * 3 + (unsigned)k] = (uint32_t)id[k];
        s->n_merges++;
    }
    buf_free(&joined);
    return st;
}

static tess_status read_gpt2(reader *r, bool *bos)
{
    tok_spec *s = &r->spec;
    size_t len;
    const char *pre = gguf_str(r->src, KEY("pre"), &len);
    if (!pre) pre = "default", len = 7;
    int f = family_of(pre, len);
    if (f < 0)
        return ERR(r->err, TESS_E_UNSUPPORTED, "%s: tokenizer.ggml.pre \"%.*s\" is not supported", r->src->paths[0],
                   (int)MIN(len, 60u), pre);
    for (size_t i = 0; i < ARRAY_LEN(families[f].patterns) && families[f].patterns[i]; i++) {
        const char *p = families[f].patterns[i];
        tok_spec_op(&s->pre, TOK_P_SPLIT, TOK_PAT_REGEX, TOK_SPLIT_ISOLATED, 0, p, strlen(p), NULL, 0);
    }
    tok_spec_op(&s->pre, TOK_P_BYTE_LEVEL, false, false, 0, NULL, 0, NULL, 0);
    tok_spec_op(&s->dec, TOK_D_BYTE_LEVEL, 0, 0, 0, NULL, 0, NULL, 0);
    if (families[f].whole_words) s->flags |= TOK_MODEL_IGNORE_MERGES;
    *bos = families[f].bos;
    return read_merges(r);
}

/* ---- llama ---- */

/* Among equal scores: by falling length of the sides, then by ids. */
static int by_score(const void *x, const void *y)
{
    static const int places[3] = {2, 0, 1};
    const tok_cut *a = x, *b = y;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    for (int i = 0; i < 2; i++)
        if (a->chars[i] != b->chars[i]) return a->chars[i] > b->chars[i] ? -1 : 1;
    for (int i = 0; i < 3; i++)
        if (a->id[places[i]] != b->id[places[i]]) return a->id[places[i]] < b->id[places[i]] ? -1 : 1;
    return 0;
}

static tess_status merges_of_scores(reader *r)
{
    tess_status st;
    tok_spec *s = &r->spec;
    const gguf_kv *scores = array_of(r, KEY("scores"), GGUF_F32, GGUF_F32, s->n_vocab, &st);
    TRY(st);
    if (!scores) return ERR(r->err, TESS_E_FORMAT, "%s: no tokenizer.ggml.scores", r->src->paths[0]);
    float *score = arena_alloc(&s->a, s->n_vocab, sizeof *score);
    uint8_t *use = arena_alloc(&s->a, s->n_vocab, 1);
    if (!score || !use) return ERR(r->err, TESS_E_NOMEM, "no memory for %u tokens", s->n_vocab);
    memcpy(score, scores->data, (size_t)s->n_vocab * 4);
    for (uint32_t id = 0; id < s->n_vocab; id++) {
        uint32_t type = type_of(r, id);
        use[id] = TOK_CUT_SIDE | (type == TYPE_NORMAL || type == TYPE_USER ? TOK_CUT_WHOLE : 0);
        if (!(score[id] == score[id]))
            return ERR(r->err, TESS_E_FORMAT, "%s: tokenizer.ggml.scores[%u] is not a number", r->src->paths[0], id);
    }
    return tok_merges_of_scores(s, &r->index, score, use, by_score, r->err);
}

static tess_status read_llama(reader *r)
{
    static const char space[] = "\xe2\x96\x81";
    tok_spec *s = &r->spec;
    bool front = gguf_u64(r->src, KEY("add_space_prefix"), 1) != 0;
    uint64_t unk = gguf_u64(r->src, KEY("unknown_token_id"), 0);
    if (unk >= s->n_vocab) return ERR(r->err, TESS_E_FORMAT, "%s: unknown_token_id is not below %u", r->src->paths[0], s->n_vocab);
    s->unk = (int64_t)unk;
    s->flags = TOK_MODEL_BYTE_FALLBACK | TOK_MODEL_FUSE_UNK;
    if (front) tok_spec_op(&s->norm, TOK_N_PREPEND, 0, 0, 0, space, 3, NULL, 0);
    tok_spec_op(&s->norm, TOK_N_REPLACE, TOK_PAT_LITERAL, 0, 0, " ", 1, space, 3);
    tok_spec_op(&s->dec, TOK_D_REPLACE, TOK_PAT_LITERAL, 0, 0, space, 3, " ", 1);
    tok_spec_op(&s->dec, TOK_D_BYTE_FALLBACK, 0, 0, 0, NULL, 0, NULL, 0);
    tok_spec_op(&s->dec, TOK_D_FUSE, 0, 0, 0, NULL, 0, NULL, 0);
    if (front) tok_spec_op(&s->dec, TOK_D_STRIP, 1, 0, 0, " ", 1, NULL, 0);
    return merges_of_scores(r);
}

/* ---- all of it ---- */

/* UINT64_MAX = none, which some writers spell as the largest u32. */
static uint64_t id_of(const reader *r, const char *key)
{
    uint64_t id = gguf_u64(r->src, key, UINT64_MAX);
    return id == UINT32_MAX ? UINT64_MAX : id;
}

static tess_status put_named(reader *r, kvs_builder *b)
{
    static const char *const keys[][2] = {{"bos", KEY("bos_token_id")},
                                          {"eos", KEY("eos_token_id")},
                                          {"unk", KEY("unknown_token_id")},
                                          {"pad", KEY("padding_token_id")}};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        uint64_t id = id_of(r, keys[i][1]);
        if (id == UINT64_MAX) continue;
        if (id >= r->spec.n_vocab)
            return ERR(r->err, TESS_E_FORMAT, "%s: %s is %llu, not below %u", r->src->paths[0], keys[i][1], (unsigned long long)id,
                       r->spec.n_vocab);
        tok_spec_put_named(b, keys[i][0], r->spec.text[id], r->spec.len[id], (int64_t)id);
    }
    size_t len;
    const char *chat = gguf_str(r->src, "tokenizer.chat_template", &len);
    if (chat && !utf8_valid(chat, len))
        return ERR(r->err, TESS_E_FORMAT, "%s: tokenizer.chat_template is not UTF-8", r->src->paths[0]);
    if (chat) kvs_put_str(b, "chat.template", chat, len);
    return TESS_OK;
}

/* The ids around a text. put_named has checked them. */
static void read_post(reader *r, bool bos)
{
    tok_spec *s = &r->spec;
    uint64_t bos_id = id_of(r, KEY("bos_token_id")), eos_id = id_of(r, KEY("eos_token_id"));
    s->has_post = true;
    if (bos_id != UINT64_MAX && gguf_u64(r->src, KEY("add_bos_token"), bos)) s->post[s->n_post++] = (int32_t)bos_id;
    s->post[s->n_post++] = -1;
    if (eos_id != UINT64_MAX && gguf_u64(r->src, KEY("add_eos_token"), 0)) s->post[s->n_post++] = (int32_t)eos_id;
}

static tess_status read_all(reader *r, const char *model, size_t len, kvs_builder *b)
{
    bool bos = true;
    TRY(read_tokens(r));
    r->spec.model = "bpe";
    r->spec.has_dec = true;
    if (len == 4 && memcmp(model, "gpt2", 4) == 0) TRY(read_gpt2(r, &bos));
    else if (len == 5 && memcmp(model, "llama", 5) == 0) TRY(read_llama(r));
    else
        return ERR(r->err, TESS_E_UNSUPPORTED, "%s: tokenizer.ggml.model \"%.*s\" is not supported", r->src->paths[0],
                   (int)MIN(len, 60u), model);
    TRY(read_added(r));
    TRY(put_named(r, b));
    read_post(r, bos);
    return tok_spec_put(&r->spec, b, r->err);
}

tess_status gguf_tokenizer_put(const mem *m, const source *src, kvs_builder *b, tess_error *err)
{
    size_t len;
    const char *model = gguf_str(src, KEY("model"), &len);
    if (!model) return ERR(err, TESS_E_UNSUPPORTED, "%s: no tokenizer (tokenizer.ggml.model)", src->paths[0]);
    reader r = {.src = src, .err = err};
    tok_spec_init(&r.spec, m);
    tess_status st = read_all(&r, model, len, b);
    tok_spec_free(&r.spec);
    return st;
}
