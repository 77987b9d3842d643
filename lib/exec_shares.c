/*
 * exec_shares.c - many rows: a linear or an attention is cut in more shares than there are threads.
 *
 * Threads take shares one by one, so one that another program holds up, or whose core is slower, leaves the rest to the others and
 * nobody waits long at the next barrier. An operation writes the same bits however it is cut. Attention must not split its chunks here
 * (its barrier counts threads, not shares): it is given none.
 *
 * taken[rank][instruction] counts the shares taken in this run. Shares of one operation do not depend on each other, and the barriers
 * between operations order memory, so the counters need no order.
 */
#include "exec_priv.h"

enum { SHARES = 4 }; /* of a thread */

tess_status exec_shares_open(exec *x, tess_error *err)
{
    x->taken = mem_calloc(&x->m, (uint64_t)x->model->shards.n_ranks * MAX(x->body.n_code, x->head.n_code), sizeof *x->taken);
    return x->taken ? TESS_OK : ERR(err, TESS_E_NOMEM, "no memory for the shares of %zu operations", x->body.n_code);
}

/* Before the threads start. */
void exec_shares_reset(exec *x)
{
    if (x->n_rows >= SHARES_ROWS) memset(x->taken, 0, x->model->shards.n_ranks * x->prog->n_code * sizeof *x->taken);
}

void exec_shares(const exec *x, rank_state *k, const prog_instr *c, uint32_t *taken)
{
    const uint32_t n = k->n_threads > 1 ? k->n_threads * SHARES : 1;
    for (uint32_t i; (i = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < n;) exec_instr(x, k, c, i, n);
}
