/*
 * family_plan.c - finds the weights of a model in a source and reads boxes of them. See family.h.
 *
 * The order of the plan: embedding, head, position embedding, final norm, then layer by layer; a weight before
 * its bias. An alias comes after the weight that it names.
 */
#include <math.h>
#include <stdio.h>

#include "family.h"

enum { NAME_SIZE = 256, TILE = 64, COMPARE_STEP = 1 << 15, CONVERT_STEP = 1 << 13 };

typedef struct {
    const name_rule *names;
    const char *prefix;  /* left out of every name; "" when the source has it */
    const source *s;
    arch *a;
    weight_plan *p;
    uint8_t *used;       /* one flag per tensor of the source */
    tess_error *err;
} planner;

/* ---- names ---- */

/* What names a weight. -1 = none. */
typedef struct { uint32_t role, part; int32_t layer, expert; } weight_key;

static void expand(const char *prefix, const name_rule *r, const weight_key *k, char *dst)
{
    const char *rule = r->name, *tail = k->part == PART_BIAS ? ".bias" : ".weight";
    size_t skip = strlen(prefix);
    if (skip && strncmp(rule, prefix, skip) == 0) rule += skip;
    if (r->flags & NAME_BARE) tail = k->part == PART_BIAS ? "_bias" : "";
    const char *d = strstr(rule, "%d"), *e = d ? strstr(d + 2, "%d") : NULL;
    if (e)
        snprintf(dst, NAME_SIZE, "%.*s%d%.*s%d%s%s", (int)(d - rule), rule, k->layer, (int)(e - d - 2), d + 2,
                 k->expert, e + 2, tail);
    else if (d) snprintf(dst, NAME_SIZE, "%.*s%d%s%s", (int)(d - rule), rule, k->layer, d + 2, tail);
    else snprintf(dst, NAME_SIZE, "%s%s", rule, tail);
}

/* Whether the rule holds rows of this role in a model of this kind. */
static bool rule_covers(const name_rule *r, const arch *a, uint32_t role)
{
    if ((r->flags & NAME_TWO_NORMS) && a->block_kind != BLOCK_PARALLEL2) return false;
    if ((r->flags & NAME_ONE_NORM) && a->block_kind == BLOCK_PARALLEL2) return false;
    switch (r->fuse) {
    case FUSE_QKV:
    case FUSE_QKV_GROUPS: return role == ROLE_Q || role == ROLE_K || role == ROLE_V;
    case FUSE_KV_B: return role == ROLE_K_B || role == ROLE_V_B;
    case FUSE_GATE_UP:
        return role == r->role || (r->role == ROLE_GATE ? role == ROLE_UP : role == ROLE_SH_UP);
    case FUSE_EXPERTS_GATE_UP: return role == ROLE_EXP_GATE || role == ROLE_EXP_UP;
    default: return r->role == role;
    }
}

/* The first rule of the role whose tensor exists; else the first rule of the role (for the message), with *src
 * = -1. */
static const name_rule *find_rule(const planner *x, const weight_key *k, char *name, int64_t *src)
{
    const name_rule *first = NULL;
    *src = -1;
    for (const name_rule *r = x->names; r->name; r++) {
        if (!rule_covers(r, x->a, k->role)) continue;
        expand(x->prefix, r, k, name);
        *src = source_find(x->s, name);
        if (*src >= 0) return r;
        if (!first) first = r;
    }
    if (first) expand(x->prefix, first, k, name);
    return first;
}

/* ---- one weight ---- */

/* Rows of one expert (columns, when transposed) in a tensor of all experts, and where they lie. rows x cols: the
 * expert's own matrix; a vector has one column. */
static uint64_t expert_rows(const name_rule *r, const weight_key *k, uint64_t rows, uint64_t cols, row_map *map)
{
    uint64_t both = r->fuse == FUSE_EXPERTS_GATE_UP ? 2 * rows : rows, e = (uint64_t)k->expert;
    bool up = k->role == ROLE_EXP_UP && r->fuse == FUSE_EXPERTS_GATE_UP;
    if (r->flags & NAME_ALTERNATE) *map = (row_map){.base = up, .block = 1, .stride = 2};
    else *map = (row_map){.base = up ? rows : 0, .block = rows, .stride = rows};
    if ((r->flags & NAME_T) && cols) map->k_base = e * cols;
    else map->base += e * both;
    return both;
}

/* Rows of the source tensor of a fused rule, and where those of `role` lie in it. */
static uint64_t fused_rows(const arch *a, const name_rule *r, uint32_t role, uint64_t rows, row_map *map)
{
    uint64_t hd = a->head_dim, group = a->n_heads / a->n_kv_heads, q = (uint64_t)a->n_heads * hd,
             k = (uint64_t)a->n_kv_heads * hd;
    *map = (row_map){.block = rows, .stride = rows};
    switch (r->fuse) {
    case FUSE_QKV:
        map->base = role == ROLE_Q ? 0 : role == ROLE_K ? q : q + k;
        return q + 2 * k;
    case FUSE_QKV_GROUPS:
        map->base = role == ROLE_Q ? 0 : role == ROLE_K ? group * hd : (group + 1) * hd;
        map->block = role == ROLE_Q ? group * hd : hd;
        map->stride = (group + 2) * hd;
        return q + 2 * k;
    case FUSE_KV_B: {
        uint64_t nope = a->head_dim - a->rope_dims, both = nope + a->v_head_dim;
        *map = role == ROLE_V_B ? (row_map){.base = nope, .block = a->v_head_dim, .stride = both}
                                : (row_map){.block = rows, .stride = rows, .transposed = true, .turn = a->kv_lora, .turn_stride = both};
        return a->n_heads * both;
    }
    case FUSE_GATE_UP:
        map->base = role == ROLE_UP || role == ROLE_SH_UP ? rows : 0;
        return 2 * rows;
    default:
        return rows;
    }
}

/* stacked: the first dimension when there is one more, else 0. cols 0: a vector. A matrix of one row may be a vector. */
static tess_status check_source(const planner *x, const src_tensor *t, uint64_t stacked, uint64_t rows,
                                uint64_t cols, tess_error *err)
{
    char want[96], got[128] = "", before[32] = "", after[32] = "";
    if (stacked) snprintf(before, sizeof before, "%llu x ", (unsigned long long)stacked);
    if (cols) snprintf(after, sizeof after, " x %llu", (unsigned long long)cols);
    if (rows == 1 && cols && !stacked && t->rank == 1) snprintf(want, sizeof want, "%llu", (unsigned long long)cols);
    else snprintf(want, sizeof want, "%s%llu%s", before, (unsigned long long)rows, after);
    for (uint32_t i = !cols && !stacked && t->rank == 2 && t->shape[0] == 1; i < t->rank; i++) { /* a vector may be a row */
        size_t n = strlen(got);
        snprintf(got + n, sizeof got - n, "%s%llu", n ? " x " : "", (unsigned long long)t->shape[i]);
    }
    if (strcmp(want, got) != 0)
        return ERR(err, TESS_E_FORMAT, "%s: tensor \"%s\" has shape %s, the configuration demands %s",
                   x->s->paths[t->file], t->name, t->rank ? got : "scalar", want);
    if (t->dtype == SRC_OTHER)
        return ERR(err, TESS_E_UNSUPPORTED, "%s: tensor \"%s\" has type %s; supported are F32, F16, BF16",
                   x->s->paths[t->file], t->name, t->type);
    return TESS_OK;
}

static tess_status add_weight(planner *x, const weight_key *k, weight **out)
{
    weight_plan *p = x->p;
    if (!mem_grow(p->m, &p->w, &p->cap, p->n + 1u, sizeof *p->w))
        return ERR(x->err, TESS_E_NOMEM, "no memory for the list of weights");
    weight *w = &p->w[p->n++];
    *w = (weight){.role = k->role, .part = k->part, .layer = k->layer, .expert = k->expert, .alias = -1};
    role_shape(x->a, k->role, k->part, k->layer, &w->rows, &w->cols);
    role_name(k->role, k->part, k->layer, k->expert, w->name, sizeof w->name);
    *out = w;
    return TESS_OK;
}

/* Adds the weight of this role if the model has one. `src` >= 0: taken from that tensor, which a rule without
 * fusing names. */
static tess_status plan_weight(planner *x, const weight_key *k)
{
    char name[NAME_SIZE];
    uint64_t rows, cols, src_rows;
    int64_t src;
    weight *w;
    if (!role_shape(x->a, k->role, k->part, k->layer, &rows, &cols)) return TESS_OK;
    const name_rule *r = find_rule(x, k, name, &src);
    if (!r) return ERR(x->err, TESS_E_UNSUPPORTED, "this family has no name for %s", role_get(k->role)->name);
    if (src < 0) return ERR(x->err, TESS_E_FORMAT, "%s: tensor \"%s\" is missing", x->s->paths[0], name);
    TRY(add_weight(x, k, &w));
    const src_tensor *t = &x->s->tensors[src];
    bool stacked = r->fuse == FUSE_EXPERTS || r->fuse == FUSE_EXPERTS_GATE_UP;
    src_rows = stacked ? expert_rows(r, k, rows, cols, &w->map) : fused_rows(x->a, r, k->role, rows, &w->map);
    w->map.src = (uint32_t)src;
    if (r->fuse != FUSE_KV_B) w->map.transposed = (r->flags & NAME_T) && cols;
    w->map.pairs = (r->flags & NAME_ROPE_PAIRS) ? x->a->head_dim : 0;
    x->used[src] = 1;
    uint64_t first = stacked ? role_instances(x->a, k->role) : 0;
    if ((r->flags & NAME_SKIP2) && cols) {
        w->map.base += 2;
        src_rows += 2;
    }
    if (r->fuse == FUSE_HEADS) return check_source(x, t, x->a->n_heads, rows / x->a->n_heads, cols, x->err);
    if (r->fuse == FUSE_KV_B) return check_source(x, t, 0, src_rows, x->a->kv_lora, x->err);
    if (w->map.transposed) return check_source(x, t, first, cols, src_rows, x->err);
    return check_source(x, t, first, src_rows, cols, x->err);
}

/* The same for every expert or head, where the role has a tensor for each. */
static tess_status plan_role(planner *x, uint32_t role, uint32_t part, int32_t layer)
{
    weight_key k = {role, part, layer, -1};
    if (!role_is_numbered(role)) return plan_weight(x, &k);
    int32_t n = (int32_t)role_instances(x->a, role);
    for (k.expert = 0; k.expert < n; k.expert++) TRY(plan_weight(x, &k));
    return TESS_OK;
}

/* ---- head and embedding ---- */

/* Whether two matrices of one source hold the same values in the same type. */
static tess_status same_data(const source *s, uint32_t i, uint32_t j, bool *same, tess_error *err)
{
    const src_tensor *a = &s->tensors[i], *b = &s->tensors[j];
    uint64_t rows, cols;
    uint8_t x[COMPARE_STEP], y[COMPARE_STEP];
    *same = false;
    if (a->dtype != b->dtype || a->nbytes != b->nbytes || a->rank != b->rank ||
        memcmp(a->shape, b->shape, sizeof a->shape) != 0)
        return TESS_OK;
    source_dims(a, &rows, &cols);
    if (strcmp(s->kind, "tess") == 0 || a->dtype == SRC_COMPUTED) return TESS_OK; /* aliases of a .tess are kept as they are */
    for (uint64_t at = 0; at < a->nbytes; at += COMPARE_STEP) {
        size_t n = (size_t)MIN((uint64_t)COMPARE_STEP, a->nbytes - at);
        TRY(os_pread(&s->files[a->file], x, n, a->off + at, s->paths[a->file], err));
        TRY(os_pread(&s->files[b->file], y, n, b->off + at, s->paths[b->file], err));
        if (memcmp(x, y, n) != 0) return TESS_OK;
    }
    *same = true;
    return TESS_OK;
}

static tess_status plan_alias(planner *x, uint32_t role, uint32_t of)
{
    weight *w;
    TRY(add_weight(x, &(weight_key){role, PART_DATA, -1, -1}, &w));
    w->alias = (int32_t)of;
    w->map = x->p->w[of].map;
    return TESS_OK;
}

/* tied: one matrix serves as both; a file that carries a different head unties it, as transformers does. A file
 * with only the head serves as both too. Not tied: both must be there. */
static tess_status plan_ends(planner *x, bool tied)
{
    char embed[NAME_SIZE], head[NAME_SIZE];
    int64_t e, h;
    bool same = false;
    find_rule(x, &(weight_key){ROLE_EMBED, PART_DATA, -1, -1}, embed, &e);
    find_rule(x, &(weight_key){ROLE_HEAD, PART_DATA, -1, -1}, head, &h);
    const char *file = x->s->paths[0];
    if (e < 0 && (h < 0 || !tied))
        return ERR(x->err, TESS_E_FORMAT, "%s: tensor \"%s\" is missing", file, embed);
    if (h < 0 && !tied)
        return ERR(x->err, TESS_E_FORMAT,
                   "%s: tensor \"%s\" is missing, and the configuration does not tie it to the embedding "
                   "(tie_word_embeddings)",
                   file, head);
    if (tied && e >= 0 && h >= 0) {
        TRY(same_data(x->s, (uint32_t)e, (uint32_t)h, &same, x->err));
        if (!same)
            mem_log(
                x->s->m, TESS_LOG_WARN,
                "%s: the configuration ties the output head, but \"%s\" differs from the embedding: it is used",
                file, head);
        x->used[h] = 1;
    }
    x->a->tied_head = tied && (e < 0 || h < 0 || same);
    if (e >= 0) TRY(plan_role(x, ROLE_EMBED, PART_DATA, -1));
    else {
        weight *w;
        uint64_t rows, cols;
        role_shape(x->a, ROLE_EMBED, PART_DATA, -1, &rows, &cols);
        TRY(check_source(x, &x->s->tensors[h], 0, rows, cols, x->err));
        TRY(add_weight(x, &(weight_key){ROLE_EMBED, PART_DATA, -1, -1}, &w));
        w->map = (row_map){.src = (uint32_t)h, .block = rows, .stride = rows};
        x->used[h] = 1;
    }
    TRY(x->a->tied_head ? plan_alias(x, ROLE_HEAD, 0) : plan_role(x, ROLE_HEAD, PART_DATA, -1));
    return plan_role(x, ROLE_HEAD, PART_BIAS, -1);
}

/* ---- all ---- */

/* Tensors that hold no weights: rotary tables and causal masks that old versions saved. */
static bool is_buffer(const char *name)
{
    static const char *const tails[] = {"rotary_emb.inv_freq", "rope_freqs.weight", "rope_factors_long.weight",
                                        "rope_factors_short.weight" /* read by gguf_config.c */,
                                        ".attn.bias",          ".attn.masked_bias",
                                        ".attention.bias",     ".attention.masked_bias"};
    size_t n = strlen(name);
    for (size_t i = 0; i < ARRAY_LEN(tails); i++) {
        size_t k = strlen(tails[i]);
        if (n >= k && strcmp(name + n - k, tails[i]) == 0) return true;
    }
    return false;
}

/* Tensors of a layer behind the last, which guesses further tokens ahead: the rule of ROLE_NONE says that it may be there. */
static bool is_extra_layer(const planner *x, const char *name)
{
    char start[NAME_SIZE];
    for (const name_rule *r = x->names; r->name; r++) {
        if (r->role != ROLE_NONE) continue;
        expand(x->prefix, r, &(weight_key){ROLE_NONE, PART_DATA, (int32_t)x->a->n_layers, -1}, start);
        if (strncmp(name, start, strlen(start)) == 0) return true;
    }
    return false;
}

static tess_status check_unused(const planner *x)
{
    const char *first = NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->s->n_tensors; i++) {
        if (x->used[i] || is_buffer(x->s->tensors[i].name) || is_extra_layer(x, x->s->tensors[i].name)) continue;
        if (n++ == 0) first = x->s->tensors[i].name;
    }
    if (n == 0) return TESS_OK;
    return ERR(x->err, TESS_E_UNSUPPORTED,
               "%s: %u tensors have no place in this model, the first is \"%s\"; the result would be wrong "
               "without them",
               x->s->paths[0], n, first);
}

/* Whether any tensor of the source begins with prefix. */
static bool has_prefix(const source *s, const char *prefix)
{
    size_t n = strlen(prefix);
    for (uint32_t i = 0; i < s->n_tensors; i++)
        if (strncmp(s->tensors[i].name, prefix, n) == 0) return true;
    return false;
}

static tess_status plan_all(planner *x, bool tied)
{
    TRY(plan_ends(x, tied));
    for (uint32_t role = 1; role < ROLE_COUNT; role++) {
        if (!role_get(role) || role_get(role)->per_layer || role == ROLE_EMBED || role == ROLE_HEAD) continue;
        TRY(plan_role(x, role, PART_DATA, -1));
        TRY(plan_role(x, role, PART_BIAS, -1));
    }
    for (int32_t layer = 0; layer < (int32_t)x->a->n_layers; layer++)
        for (uint32_t role = 1; role < ROLE_COUNT; role++) {
            if (!role_get(role) || !role_get(role)->per_layer) continue;
            TRY(plan_role(x, role, PART_DATA, layer));
            TRY(plan_role(x, role, PART_BIAS, layer));
        }
    return check_unused(x);
}

tess_status family_plan(const name_rule *names, const char *prefix, const source *s, arch *a, bool tied,
                        const mem *m, weight_plan *out, tess_error *err)
{
    *out = (weight_plan){.m = m};
    planner x = {
        .names = names, .prefix = has_prefix(s, prefix) ? "" : prefix, .s = s, .a = a, .p = out, .err = err};
    x.used = mem_zalloc(m, s->n_tensors + 1u);
    if (!x.used) return ERR(err, TESS_E_NOMEM, "no memory for %u tensors", s->n_tensors);
    tess_status st = plan_all(&x, tied);
    mem_free(m, x.used);
    if (st < 0) family_plan_close(out);
    return st;
}

void family_plan_close(weight_plan *p)
{
    mem_free(p->m, p->w);
    p->w = NULL;
    p->n = 0;
    p->cap = 0;
}

/* ---- reading ---- */

uint64_t family_map_row(const row_map *m, uint64_t r, uint64_t *run)
{
    *run = m->pairs ? 1 : m->block - r % m->block;
    if (m->pairs) {
        uint64_t half = m->pairs / 2, i = r % m->pairs;
        r = r - i + i % half * 2 + i / half;
    }
    return m->base + r / m->block * m->stride + r % m->block;
}

/* A box in f32 (dtype DT_F32) or in the source's own type (raw). esize: bytes of an element at dst. */
typedef struct { const source *s; const row_map *map; bool raw; uint32_t esize; tess_error *err; } reader;

static tess_status read_rows(const reader *x, uint64_t row0, uint64_t n_rows, uint64_t k0, uint64_t n_k,
                             uint8_t *dst)
{
    for (uint64_t r = 0, run; r < n_rows; r += run) {
        uint64_t at = family_map_row(x->map, row0 + r, &run);
        run = MIN(run, n_rows - r);
        TRY(x->s->read(x->s, x->map->src, at, run, k0, n_k, x->raw, dst + r * n_k * x->esize, x->err));
    }
    return TESS_OK;
}

/* Elements of a vector, which may be a part of a tensor of several rows. */
static tess_status read_vector(const reader *x, uint64_t e0, uint64_t n, uint8_t *dst)
{
    uint64_t rows, cols;
    source_dims(&x->s->tensors[x->map->src], &rows, &cols);
    for (uint64_t e = 0, run; e < n; e += run) {
        uint64_t at = family_map_row(x->map, e0 + e, &run);
        run = MIN(MIN(run, n - e), cols - at % cols);
        TRY(x->s->read(x->s, x->map->src, at / cols, 1, at % cols, run, x->raw, dst + e * x->esize, x->err));
    }
    return TESS_OK;
}

/* The source holds columns as rows: tiles of at most 64 x 64 are read and turned. */
static tess_status read_transposed(const reader *x, uint64_t row0, uint64_t n_rows, uint64_t k0, uint64_t n_k,
                                   uint8_t *dst)
{
    uint8_t tile[TILE * TILE * 4];
    for (uint64_t r = 0, run; r < n_rows; r += run) {
        uint64_t at = family_map_row(x->map, row0 + r, &run);
        run = MIN(MIN(run, n_rows - r), (uint64_t)TILE);
        uint64_t k_base = x->map->k_base;
        if (x->map->turn) { /* a row of head h is a column of the h-th of the matrices that lie one below the other */
            k_base = at / x->map->turn * x->map->turn_stride;
            at %= x->map->turn;
            run = MIN(run, x->map->turn - at);
        }
        for (uint64_t k = 0; k < n_k; k += TILE) {
            uint64_t nk = MIN(n_k - k, (uint64_t)TILE);
            TRY(x->s->read(x->s, x->map->src, k_base + k0 + k, nk, at, run, x->raw, tile, x->err));
            for (uint64_t i = 0; i < run; i++)
                for (uint64_t j = 0; j < nk; j++)
                    memcpy(dst + ((r + i) * n_k + k + j) * x->esize, tile + (j * run + i) * x->esize, x->esize);
        }
    }
    return TESS_OK;
}

static tess_status read_box(const reader *x, bool vector, uint64_t row0, uint64_t n_rows, uint64_t k0,
                            uint64_t n_k, void *dst)
{
    if (vector) return read_vector(x, row0 + k0, n_rows * n_k, dst);
    if (x->map->transposed) return read_transposed(x, row0, n_rows, k0, n_k, dst);
    return read_rows(x, row0, n_rows, k0, n_k, dst);
}

tess_status family_check_fits(const source *s, const weight *w, uint32_t dtype, const float *v, uint64_t n,
                              tess_error *err)
{
    float limit = dtype == DT_F16 ? 65520.0f : 0x1.ffp127f; /* the least magnitudes that round up to infinity */
    for (uint64_t i = 0; i < n; i++)
        if (fabsf(v[i]) >= limit && isfinite(v[i]))
            return ERR(err, TESS_E_UNSUPPORTED, "%s: tensor \"%s\" holds %g, too large for %s; use --type f32%s",
                       s->paths[0], s->tensors[w->map.src].name, (double)v[i], dtype_get(dtype)->name,
                       dtype == DT_F16 ? " or bf16" : "");
    return TESS_OK;
}

tess_status family_read(const source *s, const weight *w, uint32_t dtype, uint64_t row0, uint64_t n_rows,
                        uint64_t k0, uint64_t n_k, void *dst, tess_error *err)
{
    const dtype_info *d = dtype_get(dtype);
    if (!d || !d->is_float) return ERR(err, TESS_E_ARG, "family_read: type %u is not a float", dtype);
    bool raw = s->tensors[w->map.src].dtype == dtype;
    reader x = {s, &w->map, raw, raw ? d->block_bytes : 4, err};
    if (raw || dtype == DT_F32) return read_box(&x, w->cols == 0, row0, n_rows, k0, n_k, dst);
    /* Other types go through f32, in steps of whole rows or of parts of a long row. */
    float step[CONVERT_STEP];
    uint64_t nk = MIN(n_k, (uint64_t)CONVERT_STEP), nr = nk ? CONVERT_STEP / nk : 1;
    for (uint64_t r = 0; r < n_rows; r += nr)
        for (uint64_t k = 0; k < n_k; k += nk) {
            uint64_t rows = MIN(nr, n_rows - r), cols = MIN(nk, n_k - k);
            TRY(read_box(&x, w->cols == 0, row0 + r, rows, k0 + k, cols, step));
            TRY(family_check_fits(s, w, dtype, step, rows * cols, err));
            dtype_from_f32(dtype, step, (uint8_t *)dst + (r * n_k + k) * d->block_bytes, rows * cols);
        }
    return TESS_OK;
}

tess_status family_read_blocks(const source *s, const weight *w, uint64_t row0, uint64_t n_rows, uint64_t k0,
                               uint64_t n_k, size_t row_bytes, uint8_t *dst, tess_error *err)
{
    for (uint64_t r = 0, run; r < n_rows; r += run) {
        uint64_t at = family_map_row(&w->map, row0 + r, &run);
        run = MIN(run, n_rows - r);
        TRY(s->read(s, w->map.src, at, run, k0, n_k, true, dst + r * row_bytes, err));
    }
    return TESS_OK;
}

/* ---- the way back ---- */

static int64_t find_weight(const weight_plan *p, uint32_t role, uint32_t part, int32_t layer, int32_t expert)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->w[i].role == role && p->w[i].part == part && p->w[i].layer == layer &&
            p->w[i].expert == expert && p->w[i].alias < 0)
            return i;
    return -1;
}

bool family_stored(const name_rule *r, const arch *a, const weight_plan *p, uint32_t part, int32_t layer,
                   int32_t expert, family_tensor *t)
{
    uint64_t all = 0, cols = 0;
    *t = (family_tensor){0};
    if (r->flags & (NAME_READ | NAME_SKIP2)) return false;
    for (uint32_t role = 1; role < ROLE_COUNT; role++) {
        int64_t w = rule_covers(r, a, role) ? find_weight(p, role, part, layer, expert) : -1;
        if (w < 0) continue;
        cols = p->w[w].cols;
        t->from[t->n].weight = (uint32_t)w;
        all = fused_rows(a, r, role, p->w[w].rows, &t->from[t->n++].map);
    }
    if (t->n == 0) return false;
    expand("", r, &(weight_key){0, part, layer, expert}, t->name);
    t->transposed = (r->flags & NAME_T) && cols;
    t->rank = cols ? 2 : 1;
    t->shape[0] = t->transposed ? cols : all;
    t->shape[1] = t->transposed ? all : cols;
    return true;
}
