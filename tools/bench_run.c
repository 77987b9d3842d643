/*
 * bench_run.c - one measurement, through the public interface.
 *
 * The depth is filled once with random ids, in a sequence of its own; every repetition works on a fork of it,
 * which shares the pages, so that all repetitions see the same cache. A decode step is an append of one id and
 * a tess_step: the forward pass and the head, without drawing a token. A prompt is one append and as many steps
 * as it has chunks.
 */
#include <stdlib.h>

#include "bench.h"

struct bench_run {
    tess_ctx *ctx;
    const tess_model_info *info;
    tess_seq base;            /* the filled sequence; 0 at depth 0 */
    uint32_t depth, chunk, kv;
    uint64_t random;
    double page_bytes;        /* of one page of one group of layers, on average */
    double page_tokens;
    double filled;            /* bytes of the pages that a token at this depth reads */
    tess_error err;
};

static tess_token random_id(bench_run *r)
{
    uint32_t n =
        r->info->n_tokens && r->info->n_tokens < r->info->vocab_size ? r->info->n_tokens : r->info->vocab_size;
    r->random ^= r->random << 13;
    r->random ^= r->random >> 7;
    r->random ^= r->random << 17;
    return (tess_token)((r->random >> 16) % n);
}

static int failed(bench_run *r, tess_status st)
{
    return st == TESS_E_CANCELLED && bench_interrupted() ? CLI_EXIT_INTERRUPTED : cli_fail(&r->err);
}

/* Runs what waits in the sequence. */
static tess_status settle(bench_run *r)
{
    tess_event ev[4]; /* 2 * max_seqs */
    size_t n;
    tess_status st = TESS_OK;
    while (st == TESS_OK) st = bench_interrupted() ? TESS_E_CANCELLED : tess_step(r->ctx, ev, 4, &n, &r->err);
    return st == TESS_IDLE ? TESS_OK : st;
}

static tess_status append_random(bench_run *r, tess_seq s, uint32_t n)
{
    tess_token ids[256];
    for (uint32_t done = 0, k; done < n; done += k) {
        k = n - done < 256 ? n - done : 256;
        for (uint32_t i = 0; i < k; i++) ids[i] = random_id(r);
        tess_status st = tess_seq_append(r->ctx, s, ids, k, &r->err);
        if (st < 0) return st;
    }
    return TESS_OK;
}

static tess_status open_seq(bench_run *r, tess_seq *out)
{
    tess_seq_params p;
    tess_seq_params_init(&p); /* max_new 0: nothing is drawn */
    return tess_seq_open(r->ctx, &p, out, &r->err);
}

static tess_status pages_used(bench_run *r, tess_kv_stats *s)
{
    tess_kv_stats_init(s);
    return tess_ctx_kv_stats(r->ctx, s, &r->err);
}

/* Layers with different windows have pages of their own; one token takes one of each. */
static tess_status learn_pages(bench_run *r)
{
    tess_kv_stats s;
    tess_seq seq = 0;
    tess_status st = open_seq(r, &seq);
    if (st >= 0) st = append_random(r, seq, 1);
    if (st >= 0) st = settle(r);
    if (st >= 0) st = pages_used(r, &s);
    tess_seq_close(r->ctx, seq);
    if (st < 0) return st;
    r->page_bytes = (double)s.bytes_per_page / (s.pages_used ? (double)s.pages_used : 1);
    r->page_tokens = s.page_tokens;
    return TESS_OK;
}

static uint32_t longest(const bench_list *l)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n; i++) n = l->v[i] > n ? l->v[i] : n;
    return n;
}

static uint32_t longest_test(const bench_options *o)
{
    uint32_t prompt = longest(&o->prompt), decode = longest(&o->decode);
    return prompt > decode ? prompt : decode;
}

int bench_run_fits(const bench_options *o, const tess_model_info *info)
{
    uint32_t depth = longest(&o->depth), tokens = longest_test(o);
    if ((uint64_t)depth + tokens <= info->max_seq_tokens) return 0;
    cli_error("depth %u and %u tokens behind it are more than the model's context of %u", depth, tokens, info->max_seq_tokens);
    return CLI_EXIT_USAGE;
}

int bench_run_open(const bench_options *o, tess_model *m, const tess_model_info *info, uint32_t kv,
                   bench_run **out)
{
    bench_run *r = *out = calloc(1, sizeof *r);
    if (!r) return bench_no_memory();
    tess_ctx_params p;
    tess_ctx_params_init(&p);
    p.max_seqs = 2;
    p.max_step_tokens = r->chunk = o->chunk;
    p.max_seq_tokens = longest(&o->depth) + longest_test(o);
    p.kv_dtype = (int32_t)(r->kv = kv);
    p.page_tokens = o->page;
    p.prefix_bytes = -1; /* every repetition computes */
    r->info = info;
    r->random = 0x9e3779b97f4a7c15u;
    tess_status st = tess_ctx_open(m, &p, &r->ctx, &r->err);
    if (st < 0) return cli_fail(&r->err);
    bench_watch_ctx(r->ctx);
    st = learn_pages(r);
    return st < 0 ? failed(r, st) : 0;
}

void bench_run_close(bench_run *r)
{
    if (!r) return;
    bench_watch_ctx(NULL);
    tess_ctx_close(r->ctx);
    free(r);
}

int bench_run_fill(bench_run *r, uint32_t depth)
{
    tess_kv_stats s;
    if (r->base) tess_seq_close(r->ctx, r->base);
    r->base = 0;
    r->filled = 0;
    r->depth = depth;
    if (depth == 0) return 0;
    tess_status st = open_seq(r, &r->base);
    if (st >= 0) st = append_random(r, r->base, depth);
    if (st >= 0) st = settle(r);
    if (st >= 0) st = pages_used(r, &s);
    if (st < 0) return failed(r, st);
    double slots =
        ((depth - 1) / s.page_tokens + 1) * (double)s.page_tokens; /* the last page may be in part empty */
    r->filled = (double)s.pages_used * r->page_bytes * depth / slots;
    return 0;
}

void bench_run_cost(const bench_run *r, bench_test *t)
{
    static const double kv_bytes[] = {
        [TESS_KV_F32] = 4, [TESS_KV_F16] = 2, [TESS_KV_INT8] = 1}; /* of one value; scales apart */
    const tess_model_info *i = r->info;
    double n = t->tokens, weights = (double)i->token_bytes, macs = (double)i->token_macs;
    double kv = r->filled + n / 2 * r->page_bytes / r->page_tokens; /* on average over the test's tokens */
    double passes = t->decode ? n : (double)((t->tokens - 1) / r->chunk + 1);
    double head = (double)i->vocab_size * i->hidden_size;
    if (!t->decode && head < macs)
        macs += head / n - head; /* only the last token of a prompt goes through the head */
    t->token_bytes = passes / n * (weights + kv);
    t->token_macs = macs + kv / kv_bytes[r->kv] * i->n_heads / i->n_kv_heads;
}

int bench_run_once(bench_run *r, const bench_test *t, uint32_t tokens, double *seconds)
{
    tess_seq seq = 0;
    tess_status st = r->base ? tess_seq_fork(r->ctx, r->base, r->depth, &seq, &r->err) : open_seq(r, &seq);
    uint64_t start = cli_now_ns();
    for (uint32_t i = 0; st >= 0 && i < tokens; i += t->decode ? 1 : tokens) {
        st = append_random(r, seq, t->decode ? 1 : tokens);
        if (st >= 0) st = settle(r);
    }
    *seconds = (double)(cli_now_ns() - start) * 1e-9;
    if (seq) tess_seq_close(r->ctx, seq);
    return st < 0 ? failed(r, st) : 0;
}
