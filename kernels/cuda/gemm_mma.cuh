/*
 * gemm_mma.cuh - bf16 weights times bf16 activations by mma m16n8k16 with f32 sums: the large prompts of --compute auto.
 *
 * Both operands lie in cores of 8 x 8 numbers, 128 bytes each, so that ldmatrix meets no bank twice and no address is swizzled:
 *   weights      TILE8, which is [row block][k][8 rows]: a core is 8 columns; B's registers come by ldmatrix transposed
 *   activations  [block of 8 tokens][k / 8][8 tokens][8 columns], made by gemm.cu; A's registers come by ldmatrix
 * A block of threads is 2 x 2 warps, 128 tokens times 128 rows, a warp 64 x 64. Stages of 32 columns come by cp.async, three ahead.
 * K is walked leaf after leaf; a leaf that ends inside a stage is filled with zeros there, and x has its columns at the same place.
 * What lies behind the last row block or token block is a copy of the last one, computed and not stored.
 */
#ifndef TESS_GEMM_MMA_CUH
#define TESS_GEMM_MMA_CUH
#include "cu_ops.cuh"
#include "ptx.cuh"

enum : uint32_t {
    GEMM_KS = 32, /* columns of a stage */
    GEMM_STRIP = GEMM_KS * TILE_ROWS * 2, /* bytes of a row block or token block in a stage */
    GEMM_RUNS = 32, /* of one launch */
    GEMM_MT = 4, /* 16 tokens each, of a warp */
    GEMM_NT = 8, /* row blocks of a warp */
};
/* What a block of threads computes: blocks of rows and of tokens, and how. */
template <uint32_t ROWS_, uint32_t TOKENS_, uint32_t THREADS_, uint32_t ST_> struct gemm_tile {
    enum : uint32_t {
        ROWS = ROWS_, TOKENS = TOKENS_, THREADS = THREADS_, ST = ST_,
        X = ROWS * GEMM_STRIP, /* where x begins in a stage */
        STAGE = (ROWS + TOKENS) * GEMM_STRIP, SHARED = ST * STAGE,
    };
};
typedef gemm_tile<16, 16, 128, 4> gemm_square;
typedef struct {
    op_run run[GEMM_RUNS]; /* [parts][n_leaves] */
    uint32_t n_leaves, n_parts;
} gemm_runs;
typedef struct {
    const uint8_t *x; /* in cores */
    uint64_t x_stride; /* bytes of a block of tokens */
    const float *bias;
    float *y;
    size_t ys;
    uint32_t n_tokens;
} gemm_args;

/* gemm_wide.cu: the same product on devices that have wgmma. most: row blocks of the largest part. load: not 0 where they have not. */
int gemm_wide_load(void);
int gemm_wide_launch(const gemm_args *a, const gemm_runs *runs, uint32_t most, uint32_t n_pieces, cudaStream_t stream);

static __host__ __device__ inline uint32_t gemm_pieces(uint32_t n_k) { return (n_k + GEMM_KS - 1) / GEMM_KS; }
DEV uint64_t run_blocks(const op_run &r) { return (r.row_skip + (uint64_t)r.n_rows + TILE_ROWS - 1) / TILE_ROWS; }

/* Where in K the next stage is taken from. */
typedef struct { uint32_t piece, leaf, k; } gemm_place;

template <class S> DEV void gemm_load(const gemm_args &a, const op_run *leaves, gemm_place &at, uint64_t block0, uint32_t tok0, uint8_t *to)
{
    const op_run &r = leaves[at.leaf];
    const uint64_t last = run_blocks(r) - 1;
    const uint32_t last_t = (a.n_tokens - 1) / TILE_ROWS, chunks = GEMM_STRIP / 16; /* of 8 numbers: a warp copies a strip */
    const uint32_t c = threadIdx.x % chunks, b = threadIdx.x / chunks, k = at.k + c;
    const uint8_t *from = r.data + (size_t)(k < r.n_k ? k : 0) * 16, *from_x = a.x + (size_t)at.piece * GEMM_STRIP + c * 16;
    to += b * GEMM_STRIP + c * 16;
#pragma unroll
    for (uint32_t i = 0; i < S::ROWS; i += S::THREADS / chunks) {
        const uint64_t block = block0 + b + i < last ? block0 + b + i : last;
        if (S::ROWS % (S::THREADS / chunks) == 0 || b + i < S::ROWS) cp_async_16(to + i * GEMM_STRIP, from + block * r.block_stride, k < r.n_k ? 16 : 0);
    }
#pragma unroll
    for (uint32_t i = 0; i < S::TOKENS; i += S::THREADS / chunks)
        cp_async_16(to + S::X + i * GEMM_STRIP, from_x + min(tok0 / TILE_ROWS + b + i, last_t) * a.x_stride);
    at.piece++, at.k += GEMM_KS;
    if (at.k >= r.n_k) at.leaf++, at.k = 0;
}

/* 16 columns of a stage; w and x point at the warp's first row block and token block. */
DEV void gemm_step(const uint8_t *w, const uint8_t *x, uint32_t s, float (&acc)[GEMM_MT][GEMM_NT][4])
{
    const uint32_t lane = threadIdx.x % WARP, m = lane / 8, row = lane % 8 * 16;
    uint32_t a[GEMM_MT][4];
#pragma unroll
    for (uint32_t i = 0; i < GEMM_MT; i++) /* tokens 0 and 8 of the first core, then of the second */
        ldmatrix_x4(a[i], x + (2 * i + m % 2) * GEMM_STRIP + (2 * s + m / 2) * 128 + row);
#pragma unroll
    for (uint32_t n = 0; n < GEMM_NT; n += 2) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, w + (n + m / 2) * GEMM_STRIP + (2 * s + m % 2) * 128 + row);
        const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
#pragma unroll
        for (uint32_t i = 0; i < GEMM_MT; i++) {
            mma_bf16(acc[i][n], a[i], b0);
            mma_bf16(acc[i][n + 1], a[i], b1);
        }
    }
}

/* Of a lane tokens g, g + 8 and rows 2c, 2c + 1. */
template <uint32_t MT, uint32_t NT>
DEV void gemm_put(const gemm_args &a, const op_run &r, uint64_t block0, uint32_t tok0, const float (&acc)[MT][NT][4])
{
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t n = 0; n < NT; n++)
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            const int64_t row = (int64_t)((block0 + n) * TILE_ROWS + lane % 4 * 2 + h) - r.row_skip;
            if (row < 0 || row >= r.n_rows) continue;
            const size_t at = r.row0 + (size_t)row;
#pragma unroll
            for (uint32_t i = 0; i < 2 * MT; i++) {
                const uint32_t t = tok0 + i * 8 + lane / 4;
                const float v = acc[i / 2][n][i % 2 * 2 + h];
                if (t < a.n_tokens) a.y[t * a.ys + at] = a.bias ? v + a.bias[at] : v;
            }
        }
}

DEV void gemm_block(const gemm_args &a, const op_run *leaves, uint32_t n_pieces, uint64_t block0, uint32_t tok0, uint8_t *stage)
{
    typedef gemm_square S;
    const uint32_t warp = threadIdx.x / WARP, wr = warp % 2 * GEMM_NT, wt = warp / 2 * 2 * GEMM_MT;
    gemm_place at = {};
    float acc[GEMM_MT][GEMM_NT][4] = {};
#pragma unroll
    for (uint32_t s = 0; s + 1 < S::ST; s++) {
        if (at.piece < n_pieces) gemm_load<S>(a, leaves, at, block0, tok0, stage + s * S::STAGE);
        cp_async_commit();
    }
    for (uint32_t p = 0; p < n_pieces; p++) {
        cp_async_wait<(int)S::ST - 2>();
        __syncthreads(); /* stage p has come for all, and the stage before it is free */
        if (at.piece < n_pieces) gemm_load<S>(a, leaves, at, block0, tok0, stage + at.piece % S::ST * S::STAGE);
        cp_async_commit();
        const uint8_t *now = stage + p % S::ST * S::STAGE;
#pragma unroll
        for (uint32_t s = 0; s < GEMM_KS / 16; s++)
            gemm_step(now + wr * GEMM_STRIP, now + S::X + wt * GEMM_STRIP, s, acc);
    }
    gemm_put(a, leaves[0], block0 + wr, tok0 + wt * TILE_ROWS, acc);
}
#endif
