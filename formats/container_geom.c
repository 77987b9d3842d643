/*
 * container_geom.c - shapes, boxes, sizes and row hashes: the one place where the reader and the writer get
 * them from.
 *
 * A tensor is a matrix of rows x K (container.h). A split tensor has n = min(tp, leaves) pieces; piece p is the
 * leaves [L p / n, L (p + 1) / n) of its axis, as a range of rows or of columns. Nothing else is stored about a
 * box.
 */
#include "container_priv.h"
#include "utf8.h"

ct_view ct_view_of(const ct_tensor *t)
{
    ct_view v = {1, t->shape[t->rank - 1]};
    for (uint32_t i = 0; i + 1 < t->rank; i++) v.rows *= t->shape[i];
    return v;
}

const char *ct_shape_bad(const ct_tensor *t)
{
    uint64_t n = 1;
    const dtype_info *d = dtype_get(t->dtype);
    if (!d) return "dtype: is not known";
    if (t->rank < 1 || t->rank > 4) return "rank: is not in 1 to 4";
    for (uint32_t i = 0; i < 4; i++) {
        if (i >= t->rank && t->shape[i] != 0) return "shape: dimensions beyond the rank are not zero";
        if (i < t->rank && (t->shape[i] == 0 || t->shape[i] > CT_DIM_MAX))
            return "shape: a dimension is not in 1 to 2^40";
        if (i < t->rank && (!u64_mul(n, t->shape[i], &n) || n > CT_ELEMENTS_MAX))
            return "shape: more than 2^48 elements";
    }
    if (t->layout > LAYOUT_TILE8) return "layout: is not known";
    if (dtype_is_quant(t->dtype) && (t->rank != 2 || t->layout != LAYOUT_TILE8))
        return "layout: q8 and q4 are tiled matrices";
    if (t->layout == LAYOUT_TILE8 && (t->rank != 2 || !(d->is_float || dtype_is_quant(t->dtype))))
        return "layout: only float, q8 and q4 matrices are tiled";
    return NULL;
}

static bool has_dotdot(const char *s, size_t n)
{
    for (size_t i = 0, start = 0; i <= n; i++)
        if (i == n || s[i] == '/') {
            if (i - start == 2 && s[start] == '.' && s[start + 1] == '.') return true;
            start = i + 1;
        }
    return false;
}

const char *ct_name_bad(const char *s, size_t n)
{
    if (n == 0 || n > CT_MAX_NAME) return "has not 1 to 255 bytes";
    for (size_t i = 0; i < n;) {
        uint32_t cp, len = utf8_decode(s + i, n - i, &cp);
        if (len == 0) return "is not UTF-8";
        if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0)) return "has a control character";
        i += len;
    }
    if (s[0] == '/' || has_dotdot(s, n)) return "is a path that leaves its directory";
    return NULL;
}

bool ct_split_k(const ct_tensor *t) { return t->split_dim != CT_SPLIT_NONE && t->split_dim + 1 == t->rank; }

uint32_t ct_axis_pieces(const arch_axis *x, uint32_t tp) { return MIN(tp, x->n_leaves); }

const char *ct_axis_bad(const arch_axis *x)
{
    if (x->kind < AXIS_Q_HEADS || x->kind >= AXIS_COUNT) return "kind: is not known";
    if (x->unit == 0 || x->dim == 0 || x->dim > CT_DIM_MAX) return "unit or dim: out of range";
    if (ceil_div(x->dim, x->unit) > CT_UNITS_MAX || x->n_units != ceil_div(x->dim, x->unit))
        return "unit: does not divide dim into the units of the axis";
    if (x->n_leaves == 0 || x->n_leaves > MAX_LEAVES || x->n_leaves > x->n_units)
        return "n_leaves: out of range";
    if (x->leaf[0] != 0 || x->leaf[x->n_leaves] != x->n_units) return "leaf bounds: do not cover the axis";
    for (uint32_t i = 0; i < x->n_leaves; i++)
        if (x->leaf[i] >= x->leaf[i + 1]) return "leaf bounds: do not ascend";
    return NULL;
}

void ct_piece_box(const ct_tensor *t, const arch_axis *x, uint32_t n, uint32_t p, ct_piece *out)
{
    ct_view v = ct_view_of(t);
    out->piece_no = p;
    out->row0 = out->k0 = 0;
    out->n_rows = v.rows;
    out->n_k = v.k;
    out->leaf0 = 0;
    out->n_leaves = 1;
    if (!x) return;
    uint32_t lo = x->n_leaves * p / n, hi = x->n_leaves * (p + 1) / n;
    uint64_t from = axis_elem(x, x->leaf[lo]), to = axis_elem(x, x->leaf[hi]);
    if (ct_split_k(t)) {
        out->k0 = from;
        out->n_k = to - from;
        out->leaf0 = lo;
        out->n_leaves = hi - lo;
    } else {
        out->row0 = from;
        out->n_rows = to - from;
    }
}

uint32_t ct_piece_leaves(const ct_tensor *t, const arch_axis *x, const ct_piece *p, uint64_t k[MAX_LEAVES])
{
    if (!x || !ct_split_k(t)) {
        k[0] = p->n_k;
        return 1;
    }
    for (uint32_t i = 0; i < p->n_leaves; i++)
        k[i] = axis_elem(x, x->leaf[p->leaf0 + i + 1]) - axis_elem(x, x->leaf[p->leaf0 + i]);
    return p->n_leaves;
}

uint32_t ct_rows_per_chunk(const ct_tensor *t, const ct_piece *p, const uint64_t *k, uint32_t n_leaves)
{
    uint64_t stride, step = t->rank == 1 ? 1 : TILE_ROWS; /* so that a coded chunk can be interleaved alone */
    if (!layout_bytes(t->dtype, t->layout, step, k, n_leaves, &stride) || stride == 0 || stride > CT_CHUNK_MAX)
        return 0;
    uint64_t rows = MAX(CT_CHUNK_TARGET / stride, 1) * step, most = ceil_div(p->n_rows, step) * step;
    return (uint32_t)MIN(rows, most);
}

bool ct_chunk_bytes(const ct_tensor *t, const ct_piece *p, const uint64_t *k, uint32_t n_leaves, uint32_t c,
                    uint64_t *bytes, uint64_t *n_rows)
{
    uint64_t first = (uint64_t)c * p->rows_per_chunk;
    *n_rows = MIN((uint64_t)p->rows_per_chunk, p->n_rows - first);
    return layout_bytes(t->dtype, t->layout, *n_rows, k, n_leaves, bytes);
}

bool ct_logical_bytes(const ct_tensor *t, const arch_axis *x, uint64_t *bytes)
{
    ct_piece all;
    uint64_t k[MAX_LEAVES];
    ct_piece_box(t, x, 1, 0, &all);
    uint32_t n = ct_piece_leaves(t, x, &all, k);
    return layout_bytes(t->dtype, dtype_is_quant(t->dtype) ? LAYOUT_TILE8 : LAYOUT_ROWS, all.n_rows, k, n,
                        bytes);
}

/* ---- row hashes ---- */

size_t ct_hash_tmp(const ct_tensor *t, const uint64_t *k, uint32_t n_leaves)
{
    uint64_t longest = 0;
    if (!dtype_is_quant(t->dtype)) return 0;
    for (uint32_t i = 0; i < n_leaves; i++) longest = MAX(longest, ceil_div(k[i], GROUP_K));
    return (size_t)longest * TILE_ROWS * 36;
}

/* One tile to eight groups of d, (m,) q[32], row r's group at dst + r * stride. */
static void tile_rows(uint32_t dtype, const uint8_t *tile, uint8_t *dst, size_t stride)
{
    bool q4 = dtype == DT_Q4;
    const uint8_t *q = tile + (q4 ? 32 : 16);
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        uint8_t *d = dst + r * stride;
        memcpy(d, tile + r * 2, 2);
        if (!q4) {
            for (uint32_t j = 0; j < 8; j++) memcpy(d + 2 + j * 4, q + j * 32 + r * 4, 4);
            continue;
        }
        memcpy(d + 2, tile + 16 + r * 2, 2);
        for (uint32_t j = 0; j < 4; j++) {
            uint32_t b = rd32(q + j * 32 + r * 4);
            wr32(d + 4 + j * 8, b & 0x0f0f0f0f);
            wr32(d + 8 + j * 8, b >> 4 & 0x0f0f0f0f);
        }
    }
}

static void hash_tiles(uint32_t dtype, const uint8_t *src, uint64_t n_rows, const uint64_t *k,
                       uint32_t n_leaves, uint64_t *out, uint64_t out_stride, uint8_t *tmp)
{
    size_t tile = dtype == DT_Q8 ? Q8_TILE : Q4_TILE, group = dtype == DT_Q8 ? 34 : 36;
    for (uint64_t r0 = 0; r0 < n_rows; r0 += TILE_ROWS)
        for (uint32_t l = 0; l < n_leaves; l++) {
            size_t groups = (size_t)ceil_div(k[l], GROUP_K), row = groups * group;
            for (size_t g = 0; g < groups; g++, src += tile) tile_rows(dtype, src, tmp + g * group, row);
            for (uint64_t r = 0; r < TILE_ROWS && r0 + r < n_rows; r++)
                out[(r0 + r) * out_stride + l] = hash64(tmp + r * row, row, 0);
        }
}

void ct_hash_rows(const ct_tensor *t, const uint8_t *src, uint64_t n_rows, const uint64_t *k, uint32_t n_leaves,
                  uint64_t *out, uint64_t out_stride, uint8_t *tmp)
{
    if (dtype_is_quant(t->dtype)) {
        hash_tiles(t->dtype, src, n_rows, k, n_leaves, out, out_stride, tmp);
        return;
    }
    size_t esize = dtype_get(t->dtype)->block_bytes;
    for (uint64_t r = 0; r < n_rows; r++)
        for (uint32_t l = 0; l < n_leaves; l++) {
            size_t n = (size_t)k[l] * esize;
            out[r * out_stride + l] = hash64(src, n, 0);
            src += n;
        }
}
