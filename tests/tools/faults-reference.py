"""Computes the ids that t_faults.c and t_faults_run.c expect, with torch and transformers 5.24 (float32, CPU).

    python faults-reference.py

Prints a line a case. The models are drawn from seeds, as tests/tiny_kit.h draws them; weights are wide, so that a wrong
rotation or a bias that is missing changes the ids at once. Every position is computed anew (no KV cache).
"""
import os

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import LlamaConfig, LlamaForCausalLM

P = [1, 5, 9, 33, 12, 7, 40, 21]


def long_prompt(n):
    return [(i * 7 + 3) % 64 for i in range(n)]


def draw(model, seed, std):
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.randn(p.shape, generator=g)
            p.copy_(1 + 0.1 * x if "norm" in name else std * x)
    return model.float().eval()


def tiny(seed=0, std=0.25, **changes):
    config = dict(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                  max_position_embeddings=256, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, rms_norm_eps=1e-5)
    return draw(LlamaForCausalLM(LlamaConfig(**{**config, **changes})), seed, std)


def show(name, model, prompt, n=16, penalty=1.0):
    ids, gap = list(prompt), float("inf")
    with torch.no_grad():
        for _ in range(n):
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1].clone()
            seen = torch.tensor(sorted(set(ids)))
            logits[seen] = torch.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
            best = logits.topk(2).values
            gap = min(gap, float(best[0] - best[1]))
            ids.append(int(logits.argmax()))
    print(f"{name}: {' '.join(map(str, ids[len(prompt):]))} (smallest gap {gap:.3f})")


def rope(**members):
    return dict(max_position_embeddings=512, rope_parameters=dict(rope_theta=10000.0, factor=8.0, original_max_position_embeddings=64, **members))


plain = tiny()
for prompt in [P, [5]] + [long_prompt(n) for n in (15, 16, 17, 32, 33)]:
    show(f"T0, {len(prompt)} ids", plain, prompt)
show("B16 penalty 1.3", plain, P, 12, 1.3)
tied = tiny(tie_word_embeddings=True)
show("B01 tied", tied, P, 12)
with torch.no_grad():
    tied.lm_head.weight = torch.nn.Parameter(0.25 * torch.randn(64, 64, generator=torch.Generator().manual_seed(9)))
show("B01 tied, and another head", tied, P, 12)
show("B02 base 500000", tiny(rope_parameters=dict(rope_type="default", rope_theta=500000.0)), P)
show("B03", tiny(head_dim=24, num_key_value_heads=1, attention_bias=True, mlp_bias=True), P, 12)
llama3 = tiny(**rope(rope_type="llama3", low_freq_factor=1.0, high_freq_factor=4.0))
show("B04 llama3, 300 ids", llama3, long_prompt(300), 8)
show("B04 llama3, 8 ids", llama3, P, 8)
show("B04 yarn, 300 ids", tiny(**rope(rope_type="yarn")), long_prompt(300), 8)
padded = tiny(vocab_size=67)
with torch.no_grad():
    h = padded.model(torch.tensor([P])).last_hidden_state[0, -1]
    padded.lm_head.weight.copy_(-0.5 * h / h.norm() + 0.02 * torch.randn(67, 64, generator=torch.Generator().manual_seed(5)))
show("B06 negative logits", padded, P, 2)
show("B07", tiny(vocab_size=67, hidden_size=96, num_attention_heads=6, num_key_value_heads=3, head_dim=16), P, 12)
short = tiny(max_position_embeddings=32)
show("B18, 32 ids", short, long_prompt(32), 1)
show("B18, 30 ids", short, long_prompt(30), 3)
