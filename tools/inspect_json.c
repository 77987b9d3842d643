/* inspect_json.c - everything as one JSON object. Text that is no UTF-8 can not occur: the reader's rules
 * exclude it, and what else might be (a path) is replaced by null. */
#include <jansson.h>
#include <stdlib.h>

#include "inspect.h"

static json_t *u64(uint64_t v) { return json_integer((json_int_t)v); }
static json_t *text(const char *s, size_t n)
{
    json_t *j = json_stringn(s, n);
    return j ? j : json_null();
}
static json_t *hex(const uint8_t *p, size_t n)
{
    char out[65];
    inspect_hex(p, n, out);
    return json_string(out);
}
static void set(json_t *o, const char *key, json_t *v) { json_object_set_new(o, key, v); }

static json_t *kv_json(const kv *v)
{
    switch (v->type) {
    case KV_U64: return u64(rd64(v->data));
    case KV_I64: return json_integer((json_int_t)rd64(v->data));
    case KV_BOOL: return json_boolean(rd64(v->data) != 0);
    case KV_F64: {
        double d;
        memcpy(&d, v->data, 8);
        json_t *j = json_real(d); /* NULL for NaN and infinity */
        return j ? j : json_null();
    }
    case KV_STR: return text(v->data, (size_t)v->n);
    default:
        return json_pack("{s:i, s:I}", "type", (int)v->type, "elements",
                         (json_int_t)v->n); /* arrays: their size only */
    }
}

static json_t *tensor_json(const inspect *s, const ct_tensor *t)
{
    json_t *o = json_object(), *shape = json_array(), *pieces = json_array();
    for (uint32_t d = 0; d < t->rank; d++) json_array_append_new(shape, u64(t->shape[d]));
    set(o, "name", text(t->name, strlen(t->name)));
    set(o, "dtype", json_string(dtype_get(t->dtype)->name));
    set(o, "shape", shape);
    set(o, "layout", json_string(t->layout == LAYOUT_TILE8 ? "tile8" : "rows"));
    set(o, "layer", json_integer(t->layer));
    set(o, "role", u64(t->role));
    set(o, "part", u64(t->part));
    set(o, "alias",
        t->alias == CT_NO_ALIAS ? json_null()
                                : text(s->i->tensors[t->alias].name, strlen(s->i->tensors[t->alias].name)));
    set(o, "split_dim", t->split_dim == 255 ? json_null() : u64(t->split_dim));
    set(o, "axis", t->split_dim == 255 ? json_null() : u64(t->axis));
    set(o, "logical_bytes", u64(inspect_logical(s, t)));
    set(o, "stored_bytes", u64(inspect_stored(s, t)));
    set(o, "content_hash", hex(t->content_hash, 16));
    for (uint32_t p = 0; p < t->n_pieces; p++) {
        const ct_piece *q = &s->i->pieces[t->first_piece + p];
        json_t *j = json_object();
        set(j, "rows", json_pack("[I, I]", (json_int_t)q->row0, (json_int_t)(q->row0 + q->n_rows)));
        set(j, "columns", json_pack("[I, I]", (json_int_t)q->k0, (json_int_t)(q->k0 + q->n_k)));
        set(j, "part", u64(q->split_file + 1));
        set(j, "offset", u64(q->off));
        set(j, "stored_bytes", u64(q->stored_len));
        set(j, "chunks", u64(q->n_chunks));
        set(j, "raw", json_boolean(q->raw_contig));
        json_array_append_new(pieces, j);
    }
    set(o, "pieces", pieces);
    return o;
}

static json_t *chunks_json(const inspect *s, const ct_tensor *t)
{
    json_t *list = json_array();
    for (uint32_t p = 0; p < t->n_pieces; p++) {
        const ct_piece *q = &s->i->pieces[t->first_piece + p];
        for (uint32_t c = 0; c < q->n_chunks; c++) {
            const ct_chunk *k = &s->i->chunks[q->first_chunk + c];
            char hash[17];
            snprintf(hash, sizeof hash, "%016llx", (unsigned long long)k->hash);
            json_array_append_new(list, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:s}", "piece",
                                                  (json_int_t)p, "chunk", (json_int_t)c, "part",
                                                  (json_int_t)q->split_file + 1, "offset", (json_int_t)k->off,
                                                  "stored_bytes", (json_int_t)k->csize, "decoded_bytes",
                                                  (json_int_t)k->usize, "codec", (int)k->codec, "filter",
                                                  (int)k->filter, "xxh3_64", hash));
        }
    }
    return list;
}

static json_t *plan_json(const inspect *s)
{
    json_t *list = json_array();
    for (uint32_t r = 0; r < s->o->plan; r++) {
        plan_rank k;
        if (!inspect_plan_rank(s, s->o->plan, r, &k)) continue;
        json_array_append_new(
            list,
            json_pack("{s:[I, I], s:[I, I], s:[I, I], s:[I, I], s:I, s:I, s:I, s:I}", "q_heads",
                      (json_int_t)k.q_lo, (json_int_t)k.q_hi, "kv_heads", (json_int_t)k.kv_lo,
                      (json_int_t)k.kv_hi, "ffn", (json_int_t)k.ffn_lo, (json_int_t)k.ffn_hi, "vocab",
                      (json_int_t)k.vocab_lo, (json_int_t)k.vocab_hi, "weight_bytes",
                      (json_int_t)k.weight_bytes, "read_bytes", (json_int_t)k.read_bytes, "kv_bytes_per_token",
                      (json_int_t)k.kv_bytes, "replicated_kv_heads", (json_int_t)k.replicated_kv));
    }
    return list;
}

static json_t *axes_json(const inspect *s)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < s->i->n_axes; i++) {
        const arch_axis *x = &s->i->axes[i];
        json_t *leaves = json_array();
        for (uint32_t l = 0; l <= x->n_leaves; l++) json_array_append_new(leaves, u64(x->leaf[l]));
        json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:I, s:o}", "kind", inspect_axis(x->kind), "dim",
                                              (json_int_t)x->dim, "unit", (json_int_t)x->unit, "units",
                                              (json_int_t)x->n_units, "leaf_bounds", leaves));
    }
    return list;
}

static json_t *types_json(const inspect *s)
{
    json_t *o = json_object();
    for (uint32_t dt = 1; dt < DT_COUNT; dt++) {
        type_sum r = inspect_sum(s, dt);
        if (r.tensors)
            set(o, dtype_get(dt)->name,
                json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "tensors", (json_int_t)r.tensors, "parameters",
                          (json_int_t)r.params, "logical_bytes", (json_int_t)r.logical, "stored_bytes",
                          (json_int_t)r.stored, "raw_chunks", (json_int_t)r.raw_chunks, "zstd_chunks",
                          (json_int_t)r.zstd_chunks));
    }
    return o;
}

static void add_summary(const inspect *s, json_t *o)
{
    const ct_info *i = s->i;
    json_t *kvs_object = json_object(), *blobs = json_array();
    set(o, "path", text(i->path, strlen(i->path)));
    set(o, "kind", json_string(inspect_kind(i->kind)));
    set(o, "format", json_string("1.0"));
    set(o, "uuid", hex(i->uuid, 16));
    set(o, "writer", text(i->writer, strlen(i->writer)));
    set(o, "created", u64(i->created));
    set(o, "incompat", u64(i->incompat));
    set(o, "rocompat", u64(i->rocompat));
    set(o, "compat", u64(i->compat));
    set(o, "parts", u64(i->n_splits));
    set(o, "tp", u64(i->tp));
    set(o, "file_bytes", u64(i->file_bytes));
    set(o, "logical_bytes", u64(i->logical_bytes));
    set(o, "parameters", u64(i->param_count));
    set(o, "types", types_json(s));
    set(o, "axes", axes_json(s));
    for (uint32_t k = 0; k < i->kv->count; k++) {
        const kv *v = &i->kv->items[k];
        json_object_setn_new(kvs_object, v->key, v->key_len, kv_json(v));
    }
    set(o, "key_values", kvs_object);
    for (uint32_t b = 0; b < i->n_blobs; b++)
        json_array_append_new(blobs, json_pack("{s:s, s:I, s:I}", "name", i->blobs[b].name, "bytes",
                                               (json_int_t)i->blobs[b].usize, "stored_bytes",
                                               (json_int_t)i->blobs[b].csize));
    set(o, "blobs", blobs);
    json_t *prov = i->prov_len ? json_loadb(i->prov, i->prov_len, JSON_REJECT_DUPLICATES, NULL) : NULL;
    set(o, "provenance", prov ? prov : i->prov_len ? text(i->prov, i->prov_len) : json_null());
}

/* jansson leaves out what it has no memory for, and the object would lack it silently. The program has only read
 * when it prints, so that it can end here. */
static void *get_or_end(size_t n)
{
    void *p = malloc(n);
    if (p) return p;
    cli_error("no memory for the JSON text");
    exit(CLI_EXIT_MEMORY);
}

int inspect_print_json(const inspect *s)
{
    int rc = 0;
    json_set_alloc_funcs(get_or_end, free);
    json_t *o = json_object();
    add_summary(s, o);
    if (s->o->tensors) {
        json_t *list = json_array();
        for (uint32_t i = 0; i < s->i->n_tensors; i++)
            json_array_append_new(list, tensor_json(s, &s->i->tensors[i]));
        set(o, "tensors", list);
    }
    if (s->o->chunks) {
        int64_t i = ct_find(s->f, s->o->chunks);
        if (i >= 0) set(o, "chunks", chunks_json(s, &s->i->tensors[i]));
        else {
            cli_error("%s: has no tensor %s; --tensors lists them", s->i->path, s->o->chunks);
            rc = CLI_EXIT_USAGE;
        }
    }
    if (s->o->plan) set(o, "plan", plan_json(s));
    char *out = rc ? NULL : json_dumps(o, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    if (out) puts(out);
    else if (!rc) {
        cli_error("%s: cannot be printed as JSON", s->i->path);
        rc = CLI_EXIT_FAILED;
    }
    free(out);
    json_decref(o);
    return rc;
}
