/*
 * gguf_config.c - see gguf_config.h; the rope part is in gguf_rope.c.
 *
 * Keys are "<general.architecture>.<name>". What files do not hold is seen from their tensors (biases, norms, experts of a
 * layer, a tied head) or is known of the architecture, by the family row. Of that:
 *   - gemma and nemotron add 1 to the weights of norms; llama.cpp's converter has done it already, so the plain norm is meant
 *   - gemma2 and gemma3 scale attention by head_dim^-1/2, but the largest model of each by (hidden / heads)^-1/2
 *   - smollm3 has no rope in each fourth layer; windows of gemma2 and gpt_oss are in even layers
 *   - llama.cpp's converter writes 4 * hidden as the feed-forward width of phi2, whatever it is: the tensor tells
 *   - windows of mistral (architecture "llama") are not in the file: such a model sees the whole context
 */
#include "gguf_config.h"

#include <math.h>
#include <stdio.h>

#include "gguf_config_priv.h"

const char *gcfg_key(gcfg *c, const char *name)
{
    snprintf(c->key, sizeof c->key, "%s.%s", c->arch, name);
    return c->key;
}

uint32_t gcfg_u32(gcfg *c, const char *name, uint64_t def, bool required)
{
    const gguf_kv *v = gguf_find(c->s, gcfg_key(c, name));
    uint64_t n = v ? gguf_u64_at(v, 0, UINT64_MAX) : def;
    for (uint64_t i = 1; v && i < gguf_count(v); i++)
        if (gguf_u64_at(v, i, UINT64_MAX) != n) n = UINT64_MAX;
    if (c->st == TESS_OK && ((!v && required) || n > UINT32_MAX))
        c->st = ERR(c->err, TESS_E_FORMAT, "%s: key \"%s\" is %s", c->s->paths[0], c->key, v ? "not one whole number" : "missing");
    return n > UINT32_MAX ? 0 : (uint32_t)n;
}
double gcfg_f64(gcfg *c, const char *name, double def) { return gguf_f64(c->s, gcfg_key(c, name), def); }

/* The tensor of this name in the first layer that has it, -1 = none. */
static int64_t find_in_layers(const source *s, const arch *a, const char *name)
{
    char full[64];
    int64_t i = -1;
    for (uint32_t layer = 0; layer < a->n_layers && i < 0; layer++) {
        snprintf(full, sizeof full, "blk.%u.%s", layer, name);
        i = source_find(s, full);
    }
    return i;
}

static uint32_t biases_seen(const source *s, const arch *a)
{
    static const struct { const char *name; uint32_t bit; } seen[] = {
        {"attn_q.bias", BIAS_QKV},           {"attn_qkv.bias", BIAS_QKV},          {"attn_output.bias", BIAS_O},
        {"ffn_up.bias", BIAS_FFN_IN},        {"ffn_down.bias", BIAS_FFN_OUT},      {"ffn_up_shexp.bias", BIAS_FFN_IN},
        {"ffn_down_shexp.bias", BIAS_FFN_OUT}, {"ffn_gate_inp.bias", BIAS_ROUTER}, {"ffn_up_exps.bias", BIAS_EXPERTS},
        {"attn_q_norm.bias", BIAS_QK_NORM},  {"attn_kv_a_mqa.bias", BIAS_LATENT},
    };
    uint32_t bits = 0;
    for (size_t i = 0; i < ARRAY_LEN(seen); i++)
        if (find_in_layers(s, a, seen[i].name) >= 0) bits |= seen[i].bit;
    if (source_find(s, "output_norm.bias") >= 0) bits |= BIAS_NORM;
    if (source_find(s, "output.bias") >= 0) bits |= BIAS_HEAD;
    return bits;
}

/* ---- sizes ---- */

static void read_latent(gcfg *c, arch *a)
{
    a->kv_lora = gcfg_u32(c, "attention.kv_lora_rank", 0, true);
    a->q_lora = gcfg_u32(c, "attention.q_lora_rank", 0, false);
    a->head_dim = gcfg_u32(c, "attention.key_length_mla", a->head_dim, false);
    a->v_head_dim = gcfg_u32(c, "attention.value_length_mla", a->v_head_dim, false);
    a->rope_dims = gcfg_u32(c, "rope.dimension_count", 0, true);
    a->n_kv_heads = 1;
}

static void read_sizes(gcfg *c, const family *f, arch *a)
{
    int64_t embed = source_find(c->s, "token_embd.weight");
    uint64_t rows = embed >= 0 ? c->s->tensors[embed].shape[0] : 0;
    a->vocab_size = rows <= UINT32_MAX ? (uint32_t)rows : 0;
    a->hidden_size = gcfg_u32(c, "embedding_length", 0, true);
    a->n_heads = gcfg_u32(c, "attention.head_count", 0, true);
    a->n_kv_heads = gcfg_u32(c, "attention.head_count_kv", a->n_heads, false);
    a->max_ctx = gcfg_u32(c, "context_length", f->max_ctx, f->max_ctx == 0);
    a->ffn_size = gcfg_u32(c, "feed_forward_length", 0, true);
    int64_t down = f->adjust == ADJUST_PHI ? find_in_layers(c->s, a, "ffn_down.weight") : -1;
    if (down >= 0 && c->s->tensors[down].rank == 2 && c->s->tensors[down].shape[1] <= UINT32_MAX)
        a->ffn_size = (uint32_t)c->s->tensors[down].shape[1];
    a->head_dim = gcfg_u32(c, "attention.key_length", a->n_heads ? a->hidden_size / a->n_heads : 0, false);
    a->v_head_dim = gcfg_u32(c, "attention.value_length", a->head_dim, false);
    if (f->latent) read_latent(c, a);
    else a->rope_dims = gcfg_u32(c, "rope.dimension_count", (uint64_t)((double)a->head_dim * f->rotary), false);
    bool layer_norm = f->norm_kind == NORM_LAYER || f->norm_kind == NORM_LAYER_PLUS1;
    a->norm_eps = gcfg_f64(c, layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", f->eps);
}

/* ---- kinds ---- */

/* The row that describes the file: some architectures stand for several families. */
static const family *row_of(gcfg *c, const gguf_family *g, const arch *a)
{
    const char *type = g->model_type;
    if (strcmp(type, "llama") == 0 && gcfg_u32(c, "expert_count", 0, false)) type = "mixtral";
    if (strcmp(type, "olmo2") == 0 && gcfg_u32(c, "attention.sliding_window", 0, false)) type = "olmo3";
    if (strcmp(type, "granitemoe") == 0 && find_in_layers(c->s, a, "ffn_up_shexp.weight") >= 0) type = "granitemoeshared";
    bool corrected = find_in_layers(c->s, a, "exp_probs_b.bias") >= 0; /* files of 2024 do not name the gate */
    if (strcmp(type, "deepseek_v2") == 0 && gcfg_u32(c, "expert_gating_func", corrected ? 2 : 0, false) == 2) type = "deepseek_v3";
    return family_by_model_type(type);
}

static void read_kinds(gcfg *c, const family *f, arch *a)
{
    const source *s = c->s;
    snprintf(a->family, sizeof a->family, "%s", f->model_type);
    a->norm_kind = f->norm_kind == NORM_RMS_PLUS1 ? NORM_RMS : f->norm_kind == NORM_LAYER_PLUS1 ? NORM_LAYER : f->norm_kind;
    a->block_kind = f->block_kind;
    a->gated_ffn = f->gated_ffn;
    a->act = f->act;
    a->qk_norm = f->qk_norm;
    a->biases = biases_seen(s, a);
    a->learned_pos = source_find(s, "position_embd.weight") >= 0;
    a->embed_norm = source_find(s, "token_embd_norm.weight") >= 0;
    a->norm_affine = source_find(s, "output_norm.weight") >= 0 || f->adjust != ADJUST_OLMO;
    a->sinks = find_in_layers(s, a, "attn_sinks.weight") >= 0;
    bool qk = find_in_layers(s, a, "attn_q_norm.weight") >= 0;
    switch (f->adjust) {
    case ADJUST_COHERE:
    case ADJUST_STABLELM: a->qk_norm = qk ? QK_NORM_EACH : QK_NORM_NONE; break;
    case ADJUST_GLM4_MOE: a->qk_norm = qk ? QK_NORM_HEAD : QK_NORM_NONE; break;
    case ADJUST_FALCON:
        if (find_in_layers(s, a, "attn_norm_2.weight") >= 0) a->block_kind = BLOCK_PARALLEL2;
        break;
    case ADJUST_NEOX:
        if (!gguf_u64(s, gcfg_key(c, "use_parallel_residual"), 1)) a->block_kind = BLOCK_PRE;
        break;
    case ADJUST_BLOOM: a->alibi = ALIBI_PLAIN; break;
    case ADJUST_MPT:
        a->alibi = ALIBI_MPT;
        a->alibi_max = gcfg_f64(c, "attention.max_alibi_bias", 8);
        break;
    default: break;
    }
    if (f->adjust == ADJUST_STABLELM && find_in_layers(s, a, "ffn_norm.weight") < 0) a->block_kind = BLOCK_PARALLEL;
}

/* With yarn, latent attention is scaled by the square of what lengthens the rotated part. */
static double latent_mscale(gcfg *c)
{
    double log_mul = gcfg_f64(c, "rope.scaling.yarn_log_multiplier", 0), factor = gcfg_f64(c, "rope.scaling.factor", 1);
    double m = factor > 1 ? log_mul * log(factor) + 1 : 1;
    return m * m;
}

static void read_scales(gcfg *c, const family *f, arch *a)
{
    bool gemma2 = f->adjust == ADJUST_GEMMA2 && f->rope_local <= 0;
    double width = a->head_dim;
    bool largest = f->adjust == ADJUST_GEMMA2 && a->n_layers == (gemma2 ? 46u : 62u);
    if (largest && a->n_heads) width = (double)a->hidden_size / a->n_heads;
    a->attn_scale = width > 0 ? 1 / sqrt(width) : 0;
    if (f->latent) a->attn_scale *= latent_mscale(c);
    double scale = gcfg_f64(c, "attention.scale", 0);
    if (scale > 0) a->attn_scale = scale;
    if (f->scale_embed) a->embed_scale = sqrt((double)a->hidden_size);
    a->qkv_clip = gcfg_f64(c, "attention.clamp_kqv", 0);
    if (f->adjust == ADJUST_GEMMA2) {
        a->attn_softcap = gcfg_f64(c, "attn_logit_softcapping", gemma2 ? 50 : 0);
        a->logit_softcap = gcfg_f64(c, "final_logit_softcapping", gemma2 ? 30 : 0);
    }
    if (f->adjust == ADJUST_COHERE) a->logit_scale = gcfg_f64(c, "logit_scale", 1);
    if (f->adjust != ADJUST_GRANITE) return;
    a->embed_scale = gcfg_f64(c, "embedding_scale", 1);
    a->residual_scale = gcfg_f64(c, "residual_scale", 1);
    a->logit_scale = 1 / gcfg_f64(c, "logit_scale", 1);
}

/* ---- experts ---- */

static void read_experts(gcfg *c, const gguf_family *g, const family *f, arch *a)
{
    static const uint32_t kinds[] = {ROUTER_SOFTMAX, ROUTER_SOFTMAX, ROUTER_SIGMOID, ROUTER_CHOSEN};
    a->n_experts = gcfg_u32(c, "expert_count", 0, false);
    if (a->n_experts == 0) return;
    if (!f->moe && c->st == TESS_OK)
        c->st = ERR(c->err, TESS_E_UNSUPPORTED, "%s: key \"%s\": models of this architecture have no experts here", c->s->paths[0],
                    c->key);
    a->experts_used = gcfg_u32(c, "expert_used_count", 0, true);
    a->moe_ffn_size = gcfg_u32(c, "expert_feed_forward_length", a->ffn_size, false);
    uint32_t gate = gcfg_u32(c, "expert_gating_func", 0, false);
    if (gate >= ARRAY_LEN(kinds) && c->st == TESS_OK)
        c->st = ERR(c->err, TESS_E_UNSUPPORTED, "%s: key \"%s\" is %u; known are 1 to 3", c->s->paths[0], c->key, gate);
    a->router_kind = gate && gate < ARRAY_LEN(kinds) ? kinds[gate] : f->router_kind;
    a->router_norm = gguf_u64(c->s, gcfg_key(c, "expert_weights_norm"), g->router_norm) != 0;
    a->router_correction = find_in_layers(c->s, a, "exp_probs_b.bias") >= 0;
    double scale = gcfg_f64(c, "expert_weights_scale", 1);
    a->router_scale = scale > 0 ? scale : 1;
    a->router_groups = MAX(gcfg_u32(c, "expert_group_count", 1, false), 1u);
    a->router_groups_used = MAX(gcfg_u32(c, "expert_group_used_count", 1, false), 1u);
    int64_t shared = find_in_layers(c->s, a, "ffn_up_shexp.weight");
    uint64_t width = shared >= 0 ? c->s->tensors[shared].shape[0] : 0;
    a->shared_ffn_size = width <= UINT32_MAX ? (uint32_t)width : 0;
    a->shared_switch = f->shared_switch && a->shared_ffn_size != 0;
    for (uint32_t i = 0; i < a->n_layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.ffn_gate_inp.weight", i);
        a->layer_moe[i] = source_find(c->s, name) >= 0;
    }
}

/* ---- layers ---- */

/* Whether layer i has a window. pattern: a list of flags, a number n (all layers but each n-th), or NULL. */
static bool layer_slides(const family *f, const gguf_kv *pattern, uint32_t i)
{
    if (pattern && gguf_count(pattern) > 1) return gguf_u64_at(pattern, i, 0) != 0;
    uint64_t n = f->pattern ? f->pattern : 6;
    if (pattern) n = gguf_u64_at(pattern, 0, n);
    switch (f->windows) {
    case WINDOW_ALL: return true;
    case WINDOW_ALTERNATE: return i % 2 == 0;
    case WINDOW_PATTERN: return n == 0 || (i + 1) % n != 0;
    default: return false;
    }
}

static void read_layers(gcfg *c, const family *f, arch *a)
{
    arch_attn ropes[2];
    bool gemma2 = f->windows == WINDOW_ALTERNATE && f->adjust == ADJUST_GEMMA2;
    uint32_t window = gcfg_u32(c, "attention.sliding_window", gemma2 ? 4096 : 0, false);
    const gguf_kv *pattern = gguf_find(c->s, gcfg_key(c, "attention.sliding_window_pattern"));
    gguf_rope_read(c, f, a, ropes);
    a->rope_kind = a->alibi || a->rope_dims == 0 ? (uint32_t)ROPE_NONE : f->rope_kind;
    if (a->rope_kind == ROPE_NONE) a->rope_dims = 0;
    a->n_attn_kinds = 0;
    for (uint32_t i = 0; i < a->n_layers && c->st == TESS_OK; i++) {
        bool slides = window != 0 && layer_slides(f, pattern, i), rope_on = a->rope_kind != ROPE_NONE;
        if (f->adjust == ADJUST_SMOLLM3 && (i + 1) % 4 == 0) rope_on = false;
        if (f->rope_sliding && rope_on) rope_on = slides || (f->rope_sliding == 2 && window == 0);
        arch_attn t = ropes[slides];
        t.window = slides ? window : 0;
        t.rope_on = rope_on;
        a->layer_attn[i] = (uint8_t)arch_add_attn(a, &t); /* two ropes, each on or off: at most four kinds */
    }
}

/* ---- all ---- */

static void read_arch(gcfg *c, gguf_config *out)
{
    arch *a = &out->a;
    uint32_t ahead = gcfg_u32(c, "nextn_predict_layers", 0, false); /* layers that guess further tokens */
    a->n_layers = gcfg_u32(c, "block_count", 0, true);
    if (ahead < a->n_layers) a->n_layers -= ahead;
    if (c->st < 0 || a->n_layers > ARCH_MAX_LAYERS) return;
    const family *f = row_of(c, out->fam, a);
    read_sizes(c, f, a);
    read_kinds(c, f, a);
    read_scales(c, f, a);
    read_experts(c, out->fam, f, a);
    if (c->st == TESS_OK) read_layers(c, f, a);
}

tess_status gguf_config_read(const source *s, gguf_config *out, tess_error *err)
{
    size_t len;
    char list[400];
    memset(out, 0, sizeof *out);
    const char *name = gguf_str(s, "general.architecture", &len);
    if (!name) return ERR(err, TESS_E_FORMAT, "%s: key \"general.architecture\" is missing", s->paths[0]);
    out->fam = family_by_gguf(name, len);
    family_gguf_list(list, sizeof list);
    if (!out->fam)
        return ERR(err, TESS_E_UNSUPPORTED,
                   "%s: architecture \"%.*s\" is not supported; supported in GGUF files are %s", s->paths[0],
                   (int)MIN(len, (size_t)60), name, list);
    gcfg c = {.s = s, .arch = out->fam->arch, .err = err};
    arch_default(&out->a);
    read_arch(&c, out);
    TRY(c.st);
    out->tied = source_find(s, "output.weight") < 0;
    out->a.tied_head = out->tied;
    TRY(gguf_rope_tensors(&c, &out->a));
    tess_status st = arch_check(&out->a, err);
    return st < 0 ? err_prefix(err, st, "%s", s->paths[0]) : TESS_OK;
}

void gguf_generation_put(const source *s, kvs_builder *b)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    static const char *const single[][2] = {{"tokenizer.ggml.bos_token_id", "gen.bos"},
                                            {"tokenizer.ggml.padding_token_id", "gen.pad"}};
    int32_t ids[ARRAY_LEN(ends)];
    uint32_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        uint64_t id = gguf_u64(s, ends[i], UINT64_MAX);
        bool known = id > INT32_MAX;
        for (uint32_t j = 0; j < n && !known; j++) known = ids[j] == (int32_t)id;
        if (!known) ids[n++] = (int32_t)id;
    }
    if (n) kvs_put_array(b, "gen.eos", KV_I32S, ids, n);
    for (size_t i = 0; i < ARRAY_LEN(single); i++) {
        uint64_t id = gguf_u64(s, single[i][0], UINT64_MAX);
        if (id <= INT32_MAX) kvs_put_i64(b, single[i][1], (int64_t)id);
    }
}
