/*
 * tok.c - opening a tokenizer, look-ups, and the way of a text to ids:
 *
 *   valid UTF-8 -> sections between raw added tokens -> normalizers -> parts between normalized added tokens
 *   -> pre-tokenizers -> model; the post-processor puts ids around.
 */
#include "tok_int.h"

/* ---- operations ---- */

static uint8_t known_pattern(const tok_op *op)
{
    static const struct { const char *text; uint8_t scan; } known[] = {
        {TOK_PATTERN_GPT2, SCAN_GPT2}, {TOK_PATTERN_LLAMA3, SCAN_LLAMA3}, {TOK_PATTERN_QWEN2, SCAN_QWEN2}};
    /* the pattern covers every text, so that only what is done with matches counts */
    bool kept = op->b == TOK_SPLIT_ISOLATED || (op->b == TOK_SPLIT_REMOVED && op->c);
    for (size_t i = 0; kept && op->a == TOK_PAT_REGEX && i < ARRAY_LEN(known); i++)
        if (op->len[0] == strlen(known[i].text) && memcmp(op->text[0], known[i].text, op->len[0]) == 0) return known[i].scan;
    return SCAN_NONE;
}

/* Texts that an operation can not do without; lone characters. */
static bool op_is_sound(const tok_op *op, uint32_t metaspace, uint32_t character)
{
    if (op->code == metaspace || op->code == character)
        return op->len[0] > 0 && utf8_valid(op->text[0], op->len[0]) && uni_len(op->text[0]) == op->len[0];
    for (int i = 0; i < TOK_OP_TEXTS; i++)
        if (!utf8_valid(op->text[i], op->len[i])) return false;
    return true;
}

static tess_status ops_open(tok *t, const kvs *k, const char *key, const char *text_key, tok_ops *out, tess_error *err)
{
    uint64_t n;
    const uint32_t *v = kvs_array(k, key, KV_U32S, &n);
    const kv *text = kvs_find(k, text_key);
    if (!v) return TESS_OK;
    if (n % TOK_OP_WORDS || n / TOK_OP_WORDS > TOK_OPS_MAX || !text || text->type != KV_STRS ||
        text->n != n / TOK_OP_WORDS * TOK_OP_TEXTS)
        return ERR(err, TESS_E_FORMAT, "%s and %s do not belong together", key, text_key);
    bool pre = out == &t->pre, dec = out == &t->dec;
    for (uint32_t i = 0; i < n / TOK_OP_WORDS; i++, v += TOK_OP_WORDS) {
        tok_op *op = &out->op[i];
        *op = (tok_op){.code = v[0], .a = v[1], .b = v[2], .c = v[3]};
        for (uint32_t j = 0; j < TOK_OP_TEXTS; j++) op->text[j] = kv_strs_at(text, i * TOK_OP_TEXTS + j, &op->len[j]);
        if (!op_is_sound(op, pre ? TOK_P_METASPACE : dec ? TOK_D_METASPACE : 0, pre ? TOK_P_DELIMITER : dec ? TOK_D_STRIP : 0) ||
            (pre && op->code == TOK_P_FIXED_LENGTH && op->a == 0))
            return ERR(err, TESS_E_FORMAT, "%s: operation %u has no valid text", text_key, i);
        out->n = i + 1;
        bool search = pre ? op->code == TOK_P_SPLIT : op->code == (uint32_t)(dec ? TOK_D_REPLACE : TOK_N_REPLACE);
        if (pre && search) op->scan = known_pattern(op);
        if (!search || op->scan) continue;
        tess_status st = pattern_open(&t->m, op->text[0], op->len[0], op->a == TOK_PAT_REGEX, &op->pat, err);
        if (st < 0) return err_prefix(err, st, "%s: operation %u", key, i);
    }
    return TESS_OK;
}

static void ops_close(tok_ops *o)
{
    for (uint32_t i = 0; i < o->n; i++) pattern_close(o->op[i].pat);
}

/* Classes of characters for the patterns that are scanned by hand. */
static tess_status open_classes(tok *t, tess_error *err)
{
    bool wanted = false;
    for (uint32_t i = 0; i < t->pre.n; i++) wanted = wanted || t->pre.op[i].scan || t->pre.op[i].code == TOK_P_BYTE_LEVEL;
    if (!wanted) return TESS_OK;
    t->bmp = mem_alloc(&t->m, UNI_BMP);
    if (!t->bmp) return ERR(err, TESS_E_NOMEM, "no memory for a tokenizer");
    for (uint32_t cp = 0; cp < UNI_BMP; cp++) t->bmp[cp] = uni_class(cp);
    return TESS_OK;
}

static tess_status open_post(tok *t, const kvs *k, tess_error *err)
{
    static const int32_t text_alone[] = {-1};
    t->post = kvs_array(k, TOK_K_POST, KV_I32S, &t->n_post);
    if (!t->post) t->post = text_alone, t->n_post = 1;
    for (uint64_t i = 0; i < t->n_post; i++)
        if (t->post[i] < -1) return ERR(err, TESS_E_FORMAT, "%s: %d is not an id", TOK_K_POST, t->post[i]);
    return TESS_OK;
}

tess_status tok_open(const kvs *k, const mem *m, tok **out, tess_error *err)
{
    *out = NULL;
    if (!kvs_find(k, TOK_K_MODEL)) return ERR(err, TESS_E_UNSUPPORTED, "the file holds no tokenizer");
    tok *t = mem_zalloc(m, sizeof *t);
    if (!t) return ERR(err, TESS_E_NOMEM, "no memory for a tokenizer");
    t->m = *m;
    arena_init(&t->a, &t->m);
    t->has_dec = kvs_find(k, TOK_K_DEC) != NULL;
    tess_status st;
    if ((st = ops_open(t, k, TOK_K_NORM, TOK_K_NORM_TEXT, &t->norm, err)) < 0) goto fail;
    if ((st = charsmap_open(t, k, err)) < 0) goto fail;
    if ((st = ops_open(t, k, TOK_K_PRE, TOK_K_PRE_TEXT, &t->pre, err)) < 0) goto fail;
    if ((st = ops_open(t, k, TOK_K_DEC, TOK_K_DEC_TEXT, &t->dec, err)) < 0) goto fail;
    if ((st = open_classes(t, err)) < 0) goto fail;
    if ((st = vocab_open(t, k, err)) < 0) goto fail;
    if ((st = tok_model_open(t, k, err)) < 0) goto fail;
    if ((st = added_open(t, k, err)) < 0) goto fail;
    if ((st = open_post(t, k, err)) < 0) goto fail;
    *out = t;
    return TESS_OK;
fail:
    tok_close(t);
    return st;
}

void tok_close(tok *t)
{
    if (!t) return;
    mem m = t->m;
    ops_close(&t->norm);
    ops_close(&t->pre);
    ops_close(&t->dec);
    mem_free(&m, t->bmp);
    mem_free(&m, t->slots);
    mem_free(&m, t->merges);
    unigram_close(t);
    arena_free(&t->a);
    mem_free(&m, t);
}

/* ---- look-ups ---- */

uint32_t tok_size(const tok *t) { return t->size; }

const char *tok_text(const tok *t, int32_t id, size_t *len)
{
    *len = 0;
    if (id < 0) return NULL;
    uint32_t i = (uint32_t)id;
    if (i < t->n_vocab && t->kind[i] == KIND_VOCAB) return vocab_text(t, i, len);
    const added_token *a = added_find_id(t, i);
    if (!a) return NULL;
    *len = a->len;
    return a->text;
}

int32_t tok_find(const tok *t, const char *text, size_t len)
{
    const added_token *a = added_find_text(t, text, len);
    if (a) return (int32_t)a->id;
    uint32_t id = vocab_find(t, text, len);
    return id == TOK_NONE ? -1 : (int32_t)id;
}

/* ---- the state of one call ---- */

void tok_run_init(tok_run *r, const tok *t, tok_ids *out, tess_error *err)
{
    memset(r, 0, sizeof *r);
    r->t = t;
    r->out = out;
    r->err = err;
    pattern_scratch_init(&r->scratch, &t->m);
    for (uint32_t i = 0; i < TOK_OPS_MAX; i++) buf_init(&r->stage[i], &t->m);
    norm_text *n[] = {&r->norm, &r->norm_tmp};
    for (int i = 0; i < 2; i++) {
        buf_init(&n[i]->text, &t->m);
        buf_init(&n[i]->attr, &t->m);
    }
}

void tok_run_free(tok_run *r)
{
    const mem *m = &r->t->m;
    for (uint32_t i = 0; i < TOK_OPS_MAX; i++) buf_free(&r->stage[i]);
    buf_free(&r->norm.text);
    buf_free(&r->norm.attr);
    buf_free(&r->norm_tmp.text);
    buf_free(&r->norm_tmp.attr);
    pattern_scratch_free(&r->scratch);
    mem_free(m, r->cache);
    mem_free(m, r->work[0]);
    mem_free(m, r->work[1]);
    mem_free(m, r->heap);
}

void *tok_run_work(tok_run *r, int which, size_t size)
{
    if (r->work[which] && size <= r->work_cap[which]) return r->work[which];
    size_t cap = MAX(size + size / 2, 1024u);
    if (cap < size) return NULL;
    mem_free(&r->t->m, r->work[which]);
    r->work[which] = mem_alloc(&r->t->m, cap);
    r->work_cap[which] = r->work[which] ? cap : 0;
    return r->work[which];
}

tess_status tok_run_put(tok_run *r, const uint32_t *ids, size_t n)
{
    tok_ids *o = r->out;
    if (n > o->cap - o->n && !mem_grow(&r->t->m, &o->ids, &o->cap, o->n + n, sizeof *o->ids)) return tok_run_nomem(r);
    if (n) memcpy(o->ids + o->n, ids, n * sizeof *ids);
    o->n += n;
    return TESS_OK;
}

/* ---- added tokens ---- */

static size_t spaces_before(const char *s, size_t i)
{
    while (i > 0) {
        size_t c = i - 1;
        uint32_t cp;
        while (c > 0 && ((uint8_t)s[c] & 0xc0) == 0x80) c--;
        uni_next(s + c, &cp);
        if (!uni_is_space(cp)) break;
        i = c;
    }
    return i;
}
static size_t spaces_after(const char *s, size_t n, size_t i)
{
    uint32_t cp, len;
    for (; i < n; i += len) {
        len = uni_next(s + i, &cp);
        if (!uni_is_space(cp)) break;
    }
    return i;
}
static bool inside_word(const char *s, size_t n, size_t b, size_t e)
{
    uint32_t cp;
    if (e < n) {
        uni_next(s + e, &cp);
        if (uni_is_word(cp)) return true;
    }
    if (b == 0) return false;
    for (b--; b > 0 && ((uint8_t)s[b] & 0xc0) == 0x80;) b--;
    uni_next(s + b, &cp);
    return uni_is_word(cp);
}

/* Puts the tokens of set that s[0, n) holds, and gives what is between to text(). A token that is refused for being inside a
 * word hides what it covers from the search, and lstrip takes nothing that a token before took: as in tokenizers. */
typedef struct section section;
struct section {
    tok_run *r;
    const char *s;
    size_t n;
    plain_view plain;
    bool origin; /* s begins the text of the call */
    tess_status (*text)(section *c, size_t a, size_t b);
};
static tess_status split_added(section *c, const added_set *set)
{
    size_t pos = 0, done = 0, b, e;
    for (const added_token *a; (a = added_next(set, &c->plain, c->s, c->n, pos, &b, &e));) {
        pos = e;
        if ((a->flags & TOK_ADDED_SINGLE_WORD) && inside_word(c->s, c->n, b, e)) continue;
        if (a->flags & TOK_ADDED_LSTRIP) b = MAX(spaces_before(c->s, b), done);
        if (a->flags & TOK_ADDED_RSTRIP) e = spaces_after(c->s, c->n, e);
        if (done < b) TRY(c->text(c, done, b));
        TRY(tok_run_put(c->r, &a->id, 1));
        done = e;
    }
    return done < c->n ? c->text(c, done, c->n) : TESS_OK;
}

/* A part of normalized text. */
static tess_status normal_text(section *c, size_t a, size_t b)
{
    size_t z = 0;
    if (c->plain.attr) while (a + z < b && (c->plain.attr[a + z] & ATTR_ORIGIN)) z++;
    else if (c->origin && a == 0) z = uni_len(c->s);
    return pre_run(c->r, 0, c->s + a, b - a, z);
}

/* Fills r->norm with [a, b) of the section and what is known of its bytes. */
static bool load_norm(section *c, size_t a, size_t b)
{
    norm_text *t = &c->r->norm;
    t->text.len = t->attr.len = 0;
    if (!buf_put(&t->text, c->s + a, b - a) || !buf_put(&t->attr, c->s + a, b - a)) return false;
    memset(t->attr.data, 0, b - a);
    for (size_t i = 0; i < c->plain.n; i++) {
        const tok_span *p = &c->plain.spans[i];
        size_t lo = MAX(p->off, a), hi = MIN(p->off + p->len, b);
        if (lo < hi) memset(t->attr.data + (lo - a), ATTR_PLAIN, hi - lo);
    }
    for (uint32_t i = 0; a == 0 && i < uni_len(c->s); i++) t->attr.data[i] |= ATTR_ORIGIN;
    return true;
}

/* A part of the text as it came. */
static tess_status raw_text(section *c, size_t a, size_t b)
{
    tok_run *r = c->r;
    section part = {.r = r, .s = c->s + a, .n = b - a, .origin = a == 0, .text = normal_text};
    if (r->t->norm.n == 0) {
        part.plain = (plain_view){.spans = c->plain.spans, .n = c->plain.n, .base = a};
        return split_added(&part, &r->t->normalized);
    }
    if (!load_norm(c, a, b)) return tok_run_nomem(r);
    TRY(norm_run(r));
    part.s = r->norm.text.data;
    part.n = r->norm.text.len;
    part.plain.attr = r->norm.attr.data;
    return split_added(&part, &r->t->normalized);
}

/* ---- encode ---- */

/* Copies text with U+FFFD for what is not UTF-8, and moves the spans along. */
static tess_status make_valid(tok_run *r, const char *s, size_t n, buf *o, tok_span *spans, size_t n_spans)
{
    bool inside = false; /* of spans[at], which begins at `start` in o and ends at `end` in s */
    for (size_t i = 0, at = 0, start = 0, end = 0;;) {
        for (; at < n_spans; at++, inside = false) {
            if (!inside && spans[at].off > i) break;
            if (!inside) inside = true, start = o->len, end = spans[at].off + spans[at].len;
            if (end > i) break;
            spans[at] = (tok_span){start, o->len - start};
        }
        if (i >= n) return TESS_OK;
        uint32_t cp, len = utf8_decode(s + i, n - i, &cp);
        if (!(len ? buf_put(o, s + i, len) : buf_put(o, "\xef\xbf\xbd", 3))) return tok_run_nomem(r);
        i += len ? len : utf8_bad_len(s + i, n - i);
    }
}

static tess_status check_spans(const tok_span *p, size_t n, size_t len, tess_error *err)
{
    for (size_t i = 0, end = 0; i < n; i++) {
        if (p[i].off < end || !range_in(p[i].off, p[i].len, len))
            return ERR(err, TESS_E_ARG, "plain span %zu is not behind the one before it and inside the text of %zu bytes", i, len);
        end = p[i].off + p[i].len;
    }
    return TESS_OK;
}

static tess_status encode_post(tok_run *r, section *c, uint32_t flags)
{
    size_t from = 0, n = 0;
    bool have = false;
    for (uint64_t i = 0; i < r->t->n_post; i++) {
        if (r->t->post[i] >= 0) {
            uint32_t id = (uint32_t)r->t->post[i];
            if (flags & TESS_TOK_ADD_SPECIAL) TRY(tok_run_put(r, &id, 1));
        } else if (!have) {
            from = r->out->n;
            if (c->n) TRY(split_added(c, &r->t->raw));
            n = r->out->n - from;
            have = true;
        } else { /* the text once more */
            for (size_t j = 0; j < n; j++) {
                uint32_t id = (uint32_t)r->out->ids[from + j];
                TRY(tok_run_put(r, &id, 1));
            }
        }
    }
    return TESS_OK;
}

tess_status tok_encode(const tok *t, const char *text, size_t len, uint32_t flags, const tok_span *plain, size_t n_plain,
                       tok_ids *out, tess_error *err)
{
    size_t n_before = out->n;
    tok_run r;
    buf valid;
    tok_span whole = {0, len}, *moved = NULL;
    if (flags & TESS_TOK_PLAIN) plain = &whole, n_plain = 1;
    TRY(check_spans(plain, n_plain, len, err));
    tok_run_init(&r, t, out, err);
    buf_init(&valid, &t->m);
    r.text_len = len;
    tess_status st = TESS_OK;
    if (!utf8_valid(text, len)) {
        size_t bytes;
        st = TESS_E_NOMEM;
        if (!size_mul3(MAX(n_plain, 1u), sizeof *moved, 1, &bytes) || !(moved = mem_alloc(&t->m, bytes))) goto done;
        if (n_plain) memcpy(moved, plain, n_plain * sizeof *moved);
        if ((st = make_valid(&r, text, len, &valid, moved, n_plain)) < 0) goto done;
        plain = moved;
        text = valid.data;
        len = valid.len;
    }
    section c = {.r = &r, .s = text, .n = len, .plain = {.spans = plain, .n = n_plain}, .origin = true, .text = raw_text};
    st = encode_post(&r, &c, flags);
done:
    if (st == TESS_E_NOMEM) tok_run_nomem(&r);
    if (st < 0) out->n = n_before;
    buf_free(&valid);
    mem_free(&t->m, moved);
    tok_run_free(&r);
    return st;
}

void tok_ids_free(const tok *t, tok_ids *ids)
{
    mem_free(&t->m, ids->ids);
    *ids = (tok_ids){0};
}
