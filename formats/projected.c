/* projected.c - see projected.h. The two projections are held in memory as f32, turned so that a row belongs to one d. */
#include "projected.h"

#include <stdio.h>

#define DECODER "model.decoder."
enum { EMBED = 0, HEAD = 1, MAX_ELEMENTS = 1 << 26 };

typedef struct {
    source *base;
    uint64_t vocab, hidden, dim;
    uint32_t table[2]; /* E and H in the base */
    float *proj[2];    /* [dim][hidden] */
} impl;

/* src_tensor.ref: EMBED or HEAD of the two products, of all others the tensor of the base. */

static void close_projected(source *s)
{
    impl *p = s->impl;
    mem_free(s->m, p->proj[EMBED]);
    mem_free(s->m, p->proj[HEAD]);
    source_close(p->base);
    mem_free(s->m, p);
}

static tess_status read_product(const source *s, const src_tensor *t, uint64_t row0, uint64_t n_rows, uint64_t k0, uint64_t n_k,
                                float *dst, tess_error *err)
{
    const impl *p = s->impl;
    float *row = mem_alloc(s->m, p->dim * sizeof *row);
    tess_status st = row ? TESS_OK : ERR(err, TESS_E_NOMEM, "no memory for a row of \"%s\"", t->name);
    for (uint64_t r = 0; r < n_rows && st == TESS_OK; r++, dst += n_k) {
        if ((st = p->base->read(p->base, p->table[t->ref], row0 + r, 1, 0, p->dim, false, row, err)) < 0) break;
        memset(dst, 0, n_k * sizeof *dst);
        for (uint64_t d = 0; d < p->dim; d++) {
            const float x = row[d], *y = p->proj[t->ref] + d * p->hidden + k0;
            for (uint64_t k = 0; k < n_k; k++) dst[k] += x * y[k];
        }
    }
    mem_free(s->m, row);
    return st;
}

static tess_status read_projected(const source *s, uint32_t i, uint64_t row0, uint64_t n_rows, uint64_t k0, uint64_t n_k, bool raw,
                                  void *dst, tess_error *err)
{
    const impl *p = s->impl;
    const src_tensor *t = &s->tensors[i];
    if (t->dtype != SRC_COMPUTED) return p->base->read(p->base, t->ref, row0, n_rows, k0, n_k, raw, dst, err);
    if (raw || !range_in(row0, n_rows, p->vocab) || !range_in(k0, n_k, p->hidden))
        return ERR(err, TESS_E_ARG, "%s: box outside tensor \"%s\", or raw", s->paths[t->file], t->name);
    return read_product(s, t, row0, n_rows, k0, n_k, dst, err);
}

/* The tensor DECODER name, or without "model."; -1: none. */
static int64_t find(const source *s, const char *name)
{
    char full[96];
    snprintf(full, sizeof full, DECODER "%s", name);
    int64_t i = source_find(s, full);
    return i >= 0 ? i : source_find(s, full + strlen("model."));
}

static tess_status want(const source *s, int64_t i, const char *name, uint64_t rows, uint64_t cols, tess_error *err)
{
    if (i < 0)
        return ERR(err, TESS_E_FORMAT, "%s: tensor \"%s\" is missing, which word_embed_proj_dim demands", s->paths[0], name);
    const src_tensor *t = &s->tensors[i];
    const dtype_info *d = t->dtype < SRC_Q8_0 ? dtype_get(t->dtype) : NULL;
    if (t->rank == 2 && t->shape[0] == rows && t->shape[1] == cols && d && d->is_float) return TESS_OK;
    return ERR(err, TESS_E_FORMAT,
               "%s: tensor \"%s\" of type %s does not have the shape %llu x %llu that the configuration demands", s->paths[t->file],
               t->name, t->type, (unsigned long long)rows, (unsigned long long)cols);
}

/* One projection as [dim][hidden]: project_in is stored the other way round. */
static tess_status load(const source *s, const impl *p, uint32_t i, bool turned, float **out, tess_error *err)
{
    size_t bytes;
    float *x = size_mul3(p->dim, p->hidden, sizeof *x, &bytes) ? mem_alloc(s->m, bytes) : NULL;
    *out = x;
    if (!x) return ERR(err, TESS_E_NOMEM, "no memory for \"%s\"", s->tensors[i].name);
    if (!turned) return s->read(s, i, 0, p->dim, 0, p->hidden, false, x, err);
    for (uint64_t d = 0; d < p->dim; d++) TRY(s->read(s, i, 0, p->hidden, d, 1, false, x + d * p->hidden, err));
    return TESS_OK;
}

static tess_status fill(source *over, source *base, impl *p, bool tied, tess_error *err)
{
    int64_t in = find(base, "project_in.weight"), out = find(base, "project_out.weight"), e = find(base, "embed_tokens.weight"),
            h = source_find(base, "lm_head.weight");
    if (base->blocks)
        return ERR(err, TESS_E_UNSUPPORTED, "%s: a quantized model with word_embed_proj_dim is not supported", base->paths[0]);
    if (p->hidden * p->dim > MAX_ELEMENTS) return ERR(err, TESS_E_FORMAT, "%s: word_embed_proj_dim is too large", base->paths[0]);
    TRY(want(base, in, DECODER "project_in.weight", p->hidden, p->dim, err));
    TRY(want(base, out, DECODER "project_out.weight", p->dim, p->hidden, err));
    TRY(want(base, e, DECODER "embed_tokens.weight", p->vocab, p->dim, err));
    if (!tied) TRY(want(base, h, "lm_head.weight", p->vocab, p->dim, err));
    p->table[EMBED] = (uint32_t)e;
    p->table[HEAD] = (uint32_t)(tied ? e : h);
    TRY(load(base, p, (uint32_t)in, true, &p->proj[EMBED], err));
    TRY(load(base, p, (uint32_t)out, false, &p->proj[HEAD], err));
    for (uint32_t i = 0; i < base->n_tensors; i++) {
        src_tensor t = base->tensors[i];
        t.ref = i;
        if (i != in && i != out && i != e && i != h) TRY(source_add_tensor(over, &t, t.name, strlen(t.name), err));
    }
    src_tensor t = {.dtype = SRC_COMPUTED,
                    .like = DT_F32,
                    .rank = 2,
                    .shape = {p->vocab, p->hidden},
                    .file = base->tensors[e].file,
                    .ref = EMBED,
                    .type = "the projected embedding"};
    TRY(source_add_tensor(over, &t, base->tensors[e].name, strlen(base->tensors[e].name), err));
    t.ref = HEAD;
    TRY(source_add_tensor(over, &t, "lm_head.weight", strlen("lm_head.weight"), err));
    return source_sort(over, err);
}

tess_status projected_open(source **s, uint32_t vocab, uint32_t hidden, uint32_t dim, bool tied, tess_error *err)
{
    const mem *m = (*s)->m;
    source *over;
    TRY(source_new(m, (*s)->kind, &over, err));
    impl *p = mem_zalloc(m, sizeof *p);
    tess_status st = p ? TESS_OK : ERR(err, TESS_E_NOMEM, "no memory");
    if (st == TESS_OK) {
        *p = (impl){.base = *s, .vocab = vocab, .hidden = hidden, .dim = dim};
        over->lower = *s;
        over->n_files = (*s)->n_files;
        over->paths = (*s)->paths;
        over->files = (*s)->files;
        st = fill(over, *s, p, tied, err);
    }
    if (st < 0) {
        if (p) mem_free(m, p->proj[EMBED]);
        if (p) mem_free(m, p->proj[HEAD]);
        mem_free(m, p);
        source_close(over);
        return st;
    }
    over->impl = p;
    over->read = read_projected;
    over->close = close_projected;
    *s = over;
    return TESS_OK;
}
