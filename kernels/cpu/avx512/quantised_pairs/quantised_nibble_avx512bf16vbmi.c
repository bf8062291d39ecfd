// The VDPBF16PS kernels for 4-bit codes without zero points.
#if defined(__x86_64__)
#include "kernels/cpu/avx512/quantised_pairs/pairs_nibble_avx512.h"
#include "kernels/cpu/avx512/quantised_pairs/quantised_pairs.h"

enum { PAIRS_WORKING = 5 };

#define PAIRS_EXTRAS true
#define PAIRS_DECODER pairs_nibble
#include "kernels/cpu/avx512/quantised_pairs/quantised_pairs_body.h"
#endif
