/* t_core.c - the parts of lib that need no model: shards, rope tables, programs and their memory, KV pages. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kv.h"
#include "program.h"
#include "rope.h"

static arch small_arch(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, uint32_t ffn, uint32_t vocab)
{
    arch a;
    arch_default(&a);
    memcpy(a.family, "test", 5);
    a.n_layers = 3;
    a.n_heads = heads;
    a.n_kv_heads = kv_heads;
    a.head_dim = a.v_head_dim = a.rope_dims = head_dim;
    a.hidden_size = heads * head_dim;
    a.ffn_size = ffn;
    a.vocab_size = vocab;
    a.max_ctx = 512;
    a.norm_eps = 1e-5;
    a.attn_scale = 1;
    return a;
}

/* Every leaf, head, column and vocabulary row belongs to exactly one rank; kv heads are those that q heads read. */
static void shards_cover_everything(void **state)
{
    (void)state;
    const uint32_t heads[][2] = {{9, 3}, {4, 2}, {32, 8}, {28, 4}, {1, 1}, {71, 1}};
    for (size_t i = 0; i < ARRAY_LEN(heads); i++)
        for (uint32_t n = 1; n <= MAX_RANKS; n++) {
            arch a = small_arch(heads[i][0], heads[i][1], 16, 160, 320);
            shard_plan s;
            uint32_t q = 0, ffn = 0, vocab = 0, leaf = 0, group = heads[i][0] / heads[i][1];
            assert_int_equal(shard_make(&a, n, NULL, &s, NULL), TESS_OK);
            for (uint32_t r = 0; r < n; r++) {
                const shard_rank *k = &s.rank[r];
                assert_int_equal(k->q_head.lo, q);
                assert_int_equal(k->ffn.lo, ffn);
                assert_int_equal(k->vocab.lo, vocab);
                assert_int_equal(k->q_leaf.lo, leaf);
                for (uint32_t h = k->q_head.lo; h < k->q_head.hi; h++) assert_true(h / group >= k->kv_head.lo && h / group < k->kv_head.hi);
                q = k->q_head.hi, ffn = k->ffn.hi, vocab = k->vocab.hi, leaf = k->q_leaf.hi;
            }
            assert_int_equal(q, heads[i][0]);
            assert_int_equal(ffn, 160);
            assert_int_equal(vocab, 320);
            assert_int_equal(leaf, s.q.n_leaves);
        }
}

static void shards_follow_shares(void **state)
{
    (void)state;
    arch a = small_arch(32, 8, 16, 4096, 32000);
    shard_plan s;
    tess_error e;
    assert_int_equal(shard_make(&a, 2, (const double[]){3, 1}, &s, &e), TESS_OK);
    assert_int_equal(s.rank[0].q_leaf.hi, 6);
    assert_int_equal(s.rank[1].ffn_leaf.lo, 6);
    assert_int_equal(shard_make(&a, 2, (const double[]){3, -1}, &s, &e), TESS_E_ARG);
    assert_int_equal(shard_make(&a, 2, (const double[]){3, NAN}, &s, &e), TESS_E_ARG);
    assert_int_equal(shard_make(&a, 9, NULL, &s, &e), TESS_E_ARG);
    assert_int_equal(shard_make(&a, 0, NULL, &s, &e), TESS_E_ARG);
}

/* Values printed by transformers 5.24 for head_dim 16. */
static void rope_llama3_as_transformers(void **state)
{
    (void)state;
    const float want[8] = {1.0f, 0.244384587f, 0.0130422562f, 0.00395284733f, 0.00124999997f, 0.000395284733f, 0.000125000006f, 3.95284733e-05f};
    arch_attn t = {.rope_on = 1, .rope_scale = ROPE_SCALE_LLAMA3, .rope_theta = 10000, .factor = 8, .low_freq = 1, .high_freq = 4, .orig_ctx = 64, .attn_factor = 1};
    float inv[8];
    rope_inv_freq(&t, 16, NULL, 0, inv);
    for (int i = 0; i < 8; i++)
        if (!(fabsf(inv[i] - want[i]) <= 2e-7f * want[i])) fail_msg("frequency %d is %.9g, want %.9g", i, (double)inv[i], (double)want[i]);
}

static void rope_rows_do_not_depend_on_blocks(void **state)
{
    (void)state;
    arch_attn t = {.rope_on = 1, .rope_theta = 10000, .attn_factor = 1.25};
    float inv[8], whole[100 * 16], part[100 * 16];
    rope_inv_freq(&t, 16, NULL, 0, inv);
    rope_fill(&t, inv, 16, 0, 100, whole);
    rope_fill(&t, inv, 16, 0, 7, part);
    rope_fill(&t, inv, 16, 7, 100, part + 7 * 16);
    assert_memory_equal(whole, part, sizeof whole);
    assert_true(fabsf(whole[0] - 1.25f) <= 0 && fabsf(whole[1]) <= 0);
}

/* Slots whose lives overlap never share memory, and nothing is read before a barrier that follows its writing. */
static void check_plan(const program *p, const plan *l)
{
    for (size_t i = 0; i < p->n_slots; i++)
        for (size_t j = 0; j < i; j++) {
            const prog_slot *a = &p->slots[i], *b = &p->slots[j];
            uint64_t na = (uint64_t)l->stride[a->width] * l->leaves[a->width] * l->rows, nb = (uint64_t)l->stride[b->width] * l->leaves[b->width] * l->rows;
            if (a->width == W_LOGITS || b->width == W_LOGITS || (a->shared && b->shared)) continue;
            if (a->first <= b->last && b->first <= a->last) assert_true(l->off[i] + na <= l->off[j] || l->off[j] + nb <= l->off[i]);
        }
    for (size_t i = 0; i < p->n_code; i++)
        for (int k = 0; k < 3; k++) {
            if (p->code[i].in[k] == NO_SLOT) continue;
            size_t j = i;
            bool barrier = false;
            while (j-- > 0) {
                barrier = barrier || p->code[j + 1].sync;
                if (p->code[j].out == p->code[i].in[k]) {
                    assert_true(barrier);
                    break;
                }
            }
        }
}

static void plans_are_sound(void **state)
{
    (void)state;
    for (uint32_t kind = BLOCK_PRE; kind <= BLOCK_POST_SUM; kind++)
        for (uint32_t qk = 0; qk <= QK_NORM_HEAD; qk++) {
            arch a = small_arch(9, 3, 8, 160, 320);
            shard_plan s;
            program p;
            plan l;
            const uint32_t bits[] = {qk ? UINT32_MAX : 1u << WT_K | 1u << WT_DOWN, UINT32_MAX, 0, 0}, *quant = kind % 2 ? bits : NULL;
            a.block_kind = kind;
            a.qk_norm = qk;
            assert_int_equal(shard_make(&a, 4, NULL, &s, NULL), TESS_OK);
            assert_int_equal(program_body(&a, quant, &mem_libc, &p, NULL), TESS_OK);
            for (uint32_t r = 0; r < 4; r++) {
                assert_int_equal(plan_make(&p, &a, &s, r, 33, &l, NULL), TESS_OK);
                check_plan(&p, &l);
                plan_free(&mem_libc, &l);
            }
            program_free(&p);
        }
}

/* ---- few rows: what each thread touches, told apart by columns, not by the rules of plan.c ---- */
enum { TEAM_MAX = 7 };

/* Whether threads t and u touch a common column of `slot`, when t runs e and u runs c. */
static bool meet(const program *p, const prog_instr *e, const prog_instr *c, uint16_t slot, const shard_range *t, const shard_range *u)
{
    uint8_t width = p->slots[slot].width;
    bool e_all = e->how == HOW_SHARE || (e->op == PROG_LINEAR && e->out != slot), c_all = c->how != HOW_OWN || (c->op == PROG_LINEAR && c->out != slot);
    if (p->slots[slot].each) return false;
    if (e->how == HOW_EACH) e_all = true; /* it reads the slot */
    shard_range a = e_all ? (shard_range){0, UINT32_MAX} : t[width], b = c_all ? (shard_range){0, UINT32_MAX} : u[width];
    return a.lo < b.hi && b.lo < a.hi;
}

static void check_pair(const program *p, const prog_instr *e, const prog_instr *c, shard_range own[TEAM_MAX][W_COUNT], uint32_t n)
{
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t u = 0; u < n; u++)
            for (int k = 0; t != u && k < 3; k++) {
                if (e->out != NO_SLOT && e->out == c->in[k]) assert_false(meet(p, e, c, e->out, own[t], own[u]));
                if (c->out != NO_SLOT && c->out == e->in[k]) assert_false(meet(p, e, c, c->out, own[t], own[u]));
                if (c->out != NO_SLOT && c->out == e->out) assert_false(meet(p, e, c, c->out, own[t], own[u]));
            }
    assert_false(e->op == PROG_KV_WRITE && c->op == PROG_ATTN);
}

/* Every thread writes its own columns of OWN slots, together all of them; no two threads meet without a barrier between; memory of
 * slots that live together is apart, in the arena by barriers and in a thread's own memory by instructions. */
static void check_fused(const arch *a, const shard_rank *s, const program *p, const plan *l, uint32_t n)
{
    shard_range own[TEAM_MAX][W_COUNT];
    for (uint32_t t = 0; t < n; t++) fuse_columns(a, s, t, n, own[t]);
    const struct { uint8_t width; uint32_t columns; } whole[] = {{W_HIDDEN, a->hidden_size}, {W_Q, (s->q_head.hi - s->q_head.lo) * a->head_dim},
        {W_K, (s->kv_head.hi - s->kv_head.lo) * a->head_dim}, {W_V, (s->kv_head.hi - s->kv_head.lo) * a->v_head_dim}, {W_FFN, s->ffn.hi - s->ffn.lo}};
    for (size_t w = 0; w < sizeof whole / sizeof *whole; w++) {
        uint32_t sum = 0;
        for (uint32_t t = 0; t < n; t++) sum += own[t][whole[w].width].hi - own[t][whole[w].width].lo;
        assert_int_equal(sum, whole[w].columns);
    }
    for (size_t i = 0; i < p->n_code; i++)
        for (size_t j = i; j-- > 0 && !p->code[j + 1].sync_few;) check_pair(p, &p->code[j], &p->code[i], own, n);
    for (size_t i = 0; i < p->n_slots; i++)
        for (size_t j = 0; j < i; j++) {
            const prog_slot *x = &p->slots[i], *y = &p->slots[j];
            if (!x->each || !y->each || y->last < x->first || x->last < y->first) continue;
            uint64_t nx = l->stride[x->width] * (uint64_t)FEW_ROWS, ny = l->stride[y->width] * (uint64_t)FEW_ROWS;
            assert_true(l->each_off[i] + nx <= l->each_off[j] || l->each_off[j] + ny <= l->each_off[i]);
            assert_true(l->each_off[i] + nx <= l->each_floats);
        }
    for (size_t i = 0; i < p->n_slots; i++)
        for (size_t j = 0; j < i; j++) { /* memory that is used again: a barrier lies between */
            const prog_slot *x = &p->slots[i], *y = &p->slots[j];
            if (x->each || y->each || l->off[i] != l->off[j] || x->width == W_LOGITS || y->width == W_LOGITS) continue;
            const prog_slot *early = x->last < y->last ? x : y, *late = early == x ? y : x;
            bool barrier = false;
            for (uint32_t k = early->last + 1; k <= late->first && k < p->n_code; k++) barrier = barrier || p->code[k].sync_few;
            assert_true(barrier);
        }
}

static uint32_t barriers_of_layer(const program *p, uint16_t layer, bool few)
{
    uint32_t n = 0;
    for (size_t i = 0; i < p->n_code; i++) n += p->code[i].layer == layer && (few ? p->code[i].sync_few : p->code[i].sync) != 0;
    return n;
}

static void fused_programs_are_sound(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2 * 3 * 3 * TEAM_MAX * (BLOCK_POST_SUM + 1); i++) {
        arch a = small_arch(9, 3, 8, 160, 320);
        uint32_t ranks = i % 2 ? 3 : 1, n = i / 18 % TEAM_MAX + 1, threads[3] = {n, n, n}, bits[] = {UINT32_MAX, UINT32_MAX, 0, 0};
        shard_plan s;
        program p;
        plan l;
        a.qk_norm = i / 2 % 3 == 1 ? QK_NORM_HEAD : i / 2 % 3 == 2 ? QK_NORM_ALL : QK_NORM_NONE;
        a.block_kind = i / 18 / TEAM_MAX;
        assert_int_equal(shard_make(&a, ranks, NULL, &s, NULL), TESS_OK);
        assert_int_equal(program_body(&a, i / 6 % 3 ? bits : NULL, &mem_libc, &p, NULL), TESS_OK);
        program_fuse(&p, &a, &s, threads);
        for (uint32_t r = 0; r < ranks; r++) {
            assert_int_equal(plan_make(&p, &a, &s, r, 33, &l, NULL), TESS_OK);
            check_plan(&p, &l);
            check_fused(&a, &s.rank[r], &p, &l, n);
            plan_free(&mem_libc, &l);
        }
        program_free(&p);
    }
}

/* Where the cuts come out even a layer has five barriers, and one more before each sum over several ranks; for floats and for q8. */
static void fused_layers_have_five_barriers(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2 * 2 * 2; i++) {
        arch a = small_arch(12, 4, 16, 256, 320);
        const uint32_t ranks = i / 2 % 2 + 1, threads[2] = {2, 2}, bits[] = {UINT32_MAX, UINT32_MAX, UINT32_MAX};
        shard_plan s;
        program p;
        plan l;
        a.qk_norm = i / 4 ? QK_NORM_HEAD : QK_NORM_NONE;
        assert_int_equal(shard_make(&a, ranks, NULL, &s, NULL), TESS_OK);
        assert_int_equal(program_body(&a, i % 2 ? bits : NULL, &mem_libc, &p, NULL), TESS_OK);
        program_fuse(&p, &a, &s, threads);
        assert_int_equal(plan_make(&p, &a, &s, 0, 33, &l, NULL), TESS_OK);
        assert_int_equal(barriers_of_layer(&p, 1, true), ranks > 1 ? 7 : 5);
        assert_true(barriers_of_layer(&p, 1, false) >= 10);
        plan_free(&mem_libc, &l);
        program_free(&p);
    }
}

static void kv_layouts(uint32_t window, kv_pool *out, uint64_t budget)
{
    arch a = small_arch(4, 2, 16, 160, 320);
    shard_plan s;
    a.attn[0].window = window;
    assert_int_equal(shard_make(&a, 2, NULL, &s, NULL), TESS_OK);
    assert_int_equal(kv_pool_open(out, &mem_libc, &a, &s, DT_F32, 16, budget, NULL), TESS_OK);
}

static void kv_pages_come_and_go(void **state)
{
    (void)state;
    kv_pool p;
    kv_table t = {0}, u = {0};
    tess_error e;
    kv_layouts(0, &p, UINT64_MAX / 2);
    assert_int_equal(kv_table_reserve(&p, 0, &t, 0, 17, &e), TESS_OK);
    assert_int_equal(t.n, 2);
    assert_int_equal(p.pages_live, 2);
    kv_page *first = t.pages[0], *second = t.pages[1];
    assert_int_equal(kv_table_fork(&p, 0, &t, 17, &u, &e), TESS_OK);
    assert_int_equal(p.pages_shared, 2);
    memset(second->data[0], 7, 64);
    assert_int_equal(kv_table_reserve(&p, 0, &u, 17, 18, &e), TESS_OK); /* writing into a shared page copies it */
    assert_ptr_equal(u.pages[0], first);
    assert_ptr_not_equal(u.pages[1], second);
    assert_int_equal(u.pages[1]->data[0][63], 7);
    assert_ptr_equal(u.base[1][1], u.pages[1]->data[1]);
    assert_int_equal(p.pages_shared, 1);
    kv_table_free(&p, 0, &t);
    assert_int_equal(first->refs, 1);
    kv_table_truncate(&p, 0, &u, 16);
    assert_int_equal(u.n, 1);
    kv_table_free(&p, 0, &u);
    assert_int_equal(p.pages_live, 0);
    kv_pool_close(&p);
}

static void kv_budget_is_kept(void **state)
{
    (void)state;
    kv_pool p;
    kv_table t = {0};
    tess_error e;
    kv_layouts(0, &p, 0);
    p.budget = p.groups[0].total_bytes * 2;
    assert_int_equal(kv_table_reserve(&p, 0, &t, 0, 33, &e), TESS_E_KV_FULL);
    assert_int_equal(p.allocated, p.budget);
    assert_int_equal(kv_table_reserve(&p, 0, &t, 0, 32, &e), TESS_OK);
    kv_table_free(&p, 0, &t);
    kv_pool_close(&p);
}

static void kv_window_gives_pages_back(void **state)
{
    (void)state;
    kv_pool p;
    kv_table t = {0};
    tess_error e;
    kv_layouts(20, &p, UINT64_MAX / 2);
    assert_int_equal(kv_table_reserve(&p, 0, &t, 0, 64, &e), TESS_OK);
    kv_table_pass(&p, 0, &t, 35); /* position 35 sees 16..35: page 0 is dead, page 1 is not */
    assert_null(t.pages[0]);
    assert_non_null(t.pages[1]);
    assert_int_equal(p.pages_live, 3);
    kv_table_pass(&p, 0, &t, 64);
    assert_null(t.pages[1]);
    assert_non_null(t.pages[2]);
    kv_table_free(&p, 0, &t);
    kv_pool_close(&p);
}

static void arch_round_trip(void **state)
{
    (void)state;
    arch a = small_arch(9, 3, 64, 1536, 49152), b;
    kvs_builder *kb;
    kvs k;
    void *bytes;
    size_t len;
    tess_error e;
    a.n_attn_kinds = 2;
    a.attn[1].window = 16;
    a.layer_attn[1] = 1;
    assert_int_equal(kvs_builder_open(&mem_libc, &kb, &e), TESS_OK);
    arch_put(&a, kb);
    assert_int_equal(kvs_build(kb, &bytes, &len, &e), TESS_OK);
    assert_int_equal(kvs_open(&k, &mem_libc, bytes, len, &e), TESS_OK);
    assert_int_equal(arch_get(&b, &k, &e), TESS_OK);
    assert_int_equal(b.layer_attn[1], 1);
    assert_int_equal(b.attn[1].window, 16);
    assert_int_equal(b.hidden_size, a.hidden_size);
    kvs_close(&k);
    kvs_builder_close(kb);
    mem_free(&mem_libc, bytes);
    a.n_kv_heads = 2;
    assert_int_equal(arch_check(&a, &e), TESS_E_FORMAT);
    a.n_kv_heads = 3;
    a.norm_eps = NAN;
    assert_int_equal(arch_check(&a, &e), TESS_E_FORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_cover_everything), cmocka_unit_test(shards_follow_shares), cmocka_unit_test(rope_llama3_as_transformers),
        cmocka_unit_test(rope_rows_do_not_depend_on_blocks), cmocka_unit_test(plans_are_sound),
        cmocka_unit_test(fused_programs_are_sound),
        cmocka_unit_test(fused_layers_have_five_barriers), cmocka_unit_test(kv_pages_come_and_go),
        cmocka_unit_test(kv_budget_is_kept), cmocka_unit_test(kv_window_gives_pages_back), cmocka_unit_test(arch_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
