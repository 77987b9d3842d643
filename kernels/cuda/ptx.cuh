/*
 * ptx.cuh - the instructions that CUDA C++ has no function for; the only file with inline assembly.
 *
 * Every function has a twin with the same meaning in tests/cuemu/ptx.cc, which is what tests run; keep both in step.
 * Below sm_80 there is no cp.async, no bf16 mma and no wide f16 and s8 mma: the fallbacks copy at once, add in f32 lane
 * by lane, or split K. Results of mma on bf16 and f16 may then differ in the last bits; those on s8 are exact everywhere.
 *
 * Fragments are those of the PTX ISA: of mma m16n8k16 (f16, bf16) lane l holds, with g = l / 4 and c = l % 4,
 *   a[0] A[g][2c, 2c+1]  a[1] A[g+8][2c..]  a[2] A[g][2c+8..]  a[3] A[g+8][2c+8..]
 *   b[0] B[2c, 2c+1][g]  b[1] B[2c+8..][g]       d[0..1] D[g][2c, 2c+1]  d[2..3] D[g+8][2c..]
 * and of m16n8k32 (s8) the same with 4 values a register: A[g][4c..4c+3], rows g and g+8, K halves 0 and 16.
 */
#ifndef TESS_PTX_CUH
#define TESS_PTX_CUH

#include "cu.cuh"

#ifdef __CUDACC__

/* ---- memory that other devices and blocks write meanwhile; scope: the whole system ---- */
__device__ __forceinline__ uint32_t ld_acquire_sys(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void st_release_sys(uint32_t *p, uint32_t v)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ uint32_t ld_relaxed_sys(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void st_relaxed_sys(uint32_t *p, uint32_t v)
{
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

/* ---- time: nanoseconds of the device's clock, for deadlines; waiting about ns ---- */
__device__ __forceinline__ uint64_t globaltimer(void)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
__device__ __forceinline__ void sleep_ns(uint32_t ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }

/* ---- pairs of f16 in a register, the low half first ---- */
/* a - b, rounded to nearest even */
__device__ __forceinline__ uint32_t h2_sub(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
/* Rounded to nearest even. */
__device__ __forceinline__ uint32_t h2_of(float lo, float hi)
{
    uint32_t d;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
#else
    asm("{ .reg .f16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h}; }" : "=r"(d) : "f"(lo), "f"(hi));
#endif
    return d;
}
/* The same of bf16. */
__device__ __forceinline__ uint32_t bf2_of(float lo, float hi)
{
#if __CUDA_ARCH__ >= 800
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
#else
    uint32_t l = __float_as_uint(lo), h = __float_as_uint(hi);
    l = lo != lo ? 0x7fff : (l + 0x7fff + (l >> 16 & 1)) >> 16;
    h = hi != hi ? 0x7fff : (h + 0x7fff + (h >> 16 & 1)) >> 16;
    return l | h << 16;
#endif
}
__device__ __forceinline__ float h_value(uint16_t h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
/* 2^x within 2 ulp; 2^0 = 1; results below the normal numbers are 0; NaN stays. */
__device__ __forceinline__ float exp2_near(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- c + the sum of four products of signed bytes ---- */
__device__ __forceinline__ int32_t dp4a(int32_t a, int32_t b, int32_t c)
{
    int32_t d;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* ---- the f16 numbers in the low and the high half of a word, exactly ---- */
__device__ __forceinline__ float f16_low(uint32_t v)
{
    float f;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(f) : "r"(v));
    return f;
}
__device__ __forceinline__ float f16_high(uint32_t v)
{
    float f;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(f) : "r"(v));
    return f;
}

/* ---- copies from global to shared memory that land at the wait; addresses are aligned to the size ---- */
__device__ __forceinline__ uint32_t ptx_shared(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
/* 16 bytes, of which the first n (0..16) are read and the rest becomes zero. */
__device__ __forceinline__ void cp_async_16(void *dst, const void *src, uint32_t n = 16)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(ptx_shared(dst)), "l"(src), "r"(n) : "memory");
#else
    uint4 v = make_uint4(0, 0, 0, 0);
    if (n == 16) v = *static_cast<const uint4 *>(src);
    else
        for (uint32_t i = 0; i < n; i++) reinterpret_cast<uint8_t *>(&v)[i] = static_cast<const uint8_t *>(src)[i];
    *static_cast<uint4 *>(dst) = v;
#endif
}
/* 8 bytes. */
__device__ __forceinline__ void cp_async_8(void *dst, const void *src)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(ptx_shared(dst)), "l"(src) : "memory");
#else
    *static_cast<uint2 *>(dst) = *static_cast<const uint2 *>(src);
#endif
}
/* 4 bytes, of which the first n (0..4) are read and the rest becomes zero. */
__device__ __forceinline__ void cp_async_4(void *dst, const void *src, uint32_t n = 4)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(ptx_shared(dst)), "l"(src), "r"(n) : "memory");
#else
    uint32_t v = 0;
    if (n == 4) v = *static_cast<const uint32_t *>(src);
    else
        for (uint32_t i = 0; i < n; i++) v |= (uint32_t) static_cast<const uint8_t *>(src)[i] << 8 * i;
    *static_cast<uint32_t *>(dst) = v;
#endif
}
__device__ __forceinline__ void cp_async_commit(void)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/* Until at most N of this thread's newest groups are under way. */
template <int N> __device__ __forceinline__ void cp_async_wait(void)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

/* ---- four (two) 8x8 matrices of 16-bit values from shared memory; lane l gives the address of row l % 8 of matrix l / 8 ---- */
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(ptx_shared(p)) : "memory");
}
__device__ __forceinline__ void ldmatrix_x2(uint32_t (&r)[2], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(ptx_shared(p)) : "memory");
}
/* The same, each matrix transposed. */
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(ptx_shared(p)) : "memory");
}
__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&r)[2], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(ptx_shared(p)) : "memory");
}

/* ---- d += a * b by the 32 lanes of a warp together ---- */
/* m16n8k16, f16 in, f32 sums */
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
    for (int k = 0; k < 2; k++)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[2 * k]), "r"(a[2 * k + 1]), "r"(b[k]));
#endif
}

/* m16n8k16, bf16 in, f32 sums */
#if __CUDA_ARCH__ >= 800
#define PTX_MMA_BF16 1
#else
#define PTX_MMA_BF16 0 /* by hand, too slow for a kernel that is there for its speed */
#endif
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    const int lane = (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31, c = lane & 3;
#pragma unroll
    for (int k = 0; k < 2; k++)
        for (int j = 0; j < 4; j++) { /* register and K pair j of the half k lies in lane 4 * row + j of A, 4 * column + j of B */
            const uint32_t a0 = __shfl_sync(~0u, a[2 * k], (lane & ~3) + j), a1 = __shfl_sync(~0u, a[2 * k + 1], (lane & ~3) + j);
            const uint32_t b0 = __shfl_sync(~0u, b[k], 8 * c + j), b1 = __shfl_sync(~0u, b[k], 8 * c + 4 + j);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int up = i ? 0 : 16; /* the low half of a register is the smaller K */
                const float x0 = __uint_as_float(a0 << up & 0xffff0000u), x1 = __uint_as_float(a1 << up & 0xffff0000u);
                const float y0 = __uint_as_float(b0 << up & 0xffff0000u), y1 = __uint_as_float(b1 << up & 0xffff0000u);
                d[0] = fmaf(x0, y0, d[0]);
                d[1] = fmaf(x0, y1, d[1]);
                d[2] = fmaf(x1, y0, d[2]);
                d[3] = fmaf(x1, y1, d[3]);
            }
        }
#endif
}

/* m16n8k32, signed bytes in, exact int32 sums */
__device__ __forceinline__ void mma_s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int h = 0; h < 2; h++) /* rows 0..7, then 8..15 */
            asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                         : "+r"(d[2 * h]), "+r"(d[2 * h + 1]) : "r"(a[2 * k + h]), "r"(b[k]));
#endif
}

/* The same with sums that start from c. */
__device__ __forceinline__ void mma_s8_from(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const int32_t (&c)[4])
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
#else
#pragma unroll
    for (int i = 0; i < 4; i++) d[i] = c[i];
    mma_s8(d, a, b);
#endif
}

/*
 * ---- wgmma of sm_90a: 64 x 256 x 16 by four warps, bf16 from shared memory, f32 sums in registers ----
 *
 * A matrix is given by its first core, and how far the next cores are along K and along the other axis (M or N). A core is 8 lines of 16 bytes, one
 * after another: of A a line is 8 columns (K) of a row; of B, which is taken transposed, 8 of the N at one column. Sums lie as those
 * of m16n8k16: warp w of the four has rows 16w to 16w + 15, d[n] the columns 8n to 8n + 7.
 * The four warps, the first of them a multiple of four, do everything here together: begin; some multiplications, which are under way then; commit
 * makes them a group; wait<N> until at most N groups are. Between begin and that wait nobody touches the sums, and
 * wgmma_settle stands before the first begin and after the last wait. What threads brought into
 * shared memory is seen after fence_async_shared in each of them and a barrier.
 */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define PTX_WGMMA 1
typedef uint64_t wgmma_cores;
__device__ __forceinline__ wgmma_cores wgmma_cores_at(const void *p, uint32_t k_step, uint32_t other_step)
{
    return (ptx_shared(p) >> 4 & 0x3fff) | (uint64_t)(k_step >> 4) << 16 | (uint64_t)(other_step >> 4) << 32;
}
__device__ __forceinline__ void fence_async_shared(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void wgmma_begin(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wgmma_wait(void) { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
#define PTX_SUM(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define PTX_SUMS4(n) PTX_SUM(n), PTX_SUM(n + 1), PTX_SUM(n + 2), PTX_SUM(n + 3)
#define PTX_SUMS \
    PTX_SUMS4(0), PTX_SUMS4(4), PTX_SUMS4(8), PTX_SUMS4(12), PTX_SUMS4(16), PTX_SUMS4(20), PTX_SUMS4(24), PTX_SUMS4(28)
__device__ __forceinline__ void wgmma_bf16(float (&d)[32][4], wgmma_cores a, wgmma_cores b)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
                 "}, %128, %129, p, 1, 1, 0, 1; }"
                 : PTX_SUMS
                 : "l"(a), "l"(b) : "memory");
}
/* Keeps the compiler from using sums before a wait, or setting them after the begin. */
__device__ __forceinline__ void wgmma_settle(float (&d)[32][4]) { asm volatile("" : PTX_SUMS : : "memory"); }
#undef PTX_SUMS
#undef PTX_SUMS4
#undef PTX_SUM
#else
#define PTX_WGMMA 0
#endif

#endif /* __CUDACC__; without it cuemu.h, which cu.cuh includes, declares the twins */
#endif
