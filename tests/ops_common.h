/*
 * ops_common.h - for t_ops.c and t_attn.c: random numbers, guarded buffers, comparison by bits.
 *
 * Outputs lie between guards and have gaps between rows, all filled with one bit pattern that must survive. "Equal" means the
 * same bits, or NaN in both.
 */
#ifndef TESS_OPS_COMMON_H
#define TESS_OPS_COMMON_H
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "hash.h"
#include "ops.h"
#include "pool.h"

enum { GUARD = 64 };
static const uint32_t poison = 0x7fc0dead;

/* ---- random numbers and buffers ---- */
static uint64_t rng = 88172645463325252u;
static inline uint32_t rnd(uint32_t n)
{
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
    return (uint32_t)((rng >> 16) % n);
}
static inline uint32_t between(uint32_t lo, uint32_t hi) { return lo + rnd(hi - lo + 1); }
static inline float real(void) { return ((float)rnd(1 << 20) / (1 << 19) - 1.0f) * (rnd(8) ? 1.0f : 4.0f); }
static inline float as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint32_t as_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline void *must(void *p)
{
    assert_non_null(p);
    return p;
}
static inline float *reals(size_t n)
{
    float *p = must(malloc((n + 1) * sizeof *p));
    for (size_t i = 0; i < n; i++) p[i] = real();
    return p;
}
static inline float *guarded(size_t n)
{
    float *p = must(malloc((n + 2 * GUARD) * sizeof *p));
    for (size_t i = 0; i < n + 2 * GUARD; i++) memcpy(p + i, &poison, 4);
    return p + GUARD;
}
static inline void release(float *p) { free(p - GUARD); }
static inline bool same(float a, float b) { return as_bits(a) == as_bits(b) || (isnan(a) && isnan(b)); }
/* rows x cols with a stride are the same; all else, n floats and their guards, is untouched. */
static inline void check_equal(const char *what, const float *want, const float *got, size_t n, size_t rows, size_t cols,
                               size_t stride)
{
    for (ptrdiff_t i = -GUARD; i < (ptrdiff_t)n + GUARD; i++) {
        bool inside = i >= 0 && (size_t)i < rows * stride && (size_t)i % stride < cols;
        if (inside && !same(want[i], got[i])) fail_msg("%s: element %td: %a, want %a", what, i, (double)got[i], (double)want[i]);
        if (!inside && as_bits(got[i]) != poison) fail_msg("%s: element %td was written", what, i);
    }
}
static inline void check_near(const char *what, double want, float got, double tol)
{
    if (!(fabs(want - (double)got) <= tol)) fail_msg("%s: %.9g, want %.9g", what, (double)got, want);
}
static const uint32_t floats[] = {DT_F32, DT_F16, DT_BF16};
static const op_table *fast; /* NULL: this CPU has none */

#define EACH_THREAD(fn, args, n) \
    do { \
        uint32_t n_ = (n); /* may be random */ \
        for (uint32_t i_ = 0; i_ < n_; i_++) fn(args, i_, n_); \
    } while (0)

#define NEED_FAST() \
    do { \
        if (!fast) skip(); \
    } while (0)

/* The tables to test: in t_*_simde (tests/simde) those that are emulated, else all of this CPU but ref. */
enum { MAX_TABLES = 4 };
__attribute__((weak)) size_t emulated_tables(op_table *out, const char **why);
static inline size_t tables_to_test(op_table *out)
{
    static const char *const names[MAX_TABLES] = {"avx2", "avxvnni", "avx512", "avx512vnni"};
    size_t n = 0;
    const char *why;
    fast = NULL;
    if (emulated_tables) {
        n = emulated_tables(out, &why);
        if (n == 0) printf("skip: %s\n", why);
        return n;
    }
    for (size_t i = 0; i < MAX_TABLES; i++) {
        const op_table *t = op_table_get(names[i]);
        if (t) out[n++] = *t;
        else printf("skip: this CPU has no %s\n", names[i]);
    }
    return n;
}

/* Runs `tests` for each of the tables, as `fast`; without one for ref alone, if nothing is emulated. */
#define RUN_OPS_TESTS(tests) \
    do { \
        op_table tables[MAX_TABLES]; \
        size_t n = tables_to_test(tables); \
        int failed = 0; \
        for (size_t i = 0; i < n; i++) { \
            fast = &tables[i]; \
            failed += cmocka_run_group_tests_name(fast->name, tests, NULL, NULL); \
        } \
        if (n == 0 && !emulated_tables) failed = cmocka_run_group_tests_name("ref", tests, NULL, NULL); \
        return failed; \
    } while (0)
#endif
