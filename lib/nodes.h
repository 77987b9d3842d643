/*
 * nodes.h - memory of ranks on the CPU where these run on several NUMA nodes: weights and KV pages lie where the rank's threads are.
 *
 * Memory comes to lie on the node of the thread that first writes it. So each rank gets a copy of the parts of weights that it reads,
 * made by its own threads (pool_place put them on their node), and KV pages are left for its threads to write first. No memory policy
 * is set: that needs a privilege in many containers, and a copy by the right thread needs none.
 *
 * While load.c makes the views it says what each of them is (nodes_part). nodes_weights then goes piece by piece: copies, turns the
 * views to the copies, and gives back what nobody reads any more, so that never much more than one piece is there twice. Tables of
 * which a token takes a row stay as they are, for all ranks. Where memory would not suffice everything stays, and the log says so.
 * With one node, or one rank, none of this is used: weights stay mapped.
 */
#ifndef TESS_NODES_H
#define TESS_NODES_H
#include "place.h"

typedef struct nodes nodes;
/* Whether the ranks of m are put on several nodes. */
bool nodes_used(const struct tess_model *m);
tess_status nodes_open(const mem *m, nodes **out, tess_error *err);
void nodes_close(nodes *n); /* frees all copies; NULL is fine */
/* w->data and w->stride hold where the part is now. A rank that the model has not: it stays there. */
tess_status nodes_part(nodes *n, const place_want *w, tess_error *err);
/* The part said last shall be known there instead. */
void nodes_retarget(nodes *n, const uint8_t **data, uint64_t *stride);
/* threads: a team that was placed. */
tess_status nodes_weights(struct tess_model *m, pool *threads, tess_error *err);

/* kv_memory of a model whose ranks are on several nodes; user: the model. */
void *nodes_page_alloc(void *user, uint32_t rank, size_t size);
void nodes_page_free(void *user, uint32_t rank, void *page);
bool nodes_page_copy(void *user, uint32_t rank, void *dst, const void *src, size_t n);
#endif
