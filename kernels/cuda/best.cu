/*
 * best.cu - best ids and sums of exp of each leaf of a row of logits (best_ops.h); a block is one leaf of one row.
 *
 * A thread keeps the best of its own columns. k times the block takes the best of these, and the thread that had it looks for its
 * next one: what it has left are exactly those behind the one that was taken.
 */
#include "cu_ops.cuh"
#include "best_ops.h"

enum { BEST_THREADS = 1024, NO_ID = 0xffffffff };

typedef struct {
    best_id best[BEST_THREADS];
    uint64_t sum[BEST_THREADS];
    uint32_t n_open, n_bad;
} best_shared;

/* The lower id of equal logits; NO_ID comes last. */
DEV bool before(const best_id &a, const best_id &b) { return a.x > b.x || (a.x == b.x && a.id < b.id); }

/* The best of the thread's columns behind `last`. */
DEV best_id next_best(const float *x, uint32_t lo, uint32_t hi, const best_id &last)
{
    best_id b = {-cu_infinity(), NO_ID};
    for (uint32_t i = lo + threadIdx.x; i < hi; i += blockDim.x) {
        best_id c = {x[i], i};
        bool open = c.x > -cu_infinity() && c.x < cu_infinity();
        if (open && before(last, c) && before(c, b)) b = c;
    }
    return b;
}

/* The best of the block's, in s.best[0]; each thread's stays with it. */
DEV best_id block_best(best_shared &s, const best_id &mine)
{
    s.best[threadIdx.x] = mine;
    __syncthreads();
    for (uint32_t half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half && before(s.best[threadIdx.x + half], s.best[threadIdx.x]))
            s.best[threadIdx.x] = s.best[threadIdx.x + half];
        __syncthreads();
    }
    best_id b = s.best[0];
    __syncthreads();
    return b;
}

/* Sum of exp over the leaf, for thread 0; s.n_open and s.n_bad for all. */
DEV uint64_t sum_leaf(best_shared &s, const float *x, uint32_t lo, uint32_t hi, float max)
{
    uint64_t sum = 0;
    uint32_t n_open = 0, n_bad = 0;
    for (uint32_t i = lo + threadIdx.x; i < hi; i += blockDim.x) {
        bool bad = !(x[i] < cu_infinity()), open = !bad && x[i] > -cu_infinity();
        n_bad += bad;
        n_open += open;
        if (open) sum += static_cast<uint64_t>(cu_exp(x[i] - max) * BEST_ONE);
    }
    s.sum[threadIdx.x] = sum;
    if (threadIdx.x == 0) s.n_open = s.n_bad = 0;
    __syncthreads();
    if (n_open) atomicAdd(&s.n_open, n_open);
    if (n_bad) atomicAdd(&s.n_bad, n_bad);
    for (uint32_t half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) s.sum[threadIdx.x] += s.sum[threadIdx.x + half];
        __syncthreads();
    }
    return s.sum[0];
}

static __global__ void best_rows(best_args a)
{
    SHARED(best_shared, shared, [1]);
    best_shared &s = shared[0];
    const uint32_t lo = a.leaf[blockIdx.x], hi = a.leaf[blockIdx.x + 1];
    const size_t bytes = sizeof(best_leaf) + a.k * sizeof(best_id);
    const float *x = a.x + blockIdx.y * a.xs;
    best_leaf *to = reinterpret_cast<best_leaf *>(a.y + ((size_t)blockIdx.y * a.n_leaves + blockIdx.x) * bytes);
    best_id *ids = reinterpret_cast<best_id *>(to + 1);
    const best_id first = {cu_infinity(), 0};
    best_id mine = next_best(x, lo, hi, first), b = block_best(s, mine);
    const float max = b.x;
    const uint64_t sum = sum_leaf(s, x, lo, hi, max);
    const uint32_t n = min(a.k, s.n_open);
    for (uint32_t i = 0; i < n; i++) {
        if (i) b = block_best(s, mine);
        if (threadIdx.x == 0) ids[i] = {b.x, a.first_id + b.id};
        if (mine.id == b.id) mine = next_best(x, lo, hi, b);
    }
    if (threadIdx.x == 0) *to = {sum, max, s.n_open, s.n_bad, n};
}

int best_of_leaves(const best_args *a, void *stream)
{
    uint32_t most = 0, threads = WARP;
    if (a->n_rows == 0 || a->n_leaves == 0) return cudaSuccess;
    if (a->n_rows > 65535 || a->n_leaves > BEST_LEAVES || a->k > BEST_MOST) return cudaErrorInvalidValue;
    for (uint32_t i = 0; i < a->n_leaves; i++) most = a->leaf[i + 1] - a->leaf[i] > most ? a->leaf[i + 1] - a->leaf[i] : most;
    while (threads < BEST_THREADS && threads < most) threads *= 2;
    return LAUNCH(best_rows, dim3(a->n_leaves, a->n_rows), threads, 0, (cudaStream_t)stream, *a);
}

int best_load(void) { return cu_load(best_rows); }
