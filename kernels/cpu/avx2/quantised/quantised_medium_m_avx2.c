// A panel of quantised weights against more than SMALL_M_ROWS rows of bf16, up to WIDE_ROWS, that no flush touches: codes are
// widened into L1, chunk by chunk, and multiplied by tiles of 6 rows.
#if defined(__x86_64__)
#include <string.h>

#include "base/err.h"
#include "kernels/cpu/avx2/fma_avx2.h"
#include "kernels/cpu/avx2/quantised/quantised_chunk_avx2.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/common/float_mode.h"

enum {
    WIDE_K = 64,  // of a chunk: 16 KiB of f32, which stay in L1
    WIDE_RUN = 8, // k of the inner loop of its products
    PASS_VECS = 2,
    PASS = PASS_VECS * LANES, // columns of a pass over a widened chunk
    LINE_K_MAX = 8,
    X_STRIDE = WIDE_K + LANES, // rows apart by no power of two
};

struct work {
    uintptr_t ahead; // the next line of the next chunk to be fetched
    size_t share;    // lines that a pass fetches
    float x[PANEL_TILE * X_STRIDE] __attribute__((aligned(64)));
    panel_row scales[WIDE_K / 16];
    panel_row weights[WIDE_K + LINE_K_MAX];
    panel_row partials[WIDE_ROWS]; // of a scale that is longer than a chunk
    panel_row sums[WIDE_ROWS];
};

const struct ieee_decoder *ieee_decoder_of(const struct expertd_quantised_format *format) {
    switch (format->code) {
    case EXPERTD_CODE_E4M3:
        return &ieee_e4m3;
    case EXPERTD_CODE_E5M2:
        return &ieee_e5m2;
    case EXPERTD_CODE_E2M1:
        return &ieee_e2m1;
    case EXPERTD_CODE_INT4:
        return &ieee_int4;
    default:
        return format->zero_points ? &ieee_int8_zero_point : &ieee_int8;
    }
}

// Rows [row, row + rows) of a chunk, and where they lie.
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

// sums[r][v] += x[r][i] * w[v], one fma each.
PANEL_INLINE void wide_step(__m256 sums[][PASS_VECS], size_t rows, const float *const *x, size_t i, const float *w) {
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

// A widened part of one scale against a tile of rows, PASS columns of them: pairs of k, the odd one first.
PANEL_INLINE void wide_pass(const struct chunk *c, size_t rows, const float *const *x, const panel_row *weights, size_t depth,
                            float unfold, const float *scale, size_t column, panel_row *partials, panel_row *totals) {
    __m256 sums[PANEL_TILE][PASS_VECS];
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PASS_VECS; v++) {
            sums[r][v] = c->starts ? _mm256_setzero_ps() : _mm256_load_ps(&partials[r][column + v * LANES]);
        }
    }
    size_t i = 0;
    for (; i + WIDE_RUN <= depth; i += WIDE_RUN) {
        PANEL_UNROLL for (size_t j = 0; j < WIDE_RUN; j += 2) {
            wide_step(sums, rows, x, i + j + 1, &weights[i + j + 1][column]);
            wide_step(sums, rows, x, i + j, &weights[i + j][column]);
        }
    }
    for (; i < depth; i += 2) {
        wide_step(sums, rows, x, i + 1, &weights[i + 1][column]);
        wide_step(sums, rows, x, i, &weights[i][column]);
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

// A pass's share of the next chunk, which would be waited for where it is widened.
PANEL_INLINE void wide_prefetch(struct work *work) {
    for (size_t i = 0; i < work->share; i++, work->ahead += 64) {
        _mm_prefetch((const char *)work->ahead, _MM_HINT_T0);
    }
}

PANEL_INLINE void wide_rows(const struct chunk *c, size_t rows, const struct ieee_decoder *decoder, const float **x,
                            struct work *work, size_t row) {
    size_t depth = c->layout.scale_k;
    for (size_t s = 0; s < c->scales; s++) {
        const panel_row *weights = (const panel_row *)work->weights + s * c->layout.scale_k;
        depth = s + 1 == c->scales ? last_depth(c, decoder->line_k) : depth;
        for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += PASS) {
            wide_prefetch(work);
            wide_pass(c, rows, x, weights, depth, decoder->unfold, work->scales[s], column, work->partials + row, work->sums + row);
        }
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            x[r] += depth;
        }
    }
}

static void wide_tile(const struct chunk *c, size_t rows, const struct ieee_decoder *decoder, const float **x, struct work *work,
                      size_t row) {
    switch (rows) {
    case 3:
        wide_rows(c, 3, decoder, x, work, row);
        return;
    case 4:
        wide_rows(c, 4, decoder, x, work, row);
        return;
    case 5:
        wide_rows(c, 5, decoder, x, work, row);
        return;
    default:
        wide_rows(c, PANEL_TILE, decoder, x, work, row);
        return;
    }
}

static void widen_weights(const struct chunk *c, const struct ieee_decoder *decoder, struct work *work) {
    for (size_t s = 0; s < c->scales; s++) {
        size_t depth = s + 1 == c->scales ? last_depth(c, decoder->line_k) : c->layout.scale_k;
        decoder->widen(chunk_codes(c, s), chunk_zeros(c, s), depth / decoder->line_k, work->weights + s * c->layout.scale_k);
    }
}

// Tiles of more than SMALL_M_ROWS rows have 3 at least.
static bool wide_chunk(const struct chunk *c, const struct ieee_decoder *decoder, struct work *work) {
    const float *x[PANEL_TILE];
    size_t bytes = chunk_bytes(c), shares = div_up(c->args->rows, PANEL_TILE) * c->scales * (EXPERTD_KERNEL_PANEL / PASS);
    INVARIANT(shares > 0); // a chunk has a scale
    widen_weights(c, decoder, work);
    work->ahead = (uintptr_t)chunk_codes(c, 0) + bytes;
    work->share = div_up(bytes / 64, shares);
    for (size_t row = 0, rows; row < c->args->rows; row += rows) {
        rows = panel_tile_rows(c->args->rows, row);
        if (!widen_rows(c, decoder->fold, row, rows, work, x)) {
            return false;
        }
        wide_tile(c, rows, decoder, x, work, row);
    }
    return true;
}

// Not inlined: no fma may move across a change of the floating-point mode in the caller.
static __attribute__((noinline)) bool multiply_panel(const struct panel_args *args, const struct expertd_quantised_format *format,
                                                     struct work *work) {
    const struct ieee_decoder *decoder = ieee_decoder_of(format);
    if (quantised_has_special(args->panel)) {
        return false;
    }
    struct chunk c = {.args = args, .format = format, .layout = quantised_layout(format, args->k)};
    memset(work->sums, 0, args->rows * sizeof *work->sums);
    while (chunk_next(&c, WIDE_K)) {
        if (c.ends) {
            struct scale_places at = scale_places(&c);
            chunk_scales(&c, &at, args->panel, work->scales);
        }
        if (!wide_chunk(&c, decoder, work)) {
            return false;
        }
    }
    return true;
}

bool avx2_quantised_ieee(const struct panel_args *args, const struct expertd_quantised_format *format) {
    if (args->rows <= SMALL_M_ROWS) {
        return avx2_quantised_small_m(args, format);
    }
    if (args->rows > WIDE_ROWS) {
        return avx2_quantised_large_m(args, format);
    }
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
