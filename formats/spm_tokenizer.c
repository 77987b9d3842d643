/* spm_tokenizer.c - see spm_tokenizer.h: the model. spm_added.c reads the files around it. */
#include "spm_tokenizer.h"

#include <stdlib.h>

#include "pattern.h"
#include "spm_priv.h"

static const char space[] = "\xe2\x96\x81"; /* U+2581 */
enum { SPACE_LEN = 3 };

/* ---- pieces ---- */

static tess_status read_pieces(spm_state *x)
{
    tok_spec *s = &x->spec;
    TRY(tok_spec_vocab(s, x->model.n, x->err));
    for (uint32_t id = 0; id < s->n_vocab; id++) {
        s->len[id] = x->model.pieces[id].len;
        s->text[id] = arena_strndup(&s->a, x->model.pieces[id].text, s->len[id]);
        if (!s->text[id]) return ERR(x->err, TESS_E_NOMEM, "no memory for %u pieces", s->n_vocab);
    }
    TRY(tok_index_build(&x->index, s, x->err));
    for (uint32_t id = 0; id < s->n_vocab; id++)
        if (spm_find(x, s->text[id], s->len[id]) != id)
            return ERR(x->err, TESS_E_FORMAT, "tokenizer.model: piece \"%.60s\" comes twice", s->text[id]);
    s->unk = x->model.unk;
    if (x->model.byte_fallback) s->flags |= TOK_MODEL_BYTE_FALLBACK;
    return TESS_OK;
}

static tess_status read_unigram(spm_state *x)
{
    tok_spec *s = &x->spec;
    s->model = "unigram";
    s->scores = arena_alloc(&s->a, s->n_vocab, sizeof *s->scores);
    if (!s->scores) return ERR(x->err, TESS_E_NOMEM, "no memory for %u pieces", s->n_vocab);
    for (uint32_t id = 0; id < s->n_vocab; id++) s->scores[id] = (double)x->model.pieces[id].score;
    return TESS_OK;
}

static int by_score(const void *p, const void *q)
{
    const tok_cut *a = p, *b = q;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    if (a->id[2] != b->id[2]) return a->id[2] < b->id[2] ? -1 : 1;
    return (a->chars[0] > b->chars[0]) - (a->chars[0] < b->chars[0]);
}

static tess_status read_bpe(spm_state *x)
{
    tok_spec *s = &x->spec;
    float *score = arena_alloc(&s->a, s->n_vocab, sizeof *score);
    uint8_t *use = arena_alloc(&s->a, s->n_vocab, 1);
    if (!score || !use) return ERR(x->err, TESS_E_NOMEM, "no memory for %u pieces", s->n_vocab);
    for (uint32_t id = 0; id < s->n_vocab; id++) {
        score[id] = x->model.pieces[id].score;
        use[id] = x->model.pieces[id].type == PIECE_NORMAL ? TOK_CUT_WHOLE | TOK_CUT_SIDE : 0;
    }
    s->model = "bpe";
    s->flags |= TOK_MODEL_FUSE_UNK;
    return tok_merges_of_scores(s, &x->index, score, use, by_score, x->err);
}

/* ---- user-defined pieces ---- */

static bool has_space(const spm_piece *p)
{
    for (size_t i = 0; i + SPACE_LEN <= p->len; i++)
        if (memcmp(p->text + i, space, SPACE_LEN) == 0) return true;
    return memchr(p->text, ' ', p->len) != NULL;
}
static bool is_spaces(const spm_piece *p)
{
    for (size_t i = 0; i < p->len; i++)
        if (p->text[i] != space[i % SPACE_LEN]) return false;
    return p->len % SPACE_LEN == 0;
}

/* Whether user-defined pieces can be added tokens: no text depends on where its neighbours end, and a piece with spaces in it, which
 * only the normalized text has, cannot overlap another piece. */
static bool can_be_added(const spm_state *x)
{
    if (x->prefix || x->model.remove_extra) return false;
    for (size_t id = 0; id < x->model.n; id++) {
        const spm_piece *p = &x->model.pieces[id];
        if (p->type == PIECE_USER && has_space(p) && !is_spaces(p)) return false;
    }
    return true;
}

static int longest_first(const void *p, const void *q)
{
    const spm_piece *a = *(const spm_piece *const *)p, *b = *(const spm_piece *const *)q;
    if (a->len != b->len) return a->len > b->len ? -1 : 1;
    return memcmp(a->text, b->text, a->len);
}

/* "one|two|..." of n pieces. */
static bool put_alternatives(const spm_piece **list, size_t n, buf *out)
{
    for (size_t i = 0; i < n; i++) {
        if (i) buf_putc(out, '|');
        for (size_t k = 0; k < list[i]->len; k++) {
            char c = list[i]->text[k];
            if ((unsigned char)c < 128 && c && strchr("\\^$.|?*+()[]{}", c)) buf_putc(out, '\\');
            buf_putc(out, c);
        }
    }
    return !out->failed;
}

/* Cuts the pieces of list out of the normalized text. */
static tess_status cut_out(spm_state *x, const spm_piece **list, size_t n)
{
    tok_spec *s = &x->spec;
    pattern *made = NULL;
    tess_error why;
    buf text;
    buf_init(&text, s->m);
    qsort(list, n, sizeof *list, longest_first);
    const char *kept = put_alternatives(list, n, &text) ? arena_strndup(&s->a, text.data, text.len) : NULL;
    size_t len = text.len;
    buf_free(&text);
    if (!kept) return ERR(x->err, TESS_E_NOMEM, "no memory for user-defined pieces");
    if (pattern_open(s->m, kept, len, true, &made, &why) < 0)
        return ERR(x->err, why.status, "tokenizer.model: its %zu user-defined pieces: %.200s", n, why.text);
    pattern_close(made);
    tok_spec_op(&s->pre, TOK_P_SPLIT, TOK_PAT_REGEX, TOK_SPLIT_ISOLATED, 0, kept, len, NULL, 0);
    s->flags |= TOK_MODEL_IGNORE_MERGES; /* no merge leads to them */
    return TESS_OK;
}

static tess_status read_user_defined(spm_state *x)
{
    bool added = can_be_added(x);
    size_t n = 0;
    const spm_piece **list = arena_alloc(&x->spec.a, x->model.n, sizeof *list);
    if (!list) return ERR(x->err, TESS_E_NOMEM, "no memory for user-defined pieces");
    for (uint32_t id = 0; id < x->spec.n_vocab; id++) {
        const spm_piece *p = &x->model.pieces[id];
        if (p->type != PIECE_USER) continue;
        if (added && !has_space(p)) TRY(spm_add(x, id, x->spec.text[id], p->len, 0));
        else list[n++] = p;
    }
    return n ? cut_out(x, list, n) : TESS_OK;
}

/* ---- operations ---- */

static void replace(spec_ops *list, const char *from, uint32_t kind, const char *to)
{
    tok_spec_op(list, TOK_N_REPLACE, kind, 0, 0, from, strlen(from), to, strlen(to));
}

static tess_status read_normalizer(spm_state *x)
{
    tok_spec *s = &x->spec;
    const spm_model *m = &x->model;
    const char *escaped = m->escape ? space : " ";
    if (m->charsmap_len) {
        TRY(tok_spec_charsmap(s, m->charsmap, m->charsmap_len, "tokenizer.model: its character map", x->err));
        tok_spec_op(&s->norm, TOK_N_PRECOMPILED, 0, 0, 0, NULL, 0, NULL, 0);
    }
    if (m->remove_extra) {
        replace(&s->norm, "\\A +| +\\z", TOK_PAT_REGEX, "");
        replace(&s->norm, " {2,}", TOK_PAT_REGEX, " ");
    }
    if (m->escape) replace(&s->norm, " ", TOK_PAT_LITERAL, space);
    if (x->prefix && !x->first_only) tok_spec_op(&s->norm, TOK_N_PREPEND, 0, 0, 0, escaped, strlen(escaped), NULL, 0);
    if (x->prefix && x->first_only) tok_spec_op(&s->pre, TOK_P_METASPACE, TOK_PREPEND_FIRST, false, 0, space, SPACE_LEN, NULL, 0);
    return TESS_OK;
}

static void read_decoder(spm_state *x)
{
    tok_spec *s = &x->spec;
    s->has_dec = true;
    tok_spec_op(&s->dec, TOK_D_REPLACE, TOK_PAT_LITERAL, 0, 0, space, SPACE_LEN, " ", 1);
    if (x->model.byte_fallback) tok_spec_op(&s->dec, TOK_D_BYTE_FALLBACK, 0, 0, 0, NULL, 0, NULL, 0);
    if (x->model.byte_fallback || x->prefix) tok_spec_op(&s->dec, TOK_D_FUSE, 0, 0, 0, NULL, 0, NULL, 0);
    if (x->prefix) tok_spec_op(&s->dec, TOK_D_STRIP, 1, 0, 0, " ", 1, NULL, 0);
}

/* ---- all of it ---- */

static tess_status refuse_unknown(const spm_state *x)
{
    const spm_model *m = &x->model;
    if (m->model_type != SPM_UNIGRAM && m->model_type != SPM_BPE)
        return ERR(x->err, TESS_E_UNSUPPORTED, "tokenizer.model: model type %llu is not supported (unigram and BPE are)",
                   (unsigned long long)m->model_type);
    if (m->suffix) return ERR(x->err, TESS_E_UNSUPPORTED, "tokenizer.model: treat_whitespace_as_suffix is not supported");
    if (m->denormalizes) return ERR(x->err, TESS_E_UNSUPPORTED, "tokenizer.model: a denormalizer is not supported");
    return TESS_OK;
}

static tess_status read_all(spm_state *x, kvs_builder *b)
{
    TRY(spm_read(&x->model, x->spec.m, x->files->model.data, x->files->model.len, "tokenizer.model", x->err));
    TRY(refuse_unknown(x));
    TRY(spm_open_config(x));
    x->prefix = x->model.dummy_prefix && x->prefix;
    TRY(read_pieces(x));
    TRY(x->model.model_type == SPM_BPE ? read_bpe(x) : read_unigram(x));
    TRY(read_normalizer(x));
    TRY(read_user_defined(x));
    read_decoder(x);
    TRY(spm_read_added(x));
    TRY(spm_put_named(x, b));
    return tok_spec_put(&x->spec, b, x->err);
}

tess_status spm_tokenizer_put(const mem *m, const spm_files *files, kvs_builder *b, tess_error *err)
{
    spm_state x = {.files = files, .err = err};
    tok_spec_init(&x.spec, m);
    x.model.m = m;
    tess_status st = read_all(&x, b);
    spm_close_config(&x);
    spm_close(&x.model);
    tok_spec_free(&x.spec);
    return st;
}
