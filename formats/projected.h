/*
 * projected.h - models whose embedding is narrower than their hidden state (OPT-350M): a source in which it is as wide.
 *
 * Such a model takes rows of E [vocab, d] through project_in [hidden, d], and its last hidden state through project_out
 * [d, hidden] before the output head H [vocab, d], which mostly is E. Both are linear, so the same model has the
 * embedding E project_in' and the head H project_out. These products, summed in f32 in ascending d, take the places of E and
 * H; their type under --type auto is f32, since they were never rounded to that of the file.
 */
#ifndef TESS_PROJECTED_H
#define TESS_PROJECTED_H
#include "source.h"

/* Puts such a source in the place of *s, which it takes over. An error leaves *s as it was. tied: H is E, whatever the file
 * holds. */
tess_status projected_open(source **s, uint32_t vocab, uint32_t hidden, uint32_t dim, bool tied, tess_error *err);
#endif
