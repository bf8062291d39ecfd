// The VDPBF16PS kernels for INT8 with zero points.
#if defined(__x86_64__)
#include "kernels/cpu/avx512/quantised_pairs/pairs_int8_zero_point_avx512.h"
#include "kernels/cpu/avx512/quantised_pairs/quantised_pairs.h"

enum { PAIRS_WORKING = 7 };

#define PAIRS_DECODER pairs_int8_zero_point
#include "kernels/cpu/avx512/quantised_pairs/quantised_pairs_body.h"
#endif
