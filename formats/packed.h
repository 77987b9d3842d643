/*
 * packed.h - checkpoints that were published in quantized form, as a source of their weights.
 *
 * hf_quant.c reads what config.json says about it into a packed_scheme. packed_open lays a source over that of the
 * files: the parts of each quantized matrix (codes, scales, zero points, order) become one tensor with the name, shape
 * and orientation that the plain checkpoint has, of type SRC_COMPUTED; scales of activations are left out; all else
 * stays as it is.
 *
 * Every form is the same sum: w = scale * (table[code] - zero), in f32 with one rounding for the product. Codes are
 * bytes after unpacking; a scale and a zero belong to a group of columns of a row (or to a block of several rows).
 * Layouts, with N rows (outputs) and K columns (inputs) of the matrix and b bits a code; words are 32 bits, little-endian,
 * the first code in the lowest bits:
 *
 *   GPTQ      qweight [K * b / 32][N], codes of ascending k in a word; qzeros [G][N * b / 32], codes of ascending n;
 *             scales [G][N]; g_idx [K], the group of each k (none: k / group_size). The zero is the stored code + 1,
 *             in b bits, in files of version 1 and the stored code in version 2 (checkpoint_format gptq_v2). GPTQModel
 *             makes version 1 by subtracting 1 from every field of the word, with borrow: in files that name it as
 *             quantizer the whole word is added to. Source: the packing code of AutoGPTQ and GPTQModel.
 *   AWQ       qweight [K][N * b / 32], qzeros [G][N * b / 32], scales [G][N]; field i of a word is row 8 j + order[i],
 *             order = 0 2 4 6 1 3 5 7 (version gemm). Source: AutoAWQ's WQLinear_GEMM.
 *   FP8       weight [N][K] of 8-bit floats; weight_scale or weight_scale_inv, both multiplied with: one for all, one
 *             for each row, or one for each block of weight_block_size, [ceil(N / bn)][ceil(K / bk)]. Source:
 *             DeepSeek-V3's README of its weights, compressed-tensors, transformers.
 *   int8      weight [N][K] int8, weight_scale [N][1], weight_zero_point likewise or none. compressed-tensors.
 *   packed    weight_packed [N][ceil(K * b / 32)], codes plus 2^(b-1), in ascending k; weight_scale [N][G],
 *             weight_zero_point [ceil(N * b / 32)][G] packed along n with the same offset, or none; weight_g_idx.
 *             compressed-tensors.
 *   MXFP4     X_blocks [..., N][K / 32][16], two codes a byte, the first in the low half: sign, 2 bits of exponent, 1 of
 *             mantissa; X_scales [..., N][K / 32], powers of two with bias 127. OCP Microscaling formats 1.0; gpt-oss.
 */
#ifndef TESS_PACKED_H
#define TESS_PACKED_H
#include "source.h"

enum { PACKED_NONE = 0, PACKED_GPTQ, PACKED_AWQ, PACKED_FP8, PACKED_COMPRESSED, PACKED_MXFP4 };
enum { ZERO_PLUS1 = 0, ZERO_PLUS1_WORD, ZERO_PLAIN }; /* of GPTQ: see above */
typedef struct {
    uint32_t method;                 /* PACKED_* */
    uint32_t bits, group;            /* as the configuration says; group 0: all of K */
    uint32_t zero_rule;              /* ZERO_* */
    uint32_t block_rows, block_cols; /* weight_block_size; 0 = none */
} packed_scheme;

/* Puts a packed source in the place of *s, which it takes over. An error leaves *s as it was. */
tess_status packed_open(source **s, const packed_scheme *scheme, tess_error *err);
#endif
