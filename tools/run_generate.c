/*
 * run_generate.c - one prompt, one continuation, written as it comes.
 *
 * A generated id goes through a tess_stream, which holds back half characters and what may begin a stop text; what it gives
 * is written at once. Generation ends at an end token, a stop text, -n, the end of the context, an error or ^C; what was held
 * back is then written, so that no text is lost.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "run.h"

typedef struct {
    run_state *r;
    run_ids prompt;
    tess_ctx *ctx;
    tess_seq seq;
    tess_stream *stream;
    run_npy npy;
    tess_seq_params params;
    tess_token *stop_ids;
    int fd; /* of the text */
    const char *fd_name;
    uint64_t n_out; /* ids generated, a final end token included */
    uint64_t first_ns, last_ns;
    const char *reason; /* why it ended, for -v */
    bool stopped; /* a stop text was completed */
} generation;

static float choose_float(float given, float from_model, float otherwise)
{
    return !isnan(given) ? given : from_model >= 0 ? from_model : otherwise;
}

static uint64_t random_seed(void)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) seed = cli_now_ns() ^ (uint64_t)getpid() << 32;
    return seed >> 1; /* so that it can be given to --seed */
}

/* The model's end tokens and those of --stop-id. With --ignore-eos only the latter count. */
static void set_stop_ids(generation *g)
{
    const run_options *o = g->r->o;
    const tess_model_info *info = &g->r->info;
    size_t cap = 0, n_eos = o->ignore_eos ? 0 : info->n_eos;
    if (o->n_stop_id == 0) {
        if (o->ignore_eos) g->params.flags |= TESS_SEQ_IGNORE_EOS;
        return;
    }
    g->stop_ids = run_grow(NULL, &cap, n_eos + o->n_stop_id, sizeof *g->stop_ids);
    if (n_eos) memcpy(g->stop_ids, info->eos_list, n_eos * sizeof *g->stop_ids);
    memcpy(g->stop_ids + n_eos, o->stop_id, o->n_stop_id * sizeof *g->stop_ids);
    g->params.stop = g->stop_ids;
    g->params.n_stop = (uint32_t)n_eos + o->n_stop_id;
}

/* Ids that may be generated: with --logits the last one is run too and needs a place in the context. */
static uint32_t max_new_ids(const generation *g)
{
    const run_options *o = g->r->o;
    uint64_t ctx = o->ctx_size ? o->ctx_size : g->r->info.max_seq_tokens;
    uint64_t room = g->prompt.n <= ctx ? ctx - g->prompt.n + (o->logits_file ? 0 : 1) : 0;
    return (uint32_t)(o->n_predict < 0 || (uint64_t)o->n_predict > room ? room : (uint64_t)o->n_predict);
}

static void set_params(generation *g)
{
    const run_options *o = g->r->o;
    const tess_model_info *info = &g->r->info;
    tess_seq_params *p = &g->params;
    tess_seq_params_init(p);
    p->max_new = max_new_ids(g);
    p->temperature = choose_float(o->temperature, info->temperature, 0.8f);
    p->top_p = choose_float(o->top_p, info->top_p, 0.95f);
    p->min_p = choose_float(o->min_p, info->min_p, 0.05f);
    p->repeat_penalty = choose_float(o->repeat_penalty, info->repetition_penalty, 1);
    p->top_k = o->top_k != RUN_UNSET ? o->top_k : info->top_k >= 0 ? info->top_k : 40;
    p->repeat_last_n = o->repeat_last_n != RUN_UNSET ? o->repeat_last_n : 64;
    p->presence_penalty = choose_float(o->presence_penalty, -1, 0);
    p->frequency_penalty = choose_float(o->frequency_penalty, -1, 0);
    p->seed = o->seed >= 0 ? (uint64_t)o->seed : random_seed();
    if (o->logits_file) p->flags |= TESS_SEQ_ALL_LOGITS | TESS_SEQ_FEED_LAST;
    set_stop_ids(g);
}

void run_ctx_params(const run_options *o, tess_ctx_params *p)
{
    tess_ctx_params_init(p);
    p->max_seqs = 1;
    p->max_step_tokens = o->chunk;
    p->max_seq_tokens = o->ctx_size;
    p->kv_dtype = o->kv;
    p->page_tokens = o->page;
    p->prefix_bytes = -1; /* there is one sequence */
}

static void on_logits(void *user, tess_seq seq, uint64_t pos, const float *logits, size_t n)
{
    (void)seq;
    run_npy_row(user, pos, logits, n);
}

static int open_output(generation *g)
{
    g->fd = 1;
    g->fd_name = "stdout";
    if (!g->r->o->out_file) return 0;
    g->fd_name = g->r->o->out_file;
    g->fd = open(g->fd_name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (g->fd >= 0) return 0;
    cli_error("%s: cannot create: %s", g->fd_name, strerror(errno));
    return CLI_EXIT_FILE;
}

/* Context, sequence, stream and outputs; the prompt is handed over last. */
static int generation_open(generation *g)
{
    run_state *r = g->r;
    const run_options *o = r->o;
    tess_ctx_params cp;
    tess_stream_params sp;
    run_ctx_params(o, &cp);
    if (o->logits_file) {
        cp.on_logits = on_logits;
        cp.logits_user = &g->npy;
    }
    if (tess_ctx_open(r->model, &cp, &g->ctx, &r->err) < 0) return cli_fail(&r->err);
    run_watch_ctx(g->ctx);
    if (tess_seq_open(g->ctx, &g->params, &g->seq, &r->err) < 0) return cli_fail(&r->err);
    if (tess_seq_append(g->ctx, g->seq, g->prompt.p, g->prompt.n, &r->err) < 0) return cli_fail(&r->err);
    tess_stream_params_init(&sp);
    sp.flags = o->special ? TESS_DETOK_SPECIAL : 0;
    sp.stop = o->stop;
    sp.n_stop = o->n_stop;
    if ((!o->print_ids || o->n_stop) && tess_stream_open(r->model, &sp, &g->stream, &r->err) < 0) return cli_fail(&r->err);
    int rc = o->logits_file ? run_npy_open(&g->npy, o->logits_file, r->info.vocab_size) : 0;
    return rc ? rc : open_output(g);
}

static void generation_close(generation *g)
{
    run_watch_ctx(NULL);
    run_npy_abort(&g->npy);
    tess_stream_close(g->stream);
    tess_ctx_close(g->ctx);
    if (g->fd > 2) close(g->fd);
    free(g->stop_ids);
    free(g->prompt.p);
}

static int write_id(generation *g, tess_token id, bool first)
{
    char text[16];
    int n = snprintf(text, sizeof text, "%s%d", first ? "" : ",", id);
    return run_write(g->fd, g->fd_name, text, (size_t)n);
}

static int echo_prompt(generation *g)
{
    const run_options *o = g->r->o;
    if (!o->echo) return 0;
    int rc = 0;
    if (o->print_ids) {
        for (size_t i = 0; i < g->prompt.n && !rc; i++) rc = write_id(g, g->prompt.p[i], i == 0);
        return rc;
    }
    run_bytes text = {0};
    rc = run_detokenize(g->r, &g->prompt, o->special ? TESS_DETOK_SPECIAL : 0, &text);
    if (!rc) rc = run_write(g->fd, g->fd_name, text.p, text.n);
    free(text.p);
    return rc;
}

/* One generated id; the end token too, which is printed only as an id or with --special. */
static int take_id(generation *g, tess_token id, bool end)
{
    const run_options *o = g->r->o;
    const char *text = NULL;
    size_t len = 0;
    int32_t stopped = 0;
    if (g->n_out++ == 0) g->first_ns = cli_now_ns();
    g->last_ns = cli_now_ns();
    int rc = o->print_ids ? write_id(g, id, g->n_out == 1 && !o->echo) : 0;
    if (rc || !g->stream || (end && !o->special)) return rc;
    if (tess_stream_push(g->stream, id, &text, &len, &stopped, &g->r->err) < 0) {
        tess_stream_close(g->stream); /* its end would fail once more, in a second line */
        g->stream = NULL;
        return cli_fail(&g->r->err);
    }
    g->stopped = stopped != 0;
    return o->print_ids ? 0 : run_write(g->fd, g->fd_name, text, len);
}

static int take_event(generation *g, const tess_event *e)
{
    if (e->kind == TESS_EV_TOKEN) return g->stopped ? 0 : take_id(g, e->token, false);
    if (e->kind != TESS_EV_DONE || g->stopped) return 0;
    g->reason = e->reason == TESS_DONE_STOP ? "end token" : e->reason == TESS_DONE_LENGTH ? "length" : "error";
    return e->reason == TESS_DONE_STOP && e->token >= 0 ? take_id(g, e->token, true) : 0;
}

/* Steps until the sequence is done. After a stop text one more step runs the last id if its logits are wanted. */
static int step_loop(generation *g)
{
    run_state *r = g->r;
    for (int rc = 0;;) {
        tess_event ev[2];
        size_t n = 0;
        bool last = g->stopped;
        if (last && !r->o->logits_file) return 0;
        if (run_interrupted()) return CLI_EXIT_INTERRUPTED;
        tess_status st = tess_step(g->ctx, ev, 2, &n, &r->err);
        for (size_t i = 0; i < n && !rc; i++) rc = take_event(g, &ev[i]);
        if (rc || st == TESS_IDLE || last) return rc;
        if (st == TESS_E_CANCELLED && run_interrupted()) return CLI_EXIT_INTERRUPTED;
        if (st < 0) return cli_fail(&r->err);
    }
}

/* What the stream still holds; then the newline that a terminal wants. */
static int finish_text(generation *g)
{
    const char *text;
    size_t len;
    int rc = 0;
    if (g->stream && !g->stopped && !g->r->o->print_ids) {
        if (tess_stream_flush(g->stream, &text, &len, &g->r->err) < 0) return cli_fail(&g->r->err);
        rc = run_write(g->fd, g->fd_name, text, len);
    }
    return rc || !isatty(g->fd) ? rc : run_write(g->fd, g->fd_name, "\n", 1);
}

static double seconds(uint64_t from, uint64_t to) { return to > from ? (double)(to - from) * 1e-9 : 0; }

static void print_stats(const generation *g)
{
    const run_state *r = g->r;
    const tess_seq_params *p = &g->params;
    tess_kv_stats kv;
    tess_kv_stats_init(&kv);
    tess_ctx_kv_stats(g->ctx, &kv, NULL);
    double first = seconds(r->start_ns, g->first_ns), rest = seconds(g->first_ns, g->last_ns);
    fprintf(stderr, "model:    %s, %.2f million parameters in %s, %u rank%s, %u thread%s, loaded in %.3f s\n", r->info.family,
            (double)r->info.param_count * 1e-6, r->info.weight_type, r->info.n_ranks, r->info.n_ranks == 1 ? "" : "s", r->info.n_threads,
            r->info.n_threads == 1 ? "" : "s", r->load_s);
    fprintf(stderr, "sampling: seed %llu, temperature %g, top-k %d, top-p %g, min-p %g, repeat penalty %g\n", (unsigned long long)p->seed,
            (double)p->temperature, p->top_k, (double)p->top_p, (double)p->min_p, (double)p->repeat_penalty);
    fprintf(stderr, "prompt:   %zu tokens, first token %.3f s after start\n", g->prompt.n, first);
    fprintf(stderr, "output:   %llu tokens, ended by %s", (unsigned long long)g->n_out,
            g->stopped  ? "stop text"
            : g->reason ? g->reason
                        : "interrupt");
    if (g->n_out > 1 && rest > 0) fprintf(stderr, ", %.2f tokens/s after the first", (double)(g->n_out - 1) / rest);
    fprintf(stderr, "\nkv:       %llu pages of %u tokens in use, %.1f MB\n", (unsigned long long)kv.pages_used, kv.page_tokens,
            (double)(kv.pages_used * kv.bytes_per_page) * 1e-6);
}

int run_generate(run_state *r)
{
    generation g = {.r = r, .fd = -1};
    int rc = run_prompt_ids(r, &g.prompt);
    if (!rc) {
        set_params(&g);
        rc = generation_open(&g);
    }
    bool nothing = r->o->n_predict == 0 && !r->o->logits_file && !r->o->echo;
    if (!rc && !nothing) {
        rc = echo_prompt(&g);
        if (!rc && (g.params.max_new || r->o->logits_file)) rc = step_loop(&g);
        if (rc != CLI_EXIT_FILE) { /* unless writing is what failed */
            int end = finish_text(&g);
            if (!rc) rc = end;
        }
        if (!rc) rc = run_npy_commit(&g.npy, g.prompt.n + g.n_out);
        if (r->o->verbose) print_stats(&g);
    }
    generation_close(&g);
    return rc;
}
