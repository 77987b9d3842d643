/*
 * kv.h - KV pages: a pool of one context, and the block table of a sequence for each group of layers.
 *
 * Layers with the same window form a group, which has its own block tables. A page holds page_tokens positions of all layers of
 * its group, for every rank (each rank has its own memory, kernels/ops.h states the layout). Pages are allocated when they are
 * needed and kept for reuse when they are dropped; all groups draw on one budget in bytes. Pages have reference counts: a
 * fork shares them, and a page that is shared is copied before it is written. Pages wholly before the window are given back.
 * Full pages are kept for sequences with the same beginning (kv_prefix.c), also when no sequence has them any more.
 *
 * Host only; one thread.
 */
#ifndef TESS_KV_H
#define TESS_KV_H
#include "ops.h"
#include "shard.h"

/* Where pages of a rank lie when that is not any memory of the host. copy may return before it is done, as long as kernels that are
 * started later see it; false: it failed. */
typedef struct {
    void *user;
    void *(*alloc)(void *user, uint32_t rank, size_t size);
    void (*release)(void *user, uint32_t rank, void *page);
    bool (*copy)(void *user, uint32_t rank, void *dst, const void *src, size_t n);
} kv_memory;

typedef struct kv_page kv_page;
typedef struct kv_node kv_node;
/* refs: tables that have it; node: keeps it for sequences to come, or NULL. Neither: it is spare. */
struct kv_page { uint32_t refs; kv_node *node; kv_page *next; uint8_t *data[MAX_RANKS]; };
typedef struct {
    uint32_t window, n_layers;
    uint64_t page_bytes[MAX_RANKS], total_bytes;
    op_kv kv[MAX_RANKS];           /* layer_off is that of the group's layer 0 */
    uint64_t layer_bytes[MAX_RANKS];
    kv_page *free;
} kv_group;
typedef struct {
    kv_node **buckets, *newest, *oldest;
    uint32_t n_buckets, n_nodes;   /* buckets: a power of two */
    uint64_t limit, bytes, pages;  /* of pages that no table has; limit 0: none are kept */
} kv_prefix;
typedef struct {
    const mem *m;
    const kv_memory *memory; /* NULL: pages come from m */
    uint32_t n_ranks, page_tokens, n_groups;
    kv_group groups[ARCH_MAX_ATTN_KINDS];
    uint8_t layer_group[ARCH_MAX_LAYERS];
    uint16_t layer_index[ARCH_MAX_LAYERS]; /* of the layer in its group */
    uint64_t budget, allocated;            /* bytes */
    uint64_t pages_live, pages_made, pages_shared;
    kv_prefix prefix;
} kv_pool;
typedef struct {
    kv_page **pages;            /* [n]; NULL: given back (before the window) */
    uint8_t **base[MAX_RANKS];  /* [n] addresses for the kernels */
    size_t n, cap, passed;      /* pages before `passed` were given back */
} kv_table;

tess_status kv_pool_open(kv_pool *p, const mem *m, const arch *a, const shard_plan *s, uint32_t dtype, uint32_t page_tokens,
                         uint64_t budget, tess_error *err);
/* Before the first page is taken; `memory` must outlive the pool. */
void kv_pool_place(kv_pool *p, const kv_memory *memory);
void kv_pool_close(kv_pool *p); /* every table must be empty */
/* Makes positions [from, to) writable. KV_FULL: the budget is used up; NOMEM. On an error the table keeps what it had. */
tess_status kv_table_reserve(kv_pool *p, uint32_t group, kv_table *t, uint64_t from, uint64_t to, tess_error *err);
/* Gives pages back: those behind `keep` positions, and those that no position >= pos can see. */
void kv_table_truncate(kv_pool *p, uint32_t group, kv_table *t, uint64_t keep);
void kv_table_pass(kv_pool *p, uint32_t group, kv_table *t, uint64_t pos);
/* dst (empty) gets the first `keep` positions of src, shared. */
tess_status kv_table_fork(kv_pool *p, uint32_t group, const kv_table *src, uint64_t keep, kv_table *dst, tess_error *err);
void kv_table_free(kv_pool *p, uint32_t group, kv_table *t);
/* Bytes of one page of every group over all ranks. */
uint64_t kv_bytes_per_page(const kv_pool *p);
/* The first page that positions >= pos see. */
size_t kv_first_page(const kv_pool *p, uint32_t group, uint64_t pos);

/* kv_prefix.c. limit: bytes of pages that are kept though no table has them; 0: nothing is shared in this way. */
void kv_prefix_open(kv_pool *p, uint64_t limit);
/* K and V of the n ids are in the pages of `tables` (one for each group; what lies before windows may be gone): the full pages
 * are kept for others. key: exec_rope_key. */
void kv_prefix_keep(kv_pool *p, uint32_t key, const int32_t *ids, size_t n, const kv_table *tables);
/* Brings the pages that are known for the n ids into the tables, which have `done` positions, whole pages; gives how many they have then. */
size_t kv_prefix_take(kv_pool *p, uint32_t key, const int32_t *ids, size_t n, kv_table *tables, size_t done);
/* For kv.c: the page is about to be written; the pages least recently used become spare (false: there are none); all do. */
void kv_prefix_forget(kv_pool *p, uint32_t group, kv_page *page);
bool kv_prefix_drop(kv_pool *p);
void kv_prefix_close(kv_pool *p);
/* For kv_prefix.c: room for `want` pages; entry i, beyond the table's end, is this page (NULL: none); a page that no table has is spare now. */
bool kv_table_room(kv_pool *p, kv_table *t, size_t want);
void kv_table_share(kv_pool *p, uint32_t group, kv_table *t, size_t i, kv_page *page);
void kv_page_spare(kv_pool *p, uint32_t group, kv_page *page);
#endif
