// Tiles of floats of 8 bits.
#if defined(__x86_64__)
#include "kernels/cpu/pairs_float8_avx512.h"

#define TILE_CODES tile_codes_float8
#include "kernels/cpu/tile_codes_body.h"
#endif
