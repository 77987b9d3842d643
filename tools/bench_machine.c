/*
 * bench_machine.c - what the machine can do at this moment: read bandwidth of memory and multiply-adds per
 * second.
 *
 * Both are taken with as many threads as the model has, each running until a deadline; a rate is the sum of the
 * threads' own rates. Other programs on the machine thus slow down these figures as they slow down the model,
 * and a fraction of them means more than a figure alone.
 *
 * Read bandwidth: sums over a buffer of four times the last-level cache, each thread over its own part again and
 * again. Multiply-adds: independent chains in registers. f32 counts fused multiply-adds; int8 counts unsigned
 * times signed bytes summed in 32 bits, as kernels for quantized weights do it.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define TARGET(x) __attribute__((target(x)))
#endif

#include "bench.h"

enum { READ_NS = 40000000, MAC_NS = 15000000, CACHE_UNKNOWN = 32 << 20, BLOCK = 1 << 20 };
static const size_t max_buffer = (size_t)4 << 30;

/* Runs a batch of multiply-adds and returns how many. The compiler can not know `sink`, so the work has to be
 * done. */
typedef uint64_t (*mac_fn)(float *sink);

struct bench_machine {
    uint8_t *buffer;
    size_t bytes, cache;
    char cpu[128], flags[256];
    mac_fn f32, int8; /* NULL: not known */
};

/* ---- multiply-adds ---- */

enum { MAC_ROUNDS = 4000, CHAINS = 12 };
/* f32: acc = acc / 2 + a with a of 1 or 2 stays near 2a. With a = 0 it would sink below the normal range, where Intel's CPUs take a
 * hundred cycles for a sum. */
static float odd(float v) { return (float)((int)v & 1); }

#if defined(__x86_64__)
/* The compiler can not know the value behind it. */
#define OPAQUE(v) __asm__ volatile("" : "+x"(v))

TARGET("avx512f") static uint64_t f32_avx512(float *sink)
{
    __m512 acc[CHAINS], a = _mm512_set1_ps(1.0f + *sink), b = _mm512_set1_ps(0.5f);
    for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_set1_ps((float)i);
    for (int r = 0; r < MAC_ROUNDS; r++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_fmadd_ps(acc[i], b, a);
    for (int i = 1; i < CHAINS; i++) acc[0] = _mm512_add_ps(acc[0], acc[i]);
    *sink = odd(_mm512_cvtss_f32(acc[0]));
    return (uint64_t)MAC_ROUNDS * CHAINS * 16;
}

TARGET("avx2,fma") static uint64_t f32_avx2(float *sink)
{
    __m256 acc[CHAINS], a = _mm256_set1_ps(1.0f + *sink), b = _mm256_set1_ps(0.5f);
    for (int i = 0; i < CHAINS; i++) acc[i] = _mm256_set1_ps((float)i);
    for (int r = 0; r < MAC_ROUNDS; r++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) acc[i] = _mm256_fmadd_ps(acc[i], b, a);
    for (int i = 1; i < CHAINS; i++) acc[0] = _mm256_add_ps(acc[0], acc[i]);
    *sink = odd(_mm256_cvtss_f32(acc[0]));
    return (uint64_t)MAC_ROUNDS * CHAINS * 8;
}

TARGET("avx512f,avx512vnni") static uint64_t int8_avx512vnni(float *sink)
{
    __m512i acc[CHAINS], a = _mm512_set1_epi32((int)*sink), b = _mm512_set1_epi8(3);
    for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_set1_epi32(i);
    for (int r = 0; r < MAC_ROUNDS; r++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_dpbusd_epi32(acc[i], a, b);
    for (int i = 1; i < CHAINS; i++) acc[0] = _mm512_add_epi32(acc[0], acc[i]);
    *sink = (float)(_mm_cvtsi128_si32(_mm512_castsi512_si128(acc[0])) & 1);
    return (uint64_t)MAC_ROUNDS * CHAINS * 64;
}

TARGET("avx2,avxvnni") static uint64_t int8_avxvnni(float *sink)
{
    __m256i acc[CHAINS], a = _mm256_set1_epi32((int)*sink), b = _mm256_set1_epi8(3);
    for (int i = 0; i < CHAINS; i++) acc[i] = _mm256_set1_epi32(i);
    for (int r = 0; r < MAC_ROUNDS; r++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) acc[i] = _mm256_dpbusd_avx_epi32(acc[i], a, b);
    for (int i = 1; i < CHAINS; i++) acc[0] = _mm256_add_epi32(acc[0], acc[i]);
    *sink = (float)(_mm_cvtsi128_si32(_mm256_castsi256_si128(acc[0])) & 1);
    return (uint64_t)MAC_ROUNDS * CHAINS * 32;
}

/* Products of bytes are added in pairs, four such sums in 16 bits, then in 32 bits: nine instructions for 128
 * of them. */
TARGET("avx2") static uint64_t int8_avx2(float *sink)
{
    enum { SUMS = 4, FOLD = 4 };
    __m256i acc[SUMS], a = _mm256_set1_epi32((int)*sink), b = _mm256_set1_epi8(3), ones = _mm256_set1_epi16(1);
    for (int i = 0; i < SUMS; i++) acc[i] = _mm256_set1_epi32(i);
    for (int r = 0; r < MAC_ROUNDS; r++)
#pragma GCC unroll 4
        for (int i = 0; i < SUMS; i++) {
            __m256i s = _mm256_maddubs_epi16(a, b);
#pragma GCC unroll 4
            for (int j = 1; j < FOLD; j++) {
                OPAQUE(a); /* else the product would be taken out of the loop */
                s = _mm256_add_epi16(s, _mm256_maddubs_epi16(a, b));
            }
            OPAQUE(a);
            acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(s, ones));
        }
    for (int i = 1; i < SUMS; i++) acc[0] = _mm256_add_epi32(acc[0], acc[i]);
    *sink = (float)(_mm_cvtsi128_si32(_mm256_castsi256_si128(acc[0])) & 1);
    return (uint64_t)MAC_ROUNDS * SUMS * FOLD * 32;
}

static bool has_avxvnni(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1) && __builtin_cpu_supports("avx2");
}
#endif

/* Any machine: chains of four floats, which the compiler turns into the vectors of its target. */
static uint64_t f32_plain(float *sink)
{
    typedef float v4 __attribute__((vector_size(16)));
    v4 acc[CHAINS];
    const float a = 1.0f + *sink;
    for (int i = 0; i < CHAINS; i++) acc[i] = (v4){(float)i, 0, 1, 2};
    for (int r = 0; r < MAC_ROUNDS; r++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) {
#if defined(__FP_FAST_FMAF)
            for (int j = 0; j < 4; j++) acc[i][j] = __builtin_fmaf(acc[i][j], 0.5f, a);
#else
            acc[i] = acc[i] * 0.5f + a;
#endif
        }
    for (int i = 1; i < CHAINS; i++) acc[0] += acc[i];
    *sink = odd(acc[0][0]);
    return (uint64_t)MAC_ROUNDS * CHAINS * 4;
}

static void choose_macs(bench_machine *m)
{
    m->f32 = f32_plain;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) m->f32 = f32_avx512;
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) m->f32 = f32_avx2;
    if (__builtin_cpu_supports("avx512vnni")) m->int8 = int8_avx512vnni;
    else if (has_avxvnni()) m->int8 = int8_avxvnni;
    else if (__builtin_cpu_supports("avx2")) m->int8 = int8_avx2;
#endif
}

/* ---- threads ---- */

typedef struct {
    const bench_machine *m;
    pthread_barrier_t *gate;
    size_t lo, hi, at;        /* this thread's part of the buffer, and where the next sweep starts */
    double read, f32, int8;   /* per second */
    float sink;
} worker;

/* Sum of a block, read as four streams side by side: one stream alone keeps too few cache lines on the way. */
static uint64_t sum_block(const uint8_t *p)
{
    enum { STREAMS = 4, LINE = 2 }; /* LINE: vectors in a cache line */
    typedef uint64_t v4 __attribute__((vector_size(32), aligned(32), may_alias));
    const size_t quarter = BLOCK / STREAMS / sizeof(v4);
    const v4 *v = (const v4 *)(const void *)p;
    v4 s[STREAMS] = {{0}};
    for (size_t i = 0; i < quarter; i += LINE)
#pragma GCC unroll 4
        for (size_t j = 0; j < STREAMS; j++) s[j] += v[j * quarter + i] + v[j * quarter + i + 1];
    for (size_t j = 1; j < STREAMS; j++) s[0] += s[j];
    return s[0][0] + s[0][1] + s[0][2] + s[0][3];
}

static double read_rate(worker *w)
{
    uint64_t start = cli_now_ns(), now = start, bytes = 0, sum = 0;
    while (now - start < READ_NS) {
        sum += sum_block(w->m->buffer + w->at);
        w->at = w->at + BLOCK < w->hi ? w->at + BLOCK : w->lo;
        bytes += BLOCK;
        now = cli_now_ns();
    }
    w->sink = (float)(sum & 1);
    return (double)bytes / (double)(now - start) * 1e9;
}

static double mac_rate(mac_fn fn, float *sink)
{
    if (!fn) return 0;
    uint64_t start = cli_now_ns(), now = start, n = 0;
    for (; now - start < MAC_NS; now = cli_now_ns()) n += fn(sink);
    return (double)n / (double)(now - start) * 1e9;
}

static void *work(void *arg)
{
    worker *w = arg;
    pthread_barrier_wait(w->gate);
    w->read = read_rate(w);
    pthread_barrier_wait(w->gate);
    w->f32 = mac_rate(w->m->f32, &w->sink);
    pthread_barrier_wait(w->gate);
    w->int8 = mac_rate(w->m->int8, &w->sink);
    return NULL;
}

/* Runs the workers; false when a thread could not be started: then those that wait at the gate stay there. */
static bool run_team(worker *w, pthread_t *id, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        if (pthread_create(&id[i], NULL, work, &w[i]) != 0) return false;
    work(&w[0]);
    for (uint32_t i = 1; i < n; i++) pthread_join(id[i], NULL);
    return true;
}

int bench_machine_measure(bench_machine *m, uint32_t n_threads, bench_speed *out)
{
    size_t blocks = m->bytes / BLOCK;
    uint32_t n = n_threads < blocks ? n_threads : (uint32_t)blocks;
    worker *w = calloc(n, sizeof *w);
    pthread_t *id = calloc(n, sizeof *id);
    pthread_barrier_t *gate = malloc(sizeof *gate);
    int rc = w && id && gate && pthread_barrier_init(gate, NULL, n) == 0 ? 0 : bench_no_memory();
    *out = (bench_speed){0};
    for (uint32_t i = 0; !rc && i < n; i++) {
        w[i] = (worker){.m = m, .gate = gate, .lo = blocks * i / n * BLOCK, .hi = blocks * (i + 1) / n * BLOCK};
        w[i].at = w[i].lo;
    }
    if (!rc && !run_team(w, id, n)) {
        cli_error("cannot start %u threads", n);
        return CLI_EXIT_FAILED; /* nothing is freed, the threads at the gate use it; the program ends now */
    }
    for (uint32_t i = 0; !rc && i < n; i++) {
        out->read_gb_s += w[i].read * 1e-9;
        out->f32_gmac_s += w[i].f32 * 1e-9;
        out->int8_gmac_s += w[i].int8 * 1e-9;
    }
    if (!rc) pthread_barrier_destroy(gate);
    free(gate);
    free(w);
    free(id);
    return rc;
}

/* ---- what it is ---- */

static const char *const known_flags[] = {
    "avx",      "avx2",        "fma",         "f16c",        "avx_vnni", "avx512f",  "avx512bw",
    "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
    "asimd",    "asimdhp",     "asimddp",     "i8mm",        "bf16",     "sve",      "sve2"};

static void append(char *text, size_t cap, const char *word)
{
    size_t n = strlen(text);
    if (n + strlen(word) + 2 <= cap) snprintf(text + n, cap - n, "%s%s", n ? " " : "", word);
}

/* From the first processor of /proc/cpuinfo: its name, and those of its flags that kernels care for. */
static void read_cpuinfo(bench_machine *m)
{
    char line[8192];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(m->cpu, sizeof m->cpu, "unknown CPU");
    while (f && fgets(line, sizeof line, f) && line[0] != '\n') {
        char *value = strchr(line, ':');
        if (!value) continue;
        value += 1 + strspn(value + 1, " \t");
        value[strcspn(value, "\n")] = 0;
        if (strncmp(line, "model name", 10) == 0) snprintf(m->cpu, sizeof m->cpu, "%s", value);
        if (strncmp(line, "flags", 5) != 0 && strncmp(line, "Features", 8) != 0) continue;
        for (char *save, *word = strtok_r(value, " ", &save); word; word = strtok_r(NULL, " ", &save))
            for (size_t i = 0; i < sizeof known_flags / sizeof *known_flags; i++)
                if (strcmp(word, known_flags[i]) == 0) append(m->flags, sizeof m->flags, word);
    }
    if (f) fclose(f);
}

/* A virtual machine may tell the whole processor's cache through sysconf, and through sysfs the part that it
 * has. */
static size_t last_cache(void)
{
    unsigned long kb = 0;
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    bool read = f && fscanf(f, "%luK", &kb) == 1 && kb > 0;
    if (f) fclose(f);
    if (read) return (size_t)kb << 10;
    long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE), l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return l3 > 0 ? (size_t)l3 : l2 > 0 ? (size_t)l2 : CACHE_UNKNOWN;
}

int bench_machine_open(bench_machine **out)
{
    bench_machine *m = *out = calloc(1, sizeof *m);
    if (!m) return bench_no_memory();
    read_cpuinfo(m);
    choose_macs(m);
    m->cache = last_cache();
    m->bytes = m->cache < max_buffer / 4 ? m->cache * 4 : max_buffer;
    if (m->bytes < (size_t)64 << 20) m->bytes = (size_t)64 << 20;
    m->bytes = m->bytes / BLOCK * BLOCK;
    m->buffer = aligned_alloc(4096, m->bytes);
    if (!m->buffer) return bench_no_memory();
    memset(m->buffer, 1, m->bytes); /* pages that were never written would all be the one page of zeros */
    return 0;
}

void bench_machine_close(bench_machine *m)
{
    if (m) free(m->buffer);
    free(m);
}

const char *bench_machine_cpu(const bench_machine *m) { return m->cpu; }
const char *bench_machine_flags(const bench_machine *m) { return m->flags; }
size_t bench_machine_cache(const bench_machine *m) { return m->cache; }
