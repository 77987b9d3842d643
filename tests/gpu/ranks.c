/*
 * ranks.c - the all-reduce as the engine does it: each rank has partial sums of its leaves, a barrier of all ranks, each rank adds all
 * leaves to its residual. Several ranks share a device (events instead of flags); with two devices also between these.
 */
#include <stdio.h>

#include "comm.h"
#include "gpu_bench.h"
#include "peers.h"

enum { LEAVES = 8 };
typedef struct {
    comm *c;
    uint32_t n_ranks;
    op_reduce_args a[MAX_RANKS];
    const float *parts[LEAVES];
} ring;

/* owned: memory of each rank, which the caller frees. */
static tess_status fill_ring(ring *g, uint32_t n_tokens, uint32_t n, void *owned[MAX_RANKS][2], tess_error *err)
{
    const size_t bytes = (size_t)n_tokens * n * sizeof(float);
    const uint32_t each = LEAVES / g->n_ranks;
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        DEV_TRY(comm_select(g->c, r), "the device can not be used");
        DEV_TRY(device_alloc(&owned[r][0], bytes * each), "memory");
        DEV_TRY(device_alloc(&owned[r][1], bytes), "memory");
        DEV_TRY(probe_fill(owned[r][0], bytes * each, r + 1, comm_stream(g->c, r)), "fill");
        DEV_TRY(probe_fill(owned[r][1], bytes, r + 20, comm_stream(g->c, r)), "fill");
        for (uint32_t l = 0; l < each; l++) g->parts[r * each + l] = (const float *)owned[r][0] + (size_t)l * n_tokens * n;
        g->a[r] = (op_reduce_args){.parts = g->parts,
                                   .n_leaves = LEAVES,
                                   .ps = n,
                                   .residual = owned[r][1],
                                   .rs = n,
                                   .scale = 1,
                                   .n_tokens = n_tokens,
                                   .n = n,
                                   .y = owned[r][1],
                                   .ys = n};
    }
    return TESS_OK;
}

static tess_status turns(ring *g, uint32_t n, tess_error *err)
{
    bool lost;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t r = 0; r < g->n_ranks; r++) {
            if (comm_leader(g->c, r) != r) continue;
            DEV_TRY(comm_select(g->c, r), "the device can not be used");
            DEV_TRY(comm_barrier(g->c, r), "barrier");
        }
        for (uint32_t r = 0; r < g->n_ranks; r++)
            if (comm_leader(g->c, r) == r) DEV_TRY(comm_pass(g->c, r), "barrier");
        for (uint32_t r = 0; r < g->n_ranks; r++) {
            DEV_TRY(comm_select(g->c, r), "the device can not be used");
            DEV_TRY(op_cuda_get()->reduce(&g->a[r], comm_stream(g->c, r)), "reduce");
        }
    }
    return comm_sync(g->c, &lost, err);
}

static tess_status time_ring(const gpu_bench *b, ring *g, uint32_t n_tokens, const char *where, tess_error *err)
{
    const uint32_t n = b->dry ? 128 : 4096, times = b->once ? 2 : 500;
    void *owned[MAX_RANKS][2] = {{NULL}};
    char name[96];
    snprintf(name, sizeof name, "all-reduce, %u ranks on %s, %u x %u", g->n_ranks, where, n_tokens, n);
    if (gpu_late(b, name)) return TESS_OK;
    tess_status st = fill_ring(g, n_tokens, n, owned, err);
    if (st >= 0) st = turns(g, b->once ? 1 : 20, err);
    double start = gpu_now();
    if (st >= 0) st = turns(g, times, err);
    double s = (gpu_now() - start) / times;
    bool lost;
    (void)comm_sync(g->c, &lost, NULL);
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        (void)comm_select(g->c, r);
        device_free(owned[r][0]);
        device_free(owned[r][1]);
    }
    if (st >= 0) gpu_print(name, s * 1e6, "us", 0, NULL);
    return st;
}

static tess_status ring_on(gpu_bench *b, device_list *d, const char *where, tess_error *err)
{
    ring g = {.n_ranks = d->n};
    TRY(peers_find(&mem_libc, d, err));
    for (uint32_t r = 0; r < d->n; r++)
        if (d->direct[r] != (1u << d->n) - 1) return gpu_skip("all-reduce between devices", "no peer access"), TESS_OK;
    TRY(comm_open(&mem_libc, d, 0, &g.c, err));
    tess_status st = time_ring(b, &g, 1, where, err);
    if (st >= 0) st = time_ring(b, &g, b->dry ? 3 : 64, where, err);
    comm_close(g.c);
    return st;
}

tess_status part_ranks(gpu_bench *b, tess_error *err)
{
    uint32_t n_devices = 0;
    (void)device_count(&n_devices);
    for (uint32_t n = 1; n <= MAX_RANKS; n *= 2) { /* 1: the reduction alone */
        device_list d = {.n = n};
        for (uint32_t r = 0; r < n; r++) d.id[r] = b->device;
        TRY(ring_on(b, &d, "one device", err));
    }
    for (uint32_t n = 2; n <= MIN(n_devices, (uint32_t)MAX_RANKS); n *= 2) {
        device_list d = {.n = n};
        for (uint32_t r = 0; r < n; r++) d.id[r] = r;
        TRY(ring_on(b, &d, "as many devices", err));
    }
    if (n_devices < 2) gpu_skip("all-reduce between devices", "one device");
    return TESS_OK;
}
