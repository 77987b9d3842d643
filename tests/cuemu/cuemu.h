/*
 * cuemu.h - the CUDA language on the CPU, for kernels compiled as C++: what kernels/cuda/cu.cuh includes where nvcc does not
 * compile. The runtime behind it is described in emu.h. Types and cudaXxx prototypes come from cuda_runtime.h, the
 * toolkit's own or, without a toolkit, notk/cuda_runtime.h.
 *
 * Everything that touches kernel memory is a call into the runtime, which is compiled without instrumentation: in the
 * checked build (clang -fsanitize=thread, see check.cc) only the kernels' own loads and stores are then seen.
 */
#ifndef CUEMU_H
#define CUEMU_H

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define CU_NOINLINE __attribute__((noinline))
#define CUEMU_STR2(x) #x
#define CUEMU_STR(x) CUEMU_STR2(x)
#define CUEMU_SITE __FILE__ ":" CUEMU_STR(__LINE__)
#define CUEMU_FN static inline __attribute__((always_inline))

/* ---- where a thread is ---- */
__attribute__((const)) uint3 cuemu_thread_idx(void);
__attribute__((const)) uint3 cuemu_block_idx(void);
__attribute__((const)) dim3 cuemu_block_dim(void);
__attribute__((const)) dim3 cuemu_grid_dim(void);
#define threadIdx (cuemu_thread_idx())
#define blockIdx (cuemu_block_idx())
#define blockDim (cuemu_block_dim())
#define gridDim (cuemu_grid_dim())
static const int warpSize = 32;
#define CU_GRID_Y 3 /* blocks in y of a grid that strides: most take several turns, as on a device only the largest shapes do */

/* ---- shared memory: one place a block and declaration (`site`), poisoned with 0xff ---- */
void *cuemu_shared(const void *site, size_t size, const char *name);
void *cuemu_dyn_shared(void);
#define SHARED(T, name, dims) \
    typedef T name##_shared_t dims; \
    static const char name##_site = 0; \
    name##_shared_t &name = *static_cast<name##_shared_t *>(cuemu_shared(&name##_site, sizeof(name##_shared_t), #name))
#define DYN_SHARED(T, name) T *const name = static_cast<T *>(cuemu_dyn_shared())
/* nvcc's own word would be a plain static here. */
#undef __shared__
#define __shared__ static_assert(false, "use SHARED or DYN_SHARED of cu.cuh");

/* ---- launches ---- */
struct cuemu_kernel {
    const char *name, *site;
    void (*call)(const void *fn, const void *args);
    const void *fn;   /* the kernel's address */
    const void *args; /* its arguments, copied at the launch */
    size_t args_size;
};
cudaError_t cuemu_launch(const cuemu_kernel *k, dim3 grid, dim3 block, size_t smem, cudaStream_t stream, bool cooperative);

template <int... I> struct cuemu_seq {};
template <int N, int... I> struct cuemu_make_seq : cuemu_make_seq<N - 1, N - 1, I...> {};
template <int... I> struct cuemu_make_seq<0, I...> { typedef cuemu_seq<I...> type; };
template <int I, class T> struct cuemu_arg { T v; };
template <class S, class... P> struct cuemu_args;
template <int... I, class... P> struct cuemu_args<cuemu_seq<I...>, P...> : cuemu_arg<I, P>... {
    explicit cuemu_args(const P &...p) : cuemu_arg<I, P>{p}... {}
    __attribute__((no_sanitize("thread"))) static void call(const void *fn, const void *self)
    {
        const cuemu_args *a = static_cast<const cuemu_args *>(self);
        (void)a;
        reinterpret_cast<void (*)(P...)>(const_cast<void *>(fn))(static_cast<const cuemu_arg<I, P> *>(a)->v...);
    }
};
template <class... P> struct cuemu_launcher {
    const char *name, *site;
    void (*fn)(P...);
    cudaError_t go(dim3 grid, dim3 block, size_t smem, cudaStream_t stream, P... p) const
    {
        typedef cuemu_args<typename cuemu_make_seq<sizeof...(P)>::type, P...> args_t;
        static_assert(sizeof(args_t) <= 4096 + 64, "kernel parameters take at most 4096 bytes");
        args_t a(p...);
        cuemu_kernel k = {name, site, args_t::call, reinterpret_cast<const void *>(fn), &a, sizeof a};
        return cuemu_launch(&k, grid, block, smem, stream, false);
    }
};
template <class... P> cuemu_launcher<P...> cuemu_launcher_of(const char *name, const char *site, void (*fn)(P...))
{
    return {name, site, fn};
}
#define LAUNCH(kernel, grid, block, smem, stream, ...) \
    cuemu_launcher_of(#kernel, CUEMU_SITE, kernel).go((grid), (block), (smem), (stream), ##__VA_ARGS__)

/* As the toolkit's template does: the kernel's type gives the sizes of the arguments. */
template <int... I, class... P>
cudaError_t cuemu_cooperative(cuemu_seq<I...>, const char *name, const char *site, void (*fn)(P...), dim3 grid, dim3 block,
                              void **args, size_t smem, cudaStream_t stream)
{
    typedef cuemu_args<cuemu_seq<I...>, P...> args_t;
    args_t a(*static_cast<P *>(args[I])...);
    cuemu_kernel k = {name, site, args_t::call, reinterpret_cast<const void *>(fn), &a, sizeof a};
    return cuemu_launch(&k, grid, block, smem, stream, true);
}
template <class... P>
cudaError_t cuemu_cooperative_of(const char *name, const char *site, void (*fn)(P...), dim3 grid, dim3 block, void **args,
                                 size_t smem, cudaStream_t stream)
{
    return cuemu_cooperative(typename cuemu_make_seq<sizeof...(P)>::type(), name, site, fn, grid, block, args, smem, stream);
}
#define cudaLaunchCooperativeKernel(kernel, grid, block, args, smem, stream) \
    cuemu_cooperative_of(#kernel, CUEMU_SITE, kernel, grid, block, args, smem, stream)
cudaError_t cuemu_func_smem(const void *fn, int bytes);
#define cudaFuncSetAttribute(fn, attr, value) \
    ((attr) == cudaFuncAttributeMaxDynamicSharedMemorySize ? cuemu_func_smem(reinterpret_cast<const void *>(fn), (value)) : cudaSuccess)
cudaError_t cuemu_occupancy(int *n, const void *fn, int threads, size_t smem);
#define cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, fn, threads, smem) \
    cuemu_occupancy((n), reinterpret_cast<const void *>(fn), (threads), (smem))

/* ---- barriers, votes, shuffles ---- */
enum cuemu_sync_op { CUEMU_SYNC, CUEMU_COUNT, CUEMU_AND, CUEMU_OR };
int cuemu_syncthreads(int op, int predicate, const char *site);
#define __syncthreads() ((void)cuemu_syncthreads(CUEMU_SYNC, 0, CUEMU_SITE))
#define __syncthreads_count(p) cuemu_syncthreads(CUEMU_COUNT, (p) != 0, CUEMU_SITE)
#define __syncthreads_and(p) cuemu_syncthreads(CUEMU_AND, (p) != 0, CUEMU_SITE)
#define __syncthreads_or(p) cuemu_syncthreads(CUEMU_OR, (p) != 0, CUEMU_SITE)

enum cuemu_warp_op {
    CUEMU_WSYNC, CUEMU_SHFL, CUEMU_SHFL_UP, CUEMU_SHFL_DOWN, CUEMU_SHFL_XOR, CUEMU_BALLOT, CUEMU_RADD,
    CUEMU_RAND, CUEMU_ROR, CUEMU_RXOR, CUEMU_LDMATRIX, CUEMU_MMA_F16, CUEMU_MMA_BF16, CUEMU_MMA_S8, CUEMU_WGMMA
};
/* One warp operation of one lane; the lane that arrives last executes it for all of the mask. */
struct cuemu_warp_args {
    int op;
    unsigned mask;
    const char *site;
    void *io;           /* the value, replaced by the result; size bytes */
    unsigned size;
    int arg, width;     /* source lane, delta or xor mask; ldmatrix: count and transposed */
    const void *a, *b;  /* operands of ldmatrix and mma */
};
void cuemu_warp(const cuemu_warp_args *w);
CUEMU_FN void cuemu_wsync(unsigned mask, const char *site)
{
    cuemu_warp_args w = {CUEMU_WSYNC, mask, site, nullptr, 0, 0, 32, nullptr, nullptr};
    cuemu_warp(&w);
}
CUEMU_FN unsigned cuemu_wsync_mask(unsigned mask = 0xffffffffu) { return mask; }
#define __syncwarp(...) cuemu_wsync(cuemu_wsync_mask(__VA_ARGS__), CUEMU_SITE)
template <class T>
CUEMU_FN T cuemu_shfl(int op, unsigned mask, T v, int arg, int width, const char *site)
{
    cuemu_warp_args w = {op, mask, site, &v, sizeof v, arg, width, nullptr, nullptr};
    cuemu_warp(&w);
    return v;
}
CUEMU_FN int cuemu_width(int width = 32) { return width; }
#define __shfl_sync(m, v, l, ...) cuemu_shfl(CUEMU_SHFL, m, v, (int)(l), cuemu_width(__VA_ARGS__), CUEMU_SITE)
#define __shfl_up_sync(m, v, l, ...) cuemu_shfl(CUEMU_SHFL_UP, m, v, (int)(l), cuemu_width(__VA_ARGS__), CUEMU_SITE)
#define __shfl_down_sync(m, v, l, ...) cuemu_shfl(CUEMU_SHFL_DOWN, m, v, (int)(l), cuemu_width(__VA_ARGS__), CUEMU_SITE)
#define __shfl_xor_sync(m, v, l, ...) cuemu_shfl(CUEMU_SHFL_XOR, m, v, (int)(l), cuemu_width(__VA_ARGS__), CUEMU_SITE)
#define __ballot_sync(m, p) cuemu_shfl(CUEMU_BALLOT, m, (unsigned)((p) != 0), 0, 32, CUEMU_SITE)
#define __any_sync(m, p) (__ballot_sync(m, p) != 0)
#define __all_sync(m, p) (__ballot_sync(m, !(p)) == 0)
#define __reduce_add_sync(m, v) cuemu_shfl(CUEMU_RADD, m, v, 0, 32, CUEMU_SITE)
#define __reduce_and_sync(m, v) cuemu_shfl(CUEMU_RAND, m, v, 0, 32, CUEMU_SITE)
#define __reduce_or_sync(m, v) cuemu_shfl(CUEMU_ROR, m, v, 0, 32, CUEMU_SITE)
#define __reduce_xor_sync(m, v) cuemu_shfl(CUEMU_RXOR, m, v, 0, 32, CUEMU_SITE)

/* ---- fences and atomics: relaxed, as CUDA's are; with a fence before and after they order memory ---- */
void cuemu_fence(void);
#define __threadfence() cuemu_fence()
#define __threadfence_block() cuemu_fence()
#define __threadfence_system() cuemu_fence()
void cuemu_peek(const void *p, void *out, unsigned size); /* first half of an atomic; other threads may run before it */
void cuemu_poke(void *p, const void *v, unsigned size);   /* second half */
#define CUEMU_ATOMIC(name, expr) \
    template <class T, class U> CUEMU_FN T name(T *p, U operand) \
    { \
        T old, v = (T)operand, now; \
        cuemu_peek(p, &old, sizeof old); \
        now = (T)(expr); \
        cuemu_poke(p, &now, sizeof now); \
        return old; \
    }
CUEMU_ATOMIC(atomicAdd, old + v)
CUEMU_ATOMIC(atomicSub, old - v)
CUEMU_ATOMIC(atomicExch, v)
CUEMU_ATOMIC(atomicMin, v < old ? v : old)
CUEMU_ATOMIC(atomicMax, v > old ? v : old)
CUEMU_ATOMIC(atomicAnd, old & v)
CUEMU_ATOMIC(atomicOr, old | v)
CUEMU_ATOMIC(atomicXor, old ^ v)
CUEMU_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
template <class T, class U, class V> CUEMU_FN T atomicCAS(T *p, U expected, V desired)
{
    T old, now = (T)desired;
    cuemu_peek(p, &old, sizeof old);
    if (old != (T)expected) now = old;
    cuemu_poke(p, &now, sizeof now);
    return old;
}

/* ---- the twins of ptx.cuh (ptx.cc) ---- */
uint32_t ld_acquire_sys(const uint32_t *p);
uint32_t ld_relaxed_sys(const uint32_t *p);
void st_release_sys(uint32_t *p, uint32_t v);
void st_relaxed_sys(uint32_t *p, uint32_t v);
uint64_t globaltimer(void);
void sleep_ns(uint32_t ns);
void cuemu_cp_async(void *dst, const void *src, uint32_t size, uint32_t n);
void cp_async_commit(void);
void cuemu_cp_wait(int groups);
template <int N> CUEMU_FN void cp_async_wait(void) { cuemu_cp_wait(N); }
CUEMU_FN void cp_async_16(void *dst, const void *src, uint32_t n = 16) { cuemu_cp_async(dst, src, 16, n); }
CUEMU_FN void cp_async_8(void *dst, const void *src) { cuemu_cp_async(dst, src, 8, 8); }
CUEMU_FN void cp_async_4(void *dst, const void *src, uint32_t n = 4) { cuemu_cp_async(dst, src, 4, n); }
CUEMU_FN int32_t dp4a(int32_t a, int32_t b, int32_t c)
{
    for (int i = 0; i < 32; i += 8) c += (int32_t)(int8_t)(a >> i) * (int8_t)(b >> i);
    return c;
}
float cuemu_f16(uint16_t h);
CUEMU_FN float f16_low(uint32_t v) { return cuemu_f16((uint16_t)v); }
CUEMU_FN float f16_high(uint32_t v) { return cuemu_f16((uint16_t)(v >> 16)); }
CUEMU_FN float h_value(uint16_t h)
{
    uint32_t u = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    float f;
    __builtin_memcpy(&f, &u, sizeof f);
    f *= 0x1p112f; /* exact, and right for subnormal numbers */
    __builtin_memcpy(&u, &f, sizeof u);
    u |= sign | ((h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0);
    __builtin_memcpy(&f, &u, sizeof f);
    return f;
}
CUEMU_FN uint32_t cuemu_half(float f)
{
    uint32_t u, a, sign;
    __builtin_memcpy(&u, &f, sizeof u);
    a = u & 0x7fffffff, sign = u >> 16 & 0x8000;
    if (a > 0x7f800000) return 0x7fff; /* NaN as the instruction gives it */
    if (a >= 0x477ff000) return sign | 0x7c00;
    if (a >= 0x38800000) return sign | ((a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13);
    __builtin_memcpy(&f, &a, sizeof f);
    f += 0.5f;
    __builtin_memcpy(&a, &f, sizeof a);
    return sign | (a - 0x3f000000);
}
CUEMU_FN uint32_t h2_of(float lo, float hi) { return cuemu_half(lo) | cuemu_half(hi) << 16; }
CUEMU_FN uint32_t cuemu_bf16(float f)
{
    uint32_t u;
    __builtin_memcpy(&u, &f, sizeof u);
    return f != f ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
CUEMU_FN uint32_t bf2_of(float lo, float hi) { return cuemu_bf16(lo) | cuemu_bf16(hi) << 16; }
CUEMU_FN uint32_t h2_sub(uint32_t a, uint32_t b)
{
    return h2_of(h_value((uint16_t)a) - h_value((uint16_t)b), h_value((uint16_t)(a >> 16)) - h_value((uint16_t)(b >> 16)));
}
CUEMU_FN float exp2_near(float x)
{
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y; /* NaN is not below */
}
CUEMU_FN void cuemu_mma(int op, void *d, const void *a, const void *b, const char *site)
{
    cuemu_warp_args w = {op, 0xffffffffu, site, d, 16, 0, 32, a, b};
    cuemu_warp(&w);
}
CUEMU_FN void cuemu_ldmatrix(void *r, const void *p, int count, bool trans, const char *site)
{
    cuemu_warp_args w = {CUEMU_LDMATRIX, 0xffffffffu, site, r, (unsigned)count * 4, count, trans, p, nullptr};
    cuemu_warp(&w);
}
#define ldmatrix_x4(r, p) cuemu_ldmatrix(r, p, 4, false, CUEMU_SITE)
#define ldmatrix_x2(r, p) cuemu_ldmatrix(r, p, 2, false, CUEMU_SITE)
#define ldmatrix_x4_trans(r, p) cuemu_ldmatrix(r, p, 4, true, CUEMU_SITE)
#define ldmatrix_x2_trans(r, p) cuemu_ldmatrix(r, p, 2, true, CUEMU_SITE)
#define mma_f16(d, a, b) cuemu_mma(CUEMU_MMA_F16, d, a, b, CUEMU_SITE)
#define PTX_MMA_BF16 1
#define mma_bf16(d, a, b) cuemu_mma(CUEMU_MMA_BF16, d, a, b, CUEMU_SITE)
#define mma_s8(d, a, b) cuemu_mma(CUEMU_MMA_S8, d, a, b, CUEMU_SITE)
CUEMU_FN void cuemu_mma_from(int op, void *d, const void *a, const void *b, const void *c, const char *site)
{
    memcpy(d, c, 16);
    cuemu_mma(op, d, a, b, site);
}
#define mma_s8_from(d, a, b, c) cuemu_mma_from(CUEMU_MMA_S8, d, a, b, c, CUEMU_SITE)

/* wgmma: done at the wait, with what is in shared memory then. */
#define PTX_WGMMA 1
struct wgmma_cores {
    const void *p;
    uint32_t k_step, other_step;
};
CUEMU_FN wgmma_cores wgmma_cores_at(const void *p, uint32_t k_step, uint32_t other_step) { return {p, k_step, other_step}; }
void fence_async_shared(void);
CUEMU_FN void wgmma_begin(void) {}
CUEMU_FN void wgmma_settle(float (&)[32][4]) {}
void cuemu_wgmma(void *d, wgmma_cores a, wgmma_cores b, const char *site);
#define wgmma_bf16(d, a, b) cuemu_wgmma(d, a, b, CUEMU_SITE)
void wgmma_commit(void);
void cuemu_wgmma_wait(int groups);
template <int N> CUEMU_FN void wgmma_wait(void) { cuemu_wgmma_wait(N); }

/* ---- arithmetic of the device that the host's headers lack ---- */
CUEMU_FN float __fadd_rn(float a, float b) { return a + b; }
CUEMU_FN float __fsub_rn(float a, float b) { return a - b; }
CUEMU_FN float __fmul_rn(float a, float b) { return a * b; }
CUEMU_FN float __fdiv_rn(float a, float b) { return a / b; }
CUEMU_FN float __frcp_rn(float a) { return 1.0f / a; }
CUEMU_FN float __fsqrt_rn(float a) { return sqrtf(a); }
CUEMU_FN float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
#define __expf(a) expf(a) /* the C library declares the name for itself */
CUEMU_FN float rsqrtf(float a) { return 1.0f / sqrtf(a); }
CUEMU_FN float __saturatef(float a) { return a > 0 ? (a < 1 ? a : 1.0f) : 0.0f; }
template <class D, class S> CUEMU_FN D cuemu_bits(S s)
{
    static_assert(sizeof(D) == sizeof(S), "equal sizes");
    D d;
    __builtin_memcpy(&d, &s, sizeof d);
    return d;
}
CUEMU_FN int __float_as_int(float v) { return cuemu_bits<int>(v); }
CUEMU_FN unsigned __float_as_uint(float v) { return cuemu_bits<unsigned>(v); }
CUEMU_FN float __int_as_float(int v) { return cuemu_bits<float>(v); }
CUEMU_FN float __uint_as_float(unsigned v) { return cuemu_bits<float>(v); }
CUEMU_FN long long __double_as_longlong(double v) { return cuemu_bits<long long>(v); }
CUEMU_FN double __longlong_as_double(long long v) { return cuemu_bits<double>(v); }
/* Conversions saturate and make 0 of NaN, as the instruction does. */
CUEMU_FN int cuemu_to_int(float v)
{
    return !(v > -2147483648.0f) ? (v == v ? -2147483647 - 1 : 0) : v >= 2147483648.0f ? 2147483647 : (int)v;
}
CUEMU_FN int __float2int_rn(float v) { return cuemu_to_int(rintf(v)); }
CUEMU_FN int __float2int_rz(float v) { return cuemu_to_int(truncf(v)); }
CUEMU_FN int __float2int_rd(float v) { return cuemu_to_int(floorf(v)); }
CUEMU_FN int __float2int_ru(float v) { return cuemu_to_int(ceilf(v)); }
CUEMU_FN float __int2float_rn(int v) { return (float)v; }
CUEMU_FN float __uint2float_rn(unsigned v) { return (float)v; }
CUEMU_FN int __popc(unsigned v) { return __builtin_popcount(v); }
CUEMU_FN int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
CUEMU_FN int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
CUEMU_FN int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
CUEMU_FN int __ffs(int v) { return __builtin_ffs(v); }
CUEMU_FN int __ffsll(long long v) { return __builtin_ffsll(v); }
CUEMU_FN unsigned __brev(unsigned v)
{
    v = __builtin_bswap32(v);
    v = (v >> 4 & 0x0f0f0f0fu) | (v & 0x0f0f0f0fu) << 4;
    v = (v >> 2 & 0x33333333u) | (v & 0x33333333u) << 2;
    return (v >> 1 & 0x55555555u) | (v & 0x55555555u) << 1;
}
CUEMU_FN int __mul24(int a, int b) { return a * b; }
CUEMU_FN unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
CUEMU_FN unsigned __byte_perm(unsigned x, unsigned y, unsigned s)
{
    const uint64_t v = (uint64_t)y << 32 | x;
    unsigned r = 0;
    for (unsigned i = 0; i < 4; i++) {
        const unsigned byte = (unsigned)(v >> 8 * (s >> 4 * i & 7)) & 0xff, sign = s >> 4 * i & 8;
        r |= (sign ? (byte & 0x80 ? 0xffu : 0u) : byte) << 8 * i;
    }
    return r;
}
CUEMU_FN unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) { return (unsigned)(((uint64_t)hi << 32 | lo) >> (n & 31)); }
CUEMU_FN int __dp4a(int a, int b, int c) { return dp4a(a, b, c); }
template <class T> CUEMU_FN T __ldg(const T *p) { return *p; }
template <class T> CUEMU_FN T __ldcg(const T *p) { return *p; }
template <class T> CUEMU_FN T __ldcs(const T *p) { return *p; }
template <class T> CUEMU_FN void __stcs(T *p, const T &v) { *p = v; }
template <class T> CUEMU_FN T min(T a, T b) { return b < a ? b : a; }
template <class T> CUEMU_FN T max(T a, T b) { return a < b ? b : a; }
CUEMU_FN void __nanosleep(unsigned ns) { sleep_ns(ns); }

#endif
