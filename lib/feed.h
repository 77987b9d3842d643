/*
 * feed.h - weights of layers that stay in memory of the host and are copied to their devices as layers are run.
 *
 * A rank that is fed has two buffers on its device: layer i always lies in buffer i & 1, so that the addresses in the views of the
 * model never change. A stream of its own copies layer i + 1 while layer i runs, and layer i + 2 into the buffer of layer i
 * as soon as that was left. Behind the last layer the first two follow, for the next run. Two events for each buffer keep
 * the order: `there`, recorded behind the copy, for which the rank's stream waits before the layer; `left`, recorded
 * behind the layer, for which the next copy waits. The copies change no bit: kernels read what they would read otherwise.
 *
 * The memory of the host is pinned. Beyond half of what the host has available, or where pinning is refused, it is pageable, and
 * the thread that gives a rank its work (exec_device.c) brings each layer through a ring of pinned pieces. What it waits for there,
 * the layer before the last one, comes without it: of that and of all barriers before it everything has been given to all ranks.
 *
 * The buffers belong to the model: of several contexts one runs at a time (feed_begin to feed_end). A run that ends early, by a failure
 * or cancelled, leaves no harm: what the buffers hold is known from the copies that were given.
 */
#ifndef TESS_FEED_H
#define TESS_FEED_H
#include "devices.h"
#include "mem.h"

typedef struct feed feed;
tess_status feed_open(const mem *m, const device_list *d, uint32_t n_layers, feed **out, tess_error *err);
void feed_close(feed *f); /* NULL is fine; waits for the copies */
/* Rank r is fed. bytes: of each layer, [n_layers]; buffer: the two, of the largest even and the largest odd layer, one behind the other. */
tess_status feed_rank_open(feed *f, uint32_t r, const uint64_t *bytes, uint8_t *buffer, tess_error *err);
bool feed_pinned(const feed *f, uint32_t r);
/* Where a layer lies: on the host, to be filled when the model is loaded; on the device while it is there. NULL: r is not fed. */
uint8_t *feed_host(const feed *f, uint32_t r, uint32_t layer);
uint8_t *feed_device(const feed *f, uint32_t r, uint32_t layer);

/* A run over layers, in ascending order. Codes are those of device.h, *r is the rank that they are about. */
int feed_begin(feed *f, uint32_t *r);
/* What follows in `stream` of rank r, whose device is selected, needs `layer`. Lower ones than before: nothing is to be done. */
int feed_enter(feed *f, uint32_t r, uint32_t layer, void *stream);
int feed_leave(feed *f, uint32_t r, void *stream); /* all of the rank's last layer was given */
int feed_first(feed *f, uint32_t *r);              /* all ranks left their last layer: copies those that the next run begins with */
void feed_end(feed *f);                            /* nothing runs on the ranks' streams any more */
#endif
