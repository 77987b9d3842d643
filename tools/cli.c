/* cli.c - see cli.h. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int cli_exit_code(tess_status status)
{
    if (status >= 0) return CLI_EXIT_OK;
    switch (status) {
    case TESS_E_ARG: return CLI_EXIT_USAGE;
    case TESS_E_IO:
    case TESS_E_FORMAT:
    case TESS_E_CHECKSUM:
    case TESS_E_TEMPLATE:
    case TESS_E_UNSUPPORTED: return CLI_EXIT_FILE;
    case TESS_E_NOMEM:
    case TESS_E_KV_FULL: return CLI_EXIT_MEMORY;
    case TESS_E_DEVICE: return CLI_EXIT_DEVICE;
    case TESS_E_CANCELLED: return CLI_EXIT_INTERRUPTED;
    default: return CLI_EXIT_FAILED;
    }
}

static void say(const char *kind, const char *fmt, va_list ap)
{
    char text[1024];
    vsnprintf(text, sizeof text, fmt, ap);
    for (unsigned char *s = (unsigned char *)text; *s; s++) {
        if (*s < 0x20 || *s == 0x7f) *s = '?';
        if (*s == 0xc2 && s[1] >= 0x80 && s[1] < 0xa0) *s = s[1] = '?'; /* U+0080 to U+009F: some terminals obey them */
    }
    fprintf(stderr, "%s: %s\n", kind, text);
}

void cli_error(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say("error", fmt, ap);
    va_end(ap);
}

void cli_notice(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say("notice", fmt, ap);
    va_end(ap);
}

int cli_fail(const tess_error *err)
{
    cli_error("%s", err->text[0] ? err->text : tess_status_name(err->status));
    return cli_exit_code(err->status);
}

/* ---- options ---- */

/* A standard descriptor that is closed would be given to the next file that is opened, and what is printed would go into
 * it. It gets a file on which every use fails, as on a closed one. */
static void keep_descriptors(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) < 0) return;
}

void cli_start(cli_parser *p, const char *program, const cli_option *options, size_t n, int argc, char **argv)
{
    keep_descriptors();
    signal(SIGXFSZ, SIG_IGN); /* a write beyond a file size limit is an error with a message */
    *p = (cli_parser){.program = program, .options = options, .n_options = n, .argv = argv, .argc = argc, .pos = 1};
}

/* Whether the space-separated list holds the word. */
static bool names_have(const char *list, const char *word, size_t len)
{
    while (*list) {
        size_t n = strcspn(list, " ");
        if (n == len && memcmp(list, word, len) == 0) return true;
        list += n + strspn(list + n, " ");
    }
    return false;
}

static const cli_option *option_find(const cli_parser *p, const char *word, size_t len)
{
    for (size_t i = 0; i < p->n_options; i++)
        if (p->options[i].names && names_have(p->options[i].names, word, len)) return &p->options[i];
    return NULL;
}

int cli_next(cli_parser *p, const char **value)
{
    *value = NULL;
    if (p->pos >= p->argc) return CLI_END;
    char *arg = p->argv[p->pos++];
    if (p->rest || arg[0] != '-' || arg[1] == 0) {
        *value = arg;
        return CLI_POSITIONAL;
    }
    if (strcmp(arg, "--") == 0) {
        p->rest = true;
        return cli_next(p, value);
    }
    char *equals = arg[1] == '-' ? strchr(arg, '=') : NULL;
    const cli_option *o = option_find(p, arg, equals ? (size_t)(equals - arg) : strlen(arg));
    if (!o) {
        cli_error("unknown option %s; %s --help lists them", arg, p->program);
        return CLI_BAD;
    }
    if (equals) *equals = 0;
    p->name = arg;
    if (!o->arg && equals) {
        cli_error("%s takes no value", arg);
        return CLI_BAD;
    }
    if (o->arg && !equals && p->pos >= p->argc) {
        cli_error("%s needs a value: %s", arg, o->arg);
        return CLI_BAD;
    }
    if (o->arg) *value = equals ? equals + 1 : p->argv[p->pos++];
    return o->id;
}

/* "-m, --model FILE", then the text at a fixed column; continuation lines of the text are indented alike. */
static void help_row(FILE *to, const cli_option *o)
{
    enum { COLUMN = 31 };
    char left[160];
    size_t n = 0;
    for (const char *s = o->names; *s && n + 3 < sizeof left; s++) {
        if (*s == ' ') left[n++] = ',';
        left[n++] = *s;
    }
    left[n] = 0;
    if (o->arg) snprintf(left + n, sizeof left - n, " %s", o->arg);
    n = strlen(left);
    if (n > COLUMN - 4) fprintf(to, "  %s\n%*s", left, COLUMN, "");
    else fprintf(to, "  %-*s", COLUMN - 2, left);
    for (const char *line = o->help; *line;) {
        size_t len = strcspn(line, "\n");
        fprintf(to, "%.*s\n", (int)len, line);
        line += len;
        if (*line) fprintf(to, "%*s", COLUMN, ""), line++;
    }
}

void cli_help(FILE *to, const cli_option *options, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!options[i].names) fprintf(to, "%s%s\n", i ? "\n" : "", options[i].help);
        else if (options[i].help) help_row(to, &options[i]);
    }
}

int cli_version(const char *program)
{
    printf("%s (%s)\n", program, tess_build_info());
    return cli_flush();
}

int cli_flush(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return CLI_EXIT_OK;
    cli_error("stdout: what was printed cannot be written: %s", strerror(errno));
    return CLI_EXIT_FILE;
}

bool cli_int(const char *name, const char *text, int64_t lo, int64_t hi, int64_t *out)
{
    char *end = NULL;
    errno = 0;
    long long v = *text == ' ' ? 0 : strtoll(text, &end, 10);
    if (!end || end == text || *end || errno || v < lo || v > hi) {
        cli_error("%s: \"%s\" is not a whole number from %" PRId64 " to %" PRId64, name, text, lo, hi);
        return false;
    }
    *out = v;
    return true;
}

/* The factor that a suffix stands for; 0 when it is none. */
static uint64_t suffix_factor(const char *s)
{
    static const char small[] = "kmgt", large[] = "KMGT";
    uint64_t f = 1;
    if (!*s) return 1;
    if (s[1]) return 0;
    const char *p = strchr(small, *s), *q = strchr(large, *s);
    if (!p && !q) return 0;
    for (long i = p ? p - small : q - large; i >= 0; i--) f *= p ? 1000 : 1024;
    return f;
}

bool cli_size(const char *name, const char *text, uint64_t lo, uint64_t hi, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    unsigned long long v = *text >= '0' && *text <= '9' ? strtoull(text, &end, 10) : 0;
    uint64_t factor = end && !errno ? suffix_factor(end) : 0, r;
    if (factor == 0 || __builtin_mul_overflow((uint64_t)v, factor, &r) || r < lo || r > hi) {
        const char *suffixes = hi < 1024 ? "" : " (with k, m, g = powers of 1000; K, M, G = of 1024)";
        cli_error("%s: \"%s\" is not a number from %" PRIu64 " to %" PRIu64 "%s", name, text, lo, hi, suffixes);
        return false;
    }
    *out = r;
    return true;
}

bool cli_float(const char *name, const char *text, double lo, double hi, float *out)
{
    char *end = NULL;
    double v = *text == ' ' ? 0 : strtod(text, &end);
    if (!end || end == text || *end || !isfinite(v) || !(v >= lo) || !(v <= hi)) {
        if (hi >= 1e30) cli_error("%s: \"%s\" is not a number of at least %g", name, text, lo);
        else cli_error("%s: \"%s\" is not a number from %g to %g", name, text, lo, hi);
        return false;
    }
    *out = (float)v;
    return true;
}

bool cli_choice(const char *name, const char *text, const char *const *words, size_t n, int *out)
{
    char list[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(text, words[i]) == 0) {
            *out = (int)i;
            return true;
        }
        int k = snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", words[i]);
        if (k > 0 && (size_t)k < sizeof list - used) used += (size_t)k;
    }
    cli_error("%s: \"%s\" is none of %s", name, text, list);
    return false;
}

/* ---- progress ---- */

enum { BAR_DELAY_NS = 500000000, BAR_PERIOD_NS = 100000000, BAR_WIDTH = 30 };

uint64_t cli_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void cli_progress_start(cli_progress *p, const char *what, bool plain_lines)
{
    *p = (cli_progress){.what = what, .start_ns = cli_now_ns(), .tty = isatty(2) == 1, .plain_lines = plain_lines};
}

static void bar_draw(cli_progress *p, uint64_t done, uint64_t total, uint64_t now)
{
    static const char full[BAR_WIDTH + 1] = "##############################", none[BAR_WIDTH + 1] = "..............................";
    double share = (double)done / (double)total, seconds = (double)(now - p->start_ns) * 1e-9;
    int on = (int)(share * BAR_WIDTH);
    double left = share > 0 ? seconds * (1 - share) / share : 0;
    fprintf(stderr, "\r%s [%.*s%.*s] %3d%% %.2f/%.2f GB %.2f GB/s %.0fs left\033[K", p->what, on, full, BAR_WIDTH - on, none,
            (int)(share * 100), (double)done * 1e-9, (double)total * 1e-9, (double)done * 1e-9 / seconds, left);
    fflush(stderr);
    p->shown = true;
}

void cli_progress_update(cli_progress *p, uint64_t done, uint64_t total)
{
    if (total == 0) return;
    if (done > total) done = total;
    if (p->tty) {
        uint64_t now = cli_now_ns();
        if (now - p->start_ns < BAR_DELAY_NS || now - p->last_ns < BAR_PERIOD_NS) return;
        p->last_ns = now;
        bar_draw(p, done, total, now);
    } else if (p->plain_lines) {
        unsigned tenth = (unsigned)((double)done / (double)total * 10);
        if (tenth <= p->tenth) return;
        p->tenth = tenth;
        bool small = total < 100000000;
        fprintf(stderr, "%s: %u%% of %.2f %s\n", p->what, tenth * 10, (double)total * (small ? 1e-6 : 1e-9), small ? "MB" : "GB");
    }
}

void cli_progress_end(cli_progress *p)
{
    if (p->shown) fputs("\r\033[K", stderr);
    p->shown = false;
}
