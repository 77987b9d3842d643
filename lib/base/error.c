/* error.c - one line of text and a code into the caller's tess_error. Control characters become '?', so that a hostile
 * file name or key can neither break the line nor drive a terminal. */
#include <errno.h>
#include <stdio.h>

#include "base.h"

static void make_printable(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f) *s = '?';
}

void err_clear(tess_error *err)
{
    if (err) memset(err, 0, sizeof *err);
}

tess_status err_set(tess_error *err, tess_status code, const char *fmt, ...)
{
    if (!err) return code;
    va_list ap;
    va_start(ap, fmt);
    err->status = code;
    err->os_code = 0;
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    make_printable(err->text);
    return code;
}

tess_status err_set_os(tess_error *err, tess_status code, const char *fmt, ...)
{
    int saved = errno;
    if (!err) return code;
    va_list ap;
    va_start(ap, fmt);
    err->status = code;
    err->os_code = saved;
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof err->text) {
        char reason[128] = "";
        const char *text = strerror_r(saved, reason, sizeof reason); /* GNU form */
        snprintf(err->text + n, sizeof err->text - (size_t)n, ": %s", text);
    }
    make_printable(err->text);
    return code;
}

tess_status err_prefix(tess_error *err, tess_status code, const char *fmt, ...)
{
    if (!err) return code;
    char old[sizeof err->text];
    memcpy(old, err->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    err->status = code;
    size_t used = n < 0 ? 0 : MIN((size_t)n, sizeof err->text - 1), room = sizeof err->text - 1 - used;
    if (room >= 2) {
        size_t len = MIN(strlen(old), room - 2);
        memcpy(err->text + used, ": ", 2);
        memcpy(err->text + used + 2, old, len);
        err->text[used + 2 + len] = 0;
    }
    make_printable(err->text);
    return code;
}
