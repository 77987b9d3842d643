/*
 * gguf_delta.c - keeps a GGUF file as the difference from the checkpoint that it was made of, so that tests can hold many.
 *
 *   gguf_delta make FILE OUT.delta REFERENCE...     writes the delta
 *   gguf_delta apply FILE.delta OUT REFERENCE...    writes the file
 *
 * A delta is one zstd frame for which the references, joined in this order and bf16 in them widened to f32, serve as the
 * text before. Most rows of a GGUF file are rows of the checkpoint, in another order. Exit status 0, or 1 with a message.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

typedef struct { uint8_t *p; size_t n; } bytes;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "gguf_delta: %s: %s\n", what, why);
    exit(1);
}

static bytes must_alloc(size_t n)
{
    bytes b = {malloc(n + 1), n};
    if (!b.p) die("memory", "none left");
    return b;
}

static bytes read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) die(path, "cannot open");
    bytes b = must_alloc((size_t)ftell(f));
    rewind(f);
    if (fread(b.p, 1, b.n, f) != b.n) die(path, "cannot read");
    fclose(f);
    return b;
}

static void write_file(const char *path, bytes b)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(b.p, 1, b.n, f) != b.n || fclose(f) != 0) die(path, "cannot write");
}

/* The files, each as it is and with every two bytes taken as bf16 and widened. */
static bytes read_reference(char **paths, int n)
{
    bytes all = {NULL, 0};
    for (int i = 0; i < n; i++) {
        bytes f = read_file(paths[i]);
        size_t odd = f.n & 1, half = f.n / 2; /* data begin at an even place */
        all.p = realloc(all.p, all.n + f.n * 3 + 4);
        if (!all.p) die("memory", "none left");
        memcpy(all.p + all.n, f.p, f.n);
        uint8_t *wide = all.p + all.n + f.n;
        for (size_t k = 0; k < half; k++) {
            memset(wide + 4 * k, 0, 2);
            memcpy(wide + 4 * k + 2, f.p + 2 * k, 2);
        }
        all.n += f.n * 3 - odd;
        free(f.p);
    }
    return all;
}

static size_t check(size_t code, const char *what)
{
    if (ZSTD_isError(code)) die(what, ZSTD_getErrorName(code));
    return code;
}

static bytes make(bytes in, bytes ref)
{
    ZSTD_CCtx *c = ZSTD_createCCtx();
    bytes out = must_alloc(ZSTD_compressBound(in.n));
    if (!c) die("memory", "none left");
    check(ZSTD_CCtx_setParameter(c, ZSTD_c_compressionLevel, 19), "level");
    check(ZSTD_CCtx_setParameter(c, ZSTD_c_windowLog, 24), "window");
    check(ZSTD_CCtx_setParameter(c, ZSTD_c_enableLongDistanceMatching, 1), "long distances");
    check(ZSTD_CCtx_setParameter(c, ZSTD_c_ldmHashRateLog, 2), "long distances");
    check(ZSTD_CCtx_refPrefix(c, ref.p, ref.n), "reference");
    out.n = check(ZSTD_compress2(c, out.p, out.n, in.p, in.n), "compressing");
    ZSTD_freeCCtx(c);
    return out;
}

static bytes apply(bytes in, bytes ref)
{
    unsigned long long n = ZSTD_getFrameContentSize(in.p, in.n);
    ZSTD_DCtx *d = ZSTD_createDCtx();
    if (!d || n > 1u << 30) die("delta", "is not one");
    bytes out = must_alloc((size_t)n);
    check(ZSTD_DCtx_refPrefix(d, ref.p, ref.n), "reference");
    out.n = check(ZSTD_decompressDCtx(d, out.p, out.n, in.p, in.n), "decompressing");
    ZSTD_freeDCtx(d);
    return out;
}

int main(int argc, char **argv)
{
    if (argc < 5) die("usage", "gguf_delta make|apply IN OUT REFERENCE...");
    bytes in = read_file(argv[2]), ref = read_reference(argv + 4, argc - 4);
    bytes out = strcmp(argv[1], "make") == 0 ? make(in, ref) : apply(in, ref);
    write_file(argv[3], out);
    free(in.p);
    free(ref.p);
    free(out.p);
    return 0;
}
