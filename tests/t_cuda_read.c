/*
 * t_cuda_read.c - what ranks on devices read of a file: every chunk once, however many ranks have a part of it. The calls of pread are
 * counted here, not taken from what the library says of itself; what opening for the tokenizer alone reads is taken off.
 *
 * CUEMU_MODEL=FILE tries that file on four ranks, CUEMU_READ_MOST=BYTES is a further limit (tests/cuemu/reading.sh: the plan's).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine_kit.h"

static uint64_t n_read; /* atomic */

/* The library's calls come here. */
ssize_t pread(int fd, void *p, size_t n, off_t off)
{
    ssize_t got = syscall(SYS_pread64, fd, p, n, off);
    if (got > 0) __atomic_add_fetch(&n_read, (uint64_t)got, __ATOMIC_RELAXED);
    return got;
}
ssize_t pread64(int fd, void *p, size_t n, off_t off) { return pread(fd, p, n, off); }

static uint64_t read_by(const char *file, const char *devices, uint32_t flags, tess_model_info *info)
{
    tess_model *m;
    tess_error e;
    tess_model_params p;
    tess_model_params_init(&p);
    p.devices = devices;
    p.flags = flags;
    p.n_threads = 2;
    cuemu_reset(1);
    n_read = 0;
    if (tess_model_open(file, &p, &m, &e) < 0) fail_msg("%s", e.text);
    tess_model_info_init(info);
    assert_int_equal(tess_model_get_info(m, info, &e), TESS_OK);
    tess_model_close(m);
    no_reports();
    return n_read;
}

/* Bytes of all chunks of weights, as stored. */
static uint64_t stored(const char *file)
{
    tess_error e;
    ct_file *f;
    uint64_t sum = 0;
    if (ct_open(file, 0, &mem_libc, &f, &e) < 0) fail_msg("%s", e.text);
    for (uint32_t i = 0; i < ct_get(f)->n_pieces; i++)
        for (uint32_t c = 0; c < ct_get(f)->pieces[i].n_chunks; c++)
            sum += ct_get(f)->chunks[ct_get(f)->pieces[i].first_chunk + c].csize;
    ct_close(f);
    return sum;
}

static void try_file(const char *file, const char *devices)
{
    tess_model_info info;
    const char *limit = getenv("CUEMU_READ_MOST");
    uint64_t own = stored(file), head = read_by(file, "cpu", TESS_MODEL_TOKENIZER_ONLY, &info);
    uint64_t got = read_by(file, devices, TESS_MODEL_NO_MMAP, &info) - head;
    printf("%s on %s: read %llu bytes, stored %llu\n", file, devices, (unsigned long long)got, (unsigned long long)own);
    assert_true(got <= own * 102 / 100 && got >= own * 98 / 100);
    assert_true(info.read_bytes <= got && info.read_bytes >= got * 98 / 100); /* what the library says */
    if (limit) assert_true(got <= strtoull(limit, NULL, 10));
}

static void every_chunk_once(void **state)
{
    (void)state;
    if (getenv("CUEMU_MODEL")) {
        try_file(getenv("CUEMU_MODEL"), "cuda:0,1,2,3");
        return;
    }
    for (unsigned i = 0; i < 4; i++) {
        model_kit x;
        tess_error e;
        char file[256];
        model_kit_init(&x);
        x.tp = i & 1 ? 4 : 1;
        x.store = i & 2 ? CT_STORE_ZSTD : CT_STORE_RAW;
        x.a.ffn_size = 320;
        snprintf(file, sizeof file, "%s/t_cuda_read-%ld.tess", getenv("BUILD") ? getenv("BUILD") : "build", (long)getpid());
        if (!model_kit_write(&x, file, &e)) fail_msg("%s", e.text);
        try_file(file, "cuda:0,1,2,3");
        try_file(file, "cuda:0,1,0");
        unlink(file);
    }
}

/* More devices than there are: said with both numbers before any weight is read. */
static void too_few_devices(void **state)
{
    (void)state;
    tess_model *m;
    tess_error e;
    tess_model_info info;
    tess_model_params p;
    model_kit x;
    char file[256];
    if (getenv("CUEMU_MODEL")) skip();
    model_kit_init(&x);
    snprintf(file, sizeof file, "%s/t_cuda_read-%ld.tess", getenv("BUILD") ? getenv("BUILD") : "build", (long)getpid());
    if (!model_kit_write(&x, file, &e)) fail_msg("%s", e.text);
    uint64_t head = read_by(file, "cpu", TESS_MODEL_TOKENIZER_ONLY, &info);
    tess_model_params_init(&p);
    p.devices = "cuda:0,1,2";
    cuemu_set_devices(2);
    n_read = 0;
    assert_int_equal(tess_model_open(file, &p, &m, &e), TESS_E_DEVICE);
    assert_null(m);
    assert_non_null(strstr(e.text, "needs 3 CUDA devices, this machine has 2"));
    assert_true(n_read <= head);
    no_reports();
    unlink(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_chunk_once), cmocka_unit_test(too_few_devices)};
    cuemu_set_quiet(true);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
