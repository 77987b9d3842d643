/*
 * t_cuda_graphs.c - decoding steps as graphs (lib/exec_graph.c) on virtual devices: the bits of a run without them, while sequences come
 * and go, grow over chunks of attention and make buffers move; what a step asks of the host; every launch failing once while a
 * step is recorded and when it is given. On one device and on several.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine_kit.h"

/* LONG comes while steps are graphs, makes buffers move and leaves rope tables behind that are long enough for all: so GROWS goes on over
 * two chunks of attention (512 positions) where no buffer moves. */
enum { GROWS, SHORT, TINY, LONG, LAST, SEQS, MOST = 530, MOST_SEQS = 10 };
typedef struct { int n_prompt; uint32_t max_new; unsigned step; } part;
static const part seqs[SEQS] = {{488, 60, 0}, {30, 40, 0}, {3, 45, 0}, {MOST, 2, 10}, {70, 25, 35}};
/* Eight prompts whose frequencies depend on their lengths; the first two of them; the first beside one of another length; one alone;
 * one of another length alone. All tables are those of the eight, so that no buffer moves. */
static const part lengths[MOST_SEQS] = {{20, 16, 0}, {18, 6, 0}, {17, 1, 0}, {19, 1, 0}, {21, 1, 0}, {22, 1, 0}, {23, 1, 0}, {24, 1, 0}, {17, 4, 11}, {18, 5, 24}};
typedef struct {
    int32_t ids[MOST_SEQS][64];
    unsigned n[MOST_SEQS];
    float last[MOST_SEQS][VOCAB];
} texts;

enum { FILES = 4 };
static char path[FILES][256]; /* bf16 with 2 layers; q8 with 2 and with 4; bf16 with 1 and rope by the length of the prompt */

static int open_files(void **state)
{
    static const struct { uint32_t dtype, layers; } files[FILES] = {{DT_BF16, 2}, {DT_Q8, 2}, {DT_Q8, 4}, {DT_BF16, 1}};
    (void)state;
    tess_error e;
    for (unsigned i = 0; i < FILES; i++) {
        model_kit x;
        model_kit_init(&x);
        x.dtype = files[i].dtype;
        x.both_signs = true;
        x.a.n_layers = files[i].layers;
        x.a.max_ctx = 1024;
        x.a.attn_scale = 20; /* scores of about 1 */
        if (i == 3) x.a.attn[0].rope_scale = ROPE_SCALE_DYNAMIC, x.a.attn[0].factor = 2, x.a.attn[0].orig_ctx = 16;
        snprintf(path[i], sizeof path[i], "%s/t_cuda_graphs-%ld-%u.tess", getenv("BUILD") ? getenv("BUILD") : "build", (long)getpid(), i);
        if (!model_kit_write(&x, path[i], &e)) return puts(e.text), 1;
    }
    cuemu_set_quiet(true);
    return 0;
}
static int remove_files(void **state)
{
    (void)state;
    return unlink(path[0]) | unlink(path[1]) | unlink(path[2]) | unlink(path[3]);
}

static void open_all(const char *file, const char *devices, uint32_t n_seqs, tess_model **m, tess_ctx **c)
{
    tess_error e;
    if (open_on(file, devices, NULL, m, &e) < 0 || open_ctx(*m, n_seqs, 128, 0, c, &e) < 0) fail_msg("%s: %s", devices, e.text);
}

static tess_seq add_part(tess_ctx *c, const part *t, unsigned i)
{
    tess_seq_params p;
    tess_seq s;
    tess_error e;
    int32_t ids[MOST];
    tess_seq_params_init(&p);
    p.max_new = t->max_new;
    p.flags = TESS_SEQ_IGNORE_EOS | TESS_SEQ_FEED_LAST;
    for (int k = 0; k < t->n_prompt; k++) ids[k] = (k * 37 + (int)i * 11 + k * k % 7) % VOCAB;
    if (tess_seq_open(c, &p, &s, &e) < 0 || tess_seq_append(c, s, ids, (size_t)t->n_prompt, &e) < 0) fail_msg("%s", e.text);
    return s;
}
static tess_seq add(tess_ctx *c, unsigned i) { return add_part(c, &seqs[i], i); }

/* ---- the same bits ---- */
static void write_texts(const char *file, const char *devices, const part *list, unsigned n_list, texts *t)
{
    tess_model *m;
    tess_ctx *c;
    tess_seq s[MOST_SEQS];
    tess_error e;
    tess_event ev[32];
    size_t n;
    unsigned there = 0;
    memset(t, 0, sizeof *t);
    open_all(file, devices, n_list, &m, &c);
    for (unsigned step = 0;; step++) {
        for (; there < n_list && list[there].step <= step; there++) s[there] = add_part(c, &list[there], there);
        const tess_status st = tess_step(c, ev, 32, &n, &e);
        if (st < 0) fail_msg("%s: %s", devices, e.text);
        for (size_t k = 0; k < n; k++)
            for (unsigned i = 0; i < there; i++)
                if (ev[k].seq == s[i] && ev[k].kind == TESS_EV_TOKEN) t->ids[i][t->n[i]++] = ev[k].token;
        if (st == TESS_IDLE && there == n_list) break;
    }
    for (unsigned i = 0; i < n_list; i++) {
        assert_int_equal(t->n[i], list[i].max_new);
        memcpy(t->last[i], tess_seq_logits(c, s[i], NULL), sizeof t->last[i]);
    }
    tess_ctx_close(c);
    tess_model_close(m);
}

/* On one device, and on several, as from and to say. peers: else their sums go through memory of the host, and there are no graphs. */
enum { ONE, SEVERAL };
static void write_and_compare(const char *file, const part *list, unsigned n, int from, int to, bool peers)
{
    static const char *const devices[] = {"cuda:0", "cuda:0,1,2"};
    texts want, got;
    cuemu_reset(1);
    write_texts(file, "cuda:0,0", list, n, &want); /* ranks that share a device: no graphs */
    for (int d = from; d <= to; d++) {
        cuemu_reset(2 + (unsigned)d);
        cuemu_set_peer_possible(peers);
        write_texts(file, devices[d], list, n, &got);
        for (unsigned i = 0; i < n; i++) {
            assert_memory_equal(want.ids[i], got.ids[i], sizeof want.ids[i]);
            assert_memory_equal(want.last[i], got.last[i], sizeof want.last[i]);
        }
        no_reports();
    }
}

static void texts_are_equal(void **state)
{
    (void)state;
    write_and_compare(path[0], seqs, SEQS, cuemu_checked() ? SEVERAL : ONE, SEVERAL, true);
    write_and_compare(path[1], seqs, SEQS, ONE, cuemu_checked() ? ONE : SEVERAL, false);
}

/* A graph has the rope table of one length in it. */
static void lengths_are_kept_apart(void **state)
{
    (void)state;
    write_and_compare(path[3], lengths, MOST_SEQS, ONE, ONE, true);
}

/* ---- what a step asks of the host ---- */
enum { HEAD_LAUNCHES = 4 }; /* rows of the head, norm and groups, logits, best ids */
static void steps(tess_ctx *c, unsigned count)
{
    tess_error e;
    tess_event ev[32];
    size_t n;
    for (; count > 0; count--)
        if (tess_step(c, ev, 32, &n, &e) < 0) fail_msg("%s", e.text);
}

/* Steps of two rows, of one, of two again: that is a graph still. Then a prompt makes the block of a batch move, and nothing else, while
 * there are graphs of one row and of two; then a row is alone again. */
static void batch_moves_under_graphs(void **state)
{
    (void)state;
    tess_model *m;
    tess_ctx *c;
    cuemu_reset(1);
    open_all(path[1], "cuda:0", SEQS, &m, &c);
    add(c, TINY);
    tess_seq other = add(c, TINY);
    steps(c, 4);
    tess_seq_close(c, other);
    steps(c, 3);
    other = add(c, TINY);
    steps(c, 1); /* its prompt */
    const uint64_t was = cuemu_launches();
    steps(c, 1);
    assert_int_equal(cuemu_launches() - was, 1 + HEAD_LAUNCHES);
    tess_seq_close(c, other);
    add(c, LAST);
    steps(c, seqs[LAST].max_new + 4);
    tess_ctx_close(c);
    tess_model_close(m);
    no_reports();
}

typedef struct { uint64_t allocs, launches, waits; } asked;
static asked asked_so_far(void) { return (asked){cuemu_allocs(), cuemu_launches(), cuemu_waits()}; }

/* Of the k-th decoding step of two sequences. */
static asked asked_by(const char *file, const char *devices, unsigned k)
{
    tess_model *m;
    tess_ctx *c;
    open_all(file, devices, SEQS, &m, &c);
    add(c, TINY);
    add(c, LAST);
    steps(c, k);
    const asked was = asked_so_far();
    steps(c, 1);
    const asked is = asked_so_far();
    tess_ctx_close(c);
    tess_model_close(m);
    return (asked){is.allocs - was.allocs, is.launches - was.launches, is.waits - was.waits};
}

/* The first step brings the prompts, the second is launched, the third recorded, the others are graphs: the number of layers does not
 * matter any more. 70 + 6 and 3 + 6 ids are no edge of a page. */
static void one_launch_for_all_layers(void **state)
{
    (void)state;
    cuemu_reset(1);
    for (unsigned f = 1; f < 3; f++) {
        const uint64_t layers = f == 1 ? 2 : 4;
        const asked a = asked_by(path[f], "cuda:0", 1), b = asked_by(path[f], "cuda:0", 2), d = asked_by(path[f], "cuda:0", 5);
        assert_int_equal(b.launches, a.launches + 1);
        assert_int_equal(a.launches - d.launches + 1, 7 * layers + 1 /* the first norm */);
        assert_int_equal(d.launches, 1 + HEAD_LAUNCHES);
        assert_int_equal(d.allocs, 0);
        assert_int_equal(a.waits, 1);
        assert_int_equal(b.waits, 1);
        assert_int_equal(d.waits, 1);
    }
    no_reports();
}

/* Of each rank; its head begins with a norm of its own. */
static void one_launch_of_each_rank(void **state)
{
    enum { RANKS = 2 };
    (void)state;
    cuemu_reset(1);
    const asked a = asked_by(path[1], "cuda:0,1", 1), b = asked_by(path[1], "cuda:0,1", 2), d = asked_by(path[1], "cuda:0,1", 5);
    const asked deep = asked_by(path[2], "cuda:0,1", 5);
    assert_int_equal(b.launches, a.launches + RANKS);
    assert_true(a.launches > d.launches + (uint64_t)RANKS * 2 * 7);
    assert_int_equal(d.launches, deep.launches);
    assert_int_equal(d.allocs, 0);
    assert_int_equal(d.waits, RANKS);
    no_reports();
}

/* ---- failures ---- */
/* Launch n of the last device behind the first decoding step fails. A shape that could not be recorded is not tried again. */
static void with_failure(const char *devices, unsigned n, const texts *want, unsigned *refused, unsigned *failed)
{
    tess_model *m;
    tess_ctx *c;
    tess_error e;
    tess_event ev[32];
    size_t k;
    unsigned got = 0;
    open_all(path[1], devices, SEQS, &m, &c);
    const tess_seq s = add(c, TINY);
    tess_status st = TESS_OK;
    bool as_before = false;
    uint64_t first = 0;
    for (unsigned step = 0; st != TESS_IDLE; step++) {
        const uint64_t was = cuemu_launches();
        if (step == 2) cuemu_set_fail_launch_on(strchr(devices, ',') != NULL, n), cuemu_set_loose(true);
        st = tess_step(c, ev, 32, &k, &e);
        if (step == 2) cuemu_set_loose(false);
        if (st < 0) {
            assert_int_equal(st, TESS_E_DEVICE);
            assert_non_null(strstr(e.text, "tried again"));
            ++*failed;
        } else if (step == 2) as_before = true, ++*refused;
        if (step == 1) first = cuemu_launches() - was;
        if (step == 3 && as_before) assert_int_equal(cuemu_launches() - was, first);
        for (size_t i = 0; st >= 0 && i < k; i++)
            if (ev[i].kind == TESS_EV_TOKEN) assert_int_equal(ev[i].token, want->ids[TINY][got++]);
    }
    assert_int_equal(got, seqs[TINY].max_new);
    assert_memory_equal(tess_seq_logits(c, s, NULL), want->last[TINY], sizeof want->last[TINY]);
    tess_ctx_close(c);
    tess_model_close(m);
    no_reports();
}

static void every_launch_of_a_record_fails_once(void **state)
{
    enum { RECORDED = 11, GIVEN = 1 + HEAD_LAUNCHES };
    (void)state;
    texts want;
    unsigned refused = 0, failed = 0;
    cuemu_reset(1);
    write_texts(path[1], "cuda:0", seqs, SEQS, &want);
    for (unsigned n = 1; n <= RECORDED + GIVEN; n++) {
        cuemu_reset(n);
        with_failure("cuda:0", n, &want, &refused, &failed);
    }
    assert_int_equal(refused, RECORDED); /* then the step is launched operation by operation */
    assert_int_equal(failed, GIVEN);
}

/* Of two ranks neither gives a graph when the other one could not record. */
static void launches_of_two_records_fail(void **state)
{
    enum { EACH = 5, MOST_OF_ONE = 60 };
    (void)state;
    texts want;
    unsigned refused = 0, failed = 0;
    cuemu_reset(1);
    write_texts(path[1], "cuda:0,0", seqs, SEQS, &want);
    for (unsigned n = 1; n <= MOST_OF_ONE && !failed; n += EACH) {
        cuemu_reset(n);
        with_failure("cuda:0,1", n, &want, &refused, &failed);
    }
    assert_in_range(refused, 3, MOST_OF_ONE / EACH);
    assert_int_equal(failed, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_launch_for_all_layers),
        cmocka_unit_test(one_launch_of_each_rank),
        cmocka_unit_test(batch_moves_under_graphs),
        cmocka_unit_test(texts_are_equal),
        cmocka_unit_test(lengths_are_kept_apart),
        cmocka_unit_test(every_launch_of_a_record_fails_once),
        cmocka_unit_test(launches_of_two_records_fail),
    };
    return cmocka_run_group_tests(tests, open_files, remove_files);
}
