/*
 * pattern.c - see pattern.h. Rewriting Oniguruma's syntax (the one of Ruby) for PCRE2:
 *
 *   \s \S            the Unicode property White_Space (PCRE2 adds U+180E)
 *   \w \W \b \B      Alphabetic, marks, decimal digits, connector punctuation (PCRE2: letters, numbers, "_")
 *   \h \H            a hexadecimal digit (PCRE2: horizontal space)
 *   \uHHHH           a code point
 *   ^ $              at every line (option MULTILINE)
 *   (?m)             the dot matches a newline: (?s)
 *   {,n}             {0,n}; what is no interval is text
 *   X{n,m}+  X{n}?   a repeat of the repeat, not possessive or lazy: (?:X{n,m})+
 *   \p{Letter} ...   long names of general categories; \p{Han} is the script, not its extensions
 *   [[:alpha:]] ...  the Unicode properties of that name
 *   [a[bc]]          nested classes are joined; negated ones and && are refused
 *
 * Matching can not run out of a limit: a match that overflows the JIT's stack is run again on a larger one and then by the
 * interpreter, whose frames are on the heap.
 */
#include "pattern.h"

#include <stdio.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define SPACES "\\t-\\r\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NOT_SPACES                                                                                      \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}" \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

enum { GROUPS_MAX = 250, JIT_STACK_MIN = 1 << 16, JIT_STACK_MAX = 1 << 26 };

struct pattern {
    mem m;
    pcre2_general_context *general;
    pcre2_code *code; /* NULL: literal */
    char *literal;
    size_t literal_len;
};
typedef struct match_state {
    mem m;
    pcre2_general_context *general;
    pcre2_match_data *data;
    pcre2_match_context *ctx;
    pcre2_jit_stack *stack; /* made when the machine's stack did not suffice */
} match_state;

static void *pcre_alloc(PCRE2_SIZE n, void *user) { return mem_alloc(user, n); }
static void pcre_free(void *p, void *user) { mem_free(user, p); }

/* ---- rewriting ---- */

typedef struct {
    const char *p, *end;      /* what is left of the source */
    buf *out;
    size_t atom;              /* where the last atom begins in out */
    size_t group[GROUPS_MAX]; /* where the open groups begin in out */
    uint32_t depth;
    const char *why;          /* what is not supported */
} rewriter;

static bool refuse(rewriter *r, const char *why) { return r->why = why, false; }

/* Splices text in front of the output position `at`. */
static bool insert(buf *b, size_t at, const char *text)
{
    size_t n = strlen(text);
    if (!buf_put(b, text, n)) return false;
    memmove(b->data + at + n, b->data + at, b->len - n - at);
    memcpy(b->data + at, text, n);
    return true;
}

static bool name_is(const char *name, size_t n, const char *want)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        if (c == '_' || c == ' ' || c == '-') continue;
        if (c >= 'A' && c <= 'Z') c = (char)(c + 32);
        if (want[k] == 0 || c != want[k++]) return false;
    }
    return want[k] == 0;
}

/* "\p{...}" or "\P{...}" at r->p. */
static bool put_property(rewriter *r)
{
    static const struct { const char *name, *code; } longs[] = {
        {"letter", "L"}, {"uppercaseletter", "Lu"}, {"lowercaseletter", "Ll"}, {"titlecaseletter", "Lt"},
        {"modifierletter", "Lm"}, {"otherletter", "Lo"}, {"mark", "M"}, {"nonspacingmark", "Mn"}, {"spacingmark", "Mc"},
        {"enclosingmark", "Me"}, {"number", "N"}, {"decimalnumber", "Nd"}, {"digit", "Nd"}, {"letternumber", "Nl"},
        {"othernumber", "No"}, {"punctuation", "P"}, {"connectorpunctuation", "Pc"}, {"dashpunctuation", "Pd"},
        {"openpunctuation", "Ps"}, {"closepunctuation", "Pe"}, {"initialpunctuation", "Pi"}, {"finalpunctuation", "Pf"},
        {"otherpunctuation", "Po"}, {"symbol", "S"}, {"mathsymbol", "Sm"}, {"currencysymbol", "Sc"},
        {"modifiersymbol", "Sk"}, {"othersymbol", "So"}, {"separator", "Z"}, {"spaceseparator", "Zs"},
        {"lineseparator", "Zl"}, {"paragraphseparator", "Zp"}, {"other", "C"}, {"control", "Cc"}, {"format", "Cf"},
        {"alpha", "Alphabetic"}, {"upper", "Uppercase"}, {"lower", "Lowercase"}, {"space", "White_Space"}};
    static const char *const scripts[] = {
        "arabic",   "armenian", "bengali",   "bopomofo",  "common",  "cyrillic", "devanagari", "ethiopic", "georgian", "greek",
        "gujarati", "gurmukhi", "han",       "hangul",    "hebrew",  "hiragana", "inherited",  "kannada",  "katakana", "khmer",
        "lao",      "latin",    "malayalam", "mongolian", "myanmar", "sinhala",  "tamil",      "telugu",   "thai",     "tibetan"};
    const char *open = r->p + 2, *close = memchr(r->p, '}', (size_t)(r->end - r->p));
    if (open >= r->end || *open != '{' || !close) return refuse(r, "\\p without {name}");
    bool negated = open + 1 < close && open[1] == '^';
    const char *name = open + 1 + negated;
    buf_put(r->out, r->p, (size_t)(name - r->p));
    size_t n = (size_t)(close - name);
    for (size_t i = 0; i < ARRAY_LEN(longs); i++)
        if (name_is(name, n, longs[i].name)) name = longs[i].code, n = strlen(name);
    for (size_t i = 0; i < ARRAY_LEN(scripts); i++)
        if (name_is(name, n, scripts[i])) buf_puts(r->out, "sc:");
    r->p = close + 1;
    return buf_put(r->out, name, n) && buf_putc(r->out, '}');
}

/* An escape at r->p, inside a class or not. */
static bool put_escape(rewriter *r, bool in_class)
{
    if (r->end - r->p < 2) return refuse(r, "a lone backslash at the end");
    const char *text = NULL;
    switch (r->p[1]) {
    case 's': text = in_class ? SPACES : "[" SPACES "]"; break;
    case 'S': text = in_class ? NOT_SPACES : "[^" SPACES "]"; break;
    case 'w': text = in_class ? WORD : "[" WORD "]"; break;
    case 'W': text = in_class ? NULL : "[^" WORD "]"; break;
    case 'h': text = in_class ? "0-9a-fA-F" : "[0-9a-fA-F]"; break;
    case 'H': text = in_class ? NULL : "[^0-9a-fA-F]"; break;
    case 'b': text = in_class ? "\\x08" : "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))"; break;
    case 'B': text = in_class ? NULL : "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))"; break;
    case 'p': case 'P': return put_property(r);
    case 'u':
        if (r->end - r->p < 6) return refuse(r, "\\u without four digits");
        buf_printf(r->out, "\\x{%.4s}", r->p + 2);
        r->p += 6;
        return !r->out->failed;
    case 'x': case 'k': case 'g': case 'K': case 'R': case 'X': { /* the same; a brace is copied with it */
        const char *stop = r->p + 2;
        if (stop < r->end && *stop == '{') {
            while (stop < r->end && *stop != '}') stop++;
            if (stop == r->end) return refuse(r, "an escape without its closing brace");
            stop++;
        }
        bool ok = buf_put(r->out, r->p, (size_t)(stop - r->p));
        r->p = stop;
        return ok;
    }
    default: { /* the same; a character of several bytes stays whole since the rest is copied as text */
        bool ok = buf_put(r->out, r->p, 2);
        r->p += 2;
        return ok;
    }
    }
    if (!text) return refuse(r, "\\W, \\H or \\B inside a class");
    r->p += 2;
    return buf_puts(r->out, text);
}

/* [:name:] inside a class, name being [name, end): by Unicode property where PCRE2 differs. */
static void put_posix(rewriter *r, const char *name, const char *end)
{
    static const struct {
        const char *name, *items;
    } sets[] = {{"alpha", "\\p{Alphabetic}"}, {"digit", "\\p{Nd}"},        {"space", SPACES}, {"alnum", "\\p{Alphabetic}\\p{Nd}"},
                {"upper", "\\p{Uppercase}"},  {"lower", "\\p{Lowercase}"}, {"word", WORD}};
    size_t n = (size_t)(end - name);
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
        if (strlen(sets[i].name) != n || memcmp(name, sets[i].name, n) != 0) continue;
        buf_puts(r->out, sets[i].items);
        return;
    }
    buf_put(r->out, name - 2, n + 4);
}

/* The inside of a class up to its closing bracket, which is consumed but not written. */
static bool put_class_items(rewriter *r, uint32_t depth)
{
    if (depth > 8) return refuse(r, "classes nested too deep");
    for (bool first = true; r->p < r->end; first = false) {
        char c = *r->p;
        if (c == ']' && !first) return r->p++, true;
        if (c == '\\') {
            if (!put_escape(r, true)) return false;
        } else if (c == '[' && r->end - r->p > 1 && r->p[1] == ':') {
            const char *stop = r->p + 2;
            while (stop + 1 < r->end && !(stop[0] == ':' && stop[1] == ']')) stop++;
            if (stop + 1 >= r->end) return refuse(r, "a class without its closing bracket");
            put_posix(r, r->p + 2, stop);
            r->p = stop + 2;
        } else if (c == '[') {
            r->p++;
            if (r->p < r->end && *r->p == '^') return refuse(r, "a negated class inside a class");
            if (!put_class_items(r, depth + 1)) return false;
        } else if (c == '&' && r->end - r->p > 1 && r->p[1] == '&') {
            return refuse(r, "&& inside a class");
        } else {
            if (c == ']') buf_putc(r->out, '\\');
            buf_putc(r->out, c);
            r->p++;
        }
    }
    return refuse(r, "a class without its closing bracket");
}

static bool put_class(rewriter *r)
{
    buf_putc(r->out, '[');
    r->p++;
    if (r->p < r->end && *r->p == '^') {
        buf_putc(r->out, '^');
        r->p++;
    }
    return put_class_items(r, 0) && buf_putc(r->out, ']');
}

/* "(" and what belongs to it: "(?im-x:" has its m turned into s. */
static bool put_open(rewriter *r)
{
    if (r->depth == GROUPS_MAX) return refuse(r, "groups nested too deep");
    r->group[r->depth++] = r->out->len;
    buf_putc(r->out, *r->p++);
    if (r->p == r->end || *r->p != '?') return true;
    buf_putc(r->out, *r->p++);
    const char *stop = r->p;
    while (stop < r->end && strchr("imxs-", *stop) && *stop) stop++;
    if (stop == r->end || (*stop != ':' && *stop != ')')) return true;
    for (; r->p < stop; r->p++) buf_putc(r->out, *r->p == 'm' ? 's' : *r->p);
    if (*stop == ')') { /* options from here on: no group */
        r->depth--;
        buf_putc(r->out, *r->p++);
    }
    return true;
}

/* Length of the interval "{n}", "{n,}", "{,m}" or "{n,m}" at p, 0 = it is text. */
static size_t interval_len(const char *p, const char *end, bool *fixed)
{
    const char *q = p + 1;
    uint32_t digits = 0;
    *fixed = true;
    for (; q < end && *q >= '0' && *q <= '9'; q++) digits++;
    if (q < end && *q == ',') {
        *fixed = false;
        for (q++; q < end && *q >= '0' && *q <= '9'; q++) digits++;
    }
    return q < end && *q == '}' && digits ? (size_t)(q + 1 - p) : 0;
}

static bool put_interval(rewriter *r)
{
    bool fixed;
    size_t n = interval_len(r->p, r->end, &fixed);
    if (n == 0) {
        r->atom = r->out->len;
        r->p++;
        return buf_puts(r->out, "\\{");
    }
    char next = r->p + n < r->end ? r->p[n] : 0;
    bool wrap = next == '+' || next == '*' || (next == '?' && fixed);
    if (wrap && !insert(r->out, r->atom, "(?:")) return false;
    buf_puts(r->out, r->p[1] == ',' ? "{0" : "{");
    buf_put(r->out, r->p + 1, n - 1);
    r->p += n;
    if (wrap) buf_putc(r->out, ')');
    if (wrap || next == '?') buf_putc(r->out, *r->p++);
    return !r->out->failed;
}

static bool rewrite(rewriter *r)
{
    while (r->p < r->end) {
        char c = *r->p;
        bool ok = true;
        if (c == '{') ok = put_interval(r);
        else if (c == '*' || c == '+' || c == '?') { /* with its mark for lazy or possessive */
            buf_putc(r->out, *r->p++);
            if (r->p < r->end && (*r->p == '+' || *r->p == '?')) buf_putc(r->out, *r->p++);
        } else if (c == ')') {
            if (r->depth) r->atom = r->group[--r->depth];
            buf_putc(r->out, *r->p++);
        } else {
            if (((unsigned char)c & 0xc0) != 0x80) r->atom = r->out->len; /* a character's first byte */
            if (c == '\\') ok = put_escape(r, false);
            else if (c == '[') ok = put_class(r);
            else if (c == '(') ok = put_open(r);
            else buf_putc(r->out, *r->p++);
        }
        if (!ok) return false;
    }
    return !r->out->failed;
}

/* ---- opening ---- */

static tess_status compile(pattern *p, const buf *text, tess_error *err)
{
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_compile_context *cc = pcre2_compile_context_create(p->general);
    if (!cc) return ERR(err, TESS_E_NOMEM, "no memory for a regular expression");
    pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
    p->code = pcre2_compile((PCRE2_SPTR)(text->len ? text->data : ""), text->len, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code,
                            &at, cc);
    pcre2_compile_context_free(cc);
    if (!p->code && code == PCRE2_ERROR_HEAP_FAILED) return ERR(err, TESS_E_NOMEM, "no memory for a regular expression");
    if (!p->code) {
        PCRE2_UCHAR why[200] = "";
        pcre2_get_error_message(code, why, sizeof why);
        return ERR(err, TESS_E_UNSUPPORTED, "regular expression is not supported: %s (near character %zu)", (char *)why,
                   (size_t)at);
    }
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* without a JIT the interpreter serves */
    return TESS_OK;
}

static tess_status open_regex(pattern *p, const char *text, size_t len, tess_error *err)
{
    buf out;
    buf_init(&out, &p->m);
    rewriter r = {.p = text, .end = text + len, .out = &out};
    tess_status st;
    if (!buf_put(&out, "", 0) || !rewrite(&r))
        st = r.why ? ERR(err, TESS_E_UNSUPPORTED, "regular expression is not supported: %s", r.why)
                   : ERR(err, TESS_E_NOMEM, "no memory for a regular expression");
    else
        st = compile(p, &out, err);
    buf_free(&out);
    return st;
}

tess_status pattern_open(const mem *m, const char *text, size_t len, bool regex, pattern **out, tess_error *err)
{
    *out = NULL;
    pattern *p = mem_zalloc(m, sizeof *p);
    if (!p) return ERR(err, TESS_E_NOMEM, "no memory for a pattern");
    p->m = *m;
    tess_status st = TESS_OK;
    p->literal_len = len;
    if (regex || len == 0) { /* the empty literal matches everywhere, as the empty expression does */
        p->general = pcre2_general_context_create(pcre_alloc, pcre_free, &p->m);
        st = p->general ? open_regex(p, text, len, err) : ERR(err, TESS_E_NOMEM, "no memory for a pattern");
    } else if (!(p->literal = mem_strndup(m, text, len))) {
        st = ERR(err, TESS_E_NOMEM, "no memory for a pattern");
    }
    if (st < 0) {
        pattern_close(p);
        return st;
    }
    *out = p;
    return TESS_OK;
}

void pattern_close(pattern *p)
{
    if (!p) return;
    mem m = p->m;
    if (p->code) pcre2_code_free(p->code);
    if (p->general) pcre2_general_context_free(p->general);
    mem_free(&m, p->literal);
    mem_free(&m, p);
}

/* ---- matching ---- */

static void state_close(match_state *s)
{
    if (!s) return;
    mem m = s->m;
    if (s->stack) pcre2_jit_stack_free(s->stack);
    if (s->data) pcre2_match_data_free(s->data);
    if (s->ctx) pcre2_match_context_free(s->ctx);
    if (s->general) pcre2_general_context_free(s->general);
    mem_free(&m, s);
}

static match_state *state_open(const mem *m)
{
    match_state *s = mem_zalloc(m, sizeof *s);
    if (!s) return NULL;
    s->m = *m;
    s->general = pcre2_general_context_create(pcre_alloc, pcre_free, &s->m);
    if (!s->general) goto fail;
    s->data = pcre2_match_data_create(1, s->general);
    s->ctx = pcre2_match_context_create(s->general);
    if (!s->data || !s->ctx) goto fail;
    pcre2_set_match_limit(s->ctx, UINT32_MAX);
    pcre2_set_depth_limit(s->ctx, UINT32_MAX);
    pcre2_set_heap_limit(s->ctx, UINT32_MAX);
    return s;
fail:
    state_close(s);
    return NULL;
}

void pattern_scratch_init(pattern_scratch *s, const mem *m) { *s = (pattern_scratch){m, NULL}; }

void pattern_scratch_free(pattern_scratch *s)
{
    state_close(s->state);
    s->state = NULL;
}

static int match_at(const pattern_iter *it)
{
    match_state *w = it->scratch->state;
    PCRE2_SPTR s = (PCRE2_SPTR)it->s;
    int rc = pcre2_match(it->p->code, s, it->n, it->from, PCRE2_NO_UTF_CHECK, w->data, w->ctx);
    if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
    if (!w->stack) {
        w->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, w->general);
        if (w->stack) pcre2_jit_stack_assign(w->ctx, NULL, w->stack);
        if (w->stack) rc = pcre2_match(it->p->code, s, it->n, it->from, PCRE2_NO_UTF_CHECK, w->data, w->ctx);
        if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
    }
    return pcre2_match(it->p->code, s, it->n, it->from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, w->data, w->ctx);
}

void pattern_start(pattern_iter *it, const pattern *p, pattern_scratch *scratch, const char *s, size_t n)
{
    *it = (pattern_iter){p, scratch, s, n, 0, SIZE_MAX};
}

tess_status pattern_next(pattern_iter *it, bool *found, size_t *begin, size_t *end, tess_error *err)
{
    *found = false;
    if (it->p->literal) {
        const char *hit = it->from <= it->n ? memmem(it->s + it->from, it->n - it->from, it->p->literal, it->p->literal_len) : NULL;
        it->from = it->n + 1;
        if (!hit) return TESS_OK;
        *begin = (size_t)(hit - it->s);
        it->from = *end = *begin + it->p->literal_len;
        *found = true;
        return TESS_OK;
    }
    pattern_scratch *w = it->scratch;
    if (!w->state && !(w->state = state_open(w->m))) return ERR(err, TESS_E_NOMEM, "no memory for matching");
    while (it->from <= it->n) {
        int rc = match_at(it);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc == PCRE2_ERROR_NOMEMORY || rc == PCRE2_ERROR_HEAPLIMIT)
            return ERR(err, TESS_E_NOMEM, "no memory to split %zu bytes of text", it->n);
        if (rc < 0) return ERR(err, TESS_E_UNSUPPORTED, "a split pattern failed on %zu bytes of text (PCRE2 error %d)", it->n, rc);
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(w->state->data);
        size_t b = v[0], e = v[1];
        if (e < b) e = b; /* \K inside a lookahead */
        if (b == e && e == it->last_end) { /* an empty match right after a match: look from the next character */
            do it->from++;
            while (it->from < it->n && ((unsigned char)it->s[it->from] & 0xc0) == 0x80);
            continue;
        }
        *begin = b;
        *end = it->from = it->last_end = e;
        *found = true;
        return TESS_OK;
    }
    it->from = it->n + 1;
    return TESS_OK;
}
