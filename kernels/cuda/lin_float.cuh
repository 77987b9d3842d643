/*
 * lin_float.cuh - f32, f16 and bf16 weights times f32 activations, each output one chain of fma in ascending K as ops.h has it.
 *
 * Such a chain takes K times the latency of an fma (4 clocks) and cannot be cut, so a block keeps many of them going and has the
 * next pieces of K under way meanwhile. It is W warps: 32 * R rows times W * T tokens. Lane l holds R neighbouring rows and T
 * tokens, R * T chains in registers; the warps share the rows and differ in tokens. Stages of KP columns come by cp.async, ST - 1
 * of them ahead. In shared memory a stage is
 *   weights  [row block][k][8 rows] as in memory, a row block padded by 8 numbers, so that the lanes of a load meet all banks
 *   x        [token][KP], of which a warp reads four columns at a time at one address
 * Behind the last row block or token lies a copy of the last one, computed and not stored.
 */
#ifndef TESS_LIN_FLOAT_CUH
#define TESS_LIN_FLOAT_CUH
#include "cu_weight.cuh"

template <uint32_t DT_, uint32_t R_, uint32_t T_, uint32_t W_, uint32_t KP_, uint32_t ST_> struct float_shape {
    enum : uint32_t {
        DT = DT_, R = R_, T = T_, W = W_, ST = ST_,
        SIZE = DT == DT_F32 ? 4 : 2,
        KP = KP_ * 2 / SIZE, /* KP_: of numbers of two bytes */
        THREADS = W * WARP,
        TOKENS = T * W,
        BLOCKS = WARP * R / TILE_ROWS, /* row blocks */
        COLUMN = TILE_ROWS * SIZE,
        ROW = (KP + 1) * COLUMN, /* bytes of a row block */
        X = BLOCKS * ROW,        /* offset in a stage */
        BYTES = X + TOKENS * KP * 4,
        SHARED_BYTES = ST * BYTES,
    };
};
/* Shapes of rows x tokens: 32 x 1, 2, 4, 16; 64 x 32; 128 x 64. */
template <uint32_t DT> using float_1 = float_shape<DT, 1, 1, 1, 64, 6>;
template <uint32_t DT> using float_2 = float_shape<DT, 1, 2, 1, 64, 6>;
template <uint32_t DT> using float_4 = float_shape<DT, 1, 2, 2, 64, 6>;
template <uint32_t DT> using float_few = float_shape<DT, 1, 4, 4, 64, 5>;
template <uint32_t DT> using float_some = float_shape<DT, 2, 8, 4, 32, 4>;
template <uint32_t DT> using float_many = float_shape<DT, 4, 8, 8, 16, 4>;

/* Starts copying m columns from k on. wide: rows of x are aligned to 16 bytes. */
template <class S>
DEV void float_load(const lin_job &j, uint64_t block0, uint32_t t0, uint32_t k, uint32_t m, bool wide, uint8_t *to)
{
    const uint32_t chunks = S::KP * S::COLUMN / 16, last_token = j.n_tokens - 1;
    const uint64_t last = job_blocks(j) - 1;
#pragma unroll
    for (uint32_t i = threadIdx.x; i < S::BLOCKS * chunks; i += S::THREADS) {
        const uint32_t b = i / chunks, c = i % chunks;
        const uint64_t block = block0 + b < last ? block0 + b : last;
        if (c < m * S::COLUMN / 16)
            cp_async_16(to + b * S::ROW + c * 16, j.data + block * j.block_stride + (size_t)k * S::COLUMN + c * 16);
    }
    float *x = reinterpret_cast<float *>(to + S::X);
    if (wide && m == S::KP) {
#pragma unroll
        for (uint32_t i = threadIdx.x; i < S::TOKENS * S::KP / 4; i += S::THREADS) {
            const uint32_t t = i / (S::KP / 4), c = i % (S::KP / 4) * 4;
            cp_async_16(x + i * 4, j.x + min(t0 + t, last_token) * j.xs + k + c);
        }
        return;
    }
    for (uint32_t i = threadIdx.x; i < S::TOKENS * S::KP; i += S::THREADS) {
        const uint32_t t = i / S::KP, c = i % S::KP;
        if (c < m) cp_async_4(x + i, j.x + min(t0 + t, last_token) * j.xs + k + c);
    }
}

/* Numbers of R neighbouring rows, widened. */
template <uint32_t DT> DEV float low_half(uint32_t v) { return DT == DT_F16 ? f16_low(v) : float_of(v << 16); }
template <uint32_t DT> DEV float high_half(uint32_t v) { return DT == DT_F16 ? f16_high(v) : float_of(v & 0xffff0000); }
template <uint32_t DT> DEV void float_rows(const uint8_t *p, float (&v)[1])
{
    v[0] = DT == DT_F32 ? *reinterpret_cast<const float *>(p) : low_half<DT>(*reinterpret_cast<const uint16_t *>(p));
}
template <uint32_t DT> DEV void float_rows(const uint8_t *p, float (&v)[2])
{
    if (DT == DT_F32) {
        const float2 u = *reinterpret_cast<const float2 *>(p);
        v[0] = u.x, v[1] = u.y;
    } else {
        const uint32_t u = *reinterpret_cast<const uint32_t *>(p);
        v[0] = low_half<DT>(u), v[1] = high_half<DT>(u);
    }
}
template <uint32_t DT> DEV void float_rows(const uint8_t *p, float (&v)[4])
{
    if (DT == DT_F32) {
        const float4 u = *reinterpret_cast<const float4 *>(p);
        v[0] = u.x, v[1] = u.y, v[2] = u.z, v[3] = u.w;
    } else {
        const uint2 u = *reinterpret_cast<const uint2 *>(p);
        v[0] = low_half<DT>(u.x), v[1] = high_half<DT>(u.x), v[2] = low_half<DT>(u.y), v[3] = high_half<DT>(u.y);
    }
}

template <class S> DEV void float_column(const uint8_t *w, const float (&x)[S::T], float (&acc)[S::T][S::R])
{
    float v[S::R];
    float_rows<S::DT>(w, v);
#pragma unroll
    for (uint32_t t = 0; t < S::T; t++)
#pragma unroll
        for (uint32_t r = 0; r < S::R; r++) acc[t][r] = fmaf(v[r], x[t], acc[t][r]);
}

/* The lane's chains over m columns: w at its rows, x at the warp's tokens. */
template <class S> DEV void float_piece(const uint8_t *w, const float *x, uint32_t m, float (&acc)[S::T][S::R])
{
    float one[S::T];
    if (m < S::KP) {
        for (uint32_t c = 0; c < m; c++) {
#pragma unroll
            for (uint32_t t = 0; t < S::T; t++) one[t] = x[t * S::KP + c];
            float_column<S>(w + c * S::COLUMN, one, acc);
        }
        return;
    }
#pragma unroll
    for (uint32_t c = 0; c < S::KP; c += 4) {
        float4 four[S::T];
#pragma unroll
        for (uint32_t t = 0; t < S::T; t++) four[t] = *reinterpret_cast<const float4 *>(x + t * S::KP + c);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
#pragma unroll
            for (uint32_t t = 0; t < S::T; t++) one[t] = i == 0 ? four[t].x : i == 1 ? four[t].y : i == 2 ? four[t].z : four[t].w;
            float_column<S>(w + (c + i) * S::COLUMN, one, acc);
        }
    }
}

/* The row blocks from block0 on times the tokens from t0 on. smem: shared, SHARED_BYTES. */
template <class S> DEV void float_block(const lin_job &j, uint64_t block0, uint32_t t0, uint8_t *smem)
{
    uint8_t(*stage)[S::BYTES] = reinterpret_cast<uint8_t(*)[S::BYTES]>(smem);
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, per = TILE_ROWS / S::R; /* lanes of a row block */
    const uint32_t first = t0 + warp * S::T, at = lane / per * S::ROW + lane % per * S::R * S::SIZE;
    const bool wide = (reinterpret_cast<uintptr_t>(j.x) | j.xs * 4) % 16 == 0;
    float acc[S::T][S::R] = {};
    __syncthreads(); /* what an earlier call left here was read */
#pragma unroll
    for (uint32_t s = 0; s + 1 < S::ST; s++) {
        if (s * S::KP < j.n_k) float_load<S>(j, block0, t0, s * S::KP, min(j.n_k - s * S::KP, (uint32_t)S::KP), wide, stage[s]);
        cp_async_commit();
    }
    for (uint32_t k = 0, s = 0; k < j.n_k; k += S::KP, s = s + 1 < S::ST ? s + 1 : 0) {
        cp_async_wait<(int)S::ST - 2>();
        __syncthreads(); /* stage s has come for all, and the stage before it is free */
        const uint32_t next = k + (S::ST - 1) * S::KP;
        if (next < j.n_k)
            float_load<S>(j, block0, t0, next, min(j.n_k - next, (uint32_t)S::KP), wide, stage[s ? s - 1 : S::ST - 1]);
        cp_async_commit();
        if (first < j.n_tokens)
            float_piece<S>(stage[s] + at, reinterpret_cast<const float *>(stage[s] + S::X) + warp * S::T * S::KP,
                           min(j.n_k - k, (uint32_t)S::KP), acc);
    }
    const int64_t row0 = (int64_t)((block0 + lane / per) * TILE_ROWS + lane % per * S::R) - j.row_skip;
#pragma unroll
    for (uint32_t t = 0; t < S::T; t++)
#pragma unroll
        for (uint32_t r = 0; r < S::R; r++)
            if (first + t < j.n_tokens && row0 + r >= j.lo && row0 + r < j.hi)
                job_put(j, first + t, (uint32_t)(row0 + r), acc[t][r]);
}
#endif
