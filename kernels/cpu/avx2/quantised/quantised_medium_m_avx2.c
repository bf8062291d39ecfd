// SMALL_M_ROWS + 1 to MEDIUM_M_ROWS rows of bf16 against a panel of quantised weights, in IEEE mode (quantised_ieee.h): codes are
// widened into L1, 64 k at a time, and multiplied by tiles of up to 6 rows.
#if defined(__x86_64__)
#include <string.h>

#include "base/err.h"
#include "kernels/cpu/avx2/fma_avx2.h"
#include "kernels/cpu/avx2/quantised/quantised_chunk_avx2.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/float_mode.h"

enum {
    MEDIUM_M_K = 64,  // k of a chunk: 16 KiB of f32, which stay in L1
    MEDIUM_M_RUN = 8, // k of an iteration of the inner loop
    PASS_VECS = 2,
    PASS = PASS_VECS * LANES, // columns of a pass over a widened chunk
    LINE_K_MAX = 8,
    X_STRIDE = MEDIUM_M_K + LANES, // floats from row to row; not a power of two
};

struct work {
    uintptr_t ahead; // the next line of the next chunk to prefetch
    size_t share;    // lines that a pass prefetches
    float x[PANEL_TILE * X_STRIDE] __attribute__((aligned(64)));
    panel_row scales[MEDIUM_M_K / 16], minima[MEDIUM_M_K / 16];
    size_t sums_end;                             // the scale group after those whose sums `minus` has
    float minus[MEDIUM_M_ROWS][ROW_SUMS_GROUPS]; // with minima: -(the sum of each row over scale groups)
    panel_row weights[MEDIUM_M_K + LINE_K_MAX];
    panel_row partials[MEDIUM_M_ROWS]; // of a scale group that is longer than a chunk
    panel_row sums[MEDIUM_M_ROWS];
};

// Widens rows [row, row + rows) of a chunk; x: their addresses.
static bool widen_rows(const struct chunk *c, float fold, size_t row, size_t rows, struct work *work, const float **x) {
    for (size_t r = 0; r < rows; r++) {
        float *wide = work->x + r * X_STRIDE;
        x[r] = wide;
        if (!widen_row((const uint16_t *)c->args->x[row + r] + c->k, c->depth, fold, wide)) {
            return false;
        }
    }
    return true;
}

// sums[r][v] += x[r][i] * w[v], one FMA each.
PANEL_INLINE void medium_m_step(__m256 sums[][PASS_VECS], size_t rows, const float *const *x, size_t i, const float *w) {
    __m256 value[PASS_VECS];
    PANEL_UNROLL for (size_t v = 0; v < PASS_VECS; v++) {
        value[v] = _mm256_load_ps(w + v * LANES);
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        __m256 factor = _mm256_broadcast_ss(x[r] + i);
        PANEL_UNROLL for (size_t v = 0; v < PASS_VECS; v++) {
            sums[r][v] = fma_over(factor, value[v], sums[r][v]);
        }
    }
}

// A tile of rows against PASS columns of a widened scale group, or of a part of one: pairs of k, the odd k first.
PANEL_INLINE void medium_m_pass(const struct chunk *c, size_t rows, const float *const *x, const panel_row *weights, size_t depth,
                                float unfold, const float *scale, size_t column, panel_row *partials, panel_row *totals) {
    __m256 sums[PANEL_TILE][PASS_VECS];
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PASS_VECS; v++) {
            sums[r][v] = c->starts ? _mm256_setzero_ps() : _mm256_load_ps(&partials[r][column + v * LANES]);
        }
    }
    size_t i = 0;
    for (; i + MEDIUM_M_RUN <= depth; i += MEDIUM_M_RUN) {
        PANEL_UNROLL for (size_t j = 0; j < MEDIUM_M_RUN; j += 2) {
            medium_m_step(sums, rows, x, i + j + 1, &weights[i + j + 1][column]);
            medium_m_step(sums, rows, x, i + j, &weights[i + j][column]);
        }
    }
    for (; i < depth; i += 2) {
        medium_m_step(sums, rows, x, i + 1, &weights[i + 1][column]);
        medium_m_step(sums, rows, x, i, &weights[i][column]);
    }
    if (!c->ends) {
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            PANEL_UNROLL for (size_t v = 0; v < PASS_VECS; v++) {
                _mm256_store_ps(&partials[r][column + v * LANES], sums[r][v]);
            }
        }
        return;
    }
    PANEL_UNROLL for (size_t r = 0; unfold != 1 && r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PASS_VECS; v++) {
            sums[r][v] = _mm256_mul_ps(sums[r][v], _mm256_set1_ps(unfold));
        }
    }
    PANEL_UNROLL for (size_t v = 0; v < PASS_VECS; v++) {
        __m256 factor = _mm256_load_ps(scale + column + v * LANES);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            float *total = &totals[r][column + v * LANES];
            _mm256_store_ps(total, _mm256_fmadd_ps(sums[r][v], factor, _mm256_load_ps(total)));
        }
    }
}

// Prefetches a pass's share of the next chunk, since widening it would stall.
PANEL_INLINE void medium_m_prefetch(struct work *work) {
    for (size_t i = 0; i < work->share; i++, work->ahead += 64) {
        _mm_prefetch((const char *)work->ahead, _MM_HINT_T0);
    }
}

// With minima: sums the rows over the chunk's scale groups, and over as many more as are summed at the same cost.
static void medium_m_row_sums(const struct chunk *c, struct work *work) {
    const size_t scale_k = c->layout.scale_k, first = c->scale * scale_k, left = c->args->k - first;
    const size_t k = left < ROW_SUMS_GROUPS * scale_k ? left : ROW_SUMS_GROUPS * scale_k;
    for (size_t r = 0; r < c->args->rows; r++) {
        row_sums_minus((const uint16_t *)c->args->x[r] + first, true, k, scale_k, work->minus[r]);
    }
    work->sums_end = c->scale + ROW_SUMS_GROUPS;
}

// With minima, the end of the chunk's scale group s: sum = fma(minus, minimum, sum).
PANEL_INLINE void medium_m_subtract(const struct chunk *c, struct work *work, size_t row, size_t rows, size_t s) {
    const size_t at = c->scale + s + ROW_SUMS_GROUPS - work->sums_end;
    PANEL_UNROLL for (size_t v = 0; v < EXPERTD_KERNEL_PANEL; v += LANES) {
        const __m256 minimum = _mm256_load_ps(&work->minima[s][v]);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            float *sum = &work->sums[row + r][v];
            _mm256_store_ps(sum, _mm256_fmadd_ps(_mm256_broadcast_ss(&work->minus[row + r][at]), minimum, _mm256_load_ps(sum)));
        }
    }
}

PANEL_INLINE void medium_m_rows(const struct chunk *c, size_t rows, const struct ieee_decoder *decoder, const float **x,
                                struct work *work, size_t row) {
    const bool minima = c->format->minima && c->ends;
    size_t depth = c->layout.scale_k;
    for (size_t s = 0; s < c->scales; s++) {
        const panel_row *weights = (const panel_row *)work->weights + s * c->layout.scale_k;
        depth = s + 1 == c->scales ? last_depth(c, decoder->line_k) : depth;
        for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += PASS) {
            medium_m_prefetch(work);
            medium_m_pass(c, rows, x, weights, depth, decoder->unfold, work->scales[s], column, work->partials + row,
                          work->sums + row);
        }
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            x[r] += depth;
        }
        if (minima) {
            medium_m_subtract(c, work, row, rows, s);
        }
    }
}

static void medium_m_tile(const struct chunk *c, size_t rows, const struct ieee_decoder *decoder, const float **x,
                          struct work *work, size_t row) {
    switch (rows) {
    case 3:
        medium_m_rows(c, 3, decoder, x, work, row);
        return;
    case 4:
        medium_m_rows(c, 4, decoder, x, work, row);
        return;
    case 5:
        medium_m_rows(c, 5, decoder, x, work, row);
        return;
    default:
        medium_m_rows(c, PANEL_TILE, decoder, x, work, row);
        return;
    }
}

static void widen_weights(const struct chunk *c, const struct ieee_decoder *decoder, struct work *work) {
    for (size_t s = 0; s < c->scales; s++) {
        size_t depth = s + 1 == c->scales ? last_depth(c, decoder->line_k) : c->layout.scale_k;
        decoder->widen(chunk_codes(c, s), chunk_zeros(c, s), depth / decoder->line_k, work->weights + s * c->layout.scale_k);
    }
}

// Calls of more than SMALL_M_ROWS rows have tiles of 3 rows at least.
static bool medium_m_chunk(const struct chunk *c, const struct ieee_decoder *decoder, struct work *work) {
    const float *x[PANEL_TILE];
    size_t bytes = chunk_bytes(c), shares = div_up(c->args->rows, PANEL_TILE) * c->scales * (EXPERTD_KERNEL_PANEL / PASS);
    INVARIANT(shares > 0); // a chunk has at least one scale group
    widen_weights(c, decoder, work);
    work->ahead = (uintptr_t)chunk_codes(c, 0) + bytes;
    work->share = div_up(bytes / 64, shares);
    for (size_t row = 0, rows; row < c->args->rows; row += rows) {
        rows = panel_tile_rows(c->args->rows, row);
        if (!widen_rows(c, decoder->fold, row, rows, work, x)) {
            return false;
        }
        medium_m_tile(c, rows, decoder, x, work, row);
    }
    return true;
}

// Not inlined: the compiler must not move an FMA across the caller's changes of the floating-point mode.
static __attribute__((noinline)) bool multiply_panel(const struct panel_args *args, const struct expertd_quantised_format *format,
                                                     struct work *work) {
    const struct ieee_decoder *decoder = ieee_decoder_of(format);
    if (quantised_has_special(args->panel)) {
        return false;
    }
    struct chunk c = {.args = args, .format = format, .layout = quantised_layout(format, args->k)};
    memset(work->sums, 0, args->rows * sizeof *work->sums);
    work->sums_end = 0;
    while (chunk_next(&c, MEDIUM_M_K)) {
        if (c.ends) {
            struct scale_offsets at = scale_offsets(&c);
            chunk_scales(&c, &at, args->panel, work->scales);
            if (format->minima) {
                widen_minima(&c, &at, args->panel, work->minima);
            }
        }
        if (format->minima && c.ends && c.scale + c.scales > work->sums_end) {
            medium_m_row_sums(&c, work);
        }
        if (!medium_m_chunk(&c, decoder, work)) {
            return false;
        }
    }
    return true;
}

bool avx2_quantised_medium_m(const struct panel_args *args, const struct expertd_quantised_format *format) {
    struct work work;
    float_mode before = float_mode_set_ieee();
    bool done = multiply_panel(args, format, &work);
    for (size_t r = 0; done && r < args->rows; r++) {
        memcpy(args->out + r * args->out_stride, work.sums[r], args->columns * sizeof *args->out);
    }
    float_mode_restore(before);
    return done;
}
#endif
