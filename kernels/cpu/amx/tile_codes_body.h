// The decoder of one format, as a function of type tile_codes_decoder. The including file names it by TILE_CODES and includes a
// pairs_*_avx512.h, whose definitions are listed in quantised_pairs_body.h (PAIRS_WORKING and PAIRS_DECODER are not used).
#include "kernels/cpu/amx/tile_codes.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum { NEAR_BYTES = 1024 }; // prefetch distance from L2 into L1

void TILE_CODES(const struct tile_codes *c) {
    enum { LINES_BYTES = CODE_TILES * QUANTISED_LINE, LINE_PAIRS = PAIRS_LINE_K / 2 };
    const struct tables t = tables_load(c->format);
    const uint8_t *codes = c->codes;
    uint8_t *to = c->tiles;
    __m512i zero[CODE_TILES];
    PANEL_UNROLL for (size_t j = 0; j < CODE_TILES; j++) {
        zero[j] = zeros_load(c->zeros + j * QUANTISED_COLUMNS);
    }
    for (size_t l = 0; l < c->lines; l++, codes += LINES_BYTES, to += LINE_PAIRS * 64) {
        PANEL_UNROLL for (size_t j = 0; j < CODE_TILES; j++) {
            prefetch_into((const void *)((uintptr_t)codes + j * QUANTISED_LINE + NEAR_BYTES), false);
            if (c->ahead) {
                prefetch_into((const void *)((uintptr_t)codes + j * QUANTISED_LINE + c->ahead), true);
            }
            const struct line line = line_open(codes + j * QUANTISED_LINE, &t, zero[j]);
            PANEL_UNROLL for (size_t pair = 0; pair < LINE_PAIRS; pair++) {
                _mm512_store_si512(to + j * CODE_TILE_BYTES + pair * 64, line_pair(&line, &t, pair));
            }
        }
    }
}
