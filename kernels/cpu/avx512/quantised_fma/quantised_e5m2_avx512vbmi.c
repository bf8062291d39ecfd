// The FMA kernels for E5M2.
#if defined(__x86_64__)
#define FMA_DECODER fma_decoder_e5m2
#define FLOAT8_EXPONENT_BITS 5
#include "kernels/cpu/avx512/quantised_fma/quantised_float8_avx512.h"
#endif
