/*
 * convert_quant.c - boxes of weights in q8 and q4 for the writer.
 *
 * When the source holds groups of the same type, cut where ours are (blocks of GGUF count from column 0, ours from the
 * start of each leaf), they are moved as they are; a Q4_0 block becomes a q4 block of the same values. Other GGUF blocks, and
 * the values of a source that computes them, become ours in the source, which keeps codes where it can. All else is read as f32,
 * 8 rows at a time, and fitted. Memory is 8 rows per thread.
 */
#include "convert.h"
#include "gguf_blocks.h"
#include "quant.h"
#include "source_tess.h"

typedef struct {
    const convert_source *c;
    const weight *w;
    uint32_t dtype, from;  /* dtype of the source */
    uint64_t k0, n_k, n_groups;
    uint64_t k[MAX_LEAVES];
    uint32_t n_leaves;
} quant_box;

/* The leaves that make up columns [k0, k0 + n_k). */
static void cut_leaves(quant_box *b)
{
    arch_axis x;
    const role_info *r = role_get(b->w->role);
    bool split = r && r->row_axis == AXIS_NONE && r->k_axis != AXIS_NONE && arch_axis_of(&b->c->a, r->k_axis, &x);
    b->n_leaves = 1;
    b->k[0] = b->n_k;
    if (split) b->n_leaves = 0;
    for (uint32_t i = 0; split && i < x.n_leaves; i++) {
        uint64_t lo = axis_elem(&x, x.leaf[i]), hi = axis_elem(&x, x.leaf[i + 1]);
        if (lo >= b->k0 && hi <= b->k0 + b->n_k) b->k[b->n_leaves++] = hi - lo;
    }
    b->n_groups = 0;
    for (uint32_t i = 0; i < b->n_leaves; i++) b->n_groups += ceil_div(b->k[i], GROUP_K);
}

/* The groups of a .tess count from the leaves of its own axis, which must be the ones that arch gives. */
static bool same_leaves(const quant_box *b)
{
    arch_axis x;
    const ct_info *info = ct_get(tess_source_file(b->c->s));
    const ct_tensor *t = &info->tensors[b->w->map.src];
    const role_info *r = role_get(b->w->role);
    bool split = r && r->row_axis == AXIS_NONE && r->k_axis != AXIS_NONE && arch_axis_of(&b->c->a, r->k_axis, &x);
    if (!split) return t->split_dim != 1;
    if (t->split_dim != 1) return x.n_leaves == 1;
    const arch_axis *f = &info->axes[t->axis];
    return f->unit == x.unit && f->dim == x.dim && f->n_leaves == x.n_leaves &&
           memcmp(f->leaf, x.leaf, (x.n_leaves + 1) * sizeof x.leaf[0]) == 0;
}

/* Whether all groups start at multiples of 32 of the row, as those of GGUF do. */
static bool groups_aligned(const quant_box *b)
{
    uint64_t at = b->k0;
    for (uint32_t i = 0; i < b->n_leaves; at += b->k[i++])
        if (at % GROUP_K) return false;
    return true;
}

static bool groups_agree(const quant_box *b)
{
    if (b->w->map.transposed || convert_is_merged(b->c, b->w)) return false;
    if (b->from == b->dtype) return same_leaves(b);
    if (b->dtype == DT_Q8 ? b->from != SRC_Q8_0 : b->from != SRC_Q4_0 && b->from != SRC_Q4_1) return false;
    return groups_aligned(b) && (b->k0 + b->n_k) % GROUP_K == 0;
}

/* Whether the source can give blocks of its own. */
static bool has_blocks(const quant_box *b)
{
    if (!b->c->s->blocks || b->w->map.transposed || convert_is_merged(b->c, b->w)) return false;
    return b->from == SRC_COMPUTED || (gguf_block_like(b->from) && groups_aligned(b));
}

/* Rows [row0, row0 + n) of the box, n <= 8, from blocks of the source in `rows` to their tiles. */
static tess_status move_rows(const quant_box *b, uint64_t row0, uint32_t n, uint8_t *rows, uint8_t *dst, tess_error *err)
{
    uint8_t block[Q8_BLOCK];
    const source *s = b->c->s;
    bool q4_0 = b->from == SRC_Q4_0;
    size_t bytes = q4_0 ? 18 : quant_block_bytes(b->dtype), tile = quant_tile_bytes(b->dtype);
    TRY(family_read_blocks(s, b->w, row0, n, b->k0, b->n_k, (size_t)b->n_groups * bytes, rows, err));
    if (n < TILE_ROWS) memset(dst, 0, (size_t)b->n_groups * tile);
    for (uint32_t r = 0; r < n; r++)
        for (uint64_t g = 0; g < b->n_groups; g++, rows += bytes) {
            if (q4_0 && !quant_from_q4_0(rows, block))
                return ERR(err, TESS_E_UNSUPPORTED, "%s: tensor \"%s\", row %llu: the scale of a Q4_0 block is too large for q4",
                           s->paths[0], s->tensors[b->w->map.src].name, (unsigned long long)(row0 + r));
            quant_put(b->dtype, dst + g * tile, r, q4_0 ? block : rows);
        }
    return TESS_OK;
}

/* What rows, the exact values of n rows, lost in their tiles. */
static void count_loss(const quant_box *b, const float *rows, uint32_t n, const uint8_t *tiles, convert_loss *loss)
{
    const src_tensor *t = &b->c->s->tensors[b->w->map.src];
    const dtype_info *d = b->from < SRC_Q8_0 ? dtype_get(b->from) : NULL;
    double error = 0, all = 0;
    if (d && d->is_float) return; /* that a float type loses in q8 and q4 is known */
    for (uint32_t i = 0; i < b->n_leaves; rows += b->k[i++])
        for (uint64_t k = 0; k < b->k[i]; k += GROUP_K, tiles += quant_tile_bytes(b->dtype))
            for (uint32_t r = 0; r < n; r++) {
                uint8_t block[Q8_BLOCK];
                float stored[GROUP_K];
                quant_get(b->dtype, tiles, r, block);
                quant_block_f32(b->dtype, block, stored);
                convert_loss_of(rows + r * b->n_k + k, stored, (size_t)MIN((uint64_t)GROUP_K, b->k[i] - k), &error, &all);
            }
    convert_loss_add(loss, t->type, b->dtype, error, all);
}

/* The source's own blocks, which hold its codes where they can; `line` is room for one row of them. */
static tess_status block_rows(const quant_box *b, uint64_t row0, uint32_t n, uint8_t *line, uint8_t *dst, tess_error *err)
{
    const source *s = b->c->s;
    uint32_t bytes = quant_block_bytes(b->dtype), tile = quant_tile_bytes(b->dtype);
    if (n < TILE_ROWS) memset(dst, 0, (size_t)b->n_groups * tile);
    for (uint32_t r = 0; r < n; r++) {
        uint64_t run, at = family_map_row(&b->w->map, row0 + r, &run), k = b->k0;
        uint8_t *p = line;
        for (uint32_t i = 0; i < b->n_leaves; k += b->k[i], p += ceil_div(b->k[i], GROUP_K) * bytes, i++)
            TRY(s->blocks(s, b->w->map.src, at, k, b->k[i], b->dtype, p, err));
        for (uint64_t g = 0; g < b->n_groups; g++) quant_put(b->dtype, dst + g * tile, r, line + g * bytes);
    }
    return TESS_OK;
}

/* Fits rows, the values of n rows. */
static tess_status fit_rows(const quant_box *b, uint64_t row0, uint32_t n, const float *rows, uint8_t *dst, tess_error *err)
{
    const source *s = b->c->s;
    if (quant_rows(b->dtype, rows, (size_t)b->n_k, n, b->k, b->n_leaves, dst)) return TESS_OK;
    return ERR(err, TESS_E_UNSUPPORTED,
               "%s: tensor \"%s\" holds NaN, infinity or a value too large for %s near row %llu; use --type bf16",
               s->paths[0], s->tensors[b->w->map.src].name, dtype_get(b->dtype)->name, (unsigned long long)row0);
}

/* Where rows of a box come from. */
enum { WAY_MOVE, WAY_BLOCKS, WAY_FIT };

static tess_status read_rows(const quant_box *b, int way, uint64_t row0, uint32_t n, void *rows, uint8_t *dst, convert_loss *loss,
                             tess_error *err)
{
    if (way == WAY_MOVE) return move_rows(b, row0, n, rows, dst, err);
    float *exact = rows;
    TRY(convert_read(b->c, b->w, DT_F32, row0, n, b->k0, b->n_k, exact, err));
    TRY(way == WAY_FIT ? fit_rows(b, row0, n, exact, dst, err)
                       : block_rows(b, row0, n, (uint8_t *)(exact + TILE_ROWS * b->n_k), dst, err));
    count_loss(b, exact, n, dst, loss);
    return TESS_OK;
}

tess_status convert_read_quant(const convert_source *c, const weight *w, uint32_t dtype, uint64_t row0,
                               uint64_t n_rows, uint64_t k0, uint64_t n_k, uint8_t *dst, convert_loss *loss, tess_error *err)
{
    quant_box b = {.c = c, .w = w, .dtype = dtype, .from = c->s->tensors[w->map.src].dtype, .k0 = k0, .n_k = n_k};
    size_t bytes;
    cut_leaves(&b);
    int way = groups_agree(&b) ? WAY_MOVE : has_blocks(&b) ? WAY_BLOCKS : WAY_FIT;
    uint64_t row = MAX(b.n_groups * Q8_BLOCK, n_k * sizeof(float)) + b.n_groups * Q8_BLOCK;
    void *rows = size_mul3(row, TILE_ROWS, 1, &bytes) ? mem_alloc(&c->m, bytes) : NULL;
    if (!rows) return ERR(err, TESS_E_NOMEM, "no memory to quantize rows of %llu columns", (unsigned long long)n_k);
    tess_status st = TESS_OK;
    for (uint64_t r = 0; r < n_rows && st == TESS_OK; r += TILE_ROWS) {
        uint32_t n = (uint32_t)MIN((uint64_t)TILE_ROWS, n_rows - r);
        st = read_rows(&b, way, row0 + r, n, rows, dst, loss, err);
        dst += b.n_groups * quant_tile_bytes(dtype);
    }
    mem_free(&c->m, rows);
    return st;
}
