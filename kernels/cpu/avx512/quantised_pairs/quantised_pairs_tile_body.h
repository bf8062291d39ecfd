// Large m: tiles of transposed rows, which one register addresses.
//
// A product's result is available after six cycles, and a store takes slots of products. So a tile needs at least as many partial
// sums as products can be in flight, and should keep its sums in registers too, so that closing a scale group stores nothing.
//
// One product a cycle (Zen 4): 12 rows by 16 columns, 12 partial sums and 12 sums. Each product takes the row's pair as a broadcast
// memory operand: 14 instructions for 12 products, where 6 rows by 32 columns take 22. That matters most on a core that two threads
// share.
//
// Two products a cycle (Zen 5): 12 in flight are too few, and broadcast memory operands would take both loads of every cycle. So 8
// rows by 32 columns, each pair broadcast once for both vectors; sums that find no register stay in memory.
//
// The including file defines what quantised_pairs_body.h lists except PAIRS_DECODER, and LANES, LINES_BYTES and PAIRS_POWERS.
#include "kernels/cpu/avx512/bf16_pair_avx512bf16.h"
#include "kernels/cpu/avx512/quantised/panel_scales_avx512.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum {
    TILE_REPEAT = 2048, // bytes behind which a line is prefetched again (prefetch_distance.h)
    TILE_SUMS = 24,     // partial sums at most
    TILE_VECS = 4,
    TILE_REGISTERS = 32,
};

// Constants in each copy.
struct tile_shape {
    size_t rows, vecs; // columns: vecs times 16
    enum pairs_pace pace;
    size_t working; // registers that products use in addition to partial sums; the remaining registers hold sums
};

// A tile has more partial sums than PANEL_UNROLL unrolls.
#if defined(__clang__)
#define TILE_UNROLL PANEL_UNROLL
#else
#define TILE_UNROLL _Pragma("GCC unroll 24")
#endif

// The scales of 16 columns from `column` on, or their exponents. Tiles of more than PAIRS_X_SMALL_M rows always have them widened.
PANEL_INLINE __m512 tile_factor(const struct pairs_tile *tile, size_t rows, size_t scale, const uint8_t *stored, size_t column,
                                bool exponent) {
    if (rows > PAIRS_X_SMALL_M || tile->factors) {
        return _mm512_load_ps(&tile->factors[scale][column]);
    }
    stored += column * tile->stored_bytes;
    return exponent ? exponent_e8m0(stored) : format_scale(tile->scales.format, stored, _mm512_set1_ps(1.0f));
}

PANEL_INLINE bool tile_in_register(struct tile_shape tile, size_t j) {
    return j < TILE_REGISTERS - tile.working - tile.rows * tile.vecs;
}

// The products of a pair of k.
PANEL_INLINE void tile_multiply(struct tile_shape shape, const __m512i *w, const uint32_t *x, __m512 *partials) {
    TILE_UNROLL for (size_t j = 0; j < shape.rows * shape.vecs; j++) {
        const uint32_t *element = x + j / shape.vecs;
        if (shape.pace == PAIRS_TWO_A_CYCLE) {
            partials[j] = _mm512_dpbf16_ps(partials[j], pair_broadcast(element), (__m512bh)w[j % shape.vecs]);
        } else {
            pair_multiply(&partials[j], w[j % shape.vecs], element);
        }
    }
}

// Closes a scale group; `factor` holds exponents if the scales are powers of two.
PANEL_INLINE void tile_close(struct tile_shape shape, bool powers, const __m512 *factor, const __m512 *partials, __m512 *sums,
                             float *to) {
    TILE_UNROLL for (size_t j = 0; j < shape.rows * shape.vecs; j++) {
        float *stored = to + j / shape.vecs * KERNEL_SUMS + j % shape.vecs * LANES;
        const __m512 f = factor[j % shape.vecs], sum = tile_in_register(shape, j) ? sums[j] : _mm512_load_ps(stored);
        const __m512 next = powers ? _mm512_add_ps(_mm512_scalef_ps(partials[j], f), sum) : _mm512_fmadd_ps(partials[j], f, sum);
        if (tile_in_register(shape, j)) {
            sums[j] = next;
        } else {
            _mm512_store_ps(stored, next);
        }
    }
}

// With minima, after tile_close of scale group i: sum = fma(minus, minimum, sum).
PANEL_INLINE void tile_subtract(struct tile_shape shape, const struct pairs_tile *tile, size_t i, size_t column, __m512 *sums,
                                float *to) {
    TILE_UNROLL for (size_t j = 0; j < shape.rows * shape.vecs; j++) {
        float *stored = to + j / shape.vecs * KERNEL_SUMS + j % shape.vecs * LANES;
        const __m512 minimum = _mm512_load_ps(&tile->minima[i][column + j % shape.vecs * LANES]);
        const __m512 minus = _mm512_set1_ps(tile->minus[j / shape.vecs * tile->minus_stride + i]);
        if (tile_in_register(shape, j)) {
            sums[j] = _mm512_fmadd_ps(minus, minimum, sums[j]);
        } else {
            _mm512_store_ps(stored, _mm512_fmadd_ps(minus, minimum, _mm512_load_ps(stored)));
        }
    }
}

// vecs times 16 columns from `column` on.
PANEL_INLINE void tile_columns(struct pairs_tile *tile, struct tile_shape shape, size_t column, const struct tables *t) {
    const struct pairs_scales *s = &tile->scales;
    const size_t rows = shape.rows, vecs = shape.vecs, count = rows * vecs;
    const size_t x_stride = rows <= PAIRS_X_SMALL_M ? PAIRS_X_SMALL_M : PAIRS_X, step = tile->ahead_step * vecs;
    const size_t column_offset = column / LANES * QUANTISED_LINE;
    const bool starts = tile->starts, ends = tile->ends, powers = PAIRS_POWERS && shape.pace == PAIRS_ONE_A_CYCLE && tile->powers;
    const uint32_t *x = tile->x;
    const uint8_t *scale = s->codes;
    float *to = tile->sums + column, *partial = tile->partials + column;
    uintptr_t ahead = tile->ahead;
    __m512 sums[TILE_SUMS];
    TILE_UNROLL for (size_t j = 0; j < count; j++) {
        if (tile_in_register(shape, j)) {
            sums[j] = _mm512_load_ps(to + j / vecs * KERNEL_SUMS + j % vecs * LANES);
        }
    }
    for (size_t i = 0; i < s->scales; i++, scale += s->stride) {
        const bool last = i + 1 == s->scales;
        const uint8_t *zeros = last || !tile->zeros ? tile->last_zeros : tile->zeros + i * s->stride,
                      *codes = scale + column_offset;
        const uint8_t *end = codes + (last ? s->last_k : s->scale_k) / PAIRS_LINE_K * LINES_BYTES;
        __m512i zero[TILE_VECS];
        __m512 partials[TILE_SUMS], factor[TILE_VECS];
        PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
            zero[v] = zeros_load(tile->zeros ? zeros + column + v * LANES : NULL);
        }
        TILE_UNROLL for (size_t j = 0; j < count; j++) {
            partials[j] = starts ? _mm512_setzero_ps() : _mm512_load_ps(partial + j / vecs * KERNEL_SUMS + j % vecs * LANES);
        }
        for (; codes != end; codes += LINES_BYTES) {
            struct line line[TILE_VECS];
            PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
                line[v] = line_open(codes + v * QUANTISED_LINE, t, zero[v]);
                prefetch_into((const void *)(ahead + v * tile->ahead_step), true);
                prefetch_into((const void *)(ahead + v * tile->ahead_step - TILE_REPEAT), true);
            }
            ahead += step;
            PANEL_UNROLL for (size_t pair = 0; pair < PAIRS_LINE_K / 2; pair++, x += x_stride) {
                __m512i w[TILE_VECS];
                PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
                    w[v] = line_pair(&line[v], t, pair);
                }
                tile_multiply(shape, w, x, partials);
            }
        }
        if (!ends) {
            TILE_UNROLL for (size_t j = 0; j < count; j++) {
                _mm512_store_ps(partial + j / vecs * KERNEL_SUMS + j % vecs * LANES, partials[j]);
            }
            continue;
        }
        PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
            factor[v] = tile_factor(tile, rows, i, end - column_offset, column + v * LANES, powers);
        }
        tile_close(shape, powers, factor, partials, sums, to);
        if (tile->minima) {
            tile_subtract(shape, tile, i, column, sums, to);
        }
    }
    TILE_UNROLL for (size_t j = 0; j < count; j++) {
        if (tile_in_register(shape, j)) {
            _mm512_store_ps(to + j / vecs * KERNEL_SUMS + j % vecs * LANES, sums[j]);
        }
    }
    tile->ahead = ahead;
}

PANEL_INLINE void tile_rows(struct pairs_tile *tile, struct tile_shape shape) {
    const struct tables t = tables_load(tile->scales.format);
    for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += shape.vecs * LANES) {
        tile_columns(tile, shape, column, &t);
    }
}

// Five rows take all 64 columns, and six where there are registers enough: 32 columns would give too few partial sums.
#define TILE_TWO_VECS(rows) ((rows) <= PAIRS_TILE / 2 && (rows)*TILE_VECS + PAIRS_WORKING < TILE_REGISTERS - 2 ? TILE_VECS : 2)

#define TILE_FUNCTIONS(rows)                                                                                                       \
    static void tile_one_##rows(struct pairs_tile *tile) {                                                                         \
        tile_rows(tile, (struct tile_shape){rows, (rows) <= PAIRS_TILE / 2 ? 2 : 1, PAIRS_ONE_A_CYCLE, 0});                        \
    }                                                                                                                              \
    static void tile_two_##rows(struct pairs_tile *tile) {                                                                         \
        tile_rows(tile, (struct tile_shape){rows, TILE_TWO_VECS(rows), PAIRS_TWO_A_CYCLE, PAIRS_WORKING});                         \
    }

TILE_FUNCTIONS(5)
TILE_FUNCTIONS(6)
TILE_FUNCTIONS(7)
TILE_FUNCTIONS(8)
TILE_FUNCTIONS(9)
TILE_FUNCTIONS(10)
TILE_FUNCTIONS(11)
TILE_FUNCTIONS(12)

#define TILES(pace)                                                                                                                \
    {                                                                                                                              \
        [4] = tile_##pace##_5, tile_##pace##_6, tile_##pace##_7, tile_##pace##_8, tile_##pace##_9, tile_##pace##_10,               \
        tile_##pace##_11, tile_##pace##_12                                                                                         \
    }
#define PAIRS_TILES                                                                                                                \
    { [PAIRS_ONE_A_CYCLE] = TILES(one), [PAIRS_TWO_A_CYCLE] = TILES(two) }
