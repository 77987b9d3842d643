/*
 * exec_sums.c - sums over ranks on devices, in one step or in two.
 *
 * In one step every rank reads all partial sums of the others, whole rows, and adds all of them. In two, a rank adds the columns of
 * its share alone - the same tree, bias and residual, so the same bits - into memory of its own; behind a barrier more, all
 * read the shares of all, and the norm has its whole row: what is exchanged are columns, finished. Ranks write nothing into each
 * other's memory, as in one step: a write that a bad link drops could change a result, a flag that it drops is noticed.
 *
 * Which one: with P partial sums of C bytes over R ranks, a rank reads P (1 - 1/R) C from others in one step, in two
 * P (1 - 1/R) C / R and (1 - 1/R) C. In two steps there is a launch and a barrier more. They are taken when what is not read would take
 * a link longer than these: TWO_FROM bytes, 5 us (a launch 2, a barrier 3) at 400 GB/s, as NVLink has them; reckoned, not measured. So
 * a decoding step takes one (8 ranks, hidden 4096: up to 24 rows; 2 ranks: 85), a prompt two. Ranks on one device have no link
 * between them, ranks that can not read each other's memory go through outboxes: they take one. It changes no bit.
 *
 * A rank's shares are memory for one sum: between the reads of one and the writes of the next is the barrier behind which
 * the next one's partial sums are read.
 */
#include "device.h"
#include "exec_priv.h"

#define TWO_FROM (2u << 20)
enum { LINE = 128 / sizeof(float) };

void sums_open(exec *x) { x->two_from = comm_leaders(x->comm) > 1 && !device_outboxes(x) ? TWO_FROM : UINT64_MAX; }

/* Bytes that a rank reads less in two steps. */
static uint64_t saved(const exec *x, uint32_t n_rows, uint32_t parts)
{
    const uint64_t ranks = x->model->shards.n_ranks, bytes = (uint64_t)n_rows * x->model->a.hidden_size * sizeof(float);
    if (parts * (ranks - 1) <= ranks) return 0; /* one rank, or two with one sum each */
    return bytes * (ranks - 1) * (parts * (ranks - 1) - ranks) / (ranks * ranks);
}

bool sums_in_two(const exec *x, const rank_state *k, const prog_instr *c)
{
    const float *parts[MAX_LEAVES];
    if (x->two_from == UINT64_MAX || c->op != PROG_REDUCE || c->sync != 2 || !x->prog->slots[c->in[0]].shared) return false;
    return saved(x, x->n_rows, exec_sum(x, k, c, parts).n_leaves) >= x->two_from;
}

/* Columns of a share: whole lines of memory; the last shares may be short or empty. */
static uint32_t share_columns(const exec *x)
{
    const uint32_t lines = (x->model->a.hidden_size + LINE - 1) / LINE, ranks = x->model->shards.n_ranks;
    return (lines + ranks - 1) / ranks * LINE;
}

tess_status sums_reach(exec *x, uint32_t r, uint32_t n_rows, tess_error *err)
{
    rank_state *k = &x->rank[r];
    const size_t want = (size_t)n_rows * share_columns(x);
    if (want <= k->shares_floats || saved(x, n_rows, MAX_LEAVES) < x->two_from) return TESS_OK;
    k->shares_floats = 0;
    TRY(device_renew(x, r, "sums", &k->shares, NULL, want, err));
    k->shares_floats = want;
    return TESS_OK;
}

void sums_share(const exec *x, rank_state *k, const prog_instr *c)
{
    const float *parts[MAX_LEAVES];
    op_reduce_args a = exec_sum(x, k, c, parts);
    const uint32_t cols = share_columns(x), lo = MIN(k->rank * cols, a.n);
    exec_sum_columns(&a, parts, lo, MIN(lo + cols, a.n));
    a.y = k->shares;
    a.ys = cols;
    k->code = k->cuda->reduce(&a, k->stream);
}

op_reduce_args sums_beside(const exec *x, const rank_state *k, const prog_instr *c, const float **parts)
{
    const uint32_t n = x->model->a.hidden_size, cols = share_columns(x);
    op_reduce_args a = {
        .parts = parts, .n_leaves = (n + cols - 1) / cols, .ps = cols, .share = cols, .scale = 1, .n_tokens = x->n_rows, .n = n};
    for (uint32_t s = 0; s < a.n_leaves; s++) parts[s] = x->rank[s].shares;
    a.y = slot_at(x, k, c->out, &a.ys);
    return a;
}
