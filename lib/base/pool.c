/*
 * pool.c - see pool.h. Waiting: spin on a counter for about 50 us (by clock, since a pause differs much between CPUs),
 * then sleep on a futex. Counters are monotonic 32-bit, compared for change only.
 */
#include "pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os.h"

enum { SPIN_NS = 50000 };

static void futex_wait(uint32_t *word, uint32_t seen) { syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0); }
static void futex_wake_all(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0); }

static void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Returns when w->value differs from seen. A sleeper announces itself before it looks again, and the writer looks for sleepers
 * after it wrote (both sequentially consistent), so no wake-up is lost and a busy team makes no system calls. */
static void word_wait(pool_word *w, uint32_t seen, bool spin)
{
    uint64_t end = 0;
    for (uint32_t i = 1; spin; i++) {
        if (__atomic_load_n(&w->value, __ATOMIC_ACQUIRE) != seen) return;
        cpu_pause();
        if (i % 64) continue;
        uint64_t now = os_now_ns();
        if (end == 0) end = now + SPIN_NS;
        else if (now > end) break;
    }
    __atomic_add_fetch(&w->sleepers, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&w->value, __ATOMIC_SEQ_CST) == seen) futex_wait(&w->value, seen);
    __atomic_sub_fetch(&w->sleepers, 1, __ATOMIC_SEQ_CST);
}

static void word_advance(pool_word *w)
{
    __atomic_add_fetch(&w->value, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&w->sleepers, __ATOMIC_SEQ_CST) != 0) futex_wake_all(&w->value);
}

void pool_gate_init(pool_gate *g, uint32_t n, bool spin) { *g = (pool_gate){.n = n, .spin = spin}; }

void pool_gate_wait(pool_gate *g)
{
    if (g->n <= 1) return;
    uint32_t phase = __atomic_load_n(&g->phase.value, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&g->arrived, 1, __ATOMIC_ACQ_REL) == g->n) {
        __atomic_store_n(&g->arrived, 0, __ATOMIC_RELAXED);
        word_advance(&g->phase);
    } else word_wait(&g->phase, phase, g->spin);
}

typedef struct { pool *p; uint32_t index; pthread_t thread; } member;
struct pool {
    const mem *m;
    uint32_t n, started;
    bool spin, quit;
    const cpus *on;          /* NULL: not placed */
    uint32_t cpu_lo, cpu_hi; /* of thread 0 there */
    pool_fn fn;
    void *arg;
    member *members;
    pool_gate gate; /* barrier inside a run, also the end of a run */
    pool_word job; /* counts the runs */
};

static void *member_main(void *arg)
{
    member *me = arg;
    pool *p = me->p;
    for (uint32_t seen = 0;;) {
        word_wait(&p->job, seen, p->spin);
        seen = __atomic_load_n(&p->job.value, __ATOMIC_ACQUIRE);
        if (p->quit) return NULL;
        p->fn(p->arg, me->index, p->n);
        pool_gate_wait(&p->gate);
    }
}

tess_status pool_open(const mem *m, const cpus *here, uint32_t n_threads, pool **out, tess_error *err)
{
    *out = NULL;
    cpus now;
    if (!here) cpus_now(&now), here = &now;
    if (n_threads == 0) n_threads = cpus_count(here);
    if (n_threads > 1024) return ERR(err, TESS_E_ARG, "%u threads asked for; the limit is 1024", n_threads);
    pool *p = mem_zalloc(m, sizeof *p);
    if (!p) return ERR(err, TESS_E_NOMEM, "no memory for a thread pool");
    p->m = m;
    p->n = n_threads;
    p->spin = n_threads <= cpus_count(here);
    pool_gate_init(&p->gate, n_threads, p->spin);
    p->members = mem_calloc(m, n_threads, sizeof *p->members);
    if (!p->members) {
        mem_free(m, p);
        return ERR(err, TESS_E_NOMEM, "no memory for %u threads", n_threads);
    }
    for (p->started = 1; p->started < n_threads; p->started++) {
        member *me = &p->members[p->started];
        *me = (member){.p = p, .index = p->started};
        if (pthread_create(&me->thread, NULL, member_main, me) != 0) {
            pool_close(p);
            return ERR(err, TESS_E_NOMEM, "cannot start thread %u of %u", me->index + 1, n_threads);
        }
    }
    *out = p;
    return TESS_OK;
}

void pool_close(pool *p)
{
    if (!p) return;
    p->quit = true;
    word_advance(&p->job);
    for (uint32_t i = 1; i < p->started; i++) pthread_join(p->members[i].thread, NULL);
    mem_free(p->m, p->members);
    mem_free(p->m, p);
}

uint32_t pool_size(const pool *p) { return p ? p->n : 1; }
bool pool_spins(const pool *p) { return p && p->spin; }

void pool_run(pool *p, pool_fn fn, void *arg)
{
    if (!p || p->n == 1) {
        fn(arg, 0, 1);
        return;
    }
    cpu_set_t was;
    bool placed = p->on && cpus_take(p->on, p->cpu_lo, p->cpu_hi, &was);
    p->fn = fn;
    p->arg = arg;
    word_advance(&p->job);
    fn(arg, 0, p->n);
    pool_gate_wait(&p->gate);
    if (placed) cpus_give_back(&was);
}

typedef struct { const cpus *on; uint32_t n_ranks; } place_state;

static void place_one(void *arg, uint32_t thread, uint32_t n_threads)
{
    const place_state *s = arg;
    cpu_set_t was;
    uint32_t lo, hi;
    if (thread > 0 && cpus_place(s->on, n_threads, s->n_ranks, thread, &lo, &hi)) (void)cpus_take(s->on, lo, hi, &was);
}

void pool_place(pool *p, const cpus *c, uint32_t n_ranks)
{
    place_state s = {c, n_ranks};
    if (!p || !cpus_place(c, p->n, n_ranks, 0, &p->cpu_lo, &p->cpu_hi)) return;
    pool_run(p, place_one, &s);
    p->on = c;
}

void pool_barrier(pool *p, uint32_t thread)
{
    UNUSED(thread);
    if (p) pool_gate_wait(&p->gate);
}

typedef struct { pool_item_fn fn; void *arg; uint64_t n, next; } each_state;

static void each_run(void *arg, uint32_t thread, uint32_t n_threads)
{
    each_state *s = arg;
    UNUSED(n_threads);
    for (;;) {
        uint64_t i = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED);
        if (i >= s->n) return;
        s->fn(s->arg, i, thread);
    }
}

void pool_each(pool *p, uint64_t n, pool_item_fn fn, void *arg)
{
    each_state s = {fn, arg, n, 0};
    pool_run(p, each_run, &s);
}
