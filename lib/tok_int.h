/*
 * tok_int.h - what the files of the tokenizer share; nobody else includes it.
 *
 *   tok.c          open, close, look-ups; encode from sections to post-processor
 *   tok_vocab.c    hash tables over the key-values: text -> id, (left, right) -> merge
 *   tok_added.c    finds added tokens in a text
 *   tok_norm.c     normalizers            tok_charsmap.c  the table of one of them
 *   tok_pre.c      pre-tokenizers         tok_scan.c  known split patterns, by hand
 *   tok_model.c    words to ids: cache, characters to symbols, WordPiece
 *   tok_bpe.c      the merging of symbols
 *   tok_decode.c   decoders as a chain    tok_stream.c  streaming, stop strings
 *   tok_uni.c      properties of characters
 *
 * A tok is immutable. All that a call needs lives in its tok_run (encode) or tok_chain (decode).
 */
#ifndef TESS_TOK_INT_H
#define TESS_TOK_INT_H
#include "pattern.h"
#include "tok.h"
#include "tok_keys.h"
#include "utf8.h"

#define TOK_NONE UINT32_MAX

/* ---- characters (tok_uni.c) ---- */
bool uni_is_space(uint32_t cp);       /* White_Space */
bool uni_is_word(uint32_t cp);        /* \w of Rust's regex */
bool uni_is_numeric(uint32_t cp);     /* category N */
bool uni_is_punct(uint32_t cp);       /* category P, or ASCII punctuation */
bool uni_is_mark(uint32_t cp);        /* category M */
bool uni_is_mark_nonspacing(uint32_t cp);
bool uni_is_other(uint32_t cp);       /* Cc, Cf, Co */
uint32_t uni_lower(uint32_t cp, uint32_t out[2]); /* number of characters */
enum { UNI_OTHER = 0, UNI_LETTER = 1, UNI_NUMBER = 2, UNI_SPACE = 3, UNI_BMP = 0x10000 };
uint8_t uni_class(uint32_t cp); /* UNI_* */
/* The byte-level alphabet: bytes as printable characters. */
uint32_t uni_byte_char(uint8_t byte);
int uni_char_byte(uint32_t cp); /* -1: not of the alphabet */
/* One character of valid UTF-8. */
static inline uint32_t uni_next(const char *s, uint32_t *cp)
{
    const uint8_t *p = (const uint8_t *)s;
    if (p[0] < 0x80) return *cp = p[0], 1;
    if (p[0] < 0xe0) return *cp = (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu), 2;
    if (p[0] < 0xf0) return *cp = (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu), 3;
    return *cp = (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu), 4;
}
static inline uint32_t uni_len(const char *s)
{
    uint8_t c = (uint8_t)*s;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* ---- operations of a list ---- */
typedef struct {
    uint32_t code, a, b, c;
    const char *text[TOK_OP_TEXTS];
    size_t len[TOK_OP_TEXTS];
    pattern *pat; /* owned; of replace and split */
    uint8_t scan; /* SCAN_*: the pattern is scanned by hand */
} tok_op;
typedef struct { uint32_t n; tok_op op[TOK_OPS_MAX]; } tok_ops;
enum { SCAN_NONE = 0, SCAN_GPT2 = 1, SCAN_LLAMA3 = 2, SCAN_QWEN2 = 3 };

/* ---- vocabulary ---- */
typedef struct { uint32_t hash, id; } vocab_slot;                  /* id TOK_NONE = free */
typedef struct { uint32_t left, right, rank, id; } merge_slot;     /* left TOK_NONE = free */
typedef struct { const char *text; size_t len; const struct added_token *token; } added_entry;
typedef struct {                                                    /* tokens that one pass looks for */
    uint32_t n, longest;  /* tokens; bytes of the longest */
    added_entry *e;       /* ascending by text */
    uint32_t from[257];   /* those that begin with byte b are e[from[b], from[b + 1]) */
} added_set;
typedef struct added_token {
    const char *text;   /* as written */
    size_t len;
    const char *shown;  /* as decoders get it: the normalized form of a normalized token */
    size_t shown_len;
    uint32_t id;
    uint8_t flags;
    bool hidden;        /* left out by a decode without special tokens */
    bool blank;         /* whitespace only: harmless in plain text */
} added_token;

enum { MODEL_BPE = 1, MODEL_UNIGRAM, MODEL_WORDPIECE };

typedef struct unigram unigram;
typedef struct { const uint32_t *unit; uint64_t n_units; const char *text; size_t len; } charsmap; /* tok_charsmap.c */

struct tok {
    mem m;
    arena a;
    int model;
    uint32_t n_vocab, size;      /* entries of the vocabulary; highest id + 1 */
    const kv *vocab;
    uint8_t *kind;               /* per id: KIND_* */
    vocab_slot *slots;
    uint32_t slot_mask;
    merge_slot *merges;
    uint32_t merge_shift;
    uint64_t flags;              /* TOK_MODEL_* */
    uint32_t unk;
    const char *prefix, *suffix;
    size_t prefix_len, suffix_len;
    uint64_t word_max;           /* wordpiece */
    uint32_t longest;            /* bytes of the longest text of the vocabulary */
    uint32_t byte_id[256];       /* byte mode: symbol of each byte */
    uint32_t fallback_id[256];   /* id of "<0xNN>" */
    bool byte_mode;              /* the last pre-tokenizer is byte-level and its mapping is left to the model */
    char cut[4];                 /* no token has this character after another one: words are cut in front of it; len 0 = none */
    uint32_t cut_len;
    unigram *uni;
    uint32_t n_added;
    added_token *added;          /* ascending by id */
    added_set by_text;           /* all of them */
    added_set raw, normalized;   /* the two passes of encoding */
    tok_ops norm, pre, dec;
    charsmap map;                /* of the Precompiled normalizer */
    bool has_dec;
    const int32_t *post;
    uint64_t n_post;
    uint8_t *bmp;                /* uni_class of the first UNI_BMP characters */
};
enum { KIND_NONE = 0, KIND_VOCAB = 1, KIND_ADDED = 2 };

/* tok_vocab.c */
tess_status vocab_open(tok *t, const kvs *k, tess_error *err);
uint32_t vocab_find(const tok *t, const char *s, size_t n); /* of the model's vocabulary; TOK_NONE */
static inline const char *vocab_text(const tok *t, uint32_t id, size_t *len)
{
    const char *s = kv_strs_at(t->vocab, id, len);
    --*len; /* the zero byte */
    return s;
}
static inline const merge_slot *merge_find(const tok *t, uint32_t left, uint32_t right)
{
    uint64_t key = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    uint64_t mask = (UINT64_C(1) << (64 - t->merge_shift)) - 1;
    for (uint64_t i = key >> t->merge_shift;; i = (i + 1) & mask) {
        const merge_slot *s = &t->merges[i];
        if (s->left == left && s->right == right) return s;
        if (s->left == TOK_NONE) return NULL;
    }
}

/* tok_added.c */
tess_status added_open(tok *t, const kvs *k, tess_error *err); /* after the normalizers */
const added_token *added_find_id(const tok *t, uint32_t id);   /* NULL = none */
const added_token *added_find_text(const tok *t, const char *s, size_t n);
/* Where no token may be recognized: spans of the text that s is part of (s begins at base), or ATTR_PLAIN of attr. */
typedef struct { const tok_span *spans; size_t n, cur, base; const char *attr; } plain_view;
/* The leftmost, there longest, token of set in s[from, n), at [*begin, *end). NULL = none. */
const added_token *added_next(const added_set *set, plain_view *plain, const char *s, size_t n, size_t from, size_t *begin,
                              size_t *end);

/* ---- one encode call ---- */
enum { CACHE_SLOTS = 8192, CACHE_KEY = 26, CACHE_IDS = 9 };
typedef struct { uint8_t len, n; char key[CACHE_KEY]; uint32_t ids[CACHE_IDS]; } cache_slot; /* 64 bytes; len 0 = free */

/* Text that a normalizer works on. attr has one byte for each of text: ATTR_* of the character that it came from. A step
 * that would make it longer than limit fails: 32 replacements of "a" by "aa" must not fill the memory. */
enum { ATTR_ORIGIN = 1, ATTR_PLAIN = 2 };
typedef struct { buf text, attr; size_t limit; bool too_long; } norm_text;

typedef struct {
    const tok *t;
    tok_ids *out;
    tess_error *err;
    size_t text_len;             /* of the whole call */
    pattern_scratch scratch;
    cache_slot *cache;
    buf stage[TOK_OPS_MAX];      /* text that a pre-tokenizer rewrote */
    norm_text norm, norm_tmp;
    void *work[2];               /* scratch: 0 symbols of the word at hand or code points of a normalizer, 1 links of merging */
    size_t work_cap[2];
    uint64_t *heap;              /* of merging */
    size_t heap_cap;
} tok_run;
void tok_run_init(tok_run *r, const tok *t, tok_ids *out, tess_error *err);
void tok_run_free(tok_run *r);
tess_status tok_run_put(tok_run *r, const uint32_t *ids, size_t n);
void *tok_run_work(tok_run *r, int which, size_t size); /* r->work[which], at least size bytes; NULL = no memory */
static inline tess_status tok_run_nomem(tok_run *r)
{
    return ERR(r->err, TESS_E_NOMEM, "no memory to tokenize %zu bytes of text", r->text_len);
}

/* tok_norm.c: r->norm through the list of normalizers. */
tess_status norm_run(tok_run *r);
bool norm_put(norm_text *o, const char *s, size_t n, uint8_t attr);
bool norm_copy(norm_text *o, const norm_text *in, size_t from, size_t to);
/* tok_charsmap.c */
tess_status charsmap_open(tok *t, const kvs *k, tess_error *err); /* after the normalizers */
bool charsmap_run(const charsmap *m, norm_text *o, const norm_text *in);
/* tok_pre.c: s[0, n) through the pre-tokenizers from `stage` on, and each piece through the model. The first z bytes come
 * from the very first character of the call's text. */
tess_status pre_run(tok_run *r, uint32_t stage, const char *s, size_t n, size_t z);
/* tok_scan.c: end of the piece that begins at i. */
size_t scan_next(const tok *t, int scan, const char *s, size_t n, size_t i);
/* tok_model.c: one word. */
tess_status tok_model_word(tok_run *r, const char *s, size_t n);
tess_status tok_model_open(tok *t, const kvs *k, tess_error *err);
/* tok_bpe.c: merges ids[0, n) in place; returns the number left, TOK_NONE when out of memory. */
size_t bpe_merge(tok_run *r, uint32_t *ids, size_t n);
/* tok_unigram.c */
tess_status unigram_open(tok *t, const kvs *k, tess_error *err);
tess_status unigram_word(tok_run *r, const char *s, size_t n);
void unigram_close(tok *t);

/* ---- decoding (tok_decode.c) ---- */
typedef struct { uint64_t n_tokens; uint32_t cut; bool open, bad; buf hold, out, part; } chain_stage;
typedef struct {
    const tok *t;
    bool eager;   /* streaming: bytes that are a complete text are given before their run ends */
    bool skip;    /* leave out special tokens */
    uint64_t n_tokens;
    pattern_scratch scratch;
    buf *out;
    chain_stage st[TOK_OPS_MAX];
    tess_error *err;
} tok_chain;
void chain_init(tok_chain *c, const tok *t, uint32_t flags, bool eager, buf *out);
void chain_free(tok_chain *c);
tess_status chain_push(tok_chain *c, int32_t id, tess_error *err);
tess_status chain_finish(tok_chain *c, tess_error *err); /* what is held; the chain is then as after chain_init */
/* Length of the longest proper end of s[0, n) with which `what` may begin. */
size_t held_suffix(const char *s, size_t n, const char *what, size_t what_len);
#endif
