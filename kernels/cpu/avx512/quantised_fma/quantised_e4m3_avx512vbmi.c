#if defined(__x86_64__)
#define FEW_DECODER few_e4m3
#define FLOAT8_EXPONENT_BITS 4
#include "kernels/cpu/avx512/quantised_fma/quantised_float8_avx512.h"
#endif
