/* cuemu_expect.h - for tests whose kernels are wrong on purpose: the report that must come. */
#ifndef CUEMU_EXPECT_H
#define CUEMU_EXPECT_H
#include <initializer_list>

#include "cuemu_test.h"

static cudaStream_t stream;
enum { SEEDS_EACH = 5 };

static void begin(unsigned seed)
{
    cuemu_reset(seed);
    cuemu_set_quiet(true);
    CU(cudaSetDevice(0));
    (void)cudaGetLastError();
    CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
}

/* The stream must have failed with `code`, and the report must have all the words. */
static void expect(cudaError_t code, const char *a, const char *b, const char *c)
{
    const cudaError_t e = cudaStreamSynchronize(stream);
    if (e != code)
        fail_msg("got %s, not %s (seed %llu): %s", cudaGetErrorName(e), cudaGetErrorName(code), (unsigned long long)cuemu_seed(),
                 cuemu_report_text());
    CHECK(cuemu_report_count() > 0);
    for (const char *word : {a, b, c, "CUEMU_SEED="})
        if (word && !strstr(cuemu_report_text(), word)) fail_msg("\"%s\" is not in: %s", word, cuemu_report_text());
    CHECK(cudaStreamSynchronize(stream) == code); /* it sticks */
    CU(cudaDeviceReset());
    CU(cudaStreamDestroy(stream));
}
static void expect_clean(void)
{
    CU(cudaStreamSynchronize(stream));
    CHECK(cuemu_report_count() == 0);
    CU(cudaStreamDestroy(stream));
}
/* For a fault that only the checked build can see. */
static inline void expect_checked(cudaError_t code, const char *a, const char *b, const char *c)
{
    if (cuemu_checked()) {
        expect(code, a, b, c);
    } else {
        CU(cudaStreamSynchronize(stream));
        CU(cudaStreamDestroy(stream));
    }
}

#define SEEDED(name) \
    static void name##_once(void); \
    static void name(void **) \
    { \
        for (unsigned seed = 1; seed <= test_seeds(SEEDS_EACH); seed++) { \
            begin(seed); \
            name##_once(); \
        } \
        cuemu_reset(1); \
    } \
    static void name##_once(void)

template <class T> static T *device_new(size_t n)
{
    void *p;
    CU(cudaMalloc(&p, n * sizeof(T)));
    return static_cast<T *>(p);
}
#endif
