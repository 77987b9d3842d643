/*
 * quant.h - groups of 32 weights as q8 and q4: fitted from floats, and moved between blocks and tiles without loss.
 *
 * A block is one group of one row by itself; it is the form in which sources of checkpoints hand groups over:
 *   q8, 34 bytes: f16 d; int8 q[32]            w = d * q
 *   q4, 20 bytes: f16 d, m; u8 b[16]           w = d * q + m, element i in the low half of b[i], i + 16 in the high half
 * A tile (dtype.h) holds the groups of 8 rows. Codes behind the end of a short group are 0.
 */
#ifndef TESS_QUANT_H
#define TESS_QUANT_H
#include "dtype.h"

enum { Q8_BLOCK = 34, Q4_BLOCK = 20 };
static inline uint32_t quant_block_bytes(uint32_t dt) { return dt == DT_Q8 ? Q8_BLOCK : Q4_BLOCK; }
static inline uint32_t quant_tile_bytes(uint32_t dt) { return dt == DT_Q8 ? Q8_TILE : Q4_TILE; }

/* Fits a block to x[0..n), 1 <= n <= 32. False: a value is not finite, or too large for an f16 scale; the block is then
 * undefined. Codes of q8 are never -128. The result depends on the values alone. */
bool quant_fit(uint32_t dt, const float *x, uint32_t n, uint8_t *block);
void quant_block_f32(uint32_t dt, const uint8_t *block, float out[GROUP_K]);
/* The block of lane r of a tile. */
void quant_put(uint32_t dt, uint8_t *tile, uint32_t r, const uint8_t *block);
void quant_get(uint32_t dt, const uint8_t *tile, uint32_t r, uint8_t *block);
/* One row block: n_rows <= 8 rows of the leaves k[0..n_leaves), row r at x + r * stride, to its tiles at dst, which are
 * wholly written (missing rows are 0). False as in quant_fit. */
bool quant_rows(uint32_t dt, const float *x, size_t stride, uint32_t n_rows, const uint64_t *k, uint32_t n_leaves,
                uint8_t *dst);
/* A block of GGUF's Q4_0 (f16 d; nibbles minus 8) as one of q4: the same values, m = -8 d. False: m is beyond f16. */
bool quant_from_q4_0(const uint8_t *src, uint8_t *block);
/* The block of given codes, w = d * q + m (m = 0 for q8), d and m being rounded to f16. False: a code is outside 0..15 or
 * -128..127, d is too large or too small for f16 to hold it to 11 bits, or m is too large. */
bool quant_from_codes(uint32_t dt, float d, float m, const int32_t q[GROUP_K], uint8_t *block);
#endif
