/* ctx.c - opening and closing of contexts, and the sequences; the step itself is step.c. */
#include "ctx.h"
#include "device.h"
#include "os.h"

static uint32_t kv_dtype_of(int32_t choice) { return choice == TESS_KV_F32 ? DT_F32 : choice == TESS_KV_INT8 ? DT_I8 : DT_F16; }

enum { PREFIX_BYTES = 256 << 20 };

/* Fills the defaults; refuses what can not be. */
static tess_status resolve(const tess_model *m, const tess_ctx_params *in, tess_ctx_params *p, tess_error *err)
{
    *p = *in;
    const uint32_t limit = m->a.max_ctx;
    if (p->max_seqs == 0) p->max_seqs = 1;
    if (p->max_seq_tokens == 0) p->max_seq_tokens = limit;
    if (p->max_step_tokens == 0) p->max_step_tokens = 512;
    p->max_step_tokens = MAX(MIN(p->max_step_tokens, MAX(p->max_seq_tokens, p->max_seqs)), 1u);
    if (p->page_tokens == 0) p->page_tokens = 32;
    if (p->max_seqs > 1 << 16) return ERR(err, TESS_E_ARG, "max_seqs is %u, the limit is %d", p->max_seqs, 1 << 16);
    if (p->max_seq_tokens > limit)
        return ERR(err, TESS_E_ARG, "a context of %u tokens was asked for; the model is made for %u", p->max_seq_tokens, limit);
    if (p->max_step_tokens > 1 << 20) return ERR(err, TESS_E_ARG, "max_step_tokens is %u, the limit is %d", p->max_step_tokens, 1 << 20);
    if (p->kv_dtype < TESS_KV_AUTO || p->kv_dtype > TESS_KV_INT8) return ERR(err, TESS_E_ARG, "kv_dtype %d is unknown", p->kv_dtype);
    if (p->prefix_bytes < -1)
        return ERR(err, TESS_E_ARG, "prefix_bytes is %lld; give bytes, 0 for the default, or -1", (long long)p->prefix_bytes);
    if (p->prefix_bytes == 0) p->prefix_bytes = PREFIX_BYTES;
    return TESS_OK;
}

/* Pages of ranks on devices. Attention brings positions from memory in blocks of 8, some of which may not be written yet: no result
 * depends on what is there, but it must be something. */
static void *page_alloc(void *user, uint32_t rank, size_t size)
{
    void *p;
    if (comm_select(user, rank) || device_alloc(&p, size)) return NULL;
    if (device_fill(p, 0, size, comm_stream(user, rank)) == 0) return p;
    device_free(p);
    return NULL;
}
static void page_release(void *user, uint32_t rank, void *page)
{
    (void)comm_select(user, rank);
    device_free(page);
}
static bool page_copy(void *user, uint32_t rank, void *dst, const void *src, size_t n)
{
    return comm_select(user, rank) == 0 && device_copy(dst, src, n, comm_stream(user, rank)) == 0;
}

static tess_status open_devices(tess_ctx *c, tess_error *err)
{
    TRY(comm_open(&c->m, &c->model->devices, 0, &c->comm, err));
    c->pages = (kv_memory){c->comm, page_alloc, page_release, page_copy};
    kv_pool_place(&c->kv, &c->pages);
    return TESS_OK;
}

/* A context as long as asked for must be possible: said before anything runs, not when memory is gone. */
static tess_status check_memory(const tess_ctx *c, const tess_ctx_params *asked, tess_error *err)
{
    uint64_t pages = ceil_div(c->p.max_seq_tokens, c->p.page_tokens), need = 0, have = c->comm ? comm_memory(c->comm) : os_mem_available();
    if (!u64_mul(pages, kv_bytes_per_page(&c->kv), &need)) need = UINT64_MAX;
    if (asked->max_seq_tokens == 0 || have == 0 || need <= have) return TESS_OK;
    return ERR(
        err, TESS_E_NOMEM,
        "a context of %u tokens needs %llu MB of KV memory, %llu MB are available; ask for less, or leave the context to the model",
        c->p.max_seq_tokens, (unsigned long long)(need >> 20), (unsigned long long)(have >> 20));
}

static tess_status open_arrays(tess_ctx *c, tess_error *err)
{
    const uint32_t rows = c->p.max_step_tokens, seqs = c->p.max_seqs;
    bool ok = (c->seqs = mem_calloc(&c->m, seqs, sizeof *c->seqs)) && (c->ids = mem_calloc(&c->m, rows, sizeof *c->ids)) &&
              (c->pos = mem_calloc(&c->m, rows, sizeof *c->pos)) && (c->seq_of = mem_calloc(&c->m, rows, sizeof *c->seq_of)) &&
              (c->want = mem_calloc(&c->m, rows, sizeof *c->want)) && (c->batch_seq = mem_calloc(&c->m, seqs, sizeof *c->batch_seq)) &&
              (c->take = mem_calloc(&c->m, seqs, sizeof *c->take)) && (c->rope_key = mem_calloc(&c->m, seqs, sizeof *c->rope_key));
    for (uint32_t g = 0; ok && g < c->kv.n_groups; g++)
        for (uint32_t r = 0; ok && r < c->kv.n_ranks; r++)
            ok = (c->tables[g][r] = mem_calloc(&c->m, seqs, sizeof *c->tables[g][r])) != NULL;
    return ok ? TESS_OK : ERR(err, TESS_E_NOMEM, "no memory for a context of %u sequences and %u rows a step", seqs, rows);
}

static tess_status open_parts(tess_ctx *c, const tess_ctx_params *asked, tess_error *err)
{
    tess_model *m = c->model;
    TRY(resolve(m, asked, &c->p, err));
    uint64_t budget = c->p.kv_bytes ? c->p.kv_bytes : UINT64_MAX / 2;
    TRY(kv_pool_open(&c->kv, &c->m, &m->a, &m->shards, kv_dtype_of(c->p.kv_dtype), c->p.page_tokens, budget, err));
    kv_prefix_open(&c->kv, c->p.prefix_bytes < 0 ? 0 : (uint64_t)c->p.prefix_bytes);
    if (m->devices.n) TRY(open_devices(c, err));
    if (m->nodes) {
        c->pages = (kv_memory){m, nodes_page_alloc, nodes_page_free, nodes_page_copy};
        kv_pool_place(&c->kv, &c->pages);
    }
    TRY(check_memory(c, asked, err));
    TRY(open_arrays(c, err));
    return exec_open(m, &c->kv, c->comm, c->p.max_step_tokens, &c->exec, err);
}

tess_status ctx_open(tess_model *m, const tess_ctx_params *p, tess_ctx **out, tess_error *err)
{
    *out = NULL;
    if (!m->has_weights) return ERR(err, TESS_E_UNSUPPORTED, "the file holds no weights, or was opened for its tokenizer only");
    tess_ctx *c = mem_zalloc(&m->m, sizeof *c);
    if (!c) return ERR(err, TESS_E_NOMEM, "no memory for a context");
    c->m = m->m;
    c->model = m;
    c->work.m = &c->m;
    model_retain(m);
    os_lock_take(m->turn);
    tess_status st = open_parts(c, p, err);
    os_lock_drop(m->turn);
    if (st < 0) ctx_close(c);
    else *out = c;
    return st;
}

void ctx_close(tess_ctx *c)
{
    if (!c) return;
    os_lock_take(c->model->turn);
    for (uint32_t i = 0; c->seqs && i < c->p.max_seqs; i++)
        if (c->seqs[i].open) ctx_seq_close(c, &c->seqs[i]);
    exec_close(c->exec);
    kv_pool_close(&c->kv);
    comm_close(c->comm);
    os_lock_drop(c->model->turn);
    for (uint32_t g = 0; g < ARCH_MAX_ATTN_KINDS; g++)
        for (uint32_t r = 0; r < MAX_RANKS; r++) mem_free(&c->m, c->tables[g][r]);
    mem_free(&c->m, c->seqs);
    mem_free(&c->m, c->ids);
    mem_free(&c->m, c->pos);
    mem_free(&c->m, c->seq_of);
    mem_free(&c->m, c->want);
    mem_free(&c->m, c->batch_seq);
    mem_free(&c->m, c->take);
    mem_free(&c->m, c->rope_key);
    sampler_free(&c->work);
    mem m = c->m;
    model_release(c->model);
    mem_free(&m, c);
}

/* ---- sequences ---- */

static tess_seq seq_id(const tess_ctx *c, const ctx_seq *s) { return (uint64_t)s->generation << 32 | (uint64_t)(s - c->seqs); }

ctx_seq *ctx_seq_get(tess_ctx *c, tess_seq s)
{
    uint32_t slot = (uint32_t)s;
    if (slot >= c->p.max_seqs || !c->seqs[slot].open || c->seqs[slot].generation != (uint32_t)(s >> 32)) return NULL;
    return &c->seqs[slot];
}

tess_status ctx_seq_open(tess_ctx *c, const tess_seq_params *p, tess_seq *out, tess_error *err)
{
    *out = 0;
    TRY(sampler_check(p, err));
    ctx_seq *s = NULL;
    for (uint32_t i = 0; i < c->p.max_seqs && !s; i++)
        if (!c->seqs[i].open) s = &c->seqs[i];
    if (!s)
        return ERR(err, TESS_E_ARG, "all %u sequences of the context are open; close one, or open the context with more",
                   c->p.max_seqs);
    uint32_t generation = s->generation + 1;
    *s = (ctx_seq){.generation = generation ? generation : 1, .p = *p};
    if (p->n_stop) {
        s->stop = mem_calloc(&c->m, p->n_stop, sizeof *s->stop);
        if (!s->stop) return ERR(err, TESS_E_NOMEM, "no memory for %u stop ids", p->n_stop);
        memcpy(s->stop, p->stop, p->n_stop * sizeof *s->stop);
    }
    s->p.stop = s->stop;
    s->open = true;
    s->opened = ++c->opened;
    *out = seq_id(c, s);
    return TESS_OK;
}

tess_status ctx_seq_append(tess_ctx *c, ctx_seq *s, const int32_t *ids, size_t n, tess_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= c->model->a.vocab_size)
            return ERR(err, TESS_E_ARG, "id %d at place %zu is outside the vocabulary of %u", ids[i], i, c->model->a.vocab_size);
    if (n > c->p.max_seq_tokens || s->n > c->p.max_seq_tokens - n)
        return ERR(err, TESS_E_ARG,
                   "the sequence would have %zu tokens; the context is %u: shorten the prompt or ask for a longer context",
                   s->n + n, c->p.max_seq_tokens);
    if (!mem_grow(&c->m, &s->ids, &s->cap, s->n + n, sizeof *s->ids)) return ERR(err, TESS_E_NOMEM, "no memory for %zu ids", s->n + n);
    if (n) memcpy(s->ids + s->n, ids, n * sizeof *ids);
    s->n += n;
    s->n_prompt = s->n;
    s->n_out = 0;
    s->finished = s->parked = false;
    uint32_t key = exec_rope_key(&c->model->a, s->n);
    if (key != s->rope_key) { /* the keys that are there were turned by other frequencies */
        for (uint32_t g = 0; g < c->kv.n_groups; g++) kv_table_truncate(&c->kv, g, &s->tables[g], 0);
        s->n_done = 0;
        s->rope_key = key;
    }
    return TESS_OK;
}

/* A window may have dropped pages that a shorter sequence needs again: then it is computed anew from the start. */
static bool pages_lost(const tess_ctx *c, const ctx_seq *s, size_t keep)
{
    for (uint32_t g = 0; g < c->kv.n_groups; g++) {
        uint32_t w = c->kv.groups[g].window;
        if (w == 0 || keep == 0) continue;
        size_t first = (keep > w ? keep - w : 0) / c->p.page_tokens;
        for (size_t i = first; i < s->tables[g].n && i < ceil_div(keep, c->p.page_tokens); i++)
            if (!s->tables[g].pages[i]) return true;
    }
    return false;
}

tess_status ctx_seq_fork(tess_ctx *c, ctx_seq *src, size_t keep, tess_seq *out, tess_error *err)
{
    *out = 0;
    if (keep > src->n) return ERR(err, TESS_E_ARG, "cannot keep %zu ids of a sequence of %zu", keep, src->n);
    TRY(ctx_seq_open(c, &src->p, out, err));
    ctx_seq *s = ctx_seq_get(c, *out);
    tess_status st = ctx_seq_append(c, s, src->ids, keep, err);
    s->n_done = s->rope_key == src->rope_key ? MIN(keep, src->n_done) : 0;
    if (pages_lost(c, src, s->n_done)) s->n_done = 0;
    for (uint32_t g = 0; st >= 0 && g < c->kv.n_groups; g++) st = kv_table_fork(&c->kv, g, &src->tables[g], s->n_done, &s->tables[g], err);
    if (st >= 0 && keep == src->n && src->n_done == src->n && src->has_logits) {
        s->logits = mem_calloc(&c->m, c->model->a.vocab_size, sizeof *s->logits);
        if (!s->logits) st = ERR(err, TESS_E_NOMEM, "no memory for logits");
        else memcpy(s->logits, src->logits, c->model->a.vocab_size * sizeof *s->logits);
        s->has_logits = st >= 0;
    }
    if (st >= 0) return TESS_OK;
    ctx_seq_close(c, s);
    *out = 0;
    return st;
}

static void rewind_to(tess_ctx *c, ctx_seq *s, size_t done)
{
    if (pages_lost(c, s, done)) done = 0;
    for (uint32_t g = 0; g < c->kv.n_groups; g++) kv_table_truncate(&c->kv, g, &s->tables[g], done);
    s->n_done = done;
}

void ctx_seq_rerun_last(tess_ctx *c, ctx_seq *s)
{
    if (s->open && !s->finished && !s->parked && !s->has_logits && s->n && s->n_done == s->n) rewind_to(c, s, s->n - 1);
}

void ctx_seq_truncate(tess_ctx *c, ctx_seq *s, size_t keep)
{
    if (keep >= s->n) return;
    uint32_t key = keep < s->n_prompt ? exec_rope_key(&c->model->a, keep) : s->rope_key; /* of the prompt that is left */
    rewind_to(c, s, key == s->rope_key ? MIN(s->n_done, keep) : 0);
    s->n = keep;
    s->rope_key = key;
    s->n_prompt = MIN(s->n_prompt, keep);
    s->n_out = keep - s->n_prompt;
    s->has_logits = s->finished = s->parked = false;
}

void ctx_seq_close(tess_ctx *c, ctx_seq *s)
{
    for (uint32_t g = 0; g < c->kv.n_groups; g++) kv_table_free(&c->kv, g, &s->tables[g]);
    mem_free(&c->m, s->stop);
    mem_free(&c->m, s->ids);
    mem_free(&c->m, s->logits);
    mem_free(&c->m, s->best);
    *s = (ctx_seq){.generation = s->generation};
}
