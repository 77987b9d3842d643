/* kv_write.cu - K and V of new rows into their pages; a block is one warp: one kv head of one row. */
#include "cu_kv.cuh"

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

/* Stores the scale of a row of an int8 page; gives its inverse, NaN when the codes are to be 0. By all lanes. */
DEV float store_scale(const float *x, uint32_t n, uint16_t *scale)
{
    uint32_t top = 0;
    for (uint32_t i = threadIdx.x; i < n; i += WARP) top = max(top, bits_of(x[i]) & 0x7fffffff);
    for (uint32_t w = WARP / 2; w > 0; w /= 2) top = max(top, __shfl_xor_sync(~0u, top, w));
    uint16_t h = f16_of(float_of(top) / 127.0f);
    h = top >= 0x7f800000 ? 0x7e00 : h > 0x7bff ? 0x7bff : h;
    if (threadIdx.x == 0) *scale = h;
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

/* kb.head NULL: nothing is kept apart. Else dynamic shared memory holds k_dim floats, each read by the lane that wrote it. */
template <uint32_t DT> static __global__ void write_rows(op_kv_write_args a, op_kbias kb)
{
    DYN_SHARED(float, rest);
    const op_kv &pg = a.kv;
    uint32_t g = blockIdx.y, lane = threadIdx.x;
    size_t t = blockIdx.x;
    uint32_t pos = a.b.pos[t], slot = pos % pg.page_tokens;
    uint8_t *head = kv_head(pg, a.b.tables[a.b.seq[t]], pos, g);
    const float *k = a.k + t * a.ks + (size_t)g * pg.k_dim, *v = a.v + t * a.vs + (size_t)g * pg.v_dim;
    float inv_k = 0.0f, inv_v = 0.0f;
    if (DT == DT_I8 && kb.head) {
        const float *cs = kb.cs[a.b.seq[t]]; /* NULL when nothing is rotated */
        for (uint32_t d = lane; d < pg.k_dim; d += WARP) rest[d] = kbias_rest(kb, g, cs, pos, d, k[d]);
        k = rest;
    }
    if (DT == DT_I8) {
        inv_k = store_scale(k, pg.k_dim, kv_scales(pg, head, false) + slot);
        inv_v = store_scale(v, pg.v_dim, kv_scales(pg, head, true) + slot);
    }
    for (uint32_t d = lane; d < pg.k_dim; d += WARP) store<DT>(head, kv_k_at<DT>(pg, slot) + kv_k_step<DT>(d), k[d], inv_k);
    for (uint32_t d = lane; d < pg.v_dim; d += WARP) store<DT>(head + pg.v_off, (size_t)slot * pg.v_dim + d, v[d], inv_v);
}

int cu_kv_write(const op_kv_write_args *a, void *stream)
{
    dim3 grid(a->b.n_tokens, a->kv.n_kv_heads);
    if (a->b.n_tokens == 0 || a->kv.n_kv_heads == 0) return cudaSuccess;
    op_kbias none = {}, kb = a->kbias ? *a->kbias : none;
    size_t rest = a->kbias ? a->kv.k_dim * sizeof(float) : 0;
    switch (a->kv.dtype) {
    case DT_F32: return LAUNCH(write_rows<DT_F32>, grid, WARP, 0, (cudaStream_t)stream, *a, none);
    case DT_F16: return LAUNCH(write_rows<DT_F16>, grid, WARP, 0, (cudaStream_t)stream, *a, none);
    case DT_I8: return LAUNCH(write_rows<DT_I8>, grid, WARP, rest, (cudaStream_t)stream, *a, kb);
    default: return cudaErrorInvalidValue;
    }
}

int cu_kv_write_load(void) { return cu_load(write_rows<DT_F32>, write_rows<DT_F16>, write_rows<DT_I8>); }
