/*
 * whole.c - a synthetic model (shape.h) on one device, through the public interface: opening, decode, prompts; see gpu_bench.h.
 *
 * Decode is greedy generation: one tess_step, one token of each sequence. Its bound is the time in which the memory gives weights and
 * pages of one step. A prompt ends with its first token; its bound is the peak of bf16 for all multiply-adds, attention's included.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gpu_bench.h"
#include "shape.h"

enum { MOST_SEQS = 64, PROMPT = 64, CHUNK = 2048 };
typedef struct {
    gpu_bench *b;
    gpu_shape s;
    tess_model *m;
    tess_ctx *c;
    tess_seq seq[MOST_SEQS];
    bool begun[MOST_SEQS];
    uint32_t n_seqs, random;
} whole;

static uint32_t next_id(whole *w)
{
    w->random = w->random * 1664525u + 1013904223u;
    return (w->random >> 8) % w->s.a.vocab_size;
}

static tess_status open_seq(whole *w, uint32_t n_ids, uint32_t max_new, tess_error *err)
{
    tess_seq_params p;
    tess_seq *seq = &w->seq[w->n_seqs];
    tess_seq_params_init(&p);
    p.max_new = max_new;
    p.temperature = 0;
    p.flags = TESS_SEQ_IGNORE_EOS;
    TRY(tess_seq_open(w->c, &p, seq, err));
    w->begun[w->n_seqs++] = false;
    for (uint32_t i = 0; i < n_ids; i++) {
        const tess_token id = (tess_token)next_id(w);
        TRY(tess_seq_append(w->c, *seq, &id, 1, err));
    }
    return TESS_OK;
}

static void close_seqs(whole *w)
{
    while (w->n_seqs) tess_seq_close(w->c, w->seq[--w->n_seqs]);
}

/* One step; how many tokens it gave. */
static tess_status step(whole *w, uint32_t *tokens, tess_error *err)
{
    tess_event ev[2 * MOST_SEQS];
    size_t n;
    *tokens = 0;
    TRY(tess_step(w->c, ev, ARRAY_LEN(ev), &n, err));
    for (size_t i = 0; i < n; i++) {
        if (ev[i].kind != TESS_EV_TOKEN) continue;
        ++*tokens;
        for (uint32_t s = 0; s < w->n_seqs; s++) w->begun[s] = w->begun[s] || w->seq[s] == ev[i].seq;
    }
    return TESS_OK;
}

static bool all_begun(const whole *w)
{
    for (uint32_t s = 0; s < w->n_seqs; s++)
        if (!w->begun[s]) return false;
    return true;
}

/* Steps until every sequence has given a token. */
static tess_status begin(whole *w, tess_error *err)
{
    uint32_t n;
    for (uint32_t i = 0; !all_begun(w); i++) {
        if (i == 10000) return ERR(err, TESS_E_DEVICE, "a sequence does not begin");
        TRY(step(w, &n, err));
    }
    return TESS_OK;
}

/* ---- decode ---- */

static double kv_bytes(const whole *w)
{
    return (double)w->s.a.n_layers * w->s.a.n_kv_heads * (2.0 * w->s.a.head_dim + 4);
} /* of a position, int8 */

static tess_status decode(whole *w, uint32_t batch, tess_error *err)
{
    const uint32_t steps = w->b->once ? 2 : 64, warm = w->b->once ? 0 : 4, prompt = w->b->dry ? 8 : PROMPT;
    char name[64];
    double seconds = 0;
    snprintf(name, sizeof name, "decode, batch %u", batch);
    if (gpu_late(w->b, name)) return TESS_OK;
    for (uint32_t i = 0; i < batch; i++) TRY(open_seq(w, prompt, steps + warm + 64, err));
    TRY(begin(w, err));
    for (uint32_t i = 0, n; i < warm + steps; i++) {
        const double start = gpu_now();
        TRY(step(w, &n, err));
        if (n != batch) return ERR(err, TESS_E_DEVICE, "a step of %u sequences gave %u tokens", batch, n);
        if (i >= warm) seconds += gpu_now() - start;
    }
    const double context = prompt + warm + steps / 2.0,
                 bytes = w->s.layer_bytes * w->s.a.n_layers + w->s.head_bytes + batch * context * kv_bytes(w);
    gpu_print(name, batch * steps / seconds, "tokens/s", w->b->memory / bytes * batch, "memory");
    return TESS_OK;
}

/* ---- prompts ---- */

static int compare(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static tess_status prompt(whole *w, uint32_t n, tess_error *err)
{
    enum { TIMES = 4 }; /* the first one does not count */
    const arch *a = &w->s.a;
    double s[TIMES];
    char name[64];
    snprintf(name, sizeof name, "prompt of %u", n);
    if (gpu_late(w->b, name)) return TESS_OK;
    for (int i = 0; i < TIMES; i++) {
        TRY(open_seq(w, n, 1, err));
        const double start = gpu_now();
        TRY(begin(w, err));
        s[i] = gpu_now() - start;
        close_seqs(w);
    }
    qsort(s + 1, TIMES - 1, sizeof *s, compare);
    const double attention = (double)a->n_layers * n * (n + 1.0) / 2 * a->n_heads * 2 * a->head_dim;
    const double macs = w->s.layer_macs * a->n_layers * n + w->s.head_macs + attention;
    gpu_print(name, n / s[TIMES / 2], "tokens/s", w->b->bf16 / 2 / macs * n, "bf16 peak");
    return TESS_OK;
}

/* ---- opening ---- */

/* As many layers as fit. */
static void fit(whole *w)
{
    const double most = 0.75 * (double)w->b->props.mem_free, layer = 1.0625 * 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336.0);
    while (!w->b->dry && w->s.a.n_layers > 1 && layer * w->s.a.n_layers > most) w->s.a.n_layers--;
}

static tess_status open_model(whole *w, const char *path, tess_error *err)
{
    tess_model_params p;
    tess_ctx_params q;
    char devices[32];
    snprintf(devices, sizeof devices, "cuda:%u", w->b->device);
    tess_model_params_init(&p);
    p.devices = devices;
    double start = gpu_now();
    TRY(tess_model_open(path, &p, &w->m, err));
    gpu_print("opening the model", gpu_now() - start, "s", 0, NULL);
    gpu_print("weights in memory of the device", (w->s.layer_bytes * w->s.a.n_layers + w->s.head_bytes) * 1e-9, "GB", 0, NULL);
    tess_ctx_params_init(&q);
    q.max_seqs = MOST_SEQS;
    q.max_step_tokens = w->b->dry ? 32 : CHUNK;
    q.kv_dtype = TESS_KV_INT8;
    start = gpu_now();
    TRY(tess_ctx_open(w->m, &q, &w->c, err));
    TRY(open_seq(w, 8, 1, err));
    TRY(begin(w, err));
    close_seqs(w);
    gpu_print("from the open model to the first token", gpu_now() - start, "s", 0, NULL);
    return TESS_OK;
}

static tess_status measure(whole *w, tess_error *err)
{
    static const uint32_t batches[] = {1, 8, 64}, prompts[] = {512, 2048, 4096}, few[] = {1, 2, 3}, brief[] = {5, 20, 40};
    for (int i = 0; i < 3; i++) {
        TRY(decode(w, w->b->dry ? few[i] : batches[i], err));
        close_seqs(w);
    }
    for (int i = 0; i < 3; i++) TRY(prompt(w, w->b->dry ? brief[i] : prompts[i], err));
    return TESS_OK;
}

tess_status part_model(gpu_bench *b, tess_error *err)
{
    whole *w = mem_zalloc(&mem_libc, sizeof *w);
    char path[4096];
    if (!w) return ERR(err, TESS_E_NOMEM, "no memory");
    w->b = b;
    gpu_shape_init(&w->s, b->dry);
    fit(w);
    int n = snprintf(path, sizeof path, "%s/gpu_bench-%ld.tess", b->dir, (long)getpid());
    tess_status st = n > 0 && (size_t)n < sizeof path ? TESS_OK : ERR(err, TESS_E_ARG, "--dir: the name is too long");
    double start = gpu_now();
    if (st >= 0) st = gpu_shape_write(&w->s, path, err);
    if (st >= 0) gpu_print("writing the synthetic model", gpu_now() - start, "s", 0, NULL);
    if (st >= 0) st = open_model(w, path, err);
    if (st >= 0) st = measure(w, err);
    tess_ctx_close(w->c);
    tess_model_close(w->m);
    unlink(path);
    mem_free(&mem_libc, w);
    return st;
}
