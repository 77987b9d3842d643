/*
 * peers.h - which ranks may read and write the memory of which others, found out by data.
 *
 * That a driver offers peer access does not say that data arrive: boards and IOMMUs are known that lose or change them. So for
 * each ordered pair of devices a pattern goes over it in three ways (stores of a kernel, the copy engine, loads of a kernel) and is
 * compared on the other side. A pair that fails, or has no access, goes through pinned memory of the host; the log says
 * which do. Takes less than a millisecond a pair.
 */
#ifndef TESS_PEERS_H
#define TESS_PEERS_H
#include "devices.h"
#include "mem.h"

/* Fills d->direct. Fails only when a device can not be used at all. */
tess_status peers_find(const mem *m, device_list *d, tess_error *err);
#endif
