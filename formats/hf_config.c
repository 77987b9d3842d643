/*
 * hf_config.c - config.json to arch, by the row of the family. See hf_config.h; the rope part is in hf_rope.c.
 *
 * Families differ in how keys are called, not in what they mean. Sizes are looked up by all their spellings; where one family
 * ignores the key of another (transformers keeps such keys in config.json), the row says which one counts. What a key cannot say
 * is in the adjust functions at the end.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "hf_config_priv.h"
#include "hf_wrapper.h"

/* ---- typed members ---- */

static const json_t *find_key(const json_t *o, const char *keys, bool null_too)
{
    char key[96];
    for (const char *p = keys; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL) {
        size_t n = strcspn(p, "|");
        if (n >= sizeof key) return NULL;
        memcpy(key, p, n);
        key[n] = 0;
        const json_t *v = json_object_get(o, key);
        if (v && (null_too || !json_is_null(v))) return v;
    }
    return NULL;
}

const json_t *cfg_get(const json_t *o, const char *keys) { return find_key(o, keys, false); }
bool cfg_has(const json_t *o, const char *keys) { return find_key(o, keys, true) != NULL; }

void cfg_fail(cfg *c, tess_status st, const char *fmt, ...)
{
    char text[504];
    va_list ap;
    if (c->st < 0) return; /* the first failure is the one to tell */
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    c->st = ERR(c->err, st, "%s", text);
}

static void wrong_type(cfg *c, const char *keys, const json_t *v, const char *want)
{
    cfg_fail(c, TESS_E_FORMAT, "%s: key \"%.*s\" is %s, want %s", c->file, (int)strcspn(keys, "|"), keys,
             jsonr_type(v), want);
}

uint32_t cfg_u32(cfg *c, const char *keys, uint32_t def, bool required)
{
    const json_t *v = cfg_get(c->root, keys);
    uint64_t n;
    if (!v) {
        if (required) wrong_type(c, keys, v, "a whole number");
        return def;
    }
    if (jsonr_u64(v, &n) && n <= UINT32_MAX) return (uint32_t)n;
    wrong_type(c, keys, v, "a whole number below 2^32");
    return def;
}

uint32_t cfg_u32_or_null(cfg *c, const char *keys, uint32_t absent, uint32_t null)
{
    return cfg_u32(c, keys, cfg_has(c->root, keys) ? null : absent, false);
}

double cfg_f64(cfg *c, const json_t *o, const char *keys, double def)
{
    const json_t *v = cfg_get(o, keys);
    double d;
    if (!v) return def;
    if (jsonr_f64(v, &d)) return d;
    wrong_type(c, keys, v, "a number");
    return def;
}

bool cfg_bool(cfg *c, const char *keys, bool def)
{
    const json_t *v = cfg_get(c->root, keys);
    if (v && !json_is_boolean(v)) wrong_type(c, keys, v, "true or false");
    return v ? json_is_true(v) : def;
}

const char *cfg_str(cfg *c, const json_t *o, const char *keys, const char *def)
{
    const json_t *v = cfg_get(o, keys);
    if (v && !json_is_string(v)) wrong_type(c, keys, v, "a string");
    return json_is_string(v) ? json_string_value(v) : def;
}

/* ---- family ---- */

static const family *find_family(cfg *c)
{
    char list[480];
    const char *type = cfg_str(c, c->root, "model_type", NULL);
    if (c->st < 0) return NULL;
    if (!type) {
        cfg_fail(c, TESS_E_FORMAT, "%s: key \"model_type\" is missing", c->file);
        return NULL;
    }
    const family *f = family_by_model_type(type);
    family_list(list, sizeof list);
    if (!f)
        cfg_fail(c, TESS_E_UNSUPPORTED, "%s: model family \"%.60s\" is not supported; supported are %s",
                 c->file, type, list);
    const json_t *classes = cfg_get(c->root, "architectures"), *first = json_array_get(classes, 0);
    if (f && json_is_string(first) && strcmp(json_string_value(first), f->class_name) != 0)
        cfg_fail(c, TESS_E_UNSUPPORTED,
                 "%s: architecture \"%.80s\" is not supported; of this family it must be %s", c->file,
                 json_string_value(first), f->class_name);
    return f;
}

/* Keys that change the result whatever the family, and that we do not follow. */
static void refuse_unknown(cfg *c, const family *f)
{
    if (f && !f->latent && cfg_get(c->root, "kv_lora_rank"))
        cfg_fail(c, TESS_E_UNSUPPORTED, "%s: key \"kv_lora_rank\": this family has no latent attention", c->file);
    static const char *const experts[] = {"num_local_experts", "num_experts", "n_routed_experts"};
    for (size_t i = 0; f && !f->moe && i < ARRAY_LEN(experts); i++)
        if (cfg_get(c->root, experts[i]))
            cfg_fail(c, TESS_E_UNSUPPORTED, "%s: key \"%s\": this family has no experts", c->file, experts[i]);
    if (cfg_bool(c, "use_bidirectional_attention", false))
        cfg_fail(c, TESS_E_UNSUPPORTED, "%s: use_bidirectional_attention is not supported", c->file);
    if (cfg_bool(c, "add_cross_attention", false))
        cfg_fail(c, TESS_E_UNSUPPORTED, "%s: add_cross_attention is not supported", c->file);
}

static uint32_t read_act(cfg *c, const family *f)
{
    static const struct { const char *name; uint32_t act; } acts[] = {
        {"silu", ACT_SILU},
        {"swish", ACT_SILU},
        {"gelu", ACT_GELU},
        {"gelu_python", ACT_GELU},
        {"gelu_new", ACT_GELU_TANH},
        {"gelu_pytorch_tanh", ACT_GELU_TANH},
        {"gelu_fast", ACT_GELU_TANH},
        {"relu", ACT_RELU},
        {"relu2", ACT_RELU2},
    };
    const char *name = cfg_str(c, c->root, f->act_key ? f->act_key : "hidden_act", NULL);
    if (!name) return f->act;
    for (size_t i = 0; i < ARRAY_LEN(acts); i++)
        if (strcmp(acts[i].name, name) == 0)
            return f->gelu_tanh && acts[i].act == ACT_GELU ? (uint32_t)ACT_GELU_TANH : acts[i].act;
    cfg_fail(c, TESS_E_UNSUPPORTED,
             "%s: activation \"%.60s\" is not supported; supported are silu, gelu, gelu_new, "
             "gelu_pytorch_tanh, relu, relu2",
             c->file, name);
    return f->act;
}

/* One latent vector serves all heads; a head is a part that is compared through it and a part that is rotated. */
static void read_latent(cfg *c, const family *f, arch *a)
{
    uint32_t nope = cfg_u32(c, "qk_nope_head_dim", 128, false), rope = cfg_u32(c, "qk_rope_head_dim", 64, false);
    a->kv_lora = cfg_u32(c, "kv_lora_rank", 512, false);
    a->q_lora = cfg_u32_or_null(c, "q_lora_rank", f->q_lora, 0);
    a->v_head_dim = cfg_u32(c, "v_head_dim", 128, false);
    a->n_kv_heads = 1;
    a->rope_dims = rope;
    a->head_dim = nope <= 4096 && rope <= 4096 ? nope + rope : 0;
}

static void check_arch(cfg *c, const arch *a)
{
    c->st = arch_check(a, c->err);
    if (c->st < 0) err_prefix(c->err, c->st, "%s", c->file);
}

static void read_sizes(cfg *c, const family *f, arch *a)
{
    snprintf(a->family, sizeof a->family, "%s", f->model_type);
    a->n_layers = cfg_u32(c, "num_hidden_layers|n_layer|n_layers", 1, true);
    a->hidden_size = cfg_u32(c, "hidden_size|n_embd|n_embed|d_model", 1, true);
    a->vocab_size = cfg_u32(c, "vocab_size", 1, true);
    a->n_heads = cfg_u32(c, "num_attention_heads|n_head|n_heads", 1, true);
    a->n_kv_heads =
        cfg_u32_or_null(c, f->kv_key ? f->kv_key : "num_key_value_heads", f->kv_heads ? f->kv_heads : a->n_heads, a->n_heads);
    a->max_ctx = cfg_u32(c, "max_position_embeddings|n_positions|n_ctx|max_seq_len|seq_length", MAX(f->max_ctx, 1u),
                         f->max_ctx == 0);
    a->ffn_size = cfg_u32(c, f->ffn_key ? f->ffn_key : "intermediate_size",
                          a->hidden_size <= UINT32_MAX / 4 ? 4 * a->hidden_size : 0, !f->ffn_4h);
    a->norm_eps = cfg_f64(c, c->root, f->eps_key ? f->eps_key : "rms_norm_eps", f->eps);
    if (c->st < 0) return;
    if (a->n_heads == 0 || a->n_layers > ARCH_MAX_LAYERS) {
        check_arch(c, a);
        return;
    }
    const char *key = f->no_head_dim ? "" : "head_dim";
    uint32_t given = cfg_u32_or_null(c, key, f->head_dim, 0);
    a->head_dim = given || cfg_get(c->root, key) ? given : a->hidden_size / a->n_heads;
    if (a->head_dim != given && a->hidden_size % a->n_heads && !f->latent)
        cfg_fail(c, TESS_E_FORMAT,
                 "%s: hidden_size %u is not a multiple of num_attention_heads %u, and head_dim is missing",
                 c->file, a->hidden_size, a->n_heads);
    a->v_head_dim = a->head_dim;
    if (f->latent) read_latent(c, f, a);
}

/* ---- layers ---- */

/* Whether layer i has a window by the rule of the family, in the absence of layer_types. */
static bool rule_slides(cfg *c, const family *f, uint32_t i)
{
    uint32_t n;
    switch (f->windows) {
    case WINDOW_ALL: return true;
    case WINDOW_QWEN: return i >= cfg_u32(c, "max_window_layers", 28, false);
    case WINDOW_QWEN_MOE: return true;
    case WINDOW_QWEN2_MOE: return i % 2 == 0 && i < cfg_u32(c, "max_window_layers", 28, false);
    case WINDOW_ALTERNATE: return i % 2 == 0;
    case WINDOW_PATTERN:
        n = cfg_u32(c, "sliding_window_pattern|_sliding_window_pattern", f->pattern ? f->pattern : 6, false);
        return n == 0 || (i + 1) % n != 0;
    default: return false;
    }
}

static bool layer_slides(cfg *c, const family *f, const json_t *types, uint32_t i)
{
    if (!types || f->windows == WINDOW_ALL || f->windows == WINDOW_QWEN_MOE) return rule_slides(c, f, i);
    const char *type = json_string_value(json_array_get(types, i));
    if (type && strcmp(type, "full_attention") == 0) return false;
    if (!type || strcmp(type, "sliding_attention") != 0)
        cfg_fail(c, TESS_E_UNSUPPORTED,
                 "%s: layer_types[%u] is \"%.40s\"; supported are full_attention and sliding_attention",
                 c->file, i, type ? type : "no string");
    return true;
}

/* The index of kind t in a, added when it is new. */
static uint8_t attn_kind(cfg *c, arch *a, const arch_attn *t)
{
    int i = arch_add_attn(a, t);
    if (i < 0)
        cfg_fail(c, TESS_E_UNSUPPORTED, "%s: more than %d kinds of attention layers", c->file, ARCH_MAX_ATTN_KINDS);
    return i < 0 ? 0 : (uint8_t)i;
}

static void read_layers(cfg *c, const family *f, arch *a)
{
    arch_attn ropes[2];
    double rotary;
    const json_t *types = cfg_get(c->root, "layer_types"), *no_rope = cfg_get(c->root, "no_rope_layers");
    if (hf_rope_read(c, f, a->max_ctx, ropes, &rotary) < 0) return;
    a->rope_kind = a->alibi ? (uint32_t)ROPE_NONE : f->rope_kind;
    if (a->rope_kind != ROPE_NONE) a->max_ctx = hf_rope_reach(&ropes[0], a->max_ctx);
    if (f->adjust == ADJUST_DEEPSEEK3 && !cfg_bool(c, "rope_interleave", true)) a->rope_kind = ROPE_HALF;
    if (f->rotary_dim && a->head_dim) rotary = (double)cfg_u32(c, "rotary_dim", f->rotary_dim, false) / a->head_dim;
    double dims = (double)a->head_dim * rotary;
    if (f->latent) dims = a->rope_dims;
    a->rope_dims = a->rope_kind == ROPE_NONE || !(dims >= 0 && dims <= 4096) ? 0 : (uint32_t)dims;
    a->rope_odd = f->adjust == ADJUST_NEOX && a->rope_dims % 2; /* then the last pair turns as well */
    a->rope_dims += a->rope_odd;
    uint32_t window = cfg_u32_or_null(c, "sliding_window", f->window, 0), interval = cfg_u32(c, "no_rope_layer_interval", 4, false);
    if (f->windows == WINDOW_NONE && f->adjust != ADJUST_SMOLLM3) window = 0;
    bool asked = f->windows == WINDOW_QWEN || f->windows == WINDOW_QWEN_MOE || f->windows == WINDOW_QWEN2_MOE;
    if ((asked || f->adjust == ADJUST_SMOLLM3) && !cfg_bool(c, "use_sliding_window", false))
        window = 0;
    if (types && json_array_size(types) != a->n_layers)
        cfg_fail(c, TESS_E_FORMAT, "%s: layer_types has %zu entries for %u layers", c->file,
                 json_array_size(types), a->n_layers);
    if (no_rope && json_array_size(no_rope) != a->n_layers)
        cfg_fail(c, TESS_E_FORMAT, "%s: no_rope_layers has %zu entries for %u layers", c->file,
                 json_array_size(no_rope), a->n_layers);
    a->n_attn_kinds = 0;
    for (uint32_t i = 0; i < a->n_layers && c->st == TESS_OK; i++) {
        bool rope_on = a->rope_kind != ROPE_NONE, slides = window != 0 && layer_slides(c, f, types, i);
        uint64_t flag = 1;
        if (f->adjust == ADJUST_SMOLLM3) {
            if (no_rope && !jsonr_u64(json_array_get(no_rope, i), &flag))
                cfg_fail(c, TESS_E_FORMAT, "%s: no_rope_layers[%u] is not 0 or 1", c->file, i);
            rope_on = no_rope ? flag != 0 : interval == 0 || (i + 1) % interval != 0;
            if (!types) slides = window != 0 && !rope_on;
        } else if (no_rope)
            cfg_fail(c, TESS_E_UNSUPPORTED, "%s: no_rope_layers is not supported in this family", c->file);
        if (f->rope_sliding && rope_on) rope_on = slides || (f->rope_sliding == 2 && window == 0);
        arch_attn t = ropes[slides];
        t.window = slides ? window : 0;
        t.rope_on = rope_on;
        a->layer_attn[i] = attn_kind(c, a, &t);
    }
}

/* ---- peculiarities ---- */

static void refuse_true(cfg *c, const char *key)
{
    if (cfg_bool(c, key, false)) cfg_fail(c, TESS_E_UNSUPPORTED, "%s: %s = true is not supported", c->file, key);
}

static void adjust_mpt(cfg *c, arch *a)
{
    const json_t *attn = cfg_get(c->root, "attn_config");
    const char *norm = cfg_str(c, c->root, "norm_type", "low_precision_layernorm");
    if (!strstr(norm, "layernorm")) cfg_fail(c, TESS_E_UNSUPPORTED, "%s: norm_type \"%.40s\" is not supported", c->file, norm);
    if (cfg_get(c->root, "logit_scale"))
        cfg_fail(c, TESS_E_UNSUPPORTED, "%s: logit_scale is not supported in this family", c->file);
    cfg sub = {attn, c->file, c->st, c->err};
    a->alibi = ALIBI_MPT;
    a->alibi_max = cfg_f64(&sub, attn, "alibi_bias_max", 8);
    a->qkv_clip = cfg_f64(&sub, attn, "clip_qkv", 0);
    a->attn_scale = cfg_f64(&sub, attn, "softmax_scale", a->attn_scale);
    refuse_true(&sub, "qk_ln");
    refuse_true(&sub, "prefix_lm");
    if (attn && !cfg_bool(&sub, "alibi", true))
        cfg_fail(&sub, TESS_E_UNSUPPORTED, "%s: attn_config.alibi = false is not supported", c->file);
    c->st = sub.st;
}

/* With yarn, attention is scaled by the square of what lengthens the rotated part. */
static double latent_mscale(cfg *c)
{
    const json_t *o = cfg_get(c->root, "rope_parameters|rope_scaling");
    double all = cfg_f64(c, o, "mscale_all_dim", 0), factor = cfg_f64(c, o, "factor", 1);
    if (strcmp(cfg_str(c, o, "rope_type|type", "default"), "default") == 0 || all == 0 || factor <= 1) return 1;
    double m = 0.1 * all * log(factor) + 1;
    return m * m;
}

/* null is no cap, whatever the family has when the key is absent. */
static double soft_cap(cfg *c, const char *key, double def) { return cfg_f64(c, c->root, key, cfg_has(c->root, key) ? 0 : def); }

static void adjust(cfg *c, const family *f, arch *a)
{
    switch (f->adjust) {
    case ADJUST_FALCON: {
        if (cfg_bool(c, "alibi", false)) a->alibi = ALIBI_BF16;
        bool grouped = cfg_bool(c, "new_decoder_architecture", false);
        if (!grouped) a->n_kv_heads = cfg_bool(c, "multi_query", true) ? 1 : a->n_heads;
        if (grouped)
            a->block_kind =
                cfg_u32(c, "num_ln_in_parallel_attn", 2, false) == 2 ? BLOCK_PARALLEL2 : BLOCK_PARALLEL;
        else a->block_kind = cfg_bool(c, "parallel_attn", true) ? BLOCK_PARALLEL : BLOCK_PRE;
        break;
    }
    case ADJUST_NEOX:
        if (!cfg_bool(c, "use_parallel_residual", true)) a->block_kind = BLOCK_PRE;
        a->n_kv_heads = a->n_heads;
        break;
    case ADJUST_GEMMA2:
        a->attn_scale = 1 / sqrt(cfg_f64(c, c->root, "query_pre_attn_scalar", 256));
        a->attn_softcap = soft_cap(c, "attn_logit_softcapping", 50);
        a->logit_softcap = soft_cap(c, "final_logit_softcapping", 30);
        break;
    case ADJUST_GEMMA3: /* attn_logit_softcapping is still in its files, but not followed */
        a->attn_scale = 1 / sqrt(cfg_f64(c, c->root, "query_pre_attn_scalar", 256));
        a->logit_softcap = cfg_f64(c, c->root, "final_logit_softcapping", 0);
        break;
    case ADJUST_GPT2:
        a->learned_pos = 1;
        if (!cfg_bool(c, "scale_attn_weights", true)) a->attn_scale = 1;
        a->attn_scale_by_layer = cfg_bool(c, "scale_attn_by_inverse_layer_idx", false);
        break;
    case ADJUST_PHI:
        a->biases |= BIAS_NORM | BIAS_HEAD | BIAS_QKV | BIAS_O | BIAS_FFN_IN | BIAS_FFN_OUT | BIAS_QK_NORM;
        if (cfg_bool(c, "qk_layernorm", false)) a->qk_norm = QK_NORM_HEAD;
        break;
    case ADJUST_STABLELM:
        if (cfg_bool(c, "use_parallel_residual", false)) a->block_kind = BLOCK_PARALLEL;
        if (cfg_bool(c, "qk_layernorm", false)) a->qk_norm = QK_NORM_EACH;
        break;
    case ADJUST_OLMO: a->norm_affine = 0; break;
    case ADJUST_COHERE:
        a->logit_scale = cfg_f64(c, c->root, "logit_scale", 0.0625);
        if (f->windows == WINDOW_NONE && cfg_bool(c, "use_qk_norm", false)) a->qk_norm = QK_NORM_EACH; /* cohere2 has none */
        break;
    case ADJUST_BLOOM:
        a->embed_norm = 1;
        a->alibi = ALIBI_PLAIN;
        a->residual_normed = cfg_bool(c, "apply_residual_connection_post_layernorm", false);
        break;
    case ADJUST_OPT:
        a->learned_pos = 1;
        a->norm_affine = cfg_bool(c, "layer_norm_elementwise_affine", true);
        if (!cfg_bool(c, "do_layer_norm_before", true)) a->block_kind = BLOCK_POST_SUM;
        else refuse_true(c, "_remove_final_layer_norm");
        break;
    case ADJUST_MPT: adjust_mpt(c, a); break;
    case ADJUST_GLM4_MOE:
        if (cfg_bool(c, "use_qk_norm", false)) a->qk_norm = QK_NORM_HEAD;
        break;
    case ADJUST_DEEPSEEK3:
    case ADJUST_DEEPSEEK2:
        a->attn_scale *= latent_mscale(c);
        if (f->adjust == ADJUST_DEEPSEEK2) refuse_true(c, "mlp_bias");
        break;
    case ADJUST_GPT_OSS:
        a->sinks = 1;
        a->act = ACT_SWIGLU_CLAMP; /* whatever hidden_act says */
        a->act_alpha = cfg_f64(c, c->root, "swiglu_alpha", 1.702);
        a->act_limit = cfg_f64(c, c->root, "swiglu_limit", 7);
        break;
    case ADJUST_GRANITE:
        a->attn_scale = cfg_f64(c, c->root, "attention_multiplier", 1);
        a->embed_scale = cfg_f64(c, c->root, "embedding_multiplier", 1);
        a->residual_scale = cfg_f64(c, c->root, "residual_multiplier", 1);
        a->logit_scale = 1 / cfg_f64(c, c->root, "logits_scaling", 1);
        break;
    default: break;
    }
}

static void read_arch(cfg *c, hf_config *out)
{
    const family *f = out->fam;
    arch *a = &out->a;
    arch_default(a);
    read_sizes(c, f, a);
    if (c->st < 0) return;
    a->norm_kind = f->norm_kind;
    a->block_kind = f->block_kind;
    a->qk_norm = f->qk_norm;
    a->gated_ffn = f->gated_ffn;
    a->act = read_act(c, f);
    a->biases = f->biases;
    for (size_t i = 0; i < ARRAY_LEN(f->bias) && f->bias[i].key; i++)
        if (cfg_bool(c, f->bias[i].key, f->bias[i].on)) a->biases |= f->bias[i].bits;
    a->attn_scale = a->head_dim ? 1 / sqrt((double)a->head_dim) : 0;
    if (f->scale_embed) a->embed_scale = sqrt((double)a->hidden_size);
    adjust(c, f, a);
    hf_moe_read(c, f, a);
    if (f->clip) a->qkv_clip = cfg_f64(c, c->root, "clip_qkv", 0);
    if (c->st == TESS_OK) read_layers(c, f, a);
    if (c->st == TESS_OK) hf_rope_factors(c, a);
    if (f->adjust == ADJUST_OPT) out->embed_dim = cfg_u32(c, "word_embed_proj_dim", a->hidden_size, false);
    if (out->embed_dim == a->hidden_size) out->embed_dim = 0;
    out->tied = cfg_bool(c, "tie_word_embeddings", f->tied);
    a->tied_head = out->tied;
    if (c->st == TESS_OK) check_arch(c, a);
}

tess_status hf_config_read(const char *json, size_t len, const char *file, hf_config *out, tess_error *err)
{
    json_t *root;
    memset(out, 0, sizeof *out);
    TRY(jsonr_parse_object(json, len, 0, file, &root, err));
    cfg c = {root, file, TESS_OK, err};
    c.root = hf_wrapper_text(&c);
    out->part = c.root != root;
    out->fam = find_family(&c);
    refuse_unknown(&c, out->fam);
    if (c.st == TESS_OK) read_arch(&c, out);
    json_decref(root);
    return c.st;
}

/* ---- generation ---- */

/* One id or a list of ids; n = 0 when the key is absent. */
static uint32_t read_ids(cfg *c, const char *key, int32_t ids[64])
{
    const json_t *v = cfg_get(c->root, key);
    uint32_t n = json_is_array(v) ? (uint32_t)MIN(json_array_size(v), (size_t)65) : v ? 1 : 0;
    if (n > 64) {
        cfg_fail(c, TESS_E_FORMAT, "%s: %s: more than 64 ids", c->file, key);
        return 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint64_t id;
        const json_t *e = json_is_array(v) ? json_array_get(v, i) : v;
        if (!jsonr_u64(e, &id) || id > INT32_MAX) {
            wrong_type(c, key, e, "a token id or a list of token ids");
            return 0;
        }
        ids[i] = (int32_t)id;
    }
    return n;
}

static void put_id(cfg *gen, cfg *config, const char *key, const char *kv_key, kvs_builder *b)
{
    int32_t ids[64];
    uint32_t n = gen->root ? read_ids(gen, key, ids) : 0;
    if (n == 0) n = read_ids(config, key, ids);
    if (n) kvs_put_i64(b, kv_key, ids[0]);
}

static void put_generation(cfg *gen, cfg *config, kvs_builder *b)
{
    static const struct { const char *key, *kv; double lo, hi; } numbers[] = {
        {"temperature", "gen.temperature", 0, FLT_MAX}, {"top_p", "gen.top_p", 0, 1}, {"min_p", "gen.min_p", 0, 1},
        {"repetition_penalty", "gen.repetition_penalty", FLT_MIN, FLT_MAX},
    };
    int32_t ids[64];
    uint32_t n = gen->root ? read_ids(gen, "eos_token_id", ids) : 0;
    if (n == 0) n = read_ids(config, "eos_token_id", ids);
    if (n) kvs_put_array(b, "gen.eos", KV_I32S, ids, n);
    put_id(gen, config, "bos_token_id", "gen.bos", b);
    put_id(gen, config, "pad_token_id", "gen.pad", b);
    if (!gen->root) return;
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        if (!cfg_get(gen->root, numbers[i].key)) continue;
        double v = cfg_f64(gen, gen->root, numbers[i].key, numbers[i].lo);
        if (!(v >= numbers[i].lo && v <= numbers[i].hi))
            cfg_fail(gen, TESS_E_FORMAT, "%s: %s is %g, want a number %s; mend or remove it", gen->file, numbers[i].key, v,
                     numbers[i].hi == 1 ? "from 0 to 1" : numbers[i].lo == 0 ? "of at least 0" : "above 0");
        kvs_put_f64(b, numbers[i].kv, v);
    }
    if (cfg_get(gen->root, "top_k")) kvs_put_i64(b, "gen.top_k", cfg_u32(gen, "top_k", 0, false));
    if (cfg_get(gen->root, "do_sample")) kvs_put_bool(b, "gen.do_sample", cfg_bool(gen, "do_sample", false));
}

tess_status hf_generation_put(const char *gen, size_t gen_len, const char *gen_file, const char *config,
                              size_t config_len, const char *config_file, kvs_builder *b, tess_error *err)
{
    json_t *g = NULL, *k = NULL;
    tess_status st = TESS_OK;
    if (gen) st = jsonr_parse_object(gen, gen_len, 0, gen_file, &g, err);
    if (st == TESS_OK && config) st = jsonr_parse_object(config, config_len, 0, config_file, &k, err);
    cfg cg = {g, gen_file, TESS_OK, err}, ck = {k, config_file, TESS_OK, err};
    if (st == TESS_OK) {
        put_generation(&cg, &ck, b);
        st = cg.st < 0 ? cg.st : ck.st;
    }
    json_decref(g);
    json_decref(k);
    return st;
}

/* ---- chat template ---- */

/* The text of "chat_template": itself, or the entry named "default" of a list of {name, template}. */
static const json_t *default_template(const json_t *v)
{
    size_t i;
    json_t *e;
    if (json_is_string(v)) return v;
    json_array_foreach((json_t *)(uintptr_t)v, i, e) {
        const char *name = json_string_value(json_object_get(e, "name"));
        if (name && strcmp(name, "default") == 0) return json_object_get(e, "template");
    }
    return NULL;
}

tess_status hf_chat_template_put(const char *jinja, size_t jinja_len, const char *tok_config,
                                 size_t tok_config_len, const char *tok_config_file, kvs_builder *b,
                                 tess_error *err)
{
    enum { MAX_TEMPLATE = 1 << 20 };
    json_t *root = NULL;
    tess_status st = TESS_OK;
    if (!jinja && tok_config) {
        TRY(jsonr_parse_object(tok_config, tok_config_len, 0, tok_config_file, &root, err));
        const json_t *v = default_template(cfg_get(root, "chat_template"));
        jinja = json_string_value(v);
        jinja_len = json_string_length(v);
    }
    if (jinja && jinja_len > MAX_TEMPLATE)
        st = ERR(err, TESS_E_FORMAT, "chat template is %zu bytes, the limit is %d", jinja_len, MAX_TEMPLATE);
    else if (jinja) kvs_put_str(b, "chat.template", jinja, jinja_len);
    json_decref(root);
    return st;
}
