/* t_longrope.c - frequencies that depend on the prompt's length: sequences of both kinds in one batch, and a sequence that grows
 * from one kind to the other, give the bits that each would have alone and at once. */
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

enum { VOCAB = 192, SHORT = 50, LONG = 90 /* the model's limit is 64 */ };
static char model_path[512];
static tess_model *model;

static int open_all(void **state)
{
    (void)state;
    const char *build = getenv("BUILD") ? getenv("BUILD") : "build";
    char cmd[2048];
    tess_error e;
    tess_model_params p;
    if (access("tests/models/phi3-longrope/config.json", R_OK) != 0) return 0;
    snprintf(model_path, sizeof model_path, "%s/t_longrope-%ld.tess", build, (long)getpid());
    snprintf(cmd, sizeof cmd, "'%s/bin/convert-hf' tests/models/phi3-longrope -o '%s' --force >/dev/null 2>&1", build, model_path);
    tess_model_params_init(&p);
    p.n_ranks = 2;
    p.n_threads = 2;
    return system(cmd) != 0 || tess_model_open(model_path, &p, &model, &e) != TESS_OK;
}

static int close_all(void **state)
{
    (void)state;
    tess_model_close(model);
    if (model_path[0]) unlink(model_path);
    return 0;
}

/* Last logits of every sequence that was run, by its number of ids. */
static float last[LONG + 1][VOCAB];
static void on_logits(void *user, tess_seq seq, uint64_t pos, const float *logits, size_t n)
{
    (void)user, (void)seq;
    assert_true(pos < LONG && n == VOCAB);
    memcpy(last[pos + 1], logits, sizeof last[0]);
}

static tess_ctx *open_ctx(void)
{
    tess_ctx_params p;
    tess_ctx *c;
    tess_error e;
    tess_ctx_params_init(&p);
    p.max_seqs = 2;
    p.max_step_tokens = 33;
    p.on_logits = on_logits;
    if (tess_ctx_open(model, &p, &c, &e) != TESS_OK) fail_msg("%s", e.text);
    return c;
}

static void append(tess_ctx *c, tess_seq s, int from, int to)
{
    int32_t ids[LONG];
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
    float alone[2][VOCAB];
    const int n[2] = {SHORT, LONG};
    for (int i = 0; i < 2; i++) {
        tess_ctx *c = open_ctx();
        add(c, n[i]);
        run(c);
        memcpy(alone[i], last[n[i]], sizeof alone[i]);
        tess_ctx_close(c);
    }
    memset(last, 0, sizeof last);
    tess_ctx *c = open_ctx(); /* both at once */
    add(c, SHORT);
    add(c, LONG);
    run(c);
    for (int i = 0; i < 2; i++) assert_memory_equal(alone[i], last[n[i]], sizeof alone[i]);
    tess_ctx_close(c);
    memset(last, 0, sizeof last);
    c = open_ctx(); /* one that grows, with its first part computed by the other frequencies */
    tess_seq s = add(c, SHORT);
    run(c);
    append(c, s, SHORT, LONG);
    run(c);
    assert_memory_equal(alone[1], last[LONG], sizeof alone[1]);
    tess_ctx_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kinds_do_not_mix)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
