/* rope.c - see rope.h. YaRN: Peng et al. 2023 (arXiv 2309.00071); llama3: the scaling published with Llama 3.1. */
#include "rope.h"

#include <math.h>

static const double PI = 3.14159265358979323846;

static double yarn_dim(double rotations, uint32_t dims, const arch_attn *t)
{
    return dims * log(t->orig_ctx / (rotations * 2 * PI)) / (2 * log(t->rope_theta));
}

/* Interpolated below the ramp, unchanged above it, a mixture on it. */
static void yarn(const arch_attn *t, uint32_t dims, float *inv)
{
    double low = yarn_dim(t->beta_fast, dims, t), high = yarn_dim(t->beta_slow, dims, t);
    if (!t->yarn_exact) low = floor(low), high = ceil(high);
    low = fmax(low, 0);
    high = fmin(high, dims - 1);
    if (low == high) high += 0.001;
    for (uint32_t i = 0; i < (dims + 1) / 2; i++) {
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
        float keep = (float)(1 - ramp), inter = (float)(inv[i] / t->factor);
        inv[i] = inter * (1 - keep) + inv[i] * keep;
    }
}

static void llama3(const arch_attn *t, uint32_t dims, float *inv)
{
    double low_wave = t->orig_ctx / t->low_freq, high_wave = t->orig_ctx / t->high_freq;
    for (uint32_t i = 0; i < (dims + 1) / 2; i++) {
        double wave = 2 * PI / inv[i];
        if (wave > low_wave) inv[i] = (float)(inv[i] / t->factor);
        else if (wave >= high_wave) {
            double smooth = (t->orig_ctx / wave - t->low_freq) / (t->high_freq - t->low_freq);
            inv[i] = (float)((1 - smooth) * inv[i] / t->factor + smooth * inv[i]);
        }
    }
}

/* Prompts beyond the model's own length stretch the base, so that the slowest pair turns as far over them as it was taught. */
static double base_of(const arch_attn *t, uint32_t dims, uint32_t n_prompt)
{
    if (t->rope_scale != ROPE_SCALE_DYNAMIC || n_prompt <= t->orig_ctx) return t->rope_theta;
    double longer = t->factor * n_prompt / t->orig_ctx - (t->factor - 1);
    return (float)(t->rope_theta * pow(longer, dims / (dims - 2.0)));
}

void rope_inv_freq(const arch_attn *t, uint32_t dims, const float *factors, uint32_t n_prompt, float *inv)
{
    double theta = base_of(t, dims, n_prompt);
    for (uint32_t i = 0; i < (dims + 1) / 2; i++) {
        float power = (float)(2 * i) / (float)dims;
        float base = (float)pow(theta, power);
        inv[i] = 1.0f / (t->rope_scale == ROPE_SCALE_LONG && factors ? factors[i] * base : base);
    }
    if (t->rope_scale == ROPE_SCALE_LINEAR)
        for (uint32_t i = 0; i < (dims + 1) / 2; i++) inv[i] = (float)(inv[i] / t->factor);
    if (t->rope_scale == ROPE_SCALE_YARN) yarn(t, dims, inv);
    if (t->rope_scale == ROPE_SCALE_LLAMA3) llama3(t, dims, inv);
}

void rope_fill(const arch_attn *t, const float *inv, uint32_t dims, uint32_t lo, uint32_t hi, float *cs)
{
    float scale = (float)t->attn_factor;
    for (uint32_t p = lo; p < hi; p++)
        for (uint32_t i = 0; i < dims / 2; i++, cs += 2) {
            float angle = (float)p * inv[i];
            cs[0] = (float)cos(angle) * scale;
            cs[1] = (float)sin(angle) * scale;
        }
}

/* Heads beyond a power of two take every other slope of the next one; mpt orders all heads by that of the next power. */
static float alibi_slope(const arch *a, uint32_t h)
{
    uint32_t p = 1;
    if (a->alibi == ALIBI_MPT) {
        while (p < a->n_heads) p *= 2;
        uint32_t i = p == a->n_heads ? h : 2 * h + 1 < p ? 2 * h + 1 : 2 * (h - p / 2);
        return (float)(1 / pow(2, (i + 1) * (a->alibi_max / p)));
    }
    while (p * 2 <= a->n_heads) p *= 2;
    float base = (float)pow(2, -pow(2, 3 - log2(h < p ? p : 2 * p)));
    return (float)pow(base, h < p ? h + 1 : 2 * (h - p) + 1);
}

static float round_bf16(float x) { return bf16_to_f32(f32_to_bf16(x)); }

void alibi_fill(const arch *a, uint32_t h, uint32_t n, float *out)
{
    float slope = alibi_slope(a, h);
    for (uint32_t i = 0; i < n; i++)
        out[i] = a->alibi == ALIBI_BF16 ? round_bf16(round_bf16(slope) * round_bf16((float)i)) * (float)a->attn_scale : slope * (float)i;
}
