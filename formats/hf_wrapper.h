/*
 * hf_wrapper.h - checkpoints of models that see as well (Gemma 3 from 4B on, Mistral Small 3.1): their language part.
 *
 * config.json holds its configuration as "text_config", which may leave out more than one of its own does. Its tensors stand
 * under "language_model." ("model.language_model." in newer files); those of the tower for images and of its projector are not read.
 */
#ifndef TESS_HF_WRAPPER_H
#define TESS_HF_WRAPPER_H
#include "hf_config_priv.h"
#include "source.h"

/* The object that describes the language model: "text_config", completed, or the root itself, which owns both. */
const json_t *hf_wrapper_text(cfg *root);
/* Leaves the tensors of the language part in s, under the names that they have in a checkpoint of their own. */
tess_status hf_wrapper_strip(source *s, tess_error *err);
/* config.json of the language part alone, for an export: a mem block; *out is NULL when it is that already. */
tess_status hf_wrapper_unwrap(const mem *m, const char *json, size_t len, const char *file, char **out, size_t *out_len, tess_error *err);
#endif
