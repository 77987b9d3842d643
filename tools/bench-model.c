/*
 * bench-model - measures prompt and decode speed of a model, beside the machine's own limits and another
 * engine's speed.
 *
 * Machines drift, above all shared ones: every repetition of a test is followed at once by a measurement of the
 * machine and, with --peer, by the same test of the other program. Medians are compared with medians, ratios
 * are taken pair by pair.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

/* What the signal handler sees. */
static volatile sig_atomic_t interrupts;
static tess_ctx *volatile watched_ctx;

bool bench_interrupted(void) { return interrupts != 0; }
void bench_watch_ctx(tess_ctx *c) { watched_ctx = c; }

int bench_no_memory(void)
{
    cli_error("no memory");
    return CLI_EXIT_MEMORY;
}

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupts = interrupts + 1;
    if (interrupts > 1) _exit(CLI_EXIT_INTERRUPTED);
    tess_ctx_cancel(watched_ctx);
}

static void install_handlers(void)
{
    struct sigaction a;
    memset(&a, 0, sizeof a);
    sigemptyset(&a.sa_mask);
    a.sa_handler = on_interrupt; /* no SA_RESTART: waiting for the peer ends as well */
    sigaction(SIGINT, &a, NULL);
    a.sa_handler = SIG_IGN; /* a peer that is gone, and a closed stdout, are seen where they are written to */
    sigaction(SIGPIPE, &a, NULL);
}

typedef struct {
    const bench_options *o;
    tess_model *model;
    tess_model_info info;
    bench_machine *machine;
    bench_peer *peer;
    bench_report *report; /* NULL until the first model is open */
    bench_run *run;
} state;

/* ---- one test ---- */

typedef struct {
    double rate[BENCH_MAX_REPS], peer[BENCH_MAX_REPS], ratio[BENCH_MAX_REPS], speed[3][BENCH_MAX_REPS];
} samples;

static int repeat(state *s, const bench_test *t, uint32_t i, samples *v)
{
    double seconds;
    bench_speed speed;
    int rc = bench_run_once(s->run, t, t->tokens, &seconds);
    if (!rc) rc = bench_machine_measure(s->machine, t->threads, &speed);
    if (!rc && s->peer) rc = bench_peer_ask(s->peer, t, &v->peer[i]);
    if (!rc && bench_interrupted()) rc = CLI_EXIT_INTERRUPTED;
    if (rc) return rc;
    v->rate[i] = t->tokens / seconds;
    if (s->peer) v->ratio[i] = v->rate[i] / v->peer[i];
    v->speed[0][i] = speed.read_gb_s;
    v->speed[1][i] = speed.f32_gmac_s;
    v->speed[2][i] = speed.int8_gmac_s;
    return 0;
}

static int run_test(state *s, bench_test t, samples *v)
{
    enum { WARM_TOKENS = 4 };
    bench_result out = {0};
    uint32_t n = s->o->reps, most = t.decode ? WARM_TOKENS : s->o->chunk;
    double seconds;
    t.ranks = s->info.n_ranks;
    t.threads = s->info.n_threads;
    t.type = s->info.weight_type;
    t.int8 = t.type[0] == 'q' && s->o->compute != TESS_COMPUTE_F32;
    bench_run_cost(s->run, &t);
    if (getloadavg(&out.load, 1) != 1) out.load = 0;
    int rc =
        bench_run_once(s->run, &t, t.tokens < most ? t.tokens : most, &seconds); /* touches weights and pages */
    for (uint32_t i = 0; !rc && i < n; i++) rc = repeat(s, &t, i, v);
    if (rc) return rc;
    out.rate = bench_stats_of(v->rate, n);
    if (s->peer) {
        out.peer = bench_stats_of(v->peer, n);
        out.ratio = bench_stats_of(v->ratio, n);
    }
    out.speed.read_gb_s = bench_stats_of(v->speed[0], n).median;
    out.speed.f32_gmac_s = bench_stats_of(v->speed[1], n).median;
    out.speed.int8_gmac_s = bench_stats_of(v->speed[2], n).median;
    return bench_report_add(s->report, &t, &out);
}

/* All tests with one KV type. */
static int run_tests(state *s, uint32_t kv, samples *v)
{
    const bench_options *o = s->o;
    int rc = bench_run_open(o, s->model, &s->info, kv, &s->run);
    for (uint32_t d = 0; !rc && d < o->depth.n; d++) {
        bench_test t = {.depth = o->depth.v[d], .kv = kv};
        rc = bench_run_fill(s->run, t.depth);
        for (uint32_t i = 0; !rc && i < o->prompt.n; i++) {
            t.tokens = o->prompt.v[i];
            rc = run_test(s, t, v);
        }
        t.decode = true;
        for (uint32_t i = 0; !rc && i < o->decode.n; i++) {
            t.tokens = o->decode.v[i];
            rc = run_test(s, t, v);
        }
    }
    bench_run_close(s->run);
    s->run = NULL;
    return rc;
}

/* ---- the model ---- */

static int32_t on_progress(void *user, uint64_t done, uint64_t total)
{
    cli_progress_update(user, done, total);
    return bench_interrupted();
}

static void on_log(void *user, int32_t level, const char *text)
{
    (void)user;
    if (level >= TESS_LOG_WARN) cli_notice("%s", text);
}

static int open_model(state *s, uint32_t threads)
{
    const bench_options *o = s->o;
    cli_progress bar;
    tess_model_params p;
    tess_host host;
    tess_error err;
    tess_host_init(&host);
    host.log = on_log;
    tess_model_params_init(&p);
    p.flags = o->no_verify ? TESS_MODEL_NO_VERIFY : 0;
    p.n_ranks = o->ranks;
    p.n_threads = threads;
    p.compute = o->compute;
    p.stream = o->stream;
    p.devices = o->devices;
    p.split = o->split;
    p.progress = on_progress;
    p.progress_user = &bar;
    p.host = &host;
    cli_progress_start(&bar, "loading", false);
    tess_status st = tess_model_open(o->model, &p, &s->model, &err);
    cli_progress_end(&bar);
    if (st == TESS_E_CANCELLED && bench_interrupted()) return CLI_EXIT_INTERRUPTED;
    if (st < 0) return cli_fail(&err);
    tess_model_info_init(&s->info);
    if (tess_model_get_info(s->model, &s->info, &err) < 0) return cli_fail(&err);
    if (s->info.has_weights) return 0;
    cli_error("%s: holds a tokenizer and no weights", o->model);
    return CLI_EXIT_FILE;
}

static int bench(state *s)
{
    const bench_options *o = s->o;
    samples *v = malloc(sizeof *v);
    int rc = v ? bench_machine_open(&s->machine) : bench_no_memory();
    if (!rc && o->peer) rc = bench_peer_open(o->peer, &s->peer);
    for (uint32_t i = 0; !rc && i < o->threads.n; i++) {
        rc = open_model(s, o->threads.v[i]);
        if (!rc) rc = bench_run_fits(o, &s->info);
        if (!rc && !s->report) rc = bench_report_open(o, &s->info, s->machine, &s->report);
        for (uint32_t k = 0; !rc && k < o->kv.n; k++) rc = run_tests(s, o->kv.v[k], v);
        tess_model_close(s->model);
        s->model = NULL;
    }
    if (!rc) rc = bench_report_end(s->report);
    free(v);
    return rc;
}

int main(int argc, char **argv)
{
    bench_options o;
    state s = {.o = &o};
    int rc = bench_options_parse(&o, argc, argv);
    if (rc >= 0) return rc;
    install_handlers();
    rc = bench(&s);
    bench_report_close(s.report);
    bench_peer_close(s.peer);
    bench_machine_close(s.machine);
    return rc;
}
