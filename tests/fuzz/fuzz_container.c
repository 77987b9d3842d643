/*
 * fuzz_container.c - the container reader on hostile files whose hashes are right.
 *
 * An input that starts like a .tess file is one. Any other input is a list of edits of 12 bytes (u8 place, u8
 * width, u16 position, u64 value) to a good small file which is made at the start: so the fuzzer works on
 * fields and not on bytes that no rule looks at. Then every hash is made right, the file is opened, and all
 * that a caller may do with it is done.
 *
 * Built with -DFUZZ_PLAIN it is a program that runs the files named on its command line.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../container_rehash.h"
#include "container.h"
#include "os.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { EDIT = 12, FILE_MAX = 1 << 22 };
static uint8_t *base; /* the good file */
static size_t base_len;
static int fd = -1;
static char path[] = "/tmp/fuzz_container.XXXXXX";

static tess_status give(void *user, uint32_t t, uint64_t row0, uint64_t n_rows, uint64_t k0, uint64_t n_k,
                        void *dst, uint32_t thread, tess_error *err)
{
    size_t n = t == 2   ? n_rows * n_k * 4
               : t == 3 ? ceil_div(n_rows, 8) * ceil_div(n_k, 32) * Q8_TILE
                        : n_rows * n_k * 2;
    UNUSED(user); UNUSED(row0); UNUSED(k0); UNUSED(thread); UNUSED(err);
    memset(dst, 0x3c, n);
    return TESS_OK;
}

/* Four tensors: coded bf16 by rows, raw f16 by columns, a vector, coded q8; an alias; a blob; key-values. */
static bool make_base(void)
{
    arch_axis x = {
        .kind = AXIS_FFN, .unit = 32, .dim = 100, .n_units = 4, .n_leaves = 4, .leaf = {0, 1, 2, 3, 4}};
    ct_write_options o = {
        .kind = CT_KIND_MODEL, .tp = 2, .store = CT_STORE_ZSTD, .force = true, .writer = "fuzz"};
    const ct_tensor t[] = {
        {.name = (char *)(uintptr_t) "a",
         .dtype = DT_BF16,
         .rank = 2,
         .shape = {100, 24},
         .layer = 0,
         .alias = CT_NO_ALIAS},
        {.name = (char *)(uintptr_t) "b",
         .dtype = DT_F16,
         .rank = 2,
         .shape = {12, 100},
         .layer = 0,
         .alias = CT_NO_ALIAS,
         .split_dim = 1},
        {.name = (char *)(uintptr_t) "c",
         .dtype = DT_F32,
         .rank = 1,
         .shape = {100},
         .layer = -1,
         .alias = CT_NO_ALIAS},
        {.name = (char *)(uintptr_t) "d",
         .dtype = DT_Q8,
         .rank = 2,
         .shape = {12, 40},
         .layer = 1,
         .alias = CT_NO_ALIAS,
         .split_dim = 255},
        {.name = (char *)(uintptr_t) "e",
         .dtype = DT_BF16,
         .rank = 2,
         .shape = {100, 24},
         .layer = -1,
         .alias = 0},
    };
    ct_writer *w;
    kvs_builder *b;
    void *kv_bytes = NULL;
    size_t len;
    uint32_t i;
    bool ok = ct_writer_open(path, &o, &mem_libc, &w, NULL) == TESS_OK &&
              kvs_builder_open(&mem_libc, &b, NULL) == TESS_OK;
    if (!ok) return false;
    kvs_put_u64(b, "n", 3);
    ok = kvs_build(b, &kv_bytes, &len, NULL) == TESS_OK && ct_set_kv(w, kv_bytes, len, NULL) == TESS_OK &&
         ct_add_axis(w, &x, &i, NULL) == TESS_OK;
    for (size_t k = 0; k < ARRAY_LEN(t); k++) ok = ok && ct_add_tensor(w, &t[k], &i, NULL) == TESS_OK;
    char text[300];
    memset(text, 'x', sizeof text);
    ok = ok && ct_add_blob(w, "blob", text, sizeof text, NULL) == TESS_OK &&
         ct_write(w, NULL, give, NULL, NULL, NULL, NULL) == TESS_OK;
    kvs_builder_close(b);
    mem_free(&mem_libc, kv_bytes);
    ct_writer_close(w);
    char *p;
    ok = ok && os_read_whole(path, FILE_MAX, &mem_libc, &p, &base_len, NULL) == TESS_OK;
    if (ok) base = (uint8_t *)p;
    return ok;
}

static void read_all(const ct_file *f)
{
    const ct_info *o = ct_get(f);
    ct_scratch *s;
    ct_verify_result r;
    if (ct_scratch_open(&mem_libc, &s, NULL) < 0) return;
    for (uint32_t i = 0; i < o->n_pieces; i++) {
        const ct_piece *p = &o->pieces[i];
        uint64_t rows = MIN(p->n_rows, (uint64_t)16);
        uint32_t e = dtype_get(o->tensors[p->tensor].dtype)->block_bytes;
        if (p->n_k > FILE_MAX) continue;
        uint8_t *dst = malloc((size_t)(rows + 8) * (p->n_k + 256) * (e > 8 ? 2 : e));
        for (uint32_t layout = 0; dst && layout < 2; layout++) {
            (void)ct_read_rows(f, i, 0, rows, layout, dst, p->n_k * e, s, NULL);
            (void)ct_read_rows(f, i, (p->n_rows - rows) / 8 * 8, rows / 2, layout, dst, p->n_k * e, s, NULL);
        }
        free(dst);
        const volatile uint8_t *map = ct_map_piece(f, i);
        if (map && p->usize) (void)map[p->usize - 1];
    }
    for (uint32_t i = 0; i < o->n_blobs; i++) {
        char *data;
        size_t len;
        (void)ct_read_blob(f, i, &mem_libc, &data, &len, NULL);
        mem_free(&mem_libc, data);
    }
    (void)ct_find(f, "a");
    (void)ct_verify(f, CT_VERIFY_DEEP, NULL, NULL, NULL, NULL, &r, NULL);
    ct_scratch_close(s);
}

/* Applies an edit to a part of the file: header, a section, the trailer, or the data. */
static void edit(uint8_t *p, size_t n, const uint8_t *e)
{
    uint64_t from = 0, len = 4096, width = 1 + e[1] % 8;
    uint32_t kind = e[0] % 16;
    if (kind == 13) from = n - 64, len = 64;
    else if (kind == 14) len = 512 + 48 * 11;
    else if (kind == 15) from = 4096, len = n - 4096 - 64;
    else if (kind) from = rh_section(p, n, kind, &len, NULL);
    if (len <= width || !range_in(from, len, n)) return;
    memcpy(p + from + rd16(e + 2) % (len - width), e + 4, width);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (fd < 0 && ((fd = mkstemp(path)) < 0 || !make_base() || close(fd) != 0 || (fd = open(path, O_RDWR)) < 0))
        abort();
    bool whole = size >= 8 && memcmp(data, base, 8) == 0;
    size_t n = whole ? size : base_len;
    if (n > FILE_MAX) return 0;
    uint8_t *p = malloc(n);
    if (!p) return 0;
    memcpy(p, whole ? data : base, n);
    for (size_t i = 0; !whole && i + EDIT <= size; i += EDIT) edit(p, n, data + i);
    rehash(p, n, true);
    ct_file *
        c; /* the file is written in place: truncating it to nothing first would make the disk wait each time */
    if (pwrite(fd, p, n, 0) == (ssize_t)n && ftruncate(fd, (off_t)n) == 0 &&
        ct_open(path, 0, &mem_libc, &c, NULL) == TESS_OK) {
        read_all(c);
        ct_close(c);
    }
    free(p);
    return 0;
}

#ifdef FUZZ_PLAIN
int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        char *p;
        size_t n;
        tess_error err;
        if (os_read_whole(argv[i], FILE_MAX, &mem_libc, &p, &n, &err) < 0) {
            fprintf(stderr, "%s\n", err.text);
            return 2;
        }
        LLVMFuzzerTestOneInput((const uint8_t *)p, n);
        mem_free(&mem_libc, p);
    }
    unlink(path);
    return 0;
}
#endif
