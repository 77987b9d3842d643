/*
 * hf_quant.h - what config.json says about the quantization of a checkpoint ("quantization_config").
 *
 * Read: gptq, awq, fp8, fbgemm_fp8, modelopt (FP8), compressed-tensors, mxfp4, and auto-round where it packs as gptq or awq.
 * All others, and variants of these that are stored differently, are refused by name.
 */
#ifndef TESS_HF_QUANT_H
#define TESS_HF_QUANT_H
#include "packed.h"

/* PACKED_NONE when the checkpoint is not quantized. file names the text in messages. */
tess_status hf_quant_read(const char *json, size_t len, const char *file, packed_scheme *out, tess_error *err);
/* config.json without what says that the weights are quantized, for an export in floats: *out is NULL when there is
 * nothing to leave out, else a mem block. */
tess_status hf_quant_strip(const mem *m, const char *json, size_t len, const char *file, char **out, size_t *out_len, tess_error *err);
#endif
