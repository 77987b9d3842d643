/* jinja_str.c - strings of the template language: views, the builder, and how values print. See jinja_value.h.
 */
#include "jinja_value.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "utf8.h"

uint32_t str_count(const jstr *s, size_t len)
{
    if (s->n_cp == s->len) return (uint32_t)len;
    uint32_t n = 0;
    for (size_t i = 0; i < len; i++) n += ((uint8_t)s->s[i] & 0xc0) != 0x80;
    return n;
}

jstr *str_new(jj *j, const char *s, size_t len, const uint8_t *t)
{
    if (len > JJ_MAX_TEXT)
        return jj_fail(j, "a string or the output is longer than %d MiB", JJ_MAX_TEXT >> 20), NULL;
    jstr *r = jj_alloc(j, 1, sizeof *r);
    if (!r || !jj_step(j, len / 64)) return NULL;
    *r = (jstr){.s = s, .t = t, .len = (uint32_t)len, .n_cp = UINT32_MAX};
    r->n_cp = str_count(r, len);
    return r;
}
jstr *str_lit(jj *j, const char *s) { return str_new(j, s, strlen(s), NULL); }
bool v_lit(jj *j, const char *s, val *out)
{
    jstr *r = str_lit(j, s);
    *out = v_str(r);
    return r != NULL;
}

size_t str_offset(const jstr *s, uint32_t cp)
{
    if (cp >= s->n_cp) return s->len;
    if (s->n_cp == s->len) return cp;
    size_t at = 0;
    for (; cp > 0; cp--) do
            at++;
        while (at < s->len && ((uint8_t)s->s[at] & 0xc0) == 0x80);
    return at;
}

bool str_sub(jj *j, const jstr *s, size_t from, size_t to, val *out)
{
    jstr *r = jj_alloc(j, 1, sizeof *r);
    if (!r) return false;
    *r =
        (jstr){.s = s->s + from, .t = s->t ? s->t + from : NULL, .len = (uint32_t)(to - from), .safe = s->safe};
    r->n_cp = s->n_cp == s->len ? r->len : UINT32_MAX;
    if (r->n_cp == UINT32_MAX) r->n_cp = str_count(r, r->len);
    *out = v_str(r);
    return jj_step(j, 1 + r->len / 256);
}

bool str_eq(const jstr *a, const jstr *b) { return a->len == b->len && memcmp(a->s, b->s, a->len) == 0; }
bool str_is(const jstr *a, const char *lit) { return a->len == strlen(lit) && memcmp(a->s, lit, a->len) == 0; }
int str_cmp(const jstr *a, const jstr *b)
{
    int c = memcmp(a->s, b->s, MIN(a->len, b->len));
    return c < 0 ? -1 : c > 0 ? 1 : a->len < b->len ? -1 : a->len > b->len;
}
size_t str_find(const jstr *hay, const jstr *needle, size_t from)
{
    if (from > hay->len || needle->len > hay->len - from) return SIZE_MAX;
    if (needle->len == 0) return from;
    const char *p = memmem(hay->s + from, hay->len - from, needle->s, needle->len);
    return p ? (size_t)(p - hay->s) : SIZE_MAX;
}
bool cp_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f ||
           cp == 0x3000;
}

/* ---- builder -------------------------------------------------------------------------------------- */

static bool sb_room(sb *b, size_t n, bool marks)
{
    if (b->j->st < 0) return false;
    if (n > JJ_MAX_TEXT - b->len)
        return jj_fail(b->j, "a string or the output is longer than %d MiB", JJ_MAX_TEXT >> 20);
    if (b->len + n > b->cap || !b->s) {
        size_t cap = MAX(MAX(b->len + n, 2 * b->cap), (size_t)32);
        char *s = jj_alloc(b->j, cap, 1);
        if (!s) return false;
        if (b->len) memcpy(s, b->s, b->len);
        if (b->t) {
            uint8_t *t = jj_alloc(b->j, cap, 1);
            if (!t) return false;
            memcpy(t, b->t, b->len);
            b->t = t;
        }
        b->s = s, b->cap = cap;
    }
    if (marks && !b->t) b->t = jj_alloc(b->j, b->cap, 1);
    return !marks || b->t;
}

bool sb_put(sb *b, const char *s, size_t n, const uint8_t *t)
{
    if (!sb_room(b, n, t != NULL)) return false;
    if (n) memcpy(b->s + b->len, s, n);
    if (t) memcpy(b->t + b->len, t, n);
    else if (b->t) memset(b->t + b->len, 0, n);
    b->len += n;
    return n < 64 || jj_step(b->j, n / 64);
}
bool sb_puts(sb *b, const char *s) { return sb_put(b, s, strlen(s), NULL); }
bool sb_fill(sb *b, char c, uint64_t n)
{
    if (n > JJ_MAX_TEXT) n = (uint64_t)JJ_MAX_TEXT + 1; /* sb_room refuses it */
    if (!sb_room(b, (size_t)n, false)) return false;
    memset(b->s + b->len, c, (size_t)n);
    if (b->t) memset(b->t + b->len, 0, (size_t)n);
    b->len += (size_t)n;
    return jj_step(b->j, n / 64);
}
bool sb_cp(sb *b, uint32_t cp, bool tainted)
{
    char text[4];
    static const uint8_t marks[4] = {1, 1, 1, 1};
    return sb_put(b, text, utf8_encode(cp, text), tainted ? marks : NULL);
}
bool sb_str(sb *b, const jstr *s) { return sb_put(b, s->s, s->len, s->t); }
bool sb_sub(sb *b, const jstr *s, size_t from, size_t to)
{
    return sb_put(b, s->s + from, to - from, s->t ? s->t + from : NULL);
}
bool sb_num(sb *b, int64_t i)
{
    char text[24];
    return sb_put(b, text, (size_t)snprintf(text, sizeof text, "%" PRId64, i), NULL);
}

bool sb_done(sb *b, val *out)
{
    if (!sb_room(b, 0, false)) return false;
    jstr *s = str_new(b->j, b->s, b->len, b->t);
    *out = v_str(s);
    return s != NULL;
}

/* ---- printing ------------------------------------------------------------------------------------- */

/* snprintf and strtod follow the program's locale; numbers of templates have a point. */
static void point_from_locale(char *text)
{
    const char *point = localeconv()->decimal_point;
    char *at = strcmp(point, ".") != 0 ? strstr(text, point) : NULL;
    if (!at) return;
    size_t n = strlen(point);
    *at = '.';
    memmove(at + 1, at + n, strlen(at + n) + 1);
}

bool sb_float(sb *b, double f)
{
    if (isnan(f)) return sb_puts(b, "nan");
    if (isinf(f)) return sb_puts(b, f < 0 ? "-inf" : "inf");
    char sci[40], digits[24], out[64];
    for (int prec = 0; prec <= 16; prec++) { /* the shortest text that reads back as f */
        snprintf(sci, sizeof sci, "%.*e", prec, f);
        if (strtod(sci, NULL) == f) break;
    }
    point_from_locale(sci);
    const char *e = strchr(sci, 'e');
    int exp = atoi(e + 1), n = 0;
    for (const char *p = sci; p < e; p++)
        if (*p >= '0' && *p <= '9') digits[n++] = *p;
    digits[n] = 0;
    const char *sign = signbit(f) ? "-" : "";
    if (exp < -4 || exp >= 16) {
        snprintf(out, sizeof out, "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "", digits + 1,
                 exp < 0 ? '-' : '+', abs(exp));
    } else if (exp < 0) {
        snprintf(out, sizeof out, "%s0.%.*s%s", sign, -exp - 1, "0000", digits);
    } else {
        char whole[24];
        for (int i = 0; i <= exp; i++) whole[i] = i < n ? digits[i] : '0';
        whole[exp + 1] = 0;
        snprintf(out, sizeof out, "%s%s.%s", sign, whole, n > exp + 1 ? digits + exp + 1 : "0");
    }
    return sb_puts(b, out);
}

/* As str.isprintable: what repr() shows as it is. */
static bool cp_printable(uint32_t cp)
{
    if (cp < 0x7f) return cp >= 0x20;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

static bool sb_escape(sb *b, uint32_t cp, const uint8_t *t)
{
    char text[16];
    const char *fmt = cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x";
    int n = cp == '\n'   ? snprintf(text, sizeof text, "\\n")
            : cp == '\r' ? snprintf(text, sizeof text, "\\r")
            : cp == '\t' ? snprintf(text, sizeof text, "\\t")
                         : snprintf(text, sizeof text, fmt, cp);
    uint8_t marks[16];
    memset(marks, t ? *t : 0, sizeof marks);
    return sb_put(b, text, (size_t)n, t ? marks : NULL);
}

static bool repr_str(sb *b, const jstr *s)
{
    char quote = memchr(s->s, '\'', s->len) && !memchr(s->s, '"', s->len) ? '"' : '\'';
    if (s->safe && !sb_puts(b, "Markup(")) return false;
    if (!sb_put(b, &quote, 1, NULL)) return false;
    for (size_t i = 0, n; i < s->len; i += n) {
        uint32_t cp = 0;
        const uint8_t *t = s->t ? s->t + i : NULL;
        n = MAX(utf8_decode(s->s + i, s->len - i, &cp), 1u);
        if (cp == '\\' || cp == (uint8_t)quote) {
            if (!sb_put(b, "\\", 1, t) || !sb_sub(b, s, i, i + n)) return false;
        } else if (!(cp_printable(cp) ? sb_sub(b, s, i, i + n) : sb_escape(b, cp, t))) {
            return false;
        }
    }
    return sb_put(b, &quote, 1, NULL) && (!s->safe || sb_puts(b, ")"));
}

static bool repr_list(sb *b, const jlist *l, const char *open, const char *close)
{
    if (!sb_puts(b, open)) return false;
    for (uint32_t i = 0; i < l->n; i++)
        if ((i && !sb_puts(b, ", ")) || !sb_repr(b, l->v[i])) return false;
    if (*open == '(' && l->n == 1 && !sb_puts(b, ",")) return false;
    return sb_puts(b, close);
}
static bool repr_dict(sb *b, const jdict *d)
{
    if (!sb_puts(b, "{")) return false;
    for (uint32_t i = 0; i < d->n; i++)
        if ((i && !sb_puts(b, ", ")) || !sb_repr(b, d->e[i].k) || !sb_puts(b, ": ") || !sb_repr(b, d->e[i].v))
            return false;
    return sb_puts(b, "}");
}
static bool repr_view(sb *b, val v)
{
    jlist items;
    char kind = v.u.view->kind;
    return v_items(b->j, v, &items) &&
           sb_puts(b, kind == 'k'   ? "dict_keys("
                      : kind == 'v' ? "dict_values("
                                    : "dict_items(") &&
           repr_list(b, &items, "[", "]") && sb_puts(b, ")");
}
static bool repr_range(sb *b, const jrange *r)
{
    char text[80];
    snprintf(text, sizeof text,
             r->step == 1 ? "range(%" PRId64 ", %" PRId64 ")" : "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")",
             r->start, r->stop, r->step);
    return sb_puts(b, text);
}

bool sb_repr(sb *b, val v)
{
    bool ok = jj_step(b->j, 1) && jj_enter(b->j);
    if (!ok) return false;
    switch (v.type) {
    case V_UNDEF: ok = sb_puts(b, "Undefined"); break;
    case V_NONE: ok = sb_puts(b, "None"); break;
    case V_BOOL: ok = sb_puts(b, v.u.b ? "True" : "False"); break;
    case V_INT: ok = sb_num(b, v.u.i); break;
    case V_FLOAT: ok = sb_float(b, v.u.f); break;
    case V_STR: ok = repr_str(b, v.u.s); break;
    case V_LIST: ok = repr_list(b, v.u.l, "[", "]"); break;
    case V_TUPLE: ok = repr_list(b, v.u.l, "(", ")"); break;
    case V_DICT: ok = repr_dict(b, v.u.d); break;
    case V_NS: ok = sb_puts(b, "<Namespace ") && repr_dict(b, v.u.d) && sb_puts(b, ">"); break;
    case V_VIEW: ok = repr_view(b, v); break;
    case V_RANGE: ok = repr_range(b, v.u.r); break;
    default: ok = sb_puts(b, "<") && sb_puts(b, v_type_name(v)) && sb_puts(b, " object>"); break;
    }
    b->j->depth--;
    return ok;
}

bool sb_val(sb *b, val v)
{
    if (v.type == V_STR) return sb_str(b, v.u.s);
    if (v.type == V_UNDEF) return true;
    return sb_repr(b, v);
}

bool v_to_str(jj *j, val v, const jstr **out)
{
    if (v.type == V_STR) return *out = v.u.s, true;
    sb b = {.j = j};
    val s;
    if (!sb_val(&b, v) || !sb_done(&b, &s)) return false;
    *out = s.u.s;
    return true;
}

static bool json_char(sb *b, const jstr *s, size_t i, size_t n, uint32_t cp, bool ascii)
{
    static const char *const named[] = {['\b'] = "\\b", ['\t'] = "\\t", ['\n'] = "\\n", ['\f'] = "\\f",
                                        ['\r'] = "\\r", ['"'] = "\\\"", ['\\'] = "\\\\"};
    char text[16];
    uint8_t marks[16];
    if (cp < ARRAY_LEN(named) && named[cp]) snprintf(text, sizeof text, "%s", named[cp]);
    else if (cp < 0x20 || (ascii && cp >= 0x7f && cp < 0x10000)) snprintf(text, sizeof text, "\\u%04x", cp);
    else if (ascii && cp >= 0x10000)
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd7c0 + (cp >> 10), 0xdc00 + (cp & 0x3ff));
    else return sb_sub(b, s, i, i + n);
    memset(marks, s->t ? s->t[i] : 0, sizeof marks);
    return sb_put(b, text, strlen(text), s->t ? marks : NULL);
}

bool sb_json_text(sb *b, const jstr *s, bool ascii)
{
    if (!sb_puts(b, "\"")) return false;
    for (size_t i = 0, n; i < s->len; i += n) {
        uint32_t cp = 0;
        n = MAX(utf8_decode(s->s + i, s->len - i, &cp), 1u);
        if (!json_char(b, s, i, n, cp, ascii)) return false;
    }
    return sb_puts(b, "\"");
}
