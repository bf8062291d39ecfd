// Decoder of E4M3.
#if defined(__x86_64__)
#define BYTES_DECODER ieee_e4m3
#define FLOAT8_EXPONENT_BITS 4
#include "kernels/cpu/avx2/quantised/quantised_float8_avx2.h"
#endif
