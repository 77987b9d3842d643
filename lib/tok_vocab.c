/* tok_vocab.c - hash tables over the vocabulary and the merges. Texts stay where they are, in the key-values. */
#include "hash.h"
#include "tok_int.h"

enum { VOCAB_MAX = 1 << 24 };

static uint32_t text_hash(const char *s, size_t n) { return (uint32_t)hash64(s, n, 0); }

uint32_t vocab_find(const tok *t, const char *s, size_t n)
{
    uint32_t h = text_hash(s, n);
    for (uint32_t i = h & t->slot_mask; t->slots[i].id != TOK_NONE; i = (i + 1) & t->slot_mask) {
        if (t->slots[i].hash != h) continue;
        size_t len;
        const char *text = vocab_text(t, t->slots[i].id, &len);
        if (len == n && memcmp(text, s, n) == 0) return t->slots[i].id;
    }
    return TOK_NONE;
}

/* Of two ids with the same text the first is found. */
static void vocab_insert(tok *t, uint32_t id)
{
    size_t n;
    const char *s = vocab_text(t, id, &n);
    uint32_t h = text_hash(s, n), i = h & t->slot_mask;
    while (t->slots[i].id != TOK_NONE) i = (i + 1) & t->slot_mask;
    t->slots[i] = (vocab_slot){h, id};
}

static tess_status mark_kinds(tok *t, const kvs *k, tess_error *err)
{
    t->kind = arena_alloc(&t->a, MAX(t->n_vocab, 1u), 1);
    if (!t->kind) return ERR(err, TESS_E_NOMEM, "no memory for a vocabulary of %u tokens", t->n_vocab);
    memset(t->kind, KIND_VOCAB, t->n_vocab);
    uint64_t n;
    const uint32_t *holes = kvs_array(k, TOK_K_HOLES, KV_U32S, &n);
    for (uint64_t i = 0; i < n; i++) {
        if (holes[i] >= t->n_vocab) return ERR(err, TESS_E_FORMAT, "%s: id %u is not below %u", TOK_K_HOLES, holes[i], t->n_vocab);
        t->kind[holes[i]] = KIND_NONE;
    }
    for (uint32_t id = 0; id < t->n_vocab; id++) {
        size_t len;
        const char *s = kv_strs_at(t->vocab, id, &len);
        if (len == 0 || s[len - 1] != 0) return ERR(err, TESS_E_FORMAT, "%s: text of id %u is not terminated", TOK_K_VOCAB, id);
        t->longest = MAX(t->longest, (uint32_t)len - 1);
    }
    return TESS_OK;
}

static tess_status open_merges(tok *t, const kvs *k, tess_error *err)
{
    uint64_t n;
    const uint32_t *v = kvs_array(k, TOK_K_MERGES, KV_U32S, &n);
    if (n % 3 || n / 3 > UINT32_MAX / 4)
        return ERR(err, TESS_E_FORMAT, "%s: %llu numbers are not a list of merges", TOK_K_MERGES, (unsigned long long)n);
    n /= 3;
    uint32_t bits = 4;
    while ((UINT64_C(1) << bits) < n * 2) bits++;
    t->merge_shift = 64 - bits;
    size_t size = sizeof(merge_slot) << bits;
    t->merges = mem_alloc(&t->m, size);
    if (!t->merges) return ERR(err, TESS_E_NOMEM, "no memory for %llu merges", (unsigned long long)n);
    memset(t->merges, 0xff, size);
    uint64_t mask = (UINT64_C(1) << bits) - 1;
    for (uint64_t r = 0; r < n; r++, v += 3) {
        if (v[0] >= t->n_vocab || v[1] >= t->n_vocab || v[2] >= t->n_vocab)
            return ERR(err, TESS_E_FORMAT, "%s: merge %llu names an id outside the vocabulary", TOK_K_MERGES,
                       (unsigned long long)r);
        uint64_t i = ((uint64_t)v[0] << 32 | v[1]) * 0x9e3779b97f4a7c15u >> t->merge_shift;
        while (t->merges[i].left != TOK_NONE && !(t->merges[i].left == v[0] && t->merges[i].right == v[1])) i = (i + 1) & mask;
        t->merges[i] = (merge_slot){v[0], v[1], (uint32_t)r, v[2]}; /* the last of two equal pairs counts */
    }
    return TESS_OK;
}

tess_status vocab_open(tok *t, const kvs *k, tess_error *err)
{
    t->vocab = kvs_find(k, TOK_K_VOCAB);
    if (!t->vocab || t->vocab->type != KV_STRS || t->vocab->n > VOCAB_MAX)
        return ERR(err, TESS_E_FORMAT, "%s: missing, or not a list of at most %d texts", TOK_K_VOCAB, VOCAB_MAX);
    t->n_vocab = t->size = (uint32_t)t->vocab->n;
    TRY(mark_kinds(t, k, err));
    uint32_t n_slots = 16;
    while (n_slots < t->n_vocab * 2) n_slots *= 2;
    t->slot_mask = n_slots - 1;
    t->slots = mem_alloc(&t->m, n_slots * sizeof *t->slots);
    if (!t->slots) return ERR(err, TESS_E_NOMEM, "no memory for a vocabulary of %u tokens", t->n_vocab);
    memset(t->slots, 0xff, n_slots * sizeof *t->slots);
    for (uint32_t id = 0; id < t->n_vocab; id++)
        if (t->kind[id] == KIND_VOCAB) vocab_insert(t, id);
    return open_merges(t, k, err);
}
