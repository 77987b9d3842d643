/* lora.c - see lora.h. */
#include "lora.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>

#include "hf_config_priv.h"

enum { MAX_CONFIG = 16 << 20, MAX_RANK = 1 << 14 };

/* What an adapter adds to one weight. turned: element (r, k) is A's column and B's row the other way round. */
typedef struct { row_map map; uint32_t a, b, rank; float scale; bool turned; } delta;
struct lora {
    const mem *m;
    source *s;
    delta *d;
    uint32_t n;
    size_t cap;
    uint32_t *of;         /* of each weight: 1 + index in d, 0 = none */
    uint32_t n_weights;
};

typedef struct {
    lora *l;
    const char *file;     /* adapter_config.json */
    const json_t *alpha_pattern;
    bool any_rank, rslora;
    uint32_t r;
    double alpha, scale;
    uint8_t *used;        /* tensors of the adapter */
    tess_error *err;
} opener;

/* ---- adapter_config.json ---- */

static bool is_off(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) || (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

/* Options that say how the adapter was trained, or are read elsewhere here. Any other that is on may change the result. */
static void refuse_options(cfg *c)
{
    static const char *const known[] = {
        "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "eva_config", "exclude_modules", "fan_in_fan_out",
        "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout",
        "lora_ga_config", "megatron_core", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern", "revision", "runtime_config",
        "target_modules", "task_type", "use_rslora", "velora_config", "ensure_weight_tying"};
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)c->root, key, v) {
        bool ok = is_off(v);
        for (size_t i = 0; i < ARRAY_LEN(known) && !ok; i++) ok = strcmp(known[i], key) == 0;
        if (!ok) cfg_fail(c, TESS_E_UNSUPPORTED, "%s: option \"%.60s\" of the adapter is not supported", c->file, key);
    }
}

/* Initializations that take a part of the base weights away fit another base than the one that is published. */
static void check_init(cfg *c)
{
    static const char *const harmless[] = {"gaussian", "eva", "orthogonal"};
    const json_t *v = cfg_get(c->root, "init_lora_weights");
    if (!v || json_is_boolean(v)) return;
    const char *s = cfg_str(c, c->root, "init_lora_weights", "");
    for (size_t i = 0; i < ARRAY_LEN(harmless); i++)
        if (strcmp(s, harmless[i]) == 0) return;
    cfg_fail(c, TESS_E_UNSUPPORTED,
             "%s: init_lora_weights \"%.40s\" changes the base weights; save the adapter as plain LoRA with PEFT", c->file, s);
}

static void read_config(cfg *c, opener *x)
{
    const char *type = cfg_str(c, c->root, "peft_type", "LORA"), *bias = cfg_str(c, c->root, "bias", "none");
    if (strcmp(type, "LORA") != 0) cfg_fail(c, TESS_E_UNSUPPORTED, "%s: peft_type \"%.40s\" is not supported, only LORA", c->file, type);
    if (strcmp(bias, "none") != 0) cfg_fail(c, TESS_E_UNSUPPORTED, "%s: bias \"%.40s\" is not supported, only none", c->file, bias);
    refuse_options(c);
    check_init(c);
    x->r = cfg_u32(c, "r", 8, false);
    x->alpha = cfg_f64(c, c->root, "lora_alpha", 8);
    x->rslora = cfg_bool(c, "use_rslora", false);
    x->any_rank = !is_off(cfg_get(c->root, "rank_pattern"));
    x->alpha_pattern = cfg_get(c->root, "alpha_pattern");
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)x->alpha_pattern, key, v) {
        bool plain = json_is_number(v);
        for (const char *p = key; *p; p++) plain = plain && (isalnum((unsigned char)*p) || *p == '_' || *p == '.');
        if (!plain)
            cfg_fail(c, TESS_E_UNSUPPORTED, "%s: alpha_pattern: \"%.60s\" is not a module name with a number", c->file, key);
    }
}

/* alpha of a module: of the first pattern that its name ends in. */
static double alpha_of(const opener *x, const char *module, size_t len)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)x->alpha_pattern, key, v) {
        size_t k = strlen(key);
        if (len >= k && memcmp(module + len - k, key, k) == 0 && (len == k || module[len - k - 1] == '.')) return json_number_value(v);
    }
    return x->alpha;
}

/* ---- weights ---- */

static int64_t find_part(const opener *x, const char *module, size_t len, const char *tail)
{
    char name[320];
    snprintf(name, sizeof name, "base_model.model.%.*s.%s", (int)len, module, tail);
    return source_find(x->l->s, name);
}

static tess_status check_part(const opener *x, uint32_t i, uint64_t rows, uint64_t cols)
{
    const source *s = x->l->s;
    const src_tensor *t = &s->tensors[i];
    if (t->rank != 2 || t->shape[0] != rows || t->shape[1] != cols)
        return ERR(x->err, TESS_E_FORMAT, "%s: tensor \"%s\" does not have the shape %llu x %llu that the model demands", s->paths[t->file],
                   t->name, (unsigned long long)rows, (unsigned long long)cols);
    if (t->dtype == SRC_OTHER)
        return ERR(x->err, TESS_E_UNSUPPORTED, "%s: tensor \"%s\" has type %s; supported are F32, F16, BF16", s->paths[t->file],
                   t->name, t->type);
    return TESS_OK;
}

/* The parts of one module, if the adapter has them, for all weights that are stored in its tensor. */
static tess_status add_module(opener *x, const family_tensor *t)
{
    lora *l = x->l;
    size_t len = strlen(t->name), tail = strlen(".weight");
    if (len <= tail || strcmp(t->name + len - tail, ".weight") != 0 || t->rank != 2) return TESS_OK;
    len -= tail;
    int64_t a = find_part(x, t->name, len, "lora_A.weight"), b = find_part(x, t->name, len, "lora_B.weight");
    bool embedding = a < 0 && b < 0;
    if (embedding) {
        a = find_part(x, t->name, len, "lora_embedding_A");
        b = find_part(x, t->name, len, "lora_embedding_B");
    }
    if (a < 0 && b < 0) return TESS_OK;
    if (a < 0 || b < 0)
        return ERR(x->err, TESS_E_FORMAT, "%s: \"%.*s\" has only one of lora_A and lora_B", l->s->paths[0], (int)len, t->name);
    uint64_t out = t->shape[t->transposed], in = t->shape[!t->transposed], rank = l->s->tensors[a].shape[0];
    if (!x->any_rank) rank = x->r;
    if (rank == 0 || rank > MAX_RANK)
        return ERR(x->err, TESS_E_FORMAT, "%s: rank %llu of \"%.*s\" is not in 1 to %d", x->file, (unsigned long long)rank,
                   (int)len, t->name, MAX_RANK);
    TRY(check_part(x, (uint32_t)a, rank, embedding ? out : in));
    TRY(check_part(x, (uint32_t)b, embedding ? in : out, rank));
    x->used[a] = x->used[b] = 1;
    double scale = x->scale * alpha_of(x, t->name, len) / (x->rslora ? sqrt((double)rank) : (double)rank);
    if (!isfinite((float)scale)) return ERR(x->err, TESS_E_FORMAT, "%s: the scale of \"%.*s\" is not finite", x->file, (int)len, t->name);
    for (uint32_t i = 0; i < t->n; i++) {
        if (!mem_grow(l->m, &l->d, &l->cap, l->n + 1u, sizeof *l->d)) return ERR(x->err, TESS_E_NOMEM, "%s: no memory", x->file);
        l->d[l->n] = (delta){t->from[i].map, (uint32_t)a, (uint32_t)b, (uint32_t)rank, (float)scale, embedding || t->from[i].map.turn};
        l->of[t->from[i].weight] = ++l->n;
    }
    return TESS_OK;
}

static tess_status add_modules(opener *x, const family *f, const arch *a, const weight_plan *p)
{
    family_tensor t;
    for (const name_rule *r = f->names; r->name; r++) {
        const char *d = strstr(r->name, "%d");
        bool each = d && strstr(d + 2, "%d");
        int32_t layers = d ? (int32_t)a->n_layers : 1, n = each ? (int32_t)role_instances(a, r->role) : 1;
        for (int32_t i = 0; i < layers; i++)
            for (int32_t e = 0; e < n; e++)
                if (family_stored(r, a, p, PART_DATA, d ? i : -1, each ? e : -1, &t)) TRY(add_module(x, &t));
    }
    const source *s = x->l->s;
    for (uint32_t i = 0; i < s->n_tensors; i++)
        if (!x->used[i])
            return ERR(x->err, TESS_E_UNSUPPORTED, "%s: tensor \"%s\" has no place in this model%s", s->paths[0], s->tensors[i].name,
                       a->tied_head && strstr(s->tensors[i].name, "lm_head") ? ", whose output head is tied to the embedding" : "");
    if (x->l->n == 0) return ERR(x->err, TESS_E_FORMAT, "%s: holds no tensors", s->paths[0]);
    return TESS_OK;
}

/* ---- opening ---- */

static tess_status open_weights(lora *l, const char *dir, tess_error *err)
{
    char path[PATH_MAX], pickle[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir) >= sizeof path)
        return ERR(err, TESS_E_ARG, "%.200s...: path is too long", dir);
    snprintf(pickle, sizeof pickle, "%s/adapter_model.bin", dir);
    if (!os_exists(path) && os_exists(pickle))
        return ERR(err, TESS_E_UNSUPPORTED, "%s: pickle files can run code and are not read; save the adapter as safetensors", pickle);
    return safetensors_open(path, l->m, &l->s, err);
}

tess_status lora_open(const char *dir, double scale, const family *f, const arch *a, const weight_plan *p, const mem *m, lora **out,
                      tess_error *err)
{
    char file[PATH_MAX], *text = NULL;
    size_t len;
    json_t *root = NULL;
    tess_status st;
    opener x = {.file = file, .scale = scale, .err = err};
    lora *l = x.l = mem_zalloc(m, sizeof *l);
    *out = NULL;
    if (!l) return ERR(err, TESS_E_NOMEM, "%s: no memory", dir);
    l->m = m;
    l->n_weights = p->n;
    if ((size_t)snprintf(file, sizeof file, "%s/adapter_config.json", dir) >= sizeof file) {
        st = ERR(err, TESS_E_ARG, "%.200s...: path is too long", dir);
        goto fail;
    }
    if ((st = os_read_whole(file, MAX_CONFIG, m, &text, &len, err)) < 0) goto fail;
    if ((st = jsonr_parse_object(text, len, 0, file, &root, err)) < 0) goto fail;
    cfg c = {root, file, TESS_OK, err};
    read_config(&c, &x);
    if ((st = c.st) < 0 || (st = open_weights(l, dir, err)) < 0) goto fail;
    l->of = mem_calloc(m, p->n + 1u, sizeof *l->of);
    x.used = mem_zalloc(m, l->s->n_tensors + 1u);
    st = l->of && x.used ? add_modules(&x, f, a, p) : ERR(err, TESS_E_NOMEM, "%s: no memory", dir);
    if (st < 0) goto fail;
    *out = l;
    l = NULL;
fail:
    mem_free(m, x.used);
    mem_free(m, text);
    json_decref(root);
    lora_close(l);
    return st;
}

void lora_close(lora *l)
{
    if (!l) return;
    source_close(l->s);
    mem_free(l->m, l->d);
    mem_free(l->m, l->of);
    mem_free(l->m, l);
}

bool lora_touches(const lora *l, uint32_t index) { return index < l->n_weights && l->of[index] != 0; }

/* ---- adding ---- */

/* dst[k] += scale * sum of b[j] * a[j][k]; sum has room for n_k. */
static void add_row(const delta *d, const float *b, const float *a, uint64_t n_k, float *restrict sum, float *restrict dst)
{
    memset(sum, 0, n_k * sizeof *sum);
    for (uint32_t j = 0; j < d->rank; j++) {
        const float x = b[j], *restrict y = a + j * n_k;
        for (uint64_t k = 0; k < n_k; k++) sum[k] += x * y[k];
    }
    for (uint64_t k = 0; k < n_k; k++) dst[k] += d->scale * sum[k];
}

/* Row `at` of the module: A as it is, one row of B. */
static tess_status straight_row(const lora *l, const delta *d, uint64_t at, uint64_t n_k, const float *a, float *b, float *sum, float *dst,
                                tess_error *err)
{
    TRY(l->s->read(l->s, d->b, at, 1, 0, d->rank, false, b, err));
    add_row(d, b, a, n_k, sum, dst);
    return TESS_OK;
}

/* Turned: column `at` of A, and rows of B that a holds as rank x n_k. */
static tess_status turned_row(const lora *l, const delta *d, uint64_t at, uint64_t n_k, const float *a, float *b, float *sum, float *dst,
                              tess_error *err)
{
    TRY(l->s->read(l->s, d->a, 0, d->rank, at, 1, false, b, err));
    add_row(d, b, a, n_k, sum, dst);
    return TESS_OK;
}

/* Rows [row, row + n_k) of B, turned to rank x n_k. */
static tess_status read_turned(const lora *l, const delta *d, uint64_t row, uint64_t n_k, float *b, float *a, tess_error *err)
{
    for (uint64_t k = 0; k < n_k; k++) {
        TRY(l->s->read(l->s, d->b, row + k, 1, 0, d->rank, false, b, err));
        for (uint32_t j = 0; j < d->rank; j++) a[j * n_k + k] = b[j];
    }
    return TESS_OK;
}

tess_status lora_add(const lora *l, uint32_t index, uint64_t row0, uint64_t n_rows, uint64_t k0, uint64_t n_k, float *dst,
                     tess_error *err)
{
    if (!lora_touches(l, index)) return TESS_OK;
    const delta *d = &l->d[l->of[index] - 1];
    size_t bytes;
    uint64_t run, base = UINT64_MAX;
    float *a = size_mul3(n_k + 1, d->rank + 1u, sizeof *a, &bytes) ? mem_alloc(l->m, bytes) : NULL;
    if (!a) return ERR(err, TESS_E_NOMEM, "%s: no memory for %u rows of the adapter", l->s->paths[0], d->rank);
    float *sum = a + n_k * d->rank, *b = sum + n_k;
    tess_status st = d->turned ? TESS_OK : l->s->read(l->s, d->a, 0, d->rank, k0, n_k, false, a, err);
    for (uint64_t r = 0; r < n_rows && st == TESS_OK; r++) {
        uint64_t at = family_map_row(&d->map, row0 + r, &run), from = k0;
        if (d->map.turn) {
            from += at / d->map.turn * d->map.turn_stride;
            at %= d->map.turn;
        }
        if (d->turned && from != base) st = read_turned(l, d, base = from, n_k, b, a, err);
        if (st == TESS_OK)
            st = d->turned ? turned_row(l, d, at, n_k, a, b, sum, dst + r * n_k, err)
                           : straight_row(l, d, at, n_k, a, b, sum, dst + r * n_k, err);
    }
    mem_free(l->m, a);
    return st < 0 ? st : source_unchanged(l->s, err);
}
