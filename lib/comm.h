/*
 * comm.h - the ranks of a context on devices: a stream each, waiting for each other, reading each other's memory.
 *
 * Every device has a leader, the first rank that is on it, and one thread of the host that gives work to the streams of its ranks; threads
 * of other devices may do so at the same time. What a stream is given is done in order. Barrier n is the n-th comm_barrier and the
 * comm_pass behind it of every device: what a rank's stream was given before comm_barrier is done, and seen, before anything that any
 * rank's stream is given behind comm_pass. Nothing here waits on the host but comm_sync. The last kernel of comm_barrier waits for those of the
 * other devices. So whoever does not know that a stream takes more before it gets on must call comm_pass when all devices have had
 * their comm_barrier (exec_device.c).
 *
 * Ranks on one device wait for each other by events. Between devices one rank of each, which has waited for the others of its device,
 * puts a kernel into its stream that raises flags for the other devices and polls its own (comm_ops.h): no more than one
 * kernel a device polls, and what it waits for has been given to the other devices or will be at once.
 *
 * Whether rank `reader` may read memory of rank `owner` was found out when the model was opened (comm_direct): the same device, or a
 * device with peer access that was tried with data (peers.h). Where it may not, the owner copies what others shall read into its outbox,
 * memory of the host that every device can read. An outbox has two halves, used in turn from barrier to barrier: when
 * the half of barrier n is written again before barrier n + 2, every rank has passed barrier n + 1 and so left it.
 */
#ifndef TESS_COMM_H
#define TESS_COMM_H
#include "devices.h"
#include "mem.h"

typedef struct comm comm;
/* deadline_ns: of a wait for another device; 0: 20 seconds. */
tess_status comm_open(const mem *m, const device_list *d, uint64_t deadline_ns, comm **out, tess_error *err);
void comm_close(comm *c); /* NULL is fine; waits for the devices first */
const device_list *comm_devices(const comm *c);
int comm_select(comm *c, uint32_t rank); /* what follows on this thread acts on the rank's device */
void *comm_stream(const comm *c, uint32_t rank);
uint64_t comm_memory(comm *c); /* bytes that are free on the devices of the ranks, each device once */
uint32_t comm_leaders(const comm *c); /* how many devices there are */
uint32_t comm_leader(const comm *c, uint32_t rank); /* of the rank's device */
/* Give the next barrier to the streams of the leader's device, which is selected. 0 or a code of device.h. */
int comm_barrier(comm *c, uint32_t leader);
int comm_pass(comm *c, uint32_t leader);
/* After a failure: kernels that wait for others give up. */
void comm_abort(comm *c);
/* Waits until every stream is empty; the first failure of any rank, of which `*lost` says whether its device is lost. Afterwards
 * the barrier is as new. */
tess_status comm_sync(comm *c, bool *lost, tess_error *err);

bool comm_direct(const comm *c, uint32_t reader, uint32_t owner);
bool comm_blind(const comm *c, uint32_t owner); /* some rank may not read the owner's memory */
tess_status comm_outbox_open(comm *c, uint32_t owner, size_t half_bytes, tess_error *err);
/* turn: the number of the barrier that what is written there waits for. */
uint8_t *comm_outbox(const comm *c, uint32_t owner, uint32_t turn);
#endif
