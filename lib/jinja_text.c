/* jinja_text.c - text operations with Python's meaning that filters and string methods share. See jinja_eval.h.
 */
#include "jinja_eval.h"

#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "utf8.h"

/* ---- case ----------------------------------------------------------------------------------------- */

static uint32_t lower(uint32_t cp) { return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp); }
static uint32_t upper(uint32_t cp) { return (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp); }
static bool is_cased(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT ||
           lower(cp) != cp || upper(cp) != cp;
}
/* The few characters whose upper case is several characters and that text really holds. */
static bool put_upper(sb *b, uint32_t cp, bool title, bool taint)
{
    static const struct {
        uint16_t cp, out[3];
    } special[] = {{0xdf, {'S', 'S', 0}},     {0x149, {0x2bc, 'N', 0}},  {0x1f0, {'J', 0x30c, 0}},
                   {0xfb00, {'F', 'F', 0}},   {0xfb01, {'F', 'I', 0}},   {0xfb02, {'F', 'L', 0}},
                   {0xfb03, {'F', 'F', 'I'}}, {0xfb04, {'F', 'F', 'L'}}, {0xfb05, {'S', 'T', 0}},
                   {0xfb06, {'S', 'T', 0}}};
    for (size_t i = 0; i < ARRAY_LEN(special); i++)
        if (special[i].cp == cp) {
            for (int k = 0; k < 3 && special[i].out[k]; k++)
                if (!sb_cp(b, k && title ? lower(special[i].out[k]) : special[i].out[k], taint)) return false;
            return true;
        }
    return sb_cp(b, title ? (uint32_t)utf8proc_totitle((utf8proc_int32_t)cp) : upper(cp), taint);
}
static bool put_lower(sb *b, uint32_t cp, bool final, bool taint)
{
    if (cp == 0x130) return sb_cp(b, 'i', taint) && sb_cp(b, 0x307, taint);
    return sb_cp(b, cp == 0x3a3 && final ? 0x3c2 : lower(cp), taint);
}
/* Sigma at the end of a word has a form of its own. */
static bool is_final(const jstr *s, size_t at, size_t next, bool after_cased)
{
    uint32_t cp;
    return after_cased &&
           (next >= s->len || (at < next && utf8_decode(s->s + next, s->len - next, &cp) && !is_cased(cp)));
}

bool text_convert(jj *j, const jstr *s, text_case how, val *out)
{
    sb b = {.j = j};
    bool in_word = false, ok = true;
    for (size_t i = 0, n; ok && i < s->len; i += n) {
        uint32_t cp = 0;
        bool taint = s->t && s->t[i];
        n = MAX(utf8_decode(s->s + i, s->len - i, &cp), 1u);
        bool up = how == CASE_UPPER || (how == CASE_CAPITALIZE && i == 0) || (how == CASE_TITLE && !in_word) ||
                  (how == CASE_SWAP && lower(cp) == cp);
        bool title = how == CASE_CAPITALIZE || how == CASE_TITLE;
        ok = up ? put_upper(&b, cp, title, taint) : put_lower(&b, cp, is_final(s, i, i + n, in_word), taint);
        in_word = is_cased(cp);
    }
    return ok && sb_done(&b, out);
}

/* ---- strip, replace, split, join ------------------------------------------------------------------ */

static bool strips(const char *p, size_t n, val chars)
{
    uint32_t cp;
    if (chars.type != V_STR) return utf8_decode(p, n, &cp) && cp_is_space(cp);
    const jstr c = {.s = p, .len = (uint32_t)n};
    for (size_t at = 0;;) { /* a match inside a character is not one */
        at = str_find(chars.u.s, &c, at);
        if (at == SIZE_MAX) return false;
        if (((uint8_t)chars.u.s->s[at] & 0xc0) != 0x80) return true;
        at++;
    }
}
bool text_strip(jj *j, const jstr *s, val chars, bool left, bool right, val *out)
{
    size_t from = 0, to = s->len;
    if (chars.type != V_STR && chars.type != V_NONE && chars.type != V_MISSING)
        return jj_fail(j, "strip arg must be None or str");
    while (left && from < to) {
        size_t n = 1;
        while (from + n < to && ((uint8_t)s->s[from + n] & 0xc0) == 0x80) n++;
        if (!strips(s->s + from, n, chars)) break;
        from += n;
    }
    while (right && to > from) {
        size_t p = to - 1;
        while (p > from && ((uint8_t)s->s[p] & 0xc0) == 0x80) p--;
        if (!strips(s->s + p, to - p, chars)) break;
        to = p;
    }
    return jj_step(j, (s->len - (to - from)) / 64) && str_sub(j, s, from, to, out);
}

bool text_replace(jj *j, const jstr *s, const jstr *from, const jstr *to, int64_t count, val *out)
{
    sb b = {.j = j};
    size_t at = 0;
    if (!jj_step(j, s->len / 64)) return false;
    for (int64_t k = 0; count < 0 || k < count; k++) {
        size_t hit = str_find(s, from, at);
        if (hit == SIZE_MAX) break;
        if (from->len == 0) { /* before each character and at the end */
            if (!sb_str(&b, to)) return false;
            if (at == s->len) break;
            for (hit = at + 1; hit < s->len && ((uint8_t)s->s[hit] & 0xc0) == 0x80;) hit++;
            if (!sb_sub(&b, s, at, hit)) return false;
            at = hit;
        } else {
            if (!sb_sub(&b, s, at, hit) || !sb_str(&b, to)) return false;
            at = hit + from->len;
        }
        if (!jj_step(j, 1)) return false;
    }
    return sb_sub(&b, s, at, s->len) && sb_done(&b, out);
}

typedef struct {
    jj *j;
    val *v;
    uint32_t n, cap;
} parts;
static bool add_part(parts *p, const jstr *s, size_t from, size_t to)
{
    if (p->n == p->cap) {
        uint32_t cap = p->cap ? p->cap * 2 : 8;
        val *v = jj_alloc(p->j, cap, sizeof *v);
        if (!v) return false;
        if (p->n) memcpy(v, p->v, p->n * sizeof *v);
        p->v = v, p->cap = cap;
    }
    return str_sub(p->j, s, from, to, &p->v[p->n++]);
}
static size_t space_len(const jstr *s, size_t at)
{
    uint32_t cp, n = at < s->len ? utf8_decode(s->s + at, s->len - at, &cp) : 0;
    return n && cp_is_space(cp) ? n : 0;
}
static size_t char_before(const jstr *s, size_t at)
{
    do at--;
    while (at > 0 && ((uint8_t)s->s[at] & 0xc0) == 0x80);
    return at;
}
static bool split_spaces(parts *p, const jstr *s, int64_t max)
{
    size_t at = 0, n;
    while (true) {
        while ((n = space_len(s, at))) at += n;
        if (at >= s->len) return true;
        if (max >= 0 && (int64_t)p->n >= max) return add_part(p, s, at, s->len);
        size_t end = at;
        while (end < s->len && !space_len(s, end)) end++;
        if (!add_part(p, s, at, end)) return false;
        at = end;
    }
}
/* From the right; the parts come out last first. */
static bool rsplit_spaces(parts *p, const jstr *s, int64_t max)
{
    size_t end = s->len;
    while (true) {
        while (end > 0 && space_len(s, char_before(s, end))) end = char_before(s, end);
        if (end == 0) return true;
        size_t at = end;
        if (max >= 0 && (int64_t)p->n >= max) return add_part(p, s, 0, end);
        while (at > 0 && !space_len(s, char_before(s, at))) at = char_before(s, at);
        if (!add_part(p, s, at, end)) return false;
        end = at;
    }
}
static size_t rfind(const jstr *s, const jstr *sep, size_t end)
{
    for (size_t at = end < sep->len ? 0 : end - sep->len + 1; at-- > 0;)
        if (memcmp(s->s + at, sep->s, sep->len) == 0) return at;
    return SIZE_MAX;
}
static bool split_at(parts *p, const jstr *s, const jstr *sep, int64_t max)
{
    size_t at = 0, hit;
    while ((max < 0 || (int64_t)p->n < max) && (hit = str_find(s, sep, at)) != SIZE_MAX) {
        if (!add_part(p, s, at, hit)) return false;
        at = hit + sep->len;
    }
    return add_part(p, s, at, s->len);
}
static bool rsplit_at(parts *p, const jstr *s, const jstr *sep, int64_t max)
{
    size_t end = s->len, hit;
    while ((max < 0 || (int64_t)p->n < max) && (hit = rfind(s, sep, end)) != SIZE_MAX) {
        if (!add_part(p, s, hit + sep->len, end)) return false;
        end = hit;
    }
    return add_part(p, s, 0, end);
}

bool text_split(jj *j, const jstr *s, val sep, int64_t max, bool from_right, val *out)
{
    parts p = {.j = j};
    bool ok;
    if (!jj_step(j, s->len / 64)) return false;
    if (sep.type == V_NONE || sep.type == V_MISSING) {
        ok = from_right ? rsplit_spaces(&p, s, max) : split_spaces(&p, s, max);
    } else {
        if (sep.type != V_STR) return jj_fail(j, "must be str or None, not %s", v_type_name(sep));
        if (sep.u.s->len == 0) return jj_fail(j, "empty separator");
        ok = from_right ? rsplit_at(&p, s, sep.u.s, max) : split_at(&p, s, sep.u.s, max);
    }
    for (uint32_t a = 0, b = p.n; ok && from_right && a + 1 < b; a++) {
        val v = p.v[a];
        p.v[a] = p.v[--b], p.v[b] = v;
    }
    return ok && v_list(j, V_LIST, p.v, p.n, out);
}

/* Bytes of the line end at `at`, 0 when there is none. */
static size_t line_end(const jstr *s, size_t at)
{
    uint32_t cp = 0, n = utf8_decode(s->s + at, s->len - at, &cp);
    if (cp == '\r' && at + 1 < s->len && s->s[at + 1] == '\n') return 2;
    bool is_end =
        (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
    return is_end ? n : 0;
}
bool text_lines(jj *j, const jstr *s, bool keep_ends, val *out)
{
    parts p = {.j = j};
    size_t from = 0, n;
    for (size_t at = 0; at < s->len;) {
        if (!(n = line_end(s, at))) {
            at++;
            continue;
        }
        if (!add_part(&p, s, from, keep_ends ? at + n : at)) return false;
        from = at += n;
    }
    if (from < s->len && !add_part(&p, s, from, s->len)) return false;
    return jj_step(j, s->len / 64) && v_list(j, V_LIST, p.v, p.n, out);
}

/* convert: elements that are no strings are printed (the filter); else they are errors (the method). */
bool text_join(jj *j, const jstr *sep, const jlist *items, bool convert, val *out)
{
    sb b = {.j = j};
    for (uint32_t i = 0; i < items->n; i++) {
        if (!convert && items->v[i].type != V_STR)
            return jj_fail(j, "join: expected str, found %s", v_type_name(items->v[i]));
        if ((i && !sb_str(&b, sep)) || !sb_val(&b, items->v[i])) return false;
    }
    return sb_done(&b, out);
}

/* ---- numbers -------------------------------------------------------------------------------------- */

/* Copies without outer spaces and with single underscores between digits removed. */
static bool clean_number(const jstr *s, char *text, size_t room)
{
    size_t from = 0, to = s->len, n = 0, k;
    while ((k = space_len(s, from))) from += k;
    while (to > from && space_len(s, char_before(s, to))) to = char_before(s, to);
    if (to == from || to - from >= room) return false;
    for (size_t i = from; i < to; i++) {
        char c = s->s[i];
        if (c == '_') {
            bool between = i > from && i + 1 < to && s->s[i - 1] != '_' && s->s[i + 1] != '_' &&
                           s->s[i - 1] != '+' && s->s[i - 1] != '-';
            if (!between) return false;
            continue;
        }
        if (c <= ' ' || (uint8_t)c > 126) return false;
        text[n++] = c;
    }
    text[n] = 0;
    return true;
}
bool text_parse_int(const jstr *s, int64_t base, int64_t *out)
{
    char text[100], *p = text, *end;
    if (!clean_number(s, text, sizeof text) || (base != 0 && (base < 2 || base > 36))) return false;
    p += *p == '+' || *p == '-';
    if (*p == '0' && p[1]) {
        char c = (char)(p[1] | 32);
        int prefix = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
        if (prefix && (base == 0 || base == prefix)) {
            memmove(p, p + 2, strlen(p + 2) + 1);
            base = prefix;
        } else if (base == 0 && strspn(p, "0") != strlen(p)) {
            return false;
        }
    }
    if (*p == '+' || *p == '-' || !*p) return false;
    errno = 0;
    *out = strtoll(text, &end, base ? (int)base : 10);
    return !*end && end != text && !errno;
}
bool text_parse_float(const jstr *s, double *out)
{
    char text[400], *end;
    if (!clean_number(s, text, sizeof text)) return false;
    const char *p = text + (text[0] == '+' || text[0] == '-');
    if ((p[0] == '0' && (p[1] | 32) == 'x') || strchr(p, '(')) return false; /* what only C reads */
    char *point = strchr(text, '.');
    const char *want = localeconv()->decimal_point;
    if (point && strlen(want) == 1) *point = *want;
    *out = strtod(text, &end);
    return !*end && end != text;
}
