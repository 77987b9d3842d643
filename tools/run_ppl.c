/*
 * run_ppl.c - perplexity: minus the mean log-probability of every next token, over all windows together.
 *
 * Windows come from a JSON file {"windows": [[ids], ...]}, or a text is encoded (with what the tokenizer puts around a text)
 * and cut in windows of -c tokens (default: the model's context, at most 2048). Each window is a sequence of its own; its
 * first token is only read, never predicted. The logarithm is taken in double precision. Predictions are numbered over all
 * windows; --logits writes the row of each, --kl compares it with such a file.
 */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

enum { PPL_WINDOW = 2048 };

typedef struct {
    run_state *r;
    const tess_token *ids; /* of the window under way */
    size_t n;
    double nll;
    uint64_t count; /* predictions in nll */
    uint64_t row0;  /* predictions of the windows before */
    run_npy npy;
    run_kl kl;
} window;

static double row_nll(const float *logits, size_t n, tess_token target)
{
    double top = logits[0], sum = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > top) top = logits[i];
    for (size_t i = 0; i < n; i++) sum += exp((double)logits[i] - top);
    return top + log(sum) - (double)logits[target];
}

static void on_logits(void *user, tess_seq seq, uint64_t pos, const float *logits, size_t n)
{
    window *w = user;
    (void)seq;
    if (pos + 1 >= w->n) return; /* nothing follows */
    run_npy_row(&w->npy, w->row0 + pos, logits, n);
    run_kl_row(&w->kl, w->row0 + pos, logits, n, w->ids[pos + 1]);
    w->nll += row_nll(logits, n, w->ids[pos + 1]);
    w->count++;
}

static int run_window(window *w, tess_ctx *ctx, size_t index)
{
    run_state *r = w->r;
    tess_seq_params p;
    tess_seq seq = 0;
    tess_event ev[2];
    size_t n;
    tess_seq_params_init(&p);
    p.flags = TESS_SEQ_ALL_LOGITS;
    w->nll = 0;
    w->count = 0;
    tess_status st = tess_seq_open(ctx, &p, &seq, &r->err);
    if (st >= 0) st = tess_seq_append(ctx, seq, w->ids, w->n, &r->err);
    while (st == TESS_OK) st = run_interrupted() ? TESS_E_CANCELLED : tess_step(ctx, ev, 2, &n, &r->err);
    tess_seq_close(ctx, seq);
    if (st == TESS_E_CANCELLED && run_interrupted()) return CLI_EXIT_INTERRUPTED;
    if (st < 0) return cli_fail(&r->err);
    if (w->count != w->n - 1 || !isfinite(w->nll)) {
        cli_error("window %zu: the logits are not finite", index);
        return CLI_EXIT_FAILED;
    }
    return 0;
}

typedef struct {
    double nll;
    uint64_t count;
    json_t *each; /* mean nll of the windows */
} totals;

static int print_totals(window *w, const totals *t)
{
    run_kl_stats kl;
    int rc = run_kl_result(&w->kl, &kl);
    if (rc) return rc;
    double mean = t->nll / (double)t->count;
    json_t *out = json_pack("{s:f,s:f,s:I,s:I,s:O}", "mean_nll", mean, "perplexity", exp(mean), "n_tokens", (json_int_t)t->count, "windows",
                            (json_int_t)json_array_size(t->each), "mean_nll_per_window", t->each);
    if (out && w->kl.row) {
        json_t *more = json_pack("{s:f,s:f,s:f,s:f,s:f,s:f}", "mean_kl", kl.mean, "median_kl", kl.median, "kl_99_percent", kl.high,
                                 "max_kl", kl.max, "same_best", kl.same_best, "reference_mean_nll", kl.ref_nll);
        json_object_update(out, more);
        json_decref(more);
    }
    char *text = out ? json_dumps(out, JSON_REAL_PRECISION(12)) : NULL;
    rc = text ? run_write(1, "stdout", text, strlen(text)) : CLI_EXIT_MEMORY;
    if (!rc) rc = run_write(1, "stdout", "\n", 1);
    free(text);
    json_decref(out);
    return rc;
}

static int walk_windows(window *w, tess_ctx *ctx, const run_ids *windows, size_t n, totals *t)
{
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) {
        if (windows[i].n < 2) continue;
        w->ids = windows[i].p;
        w->n = windows[i].n;
        rc = run_window(w, ctx, i);
        t->nll += w->nll;
        t->count += w->count;
        w->row0 += w->n - 1;
        json_array_append_new(t->each, json_real(w->nll / (double)w->count));
        if (w->r->o->verbose && !rc)
            fprintf(stderr, "window %zu of %zu: %zu tokens, mean nll %.6f\n", i + 1, n, w->n, w->nll / (double)w->count);
    }
    return rc;
}

/* Files for the rows of `predictions`. */
static int open_rows(window *w, uint64_t predictions)
{
    const run_options *o = w->r->o;
    if (predictions == 0) {
        cli_error("%s: no window has two tokens, so there is nothing to predict", o->ppl_file);
        return CLI_EXIT_FILE;
    }
    int rc = o->kl_file ? run_kl_open(&w->kl, o->kl_file, w->r->info.vocab_size) : 0;
    if (!rc) rc = run_kl_expect(&w->kl, predictions);
    return rc || !o->logits_file ? rc : run_npy_open(&w->npy, o->logits_file, w->r->info.vocab_size);
}

static int run_windows(run_state *r, const run_ids *windows, size_t n)
{
    window w = {.r = r};
    tess_ctx_params cp;
    tess_ctx *ctx = NULL;
    totals t = {0};
    uint64_t predictions = 0;
    for (size_t i = 0; i < n; i++) predictions += windows[i].n > 1 ? windows[i].n - 1 : 0;
    run_ctx_params(r->o, &cp);
    cp.on_logits = on_logits;
    cp.logits_user = &w;
    int rc = open_rows(&w, predictions);
    if (!rc && tess_ctx_open(r->model, &cp, &ctx, &r->err) < 0) rc = cli_fail(&r->err);
    if (!rc) {
        run_watch_ctx(ctx);
        t.each = json_array();
        rc = walk_windows(&w, ctx, windows, n, &t);
        run_watch_ctx(NULL);
    }
    if (!rc) rc = run_npy_commit(&w.npy, predictions);
    if (!rc) rc = print_totals(&w, &t);
    tess_ctx_close(ctx);
    run_npy_abort(&w.npy);
    run_kl_close(&w.kl);
    json_decref(t.each);
    return rc;
}

/* The array of ids at place i of the windows. */
static int window_from_json(const run_state *r, const json_t *a, size_t i, run_ids *out)
{
    for (size_t j = 0; j < json_array_size(a); j++) {
        const json_t *v = json_array_get(a, j);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= (json_int_t)r->info.vocab_size) {
            cli_error("%s: windows[%zu][%zu] is not a token id below %u", r->o->ppl_file, i, j, r->info.vocab_size);
            return CLI_EXIT_FILE;
        }
        out->p = run_grow(out->p, &out->cap, out->n + 1, sizeof *out->p);
        out->p[out->n++] = (tess_token)id;
    }
    return 0;
}

static void free_windows(run_ids *w, size_t n)
{
    for (size_t i = 0; i < n; i++) free(w[i].p);
    free(w);
}

static int ppl_json(run_state *r, const json_t *list)
{
    size_t n = json_array_size(list), cap = 0;
    run_ids *w = run_grow(NULL, &cap, n + 1, sizeof *w);
    int rc = 0;
    memset(w, 0, (n + 1) * sizeof *w);
    for (size_t i = 0; i < n && !rc; i++) {
        const json_t *a = json_array_get(list, i);
        if (json_is_array(a)) rc = window_from_json(r, a, i, &w[i]);
        else {
            cli_error("%s: windows[%zu] is not an array of ids", r->o->ppl_file, i);
            rc = CLI_EXIT_FILE;
        }
    }
    if (!rc) rc = run_windows(r, w, n);
    free_windows(w, n);
    return rc;
}

static int ppl_text(run_state *r, const run_bytes *text)
{
    run_ids ids = {0};
    int rc = run_tokenize(r, text->p, text->n, TESS_TOK_ADD_SPECIAL, &ids);
    size_t size = r->o->ctx_size ? r->o->ctx_size : r->info.max_seq_tokens < PPL_WINDOW ? r->info.max_seq_tokens : PPL_WINDOW, cap = 0;
    size_t n = (ids.n + size - 1) / size;
    run_ids *w = run_grow(NULL, &cap, n + 1, sizeof *w);
    for (size_t i = 0; i < n; i++) w[i] = (run_ids){.p = ids.p + i * size, .n = ids.n - i * size < size ? ids.n - i * size : size};
    if (!rc) rc = run_windows(r, w, n);
    free(w);
    free(ids.p);
    return rc;
}

int run_ppl(run_state *r)
{
    const char *path = r->o->ppl_file, *dot = strrchr(path, '.');
    run_bytes text = {0};
    json_error_t e;
    int rc = run_read(path, &text);
    json_t *json = !rc && text.n ? json_loadb(text.p, text.n, JSON_REJECT_DUPLICATES, &e) : NULL;
    const json_t *list = json_object_get(json, "windows");
    if (!rc && json_is_array(list)) rc = ppl_json(r, list);
    else if (!rc && dot && strcmp(dot, ".json") == 0) {
        if (json) cli_error("%s: has no array \"windows\"", path);
        else cli_error("%s: line %d: %s", path, text.n ? e.line : 1, text.n ? e.text : "is empty");
        rc = CLI_EXIT_FILE;
    } else if (!rc) rc = ppl_text(r, &text);
    json_decref(json);
    free(text.p);
    return rc;
}
