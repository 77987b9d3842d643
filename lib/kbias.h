/*
 * kbias.h - which part of the K biases of a model is kept out of int8 pages (kernels/ops.h, op_kbias).
 *
 * A K bias that is large beside W_k x (qwen2: a hundred times) sets the scale of every int8 row and leaves few codes to W_k x.
 * But it is known, so it need not be stored. Of each kv head are kept apart, when they exceed the spread of W_k x: of the
 * rotary pairs the KBIAS_PAIRS with the largest bias (each costs work at every position), and the bias of the dimensions that
 * rope leaves alone. The spread is a guess, the root mean square of K for an input of unit variance behind the layer's norm,
 * from a few rows of W_k; a bias below it hardly widens the range. The choice depends on the model alone: ranks, threads and
 * batches do not change it.
 *
 * Nothing is kept apart where the bias is not simply added to K: with a norm or a clip behind k_proj, or latent attention.
 */
#ifndef TESS_KBIAS_H
#define TESS_KBIAS_H
#include "comm.h"
#include "model.h"

typedef struct {
    const tess_model *m;
    comm *comm;                  /* NULL: all ranks are on the CPU */
    arena store;
    const op_kbias_head **heads; /* [n_layers][n_ranks] -> the kv heads, in the rank's memory; NULL: nothing is kept apart */
    void *there[MAX_RANKS];      /* what heads leads to, in memory of devices */
} kbias;

/* heads stays NULL when no layer keeps anything apart. Nothing may be under way on the devices of the ranks. */
tess_status kbias_open(kbias *b, const tess_model *m, comm *c, tess_error *err);
void kbias_close(kbias *b); /* before c is closed */
/* Rows [lo, hi) (multiples of 8) of a rope table of n_cs pairs to lanes. */
void kbias_lanes(const float *cs, uint32_t n_cs, uint32_t lo, uint32_t hi, float *lanes);
#endif
