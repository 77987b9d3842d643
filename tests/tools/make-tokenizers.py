#!/usr/bin/env python3
"""Makes tests/data/tok: make-tokenizers.py DIR

Run once, with tokenizers 0.23 and sentencepiece (for a small charsmap); the results are committed, the tests need no Python. Each
file holds a small tokenizer.json, trained on the texts below, and what it makes of them: ids without and with special ones, and
what these decode to, special tokens left out and kept.
"""
import json, os, sys, tempfile
import sentencepiece as spm
import sentencepiece.sentencepiece_model_pb2 as pb
from tokenizers import AddedToken, Regex, Tokenizer, decoders as D, models as M, normalizers as N, pre_tokenizers as P
from tokenizers import processors as PR, trainers as T

TEXTS = [
    "", " ", "  ", "\n", "\r\n", "a", " a", "a ", "  two  spaces  ", "The quick brown fox jumps over the lazy dog.", "Hello, world! It's 2024.",
    "I'LL pay 12345 €\r\n\r\n  ok", "don't can't we're they've I'm she'll he'd", "x = y[0] + foo_bar(1, -2.5e10);  // comment\n\treturn x;",
    "caf\u00e9 cafe\u0301 na\u00efve \u00c5\u212bA\u030a", "\u1100\u1161\u11a8 \uac01 \ud55c\uad6d\uc5b4", "\u0915\u093c \u0958 \u0928\u092e\u0938\u094d\u0924\u0947",
    "\u4e2d\u6587\u6d4b\u8bd5\uff0c\u5168\u89d2\u3002 \u65e5\u672c\u8a9e\u3068\u30ab\u30bf\u30ab\u30ca", "\u05e2\u05d1\u05e8\u05d9\u05ea \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0661\u0662\u0663",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0393\u03b5\u03b9\u03ac \u03a3\u03bf\u03c5 \u0391\u03a3 \u03c2", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e04\u0e23\u0e31\u0e1a \u0e01\u0e33",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd \u2764\ufe0f", "\u00bd \ufb01 \uff21 \u2460 \u33c0 \ufdfa \u2167 x\u00b2",
    "tab\there\x0bvt\x0cff\x85nel\xa0nbsp\u2028ls\u3000ideo", "zero\u200bwidth\ufeffbom\u00adshy\u2060wj", "\x00nul\x01\x1f\x7f\x8f\ufffd", "\u2581meta\u2581 \u2581\u2581 space",
    "\u0130stanbul \u0131 \u00df \u1e9e \u01c4 \u017f 'S '\u017f", "<s>hello</s> <unk> <pad> world", "a<mask> b <mask>c", "<tool>x</tool> <TOOL>", " word wordy word ", "[CLS] [SEP] [UNK] [MASK]",
    "<|endoftext|><|im_start|>user\nhi<|im_end|>", "\u0301start q\u0307\u0323 q\u0323\u0307 \u1e9b\u0323", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "....!!!!????----____",
    "1 12 123 1234 12345 123456", "http://example.org/a?b=c&d=%20#e", "MiXeD CaSe WORDS", "supercalifragilisticexpialidocious unbelievably", "``quoted'' \u201cquotes\u201d \u2018it\u2019s\u2019",
    "\ufdfa first", "\u0e33 first", "e\u0301 first", "\u00a0first", "\u2103 first", "line\n\nline\n\n\nline", "trailing   \n", "\u00bd\u2581\u00bd a\u0301\u0327b",
]
RULES = [("\u00bd", "1/2"), ("\ufb01", "fi"), ("\uff21", "A"), ("\u2460", "1"), ("e\u0301", "\u00e9"), ("A\u030a", "\u00c5"), ("\u212b", "\u00c5"), ("\u200b", ""), ("\ufeff", ""), ("\u00ad", ""),
         ("\x01", ""), ("\t", " "), ("\n", " "), ("\r", " "), ("\u00a0", " "), ("\u3000", " "), ("\ufdfa", "\u0635\u0644\u0649 \u0627\u0644\u0644\u0647"), ("\u2103", "\u00b0C"),
         ("\u0e33", "\u0e4d\u0e32"), ("\u0958", "\u0915\u093c"), ("\u1100\u1161\u11a8", "\uac01"), ("\u2764\ufe0f", "\u2665"), ("\u017f", "s"), ("\u201c", '"'), ("\u201d", '"'), ("\u2167", "VIII"),
         ("\U0001f1e9\U0001f1ea", "DE"), ("\u2026", "..."), ("\u0130", "i\u0307"), ("\uff0c", ","), ("\u3002", ".")]
SPECIAL = ["<s>", "</s>", "<pad>", "<mask>"]
LLAMA3 = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
O200K = ("[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?"
         "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
DEEPSEEK = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")


def charsmap():
    with tempfile.TemporaryDirectory() as d:
        with open(f"{d}/rules.tsv", "w") as f:
            for a, b in RULES:
                f.write(" ".join("%X" % ord(c) for c in a) + "\t" + " ".join("%X" % ord(c) for c in b) + "\n")
        with open(f"{d}/text", "w") as f:
            f.write("\n".join(t.replace("\n", " ").replace("\x00", " ") for t in TEXTS if len(t) < 200))
        spm.SentencePieceTrainer.train(input=f"{d}/text", model_prefix=f"{d}/m", vocab_size=330, normalization_rule_tsv=f"{d}/rules.tsv", hard_vocab_limit=False,
                                       minloglevel=2, character_coverage=0.98)
        m = pb.ModelProto()
        with open(f"{d}/m.model", "rb") as f:
            m.ParseFromString(f.read())
        return m


def unigram(m, norm, pre, dec, post=None, byte_fallback=False):
    pieces = [(p.piece, p.score) for p in m.pieces]
    if byte_fallback:
        pieces += [(f"<0x{b:02X}>", -20.0) for b in range(256)]
    t = Tokenizer(M.Unigram(pieces, unk_id=0, byte_fallback=byte_fallback))
    t.normalizer, t.pre_tokenizer, t.decoder = norm, pre, dec
    if post:
        t.post_processor = post
    t.add_special_tokens(SPECIAL)
    t.add_tokens([AddedToken("<tool>", normalized=True), AddedToken(" word ", lstrip=True, rstrip=True, single_word=True)])
    return t


def byte_level(norm, pre, model=None):
    t = Tokenizer(model or M.BPE())
    if norm:
        t.normalizer = norm
    t.pre_tokenizer, t.decoder = pre, D.ByteLevel()
    t.train_from_iterator(TEXTS, T.BpeTrainer(vocab_size=500, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], initial_alphabet=P.ByteLevel.alphabet(), show_progress=False))
    t.add_tokens([AddedToken("<tool>", normalized=True), AddedToken(" word ", lstrip=True, rstrip=True, single_word=True)])
    t.post_processor = PR.Sequence([PR.ByteLevel(trim_offsets=False), PR.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])])
    return t


def sentencepiece_bpe(norm, pre):
    base = Tokenizer(M.BPE(unk_token="<unk>"))
    base.pre_tokenizer = P.Metaspace()
    base.train_from_iterator(TEXTS, T.BpeTrainer(vocab_size=520, special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)], show_progress=False, limit_alphabet=90))
    j = json.loads(base.to_str())
    j["model"].update(fuse_unk=True, byte_fallback=True)
    t = Tokenizer.from_str(json.dumps(j))
    t.normalizer = norm
    t.pre_tokenizer = pre or P.Sequence([])
    t.decoder = D.Sequence([D.Replace("\u2581", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])
    t.post_processor = PR.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    t.add_special_tokens(["<unk>", "<s>", "</s>"])
    t.add_tokens([AddedToken("<mask>", lstrip=True), "\n\n"])
    return t


def wordpiece(**k):
    t = Tokenizer(M.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    t.normalizer, t.pre_tokenizer, t.decoder = N.BertNormalizer(**k), P.BertPreTokenizer(), D.WordPiece()
    t.train_from_iterator(TEXTS, T.WordPieceTrainer(vocab_size=400, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    t.post_processor = PR.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return t


def all_of_them():
    m = charsmap()
    cs = N.Precompiled(m.normalizer_spec.precompiled_charsmap)
    bare = P.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = P.ByteLevel(add_prefix_space=False)
    always = (P.Metaspace("\u2581", prepend_scheme="always"), D.Metaspace("\u2581", prepend_scheme="always"))
    first = (P.Metaspace("\u2581", prepend_scheme="first"), D.Metaspace("\u2581", prepend_scheme="first"))
    around = PR.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    yield "unigram-xlmr", unigram(m, cs, *always, around)
    yield "unigram-t5", unigram(m, N.Sequence([cs, N.Strip(left=False, right=True), N.Replace(Regex(" {2,}"), "\u2581")]), *always)
    yield "unigram-albert", unigram(m, N.Sequence([N.Replace("``", '"'), N.Replace("''", '"'), N.NFKD(), N.StripAccents(), N.Lowercase(), cs]),
                                    P.Sequence([P.WhitespaceSplit(), first[0]]), first[1], around)
    yield "unigram-bytes", unigram(m, N.Sequence([N.Nmt(), cs]), P.Metaspace("\u2581", prepend_scheme="first", split=False),
                                   D.Sequence([D.Replace("\u2581", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)]), None, True)
    yield "bpe-deepseek", byte_level(None, P.Sequence([P.Split(Regex("\\p{N}{1,3}"), "isolated"), P.Split(Regex("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), "isolated"),
                                                       P.Split(Regex(DEEPSEEK), "isolated"), bare]))
    yield "bpe-o200k", byte_level(None, P.Sequence([P.Split(Regex(O200K), "isolated"), bare]), M.BPE(ignore_merges=True))
    yield "bpe-llama3", byte_level(N.NFC(), P.Sequence([P.Split(Regex(LLAMA3), "removed", invert=True), bare]))
    yield "bpe-falcon", byte_level(None, P.Sequence([P.Punctuation("contiguous"), gpt2, P.Digits(individual_digits=False), P.Split(Regex("[0-9][0-9][0-9]"), "isolated")]))
    yield "spm-llama2", sentencepiece_bpe(N.Sequence([N.Prepend("\u2581"), N.Replace(" ", "\u2581")]), None)
    yield "spm-gemma", sentencepiece_bpe(N.Replace(" ", "\u2581"), P.Split(" ", "merged_with_previous"))
    yield "wordpiece-uncased", wordpiece(lowercase=True)
    yield "wordpiece-cased", wordpiece(lowercase=False, handle_chinese_chars=False)


def main(where):
    os.makedirs(where, exist_ok=True)
    for name, t in all_of_them():
        cases = []
        for text in TEXTS:
            ids, special = (t.encode(text, add_special_tokens=s).ids for s in (False, True))
            cases.append(dict(text=text, ids=ids, ids_special=special, decoded=t.decode(special), decoded_special=t.decode(special, skip_special_tokens=False)))
        path = os.path.join(where, name + ".json")
        with open(path, "w") as f:
            json.dump(dict(tokenizer=json.loads(t.to_str()), cases=cases), f, separators=(",", ":"))
        print(name, os.path.getsize(path) // 1000, "KB", sum(len(c["ids"]) for c in cases), "ids", t.get_vocab_size(), "tokens")


if __name__ == "__main__":
    main(sys.argv[1])
