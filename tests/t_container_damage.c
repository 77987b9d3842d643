/*
 * t_container_damage.c - the container on damaged and hostile files: flips, cuts, and every rule behind the
 * hashes.
 */
#include "container_kit.h"

static void test_flips(void **state)
{
    UNUSED(state);
    size_t n;
    uint8_t *p = small_file(&n, CT_STORE_AUTO, DT_BF16);
    const char *path = at("flip.tess");
    uint64_t seed = 5;
    for (uint32_t kind = 0; kind <= 14; kind++) { /* 0: header, 13: trailer, 14: data */
        uint64_t from = 0, size = 4096;
        if (kind == 13) from = n - 64, size = 64;
        else if (kind == 14) from = 4096, size = rd64(p + 88);
        else if (kind) {
            uint64_t l = 0;
            from = rh_section(p, n, kind, &l, NULL);
            size = l;
        }
        for (int i = 0; size && i < 60; i++) {
            uint64_t pos = from + mix(seed++, kind, 0) % size;
            uint8_t old = p[pos];
            p[pos] = (uint8_t)(old ^ (1u << (seed % 8)));
            spill(path, p, n);
            if (!count_errors(path, CT_VERIFY_FULL))
                fail_msg("flip at %llu of kind %u is not seen", (unsigned long long)pos, kind);
            rehash(p, n, i % 2);
            spill(path, p, n);
            count_errors(path, CT_VERIFY_DEEP); /* whatever it says, it must not crash */
            p[pos] = old;
            rehash(p, n, true);
        }
    }
    spill(path, p, n);
    assert_int_equal(count_errors(path, CT_VERIFY_DEEP), 0);
    mem_free(&mem_libc, p);
}

static void test_truncation(void **state)
{
    UNUSED(state);
    size_t n;
    tess_error e;
    uint8_t *p = small_file(&n, CT_STORE_RAW, DT_BF16), *big;
    const char *path = at("cut.tess");
    for (int i = 0; i < 200; i++) {
        size_t cut = i < 32 ? (size_t)rd64(p + 512 + (size_t)(i / 3) * 48 + 16) + (size_t)(i % 3) - 1
                            : mix(9, (uint64_t)i, 1) % n;
        if (i >= 190) cut = (size_t)(199 - i);
        if (i == 189) cut = n - 1;
        if (cut >= n) continue;
        spill(path, p, cut);
        assert_true(try_open(path, &e) < 0);
        assert_non_null(strstr(e.text, "cut.tess"));
    }
    big = malloc(n + 100);
    memcpy(big, p, n);
    memset(big + n, 0, 100);
    spill(path, big, n + 100);
    assert_int_equal(try_open(path, &e), TESS_E_FORMAT);
    free(big);
    mem_free(&mem_libc, p);
}

/* ---- rules: a field is changed, the hashes are made right again, and the reader must name the rule ---- */

typedef struct { uint32_t kind, rec, off, width; uint64_t value; const char *text; } rule;
enum { STRS = 1, AXES, BNDS, TENS, PIEC, CHNK, SEGM, BLOB, PROV, CSHA, KEYV, BDAT };

static void test_rules(void **state)
{
    static const rule rules[] = {
        {0, 0, 8, 2, 2, "ver_major"},
        {0, 0, 12, 4, 4095, "header_size"},
        {0, 0, 16, 4, 0x04030201, "endian"},
        {0, 0, 20, 4, 1, "reserved"},
        {0, 0, 24, 8, 2, "feat_incompat"},
        {0, 0, 24, 8, 0, "tile8"},
        {0, 0, 64, 8, 4096, "file_size"},
        {0, 0, 72, 2, 1, "split_no"},
        {0, 0, 74, 2, 0, "split_no"},
        {0, 0, 74, 2, 2, "name does not end"},
        {0, 0, 76, 2, 0, "tp_size"},
        {0, 0, 76, 2, 3, "n_pieces"},
        {0, 0, 78, 2, 33, "n_sections"},
        {0, 0, 78, 2, 5, "section"},
        {0, 0, 80, 8, 0, "data_off"},
        {0, 0, 88, 8, UINT64_MAX, "data_len"},
        {0, 0, 88, 8, 64, "section"},
        {0, 0, 96, 8, 1, "logical_bytes"},
        {0, 0, 104, 8, 1, "param_count"},
        {0, 0, 128, 1, 0xff, "writer"},
        {0, 0, 168, 8, 1, "trailer_off"},
        {0, 0, 176, 2, 9, "kind"},
        {0, 0, 176, 2, 0, "kind"},
        {0, 0, 178, 2, 1, "reserved"},
        {0, 0, 300, 1, 1, "reserved"},
        {0, 0, 4000, 1, 1, "after the section table"},
        {0, 0, 512, 4, 77, "not known"},
        {0, 0, 512, 4, 2, "twice"},
        {0, 0, 516, 4, 8, "reserved"},
        {0, 0, 520, 4, 0, "rec_size"},
        {0, 0, 520, 4, 5000, "rec_size"},
        {0, 0, 524, 4, 1, "reserved"},
        {0, 0, 528, 8, UINT64_MAX - 63, "section[0]"},
        {0, 0, 536, 8, UINT64_MAX, "section[0]"},
        {0, 0, 528, 8, 0, "section[0]"},
        {0, 0, 512 + 48 * 3 + 8, 4, 64, "rec_size"},
        {0, 0, 512, 4, 0, "required"},
        {0, 0, 516, 4, 3, "flags"},
        {AXES, 0, 0, 4, 0xffffffff, "name_off"},
        {AXES, 0, 6, 2, AXIS_COUNT, "kind"},
        {AXES, 0, 8, 4, 0, "unit"},
        {AXES, 0, 8, 4, 21, ""},
        {AXES, 0, 12, 4, 3, "n_pieces"},
        {AXES, 0, 16, 8, 0, ""},
        {AXES, 0, 16, 8, UINT64_MAX, ""},
        {AXES, 0, 16, 8, 179, ""},
        {AXES, 0, 24, 4, 0xffffffff, "bounds_idx"},
        {AXES, 0, 28, 4, 0, "parent_axis"},
        {AXES, 0, 32, 4, 0, "n_leaves"},
        {AXES, 0, 32, 4, 9, "n_leaves"},
        {AXES, 0, 32, 4, 1, ""},
        {AXES, 0, 36, 4, 0xfffffff0, "bounds_idx"},
        {BNDS, 0, 0, 4, 1, "bounds"},
        {BNDS, 4, 0, 4, 0, "bounds"},
        {TENS, 1, 0, 4, 0, "name"},
        {TENS, 0, 4, 2, 0, "name"},
        {TENS, 0, 4, 2, 300, "name"},
        {TENS, 0, 6, 1, 0, "dtype"},
        {TENS, 0, 6, 1, 99, "dtype"},
        {TENS, 0, 7, 1, 0, "rank"},
        {TENS, 0, 7, 1, 5, "rank"},
        {TENS, 0, 8, 8, 0, "shape"},
        {TENS, 0, 8, 8, UINT64_MAX, "shape"},
        {TENS, 0, 16, 8, 0, "shape"},
        {TENS, 0, 24, 8, 1, "shape"},
        {TENS, 0, 40, 4, 0xfffffffe, "layer"},
        {TENS, 0, 46, 1, 5, "part"},
        {TENS, 0, 47, 1, 2, "reserved"},
        {TENS, 0, 47, 1, 1, "owner_or_alias"},
        {TENS, 0, 48, 1, 4, ""},
        {TENS, 0, 49, 1, 2, "layout"},
        {TENS, 0, 49, 1, 1, "layout"},
        {TENS, 0, 50, 2, 2, "block_rows"},
        {TENS, 0, 54, 2, 0, "axis"},
        {TENS, 0, 60, 4, 2, "n_pieces"},
        {TENS, 0, 64, 8, 1, "first_piece"},
        {TENS, 0, 90, 2, 1, "reserved"},
        {TENS, 0, 127, 1, 1, "reserved"},
        {TENS, 3, 54, 2, 60, "axis"},
        {TENS, 3, 48, 1, 0, ""},
        {TENS, 1, 49, 1, 0, "usize"},
        {PIEC, 0, 0, 4, 1, "tensor"},
        {PIEC, 0, 4, 4, 1, "piece_no"},
        {PIEC, 0, 8, 2, 1, "split_file"},
        {PIEC, 0, 10, 2, 4, "reserved"},
        {PIEC, 0, 12, 4, 0, "rows_per_chunk"},
        {PIEC, 0, 12, 4, 4, "rows_per_chunk"},
        {PIEC, 0, 16, 8, 1, "off"},
        {PIEC, 0, 16, 8, 0, "off"},
        {PIEC, 0, 16, 8, UINT64_MAX - 63, "off"},
        {PIEC, 0, 24, 8, UINT64_MAX, "off"},
        {PIEC, 0, 24, 8, 1, ""},
        {PIEC, 0, 32, 8, 0, "usize"},
        {PIEC, 0, 40, 8, 1, "first_chunk"},
        {PIEC, 0, 40, 8, UINT64_MAX, "first_chunk"},
        {PIEC, 0, 48, 4, 2, "n_chunks"},
        {PIEC, 0, 48, 4, 0, "n_chunks"},
        {PIEC, 0, 52, 4, 1, "reserved"},
        {PIEC, 0, 56, 8, 1, "reserved"},
        {CHNK, 0, 0, 8, 0, "off"},
        {CHNK, 0, 0, 8, UINT64_MAX, "off"},
        {CHNK, 0, 8, 4, 0xffffffff, ""},
        {CHNK, 0, 8, 4, 0, ""},
        {CHNK, 0, 12, 4, 0, "usize"},
        {CHNK, 0, 24, 1, 2, "codec"},
        {CHNK, 0, 25, 1, 1, "filter"},
        {CHNK, 0, 26, 1, 2, "filter"},
        {CHNK, 0, 27, 1, 2, "filter"},
        {CHNK, 0, 24, 1, 1, ""},
        {CHNK, 0, 28, 4, 1, "reserved"},
        {SEGM, 0, 0, 4, 5, ""},
        {SEGM, 0, 4, 2, 1, ""},
        {SEGM, 0, 6, 2, 1, ""},
        {SEGM, 0, 8, 8, 8192, ""},
        {SEGM, 0, 8, 8, 1, "4096"},
        {SEGM, 0, 16, 8, 1, "union"},
        {SEGM, 2, 0, 4, 0xffffffff, "ascend"},
        {BLOB, 0, 6, 2, 2, "flags"},
        {BLOB, 0, 6, 2, 1, "csize"},
        {BLOB, 0, 8, 8, 8, "off"},
        {BLOB, 0, 16, 8, UINT64_MAX, "csize"},
        {BLOB, 0, 24, 8, UINT64_MAX, "csize"},
        {BLOB, 0, 0, 4, 0, "slash|name"},
        {KEYV, 0, 0, 4, 0xffffffff, "KEYV"},
        {KEYV, 0, 4, 4, 1, "KEYV"},
        {PROV, 0, 0, 1, 0xff, "UTF-8"},
        {STRS, 0, 0, 1, '/', ""},
        {STRS, 0, 10, 1, 1, ""},
        {STRS, 0, 10, 1, 0xc0, ""},
    };
    UNUSED(state);
    size_t n;
    uint8_t *p = small_file(&n, CT_STORE_RAW, DT_BF16), keep[8];
    const char *path = at("rule.tess");
    for (size_t i = 0; i < ARRAY_LEN(rules); i++) {
        const rule *r = &rules[i];
        uint64_t len = 0, base = 0;
        uint32_t rec = 1;
        if (r->kind) base = rh_section(p, n, r->kind, &len, &rec);
        uint8_t *field = p + base + (uint64_t)r->rec * rec + r->off;
        memcpy(keep, field, 8);
        memcpy(field, &r->value, r->width);
        rehash(p, n, false);
        spill(path, p, n);
        tess_error e;
        tess_status st = try_open(path, &e);
        bool found = strstr(r->text, "|") != NULL || strstr(e.text, r->text) != NULL;
        if (st >= 0 || st == TESS_E_CHECKSUM || !found || !strstr(e.text, "rule.tess"))
            fail_msg("rule %zu (kind %u, off %u, value %llu): status %d, \"%s\", want \"%s\"", i, r->kind,
                     r->off, (unsigned long long)r->value, st, e.text, r->text);
        memcpy(field, keep, 8);
    }
    rehash(p, n, false);
    spill(path, p, n);
    assert_int_equal(count_errors(path, CT_VERIFY_DEEP), 0);
    mem_free(&mem_libc, p);
}

/* Coded chunks whose bytes are hostile and whose hashes are right. */
static void test_bad_frames(void **state)
{
    UNUSED(state);
    size_t n;
    uint8_t *p = small_file(&n, CT_STORE_ZSTD, DT_BF16);
    uint64_t len;
    uint32_t rec = 1;
    uint64_t chunks = rh_section(p, n, CHNK, &len, &rec), seen = 0;
    const char *path = at("frame.tess");
    for (uint64_t c = 0; c < len / rec; c++) {
        const uint8_t *k = p + chunks + c * rec;
        uint8_t *data = p + rd64(k), old[24];
        if (k[24] != CT_CODEC_ZSTD) continue;
        uint64_t zstd = 16 + rd32(data); /* plane 1 */
        for (uint64_t i = 0; i < 40; i++) {
            uint64_t pos = i < 16 ? i : zstd + (i - 16) / 2;
            memcpy(old, data + pos, 1);
            data[pos] = (uint8_t)(i % 2 ? 0xff : data[pos] + 1 + i);
            if (data[pos] == old[0]) continue;
            rehash(p, n, true);
            spill(path, p, n);
            if (!count_errors(path, CT_VERIFY_DEEP))
                fail_msg("chunk %llu byte %llu", (unsigned long long)c, (unsigned long long)pos);
            seen++;
            memcpy(data + pos, old, 1);
        }
        if (c > 4) break;
    }
    assert_true(seen > 30);
    mem_free(&mem_libc, p);
}

static void test_swapped_chunks(void **state)
{
    UNUSED(state);
    size_t n;
    uint8_t *p = small_file(&n, CT_STORE_RAW, DT_BF16);
    uint64_t len;
    uint32_t rec = 1;
    uint64_t pieces = rh_section(p, n, PIEC, &len, &rec), a = 0, b = 0;
    for (uint64_t i = 0; i < len / rec && !b;
         i++) /* two pieces of the same size: the norms of both layers, f32[90] */
        for (uint64_t j = i + 1; j < len / rec && !b; j++) {
            const uint8_t *x = p + pieces + i * rec, *y = p + pieces + j * rec;
            if (rd64(x + 24) == rd64(y + 24) && rd32(x) != rd32(y)) {
                uint8_t *tmp = malloc(rd64(x + 24));
                a = rd64(x + 16);
                b = rd64(y + 16);
                memcpy(tmp, p + a, rd64(x + 24));
                memcpy(p + a, p + b, rd64(x + 24));
                memcpy(p + b, tmp, rd64(x + 24));
                free(tmp);
            }
        }
    assert_true(b != 0);
    spill(at("swap.tess"), p, n);
    assert_int_equal(count_errors(at("swap.tess"), CT_VERIFY_QUICK), 0);
    assert_int_equal(count_errors(at("swap.tess"), CT_VERIFY_FULL), 2);
    rehash(p, n, true); /* with hashes made right the contents are still those of another tensor */
    spill(at("swap.tess"), p, n);
    assert_int_equal(count_errors(at("swap.tess"), CT_VERIFY_FULL), 0);
    assert_int_equal(count_errors(at("swap.tess"), CT_VERIFY_DEEP), 2);
    mem_free(&mem_libc, p);
}

static void test_padding(void **state)
{
    UNUSED(state);
    size_t n;
    uint8_t *p = small_file(&n, CT_STORE_RAW, DT_BF16);
    uint64_t end = 4096 + rd64(p + 88), len;
    assert_true(end % 64 != 0 || rh_section(p, n, STRS, &len, NULL) == end);
    uint64_t gap = n - 64 - 1; /* before the trailer, when the last section does not fill its line */
    uint64_t bdat = rh_section(p, n, BDAT, &len, NULL);
    if (bdat + len <= gap) {
        p[gap] = 1;
        spill(at("pad.tess"), p, n);
        assert_int_equal(count_errors(at("pad.tess"), CT_VERIFY_FULL), 1);
    }
    mem_free(&mem_libc, p);
}

/* Padding rows of tiles: hashes of chunks and contents are right, and yet deep sees that they are not zero. */
static void test_tile_padding(void **state)
{
    UNUSED(state);
    for (uint32_t dt = DT_BF16; dt <= DT_Q4; dt++) {
        size_t n;
        ct_file *f;
        uint8_t *p = small_file(&n, CT_STORE_RAW, dt);
        OK(ct_open(at("s.tess"), 0, &mem_libc, &f, err));
        const ct_piece *q = &ct_get(f)->pieces[ct_get(f)->tensors[ct_find(f, "l0.o")].first_piece];
        assert_int_equal(q->n_rows % 8, 2);
        p[q->off + q->usize - 1] = 1; /* the last byte is of the last lane */
        ct_close(f);
        rehash(p, n, true);
        spill(at("tile.tess"), p, n);
        assert_int_equal(count_errors(at("tile.tess"), CT_VERIFY_FULL), 0);
        assert_int_equal(count_errors(at("tile.tess"), CT_VERIFY_DEEP), 1);
        mem_free(&mem_libc, p);
    }
}

/* A file that is cut while it is open: an error with the place, no signal, and other readers go on. */
static void test_cut_while_open(void **state)
{
    UNUSED(state);
    model m;
    ct_file *f;
    ct_scratch *s;
    tess_error e;
    make_model(&m, DT_BF16, false);
    OK(write_model(&m, at("open.tess"), (ct_write_options){.store = CT_STORE_RAW, .force = true}, NULL, err));
    OK(ct_open(at("open.tess"), CT_NO_MMAP, &mem_libc, &f, err));
    OK(ct_scratch_open(&mem_libc, &s, err));
    assert_int_equal(truncate(at("open.tess"), 5000), 0);
    uint32_t last = ct_get(f)->n_chunks - 1;
    assert_int_equal(ct_check_chunk(f, last, s, &e), TESS_E_IO);
    assert_non_null(strstr(e.text, "open.tess"));
    assert_int_equal(ct_check_chunk(f, last + 1, s, &e), TESS_E_ARG);
    assert_int_equal(ct_read_rows(f, 0, 1, 5, LAYOUT_TILE8, &e, 0, s, &e), TESS_E_ARG);
    assert_int_equal(ct_read_rows(f, 0, 0, UINT64_MAX, LAYOUT_ROWS, &e, 0, s, &e), TESS_E_ARG);
    ct_scratch_close(s);
    ct_close(f);
}

/* A file of format 1.0 as the first version wrote it; every later version reads it. TESS_WRITE_GOLDEN=FILE
 * writes one. */
static void make_golden(model *m)
{
    *m = (model){0};
    uint32_t ffn = add_axis(m, AXIS_FFN, 32, 100);
    add(m, "bf16", DT_BF16, 100, 24, 0, ffn, 0);
    add(m, "bf16.k", DT_BF16, 12, 100, 1, ffn, 0);
    add(m, "f16", DT_F16, 20, 33, 255, 0, 0);
    add(m, "f32", DT_F32, 20, 33, 255, 0, 0);
    add(m, "q4", DT_Q4, 12, 100, 1, ffn, 1);
    add(m, "q8", DT_Q8, 100, 40, 0, ffn, 1);
    add(m, "vector", DT_F32, 100, 0, 0, ffn, -1);
    m->t[add(m, "zz", DT_BF16, 100, 24, 0, ffn, -1)].alias = 0;
}
static void test_golden(void **state)
{
    UNUSED(state);
    static const char *const files[] = {"tests/data/container-1.0-raw.tess",
                                        "tests/data/container-1.0-zstd.tess"};
    model m;
    make_golden(&m);
    for (uint32_t i = 0; i < 2; i++) {
        ct_file *f;
        if (getenv("TESS_WRITE_GOLDEN"))
            OK(write_model(
                &m, files[i],
                (ct_write_options){.tp = 2, .store = i ? CT_STORE_ZSTD : CT_STORE_RAW, .force = true}, NULL,
                err));
        OK(ct_open(files[i], 0, &mem_libc, &f, err));
        check_file(&m, f);
        verify_good(f, NULL);
        ct_close(f);
    }
}

static void test_not_containers(void **state)
{
    UNUSED(state);
    tess_error e;
    spill(at("empty.tess"), (const uint8_t *)"", 0);
    assert_int_equal(try_open(at("empty.tess"), &e), TESS_E_FORMAT);
    assert_non_null(strstr(e.text, "empty"));
    char text[9000];
    memset(text, 'x', sizeof text);
    spill(at("text.tess"), (const uint8_t *)text, sizeof text);
    assert_int_equal(try_open(at("text.tess"), &e), TESS_E_FORMAT);
    assert_non_null(strstr(e.text, "magic"));
    memset(text, 0, sizeof text);
    spill(at("zero.tess"), (const uint8_t *)text, sizeof text);
    assert_int_equal(try_open(at("zero.tess"), &e), TESS_E_FORMAT);
    assert_non_null(strstr(e.text, "not written"));
    assert_int_equal(mkfifo(at("fifo"), 0600), 0);
    assert_int_equal(try_open(at("fifo"), &e), TESS_E_IO);
    assert_int_equal(try_open(dir, &e), TESS_E_IO);
    assert_int_equal(try_open("/dev/zero", &e), TESS_E_IO);
    assert_int_equal(try_open(at("missing"), &e), TESS_E_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flips),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_bad_frames),
        cmocka_unit_test(test_swapped_chunks),
        cmocka_unit_test(test_padding),
        cmocka_unit_test(test_tile_padding),
        cmocka_unit_test(test_cut_while_open),
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_not_containers),
    };
    return cmocka_run_group_tests_name("container_damage", tests, set_up, tear_down);
}
