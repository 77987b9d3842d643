#!/usr/bin/env python3
"""What PyTorch reaches on the same device in the shapes of gpu_bench: matmul in bf16 and scaled_dot_product_attention in f16.

Prints lines as gpu_bench does ({"name", "value", "unit"}, names beginning with "torch: "), or one {"name": "torch", "skip": why}.
--dry: tiny shapes on the CPU, to try the program. Test tooling: nothing here needs it.
"""
import json
import statistics
import sys
import time

dry = "--dry" in sys.argv[1:]


def skip(why):
    print(json.dumps({"name": "torch", "skip": why}))
    sys.exit(0)


try:
    import torch
    import torch.nn.functional as F
except Exception as e:  # an installation may be broken in many ways
    skip(f"no PyTorch: {type(e).__name__}")
if not dry and not torch.cuda.is_available():
    skip("PyTorch sees no CUDA device")
device = "cpu" if dry else "cuda"


def seconds(run):
    """Median of 7 rounds of about 10 ms; run(turn) takes the turn's copy of its data."""
    if dry:
        start = time.perf_counter()
        run(0)
        return time.perf_counter() - start

    def round_of(turns):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record()
        for i in range(turns):
            run(i)
        b.record()
        b.synchronize()
        return a.elapsed_time(b) * 1e-3 / turns

    round_of(3)
    turns = max(2, min(2000, int(10e-3 / round_of(3)) + 1))
    return statistics.median(round_of(turns) for _ in range(7))


def tell(name, value, unit):
    print(json.dumps({"name": f"torch: {name}", "value": value, "unit": unit}), flush=True)


def copies(n_bytes, most):
    return 1 if dry else max(1, min(most, (256 << 20) // n_bytes + 1))


def matmuls():
    rows, k = (64, 128) if dry else (14336, 4096)
    n = copies(rows * k * 2, 8)
    w = [torch.randn(rows, k, dtype=torch.bfloat16, device=device) for _ in range(n)]
    for tokens in (1, 20) if dry else (1, 8, 64, 512, 2048):
        x = torch.randn(tokens, k, dtype=torch.bfloat16, device=device)
        s = seconds(lambda i: F.linear(x, w[i % n]))
        name = f"linear bf16 {rows} x {k}, {tokens} tokens"
        if tokens <= 64:
            tell(name, rows * k * 2 / s * 1e-9, "GB/s")
        else:
            tell(name, 2 * rows * k * tokens / s * 1e-12, "TFLOP/s")


def attend(q, k, v, causal):
    try:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    except TypeError:  # before 2.5
        group = q.shape[1] // k.shape[1]
        return F.scaled_dot_product_attention(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), is_causal=causal)


def attention():
    heads, kv_heads, dim = (8, 2, 64) if dry else (32, 8, 128)

    def random(n, h, rows):
        return [torch.randn(1, h, rows, dim, dtype=torch.float16, device=device) for _ in range(n)]

    for length in (40,) if dry else (1024, 8192, 32768, 131072):
        n_bytes = 2 * kv_heads * length * dim * 2
        n = copies(n_bytes, 64)
        k, v, q = random(n, kv_heads, length), random(n, kv_heads, length), random(1, heads, 1)[0]
        s = seconds(lambda i: attend(q, k[i % n], v[i % n], False))
        tell(f"attention, decode 1 x {length}, f16", n_bytes / s * 1e-9, "GB/s")
    for length in (24,) if dry else (512, 2048, 4096):
        k, v, q = random(1, kv_heads, length)[0], random(1, kv_heads, length)[0], random(1, heads, length)[0]
        s = seconds(lambda i: attend(q, k, v, True))
        tell(f"attention, prompt {length}, f16", 2 * length * (length + 1) * heads * dim / s * 1e-12, "TFLOP/s")


with torch.inference_mode():
    try:
        matmuls()
        attention()
    except RuntimeError as e:  # out of memory, or no kernel for this device
        skip(f"PyTorch failed: {str(e).splitlines()[0][:200]}")
