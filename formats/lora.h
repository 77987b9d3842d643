/*
 * lora.h - LoRA adapters of PEFT: a directory with adapter_config.json and adapter_model.safetensors.
 *
 * An adapter adds to matrices W (rows are outputs) of a model: W + scale * alpha / r * B A, with A r x inputs and B outputs x r;
 * alpha / sqrt(r) with use_rslora. Modules have the names of the Hugging Face family, so an adapter finds its weights in
 * any source of that family (checkpoint, GGUF, .tess): family_stored tells which rows of a fused tensor a weight is. For
 * embeddings, "lora_embedding_A" is r x vocabulary and "lora_embedding_B" hidden x r.
 *
 * What changes the result in another way (DoRA, trained biases, modules_to_save, initializations that also change the base
 * weights, ...) and tensors without a place are refused by name.
 */
#ifndef TESS_LORA_H
#define TESS_LORA_H
#include "family.h"

typedef struct lora lora;
/* scale: a factor on all of it. */
tess_status lora_open(const char *dir, double scale, const family *f, const arch *a, const weight_plan *p, const mem *m, lora **out,
                      tess_error *err);
void lora_close(lora *l); /* NULL is fine */
bool lora_touches(const lora *l, uint32_t index); /* index in the plan */
/* Adds to a box of weight `index`, row-major without gaps. The sum over r is taken in f32, ascending. Any number of threads. */
tess_status lora_add(const lora *l, uint32_t index, uint64_t row0, uint64_t n_rows, uint64_t k0, uint64_t n_k, float *dst,
                     tess_error *err);
#endif
