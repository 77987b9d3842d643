/* rope.h - tables of cos and sin, as transformers computes them (modeling_rope_utils): inverse frequencies in float32 from
 * base ** (2i / dims), angle = position * frequency in float32. Made when a context needs positions, not in kernels. */
#ifndef TESS_ROPE_H
#define TESS_ROPE_H
#include "arch.h"
/* inv[(dims + 1) / 2]. factors: of ROPE_SCALE_LONG, dims / 2 of them; else NULL. n_prompt: of ROPE_SCALE_DYNAMIC, the prompt's length. */
void rope_inv_freq(const arch_attn *t, uint32_t dims, const float *factors, uint32_t n_prompt, float *inv);
/* cs[(pos - lo)][dims / 2][2] for pos in [lo, hi) */
void rope_fill(const arch_attn *t, const float *inv, uint32_t dims, uint32_t lo, uint32_t hi, float *cs);
/* Biases of head h for positions [0, n): only differences of them count. Press et al. 2021 (arXiv 2108.12409). */
void alibi_fill(const arch *a, uint32_t h, uint32_t n, float *out);
#endif
