/* step.c - one step: choose rows, take pages, run, sample, report. See ctx.h. */
#include "ctx.h"

static bool wants_rows(const tess_ctx *c, const ctx_seq *s)
{
    if (!s->open || s->parked || s->n_done >= s->n) return false;
    return !s->finished || ((s->p.flags & TESS_SEQ_FEED_LAST) && s->n <= c->p.max_seq_tokens);
}

/* What a prompt has in common with sequences before it need not be run, but for its last id. */
static void share_prefix(tess_ctx *c, ctx_seq *s)
{
    if (s->n_done % c->p.page_tokens || (s->p.flags & TESS_SEQ_ALL_LOGITS)) return;
    const size_t done = kv_prefix_take(&c->kv, s->rope_key, s->ids, s->n - 1, s->tables, s->n_done);
    c->tokens_shared += done - s->n_done;
    s->n_done = done;
}

/* Fills batch_seq and take: decoding sequences first, then prompts by order of opening. Gives the number of sequences. */
static uint32_t choose(tess_ctx *c)
{
    uint32_t n = 0, room = c->p.max_step_tokens;
    for (uint32_t i = 0; i < c->p.max_seqs && room; i++)
        if (wants_rows(c, &c->seqs[i]) && c->seqs[i].n - c->seqs[i].n_done == 1) {
            c->batch_seq[n] = i;
            c->take[n++] = 1;
            room--;
        }
    uint64_t after = 0;
    while (room) {
        ctx_seq *next = NULL;
        for (uint32_t i = 0; i < c->p.max_seqs; i++) {
            ctx_seq *s = &c->seqs[i];
            if (wants_rows(c, s) && s->n - s->n_done > 1 && s->opened > after && (!next || s->opened < next->opened)) next = s;
        }
        if (!next) break;
        after = next->opened;
        share_prefix(c, next);
        c->batch_seq[n] = (uint32_t)(next - c->seqs);
        c->take[n] = (uint32_t)MIN((size_t)room, next->n - next->n_done);
        room -= c->take[n++];
    }
    return n;
}

static bool has_pages(const tess_ctx *c, const ctx_seq *s)
{
    for (uint32_t g = 0; g < c->kv.n_groups; g++)
        if (s->tables[g].n) return true;
    return false;
}

/* A better victim than `best`: one that has nothing to run before one that has, then the younger one. Of the sequences that have
 * something to run only those younger than `keep` count, so that the oldest always gets on. */
static bool is_victim(const tess_ctx *c, const ctx_seq *s, const ctx_seq *keep, const ctx_seq *best)
{
    bool busy = wants_rows(c, s);
    if (s == keep || !s->open || !has_pages(c, s) || (busy && s->opened < keep->opened)) return false;
    if (!best || busy != wants_rows(c, best)) return !best || !busy;
    return s->opened > best->opened;
}

/* Takes the pages of another sequence, which is computed again when it goes on; false when there is none. */
static bool preempt(tess_ctx *c, const ctx_seq *keep)
{
    ctx_seq *victim = NULL;
    for (uint32_t i = 0; i < c->p.max_seqs; i++)
        if (is_victim(c, &c->seqs[i], keep, victim)) victim = &c->seqs[i];
    if (!victim) return false;
    for (uint32_t g = 0; g < c->kv.n_groups; g++) kv_table_truncate(&c->kv, g, &victim->tables[g], 0);
    victim->parked = !wants_rows(c, victim); /* sleeps until ids are appended */
    victim->n_done = 0; /* ids stay: only K and V are computed again */
    c->preemptions++;
    return true;
}

static tess_status reserve(tess_ctx *c, ctx_seq *s, uint32_t rows, tess_error *err)
{
    for (uint32_t g = 0; g < c->kv.n_groups; g++)
        for (;;) {
            tess_status st = kv_table_reserve(&c->kv, g, &s->tables[g], s->n_done, s->n_done + rows, err);
            if (st >= 0) break;
            if (st != TESS_E_KV_FULL || !preempt(c, s)) return st;
        }
    return TESS_OK;
}

/* Pages for all chosen rows. A sequence that finds none waits, as long as another one can go on; one that lost its pages to
 * an older one on the way is left out of this step. */
static tess_status take_pages(tess_ctx *c, uint32_t *n, tess_error *err)
{
    uint32_t kept = 0;
    tess_status full = TESS_OK;
    for (uint32_t i = 0; i < *n; i++) {
        ctx_seq *s = &c->seqs[c->batch_seq[i]];
        tess_status st = reserve(c, s, c->take[i], err);
        if (st == TESS_E_KV_FULL) full = st, c->take[i] = 0; /* the rows may be in its table already, in pages of others */
        else if (st < 0) return st;
    }
    for (uint32_t i = 0; i < *n; i++) {
        ctx_seq *s = &c->seqs[c->batch_seq[i]];
        bool ready = c->take[i] > 0;
        for (uint32_t g = 0; g < c->kv.n_groups; g++) ready = ready && s->tables[g].n * c->p.page_tokens >= s->n_done + c->take[i];
        if (!ready || s->n_done + c->take[i] > s->n) continue;
        c->batch_seq[kept] = c->batch_seq[i];
        c->take[kept++] = c->take[i];
    }
    *n = kept;
    if (kept == 0 && full < 0) return full;
    return TESS_OK;
}

static void build_batch(tess_ctx *c, uint32_t n, exec_batch *b)
{
    *b = (exec_batch){.n_seqs = n, .ids = c->ids, .pos = c->pos, .seq = c->seq_of, .rope_key = c->rope_key};
    for (uint32_t i = 0; i < n; i++) {
        const ctx_seq *s = &c->seqs[c->batch_seq[i]];
        c->rope_key[i] = s->rope_key;
        for (uint32_t j = 0; j < c->take[i]; j++, b->n_rows++) {
            c->ids[b->n_rows] = s->ids[s->n_done + j];
            c->pos[b->n_rows] = (uint32_t)(s->n_done + j);
            c->seq_of[b->n_rows] = i;
            b->max_pos = MAX(b->max_pos, c->pos[b->n_rows]);
        }
        for (uint32_t g = 0; g < c->kv.n_groups; g++)
            for (uint32_t r = 0; r < c->kv.n_ranks; r++) c->tables[g][r][i] = s->tables[g].base[r];
    }
    for (uint32_t g = 0; g < c->kv.n_groups; g++)
        for (uint32_t r = 0; r < c->kv.n_ranks; r++) b->tables[g][r] = c->tables[g][r];
}

/* How many of the best ids the sequence's next draw needs from a device; 0: it, or somebody else, needs all logits. */
static uint32_t best_of(const tess_ctx *c, const ctx_seq *s)
{
    bool all = !c->comm || c->p.on_logits || (s->p.flags & TESS_SEQ_ALL_LOGITS) || s->finished || s->p.max_new == 0;
    return all || c->model->a.vocab_size >= BEST_VOCAB ? 0 : sampler_best_k(&s->p);
}

/* Room for what the end of this step needs - logits, a new id, the scratch of a draw - before anything runs. */
static tess_status prepare_logits(tess_ctx *c, uint32_t n, tess_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        ctx_seq *s = &c->seqs[c->batch_seq[i]];
        if (!s->logits && !(s->logits = mem_calloc(&c->m, c->model->a.vocab_size, sizeof *s->logits)))
            return ERR(err, TESS_E_NOMEM, "no memory for logits");
        if (best_of(c, s) && !s->best) s->best = mem_alloc(&c->m, sizeof *s->best);
        if (best_of(c, s) && !s->best) return ERR(err, TESS_E_NOMEM, "no memory for a draw");
        if (!mem_grow(&c->m, &s->ids, &s->cap, s->n + 1, sizeof *s->ids)) return ERR(err, TESS_E_NOMEM, "no memory for ids");
        if (s->p.max_new) TRY(sampler_reserve(&c->work, c->model->a.vocab_size, &s->p, err));
    }
    return TESS_OK;
}

static void deliver(tess_ctx *c, uint32_t row, const exec_batch *b, const float *logits)
{
    ctx_seq *s = &c->seqs[c->batch_seq[b->seq[row]]];
    size_t vocab = c->model->a.vocab_size;
    tess_seq id = (uint64_t)s->generation << 32 | (uint64_t)(s - c->seqs);
    if (c->p.on_logits) c->p.on_logits(c->p.logits_user, id, b->pos[row], logits, vocab);
    if (b->pos[row] + 1 == s->n) memcpy(s->logits, logits, vocab * sizeof *logits), s->has_best = false;
}

/* Logits of n rows, a few at a time so that a long prompt needs no buffer of its length. */
static tess_status all_logits(tess_ctx *c, const exec_batch *b, const uint32_t *rows, uint32_t n, tess_error *err)
{
    for (uint32_t i = 0; i < n; i += EXEC_HEAD_ROWS) {
        const float *logits;
        size_t stride;
        uint32_t k = MIN(n - i, (uint32_t)EXEC_HEAD_ROWS);
        os_lock_take(c->model->turn);
        tess_status st = exec_head(c->exec, rows + i, k, &logits, &stride, err);
        os_lock_drop(c->model->turn);
        TRY(st);
        for (uint32_t j = 0; j < k; j++) deliver(c, rows[i + j], b, logits + j * stride);
    }
    return TESS_OK;
}

/* The best ids of n rows. A row that no draw can be made from is fetched whole: sampler_draw says what is wrong. */
static tess_status best_ids(tess_ctx *c, const exec_batch *b, const uint32_t *rows, uint32_t n, tess_error *err)
{
    for (uint32_t i = 0; i < n; i += EXEC_HEAD_ROWS) {
        sampler_best *out[EXEC_HEAD_ROWS];
        uint32_t k = MIN(n - i, (uint32_t)EXEC_HEAD_ROWS), most = 0;
        for (uint32_t j = 0; j < k; j++) {
            ctx_seq *s = &c->seqs[c->batch_seq[b->seq[rows[i + j]]]];
            out[j] = s->best;
            s->has_best = true;
            most = MAX(most, best_of(c, s));
        }
        os_lock_take(c->model->turn);
        tess_status st = exec_head_best(c->exec, rows + i, k, most, out, err);
        os_lock_drop(c->model->turn);
        TRY(st);
        for (uint32_t j = 0; j < k; j++)
            if (out[j]->n_bad || out[j]->n_open == 0) TRY(all_logits(c, b, &rows[i + j], 1, err));
    }
    return TESS_OK;
}

/* What is asked for of the rows: at the front of `want` those whose logits are, *n, from *end on those whose best ids will do. */
static void choose_heads(tess_ctx *c, const exec_batch *b, uint32_t *n, uint32_t *end)
{
    *n = 0, *end = c->p.max_step_tokens;
    for (uint32_t r = 0; r < b->n_rows; r++) {
        const ctx_seq *s = &c->seqs[c->batch_seq[b->seq[r]]];
        bool last = b->pos[r] + 1 == s->n;
        if (last && best_of(c, s)) c->want[--*end] = r;
        else if (last || (s->p.flags & TESS_SEQ_ALL_LOGITS)) c->want[(*n)++] = r;
    }
}

static tess_status run_heads(tess_ctx *c, const exec_batch *b, uint32_t n, uint32_t end, tess_error *err)
{
    TRY(all_logits(c, b, c->want, n, err));
    return best_ids(c, b, c->want + end, c->p.max_step_tokens - end, err);
}

static bool is_stop(const tess_ctx *c, const ctx_seq *s, int32_t id)
{
    if (s->p.flags & TESS_SEQ_IGNORE_EOS) return false;
    const tess_token *list = s->p.n_stop ? s->stop : c->model->eos;
    uint32_t n = s->p.n_stop ? s->p.n_stop : c->model->n_eos;
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == id) return true;
    return false;
}

static void send_done(tess_event *ev, size_t *n, tess_seq id, ctx_seq *s, int32_t token, uint32_t reason)
{
    s->finished = true;
    ev[(*n)++] = (tess_event){.seq = id, .token = token, .kind = TESS_EV_DONE, .reason = reason};
}

static tess_status sample(tess_ctx *c, ctx_seq *s, tess_event *ev, size_t *n, tess_error *err)
{
    tess_seq id = (uint64_t)s->generation << 32 | (uint64_t)(s - c->seqs);
    int32_t token;
    float logprob;
    tess_status st;
    if (s->has_best) st = sampler_draw_best(s->best, &s->p, s->draws, &c->work, &token, &logprob, err);
    else
        st = sampler_draw(s->logits, c->model->a.vocab_size, s->ids, s->n, s->n_prompt, &s->p, s->draws, &c->work, &token,
                          &logprob, err);
    if (st < 0) {
        send_done(ev, n, id, s, -1, TESS_DONE_ERROR);
        return st == TESS_E_NONFINITE ? err_prefix(err, st, "after %zu tokens", s->n) : st;
    }
    s->draws++;
    s->ids[s->n++] = token; /* room was made in prepare_logits */
    s->n_out++;
    if (is_stop(c, s, token)) {
        send_done(ev, n, id, s, token, TESS_DONE_STOP);
        ev[*n - 1].logprob = logprob;
        return TESS_OK;
    }
    ev[(*n)++] = (tess_event){id, token, logprob, TESS_EV_TOKEN, 0};
    if (s->n_out >= s->p.max_new || s->n > c->p.max_seq_tokens) send_done(ev, n, id, s, -1, TESS_DONE_LENGTH);
    return TESS_OK;
}

/* After a pass that succeeded: positions count as done, full pages are kept for others, pages behind windows go, complete sequences draw their next id. */
static tess_status commit(tess_ctx *c, uint32_t n_seqs, tess_event *ev, size_t *n, tess_error *err)
{
    tess_status worst = TESS_OK;
    for (uint32_t i = 0; i < n_seqs; i++) {
        ctx_seq *s = &c->seqs[c->batch_seq[i]];
        s->n_done += c->take[i];
        if (s->n_done % c->p.page_tokens < c->take[i] && !(s->p.flags & TESS_SEQ_ALL_LOGITS))
            kv_prefix_keep(&c->kv, s->rope_key, s->ids, s->n_done, s->tables);
        for (uint32_t g = 0; g < c->kv.n_groups; g++) kv_table_pass(&c->kv, g, &s->tables[g], s->n_done);
        const bool complete = s->n_done == s->n;
        s->has_logits = complete && !s->has_best;
        if (!complete || s->finished || s->p.max_new == 0) continue;
        tess_status st = sample(c, s, ev, n, err);
        if (st < 0) worst = st;
    }
    return worst;
}

/* Takes pages for the n_seqs chosen, of which those stay that found some, and runs the body. choose_heads tells what is to follow. */
static tess_status run_body(tess_ctx *c, uint32_t *n_seqs, exec_batch *b, uint32_t *n_logits, uint32_t *best, tess_error *err)
{
    TRY(take_pages(c, n_seqs, err));
    TRY(prepare_logits(c, *n_seqs, err));
    build_batch(c, *n_seqs, b);
    choose_heads(c, b, n_logits, best);
    b->head_follows = *n_logits > 0 || *best < c->p.max_step_tokens;
    TRY(exec_prepare(c->exec, b, err));
    tess_status st = exec_body(c->exec, b, &c->cancel, err);
    if (st < 0) __atomic_store_n(&c->cancel, 0, __ATOMIC_RELAXED);
    return st;
}

tess_status ctx_step(tess_ctx *c, tess_event *ev, size_t *n, tess_error *err)
{
    exec_batch b;
    uint32_t n_logits, best;
    *n = 0;
    if (__atomic_exchange_n(&c->cancel, 0, __ATOMIC_RELAXED)) return ERR(err, TESS_E_CANCELLED, "the step was cancelled");
    for (uint32_t i = 0; i < c->p.max_seqs; i++) ctx_seq_rerun_last(c, &c->seqs[i]);
    uint32_t n_seqs = choose(c);
    if (n_seqs == 0) return TESS_IDLE;
    os_lock_take(c->model->turn);
    tess_status st = run_body(c, &n_seqs, &b, &n_logits, &best, err);
    os_lock_drop(c->model->turn);
    TRY(st);
    TRY(run_heads(c, &b, n_logits, best, err));
    return commit(c, n_seqs, ev, n, err);
}
