/*
 * container.h - the .tess container: reading, writing, verifying. docs/format.md is the specification.
 *
 * ct_file is a container whose metadata was read into private memory, checked against every hash and rule, and parsed
 * from that copy. It is immutable; any thread may use it. Weight bytes are reached by ct_map_piece (raw pieces, mapped)
 * or ct_read_rows (any piece, decoded; every chunk's hash is checked first unless CT_NO_VERIFY).
 *
 * Every tensor is seen as a matrix of rows x K: rank 1 is one row of shape[0] columns, rank 2 is shape[0] x shape[1], higher
 * ranks join all dimensions but the last into rows (and are never split). split_dim counts dimensions of shape, so the only
 * dimension of a vector is 0 and its pieces are column ranges of its one row. Pieces of an alias are those of its target.
 *
 * The writer is declarative: the caller describes axes, tensors, key-values and blobs, then ct_write pulls the weights
 * through a callback, box by box, from several threads, holding one chunk per thread in memory.
 */
#ifndef TESS_CONTAINER_H
#define TESS_CONTAINER_H
#include "arch.h"
#include "kvs.h"
#include "mem.h"
#include "pool.h"

enum { CT_KIND_MODEL = 1, CT_KIND_TOKENIZER = 2, CT_KIND_ADAPTER = 3, CT_KIND_KV = 4, CT_KIND_TRAIN = 5 };
enum { CT_CODEC_RAW = 0, CT_CODEC_ZSTD = 1 };
enum { CT_STORE_AUTO = 0, CT_STORE_RAW = 1, CT_STORE_ZSTD = 2 };
enum { CT_NO_MMAP = 1, CT_NO_VERIFY = 2 };
#define CT_NO_ALIAS UINT32_MAX

typedef struct {
    char *name;             /* zero-terminated */
    uint32_t dtype, layout, rank; /* layout: of the stored pieces, LAYOUT_* */
    uint64_t shape[4];
    int32_t layer;          /* -1 = global */
    uint32_t role, part, expert;
    uint32_t alias;         /* index of the tensor that holds the data, or CT_NO_ALIAS */
    uint32_t split_dim;     /* index into shape: of a matrix 0 rows, 1 columns; of a vector 0; 255 none */
    uint32_t axis;          /* index into axes when split_dim != 255 */
    uint32_t src_dtype;
    uint32_t first_piece, n_pieces;
    uint8_t content_hash[16];
} ct_tensor;
typedef struct {            /* box: rows [row0, row0 + n_rows), columns [k0, k0 + n_k) of the tensor */
    uint32_t tensor, piece_no, split_file, rows_per_chunk, n_chunks;
    bool raw_contig;
    uint64_t row0, n_rows, k0, n_k, off, stored_len, usize, first_chunk;
    uint32_t leaf0, n_leaves; /* leaves of a column split inside the piece; 0, 1 otherwise */
} ct_piece;
typedef struct { uint64_t off; uint32_t csize, usize; uint64_t hash; uint8_t codec, filter, esize, nplanes; } ct_chunk;
typedef struct { char *name; uint64_t off, csize, usize; bool zstd; uint8_t hash[16]; } ct_blob;
typedef struct { int32_t layer; uint32_t piece_rank, split_file; uint64_t off, len; } ct_segment;
typedef struct ct_file ct_file;

/* ---- reading ---- */
/* Opens any part of a set; finds its siblings in the same directory. Structure, header, section and kv hashes are checked
 * here; weights not. err names the part, the offset and the field. */
tess_status ct_open(const char *path, uint32_t flags, const mem *m, ct_file **out, tess_error *err);
void ct_close(ct_file *f);
typedef struct {
    const char *path;       /* of part 1 */
    uint32_t kind, n_tensors, n_pieces, n_chunks, n_axes, n_blobs, n_segments, n_splits, tp;
    uint64_t file_bytes, logical_bytes, param_count, incompat, rocompat, compat, created;
    const uint8_t *uuid;
    char writer[33];
    const ct_tensor *tensors; /* ascending by name */
    const ct_piece *pieces; const ct_chunk *chunks; const arch_axis *axes; const ct_blob *blobs; const ct_segment *segments;
    const kvs *kv;
    const char *prov; size_t prov_len; /* provenance JSON text */
} ct_info;
const ct_info *ct_get(const ct_file *f);
int64_t ct_find(const ct_file *f, const char *name); /* index of a tensor, -1 = none */
/* Address of a raw piece in the map; NULL when the piece is coded, or maps are off. Its bytes have not been checked:
 * call ct_check_chunk for its chunks first. */
const void *ct_map_piece(const ct_file *f, uint32_t piece);
/* Scratch of one thread: grows as needed. */
typedef struct ct_scratch ct_scratch;
tess_status ct_scratch_open(const mem *m, ct_scratch **out, tess_error *err);
void ct_scratch_close(ct_scratch *s);
/* Reads and checks the hash of one chunk (global number), no decode. */
tess_status ct_check_chunk(const ct_file *f, uint64_t chunk, ct_scratch *s, tess_error *err);
/* Rows [row0, row0 + n_rows) of a piece (numbers within the piece), all its columns. floats with layout ROWS wanted: row r at
 * dst + r * dst_stride. layout TILE8 wanted (row0 % 8 == 0): dst is the tile image of those rows, padded to 8 rows.
 * Any stored layout gives any wanted one for floats; q8/q4 only TILE8. */
tess_status ct_read_rows(const ct_file *f, uint32_t piece, uint64_t row0, uint64_t n_rows, uint32_t layout, void *dst,
                         size_t dst_stride, ct_scratch *s, tess_error *err);
/* Whole blob, decompressed and checked; one mem block plus a zero byte at its end. */
tess_status ct_read_blob(const ct_file *f, uint32_t blob, const mem *m, char **out, size_t *len, tess_error *err);
int64_t ct_find_blob(const ct_file *f, const char *name);
/* For a fault address: 1 and the part's path and offset when addr lies in a map. Async-signal-safe. */
bool ct_fault(const ct_file *f, const void *addr, const char **path, uint64_t *off);
/* content_hash of a tensor: XXH3_128 of the array [row][leaf] of XXH3_64 of each row's bytes within each leaf (one leaf
 * unless columns are split; q8/q4: the bytes d, (m,) q[32] of each group of the row in turn). It depends on neither tp, codec nor layout. */
tess_status ct_content_hash(const ct_file *f, uint32_t tensor, pool *p, uint8_t out[16], tess_error *err);

/* ---- verifying ---- */
enum { CT_VERIFY_QUICK = 0, CT_VERIFY_FULL = 1, CT_VERIFY_DEEP = 2 };
typedef struct { uint64_t errors, bytes, nonfinite; } ct_verify_result;
/* FULL: every chunk hash, padding zero, blobs. DEEP: also decode, content hashes, NaN/Inf counts. Each failure calls report once with one line. */
tess_status ct_verify(const ct_file *f, int depth, pool *p, void (*report)(void *user, const char *line), void *user,
                      void (*progress)(void *user, uint64_t done, uint64_t total), ct_verify_result *out, tess_error *err);

/* ---- writing ---- */
typedef struct ct_writer ct_writer;
typedef struct {
    uint32_t kind, tp, store; /* CT_STORE_* */
    uint64_t split_max;       /* bytes per part; 0 = one file */
    bool force;
    uint64_t created;         /* unix seconds; 0 = reproducible */
    const char *writer;       /* "tessera 0.1.0" */
    const uint8_t *uuid;      /* 16 bytes; NULL = from the contents (reproducible) */
} ct_write_options;
tess_status ct_writer_open(const char *path, const ct_write_options *o, const mem *m, ct_writer **out, tess_error *err);
tess_status ct_add_axis(ct_writer *w, const arch_axis *a, uint32_t *index, tess_error *err);
/* Copies t; of t the fields name, dtype, rank, shape, layer, role, part, expert, alias (index as returned here), split_dim,
 * axis, src_dtype are read. The writer chooses layout, pieces and chunks. */
tess_status ct_add_tensor(ct_writer *w, const ct_tensor *t, uint32_t *index, tess_error *err);
tess_status ct_set_kv(ct_writer *w, const void *kv, size_t len, tess_error *err);       /* copied */
tess_status ct_set_provenance(ct_writer *w, const char *json, size_t len, tess_error *err);
tess_status ct_add_blob(ct_writer *w, const char *name, const void *data, size_t len, tess_error *err);
/* Delivers the box rows x columns of tensor `t` (index of ct_add_tensor): floats row-major without gaps in the tensor's dtype;
 * q8/q4 the TILE8 image of the box (n_rows padded to 8, groups of each leaf in [k0, k0 + n_k) padded to 32).
 * Called from `thread` of the pool, several boxes at once. */
typedef tess_status (*ct_read_fn)(void *user, uint32_t t, uint64_t row0, uint64_t n_rows, uint64_t k0, uint64_t n_k,
                                  void *dst, uint32_t thread, tess_error *err);
typedef void (*ct_progress_fn)(void *user, uint64_t done, uint64_t total);
/* Writes everything into temporary files, syncs, verifies the structure, renames (part 1 last). On an error no file appears. */
tess_status ct_write(ct_writer *w, pool *p, ct_read_fn read, void *user, ct_progress_fn progress, void *progress_user,
                     tess_error *err);
void ct_writer_close(ct_writer *w); /* removes what was not committed */
#endif
