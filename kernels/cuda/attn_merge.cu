/*
 * attn_merge.cu - joins the chunks of split attention in ascending order.
 *
 * A block is one head of one row. How much of what was merged and of the next chunk goes on depends on the greatest scores alone:
 * the threads compute those factors for 128 chunks at a time, side by side; then each thread walks its dimensions through them.
 */
#include "cu_attn.cuh"

enum { MERGE_THREADS = 128, MERGE_DIMS = 4 /* of a thread, at a time */ };
typedef struct {
    float max[MERGE_THREADS], keep[MERGE_THREADS], take[MERGE_THREADS];
    uint32_t flag;
} merge_shared;

/* Factors of the slots [at, at + n): max before, then of each slot's own; gives the greatest score so far. */
DEV float merge_factors(const float *from, size_t step, uint32_t n, float max, merge_shared &s)
{
    uint32_t i = threadIdx.x;
    if (i < n) s.max[i] = from[i * step];
    __syncthreads();
    float before = max, m;
    for (uint32_t k = 0; k < i && k < n; k++) before = s.max[k] > before ? s.max[k] : before;
    if (i < n) {
        m = s.max[i];
        float top = m > before ? m : before;
        s.keep[i] = cu_exp(before - top);
        s.take[i] = cu_exp(m - top);
    }
    for (uint32_t k = 0; k < n; k++) max = s.max[k] > max ? s.max[k] : max;
    __syncthreads();
    return max;
}

static __global__ void attn_merge(op_attn_args a, uint32_t slots, CU_PARAM attn_after after)
{
    SHARED(merge_shared, shared, [1]);
    merge_shared &s = shared[0];
    size_t t = blockIdx.x, step = 2 + (size_t)a.kv.v_dim;
    uint32_t h = blockIdx.y, pos = a.b.pos[t], d = threadIdx.x, n = pos / ATTN_CHUNK - attn_lo(a.window, pos) / ATTN_CHUNK + 1;
    const float *from = slot_of(a, slots, t, h, 0);
    for (uint32_t d0 = 0; d0 < a.kv.v_dim; d0 += MERGE_DIMS * MERGE_THREADS) {
        float out[MERGE_DIMS] = {}, max = from[0], sum = from[1], c;
        for (uint32_t k = 0; k < MERGE_DIMS; k++)
            if (d0 + k * MERGE_THREADS + d < a.kv.v_dim) out[k] = from[2 + d0 + k * MERGE_THREADS + d];
        for (uint32_t at = 1; at < n; at += MERGE_THREADS) {
            uint32_t m = min(n - at, (uint32_t)MERGE_THREADS);
            const float *slot = from + at * step;
            max = merge_factors(slot, step, m, max, s);
            for (uint32_t i = 0; i < m; i++, slot += step) {
                sum = fmaf(sum, s.keep[i], slot[1] * s.take[i]);
                for (uint32_t k = 0; k < MERGE_DIMS; k++) {
                    uint32_t at_d = d0 + k * MERGE_THREADS + d;
                    if (at_d < a.kv.v_dim) out[k] = fmaf(out[k], s.keep[i], slot[2 + at_d] * s.take[i]);
                }
            }
            __syncthreads();
        }
        attn_finish(a, h, max, &sum, &c);
        for (uint32_t k = 0; k < MERGE_DIMS; k++) {
            uint32_t at_d = d0 + k * MERGE_THREADS + d;
            if (at_d < a.kv.v_dim) a.out[t * a.os + (size_t)h * a.kv.v_dim + at_d] = out[k] * c / sum;
        }
    }
    attn_groups_of(after, a.kv.v_dim, t, h, 1, &s.flag);
}

int cu_attn_merge(const op_attn_args *a, const attn_after *after, uint32_t slots, cudaStream_t stream)
{
    return LAUNCH(attn_merge, dim3(a->b.n_tokens, a->n_heads), MERGE_THREADS, 0, stream, *a, slots, *after);
}

int cu_attn_merge_load(void) { return cu_load(attn_merge); }
