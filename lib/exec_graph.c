/*
 * exec_graph.c - decoding steps as graphs of the device: a step whose launches are those of one before is given as one launch.
 *
 * What changes from step to step lies in memory, where the kernels of a graph find it as they find it alone: the rows' embeddings,
 * positions, sequences, addresses of pages and of rope tables (put_batch, at the same places for equally many rows). What remains in
 * the launches is the shape of a step: its rows, each of another sequence; the positions that attention reckons with, a power of two
 * that they share with many steps (exec_positions_bound); the rope table. A buffer that moves ends all graphs.
 *
 * A shape is recorded when it comes for the second time: by then every kernel has run once, and a shape that never comes back costs
 * nothing. Recording runs nothing and waits for nothing; where it fails, the shape goes on launch by launch. With several ranks or
 * a feed it does so always: barriers count, and a feed looks at what was copied last.
 */
#include "coefs.h"
#include "device.h"
#include "exec_priv.h"

/* Every row is of a sequence of its own, and the last one of it. */
static bool decodes(const exec_batch *b) { return b->n_rows == b->n_seqs; }

uint32_t exec_positions_bound(const exec_batch *b)
{
    uint32_t n = ATTN_CHUNK;
    if (!decodes(b) || b->max_pos >= 1u << 31) return b->max_pos + 1;
    while (n <= b->max_pos) n *= 2;
    return n;
}

void graphs_end(exec *x)
{
    for (uint32_t i = 0; i < STEP_GRAPHS; i++) {
        device_graph_close(x->graphs[i].graph);
        x->graphs[i] = (step_graph){0};
    }
}

/* Its place among the graphs; NULL: this shape is new, or not one for graphs. */
static step_graph *graph_of(exec *x)
{
    const exec_batch *b = x->batch;
    step_graph *oldest = x->graphs;
    if (x->model->shards.n_ranks > 1 || x->model->feed || !decodes(b)) return NULL;
    for (uint32_t s = 1; s < b->n_seqs; s++)
        if (b->rope_key[s] != b->rope_key[0]) return NULL;
    x->step++;
    for (uint32_t i = 0; i < STEP_GRAPHS; i++) {
        step_graph *g = &x->graphs[i];
        if (g->n_rows == b->n_rows && g->positions == x->positions && g->rope_key == b->rope_key[0]) return g->used = x->step, g;
        if (g->used < oldest->used) oldest = g;
    }
    device_graph_close(oldest->graph);
    *oldest = (step_graph){.n_rows = b->n_rows, .positions = x->positions, .rope_key = b->rope_key[0], .used = x->step};
    return NULL;
}

/* All of the body, or nothing: it can not be cancelled half-way. */
static void record(exec *x, step_graph *g, uint32_t leader, bool (*give)(exec *x, uint32_t leader))
{
    rank_state *k = &x->rank[leader];
    const uint32_t *cancel = x->cancel;
    x->cancel = NULL;
    g->refused = true;
    if (device_capture_begin(k->stream) == 0) {
        const bool whole = give(x, leader) && k->code == 0;
        const int code = device_capture_end(k->stream, &g->graph);
        if (!code && !whole) device_graph_close(g->graph), g->graph = NULL;
        g->refused = code || !whole;
    }
    k->code = 0;
    x->cancel = cancel;
}

void graph_give(exec *x, uint32_t leader, bool (*give)(exec *x, uint32_t leader))
{
    rank_state *k = &x->rank[leader];
    step_graph *g = graph_of(x);
    if (g && !g->graph && !g->refused && !k->code) record(x, g, leader, give);
    if (!g || !g->graph || k->code) {
        (void)give(x, leader); /* how it ended is in the ranks' codes */
        return;
    }
    x->stopped = x->cancel && __atomic_load_n(x->cancel, __ATOMIC_RELAXED);
    if (!x->stopped) k->code = device_graph_launch(g->graph, k->stream);
}
