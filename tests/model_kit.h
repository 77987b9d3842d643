/*
 * model_kit.h - for tests: writes a tiny model with every tensor that its arch demands, a byte-level tokenizer
 * and a chat template, so that the loader and the engine can be tried on files that a hostile person wrote.
 */
#ifndef TESS_MODEL_KIT_H
#define TESS_MODEL_KIT_H
#include "container.h"
#include "tok_kit.h"

typedef struct {
    arch a;
    uint32_t tp, store, dtype; /* dtype: of matrices */
    bool no_tokenizer;
    bool both_signs; /* bf16: numbers of 0.03 to 0.12 of either sign, in no order, so that every part of a layer shows in the logits */
    const char *tok_model; /* three letters that the file has in place of "bpe"; NULL: it is as it should be */
    /* Changes the description of a tensor before it is added; what = name of the tensor. NULL = as it should be. */
    void (*twist)(void *user, ct_writer *w, ct_tensor *t);
    void *user;
    ct_tensor list[128]; /* what was added, in the order of the writer */
    char names[128][80];
    uint32_t n;
} model_kit;

/* Two layers, four query heads, two kv heads; q, k and v carry biases; the output matrix is as wide as high. */
static inline void model_kit_init(model_kit *x)
{
    *x = (model_kit){.tp = 2, .store = CT_STORE_RAW, .dtype = DT_BF16};
    arch *a = &x->a;
    arch_default(a);
    memcpy(a->family, "test", 5);
    a->n_layers = 2;
    a->hidden_size = 32;
    a->n_heads = 4;
    a->n_kv_heads = 2;
    a->head_dim = a->v_head_dim = a->rope_dims = 8;
    a->ffn_size = 64;
    a->vocab_size = 272;
    a->max_ctx = 256;
    a->norm_eps = 1e-5;
    a->attn_scale = 0.35;
    a->biases = BIAS_QKV;
}

/* Small numbers that differ from row to row: 0.01 to 0.02 in f32 and bf16, their like in f16; q8: all codes, scales of 0.004. */
static inline tess_status model_kit_box(void *user, uint32_t t, uint64_t row0, uint64_t n_rows, uint64_t k0, uint64_t n_k,
                                        void *dst, uint32_t thread, tess_error *err)
{
    const model_kit *x = user;
    uint32_t dt = x->list[t].dtype;
    size_t n = dt == DT_Q8   ? ceil_div(n_rows, 8) * ceil_div(n_k, 32) * Q8_TILE
               : dt == DT_Q4 ? ceil_div(n_rows, 8) * ceil_div(n_k, 32) * Q4_TILE
                             : n_rows * n_k * dtype_get(dt)->block_bytes;
    UNUSED(thread);
    UNUSED(err);
    UNUSED(k0);
    memset(dst, dt == DT_Q8 ? 0x1c : 0x3c, n);
    for (size_t i = 0; dt == DT_Q8 && i < n; i++)
        if (i % Q8_TILE >= 2 * TILE_ROWS) ((uint8_t *)dst)[i] = (uint8_t)((row0 + i) * 2654435761u >> 24);
    for (size_t i = 0; dtype_get(dt)->is_float && i < n; i += dtype_get(dt)->block_bytes)
        ((uint8_t *)dst)[i] = (uint8_t)(row0 * 7 + i * 13 / 16 + t);
    for (size_t i = 0; x->both_signs && dt == DT_BF16 && i < n; i += 2) {
        uint32_t h = ((uint32_t)i + (uint32_t)row0 * 977 + t * 7919 + 1) * 2654435761u;
        ((uint8_t *)dst)[i] = (uint8_t)(h >> 16), ((uint8_t *)dst)[i + 1] = (uint8_t)(h >> 24 & 0x80) | 0x3d;
    }
    return TESS_OK;
}

static inline bool model_kit_add(model_kit *x, ct_writer *w, uint32_t role, uint32_t part, int32_t layer, int32_t expert,
                                 const uint32_t axis_of[AXIS_COUNT], tess_error *err)
{
    char *name = x->names[x->n];
    uint64_t rows, cols;
    const role_info *r = role_get(role);
    if (!r || !role_shape(&x->a, role, part, layer, &rows, &cols)) return true;
    if (role == ROLE_HEAD && x->a.tied_head) return true;
    role_name(role, part, layer, expert, name, sizeof x->names[0]);
    ct_tensor t = {.name = name,
                   .dtype = cols ? x->dtype : DT_F32,
                   .rank = cols ? 2 : 1,
                   .shape = {rows, cols},
                   .layer = layer,
                   .role = role,
                   .part = part,
                   .expert = expert < 0 ? 0 : (uint32_t)expert,
                   .alias = CT_NO_ALIAS,
                   .split_dim = 255};
    uint32_t kind = !cols ? AXIS_NONE : r->row_axis ? r->row_axis : r->k_axis;
    if (kind) t.axis = axis_of[kind], t.split_dim = r->row_axis == AXIS_NONE;
    if (x->twist) x->twist(x->user, w, &t);
    x->list[x->n] = t;
    return ct_add_tensor(w, &t, &x->n, err) == TESS_OK && ++x->n < ARRAY_LEN(x->list);
}

static inline bool model_kit_tensors(model_kit *x, ct_writer *w, tess_error *err)
{
    uint32_t axis_of[AXIS_COUNT] = {0};
    bool ok = true;
    for (uint32_t kind = AXIS_Q_HEADS; ok && kind < AXIS_COUNT; kind++) {
        arch_axis a;
        if (arch_axis_of(&x->a, kind, &a)) ok = ct_add_axis(w, &a, &axis_of[kind], err) == TESS_OK;
    }
    for (uint32_t role = ROLE_COUNT - 1; role > 0; role--) { /* o before q: an alias comes after its target */
        bool per_layer = role_get(role)->per_layer;
        int32_t experts = (int32_t)role_instances(&x->a, role);
        for (uint32_t part = 0; part <= PART_BIAS; part += PART_BIAS)
            for (int32_t l = per_layer ? 0 : -1; ok && l < (per_layer ? (int32_t)x->a.n_layers : 0); l++)
                for (int32_t e = experts ? 0 : -1; ok && e < experts; e++) ok = model_kit_add(x, w, role, part, l, e, axis_of, err);
    }
    return ok;
}

static inline bool model_kit_kv(const model_kit *x, ct_writer *w, tess_error *err)
{
    static const char *const merges[] = {"a b", "ab c", "Ġ a", NULL};
    static const char chat[] = "{% for m in messages %}{{ m['role'] ~ ':' ~ m['content'] }}{% endfor %}";
    static const int32_t eos[] = {3, 5};
    kvs_builder *b = NULL;
    void *data = NULL;
    size_t len;
    buf o;
    buf_init(&o, &mem_libc);
    put_byte_level(&o, merges, NULL, "", "\"added_tokens\":[{\"id\":260,\"content\":\"<a>\",\"special\":true}]," BYTE_LEVEL_REST);
    bool ok = kvs_builder_open(&mem_libc, &b, err) == TESS_OK;
    if (ok) {
        arch_put(&x->a, b);
        kvs_put_str(b, "chat.template", chat, strlen(chat));
        kvs_put_array(b, "gen.eos", KV_I32S, eos, 2);
        kvs_put_i64(b, "gen.bos", 7);
        kvs_put_f64(b, "gen.temperature", 0.5);
    }
    if (ok && !x->no_tokenizer) ok = hf_tokenizer_put(&mem_libc, o.data, o.len, NULL, 0, b, err) == TESS_OK;
    ok = ok && kvs_build(b, &data, &len, err) == TESS_OK;
    char *bpe = ok && x->tok_model ? memmem(data, len, "bpe", 3) : NULL;
    if (bpe) memcpy(bpe, x->tok_model, 3);
    ok = ok && ct_set_kv(w, data, len, err) == TESS_OK;
    kvs_builder_close(b);
    mem_free(&mem_libc, data);
    buf_free(&o);
    return ok;
}

static inline const ct_tensor *model_kit_find(const model_kit *x, const char *name, uint32_t *index)
{
    for (*index = 0; *index < x->n; ++*index)
        if (strcmp(x->names[*index], name) == 0) return &x->list[*index];
    return NULL;
}

/* False: err says why; the container's own rules refuse some twists. */
static inline bool model_kit_write(model_kit *x, const char *path, tess_error *err)
{
    ct_write_options o = {.kind = CT_KIND_MODEL, .tp = x->tp, .store = x->store, .force = true, .writer = "kit"};
    ct_writer *w = NULL;
    x->n = 0;
    bool ok = ct_writer_open(path, &o, &mem_libc, &w, err) == TESS_OK && model_kit_tensors(x, w, err) && model_kit_kv(x, w, err) &&
              ct_add_blob(w, "config.json", "{}", 2, err) == TESS_OK &&
              ct_write(w, NULL, model_kit_box, x, NULL, NULL, err) == TESS_OK;
    ct_writer_close(w);
    return ok;
}
#endif
