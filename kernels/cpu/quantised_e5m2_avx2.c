#if defined(__x86_64__)
#define UNFLUSHED_DECODER unflushed_e5m2
#define FLOAT8_EXPONENT_BITS 5
#define FLOAT8_NAN 0x7c // the Inf
#include "kernels/cpu/quantised_unflushed_float8.h"
#endif
