/*
 * t_cuda_engine.c - models on virtual devices (tests/cuemu): equal bits on any devices, near the CPU, for sequences in company, forked and
 * preempted; every allocation and every launch failing once; devices that lose, zero or change what others write; a device that is late,
 * or lost; steps that are cancelled.
 * After every fault the handle goes on or can be closed, and nothing is left in device memory.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm_ops.h"
#include "ctx.h"
#include "device.h"
#include "engine_kit.h"
#include "exec_priv.h"

static char path[2][256]; /* written for one rank and for four; bf16; other weights */
static result want[2];    /* of one device */
static result from_cpu[2];

static int open_files(void **state)
{
    (void)state;
    tess_error e;
    for (unsigned i = 0; i < 2; i++) {
        model_kit x;
        model_kit_init(&x);
        x.tp = i ? 4 : 1;
        x.both_signs = true;
        x.a.attn_scale = 20; /* scores of about 1 */
        x.store = i ? CT_STORE_RAW : CT_STORE_ZSTD;
        snprintf(path[i], sizeof path[i], "%s/t_cuda_engine-%ld-%u.tess", getenv("BUILD") ? getenv("BUILD") : "build", (long)getpid(), i);
        if (!model_kit_write(&x, path[i], &e)) return puts(e.text), 1;
    }
    cuemu_set_quiet(true);
    for (unsigned i = 0; i < 2; i++)
        if (run(path[i], "cpu", NULL, &from_cpu[i], &e) < 0 || run(path[i], "cuda:0", NULL, &want[i], &e) < 0 || want[i].n != STEPS) return 1;
    return 0;
}
static int remove_files(void **state)
{
    (void)state;
    return unlink(path[0]) | unlink(path[1]);
}

/* ---- equal bits ---- */

static void near_the_cpu(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        distance d = {0};
        distance_add(&d, from_cpu[i].last, want[i].last, VOCAB);
        if (!(distance_of(&d) <= NEAR)) fail_msg("file %u: %g", i, distance_of(&d));
    }
}

static void any_devices(void **state)
{
    static const char *const lists[] = {"cuda:0", "cuda:1,0", "cuda:0,0", "cuda:0,1,2", "cuda:2,0,2", "cuda:0,1,2,3", "cuda"};
    (void)state;
    for (unsigned i = 0; i < 2 * ARRAY_LEN(lists); i++) {
        result r;
        tess_error e;
        cuemu_reset(i + 1);
        if (run(path[i % 2], lists[i / 2], NULL, &r, &e) < 0) fail_msg("%s: %s", lists[i / 2], e.text);
        equal(&want[i % 2], &r);
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
        equal(&want[1], &r);
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
    result one[3], r[3];
    cuemu_reset(100);
    company_on("cuda:0", one);
    for (unsigned i = 0; i < ARRAY_LEN(lists); i++) {
        cuemu_reset(i + 1);
        company_on(lists[i], r);
        equal(&one[0], &r[0]);
        equal(&one[2], &r[2]);
        assert_memory_equal(one[1].last, r[1].last, sizeof r[1].last);
        no_reports();
    }
}

/* ---- launches ---- */

/* Launches of a step of a llama of q8: of a prompt, or of one row behind it. */
static uint64_t launches_of_a_step(uint32_t layers, const char *devices, bool prompt)
{
    char file[280];
    model_kit x;
    tess_model *m;
    tess_ctx *c;
    tess_seq s;
    tess_event ev[16];
    tess_error e;
    size_t n;
    model_kit_init(&x);
    x.a.n_layers = layers;
    x.dtype = DT_Q8;
    snprintf(file, sizeof file, "%s.%u", path[0], layers);
    if (!model_kit_write(&x, file, &e) || open_on(file, devices, NULL, &m, &e) < 0 || open_ctx(m, 1, 32, 0, &c, &e) < 0) fail_msg("%s", e.text);
    unlink(file);
    if (add_seq(c, 20, 1, &s, &e) < 0 || (!prompt && tess_step(c, ev, 16, &n, &e) < 0)) fail_msg("%s", e.text);
    uint64_t before = cuemu_launches();
    assert_int_equal(tess_step(c, ev, 16, &n, &e), TESS_OK);
    uint64_t launches = cuemu_launches() - before;
    tess_ctx_close(c);
    tess_model_close(m);
    return launches;
}

/* q k v with rope and pages; attention with its groups; o with the residual, norm and groups; gate and up with the activation and its
 * groups; down with the residual, norm and groups. Several ranks have sums, norms and groups in launches of their own, behind barriers. Each alone
 * they were 20. Of a prompt the groups of attention have one of their own, and on one device what follows o and down. */
static void launches_of_a_layer(void **state)
{
    (void)state;
    cuemu_reset(1);
    assert_int_equal(launches_of_a_step(4, "cuda:0", false) - launches_of_a_step(2, "cuda:0", false), 2 * 5);
    assert_int_equal(launches_of_a_step(4, "cuda:0,0", false) - launches_of_a_step(2, "cuda:0,0", false), 2 * 2 * 7);
    assert_int_equal(launches_of_a_step(4, "cuda:0", true) - launches_of_a_step(2, "cuda:0", true), 2 * 8);
    assert_int_equal(launches_of_a_step(4, "cuda:0,0", true) - launches_of_a_step(2, "cuda:0,0", true), 2 * 2 * 8);
    no_reports();
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
    equal(&from_cpu[0], &r);
    cuemu_reset(1);
    cuemu_set_memory(1 << 20);
    assert_int_equal(run(path[0], "cuda:0", NULL, &r, &e), TESS_E_NOMEM);
    assert_non_null(strstr(e.text, "cuda:0"));
    no_reports();
}

/* ---- faults ---- */

/* The n to try after n: every one with CUEMU_EVERY=1, else all early ones and then every thirteenth (checked: fewer). */
static unsigned next_n(unsigned n)
{
    return getenv("CUEMU_EVERY") || n < (cuemu_checked() ? 4 : 20) ? n + 1 : n + (cuemu_checked() ? 97 : 13);
}

/* What failed where, counted; a try that failed is repeated, once, without a fault. streamed: models that opened all the same, with
 * their layers on the host (place.h). */
typedef struct { unsigned in_open, streamed, in_ctx, in_step; } failures;

static void step_again(tess_status st, tess_ctx *c, tess_seq s, result *r, tess_error *e)
{
    if (st < 0 && drain(c, s, r, e) < 0) fail_msg("second try: %s", e->text);
    equal(&want[1], r);
}

/* All sums over ranks of c go in two steps (exec_sums.c). */
static void in_two_steps(tess_ctx *c) { c->exec->two_from = 1; }

/* From file to result on devices, with a fault that was set before. `allowed` says which statuses it may have. */
static void with_fault(const char *devices, bool (*allowed)(tess_status st, const tess_error *e), failures *f)
{
    tess_model *m = NULL;
    tess_ctx *c = NULL;
    tess_seq s;
    tess_error e;
    result r = {.n = 0};
    const uint64_t start = cuemu_time();
    cuemu_set_loose(true); /* what is queued behind a failure runs on with what is there */
    tess_status st = open_on(path[1], devices, NULL, &m, &e);
    if (st < 0) {
        assert_null(m);
        assert_true(allowed(st, &e));
        no_reports(); /* nothing is left */
        f->in_open++;
        st = open_on(path[1], devices, NULL, &m, &e);
    }
    if (st >= 0) {
        tess_model_info info;
        tess_model_info_init(&info);
        assert_int_equal(tess_model_get_info(m, &info, &e), TESS_OK);
        f->streamed += info.stream_bytes > 0;
    }
    if (st >= 0 && (st = open_ctx(m, 1, 7, 0, &c, &e)) < 0) {
        assert_null(c);
        assert_true(allowed(st, &e));
        f->in_ctx++;
        st = open_ctx(m, 1, 7, 0, &c, &e);
    }
    if (st >= 0) in_two_steps(c);
    if (st >= 0) st = add_seq(c, 20, 1, &s, &e);
    if (st < 0) fail_msg("%s", e.text);
    if ((st = drain(c, s, &r, &e)) < 0) assert_true(allowed(st, &e)), f->in_step++;
    assert_true(cuemu_time() - start < 1000000000u); /* nobody waits until the deadline for a rank that gave up */
    cuemu_set_loose(false);
    step_again(st, c, s, &r, &e);
    tess_ctx_close(c);
    tess_model_close(m);
    no_reports();
}

static bool is_memory(tess_status st, const tess_error *e) { return (st == TESS_E_NOMEM || st == TESS_E_DEVICE) && e->text[0]; }

static void every_allocation_fails_once(void **state)
{
    (void)state;
    failures f = {0};
    for (unsigned n = 1; n < 1000; n++) {
        cuemu_reset(1);
        cuemu_set_fail_alloc(n);
        with_fault("cuda:0,1", is_memory, &f);
        if (cuemu_allocs() >= n) continue;
        if (getenv("CUEMU_EVERY")) printf("%u allocations: %u failed models, %u streamed, %u contexts, %u steps\n", n - 1, f.in_open, f.streamed, f.in_ctx, f.in_step);
        assert_true(f.in_open > 2 && f.streamed > 2 && f.in_ctx > 5 && f.in_step > 2);
        return;
    }
    fail_msg("allocations never end");
}

/* A launch that fails in a trial of peers is a pair without access; opening a context for int8 pages reads rows of K on the devices. */
static bool is_launch(tess_status st, const tess_error *e)
{
    return st == TESS_E_DEVICE && (strstr(e->text, "tried again") || strstr(e->text, "rows of K can not be read"));
}

static void every_launch_fails_once(void **state)
{
    (void)state;
    failures f = {0};
    for (unsigned n = 1; n < 5000; n = next_n(n)) {
        cuemu_reset(1);
        cuemu_set_fail_launch(n);
        with_fault("cuda:0,1,1", is_launch, &f);
        if (cuemu_launches() >= n) continue;
        if (getenv("CUEMU_EVERY")) printf("%u launches: %u failed models, %u contexts, %u steps\n", n - 1, f.in_open, f.in_ctx, f.in_step);
        assert_true(f.in_step > (cuemu_checked() ? 2 : 20) && (f.in_ctx > 0 || cuemu_checked()));
        return;
    }
    fail_msg("launches never end");
}

/* Steps in which a sequence decodes and another one's prompt comes: attention has a launch for each, and groups behind them. Whatever
 * launch fails, the step says so, and is right when it is tried again. */
static void every_launch_of_mixed_steps_fails_once(void **state)
{
    (void)state;
    char file[300];
    model_kit x;
    tess_model *m;
    tess_ctx *c;
    tess_seq s[2];
    tess_error e;
    tess_event ev[4];
    size_t k;
    float right[VOCAB];
    uint64_t launches = 0;
    model_kit_init(&x);
    x.a.n_layers = 1;
    x.dtype = DT_Q8;
    snprintf(file, sizeof file, "%s.mixed", path[0]);
    cuemu_reset(1);
    if (!model_kit_write(&x, file, &e) || open_on(file, "cuda:0", NULL, &m, &e) < 0 || open_ctx(m, 2, 64, 0, &c, &e) < 0) fail_msg("%s", e.text);
    unlink(file);
    for (unsigned n = 0; n <= launches; n += n && cuemu_checked() ? 5 : 1) { /* 0: none fails */
        static const int32_t ids[] = {5, 6, 7};
        tess_seq_params p;
        tess_seq_params_init(&p);
        p.max_new = 0;
        for (int i = n ? 1 : 0; i < 2; i++) {
            if (tess_seq_open(c, &p, &s[i], &e) < 0 || tess_seq_append(c, s[i], ids, ARRAY_LEN(ids), &e) < 0) fail_msg("%s", e.text);
            if (i == 0 && tess_step(c, ev, 4, &k, &e) < 0) fail_msg("%s", e.text);
        }
        if (tess_seq_append(c, s[0], ids, 1, &e) < 0) fail_msg("%s", e.text);
        const uint64_t was = cuemu_launches();
        cuemu_set_loose(true);
        cuemu_set_fail_launch(n);
        assert_int_equal(tess_step(c, ev, 4, &k, &e), n ? TESS_E_DEVICE : TESS_OK);
        cuemu_set_loose(false);
        if (n == 0) launches = cuemu_launches() - was;
        if (n && tess_step(c, ev, 4, &k, &e) < 0) fail_msg("%s", e.text);
        if (n == 0) memcpy(right, tess_seq_logits(c, s[1], NULL), sizeof right);
        assert_memory_equal(tess_seq_logits(c, s[1], NULL), right, sizeof right);
        tess_seq_close(c, s[1]);
    }
    assert_true(launches > 8);
    tess_ctx_close(c);
    tess_model_close(m);
    no_reports();
}

/* Peers whose writes, or what is read of them, do not arrive as they should are found out when the model is opened; the result is right all the same. */
static void bad_peers_are_found(void **state)
{
    (void)state;
    for (int kind = CUEMU_PEER_DROP; kind <= (cuemu_checked() ? CUEMU_PEER_LOAD : CUEMU_PEER_FLIP); kind++) { /* plain stores and loads: the checked build alone */
        const char *by = kind == CUEMU_PEER_LOAD ? "loads" : cuemu_checked() ? "stores" : "the copy engine";
        result r;
        tess_error e;
        seen_log log = {0};
        cuemu_reset(1);
        cuemu_set_peer_fault((cuemu_peer_fault)kind, 0);
        if (run(path[1], "cuda:0,1,2", &log, &r, &e) < 0) fail_msg("kind %d: %s", kind, e.text);
        assert_int_equal(log.warnings, 6);
        assert_non_null(strstr(log.text, "data do not arrive by "));
        assert_non_null(strstr(log.text, by));
        equal(&want[1], &r);
        no_reports();
    }
}

/* A write between devices that goes wrong later is a flag: it is noticed, or the flag of the next barrier comes in time and says as
 * much; nothing is computed wrong, and the context goes on. */
static bool bad_flags(cuemu_peer_fault kind, unsigned n, unsigned *noticed)
{
    tess_model *m;
    tess_ctx *c = NULL;
    tess_seq s;
    tess_error e;
    result r = {.n = 0};
    cuemu_reset(n);
    tess_status st = open_on(path[1], "cuda:0,1,2", NULL, &m, &e);
    if (st >= 0) st = open_ctx(m, 1, 32, 0, &c, &e);
    if (st >= 0 && kind != CUEMU_PEER_FLIP) in_two_steps(c);
    if (st >= 0) st = add_seq(c, 20, 1, &s, &e);
    if (st < 0) fail_msg("%s", e.text);
    cuemu_set_loose(true);
    cuemu_set_peer_fault(kind, n);
    st = drain(c, s, &r, &e);
    bool was = cuemu_peer_fault_was();
    cuemu_set_peer_fault(CUEMU_PEER_OK, 0);
    cuemu_set_loose(false);
    if (st < 0) {
        const char *says = kind == CUEMU_PEER_DROP ? "did not reach barrier" : kind == CUEMU_PEER_FLIP ? "arrived damaged" : ""; /* before the first barrier flags are 0 */
        if (st != TESS_E_DEVICE || !strstr(e.text, "cuda:") || !strstr(e.text, says)) fail_msg("kind %d, write %u: %s", (int)kind, n, e.text);
        ++*noticed;
    }
    step_again(st, c, s, &r, &e);
    tess_ctx_close(c);
    tess_model_close(m);
    no_reports();
    return was;
}

static void bad_flags_are_noticed(void **state)
{
    (void)state;
    for (int kind = CUEMU_PEER_DROP; kind <= CUEMU_PEER_FLIP; kind++) {
        unsigned n = 1, last = 0, noticed = 0;
        for (; bad_flags((cuemu_peer_fault)kind, n, &noticed); n = next_n(n)) last = n;
        while (n - last > 1) { /* the last flag of all: no later one says as much */
            unsigned mid = last + (n - last) / 2;
            if (bad_flags((cuemu_peer_fault)kind, mid, &noticed)) last = mid;
            else n = mid;
        }
        if (last <= 60 || noticed == 0) fail_msg("fault %d: %u flags, %u noticed", kind, last, noticed);
    }
}

/* A device that is later than the deadline: an error that names it; in time again, the context goes on. One that is late by less
 * changes nothing. */
static void late_device_is_named(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++) {
        tess_model *m;
        tess_ctx *c = NULL;
        tess_seq s;
        tess_error e;
        result r = {.n = 0};
        char name[64];
        cuemu_reset((unsigned)d + 3);
        tess_status st = open_on(path[1], "cuda:0,1,2", NULL, &m, &e);
        if (st >= 0) st = open_ctx(m, 1, 7, 0, &c, &e);
        if (st >= 0 && d > 0) in_two_steps(c);
        if (st >= 0) st = add_seq(c, 20, 1, &s, &e);
        if (st < 0) fail_msg("%s", e.text);
        cuemu_set_delay(d, 30000000000u);
        cuemu_set_loose(true);
        assert_int_equal(drain(c, s, &r, &e), TESS_E_DEVICE);
        snprintf(name, sizeof name, "rank %d (cuda:%d) did not reach barrier", d, d);
        if (!strstr(e.text, name)) fail_msg("%s", e.text);
        cuemu_set_delay(d, 100000000u);
        cuemu_set_loose(false);
        step_again(TESS_E_DEVICE, c, s, &r, &e);
        tess_ctx_close(c);
        tess_model_close(m);
        no_reports();
    }
}

/* A device that is lost in a step: the context says that it can only be closed, and gives no device work any more. */
static void lost_device_is_said(void **state)
{
    (void)state;
    static const char *const lists[] = {"cuda:0", "cuda:0,1"};
    for (unsigned i = 0; i < ARRAY_LEN(lists); i++) {
        tess_model *m;
        tess_ctx *c = NULL;
        tess_seq s;
        tess_error e;
        result r = {.n = 0};
        void *stream, *little;
        cuemu_reset(i + 1);
        tess_status st = open_on(path[1], lists[i], NULL, &m, &e);
        if (st >= 0) st = open_ctx(m, 1, 7, 0, &c, &e);
        if (st >= 0) st = add_seq(c, 20, 1, &s, &e);
        if (st < 0) fail_msg("%s", e.text);
        assert_int_equal(device_select(i) | device_stream_open(&stream) | device_alloc(&little, 16), 0);
        assert_int_equal(device_fill(little, 0, 17, stream), 0); /* found when it runs, in the step */
        cuemu_set_loose(true);
        assert_int_equal(one_step(c, s, &r, &e), TESS_E_BROKEN);
        cuemu_set_loose(false);
        assert_non_null(strstr(e.text, "can only be closed"));
        const uint64_t launches = cuemu_launches();
        assert_int_equal(one_step(c, s, &r, &e), TESS_E_BROKEN);
        assert_non_null(strstr(e.text, "a device was lost")); /* it is not asked again */
        assert_int_equal(cuemu_launches(), launches);
        tess_ctx_close(c);
        tess_model_close(m);
        device_free(little);
        device_stream_close(stream);
        assert_int_equal(cuemu_report_count(), 1);
        assert_int_equal(cuemu_live_bytes(), 0);
        cuemu_reset(1);
    }
}

/* Who waits for a flag when the others give up ends at once and reports nothing. Seeds: some ranks wait already when they do. */
static void ends_when_told(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 8 && !cuemu_checked(); seed++) { /* the word comes by a copy, in no order with the wait: a race to the checker */
        void *flag, *host, *waits, *tells;
        cuemu_reset(seed);
        assert_int_equal(device_select(0), 0);
        assert_int_equal(device_alloc(&flag, 2 * sizeof(uint32_t)) | device_host_alloc(&host, 2 * sizeof(comm_record)), 0);
        assert_int_equal(device_stream_open(&waits) | device_stream_open(&tells), 0);
        assert_int_equal(device_fill(flag, 0, 2 * sizeof(uint32_t), waits), 0);
        comm_record *r = host;
        r[0] = (comm_record){.kind = COMM_OK}, r[1] = (comm_record){0, 1, 0, 0};
        const comm_flags_args a = {.passed = (uint32_t *)flag + 1, .in = {NULL, flag}, .record = &r[0], .abort = &r[1].kind, .deadline_ns = 20000000000u};
        const uint64_t start = cuemu_time();
        assert_int_equal(comm_flags(&a, waits) | device_copy(&r[1].kind, &r[1].peer, sizeof(uint32_t), tells), 0);
        assert_int_equal(device_stream_sync(waits) | device_stream_sync(tells), 0);
        assert_int_equal(r[0].kind, COMM_OK);
        assert_true(cuemu_time() - start < 1000000000u);
        device_free(flag), device_host_free(host), device_stream_close(waits), device_stream_close(tells);
        no_reports();
    }
}

/* Memory of the context; the next piece that is asked for comes when another thread has cancelled the step. */
typedef struct { tess_ctx *cancel; } hook;
static void *cancel_it(void *c) { return tess_ctx_cancel(c), NULL; }
static void *take(void *user, size_t size, size_t align)
{
    hook *h = user;
    void *p;
    pthread_t other;
    if (h->cancel && pthread_create(&other, NULL, cancel_it, h->cancel) == 0) pthread_join(other, NULL), h->cancel = NULL;
    return posix_memalign(&p, MAX(align, sizeof p), MAX(size, (size_t)1)) == 0 ? p : NULL;
}
static void give_back(void *user, void *p, size_t size)
{
    (void)user, (void)size;
    free(p);
}

/* Step n is cancelled when it has begun; gives how many launches it had all the same, and the one before it. Nothing runs on behind it. */
static void cancel_step(const char *devices, unsigned n, uint64_t *had, uint64_t *before)
{
    tess_model *m;
    tess_ctx *c = NULL;
    tess_seq s;
    tess_error e;
    tess_host host;
    tess_model_params p;
    hook h = {NULL};
    result r = {.n = 0};
    uint64_t was = 0;
    tess_host_init(&host);
    host.user = &h, host.alloc = take, host.release = give_back;
    tess_model_params_init(&p);
    p.devices = devices, p.n_threads = 1, p.host = &host;
    cuemu_reset(1);
    tess_status st = tess_model_open(path[1], &p, &m, &e);
    if (st >= 0) st = open_ctx(m, 1, 7, 0, &c, &e);
    if (st >= 0) st = add_seq(c, 20, 1, &s, &e);
    for (unsigned i = 1; st >= 0 && i < n; i++) was = cuemu_launches(), st = one_step(c, s, &r, &e);
    if (st < 0) fail_msg("%s", e.text);
    const uint64_t launches = cuemu_launches(), waits = cuemu_waits();
    h.cancel = c;
    assert_int_equal(one_step(c, s, &r, &e), TESS_E_CANCELLED);
    assert_true(cuemu_waits() > waits);
    *before = launches - was, *had = cuemu_launches() - launches;
    if (drain(c, s, &r, &e) < 0) fail_msg("%s", e.text);
    equal(&want[1], &r);
    tess_ctx_close(c);
    tess_model_close(m);
    no_reports();
}

/* At the next barrier, not at the end of the step. */
static void stops_at_a_barrier(void **state)
{
    (void)state;
    uint64_t some, all;
    cancel_step("cuda:0,1", 2, &some, &all);
    if (some == 0 || 2 * some >= all) fail_msg("%u of %u launches", (unsigned)some, (unsigned)all);
}

/* Three steps bring the prompt, the fourth is launched, the fifth recorded and given, the sixth given. */
static void stops_before_a_graph(void **state)
{
    (void)state;
    uint64_t some, all, none;
    cancel_step("cuda:0", 5, &some, &all);
    assert_true(some < all);
    cancel_step("cuda:0", 6, &none, &all);
    assert_int_equal(none, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(near_the_cpu),
        cmocka_unit_test(any_devices),
        cmocka_unit_test(without_peer_access),
        cmocka_unit_test(launches_of_a_layer),
        cmocka_unit_test(company_changes_nothing),
        cmocka_unit_test(says_what_is_missing),
        cmocka_unit_test(every_allocation_fails_once),
        cmocka_unit_test(every_launch_fails_once),
        cmocka_unit_test(every_launch_of_mixed_steps_fails_once),
        cmocka_unit_test(bad_peers_are_found),
        cmocka_unit_test(bad_flags_are_noticed),
        cmocka_unit_test(late_device_is_named),
        cmocka_unit_test(lost_device_is_said),
        cmocka_unit_test(stops_at_a_barrier),
        cmocka_unit_test(stops_before_a_graph),
        cmocka_unit_test(ends_when_told),
    };
    return cmocka_run_group_tests(tests, open_files, remove_files);
}
