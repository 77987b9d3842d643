/*
 * tok_keys.h - the "tok.*" key-values: how a tokenizer is stored in a container.
 *
 * Written by formats/hf_tokenizer.c, spm_tokenizer.c and gguf_tokenizer.c, read by lib/tok*.c. The names and numbers are
 * part of the file format: append only.
 *
 * Vocabulary. TOK_K_VOCAB is a list of strings, element i being the text of id i followed by one zero byte, so that the
 * runtime hands out terminated texts without a copy. Ids without a text are listed in TOK_K_HOLES. TOK_K_MERGES holds
 * (left id, right id, result id) of each merge in ascending rank.
 *
 * Added tokens. Parallel lists TOK_K_ADDED_IDS, TOK_K_ADDED_TEXT (zero byte at the end as above), TOK_K_ADDED_FLAGS
 * (TOK_ADDED_* bits). An added token may have an id of the vocabulary or a new one.
 *
 * Lists of operations (normalizers, pre-tokenizers, decoders). An operation is TOK_OP_WORDS numbers in the U32S value (code
 * and three arguments) and TOK_OP_TEXTS strings in the STRS value whose key ends in "_text". At most TOK_OPS_MAX.
 * No TOK_K_DEC at all means that texts are joined by one space.
 *
 * Post-processor. TOK_K_POST: ids, and -1 where the encoded text goes. Absent: the text alone.
 */
#ifndef TESS_TOK_KEYS_H
#define TESS_TOK_KEYS_H

#define TOK_K_MODEL "tok.model" /* STR "bpe", "unigram", "wordpiece" */
#define TOK_K_VOCAB "tok.vocab"
#define TOK_K_HOLES "tok.vocab_holes"           /* U32S, ascending */
#define TOK_K_MERGES "tok.merges"               /* U32S, 3 per merge */
#define TOK_K_SCORES "tok.scores"               /* U32S, two halves of an f64 (low first) per id: unigram */
#define TOK_K_FLAGS "tok.model_flags"           /* U64, TOK_MODEL_* */
#define TOK_K_UNK "tok.model_unk"               /* U64 id of the model's unknown token; absent = none */
#define TOK_K_PREFIX "tok.subword_prefix"       /* STR, of every piece of a word but the first */
#define TOK_K_SUFFIX "tok.word_suffix"          /* STR, of the last character of a word */
#define TOK_K_WORD_MAX "tok.word_chars_max"     /* U64, wordpiece: longer words are unknown */
#define TOK_K_ADDED_IDS "tok.added_ids"         /* U32S */
#define TOK_K_ADDED_TEXT "tok.added_text"       /* STRS */
#define TOK_K_ADDED_FLAGS "tok.added_flags"     /* U8S */
#define TOK_K_NORM "tok.normalizer"             /* U32S and STRS */
#define TOK_K_NORM_TEXT "tok.normalizer_text"
#define TOK_K_CHARSMAP "tok.charsmap"           /* U32S: the trie of TOK_N_PRECOMPILED, see lib/tok_charsmap.c */
#define TOK_K_CHARSMAP_TEXT "tok.charsmap_text" /* STR: its replacements, each ended by a zero byte */
#define TOK_K_PRE "tok.pre_tokenizer"
#define TOK_K_PRE_TEXT "tok.pre_tokenizer_text"
#define TOK_K_DEC "tok.decoder"
#define TOK_K_DEC_TEXT "tok.decoder_text"
#define TOK_K_POST "tok.post_processor"         /* I32S */
/* Named tokens: STR "tok.bos_token" and U64 "tok.bos_id" (absent when the text is no token); eos, unk, pad likewise. */
#define TOK_K_NAMED(name) "tok." name "_token"
#define TOK_K_NAMED_ID(name) "tok." name "_id"

enum { TOK_OP_WORDS = 4, TOK_OP_TEXTS = 2, TOK_OPS_MAX = 32 };

enum { TOK_MODEL_FUSE_UNK = 1, TOK_MODEL_BYTE_FALLBACK = 2, TOK_MODEL_IGNORE_MERGES = 4 };

enum { TOK_ADDED_SINGLE_WORD = 1, TOK_ADDED_LSTRIP = 2, TOK_ADDED_RSTRIP = 4, TOK_ADDED_NORMALIZED = 8, TOK_ADDED_SPECIAL = 16 };

/* How a pattern text is meant. */
enum { TOK_PAT_LITERAL = 0, TOK_PAT_REGEX = 1 };

/* Normalizers. Arguments a, b, c; texts 0, 1. */
enum {
    TOK_N_NFC = 1,
    TOK_N_NFD = 2,
    TOK_N_NFKC = 3,
    TOK_N_NFKD = 4,
    TOK_N_LOWERCASE = 5,
    TOK_N_STRIP_ACCENTS = 6,
    TOK_N_REPLACE = 7, /* a: TOK_PAT_*; texts: pattern, content */
    TOK_N_PREPEND = 8, /* text */
    TOK_N_STRIP = 9,   /* a: left, b: right */
    TOK_N_NMT = 10,
    TOK_N_BYTE_LEVEL = 11,
    TOK_N_BERT = 12,   /* a: TOK_BERT_* */
    TOK_N_PRECOMPILED = 13 /* by TOK_K_CHARSMAP */
};
enum { TOK_BERT_CLEAN = 1, TOK_BERT_CHINESE = 2, TOK_BERT_ACCENTS = 4, TOK_BERT_LOWER = 8 };

/* Pre-tokenizers. */
enum {
    TOK_P_BYTE_LEVEL = 1,  /* a: add a space in front, b: split by the GPT-2 pattern */
    TOK_P_METASPACE = 2,   /* a: TOK_PREPEND_*, b: split; text: replacement */
    TOK_P_SPLIT = 3,       /* a: TOK_PAT_*, b: TOK_SPLIT_*, c: invert; text: pattern */
    TOK_P_DIGITS = 4,      /* a: one by one */
    TOK_P_PUNCTUATION = 5, /* b: TOK_SPLIT_* */
    TOK_P_WHITESPACE = 6,
    TOK_P_WHITESPACE_SPLIT = 7,
    TOK_P_DELIMITER = 8,   /* text: one character */
    TOK_P_FIXED_LENGTH = 9 /* a: characters */
};
enum { TOK_PREPEND_NEVER = 0, TOK_PREPEND_FIRST = 1, TOK_PREPEND_ALWAYS = 2 };
enum { TOK_SPLIT_REMOVED = 0, TOK_SPLIT_ISOLATED = 1, TOK_SPLIT_PREVIOUS = 2, TOK_SPLIT_NEXT = 3, TOK_SPLIT_CONTIGUOUS = 4 };

/* Decoders. */
enum {
    TOK_D_BYTE_LEVEL = 1,
    TOK_D_REPLACE = 2,   /* a: TOK_PAT_*; texts: pattern, content */
    TOK_D_BYTE_FALLBACK = 3,
    TOK_D_FUSE = 4,
    TOK_D_STRIP = 5,     /* a: at the start, b: at the end; text: one character */
    TOK_D_METASPACE = 6, /* a: TOK_PREPEND_*; text: replacement */
    TOK_D_WORDPIECE = 7, /* a: clean up; text: prefix */
    TOK_D_BPE = 8        /* text: suffix */
};

/* The split pattern of TOK_P_BYTE_LEVEL, and the two that most later byte-level vocabularies use: scanned by hand. */
#define TOK_PATTERN_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define TOK_PATTERN_LLAMA3                                                                                \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TOK_PATTERN_QWEN2                                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#endif
