/*
 * dtype.h - element types of tensors and the tiled layout of weights.
 *
 * One table row per type (name, storage block, bytes). Values are part of the file format: append only.
 * q8: groups of 32 along K: int8 q[32], f16 scale.     w = d * q
 * q4: groups of 32 along K: 4-bit q[32], f16 scale and minimum.     w = d * q + m
 *
 * Layouts of a matrix of `rows` by K, where K is cut in leaves (one leaf unless K is a split axis):
 * LAYOUT_ROWS  row-major, rows one after another, floats only.
 * LAYOUT_TILE8 blocks of 8 rows (the last one padded with zero rows). Within a row block K ascends; floats:
 *              8 values (one of each row) per k, so offset of (r, k) is ((r / 8) * K + k) * 8 + r % 8 elements;
 *              q8/q4: for each leaf, ceil(leaf / 32) tiles, K padded with zeros at the leaf's end:
 *              q8 tile, 272 bytes: f16 d[8]; int8 q[8 of k/4][8 rows][4 of k]
 *              q4 tile, 160 bytes: f16 d[8], f16 m[8]; u8 q[4 of 8 k][8 rows][4]: byte (j, r, i) holds k = 8j + i
 *              in its low half and k = 8j + 4 + i in its high half.
 */
#ifndef TESS_DTYPE_H
#define TESS_DTYPE_H
#include "base.h"

enum { DT_F32 = 1, DT_F16 = 2, DT_BF16 = 3, DT_Q8 = 4, DT_Q4 = 5, DT_I8 = 6, DT_I32 = 7, DT_U8 = 8, DT_COUNT = 9 };
enum { LAYOUT_ROWS = 0, LAYOUT_TILE8 = 1 };
enum { TILE_ROWS = 8, GROUP_K = 32, Q8_TILE = 272, Q4_TILE = 160, MAX_LEAVES = 8 };

typedef struct { const char *name; uint32_t block; uint32_t block_bytes; bool is_float; } dtype_info;
const dtype_info *dtype_get(uint32_t dt); /* NULL when unknown */
int dtype_by_name(const char *name);      /* "f32", "bf16", ...; 0 when unknown */
static inline bool dtype_is_quant(uint32_t dt) { return dt == DT_Q8 || dt == DT_Q4; }

/* Bytes of one row block (LAYOUT_TILE8) or one row (LAYOUT_ROWS) whose K consists of leaves of k[0..n_leaves) elements;
 * false on overflow or when the pair of dtype and layout does not exist. */
bool layout_stride(uint32_t dt, uint32_t layout, const uint64_t *k, uint32_t n_leaves, uint64_t *bytes);
/* The only function that says how many bytes a matrix takes: rows x K in `layout`. */
bool layout_bytes(uint32_t dt, uint32_t layout, uint64_t rows, const uint64_t *k, uint32_t n_leaves, uint64_t *bytes);

/* Float rows <-> TILE8, esize 2 or 4: n_rows (any; padded to 8 with zeros) of n_k elements; src_stride in bytes. */
void tile8_pack(void *dst, const void *src, size_t src_stride, uint64_t n_rows, uint64_t n_k, uint32_t esize);
void tile8_unpack(void *dst, size_t dst_stride, const void *src, uint64_t n_rows, uint64_t n_k, uint32_t esize);

float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f); /* round to nearest even, as hardware */
float bf16_to_f32(uint16_t h);
uint16_t f32_to_bf16(float f); /* round to nearest even; NaN stays NaN */
/* n elements of a float dtype to f32 and back. */
void dtype_to_f32(uint32_t dt, const void *src, float *dst, size_t n);
void dtype_from_f32(uint32_t dt, const float *src, void *dst, size_t n);
#endif
