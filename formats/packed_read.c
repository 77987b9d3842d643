/*
 * packed_read.c - values of quantized matrices. See packed.h for the layouts.
 *
 * GPTQ and AWQ store codes with K outermost, so a few rows of the matrix lie scattered over the whole part. Reads
 * therefore go through panels: the codes, scales and zeros of a run of rows, unpacked, about CODES bytes. A reader
 * takes the panel that already holds its rows, if any is idle, else one that is filled anew; the list grows to the
 * number of threads that read at once.
 */
#include <math.h>

#include "packed_priv.h"
#include "quant.h"

enum { CODES = 2 << 20, ROWS_MULTIPLE = 32 /* whole words of codes along n, at any width */ };

/* ---- tables ---- */

/* An 8-bit float with e bits of exponent; NaN where the format has one. E4M3 has no infinity. */
static float small_float(uint32_t c, uint32_t e)
{
    uint32_t m_bits = 7 - e, m = c & ((1u << m_bits) - 1), x = (c >> m_bits) & ((1u << e) - 1);
    int bias = (1 << (e - 1)) - 1;
    float v = x ? ldexpf((float)(m + (1u << m_bits)), (int)x - bias - (int)m_bits) : ldexpf((float)m, 1 - bias - (int)m_bits);
    if (e == 4 && (c & 0x7f) == 0x7f) v = NAN;
    if (e == 5 && x == 31) v = m ? NAN : INFINITY;
    return c & 0x80 ? -v : v;
}

void packed_tables(packed_impl *p)
{
    static const float e2m1[8] = {0, 1, 2, 3, 4, 6, 8, 12}; /* twice the value: the scale is halved instead */
    for (uint32_t c = 0; c < 256; c++) {
        p->table[TABLE_WHOLE][c] = (float)c;
        p->table[TABLE_SIGNED][c] = (float)(int8_t)c;
        p->table[TABLE_E4M3][c] = small_float(c, 4);
        p->table[TABLE_E5M2][c] = small_float(c, 5);
        p->table[TABLE_E2M1][c] = c & 8 ? -e2m1[c & 7] : e2m1[c & 7];
    }
}

/* ---- parts ---- */

static const uint8_t awq_order[8] = {0, 2, 4, 6, 1, 3, 5, 7};

tess_status packed_bytes(const source *base, uint32_t i, uint64_t off, void *dst, size_t n, tess_error *err)
{
    const src_tensor *t = &base->tensors[i];
    if (!range_in(off, n, t->nbytes))
        return ERR(err, TESS_E_ARG, "%s: read outside tensor \"%s\"", base->paths[t->file], t->name);
    return os_pread(&base->files[t->file], dst, n, t->off + off, base->paths[t->file], err);
}

static uint32_t field(uint32_t word, uint32_t bits, uint32_t i) { return (word >> (bits * i)) & ((1u << bits) - 1); }

/* Codes with K outermost: one read for each word of K (GPTQ) or each k (AWQ). */
static tess_status codes_k_outer(const packed_impl *p, const packed_tensor *t, panel *x, tess_error *err)
{
    uint32_t per = 32 / t->bits;
    bool awq = t->form == FORM_AWQ;
    uint64_t n = awq ? x->n_rows / per : x->n_rows, all = awq ? t->rows / per : t->rows, at = awq ? x->row0 / per : x->row0;
    for (uint64_t k = 0; k < t->cols; k += awq ? 1 : per) {
        uint64_t line = awq ? k : k / per;
        TRY(packed_bytes(p->base, t->codes, (line * all + at) * 4, x->step, (size_t)n * 4, err));
        for (uint64_t j = 0; j < n; j++) {
            uint32_t word = rd32(x->step + 4 * j);
            for (uint32_t i = 0; i < per; i++) {
                uint8_t c = (uint8_t)field(word, t->bits, i);
                if (awq) x->code[(j * per + awq_order[i]) * t->cols + k] = c;
                else x->code[j * t->cols + k + i] = c;
            }
        }
    }
    return TESS_OK;
}

/* Codes that lie row by row. */
static tess_status codes_rows(const packed_impl *p, const packed_tensor *t, panel *x, tess_error *err)
{
    uint32_t per = t->form == FORM_WORDS ? 32 / t->bits : 2;
    uint64_t bytes = t->form == FORM_WORDS ? ceil_div(t->cols, per) * 4 : t->cols / 2;
    if (t->form == FORM_BYTES)
        return packed_bytes(p->base, t->codes, x->row0 * t->cols, x->code, (size_t)(x->n_rows * t->cols), err);
    for (uint64_t r = 0; r < x->n_rows; r++) {
        uint8_t *code = x->code + r * t->cols;
        TRY(packed_bytes(p->base, t->codes, (x->row0 + r) * bytes, x->step, (size_t)bytes, err));
        for (uint64_t k = 0; k < t->cols; k++)
            code[k] = (uint8_t)(t->form == FORM_NIBBLES ? (x->step[k / 2] >> (k % 2 * 4)) & 15
                                                        : field(rd32(x->step + k / per * 4), t->bits, (uint32_t)(k % per)));
    }
    return TESS_OK;
}

/* Row of scales that belongs to row r of the whole. */
static uint64_t scale_row(const packed_tensor *t, uint64_t r)
{
    return r / t->mat_rows * t->scale_rows + r % t->mat_rows / t->row_group;
}

/* n values from element `at` of a part of scales, as f32. */
static tess_status scale_values(const source *base, uint32_t i, uint64_t at, uint64_t n, uint8_t *step, float *dst, tess_error *err)
{
    const src_tensor *s = &base->tensors[i];
    if (s->dtype != SRC_OTHER) {
        uint32_t bytes = s->dtype == DT_F32 ? 4 : 2;
        TRY(packed_bytes(base, i, at * bytes, step, (size_t)(n * bytes), err));
        dtype_to_f32(s->dtype, step, dst, (size_t)n);
        return TESS_OK;
    }
    TRY(packed_bytes(base, i, at, step, (size_t)n, err)); /* exponents of two */
    for (uint64_t j = 0; j < n; j++) dst[j] = step[j] == 255 ? NAN : ldexpf(1, step[j] - 127);
    return TESS_OK;
}

static tess_status read_scales(const packed_impl *p, const packed_tensor *t, panel *x, tess_error *err)
{
    uint32_t i = (uint32_t)t->scales;
    x->row_step = t->scales_turned ? 1 : t->n_groups;
    x->group_step = t->scales_turned ? x->n_rows : 1;
    if (t->scales_turned) {
        for (uint64_t g = 0; g < t->n_groups; g++)
            TRY(scale_values(p->base, i, g * t->rows + x->row0, x->n_rows, x->step, x->scale + g * x->n_rows, err));
        return TESS_OK;
    }
    for (uint64_t r = 0; r < x->n_rows; r++) {
        float *s = x->scale + r * t->n_groups;
        uint64_t row = scale_row(t, x->row0 + r);
        if (r && row == scale_row(t, x->row0 + r - 1)) memcpy(s, s - t->n_groups, t->n_groups * sizeof *s);
        else TRY(scale_values(p->base, i, row * t->n_groups, t->n_groups, x->step, s, err));
        if (t->table != TABLE_E2M1) continue;
        for (uint64_t g = 0; g < t->n_groups && (r == 0 || row != scale_row(t, x->row0 + r - 1)); g++) s[g] *= 0.5f;
    }
    return TESS_OK;
}

static uint32_t gptq_zero(const packed_tensor *t, uint32_t word, uint32_t i)
{
    static const uint32_t ones[9] = {[2] = 0x55555555, [4] = 0x11111111, [8] = 0x01010101};
    if (t->zero_rule == ZERO_PLUS1_WORD) word += ones[t->bits];
    uint32_t z = field(word, t->bits, i);
    return t->zero_rule == ZERO_PLUS1 ? (z + 1) & ((1u << t->bits) - 1) : z;
}

/* Zeros that lie [group][words of n]. */
static tess_status zeros_by_group(const packed_impl *p, const packed_tensor *t, panel *x, tess_error *err)
{
    uint32_t per = 32 / t->bits, i = (uint32_t)t->zeros;
    for (uint64_t g = 0; g < t->n_groups; g++) {
        TRY(packed_bytes(p->base, i, (g * (t->rows / per) + x->row0 / per) * 4, x->step, (size_t)(x->n_rows / per) * 4, err));
        for (uint64_t r = 0; r < x->n_rows; r++) {
            uint32_t word = rd32(x->step + r / per * 4), f = (uint32_t)(r % per);
            uint64_t row = t->zeros_form == ZEROS_AWQ ? r - f + awq_order[f] : r;
            x->zero[row * x->row_step + g * x->group_step] =
                (float)(t->zeros_form == ZEROS_AWQ ? field(word, t->bits, f) : gptq_zero(t, word, f));
        }
    }
    return TESS_OK;
}

static tess_status read_zeros(const packed_impl *p, const packed_tensor *t, panel *x, tess_error *err)
{
    uint32_t per = 32 / t->bits, i = (uint32_t)t->zeros;
    uint64_t line = 0, at = UINT64_MAX;
    if (t->zeros_form == ZEROS_NONE) {
        for (uint64_t j = 0; j < x->n_rows * t->n_groups; j++) x->zero[j] = (float)t->zero;
        return TESS_OK;
    }
    if (t->zeros_form != ZEROS_WORDS && t->zeros_form != ZEROS_SIGNED) return zeros_by_group(p, t, x, err);
    for (uint64_t r = 0; r < x->n_rows; r++) {
        line = t->zeros_form == ZEROS_WORDS ? (x->row0 + r) / per : scale_row(t, x->row0 + r);
        uint64_t bytes = t->n_groups * (t->zeros_form == ZEROS_WORDS ? 4 : 1);
        if (line != at) TRY(packed_bytes(p->base, i, line * bytes, x->step, (size_t)bytes, err));
        at = line;
        for (uint64_t g = 0; g < t->n_groups; g++)
            x->zero[r * x->row_step + g * x->group_step] =
                t->zeros_form == ZEROS_SIGNED ? (float)(int8_t)x->step[g]
                                              : (float)field(rd32(x->step + 4 * g), t->bits, (uint32_t)((x->row0 + r) % per));
    }
    return TESS_OK;
}

static tess_status read_order(const packed_impl *p, const packed_tensor *t, panel *x, tess_error *err)
{
    for (uint64_t k = 0; k < t->cols; k++) x->group[k] = (uint32_t)(k / t->group);
    if (t->order < 0) return TESS_OK;
    TRY(packed_bytes(p->base, (uint32_t)t->order, 0, x->group, (size_t)t->cols * 4, err));
    const src_tensor *o = &p->base->tensors[t->order];
    for (uint64_t k = 0; k < t->cols; k++)
        if (x->group[k] >= t->n_groups)
            return ERR(err, TESS_E_FORMAT, "%s: tensor \"%s\": element %llu is group %d of %llu", p->base->paths[o->file], o->name,
                       (unsigned long long)k, (int)(int32_t)x->group[k], (unsigned long long)t->n_groups);
    return TESS_OK;
}

/* ---- panels ---- */

static bool panel_room(const mem *m, panel *x, const packed_tensor *t)
{
    size_t code, scale;
    uint64_t line = MAX(MAX(t->cols, x->n_rows), t->n_groups) * 4;
    return size_mul3(x->n_rows, t->cols, 1, &code) && size_mul3(x->n_rows, t->n_groups, 1, &scale) &&
           mem_grow(m, &x->code, &x->code_cap, code, 1) && mem_grow(m, &x->scale, &x->scale_cap, scale, sizeof(float)) &&
           mem_grow(m, &x->zero, &x->zero_cap, scale, sizeof(float)) &&
           mem_grow(m, &x->group, &x->group_cap, t->cols, sizeof *x->group) && mem_grow(m, &x->step, &x->step_cap, line, 1);
}

static tess_status panel_fill(const source *s, uint32_t tensor, uint64_t row, panel *x, tess_error *err)
{
    const packed_impl *p = s->impl;
    const packed_tensor *t = &p->t[s->tensors[tensor].ref];
    uint64_t most = MAX(CODES / t->cols / ROWS_MULTIPLE, 1u) * ROWS_MULTIPLE;
    x->tensor = -1;
    x->row0 = row / ROWS_MULTIPLE * ROWS_MULTIPLE;
    x->n_rows = MIN(most, t->rows - x->row0);
    if (!panel_room(s->m, x, t))
        return ERR(err, TESS_E_NOMEM, "no memory to unpack %llu rows of \"%s\"", (unsigned long long)x->n_rows, s->tensors[tensor].name);
    TRY(t->form == FORM_GPTQ || t->form == FORM_AWQ ? codes_k_outer(p, t, x, err) : codes_rows(p, t, x, err));
    TRY(read_scales(p, t, x, err));
    TRY(read_zeros(p, t, x, err));
    TRY(read_order(p, t, x, err));
    x->tensor = tensor;
    return TESS_OK;
}

static bool panel_holds(const panel *x, uint32_t tensor, uint64_t row)
{
    return x->tensor == (int64_t)tensor && row >= x->row0 && row - x->row0 < x->n_rows;
}

/* An idle panel that holds the row, else the one returned last, else a new one. */
static panel *panel_take(packed_impl *p, const mem *m, uint32_t tensor, uint64_t row)
{
    pthread_mutex_lock(&p->lock);
    panel **at = &p->idle;
    while (*at && !panel_holds(*at, tensor, row)) at = &(*at)->next;
    if (!*at) at = &p->idle;
    panel *x = *at;
    if (x) *at = x->next;
    pthread_mutex_unlock(&p->lock);
    if (!x && (x = mem_zalloc(m, sizeof *x))) x->tensor = -1;
    return x;
}

static void panel_give(packed_impl *p, panel *x)
{
    pthread_mutex_lock(&p->lock);
    x->next = p->idle;
    p->idle = x;
    pthread_mutex_unlock(&p->lock);
}

void packed_close(source *s)
{
    packed_impl *p = s->impl;
    while (p->idle) {
        panel *x = p->idle;
        p->idle = x->next;
        mem_free(s->m, x->code);
        mem_free(s->m, x->scale);
        mem_free(s->m, x->zero);
        mem_free(s->m, x->group);
        mem_free(s->m, x->step);
        mem_free(s->m, x);
    }
    pthread_mutex_destroy(&p->lock);
    mem_free(s->m, p->t);
    source_close(p->base);
    mem_free(s->m, p);
}

/* ---- values ---- */

/* A row of a panel, for the columns of its matrix. */
typedef struct { const float *table, *scale, *zero; const uint8_t *code; const uint32_t *group; size_t step; } row_view;

static row_view view_row(const packed_impl *p, const packed_tensor *t, const panel *x, uint64_t row)
{
    uint64_t r = row - x->row0;
    return (row_view){p->table[t->table], x->scale + r * x->row_step, x->zero + r * x->row_step, x->code + r * t->cols, x->group,
                      x->group_step};
}

static void values(const row_view *v, uint64_t k0, uint64_t n, float *dst)
{
    for (uint64_t k = k0; k < k0 + n; k++) {
        size_t g = v->group[k] * v->step;
        *dst++ = v->scale[g] * (v->table[v->code[k]] - v->zero[g]);
    }
}

tess_status packed_read(const source *s, uint32_t i, uint64_t row0, uint64_t n_rows, uint64_t k0, uint64_t n_k, bool raw,
                        void *dst, tess_error *err)
{
    packed_impl *p = s->impl;
    const src_tensor *t = &s->tensors[i];
    if (t->dtype != SRC_COMPUTED) return p->base->read(p->base, t->ref, row0, n_rows, k0, n_k, raw, dst, err);
    const packed_tensor *q = &p->t[t->ref];
    if (raw || !range_in(row0, n_rows, q->rows) || !range_in(k0, n_k, q->cols))
        return ERR(err, TESS_E_ARG, "%s: box outside tensor \"%s\", or raw", s->paths[t->file], t->name);
    tess_status st = TESS_OK;
    for (uint64_t r = row0; r < row0 + n_rows && st == TESS_OK;) {
        panel *x = panel_take(p, s->m, i, r);
        if (!x) return ERR(err, TESS_E_NOMEM, "no memory to unpack \"%s\"", t->name);
        if (!panel_holds(x, i, r)) st = panel_fill(s, i, r, x, err);
        for (; st == TESS_OK && r < row0 + n_rows && panel_holds(x, i, r); r++) {
            row_view v = view_row(p, q, x, r);
            values(&v, k0, n_k, (float *)dst + (r - row0) * n_k);
        }
        panel_give(p, x);
    }
    return st;
}

/* ---- blocks ---- */

/* Columns [k0, k0 + n) as a block whose codes are those of the file. False: they are of several groups, or no such block
 * holds them. */
static bool block_moved(const row_view *v, uint32_t table, uint32_t dt, uint64_t k0, uint32_t n, uint8_t *block)
{
    int32_t q[GROUP_K] = {0};
    uint32_t g = v->group[k0];
    float s = v->scale[g * v->step], z = v->zero[g * v->step], low = dt == DT_Q4 ? 0 : z;
    if (table == TABLE_E4M3 || table == TABLE_E5M2 || (dt == DT_Q4 && table != TABLE_WHOLE)) return false;
    for (uint32_t i = 0; i < n; i++) {
        q[i] = (int32_t)(v->table[v->code[k0 + i]] - low);
        if (v->group[k0 + i] != g) return false;
    }
    return quant_from_codes(dt, s, dt == DT_Q4 ? -(s * z) : 0, q, block);
}

tess_status packed_blocks(const source *s, uint32_t i, uint64_t row, uint64_t k0, uint64_t n_k, uint32_t dt, uint8_t *dst,
                          tess_error *err)
{
    packed_impl *p = s->impl;
    const src_tensor *t = &s->tensors[i];
    const packed_tensor *q = &p->t[t->ref];
    if (t->dtype != SRC_COMPUTED || row >= q->rows || !range_in(k0, n_k, q->cols))
        return ERR(err, TESS_E_ARG, "%s: tensor \"%s\" has no blocks there", s->paths[t->file], t->name);
    panel *x = panel_take(p, s->m, i, row);
    if (!x) return ERR(err, TESS_E_NOMEM, "no memory to unpack \"%s\"", t->name);
    tess_status st = panel_holds(x, i, row) ? TESS_OK : panel_fill(s, i, row, x, err);
    for (uint64_t k = k0; k < k0 + n_k && st == TESS_OK; k += GROUP_K, dst += quant_block_bytes(dt)) {
        float v[GROUP_K];
        uint32_t n = (uint32_t)MIN((uint64_t)GROUP_K, k0 + n_k - k);
        row_view view = view_row(p, q, x, row);
        if (block_moved(&view, q->table, dt, k, n, dst)) continue;
        values(&view, k, n, v);
        if (!quant_fit(dt, v, n, dst))
            st = ERR(err, TESS_E_UNSUPPORTED,
                     "%s: tensor \"%s\" holds NaN, infinity or a value too large for %s in row %llu, column %llu on; use --type bf16",
                     s->paths[t->file], t->name, dtype_get(dt)->name, (unsigned long long)row, (unsigned long long)k);
    }
    panel_give(p, x);
    return st;
}
