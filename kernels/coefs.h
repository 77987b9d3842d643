/*
 * coefs.h - constants of the numerics contract that kernels of every kind share: coefficients of the functions, the chunk.
 *
 * cpu/ref.c states the formulas. Nothing here computes: each kind of kernel states its own arithmetic.
 */
#ifndef TESS_COEFS_H
#define TESS_COEFS_H

enum { ATTN_CHUNK = 256 }; /* positions per chunk of attention */

#define EXP_LOG2E 0x1.715476p+0f
#define EXP_MAGIC 0x1.8p+23f /* adding it rounds to an integer, which then stands in the low bits */
#define EXP_LN2_HI 0x1.62e4p-1f
#define EXP_LN2_LO 0x1.7f7d1cp-20f
#define EXP_MIN (-0x1.5d589ep+6f) /* below it: 0 (the result would not be a normal number) */
#define EXP_MAX 0x1.62e42ep+6f    /* above it: infinity */
#define EXP_C2 0x1.fffffcp-2f
#define EXP_C3 0x1.55549p-3f
#define EXP_C4 0x1.5558f4p-5f
#define EXP_C5 0x1.123a6ap-7f
#define EXP_C6 0x1.6a2368p-10f

#define TANH_SMALL 0.625f
#define TANH_C0 -0x1.555532p-2f
#define TANH_C1 0x1.110726p-3f
#define TANH_C2 -0x1.b83c5cp-5f
#define TANH_C3 0x1.5226a2p-6f
#define TANH_C4 -0x1.75e1e4p-8f

#define GELU_MAX 16.0f
#define GELU_K 0x1.333334p-2f
#define GELU_C0 0x1.e110bcp-18f
#define GELU_C1 0x1.e96bfp-4f
#define GELU_C2 0x1.f362aep-4f
#define GELU_C3 0x1.83d32ep-4f
#define GELU_C4 0x1.23e948p-3f
#define GELU_C5 -0x1.395d9ap-4f
#define GELU_C6 0x1.d44b2ep-3f
#define GELU_C7 -0x1.5a737ep-3f
#define GELU_C8 0x1.3a64e4p-5f

#define QUANT_MIN 0x1p-100f /* groups whose amax is below it are 0: 127 / amax stays finite */

#define GELU_TANH_A -0x1.988454p+0f /* -2 * sqrt(2 / pi) */
#define GELU_TANH_B 0x1.6e4e26p-5f  /* 0.044715 */
#endif
