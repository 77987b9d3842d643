/* linear.cu - weights times activations; a block is 32 rows of one run times some tokens. See cu_weight.cuh. */
#include "cu_weight.cuh"

enum { LIN_RUNS = 32 }; /* of one launch */
typedef struct {
    op_run run[LIN_RUNS];
    uint32_t leaf[LIN_RUNS], group0[LIN_RUNS]; /* its leaf of K, and that leaf's first group */
    uint32_t dtype;
} lin_runs;

template <uint32_t PER> static __global__ void linear_runs(op_linear_args a, lin_runs runs)
{
    SHARED(float, w, [LIN_W_FLOATS]);
    SHARED(float, x, [LIN_X_FLOATS]);
    const op_run &r = runs.run[blockIdx.z];
    uint64_t block0 = (uint64_t)blockIdx.x * LIN_BLOCKS;
    uint32_t lo = a.row_lo > r.row0 ? a.row_lo - r.row0 : 0, hi = r.n_rows;
    if (a.row_hi) hi = min(hi, a.row_hi > r.row0 ? a.row_hi - r.row0 : 0);
    if (lo >= hi || block0 * TILE_ROWS >= r.row_skip + (uint64_t)hi || block0 * TILE_ROWS + WARP <= r.row_skip + (uint64_t)lo)
        return; /* the whole block */
    lin_job j = {};
    j.data = r.data, j.block_stride = r.block_stride, j.dtype = runs.dtype, j.bias = a.bias ? a.bias + r.row0 : nullptr;
    j.row_skip = r.row_skip, j.n_rows = r.n_rows, j.n_k = r.n_k, j.lo = lo, j.hi = hi, j.n_tokens = a.n_tokens;
    j.x = a.x ? a.x + r.k0 : nullptr, j.xs = a.xs;
    j.xq = a.xq ? a.xq + runs.group0[blockIdx.z] * a.xqs : nullptr, j.xqs = a.xqs;
    j.y = a.y + runs.leaf[blockIdx.z] * a.yl + r.row0, j.ys = a.ys;
    for (uint32_t t0 = blockIdx.y * PER * LIN_WARPS; t0 < a.n_tokens; t0 += gridDim.y * PER * LIN_WARPS)
        lin_block<PER>(j, block0, t0, w, x);
}

/* Runs [first, first + n) of the weight, and the greatest number of rows, with skipped ones, of any. */
static lin_runs some_runs(const op_weight *w, uint32_t first, uint32_t n, uint64_t *rows)
{
    lin_runs s = {};
    s.dtype = w->dtype;
    *rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        s.run[i] = w->runs[first + i];
        s.leaf[i] = (first + i) % w->n_leaves;
        for (uint32_t l = 0; l < s.leaf[i]; l++) s.group0[i] += cu_ceil(w->runs[l].n_k, GROUP_K);
        uint64_t have = s.run[i].n_rows ? s.run[i].row_skip + (uint64_t)s.run[i].n_rows : 0;
        if (have > *rows) *rows = have;
    }
    return s;
}

int cu_linear(const op_linear_args *a, void *stream)
{
    uint32_t n_runs = a->w->n_parts * a->w->n_leaves;
    int e = cudaSuccess;
    for (uint32_t i = 0; i < n_runs && a->n_tokens > 0 && e == cudaSuccess; i += LIN_RUNS) {
        uint32_t n = n_runs - i < LIN_RUNS ? n_runs - i : (uint32_t)LIN_RUNS;
        uint64_t rows;
        lin_runs runs = some_runs(a->w, i, n, &rows);
        if (rows == 0) continue;
        uint32_t per = a->n_tokens > LIN_WARPS ? 4 : 1;
        dim3 grid(cu_ceil(rows, WARP), grid_y(cu_ceil(a->n_tokens, per * LIN_WARPS)), n);
        if (per == 4) e = LAUNCH(linear_runs<4>, grid, LIN_THREADS, 0, (cudaStream_t)stream, *a, runs);
        else e = LAUNCH(linear_runs<1>, grid, LIN_THREADS, 0, (cudaStream_t)stream, *a, runs);
    }
    return e;
}

int cu_linear_load(void) { return cu_load(linear_runs<1>, linear_runs<4>); }
