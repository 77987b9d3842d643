/*
 * bench.h - the parts of bench-model.
 *
 * bench-model.c    options in, loops over threads, KV types and depths, main
 * bench_options.c  command line
 * bench_run.c      one measurement: a prompt or a run of decode steps behind a KV cache that is filled already
 * bench_machine.c  what the machine can do at this moment: read bandwidth, multiply-adds
 * bench_peer.c     asks another program for the same measurement
 * bench_report.c   statistics; table, CSV, JSON
 *
 * Uses tessera.h and nothing else of ours. Functions that return int give an exit code, 0 = done, and have
 * printed the error line when it is not. Rates are tokens per second, bandwidth 1e9 bytes per second, "gmac"
 * 1e9 multiply-adds per second.
 */
#ifndef TESS_BENCH_H
#define TESS_BENCH_H

#include "cli.h"

enum { BENCH_MAX_LIST = 32, BENCH_MAX_REPS = 1000 };
typedef struct { uint32_t v[BENCH_MAX_LIST], n; } bench_list;
typedef enum { BENCH_TABLE, BENCH_CSV, BENCH_JSON } bench_format;

/* ---- bench_options.c ---- */
typedef struct {
    const char *model, *devices, *split, *peer;
    bench_list prompt, decode, depth; /* tokens */
    bench_list threads;               /* 0: all CPUs that the process may use */
    bench_list kv;                    /* TESS_KV_* */
    uint32_t reps, ranks, chunk, page;
    int32_t compute, stream;
    bool no_verify;
    bench_format format;
} bench_options;
/* Parses argv. Returns -1 when the work can start, else the exit code (help and version are done here). */
int bench_options_parse(bench_options *o, int argc, char **argv);
const char *bench_kv_name(uint32_t kv);

/* What is measured, and what one of its tokens asks of the machine. */
typedef struct {
    bool decode;                      /* tokens one by one; else a prompt of `tokens` */
    uint32_t tokens, depth;           /* depth: positions that are in the KV cache already */
    uint32_t threads, ranks, kv;
    const char *type;                 /* of the weights */
    bool int8;                        /* multiplies integers, so the machine's integer peak is its limit */
    double token_bytes, token_macs;   /* per token: weights and KV pages that are read; multiply-adds */
} bench_test;

/* ---- bench_machine.c ---- */
typedef struct { double read_gb_s, f32_gmac_s, int8_gmac_s; } bench_speed; /* 0: not known on this CPU */
typedef struct bench_machine bench_machine;
int bench_machine_open(bench_machine **out);
void bench_machine_close(bench_machine *m); /* NULL is fine */
/* Takes about 0.1 s with that many threads. */
int bench_machine_measure(bench_machine *m, uint32_t n_threads, bench_speed *out);
/* Texts, owned by m. */
const char *bench_machine_cpu(const bench_machine *m);
const char *bench_machine_flags(const bench_machine *m);
size_t bench_machine_cache(const bench_machine *m); /* bytes of the last-level cache */

/* ---- bench_peer.c ---- */
typedef struct bench_peer bench_peer;
int bench_peer_open(const char *command, bench_peer **out);
void bench_peer_close(bench_peer *p); /* NULL is fine; ends the program */
int bench_peer_ask(bench_peer *p, const bench_test *t, double *rate);

/* ---- bench_report.c ---- */
typedef struct { double min, median, max; } bench_stats;
bench_stats bench_stats_of(const double *v, uint32_t n);
typedef struct {
    bench_stats rate;                 /* tokens per second */
    bench_stats peer, ratio;          /* of pairs that were measured one after the other; 0 without a peer */
    bench_speed speed;                /* medians over the repetitions */
    double load;                      /* load average over one minute, when the test began */
} bench_result;
typedef struct bench_report bench_report;
int bench_report_open(const bench_options *o, const tess_model_info *info, const bench_machine *m,
                      bench_report **out);
int bench_report_add(bench_report *r, const bench_test *t, const bench_result *v);
int bench_report_end(bench_report *r);
void bench_report_close(bench_report *r); /* NULL is fine */

/* ---- bench_run.c ---- */
typedef struct bench_run bench_run; /* one context and its filled sequence */
/* Whether the longest test fits the model's context. */
int bench_run_fits(const bench_options *o, const tess_model_info *info);
/* For options that fit. */
int bench_run_open(const bench_options *o, tess_model *m, const tess_model_info *info, uint32_t kv,
                   bench_run **out);
void bench_run_close(bench_run *r); /* NULL is fine */
/* Fills the KV cache with `depth` random ids; what was there before is dropped. */
int bench_run_fill(bench_run *r, uint32_t depth);
/* Completes t->token_bytes and t->token_macs for the depth filled last. */
void bench_run_cost(const bench_run *r, bench_test *t);
/* Runs the test once; tokens of it count. */
int bench_run_once(bench_run *r, const bench_test *t, uint32_t tokens, double *seconds);

/* ---- bench-model.c ---- */
bool bench_interrupted(void); /* ^C was pressed */
void bench_watch_ctx(tess_ctx *c);
int bench_no_memory(void);    /* prints the error line */

#endif
