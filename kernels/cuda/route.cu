/*
 * route.cu - chooses and weighs experts; a warp is one row.
 *
 * The choice is that of cpu/experts.c: of the greatest value, equal ones by the lower id, NaN behind every number. As an order of
 * pairs (value, id) this is total, so lanes may look in any order.
 */
#include "cu_ops.cuh"

typedef struct {
    float score[ARCH_MAX_EXPERTS], choice[ARCH_MAX_EXPERTS], group[ARCH_MAX_EXPERTS];
    uint8_t out[ARCH_MAX_EXPERTS], taken[ARCH_MAX_EXPERTS]; /* experts, groups that are no longer to be chosen */
    float weight[ARCH_MAX_USED], lane[8];
    uint32_t id[ARCH_MAX_USED];
} route_shared;

enum { NOBODY = 0xffffffff };

/* (v, i) comes before (w, k). */
DEV bool is_before(float v, uint32_t i, float w, uint32_t k)
{
    if (i == NOBODY || k == NOBODY) return k == NOBODY && i != NOBODY;
    if (v > w || v < w) return v > w;
    bool v_nan = v != v, w_nan = w != w;
    return v_nan != w_nan ? w_nan : i < k;
}

/* Place of the greatest of v[0..n) whose flag is not set, NOBODY when all are; by the whole warp, to all lanes. */
DEV uint32_t greatest(const float *v, const uint8_t *out, uint32_t n)
{
    float best = 0.0f;
    uint32_t id = NOBODY;
    for (uint32_t i = threadIdx.x; i < n; i += WARP)
        if (!out[i] && is_before(v[i], i, best, id)) best = v[i], id = i;
    for (uint32_t w = WARP / 2; w > 0; w /= 2) {
        float other = __shfl_xor_sync(~0u, best, w);
        uint32_t other_id = __shfl_xor_sync(~0u, id, w);
        if (is_before(other, other_id, best, id)) best = other, id = other_id;
    }
    return id;
}

/* Sets a flag that all lanes look at. */
DEV void set_flag(uint8_t *flag)
{
    __syncwarp();
    if (threadIdx.x == 0) *flag = 1;
    __syncwarp();
}

/* p = softmax of x, n of them, p in shared memory; p may be x. lane: 8 floats of shared memory. */
DEV void softmax(const float *x, uint32_t n, float *p, float *lane)
{
    float m = -cu_infinity(), s = 0.0f;
    for (uint32_t i = threadIdx.x; i < n; i += WARP) m = x[i] > m ? x[i] : m;
    for (uint32_t w = WARP / 2; w > 0; w /= 2) {
        float other = __shfl_xor_sync(~0u, m, w);
        m = other > m ? other : m;
    }
    for (uint32_t i = threadIdx.x; i < n; i += WARP) p[i] = cu_exp(x[i] - m);
    __syncwarp();
    for (uint32_t i = threadIdx.x; threadIdx.x < 8 && i < n; i += 8) s += p[i];
    if (threadIdx.x < 8) lane[threadIdx.x] = s;
    __syncwarp();
    float l = lanes8_total(lane);
    for (uint32_t i = threadIdx.x; i < n; i += WARP) p[i] = p[i] / l;
    __syncwarp();
}

/* Sets the flags of the experts whose group is not among the best. */
DEV void drop_groups(const op_route_args &a, route_shared &s)
{
    uint32_t n = a.n_experts / a.n_groups;
    for (uint32_t g = 0; g < a.n_groups; g++) {
        const float *v = s.choice + (size_t)g * n;
        uint8_t *out = s.out + (size_t)g * n;
        uint32_t first = greatest(v, out, n);
        float score = v[first];
        if (a.kind == ROUTER_SIGMOID && n > 1) {
            set_flag(&out[first]);
            score = score + v[greatest(v, out, n)];
        }
        __syncwarp();
        if (threadIdx.x == 0) s.group[g] = score, s.taken[g] = 0;
    }
    __syncwarp();
    for (uint32_t i = 0; i < a.groups_used; i++) {
        uint32_t g = greatest(s.group, s.taken, a.n_groups);
        set_flag(&s.taken[g]);
    }
    for (uint32_t i = threadIdx.x; i < a.n_experts; i += WARP) s.out[i] = !s.taken[i / n];
    __syncwarp();
}

/* The chosen, to s.id by ascending id. */
DEV void choose(const op_route_args &a, route_shared &s)
{
    for (uint32_t j = 0; j < a.n_used; j++) {
        uint32_t id = greatest(s.choice, s.out, a.n_experts), at = 0;
        for (uint32_t k = 0; k < j; k++) at += s.id[k] < id;
        set_flag(&s.out[id]);
        if (threadIdx.x == 0) { /* those behind it make room */
            for (uint32_t k = j; k > at; k--) s.id[k] = s.id[k - 1];
            s.id[at] = id;
        }
        __syncwarp();
    }
}

DEV void scores_of(const op_route_args &a, const float *x, route_shared &s)
{
    if (a.kind == ROUTER_SOFTMAX) softmax(x, a.n_experts, s.score, s.lane);
    for (uint32_t i = threadIdx.x; i < a.n_experts; i += WARP) {
        float v = a.kind == ROUTER_SOFTMAX ? s.score[i] : a.kind == ROUTER_SIGMOID ? logistic(x[i]) : x[i];
        s.score[i] = v;
        s.choice[i] = a.correction ? v + a.correction[i] : v;
        s.out[i] = 0;
    }
    __syncwarp();
}

static __global__ void route_rows(op_route_args a)
{
    SHARED(route_shared, shared, [1]);
    route_shared &s = shared[0];
    size_t t = blockIdx.x;
    scores_of(a, a.x + t * a.xs, s);
    if (a.n_groups > 1) drop_groups(a, s);
    choose(a, s);
    for (uint32_t j = threadIdx.x; j < a.n_used; j += WARP) s.weight[j] = s.score[s.id[j]];
    __syncwarp();
    if (a.kind == ROUTER_CHOSEN) softmax(s.weight, a.n_used, s.weight, s.lane);
    float sum = 0.0f;
    for (uint32_t j = 0; j < a.n_used; j++) sum += s.weight[j];
    if (a.kind == ROUTER_SIGMOID) sum += 1e-20f;
    for (uint32_t j = threadIdx.x; j < a.n_used; j += WARP) {
        a.ids[t * a.is + j] = s.id[j];
        a.w[t * a.ws + j] = (a.norm ? s.weight[j] / sum : s.weight[j]) * a.scale;
    }
}

int cu_route(const op_route_args *a, void *stream)
{
    if (a->n_tokens == 0) return cudaSuccess;
    if (a->n_experts > ARCH_MAX_EXPERTS || a->n_used > ARCH_MAX_USED) return cudaErrorInvalidValue;
    return LAUNCH(route_rows, a->n_tokens, WARP, 0, (cudaStream_t)stream, *a);
}

int cu_route_load(void) { return cu_load(route_rows); }
