/*
 * family.c - the table of families and the names of tensors in Hugging Face checkpoints. See family.h; those of GGUF files are in
 * gguf_family.c, the mapping is in family_plan.c.
 */
#include "family.h"

#include <stdio.h>

#define L "model.layers.%d."
#define QKV(p) \
    {p "self_attn.q_proj", ROLE_Q, 0, 0}, {p "self_attn.k_proj", ROLE_K, 0, 0}, {p "self_attn.v_proj", ROLE_V, 0, 0}
#define ATTN(p) QKV(p), {p "self_attn.o_proj", ROLE_O, 0, 0}
#define GATED_FFN(p) \
    {p "mlp.gate_proj", ROLE_GATE, 0, 0}, {p "mlp.up_proj", ROLE_UP, 0, 0}, \
    {p "mlp.down_proj", ROLE_DOWN, 0, 0}
#define GLOBALS \
    {"model.embed_tokens", ROLE_EMBED, 0, 0}, {"model.norm", ROLE_FINAL_NORM, 0, 0}, \
    {"lm_head", ROLE_HEAD, 0, 0}
#define PRE_NORMS \
    {L "input_layernorm", ROLE_ATTN_NORM, 0, 0}, {L "post_attention_layernorm", ROLE_FFN_NORM, 0, 0}
#define QK_NORMS {L "self_attn.q_norm", ROLE_Q_NORM, 0, 0}, {L "self_attn.k_norm", ROLE_K_NORM, 0, 0}
#define POST_NORMS \
    {L "post_attention_layernorm", ROLE_POST_ATTN_NORM, 0, 0}, \
    {L "post_feedforward_layernorm", ROLE_POST_FFN_NORM, 0, 0}
#define END {NULL, 0, 0, 0}
/* Experts: one matrix each, under the names of a feed-forward; or all in one tensor, as newer versions save them. */
#define EXPERTS(p, gate, up, down) \
    {p "experts.%d." gate, ROLE_EXP_GATE, 0, 0}, {p "experts.%d." up, ROLE_EXP_UP, 0, 0}, \
    {p "experts.%d." down, ROLE_EXP_DOWN, 0, 0}
#define STACKED_EXPERTS(p) \
    {p "experts.gate_up_proj", ROLE_EXP_GATE, FUSE_EXPERTS_GATE_UP, NAME_BARE | NAME_READ}, \
    {p "experts.down_proj", ROLE_EXP_DOWN, FUSE_EXPERTS, NAME_BARE | NAME_READ}
#define MOE_FFN(p) \
    {p "mlp.gate", ROLE_ROUTER, 0, 0}, EXPERTS(p "mlp.", "gate_proj", "up_proj", "down_proj"), STACKED_EXPERTS(p "mlp.")
#define SHARED_EXPERT(p, name) \
    {p "mlp." name ".gate_proj", ROLE_SH_GATE, 0, 0}, {p "mlp." name ".up_proj", ROLE_SH_UP, 0, 0}, \
    {p "mlp." name ".down_proj", ROLE_SH_DOWN, 0, 0}

static const name_rule names_llama[] = {GLOBALS, PRE_NORMS, ATTN(L), GATED_FFN(L), QK_NORMS, END};
static const name_rule names_gemma2[] = {
    GLOBALS, ATTN(L), GATED_FFN(L), QK_NORMS, POST_NORMS, {L "input_layernorm", ROLE_ATTN_NORM, 0, 0},
    {L "pre_feedforward_layernorm", ROLE_FFN_NORM, 0, 0}, END};
static const name_rule names_olmo2[] = {GLOBALS, ATTN(L), GATED_FFN(L), QK_NORMS, POST_NORMS, END};
static const name_rule names_phi3[] = {
    GLOBALS, PRE_NORMS, {L "self_attn.qkv_proj", ROLE_Q, FUSE_QKV, 0}, {L "self_attn.o_proj", ROLE_O, 0, 0},
    {L "mlp.gate_up_proj", ROLE_GATE, FUSE_GATE_UP, 0}, {L "mlp.down_proj", ROLE_DOWN, 0, 0}, END};
static const name_rule names_starcoder2[] = {
    GLOBALS, PRE_NORMS, ATTN(L), {L "mlp.c_fc", ROLE_UP, 0, 0}, {L "mlp.c_proj", ROLE_DOWN, 0, 0}, END};

static const name_rule names_qwen_moe[] = {
    GLOBALS, PRE_NORMS, ATTN(L), GATED_FFN(L), QK_NORMS, MOE_FFN(L), SHARED_EXPERT(L, "shared_expert"),
    {L "mlp.shared_expert_gate", ROLE_SH_SWITCH, 0, 0}, END};
#define CORRECTION(name) {L "mlp." name "e_score_correction_bias", ROLE_ROUTER_CORRECTION, 0, NAME_BARE}
static const name_rule names_glm4_moe[] = {
    GLOBALS, PRE_NORMS, ATTN(L), GATED_FFN(L), QK_NORMS, MOE_FFN(L), SHARED_EXPERT(L, "shared_experts"),
    CORRECTION("gate."), CORRECTION("moe_statics."), CORRECTION("gate.moe_statics."), {L, ROLE_NONE, 0, NAME_BARE}, END};
#define LATENT(name) L "self_attn." name
static const name_rule names_deepseek[] = {
    GLOBALS, PRE_NORMS, {LATENT("q_proj"), ROLE_Q, 0, 0}, {LATENT("q_b_proj"), ROLE_Q, 0, 0}, {LATENT("q_a_proj"), ROLE_Q_A, 0, 0},
    {LATENT("q_a_layernorm"), ROLE_Q_A_NORM, 0, 0}, {LATENT("kv_a_proj_with_mqa"), ROLE_KV_A, 0, 0},
    {LATENT("kv_a_layernorm"), ROLE_KV_A_NORM, 0, 0}, {LATENT("kv_b_proj"), ROLE_K_B, FUSE_KV_B, 0},
    {LATENT("o_proj"), ROLE_LATENT_O, 0, 0}, GATED_FFN(L), MOE_FFN(L), SHARED_EXPERT(L, "shared_experts"),
    CORRECTION("gate."), {L, ROLE_NONE, 0, NAME_BARE}, END};
static const name_rule names_gpt_oss[] = {
    GLOBALS, PRE_NORMS, ATTN(L), {L "self_attn.sinks", ROLE_SINKS, 0, NAME_BARE}, {L "mlp.router", ROLE_ROUTER, 0, 0},
    {L "mlp.experts.gate_up_proj", ROLE_EXP_GATE, FUSE_EXPERTS_GATE_UP, NAME_BARE | NAME_T | NAME_ALTERNATE},
    {L "mlp.experts.down_proj", ROLE_EXP_DOWN, FUSE_EXPERTS, NAME_BARE | NAME_T},
    {L "mlp.experts.gate_up_proj_blocks", ROLE_EXP_GATE, FUSE_EXPERTS_GATE_UP, NAME_BARE | NAME_READ | NAME_ALTERNATE}, /* MXFP4 */
    {L "mlp.experts.down_proj_blocks", ROLE_EXP_DOWN, FUSE_EXPERTS, NAME_BARE | NAME_READ}, END};
#define MIXTRAL L "block_sparse_moe."
static const name_rule names_mixtral[] = {
    GLOBALS, PRE_NORMS, ATTN(L), {MIXTRAL "gate", ROLE_ROUTER, 0, 0}, EXPERTS(MIXTRAL, "w1", "w3", "w2"),
    {L "mlp.gate", ROLE_ROUTER, 0, NAME_READ}, STACKED_EXPERTS(L "mlp."), END};
static const name_rule names_granitemoe[] = {
    GLOBALS, PRE_NORMS, ATTN(L), {MIXTRAL "router.layer", ROLE_ROUTER, 0, 0},
    {MIXTRAL "input_linear", ROLE_EXP_GATE, FUSE_EXPERTS_GATE_UP, 0},
    {MIXTRAL "output_linear", ROLE_EXP_DOWN, FUSE_EXPERTS, 0},
    {MIXTRAL "router", ROLE_ROUTER, 0, NAME_READ}, STACKED_EXPERTS(MIXTRAL),
    {L "shared_mlp.input_linear", ROLE_SH_GATE, FUSE_GATE_UP, 0},
    {L "shared_mlp.output_linear", ROLE_SH_DOWN, 0, 0}, END};

static const name_rule names_phi[] = {
    {"model.embed_tokens", ROLE_EMBED, 0, 0}, {"model.final_layernorm", ROLE_FINAL_NORM, 0, 0}, {"lm_head", ROLE_HEAD, 0, 0},
    {L "input_layernorm", ROLE_ATTN_NORM, 0, 0}, QKV(L), {L "self_attn.dense", ROLE_O, 0, 0},
    {L "self_attn.q_layernorm", ROLE_Q_NORM, 0, 0}, {L "self_attn.k_layernorm", ROLE_K_NORM, 0, 0},
    {L "mlp.fc1", ROLE_UP, 0, 0}, {L "mlp.fc2", ROLE_DOWN, 0, 0}, END};
static const name_rule names_stablelm[] = {
    GLOBALS, PRE_NORMS, ATTN(L), GATED_FFN(L), {L "self_attn.q_layernorm.norms.%d", ROLE_Q_EACH, 0, 0},
    {L "self_attn.k_layernorm.norms.%d", ROLE_K_EACH, 0, 0}, END};
static const name_rule names_cohere[] = {
    GLOBALS, PRE_NORMS, ATTN(L), GATED_FFN(L), {L "self_attn.q_norm", ROLE_Q_EACH, FUSE_EXPERTS, 0},
    {L "self_attn.k_norm", ROLE_K_EACH, FUSE_EXPERTS, 0}, END};
#define GATE_UP {L "mlp.gate_up_proj", ROLE_GATE, FUSE_GATE_UP, 0}, {L "mlp.down_proj", ROLE_DOWN, 0, 0}
static const name_rule names_glm[] = {GLOBALS, PRE_NORMS, ATTN(L), GATE_UP, END};
static const name_rule names_glm4[] = {
    GLOBALS, PRE_NORMS, ATTN(L), GATE_UP, {L "post_self_attn_layernorm", ROLE_POST_ATTN_NORM, 0, 0},
    {L "post_mlp_layernorm", ROLE_POST_FFN_NORM, 0, 0}, END};
static const name_rule names_internlm2[] = {
    {"model.tok_embeddings", ROLE_EMBED, 0, 0}, {"model.norm", ROLE_FINAL_NORM, 0, 0}, {"output", ROLE_HEAD, 0, 0},
    {L "attention_norm", ROLE_ATTN_NORM, 0, 0}, {L "ffn_norm", ROLE_FFN_NORM, 0, 0},
    {L "attention.wqkv", ROLE_Q, FUSE_QKV_GROUPS, 0}, {L "attention.wo", ROLE_O, 0, 0},
    {L "feed_forward.w1", ROLE_GATE, 0, 0}, {L "feed_forward.w3", ROLE_UP, 0, 0},
    {L "feed_forward.w2", ROLE_DOWN, 0, 0}, END};
#define D "model.decoder.layers.%d."
static const name_rule names_opt[] = {
    {"model.decoder.embed_tokens", ROLE_EMBED, 0, 0}, {"model.decoder.embed_positions", ROLE_POS_EMBED, 0, NAME_SKIP2},
    {"model.decoder.final_layer_norm", ROLE_FINAL_NORM, 0, 0}, {"lm_head", ROLE_HEAD, 0, 0},
    {D "self_attn_layer_norm", ROLE_ATTN_NORM, 0, 0}, {D "final_layer_norm", ROLE_FFN_NORM, 0, 0}, QKV(D),
    {D "self_attn.out_proj", ROLE_O, 0, 0}, {D "fc1", ROLE_UP, 0, 0}, {D "fc2", ROLE_DOWN, 0, 0}, END};

#define N "gpt_neox.layers.%d."
static const name_rule names_neox[] = {
    {"gpt_neox.embed_in", ROLE_EMBED, 0, 0}, {"gpt_neox.final_layer_norm", ROLE_FINAL_NORM, 0, 0},
    {"embed_out", ROLE_HEAD, 0, 0}, {"lm_head", ROLE_HEAD, 0, NAME_READ},
    {N "input_layernorm", ROLE_ATTN_NORM, 0, 0}, {N "post_attention_layernorm", ROLE_FFN_NORM, 0, 0},
    {N "attention.query_key_value", ROLE_Q, FUSE_QKV_GROUPS, 0}, {N "attention.dense", ROLE_O, 0, 0},
    {N "mlp.dense_h_to_4h", ROLE_UP, 0, 0}, {N "mlp.dense_4h_to_h", ROLE_DOWN, 0, 0}, END};

#define G "transformer.h.%d."
static const name_rule names_gpt2[] = {
    {"transformer.wte", ROLE_EMBED, 0, 0}, {"transformer.wpe", ROLE_POS_EMBED, 0, 0},
    {"transformer.ln_f", ROLE_FINAL_NORM, 0, 0}, {"lm_head", ROLE_HEAD, 0, 0},
    {G "ln_1", ROLE_ATTN_NORM, 0, 0}, {G "ln_2", ROLE_FFN_NORM, 0, 0},
    {G "attn.c_attn", ROLE_Q, FUSE_QKV, NAME_T}, {G "attn.c_proj", ROLE_O, 0, NAME_T},
    {G "mlp.c_fc", ROLE_UP, 0, NAME_T}, {G "mlp.c_proj", ROLE_DOWN, 0, NAME_T}, END};
static const name_rule names_falcon[] = {
    {"transformer.word_embeddings", ROLE_EMBED, 0, 0}, {"transformer.ln_f", ROLE_FINAL_NORM, 0, 0},
    {"lm_head", ROLE_HEAD, 0, 0},
    {G "input_layernorm", ROLE_ATTN_NORM, 0, NAME_ONE_NORM},
    {G "post_attention_layernorm", ROLE_FFN_NORM, 0, NAME_ONE_NORM},
    {G "ln_attn", ROLE_ATTN_NORM, 0, NAME_TWO_NORMS}, {G "ln_mlp", ROLE_FFN_NORM, 0, NAME_TWO_NORMS},
    {G "self_attention.query_key_value", ROLE_Q, FUSE_QKV_GROUPS, 0}, {G "self_attention.dense", ROLE_O, 0, 0},
    {G "mlp.dense_h_to_4h", ROLE_UP, 0, 0}, {G "mlp.dense_4h_to_h", ROLE_DOWN, 0, 0}, END};

static const name_rule names_bloom[] = {
    {"transformer.word_embeddings", ROLE_EMBED, 0, 0}, {"transformer.ln_f", ROLE_FINAL_NORM, 0, 0},
    {"transformer.word_embeddings_layernorm", ROLE_EMBED_NORM, 0, 0}, {"lm_head", ROLE_HEAD, 0, 0},
    {G "input_layernorm", ROLE_ATTN_NORM, 0, 0}, {G "post_attention_layernorm", ROLE_FFN_NORM, 0, 0},
    {G "self_attention.query_key_value", ROLE_Q, FUSE_QKV_GROUPS, 0}, {G "self_attention.dense", ROLE_O, 0, 0},
    {G "mlp.dense_h_to_4h", ROLE_UP, 0, 0}, {G "mlp.dense_4h_to_h", ROLE_DOWN, 0, 0}, END};
static const name_rule names_gptj[] = {
    {"transformer.wte", ROLE_EMBED, 0, 0}, {"transformer.ln_f", ROLE_FINAL_NORM, 0, 0}, {"lm_head", ROLE_HEAD, 0, 0},
    {G "ln_1", ROLE_ATTN_NORM, 0, 0}, {G "attn.q_proj", ROLE_Q, 0, 0}, {G "attn.k_proj", ROLE_K, 0, 0},
    {G "attn.v_proj", ROLE_V, 0, 0}, {G "attn.out_proj", ROLE_O, 0, 0}, {G "mlp.fc_in", ROLE_UP, 0, 0},
    {G "mlp.fc_out", ROLE_DOWN, 0, 0}, END};
#define M "transformer.blocks.%d."
static const name_rule names_mpt[] = {
    {"transformer.wte", ROLE_EMBED, 0, 0}, {"transformer.norm_f", ROLE_FINAL_NORM, 0, 0}, {"lm_head", ROLE_HEAD, 0, 0},
    {M "norm_1", ROLE_ATTN_NORM, 0, 0}, {M "norm_2", ROLE_FFN_NORM, 0, 0}, {M "attn.Wqkv", ROLE_Q, FUSE_QKV, 0},
    {M "attn.out_proj", ROLE_O, 0, 0}, {M "ffn.up_proj", ROLE_UP, 0, 0}, {M "ffn.down_proj", ROLE_DOWN, 0, 0}, END};

/* The base of every row: a pre-norm decoder with RMS norms, gated SiLU and rotary halves. */
#define LLAMA_LIKE LLAMA_BUT_ROPE, .rope_kind = ROPE_HALF
#define LLAMA_PAIRS LLAMA_BUT_ROPE, .rope_kind = ROPE_PAIRS
#define LLAMA_BUT_ROPE \
    .prefix = "model.", .norm_kind = NORM_RMS, .block_kind = BLOCK_PRE, \
    .act = ACT_SILU, .gated_ffn = 1, .rope_theta = 10000, .rotary = 1, .eps = 1e-6
#define LAYER_NORMS .norm_kind = NORM_LAYER, .rope_theta = 10000, .rotary = 1, .eps = 1e-5
#define ALL_BIASES (BIAS_QKV | BIAS_O | BIAS_FFN_IN | BIAS_FFN_OUT)
#define ATTN_BIAS {"attention_bias", BIAS_QKV | BIAS_O, 0}
#define MOE_OF_DEEPSEEK (MOE_NORM | MOE_WIDTH | MOE_N_SHARED | MOE_FIRST | MOE_GROUPS | MOE_SCALE)
#define GEMMA_LIKE \
    .prefix = "model.", .norm_kind = NORM_RMS_PLUS1, .act = ACT_GELU_TANH, .gated_ffn = 1, \
    .rope_kind = ROPE_HALF, .rotary = 1, .eps = 1e-6, .tied = true, .scale_embed = true, \
    .head_dim = 256, .bias = {ATTN_BIAS}

static const family families[] = {
    {.model_type = "llama", .class_name = "LlamaForCausalLM", LLAMA_LIKE, .names = names_llama,
     .bias = {ATTN_BIAS, {"mlp_bias", BIAS_FFN_IN | BIAS_FFN_OUT, 0}}},
    {.model_type = "mistral", .class_name = "MistralForCausalLM", LLAMA_LIKE, .names = names_llama, .windows = WINDOW_ALL,
     .kv_heads = 8, .window = 4096},
    {.model_type = "qwen2", .class_name = "Qwen2ForCausalLM", LLAMA_LIKE, .names = names_llama, .windows = WINDOW_QWEN,
     .biases = BIAS_QKV, .kv_heads = 32, .window = 4096},
    {.model_type = "qwen3", .class_name = "Qwen3ForCausalLM", LLAMA_LIKE, .names = names_llama, .windows = WINDOW_QWEN,
     .qk_norm = QK_NORM_HEAD, .bias = {ATTN_BIAS}, .kv_heads = 32, .head_dim = 128, .window = 4096},
    {.model_type = "mixtral", .class_name = "MixtralForCausalLM", .prefix = "model.", .names = names_mixtral,
     .act = ACT_SILU, .gated_ffn = 1, .rope_kind = ROPE_HALF, .rope_theta = 1000000, .rotary = 1, .eps = 1e-5,
     .windows = WINDOW_ALL, .moe = true, .router_norm = 1, .kv_heads = 8, .experts = {.n = 8, .used = 2}},
    {.model_type = "qwen2_moe", .class_name = "Qwen2MoeForCausalLM",
     .moe_keys = MOE_NORM | MOE_WIDTH | MOE_SPARSE | MOE_DENSE, LLAMA_LIKE, .names = names_qwen_moe,
     .windows = WINDOW_QWEN2_MOE, .moe = true, .shared_switch = true, .bias = {{"qkv_bias", BIAS_QKV, 1}},
     .kv_heads = 16, .window = 4096, .experts = {.n = 60, .used = 4, .width = 1408, .shared_width = 5632}},
    {.model_type = "qwen3_moe", .class_name = "Qwen3MoeForCausalLM",
     .moe_keys = MOE_NORM | MOE_WIDTH | MOE_SPARSE | MOE_DENSE, LLAMA_LIKE, .names = names_qwen_moe,
     .windows = WINDOW_QWEN_MOE, .qk_norm = QK_NORM_HEAD, .moe = true, .bias = {ATTN_BIAS},
     .kv_heads = 4, .window = 4096, .experts = {.n = 128, .used = 8, .width = 768}},
    {.model_type = "olmoe", .class_name = "OlmoeForCausalLM",
     .moe_keys = MOE_NORM, .prefix = "model.", .names = names_qwen_moe,
     .act = ACT_SILU, .gated_ffn = 1, .rope_kind = ROPE_HALF, .rope_theta = 10000, .rotary = 1, .eps = 1e-5,
     .qk_norm = QK_NORM_ALL, .moe = true, .clip = true, .bias = {ATTN_BIAS}, .experts = {.n = 64, .used = 8}},
    {.model_type = "glm4_moe", .class_name = "Glm4MoeForCausalLM",
     .moe_keys = MOE_OF_DEEPSEEK, .prefix = "model.", .names = names_glm4_moe,
     .act = ACT_SILU, .gated_ffn = 1, .rope_kind = ROPE_HALF, .rope_theta = 10000, .rotary = 0.5, .partial = true, .eps = 1e-5,
     .moe = true, .router_kind = ROUTER_SIGMOID, .router_norm = 1, .correction = true, .adjust = ADJUST_GLM4_MOE,
     .bias = {{"attention_bias", BIAS_QKV, 0}},
     .kv_heads = 8, .experts = {.n = 128, .used = 8, .width = 1408, .n_shared = 1, .first = 1}},
    {.model_type = "deepseek_v2", .class_name = "DeepseekV2ForCausalLM",
     .moe_keys = MOE_OF_DEEPSEEK, LLAMA_PAIRS, .names = names_deepseek,
     .moe = true, .latent = true, .adjust = ADJUST_DEEPSEEK2,
     .bias = {{"attention_bias", BIAS_LATENT | BIAS_O, 0}},
     .q_lora = 1536, .experts = {.n = 64, .width = 1407, .n_shared = 2}},
    {.model_type = "deepseek_v3", .class_name = "DeepseekV3ForCausalLM",
     .moe_keys = MOE_OF_DEEPSEEK, LLAMA_PAIRS, .names = names_deepseek,
     .moe = true, .latent = true, .adjust = ADJUST_DEEPSEEK3, .correction = true,
     .router_kind = ROUTER_SIGMOID, .router_norm = 1, .bias = {{"attention_bias", BIAS_LATENT | BIAS_O, 0}},
     .q_lora = 1536, .experts = {.n = 256, .used = 8, .width = 2048, .n_shared = 1, .groups = 8,
                                    .groups_used = 4, .first = 3, .scale = 2.5}},
    {.model_type = "ernie4_5_moe", .class_name = "Ernie4_5_MoeForCausalLM",
     .moe_keys = MOE_WIDTH | MOE_ERNIE, .prefix = "model.",
     .names = names_glm4_moe, .act = ACT_SILU, .gated_ffn = 1, .rope_kind = ROPE_PAIRS, .rope_theta = 500000,
     .rotary = 1, .eps = 1e-5, .tied = true, .moe = true, .router_norm = 1, .correction = true,
     .bias = {{"use_bias", ALL_BIASES | BIAS_HEAD, 0}},
     .kv_heads = 4, .experts = {.n = 64, .used = 6, .width = 1536, .n_shared = 2, .first = 1}},
    {.model_type = "gpt_oss", .class_name = "GptOssForCausalLM", .prefix = "model.", .names = names_gpt_oss,
     .act = ACT_SWIGLU_CLAMP, .gated_ffn = 1, .rope_kind = ROPE_HALF, .rope_theta = 150000, .rotary = 1, .eps = 1e-5,
     .windows = WINDOW_ALTERNATE, .moe = true, .router_kind = ROUTER_CHOSEN, .adjust = ADJUST_GPT_OSS,
     .biases = BIAS_ROUTER | BIAS_EXPERTS, .bias = {{"attention_bias", BIAS_QKV | BIAS_O, 1}},
     .kv_heads = 8, .head_dim = 64, .window = 128, .experts = {.n = 128, .used = 4}},
    {.model_type = "granitemoe", .class_name = "GraniteMoeForCausalLM", LLAMA_LIKE, .names = names_granitemoe,
     .moe = true, .router_kind = ROUTER_CHOSEN, .adjust = ADJUST_GRANITE, .bias = {ATTN_BIAS},
     .experts = {.n = 8, .used = 2}},
    {.model_type = "granitemoeshared", .class_name = "GraniteMoeSharedForCausalLM",
     .moe_keys = MOE_SHARED_WIDTH, LLAMA_LIKE,
     .names = names_granitemoe, .moe = true, .router_kind = ROUTER_CHOSEN, .adjust = ADJUST_GRANITE,
     .bias = {ATTN_BIAS}, .experts = {.n = 8, .used = 2}},
    {.model_type = "granite", .class_name = "GraniteForCausalLM", LLAMA_LIKE, .names = names_llama, .adjust = ADJUST_GRANITE,
     .bias = {ATTN_BIAS, {"mlp_bias", BIAS_FFN_IN | BIAS_FFN_OUT, 0}}},
    {.model_type = "smollm3", .class_name = "SmolLM3ForCausalLM", .prefix = "model.", .names = names_llama,
     .act = ACT_SILU, .gated_ffn = 1, .rope_kind = ROPE_HALF, .rope_theta = 2000000, .rotary = 1, .eps = 1e-6,
     .tied = true, .adjust = ADJUST_SMOLLM3,
     .bias = {ATTN_BIAS, {"mlp_bias", BIAS_FFN_IN | BIAS_FFN_OUT, 0}}, .kv_heads = 4},
    {.model_type = "phi3", .class_name = "Phi3ForCausalLM", .prefix = "model.", .names = names_phi3,
     .act = ACT_SILU, .gated_ffn = 1, .rope_kind = ROPE_HALF, .rope_theta = 10000, .rotary = 1, .partial = true, .eps = 1e-5,
     .windows = WINDOW_ALL, .orig_ctx = 4096},
    {.model_type = "gemma", .class_name = "GemmaForCausalLM", GEMMA_LIKE, .rope_theta = 10000,
     .names = names_llama, .block_kind = BLOCK_PRE, .kv_heads = 16, .gelu_tanh = true},
    {.model_type = "gemma2", .class_name = "Gemma2ForCausalLM", GEMMA_LIKE, .rope_theta = 10000,
     .names = names_gemma2, .block_kind = BLOCK_SANDWICH, .windows = WINDOW_ALTERNATE,
     .adjust = ADJUST_GEMMA2, .kv_heads = 4, .window = 4096, .act_key = "hidden_activation"},
    {.model_type = "gemma3_text", .class_name = "Gemma3ForCausalLM", GEMMA_LIKE, .rope_theta = 1000000,
     .rope_local = 10000, .names = names_gemma2, .block_kind = BLOCK_SANDWICH, .qk_norm = QK_NORM_HEAD,
     .windows = WINDOW_PATTERN, .adjust = ADJUST_GEMMA3,
     .kv_heads = 4, .window = 4096, .act_key = "hidden_activation"},
    {.model_type = "olmo2", .class_name = "Olmo2ForCausalLM", .prefix = "model.", .names = names_olmo2,
     .block_kind = BLOCK_POST, .qk_norm = QK_NORM_ALL, .act = ACT_SILU, .gated_ffn = 1,
     .rope_kind = ROPE_HALF, .rope_theta = 10000, .rotary = 1, .eps = 1e-5, .bias = {ATTN_BIAS}},
    {.model_type = "phi", .class_name = "PhiForCausalLM",
     .eps_key = "layer_norm_eps", .prefix = "model.", .names = names_phi,
     .norm_kind = NORM_LAYER, .block_kind = BLOCK_PARALLEL, .act = ACT_GELU_TANH, .rope_kind = ROPE_HALF,
     .rope_theta = 10000, .rotary = 0.5, .partial = true, .eps = 1e-5, .biases = 0, .adjust = ADJUST_PHI},
    {.model_type = "internlm2", .class_name = "InternLM2ForCausalLM", LLAMA_LIKE, .names = names_internlm2,
     .bias = {{"bias", BIAS_QKV | BIAS_O, 1}}},
    {.model_type = "stablelm", .class_name = "StableLmForCausalLM",
     .eps_key = "layer_norm_eps", .prefix = "model.", .names = names_stablelm,
     .norm_kind = NORM_LAYER, .act = ACT_SILU, .gated_ffn = 1, .rope_kind = ROPE_HALF, .rope_theta = 10000,
     .rotary = 0.25, .partial = true, .eps = 1e-5, .biases = BIAS_NORM, .bias = {{"use_qkv_bias", BIAS_QKV, 0}},
     .adjust = ADJUST_STABLELM, .kv_heads = 32},
    {.model_type = "olmo", .class_name = "OlmoForCausalLM",
     .eps_key = "", .prefix = "model.", .names = names_llama, LAYER_NORMS,
     .act = ACT_SILU, .gated_ffn = 1, .rope_kind = ROPE_HALF, .clip = true, .bias = {ATTN_BIAS},
     .adjust = ADJUST_OLMO},
    {.model_type = "cohere", .class_name = "CohereForCausalLM",
     .eps_key = "layer_norm_eps", .prefix = "model.", .names = names_cohere,
     .norm_kind = NORM_LAYER, .rope_theta = 500000, .rotary = 1, .eps = 1e-5,
     .block_kind = BLOCK_PARALLEL, .act = ACT_SILU, .gated_ffn = 1, .rope_kind = ROPE_PAIRS, .tied = true,
     .bias = {ATTN_BIAS}, .adjust = ADJUST_COHERE},
    {.model_type = "cohere2", .class_name = "Cohere2ForCausalLM",
     .eps_key = "layer_norm_eps", .prefix = "model.", .names = names_cohere, LAYER_NORMS,
     .block_kind = BLOCK_PARALLEL, .act = ACT_SILU, .gated_ffn = 1, .rope_kind = ROPE_PAIRS, .tied = true,
     .windows = WINDOW_PATTERN, .pattern = 4, .rope_sliding = 1, .bias = {ATTN_BIAS}, .adjust = ADJUST_COHERE,
     .window = 4096},
    {.model_type = "glm", .class_name = "GlmForCausalLM", .prefix = "model.", .names = names_glm, .act = ACT_SILU,
     .gated_ffn = 1, .rope_kind = ROPE_PAIRS, .rope_theta = 10000, .rotary = 0.5, .partial = true, .eps = 1.5625e-7,
     .bias = {{"attention_bias", BIAS_QKV, 1}}, .kv_heads = 2, .head_dim = 128},
    {.model_type = "glm4", .class_name = "Glm4ForCausalLM", .prefix = "model.", .names = names_glm4,
     .block_kind = BLOCK_SANDWICH, .act = ACT_SILU, .gated_ffn = 1, .rope_kind = ROPE_PAIRS, .rope_theta = 10000,
     .rotary = 0.5, .partial = true, .eps = 1.5625e-7, .bias = {{"attention_bias", BIAS_QKV, 1}},
     .kv_heads = 2, .head_dim = 128},
    {.model_type = "nemotron", .class_name = "NemotronForCausalLM",
     .eps_key = "norm_eps", .prefix = "model.", .names = names_llama,
     .norm_kind = NORM_LAYER_PLUS1, .act = ACT_RELU2, .rope_kind = ROPE_HALF, .rope_theta = 10000, .rotary = 0.5, .partial = true,
     .eps = 1e-5, .biases = BIAS_NORM, .bias = {ATTN_BIAS, {"mlp_bias", BIAS_FFN_IN | BIAS_FFN_OUT, 0}}},
    {.model_type = "exaone4", .class_name = "Exaone4ForCausalLM", .prefix = "model.", .names = names_olmo2,
     .block_kind = BLOCK_POST, .qk_norm = QK_NORM_HEAD, .act = ACT_SILU, .gated_ffn = 1, .rope_kind = ROPE_HALF,
     .rope_theta = 10000, .rotary = 1, .eps = 1e-5, .windows = WINDOW_PATTERN, .pattern = 4, .rope_sliding = 2,
     .kv_heads = 32, .window = 4096},
    {.model_type = "ernie4_5", .class_name = "Ernie4_5ForCausalLM", .prefix = "model.", .names = names_llama,
     .act = ACT_SILU, .gated_ffn = 1, .rope_kind = ROPE_PAIRS, .rope_theta = 500000, .rotary = 1, .eps = 1e-5,
     .tied = true, .bias = {{"use_bias", ALL_BIASES, 0}}, .kv_heads = 2, .head_dim = 128},
    {.model_type = "opt", .class_name = "OPTForCausalLM",
     .eps_key = "", .act_key = "activation_function", .ffn_key = "ffn_dim",
     .kv_key = "", .no_head_dim = true, .prefix = "model.", .names = names_opt, LAYER_NORMS,
     .act = ACT_RELU, .rope_kind = ROPE_NONE, .tied = true, .biases = BIAS_NORM,
     .bias = {{"enable_bias", ALL_BIASES, 1}}, .adjust = ADJUST_OPT},
    {.model_type = "gptj", .class_name = "GPTJForCausalLM",
     .eps_key = "layer_norm_epsilon", .act_key = "activation_function", .ffn_key = "n_inner",
     .kv_key = "", .no_head_dim = true, .prefix = "transformer.", .names = names_gptj, LAYER_NORMS,
     .block_kind = BLOCK_PARALLEL, .act = ACT_GELU_TANH, .rope_kind = ROPE_PAIRS, .ffn_4h = true,
     .biases = BIAS_NORM | BIAS_HEAD | BIAS_FFN_IN | BIAS_FFN_OUT, .rotary_dim = 64},
    {.model_type = "bloom", .class_name = "BloomForCausalLM",
     .eps_key = "layer_norm_epsilon", .act_key = "", .ffn_key = "",
     .kv_key = "", .no_head_dim = true, .prefix = "transformer.", .names = names_bloom,
     LAYER_NORMS, .act = ACT_GELU_TANH, .rope_kind = ROPE_NONE, .tied = true, .ffn_4h = true, .max_ctx = 2048,
     .biases = BIAS_NORM | ALL_BIASES, .adjust = ADJUST_BLOOM},
    {.model_type = "mpt", .class_name = "MptForCausalLM",
     .eps_key = "layer_norm_epsilon", .act_key = "", .ffn_key = "",
     .kv_key = "", .no_head_dim = true, .prefix = "transformer.", .names = names_mpt, LAYER_NORMS,
     .act = ACT_GELU, .rope_kind = ROPE_NONE, .tied = true, .ffn_4h = true, .adjust = ADJUST_MPT},
    {.model_type = "olmo3", .class_name = "Olmo3ForCausalLM", .prefix = "model.", .names = names_olmo2,
     .block_kind = BLOCK_POST, .qk_norm = QK_NORM_ALL, .act = ACT_SILU, .gated_ffn = 1, .rope_kind = ROPE_HALF,
     .rope_theta = 500000, .rope_local = 500000, .rotary = 1, .eps = 1e-5, .windows = WINDOW_PATTERN, .pattern = 4,
     .bias = {ATTN_BIAS}, .window = 4096},
    {.model_type = "starcoder2", .class_name = "Starcoder2ForCausalLM",
     .eps_key = "norm_epsilon", .prefix = "model.",
     .names = names_starcoder2, .norm_kind = NORM_LAYER, .act = ACT_GELU_TANH, .rope_kind = ROPE_HALF,
     .rope_theta = 10000, .rotary = 1, .eps = 1e-5, .tied = true, .windows = WINDOW_ALL, .biases = BIAS_NORM,
     .bias = {{"use_bias", BIAS_QKV | BIAS_O | BIAS_FFN_IN | BIAS_FFN_OUT, 1}}, .kv_heads = 2},
    {.model_type = "gpt_neox", .class_name = "GPTNeoXForCausalLM",
     .eps_key = "layer_norm_eps", .kv_key = "", .prefix = "gpt_neox.", .names = names_neox,
     .norm_kind = NORM_LAYER, .block_kind = BLOCK_PARALLEL2, .act = ACT_GELU, .rope_kind = ROPE_HALF,
     .rope_theta = 10000, .rotary = 0.25, .partial = true, .eps = 1e-5, .biases = BIAS_NORM | BIAS_FFN_IN | BIAS_FFN_OUT,
     .bias = {{"attention_bias", BIAS_QKV | BIAS_O, 1}}, .adjust = ADJUST_NEOX},
    {.model_type = "gpt2", .class_name = "GPT2LMHeadModel",
     .eps_key = "layer_norm_epsilon", .act_key = "activation_function", .ffn_key = "n_inner",
     .kv_key = "", .no_head_dim = true, .prefix = "transformer.", .names = names_gpt2,
     .norm_kind = NORM_LAYER, .act = ACT_GELU_TANH, .rope_kind = ROPE_NONE, .rope_theta = 10000, .rotary = 1,
     .eps = 1e-5, .tied = true, .ffn_4h = true, .adjust = ADJUST_GPT2,
     .biases = BIAS_NORM | BIAS_QKV | BIAS_O | BIAS_FFN_IN | BIAS_FFN_OUT},
    {.model_type = "falcon", .class_name = "FalconForCausalLM",
     .eps_key = "layer_norm_epsilon", .act_key = "activation", .ffn_key = "ffn_hidden_size",
     .kv_key = "num_kv_heads", .prefix = "transformer.",
     .names = names_falcon, .norm_kind = NORM_LAYER, .block_kind = BLOCK_PARALLEL, .act = ACT_GELU,
     .rope_kind = ROPE_HALF, .rope_theta = 10000, .rotary = 1, .eps = 1e-5, .tied = true, .ffn_4h = true, .max_ctx = 2048,
     .biases = BIAS_NORM, .bias = {{"bias", BIAS_QKV | BIAS_O | BIAS_FFN_IN | BIAS_FFN_OUT, 0}},
     .adjust = ADJUST_FALCON},
};

const family *family_by_model_type(const char *model_type)
{
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (strcmp(families[i].model_type, model_type) == 0) return &families[i];
    return NULL;
}

static void list_add(char *dst, size_t n, const char *name)
{
    size_t used = strlen(dst);
    snprintf(dst + used, n - used, "%s%s", used ? ", " : "", name);
}

void family_list(char *dst, size_t n)
{
    dst[0] = 0;
    for (size_t i = 0; i < ARRAY_LEN(families); i++) list_add(dst, n, families[i].model_type);
    for (size_t i = 0; hf_wrapper_name(i); i++) list_add(dst, n, hf_wrapper_name(i));
}
