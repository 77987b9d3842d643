/*
 * comm_ops.h - kernels by which devices talk to each other; plain C, no CUDA header. lib/comm.c and lib/peers.c call them.
 *
 * The barrier of devices. Every device has a flag for every other one, a word that the other writes and it polls, in its own memory or,
 * where the other may not write that, in pinned memory of the host. Barriers are counted in memory of the device, so that the same launch, or
 * one in a graph, is another barrier each time. Barrier number `epoch` of a rank: code(epoch) goes to all its flags with release, then
 * its own are polled with acquire until each holds code(epoch), or code(epoch + 1): a peer may be one barrier ahead, never two, as it
 * needs our answer. Before that a flag holds code(epoch - 1). Anything else is damage on the way and
 * ends the wait like the deadline does: the codes of neighbours differ in many bits, so a word that was lost, zeroed or has a bit
 * wrong is not taken for another barrier. All flags start as code(0) = 0, epochs count from 1.
 *
 * A rank that gives up says why in its own record and raises `abort`, which ends the waits of all others at once. The host
 * looks when the streams are empty. It may raise abort itself.
 */
#ifndef TESS_COMM_OPS_H
#define TESS_COMM_OPS_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { COMM_MAX = 8 };
enum { COMM_OK = 0, COMM_ABORTED = 1, COMM_LATE = 2, COMM_DAMAGED = 3 };
typedef struct { uint32_t kind, peer, epoch, value; } comm_record; /* COMM_*; whom the rank waited for, and the flag's value */

typedef struct {
    uint32_t *passed;             /* barriers that this rank has passed, on its device; 1 more behind the kernel, also when it gave up */
    uint32_t *out[COMM_MAX];      /* the flags of the others that are ours to write; NULL: no such rank, or not waited for */
    const uint32_t *in[COMM_MAX]; /* our flags, by the rank that writes them; NULL alike */
    comm_record *record;          /* of this rank, pinned */
    uint32_t *abort;              /* of all ranks, pinned */
    uint64_t deadline_ns;
} comm_flags_args;

#ifdef __CUDACC__
#define COMM_INLINE static inline __host__ __device__
#else
#define COMM_INLINE static inline
#endif
COMM_INLINE uint32_t comm_code(uint32_t epoch) { return epoch * 2654435761u; }

/* These put a kernel into the stream; 0 or a code for device_error. */
int comm_flags(const comm_flags_args *a, void *stream);
/* dst[i] = word i of the pattern `seed`. */
int comm_write_pattern(uint32_t *dst, uint32_t n, uint32_t seed, void *stream);
COMM_INLINE uint32_t comm_pattern(uint32_t seed, uint32_t i)
{
    uint32_t v = (seed * 2654435761u) ^ (i * 2246822519u);
    return v ^ v >> 15;
}
/* dst[i] = src[i], by loads of the kernel. */
int comm_copy_words(uint32_t *dst, const uint32_t *src, uint32_t n, void *stream);

#ifdef __cplusplus
}
#endif
#endif
