/* avx512_quant.c - q8 and q4 weights with vectors of 16 lanes; the source is that of AVX2, see avx2.h. */
#define ISA_AVX512
#include "avx2_quant.c"
