/*
 * t_cuda_ranks.c - one model on 1 to 8 ranks of virtual devices: the logits of every row have the bits that one device gives each
 * sequence alone, for any number of ranks, cut of the leaves, prefill chunk, page size and company. With --compute f32 or f32 pages they
 * are those of the CPU; else, since attention goes through tensor cores, near the CPU's.
 *
 * CUEMU_MODEL=FILE tries that model instead of the ones made here (tests/cuemu/models.sh does, with every family).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "ctx.h"
#include "device.h"
#include "engine_kit.h"
#include "exec_priv.h"

enum { SEQS = 3, ROWS = 64, KEPT = 12 };
static const uint32_t n_ids[SEQS] = {20, 37, 21}; /* the last one begins with KEPT ids of the first */

typedef struct {
    const char *devices, *split;
    uint32_t chunk, page;
    uint64_t two_from; /* bytes from which on sums go in two steps (exec_sums.c); 0: what it has */
} setup;
typedef struct { int32_t compute, kv; } mode;
static const mode fast = {TESS_COMPUTE_AUTO, TESS_KV_INT8};
/* A hash of the logits of every row of every sequence, 0: there were none; and, where keep was set, the logits. */
typedef struct {
    tess_seq seq[SEQS];
    uint64_t row[SEQS][ROWS];
    bool again, keep;
    float *logits[SEQS][ROWS];
    size_t vocab;
} marks;
/* How far one device may be from the CPU, as distance_of has it. Measured: 1.7e-6 for the bf16 model made here, 1.2e-3 for the q8 one, where a
 * last bit flips codes of activations; attention without its scale is 1e-3 and 0.2 away. */
static const double near_most[2] = {1e-5, 3e-3};

static char path[2][256]; /* bf16 written for three ranks, q8 for one */
static unsigned n_paths;

static void on_row(void *user, tess_seq seq, uint64_t pos, const float *logits, size_t n)
{
    marks *m = user;
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        h = (h ^ bits) * 1099511628211u;
    }
    for (unsigned s = 0; s < SEQS; s++) {
        if (m->seq[s] != seq) continue;
        assert_true(pos < ROWS);
        m->again = m->again || (m->row[s][pos] && m->row[s][pos] != (h | 1));
        m->row[s][pos] = h | 1;
        if (m->keep && !m->logits[s][pos] && (m->logits[s][pos] = malloc(n * sizeof *logits))) memcpy(m->logits[s][pos], logits, n * sizeof *logits);
        m->vocab = n;
    }
}

static tess_status open_setup(const char *file, const setup *s, mode how, marks *to, tess_model **m, tess_ctx **c, tess_error *e)
{
    tess_model_params p;
    tess_ctx_params q;
    tess_model_params_init(&p);
    p.devices = s->devices;
    p.split = s->split;
    p.stream = TESS_STREAM_OFF; /* too little memory shall be an error */
    p.compute = how.compute;
    p.n_threads = 1;
    tess_ctx_params_init(&q);
    q.max_seqs = SEQS;
    q.max_step_tokens = s->chunk;
    q.kv_dtype = how.kv;
    q.page_tokens = s->page;
    q.prefix_bytes = -1;
    q.on_logits = on_row;
    q.logits_user = to;
    *c = NULL;
    tess_status st = tess_model_open(file, &p, m, e);
    if (st >= 0) st = tess_ctx_open(*m, &q, c, e);
    if (st >= 0 && s->two_from) (*c)->exec->two_from = s->two_from;
    return st;
}

static tess_status append(tess_ctx *c, tess_seq seq, uint32_t s, uint32_t from, uint32_t vocab, tess_error *e)
{
    int32_t ids[ROWS];
    for (uint32_t i = 0; i < n_ids[s]; i++) ids[i] = (int32_t)((i * 37 + (s == 2 && i < KEPT ? 1 : s + 1) * 11) % vocab);
    return tess_seq_append(c, seq, ids + from, n_ids[s] - from, e);
}

static tess_status begin(tess_ctx *c, marks *to, uint32_t s, uint32_t vocab, tess_error *e)
{
    tess_seq_params p;
    tess_seq_params_init(&p);
    p.max_new = STEPS;
    p.flags = TESS_SEQ_IGNORE_EOS | TESS_SEQ_FEED_LAST | TESS_SEQ_ALL_LOGITS;
    tess_status st = tess_seq_open(c, &p, &to->seq[s], e);
    return st < 0 ? st : append(c, to->seq[s], s, 0, vocab, e);
}

static tess_status steps(tess_ctx *c, unsigned most, tess_error *e)
{
    tess_event ev[2 * SEQS];
    tess_status st = TESS_OK;
    for (size_t n; most-- && st == TESS_OK;) st = tess_step(c, ev, 2 * SEQS, &n, e);
    return st < 0 ? st : TESS_OK;
}

/* Each sequence by itself, in a context that has no other. */
static tess_status alone(tess_ctx *c, marks *to, uint32_t vocab, tess_error *e)
{
    for (uint32_t s = 0; s < SEQS; s++) {
        TRY(begin(c, to, s, vocab, e));
        TRY(steps(c, 1000, e));
        tess_seq_close(c, to->seq[s]);
    }
    return TESS_OK;
}
/* The second one joins when the first is under way, the third shares pages with the first. */
static tess_status together(tess_ctx *c, marks *to, uint32_t vocab, tess_error *e)
{
    TRY(begin(c, to, 0, vocab, e));
    TRY(steps(c, 2, e));
    TRY(begin(c, to, 1, vocab, e));
    TRY(steps(c, 1, e));
    TRY(tess_seq_fork(c, to->seq[0], KEPT, &to->seq[2], e));
    TRY(append(c, to->seq[2], 2, KEPT, vocab, e));
    return steps(c, 1000, e);
}

static void try_setup(const char *file, const setup *s, mode how, bool company, marks *to)
{
    tess_model *m;
    tess_ctx *c;
    tess_error e;
    tess_model_info info;
    tess_status st = open_setup(file, s, how, to, &m, &c, &e);
    tess_model_info_init(&info);
    if (st >= 0) st = tess_model_get_info(m, &info, &e);
    if (st >= 0) st = company ? together(c, to, info.vocab_size, &e) : alone(c, to, info.vocab_size, &e);
    if (st < 0) fail_msg("%s, split %s: %s", s->devices, s->split ? s->split : "none", e.text);
    tess_ctx_close(c);
    tess_model_close(m);
    no_reports();
}

/* Rows of the third sequence that it shares are the first one's. */
static void compare(const marks *want, const marks *got, const setup *s)
{
    assert_false(got->again);
    for (uint32_t q = 0; q < SEQS; q++)
        for (uint32_t i = 0; i < ROWS; i++) {
            bool ran = i < n_ids[q] + STEPS, shared = q == 2 && i < KEPT && got->row[q][i] == 0;
            assert_int_equal(want->row[q][i] != 0, ran);
            if (!shared && want->row[q][i] != got->row[q][i])
                fail_msg("%s, split %s, chunk %u, page %u: row %u of sequence %u", s->devices, s->split ? s->split : "none",
                         s->chunk, s->page, i, q);
        }
}

/* Of all rows; what was kept is given back. */
static double distance_from(marks *cpu, marks *got)
{
    distance d = {0};
    for (uint32_t q = 0; q < SEQS; q++)
        for (uint32_t i = 0; i < ROWS; i++) {
            assert_int_equal(cpu->logits[q][i] != NULL, got->logits[q][i] != NULL);
            if (!cpu->logits[q][i]) continue;
            distance_add(&d, cpu->logits[q][i], got->logits[q][i], cpu->vocab);
            free(cpu->logits[q][i]), free(got->logits[q][i]);
        }
    return distance_of(&d);
}

/* What file f must give: with exact arithmetic what the CPU gives, else what one device does, and that is near the CPU (of given models models.sh asks that). */
static void reference(unsigned f, mode how, marks *want)
{
    static const setup cpu = {"cpu", NULL, 64, 32, 0}, one = {"cuda:0", NULL, 64, 32, 0};
    bool exact = how.compute == TESS_COMPUTE_F32 || how.kv == TESS_KV_F32, given = getenv("CUEMU_MODEL");
    marks from_cpu = {.keep = !exact && !given};
    *want = (marks){.keep = !exact && !given};
    cuemu_reset(1);
    if (!exact) try_setup(path[f], &one, how, false, want);
    if (exact || !given) try_setup(path[f], &cpu, how, false, exact ? want : &from_cpu);
    if (exact || given) return;
    double off = distance_from(&from_cpu, want);
    if (!(off <= near_most[f])) fail_msg("file %u: one device is %g away from the CPU", f, off);
}

/* The files in turn; in the checked build, which is slow, not all. */
static void all_setups(const setup *list, unsigned n, mode how)
{
    marks want[2];
    for (unsigned f = 0; f < n_paths; f++) reference(f, how, &want[f]);
    for (unsigned i = 0; i < n; i += cuemu_checked() ? 3 : 1) {
        marks got = {.keep = false};
        cuemu_reset(i + 1);
        try_setup(path[i % n_paths], &list[i], how, true, &got);
        compare(&want[i % n_paths], &got, &list[i]);
    }
}

/* ---- tests ---- */

static void any_number_of_ranks(void **state)
{
    (void)state;
    static const setup list[] = {{"cuda:0", NULL, 7, 16, 0},
                                 {"cuda:0,1", NULL, 64, 64, 0},
                                 {"cuda:2,1,0", NULL, 9, 32, 0},
                                 {"cuda:0,1,2,0", NULL, 33, 16, 0},
                                 {"cuda", NULL, 13, 32, 0},
                                 {"cuda:0,1,2,3,4", NULL, 5, 64, 0},
                                 {"cuda:0,1,2,3,4,5", NULL, 11, 32, 0},
                                 {"cuda:0,1,2,3,4,5,6", NULL, 64, 16, 0},
                                 {"cuda:0,0,0", NULL, 6, 16, 0},
                                 {"cuda:1,0,1,0,1", NULL, 64, 32, 0}};
    all_setups(list, getenv("CUEMU_MODEL") ? 5 : ARRAY_LEN(list), fast);
}

static void exact_as_the_cpu(void **state)
{
    (void)state;
    static const setup list[] = {{"cuda:0", NULL, 7, 16, 0}, {"cuda:0,1,2", NULL, 33, 32, 0}, {"cuda", NULL, 13, 64, 0}, {"cuda:1,0,1", "1,2,5", 64, 16, 0}};
    static const mode how[] = {{TESS_COMPUTE_F32, TESS_KV_INT8}, {TESS_COMPUTE_F32, TESS_KV_F16}, {TESS_COMPUTE_AUTO, TESS_KV_F32}};
    if (getenv("CUEMU_MODEL")) skip();
    for (unsigned i = 0; i < ARRAY_LEN(how); i++) all_setups(list, ARRAY_LEN(list), how[i]);
}

static void pages_of_f16(void **state)
{
    (void)state;
    static const setup list[] = {{"cuda:0,1", NULL, 7, 16, 0}, {"cuda:2,1,0", NULL, 9, 32, 0}, {"cuda:0,0,1,1", "1,2,5,1", 64, 64, 0}, {"cuda", NULL, 13, 32, 0}};
    if (getenv("CUEMU_MODEL")) skip();
    all_setups(list, ARRAY_LEN(list), (mode){TESS_COMPUTE_EXACT, TESS_KV_F16});
}

/* Sums over ranks in two steps: always, for a prompt's chunks alone, and of ranks on one device; the last shares of 64 columns are empty. */
static void sums_in_two_steps(void **state)
{
    (void)state;
    static const setup list[] = {{"cuda:0,1", NULL, 64, 32, 1}, {"cuda:0,1,2", NULL, 9, 16, 1}, {"cuda:0,1,2,3", NULL, 33, 32, 4000},
                                 {"cuda", NULL, 13, 32, 1}, {"cuda:0,1", NULL, 33, 16, 4000}, {"cuda:1,0,1", "1,2,5", 64, 32, 1},
                                 {"cuda", NULL, 64, 32, 9000}, {"cuda:0,0,0", NULL, 6, 16, 1}};
    if (getenv("CUEMU_MODEL")) skip();
    all_setups(list, ARRAY_LEN(list), fast);
}

/* Launches of a decoding step of one row, sums going in two steps from so many bytes on. */
static uint64_t launches_from(const char *devices, uint64_t two_from)
{
    const setup s = {devices, NULL, 64, 32, two_from};
    tess_model *m;
    tess_ctx *c;
    tess_error e;
    marks to = {0};
    cuemu_reset(1);
    tess_status st = open_setup(path[1], &s, fast, &to, &m, &c, &e);
    if (st >= 0) st = begin(c, &to, 0, VOCAB, &e);
    if (st >= 0) st = steps(c, 1, &e);
    const uint64_t before = cuemu_launches();
    if (st >= 0) st = steps(c, 1, &e);
    if (st < 0) fail_msg("%s: %s", devices, e.text);
    const uint64_t n = cuemu_launches() - before;
    tess_ctx_close(c);
    tess_model_close(m);
    return n;
}

/* One step reads 8 (1 - 1/R) rows of 256 bytes from others, two the R-th part of that and (1 - 1/R) rows. From this difference on there are, for
 * each of two sums of each of two layers, a barrier of each rank and a launch of two of them more: 64 columns are two shares. */
static void bytes_decide(void **state)
{
    (void)state;
    static const struct { const char *devices; uint64_t ranks, less; } list[] = {{"cuda:0,1", 2, 384}, {"cuda:0,1,2", 3, 739}, {"cuda:0,1,2,3", 4, 960}, {"cuda", 8, 1344}};
    if (getenv("CUEMU_MODEL")) skip();
    for (unsigned i = 0; i < ARRAY_LEN(list); i++) {
        const uint64_t one = launches_from(list[i].devices, 0);
        assert_int_equal(launches_from(list[i].devices, list[i].less + 1), one);
        assert_int_equal(launches_from(list[i].devices, list[i].less), one + 2 * 2 * (2 + list[i].ranks));
    }
}

/* Shares decide which leaves a rank gets; the last ones here leave ranks without any. */
static void any_split(void **state)
{
    (void)state;
    static const setup list[] = {{"cuda:0,1", "3,1", 7, 16, 0},
                                 {"cuda:0,1", "1,7", 64, 32, 0},
                                 {"cuda:0,1,2", "5,1,2", 9, 64, 0},
                                 {"cuda:0,0,1", "1,2,5", 64, 16, 0},
                                 {"cuda:0,1,2,3,4", "1,1,1,1,4", 8, 32, 0},
                                 {"cuda:0,1,2", "98,1,1", 33, 32, 0},
                                 {"cuda:0,1,2,3", "1,1,90,1", 64, 16, 0}};
    if (getenv("CUEMU_MODEL")) skip();
    all_setups(list, ARRAY_LEN(list), fast);
}

/* A device with less memory than an equal share needs: the message names it, and a split that spares it works. */
static void unequal_memory(void **state)
{
    (void)state;
    tess_model *m;
    tess_ctx *c;
    tess_error e;
    marks want = {0}, got = {0};
    model_kit x;
    char file[300];
    void *taken;
    setup s = {"cuda:0", NULL, 16, 32, 0};
    if (getenv("CUEMU_MODEL")) skip();
    model_kit_init(&x);
    x.a.n_layers = 8;
    x.a.n_heads = 8;
    x.a.hidden_size = 64;
    x.a.ffn_size = 1024;
    snprintf(file, sizeof file, "%s.large", path[0]);
    assert_true(model_kit_write(&x, file, &e)); /* 3.4 MB of weights */
    for (unsigned i = 0; i < 2; i++) {
        cuemu_reset(1);
        if (i) cuemu_set_memory(8 << 20);
        assert_int_equal(device_select(1), 0);
        assert_int_equal(device_alloc(&taken, (8 << 20) - (2400 << 10)), 0);
        if (i) {
            s.devices = "cuda:0,1";
            assert_int_equal(open_setup(file, &s, fast, &got, &m, &c, &e), TESS_E_NOMEM);
            assert_non_null(strstr(e.text, "cuda:1"));
            s.split = "3,1";
        }
        tess_status st = open_setup(file, &s, fast, i ? &got : &want, &m, &c, &e);
        if (st >= 0) st = begin(c, i ? &got : &want, 0, VOCAB, &e);
        if (st >= 0) st = steps(c, 1000, &e);
        if (st < 0) fail_msg("%s", e.text);
        tess_ctx_close(c);
        tess_model_close(m);
        assert_int_equal(device_select(1), 0);
        device_free(taken);
        no_reports();
    }
    assert_true(want.row[0][n_ids[0] + STEPS - 1] != 0);
    assert_memory_equal(want.row[0], got.row[0], sizeof got.row[0]);
    unlink(file);
}

static int open_files(void **state)
{
    (void)state;
    tess_error e;
    const char *given = getenv("CUEMU_MODEL"), *build = getenv("BUILD") ? getenv("BUILD") : "build";
    cuemu_set_quiet(true);
    n_paths = given ? 1 : 2;
    if (given) return snprintf(path[0], sizeof path[0], "%s", given) >= (int)sizeof path[0];
    for (unsigned i = 0; i < n_paths; i++) {
        model_kit x;
        model_kit_init(&x);
        x.tp = i ? 1 : 3;
        x.dtype = i ? DT_Q8 : DT_BF16;
        x.both_signs = true;
        x.a.attn_scale = 20; /* scores of about 1 */
        x.a.n_heads = 8;
        x.a.hidden_size = 64;
        x.a.ffn_size = 288; /* leaves of one group and of two */
        if (i) x.a.n_attn_kinds = 2, x.a.attn[1] = x.a.attn[0], x.a.attn[1].window = 16, x.a.layer_attn[1] = 1; /* two groups of pages */
        snprintf(path[i], sizeof path[i], "%s/t_cuda_ranks-%ld-%u.tess", build, (long)getpid(), i);
        if (!model_kit_write(&x, path[i], &e)) return puts(e.text), 1;
    }
    return 0;
}
static int remove_files(void **state)
{
    (void)state;
    for (unsigned i = 0; !getenv("CUEMU_MODEL") && i < n_paths; i++) unlink(path[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_ranks),
        cmocka_unit_test(sums_in_two_steps),
        cmocka_unit_test(bytes_decide),
        cmocka_unit_test(any_split),
        cmocka_unit_test(exact_as_the_cpu),
        cmocka_unit_test(pages_of_f16),
        cmocka_unit_test(unequal_memory),
    };
    return cmocka_run_group_tests(tests, open_files, remove_files);
}
