/*
 * run_kl.c - KL divergence of this run's next-token distributions from those of a reference: logits that a run with --ppl and
 * --logits wrote, a NumPy file of float32 [predictions, vocabulary].
 *
 * Of a prediction: the sum over ids of p * (log p - log q), p from the reference, q from this run, in double precision, natural
 * logarithm. Rows are read one at a time, since the file is as large as text and vocabulary make it.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run.h"

enum { NPY_PREFIX = 10 }; /* magic, version 1.0, u16 length of the header */

static bool read_at(int fd, void *to, size_t n, uint64_t off)
{
    for (char *p = to; n;) {
        ssize_t got = pread(fd, p, n, (off_t)off);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            if (got == 0) errno = EIO;
            return false;
        }
        p += got;
        off += (uint64_t)got;
        n -= (size_t)got;
    }
    return true;
}

/* Takes shape and place of the data from the header; NULL, or what is wrong. */
static const char *read_header(run_kl *k)
{
    unsigned char prefix[NPY_PREFIX];
    char text[1024] = "";
    struct stat st;
    if (fstat(k->fd, &st) != 0 || !S_ISREG(st.st_mode)) return "is not a regular file";
    if ((uint64_t)st.st_size < NPY_PREFIX || !read_at(k->fd, prefix, NPY_PREFIX, 0) || memcmp(prefix, "\x93NUMPY\x01\x00", 8) != 0)
        return "is not a NumPy file, version 1.0";
    size_t n = (size_t)prefix[8] | (size_t)prefix[9] << 8;
    if (n >= sizeof text || (uint64_t)st.st_size < NPY_PREFIX + n || !read_at(k->fd, text, n, NPY_PREFIX)) return "has a bad header";
    const char *shape = strstr(text, "'shape': (");
    unsigned long long rows, cols;
    if (!strstr(text, "'descr': '<f4'") || !strstr(text, "'fortran_order': False") || !shape ||
        sscanf(shape, "'shape': (%llu, %llu)", &rows, &cols) != 2)
        return "is no float32 matrix in C order";
    k->data = NPY_PREFIX + n;
    k->rows = rows;
    k->vocab = (size_t)cols;
    uint64_t bytes = (uint64_t)st.st_size - k->data;
    if (cols == 0 || cols > bytes / 4 || rows != bytes / 4 / cols || bytes != rows * cols * 4) return "its shape and its size disagree";
    return NULL;
}

int run_kl_open(run_kl *k, const char *path, size_t vocab)
{
    size_t cap = 0;
    *k = (run_kl){.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), .path = path};
    const char *why = k->fd < 0 ? strerror(errno) : read_header(k);
    if (why) {
        cli_error("%s: %s", path, why);
        return CLI_EXIT_FILE;
    }
    if (k->vocab != vocab) {
        cli_error("%s: has logits of %zu ids, the model has %zu; make it from the same vocabulary by --ppl with --logits", path,
                  k->vocab, vocab);
        return CLI_EXIT_FILE;
    }
    k->row = run_grow(NULL, &cap, vocab, sizeof *k->row);
    return 0;
}

int run_kl_expect(const run_kl *k, uint64_t rows)
{
    if (!k->row || rows == k->rows) return 0;
    cli_error("%s: has %llu predictions, the text has %llu; make it from the same text by --ppl with --logits", k->path,
              (unsigned long long)k->rows, (unsigned long long)rows);
    return CLI_EXIT_FILE;
}

static size_t best_of(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++) best = x[i] > x[best] ? i : best;
    return best;
}

/* Greatest logit plus the logarithm of the sum of what remains: what turns a logit into a log-probability. */
static double log_total(const float *x, size_t n, double top)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += exp((double)x[i] - top);
    return top + log(sum);
}

void run_kl_row(run_kl *k, uint64_t row, const float *logits, size_t n, tess_token target)
{
    if (!k->row || k->os_code || row >= k->rows || n != k->vocab) return;
    if (!read_at(k->fd, k->row, n * sizeof *k->row, k->data + row * n * sizeof *k->row)) {
        k->os_code = errno;
        return;
    }
    size_t best = best_of(k->row, n), mine = best_of(logits, n);
    double p_total = log_total(k->row, n, (double)k->row[best]), q_total = log_total(logits, n, (double)logits[mine]), kl = 0;
    for (size_t i = 0; i < n; i++) {
        double lp = (double)k->row[i] - p_total, p = exp(lp);
        if (p > 0 || isnan(p)) kl += p * (lp - ((double)logits[i] - q_total));
    }
    k->kl = run_grow(k->kl, &k->cap, k->n + 1, sizeof *k->kl);
    k->kl[k->n++] = kl;
    k->same += best == mine;
    k->ref_nll += p_total - (double)k->row[target];
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int run_kl_result(run_kl *k, run_kl_stats *s)
{
    double sum = 0;
    *s = (run_kl_stats){0};
    if (!k->row) return 0;
    if (k->os_code) {
        cli_error("%s: cannot read: %s", k->path, strerror(k->os_code));
        return CLI_EXIT_FILE;
    }
    for (size_t i = 0; i < k->n; i++) sum += k->kl[i];
    if (k->n != k->rows || k->n == 0 || !isfinite(sum) || !isfinite(k->ref_nll)) {
        cli_error("%s: the logits are not finite, here or there", k->path);
        return CLI_EXIT_FAILED;
    }
    qsort(k->kl, k->n, sizeof *k->kl, by_size);
    *s = (run_kl_stats){.mean = sum / (double)k->n, .median = k->kl[k->n / 2], .high = k->kl[(k->n - 1) * 99 / 100], .max = k->kl[k->n - 1],
                        .same_best = (double)k->same / (double)k->n, .ref_nll = k->ref_nll / (double)k->n};
    return 0;
}

void run_kl_close(run_kl *k)
{
    if (k->path && k->fd >= 0) close(k->fd);
    free(k->row);
    free(k->kl);
    *k = (run_kl){.fd = -1};
}
