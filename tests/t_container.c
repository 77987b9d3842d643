/*
 * t_container.c - the container: round trips over types, pieces, stores and parts; the writer and its errors.
 */
#include "container_kit.h"

/* ---- round trips ---- */

static void test_round_trips(void **state)
{
    static const uint32_t types[] = {DT_F32, DT_F16, DT_BF16, DT_Q8, DT_Q4}, tps[] = {1, 2, 3, 4, 8, 20};
    UNUSED(state);
    pool *p;
    OK(pool_open(&mem_libc, NULL, 3, &p, err));
    for (size_t d = 0; d < ARRAY_LEN(types); d++) {
        model m;
        uint8_t first[MAX_T][16], uuid[16];
        make_model(&m, types[d], false);
        for (size_t i = 0; i < ARRAY_LEN(tps) * 3; i++) {
            uint32_t tp = tps[i / 3], store = (uint32_t)(i % 3);
            ct_file *f;
            ct_write_options o = {.tp = tp, .store = store, .force = true};
            OK(write_model(&m, at("m.tess"), o, i % 2 ? p : NULL, err));
            OK(ct_open(at("m.tess"), i % 4 == 3 ? CT_NO_MMAP : 0, &mem_libc, &f, err));
            check_file(&m, f);
            verify_good(f, p);
            const ct_info *c = ct_get(f);
            if (i == 0) memcpy(uuid, c->uuid, 16);
            assert_memory_equal(uuid, c->uuid, 16);
            for (uint32_t t = 0; t < c->n_tensors; t++) {
                uint8_t hash[16];
                if (i == 0) memcpy(first[t], c->tensors[t].content_hash, 16);
                assert_memory_equal(first[t], c->tensors[t].content_hash, 16);
                OK(ct_content_hash(f, t, p, hash, err));
                assert_memory_equal(first[t], hash, 16);
            }
            if (store == CT_STORE_RAW) /* nothing but maps */
                for (uint32_t k = 0; k < c->n_pieces; k++) assert_true(c->pieces[k].raw_contig);
            ct_close(f);
        }
    }
    pool_close(p);
}

static void test_store_auto(void **state)
{
    UNUSED(state);
    for (int noise = 0; noise < 2; noise++) {
        model m;
        ct_file *f;
        make_model(&m, DT_BF16, noise);
        OK(write_model(&m, at("a.tess"), (ct_write_options){.tp = 2, .force = true}, NULL, err));
        OK(ct_open(at("a.tess"), 0, &mem_libc, &f, err));
        int64_t q = ct_find(f, "l0.q");
        const ct_tensor *t = &ct_get(f)->tensors[q];
        assert_int_equal(t->layout, noise ? LAYOUT_TILE8 : LAYOUT_ROWS);
        assert_int_equal(ct_get(f)->pieces[t->first_piece].raw_contig, noise);
        int64_t head = ct_find(f, "lm_head.weight");
        assert_int_equal(ct_get(f)->tensors[head].alias, ct_find(f, "model.embed_tokens.weight"));
        assert_int_equal(ct_get(f)->tensors[head].n_pieces, 2);
        assert_int_equal(ct_find(f, "nothing"), -1);
        check_file(&m, f);
        ct_close(f);
    }
}

static void test_blobs_and_kv(void **state)
{
    UNUSED(state);
    model m = {0};
    ct_file *f;
    char *data;
    size_t len;
    OK(write_model(&m, at("t.tess"), (ct_write_options){.kind = CT_KIND_TOKENIZER, .created = 5}, NULL, err));
    OK(ct_open(at("t.tess"), 0, &mem_libc, &f, err));
    const ct_info *o = ct_get(f);
    assert_int_equal(o->kind, CT_KIND_TOKENIZER);
    assert_int_equal(o->n_tensors, 0);
    assert_int_equal(o->created, 5);
    assert_string_equal(o->writer, "tessera test");
    assert_string_equal(o->prov, "{\"a\":1}");
    assert_int_equal(kvs_u64(o->kv, "arch.n_layers", 0), 2);
    OK(ct_read_blob(f, (uint32_t)ct_find_blob(f, "tokenizer.json"), &mem_libc, &data, &len, err));
    assert_int_equal(len, 3000);
    for (size_t i = 0; i < len; i++) assert_int_equal(data[i], 'a' + i % 13);
    assert_int_equal(data[len], 0);
    mem_free(&mem_libc, data);
    OK(ct_read_blob(f, (uint32_t)ct_find_blob(f, "empty"), &mem_libc, &data, &len, err));
    assert_int_equal(len, 0);
    mem_free(&mem_libc, data);
    assert_int_equal(ct_find_blob(f, "x"), -1);
    verify_good(f, NULL);
    ct_close(f);
}

/* All patterns of 16 bits, several chunks, through the coder. */
static tess_status pattern_read(void *user, uint32_t t, uint64_t row0, uint64_t n_rows, uint64_t k0,
                                uint64_t n_k, void *dst, uint32_t thread, tess_error *e)
{
    UNUSED(user); UNUSED(t); UNUSED(k0); UNUSED(thread); UNUSED(e);
    for (uint64_t i = 0; i < n_rows * n_k; i++) {
        uint64_t v = row0 * n_k + i;
        uint16_t u = v % 7 == 0 ? (uint16_t)(v / 7)
                                : (uint16_t)(0x3c00 + v % 5); /* compressible, with every pattern in it */
        memcpy((uint8_t *)dst + i * 2, &u, 2);
    }
    return TESS_OK;
}
static void test_all_patterns(void **state)
{
    UNUSED(state);
    for (uint32_t dt = DT_F16; dt <= DT_BF16; dt++) {
        ct_writer *w;
        ct_file *f;
        ct_scratch *s;
        uint32_t i;
        ct_write_options o = {.kind = CT_KIND_MODEL, .store = CT_STORE_ZSTD, .force = true};
        ct_tensor t = {.name = (char *)(uintptr_t) "w",
                       .dtype = dt,
                       .rank = 2,
                       .shape = {1793, 1024},
                       .layer = -1,
                       .alias = CT_NO_ALIAS,
                       .split_dim = 255};
        OK(ct_writer_open(at("p.tess"), &o, &mem_libc, &w, err));
        OK(ct_add_tensor(w, &t, &i, err));
        OK(ct_write(w, NULL, pattern_read, NULL, NULL, NULL, err));
        ct_writer_close(w);
        OK(ct_open(at("p.tess"), 0, &mem_libc, &f, err));
        OK(ct_scratch_open(&mem_libc, &s, err));
        assert_int_equal(ct_get(f)->chunks[0].codec, CT_CODEC_ZSTD);
        assert_true(ct_get(f)->n_chunks > 2);
        size_t n = 1793 * 1024 * 2;
        uint8_t *a = malloc(n), *b = malloc(n);
        OK(ct_read_rows(f, 0, 0, 1793, LAYOUT_ROWS, a, 2048, s, err));
        pattern_read(NULL, 0, 0, 1793, 0, 1024, b, 0, NULL);
        assert_memory_equal(a, b, n);
        free(a);
        free(b);
        ct_scratch_close(s);
        ct_close(f);
    }
}

/* ---- parts ---- */

static void test_split(void **state)
{
    UNUSED(state);
    model m;
    ct_file *f;
    tess_error e;
    char name[64];
    size_t n1, n2;
    make_model(&m, DT_F32, false);
    OK(write_model(&m, at("set.tess"), (ct_write_options){.tp = 3, .store = CT_STORE_AUTO, .split_max = 200000},
                   NULL, err));
    assert_false(os_exists(at("set.tess")));
    OK(write_model(&m, at("one.tess"),
                   (ct_write_options){.tp = 3, .store = CT_STORE_AUTO, .split_max = 1u << 30}, NULL, err));
    assert_true(os_exists(at("one.tess")));
    uint32_t parts = 0;
    for (uint32_t c = 2; c < 20 && !parts; c++) {
        snprintf(name, sizeof name, "set-00001-of-%05u.tess", c);
        if (os_exists(at(name))) parts = c;
    }
    assert_true(parts >= 3);
    for (uint32_t i = 0; i < parts; i++) { /* any part opens the set */
        snprintf(name, sizeof name, "set-%05u-of-%05u.tess", i + 1, parts);
        OK(ct_open(at(name), 0, &mem_libc, &f, err));
        assert_int_equal(ct_get(f)->n_splits, parts);
        if (i == 1) {
            check_file(&m, f);
            verify_good(f, NULL);
        }
        ct_close(f);
        struct stat s;
        assert_int_equal(stat(at(name), &s), 0);
        assert_true(s.st_size <= 200000);
    }
    /* the second part of another conversion of the same tensors */
    m.noise = true;
    OK(write_model(&m, at("other.tess"),
                   (ct_write_options){.tp = 3, .store = CT_STORE_RAW, .split_max = 200000}, NULL, err));
    char path2[64];
    snprintf(path2, sizeof path2, "set-00002-of-%05u.tess", parts);
    uint8_t *p1 = slurp(at(path2), &n1);
    uint32_t oparts = 0;
    for (uint32_t c = 2; c < 20 && !oparts; c++) {
        snprintf(name, sizeof name, "other-00002-of-%05u.tess", c);
        if (os_exists(at(name))) oparts = c;
    }
    uint8_t *p2 = slurp(at(name), &n2);
    spill(at(path2), p2, n2);
    snprintf(name, sizeof name, "set-00001-of-%05u.tess", parts);
    assert_int_equal(try_open(at(name), &e), TESS_E_FORMAT);
    assert_non_null(strstr(e.text, "uuid"));
    assert_non_null(strstr(e.text, "set-00002"));
    spill(at(path2), p1, n1);
    assert_int_equal(try_open(at(name), &e), TESS_OK);
    assert_int_equal(unlink(at(path2)), 0);
    assert_int_equal(try_open(at(name), &e), TESS_E_IO);
    assert_non_null(strstr(e.text, "set-00002"));
    mem_free(&mem_libc, p1);
    mem_free(&mem_libc, p2);
}

/* ---- writing ---- */

static int count_dir(void)
{
    char cmd[128];
    int n = -1;
    snprintf(cmd, sizeof cmd, "ls -A '%s' | wc -l", dir);
    FILE *f = popen(cmd, "r");
    if (f && fscanf(f, "%d", &n) != 1) n = -1;
    if (f) pclose(f);
    return n;
}

static void test_write_errors(void **state)
{
    UNUSED(state);
    model m;
    tess_error e;
    make_model(&m, DT_BF16, false);
    OK(write_model(&m, at("w.tess"), (ct_write_options){.tp = 1, .force = true}, NULL, err));
    int before = count_dir();
    assert_int_equal(write_model(&m, at("w.tess"), (ct_write_options){.tp = 1}, NULL, &e), TESS_E_IO);
    assert_non_null(strstr(e.text, "--force"));
    assert_int_equal(write_model(&m, at("no/such/w.tess"), (ct_write_options){.tp = 1}, NULL, &e), TESS_E_IO);
    for (uint32_t store = 0; store < 3; store++) {
        m.fail_at = 5;
        assert_int_equal(write_model(&m, at("x.tess"), (ct_write_options){.tp = 1, .store = store}, NULL, &e),
                         TESS_E_IO);
        assert_string_equal(e.text, "the source broke");
    }
    m.fail_at = 0;
    /* a limit on the size of files stands for a full disk */
    struct rlimit old, small = {30000, 30000};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (uint32_t store = 0; store < 3; store++)
        for (uint64_t split = 0; split < 200000; split += 150000)
            assert_int_equal(write_model(&m, at("x.tess"),
                                         (ct_write_options){.tp = 2, .store = store, .split_max = split}, NULL,
                                         &e),
                             TESS_E_IO);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(count_dir(), before); /* no temporary file is left */
}

static void test_writer_arguments(void **state)
{
    UNUSED(state);
    ct_writer *w;
    uint32_t i;
    tess_error e;
    ct_write_options o = {.kind = CT_KIND_MODEL};
    OK(ct_writer_open(at("args.tess"), &o, &mem_libc, &w, err));
    arch_axis x = {.kind = AXIS_FFN, .unit = 32, .dim = 100, .n_units = 4, .n_leaves = 2, .leaf = {0, 2, 4}};
    OK(ct_add_axis(w, &x, &i, err));
    x.leaf[1] = 4;
    assert_int_equal(ct_add_axis(w, &x, &i, &e), TESS_E_ARG);
    ct_tensor good = {.name = (char *)(uintptr_t) "a",
                      .dtype = DT_BF16,
                      .rank = 2,
                      .shape = {100, 10},
                      .layer = -1,
                      .alias = CT_NO_ALIAS,
                      .split_dim = 0},
              t = good;
    OK(ct_add_tensor(w, &t, &i, err));
    static const char *const names[] = {"", "/x", "../x", "a/../b", "a\nb", "\xff", "\xc2\x85"};
    for (size_t k = 0; k < ARRAY_LEN(names); k++) {
        t = good;
        t.name = (char *)(uintptr_t)names[k];
        assert_int_equal(ct_add_tensor(w, &t, &i, &e), TESS_E_ARG);
        assert_int_equal(ct_add_blob(w, names[k], "", 0, &e), TESS_E_ARG);
    }
    t = good, t.dtype = 77;
    assert_int_equal(ct_add_tensor(w, &t, &i, &e), TESS_E_ARG);
    t = good, t.shape[0] = 99;
    assert_int_equal(ct_add_tensor(w, &t, &i, &e), TESS_E_ARG);
    t = good, t.axis = 1;
    assert_int_equal(ct_add_tensor(w, &t, &i, &e), TESS_E_ARG);
    t = good, t.alias = 3;
    assert_int_equal(ct_add_tensor(w, &t, &i, &e), TESS_E_ARG);
    t = good, t.dtype = DT_Q8, t.rank = 1, t.split_dim = 255;
    assert_int_equal(ct_add_tensor(w, &t, &i, &e), TESS_E_ARG);
    assert_int_equal(ct_set_kv(w, "x", 1, &e), TESS_E_FORMAT);
    OK(ct_add_tensor(w, &good, &i, err)); /* the same name again is seen when writing */
    model m = {0};
    assert_int_equal(ct_write(w, NULL, model_read, &m, NULL, NULL, &e), TESS_E_ARG);
    assert_non_null(strstr(e.text, "twice"));
    ct_writer_close(w);
    assert_false(os_exists(at("args.tess")));
}

/* Equal input gives equal bytes, whatever the threads. */
static void test_reproducible(void **state)
{
    UNUSED(state);
    model m;
    make_model(&m, DT_BF16, false);
    pool *p;
    size_t n1, n2;
    OK(pool_open(&mem_libc, NULL, 4, &p, err));
    for (uint32_t store = 0; store < 3; store++) {
        OK(write_model(&m, at("r1.tess"), (ct_write_options){.tp = 4, .store = store, .force = true}, NULL,
                       err));
        OK(write_model(&m, at("r2.tess"), (ct_write_options){.tp = 4, .store = store, .force = true}, p, err));
        uint8_t *a = slurp(at("r1.tess"), &n1), *b = slurp(at("r2.tess"), &n2);
        assert_int_equal(n1, n2);
        assert_memory_equal(a, b, n1);
        mem_free(&mem_libc, a);
        mem_free(&mem_libc, b);
    }
    pool_close(p);
}

static void test_faults(void **state)
{
    UNUSED(state);
    model m;
    ct_file *f;
    const char *path;
    uint64_t off;
    make_model(&m, DT_BF16, false);
    OK(write_model(&m, at("f.tess"), (ct_write_options){.store = CT_STORE_RAW, .force = true}, NULL, err));
    OK(ct_open(at("f.tess"), 0, &mem_libc, &f, err));
    const uint8_t *map = ct_map_piece(f, 0);
    if (map) {
        assert_true(ct_fault(f, map + 5, &path, &off));
        assert_int_equal(off, ct_get(f)->pieces[0].off + 5);
        assert_string_equal(path, at("f.tess"));
    }
    assert_false(ct_fault(f, &m, &path, &off));
    ct_close(f);
}

/* Every allocation fails once: an error, nothing leaked (under ASan), no file left. */
static int alloc_left;
static void *counting_alloc(void *user, size_t size, size_t align)
{
    UNUSED(user);
    return alloc_left-- > 0 ? aligned_alloc(align, size) : NULL;
}
static void counting_free(void *user, void *p, size_t size)
{
    UNUSED(user);
    UNUSED(size);
    free(p);
}
static void test_no_memory(void **state)
{
    UNUSED(state);
    const mem m = {NULL, counting_alloc, counting_free, NULL};
    model src = {0};
    ct_file *f;
    ct_writer *w;
    uint32_t i;
    src.n = 0;
    uint32_t ax = add_axis(&src, AXIS_FFN, 32, 100);
    add(&src, "a", DT_BF16, 100, 64, 0, ax, 0);
    add(&src, "b", DT_F32, 100, 0, 255, 0, 0);
    bool done = false;
    for (int n = 0; n < 400 && !done; n++) {
        tess_error e = {0};
        alloc_left = n;
        ct_write_options o = {.kind = CT_KIND_MODEL, .tp = 2, .force = true};
        tess_status st = ct_writer_open(at("oom.tess"), &o, &m, &w, &e);
        if (st == TESS_OK) {
            st = ct_add_axis(w, &src.axis[0], &i, &e);
            for (uint32_t t = 0; st == TESS_OK && t < src.n; t++) st = ct_add_tensor(w, &src.t[t], &i, &e);
            if (st == TESS_OK) st = ct_add_blob(w, "blob", "some bytes", 10, &e);
            if (st == TESS_OK) st = ct_write(w, NULL, model_read, &src, NULL, NULL, &e);
            ct_writer_close(w);
        }
        if (st == TESS_OK) st = ct_open(at("oom.tess"), 0, &m, &f, &e);
        if (st == TESS_OK) {
            ct_verify_result r;
            st = ct_verify(f, CT_VERIFY_DEEP, NULL, NULL, NULL, NULL, &r, &e);
            ct_close(f);
        }
        if (st < 0 && st != TESS_E_NOMEM) fail_msg("allocation %d: %s", n, e.text);
        done = st == TESS_OK;
    }
    assert_true(done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_store_auto),
        cmocka_unit_test(test_blobs_and_kv),
        cmocka_unit_test(test_all_patterns),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_write_errors),
        cmocka_unit_test(test_writer_arguments),
        cmocka_unit_test(test_reproducible),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests_name("container", tests, set_up, tear_down);
}
