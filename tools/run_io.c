/* run_io.c - see run.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run.h"

void *run_grow(void *p, size_t *cap, size_t want, size_t size)
{
    if (want <= *cap && p) return p;
    size_t n = *cap + *cap / 2, bytes;
    if (n < want) n = want;
    if (n < 64) n = 64;
    void *q = __builtin_mul_overflow(n, size, &bytes) ? NULL : realloc(p, bytes);
    if (!q) {
        cli_error("no memory for %zu more elements of %zu bytes", n, size);
        exit(CLI_EXIT_MEMORY);
    }
    *cap = n;
    return q;
}

void run_put(run_bytes *b, const void *p, size_t n)
{
    b->p = run_grow(b->p, &b->cap, b->n + n + 1, 1); /* always room for a zero byte */
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
    b->p[b->n] = 0;
}
void run_puts(run_bytes *b, const char *s) { run_put(b, s, strlen(s)); }

/* Length of the valid character at p (n > 0 bytes), or minus the length of the longest prefix of one, at least 1: what one
 * U+FFFD stands for. Table 3-7 of the Unicode standard. */
static int utf8_length(const unsigned char *p, size_t n)
{
    unsigned char c = p[0], lo = 0x80, hi = 0xbf;
    if (c < 0x80) return 1;
    if (c < 0xc2 || c > 0xf4) return -1;
    int want = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (c == 0xe0) lo = 0xa0;
    if (c == 0xed) hi = 0x9f;
    if (c == 0xf0) lo = 0x90;
    if (c == 0xf4) hi = 0x8f;
    for (int i = 1; i < want; i++, lo = 0x80, hi = 0xbf)
        if ((size_t)i >= n || p[i] < lo || p[i] > hi) return -i;
    return want;
}

void run_put_json(run_bytes *b, const char *text, size_t n)
{
    run_put(b, "\"", 1);
    for (size_t i = 0; i < n;) {
        const unsigned char *p = (const unsigned char *)text + i;
        int len = utf8_length(p, n - i);
        char code[8];
        if (len < 0) run_puts(b, "\xef\xbf\xbd");
        else if (*p == '"' || *p == '\\') snprintf(code, sizeof code, "\\%c", *p), run_puts(b, code);
        else if (*p < 0x20) snprintf(code, sizeof code, "\\u%04x", *p), run_puts(b, code);
        else run_put(b, p, (size_t)len);
        i += (size_t)(len < 0 ? -len : len);
    }
    run_put(b, "\"", 1);
}

enum { READ_MAX = 1 << 30 }; /* /dev/zero and the like end here and not when memory is full */

/* Reads fd to its end. */
static int read_all(int fd, const char *name, run_bytes *out)
{
    for (;;) {
        out->p = run_grow(out->p, &out->cap, out->n + 65536 + 1, 1);
        ssize_t got = read(fd, out->p + out->n, 65536);
        if (got < 0 && errno == EINTR && !run_interrupted()) continue;
        if (got < 0 && errno == EINTR) return CLI_EXIT_INTERRUPTED;
        if (got < 0) {
            cli_error("%s: cannot read: %s", name, strerror(errno));
            return CLI_EXIT_FILE;
        }
        if (got == 0) break;
        if (out->n + (size_t)got > READ_MAX) {
            cli_error("%s: is longer than 1 GiB", name);
            return CLI_EXIT_FILE;
        }
        out->n += (size_t)got;
    }
    out->p[out->n] = 0;
    return 0;
}

int run_read(const char *path, run_bytes *out)
{
    if (strcmp(path, "-") == 0) return read_all(0, "stdin", out);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        cli_error("%s: cannot open: %s", path, strerror(errno));
        return CLI_EXIT_FILE;
    }
    int rc = read_all(fd, path, out);
    close(fd);
    return rc;
}

int run_write(int fd, const char *name, const char *p, size_t n)
{
    while (n) {
        ssize_t put = write(fd, p, n);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) {
            cli_error("%s: cannot write: %s", name, strerror(errno));
            return CLI_EXIT_FILE;
        }
        p += put;
        n -= (size_t)put;
    }
    return 0;
}

int run_parse_ids(const char *option, const char *text, run_ids *out)
{
    for (const char *s = text;;) {
        char *end;
        errno = 0;
        long v = *s >= '0' && *s <= '9' ? strtol(s, &end, 10) : -1;
        if (v < 0 || v > INT32_MAX || errno || (*end && *end != ',')) {
            cli_error("%s: want whole numbers separated by commas, such as 1,2,3; at byte %zu stands \"%.20s\"", option,
                      (size_t)(s - text), s);
            return CLI_EXIT_USAGE;
        }
        out->p = run_grow(out->p, &out->cap, out->n + 1, sizeof *out->p);
        out->p[out->n++] = (tess_token)v;
        if (!*end) return 0;
        s = end + 1;
    }
}
