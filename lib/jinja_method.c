/* jinja_method.c - methods of strings. See jinja_eval.h. */
#include "jinja_eval.h"

#include <utf8proc.h>

#include "utf8.h"

#define METHOD(name) static bool name(jj *j, val self, const jargs *a, val *out)

/* The result of a method of a safe string is safe. */
static bool keep_safe(jj *j, val self, val *out)
{
    if (!self.u.s->safe || out->type != V_STR || out->u.s->safe) return true;
    jstr *s = jj_alloc(j, 1, sizeof *s);
    if (!s) return false;
    *s = *out->u.s;
    s->safe = true;
    *out = v_str(s);
    return true;
}
static bool need_str(jj *j, const char *fn, val v)
{
    if (v.type == V_UNDEF) return v_undef_fail(j, v);
    return v.type == V_STR ? true : jj_fail(j, "%s() wants a string, not '%s'", fn, v_type_name(v));
}

/* ---- case, strip ---------------------------------------------------------------------------------- */

static bool convert(jj *j, val self, const jargs *a, text_case how, const char *fn, val *out)
{
    return jj_bind(j, fn, a, "", 0, NULL) && text_convert(j, self.u.s, how, out) && keep_safe(j, self, out);
}
METHOD(m_upper) { return convert(j, self, a, CASE_UPPER, "upper", out); }
METHOD(m_lower) { return convert(j, self, a, CASE_LOWER, "lower", out); }
METHOD(m_title) { return convert(j, self, a, CASE_TITLE, "title", out); }
METHOD(m_capitalize) { return convert(j, self, a, CASE_CAPITALIZE, "capitalize", out); }
METHOD(m_swapcase) { return convert(j, self, a, CASE_SWAP, "swapcase", out); }

static bool strip(jj *j, val self, const jargs *a, bool left, bool right, val *out)
{
    val chars;
    if (!jj_bind(j, "strip", a, "chars", 0, &chars)) return false;
    if (chars.type == V_UNDEF) return v_undef_fail(j, chars);
    return text_strip(j, self.u.s, chars, left, right, out);
}
METHOD(m_strip) { return strip(j, self, a, true, true, out); }
METHOD(m_lstrip) { return strip(j, self, a, true, false, out); }
METHOD(m_rstrip) { return strip(j, self, a, false, true, out); }

/* ---- split, join, replace ------------------------------------------------------------------------- */

static bool split(jj *j, val self, const jargs *a, bool right, val *out)
{
    val v[2];
    int64_t max;
    if (!jj_bind(j, "split", a, "sep maxsplit", 0, v) || !arg_int(j, "split", v[1], -1, &max)) return false;
    if (v[0].type == V_UNDEF) return v_undef_fail(j, v[0]);
    return text_split(j, self.u.s, v[0], max, right, out);
}
METHOD(m_split) { return split(j, self, a, false, out); }
METHOD(m_rsplit) { return split(j, self, a, true, out); }
METHOD(m_splitlines)
{
    val keep;
    return jj_bind(j, "splitlines", a, "keepends", 0, &keep) && text_lines(j, self.u.s, v_truth(keep), out);
}
METHOD(m_join)
{
    val v;
    jlist items;
    if (!jj_bind(j, "join", a, "iterable", 1, &v) || !v_items(j, v, &items)) return false;
    return text_join(j, self.u.s, &items, false, out) && keep_safe(j, self, out);
}
METHOD(m_replace)
{
    val v[3];
    int64_t count;
    if (!jj_bind(j, "replace", a, "old new count", 2, v) || !need_str(j, "replace", v[0]) ||
        !need_str(j, "replace", v[1]))
        return false;
    if (!arg_int(j, "replace", v[2], -1, &count)) return false;
    if (self.u.s->safe && (!jinja_escape(j, v[0].u.s, &v[0]) || !jinja_escape(j, v[1].u.s, &v[1])))
        return false;
    return text_replace(j, self.u.s, v[0].u.s, v[1].u.s, count, out) && keep_safe(j, self, out);
}
static bool partition(jj *j, val self, const jargs *a, bool right, val *out)
{
    val sep, *v = jj_alloc(j, 3, sizeof *v), got;
    const jstr *s = self.u.s;
    if (!v || !jj_bind(j, "partition", a, "sep", 1, &sep) || !need_str(j, "partition", sep)) return false;
    if (!text_split(j, s, sep, 1, right, &got)) return false;
    if (got.u.l->n == 2) {
        v[0] = got.u.l->v[0], v[1] = sep, v[2] = got.u.l->v[1];
    } else {
        if (!str_sub(j, s, 0, 0, &v[right ? 0 : 2]) || !str_sub(j, s, 0, 0, &v[1])) return false;
        v[right ? 2 : 0] = self;
    }
    return v_list(j, V_TUPLE, v, 3, out);
}
METHOD(m_partition) { return partition(j, self, a, false, out); }
METHOD(m_rpartition) { return partition(j, self, a, true, out); }
METHOD(m_removeprefix)
{
    val v;
    const jstr *s = self.u.s;
    if (!jj_bind(j, "removeprefix", a, "prefix", 1, &v) || !need_str(j, "removeprefix", v)) return false;
    bool has = v.u.s->len <= s->len && memcmp(s->s, v.u.s->s, v.u.s->len) == 0;
    return str_sub(j, s, has ? v.u.s->len : 0, s->len, out);
}
METHOD(m_removesuffix)
{
    val v;
    const jstr *s = self.u.s;
    if (!jj_bind(j, "removesuffix", a, "suffix", 1, &v) || !need_str(j, "removesuffix", v)) return false;
    bool has = v.u.s->len <= s->len && memcmp(s->s + s->len - v.u.s->len, v.u.s->s, v.u.s->len) == 0;
    return str_sub(j, s, 0, has ? s->len - v.u.s->len : s->len, out);
}

/* ---- search --------------------------------------------------------------------------------------- */

/* Byte range of the character range [start, stop) as Python's arguments give it; false: it is empty because
 * start is behind the end. */
static bool window(jj *j, const char *fn, const jstr *s, val start, val stop, size_t *from, size_t *to,
                   bool *valid)
{
    int64_t n = s->n_cp, a, b;
    if (!arg_int(j, fn, start, 0, &a) || !arg_int(j, fn, stop, n, &b)) return false;
    a = a < 0 ? MAX(a + n, 0) : a;
    b = b < 0 ? MAX(b + n, 0) : MIN(b, n);
    *valid = a <= b;
    *from = str_offset(s, (uint32_t)MIN(a, n));
    *to = MAX(str_offset(s, (uint32_t)b), *from);
    return true;
}
static bool affix(jj *j, val self, const jargs *a, bool at_end, val *out)
{
    const char *fn = at_end ? "endswith" : "startswith";
    val v[3];
    size_t from, to;
    bool valid;
    if (!jj_bind(j, fn, a, "prefix start end", 1, v) ||
        !window(j, fn, self.u.s, v[1], v[2], &from, &to, &valid))
        return false;
    jlist one = {v, 1}, options = v[0].type == V_TUPLE ? *v[0].u.l : one;
    *out = v_bool(false);
    for (uint32_t i = 0; i < options.n; i++) {
        if (!need_str(j, fn, options.v[i])) return false;
        const jstr *p = options.v[i].u.s;
        if (valid && p->len <= to - from &&
            memcmp(self.u.s->s + (at_end ? to - p->len : from), p->s, p->len) == 0)
            *out = v_bool(true);
    }
    return true;
}
METHOD(m_startswith) { return affix(j, self, a, false, out); }
METHOD(m_endswith) { return affix(j, self, a, true, out); }

static bool search(jj *j, val self, const jargs *a, const char *fn, bool right, bool must, val *out)
{
    val v[3];
    size_t from, to, hit = SIZE_MAX;
    bool valid;
    if (!jj_bind(j, fn, a, "sub start end", 1, v) || !need_str(j, fn, v[0])) return false;
    if (!window(j, fn, self.u.s, v[1], v[2], &from, &to, &valid) || !jj_step(j, (to - from) / 64)) return false;
    const jstr part = {.s = self.u.s->s, .len = (uint32_t)to};
    if (valid && !right) hit = str_find(&part, v[0].u.s, from);
    for (size_t at = to + 1; valid && right && hit == SIZE_MAX && at-- > from;)
        if (to - at >= v[0].u.s->len && memcmp(part.s + at, v[0].u.s->s, v[0].u.s->len) == 0) hit = at;
    if (hit == SIZE_MAX && must) return jj_fail(j, "%s: substring not found", fn);
    *out = v_int(hit == SIZE_MAX ? -1 : (int64_t)str_count(self.u.s, hit));
    return true;
}
METHOD(m_find) { return search(j, self, a, "find", false, false, out); }
METHOD(m_rfind) { return search(j, self, a, "rfind", true, false, out); }
METHOD(m_index) { return search(j, self, a, "index", false, true, out); }
METHOD(m_rindex) { return search(j, self, a, "rindex", true, true, out); }
METHOD(m_count)
{
    val v[3];
    size_t from, to;
    bool valid;
    int64_t n = 0;
    if (!jj_bind(j, "count", a, "sub start end", 1, v) || !need_str(j, "count", v[0])) return false;
    if (!window(j, "count", self.u.s, v[1], v[2], &from, &to, &valid) || !jj_step(j, (to - from) / 64))
        return false;
    const jstr part = {.s = self.u.s->s, .len = (uint32_t)to};
    size_t step = v[0].u.s->len, at;
    if (!step) n = valid ? (int64_t)(str_count(self.u.s, to) - str_count(self.u.s, from)) + 1 : 0;
    for (; step && valid && (at = str_find(&part, v[0].u.s, from)) != SIZE_MAX; from = at + step) n++;
    *out = v_int(n);
    return true;
}

/* ---- padding -------------------------------------------------------------------------------------- */

static bool pad(jj *j, val self, const jargs *a, char side, val *out)
{
    val v[2];
    int64_t width;
    sb b = {.j = j};
    if (!jj_bind(j, "ljust", a, "width fillchar", 1, v) || !arg_int(j, "ljust", v[0], 0, &width)) return false;
    if (v[1].type == V_MISSING && !v_lit(j, " ", &v[1])) return false;
    if (!need_str(j, "ljust", v[1])) return false;
    if (v[1].u.s->n_cp != 1) return jj_fail(j, "the fill character must be exactly one character long");
    int64_t n = self.u.s->n_cp, fill = MIN(MAX(width - n, 0), (int64_t)JJ_MAX_TEXT + 1);
    int64_t left = side == 'r' ? fill : side == 'l' ? 0 : fill / 2 + (fill & width & 1);
    for (int64_t i = 0; i < left; i++)
        if (!sb_str(&b, v[1].u.s)) return false;
    if (!sb_str(&b, self.u.s) || !jj_step(j, (uint64_t)fill)) return false;
    for (int64_t i = left; i < fill; i++)
        if (!sb_str(&b, v[1].u.s)) return false;
    return sb_done(&b, out) && keep_safe(j, self, out);
}
METHOD(m_ljust) { return pad(j, self, a, 'l', out); }
METHOD(m_rjust) { return pad(j, self, a, 'r', out); }
METHOD(m_center) { return pad(j, self, a, 'c', out); }
METHOD(m_zfill)
{
    val v;
    int64_t width;
    sb b = {.j = j};
    const jstr *s = self.u.s;
    if (!jj_bind(j, "zfill", a, "width", 1, &v) || !arg_int(j, "zfill", v, 0, &width)) return false;
    size_t sign = s->len && (s->s[0] == '+' || s->s[0] == '-');
    return sb_sub(&b, s, 0, sign) && sb_fill(&b, '0', (uint64_t)MAX(width - (int64_t)s->n_cp, 0)) &&
           sb_sub(&b, s, sign, s->len) && sb_done(&b, out) && keep_safe(j, self, out);
}
METHOD(m_expandtabs)
{
    val v;
    int64_t size, column = 0;
    sb b = {.j = j};
    const jstr *s = self.u.s;
    if (!jj_bind(j, "expandtabs", a, "tabsize", 0, &v) || !arg_int(j, "expandtabs", v, 8, &size)) return false;
    for (size_t i = 0; i < s->len; i++) {
        if (s->s[i] == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            if (!sb_fill(&b, ' ', (uint64_t)n)) return false;
            column += n;
            continue;
        }
        column = s->s[i] == '\n' || s->s[i] == '\r' ? 0 : column + (((uint8_t)s->s[i] & 0xc0) != 0x80);
        if (!sb_sub(&b, s, i, i + 1)) return false;
    }
    return sb_done(&b, out) && keep_safe(j, self, out);
}
METHOD(m_format) { return format_braces(j, self.u.s, a, out) && keep_safe(j, self, out); }

/* ---- questions ------------------------------------------------------------------------------------ */

static utf8proc_category_t category(uint32_t cp) { return utf8proc_category((utf8proc_int32_t)cp); }
static bool cp_alpha(uint32_t cp)
{
    return category(cp) >= UTF8PROC_CATEGORY_LU && category(cp) <= UTF8PROC_CATEGORY_LO;
}
static bool cp_digit(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_ND || cp == 0xb2 || cp == 0xb3 || cp == 0xb9;
}
static bool cp_decimal(uint32_t cp) { return category(cp) == UTF8PROC_CATEGORY_ND; }
static bool cp_numeric(uint32_t cp)
{
    return cp_decimal(cp) || category(cp) == UTF8PROC_CATEGORY_NL || category(cp) == UTF8PROC_CATEGORY_NO;
}
static bool cp_alnum(uint32_t cp) { return cp_alpha(cp) || cp_numeric(cp); }
static bool cp_ascii(uint32_t cp) { return cp < 128; }
static bool cp_ident(uint32_t cp) { return cp == '_' || cp_alnum(cp) || category(cp) == UTF8PROC_CATEGORY_MN; }

/* All characters of a text that is not empty. */
static bool all_chars(jj *j, val self, const jargs *a, bool (*fn)(uint32_t), bool if_empty, val *out)
{
    const jstr *s = self.u.s;
    bool yes = s->len > 0 || if_empty;
    for (size_t i = 0, n; yes && i < s->len; i += n) {
        uint32_t cp = 0;
        n = MAX(utf8_decode(s->s + i, s->len - i, &cp), 1u);
        yes = fn(cp);
    }
    *out = v_bool(yes);
    return jj_bind(j, "this method", a, "", 0, NULL) && jj_step(j, s->len / 64);
}
METHOD(m_isalpha) { return all_chars(j, self, a, cp_alpha, false, out); }
METHOD(m_isdigit) { return all_chars(j, self, a, cp_digit, false, out); }
METHOD(m_isdecimal) { return all_chars(j, self, a, cp_decimal, false, out); }
METHOD(m_isnumeric) { return all_chars(j, self, a, cp_numeric, false, out); }
METHOD(m_isalnum) { return all_chars(j, self, a, cp_alnum, false, out); }
METHOD(m_isspace) { return all_chars(j, self, a, cp_is_space, false, out); }
METHOD(m_isascii) { return all_chars(j, self, a, cp_ascii, true, out); }
METHOD(m_isidentifier)
{
    bool digit = self.u.s->len && self.u.s->s[0] >= '0' && self.u.s->s[0] <= '9';
    return all_chars(j, self, a, cp_ident, false, out) && (*out = v_bool(out->u.b && !digit), true);
}

/* islower, isupper: at least one cased character and none of the other case; istitle: upper starts words. */
static bool case_is(const jstr *s, char want)
{
    bool any = false, after_cased = false;
    for (size_t i = 0, n; i < s->len; i += n) {
        uint32_t cp = 0;
        n = MAX(utf8_decode(s->s + i, s->len - i, &cp), 1u);
        utf8proc_category_t c = category(cp);
        bool up = c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LT, low = c == UTF8PROC_CATEGORY_LL;
        if (want == 't' ? (up && after_cased) || (low && !after_cased) : want == 'l' ? up : low) return false;
        any |= up || low;
        after_cased = up || low;
    }
    return any;
}
METHOD(m_islower) { return *out = v_bool(case_is(self.u.s, 'l')), jj_bind(j, "islower", a, "", 0, NULL); }
METHOD(m_isupper) { return *out = v_bool(case_is(self.u.s, 'u')), jj_bind(j, "isupper", a, "", 0, NULL); }
METHOD(m_istitle) { return *out = v_bool(case_is(self.u.s, 't')), jj_bind(j, "istitle", a, "", 0, NULL); }

const jfunc *jinja_str_method(const jstr *name)
{
    static const jfunc methods[] = {{"strip", m_strip},
                                    {"split", m_split},
                                    {"startswith", m_startswith},
                                    {"endswith", m_endswith},
                                    {"replace", m_replace},
                                    {"lstrip", m_lstrip},
                                    {"rstrip", m_rstrip},
                                    {"upper", m_upper},
                                    {"lower", m_lower},
                                    {"title", m_title},
                                    {"capitalize", m_capitalize},
                                    {"swapcase", m_swapcase},
                                    {"casefold", m_lower},
                                    {"rsplit", m_rsplit},
                                    {"splitlines", m_splitlines},
                                    {"join", m_join},
                                    {"partition", m_partition},
                                    {"rpartition", m_rpartition},
                                    {"removeprefix", m_removeprefix},
                                    {"removesuffix", m_removesuffix},
                                    {"find", m_find},
                                    {"rfind", m_rfind},
                                    {"index", m_index},
                                    {"rindex", m_rindex},
                                    {"count", m_count},
                                    {"ljust", m_ljust},
                                    {"rjust", m_rjust},
                                    {"center", m_center},
                                    {"zfill", m_zfill},
                                    {"expandtabs", m_expandtabs},
                                    {"format", m_format},
                                    {"isalpha", m_isalpha},
                                    {"isdigit", m_isdigit},
                                    {"isdecimal", m_isdecimal},
                                    {"isnumeric", m_isnumeric},
                                    {"isalnum", m_isalnum},
                                    {"isspace", m_isspace},
                                    {"isascii", m_isascii},
                                    {"isidentifier", m_isidentifier},
                                    {"islower", m_islower},
                                    {"isupper", m_isupper},
                                    {"istitle", m_istitle}};
    return jfunc_find(methods, ARRAY_LEN(methods), name);
}
