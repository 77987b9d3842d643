/*
 * sampler.h - from a row of logits to an id: penalties, temperature, top-k, top-p, min-p, seeded draw.
 *
 * Pure functions; the generator is a counter-based hash of (seed, step), so a draw depends on nothing else.
 * Order: penalties, top-k, top-p, min-p (on probabilities at temperature 1), temperature, draw; temperature 0
 * (or so small that division overflows) takes the best, the lowest id of equals. Non-finite: NaN or +inf
 * anywhere, or all -inf, is TESS_E_NONFINITE; -inf means masked.
 */
#ifndef TESS_SAMPLER_H
#define TESS_SAMPLER_H
#include "best_ops.h"
#include "mem.h"
/* work: n floats and n uint32 of scratch, grown by the function; free with sampler_free. One thread per
 * scratch. */
typedef struct { const mem *m; float *p; uint32_t *idx; uint32_t *count; size_t cap; } sampler_work;
tess_status sampler_check(const tess_seq_params *p, tess_error *err); /* ARG: names the field and its value */
tess_status sampler_draw(const float *logits, size_t n, const int32_t *history, size_t n_history,
                         size_t n_prompt, const tess_seq_params *p, uint64_t step, sampler_work *w, int32_t *id,
                         float *logprob, tess_error *err);
/* For tests and tools: ids that the filters keep, descending by logit; their probabilities at the temperature.
 */
tess_status sampler_filter(const float *logits, size_t n, const int32_t *history, size_t n_history,
                           size_t n_prompt, const tess_seq_params *p, sampler_work *w, uint32_t *n_kept,
                           tess_error *err);
/* What a device tells of a row of logits instead of all of it (best_ops.h), its leaves together. */
typedef struct {
    uint32_t n_open, n_bad, n; /* n ids, best first */
    double log_sum;            /* ln of the sum of exp over the row */
    best_id id[BEST_MOST];
} sampler_best;
/* How many of the best ids a draw needs; 0: it needs all logits. */
uint32_t sampler_best_k(const tess_seq_params *p);
void sampler_best_join(const best_leaf *const *leaf, uint32_t n_leaves, uint32_t k, sampler_best *out);
/* The id and logprob that sampler_draw gives for the whole row; n_bad is 0, n_open is not, and k was enough for p. */
tess_status sampler_draw_best(const sampler_best *b, const tess_seq_params *p, uint64_t step, sampler_work *w,
                              int32_t *id, float *logprob, tess_error *err);
/* Takes the scratch of a draw from n logits ahead, so that the draw itself can not run out of memory. */
tess_status sampler_reserve(sampler_work *w, size_t n, const tess_seq_params *p, tess_error *err);
void sampler_free(sampler_work *w);
#endif
