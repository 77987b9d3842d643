/*
 * tok_pre.c - pre-tokenizers: text to words.
 *
 * The list runs as a chain of visitors: stage i cuts the piece that it gets, and hands each part to stage i + 1 at once; the
 * model is behind the last. So no list of pieces is kept, and depth is at most TOK_OPS_MAX. A stage that rewrites its piece
 * does so in its own buffer, which holds until its piece is done.
 */
#include "tok_int.h"

/* Parts of one piece on their way to the next stage: what to do with delimiters is decided here, with one part held back. */
typedef struct {
    tok_run *r;
    uint32_t next;
    const char *s;
    size_t z;
    uint32_t behavior;
    bool held, prev_match;
    size_t a, b; /* the held part */
} splitter;

static tess_status emit(splitter *p, size_t a, size_t b)
{
    return a < b ? pre_run(p->r, p->next, p->s + a, b - a, p->z > a ? p->z - a : 0) : TESS_OK;
}

/* Holds [a, b) and passes on what was held. */
static tess_status hold(splitter *p, size_t a, size_t b)
{
    size_t x = p->a, y = p->b;
    bool held = p->held;
    p->a = a;
    p->b = b;
    p->held = true;
    return held ? emit(p, x, y) : TESS_OK;
}

static tess_status part(splitter *p, size_t a, size_t b, bool match)
{
    bool prev = p->prev_match, join;
    p->prev_match = match;
    switch (p->behavior) {
    case TOK_SPLIT_REMOVED: return match ? TESS_OK : emit(p, a, b);
    case TOK_SPLIT_ISOLATED: return emit(p, a, b);
    case TOK_SPLIT_PREVIOUS: join = match && !prev; break;
    case TOK_SPLIT_NEXT: join = !match && prev; break;
    default: join = match == prev; break; /* contiguous */
    }
    if (!join || !p->held) return hold(p, a, b);
    p->b = b;
    return TESS_OK;
}

static tess_status split_end(splitter *p) { return p->held ? emit(p, p->a, p->b) : TESS_OK; }

/* ---- kinds of splits ---- */

static tess_status split_pattern(splitter *p, size_t n, const tok_op *op)
{
    tok_run *r = p->r;
    pattern_iter it;
    pattern_start(&it, op->pat, &r->scratch, p->s, n);
    size_t done = 0, b, e;
    for (bool found;;) {
        TRY(pattern_next(&it, &found, &b, &e, r->err));
        if (!found) break;
        if (done != b) TRY(part(p, done, b, op->c != 0));
        TRY(part(p, b, e, op->c == 0));
        done = e;
    }
    if (done != n) TRY(part(p, done, n, op->c != 0));
    return split_end(p);
}

static tess_status split_scan(splitter *p, size_t n, int scan)
{
    for (size_t i = 0; i < n;) {
        size_t j = scan_next(p->r->t, scan, p->s, n, i);
        TRY(emit(p, i, j));
        i = j;
    }
    return TESS_OK;
}

/* Cut at each character that is_delimiter takes. */
static tess_status split_chars(splitter *p, size_t n, bool (*is_delimiter)(uint32_t cp))
{
    size_t done = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp, len = uni_next(p->s + i, &cp);
        if (is_delimiter(cp)) {
            if (done < i) TRY(part(p, done, i, false));
            TRY(part(p, i, i + len, true));
            done = i + len;
        }
        i += len;
    }
    if (done < n) TRY(part(p, done, n, false));
    return split_end(p);
}

/* Cut at each occurrence of the character c. */
static tess_status split_text(splitter *p, size_t n, const char *c, size_t c_len)
{
    size_t done = 0;
    for (size_t i = 0; i < n;) {
        const char *hit = memmem(p->s + i, n - i, c, c_len);
        if (!hit) break;
        i = (size_t)(hit - p->s);
        if (done < i) TRY(part(p, done, i, false));
        TRY(part(p, i, i + c_len, true));
        done = i += c_len;
    }
    if (done < n) TRY(part(p, done, n, false));
    return split_end(p);
}

/* \w+|[^\w\s]+ : runs of word characters and of others, whitespace dropped. */
static tess_status split_words(splitter *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp, len = uni_next(p->s + i, &cp);
        bool word = uni_is_word(cp);
        size_t j = i + len;
        if (!word && uni_is_space(cp)) {
            i = j;
            continue;
        }
        while (j < n) {
            len = uni_next(p->s + j, &cp);
            if (uni_is_word(cp) != word || (!word && uni_is_space(cp))) break;
            j += len;
        }
        TRY(emit(p, i, j));
        i = j;
    }
    return TESS_OK;
}

static tess_status split_fixed(splitter *p, size_t n, uint32_t chars)
{
    for (size_t i = 0; i < n;) {
        size_t j = i;
        for (uint32_t k = 0; k < chars && j < n; k++) j += uni_len(p->s + j);
        TRY(emit(p, i, j));
        i = j;
    }
    return TESS_OK;
}

/* ---- those that rewrite ---- */

static tess_status run_metaspace(tok_run *r, uint32_t stage, const tok_op *op, const char *s, size_t n, size_t z)
{
    const char *rep = op->text[0];
    size_t rep_len = op->len[0], new_z = 0;
    buf *o = &r->stage[stage];
    o->len = 0;
    bool starts = s[0] == ' ' || (n >= rep_len && memcmp(s, rep, rep_len) == 0);
    bool prepend = !starts && (op->a == TOK_PREPEND_ALWAYS || (op->a == TOK_PREPEND_FIRST && z > 0));
    if (prepend) buf_put(o, rep, rep_len);
    if (prepend && z) new_z = rep_len;
    for (size_t i = 0; i < n;) {
        const char *hit = memchr(s + i, ' ', n - i);
        size_t j = hit ? (size_t)(hit - s) : n;
        buf_put(o, s + i, j - i);
        if (i < z) new_z += MIN(j, z) - i;
        if (hit) buf_put(o, rep, rep_len);
        if (hit && j < z) new_z += rep_len;
        i = j + 1;
    }
    if (o->failed) return tok_run_nomem(r);
    if (!op->b) return pre_run(r, stage + 1, o->data, o->len, new_z);
    splitter p = {.r = r, .next = stage + 1, .s = o->data, .z = new_z, .behavior = TOK_SPLIT_NEXT};
    return split_text(&p, o->len, rep, rep_len);
}

/* Writes the bytes of s as characters of the byte-level alphabet, and hands them on. */
static tess_status emit_mapped(tok_run *r, uint32_t stage, const char *s, size_t n, size_t z)
{
    buf *o = &r->stage[stage];
    o->len = 0;
    size_t new_z = 0;
    for (size_t i = 0; i < n; i++) {
        char c[4];
        uint32_t len = utf8_encode(uni_byte_char((uint8_t)s[i]), c);
        if (!buf_put(o, c, len)) return tok_run_nomem(r);
        if (i < z) new_z += len;
    }
    return pre_run(r, stage + 1, o->data, o->len, new_z);
}

static tess_status run_byte_level(tok_run *r, uint32_t stage, const tok_op *op, const char *s, size_t n, size_t z)
{
    const tok *t = r->t;
    tess_status st = TESS_OK;
    buf spaced;
    buf_init(&spaced, &t->m);
    if (op->a && s[0] != ' ') {
        if (!buf_putc(&spaced, ' ') || !buf_put(&spaced, s, n)) {
            buf_free(&spaced);
            return tok_run_nomem(r);
        }
        s = spaced.data;
        n++;
        z += z > 0;
    }
    bool raw = t->byte_mode && stage + 1 == t->pre.n; /* the model reads bytes */
    for (size_t i = 0; i < n && st == TESS_OK;) {
        size_t j = op->b ? scan_next(t, SCAN_GPT2, s, n, i) : n;
        st = raw ? tok_model_word(r, s + i, j - i) : emit_mapped(r, stage, s + i, j - i, z > i ? z - i : 0);
        i = j;
    }
    buf_free(&spaced);
    return st;
}

tess_status pre_run(tok_run *r, uint32_t stage, const char *s, size_t n, size_t z)
{
    if (n == 0) return TESS_OK;
    if (stage == r->t->pre.n) return tok_model_word(r, s, n);
    const tok_op *op = &r->t->pre.op[stage];
    splitter p = {.r = r, .next = stage + 1, .s = s, .z = z, .behavior = op->b};
    switch (op->code) {
    case TOK_P_BYTE_LEVEL: return run_byte_level(r, stage, op, s, n, z);
    case TOK_P_METASPACE: return run_metaspace(r, stage, op, s, n, z);
    case TOK_P_SPLIT: return op->scan ? split_scan(&p, n, op->scan) : split_pattern(&p, n, op);
    case TOK_P_DIGITS: p.behavior = op->a ? TOK_SPLIT_ISOLATED : TOK_SPLIT_CONTIGUOUS; return split_chars(&p, n, uni_is_numeric);
    case TOK_P_PUNCTUATION: return split_chars(&p, n, uni_is_punct);
    case TOK_P_WHITESPACE: return split_words(&p, n);
    case TOK_P_WHITESPACE_SPLIT: p.behavior = TOK_SPLIT_REMOVED; return split_chars(&p, n, uni_is_space);
    case TOK_P_DELIMITER: p.behavior = TOK_SPLIT_REMOVED; return split_text(&p, n, op->text[0], op->len[0]);
    case TOK_P_FIXED_LENGTH: return split_fixed(&p, n, op->a);
    default: return ERR(r->err, TESS_E_UNSUPPORTED, "pre-tokenizer %u is not known to this version", op->code);
    }
}
