// The VDPBF16PS kernels for INT4 with zero points.
#if defined(__x86_64__)
#include "kernels/cpu/avx512/quantised_pairs/pairs_nibble_zero_point_avx512.h"
#include "kernels/cpu/avx512/quantised_pairs/quantised_pairs.h"

enum { PAIRS_WORKING = 6 };

#define PAIRS_DECODER pairs_nibble_zero_point
#include "kernels/cpu/avx512/quantised_pairs/quantised_pairs_body.h"
#endif
