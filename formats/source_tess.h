/*
 * source_tess.h - a .tess container as a source: re-sharding, another type, another storage, export.
 *
 * Tensor i of the source is tensor i of the container (an alias has the data of its target). Values are read
 * through the container's reader, so every chunk's hash is checked on the way.
 */
#ifndef TESS_SOURCE_TESS_H
#define TESS_SOURCE_TESS_H
#include "container.h"
#include "family.h"

tess_status tess_source_open(const char *path, const mem *m, source **out, tess_error *err);
const ct_file *tess_source_file(const source *s);
/* The weights of the container, as family_plan would have found them. */
tess_status tess_source_plan(const source *s, const mem *m, weight_plan *out, tess_error *err);
#endif
