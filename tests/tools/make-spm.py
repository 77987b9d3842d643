#!/usr/bin/env python3
"""Makes tests/data/spm: make-spm.py DIR

Run once, with sentencepiece and transformers 5.24; the results are committed, the tests need no Python. NAME.model is a small
model, trained on the texts of make-tokenizers.py; NAME.json holds the tokenizer_config.json beside it, and what transformers makes of
the two: ids without and with special ones, and what these decode to. "plain" says that SentencePiece itself gives the same ids;
where it does not, the reason is one of those that NOT_SENTENCEPIECE lists, and its ids are the case's "sentencepiece".
"""
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path

import sentencepiece as spm
from transformers import AddedToken, TokenizersBackend

here = Path(__file__).parent
spec = importlib.util.spec_from_file_location("make_tokenizers", here / "make-tokenizers.py")
base = importlib.util.module_from_spec(spec)
spec.loader.exec_module(base)

USER = ["<tool>", "[x]", "(.*)"]
TEXTS = base.TEXTS + ["a<tool>b", " <tool> [x]", "<tool>", "x[x]<tool>[x", "\u2581<tool>\u2581", "<ctl>", "a<ctl> b", "hello <ctl><tool>", "(.*)+",
                      "    four    spaces", "a\u2581\u2581b", "<0x41>", "\n\n\nab\n\n", "word<ctl>  ", "<s>a</s>"]
EXACT = dict(normalization_rule_name="identity", remove_extra_whitespaces=False)
MODELS = {
    # as Llama 2, Mistral
    "bpe-llama": (dict(model_type="bpe", byte_fallback=True, split_digits=True, **EXACT), dict(add_bos_token=True)),
    # as Gemma: no prefix, user-defined pieces of white space
    "bpe-gemma": (dict(model_type="bpe", byte_fallback=True, add_dummy_prefix=False, **EXACT, allow_whitespace_only_pieces=True,
                       user_defined_symbols=["<tool>", "\n\n", "\u2581\u2581", "\u2581\u2581\u2581\u2581", "<ctl>"], pad_id=0, eos_id=1, bos_id=2, unk_id=3,
                       pad_piece="<pad>"), dict(add_bos_token=True)),
    # what the trainer does by itself
    "bpe-plain": (dict(model_type="bpe", rules=True, user_defined_symbols=USER, control_symbols=["<ctl>"]), dict(add_bos_token=True, add_eos_token=True)),
    "bpe-first": (dict(model_type="bpe", byte_fallback=True, control_symbols=["<ctl>"], **EXACT), dict(legacy=False, add_bos_token=False)),
    "unigram-plain": (dict(model_type="unigram", normalization_rule_name="nmt_nfkc", control_symbols=["<ctl>"]), dict(add_bos_token=False, add_eos_token=True)),
    "unigram-user": (dict(model_type="unigram", rules=True, user_defined_symbols=USER, control_symbols=["<ctl>"], byte_fallback=True, bos_id=-1),
                     dict(add_bos_token=False)),
    # extra tokens behind the pieces, a renamed piece
    "bpe-more": (dict(model_type="bpe", byte_fallback=True, control_symbols=["<ctl>", "<slot>"], **EXACT), dict(add_bos_token=True, more=True)),
}


def train(d, name, options):
    options = dict(options)
    if options.pop("rules", False):
        with open(f"{d}/rules.tsv", "w") as f:
            for a, b in base.RULES:
                f.write(" ".join("%X" % ord(c) for c in a) + "\t" + " ".join("%X" % ord(c) for c in b) + "\n")
        options["normalization_rule_tsv"] = f"{d}/rules.tsv"
    with open(f"{d}/text", "w") as f:
        f.write("\n".join(t.replace("\n", " ").replace("\x00", " ") for t in base.TEXTS if len(t) < 200))
    spm.SentencePieceTrainer.train(input=f"{d}/text", model_prefix=f"{d}/{name}", vocab_size=560 if options.get("byte_fallback") else 330,
                                   hard_vocab_limit=False, minloglevel=2, character_coverage=0.98, **options)
    return Path(f"{d}/{name}.model").read_bytes()


def main(where):
    os.makedirs(where, exist_ok=True)
    for name, (options, config) in MODELS.items():
        with tempfile.TemporaryDirectory() as d:
            data, config = train(d, name, options), dict(config)
            p = spm.SentencePieceProcessor(model_proto=data)
            more = config.pop("more", False)
            if more:
                n = p.get_piece_size()
                entry = lambda text, **k: {**dict(content=text, lstrip=False, rstrip=False, normalized=False, single_word=False, special=True), **k}
                config["added_tokens_decoder"] = {str(p.piece_to_id("<slot>")): entry("<renamed>"), str(n): entry("<|im_start|>"),
                                                  str(n + 1): entry("<tool>", special=False, rstrip=True), str(n + 2): entry("<mask>", lstrip=True)}
                config["pad_token"] = "<mask>"
                config["eos_token"] = "<|im_start|>"
            os.makedirs(f"{d}/t")
            Path(f"{d}/t/tokenizer.model").write_bytes(data)
            Path(f"{d}/t/tokenizer_config.json").write_text(json.dumps(dict(config, tokenizer_class="TokenizersBackend")))
            t = TokenizersBackend.from_pretrained(f"{d}/t")
            cases, odd = [], 0
            special = set(t.all_special_tokens) | set(config.get("added_tokens_decoder", {}) and ["<tool>"])
            for text in TEXTS:
                ids, full = (t.encode(text, add_special_tokens=s) for s in (False, True))
                case = dict(text=text, ids=ids, ids_special=full, decoded=t.decode(full, skip_special_tokens=True), decoded_special=t.decode(full))
                own = p.encode(text)
                if own != ids and not any(s in text for s in special):
                    case["sentencepiece"] = own
                    odd += 1
                    print(name, repr(text)[:60], [p.id_to_piece(i) for i in own][:40], [t.convert_ids_to_tokens(i) for i in ids][:40])
                cases.append(case)
            Path(f"{where}/{name}.model").write_bytes(data)
            Path(f"{where}/{name}.json").write_text(json.dumps(dict(config=config, cases=cases), separators=(",", ":")))
            print(name, len(data), "bytes", p.get_piece_size(), "pieces", odd, "cases differ from SentencePiece")


if __name__ == "__main__":
    main(sys.argv[1])
