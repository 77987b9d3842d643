/*
 * convert_write.c - SRC to .tess: describes the tensors and pulls them, box by box, from the source.
 *
 * Types: --type auto keeps the type of each float, q8 and q4 tensor; GGUF blocks of 2, 3 and 4 bits with a scale become q4,
 * those of more bits or with a table of levels q8 (gguf_blocks.c); of quantized checkpoints 4 bits become q4, 8 bits and MXFP4
 * q8. What a type of a quantized source loses is said at the end. A float type is for all tensors alike, vectors included, so
 * that a checkpoint in one type gives the same bytes from every format that holds it; q8 and q4 are for matrices, and vectors
 * and routers stay as they are. With q4 the tables of embeddings and the output head are q8: in 4 bits they alone cost
 * SmolLM2-135M 1.9 % of its mean log-likelihood, all else 0.1 %. Matrices are split along the axes of their role; vectors are
 * whole.
 */
#include "convert.h"

#include <jansson.h>
#include <stdlib.h>
#include <zstd.h>

#include "source_tess.h"

typedef struct {
    const convert_source *c;
    const weight **of;    /* weight of each tensor of the writer */
    uint32_t *dtype;
    convert_loss loss;
    cli_progress bar;
} job;

/* Counts what a box of floats of a quantized source lost by rounding. */
static tess_status float_loss(job *j, const weight *w, uint32_t dtype, uint64_t row0, uint64_t n_rows, uint64_t k0, uint64_t n_k,
                              const uint8_t *stored, tess_error *err)
{
    enum { STEP = 4096 };
    const src_tensor *t = &j->c->s->tensors[w->map.src];
    const dtype_info *from = t->dtype < SRC_Q8_0 ? dtype_get(t->dtype) : NULL;
    float exact[STEP], rounded[STEP];
    double error = 0, all = 0;
    if (from && from->is_float) return TESS_OK;
    uint64_t nk = MIN(n_k, (uint64_t)STEP), nr = nk ? STEP / nk : 1;
    for (uint64_t r = 0; r < n_rows; r += nr)
        for (uint64_t k = 0; k < n_k; k += nk) {
            uint64_t rows = MIN(nr, n_rows - r), cols = MIN(nk, n_k - k);
            TRY(convert_read(j->c, w, DT_F32, row0 + r, rows, k0 + k, cols, exact, err));
            dtype_to_f32(dtype, stored + (r * n_k + k) * dtype_get(dtype)->block_bytes, rounded, (size_t)(rows * cols));
            convert_loss_of(exact, rounded, (size_t)(rows * cols), &error, &all);
        }
    convert_loss_add(&j->loss, t->type, dtype, error, all);
    return TESS_OK;
}

static tess_status read_box(void *user, uint32_t t, uint64_t row0, uint64_t n_rows, uint64_t k0, uint64_t n_k,
                            void *dst, uint32_t thread, tess_error *err)
{
    job *j = user;
    const source *s = j->c->s;
    const weight *w = j->of[t];
    uint32_t dtype = j->dtype[t];
    UNUSED(thread);
    if (convert_interrupted()) return ERR(err, TESS_E_CANCELLED, "interrupted; nothing was written");
    if (dtype_is_quant(dtype)) TRY(convert_read_quant(j->c, w, dtype, row0, n_rows, k0, n_k, dst, &j->loss, err));
    else {
        TRY(convert_read(j->c, w, dtype, row0, n_rows, k0, n_k, dst, err));
        TRY(float_loss(j, w, dtype, row0, n_rows, k0, n_k, dst, err));
    }
    return source_file_unchanged(s, s->tensors[w->map.src].file, err);
}

static void progress(void *user, uint64_t done, uint64_t total)
{
    job *j = user;
    cli_progress_update(&j->bar, done, total);
}

/* ---- tensors ---- */

static uint32_t type_of(const convert_options *o, const src_tensor *t, const weight *w)
{
    const dtype_info *d = t->dtype < SRC_Q8_0 ? dtype_get(t->dtype) : NULL;
    bool router = w->role == ROLE_ROUTER || w->role == ROLE_SH_SWITCH; /* few numbers, on which choices hang */
    bool matrix = w->cols != 0 && !router, table = w->role == ROLE_EMBED || w->role == ROLE_HEAD || w->role == ROLE_POS_EMBED;
    if (o->dtype == DT_Q4 && matrix && table) return DT_Q8;
    if (o->dtype && (matrix || !dtype_is_quant(o->dtype))) return o->dtype;
    if (d) return t->dtype;
    return matrix ? t->like : DT_F32;
}

/* Index of the axis in the writer; added when it is new. */
static tess_status want_axis(ct_writer *w, const arch *a, uint32_t kind, int64_t seen[8], uint32_t *index,
                             tess_error *err)
{
    arch_axis x;
    if (seen[kind] < 0) {
        if (!arch_axis_of(a, kind, &x))
            return ERR(err, TESS_E_FORMAT, "the model has no axis of kind %u", kind);
        TRY(ct_add_axis(w, &x, index, err));
        seen[kind] = *index;
    }
    *index = (uint32_t)seen[kind];
    return TESS_OK;
}

static tess_status add_tensor(const convert_options *o, job *j, ct_writer *w, uint32_t i, int64_t seen[8],
                              tess_error *err)
{
    const convert_source *c = j->c;
    const weight *x = &c->plan.w[i];
    const role_info *r = role_get(x->role);
    const src_tensor *src = &c->s->tensors[x->map.src];
    char name[sizeof x->name];
    uint32_t index;
    memcpy(name, x->name, sizeof name);
    ct_tensor t = {.name = name,
                   .rank = x->cols ? 2 : 1,
                   .shape = {x->rows, x->cols},
                   .layer = x->layer,
                   .role = x->role,
                   .part = x->part,
                   .expert = x->expert < 0 ? 0 : (uint32_t)x->expert,
                   .alias = x->alias < 0 ? CT_NO_ALIAS : (uint32_t)x->alias,
                   .split_dim = 255};
    t.dtype = type_of(o, src, x);
    t.src_dtype = src->dtype;
    uint32_t axis = !r || !x->cols ? AXIS_NONE : r->row_axis != AXIS_NONE ? r->row_axis : r->k_axis;
    if (axis != AXIS_NONE) {
        t.split_dim = r->row_axis == AXIS_NONE;
        TRY(want_axis(w, &c->a, axis, seen, &t.axis, err));
    }
    TRY(ct_add_tensor(w, &t, &index, err));
    j->of[index] = x;
    j->dtype[index] = t.dtype;
    return TESS_OK;
}

static tess_status add_tensors(const convert_options *o, job *j, ct_writer *w, tess_error *err)
{
    int64_t seen[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
    const convert_source *c = j->c;
    for (uint32_t i = 0; i < c->plan.n; i++)
        TRY(add_tensor(o, j, w, i, seen, err)); /* plan index = writer index */
    return TESS_OK;
}

/* ---- provenance ---- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The provenance of the first conversion: of a .tess source, the one that it carries. */
static json_t *origin_of(const convert_source *c)
{
    if (!c->s || strcmp(c->s->kind, "tess") != 0) return NULL;
    const ct_info *info = ct_get(tess_source_file(c->s));
    json_t *prov = info->prov ? json_loadb(info->prov, info->prov_len, 0, NULL) : NULL;
    json_t *first = json_incref(json_object_get(prov, "origin"));
    if (!first) return prov;
    json_decref(prov);
    return first;
}

/* What the file was made from and how; paths are left out, so that equal inputs give equal files. */
static tess_status add_provenance(const convert_options *o, const convert_source *c, ct_writer *w,
                                  tess_error *err)
{
    static const char *const stores[] = {"auto", "raw", "zstd"};
    json_t *root = json_object(), *files = json_array(), *adapters = json_array();
    for (uint32_t i = 0; c->s && i < c->s->n_files; i++)
        json_array_append_new(files, json_pack("{s:s, s:I}", "file", base_name(c->s->paths[i]), "bytes",
                                               (json_int_t)c->s->files[i].size));
    for (uint32_t i = 0; i < c->n_blobs; i++)
        json_array_append_new(
            files, json_pack("{s:s, s:I}", "file", c->blob[i].name, "bytes", (json_int_t)c->blob[i].len));
    json_object_set_new(root, "converter", json_string(CONVERTER));
    json_object_set_new(root, "zstd", json_string(ZSTD_versionString()));
    json_object_set_new(root, "source_kind", json_string(c->s ? c->s->kind : "tokenizer"));
    json_object_set_new(root, "arguments",
                        json_pack("{s:s, s:I, s:s, s:I}", "type", o->dtype ? dtype_get(o->dtype)->name : "auto",
                                  "tp", (json_int_t)o->tp, "store", stores[o->store], "split_max_size",
                                  (json_int_t)o->split_max));
    json_object_set_new(root, "sources", files);
    for (uint32_t i = 0; i < o->n_lora; i++) json_array_append_new(adapters, json_string(base_name(o->lora[i])));
    if (o->n_lora) json_object_set(root, "lora", adapters);
    json_decref(adapters);
    json_t *origin = origin_of(c);
    if (origin) json_object_set_new(root, "origin", origin);
    char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(root);
    tess_status st = text ? ct_set_provenance(w, text, strlen(text), err)
                          : ERR(err, TESS_E_NOMEM, "no memory for the provenance");
    free(text);
    return st;
}

/* ---- all ---- */

static tess_status fill(const convert_options *o, job *j, ct_writer *w, tess_error *err)
{
    const convert_source *c = j->c;
    if (c->kind == CT_KIND_MODEL) TRY(add_tensors(o, j, w, err));
    TRY(ct_set_kv(w, c->kv, c->kv_len, err));
    for (uint32_t i = 0; i < c->n_blobs; i++)
        TRY(ct_add_blob(w, c->blob[i].name, c->blob[i].data, c->blob[i].len, err));
    return add_provenance(o, c, w, err);
}

static tess_status write_file(const convert_options *o, job *j, ct_writer *w, tess_error *err)
{
    pool *p = NULL;
    TRY(fill(o, j, w, err));
    TRY(pool_open(&j->c->m, NULL, o->threads, &p, err));
    cli_progress_start(&j->bar, "converting", true);
    tess_status st = ct_write(w, p, read_box, j, progress, j, err);
    cli_progress_end(&j->bar);
    if (st == TESS_OK) convert_loss_say(&j->loss, &j->c->m, o->src);
    pool_close(p);
    return st;
}

tess_status convert_write(const convert_options *o, const convert_source *c, tess_error *err)
{
    ct_write_options wo = {.kind = c->kind,
                           .tp = o->tp,
                           .store = o->store,
                           .split_max = o->split_max,
                           .force = o->force,
                           .writer = CONVERTER};
    job j = {.c = c};
    ct_writer *w = NULL;
    tess_status st = TESS_E_NOMEM;
    convert_loss_open(&j.loss);
    j.of = mem_calloc(&c->m, c->plan.n + 1u, sizeof *j.of);
    j.dtype = mem_calloc(&c->m, c->plan.n + 1u, sizeof *j.dtype);
    if (!j.of || !j.dtype) ERR(err, st, "no memory for %u tensors", c->plan.n);
    else if ((st = ct_writer_open(o->out, &wo, &c->m, &w, err)) == TESS_OK) st = write_file(o, &j, w, err);
    ct_writer_close(w);
    convert_loss_close(&j.loss);
    mem_free(&c->m, j.of);
    mem_free(&c->m, j.dtype);
    return st;
}
