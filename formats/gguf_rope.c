/*
 * gguf_rope.c - the rope part of GGUF metadata. See gguf_config_priv.h.
 *
 * Rope scaling of the llama3 kind is stored by llama.cpp as one divisor per frequency, tensor "rope_freqs.weight"; the
 * parameters of published models are tried and the tensor is accepted when one of them gives its numbers. Longrope is stored
 * as two tensors of factors.
 *
 * Yarn multiplies cos and sin by 0.1 ln(factor) + 1, and by "attn_factor". Deepseek's form of it has two shares, of
 * which files hold one: "yarn_log_multiplier" is 0.1 * mscale_all_dim; mscale is taken as equal to it, as in the published
 * models, or as 1 where it is.
 */
#include <math.h>

#include "gguf_config_priv.h"

static double mscale_of(double factor, double m) { return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1; }

static bool is_word(const char *s, size_t len, const char *word) { return len == strlen(word) && memcmp(s, word, len) == 0; }

static void read_yarn(gcfg *c, const family *f, arch_attn *t)
{
    double all = 10 * gcfg_f64(c, "rope.scaling.yarn_log_multiplier", 0);
    t->rope_scale = ROPE_SCALE_YARN;
    t->attn_factor = (all != 0 && f->latent ? 1 : mscale_of(t->factor, 1)) * gcfg_f64(c, "rope.scaling.attn_factor", 1);
    t->beta_fast = gcfg_f64(c, "rope.scaling.yarn_beta_fast", 32);
    t->beta_slow = gcfg_f64(c, "rope.scaling.yarn_beta_slow", 1);
    t->yarn_exact = f->adjust == ADJUST_GPT_OSS; /* "truncate" is false in its config.json */
}

static void read_scaling(gcfg *c, const family *f, const arch *a, arch_attn *t)
{
    size_t len;
    const char *type = gguf_str(c->s, gcfg_key(c, "rope.scaling.type"), &len);
    double scale = gcfg_f64(c, "rope.scaling.factor", gcfg_f64(c, "rope.scale_linear", 1));
    if (!type) type = "linear", len = 6;
    if (is_word(type, len, "none") || is_word(type, len, "longrope")) return; /* the latter is seen from tensors */
    if (is_word(type, len, "linear") && !(scale < 1 || scale > 1)) return;
    t->factor = scale;
    t->orig_ctx = gcfg_u32(c, "rope.scaling.original_context_length", a->max_ctx, false);
    if (is_word(type, len, "linear")) t->rope_scale = ROPE_SCALE_LINEAR;
    else if (is_word(type, len, "yarn")) read_yarn(c, f, t);
    else if (c->st == TESS_OK)
        c->st = ERR(c->err, TESS_E_UNSUPPORTED,
                    "%s: rope scaling \"%.*s\" is not supported; supported are none, linear, yarn, longrope", c->s->paths[0],
                    (int)MIN(len, (size_t)40), type);
}

void gguf_rope_read(gcfg *c, const family *f, const arch *a, arch_attn kinds[2])
{
    kinds[0] = kinds[1] = a->attn[0];
    kinds[0].rope_theta = gcfg_f64(c, "rope.freq_base", f->rope_theta);
    read_scaling(c, f, a, &kinds[0]);
    if (f->rope_local > 0) kinds[1].rope_theta = gcfg_f64(c, "rope.freq_base_swa", f->rope_local); /* and no scaling */
    else kinds[1] = kinds[0];
}

/* ---- tensors ---- */

/* One number for each rotary pair; false: there is no such tensor, or it failed. */
static bool read_numbers(gcfg *c, const char *name, uint32_t n, float *out)
{
    int64_t i = source_find(c->s, name);
    if (i < 0 || c->st < 0) return false;
    const src_tensor *t = &c->s->tensors[i];
    if (t->rank != 1 || t->shape[0] != n || n > ARCH_MAX_FACTORS)
        c->st = ERR(c->err, TESS_E_UNSUPPORTED, "%s: tensor \"%s\" has not one number per rotary pair (%u)", c->s->paths[0],
                    name, n);
    else c->st = c->s->read(c->s, (uint32_t)i, 0, 1, 0, n, false, out, c->err);
    return c->st == TESS_OK;
}

/* Divisor of frequency i of n under llama3 scaling. */
static double llama3_divisor(const arch_attn *t, uint32_t i, uint32_t n)
{
    double wavelen = 2 * 3.14159265358979323846 * pow(t->rope_theta, (double)i / n);
    double low = t->orig_ctx / t->low_freq, high = t->orig_ctx / t->high_freq;
    if (wavelen < high) return 1;
    if (wavelen > low) return t->factor;
    double smooth = (t->orig_ctx / wavelen - t->low_freq) / (t->high_freq - t->low_freq);
    return 1 / ((1 - smooth) / t->factor + smooth);
}

/* Finds the parameters of llama3 scaling that give these divisors. The original context is a power of two. */
static bool find_llama3(arch_attn *t, const float *got, uint32_t n)
{
    static const double factors[] = {8, 32, 16, 4, 2, 64};
    arch_attn x = *t;
    x.rope_scale = ROPE_SCALE_LLAMA3;
    x.low_freq = 1;
    x.high_freq = 4;
    for (uint32_t shift = 0; shift < 14; shift++) {
        x.orig_ctx = shift == 0 ? 8192 : 16u << shift; /* of the published models first */
        for (size_t f = 0; f < ARRAY_LEN(factors); f++) {
            uint32_t same = 0;
            x.factor = factors[f];
            while (same < n && fabs((double)got[same] - llama3_divisor(&x, same, n)) <= 1e-4 * (double)got[same]) same++;
            if (same < n) continue;
            *t = x;
            return true;
        }
    }
    return false;
}

tess_status gguf_rope_tensors(gcfg *c, arch *a)
{
    float got[ARCH_MAX_FACTORS];
    uint32_t n = a->rope_dims / 2;
    if (read_numbers(c, "rope_freqs.weight", n, got) && !find_llama3(&a->attn[0], got, n))
        return ERR(c->err, TESS_E_UNSUPPORTED,
                   "%s: tensor \"rope_freqs.weight\" holds frequencies of no scaling that is known here", c->s->paths[0]);
    bool is_short = read_numbers(c, "rope_factors_short.weight", n, a->short_factor),
         is_long = read_numbers(c, "rope_factors_long.weight", n, a->long_factor);
    TRY(c->st);
    if (is_short != is_long)
        return ERR(c->err, TESS_E_FORMAT, "%s: tensor \"rope_factors_%s.weight\" is missing", c->s->paths[0],
                   is_short ? "long" : "short");
    if (!is_long) return TESS_OK;
    a->n_factors = n;
    for (uint32_t i = 0; i < a->n_attn_kinds; i++) {
        arch_attn *t = &a->attn[i];
        t->rope_scale = ROPE_SCALE_LONG;
        t->orig_ctx = gcfg_u32(c, "rope.scaling.original_context_length", a->max_ctx, false);
        t->factor = t->orig_ctx ? (double)a->max_ctx / t->orig_ctx : 0;
        t->attn_factor = gcfg_f64(c, "rope.scaling.attn_factor",
                                  t->factor > 1 && t->orig_ctx > 1 ? sqrt(1 + log(t->factor) / log(t->orig_ctx)) : 1);
    }
    return c->st;
}
