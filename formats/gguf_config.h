/* gguf_config.h - GGUF metadata to arch: the counterpart of hf_config.h for .gguf files. */
#ifndef TESS_GGUF_CONFIG_H
#define TESS_GGUF_CONFIG_H
#include "family.h"

typedef struct { arch a; const gguf_family *fam; bool tied; } gguf_config;
tess_status gguf_config_read(const source *s, gguf_config *out, tess_error *err);
/* "gen.eos" (end of sequence and of turn), "gen.bos", "gen.pad". */
void gguf_generation_put(const source *s, kvs_builder *b);
#endif
