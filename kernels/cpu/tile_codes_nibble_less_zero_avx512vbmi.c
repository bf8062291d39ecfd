// Tiles of INT4 with zero points.
#if defined(__x86_64__)
#include "kernels/cpu/pairs_nibble_less_zero_avx512.h"

#define TILE_CODES tile_codes_nibble_less_zero
#include "kernels/cpu/tile_codes_body.h"
#endif
