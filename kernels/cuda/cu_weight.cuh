/*
 * cu_weight.cuh - weights in TILE8 and a block's part of a linear operation; here the plain form, in which q8 and q4 weights are
 * computed as floats (--compute f32): 32 rows times up to 16 tokens. lin_gemv, lin_mma and lin_float are the fast ones.
 *
 * A block walks K in pieces. All threads copy a piece of the weights and of the activations to shared memory; then lane l of warp w
 * is row l of the block's four row blocks and keeps one chain for each of the tokens w, w + 4, ...: the order of ops.h, whatever
 * the shape. Shared memory holds weights as [4 row blocks][k][8 rows], a row block padded by 8 floats, so that the
 * 32 lanes meet 32 banks.
 */
#ifndef TESS_CU_WEIGHT_CUH
#define TESS_CU_WEIGHT_CUH
#include "cu_ops.cuh"
#include "ptx.cuh"

enum {
    LIN_WARPS = 4,
    LIN_THREADS = LIN_WARPS * WARP,
    LIN_BLOCKS = WARP / TILE_ROWS,   /* row blocks */
    LIN_K = 64,                      /* columns of a piece of floats */
    LIN_ROW = LIN_K * TILE_ROWS + 8, /* floats of a row block in shared memory */
    LIN_TOKENS = 16,                 /* most tokens of a block */
    LIN_W_FLOATS = LIN_BLOCKS * LIN_ROW,
    LIN_X_FLOATS = LIN_TOKENS * LIN_K,
};

/* One weight's rows, or a part of them, on some tokens. */
typedef struct {
    const uint8_t *data;
    uint64_t block_stride;
    uint32_t dtype, row_skip, n_rows, n_k;
    uint32_t lo, hi;       /* rows of the run that are wanted */
    const float *x, *bias; /* x at the run's first column, bias and y at its first row */
    const op_group *xq;    /* at the run's first group, or NULL */
    size_t xs, xqs, ys;
    uint32_t n_tokens;
    float *y;
} lin_job;

DEV bool is_quant(uint32_t dtype) { return dtype == DT_Q8 || dtype == DT_Q4; }
DEV uint32_t tile_bytes(uint32_t dtype) { return dtype == DT_Q8 ? Q8_TILE : Q4_TILE; }
DEV float f16_at(const uint8_t *p, uint32_t i) { return f16_value(reinterpret_cast<const uint16_t *>(p)[i]); }

DEV uint64_t job_blocks(const lin_job &j) { return (j.row_skip + (uint64_t)j.n_rows + TILE_ROWS - 1) / TILE_ROWS; }
DEV uint32_t job_groups(const lin_job &j) { return (j.n_k + GROUP_K - 1) / GROUP_K; }
DEV void job_put(const lin_job &j, uint32_t t, uint32_t row, float acc)
{
    j.y[t * j.ys + row] = j.bias ? acc + j.bias[row] : acc;
}

/* Sums of a group, at most 32 * 128 * 127 in magnitude, that started from DOT_ZERO. */
enum : int32_t { DOT_ZERO = 0x4b400000 }; /* the bits of 1.5 * 2^23 */
DEV float dot_value(int32_t dot) { return float_of((uint32_t)dot) - 0x1.8p23f; }

/* Lane r, column k of a row block of any type. */
DEV float block_value(uint32_t dtype, const uint8_t *block, uint32_t r, uint32_t k)
{
    if (!is_quant(dtype)) return widen(dtype, block, (size_t)k * TILE_ROWS + r);
    const uint8_t *tile = block + (size_t)(k / GROUP_K) * tile_bytes(dtype);
    uint32_t i = k % GROUP_K;
    if (dtype == DT_Q8) return f16_at(tile, r) * (float)(int8_t)tile[16 + i / 4 * 32 + 4 * r + i % 4];
    uint32_t code = (uint32_t)tile[32 + i / 8 * 32 + 4 * r + i % 4] >> (i % 8 < 4 ? 0 : 4) & 15;
    return f16_at(tile, r) * (float)code + f16_at(tile, 8 + r);
}

/* ---- a piece of m columns from column k on ---- */
DEV void stage_weights(const lin_job &j, uint64_t block0, uint32_t k, uint32_t m, float *w)
{
    uint64_t blocks = job_blocks(j);
    for (uint32_t i = threadIdx.x; i < LIN_BLOCKS * LIN_K * TILE_ROWS; i += LIN_THREADS) {
        uint32_t b = i / (LIN_K * TILE_ROWS), c = i / TILE_ROWS % LIN_K, r = i % TILE_ROWS;
        if (c >= m || block0 + b >= blocks) continue; /* nobody uses them */
        w[b * LIN_ROW + c * TILE_ROWS + r] = block_value(j.dtype, j.data + (block0 + b) * j.block_stride, r, k + c);
    }
}
DEV void stage_columns(const lin_job &j, uint32_t t0, uint32_t k, uint32_t m, float *x)
{
    uint32_t n = min(j.n_tokens - t0, (uint32_t)LIN_TOKENS);
    for (uint32_t i = threadIdx.x; i < n * LIN_K; i += LIN_THREADS)
        if (i % LIN_K < m) x[i] = j.x[(t0 + i / LIN_K) * j.xs + k + i % LIN_K];
}

template <uint32_t PER>
DEV void dot_rows(const lin_job &j, uint64_t block0, uint32_t t0, uint32_t n, float *w, float *x, float (&acc)[PER])
{
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const float *wl = w + lane / TILE_ROWS * LIN_ROW + lane % TILE_ROWS, *xl = x + warp * LIN_K;
    for (uint32_t k = 0; k < j.n_k; k += LIN_K) {
        uint32_t m = min(j.n_k - k, (uint32_t)LIN_K);
        __syncthreads(); /* the last piece was used */
        stage_weights(j, block0, k, m, w);
        stage_columns(j, t0, k, m, x);
        __syncthreads();
        for (uint32_t c = 0; n > 0 && c < m; c++) {
            float v = wl[c * TILE_ROWS];
#pragma unroll
            for (uint32_t i = 0; i < PER; i++)
                if (i < n) acc[i] = fmaf(v, xl[i * LIN_WARPS * LIN_K + c], acc[i]);
        }
    }
}

/* Rows of the four row blocks from block0 on, times the tokens t0 .. t0 + 4 * PER - 1, by a whole block of threads. */
template <uint32_t PER> DEV void lin_block(const lin_job &j, uint64_t block0, uint32_t t0, float *w, float *x)
{
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int64_t row = (int64_t)(block0 * TILE_ROWS + lane) - j.row_skip;
    bool mine = row >= j.lo && row < j.hi;
    uint32_t left = j.n_tokens - t0,
             n = mine && left > warp ? (left - warp + LIN_WARPS - 1) / LIN_WARPS : 0; /* tokens of this thread */
    float acc[PER] = {};
    dot_rows<PER>(j, block0, t0, n, w, x, acc);
#pragma unroll
    for (uint32_t i = 0; i < PER; i++)
        if (i < n) job_put(j, t0 + warp + i * LIN_WARPS, (uint32_t)row, acc[i]);
}
#endif
