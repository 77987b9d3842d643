/*
 * t_cuda_threads.c - the threads that give work to several devices (lib/exec_device.c) on virtual devices: streams that take few
 * operations at a time, a launch that fails on one device while the others are deep in their work, runs that repeat from their seed,
 * several contexts at once.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine_kit.h"

static char path[256]; /* q8, 3 layers */
static result want;    /* of one device */

static int open_file(void **state)
{
    (void)state;
    tess_error e;
    model_kit x;
    model_kit_init(&x);
    x.dtype = DT_Q8;
    x.both_signs = true;
    x.a.n_layers = 3;
    x.a.n_heads = 8;
    x.a.hidden_size = 64;
    x.a.attn_scale = 20; /* scores of about 1 */
    snprintf(path, sizeof path, "%s/t_cuda_threads-%ld.tess", getenv("BUILD") ? getenv("BUILD") : "build", (long)getpid());
    if (!model_kit_write(&x, path, &e)) return puts(e.text), 1;
    cuemu_set_quiet(true);
    return run(path, "cuda:0", NULL, &want, &e) < 0 ? (puts(e.text), 1) : 0;
}
static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

typedef struct {
    tess_model *m;
    tess_ctx *c;
    tess_seq s;
} opened;

/* A context with a prompt of 20 ids that is one step. */
static opened open_all(const char *devices)
{
    opened o = {NULL, NULL, 0};
    tess_error e;
    tess_status st = open_on(path, devices, NULL, &o.m, &e);
    if (st >= 0) st = open_ctx(o.m, 1, 64, 0, &o.c, &e);
    if (st >= 0) st = add_seq(o.c, 20, 1, &o.s, &e);
    if (st < 0) fail_msg("%s: %s", devices, e.text);
    return o;
}

static void close_all(opened *o)
{
    tess_ctx_close(o->c);
    tess_model_close(o->m);
    no_reports();
}

/* What waits for a flag waits for up to 20 s of virtual time, and time stands nearly still while anything gets on. */
static bool nobody_waited(uint64_t since) { return cuemu_time() - since < 1000000000u; }

/* Whoever gives to a full stream keeps all others out until that gets on, so what it holds must not need anything that is not given yet. */
static void full_queues_hold_up_nobody(void **state)
{
    (void)state;
    static const char *const lists[] = {"cuda:0,1,2,3", "cuda:0,1,0,1", "cuda:0"};
    static const unsigned queues[] = {16, 3, 1};
    for (unsigned i = 0; i < ARRAY_LEN(lists) * ARRAY_LEN(queues); i += cuemu_checked() ? 2 : 1) {
        const char *devices = lists[i % ARRAY_LEN(lists)];
        tess_error e;
        result r = {.n = 0};
        cuemu_reset(i + 1);
        cuemu_set_peer_possible(i % 4 != 3); /* else outboxes are copied as well */
        opened o = open_all(devices);
        cuemu_set_queue(queues[i / ARRAY_LEN(lists)]);
        const uint64_t start = cuemu_time();
        if (drain(o.c, o.s, &r, &e) < 0) fail_msg("%s, queues of %u: %s", devices, queues[i / ARRAY_LEN(lists)], e.text);
        assert_true(nobody_waited(start));
        equal(&want, &r);
        close_all(&o);
    }
}

/* Launch n of device d, rank d: the others may have filled their streams by then, and must end at the same barrier. */
static void one_device_fails(int d, unsigned n, unsigned queue)
{
    tess_error e;
    result r = {.n = 0};
    char name[64];
    cuemu_reset(n * 4 + (unsigned)d);
    opened o = open_all("cuda:0,1,2,3");
    cuemu_set_queue(queue);
    cuemu_set_fail_launch_on(d, n);
    cuemu_set_loose(true); /* what is given before the barrier runs on with what is there */
    const uint64_t start = cuemu_time();
    assert_int_equal(drain(o.c, o.s, &r, &e), TESS_E_DEVICE);
    snprintf(name, sizeof name, "rank %d (cuda:%d)", d, d);
    if (!strstr(e.text, name) || !strstr(e.text, "tried again")) fail_msg("launch %u of device %d: %s", n, d, e.text);
    assert_true(nobody_waited(start));
    cuemu_set_loose(false);
    if (drain(o.c, o.s, &r, &e) < 0) fail_msg("second try: %s", e.text);
    equal(&want, &r);
    close_all(&o);
}

static void a_failure_stops_all(void **state)
{
    (void)state;
    static const unsigned n[] = {1, 2, 7, 16, 29, 60};
    for (unsigned i = 0; i < ARRAY_LEN(n); i += cuemu_checked() ? 3 : 1)
        for (int d = i % 2; d < 4; d += 2 + (int)i % 2) one_device_fails(d, n[i], i & 2 ? 8 : 0);
}

static void runs_repeat_from_their_seed(void **state)
{
    (void)state;
    uint64_t switches[2], time[2];
    for (unsigned seed = 1; seed <= (cuemu_checked() ? 1 : 2); seed++) {
        for (unsigned i = 0; i < 2; i++) {
            tess_error e;
            result r = {.n = 0};
            cuemu_reset(seed);
            opened o = open_all("cuda:3,1,2,0,1");
            if (drain(o.c, o.s, &r, &e) < 0) fail_msg("%s", e.text);
            switches[i] = cuemu_switches(), time[i] = cuemu_time();
            equal(&want, &r);
            close_all(&o);
        }
        assert_int_equal(switches[0], switches[1]);
        assert_int_equal(time[0], time[1]);
    }
}

typedef struct {
    tess_model *m; /* NULL: one of its own, on `devices` */
    const char *devices;
    result r;
    tess_error e;
    tess_status st;
} job;

/* Contexts that are opened, used and closed, again and again: each has memory to take and to give back while others run. */
static void *run_job(void *arg)
{
    job *j = arg;
    if (!j->m) {
        j->st = run(path, j->devices, NULL, &j->r, &j->e);
        return NULL;
    }
    for (unsigned i = 0; i < (cuemu_checked() ? 1 : 2); i++) {
        tess_ctx *c = NULL;
        tess_seq s;
        memset(&j->r, 0, sizeof j->r);
        j->st = open_ctx(j->m, 1, 7, 0, &c, &j->e);
        if (j->st >= 0) j->st = add_seq(c, 20, 1, &s, &j->e);
        if (j->st >= 0) j->st = drain(c, s, &j->r, &j->e);
        tess_ctx_close(c);
        if (j->st < 0) break;
    }
    return NULL;
}

static void run_jobs(job *j, unsigned n)
{
    pthread_t t[4];
    const uint64_t start = cuemu_time();
    for (unsigned i = 0; i < n; i++) assert_int_equal(pthread_create(&t[i], NULL, run_job, &j[i]), 0);
    for (unsigned i = 0; i < n; i++) pthread_join(t[i], NULL);
    for (unsigned i = 0; i < n; i++) {
        if (j[i].st < 0) fail_msg("%s", j[i].e.text);
        equal(&want, &j[i].r);
    }
    assert_true(nobody_waited(start));
}

static void contexts_of_a_model_take_turns(void **state)
{
    (void)state;
    static const char *const lists[] = {"cuda:0,1,2", "cuda:2,1,0,1"};
    for (unsigned i = 0; i < 2; i++) {
        tess_model *m;
        tess_error e;
        cuemu_reset(i + 1);
        if (open_on(path, lists[i & 1], NULL, &m, &e) < 0) fail_msg("%s", e.text);
        cuemu_set_queue(i * 8);
        job j[3] = {{.m = m}, {.m = m}, {.m = m}};
        run_jobs(j, ARRAY_LEN(j));
        tess_model_close(m);
        no_reports();
    }
}

/* On one device each no kernel waits for another device. */
static void models_on_one_device_each(void **state)
{
    (void)state;
    job j[3] = {{.devices = "cuda:0"}, {.devices = "cuda:1,1"}, {.devices = "cuda:0,0"}};
    cuemu_reset(1);
    cuemu_set_queue(8);
    run_jobs(j, ARRAY_LEN(j));
    no_reports();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_queues_hold_up_nobody),
        cmocka_unit_test(a_failure_stops_all),
        cmocka_unit_test(runs_repeat_from_their_seed),
        cmocka_unit_test(contexts_of_a_model_take_turns),
        cmocka_unit_test(models_on_one_device_each),
    };
    return cmocka_run_group_tests(tests, open_file, remove_file);
}
