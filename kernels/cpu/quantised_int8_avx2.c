#if defined(__x86_64__)
#define UNFLUSHED_DECODER unflushed_int8
#define UNFLUSHED_ZEROS 0
#include "kernels/cpu/quantised_unflushed_int8.h"
#endif
