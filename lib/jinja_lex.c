/*
 * jinja_lex.c - tokens of a template. See jinja_lex.h.
 *
 * First all line ends become \n and one at the very end is dropped. Then text and tags alternate. What a tag
 * does to the whitespace around it:
 *   before: "{%-" "{{-" "{#-" strip all; else a block or comment (not "{%+") alone on its line strips its
 *           indentation
 *   after:  "-%}" strips all; "%}" and "#}" one newline unless written "+%}"; "}}" nothing
 */
#include "jinja_lex.h"

#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "utf8.h"

enum { MAX_BRACKETS = 512 };

typedef struct {
    jj *j;
    const char *s; /* normalized text */
    size_t n, at;
    uint32_t line;
    jtok *tok;
    uint32_t n_tok, cap;
    char open[MAX_BRACKETS]; /* closing brackets that are awaited */
    uint32_t n_open;
} lexer;

static bool lex_fail(lexer *x, const char *what)
{
    x->j->line = x->line;
    return jj_fail(x->j, "%s", what);
}

static bool emit(lexer *x, tok_type type, val v)
{
    if (x->n_tok == x->cap) {
        uint32_t cap = x->cap ? x->cap * 2 : 256;
        jtok *t = jj_alloc(x->j, cap, sizeof *t);
        if (!t) return false;
        if (x->n_tok) memcpy(t, x->tok, x->n_tok * sizeof *t);
        x->tok = t, x->cap = cap;
    }
    x->tok[x->n_tok++] = (jtok){(uint8_t)type, x->line, v};
    return true;
}
static bool emit_text(lexer *x, tok_type type, size_t from, size_t to)
{
    const jstr *s = str_new(x->j, x->s + from, to - from, NULL);
    return s && emit(x, type, v_str(s));
}

static void advance(lexer *x, size_t to)
{
    for (; x->at < to; x->at++) x->line += x->s[x->at] == '\n';
}
static bool at(const lexer *x, size_t pos, const char *lit)
{
    size_t n = strlen(lit);
    return x->n - MIN(pos, x->n) >= n && memcmp(x->s + pos, lit, n) == 0;
}
static size_t skip_space(const lexer *x, size_t pos)
{
    uint32_t cp, n;
    while (pos < x->n && (n = utf8_decode(x->s + pos, x->n - pos, &cp)) > 0 && cp_is_space(cp)) pos += n;
    return pos;
}
static size_t rstrip(const lexer *x, size_t from, size_t to)
{
    while (to > from) {
        size_t p = to - 1;
        uint32_t cp;
        while (p > from && ((uint8_t)x->s[p] & 0xc0) == 0x80) p--;
        if (!utf8_decode(x->s + p, to - p, &cp) || !cp_is_space(cp)) break;
        to = p;
    }
    return to;
}

/* End of the text [from, to) before a tag that has this sign. */
static size_t strip_before(const lexer *x, size_t from, size_t to, char sign, bool is_var)
{
    if (sign == '-') return rstrip(x, from, to);
    if (sign == '+' || is_var) return to;
    size_t line_start = to;
    while (line_start > from && x->s[line_start - 1] != '\n') line_start--;
    if (line_start == from && from > 0 && x->s[from - 1] != '\n') return to;
    return rstrip(x, line_start, to) == line_start ? line_start : to;
}

/* Is the end of a tag ("%}", "}}" or "#}", with a sign) at pos? Then *after is where text goes on. */
static bool tag_end(const lexer *x, size_t pos, const char *close, size_t *after)
{
    bool is_var = *close == '}';
    if (pos < x->n && x->s[pos] == '-' && at(x, pos + 1, close)) return *after = skip_space(x, pos + 3), true;
    if (pos < x->n && x->s[pos] == '+' && !is_var && at(x, pos + 1, close)) return *after = pos + 3, true;
    if (!at(x, pos, close)) return false;
    *after = pos + 2;
    if (!is_var && *after < x->n && x->s[*after] == '\n') ++*after;
    return true;
}

static char sign_at(const lexer *x, size_t pos)
{
    return pos < x->n && (x->s[pos] == '-' || x->s[pos] == '+') ? x->s[pos] : 0;
}

/* A "{% word %}" at pos: *after is the place behind its end as tag_end gives it (is_end), or behind "%}" or
 * "-%}" and its spaces. */
static bool word_tag(const lexer *x, size_t pos, const char *word, bool is_end, size_t *after)
{
    if (!at(x, pos, "{%")) return false;
    size_t p = pos + 2 + (sign_at(x, pos + 2) != 0);
    p = skip_space(x, p);
    if (!at(x, p, word)) return false;
    p = skip_space(x, p + strlen(word));
    if (is_end) return tag_end(x, p, "%}", after);
    if (at(x, p, "-%}")) return *after = skip_space(x, p + 3), true;
    return *after = p + 2, at(x, p, "%}");
}

static bool lex_raw(lexer *x, size_t after)
{
    advance(x, after);
    size_t from = x->at, end;
    for (size_t p = from; p < x->n; p++) {
        if (x->s[p] != '{' || !word_tag(x, p, "endraw", true, &end)) continue;
        size_t to = strip_before(x, from, p, sign_at(x, p + 2), false);
        if (to > from && !emit_text(x, T_DATA, from, to)) return false;
        advance(x, end);
        return true;
    }
    /* at the very end jinja2 lets it pass */
    return x->at == x->n || lex_fail(x, "missing end of raw directive");
}
static bool lex_comment(lexer *x, size_t from)
{
    for (size_t p = from, end; p < x->n; p++)
        if (tag_end(x, p, "#}", &end)) {
            advance(x, end);
            return true;
        }
    return x->at == x->n || lex_fail(x, "missing end of comment tag"); /* at the very end jinja2 lets it pass */
}

/* ---- inside tags ---------------------------------------------------------------------------------- */

static bool is_digit(const lexer *x, size_t p) { return p < x->n && x->s[p] >= '0' && x->s[p] <= '9'; }
static size_t digits(const lexer *x, size_t p)
{
    while (is_digit(x, p) || (p < x->n && x->s[p] == '_' && is_digit(x, p + 1))) p++;
    return p;
}

static bool number_value(lexer *x, size_t from, size_t to, bool real, int base)
{
    char text[400];
    size_t n = 0;
    for (size_t p = from; p < to && n < sizeof text - 1; p++)
        if (x->s[p] != '_') text[n++] = x->s[p];
    text[n] = 0;
    errno = 0;
    if (real) {
        const char *want = localeconv()->decimal_point;
        char *point = strchr(text, '.');
        if (point && strlen(want) == 1) *point = *want;
        return emit(x, T_FLOAT, v_float(strtod(text, NULL)));
    }
    int64_t i = strtoll(text, NULL, base);
    if (errno) return lex_fail(x, "an integer does not fit in 64 bits");
    return emit(x, T_INT, v_int(i));
}

/* At a digit. */
static bool lex_number(lexer *x)
{
    size_t from = x->at, p = digits(x, from), q = p;
    if (from == 0 || x->s[from - 1] != '.') {
        if (q + 1 < x->n && x->s[q] == '.' && is_digit(x, q + 1)) q = digits(x, q + 1);
        if (q < x->n && (x->s[q] | 32) == 'e') {
            size_t e = q + 1 + (q + 1 < x->n && (x->s[q + 1] == '+' || x->s[q + 1] == '-'));
            if (is_digit(x, e)) q = digits(x, e);
        }
    }
    if (q > p) {
        x->at = q;
        return number_value(x, from, q, true, 10);
    }
    int base = 10;
    if (x->s[from] == '0' && from + 1 < x->n) {
        char c = (char)(x->s[from + 1] | 32);
        base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
    }
    if (base != 10) {
        for (p = from + 2; p < x->n; p++) {
            char c = (char)(x->s[p] | 32);
            int d = x->s[p] == '_'         ? 0
                    : c >= '0' && c <= '9' ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                           : 99;
            if (d >= base) break;
        }
        if (p == from + 2) return lex_fail(x, "a number lacks digits");
        x->at = p;
        return number_value(x, from + 2, p, false, base);
    }
    if (x->s[from] == '0') /* "0_0" is a number, "01" is two */
        for (p = from + 1;
             p < x->n && (x->s[p] == '0' || (x->s[p] == '_' && p + 1 < x->n && x->s[p + 1] == '0')); p++) {}
    x->at = p;
    return number_value(x, from, p, false, 10);
}

static bool name_char(uint32_t cp, bool first)
{
    if (cp < 128) return cp == '_' || (cp | 32u) - 'a' < 26 || (!first && cp - '0' < 10);
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    bool letter = (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) || c == UTF8PROC_CATEGORY_NL;
    return letter ||
           (!first && (c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ND));
}
static size_t name_end(const lexer *x, size_t p)
{
    uint32_t cp, n;
    size_t from = p;
    while (p < x->n && (n = utf8_decode(x->s + p, x->n - p, &cp)) > 0 && name_char(cp, p == from)) p += n;
    return p;
}

/* A numeric escape of up to max digits; *p is at the first. */
static bool numeric_escape(const lexer *x, size_t *p, size_t end, uint32_t base, uint32_t min, uint32_t max,
                           uint32_t *cp)
{
    uint32_t n = 0;
    for (*cp = 0; n < max && *p < end; n++, ++*p) {
        char c = x->s[*p], l = (char)(c | 32);
        uint32_t d = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                     : l >= 'a' && l <= 'f' ? (uint32_t)(l - 'a' + 10)
                                            : 99;
        if (d >= base) break;
        *cp = *cp * base + d;
    }
    return n >= min && *cp <= 0x10ffff && (*cp < 0xd800 || *cp > 0xdfff);
}

/* Escapes as in Python; *p is behind the backslash, end at the closing quote. */
static bool unescape(lexer *x, size_t *p, size_t end, sb *b)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = x->s[*p];
    uint32_t cp = 0;
    const char *known = c ? strchr(from, c) : NULL;
    if (c == '\n') return ++*p, true;
    if (known) return ++*p, sb_put(b, &to[known - from], 1, NULL);
    if (c >= '0' && c <= '7') return numeric_escape(x, p, end, 8, 1, 3, &cp) && sb_cp(b, cp, false);
    uint32_t n = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (n) {
        ++*p;
        if (!numeric_escape(x, p, end, 16, n, n, &cp))
            return lex_fail(x, "a string has a bad \\x, \\u or \\U escape");
        return sb_cp(b, cp, false);
    }
    if (c == 'N') return lex_fail(x, "\\N escapes are not supported in strings");
    return sb_puts(b, "\\"); /* unknown: the backslash stays */
}

static bool lex_string(lexer *x)
{
    char quote = x->s[x->at];
    size_t from = x->at + 1, end = from;
    bool plain = true;
    while (end < x->n && x->s[end] != quote) {
        if (x->s[end] == '\\') plain = false, end++;
        end++;
    }
    if (end >= x->n) return lex_fail(x, "a string does not end");
    if (plain) {
        if (!emit_text(x, T_STRING, from, end)) return false;
    } else {
        sb b = {.j = x->j};
        val v;
        for (size_t p = from; p < end;) {
            size_t run = p;
            while (run < end && x->s[run] != '\\') run++;
            if (!sb_put(&b, x->s + p, run - p, NULL)) return false;
            p = run + 1;
            if (run < end && !unescape(x, &p, end, &b)) return lex_fail(x, "a string has a bad escape");
        }
        if (!sb_done(&b, &v) || !emit(x, T_STRING, v)) return false;
    }
    advance(x, end + 1);
    return true;
}

static bool track_brackets(lexer *x, tok_type op)
{
    char close = op == T_LPAREN ? ')' : op == T_LBRACKET ? ']' : op == T_LBRACE ? '}' : 0;
    if (close) {
        if (x->n_open == MAX_BRACKETS) return lex_fail(x, "brackets are nested too deeply");
        x->open[x->n_open++] = close;
        return true;
    }
    char c = op == T_RPAREN ? ')' : op == T_RBRACKET ? ']' : op == T_RBRACE ? '}' : 0;
    if (c && (x->n_open == 0 || x->open[--x->n_open] != c)) return lex_fail(x, "unexpected closing bracket");
    return true;
}

static bool lex_operator(lexer *x)
{
    static const struct {
        const char *text;
        tok_type type;
    } ops[] = {{"//", T_FLOORDIV}, {"**", T_POW},   {"==", T_EQ},      {"!=", T_NE},      {">=", T_GE},
               {"<=", T_LE},       {"+", T_PLUS},   {"-", T_MINUS},    {"/", T_DIV},      {"*", T_MUL},
               {"%", T_MOD},       {"~", T_TILDE},  {"[", T_LBRACKET}, {"]", T_RBRACKET}, {"(", T_LPAREN},
               {")", T_RPAREN},    {"{", T_LBRACE}, {"}", T_RBRACE},   {">", T_GT},       {"<", T_LT},
               {"=", T_ASSIGN},    {".", T_DOT},    {":", T_COLON},    {"|", T_PIPE},     {",", T_COMMA},
               {";", T_SEMICOLON}};
    for (size_t i = 0; i < ARRAY_LEN(ops); i++)
        if (at(x, x->at, ops[i].text)) {
            if (!track_brackets(x, ops[i].type) || !emit(x, ops[i].type, v_none())) return false;
            x->at += strlen(ops[i].text);
            return true;
        }
    return lex_fail(x, "unexpected character in an expression");
}

/* From behind "{{" or "{%" to behind its end. */
static bool lex_tag(lexer *x, const char *close, tok_type end_type)
{
    x->n_open = 0;
    while (x->at < x->n) {
        size_t after = skip_space(x, x->at);
        advance(x, after);
        if (x->at >= x->n) break;
        if (x->n_open == 0 && tag_end(x, x->at, close, &after)) {
            if (!emit(x, end_type, v_none())) return false;
            advance(x, after);
            return true;
        }
        char c = x->s[x->at];
        size_t end = name_end(x, x->at);
        bool ok;
        if (is_digit(x, x->at)) ok = lex_number(x);
        else if (end > x->at) {
            ok = emit_text(x, T_NAME, x->at, end);
            x->at = end;
        } else ok = c == '\'' || c == '"' ? lex_string(x) : lex_operator(x);
        if (!ok) return false;
    }
    return lex_fail(x, "the template ends inside a tag");
}

/* One piece of text and the tag behind it. */
static bool lex_root(lexer *x)
{
    size_t from = x->at, p = from, after = 0;
    while (p + 1 < x->n && !(x->s[p] == '{' && memchr("{%#", x->s[p + 1], 3))) p++;
    if (p + 1 >= x->n) {
        bool ok = emit_text(x, T_DATA, from, x->n);
        x->at = x->n;
        return ok;
    }
    char kind = x->s[p + 1], sign = sign_at(x, p + 2);
    size_t to = strip_before(x, from, p, sign, kind == '{');
    if (to > from && !emit_text(x, T_DATA, from, to)) return false;
    if (kind == '%' && word_tag(x, p, "raw", false, &after)) return lex_raw(x, after);
    advance(x, p + 2 + (sign != 0));
    if (kind == '#') return lex_comment(x, x->at);
    if (!emit(x, kind == '{' ? T_VAR_BEGIN : T_BLOCK_BEGIN, v_none())) return false;
    return kind == '{' ? lex_tag(x, "}}", T_VAR_END) : lex_tag(x, "%}", T_BLOCK_END);
}

static bool normalize(jj *j, const char *s, size_t n, char **out, size_t *n_out)
{
    char *t = jj_alloc(j, n + 1, 1);
    size_t k = 0;
    if (!t) return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\r' && i + 1 < n && s[i + 1] == '\n') continue;
        t[k++] = s[i] == '\r' ? '\n' : s[i];
    }
    if (k > 0 && t[k - 1] == '\n') k--;
    *out = t;
    *n_out = k;
    return true;
}

bool jinja_lex(jj *j, const char *s, size_t n, jtok **out, uint32_t *n_out)
{
    char *text;
    lexer *x = jj_alloc(j, 1, sizeof *x);
    if (!x || !normalize(j, s, n, &text, &n)) return false;
    *x = (lexer){.j = j, .s = text, .n = n, .line = 1};
    while (x->at < x->n)
        if (!lex_root(x)) return false;
    if (!emit(x, T_EOF, v_none())) return false;
    *out = x->tok;
    *n_out = x->n_tok;
    return true;
}
