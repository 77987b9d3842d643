/*
 * exec_device.c - runs the programs of ranks that are on devices.
 *
 * Every device has a thread of the context's pool, the caller's being that of the first one, which gives the operations of a run to the
 * streams of the device's ranks. From one barrier of all ranks to the next the threads go side by side; having given what waits for the
 * others they wait for each other (device_agree) and give nothing more before all have. So whatever a kernel waits for was given before anything
 * that stands behind it in a stream: a stream that takes no more until its kernels get on - drivers let about a thousand
 * launches wait - holds up its thread, even one that keeps others out of the driver meanwhile, and never for good. There too a
 * failure or a cancelled run is told to all threads, and they end at the same barrier. With one device there is no thread and
 * nothing to wait for.
 *
 * The host waits once, at the end of a head, or of a body that no head follows.
 */
#include "device.h"
#include "exec_device.h"

/* ---- a run ---- */

float *device_shared(const exec *x, const rank_state *reader, const rank_state *owner, uint16_t slot, size_t *stride)
{
    float *own = slot_at(x, owner, slot, stride);
    if (comm_direct(x->comm, reader->rank, owner->rank)) return own;
    return (float *)(void *)(comm_outbox(x->comm, owner->rank, x->device->rank[reader->rank].turn) + x->device->out_off[slot]);
}

/* What became complete since the last barrier of all ranks, [from, to), goes to the outbox of a rank that not all can read. */
static void publish(const exec *x, rank_state *k, uint32_t from, uint32_t to)
{
    const program *p = x->prog;
    if (!x->device->out_off || !comm_blind(x->comm, k->rank)) return;
    for (uint32_t i = from; i < to; i++) {
        uint16_t out = p->code[i].out;
        size_t stride;
        if (out == NO_SLOT || !p->slots[out].shared || p->slots[out].first != i || p->slots[out].width == W_LOGITS) continue;
        const float *src = slot_at(x, k, out, &stride);
        uint8_t *dst = comm_outbox(x->comm, k->rank, x->device->rank[k->rank].turn + 1) + x->device->out_off[out];
        size_t leaf = stride * k->body.rows * sizeof *src, n = stride * x->n_rows * sizeof *src;
        uint32_t leaves = k->body.leaves[p->slots[out].width];
        if (p->code[i].op == PROG_LINEAR && exec_gemm(x, k, &p->code[i])) leaves = MIN(leaves, 1u);
        if (!k->code) k->code = device_copy_rows(dst, leaf, src, leaf, n, leaves, k->stream);
    }
}

bool device_outboxes(const exec *x) { return x->device->out_off != NULL; }

static int first_code(const exec *x, uint32_t *rank)
{
    for (*rank = 0; *rank < x->model->shards.n_ranks; ++*rank)
        if (x->rank[*rank].code) return x->rank[*rank].code;
    return 0;
}

/* c and what is joined to it; one by one where a linear operation among them is a large prompt's, which has launches of its own. */
static void give_instr(const exec *x, rank_state *k, const prog_instr *c)
{
    bool joint = c->joined > 0;
    for (uint32_t i = 0; i <= c->joined; i++)
        if (c[i].op == PROG_LINEAR && exec_gemm(x, k, &c[i])) joint = false;
    if (joint) exec_joint(x, k, c);
    else
        for (uint32_t i = 0; i <= c->joined; i++) exec_instr(x, k, &c[i], 0, 1);
}

/* ---- the thread of a device ---- */

/* The leader of the device that this thread of the pool has: thread i has the i-th one. */
static uint32_t leader_of(const exec *x, uint32_t thread)
{
    uint32_t r = 0;
    for (uint32_t i = 0;; r++)
        if (comm_leader(x->comm, r) == r && i++ == thread) return r;
}

/* The next rank from r on that is on the leader's device; n_ranks: none. */
static uint32_t next_on(const exec *x, uint32_t leader, uint32_t r)
{
    while (r < x->model->shards.n_ranks && comm_leader(x->comm, r) != leader) r++;
    return r;
}
#define RANKS_ON(x, leader, r) (uint32_t r = (leader); r < (x)->model->shards.n_ranks; r = next_on(x, leader, r + 1))

/* The operations [from, to), which end at a barrier or with the program. */
static void give_some(exec *x, uint32_t r, uint32_t from, uint32_t to)
{
    const program *p = x->prog;
    rank_state *k = &x->rank[r];
    feed *f = p == &x->body ? x->model->feed : NULL;
    for (uint32_t i = from; !k->code && i < to; i += 1u + p->code[i].joined) {
        if (f) k->code = feed_enter(f, r, p->code[i].layer, k->stream);
        if (!k->code) give_instr(x, k, &p->code[i]);
    }
    if (to < p->n_code) publish(x, k, from, to);
    else if (f && !k->code) k->code = feed_leave(f, r, k->stream);
}

/* What waits for all ranks; whether this thread can go on behind it. The caller's thread looks whether the run was cancelled. */
static bool give_barrier(exec *x, uint32_t leader)
{
    bool well = true;
    for RANKS_ON(x, leader, r) well = well && !x->rank[r].code;
    if (well) well = (x->rank[leader].code = comm_barrier(x->comm, leader)) == 0;
    for RANKS_ON(x, leader, r) x->device->rank[r].turn++;
    if (leader != 0) return well;
    x->stopped = exec_cancelled(x);
    return well && !x->stopped;
}

/* What a thread says is there until it is in here for the second time from then: by then all have been here once more, and so read it. */
bool device_agree(exec *x, uint32_t leader, bool well)
{
    bool *halts = x->device->halts[x->device->rank[leader].agreed++ & 1], all = true;
    halts[leader] = !well;
    pool_barrier(x->threads, leader);
    for (uint32_t r = 0; r < x->model->shards.n_ranks; r++) all = all && !halts[comm_leader(x->comm, r)];
    return all;
}

/* A barrier of all ranks; false: somebody does not go on. */
static bool meet(exec *x, uint32_t leader)
{
    const bool well = give_barrier(x, leader);
    if (!device_agree(x, leader, well)) return false;
    x->rank[leader].code = comm_pass(x->comm, leader);
    return true;
}

/* Whether the sum that the operations from `c` on begin with is made in two steps; then each rank's share, which a barrier follows. */
static bool give_shares(exec *x, uint32_t leader, const prog_instr *c)
{
    const bool two = sums_in_two(x, &x->rank[leader], c);
    for RANKS_ON(x, leader, r) {
        rank_state *k = &x->rank[r];
        k->shared_sum = two ? c : NULL;
        if (two && !k->code) sums_share(x, k, c);
    }
    return two;
}

/* Gives all operations to the streams of the leader's device; false: the run ended early, here or on another thread. */
static bool give_program(exec *x, uint32_t leader)
{
    const program *p = x->prog;
    for (uint32_t from = 0, to; from < p->n_code; from = to) {
        for (to = from + 1; to < p->n_code && p->code[to].sync != 2;) to++;
        if (give_shares(x, leader, &p->code[from]) && !meet(x, leader)) return false;
        for RANKS_ON(x, leader, r) give_some(x, r, from, to);
        if (to < p->n_code && !meet(x, leader)) return false;
    }
    return true;
}

/* Gives the program and waits for it. */
static tess_status finish(exec *x, int code, uint32_t rank, tess_error *err)
{
    bool lost;
    tess_error first;
    if (code) comm_abort(x->comm);
    tess_status st = code ? devices_fail(comm_devices(x->comm), rank, "an operation could not be started", code, &first) : TESS_OK;
    tess_status end = comm_sync(x->comm, &lost, code ? NULL : &first);
    if (st >= 0) st = end;
    if (st >= 0) return TESS_OK;
    x->broken = lost;
    x->device->counts_lost = true;
    return ERR(err, lost ? TESS_E_BROKEN : st, "%s; %s", first.text,
               lost ? "the context can only be closed" : "the sequences are as before, the step can be tried again");
}

void device_embed(const exec *x, rank_state *k, const prog_instr *c)
{
    size_t stride;
    float *y = slot_at(x, k, c->out, &stride);
    k->code = device_copy(y, x->device->embed[c->weight == WT_POS], stride * x->n_rows * sizeof *y, k->stream);
}

/* Rows of the tables, on the host. */
static void embed_rows(const exec *x, bool pos)
{
    const arch *m = &x->model->a;
    const exec_batch *b = x->batch;
    op_embed_args a = {.w = pos ? &x->model->pos_embed : &x->model->embed,
                       .row_hi = pos ? m->max_ctx : m->vocab_size,
                       .n_tokens = b->n_rows,
                       .n = m->hidden_size,
                       .ids = pos ? (const int32_t *)b->pos : b->ids,
                       .scale = pos ? 1 : (float)m->embed_scale,
                       .y = x->device->embed[pos],
                       .ys = x->rank[0].body.stride[W_HIDDEN]};
    x->model->ops->embed(&a, 0, 1);
}

/* Whether row i is the only one of its sequence. */
static bool row_alone(const exec_batch *b, uint32_t i)
{
    return (i == 0 || b->seq[i - 1] != b->seq[i]) && (i + 1 == b->n_rows || b->seq[i + 1] != b->seq[i]);
}

void device_attn(const exec *x, rank_state *k, const op_attn_args *all)
{
    const exec_batch *b = x->batch;
    for (uint32_t row = 0, end, t = 0, n = 1; row < b->n_rows; row = end) {
        op_attn_args a = *all;
        a.single = row_alone(b, row);
        for (end = row + 1; end < b->n_rows && row_alone(b, end) == a.single;) end++;
        a.b.n_tokens = end - row;
        a.b.pos += row, a.b.seq += row, a.q += row * a.qs, a.out += row * a.os;
        RUN(attn, a);
    }
}

/* What thread `thread` has to do for a body. */
static void give_body(void *arg, uint32_t thread, uint32_t n_threads)
{
    exec *x = arg;
    const uint32_t leader = leader_of(x, thread);
    const int selected = comm_select(x->comm, leader);
    UNUSED(n_threads);
    for RANKS_ON(x, leader, r) {
        rank_state *k = &x->rank[r];
        const rank_device *d = &x->device->rank[r];
        k->code = selected;
        if (!k->code) k->code = device_copy(d->batch, d->stage, d->batch_bytes, k->stream);
        if (!k->code && x->device->counts_lost) k->code = device_fill(k->counts, 0, k->n_counts * sizeof *k->counts, k->stream);
    }
    graph_give(x, leader, give_program);
}

tess_status device_body(exec *x, tess_error *err)
{
    feed *f = x->model->feed;
    uint32_t rank = 0;
    embed_rows(x, false);
    if (x->model->a.learned_pos) embed_rows(x, true);
    int code = f ? feed_begin(f, &rank) : 0;
    if (!code) {
        graph_begin(x);
        pool_run(x->threads, give_body, x);
        graph_end(x);
        x->device->counts_lost = false; /* or the run fails, and they are again */
        code = first_code(x, &rank);
        if (!code && f && !x->stopped) code = feed_first(f, &rank);
    }
    if (!code && x->batch->head_follows && !x->stopped && !f) return TESS_OK; /* the head waits */
    tess_status st = finish(x, code, MIN(rank, x->model->shards.n_ranks - 1), err);
    if (f) feed_end(f);
    return st;
}

/* Brings the chosen rows of the body's last state to where the head reads them. */
static void take_rows(exec *x, uint32_t r)
{
    rank_state *k = &x->rank[r];
    rank_device *d = &x->device->rank[r];
    const uint32_t t = 0, n = 1;
    op_gather_args a = {.x = k->act + k->body.off[x->body.out_slot],
                        .xs = k->body.stride[W_HIDDEN],
                        .rows = d->rows,
                        .n = x->n_rows,
                        .cols = x->model->a.hidden_size,
                        .y = k->act + k->head.off[x->head.in_slot],
                        .ys = k->head.stride[W_HIDDEN]};
    if (!k->code) k->code = device_copy(d->rows, x->device->rows, x->n_rows * sizeof *d->rows, k->stream);
    RUN(gather, a);
}

/* The logits to the host. */
static void give_logits(exec *x, uint32_t r)
{
    rank_state *k = &x->rank[r];
    const shard_range own = x->model->shards.rank[r].vocab;
    const size_t f = sizeof(float);
    if (!k->code)
        k->code = device_copy_rows(x->logits + own.lo, x->logits_stride * f, k->logits, k->logits_stride * f, (own.hi - own.lo) * f,
                                   x->n_rows, k->stream);
}

/* The n_best best of each of the rank's leaves to the host. */
static void give_best(exec *x, uint32_t r, uint32_t n_best)
{
    rank_state *k = &x->rank[r];
    const rank_device *d = &x->device->rank[r];
    const shard_rank *own = &x->model->shards.rank[r];
    const arch_axis *axis = &x->model->shards.vocab;
    best_args a = {.x = k->logits, .xs = k->logits_stride, .n_rows = x->n_rows, .first_id = own->vocab.lo, .k = n_best,
                   .n_leaves = own->vocab_leaf.hi - own->vocab_leaf.lo, .y = d->best};
    const size_t bytes = (size_t)a.n_rows * a.n_leaves * best_bytes(n_best);
    for (uint32_t i = 0; i <= a.n_leaves; i++)
        a.leaf[i] = (uint32_t)axis_elem(axis, axis->leaf[own->vocab_leaf.lo + i]) - own->vocab.lo;
    if (a.n_leaves == 0 || k->code) return;
    k->code = best_of_leaves(&a, k->stream);
    if (!k->code) k->code = device_copy(x->device->best + best_room(own->vocab_leaf.lo), d->best, bytes, k->stream);
}

typedef struct { exec *x; uint32_t n_best; } head_job; /* n_best 0: all logits */

/* What thread `thread` has to do for a head. */
static void give_head(void *arg, uint32_t thread, uint32_t n_threads)
{
    const head_job *job = arg;
    exec *x = job->x;
    const uint32_t leader = leader_of(x, thread);
    const int selected = comm_select(x->comm, leader);
    UNUSED(n_threads);
    for RANKS_ON(x, leader, r) {
        x->rank[r].code = selected;
        take_rows(x, r);
    }
    if (!give_program(x, leader)) return;
    for RANKS_ON(x, leader, r)
        if (job->n_best) give_best(x, r, job->n_best);
        else give_logits(x, r);
}

/* n_best: what of the logits comes to the host, as head_job has it. */
static tess_status run_head(exec *x, const uint32_t *rows, uint32_t n_best, tess_error *err)
{
    head_job job = {x, n_best};
    uint32_t rank = 0;
    memcpy(x->device->rows, rows, x->n_rows * sizeof *rows);
    pool_run(x->threads, give_head, &job);
    const int code = first_code(x, &rank);
    return finish(x, code, MIN(rank, x->model->shards.n_ranks - 1), err);
}

tess_status device_head(exec *x, const uint32_t *rows, tess_error *err) { return run_head(x, rows, 0, err); }

/* The leaves of all ranks, ascending. */
static void join_best(const exec *x, uint32_t row, uint32_t n_best, sampler_best *out)
{
    const best_leaf *leaf[BEST_LEAVES];
    uint32_t n = 0;
    for (uint32_t r = 0; r < x->model->shards.n_ranks; r++) {
        const shard_range own = x->model->shards.rank[r].vocab_leaf;
        const uint8_t *at = x->device->best + best_room(own.lo) + (size_t)row * (own.hi - own.lo) * best_bytes(n_best);
        for (uint32_t i = own.lo; i < own.hi; i++, at += best_bytes(n_best)) leaf[n++] = (const best_leaf *)(const void *)at;
    }
    sampler_best_join(leaf, n, n_best, out);
}

tess_status device_head_best(exec *x, const uint32_t *rows, uint32_t k, sampler_best *const *out, tess_error *err)
{
    TRY(run_head(x, rows, k, err));
    for (uint32_t i = 0; i < x->n_rows; i++) join_best(x, i, k, out[i]);
    return TESS_OK;
}
