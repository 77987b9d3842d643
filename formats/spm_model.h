/*
 * spm_model.h - the file tokenizer.model of SentencePiece: pieces, and how texts are normalized and cut.
 *
 * A protocol buffer message (protobuf.h). Read are, by number of the field; all others are passed over:
 *   1 pieces: 1 text, 2 score (float), 3 type (1 when absent)
 *   2 trainer: 3 model type, 24 whitespace as suffix, 35 byte fallback, 41 to 43 ids of bos, eos, pad
 *   3 normalizer: 2 character map, 3 dummy prefix, 4 remove extra whitespace, 5 escape whitespace
 *   5 denormalizer: 2 character map
 * Source: sentencepiece_model.proto. A field that comes twice has its last value, sub-messages are merged, as the wire format
 * wants. Texts are views into the file.
 *
 * Enforced: at least one piece, at most 2^24; texts not empty, UTF-8; scores finite; known types; exactly one piece of type
 * unknown. An id of bos, eos or pad that no piece has is none.
 */
#ifndef TESS_SPM_MODEL_H
#define TESS_SPM_MODEL_H
#include "mem.h"

enum { SPM_UNIGRAM = 1, SPM_BPE = 2 };
enum { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER, PIECE_UNUSED, PIECE_BYTE };
typedef struct {
    const char *text;
    size_t len;
    float score;
    uint32_t type;
} spm_piece;
typedef struct {
    const mem *m;
    spm_piece *pieces;
    size_t n, cap;
    uint64_t model_type;
    int64_t unk;           /* the piece of type unknown */
    int64_t bos, eos, pad; /* -1 = none */
    bool suffix, byte_fallback;
    const uint8_t *charsmap;
    size_t charsmap_len;
    bool dummy_prefix, remove_extra, escape, denormalizes;
} spm_model;

/* file names it in messages. The model keeps views into data. spm_close is right after a failure, too. */
tess_status spm_read(spm_model *s, const mem *m, const void *data, size_t len, const char *file, tess_error *err);
void spm_close(spm_model *s);
#endif
