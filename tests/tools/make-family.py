#!/usr/bin/env python3
"""Makes the tiny checkpoints of tests/models: make-family.py DIR [NAME...]

Run once, with torch, transformers 5.24 and safetensors; the results are committed, the tests need no Python. Each checkpoint has
random weights of standard deviation 0.2, norms and biases away from their defaults, and the float32 logits of a prompt of
96 tokens and of 24 greedy ones. Windows are shorter than the prompt. Weights are rounded to their stored type before the logits
are computed.
"""
import json, os, sys, zlib
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

VOCAB, PROMPT, DECODE = 192, 96, 24
BASE = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=2)
SMALL = dict(BASE, hidden_size=48, intermediate_size=80, num_attention_heads=3, num_key_value_heads=1)
TINY = dict(BASE, hidden_size=36, intermediate_size=52, num_attention_heads=3, num_key_value_heads=3, head_dim=12)
MOE = dict(BASE, num_experts_per_tok=2, moe_intermediate_size=40)
DEEP = dict(BASE, num_key_value_heads=4, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=24, n_shared_experts=2,
            first_k_dense_replace=1, num_hidden_layers=3, q_lora_rank=24, kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8,
            v_head_dim=10, n_group=4, topk_group=2, routed_scaling_factor=1.5)
SEES = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=16, patch_size=4)
GPT2 = dict(vocab_size=VOCAB, n_embd=48, n_layer=2, n_head=3, n_positions=256, bos_token_id=1, eos_token_id=2)

# name: (model_type, configuration)
FAMILIES = {
    "qwen2-moe": ("qwen2_moe", dict(MOE, num_hidden_layers=3, num_experts=6, num_experts_per_tok=3, shared_expert_intermediate_size=56,
                                    mlp_only_layers=[1], use_sliding_window=True, sliding_window=20, max_window_layers=2)),
    "qwen2-moe-all": ("qwen2_moe", dict(MOE, num_experts=5, shared_expert_intermediate_size=56)),
    "qwen3-moe-all": ("qwen3_moe", dict(MOE, num_experts=5, head_dim=24, norm_topk_prob=True)),
    "olmoe": ("olmoe", dict(BASE, intermediate_size=40, num_experts=5, num_experts_per_tok=2, clip_qkv=2.0, norm_topk_prob=False)),
    "granitemoe": ("granitemoe", dict(BASE, intermediate_size=40, num_local_experts=5, num_experts_per_tok=3, embedding_multiplier=6.0,
                                      logits_scaling=3.0, residual_multiplier=0.6, attention_multiplier=0.2)),
    "granitemoeshared": ("granitemoeshared", dict(BASE, intermediate_size=40, num_local_experts=4, num_experts_per_tok=2,
                                                  shared_intermediate_size=56, residual_multiplier=0.7, attention_multiplier=0.3)),
    "granite": ("granite", dict(SMALL, embedding_multiplier=6.0, logits_scaling=3.0, residual_multiplier=0.6, attention_multiplier=0.2,
                                attention_bias=True, mlp_bias=True)),
    "smollm3": ("smollm3", dict(BASE, num_hidden_layers=4, no_rope_layer_interval=2, use_sliding_window=False)),
    "phi": ("phi", dict(BASE, num_key_value_heads=4, partial_rotary_factor=0.5, hidden_act="gelu_new")),
    "phi-qknorm": ("phi", dict(BASE, partial_rotary_factor=0.5, qk_layernorm=True)),
    "gptj": ("gptj", dict(GPT2, rotary_dim=8)),
    "bloom": ("bloom", dict(vocab_size=VOCAB, hidden_size=48, n_layer=2, n_head=3)),
    "falcon-alibi": ("falcon", dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=3, alibi=True,
                                    new_decoder_architecture=False, multi_query=False, parallel_attn=False, bias=True)),
    "falcon-new": ("falcon", dict(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=2,
                                  new_decoder_architecture=True)),
    "opt": ("opt", dict(vocab_size=VOCAB, hidden_size=48, ffn_dim=96, num_hidden_layers=2, num_attention_heads=3,
                        max_position_embeddings=256, word_embed_proj_dim=48)),
    "opt-350m": ("opt", dict(vocab_size=VOCAB, hidden_size=48, ffn_dim=96, num_hidden_layers=2, num_attention_heads=3,
                             max_position_embeddings=256, word_embed_proj_dim=24, do_layer_norm_before=False)),
    "opt-projected": ("opt", dict(vocab_size=VOCAB, hidden_size=32, ffn_dim=64, num_hidden_layers=1, num_attention_heads=2,
                                  max_position_embeddings=256, word_embed_proj_dim=40, tie_word_embeddings=False)),
    "mpt": ("mpt", dict(vocab_size=VOCAB, d_model=48, n_heads=3, n_layers=2, max_seq_len=256, attn_config=dict(clip_qkv=2.0))),
    "stablelm": ("stablelm", dict(BASE, partial_rotary_factor=0.25, use_qkv_bias=True)),
    "stablelm-parallel": ("stablelm", dict(BASE, partial_rotary_factor=0.5, qk_layernorm=True, use_parallel_residual=True)),
    "olmo": ("olmo", dict(BASE, clip_qkv=2.0)),
    "cohere": ("cohere", dict(BASE, logit_scale=0.3, use_qk_norm=True)),
    "cohere2": ("cohere2", dict(BASE, num_hidden_layers=4, logit_scale=0.3, sliding_window=20, sliding_window_pattern=4)),
    "glm": ("glm", dict(BASE, head_dim=16, attention_bias=True)),
    "glm4": ("glm4", dict(BASE, head_dim=24, attention_bias=True)),
    "nemotron": ("nemotron", dict(BASE, partial_rotary_factor=0.5, hidden_act="relu2", mlp_bias=True, attention_bias=True)),
    "exaone4": ("exaone4", dict(BASE, num_hidden_layers=4, sliding_window=20, sliding_window_pattern=4)),
    "ernie4_5": ("ernie4_5", dict(SMALL, head_dim=16, use_bias=True)),
    "gemma": ("gemma", dict(BASE, head_dim=24)),
    "phi3-longrope": ("phi3", dict(BASE, max_position_embeddings=256, original_max_position_embeddings=64, rope_scaling=dict(
        type="longrope", short_factor=[1.0 + 0.1 * i for i in range(8)], long_factor=[1.0 + 0.5 * i for i in range(8)]))),
    "phi3-longrope-short": ("phi3", dict(BASE, max_position_embeddings=256, original_max_position_embeddings=128, rope_scaling=dict(
        type="longrope", short_factor=[1.0 + 0.1 * i for i in range(8)], long_factor=[1.0 + 0.5 * i for i in range(8)]))),
    "deepseek-v2": ("deepseek_v2", dict(DEEP, topk_method="group_limited_greedy")),
    "deepseek-v2-lite": ("deepseek_v2", dict(DEEP, q_lora_rank=None, topk_method="greedy", n_group=1, topk_group=1)),
    "deepseek-v3": ("deepseek_v3", dict(DEEP)),
    "deepseek-v3-yarn": ("deepseek_v3", dict(DEEP, q_lora_rank=None, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
                                             rope_interleave=False, attention_bias=True, rope_scaling=dict(
        type="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=0.8))),
    "gpt-oss": ("gpt_oss", dict(BASE, intermediate_size=40, num_local_experts=5, num_experts_per_tok=2, head_dim=16, sliding_window=20)),
    "qwen3-4heads": ("qwen3", dict(BASE, head_dim=24)),
    "ernie4_5-moe": ("ernie4_5_moe", dict(BASE, moe_intermediate_size=40, moe_num_experts=6, moe_k=2, moe_num_shared_experts=1,
                                          num_hidden_layers=3, moe_layer_start_index=1, moe_layer_end_index=2, use_bias=True)),
    "glm4-moe": ("glm4_moe", dict(BASE, head_dim=16, moe_intermediate_size=40, n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1,
                                  first_k_dense_replace=1, num_hidden_layers=3, n_group=1, topk_group=1, partial_rotary_factor=0.5,
                                  use_qk_norm=True, attention_bias=True)),
    "olmo3": ("olmo3", dict(BASE, num_hidden_layers=4, sliding_window=20)),
    "internlm2": ("llama", dict(BASE)),
    "llama-dynamic": ("llama", dict(TINY, max_position_embeddings=64, rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0,
                                                                                          factor=2.0))),
    "bloom-normed-residual": ("bloom", dict(vocab_size=VOCAB, hidden_size=36, n_layer=2, n_head=3,
                                            apply_residual_connection_post_layernorm=True)),
    "gpt2-layer-scale": ("gpt2", dict(GPT2, n_embd=36, scale_attn_by_inverse_layer_idx=True)),
    "granitemoe-stacked": ("granitemoe", dict(TINY, intermediate_size=20, num_local_experts=4, num_experts_per_tok=2)),
    "cohere-mqa": ("cohere", dict(TINY, num_key_value_heads=1, use_qk_norm=True, logit_scale=1.0)),
    "ernie4_5-moe-stacked": ("ernie4_5_moe", dict(TINY, moe_intermediate_size=20, moe_num_experts=4, moe_k=2, moe_layer_start_index=0,
                                                  moe_layer_end_index=1)),
    "gpt_neox-lm_head": ("gpt_neox", dict(vocab_size=VOCAB, hidden_size=36, intermediate_size=52, num_hidden_layers=2, num_attention_heads=3,
                                       max_position_embeddings=256, use_parallel_residual=False)),
    "gemma3-softcap": ("gemma3_text", dict(TINY, attn_logit_softcapping=2.0, final_logit_softcapping=9.0, sliding_window=20,
                                           layer_types=["full_attention", "sliding_attention"], query_pre_attn_scalar=24)),
    "gemma3-sees": ("gemma3", dict(text_config=dict(TINY, num_hidden_layers=3, sliding_window=20, sliding_window_pattern=2,
                                                    query_pre_attn_scalar=24, rope_parameters=dict(
        full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1000000.0), sliding_attention=dict(
            rope_type="default", rope_theta=10000.0))), vision_config=SEES, mm_tokens_per_image=4)),
    "mistral3-sees": ("mistral3", dict(text_config=dict(BASE, model_type="mistral", head_dim=24, rms_norm_eps=1e-5,
                                                        sliding_window=None), vision_config=dict(SEES, model_type="pixtral", head_dim=8),
                                       tie_word_embeddings=False)),
    "mixtral-stacked": ("mixtral", dict(BASE, intermediate_size=40, num_local_experts=5, num_experts_per_tok=2)),
}
# Saved as newer versions hold them in memory: the experts of a layer in one tensor.
STACKED = {"mixtral-stacked", "granitemoe-stacked", "ernie4_5-moe-stacked", "gpt_neox-lm_head", "mistral3-sees"}
# Their language part is what counts.
SEEING = {"gemma3-sees", "mistral3-sees"}
# transformers adds falcon's alibi bias twice in its eager attention, and once, as the model was trained, in sdpa.
SDPA = {"falcon-alibi"}
# Published with code of its own: a llama model under its names, q, k and v of each kv head in one matrix.
INTERNLM2 = {"internlm2"}


def randomize(model):
    for name, p in list(model.named_parameters()) + list(model.named_buffers()):
        if not p.is_floating_point() or "inv_freq" in name:
            continue
        noise = 0.2 * torch.randn(p.shape)
        norm = p.dim() == 1 and name.endswith("weight")
        p.data.copy_(1 + noise if norm and not getattr(model.config, "zero_norm", False) else noise)


def to_internlm2(path):
    with open(os.path.join(path, "config.json")) as f:
        config = json.load(f)
    config.update(model_type="internlm2", architectures=["InternLM2ForCausalLM"], bias=False)
    w, out = load_file(os.path.join(path, "model.safetensors")), {}
    names = {"model.embed_tokens": "model.tok_embeddings", "lm_head": "output", "self_attn.o_proj": "attention.wo",
             "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
             "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}
    kv = config["num_key_value_heads"]
    for k, v in w.items():
        if ".q_proj" in k:
            parts = [w[k.replace("q_proj", p)] for p in ("q_proj", "k_proj", "v_proj")]
            grouped = torch.cat([p.view(kv, -1, p.shape[1]) for p in parts], 1)
            out[k.replace("self_attn.q_proj", "attention.wqkv")] = grouped.reshape(-1, v.shape[1]).contiguous()
        elif ".k_proj" not in k and ".v_proj" not in k:
            for a, b in names.items():
                k = k.replace(a, b)
            out[k] = v
    save_file(out, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f, indent=2)


def make(where, name):
    kind, settings = FAMILIES[name]
    torch.manual_seed(zlib.crc32(name.encode()))
    config = AutoConfig.for_model(kind, **settings)
    impl = "sdpa" if name in SDPA else "eager"
    auto = AutoModelForImageTextToText if name in SEEING else AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation=impl).eval()
    randomize(model)
    path = os.path.join(where, name)
    os.makedirs(path, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(path, save_original_format=name not in STACKED)
    model = auto.from_pretrained(path, dtype=torch.float32, attn_implementation=impl).eval()
    ids = [1] + torch.randint(3, VOCAB - 3, (PROMPT - 1,)).tolist()
    prompt = ids[:]
    with torch.no_grad():
        first = model(torch.tensor([ids])).logits[0].float()
        if "dynamic" in name:  # what was generated is run with the frequencies of the prompt
            model.model.rotary_emb.rope_type = "as it is"
        out, rows, gap = [], [], 1e9
        for i in range(DECODE):
            logits = first[-1] if i == 0 else rows[-1]
            top = torch.topk(logits, 2).values
            gap = min(gap, float(top[0] - top[1]))
            out.append(int(logits.argmax()))
            rows.append(model(torch.tensor([prompt + out])).logits[0, -1].float())
    save_file({"prompt_logits": first.contiguous(), "decode_logits": torch.stack(rows)}, os.path.join(path, "golden.safetensors"))
    with open(os.path.join(path, "golden.json"), "w") as f:
        json.dump(dict(model=name, prompt_ids=prompt, greedy_ids=out, min_top2_gap=gap,
                       note="decode_logits[i] follow greedy_ids[i]; float32, eager attention"), f)
    if name in INTERNLM2:
        to_internlm2(path)
    size = sum(os.path.getsize(os.path.join(path, f)) for f in os.listdir(path))
    print(f"{name}: logits std {first.std():.2f}, gap {gap:.4f}, {size // 1000} KB", flush=True)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    for n in sys.argv[2:] or FAMILIES:
        try:
            make(sys.argv[1], n)
        except Exception as e:
            print(f"{n}: FAILED {type(e).__name__}: {str(e)[:300]}", flush=True)
