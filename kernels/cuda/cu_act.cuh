/* cu_act.cuh - activation functions of feed-forward layers; the formulas are those of cpu/ref.c. */
#ifndef TESS_CU_ACT_CUH
#define TESS_CU_ACT_CUH
#include "cu_ops.cuh"

/* x times the normal distribution function, by its tail. */
DEV float gelu(float x)
{
    float a = fabsf(x);
    a = a < GELU_MAX ? a : GELU_MAX;
    float sq = a * a, low = fmaf(a, a, -sq);
    float e = cu_exp(-0.5f * sq);
    e = fmaf(e, -0.5f * low, e);
    float t = 1.0f / fmaf(GELU_K, a, 1.0f);
    float p = fmaf(GELU_C8, t, GELU_C7);
    p = fmaf(p, t, GELU_C6);
    p = fmaf(p, t, GELU_C5);
    p = fmaf(p, t, GELU_C4);
    p = fmaf(p, t, GELU_C3);
    p = fmaf(p, t, GELU_C2);
    p = fmaf(p, t, GELU_C1);
    p = fmaf(p, t, GELU_C0);
    float tail = e * p;
    return x * (x >= 0.0f ? 1.0f - tail : tail);
}

DEV float gelu_tanh(float x)
{
    float u = x * fmaf(GELU_TANH_B * x, x, 1.0f);
    return x / (1.0f + cu_exp(GELU_TANH_A * u));
}

DEV float relu(float x) { return 0.0f > x ? 0.0f : x; } /* NaN stays NaN */

DEV float apply(uint32_t act, float x)
{
    switch (act) {
    case ACT_SILU: return x / (1.0f + cu_exp(-x));
    case ACT_GELU: return gelu(x);
    case ACT_GELU_TANH: return gelu_tanh(x);
    case ACT_RELU: return relu(x);
    default: return relu(x) * relu(x); /* ACT_RELU2 */
    }
}

DEV float swiglu_clamp(float g, float u, float alpha, float limit)
{
    g = g > limit ? limit : g;
    u = u > limit ? limit : u;
    u = u < -limit ? -limit : u;
    return (u + 1.0f) * (g / (1.0f + cu_exp(-(alpha * g))));
}

/* Column i of row t. */
DEV float act_cell(const op_act_args &a, size_t t, uint32_t i)
{
    float g = a.g[t * a.gs + i];
    if (a.act == ACT_SWIGLU_CLAMP) return swiglu_clamp(g, a.u[t * a.us + i], a.alpha, a.limit);
    return a.u ? apply(a.act, g) * a.u[t * a.us + i] : apply(a.act, g);
}
#endif
