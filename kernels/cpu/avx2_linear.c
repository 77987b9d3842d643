/*
 * avx2_linear.c - y = W x for float weights in TILE8; those of q8 and q4, and the operation itself, are in avx2_quant.c.
 *
 * Few tokens (up to one tile): the memory bus is the limit. A thread walks its row blocks as 4 (or 2) streams a quarter
 * (half) of its blocks apart, which are so many independent chains and prefetch streams.
 * Many tokens: two adjacent vectors of row blocks against tiles of up to 6 tokens (AVX-512: 12, and weights are widened to
 * floats once for all tokens of a block); a block of tokens small enough that its activations stay in the L2 cache meets all
 * weights of the share. K is cut so that the weights of a tile stay in L1; the sums wait in a buffer meanwhile, which does not
 * change them.
 */
#include "avx2.h"

enum { MANY = 2 * VB, WIDTH = MANY * TILE_ROWS, AHEAD = 1536 };
/* T_TILE, T_BLOCK: tokens; K_BLOCK: columns, whose weights are floats in AVX-512. */
#ifdef ISA_AVX512
enum { T_TILE = WIDE_T, T_BLOCK = 192, X_BYTES = 768 << 10, K_BLOCK = 192 };
#else
enum { T_TILE = TILE_T, T_BLOCK = 96, X_BYTES = 384 << 10, K_BLOCK = 768 };
#endif

/* A row block is read through all leaves before the next one: where one piece holds the leaves, a stream is one run of memory. */
static void linear_few(const op_linear_args *a, run_share *s)
{
    uint32_t n_t = a->n_tokens, n_b = avx2_tile_blocks(n_t);
    avx2_tile tile = avx2_tile_get(a->w->dtype, n_b, n_t);
    uint64_t each = ceil_div(s->b1 - s->b0, n_b);
    float sums[LEAF_PLACES][TILE_T * WIDTH];
    const float *x[TILE_T];
    for (uint64_t i = 0; i < each; i++) {
        uint64_t b[TILE_B];
        for (uint32_t j = 0; j < n_b; j++) b[j] = s->b0 + j * each + i;
        for (uint32_t l = 0; l < a->w->n_leaves; l++) {
            run_leaf(s, l);
            const op_run *r = s->run;
            const uint8_t *w[TILE_B];
            for (uint32_t t = 0; t < n_t; t++) x[t] = a->x + t * a->xs + r->k0;
            for (uint32_t j = 0; j < n_b; j++) /* the last stream may be shorter: it repeats a block, whose sums are dropped */
                w[j] = r->data + (b[j] < s->b1 ? b[j] : s->b0 + i) * r->block_stride;
            tile(w, TILE_ROWS, x, r->n_k, sums[leaf_place(a, l)], (size_t)n_b * TILE_ROWS, false, AHEAD);
            if (!leaf_done(a, l, sums[0], ARRAY_LEN(sums[0]), (size_t)n_t * n_b * TILE_ROWS)) continue;
            for (uint32_t j = 0; j < n_b && b[j] < s->b1; j++)
                store_tokens(a, s, b[j], 1, 0, n_t, &(const float *){sums[0] + j * TILE_ROWS}, (size_t)n_b * TILE_ROWS);
        }
    }
}

/* Weights w of n_k columns times x, which begins there, for n tokens: acc[token][WIDTH]. */
#ifdef ISA_AVX512
static void linear_k(uint32_t dtype, const uint8_t *const *w, const float *x, size_t xs, uint32_t n_k, uint32_t n, float *acc,
                     bool more, size_t ahead)
{
    _Alignas(64) float wide[K_BLOCK * WIDTH];
    avx512_widen(dtype, w, TILE_ROWS, n_k, ahead, wide);
    avx512_wide_tokens(wide, WIDTH, x, xs, n_k, n, acc, WIDTH, more);
}
#else
static void linear_k(uint32_t dtype, const uint8_t *const *w, const float *x, size_t xs, uint32_t n_k, uint32_t n, float *acc,
                     bool more, size_t ahead)
{
    for (uint32_t i = 0, done = 0, n_t; done < n; i++, done += n_t) {
        const float *xt[TILE_T];
        n_t = tile_cut(n, i, TILE_T);
        for (uint32_t t = 0; t < n_t; t++) xt[t] = x + (done + t) * xs;
        avx2_tile_get(dtype, MANY, n_t)(w, TILE_ROWS, xt, n_k, acc + done * WIDTH, WIDTH, more, ahead);
    }
}
#endif

/* One leaf of row blocks [b, b + MANY), as far as they are in the share, for tokens [t0, t0 + n): acc[token][WIDTH]. */
static void linear_blocks(const op_linear_args *a, const run_share *s, uint64_t b, uint32_t t0, uint32_t n, float *acc)
{
    const op_run *r = s->run;
    size_t k_bytes = (size_t)TILE_ROWS * (a->w->dtype == DT_F32 ? 4 : 2);
    const uint8_t *w0[MANY];
    for (uint32_t j = 0; j < MANY; j++) w0[j] = r->data + (b + j < s->b1 ? b + j : b) * r->block_stride;
    size_t ahead = MANY * r->block_stride; /* the next blocks, while these are used from the cache */
    uint32_t k = 0;
    do {
        uint32_t n_k = MIN((uint32_t)K_BLOCK, r->n_k - k);
        const uint8_t *w[MANY];
        for (uint32_t j = 0; j < MANY; j++) w[j] = w0[j] + k * k_bytes;
        linear_k(a->w->dtype, w, a->x + t0 * a->xs + r->k0 + k, a->xs, n_k, n, acc, k > 0, ahead);
        k += n_k;
    } while (k < r->n_k);
}

static void linear_many(const op_linear_args *a, run_share *s)
{
    uint32_t fit = (uint32_t)(X_BYTES / sizeof(float)) / MAX(a->w->n_k, 1u) / T_TILE * T_TILE;
    uint32_t block = MAX(12u, MIN((uint32_t)T_BLOCK, fit));
    float sums[LEAF_PLACES][T_BLOCK * WIDTH];
    for (uint32_t t0 = 0; t0 < a->n_tokens; t0 += block)
        for (uint64_t b = s->b0; b < s->b1; b += MANY) {
            uint32_t n = MIN(block, a->n_tokens - t0);
            for (uint32_t l = 0; l < a->w->n_leaves; l++) {
                run_leaf(s, l);
                linear_blocks(a, s, b, t0, n, sums[leaf_place(a, l)]);
                if (!leaf_done(a, l, sums[0], ARRAY_LEN(sums[0]), (size_t)n * WIDTH)) continue;
                const float *from[MANY];
                for (uint32_t j = 0; j < MANY; j++) from[j] = sums[0] + j * TILE_ROWS;
                store_tokens(a, s, b, (uint32_t)MIN((uint64_t)MANY, s->b1 - b), t0, n, from, WIDTH);
            }
        }
}

void avx2_linear_floats(const op_linear_args *a, run_share *s)
{
    if (a->n_tokens <= TILE_T) linear_few(a, s);
    else linear_many(a, s);
}
