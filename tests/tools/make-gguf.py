#!/usr/bin/env python3
"""Makes the GGUF files of tests/gguf, by llama.cpp's own converter: make-gguf.py LLAMA_CPP TESTS DELTA CHECKPOINT...

LLAMA_CPP is a source tree of llama.cpp (with convert_hf_to_gguf.py), TESTS is tests/gguf, DELTA build/tests/gguf_delta; a
CHECKPOINT is a directory of tests/models or of the shared models. Needs torch and transformers 5.24; the results are committed,
the tests need no Python. Tensors stay float32. Not the converter's are:

  - the vocabulary, since the checkpoints have none that it knows: tokens "a", "b", "ab", "t3"... are written
  - keys of config.json that transformers spells in another way today than the converter reads them (old_spelling)
  - stablelm's norms of each head, whose stacking the converter forgets to run

VARIANTS are checkpoints whose configuration holds something that GGUF files do not: the file is made of the same weights without
it, with logits of transformers of its own.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

root, tests, delta = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
sys.path.insert(0, str(root / "gguf-py"))
sys.path.insert(0, str(root))
import gguf  # noqa: E402
import torch  # noqa: E402
from conversion import get_model_class  # noqa: E402
from conversion.base import ModelBase, ModelType, get_model_architecture  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

VARIANTS = {
    "gemma2": {"query_pre_attn_scalar": 32},
    "gemma3": {"query_pre_attn_scalar": 32},
    "mistral-window": {"sliding_window": None},
    "starcoder2": {"sliding_window": None},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0], "no_rope_layer_interval": 4},
    "olmoe": {"clip_qkv": None},
    "deepseek-v3-yarn": {"rope_interleave": True, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32,
        "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}},
}
DECODE = 24


def set_vocab(self):
    n = self.hparams.get("vocab_size") or self.hparams["text_config"]["vocab_size"]
    w = self.gguf_writer
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(["a", "b", "ab"] + [f"t{i}" for i in range(3, n)])
    w.add_token_types([gguf.TokenType.NORMAL] * n)
    w.add_token_merges(["a b"])


def old_spelling(config):
    kind, rope = config["model_type"], config.get("rope_parameters") or {}
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if kind == "gpt2":
        config.setdefault("n_ctx", config["n_positions"])
    if kind in ("gpt_neox", "phi", "stablelm", "cohere2"):
        config.setdefault("rotary_pct", share)
        config.setdefault("partial_rotary_factor", share)
        config.setdefault("rotary_emb_base", rope.get("rope_theta", 10000))
    if kind == "falcon":
        config.setdefault("n_head", config["num_attention_heads"])
        if config.get("multi_query") and not config.get("new_decoder_architecture"):
            config["num_kv_heads"] = 1
    if kind in ("bloom", "glm"):
        config.setdefault("seq_length", config.get("max_position_embeddings", 2048))
    if kind == "glm":
        config.setdefault("layernorm_epsilon", config["rms_norm_eps"])
    if kind == "mpt":
        config["architectures"] = ["MPTForCausalLM"]
    if kind == "deepseek_v3":
        config.setdefault("scoring_func", "sigmoid")
    return config


load_hparams = ModelBase.load_hparams
ModelBase.load_hparams = staticmethod(lambda *a, **k: old_spelling(load_hparams(*a, **k)))


def convert(path, out):
    hparams = ModelBase.load_hparams(path, False)
    cls = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    inner = cls.modify_tensors

    def modify_tensors(self, *args):
        rest = yield from inner(self, *args)
        if rest is not None:
            yield from rest

    if hparams["model_type"] == "stablelm":
        cls.modify_tensors = modify_tensors
    cls.set_vocab = set_vocab
    with torch.inference_mode():
        cls(path, gguf.LlamaFileType.ALL_F32, out, model_name=path.name).write()


def golden(checkpoint, prompt, out):
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        first = model(torch.tensor([prompt])).logits[0].float()
        ids, rows = [], []
        for i in range(DECODE):
            ids.append(int((first[-1] if i == 0 else rows[-1]).argmax()))
            rows.append(model(torch.tensor([prompt + ids])).logits[0, -1].float())
    save_file({"prompt_logits": first.contiguous(), "decode_logits": torch.stack(rows)}, str(out / "golden.safetensors"))
    with open(out / "golden.json", "w") as f:
        json.dump(dict(model=out.name, prompt_ids=prompt, greedy_ids=ids), f)


def make(path, tmp):
    out, source = tests / path.name, path
    out.mkdir(parents=True, exist_ok=True)
    if path.name in VARIANTS:
        source = tmp / path.name
        shutil.copytree(path, source, ignore=shutil.ignore_patterns("golden*"))
        config = json.loads((path / "config.json").read_text())
        config.update(VARIANTS[path.name])
        (source / "config.json").write_text(json.dumps(config))
        # gemma3's converter leaves out rows of the embedding that have no token
        words = {str(i): i for i in range(config["vocab_size"])}
        (source / "tokenizer.json").write_text(json.dumps(dict(model=dict(vocab=words), added_tokens=[])))
        golden(source, json.loads((path / "golden.json").read_text())["prompt_ids"], out)
    convert(source, tmp / "model.gguf")
    weights = sorted(str(p) for p in path.glob("model*.safetensors"))
    subprocess.run([delta, "make", str(tmp / "model.gguf"), str(out / "gguf.delta"), *weights], check=True)


for p in sys.argv[4:]:
    with tempfile.TemporaryDirectory() as tmp:
        try:
            make(Path(p).resolve(), Path(tmp))
            print("ok  ", p)
        except BaseException as e:  # the next ones may do
            traceback.print_exc(file=sys.stderr)
            print("FAIL", p, type(e).__name__, str(e)[:200])
        sys.stdout.flush()
