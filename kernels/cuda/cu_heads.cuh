/* cu_heads.cuh - rope of a head, and its K or V into a page: for the operations alone (rope, kv_write) and for lin_after.cuh. */
#ifndef TESS_CU_HEADS_CUH
#define TESS_CU_HEADS_CUH
#include "cu_kv.cuh"

/* Pair i of head h of row t. */
DEV void rope_pair(const op_rope_args &a, size_t t, uint32_t h, uint32_t i)
{
    uint32_t half = a.dims / 2, ia = a.kind == ROPE_HALF ? i : 2 * i, ib = a.kind == ROPE_HALF ? i + half : 2 * i + 1;
    const float *cs = a.cs + ((size_t)a.pos[t] * half + i) * 2;
    float *x = a.x + t * a.xs + (size_t)h * a.head_dim, c = cs[0], s = cs[1], va = x[ia], vb = x[ib];
    x[ia] = fmaf(va, c, -(vb * s));
    x[ib] = fmaf(va, s, vb * c);
}

/* inv: of int8, what codes are multiplied with; NaN: all codes are 0. */
template <uint32_t DT> DEV void store(uint8_t *p, size_t i, float v, float inv)
{
    if (DT == DT_F32) reinterpret_cast<float *>(p)[i] = v;
    else if (DT == DT_F16) reinterpret_cast<uint16_t *>(p)[i] = f16_of(v);
    else {
        float q = inv == inv ? v * inv : 0.0f;
        q = q > -127.0f ? q : -127.0f;
        p[i] = (uint8_t)round_even(q < 127.0f ? q : 127.0f);
    }
}

/* Stores the scale of a row of an int8 page, top being a lane's greatest magnitude as bits; gives its inverse, NaN when the codes
 * are to be 0. By all lanes. */
DEV float store_scale(uint32_t top, uint32_t lane, uint16_t *scale)
{
    for (uint32_t w = WARP / 2; w > 0; w /= 2) top = max(top, __shfl_xor_sync(~0u, top, w));
    uint16_t h = f16_of(float_of(top) / 127.0f);
    h = top >= 0x7f800000 ? 0x7e00 : h > 0x7bff ? 0x7bff : h;
    if (lane == 0) *scale = h;
    return h == 0 || h == 0x7e00 ? cu_nan() : 1.0f / f16_value(h);
}

/* Dimension d of K at position pos, x, without the bias that is kept apart. No two pairs share a dimension. */
DEV float kbias_rest(const op_kbias &kb, uint32_t g, const float *cs, uint32_t pos, uint32_t d, float x)
{
    const op_kbias_head &h = kb.head[g];
    if (h.flat) x = x - h.flat[d];
    for (uint32_t i = 0; i < h.n_pairs; i++) {
        const op_kbias_pair &p = h.pair[i];
        if (d != p.da && d != p.db) continue;
        size_t at = ((size_t)pos * kb.n_cs + p.i) * 2;
        float c = cs[at], s = cs[at + 1];
        x = x - (d == p.da ? fmaf(p.ba, c, -(p.bb * s)) : fmaf(p.ba, s, p.bb * c));
    }
    return x;
}

/* K of kv head g of row t, by a warp. kb.head NULL: nothing is kept apart. */
template <uint32_t DT> DEV void store_k(const op_kv_write_args &a, const op_kbias &kb, size_t t, uint32_t g, uint32_t lane)
{
    const op_kv &pg = a.kv;
    const uint32_t pos = a.b.pos[t], seq = a.b.seq[t], slot = pos % pg.page_tokens;
    uint8_t *head = kv_head(pg, a.b.tables[seq], pos, g);
    const float *k = a.k + t * a.ks + (size_t)g * pg.k_dim;
    const bool kept = DT == DT_I8 && kb.head;
    const float *cs = kept ? kb.cs[seq] : nullptr; /* NULL when nothing is rotated */
    float inv = 0.0f;
    if (DT == DT_I8) {
        uint32_t top = 0;
        for (uint32_t d = lane; d < pg.k_dim; d += WARP)
            top = max(top, bits_of(kept ? kbias_rest(kb, g, cs, pos, d, k[d]) : k[d]) & 0x7fffffff);
        inv = store_scale(top, lane, kv_scales(pg, head, false) + slot);
    }
    for (uint32_t d = lane; d < pg.k_dim; d += WARP)
        store<DT>(head, kv_k_at<DT>(pg, slot) + kv_k_step<DT>(d), kept ? kbias_rest(kb, g, cs, pos, d, k[d]) : k[d], inv);
}
/* The same of V. */
template <uint32_t DT> DEV void store_v(const op_kv_write_args &a, size_t t, uint32_t g, uint32_t lane)
{
    const op_kv &pg = a.kv;
    const uint32_t pos = a.b.pos[t], slot = pos % pg.page_tokens;
    uint8_t *head = kv_head(pg, a.b.tables[a.b.seq[t]], pos, g);
    const float *v = a.v + t * a.vs + (size_t)g * pg.v_dim;
    float inv = 0.0f;
    if (DT == DT_I8) {
        uint32_t top = 0;
        for (uint32_t d = lane; d < pg.v_dim; d += WARP) top = max(top, bits_of(v[d]) & 0x7fffffff);
        inv = store_scale(top, lane, kv_scales(pg, head, true) + slot);
    }
    for (uint32_t d = lane; d < pg.v_dim; d += WARP) store<DT>(head + pg.v_off, (size_t)slot * pg.v_dim + d, v[d], inv);
}
#endif
