/*
 * jinja_format.c - "%" formatting, str.format and strftime. See jinja_eval.h.
 *
 * Both formatters reduce a field to a `spec`, render the value's digits or text, and pad. strftime is written
 * out here so that it does not depend on the program's locale.
 */
#include "jinja_eval.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct {
    char fill, align, sign, type, group;
    bool alt;
    int64_t width, prec;
} spec;                                                /* width, prec: -1 = not given */
enum { MAX_DIGITS = 100, TOO_LONG = JJ_MAX_TEXT + 1 }; /* a width of TOO_LONG is refused by the builder */

/* ---- rendering ------------------------------------------------------------------------------------ */

static bool padded(sb *out, const spec *p, const char *sign, const jstr *body, char def_align)
{
    int64_t n = (int64_t)strlen(sign) + body->n_cp, gap = MAX(p->width - n, 0);
    char align = p->align ? p->align : def_align;
    int64_t left = align == '>' ? gap : align == '^' ? gap / 2 : 0;
    if (align == '=') return sb_puts(out, sign) && sb_fill(out, p->fill, (uint64_t)gap) && sb_str(out, body);
    return sb_fill(out, p->fill, (uint64_t)left) && sb_puts(out, sign) && sb_str(out, body) &&
           sb_fill(out, p->fill, (uint64_t)(gap - left));
}

/* Separators between groups of three digits of the whole part. */
static void group_digits(char *text, size_t room, char sep)
{
    size_t whole = strspn(text, "0123456789"), n = strlen(text);
    for (size_t at = whole; at > 3; n++) {
        at -= 3;
        if (n + 2 > room) return;
        memmove(text + at + 1, text + at, n - at + 1);
        text[at] = sep;
    }
}

static bool put_number(sb *out, const spec *p, bool negative, const char *prefix, char *text, size_t room)
{
    char sign[8];
    if (p->group) group_digits(text, room, p->group);
    snprintf(sign, sizeof sign, "%s%s",
             negative         ? "-"
             : p->sign == '+' ? "+"
             : p->sign == ' ' ? " "
                              : "",
             prefix);
    const jstr *body = str_lit(out->j, text);
    return body && padded(out, p, sign, body, '>');
}

static bool put_int(sb *out, const spec *p, int64_t i)
{
    char text[200];
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    const char *prefix = "";
    int min = p->prec > 0 ? (int)MIN(p->prec, (int64_t)MAX_DIGITS) : 1;
    switch (p->type) {
    case 'x': snprintf(text, sizeof text, "%.*" PRIx64, min, u), prefix = p->alt ? "0x" : ""; break;
    case 'X': snprintf(text, sizeof text, "%.*" PRIX64, min, u), prefix = p->alt ? "0X" : ""; break;
    case 'o': snprintf(text, sizeof text, "%.*" PRIo64, min, u), prefix = p->alt ? "0o" : ""; break;
    case 'b': {
        size_t n = 0;
        for (int bit = 63; bit >= 0; bit--)
            if ((u >> bit & 1) || n || bit == 0) text[n++] = (char)('0' + (u >> bit & 1));
        text[n] = 0;
        prefix = p->alt ? "0b" : "";
        break;
    }
    default: snprintf(text, sizeof text, "%.*" PRIu64, min, u); break;
    }
    return put_number(out, p, i < 0, prefix, text, sizeof text);
}
static bool put_float(sb *out, const spec *p, double f)
{
    char text[600], fmt[8];
    int prec = p->prec < 0 ? 6 : (int)MIN(p->prec, (int64_t)MAX_DIGITS);
    char type = p->type == '%' ? 'f' : p->type ? p->type : 'g';
    if (p->type == '%') f *= 100;
    snprintf(fmt, sizeof fmt, p->alt ? "%%#.*%c" : "%%.*%c", type);
    snprintf(text, sizeof text, fmt, prec, fabs(f));
    const char *point = localeconv()->decimal_point;
    char *at = strlen(point) == 1 ? strchr(text, *point) : NULL;
    if (at) *at = '.';
    if (p->type == '%') strncat(text, "%", sizeof text - strlen(text) - 1);
    return put_number(out, p, signbit(f) && !isnan(f), "", text, sizeof text);
}
/* Text cut to the precision. */
static bool put_text(sb *out, const spec *p, const jstr *s, char def_align)
{
    val cut = v_str(s);
    if (p->prec >= 0 && p->prec < (int64_t)s->n_cp &&
        !str_sub(out->j, s, 0, str_offset(s, (uint32_t)p->prec), &cut))
        return false;
    return padded(out, p, "", cut.u.s, def_align);
}
static bool repr_of(jj *j, val v, const jstr **out)
{
    sb b = {.j = j};
    val s;
    if (!sb_repr(&b, v) || !sb_done(&b, &s)) return false;
    *out = s.u.s;
    return true;
}

/* ---- fmt % args ----------------------------------------------------------------------------------- */

typedef struct {
    jj *j;
    const jstr *s;
    size_t at;
    val args;
    uint32_t used;
} percent;

/* The next argument; a value that is no tuple is the only one. */
static bool next_arg(percent *p, val *out)
{
    bool tuple = p->args.type == V_TUPLE;
    if (p->used >= (tuple ? p->args.u.l->n : 1)) return jj_fail(p->j, "not enough arguments for format string");
    *out = tuple ? p->args.u.l->v[p->used] : p->args;
    p->used++;
    return true;
}
static char peek(const percent *p) { return p->at < p->s->len ? p->s->s[p->at] : 0; }

static bool percent_number(percent *p, int64_t *out)
{
    val v;
    if (peek(p) == '*') {
        p->at++;
        return next_arg(p, &v) && arg_int(p->j, "format", v, 0, out);
    }
    for (*out = 0; peek(p) >= '0' && peek(p) <= '9'; p->at++)
        *out = MIN(*out * 10 + (peek(p) - '0'), (int64_t)TOO_LONG);
    return true;
}
/* Flags, width, precision and type behind "%" or "%(name)". */
static bool percent_spec(percent *p, spec *y)
{
    *y = (spec){.fill = ' ', .align = '>', .width = -1, .prec = -1};
    bool zero = false;
    for (; peek(p) && strchr("-+ #0", peek(p)); p->at++) {
        if (peek(p) == '-') y->align = '<';
        else if (peek(p) == '#') y->alt = true;
        else if (peek(p) == '0') zero = true;
        else if (y->sign != '+') y->sign = peek(p);
    }
    if (!percent_number(p, &y->width)) return false;
    if (y->width < 0) y->width = -y->width, y->align = '<';
    if (peek(p) == '.') {
        p->at++;
        if (!percent_number(p, &y->prec)) return false;
    }
    while (peek(p) && strchr("hlL", peek(p))) p->at++;
    if (!(y->type = peek(p))) return jj_fail(p->j, "incomplete format");
    p->at++;
    if (zero && y->align != '<' && !strchr("srac", y->type)) y->fill = '0', y->align = '=';
    return true;
}
static bool percent_value(percent *p, spec *y, val v, sb *out)
{
    const jstr *s;
    int64_t i;
    switch (y->type) {
    case 's': return v_to_str(p->j, v, &s) && put_text(out, y, s, '>');
    case 'r':
    case 'a': return repr_of(p->j, v, &s) && put_text(out, y, s, '>');
    case 'c':
        if (v.type == V_STR && v.u.s->n_cp == 1) return put_text(out, y, v.u.s, '>');
        if (!v_as_int(v, &i) || i < 0 || i > 0x10ffff || (i >= 0xd800 && i < 0xe000))
            return jj_fail(p->j, "%%c requires int or char");
        return sb_cp(out, (uint32_t)i, false);
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        if (v.type == V_FLOAT && strchr("diu", y->type)) {
            if (!(fabs(v.u.f) < 0x1p63)) return jj_fail(p->j, "the number is too large to format");
            i = (int64_t)v.u.f;
        } else if (!v_as_int(v, &i)) {
            return v.type == V_UNDEF
                       ? v_undef_fail(p->j, v)
                       : jj_fail(p->j, "%%%c format: a number is required, not %s", y->type, v_type_name(v));
        }
        return put_int(out, y, i);
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
        if (v.type == V_UNDEF) return v_undef_fail(p->j, v);
        if (!v_is_num(v)) return jj_fail(p->j, "must be real number, not %s", v_type_name(v));
        return put_float(out, y, v_num(v));
    default: return jj_fail(p->j, "unsupported format character '%c'", y->type);
    }
}

bool format_percent(jj *j, const jstr *fmt, val args, val *out)
{
    percent p = {.j = j, .s = fmt, .args = args};
    sb b = {.j = j};
    bool named = false;
    while (p.at < fmt->len) {
        size_t from = p.at;
        while (p.at < fmt->len && fmt->s[p.at] != '%') p.at++;
        if (!sb_sub(&b, fmt, from, p.at)) return false;
        if (p.at++ >= fmt->len) break;
        if (peek(&p) == '%') {
            if (!sb_sub(&b, fmt, p.at, p.at + 1)) return false;
            p.at++;
            continue;
        }
        spec y;
        val v = v_none();
        bool by_name = peek(&p) == '(';
        if (by_name) {
            size_t end = ++p.at;
            while (end < fmt->len && fmt->s[end] != ')') end++;
            const val *found = NULL;
            val key;
            if (args.type != V_DICT || end == fmt->len) return jj_fail(j, "format requires a mapping");
            if (!str_sub(j, fmt, p.at, end, &key) || !dict_find(j, args.u.d, key, &found)) return false;
            if (!found) return jj_fail(j, "format: no key '%.*s'", (int)MIN(end - p.at, 60u), fmt->s + p.at);
            v = *found;
            p.at = end + 1;
            named = true;
        }
        if (!jj_step(j, 1) || !percent_spec(&p, &y) || (!by_name && !next_arg(&p, &v)) ||
            !percent_value(&p, &y, v, &b))
            return false;
    }
    bool any_number =
        args.type == V_DICT || args.type == V_LIST || args.type == V_RANGE || args.type == V_UNDEF;
    uint32_t given = args.type == V_TUPLE ? args.u.l->n : any_number ? 0 : 1;
    if (!named && p.used < given) return jj_fail(j, "not all arguments converted during string formatting");
    return sb_done(&b, out);
}

/* ---- fmt.format(...) ------------------------------------------------------------------------------ */

typedef struct {
    jj *j;
    const jargs *args;
    uint32_t next;
} braces;

static bool brace_spec(jj *j, const jstr *s, size_t at, size_t end, spec *y)
{
    *y = (spec){.fill = ' ', .width = -1, .prec = -1};
    const char *t = s->s;
    if (at + 1 < end && strchr("<>=^", t[at + 1])) y->fill = t[at], y->align = t[at + 1], at += 2;
    else if (at < end && strchr("<>=^", t[at])) y->align = t[at++];
    if (at < end && strchr("+- ", t[at])) y->sign = t[at++];
    if (at < end && t[at] == '#') y->alt = true, at++;
    if (at < end && t[at] == '0' && !y->align) y->fill = '0', y->align = '=', at++;
    if (at < end && t[at] >= '0' && t[at] <= '9')
        for (y->width = 0; at < end && t[at] >= '0' && t[at] <= '9'; at++)
            y->width = MIN(y->width * 10 + t[at] - '0', (int64_t)TOO_LONG);
    if (at < end && (t[at] == ',' || t[at] == '_')) y->group = t[at++];
    if (at < end && t[at] == '.') {
        y->prec = 0;
        for (at++; at < end && t[at] >= '0' && t[at] <= '9'; at++)
            y->prec = MIN(y->prec * 10 + t[at] - '0', (int64_t)TOO_LONG);
    }
    if (at < end) y->type = t[at++];
    return at == end ? true : jj_fail(j, "invalid format specifier");
}
static bool brace_value(jj *j, val v, const spec *y, sb *out)
{
    int64_t i;
    const jstr *s;
    bool is_int = v_as_int(v, &i);
    if (is_int && y->type && strchr("dxXob", y->type)) return put_int(out, y, i);
    if (v.type == V_INT && !y->type) return put_int(out, y, i);
    if (is_int && y->type == 'c') return sb_cp(out, i >= 0 && i < 0xd800 ? (uint32_t)i : 0xfffd, false);
    if (v_is_num(v) && y->type && strchr("fFeEgG%", y->type)) return put_float(out, y, v_num(v));
    if (v.type == V_FLOAT && !y->type && y->prec >= 0) return put_float(out, y, v.u.f);
    if (v.type == V_FLOAT && !y->type) {
        spec plain = *y;
        return v_to_str(j, v_float(fabs(v.u.f)), &s) && padded(out, &plain,
                                                               signbit(v.u.f)   ? "-"
                                                               : y->sign == '+' ? "+"
                                                                                : "",
                                                               s, '>');
    }
    if (y->type && y->type != 's')
        return jj_fail(j, "unknown format code '%c' for object of type '%s'", y->type, v_type_name(v));
    return v_to_str(j, v, &s) && put_text(out, y, s, '<');
}

/* "", "0", "name" and then ".attr" or "[item]": [at, end) of s. */
static bool brace_field(braces *f, const jstr *s, size_t at, size_t end, val *out)
{
    size_t stop = at;
    int64_t index;
    val name;
    while (stop < end && s->s[stop] != '.' && s->s[stop] != '[') stop++;
    if (!str_sub(f->j, s, at, stop, &name)) return false;
    bool digits = stop > at && text_parse_int(name.u.s, 10, &index);
    if (stop == at || digits) {
        if (stop == at) index = f->next++;
        if (index < 0 || index >= (int64_t)f->args->n_pos)
            return jj_fail(f->j, "replacement index is out of range for positional args");
        *out = f->args->pos[index];
    } else {
        uint32_t i = 0;
        while (i < f->args->n_kw && !str_eq(f->args->kw_name[i], name.u.s)) i++;
        if (i == f->args->n_kw)
            return jj_fail(f->j, "format: no argument '%.*s'", (int)MIN(stop - at, 60u), s->s + at);
        *out = f->args->kw[i];
    }
    while (stop < end) {
        bool item = s->s[stop] == '[';
        size_t from = stop + 1;
        for (stop = from; stop < end && (item ? s->s[stop] != ']' : s->s[stop] != '.' && s->s[stop] != '[');)
            stop++;
        if (!str_sub(f->j, s, from, stop, &name)) return false;
        if (item && text_parse_int(name.u.s, 10, &index)) name = v_int(index);
        if (!(item ? jinja_item(f->j, *out, name, out) : jinja_attr(f->j, *out, name.u.s, out))) return false;
        stop += item;
    }
    return true;
}

/* One field; [at, end) is the text between the braces. */
static bool brace_one(braces *f, const jstr *s, size_t at, size_t end, sb *out)
{
    size_t colon = at;
    const jstr *text;
    spec y;
    val v;
    while (colon < end && s->s[colon] != ':' && s->s[colon] != '!') colon++;
    if (!brace_field(f, s, at, colon, &v)) return false;
    if (colon < end && s->s[colon] == '!') {
        char c = colon + 1 < end ? s->s[colon + 1] : 0;
        if (c != 'r' && c != 's' && c != 'a') return jj_fail(f->j, "unknown conversion in a format field");
        if (!(c == 's' ? v_to_str(f->j, v, &text) : repr_of(f->j, v, &text))) return false;
        v = v_str(text);
        colon += 2;
    }
    if (!brace_spec(f->j, s, MIN(colon + 1, end), end, &y)) return false;
    return brace_value(f->j, v, &y, out);
}

bool format_braces(jj *j, const jstr *fmt, const jargs *args, val *out)
{
    braces f = {.j = j, .args = args};
    sb b = {.j = j};
    for (size_t at = 0; at < fmt->len;) {
        size_t from = at;
        while (at < fmt->len && fmt->s[at] != '{' && fmt->s[at] != '}') at++;
        if (!sb_sub(&b, fmt, from, at)) return false;
        if (at == fmt->len) break;
        if (at + 1 < fmt->len && fmt->s[at + 1] == fmt->s[at]) {
            if (!sb_sub(&b, fmt, at, at + 1)) return false;
            at += 2;
            continue;
        }
        if (fmt->s[at] == '}') return jj_fail(j, "single '}' encountered in format string");
        size_t end = at + 1;
        while (end < fmt->len && fmt->s[end] != '}') {
            if (fmt->s[end] == '{') return jj_fail(j, "nested format fields are not supported");
            end++;
        }
        if (end == fmt->len) return jj_fail(j, "expected '}' before end of string");
        if (!jj_step(j, 1) || !brace_one(&f, fmt, at + 1, end, &b)) return false;
        at = end + 1;
    }
    return sb_done(&b, out);
}

/* ---- strftime ------------------------------------------------------------------------------------- */

static const char *const months[] = {"January", "February", "March",     "April",   "May",      "June",
                                     "July",    "August",   "September", "October", "November", "December"};
static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                   "Thursday", "Friday", "Saturday"};

/* One directive into text; false: it is unknown. dash: without leading zeros ("%-d"). */
static bool time_field(char c, bool dash, const struct tm *t, char *text, size_t room)
{
    int w = dash ? 1 : 2, hour12 = t->tm_hour % 12 ? t->tm_hour % 12 : 12;
    switch (c) {
    case 'Y': snprintf(text, room, "%d", t->tm_year + 1900); break;
    case 'y': snprintf(text, room, "%0*d", w, t->tm_year % 100); break;
    case 'C': snprintf(text, room, "%02d", (t->tm_year + 1900) / 100); break;
    case 'm': snprintf(text, room, "%0*d", w, t->tm_mon + 1); break;
    case 'd': snprintf(text, room, "%0*d", w, t->tm_mday); break;
    case 'e': snprintf(text, room, "%*d", w, t->tm_mday); break;
    case 'B': snprintf(text, room, "%s", months[t->tm_mon]); break;
    case 'b':
    case 'h': snprintf(text, room, "%.3s", months[t->tm_mon]); break;
    case 'A': snprintf(text, room, "%s", days[t->tm_wday]); break;
    case 'a': snprintf(text, room, "%.3s", days[t->tm_wday]); break;
    case 'H': snprintf(text, room, "%0*d", w, t->tm_hour); break;
    case 'I': snprintf(text, room, "%0*d", w, hour12); break;
    case 'M': snprintf(text, room, "%0*d", w, t->tm_min); break;
    case 'S': snprintf(text, room, "%0*d", w, t->tm_sec); break;
    case 'f': snprintf(text, room, "000000"); break;
    case 'p': snprintf(text, room, "%s", t->tm_hour < 12 ? "AM" : "PM"); break;
    case 'j': snprintf(text, room, "%0*d", dash ? 1 : 3, t->tm_yday + 1); break;
    case 'u': snprintf(text, room, "%d", t->tm_wday ? t->tm_wday : 7); break;
    case 'w': snprintf(text, room, "%d", t->tm_wday); break;
    case 'U': snprintf(text, room, "%0*d", w, (t->tm_yday + 7 - t->tm_wday) / 7); break;
    case 'W': snprintf(text, room, "%0*d", w, (t->tm_yday + 7 - (t->tm_wday + 6) % 7) / 7); break;
    case 'F': snprintf(text, room, "%d-%02d-%02d", t->tm_year + 1900, t->tm_mon + 1, t->tm_mday); break;
    case 'D':
    case 'x': snprintf(text, room, "%02d/%02d/%02d", t->tm_mon + 1, t->tm_mday, t->tm_year % 100); break;
    case 'T':
    case 'X': snprintf(text, room, "%02d:%02d:%02d", t->tm_hour, t->tm_min, t->tm_sec); break;
    case 'R': snprintf(text, room, "%02d:%02d", t->tm_hour, t->tm_min); break;
    case 'c':
        snprintf(text, room, "%.3s %.3s %2d %02d:%02d:%02d %d", days[t->tm_wday], months[t->tm_mon], t->tm_mday,
                 t->tm_hour, t->tm_min, t->tm_sec, t->tm_year + 1900);
        break;
    case 'z':
    case 'Z': text[0] = 0; break; /* a time without a zone */
    case 'n': snprintf(text, room, "\n"); break;
    case 't': snprintf(text, room, "\t"); break;
    case '%': snprintf(text, room, "%%"); break;
    default: return false;
    }
    return true;
}

bool format_time(jj *j, const jstr *fmt, uint64_t unix_seconds, val *out)
{
    time_t now = (time_t)unix_seconds;
    struct tm t;
    sb b = {.j = j};
    if (!localtime_r(&now, &t)) return jj_fail(j, "strftime_now: the clock can not be read");
    for (size_t i = 0; i < fmt->len; i++) {
        char text[64];
        size_t at = i + 1;
        bool dash = at < fmt->len && fmt->s[at] == '-';
        at += dash;
        if (fmt->s[i] != '%' || at >= fmt->len || !time_field(fmt->s[at], dash, &t, text, sizeof text)) {
            if (!sb_sub(&b, fmt, i, i + 1)) return false;
            continue;
        }
        if (!sb_puts(&b, text)) return false;
        i = at;
    }
    return sb_done(&b, out);
}
