/*
 * linear.cu - weights times activations: which kernel does it, and a grid over rows, tokens and runs. Runs of several weights that
 * read the same activations (q, k, v; gate, up) go in one launch: a run carries its own y and bias. So may what follows them
 * (after_ops.h, lin_after.cuh).
 */
#include "lin_after.cuh"
#include "lin_float.cuh"
#include "lin_gemv.cuh"
#include "lin_mma.cuh"

enum {
    LIN_RUNS = 32,  /* of one launch */
    LIN_FILL = 128, /* blocks that fill a device */
};
typedef struct {
    op_run run;
    const float *bias; /* or NULL; as y, of the run's first row */
    float *y;
    size_t ys;
    uint32_t group0;   /* first group of its leaf of K */
    uint32_t lo, hi;   /* rows of it that are wanted */
    uint32_t which;    /* weight, of those in the launch */
} lin_run;
typedef struct {
    lin_run run[LIN_RUNS];
    const float *x;
    const op_group *xq;
    size_t xs, xqs;
    uint32_t n_tokens, dtype;
    uint32_t n, groups; /* runs; greatest of any run: groups, */
    uint64_t rows;      /* rows with skipped ones */
} lin_runs;

/* Run blockIdx.z as a job; false: none of the `rows` from block0 on are wanted, and the block may leave. */
DEV bool run_job(const lin_runs &runs, uint64_t block0, uint32_t rows, lin_job &j)
{
    const lin_run &l = runs.run[blockIdx.z];
    const op_run &r = l.run;
    const uint64_t row0 = block0 * TILE_ROWS;
    j = {};
    j.lo = l.lo, j.hi = l.hi;
    j.data = r.data, j.block_stride = r.block_stride, j.dtype = runs.dtype, j.bias = l.bias;
    j.row_skip = r.row_skip, j.n_rows = r.n_rows, j.n_k = r.n_k, j.n_tokens = runs.n_tokens;
    j.x = runs.x ? runs.x + r.k0 : nullptr, j.xs = runs.xs;
    j.xq = runs.xq ? runs.xq + l.group0 * runs.xqs : nullptr, j.xqs = runs.xqs;
    j.y = l.y, j.ys = l.ys;
    return j.lo < j.hi && row0 < r.row_skip + (uint64_t)j.hi && row0 + rows > r.row_skip + (uint64_t)j.lo;
}

/* The block has written `rows` rows from block0 on, tokens [t0, t0 + tokens). smem: shared, BYTES. */
template <uint32_t BYTES>
DEV void run_done(const lin_after &after, const lin_runs &runs, const lin_job &j, uint64_t block0, uint32_t rows, uint32_t t0, uint32_t tokens,
                  uint8_t *smem)
{
    static_assert(BYTES >= AFTER_SHARED, "what follows needs more shared memory");
    const lin_run &l = runs.run[blockIdx.z];
    lin_after_block(after, j, l.which, l.run.row0, block0, rows, t0, tokens, smem);
}

template <uint32_t PER> static __global__ void linear_runs(CU_PARAM lin_runs runs, CU_PARAM lin_after after)
{
    SHARED(float, w, [LIN_W_FLOATS]);
    SHARED(float, x, [LIN_X_FLOATS]);
    const uint64_t block0 = (uint64_t)blockIdx.x * LIN_BLOCKS;
    lin_job j;
    if (!run_job(runs, block0, WARP, j)) return; /* the whole block */
    for (uint32_t t0 = blockIdx.y * PER * LIN_WARPS; t0 < runs.n_tokens; t0 += gridDim.y * PER * LIN_WARPS) {
        lin_block<PER>(j, block0, t0, w, x);
        run_done<LIN_W_FLOATS * sizeof(float)>(after, runs, j, block0, WARP, t0, PER * LIN_WARPS, reinterpret_cast<uint8_t *>(w));
    }
}

template <uint32_t DT, uint32_t M>
static __global__ void CU_BOUNDS((gemv_shape<DT, M>::THREADS), 4) linear_gemv(CU_PARAM lin_runs runs, uint32_t wk, CU_PARAM lin_after after)
{
    typedef gemv_shape<DT, M> S;
    SHARED(uint8_t, smem, [S::SHARED_BYTES]);
    const uint32_t blocks = S::WARPS / wk;
    const uint64_t block0 = (uint64_t)blockIdx.x * blocks;
    lin_job j;
    if (!run_job(runs, block0, blocks * TILE_ROWS, j)) return; /* the whole block */
    gemv_block<DT, M>(j, block0, wk, 0, smem);
    run_done<S::SHARED_BYTES>(after, runs, j, block0, blocks * TILE_ROWS, 0, M, smem);
}

template <class S> static __global__ void CU_BOUNDS(S::THREADS, 1) linear_mma(CU_PARAM lin_runs runs, CU_PARAM lin_after after)
{
    SHARED(uint8_t, smem, [S::SHARED_BYTES]);
    const uint64_t block0 = (uint64_t)blockIdx.x * S::BLOCKS;
    lin_job j;
    if (!run_job(runs, block0, S::BLOCKS * TILE_ROWS, j)) return; /* the whole block */
    for (uint32_t t0 = blockIdx.y * S::TOKENS; t0 < runs.n_tokens; t0 += gridDim.y * S::TOKENS) {
        mma_block<S>(j, block0, t0, smem);
        run_done<S::SHARED_BYTES>(after, runs, j, block0, S::BLOCKS * TILE_ROWS, t0, S::TOKENS, smem);
    }
}

template <class S> static __global__ void CU_BOUNDS(S::THREADS, 2) linear_float(CU_PARAM lin_runs runs, CU_PARAM lin_after after)
{
    SHARED(uint8_t, smem, [S::SHARED_BYTES]);
    const uint64_t block0 = (uint64_t)blockIdx.x * S::BLOCKS;
    lin_job j;
    if (!run_job(runs, block0, S::BLOCKS * TILE_ROWS, j)) return; /* the whole block */
    for (uint32_t t0 = blockIdx.y * S::TOKENS; t0 < runs.n_tokens; t0 += gridDim.y * S::TOKENS) {
        float_block<S>(j, block0, t0, smem);
        run_done<S::SHARED_BYTES>(after, runs, j, block0, S::BLOCKS * TILE_ROWS, t0, S::TOKENS, smem);
    }
}

/* Puts run i of linear operation `which` behind those that are there. */
static void add_run(lin_runs *s, const op_linear_args *a, uint32_t i, uint32_t which)
{
    const op_weight *w = a->w;
    const uint32_t leaf = i % w->n_leaves;
    lin_run *l = &s->run[s->n++];
    l->run = w->runs[i];
    l->which = which;
    const op_run &r = l->run;
    l->group0 = 0;
    for (uint32_t b = 0; b < leaf; b++) l->group0 += cu_ceil(w->runs[b].n_k, GROUP_K);
    l->lo = a->row_lo > r.row0 ? a->row_lo - r.row0 : 0, l->hi = r.n_rows;
    if (a->row_hi && a->row_hi < r.row0 + l->hi) l->hi = a->row_hi > r.row0 ? a->row_hi - r.row0 : 0;
    l->bias = a->bias ? a->bias + r.row0 : nullptr;
    l->y = a->y + leaf * a->yl + r.row0;
    l->ys = a->ys;
    const uint64_t rows = r.n_rows ? r.row_skip + (uint64_t)r.n_rows : 0;
    const uint32_t groups = cu_ceil(r.n_k, GROUP_K);
    s->dtype = w->dtype;
    if (rows > s->rows) s->rows = rows;
    if (groups > s->groups) s->groups = groups;
}

template <uint32_t DT, uint32_t M> static int launch_gemv(const lin_runs &runs, const lin_after &after, cudaStream_t stream)
{
    typedef gemv_shape<DT, M> S;
    uint32_t wk = gemv_share<DT, M>(runs.groups);
    dim3 grid(cu_ceil(runs.rows, TILE_ROWS * S::WARPS / wk), 1, runs.n);
    return LAUNCH((linear_gemv<DT, M>), grid, S::THREADS, 0, stream, runs, wk, after);
}

template <class S> static dim3 tile_grid(const lin_runs &runs)
{
    return dim3(cu_ceil(runs.rows, TILE_ROWS * S::BLOCKS), grid_y(cu_ceil(runs.n_tokens, S::TOKENS)), runs.n);
}
template <class S> static int launch_mma(const lin_runs &runs, const lin_after &after, cudaStream_t stream)
{
    return LAUNCH(linear_mma<S>, tile_grid<S>(runs), S::THREADS, 0, stream, runs, after);
}
template <class S> static int launch_float(const lin_runs &runs, const lin_after &after, cudaStream_t stream)
{
    return LAUNCH(linear_float<S>, tile_grid<S>(runs), S::THREADS, 0, stream, runs, after);
}

/* Large tiles where they are enough to fill a device. Any choice gives the same bits. */
template <uint32_t DT> static int launch_groups(const lin_runs &runs, const lin_after &after, cudaStream_t stream)
{
    switch (runs.n_tokens) {
    case 1: return launch_gemv<DT, 1>(runs, after, stream);
    case 2: return launch_gemv<DT, 2>(runs, after, stream);
    case 3:
    case 4: return launch_gemv<DT, 4>(runs, after, stream);
    }
    if (runs.n_tokens <= 16) return launch_mma<mma_few<DT>>(runs, after, stream);
    if ((uint64_t)cu_ceil(runs.rows, 128) * cu_ceil(runs.n_tokens, 128) * runs.n < LIN_FILL || runs.n_tokens <= 64)
        return launch_mma<mma_some<DT>>(runs, after, stream);
    return launch_mma<mma_many<DT>>(runs, after, stream);
}

template <uint32_t DT> static int launch_floats(const lin_runs &runs, const lin_after &after, cudaStream_t stream)
{
    if (runs.n_tokens == 1) return launch_float<float_1<DT>>(runs, after, stream);
    if (runs.n_tokens == 2) return launch_float<float_2<DT>>(runs, after, stream);
    if (runs.n_tokens <= 4) return launch_float<float_4<DT>>(runs, after, stream);
    if (runs.n_tokens <= 16) return launch_float<float_few<DT>>(runs, after, stream);
    if ((uint64_t)cu_ceil(runs.rows, 128) * cu_ceil(runs.n_tokens, 64) * runs.n < LIN_FILL)
        return launch_float<float_some<DT>>(runs, after, stream);
    return launch_float<float_many<DT>>(runs, after, stream);
}

static int launch_runs(const lin_runs &runs, const lin_after &after, cudaStream_t stream)
{
    if (runs.xq && runs.dtype == DT_Q8) return launch_groups<DT_Q8>(runs, after, stream);
    if (runs.xq && runs.dtype == DT_Q4) return launch_groups<DT_Q4>(runs, after, stream);
    if (runs.dtype == DT_F32) return launch_floats<DT_F32>(runs, after, stream);
    if (runs.dtype == DT_F16) return launch_floats<DT_F16>(runs, after, stream);
    if (runs.dtype == DT_BF16) return launch_floats<DT_BF16>(runs, after, stream);
    uint32_t per = runs.n_tokens > LIN_WARPS ? 4 : 1; /* q8 and q4 as floats */
    dim3 grid(cu_ceil(runs.rows, WARP), grid_y(cu_ceil(runs.n_tokens, per * LIN_WARPS)), runs.n);
    if (per == 4) return LAUNCH(linear_runs<4>, grid, LIN_THREADS, 0, stream, runs, after);
    return LAUNCH(linear_runs<1>, grid, LIN_THREADS, 0, stream, runs, after);
}

/* What was put together so far; then the list is empty. */
static int flush_runs(lin_runs *runs, const lin_after &after, cudaStream_t stream)
{
    const int e = runs->rows && runs->n_tokens ? launch_runs(*runs, after, stream) : cudaSuccess;
    runs->n = runs->groups = 0;
    runs->rows = 0;
    return e;
}

/* What follows, operation by operation. */
static int give_after(const op_after *o, void *stream)
{
    int e = cudaSuccess;
    for (uint32_t k = 0; k < 2 && e == cudaSuccess; k++) {
        if (o->head_norm[k]) e = cu_norm(o->head_norm[k], stream);
        if (e == cudaSuccess && o->rope[k]) e = cu_rope(o->rope[k], stream);
    }
    if (e == cudaSuccess && o->kv) e = cu_kv_write(o->kv, stream);
    if (e == cudaSuccess && o->act) e = cu_act(o->act, stream);
    if (e == cudaSuccess && o->norm) return cu_rows(o->sum, o->norm, o->quant, stream);
    if (e == cudaSuccess && o->sum) e = cu_reduce(o->sum, stream);
    return e == cudaSuccess && o->quant ? cu_quant(o->quant, stream) : e;
}

int cu_linears(const op_linear_args *a, uint32_t n, const op_after *after, void *stream)
{
    lin_runs runs = {};
    lin_after f = {};
    int e = cudaSuccess;
    if (after && !after_plan(a, n, after, &f)) f = {};
    for (uint32_t k = 0; k < n; k++) {
        runs.x = a[k].x, runs.xs = a[k].xs, runs.xq = a[k].xq, runs.xqs = a[k].xqs, runs.n_tokens = a[k].n_tokens;
        if (runs.x != a->x || runs.xs != a->xs || runs.xq != a->xq || runs.xqs != a->xqs || runs.n_tokens != a->n_tokens) return cudaErrorInvalidValue;
        if (!cu_aligned(a[k].w) || !cu_aligned(a[k].xq, 8)) return cudaErrorMisalignedAddress;
        for (uint32_t i = 0; i < a[k].w->n_parts * a[k].w->n_leaves && e == cudaSuccess; i++) {
            if (runs.n == LIN_RUNS || (runs.n && runs.dtype != a[k].w->dtype)) e = flush_runs(&runs, f, (cudaStream_t)stream);
            add_run(&runs, &a[k], i, k);
        }
    }
    if (e == cudaSuccess) e = flush_runs(&runs, f, (cudaStream_t)stream);
    return e == cudaSuccess && after && f.what == 0 ? give_after(after, stream) : e;
}

int cu_linear(const op_linear_args *a, void *stream) { return cu_linears(a, 1, nullptr, stream); }

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
