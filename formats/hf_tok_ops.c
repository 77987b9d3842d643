/* hf_tok_ops.c - normalizers, pre-tokenizers, decoders and post-processor of tokenizer.json as lists of operations. */
#include "hf_tok_ops.h"

#include <stdio.h>

#include "pattern.h"
#include "utf8.h"

/* ---- typed members ---- */

bool tj_fail(tj_reader *r, tess_status st, const char *fmt, ...)
{
    if (r->st < 0) return false;
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    r->st = ERR(r->err, st, "%s: %s", r->file, text);
    return false;
}

/* Member key of o, NULL when absent or null. */
static const json_t *member(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return v && !json_is_null(v) ? v : NULL;
}
bool tj_bool(tj_reader *r, const json_t *o, const char *path, const char *key, bool def)
{
    const json_t *v = member(o, key);
    if (v && !json_is_boolean(v)) return tj_fail(r, TESS_E_FORMAT, "%s%s%s is not true or false", path, *path ? "." : "", key);
    return v ? json_is_true(v) : def;
}
int64_t tj_int(tj_reader *r, const json_t *o, const char *path, const char *key, int64_t def)
{
    const json_t *v = member(o, key);
    if (v && !json_is_integer(v)) return tj_fail(r, TESS_E_FORMAT, "%s.%s is not a whole number", path, key), def;
    return v ? json_integer_value(v) : def;
}
const char *tj_str(tj_reader *r, const json_t *o, const char *path, const char *key, size_t *len)
{
    const json_t *v = member(o, key);
    *len = 0;
    if (v && !json_is_string(v)) return tj_fail(r, TESS_E_FORMAT, "%s%s%s is not a string", path, *path ? "." : "", key), NULL;
    if (!v) return NULL;
    *len = json_string_length(v);
    return json_string_value(v);
}

static const char *need_str(tj_reader *r, const json_t *o, const char *path, const char *key, size_t *len)
{
    const char *s = tj_str(r, o, path, key, len);
    if (!s) tj_fail(r, TESS_E_FORMAT, "%s.%s is missing", path, key);
    return s ? s : "";
}

/* A text of one character. */
static const char *need_char(tj_reader *r, const json_t *o, const char *path, const char *key, size_t *len)
{
    const char *s = need_str(r, o, path, key, len);
    uint32_t cp;
    if (r->st == TESS_OK && (*len == 0 || utf8_decode(s, *len, &cp) != *len))
        tj_fail(r, TESS_E_FORMAT, "%s.%s is not one character", path, key);
    return s;
}

/* Index of the member's text in names, which ends with NULL; absent: def. */
static uint32_t name_of(tj_reader *r, const json_t *o, const char *path, const char *key, const char *const *names, uint32_t def)
{
    size_t len;
    const char *s = tj_str(r, o, path, key, &len);
    if (!s) return def;
    for (uint32_t i = 0; names[i]; i++)
        if (strcmp(names[i], s) == 0) return i;
    tj_fail(r, TESS_E_UNSUPPORTED, "%s.%s \"%.60s\" is not supported", path, key, s);
    return def;
}
static const char *const split_names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous", NULL};
static const char *const prepend_names[] = {"never", "first", "always", NULL};

/* {"String": text} or {"Regex": text}; the expression must compile. */
static const char *need_pattern(tj_reader *r, const json_t *o, const char *path, uint32_t *kind, size_t *len)
{
    const json_t *p = member(o, "pattern");
    const json_t *text = p ? member(p, "String") : NULL, *regex = p ? member(p, "Regex") : NULL;
    const json_t *v = text ? text : regex;
    *len = 0;
    *kind = text ? TOK_PAT_LITERAL : TOK_PAT_REGEX;
    if (!json_is_string(v))
        return tj_fail(r, TESS_E_FORMAT, "%s.pattern is neither {\"String\": ...} nor {\"Regex\": ...}", path), "";
    *len = json_string_length(v);
    pattern *made;
    tess_error why;
    if (pattern_open(r->spec->m, json_string_value(v), *len, *kind == TOK_PAT_REGEX, &made, &why) < 0)
        tj_fail(r, why.status, "%s.pattern: %.300s", path, why.text);
    else
        pattern_close(made);
    return json_string_value(v);
}

static void op(tj_reader *r, spec_ops *o, const char *path, uint32_t code, uint32_t a, uint32_t b, uint32_t c, const char *t0,
               size_t n0, const char *t1, size_t n1)
{
    if (r->st == TESS_OK && !tok_spec_op(o, code, a, b, c, t0, n0, t1, n1))
        tj_fail(r, TESS_E_UNSUPPORTED, "%s: more than %d operations", path, TOK_OPS_MAX);
}
#define OP(list, code, a, b, c) op(r, list, path, code, a, b, c, NULL, 0, NULL, 0)

/* ---- the three kinds of lists: each reads one element ---- */

typedef void (*element_fn)(tj_reader *r, const json_t *o, const char *path, const char *type);

static void read_bert_normalizer(tj_reader *r, const json_t *o, const char *path)
{
    bool lower = tj_bool(r, o, path, "lowercase", true);
    uint32_t flags = tj_bool(r, o, path, "clean_text", true) ? TOK_BERT_CLEAN : 0;
    if (tj_bool(r, o, path, "handle_chinese_chars", true)) flags |= TOK_BERT_CHINESE;
    if (tj_bool(r, o, path, "strip_accents", lower)) flags |= TOK_BERT_ACCENTS;
    if (lower) flags |= TOK_BERT_LOWER;
    OP(&r->spec->norm, TOK_N_BERT, flags, 0, 0);
}

static void read_normalizer(tj_reader *r, const json_t *o, const char *path, const char *type)
{
    static const struct { const char *type; uint32_t code; } plain[] = {
        {"NFC", TOK_N_NFC}, {"NFD", TOK_N_NFD}, {"NFKC", TOK_N_NFKC}, {"NFKD", TOK_N_NFKD}, {"Lowercase", TOK_N_LOWERCASE},
        {"StripAccents", TOK_N_STRIP_ACCENTS}, {"Nmt", TOK_N_NMT}, {"ByteLevel", TOK_N_BYTE_LEVEL}};
    spec_ops *list = &r->spec->norm;
    size_t n0, n1;
    for (size_t i = 0; i < ARRAY_LEN(plain); i++) {
        if (strcmp(type, plain[i].type) != 0) continue;
        OP(list, plain[i].code, 0, 0, 0);
        return;
    }
    if (strcmp(type, "BertNormalizer") == 0) {
        read_bert_normalizer(r, o, path);
    } else if (strcmp(type, "Precompiled") == 0) {
        tj_read_charsmap(r, o, path);
        OP(list, TOK_N_PRECOMPILED, 0, 0, 0);
    } else if (strcmp(type, "Prepend") == 0) {
        const char *t = need_str(r, o, path, "prepend", &n0);
        op(r, list, path, TOK_N_PREPEND, 0, 0, 0, t, n0, NULL, 0);
    } else if (strcmp(type, "Strip") == 0) {
        OP(list, TOK_N_STRIP, tj_bool(r, o, path, "strip_left", true), tj_bool(r, o, path, "strip_right", true), 0);
    } else if (strcmp(type, "Replace") == 0) {
        uint32_t kind;
        const char *p = need_pattern(r, o, path, &kind, &n0), *c = need_str(r, o, path, "content", &n1);
        op(r, list, path, TOK_N_REPLACE, kind, 0, 0, p, n0, c, n1);
    } else {
        tj_fail(r, TESS_E_UNSUPPORTED, "%s.type \"%.60s\" is not supported", path, type);
    }
}

static uint32_t prepend_scheme(tj_reader *r, const json_t *o, const char *path)
{
    if (!tj_bool(r, o, path, "add_prefix_space", true)) return TOK_PREPEND_NEVER;
    return name_of(r, o, path, "prepend_scheme", prepend_names, TOK_PREPEND_ALWAYS);
}

static void read_pre_tokenizer(tj_reader *r, const json_t *o, const char *path, const char *type)
{
    spec_ops *list = &r->spec->pre;
    size_t n;
    if (strcmp(type, "ByteLevel") == 0) {
        OP(list, TOK_P_BYTE_LEVEL, tj_bool(r, o, path, "add_prefix_space", true), tj_bool(r, o, path, "use_regex", true), 0);
    } else if (strcmp(type, "Metaspace") == 0) {
        const char *t = need_char(r, o, path, "replacement", &n);
        op(r, list, path, TOK_P_METASPACE, prepend_scheme(r, o, path), tj_bool(r, o, path, "split", true), 0, t, n, NULL, 0);
    } else if (strcmp(type, "Split") == 0) {
        uint32_t kind, how = name_of(r, o, path, "behavior", split_names, TOK_SPLIT_REMOVED);
        const char *p = need_pattern(r, o, path, &kind, &n);
        op(r, list, path, TOK_P_SPLIT, kind, how, tj_bool(r, o, path, "invert", false), p, n, NULL, 0);
    } else if (strcmp(type, "Digits") == 0) {
        OP(list, TOK_P_DIGITS, tj_bool(r, o, path, "individual_digits", false), 0, 0);
    } else if (strcmp(type, "Punctuation") == 0) {
        OP(list, TOK_P_PUNCTUATION, 0, name_of(r, o, path, "behavior", split_names, TOK_SPLIT_ISOLATED), 0);
    } else if (strcmp(type, "Whitespace") == 0) {
        OP(list, TOK_P_WHITESPACE, 0, 0, 0);
    } else if (strcmp(type, "WhitespaceSplit") == 0) {
        OP(list, TOK_P_WHITESPACE_SPLIT, 0, 0, 0);
    } else if (strcmp(type, "BertPreTokenizer") == 0) {
        OP(list, TOK_P_WHITESPACE_SPLIT, 0, 0, 0);
        OP(list, TOK_P_PUNCTUATION, 0, TOK_SPLIT_ISOLATED, 0);
    } else if (strcmp(type, "CharDelimiterSplit") == 0 || strcmp(type, "Delimiter") == 0) {
        const char *t = need_char(r, o, path, "delimiter", &n);
        op(r, list, path, TOK_P_DELIMITER, 0, 0, 0, t, n, NULL, 0);
    } else if (strcmp(type, "FixedLength") == 0) {
        int64_t length = tj_int(r, o, path, "length", 5);
        if (length < 1 || length > INT32_MAX) tj_fail(r, TESS_E_FORMAT, "%s.length is not a positive number", path);
        OP(list, TOK_P_FIXED_LENGTH, (uint32_t)length, 0, 0);
    } else {
        tj_fail(r, TESS_E_UNSUPPORTED, "%s.type \"%.60s\" is not supported", path, type);
    }
}

static void read_decoder(tj_reader *r, const json_t *o, const char *path, const char *type)
{
    spec_ops *list = &r->spec->dec;
    size_t n0, n1;
    if (strcmp(type, "ByteLevel") == 0) {
        OP(list, TOK_D_BYTE_LEVEL, 0, 0, 0);
    } else if (strcmp(type, "ByteFallback") == 0) {
        OP(list, TOK_D_BYTE_FALLBACK, 0, 0, 0);
    } else if (strcmp(type, "Fuse") == 0) {
        OP(list, TOK_D_FUSE, 0, 0, 0);
    } else if (strcmp(type, "Replace") == 0) {
        uint32_t kind;
        const char *p = need_pattern(r, o, path, &kind, &n0), *c = need_str(r, o, path, "content", &n1);
        op(r, list, path, TOK_D_REPLACE, kind, 0, 0, p, n0, c, n1);
    } else if (strcmp(type, "Strip") == 0) {
        const char *t = need_char(r, o, path, "content", &n0);
        int64_t start = tj_int(r, o, path, "start", 0), stop = tj_int(r, o, path, "stop", 0);
        if (start < 0 || start >= INT32_MAX || stop < 0 || stop >= INT32_MAX)
            tj_fail(r, TESS_E_FORMAT, "%s: start or stop is out of range", path);
        op(r, list, path, TOK_D_STRIP, (uint32_t)start, (uint32_t)stop, 0, t, n0, NULL, 0);
    } else if (strcmp(type, "Metaspace") == 0) {
        const char *t = need_char(r, o, path, "replacement", &n0);
        op(r, list, path, TOK_D_METASPACE, prepend_scheme(r, o, path), 0, 0, t, n0, NULL, 0);
    } else if (strcmp(type, "WordPiece") == 0) {
        const char *t = need_str(r, o, path, "prefix", &n0);
        op(r, list, path, TOK_D_WORDPIECE, tj_bool(r, o, path, "cleanup", true), 0, 0, t, n0, NULL, 0);
    } else if (strcmp(type, "BPEDecoder") == 0) {
        const char *t = need_str(r, o, path, "suffix", &n0);
        op(r, list, path, TOK_D_BPE, 0, 0, 0, t, n0, NULL, 0);
    } else {
        tj_fail(r, TESS_E_UNSUPPORTED, "%s.type \"%.60s\" is not supported", path, type);
    }
}

/* One element, or a Sequence of them whose members are called path[i]. */
static void read_element(tj_reader *r, const json_t *o, const char *path, const char *list_key, element_fn read, int depth)
{
    size_t len;
    if (!json_is_object(o) || depth > 8) {
        tj_fail(r, TESS_E_FORMAT, "%s is not an object, or nested too deep", path);
        return;
    }
    const char *type = need_str(r, o, path, "type", &len);
    if (r->st < 0) return;
    if (strcmp(type, "Sequence") != 0) {
        read(r, o, path, type);
        return;
    }
    const json_t *list = member(o, list_key);
    if (!json_is_array(list)) tj_fail(r, TESS_E_FORMAT, "%s.%s is not a list", path, list_key);
    for (size_t i = 0; r->st == TESS_OK && i < json_array_size(list); i++) {
        char sub[200];
        snprintf(sub, sizeof sub, "%.150s[%zu]", path, i);
        read_element(r, json_array_get(list, i), sub, list_key, read, depth + 1);
    }
}

/* ---- post-processor ---- */

static void post_put(tj_reader *r, const char *path, int64_t v)
{
    tok_spec *s = r->spec;
    if (v < -1 || v >= INT32_MAX) tj_fail(r, TESS_E_FORMAT, "%s: %lld is not an id", path, (long long)v);
    else if (s->n_post == SPEC_POST_MAX) tj_fail(r, TESS_E_UNSUPPORTED, "%s adds more than %d tokens", path, SPEC_POST_MAX);
    else s->post[s->n_post++] = (int32_t)v;
}

static void read_template(tj_reader *r, const json_t *o, const char *path)
{
    const json_t *single = member(o, "single"), *tokens = member(o, "special_tokens");
    if (!json_is_array(single)) tj_fail(r, TESS_E_FORMAT, "%s.single is not a list", path);
    for (size_t i = 0; r->st == TESS_OK && i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i), *seq = member(piece, "Sequence"), *sp = member(piece, "SpecialToken");
        size_t len;
        const char *id = need_str(r, seq ? seq : sp, path, "id", &len);
        if (r->st < 0) return;
        if (seq) {
            if (strcmp(id, "A") != 0)
                tj_fail(r, TESS_E_UNSUPPORTED, "%s.single[%zu]: sequence \"%.20s\" is not supported", path, i, id);
            post_put(r, path, -1);
            continue;
        }
        const json_t *ids = member(member(tokens, id), "ids");
        if (!json_is_array(ids)) tj_fail(r, TESS_E_FORMAT, "%s.special_tokens has no \"%.60s\"", path, id);
        for (size_t k = 0; r->st == TESS_OK && k < json_array_size(ids); k++) {
            const json_t *v = json_array_get(ids, k);
            if (!json_is_integer(v) || json_integer_value(v) < 0)
                tj_fail(r, TESS_E_FORMAT, "%s.special_tokens \"%.60s\": not an id", path, id);
            else post_put(r, path, json_integer_value(v));
        }
    }
}

/* ["text", id] */
static int64_t pair_id(tj_reader *r, const json_t *o, const char *path, const char *key)
{
    const json_t *v = json_array_get(member(o, key), 1);
    if (!json_is_integer(v) || json_integer_value(v) < 0) return tj_fail(r, TESS_E_FORMAT, "%s.%s is not [text, id]", path, key), 0;
    return json_integer_value(v);
}

static void read_post(tj_reader *r, const json_t *o, const char *path, const char *type)
{
    if (strcmp(type, "ByteLevel") == 0) return; /* only moves offsets */
    if (r->spec->has_post) {
        tj_fail(r, TESS_E_UNSUPPORTED, "%s.type \"%.60s\" behind another post-processor is not supported", path, type);
        return;
    }
    r->spec->has_post = true;
    if (strcmp(type, "TemplateProcessing") == 0) {
        read_template(r, o, path);
    } else if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) {
        post_put(r, path, pair_id(r, o, path, "cls"));
        post_put(r, path, -1);
        post_put(r, path, pair_id(r, o, path, "sep"));
    } else {
        tj_fail(r, TESS_E_UNSUPPORTED, "%s.type \"%.60s\" is not supported", path, type);
    }
}

void tj_read_ops(tj_reader *r, const json_t *root)
{
    static const struct { const char *key, *list; element_fn read;
    } kinds[] = {{"normalizer", "normalizers", read_normalizer},
                 {"pre_tokenizer", "pretokenizers", read_pre_tokenizer},
                 {"decoder", "decoders", read_decoder},
                 {"post_processor", "processors", read_post}};
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        const json_t *o = member(root, kinds[i].key);
        if (o && r->st == TESS_OK) read_element(r, o, kinds[i].key, kinds[i].list, kinds[i].read, 0);
    }
    r->spec->has_dec = member(root, "decoder") != NULL;
}
