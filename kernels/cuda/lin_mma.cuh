/*
 * lin_mma.cuh - q8 and q4 weights times the int8 groups of many tokens, by int8 mma: one instruction is 16 tokens x 8 rows
 * over a whole group, exact as any order is, and starts from the bits of 1.5 * 2^23 as in lin_gemv.cuh. The chain of ops.h then
 * stays in the registers of one lane, in ascending groups.
 *
 * Tokens are the rows of mma's A, rows of weights the columns of B. A block is WT x WR warps, a warp MT x 16 tokens times NT row blocks;
 * stages of GS groups come by cp.async, ST - 1 of them ahead. In shared memory a stage is
 *   weights  [row block][GS tiles as they lie in memory]: B's registers are words c * 8 + g of a tile, all 32 banks
 *   groups   [group][half][token][16 bytes of q], which ldmatrix reads without conflicts, and [group][token](d, s)
 * What lies behind the last row block or token is a copy of the last one, computed and not stored.
 */
#ifndef TESS_LIN_MMA_CUH
#define TESS_LIN_MMA_CUH
#include "cu_weight.cuh"

template <uint32_t DT, uint32_t MT_, uint32_t NT_, uint32_t WT_, uint32_t WR_, uint32_t GS_, uint32_t ST_> struct mma_shape {
    enum : uint32_t {
        IS_Q8 = DT == DT_Q8, MT = MT_, NT = NT_, WT = WT_, WR = WR_, GS = GS_, ST = ST_,
        THREADS = WT * WR * WARP,
        TOKENS = 16 * MT * WT,
        BLOCKS = NT * WR, /* row blocks */
        TILE = DT == DT_Q8 ? Q8_TILE : Q4_TILE,
        ROW = GS * TILE,  /* bytes of a row block */
        X = BLOCKS * ROW, /* offsets in a stage */
        DS = X + GS * TOKENS * GROUP_K,
        BYTES = DS + GS * TOKENS * 8,
        SHARED_BYTES = ST * BYTES,
    };
};

/* Tiles of tokens x rows: 16 x 32, 64 x 32, 128 x 128. */
template <uint32_t DT> using mma_few = mma_shape<DT, 1, 1, 1, 4, 4, 6>;
template <uint32_t DT> using mma_some = mma_shape<DT, 2, 2, 2, 2, 1, 6>;
template <uint32_t DT> using mma_many = mma_shape<DT, 4, 4, 2, 4, 2, 2>;

/* Starts copying n groups from g0 on. */
template <class S> DEV void mma_load(const lin_job &j, uint64_t block0, uint32_t t0, uint32_t g0, uint32_t n, uint8_t *to)
{
    const uint32_t chunks = S::ROW / 16, parts = sizeof(op_group) / 8;
    const uint64_t last = job_blocks(j) - 1;
#pragma unroll
    for (uint32_t i = threadIdx.x; i < S::BLOCKS * chunks; i += S::THREADS) {
        const uint32_t b = i / chunks, c = i % chunks;
        const uint64_t block = block0 + b < last ? block0 + b : last;
        if (c < n * (S::TILE / 16)) cp_async_16(to + i * 16, j.data + block * j.block_stride + (size_t)g0 * S::TILE + c * 16);
    }
#pragma unroll
    for (uint32_t i = threadIdx.x; i < S::GS * S::TOKENS * parts; i += S::THREADS) {
        const uint32_t g = i / (S::TOKENS * parts), t = i / parts % S::TOKENS, part = i % parts;
        if (g >= n) continue;
        const op_group *x = j.xq + (g0 + g) * j.xqs + min(t0 + t, j.n_tokens - 1);
        const uint32_t q = S::X + ((g * 2 + (part - 1) / 2) * S::TOKENS + t) * 16 + (part - 1) % 2 * 8;
        cp_async_8(to + (part == 0 ? S::DS + (g * S::TOKENS + t) * 8 : q), reinterpret_cast<const uint8_t *>(x) + part * 8);
    }
}

/* B's registers of a tile: columns 4c .. 4c + 3 and 16 further, of row lane / 4. */
template <class S> DEV void mma_weights(const uint8_t *tile, uint32_t lane, uint32_t (&b)[2])
{
    const uint32_t *w = reinterpret_cast<const uint32_t *>(tile), c = lane % 4, g = lane / 4;
    if (S::IS_Q8) {
        b[0] = w[4 + c * 8 + g], b[1] = w[36 + c * 8 + g];
    } else { /* the low and the high half of word c / 2 */
        b[0] = w[8 + c / 2 * 8 + g] >> c % 2 * 4 & 0x0f0f0f0f, b[1] = w[24 + c / 2 * 8 + g] >> c % 2 * 4 & 0x0f0f0f0f;
    }
}

/* One group: acc[m][n] += the terms of 16 tokens x 8 rows; of a lane tokens g, g + 8 and rows 2c, 2c + 1. */
template <class S>
DEV void mma_group(const uint8_t *stage, uint32_t g, uint32_t tok0, uint32_t blk0, float (&acc)[S::MT][S::NT][4])
{
    const uint32_t lane = threadIdx.x % WARP;
    const int32_t zero[4] = {DOT_ZERO, DOT_ZERO, DOT_ZERO, DOT_ZERO};
    uint32_t a[S::MT][4];
    float2 x[S::MT][2];
#pragma unroll
    for (uint32_t m = 0; m < S::MT; m++) {
        const uint32_t t = tok0 + m * 16;
        ldmatrix_x4(a[m], stage + S::X + ((g * 2 + lane / 16) * S::TOKENS + t + lane % 16) * 16);
        const float2 *ds = reinterpret_cast<const float2 *>(stage + S::DS) + g * S::TOKENS + t + lane / 4;
        x[m][0] = ds[0], x[m][1] = ds[8];
    }
#pragma unroll
    for (uint32_t n = 0; n < S::NT; n++) {
        const uint8_t *tile = stage + (blk0 + n) * S::ROW + g * S::TILE;
        const uint32_t *head = reinterpret_cast<const uint32_t *>(tile), d = head[lane % 4];
        const float w[2] = {f16_low(d), f16_high(d)};
        const uint32_t mins = !S::IS_Q8 ? head[4 + lane % 4] : 0;
        const float low[2] = {f16_low(mins), f16_high(mins)};
        uint32_t b[2];
        mma_weights<S>(tile, lane, b);
#pragma unroll
        for (uint32_t m = 0; m < S::MT; m++) {
            int32_t dot[4];
            mma_s8_from(dot, a[m], b, zero);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                acc[m][n][i] = fmaf(dot_value(dot[i]), w[i % 2] * x[m][i / 2].x, acc[m][n][i]);
                if (!S::IS_Q8) acc[m][n][i] = fmaf(low[i % 2], x[m][i / 2].y, acc[m][n][i]);
            }
        }
    }
}

template <class S> DEV void mma_put(const lin_job &j, uint64_t block0, uint32_t t0, const float (&acc)[S::MT][S::NT][4])
{
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t m = 0; m < S::MT; m++)
#pragma unroll
        for (uint32_t n = 0; n < S::NT; n++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t t = t0 + m * 16 + lane / 4 + i / 2 * 8;
                const int64_t row = (int64_t)((block0 + n) * TILE_ROWS + lane % 4 * 2 + i % 2) - j.row_skip;
                if (t < j.n_tokens && row >= j.lo && row < j.hi) job_put(j, t, (uint32_t)row, acc[m][n][i]);
            }
}

/* The row blocks from block0 on times the tokens from t0 on. smem: shared, SHARED_BYTES. */
template <class S> DEV void mma_block(const lin_job &j, uint64_t block0, uint32_t t0, uint8_t *smem)
{
    uint8_t(*stage)[S::BYTES] = reinterpret_cast<uint8_t(*)[S::BYTES]>(smem);
    const uint32_t warp = threadIdx.x / WARP, tok0 = warp % S::WT * S::MT * 16, blk0 = warp / S::WT * S::NT, n_groups = job_groups(j);
    float acc[S::MT][S::NT][4] = {};
    __syncthreads(); /* what an earlier call left here was read */
#pragma unroll
    for (uint32_t s = 0; s + 1 < S::ST; s++) {
        if (s * S::GS < n_groups) mma_load<S>(j, block0, t0, s * S::GS, min(n_groups - s * S::GS, (uint32_t)S::GS), stage[s]);
        cp_async_commit();
    }
    for (uint32_t g0 = 0, s = 0; g0 < n_groups; g0 += S::GS, s = s + 1 < S::ST ? s + 1 : 0) {
        cp_async_wait<(int)S::ST - 2>();
        __syncthreads(); /* stage s has come for all, and the stage before it is free */
        const uint32_t next = g0 + (S::ST - 1) * S::GS, n = min(n_groups - g0, (uint32_t)S::GS);
        if (next < n_groups) mma_load<S>(j, block0, t0, next, min(n_groups - next, (uint32_t)S::GS), stage[s ? s - 1 : S::ST - 1]);
        cp_async_commit();
        if (n == S::GS) {
#pragma unroll
            for (uint32_t g = 0; g < S::GS; g++) mma_group<S>(stage[s], g, tok0, blk0, acc);
        } else {
            for (uint32_t g = 0; g < n; g++) mma_group<S>(stage[s], g, tok0, blk0, acc);
        }
    }
    mma_put<S>(j, block0 + blk0, t0 + tok0, acc);
}
#endif
