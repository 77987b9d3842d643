#!/usr/bin/env python3
"""Makes the tiny quantized checkpoints of tests/quantized: make-quantized.py DIR [NAME...]

Run once, with numpy, torch, transformers, safetensors and compressed-tensors; the results are committed, the tests need no Python.
NAME/ holds a checkpoint in the published form, NAME/plain/ the same model with every weight dequantized, in float32, and
NAME/golden.* the logits that transformers gives for the plain one.

The packing of GPTQ and AWQ is written down here from the layouts that AutoGPTQ, GPTQModel and AutoAWQ use; that of
compressed-tensors is made and undone by its own package, MXFP4 and block-wise FP8 are undone by transformers. Every plain weight
is scale * (code - zero) in float32.
"""
import json, os, sys, zlib
import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB, PROMPT, DECODE = 64, 24, 8
LLAMA = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
GPT_OSS = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
               num_key_value_heads=2, head_dim=16, num_local_experts=3, num_experts_per_tok=2, sliding_window=16,
               max_position_embeddings=128, bos_token_id=1, eos_token_id=2)


def words(codes, bits):
    """Codes along the last axis into words of 32 bits, the first in the lowest bits."""
    per = 32 // bits
    c = codes.reshape(*codes.shape[:-1], -1, per).astype(np.uint32)
    return torch.from_numpy((c << (np.arange(per, dtype=np.uint32) * bits)).sum(-1, dtype=np.uint32).view(np.int32))


def affine(w, bits, group, sym, order=None):
    """w [n, k] -> codes [n, k], scales f16 [n, g], zeros [n, g]; order: group of each column."""
    n, k = w.shape
    order = np.arange(k) // group if order is None else order
    top, g = 2**bits - 1, int(order.max()) + 1
    scale, zero, codes = np.zeros((n, g), np.float16), np.zeros((n, g), np.int64), np.zeros((n, k), np.int64)
    for j in range(g):
        x = w[:, order == j]
        lo, hi = np.minimum(x.min(1), 0), np.maximum(x.max(1), 0)
        if sym:
            lo, hi = -np.maximum(-lo, hi), np.maximum(-lo, hi)
        scale[:, j] = (hi - lo) / top
        s = scale[:, j].astype(np.float32)
        zero[:, j] = 2 ** (bits - 1) if sym else np.clip(np.rint(-lo / s), 0, top)
        codes[:, order == j] = np.clip(np.rint(x / s[:, None]) + zero[:, j : j + 1], 0, top)
    plain = scale.astype(np.float32)[:, order] * (codes - zero[:, order]).astype(np.float32)
    return codes, scale, zero, order, plain


def gptq(bits, group, sym, act=False, minus_word=False, version=1, no_g_idx=False):
    def pack(stem, w, rng):
        k = w.shape[1]
        order = rng.permutation(np.arange(k) // group) if act else None
        codes, scale, zero, order, plain = affine(w, bits, min(group, k), sym, order)
        if not minus_word and version == 1:
            stored = words(((zero - 1) % 2**bits).T, bits)
        else:
            stored = words(zero.T, bits)
        if minus_word:  # GPTQModel: from the whole word, with borrow
            ones = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}[bits]
            stored = torch.from_numpy((stored.numpy().view(np.uint32) - np.uint32(ones)).view(np.int32))
        out = {"qweight": words(codes, bits).T.contiguous(), "qzeros": stored.contiguous(),
               "scales": torch.from_numpy(scale.T.copy()), "g_idx": torch.from_numpy(order.astype(np.int32))}
        if no_g_idx:
            del out["g_idx"]
        return {f"{stem}.{t}": v for t, v in out.items()}, plain
    config = dict(quant_method="gptq", bits=bits, group_size=group, desc_act=act, sym=sym, damp_percent=0.01, lm_head=False)
    if minus_word:
        config["meta"] = {"quantizer": ["gptqmodel:2.0.0"]}
    if version == 2:
        config["checkpoint_format"] = "gptq_v2"
    return config, pack


def awq(group):
    def pack(stem, w, rng):
        codes, scale, zero, _, plain = affine(w, 4, group, False)
        order = np.array([0, 2, 4, 6, 1, 3, 5, 7])
        fields = lambda c: words(c.reshape(c.shape[0], -1, 8)[:, :, order].reshape(c.shape), 4)
        out = {"qweight": fields(codes.T.copy()), "qzeros": fields(zero.T.copy()), "scales": torch.from_numpy(scale.T.copy())}
        return {f"{stem}.{t}": v.contiguous() for t, v in out.items()}, plain
    return dict(quant_method="awq", bits=4, group_size=group, zero_point=True, version="gemm", modules_to_not_convert=None), pack


def fp8(rows, cols, dtype, tail, config, static=False):
    """One scale for each block of rows x cols; 0: all of them."""
    def pack(stem, w, rng):
        n, k = w.shape
        br, bc = rows or n, cols or k
        gr, gc = -(-n // br), -(-k // bc)
        top = torch.finfo(torch.float8_e4m3fn).max
        scale = np.zeros((gr, gc), np.float32)
        for i in range(gr):
            for j in range(gc):
                scale[i, j] = np.abs(w[i * br : (i + 1) * br, j * bc : (j + 1) * bc]).max() / top
        scale = torch.from_numpy(scale).to(dtype)
        wide = scale.float().repeat_interleave(br, 0)[:n].repeat_interleave(bc, 1)[:, :k]
        q = (torch.from_numpy(w) / wide).clamp(-top, top).to(torch.float8_e4m3fn)
        plain = q.float() * wide
        if rows and cols:
            from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight
            assert torch.equal(plain, _dequantize_fp8_weight(q, scale, [rows, cols], torch.float32))
        out = {f"{stem}.weight": q, f"{stem}.{tail}": scale if gr * gc > 1 else scale.reshape(())}
        if static:
            out[f"{stem}.input_scale"] = torch.tensor(0.5)
        return out, plain.numpy()
    return config, pack


def compressed(bits, group, sym, act=False):
    """The compressors of the package itself."""
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
    def pack(stem, w, rng):
        n, k = w.shape
        order = rng.permutation(np.arange(k) // group) if act else None
        codes, scale, zero, order, plain = affine(w, bits, group or k, sym, order)
        off = 2 ** (bits - 1)
        q, z = torch.from_numpy((codes - off).astype(np.int8)), torch.from_numpy((zero - off).astype(np.int8))
        out = {"weight_scale": torch.from_numpy(scale)}
        if bits == 8:
            out["weight"] = q
            if not sym:
                out["weight_zero_point"] = z
        else:
            out["weight_packed"], out["weight_shape"] = pack_to_int32(q, bits), torch.tensor([n, k])
            assert torch.equal(unpack_from_int32(out["weight_packed"], bits, torch.Size([n, k])), q)
            if not sym:
                out["weight_zero_point"] = pack_to_int32(z, bits, packed_dim=0)
            if act:
                out["weight_g_idx"] = torch.from_numpy(order.astype(np.int32))
        return {f"{stem}.{t}": v.contiguous() for t, v in out.items()}, plain
    weights = dict(num_bits=bits, type="int", symmetric=sym, strategy="group" if group else "channel", group_size=group or None)
    config = dict(quant_method="compressed-tensors", format="int-quantized" if bits == 8 else "pack-quantized",
                  config_groups={"group_0": dict(targets=["Linear"], weights=weights, input_activations=None)}, ignore=["lm_head"],
                  quantization_status="compressed", kv_cache_scheme=None)
    return config, pack


def mxfp4():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    def pack(stem, w, rng):  # w [e, k, n], as the plain checkpoint has it
        codes = rng.integers(0, 16, (w.shape[0], w.shape[2], w.shape[1] // 32, 32), dtype=np.uint8)
        blocks = torch.from_numpy(codes[..., 0::2] | codes[..., 1::2] << 4)
        scales = torch.from_numpy(rng.integers(122, 126, codes.shape[:3], dtype=np.uint8))
        plain = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        return {f"{stem}_blocks": blocks, f"{stem}_scales": scales}, plain.contiguous().numpy()
    return dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router"]), pack


BLOCKS = dict(quant_method="fp8", activation_scheme="dynamic", fmt="e4m3", weight_block_size=[32, 40])
CHANNELS = dict(quant_method="compressed-tensors", format="float-quantized", quantization_status="compressed", ignore=["lm_head"],
                config_groups={"group_0": dict(targets=["Linear"], weights=dict(num_bits=8, type="float", strategy="channel"))})
CASES = {
    "gptq-4": gptq(4, 32, True),
    "gptq-4-act": gptq(4, 32, False, act=True, minus_word=True),
    "gptq-4-v2": gptq(4, 64, False, version=2, no_g_idx=True),
    "gptq-2": gptq(2, 32, False),
    "gptq-8": gptq(8, 32, True),
    "awq-4": awq(32),
    "fp8-block": fp8(32, 40, torch.float32, "weight_scale_inv", BLOCKS),
    "fp8-channel": fp8(1, 0, torch.bfloat16, "weight_scale", CHANNELS),
    "fp8-tensor": fp8(0, 0, torch.float32, "weight_scale", dict(quant_method="fp8", activation_scheme="static"), static=True),
    "compressed-4": compressed(4, 32, False, act=True),
    "compressed-8": compressed(8, 0, False),
    "mxfp4": mxfp4(),
}


def quantized(name, key):
    if name == "mxfp4":
        return key.endswith("experts.gate_up_proj") or key.endswith("experts.down_proj")
    return "_proj.weight" in key


def make(where, name):
    seed = zlib.crc32(name.encode())
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    settings, pack = CASES[name]
    config = AutoConfig.for_model("gpt_oss", **GPT_OSS) if name == "mxfp4" else AutoConfig.for_model("llama", **LLAMA)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for key, p in model.named_parameters():
        noise = 0.2 * torch.randn(p.shape)
        p.data.copy_((1 + noise if p.dim() == 1 and "norm" in key else noise).bfloat16().float())
    stored, plain = {}, {}
    for key, w in model.state_dict().items():
        if quantized(name, key):
            parts, value = pack(key.removesuffix(".weight"), w.numpy(), rng)
            stored.update(parts)
            w.copy_(torch.from_numpy(value))
            plain[key] = w.clone()
        else:
            stored[key] = w.bfloat16()
            plain[key] = w.clone()
    path = os.path.join(where, name)
    os.makedirs(os.path.join(path, "plain"), exist_ok=True)
    save_file(stored, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    save_file(plain, os.path.join(path, "plain", "model.safetensors"), metadata={"format": "pt"})
    text = config.to_dict()
    text["architectures"] = ["GptOssForCausalLM" if name == "mxfp4" else "LlamaForCausalLM"]
    for sub, extra in (("plain", {}), (".", {"quantization_config": settings})):
        with open(os.path.join(path, sub, "config.json"), "w") as f:
            json.dump({**text, **extra}, f, indent=1)
    ids = [1] + torch.randint(3, VOCAB - 3, (PROMPT - 1,)).tolist()
    prompt, out, rows = ids[:], [], []
    with torch.no_grad():
        first = model(torch.tensor([ids])).logits[0].float()
        for i in range(DECODE):
            out.append(int((first[-1] if i == 0 else rows[-1]).argmax()))
            rows.append(model(torch.tensor([prompt + out])).logits[0, -1].float())
    save_file({"prompt_logits": first.contiguous(), "decode_logits": torch.stack(rows)}, os.path.join(path, "golden.safetensors"))
    with open(os.path.join(path, "golden.json"), "w") as f:
        json.dump(dict(model=name, prompt_ids=prompt, greedy_ids=out), f)
    size = sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(path) for f in files)
    print(f"{name}: logits std {first.std():.2f}, {size // 1000} KB", flush=True)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    for n in sys.argv[2:] or CASES:
        make(sys.argv[1], n)
