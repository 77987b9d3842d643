/*
 * kernels.c - linear operations and attention alone, in the shapes of an 8B model; see gpu_bench.h.
 *
 * Weights and pages lie in memory as often as caches can not hold them all, and each turn takes the next copy. Their values have no
 * order (probe_fill) and mean nothing; scales are finite. Counted as read: weights or pages once; activations are small beside them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu_bench.h"

enum { MOST_COPIES = 512 };

/* ---- linear ---- */

typedef struct {
    op_linear_args a;
    op_gemm_args g;
    op_weight w;
    op_run run;
    uint8_t *data;
    uint64_t bytes; /* of one copy */
    uint32_t copies;
} linear_work;

static int linear_once(void *user, uint32_t turn, void *stream)
{
    linear_work *l = user;
    l->run.data = l->data + turn % l->copies * l->bytes;
    return op_cuda_get()->linear(&l->a, stream);
}
static int gemm_once(void *user, uint32_t turn, void *stream)
{
    linear_work *l = user;
    l->run.data = l->data + turn % l->copies * l->bytes;
    return op_cuda_get()->gemm(&l->g, stream);
}

/* y of n_tokens rows of groups; where the bound is memory that, else the peak of bf16, which exact int8 is compared with. */
static tess_status linear_of(gpu_bench *b, linear_work *l, uint32_t n_tokens, tess_error *err)
{
    char name[96];
    double s;
    const uint32_t groups = l->w.n_k / GROUP_K;
    void *x, *y;
    snprintf(name, sizeof name, "linear %s %u x %u, %u tokens", dtype_get(l->w.dtype)->name, l->w.n_rows, l->w.n_k, n_tokens);
    if (gpu_late(b, name)) return TESS_OK;
    TRY(gpu_alloc(b, (size_t)groups * n_tokens * sizeof(op_group), 5, &x, err));
    TRY(gpu_alloc(b, (size_t)n_tokens * l->w.n_rows * sizeof(float), 0, &y, err));
    l->a = (op_linear_args){.w = &l->w, .n_tokens = n_tokens, .y = y, .ys = l->w.n_rows, .xq = x, .xqs = n_tokens};
    TRY(gpu_time(b, linear_once, l, &s, err));
    if (n_tokens <= 64) gpu_print(name, (double)l->bytes / s * 1e-9, "GB/s", b->memory * 1e-9, "memory");
    else gpu_print(name, 2.0 * l->w.n_rows * l->w.n_k * n_tokens / s * 1e-12, "TOP/s", b->bf16 * 1e-12, "bf16 peak");
    return TESS_OK;
}

/* The same by tensor cores, as large prompts are computed; rounding and panels are part of it. */
static tess_status gemm_of(gpu_bench *b, linear_work *l, uint32_t n_tokens, bool wide, tess_error *err)
{
    char name[96];
    double s;
    void *x, *y, *scratch;
    snprintf(name, sizeof name, "gemm %s %u x %u, %u tokens%s", dtype_get(l->w.dtype)->name, l->w.n_rows, l->w.n_k, n_tokens, wide ? ", wgmma" : "");
    if (gpu_late(b, name)) return TESS_OK;
    TRY(gpu_alloc(b, (size_t)l->w.n_k * n_tokens * sizeof(float), 5, &x, err));
    TRY(gpu_alloc(b, (size_t)n_tokens * l->w.n_rows * sizeof(float), 0, &y, err));
    TRY(gpu_alloc(b, op_cuda_gemm_scratch(&l->w, n_tokens), 0, &scratch, err));
    l->g = (op_gemm_args){.w = &l->w, .x = x, .xs = l->w.n_k, .n_tokens = n_tokens, .y = y, .ys = l->w.n_rows, .scratch = scratch, .wide = wide};
    TRY(gpu_time(b, gemm_once, l, &s, err));
    gpu_print(name, 2.0 * l->w.n_rows * l->w.n_k * n_tokens / s * 1e-12, "TFLOP/s", b->bf16 * 1e-12, "bf16 peak");
    return TESS_OK;
}

tess_status part_linear(gpu_bench *b, tess_error *err)
{
    static const uint32_t types[] = {DT_Q8, DT_Q4, DT_BF16}, tokens[] = {1, 4, 8, 64, 512, 2048}, few[] = {1, 5, 20};
    const uint32_t *n = b->dry ? few : tokens;
    const size_t n_n = b->dry ? ARRAY_LEN(few) : ARRAY_LEN(tokens);
    const uint32_t rows = b->dry ? 64 : 14336, k = b->dry ? 128 : 4096;
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        const uint64_t one = k;
        void *p;
        linear_work l = {.w = {.dtype = types[t], .n_rows = rows, .n_k = k, .n_leaves = 1, .n_parts = 1, .runs = &l.run},
                         .run = {.n_rows = rows, .n_k = k}};
        if (!layout_stride(types[t], LAYOUT_TILE8, &one, 1, &l.run.block_stride) ||
            !layout_bytes(types[t], LAYOUT_TILE8, rows, &one, 1, &l.bytes))
            return ERR(err, TESS_E_ARG, "no such weight");
        l.copies = gpu_copies(b, l.bytes, 16);
        TRY(gpu_alloc(b, (size_t)(l.copies * l.bytes), 3, &p, err));
        l.data = p;
        for (size_t i = 0; i < n_n && types[t] != DT_BF16; i++) TRY(linear_of(b, &l, n[i], err));
        for (size_t i = n_n - 2; i < n_n && b->props.major >= 8; i++)
            for (int wide = 0; wide <= op_cuda_gemm_wide(); wide++) TRY(gemm_of(b, &l, n[i], wide, err));
        gpu_free_all(b);
    }
    return TESS_OK;
}

/* ---- attention ---- */

typedef struct {
    op_attn_args a;
    uint32_t n_seqs, copies;
    const uint32_t *seq; /* on the device: [copies][rows] */
    uint32_t rows;
} attn_work;

static int attn_once(void *user, uint32_t turn, void *stream)
{
    attn_work *w = user;
    w->a.b.seq = w->seq + (size_t)(turn % w->copies) * w->rows;
    return op_cuda_get()->attn(&w->a, stream);
}

/* Tables of n sequences whose pages lie one behind the other: addresses of pages, then of each sequence's list. */
static tess_status put_tables(gpu_bench *b, uint32_t n, uint32_t n_pages, size_t page_bytes, uint8_t *const *const **out,
                              tess_error *err)
{
    void *pages, *lists, *all;
    tess_status st = TESS_OK;
    const size_t most = (size_t)n * MAX(n_pages, 1u);
    uint8_t **p = malloc(most * sizeof *p);
    if (!p) return ERR(err, TESS_E_NOMEM, "no memory");
    st = gpu_alloc(b, most * page_bytes, 4, &pages, err);
    for (size_t i = 0; st >= 0 && i < most; i++) p[i] = (uint8_t *)pages + i * page_bytes;
    if (st >= 0) st = gpu_upload(b, p, most * sizeof *p, &lists, err);
    for (size_t i = 0; st >= 0 && i < n; i++) p[i] = (uint8_t *)lists + i * n_pages * sizeof *p;
    if (st >= 0) st = gpu_upload(b, p, n * sizeof *p, &all, err);
    if (st >= 0) *out = all;
    free(p);
    return st;
}

/* Position and sequence of each row: the last of each sequence, or all of the only one. */
static tess_status put_rows(gpu_bench *b, attn_work *w, uint32_t len, bool prompt, tess_error *err)
{
    void *pos, *seq;
    uint32_t *v = malloc((size_t)MAX(w->rows, 1u) * w->copies * sizeof *v);
    if (!v) return ERR(err, TESS_E_NOMEM, "no memory");
    for (uint32_t i = 0; i < w->rows; i++) v[i] = prompt ? i : len - 1;
    tess_status st = gpu_upload(b, v, w->rows * sizeof *v, &pos, err);
    for (uint32_t i = 0; i < w->rows * w->copies; i++) v[i] = prompt ? i / w->rows : i;
    if (st >= 0) st = gpu_upload(b, v, (size_t)w->rows * w->copies * sizeof *v, &seq, err);
    free(v);
    if (st < 0) return st;
    w->a.b = (op_batch){.n_tokens = w->rows, .pos = pos, .seq = seq, .tables = w->a.b.tables};
    w->seq = seq;
    return TESS_OK;
}

/* Seconds of attention over `len` positions: of one row of each of n_seqs sequences, or of a prompt. */
static tess_status attn_of(gpu_bench *b, uint32_t dtype, uint32_t len, uint32_t n_seqs, bool prompt, double *seconds, op_kv *layout,
                           tess_error *err)
{
    attn_work w = {.n_seqs = n_seqs, .rows = prompt ? len : n_seqs};
    op_attn_args *a = &w.a;
    void *p;
    a->kv = (op_kv){.dtype = dtype,
                    .page_tokens = b->dry ? 16 : 32,
                    .n_kv_heads = b->dry ? 2 : 8,
                    .k_dim = b->dry ? 64 : 128,
                    .v_dim = b->dry ? 64 : 128};
    op_kv_layout(&a->kv);
    const uint32_t n_pages = (len + a->kv.page_tokens - 1) / a->kv.page_tokens;
    const size_t page = a->kv.n_kv_heads * a->kv.head_bytes;
    w.copies = gpu_copies(b, (uint64_t)n_seqs * n_pages * page, prompt ? 1 : MOST_COPIES / n_seqs);
    a->group = 4, a->n_heads = a->kv.n_kv_heads * a->group;
    a->qs = (size_t)a->n_heads * a->kv.k_dim, a->os = (size_t)a->n_heads * a->kv.v_dim;
    a->scale = 1.0f / sqrtf((float)a->kv.k_dim);
    a->max_pos = len, a->fast = true, a->single = !prompt;
    TRY(put_tables(b, n_seqs * w.copies, n_pages, page, &a->b.tables, err));
    TRY(put_rows(b, &w, len, prompt, err));
    TRY(gpu_alloc(b, a->qs * w.rows * sizeof(float), 6, &p, err));
    a->q = p;
    TRY(gpu_alloc(b, a->os * w.rows * sizeof(float), 0, &p, err));
    a->out = p;
    a->scratch_floats = op_cuda_attn_scratch(w.rows, a->n_heads, a->kv.v_dim, len);
    if (a->scratch_floats) {
        TRY(gpu_alloc(b, a->scratch_floats * sizeof(float), 0, &p, err));
        a->scratch = p;
    }
    TRY(gpu_time(b, attn_once, &w, seconds, err));
    *layout = a->kv;
    gpu_free_all(b);
    return TESS_OK;
}

static tess_status decode_at(gpu_bench *b, uint32_t len, uint32_t n_seqs, tess_error *err)
{
    static const struct {
        uint32_t dtype;
        const char *name;
    } types[2] = {{DT_F16, "f16"}, {DT_I8, "int8"}};
    char name[96];
    double s[2];
    for (int i = 0; i < 2; i++) {
        op_kv l;
        snprintf(name, sizeof name, "attention, decode %u x %u, %s", n_seqs, len, types[i].name);
        if (gpu_late(b, name)) return TESS_OK;
        TRY(attn_of(b, types[i].dtype, len, n_seqs, false, &s[i], &l, err));
        const double value = types[i].dtype == DT_I8 ? 1 : 2, scales = types[i].dtype == DT_I8 ? 4 : 0;
        const double bytes = (double)n_seqs * len * l.n_kv_heads * ((l.k_dim + l.v_dim) * value + scales);
        gpu_print(name, bytes / s[i] * 1e-9, "GB/s", b->memory * 1e-9, "memory");
    }
    snprintf(name, sizeof name, "attention, decode %u x %u, int8 over f16", n_seqs, len);
    gpu_print(name, s[0] / s[1], "times", 0, NULL);
    return TESS_OK;
}

static tess_status prompt_of(gpu_bench *b, uint32_t len, tess_error *err)
{
    static const struct {
        uint32_t dtype;
        const char *name;
    } types[2] = {{DT_F16, "f16"}, {DT_I8, "int8"}};
    char name[96];
    for (int i = 0; i < 2; i++) {
        op_kv l;
        double s;
        snprintf(name, sizeof name, "attention, prompt %u, %s", len, types[i].name);
        if (gpu_late(b, name)) return TESS_OK;
        TRY(attn_of(b, types[i].dtype, len, 1, true, &s, &l, err));
        const double macs = (double)len * (len + 1.0) / 2 * 4 * l.n_kv_heads * (l.k_dim + l.v_dim); /* groups of 4 query heads */
        gpu_print(name, 2 * macs / s * 1e-12, "TFLOP/s", b->bf16 * 1e-12, "bf16 peak");
    }
    return TESS_OK;
}

tess_status part_attention(gpu_bench *b, tess_error *err)
{
    static const uint32_t at[][2] = {{1024, 1}, {8192, 1}, {32768, 1}, {131072, 1}, {1024, 64}, {8192, 8}},
                          dry[][2] = {{40, 1}, {300, 1}, {40, 3}};
    const size_t n = b->dry ? ARRAY_LEN(dry) : ARRAY_LEN(at);
    for (size_t i = 0; i < n; i++) TRY(b->dry ? decode_at(b, dry[i][0], dry[i][1], err) : decode_at(b, at[i][0], at[i][1], err));
    if (b->dry) return prompt_of(b, 24, err);
    TRY(prompt_of(b, 512, err));
    TRY(prompt_of(b, 2048, err));
    return prompt_of(b, 4096, err);
}
