#!/usr/bin/env python3
"""Makes tests/data/gguf: make-gguf-blocks.py DIR

Run once, with numpy, gguf (llama.cpp's own package), torch, transformers and safetensors; the results are committed, the tests need
no Python.

blocks.gguf: of every block type T a tensor "T" of random codes (scales of all sizes, negative, subnormal and zero among them) and
"T.f32", the values that gguf.quants.dequantize gives for it.

mixed/: a small llama whose matrices have types of their own, and the logits that transformers gives for its dequantized weights.
"""
import json
import os
import sys

import numpy as np
import torch
from gguf import GGUFWriter, GGML_QUANT_SIZES, GGMLQuantizationType as T, TokenType
from gguf.quants import dequantize
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

where = sys.argv[1]
rng = np.random.default_rng(7)
SCALES = {T.Q8_0: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.IQ4_NL: [0], T.MXFP4: [], T.Q2_K: [80, 82],
          T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_XS: [0]}  # places of the f16 in a block


def random_blocks(t, rows, cols, scale):
    """Random bytes, and for each f16 what scale(n) gives."""
    elems, size = GGML_QUANT_SIZES[t]
    b = rng.integers(0, 256, (rows * cols // elems, size), dtype=np.uint8)
    for at in SCALES[t]:
        b[:, at : at + 2] = scale(len(b)).astype(np.float16).view(np.uint8).reshape(-1, 2)
    if t == T.MXFP4:  # an exponent
        b[:, 0] = np.concatenate([[0, 1, 2, 251], rng.integers(100, 150, len(b) - 4)])
    return b.reshape(rows, -1)


def of_all_sizes(n):
    x = rng.standard_normal(n) * 2.0 ** rng.integers(-22, 6, n)
    x[rng.random(n) < 0.1] = 0
    return x


def make_blocks():
    w = GGUFWriter(os.path.join(where, "blocks.gguf"), "blocks")
    for t in SCALES:
        raw = random_blocks(t, 4, 768, of_all_sizes)
        w.add_tensor(t.name, raw, raw_dtype=t)
        w.add_tensor(t.name + ".f32", dequantize(raw, t))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


# ---- mixed ----

VOCAB, HIDDEN, HEADS, KV, FFN, PROMPT, DECODE = 64, 256, 4, 2, 256, 24, 8
MATRICES = [("token_embd", "model.embed_tokens", VOCAB, HIDDEN, T.Q6_K), ("output", "lm_head", VOCAB, HIDDEN, T.Q5_K),
            ("blk.0.attn_q", "self_attn.q_proj", HIDDEN, HIDDEN, T.Q4_K), ("blk.0.attn_k", "self_attn.k_proj", 128, HIDDEN, T.Q3_K),
            ("blk.0.attn_v", "self_attn.v_proj", 128, HIDDEN, T.Q5_1), ("blk.0.attn_output", "self_attn.o_proj", HIDDEN, HIDDEN, T.Q2_K),
            ("blk.0.ffn_gate", "mlp.gate_proj", FFN, HIDDEN, T.Q4_K), ("blk.0.ffn_up", "mlp.up_proj", FFN, HIDDEN, T.IQ4_XS),
            ("blk.0.ffn_down", "mlp.down_proj", HIDDEN, FFN, T.Q5_0)]
STD = 0.08


def weights_like(t, rows, cols):
    """Blocks whose values have about the mean 0 and the deviation STD: the minimum is half of the largest code."""
    d = {T.Q4_K: 4e-4, T.Q5_K: 2e-4, T.Q2_K: 8e-3, T.Q5_1: 9e-3, T.Q6_K: 6e-5, T.Q3_K: 2e-3, T.Q5_0: 9e-3, T.IQ4_XS: 6e-5}[t]
    b = random_blocks(t, rows, cols, lambda n: d * rng.uniform(0.7, 1.3, n))
    size, share = GGML_QUANT_SIZES[t][1], {T.Q4_K: 7.5, T.Q5_K: 15.5, T.Q2_K: 1.5, T.Q5_1: -15.5}
    if t in share:
        flat, (first, second) = b.reshape(-1, size), SCALES[t]
        low = flat[:, first : first + 2].copy().view(np.float16).astype(np.float32) * share[t]
        flat[:, second : second + 2] = low.astype(np.float16).view(np.uint8)
    return b


def unpermute(x, heads):
    """Rows of q and k: GGUF has the two of a rotary pair side by side."""
    return x.reshape(heads, x.shape[0] // heads // 2, 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)


def golden(model, out):
    prompt = [int(x) for x in rng.integers(3, VOCAB, PROMPT)]
    with torch.no_grad():
        first = model(torch.tensor([prompt])).logits[0].float()
        ids, rows = [], []
        for i in range(DECODE):
            ids.append(int((first[-1] if i == 0 else rows[-1]).argmax()))
            rows.append(model(torch.tensor([prompt + ids])).logits[0, -1].float())
    save_file({"prompt_logits": first.contiguous(), "decode_logits": torch.stack(rows)}, os.path.join(out, "golden.safetensors"))
    with open(os.path.join(out, "golden.json"), "w") as f:
        json.dump(dict(model="mixed", prompt_ids=prompt, greedy_ids=ids), f)


def make_mixed():
    out = os.path.join(where, "mixed")
    os.makedirs(out, exist_ok=True)
    w, state = GGUFWriter(os.path.join(out, "model.gguf"), "llama"), {}
    w.add_block_count(1)
    w.add_context_length(128)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(10000.0)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(["a", "b", "ab"] + [f"t{i}" for i in range(3, VOCAB)])
    w.add_token_types([TokenType.NORMAL] * VOCAB)
    w.add_token_merges(["a b"])
    for name, hf, rows, cols, t in MATRICES:
        raw = weights_like(t, rows, cols)
        x = dequantize(raw, t)
        print(f"{name}: {t.name}, mean {x.mean():.4f}, deviation {x.std():.4f}")
        w.add_tensor(name + ".weight", raw, raw_dtype=t)
        if "attn_q" in name or "attn_k" in name:
            x = unpermute(x, HEADS if "attn_q" in name else KV)
        state[hf + ".weight" if "." not in name else f"model.layers.0.{hf}.weight"] = torch.from_numpy(x.copy())
    for name, hf in [("output_norm", "model.norm"), ("blk.0.attn_norm", "model.layers.0.input_layernorm"),
                     ("blk.0.ffn_norm", "model.layers.0.post_attention_layernorm")]:
        x = (1 + 0.1 * rng.standard_normal(HIDDEN)).astype(np.float32)
        w.add_tensor(name + ".weight", x)
        state[hf + ".weight"] = torch.from_numpy(x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=1, num_attention_heads=HEADS,
                         num_key_value_heads=KV, max_position_embeddings=128, rms_norm_eps=1e-6, tie_word_embeddings=False)
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(state)
    golden(model, out)


make_blocks()
make_mixed()
