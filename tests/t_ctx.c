/*
 * t_ctx.c - contexts on a real small model (converted here): the same bits whatever the batch, chunks, ranks and threads;
 * fork, truncate, preemption, cancelling, and every allocation failing once.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tessera.h"

enum { VOCAB = 320, PROMPT = 96, STEPS = 12 };
static char model_path[512];      /* as in the source */
static char quant_path[2][512];   /* q8, q4 */

static int32_t prompt_id(int i, int salt) { return (i * 37 + 11 + salt * 101) % VOCAB; }

/* Converts the model once; the test is skipped where the checkpoints are not at hand. */
static int convert_model(void **state)
{
    (void)state;
    const char *build = getenv("BUILD") ? getenv("BUILD") : "build";
    const char *roots[] = {getenv("TESS_SHARED"), "../shared", "../../shared"};
    char cmd[2048];
    for (int i = 0; i < 3 && !model_path[0]; i++) {
        snprintf(cmd, sizeof cmd, "%s/models/mistral-window/config.json", roots[i] ? roots[i] : "/nonexistent");
        if (access(cmd, R_OK) != 0) continue;
        snprintf(model_path, sizeof model_path, "%s/t_ctx-%ld.tess", build, (long)getpid());
        snprintf(cmd, sizeof cmd, "'%s/bin/convert-hf' '%s/models/mistral-window' -o '%s' --tp 2 --force >/dev/null", build, roots[i], model_path);
        if (system(cmd) != 0) return 1;
        for (int t = 0; t < 2; t++) {
            const char *type = t ? "q4" : "q8";
            snprintf(quant_path[t], sizeof quant_path[t], "%s/t_ctx-%ld-%s.tess", build, (long)getpid(), type);
            snprintf(cmd, sizeof cmd, "'%s/bin/convert-hf' '%s/models/mistral-window' -o '%s' --type %s --tp %d --force >/dev/null", build, roots[i],
                     quant_path[t], type, t ? 1 : 3);
            if (system(cmd) != 0) return 1;
        }
    }
    return 0;
}
static int remove_model(void **state)
{
    (void)state;
    if (model_path[0]) unlink(model_path), unlink(quant_path[0]), unlink(quant_path[1]);
    return 0;
}
static void need_model(void)
{
    if (model_path[0]) return;
    puts("skip: the checkpoints of ../shared/models are not at hand");
    skip();
}

/* ---- one run, recorded ---- */

typedef struct { float rows[PROMPT + STEPS][VOCAB]; unsigned n; } record;
static void on_logits(void *user, tess_seq seq, uint64_t pos, const float *logits, size_t n)
{
    record *r = user;
    (void)seq;
    assert_int_equal(n, VOCAB);
    assert_true(pos < PROMPT + STEPS);
    memcpy(r->rows[pos], logits, sizeof r->rows[0]);
    r->n++;
}

static tess_model *open_file(const char *path, unsigned ranks, unsigned threads)
{
    tess_model_params p;
    tess_model *m;
    tess_error e;
    tess_model_params_init(&p);
    p.n_ranks = ranks;
    p.n_threads = threads;
    if (tess_model_open(path, &p, &m, &e) != TESS_OK) fail_msg("%s", e.text);
    return m;
}
static tess_model *open_model(unsigned ranks, unsigned threads) { return open_file(model_path, ranks, threads); }

static tess_ctx *open_ctx(tess_model *m, const tess_ctx_params *p)
{
    tess_ctx *c;
    tess_error e;
    if (tess_ctx_open(m, p, &c, &e) != TESS_OK) fail_msg("%s", e.text);
    return c;
}

static tess_seq add_seq(tess_ctx *c, uint32_t max_new, uint32_t flags, int n, int salt)
{
    tess_seq_params p;
    tess_seq s;
    tess_error e;
    int32_t ids[PROMPT];
    tess_seq_params_init(&p);
    p.max_new = max_new;
    p.flags = flags | TESS_SEQ_IGNORE_EOS;
    for (int i = 0; i < n; i++) ids[i] = prompt_id(i, salt);
    if (tess_seq_open(c, &p, &s, &e) != TESS_OK || tess_seq_append(c, s, ids, (size_t)n, &e) != TESS_OK) fail_msg("%s", e.text);
    return s;
}

/* Steps until nothing is left; tokens of seq go to out. */
static unsigned drain(tess_ctx *c, tess_seq seq, int32_t *out)
{
    tess_event ev[64];
    tess_error e;
    unsigned n_out = 0;
    for (;;) {
        size_t n;
        tess_status st = tess_step(c, ev, 64, &n, &e);
        if (st < 0) fail_msg("%s", e.text);
        if (st == TESS_IDLE) return n_out;
        for (size_t i = 0; i < n; i++)
            if (ev[i].seq == seq && ev[i].kind == TESS_EV_TOKEN) out[n_out++] = ev[i].token;
    }
}

static void run(const char *path, unsigned ranks, unsigned threads, unsigned chunk, unsigned page, int32_t kv, record *r, int32_t *out)
{
    tess_model *m = open_file(path, ranks, threads);
    tess_ctx_params p;
    tess_ctx_params_init(&p);
    p.max_step_tokens = chunk;
    p.page_tokens = page;
    p.kv_dtype = kv;
    p.on_logits = on_logits;
    p.logits_user = r;
    r->n = 0;
    tess_ctx *c = open_ctx(m, &p);
    tess_seq s = add_seq(c, STEPS, TESS_SEQ_ALL_LOGITS | TESS_SEQ_FEED_LAST, PROMPT, 0);
    assert_int_equal(drain(c, s, out), STEPS);
    assert_int_equal(r->n, PROMPT + STEPS);
    tess_model_close(m); /* the context keeps it */
    tess_ctx_close(c);
}

static void same_bits_for_every_setting(void **state)
{
    (void)state;
    static record want, got;
    int32_t ids[STEPS], ids2[STEPS];
    static const struct { unsigned ranks, threads, chunk, page; } cases[] = {
        {1, 2, 512, 32}, {1, 3, 7, 16}, {1, 1, 1, 64}, {2, 2, 512, 32}, {3, 3, 32, 16}, {4, 1, 7, 32}, {4, 8, 33, 64}, {8, 2, 5, 16}, {1, 2, 1, 32},
        {1, 5, 4, 16}, {2, 5, 3, 32},
    };
    need_model();
    const struct { const char *path; int kv; } kinds[] = {{model_path, TESS_KV_F32},    {model_path, TESS_KV_F16},     {model_path, TESS_KV_INT8},
                                                          {quant_path[0], TESS_KV_F32}, {quant_path[1], TESS_KV_INT8}};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        int kv = kinds[k].kv;
        const char *path = kinds[k].path;
        run(path, 1, 1, 512, 32, kv, &want, ids);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            run(path, cases[i].ranks, cases[i].threads, cases[i].chunk, cases[i].page, kv, &got, ids2);
            assert_memory_equal(ids, ids2, sizeof ids);
            assert_memory_equal(want.rows, got.rows, sizeof want.rows);
        }
    }
}

/* Sequences of many lengths that join one after another: each says what it says alone. */
static void batch_company_changes_nothing(void **state)
{
    (void)state;
    enum { N = 6 };
    static const int lengths[N] = {1, 15, 16, 17, 96, 33};
    int32_t alone[N][STEPS], got[N][STEPS];
    unsigned count[N] = {0};
    tess_seq seq[N] = {0};
    tess_event ev[2 * N];
    tess_error e;
    need_model();
    tess_model *m = open_model(2, 2);
    tess_ctx_params p;
    tess_ctx_params_init(&p);
    for (int i = 0; i < N; i++) {
        tess_ctx *c = open_ctx(m, &p);
        assert_int_equal(drain(c, add_seq(c, STEPS, 0, lengths[i], i), alone[i]), STEPS);
        tess_ctx_close(c);
    }
    p.max_seqs = N;
    p.max_step_tokens = 16;
    tess_ctx *c = open_ctx(m, &p);
    for (int step = 0, joined = 0;; step++) {
        size_t n;
        if (joined < N && step % 3 == 0) seq[joined] = add_seq(c, STEPS, 0, lengths[joined], joined), joined++;
        tess_status st = tess_step(c, ev, 2 * N, &n, &e);
        assert_true(st >= 0);
        if (st == TESS_IDLE && joined == N) break;
        for (size_t k = 0; k < n; k++)
            for (int i = 0; i < joined; i++)
                if (ev[k].seq == seq[i] && ev[k].kind == TESS_EV_TOKEN) got[i][count[i]++] = ev[k].token;
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(count[i], STEPS);
        assert_memory_equal(alone[i], got[i], sizeof got[i]);
    }
    tess_ctx_close(c);
    tess_model_close(m);
}

/* With room for about two sequences, four still finish, and say the same. */
static void pages_run_out_and_results_stay(void **state)
{
    (void)state;
    enum { N = 4 };
    int32_t alone[STEPS], got[STEPS];
    tess_seq seq[N];
    tess_kv_stats stats;
    tess_error e;
    need_model();
    tess_model *m = open_model(1, 2);
    tess_ctx_params p;
    tess_ctx_params_init(&p);
    tess_ctx *c = open_ctx(m, &p);
    assert_int_equal(drain(c, add_seq(c, STEPS, 0, 40, 3), alone), STEPS);
    tess_kv_stats_init(&stats);
    assert_int_equal(tess_ctx_kv_stats(c, &stats, &e), TESS_OK);
    tess_ctx_close(c);
    p.max_seqs = N;
    p.page_tokens = 16;
    p.max_step_tokens = 24;
    p.kv_bytes = stats.bytes_per_page / 2 * 7; /* a page of 16 is half of one of 32 */
    c = open_ctx(m, &p);
    for (int i = 0; i < N; i++) seq[i] = add_seq(c, STEPS, 0, 40, i);
    assert_int_equal(drain(c, seq[3], got), STEPS);
    assert_memory_equal(alone, got, sizeof got);
    assert_int_equal(tess_ctx_kv_stats(c, &stats, &e), TESS_OK);
    assert_true(stats.preemptions > 0);
    tess_ctx_close(c);
    p.max_seqs = 1; /* and a single one that does not fit is told so, twice, and can be closed */
    p.kv_bytes = stats.bytes_per_page;
    c = open_ctx(m, &p);
    add_seq(c, STEPS, 0, 40, 0);
    size_t n;
    tess_event ev[2];
    tess_status st;
    while ((st = tess_step(c, ev, 2, &n, &e)) == TESS_OK) continue;
    assert_int_equal(st, TESS_E_KV_FULL);
    assert_int_equal(tess_step(c, ev, 2, &n, &e), TESS_E_KV_FULL);
    tess_ctx_close(c);
    tess_model_close(m);
}

static void fork_and_truncate_share_and_recompute(void **state)
{
    (void)state;
    int32_t want[STEPS], got[STEPS];
    tess_error e;
    tess_seq fork;
    need_model();
    tess_model *m = open_model(1, 1);
    tess_ctx_params p;
    tess_ctx_params_init(&p);
    p.max_seqs = 3;
    p.prefix_bytes = -1;
    tess_ctx *c = open_ctx(m, &p);
    assert_int_equal(drain(c, add_seq(c, STEPS, 0, 50, 0), want), STEPS);
    tess_seq s = add_seq(c, STEPS, 0, 96, 0); /* begins with the same 50 ids */
    drain(c, s, got);
    int32_t id = prompt_id(49, 0);
    assert_int_equal(tess_seq_fork(c, s, 49, &fork, &e), TESS_OK); /* behind the window: computed anew or shared, never wrong */
    assert_int_equal(tess_seq_append(c, fork, &id, 1, &e), TESS_OK);
    assert_int_equal(drain(c, fork, got), STEPS);
    assert_memory_equal(want, got, sizeof want);
    assert_int_equal(tess_seq_truncate(c, s, 49, &e), TESS_OK);
    assert_int_equal(tess_seq_append(c, s, &id, 1, &e), TESS_OK);
    assert_int_equal(drain(c, s, got), STEPS);
    assert_memory_equal(want, got, sizeof want);
    assert_int_equal(tess_seq_fork(c, s, 1000, &fork, &e), TESS_E_ARG);
    tess_seq_close(c, s);
    assert_int_equal(tess_seq_append(c, s, &id, 1, &e), TESS_E_ARG); /* stale */
    tess_ctx_close(c);
    tess_model_close(m);
}

static void bad_ids_and_long_prompts_change_nothing(void **state)
{
    (void)state;
    int32_t ids[600] = {0}, got[STEPS];
    tess_error e;
    need_model();
    tess_model *m = open_model(1, 1);
    tess_ctx_params p;
    tess_ctx_params_init(&p);
    p.max_seq_tokens = 32;
    tess_ctx *c = open_ctx(m, &p);
    tess_seq s = add_seq(c, 10, 0, 30, 0);
    ids[1] = VOCAB;
    assert_int_equal(tess_seq_append(c, s, ids, 2, &e), TESS_E_ARG);
    ids[1] = -1;
    assert_int_equal(tess_seq_append(c, s, ids, 2, &e), TESS_E_ARG);
    ids[1] = 0;
    assert_int_equal(tess_seq_append(c, s, ids, 3, &e), TESS_E_ARG);
    assert_non_null(strstr(e.text, "33"));
    assert_non_null(strstr(e.text, "32"));
    assert_int_equal(drain(c, s, got), 3); /* ids at 30 and 31, and the one that these give */
    tess_ctx_close(c);
    p.max_seq_tokens = 1 << 20;
    assert_int_equal(tess_ctx_open(m, &p, &c, &e), TESS_E_ARG);
    tess_model_close(m);
}

static void *cancel_later(void *arg)
{
    usleep(500);
    tess_ctx_cancel(arg);
    return NULL;
}

static void cancelled_steps_change_nothing(void **state)
{
    (void)state;
    int32_t want[STEPS], got[STEPS];
    tess_event ev[2];
    tess_error e;
    size_t n;
    need_model();
    for (unsigned ranks = 1; ranks <= 3; ranks++) {
        tess_model *m = open_model(ranks, 3);
        tess_ctx *c = open_ctx(m, NULL);
        assert_int_equal(drain(c, add_seq(c, STEPS, 0, PROMPT, 0), want), STEPS);
        tess_ctx_close(c);
        c = open_ctx(m, NULL);
        tess_seq s = add_seq(c, STEPS, 0, PROMPT, 0);
        tess_ctx_cancel(c);
        assert_int_equal(tess_step(c, ev, 2, &n, &e), TESS_E_CANCELLED);
        unsigned count = 0;
        for (int i = 0; i < 200; i++) {
            pthread_t t;
            assert_int_equal(pthread_create(&t, NULL, cancel_later, c), 0);
            tess_status st = tess_step(c, ev, 2, &n, &e);
            pthread_join(t, NULL);
            for (size_t k = 0; st == TESS_OK && k < n; k++)
                if (ev[k].kind == TESS_EV_TOKEN) got[count++] = ev[k].token;
        }
        tess_status st = TESS_E_CANCELLED;
        while (count < STEPS && (st == TESS_OK || st == TESS_E_CANCELLED)) {
            st = tess_step(c, ev, 2, &n, &e);
            for (size_t k = 0; st == TESS_OK && k < n; k++)
                if (ev[k].kind == TESS_EV_TOKEN) got[count++] = ev[k].token;
        }
        assert_int_equal(count, STEPS);
        assert_memory_equal(want, got, sizeof want);
        tess_seq_close(c, s);
        tess_ctx_close(c);
        tess_model_close(m);
    }
}

/* ---- every allocation fails once ---- */

typedef struct { long left, live; } failing;
static void *fail_alloc(void *user, size_t size, size_t align)
{
    failing *f = user;
    if (__atomic_fetch_sub(&f->left, 1, __ATOMIC_RELAXED) <= 0) return NULL;
    __atomic_add_fetch(&f->live, 1, __ATOMIC_RELAXED);
    return aligned_alloc(align, size);
}
static void fail_release(void *user, void *ptr, size_t size)
{
    failing *f = user;
    (void)size;
    __atomic_sub_fetch(&f->live, 1, __ATOMIC_RELAXED);
    free(ptr);
}

static bool whole_life(failing *f)
{
    tess_host host;
    tess_model_params p;
    tess_model *m = NULL;
    tess_ctx *c = NULL;
    tess_seq s;
    tess_event ev[2];
    tess_error e = {0};
    size_t n;
    const int32_t ids[3] = {1, 2, 3};
    tess_host_init(&host);
    host.user = f;
    host.alloc = fail_alloc;
    host.release = fail_release;
    tess_model_params_init(&p);
    p.host = &host;
    p.n_threads = 1;
    tess_seq_params sp;
    tess_seq_params_init(&sp);
    sp.max_new = 2;
    tess_status st = tess_model_open(model_path, &p, &m, &e);
    if (st >= 0) st = tess_ctx_open(m, NULL, &c, &e);
    if (st >= 0) st = tess_seq_open(c, &sp, &s, &e);
    if (st >= 0) st = tess_seq_append(c, s, ids, 3, &e);
    while (st >= 0 && st != TESS_IDLE) st = tess_step(c, ev, 2, &n, &e);
    tess_ctx_close(c);
    tess_model_close(m);
    if (st != TESS_IDLE && st != TESS_E_NOMEM) fail_msg("allocation %ld: status %d, %s", f->left, st, e.text);
    if (st < 0) assert_true(e.text[0] != 0);
    return st == TESS_IDLE;
}

static void every_allocation_fails_once(void **state)
{
    (void)state;
    need_model();
    for (long i = 0; i < 100000; i++) {
        failing f = {i, 0};
        bool done = whole_life(&f);
        assert_int_equal(f.live, 0);
        if (done) return;
    }
    fail_msg("no end after 100000 allocations");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_for_every_setting), cmocka_unit_test(batch_company_changes_nothing), cmocka_unit_test(pages_run_out_and_results_stay),
        cmocka_unit_test(fork_and_truncate_share_and_recompute), cmocka_unit_test(bad_ids_and_long_prompts_change_nothing),
        cmocka_unit_test(cancelled_steps_change_nothing), cmocka_unit_test(every_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, convert_model, remove_model);
}
