/*
 * exec_buffers.c - memory of the ranks on devices: for the life of a context, and, before a step, what that needs beyond what is there.
 *
 * A step brings to each rank, in one copy each: the batch (positions, sequences, addresses of pages) and the embedded rows, which
 * the CPU takes from the table in its memory. The batch of a rank is one block, on the host and on the device alike:
 *   pos[n_rows], seq[n_rows] (u32); with a K bias kept apart, for each kind of attention the addresses of the rope tables of each
 *   sequence, cs[n_seqs] and lanes[n_seqs]; for each group of layers tables[n_seqs] (addresses in this block on the device); then for
 *   each group and sequence the addresses of its pages. Parts start at multiples of 16. So all that kernels are told the place of lies
 *   at the same place for equally many rows and sequences (exec_graph.c).
 */
#include "after_ops.h"
#include "device.h"
#include "exec_device.h"

tess_status device_no_memory(const exec *x, uint32_t r, const char *what, uint64_t bytes, int code, tess_error *err)
{
    return ERR(err, TESS_E_NOMEM, "%s: no %llu MB of memory for %s: %s", devices_name(comm_devices(x->comm), r).text,
               (unsigned long long)((bytes >> 20) + 1), what, device_error(code));
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
    if (x->alibi_rows > d->alibi_rows)
        TRY(device_renew(x, r, "the position biases", &d->alibi, x->alibi, (uint64_t)x->alibi_rows * a->n_heads, err));
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
    const size_t rows = align16(b->n_rows * sizeof *b->pos), list = align16(b->n_seqs * sizeof(void *)),
                 lists = put_ropes(x, b, r, stage, 2 * rows);
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
