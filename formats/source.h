/*
 * source.h - a checkpoint to convert: named tensors that can be read box by box, and the small files beside
 * them.
 *
 * safetensors.c (one file, or shards with an index), gguf.c and a .tess file (source_tess.c) provide it; packed.c lays
 * one over another, whose tensors are computed from several of the lower one. Names
 * are the source's own; family.c maps them to roles. Reading is thread-safe and allocates nothing larger than a
 * few rows.
 */
#ifndef TESS_SOURCE_H
#define TESS_SOURCE_H
#include "arch.h"
#include "mem.h"
#include "os.h"

typedef struct {
    char *name;
    uint32_t dtype;       /* DT_F32, F16, BF16, or SRC_* below */
    uint32_t like;        /* of SRC_COMPUTED and of GGUF blocks: the type to store it in, DT_*; else 0 */
    uint32_t rank;        /* 0 = a scalar: one row, one column */
    uint64_t shape[4];    /* row-major, outermost first, as in safetensors */
    uint64_t off, nbytes; /* in file `file` */
    uint32_t file;
    uint32_t ref;         /* for sources over another: what it is there */
    const char *type;     /* the source's name of the dtype, for messages: "F8_E4M3" */
} src_tensor;
/* GGUF blocks (gguf_blocks.h). SRC_OTHER: a type whose size is known and whose values are not read. SRC_COMPUTED: read gives
 * values alone, nothing raw. Containers record these numbers (src_dtype): new ones go to the end. */
enum {
    SRC_Q8_0 = 64, SRC_Q4_0, SRC_Q4_1, SRC_Q6_K, SRC_OTHER, SRC_COMPUTED, SRC_Q5_0, SRC_Q5_1, SRC_Q2_K, SRC_Q3_K, SRC_Q4_K,
    SRC_Q5_K, SRC_IQ4_NL, SRC_IQ4_XS, SRC_MXFP4
};
typedef struct source source;
struct source {
    const mem *m;
    uint32_t n_tensors;
    src_tensor *tensors;  /* ascending by name */
    uint32_t n_files;
    char **paths;
    os_file *files;       /* one per path */
    void *impl;
    const char *kind;     /* "safetensors", "gguf", "tess" */
    /* Columns [k0, k0 + n_k) of rows [row0, row0 + n_rows) of tensor i, as f32 or raw bytes of its dtype (raw). A
     * tensor of rank n is a matrix whose columns are its last dimension and whose rows are all the others
     * together; rank 1 is rows = 1, columns = shape[0]. Raw blocks: k0 and n_k are bounds of blocks; GGUF blocks
     * come as they are, q8 and q4 as the blocks of quant.h. */
    tess_status (*read)(const source *s, uint32_t i, uint64_t row0, uint64_t n_rows, uint64_t k0, uint64_t n_k,
                        bool raw, void *dst, tess_error *err);
    /* Of SRC_COMPUTED tensors and GGUF blocks, else NULL: columns [k0, k0 + n_k) of one row as blocks of quant.h of the type
     * dt, q8 or q4, in groups of 32 from k0 on, which is a multiple of 32 in GGUF blocks. Codes of the source are kept where
     * such blocks can hold them, else the values are fitted. */
    tess_status (*blocks)(const source *s, uint32_t i, uint64_t row, uint64_t k0, uint64_t n_k, uint32_t dt, uint8_t *dst,
                          tess_error *err);
    void (*close)(source *s); /* frees impl; may be NULL */
    const source *lower;  /* owned by impl: has the files and paths; NULL = they are this one's */
    arena strings;        /* names and paths */
    size_t tensor_cap, file_cap;
};
int64_t source_find(const source *s, const char *name);
void source_dims(const src_tensor *t, uint64_t *rows, uint64_t *cols);
tess_status safetensors_open(const char *path_or_dir, const mem *m, source **out, tess_error *err);
tess_status gguf_open(const char *path, const mem *m, source **out, tess_error *err);
void source_close(source *s);
/* All inputs are as they were when opened; else an error that names the file. */
tess_status source_unchanged(const source *s, tess_error *err);
tess_status source_file_unchanged(const source *s, uint32_t file, tess_error *err);

/* ---- for the readers that provide a source ---- */
tess_status source_new(const mem *m, const char *kind, source **out,
                       tess_error *err); /* read = source_read_file */
tess_status source_add_file(source *s, const char *path, uint32_t *index, tess_error *err); /* opens it */
tess_status source_add_tensor(source *s, const src_tensor *t, const char *name, size_t name_len,
                              tess_error *err);
tess_status source_sort(source *s, tess_error *err); /* by name; a name twice is refused */
/* Elements and bytes of one block of a dtype (1 and the size for floats); false for SRC_OTHER. */
bool source_block(uint32_t dtype, uint32_t *elems, uint32_t *bytes);
/* The `read` of sources whose tensors lie row-major in files. */
tess_status source_read_file(const source *s, uint32_t i, uint64_t row0, uint64_t n_rows, uint64_t k0,
                             uint64_t n_k, bool raw, void *dst, tess_error *err);
/* Rule 16 of names: 1 to 255 bytes of strict UTF-8, no control characters, no leading "/", no "..". */
bool source_name_ok(const char *name, size_t len);

/* GGUF metadata, for gguf_config.c and the tokenizer: views into memory of the source. type: as in the GGUF
 * document. */
typedef struct {
    const char *key;
    size_t key_len;
    uint32_t type, elem_type;
    uint64_t n;
    const uint8_t *data;
} gguf_kv;
const gguf_kv *gguf_find(const source *s, const char *key);
uint64_t gguf_u64(const source *s, const char *key, uint64_t def);
double gguf_f64(const source *s, const char *key, double def);
const char *gguf_str(const source *s, const char *key, size_t *len);
/* Number of values: of an array its length, else 1. Value i as a whole number; def when it is none, or negative. */
uint64_t gguf_count(const gguf_kv *kv);
uint64_t gguf_u64_at(const gguf_kv *kv, uint64_t i, uint64_t def);
const char *gguf_str_at(const gguf_kv *kv, uint64_t i, size_t *len); /* amortized: builds an index at open */
#endif
