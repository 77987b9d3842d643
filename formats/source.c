/*
 * source.c - what all checkpoint sources share: the tables of files and tensors, and reading boxes of tensors
 * that lie row-major in files.
 *
 * Reads go through pread, never through a map: a file that shrinks meanwhile is then an error with an offset
 * instead of a signal or silent zeros. A box is read in steps of at most 64 KiB through a buffer on the stack;
 * raw full rows go straight to the destination. Values of blocks are those of gguf_blocks.h.
 */
#include "source.h"

#include <stdlib.h>

#include "gguf_blocks.h"
#include "utf8.h"

enum { STEP = 1 << 16, MAX_NAME = 255 };

tess_status source_new(const mem *m, const char *kind, source **out, tess_error *err)
{
    *out = mem_zalloc(m, sizeof **out);
    if (!*out) return ERR(err, TESS_E_NOMEM, "no memory for a %s source", kind);
    (*out)->m = m;
    (*out)->kind = kind;
    (*out)->read = source_read_file;
    arena_init(&(*out)->strings, m);
    return TESS_OK;
}

void source_close(source *s)
{
    if (!s) return;
    bool own = !s->lower;
    if (s->close) s->close(s);
    for (uint32_t i = 0; own && i < s->n_files; i++) os_close(&s->files[i]);
    if (own) mem_free(s->m, s->files);
    if (own) mem_free(s->m, s->paths);
    mem_free(s->m, s->tensors);
    arena_free(&s->strings);
    mem_free(s->m, s);
}

tess_status source_add_file(source *s, const char *path, uint32_t *index, tess_error *err)
{
    size_t cap = s->file_cap;
    if (!mem_grow(s->m, &s->paths, &cap, s->n_files + 1u, sizeof *s->paths))
        return ERR(err, TESS_E_NOMEM, "%s: no memory", path);
    cap = s->file_cap;
    if (!mem_grow(s->m, &s->files, &cap, s->n_files + 1u, sizeof *s->files))
        return ERR(err, TESS_E_NOMEM, "%s: no memory", path);
    s->file_cap = cap;
    char *copy = arena_strndup(&s->strings, path, strlen(path));
    if (!copy) return ERR(err, TESS_E_NOMEM, "%s: no memory", path);
    TRY(os_open_read(&s->files[s->n_files], path, err));
    s->paths[s->n_files] = copy;
    *index = s->n_files++;
    return TESS_OK;
}

tess_status source_add_tensor(source *s, const src_tensor *t, const char *name, size_t name_len,
                              tess_error *err)
{
    if (s->n_tensors >= (1u << 20)) return ERR(err, TESS_E_FORMAT, "more than %u tensors", 1u << 20);
    char *copy = arena_strndup(&s->strings, name, name_len);
    if (!copy || !mem_grow(s->m, &s->tensors, &s->tensor_cap, s->n_tensors + 1u, sizeof *s->tensors))
        return ERR(err, TESS_E_NOMEM, "no memory for the tensor table");
    s->tensors[s->n_tensors] = *t;
    s->tensors[s->n_tensors++].name = copy;
    return TESS_OK;
}

static int tensor_cmp(const void *a, const void *b)
{
    return strcmp(((const src_tensor *)a)->name, ((const src_tensor *)b)->name);
}

tess_status source_sort(source *s, tess_error *err)
{
    if (s->n_tensors) qsort(s->tensors, s->n_tensors, sizeof *s->tensors, tensor_cmp);
    for (uint32_t i = 1; i < s->n_tensors; i++)
        if (tensor_cmp(&s->tensors[i - 1], &s->tensors[i]) == 0)
            return ERR(err, TESS_E_FORMAT, "%s: tensor \"%s\" occurs twice", s->paths[s->tensors[i].file],
                       s->tensors[i].name);
    return TESS_OK;
}

int64_t source_find(const source *s, const char *name)
{
    uint32_t lo = 0, hi = s->n_tensors;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        int c = strcmp(s->tensors[mid].name, name);
        if (c == 0) return mid;
        if (c < 0) lo = mid + 1;
        else hi = mid;
    }
    return -1;
}

tess_status source_file_unchanged(const source *s, uint32_t file, tess_error *err)
{
    if (!os_file_changed(&s->files[file])) return TESS_OK;
    return ERR(err, TESS_E_IO, "%s: was changed while it was read; convert again when it is complete",
               s->paths[file]);
}

tess_status source_unchanged(const source *s, tess_error *err)
{
    for (uint32_t i = 0; i < s->n_files; i++) TRY(source_file_unchanged(s, i, err));
    return TESS_OK;
}

bool source_name_ok(const char *name, size_t len)
{
    if (len == 0 || len > MAX_NAME || name[0] == '/' || !utf8_valid(name, len)) return false;
    size_t start = 0;
    for (size_t i = 0; i <= len; i++) {
        if (i < len && ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)) return false;
        if (i < len && name[i] != '/') continue;
        if (i - start == 2 && name[start] == '.' && name[start + 1] == '.') return false;
        start = i + 1;
    }
    return true;
}

void source_dims(const src_tensor *t, uint64_t *rows, uint64_t *cols)
{
    *rows = 1;
    for (uint32_t i = 0; i + 1 < t->rank; i++) *rows *= t->shape[i]; /* the product was checked at open */
    *cols = t->rank ? t->shape[t->rank - 1] : 1;
}

bool source_block(uint32_t dtype, uint32_t *elems, uint32_t *bytes)
{
    *elems = 1;
    switch (dtype) {
    case DT_F32: *bytes = 4; return true;
    case DT_F16: case DT_BF16: *bytes = 2; return true;
    default: return gguf_block_size(dtype, elems, bytes);
    }
}

/* What is wanted of each row: columns [k0, k1) of a tensor of this dtype, to dst. */
typedef struct { uint32_t dtype, elems, bytes; uint64_t k0, k1; bool raw; char *dst; } box;

/* Delivers the blocks [b0, b0 + n) of a row, of which p holds the bytes, to the place of that row in the
 * destination. */
static void deliver(const box *x, uint64_t row, uint64_t b0, uint64_t n, const uint8_t *p)
{
    uint64_t width = x->k1 - x->k0, first = b0 * x->elems;
    if (x->raw) {
        memcpy(x->dst + (row * width + first - x->k0) / x->elems * x->bytes, p, n * x->bytes);
        return;
    }
    float *out = (float *)(void *)x->dst + row * width;
    if (x->elems == 1) {
        dtype_to_f32(x->dtype, p, out + (first - x->k0), n);
        return;
    }
    for (uint64_t b = 0; b < n; b++, first += x->elems, p += x->bytes) {
        if (first >= x->k0 && first + x->elems <= x->k1) {
            gguf_block_f32(x->dtype, p, out + (first - x->k0));
            continue;
        }
        float part[GGUF_MAX_BLOCK];
        gguf_block_f32(x->dtype, p, part);
        uint64_t lo = MAX(first, x->k0), hi = MIN(first + x->elems, x->k1);
        memcpy(out + (lo - x->k0), part + (lo - first), (hi - lo) * sizeof *out);
    }
}

tess_status source_read_file(const source *s, uint32_t i, uint64_t row0, uint64_t n_rows, uint64_t k0,
                             uint64_t n_k, bool raw, void *dst, tess_error *err)
{
    const src_tensor *t = &s->tensors[i];
    const os_file *f = &s->files[t->file];
    const char *path = s->paths[t->file];
    box x = {.dtype = t->dtype, .k0 = k0, .raw = raw, .dst = dst};
    uint64_t rows, cols;
    source_dims(t, &rows, &cols);
    if (!source_block(t->dtype, &x.elems, &x.bytes))
        return ERR(err, TESS_E_UNSUPPORTED, "%s: tensor \"%s\" of type %s cannot be read so", path, t->name,
                   t->type);
    if (!range_in(row0, n_rows, rows) || !range_in(k0, n_k, cols) || (raw && (k0 % x.elems || n_k % x.elems)))
        return ERR(err, TESS_E_ARG, "%s: box outside tensor \"%s\", or within its blocks", path, t->name);
    if (n_rows == 0 || n_k == 0) return TESS_OK;
    x.k1 = k0 + n_k;
    uint64_t row_bytes = cols / x.elems * x.bytes, b0 = k0 / x.elems, b1 = ceil_div(x.k1, x.elems);
    uint64_t at = t->off + row0 * row_bytes;
    if (raw && n_k == cols) return os_pread(f, dst, (size_t)(n_rows * row_bytes), at, path, err);
    uint8_t step[STEP];
    uint64_t per = row_bytes <= STEP ? STEP / row_bytes : 0; /* rows in one step, unneeded columns included */
    for (uint64_t r = 0; per && r < n_rows; r += per) {
        uint64_t n = MIN(per, n_rows - r);
        size_t bytes = (size_t)((n - 1) * row_bytes + (b1 - b0) * x.bytes);
        TRY(os_pread(f, step, bytes, at + r * row_bytes + b0 * x.bytes, path, err));
        for (uint64_t j = 0; j < n; j++) deliver(&x, r + j, b0, b1 - b0, step + j * row_bytes);
    }
    uint64_t most = STEP / x.bytes;
    for (uint64_t r = 0; !per && r < n_rows; r++)
        for (uint64_t b = b0; b < b1; b += most) {
            uint64_t n = MIN(most, b1 - b);
            TRY(os_pread(f, step, (size_t)(n * x.bytes), at + r * row_bytes + b * x.bytes, path, err));
            deliver(&x, r, b, n, step);
        }
    return TESS_OK;
}
