/*
 * faults_kit.h - for t_faults.c and t_faults_run.c: small checkpoints are converted by convert-hf in a directory of the run,
 * opened, and asked for ids.
 */
#ifndef TESS_FAULTS_KIT_H
#define TESS_FAULTS_KIT_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "tessera.h"
#include "tiny_kit.h"
#include "tok_kit.h"

enum { MOST_IDS = 320 };
typedef struct {
    int32_t id[MOST_IDS];
    unsigned n;
} ids;
#define IDS(...) ((ids){{__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4})
#define P IDS(1, 5, 9, 33, 12, 7, 40, 21)

static char work[400]; /* a directory of this run */

/* Ids (7 i + 3) mod 64. */
static inline ids L(unsigned n)
{
    ids r = {.n = n};
    for (unsigned i = 0; i < n; i++) r.id[i] = (int32_t)(i * 7 + 3) % 64;
    return r;
}

static inline int make_work(void **state)
{
    (void)state;
    snprintf(work, sizeof work, "%s/t_faults-%ld", getenv("BUILD") ? getenv("BUILD") : "build", (long)getpid());
    return mkdir(work, 0777);
}
static inline int remove_work(void **state)
{
    char cmd[500];
    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", work);
    return system(cmd);
}

/* Runs a command in the directory of this run and gives its exit status; its output is in the file "out". */
static inline int run(const char *format, ...)
{
    char cmd[2400], args[800];
    va_list va;
    va_start(va, format);
    vsnprintf(args, sizeof args, format, va);
    va_end(va);
    snprintf(cmd, sizeof cmd, "B=$(realpath '%s/../bin') && cd '%s' && { %s; } >out 2>&1", work, work, args);
    int status = system(cmd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
static inline bool said(const char *part)
{
    char path[500], text[4096];
    snprintf(path, sizeof path, "%s/out", work);
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    return strstr(text, part) != NULL;
}

static inline bool save(const tiny_model *t, const char *tokenizer)
{
    char dir[500];
    snprintf(dir, sizeof dir, "%s/hf", work);
    return run("rm -rf hf m.tess") == 0 && tiny_save(t, dir, tokenizer);
}

/* Opens m.tess on some ranks. */
static inline tess_model *open_ranks(unsigned ranks, unsigned threads)
{
    char path[500];
    tess_model_params p;
    tess_model *m;
    tess_error e;
    tess_model_params_init(&p);
    p.n_ranks = ranks;
    p.n_threads = threads;
    snprintf(path, sizeof path, "%s/m.tess", work);
    if (tess_model_open(path, &p, &m, &e) != TESS_OK) fail_msg("%s", e.text);
    return m;
}

/* Saves, converts for tp ranks and opens; t is closed. */
static inline tess_model *convert(tiny_model *t, const char *tokenizer, unsigned tp, unsigned ranks)
{
    assert_true(save(t, tokenizer));
    tiny_close(t);
    if (run("$B/convert-hf hf -o m.tess --tp %u", tp) != 0) {
        run("cat out >&2");
        fail_msg("the conversion failed");
    }
    return open_ranks(ranks, 1);
}

static inline tess_ctx *open_ctx(tess_model *m, const tess_ctx_params *p)
{
    tess_ctx *c;
    tess_error e;
    tess_ctx_params q;
    tess_ctx_params_init(&q);
    if (p) q = *p;
    q.kv_dtype = TESS_KV_F32;
    if (tess_ctx_open(m, &q, &c, &e) != TESS_OK) fail_msg("%s", e.text);
    return c;
}

static inline tess_seq_params greedy(unsigned n)
{
    tess_seq_params p;
    tess_seq_params_init(&p);
    p.max_new = n;
    p.flags = TESS_SEQ_IGNORE_EOS;
    return p;
}

static inline tess_seq add(tess_ctx *c, const ids *prompt, const tess_seq_params *p)
{
    tess_seq s;
    tess_error e;
    if (tess_seq_open(c, p, &s, &e) != TESS_OK || tess_seq_append(c, s, prompt->id, prompt->n, &e) != TESS_OK)
        fail_msg("%s", e.text);
    return s;
}

/* Steps until all is done; what seq gives goes to out, the reason of its end is returned. */
static inline uint32_t drain(tess_ctx *c, tess_seq seq, ids *out)
{
    tess_event ev[32];
    tess_error e;
    uint32_t reason = 0;
    for (;;) {
        size_t n;
        tess_status st = tess_step(c, ev, 32, &n, &e);
        if (st < 0 && st != TESS_E_NONFINITE) fail_msg("%s", e.text);
        if (st == TESS_IDLE) return reason;
        for (size_t i = 0; i < n; i++) {
            if (ev[i].seq != seq) continue;
            if (ev[i].kind == TESS_EV_TOKEN) out->id[out->n++] = ev[i].token;
            else reason = ev[i].reason;
        }
    }
}

static inline void check_same(const char *name, const ids *got, const ids *want)
{
    for (unsigned i = 0; i < MIN(got->n, want->n); i++)
        if (got->id[i] != want->id[i]) fail_msg("%s: id %u is %d, not %d", name, i, got->id[i], want->id[i]);
    if (got->n != want->n) fail_msg("%s: %u ids, not %u", name, got->n, want->n);
}

/* The model gives `want` for `prompt`. */
static inline void check_ids(const char *name, tess_model *m, ids prompt, ids want)
{
    tess_ctx *c = open_ctx(m, NULL);
    tess_seq_params p = greedy(want.n);
    ids got = {.n = 0};
    assert_int_equal(drain(c, add(c, &prompt, &p), &got), TESS_DONE_LENGTH);
    check_same(name, &got, &want);
    tess_ctx_close(c);
}

/* The same for a checkpoint, which is converted and closed. */
static inline void check_model(const char *name, tiny_model *t, ids prompt, ids want)
{
    tess_model *m = convert(t, NULL, 1, 1);
    check_ids(name, m, prompt, want);
    tess_model_close(m);
}

static inline tiny_model make(tiny p, uint32_t seed)
{
    tiny_model t;
    tiny_open(&t, &p, seed);
    return t;
}
#define MAKE(...) make((tiny){__VA_ARGS__}, 0)

/* A byte-level tokenizer whose id i is the character '0' + i. */
static inline void put_characters(buf *o, unsigned n)
{
    buf_init(o, &mem_libc);
    buf_puts(o, "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (unsigned i = 0; i < n; i++) {
        char c = (char)('0' + i);
        if (i) buf_putc(o, ',');
        put_json_string(o, &c, 1);
        buf_printf(o, ":%u", i);
    }
    buf_puts(o, "},\"merges\":[]},\"pre_tokenizer\":" BYTE_LEVEL_BARE ",\"decoder\":" BYTE_LEVEL_BARE "}");
    buf_putc(o, 0);
}

/* ---- the seven prompts of the plain model ---- */

enum { T0_ROWS = 7, T0_IDS = 16 };
static const int32_t t0_want[T0_ROWS][T0_IDS] = {{60, 41, 28, 50, 24, 50, 22, 17, 25, 59, 5, 50, 56, 59, 42, 10},
                                                 {60, 41, 28, 4, 46, 29, 12, 51, 24, 51, 33, 63, 33, 29, 41, 42},
                                                 {34, 24, 24, 24, 48, 47, 55, 37, 10, 23, 60, 31, 26, 49, 9, 39},
                                                 {33, 50, 3, 22, 37, 4, 48, 40, 22, 37, 60, 60, 55, 37, 3, 22},
                                                 {42, 39, 40, 38, 28, 38, 13, 60, 60, 60, 60, 60, 60, 60, 60, 33},
                                                 {9, 4, 35, 1, 48, 48, 0, 26, 35, 36, 9, 50, 37, 36, 3, 63},
                                                 {1, 48, 37, 51, 20, 42, 49, 2, 13, 36, 60, 37, 50, 22, 37, 3}};
enum { ROW_P, ROW_5, ROW_L15, ROW_L16, ROW_L17, ROW_L32, ROW_L33 };
static inline ids t0_prompt(unsigned row)
{
    static const unsigned lengths[T0_ROWS] = {0, 0, 15, 16, 17, 32, 33};
    return row == ROW_P ? P : row == ROW_5 ? IDS(5) : L(lengths[row]);
}
static inline ids t0_answer(unsigned row)
{
    ids r = {.n = T0_IDS};
    memcpy(r.id, t0_want[row], sizeof t0_want[row]);
    return r;
}
#endif
