/*
 * hf_tokenizer.h - tokenizer.json and tokenizer_config.json of Hugging Face to "tok.*" key-values.
 *
 * hf_tokenizer.c reads model, added tokens and configuration; hf_tok_ops.c normalizers, pre-tokenizers, post-processors and
 * decoders. What is not understood is refused by its path and name, never skipped.
 */
#ifndef TESS_HF_TOKENIZER_H
#define TESS_HF_TOKENIZER_H
#include "kvs.h"

/* config: text of tokenizer_config.json, or NULL. Texts that end in a bos, eos, unk or pad token go to "tok.bos_token" etc. */
tess_status hf_tokenizer_put(const mem *m, const char *json, size_t len, const char *config, size_t config_len, kvs_builder *b,
                             tess_error *err);
#endif
