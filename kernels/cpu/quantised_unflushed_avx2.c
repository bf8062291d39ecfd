// A panel of quantised weights against rows of bf16 that no flush touches: its chunks, rows and scales to f32, the decoder's
// kernels for a few rows, and for more the product of tiles of 6 rows with codes that lie widened in L1.
#if defined(__x86_64__)
#include <string.h>

#include "kernels/cpu/backends.h"
#include "kernels/cpu/float_mode.h"
#include "kernels/cpu/fma_avx2.h"
#include "kernels/cpu/quantised_unflushed.h"
#include "kernels/cpu/scales_avx2.h"

enum {
    LANES = 8,
    FEW_K = 256,  // of a chunk that is widened in registers: the rows and the scales stay in L1 beside the codes
    WIDE_K = 128, // of one that is widened into memory: 32 KiB of f32, in L1 or L2, which the passes hardly tell apart
    WIDE_RUN = 8, // k of the inner loop of its products
    PASS_VECS = 2,
    PASS = PASS_VECS * LANES, // columns of a pass over a widened chunk
    LINE_K_MAX = 8,
    X_ELEMENTS = FEW_ROWS * (FEW_K + LANES), // rows apart by no power of two
};
_Static_assert((int)FEW_K <= (int)WHOLE_K, "a chunk's whole numbers");
_Static_assert(PANEL_TILE *(WIDE_K + LANES) <= X_ELEMENTS, "a tile's rows");

struct work {
    float x[X_ELEMENTS] __attribute__((aligned(64)));
    panel_row scales[FEW_K / 16];
    struct whole_row whole;
    panel_row weights[WIDE_K + LINE_K_MAX];
    panel_row partials[KERNEL_CALL_ROWS]; // of a scale that is longer than a chunk
    panel_row sums[KERNEL_CALL_ROWS];
};

static const struct unflushed_decoder *decoder_of(const struct quantised_format *format) {
    switch (format->code) {
    case CODE_E4M3:
        return &unflushed_e4m3;
    case CODE_E5M2:
        return &unflushed_e5m2;
    case CODE_E2M1:
        return &unflushed_e2m1;
    case CODE_INT4:
        return &unflushed_int4;
    default:
        return format->zero_points ? &unflushed_int8_less_zero : &unflushed_int8;
    }
}

// *least: of each element's magnitude less one bit, so that 0 is the greatest.
static inline void widen_16(const uint16_t *x, __m256 fold, __m256i *least, float *wide) {
    __m256i all = _mm256_loadu_si256((const __m256i *)x);
    __m256i magnitude = _mm256_and_si256(all, _mm256_set1_epi16(0x7fff));
    *least = _mm256_min_epu16(*least, _mm256_sub_epi16(magnitude, _mm256_set1_epi16(1)));
    __m256i low = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x));
    __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(x + LANES)));
    _mm256_storeu_ps(wide, _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), fold));
    _mm256_storeu_ps(wide + LANES, _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(high, 16)), fold));
}

// Times `fold`, and +0 up to two whole vectors. False where an element but 0 is below 2^UNFLUSHED_EXPONENT_MIN.
static bool widen_row(const uint16_t *x, size_t depth, float fold, float *wide) {
    __m256i least = _mm256_set1_epi16(-1);
    __m256 factor = _mm256_set1_ps(fold);
    size_t whole = depth / (2 * LANES) * (2 * LANES);
    for (size_t i = 0; i < whole; i += 2 * LANES) {
        widen_16(x + i, factor, &least, wide + i);
    }
    if (whole < depth) {
        uint16_t tail[2 * LANES] = {0};
        memcpy(tail, x + whole, (depth - whole) * sizeof *tail);
        widen_16(tail, factor, &least, wide + whole);
    }
    const __m256i bound = _mm256_set1_epi16(((127 + UNFLUSHED_EXPONENT_MIN) << 7) - 1);
    return _mm256_movemask_epi8(_mm256_cmpeq_epi16(_mm256_max_epu16(least, bound), least)) == -1;
}

// Rows [row, row + rows) of a chunk of at most `limit` k, and where they lie.
static bool widen_rows(const struct chunk *c, float fold, size_t row, size_t rows, size_t limit, struct work *work,
                       const float **x) {
    for (size_t r = 0; r < rows; r++) {
        float *wide = work->x + r * (limit + LANES);
        x[r] = wide;
        if (!widen_row((const uint16_t *)c->args->x[row + r] + c->k, c->depth, fold, wide)) {
            return false;
        }
    }
    return true;
}

// `dtype` and `global` are constants in each copy.
PANEL_INLINE void widen_scales_of(const struct chunk *c, enum dtype dtype, enum global_scale kind, panel_row *out) {
    const uint8_t *panel = c->args->panel;
    size_t size = dtype_size(dtype);
    __m256 global = _mm256_broadcast_ss((const float *)panel);
    bool one = c->format->scale_of_panel;
    for (size_t s = 0; s < c->scales; s++) {
        const uint8_t *scales = panel + quantised_scales_at(&c->layout, c->scale + s, c->args->k);
        PANEL_UNROLL for (size_t v = 0; v < KERNEL_PANEL; v += LANES) {
            __m256 scale = scale_widen(dtype, scales + (one ? 0 : v * size));
            if (kind != GLOBAL_NONE) {
                scale = kind == GLOBAL_MULTIPLY ? _mm256_mul_ps(scale, global) : _mm256_div_ps(scale, global);
            }
            scale = one ? _mm256_broadcastss_ps(_mm256_castps256_ps128(scale)) : scale;
            _mm256_store_ps(&out[s][v], scale);
        }
    }
}

PANEL_INLINE void widen_scales(const struct chunk *c, enum dtype dtype, panel_row *out) {
    if (dtype != DTYPE_F8_E4M3 || c->format->global == GLOBAL_NONE) {
        widen_scales_of(c, dtype, GLOBAL_NONE, out);
    } else if (c->format->global == GLOBAL_MULTIPLY) {
        widen_scales_of(c, dtype, GLOBAL_MULTIPLY, out);
    } else {
        widen_scales_of(c, dtype, GLOBAL_DIVIDE, out);
    }
}

// The dtype is a constant in each copy.
static void chunk_scales(const struct chunk *c, panel_row *out) {
    switch (c->format->scale) {
    case DTYPE_F32:
        widen_scales(c, DTYPE_F32, out);
        return;
    case DTYPE_BF16:
        widen_scales(c, DTYPE_BF16, out);
        return;
    case DTYPE_F16:
        widen_scales(c, DTYPE_F16, out);
        return;
    case DTYPE_F8_E8M0:
        widen_scales(c, DTYPE_F8_E8M0, out);
        return;
    default:
        widen_scales(c, DTYPE_F8_E4M3, out);
        return;
    }
}

// Of the chunk's last scale, in whole lines.
static size_t last_depth(const struct chunk *c, size_t line_k) {
    return (chunk_depth(c, c->scales - 1) + line_k - 1) / line_k * line_k;
}

// NULL where sums are fmas' anyway.
static const struct whole_row *whole_of(const struct chunk *c, const struct unflushed_decoder *decoder, const float *x,
                                        struct whole_row *out) {
    if (!decoder->whole.max || c->args->rows > 1 || c->layout.scale_k > WHOLE_SCALE_K) {
        return NULL;
    }
    struct whole_codes codes = {decoder->whole.max, decoder->whole.unit / decoder->fold};
    whole_find(x, c->scales, c->layout.scale_k, last_depth(c, decoder->line_k), codes, out);
    return out;
}

// False where an element or a code cannot be taken.
static bool few_chunk(const struct chunk *c, const struct unflushed_decoder *decoder, struct work *work) {
    const float *x[FEW_ROWS];
    struct few_args few = {
        .codes = chunk_codes(c, 0),
        .zeros = chunk_zeros(c, 0),
        .last_zeros = chunk_zeros(c, c->scales - 1),
        .scales = c->scales,
        .stride = c->layout.stride,
        .scale_k = c->layout.scale_k,
        .last_k = last_depth(c, decoder->line_k),
        .starts = c->starts,
        .ends = c->ends,
        .x = x,
        .scale = (const panel_row *)work->scales,
        .partials = work->partials,
        .sums = work->sums,
    };
    if (!widen_rows(c, decoder->fold, 0, c->args->rows, FEW_K, work, x)) {
        return false;
    }
    few.whole = whole_of(c, decoder, work->x, &work->whole);
    return !decoder->multiply[c->args->rows - 1](&few);
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
                            const float *scale, size_t column, panel_row *partials, panel_row *totals) {
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
    PANEL_UNROLL for (size_t v = 0; v < PASS_VECS; v++) {
        __m256 factor = _mm256_load_ps(scale + column + v * LANES);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            float *total = &totals[r][column + v * LANES];
            _mm256_store_ps(total, _mm256_fmadd_ps(sums[r][v], factor, _mm256_load_ps(total)));
        }
    }
}

PANEL_INLINE void wide_rows(const struct chunk *c, size_t rows, size_t line_k, const float **x, struct work *work, size_t row) {
    size_t depth = c->layout.scale_k;
    for (size_t s = 0; s < c->scales; s++) {
        const panel_row *weights = (const panel_row *)work->weights + s * c->layout.scale_k;
        depth = s + 1 == c->scales ? last_depth(c, line_k) : depth;
        for (size_t column = 0; column < KERNEL_PANEL; column += PASS) {
            wide_pass(c, rows, x, weights, depth, work->scales[s], column, work->partials + row, work->sums + row);
        }
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            x[r] += depth;
        }
    }
}

static void wide_tile(const struct chunk *c, size_t rows, size_t line_k, const float **x, struct work *work, size_t row) {
    switch (rows) {
    case 3:
        wide_rows(c, 3, line_k, x, work, row);
        return;
    case 4:
        wide_rows(c, 4, line_k, x, work, row);
        return;
    case 5:
        wide_rows(c, 5, line_k, x, work, row);
        return;
    default:
        wide_rows(c, PANEL_TILE, line_k, x, work, row);
        return;
    }
}

static bool widen_weights(const struct chunk *c, const struct unflushed_decoder *decoder, struct work *work) {
    bool seen = false;
    for (size_t s = 0; s < c->scales; s++) {
        size_t depth = s + 1 == c->scales ? last_depth(c, decoder->line_k) : c->layout.scale_k;
        seen |=
            decoder->widen(chunk_codes(c, s), chunk_zeros(c, s), depth / decoder->line_k, work->weights + s * c->layout.scale_k);
    }
    return !seen;
}

// Tiles of more than FEW_ROWS rows have 3 at least.
static bool wide_chunk(const struct chunk *c, const struct unflushed_decoder *decoder, struct work *work) {
    const float *x[PANEL_TILE];
    if (!widen_weights(c, decoder, work)) {
        return false;
    }
    for (size_t row = 0, rows; row < c->args->rows; row += rows) {
        rows = panel_tile_rows(c->args->rows, row);
        if (!widen_rows(c, decoder->fold, row, rows, WIDE_K, work, x)) {
            return false;
        }
        wide_tile(c, rows, decoder->line_k, x, work, row);
    }
    return true;
}

// Not inlined: no fma may move across a change of the floating-point mode in the caller.
static __attribute__((noinline)) bool multiply_panel(const struct panel_args *args, const struct quantised_format *format,
                                                     struct work *work) {
    const struct unflushed_decoder *decoder = decoder_of(format);
    struct chunk c = {.args = args, .format = format, .layout = quantised_layout(format, args->k)};
    bool few = args->rows <= FEW_ROWS;
    memset(work->sums, 0, args->rows * sizeof *work->sums);
    while (chunk_next(&c, few ? FEW_K : WIDE_K)) {
        if (c.ends) {
            chunk_scales(&c, work->scales);
        }
        if (!(few ? few_chunk : wide_chunk)(&c, decoder, work)) {
            return false;
        }
    }
    return true;
}

bool avx2_quantised_unflushed(const struct panel_args *args, const struct quantised_format *format) {
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
