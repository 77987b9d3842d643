/* jinja_filter.c - filters of texts and single values; those of sequences are in jinja_filter_seq.c. See
 * jinja_eval.h. */
#include "jinja_eval.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "jinja_json.h"
#include "utf8.h"

#define FILTER(name) static bool name(jj *j, val self, const jargs *a, val *out)

static bool safe_copy(jj *j, const jstr *s, val *out)
{
    jstr *r = jj_alloc(j, 1, sizeof *r);
    if (!r) return false;
    *r = *s;
    r->safe = true;
    *out = v_str(r);
    return true;
}
static bool need_str(jj *j, const char *fn, val v)
{
    if (v.type == V_UNDEF) return v_undef_fail(j, v);
    return v.type == V_STR ? true : jj_fail(j, "%s wants a string, not '%s'", fn, v_type_name(v));
}

/* ---- escaping ------------------------------------------------------------------------------------- */

bool jinja_escape(jj *j, const jstr *s, val *out)
{
    static const char *const escapes[] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['"'] = "&#34;", ['\''] = "&#39;"};
    sb b = {.j = j};
    if (s->safe) return *out = v_str(s), true;
    for (size_t i = 0; i < s->len; i++) {
        uint8_t c = (uint8_t)s->s[i], marks[8];
        const char *e = c < ARRAY_LEN(escapes) ? escapes[c] : NULL;
        memset(marks, s->t ? s->t[i] : 0, sizeof marks);
        if (!(e ? sb_put(&b, e, strlen(e), s->t ? marks : NULL) : sb_sub(&b, s, i, i + 1))) return false;
    }
    val plain;
    return jj_step(j, s->len / 16) && sb_done(&b, &plain) && safe_copy(j, plain.u.s, out);
}
FILTER(f_escape)
{
    const jstr *s;
    return jj_bind(j, "escape", a, "", 0, NULL) && v_to_str(j, self, &s) && jinja_escape(j, s, out);
}
FILTER(f_forceescape)
{
    const jstr *s;
    if (!jj_bind(j, "forceescape", a, "", 0, NULL) || !v_to_str(j, self, &s)) return false;
    jstr plain = *s;
    plain.safe = false;
    return jinja_escape(j, &plain, out);
}
FILTER(f_safe)
{
    const jstr *s;
    return jj_bind(j, "safe", a, "", 0, NULL) && v_to_str(j, self, &s) && safe_copy(j, s, out);
}

static bool quote_url(sb *b, const jstr *s, bool query)
{
    for (size_t i = 0; i < s->len; i++) {
        char c = s->s[i], text[4];
        uint8_t marks[4];
        bool plain = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
                     (c && strchr("_.-~", c)) || (c == '/' && !query);
        snprintf(text, sizeof text, query && c == ' ' ? "+" : "%%%02X", (unsigned)(uint8_t)c);
        memset(marks, s->t ? s->t[i] : 0, sizeof marks);
        if (!(plain ? sb_sub(b, s, i, i + 1) : sb_put(b, text, strlen(text), s->t ? marks : NULL)))
            return false;
    }
    return jj_step(b->j, s->len / 16);
}
FILTER(f_urlencode)
{
    sb b = {.j = j};
    const jstr *s;
    jlist items, pair;
    if (!jj_bind(j, "urlencode", a, "", 0, NULL)) return false;
    bool pairs = self.type == V_LIST || self.type == V_TUPLE || self.type == V_DICT || self.type == V_ITER ||
                 self.type == V_VIEW || self.type == V_RANGE;
    if (!pairs) return v_to_str(j, self, &s) && quote_url(&b, s, false) && sb_done(&b, out);
    if (self.type == V_DICT && !v_view(j, self.u.d, 'i', &self)) return false;
    if (!v_items(j, self, &items)) return false;
    for (uint32_t i = 0; i < items.n; i++) {
        if (!v_items(j, items.v[i], &pair)) return false;
        if (pair.n != 2) return jj_fail(j, "urlencode wants pairs");
        if ((i && !sb_puts(&b, "&")) || !v_to_str(j, pair.v[0], &s) || !quote_url(&b, s, true) ||
            !sb_puts(&b, "="))
            return false;
        if (!v_to_str(j, pair.v[1], &s) || !quote_url(&b, s, true)) return false;
    }
    return sb_done(&b, out);
}

/* ---- text ----------------------------------------------------------------------------------------- */

static bool convert(jj *j, val self, const jargs *a, text_case how, val *out)
{
    const jstr *s;
    return jj_bind(j, "this filter", a, "", 0, NULL) && v_to_str(j, self, &s) && text_convert(j, s, how, out);
}
FILTER(f_upper) { return convert(j, self, a, CASE_UPPER, out); }
FILTER(f_lower) { return convert(j, self, a, CASE_LOWER, out); }
FILTER(f_capitalize) { return convert(j, self, a, CASE_CAPITALIZE, out); }

/* Words start after spaces and - ( { [ <. */
FILTER(f_title)
{
    const jstr *s;
    sb b = {.j = j};
    if (!jj_bind(j, "title", a, "", 0, NULL) || !v_to_str(j, self, &s)) return false;
    bool first = true;
    for (size_t i = 0, n; i < s->len; i += n) {
        uint32_t cp = 0;
        val one;
        n = MAX(utf8_decode(s->s + i, s->len - i, &cp), 1u);
        bool sep = cp_is_space(cp) || (cp < 128 && cp && strchr("-({[<", (int)cp));
        if (!str_sub(j, s, i, i + n, &one) ||
            !text_convert(j, one.u.s, first ? CASE_UPPER : CASE_LOWER, &one) || !sb_str(&b, one.u.s))
            return false;
        first = sep;
    }
    return sb_done(&b, out);
}
FILTER(f_trim)
{
    val chars;
    const jstr *s;
    return jj_bind(j, "trim", a, "chars", 0, &chars) && v_to_str(j, self, &s) &&
           text_strip(j, s, chars, true, true, out);
}
FILTER(f_replace)
{
    val v[3];
    const jstr *s, *from, *to;
    int64_t count;
    if (!jj_bind(j, "replace", a, "old new count", 2, v) || !arg_int(j, "replace", v[2], -1, &count))
        return false;
    if (!v_to_str(j, self, &s) || !v_to_str(j, v[0], &from) || !v_to_str(j, v[1], &to)) return false;
    return text_replace(j, s, from, to, count, out);
}
FILTER(f_string)
{
    const jstr *s;
    if (!jj_bind(j, "string", a, "", 0, NULL) || !v_to_str(j, self, &s)) return false;
    *out = v_str(s);
    return true;
}
FILTER(f_center)
{
    val width, fill;
    const jstr *s, *name = str_lit(j, "center");
    if (!name || !jj_bind(j, "center", a, "width", 0, &width) || !v_to_str(j, self, &s) ||
        !v_lit(j, " ", &fill))
        return false;
    val args[2] = {width.type == V_MISSING ? v_int(80) : width, fill};
    return jinja_str_method(name)->fn(j, v_str(s), &(jargs){.pos = args, .n_pos = 2}, out);
}
FILTER(f_format)
{
    const jstr *s;
    val args;
    if (!v_to_str(j, self, &s)) return false;
    if (a->n_pos && a->n_kw) return jj_fail(j, "format: positional and keyword arguments can not be mixed");
    if (!a->n_kw)
        return v_list(j, V_TUPLE, (val *)(uintptr_t)a->pos, a->n_pos, &args) && format_percent(j, s, args, out);
    jdict *d = dict_new(j);
    for (uint32_t i = 0; d && i < a->n_kw; i++)
        if (!dict_set(j, d, v_str(a->kw_name[i]), a->kw[i])) return false;
    return d && format_percent(j, s, (val){.type = V_DICT, .u.d = d}, out);
}
FILTER(f_indent)
{
    val v[3], lines;
    sb b = {.j = j}, pad = {.j = j};
    int64_t width;
    if (!jj_bind(j, "indent", a, "width first blank", 0, v) || !need_str(j, "indent", self)) return false;
    if (v[0].type == V_STR) {
        if (!sb_str(&pad, v[0].u.s)) return false;
    } else if (!arg_int(j, "indent", v[0], 4, &width) || !sb_fill(&pad, ' ', (uint64_t)MAX(width, 0))) {
        return false;
    }
    if (!sb_str(&b, self.u.s) || !sb_puts(&b, "\n") || !sb_done(&b, &lines) ||
        !text_lines(j, lines.u.s, false, &lines))
        return false;
    b = (sb){.j = j};
    for (uint32_t i = 0; i < lines.u.l->n; i++) {
        const jstr *line = lines.u.l->v[i].u.s;
        bool in = i == 0 ? v_truth(v[1]) : line->len > 0 || v_truth(v[2]);
        if ((i && !sb_puts(&b, "\n")) || (in && !sb_put(&b, pad.s, pad.len, pad.t)) || !sb_str(&b, line))
            return false;
    }
    return sb_done(&b, out) && (!self.u.s->safe || safe_copy(j, out->u.s, out));
}
FILTER(f_truncate)
{
    val v[4], end, cut;
    int64_t length, leeway;
    sb b = {.j = j};
    if (!jj_bind(j, "truncate", a, "length killwords end leeway", 0, v) ||
        !arg_int(j, "truncate", v[0], 255, &length))
        return false;
    if (!arg_int(j, "truncate", v[3], 5, &leeway) || !v_lit(j, "...", &end)) return false;
    if (v[2].type != V_MISSING) end = v[2];
    if (!need_str(j, "truncate", end)) return false;
    if (length < (int64_t)end.u.s->n_cp || leeway < 0 || length > JJ_MAX_TEXT || leeway > JJ_MAX_TEXT)
        return jj_fail(j, "truncate: length or leeway is out of range");
    int64_t n;
    if (!v_len(j, self, &n)) return false;
    if (n <= length + leeway) return *out = self, true; /* whatever it is */
    if (!need_str(j, "truncate", self)) return false;
    const jstr *s = self.u.s;
    size_t at = str_offset(s, (uint32_t)(length - end.u.s->n_cp)), space = at;
    while (space > 0 && s->s[space - 1] != ' ') space--;
    if (!v_truth(v[1]) && space > 0) at = space - 1;
    return str_sub(j, s, 0, at, &cut) && sb_str(&b, cut.u.s) && sb_str(&b, end.u.s) && sb_done(&b, out);
}
FILTER(f_wordcount)
{
    const jstr *s;
    int64_t n = 0;
    bool in_word = false;
    if (!jj_bind(j, "wordcount", a, "", 0, NULL) || !v_to_str(j, self, &s) || !jj_step(j, s->len / 16))
        return false;
    for (size_t i = 0, k; i < s->len; i += k) {
        uint32_t cp = 0;
        k = MAX(utf8_decode(s->s + i, s->len - i, &cp), 1u);
        utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
        bool letter = c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO,
             number = c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO;
        bool word = cp == '_' || letter || number;
        n += word && !in_word;
        in_word = word;
    }
    *out = v_int(n);
    return true;
}

/* ---- numbers and other values --------------------------------------------------------------------- */

FILTER(f_default)
{
    val v[2];
    if (!jj_bind(j, "default", a, "default_value boolean", 0, v)) return false;
    bool use = self.type == V_UNDEF || (v_truth(v[1]) && !v_truth(self));
    if (!use) return *out = self, true;
    if (v[0].type == V_MISSING) return v_lit(j, "", out);
    *out = v[0];
    return true;
}
static bool float_to_int(double f, int64_t *out)
{
    if (!(f >= -0x1p63 && f < 0x1p63)) return false;
    *out = (int64_t)f;
    return true;
}
FILTER(f_int)
{
    val v[2];
    int64_t base, i = 0;
    double f;
    if (!jj_bind(j, "int", a, "default base", 0, v) || !arg_int(j, "int", v[1], 10, &base)) return false;
    if (self.type == V_UNDEF) return v_undef_fail(j, self);
    bool ok = self.type == V_STR ? text_parse_int(self.u.s, base, &i) ||
                                       (text_parse_float(self.u.s, &f) && float_to_int(f, &i))
              : self.type == V_FLOAT ? float_to_int(self.u.f, &i)
                                     : v_as_int(self, &i);
    if (self.type == V_FLOAT && !ok && !isnan(self.u.f))
        return jj_fail(j, "cannot convert this float to a 64-bit integer");
    *out = ok ? v_int(i) : v[0].type == V_MISSING ? v_int(0) : v[0];
    return true;
}
FILTER(f_float)
{
    val v;
    double f = 0;
    if (!jj_bind(j, "float", a, "default", 0, &v)) return false;
    if (self.type == V_UNDEF) return v_undef_fail(j, self);
    bool ok = v_is_num(self) ? (f = v_num(self), true) : self.type == V_STR && text_parse_float(self.u.s, &f);
    *out = ok ? v_float(f) : v.type == V_MISSING ? v_float(0) : v;
    return true;
}
FILTER(f_abs)
{
    int64_t i;
    if (!jj_bind(j, "abs", a, "", 0, NULL)) return false;
    if (self.type == V_FLOAT) return *out = v_float(fabs(self.u.f)), true;
    if (v_as_int(self, &i)) return i < 0 ? jinja_negate(j, v_int(i), true, out) : (*out = v_int(i), true);
    return self.type == V_UNDEF ? v_undef_fail(j, self)
                                : jj_fail(j, "bad operand type for abs(): '%s'", v_type_name(self));
}

/* round(x, digits): half to even of the exact decimal value, which printf does. */
static bool round_common(jj *j, val x, int64_t digits, val *out)
{
    int64_t i;
    char text[800];
    if (v_as_int(x, &i)) {
        if (digits >= 0) return *out = v_int(i), true;
        if (digits < -18) return *out = v_int(0), true;
        int64_t p = 1;
        for (int64_t k = digits; k < 0; k++) p *= 10;
        int64_t rest = i % p, half = p / 2, base = i - rest, up = i < 0 ? -p : p;
        int64_t dist = rest < 0 ? -rest : rest;
        if (dist > half || (dist == half && (base / p) % 2 != 0)) {
            if (__builtin_add_overflow(base, up, &base)) return jj_fail(j, "integer does not fit in 64 bits");
        }
        return *out = v_int(base), true;
    }
    if (digits > 300 || !isfinite(x.u.f)) return *out = x, true;
    if (digits < 0) {
        double p = pow(10, (double)-MAX(digits, (int64_t)-400));
        return *out = v_float(isinf(p) ? copysign(0, x.u.f) : rint(x.u.f / p) * p), true;
    }
    snprintf(text, sizeof text, "%.*f", (int)digits, x.u.f);
    return *out = v_float(strtod(text, NULL)), true;
}
FILTER(f_round)
{
    val v[2];
    int64_t digits;
    if (!jj_bind(j, "round", a, "precision method", 0, v) || !arg_int(j, "round", v[0], 0, &digits))
        return false;
    bool ceiling = false, common = v[1].type == V_MISSING;
    if (!common) {
        if (!need_str(j, "round", v[1])) return false;
        common = str_is(v[1].u.s, "common");
        ceiling = str_is(v[1].u.s, "ceil");
        if (!common && !ceiling && !str_is(v[1].u.s, "floor"))
            return jj_fail(j, "round: method must be common, ceil or floor");
    }
    if (self.type == V_UNDEF) return v_undef_fail(j, self);
    if (!v_is_num(self)) return jj_fail(j, "type %s can not be rounded", v_type_name(self));
    if (common) return round_common(j, self, digits, out);
    double p = pow(10, (double)digits), x = v_num(self) * p;
    *out = v_float((ceiling ? ceil(x) : floor(x)) / p);
    return true;
}
FILTER(f_length)
{
    int64_t n;
    if (!jj_bind(j, "length", a, "", 0, NULL) || !v_len(j, self, &n)) return false;
    *out = v_int(n);
    return true;
}
FILTER(f_attr)
{
    val name;
    if (!jj_bind(j, "attr", a, "name", 1, &name) || !need_str(j, "attr", name)) return false;
    if (self.type == V_UNDEF) return v_undef_fail(j, self);
    if (!jinja_own_attr(j, self, name.u.s, out)) return false;
    if (out->type == V_MISSING) *out = v_undef(name.u.s, self.type);
    return true;
}

/* json.dumps with the arguments that transformers allows. */
FILTER(f_tojson)
{
    val v[4], pad = v_none(), item, colon;
    sb b = {.j = j}, spaces = {.j = j};
    int64_t width;
    if (!jj_bind(j, "tojson", a, "ensure_ascii indent separators sort_keys", 0, v)) return false;
    if (v[1].type == V_STR) pad = v[1];
    else if (v[1].type != V_MISSING && v[1].type != V_NONE) {
        if (!arg_int(j, "tojson", v[1], 0, &width) || !sb_fill(&spaces, ' ', (uint64_t)MAX(width, 0)) ||
            !sb_done(&spaces, &pad))
            return false;
    }
    if (!v_lit(j, pad.type == V_STR ? "," : ", ", &item) || !v_lit(j, ": ", &colon)) return false;
    if (v[2].type != V_MISSING && v[2].type != V_NONE) {
        jlist two;
        if (!v_items(j, v[2], &two)) return false;
        if (two.n != 2 || two.v[0].type != V_STR || two.v[1].type != V_STR)
            return jj_fail(j, "tojson: separators must be two strings");
        item = two.v[0], colon = two.v[1];
    }
    json_style style = {v_truth(v[0]), v_truth(v[3]), pad.type == V_STR ? pad.u.s : NULL, item.u.s, colon.u.s};
    return jinja_json_dump(&b, self, &style) && sb_done(&b, out);
}

const jfunc *jinja_text_filter(const jstr *name)
{
    static const jfunc filters[] = {{"trim", f_trim},
                                    {"tojson", f_tojson},
                                    {"length", f_length},
                                    {"count", f_length},
                                    {"default", f_default},
                                    {"d", f_default},
                                    {"upper", f_upper},
                                    {"lower", f_lower},
                                    {"capitalize", f_capitalize},
                                    {"title", f_title},
                                    {"replace", f_replace},
                                    {"string", f_string},
                                    {"int", f_int},
                                    {"float", f_float},
                                    {"abs", f_abs},
                                    {"round", f_round},
                                    {"indent", f_indent},
                                    {"format", f_format},
                                    {"truncate", f_truncate},
                                    {"wordcount", f_wordcount},
                                    {"center", f_center},
                                    {"attr", f_attr},
                                    {"escape", f_escape},
                                    {"e", f_escape},
                                    {"forceescape", f_forceescape},
                                    {"safe", f_safe},
                                    {"urlencode", f_urlencode}};
    return jfunc_find(filters, ARRAY_LEN(filters), name);
}
