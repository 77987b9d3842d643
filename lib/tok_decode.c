/*
 * tok_decode.c - ids to text: the decoders as a chain of stages that work on a stream.
 *
 * A stage gets fragments of a token and the mark of its end, and passes on the same. In front of the first stage every token
 * is one fragment. Fuse and byte-level make one endless token of all: behind them fragments come as they are ready and the end
 * comes with chain_finish. Stages that need a whole token collect its fragments. Since a batch is the same chain run to its
 * end, the pieces of a stream join to the batch decode - with one exception that no stream can avoid: in a run of byte
 * tokens the batch turns every byte into U+FFFD when the run as a whole is not UTF-8, while a stream (eager) has given the
 * characters that were complete before the bad byte came.
 */
#include "tok_int.h"

#define REPLACEMENT "\xef\xbf\xbd"

static tess_status feed(tok_chain *c, uint32_t i, const char *s, size_t n, bool end);

/* Longest text that one stage may make of a token, or of what it holds: replacements by longer texts, one behind another, must
 * not fill the memory. */
enum { STAGE_MAX = 1 << 26 };

static tess_status no_memory(tok_chain *c) { return ERR(c->err, TESS_E_NOMEM, "no memory to decode tokens"); }

size_t held_suffix(const char *s, size_t n, const char *what, size_t what_len)
{
    for (size_t k = MIN(n, what_len - 1); k > 0; k--)
        if (memcmp(s + n - k, what, k) == 0) return k;
    return 0;
}

static tess_status check_length(tok_chain *c, const chain_stage *st)
{
    return st->out.len <= STAGE_MAX
               ? TESS_OK
               : ERR(c->err, TESS_E_FORMAT, "the decoders of the tokenizer make more than %d MiB of one token", STAGE_MAX >> 20);
}

/* ---- whole tokens ---- */

static tess_status replace_token(tok_chain *c, uint32_t i, const tok_op *op, const char *s, size_t n)
{
    chain_stage *st = &c->st[i];
    pattern_iter it;
    pattern_start(&it, op->pat, &c->scratch, s, n);
    st->out.len = 0;
    size_t done = 0, b, e;
    for (bool found;;) {
        TRY(pattern_next(&it, &found, &b, &e, c->err));
        if (!found) break;
        buf_put(&st->out, s + done, b - done);
        buf_put(&st->out, op->text[1], op->len[1]);
        TRY(check_length(c, st));
        done = e;
    }
    if (!buf_put(&st->out, s + done, n - done)) return no_memory(c);
    return feed(c, i + 1, st->out.data, st->out.len, true);
}

/* Value of "<0xNN>", -1 = another token. */
static int byte_of_token(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    int v = 0;
    for (int k = 3; k < 5; k++) {
        char ch = s[k];
        bool plus = ch == '+' && k == 3; /* the number parser of tokenizers takes a sign */
        int d = ch >= '0' && ch <= '9'   ? ch - '0'
                : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10
                : ch >= 'A' && ch <= 'F' ? ch - 'A' + 10
                                         : -1;
        if (d < 0 && !plus) return -1;
        v = v * 16 + (plus ? 0 : d);
    }
    return v;
}

/* The held bytes are a run that ends here: text when they are UTF-8, else one U+FFFD for each. */
static tess_status end_byte_run(tok_chain *c, uint32_t i)
{
    chain_stage *st = &c->st[i];
    size_t n = st->hold.len;
    bool good = !st->bad && utf8_valid(st->hold.data ? st->hold.data : "", n);
    st->bad = false;
    if (n == 0) return TESS_OK;
    st->hold.len = 0;
    if (good) return feed(c, i + 1, st->hold.data, n, true);
    for (; n > 0; n--) TRY(feed(c, i + 1, REPLACEMENT, 3, true));
    return TESS_OK;
}

static tess_status byte_fallback_token(tok_chain *c, uint32_t i, const char *s, size_t n)
{
    chain_stage *st = &c->st[i];
    int v = byte_of_token(s, n);
    if (v < 0) {
        TRY(end_byte_run(c, i));
        return feed(c, i + 1, s, n, true);
    }
    if (!buf_putc(&st->hold, (char)v)) return no_memory(c);
    if (!c->eager) return TESS_OK;
    if (!st->bad && utf8_valid(st->hold.data, st->hold.len)) return end_byte_run(c, i);
    if (!st->bad && utf8_partial_tail(st->hold.data, st->hold.len) == st->hold.len) return TESS_OK;
    TRY(end_byte_run(c, i)); /* nothing can complete these: all that follows in the run is bad */
    st->bad = true;
    return TESS_OK;
}

static tess_status wordpiece_token(tok_chain *c, uint32_t i, const tok_op *op, const char *s, size_t n)
{
    static const char *const rules[][2] = {{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"}, {" n't", "n't"},
                                           {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    chain_stage *st = &c->st[i];
    st->out.len = 0;
    if (st->n_tokens > 0) {
        if (n >= op->len[0] && memcmp(s, op->text[0], op->len[0]) == 0) s += op->len[0], n -= op->len[0];
        else buf_putc(&st->out, ' ');
    }
    buf_put(&st->out, s, n);
    for (size_t k = 0; op->a && k < ARRAY_LEN(rules) && !st->out.failed; k++) { /* no rule makes a text longer */
        size_t from = strlen(rules[k][0]), to = strlen(rules[k][1]), w = 0;
        char *d = st->out.data;
        for (size_t r = 0; r < st->out.len;) {
            bool hit = st->out.len - r >= from && memcmp(d + r, rules[k][0], from) == 0;
            if (hit) memcpy(d + w, rules[k][1], to);
            else d[w] = d[r];
            w += hit ? to : 1;
            r += hit ? from : 1;
        }
        st->out.len = w;
    }
    return st->out.failed ? no_memory(c) : feed(c, i + 1, st->out.data, st->out.len, true);
}

/* Passes on the held token with `with` in place of the suffix. */
static tess_status bpe_flush(tok_chain *c, uint32_t i, const tok_op *op, const char *with)
{
    chain_stage *st = &c->st[i];
    if (!st->open) return TESS_OK;
    st->out.len = 0;
    const char *s = st->hold.data ? st->hold.data : "";
    size_t n = st->hold.len, len = op->len[0];
    for (size_t k = 0; k < n;) {
        bool hit = len && n - k >= len && memcmp(s + k, op->text[0], len) == 0;
        if (hit) buf_puts(&st->out, with);
        else buf_putc(&st->out, s[k]);
        k += hit ? len : 1;
    }
    st->open = false;
    return st->out.failed ? no_memory(c) : feed(c, i + 1, st->out.data, st->out.len, true);
}

static tess_status bpe_token(tok_chain *c, uint32_t i, const tok_op *op, const char *s, size_t n)
{
    TRY(bpe_flush(c, i, op, " "));
    chain_stage *st = &c->st[i];
    st->hold.len = 0;
    st->open = true;
    return buf_put(&st->hold, s, n) ? TESS_OK : no_memory(c);
}

/* Bytes of a token in the byte-level alphabet; as it stands when a character is not of the alphabet. */
static bool put_bytes(buf *o, const char *s, size_t n)
{
    size_t start = o->len;
    for (size_t i = 0; i < n;) {
        uint32_t cp, len = utf8_decode(s + i, n - i, &cp);
        int b = len ? uni_char_byte(cp) : -1;
        if (b < 0) {
            o->len = start;
            return buf_put(o, s, n);
        }
        if (!buf_putc(o, (char)b)) return false;
        i += len;
    }
    return true;
}

/* Passes on the held bytes as text; when not `all`, a character that may still be completed stays. */
static tess_status give_lossy(tok_chain *c, uint32_t i, bool all)
{
    chain_stage *st = &c->st[i];
    const char *s = st->hold.data;
    size_t n = st->hold.len, keep = n && !all ? utf8_partial_tail(s, n) : 0;
    n -= keep;
    st->out.len = 0;
    for (size_t k = 0; k < n;) {
        uint32_t cp, len = utf8_decode(s + k, n - k, &cp);
        if (!(len ? buf_put(&st->out, s + k, len) : buf_put(&st->out, REPLACEMENT, 3))) return no_memory(c);
        k += len ? len : utf8_bad_len(s + k, n - k);
    }
    if (keep) memmove(st->hold.data, s + n, keep);
    st->hold.len = keep;
    return st->out.len ? feed(c, i + 1, st->out.data, st->out.len, false) : TESS_OK;
}

static tess_status byte_level_token(tok_chain *c, uint32_t i, const char *s, size_t n)
{
    if (!put_bytes(&c->st[i].hold, s, n)) return no_memory(c);
    c->st[i].open = true;
    return give_lossy(c, i, false);
}

/* ---- fragments ---- */

/* Up to a leading and up to b trailing characters go. What may be trailing is held, as a count of characters: hold.len. */
static tess_status strip_fragment(tok_chain *c, uint32_t i, const tok_op *op, const char *s, size_t n, bool end)
{
    chain_stage *st = &c->st[i];
    const char *ch = op->text[0];
    size_t len = op->len[0];
    st->out.len = 0;
    for (size_t k = 0; k < n;) {
        bool same = n - k >= len && memcmp(s + k, ch, len) == 0;
        if (same && st->cut < op->a) { /* cut: leading ones so far; UINT32_MAX = past them */
            st->cut++;
            k += len;
            continue;
        }
        st->cut = TOK_NONE;
        if (same && op->b) {
            buf_put(&st->hold, ch, len);
            if (st->hold.len > op->b * len) {
                st->hold.len -= len;
                buf_put(&st->out, ch, len);
            }
            k += len;
            continue;
        }
        size_t one = uni_len(s + k);
        buf_put(&st->out, st->hold.data, st->hold.len);
        st->hold.len = 0;
        buf_put(&st->out, s + k, MIN(one, n - k));
        k += MIN(one, n - k);
    }
    if (st->out.failed || st->hold.failed) return no_memory(c);
    if (end) st->cut = 0, st->hold.len = 0;
    return st->out.len || end ? feed(c, i + 1, st->out.data, st->out.len, end) : TESS_OK;
}

static tess_status metaspace_fragment(tok_chain *c, uint32_t i, const tok_op *op, const char *s, size_t n, bool end)
{
    chain_stage *st = &c->st[i];
    bool drop = st->n_tokens == 0 && op->a != TOK_PREPEND_NEVER;
    st->out.len = 0;
    for (size_t k = 0; k < n;) {
        const char *hit = memmem(s + k, n - k, op->text[0], op->len[0]);
        size_t stop = hit ? (size_t)(hit - s) : n;
        buf_put(&st->out, s + k, stop - k);
        if (hit && !drop) buf_putc(&st->out, ' ');
        k = hit ? stop + op->len[0] : n;
    }
    return st->out.failed ? no_memory(c) : feed(c, i + 1, st->out.data, st->out.len, end);
}

/* Literal replacement in an endless token: what may begin the pattern is held. */
static tess_status replace_fragment(tok_chain *c, uint32_t i, const tok_op *op, const char *s, size_t n, bool end)
{
    chain_stage *st = &c->st[i];
    if (!buf_put(&st->hold, s, n)) return no_memory(c);
    st->out.len = 0;
    const char *h = st->hold.data ? st->hold.data : "";
    size_t k = 0, all = st->hold.len;
    for (const char *hit; (hit = memmem(h + k, all - k, op->text[0], op->len[0])); k = (size_t)(hit - h) + op->len[0]) {
        buf_put(&st->out, h + k, (size_t)(hit - h) - k);
        buf_put(&st->out, op->text[1], op->len[1]);
        TRY(check_length(c, st));
    }
    size_t keep = end ? 0 : held_suffix(h + k, all - k, op->text[0], op->len[0]);
    buf_put(&st->out, h + k, all - k - keep);
    if (keep) memmove(st->hold.data, h + all - keep, keep);
    st->hold.len = keep;
    st->open = !end;
    return st->out.failed ? no_memory(c) : feed(c, i + 1, st->out.data, st->out.len, end);
}

static tess_status whole_token(tok_chain *c, uint32_t i, const tok_op *op, const char *s, size_t n)
{
    switch (op->code) {
    case TOK_D_BYTE_LEVEL: return byte_level_token(c, i, s, n);
    case TOK_D_REPLACE: return replace_token(c, i, op, s, n);
    case TOK_D_BYTE_FALLBACK: return byte_fallback_token(c, i, s, n);
    case TOK_D_WORDPIECE: return wordpiece_token(c, i, op, s, n);
    case TOK_D_BPE: return bpe_token(c, i, op, s, n);
    default: return ERR(c->err, TESS_E_UNSUPPORTED, "decoder %u is not known to this version", op->code);
    }
}

/* Gives a fragment to stage i; behind the last stage is the output. */
static tess_status feed(tok_chain *c, uint32_t i, const char *s, size_t n, bool end)
{
    if (i == c->t->dec.n) return n == 0 || buf_put(c->out, s, n) ? TESS_OK : no_memory(c);
    if (!s) s = "";
    const tok_op *op = &c->t->dec.op[i];
    chain_stage *st = &c->st[i];
    tess_status r;
    switch (op->code) {
    case TOK_D_FUSE: st->open = true; return n ? feed(c, i + 1, s, n, false) : TESS_OK;
    case TOK_D_STRIP: return strip_fragment(c, i, op, s, n, end);
    case TOK_D_METASPACE: r = metaspace_fragment(c, i, op, s, n, end); break;
    default:
        if ((!end || st->open) && op->code == TOK_D_REPLACE && op->a == TOK_PAT_LITERAL && op->len[0])
            return replace_fragment(c, i, op, s, n, end);
        if (!end) return buf_put(&st->part, s, n) ? TESS_OK : no_memory(c);
        if (st->part.len == 0) {
            r = whole_token(c, i, op, s, n);
        } else {
            if (!buf_put(&st->part, s, n)) return no_memory(c);
            r = whole_token(c, i, op, st->part.data, st->part.len);
            st->part.len = 0;
        }
    }
    if (end) st->n_tokens++;
    return r;
}

/* The stream of stage i is over. */
static tess_status finish_stage(tok_chain *c, uint32_t i)
{
    const tok_op *op = &c->t->dec.op[i];
    chain_stage *st = &c->st[i];
    switch (op->code) {
    case TOK_D_BYTE_LEVEL:
        TRY(give_lossy(c, i, true));
        return st->open ? feed(c, i + 1, "", 0, true) : TESS_OK;
    case TOK_D_FUSE: return st->open ? feed(c, i + 1, "", 0, true) : TESS_OK;
    case TOK_D_BYTE_FALLBACK: return end_byte_run(c, i);
    case TOK_D_BPE: return bpe_flush(c, i, op, "");
    default: return TESS_OK;
    }
}

/* ---- the chain ---- */

void chain_init(tok_chain *c, const tok *t, uint32_t flags, bool eager, buf *out)
{
    memset(c, 0, sizeof *c);
    c->t = t;
    pattern_scratch_init(&c->scratch, &t->m);
    c->eager = eager;
    c->skip = !(flags & TESS_DETOK_SPECIAL);
    c->out = out;
    for (uint32_t i = 0; i < t->dec.n; i++) {
        buf_init(&c->st[i].hold, &t->m);
        buf_init(&c->st[i].out, &t->m);
        buf_init(&c->st[i].part, &t->m);
    }
}

void chain_free(tok_chain *c)
{
    for (uint32_t i = 0; i < c->t->dec.n; i++) {
        buf_free(&c->st[i].hold);
        buf_free(&c->st[i].out);
        buf_free(&c->st[i].part);
    }
    pattern_scratch_free(&c->scratch);
}

tess_status chain_push(tok_chain *c, int32_t id, tess_error *err)
{
    const tok *t = c->t;
    c->err = err;
    if (id < 0) return TESS_OK;
    const char *s;
    size_t n;
    if ((uint32_t)id < t->n_vocab && t->kind[id] == KIND_VOCAB) {
        s = vocab_text(t, (uint32_t)id, &n);
    } else {
        const added_token *a = added_find_id(t, (uint32_t)id);
        if (!a || (c->skip && a->hidden)) return TESS_OK;
        s = a->shown;
        n = a->shown_len;
    }
    if (!t->has_dec && c->n_tokens++ > 0 && !buf_putc(c->out, ' ')) return no_memory(c);
    return feed(c, 0, s, n, true);
}

tess_status chain_finish(tok_chain *c, tess_error *err)
{
    c->err = err;
    tess_status st = TESS_OK;
    for (uint32_t i = 0; i < c->t->dec.n && st == TESS_OK; i++) st = finish_stage(c, i);
    for (uint32_t i = 0; i < c->t->dec.n; i++) {
        chain_stage *s = &c->st[i];
        s->hold.len = s->out.len = s->part.len = 0;
        s->n_tokens = s->cut = 0;
        s->open = s->bad = false;
    }
    c->n_tokens = 0;
    return st;
}

tess_status tok_decode(const tok *t, const int32_t *ids, size_t n, uint32_t flags, buf *out, tess_error *err)
{
    size_t before = out->len;
    tok_chain c;
    chain_init(&c, t, flags, false, out);
    tess_status st = TESS_OK;
    for (size_t i = 0; i < n && st == TESS_OK; i++) st = chain_push(&c, ids[i], err);
    if (st == TESS_OK) st = chain_finish(&c, err);
    chain_free(&c);
    if (st < 0) out->len = before;
    return st;
}
