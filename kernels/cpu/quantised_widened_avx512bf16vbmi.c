// Tiles of 3 rows by 64 columns: the partial sums of a scale and the sums are 24 accumulators, and none goes to memory where a
// scale ends. One scale or a part of it, whose end is far, takes tiles of 6.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/backends.h"
#include "kernels/cpu/pair_avx512bf16.h"
#include "kernels/cpu/quantised_widened.h"

enum { LANES = 16, VECS = KERNEL_PANEL / LANES, HELD_TILE = PANEL_TILE / 2, TILE_RUN = 16 };

// A tile's rows.
struct tile {
    const struct widened *widened;
    const uint16_t *x[PANEL_TILE];
    panel_row *partials, *sums;
};

PANEL_INLINE void tile_load(__m512 to[][VECS], size_t rows, panel_row *from) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
            to[r][v] = _mm512_load_ps(&from[r][v * LANES]);
        }
    }
}

PANEL_INLINE void tile_store(__m512 from[][VECS], size_t rows, panel_row *to) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
            _mm512_store_ps(&to[r][v * LANES], from[r][v]);
        }
    }
}

PANEL_INLINE void tile_clear(__m512 to[][VECS], size_t rows) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
            to[r][v] = _mm512_setzero_ps();
        }
    }
}

PANEL_INLINE void tile_pair(__m512 partials[][VECS], size_t rows, const uint16_t *const *x, size_t k, const pairs_row *pair) {
    __m512bh w[VECS];
    PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
        w[v] = (__m512bh)_mm512_load_si512(&(*pair)[2 * v * LANES]);
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        __m512bh value = pair_broadcast(x[r] + k);
        PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
            partials[r][v] = _mm512_dpbf16_ps(partials[r][v], value, w[v]);
        }
    }
}

// k [from, from + depth) of the piece. A whole scale is TILE_RUN k or several: the end of a loop within it would be mispredicted.
PANEL_INLINE void tile_pairs(__m512 partials[][VECS], size_t rows, const uint16_t *const *x, size_t from, size_t depth,
                             const pairs_row *pairs) {
    size_t k = from, end = from + depth;
    pairs += from / 2;
    for (; k + TILE_RUN <= end; k += TILE_RUN, pairs += TILE_RUN / 2) {
        PANEL_UNROLL for (size_t i = 0; i < TILE_RUN / 2; i++) {
            tile_pair(partials, rows, x, k + 2 * i, pairs + i);
        }
    }
    for (; k < end; k += 2, pairs++) {
        tile_pair(partials, rows, x, k, pairs);
    }
}

PANEL_INLINE void tile_close(__m512 sums[][VECS], __m512 partials[][VECS], size_t rows, const float *factors) {
    PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
        __m512 factor = _mm512_load_ps(factors + v * LANES);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            sums[r][v] = _mm512_fmadd_ps(partials[r][v], factor, sums[r][v]);
        }
    }
}

// `rows` is a constant in each copy, so that the sums are registers.
PANEL_INLINE void tile_held(const struct tile *t, size_t rows) {
    const struct widened *w = t->widened;
    __m512 partials[HELD_TILE][VECS], sums[HELD_TILE][VECS];
    tile_load(sums, rows, t->sums);
    for (size_t s = 0; s < w->scales; s++) {
        tile_clear(partials, rows);
        tile_pairs(partials, rows, t->x, s * w->scale_k, s + 1 < w->scales ? w->scale_k : w->last_k, w->pairs);
        tile_close(sums, partials, rows, w->factors[s]);
    }
    tile_store(sums, rows, t->sums);
}

PANEL_INLINE void tile_long(const struct tile *t, size_t rows) {
    const struct widened *w = t->widened;
    __m512 partials[PANEL_TILE][VECS];
    if (w->starts) {
        tile_clear(partials, rows);
    } else {
        tile_load(partials, rows, t->partials);
    }
    tile_pairs(partials, rows, t->x, 0, w->last_k, w->pairs);
    if (!w->ends) {
        tile_store(partials, rows, t->partials);
        return;
    }
    PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
        __m512 factor = _mm512_load_ps(&w->factors[0][v * LANES]);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            float *sum = &t->sums[r][v * LANES];
            _mm512_store_ps(sum, _mm512_fmadd_ps(partials[r][v], factor, _mm512_load_ps(sum)));
        }
    }
}

static void tile_multiply(const struct tile *t, size_t rows) {
    if (t->widened->scales > 1) {
        switch (rows) {
        case 1:
            tile_held(t, 1);
            return;
        case 2:
            tile_held(t, 2);
            return;
        default:
            tile_held(t, HELD_TILE);
            return;
        }
    }
    switch (rows) {
    case 1:
        tile_long(t, 1);
        return;
    case 2:
        tile_long(t, 2);
        return;
    case 3:
        tile_long(t, 3);
        return;
    case 4:
        tile_long(t, 4);
        return;
    case 5:
        tile_long(t, 5);
        return;
    default:
        tile_long(t, PANEL_TILE);
        return;
    }
}

size_t widened_runs(size_t rows) {
    return (rows + HELD_TILE - 1) / HELD_TILE;
}

void widened_multiply(struct widened *w) {
    const size_t tile = w->scales > 1 ? HELD_TILE : PANEL_TILE;
    for (size_t row = 0, rows; row < w->rows; row += rows) {
        size_t tiles = (w->rows - row + tile - 1) / tile;
        struct tile t = {.widened = w, .partials = w->partials + row, .sums = w->sums + row};
        rows = (w->rows - row + tiles - 1) / tiles;
        for (size_t r = 0; r < rows; r++) {
            t.x[r] = w->x[row + r];
        }
        for (size_t run = 0; run < widened_runs(rows); run++) {
            group_fetch(&w->ahead);
        }
        tile_multiply(&t, rows);
    }
}
#endif
