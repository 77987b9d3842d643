/*
 * cu_math.cuh - arithmetic that the kernels share: the functions of ops.h, conversions, sums in lanes.
 *
 * Bits are those of cpu/ref.c. So all is plain f32 with one rounding per written operation: -fmad=false, and nvcc's defaults
 * -prec-div=true -prec-sqrt=true -ftz=false, under which / and sqrtf are correctly rounded and small numbers stay. No
 * function of the CUDA library but fmaf, sqrtf, fabsf and copysignf. NaN are NaN; which ones is not said.
 */
#ifndef TESS_CU_MATH_CUH
#define TESS_CU_MATH_CUH
#include "cu.cuh"
#include "coefs.h"
#include "ops.h"

#define DEV static __device__ __forceinline__

DEV uint32_t bits_of(float x) { return __float_as_uint(x); }
DEV float float_of(uint32_t u) { return __uint_as_float(u); }
DEV float cu_nan() { return float_of(0x7fc00000); }
DEV float cu_infinity() { return float_of(0x7f800000); }

/* ---- functions ---- */
DEV float cu_exp(float x)
{
    if (x != x) return x;
    if (x < EXP_MIN) return 0.0f;
    if (x > EXP_MAX) return cu_infinity();
    float t = fmaf(x, EXP_LOG2E, EXP_MAGIC), n = t - EXP_MAGIC;
    float r = fmaf(n, -EXP_LN2_LO, fmaf(n, -EXP_LN2_HI, x));
    float p = fmaf(EXP_C6, r, EXP_C5);
    p = fmaf(p, r, EXP_C4);
    p = fmaf(p, r, EXP_C3);
    p = fmaf(p, r, EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    return float_of(bits_of(p) + (bits_of(t) << 23));
}

DEV float cu_tanh(float x)
{
    float a = fabsf(x), z = x * x;
    float p = fmaf(TANH_C4, z, TANH_C3);
    p = fmaf(p, z, TANH_C2);
    p = fmaf(p, z, TANH_C1);
    p = fmaf(p, z, TANH_C0);
    if (a < TANH_SMALL) return fmaf(x * z, p, x);
    return copysignf(1.0f - 2.0f / (cu_exp(a + a) + 1.0f), x);
}

DEV float soft_cap(float x, float cap) { return cap > 0.0f ? cap * cu_tanh(x / cap) : x; }
DEV float logistic(float x) { return 1.0f / (1.0f + cu_exp(-x)); }

/* ---- conversions ---- */
/* The exponent is moved by a multiplication, which is exact for subnormal numbers too. */
DEV float f16_value(uint16_t h)
{
    uint32_t u = bits_of(float_of((uint32_t)(h & 0x7fff) << 13) * 0x1p112f);
    if ((h & 0x7c00) == 0x7c00) u |= 0x7f800000;
    return float_of(u | (uint32_t)(h & 0x8000) << 16);
}
DEV float bf16_value(uint16_t h) { return float_of((uint32_t)h << 16); }

/* To nearest even, as f32_to_f16 of lib/base, NaN included: pages are compared by bytes. */
DEV uint16_t f16_of(float f)
{
    uint32_t u = bits_of(f), a = u & 0x7fffffff, sign = u >> 16 & 0x8000;
    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) return (uint16_t)(sign | (bits_of(float_of(a) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | ((a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13));
}

/* To nearest even; |x| < 2^22. */
DEV int32_t round_even(float x) { return (int32_t)(bits_of(x + 0x1.8p23f) - 0x4b400000u); }

/* Element i of an array of a float dtype or of int8. */
DEV float widen(uint32_t dtype, const uint8_t *p, size_t i)
{
    switch (dtype) {
    case DT_F32: return reinterpret_cast<const float *>(p)[i];
    case DT_F16: return f16_value(reinterpret_cast<const uint16_t *>(p)[i]);
    case DT_BF16: return bf16_value(reinterpret_cast<const uint16_t *>(p)[i]);
    default: return (float)reinterpret_cast<const int8_t *>(p)[i];
    }
}

/* ---- sums ---- */
DEV float lanes8_total(const float *s) { return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])); }

enum { SUM_STAGE = 1024 }; /* columns that a block holds at a time; a multiple of 8 */
/* lanes8 over d = x[i] - shift, of d * d (squares) or of d, by all threads of a block together; every thread gets the sum.
 * stage: shared, SUM_STAGE + 8 floats. All threads copy, threads 0..7 keep one chain each. */
DEV float block_lanes8(const float *x, uint32_t n, float shift, bool squares, float *stage)
{
    float acc = 0.0f, *lanes = stage + SUM_STAGE;
    for (uint32_t base = 0; base < n; base += SUM_STAGE) {
        uint32_t m = min(n - base, (uint32_t)SUM_STAGE);
        __syncthreads(); /* the last piece, or what the caller held here, was read */
        for (uint32_t i = threadIdx.x; i < m; i += blockDim.x) stage[i] = x[base + i] - shift;
        __syncthreads();
        for (uint32_t i = threadIdx.x; threadIdx.x < 8 && i < m; i += 8)
            acc = squares ? fmaf(stage[i], stage[i], acc) : acc + stage[i];
    }
    if (threadIdx.x < 8) lanes[threadIdx.x] = acc;
    __syncthreads();
    return lanes8_total(lanes);
}
#endif
