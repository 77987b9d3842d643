/*
 * cuemu_api.h - what a test may ask of the emulator; plain C. Programs that only run on it use the environment instead:
 *
 *   CUEMU_SEED=n           order of everything (default 1); printed in every report
 *   CUEMU_DEVICES=n        virtual devices, 0 to 8 (default 8)          CUEMU_MEM=bytes   memory of each (default 4 GiB)
 *   CUEMU_SMS=n            blocks resident on a device (default 4)
 *   CUEMU_CAPABILITY=80    compute capability of the devices, 90: 9.0, with its shared memory and wgmma
 *   CUEMU_PEER=0           no peer access between devices
 *   CUEMU_FAIL_ALLOC=n     the n-th allocation of device or pinned memory fails (1 is the first)
 *   CUEMU_FAIL_LAUNCH=n    the n-th launch fails
 *   CUEMU_QUEUE=n          a stream holds n unfinished operations; who gives it more waits, and keeps all others out of the runtime
 *                          meanwhile (default 0: no bound)
 *   CUEMU_FAIL_COPY=n      the n-th asynchronous copy is refused
 *   CUEMU_PEER_FAULT=drop|zero|flip[:n]  writes of one device to another's memory are lost, arrive as zeros, or with one bit
 *                          turned: the n-th only, or all of them. Copies between devices, atomics, st_* and, in the
 *                          checked build, plain stores of kernels. =load[:n]: what plain loads of kernels bring from another
 *                          device has one bit turned (checked build).
 *   CUEMU_DELAY=dev:ns     every kernel of the device starts ns of virtual time late
 *   CUEMU_WATCHDOG=s       seconds of real time that one thread may run without waiting for anything (default 20; 0: off)
 *   CUEMU_QUIET=1          reports are not printed
 *
 * A report ends the launch that it is about with a sticky error of the device, as a real fault would.
 */
#ifndef CUEMU_API_H
#define CUEMU_API_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { CUEMU_PEER_OK, CUEMU_PEER_DROP, CUEMU_PEER_ZERO, CUEMU_PEER_FLIP, CUEMU_PEER_LOAD } cuemu_peer_fault;

/* Frees everything, forgets errors and reports, and starts anew with the settings of the environment and this seed. */
void cuemu_reset(uint64_t seed);
uint64_t cuemu_seed(void);
void cuemu_set_devices(int n);
void cuemu_set_sms(int n);
void cuemu_set_capability(int v);
void cuemu_set_bad_wgmma(bool bad);      /* its sums are wrong by one */
void cuemu_set_memory(size_t bytes);
void cuemu_set_peer_possible(bool possible);
void cuemu_set_fail_alloc(unsigned n);  /* the n-th from now; 0: none */
void cuemu_set_fail_launch(unsigned n);
void cuemu_set_fail_launch_on(int device, unsigned n); /* of the launches on this device */
void cuemu_set_queue(unsigned n);
void cuemu_set_fail_copy(unsigned n);
bool cuemu_copy_failed(void);            /* none is left to fail */
void cuemu_set_peer_fault(cuemu_peer_fault kind, unsigned n); /* the n-th from now; 0: all */
bool cuemu_peer_fault_was(void);         /* the n-th write, or load, has been */
void cuemu_set_delay(int device, uint64_t ns);
void cuemu_set_watchdog(int seconds);
void cuemu_set_quiet(bool quiet);
/* After a fault that was injected, what still runs may compute with anything, if only its values are thrown away: while this is set,
 * the checked build does not report races and reads of what nobody wrote. */
void cuemu_set_loose(bool loose);

unsigned cuemu_report_count(void);       /* since the start or cuemu_reset */
const char *cuemu_report_text(void);     /* the first of them, or "" */
bool cuemu_checked(void);                /* kernels tell of every access (see check.cc) */
size_t cuemu_live_bytes(void);           /* device and pinned memory that is allocated */
/* Calls so far, for counting loops: that allocate device or pinned memory; that launch a kernel or a graph, or put one into a graph;
 * that wait for a device. */
uint64_t cuemu_allocs(void);
uint64_t cuemu_launches(void);
uint64_t cuemu_time(void);               /* virtual nanoseconds, which stand nearly still but for waiting */
uint64_t cuemu_waits(void);
uint64_t cuemu_wgmmas(void);             /* of a warp each */
uint64_t cuemu_switches(void);           /* of threads: equal for equal seeds */

#ifdef __cplusplus
}
#endif
#endif
