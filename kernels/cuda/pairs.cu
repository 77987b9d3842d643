/*
 * pairs.cu - numbers the pairs of a rank's experts by expert, then by row. Three kernels, since a number needs the counts of all
 * experts before: count (a warp is an expert), add up (one warp), number (a warp is an expert; one more marks the pairs of other
 * ranks).
 *
 * Choice j of row t is number t * n_used + j; a warp looks at 32 of them at a time, in ascending order.
 */
#include "cu_ops.cuh"

/* Number of the rank's expert that choice i goes to; n_local or more: another rank's, or behind the end. */
DEV uint32_t local_expert(const op_pairs_args &a, size_t i, size_t n)
{
    return i < n ? a.ids[i / a.n_used * a.is + i % a.n_used] - a.lo : UINT32_MAX;
}

static __global__ void count_pairs(op_pairs_args a)
{
    uint32_t e = blockIdx.x, count = 0;
    size_t n = (size_t)a.n_tokens * a.n_used;
    for (size_t i = 0; i < n; i += WARP) count += (uint32_t)__popc(__ballot_sync(~0u, local_expert(a, i + threadIdx.x, n) == e));
    if (threadIdx.x == 0) a.first[e + 1] = count;
}

static __global__ void add_counts(op_pairs_args a)
{
    if (threadIdx.x != 0) return;
    a.first[0] = 0;
    for (uint32_t e = 0; e < a.n_local; e++) a.first[e + 1] += a.first[e];
}

static __global__ void number_pairs(op_pairs_args a)
{
    uint32_t e = blockIdx.x, lane = threadIdx.x, next = e < a.n_local ? a.first[e] : 0;
    size_t n = (size_t)a.n_tokens * a.n_used;
    for (size_t base = 0; base < n; base += WARP) {
        size_t i = base + lane;
        uint32_t of = local_expert(a, i, n);
        bool mine = e < a.n_local ? of == e : i < n && of >= a.n_local;
        uint32_t all = __ballot_sync(~0u, mine), p = next + (uint32_t)__popc(all & ((1u << lane) - 1));
        if (mine) a.pair[i] = e < a.n_local ? p : OP_NO_PAIR;
        if (mine && e < a.n_local) a.row[p] = (uint32_t)(i / a.n_used);
        next += (uint32_t)__popc(all);
    }
}

int cu_pairs(const op_pairs_args *a, void *stream)
{
    int e = cudaSuccess;
    if (a->n_local > 0) e = LAUNCH(count_pairs, a->n_local, WARP, 0, (cudaStream_t)stream, *a);
    if (e == cudaSuccess) e = LAUNCH(add_counts, 1, WARP, 0, (cudaStream_t)stream, *a);
    if (e == cudaSuccess) e = LAUNCH(number_pairs, a->n_local + 1, WARP, 0, (cudaStream_t)stream, *a);
    return e;
}

int cu_pairs_load(void) { return cu_load(count_pairs, add_counts, number_pairs); }
