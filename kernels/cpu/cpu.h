/*
 * cpu.h - what the CPU kernels share: shares of threads, addresses in tiles and pages.
 *
 * Nothing here does arithmetic on activations: every table of operations states its own, so that ref.c stays an oracle.
 * How work is cut between threads never changes a bit of a result; it only has to cover everything once.
 */
#ifndef TESS_CPU_H
#define TESS_CPU_H
#include "coefs.h"
#include "ops.h"
#include "pool.h"

/* ---- weights ---- */
static inline uint32_t tile_bytes(uint32_t dtype) { return dtype == DT_Q8 ? Q8_TILE : Q4_TILE; }
/* Groups of the leaves before `leaf`: where its groups begin in a row of quantized activations. */
static inline uint32_t groups_before(const op_weight *w, uint32_t leaf)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < leaf; l++) n += (w->runs[l].n_k + GROUP_K - 1) / GROUP_K;
    return n;
}

/* A thread's part of a weight: walks the row parts in order and yields of each the row blocks [b0, b1) of the share, for all
 * leaves of the part: their rows lie alike. The row blocks that hold the wanted rows are cut in n_threads contiguous parts; with many
 * tokens between four or two of them, if there are enough, since kernels take so many together. */
typedef struct {
    const op_weight *w;
    uint32_t row_lo, row_hi, next;
    uint64_t lo, hi, at;
} run_walk;
typedef struct {
    const op_run *run; /* of leaf `leaf`; run_leaf sets both */
    uint32_t leaf, row_lo, row_hi;
    uint64_t b0, b1;
} run_share;

/* Row blocks [*b0, *b1) of a run hold its rows within [lo, hi). */
static inline void rows_blocks(const op_run *r, uint32_t lo, uint32_t hi, uint64_t *b0, uint64_t *b1)
{
    uint64_t first = MAX(lo, r->row0), last = MIN((uint64_t)hi, (uint64_t)r->row0 + r->n_rows);
    *b0 = *b1 = 0;
    if (first >= last) return;
    *b0 = (first - r->row0 + r->row_skip) / TILE_ROWS;
    *b1 = ceil_div(last - r->row0 + r->row_skip, TILE_ROWS);
}
static inline run_walk run_walk_start(const op_linear_args *a, uint32_t thread, uint32_t n_threads)
{
    run_walk k = {.w = a->w, .row_lo = a->row_lo, .row_hi = a->row_hi ? a->row_hi : UINT32_MAX};
    uint64_t total = 0, b0, b1;
    for (uint32_t i = 0; i < a->w->n_parts && a->w->n_leaves; i++, total += b1 - b0)
        rows_blocks(&a->w->runs[i * a->w->n_leaves], k.row_lo, k.row_hi, &b0, &b1);
    uint32_t grain = a->n_tokens < 8 || total < 2 * (uint64_t)n_threads ? 1 : total < 4 * (uint64_t)n_threads ? 2 : 4;
    pool_share(total, grain, thread, n_threads, &k.lo, &k.hi);
    return k;
}
static inline void run_leaf(run_share *s, uint32_t leaf)
{
    s->run = s->run - s->leaf + leaf;
    s->leaf = leaf;
}
static inline bool run_walk_next(run_walk *k, run_share *s)
{
    while (k->w->n_leaves && k->next < k->w->n_parts) {
        const op_run *r = &k->w->runs[k->next++ * k->w->n_leaves];
        uint64_t b0, b1, at = k->at;
        rows_blocks(r, k->row_lo, k->row_hi, &b0, &b1);
        k->at += b1 - b0;
        *s = (run_share){r, 0, k->row_lo, k->row_hi, b0 + MIN(b1 - b0, k->lo > at ? k->lo - at : 0),
                         b0 + MIN(b1 - b0, k->hi > at ? k->hi - at : 0)};
        if (s->b0 < s->b1) return true;
    }
    return false;
}
/* Lanes [lane0, lane1) of row block b belong to the share; lane0 is output row *row. */
static inline void block_rows(const run_share *s, uint64_t b, uint32_t *lane0, uint32_t *lane1, uint32_t *row)
{
    const op_run *r = s->run;
    uint64_t top = b * TILE_ROWS, base = (uint64_t)r->row_skip; /* lane i holds row row0 + top + i - base */
    uint64_t first = MAX(r->row0, s->row_lo) - r->row0 + base, last = MIN((uint64_t)r->row0 + r->n_rows, s->row_hi) - r->row0 + base;
    *lane0 = first > top ? (uint32_t)(first - top) : 0;
    *lane1 = (uint32_t)MIN((uint64_t)TILE_ROWS, last - top);
    *row = r->row0 + (uint32_t)(top + *lane0 - base);
}

/* ---- elementwise work: a share of tokens times columns, as runs of columns of one token ---- */
enum { CELL = 32 };
typedef struct {
    uint64_t at, end;
    uint32_t per_row, n;
} cell_walk;
static inline cell_walk cell_walk_start(uint32_t n_tokens, uint32_t n, uint32_t thread, uint32_t n_threads)
{
    uint64_t per_row = ceil_div(n, CELL), lo, hi;
    pool_share(per_row * n_tokens, 1, thread, n_threads, &lo, &hi);
    return (cell_walk){lo, hi, (uint32_t)per_row, n};
}
static inline bool cell_walk_next(cell_walk *c, uint32_t *t, uint32_t *c0, uint32_t *c1)
{
    if (c->at >= c->end) return false;
    uint64_t row = c->at / c->per_row, first = c->at % c->per_row;
    uint64_t last = MIN((uint64_t)c->per_row, first + (c->end - c->at));
    *t = (uint32_t)row;
    *c0 = (uint32_t)first * CELL;
    *c1 = MIN(c->n, (uint32_t)last * CELL);
    c->at += last - first;
    return true;
}

/* ---- groups of activations: a share of (token, group) pairs, token by token ---- */
typedef struct {
    const op_quant_args *a;
    uint64_t at, end;
    uint32_t n_groups;
} group_walk;
static inline group_walk group_walk_start(const op_quant_args *a, uint32_t thread, uint32_t n_threads)
{
    group_walk w = {.a = a};
    for (uint32_t l = 0; l < a->n_leaves; l++) w.n_groups += (a->leaf_k[l] + GROUP_K - 1) / GROUP_K;
    pool_share((uint64_t)w.n_groups * (a->count ? *a->count : a->n_tokens), 1, thread, n_threads, &w.at, &w.end);
    return w;
}
/* The n columns at *x to the group at *y. */
static inline bool group_walk_next(group_walk *w, const float **x, uint32_t *n, op_group **y)
{
    if (w->at >= w->end) return false;
    const op_quant_args *a = w->a;
    uint64_t t = w->at / w->n_groups;
    uint32_t g = (uint32_t)(w->at % w->n_groups), l = 0, i = g, in_leaf;
    size_t col = 0;
    w->at++;
    while (i >= (in_leaf = (a->leaf_k[l] + GROUP_K - 1) / GROUP_K)) i -= in_leaf, col += a->leaf_k[l++];
    *x = a->x + t * a->xs + col + (size_t)i * GROUP_K;
    *n = MIN((uint32_t)GROUP_K, a->leaf_k[l] - i * GROUP_K);
    *y = a->y + (size_t)g * a->n_tokens + t;
    return true;
}

/* ---- pages ---- */
static inline uint8_t *kv_head(const op_kv *pg, const op_batch *b, uint32_t t, uint32_t pos, uint32_t head)
{
    return b->tables[b->seq[t]][pos / pg->page_tokens] + pg->layer_off + head * pg->head_bytes;
}
static inline size_t kv_esize(const op_kv *pg) { return pg->dtype == DT_F32 ? 4 : pg->dtype == DT_F16 ? 2 : 1; }
/* Element of K: dimension d of slot s (position within the page); dimension d + 1 is 8 elements on (int8: 1, every fourth 29). */
static inline size_t kv_k_at(const op_kv *pg, uint32_t s, uint32_t d)
{
    size_t fours = (size_t)(s / TILE_ROWS) * ((pg->k_dim + 3) / 4) + d / 4;
    if (pg->dtype == DT_I8) return (fours * TILE_ROWS + s % TILE_ROWS) * 4 + d % 4;
    return ((size_t)(s / TILE_ROWS) * pg->k_dim + d) * TILE_ROWS + s % TILE_ROWS;
}
/* Scales of an int8 page of a head: of K, or of V. */
static inline uint8_t *kv_scales(const op_kv *pg, uint8_t *head, bool v)
{
    return head + pg->s_off + (v ? 2 * (size_t)pg->page_tokens : 0);
}
/* First position that row t sees. */
static inline uint32_t attn_lo(uint32_t window, uint32_t pos) { return window && pos >= window ? pos + 1 - window : 0; }
/* Query heads [h0, h1) of the rank that read local kv head g. */
static inline void attn_heads(const op_attn_args *a, uint32_t g, uint32_t *h0, uint32_t *h1)
{
    uint64_t first = (uint64_t)(g + a->kv_head0) * a->group, end = first + a->group;
    *h0 = (uint32_t)MIN((uint64_t)a->n_heads, first > a->q_head0 ? first - a->q_head0 : 0);
    *h1 = (uint32_t)MIN((uint64_t)a->n_heads, end > a->q_head0 ? end - a->q_head0 : 0);
}

/* The sum over all heads of row t, and from it the factor of norm_sums. */
static inline float norm_sums_total(const op_norm_sums_args *a, size_t t)
{
    float s = 0.0f; /* adding the first sum to 0 changes no bit: sums of squares are never -0 */
    for (uint32_t p = 0; p < a->n_parts; p++)
        for (uint32_t h = 0; h < a->parts[p].n; h++) s += a->parts[p].s[t * a->parts[p].ss + h];
    return s;
}

/* ---- instruction sets ---- */
/* What a CPU says of itself: cpuid leaf 1 ECX, leaf 7 EBX and ECX, leaf 7.1 EAX, and the registers that the system keeps, XCR0. */
typedef struct {
    uint32_t c1, b7, c7, a71, xcr0;
} cpu_words;
enum { CPU_AVX2 = 1, CPU_AVXVNNI = 2, CPU_AVX512 = 4, CPU_AVX512VNNI = 8 };
uint32_t cpu_sets(const cpu_words *w); /* those whose tables may run */

/* experts, by a table's linear. */
void experts_by(void (*linear)(const op_linear_args *, uint32_t, uint32_t), const op_experts_args *a, uint32_t thread, uint32_t n_threads);
/* Operations that other tables take as they are. */
void ref_embed(const op_embed_args *a, uint32_t thread, uint32_t n_threads);
void ref_kv_write(const op_kv_write_args *a, uint32_t thread, uint32_t n_threads);
void ref_route(const op_route_args *a, uint32_t thread, uint32_t n_threads);
void ref_pairs(const op_pairs_args *a, uint32_t thread, uint32_t n_threads);
void ref_gather(const op_gather_args *a, uint32_t thread, uint32_t n_threads);
void ref_gate(const op_switch_args *a, uint32_t thread, uint32_t n_threads);
void ref_mix(const op_mix_args *a, uint32_t thread, uint32_t n_threads);
void ref_clamp(const op_clamp_args *a, uint32_t thread, uint32_t n_threads);
void ref_reduce(const op_reduce_args *a, uint32_t thread, uint32_t n_threads);
#endif
