/*
 * packed.c - finds the quantized matrices of a checkpoint and lays a source of their values over it. See packed.h; reading
 * is in packed_read.c.
 *
 * What a matrix is made of is told by the names and types of its parts; the number of bits, and groups, by their
 * shapes where these determine them, because some writers quantize single layers otherwise than config.json says.
 * Every shape is checked against the others before anything is read.
 */
#include <stdio.h>

#include "packed_priv.h"

enum { NAME_SIZE = 320 };

typedef struct {
    const packed_scheme *scheme;
    source *base, *s;
    packed_impl *p;
    uint8_t *used;        /* parts that belong to a matrix: one flag per tensor of the base */
    uint32_t n_left_out;  /* scales of activations */
    tess_error *err;
} finder;

static const char *file_of(const finder *f, uint32_t i) { return f->base->paths[f->base->tensors[i].file]; }
static bool is_type(const src_tensor *t, const char *type) { return strcmp(t->type, type) == 0; }

/* The part `stem` + tail. -1: none. */
static int64_t part(const finder *f, const char *stem, size_t stem_len, const char *tail)
{
    char name[NAME_SIZE];
    if ((size_t)snprintf(name, sizeof name, "%.*s%s", (int)stem_len, stem, tail) >= sizeof name) return -1;
    int64_t i = source_find(f->base, name);
    if (i >= 0) f->used[i] = 1;
    return i;
}

static tess_status part_missing(const finder *f, uint32_t codes, size_t stem, const char *tail)
{
    const char *name = f->base->tensors[codes].name;
    return ERR(f->err, TESS_E_FORMAT, "%s: tensor \"%.*s%s\" is missing, which \"%s\" needs", file_of(f, codes), (int)stem, name, tail,
               name);
}

/* Part i has type and shape a x b (b 0: a vector of a). */
static tess_status want(const finder *f, int64_t i, const char *type, uint64_t a, uint64_t b)
{
    const src_tensor *t = &f->base->tensors[i];
    bool ok = b ? t->rank == 2 && t->shape[0] == a && t->shape[1] == b : t->rank == 1 && t->shape[0] == a;
    if (ok && (!type || is_type(t, type))) return TESS_OK;
    char shape[64];
    snprintf(shape, sizeof shape, b ? "%llu x %llu" : "%llu", (unsigned long long)a, (unsigned long long)b);
    return ERR(f->err, TESS_E_FORMAT, "%s: tensor \"%s\" of type %s does not fit the rest of its matrix, which demands %s of shape %s",
               file_of(f, (uint32_t)i), t->name, t->type, type ? type : "floats", shape);
}

static tess_status want_floats(const finder *f, int64_t i)
{
    const src_tensor *t = &f->base->tensors[i];
    if (t->dtype != SRC_OTHER || is_type(t, "F8_E8M0")) return TESS_OK;
    return ERR(f->err, TESS_E_UNSUPPORTED, "%s: tensor \"%s\" has type %s; scales must be F32, F16, BF16 or F8_E8M0",
               file_of(f, (uint32_t)i), t->name, t->type);
}

static tess_status bad_bits(const finder *f, uint32_t codes, uint64_t bits)
{
    return ERR(f->err, TESS_E_UNSUPPORTED, "%s: tensor \"%s\" has %llu bits a weight; supported are 2, 4 and 8", file_of(f, codes),
               f->base->tensors[codes].name, (unsigned long long)bits);
}

/* Adds the tensor of a matrix under `name`. like: what --type auto makes of it. */
static tess_status add(finder *f, const packed_tensor *q, const char *name, size_t name_len, const char *type, uint32_t like)
{
    packed_impl *p = f->p;
    const src_tensor *c = &f->base->tensors[q->codes];
    src_tensor t = {
        .dtype = SRC_COMPUTED, .like = like, .rank = 2, .shape = {q->rows, q->cols}, .file = c->file, .type = type, .ref = p->n};
    if (q->mat_rows != q->rows) {
        t.rank = 3;
        t.shape[0] = q->rows / q->mat_rows;
        t.shape[1] = q->mat_rows;
        t.shape[2] = q->cols;
    }
    if (q->rows == 0 || q->cols == 0 || q->rows > 1u << 30 || q->cols > 1u << 24)
        return ERR(f->err, TESS_E_FORMAT, "%s: tensor \"%s\" has an impossible shape", file_of(f, q->codes), c->name);
    if (!mem_grow(f->s->m, &p->t, &p->cap, p->n + 1u, sizeof *p->t)) return ERR(f->err, TESS_E_NOMEM, "no memory for the list of matrices");
    p->t[p->n++] = *q;
    return source_add_tensor(f->s, &t, name, name_len, f->err);
}

static tess_status add_weight(finder *f, const packed_tensor *q, size_t stem, const char *type, uint32_t like)
{
    char name[NAME_SIZE];
    snprintf(name, sizeof name, "%.*s.weight", (int)stem, f->base->tensors[q->codes].name);
    return add(f, q, name, strlen(name), type, like);
}

/* What --type auto makes of a matrix of so many bits. Codes of 4 bits fit q4 when every 32 columns share a scale; columns in
 * another order (desc_act) would be fitted anew, which costs 6 % (relative RMS) in q4 and 0.4 % in q8. */
static tess_status like_of(const finder *f, const packed_tensor *q, uint32_t *like)
{
    uint32_t group[1024], last = 0;
    *like = q->bits == 8 || (q->order < 0 && q->group % GROUP_K && q->group < q->cols) ? DT_Q8 : DT_Q4;
    for (uint64_t k = 0; q->order >= 0 && k < q->cols && *like == DT_Q4; k += ARRAY_LEN(group)) {
        uint64_t n = MIN((uint64_t)ARRAY_LEN(group), q->cols - k);
        TRY(packed_bytes(f->base, (uint32_t)q->order, k * 4, group, (size_t)n * 4, f->err));
        for (uint64_t i = 0; i < n; last = group[i++])
            if (i % GROUP_K && group[i] != last) *like = DT_Q8;
    }
    return TESS_OK;
}

/* ---- GPTQ and AWQ ---- */

/* Bits, of which `codes` times 32 make `all` codes. */
static bool derive_bits(uint64_t codes, uint64_t all, uint32_t *bits)
{
    if (all == 0 || codes > UINT64_MAX / 32 || codes * 32 % all) return false;
    uint64_t b = codes * 32 / all;
    *bits = b == 2 || b == 4 || b == 8 ? (uint32_t)b : 0;
    return *bits != 0;
}

static const char *const gptq_types[9] = {[2] = "GPTQ in 2 bits", [4] = "GPTQ in 4 bits", [8] = "GPTQ in 8 bits"};
static const char *const gptq_moved[5] = {
    [2] = "GPTQ in 2 bits with columns out of order", [4] = "GPTQ in 4 bits with columns out of order"};

static tess_status check_groups(const finder *f, packed_tensor *q)
{
    const src_tensor *s = &f->base->tensors[q->scales];
    TRY(want_floats(f, q->scales));
    if (s->rank != 2 || s->shape[0] == 0) return want(f, q->scales, NULL, 1, q->rows);
    q->n_groups = s->shape[0];
    q->group = f->scheme->group && f->scheme->group < q->cols ? f->scheme->group : q->cols;
    if (q->order < 0 && ceil_div(q->cols, q->group) != q->n_groups) q->group = ceil_div(q->cols, q->n_groups);
    if (q->order < 0 && ceil_div(q->cols, q->group) != q->n_groups) return want(f, q->scales, NULL, ceil_div(q->cols, q->group), q->rows);
    TRY(want(f, q->scales, NULL, q->n_groups, q->rows));
    return q->order < 0 ? TESS_OK : want(f, q->order, "I32", q->cols, 0);
}

static tess_status find_gptq(finder *f, uint32_t i, size_t stem)
{
    const src_tensor *c = &f->base->tensors[i];
    packed_tensor q = {.form = FORM_GPTQ, .bits = f->scheme->bits, .codes = i, .zeros_form = ZEROS_GPTQ,
                       .zero_rule = f->scheme->zero_rule, .scales_turned = true, .row_group = 1};
    q.scales = part(f, c->name, stem, ".scales");
    q.zeros = part(f, c->name, stem, ".qzeros");
    q.order = part(f, c->name, stem, ".g_idx");
    if (q.scales < 0 || q.zeros < 0) return part_missing(f, i, stem, q.scales < 0 ? ".scales" : ".qzeros");
    if (c->rank != 2) return want(f, i, "I32", 1, 1);
    if (q.order >= 0) {
        uint64_t cols = f->base->tensors[q.order].shape[0];
        if (!derive_bits(c->shape[0], cols, &q.bits)) return bad_bits(f, i, cols ? c->shape[0] * 32 / cols : 0);
    }
    uint32_t per = 32 / q.bits;
    q.rows = q.mat_rows = q.scale_rows = c->shape[1];
    q.cols = c->shape[0] <= UINT32_MAX ? c->shape[0] * per : 0;
    TRY(want(f, i, "I32", q.cols / per, q.rows));
    TRY(check_groups(f, &q));
    TRY(want(f, q.zeros, "I32", q.n_groups, q.rows / per));
    if (q.rows % per) return want(f, q.zeros, "I32", q.n_groups, ceil_div(q.rows, per));
    uint32_t like;
    TRY(like_of(f, &q, &like));
    return add_weight(f, &q, stem, like == DT_Q8 && q.bits < 8 ? gptq_moved[q.bits] : gptq_types[q.bits], like);
}

static tess_status find_awq(finder *f, uint32_t i, size_t stem)
{
    const src_tensor *c = &f->base->tensors[i];
    packed_tensor q = {
        .form = FORM_AWQ, .bits = 4, .codes = i, .zeros_form = ZEROS_AWQ, .scales_turned = true, .row_group = 1, .order = -1};
    q.scales = part(f, c->name, stem, ".scales");
    q.zeros = part(f, c->name, stem, ".qzeros");
    if (q.scales < 0 || q.zeros < 0) return part_missing(f, i, stem, q.scales < 0 ? ".scales" : ".qzeros");
    if (c->rank != 2 || c->shape[1] > UINT32_MAX) return want(f, i, "I32", 1, 1);
    q.rows = q.mat_rows = q.scale_rows = c->shape[1] * 8;
    q.cols = c->shape[0];
    TRY(want(f, i, "I32", q.cols, q.rows / 8));
    TRY(check_groups(f, &q));
    TRY(want(f, q.zeros, "I32", q.n_groups, q.rows / 8));
    uint32_t like;
    TRY(like_of(f, &q, &like));
    return add_weight(f, &q, stem, "AWQ in 4 bits", like);
}

/* ---- FP8 and int8 ---- */

/* How the scales of a matrix with codes in bytes are spread, from their shape. */
static tess_status spread_scales(const finder *f, packed_tensor *q)
{
    const src_tensor *s = &f->base->tensors[q->scales];
    const packed_scheme *p = f->scheme;
    uint64_t mats = q->rows / q->mat_rows, dim[2] = {1, 1}, n = 1;
    TRY(want_floats(f, q->scales));
    for (uint32_t i = 0; i < s->rank; i++) n *= s->shape[i]; /* the product was checked at open */
    uint32_t skip = q->mat_rows != q->rows && s->rank == 3 && s->shape[0] == mats ? 1 : 0;
    if (s->rank - skip <= 2)
        for (uint32_t i = skip; i < s->rank; i++) dim[i - skip] = s->shape[i];
    q->row_group = q->mat_rows;
    q->scale_rows = q->n_groups = 1;
    q->group = q->cols;
    if (n == 1) { /* one for all */
        q->scale_rows = 0;
        return TESS_OK;
    }
    if (n == mats) return TESS_OK; /* one for each matrix */
    if (n != mats * dim[0] * dim[1]) return want(f, q->scales, NULL, q->mat_rows, 1);
    q->scale_rows = dim[0];
    q->n_groups = dim[1];
    if (dim[0] == q->mat_rows) {
        q->row_group = 1;
        if (dim[1] && q->cols % dim[1] == 0) q->group = q->cols / dim[1];
    } else if (p->block_rows) {
        q->row_group = p->block_rows;
        q->group = p->block_cols;
    }
    if (ceil_div(q->mat_rows, q->row_group) == dim[0] && ceil_div(q->cols, q->group) == dim[1]) return TESS_OK;
    return want(f, q->scales, NULL, ceil_div(q->mat_rows, q->row_group), ceil_div(q->cols, q->group));
}

static tess_status find_bytes(finder *f, uint32_t i, size_t stem)
{
    static const struct { const char *type, *said; uint32_t table; } types[] = {
        {"F8_E4M3", "FP8 (E4M3)", TABLE_E4M3}, {"F8_E5M2", "FP8 (E5M2)", TABLE_E5M2}, {"I8", "int8", TABLE_SIGNED}};
    const src_tensor *c = &f->base->tensors[i];
    packed_tensor q = {.form = FORM_BYTES, .bits = 8, .codes = i, .order = -1, .zeros = -1};
    size_t k = 0, all = strlen(c->name);
    while (k < ARRAY_LEN(types) && !is_type(c, types[k].type)) k++;
    if (k == ARRAY_LEN(types) || (c->rank != 2 && c->rank != 3)) return TESS_OK; /* family_plan refuses it by its type */
    q.table = types[k].table;
    q.scales = part(f, c->name, all, "_scale_inv");
    if (q.scales < 0) q.scales = part(f, c->name, all, "_scale");
    if (q.scales < 0) return part_missing(f, i, all, f->scheme->method == PACKED_FP8 ? "_scale_inv" : "_scale");
    q.mat_rows = c->shape[c->rank - 2];
    q.rows = c->rank == 3 ? c->shape[0] * q.mat_rows : q.mat_rows;
    q.cols = c->shape[c->rank - 1];
    if (q.rows == 0 || q.cols == 0) return want(f, i, types[k].type, 1, 1);
    TRY(spread_scales(f, &q));
    q.zeros = part(f, c->name, stem, ".weight_zero_point");
    if (q.zeros >= 0) {
        const src_tensor *s = &f->base->tensors[q.scales], *z = &f->base->tensors[q.zeros];
        q.zeros_form = ZEROS_SIGNED;
        if (!is_type(z, "I8") || z->rank != s->rank || memcmp(z->shape, s->shape, sizeof z->shape) != 0)
            return want(f, q.zeros, "I8", q.scale_rows, q.n_groups);
    }
    f->used[i] = 1;
    return add(f, &q, c->name, all, types[k].said, DT_Q8);
}

/* ---- packed words ---- */

/* Whole numbers of a small tensor of type I64 or I32. */
static tess_status read_shape(const finder *f, int64_t i, uint64_t shape[2])
{
    uint8_t b[16] = {0};
    const src_tensor *t = &f->base->tensors[i];
    uint32_t e = is_type(t, "I64") ? 8 : 4;
    if (t->rank != 1 || t->shape[0] != 2 || (e == 4 && !is_type(t, "I32"))) return want(f, i, "I64", 2, 0);
    TRY(packed_bytes(f->base, (uint32_t)i, 0, b, 2 * e, f->err));
    for (int k = 0; k < 2; k++) shape[k] = e == 8 ? rd64(b + 8 * k) : rd32(b + 4 * k);
    return TESS_OK;
}

static tess_status find_words(finder *f, uint32_t i, size_t stem)
{
    const src_tensor *c = &f->base->tensors[i];
    uint64_t shape[2] = {0};
    packed_tensor q = {.form = FORM_WORDS, .codes = i, .row_group = 1, .order = -1};
    int64_t said = part(f, c->name, stem, ".weight_shape");
    q.scales = part(f, c->name, stem, ".weight_scale");
    q.zeros = part(f, c->name, stem, ".weight_zero_point");
    q.order = part(f, c->name, stem, ".weight_g_idx");
    if (said < 0 || q.scales < 0) return part_missing(f, i, stem, said < 0 ? ".weight_shape" : ".weight_scale");
    TRY(read_shape(f, said, shape));
    if (c->rank != 2 || shape[0] == 0 || shape[1] == 0 || shape[0] > 1u << 30 || shape[1] > 1u << 24)
        return want(f, i, "I32", shape[0], ceil_div(shape[1], 8));
    q.rows = q.mat_rows = q.scale_rows = shape[0];
    q.cols = shape[1];
    for (uint32_t b = 2; b <= 8 && !q.bits; b *= 2)
        if (ceil_div(q.cols * b, 32) == c->shape[1]) q.bits = b;
    if (!q.bits) return bad_bits(f, i, c->shape[1] * 32 / q.cols);
    TRY(want(f, i, "I32", q.rows, c->shape[1]));
    const src_tensor *s = &f->base->tensors[q.scales];
    TRY(want_floats(f, q.scales));
    q.n_groups = s->rank == 2 ? s->shape[1] : 1;
    q.group = q.n_groups ? ceil_div(q.cols, q.n_groups) : q.cols;
    if (q.n_groups == 0 || ceil_div(q.cols, q.group) != q.n_groups) return want(f, q.scales, NULL, q.rows, 1);
    TRY(want(f, q.scales, NULL, q.rows, s->rank == 2 ? q.n_groups : 0));
    if (q.order >= 0) TRY(want(f, q.order, "I32", q.cols, 0));
    q.zero = 1 << (q.bits - 1);
    if (q.zeros >= 0) {
        q.zeros_form = ZEROS_WORDS;
        TRY(want(f, q.zeros, "I32", ceil_div(q.rows * q.bits, 32), q.n_groups));
    }
    static const char *const types[9] = {[2] = "int in 2 bits", [4] = "int in 4 bits", [8] = "int in 8 bits"};
    uint32_t like;
    TRY(like_of(f, &q, &like));
    return add_weight(f, &q, stem, types[q.bits], like);
}

/* ---- MXFP4 ---- */

static tess_status find_mxfp4(finder *f, uint32_t i, size_t stem)
{
    const src_tensor *c = &f->base->tensors[i];
    packed_tensor q = {
        .form = FORM_NIBBLES, .bits = 4, .table = TABLE_E2M1, .codes = i, .row_group = 1, .order = -1, .zeros = -1, .group = 32};
    q.scales = part(f, c->name, stem, "_scales");
    if (q.scales < 0) return part_missing(f, i, stem, "_scales");
    const src_tensor *s = &f->base->tensors[q.scales];
    if (c->rank < 3 || c->shape[c->rank - 1] != 16 || !is_type(c, "U8") || c->shape[c->rank - 2] > UINT32_MAX)
        return ERR(f->err, TESS_E_FORMAT, "%s: tensor \"%s\" is not U8 of shape ... x 16", file_of(f, i), c->name);
    q.n_groups = c->shape[c->rank - 2];
    q.cols = q.n_groups * 32;
    q.mat_rows = q.scale_rows = c->shape[c->rank - 3];
    q.rows = c->rank == 4 ? c->shape[0] * q.mat_rows : q.mat_rows;
    if (q.rows == 0 || q.cols == 0 || s->rank != c->rank - 1 || memcmp(s->shape, c->shape, s->rank * sizeof s->shape[0]) != 0 ||
        (!is_type(s, "U8") && !is_type(s, "F8_E8M0")))
        return ERR(f->err, TESS_E_FORMAT, "%s: tensor \"%s\" does not fit \"%s\"", file_of(f, (uint32_t)q.scales), s->name, c->name);
    /* q8 holds these values exactly, q4 does not: their steps are uneven */
    return add(f, &q, c->name, strlen(c->name), "MXFP4", DT_Q8);
}

/* ---- all ---- */

static bool ends_with(const char *s, const char *tail, size_t *stem)
{
    size_t n = strlen(s), k = strlen(tail);
    *stem = n >= k ? n - k : 0;
    return n > k && strcmp(s + n - k, tail) == 0;
}

/* Scales of activations and of the KV cache: Tessera quantizes these by itself. */
static bool of_activations(const char *name)
{
    static const char *const tails[] = {".input_scale",  ".input_scale_ub", ".output_scale",    ".k_scale",
                                        ".v_scale",      ".q_scale",        ".input_zero_point", ".activation_scale",
                                        ".output_zero_point", ".k_zero_point", ".v_zero_point",  ".prob_scale"};
    size_t stem;
    for (size_t i = 0; i < ARRAY_LEN(tails); i++)
        if (ends_with(name, tails[i], &stem)) return true;
    return false;
}

static tess_status find(finder *f, uint32_t i)
{
    size_t stem;
    const src_tensor *t = &f->base->tensors[i];
    uint32_t method = f->scheme->method;
    if (f->used[i]) return TESS_OK;
    bool codes = ends_with(t->name, ".qweight", &stem);
    if (codes && method == PACKED_GPTQ) return f->used[i] = 1, find_gptq(f, i, stem);
    if (codes && method == PACKED_AWQ) return f->used[i] = 1, find_awq(f, i, stem);
    if (ends_with(t->name, ".weight_packed", &stem) && method == PACKED_COMPRESSED) return f->used[i] = 1, find_words(f, i, stem);
    if (ends_with(t->name, "_blocks", &stem) && method == PACKED_MXFP4) return f->used[i] = 1, find_mxfp4(f, i, stem);
    if (method != PACKED_FP8 && method != PACKED_COMPRESSED) return TESS_OK;
    if (!ends_with(t->name, ".weight", &stem)) stem = strlen(t->name);
    return find_bytes(f, i, stem);
}

static tess_status find_all(finder *f)
{
    for (uint32_t i = 0; i < f->base->n_tensors; i++) TRY(find(f, i));
    for (uint32_t i = 0; i < f->base->n_tensors; i++) {
        src_tensor t = f->base->tensors[i];
        if (!f->used[i] && of_activations(t.name)) f->n_left_out++;
        else if (!f->used[i]) {
            const char *name = t.name;
            t.ref = i;
            TRY(source_add_tensor(f->s, &t, name, strlen(name), f->err));
        }
    }
    return source_sort(f->s, f->err);
}

tess_status packed_open(source **s, const packed_scheme *scheme, tess_error *err)
{
    const mem *m = (*s)->m;
    source *over;
    TRY(source_new(m, (*s)->kind, &over, err));
    finder f = {.scheme = scheme, .base = *s, .s = over, .err = err};
    f.p = mem_zalloc(m, sizeof *f.p);
    f.used = mem_zalloc(m, (*s)->n_tensors + 1u);
    tess_status st = f.p && f.used ? TESS_OK : ERR(err, TESS_E_NOMEM, "no memory for %u tensors", (*s)->n_tensors);
    if (st == TESS_OK) {
        packed_tables(f.p);
        f.p->base = *s;
        over->lower = *s;
        over->impl = f.p;
        over->n_files = (*s)->n_files;
        over->paths = (*s)->paths;
        over->files = (*s)->files;
        st = find_all(&f);
    }
    mem_free(m, f.used);
    if (st == TESS_OK) {
        if (f.n_left_out) mem_log(m, TESS_LOG_INFO, "%s: %u scales of activations are left out", over->paths[0], f.n_left_out);
        pthread_mutex_init(&f.p->lock, NULL);
        over->read = packed_read;
        over->blocks = packed_blocks;
        over->close = packed_close;
        *s = over;
        return TESS_OK;
    }
    if (f.p) mem_free(m, f.p->t);
    mem_free(m, f.p);
    over->impl = NULL;
    source_close(over);
    return st;
}
