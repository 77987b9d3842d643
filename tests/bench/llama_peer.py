#!/usr/bin/env python3
"""llama.cpp, through the PyPI package llama-cpp-python, as a peer of bench-model.

  llama_peer.py MODEL.gguf                       answers bench-model --peer: one line of JSON in, one out
  llama_peer.py MODEL.gguf -p 512 -d 0 -t 2      measures once and prints tokens per second (-n 64: decode)
  llama_peer.py MODEL.gguf --quantize q8_0 OUT   writes OUT with its weights in another type

--kv TYPES: KV types to try; the fastest counts (f16, f32, q8_0, bf16; "same" = the one of the question). Flash attention
is on, batch and micro-batch are llama-bench's (2048 and 512). The depth is filled once and kept.
"""
import argparse
import json
import random
import sys
import time

import llama_cpp as L

KV = {"f32": 0, "f16": 1, "q8_0": L.GGML_TYPE_Q8_0, "int8": L.GGML_TYPE_Q8_0, "bf16": 30}
FTYPE = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "bf16": 32}


@L.llama_log_callback
def quiet(level, text, user):
    if level == 4:  # errors only
        sys.stderr.write(text.decode(errors="replace"))


class Context:
    """One context with a filled sequence."""

    def __init__(self, model, kv, threads, size):
        p = L.llama_context_default_params()
        p.n_ctx = size
        p.n_batch, p.n_ubatch = 2048, 512
        p.n_threads = p.n_threads_batch = threads
        p.type_k = p.type_v = KV[kv]
        p.flash_attn_type = 1
        p.no_perf = True
        self.size = size
        self.ctx = L.llama_init_from_model(model, p)
        if not self.ctx:
            sys.exit(f"llama.cpp makes no context of {size} tokens with {kv}")
        self.memory = L.llama_get_memory(self.ctx)
        self.vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
        self.filled = 0
        self.run(4, True)  # warm up
        self.keep(0)

    def close(self):
        L.llama_free(self.ctx)

    def keep(self, n):
        L.llama_memory_seq_rm(self.memory, 0, n, -1)
        self.filled = n

    def run(self, n, one_by_one):
        """Seconds for n random tokens behind what is there."""
        ids = [(L.llama_token * n)(*[random.randrange(self.vocab) for _ in range(n)])]
        step = 1 if one_by_one else 2048
        batches = [(L.llama_token * min(step, n - i))(*ids[0][i : i + step]) for i in range(0, n, step)]
        start = time.perf_counter()
        for b in batches:
            if L.llama_decode(self.ctx, L.llama_batch_get_one(b, len(b))) != 0:
                sys.exit(f"llama_decode failed at {self.filled} tokens")
        L.llama_synchronize(self.ctx)
        self.filled += n
        return time.perf_counter() - start

    def measure(self, decode, tokens, depth):
        if self.filled > depth:
            self.keep(depth)
        elif self.filled < depth:
            self.run(depth - self.filled, False)
        return tokens / self.run(tokens, decode)


class Peer:
    def __init__(self, path, kv):
        p = L.llama_model_default_params()
        p.n_gpu_layers = 0
        self.model = L.llama_model_load_from_file(path.encode(), p)
        if not self.model:
            sys.exit(f"llama.cpp does not load {path}")
        self.kv = kv
        self.contexts = {}

    def context(self, kv, threads, size):
        key = (kv, threads)
        c = self.contexts.get(key)
        if not c or c.size < size:
            if c:
                c.close()
            c = self.contexts[key] = Context(self.model, kv, threads, -(-size // 256) * 256)
        return c

    def ask(self, q):
        best = None
        for kv in self.kv:
            kv = q.get("kv", "f16") if kv == "same" else kv
            c = self.context(kv, q["threads"], q["depth"] + q["tokens"])
            rate = c.measure(q["test"] == "decode", q["tokens"], q["depth"])
            if best is None or rate > best["tokens_per_s"]:
                best = {"tokens_per_s": rate, "kv": kv}
        return best


def quantize(src, ftype, dst):
    p = L.llama_model_quantize_default_params()
    p.ftype = FTYPE[ftype]
    p.allow_requantize = True
    p.nthread = 2
    if L.llama_model_quantize(src.encode(), dst.encode(), p) != 0:
        sys.exit(f"llama.cpp does not quantize {src} to {ftype}")


def main():
    a = argparse.ArgumentParser(usage=__doc__)
    a.add_argument("model")
    a.add_argument("-p", type=int, default=0)
    a.add_argument("-n", type=int, default=0)
    a.add_argument("-d", type=int, default=0)
    a.add_argument("-t", type=int, default=2)
    a.add_argument("--kv", default="f16")
    a.add_argument("--quantize", nargs=2, metavar=("TYPE", "OUT"))
    o = a.parse_args()
    L.llama_log_set(quiet, None)
    L.llama_backend_init()
    if o.quantize:
        quantize(o.model, *o.quantize)
        return
    peer = Peer(o.model, o.kv.split(","))
    if o.p or o.n:
        for test, n in (("prompt", o.p), ("decode", o.n)):
            if n:
                print("%.3f" % peer.ask({"test": test, "tokens": n, "depth": o.d, "threads": o.t})["tokens_per_s"])
        return
    for line in sys.stdin:
        print(json.dumps(peer.ask(json.loads(line))), flush=True)


main()
