/*
 * place.h - the weights of a model in memory of devices.
 *
 * While load.c makes the views of a rank on a device it says what each of them needs: a part of a piece (place_part), or a vector
 * or table that it built on the host (place_twin). When all is known, place_weights takes one block of device memory for each
 * rank, so that a model that does not fit is refused before anything is read, puts device addresses where the views had none,
 * and fills the block: every chunk of the file that some rank needs is read once, in the order of the file, decoded by the
 * threads of the host into pinned memory, and copied from there to all ranks that hold a part of it.
 *
 * Where the weights do not fit a device, or when it is asked for, the parts of layers stay in memory of the host instead (feed.h): the
 * block then has two buffers for a layer each, behind what always stays, and layers have addresses in one of them.
 *
 * On the device a part has no gaps: row blocks one after another, of a split K axis only the rank's own leaf.
 */
#ifndef TESS_PLACE_H
#define TESS_PLACE_H
#include "pool.h"

typedef struct place place;
typedef struct { const tess_model_params *params; uint64_t done, total; } place_progress;

tess_status place_open(const mem *m, uint32_t n_layers, place **out, tess_error *err);
void place_close(struct tess_model *m); /* frees all memory of devices */
/* Zeroed memory of the host that gets a twin on every device; what the views point at in it is moved there by place_weights. */
void *place_twin(place *p, uint64_t n, size_t size);
/* Parts that are asked for from now on are of this layer; before, of none. */
void place_layer(place *p, uint32_t layer);
/* Row blocks [block0, block0 + n_blocks) of a piece, of each the bytes [off, off + len), for a rank. Their address and the
 * stride of blocks will be put into *data and *stride. */
typedef struct {
    uint32_t rank, piece;
    uint64_t block0, n_blocks, off, len;
    const uint8_t **data;
    uint64_t *stride;
    uint32_t layer; /* set by place_part, as `at` is: bytes from the start of what is in no layer, or of the layer */
    uint64_t at;
} place_want;
tess_status place_part(place *p, const place_want *w, tess_error *err);
/* The part asked for last shall be known there instead. */
void place_retarget(place *p, const uint8_t **data, uint64_t *stride);
tess_status place_weights(struct tess_model *m, pool *threads, place_progress *g, tess_error *err);
#endif
