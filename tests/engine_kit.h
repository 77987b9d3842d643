/* engine_kit.h - for t_cuda_*.c that run models: a sequence from file to result, on the CPU or on virtual devices. */
#ifndef TESS_ENGINE_KIT_H
#define TESS_ENGINE_KIT_H
#include <math.h>

#include "cuemu/cuemu_api.h"
#include "model_kit.h"

enum { VOCAB = 272, STEPS = 4 };
#define NEAR 5e-6 /* distance_of one device from the CPU; measured: 8e-7, without the scale of attention 9e-5 */

typedef struct { unsigned warnings; char text[512]; } seen_log;
typedef struct { float last[VOCAB]; int32_t ids[STEPS]; unsigned n; } result;

static inline void on_log(void *user, int32_t level, const char *text)
{
    seen_log *l = user;
    if (level < TESS_LOG_WARN) return;
    l->warnings++;
    snprintf(l->text, sizeof l->text, "%s", text);
}

/* With one thread, and what is said going to `log`. */
static inline tess_status open_with(const char *file, tess_model_params *p, void (*log)(void *user, int32_t level, const char *text), void *user, tess_model **m, tess_error *e)
{
    tess_host h;
    tess_host_init(&h);
    h.user = user;
    h.log = log;
    p->n_threads = 1;
    p->host = &h;
    return tess_model_open(file, p, m, e);
}

static inline tess_status open_on(const char *file, const char *devices, seen_log *log, tess_model **m, tess_error *e)
{
    tess_model_params p;
    tess_model_params_init(&p);
    p.devices = devices;
    return open_with(file, &p, log ? on_log : NULL, log, m, e);
}

static inline tess_status open_ctx(tess_model *m, uint32_t seqs, uint32_t chunk, uint64_t kv_bytes, tess_ctx **c, tess_error *e)
{
    tess_ctx_params p;
    tess_ctx_params_init(&p);
    p.max_seqs = seqs;
    p.max_step_tokens = chunk;
    p.kv_bytes = kv_bytes;
    p.kv_dtype = TESS_KV_INT8;
    p.page_tokens = 16;
    p.prefix_bytes = -1; /* every sequence computes all of its own */
    return tess_ctx_open(m, &p, c, e);
}

static inline tess_status add_seq(tess_ctx *c, int n, int salt, tess_seq *s, tess_error *e)
{
    tess_seq_params p;
    int32_t ids[64];
    tess_seq_params_init(&p);
    p.max_new = STEPS;
    p.flags = TESS_SEQ_IGNORE_EOS | TESS_SEQ_FEED_LAST; /* logits of the last row are there at the end */
    for (int i = 0; i < n; i++) ids[i] = (i * 37 + salt * 11) % VOCAB;
    tess_status st = tess_seq_open(c, &p, s, e);
    return st < 0 ? st : tess_seq_append(c, *s, ids, (size_t)n, e);
}

/* What seq drew goes to r. */
static inline tess_status one_step(tess_ctx *c, tess_seq seq, result *r, tess_error *e)
{
    tess_event ev[16];
    size_t n;
    const tess_status st = tess_step(c, ev, 16, &n, e);
    for (size_t i = 0; st >= 0 && i < n; i++)
        if (ev[i].seq == seq && ev[i].kind == TESS_EV_TOKEN && r->n < STEPS) r->ids[r->n++] = ev[i].token;
    return st;
}

/* Steps until nothing is left. */
static inline tess_status drain(tess_ctx *c, tess_seq seq, result *r, tess_error *e)
{
    tess_status st;
    while ((st = one_step(c, seq, r, e)) == TESS_OK) continue;
    if (st < 0) return st;
    const float *logits = tess_seq_logits(c, seq, NULL);
    assert_non_null(logits);
    memcpy(r->last, logits, sizeof r->last);
    return TESS_OK;
}

/* One sequence from file to result. */
static inline tess_status run(const char *file, const char *devices, seen_log *log, result *r, tess_error *e)
{
    tess_model *m;
    tess_ctx *c = NULL;
    tess_seq s;
    memset(r, 0, sizeof *r);
    tess_status st = open_on(file, devices, log, &m, e);
    if (st < 0) return st;
    st = open_ctx(m, 1, 7, 0, &c, e);
    if (st >= 0) st = add_seq(c, 20, 1, &s, e);
    if (st >= 0) st = drain(c, s, r, e);
    tess_ctx_close(c);
    tess_model_close(m);
    return st;
}

static inline void equal(const result *a, const result *b)
{
    assert_int_equal(a->n, STEPS);
    assert_int_equal(b->n, STEPS);
    assert_memory_equal(a->ids, b->ids, sizeof a->ids);
    assert_memory_equal(a->last, b->last, sizeof a->last);
}

/* How far logits are from ref, beside how much these vary: squares of differences, and of distances from the mean. */
typedef struct { double off, vary; } distance;
static inline void distance_add(distance *d, const float *ref, const float *got, size_t n)
{
    double mean = 0;
    for (size_t i = 0; i < n; i++) mean += (double)ref[i] / (double)n;
    for (size_t i = 0; i < n; i++) {
        double off = (double)got[i] - (double)ref[i], vary = (double)ref[i] - mean;
        d->off += off * off, d->vary += vary * vary;
    }
}
static inline double distance_of(const distance *d) { return sqrt(d->off / d->vary); }

static inline void no_reports(void)
{
    if (cuemu_report_count()) fail_msg("seed %llu: %s", (unsigned long long)cuemu_seed(), cuemu_report_text());
    assert_int_equal(cuemu_live_bytes(), 0);
}
#endif
