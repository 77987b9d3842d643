/*
 * bench_peer.c - asks another program to measure the same, see bench.h.
 *
 * The command is run by the shell. It gets one line of JSON on stdin for each repetition,
 *   {"test":"decode","tokens":64,"depth":4096,"threads":2,"kv":"f16"}
 * and the same in the environment (BENCH_TEST, BENCH_TOKENS, BENCH_DEPTH, BENCH_THREADS, BENCH_KV), and answers
 * on stdout with a number, tokens per second, or with JSON that has "tokens_per_s" at its top or in the first
 * of its "results". A program that stays for the next line keeps its model loaded; one that ended is started
 * again for the next repetition.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

enum { MAX_ANSWER = 1 << 20, PATIENCE_MS = 2000 };
extern char **environ;

struct bench_peer {
    const char *command;
    pid_t pid;   /* 0: not running; leader of its process group */
    int in, out; /* its stdin and stdout; -1: closed */
    char *text;  /* of the answer under way; [MAX_ANSWER + 1] */
    size_t n;
};

int bench_peer_open(const char *command, bench_peer **out)
{
    bench_peer *p = *out = calloc(1, sizeof *p);
    if (!p) return bench_no_memory();
    p->command = command;
    p->in = p->out = -1;
    p->text = malloc(MAX_ANSWER + 1);
    return p->text ? 0 : bench_no_memory();
}

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* Ends the program: it gets two seconds to leave by itself after its stdin is closed. Returns its wait status.
 * */
static int stop(bench_peer *p)
{
    int status = 0;
    pid_t gone = 0;
    close_fd(&p->in);
    close_fd(&p->out);
    if (p->pid == 0) return 0;
    for (int ms = 0; ms < PATIENCE_MS && !bench_interrupted() && gone == 0; ms += 10) {
        gone = waitpid(p->pid, &status, WNOHANG);
        if (gone == 0) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    if (gone == 0) {
        kill(-p->pid, SIGTERM);
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
        kill(-p->pid, SIGKILL);
        while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR) {}
    }
    p->pid = 0;
    return status;
}

void bench_peer_close(bench_peer *p)
{
    if (!p) return;
    stop(p);
    free(p->text);
    free(p);
}

/* ---- starting ---- */

static int spawn_shell(bench_peer *p, int in, int out)
{
    char *argv[] = {(char[]){"sh"}, (char[]){"-c"}, (char *)(uintptr_t)p->command, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE); /* which we ignore, and it should not */
    if (posix_spawn_file_actions_init(&files) != 0) return ENOMEM;
    if (posix_spawnattr_init(&attr) != 0) {
        posix_spawn_file_actions_destroy(&files);
        return ENOMEM;
    }
    int e = posix_spawn_file_actions_adddup2(&files, in, 0);
    if (!e) e = posix_spawn_file_actions_adddup2(&files, out, 1);
    if (!e) e = posix_spawnattr_setsigdefault(&attr, &defaults);
    if (!e) e = posix_spawnattr_setpgroup(&attr, 0);
    if (!e) e = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    if (!e) e = posix_spawn(&p->pid, "/bin/sh", &files, &attr, argv, environ);
    if (e) p->pid = 0;
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    return e;
}

static int start(bench_peer *p)
{
    int to[2] = {-1, -1}, from[2] = {-1, -1}, e = 0;
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) e = errno;
    if (!e) e = spawn_shell(p, to[0], from[1]);
    close_fd(&to[0]);
    close_fd(&from[1]);
    p->in = to[1];
    p->out = from[0];
    if (!e) return 0;
    stop(p);
    cli_error("--peer %s: cannot be started: %s", p->command, strerror(e));
    return CLI_EXIT_FILE;
}

/* ---- question and answer ---- */

static void setenv_u32(const char *name, uint32_t v)
{
    char text[16];
    snprintf(text, sizeof text, "%u", v);
    setenv(name, text, 1);
}

/* Writes the line; false when the program does not read any more. */
static bool send_line(bench_peer *p, const char *line, size_t n)
{
    while (n) {
        ssize_t k = write(p->in, line, n);
        if (k < 0 && errno == EINTR && !bench_interrupted()) continue;
        if (k <= 0) return false;
        line += k;
        n -= (size_t)k;
    }
    return true;
}

/* Whether the text is a whole answer. */
static bool parse(const char *text, double *rate)
{
    char *end;
    *rate = strtod(text, &end);
    if (end != text && end[strspn(end, " \t\r\n")] == 0) return true;
    json_t *j = json_loads(text, 0, NULL);
    json_t *v = json_object_get(j, "tokens_per_s");
    if (!v) v = json_object_get(json_array_get(json_object_get(j, "results"), 0), "tokens_per_s");
    bool ok = json_is_number(v);
    *rate = json_number_value(v);
    json_decref(j);
    return ok;
}

/* Reads until the text is an answer at the end of a line, or the program closes its stdout. False: no answer.
 * */
static bool read_answer(bench_peer *p, double *rate)
{
    p->text[0] = 0;
    while (p->n < MAX_ANSWER) {
        ssize_t k = read(p->out, p->text + p->n, MAX_ANSWER - p->n);
        if (k < 0 && errno == EINTR && !bench_interrupted()) continue;
        if (k <= 0) return k == 0 && p->n > 0 && parse(p->text, rate);
        p->n += (size_t)k;
        p->text[p->n] = 0;
        if (p->text[p->n - 1] == '\n' && parse(p->text, rate)) return true;
    }
    return false;
}

static int complain(bench_peer *p)
{
    size_t n = strcspn(p->text, "\n");
    int status = stop(p);
    if (bench_interrupted()) return CLI_EXIT_INTERRUPTED;
    if (p->n)
        cli_error("--peer %s: \"%.*s\" is neither a number nor JSON with tokens_per_s", p->command,
                  (int)(n < 200 ? n : 200), p->text);
    else if (WIFSIGNALED(status))
        cli_error("--peer %s: gave no answer and died of signal %d", p->command, WTERMSIG(status));
    else cli_error("--peer %s: gave no answer; exit status %d", p->command, WEXITSTATUS(status));
    return CLI_EXIT_FILE;
}

int bench_peer_ask(bench_peer *p, const bench_test *t, double *rate)
{
    const char *test = t->decode ? "decode" : "prompt", *kv = bench_kv_name(t->kv);
    char line[256];
    int n = snprintf(line, sizeof line,
                     "{\"test\":\"%s\",\"tokens\":%u,\"depth\":%u,\"threads\":%u,\"kv\":\"%s\"}\n", test,
                     t->tokens, t->depth, t->threads, kv);
    p->n = 0;
    setenv("BENCH_TEST", test, 1);
    setenv("BENCH_KV", kv, 1);
    setenv_u32("BENCH_TOKENS", t->tokens);
    setenv_u32("BENCH_DEPTH", t->depth);
    setenv_u32("BENCH_THREADS", t->threads);
    bool answered = p->pid && send_line(p, line, (size_t)n) && read_answer(p, rate);
    if (!answered && p->n == 0 &&
        !bench_interrupted()) { /* first question, or it ended after its last answer */
        stop(p);
        p->text[0] = 0;
        int rc = start(p);
        if (rc) return rc;
        send_line(p, line, (size_t)n); /* a program that only looks at the environment may not read it */
        answered = read_answer(p, rate);
    }
    if (!answered) return complain(p);
    if (!isfinite(*rate) || !(*rate > 0)) {
        cli_error("--peer %s: %g is not a speed", p->command, *rate);
        return CLI_EXIT_FILE;
    }
    return 0;
}
