/*
 * sampler.c - from a row of logits to an id. See sampler.h for the order of the steps.
 *
 * Candidates are two parallel arrays of the scratch: p[i] is the logit (later the probability) of id idx[i].
 * They start in id order without the masked ids (-inf). Filters only ever bring the best candidates to the
 * front, sorted, and shorten the arrays; nothing sorts all of a large vocabulary unless top-p really needs it.
 *
 * "Better" is a total order, higher logit first and then lower id, so results do not depend on the sort.
 * Sums run in double, in candidate order, so that a draw is the same on every run and for every batch.
 */
#include "sampler.h"
#include "arch.h"
#include "ops.h"

#include <float.h>
#include <math.h>

/* First guess of how many ids top-p keeps, and how it grows. */
enum { TOP_P_CHUNK = 128, TOP_P_GROWTH = 8 };
/* Below this distance from the maximum, exp of a float is 0. */
#define EXP_FLOOR (-104.0f)
/* Logits are floats, so sums and ratios this close to a bound count as having reached it. */
#define EDGE ((double)FLT_EPSILON)

tess_status sampler_check(const tess_seq_params *p, tess_error *err)
{
    if (!(p->temperature >= 0) || isinf(p->temperature))
        return ERR(err, TESS_E_ARG, "temperature is %g, want a finite number of at least 0",
                   (double)p->temperature);
    if (!(p->top_p >= 0 && p->top_p <= 1))
        return ERR(err, TESS_E_ARG, "top_p is %g, want a number from 0 to 1", (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return ERR(err, TESS_E_ARG, "min_p is %g, want a number from 0 to 1", (double)p->min_p);
    if (!(p->repeat_penalty > 0) || isinf(p->repeat_penalty))
        return ERR(err, TESS_E_ARG, "repeat_penalty is %g, want a finite number above 0",
                   (double)p->repeat_penalty);
    if (p->repeat_last_n < -1)
        return ERR(err, TESS_E_ARG, "repeat_last_n is %d, want -1 for all, or 0 or more",
                   (int)p->repeat_last_n);
    if (!isfinite(p->presence_penalty))
        return ERR(err, TESS_E_ARG, "presence_penalty is %g, want a finite number",
                   (double)p->presence_penalty);
    if (!isfinite(p->frequency_penalty))
        return ERR(err, TESS_E_ARG, "frequency_penalty is %g, want a finite number",
                   (double)p->frequency_penalty);
    return TESS_OK;
}

void sampler_free(sampler_work *w)
{
    if (!w->m) return;
    mem_free(w->m, w->p);
    mem_free(w->m, w->idx);
    mem_free(w->m, w->count);
    *w = (sampler_work){.m = w->m};
}

static tess_status work_grow(sampler_work *w, size_t n, tess_error *err)
{
    if (n <= w->cap) return TESS_OK;
    sampler_free(w);
    w->p = mem_calloc(w->m, n, sizeof *w->p);
    w->idx = mem_calloc(w->m, n, sizeof *w->idx);
    w->count = mem_calloc(w->m, n, sizeof *w->count);
    if (!w->p || !w->idx || !w->count) {
        sampler_free(w);
        return ERR(err, TESS_E_NOMEM, "out of memory for the scratch of a draw from %zu logits", n);
    }
    w->cap = n;
    return TESS_OK;
}

/* The best logit's lowest id; refuses rows that no draw can be made from. */
static tess_status find_best(const float *x, size_t n, size_t *best, tess_error *err)
{
    if (n == 0 || n > INT32_MAX) return ERR(err, TESS_E_ARG, "a draw needs 1 to 2147483647 logits, got %zu", n);
    size_t b = 0;
    for (size_t i = 0; i < n; i++) {
        if (!(x[i] < INFINITY)) /* also NaN */
            return ERR(err, TESS_E_NONFINITE, "logit %zu is %s", i, isnan(x[i]) ? "not a number" : "infinite");
        if (x[i] > x[b]) b = i;
    }
    if (x[b] == -INFINITY) return ERR(err, TESS_E_NONFINITE, "all %zu logits are -infinity", n);
    *best = b;
    return TESS_OK;
}

/* ln of the sum of exp over x, given its maximum. */
static double log_sum_exp(const float *x, size_t n, float max)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        float d = x[i] - max;
        if (d > EXP_FLOOR) sum += (double)expf(d);
    }
    return (double)max + log(sum);
}

/* ---- logprobs ------------------------------------------------------------------------------------- */

/* Of the leaves' sums relative to their maxima, ascending. */
static double join_sums(const best_leaf *const *leaf, uint32_t n_leaves, float one)
{
    float max = -INFINITY;
    double sum = 0;
    for (uint32_t i = 0; i < n_leaves; i++) max = MAX(max, leaf[i]->max);
    for (uint32_t i = 0; i < n_leaves; i++)
        if (leaf[i]->max > -INFINITY) sum += (double)leaf[i]->sum / (double)one * exp((double)leaf[i]->max - (double)max);
    return (double)max + log(sum);
}

/* ln of the sum of exp of all logits, summed by the leaves of a vocabulary of n as devices do it. All are below +inf. */
static double log_sum_row(const float *x, size_t n)
{
    const arch a = {.vocab_size = (uint32_t)n};
    const float one = n < BEST_VOCAB ? BEST_ONE : BEST_ONE / 64; /* an integer must hold the sum of a leaf */
    const op_table *ops = op_table_get(NULL);
    const best_leaf *leaf[BEST_LEAVES];
    best_leaf of[BEST_LEAVES];
    arch_axis axis;
    arch_axis_of(&a, AXIS_VOCAB, &axis);
    for (uint32_t l = 0; l < axis.n_leaves; l++) {
        const size_t lo = axis_elem(&axis, axis.leaf[l]), hi = axis_elem(&axis, axis.leaf[l + 1]);
        leaf[l] = &of[l];
        of[l].sum = ops->exp_sum(x + lo, hi - lo, one, &of[l].max);
    }
    return join_sums(leaf, axis.n_leaves, one);
}

/* ---- penalties ------------------------------------------------------------------------------------ */

static bool has_penalty(const tess_seq_params *p)
{
    return (p->repeat_penalty != 1 && p->repeat_last_n != 0) || p->presence_penalty != 0 ||
           p->frequency_penalty != 0;
}

static bool needs_work(const tess_seq_params *p) { return p->temperature > 0 || has_penalty(p); }

tess_status sampler_reserve(sampler_work *w, size_t n, const tess_seq_params *p, tess_error *err)
{
    return needs_work(p) ? work_grow(w, n, err) : TESS_OK;
}

/* Counts ids of h into count; false names the bad one in *bad. */
static bool count_ids(uint32_t *count, size_t n, const int32_t *h, size_t n_h, int32_t *bad)
{
    memset(count, 0, n * sizeof *count);
    for (size_t i = 0; i < n_h; i++) {
        if (h[i] < 0 || (size_t)h[i] >= n) return *bad = h[i], false;
        count[h[i]]++;
    }
    return true;
}

/* w->p holds all n logits in id order. Repetition looks at prompt and output, the other two at the output only.
 */
static tess_status apply_penalties(sampler_work *w, size_t n, const int32_t *h, size_t n_h, size_t n_prompt,
                                   const tess_seq_params *p, tess_error *err)
{
    int32_t bad = 0;
    if (p->repeat_penalty != 1 && p->repeat_last_n != 0) {
        size_t last = p->repeat_last_n < 0 ? n_h : MIN(n_h, (size_t)p->repeat_last_n);
        if (!count_ids(w->count, n, last ? h + (n_h - last) : NULL, last, &bad)) goto bad_id;
        for (size_t i = 0; i < n; i++)
            if (w->count[i]) w->p[i] = w->p[i] > 0 ? w->p[i] / p->repeat_penalty : w->p[i] * p->repeat_penalty;
    }
    if (p->presence_penalty != 0 || p->frequency_penalty != 0) {
        if (!count_ids(w->count, n, n_h > n_prompt ? h + n_prompt : NULL, n_h - n_prompt, &bad)) goto bad_id;
        for (size_t i = 0; i < n; i++)
            if (w->count[i]) w->p[i] -= p->presence_penalty + p->frequency_penalty * (float)w->count[i];
    }
    return TESS_OK;
bad_id:
    return ERR(err, TESS_E_ARG, "history holds id %d, but there are %zu logits", (int)bad, n);
}

/* ---- candidates ----------------------------------------------------------------------------------- */

typedef struct {
    float *p;
    uint32_t *idx;
    size_t n;
} cand;

static bool better(const cand *c, size_t i, size_t j)
{
    return c->p[i] != c->p[j] ? c->p[i] > c->p[j] : c->idx[i] < c->idx[j];
}
static void cand_swap(const cand *c, size_t i, size_t j)
{
    float p = c->p[i];
    uint32_t id = c->idx[i];
    c->p[i] = c->p[j], c->idx[i] = c->idx[j];
    c->p[j] = p, c->idx[j] = id;
}
/* The worst candidate is at the root. */
static void sift_down(const cand *c, size_t i, size_t n)
{
    for (size_t kid = 2 * i + 1; kid < n; kid = 2 * i + 1) {
        if (kid + 1 < n && better(c, kid, kid + 1)) kid++;
        if (!better(c, i, kid)) return;
        cand_swap(c, i, kid);
        i = kid;
    }
}
/* Brings the best k to the front, best first. O(n + swaps * log k), at worst O(n log k). */
static void select_best(const cand *c, size_t k)
{
    if (k == 0) return;
    for (size_t i = k / 2; i-- > 0;) sift_down(c, i, k);
    for (size_t i = k; i < c->n; i++)
        if (better(c, i, 0)) {
            cand_swap(c, i, 0);
            sift_down(c, 0, k);
        }
    for (size_t end = k - 1; end > 0; end--) {
        cand_swap(c, 0, end);
        sift_down(c, 0, end);
    }
}

/* Makes candidates [*sorted, want) sorted too. */
static void extend_sorted(const cand *c, size_t *sorted, size_t want)
{
    if (want <= *sorted) return;
    cand rest = {c->p + *sorted, c->idx + *sorted, c->n - *sorted};
    select_best(&rest, want - *sorted);
    *sorted = want;
}

static float cand_max(const cand *c)
{
    float max = c->p[0];
    for (size_t i = 1; i < c->n; i++) max = MAX(max, c->p[i]);
    return max;
}

/* Keeps an id when the ids before it have less than top_p of the mass; the best always stays. */
static void cut_top_p(cand *c, double top_p, size_t *sorted)
{
    float max = cand_max(c);
    double total = exp(log_sum_exp(c->p, c->n, max) - (double)max), before = 0;
    for (size_t i = 0, want = TOP_P_CHUNK; i < c->n; i++) {
        if (i == *sorted) {
            extend_sorted(c, sorted, MIN(c->n, want));
            want *= TOP_P_GROWTH;
        }
        if (i > 0 && !(before < (top_p - EDGE) * total)) {
            c->n = i;
            break;
        }
        before += (double)expf(c->p[i] - max);
    }
    *sorted = MIN(*sorted, c->n);
}

/* Keeps ids that have at least min_p of the best one's probability. */
static void cut_min_p(cand *c, double min_p, size_t *sorted)
{
    float max = cand_max(c);
    size_t kept = 0, kept_sorted = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (!((double)expf(c->p[i] - max) >= min_p - EDGE)) continue;
        c->p[kept] = c->p[i], c->idx[kept] = c->idx[i];
        kept++;
        if (i < *sorted) kept_sorted++;
    }
    c->n = kept;
    *sorted = kept_sorted;
}

/* Probabilities at the temperature in c->p; a division that overflows leaves the best one only. */
static void to_probabilities(cand *c, float temperature)
{
    float max = cand_max(c), min = c->p[0];
    for (size_t i = 0; i < c->n; i++) min = MIN(min, c->p[i]);
    if (temperature == 0 || !isfinite(MAX(fabsf(max), fabsf(min)) / temperature)) {
        select_best(c, 1);
        c->n = 1;
        c->p[0] = 1;
        return;
    }
    double sum = 0, t = (double)temperature;
    for (size_t i = 0; i < c->n; i++) {
        c->p[i] = (float)exp(((double)c->p[i] - (double)max) / t);
        sum += (double)c->p[i];
    }
    for (size_t i = 0; i < c->n; i++) c->p[i] = (float)((double)c->p[i] / sum);
}

/* What follows top-k. */
static void cut_rest(cand *c, size_t sorted, const tess_seq_params *p, bool sort_all)
{
    if (p->top_p < 1) cut_top_p(c, (double)p->top_p, &sorted);
    if (p->min_p > 0) cut_min_p(c, (double)p->min_p, &sorted);
    if (sort_all) extend_sorted(c, &sorted, c->n);
    to_probabilities(c, p->temperature);
}

/* Scratch filled with the candidates that pass every filter, p being probabilities. */
static tess_status filter(const float *logits, size_t n, const int32_t *h, size_t n_h, size_t n_prompt,
                          const tess_seq_params *p, sampler_work *w, bool sort_all, cand *out, tess_error *err)
{
    size_t best;
    if (n_prompt > n_h) return ERR(err, TESS_E_ARG, "n_prompt is %zu, but history has %zu ids", n_prompt, n_h);
    TRY(work_grow(w, n, err));
    memcpy(w->p, logits, n * sizeof *w->p);
    if (has_penalty(p)) TRY(apply_penalties(w, n, h, n_h, n_prompt, p, err));
    TRY(find_best(w->p, n, &best, err));
    if (p->temperature == 0) {
        *out = (cand){w->p, w->idx, 1};
        w->p[0] = 1, w->idx[0] = (uint32_t)best;
        return TESS_OK;
    }
    cand c = {w->p, w->idx, 0};
    for (size_t i = 0; i < n; i++)
        if (w->p[i] > -INFINITY) c.p[c.n] = w->p[i], c.idx[c.n++] = (uint32_t)i;
    size_t sorted = 0;
    if (p->top_k > 0 && (size_t)p->top_k < c.n) {
        extend_sorted(&c, &sorted, (size_t)p->top_k);
        c.n = sorted;
    }
    *out = c;
    cut_rest(out, sorted, p, sort_all);
    return TESS_OK;
}

/* Uniform in [0, 1), 53 bits: two rounds of a 64-bit finalizer over seed and step. */
static double uniform(uint64_t seed, uint64_t step)
{
    uint64_t x = seed;
    for (int round = 0; round < 2; round++) {
        x += 0x9e3779b97f4a7c15u * (step + 1);
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        x ^= x >> 31;
    }
    return (double)(x >> 11) * 0x1p-53;
}

static uint32_t pick(const cand *c, double u)
{
    double sum = 0, at = 0;
    for (size_t i = 0; i < c->n; i++) sum += (double)c->p[i];
    size_t last = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (c->p[i] > 0) last = i;
        at += (double)c->p[i];
        if (u * sum < at) return c->idx[i];
    }
    return c->idx[last]; /* rounding: u * sum reached the whole sum */
}

tess_status sampler_filter(const float *logits, size_t n, const int32_t *history, size_t n_history,
                           size_t n_prompt, const tess_seq_params *p, sampler_work *w, uint32_t *n_kept,
                           tess_error *err)
{
    cand c = {NULL, NULL, 0};
    size_t best;
    *n_kept = 0;
    TRY(sampler_check(p, err));
    TRY(find_best(logits, n, &best, err));
    TRY(filter(logits, n, history, n_history, n_prompt, p, w, true, &c, err));
    *n_kept = (uint32_t)c.n;
    return TESS_OK;
}

tess_status sampler_draw(const float *logits, size_t n, const int32_t *history, size_t n_history,
                         size_t n_prompt, const tess_seq_params *p, uint64_t step, sampler_work *w, int32_t *id,
                         float *logprob, tess_error *err)
{
    size_t best;
    *id = 0;
    if (logprob) *logprob = 0;
    TRY(sampler_check(p, err));
    TRY(find_best(logits, n, &best, err));
    size_t chosen = best;
    if (needs_work(p)) {
        cand c = {NULL, NULL, 0};
        TRY(filter(logits, n, history, n_history, n_prompt, p, w, false, &c, err));
        chosen = c.n == 1 ? c.idx[0] : pick(&c, uniform(p->seed, step));
    }
    if (logprob) *logprob = (float)((double)logits[chosen] - log_sum_row(logits, n));
    *id = (int32_t)chosen;
    return TESS_OK;
}

/* ---- draws from the best ids ---------------------------------------------------------------------- */

uint32_t sampler_best_k(const tess_seq_params *p)
{
    if (has_penalty(p)) return 0;
    if (p->temperature == 0) return 1;
    return p->top_k > 0 && p->top_k <= BEST_MOST ? (uint32_t)p->top_k : 0;
}

void sampler_best_join(const best_leaf *const *leaf, uint32_t n_leaves, uint32_t k, sampler_best *out)
{
    uint32_t next[BEST_LEAVES] = {0};
    *out = (sampler_best){.log_sum = join_sums(leaf, n_leaves, BEST_ONE)};
    for (uint32_t l = 0; l < n_leaves; l++) out->n_open += leaf[l]->n_open, out->n_bad += leaf[l]->n_bad;
    for (; out->n < MIN(k, out->n_open); out->n++) { /* of equal logits the first leaf's, whose ids are lower */
        const best_id *best = NULL;
        uint32_t of = 0;
        for (uint32_t l = 0; l < n_leaves; l++) {
            const best_id *c = (const best_id *)(const void *)(leaf[l] + 1) + next[l];
            if (next[l] < leaf[l]->n && (!best || c->x > best->x)) best = c, of = l;
        }
        if (!best) break;
        out->id[out->n] = *best;
        next[of]++;
    }
}

/* Where top-k cuts nothing, candidates are in order of id (filter). */
static void sort_by_id(const cand *c)
{
    for (size_t i = 1; i < c->n; i++)
        for (size_t j = i; j > 0 && c->idx[j] < c->idx[j - 1]; j--) cand_swap(c, j, j - 1);
}

tess_status sampler_draw_best(const sampler_best *b, const tess_seq_params *p, uint64_t step, sampler_work *w,
                              int32_t *id, float *logprob, tess_error *err)
{
    uint32_t at = 0;
    *id = 0;
    *logprob = 0;
    if (b->n == 0) return ERR(err, TESS_E_ARG, "a draw needs an id");
    if (p->temperature > 0) {
        TRY(work_grow(w, b->n, err));
        cand c = {w->p, w->idx, MIN(b->n, (uint32_t)p->top_k)};
        for (size_t i = 0; i < c.n; i++) c.p[i] = b->id[i].x, c.idx[i] = b->id[i].id;
        if (b->n_open <= (uint32_t)p->top_k) sort_by_id(&c);
        cut_rest(&c, b->n_open <= (uint32_t)p->top_k ? 0 : c.n, p, false);
        uint32_t chosen = c.n == 1 ? c.idx[0] : pick(&c, uniform(p->seed, step));
        while (b->id[at].id != chosen) at++;
    }
    *id = (int32_t)b->id[at].id;
    *logprob = (float)((double)b->id[at].x - b->log_sum);
    return TESS_OK;
}
