/*
 * lin_after.cuh - what the blocks of a linear operation do when they have completed a part of its rows; after_ops.h says what.
 *
 * A block counts for each part that its rows touch. The one whose count is the last does what follows for all tokens of its tile, by the
 * same functions as the operations alone. Of ROWS (one token) a part is summed over the leaves by whoever completes it, and the
 * block that completes the last part does the norm and the groups of the whole row.
 */
#ifndef TESS_LIN_AFTER_CUH
#define TESS_LIN_AFTER_CUH
#include "cu_act.cuh"
#include "cu_count.cuh"
#include "cu_heads.cuh"
#include "cu_rows.cuh"
#include "cu_weight.cuh"

enum { AFTER_SHARED = (SUM_STAGE + 8 + 4) * sizeof(float) /* bytes that it takes of a block's shared memory */ };
typedef struct {
    uint32_t what;         /* 0: nothing */
    uint32_t *counts;
    uint32_t units;        /* counts of a tile of tokens */
    uint32_t times;        /* rows are written so many times: by each of two weights, or of the leaves */
    uint32_t first[3], width[3], rows[3]; /* of each weight its first part, rows of a part (0: nothing follows), all rows */
    uint32_t groups;       /* of a row; 0: none are made */
    quant_leaves leaf;
    op_quant_args quant;
    op_act_args act;
    op_norm_args norm[2];  /* of heads; or [0] of the row; n 0: none */
    op_rope_args rope[2];  /* dims 0: none */
    op_kv_write_args kv;
    op_kbias kb;
    op_reduce_args sum;
    reduce_parts part;
} lin_after;

/* Columns [c, c + n) of a feed-forward, which are one group. */
DEV void after_act(const lin_after &f, uint32_t c, uint32_t n, uint32_t t0, uint32_t t1)
{
    const uint32_t lane = threadIdx.x % WARP;
    for (uint32_t t = t0 + threadIdx.x / WARP; t < t1; t += blockDim.x / WARP) {
        float v = 0.0f;
        if (lane < n) f.act.y[t * f.act.ys + c + lane] = v = act_cell(f.act, t, c + lane);
        if (f.groups) quant_group(v, lane, f.quant.y + (size_t)(c / GROUP_K) * f.quant.n_tokens + t);
    }
}

template <uint32_t DT> DEV void after_store(const lin_after &f, bool k, uint32_t h, uint32_t t0, uint32_t t1)
{
    const uint32_t lane = threadIdx.x % WARP;
    for (uint32_t t = t0 + threadIdx.x / WARP; t < t1; t += blockDim.x / WARP) {
        if (k) store_k<DT>(f.kv, f.kb, t, h, lane);
        else store_v<DT>(f.kv, t, h, lane);
    }
}

/* Head h of q (which 0), k (1) or v (2). */
DEV void after_head(const lin_after &f, uint32_t which, uint32_t h, uint32_t t0, uint32_t t1, float *stage)
{
    for (uint32_t t = t0; which < 2 && f.norm[which].n && t < t1; t++) norm_group(f.norm[which], t, h, stage);
    if (which < 2 && f.rope[which].dims) {
        const op_rope_args &r = f.rope[which];
        const uint32_t half = r.dims / 2;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < (t1 - t0) * half; i += blockDim.x) rope_pair(r, t0 + i / half, h, i % half);
    }
    if (which == 0) return;
    __syncthreads();
    switch (f.kv.kv.dtype) {
    case DT_F32: after_store<DT_F32>(f, which == 1, h, t0, t1); break;
    case DT_F16: after_store<DT_F16>(f, which == 1, h, t0, t1); break;
    default: after_store<DT_I8>(f, which == 1, h, t0, t1); break;
    }
}

/* Rows [r0, r1) of weight `which`, tokens [t0, t1), tile `tile`, are written. By all threads of a block. */
static __device__ CU_NOINLINE void lin_after_do(const lin_after &f, uint32_t which, uint32_t r0, uint32_t r1, uint32_t tile, uint32_t t0,
                                                uint32_t t1, uint8_t *smem)
{
    float *stage = reinterpret_cast<float *>(smem);
    uint32_t *flag = reinterpret_cast<uint32_t *>(stage + SUM_STAGE + 8), *counts = f.counts + tile * f.units;
    const uint32_t width = f.width[which], rows = f.rows[which];
    if (width == 0) return;
    for (uint32_t u = r0 / width; u * width < r1; u++) {
        const uint32_t lo = u * width, n = min(width, rows - lo), mine = min(r1, lo + n) - max(r0, lo);
        if (!count_ends(&counts[f.first[which] + u], mine, n * f.times, flag)) continue;
        if (f.what == AFTER_ACT) after_act(f, lo, n, t0, t1);
        if (f.what == AFTER_HEADS) after_head(f, which, u, t0, t1, stage);
        if (f.what != AFTER_ROWS) continue;
        for (uint32_t i = lo + threadIdx.x; i < lo + n; i += blockDim.x) f.sum.y[i] = reduce_cell(f.sum, f.part, 0, i);
        if (f.norm[0].n && count_ends(&counts[f.units - 1], n, rows, flag)) norm_and_groups(f.norm[0], f.quant, f.leaf, f.groups, 0, stage);
    }
}

/* The same of the `n` rows from the block's first row block on. which: the job's weight, row0: where the run's rows begin in it. */
DEV void lin_after_block(const lin_after &f, const lin_job &j, uint32_t which, uint32_t row0, uint64_t block0, uint32_t n, uint32_t t0,
                         uint32_t tokens, uint8_t *smem)
{
    if (f.what == 0) return;
    const int64_t from = (int64_t)(block0 * TILE_ROWS) - j.row_skip;
    const uint32_t lo = (uint32_t)max(from, (int64_t)j.lo), hi = (uint32_t)min(from + n, (int64_t)j.hi);
    lin_after_do(f, which, row0 + lo, row0 + hi, t0 / tokens, t0, min(t0 + tokens, j.n_tokens), smem);
}

/* ---- host: whether the shapes allow it; then how it is done ---- */
static inline bool groups_of(const op_quant_args *q, const float *x, size_t xs, uint32_t n_tokens, uint32_t n, lin_after *f)
{
    if (!q) return true;
    if (!quant_is_of(q, x, xs, n_tokens)) return false;
    f->quant = *q;
    f->groups = quant_cut(q, &f->leaf);
    uint32_t all = 0;
    for (uint32_t l = 0; l < f->leaf.n; l++) all += f->leaf.k[l];
    return f->groups != UINT32_MAX && all == n;
}

static inline uint32_t after_parts(lin_after *f, uint32_t which, uint32_t rows, uint32_t width, uint32_t first)
{
    f->first[which] = first;
    f->width[which] = width;
    f->rows[which] = rows;
    return first + (width ? cu_ceil(rows, width) : 0);
}

static inline bool after_is_act(const op_linear_args *a, uint32_t n, const op_after *o, lin_after *f)
{
    const op_act_args *c = o->act;
    if (n != (c->u ? 2u : 1u) || c->count || c->g != a[0].y || c->gs != a[0].ys || c->n_tokens != a->n_tokens) return false;
    if (c->u && (c->u != a[1].y || c->us != a[1].ys)) return false;
    f->times = n;
    f->act = *c;
    for (uint32_t k = 0; k < n; k++) {
        if (a[k].w->n_rows != c->n || a[k].w->n_leaves != 1) return false;
        f->units = after_parts(f, k, c->n, AFTER_PART, 0);
    }
    if (!groups_of(o->quant, c->y, c->ys, c->n_tokens, c->n, f)) return false;
    for (uint32_t l = 0; f->groups && l + 1 < f->leaf.n; l++) /* a part is a group */
        if (f->leaf.k[l] % GROUP_K) return false;
    return true;
}

static inline bool after_is_heads(const op_linear_args *a, uint32_t n, const op_after *o, lin_after *f)
{
    const op_kv *pg = &o->kv->kv;
    if (n != 3 || o->kv->k != a[1].y || o->kv->ks != a[1].ys || o->kv->v != a[2].y || o->kv->vs != a[2].ys) return false;
    if (a[1].w->n_rows != pg->n_kv_heads * pg->k_dim || a[2].w->n_rows != pg->n_kv_heads * pg->v_dim) return false;
    if (o->kv->b.n_tokens != a->n_tokens || (pg->dtype != DT_F32 && pg->dtype != DT_F16 && pg->dtype != DT_I8)) return false;
    f->times = 1;
    f->kv = *o->kv;
    if (o->kv->kbias) f->kb = *o->kv->kbias;
    uint32_t dim[3] = {0, pg->k_dim, pg->v_dim};
    for (uint32_t k = 0; k < 2; k++) {
        const op_norm_args *m = o->head_norm[k];
        const op_rope_args *r = o->rope[k];
        if (m && (m->x != a[k].y || m->y != a[k].y || m->xs != a[k].ys || m->ys != a[k].ys || m->n_tokens != a->n_tokens)) return false;
        if (m) f->norm[k] = *m, dim[k] = m->n;
        if (r && (r->x != a[k].y || r->xs != a[k].ys || r->n_tokens != a->n_tokens || (m && r->head_dim != m->n))) return false;
        if (r && r->kind != ROPE_NONE) f->rope[k] = *r, dim[k] = r->head_dim;
        if (m && m->n * m->groups != a[k].w->n_rows) return false;
        if (r && r->head_dim * r->n_heads != a[k].w->n_rows) return false;
    }
    if (dim[1] != pg->k_dim) return false;
    for (uint32_t k = 0; k < 3; k++) {
        if (a[k].w->n_leaves != 1) return false;
        f->units = after_parts(f, k, a[k].w->n_rows, dim[k], f->units);
    }
    return true;
}

static inline bool after_is_rows(const op_linear_args *a, uint32_t n, const op_after *o, lin_after *f)
{
    const op_reduce_args *s = o->sum;
    if (n != 1 || a->n_tokens != 1 || !a->xq || a->w->n_leaves == 0 || s->n_leaves != a->w->n_leaves || s->n_leaves > MAX_LEAVES) return false;
    if (s->n != a->w->n_rows || s->n_tokens != 1) return false;
    for (uint32_t l = 0; l < s->n_leaves; l++)
        if ((f->part.at[l] = s->parts[l]) != a->y + l * a->yl) return false;
    f->times = s->n_leaves;
    f->sum = *s;
    f->units = after_parts(f, 0, s->n, AFTER_PART, 0) + 1;
    if (!o->norm) return !o->quant;
    f->norm[0] = *o->norm;
    return o->norm->x == s->y && o->norm->n == s->n && o->norm->groups == 1 && o->norm->n_tokens == 1 &&
           groups_of(o->quant, o->norm->y, o->norm->ys, 1, s->n, f);
}

/* tiles: of tokens, with the shape of block that has the fewest. false: not in one launch. */
static inline bool after_plan(const op_linear_args *a, uint32_t n, const op_after *o, lin_after *f)
{
    bool fits = n <= 3 && a->n_tokens > 0 && a->n_tokens <= AFTER_TOKENS;
    for (uint32_t k = 0; k < n; k++) fits = fits && a[k].w->n_rows > 0 && a[k].row_lo == 0 && (a[k].row_hi == 0 || a[k].row_hi >= a[k].w->n_rows); /* all rows */
    if (!fits) return false;
    switch (o->what) {
    case AFTER_ACT: fits = after_is_act(a, n, o, f); break;
    case AFTER_HEADS: fits = after_is_heads(a, n, o, f); break;
    case AFTER_ROWS: fits = after_is_rows(a, n, o, f); break;
    default: fits = false; break;
    }
    const uint32_t tiles = cu_ceil(a->n_tokens, 16);
    if (!fits || (uint64_t)f->units * tiles > o->counts.n) return false;
    f->what = o->what;
    f->counts = o->counts.at;
    return true;
}
#endif
