#!/usr/bin/env python3
"""Makes the adapters of tests/lora: make-lora.py TESTS SHARED [NAME...]

Run once, with torch, transformers, peft and safetensors; the results are committed, the tests need no Python. NAME/ is an adapter
as PEFT saves it; base.txt names its base checkpoint; golden.* are the logits in float32 that PEFT gives with it (and with those that
`with` names before it, each with its scale).
"""
import json, os, shutil, sys, zlib
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

PROMPT, DECODE = 24, 8
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# name: (base below tests/ or shared/, settings, adapters merged before it: (name, scale), its own scale)
CASES = {
    "llama": ("data/llama-gqa", dict(r=4, lora_alpha=10, target_modules=LINEAR), [], 1),
    "llama-more": ("data/llama-gqa", dict(r=2, lora_alpha=3, use_rslora=True, target_modules=["q_proj", "down_proj", "embed_tokens", "lm_head"],
                                          rank_pattern={"down_proj": 5}, alpha_pattern={"layers.1.mlp.down_proj": 7, "q_proj": 4}),
                   [("llama", 0.5)], 1.5),
    "phi3": ("models/phi3-longrope", dict(r=3, lora_alpha=6, target_modules=["qkv_proj", "gate_up_proj", "o_proj"]), [], 1),
    "deepseek": ("models/deepseek-v2-lite", dict(r=3, lora_alpha=6, target_modules=["kv_b_proj", "kv_a_proj_with_mqa", "q_proj", "o_proj"]), [], 1),
    "gpt2": ("shared/gpt2", dict(r=3, lora_alpha=6, fan_in_fan_out=True, target_modules=["c_attn", "c_proj", "c_fc"]), [], 1),
}


def load(base):
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()


def merge(model, path, scale):
    model = PeftModel.from_pretrained(model, path)
    for module in model.modules():
        if isinstance(getattr(module, "scaling", None), dict):
            module.scaling["default"] *= scale
    return model


def make(tests, shared, name):
    where, settings, before, scale = CASES[name]
    base = os.path.join(shared, "models", where[7:]) if where.startswith("shared/") else os.path.join(tests, where)
    torch.manual_seed(zlib.crc32(name.encode()))
    model = get_peft_model(load(base), LoraConfig(task_type="CAUSAL_LM", **settings))
    for key, p in model.named_parameters():
        if "lora_" in key:
            p.data.copy_((0.15 * torch.randn(p.shape)).bfloat16().float())
    path = os.path.join(tests, "lora", name)
    shutil.rmtree(path, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(path, save_embedding_layers=False)
    if os.path.exists(os.path.join(path, "README.md")):
        os.remove(os.path.join(path, "README.md"))
    with open(os.path.join(path, "adapter_config.json")) as f:
        config = json.load(f)
    config["base_model_name_or_path"] = where
    config["target_modules"] = sorted(config["target_modules"])
    with open(os.path.join(path, "adapter_config.json"), "w") as f:
        json.dump(config, f, indent=1, sort_keys=True)
    with open(os.path.join(path, "base.txt"), "w") as f:
        f.write(where + "\n")
    model = load(base)
    for other, s in before:
        model = merge(model, os.path.join(tests, "lora", other), s).merge_and_unload()
    model = merge(model, path, scale).eval()
    vocab = model.config.vocab_size
    ids = [1] + torch.randint(3, vocab - 3, (PROMPT - 1,)).tolist()
    prompt, out, rows = ids[:], [], []
    with torch.no_grad():
        first = model(input_ids=torch.tensor([ids])).logits[0].float()
        for i in range(DECODE):
            out.append(int((first[-1] if i == 0 else rows[-1]).argmax()))
            rows.append(model(input_ids=torch.tensor([prompt + out])).logits[0, -1].float())
        plain = load(base)(torch.tensor([ids])).logits[0].float()
    save_file({"prompt_logits": first.contiguous(), "decode_logits": torch.stack(rows)}, os.path.join(path, "golden.safetensors"))
    with open(os.path.join(path, "golden.json"), "w") as f:
        json.dump(dict(model=name, prompt_ids=prompt, greedy_ids=out), f)
    size = sum(os.path.getsize(os.path.join(path, f)) for f in os.listdir(path))
    print(f"{name}: logits std {first.std():.2f}, the adapter changes them by {(first - plain).std():.2f}, {size // 1000} KB", flush=True)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    for n in sys.argv[3:] or CASES:
        make(sys.argv[1], sys.argv[2], n)
