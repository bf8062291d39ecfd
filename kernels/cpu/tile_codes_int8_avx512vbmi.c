// Tiles of INT8.
#if defined(__x86_64__)
#include "kernels/cpu/pairs_int8_avx512.h"

#define TILE_CODES tile_codes_int8
#include "kernels/cpu/tile_codes_body.h"
#endif
