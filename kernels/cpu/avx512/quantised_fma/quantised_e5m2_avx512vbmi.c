#if defined(__x86_64__)
#define SMALL_M_DECODER small_m_e5m2
#define FLOAT8_EXPONENT_BITS 5
#include "kernels/cpu/avx512/quantised_fma/quantised_float8_avx512.h"
#endif
