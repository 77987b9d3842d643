/* linear.cu - weights times activations: which kernel does it, and a grid over rows, tokens and runs. */
#include "lin_float.cuh"
#include "lin_gemv.cuh"
#include "lin_mma.cuh"

enum {
    LIN_RUNS = 32,  /* of one launch */
    LIN_FILL = 128, /* blocks that fill a device */
};
typedef struct {
    op_run run[LIN_RUNS];
    uint32_t leaf[LIN_RUNS], group0[LIN_RUNS]; /* its leaf of K, and that leaf's first group */
    uint32_t dtype;
    uint32_t n, groups; /* greatest of any run: groups, */
    uint64_t rows;      /* rows with skipped ones */
} lin_runs;

/* Run blockIdx.z as a job. Wanted are rows [lo, hi) of it; false: none of the `rows` from block0 on, and the block may leave. */
DEV bool run_job(const op_linear_args &a, const lin_runs &runs, uint64_t block0, uint32_t rows, lin_job &j)
{
    const op_run &r = runs.run[blockIdx.z];
    const uint64_t row0 = block0 * TILE_ROWS;
    j = {};
    j.lo = a.row_lo > r.row0 ? a.row_lo - r.row0 : 0, j.hi = r.n_rows;
    if (a.row_hi) j.hi = min(j.hi, a.row_hi > r.row0 ? a.row_hi - r.row0 : 0);
    j.data = r.data, j.block_stride = r.block_stride, j.dtype = runs.dtype, j.bias = a.bias ? a.bias + r.row0 : nullptr;
    j.row_skip = r.row_skip, j.n_rows = r.n_rows, j.n_k = r.n_k, j.n_tokens = a.n_tokens;
    j.x = a.x ? a.x + r.k0 : nullptr, j.xs = a.xs;
    j.xq = a.xq ? a.xq + runs.group0[blockIdx.z] * a.xqs : nullptr, j.xqs = a.xqs;
    j.y = a.y + runs.leaf[blockIdx.z] * a.yl + r.row0, j.ys = a.ys;
    return j.lo < j.hi && row0 < r.row_skip + (uint64_t)j.hi && row0 + rows > r.row_skip + (uint64_t)j.lo;
}

template <uint32_t PER> static __global__ void linear_runs(op_linear_args a, lin_runs runs)
{
    SHARED(float, w, [LIN_W_FLOATS]);
    SHARED(float, x, [LIN_X_FLOATS]);
    const uint64_t block0 = (uint64_t)blockIdx.x * LIN_BLOCKS;
    lin_job j;
    if (!run_job(a, runs, block0, WARP, j)) return; /* the whole block */
    for (uint32_t t0 = blockIdx.y * PER * LIN_WARPS; t0 < a.n_tokens; t0 += gridDim.y * PER * LIN_WARPS)
        lin_block<PER>(j, block0, t0, w, x);
}

template <uint32_t DT, uint32_t M>
static __global__ void CU_BOUNDS((gemv_shape<DT, M>::THREADS), 4) linear_gemv(op_linear_args a, lin_runs runs, uint32_t wk)
{
    const uint32_t blocks = gemv_shape<DT, M>::WARPS / wk;
    const uint64_t block0 = (uint64_t)blockIdx.x * blocks;
    lin_job j;
    if (!run_job(a, runs, block0, blocks * TILE_ROWS, j)) return; /* the whole block */
    gemv_block<DT, M>(j, block0, wk, 0);
}

template <class S> static __global__ void CU_BOUNDS(S::THREADS, 1) linear_mma(op_linear_args a, lin_runs runs)
{
    const uint64_t block0 = (uint64_t)blockIdx.x * S::BLOCKS;
    lin_job j;
    if (!run_job(a, runs, block0, S::BLOCKS * TILE_ROWS, j)) return; /* the whole block */
    for (uint32_t t0 = blockIdx.y * S::TOKENS; t0 < a.n_tokens; t0 += gridDim.y * S::TOKENS) mma_block<S>(j, block0, t0);
}

template <class S> static __global__ void CU_BOUNDS(S::THREADS, 2) linear_float(op_linear_args a, lin_runs runs)
{
    const uint64_t block0 = (uint64_t)blockIdx.x * S::BLOCKS;
    lin_job j;
    if (!run_job(a, runs, block0, S::BLOCKS * TILE_ROWS, j)) return; /* the whole block */
    for (uint32_t t0 = blockIdx.y * S::TOKENS; t0 < a.n_tokens; t0 += gridDim.y * S::TOKENS) float_block<S>(j, block0, t0);
}

/* Runs [first, first + n) of the weight. */
static lin_runs some_runs(const op_weight *w, uint32_t first, uint32_t n)
{
    lin_runs s = {};
    s.dtype = w->dtype;
    s.n = n;
    for (uint32_t i = 0; i < n; i++) {
        s.run[i] = w->runs[first + i];
        s.leaf[i] = (first + i) % w->n_leaves;
        for (uint32_t l = 0; l < s.leaf[i]; l++) s.group0[i] += cu_ceil(w->runs[l].n_k, GROUP_K);
        uint64_t rows = s.run[i].n_rows ? s.run[i].row_skip + (uint64_t)s.run[i].n_rows : 0;
        uint32_t groups = cu_ceil(s.run[i].n_k, GROUP_K);
        if (rows > s.rows) s.rows = rows;
        if (groups > s.groups) s.groups = groups;
    }
    return s;
}

template <uint32_t DT, uint32_t M> static int launch_gemv(const op_linear_args *a, const lin_runs &runs, cudaStream_t stream)
{
    typedef gemv_shape<DT, M> S;
    uint32_t wk = gemv_share<DT, M>(runs.groups);
    dim3 grid(cu_ceil(runs.rows, TILE_ROWS * S::WARPS / wk), 1, runs.n);
    return LAUNCH((linear_gemv<DT, M>), grid, S::THREADS, 0, stream, *a, runs, wk);
}

template <class S> static dim3 tile_grid(const op_linear_args *a, const lin_runs &runs)
{
    return dim3(cu_ceil(runs.rows, TILE_ROWS * S::BLOCKS), grid_y(cu_ceil(a->n_tokens, S::TOKENS)), runs.n);
}
template <class S> static int launch_mma(const op_linear_args *a, const lin_runs &runs, cudaStream_t stream)
{
    return LAUNCH(linear_mma<S>, tile_grid<S>(a, runs), S::THREADS, 0, stream, *a, runs);
}
template <class S> static int launch_float(const op_linear_args *a, const lin_runs &runs, cudaStream_t stream)
{
    return LAUNCH(linear_float<S>, tile_grid<S>(a, runs), S::THREADS, 0, stream, *a, runs);
}

/* Large tiles where they are enough to fill a device. Any choice gives the same bits. */
template <uint32_t DT> static int launch_groups(const op_linear_args *a, const lin_runs &runs, cudaStream_t stream)
{
    switch (a->n_tokens) {
    case 1: return launch_gemv<DT, 1>(a, runs, stream);
    case 2: return launch_gemv<DT, 2>(a, runs, stream);
    case 3:
    case 4: return launch_gemv<DT, 4>(a, runs, stream);
    }
    if (a->n_tokens <= 16) return launch_mma<mma_few<DT>>(a, runs, stream);
    if ((uint64_t)cu_ceil(runs.rows, 128) * cu_ceil(a->n_tokens, 128) * runs.n < LIN_FILL || a->n_tokens <= 64)
        return launch_mma<mma_some<DT>>(a, runs, stream);
    return launch_mma<mma_many<DT>>(a, runs, stream);
}

template <uint32_t DT> static int launch_floats(const op_linear_args *a, const lin_runs &runs, cudaStream_t stream)
{
    if (a->n_tokens == 1) return launch_float<float_1<DT>>(a, runs, stream);
    if (a->n_tokens == 2) return launch_float<float_2<DT>>(a, runs, stream);
    if (a->n_tokens <= 4) return launch_float<float_4<DT>>(a, runs, stream);
    if (a->n_tokens <= 16) return launch_float<float_few<DT>>(a, runs, stream);
    if ((uint64_t)cu_ceil(runs.rows, 128) * cu_ceil(a->n_tokens, 64) * runs.n < LIN_FILL)
        return launch_float<float_some<DT>>(a, runs, stream);
    return launch_float<float_many<DT>>(a, runs, stream);
}

static int launch_runs(const op_linear_args *a, const lin_runs &runs, cudaStream_t stream)
{
    if (a->xq && runs.dtype == DT_Q8) return launch_groups<DT_Q8>(a, runs, stream);
    if (a->xq && runs.dtype == DT_Q4) return launch_groups<DT_Q4>(a, runs, stream);
    if (runs.dtype == DT_F32) return launch_floats<DT_F32>(a, runs, stream);
    if (runs.dtype == DT_F16) return launch_floats<DT_F16>(a, runs, stream);
    if (runs.dtype == DT_BF16) return launch_floats<DT_BF16>(a, runs, stream);
    uint32_t per = a->n_tokens > LIN_WARPS ? 4 : 1; /* q8 and q4 as floats */
    dim3 grid(cu_ceil(runs.rows, WARP), grid_y(cu_ceil(a->n_tokens, per * LIN_WARPS)), runs.n);
    if (per == 4) return LAUNCH(linear_runs<4>, grid, LIN_THREADS, 0, stream, *a, runs);
    return LAUNCH(linear_runs<1>, grid, LIN_THREADS, 0, stream, *a, runs);
}

int cu_linear(const op_linear_args *a, void *stream)
{
    uint32_t n_runs = a->w->n_parts * a->w->n_leaves;
    int e = cu_aligned(a->w) && cu_aligned(a->xq, 8) ? cudaSuccess : cudaErrorMisalignedAddress;
    for (uint32_t i = 0; i < n_runs && a->n_tokens > 0 && e == cudaSuccess; i += LIN_RUNS) {
        lin_runs runs = some_runs(a->w, i, n_runs - i < LIN_RUNS ? n_runs - i : (uint32_t)LIN_RUNS);
        if (runs.rows) e = launch_runs(a, runs, (cudaStream_t)stream);
    }
    return e;
}

template <uint32_t DT> static int load_groups(void)
{
    return cu_load(linear_gemv<DT, 1>, linear_gemv<DT, 2>, linear_gemv<DT, 4>, linear_mma<mma_few<DT>>, linear_mma<mma_some<DT>>,
                   linear_mma<mma_many<DT>>);
}
template <uint32_t DT> static int load_floats(void)
{
    return cu_load(linear_float<float_1<DT>>, linear_float<float_2<DT>>, linear_float<float_4<DT>>, linear_float<float_few<DT>>,
                   linear_float<float_some<DT>>, linear_float<float_many<DT>>);
}
int cu_linear_load(void)
{
    static int (*const load[])(void) = {load_groups<DT_Q8>, load_groups<DT_Q4>, load_floats<DT_F32>, load_floats<DT_F16>,
                                        load_floats<DT_BF16>};
    int e = cu_load(linear_runs<1>, linear_runs<4>);
    for (size_t i = 0; i < ARRAY_LEN(load) && e == cudaSuccess; i++) e = load[i]();
    return e;
}
