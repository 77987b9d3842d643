/*
 * t_random.c - random calls on one context with few pages: open, append, fork, truncate, cancel, step, close, and calls that must
 * be refused. At any time each sequence must be what a context that runs nothing else gives for the same prompt: the same ids,
 * and the same bits of logits. A memory that refuses an allocation now and then must change nothing else.
 *
 * What is kept of a sequence: its ids, of which the first n_prompt were appended (or inherited by a fork); the rest was generated
 * greedily. So "prompt, then n - n_prompt greedy ids" is the whole of it, however it came about.
 */
#include "faults_kit.h"

enum { SEQS = 6, LIMIT = 120, FAIL_CALLS = 40, ROUNDS = 6 };

typedef struct {
    bool live, by_hand; /* by_hand: max_new is 0, the test appends what it likes */
    tess_seq id;
    int32_t ids[LIMIT + 1];
    size_t n, n_prompt, max_new, n_out;
} shadow;

typedef struct {
    tess_model *m;
    tess_ctx *c, *alone;
    shadow s[SEQS];
    uint64_t rng;
    unsigned checks, full, refused;
} world;

typedef struct {
    bool on;
    long left;
} failing;

static uint32_t below(world *w, uint32_t n)
{
    w->rng = w->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->rng >> 33) % n;
}

static void *fail_alloc(void *user, size_t size, size_t align)
{
    failing *f = user;
    if (__atomic_load_n(&f->on, __ATOMIC_RELAXED) && __atomic_fetch_sub(&f->left, 1, __ATOMIC_RELAXED) <= 0) return NULL;
    return aligned_alloc(align, (size + align - 1) / align * align);
}
static void fail_release(void *user, void *ptr, size_t size)
{
    UNUSED(user);
    UNUSED(size);
    free(ptr);
}

/* The sequence alone: its ids, and for one that is led by hand the logits after the last. */
static void check_alone(world *w, const shadow *s)
{
    const float *got, *want;
    size_t n_got, n_want;
    if (s->n_prompt == 0) return;
    ids prompt = {.n = (unsigned)s->n_prompt}, out = {.n = 0};
    memcpy(prompt.id, s->ids, s->n_prompt * sizeof *s->ids);
    tess_seq_params p = greedy((unsigned)(s->n - s->n_prompt));
    tess_seq seq = add(w->alone, &prompt, &p);
    drain(w->alone, seq, &out);
    if (out.n != s->n - s->n_prompt || memcmp(out.id, s->ids + s->n_prompt, out.n * sizeof *out.id) != 0)
        fail_msg("a sequence of %zu ids, %zu of them its prompt, differs from the same alone", s->n, s->n_prompt);
    if ((got = tess_seq_logits(w->c, s->id, &n_got)) && s->n == s->n_prompt) {
        want = tess_seq_logits(w->alone, seq, &n_want);
        assert_non_null(want);
        assert_int_equal(n_got, n_want);
        assert_memory_equal(got, want, n_got * sizeof *got);
        w->checks++;
    }
    tess_seq_close(w->alone, seq);
}

static shadow *free_slot(world *w)
{
    for (int i = 0; i < SEQS; i++)
        if (!w->s[i].live) return &w->s[i];
    return NULL;
}

static void do_open(world *w)
{
    shadow *s = free_slot(w);
    tess_seq_params p = greedy(below(w, 2) ? below(w, 12) : 0);
    tess_seq id;
    tess_status st = tess_seq_open(w->c, &p, &id, NULL);
    assert_int_equal(st, s ? TESS_OK : TESS_E_ARG);
    if (!s) return;
    *s = (shadow){.live = true, .id = id, .max_new = p.max_new, .by_hand = p.max_new == 0};
}

static void do_append(world *w, shadow *s)
{
    int32_t more[LIMIT + 1];
    size_t n = below(w, 4) ? below(w, 9) : below(w, 70);
    bool bad = n && below(w, 10) == 0;
    const shadow *like = &w->s[below(w, SEQS)]; /* goes on as another sequence does, for a while */
    for (size_t i = 0; i < n; i++) more[i] = (int32_t)below(w, 64);
    for (size_t i = s->n; i < like->n && i - s->n < n && below(w, 40); i++) more[i - s->n] = like->ids[i];
    if (bad) more[n - 1] = below(w, 2) ? 64 : -1;
    tess_status st = tess_seq_append(w->c, s->id, more, n, NULL);
    if (bad || s->n + n > LIMIT) {
        assert_int_equal(st, TESS_E_ARG);
        w->refused++;
        return;
    }
    assert_int_equal(st, TESS_OK);
    memcpy(s->ids + s->n, more, n * sizeof *more);
    s->n_prompt = s->n += n;
    s->n_out = 0;
}

static void do_fork(world *w, const shadow *s)
{
    shadow *t = free_slot(w);
    size_t keep = below(w, (uint32_t)s->n + 2);
    tess_seq id;
    tess_status st = tess_seq_fork(w->c, s->id, keep, &id, NULL);
    if (!t || keep > s->n || keep > LIMIT) {
        assert_int_equal(st, TESS_E_ARG);
        assert_true(id == 0);
        w->refused++;
        return;
    }
    assert_int_equal(st, TESS_OK);
    *t = *s;
    t->id = id;
    t->n = t->n_prompt = keep;
    t->n_out = 0;
}

static void do_truncate(world *w, shadow *s)
{
    size_t keep = below(w, (uint32_t)s->n + 3);
    assert_int_equal(tess_seq_truncate(w->c, s->id, keep, NULL), TESS_OK);
    if (keep >= s->n) return;
    s->n = keep;
    s->n_prompt = MIN(s->n_prompt, keep);
    s->n_out = s->n - s->n_prompt;
}

static void do_close(world *w, shadow *s)
{
    tess_seq_close(w->c, s->id);
    s->live = false;
    assert_int_equal(tess_seq_truncate(w->c, s->id, 0, NULL), TESS_E_ARG); /* stale */
    tess_seq_close(w->c, s->id);
}

static void take_event(world *w, const tess_event *ev)
{
    for (int i = 0; i < SEQS; i++) {
        shadow *s = &w->s[i];
        if (!s->live || s->id != ev->seq) continue;
        if (ev->kind == TESS_EV_DONE) {
            assert_int_equal(ev->reason, TESS_DONE_LENGTH);
            assert_true(s->n_out >= s->max_new || s->n > LIMIT);
            return;
        }
        assert_true(s->n <= LIMIT && s->n_out < s->max_new);
        s->ids[s->n++] = ev->token;
        s->n_out++;
        return;
    }
    fail_msg("an event of a sequence that is not open");
}

static tess_status do_step(world *w)
{
    tess_event ev[2 * SEQS];
    size_t n;
    tess_status st = tess_step(w->c, ev, 2 * SEQS, &n, NULL);
    if (st < 0) assert_int_equal(n, 0);
    for (size_t i = 0; i < n; i++) take_event(w, &ev[i]);
    w->full += st == TESS_E_KV_FULL;
    return st;
}

/* Steps until all have what they asked for. */
static void settle(world *w)
{
    tess_status st;
    while ((st = do_step(w)) == TESS_OK) {}
    assert_true(st == TESS_IDLE || st == TESS_E_KV_FULL);
    for (int i = 0; i < SEQS; i++) {
        shadow *s = &w->s[i];
        if (!s->live || s->n == 0 || st == TESS_E_KV_FULL) continue;
        if (s->n_out < s->max_new && s->n <= LIMIT)
            fail_msg("nothing is left to do, and a sequence of %zu ids has %zu of %zu new ones", s->n, s->n_out, s->max_new);
        if (s->by_hand) assert_non_null(tess_seq_logits(w->c, s->id, NULL));
        check_alone(w, s);
    }
}

static void do_any(world *w)
{
    shadow *s = &w->s[below(w, SEQS)];
    uint32_t what = below(w, 16);
    if (!s->live || what == 0) do_open(w);
    else if (what <= 3) do_append(w, s);
    else if (what == 4) do_fork(w, s);
    else if (what == 5) do_truncate(w, s);
    else if (what == 6) do_close(w, s);
    else if (what == 7) settle(w);
    else if (what == 8) check_alone(w, s);
    else if (what == 9) {
        tess_ctx_cancel(w->c);
        assert_int_equal(do_step(w), TESS_E_CANCELLED);
    } else if (do_step(w) == TESS_E_KV_FULL) {
        do_close(w, s);
    }
}

/* A step during which memory runs out: done, or as if it had not been tried. */
static void do_starved(world *w, failing *f)
{
    f->left = (long)below(w, 4);
    f->on = true;
    tess_status st = do_step(w);
    f->on = false;
    assert_true(st == TESS_OK || st == TESS_IDLE || st == TESS_E_NOMEM || st == TESS_E_KV_FULL);
}

typedef struct {
    const char *name, *config;
    bool qkv_bias;
} kind;
#define CONTEXT ",\"max_position_embeddings\":256"
static const kind kinds[] = {
    {"full attention", TINY_REST CONTEXT TINY_EOS TINY_PLAIN_ROPE, false},
    {"one layer with a window",
     "\"model_type\":\"qwen2\",\"architectures\":[\"Qwen2ForCausalLM\"],\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-5,\"use_"
     "sliding_window\":"
     "true,\"sliding_window\":20,\"max_window_layers\":1,\"layer_types\":[\"full_attention\",\"sliding_attention\"]" CONTEXT
         TINY_EOS TINY_PLAIN_ROPE,
     true},
    {"rope that depends on the length",
     TINY_REST
     ",\"max_position_embeddings\":40" TINY_EOS TINY_ROPE("\"rope_type\":\"dynamic\",\"rope_theta\":10000.0,\"factor\":4.0"),
     false},
};

static tess_model *open_failing(failing *f, unsigned ranks)
{
    tess_host host;
    tess_model_params p;
    tess_model *m;
    tess_error e;
    char path[500];
    tess_host_init(&host);
    host.user = f;
    host.alloc = fail_alloc;
    host.release = fail_release;
    tess_model_params_init(&p);
    p.host = &host;
    p.n_ranks = p.n_threads = ranks;
    snprintf(path, sizeof path, "%s/m.tess", work);
    if (tess_model_open(path, &p, &m, &e) != TESS_OK) fail_msg("%s", e.text);
    return m;
}

typedef struct {
    uint64_t checks, full, refused, preempted, shared;
} totals;

static void random_calls(unsigned round, totals *sum)
{
    world w = {.rng = round * 7919 + 17};
    failing f = {0};
    tess_ctx_params cp;
    tess_kv_stats stats;
    w.m = open_failing(&f, 1 + round % 2);
    tess_ctx_params_init(&cp);
    cp.max_seq_tokens = LIMIT;
    cp.prefix_bytes = -1;
    w.alone = open_ctx(w.m, &cp);
    cp.prefix_bytes = round % 3 == 2 ? 5 * 16 * 2 * 2 * 32 * 4 : 0; /* a few pages */
    cp.max_seqs = SEQS;
    cp.max_step_tokens = 1 + below(&w, 40);
    cp.page_tokens = 16;
    cp.kv_bytes = (uint64_t)(64 + below(&w, 140)) * 2 * 2 * 32 * 4; /* tokens, layers, K and V, 32 values of 4 bytes */
    w.c = open_ctx(w.m, &cp);
    for (int i = 0; i < 600; i++) {
        if (i % FAIL_CALLS == 0) do_starved(&w, &f);
        do_any(&w);
    }
    settle(&w);
    tess_kv_stats_init(&stats);
    assert_int_equal(tess_ctx_kv_stats(w.c, &stats, NULL), TESS_OK);
    sum->preempted += stats.preemptions;
    sum->shared += stats.tokens_shared;
    sum->checks += w.checks;
    sum->full += w.full;
    sum->refused += w.refused;
    tess_ctx_close(w.c);
    tess_ctx_close(w.alone);
    tess_model_close(w.m);
}

static void any_order_of_calls(void **state)
{
    UNUSED(state);
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        totals sum = {0};
        tiny_model t = MAKE(.qkv_bias = kinds[i].qkv_bias, .config = kinds[i].config);
        tess_model_close(convert(&t, NULL, 2, 1));
        for (unsigned round = 0; round < ROUNDS; round++) random_calls(round, &sum);
        print_message("%s: %u rows compared, %u calls refused, %u times no pages, %u preemptions, %u ids shared\n", kinds[i].name,
                      (unsigned)sum.checks, (unsigned)sum.refused, (unsigned)sum.full, (unsigned)sum.preempted, (unsigned)sum.shared);
        assert_true(sum.checks > 100 && sum.refused > 50 && sum.full > 0 && sum.preempted > 20 && sum.shared > 100);
    }
}

/* A step that has no memory for the scratch of its draw can be tried again, and draws the same. */
static void draws_without_memory(void **state)
{
    UNUSED(state);
    tiny_model t = MAKE(0);
    const ids prompt = P;
    int32_t want = -1;
    tess_model_close(convert(&t, NULL, 1, 1));
    for (long left = 0, failed = 1; failed; left++) {
        failing f = {.left = left};
        tess_model *m = open_failing(&f, 1);
        tess_ctx *c = open_ctx(m, NULL);
        tess_seq_params p = greedy(5);
        tess_event ev[2];
        tess_error e;
        size_t n;
        p.temperature = 1;
        p.seed = 3;
        add(c, &prompt, &p);
        f.on = true;
        tess_status st = tess_step(c, ev, 2, &n, &e);
        f.on = false;
        failed = st != TESS_OK;
        if (failed) {
            assert_int_equal(st, TESS_E_NOMEM);
            assert_int_equal(n, 0);
            assert_int_equal(tess_step(c, ev, 2, &n, &e), TESS_OK);
        }
        assert_int_equal(n, 1);
        assert_int_equal(ev[0].kind, TESS_EV_TOKEN);
        if (left == 0) want = ev[0].token;
        assert_int_equal(ev[0].token, want);
        assert_true(left < 1000 && (failed || left > 3));
        tess_ctx_close(c);
        tess_model_close(m);
    }
}

/* A fork that finds no page for a copy of what it shares waits: it does not write where the other one, further on, still reads. */
static void shared_pages_are_not_written(void **state)
{
    UNUSED(state);
    tiny_model t = MAKE(.config = kinds[0].config);
    tess_model *m = convert(&t, NULL, 1, 1);
    tess_ctx_params cp;
    tess_event ev[4];
    size_t n;
    tess_seq fork;
    const ids prompt = L(46);
    ids got = {.n = 0}, want = {.n = 0}, short_got = {.n = 0}, short_want = {.n = 0}, begin = prompt;
    const tess_seq_params p = greedy(2);
    begin.n = 20;
    tess_ctx_params_init(&cp);
    cp.prefix_bytes = -1;
    tess_ctx *alone = open_ctx(m, &cp);
    tess_seq s = add(alone, &prompt, &p);
    drain(alone, s, &want);
    tess_seq_close(alone, s);
    drain(alone, add(alone, &begin, &p), &short_want);
    cp.max_seqs = 2;
    cp.max_step_tokens = 4;
    cp.page_tokens = 16;
    cp.kv_bytes = 3 * 16 * 2 * 2 * 32 * 4;
    tess_ctx *c = open_ctx(m, &cp);
    s = add(c, &prompt, &p);
    for (int i = 0; i < 9; i++) assert_int_equal(tess_step(c, ev, 4, &n, NULL), TESS_OK); /* 36 ids in three pages */
    assert_int_equal(tess_seq_fork(c, s, 20, &fork, NULL), TESS_OK);
    for (tess_status st; (st = tess_step(c, ev, 4, &n, NULL)) != TESS_IDLE;) {
        assert_int_equal(st, TESS_OK);
        for (size_t i = 0; i < n; i++) {
            ids *to = ev[i].seq == fork ? &short_got : &got;
            if (ev[i].kind == TESS_EV_TOKEN) to->id[to->n++] = ev[i].token;
        }
    }
    check_same("the sequence", &got, &want);
    check_same("its fork", &short_got, &short_want);
    tess_ctx_close(c);
    tess_ctx_close(alone);
    tess_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_order_of_calls), cmocka_unit_test(draws_without_memory),
                                       cmocka_unit_test(shared_pages_are_not_written)};
    return cmocka_run_group_tests(tests, make_work, remove_work);
}
