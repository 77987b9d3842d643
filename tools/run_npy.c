/*
 * run_npy.c - rows of logits into an NPY v1.0 file: magic, version, u16 header length, a header padded to 128 bytes in all,
 * then rows x vocab float32, little-endian. The header holds the number of rows, so it is written last; the file gets its
 * name when it is complete.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run.h"

enum { NPY_HEADER = 128 };

static bool write_at(run_npy *f, const void *data, size_t n, uint64_t off)
{
    const char *p = data;
    while (n && !f->os_code) {
        ssize_t put = pwrite(f->fd, p, n, (off_t)off);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) {
            f->os_code = put < 0 ? errno : EIO;
            break;
        }
        p += put;
        off += (uint64_t)put;
        n -= (size_t)put;
    }
    return !f->os_code;
}

int run_npy_open(run_npy *f, const char *path, size_t vocab)
{
    size_t room = strlen(path) + 32;
    struct stat st;
    size_t cap = 0;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) { /* a rename would replace the device or fail late */
        cli_error("%s: is not a regular file", path);
        return CLI_EXIT_FILE;
    }
    *f = (run_npy){.fd = -1, .path = path, .vocab = vocab};
    f->tmp = run_grow(NULL, &cap, room, 1);
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    snprintf(f->tmp, room, "%.*s.%s.tmp.%ld", (int)(name - path), path, name, (long)getpid());
    unlink(f->tmp); /* of an earlier process with this id; O_EXCL: nobody else's link is followed */
    f->fd = open(f->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd >= 0) return 0;
    cli_error("%s: cannot create a temporary file beside it: %s", path, strerror(errno));
    free(f->tmp);
    *f = (run_npy){0};
    return CLI_EXIT_FILE;
}

void run_npy_row(run_npy *f, uint64_t pos, const float *logits, size_t n)
{
    if (!f->tmp || n != f->vocab) return;
    write_at(f, logits, n * sizeof *logits, NPY_HEADER + pos * n * sizeof *logits);
    if (pos + 1 > f->rows) f->rows = pos + 1;
}

int run_npy_commit(run_npy *f, uint64_t want_rows)
{
    char head[NPY_HEADER + 1];
    if (!f->tmp) return 0;
    memset(head, ' ', sizeof head);
    memcpy(head, "\x93NUMPY\x01\x00\x76\x00", 10); /* 0x76 = 118 = 128 - 10 */
    int n = snprintf(head + 10, sizeof head - 10, "{'descr': '<f4', 'fortran_order': False, 'shape': (%llu, %zu), }",
                     (unsigned long long)f->rows, f->vocab);
    head[10 + n] = ' ';
    head[NPY_HEADER - 1] = '\n';
    int rc = 0;
    if (f->rows != want_rows) {
        cli_error("%s: %llu rows of logits came, %llu were expected", f->path, (unsigned long long)f->rows, (unsigned long long)want_rows);
        rc = CLI_EXIT_FAILED;
    } else if (!write_at(f, head, NPY_HEADER, 0) || (close(f->fd) != 0 && (f->os_code = errno))) {
        cli_error("%s: cannot write: %s", f->path, strerror(f->os_code));
        rc = CLI_EXIT_FILE;
    } else {
        f->fd = -1;
        if (rename(f->tmp, f->path) != 0) {
            cli_error("%s: cannot rename to it: %s", f->path, strerror(errno));
            rc = CLI_EXIT_FILE;
        } else {
            free(f->tmp);
            f->tmp = NULL;
        }
    }
    run_npy_abort(f);
    return rc;
}

void run_npy_abort(run_npy *f)
{
    if (f->tmp) {
        if (f->fd >= 0) close(f->fd);
        unlink(f->tmp);
        free(f->tmp);
    }
    *f = (run_npy){0};
}
