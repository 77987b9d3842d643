/*
 * t_cuda_kinds.c - what models of several kinds have on virtual devices (tests/cuemu): near the CPU, and the same bits on two devices that
 * can not read each other's memory as on one; tables of positions that grow; pages that sequences share.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine_kit.h"

enum { FILE_NAME = 300 };
static void name_of(char file[FILE_NAME], const char *what)
{
    const char *build = getenv("BUILD");
    snprintf(file, FILE_NAME, "%s/t_cuda_kinds-%ld-%s.tess", build ? build : "build", (long)getpid(), what);
}

static void normed_over_all_heads(arch *a) { a->qk_norm = QK_NORM_ALL; } /* two things are shared at one barrier */
static void position_biases(arch *a) { a->rope_kind = ROPE_NONE, a->rope_dims = 0, a->alibi = ALIBI_PLAIN; }
static void learned_positions(arch *a) { a->rope_kind = ROPE_NONE, a->rope_dims = 0, a->learned_pos = 1; }
static void rope_by_length(arch *a) { a->attn[0].rope_scale = ROPE_SCALE_DYNAMIC, a->attn[0].factor = 2, a->attn[0].orig_ctx = 16; }
static void latent(arch *a) { a->n_kv_heads = 1, a->kv_lora = 16, a->q_lora = 24, a->head_dim = 16, a->biases = 0; }
static void experts(arch *a)
{
    a->n_experts = 8, a->experts_used = 2, a->moe_ffn_size = 32, a->shared_ffn_size = 64;
    a->router_kind = ROUTER_SIGMOID, a->router_norm = a->router_correction = a->sinks = 1;
    a->biases |= BIAS_HEAD | BIAS_O;
    memset(a->layer_moe, 1, a->n_layers);
}

/* Sequences of several lengths one after another, then the last two in company in a new context. */
enum { ONE_BY_ONE = 3, KIND_RUNS = ONE_BY_ONE + 2 };
static void runs_of_kind(const char *file, const char *devices, result r[KIND_RUNS])
{
    static const int n_prompt[ONE_BY_ONE] = {20, 27, 34};
    tess_model *m;
    tess_ctx *c = NULL;
    tess_seq s, t;
    tess_error e;
    memset(r, 0, KIND_RUNS * sizeof *r);
    tess_status st = open_on(file, devices, NULL, &m, &e);
    if (st >= 0) st = open_ctx(m, 2, 64, 0, &c, &e);
    for (int i = 0; st >= 0 && i < ONE_BY_ONE; i++) {
        st = add_seq(c, n_prompt[i], 1, &s, &e);
        if (st >= 0) st = drain(c, s, &r[i], &e);
        if (st >= 0) tess_seq_close(c, s);
    }
    tess_ctx_close(c);
    c = NULL;
    if (st >= 0) st = open_ctx(m, 2, 64, 0, &c, &e);
    if (st >= 0) st = add_seq(c, n_prompt[1], 1, &s, &e);
    if (st >= 0) st = add_seq(c, n_prompt[2], 1, &t, &e);
    if (st >= 0) st = drain(c, s, &r[ONE_BY_ONE], &e);
    if (st >= 0) st = drain(c, t, &r[ONE_BY_ONE + 1], &e); /* nothing is left to do: its last logits */
    if (st < 0) fail_msg("%s: %s", devices, e.text);
    tess_ctx_close(c);
    tess_model_close(m);
    no_reports();
}

static void kinds_of_models(void **state)
{
    (void)state;
    static void (*const kinds[])(arch *a) = {normed_over_all_heads, position_biases, learned_positions, rope_by_length, latent, experts};
    for (unsigned k = 0; k < ARRAY_LEN(kinds); k++) {
        model_kit x;
        tess_error e;
        char file[FILE_NAME];
        result cpu[KIND_RUNS], one[KIND_RUNS], many[KIND_RUNS];
        distance d = {0};
        model_kit_init(&x);
        x.both_signs = true;
        x.a.n_layers = 1;
        x.a.attn_scale = 20;
        kinds[k](&x.a);
        name_of(file, "kind");
        if (!model_kit_write(&x, file, &e)) fail_msg("kind %u: %s", k, e.text);
        cuemu_reset(k + 1);
        runs_of_kind(file, "cpu", cpu);
        runs_of_kind(file, "cuda:0", one);
        cuemu_set_peer_possible(false);
        runs_of_kind(file, "cuda:0,1", many);
        for (int i = 0; i < KIND_RUNS; i++) {
            assert_memory_equal(one[i].last, many[i].last, sizeof one[i].last);
            assert_memory_equal(one[i].ids, many[i].ids, sizeof one[i].ids);
            distance_add(&d, cpu[i].last, one[i].last, VOCAB);
        }
        for (int i = 0; i < 2; i++) assert_memory_equal(one[i + 1].last, one[ONE_BY_ONE + i].last, sizeof one[i].last);
        if (!(distance_of(&d) <= NEAR)) fail_msg("kind %u: %g", k, distance_of(&d));
        unlink(file);
    }
}

/* More positions than the first block of the tables of positions has, the last step of the prompt one more: what devices have of them is
 * made anew. */
static void grow(bool alibi)
{
    static const char *const lists[] = {"cpu", "cuda:0,1"};
    enum { LONG = 257 };
    model_kit x;
    char file[FILE_NAME];
    result r[2] = {{.n = 0}, {.n = 0}};
    distance d = {0};
    model_kit_init(&x);
    x.both_signs = true;
    x.a.n_layers = 1;
    x.a.max_ctx = 512;
    x.a.attn_scale = 20;
    if (alibi) x.a.rope_kind = ROPE_NONE, x.a.rope_dims = 0, x.a.alibi = ALIBI_PLAIN;
    name_of(file, "long");
    for (unsigned i = 0; i < 2; i++) {
        tess_model *m;
        tess_ctx *c = NULL;
        tess_seq s;
        tess_error e;
        if (i == 0) assert_true(model_kit_write(&x, file, &e));
        cuemu_reset(1);
        tess_status st = open_on(file, lists[i], NULL, &m, &e);
        if (st >= 0) st = open_ctx(m, 1, 64, 0, &c, &e);
        if (st >= 0) st = add_seq(c, 50, 1, &s, &e);
        for (int32_t id = 50; st >= 0 && id < LONG; id++) st = tess_seq_append(c, s, &id, 1, &e);
        if (st >= 0) st = drain(c, s, &r[i], &e);
        if (st < 0) fail_msg("%s: %s", lists[i], e.text);
        tess_ctx_close(c);
        tess_model_close(m);
        no_reports();
    }
    unlink(file);
    distance_add(&d, r[0].last, r[1].last, VOCAB);
    if (!(distance_of(&d) <= NEAR)) fail_msg("alibi %d: %g", (int)alibi, distance_of(&d));
}
static void tables_grow(void **state)
{
    (void)state;
    grow(false);
    grow(true);
}

/* A second sequence with the same beginning has the pages of the first one on all devices, and its bits; so has a third one that
 * comes when both are gone. */
static void beginnings_are_shared(void **state)
{
    (void)state;
    static const char *const lists[] = {"cuda:0", "cuda:0,1", "cuda:0,1,0"};
    model_kit x;
    tess_error e;
    char file[FILE_NAME];
    name_of(file, "prefix");
    model_kit_init(&x);
    x.both_signs = true;
    if (!model_kit_write(&x, file, &e)) fail_msg("%s", e.text);
    for (unsigned i = 0; i < ARRAY_LEN(lists); i++) {
        tess_model *m;
        tess_ctx *c = NULL;
        tess_ctx_params p;
        tess_kv_stats stats;
        tess_seq s[3];
        result r[3] = {{.n = 0}, {.n = 0}, {.n = 0}};
        cuemu_reset(i + 1);
        tess_ctx_params_init(&p);
        tess_kv_stats_init(&stats);
        p.max_seqs = 2, p.page_tokens = 16, p.kv_dtype = TESS_KV_INT8;
        tess_status st = open_on(file, lists[i], NULL, &m, &e);
        if (st >= 0) st = tess_ctx_open(m, &p, &c, &e);
        for (int k = 0; st >= 0 && k < 3; k++) {
            st = add_seq(c, 50, 1, &s[k], &e);
            if (st >= 0) st = drain(c, s[k], &r[k], &e);
            if (k == 1) tess_seq_close(c, s[0]), tess_seq_close(c, s[1]);
        }
        if (st >= 0) st = tess_ctx_kv_stats(c, &stats, &e);
        if (st < 0) fail_msg("%s: %s", lists[i], e.text);
        equal(&r[0], &r[1]);
        equal(&r[0], &r[2]);
        assert_int_equal(stats.tokens_shared, 2 * 48);
        tess_ctx_close(c);
        tess_model_close(m);
        no_reports();
    }
    unlink(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beginnings_are_shared),
        cmocka_unit_test(kinds_of_models),
        cmocka_unit_test(tables_grow),
    };
    cuemu_set_quiet(true);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
