/*
 * t_cpus.c - CPUs, quotas and nodes from made-up folders of the kernel's files; teams that are placed on the CPUs of this machine.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pool.h"
#include "root_kit.h"

/* The first n CPUs. */
static cpu_set_t mask_of(uint32_t n)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (uint32_t i = 0; i < n; i++) CPU_SET(i, &set);
    return set;
}
static void look(cpus *c, uint32_t n)
{
    cpu_set_t set = mask_of(n);
    cpus_read(c, root, &set);
}

static void without_files(void **state)
{
    UNUSED(state);
    cpus c;
    look(&c, 5);
    assert_int_equal(c.n, 5);
    assert_int_equal(c.n_nodes, 1);
    assert_int_equal(c.first[1], 5);
    assert_int_equal(c.quota, 0);
    assert_int_equal(cpus_count(&c), 5);
    look(&c, 0);
    assert_int_equal(cpus_count(&c), 1);
}

static void quota_of_v2(void **state)
{
    UNUSED(state);
    const struct { const char *own, *above, *top; uint32_t quota; } cases[] = {
        {"max 100000", "max 100000", "", 0},      {"200000 100000", "max 100000", "", 2},         {"max 100000", "300000 100000", "", 3},
        {"400000 100000", "100000 100000", "", 1}, {"250000 100000", "", "", 3},                   {"1000 100000", "", "", 1},
        {"max 100000", "", "50000 25000", 2},      {"-5 100000", "5", "900000000000 1", 0},         {"x", "100000 0", "", 0},
    };
    put("proc/self/cgroup", "0::/user.slice/job\n");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        cpus c;
        put("sys/fs/cgroup/user.slice/job/cpu.max", cases[i].own);
        put("sys/fs/cgroup/user.slice/cpu.max", cases[i].above);
        put("sys/fs/cgroup/cpu.max", cases[i].top);
        look(&c, 8);
        if (c.quota != cases[i].quota) fail_msg("case %zu: %u CPUs, want %u", i, c.quota, cases[i].quota);
        assert_int_equal(cpus_count(&c), cases[i].quota ? cases[i].quota : 8);
    }
    cpus c;
    put("sys/fs/cgroup/cpu.max", "600000 100000\n");
    put("proc/self/cgroup", "0::/not/here\n"); /* the name on the host, in a container */
    look(&c, 8);
    assert_int_equal(cpus_count(&c), 6);
    put("proc/self/cgroup", "0::/../../elsewhere\n");
    look(&c, 8);
    assert_int_equal(cpus_count(&c), 6);
    look(&c, 4); /* more than the mask has */
    assert_int_equal(cpus_count(&c), 4);
}

static void quota_of_v1(void **state)
{
    UNUSED(state);
    cpus c;
    put("proc/self/cgroup", "12:cpuset:/other\n4:cpu,cpuacct:/docker/job\n1:name=systemd:/x\n0::/\nnonsense\n");
    put("sys/fs/cgroup/cpu,cpuacct/docker/job/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu,cpuacct/docker/job/cpu.cfs_period_us", "100000\n");
    look(&c, 8);
    assert_int_equal(c.quota, 0);
    put("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "350000\n");
    put("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n");
    look(&c, 8);
    assert_int_equal(c.quota, 4);
    put("sys/fs/cgroup/cpuset/other/cpu.cfs_quota_us", "100000\n"); /* not of the cpu controller */
    put("sys/fs/cgroup/cpuset/other/cpu.cfs_period_us", "100000\n");
    look(&c, 8);
    assert_int_equal(c.quota, 4);
    put("sys/fs/cgroup/cpu/docker/job/cpu.cfs_quota_us", "200000\n"); /* mounted by one name */
    put("sys/fs/cgroup/cpu/docker/job/cpu.cfs_period_us", "100000\n");
    look(&c, 8);
    assert_int_equal(c.quota, 2);
}

static void nodes_are_read(void **state)
{
    UNUSED(state);
    cpus c;
    put("sys/devices/system/node/online", "0-1,4\n");
    put("sys/devices/system/node/node0/cpulist", "0-1,4\n");
    put("sys/devices/system/node/node1/cpulist", "\n"); /* memory only */
    put("sys/devices/system/node/node4/cpulist", "2-3,4,6-2000000\n");
    look(&c, 8);
    const uint16_t want[] = {0, 1, 4, 2, 3, 6, 7, 5}; /* 5 is in no node */
    assert_int_equal(c.n, 8);
    assert_memory_equal(c.id, want, sizeof want);
    assert_int_equal(c.n_nodes, 3);
    assert_int_equal(c.first[1], 3);
    assert_int_equal(c.first[2], 7);
    assert_int_equal(c.first[3], 8);
    look(&c, 2); /* only nodes of the mask count */
    assert_int_equal(c.n_nodes, 1);
    put("sys/devices/system/node/node0/cpulist", "x,1-,-3");
    look(&c, 8);
    assert_int_equal(c.n, 8);
}

/* Two nodes, 4 CPUs and `more`. */
static void two_nodes(cpus *c, uint32_t more)
{
    *c = (cpus){.n = 4 + more, .n_nodes = 2, .first = {0, 4, (uint16_t)(4 + more)}};
    for (uint32_t i = 0; i < c->n; i++) c->id[i] = (uint16_t)(10 + i);
}

static void threads_are_placed(void **state)
{
    UNUSED(state);
    cpus c;
    const struct { uint32_t more, quota, n_threads, n_ranks, thread, lo, hi; } cases[] = { /* hi 0: not placed */
        {4, 0, 8, 1, 0, 0, 0}, {4, 0, 2, 1, 1, 0, 0}, /* one rank */
        {4, 0, 8, 2, 0, 0, 4}, {4, 0, 8, 2, 3, 0, 4}, {4, 0, 8, 2, 4, 4, 8}, {4, 0, 2, 2, 1, 4, 8}, {4, 0, 4, 4, 1, 0, 4}, {4, 0, 4, 4, 2, 4, 8},
        {4, 0, 6, 3, 0, 0, 4}, {4, 0, 6, 3, 5, 4, 8}, {4, 0, 9, 2, 0, 0, 0}, {4, 3, 4, 2, 0, 0, 0},
        {2, 0, 6, 2, 0, 0, 0}, {2, 0, 6, 2, 5, 0, 0}, /* 3 threads do not fit on node 1 */
        {2, 0, 5, 2, 0, 0, 0}, {2, 0, 4, 2, 3, 4, 6},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint32_t lo = 0, hi = 0;
        two_nodes(&c, cases[i].more);
        c.quota = cases[i].quota;
        bool placed = cpus_place(&c, cases[i].n_threads, cases[i].n_ranks, cases[i].thread, &lo, &hi);
        if (placed != (cases[i].hi > 0) || lo != cases[i].lo || hi != cases[i].hi) fail_msg("case %zu: %d [%u, %u)", i, placed, lo, hi);
    }
}

/* A rank has a node or more, no CPU is given to two ranks, and all threads are placed or none. */
static void placement_is_sound(void **state)
{
    UNUSED(state);
    for (uint32_t nodes = 1; nodes <= 5; nodes++)
        for (uint32_t ranks = 1; ranks <= 8; ranks++)
            for (uint32_t n = 1; n <= 20; n++) {
                cpus c = {.n = nodes * 3, .n_nodes = nodes};
                uint32_t lo, hi, placed = 0;
                for (uint32_t i = 0; i <= nodes; i++) c.first[i] = (uint16_t)(i * 3);
                for (uint32_t t = 0; t < n; t++)
                    if (cpus_place(&c, n, ranks, t, &lo, &hi)) {
                        placed++;
                        assert_true(lo < hi && hi <= c.n);
                    }
                assert_true(placed == 0 || placed == n);
                if (nodes == 1 || ranks == 1 || n > c.n) assert_int_equal(placed, 0);
                if (nodes > 1 && ranks > 1 && ranks <= nodes && n <= ranks) assert_int_equal(placed, n);
            }
}

/* ---- on this machine ---- */

typedef struct { cpu_set_t seen[CPUS_MAX]; } masks;
static void note_mask(void *arg, uint32_t thread, uint32_t n_threads)
{
    masks *m = arg;
    UNUSED(n_threads);
    (void)sched_getaffinity(0, sizeof m->seen[thread], &m->seen[thread]);
}

/* The threads of two ranks have the CPUs of their node, where they are placed. */
static void check_team(const masks *m, const cpus *c, uint32_t n, const cpu_set_t *mine)
{
    for (uint32_t t = 0; t < n; t++) {
        uint32_t lo, hi;
        bool placed = cpus_place(c, n, 2, t, &lo, &hi);
        assert_int_equal(placed, n <= c->n);
        assert_int_equal(CPU_COUNT(&m->seen[t]), placed ? (int)(hi - lo) : CPU_COUNT(mine));
        for (uint32_t i = lo; placed && i < hi; i++) assert_true(CPU_ISSET(c->id[i], &m->seen[t]));
    }
}

static void teams_are_placed(void **state)
{
    UNUSED(state);
    cpu_set_t before, after;
    cpus c;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    cpus_now(&c);
    assert_int_equal(c.n, CPU_COUNT(&before));
    if (c.n < 2 || sched_setaffinity(0, sizeof before, &before) != 0) {
        printf("skip: one CPU, or this process may not set its affinity mask\n");
        skip();
    }
    masks *m = calloc(1, sizeof *m);
    assert_non_null(m);
    c.quota = 0; /* also where a quota would forbid it */
    c.n = c.n / 2 * 2;
    c.n_nodes = 2; /* as if the machine had two */
    c.first[1] = (uint16_t)(c.n / 2), c.first[2] = (uint16_t)c.n;
    for (uint32_t n = c.n; n <= c.n + 1; n++) {
        pool *p;
        assert_int_equal(pool_open(&mem_libc, NULL, n, &p, NULL), TESS_OK);
        pool_place(p, &c, 2);
        for (int run = 0; run < 3; run++) {
            pool_run(p, note_mask, m);
            check_team(m, &c, n, &before);
            assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
            assert_true(CPU_EQUAL(&before, &after));
        }
        pool_close(p);
    }
    free(m);
}

/* The caller has lost the CPUs that the team was placed on: it stays where it may be, and keeps its mask. */
static void mask_is_never_left(void **state)
{
    UNUSED(state);
    cpu_set_t before, one, after;
    cpus c;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    cpus_now(&c);
    if (c.n < 2 || sched_setaffinity(0, sizeof before, &before) != 0) {
        printf("skip: one CPU, or this process may not set its affinity mask\n");
        skip();
    }
    CPU_ZERO(&one);
    CPU_SET(c.id[1], &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    bool taken = cpus_take(&c, 0, 1, &after), kept = cpus_take(&c, 0, 2, &after);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_false(taken);
    assert_true(kept);
    assert_true(CPU_EQUAL(&one, &after));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(without_files, make_root, remove_root),
        cmocka_unit_test_setup_teardown(quota_of_v2, make_root, remove_root),
        cmocka_unit_test_setup_teardown(quota_of_v1, make_root, remove_root),
        cmocka_unit_test_setup_teardown(nodes_are_read, make_root, remove_root),
        cmocka_unit_test(threads_are_placed),
        cmocka_unit_test(placement_is_sound),
        cmocka_unit_test(teams_are_placed),
        cmocka_unit_test(mask_is_never_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
