/*
 * gemm.cu - linear operations of large prompts near the text of ops.h, not its bits: op_gemm_args of cuda_ops.h.
 *
 * Three kernels in a row: x is rounded to bf16 into cores of 8 tokens x 8 columns; weights that are not bf16 are, into a panel in
 * TILE8 whose leaves follow each other, each padded to whole stages; gemm_mma.cuh multiplies, or gemm_wide.cu. bf16 weights are read where they lie.
 * A panel costs 5 bytes of traffic a weight (q8) and pays from about a thousand tokens on (docs/cuda.md).
 * Scratch: x in cores, then the panel, part after part.
 */
#include "gemm_mma.cuh"

/* Columns of all leaves, each padded to whole stages. */
static uint32_t padded(const op_weight *w)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < w->n_leaves; l++) n += gemm_pieces(w->runs[l].n_k) * GEMM_KS;
    return n;
}
static size_t x_bytes(const op_weight *w, uint32_t n_tokens) { return (size_t)cu_ceil(n_tokens, TILE_ROWS) * padded(w) * TILE_ROWS * 2; }
static uint32_t part_blocks(const op_run *r) { return cu_ceil(r->row_skip + (uint64_t)r->n_rows, TILE_ROWS); }

uint32_t op_cuda_gemm_from(uint32_t dtype)
{
    switch (dtype) {
    case DT_BF16:
    case DT_F16: return 128;
    case DT_Q8:
    case DT_Q4: return 1024;
    default: return UINT32_MAX;
    }
}

bool op_cuda_gemm_wide(void)
{
    if (gemm_wide_load() == cudaSuccess) return true;
    (void)cudaGetLastError(); /* it was asked, nothing failed */
    return false;
}

size_t op_cuda_gemm_scratch(const op_weight *w, uint32_t n_tokens)
{
    size_t n = x_bytes(w, n_tokens);
    for (uint32_t p = 0; w->dtype != DT_BF16 && w->n_leaves && p < w->n_parts; p++)
        n += (size_t)part_blocks(&w->runs[p * w->n_leaves]) * padded(w) * TILE_ROWS * 2;
    return n;
}

/* ---- x ---- */
typedef struct {
    const float *x;
    size_t xs;
    uint32_t n_tokens, n_leaves;
    uint32_t k0[MAX_LEAVES], n_k[MAX_LEAVES], at[MAX_LEAVES]; /* columns of x; the first one's place in cores */
    uint32_t columns;                                        /* padded */
    uint8_t *y;
} gemm_x_args;

enum { GEMM_X_THREADS = 256 };
/* The first n of 8 columns, then zeros. */
DEV void some_columns(const float *x, uint32_t n, float (&v)[8])
{
    if (n >= 8 && reinterpret_cast<uintptr_t>(x) % 16 == 0) {
        const float4 a = reinterpret_cast<const float4 *>(x)[0], b = reinterpret_cast<const float4 *>(x)[1];
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
#pragma unroll
    for (uint32_t c = 0; c < 8; c++) v[c] = c < n ? x[c] : 0.0f;
}
/* 8 numbers as bf16. */
DEV uint4 rounded(const float (&v)[8]) { return make_uint4(bf2_of(v[0], v[1]), bf2_of(v[2], v[3]), bf2_of(v[4], v[5]), bf2_of(v[6], v[7])); }

/* A thread is 8 columns of a token; 8 neighbours are a core. */
static __global__ void gemm_x(gemm_x_args a)
{
    const uint32_t i = blockIdx.x * GEMM_X_THREADS + threadIdx.x, column = i / TILE_ROWS * 8;
    if (column >= a.columns) return;
    uint32_t l = 0;
    while (l + 1 < a.n_leaves && a.at[l + 1] <= column) l++;
    const uint32_t k = column - a.at[l], n = k < a.n_k[l] ? a.n_k[l] - k : 0;
    CELL_ROWS(b, (a.n_tokens + TILE_ROWS - 1) / TILE_ROWS)
    {
        const size_t t = b * TILE_ROWS + i % TILE_ROWS;
        float v[8];
        some_columns(a.x + t * a.xs + a.k0[l] + k, t < a.n_tokens ? n : 0, v);
        uint8_t *to = a.y + ((b * a.columns + column) * TILE_ROWS + i % TILE_ROWS * 8) * 2;
        *reinterpret_cast<uint4 *>(to) = rounded(v);
    }
}

static int round_x(const op_gemm_args *a, cudaStream_t stream)
{
    gemm_x_args x = {};
    x.x = a->x, x.xs = a->xs, x.n_tokens = a->n_tokens, x.n_leaves = a->w->n_leaves, x.columns = padded(a->w);
    x.y = static_cast<uint8_t *>(a->scratch);
    for (uint32_t l = 0, at = 0; l < x.n_leaves; l++) {
        x.k0[l] = a->w->runs[l].k0, x.n_k[l] = a->w->runs[l].n_k, x.at[l] = at;
        at += gemm_pieces(x.n_k[l]) * GEMM_KS;
    }
    dim3 grid(cu_ceil(x.columns, GEMM_X_THREADS), grid_y(cu_ceil(x.n_tokens, TILE_ROWS)));
    return LAUNCH(gemm_x, grid, GEMM_X_THREADS, 0, stream, x);
}

/* ---- panels ---- */
/* Column k of the 8 rows of a block, as floats. */
template <uint32_t DT> DEV void panel_rows(const uint8_t *block, uint32_t k, float (&v)[8])
{
    const uint32_t kb = k % GROUP_K, shift = kb % 4 * 8;
    if (DT == DT_F16) {
        const uint4 h = *reinterpret_cast<const uint4 *>(block + (size_t)k * 16);
        const uint32_t u[4] = {h.x, h.y, h.z, h.w};
#pragma unroll
        for (uint32_t r = 0; r < 8; r++) v[r] = r % 2 ? f16_high(u[r / 2]) : f16_low(u[r / 2]);
        return;
    }
    const uint8_t *tile = block + (size_t)(k / GROUP_K) * (DT == DT_Q8 ? Q8_TILE : Q4_TILE);
    const uint4 *words = reinterpret_cast<const uint4 *>(tile + (DT == DT_Q8 ? 16 + kb / 4 * 32 : 32 + kb / 8 * 32));
    const uint4 d4 = *reinterpret_cast<const uint4 *>(tile), m4 = *reinterpret_cast<const uint4 *>(tile + 16), lo = words[0], hi = words[1];
    const uint32_t d[4] = {d4.x, d4.y, d4.z, d4.w}, m[4] = {m4.x, m4.y, m4.z, m4.w}, q[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
#pragma unroll
    for (uint32_t r = 0; r < 8; r++) {
        const float scale = r % 2 ? f16_high(d[r / 2]) : f16_low(d[r / 2]), low = r % 2 ? f16_high(m[r / 2]) : f16_low(m[r / 2]);
        if (DT == DT_Q8) v[r] = scale * (float)(int8_t)(q[r] >> shift);
        else v[r] = scale * (float)(q[r] >> (shift + kb / 4 % 2 * 4) & 15) + low;
    }
}

typedef struct {
    uint8_t *part[GEMM_RUNS];
    uint32_t columns;
} gemm_panels;
/* A warp is 32 columns of a row block, a lane one column of its 8 rows. */
template <uint32_t DT> static __global__ void gemm_panel(gemm_runs from, gemm_panels to)
{
    const uint32_t column = blockIdx.x * GEMM_X_THREADS + threadIdx.x;
    if (column >= to.columns) return;
    const op_run *leaves = from.run + blockIdx.z * from.n_leaves;
    uint32_t l = 0, k = column; /* of the leaf */
    while (k >= gemm_pieces(leaves[l].n_k) * GEMM_KS) k -= gemm_pieces(leaves[l++].n_k) * GEMM_KS;
    const op_run &r = leaves[l];
    CELL_ROWS(b, (r.row_skip + (uint64_t)r.n_rows + TILE_ROWS - 1) / TILE_ROWS)
    {
        float v[8] = {};
        if (k < r.n_k) panel_rows<DT>(r.data + b * r.block_stride, k, v);
        reinterpret_cast<uint4 *>(to.part[blockIdx.z])[b * to.columns + column] = rounded(v);
    }
}

/* Brings the runs into a panel at *p, which moves behind it, and makes them the panel's. */
static int make_panel(gemm_runs *runs, uint32_t dtype, uint32_t columns, uint8_t **p, cudaStream_t stream)
{
    const gemm_runs from = *runs;
    gemm_panels to = {};
    uint32_t most = 1;
    to.columns = columns;
    runs->n_leaves = 1;
    for (uint32_t i = 0; i < from.n_parts; i++) {
        op_run &r = runs->run[i] = from.run[i * from.n_leaves];
        r.data = to.part[i] = *p, r.block_stride = (uint64_t)columns * TILE_ROWS * 2, r.k0 = 0, r.n_k = columns;
        *p += part_blocks(&r) * r.block_stride;
        if (part_blocks(&r) > most) most = part_blocks(&r);
    }
    dim3 grid(cu_ceil(columns, GEMM_X_THREADS), grid_y(most), from.n_parts);
    if (dtype == DT_Q8) return LAUNCH(gemm_panel<DT_Q8>, grid, GEMM_X_THREADS, 0, stream, from, to);
    if (dtype == DT_Q4) return LAUNCH(gemm_panel<DT_Q4>, grid, GEMM_X_THREADS, 0, stream, from, to);
    return LAUNCH(gemm_panel<DT_F16>, grid, GEMM_X_THREADS, 0, stream, from, to);
}

/* ---- the product ---- */
static __global__ void CU_BOUNDS(gemm_square::THREADS, 2) gemm_mma(gemm_args a, gemm_runs runs, uint32_t n_pieces)
{
    DYN_SHARED(uint8_t, stage);
    const op_run *leaves = runs.run + blockIdx.z * runs.n_leaves;
    const uint64_t block0 = (uint64_t)blockIdx.y * gemm_square::ROWS;
    if (block0 >= run_blocks(leaves[0])) return; /* the whole block */
    if (PTX_MMA_BF16) gemm_block(a, leaves, n_pieces, block0, blockIdx.x * gemm_square::TOKENS * TILE_ROWS, stage);
}

/* Tiles of tokens are neighbours: they share the rows that they read, and all of x stays in the cache. */
static int launch(const op_gemm_args *a, const gemm_runs &runs, uint32_t columns, cudaStream_t stream)
{
    gemm_args g = {};
    uint32_t most = 1;
    g.x = static_cast<const uint8_t *>(a->scratch), g.x_stride = (uint64_t)columns * TILE_ROWS * 2;
    g.bias = a->bias, g.y = a->y, g.ys = a->ys, g.n_tokens = a->n_tokens;
    for (uint32_t i = 0; i < runs.n_parts; i++)
        if (part_blocks(&runs.run[i * runs.n_leaves]) > most) most = part_blocks(&runs.run[i * runs.n_leaves]);
    if (a->wide) return gemm_wide_launch(&g, &runs, most, columns / GEMM_KS, stream);
    dim3 grid(cu_ceil(a->n_tokens, gemm_square::TOKENS * TILE_ROWS), cu_ceil(most, gemm_square::ROWS), runs.n_parts);
    return LAUNCH(gemm_mma, grid, gemm_square::THREADS, gemm_square::SHARED, stream, g, runs, columns / GEMM_KS);
}

int cu_gemm(const op_gemm_args *a, void *stream_)
{
    const op_weight *w = a->w;
    cudaStream_t stream = (cudaStream_t)stream_;
    uint8_t *panel = static_cast<uint8_t *>(a->scratch) + x_bytes(w, a->n_tokens);
    if (a->n_tokens == 0 || w->n_rows == 0 || w->n_leaves == 0 || w->n_parts == 0) return cudaSuccess;
    if (w->n_leaves > MAX_LEAVES || op_cuda_gemm_from(w->dtype) == UINT32_MAX) return cudaErrorInvalidValue;
    if (!cu_aligned(w) || !cu_aligned(a->scratch, 16)) return cudaErrorMisalignedAddress;
    int e = a->x_ready ? cudaSuccess : round_x(a, stream);
    const uint32_t at_once = GEMM_RUNS / w->n_leaves;
    for (uint32_t p = 0; p < w->n_parts && e == cudaSuccess; p += at_once) {
        gemm_runs runs = {};
        runs.n_leaves = w->n_leaves, runs.n_parts = w->n_parts - p < at_once ? w->n_parts - p : at_once;
        for (uint32_t i = 0; i < runs.n_parts * w->n_leaves; i++) runs.run[i] = w->runs[p * w->n_leaves + i];
        if (w->dtype != DT_BF16) e = make_panel(&runs, w->dtype, padded(w), &panel, stream);
        if (e == cudaSuccess) e = launch(a, runs, padded(w), stream);
    }
    return e;
}

int cu_gemm_load(void)
{
    int e = cudaFuncSetAttribute(gemm_mma, cudaFuncAttributeMaxDynamicSharedMemorySize, gemm_square::SHARED);
    (void)op_cuda_gemm_wide();
    return e == cudaSuccess ? cu_load(gemm_x, gemm_panel<DT_Q8>, gemm_panel<DT_Q4>, gemm_panel<DT_F16>, gemm_mma) : e;
}
