/* t_experts.c - operations of mixtures of experts: choice and weights against a plain computation in double, tables by bits. */
#include "ops_common.h"

static double score_of(const op_route_args *a, const float *x, uint32_t i)
{
    double sum = 0;
    if (a->kind == ROUTER_SIGMOID) return 1 / (1 + exp(-(double)x[i]));
    if (a->kind == ROUTER_CHOSEN) return (double)x[i];
    for (uint32_t k = 0; k < a->n_experts; k++) sum += exp((double)x[k]);
    return exp((double)x[i]) / sum;
}

/* The choice by sorting: an expert is chosen when fewer than n_used others of the allowed groups come before it. */
static bool before(const double *v, uint32_t i, uint32_t j) { return v[i] > v[j] || (v[i] >= v[j] && i < j); }

static uint32_t place(const double *v, const bool *out, uint32_t n, uint32_t j)
{
    uint32_t p = 0;
    for (uint32_t i = 0; i < n; i++) p += !out[i] && i != j && before(v, i, j);
    return p;
}

static void check_row(const op_route_args *a, size_t t)
{
    const float *x = a->x + t * a->xs;
    double score[64], choice[64], group[64], sum = 0;
    bool out[64] = {false}, none[64] = {false};
    uint32_t n = a->n_experts / a->n_groups, k = 0;
    for (uint32_t i = 0; i < a->n_experts; i++) {
        score[i] = score_of(a, x, i);
        choice[i] = score[i] + (a->correction ? (double)a->correction[i] : 0);
    }
    for (uint32_t g = 0; g < a->n_groups; g++) {
        double first = -1e9, second = -1e9;
        for (uint32_t i = g * n; i < (g + 1) * n; i++)
            if (choice[i] > first) second = first, first = choice[i];
            else if (choice[i] > second) second = choice[i];
        group[g] = a->kind == ROUTER_SIGMOID && n > 1 ? first + second : first;
    }
    for (uint32_t i = 0; i < a->n_experts; i++) out[i] = place(group, none, a->n_groups, i / n) >= a->groups_used;
    double weight[64];
    for (uint32_t i = 0; i < a->n_experts; i++) {
        if (out[i] || place(choice, out, a->n_experts, i) >= a->n_used) continue;
        assert_int_equal(a->ids[t * a->is + k], i);
        weight[k] = a->kind == ROUTER_CHOSEN ? exp(score[i]) : score[i];
        sum += weight[k++];
    }
    assert_int_equal(k, a->n_used);
    for (uint32_t j = 0; j < k; j++) {
        double w = weight[j] / (a->norm || a->kind == ROUTER_CHOSEN ? sum : 1) * (double)a->scale;
        check_near("route", w, a->w[t * a->ws + j], 1e-5 * (1 + fabs(w)));
    }
}

static void route_is_right(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 500; i++) {
        uint32_t groups = rnd(2) ? 1 : between(2, 4), n = groups * between(2, 12), tokens = between(1, 5);
        uint32_t groups_used = between(1, groups), used = between(1, n / groups * groups_used);
        size_t xs = n + rnd(3), is = used + rnd(3);
        float *x = reals(xs * tokens), *correction = reals(n), *w = guarded(is * tokens), *ids = guarded(is * tokens);
        op_route_args a = {.kind = i % 3, .n_experts = n, .n_used = used, .n_groups = groups, .groups_used = groups_used,
                           .norm = i % 3 != ROUTER_CHOSEN && rnd(2), .scale = rnd(2) ? 1.0f : 2.5f,
                           .correction = i % 3 == ROUTER_SIGMOID ? correction : NULL, .x = x, .xs = xs, .n_tokens = tokens,
                           .ids = (uint32_t *)(void *)ids, .is = is, .w = w, .ws = is};
        EACH_THREAD((fast ? fast : &op_table_ref)->route, &a, between(1, 4));
        for (size_t t = 0; t < tokens; t++) check_row(&a, t);
        release(w), release(ids);
        free(x), free(correction);
    }
}

static void equal_scores_go_to_lower_ids(void **state)
{
    (void)state;
    float x[9] = {1, 2, 2, NAN, 2, 0, 2, 1, 2}, w[3];
    uint32_t ids[3];
    op_route_args a = {.kind = ROUTER_CHOSEN, .n_experts = 9, .n_used = 3, .n_groups = 1, .groups_used = 1, .scale = 1, .x = x, .xs = 9,
                       .n_tokens = 1, .ids = ids, .is = 3, .w = w, .ws = 3};
    op_table_ref.route(&a, 0, 1);
    assert_int_equal(ids[0], 1);
    assert_int_equal(ids[1], 2);
    assert_int_equal(ids[2], 4);
    for (int j = 0; j < 3; j++) check_near("weight", 1.0 / 3, w[j], 1e-6);
    x[3] = NAN, x[0] = x[1] = x[2] = x[4] = x[5] = x[6] = x[7] = x[8] = NAN; /* nothing to choose by: still three valid ids */
    op_table_ref.route(&a, 0, 1);
    for (int j = 0; j < 3; j++) assert_true(ids[j] < 9 && (j == 0 || ids[j] > ids[j - 1]));
}

static void mix_is_right(void **state)
{
    (void)state;
    NEED_FAST();
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t used = between(1, 5), tokens = between(1, 6), n = between(1, 150), leaves = between(1, 4), leaf[5] = {rnd(3)};
        for (uint32_t l = 0; l < leaves; l++) leaf[l + 1] = leaf[l] + rnd(4);
        size_t xs = n + rnd(4), ys = n + rnd(4), total = ys * tokens * leaves;
        float *x = reals(xs * tokens * used), *w = reals(tokens * used), *y[2] = {guarded(total), guarded(total)};
        uint32_t ids[30], pair[30];
        for (uint32_t p = 0; p < tokens * used; p++) {
            ids[p] = p % used ? ids[p - 1] + 1 + rnd(3) : rnd(3);
            pair[p] = ids[p] >= leaf[0] && ids[p] < leaf[leaves] ? p : OP_NO_PAIR;
        }
        op_mix_args a = {.x = x, .xs = xs, .ids = ids, .pair = pair, .w = w, .is = used, .ps = used, .ws = used, .n_used = used, .leaf = leaf,
                         .n_leaves = leaves, .n_tokens = tokens, .n = n, .y = y[0], .ys = ys, .yl = ys * tokens};
        EACH_THREAD(op_table_ref.mix, &a, between(1, 4));
        a.y = y[1];
        EACH_THREAD(fast->mix, &a, between(1, 4));
        check_equal("mix", y[0], y[1], total, (size_t)tokens * leaves, n, ys);
        for (uint32_t l = 0; l < leaves; l++) {
            double want = 0;
            for (uint32_t j = 0; j < used; j++)
                if (ids[j] >= leaf[l] && ids[j] < leaf[l + 1]) want += (double)w[j] * (double)x[j * xs];
            check_near("mix", want, y[0][l * ys * tokens], 1e-4);
        }
        release(y[0]), release(y[1]);
        free(x), free(w);
    }
}

static void gate_and_clamp_are_right(void **state)
{
    (void)state;
    NEED_FAST();
    for (uint32_t i = 0; i < 100; i++) {
        uint32_t tokens = between(1, 5), n = between(1, 130);
        size_t xs = n + rnd(4), total = xs * tokens;
        float *x = reals(total), *g = reals(tokens), *y[2] = {guarded(total), guarded(total)};
        op_switch_args a = {.x = x, .g = g, .xs = xs, .gs = 1, .n_tokens = tokens, .n = n, .y = y[0], .ys = xs};
        EACH_THREAD(op_table_ref.gate, &a, between(1, 4));
        a.y = y[1];
        EACH_THREAD(fast->gate, &a, between(1, 4));
        check_equal("gate", y[0], y[1], total, tokens, n, xs);
        check_near("gate", (double)x[0] / (1 + exp(-(double)g[0])), y[0][0], 1e-5);
        op_clamp_args c = {.x = y[1], .xs = xs, .n_tokens = tokens, .n = n, .limit = 0.5f};
        EACH_THREAD(fast->clamp, &c, between(1, 4));
        for (uint32_t t = 0; t < tokens; t++)
            for (uint32_t k = 0; k < n; k++)
                check_near("clamp", fmin(fmax((double)y[0][t * xs + k], -0.5), 0.5), y[1][t * xs + k], 0);
        release(y[0]), release(y[1]);
        free(x), free(g);
    }
}

static void swiglu_clamp_is_right(void **state)
{
    (void)state;
    NEED_FAST();
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t tokens = between(1, 4), n = between(1, 70);
        size_t s = n + rnd(4), total = s * tokens;
        float *g = reals(total), *u = reals(total), *y[2] = {guarded(total), guarded(total)};
        if (i % 10 == 0) g[0] = NAN, u[n - 1] = i % 20 ? -INFINITY : NAN;
        op_act_args a = {.act = ACT_SWIGLU_CLAMP, .alpha = 1.702f, .limit = 1.5f, .g = g, .u = u, .gs = s, .us = s, .n_tokens = tokens,
                         .n = n, .y = y[0], .ys = s};
        EACH_THREAD(op_table_ref.act, &a, between(1, 4));
        a.y = y[1];
        EACH_THREAD(fast->act, &a, between(1, 4));
        check_equal("swiglu_clamp", y[0], y[1], total, tokens, n, s);
        for (uint32_t k = 0; i % 10 && k < n; k++) {
            double x = fmin((double)g[k], 1.5), v = fmax(fmin((double)u[k], 1.5), -1.5);
            check_near("swiglu_clamp", (v + 1) * x / (1 + exp(-1.702 * x)), y[0][k], 1e-5);
        }
        release(y[0]), release(y[1]);
        free(g), free(u);
    }
}

/* Every pair of the rank's experts once, by expert and then by row; everything else is OP_NO_PAIR. */
static void pairs_are_right(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t used = between(1, 4), tokens = between(1, 20), n = used + rnd(9), lo = rnd(n), n_local = rnd(n - lo + 1), at = 0;
        uint32_t ids[80], first[16], row[80], pair[80];
        for (uint32_t t = 0; t < tokens; t++)
            for (uint32_t j = 0, e = 0; j < used; j++, e++) ids[t * used + j] = e += rnd(n - used + j - e + 1);
        op_pairs_args a = {.ids = ids, .is = used, .n_tokens = tokens, .n_used = used, .lo = lo, .n_local = n_local, .first = first, .row = row, .pair = pair};
        EACH_THREAD((fast ? fast : &op_table_ref)->pairs, &a, between(1, 4));
        for (uint32_t e = lo; e < lo + n_local; e++) {
            assert_int_equal(first[e - lo], at);
            for (uint32_t p = 0; p < tokens * used; p++) {
                if (ids[p] != e) continue;
                assert_int_equal(pair[p], at);
                assert_int_equal(row[at++], p / used);
            }
        }
        assert_int_equal(first[n_local], at);
        for (uint32_t p = 0; p < tokens * used; p++)
            if (ids[p] < lo || ids[p] >= lo + n_local) assert_int_equal(pair[p], OP_NO_PAIR);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(route_is_right),
        cmocka_unit_test(equal_scores_go_to_lower_ids),
        cmocka_unit_test(pairs_are_right),
        cmocka_unit_test(mix_is_right),
        cmocka_unit_test(gate_and_clamp_are_right),
        cmocka_unit_test(swiglu_clamp_is_right),
    };
    RUN_OPS_TESTS(tests);
}
