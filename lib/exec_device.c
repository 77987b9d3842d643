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
 *
 * A step brings to each rank, in one copy each: the batch (positions, sequences, addresses of pages) and the embedded rows, which
 * the CPU takes from the table in its memory. The batch of a rank is one block, on the host and on the device alike:
 *   pos[n_rows], seq[n_rows] (u32); with a K bias kept apart, for each kind of attention the addresses of the rope tables of each
 *   sequence, cs[n_seqs] and lanes[n_seqs]; for each group of layers tables[n_seqs] (addresses in this block on the device); then for
 *   each group and sequence the addresses of its pages. Parts start at multiples of 16. So all that kernels are told the place of lies
 *   at the same place for equally many rows and sequences (exec_graph.c).
 */
#include "after_ops.h"
#include "best_ops.h"
#include "device.h"
#include "exec_priv.h"

typedef struct {
    uint8_t *batch, *stage;  /* on the device, pinned on the host: batch_cap bytes each */
    size_t batch_cap, batch_bytes;
    float *alibi;
    uint32_t alibi_rows;
    uint32_t *rows;          /* [EXEC_HEAD_ROWS] of the head */
    uint8_t *best;           /* [EXEC_HEAD_ROWS][leaves of the rank] records of best_ops.h, with room for BEST_MOST ids */
    uint32_t agreed;         /* how often the rank's thread was in device_agree */
    uint32_t turn;           /* barriers of all ranks so far, as the rank's thread has come */
} rank_device;
struct exec_device {
    rank_device rank[MAX_RANKS];
    float *embed[2];         /* pinned, [max_rows][stride of W_HIDDEN]: of tokens, of learned positions */
    uint32_t *rows;          /* pinned, as the ranks' */
    uint8_t *best;           /* pinned, those of all ranks one behind the other */
    size_t *out_off;         /* [slots of the body] place of a shared slot in a half of an outbox, bytes; NULL: none is needed */
    bool halts[2][MAX_RANKS]; /* what threads say to each other, by leader (device_agree) */
    bool counts_lost;        /* a launch failed: counts may not be 0 */
};

tess_status device_no_memory(const exec *x, uint32_t r, const char *what, uint64_t bytes, int code, tess_error *err)
{
    return ERR(err, TESS_E_NOMEM, "%s: no %llu MB of memory for %s: %s", devices_name(comm_devices(x->comm), r).text, (unsigned long long)((bytes >> 20) + 1), what, device_error(code));
}

/* ---- open, close ---- */

/* Bytes of a shared slot of rank k, all leaves at the distance that the arena has. */
static uint64_t slot_bytes(const exec *x, const rank_state *k, uint16_t slot)
{
    uint8_t w = x->body.slots[slot].width;
    return (uint64_t)k->body.stride[w] * k->body.leaves[w] * k->body.rows * sizeof(float);
}

/* A half of an outbox holds from one barrier to the next: a shared slot must be read behind the first barrier after it was written. */
static bool read_at_once(const program *p)
{
    for (uint32_t i = 0, barrier = 0; i < p->n_code; i++) {
        const prog_instr *c = &p->code[i];
        if (c->sync == 2) barrier = i;
        for (int j = 0; j < 3; j++) {
            if (c->in[j] == NO_SLOT || !p->slots[c->in[j]].shared) continue;
            uint32_t first = p->slots[c->in[j]].first;
            if (first >= barrier) return false;
            for (uint32_t k = first + 1; k < barrier; k++)
                if (p->code[k].sync == 2) return false;
        }
    }
    return true;
}

/* Places of the shared slots in outboxes: those that become visible at one barrier lie beside each other. */
static tess_status plan_outboxes(exec *x, tess_error *err)
{
    const program *p = &x->body;
    uint32_t n_ranks = x->model->shards.n_ranks;
    uint64_t at = 0, most = 0;
    bool any = false;
    for (uint32_t r = 0; r < n_ranks; r++) any = any || comm_blind(x->comm, r);
    if (!any) return TESS_OK;
    if (!read_at_once(p)) return ERR(err, TESS_E_UNSUPPORTED, "this model needs devices with peer access");
    x->device->out_off = mem_calloc(&x->m, p->n_slots, sizeof *x->device->out_off);
    if (!x->device->out_off) return ERR(err, TESS_E_NOMEM, "no memory for a context");
    for (uint32_t i = 0; i < p->n_code; i++) {
        uint16_t out = p->code[i].out;
        if (p->code[i].sync == 2) at = 0;
        if (out == NO_SLOT || !p->slots[out].shared || p->slots[out].first != i) continue;
        uint64_t bytes = 0;
        for (uint32_t r = 0; r < n_ranks; r++) bytes = MAX(bytes, slot_bytes(x, &x->rank[r], out));
        x->device->out_off[out] = (size_t)at;
        most = MAX(most, at += bytes);
    }
    for (uint32_t r = 0; r < n_ranks; r++)
        if (comm_blind(x->comm, r)) TRY(comm_outbox_open(x->comm, r, (size_t)most, err));
    return TESS_OK;
}

/* Bytes of the records of so many leaves. */
static size_t best_room(uint32_t leaves) { return (size_t)EXEC_HEAD_ROWS * leaves * best_bytes(BEST_MOST); }

/* What the blocks of a launch count in (after_ops.h). */
static tess_status open_counts(exec *x, uint32_t r, tess_error *err)
{
    rank_state *k = &x->rank[r];
    const plan *b = &k->body;
    const shard_rank *s = &x->model->shards.rank[r];
    const uint32_t heads = s->q_head.hi - s->q_head.lo + 2 * (s->kv_head.hi - s->kv_head.lo);
    void *p = NULL;
    k->n_counts = after_counts(MAX(b->stride[W_FFN], b->stride[W_SHARED]), b->stride[W_HIDDEN], heads, MAX_LEAVES);
    int code = device_alloc(&p, k->n_counts * sizeof *k->counts);
    k->counts = p;
    if (!code) code = device_fill(p, 0, k->n_counts * sizeof *k->counts, k->stream);
    return code ? device_no_memory(x, r, "activations", k->n_counts * sizeof *k->counts, code, err) : TESS_OK;
}

static tess_status open_rank(exec *x, uint32_t r, tess_error *err)
{
    rank_state *k = &x->rank[r];
    rank_device *d = &x->device->rank[r];
    const shard_range vocab = x->model->shards.rank[r].vocab, leaf = x->model->shards.rank[r].vocab_leaf;
    uint64_t act = (k->body.floats + k->head.floats) * sizeof(float), logits, rows = EXEC_HEAD_ROWS * sizeof(uint32_t);
    void *p = NULL, *q = NULL, *s = NULL, *b = NULL;
    if (!u64_align(vocab.hi - vocab.lo, 16, &logits)) return ERR(err, TESS_E_ARG, "the vocabulary is too large");
    k->logits_stride = (uint32_t)logits;
    logits *= EXEC_HEAD_ROWS * sizeof(float);
    int code = comm_select(x->comm, r);
    if (!code) code = device_alloc(&p, (size_t)act + 1);
    if (!code) code = device_alloc(&q, (size_t)logits + 1);
    if (!code) code = device_alloc(&s, (size_t)rows);
    if (!code) code = device_alloc(&b, best_room(leaf.hi - leaf.lo));
    k->act = p;
    k->logits = q;
    d->rows = s;
    d->best = b;
    return code ? device_no_memory(x, r, "activations", act + logits, code, err) : open_counts(x, r, err);
}

tess_status device_open(exec *x, tess_error *err)
{
    void *p = NULL;
    uint64_t embed = (uint64_t)x->max_rows * x->rank[0].body.stride[W_HIDDEN] * sizeof(float);
    uint64_t logits = (uint64_t)EXEC_HEAD_ROWS * x->logits_stride * sizeof(float);
    exec_device *d = x->device = mem_zalloc(&x->m, sizeof *x->device);
    if (!d) return ERR(err, TESS_E_NOMEM, "no memory for a context");
    if (!x->model->cuda) return ERR(err, TESS_E_DEVICE, "this program was built without CUDA");
    TRY(gemm_allow(x, err));
    for (uint32_t r = 0; r < x->model->shards.n_ranks; r++) {
        TRY(open_rank(x, r, err));
        TRY(gemm_open(x, r, err));
    }
    int code = device_host_alloc(&p, (size_t)embed);
    d->embed[0] = p;
    if (!code && x->model->a.learned_pos) code = device_host_alloc(&p, (size_t)embed), d->embed[1] = code ? NULL : p;
    if (!code) code = device_host_alloc(&p, EXEC_HEAD_ROWS * sizeof *d->rows), d->rows = code ? NULL : p;
    if (!code) code = device_host_alloc(&p, best_room(x->model->shards.vocab.n_leaves)), d->best = code ? NULL : p;
    if (!code) code = device_host_alloc(&p, (size_t)logits), x->logits = code ? NULL : p;
    if (code) return device_no_memory(x, 0, "pinned memory", embed + logits, code, err);
    TRY(plan_outboxes(x, err));
    sums_open(x);
    return TESS_OK;
}

void device_close(exec *x)
{
    exec_device *d = x->device;
    bool lost;
    (void)comm_sync(x->comm, &lost, NULL);
    graphs_end(x);
    for (uint32_t r = 0; d && r < x->model->shards.n_ranks; r++) {
        rank_state *k = &x->rank[r];
        rank_device *g = &d->rank[r];
        (void)comm_select(x->comm, r);
        device_free(k->act);
        device_free(k->scratch);
        device_free(k->shares);
        gemm_close(k);
        device_free(k->logits);
        device_free(k->counts);
        device_free(g->rows);
        device_free(g->best);
        device_free(g->batch);
        device_host_free(g->stage);
        device_free(g->alibi);
        for (uint32_t l = 0; l < x->n_ropes; l++)
            for (uint32_t i = 0; i < ARCH_MAX_ATTN_KINDS; i++) {
                device_free(x->ropes[l].copy[r][i]);
                device_free(x->ropes[l].lanes_copy[r][i]);
            }
        k->act = k->scratch = k->shares = k->logits = NULL;
        k->counts = NULL;
    }
    if (d) {
        device_host_free(d->embed[0]);
        device_host_free(d->embed[1]);
        device_host_free(d->rows);
        device_host_free(d->best);
        mem_free(&x->m, d->out_off);
    }
    device_host_free(x->logits);
    x->logits = NULL;
    mem_free(&x->m, d);
    x->device = NULL;
}

/* ---- before a step: what it needs beyond what is there ---- */

tess_status device_renew(exec *x, uint32_t r, const char *what, float **old, const float *src, uint64_t floats, tess_error *err)
{
    void *p;
    int code = device_alloc(&p, (size_t)floats * sizeof(float));
    if (code) return device_no_memory(x, r, what, floats * sizeof(float), code, err);
    graphs_end(x);
    device_free(*old);
    *old = p;
    if (src) code = device_copy(p, src, (size_t)floats * sizeof(float), comm_stream(x->comm, r));
    return code ? devices_fail(comm_devices(x->comm), r, "copying a table failed", code, err) : TESS_OK;
}

static tess_status reach_tables(exec *x, uint32_t r, tess_error *err)
{
    const arch *a = &x->model->a;
    rank_state *k = &x->rank[r];
    rank_device *d = &x->device->rank[r];
    for (uint32_t l = 0; l < x->n_ropes; l++)
        for (uint32_t i = 0; i < ARCH_MAX_ATTN_KINDS; i++) {
            rope_set *s = &x->ropes[l];
            const uint64_t n = (uint64_t)s->rows[i] * a->rope_dims;
            if (s->rows[i] <= s->copied[r][i]) continue;
            TRY(device_renew(x, r, "the rope table", &s->copy[r][i], s->cs[i], n, err));
            if (x->kbias.heads) TRY(device_renew(x, r, "the rope table", &s->lanes_copy[r][i], s->lanes[i], n, err));
            s->copied[r][i] = s->rows[i];
        }
    if (x->alibi_rows > d->alibi_rows) TRY(device_renew(x, r, "the position biases", &d->alibi, x->alibi, (uint64_t)x->alibi_rows * a->n_heads, err));
    d->alibi_rows = x->alibi_rows;
    k->alibi = d->alibi;
    return TESS_OK;
}

static tess_status reach_scratch(exec *x, uint32_t r, const exec_batch *b, tess_error *err)
{
    rank_state *k = &x->rank[r];
    const shard_range q = x->model->shards.rank[r].q_head;
    size_t want = op_cuda_attn_scratch(b->n_rows, q.hi - q.lo, arch_v_dim(&x->model->a), x->positions);
    if (want <= k->scratch_floats) return TESS_OK;
    k->scratch_floats = 0;
    TRY(device_renew(x, r, "attention", &k->scratch, NULL, want, err));
    k->scratch_floats = want;
    return TESS_OK;
}

static size_t align16(size_t n) { return (n + 15) & ~(size_t)15; }

/* Pages of sequence s that its rows of this batch may read or write. */
static size_t pages_of(const exec *x, const exec_batch *b, uint32_t s)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < b->n_rows; i++)
        if (b->seq[i] == s) last = MAX(last, b->pos[i]);
    return last / x->kv->page_tokens + 1;
}

/* The addresses of rope tables, for what kbias keeps apart; from `at` on, gives what follows them. */
static size_t put_ropes(exec *x, const exec_batch *b, uint32_t r, uint8_t *stage, size_t at)
{
    rank_state *k = &x->rank[r];
    const size_t list = align16(b->n_seqs * sizeof(void *));
    for (uint32_t i = 0; x->kbias.heads && i < x->model->a.n_attn_kinds; i++, at += 2 * list) {
        if (!stage) continue;
        const uint8_t *there = x->device->rank[r].batch + at;
        k->kbias_cs[i] = (const float *const *)(const void *)there;
        k->kbias_lanes[i] = (const float *const *)(const void *)(there + list);
        const float **cs = (const float **)(void *)(stage + at), **lanes = (const float **)(void *)(stage + at + list);
        for (uint32_t s = 0; s < b->n_seqs; s++) {
            const rope_set *set = exec_rope_set(x, b->rope_key[s]);
            cs[s] = set ? set->copy[r][i] : NULL;
            lanes[s] = set ? set->lanes_copy[r][i] : NULL;
        }
    }
    return at;
}

/* Fills the block of rank r, or only measures it (stage NULL). */
static size_t put_batch(exec *x, const exec_batch *b, uint32_t r, uint8_t *stage, const size_t *n_pages)
{
    rank_state *k = &x->rank[r];
    uint8_t *there = x->device->rank[r].batch;
    const size_t rows = align16(b->n_rows * sizeof *b->pos), list = align16(b->n_seqs * sizeof(void *)), lists = put_ropes(x, b, r, stage, 2 * rows);
    size_t at = lists + x->kv->n_groups * list;
    if (stage) {
        memcpy(stage, b->pos, b->n_rows * sizeof *b->pos);
        memcpy(stage + rows, b->seq, b->n_rows * sizeof *b->seq);
        k->pos = (const uint32_t *)(void *)there;
        k->seq = (const uint32_t *)(void *)(there + rows);
    }
    for (uint32_t g = 0; g < x->kv->n_groups; g++) {
        if (stage) k->tables[g] = (uint8_t *const *const *)(void *)(there + lists + g * list);
        for (uint32_t s = 0; s < b->n_seqs; s++) {
            if (stage) {
                const void *pages = there + at;
                memcpy(stage + lists + g * list + s * sizeof pages, &pages, sizeof pages);
                memcpy(stage + at, b->tables[g][r][s], n_pages[s] * sizeof(void *));
            }
            at += align16(n_pages[s] * sizeof(void *));
        }
    }
    return at;
}

static tess_status reach_batch(exec *x, uint32_t r, const exec_batch *b, const size_t *n_pages, tess_error *err)
{
    rank_device *d = &x->device->rank[r];
    void *p = NULL, *q = NULL;
    d->batch_bytes = put_batch(x, b, r, NULL, n_pages);
    if (d->batch_bytes > d->batch_cap) {
        size_t cap = d->batch_bytes + d->batch_bytes / 2;
        int code = device_alloc(&p, cap);
        if (!code) code = device_host_alloc(&q, cap);
        if (code) {
            device_free(p);
            return device_no_memory(x, r, "block tables", cap, code, err);
        }
        graphs_end(x);
        device_free(d->batch);
        device_host_free(d->stage);
        d->batch = p;
        d->stage = q;
        d->batch_cap = cap;
    }
    put_batch(x, b, r, d->stage, n_pages);
    return TESS_OK;
}

tess_status device_prepare(exec *x, const exec_batch *b, tess_error *err)
{
    tess_status st = TESS_OK;
    size_t *n_pages = mem_calloc(&x->m, b->n_seqs, sizeof *n_pages);
    if (!n_pages) return ERR(err, TESS_E_NOMEM, "no memory for %u sequences", b->n_seqs);
    for (uint32_t s = 0; s < b->n_seqs; s++) n_pages[s] = pages_of(x, b, s);
    for (uint32_t r = 0; st >= 0 && r < x->model->shards.n_ranks; r++) {
        int code = comm_select(x->comm, r);
        if (code) st = devices_fail(comm_devices(x->comm), r, "the device can not be used", code, err);
        if (st >= 0) st = reach_tables(x, r, err);
        if (st >= 0) st = reach_scratch(x, r, b, err);
        if (st >= 0) st = sums_reach(x, r, b->n_rows, err);
        if (st >= 0) st = reach_batch(x, r, b, n_pages, err);
    }
    mem_free(&x->m, n_pages);
    return st;
}

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
    return ERR(err, lost ? TESS_E_BROKEN : st, "%s; %s", first.text, lost ? "the context can only be closed" : "the sequences are as before, the step can be tried again");
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
    op_embed_args a = {.w = pos ? &x->model->pos_embed : &x->model->embed, .row_hi = pos ? m->max_ctx : m->vocab_size, .n_tokens = b->n_rows, .n = m->hidden_size,
                       .ids = pos ? (const int32_t *)b->pos : b->ids, .scale = pos ? 1 : (float)m->embed_scale, .y = x->device->embed[pos],
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
    op_gather_args a = {.x = k->act + k->body.off[x->body.out_slot], .xs = k->body.stride[W_HIDDEN], .rows = d->rows, .n = x->n_rows, .cols = x->model->a.hidden_size,
                        .y = k->act + k->head.off[x->head.in_slot], .ys = k->head.stride[W_HIDDEN]};
    if (!k->code) k->code = device_copy(d->rows, x->device->rows, x->n_rows * sizeof *d->rows, k->stream);
    RUN(gather, a);
}

/* The logits to the host. */
static void give_logits(exec *x, uint32_t r)
{
    rank_state *k = &x->rank[r];
    const shard_range own = x->model->shards.rank[r].vocab;
    const size_t f = sizeof(float);
    if (!k->code) k->code = device_copy_rows(x->logits + own.lo, x->logits_stride * f, k->logits, k->logits_stride * f, (own.hi - own.lo) * f, x->n_rows, k->stream);
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
