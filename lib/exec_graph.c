/*
 * exec_graph.c - decoding steps as graphs of the device: a step whose launches are those of one before is given as one launch.
 *
 * What changes from step to step lies in memory, where the kernels of a graph find it as they find it alone: the rows' embeddings,
 * positions, sequences, addresses of pages and of rope tables (put_batch, at the same places for equally many rows). What remains in
 * the launches is the shape of a step: its rows, each of another sequence; the positions that attention reckons with, a power of two
 * that they share with many steps (exec_positions_bound); the rope table. A buffer that moves ends all graphs.
 *
 * A shape is recorded when it comes for the second time: by then every kernel has run once, and a shape that never comes back costs
 * nothing. Recording runs nothing and waits for nothing; where it fails, the shape goes on launch by launch.
 *
 * Of several ranks each has a graph on its device, recorded and given by the device's thread; barriers are in it, as the devices count them
 * (comm_ops.h). All have one or none: where one thread can not record, none gives its graph. Some go on launch by launch always: ranks that
 * share a device, whose order is by events between streams; outboxes, whose halves take turns; a feed, which looks at what was copied last.
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

static void close_graphs(step_graph *g)
{
    for (uint32_t r = 0; r < MAX_RANKS; r++) {
        device_graph_close(g->graph[r]);
        g->graph[r] = NULL;
    }
}

void graphs_end(exec *x)
{
    for (uint32_t i = 0; i < STEP_GRAPHS; i++) {
        close_graphs(&x->graphs[i]);
        x->graphs[i] = (step_graph){0};
    }
}

/* Its place among the graphs; NULL: this shape is new, or not one for graphs. */
static step_graph *graph_of(exec *x)
{
    const exec_batch *b = x->batch;
    step_graph *oldest = x->graphs;
    if (comm_leaders(x->comm) < x->model->shards.n_ranks || device_outboxes(x) || x->model->feed || !decodes(b)) return NULL;
    for (uint32_t s = 1; s < b->n_seqs; s++)
        if (b->rope_key[s] != b->rope_key[0]) return NULL;
    x->step++;
    for (uint32_t i = 0; i < STEP_GRAPHS; i++) {
        step_graph *g = &x->graphs[i];
        if (g->n_rows == b->n_rows && g->positions == x->positions && g->rope_key == b->rope_key[0]) return g->used = x->step, g;
        if (g->used < oldest->used) oldest = g;
    }
    close_graphs(oldest);
    *oldest = (step_graph){.n_rows = b->n_rows, .positions = x->positions, .rope_key = b->rope_key[0], .used = x->step};
    return NULL;
}

void graph_begin(exec *x)
{
    step_graph *g = graph_of(x);
    x->graph = g && !g->refused ? g : NULL;
    if (x->graph) x->stopped = exec_cancelled(x);
}

void graph_end(exec *x)
{
    step_graph *g = x->graph;
    x->graph = NULL;
    if (!g || g->recorded) return;
    close_graphs(g);
    g->refused = !x->stopped;
}

/* All of the body, or nothing, as it can not be cancelled half-way; whether all threads have theirs. A graph that is not wanted is closed when
 * all have given what they have: closing may wait for the devices. */
static bool record(exec *x, uint32_t leader, bool (*give)(exec *x, uint32_t leader))
{
    rank_state *k = &x->rank[leader];
    const bool begun = !k->code && device_capture_begin(k->stream) == 0;
    bool whole = device_agree(x, leader, begun);
    if (whole) whole = give(x, leader) && k->code == 0;
    if (begun && device_capture_end(k->stream, &x->graph->graph[leader])) whole = false;
    if (begun) k->code = 0;
    whole = device_agree(x, leader, whole);
    if (leader == 0) x->graph->recorded = whole; /* the others look when the next step begins */
    return whole;
}

void graph_give(exec *x, uint32_t leader, bool (*give)(exec *x, uint32_t leader))
{
    rank_state *k = &x->rank[leader];
    if (!x->graph || (!x->stopped && !x->graph->recorded && !record(x, leader, give))) {
        (void)give(x, leader); /* how it ended is in the ranks' codes */
        return;
    }
    if (!x->stopped && !k->code) k->code = device_graph_launch(x->graph->graph[leader], k->stream);
}
