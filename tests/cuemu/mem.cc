/*
 * mem.cc - arenas of devices, pinned, shared and stack memory; what a wrong access leads to.
 *
 * A device's arena is a memory file mapped twice: at its address with the protection of the present view, and elsewhere
 * (ALIAS) always open, for copies. An allocation is opened when it is first touched by a view that may use it, so that a change
 * of view costs only what was touched. Accesses that nothing allows, threads that run on without waiting and stacks that
 * overflow end here, in signal handlers: the launch is ended, the scheduler goes on.
 */
#include "emu.h"

#include <pthread.h>
#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

static const uintptr_t ALIAS = 16 * ARENA_SIZE; /* from the arena to its second mapping */

static int files[EMU_DEVICES];
static uintptr_t next_at[EMU_ARENAS];
static uint32_t *owner[EMU_ARENAS];       /* by page of the arena: 1 + index into allocs */
static std::vector<emu_alloc *> allocs, open_now;
static std::vector<int> shared_free;
static int shared_made;

static void *map_at(uintptr_t at, size_t size, int prot, int fd)
{
    const int flags = MAP_NORESERVE | MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
    void *p = mmap(reinterpret_cast<void *>(at), size, prot, flags, fd, 0);
    if (p != MAP_FAILED) return p;
    perror("cuemu: reserving addresses");
    exit(99);
}

void emu_mem_init(void)
{
    for (int i = 0; i < EMU_ARENAS; i++) {
        int fd = -1;
        if (i < EMU_DEVICES) {
            fd = memfd_create("cuemu", MFD_CLOEXEC);
            if (fd < 0 || ftruncate(fd, (off_t)ARENA_SIZE)) {
                perror("cuemu: memory file");
                exit(99);
            }
            files[i] = fd;
            map_at(arena_at(i) + ALIAS, ARENA_SIZE, PROT_READ | PROT_WRITE, fd);
        }
        map_at(arena_at(i), ARENA_SIZE, PROT_NONE, fd);
        next_at[i] = arena_at(i);
        void *t = mmap(nullptr, ARENA_SIZE / EMU_PAGE * sizeof(uint32_t), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        owner[i] = static_cast<uint32_t *>(t);
    }
}

static void alloc_close(emu_alloc *a)
{
    mprotect(reinterpret_cast<void *>(a->base), a->span, PROT_NONE);
    if (a->arena < EMU_DEVICES)
        fallocate(files[a->arena], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(a->base - arena_at(a->arena)), (off_t)a->span);
    else
        madvise(reinterpret_cast<void *>(a->base), a->span, MADV_DONTNEED);
    a->live = a->open = false;
}

void emu_mem_reset(void)
{
    open_now.clear();
    for (emu_alloc *a : allocs)
        if (a->live) alloc_close(a);
}

emu_alloc *emu_find(uintptr_t a)
{
    const int arena = arena_of(a);
    if (arena < 0 || arena > EMU_PINNED) return nullptr;
    const uint32_t i = owner[arena][(a - arena_at(arena)) / EMU_PAGE];
    return i ? allocs[i - 1] : nullptr;
}

cudaError_t emu_malloc(int arena, size_t size, void **out)
{
    *out = nullptr;
    emu.n_allocs++;
    if (emu.set.fail_alloc && --emu.set.fail_alloc == 0) return cudaErrorMemoryAllocation;
    if (size == 0) return cudaSuccess;
    if (arena < EMU_DEVICES && (size > emu.set.memory || emu.device[arena].used + size > emu.set.memory)) return cudaErrorMemoryAllocation;
    const size_t slack = (size + 255) / 256 * 256, span = (slack + EMU_PAGE - 1) / EMU_PAGE * EMU_PAGE;
    if (span + EMU_PAGE > arena_at(arena) + ARENA_SIZE - next_at[arena]) {
        emu_report("the addresses of device %d are used up: freed ones are not used again", arena);
        return cudaErrorMemoryAllocation;
    }
    emu_alloc *a = new emu_alloc();
    a->base = next_at[arena];
    a->span = span;
    a->size = size;
    a->at = a->base + span - slack;
    a->arena = arena;
    a->live = true;
    next_at[arena] += span + EMU_PAGE;
    allocs.push_back(a);
    for (uintptr_t p = a->base; p <= a->base + span; p += EMU_PAGE) owner[arena][(p - arena_at(arena)) / EMU_PAGE] = (uint32_t)allocs.size();
    if (arena == EMU_PINNED) mprotect(reinterpret_cast<void *>(a->base), span, PROT_READ | PROT_WRITE);
    else emu.device[arena].used += size;
    memset(emu_alias(reinterpret_cast<void *>(a->base)), 0xff, span);
    check_alloc(a);
    *out = reinterpret_cast<void *>(a->at);
    return cudaSuccess;
}

cudaError_t emu_release(int arena, void *p)
{
    emu_alloc *a = emu_find((uintptr_t)p);
    if (!a || !a->live || a->at != (uintptr_t)p || (arena == EMU_PINNED) != (a->arena == EMU_PINNED)) {
        emu_report("free of %p: %s", p, emu_describe((uintptr_t)p, -1).c_str());
        return cudaErrorInvalidValue;
    }
    if (a->open) open_now.erase(std::find(open_now.begin(), open_now.end(), a));
    if (a->arena < EMU_DEVICES) emu.device[a->arena].used -= a->size;
    alloc_close(a);
    check_free(a);
    return cudaSuccess;
}

char *emu_alias(const void *p)
{
    const int arena = arena_of((uintptr_t)p);
    return reinterpret_cast<char *>((uintptr_t)p + (arena >= 0 && arena < EMU_DEVICES ? ALIAS : 0));
}

size_t emu_live_bytes(void)
{
    size_t n = 0;
    for (const emu_alloc *a : allocs) n += a->live ? a->size : 0;
    return n;
}

/* ---- views ---- */
static bool view_allows(int view, int arena)
{
    return view >= 0 && (view == arena || emu.device[view].peers >> arena & 1);
}

void emu_view(int view)
{
    if (view == emu.view) return;
    emu.view = view;
    size_t kept = 0;
    for (emu_alloc *a : open_now) {
        if (view_allows(view, a->arena)) {
            open_now[kept++] = a;
            continue;
        }
        mprotect(reinterpret_cast<void *>(a->base), a->span, PROT_NONE);
        a->open = false;
    }
    open_now.resize(kept);
}

static bool view_open(uintptr_t at)
{
    emu_alloc *a = emu_find(at);
    if (!a || !a->live || a->open || a->arena >= EMU_DEVICES || at >= a->base + a->span || !view_allows(emu.view, a->arena)) return false;
    if (mprotect(reinterpret_cast<void *>(a->base), a->span, PROT_READ | PROT_WRITE)) return false;
    a->open = true;
    open_now.push_back(a);
    return true;
}

std::string emu_describe(uintptr_t at, int view)
{
    char s[256];
    const int arena = arena_of(at);
    const emu_alloc *a = emu_find(at);
    if (arena < 0) return at < 4096 ? "null pointer" : "memory of the host";
    if (arena == EMU_SHARED) return "shared memory";
    if (arena == EMU_STACKS) return "local memory of a thread";
    char owner_name[32] = "pinned host memory";
    if (arena < EMU_DEVICES) snprintf(owner_name, sizeof owner_name, "device %d", arena);
    if (!a) return std::string(owner_name) + ", never allocated";
    const char *peer = view >= 0 && arena < EMU_DEVICES && !view_allows(view, arena) ? ", no peer access" : view < 0 && arena < EMU_DEVICES ? ", not the host's" : "";
    if (at < a->at) snprintf(s, sizeof s, "%s, %zu before an allocation of %zu bytes%s", owner_name, (size_t)(a->at - at), a->size, peer);
    else snprintf(s, sizeof s, "%s, %s allocation of %zu bytes at offset %zu%s", owner_name, a->live ? "live" : "freed", a->size, (size_t)(at - a->at), peer);
    return s;
}

/* ---- shared memory: a slot a resident block; the static part, a closed page, the dynamic part, a closed page ---- */
int emu_shared_slot(void)
{
    if (!shared_free.empty()) {
        const int slot = shared_free.back();
        shared_free.pop_back();
        return slot;
    }
    const uintptr_t at = arena_at(EMU_SHARED) + (uintptr_t)shared_made * EMU_SHARED_STRIDE;
    mprotect(reinterpret_cast<void *>(at), EMU_STATIC_SHARED, PROT_READ | PROT_WRITE);
    mprotect(reinterpret_cast<void *>(at + EMU_SHARED_STRIDE - EMU_PAGE - 256 * 1024), 256 * 1024, PROT_READ | PROT_WRITE);
    return shared_made++;
}
void emu_shared_return(int slot) { shared_free.push_back(slot); }

/* ---- signals ---- */
static char fault_text[1024]; /* what emu_fault_end reports; one fault at a time */
static cudaError_t fault_code;
static int watch_left;
static pthread_t watched; /* the thread of the host that drives */
static uint64_t watch_switches;

/* Where a thread goes on whose access failed: outside the handler, on its own stack. */
static void fault_end(void) { emu_fail(fault_code, "%s", fault_text); }

static void thread_divert(ucontext_t *u)
{
    uintptr_t sp = (uintptr_t)u->uc_mcontext.gregs[REG_RSP];
    if (!emu_stack_has(emu.cur, sp - 16384)) sp = emu_stack_top(emu.cur);
    u->uc_mcontext.gregs[REG_RSP] = (greg_t)((sp - 1024) / 16 * 16 - 8);
    u->uc_mcontext.gregs[REG_RIP] = (greg_t)(uintptr_t)fault_end;
}

static void on_segv(int sig, siginfo_t *info, void *context)
{
    ucontext_t *u = static_cast<ucontext_t *>(context);
    const uintptr_t at = (uintptr_t)info->si_addr;
    const bool host = arena_of((uintptr_t)u->uc_mcontext.gregs[REG_RSP]) != EMU_STACKS; /* this thread, while another may drive */
    if (sig == SIGSEGV && !host && view_open(at)) return;
    const char *what = u->uc_mcontext.gregs[REG_ERR] & 2 ? "write" : "read";
    const bool general = u->uc_mcontext.gregs[REG_TRAPNO] == 13; /* no address: misaligned vector access, or not canonical */
    if (host) {
        if (arena_of(at) >= 0) emu_report("the host's %s of 0x%llx: %s", what, (unsigned long long)at, emu_describe(at, -1).c_str());
        signal(sig, SIG_DFL); /* the instruction runs again and ends the process */
        return;
    }
    fault_code = general ? cudaErrorMisalignedAddress : cudaErrorIllegalAddress;
    if (general) snprintf(fault_text, sizeof fault_text, "misaligned access, or an address that cannot be");
    else if (emu_stack_guard(at)) snprintf(fault_text, sizeof fault_text, "stack overflow: more than %d bytes of local memory", EMU_STACK);
    else
        snprintf(fault_text, sizeof fault_text, "illegal %s of 0x%llx: %s", what, (unsigned long long)at, emu_describe(at, emu.view).c_str());
    thread_divert(u);
}

static void on_alarm(int sig, siginfo_t *info, void *context)
{
    (void)sig, (void)info;
    ucontext_t *u = static_cast<ucontext_t *>(context);
    if (!pthread_equal(pthread_self(), watched)) { /* the signal is the process's, any thread may get it */
        pthread_kill(watched, SIGALRM);
        return;
    }
    if (watch_switches != emu.switches || !emu.cur) {
        watch_switches = emu.switches;
        watch_left = emu.set.watchdog;
        return;
    }
    if (--watch_left > 0 || !emu_stack_has(emu.cur, (uintptr_t)u->uc_mcontext.gregs[REG_RSP])) return;
    fault_code = cudaErrorLaunchTimeout;
    snprintf(fault_text, sizeof fault_text, "watchdog: the thread ran for %d s without waiting for anything", emu.set.watchdog);
    thread_divert(u);
}

void emu_handlers(void)
{
    static thread_local char *alternate;
    if (!alternate) {
        stack_t ss = {};
        alternate = static_cast<char *>(mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        ss.ss_sp = alternate;
        ss.ss_size = 65536;
        sigaltstack(&ss, nullptr);
    }
    struct sigaction sa = {};
    sa.sa_sigaction = on_segv;
    sa.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &sa, nullptr); /* each time: test frames install their own */
    sigaction(SIGBUS, &sa, nullptr);
    sa.sa_sigaction = on_alarm;
    sa.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigaction(SIGALRM, &sa, nullptr);
}

void emu_watchdog(bool on)
{
    if (emu.set.watchdog <= 0) return;
    const struct timeval second = {on ? 1 : 0, 0};
    const struct itimerval timer = {second, second};
    watch_left = emu.set.watchdog;
    watched = pthread_self();
    setitimer(ITIMER_REAL, &timer, nullptr);
}
