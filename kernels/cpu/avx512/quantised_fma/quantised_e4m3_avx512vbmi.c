// The FMA kernels for E4M3.
#if defined(__x86_64__)
#define FMA_DECODER fma_decoder_e4m3
#define FLOAT8_EXPONENT_BITS 4
#include "kernels/cpu/avx512/quantised_fma/quantised_float8_avx512.h"
#endif
