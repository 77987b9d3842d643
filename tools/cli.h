/*
 * cli.h - what the commands share: options, numbers, the error line, exit codes, a progress bar.
 *
 * Depends on tessera.h only, so that a command which uses nothing else of ours can use it. Everything that is said to the
 * user goes to stderr; stdout belongs to the command's result. A command prints at most one line that starts with "error:".
 */
#ifndef TESS_CLI_H
#define TESS_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "tessera.h"

#define CLI_PRINTF(f, a) __attribute__((format(printf, f, a)))

enum {
    CLI_EXIT_OK = 0,
    CLI_EXIT_USAGE = 1,
    CLI_EXIT_FILE = 2, /* missing, unreadable, damaged or unsupported file; output that cannot be written */
    CLI_EXIT_MEMORY = 3,
    CLI_EXIT_DEVICE = 4,
    CLI_EXIT_FAILED = 5, /* generation failed */
    CLI_EXIT_INTERRUPTED = 130
};
int cli_exit_code(tess_status status);

/* "error: " and one line. Control characters of the text are printed as '?'. */
void cli_error(const char *fmt, ...) CLI_PRINTF(1, 2);
/* "notice: " and one line, for what the user should know although nothing failed. */
void cli_notice(const char *fmt, ...) CLI_PRINTF(1, 2);
/* The error line for err; returns the exit code. */
int cli_fail(const tess_error *err);

/* ---- options ----
 * names: all spellings, separated by one space ("-m --model"). arg: NULL for a switch, else the word for its value in the
 * help text. help: NULL keeps an option out of the help (an alias that other programs use). A row with names NULL is a
 * heading of the help text (in help). */
typedef struct {
    const char *names;
    int id; /* > 0 */
    const char *arg;
    const char *help;
} cli_option;

enum { CLI_END = 0, CLI_POSITIONAL = -1, CLI_BAD = -2 };
typedef struct {
    const char *program;
    const cli_option *options;
    size_t n_options;
    char **argv;
    int argc, pos;
    bool rest;        /* "--" was seen: what follows is positional */
    const char *name; /* spelling of the option that cli_next returned */
} cli_parser;
/* To be called before anything is opened: also makes sure that 0, 1 and 2 are no files of the command, and that a file size
 * limit is an error and no signal. */
void cli_start(cli_parser *p, const char *program, const cli_option *options, size_t n, int argc, char **argv);
/* The next option's id with its value ("--name value", "--name=value"), CLI_POSITIONAL, CLI_END, or CLI_BAD after an
 * error line. "-" alone is positional. */
int cli_next(cli_parser *p, const char **value);
void cli_help(FILE *to, const cli_option *options, size_t n);
/* "run-model (tessera 0.1.0; ...)" on stdout; returns the exit code. */
int cli_version(const char *program);
/* What was printed is out: CLI_EXIT_OK, or CLI_EXIT_FILE after an error line. */
int cli_flush(void);

/* Values of option `name`; false after an error line that names it, the value and the range. */
bool cli_int(const char *name, const char *text, int64_t lo, int64_t hi, int64_t *out);
/* The same with a suffix: k m g t are powers of 1000, K M G T powers of 1024. */
bool cli_size(const char *name, const char *text, uint64_t lo, uint64_t hi, uint64_t *out);
/* A finite number in [lo, hi]. */
bool cli_float(const char *name, const char *text, double lo, double hi, float *out);
/* One of words[0..n): its index. */
bool cli_choice(const char *name, const char *text, const char *const *words, size_t n, int *out);

/* ---- progress ----
 * A bar on stderr when that is a terminal and the work takes longer than half a second; otherwise nothing, or with
 * plain_lines a line at every tenth of the work. */
typedef struct {
    const char *what; /* "loading", "converting" */
    uint64_t start_ns, last_ns;
    unsigned tenth;
    bool tty, plain_lines, shown;
} cli_progress;
void cli_progress_start(cli_progress *p, const char *what, bool plain_lines);
void cli_progress_update(cli_progress *p, uint64_t done, uint64_t total); /* bytes */
void cli_progress_end(cli_progress *p);                                   /* takes the bar off the terminal */

uint64_t cli_now_ns(void); /* monotonic */
#endif
