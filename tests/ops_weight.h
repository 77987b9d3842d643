/* ops_weight.h - random weights in TILE8 for t_ops.c and t_cuda_ops.c; what does not belong to them holds NaN. */
#ifndef TESS_OPS_WEIGHT_H
#define TESS_OPS_WEIGHT_H
#include "ops_common.h"
#include "quant.h"

typedef struct {
    op_weight w;
    op_run runs[64];
    uint8_t *data[64];
    uint32_t n;
} test_weight;

/* Lane r, column k of a row block. */
static inline double block_at(uint32_t dtype, const uint8_t *block, uint32_t r, uint32_t k)
{
    float v;
    if (dtype != DT_Q8 && dtype != DT_Q4) {
        dtype_to_f32(dtype, block + ((size_t)k * 8 + r) * (dtype == DT_F32 ? 4 : 2), &v, 1);
        return (double)v;
    }
    const uint8_t *tile = block + (size_t)(k / 32) * quant_tile_bytes(dtype);
    uint8_t one[Q8_BLOCK];
    float group[32];
    quant_get(dtype, tile, r, one);
    quant_block_f32(dtype, one, group);
    return (double)group[k % 32];
}

/* Random tiles; all codes occur, -128 of q8 included, also behind the end of K. Lanes outside [lane0, lane1) are NaN. */
static inline void random_tile(uint32_t dtype, uint8_t *tile, uint32_t lane0, uint32_t lane1)
{
    for (uint32_t i = 0; i < quant_tile_bytes(dtype); i++) tile[i] = rnd(4) ? (uint8_t)rnd(256) : 0x80;
    for (uint32_t r = 0; r < (dtype == DT_Q4 ? 16u : 8u); r++) {
        uint16_t h = r % 8 < lane0 || r % 8 >= lane1 ? 0x7e01 : f32_to_f16(real() * (r < 8 ? 0.01f : 0.1f));
        memcpy(tile + 2 * r, &h, 2);
    }
}

/* A weight in parts and leaves; lanes outside the runs hold NaN, and so do the gaps between row blocks. */
static inline void weight_make(test_weight *x, uint32_t dtype, uint32_t parts, uint32_t leaves, uint32_t rows, uint32_t n_k)
{
    bool quant = dtype_is_quant(dtype);
    size_t es = dtype == DT_F32 ? 4 : 2;
    *x = (test_weight){.w = {dtype, rows, n_k, leaves, parts, NULL}, .n = parts * leaves};
    x->w.runs = x->runs;
    for (uint32_t p = 0; p < parts; p++) {
        uint32_t row0 = rows * p / parts, skip = rnd(8), n_rows = rows * (p + 1) / parts - row0;
        for (uint32_t l = 0; l < leaves; l++) {
            uint32_t k0 = n_k * l / leaves, k = n_k * (l + 1) / leaves - k0, blocks = (skip + n_rows + 7) / 8, gap = rnd(3);
            size_t stride = quant ? (size_t)((k + 31) / 32 + gap) * quant_tile_bytes(dtype) : (size_t)(k + gap) * 8 * es;
            uint8_t *d = must(malloc(blocks * stride + 1));
            float nan = NAN;
            for (size_t i = 0; quant && i < blocks * stride; i += quant_tile_bytes(dtype)) {
                uint32_t b = (uint32_t)(i / stride);
                random_tile(dtype, d + i, b ? 0 : skip, MIN(8, skip + n_rows - b * 8));
            }
            for (size_t i = 0; !quant && i < blocks * stride / es; i++) dtype_from_f32(dtype, &nan, d + i * es, 1);
            for (uint32_t r = skip; !quant && r < skip + n_rows; r++)
                for (uint32_t i = 0; i < k; i++) {
                    float v = real();
                    dtype_from_f32(dtype, &v, d + r / 8 * stride + ((size_t)i * 8 + r % 8) * es, 1);
                }
            x->data[p * leaves + l] = d;
            x->runs[p * leaves + l] = (op_run){d, stride, skip, row0, n_rows, k0, k};
        }
    }
}
static inline void weight_free(test_weight *x)
{
    for (uint32_t i = 0; i < x->n; i++) free(x->data[i]);
}
/* Element (row, k) within leaf l. */
static inline double weight_at(const test_weight *x, uint32_t row, uint32_t l, uint32_t k)
{
    uint32_t p = 0;
    while (row >= x->runs[p * x->w.n_leaves].row0 + x->runs[p * x->w.n_leaves].n_rows) p++;
    const op_run *r = &x->runs[p * x->w.n_leaves + l];
    uint32_t at = row - r->row0 + r->row_skip;
    return block_at(x->w.dtype, r->data + at / 8 * r->block_stride, at % 8, k);
}
#endif
