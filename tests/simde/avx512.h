/*
 * avx512.h - included before the kernels of AVX-512 and AVX-VNNI when they are compiled for a CPU with AVX2 alone: SIMDe's
 * functions under the names of the intrinsics. A vector of 512 bits is two of 256 there, and a fused multiply-add stays one.
 * Below are those that SIMDe 0.7 lacks or names wrongly.
 */
#ifndef TESS_TEST_SIMDE_H
#define TESS_TEST_SIMDE_H
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/avx512/setzero.h> /* before those that forget it */
#include <simde/x86/avx512/add.h>
#include <simde/x86/avx512/and.h>
#include <simde/x86/avx512/cast.h>
#include <simde/x86/avx512/cmp.h>
#include <simde/x86/avx512/dpbusd.h>
#include <simde/x86/avx512/extract.h>
#include <simde/x86/avx512/fmadd.h>
#include <simde/x86/avx512/insert.h>
#include <simde/x86/avx512/load.h>
#include <simde/x86/avx512/loadu.h>
#include <simde/x86/avx512/madd.h>
#include <simde/x86/avx512/maddubs.h>
#include <simde/x86/avx512/max.h>
#include <simde/x86/avx512/mov.h>
#include <simde/x86/avx512/mul.h>
#include <simde/x86/avx512/set1.h>
#include <simde/x86/avx512/slli.h>
#include <simde/x86/avx512/store.h>
#include <simde/x86/avx512/storeu.h>
#include <simde/x86/avx512/sub.h>
#include <simde/x86/avx512/xor.h>

#define _mm256_dpbusd_avx_epi32 simde_mm256_dpbusd_epi32

static inline simde__m512 test_pair(__m256 lo, __m256 hi)
{
    simde__m512_private r;
    r.m256[0] = lo, r.m256[1] = hi;
    return simde__m512_from_private(r);
}
static inline simde__m512i test_pair_int(__m256i lo, __m256i hi)
{
    simde__m512i_private r;
    r.m256i[0] = lo, r.m256i[1] = hi;
    return simde__m512i_from_private(r);
}
static inline simde__m512 test_mm512_cvtepi32_ps(simde__m512i v)
{
    simde__m512i_private p = simde__m512i_to_private(v);
    return test_pair(_mm256_cvtepi32_ps(p.m256i[0]), _mm256_cvtepi32_ps(p.m256i[1]));
}
static inline simde__m512 test_mm512_cvtph_ps(__m256i v)
{
    return test_pair(_mm256_cvtph_ps(_mm256_castsi256_si128(v)), _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)));
}
static inline simde__m512i test_mm512_cvtepu16_epi32(__m256i v)
{
    return test_pair_int(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(v)), _mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1)));
}
static inline simde__m512i test_mm512_cvtepi8_epi32(__m128i v)
{
    return test_pair_int(_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8)));
}
static inline simde__m512i test_mm512_srai_epi32(simde__m512i v, int n)
{
    simde__m512i_private p = simde__m512i_to_private(v);
    return test_pair_int(_mm256_srai_epi32(p.m256i[0], n), _mm256_srai_epi32(p.m256i[1], n));
}
static inline __m256 test_mm512_extractf32x8_ps(simde__m512 v, int n)
{
    simde__m512_private p = simde__m512_to_private(v);
    return p.m256[n];
}
#undef _mm512_madd_epi16
#undef _mm512_srai_epi32
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtph_ps
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtepi8_epi32
#undef _mm512_extractf32x8_ps
#define _mm512_madd_epi16 simde_mm512_madd_epi16
#define _mm512_srai_epi32 test_mm512_srai_epi32
#define _mm512_cvtepi32_ps test_mm512_cvtepi32_ps
#define _mm512_cvtph_ps test_mm512_cvtph_ps
#define _mm512_cvtepu16_epi32 test_mm512_cvtepu16_epi32
#define _mm512_cvtepi8_epi32 test_mm512_cvtepi8_epi32
#define _mm512_extractf32x8_ps test_mm512_extractf32x8_ps
#endif
