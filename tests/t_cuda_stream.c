/*
 * t_cuda_stream.c - layers that stay in memory of the host (lib/feed.h), on virtual devices: the bits of a run with all weights on the
 * device for any ranks, chunks and company; no more memory of a device than was said; every allocation, copy and launch failing
 * once, a device that is late, a step that is cancelled: the handle goes on.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "device.h"
#include "engine_kit.h"

enum { FILES = 4, FAULTS = 3 }; /* FAULTS: the one that is run most often */
static char path[FILES][256]; /* bf16, 5 layers; q8 with tied embeddings, 4 layers; bf16 with experts, 3 layers; bf16, 3 layers */
static result want[FILES];    /* nothing streamed, one device */

typedef struct { unsigned n; bool pageable; char text[512]; } said;
static void on_text(void *user, int32_t level, const char *text)
{
    said *s = user;
    if (level < TESS_LOG_INFO || !strstr(text, "copied in every step")) return;
    s->n++;
    s->pageable = s->pageable || strstr(text, "pageable");
    snprintf(s->text, sizeof s->text, "%s", text);
}

static tess_status open_model(const char *file, const char *devices, const char *split, int32_t stream, said *log, tess_model **m, tess_error *e)
{
    tess_model_params p;
    tess_model_params_init(&p);
    p.devices = devices;
    p.split = split;
    p.stream = stream;
    return open_with(file, &p, log ? on_text : NULL, log, m, e);
}

static tess_status run_stream(unsigned f, const char *devices, const char *split, int32_t stream, uint32_t chunk, result *r, tess_error *e)
{
    tess_model *m;
    tess_ctx *c = NULL;
    tess_seq s;
    memset(r, 0, sizeof *r);
    tess_status st = open_model(path[f], devices, split, stream, NULL, &m, e);
    if (st < 0) return st;
    st = open_ctx(m, 1, chunk, 0, &c, e);
    if (st >= 0) st = add_seq(c, 20, 1, &s, e);
    if (st >= 0) st = drain(c, s, r, e);
    tess_ctx_close(c);
    tess_model_close(m);
    return st;
}

static void make_kit(model_kit *x, unsigned f)
{
    model_kit_init(x);
    x->a.n_layers = f == 3 ? 3 : 5 - f;
    x->a.attn_scale = 20;
    x->tp = f == 0 ? 3 : f == 3 ? 2 : 1;
    x->both_signs = true;
    x->store = f ? CT_STORE_RAW : CT_STORE_ZSTD;
    if (f == 1) x->dtype = DT_Q8, x->a.tied_head = 1;
    if (f != 2) return;
    x->a.n_experts = 4;
    x->a.experts_used = 2;
    x->a.moe_ffn_size = 32;
    x->a.router_groups = x->a.router_groups_used = 1;
    x->a.router_norm = 1;
    for (uint32_t i = 0; i < x->a.n_layers; i++) x->a.layer_moe[i] = 1;
}

static int open_files(void **state)
{
    (void)state;
    tess_error e;
    cuemu_set_quiet(true);
    for (unsigned f = 0; f < FILES; f++) {
        model_kit x;
        make_kit(&x, f);
        snprintf(path[f], sizeof path[f], "%s/t_cuda_stream-%ld-%u.tess", getenv("BUILD") ? getenv("BUILD") : "build", (long)getpid(), f);
        if (!model_kit_write(&x, path[f], &e)) return puts(e.text), 1;
        if (run_stream(f, "cuda:0", NULL, TESS_STREAM_OFF, 7, &want[f], &e) < 0 || want[f].n != STEPS) return puts(e.text), 1;
    }
    return 0;
}
static int remove_files(void **state)
{
    int bad = 0;
    (void)state;
    for (unsigned f = 0; f < FILES; f++) bad |= unlink(path[f]);
    return bad;
}

/* ---- equal bits ---- */

static void any_ranks_and_chunks(void **state)
{
    static const struct { const char *devices, *split; uint32_t chunk; } list[] = {
        {"cuda:0", NULL, 7}, {"cuda:1,0", "3,1", 32}, {"cuda:0,0", NULL, 1}, {"cuda:2,0,1", NULL, 9}, {"cuda:0,1,0", "98,1,1", 20}}; /* the last: ranks that have nothing of a layer */
    (void)state;
    for (unsigned i = 0; i < FAULTS * ARRAY_LEN(list); i += cuemu_checked() ? 2 : 1) { /* 2 and FAULTS have no common factor */
        result r;
        tess_error e;
        const unsigned f = i % FAULTS, at = i / FAULTS;
        cuemu_reset(i + 1);
        if (run_stream(f, list[at].devices, list[at].split, TESS_STREAM_ON, list[at].chunk, &r, &e) < 0) fail_msg("file %u, %s: %s", f, list[at].devices, e.text);
        equal(&want[f], &r);
        no_reports();
    }
}

/* Two contexts of a model share the buffers: their steps take turns, and each finds what the other left in them. */
static void contexts_take_turns(void **state)
{
    (void)state;
    tess_model *m;
    tess_ctx *c[2] = {NULL};
    tess_seq s[2];
    tess_error e;
    tess_event ev[16];
    result r[2] = {{.n = 0}, {.n = 0}};
    size_t n;
    cuemu_reset(1);
    tess_status st = open_model(path[0], "cuda:0,1", NULL, TESS_STREAM_ON, NULL, &m, &e);
    for (int i = 0; st >= 0 && i < 2; i++) {
        st = open_ctx(m, 1, 7, 0, &c[i], &e);
        if (st >= 0) st = add_seq(c[i], 20, 1, &s[i], &e);
    }
    for (int i = 0; st >= 0 && i < 4; i++) { /* 14 of the 20 rows of both prompts: nothing is drawn yet */
        st = tess_step(c[i & 1], ev, 16, &n, &e);
        assert_int_equal(n, 0);
    }
    for (int i = 0; st >= 0 && i < 2; i++) st = drain(c[i], s[i], &r[i], &e);
    if (st < 0) fail_msg("%s", e.text);
    for (int i = 0; i < 2; i++) {
        equal(&want[0], &r[i]);
        tess_ctx_close(c[i]);
    }
    tess_model_close(m);
    no_reports();
}

typedef struct { tess_model *m; tess_status st; result r; tess_error e; } one_thread;
static void *a_context(void *arg)
{
    one_thread *t = arg;
    tess_ctx *c = NULL;
    tess_seq s;
    t->st = open_ctx(t->m, 1, 7, 0, &c, &t->e);
    if (t->st >= 0) t->st = add_seq(c, 20, 1, &s, &t->e);
    if (t->st >= 0) t->st = drain(c, s, &t->r, &t->e);
    tess_ctx_close(c);
    return NULL;
}

static void contexts_of_two_threads(void **state)
{
    (void)state;
    tess_model *m;
    tess_error e;
    pthread_t id[2];
    cuemu_reset(1);
    if (open_model(path[1], "cuda:0,1", NULL, TESS_STREAM_ON, NULL, &m, &e) < 0) fail_msg("%s", e.text);
    one_thread t[2] = {{.m = m}, {.m = m}};
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&id[i], NULL, a_context, &t[i]), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_join(id[i], NULL), 0);
    for (int i = 0; i < 2; i++) {
        if (t[i].st < 0) fail_msg("%s", t[i].e.text);
        equal(&want[1], &t[i].r);
    }
    tess_model_close(m);
    no_reports();
}

/* ---- memory ---- */

static uint64_t used_of(uint32_t device)
{
    device_props d;
    assert_int_equal(device_get(device, &d), 0);
    return d.mem_total - d.mem_free;
}

/* What a device has to hold for a whole run, and for the weights alone. */
static void measure(const char *devices, int32_t stream, tess_model_info *info, uint64_t *weights, uint64_t *whole)
{
    tess_model *m;
    tess_ctx *c;
    tess_seq s;
    tess_error e;
    result r = {.n = 0};
    cuemu_reset(1);
    tess_status st = open_model(path[0], devices, NULL, stream, NULL, &m, &e);
    if (st < 0) fail_msg("%s", e.text);
    tess_model_info_init(info);
    assert_int_equal(tess_model_get_info(m, info, &e), TESS_OK);
    *weights = used_of(0);
    st = open_ctx(m, 1, 7, 0, &c, &e);
    if (st >= 0) st = add_seq(c, 20, 1, &s, &e);
    if (st >= 0) st = drain(c, s, &r, &e);
    if (st < 0) fail_msg("%s", e.text);
    *whole = used_of(0);
    tess_ctx_close(c);
    tess_model_close(m);
    no_reports();
}

/* A device with just the room that was said runs the model, streamed because it must be; with a byte less it is refused in one line. */
static void no_more_memory_than_said(void **state)
{
    (void)state;
    tess_model_info all, fed;
    tess_model *m;
    tess_error e;
    result r;
    said log = {0};
    uint64_t weights[2], whole[2];
    measure("cuda:0", TESS_STREAM_OFF, &all, &weights[0], &whole[0]);
    measure("cuda:0", TESS_STREAM_ON, &fed, &weights[1], &whole[1]);
    assert_true(all.device_bytes == weights[0] && all.stream_bytes == 0);
    assert_true(fed.device_bytes == weights[1] && fed.stream_bytes > 0);
    assert_true(weights[1] < weights[0] && whole[1] - weights[1] == whole[0] - weights[0]);
    cuemu_reset(2);
    cuemu_set_memory((size_t)whole[1]);
    assert_true(whole[1] >= weights[0] || run_stream(0, "cuda:0", NULL, TESS_STREAM_OFF, 7, &r, &e) == TESS_E_NOMEM);
    cuemu_set_memory((size_t)weights[0] - 1);
    assert_int_equal(run_stream(0, "cuda:0", NULL, TESS_STREAM_OFF, 7, &r, &e), TESS_E_NOMEM);
    assert_non_null(strstr(e.text, "stream the layers"));
    if (open_model(path[0], "cuda:0", NULL, TESS_STREAM_AUTO, &log, &m, &e) < 0) fail_msg("%s", e.text);
    tess_model_close(m);
    assert_int_equal(log.n, 1);
    cuemu_set_memory((size_t)weights[1] - 1);
    assert_int_equal(open_model(path[0], "cuda:0", NULL, TESS_STREAM_AUTO, NULL, &m, &e), TESS_E_NOMEM);
    assert_non_null(strstr(e.text, "cuda:0: two layers and the weights that always stay need"));
    cuemu_set_memory((size_t)whole[1]);
    if (run_stream(0, "cuda:0", NULL, TESS_STREAM_ON, 7, &r, &e) < 0) fail_msg("%s", e.text);
    equal(&want[0], &r);
    no_reports();
    measure("cuda:0,0", TESS_STREAM_OFF, &all, &weights[0], &whole[0]); /* what two ranks of a device take of it together */
    cuemu_set_memory((size_t)weights[0] - 1);
    assert_int_equal(run_stream(0, "cuda:0,0", NULL, TESS_STREAM_OFF, 7, &r, &e), TESS_E_NOMEM);
    assert_non_null(strstr(e.text, "stream the layers"));
    no_reports();
}

/* Memory that was free when it was looked at and then is not: the layers are streamed, unless that was forbidden. */
static void memory_that_is_gone(void **state)
{
    (void)state;
    for (int32_t stream = TESS_STREAM_AUTO; stream <= TESS_STREAM_OFF; stream += TESS_STREAM_OFF) {
        unsigned streamed = 0, refused = 0;
        for (unsigned n = 1; n < 40; n++) {
            tess_model *m;
            tess_ctx *c = NULL;
            tess_seq s;
            tess_error e;
            result r = {.n = 0};
            said log = {0};
            cuemu_reset(n);
            cuemu_set_fail_alloc(n);
            tess_status st = open_model(path[FAULTS], "cuda:0,1,0", NULL, stream, &log, &m, &e);
            cuemu_set_fail_alloc(0);
            refused += st == TESS_E_NOMEM && strstr(e.text, "of memory for the weights: ");
            streamed += log.n;
            if (st < 0) continue;
            assert_true(log.n == 0 || (log.n <= 2 && stream == TESS_STREAM_AUTO)); /* all ranks of a device, or none */
            if (log.n == 0) { /* not of the weights: every_allocation_fails_once runs these */
                tess_model_close(m);
                continue;
            }
            st = open_ctx(m, 1, 7, 0, &c, &e);
            if (st >= 0) st = add_seq(c, 20, 1, &s, &e);
            if (st >= 0) st = drain(c, s, &r, &e);
            if (st < 0) fail_msg("%s", e.text);
            equal(&want[FAULTS], &r);
            tess_ctx_close(c);
            tess_model_close(m);
            no_reports();
        }
        assert_true(stream == TESS_STREAM_AUTO ? streamed >= 10 && refused == 0 : streamed == 0 && refused >= 6); /* a block and a block of twins a rank */
    }
}

static void not_on_the_cpu(void **state)
{
    (void)state;
    tess_model *m;
    tess_error e;
    assert_int_equal(open_model(path[0], "cpu", NULL, TESS_STREAM_ON, NULL, &m, &e), TESS_E_ARG);
    assert_int_equal(open_model(path[0], "cuda:0", NULL, 3, NULL, &m, &e), TESS_E_ARG);
    assert_null(m);
}

/* ---- faults ---- */

typedef struct { unsigned in_open, in_ctx, in_step; bool pageable; } failures;

/* From file to result, with a fault that was set before; what failed is tried again, once, without it. whole: to the result also when
 * that was model or context. */
static void with_fault(const char *devices, bool whole, failures *f)
{
    const unsigned failed = f->in_open + f->in_ctx;
    tess_model *m = NULL;
    tess_ctx *c = NULL;
    tess_seq s;
    tess_error e;
    result r = {.n = 0};
    said log = {0};
    cuemu_set_loose(true);
    tess_status st = open_model(path[FAULTS], devices, NULL, TESS_STREAM_ON, &log, &m, &e);
    if (st < 0) {
        assert_true(!m && (st == TESS_E_NOMEM || st == TESS_E_DEVICE));
        no_reports();
        f->in_open++;
        st = open_model(path[FAULTS], devices, NULL, TESS_STREAM_ON, &log, &m, &e);
    }
    f->pageable = f->pageable || log.pageable;
    if (st >= 0 && (st = open_ctx(m, 1, 7, 0, &c, &e)) < 0) {
        assert_true(!c && (st == TESS_E_NOMEM || st == TESS_E_DEVICE));
        f->in_ctx++;
        st = open_ctx(m, 1, 7, 0, &c, &e);
    }
    if (st < 0) fail_msg("%s", e.text);
    if (!whole && f->in_open + f->in_ctx > failed) goto out;
    st = add_seq(c, 20, 1, &s, &e);
    if (st < 0) fail_msg("%s", e.text);
    if ((st = drain(c, s, &r, &e)) < 0) {
        assert_true(st == TESS_E_NOMEM || st == TESS_E_DEVICE);
        f->in_step++;
    }
    cuemu_set_loose(false);
    if (st < 0 && drain(c, s, &r, &e) < 0) fail_msg("second try: %s", e.text);
    equal(&want[FAULTS], &r);
out:
    cuemu_set_loose(false);
    tess_ctx_close(c);
    tess_model_close(m);
    no_reports();
}

/* Pinned memory for the layers that is refused is no failure: they are pageable then. */
static void every_allocation_fails_once(void **state)
{
    (void)state;
    failures f = {0};
    for (unsigned n = 1; n < 1000; n++) {
        cuemu_reset(n);
        cuemu_set_fail_alloc(n);
        with_fault("cuda:0,1", false, &f);
        if (cuemu_allocs() >= n) continue;
        assert_true(f.in_open > 5 && f.in_ctx > 5 && f.in_step > 0 && f.pageable);
        return;
    }
    fail_msg("allocations never end");
}

static void copies_fail(void **state)
{
    (void)state;
    failures f = {0};
    for (unsigned n = 1; n < 5000; n += 11) {
        cuemu_reset(n);
        cuemu_set_fail_copy(n);
        with_fault("cuda:0,1", true, &f);
        if (cuemu_copy_failed()) continue;
        assert_true(f.in_open > 0 && f.in_step > 1);
        return;
    }
    fail_msg("copies never end");
}

static void launches_fail(void **state)
{
    (void)state;
    failures f = {0};
    for (unsigned n = 40; n < 5000; n += cuemu_checked() ? 307 : 83) {
        cuemu_reset(n);
        cuemu_set_fail_launch(n);
        with_fault("cuda:0,1,1", true, &f);
        if (cuemu_launches() >= n) continue;
        assert_true(f.in_step > 1);
        return;
    }
    fail_msg("launches never end");
}

/* What ends a step in its middle leaves other layers in the buffers: the next step must not take them for its own. */
static void late_or_cancelled(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        tess_model *m;
        tess_ctx *c = NULL;
        tess_seq s;
        tess_error e;
        result r = {.n = 0};
        cuemu_reset((unsigned)late + 1);
        tess_status st = open_model(path[FAULTS], "cuda:0,1", NULL, TESS_STREAM_ON, NULL, &m, &e);
        if (st >= 0) st = open_ctx(m, 1, 7, 0, &c, &e);
        if (st >= 0) st = add_seq(c, 20, 1, &s, &e);
        if (st < 0) fail_msg("%s", e.text);
        if (late) cuemu_set_delay(1, 30000000000u);
        else tess_ctx_cancel(c);
        cuemu_set_loose(true);
        assert_int_equal(drain(c, s, &r, &e), late ? TESS_E_DEVICE : TESS_E_CANCELLED);
        cuemu_set_loose(false);
        cuemu_set_delay(1, 0);
        if (drain(c, s, &r, &e) < 0) fail_msg("%s", e.text);
        equal(&want[FAULTS], &r);
        tess_ctx_close(c);
        tess_model_close(m);
        no_reports();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_ranks_and_chunks), cmocka_unit_test(contexts_take_turns), cmocka_unit_test(contexts_of_two_threads),
        cmocka_unit_test(no_more_memory_than_said), cmocka_unit_test(memory_that_is_gone), cmocka_unit_test(not_on_the_cpu),
        cmocka_unit_test(every_allocation_fails_once), cmocka_unit_test(copies_fail),
        cmocka_unit_test(launches_fail),        cmocka_unit_test(late_or_cancelled),
    };
    return cmocka_run_group_tests(tests, open_files, remove_files);
}
