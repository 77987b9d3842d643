/*
 * t_prefix.c - sequences with the same beginning share KV pages: how many ids are not computed again, and that all bits are those
 * of a context that shares nothing; whose pages go when memory is short; what is written into shared pages.
 */
#include "faults_kit.h"
#include "kv.h"

enum { PAGE = 16, VOCAB = 64, LONG = 100, PAGE_BYTES = PAGE * 2 * 2 * 32 * 4 /* layers, K and V, 32 values of 4 bytes */ };
#define CONTEXT ",\"max_position_embeddings\":256"
static const char full_attention[] = TINY_REST CONTEXT TINY_EOS TINY_PLAIN_ROPE;
static const char one_window[] =
    "\"model_type\":\"qwen2\",\"architectures\":[\"Qwen2ForCausalLM\"],\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-5,"
    "\"use_sliding_window\":true,\"sliding_window\":20,\"max_window_layers\":1,\"layer_types\":[\"full_attention\","
    "\"sliding_attention\"]" CONTEXT TINY_EOS TINY_PLAIN_ROPE;
static const char rope_by_length[] = TINY_REST
    ",\"max_position_embeddings\":40" TINY_EOS TINY_ROPE("\"rope_type\":\"dynamic\",\"rope_theta\":10000.0,\"factor\":4.0");

static tess_model *model_of(const char *config, bool bias)
{
    tiny_model t = MAKE(.qkv_bias = bias, .config = config);
    return convert(&t, NULL, 1, 1);
}

static tess_ctx *context(tess_model *m, int64_t prefix_bytes, uint64_t pages, uint32_t chunk)
{
    tess_ctx_params p;
    tess_ctx_params_init(&p);
    p.max_seqs = 4;
    p.page_tokens = PAGE;
    p.prefix_bytes = prefix_bytes;
    p.max_step_tokens = chunk;
    p.kv_bytes = pages * PAGE_BYTES;
    return open_ctx(m, &p);
}

static tess_kv_stats stats_of(const tess_ctx *c)
{
    tess_kv_stats s;
    tess_kv_stats_init(&s);
    assert_int_equal(tess_ctx_kv_stats(c, &s, NULL), TESS_OK);
    return s;
}

/* Runs the prompt and n greedy ids in c; what is there at the end must be what a context has that shares nothing. Gives the ids
 * that were not computed. */
static unsigned shared_by(tess_model *m, tess_ctx *c, const ids *prompt, unsigned n, tess_seq *keep)
{
    tess_seq_params p = greedy(n);
    ids got = {.n = 0}, want = {.n = 0};
    tess_ctx *alone = context(m, -1, 0, 0);
    const uint64_t before = stats_of(c).tokens_shared;
    if (n) p.flags |= TESS_SEQ_FEED_LAST;
    const tess_seq s = add(c, prompt, &p), t = add(alone, prompt, &p);
    drain(c, s, &got);
    drain(alone, t, &want);
    check_same("ids", &got, &want);
    const float *a = tess_seq_logits(c, s, NULL), *b = tess_seq_logits(alone, t, NULL);
    assert_non_null(a);
    assert_non_null(b);
    assert_memory_equal(a, b, VOCAB * sizeof *a);
    assert_int_equal(stats_of(alone).tokens_shared, 0);
    tess_ctx_close(alone);
    if (keep) *keep = s;
    else tess_seq_close(c, s);
    return (unsigned)(stats_of(c).tokens_shared - before);
}

/* Ids (11 i + salt) mod 64. */
static ids other(unsigned n, int salt)
{
    ids r = {.n = n};
    for (unsigned i = 0; i < n; i++) r.id[i] = (int32_t)(i * 11 + (unsigned)salt) % VOCAB;
    return r;
}

static ids begin(const ids *of, unsigned n)
{
    ids r = *of;
    r.n = n;
    return r;
}

static void same_beginning_is_not_computed_again(void **state)
{
    (void)state;
    tess_model *m = model_of(full_attention, false);
    tess_ctx *c = context(m, 0, 0, 0);
    tess_seq first, second;
    ids p = L(LONG), q;
    assert_int_equal(shared_by(m, c, &p, 0, &first), 0);
    assert_int_equal(stats_of(c).pages_used, 7);
    assert_int_equal(shared_by(m, c, &p, 0, &second), 96);
    tess_kv_stats s = stats_of(c);
    assert_true(s.pages_used == 8 && s.pages_shared == 6 && s.pages_kept == 0);
    tess_seq_close(c, first);
    tess_seq_close(c, second);
    s = stats_of(c);
    assert_true(s.pages_used == 0 && s.pages_shared == 0 && s.pages_kept == 6);
    assert_int_equal(shared_by(m, c, &p, 5, NULL), 96);
    q = p, q.n = 97;
    assert_int_equal(shared_by(m, c, &q, 0, NULL), 96);
    q.n = 96; /* the last id is always computed: its logits are wanted */
    assert_int_equal(shared_by(m, c, &q, 0, NULL), 80);
    q.n = PAGE;
    assert_int_equal(shared_by(m, c, &q, 0, NULL), 0);
    q = p, q.id[50] ^= 1; /* in the fourth page */
    assert_int_equal(shared_by(m, c, &q, 0, NULL), 48);
    q = p, q.id[0] ^= 1;
    assert_int_equal(shared_by(m, c, &q, 0, NULL), 0);
    q = p, q.n = LONG - 64; /* the ids of pages 4 and 5 are those of 0 and 1; their places are not */
    memcpy(q.id, p.id + 64, q.n * sizeof *q.id);
    assert_int_equal(shared_by(m, c, &q, 0, NULL), 32);
    tess_ctx_close(c);
    tess_model_close(m);
}

/* A chat's next turn: the prompt and the answer, and more. */
static void answers_are_shared_too(void **state)
{
    (void)state;
    tess_model *m = model_of(full_attention, false);
    tess_ctx *c = context(m, 0, 0, 0);
    tess_seq_params p = greedy(40);
    ids turn = L(30), answer = {.n = 0};
    const tess_seq s = add(c, &turn, &p);
    drain(c, s, &answer);
    tess_seq_close(c, s);
    for (unsigned i = 0; i < answer.n; i++) turn.id[turn.n++] = answer.id[i];
    for (unsigned i = 0; i < 10; i++) turn.id[turn.n++] = 5;
    assert_int_equal(shared_by(m, c, &turn, 8, NULL), 64); /* of 69 that were run */
    tess_ctx_close(c);
    tess_model_close(m);
}

/* Both begin in the same step; what one has done the other one need not. */
static void in_the_middle_of_a_prompt(void **state)
{
    (void)state;
    tess_model *m = model_of(full_attention, false);
    for (uint32_t chunk = 1; chunk < 120; chunk += 13) {
        tess_ctx *c = context(m, 0, 0, chunk), *alone = context(m, -1, 0, 0);
        tess_seq_params p = greedy(3);
        const ids prompt = L(LONG);
        ids out = {.n = 0}, want = {.n = 0};
        add(c, &prompt, &p);
        const tess_seq second = add(c, &prompt, &p);
        drain(c, second, &out);
        drain(alone, add(alone, &prompt, &p), &want);
        check_same("second", &out, &want);
        if (chunk < LONG) assert_true(stats_of(c).tokens_shared >= 48);
        tess_ctx_close(alone);
        tess_ctx_close(c);
    }
    tess_model_close(m);
}

static void limit_is_kept(void **state)
{
    (void)state;
    tess_model *m = model_of(full_attention, false);
    tess_ctx_params bad;
    tess_error e;
    const ids p = L(LONG);
    tess_ctx *c = context(m, 3 * PAGE_BYTES, 0, 0);
    (void)shared_by(m, c, &p, 0, NULL);
    assert_int_equal(stats_of(c).pages_kept, 3);
    assert_int_equal(shared_by(m, c, &p, 0, NULL), 48); /* the first three: later ones are of no use without them */
    tess_ctx_close(c);
    c = context(m, -1, 0, 0);
    (void)shared_by(m, c, &p, 0, NULL);
    assert_int_equal(stats_of(c).pages_kept, 0);
    assert_int_equal(shared_by(m, c, &p, 0, NULL), 0);
    tess_ctx_close(c);
    tess_ctx_params_init(&bad);
    bad.prefix_bytes = -2;
    assert_int_equal(tess_ctx_open(m, &bad, &c, &e), TESS_E_ARG);
    assert_non_null(strstr(e.text, "prefix_bytes is -2"));
    tess_model_close(m);
}

/* Pages that nobody has never stand in the way of those that somebody needs; those used least recently go first. */
static void memory_of_others_comes_first(void **state)
{
    (void)state;
    tess_model *m = model_of(full_attention, false);
    tess_ctx *c = context(m, 0, 10, 0);
    const ids a = L(LONG), b = other(LONG, 1), d = other(LONG, 2);
    (void)shared_by(m, c, &a, 0, NULL);
    assert_int_equal(shared_by(m, c, &b, 0, NULL), 0); /* 7 of 10 pages: 3 of a stay */
    assert_int_equal(shared_by(m, c, &a, 0, NULL), 48);
    (void)shared_by(m, c, &d, 0, NULL);
    assert_int_equal(shared_by(m, c, &b, 0, NULL), 0); /* a was used later than b */
    tess_ctx_close(c);

    c = context(m, 0, 10, 0);
    const ids a49 = begin(&a, 49), b49 = begin(&b, 49), d49 = begin(&d, 49), a17 = begin(&a, 17), f63 = other(63, 4);
    (void)shared_by(m, c, &a49, 0, NULL); /* 3 pages are kept of each */
    (void)shared_by(m, c, &b49, 0, NULL);
    (void)shared_by(m, c, &d49, 0, NULL);
    assert_int_equal(shared_by(m, c, &a17, 0, NULL), 16);
    assert_int_equal(shared_by(m, c, &f63, 0, NULL), 0); /* 4 pages: the spare one, the last two of a, the last one of b */
    assert_int_equal(shared_by(m, c, &b49, 0, NULL), 32); /* 2 pages: the spare one, the last one of d */
    assert_int_equal(shared_by(m, c, &a17, 0, NULL), 16);
    assert_int_equal(shared_by(m, c, &d49, 0, NULL), 32);
    assert_true(stats_of(c).preemptions == 0 && stats_of(c).pages_total == 10);
    tess_ctx_close(c);
    tess_model_close(m);
}

static void what_is_cut_is_written_anew(void **state)
{
    (void)state;
    tess_model *m = model_of(full_attention, false);
    const ids p = L(LONG);
    const int32_t more[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20};
    for (int readers = 0; readers < 2; readers++) {
        tess_ctx *c = context(m, 0, 0, 0);
        tess_seq first, reader = 0;
        tess_error e;
        ids q = p, out = {.n = 0};
        (void)shared_by(m, c, &p, 0, &first);
        if (readers) (void)shared_by(m, c, &p, 0, &reader);
        assert_int_equal(tess_seq_truncate(c, first, 40, &e), TESS_OK); /* in the third page */
        assert_int_equal(tess_seq_append(c, first, more, ARRAY_LEN(more), &e), TESS_OK);
        drain(c, first, &out);
        assert_int_equal(shared_by(m, c, &p, 0, NULL), readers ? 96 : 32);
        q.n = 60;
        memcpy(q.id + 40, more, sizeof more);
        assert_int_equal(shared_by(m, c, &q, 0, NULL), 48); /* what was written instead is known as well */
        tess_ctx_close(c);
    }
    tess_model_close(m);
}

/* Layers with a window have pages of their own, of which long sequences have the last ones alone. */
static void windows_need_only_what_they_see(void **state)
{
    (void)state;
    tess_model *m = model_of(one_window, true);
    const ids p = L(120);
    ids q = L(70);
    for (uint32_t chunk = 9; chunk < 140; chunk += 40) {
        tess_ctx *c = context(m, 0, 0, chunk);
        tess_seq s;
        (void)shared_by(m, c, &p, 0, &s);
        assert_int_equal(shared_by(m, c, &p, 0, NULL), 112);
        assert_int_equal(shared_by(m, c, &q, 4, NULL), 64); /* from pages that the first one gave back */
        tess_seq_close(c, s);
        assert_int_equal(shared_by(m, c, &p, 20, NULL), 112);
        tess_ctx_close(c);
        c = context(m, 1, 0, chunk); /* none that nobody has are kept */
        (void)shared_by(m, c, &p, 0, &s);
        assert_int_equal(shared_by(m, c, &p, 0, NULL), 0); /* of what 112 sees, the first one gave a page back */
        assert_int_equal(shared_by(m, c, &q, 4, NULL), 0);
        tess_ctx_close(c);
    }
    tess_model_close(m);
}

static void other_ropes_share_nothing(void **state)
{
    (void)state;
    tess_model *m = model_of(rope_by_length, false);
    tess_ctx *c = context(m, 0, 0, 0);
    const ids p = L(36), q = L(38), r = L(60), t = L(61);
    (void)shared_by(m, c, &p, 0, NULL);
    assert_int_equal(shared_by(m, c, &q, 0, NULL), 32); /* up to 40 ids the rope is the same */
    assert_int_equal(shared_by(m, c, &r, 0, NULL), 0);
    assert_int_equal(shared_by(m, c, &r, 0, NULL), 48);
    assert_int_equal(shared_by(m, c, &t, 0, NULL), 0);
    tess_ctx_close(c);
    tess_model_close(m);
}

static void count_rows(void *user, tess_seq seq, uint64_t pos, const float *logits, size_t n)
{
    UNUSED(seq), UNUSED(pos), UNUSED(logits), UNUSED(n);
    ++*(unsigned *)user;
}
static void all_rows_are_computed_where_asked_for(void **state)
{
    (void)state;
    tess_model *m = model_of(full_attention, false);
    tess_ctx_params p;
    unsigned rows = 0;
    const ids prompt = L(LONG);
    tess_ctx_params_init(&p);
    p.on_logits = count_rows;
    p.logits_user = &rows;
    tess_ctx *c = open_ctx(m, &p);
    for (unsigned i = 1; i <= 2; i++) {
        tess_seq_params q = greedy(0);
        ids out = {.n = 0};
        q.flags |= TESS_SEQ_ALL_LOGITS;
        const tess_seq s = add(c, &prompt, &q);
        drain(c, s, &out);
        tess_seq_close(c, s);
        assert_int_equal(rows, i * LONG);
    }
    assert_true(stats_of(c).tokens_shared == 0 && stats_of(c).pages_kept == 0);
    tess_ctx_close(c);
    tess_model_close(m);
}

/* Many pages behind the same one: each is found by its ids, and no other is taken for it. */
static void pages_are_known_by_all_ids(void **state)
{
    (void)state;
    enum { N = 500 };
    arch a;
    shard_plan s;
    kv_pool p;
    tess_error e;
    static kv_table t[N];
    arch_default(&a);
    a.n_layers = 1, a.n_heads = a.n_kv_heads = 1, a.head_dim = a.v_head_dim = a.rope_dims = 8;
    a.hidden_size = 8, a.ffn_size = 32, a.vocab_size = 64, a.max_ctx = 256;
    assert_int_equal(shard_make(&a, 1, NULL, &s, &e), TESS_OK);
    assert_int_equal(kv_pool_open(&p, &mem_libc, &a, &s, DT_F32, PAGE, UINT64_MAX / 2, &e), TESS_OK);
    kv_prefix_open(&p, UINT64_MAX);
    int32_t id[2 * PAGE] = {0};
    for (int32_t i = 0; i < N; i++) {
        id[PAGE + i % PAGE] = i + 1;
        assert_int_equal(kv_table_reserve(&p, 0, &t[i], 0, 2 * PAGE, &e), TESS_OK);
        kv_prefix_keep(&p, 7, id, 2 * PAGE, &t[i]);
        id[PAGE + i % PAGE] = 0;
    }
    assert_int_equal(p.prefix.n_nodes, N + 1);
    for (int32_t i = 0; i < N; i++) {
        kv_table u = {0};
        id[PAGE + i % PAGE] = i + 1;
        assert_int_equal(kv_prefix_take(&p, 7, id, 2 * PAGE, &u, 0), 2 * PAGE);
        assert_true(u.pages[0] == t[0].pages[0] && u.pages[1] == t[i].pages[1] && u.base[0][1] == t[i].base[0][1]);
        kv_table_free(&p, 0, &u);
        assert_int_equal(kv_prefix_take(&p, 8, id, 2 * PAGE, &u, 0), 0); /* another rope */
        id[PAGE + (i + 1) % PAGE] = i + 2;
        assert_int_equal(kv_prefix_take(&p, 7, id, 2 * PAGE, &u, 0), PAGE);
        kv_table_free(&p, 0, &u);
        id[PAGE + i % PAGE] = id[PAGE + (i + 1) % PAGE] = 0;
    }
    for (int32_t i = 0; i < N; i++) kv_table_free(&p, 0, &t[i]);
    assert_true(p.pages_live == 0 && p.prefix.pages == N + 1 && p.pages_made == 2 * N);
    kv_pool_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_beginning_is_not_computed_again),
        cmocka_unit_test(answers_are_shared_too),
        cmocka_unit_test(in_the_middle_of_a_prompt),
        cmocka_unit_test(limit_is_kept),
        cmocka_unit_test(memory_of_others_comes_first),
        cmocka_unit_test(what_is_cut_is_written_anew),
        cmocka_unit_test(windows_need_only_what_they_see),
        cmocka_unit_test(other_ropes_share_nothing),
        cmocka_unit_test(all_rows_are_computed_where_asked_for),
        cmocka_unit_test(pages_are_known_by_all_ids),
    };
    return cmocka_run_group_tests(tests, make_work, remove_work);
}
