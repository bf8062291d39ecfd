#if defined(__x86_64__)
#define UNFLUSHED_DECODER unflushed_int8_less_zero
#define UNFLUSHED_ZEROS 1
#include "kernels/cpu/quantised_unflushed_int8.h"
#endif
