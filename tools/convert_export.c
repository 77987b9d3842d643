/*
 * convert_export.c - .tess to a Hugging Face directory: the original files as they were, and model.safetensors. Only what
 * config.json says of a quantization, which the floats no longer have, is left out, and of a model that sees as well the language
 * part alone is described.
 *
 * Tensors get the names, fusing and orientation of their family. The file is laid out as the safetensors
 * library does it: header keys in the order of the data, by descending type and then name, padded with blanks
 * to 8 bytes; so a checkpoint that was saved in one file by that library comes back byte by byte. All files are
 * written beside their names first and renamed at the end, the weights last.
 */
#include "convert.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hf_quant.h"
#include "hf_wrapper.h"

enum { STEP = 1 << 20 };

typedef struct { family_tensor t; uint32_t dtype; uint64_t off, bytes; } item;
typedef struct {
    const convert_options *o;
    const convert_source *c;
    item *items;
    uint32_t n;
    size_t cap;
    uint64_t data_off, data_len;
    os_out out[CONVERT_MAX_BLOBS + 1]; /* blobs, then the weights */
    uint32_t n_out;
    uint8_t **step;       /* two buffers of STEP bytes for each thread */
    uint32_t failed;
    tess_error err;
    cli_progress bar;
    uint64_t done;
} job;

/* ---- what to write ---- */

static tess_status add_item(job *j, const name_rule *r, uint32_t part, int32_t layer, int32_t expert,
                            tess_error *err)
{
    item x = {0};
    const convert_source *c = j->c;
    if (!family_stored(r, &c->a, &c->plan, part, layer, expert, &x.t)) return TESS_OK;
    for (uint32_t i = 0; i < x.t.n; i++) {
        uint32_t dtype = c->s->tensors[c->plan.w[x.t.from[i].weight].map.src].dtype;
        if (i && dtype != x.dtype)
            return ERR(err, TESS_E_UNSUPPORTED, "tensor \"%s\" has parts of different types", x.t.name);
        x.dtype = dtype;
    }
    const dtype_info *d = dtype_get(x.dtype);
    if (!d || !d->is_float)
        return ERR(err, TESS_E_UNSUPPORTED, "tensor \"%s\" is of type %s; only float types can be exported",
                   x.t.name, d ? d->name : "unknown");
    x.bytes = x.t.shape[0] * (x.t.rank == 2 ? x.t.shape[1] : 1) *
              d->block_bytes; /* no more than the container's own */
    if (!mem_grow(&c->m, &j->items, &j->cap, j->n + 1u, sizeof *j->items))
        return ERR(err, TESS_E_NOMEM, "no memory for the list of tensors");
    j->items[j->n++] = x;
    return TESS_OK;
}

static const char *st_type(uint32_t dtype)
{
    return dtype == DT_F32 ? "F32" : dtype == DT_F16 ? "F16" : "BF16";
}

static int item_cmp(const void *x, const void *y)
{
    static const int rank[] = {[DT_F32] = 0, [DT_BF16] = 1, [DT_F16] = 2};
    const item *a = x, *b = y;
    if (a->dtype != b->dtype) return rank[a->dtype] - rank[b->dtype];
    return strcmp(a->t.name, b->t.name);
}

static tess_status list_items(job *j, tess_error *err)
{
    const convert_source *c = j->c;
    const family *f = c->fam ? c->fam : family_by_model_type("llama");
    uint32_t stored = 0, want = 0;
    if (f->norm_kind != c->a.norm_kind)
        return ERR(err, TESS_E_UNSUPPORTED,
                   "%s: was made from a GGUF file, whose norms hold 1 more than those of a %s checkpoint; export is not possible",
                   j->o->src, c->a.family);
    for (const name_rule *r = f->names; r->name; r++)
        for (uint32_t part = PART_DATA; part <= PART_BIAS; part += PART_BIAS) {
            bool layers = strstr(r->name, "%d") != NULL;
            bool experts = layers && strstr(strstr(r->name, "%d") + 2, "%d") != NULL;
            for (int32_t l = layers ? 0 : -1; l < (layers ? (int32_t)c->a.n_layers : 0); l++)
                for (int32_t e = experts ? 0 : -1; e < (experts ? (int32_t)role_instances(&c->a, r->role) : 0); e++)
                    TRY(add_item(j, r, part, l, e, err));
        }
    for (uint32_t i = 0; i < c->plan.n; i++) want += c->plan.w[i].alias < 0;
    for (uint32_t i = 0; i < j->n; i++) stored += j->items[i].t.n;
    if (stored != want)
        return ERR(err, TESS_E_UNSUPPORTED,
                   "%s: export of family \"%s\" is not possible: only %u of %u weights have a place in its files", j->o->src,
                   c->a.family, stored, want);
    if (j->n) qsort(j->items, j->n, sizeof *j->items, item_cmp);
    for (uint32_t i = 0; i < j->n; i++) {
        j->items[i].off = j->data_len;
        j->data_len += j->items[i].bytes;
    }
    return TESS_OK;
}

/* ---- files ---- */

static tess_status open_out(job *j, const char *name, tess_error *err)
{
    char path[PATH_MAX];
    if (strchr(name, '/') || strcmp(name, "..") == 0 ||
        (size_t)snprintf(path, sizeof path, "%s/%s", j->o->export_dir, name) >= sizeof path)
        return ERR(err, TESS_E_ARG, "%s/%.100s: bad file name", j->o->export_dir, name);
    TRY(os_out_open(&j->out[j->n_out], &j->c->m, path, err));
    j->n_out++;
    return TESS_OK;
}

static tess_status write_blobs(job *j, tess_error *err)
{
    for (uint32_t i = 0; i < j->c->n_blobs; i++) {
        const convert_blob *b = &j->c->blob[i];
        char *plain = NULL;
        size_t len = b->len;
        TRY(open_out(j, b->name, err));
        if (strcmp(b->name, "config.json") == 0) {
            TRY(hf_wrapper_unwrap(&j->c->m, b->data, b->len, b->name, &plain, &len, err));
            if (!plain) TRY(hf_quant_strip(&j->c->m, b->data, b->len, b->name, &plain, &len, err));
        }
        tess_status st = os_out_pwrite(&j->out[i], plain ? plain : b->data, len, 0, err);
        mem_free(&j->c->m, plain);
        TRY(st);
    }
    if (j->c->kind == CT_KIND_MODEL && !convert_find_blob(j->c, "config.json"))
        mem_log(&j->c->m, TESS_LOG_WARN,
                "%s: holds no config.json (it was made from a GGUF file); the directory lacks it", j->o->src);
    return TESS_OK;
}

static tess_status write_header(job *j, tess_error *err)
{
    buf b;
    buf_init(&b, &j->c->m);
    uint64_t len = 0;
    buf_put(&b, &len, 8);
    buf_puts(&b, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (uint32_t i = 0; i < j->n; i++) { /* names are ours: nothing to escape */
        const item *x = &j->items[i];
        buf_printf(&b, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%llu", x->t.name, st_type(x->dtype),
                   (unsigned long long)x->t.shape[0]);
        if (x->t.rank == 2) buf_printf(&b, ",%llu", (unsigned long long)x->t.shape[1]);
        buf_printf(&b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)x->off,
                   (unsigned long long)(x->off + x->bytes));
    }
    buf_putc(&b, '}');
    while (!b.failed && b.len % 8) buf_putc(&b, ' ');
    tess_status st = b.failed ? ERR(err, TESS_E_NOMEM, "no memory for the header") : TESS_OK;
    if (st == TESS_OK) {
        len = b.len - 8;
        memcpy(b.data, &len, 8);
        j->data_off = b.len;
        st = os_out_pwrite(&j->out[j->n_out - 1], b.data, b.len, 0, err);
    }
    buf_free(&b);
    return st;
}

/* ---- weights ---- */

/* Rows of one weight into the tensor x, row by row of the file. */
static tess_status write_rows(job *j, const item *x, uint32_t i, uint8_t *step, tess_error *err)
{
    const weight *w = &j->c->plan.w[x->t.from[i].weight];
    uint64_t row_bytes = MAX(w->cols, 1) * dtype_get(x->dtype)->block_bytes, most = MAX(STEP / row_bytes, 1);
    for (uint64_t r = 0, run; r < w->rows; r += run) {
        uint64_t at = family_map_row(&x->t.from[i].map, r, &run);
        run = MIN(MIN(run, w->rows - r), most);
        if (convert_interrupted()) return ERR(err, TESS_E_CANCELLED, "interrupted; nothing was written");
        TRY(convert_read(j->c, w, x->dtype, r, run, 0, MAX(w->cols, 1), step, err));
        TRY(os_out_pwrite(&j->out[j->n_out - 1], step, (size_t)(run * row_bytes),
                          j->data_off + x->off + at * row_bytes, err));
        __atomic_add_fetch(&j->done, run * row_bytes, __ATOMIC_RELAXED);
    }
    return TESS_OK;
}

/* The same into columns of a transposed tensor: squares of the weight are turned in memory. */
static tess_status write_columns(job *j, const item *x, uint32_t i, uint8_t *step, tess_error *err)
{
    enum { SIDE = 512 };
    const weight *w = &j->c->plan.w[x->t.from[i].weight];
    uint32_t e = dtype_get(x->dtype)->block_bytes;
    uint8_t *turned = step + STEP;
    for (uint64_t r = 0, run; r < w->rows; r += run) {
        uint64_t at = family_map_row(&x->t.from[i].map, r, &run);
        run = MIN(MIN(run, w->rows - r), (uint64_t)SIDE);
        for (uint64_t k = 0; k < w->cols; k += SIDE) {
            uint64_t nk = MIN((uint64_t)SIDE, w->cols - k);
            if (convert_interrupted()) return ERR(err, TESS_E_CANCELLED, "interrupted; nothing was written");
            TRY(convert_read(j->c, w, x->dtype, r, run, k, nk, step, err));
            for (uint64_t a = 0; a < run; a++)
                for (uint64_t b = 0; b < nk; b++)
                    memcpy(turned + (b * run + a) * e, step + (a * nk + b) * e, e);
            for (uint64_t b = 0; b < nk; b++)
                TRY(os_out_pwrite(&j->out[j->n_out - 1], turned + b * run * e, (size_t)(run * e),
                                  j->data_off + x->off + ((k + b) * x->t.shape[1] + at) * e, err));
            __atomic_add_fetch(&j->done, run * nk * e, __ATOMIC_RELAXED);
        }
    }
    return TESS_OK;
}

static void write_item(void *arg, uint64_t n, uint32_t thread)
{
    job *j = arg;
    const item *x = &j->items[n];
    tess_error err = {0};
    tess_status st = TESS_OK;
    for (uint32_t i = 0; i < x->t.n && st == TESS_OK && !__atomic_load_n(&j->failed, __ATOMIC_RELAXED); i++)
        st = x->t.transposed ? write_columns(j, x, i, j->step[thread], &err)
                             : write_rows(j, x, i, j->step[thread], &err);
    if (st < 0 && !__atomic_exchange_n(&j->failed, 1, __ATOMIC_RELAXED)) j->err = err;
    if (thread == 0) cli_progress_update(&j->bar, __atomic_load_n(&j->done, __ATOMIC_RELAXED), j->data_len);
}

static tess_status write_weights(job *j, tess_error *err)
{
    const mem *m = &j->c->m;
    pool *p = NULL;
    TRY(open_out(j, "model.safetensors", err));
    TRY(write_header(j, err));
    TRY(os_out_reserve(&j->out[j->n_out - 1], j->data_off + j->data_len, err));
    TRY(pool_open(m, NULL, j->o->threads, &p, err));
    uint32_t n = pool_size(p);
    tess_status st = TESS_OK;
    j->step = mem_calloc(m, n, sizeof *j->step);
    for (uint32_t i = 0; j->step && i < n; i++) /* a row may be longer than STEP, by the format at most 2 MiB */
        if (!(j->step[i] = mem_alloc(m, 4 * STEP))) st = TESS_E_NOMEM;
    if (!j->step || st < 0) st = ERR(err, TESS_E_NOMEM, "no memory for buffers");
    cli_progress_start(&j->bar, "exporting", true);
    if (st == TESS_OK) pool_each(p, j->n, write_item, j);
    cli_progress_end(&j->bar);
    if (st == TESS_OK && j->failed) {
        *err = j->err;
        st = j->err.status;
    }
    for (uint32_t i = 0; j->step && i < n; i++) mem_free(m, j->step[i]);
    mem_free(m, j->step);
    pool_close(p);
    return st;
}

/* ---- all ---- */

static tess_status write_all(job *j, tess_error *err)
{
    if (j->c->kind == CT_KIND_MODEL) TRY(list_items(j, err));
    TRY(write_blobs(j, err));
    if (j->c->kind == CT_KIND_MODEL) TRY(write_weights(j, err));
    for (uint32_t i = 0; i < j->n_out; i++) TRY(os_out_commit(&j->out[i], j->o->force, err));
    return TESS_OK;
}

tess_status convert_export(const convert_options *o, const convert_source *c, tess_error *err)
{
    job j = {.o = o, .c = c};
    bool made = mkdir(o->export_dir, 0777) == 0;
    int why = errno;
    if (!made && !os_is_dir(o->export_dir)) {
        errno = why; /* of mkdir */
        return err_set_os(err, TESS_E_IO, "%s: cannot create the directory", o->export_dir);
    }
    tess_status st = write_all(&j, err);
    for (uint32_t i = 0; i < j.n_out; i++) os_out_abort(&j.out[i]);
    mem_free(&c->m, j.items);
    if (st < 0 && made) rmdir(o->export_dir);
    return st;
}
