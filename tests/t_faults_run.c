/*
 * t_faults_run.c - as t_faults.c: sampling, stopping, pages and batches.
 */
#include "faults_kit.h"

static void plain_model(void **state)
{
    UNUSED(state);
    tiny_model t = MAKE(0);
    tess_model *m = convert(&t, NULL, 1, 1);
    for (unsigned row = 0; row < T0_ROWS; row++) check_ids("T0", m, t0_prompt(row), t0_answer(row));
    tess_model_close(m);
}

/* ---- sampling and stopping ---- */

/* P with the parameters. */
static ids answer(tess_model *m, const tess_seq_params *p, uint32_t *reason)
{
    tess_ctx *c = open_ctx(m, NULL);
    const ids prompt = P;
    ids got = {.n = 0};
    *reason = drain(c, add(c, &prompt, p), &got);
    tess_ctx_close(c);
    return got;
}

static void b14_temperature_and_nan(void **state)
{
    UNUSED(state);
    static const float cold[] = {0, 1e-9f, 1e-30f};
    tiny_model t = MAKE(0);
    tess_model *m = convert(&t, NULL, 1, 1);
    const ids want = t0_answer(ROW_P);
    uint32_t reason;
    for (size_t i = 0; i < ARRAY_LEN(cold); i++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            tess_seq_params p = greedy(T0_IDS);
            p.temperature = cold[i];
            p.seed = seed;
            const ids got = answer(m, &p, &reason);
            check_same("cold", &got, &want);
        }
    tess_model_close(m);
    t = MAKE(0);
    float *row = tiny_find(&t, "lm_head.weight")->v + 7 * 64;
    for (unsigned i = 0; i < 64; i++) row[i] = NAN;
    m = convert(&t, NULL, 1, 1);
    const tess_seq_params p = greedy(4);
    assert_int_equal(answer(m, &p, &reason).n, 0);
    assert_int_equal(reason, TESS_DONE_ERROR);
    tess_model_close(m);
    assert_int_equal(run("$B/run-model -m m.tess --prompt-ids 1,5,9 -n 4 --temp 0 --print-ids"), 5);
}

static void b16_penalties(void **state)
{
    UNUSED(state);
    tiny_model t = MAKE(0);
    tess_model *m = convert(&t, NULL, 1, 1);
    uint32_t reason;
    tess_seq_params p = greedy(12);
    p.repeat_penalty = 1.3f;
    p.repeat_last_n = -1;
    ids got = answer(m, &p, &reason);
    check_same("repetition, the prompt's too", &got, &IDS(60, 41, 28, 50, 24, 17, 37, 23, 51, 48, 16, 51));
    p = greedy(1);
    p.presence_penalty = p.frequency_penalty = 100;
    for (unsigned row = 0; row < T0_ROWS; row++) { /* the prompt does not count */
        tess_ctx *c = open_ctx(m, NULL);
        const ids prompt = t0_prompt(row), first = {{t0_want[row][0]}, 1};
        got = (ids){.n = 0};
        drain(c, add(c, &prompt, &p), &got);
        check_same("presence and frequency", &got, &first);
        tess_ctx_close(c);
    }
    tess_model_close(m);
}

static void b17_end_ids_and_texts(void **state)
{
    UNUSED(state);
    const ids want = IDS(60, 41, 28, 50, 24, 50, 22); /* and 17 ends it */
    uint32_t reason;
    tess_seq_params p = greedy(16);
    p.flags = 0;
    for (int i = 0; i < 2; i++) {
        tiny_model t = i == 0 ? MAKE(.generation = "{\"eos_token_id\":[25,17]}")
                              : MAKE(.config = TINY_REST TINY_CONTEXT TINY_PLAIN_ROPE ",\"eos_token_id\":[17,2]");
        buf o;
        put_characters(&o, 64);
        tess_model *m = convert(&t, o.data, 1, 1);
        const ids got = answer(m, &p, &reason);
        check_same("a list of end ids", &got, &want);
        assert_int_equal(reason, TESS_DONE_STOP);
        tess_model_close(m);
        buf_free(&o);
    }
    static const struct {
        const char *args, *text;
    } stops[] = {{"-n 8 --stop bHb", "lYL\n"},
                 {"-n 8 --stop bHx", "lYLbHbFA\n"},
                 {"-n 5 --stop bHx", "lYLbH\n"},
                 {"-n 8 --stop bHb --stop Lb", "lY\n"}};
    for (size_t i = 0; i < ARRAY_LEN(stops); i++) {
        assert_int_equal(run("$B/run-model -m m.tess -p '159Q<7XE' --raw --temp 0 --ignore-eos %s; echo", stops[i].args), 0);
        char path[500], text[64] = "";
        snprintf(path, sizeof path, "%s/out", work);
        FILE *f = fopen(path, "rb");
        assert_true(f && fgets(text, sizeof text, f));
        fclose(f);
        assert_string_equal(text, stops[i].text);
    }
}

/* ---- context, pages, batches ---- */

static void b18_context_overflow(void **state)
{
    UNUSED(state);
    tiny_model t = MAKE(.config = TINY_REST TINY_EOS TINY_PLAIN_ROPE ",\"max_position_embeddings\":32");
    tess_model *m = convert(&t, NULL, 1, 1);
    tess_ctx *c = open_ctx(m, NULL);
    tess_seq_params p = greedy(10);
    tess_error e;
    tess_seq s;
    assert_int_equal(tess_seq_open(c, &p, &s, &e), TESS_OK);
    assert_int_equal(tess_seq_append(c, s, L(33).id, 33, &e), TESS_E_ARG);
    assert_true(strstr(e.text, "33") && strstr(e.text, "32"));
    tess_ctx_close(c);
    static const struct {
        unsigned n, want;
    } lengths[] = {{32, 1}, {30, 3}};
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        const ids prompt = L(lengths[i].n), want = i == 0 ? IDS(9) : IDS(42, 0, 60);
        ids got = {.n = 0};
        c = open_ctx(m, NULL);
        assert_int_equal(drain(c, add(c, &prompt, &p), &got), TESS_DONE_LENGTH);
        check_same("the context ends it", &got, &want);
        tess_ctx_close(c);
    }
    tess_model_close(m);
    assert_int_equal(run("$B/run-model -m m.tess --prompt-ids $(seq -s, 3 33) -n 0 --print-ids"), 0);
    assert_false(said("r"));
}

/* One after another in one context: pages are freed and used again, shared with a fork, left by an aborted prompt. */
static void b19_pages_are_used_again(void **state)
{
    UNUSED(state);
    static const unsigned pages[] = {16, 32, 64};
    static const unsigned order[] = {ROW_L16, ROW_L16, ROW_L32, ROW_L32, ROW_L33, ROW_L16, ROW_L16, ROW_L17, ROW_P, ROW_L33};
    tiny_model t = MAKE(0);
    tess_model *m = convert(&t, NULL, 1, 1);
    for (size_t k = 0; k < ARRAY_LEN(pages); k++) {
        tess_ctx_params cp;
        tess_ctx_params_init(&cp);
        cp.max_seqs = 3;
        cp.page_tokens = pages[k];
        cp.max_step_tokens = 16;
        tess_ctx *c = open_ctx(m, &cp);
        tess_event ev[6];
        tess_error e;
        for (size_t i = 0; i < ARRAY_LEN(order); i++) {
            const ids prompt = t0_prompt(order[i]), want = t0_answer(order[i]);
            const tess_seq_params p = greedy(T0_IDS);
            ids got = {.n = 0}, again = {.n = 0};
            size_t n;
            tess_seq aborted = add(c, &prompt, &p); /* in the middle of the prompt, or just behind it */
            assert_int_equal(tess_step(c, ev, 6, &n, &e), TESS_OK);
            tess_seq_close(c, aborted);
            tess_seq s = add(c, &prompt, &p), fork, other;
            assert_int_equal(drain(c, s, &got), TESS_DONE_LENGTH);
            check_same("in turn", &got, &want);
            /* Two forks at once, one of which goes another way: what they wrote is their own. */
            assert_int_equal(tess_seq_fork(c, s, prompt.n - 1, &fork, &e), TESS_OK);
            assert_int_equal(tess_seq_append(c, fork, &prompt.id[prompt.n - 1], 1, &e), TESS_OK);
            assert_int_equal(tess_seq_fork(c, s, prompt.n - 1, &other, &e), TESS_OK);
            assert_int_equal(tess_seq_append(c, other, &prompt.id[0], 1, &e), TESS_OK);
            drain(c, fork, &again);
            check_same("a fork whose prompt is there but for its last id", &again, &want);
            tess_seq_close(c, s);
            tess_seq_close(c, fork);
            tess_seq_close(c, other);
        }
        tess_ctx_close(c);
    }
    tess_model_close(m);
}

typedef struct {
    float best, rows;
    double kl;
    float *want;
    bool compare;
} kv_loss;
enum { KV_ROWS = 256, KV_VOCAB = 256, KV_FROM = 16 };
static int32_t best_of(const float *x)
{
    int32_t k = 0;
    for (int32_t i = 1; i < KV_VOCAB; i++)
        if (x[i] > x[k]) k = i;
    return k;
}
static double log_sum(const float *x)
{
    double sum = 0;
    for (int i = 0; i < KV_VOCAB; i++) sum += exp((double)x[i]);
    return log(sum);
}
static void on_kv_logits(void *user, tess_seq seq, uint64_t pos, const float *logits, size_t n)
{
    kv_loss *r = user;
    float *want = r->want + pos * KV_VOCAB;
    UNUSED(seq);
    assert_true(n == KV_VOCAB && pos < KV_ROWS);
    if (!r->compare) {
        memcpy(want, logits, n * sizeof *want);
        return;
    }
    if (pos < KV_FROM) return;
    double lw = log_sum(want), lg = log_sum(logits);
    for (int i = 0; i < KV_VOCAB; i++) r->kl += exp((double)want[i] - lw) * ((double)want[i] - lw - (double)logits[i] + lg);
    r->rows++;
    r->best += best_of(want) == best_of(logits);
}

/* Qwen2 with K biases of B and -B in a rotary pair's first and second half: INT8 KV against f32 KV. */
static kv_loss loss_of_int8(float bias)
{
    static float want[KV_ROWS * KV_VOCAB];
    tiny_model t = MAKE(.vocab = KV_VOCAB, .std = 0.2, .qkv_bias = true,
                        .config = "\"model_type\":\"qwen2\",\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-6" TINY_ROPE(
                            "\"rope_type\":\"default\",\"rope_theta\":10000.0") TINY_CONTEXT);
    for (unsigned i = 0; i < 2; i++) {
        float *b = tiny_find(&t, i ? "model.layers.1.self_attn.k_proj.bias" : "model.layers.0.self_attn.k_proj.bias")->v;
        b[7] = bias;
        b[23] = -bias;
    }
    tess_model *m = convert(&t, NULL, 1, 1);
    kv_loss r = {.want = want};
    ids prompt = {.n = KV_ROWS};
    for (int i = 0; i < KV_ROWS; i++) prompt.id[i] = (i * 37 + 11) % 256;
    for (int k = 0; k < 2; k++) {
        tess_ctx_params cp;
        tess_ctx *c;
        tess_error e;
        ids none = {.n = 0};
        tess_seq_params p = greedy(0);
        p.flags |= TESS_SEQ_ALL_LOGITS;
        tess_ctx_params_init(&cp);
        cp.kv_dtype = k ? TESS_KV_INT8 : TESS_KV_F32;
        cp.on_logits = on_kv_logits;
        cp.logits_user = &r;
        r.compare = k != 0;
        assert_int_equal(tess_ctx_open(m, &cp, &c, &e), TESS_OK);
        drain(c, add(c, &prompt, &p), &none);
        tess_ctx_close(c);
    }
    tess_model_close(m);
    assert_true(r.rows >= KV_ROWS - KV_FROM);
    r.best /= r.rows;
    r.kl /= (double)r.rows;
    return r;
}

/* Plain scales per token and head give 0.863, 0.504 and 0.142 of equal best ids at 20, 100 and 400. */
static void b20_int8_kv_with_k_bias(void **state)
{
    UNUSED(state);
    static const float biases[] = {0, 20, 100, 400};
    float plain = 0;
    for (size_t i = 0; i < ARRAY_LEN(biases); i++) {
        const kv_loss r = loss_of_int8(biases[i]);
        print_message("bias %g: best equal %.3f, KL %.5f\n", (double)biases[i], (double)r.best, r.kl);
        if (i == 0) plain = r.best;
        if (!(r.best >= 0.93f && r.best >= plain - 0.05f && r.kl <= 0.002)) fail_msg("bias %g", (double)biases[i]);
    }
}

/* All prompts of the table in one batch, each joins three steps after the one before. */
static void b21_batches(void **state)
{
    UNUSED(state);
    static const struct {
        unsigned threads, chunk;
    } cases[] = {{1, 5}, {2, 16}, {8, 16}, {2, 512}};
    tiny_model t = MAKE(0);
    tess_model_close(convert(&t, NULL, 1, 1));
    for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
        tess_model *m = open_ranks(1, cases[k].threads);
        tess_ctx_params cp;
        tess_ctx_params_init(&cp);
        cp.max_seqs = T0_ROWS;
        cp.max_step_tokens = cases[k].chunk;
        tess_ctx *c = open_ctx(m, &cp);
        const tess_seq_params p = greedy(T0_IDS);
        tess_seq seq[T0_ROWS] = {0};
        ids got[T0_ROWS] = {{.n = 0}};
        tess_event ev[2 * T0_ROWS];
        size_t n;
        for (unsigned step = 0;; step++) {
            const ids prompt = t0_prompt(step / 3 % T0_ROWS);
            if (step % 3 == 0 && step / 3 < T0_ROWS) seq[step / 3] = add(c, &prompt, &p);
            const tess_status st = tess_step(c, ev, 2 * T0_ROWS, &n, NULL);
            assert_true(st >= 0);
            if (st == TESS_IDLE && step / 3 >= T0_ROWS) break;
            for (size_t i = 0; i < n; i++)
                for (unsigned row = 0; row < T0_ROWS; row++)
                    if (ev[i].kind == TESS_EV_TOKEN && ev[i].seq == seq[row]) got[row].id[got[row].n++] = ev[i].token;
        }
        for (unsigned row = 0; row < T0_ROWS; row++) {
            const ids want = t0_answer(row);
            check_same("batch", &got[row], &want);
        }
        tess_ctx_close(c);
        tess_model_close(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_model),
        cmocka_unit_test(b14_temperature_and_nan),
        cmocka_unit_test(b16_penalties),
        cmocka_unit_test(b17_end_ids_and_texts),
        cmocka_unit_test(b18_context_overflow),
        cmocka_unit_test(b19_pages_are_used_again),
        cmocka_unit_test(b20_int8_kv_with_k_bias),
        cmocka_unit_test(b21_batches),
    };
    return cmocka_run_group_tests(tests, make_work, remove_work);
}
