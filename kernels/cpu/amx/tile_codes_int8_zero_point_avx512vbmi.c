// Decodes INT8 with zero points to tiles.
#if defined(__x86_64__)
#include "kernels/cpu/avx512/quantised_pairs/pairs_int8_zero_point_avx512.h"

#define TILE_CODES tile_codes_int8_zero_point
#include "kernels/cpu/amx/tile_codes_body.h"
#endif
