// Decodes 8-bit floats to tiles.
#if defined(__x86_64__)
#include "kernels/cpu/avx512/quantised_pairs/pairs_float8_avx512.h"

#define TILE_CODES tile_codes_float8
#include "kernels/cpu/amx/tile_codes_body.h"
#endif
