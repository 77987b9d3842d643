/*
 * lin_gemv.cuh - q8 and q4 weights times the int8 groups of one to four tokens, where reading the weights is all the work.
 *
 * A warp works on pieces of 16 groups of one row block; `wk` warps share a row block and take its pieces in turn, so that a
 * matrix of few rows still keeps every multiprocessor loading. A round is one piece of each warp. While a round is computed,
 * cp.async brings the next one: 16 bytes a lane, contiguous.
 *
 * In a piece lane (g, h) = (lane % 16, lane / 16) takes group g of the rows 4h .. 4h + 3: 16 bytes are 4 columns of 4 rows. The
 * tile stride (272 bytes; 160 padded to 176) lets the 8 lanes of a 128-bit load meet all banks. The integer sums of a group
 * are exact in any order; they start from the bits of 1.5 * 2^23, so that one subtraction makes a float of them. Sums and
 * scales go to shared memory, and lane 8t + r of the row block's first warp adds those of token t, row r in ascending groups:
 * the chain of ops.h.
 */
#ifndef TESS_LIN_GEMV_CUH
#define TESS_LIN_GEMV_CUH
#include "cu_weight.cuh"

enum {
    GEMV_PIECE = 16, /* groups */
    GEMV_HALF = 4 * GEMV_PIECE + 4,        /* numbers of 4 rows in a piece, padded to other banks */
    GEMV_ROWS = 2 * GEMV_HALF,             /* of 8 rows */
    GROUP_WORDS = sizeof(op_group) / 8,    /* of 8 bytes */
};

/* M: tokens, 1, 2 or 4. */
template <uint32_t DT, uint32_t M> struct gemv_shape {
    enum : uint32_t {
        WARPS = M == 1 ? 4 : 2,
        THREADS = WARPS * WARP,
        TILE = DT == DT_Q8 ? Q8_TILE : Q4_TILE,
        CHUNKS = TILE / 16,
        STRIDE = DT == DT_Q8 ? Q8_TILE : Q4_TILE + 16,
        W_BYTES = GEMV_PIECE * STRIDE,
        BYTES = W_BYTES + M * GEMV_PIECE * sizeof(op_group),
        /* floats of a piece's terms: sums and scales of each token; q4: minima, and the groups' sums of each token */
        SCALES = M * GEMV_ROWS,
        MINS = 2 * SCALES,
        XSUMS = MINS + GEMV_ROWS,
        TERMS = DT == DT_Q8 ? MINS : XSUMS + M * GEMV_PIECE,
        SHARED_BYTES = 2 * WARPS * (BYTES + TERMS * sizeof(float)), /* pieces, then terms: two of each for a warp */
    };
};

/* Starts copying n groups from g0 on: tiles, then [token][group] of the activations. */
template <uint32_t DT, uint32_t M>
DEV void gemv_load(const lin_job &j, const uint8_t *block, uint32_t t0, uint32_t g0, uint32_t n, uint8_t *to)
{
    typedef gemv_shape<DT, M> S;
    const uint32_t lane = threadIdx.x % WARP;
    const uint8_t *from = block + (size_t)g0 * S::TILE;
#pragma unroll
    for (uint32_t i = lane; i < GEMV_PIECE * S::CHUNKS; i += WARP)
        if (i < n * S::CHUNKS) cp_async_16(to + i * 16 + i / S::CHUNKS * (S::STRIDE - S::TILE), from + i * 16);
#pragma unroll
    for (uint32_t i = lane; i < M * GEMV_PIECE * GROUP_WORDS; i += WARP) {
        uint32_t t = i / (GEMV_PIECE * GROUP_WORDS), g = i / GROUP_WORDS % GEMV_PIECE;
        if (g >= n) continue;
        const op_group *x = j.xq + (g0 + g) * j.xqs + min(t0 + t, j.n_tokens - 1);
        cp_async_8(to + S::W_BYTES + i * 8, reinterpret_cast<const uint8_t *>(x) + i % GROUP_WORDS * 8);
    }
}

DEV void dp4a_rows(int32_t (&dot)[4], const uint4 &w, uint32_t x)
{
    dot[0] = dp4a((int32_t)w.x, (int32_t)x, dot[0]);
    dot[1] = dp4a((int32_t)w.y, (int32_t)x, dot[1]);
    dot[2] = dp4a((int32_t)w.z, (int32_t)x, dot[2]);
    dot[3] = dp4a((int32_t)w.w, (int32_t)x, dot[3]);
}

/* Columns 8i .. 8i + 7 of four rows of a tile: two words of each row. */
template <uint32_t DT> DEV void tile_columns(const uint8_t *tile, uint32_t h, uint32_t i, uint4 &lo, uint4 &hi)
{
    if (DT == DT_Q8) {
        lo = *reinterpret_cast<const uint4 *>(tile + 16 + i * 64 + h * 16);
        hi = *reinterpret_cast<const uint4 *>(tile + 48 + i * 64 + h * 16);
    } else {
        lo = *reinterpret_cast<const uint4 *>(tile + 32 + i * 32 + h * 16);
        hi = make_uint4(lo.x >> 4 & 0x0f0f0f0f, lo.y >> 4 & 0x0f0f0f0f, lo.z >> 4 & 0x0f0f0f0f, lo.w >> 4 & 0x0f0f0f0f);
        lo = make_uint4(lo.x & 0x0f0f0f0f, lo.y & 0x0f0f0f0f, lo.z & 0x0f0f0f0f, lo.w & 0x0f0f0f0f);
    }
}

/* Four f16 numbers from p on */
DEV float4 f16_four(const uint8_t *p)
{
    uint2 v = *reinterpret_cast<const uint2 *>(p);
    return make_float4(f16_low(v.x), f16_high(v.x), f16_low(v.y), f16_high(v.y));
}
DEV void put_four(float *to, const float4 &v) { *reinterpret_cast<float4 *>(to) = v; }

/* The terms of a lane's group. */
template <uint32_t DT, uint32_t M> DEV void gemv_terms(const uint8_t *piece, float *terms)
{
    typedef gemv_shape<DT, M> S;
    const uint32_t g = threadIdx.x % GEMV_PIECE, h = threadIdx.x % WARP / GEMV_PIECE, at = h * GEMV_HALF + g * 4;
    const uint8_t *tile = piece + g * S::STRIDE;
    const uint2 *x = reinterpret_cast<const uint2 *>(piece + S::W_BYTES) + g * GROUP_WORDS;
    const uint32_t next = GEMV_PIECE * GROUP_WORDS; /* token */
    int32_t dot[M][4];
#pragma unroll
    for (uint32_t t = 0; t < M; t++) dot[t][0] = dot[t][1] = dot[t][2] = dot[t][3] = DOT_ZERO;
#pragma unroll
    for (uint32_t i = 0; i < GROUP_K / 8; i++) {
        uint4 lo, hi;
        tile_columns<DT>(tile, h, i, lo, hi);
#pragma unroll
        for (uint32_t t = 0; t < M; t++) {
            uint2 q = x[t * next + 1 + i];
            dp4a_rows(dot[t], lo, q.x);
            dp4a_rows(dot[t], hi, q.y);
        }
    }
    const float4 w = f16_four(tile + 8 * h);
    if (DT == DT_Q4) put_four(terms + S::MINS + at, f16_four(tile + 16 + 8 * h));
#pragma unroll
    for (uint32_t t = 0; t < M; t++) {
        const float d = float_of(x[t * next].x);
        put_four(terms + t * GEMV_ROWS + at, make_float4(dot_value(dot[t][0]), dot_value(dot[t][1]), dot_value(dot[t][2]), dot_value(dot[t][3])));
        put_four(terms + S::SCALES + t * GEMV_ROWS + at, make_float4(w.x * d, w.y * d, w.z * d, w.w * d));
        if (DT == DT_Q4 && h == 0) terms[S::XSUMS + t * GEMV_PIECE + g] = float_of(x[t * next].y);
    }
}

template <uint32_t DT, uint32_t M> DEV float gemv_add(const float *terms, uint32_t t, uint32_t at, uint32_t g, float acc)
{
    typedef gemv_shape<DT, M> S;
    acc = fmaf(terms[t * GEMV_ROWS + at + 4 * g], terms[S::SCALES + t * GEMV_ROWS + at + 4 * g], acc);
    return DT == DT_Q8 ? acc : fmaf(terms[S::MINS + at + 4 * g], terms[S::XSUMS + t * GEMV_PIECE + g], acc);
}

/* The chain over a round, `left` groups from its first on: the pieces of wk warps. */
template <uint32_t DT, uint32_t M> DEV float gemv_chain(const float *terms, uint32_t wk, uint32_t left, float acc)
{
    const uint32_t lane = threadIdx.x % WARP, t = lane / TILE_ROWS, at = lane % TILE_ROWS / 4 * GEMV_HALF + lane % 4;
    for (uint32_t v = 0; v < wk && left > 0; v++, terms += gemv_shape<DT, M>::TERMS) {
        const uint32_t n = min(left, (uint32_t)GEMV_PIECE);
        if (n == GEMV_PIECE) {
#pragma unroll
            for (uint32_t g = 0; g < GEMV_PIECE; g++) acc = gemv_add<DT, M>(terms, t, at, g, acc);
        } else {
            for (uint32_t g = 0; g < n; g++) acc = gemv_add<DT, M>(terms, t, at, g, acc);
        }
        left -= n;
    }
    return acc;
}

/* Warps that share a row block of so many groups. */
template <uint32_t DT, uint32_t M> static inline uint32_t gemv_share(uint32_t groups)
{
    uint32_t wk = 1;
    while (wk < gemv_shape<DT, M>::WARPS && wk * GEMV_PIECE < groups) wk *= 2;
    return wk;
}

/* The row blocks from block0 on, WARPS / wk of them, times the tokens t0 .. t0 + M - 1. smem: shared, SHARED_BYTES. */
template <uint32_t DT, uint32_t M> DEV void gemv_block(const lin_job &j, uint64_t block0, uint32_t wk, uint32_t t0, uint8_t *smem)
{
    typedef gemv_shape<DT, M> S;
    uint8_t(*piece)[S::WARPS][S::BYTES] = reinterpret_cast<uint8_t(*)[S::WARPS][S::BYTES]>(smem);
    float(*terms)[S::WARPS][S::TERMS] = reinterpret_cast<float(*)[S::WARPS][S::TERMS]>(smem + 2 * S::WARPS * S::BYTES);
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, v = warp % wk;
    const uint32_t n_groups = job_groups(j), mine = v * GEMV_PIECE, round = wk * GEMV_PIECE;
    const uint64_t block = block0 + warp / wk;
    const bool have = block < job_blocks(j), adds = have && v == 0 && lane < M * TILE_ROWS;
    const uint8_t *data = j.data + (have ? block * j.block_stride : 0);
    float acc = 0.0f;
    __syncthreads(); /* what an earlier call left here was read */
    if (have && mine < n_groups) gemv_load<DT, M>(j, data, t0, mine, min(n_groups - mine, (uint32_t)GEMV_PIECE), piece[0][warp]);
    cp_async_commit();
    for (uint32_t g0 = 0, s = 0; g0 < n_groups; g0 += round, s ^= 1) {
        const uint32_t now = g0 + mine, next = now + round;
        if (have && next < n_groups)
            gemv_load<DT, M>(j, data, t0, next, min(n_groups - next, (uint32_t)GEMV_PIECE), piece[s ^ 1][warp]);
        cp_async_commit();
        cp_async_wait<1>();
        __syncwarp();
        if (have && now + lane % GEMV_PIECE < n_groups) gemv_terms<DT, M>(piece[s][warp], terms[s][warp]);
        __syncthreads(); /* the other half of both is free again behind it */
        if (adds) acc = gemv_chain<DT, M>(terms[s][warp], wk, n_groups - g0, acc);
    }
    const uint32_t t = t0 + lane / TILE_ROWS;
    const int64_t row = (int64_t)(block * TILE_ROWS + lane % TILE_ROWS) - j.row_skip;
    if (adds && t < j.n_tokens && row >= j.lo && row < j.hi) job_put(j, t, (uint32_t)row, acc);
}
#endif
