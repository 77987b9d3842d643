/*
 * rows.cu - the way of the residual stream between two linear operations in one launch: the sum over leaves (of all ranks, read from
 * peers' memory, or the shares that the ranks have made of it) with the residual, the norm, and its groups of int8. A block is one row:
 * no block reads what another one wrote, and a barrier stands between the three, each of which is computed as it is alone.
 */
#include "cu_rows.cuh"

enum { ROWS_THREADS = 512 };
typedef struct {
    uint32_t sums, groups; /* what there is beside the norm: groups of a row */
} rows_what;

static __global__ void rows_all(op_reduce_args r, const __grid_constant__ reduce_parts part, op_norm_args a, op_quant_args q, const __grid_constant__ quant_leaves leaf, rows_what what)
{
    SHARED(float, stage, [SUM_STAGE + 8]);
    const size_t t = blockIdx.x;
    if (what.sums)
        for (uint32_t i = threadIdx.x; i < r.n; i += blockDim.x) r.y[t * r.ys + i] = sum_cell(r, part, t, i);
    norm_and_groups(a, q, leaf, what.groups, t, stage);
}

/* Each reads the rows that the one before it writes. */
static bool is_chain(const op_reduce_args *r, const op_norm_args *a, const op_quant_args *q)
{
    if (a->groups != 1 || a->n == 0) return false;
    if (r && (r->y != a->x || r->ys != a->xs || r->n != a->n || r->n_tokens != a->n_tokens)) return false;
    return !q || quant_is_of(q, a->y, a->ys, a->n_tokens);
}

int cu_rows(const op_reduce_args *sum, const op_norm_args *a, const op_quant_args *quant, void *stream)
{
    const op_reduce_args r = sum ? *sum : op_reduce_args{};
    const op_quant_args q = quant ? *quant : op_quant_args{};
    reduce_parts part = {};
    quant_leaves leaf = {};
    const rows_what what = {sum != nullptr, quant ? quant_cut(quant, &leaf) : 0};
    if (!is_chain(sum, a, quant) || what.groups == UINT32_MAX) return cudaErrorInvalidValue;
    if (sum && !reduce_is_sound(sum)) return cudaErrorInvalidValue;
    if (a->n_tokens == 0) return cudaSuccess;
    for (uint32_t l = 0; l < r.n_leaves; l++) part.at[l] = r.parts[l];
    return LAUNCH(rows_all, a->n_tokens, cu_threads(a->n, ROWS_THREADS), 0, (cudaStream_t)stream, r, part, *a, q, leaf, what);
}

int cu_rows_load(void) { return cu_load(rows_all); }
