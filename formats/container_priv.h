/*
 * container_priv.h - what the files of the container share: numbers of the format, the header, geometry, chunk
 * codec.
 *
 *   container_head.c   header page and trailer: bytes <-> ct_head, with their hashes
 *   container_geom.c   rows x K view of a tensor, boxes of pieces, bytes of chunks, rules for names: the one
 *                      place of these formulas, used by the reader and by the writer
 *   container_codec.c  chunk payloads and blobs: byte planes and zstd; the only file that includes zstd.h
 *   container_open.c   parts of a set, sections into private memory, lookups
 *   container_check.c  sections into tables; every rule about them
 *   container_read.c   maps, chunks, rows, blobs
 *   container_verify.c content hashes and ct_verify
 *   container_plan.c   the writer's lists, layout and chunk plan, sampling of what is worth coding
 *   container_write.c  the writer's data: boxes in, chunks out, in order, by several threads
 *   container_meta.c   the writer's sections, uuid, headers, commit
 *
 * docs/format.md specifies the bytes.
 */
#ifndef TESS_CONTAINER_PRIV_H
#define TESS_CONTAINER_PRIV_H
#include "container.h"
#include "hash.h"
#include "os.h"

enum {
    CT_HEAD_SIZE = 4096,
    CT_TRAILER_SIZE = 64,
    CT_TABLE_AT = 512,
    CT_TABLE_REC = 48,
    CT_HEAD_HASH_AT = 4080,
    CT_SEGMENT_ALIGN = 4096,
    CT_PIECE_ALIGN = 64,
    CT_SECTION_ALIGN = 64,
    CT_BLOB_ALIGN = 8,
    CT_MAX_SECTIONS = 32,
    CT_MAX_AXES = 64,
    CT_MAX_BLOBS = 64,
    CT_MAX_PARTS = 999,
    CT_MAX_NAME = 255,
    CT_MAX_REC = 4096,
    CT_MAX_TENSORS = 1 << 20,
    CT_MAX_PIECES = 1 << 24,
    CT_MAX_CHUNKS = 1 << 26,
    CT_CHUNK_TARGET = 1 << 20,
    CT_CHUNK_MAX = 1 << 24,
    CT_META_MAX = 1 << 30,
    CT_BLOB_MAX = 1 << 28,
    CT_PLANE_HEAD = 16 /* u32 plane_csize[4] before the planes of a chunk */
};
#define CT_DIM_MAX (UINT64_C(1) << 40)
#define CT_ELEMENTS_MAX (UINT64_C(1) << 48)
#define CT_FILE_MAX (UINT64_C(1) << 48)
#define CT_UNITS_MAX (UINT64_C(1) << 31)
#define CT_NONE UINT32_MAX

enum { CT_SPLIT_NONE = 255 };
enum { CT_INCOMPAT_TILE8 = 1 };  /* some tensor has LAYOUT_TILE8 */
enum { CT_INCOMPAT_KNOWN = CT_INCOMPAT_TILE8 };
enum {
    SEC_STRS = 1,
    SEC_AXES,
    SEC_BNDS,
    SEC_TENS,
    SEC_PIEC,
    SEC_CHNK,
    SEC_SEGM,
    SEC_BLOB,
    SEC_PROV,
    SEC_CSHA,
    SEC_KEYV,
    SEC_BDAT,
    SEC_COUNT
};
enum { SEC_REQUIRED = 1, SEC_LAZY = 2 /* hash is not checked at open */ };
enum {
    REC_AXES = 40,
    REC_BNDS = 4,
    REC_TENS = 128,
    REC_PIEC = 64,
    REC_CHNK = 32,
    REC_SEGM = 24,
    REC_BLOB = 48
};
enum { FILTER_NONE = 0, FILTER_PLANES = 1, FILTER_BF16 = 2 };
enum { PIECE_RAW_CONTIG = 1, TENSOR_ALIAS = 1, BLOB_ZSTD = 1 };

static inline void wr16(void *p, uint64_t v) { memcpy(p, &v, 2); } /* the low bytes: hosts are little-endian */
static inline void wr32(void *p, uint64_t v) { memcpy(p, &v, 4); }
static inline void wr64(void *p, uint64_t v) { memcpy(p, &v, 8); }

/* ---- header ---- */
typedef struct { uint32_t kind, flags, rec; uint64_t off, len; uint8_t hash[16]; } ct_section;
typedef struct {
    uint32_t minor, split_no, split_count, tp, kind, n_sections;
    uint64_t incompat, rocompat, compat, file_size, data_len, logical_bytes, param_count, created;
    uint8_t uuid[16], index_hash[16], parent[16], header_hash[16];
    char writer[33];
    ct_section sec[CT_MAX_SECTIONS];
} ct_head;
/* Header page and trailer of a part; fills h->header_hash. */
void ct_head_put(ct_head *h, uint8_t page[CT_HEAD_SIZE], uint8_t trailer[CT_TRAILER_SIZE]);
/* Hash of the section table, as index_hash of every part holds it. */
void ct_table_hash(const ct_head *h, uint8_t out[16]);
/* Parses and checks header page and trailer of a file of `size` bytes. err has the form of ct_bad. */
tess_status ct_head_get(ct_head *h, const char *path, uint64_t size, const uint8_t *page,
                        const uint8_t *trailer, tess_error *err);
/* "PATH: at offset OFF: text", FORMAT. */
tess_status ct_bad(tess_error *err, const char *path, uint64_t off, const char *fmt, ...) PRINTF_LIKE(4, 5);

/* ---- geometry ---- */
typedef struct { uint64_t rows, k; } ct_view;
ct_view ct_view_of(const ct_tensor *t);              /* shape must have passed ct_shape_bad */
/* Rank, dimensions, dtype and layout against each other; NULL = good. */
const char *ct_shape_bad(const ct_tensor *t);
const char *ct_name_bad(const char *s, size_t n);    /* NULL = good; s need not be terminated */
bool ct_split_k(const ct_tensor *t);                 /* pieces are column ranges */
uint32_t ct_axis_pieces(const arch_axis *x, uint32_t tp);
const char *ct_axis_bad(const arch_axis *x);
/* Box and leaves of piece p of n; x is the tensor's axis, or NULL when it is not split. */
void ct_piece_box(const ct_tensor *t, const arch_axis *x, uint32_t n, uint32_t p, ct_piece *out);
/* Lengths in K of the leaves of a piece; returns their number. The whole tensor: pieces = 1. */
uint32_t ct_piece_leaves(const ct_tensor *t, const arch_axis *x, const ct_piece *p, uint64_t k[MAX_LEAVES]);
/* Rows that a writer puts into a chunk; 0 = rows are too long for the format. */
uint32_t ct_rows_per_chunk(const ct_tensor *t, const ct_piece *p, const uint64_t *k, uint32_t n_leaves);
/* Bytes of chunk c (number within the piece), decoded; its rows. False on overflow. */
bool ct_chunk_bytes(const ct_tensor *t, const ct_piece *p, const uint64_t *k, uint32_t n_leaves, uint32_t c,
                    uint64_t *bytes, uint64_t *n_rows);
/* Bytes of a tensor without regard to pieces and coding; padding of rows counted once. */
bool ct_logical_bytes(const ct_tensor *t, const arch_axis *x, uint64_t *bytes);
/* Hashes of n_rows rows, each cut in leaves, into out[row * out_stride + leaf]. src: float and integer rows
 * without gaps, or the tile image of q8/q4. tmp: ct_hash_tmp bytes, for q8/q4 only. */
void ct_hash_rows(const ct_tensor *t, const uint8_t *src, uint64_t n_rows, const uint64_t *k, uint32_t n_leaves,
                  uint64_t *out, uint64_t out_stride, uint8_t *tmp);
size_t ct_hash_tmp(const ct_tensor *t, const uint64_t *k, uint32_t n_leaves);

/* ---- codec ---- */
typedef struct ct_enc ct_enc;
struct ZSTD_DCtx_s;
tess_status ct_enc_open(const mem *m, ct_enc **out, tess_error *err);
void ct_enc_close(ct_enc *e);
/* Encodes n bytes into dst (room n), or copies them when coding does not help; sets csize, usize, codec,
 * filter, esize and nplanes of c. planes: n bytes of scratch. False: zstd failed for want of memory. */
bool ct_encode(ct_enc *e, uint32_t dtype, const uint8_t *src, uint32_t n, uint8_t *dst, uint8_t *planes,
               ct_chunk *c);
/* What a chunk of this dtype may be coded with; NULL = good. */
const char *ct_codec_bad(uint32_t dtype, const ct_chunk *c);
/* stored (c->csize bytes) to dst (c->usize); planes: c->usize bytes of scratch. NULL = good, else what is
 * wrong. */
const char *ct_decode(struct ZSTD_DCtx_s *d, const ct_chunk *c, const uint8_t *stored, uint8_t *dst,
                      uint8_t *planes);
/* Plain zstd of a blob: 0 = it would not save a tenth. dst has room for n bytes. */
size_t ct_zip(const mem *m, const void *src, size_t n, void *dst);
const char *ct_unzip(struct ZSTD_DCtx_s *d, const void *src, size_t n, void *dst, size_t want);
struct ZSTD_DCtx_s *ct_dctx_open(const mem *m);
void ct_dctx_close(struct ZSTD_DCtx_s *d);

/* ---- the open file ---- */
typedef struct { char *path; os_file file; const uint8_t *map; ct_head head; } ct_part;
typedef struct {
    uint8_t *data;
    uint64_t off, len, rec, count;
} ct_sec; /* data: private copy with a zero byte after it */
struct ct_file {
    const mem *m;
    uint32_t flags, n_parts;
    ct_part *parts;
    arena a;             /* tables and names */
    ct_sec sec[SEC_COUNT];
    uint32_t *order;     /* pieces as they lie in the parts */
    ct_tensor *tensors;
    ct_piece *pieces;
    ct_chunk *chunks;
    arch_axis *axes;
    ct_blob *blobs;
    ct_segment *segments;
    kvs kv;
    ct_info info;
};
/* Opens the parts at exactly these paths. */
tess_status ct_open_list(const char *const *paths, uint32_t n, uint32_t flags, const mem *m, ct_file **out,
                         tess_error *err);
/* Sections into the tables of f, checking every rule. */
tess_status ct_parse_tables(ct_file *f, tess_error *err);
static inline const arch_axis *ct_axis_of(const ct_file *f, const ct_tensor *t)
{
    return t->split_dim == CT_SPLIT_NONE ? NULL : &f->axes[t->axis];
}

struct ct_scratch {
    const mem *m;
    struct ZSTD_DCtx_s *dctx;
    uint8_t *stored, *plain, *planes, *tmp;
    size_t stored_cap, plain_cap, planes_cap, tmp_cap;
    const ct_file *file; /* plain holds chunk `chunk` of it, decoded; NULL = nothing */
    uint64_t chunk, hash;
};
bool ct_room(const mem *m, uint8_t **p, size_t *cap, size_t want); /* contents are lost */
/* Reads a chunk by pread into dst (csize bytes) and checks its hash unless CT_NO_VERIFY and !always. */
tess_status ct_load_chunk(const ct_file *f, uint32_t piece, uint64_t chunk, uint8_t *dst, bool always,
                          tess_error *err);
uint32_t ct_piece_of_chunk(const ct_file *f, uint64_t chunk);

/* ---- the writer ---- */
typedef struct { char *name; uint8_t *stored; size_t csize, usize; uint8_t plain_hash[16]; } ct_wblob;
typedef struct {
    ct_tensor t;
    uint32_t user;       /* index that the caller knows it by */
    bool coded;
    uint64_t chunks_left;
    uint64_t *hashes;    /* [rows][leaves] while its chunks are written, else NULL */
} ct_wtensor;
typedef struct { os_out out; uint64_t end; bool open; } ct_wpart; /* end: bytes written so far */
struct ct_writer {
    const mem *m;
    ct_write_options o;
    char *path, writer[33];
    bool done;
    arena a;             /* names */
    ct_wtensor *tensors; size_t n_tensors, cap_tensors; /* order of ct_add_tensor, sorted by name in ct_write */
    arch_axis axes[CT_MAX_AXES]; uint32_t n_axes;
    ct_wblob blobs[CT_MAX_BLOBS]; uint32_t n_blobs;
    uint8_t *kv, *prov; size_t kv_len, prov_len;
    ct_piece *pieces;
    ct_chunk *chunks;
    ct_segment *segments;
    uint32_t *order; /* order: pieces as they are written */
    uint64_t n_pieces, n_chunks; uint32_t n_segments;
    uint64_t max_box, max_tmp; /* largest chunk decoded, largest ct_hash_tmp */
    uint64_t logical_bytes, param_count, data_bytes;
    bool any_coded, any_tile8;
    ct_wpart *parts; uint32_t n_parts; size_t cap_parts;
};
tess_status ct_plan(ct_writer *w, pool *p, ct_read_fn read, void *user, tess_error *err);
tess_status ct_write_data(ct_writer *w, pool *p, ct_read_fn read, void *user, ct_progress_fn progress,
                          void *progress_user, tess_error *err);
tess_status ct_write_meta(ct_writer *w, tess_error *err); /* sections, headers, check, commit */
static inline const arch_axis *ct_waxis(const ct_writer *w, const ct_tensor *t)
{
    return t->split_dim == CT_SPLIT_NONE ? NULL : &w->axes[t->axis];
}
#endif
