/* avx512vnni_quant.c - q8 and q4 weights with vectors of 16 lanes and vpdpbusd; the source is that of AVX2, see avx2.h. */
#define ISA_AVX512
#define ISA_VNNI
#include "avx2_quant.c"
