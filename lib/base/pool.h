/*
 * pool.h - a team of threads that runs one function at a time, and its barrier.
 *
 * pool_run calls fn(arg, i, n) on n threads, the caller being thread 0, and returns when all are done. Between
 * runs the threads spin shortly (about 50 us), then sleep. Inside fn, pool_barrier waits for the whole team. One
 * caller at a time. A pool of 1 starts no thread. When there are more threads than CPUs, waiting sleeps at once.
 *
 * A team may be placed on CPUs (pool_place; cpus.h says which thread goes where). Its own threads stay there; the caller's thread is
 * there while pool_run runs, and has its mask back when that returns.
 */
#ifndef TESS_POOL_H
#define TESS_POOL_H
#include "cpus.h"
#include "mem.h"

typedef struct pool pool;
typedef void (*pool_fn)(void *arg, uint32_t thread, uint32_t n_threads);
/* n_threads 0: as many as can run at once. here: the CPUs of this process, where the caller has read them; NULL: they are read now. */
tess_status pool_open(const mem *m, const cpus *here, uint32_t n_threads, pool **out, tess_error *err);
/* Between runs: places the team of n_ranks ranks on c, which must outlive it. Without effect where cpus_place places nothing. */
void pool_place(pool *p, const cpus *c, uint32_t n_ranks);
void pool_close(pool *p); /* NULL is fine */
uint32_t pool_size(const pool *p);
bool pool_spins(const pool *p); /* false: more threads than CPUs, waiting sleeps at once */
void pool_run(pool *p, pool_fn fn, void *arg);
void pool_barrier(pool *p, uint32_t thread);
/* Calls fn(arg, item) for every item in [0, n), items taken one by one in ascending order by the threads. */
typedef void (*pool_item_fn)(void *arg, uint64_t item, uint32_t thread);
void pool_each(pool *p, uint64_t n, pool_item_fn fn, void *arg);

/* A barrier for any n threads (ranks): spins, then sleeps. */
typedef struct { _Alignas(64) uint32_t value, sleepers; } pool_word;
typedef struct { uint32_t n; bool spin; _Alignas(64) uint32_t arrived; pool_word phase; } pool_gate;
void pool_gate_init(pool_gate *g, uint32_t n, bool spin);
void pool_gate_wait(pool_gate *g);
/* Threads i of n: the half-open share of [0, total), cut at multiples of `grain`. */
static inline void pool_share(uint64_t total, uint64_t grain, uint32_t i, uint32_t n, uint64_t *lo, uint64_t *hi)
{
    uint64_t g = ceil_div(total, grain);
    *lo = MIN(total, g * i / n * grain);
    *hi = MIN(total, g * (i + 1) / n * grain);
}
#endif
