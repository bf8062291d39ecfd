// The VDPBF16PS kernels for INT8 without zero points.
#if defined(__x86_64__)
#include "kernels/cpu/avx512/quantised_pairs/pairs_int8_avx512.h"
#include "kernels/cpu/avx512/quantised_pairs/quantised_pairs.h"

enum { PAIRS_WORKING = 7 };

#define PAIRS_EXTRAS true
#define PAIRS_DECODER pairs_int8
#include "kernels/cpu/avx512/quantised_pairs/quantised_pairs_body.h"
#endif
