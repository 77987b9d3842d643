/*
 * source.h - a checkpoint to convert: named tensors that can be read box by box, and the small files beside them.
 *
 * safetensors.c (one file, or shards with an index), gguf.c and a .tess file (source_tess.c) provide it. Names are the
 * source's own; family.c maps them to roles. Reading is thread-safe and allocates nothing larger than a few rows.
 */
#ifndef TESS_SOURCE_H
#define TESS_SOURCE_H
#include "arch.h"
#include "mem.h"

typedef struct {
    char *name;
    uint32_t dtype;       /* DT_F32, F16, BF16, or for GGUF blocks SRC_* below */
    uint32_t rank;
    uint64_t shape[4];    /* row-major, outermost first, as in safetensors */
    uint64_t off, nbytes; /* in file `file` */
    uint32_t file;
} src_tensor;
enum { SRC_Q8_0 = 64, SRC_Q4_0, SRC_Q4_1, SRC_Q6_K };
typedef struct source source;
struct source {
    const mem *m;
    uint32_t n_tensors;
    src_tensor *tensors;  /* ascending by name */
    uint32_t n_files;
    char **paths;
    void *impl;
    const char *kind;     /* "safetensors", "gguf", "tess" */
    /* Columns [k0, k0 + n_k) of rows [row0, row0 + n_rows) of tensor i, as f32 or raw bytes of its float dtype (raw).
     * Vectors are one row per element count: rank 1 is rows = 1, columns = shape[0]. */
    tess_status (*read)(const source *s, uint32_t i, uint64_t row0, uint64_t n_rows, uint64_t k0, uint64_t n_k, bool raw,
                        void *dst, tess_error *err);
    void (*close)(source *s);
};
int64_t source_find(const source *s, const char *name);
tess_status safetensors_open(const char *path_or_dir, const mem *m, source **out, tess_error *err);
tess_status gguf_open(const char *path, const mem *m, source **out, tess_error *err);
void source_close(source *s);
/* All inputs are as they were when opened; else an error that names the file. */
tess_status source_unchanged(const source *s, tess_error *err);

/* GGUF metadata, for gguf_config.c and the tokenizer: views into memory of the source. type: as in the GGUF document. */
typedef struct { const char *key; size_t key_len; uint32_t type, elem_type; uint64_t n; const uint8_t *data; } gguf_kv;
const gguf_kv *gguf_find(const source *s, const char *key);
uint64_t gguf_u64(const source *s, const char *key, uint64_t def);
double gguf_f64(const source *s, const char *key, double def);
const char *gguf_str(const source *s, const char *key, size_t *len);
const char *gguf_str_at(const gguf_kv *kv, uint64_t i, size_t *len); /* amortized: builds an index at open */
#endif
