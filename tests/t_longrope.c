/* t_longrope.c - frequencies that depend on the prompt's length (longrope: two kinds; dynamic: any length beyond the model's own):
 * sequences of all kinds in one batch, and a sequence that grows from one kind to the other, give the bits that each would have
 * alone and at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tessera.h"

enum { VOCAB = 192, SHORT = 50, LONG = 90 /* both models' limit is 64 */, LONGER = 101, N_SEQS = 3 };
static const int lengths[N_SEQS] = {SHORT, LONG, LONGER};
static char model_path[512];
static tess_model *model;

static int open_model(const char *name)
{
    const char *build = getenv("BUILD") ? getenv("BUILD") : "build";
    char cmd[2048];
    tess_error e;
    tess_model_params p;
    snprintf(cmd, sizeof cmd, "tests/models/%s/config.json", name);
    if (access(cmd, R_OK) != 0) return 0;
    snprintf(model_path, sizeof model_path, "%s/t_longrope-%ld.tess", build, (long)getpid());
    snprintf(cmd, sizeof cmd, "'%s/bin/convert-hf' tests/models/%s -o '%s' --force >/dev/null 2>&1", build, name, model_path);
    tess_model_params_init(&p);
    p.n_ranks = 2;
    p.n_threads = 2;
    return system(cmd) != 0 || tess_model_open(model_path, &p, &model, &e) != TESS_OK;
}

static int open_longrope(void **state)
{
    (void)state;
    return open_model("phi3-longrope");
}

static int open_dynamic(void **state)
{
    (void)state;
    return open_model("llama-dynamic");
}

static int close_model(void **state)
{
    (void)state;
    tess_model_close(model);
    model = NULL;
    if (model_path[0]) unlink(model_path);
    model_path[0] = 0;
    return 0;
}

/* Last logits of every sequence that was run, by its number of ids. */
static float last[LONGER + 1][VOCAB];
static void on_logits(void *user, tess_seq seq, uint64_t pos, const float *logits, size_t n)
{
    (void)user, (void)seq;
    assert_true(pos < LONGER && n == VOCAB);
    memcpy(last[pos + 1], logits, sizeof last[0]);
}

static tess_ctx *open_ctx(void)
{
    tess_ctx_params p;
    tess_ctx *c;
    tess_error e;
    tess_ctx_params_init(&p);
    p.max_seqs = N_SEQS;
    p.max_step_tokens = 33;
    p.prefix_bytes = -1;
    p.on_logits = on_logits;
    if (tess_ctx_open(model, &p, &c, &e) != TESS_OK) fail_msg("%s", e.text);
    return c;
}

static void append(tess_ctx *c, tess_seq s, int from, int to)
{
    int32_t ids[LONGER];
    tess_error e;
    for (int i = from; i < to; i++) ids[i - from] = (i * 37 + 11) % VOCAB;
    if (tess_seq_append(c, s, ids, (size_t)(to - from), &e) != TESS_OK) fail_msg("%s", e.text);
}

static tess_seq add(tess_ctx *c, int n)
{
    tess_seq_params p;
    tess_seq s;
    tess_error e;
    tess_seq_params_init(&p);
    p.max_new = 0;
    if (tess_seq_open(c, &p, &s, &e) != TESS_OK) fail_msg("%s", e.text);
    append(c, s, 0, n);
    return s;
}

static void run(tess_ctx *c)
{
    tess_event ev[8];
    tess_error e;
    tess_status st;
    size_t n;
    while ((st = tess_step(c, ev, 8, &n, &e)) == TESS_OK) {}
    if (st < 0) fail_msg("%s", e.text);
}

static void kinds_do_not_mix(void **state)
{
    (void)state;
    if (!model) skip();
    float alone[N_SEQS][VOCAB];
    for (int i = 0; i < N_SEQS; i++) {
        tess_ctx *c = open_ctx();
        add(c, lengths[i]);
        run(c);
        memcpy(alone[i], last[lengths[i]], sizeof alone[i]);
        tess_ctx_close(c);
    }
    memset(last, 0, sizeof last);
    tess_ctx *c = open_ctx(); /* all at once */
    for (int i = 0; i < N_SEQS; i++) add(c, lengths[i]);
    run(c);
    for (int i = 0; i < N_SEQS; i++) assert_memory_equal(alone[i], last[lengths[i]], sizeof alone[i]);
    tess_ctx_close(c);
    memset(last, 0, sizeof last);
    c = open_ctx(); /* one that grows, with its first part computed by the other frequencies */
    tess_seq s = add(c, SHORT);
    run(c);
    for (int i = 1; i < N_SEQS; i++) {
        append(c, s, lengths[i - 1], lengths[i]);
        run(c);
        assert_memory_equal(alone[i], last[lengths[i]], sizeof alone[i]);
    }
    tess_ctx_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(kinds_do_not_mix, open_longrope, close_model),
                                       cmocka_unit_test_setup_teardown(kinds_do_not_mix, open_dynamic, close_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
