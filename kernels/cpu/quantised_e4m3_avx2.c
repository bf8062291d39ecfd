#if defined(__x86_64__)
#define UNFLUSHED_DECODER unflushed_e4m3
#define FLOAT8_EXPONENT_BITS 4
#define FLOAT8_NAN 0x7f
#include "kernels/cpu/quantised_unflushed_float8.h"
#endif
