/*
 * inspect_plan.c - what each of M ranks would hold: whole leaves [L r / M, L (r + 1) / M) of every axis, and
 * the kv heads that its query heads read. Above the number of leaves some ranks hold nothing of an axis.
 */
#include <inttypes.h>

#include "inspect.h"

static void range_of(const arch_axis *x, uint32_t ranks, uint32_t r, uint64_t *lo, uint64_t *hi)
{
    *lo = axis_elem(x, x->leaf[x->n_leaves * r / ranks]);
    *hi = axis_elem(x, x->leaf[x->n_leaves * (r + 1) / ranks]);
}

/* Range of an axis of the file that a rank needs, in elements. */
static void need_of(const inspect *s, const arch_axis *x, const plan_rank *k, uint32_t ranks, uint32_t r,
                    uint64_t *lo, uint64_t *hi)
{
    range_of(x, ranks, r, lo, hi);
    if (x->kind != AXIS_KV_HEADS) return;
    *lo = MIN(x->dim, k->kv_lo * x->unit);
    *hi = MIN(x->dim, k->kv_hi * x->unit);
    UNUSED(s);
}

/* Bytes of columns or rows [lo, hi) of t, by proportion of the whole leaves. */
static void add_tensor(const inspect *s, const ct_tensor *t, uint64_t lo, uint64_t hi, plan_rank *out)
{
    bool columns = t->split_dim + 1 == t->rank;
    uint64_t bytes = inspect_logical(s, t), dim = t->split_dim == 255 ? 1 : t->shape[t->split_dim];
    out->weight_bytes += (uint64_t)((double)bytes / (double)dim * (double)(hi - lo));
    for (uint32_t p = 0; p < t->n_pieces; p++) {
        const ct_piece *q = &s->i->pieces[t->first_piece + p];
        for (uint32_t c = 0; c < q->n_chunks; c++) {
            uint64_t from = columns ? q->k0 : q->row0 + (uint64_t)c * q->rows_per_chunk;
            uint64_t to = columns ? q->k0 + q->n_k : MIN(q->row0 + q->n_rows, from + q->rows_per_chunk);
            if (t->split_dim == 255 || (from < hi && lo < to))
                out->read_bytes += s->i->chunks[q->first_chunk + c].csize;
        }
    }
}

static uint64_t other_holders(uint64_t head, const arch *a, const arch_axis *q, uint32_t ranks, uint32_t r)
{
    uint64_t group = a->n_heads / a->n_kv_heads, n = 0, lo, hi;
    for (uint32_t o = 0; o < ranks; o++) {
        range_of(q, ranks, o, &lo, &hi);
        lo /= a->head_dim;
        hi /= a->head_dim;
        if (o != r && lo < hi && head >= lo / group && head <= (hi - 1) / group) n++;
    }
    return n;
}

bool inspect_plan_rank(const inspect *s, uint32_t ranks, uint32_t r, plan_rank *out)
{
    const arch *a = &s->a;
    arch_axis q, ffn, vocab;
    *out = (plan_rank){0};
    if (!s->has_arch || !arch_axis_of(a, AXIS_Q_HEADS, &q) || !arch_axis_of(a, AXIS_FFN, &ffn) ||
        !arch_axis_of(a, AXIS_VOCAB, &vocab))
        return false;
    range_of(&q, ranks, r, &out->q_lo, &out->q_hi);
    range_of(&ffn, ranks, r, &out->ffn_lo, &out->ffn_hi);
    range_of(&vocab, ranks, r, &out->vocab_lo, &out->vocab_hi);
    out->q_lo /= a->head_dim;
    out->q_hi /= a->head_dim;
    uint64_t group = a->n_heads / a->n_kv_heads;
    if (out->q_lo < out->q_hi) {
        out->kv_lo = out->q_lo / group;
        out->kv_hi = (out->q_hi - 1) / group + 1;
    }
    for (uint64_t h = out->kv_lo; h < out->kv_hi; h++)
        out->replicated_kv += other_holders(h, a, &q, ranks, r) > 0;
    out->kv_bytes = (out->kv_hi - out->kv_lo) * a->n_layers *
                    ((uint64_t)arch_k_dim(a) + arch_v_dim(a) + 4); /* two f16 scales */
    for (uint32_t i = 0; i < s->i->n_tensors; i++) {
        const ct_tensor *t = &s->i->tensors[i];
        uint64_t lo = 0, hi = 1;
        if (t->alias != CT_NO_ALIAS) continue;
        if (t->split_dim != 255) need_of(s, &s->i->axes[t->axis], out, ranks, r, &lo, &hi);
        if (lo < hi) add_tensor(s, t, lo, hi, out);
    }
    return true;
}

int inspect_print_plan(const inspect *s)
{
    plan_rank k;
    if (!inspect_plan_rank(s, s->o->plan, 0, &k))
        return cli_error("%s: holds no model to plan for", s->i->path), CLI_EXIT_FILE;
    printf("%4s %-12s %-12s %-16s %-18s %12s %12s %12s\n", "rank", "q heads", "kv heads", "ffn", "vocabulary",
           "weights", "read", "KV/token");
    for (uint32_t r = 0; r < s->o->plan; r++) {
        char text[4][48];
        inspect_plan_rank(s, s->o->plan, r, &k);
        const uint64_t range[4][2] = {
            {k.q_lo, k.q_hi}, {k.kv_lo, k.kv_hi}, {k.ffn_lo, k.ffn_hi}, {k.vocab_lo, k.vocab_hi}};
        for (int i = 0; i < 4; i++) {
            if (range[i][0] < range[i][1])
                snprintf(text[i], sizeof text[i], "%" PRIu64 " to %" PRIu64, range[i][0], range[i][1]);
            else snprintf(text[i], sizeof text[i], "none");
        }
        printf("%4u %-12s %-12s %-16s %-18s %12" PRIu64 " %12" PRIu64 " %12" PRIu64 "\n", r, text[0], text[1],
               text[2], text[3], k.weight_bytes, k.read_bytes, k.kv_bytes);
    }
    for (uint32_t r = 0; r < s->o->plan; r++) {
        inspect_plan_rank(s, s->o->plan, r, &k);
        if (k.replicated_kv)
            printf("rank %u shares %" PRIu64 " of its kv heads with other ranks\n", r, k.replicated_kv);
        if (k.q_lo == k.q_hi) printf("rank %u has no attention heads\n", r);
    }
    puts("Ranges are \"from to end\", the end not included. KV/token: int8 values with f16 scales.");
    return 0;
}
