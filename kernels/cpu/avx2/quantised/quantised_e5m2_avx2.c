// Decoder of E5M2.
#if defined(__x86_64__)
#define BYTES_DECODER ieee_e5m2
#define FLOAT8_EXPONENT_BITS 5
#include "kernels/cpu/avx2/quantised/quantised_float8_avx2.h"
#endif
