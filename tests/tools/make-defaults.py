#!/usr/bin/env python3
"""Writes the tables of tests/t_hf_defaults.c: make-defaults.py DIR, with transformers 5.24, which is the only thing needed.

hf-defaults.inc: what transformers takes for each family from a config.json that holds no more than SIZES.
hf-keys.inc: every key of the configuration class of each family, its default, another value, and what convert-hf must make of that:
'd' it is done (the model differs), 'r' it is refused by name, 'n' it changes no result of a forward pass. All keys count as 'd'
that are not listed here as another; a key that a new version adds and that has no probe stops this script.
"""
import copy, dataclasses, json, os, sys
import transformers
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

FAMILIES = """llama mistral qwen2 qwen3 mixtral qwen2_moe qwen3_moe olmoe glm4_moe deepseek_v2 deepseek_v3 ernie4_5_moe gpt_oss
granitemoe granitemoeshared granite smollm3 phi3 gemma gemma2 gemma3_text olmo2 phi stablelm olmo cohere cohere2 glm glm4 nemotron
exaone4 ernie4_5 opt gptj bloom mpt olmo3 starcoder2 gpt_neox gpt2 falcon""".split()
LAYERS, HEADS, HIDDEN = 8, 32, 2048
SIZES = dict(vocab_size=64, hidden_size=HIDDEN, intermediate_size=96, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
             max_position_embeddings=512)
# Where a key has another name that SIZES' name is no alias of.
NAMES = dict(mpt=dict(hidden_size="d_model", num_hidden_layers="n_layers", num_attention_heads="n_heads",
                      max_position_embeddings="max_seq_len"), opt=dict(intermediate_size="ffn_dim"),
             bloom=dict(num_hidden_layers="n_layer", num_attention_heads="n_head"),
             gpt2=dict(num_hidden_layers="n_layer", num_attention_heads="n_head", hidden_size="n_embd", intermediate_size="n_inner",
                       max_position_embeddings="n_positions"), falcon=dict(intermediate_size="ffn_hidden_size"))
NAMES["gptj"] = NAMES["gpt2"]
ACTS = dict(silu="ACT_SILU", gelu="ACT_GELU", gelu_new="ACT_GELU_TANH", gelu_pytorch_tanh="ACT_GELU_TANH", relu="ACT_RELU",
            relu2="ACT_RELU2")
# Read in the code of the models, where the configuration does not say it.
NO_KEY_EPS = dict(olmo=1e-5, opt=1e-5)
NO_KEY_ACT = dict(bloom="gelu_new", mpt="gelu")
EPS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
ALWAYS = ("qwen2", "phi", "gpt2", "bloom")  # q, k and v have biases, whatever the configuration says
NORMED = ("mixtral", "ernie4_5_moe")        # and the weights of the chosen experts add up to 1

# Keys without effect on a forward pass: of training, of generation, of storage, of other heads.
NO_EFFECT = """attention_dropout attn_pdrop bos_token_id eos_token_id pad_token_id classifier_dropout dropout emb_pdrop embd_pdrop
embedding_dropout hidden_dropout init_device init_std initializer_range is_decoder layerdrop output_router_logits pretraining_tp
reorder_and_upcast_attn resid_pdrop residual_dropout router_aux_loss_coef router_jitter_noise slow_but_exact summary_activation
summary_first_dropout summary_proj_to_labels summary_type summary_use_proj use_cache embedding_fraction num_mtp_layers""".split()
# The code of the model does not look at them.
NOT_READ = [("gemma3_text", "attn_logit_softcapping"), ("mpt", "expansion_ratio"), ("mpt", "learned_pos_emb"), ("mpt", "no_bias"),
            ("deepseek_v2", "norm_topk_prob"), ("gpt_oss", "hidden_act"), ("deepseek_v2", "head_dim"),
            ("deepseek_v2", "num_key_value_heads"), ("deepseek_v3", "num_key_value_heads")]
REFUSED = [("deepseek_v2", "mlp_bias"), "_remove_final_layer_norm", "add_cross_attention", "use_bidirectional_attention", "moe_norm_min", ("mpt", "logit_scale"),
           ("mpt", "norm_type")]
LINEAR = dict(rope_type="linear", rope_theta=777.0, factor=2.0)
LONG = dict(rope_type="longrope", rope_theta=1e4, short_factor=[1.0] * 32, long_factor=[2.0] * 32)
WINDOWED = dict(use_sliding_window=True, sliding_window=64, max_window_layers=3)
ATTN = dict(attn_type="multihead_attention", alibi=True)
# Another value of a key, and members that stand beside it. Of true and false the other one is taken.
PROBES = dict(
    vocab_size=128, hidden_size=1024, n_embd=4096, d_model=1024, intermediate_size=128, n_inner=128, ffn_dim=128, ffn_hidden_size=128,
    num_hidden_layers=4, n_layer=4, n_layers=4, num_attention_heads=64, n_heads=16, n_head=16, max_position_embeddings=1024,
    n_positions=1024, max_seq_len=1024, num_key_value_heads=1, head_dim=48, rms_norm_eps=0.001, layer_norm_eps=0.001,
    layer_norm_epsilon=0.001, norm_epsilon=0.001, norm_eps=0.001, hidden_act="relu", hidden_activation="relu", activation="relu",
    activation_function="silu", rope_parameters=LINEAR, attention_multiplier=0.3, embedding_multiplier=3.0, residual_multiplier=0.3,
    logits_scaling=3.0, attn_logit_softcapping=7.0, final_logit_softcapping=7.0, query_pre_attn_scalar=24, clip_qkv=2.0, logit_scale=0.5,
    decoder_sparse_step=2, mlp_only_layers=[0, 3], first_k_dense_replace=2, moe_layer_start_index=2, moe_layer_end_index=3,
    moe_layer_interval=2, moe_norm_min=0.01, moe_intermediate_size=64, moe_k=2, moe_num_experts=6, moe_num_shared_experts=1,
    n_routed_experts=16, n_shared_experts=3, num_experts=12, num_local_experts=12, num_experts_per_tok=5, n_group=(2, dict(topk_group=1)),
    topk_group=(2, dict(n_group=8)), routed_scaling_factor=1.5, topk_method=("group_limited_greedy", dict(n_group=8, topk_group=2)),
    shared_expert_intermediate_size=72, shared_intermediate_size=72, kv_lora_rank=256, q_lora_rank=None, qk_nope_head_dim=32,
    qk_rope_head_dim=32, v_head_dim=32, sliding_window=(100, WINDOWED), max_window_layers=(2, WINDOWED), use_sliding_window=(True, dict(
        sliding_window=64, max_window_layers=3)), layer_types=(["full_attention", "sliding_attention"] * 2 + ["sliding_attention"] * 4,
                                                               WINDOWED), sliding_window_pattern=2, no_rope_layers=[1, 0] * 4,
    no_rope_layer_interval=2, swiglu_alpha=1.5, swiglu_limit=5.0, rotary_dim=32, original_max_position_embeddings=(
        128, dict(rope_parameters=LONG)), word_embed_proj_dim=512, num_kv_heads=(4, dict(new_decoder_architecture=True)),
    num_ln_in_parallel_attn=(1, dict(new_decoder_architecture=True)), norm_type="rmsnorm", attn_config=dict(ATTN, clip_qkv=3.0),
    expansion_ratio=2, use_bidirectional_attention=True)
OF_FAMILY = {  # the same of one family
    ("gemma3_text", "rope_parameters"): dict(full_attention=LINEAR, sliding_attention=dict(rope_type="default", rope_theta=500.0)),
    ("gptj", "n_head"): (64, dict(rotary_dim=16)), ("phi3", "rope_parameters"): LONG, ("mixtral", "num_local_experts"): 4,
    ("deepseek_v2", "n_group"): (2, dict(topk_group=1, topk_method="group_limited_greedy")),
    ("deepseek_v2", "topk_group"): (2, dict(n_group=8, topk_method="group_limited_greedy")),
    ("gpt_oss", "max_position_embeddings"): 1 << 20, ("glm4_moe", "n_group"): (2, dict(topk_group=1)), ("cohere2", "layer_types"): ["full_attention"] * LAYERS}
MORE = [  # other values of keys above, and keys that the classes do not have as fields: family, key, value, beside it, verdict
    ("mpt", "attn_config", dict(ATTN, softmax_scale=0.3), {}, "d"), ("mpt", "attn_config", dict(ATTN, alibi_bias_max=16), {}, "d"),
    ("mpt", "attn_config", dict(ATTN, qk_ln=True), {}, "r"), ("mpt", "attn_config", dict(ATTN, prefix_lm=True), {}, "r"),
    ("mpt", "attn_config", dict(ATTN, alibi=False), {}, "r"), ("mpt", "attn_config", dict(attn_pdrop=0.5, attn_impl="torch"), {}, "n"),
    ("deepseek_v2", "topk_method", "noaux_tc", {}, "r"), ("deepseek_v2", "scoring_func", "sigmoid", {}, "r"),
    ("deepseek_v3", "scoring_func", "softmax", {}, "r"), ("deepseek_v3", "scoring_func", "sigmoid", {}, "n"),
    ("deepseek_v2", "moe_layer_freq", 2, {}, "r"), ("deepseek_v3", "topk_method", "noaux_tc", {}, "n"),
    ("gemma3_text", "rope_local_base_freq", 500.0, {}, "d"), ("gemma3_text", "sliding_window_pattern", 2, {}, "d"),
    ("cohere2", "sliding_window_pattern", 2, {}, "d"), ("gpt_neox", "rotary_pct", 0.5, {}, "d"), ("gpt_neox", "rotary_emb_base", 500, {}, "d"),
    ("llama", "rope_theta", 500, {}, "d"), ("llama", "rope_scaling", dict(type="linear", factor=2.0), {}, "d"),
    ("llama", "num_local_experts", 4, {}, "r"), ("llama", "kv_lora_rank", 4, {}, "r"), ("llama", "no_rope_layers", [1] * LAYERS, {}, "r"),
    ("llama", "partial_rotary_factor", 0.5, {}, "r"), ("gpt_oss", "partial_rotary_factor", 0.5, {}, "r")]
MORE += [(f, "partial_rotary_factor", 0.75, {}, "d") for f in ("phi", "phi3", "stablelm", "nemotron", "glm", "glm4", "glm4_moe")]
# Keys of one family that others do not follow: transformers keeps them in config.json, and so do scripts that make both.
FOREIGN = dict(
    rms_norm_eps=0.1, layer_norm_eps=0.1, layer_norm_epsilon=0.1, norm_eps=0.1, norm_epsilon=0.1, hidden_act="relu", activation="relu",
    activation_function="relu", hidden_activation="relu", num_key_value_heads=1, num_kv_heads=1, n_inner=80, ffn_dim=80,
    ffn_hidden_size=80, intermediate_size=80, norm_topk_prob=True, moe_intermediate_size=48, shared_expert_intermediate_size=48,
    shared_intermediate_size=48, n_shared_experts=3, n_group=2, topk_group=2, first_k_dense_replace=2, mlp_only_layers=[5],
    decoder_sparse_step=2, routed_scaling_factor=3.0, use_qk_norm=True, qk_layernorm=True, clip_qkv=0.5, logit_scale=0.5,
    final_logit_softcapping=5.0, attn_logit_softcapping=5.0, query_pre_attn_scalar=5, rotary_dim=4, rotary_pct=0.75, alibi=True,
    use_parallel_residual=True, parallel_attn=True, use_bias=True, bias=True, qkv_bias=True, use_qkv_bias=True, rope_interleave=False)
ALL = {f.name for f in dataclasses.fields(PreTrainedConfig)}


def first(c, *names):
    return next((getattr(c, n) for n in names if getattr(c, n, None) is not None), None)


def bits(flags):
    return sum(1 << i for i, f in enumerate(flags) if f)


def sizes(kind):
    given = {NAMES.get(kind, {}).get(k, k): v for k, v in SIZES.items() if kind != "bloom" or k not in ("intermediate_size",
                                                                                                      "max_position_embeddings")}
    if kind == "deepseek_v2":
        given["num_experts_per_tok"] = 3  # it has no default
    return given


def defaults(kind):
    c = CONFIG_MAPPING[kind].from_dict(copy.deepcopy(sizes(kind)))
    rope = getattr(c, "rope_parameters", None) or {}
    full = rope.get("full_attention", rope)
    slide = rope.get("sliding_attention", full)
    types = getattr(c, "layer_types", None) or []
    window = getattr(c, "sliding_window", None) or 0
    slides = [t == "sliding_attention" for t in types] if types else [kind == "mistral"] * LAYERS
    if not window:
        slides = [False] * LAYERS
    head = getattr(c, "head_dim", None) or HIDDEN // HEADS
    dims = int(head * full.get("partial_rotary_factor", 1)) if rope else getattr(c, "rotary_dim", 0)
    if kind.startswith("deepseek"):
        dims, head = c.qk_rope_head_dim, c.qk_nope_head_dim + c.qk_rope_head_dim
    kv = first(c, "num_key_value_heads", "num_kv_heads") or HEADS
    if kind.startswith("deepseek") or (kind == "falcon" and c.multi_query):
        kv = 1
    n = first(c, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts") or 0
    shared = first(c, "shared_expert_intermediate_size", "shared_intermediate_size") or 0
    many = first(c, "n_shared_experts", "moe_num_shared_experts")
    width = (getattr(c, "moe_intermediate_size", None) or c.intermediate_size) if n else 0
    act = "ACT_SWIGLU_CLAMP" if kind == "gpt_oss" else ACTS[NO_KEY_ACT.get(kind) or first(c, "hidden_activation", "hidden_act",
                                                                                          "activation_function", "activation")]
    return dict(
        json=text(dict(model_type=kind, **sizes(kind))), act=act, tied=int(c.tie_word_embeddings), head_dim=head, kv_heads=kv, rope_dims=dims,
        eps=NO_KEY_EPS.get(kind) or first(c, *EPS), theta=full.get("rope_theta", 0) if dims else 0,
        theta_slides=slide.get("rope_theta", 0) if any(slides) else 0, factor=full.get("factor", 1), window=window if any(slides) else 0,
        slides=bits(slides), attn_cap=0 if kind == "gemma3_text" else first(c, "attn_logit_softcapping") or 0,
        logit_cap=first(c, "final_logit_softcapping") or 0,
        bias=1 if kind in ALWAYS else int(bool(first(c, "attention_bias", "qkv_bias", "use_qkv_bias", "use_bias", "enable_bias"))),
        n=n, used=first(c, "num_experts_per_tok", "moe_k") or 0 if n else 0, width=width,
        shared=many * width if many else shared, groups=first(c, "n_group") or 1, groups_used=first(c, "topk_group") or 1,
        dense=first(c, "first_k_dense_replace", "moe_layer_start_index") or 0, scale=first(c, "routed_scaling_factor") or 1,
        norm=int(kind in NORMED or bool(getattr(c, "norm_topk_prob", False))) if n else 0, q_lora=first(c, "q_lora_rank") or 0)


def text(v):
    """JSON as a string of C"""
    return json.dumps(json.dumps(v))


def keys(kind):
    c = CONFIG_MAPPING[kind].from_dict(copy.deepcopy(sizes(kind)))
    rows = []
    for f in dataclasses.fields(type(c)):
        key, default = f.name, None if f.default is dataclasses.MISSING else f.default
        if key in ALL:
            continue
        verdict = "n" if key in NO_EFFECT or (kind, key) in NOT_READ else "r" if key in REFUSED or (kind, key) in REFUSED else "d"
        probe = OF_FAMILY.get((kind, key), PROBES.get(key))
        if key not in PROBES and (kind, key) not in OF_FAMILY:
            if isinstance(default, bool):
                probe = not default
            elif key in NO_EFFECT:
                probe = 0.5 if isinstance(default, float) else default if isinstance(default, str) else 3
            else:
                sys.exit(f"{kind}: key {key} (default {default}) is new: judge it")
        value, beside = probe if isinstance(probe, tuple) else (probe, {})
        known = key not in sizes(kind) and f.default is not dataclasses.MISSING
        rows.append((kind, key, text(default) if known else "NULL", value, beside, verdict))
    own = {f.name for f in dataclasses.fields(type(c))} | set(c.attribute_map) | set(sizes(kind)) | ({"rotary_pct"} if kind == "gpt_neox" else set())
    rows += [(kind, k, "NULL", v, {}, "n") for k, v in FOREIGN.items() if k not in own]
    return rows + [(k, key, "NULL", value, beside, verdict) for k, key, value, beside, verdict in MORE if k == kind]


def main(where):
    with open(os.path.join(where, "hf-defaults.inc"), "w") as f:
        f.write(f"/* Made by tests/tools/make-defaults.py from transformers {transformers.__version__}. */\n")
        for kind in FAMILIES:
            f.write("{" + ", ".join(f".{k} = {v}" for k, v in defaults(kind).items() if v not in (0, "0")) + "},\n")
    with open(os.path.join(where, "hf-keys.inc"), "w") as f:
        f.write(f"/* Made by tests/tools/make-defaults.py from transformers {transformers.__version__}. */\n")
        for kind in FAMILIES:
            for k, key, default, value, beside, verdict in keys(kind):
                f.write(f'{{"{k}", "{key}", {default}, {text(value)}, {text(beside)}, \'{verdict}\'}},\n')


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main(sys.argv[1])
