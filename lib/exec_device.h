/* exec_device.h - memory of the ranks on devices: exec_buffers.c makes it, exec_device.c runs with it. */
#ifndef TESS_EXEC_DEVICE_H
#define TESS_EXEC_DEVICE_H
#include "best_ops.h"
#include "exec_priv.h"

typedef struct {
    uint8_t *batch, *stage;  /* on the device, pinned on the host: batch_cap bytes each */
    size_t batch_cap, batch_bytes;
    float *alibi;
    uint32_t alibi_rows;
    uint32_t *rows;          /* [EXEC_HEAD_ROWS] of the head */
    uint8_t *best;           /* [EXEC_HEAD_ROWS][leaves of the rank] records of best_ops.h, with room for BEST_MOST ids */
    uint32_t agreed;         /* how often the rank's thread was in device_agree */
    uint32_t turn;           /* barriers of all ranks so far, as the rank's thread has come */
} rank_device;
struct exec_device {
    rank_device rank[MAX_RANKS];
    float *embed[2];         /* pinned, [max_rows][stride of W_HIDDEN]: of tokens, of learned positions */
    uint32_t *rows;          /* pinned, as the ranks' */
    uint8_t *best;           /* pinned, those of all ranks one behind the other */
    size_t *out_off;         /* [slots of the body] place of a shared slot in a half of an outbox, bytes; NULL: none is needed */
    bool halts[2][MAX_RANKS]; /* what threads say to each other, by leader (device_agree) */
    bool counts_lost;        /* a launch failed: counts may not be 0 */
};

/* Bytes of the records of so many leaves. */
static inline size_t best_room(uint32_t leaves) { return (size_t)EXEC_HEAD_ROWS * leaves * best_bytes(BEST_MOST); }

#endif
