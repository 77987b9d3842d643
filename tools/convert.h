/*
 * convert.h - the parts of convert-hf: options, the opened SRC with everything that goes into a container,
 * writing, export.
 *
 *   convert-hf.c        options and the steps
 *   convert_load.c      SRC: weights, arch, key-values, blobs
 *   convert_write.c     SRC to .tess
 *   convert_quant.c     boxes of q8 and q4 of it
 *   convert_loss.c      what the types of a quantized source lose
 *   convert_lora.c      weights with adapters merged into them
 *   convert_export.c    .tess to a Hugging Face directory
 */
#ifndef TESS_CONVERT_H
#define TESS_CONVERT_H
#include <pthread.h>

#include "cli.h"
#include "container.h"
#include "family.h"
#include "lora.h"

#define CONVERTER "tessera 0.1.0"

enum { CONVERT_MAX_BLOBS = 32, CONVERT_MAX_LORA = 16 };
typedef struct {
    const char *src, *out, *export_dir;
    const char *lora[CONVERT_MAX_LORA]; /* DIR or DIR=SCALE, in the order of merging */
    uint32_t n_lora;
    uint32_t dtype;       /* DT_*; 0 = auto: as in the source */
    uint32_t tp, store, threads;
    uint64_t split_max;
    bool force, refresh;
} convert_options;

typedef struct { const char *name; char *data; size_t len; } convert_blob;

/* An opened SRC. s is NULL when it holds a tokenizer only. */
typedef struct {
    mem m;
    source *s;
    weight_plan plan;
    arch a;
    uint32_t kind;        /* CT_KIND_MODEL or CT_KIND_TOKENIZER */
    const family *fam;
    void *kv;
    size_t kv_len;
    convert_blob blob[CONVERT_MAX_BLOBS];
    uint32_t n_blobs;
    lora *lora[CONVERT_MAX_LORA];
    uint32_t n_lora;
} convert_source;

/* Opens o->src, whatever it is. With o->refresh the key-values of a .tess are built anew from its blobs. */
tess_status convert_load(const convert_options *o, const mem *m, convert_source *c, tess_error *err);
void convert_unload(convert_source *c);
const convert_blob *convert_find_blob(const convert_source *c, const char *name);

tess_status convert_load_lora(const convert_options *o, convert_source *c, tess_error *err); /* part of convert_load */
/* As family_read, with the adapters merged; they touch w when convert_is_merged. */
tess_status convert_read(const convert_source *c, const weight *w, uint32_t dtype, uint64_t row0, uint64_t n_rows, uint64_t k0,
                         uint64_t n_k, void *dst, tess_error *err);
bool convert_is_merged(const convert_source *c, const weight *w);

/* Number of SIGINT and SIGTERM so far; work ends with TESS_E_CANCELLED when it is not 0. */
bool convert_interrupted(void);

/* Sums of squares, by source type and stored type. type must outlive it. Any number of threads. */
enum { CONVERT_MAX_LOSS = 32 };
typedef struct { const char *type; uint32_t dtype; double error, all; } convert_loss_sum;
typedef struct {
    pthread_mutex_t lock;
    uint32_t n;
    convert_loss_sum sum[CONVERT_MAX_LOSS];
} convert_loss;
void convert_loss_open(convert_loss *l);
void convert_loss_close(convert_loss *l);
void convert_loss_add(convert_loss *l, const char *type, uint32_t dtype, double error, double all);
/* Adds the squares of n values to *error and *all. */
void convert_loss_of(const float *exact, const float *stored, size_t n, double *error, double *all);
void convert_loss_say(convert_loss *l, const mem *m, const char *src);

/* Delivers a box of a weight in q8 or q4: blocks of the same type as they are where the groups agree, codes of a
 * quantized source where ours can hold them, else fitted anew. Any number of threads. */
tess_status convert_read_quant(const convert_source *c, const weight *w, uint32_t dtype, uint64_t row0,
                               uint64_t n_rows, uint64_t k0, uint64_t n_k, uint8_t *dst, convert_loss *loss, tess_error *err);

tess_status convert_write(const convert_options *o, const convert_source *c, tess_error *err);
tess_status convert_export(const convert_options *o, const convert_source *c, tess_error *err);
#endif
