/* t_cuda_ops.c - operations of a CUDA device, but attention and experts, against ref.c: the same bits, nothing written outside. */
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
        cmocka_unit_test(nothing_is_fine), cmocka_unit_test(alignment_is_checked),
    };
    RUN_CUDA_TESTS(tests);
}
