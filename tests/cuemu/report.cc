/* report.cc - settings, the random numbers of the order, and reports. */
#include "emu.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

emu_state_all emu;

uint64_t emu_random(void) /* splitmix64 */
{
    uint64_t z = emu.random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *s = getenv(name);
    return s && *s ? strtoull(s, nullptr, 0) : otherwise;
}

static void settings_read(void)
{
    emu_settings *s = &emu.set;
    s->devices = (int)env_number("CUEMU_DEVICES", EMU_DEVICES);
    if (s->devices < 0 || s->devices > EMU_DEVICES) s->devices = EMU_DEVICES;
    s->memory = env_number("CUEMU_MEM", (uint64_t)4 << 30);
    s->sms = (int)env_number("CUEMU_SMS", 4);
    s->capability = (int)env_number("CUEMU_CAPABILITY", 80);
    s->peer_possible = env_number("CUEMU_PEER", 1) != 0;
    s->fail_alloc = (unsigned)env_number("CUEMU_FAIL_ALLOC", 0);
    s->fail_launch = (unsigned)env_number("CUEMU_FAIL_LAUNCH", 0);
    s->fail_copy = (unsigned)env_number("CUEMU_FAIL_COPY", 0);
    s->fail_on = -1;
    s->queue = (unsigned)env_number("CUEMU_QUEUE", 0);
    s->watchdog = (int)env_number("CUEMU_WATCHDOG", 20);
    s->quiet = env_number("CUEMU_QUIET", 0) != 0;
    s->loose = s->bad_wgmma = false;
    s->peer_fault = CUEMU_PEER_OK;
    s->peer_fault_n = 0;
    if (const char *f = getenv("CUEMU_PEER_FAULT")) {
        const char *colon = strchr(f, ':');
        s->peer_fault = !strncmp(f, "drop", 4)   ? CUEMU_PEER_DROP
                        : !strncmp(f, "zero", 4) ? CUEMU_PEER_ZERO
                        : !strncmp(f, "flip", 4) ? CUEMU_PEER_FLIP
                        : !strncmp(f, "load", 4) ? CUEMU_PEER_LOAD
                                                 : CUEMU_PEER_OK;
        s->peer_fault_n = colon ? (unsigned)strtoul(colon + 1, nullptr, 0) : 0;
    }
    if (const char *d = getenv("CUEMU_DELAY")) {
        const char *colon = strchr(d, ':');
        const int device = atoi(d);
        if (colon && device >= 0 && device < EMU_DEVICES) emu.device[device].delay = strtoull(colon + 1, nullptr, 0);
    }
}

static void state_clear(uint64_t seed)
{
    emu.seed = seed;
    emu.random = seed * 0x2545f4914f6cdd1du;
    emu.now = 1000000000;
    emu.events = emu.idle = emu.waited = emu.switches = emu.n_allocs = emu.n_launches = emu.n_waits = emu.n_wgmmas = 0;
    emu.jump = 1000;
    emu.reports = 0;
    emu.smem_allowed.clear();
    emu.first_report.clear();
    for (emu_device &d : emu.device) d = emu_device();
    emu.view = -1;
    settings_read();
}

void emu_start(void)
{
    static bool started;
    if (started) return;
    started = true;
    state_clear(env_number("CUEMU_SEED", 1));
    emu_mem_init();
    check_init();
}

void cuemu_reset(uint64_t seed)
{
    emu_start();
    for (emu_device &d : emu.device)
        while (!d.launches.empty()) emu_kill(d.launches.back(), cudaErrorLaunchFailure);
    for (CUstream_st *s : emu.streams) s->queue.clear(); /* whoever holds a stream may still destroy it */
    state_clear(seed);
    emu_mem_reset();
    check_reset();
}

uint64_t cuemu_seed(void) { return emu_start(), emu.seed; }
void cuemu_set_devices(int n) { emu_start(), emu.set.devices = n < 0 ? 0 : n > EMU_DEVICES ? EMU_DEVICES : n; }
void cuemu_set_sms(int n) { emu_start(), emu.set.sms = n; }
void cuemu_set_capability(int v) { emu_start(), emu.set.capability = v; }
void cuemu_set_bad_wgmma(bool bad) { emu_start(), emu.set.bad_wgmma = bad; }
uint64_t cuemu_wgmmas(void) { return emu.n_wgmmas; }
void cuemu_set_memory(size_t bytes) { emu_start(), emu.set.memory = bytes; }
void cuemu_set_peer_possible(bool possible) { emu_start(), emu.set.peer_possible = possible; }
void cuemu_set_fail_alloc(unsigned n) { emu_start(), emu.set.fail_alloc = n; }
void cuemu_set_fail_launch(unsigned n) { emu_start(), emu.set.fail_launch = n, emu.set.fail_on = -1; }
void cuemu_set_fail_launch_on(int device, unsigned n) { cuemu_set_fail_launch(n), emu.set.fail_on = device; }
void cuemu_set_queue(unsigned n) { emu_start(), emu.set.queue = n; }
void cuemu_set_fail_copy(unsigned n) { emu_start(), emu.set.fail_copy = n; }
bool cuemu_copy_failed(void) { return emu.set.fail_copy == 0; }
void cuemu_set_watchdog(int seconds) { emu_start(), emu.set.watchdog = seconds; }
void cuemu_set_quiet(bool quiet) { emu_start(), emu.set.quiet = quiet; }
void cuemu_set_loose(bool loose) { emu_start(), emu.set.loose = loose; }
void cuemu_set_delay(int device, uint64_t ns) { emu_start(), emu.device[device].delay = ns; }
void cuemu_set_peer_fault(cuemu_peer_fault kind, unsigned n)
{
    emu_start();
    emu.set.peer_fault = kind;
    emu.set.peer_fault_n = n;
}
unsigned cuemu_report_count(void) { return emu.reports; }
const char *cuemu_report_text(void) { return emu.first_report.c_str(); }
uint64_t cuemu_allocs(void) { return emu.n_allocs; }
uint64_t cuemu_launches(void) { return emu.n_launches; }
uint64_t cuemu_time(void) { return emu.now; }
uint64_t cuemu_waits(void) { return emu.n_waits; }
uint64_t cuemu_switches(void) { return emu.switches; }
size_t cuemu_live_bytes(void) { return emu_live_bytes(); }

bool cuemu_peer_fault_was(void) { return emu.set.peer_fault_n > ~0u / 2; }
bool emu_peer_fault_hits(bool load)
{
    if (emu.set.peer_fault == CUEMU_PEER_OK || (emu.set.peer_fault == CUEMU_PEER_LOAD) != load) return false;
    if (emu.set.peer_fault_n == 0) return true;
    if (--emu.set.peer_fault_n > 0) return false;
    emu.set.peer_fault_n = ~0u; /* it was this one only */
    return true;
}

std::string emu_where(const emu_thread *t)
{
    char s[256];
    const emu_block *b = t->block;
    snprintf(s, sizeof s, "kernel %s, device %d, block (%u,%u,%u), thread (%u,%u,%u)", b->launch->name.c_str(), b->launch->device,
             b->idx.x, b->idx.y, b->idx.z, t->tid.x, t->tid.y, t->tid.z);
    return s;
}

static void report_add(const std::string &text)
{
    char seed[48];
    snprintf(seed, sizeof seed, " (CUEMU_SEED=%llu)", (unsigned long long)emu.seed);
    const std::string line = "cuemu: " + text + seed;
    if (emu.reports++ == 0) emu.first_report = line;
    if (!emu.set.quiet && emu.reports <= 50) fprintf(stderr, "%s\n", line.c_str());
}

static std::string format(const char *fmt, va_list ap)
{
    char s[1024];
    vsnprintf(s, sizeof s, fmt, ap);
    return s;
}

void emu_report(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    std::string text = format(fmt, ap);
    va_end(ap);
    if (emu.cur) text += " [" + emu_where(emu.cur) + "]";
    report_add(text);
}

void emu_fail(cudaError_t code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const std::string text = format(fmt, ap) + " [" + emu_where(emu.cur) + "]";
    va_end(ap);
    report_add(text);
    emu.cur->block->launch->killed = true;
    emu.cur->block->launch->code = code;
    emu_abandon();
}
