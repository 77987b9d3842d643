/* t_cuda_moe.c - the operations of mixtures of experts on a CUDA device against ref, one by one and as a whole layer. */
#include "cuda_kit.h"

/* ---- route ---- */
static void route_case(uint32_t kind, uint32_t n, uint32_t groups, uint32_t tokens, uint32_t hard)
{
    uint32_t groups_used = between(1, groups), used = between(1, MIN((uint32_t)ARCH_MAX_USED, n / groups * groups_used));
    size_t xs = n + rnd(3), is = used + rnd(3), ws = used + rnd(3), total = is * tokens, weights = ws * tokens;
    float *x = reals(xs * tokens), *correction = reals(n), *w[2] = {guarded(weights), guarded(weights)},
          *ids[2] = {guarded(total), guarded(total)};
    for (size_t i = 0; hard && i < xs * tokens; i++) /* equal ones, and what cannot be compared; or sigmoids that are nearly nothing together */
        x[i] = hard == 3 ? -40.0f - (float)rnd(20) : rnd(hard == 2 ? 3 : 40) ? (float)rnd(3) : rnd(3) ? NAN : rnd(2) ? INFINITY : -0.0f;
    op_route_args a = {.kind = kind,
                       .n_experts = n,
                       .n_used = used,
                       .n_groups = groups,
                       .groups_used = groups_used,
                       .norm = rnd(2) != 0,
                       .scale = rnd(2) ? 1.0f : 2.5f,
                       .correction = rnd(2) ? correction : NULL,
                       .x = x,
                       .xs = xs,
                       .n_tokens = tokens,
                       .ids = (uint32_t *)(void *)ids[0],
                       .is = is,
                       .w = w[0],
                       .ws = ws};
    op_table_ref.route(&a, 0, 1);
    float *dev_ids = dev_guarded(ids[1], total);
    a.x = DEV_COPY(x, xs * tokens), a.correction = a.correction ? DEV_COPY(correction, n) : NULL;
    a.ids = (uint32_t *)(void *)dev_ids, a.w = dev_guarded(w[1], weights);
    ON_DEVICE(route, &a);
    dev_fetch(w[1], a.w, weights);
    dev_fetch(ids[1], dev_ids, total);
    check_equal("weights of route", w[0], w[1], weights, tokens, used, ws);
    if (memcmp(ids[0] - GUARD, ids[1] - GUARD, (total + 2 * GUARD) * sizeof(float)) != 0)
        fail_msg("route: ids of %u experts differ", n);
    release(w[0]), release(w[1]), release(ids[0]), release(ids[1]);
    free(x), free(correction);
    dev_free_all();
}
static void route_is_equal(void **state)
{
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 150; i++) {
        uint32_t groups = rnd(2) ? 1 : between(2, 8);
        route_case(i % 3, groups * between(1, 20), groups, between(1, 9), i % 5 == 0 ? 1 + rnd(2) : 0);
    }
    for (uint32_t i = 0; i < 8; i++) route_case(ROUTER_SIGMOID, 16, 1, 5, 3);
    route_case(ROUTER_SIGMOID, 1024, 8, 3, 0);
    route_case(ROUTER_SOFTMAX, 1024, 1, 3, 1);
    route_case(ROUTER_CHOSEN, 65, 1, 3, 0);
}

/* ---- pairs ---- */
typedef struct {
    uint32_t tokens, used, n_experts, lo, n_local, is;
    uint32_t *ids;
} choice;
static choice choice_make(uint32_t tokens)
{
    choice c = {.tokens = tokens, .n_experts = between(1, 40)};
    c.used = between(1, MIN(8u, c.n_experts));
    c.lo = rnd(c.n_experts), c.n_local = rnd(c.n_experts - c.lo + 1), c.is = c.used + rnd(3);
    c.ids = must(calloc((size_t)tokens * c.is, sizeof *c.ids));
    for (uint32_t t = 0; t < tokens; t++) /* ascending, each possible */
        for (uint32_t j = 0, from = 0, last; j < c.used; j++, from = c.ids[t * c.is + j - 1] + 1) {
            last = from + (rnd(2) ? 1 : 6);
            c.ids[t * c.is + j] = between(from, MIN(last, c.n_experts - c.used + j));
        }
    return c;
}
/* first, row and pair, in one buffer; returns the pairs that there are. */
static uint32_t pairs_case(const choice *c, float **host, float **dev, const uint32_t **first, const uint32_t **row,
                           const uint32_t **pair)
{
    size_t most = (size_t)c->tokens * c->used, n = c->n_local + 1 + 2 * most;
    float *p[2] = {guarded(n), guarded(n)}, *d = dev_guarded(p[1], n);
    op_pairs_args a = {.ids = c->ids, .is = c->is, .n_tokens = c->tokens, .n_used = c->used, .lo = c->lo, .n_local = c->n_local};
    for (int i = 0; i < 2; i++) {
        a.first = (uint32_t *)(void *)(i ? d : p[0]), a.row = a.first + c->n_local + 1, a.pair = a.row + most;
        if (i) a.ids = DEV_COPY(c->ids, (size_t)c->tokens * c->is);
        if (i) ON_DEVICE(pairs, &a);
        else op_table_ref.pairs(&a, 0, 1);
    }
    dev_fetch(p[1], d, n);
    if (memcmp(p[0] - GUARD, p[1] - GUARD, (n + 2 * GUARD) * sizeof(float)) != 0)
        fail_msg("pairs of %u rows, experts %u + %u of %u differ", c->tokens, c->lo, c->n_local, c->n_experts);
    for (int i = 0; i < 2; i++) {
        first[i] = (const uint32_t *)(const void *)(i ? d : p[0]), row[i] = first[i] + c->n_local + 1, pair[i] = row[i] + most;
    }
    release(p[1]);
    *host = p[0], *dev = d;
    return first[0][c->n_local];
}
static void pairs_are_equal(void **state)
{
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 120; i++) {
        choice c = choice_make(i < 60 ? i + 1 : between(1, 300));
        float *host, *dev;
        const uint32_t *first[2], *row[2], *pair[2];
        pairs_case(&c, &host, &dev, first, row, pair);
        release(host);
        free(c.ids);
        dev_free_all();
    }
}

/* ---- a whole layer: gather, quant, experts, act, mix, all with the number of pairs on the device alone ---- */
typedef struct {
    const choice *c;
    uint32_t cols, most, count; /* pairs that there can be, and are */
    const uint32_t *first[2], *row[2], *pair[2];
} layer;

/* One weight for each expert, of mixed types. */
typedef struct {
    test_weight *w;
    float **bias;
    op_expert *host, *dev;
    uint32_t types;
} expert_set;
/* dtype 0: of mixed types */
static expert_set experts_make(const layer *l, uint32_t rows, uint32_t dtype)
{
    uint32_t n = l->c->n_local;
    expert_set s = {must(calloc(n + 1, sizeof *s.w)), must(calloc(n + 1, sizeof *s.bias)), must(calloc(n + 1, sizeof *s.host)),
                    NULL, 0};
    op_expert *on_dev = must(calloc(n + 1, sizeof *on_dev));
    for (uint32_t e = 0; e < n; e++) {
        dev_weight d;
        do { /* experts are whole: their first row is that of a block */
            weight_free(&s.w[e]);
            weight_make(&s.w[e], dtype ? dtype : DT_F32 + rnd(5), 1, 1, rows, l->cols);
        } while (s.w[e].runs[0].row_skip);
        s.types |= 1u << s.w[e].w.dtype;
        dev_weight_make(&d, &s.w[e]);
        s.bias[e] = rnd(2) ? reals(rows) : NULL;
        s.host[e] = (op_expert){s.w[e].runs[0].data, s.w[e].runs[0].block_stride, s.bias[e], s.w[e].w.dtype};
        on_dev[e] = (op_expert){d.runs[0].data, s.host[e].block_stride, DEV_COPY(s.bias[e], rows), s.host[e].dtype};
    }
    s.dev = DEV_COPY(on_dev, n);
    free(on_dev);
    return s;
}
static void experts_free(expert_set *s, uint32_t n)
{
    for (uint32_t e = 0; e < n; e++) weight_free(&s->w[e]), free(s->bias[e]);
    free(s->w), free(s->bias), free(s->host);
}

/* Buffers of pairs: the rows behind the last pair are not defined; they are not looked at, but for the guards. */
static void check_pairs(const char *what, const layer *l, const float *want, float *got, float *dev, size_t cols, size_t stride)
{
    dev_fetch(got, dev, stride * l->most);
    for (size_t i = l->count * stride; i < stride * l->most; i++) memcpy(got + i, &poison, 4);
    check_equal(what, want, got, stride * l->most, l->count, cols, stride);
}

/* plain: activations are floats beside q8 and q4 as well, as with --compute f32. */
static void layer_case(choice c, uint32_t cols, uint32_t dtype, bool plain)
{
    uint32_t tokens = c.tokens;
    layer l = {.c = &c, .cols = cols, .most = tokens * c.used};
    float *host, *dev;
    l.count = pairs_case(&c, &host, &dev, l.first, l.row, l.pair);
    uint32_t rows = between(1, 100), groups = (l.cols + 31) / 32;
    size_t xs = l.cols + rnd(3), gs = l.cols + rnd(3), ys = rows + rnd(3), gn = gs * l.most, yn = ys * l.most;
    size_t words = (size_t)groups * l.most * sizeof(op_group) / sizeof(float);
    float *x = reals(xs * tokens), *g[2] = {guarded(gn), guarded(gn)}, *q[2] = {guarded(words), guarded(words)},
          *y[2] = {guarded(yn), guarded(yn)};
    float *dx = DEV_COPY(x, xs * tokens), *dg = dev_guarded(g[1], gn), *dq = dev_guarded(q[1], words), *dy = dev_guarded(y[1], yn);
    expert_set s = experts_make(&l, rows, dtype);
    for (int i = 0; i < 2; i++) {
        const uint32_t *count = l.first[i] + c.n_local;
        op_gather_args ga = {
            .x = i ? dx : x, .xs = xs, .rows = l.row[i], .n = l.most, .cols = l.cols, .y = i ? dg : g[0], .ys = gs, .count = count};
        op_quant_args qa = {.x = ga.y,
                            .xs = gs,
                            .n_tokens = l.most,
                            .n_leaves = 1,
                            .leaf_k = &l.cols,
                            .y = (op_group *)(void *)(i ? dq : q[0]),
                            .count = count};
        op_experts_args ea = {.w = i ? s.dev : s.host,
                              .types = s.types,
                              .n_local = c.n_local,
                              .n_rows = rows,
                              .n_k = l.cols,
                              .n_max = l.most,
                              .first = l.first[i],
                              .x = ga.y,
                              .xs = gs,
                              .xq = plain ? NULL : qa.y,
                              .xqs = l.most,
                              .y = i ? dy : y[0],
                              .ys = ys};
        op_act_args aa = {.act = ACT_SILU, .g = ea.y, .gs = ys, .n_tokens = l.most, .n = rows, .y = ea.y, .ys = ys, .count = count};
        if (i) {
            ON_DEVICE(gather, &ga);
            ON_DEVICE(quant, &qa);
            ON_DEVICE(experts, &ea);
            ON_DEVICE(act, &aa);
        } else {
            op_table_ref.gather(&ga, 0, 1), op_table_ref.quant(&qa, 0, 1);
            op_table_ref.experts(&ea, 0, 1), op_table_ref.act(&aa, 0, 1);
        }
    }
    check_pairs("gather", &l, g[0], g[1], dg, l.cols, gs);
    check_pairs("experts", &l, y[0], y[1], dy, rows, ys);
    for (int i = 0; i < 2; i++) release(g[i]), release(q[i]), release(y[i]);
    release(host);
    experts_free(&s, c.n_local);
    free(x), free(c.ids);
    dev_free_all();
}
static void layer_is_equal(void **state)
{
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 40; i++) layer_case(choice_make(i < 20 ? i + 1 : between(1, 90)), between(1, 200), 0, false);
    layer_case(choice_make(300), between(1, 200), 0, false);
    /* Tokens for each shape of blocks: pairs an expert are under 1/2, 2, 4, 17, 129, and more. The last has one expert for all. */
    static const uint32_t most[] = {1, 8, 15, 60, 180, 300};
    for (uint32_t i = 0; i < ARRAY_LEN(most); i++)
        for (uint32_t dtype = DT_F32; dtype <= DT_Q4; dtype++) {
            bool last = i == 5;
            choice c = {.tokens = most[i], .used = 1, .n_experts = last ? 3 : 6, .lo = last, .n_local = last ? 2 : 5, .is = 1};
            c.ids = must(calloc(c.tokens, sizeof *c.ids));
            for (uint32_t t = 0; t < c.tokens; t++) c.ids[t] = last ? rnd(8) ? 2 : 1 : rnd(6);
            layer_case(c, between(200, 600), dtype, false);
        }
    /* More experts than a warp looks up at a time, of all types; some have no pairs. */
    for (int plain = 0; plain < 2; plain++) {
        choice c = {.tokens = 130, .used = 1, .n_experts = 110, .lo = 5, .n_local = 100, .is = 1};
        c.ids = must(calloc(c.tokens, sizeof *c.ids));
        for (uint32_t t = 0; t < c.tokens; t++) c.ids[t] = rnd(c.n_experts);
        layer_case(c, 70, 0, plain != 0);
    }
}

static void mix_is_equal(void **state)
{
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 80; i++) {
        choice c = choice_make(between(1, 40));
        float *host, *dev;
        const uint32_t *first[2], *row[2], *pair[2];
        uint32_t count = pairs_case(&c, &host, &dev, first, row, pair), n = between(1, 300), leaves = between(1, 8),
                 leaf[9] = {c.lo};
        for (uint32_t l = 0; l < leaves; l++) leaf[l + 1] = c.lo + c.n_local * (l + 1) / leaves;
        size_t xs = n + rnd(3), ws = c.used + rnd(3), ys = n + rnd(3), yl = ys * c.tokens, total = yl * leaves;
        float *x = reals(xs * (count + 1)), *w = reals(ws * c.tokens), *y[2] = {guarded(total), guarded(total)};
        op_mix_args a = {.x = x,
                         .xs = xs,
                         .ids = c.ids,
                         .pair = pair[0],
                         .w = w,
                         .is = c.is,
                         .ps = c.used,
                         .ws = ws,
                         .n_used = c.used,
                         .leaf = leaf,
                         .n_leaves = leaves,
                         .n_tokens = c.tokens,
                         .n = n,
                         .y = y[0],
                         .ys = ys,
                         .yl = yl};
        op_table_ref.mix(&a, 0, 1);
        a.x = DEV_COPY(x, xs * count), a.ids = DEV_COPY(c.ids, (size_t)c.tokens * c.is), a.pair = pair[1],
        a.w = DEV_COPY(w, ws * c.tokens);
        a.y = dev_guarded(y[1], total);
        ON_DEVICE(mix, &a);
        dev_fetch(y[1], a.y, total);
        check_equal("mix", y[0], y[1], total, (size_t)c.tokens * leaves, n, ys);
        release(y[0]), release(y[1]), release(host);
        free(x), free(w), free(c.ids);
        dev_free_all();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(route_is_equal),
        cmocka_unit_test(pairs_are_equal),
        cmocka_unit_test(layer_is_equal),
        cmocka_unit_test(mix_is_equal),
    };
    RUN_CUDA_TESTS(tests);
}
