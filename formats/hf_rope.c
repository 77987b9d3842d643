/*
 * hf_rope.c - the rope part of config.json, in every spelling that checkpoints use.
 *
 *   new:  "rope_parameters": {"rope_theta", "rope_type", "partial_rotary_factor", ...}, or one per layer type:
 *         {"full_attention": {...}, "sliding_attention": {...}}
 *   old:  "rope_theta", "partial_rotary_factor" and "rope_scaling": {"type" or "rope_type", "factor", ...}
 *
 * Both read to the same struct; when both are given and differ, the file is refused. Scalings are stored
 * resolved: attn_factor is the multiplier of cos and sin (yarn: 0.1 ln(factor) + 1 unless the file says
 * otherwise), orig_ctx is never left to a default.
 */
#include <math.h>
#include <stdio.h>

#include "hf_config_priv.h"

typedef struct { arch_attn t; double rotary; } rope;

static const struct { const char *name; uint32_t kind; } rope_types[] = {
    {"default", ROPE_SCALE_NONE}, {"linear", ROPE_SCALE_LINEAR}, {"dynamic", ROPE_SCALE_DYNAMIC},
    {"yarn", ROPE_SCALE_YARN}, {"llama3", ROPE_SCALE_LLAMA3}, {"longrope", ROPE_SCALE_LONG}, {"su", ROPE_SCALE_LONG},
};

static void check_keys(cfg *c, const json_t *o)
{
    static const char *const known[] = {"rope_type",        "type",
                                        "rope_theta",       "partial_rotary_factor",
                                        "factor",           "low_freq_factor",
                                        "high_freq_factor", "original_max_position_embeddings",
                                        "attention_factor", "beta_fast",
                                        "beta_slow",        "mscale",
                                        "mscale_all_dim",   "truncate",
                                        "finetuned",        "short_factor",
                                        "long_factor"};
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        bool ok = json_is_null(v);
        for (size_t i = 0; i < ARRAY_LEN(known) && !ok; i++) ok = strcmp(known[i], key) == 0;
        if (!ok) cfg_fail(c, TESS_E_UNSUPPORTED, "%s: rope parameter \"%.60s\" is not supported", c->file, key);
    }
}

static uint32_t rope_type(cfg *c, const json_t *o)
{
    const char *name = cfg_str(c, o, "rope_type|type", "default");
    const char *other = cfg_str(c, o, "type", name);
    for (size_t i = 0; i < ARRAY_LEN(rope_types); i++)
        if (strcmp(rope_types[i].name, name) == 0) {
            if (strcmp(name, other) != 0)
                cfg_fail(c, TESS_E_FORMAT,
                         "%s: rope_type is \"%.40s\" and type is \"%.40s\": remove the wrong one", c->file,
                         name, other);
            return rope_types[i].kind;
        }
    cfg_fail(c, TESS_E_UNSUPPORTED,
             "%s: rope type \"%.60s\" is not supported; supported are default, linear, dynamic, yarn, llama3, longrope",
             c->file, name);
    return ROPE_SCALE_NONE;
}

static double mscale_of(double factor, double m) { return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1; }

/* The numbers of one scaling object into r, whose theta and rotary share hold the defaults. */
static void read_scaling(cfg *c, const family *f, const json_t *o, uint32_t max_ctx, rope *r)
{
    arch_attn *t = &r->t;
    check_keys(c, o);
    t->rope_scale = rope_type(c, o);
    if (t->rope_scale == ROPE_SCALE_YARN && cfg_get(o, "short_factor")) t->rope_scale = ROPE_SCALE_LONG; /* early Phi-3 */
    t->rope_theta = cfg_f64(c, o, "rope_theta", t->rope_theta);
    r->rotary = cfg_f64(c, o, "partial_rotary_factor", r->rotary);
    if (t->rope_scale == ROPE_SCALE_NONE) return;
    double orig = cfg_f64(c, c->root, "original_max_position_embeddings",
                          f->orig_ctx ? f->orig_ctx : cfg_f64(c, o, "original_max_position_embeddings", max_ctx));
    if (t->rope_scale == ROPE_SCALE_DYNAMIC || t->rope_scale == ROPE_SCALE_LINEAR) orig = max_ctx;
    if (!(orig >= 1 && orig <= 1 << 30)) {
        cfg_fail(c, TESS_E_FORMAT, "%s: original_max_position_embeddings is %g", c->file, orig);
        return;
    }
    t->orig_ctx = (uint32_t)orig;
    t->factor = cfg_f64(c, o, "factor", t->rope_scale == ROPE_SCALE_YARN || t->rope_scale == ROPE_SCALE_LONG ? max_ctx / orig : 0);
    if (!(t->factor > 0))
        cfg_fail(c, TESS_E_FORMAT, "%s: rope scaling: factor is missing or not positive", c->file);
    if (t->rope_scale == ROPE_SCALE_LLAMA3) {
        t->low_freq = cfg_f64(c, o, "low_freq_factor", 0);
        t->high_freq = cfg_f64(c, o, "high_freq_factor", 0);
        if (!(t->low_freq > 0) || !(t->high_freq > 0))
            cfg_fail(c, TESS_E_FORMAT,
                     "%s: rope scaling llama3: low_freq_factor or high_freq_factor is missing", c->file);
    }
    if (t->rope_scale == ROPE_SCALE_LONG)
        t->attn_factor = cfg_f64(c, o, "attention_factor", t->factor > 1 && orig > 1 ? sqrt(1 + log(t->factor) / log(orig)) : 1);
    if (t->rope_scale != ROPE_SCALE_YARN) return;
    double m = cfg_f64(c, o, "mscale", 0), m_all = cfg_f64(c, o, "mscale_all_dim", 0);
    double computed =
        m != 0 && m_all != 0 ? mscale_of(t->factor, m) / mscale_of(t->factor, m_all) : mscale_of(t->factor, 1);
    t->attn_factor = cfg_f64(c, o, "attention_factor", computed);
    t->beta_fast = cfg_f64(c, o, "beta_fast", 32);
    t->beta_slow = cfg_f64(c, o, "beta_slow", 1);
    t->yarn_exact = json_is_false(json_object_get(o, "truncate"));
}

static rope rope_default(double theta, double rotary)
{
    arch a;
    arch_default(&a);
    rope r = {a.attn[0], rotary};
    r.t.rope_theta = theta;
    return r;
}

static bool rope_equal(const rope *a, const rope *b)
{
    const arch_attn *x = &a->t, *y = &b->t;
    return x->rope_scale == y->rope_scale && x->rope_theta == y->rope_theta && x->factor == y->factor &&
           x->low_freq == y->low_freq && x->high_freq == y->high_freq && x->beta_fast == y->beta_fast &&
           x->beta_slow == y->beta_slow && x->attn_factor == y->attn_factor && x->orig_ctx == y->orig_ctx &&
           x->yarn_exact == y->yarn_exact && a->rotary == b->rotary;
}

/* What gpt_oss has without any rope parameters. */
static void gpt_oss_scaling(arch_attn *t)
{
    t->rope_scale = ROPE_SCALE_YARN;
    t->factor = 32;
    t->orig_ctx = 4096;
    t->attn_factor = mscale_of(t->factor, 1);
    t->beta_fast = 32;
    t->beta_slow = 1;
    t->yarn_exact = 1;
}

/* Whether rope_parameters holds one object per layer type. */
static bool nested(const json_t *o)
{
    return json_is_object(json_object_get(o, "full_attention")) ||
           json_is_object(json_object_get(o, "sliding_attention"));
}

/* The old spelling; what it does not say is theta and share. gpt_neox calls both by names of its own, and beside
 * rope_parameters its files may have the common names with values that count for nothing. */
static rope old_spelling(cfg *c, const family *f, const json_t *scaling, uint32_t max_ctx, double theta, double share)
{
    bool neox = f->adjust == ADJUST_NEOX;
    rope r = rope_default(cfg_f64(c, c->root, neox ? "rotary_emb_base" : "rope_theta", theta),
                          cfg_f64(c, c->root, neox ? "rotary_pct" : "partial_rotary_factor", share));
    if (scaling) read_scaling(c, f, scaling, max_ctx, &r);
    else if (f->adjust == ADJUST_GPT_OSS && !cfg_get(c->root, "rope_parameters")) gpt_oss_scaling(&r.t);
    return r;
}

/* The new spelling, for all layers or by layer type; full and sliding hold the defaults. */
static void new_spelling(cfg *c, const family *f, const json_t *o, uint32_t max_ctx, rope *full, rope *sliding)
{
    static const char *const names[2] = {"full_attention", "sliding_attention"};
    const char *key;
    json_t *v;
    if (!nested(o)) {
        read_scaling(c, f, o, max_ctx, full);
        if (f->rope_local == 0) *sliding = *full;
        return;
    }
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        bool is_full = strcmp(key, names[0]) == 0;
        if (!json_is_object(v)) continue; /* flat members beside those of layer types: transformers writes and ignores them */
        if (!is_full && strcmp(key, names[1]) != 0)
            cfg_fail(c, TESS_E_UNSUPPORTED, "%s: rope_parameters of layer type \"%.60s\" are not supported",
                     c->file, key);
        else read_scaling(c, f, v, max_ctx, is_full ? full : sliding);
    }
}

/* Positions that the scaling is made for, where config.json keeps the length before it. Dynamic scaling follows the length of the
 * prompt, whatever it is: its factor says how fast. */
uint32_t hf_rope_reach(const arch_attn *t, uint32_t max_ctx)
{
    bool longer = t->rope_scale == ROPE_SCALE_LINEAR || t->rope_scale == ROPE_SCALE_DYNAMIC || t->rope_scale == ROPE_SCALE_YARN;
    double n = longer ? t->factor * t->orig_ctx : 0;
    if (t->rope_scale == ROPE_SCALE_DYNAMIC) n = MAX(t->factor, 8) * t->orig_ctx;
    return n > max_ctx && n <= 1 << 30 ? (uint32_t)n : max_ctx;
}

tess_status hf_rope_read(cfg *c, const family *f, uint32_t max_ctx, arch_attn kinds[2], double *rotary)
{
    const json_t *now = cfg_get(c->root, "rope_parameters"), *old = cfg_get(c->root, "rope_scaling");
    bool same = f->rope_local == 0; /* one set of parameters for all layers */
    if ((now && !json_is_object(now)) || (old && !json_is_object(old)))
        cfg_fail(c, TESS_E_FORMAT, "%s: rope_parameters and rope_scaling must be objects", c->file);
    if (c->st < 0) return c->st;
    rope full = old_spelling(c, f, now ? NULL : old, max_ctx, f->rope_theta, f->rotary), sliding = full;
    if (!same) sliding = rope_default(cfg_f64(c, c->root, "rope_local_base_freq", f->rope_local), full.rotary);
    if (now) {
        new_spelling(c, f, now, max_ctx, &full, &sliding);
        rope said = old_spelling(c, f, old, max_ctx, full.t.rope_theta, full.rotary);
        if (!old) { /* then only theta and the rotary share can contradict */
            double theta = said.t.rope_theta;
            said.t = full.t;
            said.t.rope_theta = theta;
        }
        if (c->st == TESS_OK && !rope_equal(&said, &full))
            cfg_fail(c, TESS_E_FORMAT,
                     "%s: rope_parameters contradict rope_theta, rope_scaling or partial_rotary_factor; remove "
                     "the wrong ones",
                     c->file);
    }
    if (!f->partial && (full.rotary != f->rotary || sliding.rotary != f->rotary))
        cfg_fail(c, TESS_E_UNSUPPORTED, "%s: partial_rotary_factor is not supported in this family", c->file);
    if (full.rotary != sliding.rotary)
        cfg_fail(c, TESS_E_UNSUPPORTED, "%s: partial_rotary_factor differs between layer types", c->file);
    kinds[0] = full.t;
    kinds[1] = sliding.t;
    *rotary = full.rotary;
    return c->st;
}

static uint32_t read_factors(cfg *c, const json_t *o, const char *key, float out[ARCH_MAX_FACTORS])
{
    const json_t *v = cfg_get(o, key);
    size_t n = json_array_size(v);
    double d = 0;
    if (n == 0 || n > ARCH_MAX_FACTORS)
        cfg_fail(c, TESS_E_FORMAT, "%s: rope scaling longrope: %s is not a list of 1 to %d numbers", c->file, key,
                 ARCH_MAX_FACTORS);
    for (size_t i = 0; i < n && c->st == TESS_OK; i++) {
        if (!jsonr_f64(json_array_get(v, i), &d))
            cfg_fail(c, TESS_E_FORMAT, "%s: rope scaling longrope: %s[%zu] is not a number", c->file, key, i);
        out[i] = (float)d;
    }
    return (uint32_t)n;
}

void hf_rope_factors(cfg *c, arch *a)
{
    bool any = false;
    for (uint32_t i = 0; i < a->n_attn_kinds; i++) any = any || a->attn[i].rope_scale == ROPE_SCALE_LONG;
    if (!any) return;
    const json_t *o = cfg_get(c->root, "rope_parameters|rope_scaling");
    a->n_factors = read_factors(c, o, "short_factor", a->short_factor);
    if (read_factors(c, o, "long_factor", a->long_factor) != a->n_factors)
        cfg_fail(c, TESS_E_FORMAT, "%s: rope scaling longrope: short_factor and long_factor differ in length", c->file);
}
