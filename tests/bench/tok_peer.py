"""tok_peer.py - what tests/bench/tokenizers.sh runs; see there."""
import argparse
import ctypes
import glob
import json
import os
import random
import subprocess
import sys
import tempfile
import time

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SCRIPTS = [(0x4E00, 0x5FFF, 1, 6), (0x3041, 0x3094, 2, 7), (0xAC00, 0xB800, 1, 4), (0x430, 0x44F, 2, 10), (0x3B1, 0x3C9, 2, 9),
           (0x627, 0x64A, 2, 8), (0x5D0, 0x5EA, 2, 7), (0x915, 0x939, 2, 6), (0xE01, 0xE2E, 3, 12), (0xE0, 0xFF, 1, 4), (0x1F600, 0x1F64F, 1, 2)]


def mixed_text(root, size):
    """Prose and code of the tree, and words of many scripts; the same text for the same tree."""
    r = random.Random(1)
    files = sorted(glob.glob(f"{root}/README.md") + glob.glob(f"{root}/docs/*") + glob.glob(f"{root}/lib/**/*.[ch]", recursive=True)
                   + glob.glob(f"{root}/formats/*.c") + glob.glob(f"{root}/tests/*.sh"))
    lines = [line for f in files for line in open(f, encoding="utf-8", errors="replace")]
    words = ["".join(chr(r.randint(a, b)) for _ in range(r.randint(m, n))) for a, b, m, n in SCRIPTS for _ in range(400)]
    out, n = [], 0
    while n < size:
        if r.random() < 0.7:
            at = r.randrange(len(lines))
            part = "".join(lines[at:at + r.randint(1, 8)])
        else:
            part = " ".join(r.choice(words) for _ in range(r.randint(3, 25))) + r.choice([".\n", "\n", "! ", "\u3002", " 2024, 31415.\n"])
        out.append(part)
        n += len(part.encode())
    return "".join(out).encode()[:size].decode(errors="ignore")


def sp_bpe(texts, size):
    """As SentencePiece converters write it: spaces become U+2581, no pre-tokenizer, bytes for what is missing."""
    base = Tokenizer(models.BPE(unk_token="<unk>"))
    base.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    base.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False, limit_alphabet=2000))
    whole = json.loads(base.to_str())
    whole["model"].update(byte_fallback=True, fuse_unk=True)
    whole["added_tokens"] = [t for t in whole["added_tokens"] if t["id"] < 3]
    t = Tokenizer.from_str(json.dumps(whole))
    t.pre_tokenizer = None
    t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return t


def trained(text, directory, size=16000):
    texts = [text[i:i + 4000] for i in range(0, len(text), 4000)]
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    u = Tokenizer(models.Unigram())
    u.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    u.pre_tokenizer, u.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    u.train_from_iterator(texts, trainers.UnigramTrainer(vocab_size=size, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False))
    w = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    w.normalizer, w.pre_tokenizer, w.decoder = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    w.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=size, special_tokens=["[UNK]"], show_progress=False))
    paths = []
    for name, tok in (("byte-level BPE, trained", t), ("SentencePiece BPE, trained", sp_bpe(texts, size)), ("Unigram, trained", u), ("WordPiece, trained", w)):
        path = f"{directory}/{name}.json"
        tok.save(path)
        paths.append((name, path))
    return paths


class Ours:
    """libtessera through its C interface."""

    def __init__(self, build, path, directory):
        source, out = f"{directory}/source", f"{directory}/m.tess"
        os.makedirs(source, exist_ok=True)
        with open(path, "rb") as f, open(f"{source}/tokenizer.json", "wb") as g:
            g.write(f.read())
        subprocess.run([f"{build}/bin/convert-hf", source, "-o", out, "--force"], check=True, stdout=subprocess.DEVNULL)
        self.lib = ctypes.CDLL(f"{build}/libtessera.so")
        params, self.model, error = (ctypes.c_uint32 * 16)(), ctypes.c_void_p(), ctypes.create_string_buffer(512)
        self.lib.tess_model_params_init_(params, ctypes.c_size_t(64))
        params[1] = 1  # TESS_MODEL_TOKENIZER_ONLY
        if self.lib.tess_model_open(out.encode(), params, ctypes.byref(self.model), error) < 0:
            sys.exit(f"{path}: the tokenizer cannot be opened")
        self.room = (ctypes.c_int32 * 4000000)()

    def encode(self, data):
        n = ctypes.c_size_t()
        start = time.process_time()
        status = self.lib.tess_tokenize(self.model, data, ctypes.c_size_t(len(data)), 0, self.room, ctypes.c_size_t(len(self.room)), ctypes.byref(n), None)
        seconds = time.process_time() - start
        if status < 0:
            sys.exit(f"tess_tokenize: status {status}")
        return seconds, self.room[:n.value]


class Theirs:
    def __init__(self, path):
        self.tok = Tokenizer.from_file(path)
        self.encode_one = getattr(self.tok, "encode_batch_fast", self.tok.encode_batch)

    def encode(self, data):
        text = data.decode()
        start = time.process_time()
        ids = self.encode_one([text], add_special_tokens=False)[0].ids
        return time.process_time() - start, ids


def best_of(ours, theirs, data, repeat):
    a, b = [], []
    for _ in range(repeat):
        s, ids = ours.encode(data)
        a.append(s)
        s, want = theirs.encode(data)
        b.append(s)
    if ids != want:
        sys.exit(f"the ids differ: {len(ids)} of ours, {len(want)} of theirs")
    return min(a), min(b), len(ids)


def main():
    p = argparse.ArgumentParser()
    for name in ("--build", "--root", "--shared"):
        p.add_argument(name)
    p.add_argument("--repeat", type=int, default=5)
    p.add_argument("--mb", type=float, default=1.0)
    p.add_argument("--only")
    p.add_argument("files", nargs="*")
    o = p.parse_args()
    text = mixed_text(o.root, int(o.mb * 1e6))
    word = "".join(random.Random(2).choice("etaoinshrdlu") for _ in range(len(text.encode()))).encode()
    print(f"{'tokenizer':32} {'ids':>7} {'MB/s':>7} {'theirs':>7} {'ratio':>6}   one word: {'MB/s':>6} {'4x the word takes':>18}")
    with tempfile.TemporaryDirectory() as d:
        paths = [(f, f) for f in o.files] or [(os.path.basename(os.path.dirname(f)), f) for f in sorted(glob.glob(f"{o.shared}/tokenizers/*/tokenizer.json"))] + trained(text, d)
        for name, path in [x for x in paths if not o.only or o.only in x[0]]:
            ours, theirs = Ours(o.build, path, d), Theirs(path)
            a, b, n = best_of(ours, theirs, text.encode(), o.repeat)
            whole = min(ours.encode(word)[0] for _ in range(3))
            quarter = min(ours.encode(word[:len(word) // 4])[0] for _ in range(3))
            mb = len(text.encode()) / 1e6
            print(f"{name[-32:]:32} {n:7} {mb / a:7.1f} {mb / b:7.1f} {b / a:6.2f}             {mb / whole:6.1f} {whole / quarter:17.1f}x", flush=True)


main()
