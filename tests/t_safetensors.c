/*
 * t_safetensors.c - the safetensors reader: good files, every hostile file that the research collected (fault
 * B23), shards and their index (fault B05), files that change while they are read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "source.h"

static char dir[64]; /* of the running test */

static int make_dir(void **state)
{
    UNUSED(state);
    snprintf(dir, sizeof dir, "/tmp/t_safetensors.XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}
static int drop_dir(void **state)
{
    char cmd[128];
    UNUSED(state);
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    return system(cmd);
}

static const char *path_in(const char *name)
{
    static char path[2][PATH_MAX];
    static int turn;
    turn ^= 1;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static void put_bytes(const char *name, const void *p, size_t n)
{
    FILE *f = fopen(path_in(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* A file with this header text, its length (or `len_field` when not 0), and data_len bytes 0, 1, 2 ... */
static void put_st(const char *name, const char *header, uint64_t len_field, size_t data_len)
{
    size_t n = strlen(header);
    uint8_t *p = malloc(8 + n + data_len);
    assert_non_null(p);
    uint64_t len = len_field ? len_field : n;
    memcpy(p, &len, 8);
    memcpy(p + 8, header, n);
    for (size_t i = 0; i < data_len; i++) p[8 + n + i] = (uint8_t)i;
    put_bytes(name, p, 8 + n + data_len);
    free(p);
}

static void expect_error(const char *path, const char *needle)
{
    source *s;
    tess_error err;
    tess_status st = safetensors_open(path, &mem_libc, &s, &err);
    if (st == TESS_OK) fail_msg("%s was accepted", path);
    assert_null(s);
    if (!strstr(err.text, needle)) fail_msg("wanted \"%s\" in: %s", needle, err.text);
    assert_non_null(strstr(err.text, "/tmp/t_safetensors"));
}

static source *open_good(const char *path)
{
    source *s;
    tess_error err;
    if (safetensors_open(path, &mem_libc, &s, &err) < 0) fail_msg("%s", err.text);
    return s;
}

/* ---- good files ---- */

static void reads_boxes(void **state)
{
    UNUSED(state);
    float v[6], want[6];
    tess_error err;
    /* "\u0065" is "e"; the header is padded with blanks and its length is no multiple of 8, so the data are not
     * aligned. */
    put_st("a.safetensors",
           "{\"w\\u0065\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[0,24]},\"h\":{\"shape\":[4],"
           "\"dtype\":\"BF16\",\"data_offsets\":[24,32]},"
           "\"z\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[32,32]},\"s\":{\"dtype\":\"F16\","
           "\"shape\":[],\"data_offsets\":[32,34]},"
           "\"__metadata__\":{\"format\":\"pt\"}}     ",
           0, 34);
    source *s = open_good(path_in("a.safetensors"));
    assert_int_equal(s->n_tensors, 4);
    int64_t w = source_find(s, "we"), z = source_find(s, "z"), scalar = source_find(s, "s"),
            h = source_find(s, "h");
    assert_true(w >= 0 && z >= 0 && scalar >= 0 && h >= 0 && source_find(s, "wf") < 0);
    uint8_t bytes[34];
    for (int i = 0; i < 34; i++) bytes[i] = (uint8_t)i;
    memcpy(want, bytes, 24);
    assert_int_equal(s->read(s, (uint32_t)w, 0, 3, 0, 2, true, v, &err), TESS_OK);
    assert_memory_equal(v, want, 24);
    assert_int_equal(s->read(s, (uint32_t)w, 1, 2, 1, 1, false, v, &err),
                     TESS_OK); /* column 1 of rows 1 and 2 */
    assert_memory_equal(&v[0], &want[3], 4);
    assert_memory_equal(&v[1], &want[5], 4);
    uint16_t half[2];
    assert_int_equal(s->read(s, (uint32_t)h, 0, 1, 1, 2, true, half, &err), TESS_OK);
    assert_memory_equal(half, bytes + 26, 4);
    assert_int_equal(s->read(s, (uint32_t)h, 0, 1, 3, 1, false, v, &err), TESS_OK);
    float last = bf16_to_f32(rd16(bytes + 30));
    assert_memory_equal(v, &last, 4);
    assert_int_equal(s->read(s, (uint32_t)z, 0, 0, 0, 7, false, v, &err), TESS_OK);
    assert_int_equal(s->read(s, (uint32_t)scalar, 0, 1, 0, 1, true, half, &err), TESS_OK);
    assert_memory_equal(half, bytes + 32, 2);
    assert_int_equal(s->read(s, (uint32_t)w, 2, 2, 0, 2, false, v, &err), TESS_E_ARG);
    assert_int_equal(s->read(s, (uint32_t)w, 0, 1, UINT64_MAX, 2, false, v, &err), TESS_E_ARG);
    source_close(s);
    put_st("m.safetensors", "{\"__metadata__\":{}}", 0, 0);
    source_close(open_good(path_in("m.safetensors")));
}

/* Rows longer than the 64 KiB of the reader, windows of many short rows. */
static void reads_large_boxes(void **state)
{
    UNUSED(state);
    enum { ROWS = 5, COLS = 40000 };
    tess_error err;
    put_st("l.safetensors",
           "{\"w\":{\"dtype\":\"BF16\",\"shape\":[5,40000],\"data_offsets\":[0,400000]},"
           "\"n\":{\"dtype\":\"F16\",\"shape\":[40000,5],\"data_offsets\":[400000,800000]}}",
           0, 800000);
    source *s = open_good(path_in("l.safetensors"));
    uint32_t w = (uint32_t)source_find(s, "w"), n = (uint32_t)source_find(s, "n");
    float *got = malloc(ROWS * COLS * 4);
    uint16_t *raw = malloc(ROWS * COLS * 2);
    assert_true(got && raw);
    for (int tall = 0; tall < 2; tall++) {
        uint64_t rows = tall ? COLS : ROWS, cols = tall ? ROWS : COLS, k0 = tall ? 1 : 39,
                 nk = tall ? 3 : 39900;
        assert_int_equal(s->read(s, tall ? n : w, 1, rows - 2, k0, nk, false, got, &err), TESS_OK);
        assert_int_equal(s->read(s, tall ? n : w, 1, rows - 2, k0, nk, true, raw, &err), TESS_OK);
        for (uint64_t r = 0; r < rows - 2; r++)
            for (uint64_t k = 0; k < nk; k++) {
                uint64_t at = (tall ? 400000 : 0) + ((r + 1) * cols + k0 + k) * 2;
                uint16_t bits = (uint16_t)((at & 255) | ((at + 1) & 255) << 8);
                float want = tall ? f16_to_f32(bits) : bf16_to_f32(bits);
                if (raw[r * nk + k] != bits || memcmp(&got[r * nk + k], &want, 4) != 0)
                    fail_msg("row %d column %d", (int)r, (int)k);
            }
    }
    free(got);
    free(raw);
    source_close(s);
}

/* ---- hostile files ---- */

#define T(shape, off) "{\"t\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" off "}}"
#define TWO(a, b) \
    "{\"t\":{\"dtype\":\"U8\",\"shape\":[512],\"data_offsets\":" a \
    "},\"u\":{\"dtype\":\"U8\",\"shape\":[512],\"data_offsets\":" b "}}"

static void refuses_hostile_headers(void **state)
{
    static const struct { const char *header; uint64_t len; size_t data; const char *needle; } bad[] = {
        {T("[256]", "[0,1024]"), UINT64_MAX, 1024, "header length"},
        {T("[256]", "[0,1024]"), 1ull << 63, 1024, "header length"},
        {T("[256]", "[0,1024]"), 100000001, 1024, "header length"},
        {T("[256]", "[0,1024]"), 1200, 1024, "header length"},
        {T("[256]", "[0,1024]"), 1, 1024, "header length"},
        {T("[256]", "[0,1028]"), 0, 1024, "data_offsets"},
        {T("[256]", "[1024,0]"), 0, 1024, "data_offsets"},
        {T("[256]", "[-4,1020]"), 0, 1024, "data_offsets"},
        {T("[256]", "[0,1024.0]"), 0, 1024, "data_offsets"},
        {T("[256]", "[0,1e3]"), 0, 1024, "data_offsets"},
        {T("[256]", "[0]"), 0, 1024, "want exactly"},
        {T("[255]", "[0,1024]"), 0, 1024, "shape and dtype want"},
        {T("[4294967296,4294967296]", "[0,0]"), 0, 0, "overflows"},
        {T("[4611686018427387908,4]", "[0,64]"), 0, 64, "overflows"},
        {T("[-1]", "[0,1024]"), 0, 1024, "dimension 0"},
        {T("[16.5]", "[0,1024]"), 0, 1024, "dimension 0"},
        {T("[2,2,2,2,2,2,2,2]", "[0,1024]"), 0, 1024, "dimensions"},
        {T("[99999999999999999999]", "[0,1024]"), 0, 1024, "dimension 0"},
        {T("[256]", "[0,18446744073709551616]"), 0, 1024, "data_offsets"},
        {TWO("[0,512]", "[256,768]"), 0, 768, "overlaps"},
        {TWO("[0,512]", "[512,1024]"), 0, 1025, "after the last tensor"},
        {TWO("[0,512]", "[0,512]"), 0, 512, "overlaps"},
        {TWO("[0,512]", "[600,1112]"), 0, 1112, "gap"},
        {TWO("[1,513]", "[513,1025]"), 0, 1025, "gap"},
        {"{\"t\":{\"dtype\":\"F31\",\"shape\":[256],\"data_offsets\":[0,1024]}}", 0, 1024, "unknown dtype"},
        {"{\"t\":{\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,1]}}", 0, 1, "shape and dtype"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[256],\"data_offsets\":[0,1024],\"x\":1}}", 0, 1024,
         "want exactly"},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"t\":{\"dtype\":\"U8\",\"shape\":[4],"
         "\"data_offsets\":[0,4]}}",
         0, 4, "duplicate"},
        {"{\"..\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 0, 4, "bad tensor name"},
        {"{\"a/../b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 0, 4, "bad tensor name"},
        {"{\"/a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 0, 4, "bad tensor name"},
        {"{\"\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 0, 4, "bad tensor name"},
        {"{\"a\\nb\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 0, 4, "bad tensor name"},
        {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 0, 4, "line 1"},
        {"{\"a\xff\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 0, 4, "line"},
        {"{\"__metadata__\":{\"a\":1}}", 0, 0, "__metadata__"},
        {"  {}", 0, 0, "does not begin"},
        {"[]", 0, 0, "does not begin"},
        {"{} x", 0, 0, "line 1"},
    };
    UNUSED(state);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        put_st("x.safetensors", bad[i].header, bad[i].len, bad[i].data);
        expect_error(path_in("x.safetensors"), bad[i].needle);
    }
    put_bytes("x.safetensors", "", 0);
    expect_error(path_in("x.safetensors"), "too short");
    put_bytes("x.safetensors", "1234567", 7);
    expect_error(path_in("x.safetensors"), "too short");
}

static void refuses_deep_header(void **state)
{
    enum { DEPTH = 200000 };
    static char header[DEPTH + 16];
    UNUSED(state);
    memset(header, '[', DEPTH);
    memcpy(header, "{\"a\":", 5);
    put_st("d.safetensors", header, 0, 0);
    expect_error(path_in("d.safetensors"), "nested deeper");
}

/* Every cut of a small file, and every single-byte change of its header: refused or read, never a crash. */
static void survives_changes(void **state)
{
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\"b\":{"
                                 "\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}}";
    uint8_t file[8 + sizeof header - 1 + 32], copy[sizeof file];
    uint64_t n = sizeof header - 1;
    source *s;
    UNUSED(state);
    memset(file, 7, sizeof file);
    memcpy(file, &n, 8);
    memcpy(file + 8, header, n);
    for (size_t cut = 0; cut < sizeof file; cut++) {
        put_bytes("c.safetensors", file, cut);
        assert_true(safetensors_open(path_in("c.safetensors"), &mem_libc, &s, NULL) < 0);
    }
    for (size_t i = 0; i < 8 + n; i++)
        for (int bit = 0; bit < 8; bit++) {
            memcpy(copy, file, sizeof file);
            copy[i] ^= (uint8_t)(1 << bit);
            put_bytes("c.safetensors", copy, sizeof file);
            if (safetensors_open(path_in("c.safetensors"), &mem_libc, &s, NULL) == TESS_OK) source_close(s);
        }
}

static void sees_changes_while_reading(void **state)
{
    UNUSED(state);
    tess_error err;
    float v[256];
    put_st("t.safetensors", T("[256]", "[0,1024]"), 0, 1024);
    source *s = open_good(path_in("t.safetensors"));
    assert_int_equal(source_unchanged(s, &err), TESS_OK);
    assert_int_equal(truncate(path_in("t.safetensors"), 200), 0);
    assert_int_equal(s->read(s, 0, 0, 1, 0, 256, true, v, &err), TESS_E_IO);
    assert_non_null(strstr(err.text, "offset"));
    assert_int_equal(source_unchanged(s, &err), TESS_E_IO);
    source_close(s);
}

/* ---- shards ---- */

#define U8T(name, a, b) "\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" #a "," #b "]}"

static void put_text(const char *name, const char *text) { put_bytes(name, text, strlen(text)); }

static void put_shards(void)
{
    put_st("s1.safetensors", "{" U8T("a", 0, 4) "," U8T("stray", 4, 8) "}", 0, 8);
    put_st("s2.safetensors", "{" U8T("b", 0, 4) "," U8T("c", 4, 8) "," U8T("a", 8, 12) "}", 0, 12);
    put_st("consolidated.safetensors", "{" U8T("a", 0, 4) "}", 0, 4);
    put_text("model.safetensors.index.json",
             "{\"metadata\":{\"total_size\":12},\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2."
             "safetensors\",\"c\":\"s2.safetensors\"}}");
}

static void check_shards(const char *path)
{
    source *s = open_good(path);
    uint8_t v[4];
    tess_error err;
    assert_int_equal(s->n_tensors, 3);
    assert_int_equal(s->n_files, 2);
    int64_t a = source_find(s, "a");
    assert_true(a >= 0 && strstr(s->paths[s->tensors[a].file], "s1.safetensors"));
    assert_int_equal(s->tensors[a].dtype, SRC_OTHER);
    assert_int_equal(s->read(s, (uint32_t)a, 0, 1, 0, 4, true, v, &err), TESS_E_UNSUPPORTED);
    source_close(s);
}

static void index_wins(void **state)
{
    char path[PATH_MAX], here[PATH_MAX];
    UNUSED(state);
    put_shards();
    check_shards(dir);
    snprintf(path, sizeof path, "%s/", dir);
    check_shards(path);
    assert_int_equal(symlink(dir, path_in("self")), 0);
    check_shards(path_in("self"));
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir("/tmp"), 0);
    check_shards(dir + 5); /* relative */
    assert_int_equal(chdir(here), 0);
    /* hub layout: every file a link into blobs */
    assert_int_equal(mkdir(path_in("blobs"), 0777), 0);
    static const char *const files[] = {"s1.safetensors", "s2.safetensors", "model.safetensors.index.json"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        char target[PATH_MAX], name[32];
        snprintf(name, sizeof name, "blobs/%zu", i);
        snprintf(target, sizeof target, "%s/%s", dir, name);
        assert_int_equal(rename(path_in(files[i]), target), 0);
        assert_int_equal(symlink(name, path_in(files[i])), 0);
    }
    check_shards(dir);
}

static void refuses_bad_indexes(void **state)
{
    static const struct { const char *index, *needle; } bad[] = {
        {"{\"weight_map\":{\"a\":\"../s1.safetensors\"}}", "plain file name"},
        {"{\"weight_map\":{\"a\":\"/etc/s1.safetensors\"}}", "plain file name"},
        {"{\"weight_map\":{\"a\":\"sub/s1.safetensors\"}}", "plain file name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "plain file name"},
        {"{\"weight_map\":{\"a\":\"\"}}", "plain file name"},
        {"{\"weight_map\":{\"a\":\"w.bin\"}}", "plain file name"},
        {"{\"weight_map\":{\"a\":7}}", "plain file name"},
        {"{\"weight_map\":{}}", "weight_map"},
        {"{\"weight_map\":[]}", "weight_map"},
        {"{}", "weight_map"},
        {"[]", "want an object"},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"a\":\"s2.safetensors\"}}", "duplicate"},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"d\":\"s2.safetensors\"}}", "\"d\""},
        {"{\"weight_map\":{\"b\":\"s1.safetensors\"}}", "\"b\""},
        {"{\"weight_map\":{\"a\":\"s3.safetensors\"}}", "s3.safetensors"},
    };
    UNUSED(state);
    put_shards();
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        put_text("model.safetensors.index.json", bad[i].index);
        expect_error(dir, bad[i].needle);
    }
    put_shards();
    put_st("model.safetensors", "{" U8T("a", 0, 4) "}", 0, 4);
    expect_error(dir, "holds both");
}

static void refuses_other_weights(void **state)
{
    UNUSED(state);
    expect_error(dir, "holds neither");
    put_text("pytorch_model.bin", "PK");
    expect_error(dir, "save_pretrained");
    expect_error(path_in("pytorch_model.bin"), "pickle");
    expect_error(path_in("missing.safetensors"), "No such file");
    assert_int_equal(mkfifo(path_in("fifo.safetensors"), 0600), 0);
    expect_error(path_in("fifo.safetensors"), "not a regular file");
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make_dir, drop_dir)
    const struct CMUnitTest tests[] = {
        CASE(reads_boxes),         CASE(reads_large_boxes),   CASE(refuses_hostile_headers),
        CASE(refuses_deep_header), CASE(survives_changes),    CASE(sees_changes_while_reading),
        CASE(index_wins),          CASE(refuses_bad_indexes), CASE(refuses_other_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
