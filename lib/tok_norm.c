/*
 * tok_norm.c - normalizers: text to text.
 *
 * Each step reads run->norm and writes run->norm_tmp, then the two change places. Every byte carries ATTR_* of the character
 * that it came from: a replacement takes those of the last character that it replaces, an inserted character those of its
 * neighbour. That is all of the alignment that later stages ask for (does a piece begin the whole text; is it plain).
 */
#include <stdlib.h>

#include <utf8proc.h>

#include "tok_int.h"

enum { NORM_FACTOR = 64, NORM_MORE = 1 << 24 }; /* text may grow to 64 times its length and 16 MiB more */

static bool room(norm_text *o, size_t n)
{
    if (n <= o->limit && o->text.len <= o->limit - n) return true;
    o->too_long = true;
    return false;
}
bool norm_put(norm_text *o, const char *s, size_t n, uint8_t attr)
{
    char a[16];
    memset(a, attr, sizeof a);
    if (!room(o, n) || !buf_put(&o->text, s, n)) return false;
    for (; n > sizeof a; n -= sizeof a)
        if (!buf_put(&o->attr, a, sizeof a)) return false;
    return buf_put(&o->attr, a, n);
}
static bool put_char(norm_text *o, uint32_t cp, uint8_t attr)
{
    char c[4];
    return norm_put(o, c, utf8_encode(cp, c), attr);
}
bool norm_copy(norm_text *o, const norm_text *in, size_t from, size_t to)
{
    return from == to || (room(o, to - from) && buf_put(&o->text, in->text.data + from, to - from) &&
                          buf_put(&o->attr, in->attr.data + from, to - from));
}

/* ---- Unicode normalization forms ---- */

/* Canonical order: a stable sort of each run of marks by combining class, in linear-logarithmic time. keys has room for n. */
static int by_key(const void *x, const void *y)
{
    uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return (a > b) - (a < b);
}
static void sort_marks(int32_t *cp, size_t n, uint64_t *keys, int32_t *tmp)
{
    for (size_t i = 0; i < n;) {
        size_t k = 0;
        for (; i + k < n; k++) {
            uint64_t ccc = (uint64_t)utf8proc_get_property(cp[i + k])->combining_class;
            if (ccc == 0) break;
            keys[k] = ccc << 32 | k;
        }
        if (k > 1) {
            qsort(keys, k, sizeof *keys, by_key);
            for (size_t j = 0; j < k; j++) tmp[j] = cp[i + (uint32_t)keys[j]];
            memcpy(cp + i, tmp, k * sizeof *cp);
        }
        i += k + 1;
    }
}

/* Decomposes [from, to) of in to cp, or only counts when cp is NULL; SIZE_MAX = failed. */
static size_t decompose(const norm_text *in, size_t from, size_t to, utf8proc_option_t opt, int32_t *cp, size_t cap)
{
    size_t n = 0;
    while (from < to) {
        uint32_t c;
        int boundary = 0;
        from += uni_next(in->text.data + from, &c);
        utf8proc_ssize_t k =
            utf8proc_decompose_char((int32_t)c, cp ? cp + n : NULL, cp ? (utf8proc_ssize_t)(cap - n) : 0, opt, &boundary);
        if (k < 0 || (cp && (size_t)k > cap - n)) return SIZE_MAX;
        n += (size_t)k;
    }
    return n;
}

/* Characters that the first one of [from, to) alone becomes, when it is the text's first: they all stand where the text began. */
static size_t origin_chars(const norm_text *in, size_t from, utf8proc_option_t opt, bool compose)
{
    int32_t cp[32];
    if (!(in->attr.data[from] & ATTR_ORIGIN)) return 0;
    size_t n = decompose(in, from, from + 1, opt, cp, ARRAY_LEN(cp));
    if (n == SIZE_MAX || !compose) return n == SIZE_MAX ? 1 : n;
    utf8proc_ssize_t k = utf8proc_normalize_utf32(cp, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    return k < 0 ? 1 : (size_t)k;
}

/* [from, to) of in, whose first character may be ASCII; the others are not. */
static bool put_form(tok_run *r, norm_text *o, const norm_text *in, size_t from, size_t to, int form)
{
    utf8proc_option_t opt = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    if (form == TOK_N_NFKC || form == TOK_N_NFKD) opt |= UTF8PROC_COMPAT;
    size_t bytes, n = decompose(in, from, to, opt, NULL, 0);
    if (n == SIZE_MAX || !size_mul3(n, 16, 1, &bytes)) return false;
    uint64_t *keys = tok_run_work(r, 0, bytes);
    if (!keys) return false;
    int32_t *cp = (int32_t *)(keys + n), *tmp = cp + n;
    if (decompose(in, from, to, opt, cp, n) != n) return false;
    sort_marks(cp, n, keys, tmp);
    uint8_t rest = 0;
    for (size_t i = from; i < to; i++) rest |= (uint8_t)in->attr.data[i];
    bool compose = form == TOK_N_NFC || form == TOK_N_NFKC;
    size_t n_origin = origin_chars(in, from, opt, compose);
    if (compose) {
        utf8proc_ssize_t k = utf8proc_normalize_utf32(cp, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (k < 0) return false;
        n = (size_t)k;
    }
    uint8_t first = (uint8_t)in->attr.data[from];
    bool same = n && cp[0] < 0x80 && cp[0] == in->text.data[from];
    rest &= ATTR_PLAIN;
    for (size_t i = 0; i < n; i++) {
        uint8_t attr = i ? rest : same ? first : (uint8_t)(first | rest);
        if (!put_char(o, (uint32_t)cp[i], i < n_origin ? attr | ATTR_ORIGIN : attr)) return false;
    }
    return true;
}

/* ASCII is normal in every form, and what follows an ASCII character in front of another does not change it: so only runs of
 * other characters, each with the one before it, go through the tables. */
static bool run_form(tok_run *r, norm_text *o, const norm_text *in, int form)
{
    const char *s = in->text.data;
    size_t n = in->text.len, done = 0;
    for (size_t i = 0; i < n;) {
        if ((uint8_t)s[i] < 0x80) {
            i++;
            continue;
        }
        size_t from = i > done ? i - 1 : i, to = i;
        while (to < n && (uint8_t)s[to] >= 0x80) to++;
        if (!norm_copy(o, in, done, from) || !put_form(r, o, in, from, to, form)) return false;
        done = i = to;
    }
    return norm_copy(o, in, done, n);
}

/* ---- character by character ---- */

static bool is_chinese(uint32_t c)
{
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
           (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}
static bool nmt_drops(uint32_t c)
{
    return (c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f;
}
static bool nmt_blanks(uint32_t c)
{
    return c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 || (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 ||
           c == 0x2581 || c == 0xfeff || c == 0xfffd;
}

enum { MAP_LOWER, MAP_DROP_MARKS, MAP_DROP_NONSPACING, MAP_NMT, MAP_BYTES, MAP_CLEAN, MAP_CHINESE };

static bool map_char(norm_text *o, int map, const char *s, uint32_t len, uint32_t cp, uint8_t attr)
{
    uint32_t low[2];
    switch (map) {
    case MAP_LOWER:
        for (uint32_t i = 0, n = uni_lower(cp, low); i < n; i++)
            if (!put_char(o, low[i], attr)) return false;
        return true;
    case MAP_DROP_MARKS: return uni_is_mark(cp) || norm_put(o, s, len, attr);
    case MAP_DROP_NONSPACING: return uni_is_mark_nonspacing(cp) || norm_put(o, s, len, attr);
    case MAP_NMT: return nmt_drops(cp) || (nmt_blanks(cp) ? put_char(o, ' ', attr) : norm_put(o, s, len, attr));
    case MAP_BYTES:
        for (uint32_t i = 0; i < len; i++)
            if (!put_char(o, uni_byte_char((uint8_t)s[i]), attr)) return false;
        return true;
    case MAP_CLEAN: {
        bool space = uni_is_space(cp);
        bool drop = cp == 0 || cp == 0xfffd || (uni_is_other(cp) && cp != '\t' && cp != '\n' && cp != '\r');
        return drop || (space ? put_char(o, ' ', attr) : norm_put(o, s, len, attr));
    }
    default: /* MAP_CHINESE */
        if (!is_chinese(cp)) return norm_put(o, s, len, attr);
        return put_char(o, ' ', attr) && norm_put(o, s, len, attr) && put_char(o, ' ', attr);
    }
}

static bool run_map(norm_text *o, const norm_text *in, int map)
{
    for (size_t i = 0; i < in->text.len;) {
        uint32_t cp, len = uni_next(in->text.data + i, &cp);
        if (!map_char(o, map, in->text.data + i, len, cp, (uint8_t)in->attr.data[i])) return false;
        i += len;
    }
    return true;
}

static bool run_strip(norm_text *o, const norm_text *in, bool left, bool right)
{
    const char *s = in->text.data;
    size_t a = 0, b = in->text.len;
    uint32_t cp, len;
    while (left && a < b && (len = uni_next(s + a, &cp), uni_is_space(cp))) a += len;
    while (right && a < b) {
        size_t c = b - 1;
        while (((uint8_t)s[c] & 0xc0) == 0x80) c--;
        uni_next(s + c, &cp);
        if (!uni_is_space(cp)) break;
        b = c;
    }
    return norm_copy(o, in, a, b);
}

/* A step failed: the text became too long, or memory ran out. */
static tess_status failed(tok_run *r)
{
    norm_text *o = &r->norm_tmp;
    if (!o->too_long) return tok_run_nomem(r);
    return ERR(r->err, TESS_E_FORMAT, "the normalizers of the tokenizer make more than %zu bytes of one text", o->limit);
}

static tess_status run_replace(tok_run *r, norm_text *o, const norm_text *in, const tok_op *op)
{
    pattern_iter it;
    pattern_start(&it, op->pat, &r->scratch, in->text.data, in->text.len);
    size_t done = 0, b, e;
    for (bool found;;) {
        TRY(pattern_next(&it, &found, &b, &e, r->err));
        if (!found) break;
        uint8_t attr = (uint8_t)(e > 0 ? in->attr.data[e - 1] : in->attr.data[0]);
        if (!norm_copy(o, in, done, b) || !norm_put(o, op->text[1], op->len[1], attr)) return failed(r);
        done = e;
    }
    return norm_copy(o, in, done, in->text.len) ? TESS_OK : failed(r);
}

static void swap(tok_run *r)
{
    norm_text t = r->norm;
    r->norm = r->norm_tmp;
    r->norm_tmp = t;
    r->norm_tmp.text.len = r->norm_tmp.attr.len = 0;
}

static tess_status run_op(tok_run *r, const tok_op *op)
{
    norm_text *o = &r->norm_tmp;
    const norm_text *in = &r->norm;
    bool ok = true;
    switch (op->code) {
    case TOK_N_NFC: case TOK_N_NFD: case TOK_N_NFKC: case TOK_N_NFKD: ok = run_form(r, o, in, (int)op->code); break;
    case TOK_N_LOWERCASE: ok = run_map(o, in, MAP_LOWER); break;
    case TOK_N_STRIP_ACCENTS: ok = run_map(o, in, MAP_DROP_MARKS); break;
    case TOK_N_NMT: ok = run_map(o, in, MAP_NMT); break;
    case TOK_N_BYTE_LEVEL: ok = run_map(o, in, MAP_BYTES); break;
    case TOK_N_PRECOMPILED: ok = charsmap_run(&r->t->map, o, in); break;
    case TOK_N_STRIP: ok = run_strip(o, in, op->a, op->b); break;
    case TOK_N_PREPEND: ok = norm_put(o, op->text[0], op->len[0], (uint8_t)in->attr.data[0]) && norm_copy(o, in, 0, in->text.len); break;
    case TOK_N_REPLACE: TRY(run_replace(r, o, in, op)); break;
    default: return ERR(r->err, TESS_E_UNSUPPORTED, "normalizer %u is not known to this version", op->code);
    }
    if (!ok) return failed(r);
    swap(r);
    return TESS_OK;
}

static tess_status run_bert(tok_run *r, uint32_t flags)
{
    static const struct { uint32_t flag; int map; } steps[] = {{TOK_BERT_CLEAN, MAP_CLEAN}, {TOK_BERT_CHINESE, MAP_CHINESE}};
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        if (!(flags & steps[i].flag)) continue;
        if (!run_map(&r->norm_tmp, &r->norm, steps[i].map)) return failed(r);
        swap(r);
    }
    if (flags & TOK_BERT_ACCENTS) {
        if (!run_form(r, &r->norm_tmp, &r->norm, TOK_N_NFD)) return failed(r);
        swap(r);
        if (!run_map(&r->norm_tmp, &r->norm, MAP_DROP_NONSPACING)) return failed(r);
        swap(r);
    }
    if (!(flags & TOK_BERT_LOWER)) return TESS_OK;
    if (!run_map(&r->norm_tmp, &r->norm, MAP_LOWER)) return failed(r);
    swap(r);
    return TESS_OK;
}

tess_status norm_run(tok_run *r)
{
    r->norm_tmp.text.len = r->norm_tmp.attr.len = 0;
    size_t len = r->norm.text.len;
    r->norm.limit = r->norm_tmp.limit = len < (SIZE_MAX - NORM_MORE) / NORM_FACTOR ? len * NORM_FACTOR + NORM_MORE : SIZE_MAX;
    r->norm.too_long = r->norm_tmp.too_long = false;
    for (uint32_t i = 0; i < r->t->norm.n && r->norm.text.len; i++) {
        const tok_op *op = &r->t->norm.op[i];
        if (op->code == TOK_N_BERT) TRY(run_bert(r, op->a));
        else TRY(run_op(r, op));
    }
    return TESS_OK;
}
