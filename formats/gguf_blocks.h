/*
 * gguf_blocks.h - the block types of GGUF: their sizes, values, and what becomes of them in q8 and q4.
 *
 * Every type that is read is the same sum over groups of 32 elements of a row: w = d * code + m, where d and m belong to
 * 16 elements. d * code is exact in f32 (an f16 of 11 bits, a scale and a code have at most 24 bits together in every type), so
 * a value is rounded once, and is the same as that of other readers, whatever the order of their products.
 */
#ifndef TESS_GGUF_BLOCKS_H
#define TESS_GGUF_BLOCKS_H
#include "source.h"

enum { GGUF_MAX_BLOCK = 256 };
/* Elements and bytes of a block of type dtype, SRC_*; false when it is none of GGUF's. */
bool gguf_block_size(uint32_t dtype, uint32_t *elems, uint32_t *bytes);
/* DT_Q8 or DT_Q4: what --type auto stores it in. */
uint32_t gguf_block_like(uint32_t dtype);
/* The values of one block. */
void gguf_block_f32(uint32_t dtype, const uint8_t *block, float *out);
/* source.blocks of a GGUF file: k0 is a multiple of 32. Codes are kept where one scale (and minimum) of ours holds the group:
 * Q4_K in q4; Q5_0, IQ4_NL, IQ4_XS and MXFP4 in q8; all else is fitted. */
tess_status gguf_blocks(const source *s, uint32_t i, uint64_t row, uint64_t k0, uint64_t n_k, uint32_t dt, uint8_t *dst,
                        tess_error *err);
#endif
