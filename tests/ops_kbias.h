/* ops_kbias.h - for t_attn.c and t_cuda_attn.c: K biases that int8 pages do not hold. */
#ifndef TESS_OPS_KBIAS_H
#define TESS_OPS_KBIAS_H
#include "ops_common.h"

enum { MAX_SEQ = 3 };
/* With a rope table of its own for every sequence. */
typedef struct {
    op_kbias arg;
    op_kbias_head *head;
    float *cs[MAX_SEQ], *lanes[MAX_SEQ]; /* `floats` numbers each */
    size_t floats;
} kept_bias;

/* Of random heads: some pairs of n_cs, some of the dimensions behind them. Large: many times what K is. */
static inline kept_bias *bias_make(uint32_t heads, uint32_t k_dim, uint32_t n_pos)
{
    kept_bias *b = must(calloc(1, sizeof *b));
    uint32_t n_cs = rnd(k_dim / 2 + 1), rows = (n_pos + 15) / 16 * 16;
    b->head = must(calloc(heads, sizeof *b->head));
    b->floats = (size_t)rows * n_cs * 2;
    for (uint32_t h = 0; h < heads; h++) {
        float *flat = rnd(2) && 2 * n_cs < k_dim ? must(calloc(k_dim, sizeof *flat)) : NULL;
        for (uint32_t d = 2 * n_cs; flat && d < k_dim; d++) flat[d] = rnd(2) ? 100 * real() : 0;
        b->head[h] = (op_kbias_head){.flat = flat, .n_pairs = MIN(rnd(KBIAS_PAIRS + 1), n_cs)};
        for (uint32_t i = 0, p = rnd(n_cs + 1); i < b->head[h].n_pairs; i++, p++)
            b->head[h].pair[i] = (op_kbias_pair){p % n_cs, p % n_cs, p % n_cs + n_cs, 100 * real(), 100 * real()};
    }
    for (uint32_t s = 0; s < MAX_SEQ; s++) {
        b->cs[s] = must(malloc((b->floats + 1) * sizeof(float)));
        b->lanes[s] = must(malloc((b->floats + 1) * sizeof(float)));
        for (uint32_t i = 0; i < rows * n_cs; i++) {
            uint32_t pos = i / n_cs, pair = i % n_cs;
            float angle = (float)pos * (0.9f + 0.1f * (float)s) / (float)(1 + pair * pair);
            for (uint32_t j = 0; j < 2; j++) {
                float v = j ? sinf(angle) : cosf(angle);
                b->cs[s][2 * i + j] = v;
                b->lanes[s][((size_t)(pos / 8 * n_cs + pair) * 2 + j) * 8 + pos % 8] = v;
            }
        }
    }
    b->arg = (op_kbias){b->head, n_cs, (const float *const *)b->cs, (const float *const *)b->lanes};
    return b;
}
static inline void bias_free(kept_bias *b, uint32_t heads)
{
    if (!b) return;
    for (uint32_t h = 0; h < heads; h++) free((void *)(uintptr_t)b->head[h].flat);
    for (uint32_t s = 0; s < MAX_SEQ; s++) free(b->cs[s]), free(b->lanes[s]);
    free(b->head), free(b);
}
#endif
