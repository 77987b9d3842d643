/* jinja_json.c - a strict JSON reader that marks untrusted strings, and json.dumps. See jinja_json.h. */
#include "jinja_json.h"

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "utf8.h"

typedef struct {
    jj *j;
    const char *s;
    size_t n, at;
    uint32_t depth;
    bool taint;
    const char *const *untrusted;
} reader;

static bool bad(reader *r, const char *what)
{
    if (r->j->st >= 0) r->j->st = ERR(r->j->err, TESS_E_ARG, "chat json, byte %zu: %s", r->at, what);
    return false;
}
static bool parse_value(reader *r, val *out);

static void skip_space(reader *r)
{
    while (r->at < r->n && memchr(" \t\n\r", r->s[r->at], 4)) r->at++;
}
static bool take(reader *r, char c)
{
    skip_space(r);
    if (r->at >= r->n || r->s[r->at] != c) return false;
    r->at++;
    return true;
}

static bool hex4(reader *r, uint32_t *out)
{
    if (r->n - r->at < 4) return bad(r, "a \\u escape is cut off");
    *out = 0;
    for (int i = 0; i < 4; i++) {
        char c = r->s[r->at];
        uint32_t d = c >= '0' && c <= '9'                 ? (uint32_t)(c - '0')
                     : (c | 32) >= 'a' && (c | 32) <= 'f' ? (uint32_t)((c | 32) - 'a' + 10)
                                                          : 16;
        if (d > 15) return bad(r, "a \\u escape wants four hexadecimal digits");
        *out = *out * 16 + d;
        r->at++;
    }
    return true;
}

/* After a backslash. */
static bool parse_escape(reader *r, uint32_t *cp)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (r->at >= r->n) return bad(r, "a string does not end");
    char c = r->s[r->at++];
    const char *p = c ? strchr(from, c) : NULL;
    if (p) return *cp = (uint8_t)to[p - from], true;
    if (c != 'u') return bad(r, "unknown escape in a string");
    if (!hex4(r, cp)) return false;
    if (*cp >= 0xdc00 && *cp < 0xe000) return bad(r, "a \\u escape is half a surrogate pair");
    if (*cp >= 0xd800 && *cp < 0xdc00) {
        uint32_t low;
        if (r->n - r->at < 6 || r->s[r->at] != '\\' || r->s[r->at + 1] != 'u')
            return bad(r, "a \\u escape is half a surrogate pair");
        r->at += 2;
        if (!hex4(r, &low)) return false;
        if (low < 0xdc00 || low >= 0xe000) return bad(r, "a \\u escape is half a surrogate pair");
        *cp = 0x10000 + ((*cp - 0xd800) << 10) + (low - 0xdc00);
    }
    return true;
}

/* At the opening quote. */
static NOINLINE bool parse_string(reader *r, val *out)
{
    size_t end = ++r->at;
    while (end < r->n && r->s[end] != '"') end += r->s[end] == '\\' ? 2 : 1;
    if (end >= r->n) return bad(r, "a string does not end");
    char *text = jj_alloc(r->j, end - r->at + 1, 1);
    size_t len = 0;
    if (!text) return false;
    while (r->s[r->at] != '"') {
        if ((uint8_t)r->s[r->at] < 0x20) return bad(r, "a control character in a string must be escaped");
        if (r->s[r->at] != '\\') {
            text[len++] = r->s[r->at++];
            continue;
        }
        uint32_t cp;
        r->at++;
        if (!parse_escape(r, &cp)) return false;
        len += utf8_encode(cp, text + len);
    }
    r->at++;
    uint8_t *marks = r->taint ? jj_alloc(r->j, len + 1, 1) : NULL;
    if (r->taint && !marks) return false;
    if (marks) memset(marks, 1, len);
    const jstr *s = str_new(r->j, text, len, marks);
    *out = v_str(s);
    return s != NULL;
}

static NOINLINE bool parse_number(reader *r, val *out)
{
    char text[64];
    size_t from = r->at, n = 0;
    bool real = false;
#define DIGITS() \
    do { \
        if (r->at >= r->n || r->s[r->at] < '0' || r->s[r->at] > '9') return bad(r, "a number lacks digits"); \
        while (r->at < r->n && r->s[r->at] >= '0' && r->s[r->at] <= '9') r->at++; \
    } while (0)
    if (r->s[r->at] == '-') r->at++;
    if (r->at < r->n && r->s[r->at] == '0') r->at++;
    else DIGITS();
    if (r->at < r->n && r->s[r->at] == '.') {
        real = true, r->at++;
        DIGITS();
    }
    if (r->at < r->n && (r->s[r->at] | 32) == 'e') {
        real = true, r->at++;
        if (r->at < r->n && (r->s[r->at] == '+' || r->s[r->at] == '-')) r->at++;
        DIGITS();
    }
#undef DIGITS
    n = r->at - from;
    if (n >= sizeof text - 8) return bad(r, "a number has too many digits");
    memcpy(text, r->s + from, n);
    text[n] = 0;
    errno = 0;
    if (!real) {
        *out = v_int(strtoll(text, NULL, 10));
        return errno ? bad(r, "an integer does not fit in 64 bits") : true;
    }
    char *point = strchr(text, '.');
    const char *want = localeconv()->decimal_point; /* strtod follows the program's locale */
    if (point && strlen(want) == 1) *point = *want;
    *out = v_float(strtod(text, NULL));
    return isfinite(out->u.f) ? true : bad(r, "a number is too large");
}

static bool push(reader *r, val **v, uint32_t *n, uint32_t *cap, val item)
{
    if (*n == *cap) {
        uint32_t want = *cap ? *cap * 2 : 4;
        val *p = jj_alloc(r->j, want, sizeof *p);
        if (!p) return false;
        if (*n) memcpy(p, *v, *n * sizeof *p);
        *v = p, *cap = want;
    }
    (*v)[(*n)++] = item;
    return true;
}
static bool parse_array(reader *r, val *out)
{
    val *v = NULL;
    uint32_t n = 0, cap = 0;
    r->at++;
    if (take(r, ']')) return v_list(r->j, V_LIST, v, 0, out);
    do {
        val item;
        if (!parse_value(r, &item) || !push(r, &v, &n, &cap, item)) return false;
    } while (take(r, ','));
    return take(r, ']') ? v_list(r->j, V_LIST, v, n, out) : bad(r, "expected ',' or ']'");
}

static bool is_untrusted(const reader *r, const jstr *key)
{
    for (const char *const *k = r->untrusted; *k; k++)
        if (str_is(key, *k)) return true;
    return false;
}
static bool parse_object(reader *r, val *out)
{
    jdict *d = dict_new(r->j);
    if (!d) return false;
    *out = (val){.type = V_DICT, .u.d = d};
    r->at++;
    if (take(r, '}')) return true;
    do {
        val key, item;
        const val *old;
        skip_space(r);
        if (r->at >= r->n || r->s[r->at] != '"') return bad(r, "expected a string as key");
        if (!parse_string(r, &key)) return false;
        if (!take(r, ':')) return bad(r, "expected ':'");
        if (r->depth == 1) r->taint = is_untrusted(r, key.u.s);
        if (!dict_find(r->j, d, key, &old)) return false;
        if (old) return bad(r, "a key appears twice in one object");
        if (!parse_value(r, &item) || !dict_set(r->j, d, key, item)) return false;
        if (r->depth == 1) r->taint = false;
    } while (take(r, ','));
    return take(r, '}') ? true : bad(r, "expected ',' or '}'");
}

static bool parse_word(reader *r, const char *word, val v, val *out)
{
    size_t n = strlen(word);
    if (r->n - r->at < n || memcmp(r->s + r->at, word, n) != 0) return bad(r, "expected a value");
    r->at += n;
    *out = v;
    return true;
}

static bool parse_value(reader *r, val *out)
{
    bool ok;
    skip_space(r);
    if (r->at >= r->n) return bad(r, "the text ends where a value was expected");
    switch (r->s[r->at]) {
    case '"': return parse_string(r, out);
    case 't': return parse_word(r, "true", v_bool(true), out);
    case 'f': return parse_word(r, "false", v_bool(false), out);
    case 'n': return parse_word(r, "null", v_none(), out);
    case '[':
    case '{': break;
    case '-':
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9': return parse_number(r, out);
    default: return bad(r, "expected a value");
    }
    if (r->depth == JJ_MAX_DATA_DEPTH) return bad(r, "nested too deeply");
    r->depth++;
    ok = r->s[r->at] == '[' ? parse_array(r, out) : parse_object(r, out);
    r->depth--;
    return ok;
}

tess_status jinja_json_parse(jj *j, const char *s, size_t n, const char *const *untrusted_keys, val *out)
{
    reader r = {.j = j, .s = s, .n = n, .untrusted = untrusted_keys};
    if (!utf8_valid(s, n)) return j->st = ERR(j->err, TESS_E_ARG, "chat json is not valid UTF-8");
    if (!parse_value(&r, out)) goto done;
    skip_space(&r);
    if (r.at < n) bad(&r, "there is more text after the value");
done:
    if (j->st == TESS_E_TEMPLATE) j->st = ERR(j->err, TESS_E_ARG, "chat json is larger than a render may be");
    return j->st;
}

/* ---- json.dumps ----------------------------------------------------------------------------------- */

static bool newline(sb *b, const json_style *y, uint32_t level)
{
    if (!y->indent) return true;
    if (!sb_puts(b, "\n")) return false;
    for (uint32_t i = 0; i < level; i++)
        if (!sb_str(b, y->indent)) return false;
    return true;
}

static bool dump_float(sb *b, double f)
{
    if (isnan(f)) return sb_puts(b, "NaN");
    if (isinf(f)) return sb_puts(b, f < 0 ? "-Infinity" : "Infinity");
    return sb_float(b, f);
}

static bool dump_key(sb *b, val k, const json_style *y)
{
    sb text = {.j = b->j};
    val s = k;
    if (k.type == V_UNDEF || k.type == V_TUPLE || k.type > V_TUPLE)
        return jj_fail(b->j, "tojson: keys can not be '%s'", v_type_name(k));
    if (k.type != V_STR) {
        bool ok = k.type == V_BOOL    ? sb_puts(&text, k.u.b ? "true" : "false")
                  : k.type == V_NONE  ? sb_puts(&text, "null")
                  : k.type == V_FLOAT ? dump_float(&text, k.u.f)
                                      : sb_num(&text, k.u.i);
        if (!ok || !sb_done(&text, &s)) return false;
    }
    return sb_json_text(b, s.u.s, y->ascii);
}

/* Order of the entries of d: insertion, or by key. */
static bool entry_order(jj *j, const jdict *d, bool sort, uint32_t **out)
{
    uint32_t *order = *out = jj_alloc(j, d->n, sizeof *order);
    if (!order || !jj_step(j, d->n)) return false;
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t at = i;
        for (; sort && at > 0; at--) { /* insertion sort: objects are small, and steps are counted */
            int c;
            if (!v_cmp(j, d->e[i].k, d->e[order[at - 1]].k, &c)) return false;
            if (c >= 0) break;
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    return true;
}

static bool dump(sb *b, val v, const json_style *y, uint32_t level);

static bool dump_list(sb *b, const jlist *l, const json_style *y, uint32_t level)
{
    if (l->n == 0) return sb_puts(b, "[]");
    if (!sb_puts(b, "[")) return false;
    for (uint32_t i = 0; i < l->n; i++)
        if ((i && !sb_str(b, y->item)) || !newline(b, y, level + 1) || !dump(b, l->v[i], y, level + 1))
            return false;
    return newline(b, y, level) && sb_puts(b, "]");
}
static bool dump_dict(sb *b, const jdict *d, const json_style *y, uint32_t level)
{
    uint32_t *order;
    if (d->n == 0) return sb_puts(b, "{}");
    if (!entry_order(b->j, d, y->sort_keys, &order) || !sb_puts(b, "{")) return false;
    for (uint32_t i = 0; i < d->n; i++) {
        const jentry *e = &d->e[order[i]];
        if ((i && !sb_str(b, y->item)) || !newline(b, y, level + 1)) return false;
        if (!dump_key(b, e->k, y) || !sb_str(b, y->colon) || !dump(b, e->v, y, level + 1)) return false;
    }
    return newline(b, y, level) && sb_puts(b, "}");
}

static bool dump(sb *b, val v, const json_style *y, uint32_t level)
{
    bool ok;
    switch (v.type) {
    case V_NONE: return sb_puts(b, "null");
    case V_BOOL: return sb_puts(b, v.u.b ? "true" : "false");
    case V_INT: return sb_num(b, v.u.i);
    case V_FLOAT: return dump_float(b, v.u.f);
    case V_STR: return sb_json_text(b, v.u.s, y->ascii);
    case V_LIST:
    case V_TUPLE:
    case V_DICT: break;
    default: return jj_fail(b->j, "tojson: object of type %s is not JSON serializable", v_type_name(v));
    }
    if (!jj_step(b->j, 1) || !jj_enter(b->j)) return false;
    ok = v.type == V_DICT ? dump_dict(b, v.u.d, y, level) : dump_list(b, v.u.l, y, level);
    b->j->depth--;
    return ok;
}

bool jinja_json_dump(sb *b, val v, const json_style *style) { return dump(b, v, style, 0); }
