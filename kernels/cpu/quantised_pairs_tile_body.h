// More rows than a few, in tiles.
//
// 12 rows by 16 columns: 12 partial sums and 12 sums are registers, so that where a scale ends nothing goes to memory, and a code
// is decoded once for 12 products. Rows lie turned, so that one register addresses them all and each product's element comes with
// its instruction: 14 instructions for 12 products, where 6 rows by 32 columns take 22. A core that another thread shares has not
// room for more.
//
// The including file defines what quantised_pairs_body.h lists but for PAIRS_DECODER, and LANES and LINES_BYTES.
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/pair_avx512bf16.h"
#include "kernels/cpu/panel_scales_avx512.h"

enum { TILE_AGAIN = 2048 }; // bytes behind which a line is asked for again (fetch.h)

// A tile's rows and the copies' constants are more than PANEL_UNROLL unrolls.
#if defined(__clang__)
#define TILE_UNROLL PANEL_UNROLL
#else
#define TILE_UNROLL _Pragma("GCC unroll 12")
#endif

// A scale of 16 columns from `column` on, or its exponent. Many rows find it widened.
PANEL_INLINE __m512 tile_factor(const struct pairs_tile *tile, size_t rows, size_t scale, const uint8_t *stored, size_t column,
                                bool exponent) {
    if (rows > PAIRS_X_FEW || tile->factors) {
        return _mm512_load_ps(&tile->factors[scale][column]);
    }
    stored += column * tile->stored_bytes;
    return exponent ? exponent_e8m0(stored) : format_scale(tile->scales.format, stored, _mm512_set1_ps(1.0f));
}

// `vecs` times 16 columns from `column` on.
PANEL_INLINE void tile_columns(struct pairs_tile *tile, size_t rows, size_t vecs, size_t column, const struct tables *t) {
    const struct pairs_scales *s = &tile->scales;
    const size_t x_stride = rows <= PAIRS_X_FEW ? PAIRS_X_FEW : PAIRS_X, step = tile->ahead_step * vecs;
    const size_t place = column / LANES * QUANTISED_LINE;
    const bool starts = tile->starts, ends = tile->ends;
    const uint32_t *x = tile->x;
    const uint8_t *scale = s->codes;
    float *to = tile->sums + column, *partial = tile->partials + column;
    uintptr_t ahead = tile->ahead;
    __m512 sums[PAIRS_TILE];
    TILE_UNROLL for (size_t i = 0; i < rows * vecs; i++) {
        sums[i] = _mm512_load_ps(to + i / vecs * KERNEL_SUMS + i % vecs * LANES);
    }
    for (size_t i = 0; i < s->scales; i++, scale += s->stride) {
        const bool last = i + 1 == s->scales;
        const uint8_t *zeros = last || !tile->zeros ? tile->last_zeros : tile->zeros + i * s->stride, *codes = scale + place;
        const uint8_t *end = codes + (last ? s->last_k : s->scale_k) / PAIRS_LINE_K * LINES_BYTES;
        __m512i zero[2];
        __m512 partials[PAIRS_TILE];
        PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
            zero[v] = zeros_load(tile->zeros ? zeros + column + v * LANES : NULL);
        }
        TILE_UNROLL for (size_t j = 0; j < rows * vecs; j++) {
            partials[j] = starts ? _mm512_setzero_ps() : _mm512_load_ps(partial + j / vecs * KERNEL_SUMS + j % vecs * LANES);
        }
        for (; codes != end; codes += LINES_BYTES) {
            struct line line[2];
            PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
                line[v] = line_open(codes + v * QUANTISED_LINE, t, zero[v]);
                fetch_into((const void *)(ahead + v * tile->ahead_step), true);
                fetch_into((const void *)(ahead + v * tile->ahead_step - TILE_AGAIN), true);
            }
            ahead += step;
            PANEL_UNROLL for (size_t pair = 0; pair < PAIRS_LINE_K / 2; pair++, x += x_stride) {
                __m512i w[2];
                PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
                    w[v] = line_pair(&line[v], t, pair);
                }
                TILE_UNROLL for (size_t j = 0; j < rows * vecs; j++) {
                    pair_multiply(&partials[j], w[j % vecs], x + j / vecs);
                }
            }
        }
        __m512 factor[2];
        if (PAIRS_POWERS && ends && tile->powers) {
            PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
                factor[v] = tile_factor(tile, rows, i, end - place, column + v * LANES, true);
            }
            TILE_UNROLL for (size_t j = 0; j < rows * vecs; j++) {
                sums[j] = _mm512_add_ps(_mm512_scalef_ps(partials[j], factor[j % vecs]), sums[j]);
            }
            continue;
        }
        PANEL_UNROLL for (size_t v = 0; v < vecs && ends; v++) {
            factor[v] = tile_factor(tile, rows, i, end - place, column + v * LANES, false);
        }
        TILE_UNROLL for (size_t j = 0; j < rows * vecs; j++) {
            if (ends) {
                sums[j] = _mm512_fmadd_ps(partials[j], factor[j % vecs], sums[j]);
            } else {
                _mm512_store_ps(partial + j / vecs * KERNEL_SUMS + j % vecs * LANES, partials[j]);
            }
        }
    }
    TILE_UNROLL for (size_t i = 0; i < rows * vecs; i++) {
        _mm512_store_ps(to + i / vecs * KERNEL_SUMS + i % vecs * LANES, sums[i]);
    }
    tile->ahead = ahead;
}

// `rows` is a constant in each copy, so that the sums are registers. An fma's result is there six products later: fewer rows take
// twice the columns.
PANEL_INLINE void tile_rows(struct pairs_tile *tile, size_t rows) {
    const struct tables t = tables_load(tile->scales.format);
    const size_t vecs = rows <= PAIRS_TILE / 2 ? 2 : 1;
    for (size_t column = 0; column < KERNEL_PANEL; column += vecs * LANES) {
        tile_columns(tile, rows, vecs, column, &t);
    }
}

#define TILE_FUNCTION(rows)                                                                                                        \
    static void tile_##rows(struct pairs_tile *tile) {                                                                             \
        tile_rows(tile, rows);                                                                                                     \
    }

TILE_FUNCTION(5)
TILE_FUNCTION(6)
TILE_FUNCTION(7)
TILE_FUNCTION(8)
TILE_FUNCTION(9)
TILE_FUNCTION(10)
TILE_FUNCTION(11)
TILE_FUNCTION(12)

#define PAIRS_TILES                                                                                                                \
    { [4] = tile_5, tile_6, tile_7, tile_8, tile_9, tile_10, tile_11, tile_12 }
