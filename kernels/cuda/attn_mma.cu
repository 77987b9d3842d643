/*
 * attn_mma.cu - attention over f16 and int8 pages on tensor cores: prompts and single rows by one kernel, so that they have equal
 * bits.
 *
 * A block is up to 16 rows for each of its 1 or 4 warps, all of one kv head: tokens of one sequence times query heads that read
 * that head, token-major. It walks tiles of 32 positions, aligned at multiples of 32; while a tile is computed (attn_tile.cuh)
 * cp.async brings the next one from its pages. q is rounded to f16 after a power of two has moved its greatest magnitude to
 * [2^14, 2^15). At the end of a chunk (m, l, o) are joined to those of the chunks before by the formulas of ops.h: in shared
 * memory when a block walks all chunks (prompts), in attn_merge.cu when a block is one chunk (one warp, few rows). So bits depend
 * neither on how rows are packed nor on how chunks are given out. Positions that no row of the block sees are not loaded: their
 * slots are zero.
 *
 * Shared memory: 2 stages (K, V, scales), for each warp q as fragments and factors of the K bias (int8) or room for
 * weights (f16), then o of the chunks so far.
 */
#include "attn_tile.cuh"

/* ---- loads ---- */
/* Lane l gets the kv head in the page of positions [8 l, 8 l + 8) of a chunk; NULL when none of them is in [lo, end). */
DEV uint8_t *chunk_heads(const op_kv &pg, uint8_t *const *pages, uint32_t g, uint32_t chunk, uint32_t lo, uint32_t end)
{
    uint32_t j = chunk * ATTN_CHUNK + 8 * lane_id();
    return j < end && j + 8 > lo ? kv_head(pg, pages, j, g) : nullptr;
}

DEV void clear_16(uint8_t *to) { *reinterpret_cast<uint4 *>(to) = make_uint4(0, 0, 0, 0); }
/* n times 16 bytes by a warp; AHEAD: how many a lane copies, mostly. */
template <uint32_t AHEAD> DEV void copy_16(uint8_t *to, const uint8_t *from, uint32_t n)
{
    uint32_t i = lane_id();
    to += 16 * i, from += 16 * i;
#pragma unroll
    for (uint32_t k = 0; k < AHEAD; k++)
        if (i + k * WARP < n) cp_async_16(to + k * 16 * WARP, from + k * 16 * WARP);
#pragma unroll 1
    for (i += AHEAD * WARP; i < n; i += WARP) cp_async_16(to + 16 * (i - lane_id()), from + 16 * (i - lane_id()));
}
/* n bytes, a multiple of 16, by a warp */
DEV void clear(uint8_t *to, uint32_t n)
{
    for (uint32_t i = 16 * lane_id(); i < n; i += 16 * WARP) clear_16(to + i);
}
/* 8 rows of f16 V, the first n of which were written. */
DEV void copy_rows(const mma_plan &p, uint8_t *to, const uint8_t *from, uint32_t n, uint32_t v_dim)
{
    uint32_t per_row = v_dim / 8, row = lane_id() / per_row, at = lane_id() % per_row;
    uint32_t rows = WARP / per_row, rest = WARP % per_row;
    while (row < 8) {
        if (row < n) cp_async_16(to + row * p.v_row + 16 * at, from + 16 * (row * per_row + at));
        else clear_16(to + row * p.v_row + 16 * at);
        row += rows;
        at += rest;
        if (at >= per_row) at -= per_row, row++;
    }
}

/* Starts the copy of tile `tile` to a stage; heads as chunk_heads of its chunk. 8 positions that no row sees become zero. */
template <uint32_t DT>
DEV void tile_load(const op_kv &pg, const mma_plan &p, uint8_t *stage, uint8_t *heads, uint32_t tile, uint32_t end)
{
    const uint32_t k_16 = DT == DT_I8 ? (pg.k_dim + 3) / 4 * 2 : pg.k_dim, lane = lane_id();
    for (uint32_t i = threadIdx.x / WARP; i < TILE_GROUPS; i += blockDim.x / WARP) {
        uint32_t j = tile * TILE + 8 * i, slot = j & (pg.page_tokens - 1); /* pages have 16, 32 or 64 */
        const uint8_t *head = reinterpret_cast<const uint8_t *>(
            __shfl_sync(~0u, reinterpret_cast<unsigned long long>(heads), (int)(tile % CHUNK_TILES * TILE_GROUPS + i)));
        uint8_t *k = stage + i * p.k_group, *v = stage + p.v_at + i * p.v_group;
        uint8_t *scales = stage + p.s_at + 16 * i + lane * 2 * TILE; /* of K and of V, lanes 0 and 1 */
        if (!head) {
            clear(k, 16 * k_16);
            clear(v, 8 * p.v_row);
            if (DT == DT_I8 && lane < 2) clear_16(scales);
            continue;
        }
        copy_16<DT == DT_I8 ? 2 : 4>(k, head + slot * 2 * k_16, k_16);
        if (DT == DT_F16) copy_rows(p, v, head + pg.v_off + slot * 2 * pg.v_dim, min(end - j, 8u), pg.v_dim);
        else {
            copy_16<2>(v, head + pg.v_off + slot * pg.v_dim, pg.v_dim / 2);
            if (lane < 2) cp_async_16(scales, head + pg.s_off + 2 * slot + lane * 2 * pg.page_tokens);
        }
    }
    cp_async_commit();
}

/* ---- rows ---- */
/* n tokens from t0 on; first: row of the block where the warp begins. */
DEV mma_rows rows_of(const op_attn_args &a, const mma_plan &p, uint32_t t0, uint32_t n, uint32_t h0, uint32_t n_h, uint32_t first)
{
    mma_rows x;
    x.from = UINT32_MAX;
    x.to = 0;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t r = first + lane_id() / 4 + 8 * i, t = r / p.heads, h = r % p.heads;
        x.on[i] = t < n && t < p.tokens && h < n_h;
        x.t[i] = x.on[i] ? t0 + t : t0;
        x.h[i] = x.on[i] ? h0 + h : h0;
        uint32_t pos = a.b.pos[x.t[i]];
        x.lo[i] = x.on[i] ? attn_lo(a.window, pos) : 0;
        x.hi[i] = x.on[i] ? pos + 1 : UINT32_MAX;
        if (!x.on[i]) continue;
        x.from = min(x.from, x.lo[i]);
        x.to = max(x.to, x.hi[i]);
    }
    for (uint32_t w = 4; w < WARP; w *= 2) {
        x.from = min(x.from, __shfl_xor_sync(~0u, x.from, w));
        x.to = max(x.to, __shfl_xor_sync(~0u, x.to, w));
    }
    return x;
}

/* Power of two that takes a row whose greatest magnitude has these bits to [2^14, 2^15); 1 when it is not finite. */
DEV float guard_of(uint32_t top)
{
    uint32_t e = top >> 23;
    if (e == 255) return 1.0f;
    return float_of(min(268u - max(e, 1u), 253u) << 23);
}

/* q of the warp's rows as A fragments, and x.scale. */
template <uint32_t DT> DEV void q_load(const op_attn_args &a, const mma_plan &p, mma_rows &x, uint4 *q)
{
    const uint32_t k_dim = a.kv.k_dim;
    float guard[2] = {1.0f, 1.0f};
    const float *row[2];
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) { /* row by row, all lanes */
        uint32_t i = r / 8, from = r % 8 * 4, top = 0;
        bool on = __shfl_sync(~0u, (int)x.on[i], (int)from) != 0;
        const float *at =
            a.q + (size_t)__shfl_sync(~0u, x.t[i], (int)from) * a.qs + (size_t)__shfl_sync(~0u, x.h[i], (int)from) * k_dim;
        if (!on) continue;
        for (uint32_t d = lane_id(); d < k_dim; d += WARP) top = max(top, bits_of(at[d]) & 0x7fffffff);
        for (uint32_t w = WARP / 2; w > 0; w /= 2) top = max(top, __shfl_xor_sync(~0u, top, w));
        if (lane_id() / 4 == r % 8) guard[i] = guard_of(top);
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        row[i] = a.q + x.t[i] * a.qs + (size_t)x.h[i] * k_dim;
        x.scale[i] = float_of((254u << 23) - bits_of(guard[i])) * a.scale;
    }
    for (uint32_t k = 0; k < p.k_steps; k++) {
        uint32_t f[4];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) { /* as the registers of A: rows g, g + 8, the two halves of K */
            uint32_t i = j % 2, d0 = 16 * k + k_dim_of<DT>(j / 2, 0), d1 = 16 * k + k_dim_of<DT>(j / 2, 1);
            float v0 = x.on[i] && d0 < k_dim ? row[i][d0] : 0.0f, v1 = x.on[i] && d1 < k_dim ? row[i][d1] : 0.0f;
            f[j] = h2_of(v0 * guard[i], v1 * guard[i]);
        }
        q[k * WARP + lane_id()] = make_uint4(f[0], f[1], f[2], f[3]);
    }
}

/* For each row of the warp A and B of each pair of its kv head and what the flat part adds, all times scale. */
DEV void kept_load(const op_attn_args &a, const op_kbias_head &b, const mma_rows &x, float *kept)
{
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) {
        uint32_t i = r / 8, from = r % 8 * 4, k = lane_id();
        const float *q =
            a.q + (size_t)__shfl_sync(~0u, x.t[i], (int)from) * a.qs + (size_t)__shfl_sync(~0u, x.h[i], (int)from) * a.kv.k_dim;
        float *to = kept + r * KEPT;
        if (k < b.n_pairs) {
            const op_kbias_pair &p = b.pair[k];
            to[2 * k] = fmaf(q[p.da], p.ba, q[p.db] * p.bb) * a.scale;
            to[2 * k + 1] = fmaf(q[p.db], p.ba, -(q[p.da] * p.bb)) * a.scale;
        } else if (k == KBIAS_PAIRS) {
            float e = 0.0f;
            for (uint32_t d = 0; b.flat && d < a.kv.k_dim; d++) e = fmaf(q[d], b.flat[d], e);
            to[2 * k] = e * a.scale;
        }
    }
    __syncwarp();
}

/* Dimension of register f of n-tile n. */
template <uint32_t DT> DEV uint32_t out_dim(uint32_t n, uint32_t f)
{
    return DT == DT_I8 ? n / 4 * 32 + 8 * (lane_id() % 4) + 4 * (f % 2) + n % 4 : 8 * n + 2 * (lane_id() % 4) + f % 2;
}

/* The chunk at base is complete: into its slots of scratch, or joined to all (m, l in all; o in acc, one column a thread). */
template <uint32_t DT, int VB>
DEV void chunk_done(const op_attn_args &a, const mma_plan &p, const mma_rows &x, uint32_t base, mma_chunk &c, float (&o)[VB / 8][4],
                    mma_chunk &all, float *acc)
{
    float keep[2], take[2];
    float *slot[2];
    bool sees[2], first[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        float l = quad_sum(c.l[i]);
        sees[i] = x.on[i] && base + ATTN_CHUNK > x.lo[i] && base < x.hi[i];
        first[i] = base / ATTN_CHUNK == x.lo[i] / ATTN_CHUNK;
        keep[i] = 0.0f, take[i] = 1.0f, slot[i] = nullptr;
        if (!sees[i]) continue;
        if (p.slots) {
            slot[i] = slot_of(a, p.slots, x.t[i], x.h[i], base / ATTN_CHUNK - x.lo[i] / ATTN_CHUNK);
            if (lane_id() % 4 == 0) slot[i][0] = c.m[i], slot[i][1] = l;
            continue;
        }
        float top = first[i] || c.m[i] > all.m[i] ? c.m[i] : all.m[i];
        if (!first[i]) keep[i] = cu_exp(all.m[i] - top), take[i] = cu_exp(c.m[i] - top);
        all.l[i] = first[i] ? l : fmaf(all.l[i], keep[i], l * take[i]);
        all.m[i] = top;
    }
#pragma unroll
    for (uint32_t n = 0; n < VB / 8; n++)
#pragma unroll
        for (uint32_t f = 0; f < 4; f++) {
            uint32_t i = f / 2, d = out_dim<DT>(n, f);
            if (!sees[i] || d >= a.kv.v_dim) continue;
            float v = o[n][f] * c.e[i], *to = acc + (4 * n + f) * WARP;
            if (p.slots) slot[i][2 + d] = v;
            else *to = first[i] ? v : fmaf(*to, keep[i], v * take[i]);
        }
}

template <uint32_t DT, int VB> DEV void rows_done(const op_attn_args &a, const mma_rows &x, mma_chunk &all, const float *acc)
{
    float c[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        if (x.on[i]) attn_finish(a, x.h[i], all.m[i], &all.l[i], &c[i]);
#pragma unroll
    for (uint32_t n = 0; n < VB / 8; n++)
#pragma unroll
        for (uint32_t f = 0; f < 4; f++) {
            uint32_t i = f / 2, d = out_dim<DT>(n, f);
            if (x.on[i] && d < a.kv.v_dim)
                a.out[x.t[i] * a.os + (size_t)x.h[i] * a.kv.v_dim + d] = acc[(4 * n + f) * WARP] * c[i] / all.l[i];
        }
}

/* n tokens of one sequence from t0 on, heads [h0, h0 + n_h) of kv head g. */
template <uint32_t DT, int VB>
DEV void run_do(const op_attn_args &a, const op_kbias &kb, const mma_plan &p, uint8_t *smem, uint32_t t0, uint32_t n, uint32_t g,
                uint32_t h0, uint32_t n_h)
{
    const uint32_t warp = threadIdx.x / WARP, lo = attn_lo(a.window, a.b.pos[t0]), end = a.b.pos[t0 + n - 1] + 1;
    uint8_t *const *pages = a.b.tables[a.b.seq[t0]];
    uint8_t *own = smem + STAGES * p.stage + warp * (p.q_bytes + p.extra_bytes);
    uint4 *q = reinterpret_cast<uint4 *>(own);
    float *extra = reinterpret_cast<float *>(own + p.q_bytes);
    float *acc = reinterpret_cast<float *>(smem + STAGES * p.stage + blockDim.x / WARP * (p.q_bytes + p.extra_bytes));
    acc += warp * (VB / 2 * WARP) + lane_id();
    uint32_t from = lo, to = end;
    if (p.slots) {
        uint32_t base = (lo / ATTN_CHUNK + blockIdx.z) * ATTN_CHUNK;
        if (base >= end) return; /* all of the block */
        from = max(lo, base), to = min(end, base + ATTN_CHUNK);
    }
    const uint32_t first = from / TILE, last = (to + TILE - 1) / TILE;
    uint32_t chunk = first / CHUNK_TILES;
    uint8_t *heads = chunk_heads(a.kv, pages, g, chunk, lo, end);
    tile_load<DT>(a.kv, p, smem + first % STAGES * p.stage, heads, first, end);
    mma_rows x = rows_of(a, p, t0, n, h0, n_h, warp * ROWS);
    q_load<DT>(a, p, x, q);
    if (DT == DT_I8 && kb.head) kept_load(a, kb.head[g], x, extra);
    mma_chunk c, all = {};
    float o[VB / 8][4];
    for (uint32_t i = first; i < last; i++) {
        cp_async_wait<0>();
        __syncthreads(); /* the tile is here for all warps, and the other stage was read by all */
        if (i + 1 < last) {
            if ((i + 1) / CHUNK_TILES != chunk) heads = chunk_heads(a.kv, pages, g, ++chunk, lo, end);
            tile_load<DT>(a.kv, p, smem + (i + 1) % STAGES * p.stage, heads, i + 1, end);
        }
        if (i == first || i % CHUNK_TILES == 0) {
            c.m[0] = c.m[1] = -cu_infinity(), c.l[0] = c.l[1] = 0.0f;
            c.e[0] = c.e[1] = DT == DT_I8 ? 0x1p-24f : 1.0f;
#pragma unroll
            for (uint32_t j = 0; j < VB / 8; j++) o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0.0f;
        }
        if (i * TILE < x.to && i * TILE + TILE > x.from)
            tile_do<DT, VB>(a, kb, p, x, g, smem + i % STAGES * p.stage, q, extra, i * TILE, c, o);
        if (i + 1 == last || (i + 1) % CHUNK_TILES == 0) chunk_done<DT, VB>(a, p, x, i / CHUNK_TILES * ATTN_CHUNK, c, o, all, acc);
    }
    if (!p.slots) rows_done<DT, VB>(a, x, all, acc);
}

template <uint32_t DT, int VB> static __global__ void attn_tiles(op_attn_args a, op_kbias kb, mma_plan p, CU_PARAM attn_after after)
{
    DYN_SHARED(uint8_t, smem);
    uint32_t g = blockIdx.y / p.parts, h0, n_h, tile = gridDim.x - 1 - blockIdx.x; /* later rows have more to do */
    attn_heads(a, g, blockIdx.y % p.parts, p.heads, &h0, &n_h);
    if (n_h == 0) return; /* all of the block */
    for (uint32_t i = threadIdx.x; i < STAGES * p.stage / 16; i += blockDim.x) clear_16(smem + 16 * i);
    uint32_t end = min((tile + 1) * p.tokens, a.b.n_tokens);
    for (uint32_t t = tile * p.tokens, n; t < end; t += n) {
        for (n = 1; t + n < end && a.b.seq[t + n] == a.b.seq[t];) n++;
        __syncthreads(); /* the stages may be filled */
        run_do<DT, VB>(a, kb, p, smem, t, n, g, h0, n_h);
        if (!p.slots) attn_groups_of(after, a.kv.v_dim, t, h0, n_h, reinterpret_cast<uint32_t *>(smem)); /* then tokens are single ones */
    }
}

/* ---- host ---- */
static uint32_t align_16(uint32_t n) { return (n + 15) / 16 * 16; }

static mma_plan plan_of(const op_attn_args *a, uint32_t warps, uint32_t vb, uint32_t slots)
{
    mma_plan p = {};
    const bool i8 = a->kv.dtype == DT_I8;
    const uint32_t rows = warps * ROWS, v = a->kv.v_dim;
    p.heads = a->group < rows ? a->group : rows;
    p.tokens = a->single ? 1 : rows / p.heads;
    p.parts = cu_ceil(a->group, p.heads);
    p.k_steps = cu_ceil(a->kv.k_dim, 16);
    p.k_group = p.k_steps * (i8 ? 128 : 256);
    p.v_row = i8 ? v : v / 8 % 2 ? 2 * v : 2 * v + 16;
    p.v_group = 8 * p.v_row + (i8 ? 32 : 0);
    p.v_at = TILE_GROUPS * p.k_group;
    p.s_at = p.v_at + TILE_GROUPS * p.v_group + 32; /* the last n-tile may read on behind the last row */
    p.stage = p.s_at + (i8 ? 2 * 2 * TILE : 0);
    p.q_bytes = p.k_steps * WARP * 16;
    p.extra_bytes = !i8 ? ROWS * TILE * 4 : a->kbias ? align_16(ROWS * KEPT * 4) : 0;
    p.o_bytes = slots ? 0 : warps * WARP * (vb / 2) * 4;
    p.slots = slots;
    return p;
}
static uint32_t plan_bytes(const mma_plan *p, uint32_t warps)
{
    return STAGES * p->stage + warps * (p->q_bytes + p->extra_bytes) + p->o_bytes;
}

template <uint32_t DT, int VB> static int launch(const op_attn_args *a, const attn_after *after, const mma_plan *p, uint32_t warps, cudaStream_t stream)
{
    op_kbias kb = {};
    if (DT == DT_I8 && a->kbias) kb = *a->kbias;
    uint32_t z = p->slots ? p->slots + (p->tokens > 1 && a->window) : 1; /* tokens of a block may begin in two chunks */
    dim3 grid(cu_ceil(a->b.n_tokens, p->tokens), a->kv.n_kv_heads * p->parts, z);
    return LAUNCH((attn_tiles<DT, VB>), grid, WARP * warps, plan_bytes(p, warps), stream, *a, kb, *p, *after);
}

static int shared_most(uint32_t *bytes)
{
    int device = 0, most = 0, e = cudaGetDevice(&device);
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    *bytes = (uint32_t)most;
    return e;
}

int cu_attn_mma(const op_attn_args *a, const attn_after *after, cudaStream_t stream, bool *fits)
{
    const op_kv *pg = &a->kv;
    const uint32_t vb = pg->v_dim <= 64 ? 64 : 128;
    uint32_t most;
    *fits = false;
    if ((pg->dtype != DT_F16 && pg->dtype != DT_I8) || pg->k_dim % 8 || pg->v_dim % 8 || pg->v_dim > 128 || pg->k_dim > KBIAS_DIM)
        return cudaSuccess;
    int e = shared_most(&most);
    if (e != cudaSuccess) return e;
    mma_plan p = plan_of(a, 1, vb, 0); /* what it takes at least decides, so that all batches go one way */
    if (plan_bytes(&p, 1) > most) return cudaSuccess;
    *fits = true;
    uint32_t slots = attn_slots(a->window, a->max_pos), warps = 4;
    if (attn_split(a, slots)) p = plan_of(a, warps = 1, vb, slots);
    else {
        p = plan_of(a, warps, vb, 0);
        if (plan_bytes(&p, warps) > most) p = plan_of(a, warps = 1, vb, 0);
    }
    if (pg->dtype == DT_I8) e = vb == 64 ? launch<DT_I8, 64>(a, after, &p, warps, stream) : launch<DT_I8, 128>(a, after, &p, warps, stream);
    else e = vb == 64 ? launch<DT_F16, 64>(a, after, &p, warps, stream) : launch<DT_F16, 128>(a, after, &p, warps, stream);
    return e == cudaSuccess && p.slots ? cu_attn_merge(a, after, slots, stream) : e;
}

template <uint32_t DT, int VB> static int load_tiles(uint32_t most)
{
    int e = cudaFuncSetAttribute((attn_tiles<DT, VB>), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)most);
    return e == cudaSuccess ? cu_load(attn_tiles<DT, VB>) : e;
}

int cu_attn_mma_load(void)
{
    uint32_t most;
    int e = shared_most(&most);
    if (e == cudaSuccess) e = load_tiles<DT_F16, 64>(most);
    if (e == cudaSuccess) e = load_tiles<DT_F16, 128>(most);
    if (e == cudaSuccess) e = load_tiles<DT_I8, 64>(most);
    return e == cudaSuccess ? load_tiles<DT_I8, 128>(most) : e;
}
