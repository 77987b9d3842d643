/*
 * ops.h - the contract of every operation of a program: shapes, dtypes, aliasing, rounding, order of summation.
 *
 * All activations are f32, row-major [token][column] with a stride in floats. An operation is called by every thread of
 * a rank's team with (thread, n_threads), works on its own share, and writes nothing else; the caller puts a barrier
 * between operations. Bits of the result depend neither on the share, nor on the number of rows (tokens) in the call,
 * nor on the instruction set: cpu/ref.c, compiled on any machine, is the definition, and every other kernel equals it
 * bit for bit. -ffp-contract=off: a fused multiply-add happens only where it is written here ("fma").
 *
 * Order of sums
 *   dot        one chain per leaf: acc = 0; for k ascending: acc = fma(w[k], x[k], acc). bf16/f16 weights are widened exactly.
 *   groups     q8 and q4 weights times quantized activations, one chain per leaf: acc = 0; for groups ascending: dot = the exact
 *              integer sum of w.q * x.q over the group; acc = fma((float)dot, w.d * x.d, acc); q4 then acc = fma(w.m, x.s, acc).
 *   lanes8     sums that are not weights times activations (norms, softmax denominators): 8 accumulators, element i goes to
 *              accumulator i % 8 in ascending i (softmax: i = position in the chunk), then ((0+4)+(2+6)) + ((1+5)+(3+7)).
 *   tree       leaves of a split K axis: tree(lo, hi) = leaf[lo] when hi - lo = 1, else with h = the largest power of two
 *              < hi - lo: tree(lo, lo + h) + tree(lo + h, hi).
 *   exp        op_exp below, one polynomial for all (own, no libm): cpu/ref.c states it.
 */
#ifndef TESS_OPS_H
#define TESS_OPS_H
#include "arch.h"
#include "dtype.h"

/* ---- weights as one rank sees them ---- */
typedef struct {
    const uint8_t *data;   /* LAYOUT_TILE8; first row block of this run */
    uint64_t block_stride; /* bytes from one row block to the next */
    uint32_t row_skip;     /* 0..7: rows of the first block that do not belong to the run */
    uint32_t row0, n_rows; /* output rows of the rank: [row0, row0 + n_rows) */
    uint32_t k0, n_k;      /* input columns of the rank: [k0, k0 + n_k); the run starts at its leaf's first element */
} op_run;
typedef struct {
    uint32_t dtype;
    uint32_t n_rows, n_k;  /* of this rank; n_rows may be 0 */
    uint32_t n_leaves;     /* leaves of K that this rank holds; 1 when K is not split; 0 when the rank has none */
    uint32_t n_parts;      /* row parts, ascending by row0, covering [0, n_rows) */
    const op_run *runs;    /* [n_parts][n_leaves]: row parts, and in each the leaves in ascending K. The leaves of a part
                            * have the same row_skip, row0 and n_rows */
} op_weight;

/* ---- quantized activations ---- */
/* A group of up to 32 columns of one row. amax = the greatest |x|. When a value is not finite: d = s = NaN, all q = 0. When
 * amax < 2^-100: all 0. Else d = amax / 127; q = x * (127 / amax), rounded to nearest even; s = d * (float)(sum of q). So q is
 * in [-127, 127]; a q8 weight may be -128 (only imported ones are): kernels take |w| as unsigned. */
typedef struct { float d, s; int8_t q[GROUP_K]; } op_group;
/* x: [n_tokens] rows of n_leaves leaves of leaf_k[] columns each, stride xs. Groups start anew at each leaf; a short last group
 * is filled with zeros. Group g (counted over all leaves) of token t to y[g * n_tokens + t]. Threads take (token, group) pairs.
 * count: as in "mixtures of experts". */
typedef struct {
    const float *x; size_t xs; uint32_t n_tokens, n_leaves; const uint32_t *leaf_k; op_group *y; const uint32_t *count;
} op_quant_args;

/* y[leaf][t][row] = w row times x[t] over each leaf; + bias[row] when bias is not NULL (then n_leaves is 1).
 * x: [n_tokens][n_k] stride xs; y: leaf stride yl, token stride ys. Threads take shares of rows. y must not overlap x.
 * row_hi not 0: only rows [row_lo, row_hi) are computed and written. sum_leaves: y[t][row] is the tree over the leaves.
 * q8 and q4 weights: with xq (the groups of x, cut at the weight's leaves, group g of token t at xq[g * xqs + t]; x is not
 * read) in the order "groups"; without it as "dot", w being d * q, or d * q + m (one rounding). */
typedef struct {
    const op_weight *w; const float *bias; const float *x; size_t xs; uint32_t n_tokens; float *y; size_t ys, yl;
    const op_group *xq; size_t xqs;
    uint32_t row_lo, row_hi;
    bool sum_leaves;
} op_linear_args;

/* y[t] = x[t] * scale of the row of table `ids[t]`: y[t][i] = widen(table[ids[t]][i]) * scale. The table is an op_weight with
 * n_leaves 1 whose row r belongs to this rank when row_lo <= r < row_hi (global); rows of others give zeros. */
typedef struct {
    const op_weight *w; uint32_t row_lo, row_hi; const int32_t *ids; uint32_t n_tokens, n; float scale; float *y; size_t ys;
} op_embed_args;

/* NORM_RMS: s = lanes8(x*x) (fma chains: acc = fma(x, x, acc)); r = 1 / sqrtf(s / n + eps); y = (x * r) * w.
 * NORM_RMS_PLUS1: y = (x * r) * (1 + w). NORM_LAYER: mean = lanes8(x) / n; d = x - mean; var = lanes8 fma(d, d) / n;
 * y = (d * (1 / sqrtf(var + eps))) * w + b (b may be NULL). Division and square root are correctly rounded.
 * groups: a row of n * groups columns is normalized in `groups` groups of n (q/k norm), group g by the weights w + g * gs and
 * b + g * gs (gs 0: shared).
 * y may equal x. Threads take rows. */
typedef struct {
    uint32_t kind; const float *x; size_t xs; uint32_t n_tokens, n, groups; const float *w, *b; size_t gs; float eps; float *y; size_t ys;
} op_norm_args;

/* A norm over all heads of q or k, which several ranks hold (ranks gather each other's sums, so no bit depends on the cut):
 * head_sums: y[t][h] = lanes8(x*x) (fma chains) over the head_dim columns of head h = 0..n_heads-1 of the rank.
 * norm_sums: s = the sums of all heads, each head once, added in ascending head order from the first; r = 1 / sqrtf(s / n + eps),
 * n = columns of all heads; y = (x * r) * w on the rank's `cols` columns, w pointing at the first of them. y may equal x.
 * parts: runs of heads that cover all heads in ascending order; s[t * ss + i] is the sum of head i of the run. */
typedef struct { const float *x; size_t xs; uint32_t n_tokens, n_heads, head_dim; float *y; size_t ys; } op_head_sums_args;
typedef struct { const float *s; size_t ss; uint32_t n; } op_sum_part;
typedef struct {
    const float *x; size_t xs; uint32_t n_tokens, cols, n; const op_sum_part *parts; uint32_t n_parts; const float *w; float eps; float *y; size_t ys;
} op_norm_sums_args;

/* In place on x [token][n_heads][head_dim]; cs: table [pos][dims/2][2] of cos, sin (f32). dims <= head_dim.
 * ROPE_HALF: a = x[i], b = x[i + dims/2]; ROPE_PAIRS: a = x[2i], b = x[2i+1].
 * a' = fma(a, c, -(b * s)); b' = fma(a, s, b * c). Threads take (token, head) pairs. */
typedef struct {
    uint32_t kind, dims; float *x; size_t xs; uint32_t n_tokens, n_heads, head_dim; const uint32_t *pos; const float *cs;
} op_rope_args;

/* ---- KV pages ----
 * A page holds page_tokens tokens of all layers of a group for one rank's kv heads. For one layer and head, at
 * base + layer_off + head * head_bytes:
 *   K  at 0:      f32/f16 [page_tokens / 8][k_dim][8]     (8 positions in lanes)
 *   V  at v_off:  f32/f16 [page_tokens][v_dim]
 *   int8: K as [page_tokens / 8][ceil(k_dim / 4)][8][4], V alike to f16; at s_off f16 ks[page_tokens], vs[page_tokens]: one
 *   scale for each position of K and of V, value = scale * q
 * Slots that were not written yet are never multiplied: a masked position contributes exactly nothing. */
typedef struct {
    uint32_t dtype;        /* DT_F32, DT_F16, DT_I8 */
    uint32_t page_tokens;  /* 16, 32, 64 */
    uint32_t n_kv_heads, k_dim, v_dim;
    uint64_t layer_off, head_bytes, v_off, s_off;
} op_kv;
typedef struct { uint32_t n_tokens; const uint32_t *pos; const uint32_t *seq; uint8_t *const *const *tables; } op_batch;
/* tables[seq[t]][pos / page_tokens] = base of the page of position pos of row t's sequence. */

/* K bias kept out of int8 pages. A bias is the same at every position but for rope, and where it is large (qwen2) it would take
 * most of the codes' range. Of a kv head are kept apart: the bias of the dimensions that rope leaves alone (flat), and of up to
 * KBIAS_PAIRS rotary pairs. With c, s of pair i at position j, what K holds of the bias of a pair (ba, bb) is
 *   ra = fma(ba, c, -(bb * s)), rb = fma(ba, s, bb * c)
 * kv_write subtracts it and attn adds what the query makes of it. */
enum { KBIAS_PAIRS = 8, KBIAS_DIM = 4096 /* greatest k_dim */ };
typedef struct { uint32_t i, da, db; float ba, bb; } op_kbias_pair; /* pair of the tables, its two dimensions, their bias */
typedef struct { const float *flat; uint32_t n_pairs; op_kbias_pair pair[KBIAS_PAIRS]; } op_kbias_head; /* flat: [k_dim], 0 in rotated ones; or NULL */
typedef struct {
    const op_kbias_head *head; /* of the rank's kv heads */
    uint32_t n_cs;             /* pairs that rope turns */
    const float *const *cs;    /* of each sequence, as op_rope_args.cs; */
    const float *const *lanes; /* the same values as [pos / 8][n_cs][2][8], up to a multiple of 16 positions */
} op_kbias;

/* Writes K [t][n_kv_heads][k_dim] and V into the pages of each row's position, rounded to nearest even for f16. int8, for each
 * row of K and of V: amax = the greatest |x|; not finite: scale = NaN, all q = 0. Else scale = amax / 127, rounded to f16 and
 * at most 65504; q = x * (1 / scale), at least -127, at most 127, rounded to nearest even; scale 0: all q = 0. k or v NULL: it is not
 * written. kbias (int8 only): x = k - flat of every dimension, then x = x - ra, x - rb of the pairs. */
typedef struct { op_kv kv; op_batch b; const float *k, *v; size_t ks, vs; const op_kbias *kbias; } op_kv_write_args;

/* out[t][h][v_dim] = softmax(scale * q.k) v over the positions lo(t)..pos[t], lo = window ? max(0, pos + 1 - window) : 0.
 * The query head h of the rank reads local kv head (q_head0 + h) / group - kv_head0.
 * Positions are walked in chunks of 256 aligned at multiples of 256, only the part in [lo, pos] of each:
 *   s[j] = dot(q, k_j) chain ascending d (int8: of the codes of k_j; then s = s * ks[j], with kbias s = fma(s, ks[j], e[j])); s = s * scale; softcap > 0: s = cap * tanh(s / cap) (op_tanh);
 *   bias not NULL: s = s + (bias[h][j] - bias[h][pos[t]]); bias: of the rank's heads, up to a multiple of 256 positions each;
 *   m = max s; p[j] = exp(s[j] - m); l = lanes8(p) with lane (position % 8), absent positions add nothing;
 *   o[d] = chain over ascending positions: fma(p[j], v_j[d], o[d]), starting from 0 (int8: p[j] * vs[j] and the codes of v_j).
 *   kbias: e[j] = chain ascending d of fma(q[d], flat[d], .), continued over the pairs in their order by fma(c, A, .), fma(s, B, .), c and s at
 *   position j, A = fma(q[da], ba, q[db] * bb), B = fma(q[db], ba, -(q[da] * bb));
 * Merge in ascending chunks, starting from the first chunk's (M, L, O) = (m, l, o):
 *   M' = max(M, m); a = exp(M - M'); b = exp(m - M'); L' = fma(L, a, l * b); O'[d] = fma(O[d], a, o[d] * b).
 * out = (O * c) / L (division), c = 1. sinks: not NULL: after the last chunk M' = max(M, sink[h]); c = exp(M - M');
 * L' = fma(L, c, exp(sink[h] - M')).
 * Rows of one sequence are consecutive, in ascending positions. Pages wholly before every row's window may be gone.
 * Threads take (row, kv head) pairs; with few rows the chunks are split over the threads as well, when barrier is not NULL and
 * scratch holds op_attn_scratch() floats (fewer: not split). The barrier is called by all threads of the operation or by none. */
typedef struct {
    op_kv kv; op_batch b; const float *q; size_t qs; uint32_t n_heads, q_head0, group, kv_head0;
    float scale, softcap; uint32_t window; const float *sinks; const float *bias; size_t bias_stride; const op_kbias *kbias; float *out; size_t os;
    float *scratch; size_t scratch_floats; void (*barrier)(void *user, uint32_t thread); void *barrier_user;
    uint32_t max_pos; /* for devices: positions of the rows are less; 0: not known, chunks are not split */
    bool fast;        /* for devices: f16 and int8 pages may go through tensor cores, as cuda/attn_mma.cu has it: near
                       * this text, not its bits; those depend on a row, its pages and shape, not on the call */
    bool single;      /* for devices: no two rows are of one sequence */
} op_attn_args;

/* y = act(g) * u (gated, u not NULL) or act(g). silu(x) = x / (1 + exp(-x)); gelu, gelu_tanh, relu, relu2 as in ref.c.
 * swiglu_clamp: g = min(g, limit); u = u limited to [-limit, limit]; y = (u + 1) * (g / (1 + exp(-(alpha * g)))).
 * y may equal g or u. Threads take shares of columns times rows. */
typedef struct { uint32_t act; float alpha, limit; const float *g, *u; size_t gs, us; uint32_t n_tokens, n; float *y; size_t ys;
                 const uint32_t *count; /* as in "mixtures of experts" */ } op_act_args;

/* y[t][i] = tree over leaves of parts[l][t][i] (all L leaves) + bias[i] (if any); then * scale (if != 1); then x + that
 * when residual is not NULL. parts: one pointer per leaf, token stride ps. y may equal residual.
 * share not 0 (devices only): parts[s] holds columns [s * share, (s + 1) * share) of what was summed already, and y is those beside each
 * other; n_leaves counts them; no bias, no residual, scale 1. */
typedef struct {
    const float *const *parts; uint32_t n_leaves; size_t ps; const float *bias; const float *residual; size_t rs;
    float scale; uint32_t n_tokens, n; float *y; size_t ys; uint32_t share;
} op_reduce_args;

/* y = x * scale; cap > 0: y = cap * tanh(y / cap). In place allowed. */
typedef struct { const float *x; size_t xs; float scale, cap; uint32_t n_tokens, n; float *y; size_t ys; } op_logits_args;

/* In place: x = -limit where x < -limit, limit where x > limit. */
typedef struct { float *x; size_t xs; uint32_t n_tokens, n; float limit; } op_clamp_args;

/* ---- mixtures of experts ----
 * A pair is a row and one of its n_used chosen experts; pairs of a rank's experts are numbered by expert, then by row. How
 * many there are is a result of the router. Operations on pairs take it as *count, n or n_tokens being the most it can be: only the
 * first *count rows are computed, and the rest of y is not defined. count NULL: exactly n (n_tokens) rows. */
#define OP_NO_PAIR UINT32_MAX

/* Chooses n_used of n_experts for each row and weighs them; ids ascend. x: router logits.
 *   scores   ROUTER_SOFTMAX: p = exp(x - max), l = lanes8(p), p / l. ROUTER_SIGMOID: 1 / (1 + exp(-x)). ROUTER_CHOSEN: x.
 *   choice   of the greatest score (+ correction, if any); equal ones: the lower id. n_groups > 1: only among the groups_used
 *            groups (of consecutive ids) with the greatest group score: its greatest, or (sigmoid) the sum of its two greatest.
 *   weight   the score without correction; ROUTER_CHOSEN: softmax over the chosen, in order of ids, as above; norm: divided by the
 *            sum of the chosen (ascending ids; sigmoid: + 1e-20); then * scale. Threads take rows. */
typedef struct {
    uint32_t kind, n_experts, n_used, n_groups, groups_used; bool norm; float scale; const float *correction;
    const float *x; size_t xs; uint32_t n_tokens; uint32_t *ids; size_t is; float *w; size_t ws;
} op_route_args;

/* The pairs of the experts lo..lo+n_local-1 that the rank has: pairs first[e]..first[e + 1] - 1 are those of its expert e, n_local + 1
 * numbers; row[p] is the row of pair p; pair[t * n_used + j] the pair of choice j of row t, OP_NO_PAIR when the expert is
 * another rank's. Computed by thread 0. */
typedef struct {
    const uint32_t *ids; size_t is; uint32_t n_tokens, n_used, lo, n_local; uint32_t *first, *row, *pair;
} op_pairs_args;

/* y[i] = x[rows[i]], i < n. Threads take rows. */
typedef struct {
    const float *x; size_t xs; const uint32_t *rows; uint32_t n, cols; float *y; size_t ys; const uint32_t *count;
} op_gather_args;

/* A linear of each expert on its pairs: y[p] = w[e] row times x[p] + bias, first[e] <= p < first[e + 1], as op_linear_args has it; with
 * xq the experts whose weights are q8 or q4 read group g of pair p at xq[g * xqs + p]. w: [n_local], n_rows x n_k each, whole
 * and in TILE8; in device memory for a device, which therefore takes their types from `types`: bits 1 << dtype of all that occur
 * (more do no harm; the CPU does not read it). n_max: most pairs that there can be. */
typedef struct { const uint8_t *data; uint64_t block_stride; const float *bias; uint32_t dtype; } op_expert;
typedef struct {
    const op_expert *w; uint32_t types, n_local, n_rows, n_k, n_max; const uint32_t *first; const float *x; size_t xs;
    const op_group *xq; size_t xqs; float *y; size_t ys;
} op_experts_args;

/* y[l][t] = over the choices j of row t, ascending, whose expert lies in leaf l: acc = 0; acc = fma(w[t][j], x[pair[t][j]], acc).
 * leaf[0..n_leaves]: bounds of the rank's leaves in expert ids. y: leaf stride yl. */
typedef struct {
    const float *x; size_t xs; const uint32_t *ids, *pair; const float *w; size_t is, ps, ws; uint32_t n_used;
    const uint32_t *leaf; uint32_t n_leaves, n_tokens, n; float *y; size_t ys, yl;
} op_mix_args;

/* y[t][i] = x[t][i] * (1 / (1 + exp(-g[t]))). In place allowed. */
typedef struct { const float *x, *g; size_t xs, gs; uint32_t n_tokens, n; float *y; size_t ys; } op_switch_args;

/* For the log of a sum over a row (best_ops.h): *max = the maximum of x[0..n), none of which is NaN or +inf, and returned the sum of
 * exp(x[i] - *max) * one, each term cut to an integer, so in any order. one: a power of two from 2^16 to 2^40; n * one < 2^64.
 * 0 when *max is -inf. */
typedef uint64_t op_exp_sum(const float *x, size_t n, float one, float *max);

typedef struct op_table {
    const char *name; /* "ref", "avx2", "avxvnni", "avx512", "avx512vnni" */
    void (*quant)(const op_quant_args *a, uint32_t thread, uint32_t n_threads);
    void (*linear)(const op_linear_args *a, uint32_t thread, uint32_t n_threads);
    void (*embed)(const op_embed_args *a, uint32_t thread, uint32_t n_threads);
    void (*norm)(const op_norm_args *a, uint32_t thread, uint32_t n_threads);
    void (*head_sums)(const op_head_sums_args *a, uint32_t thread, uint32_t n_threads);
    void (*norm_sums)(const op_norm_sums_args *a, uint32_t thread, uint32_t n_threads);
    void (*rope)(const op_rope_args *a, uint32_t thread, uint32_t n_threads);
    void (*kv_write)(const op_kv_write_args *a, uint32_t thread, uint32_t n_threads);
    void (*attn)(const op_attn_args *a, uint32_t thread, uint32_t n_threads);
    void (*act)(const op_act_args *a, uint32_t thread, uint32_t n_threads);
    void (*reduce)(const op_reduce_args *a, uint32_t thread, uint32_t n_threads);
    void (*logits)(const op_logits_args *a, uint32_t thread, uint32_t n_threads);
    void (*clamp)(const op_clamp_args *a, uint32_t thread, uint32_t n_threads);
    void (*route)(const op_route_args *a, uint32_t thread, uint32_t n_threads);
    void (*pairs)(const op_pairs_args *a, uint32_t thread, uint32_t n_threads);
    void (*gather)(const op_gather_args *a, uint32_t thread, uint32_t n_threads);
    void (*experts)(const op_experts_args *a, uint32_t thread, uint32_t n_threads);
    void (*mix)(const op_mix_args *a, uint32_t thread, uint32_t n_threads);
    void (*gate)(const op_switch_args *a, uint32_t thread, uint32_t n_threads);
    op_exp_sum *exp_sum;
} op_table;
extern const op_table op_table_ref;
/* x86-64; the others differ from AVX2's in linear, experts and (AVX-512) attn. */
extern const op_table op_table_avx2, op_table_avxvnni, op_table_avx512, op_table_avx512vnni;
/* The best table of this CPU; name NULL or "auto", or one of the names above; NULL when this CPU lacks it. */
const op_table *op_table_get(const char *name);
/* Floats of scratch that attn needs for n_tokens rows of n_heads heads, positions < max_pos, n_threads threads. */
size_t op_attn_scratch(uint32_t n_tokens, uint32_t n_heads, uint32_t v_dim, uint32_t max_pos, uint32_t n_threads);
/* Fills v_off, s_off and head_bytes (64-byte multiples) from dtype, page_tokens, k_dim, v_dim. */
void op_kv_layout(op_kv *kv);
float op_exp(float x); /* the one exponential; monotone, exp(0) = 1, underflows to 0, max error 2 ulp */
float op_tanh(float x);
#endif
