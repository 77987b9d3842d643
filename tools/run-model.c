/*
 * run-model - generates text with a model from a .tess file. Uses the public interface (tessera.h) and nothing else of ours.
 *
 * stdout is the generated text and nothing else; notices, statistics (-v) and the one "error:" line go to stderr.
 *
 * Signals. The first ^C cancels the step under way, the text so far is flushed, exit code 130; a second ^C ends at once.
 * SIGPIPE keeps its default: when the reader of our output is gone, the process ends at the next write. SIGBUS in the mapped
 * file (it was truncated, or the disk failed) prints which file and where, and exits with 2.
 */
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

/* What signal handlers see; written by the main thread only, except the counter. */
static volatile sig_atomic_t interrupts;
static tess_ctx *volatile watched_ctx;
static tess_model *volatile watched_model;

bool run_interrupted(void) { return interrupts != 0; }
void run_watch_ctx(tess_ctx *c) { watched_ctx = c; }

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupts = interrupts + 1;
    if (interrupts > 1) _exit(CLI_EXIT_INTERRUPTED);
    tess_ctx_cancel(watched_ctx);
}

static void say(const char *s)
{
    ssize_t n = write(2, s, strlen(s));
    (void)n;
}

static void on_bus_error(int signal_number, siginfo_t *info, void *unused)
{
    char where[512];
    (void)unused;
    if (!tess_fault_describe(watched_model, info->si_addr, where, sizeof where)) { /* a fault of ours: die of it */
        signal(signal_number, SIG_DFL);
        raise(signal_number);
        return;
    }
    say("error: ");
    say(where);
    say(": the file can not be read any more; it was truncated, or its disk failed\n");
    _exit(CLI_EXIT_FILE);
}

static void install_handlers(void)
{
    struct sigaction a;
    memset(&a, 0, sizeof a);
    sigemptyset(&a.sa_mask);
    a.sa_handler = on_interrupt; /* no SA_RESTART: reading a prompt from stdin ends as well */
    sigaction(SIGINT, &a, NULL);
    a.sa_handler = NULL;
    a.sa_sigaction = on_bus_error;
    a.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &a, NULL);
}

static int32_t on_progress(void *user, uint64_t done, uint64_t total)
{
    cli_progress_update(user, done, total);
    return run_interrupted();
}

static void on_log(void *user, int32_t level, const char *text)
{
    const run_options *o = user;
    if (level >= TESS_LOG_WARN) cli_notice("%s", text);
    else if (o->verbose && level >= TESS_LOG_INFO) fprintf(stderr, "%s\n", text);
}

static int open_model(run_state *r)
{
    const run_options *o = r->o;
    cli_progress bar;
    tess_model_params p;
    tess_host host;
    tess_model *m = NULL;
    tess_host_init(&host);
    host.user = (void *)(uintptr_t)o; /* the log callback only reads it */
    host.log = on_log;
    tess_model_params_init(&p);
    p.flags = (o->mode == RUN_GENERATE || o->mode == RUN_PPL ? 0 : TESS_MODEL_TOKENIZER_ONLY) | (o->no_verify ? TESS_MODEL_NO_VERIFY : 0);
    p.n_ranks = o->ranks;
    p.n_threads = o->threads;
    p.compute = o->compute;
    p.stream = o->stream;
    p.devices = o->devices;
    p.split = o->split;
    p.progress = on_progress;
    p.progress_user = &bar;
    p.host = &host;
    uint64_t start = cli_now_ns();
    cli_progress_start(&bar, "loading", false);
    tess_status st = tess_model_open(o->model, &p, &m, &r->err);
    cli_progress_end(&bar);
    if (st == TESS_E_CANCELLED && run_interrupted()) return CLI_EXIT_INTERRUPTED;
    if (st < 0) return cli_fail(&r->err);
    r->model = m;
    watched_model = m;
    r->load_s = (double)(cli_now_ns() - start) * 1e-9;
    tess_model_info_init(&r->info);
    if (tess_model_get_info(m, &r->info, &r->err) < 0) return cli_fail(&r->err);
    if ((o->mode == RUN_GENERATE || o->mode == RUN_PPL) && !r->info.has_weights) {
        cli_error("%s: holds a tokenizer and no weights; it serves --tokenize, --detokenize and --render-chat", o->model);
        return CLI_EXIT_FILE;
    }
    return 0;
}

static int list_devices(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    printf("cpu     %d CPUs (%s)\n", n, tess_build_info());
    uint32_t n_devices;
    tess_error e;
    if (tess_device_count(&n_devices, &e) < 0) printf("cuda    none: %s\n", e.text);
    for (uint32_t i = 0; i < n_devices; i++) {
        tess_device_info d;
        tess_device_info_init(&d);
        if (tess_device_get(i, &d, &e) < 0) printf("cuda:%u  not usable: %s\n", i, e.text);
        else
            printf("cuda:%u  %s, compute capability %u.%u, %.1f of %.1f GB free\n", i, d.name, d.major, d.minor,
                   (double)d.mem_free * 1e-9, (double)d.mem_total * 1e-9);
    }
    return cli_flush();
}

static int work(run_state *r)
{
    switch (r->o->mode) {
    case RUN_TOKENIZE: return run_tokenize_stdin(r);
    case RUN_DETOKENIZE: return run_detokenize_stdin(r);
    case RUN_RENDER_CHAT: return run_render_chat(r);
    case RUN_PPL: return run_ppl(r);
    case RUN_LIST_DEVICES: return list_devices();
    default: return run_generate(r);
    }
}

int main(int argc, char **argv)
{
    run_options o;
    run_state r = {.o = &o, .start_ns = cli_now_ns()};
    int rc = run_options_parse(&o, argc, argv);
    if (rc >= 0) return rc;
    install_handlers();
    rc = o.mode == RUN_GENERATE ? run_prompt_read(&o, &r.prompt) : 0;
    if (!rc && o.model && o.mode != RUN_LIST_DEVICES) rc = open_model(&r);
    if (!rc) rc = work(&r);
    watched_model = NULL;
    tess_model_close(r.model);
    free(r.prompt.p);
    return rc;
}
