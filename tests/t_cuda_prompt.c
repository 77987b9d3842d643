/*
 * t_cuda_prompt.c - large prompts of whole models on virtual devices: under --compute auto, and from the number of rows on that op_cuda_gemm_from
 * says, linear operations go through op_gemm_args, which is near the exact way and is not it. Everything else keeps the exact bits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "cuda_ops.h"
#include "engine_kit.h"

enum { MOST = 1100 };
/* Logits of the rows of a prompt. */
typedef struct {
    float row[MOST][VOCAB];
    uint32_t n;
} logits;
static logits want, got;
static char file[3][256]; /* bf16, written for two ranks, with 8 leaves; q8, for one; bf16 with latent attention */

static void on_row(void *user, tess_seq seq, uint64_t pos, const float *v, size_t n)
{
    logits *l = user;
    (void)seq;
    assert_true(pos < MOST && n == VOCAB);
    memcpy(l->row[pos], v, sizeof l->row[0]);
    l->n++;
}

static void prompt(const char *path, const char *devices, int32_t compute, uint32_t chunk, uint32_t n, logits *to)
{
    tess_model_params p;
    tess_ctx_params q;
    tess_seq_params s;
    tess_model *m;
    tess_ctx *c = NULL;
    tess_error e;
    tess_seq seq;
    int32_t ids[MOST];
    static tess_event ev[4];
    size_t n_ev;
    tess_model_params_init(&p);
    tess_ctx_params_init(&q);
    tess_seq_params_init(&s);
    p.devices = devices, p.compute = compute, p.n_threads = 1;
    q.max_seqs = 1, q.max_step_tokens = chunk, q.kv_dtype = TESS_KV_F16, q.page_tokens = 64, q.on_logits = on_row, q.logits_user = to;
    s.flags = TESS_SEQ_ALL_LOGITS;
    to->n = 0;
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)(i * 37 % VOCAB);
    tess_status st = tess_model_open(path, &p, &m, &e);
    if (st >= 0) st = tess_ctx_open(m, &q, &c, &e);
    if (st >= 0) st = tess_seq_open(c, &s, &seq, &e);
    if (st >= 0) st = tess_seq_append(c, seq, ids, n, &e);
    while (st == TESS_OK) st = tess_step(c, ev, 4, &n_ev, &e);
    if (st < 0) fail_msg("%s: %s", devices, e.text);
    tess_ctx_close(c);
    tess_model_close(m);
    assert_int_equal(to->n, n);
    if (strcmp(devices, "cpu") != 0) no_reports();
}

static double off(uint32_t n)
{
    distance d = {0};
    for (uint32_t i = 0; i < n; i++) distance_add(&d, want.row[i], got.row[i], VOCAB);
    return distance_of(&d);
}
static bool equal_rows(uint32_t lo, uint32_t hi) { return memcmp(want.row[lo], got.row[lo], (hi - lo) * sizeof want.row[0]) == 0; }

/* Distances of engine_kit.h. Measured: 8.7e-5 for the bf16 model, 7.8e-4 for the q8 one. */
static const double most[2] = {2e-4, 2e-3};

static void is_near_the_exact(void **state)
{
    (void)state;
    static const char *const devices[] = {"cuda:0", "cuda:0,1", "cuda:1,0,2", "cuda:0,0"};
    const uint32_t n = op_cuda_gemm_from(DT_BF16);
    cuemu_reset(1);
    prompt(file[0], "cuda:0", TESS_COMPUTE_EXACT, 256, n, &want);
    for (unsigned i = 0; i < (cuemu_checked() ? 2 : ARRAY_LEN(devices)); i++) {
        cuemu_reset(i + 2);
        if (i == 2) cuemu_set_peer_possible(false);
        prompt(file[0], devices[i], TESS_COMPUTE_AUTO, 256, n, &got);
        const double far = off(n);
        if (!(far > 0 && far < most[0])) fail_msg("%s: %g away from the exact", devices[i], far);
    }
}

static void quantized_is_near(void **state)
{
    (void)state;
    const uint32_t n = op_cuda_gemm_from(DT_Q8);
    if (cuemu_checked()) skip();
    cuemu_reset(1);
    prompt(file[1], "cuda:0,1", TESS_COMPUTE_EXACT, n, n, &want);
    cuemu_reset(2);
    prompt(file[1], "cuda:0,1", TESS_COMPUTE_AUTO, n, n, &got);
    const double far = off(n);
    if (!(far > 0 && far < most[1])) fail_msg("%g away from the exact", far);
}

/* The kernel with wgmma, unless its trial fails; sums of the emulator are the same in both. Devices that have no bf16 stay exact. */
static void kernels_of_devices(void **state)
{
    (void)state;
    const uint32_t n = op_cuda_gemm_from(DT_BF16);
    cuemu_reset(1);
    prompt(file[0], "cuda:0,1", TESS_COMPUTE_AUTO, 256, n, &want);
    const uint64_t none = cuemu_wgmmas();
    cuemu_set_capability(90);
    cuemu_set_bad_wgmma(true);
    prompt(file[0], "cuda:0,1", TESS_COMPUTE_AUTO, 256, n, &got);
    assert_true(equal_rows(0, n));
    const uint64_t trials = cuemu_wgmmas() - none;
    cuemu_set_bad_wgmma(false);
    prompt(file[0], "cuda:0,1", TESS_COMPUTE_AUTO, 256, n, &got);
    assert_true(equal_rows(0, n));
    assert_true(trials > 0 && cuemu_wgmmas() - none > 2 * trials); /* twice a trial, and more */
    cuemu_set_capability(75);
    prompt(file[0], "cuda:0", TESS_COMPUTE_AUTO, 256, n, &got);
    assert_false(equal_rows(0, n));
    prompt(file[0], "cuda:0", TESS_COMPUTE_EXACT, 256, n, &want);
    assert_true(equal_rows(0, n));
}

/* Linear operations with other inputs stand beside each other: each has its own x. */
static void latent_is_near(void **state)
{
    (void)state;
    const uint32_t n = op_cuda_gemm_from(DT_BF16);
    if (cuemu_checked()) skip();
    cuemu_reset(1);
    prompt(file[2], "cuda:0,1", TESS_COMPUTE_EXACT, 256, n, &want);
    cuemu_reset(2);
    prompt(file[2], "cuda:0,1", TESS_COMPUTE_AUTO, 256, n, &got);
    const double far = off(n);
    if (!(far > 0 && far < most[0])) fail_msg("%g away from the exact", far);
}

/* Fewer rows than that in a step: the exact bits. */
static void few_rows_are_exact(void **state)
{
    (void)state;
    const uint32_t n = op_cuda_gemm_from(DT_BF16) + 20;
    cuemu_reset(1);
    prompt(file[0], "cuda:0", TESS_COMPUTE_EXACT, 256, n, &want);
    cuemu_reset(2);
    prompt(file[0], "cuda:0,1", TESS_COMPUTE_AUTO, n - 21, n, &got);
    assert_true(equal_rows(0, n));
    if (cuemu_checked()) return;
    cuemu_reset(3);
    prompt(file[0], "cuda:0,1", TESS_COMPUTE_EXACT, 256, n, &got);
    assert_true(equal_rows(0, n));
    cuemu_reset(4);
    prompt(file[0], "cuda:0", TESS_COMPUTE_AUTO, n - 20, n, &got); /* the first step only is large */
    assert_false(equal_rows(0, n - 20));
}

static int open_files(void **state)
{
    (void)state;
    tess_error e;
    const char *build = getenv("BUILD") ? getenv("BUILD") : "build";
    cuemu_set_quiet(true);
    for (unsigned i = 0; i < ARRAY_LEN(file); i++) {
        model_kit x;
        model_kit_init(&x);
        x.tp = i == 1 ? 1 : 2;
        x.dtype = i == 1 ? DT_Q8 : DT_BF16;
        x.both_signs = true;
        x.a.n_layers = i == 1 ? 1 : 2;
        if (i == 2) x.a.n_kv_heads = 1, x.a.kv_lora = 16, x.a.q_lora = 24, x.a.head_dim = 16, x.a.biases = 0;
        x.a.attn_scale = i == 2 ? 4000 : 1; /* norms make the latent vectors small */
        x.a.ffn_size = i == 2 ? 32 : 288; /* the last linear operation of a layer has the least columns, or the most */
        x.a.max_ctx = MOST;
        snprintf(file[i], sizeof file[i], "%s/t_cuda_prompt-%ld-%u.tess", build, (long)getpid(), i);
        if (!model_kit_write(&x, file[i], &e)) return puts(e.text), 1;
    }
    return 0;
}
static int remove_files(void **state)
{
    (void)state;
    return unlink(file[0]) | unlink(file[1]) | unlink(file[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_near_the_exact),
        cmocka_unit_test(quantized_is_near),
        cmocka_unit_test(kernels_of_devices),
        cmocka_unit_test(latent_is_near),
        cmocka_unit_test(few_rows_are_exact),
    };
    return cmocka_run_group_tests(tests, open_files, remove_files);
}
