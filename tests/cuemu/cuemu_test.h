/* cuemu_test.h - for tests that have kernels of their own: cmocka from C++, checks of CUDA calls, seeds. */
#ifndef CUEMU_TEST_H
#define CUEMU_TEST_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
extern "C" {
#include <cmocka.h>
}
#include "cuemu_api.h"

/* CU(call): the call must succeed. */
#define CU(x) \
    do { \
        const cudaError_t cu_code = (x); \
        if (cu_code != cudaSuccess) fail_msg("%s: %s (seed %llu) %s", #x, cudaGetErrorString(cu_code), (unsigned long long)cuemu_seed(), cuemu_report_text()); \
    } while (0)
#define CHECK(x) \
    do { \
        if (!(x)) fail_msg("%s (seed %llu) %s", #x, (unsigned long long)cuemu_seed(), cuemu_report_text()); \
    } while (0)

/* How many seeds a test runs: SEEDS, or `otherwise`. */
static inline unsigned test_seeds(unsigned otherwise)
{
    const char *s = getenv("SEEDS");
    return s && *s ? (unsigned)atoi(s) : otherwise;
}
#endif
