/*
 * best_ops.h - what a draw needs of a row of logits, found on the device that has them; plain C, no CUDA header.
 * lib/exec_device.c calls it, lib/sampler.c draws from it.
 *
 * Each leaf of the vocabulary has one record a row: its k best ids (higher logit first, then lower id), how many logits can be drawn
 * at all, and the sum of exp(x - max) over the leaf as an integer: every term op_exp(x - max) * BEST_ONE, cut to an integer.
 * So neither the order of the sum nor the cut of leaves over ranks changes a bit. For vocabularies below BEST_VOCAB: the integer
 * holds the sum of a leaf.
 */
#ifndef TESS_BEST_OPS_H
#define TESS_BEST_OPS_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BEST_MOST = 64, BEST_LEAVES = 8, BEST_VOCAB = 1 << 26 };
#define BEST_ONE 0x1p40f

typedef struct { float x; uint32_t id; } best_id;
typedef struct {
    uint64_t sum;
    float max;       /* -inf when n_open is 0 */
    uint32_t n_open; /* logits above -inf; those that are no number or +inf count in n_bad and nowhere else */
    uint32_t n_bad;
    uint32_t n;      /* ids that follow: min(k, n_open) */
} best_leaf;
/* Bytes of a record: the leaf and room for k ids. */
static inline size_t best_bytes(uint32_t k) { return sizeof(best_leaf) + k * sizeof(best_id); }

/* x: [n_rows] rows with stride xs; leaf i is columns [leaf[i], leaf[i + 1]) and begins with id first_id + leaf[i]. The record of
 * row t and leaf i goes to y + (t * n_leaves + i) * best_bytes(k). 0 or a code for device_error. */
typedef struct {
    const float *x; size_t xs; uint32_t n_rows, n_leaves, leaf[BEST_LEAVES + 1], first_id, k; uint8_t *y;
} best_args;
int best_of_leaves(const best_args *a, void *stream);
int best_load(void); /* as op_cuda_load */

#ifdef __cplusplus
}
#endif
#endif
