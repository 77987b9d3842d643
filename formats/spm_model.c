/* spm_model.c - see spm_model.h. */
#include "spm_model.h"

#include <math.h>

#include "protobuf.h"
#include "utf8.h"

typedef struct {
    spm_model *s;
    const char *file;
    const uint8_t *start; /* of the file, for offsets */
    tess_error *err;
} reader;

static bool is_digit(uint8_t c) { return c >= '0' && c <= '9'; }
static bool is_base64(uint8_t c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c && strchr("+/=", c));
}

/* A list of tokens of tiktoken, often under the same name: lines of base64, a space, a number. */
static bool is_tiktoken(const uint8_t *p, size_t n)
{
    size_t i = 0;
    while (i < n && i < 64 && is_base64(p[i])) i++;
    return i >= 4 && i + 1 < n && p[i] == ' ' && is_digit(p[i + 1]);
}

static tess_status malformed(const reader *r, const uint8_t *at, const char *what)
{
    return ERR(r->err, TESS_E_FORMAT, "%s: is no SentencePiece model: %s at offset %zu", r->file, what, (size_t)(at - r->start));
}

/* A field that must be of one wire type. */
static tess_status want(const reader *r, const pb_field *f, uint32_t wire, const uint8_t *at)
{
    return f->wire == wire ? TESS_OK : malformed(r, at, "a field of another type than expected ends");
}

static tess_status read_piece(reader *r, const pb_field *piece)
{
    spm_model *s = r->s;
    spm_piece x = {.type = PIECE_NORMAL};
    pb_message m = {piece->data, piece->data + piece->len};
    pb_field f;
    int got;
    while ((got = pb_next(&m, &f)) > 0) {
        if (f.number > 3) continue;
        TRY(want(r, &f, f.number == 1 ? PB_BYTES : f.number == 2 ? PB_FIXED32 : PB_VARINT, m.at));
        uint32_t bits = (uint32_t)f.value;
        if (f.number == 1) x.text = (const char *)f.data, x.len = f.len;
        else if (f.number == 2) memcpy(&x.score, &bits, 4);
        else x.type = f.value > PIECE_BYTE ? 0 : bits;
    }
    if (got < 0) return malformed(r, m.at, "bad field");
    if (x.len == 0 || !utf8_valid(x.text, x.len)) return malformed(r, piece->data, "a piece without a text in UTF-8");
    if (x.type == 0 || !isfinite(x.score)) return malformed(r, piece->data, "a piece of unknown type or without a finite score");
    if (x.type == PIECE_UNKNOWN) {
        if (s->unk >= 0) return malformed(r, piece->data, "a second piece of type unknown");
        s->unk = (int64_t)s->n;
    }
    if (s->n == 1 << 24) return malformed(r, piece->data, "more than 2^24 pieces");
    if (!mem_grow(s->m, &s->pieces, &s->cap, s->n + 1, sizeof x))
        return ERR(r->err, TESS_E_NOMEM, "%s: no memory for its pieces", r->file);
    s->pieces[s->n++] = x;
    return TESS_OK;
}

/* The fields of a sub-message that are numbers: where they go. */
typedef struct {
    uint32_t number;
    uint64_t *u;
    int64_t *i;
    bool *b;
} place;

static tess_status read_numbers(reader *r, const pb_field *sub, const place *places, size_t n, uint32_t bytes_number,
                                const uint8_t **data, size_t *len)
{
    pb_message m = {sub->data, sub->data + sub->len};
    pb_field f;
    int got;
    while ((got = pb_next(&m, &f)) > 0) {
        if (bytes_number && f.number == bytes_number) {
            TRY(want(r, &f, PB_BYTES, m.at));
            *data = f.data;
            *len = f.len;
        }
        for (size_t i = 0; i < n; i++) {
            if (places[i].number != f.number) continue;
            TRY(want(r, &f, PB_VARINT, m.at));
            if (places[i].u) *places[i].u = f.value;
            if (places[i].i) *places[i].i = (int32_t)f.value; /* negative numbers have ten bytes */
            if (places[i].b) *places[i].b = f.value != 0;
        }
    }
    return got < 0 ? malformed(r, m.at, "bad field") : TESS_OK;
}

static tess_status read_all(reader *r, const uint8_t *data, size_t len)
{
    spm_model *s = r->s;
    const place trainer[] = {{3, &s->model_type, NULL, NULL}, {24, NULL, NULL, &s->suffix}, {35, NULL, NULL, &s->byte_fallback},
                             {41, NULL, &s->bos, NULL},       {42, NULL, &s->eos, NULL},    {43, NULL, &s->pad, NULL}};
    const place normalizer[] = {{3, NULL, NULL, &s->dummy_prefix}, {4, NULL, NULL, &s->remove_extra}, {5, NULL, NULL, &s->escape}};
    const uint8_t *back = NULL;
    size_t back_len = 0;
    pb_message m = {data, data + len};
    pb_field f;
    int got;
    while ((got = pb_next(&m, &f)) > 0) {
        if (f.number > 5 || f.number == 4) continue;
        TRY(want(r, &f, PB_BYTES, m.at));
        switch (f.number) {
        case 1: TRY(read_piece(r, &f)); break;
        case 2: TRY(read_numbers(r, &f, trainer, ARRAY_LEN(trainer), 0, NULL, NULL)); break;
        case 3: TRY(read_numbers(r, &f, normalizer, ARRAY_LEN(normalizer), 2, &s->charsmap, &s->charsmap_len)); break;
        default: TRY(read_numbers(r, &f, NULL, 0, 2, &back, &back_len));
        }
    }
    s->denormalizes = back_len > 0;
    return got < 0 ? malformed(r, m.at, "bad field") : TESS_OK;
}

/* An id that the trainer names but no piece has is none. */
static int64_t id_or_none(const spm_model *s, int64_t id) { return id >= 0 && id < (int64_t)s->n ? id : -1; }

tess_status spm_read(spm_model *s, const mem *m, const void *data, size_t len, const char *file, tess_error *err)
{
    reader r = {s, file, data, err};
    *s = (spm_model){.m = m,
                     .model_type = SPM_UNIGRAM,
                     .unk = -1,
                     .bos = 1,
                     .eos = 2,
                     .pad = -1,
                     .dummy_prefix = true,
                     .remove_extra = true,
                     .escape = true};
    if (is_tiktoken(data, len))
        return ERR(err, TESS_E_UNSUPPORTED, "%s: is a list of tokens of tiktoken, which is not read; tokenizer.json is needed",
                   file);
    TRY(read_all(&r, data, len));
    if (s->n == 0) return malformed(&r, r.start + len, "no pieces up to the end");
    if (s->unk < 0) return malformed(&r, r.start + len, "no piece of type unknown up to the end");
    s->bos = id_or_none(s, s->bos);
    s->eos = id_or_none(s, s->eos);
    s->pad = id_or_none(s, s->pad);
    return TESS_OK;
}

void spm_close(spm_model *s)
{
    mem_free(s->m, s->pieces);
    s->pieces = NULL;
    s->n = s->cap = 0;
}
