/*
 * attn_tile.cuh - a warp takes 16 rows through one tile of 32 positions in shared memory (attn_mma.cu brings it there).
 *
 *   s = q K^T   mma m16n8k16, f16 in, f32 sums, 16 dimensions a step, ascending; s is scaled back from q's power of two, int8:
 *               times the scale of K, + what a K bias adds (kbias), then as ops.h: scale, soft cap, position bias.
 *   m, p, l     running maximum in the chunk of 256; p = 2^((s - m) log2 e); what is there of l and o is scaled when m grows.
 *   o += p V    mma, 16 positions a step, ascending. int8: p times the scale of V, over the greatest power of two in the scales
 *               that the row saw in this chunk (so a small V loses nothing to the range of f16); then rounded to f16.
 * Codes of int8 become f16 in registers, exactly. A row's numbers do not depend on the other rows of its warp, and a tile that it
 * does not see leaves them as they are. Relied on: a product with a zero factor adds nothing in an mma.
 *
 * Order of positions and dimensions in fragments (g = lane / 4, c = lane % 4, column i of n-tile t as ptx.cuh numbers them):
 *   f16   as they lie: K in pages is [8 dimensions][8 positions] for ldmatrix.trans, V rows are padded to an odd number of
 *         16 bytes.
 *   int8  a lane's 16 bytes of K are 4 dimensions of 4 positions, one for each n-tile: position 8 c + 4 i + t of the tile. A
 *         word of V is 4 dimensions, one for each of 4 n-tiles; groups of 8 positions are 32 bytes apart more than they are long.
 * Both without conflicts of banks.
 */
#ifndef TESS_ATTN_TILE_CUH
#define TESS_ATTN_TILE_CUH
#include "cu_attn.cuh"
#include "ptx.cuh"

enum { TILE = 32, TILE_GROUPS = TILE / 8, CHUNK_TILES = ATTN_CHUNK / TILE, ROWS = 16, STAGES = 2, KEPT = 2 * KBIAS_PAIRS + 1 };

/* The same for all blocks of a launch. Sizes in bytes. */
typedef struct {
    uint32_t heads, tokens, parts; /* rows of a block: tokens times heads; blocks for the heads of a kv head */
    uint32_t k_steps;              /* of 16 dimensions */
    uint32_t k_group, v_group, v_row, v_at, s_at, stage; /* 8 positions of K, of V; a position of V; V and scales in a stage */
    uint32_t q_bytes, extra_bytes, o_bytes;              /* q of a warp and what else it keeps; o of the block */
    uint32_t slots;                                      /* of scratch; 0: chunks are not split */
} mma_plan;

/* Rows g and g + 8 of a warp. A row that is not there sees everything and is not stored. */
typedef struct {
    bool on[2];
    uint32_t t[2], h[2], lo[2], hi[2]; /* token, head, positions that it sees */
    uint32_t from, to;                 /* positions that any row of the warp sees */
    float scale[2];                    /* from the sums of the mma to scores */
} mma_rows;

/* A chunk of the rows: maximum, this lane's part of the sum, power of two that o is divided by. */
typedef struct {
    float m[2], l[2], e[2];
} mma_chunk;

DEV uint32_t lane_id() { return threadIdx.x % WARP; }
DEV float quad_max(float v)
{
    for (uint32_t w = 1; w < 4; w *= 2) {
        float u = __shfl_xor_sync(~0u, v, w);
        v = u > v ? u : v;
    }
    return v;
}
DEV float quad_sum(float v)
{
    v = v + __shfl_xor_sync(~0u, v, 1);
    return v + __shfl_xor_sync(~0u, v, 2);
}
DEV float exp_near(float x) { return exp2_near(x * 0x1.715476p0f); }

/* Position in the tile, and dimension in the step, of half i of a fragment. */
template <uint32_t DT> DEV uint32_t col_pos(uint32_t t, uint32_t i)
{
    return DT == DT_I8 ? 8 * (lane_id() % 4) + 4 * i + t : 8 * t + 2 * (lane_id() % 4) + i;
}
template <uint32_t DT> DEV uint32_t k_dim_of(uint32_t half, uint32_t i)
{
    return DT == DT_I8 ? 4 * (lane_id() % 4) + 2 * i + half : 2 * (lane_id() % 4) + i + 8 * half;
}

/* ---- scores ---- */
/* b = the f16 of the 4 codes of a word, 0 and 2, 1 and 3. A code plus 128 in the low byte of 1024 as f16 is 1152 more than it. */
DEV void codes_to_h2(uint32_t w, uint32_t (&b)[2])
{
    b[0] = h2_sub((w & 0x00ff00ffu) ^ 0x64806480u, 0x64806480u);
    b[1] = h2_sub((w >> 8 & 0x00ff00ffu) ^ 0x64806480u, 0x64806480u);
}

/* 16 dimensions: k at the lane's 16 bytes, or at its row of ldmatrix. */
DEV void score_step_i8(const uint8_t *k, const uint32_t (&aq)[4], float (&s)[4][4])
{
    uint4 kw = *reinterpret_cast<const uint4 *>(k);
    uint32_t w[4] = {kw.x, kw.y, kw.z, kw.w}, b[2];
#pragma unroll
    for (uint32_t t = 0; t < 4; t++) {
        codes_to_h2(w[t], b);
        mma_f16(s[t], aq, b);
    }
}
DEV void score_step_f16(const uint8_t *k, uint32_t k_group, const uint32_t (&aq)[4], float (&s)[4][4])
{
#pragma unroll
    for (uint32_t t = 0; t < 4; t += 2) {
        uint32_t r[4];
        ldmatrix_x4_trans(r, k + t * k_group);
        uint32_t b[2] = {r[0], r[1]}, b1[2] = {r[2], r[3]};
        mma_f16(s[t], aq, b);
        mma_f16(s[t + 1], aq, b1);
    }
}

template <uint32_t DT> DEV void scores(const mma_plan &p, const uint8_t *stage, const uint4 *q, float (&s)[4][4])
{
    const uint32_t lane = lane_id(), g = lane / 4, c = lane % 4;
#pragma unroll
    for (uint32_t t = 0; t < 4; t++) s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0.0f;
    const uint8_t *k =
        DT == DT_I8 ? stage + g / 2 * p.k_group + c * 32 + g % 2 * 16 : stage + lane / 16 * p.k_group + lane % 16 * 16;
#pragma unroll 2
    for (uint32_t i = 0; i < p.k_steps; i++) {
        uint4 f = q[i * WARP + lane];
        uint32_t aq[4] = {f.x, f.y, f.z, f.w};
        if (DT == DT_I8) score_step_i8(k + i * 128, aq, s);
        else score_step_f16(k + i * 256, p.k_group, aq, s);
    }
}

/* Adds what the K bias makes of the rows at the lane's 8 positions, those of group lane % 4 of the tile (int8). */
DEV void kbias_add(const op_kbias_head &b, uint32_t n_cs, const float *lanes, const float *kept, uint32_t p0, float (&s)[4][4])
{
    const float *row = kept + lane_id() / 4 * KEPT;
    const float *at = lanes + (size_t)(p0 / 8 + lane_id() % 4) * n_cs * 16;
#pragma unroll
    for (uint32_t t = 0; t < 4; t++)
#pragma unroll
        for (uint32_t f = 0; f < 4; f++) s[t][f] = s[t][f] + row[f / 2 * 8 * KEPT + 2 * KBIAS_PAIRS];
    for (uint32_t i = 0; i < b.n_pairs; i++) {
        const float *cs = at + (size_t)b.pair[i].i * 16;
#pragma unroll
        for (uint32_t t = 0; t < 4; t++)
#pragma unroll
            for (uint32_t f = 0; f < 4; f++) {
                const float *ab = row + f / 2 * 8 * KEPT + 2 * i;
                s[t][f] = fmaf(cs[8 + 4 * (f % 2) + t], ab[1], fmaf(cs[4 * (f % 2) + t], ab[0], s[t][f]));
            }
    }
}

/* Soft cap and position bias; p0: first position of the tile. */
template <uint32_t DT> DEV void scores_bend(const op_attn_args &a, const mma_rows &x, uint32_t p0, float (&s)[4][4])
{
#pragma unroll
    for (uint32_t t = 0; t < 4; t++)
#pragma unroll
        for (uint32_t f = 0; f < 4; f++) {
            s[t][f] = soft_cap(s[t][f], a.softcap);
            if (!a.bias || !x.on[f / 2]) continue;
            const float *bias = a.bias + x.h[f / 2] * a.bias_stride;
            s[t][f] = s[t][f] + (bias[p0 + col_pos<DT>(t, f % 2)] - bias[x.hi[f / 2] - 1]);
        }
}

/* ---- softmax ---- */
/* Scores become what is multiplied with V; c and o go on. edge: not all rows see all positions. v: scales of the lane's positions. */
template <uint32_t DT, int VB>
DEV void softmax(const mma_rows &x, uint32_t p0, bool edge, const float (&v)[8], mma_chunk &c, float (&s)[4][4],
                 float (&o)[VB / 8][4])
{
    float keep[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        float top = c.m[i], e = c.e[i];
        uint32_t vs = 0;
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) {
            uint32_t j = p0 + col_pos<DT>(k % 4, k / 4);
            bool seen = !edge || (j >= x.lo[i] && j < x.hi[i]);
            float y = s[k % 4][2 * i + k / 4];
            top = seen && y > top ? y : top;
            if (DT == DT_I8 && seen) vs = max(vs, bits_of(v[k]) & 0x7fffffff);
        }
        top = quad_max(top);
        if (DT == DT_I8) {
            for (uint32_t w = 1; w < 4; w *= 2) vs = max(vs, __shfl_xor_sync(~0u, vs, w));
            e = float_of(max(min(vs & 0x7f800000, 142u << 23), bits_of(e)));
        }
        float a = top == c.m[i] ? 1.0f : exp_near(c.m[i] - top), sum = 0.0f, inv = float_of((254u << 23) - bits_of(e));
        keep[i] = DT == DT_I8 ? a * (c.e[i] * inv) : a;
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) {
            uint32_t j = p0 + col_pos<DT>(k % 4, k / 4);
            bool seen = !edge || (j >= x.lo[i] && j < x.hi[i]);
            float &y = s[k % 4][2 * i + k / 4];
            float w = exp_near(y - top);
            w = seen ? w : 0.0f;
            sum = sum + w;
            if (DT == DT_I8) w = w * (v[k] * inv);
            y = seen ? w : 0.0f;
        }
        c.l[i] = fmaf(c.l[i], a, sum);
        c.m[i] = top;
        c.e[i] = e;
    }
    if (!__any_sync(~0u, keep[0] != 1.0f || keep[1] != 1.0f)) return;
#pragma unroll
    for (uint32_t n = 0; n < VB / 8; n++) o[n][0] *= keep[0], o[n][1] *= keep[0], o[n][2] *= keep[1], o[n][3] *= keep[1];
}

/* ---- values ---- */
/* V of 2 positions (words of 4 dimensions) as f16, the positions beside each other: b[d]. */
DEV void words_to_h2(uint32_t w0, uint32_t w1, uint32_t (&b)[4])
{
    uint32_t lo = __byte_perm(w0, w1, 0x5410), hi = __byte_perm(w0, w1, 0x7632), r[2];
    codes_to_h2(lo, r);
    b[0] = r[0], b[1] = r[1];
    codes_to_h2(hi, r);
    b[2] = r[0], b[3] = r[1];
}

template <int VB>
DEV void values_i8(const mma_plan &p, const uint8_t *stage, uint32_t v_dim, const uint32_t (&w)[2][4], float (&o)[VB / 8][4])
{
    const uint8_t *v = stage + p.v_at + lane_id() % 4 * p.v_group + lane_id() / 4 * 4;
#pragma unroll
    for (uint32_t k = 0; k < 2; k++)
#pragma unroll
        for (uint32_t n = 0; n < VB / 32; n++) {
            if (32 * n >= v_dim) break;
            const uint8_t *at = v + 32 * n + 2 * k * p.v_row;
            uint32_t low[4], high[4];
            words_to_h2(*reinterpret_cast<const uint32_t *>(at), *reinterpret_cast<const uint32_t *>(at + 4 * p.v_row), low);
            words_to_h2(*reinterpret_cast<const uint32_t *>(at + p.v_row), *reinterpret_cast<const uint32_t *>(at + 5 * p.v_row),
                        high);
#pragma unroll
            for (uint32_t d = 0; d < 4; d++) {
                uint32_t b[2] = {low[d], high[d]};
                mma_f16(o[4 * n + d], w[k], b);
            }
        }
}

DEV bool h_finite(uint32_t h) { return (h & 0x7c00) != 0x7c00; }
/* x with 0 for halves that are no finite numbers; those are noted in *odd. */
DEV uint32_t h2_finite(uint32_t x, bool *odd)
{
    uint32_t y = (h_finite(x) ? x & 0xffff : 0) | (h_finite(x >> 16) ? x & 0xffff0000 : 0);
    *odd = *odd || y != x;
    return y;
}

/* What values of V that are no finite numbers add, for the rows that see their positions only. room: TILE floats a row of the warp. */
template <int VB>
DEV void values_odd(const mma_plan &p, const uint8_t *stage, uint32_t v_dim, const mma_rows &x, uint32_t p0, const float (&s)[4][4],
                    float *room, float (&o)[VB / 8][4])
{
    float *own = room + lane_id() / 4 * TILE;
    __syncwarp();
#pragma unroll
    for (uint32_t t = 0; t < 4; t++)
#pragma unroll
        for (uint32_t f = 0; f < 4; f++) own[f / 2 * 8 * TILE + col_pos<DT_F16>(t, f % 2)] = s[t][f];
    __syncwarp();
#pragma unroll 1
    for (uint32_t j = 0; j < TILE; j++) {
        const uint16_t *v = reinterpret_cast<const uint16_t *>(stage + p.v_at + j / 8 * p.v_group + j % 8 * p.v_row);
#pragma unroll
        for (uint32_t n = 0; n < VB / 8; n++)
#pragma unroll
            for (uint32_t f = 0; f < 4; f++) {
                uint32_t d = 8 * n + 2 * (lane_id() % 4) + f % 2;
                if (d >= v_dim || h_finite(v[d]) || p0 + j < x.lo[f / 2] || p0 + j >= x.hi[f / 2]) continue;
                o[n][f] = fmaf(h_value(v[d]), own[f / 2 * 8 * TILE + j], o[n][f]);
            }
    }
}

/* edge: some V may be seen by some rows only; then what is not finite does not go into an mma. */
template <int VB>
DEV bool values_f16(const mma_plan &p, const uint8_t *stage, uint32_t v_dim, bool edge, const uint32_t (&w)[2][4],
                    float (&o)[VB / 8][4])
{
    const uint32_t lane = lane_id();
    const uint8_t *v = stage + p.v_at + lane / 8 % 2 * p.v_group + lane % 8 * p.v_row + lane / 16 * 16;
    bool odd = false;
#pragma unroll
    for (uint32_t k = 0; k < 2; k++)
#pragma unroll
        for (uint32_t n = 0; n < VB / 16; n++) {
            uint32_t r[4];
            if (16 * n >= v_dim) break;
            ldmatrix_x4_trans(r, v + 2 * k * p.v_group + 32 * n);
            if (edge)
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) r[i] = h2_finite(r[i], &odd);
            uint32_t b[2] = {r[0], r[1]}, b1[2] = {r[2], r[3]};
            mma_f16(o[2 * n], w[k], b);
            mma_f16(o[2 * n + 1], w[k], b1);
        }
    return odd;
}

/* ---- a tile, a chunk ---- */
template <uint32_t DT, int VB>
DEV void tile_do(const op_attn_args &a, const op_kbias &kb, const mma_plan &p, const mma_rows &x, uint32_t g, const uint8_t *stage,
                 const uint4 *q, float *own, uint32_t p0, mma_chunk &c, float (&o)[VB / 8][4])
{
    float s[4][4], v[8] = {};
    scores<DT>(p, stage, q, s);
    bool edge = p0 < x.lo[0] || p0 < x.lo[1] || p0 + TILE > x.hi[0] || p0 + TILE > x.hi[1];
    edge = __any_sync(~0u, edge) != 0;
    uint32_t ks[4] = {};
    if (DT == DT_I8) {
        const uint4 *at = reinterpret_cast<const uint4 *>(stage + p.s_at) + lane_id() % 4;
        uint4 k4 = at[0], v4 = at[2 * TILE / 16];
        ks[0] = k4.x, ks[1] = k4.y, ks[2] = k4.z, ks[3] = k4.w;
        uint32_t vs[4] = {v4.x, v4.y, v4.z, v4.w};
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) v[i] = h_value((uint16_t)(vs[i / 2] >> 16 * (i % 2)));
    }
#pragma unroll
    for (uint32_t t = 0; t < 4; t++)
#pragma unroll
        for (uint32_t f = 0; f < 4; f++) {
            if (DT == DT_I8) s[t][f] = s[t][f] * h_value((uint16_t)(ks[2 * (f % 2) + t / 2] >> 16 * (t % 2)));
            s[t][f] = s[t][f] * x.scale[f / 2];
        }
    if (DT == DT_I8 && kb.head) {
        bool any = p0 + lane_id() % 4 * 8 < x.to; /* else the tables of rope may end before */
        if (any) kbias_add(kb.head[g], kb.n_cs, kb.lanes[a.b.seq[x.t[0]]], own, p0, s);
    }
    if (a.softcap > 0.0f || a.bias) scores_bend<DT>(a, x, p0, s);
    softmax<DT, VB>(x, p0, edge, v, c, s, o);
    uint32_t w[2][4];
#pragma unroll
    for (uint32_t k = 0; k < 2; k++)
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) w[k][j] = h2_of(s[2 * k + j / 2][2 * (j % 2)], s[2 * k + j / 2][2 * (j % 2) + 1]);
    if (DT == DT_I8) values_i8<VB>(p, stage, a.kv.v_dim, w, o);
    else {
        bool odd = values_f16<VB>(p, stage, a.kv.v_dim, edge, w, o);
        if (edge && __any_sync(~0u, odd)) values_odd<VB>(p, stage, a.kv.v_dim, x, p0, s, own, o);
    }
}
#endif
