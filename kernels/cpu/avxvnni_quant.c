/* avxvnni_quant.c - q8 and q4 weights with vpdpbusd of AVX-VNNI; the source is that of AVX2, see avx2.h. */
#define ISA_VNNI
#include "avx2_quant.c"
