/*
 * cpus.h - the CPUs that this process may use: how many, on which nodes of memory, and which of them a thread of a team gets.
 *
 * Read from the calling thread's affinity mask and from files of the kernel below a root folder, which a test can replace:
 *   /sys/devices/system/node/{online,node<N>/cpulist}   nodes; without these files all CPUs are one node
 *   /proc/self/cgroup, /sys/fs/cgroup/...               the CPU quota of the process's own control group and of all above it
 *                                                       (v2: cpu.max; v1: cpu.cfs_quota_us and cpu.cfs_period_us)
 * Lists of CPUs are written as "0-3,8,10-11".
 *
 * Placement never leaves the mask: where ranks run on several nodes, the threads of a rank share the CPUs of its node (or nodes), if
 * these suffice for all ranks. All other threads are left to the kernel: a CPU for each thread was no faster on a quiet machine, and
 * slower or faster on a busy one (docs/performance.md).
 */
#ifndef TESS_CPUS_H
#define TESS_CPUS_H
#include <sched.h>

#include "base.h"

enum { CPUS_MAX = CPU_SETSIZE, CPUS_NODES = 64 };
typedef struct {
    uint32_t n, n_nodes;             /* CPUs of the mask; nodes that have one of them (at least 1) */
    uint32_t quota;                  /* CPUs that control groups grant, rounded up; 0: no limit */
    uint16_t id[CPUS_MAX];           /* [n] numbers of the CPUs, node after node, ascending in a node */
    uint16_t first[CPUS_NODES + 1];  /* node i has id[first[i]] to id[first[i + 1] - 1] */
} cpus;

/* root: "" for this machine. */
void cpus_read(cpus *c, const char *root, const cpu_set_t *allowed);
void cpus_now(cpus *c); /* of the calling thread */
/* As many threads as can run at once: the mask, or less by quota; at least 1. */
uint32_t cpus_count(const cpus *c);
/* Which CPUs thread `thread` of a team gets: id[*lo] to id[*hi - 1]. Thread n * r / n_ranks is the first of rank r. False: left to the
 * kernel, as all threads of the team are then. */
bool cpus_place(const cpus *c, uint32_t n_threads, uint32_t n_ranks, uint32_t thread, uint32_t *lo, uint32_t *hi);
/* The calling thread runs on these CPUs from now on, as far as its mask has them; *was is the mask until now. False: nothing changed. */
bool cpus_take(const cpus *c, uint32_t lo, uint32_t hi, cpu_set_t *was);
void cpus_give_back(const cpu_set_t *was);
#endif
