/*
 * convert_lora.c - weights as the source has them plus what the adapters of --lora add.
 *
 * Adapters are merged in f32, in the order of the command line, before the type is applied; so a weight that one touches is
 * never moved as it is. Steps are whole rows, or parts of long ones.
 */
#include "convert.h"

#include <errno.h>
#include <stdlib.h>

enum { STEP = 1 << 18 };

/* "DIR" or "DIR=SCALE": what follows the last "=" is a scale when it is a number. */
static double split_scale(char *text)
{
    char *eq = strrchr(text, '='), *end;
    if (!eq || eq == text || !eq[1]) return 1;
    errno = 0;
    double scale = strtod(eq + 1, &end);
    if (*end || errno || !(scale >= -1e6 && scale <= 1e6)) return 1;
    *eq = 0;
    return scale;
}

tess_status convert_load_lora(const convert_options *o, convert_source *c, tess_error *err)
{
    for (uint32_t i = 0; i < o->n_lora; i++) {
        char *dir = mem_strndup(&c->m, o->lora[i], strlen(o->lora[i]));
        if (!dir) return ERR(err, TESS_E_NOMEM, "no memory");
        double scale = split_scale(dir);
        tess_status st = TESS_OK;
        if (c->kind != CT_KIND_MODEL || !c->fam) st = ERR(err, TESS_E_ARG, "%s: holds no weights that --lora could be merged into", o->src);
        if (st == TESS_OK) st = lora_open(dir, scale, c->fam, &c->a, &c->plan, &c->m, &c->lora[i], err);
        mem_free(&c->m, dir);
        TRY(st);
        c->n_lora++;
    }
    return TESS_OK;
}

static uint32_t index_of(const convert_source *c, const weight *w) { return (uint32_t)(w - c->plan.w); }

bool convert_is_merged(const convert_source *c, const weight *w)
{
    for (uint32_t i = 0; i < c->n_lora; i++)
        if (lora_touches(c->lora[i], index_of(c, w))) return true;
    return false;
}

static tess_status read_f32(const convert_source *c, const weight *w, uint64_t row0, uint64_t n_rows, uint64_t k0, uint64_t n_k, float *dst,
                            tess_error *err)
{
    TRY(family_read(c->s, w, DT_F32, row0, n_rows, k0, n_k, dst, err));
    for (uint32_t i = 0; i < c->n_lora; i++) TRY(lora_add(c->lora[i], index_of(c, w), row0, n_rows, k0, n_k, dst, err));
    return TESS_OK;
}

tess_status convert_read(const convert_source *c, const weight *w, uint32_t dtype, uint64_t row0, uint64_t n_rows, uint64_t k0,
                         uint64_t n_k, void *dst, tess_error *err)
{
    if (!convert_is_merged(c, w)) return family_read(c->s, w, dtype, row0, n_rows, k0, n_k, dst, err);
    if (dtype == DT_F32) return read_f32(c, w, row0, n_rows, k0, n_k, dst, err);
    uint64_t nk = MIN(n_k, (uint64_t)STEP), nr = nk ? MIN(STEP / nk, n_rows) : 1;
    size_t bytes;
    float *step = size_mul3(nr, nk, sizeof *step, &bytes) ? mem_alloc(&c->m, bytes) : NULL;
    tess_status st = step ? TESS_OK : ERR(err, TESS_E_NOMEM, "no memory to merge adapters");
    for (uint64_t r = 0; r < n_rows && st == TESS_OK; r += nr)
        for (uint64_t k = 0; k < n_k && st == TESS_OK; k += nk) {
            uint64_t rows = MIN(nr, n_rows - r), cols = MIN(nk, n_k - k);
            st = read_f32(c, w, row0 + r, rows, k0 + k, cols, step, err);
            if (st == TESS_OK) st = family_check_fits(c->s, w, dtype, step, rows * cols, err);
            if (st == TESS_OK)
                dtype_from_f32(dtype, step, (uint8_t *)dst + (r * n_k + k) * dtype_get(dtype)->block_bytes, (size_t)(rows * cols));
        }
    mem_free(&c->m, step);
    return st;
}
