/* cpus.c - see cpus.h. A file that is missing or makes no sense says nothing. */
#include "cpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PATH_ROOM = 4096, LINE_ROOM = 4096 };

/* The first line of a file without its end; false: none. */
static bool first_line(const char *path, char *line, size_t room)
{
    FILE *f = fopen(path, "re");
    bool ok = f && fgets(line, (int)room, f);
    if (f) fclose(f);
    if (ok) line[strcspn(line, "\n")] = 0;
    return ok;
}

/* ---- quota ---- */

/* The CPUs of quota microseconds in every period, rounded up; 0: no limit. */
static uint32_t quota_cpus(long long quota, long long period)
{
    if (quota <= 0 || period <= 0 || quota / period >= CPUS_MAX) return 0;
    return (uint32_t)(quota / period + (quota % period != 0));
}

static uint32_t group_quota(const char *dir, bool v2)
{
    char path[PATH_ROOM + 32], line[64];
    long long quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/%s", dir, v2 ? "cpu.max" : "cpu.cfs_quota_us");
    if (!first_line(path, line, sizeof line)) return 0;
    if (v2) return sscanf(line, "%lld %lld", &quota, &period) == 2 ? quota_cpus(quota, period) : 0; /* "max": no number */
    quota = atoll(line); /* -1: no limit */
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
    return first_line(path, line, sizeof line) ? quota_cpus(quota, atoll(line)) : 0;
}

/*
 * The group `group` ("/a/b") below the mount point, and all above it. In a container /proc may name the group as the host sees it
 * while the mount shows the container's own as its root: folders that are not there say nothing, the root is always looked at.
 */
static void group_walk(cpus *c, const char *mount, const char *group, bool v2)
{
    char dir[PATH_ROOM];
    size_t root = strlen(mount);
    int n = snprintf(dir, sizeof dir, "%s%s", mount, strstr(group, "/..") ? "" : group);
    if (n < 0 || (size_t)n >= sizeof dir) return;
    for (;;) {
        uint32_t q = group_quota(dir, v2);
        if (q && (c->quota == 0 || q < c->quota)) c->quota = q;
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < root) return;
        *slash = 0;
    }
}

static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; p; p = strchr(p, ',')) {
        p += *p == ',';
        if (strncmp(p, word, n) == 0 && (p[n] == ',' || p[n] == 0)) return true;
    }
    return false;
}

/* Lines of /proc/self/cgroup: "0::/group" (v2), "4:cpu,cpuacct:/group" (v1). */
static void read_quota(cpus *c, const char *root)
{
    char path[PATH_ROOM], line[LINE_ROOM];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *kind = strchr(line, ':'), *group = kind ? strchr(kind + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        kind++;
        bool v2 = *kind == 0;
        if (!v2 && !has_word(kind, "cpu")) continue;
        snprintf(path, sizeof path, "%s/sys/fs/cgroup%s%s", root, v2 ? "" : "/", kind);
        group_walk(c, path, group, v2);
        if (v2 || strcmp(kind, "cpu") == 0) continue;
        snprintf(path, sizeof path, "%s/sys/fs/cgroup/cpu", root); /* where the mount is named by one controller only */
        group_walk(c, path, group, v2);
    }
    if (f) fclose(f);
}

/* ---- nodes ---- */

/* The next run of a list, [*lo, *hi); *p moves behind it. */
static bool list_next(const char **p, uint32_t *lo, uint32_t *hi)
{
    char *end;
    unsigned long a = strtoul(*p, &end, 10), b = a;
    if (end == *p) return false;
    if (*end == '-') {
        const char *second = end + 1;
        b = strtoul(second, &end, 10);
        if (end == second) return false;
    }
    if (b < a || a >= CPUS_MAX) return false;
    *lo = (uint32_t)a;
    *hi = (uint32_t)MIN(b + 1, (unsigned long)CPUS_MAX);
    *p = *end == ',' ? end + 1 : end;
    return true;
}

/* A node of the CPUs in `set` that no node had before. Where there are more nodes than room, the last ones are one. */
static void add_node(cpus *c, const cpu_set_t *set, cpu_set_t *left)
{
    uint32_t before = c->n;
    for (uint32_t i = 0; i < CPUS_MAX; i++)
        if (CPU_ISSET(i, set) && CPU_ISSET(i, left)) {
            CPU_CLR(i, left);
            c->id[c->n++] = (uint16_t)i;
        }
    if (c->n == before) return;
    if (c->n_nodes < CPUS_NODES) c->n_nodes++;
    c->first[c->n_nodes] = (uint16_t)c->n;
}

static void read_node(cpus *c, const char *root, uint32_t node, cpu_set_t *left)
{
    char path[PATH_ROOM], line[LINE_ROOM];
    cpu_set_t set;
    uint32_t lo, hi;
    CPU_ZERO(&set);
    snprintf(path, sizeof path, "%s/sys/devices/system/node/node%u/cpulist", root, node);
    if (!first_line(path, line, sizeof line)) return;
    for (const char *p = line; list_next(&p, &lo, &hi);)
        for (; lo < hi; lo++) CPU_SET(lo, &set);
    add_node(c, &set, left);
}

void cpus_read(cpus *c, const char *root, const cpu_set_t *allowed)
{
    char path[PATH_ROOM], line[LINE_ROOM];
    cpu_set_t left = *allowed;
    uint32_t lo, hi;
    *c = (cpus){0};
    snprintf(path, sizeof path, "%s/sys/devices/system/node/online", root);
    if (first_line(path, line, sizeof line))
        for (const char *p = line; list_next(&p, &lo, &hi);)
            for (; lo < hi; lo++) read_node(c, root, lo, &left);
    add_node(c, &left, &left); /* what no node has */
    c->n_nodes = MAX(c->n_nodes, 1u);
    read_quota(c, root);
}

void cpus_now(cpus *c)
{
    cpu_set_t set;
    CPU_ZERO(&set); /* more CPUs than a set can hold: none is known by number, and nothing is placed */
    bool known = sched_getaffinity(0, sizeof set, &set) == 0;
    cpus_read(c, "", &set);
    long online = known ? 0 : sysconf(_SC_NPROCESSORS_ONLN);
    if (online > 0 && (c->quota == 0 || c->quota > online)) c->quota = (uint32_t)online;
}

uint32_t cpus_count(const cpus *c)
{
    if (c->n == 0) return MAX(c->quota, 1u);
    return c->quota ? MIN(c->quota, c->n) : c->n;
}

/* ---- placement ---- */

/* The nodes of a rank as runs of id: one, or several where there are more nodes than ranks. */
static void rank_cpus(const cpus *c, uint32_t rank, uint32_t n_ranks, uint32_t *lo, uint32_t *hi)
{
    uint32_t a = rank * c->n_nodes / n_ranks, b = (rank + 1) * c->n_nodes / n_ranks;
    *lo = c->first[a];
    *hi = c->first[MAX(b, a + 1)];
}

/* No node gets more threads than it has CPUs. */
static bool ranks_fit(const cpus *c, uint32_t n_threads, uint32_t n_ranks)
{
    for (uint32_t r = 0; r < n_ranks; r++) {
        uint32_t lo, hi, other, unused, threads = 0;
        rank_cpus(c, r, n_ranks, &lo, &hi);
        for (uint32_t o = 0; o < n_ranks; o++) {
            rank_cpus(c, o, n_ranks, &other, &unused);
            if (other == lo) threads += n_threads * (o + 1) / n_ranks - n_threads * o / n_ranks;
        }
        if (threads > hi - lo) return false;
    }
    return true;
}

bool cpus_place(const cpus *c, uint32_t n_threads, uint32_t n_ranks, uint32_t thread, uint32_t *lo, uint32_t *hi)
{
    uint32_t r = 0;
    if (c->n_nodes < 2 || n_ranks < 2 || n_threads > cpus_count(c) || thread >= n_threads) return false;
    if (!ranks_fit(c, n_threads, n_ranks)) return false;
    while (thread >= n_threads * (r + 1) / n_ranks) r++;
    rank_cpus(c, r, n_ranks, lo, hi);
    return true;
}

bool cpus_take(const cpus *c, uint32_t lo, uint32_t hi, cpu_set_t *was)
{
    cpu_set_t want;
    if (sched_getaffinity(0, sizeof *was, was) != 0) return false;
    CPU_ZERO(&want);
    for (uint32_t i = lo; i < hi; i++)
        if (CPU_ISSET(c->id[i], was)) CPU_SET(c->id[i], &want);
    return CPU_COUNT(&want) > 0 && sched_setaffinity(0, sizeof want, &want) == 0;
}

void cpus_give_back(const cpu_set_t *was) { (void)sched_setaffinity(0, sizeof *was, was); }
