/*
 * attn.cu - attention over pages: chunks of 256 positions, merged in ascending order.
 *
 * A block is one row and up to ATTN_HEADS query heads of one kv head ("tile"). Of a chunk it computes scores (a thread is a head and
 * a position), greatest score and sum (8 threads a head, one for each lane of ops.h), and values (a thread is a head and a dimension,
 * which walks the positions). Many rows: a block walks all chunks of its row and merges as it goes. Few rows: a block is one
 * chunk, leaves (m, l, o[v_dim]) in scratch, and a second kernel merges. Both do the same arithmetic in the same order.
 *
 * What the scores owe to a K bias that int8 pages do not hold (ops.h, op_kbias) comes from two factors for each rotary pair and a
 * number for the rest, the same at every position: a block makes them once for its heads.
 *
 * This is the only path for f32 pages, for --compute f32 and for shapes that attn_mma.cu does not take.
 */
#include "cu_attn.cuh"

enum {
    ATTN_HEADS = 8,
    ATTN_THREADS = 128
};

typedef struct {
    float p[ATTN_HEADS][ATTN_CHUNK]; /* by position % ATTN_CHUNK */
    float lane[ATTN_HEADS][8];
    float kept[ATTN_HEADS][2 * KBIAS_PAIRS + 1]; /* A and B of each pair; last what the flat part adds */
    float max[ATTN_HEADS], sum[ATTN_HEADS];   /* of the chunk; then what is merged of all so far */
    float keep[ATTN_HEADS], take[ATTN_HEADS]; /* factors of what is merged and of the chunk */
    uint32_t flag;
} attn_shared;

/* What a block works on. */
typedef struct {
    uint8_t *const *pages;
    size_t t;
    uint32_t g, h0, n_h; /* kv head, query heads of the rank */
    uint32_t lo, end;    /* positions that the row sees */
} attn_tile;

DEV attn_tile tile_of(const op_attn_args &a, uint32_t tiles)
{
    attn_tile x;
    x.t = blockIdx.x;
    x.g = blockIdx.y / tiles;
    uint32_t pos = a.b.pos[x.t];
    attn_heads(a, x.g, blockIdx.y % tiles, ATTN_HEADS, &x.h0, &x.n_h);
    x.pages = a.b.tables[a.b.seq[x.t]];
    x.end = pos + 1;
    x.lo = attn_lo(a.window, pos);
    return x;
}

/* s.kept of the tile's heads. */
DEV void kbias_factors(const op_attn_args &a, const attn_tile &x, const op_kbias &kb, attn_shared &s)
{
    const op_kbias_head &b = kb.head[x.g];
    for (uint32_t i = threadIdx.x; i < x.n_h * (KBIAS_PAIRS + 1); i += ATTN_THREADS) {
        uint32_t h = i / (KBIAS_PAIRS + 1), k = i % (KBIAS_PAIRS + 1);
        const float *q = a.q + x.t * a.qs + (size_t)(x.h0 + h) * a.kv.k_dim;
        if (k < b.n_pairs) {
            const op_kbias_pair &p = b.pair[k];
            s.kept[h][2 * k] = fmaf(q[p.da], p.ba, q[p.db] * p.bb);
            s.kept[h][2 * k + 1] = fmaf(q[p.db], p.ba, -(q[p.da] * p.bb));
        } else if (k == KBIAS_PAIRS) {
            float e = 0.0f;
            for (uint32_t d = 0; b.flat && d < a.kv.k_dim; d++) e = fmaf(q[d], b.flat[d], e);
            s.kept[h][2 * k] = e;
        }
    }
    __syncthreads();
}

/* What the bias adds to the score of position j. */
DEV float kbias_score(const op_attn_args &a, const attn_tile &x, const op_kbias &kb, const float *kept, uint32_t j)
{
    const op_kbias_head &b = kb.head[x.g];
    const float *lanes = kb.lanes[a.b.seq[x.t]]; /* NULL when nothing is rotated */
    float e = kept[2 * KBIAS_PAIRS];
    for (uint32_t i = 0; i < b.n_pairs; i++) {
        size_t at = ((size_t)(j / 8) * kb.n_cs + b.pair[i].i) * 16 + j % 8;
        e = fmaf(lanes[at + 8], kept[2 * i + 1], fmaf(lanes[at], kept[2 * i], e));
    }
    return e;
}

/* Score of the tile's head i and position j. kb.head NULL: pages hold all of K. */
template <uint32_t DT> DEV float score(const op_attn_args &a, const attn_tile &x, const op_kbias &kb, const attn_shared &sh, uint32_t i, uint32_t j)
{
    const op_kv &pg = a.kv;
    uint32_t h = x.h0 + i;
    uint8_t *head = kv_head(pg, x.pages, j, x.g);
    const float *q = a.q + x.t * a.qs + (size_t)h * pg.k_dim;
    size_t at = kv_k_at<DT>(pg, j % pg.page_tokens);
    float s = 0.0f;
    for (uint32_t d = 0; d < pg.k_dim; d++) s = fmaf(widen(DT, head, at + kv_k_step<DT>(d)), q[d], s);
    if (DT == DT_I8) {
        float ks = f16_value(kv_scales(pg, head, false)[j % pg.page_tokens]);
        s = kb.head ? fmaf(s, ks, kbias_score(a, x, kb, sh.kept[i], j)) : s * ks;
    }
    s = soft_cap(s * a.scale, a.softcap);
    if (a.bias) s = s + (a.bias[h * a.bias_stride + j] - a.bias[h * a.bias_stride + x.end - 1]);
    return s;
}

/* Lane threadIdx.x % 8 of head threadIdx.x / 8 over positions [p0, p1): the greatest score, or the sum. */
DEV void lanes_of(const attn_tile &x, uint32_t p0, uint32_t p1, bool sum, attn_shared &s)
{
    uint32_t h = threadIdx.x / 8, l = threadIdx.x % 8;
    if (h >= x.n_h) return;
    float v = sum ? 0.0f : -cu_infinity();
    for (uint32_t j = p0 + (l + 8 - p0 % 8) % 8; j < p1; j += 8) {
        float p = s.p[h][j % ATTN_CHUNK];
        if (sum) v += p;
        else v = p > v ? p : v;
    }
    s.lane[h][l] = v;
}

/* Leaves the chunk's probabilities (int8: times the scales of V) in s.p, its max and sum in s.max and s.sum of threads h. */
template <uint32_t DT>
DEV void softmax_chunk(const op_attn_args &a, const attn_tile &x, const op_kbias &kb, uint32_t p0, uint32_t p1, attn_shared &s, float *m,
                       float *l)
{
    uint32_t n = p1 - p0, h = threadIdx.x;
    for (uint32_t i = threadIdx.x; i < x.n_h * n; i += ATTN_THREADS)
        s.p[i / n][(p0 + i % n) % ATTN_CHUNK] = score<DT>(a, x, kb, s, i / n, p0 + i % n);
    __syncthreads();
    lanes_of(x, p0, p1, false, s);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < x.n_h * n; i += ATTN_THREADS) {
        const float *lane = s.lane[i / n];
        float *p = &s.p[i / n][(p0 + i % n) % ATTN_CHUNK], top = lane[0];
        for (uint32_t k = 1; k < 8; k++) top = lane[k] > top ? lane[k] : top;
        *p = cu_exp(*p - top);
    }
    *m = -cu_infinity();
    for (uint32_t k = 0; h < x.n_h && k < 8; k++) *m = s.lane[h][k] > *m ? s.lane[h][k] : *m;
    __syncthreads();
    lanes_of(x, p0, p1, true, s);
    __syncthreads();
    *l = h < x.n_h ? lanes8_total(s.lane[h]) : 0.0f;
    for (uint32_t i = threadIdx.x; DT == DT_I8 && i < x.n_h * n; i += ATTN_THREADS) {
        uint32_t j = p0 + i % n;
        float *p = &s.p[i / n][j % ATTN_CHUNK];
        *p = *p * f16_value(kv_scales(a.kv, kv_head(a.kv, x.pages, j, x.g), true)[j % a.kv.page_tokens]);
    }
}

/* Dimension d of the chunk's weighted sum of V for the tile's head h. */
template <uint32_t DT>
DEV float value(const op_attn_args &a, const attn_tile &x, uint32_t p0, uint32_t p1, const float *p, uint32_t d)
{
    const op_kv &pg = a.kv;
    float o = 0.0f;
    for (uint32_t j = p0, page_end; j < p1; j = page_end) {
        const uint8_t *v = kv_head(pg, x.pages, j, x.g) + pg.v_off;
        page_end = min(p1, j / pg.page_tokens * pg.page_tokens + pg.page_tokens);
        for (uint32_t i = j; i < page_end; i++)
            o = fmaf(widen(DT, v, (size_t)(i % pg.page_tokens) * pg.v_dim + d), p[i % ATTN_CHUNK], o);
    }
    return o;
}

/* Merges the chunk (m, l) of thread h into s.max, s.sum; leaves the factors of O and o. */
DEV void merge(attn_shared &s, bool first, float m, float l)
{
    uint32_t h = threadIdx.x;
    float max = first || m > s.max[h] ? m : s.max[h];
    s.keep[h] = first ? 0.0f : cu_exp(s.max[h] - max);
    s.take[h] = first ? 1.0f : cu_exp(m - max);
    s.sum[h] = first ? l : fmaf(s.sum[h], s.keep[h], l * s.take[h]);
    s.max[h] = max;
}

template <uint32_t DT> static __global__ void attn_rows(op_attn_args a, op_kbias kb, uint32_t tiles, CU_PARAM attn_after after)
{
    SHARED(attn_shared, shared, [1]);
    attn_shared &s = shared[0];
    attn_tile x = tile_of(a, tiles);
    if (x.n_h == 0) return; /* the whole block */
    float *out = a.out + x.t * a.os + (size_t)x.h0 * a.kv.v_dim, m, l;
    uint32_t cells = x.n_h * a.kv.v_dim;
    if (DT == DT_I8 && kb.head) kbias_factors(a, x, kb, s);
    for (uint32_t p0 = x.lo, p1; p0 < x.end; p0 = p1) {
        p1 = min(x.end, p0 / ATTN_CHUNK * ATTN_CHUNK + ATTN_CHUNK);
        softmax_chunk<DT>(a, x, kb, p0, p1, s, &m, &l);
        if (threadIdx.x < x.n_h) merge(s, p0 == x.lo, m, l);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < cells; i += ATTN_THREADS) { /* a cell of out belongs to one thread throughout */
            uint32_t h = i / a.kv.v_dim;
            float o = value<DT>(a, x, p0, p1, s.p[h], i % a.kv.v_dim);
            out[i] = p0 == x.lo ? o : fmaf(out[i], s.keep[h], o * s.take[h]);
        }
        __syncthreads();
    }
    for (uint32_t i = threadIdx.x; i < cells; i += ATTN_THREADS) {
        uint32_t h = i / a.kv.v_dim;
        float sum = s.sum[h], c;
        attn_finish(a, x.h0 + h, s.max[h], &sum, &c);
        out[i] = out[i] * c / sum;
    }
    attn_groups_of(after, a.kv.v_dim, x.t, x.h0, x.n_h, &s.flag);
}

template <uint32_t DT> static __global__ void attn_chunks(op_attn_args a, op_kbias kb, uint32_t tiles)
{
    SHARED(attn_shared, shared, [1]);
    attn_shared &s = shared[0];
    attn_tile x = tile_of(a, tiles);
    uint32_t slots = gridDim.z, base = (x.lo / ATTN_CHUNK + blockIdx.z) * ATTN_CHUNK;
    if (x.n_h == 0 || base >= x.end) return; /* the whole block */
    uint32_t p0 = max(base, x.lo), p1 = min(x.end, base + ATTN_CHUNK);
    float m, l;
    if (DT == DT_I8 && kb.head) kbias_factors(a, x, kb, s);
    softmax_chunk<DT>(a, x, kb, p0, p1, s, &m, &l);
    __syncthreads();
    if (threadIdx.x < x.n_h) {
        float *to = slot_of(a, slots, x.t, x.h0 + threadIdx.x, blockIdx.z);
        to[0] = m;
        to[1] = l;
    }
    for (uint32_t i = threadIdx.x; i < x.n_h * a.kv.v_dim; i += ATTN_THREADS) {
        uint32_t h = i / a.kv.v_dim, d = i % a.kv.v_dim;
        slot_of(a, slots, x.t, x.h0 + h, blockIdx.z)[2 + d] = value<DT>(a, x, p0, p1, s.p[h], d);
    }
}

size_t op_cuda_attn_scratch(uint32_t n_tokens, uint32_t n_heads, uint32_t v_dim, uint32_t max_pos)
{
    uint64_t slots = attn_slots(0, max_pos), row = n_heads * slots * (2 + (uint64_t)v_dim);
    uint64_t rows = n_heads ? ATTN_SPLIT_MAX / n_heads : 0;
    if (row && rows > ATTN_SCRATCH_MAX / row) rows = ATTN_SCRATCH_MAX / row;
    if (rows > n_tokens) rows = n_tokens;
    return slots > 1 ? (size_t)(rows * row) : 0;
}

template <uint32_t DT> static int launch(const op_attn_args *a, const attn_after *after, cudaStream_t stream)
{
    uint32_t tiles = cu_ceil(a->group, ATTN_HEADS), slots = attn_slots(a->window, a->max_pos);
    dim3 grid(a->b.n_tokens, a->kv.n_kv_heads * tiles, 1);
    op_kbias kb = {};
    if (DT == DT_I8 && a->kbias) kb = *a->kbias;
    if (!attn_split(a, slots)) return LAUNCH(attn_rows<DT>, grid, ATTN_THREADS, 0, stream, *a, kb, tiles, *after);
    grid.z = slots;
    int e = LAUNCH(attn_chunks<DT>, grid, ATTN_THREADS, 0, stream, *a, kb, tiles);
    if (e != cudaSuccess) return e;
    return cu_attn_merge(a, after, slots, stream);
}

static int give(const op_attn_args *a, const attn_after *after, cudaStream_t stream)
{
    if (a->b.n_tokens == 0 || a->n_heads == 0) return cudaSuccess;
    if (a->fast) {
        bool fits;
        int e = cu_attn_mma(a, after, stream, &fits);
        if (fits || e != cudaSuccess) return e;
    }
    switch (a->kv.dtype) {
    case DT_F32: return launch<DT_F32>(a, after, stream);
    case DT_F16: return launch<DT_F16>(a, after, stream);
    case DT_I8: return launch<DT_I8>(a, after, stream);
    default: return cudaErrorInvalidValue;
    }
}

int cu_attn(const op_attn_args *a, void *stream)
{
    const attn_after none = {};
    return give(a, &none, (cudaStream_t)stream);
}

/* Groups of all that a block writes, which is one row, at leaves that are whole heads. */
static bool groups_fit(const op_attn_args *a, const op_quant_args *q, const op_counts *counts, attn_after *f)
{
    uint32_t all = 0;
    if ((a->fast && !a->single) || a->b.n_tokens > AFTER_TOKENS) return false;
    if (!quant_is_of(q, a->out, a->os, a->b.n_tokens) || quant_cut(q, &f->leaf) == UINT32_MAX) return false;
    for (uint32_t l = 0; l < f->leaf.n; all += f->leaf.k[l++])
        if (f->leaf.k[l] % a->kv.v_dim) return false;
    f->quant = *q;
    f->counts = counts->at;
    return all == a->n_heads * a->kv.v_dim && q->n_tokens * f->leaf.n <= counts->n;
}

int cu_attn_groups(const op_attn_args *a, const op_quant_args *quant, const op_counts *counts, void *stream)
{
    attn_after f = {};
    if (groups_fit(a, quant, counts, &f)) return give(a, &f, (cudaStream_t)stream);
    const int e = cu_attn(a, stream);
    return e == cudaSuccess ? cu_quant(quant, stream) : e;
}

int cu_attn_load(void)
{
    int e = cu_load(attn_rows<DT_F32>, attn_rows<DT_F16>, attn_rows<DT_I8>, attn_chunks<DT_F32>, attn_chunks<DT_F16>,
                    attn_chunks<DT_I8>);
    if (e == cudaSuccess) e = cu_attn_merge_load();
    return e == cudaSuccess ? cu_attn_mma_load() : e;
}
