/*
 * gguf_tokenizer.h - the tokenizer in the metadata of a GGUF file to "tok.*" key-values, and its chat template.
 *
 * tokenizer.ggml.model "gpt2" (byte-level BPE; tokenizer.ggml.pre names the split patterns) and "llama" (SentencePiece BPE by
 * scores). Unknown names are refused.
 */
#ifndef TESS_GGUF_TOKENIZER_H
#define TESS_GGUF_TOKENIZER_H
#include "kvs.h"
#include "source.h"

tess_status gguf_tokenizer_put(const mem *m, const source *s, kvs_builder *b, tess_error *err);
#endif
