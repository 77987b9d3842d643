/*
 * exec.h - runs the programs of a context: activations, threads, ranks.
 *
 * On the CPU one pool of threads; each rank has a team, a contiguous run of them. exec_body computes the last hidden state of the rows of
 * a batch and writes their K and V; exec_head computes the logits of chosen rows. Nothing is allocated while they run; what a
 * longer batch or a later position needs is taken before (exec_prepare). On devices the pool has a thread for each device, which puts
 * the operations of its ranks into their streams, from one barrier of all ranks to the next (exec_device.c).
 */
#ifndef TESS_EXEC_H
#define TESS_EXEC_H
#include "comm.h"
#include "kv.h"
#include "pool.h"
#include "program.h"
#include "sampler.h"

enum { EXEC_HEAD_ROWS = 16 };

typedef struct {            /* one forward pass; arrays of n_rows or n_seqs, owned by the caller */
    uint32_t n_rows, n_seqs;
    const int32_t *ids;
    const uint32_t *pos, *seq; /* position; index of the row's sequence in this batch */
    uint8_t *const *const *tables[ARCH_MAX_ATTN_KINDS][MAX_RANKS]; /* [group][rank][n_seqs] -> page addresses */
    uint32_t max_pos;
    bool head_follows;        /* a head is computed of some rows at once; then, on devices, exec_body need not wait for its end */
    const uint32_t *rope_key; /* [n_seqs] which frequencies the sequence takes (exec_rope_key) */
} exec_batch;

typedef struct exec exec;
/* c: the ranks on devices; NULL: all are on the CPU. */
tess_status exec_open(const tess_model *m, const kv_pool *kv_, comm *c, uint32_t max_rows, exec **out, tess_error *err);
void exec_close(exec *x);
tess_status exec_prepare(exec *x, const exec_batch *b, tess_error *err);
/* What of the length of a prompt of n ids its frequencies depend on: equal keys, equal frequencies. */
uint32_t exec_rope_key(const arch *a, size_t n);
/* *cancel is read once a layer or a step; CANCELLED when it was set. DEVICE: a device failed; BROKEN: and it will not come back; of a batch
 * with head_follows the head may be who says so. */
tess_status exec_body(exec *x, const exec_batch *b, const uint32_t *cancel, tess_error *err);
/* Logits of rows[0..n) of the last body, n <= EXEC_HEAD_ROWS: n times vocab_size floats at *logits, stride *stride. */
tess_status exec_head(exec *x, const uint32_t *rows, uint32_t n, const float **logits, size_t *stride, tess_error *err);
/* The same rows, ranks being on devices, but of their logits only what draws need: up to k best ids each. */
tess_status exec_head_best(exec *x, const uint32_t *rows, uint32_t n, uint32_t k, sampler_best *const *out, tess_error *err);
#endif
