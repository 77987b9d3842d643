/* t_cuda_ops.c - operations of a CUDA device, but attention and experts, against ref.c: the same bits, nothing written outside. */
#include "after_ops.h"
#include "cuda_kit.h"

/* Buffers of one case: the output of ref, where the device's is fetched to, and the device's own. */
typedef struct {
    float *want, *got, *dev;
    size_t n;
} output;
static output output_make(size_t n)
{
    output o = {guarded(n), guarded(n), NULL, n};
    o.dev = dev_guarded(o.got, n);
    return o;
}
/* Input and output in one: rows x cols of x. */
static output output_from(const float *x, size_t rows, size_t cols, size_t stride)
{
    output o = {guarded(rows * stride), guarded(rows * stride), NULL, rows * stride};
    for (size_t t = 0; t < rows; t++) memcpy(o.want + t * stride, x + t * stride, cols * sizeof *x);
    o.dev = dev_guarded(o.want, o.n);
    return o;
}
static void output_check(output *o, const char *what, size_t rows, size_t cols, size_t stride)
{
    dev_fetch(o->got, o->dev, o->n);
    check_equal(what, o->want, o->got, o->n, rows, cols, stride);
    release(o->want), release(o->got);
}

/* Few and many, and those around the sizes that kernels are cut at. */
static uint32_t some_tokens(void)
{
    const uint32_t edge[] = {1, 1, 2, 3, 4, 5, 15, 16, 17, 33};
    return rnd(40) ? edge[rnd(ARRAY_LEN(edge))] : between(34, 300);
}

/* ---- quant, linear, embed ---- */
static op_group *quant_case(const float *x, size_t xs, uint32_t tokens, const uint32_t *leaf, uint32_t leaves, bool counted,
                            const op_group **dev)
{
    uint32_t groups = 0, count = counted ? rnd(tokens + 1) : tokens;
    size_t cols = 0;
    for (uint32_t l = 0; l < leaves; l++) groups += (leaf[l] + GROUP_K - 1) / GROUP_K, cols += leaf[l];
    size_t words = (size_t)groups * tokens * sizeof(op_group) / sizeof(float);
    output o = output_make(words);
    op_quant_args a = {.x = x,
                       .xs = xs,
                       .n_tokens = tokens,
                       .n_leaves = leaves,
                       .leaf_k = leaf,
                       .y = (op_group *)(void *)o.want,
                       .count = counted ? &count : NULL};
    op_table_ref.quant(&a, 0, 1);
    a.x = DEV_COPY(x, (tokens - 1) * xs + cols);
    a.y = (op_group *)(void *)o.dev;
    a.count = DEV_COPY(a.count, 1);
    ON_DEVICE(quant, &a);
    dev_fetch(o.got, o.dev, words);
    check_equal("quant", o.got, o.got, words, 1, words, MAX(words, (size_t)1)); /* the guards */
    const op_group *want = (const op_group *)(void *)o.want, *got = (const op_group *)(void *)o.got;
    for (size_t i = 0; i < (size_t)groups * tokens; i++)
        if (!same(want[i].d, got[i].d) || !same(want[i].s, got[i].s) || memcmp(want[i].q, got[i].q, GROUP_K) != 0)
            fail_msg("group %zu of %u x %u differs", i, groups, tokens);
    /* to the byte, so that a kernel that takes a token or a group too many is seen */
    if (dev) *dev = DEV_COPY(want, (size_t)groups * tokens);
    release(o.got);
    if (dev) return (op_group *)(void *)o.want;
    release(o.want);
    return NULL;
}

static void quant_is_equal(void **state)
{
    (void)state;
    const float hard[] = {0, -0.0f, 1e-40f, 1e-31f, 1e-30f, 3e38f, -3.4e38f, NAN, INFINITY, -INFINITY, 0x1p-100f, 0x1.fffffep-101f};
    NEED_DEVICE();
    for (uint32_t i = 0; i < 120; i++) {
        uint32_t leaves = between(1, 8), leaf[8], tokens = some_tokens();
        size_t cols = 0;
        for (uint32_t l = 0; l < leaves; l++) cols += leaf[l] = between(1, 100);
        size_t xs = cols + rnd(4);
        float *x = reals(xs * tokens);
        for (size_t k = 0; i % 3 == 0 && k < xs * tokens; k++) x[k] *= i % 4 ? rnd(2) ? 1e-30f : 1e-38f : 0;
        for (uint32_t k = 0; i % 2 && k < 5; k++) x[rnd((uint32_t)(xs * tokens))] = hard[rnd(ARRAY_LEN(hard))];
        for (size_t k = 0; i == 8 && k < xs * tokens; k++) x[k] = k % 2 ? 0x1p-100f : 0x1p-101f; /* the least that has codes */
        quant_case(x, xs, tokens, leaf, leaves, i % 4 == 1, NULL);
        free(x);
        dev_free_all();
    }
}

enum { GROUPS = 1 };
static const struct {
    uint32_t dtype, what;
} kinds[] = {
    {DT_F32, 0}, {DT_F16, 0}, {DT_BF16, 0}, {DT_Q8, GROUPS}, {DT_Q4, GROUPS}, {DT_Q8, 0}, {DT_Q4, 0},
};
static void linear_cut_case(uint32_t dtype, uint32_t parts, uint32_t leaves, uint32_t rows, uint32_t n_k, uint32_t tokens, uint32_t what)
{
    test_weight w;
    dev_weight d;
    uint32_t leaf[8];
    weight_make(&w, dtype, parts, leaves, rows, n_k);
    dev_weight_make(&d, &w);
    for (uint32_t l = 0; l < leaves; l++) leaf[l] = w.runs[l].n_k;
    size_t xs = n_k + rnd(5), ys = rows + rnd(5), yl = ys * tokens + rnd(3);
    float *x = reals(xs * tokens), *bias = leaves == 1 && rnd(2) ? reals(rows) : NULL;
    output o = output_make(yl * leaves);
    op_linear_args a = {.w = &w.w, .bias = bias, .x = x, .xs = xs, .n_tokens = tokens, .y = o.want, .ys = ys, .yl = yl};
    const op_group *dev_groups = NULL;
    op_group *groups = what & GROUPS ? quant_case(x, xs, tokens, leaf, leaves, false, &dev_groups) : NULL;
    if (groups) a.x = NULL, a.xq = groups, a.xqs = tokens;
    if (rnd(4) == 0) a.row_lo = rnd(rows), a.row_hi = between(a.row_lo + 1, rows);
    op_table_ref.linear(&a, 0, 1);
    a.w = &d.w;
    a.bias = DEV_COPY(bias, rows);
    a.x = groups ? NULL : DEV_COPY(x, (tokens - 1) * xs + n_k);
    a.xq = dev_groups;
    a.y = o.dev;
    ON_DEVICE(linear, &a);
    dev_fetch(o.got, o.dev, o.n);
    for (size_t i = 0; i < o.n; i++) { /* rows of a leaf; all else stays as it was */
        size_t l = i / yl, t = i % yl / ys, r = i % yl % ys;
        if (!same(o.want[i], o.got[i]) || (t >= tokens && as_bits(o.got[i]) != poison))
            fail_msg("linear, type %u, %u x %u, %u tokens: leaf %zu, token %zu, row %zu: %a, want %a", dtype, rows, n_k, tokens, l,
                     t, r, (double)o.got[i], (double)o.want[i]);
    }
    check_equal("linear", o.want, o.got, o.n, 1, o.n, o.n);
    release(o.want), release(o.got);
    if (groups) release((float *)(void *)groups);
    free(x), free(bias);
    weight_free(&w);
    dev_free_all();
}

static void linear_case(uint32_t dtype, uint32_t rows, uint32_t n_k, uint32_t tokens, uint32_t what)
{
    uint32_t leaves = rnd(2) ? 1 : between(1, MIN(8u, n_k));
    linear_cut_case(dtype, between(1, MIN(6u, rows)), leaves, rows, n_k, tokens, what);
}

static void linear_is_equal(void **state)
{
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 60; i++)
        for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
            linear_case(kinds[k].dtype, i < 40 ? i + 1 : between(1, 200), between(1, i % 8 ? 150 : 600), some_tokens(),
                        kinds[k].what);
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        linear_case(kinds[k].dtype, 33, 64 * (uint32_t)(k + 1), 300, kinds[k].what);
        linear_case(kinds[k].dtype, 32, 2000, 2, kinds[k].what);
    }
    for (uint32_t q = DT_Q8; q <= DT_Q4; q++) { /* K in several rounds of the GEMV; each tile of the mma, the largest by 32 runs of two */
        for (uint32_t t = 1; t <= 5; t++) linear_cut_case(q, 1, 1, 45, 2600 + t * 32, t, GROUPS);
        linear_cut_case(q, 1, 1, 140, 1300, 16, GROUPS);
        linear_cut_case(q, 2, 1, 140, 700, 70, GROUPS);
        linear_cut_case(q, 4, 8, 4 * 136, 8 * 70, 300, GROUPS);
    }
    for (uint32_t f = DT_F32; f <= DT_BF16; f++) { /* K in more pieces than there are stages; each tile, the largest in 32 runs */
        for (uint32_t t = 1; t <= 5; t++) linear_cut_case(f, 1, 1, 45, 700 + t * 16, t, 0);
        linear_cut_case(f, 1, 1, 75, 512, 16, 0);
        linear_cut_case(f, 2, 1, 150, 301, 40, 0);
        linear_cut_case(f, 4, 8, 4 * 136, 8 * 70, 70, 0);
    }
}

static void embed_is_equal(void **state)
{
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 60; i++) {
        test_weight w;
        dev_weight d;
        uint32_t rows = between(1, 50), n = between(1, 300), lo = rnd(30), tokens = some_tokens();
        weight_make(&w, DT_F32 + i % 5, between(1, MIN(3u, rows)), 1, rows, n);
        dev_weight_make(&d, &w);
        size_t ys = n + rnd(4);
        int32_t *ids = must(calloc(tokens, sizeof *ids));
        for (uint32_t t = 0; t < tokens; t++) ids[t] = (int32_t)rnd(lo + rows + 20) - 5;
        output o = output_make(ys * tokens);
        op_embed_args a = {.w = &w.w,
                           .row_lo = lo,
                           .row_hi = lo + rows,
                           .ids = ids,
                           .n_tokens = tokens,
                           .n = n,
                           .scale = rnd(2) ? 1.0f : 1.7f,
                           .y = o.want,
                           .ys = ys};
        op_table_ref.embed(&a, 0, 1);
        a.w = &d.w, a.ids = DEV_COPY(ids, tokens), a.y = o.dev;
        ON_DEVICE(embed, &a);
        output_check(&o, "embed", tokens, n, ys);
        free(ids);
        weight_free(&w);
        dev_free_all();
    }
}

/* ---- norms ---- */
static void norm_is_equal(void **state)
{
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 150; i++) {
        uint32_t n = i < 70 ? i + 1 : between(1, i % 8 ? 700 : 5000), groups = rnd(2) ? 1 : between(1, 4), tokens = between(1, 6);
        size_t gs = rnd(2) ? n : 0, cols = n * (size_t)groups, stride = cols + rnd(4), n_w = gs ? cols : n;
        float *x = reals(stride * tokens), *w = reals(n_w), *b = reals(n_w);
        if (i % 5 == 0) x[rnd((uint32_t)(stride * tokens))] = i % 2 ? NAN : 3e38f;
        bool in_place = rnd(2);
        size_t ys = in_place ? stride : cols + rnd(4);
        output o = in_place ? output_from(x, tokens, cols, stride) : output_make(ys * tokens);
        op_norm_args a = {.kind = i % 3,
                          .x = in_place ? o.want : x,
                          .xs = stride,
                          .n_tokens = tokens,
                          .n = n,
                          .groups = groups,
                          .w = w,
                          .b = rnd(2) ? b : NULL,
                          .gs = gs,
                          .eps = 1e-5f,
                          .y = o.want,
                          .ys = ys};
        op_table_ref.norm(&a, 0, 1);
        a.x = in_place ? o.dev : DEV_COPY(x, stride * tokens);
        a.w = DEV_COPY(w, n_w), a.b = a.b ? DEV_COPY(b, n_w) : NULL, a.y = o.dev;
        ON_DEVICE(norm, &a);
        output_check(&o, "norm", tokens, cols, ys);
        free(x), free(w), free(b);
        dev_free_all();
    }
}

static void norm_by_sums_is_equal(void **state)
{
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 80; i++) {
        uint32_t dim = i % 8 ? between(1, 70) : between(71, 1100), heads = between(1, 9), tokens = some_tokens(), n = dim * heads,
                 cut = rnd(heads + 1);
        size_t xs = n + rnd(4), ss = heads + rnd(3);
        float *x = reals(xs * tokens), *w = reals(n);
        output s = output_make(ss * tokens);
        op_head_sums_args h = {.x = x, .xs = xs, .n_tokens = tokens, .n_heads = heads, .head_dim = dim, .y = s.want, .ys = ss};
        op_table_ref.head_sums(&h, 0, 1);
        const float *dev_x = DEV_COPY(x, xs * tokens);
        h.x = dev_x, h.y = s.dev;
        ON_DEVICE(head_sums, &h);
        uint32_t from = rnd(heads), cols = (heads - from) * dim; /* a rank's heads, and all sums in two parts */
        size_t ys = cols + rnd(4), ts = heads - cut + rnd(3);
        float *tail = reals(ts * tokens);
        for (size_t t = 0; t < tokens; t++) memcpy(tail + t * ts, s.want + t * ss + cut, (heads - cut) * sizeof *tail);
        output o = output_make(ys * tokens);
        op_sum_part parts[2] = {{s.want, ss, cut}, {tail, ts, heads - cut}},
                    on_dev[2] = {{s.dev, ss, cut}, {DEV_COPY(tail, ts * tokens), ts, heads - cut}};
        op_norm_sums_args a = {.x = x + from * dim,
                               .xs = xs,
                               .n_tokens = tokens,
                               .cols = cols,
                               .n = n,
                               .parts = parts,
                               .n_parts = 2,
                               .w = w + from * dim,
                               .eps = 1e-5f,
                               .y = o.want,
                               .ys = ys};
        op_table_ref.norm_sums(&a, 0, 1);
        a.x = dev_x + from * dim, a.parts = on_dev, a.w = (const float *)DEV_COPY(w, n) + from * dim, a.y = o.dev;
        ON_DEVICE(norm_sums, &a);
        output_check(&s, "head_sums", tokens, heads, ss);
        output_check(&o, "norm_sums", tokens, cols, ys);
        free(x), free(w), free(tail);
        dev_free_all();
    }
}

static void rope_is_equal(void **state)
{
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 80; i++) {
        uint32_t dim = i % 4 ? between(1, 40) * 2 : 256, dims = rnd(2) ? dim : between(0, dim / 2) * 2, heads = between(1, 9),
                 tokens = some_tokens();
        size_t cols = (size_t)dim * heads, stride = cols + rnd(3);
        uint32_t *pos = must(calloc(tokens, sizeof *pos));
        for (size_t t = 0; t < tokens; t++) pos[t] = rnd(20);
        float *x = reals(stride * tokens), *cs = reals(20 * (size_t)dims);
        output o = output_from(x, tokens, cols, stride);
        op_rope_args a = {.kind = i % 3,
                          .dims = dims,
                          .x = o.want,
                          .xs = stride,
                          .n_tokens = tokens,
                          .n_heads = heads,
                          .head_dim = dim,
                          .pos = pos,
                          .cs = cs};
        op_table_ref.rope(&a, 0, 1);
        a.x = o.dev, a.pos = DEV_COPY(pos, tokens), a.cs = DEV_COPY(cs, 20 * (size_t)dims);
        ON_DEVICE(rope, &a);
        output_check(&o, "rope", tokens, cols, stride);
        free(x), free(cs), free(pos);
        dev_free_all();
    }
}

/* ---- elementwise ---- */
/* Activations of all float classes; in place, and with a count of rows that only the device knows. */
static void act_is_equal(void **state)
{
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 120; i++) {
        uint32_t act = i % 6, n = i % 7 ? between(1, 600) : 4096, tokens = i % 7 ? some_tokens() : 2,
                 count = i % 3 ? tokens : rnd(tokens + 1);
        size_t gs = n + rnd(4), us = n + rnd(4);
        float *g = reals(gs * tokens), *u = reals(us * tokens);
        for (size_t k = 0; k < gs * tokens; k++) g[k] = i % 2 ? g[k] * 10 : as_float(rnd(1u << 16) << 16 | rnd(1u << 16));
        bool in_place = rnd(2), gated = act == ACT_SWIGLU_CLAMP || rnd(2);
        size_t ys = in_place ? gs : n + rnd(4);
        output o = in_place ? output_from(g, tokens, n, gs) : output_make(ys * tokens);
        op_act_args a = {.act = act,
                         .alpha = 1.702f,
                         .limit = 7,
                         .g = in_place ? o.want : g,
                         .u = gated ? u : NULL,
                         .gs = gs,
                         .us = us,
                         .n_tokens = tokens,
                         .n = n,
                         .y = o.want,
                         .ys = ys,
                         .count = i % 3 ? NULL : &count};
        op_table_ref.act(&a, 0, 1);
        a.g = in_place ? o.dev : DEV_COPY(g, gs * tokens), a.u = gated ? DEV_COPY(u, us * tokens) : NULL, a.y = o.dev;
        a.count = DEV_COPY(a.count, 1);
        ON_DEVICE(act, &a);
        output_check(&o, "act", in_place ? tokens : count, n, ys);
        free(g), free(u);
        dev_free_all();
    }
}

static void reduce_is_equal(void **state)
{
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 120; i++) {
        uint32_t n = i < 40 ? i + 1 : between(1, 600), tokens = some_tokens(), leaves = i % 8 + 1;
        bool in_place = i % 3 == 0;
        size_t ps = n + rnd(4), rs = n + rnd(4), ys = in_place ? rs : n + rnd(4);
        float *in[10];
        const float *dev[8];
        for (int l = 0; l < 10; l++) in[l] = reals((l < 9 ? ps : rs) * tokens);
        for (uint32_t l = 0; l < leaves; l++) dev[l] = DEV_COPY(in[l], ps * tokens);
        output o = in_place ? output_from(in[9], tokens, n, rs) : output_make(ys * tokens);
        op_reduce_args a = {.parts = (const float *const *)in,
                            .n_leaves = leaves,
                            .ps = ps,
                            .bias = i & 1 ? in[8] : NULL,
                            .residual = in_place ? o.want
                                        : i & 2  ? in[9]
                                                 : NULL,
                            .rs = rs,
                            .scale = i & 4 ? 0.22f : 1.0f,
                            .n_tokens = tokens,
                            .n = n,
                            .y = o.want,
                            .ys = ys};
        op_table_ref.reduce(&a, 0, 1);
        a.parts = dev, a.bias = a.bias ? DEV_COPY(in[8], n) : NULL, a.y = o.dev;
        a.residual = in_place ? o.dev : a.residual ? DEV_COPY(in[9], rs * tokens) : NULL;
        ON_DEVICE(reduce, &a);
        output_check(&o, "reduce", tokens, n, ys);
        for (int l = 0; l < 10; l++) free(in[l]);
        dev_free_all();
    }
}

static void logits_clamp_gate_are_equal(void **state)
{
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 60; i++) {
        uint32_t n = i % 7 ? between(1, 600) : 5000, tokens = some_tokens();
        bool in_place = i % 3 == 0; /* logits */
        size_t stride = n + rnd(4), total = stride * tokens, ls = in_place ? stride : n + rnd(4), gs = between(1, 3), ys = n + rnd(4);
        float *x = reals(total), *g = reals(gs * tokens);
        for (size_t k = 0; i % 2 && k < total; k++) x[k] = as_float(rnd(1u << 16) << 16 | rnd(1u << 16));
        output l = in_place ? output_from(x, tokens, n, stride) : output_make(ls * tokens), c = output_from(x, tokens, n, stride),
               s = output_make(ys * tokens);
        op_logits_args la = {.x = in_place ? l.want : x,
                             .xs = stride,
                             .scale = 0.7f,
                             .cap = i % 4 < 2 ? 3.0f : 0.0f,
                             .n_tokens = tokens,
                             .n = n,
                             .y = l.want,
                             .ys = ls};
        op_clamp_args ca = {.x = c.want, .xs = stride, .n_tokens = tokens, .n = n, .limit = 0.5f};
        op_switch_args sa = {.x = x, .g = g, .xs = stride, .gs = gs, .n_tokens = tokens, .n = n, .y = s.want, .ys = ys};
        op_table_ref.logits(&la, 0, 1), op_table_ref.clamp(&ca, 0, 1), op_table_ref.gate(&sa, 0, 1);
        ca.x = c.dev, sa.x = DEV_COPY(x, total), sa.g = DEV_COPY(g, (tokens - 1) * gs + 1), sa.y = s.dev;
        la.x = in_place ? l.dev : sa.x, la.y = l.dev;
        ON_DEVICE(logits, &la);
        ON_DEVICE(clamp, &ca);
        ON_DEVICE(gate, &sa);
        output_check(&l, "logits", tokens, n, ls);
        output_check(&c, "clamp", tokens, n, stride);
        output_check(&s, "gate", tokens, n, ys);
        free(x), free(g);
        dev_free_all();
    }
}

/* ---- several in one launch ---- */
/* Shares of a sum, of a few columns each, beside each other: alone, and with the norm behind them. */
static void shares_are_put_beside(void **state)
{
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 60; i++) {
        uint32_t n = i < 30 ? i + 1 : between(1, 600), tokens = some_tokens(), ranks = i % 8 + 1, cols = (n + ranks - 1) / ranks, shares = (n + cols - 1) / cols;
        size_t ps = cols + rnd(4), ys = n + rnd(4);
        float *in[8], *w = reals(n);
        const float *dev[8] = {NULL};
        output s = output_make(ys * tokens), both = output_make(ys * tokens), y = output_make(ys * tokens);
        for (uint32_t l = 0; l < shares; l++) in[l] = reals(ps * tokens), dev[l] = DEV_COPY(in[l], ps * tokens);
        for (size_t t = 0; t < tokens; t++)
            for (uint32_t k = 0; k < n; k++) s.want[t * ys + k] = both.want[t * ys + k] = in[k / cols][t * ps + k % cols];
        op_reduce_args ra = {.parts = dev, .n_leaves = shares, .ps = ps, .share = cols, .scale = 1, .n_tokens = tokens, .n = n, .y = s.dev, .ys = ys};
        op_norm_args na = {.kind = i % 3, .x = both.want, .xs = ys, .n_tokens = tokens, .n = n, .groups = 1, .w = w, .eps = 1e-5f, .y = y.want, .ys = ys};
        op_table_ref.norm(&na, 0, 1);
        dev_ok(cuda->reduce(&ra, stream), "shares");
        ra.y = both.dev, na.x = both.dev, na.w = DEV_COPY(w, n), na.y = y.dev;
        dev_ok(cuda->rows(&ra, &na, NULL, stream), "shares and norm");
        dev_ok(device_stream_sync(stream), "shares");
        output_check(&s, "shares", tokens, n, ys);
        output_check(&both, "shares before a norm", tokens, n, ys);
        output_check(&y, "norm of shares", tokens, n, ys);
        ra.n_leaves = shares + 1;
        assert_int_not_equal(cuda->reduce(&ra, stream), 0);
        for (uint32_t l = 0; l < shares; l++) free(in[l]);
        free(w);
        dev_free_all();
    }
}

/* Sum, norm and groups, with and without the first and the last, against the three of ref one after the other. */
static void rows_are_equal(void **state)
{
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 80; i++) {
        uint32_t n = i < 40 ? i + 1 : between(1, i % 8 ? 600 : 2500), tokens = some_tokens(), leaves = i % 8 + 1;
        const uint32_t first = n > 1 && i % 5 == 2 ? between(1, n - 1) : n, leaf[2] = {first, n - first}, /* groups of two leaves lie askew */
                       groups = (first + GROUP_K - 1) / GROUP_K + (n - first + GROUP_K - 1) / GROUP_K;
        size_t xs = n + rnd(4), ys = n + rnd(4), total = xs * tokens, words = (size_t)groups * tokens * sizeof(op_group) / sizeof(float);
        float *in[10], *w = reals(n), *b = reals(n);
        const float *dev[8];
        for (int l = 0; l < 10; l++) in[l] = reals(total);
        for (uint32_t l = 0; l < leaves; l++) dev[l] = DEV_COPY(in[l], total);
        if (i % 9 == 0) in[9][rnd((uint32_t)total)] = NAN;
        bool sums = i % 4 != 0, quant = i % 3 != 0;
        output s = output_make(total), y = output_make(ys * tokens), g = output_make(words);
        op_reduce_args ra = {.parts = (const float *const *)in, .n_leaves = leaves, .ps = xs, .bias = i & 1 ? in[8] : NULL,
                             .residual = i & 2 ? in[9] : NULL, .rs = xs, .scale = i & 4 ? 0.22f : 1.0f, .n_tokens = tokens, .n = n,
                             .y = s.want, .ys = xs};
        op_norm_args na = {.kind = i % 3, .x = sums ? s.want : in[9], .xs = xs, .n_tokens = tokens, .n = n, .groups = 1, .w = w,
                           .b = rnd(2) ? b : NULL, .eps = 1e-5f, .y = y.want, .ys = ys};
        op_quant_args qa = {.x = y.want, .xs = ys, .n_tokens = tokens, .n_leaves = first < n ? 2 : 1, .leaf_k = leaf, .y = (op_group *)(void *)g.want};
        if (sums) op_table_ref.reduce(&ra, 0, 1);
        op_table_ref.norm(&na, 0, 1);
        if (quant) op_table_ref.quant(&qa, 0, 1);
        ra.parts = dev, ra.bias = ra.bias ? DEV_COPY(in[8], n) : NULL, ra.residual = ra.residual ? DEV_COPY(in[9], total) : NULL;
        ra.y = s.dev, na.x = sums ? s.dev : DEV_COPY(in[9], total), na.w = DEV_COPY(w, n), na.b = na.b ? DEV_COPY(b, n) : NULL;
        na.y = y.dev, qa.x = y.dev, qa.y = (op_group *)(void *)g.dev;
        dev_ok(cuda->rows(sums ? &ra : NULL, &na, quant ? &qa : NULL, stream), "rows");
        dev_ok(device_stream_sync(stream), "rows");
        output_check(&s, "rows: sum", sums ? tokens : 0, n, xs);
        output_check(&y, "rows: norm", tokens, n, ys);
        if (quant) {
            dev_fetch(g.got, g.dev, words);
            const op_group *want = (const op_group *)(void *)g.want, *got = (const op_group *)(void *)g.got;
            for (size_t k = 0; k < (size_t)groups * tokens; k++)
                if (!same(want[k].d, got[k].d) || !same(want[k].s, got[k].s) || memcmp(want[k].q, got[k].q, GROUP_K) != 0)
                    fail_msg("rows: group %zu of %u x %u differs", k, groups, tokens);
        }
        release(g.want), release(g.got);
        for (int l = 0; l < 10; l++) free(in[l]);
        free(w), free(b);
        dev_free_all();
    }
}

/* Two or three weights of other rows, parts and types on one input; leaves and biases as they come. */
static void linears_are_equal(void **state)
{
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 120; i++) {
        test_weight w[3];
        dev_weight d[3];
        output o[3];
        float *bias[3];
        op_linear_args a[3];
        const uint32_t n = 2 + i % 2, kind = i % (uint32_t)ARRAY_LEN(kinds), n_k = between(8, i % 8 ? 150 : 1500), tokens = some_tokens(),
                       leaves = i % 5 ? 1 : between(2, 8);
        uint32_t leaf[8];
        size_t xs = n_k + rnd(5);
        float *x = reals(xs * tokens);
        for (uint32_t k = 0; k < n; k++) {
            uint32_t rows = between(1, 90), dtype = kinds[kind].what && i % 7 == 3 && k == 1 ? DT_Q8 + DT_Q4 - kinds[kind].dtype : kinds[kind].dtype;
            weight_make(&w[k], dtype, between(1, MIN(5u, rows)), leaves, rows, n_k);
            dev_weight_make(&d[k], &w[k]);
            bias[k] = leaves == 1 && rnd(2) ? reals(rows) : NULL;
            size_t ys = rows + rnd(5), yl = ys * tokens + rnd(3);
            o[k] = output_make(yl * leaves);
            a[k] = (op_linear_args){.w = &w[k].w, .bias = bias[k], .x = x, .xs = xs, .n_tokens = tokens, .y = o[k].want, .ys = ys, .yl = yl};
            if (rnd(3) == 0) a[k].row_lo = rnd(rows), a[k].row_hi = between(a[k].row_lo + 1, rows);
        }
        for (uint32_t l = 0; l < leaves; l++) leaf[l] = w[0].runs[l].n_k;
        for (uint32_t k = 1; k < n; k++) /* all are cut as the first is */
            for (uint32_t l = 0; l < leaves; l++) assert_int_equal(w[k].runs[l].n_k, leaf[l]);
        const op_group *dev_groups = NULL;
        op_group *groups = kinds[kind].what ? quant_case(x, xs, tokens, leaf, leaves, false, &dev_groups) : NULL;
        const float *dev_x = groups ? NULL : DEV_COPY(x, (tokens - 1) * xs + n_k);
        for (uint32_t k = 0; k < n; k++) {
            if (groups) a[k].x = NULL, a[k].xq = groups, a[k].xqs = tokens;
            op_table_ref.linear(&a[k], 0, 1);
            a[k].w = &d[k].w, a[k].bias = DEV_COPY(bias[k], w[k].w.n_rows), a[k].x = dev_x, a[k].xq = dev_groups, a[k].y = o[k].dev;
        }
        dev_ok(cuda->linears(a, n, NULL, stream), "linears");
        dev_ok(device_stream_sync(stream), "linears");
        for (uint32_t k = 0; k < n; k++) {
            dev_fetch(o[k].got, o[k].dev, o[k].n);
            check_equal("linears", o[k].want, o[k].got, o[k].n, 1, o[k].n, o[k].n);
            release(o[k].want), release(o[k].got);
            free(bias[k]);
            weight_free(&w[k]);
        }
        if (groups) release((float *)(void *)groups);
        free(x);
        dev_free_all();
    }
}

/* ---- what follows linear operations, in the same launch ---- */
typedef struct {
    uint32_t n, tokens;
    test_weight w[3];
    dev_weight d[3];
    output o[3];
    float *x;
    op_group *groups;
    op_linear_args a[3];  /* of ref, and it has run */
    op_linear_args on[3]; /* of the device */
} linear_set;

static void set_make(linear_set *s, uint32_t n, uint32_t kind, const uint32_t *rows, uint32_t leaves, uint32_t tokens)
{
    const uint32_t n_k = between(leaves, rnd(4) ? 150 : 1200);
    uint32_t leaf[8];
    const size_t xs = n_k + rnd(5);
    const op_group *dev_groups = NULL;
    *s = (linear_set){.n = n, .tokens = tokens, .x = reals(xs * tokens)};
    for (uint32_t k = 0; k < n; k++) {
        weight_make(&s->w[k], kinds[kind].dtype, between(1, MIN(5u, rows[k])), leaves, rows[k], n_k);
        dev_weight_make(&s->d[k], &s->w[k]);
        const size_t ys = rows[k] + rnd(5), yl = ys * tokens + rnd(3);
        s->o[k] = output_make(yl * leaves);
        s->a[k] = (op_linear_args){.w = &s->w[k].w, .x = s->x, .xs = xs, .n_tokens = tokens, .y = s->o[k].want, .ys = ys, .yl = yl};
    }
    for (uint32_t l = 0; l < leaves; l++) leaf[l] = s->w[0].runs[l].n_k;
    if (kinds[kind].what) s->groups = quant_case(s->x, xs, tokens, leaf, leaves, false, &dev_groups);
    const float *dev_x = s->groups ? NULL : DEV_COPY(s->x, (tokens - 1) * xs + n_k);
    for (uint32_t k = 0; k < n; k++) {
        if (s->groups) s->a[k].x = NULL, s->a[k].xq = s->groups, s->a[k].xqs = tokens;
        op_table_ref.linear(&s->a[k], 0, 1);
        s->on[k] = s->a[k];
        s->on[k].w = &s->d[k].w, s->on[k].x = dev_x, s->on[k].xq = dev_groups, s->on[k].y = s->o[k].dev;
    }
}

/* Runs them with what follows; counts are 0 before and after. launches: how many there must be, 0: any number. */
static void set_run(linear_set *s, op_after *after)
{
    enum { COUNTS = 4096 };
    uint32_t *zero = must(calloc(COUNTS + 2 * GUARD, sizeof *zero)), *back = must(calloc(COUNTS + 2 * GUARD, sizeof *back));
    after->counts = (op_counts){(uint32_t *)DEV_COPY(zero, COUNTS), COUNTS};
    dev_ok(cuda->linears(s->on, s->n, after, stream), "linears");
    dev_ok(device_stream_sync(stream), "linears");
    dev_move(back, after->counts.at, COUNTS * sizeof *back, false);
    assert_memory_equal(zero, back, COUNTS * sizeof *back);
    free(zero), free(back);
    for (uint32_t k = 0; k < s->n; k++) {
        dev_fetch(s->o[k].got, s->o[k].dev, s->o[k].n);
        check_equal("linears", s->o[k].want, s->o[k].got, s->o[k].n, 1, s->o[k].n, s->o[k].n);
        release(s->o[k].want), release(s->o[k].got);
        weight_free(&s->w[k]);
    }
    if (s->groups) release((float *)(void *)s->groups);
    free(s->x);
}

static void check_groups(output *g, uint32_t groups, uint32_t tokens)
{
    dev_fetch(g->got, g->dev, g->n);
    const op_group *want = (const op_group *)(void *)g->want, *got = (const op_group *)(void *)g->got;
    for (size_t k = 0; k < (size_t)groups * tokens; k++)
        if (!same(want[k].d, got[k].d) || !same(want[k].s, got[k].s) || memcmp(want[k].q, got[k].q, GROUP_K) != 0)
            fail_msg("group %zu of %u x %u differs", k, groups, tokens);
    release(g->want), release(g->got);
}
static output output_groups(uint32_t groups, uint32_t tokens) { return output_make((size_t)groups * tokens * sizeof(op_group) / sizeof(float)); }

/* Of a decoding batch, or more than go in one launch. */
static uint32_t few_tokens(uint32_t i)
{
    static const uint32_t most[] = {1, 1, 2, 4, 16, 64, 80};
    const uint32_t m = most[i % ARRAY_LEN(most)];
    return between(m / 2 + 1, MAX(m, 1u));
}

static void act_after_is_equal(void **state)
{
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 70; i++) {
        const uint32_t tokens = few_tokens(i), n = between(1, i % 5 ? 150 : 500), rows[2] = {n, n}, gated = i % 3 != 0, kind = rnd(ARRAY_LEN(kinds));
        uint32_t leaf[8], leaves = 0, groups = 0, left = n;
        for (; left > 32 && leaves < 7; leaves++) {
            const uint32_t some = 32 * between(1, 3);
            left -= leaf[leaves] = MIN(some, (left - 1) / 32 * 32);
        }
        leaf[leaves++] = left;
        for (uint32_t l = 0; l < leaves; l++) groups += (leaf[l] + GROUP_K - 1) / GROUP_K;
        linear_set s;
        set_make(&s, 1 + gated, kind, rows, 1, tokens);
        const size_t ys = n + rnd(4);
        output y = output_make(ys * tokens), g = output_groups(groups, tokens);
        op_act_args act = {.act = gated ? i % 6 : i % 5, .alpha = 1.702f, .limit = 7, .g = s.a[0].y, .gs = s.a[0].ys, .u = gated ? s.a[1].y : NULL,
                           .us = s.a[1].ys, .n_tokens = tokens, .n = n, .y = y.want, .ys = ys};
        op_quant_args quant = {.x = y.want, .xs = ys, .n_tokens = tokens, .n_leaves = leaves, .leaf_k = leaf, .y = (op_group *)(void *)g.want};
        op_table_ref.act(&act, 0, 1);
        op_table_ref.quant(&quant, 0, 1);
        act.g = s.on[0].y, act.u = gated ? s.on[1].y : NULL, act.y = y.dev, quant.x = y.dev, quant.y = (op_group *)(void *)g.dev;
        op_after after = {.what = AFTER_ACT, .act = &act, .quant = i % 4 ? &quant : NULL};
        set_run(&s, &after);
        output_check(&y, "act", tokens, n, ys);
        if (after.quant) check_groups(&g, groups, tokens);
        else release(g.want), release(g.got);
        dev_free_all();
    }
}

/* A page for each token, of a sequence of its own; every byte of it is compared. */
typedef struct {
    uint8_t *host[80], *dev[80];
    uint8_t *const *host_at[80], *const *dev_at[80];
    size_t bytes;
} test_pages;
static void pages_make(test_pages *p, op_kv *pg, uint32_t tokens, op_kv_write_args *ref, op_kv_write_args *on)
{
    uint32_t pos[80], *seq = must(calloc(80, sizeof *seq));
    op_kv_layout(pg);
    p->bytes = pg->layer_off + pg->n_kv_heads * pg->head_bytes;
    for (uint32_t t = 0; t < tokens; t++) {
        p->host[t] = must(malloc(p->bytes));
        memset(p->host[t], 0x5a, p->bytes);
        p->dev[t] = dev_copy(p->host[t], p->bytes);
        p->host_at[t] = &p->host[t];
        p->dev_at[t] = dev_copy(&p->dev[t], sizeof p->dev[t]);
        pos[t] = rnd(pg->page_tokens), seq[t] = t;
    }
    uint32_t *host_pos = must(malloc(sizeof pos));
    memcpy(host_pos, pos, sizeof pos);
    ref->kv = on->kv = *pg;
    ref->b = (op_batch){tokens, host_pos, seq, p->host_at};
    on->b = (op_batch){tokens, DEV_COPY(pos, tokens), DEV_COPY(seq, tokens), dev_copy(p->dev_at, sizeof p->dev_at)};
}
static void pages_check(test_pages *p, const op_kv_write_args *ref)
{
    uint8_t *got = must(malloc(p->bytes));
    for (uint32_t t = 0; t < ref->b.n_tokens; t++) {
        dev_move(got, p->dev[t], p->bytes, false);
        if (memcmp(got, p->host[t], p->bytes) != 0) fail_msg("the page of token %u of %u differs", t, ref->b.n_tokens);
        free(p->host[t]);
    }
    free(got);
    free((void *)(uintptr_t)ref->b.pos), free((void *)(uintptr_t)ref->b.seq);
}

static void heads_after_is_equal(void **state)
{
    static const uint32_t types[] = {DT_F32, DT_F16, DT_I8};
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 70; i++) {
        const uint32_t tokens = few_tokens(i), dim = 2 * between(1, i % 5 ? 20 : 64), v_dim = i % 4 ? dim : between(1, 40), n_kv = between(1, 3),
                       heads = n_kv * between(1, 3), rows[3] = {heads * dim, n_kv * dim, n_kv * v_dim}, dims = i % 3 ? dim : 2 * between(1, dim / 2);
        op_kv pg = {.dtype = types[i % 3], .page_tokens = 16u << rnd(3), .n_kv_heads = n_kv, .k_dim = dim, .v_dim = v_dim, .layer_off = 64 * (uint64_t)rnd(3)};
        op_kv_write_args write = {0}, on_write = {0};
        test_pages pages;
        linear_set s;
        set_make(&s, 3, rnd(ARRAY_LEN(kinds)), rows, 1, tokens);
        pages_make(&pages, &pg, tokens, &write, &on_write);
        float *w = reals(dim), *cs = reals((size_t)pg.page_tokens * dims);
        const float *dev_w = DEV_COPY(w, dim), *dev_cs = DEV_COPY(cs, (size_t)pg.page_tokens * dims);
        const bool normed = i % 4 == 1, turned = i % 5 != 2;
        op_norm_args norm[2];
        op_rope_args rope[2];
        op_after after = {.what = AFTER_HEADS, .kv = &on_write};
        for (uint32_t k = 0; k < 2; k++) {
            norm[k] = (op_norm_args){.kind = NORM_RMS, .x = s.a[k].y, .xs = s.a[k].ys, .n_tokens = tokens, .n = dim, .groups = rows[k] / dim, .w = w,
                                     .eps = 1e-5f, .y = s.a[k].y, .ys = s.a[k].ys};
            rope[k] = (op_rope_args){.kind = i % 2 ? ROPE_HALF : ROPE_PAIRS, .dims = dims, .x = s.a[k].y, .xs = s.a[k].ys, .n_tokens = tokens,
                                     .n_heads = rows[k] / dim, .head_dim = dim, .pos = write.b.pos, .cs = cs};
            if (normed) op_table_ref.norm(&norm[k], 0, 1);
            if (turned) op_table_ref.rope(&rope[k], 0, 1);
            norm[k].x = norm[k].y = s.on[k].y, norm[k].w = dev_w;
            rope[k].x = s.on[k].y, rope[k].pos = on_write.b.pos, rope[k].cs = dev_cs;
            after.head_norm[k] = normed ? &norm[k] : NULL;
            after.rope[k] = turned ? &rope[k] : NULL;
        }
        write.k = s.a[1].y, write.ks = s.a[1].ys, write.v = s.a[2].y, write.vs = s.a[2].ys;
        op_table_ref.kv_write(&write, 0, 1);
        on_write.k = s.on[1].y, on_write.ks = s.on[1].ys, on_write.v = s.on[2].y, on_write.vs = s.on[2].ys;
        set_run(&s, &after);
        pages_check(&pages, &write);
        free(w), free(cs);
        dev_free_all();
    }
}

/* The leaves' sum with bias and residual, and then nothing, a norm, or a norm and its groups. */
static void rows_after_is_equal(void **state)
{
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 70; i++) {
        const uint32_t tokens = i % 10 == 9 ? 2 : 1, n = between(1, i % 5 ? 120 : 900), leaves = between(1, 8), groups = (n + GROUP_K - 1) / GROUP_K,
                       kind = i % 6 == 5 ? rnd(3) : 3 + i % 2;
        linear_set s;
        set_make(&s, 1, kind, &n, leaves, tokens);
        const size_t ss = n + rnd(3), ys = n + rnd(3);
        float *bias = reals(n), *rest = reals(ss * tokens), *w = reals(n);
        const float *part[8], *dev_part[8];
        for (uint32_t l = 0; l < leaves; l++) part[l] = s.a[0].y + l * s.a[0].yl, dev_part[l] = s.on[0].y + l * s.on[0].yl;
        output x = output_make(ss * tokens), y = output_make(ys * tokens), g = output_groups(groups, tokens);
        op_reduce_args sum = {.parts = part, .n_leaves = leaves, .ps = s.a[0].ys, .bias = i & 1 ? bias : NULL, .residual = i & 2 ? rest : NULL, .rs = ss,
                              .scale = i & 4 ? 0.22f : 1, .n_tokens = tokens, .n = n, .y = x.want, .ys = ss};
        op_norm_args norm = {.kind = i % 3, .x = x.want, .xs = ss, .n_tokens = tokens, .n = n, .groups = 1, .w = w, .eps = 1e-5f, .y = y.want, .ys = ys};
        op_quant_args quant = {.x = y.want, .xs = ys, .n_tokens = tokens, .n_leaves = 1, .leaf_k = &n, .y = (op_group *)(void *)g.want};
        op_table_ref.reduce(&sum, 0, 1);
        op_table_ref.norm(&norm, 0, 1);
        op_table_ref.quant(&quant, 0, 1);
        sum.parts = dev_part, sum.bias = sum.bias ? DEV_COPY(bias, n) : NULL, sum.residual = sum.residual ? DEV_COPY(rest, ss * tokens) : NULL;
        sum.y = x.dev, norm.x = x.dev, norm.w = DEV_COPY(w, n), norm.y = y.dev, quant.x = y.dev, quant.y = (op_group *)(void *)g.dev;
        op_after after = {.what = AFTER_ROWS, .sum = &sum, .norm = i % 4 ? &norm : NULL, .quant = i % 4 > 1 ? &quant : NULL};
        set_run(&s, &after);
        output_check(&x, "after: sum", tokens, n, ss);
        if (after.norm) output_check(&y, "after: norm", tokens, n, ys);
        else release(y.want), release(y.got);
        if (after.quant) check_groups(&g, groups, tokens);
        else release(g.want), release(g.got);
        free(bias), free(rest), free(w);
        dev_free_all();
    }
}

/* Nothing to do is no failure, and touches nothing. */
static void nothing_is_fine(void **state)
{
    (void)state;
    NEED_DEVICE();
    const op_weight none = {.dtype = DT_F32};
    dev_ok(cuda->linear(&(op_linear_args){.w = &none, .n_tokens = 1}, stream), "linear");
    dev_ok(cuda->quant(&(op_quant_args){.n_tokens = 0}, stream), "quant");
    dev_ok(cuda->norm(&(op_norm_args){.n_tokens = 0, .n = 4, .groups = 1}, stream), "norm");
    dev_ok(cuda->rope(&(op_rope_args){.kind = ROPE_HALF, .dims = 0, .n_tokens = 3, .n_heads = 1}, stream), "rope");
    dev_ok(cuda->attn(&(op_attn_args){.n_heads = 0}, stream), "attn");
    dev_ok(cuda->kv_write(&(op_kv_write_args){.b = {.n_tokens = 1}}, stream), "kv_write");
    dev_ok(cuda->experts(&(op_experts_args){.n_local = 0}, stream), "experts");
    dev_ok(cuda->mix(&(op_mix_args){.n_leaves = 0, .n_tokens = 1, .n = 1}, stream), "mix");
    dev_ok(cuda->reduce(&(op_reduce_args){.n_tokens = 0, .n = 1}, stream), "reduce");
    dev_ok(device_stream_sync(stream), "device_stream_sync");
    assert_int_not_equal(cuda->reduce(&(op_reduce_args){.n_tokens = 1, .n = 1, .n_leaves = 9}, stream), 0);
}

/* Weights and groups at addresses that the kernels could not read in one go are refused, and nothing is written. */
static void alignment_is_checked(void **state)
{
    (void)state;
    NEED_DEVICE();
    for (uint32_t i = 0; i < 4; i++) { /* as it should be; data, stride, groups that are off */
        op_run run = {.data = dev_alloc(4096), .block_stride = 272, .n_rows = 8, .n_k = 32};
        const op_weight w = {.dtype = DT_Q8, .n_rows = 8, .n_k = 32, .n_leaves = 1, .n_parts = 1, .runs = &run};
        uint8_t *groups = dev_alloc(4096);
        dev_ok(device_fill((void *)(uintptr_t)run.data, 0, 4096, stream), "device_fill");
        dev_ok(device_fill(groups, 0, 4096, stream), "device_fill");
        output o = output_make(8);
        if (i == 1) run.data += 8;
        if (i == 2) run.block_stride += 8;
        if (i == 3) groups += 4;
        op_linear_args a = {.w = &w, .n_tokens = 1, .y = o.dev, .ys = 8, .xq = (const op_group *)(void *)groups, .xqs = 1};
        int code = cuda->linear(&a, stream);
        dev_ok(device_stream_sync(stream), "device_stream_sync");
        assert_int_equal(code != 0, i != 0);
        dev_fetch(o.got, o.dev, o.n);
        for (uint32_t r = 0; r < 8; r++) assert_int_equal(as_bits(o.got[r]), i ? poison : 0);
        op_experts_args x = {.n_local = 1, .n_rows = 8, .n_k = 32, .n_max = 1, .types = 1u << DT_Q8, .xq = a.xq};
        if (i == 3) assert_int_not_equal(cuda->experts(&x, stream), 0);
        release(o.want), release(o.got);
        dev_free_all();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quant_is_equal),  cmocka_unit_test(linear_is_equal),       cmocka_unit_test(embed_is_equal),
        cmocka_unit_test(norm_is_equal),   cmocka_unit_test(norm_by_sums_is_equal), cmocka_unit_test(rope_is_equal),
        cmocka_unit_test(act_is_equal),    cmocka_unit_test(reduce_is_equal),       cmocka_unit_test(logits_clamp_gate_are_equal),
        cmocka_unit_test(rows_are_equal),  cmocka_unit_test(linears_are_equal),     cmocka_unit_test(act_after_is_equal),
        cmocka_unit_test(shares_are_put_beside),  cmocka_unit_test(linears_are_equal),     cmocka_unit_test(act_after_is_equal),
        cmocka_unit_test(heads_after_is_equal), cmocka_unit_test(rows_after_is_equal), cmocka_unit_test(nothing_is_fine),
        cmocka_unit_test(alignment_is_checked),
    };
    RUN_CUDA_TESTS(tests);
}
