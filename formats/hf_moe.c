/*
 * hf_moe.c - the part of config.json about mixtures of experts.
 *
 * Sizes have several spellings. Which layers have experts is said by "mlp_only_layers" (a list of dense ones),
 * "decoder_sparse_step" (each n-th has them), "first_k_dense_replace" (none of the first k) and "moe_layer_end_index" (none
 * behind it), together.
 */
#include "hf_config_priv.h"

static const char n_keys[] = "num_local_experts|num_experts|n_routed_experts|moe_num_experts";

/* The keys of families that follow them, else none. */
static const char *followed(const family *f, uint32_t which, const char *keys) { return f->moe_keys & which ? keys : ""; }

static void read_sizes(cfg *c, const family *f, arch *a)
{
    const moe_defaults *d = &f->experts;
    a->n_experts = cfg_u32(c, n_keys, d->n, d->n == 0);
    a->experts_used = cfg_u32(c, "num_experts_per_tok|num_experts_per_token|moe_k", d->used, d->used == 0);
    a->moe_ffn_size = cfg_u32(c, followed(f, MOE_WIDTH, "moe_intermediate_size"), d->width ? d->width : a->ffn_size, false);
    a->router_kind = f->router_kind;
    a->router_norm = f->router_kind == ROUTER_CHOSEN ? 0 : f->router_norm;
    a->router_norm = cfg_bool(c, followed(f, MOE_NORM, "norm_topk_prob"), a->router_norm != 0);
    const char *width =
        f->shared_switch ? "shared_expert_intermediate_size" : followed(f, MOE_SHARED_WIDTH, "shared_intermediate_size");
    a->shared_ffn_size = cfg_u32(c, width, d->shared_width, false);
    const char *number = f->moe_keys & MOE_ERNIE ? "moe_num_shared_experts" : followed(f, MOE_N_SHARED, "n_shared_experts");
    uint32_t n_shared = cfg_u32_or_null(c, number, d->n_shared, 0);
    if (n_shared && (uint64_t)n_shared * a->moe_ffn_size <= 1 << 24) a->shared_ffn_size = n_shared * a->moe_ffn_size;
    a->router_correction = f->correction;
    a->router_scale = cfg_f64(c, c->root, followed(f, MOE_SCALE, "routed_scaling_factor"), d->scale > 0 ? d->scale : 1);
    a->router_groups = cfg_u32_or_null(c, followed(f, MOE_GROUPS, "n_group"), MAX(d->groups, 1u), 1);
    a->router_groups_used = cfg_u32_or_null(c, followed(f, MOE_GROUPS, "topk_group"), MAX(d->groups_used, 1u), 1);
    if (f->adjust == ADJUST_DEEPSEEK2) {
        const char *method = cfg_str(c, c->root, "topk_method", "greedy");
        a->router_norm = 0; /* what norm_topk_prob says is not followed in this family */
        if (strcmp(method, "greedy") == 0) a->router_groups = a->router_groups_used = 1;
        else if (strcmp(method, "group_limited_greedy") != 0)
            cfg_fail(c, TESS_E_UNSUPPORTED, "%s: topk_method \"%.40s\" is not supported", c->file, method);
    }
    const char *score = f->router_kind == ROUTER_SIGMOID ? "sigmoid" : "softmax",
               *said = cfg_str(c, c->root, "scoring_func", score);
    if (strcmp(said, score) != 0)
        cfg_fail(c, TESS_E_UNSUPPORTED, "%s: scoring_func \"%.40s\" is not supported, in this family it is %s", c->file, said,
                 score);
    if (cfg_f64(c, c->root, "moe_norm_min", 1e-12) > 1e-6) /* a floor under the sum that the chosen are divided by */
        cfg_fail(c, TESS_E_UNSUPPORTED, "%s: moe_norm_min above 1e-6 is not supported", c->file);
    a->shared_switch = f->shared_switch && a->shared_ffn_size != 0;
}

static void read_layers(cfg *c, const family *f, arch *a)
{
    const json_t *dense = cfg_get(c->root, followed(f, MOE_DENSE, "mlp_only_layers"));
    bool ernie = f->moe_keys & MOE_ERNIE;
    const char *end = followed(f, MOE_ERNIE, "moe_layer_end_index"),
               *every = ernie ? "moe_layer_interval" : followed(f, MOE_SPARSE, "decoder_sparse_step"),
               *start = ernie ? "moe_layer_start_index" : followed(f, MOE_FIRST, "first_k_dense_replace");
    uint32_t step = cfg_u32(c, every, 1, false), last = UINT32_MAX, first = cfg_u32_or_null(c, start, f->experts.first, 0);
    if (!json_is_integer(cfg_get(c->root, end)) || json_integer_value(cfg_get(c->root, end)) != -1)
        last = cfg_u32(c, end, last, false);
    if (cfg_u32(c, "moe_layer_freq", 1, false) != 1) /* the code of the models and transformers disagree on others */
        cfg_fail(c, TESS_E_UNSUPPORTED, "%s: moe_layer_freq other than 1 is not supported", c->file);
    if (step == 0) step = 1;
    for (uint32_t i = 0; i < a->n_layers; i++) a->layer_moe[i] = i >= first && i <= last && (i + 1) % step == 0;
    if (dense && !json_is_array(dense)) cfg_fail(c, TESS_E_FORMAT, "%s: mlp_only_layers is not a list", c->file);
    for (size_t i = 0; i < json_array_size(dense); i++) {
        uint64_t layer;
        if (!jsonr_u64(json_array_get(dense, i), &layer))
            cfg_fail(c, TESS_E_FORMAT, "%s: mlp_only_layers[%zu] is not the number of a layer", c->file, i);
        else if (layer < a->n_layers) a->layer_moe[layer] = 0;
    }
}

void hf_moe_read(cfg *c, const family *f, arch *a)
{
    if (!f->moe || c->st < 0) return;
    read_sizes(c, f, a);
    if (a->n_experts) read_layers(c, f, a);
}
