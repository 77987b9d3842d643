/*
 * devices.h - which devices the ranks of a model run on: the text of --devices, checked against the machine.
 *
 * "cpu", or "cuda:" with numbers of devices, one rank each: "cuda:0,1"; a device named twice gets two ranks. "cuda" alone is
 * every device of the machine, up to 8. What is asked for is compared with what there is before any weight is read.
 */
#ifndef TESS_DEVICES_H
#define TESS_DEVICES_H
#include "shard.h"

typedef struct {
    uint32_t n;                 /* ranks; 0: all are on the CPU */
    uint32_t id[MAX_RANKS];     /* device of each rank */
    uint32_t direct[MAX_RANKS]; /* bit o: the rank may use memory of rank o (peers.h) */
} device_list;

/* n_ranks 0: one per device named (the CPU: one). *ranks is how many there will be. */
tess_status devices_parse(const char *text, uint32_t n_ranks, device_list *out, uint32_t *ranks, tess_error *err);
/* "rank 1 (cuda:0)": for messages. */
typedef struct { char text[32]; } device_name;
device_name devices_name(const device_list *d, uint32_t rank);
/* TESS_E_DEVICE with what was tried and why it failed. */
tess_status devices_fail(const device_list *d, uint32_t rank, const char *what, int code, tess_error *err);
#endif
