/*
 * gguf_family.c - the architectures of GGUF files: the family row that describes each, and the names of its tensors as llama.cpp
 * writes them.
 *
 * Names are the same in all of them; what differs is the layout behind a name. In the architectures of names_pairs llama.cpp
 * rotates pairs (2i, 2i + 1) of models that rotate halves, so rows of q and k are interleaved and are put back here. Those that
 * rotate pairs by themselves (command-r, glm, ernie) and those that rotate halves are stored as in the checkpoint.
 * Fused q, k, v lie one below the other, whatever the checkpoint's order was.
 */
#include <stdio.h>

#include "family.h"

#define B "blk.%d."
#define END {NULL, 0, 0, 0}
#define EXPERTS \
    {B "ffn_gate_inp", ROLE_ROUTER, 0, 0}, {B "exp_probs_b.bias", ROLE_ROUTER_CORRECTION, 0, NAME_BARE}, \
    {B "ffn_gate_exps", ROLE_EXP_GATE, FUSE_EXPERTS, 0}, {B "ffn_up_exps", ROLE_EXP_UP, FUSE_EXPERTS, 0}, \
    {B "ffn_down_exps", ROLE_EXP_DOWN, FUSE_EXPERTS, 0}, \
    /* as files of 2024 and before have them, one tensor each */ \
    {B "ffn_gate.%d", ROLE_EXP_GATE, 0, 0}, {B "ffn_up.%d", ROLE_EXP_UP, 0, 0}, {B "ffn_down.%d", ROLE_EXP_DOWN, 0, 0}, \
    {B "ffn_gate_shexp", ROLE_SH_GATE, 0, 0}, {B "ffn_up_shexp", ROLE_SH_UP, 0, 0}, \
    {B "ffn_down_shexp", ROLE_SH_DOWN, 0, 0}, {B "ffn_gate_inp_shexp", ROLE_SH_SWITCH, 0, 0}
/* All but norms inside a layer, q and k, and the first half of the feed-forward. */
#define SHARED_NAMES \
    {"token_embd", ROLE_EMBED, 0, 0}, {"position_embd", ROLE_POS_EMBED, 0, 0}, {"token_embd_norm", ROLE_EMBED_NORM, 0, 0}, \
    {"output_norm", ROLE_FINAL_NORM, 0, 0}, {"output", ROLE_HEAD, 0, 0}, {B, ROLE_NONE, 0, NAME_BARE}, \
    {B "attn_v", ROLE_V, 0, 0}, {B "attn_output", ROLE_O, 0, 0}, {B "attn_sinks", ROLE_SINKS, 0, 0}, \
    {B "ffn_down", ROLE_DOWN, 0, 0}, EXPERTS
#define PRE_NORMS {B "attn_norm", ROLE_ATTN_NORM, 0, 0}, {B "ffn_norm", ROLE_FFN_NORM, 0, 0}
#define POST_NORMS {B "post_attention_norm", ROLE_POST_ATTN_NORM, 0, 0}, {B "post_ffw_norm", ROLE_POST_FFN_NORM, 0, 0}
#define Q_K \
    {B "attn_q", ROLE_Q, 0, 0}, {B "attn_k", ROLE_K, 0, 0}, {B "attn_qkv", ROLE_Q, FUSE_QKV, 0}, \
    {B "attn_q_norm", ROLE_Q_NORM, 0, 0}, {B "attn_k_norm", ROLE_K_NORM, 0, 0}
#define GATE_UP {B "ffn_gate", ROLE_GATE, 0, 0}, {B "ffn_up", ROLE_UP, 0, 0}

static const name_rule names_pairs[] = {
    SHARED_NAMES, PRE_NORMS, GATE_UP, {B "attn_q", ROLE_Q, 0, NAME_ROPE_PAIRS}, {B "attn_k", ROLE_K, 0, NAME_ROPE_PAIRS}, END};
static const name_rule names_plain[] = {SHARED_NAMES, PRE_NORMS, POST_NORMS, GATE_UP, Q_K, END};
/* One tensor of gate and up. */
static const name_rule names_fused[] = {
    SHARED_NAMES, PRE_NORMS, POST_NORMS, Q_K, {B "ffn_up", ROLE_GATE, FUSE_GATE_UP, 0}, END};
/* The norm before the feed-forward has the name of one behind attention. */
static const name_rule names_mid_norm[] = {
    SHARED_NAMES, GATE_UP, Q_K, {B "attn_norm", ROLE_ATTN_NORM, 0, 0}, {B "post_attention_norm", ROLE_FFN_NORM, 0, 0}, END};
static const name_rule names_each_norm[] = {
    SHARED_NAMES, PRE_NORMS, GATE_UP, {B "attn_q", ROLE_Q, 0, 0}, {B "attn_k", ROLE_K, 0, 0},
    {B "attn_q_norm", ROLE_Q_EACH, FUSE_EXPERTS, 0}, {B "attn_k_norm", ROLE_K_EACH, FUSE_EXPERTS, 0}, END};
static const name_rule names_falcon[] = {
    SHARED_NAMES, GATE_UP, Q_K, {B "attn_norm", ROLE_ATTN_NORM, 0, NAME_ONE_NORM},
    {B "attn_norm_2", ROLE_ATTN_NORM, 0, NAME_TWO_NORMS}, {B "attn_norm", ROLE_FFN_NORM, 0, NAME_TWO_NORMS}, END};
static const name_rule names_latent[] = {
    SHARED_NAMES, PRE_NORMS, GATE_UP, {B "attn_q", ROLE_Q, 0, 0}, {B "attn_q_b", ROLE_Q, 0, 0}, {B "attn_q_a", ROLE_Q_A, 0, 0},
    {B "attn_q_a_norm", ROLE_Q_A_NORM, 0, 0}, {B "attn_kv_a_mqa", ROLE_KV_A, 0, 0}, {B "attn_kv_a_norm", ROLE_KV_A_NORM, 0, 0},
    {B "attn_k_b", ROLE_K_B, FUSE_HEADS, 0}, {B "attn_v_b", ROLE_V_B, FUSE_HEADS, 0},
    {B "attn_kv_b", ROLE_K_B, FUSE_KV_B, 0}, {B "attn_output", ROLE_LATENT_O, 0, 0}, END};

static const gguf_family families[] = {
    {"llama", "llama", names_pairs, 1}, /* mistral and mixtral as well */
    {"qwen2", "qwen2", names_plain, 0},
    {"qwen2moe", "qwen2_moe", names_plain, 0},
    {"qwen3", "qwen3", names_plain, 0},
    {"qwen3moe", "qwen3_moe", names_plain, 1},
    {"gemma", "gemma", names_plain, 0},
    {"gemma2", "gemma2", names_plain, 0},
    {"gemma3", "gemma3_text", names_plain, 0},
    {"phi2", "phi", names_plain, 0},
    {"phi3", "phi3", names_fused, 0},
    {"gpt2", "gpt2", names_plain, 0},
    {"gptneox", "gpt_neox", names_plain, 0},
    {"falcon", "falcon", names_falcon, 0},
    {"bloom", "bloom", names_plain, 0},
    {"mpt", "mpt", names_plain, 0},
    {"starcoder2", "starcoder2", names_plain, 0},
    {"stablelm", "stablelm", names_each_norm, 0},
    {"internlm2", "internlm2", names_pairs, 0},
    {"olmo", "olmo", names_pairs, 0},
    {"olmo2", "olmo2", names_plain, 0}, /* olmo3 as well */
    {"olmoe", "olmoe", names_plain, 0},
    {"granite", "granite", names_pairs, 0},
    {"granitemoe", "granitemoe", names_pairs, 0},
    {"command-r", "cohere", names_each_norm, 0},
    {"cohere2", "cohere2", names_each_norm, 0},
    {"chatglm", "glm", names_fused, 0},
    {"glm4", "glm4", names_fused, 0},
    {"glm4moe", "glm4_moe", names_mid_norm, 0},
    {"smollm3", "smollm3", names_pairs, 0},
    {"nemotron", "nemotron", names_plain, 0},
    {"exaone4", "exaone4", names_plain, 0},
    {"ernie4_5", "ernie4_5", names_plain, 0},
    {"ernie4_5-moe", "ernie4_5_moe", names_plain, 1},
    {"deepseek2", "deepseek_v2", names_latent, 0}, /* deepseek_v3 as well */
    {"gpt-oss", "gpt_oss", names_mid_norm, 0},
};

const gguf_family *family_by_gguf(const char *arch_name, size_t len)
{
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (strlen(families[i].arch) == len && memcmp(families[i].arch, arch_name, len) == 0) return &families[i];
    return NULL;
}

void family_gguf_list(char *dst, size_t n)
{
    size_t used = 0;
    dst[0] = 0;
    for (size_t i = 0; i < ARRAY_LEN(families) && used + 1 < n; i++) {
        snprintf(dst + used, n - used, "%s%s", i ? ", " : "", families[i].arch);
        used = strlen(dst);
    }
}
