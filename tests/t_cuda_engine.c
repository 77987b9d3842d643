/*
 * t_cuda_engine.c - models on virtual devices (tests/cuemu): the bits of the CPU for sequences in company, forked and preempted; every
 * allocation and every launch failing once; devices that lose, zero or change what others write; a device that is late;
 * what is read of the file. After every fault the handle goes on or can be closed, and nothing is left in device memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "cuemu/cuemu_api.h"
#include "model_kit.h"

enum { VOCAB = 272, STEPS = 4 };
static char path[2][256]; /* written for one rank and for four; bf16 */

typedef struct { unsigned warnings; char text[512]; } seen_log;
typedef struct { float last[VOCAB]; int32_t ids[STEPS]; unsigned n; } result;

static void on_log(void *user, int32_t level, const char *text)
{
    seen_log *l = user;
    if (level < TESS_LOG_WARN) return;
    l->warnings++;
    snprintf(l->text, sizeof l->text, "%s", text);
}

static tess_status open_on(const char *file, const char *devices, seen_log *log, tess_model **m, tess_error *e)
{
    tess_model_params p;
    tess_host h;
    tess_host_init(&h);
    h.user = log;
    h.log = log ? on_log : NULL;
    tess_model_params_init(&p);
    p.devices = devices;
    p.n_threads = 1;
    p.host = &h;
    return tess_model_open(file, &p, m, e);
}

static tess_status open_ctx(tess_model *m, uint32_t seqs, uint32_t chunk, uint64_t kv_bytes, tess_ctx **c, tess_error *e)
{
    tess_ctx_params p;
    tess_ctx_params_init(&p);
    p.max_seqs = seqs;
    p.max_step_tokens = chunk;
    p.kv_bytes = kv_bytes;
    p.kv_dtype = TESS_KV_INT8;
    p.page_tokens = 16;
    return tess_ctx_open(m, &p, c, e);
}

static tess_status add_seq(tess_ctx *c, int n, int salt, tess_seq *s, tess_error *e)
{
    tess_seq_params p;
    int32_t ids[64];
    tess_seq_params_init(&p);
    p.max_new = STEPS;
    p.flags = TESS_SEQ_IGNORE_EOS;
    for (int i = 0; i < n; i++) ids[i] = (i * 37 + salt * 11) % VOCAB;
    tess_status st = tess_seq_open(c, &p, s, e);
    return st < 0 ? st : tess_seq_append(c, *s, ids, (size_t)n, e);
}

/* Steps until nothing is left; what seq drew goes to r. */
static tess_status drain(tess_ctx *c, tess_seq seq, result *r, tess_error *e)
{
    tess_event ev[16];
    for (;;) {
        size_t n;
        tess_status st = tess_step(c, ev, 16, &n, e);
        if (st < 0) return st;
        for (size_t i = 0; i < n; i++)
            if (ev[i].seq == seq && ev[i].kind == TESS_EV_TOKEN && r->n < STEPS) r->ids[r->n++] = ev[i].token;
        if (st == TESS_IDLE) break;
    }
    const float *logits = tess_seq_logits(c, seq, NULL);
    if (logits) memcpy(r->last, logits, sizeof r->last);
    return TESS_OK;
}

/* One sequence from file to result. */
static tess_status run(const char *file, const char *devices, seen_log *log, result *r, tess_error *e)
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

static void equal(const result *a, const result *b)
{
    assert_int_equal(a->n, STEPS);
    assert_int_equal(b->n, STEPS);
    assert_memory_equal(a->ids, b->ids, sizeof a->ids);
    assert_memory_equal(a->last, b->last, sizeof a->last);
}

static void no_reports(void)
{
    if (cuemu_report_count()) fail_msg("seed %llu: %s", (unsigned long long)cuemu_seed(), cuemu_report_text());
    assert_int_equal(cuemu_live_bytes(), 0);
}

static result want; /* of the CPU */

static int open_files(void **state)
{
    (void)state;
    tess_error e;
    for (unsigned i = 0; i < 2; i++) {
        model_kit x;
        model_kit_init(&x);
        x.tp = i ? 4 : 1;
        x.store = i ? CT_STORE_RAW : CT_STORE_ZSTD;
        snprintf(path[i], sizeof path[i], "%s/t_cuda_engine-%ld-%u.tess", getenv("BUILD") ? getenv("BUILD") : "build", (long)getpid(), i);
        if (!model_kit_write(&x, path[i], &e)) return puts(e.text), 1;
    }
    cuemu_set_quiet(true);
    return run(path[0], "cpu", NULL, &want, &e) < 0 || want.n != STEPS;
}
static int remove_files(void **state)
{
    (void)state;
    return unlink(path[0]) | unlink(path[1]);
}

/* ---- equal bits ---- */

static void bits_of_the_cpu(void **state)
{
    static const char *const lists[] = {"cuda:0", "cuda:1,0", "cuda:0,0", "cuda:0,1,2", "cuda:2,0,2", "cuda:0,1,2,3", "cuda"};
    (void)state;
    for (unsigned i = 0; i < 2 * ARRAY_LEN(lists); i++) {
        result r;
        tess_error e;
        cuemu_reset(i + 1);
        if (run(path[i % 2], lists[i / 2], NULL, &r, &e) < 0) fail_msg("%s: %s", lists[i / 2], e.text);
        equal(&want, &r);
        no_reports();
    }
}

static void without_peer_access(void **state)
{
    (void)state;
    static const char *const lists[] = {"cuda:0,1", "cuda:0,1,0", "cuda:0,1,2,3,4,5,6,7"};
    for (unsigned i = 0; i < ARRAY_LEN(lists); i++) {
        result r;
        tess_error e;
        cuemu_reset(i + 1);
        cuemu_set_peer_possible(false);
        if (run(path[1], lists[i], NULL, &r, &e) < 0) fail_msg("%s: %s", lists[i], e.text);
        equal(&want, &r);
        no_reports();
    }
}

/* Sequences in one batch, one of them forked (a shared page is copied on the device), with too few pages for all. */
static void company_on(const char *devices, result r[3])
{
    tess_model *m;
    tess_ctx *c;
    tess_seq s[3];
    tess_error e;
    memset(r, 0, 3 * sizeof *r);
    tess_status st = open_on(path[1], devices, NULL, &m, &e);
    if (st >= 0) st = open_ctx(m, 3, 9, 40000, &c, &e);
    for (int i = 0; st >= 0 && i < 2; i++) st = add_seq(c, 20 + 17 * i, i + 1, &s[i], &e);
    if (st >= 0) st = drain(c, s[0], &r[0], &e);
    const int32_t more[] = {5, 6, 7};
    if (st >= 0) st = tess_seq_fork(c, s[0], 20, &s[2], &e);
    if (st >= 0) st = tess_seq_append(c, s[2], more, 3, &e);
    if (st >= 0) st = tess_seq_append(c, s[1], more, 3, &e);
    if (st >= 0) st = drain(c, s[2], &r[2], &e);
    if (st >= 0) st = drain(c, s[1], &r[1], &e);
    if (st < 0) fail_msg("%s: %s", devices, e.text);
    tess_ctx_close(c);
    tess_model_close(m);
}

static void company_changes_nothing(void **state)
{
    (void)state;
    static const char *const lists[] = {"cuda:0", "cuda:0,1", "cuda:0,0,1"};
    result cpu[3], r[3];
    company_on("cpu", cpu);
    for (unsigned i = 0; i < ARRAY_LEN(lists); i++) {
        cuemu_reset(i + 1);
        company_on(lists[i], r);
        equal(&cpu[0], &r[0]);
        equal(&cpu[2], &r[2]);
        assert_memory_equal(cpu[1].last, r[1].last, sizeof r[1].last);
        no_reports();
    }
}

/* ---- the machine is too small ---- */

static void says_what_is_missing(void **state)
{
    (void)state;
    result r;
    tess_error e;
    cuemu_reset(1);
    cuemu_set_devices(2);
    assert_int_equal(run(path[0], "cuda:0,1,2", NULL, &r, &e), TESS_E_DEVICE);
    assert_non_null(strstr(e.text, "needs 3 CUDA devices, this machine has 2"));
    cuemu_set_devices(0);
    assert_int_equal(run(path[0], "cuda:0", NULL, &r, &e), TESS_E_DEVICE);
    assert_int_equal(run(path[0], "cpu", NULL, &r, &e), TESS_OK);
    equal(&want, &r);
    cuemu_reset(1);
    cuemu_set_memory(1 << 20);
    assert_int_equal(run(path[0], "cuda:0", NULL, &r, &e), TESS_E_NOMEM);
    assert_non_null(strstr(e.text, "cuda:0"));
    no_reports();
}

/* Four ranks read a file for four once, and a file for one as well. */
static void reads_no_more_than_it_needs(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        tess_model *m;
        tess_model_info info[2];
        tess_error e;
        for (unsigned on = 0; on < 2; on++) {
            cuemu_reset(1);
            if (open_on(path[i], on ? "cuda:0,1,2,3" : "cpu", NULL, &m, &e) < 0) fail_msg("%s", e.text);
            tess_model_info_init(&info[on]);
            assert_int_equal(tess_model_get_info(m, &info[on], &e), TESS_OK);
            tess_model_close(m);
        }
        assert_true(info[0].read_bytes > 0 && info[1].read_bytes <= info[0].read_bytes * 102 / 100);
        assert_true(info[1].read_bytes >= info[0].read_bytes * 9 / 10); /* it did read */
        no_reports();
    }
}

/* ---- faults ---- */

/* Allocation n fails, for every n: a clean error, nothing left; a step that failed can be tried again. */
static void every_allocation_fails_once(void **state)
{
    (void)state;
    unsigned failed = 0;
    for (unsigned n = 1; n < 1000; n++) {
        result r;
        tess_error e;
        cuemu_reset(1);
        cuemu_set_fail_alloc(n);
        tess_status st = run(path[1], "cuda:0,1", NULL, &r, &e);
        no_reports();
        if (st == TESS_OK && failed > 5 && cuemu_allocs() < n) {
            equal(&want, &r);
            return;
        }
        if (st == TESS_OK) equal(&want, &r); /* the trial of a peer failed: pinned memory was taken */
        else {
            failed++;
            if (st != TESS_E_NOMEM && st != TESS_E_DEVICE) fail_msg("allocation %u: %s", n, e.text);
            assert_true(e.text[0] != 0);
        }
    }
    fail_msg("allocations never end");
}

/* Launch n fails: while opening, or in a step, which is then tried again. */
static void every_launch_fails_once(void **state)
{
    (void)state;
    unsigned again = 0, in_open = 0;
    for (unsigned n = 1; n < 5000; n += n < 20 ? 1 : 7) {
        tess_model *m;
        tess_ctx *c = NULL;
        tess_seq s;
        tess_error e;
        result r = {.n = 0};
        cuemu_reset(1);
        cuemu_set_fail_launch(n);
        tess_status st = open_on(path[1], "cuda:0,1,1", NULL, &m, &e);
        if (st >= 0) st = open_ctx(m, 1, 7, 0, &c, &e);
        if (st == TESS_E_DEVICE && m) { /* opening a context for int8 pages reads rows of K on the devices */
            assert_non_null(strstr(e.text, "rows of K can not be read"));
            in_open++;
            st = open_ctx(m, 1, 7, 0, &c, &e);
        }
        if (st >= 0) st = add_seq(c, 20, 1, &s, &e);
        assert_int_equal(st, TESS_OK); /* a launch that fails in a trial of peers is a pair without access */
        cuemu_set_loose(cuemu_launches() < n);
        st = drain(c, s, &r, &e);
        cuemu_set_loose(false);
        bool over = st == TESS_OK && cuemu_launches() < n;
        if (st < 0) {
            assert_int_equal(st, TESS_E_DEVICE);
            assert_non_null(strstr(e.text, "tried again"));
            again++;
            st = drain(c, s, &r, &e);
            if (st < 0) fail_msg("launch %u, second try: %s", n, e.text);
        }
        equal(&want, &r);
        tess_ctx_close(c);
        tess_model_close(m);
        no_reports();
        if (over) {
            assert_true(again > 20 && in_open > 0);
            return;
        }
    }
    fail_msg("launches never end");
}

/* Peers whose writes do not arrive as they should are found out when the model is opened; the result is right all the same. */
static void bad_peers_are_found(void **state)
{
    (void)state;
    for (int kind = CUEMU_PEER_DROP; kind <= CUEMU_PEER_FLIP; kind++) {
        result r;
        tess_error e;
        seen_log log = {0};
        cuemu_reset(1);
        cuemu_set_peer_fault((cuemu_peer_fault)kind, 0);
        if (run(path[1], "cuda:0,1,2", &log, &r, &e) < 0) fail_msg("kind %d: %s", kind, e.text);
        assert_int_equal(log.warnings, 6);
        assert_non_null(strstr(log.text, "data do not arrive"));
        equal(&want, &r);
        no_reports();
    }
}

/* A write between devices that goes wrong later is a flag: it is noticed, or the flag of the next barrier comes in time and says as
 * much; nothing is computed wrong, and the context goes on. */
static void bad_flags_are_noticed(void **state)
{
    (void)state;
    unsigned noticed = 0;
    for (int kind = CUEMU_PEER_DROP; kind <= CUEMU_PEER_FLIP; kind++)
        for (unsigned n = 1; n <= 9; n++) {
            tess_model *m;
            tess_ctx *c = NULL;
            tess_seq s;
            tess_error e;
            result r = {.n = 0};
            cuemu_reset(n);
            tess_status st = open_on(path[1], "cuda:0,1,2", NULL, &m, &e);
            if (st >= 0) st = open_ctx(m, 1, 7, 0, &c, &e);
            if (st >= 0) st = add_seq(c, 20, 1, &s, &e);
            if (st < 0) fail_msg("%s", e.text);
            cuemu_set_peer_fault((cuemu_peer_fault)kind, n);
            cuemu_set_loose(true);
            st = drain(c, s, &r, &e);
            cuemu_set_peer_fault(CUEMU_PEER_OK, 0);
            cuemu_set_loose(false);
            if (st < 0) {
                assert_int_equal(st, TESS_E_DEVICE);
                if (!strstr(e.text, "cuda:")) fail_msg("kind %d, write %u: %s", kind, n, e.text);
                noticed++;
                st = drain(c, s, &r, &e);
                if (st < 0) fail_msg("kind %d, write %u, second try: %s", kind, n, e.text);
            }
            equal(&want, &r);
            tess_ctx_close(c);
            tess_model_close(m);
            no_reports();
        }
    assert_true(noticed >= 5);
}

/* A device that is later than the deadline: an error that names it; in time again, the context goes on. */
static void late_device_is_named(void **state)
{
    (void)state;
    tess_model *m;
    tess_ctx *c = NULL;
    tess_seq s;
    tess_error e;
    result r = {.n = 0};
    cuemu_reset(3);
    tess_status st = open_on(path[1], "cuda:0,1,2", NULL, &m, &e);
    if (st >= 0) st = open_ctx(m, 1, 7, 0, &c, &e);
    if (st >= 0) st = add_seq(c, 20, 1, &s, &e);
    if (st < 0) fail_msg("%s", e.text);
    cuemu_set_delay(1, 30000000000u);
    cuemu_set_loose(true);
    st = drain(c, s, &r, &e);
    cuemu_set_loose(false);
    assert_int_equal(st, TESS_E_DEVICE);
    if (!strstr(e.text, "rank 1 (cuda:1) did not reach barrier")) fail_msg("%s", e.text);
    cuemu_set_delay(1, 0);
    if (drain(c, s, &r, &e) < 0) fail_msg("%s", e.text);
    equal(&want, &r);
    tess_ctx_close(c);
    tess_model_close(m);
    no_reports();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_of_the_cpu),
        cmocka_unit_test(without_peer_access),
        cmocka_unit_test(company_changes_nothing),
        cmocka_unit_test(says_what_is_missing),
        cmocka_unit_test(reads_no_more_than_it_needs),
        cmocka_unit_test(every_allocation_fails_once),
        cmocka_unit_test(every_launch_fails_once),
        cmocka_unit_test(bad_peers_are_found),
        cmocka_unit_test(bad_flags_are_noticed),
        cmocka_unit_test(late_device_is_named),
    };
    return cmocka_run_group_tests(tests, open_files, remove_files);
}
