/*
 * experts.c - the operations of mixtures of experts in plain C: the definitions, like ref.c, of what ops.h states.
 *
 * route, pairs and gather are used by every table: a router has few numbers, and choosing is comparing. The choice must not depend
 * on how work is cut, so equal scores go to the lower id, and a NaN loses against every number.
 */
#include <math.h>

#include "cpu.h"

static float lanes8_total(const float s[8]) { return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])); }

/* p = softmax of x, n of them; p may be x. */
static void softmax(const float *x, uint32_t n, float *p)
{
    float m = -INFINITY, s[8] = {0};
    for (uint32_t i = 0; i < n; i++) m = x[i] > m ? x[i] : m;
    for (uint32_t i = 0; i < n; i++) {
        p[i] = op_exp(x[i] - m);
        s[i % 8] += p[i];
    }
    float l = lanes8_total(s);
    for (uint32_t i = 0; i < n; i++) p[i] = p[i] / l;
}

/* The greatest of v whose flag in `out` is not set; its place. There is one. */
static uint32_t greatest(const float *v, const bool *out, uint32_t n)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++)
        if (!out[i] && (best == UINT32_MAX || v[i] > v[best] || (v[best] != v[best] && v[i] == v[i]))) best = i;
    return best;
}

static float group_score(const op_route_args *a, const float *v, uint32_t n)
{
    bool out[ARCH_MAX_EXPERTS] = {false};
    uint32_t first = greatest(v, out, n);
    if (a->kind != ROUTER_SIGMOID || n == 1) return v[first];
    out[first] = true;
    return v[first] + v[greatest(v, out, n)];
}

/* Sets the flags of all experts whose group is not among the best. */
static void drop_groups(const op_route_args *a, const float *v, bool *out)
{
    float score[ARCH_MAX_EXPERTS];
    bool taken[ARCH_MAX_EXPERTS] = {false};
    uint32_t n = a->n_experts / a->n_groups;
    for (uint32_t g = 0; g < a->n_groups; g++) score[g] = group_score(a, v + (size_t)g * n, n);
    for (uint32_t i = 0; i < a->groups_used; i++) taken[greatest(score, taken, a->n_groups)] = true;
    for (uint32_t i = 0; i < a->n_experts; i++) out[i] = !taken[i / n];
}

static void route_row(const op_route_args *a, const float *x, uint32_t *ids, float *w)
{
    float score[ARCH_MAX_EXPERTS], choice[ARCH_MAX_EXPERTS];
    bool out[ARCH_MAX_EXPERTS] = {false}, chosen[ARCH_MAX_EXPERTS] = {false};
    if (a->kind == ROUTER_SOFTMAX) softmax(x, a->n_experts, score);
    for (uint32_t i = 0; i < a->n_experts; i++) {
        if (a->kind != ROUTER_SOFTMAX) score[i] = a->kind == ROUTER_SIGMOID ? 1.0f / (1.0f + op_exp(-x[i])) : x[i];
        choice[i] = a->correction ? score[i] + a->correction[i] : score[i];
    }
    if (a->n_groups > 1) drop_groups(a, choice, out);
    for (uint32_t j = 0; j < a->n_used; j++) {
        uint32_t i = greatest(choice, out, a->n_experts);
        out[i] = chosen[i] = true;
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n_experts; i++)
        if (chosen[i]) ids[n] = i, w[n++] = score[i];
    if (a->kind == ROUTER_CHOSEN) softmax(w, n, w);
    float sum = 0.0f;
    for (uint32_t j = 0; j < n; j++) sum += w[j];
    if (a->kind == ROUTER_SIGMOID) sum += 1e-20f;
    for (uint32_t j = 0; j < n; j++) w[j] = (a->norm ? w[j] / sum : w[j]) * a->scale;
}

void ref_route(const op_route_args *a, uint32_t thread, uint32_t n_threads)
{
    uint64_t lo, hi;
    pool_share(a->n_tokens, 1, thread, n_threads, &lo, &hi);
    for (size_t t = lo; t < hi; t++) route_row(a, a->x + t * a->xs, a->ids + t * a->is, a->w + t * a->ws);
}

void ref_pairs(const op_pairs_args *a, uint32_t thread, uint32_t n_threads)
{
    UNUSED(n_threads);
    if (thread != 0) return; /* it is small */
    memset(a->first, 0, (a->n_local + 1) * sizeof *a->first);
    for (uint32_t i = 0; i < a->n_tokens; i++)
        for (uint32_t j = 0; j < a->n_used; j++)
            if (a->ids[i * a->is + j] - a->lo < a->n_local) a->first[a->ids[i * a->is + j] - a->lo + 1]++;
    for (uint32_t e = 0; e < a->n_local; e++) a->first[e + 1] += a->first[e];
    for (uint32_t i = 0; i < a->n_tokens; i++)
        for (uint32_t j = 0; j < a->n_used; j++) {
            uint32_t e = a->ids[i * a->is + j] - a->lo, *at = &a->pair[(size_t)i * a->n_used + j];
            *at = e < a->n_local ? a->first[e]++ : OP_NO_PAIR;
            if (*at != OP_NO_PAIR) a->row[*at] = i;
        }
    for (uint32_t e = a->n_local; e > 0; e--) a->first[e] = a->first[e - 1]; /* they were moved on to the next one's start */
    a->first[0] = 0;
}

void experts_by(void (*linear)(const op_linear_args *, uint32_t, uint32_t), const op_experts_args *a, uint32_t thread, uint32_t n_threads)
{
    for (uint32_t e = 0; e < a->n_local; e++) {
        uint32_t p = a->first[e];
        const op_run run = {.data = a->w[e].data, .block_stride = a->w[e].block_stride, .n_rows = a->n_rows, .n_k = a->n_k};
        const op_weight w = {.dtype = a->w[e].dtype, .n_rows = a->n_rows, .n_k = a->n_k, .n_leaves = 1, .n_parts = 1, .runs = &run};
        op_linear_args l = {.w = &w, .bias = a->w[e].bias, .x = a->x + p * a->xs, .xs = a->xs, .n_tokens = a->first[e + 1] - p,
                            .y = a->y + p * a->ys, .ys = a->ys};
        if (a->xq && dtype_is_quant(w.dtype)) l.xq = a->xq + p, l.xqs = a->xqs;
        if (l.n_tokens) linear(&l, thread, n_threads);
    }
}

void ref_gather(const op_gather_args *a, uint32_t thread, uint32_t n_threads)
{
    uint64_t lo, hi;
    pool_share(a->count ? *a->count : a->n, 1, thread, n_threads, &lo, &hi);
    for (size_t i = lo; i < hi; i++) memcpy(a->y + i * a->ys, a->x + a->rows[i] * a->xs, a->cols * sizeof *a->y);
}

void ref_mix(const op_mix_args *a, uint32_t thread, uint32_t n_threads)
{
    cell_walk walk = cell_walk_start(a->n_tokens, a->n, thread, n_threads);
    for (uint32_t t, c0, c1; cell_walk_next(&walk, &t, &c0, &c1);)
        for (uint32_t l = 0; l < a->n_leaves; l++)
            for (uint32_t i = c0; i < c1; i++) {
                float s = 0.0f;
                for (uint32_t j = 0; j < a->n_used; j++) {
                    uint32_t e = a->ids[t * a->is + j];
                    if (e >= a->leaf[l] && e < a->leaf[l + 1])
                        s = fmaf(a->w[t * a->ws + j], a->x[a->pair[t * a->ps + j] * a->xs + i], s);
                }
                a->y[l * a->yl + t * a->ys + i] = s;
            }
}

void ref_gate(const op_switch_args *a, uint32_t thread, uint32_t n_threads)
{
    cell_walk walk = cell_walk_start(a->n_tokens, a->n, thread, n_threads);
    for (uint32_t t, c0, c1; cell_walk_next(&walk, &t, &c0, &c1);) {
        float g = 1.0f / (1.0f + op_exp(-a->g[t * a->gs]));
        for (uint32_t i = c0; i < c1; i++) a->y[t * a->ys + i] = a->x[t * a->xs + i] * g;
    }
}
