/*
 * hf_config.h - config.json and generation_config.json of a Hugging Face checkpoint.
 *
 * hf_config_read fills an arch by the family row that model_type names. Numbers are range-checked; old and new
 * spellings of keys are read (rope_theta + rope_scaling, rope_parameters; "type", "rope_type"), and refused
 * when they contradict each other. What would change the result and is not understood is refused by name:
 * family, rope type, rope key, activation, layer type. Quantization is read by hf_quant.c.
 */
#ifndef TESS_HF_CONFIG_H
#define TESS_HF_CONFIG_H
#include "family.h"

/* embed_dim: width of the embedding where it is projected to hidden_size (see projected.h), else 0. part: the language part of a
 * model that sees as well (see hf_wrapper.h). */
typedef struct { arch a; const family *fam; bool tied, part; uint32_t embed_dim; } hf_config;
/* file names the text in messages. */
tess_status hf_config_read(const char *json, size_t len, const char *file, hf_config *out, tess_error *err);
/* "gen.eos" (i32 array), "gen.bos", "gen.pad", "gen.temperature", "gen.top_p", "gen.top_k", "gen.min_p",
 * "gen.repetition_penalty", "gen.do_sample" from generation_config.json (NULL = none); end-of-sequence, bos and
 * pad fall back to config.json. */
tess_status hf_generation_put(const char *gen, size_t gen_len, const char *gen_file, const char *config,
                              size_t config_len, const char *config_file, kvs_builder *b, tess_error *err);
/* "chat.template" from chat_template.jinja, else from tokenizer_config.json (a string, or the entry "default"
 * of a list). Either may be NULL. */
tess_status hf_chat_template_put(const char *jinja, size_t jinja_len, const char *tok_config,
                                 size_t tok_config_len, const char *tok_config_file, kvs_builder *b,
                                 tess_error *err);
#endif
