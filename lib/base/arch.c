/* arch.c - checks and storage of arch, the table of roles, split axes. See arch.h. */
#include "arch.h"

#include <math.h>
#include <stdio.h>

enum { FFN_UNIT = 32, VOCAB_UNIT = 64 };

void arch_default(arch *a)
{
    memset(a, 0, sizeof *a);
    a->embed_scale = a->residual_scale = a->logit_scale = 1;
    a->gated_ffn = 1;
    a->rope_kind = ROPE_HALF;
    a->n_attn_kinds = 1;
#define X(t, n, lo, hi, def) a->n = def;
    ARCH_FIELDS_MORE(X)
#undef X
    for (int i = 0; i < ARCH_MAX_ATTN_KINDS; i++)
        a->attn[i] = (arch_attn){.rope_on = 1,
                                 .rope_theta = 10000,
                                 .factor = 1,
                                 .low_freq = 1,
                                 .high_freq = 4,
                                 .beta_fast = 32,
                                 .beta_slow = 1,
                                 .attn_factor = 1};
}

static tess_status check_attn(const arch_attn *t, uint32_t i, tess_error *err)
{
    const double v[] = {t->rope_theta, t->factor, t->low_freq, t->high_freq, t->beta_fast, t->beta_slow, t->attn_factor};
    for (size_t j = 0; j < ARRAY_LEN(v); j++)
        if (!(v[j] > 0) || !isfinite(v[j]))
            return ERR(err, TESS_E_FORMAT, "arch.attn%u: number %zu of the rope parameters is %g, want a positive one", i, j, v[j]);
    if (t->rope_scale > ROPE_SCALE_LONG || t->rope_on > 1)
        return ERR(err, TESS_E_FORMAT, "arch.attn%u: unknown rope scaling %u", i, t->rope_scale);
    if (t->rope_scale == ROPE_SCALE_LLAMA3 && t->high_freq <= t->low_freq)
        return ERR(err, TESS_E_FORMAT, "arch.attn%u: high_freq_factor %g must exceed low_freq_factor %g", i, t->high_freq,
                   t->low_freq);
    if ((t->rope_scale == ROPE_SCALE_LLAMA3 || t->rope_scale == ROPE_SCALE_YARN || t->rope_scale == ROPE_SCALE_DYNAMIC) &&
        t->orig_ctx == 0)
        return ERR(err, TESS_E_FORMAT, "arch.attn%u: original_max_position_embeddings is missing", i);
    return TESS_OK;
}

static tess_status check_experts(const arch *a, tess_error *err)
{
    bool any = false;
    for (uint32_t i = 0; i < a->n_layers; i++) any = any || a->layer_moe[i];
    if (!any) return TESS_OK;
    if (a->n_experts == 0 || a->experts_used == 0 || a->experts_used > a->n_experts)
        return ERR(err, TESS_E_FORMAT, "arch: %u of %u experts are used, want 1 to all", a->experts_used, a->n_experts);
    if (a->moe_ffn_size == 0) return ERR(err, TESS_E_FORMAT, "arch.moe_ffn_size is 0");
    if (a->n_experts % a->router_groups || a->router_groups_used > a->router_groups ||
        (uint64_t)a->n_experts / a->router_groups * a->router_groups_used < a->experts_used)
        return ERR(err, TESS_E_FORMAT, "arch: %u of %u groups of %u experts cannot give %u experts", a->router_groups_used,
                   a->router_groups, a->n_experts, a->experts_used);
    return TESS_OK;
}

tess_status arch_check(const arch *a, tess_error *err)
{
#define IN_RANGE_u32(v, lo, hi) ((uint64_t)(v) + 1 > (uint64_t)(lo) && (v) <= (hi))
#define IN_RANGE_f64(v, lo, hi) ((v) >= (lo) && (v) <= (hi))
#define X(t, n, lo, hi) \
    if (!IN_RANGE_##t(a->n, lo, hi)) \
        return ERR(err, TESS_E_FORMAT, "arch.%s is %.17g, outside %.17g to %.17g", #n, (double)a->n, (double)(lo), (double)(hi));
    ARCH_FIELDS(X)
#undef X
#define X(t, n, lo, hi, def) \
    if (!IN_RANGE_##t(a->n, lo, hi)) \
        return ERR(err, TESS_E_FORMAT, "arch.%s is %.17g, outside %.17g to %.17g", #n, (double)a->n, (double)(lo), (double)(hi));
    ARCH_FIELDS_MORE(X)
#undef X
    TRY(check_experts(a, err));
    if (a->n_heads % a->n_kv_heads)
        return ERR(err, TESS_E_FORMAT, "arch: %u query heads are not a multiple of %u kv heads", a->n_heads, a->n_kv_heads);
    if (a->qk_norm == QK_NORM_ALL && a->norm_kind != NORM_RMS)
        return ERR(err, TESS_E_FORMAT, "arch: norms over all heads must be RMS norms");
    if (a->rope_dims > a->head_dim || a->rope_dims % 2)
        return ERR(err, TESS_E_FORMAT, "arch.rope_dims is %u, want an even number up to head_dim %u", a->rope_dims, a->head_dim);
    if (a->act == ACT_SWIGLU_CLAMP && !a->gated_ffn) return ERR(err, TESS_E_FORMAT, "arch.act 5 needs a gate");
    bool needs = false;
    for (uint32_t i = 0; i < a->n_attn_kinds; i++) needs = needs || (a->attn[i].rope_scale == ROPE_SCALE_LONG && a->attn[i].rope_on);
    if (needs && (a->n_factors != a->rope_dims / 2 || a->n_factors > ARCH_MAX_FACTORS))
        return ERR(err, TESS_E_FORMAT, "arch: %u factors of rope scaling for %u frequencies, at most %d", a->n_factors,
                   a->rope_dims / 2, ARCH_MAX_FACTORS);
    for (uint32_t i = 0; needs && i < a->n_factors; i++)
        if (!(a->short_factor[i] > 0) || !(a->long_factor[i] > 0))
            return ERR(err, TESS_E_FORMAT, "arch: factor %u of rope scaling is not positive", i);
    if (a->kv_lora && (a->n_kv_heads != 1 || a->head_dim <= a->rope_dims || a->qk_norm != QK_NORM_NONE || a->norm_kind != NORM_RMS))
        return ERR(err, TESS_E_FORMAT,
                   "arch: latent attention wants one kv head, RMS norms, no q/k norms and a head wider than its rope part");
    if (a->q_lora && !a->kv_lora) return ERR(err, TESS_E_FORMAT, "arch.q_lora is %u without kv_lora", a->q_lora);
    if (a->norm_eps <= 0) return ERR(err, TESS_E_FORMAT, "arch.norm_eps is %g, want a positive number", a->norm_eps);
    if (a->ffn_size == 0) return ERR(err, TESS_E_FORMAT, "arch.ffn_size is 0");
    if (a->attn_scale <= 0) return ERR(err, TESS_E_FORMAT, "arch.attn_scale is %g, want a positive number", a->attn_scale);
    for (uint32_t i = 0; i < a->n_attn_kinds; i++) {
        TRY(check_attn(&a->attn[i], i, err));
        if (a->attn[i].rope_scale == ROPE_SCALE_DYNAMIC && a->attn[i].rope_on && a->rope_dims < 4)
            return ERR(err, TESS_E_FORMAT, "arch.rope_dims is %u, want at least 4 for dynamic scaling", a->rope_dims);
    }
    for (uint32_t i = 0; i < a->n_layers; i++)
        if (a->layer_attn[i] >= a->n_attn_kinds)
            return ERR(err, TESS_E_FORMAT, "arch.layer_attn[%u] is %u, there are %u kinds", i, a->layer_attn[i], a->n_attn_kinds);
    return TESS_OK;
}

/* ---- storage ---- */
static void put_u32(kvs_builder *b, const char *key, uint32_t v) { kvs_put_u64(b, key, v); }
static void put_f64(kvs_builder *b, const char *key, double v) { kvs_put_f64(b, key, v); }

/* attn kind i as "arch.attn<i>": six u32 would lose names, so every number has its own key. */
#define ATTN_FIELDS(X)                                                                                          \
    X(u32, window) X(u32, rope_scale) X(u32, rope_on) X(f64, rope_theta) X(f64, factor) X(f64, low_freq)        \
    X(f64, high_freq) X(f64, beta_fast) X(f64, beta_slow) X(f64, attn_factor) X(u32, orig_ctx)

static bool differs(double x, double y) { return x < y || x > y; }

/* Field by field: the bytes between the fields are undefined. Copied numbers are compared, so equal means equal bits. */
static bool same_kind(const arch_attn *x, const arch_attn *y)
{
    const double p[] = {x->rope_theta, x->factor, x->low_freq, x->high_freq, x->beta_fast, x->beta_slow, x->attn_factor};
    const double q[] = {y->rope_theta, y->factor, y->low_freq, y->high_freq, y->beta_fast, y->beta_slow, y->attn_factor};
    return x->window == y->window && x->rope_scale == y->rope_scale && x->rope_on == y->rope_on &&
           x->orig_ctx == y->orig_ctx && x->yarn_exact == y->yarn_exact && memcmp(p, q, sizeof p) == 0;
}

int arch_add_attn(arch *a, const arch_attn *t)
{
    for (uint32_t i = 0; i < a->n_attn_kinds; i++)
        if (same_kind(&a->attn[i], t)) return (int)i;
    if (a->n_attn_kinds == ARCH_MAX_ATTN_KINDS) return -1;
    a->attn[a->n_attn_kinds] = *t;
    return (int)a->n_attn_kinds++;
}

void arch_put(const arch *a, kvs_builder *b)
{
    char key[64];
    kvs_put_str(b, "arch.family", a->family, strnlen(a->family, sizeof a->family));
#define X(t, n, lo, hi) put_##t(b, "arch." #n, a->n);
    ARCH_FIELDS(X)
#undef X
#define X(t, n, lo, hi, def) \
    if (differs((double)a->n, def)) put_##t(b, "arch." #n, a->n);
    ARCH_FIELDS_MORE(X)
#undef X
    if (a->n_factors) kvs_put_array(b, "arch.short_factor", KV_F32S, a->short_factor, a->n_factors);
    if (a->n_factors) kvs_put_array(b, "arch.long_factor", KV_F32S, a->long_factor, a->n_factors);
    if (a->n_experts) kvs_put_array(b, "arch.layer_moe", KV_U8S, a->layer_moe, a->n_layers);
    kvs_put_array(b, "arch.layer_attn", KV_U8S, a->layer_attn, a->n_layers);
    for (uint32_t i = 0; i < a->n_attn_kinds; i++) {
#define X(t, n) snprintf(key, sizeof key, "arch.attn%u." #n, i), put_##t(b, key, a->attn[i].n);
        ATTN_FIELDS(X)
#undef X
        if (a->attn[i].yarn_exact) snprintf(key, sizeof key, "arch.attn%u.yarn_exact", i), put_u32(b, key, 1);
    }
}

static bool get_u32(const kvs *k, const char *key, uint32_t *out)
{
    const kv *v = kvs_find(k, key);
    if (!v || v->type != KV_U64 || rd64(v->data) > UINT32_MAX) return false;
    *out = (uint32_t)rd64(v->data);
    return true;
}
static bool get_f64(const kvs *k, const char *key, double *out)
{
    const kv *v = kvs_find(k, key);
    if (!v || v->type != KV_F64) return false;
    memcpy(out, v->data, 8);
    return true;
}

tess_status arch_get(arch *a, const kvs *k, tess_error *err)
{
    char key[64];
    size_t len;
    uint64_t n;
    arch_default(a);
    const char *family = kvs_str(k, "arch.family", &len);
    if (!family || len >= sizeof a->family) return ERR(err, TESS_E_FORMAT, "key \"arch.family\" is missing or too long");
    memcpy(a->family, family, len);
#define X(t, f, lo, hi) \
    if (!get_##t(k, "arch." #f, &a->f)) return ERR(err, TESS_E_FORMAT, "key \"arch.%s\" is missing or not a number", #f);
    ARCH_FIELDS(X)
#undef X
#define X(t, f, lo, hi, def) \
    if (kvs_find(k, "arch." #f) && !get_##t(k, "arch." #f, &a->f)) return ERR(err, TESS_E_FORMAT, "key \"arch.%s\" is not a number", #f);
    ARCH_FIELDS_MORE(X)
#undef X
    if (a->n_layers > ARCH_MAX_LAYERS || a->n_attn_kinds > ARCH_MAX_ATTN_KINDS) return arch_check(a, err);
    const void *kinds = kvs_array(k, "arch.layer_attn", KV_U8S, &n);
    if (!kinds || n != a->n_layers)
        return ERR(err, TESS_E_FORMAT, "key \"arch.layer_attn\" is missing or has not %u elements", a->n_layers);
    memcpy(a->layer_attn, kinds, n);
    uint64_t n_long = 0, n_short = 0;
    const void *shorts = kvs_array(k, "arch.short_factor", KV_F32S, &n_short), *longs = kvs_array(k, "arch.long_factor", KV_F32S, &n_long);
    if (shorts && longs) {
        if (n_short != n_long || n_short > ARCH_MAX_FACTORS)
            return ERR(err, TESS_E_FORMAT,
                       "keys \"arch.short_factor\" and \"arch.long_factor\" must have the same number of elements, at most %d",
                       ARCH_MAX_FACTORS);
        a->n_factors = (uint32_t)n_short;
        memcpy(a->short_factor, shorts, n_short * sizeof *a->short_factor);
        memcpy(a->long_factor, longs, n_long * sizeof *a->long_factor);
    }
    const uint8_t *moe = kvs_array(k, "arch.layer_moe", KV_U8S, &n);
    if (a->n_experts && (!moe || n != a->n_layers))
        return ERR(err, TESS_E_FORMAT, "key \"arch.layer_moe\" is missing or has not %u elements", a->n_layers);
    for (uint32_t i = 0; a->n_experts && i < a->n_layers; i++) a->layer_moe[i] = moe[i] != 0;
    for (uint32_t i = 0; i < a->n_attn_kinds; i++) {
#define X(t, f) \
    snprintf(key, sizeof key, "arch.attn%u." #f, i); \
    if (!get_##t(k, key, &a->attn[i].f)) return ERR(err, TESS_E_FORMAT, "key \"%s\" is missing or not a number", key);
        ATTN_FIELDS(X)
#undef X
        snprintf(key, sizeof key, "arch.attn%u.yarn_exact", i);
        get_u32(k, key, &a->attn[i].yarn_exact); /* absent: 0 */
    }
    return arch_check(a, err);
}

/* ---- roles ---- */
#define LAYER "model.layers.%d."
static const role_info roles[ROLE_COUNT] = {
    [ROLE_EMBED] = {"model.embed_tokens", false, true, AXIS_VOCAB, AXIS_NONE},
    [ROLE_HEAD] = {"lm_head", false, true, AXIS_VOCAB, AXIS_NONE},
    [ROLE_FINAL_NORM] = {"model.norm", false, false, AXIS_NONE, AXIS_NONE},
    [ROLE_POS_EMBED] = {"model.embed_positions", false, true, AXIS_NONE, AXIS_NONE},
    [ROLE_ATTN_NORM] = {LAYER "input_layernorm", true, false, AXIS_NONE, AXIS_NONE},
    [ROLE_Q] = {LAYER "self_attn.q_proj", true, true, AXIS_Q_HEADS, AXIS_NONE},
    [ROLE_K] = {LAYER "self_attn.k_proj", true, true, AXIS_KV_HEADS, AXIS_NONE},
    [ROLE_V] = {LAYER "self_attn.v_proj", true, true, AXIS_KV_HEADS, AXIS_NONE},
    [ROLE_O] = {LAYER "self_attn.o_proj", true, true, AXIS_NONE, AXIS_Q_HEADS},
    [ROLE_Q_NORM] = {LAYER "self_attn.q_norm", true, false, AXIS_NONE, AXIS_NONE},
    [ROLE_K_NORM] = {LAYER "self_attn.k_norm", true, false, AXIS_NONE, AXIS_NONE},
    [ROLE_FFN_NORM] = {LAYER "post_attention_layernorm", true, false, AXIS_NONE, AXIS_NONE},
    [ROLE_GATE] = {LAYER "mlp.gate_proj", true, true, AXIS_FFN, AXIS_NONE},
    [ROLE_UP] = {LAYER "mlp.up_proj", true, true, AXIS_FFN, AXIS_NONE},
    [ROLE_DOWN] = {LAYER "mlp.down_proj", true, true, AXIS_NONE, AXIS_FFN},
    [ROLE_POST_ATTN_NORM] = {LAYER "post_attention_norm", true, false, AXIS_NONE, AXIS_NONE},
    [ROLE_POST_FFN_NORM] = {LAYER "post_feedforward_layernorm", true, false, AXIS_NONE, AXIS_NONE},
    [ROLE_ROUTER] = {LAYER "mlp.gate", true, true, AXIS_NONE, AXIS_NONE},
    [ROLE_ROUTER_CORRECTION] = {LAYER "mlp.gate.e_score_correction", true, false, AXIS_NONE, AXIS_NONE},
    [ROLE_EXP_GATE] = {LAYER "mlp.experts.%d.gate_proj", true, true, AXIS_NONE, AXIS_NONE},
    [ROLE_EXP_UP] = {LAYER "mlp.experts.%d.up_proj", true, true, AXIS_NONE, AXIS_NONE},
    [ROLE_EXP_DOWN] = {LAYER "mlp.experts.%d.down_proj", true, true, AXIS_NONE, AXIS_NONE},
    [ROLE_SH_GATE] = {LAYER "mlp.shared_expert.gate_proj", true, true, AXIS_SHARED, AXIS_NONE},
    [ROLE_SH_UP] = {LAYER "mlp.shared_expert.up_proj", true, true, AXIS_SHARED, AXIS_NONE},
    [ROLE_SH_DOWN] = {LAYER "mlp.shared_expert.down_proj", true, true, AXIS_NONE, AXIS_SHARED},
    [ROLE_EMBED_NORM] = {"model.embed_norm", false, false, AXIS_NONE, AXIS_NONE},
    [ROLE_Q_A] = {LAYER "self_attn.q_a_proj", true, true, AXIS_NONE, AXIS_NONE},
    [ROLE_Q_A_NORM] = {LAYER "self_attn.q_a_layernorm", true, false, AXIS_NONE, AXIS_NONE},
    [ROLE_KV_A] = {LAYER "self_attn.kv_a_proj", true, true, AXIS_NONE, AXIS_NONE},
    [ROLE_KV_A_NORM] = {LAYER "self_attn.kv_a_layernorm", true, false, AXIS_NONE, AXIS_NONE},
    [ROLE_K_B] = {LAYER "self_attn.k_b_proj", true, true, AXIS_NONE, AXIS_NONE},
    [ROLE_V_B] = {LAYER "self_attn.v_b_proj", true, true, AXIS_V_HEADS, AXIS_NONE},
    [ROLE_LATENT_O] = {LAYER "self_attn.o_proj", true, true, AXIS_NONE, AXIS_V_HEADS},
    [ROLE_SINKS] = {LAYER "self_attn.sinks", true, false, AXIS_NONE, AXIS_NONE},
    [ROLE_Q_EACH] = {LAYER "self_attn.q_norm.%d", true, false, AXIS_NONE, AXIS_NONE},
    [ROLE_K_EACH] = {LAYER "self_attn.k_norm.%d", true, false, AXIS_NONE, AXIS_NONE},
    [ROLE_SH_SWITCH] = {LAYER "mlp.shared_expert_gate", true, true, AXIS_NONE, AXIS_NONE},
};

const role_info *role_get(uint32_t role) { return role < ROLE_COUNT && roles[role].name ? &roles[role] : NULL; }

uint32_t role_instances(const arch *a, uint32_t role)
{
    switch (role) {
    case ROLE_EXP_GATE: case ROLE_EXP_UP: case ROLE_EXP_DOWN: return a->n_experts;
    case ROLE_Q_EACH: return a->n_heads;
    case ROLE_K_EACH: return a->n_kv_heads;
    default: return 0;
    }
}

void role_name(uint32_t role, uint32_t part, int32_t layer, int32_t expert, char *dst, size_t n)
{
    const role_info *r = role_get(role);
    const char *name = r ? r->name : "unknown", *d = strstr(name, "%d"), *e = d ? strstr(d + 2, "%d") : NULL;
    const char *tail = part == PART_BIAS ? ".bias" : ".weight";
    if (e) snprintf(dst, n, "%.*s%d%.*s%d%s%s", (int)(d - name), name, layer, (int)(e - d - 2), d + 2, expert, e + 2, tail);
    else if (d) snprintf(dst, n, "%.*s%d%s%s", (int)(d - name), name, layer, d + 2, tail);
    else snprintf(dst, n, "%s%s", name, tail);
}

/* Whether the block of the model has a norm of this role. */
static bool has_norm(const arch *a, uint32_t role)
{
    bool w = a->norm_affine != 0; /* else its weights are 1 and nowhere */
    switch (role) {
    case ROLE_FINAL_NORM: return w && a->block_kind != BLOCK_POST_SUM;
    case ROLE_EMBED_NORM: return w && a->embed_norm;
    case ROLE_ATTN_NORM: return w && a->block_kind != BLOCK_POST;
    case ROLE_FFN_NORM: return w && a->block_kind != BLOCK_POST && a->block_kind != BLOCK_PARALLEL;
    case ROLE_POST_ATTN_NORM:
    case ROLE_POST_FFN_NORM: return w && (a->block_kind == BLOCK_POST || a->block_kind == BLOCK_SANDWICH);
    case ROLE_Q_NORM:
    case ROLE_K_NORM: return a->qk_norm == QK_NORM_HEAD || a->qk_norm == QK_NORM_ALL;
    case ROLE_Q_EACH:
    case ROLE_K_EACH: return a->qk_norm == QK_NORM_EACH;
    default: return true;
    }
}

/* Whether attention has a weight of this role; other roles: yes. */
static bool in_attention(const arch *a, uint32_t role)
{
    switch (role) {
    case ROLE_K: case ROLE_V: case ROLE_O: return a->kv_lora == 0;
    case ROLE_Q_A: case ROLE_Q_A_NORM: return a->kv_lora && a->q_lora;
    case ROLE_KV_A: case ROLE_KV_A_NORM: case ROLE_K_B: case ROLE_V_B: case ROLE_LATENT_O: return a->kv_lora != 0;
    default: return true;
    }
}

/* Whether the feed-forward of the layer has a weight of this role; other roles: yes. */
static bool in_ffn(const arch *a, uint32_t role, int32_t layer)
{
    bool moe = layer >= 0 && a->layer_moe[layer], gated = a->gated_ffn != 0;
    switch (role) {
    case ROLE_GATE: return !moe && gated;
    case ROLE_UP: case ROLE_DOWN: return !moe;
    case ROLE_ROUTER: case ROLE_EXP_UP: case ROLE_EXP_DOWN: return moe;
    case ROLE_EXP_GATE: return moe && gated;
    case ROLE_ROUTER_CORRECTION: return moe && a->router_correction;
    case ROLE_SH_GATE: return moe && gated && a->shared_ffn_size;
    case ROLE_SH_UP: case ROLE_SH_DOWN: return moe && a->shared_ffn_size;
    case ROLE_SH_SWITCH: return moe && a->shared_ffn_size && a->shared_switch;
    default: return true;
    }
}

static uint32_t bias_bit(uint32_t role)
{
    switch (role) {
    case ROLE_Q: case ROLE_K: case ROLE_V: return BIAS_QKV;
    case ROLE_Q_A: case ROLE_KV_A: return BIAS_LATENT;
    case ROLE_K_B: case ROLE_V_B: case ROLE_Q_A_NORM: case ROLE_KV_A_NORM: return 0;
    case ROLE_O: case ROLE_LATENT_O: return BIAS_O;
    case ROLE_GATE: case ROLE_UP: return BIAS_FFN_IN;
    case ROLE_DOWN: return BIAS_FFN_OUT;
    case ROLE_HEAD: return BIAS_HEAD;
    case ROLE_EMBED: case ROLE_POS_EMBED: case ROLE_ROUTER_CORRECTION: case ROLE_SH_SWITCH: case ROLE_SINKS: return 0;
    case ROLE_Q_NORM: case ROLE_K_NORM: case ROLE_Q_EACH: case ROLE_K_EACH: return BIAS_QK_NORM;
    case ROLE_ROUTER: return BIAS_ROUTER;
    case ROLE_EXP_GATE: case ROLE_EXP_UP: case ROLE_EXP_DOWN: return BIAS_EXPERTS;
    case ROLE_SH_GATE: case ROLE_SH_UP: return BIAS_FFN_IN;
    case ROLE_SH_DOWN: return BIAS_FFN_OUT;
    default: return BIAS_NORM;
    }
}

bool role_shape(const arch *a, uint32_t role, uint32_t part, int32_t layer, uint64_t *rows, uint64_t *cols)
{
    const role_info *r = role_get(role);
    uint64_t h = a->hidden_size, q = (uint64_t)a->n_heads * a->head_dim, k = (uint64_t)a->n_kv_heads * a->head_dim;
    *rows = *cols = 0;
    if (!r || layer >= (int32_t)a->n_layers || !has_norm(a, role) || !in_ffn(a, role, layer) || !in_attention(a, role) ||
        (part != PART_DATA && part != PART_BIAS))
        return false;
    switch (role) {
    case ROLE_EMBED: case ROLE_HEAD: *rows = a->vocab_size; *cols = h; break;
    case ROLE_POS_EMBED: *rows = a->max_ctx; *cols = h; break;
    case ROLE_Q: *rows = q; *cols = a->q_lora ? a->q_lora : h; break;
    case ROLE_Q_A: *rows = a->q_lora; *cols = h; break;
    case ROLE_Q_A_NORM: *rows = a->q_lora; break;
    case ROLE_KV_A: *rows = (uint64_t)a->kv_lora + a->rope_dims; *cols = h; break;
    case ROLE_KV_A_NORM: *rows = a->kv_lora; break;
    case ROLE_K_B: *rows = (uint64_t)a->n_heads * a->kv_lora; *cols = a->head_dim - a->rope_dims; break;
    case ROLE_V_B: *rows = (uint64_t)a->n_heads * a->v_head_dim; *cols = a->kv_lora; break;
    case ROLE_LATENT_O: *rows = h; *cols = (uint64_t)a->n_heads * a->v_head_dim; break;
    case ROLE_K: *rows = k; *cols = h; break;
    case ROLE_V: *rows = (uint64_t)a->n_kv_heads * a->v_head_dim; *cols = h; break;
    case ROLE_O: *rows = h; *cols = (uint64_t)a->n_heads * a->v_head_dim; break;
    case ROLE_GATE: case ROLE_UP: *rows = a->ffn_size; *cols = h; break;
    case ROLE_DOWN: *rows = h; *cols = a->ffn_size; break;
    case ROLE_Q_NORM: *rows = a->qk_norm == QK_NORM_ALL ? q : a->head_dim; break;
    case ROLE_K_NORM: *rows = a->qk_norm == QK_NORM_ALL ? k : a->head_dim; break;
    case ROLE_SINKS: *rows = a->n_heads; break;
    case ROLE_Q_EACH: case ROLE_K_EACH: *rows = a->head_dim; break;
    case ROLE_ROUTER: *rows = a->n_experts; *cols = h; break;
    case ROLE_ROUTER_CORRECTION: *rows = a->n_experts; break;
    case ROLE_EXP_GATE: case ROLE_EXP_UP: *rows = a->moe_ffn_size; *cols = h; break;
    case ROLE_EXP_DOWN: *rows = h; *cols = a->moe_ffn_size; break;
    case ROLE_SH_GATE: case ROLE_SH_UP: *rows = a->shared_ffn_size; *cols = h; break;
    case ROLE_SH_DOWN: *rows = h; *cols = a->shared_ffn_size; break;
    case ROLE_SH_SWITCH: *rows = 1; *cols = h; break;
    default: *rows = h; break;
    }
    if ((role == ROLE_POS_EMBED && !a->learned_pos) || (role == ROLE_SINKS && !a->sinks)) return false;
    if (part == PART_DATA) return true;
    *cols = 0;
    return (a->biases & bias_bit(role)) != 0;
}

/* ---- split axes ---- */
bool arch_axis_of(const arch *a, uint32_t kind, arch_axis *x)
{
    *x = (arch_axis){.kind = kind};
    switch (kind) {
    case AXIS_Q_HEADS: x->unit = a->head_dim; x->dim = (uint64_t)a->n_heads * a->head_dim; break;
    case AXIS_KV_HEADS: x->unit = a->head_dim; x->dim = (uint64_t)a->n_kv_heads * a->head_dim; break;
    case AXIS_FFN: x->unit = FFN_UNIT; x->dim = a->ffn_size; break;
    case AXIS_VOCAB: x->unit = VOCAB_UNIT; x->dim = a->vocab_size; break;
    case AXIS_EXPERT: x->unit = 1; x->dim = a->n_experts; break;
    case AXIS_V_HEADS: x->unit = a->v_head_dim; x->dim = a->kv_lora ? (uint64_t)a->n_heads * a->v_head_dim : 0; break;
    case AXIS_SHARED: x->unit = FFN_UNIT; x->dim = a->shared_ffn_size; break;
    default: return false;
    }
    if (x->dim == 0) return false;
    x->n_units = (uint32_t)ceil_div(x->dim, x->unit);
    x->n_leaves = MIN(x->n_units, (uint32_t)MAX_LEAVES);
    for (uint32_t i = 0; i <= x->n_leaves; i++) x->leaf[i] = (uint32_t)((uint64_t)x->n_units * i / x->n_leaves);
    return true;
}
