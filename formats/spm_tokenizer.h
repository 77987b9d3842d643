/*
 * spm_tokenizer.h - SentencePiece's tokenizer.model to "tok.*" key-values, for checkpoints without tokenizer.json.
 *
 * What is made follows the settings of the model, as SentencePiece itself and transformers' conversion of such a file do:
 *
 *   normalizer   the character map; with remove_extra_whitespaces, spaces around the text and all but one in a row go; a space
 *                becomes U+2581; add_dummy_prefix puts one in front of each text between added tokens
 *   pieces       unigram by scores; BPE by merges of normal pieces, in the order of scores, then ids, then length of the left side
 *   user-defined are never merged with what is around them: they are cut out of the normalized text, or, where nothing depends
 *                on the ends of a text (no prefix, no spaces removed), added tokens that are found before normalization
 *   added tokens control pieces and the unknown piece (special), then those of tokenizer_config.json (added_tokens_decoder;
 *                an id of the model gets the name given there) or else of added_tokens.json, then named tokens that are not among
 *                them
 *   around it    bos when the model has one, unless add_bos_token is false; eos when add_eos_token is true
 *
 * "legacy": false of tokenizer_config.json puts the prefix only in front of all, "add_prefix_space": false nowhere. Refused:
 * models of words and characters, whitespace as suffix, denormalizers, and classes of tokenizers whose ids are not those of
 * the pieces. As in transformers, unigram finds the texts of control and byte pieces in a text, SentencePiece does not.
 */
#ifndef TESS_SPM_TOKENIZER_H
#define TESS_SPM_TOKENIZER_H
#include "kvs.h"

/* Contents of files of one directory; data is NULL when there is none. */
typedef struct {
    const char *data;
    size_t len;
} spm_file;
typedef struct {
    spm_file model;   /* tokenizer.model */
    spm_file config;  /* tokenizer_config.json */
    spm_file special; /* special_tokens_map.json */
    spm_file added;   /* added_tokens.json */
} spm_files;
tess_status spm_tokenizer_put(const mem *m, const spm_files *files, kvs_builder *b, tess_error *err);
#endif
