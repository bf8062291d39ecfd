// The general kernels for quantised weights, for any rows, m and format, written once over a vector of LANES floats: codes are
// widened to f32 in L1, a chunk of K at a time, and multiplied. The including file defines:
//   vec, LANES, PANEL_VECS   as for panel_body.h, with vec_load, vec_store, vec_broadcast, vec_fma, and vec_zero, vec_mul, vec_div
//   vec_huge()               a large finite number, with which a chain of vec_least starts
//   vec_scale(dtype, p)      LANES scales of a dtype, widened to f32 without the global scale; subnormals are not flushed
//   vec_least(a, b)          min(|a|, b); b where a is NaN
//   vec_any_tiny(a)          whether any |a| < 2^-126
//   quantised_widen(format, codes, zeros, depth, wide)  wide[i][c] = the value of code (i, c), for all 64 columns. May write up to
//                            the end of the last line of codes. zeros: 64 bytes or NULL
//   QUANTISED_IEEE, optional quantised_ieee(args, format) is called first for bf16 rows; if it returns false, it has done nothing
// and names the results by PANEL_TARGET(name).
//
// For each chunk the partial sums are computed first, under the flush if rows are bf16, and stored. Then each one is closed:
// sum = fma(partial, scale, sum), which must be IEEE arithmetic. Changing MXCSR costs 200 cycles, because it empties the pipeline.
// So partial sums are closed under the flush too; rows whose result the flush may have changed are detected, and closed again in
// IEEE mode; with minima all are. It does not matter here whether the machine flushes before rounding or after it (float_mode.h):
// the last bit of a code is at least 2^-16 (E5M2), that of a bf16 at least 2^-133, so a sum below 2^-126 is a multiple of 2^-149,
// and exact.
#include <string.h>

#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/quantised_chunk.h"
#include "kernels/cpu/common/row_sums.h"

#ifndef QUANTISED_IEEE
static inline bool quantised_ieee(const struct panel_args *args, const struct expertd_quantised_format *format) {
    (void)args, (void)format;
    return false;
}
#endif

enum {
    WIDE_K = 128,                    // k of a chunk: 32 KiB of f32, which stay in L1 over all rows
    WIDE_SCALES = WIDE_K / 16,       // most scales of a chunk: a scale group has at least 16 k
    PANEL_PASS = PANEL_VECS * LANES, // columns of a pass
    COLUMN_VECS = EXPERTD_KERNEL_PANEL / (int)LANES,
};

// Whether the flush would turn the divisor of scales (the global scale, first in the panel) into 0.
static bool divisor_is_flushed(const struct expertd_quantised_format *format, const uint8_t *panel) {
    uint32_t bits;
    memcpy(&bits, panel, sizeof bits);
    return format->global == EXPERTD_GLOBAL_DIVIDE && (bits & 0x7fffffffu) - 1 < 0x007fffffu; // subnormal, and not 0
}

// Vector v of scales of I8 times their super scales; supers: NULL if there are none.
PANEL_INLINE vec scaled_by_super(vec scale, const uint8_t *supers, size_t v) {
    return supers ? vec_mul(scale, vec_scale(EXPERTD_DTYPE_F16, supers + v * LANES * sizeof(uint16_t))) : scale;
}

// The chunk's scales as f32. False if one is below 2^-126, or the divisor is: the flush would take it for 0.
static __attribute__((noinline)) bool chunk_scales(const struct chunk *c, panel_row *out) {
    const struct expertd_quantised_format *format = c->format;
    const uint8_t *panel = c->args->panel;
    size_t size = expertd_dtype_size(format->scale);
    vec global = vec_broadcast((const float *)panel), least = vec_huge();
    for (size_t s = 0; s < c->scales; s++) {
        const uint8_t *scales = panel + quantised_scales_at(&c->layout, c->scale + s, c->args->k), *supers = chunk_supers(c, s);
        for (size_t v = 0; v < COLUMN_VECS; v++) {
            vec scale =
                scaled_by_super(vec_scale(format->scale, scales + (format->scale_of_panel ? 0 : v * LANES * size)), supers, v);
            if (format->global != EXPERTD_GLOBAL_NONE) {
                scale = format->global == EXPERTD_GLOBAL_MULTIPLY ? vec_mul(scale, global) : vec_div(scale, global);
            }
            vec_store(&out[s][v * LANES], scale);
        }
        for (size_t i = 1; format->scale_of_panel && i < EXPERTD_KERNEL_PANEL; i++) {
            out[s][i] = out[s][0];
        }
        PANEL_UNROLL for (size_t v = 0; v < COLUMN_VECS; v++) {
            least = vec_least(vec_load(&out[s][v * LANES]), least);
        }
    }
    return !vec_any_tiny(least) && !divisor_is_flushed(format, panel);
}

// One row: sum = fma(partial, scale, sum) for ascending scales. partials: those of two scales are `rows` rows apart. *least: the
// least magnitude of all intermediate sums.
PANEL_INLINE void close_row(size_t scales, size_t rows, const panel_row *scale, const panel_row *partials, const float *sums,
                            vec sum[COLUMN_VECS], vec *least) {
    PANEL_UNROLL for (size_t v = 0; v < COLUMN_VECS; v++) {
        sum[v] = vec_load(sums + v * LANES);
    }
    for (size_t s = 0; s < scales; s++) {
        PANEL_UNROLL for (size_t v = 0; v < COLUMN_VECS; v++) {
            sum[v] = vec_fma(vec_load(&partials[s * rows][v * LANES]), vec_load(&scale[s][v * LANES]), sum[v]);
            *least = vec_least(sum[v], *least);
        }
    }
}

PANEL_INLINE void close_store(const vec sum[COLUMN_VECS], float *sums) {
    PANEL_UNROLL for (size_t v = 0; v < COLUMN_VECS; v++) {
        vec_store(sums + v * LANES, sum[v]);
    }
}

// Closes a row that close_rows left out. The caller has set IEEE mode.
static __attribute__((noinline)) void close_row_ieee(size_t scales, size_t rows, const panel_row *scale, const panel_row *partials,
                                                     float *sums) {
    vec sum[COLUMN_VECS], least = vec_huge();
    close_row(scales, rows, scale, partials, sums, sum, &least);
    close_store(sum, sums);
}

// One row of a format with minima: per scale, sum = fma(partial, scale, sum), then sum = fma(minus, minimum, sum). The caller has
// set IEEE mode.
static __attribute__((noinline)) void close_row_minima(const struct chunk *c, size_t rows, const panel_row *scale,
                                                       const panel_row *partials, const float *minus, float *sums) {
    const size_t size = expertd_dtype_size(c->format->scale);
    for (size_t s = 0; s < c->scales; s++) {
        const uint8_t *minima = chunk_minima(c, s), *supers = c->layout.super_size ? chunk_supers(c, s) + QUANTISED_SUPER : NULL;
        PANEL_UNROLL for (size_t v = 0; v < COLUMN_VECS; v++) {
            vec sum = vec_load(sums + v * LANES), minimum = vec_scale(c->format->scale, minima + v * LANES * size);
            minimum = scaled_by_super(minimum, supers, v);
            sum = vec_fma(vec_load(&partials[s * rows][v * LANES]), vec_load(&scale[s][v * LANES]), sum);
            vec_store(sums + v * LANES, vec_fma(vec_broadcast(&minus[s]), minimum, sum));
        }
    }
}

// Closes rows in any mode. A flushed fma differs from IEEE's only if an operand is subnormal or the result is 0. So rows that have
// an intermediate sum below 2^-126 are left out, and so are rows in `unsure`, which may hold subnormal sums. Returns both as a bit
// mask.
static __attribute__((noinline)) uint32_t close_rows(size_t scales, size_t rows, uint32_t unsure, const panel_row *scale,
                                                     const panel_row *partials, panel_row *sums) {
    for (size_t r = 0; r < rows; r++) {
        vec sum[COLUMN_VECS], least = vec_huge();
        close_row(scales, rows, scale, partials + r, sums[r], sum, &least);
        if (vec_any_tiny(least)) {
            unsure |= 1u << r;
        } else if (!(unsure >> r & 1)) {
            close_store(sum, sums[r]);
        }
    }
    return unsure;
}

// minus[s] = -(the sum of the row over the chunk's scale group s)
PANEL_INLINE void chunk_row_sums(const struct chunk *c, size_t row, bool bf16, float *minus) {
    const size_t first = c->scale * c->layout.scale_k, k = c->k + c->depth - first;
    const char *x = c->args->x[row];
    row_sums_minus(x + first * (bf16 ? sizeof(uint16_t) : sizeof(float)), bf16, k, c->layout.scale_k, minus);
}

// bf16: of the rows, of which `row` is the first.
static __attribute__((noinline)) void close_unsure(const struct chunk *c, size_t row, size_t rows, bool bf16, uint32_t unsure,
                                                   panel_row *scale, const panel_row *partials, panel_row *sums) {
    float_mode before = float_mode_set_ieee();
    chunk_scales(c, scale);
    for (size_t r = 0; r < rows; r++) {
        if (c->format->minima) {
            float minus[WIDE_SCALES];
            if (bf16) {
                chunk_row_sums(c, row + r, true, minus);
            } else {
                chunk_row_sums(c, row + r, false, minus);
            }
            close_row_minima(c, rows, (const panel_row *)scale, partials + r, minus, sums[r]);
        } else if (unsure >> r & 1) {
            close_row_ieee(c->scales, rows, (const panel_row *)scale, partials + r, sums[r]);
        }
    }
    float_mode_restore(before);
}

// Closes the partial sums of rows [row, row + rows), up to 32. `normal`: no scale is below 2^-126, and there are no minima.
// *unsure: the rows' bit mask from chunk to chunk, 0 at first.
static void chunk_close(const struct chunk *c, size_t row, size_t rows, bool bf16, bool normal, uint32_t *unsure, panel_row *scale,
                        panel_row *partials, panel_row *sums) {
    const panel_row *from = (const panel_row *)partials;
    *unsure = normal ? close_rows(c->scales, rows, *unsure, (const panel_row *)scale, from, sums) : UINT32_MAX;
    if (*unsure) {
        close_unsure(c, row, rows, bf16, *unsure, scale, from, sums);
    }
}

static void widen_row(const uint16_t *x, size_t depth, float *wide) {
    for (size_t i = 0; i < depth; i++) {
        wide[i] = expertd_f32_from_bf16(x[i]);
    }
    if (depth % 2) {
        wide[depth] = 0.0f;
    }
}

static void write_sums(const struct panel_args *args, const panel_row *sums) {
    for (size_t r = 0; r < args->rows; r++) {
        memcpy(args->out + r * args->out_stride, sums[r], args->columns * sizeof *args->out);
    }
}

// sums[r][v] = fma(x[r][i], w[v], sums[r][v]) for PANEL_PASS columns.
PANEL_INLINE void wide_step(vec sums[][PANEL_VECS], size_t rows, const float *const *x, size_t i, const float *w) {
    vec value[PANEL_VECS];
    PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
        value[v] = vec_load(w + v * LANES);
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        vec factor = vec_broadcast(&x[r][i]);
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = vec_fma(factor, value[v], sums[r][v]);
        }
    }
}

// `depth` k of one scale by widened weights. pairs: bf16's order, the odd k of a pair first; an odd depth is padded with +0.
PANEL_INLINE void wide_pass(panel_row *partial, bool accumulate, bool pairs, const float *const *x, const panel_row *wide,
                            size_t depth, size_t column, size_t rows) {
    vec sums[PANEL_TILE][PANEL_VECS];
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = accumulate ? vec_load(&partial[r][column + v * LANES]) : vec_zero();
        }
    }
    for (size_t i = 0; pairs && i < depth; i += 2) {
        wide_step(sums, rows, x, i + 1, &wide[i + 1][column]);
        wide_step(sums, rows, x, i, &wide[i][column]);
    }
    for (size_t i = 0; !pairs && i < depth; i++) {
        wide_step(sums, rows, x, i, &wide[i][column]);
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            vec_store(&partial[r][column + v * LANES], sums[r][v]);
        }
    }
}

// All columns, with the copy for the tile's number of rows. Not inlined: no fma may move across a change of the floating-point mode
// in the caller.
#define WIDE_FUNCTION(name, pairs)                                                                                                 \
    static __attribute__((noinline)) void name(panel_row *partial, bool accumulate, size_t rows, const float *const *x,            \
                                               const panel_row *wide, size_t depth) {                                              \
        for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += PANEL_PASS) {                                             \
            PANEL_BY_ROWS(rows, wide_pass, partial, accumulate, pairs, x, wide, depth, column);                                    \
        }                                                                                                                          \
    }

WIDE_FUNCTION(wide_bf16, true)
WIDE_FUNCTION(wide_f32, false)

// Scratch of a call.
struct wide_work {
    panel_row weights[WIDE_K + 8]; // the widened chunk
    panel_row scales[WIDE_SCALES];
    bool normal;                                              // no scale is below 2^-126, and there are no minima
    panel_row partials[WIDE_SCALES * PANEL_TILE];             // of one tile of rows, [scale][row]
    float x[PANEL_TILE][WIDE_K] __attribute__((aligned(64))); // the tile's widened rows
    panel_row carried[KERNEL_CALL_ROWS];                      // partial sums of a scale group that is longer than a chunk
    panel_row sums[KERNEL_CALL_ROWS];
    uint32_t unsure[KERNEL_CALL_ROWS]; // of the tile that begins at a row: close_rows' bit mask
};

static void wide_chunk_weights(const struct chunk *c, struct wide_work *work) {
    for (size_t s = 0; s < c->scales; s++) {
        size_t depth = chunk_depth(c, s);
        panel_row *weights = work->weights + s * c->layout.scale_k;
        quantised_widen(c->format, chunk_codes(c, s), chunk_zeros(c, s), depth, weights);
        if (depth % 2) {
            memset(weights[depth], 0, sizeof weights[depth]);
        }
    }
    work->normal = !c->ends || (!c->format->minima && chunk_scales(c, work->scales));
}

static void wide_tile_bf16(const struct chunk *c, struct wide_work *work, panel_row *partials, size_t row, size_t rows) {
    const float *x[PANEL_TILE];
    for (size_t r = 0; r < rows; r++) {
        widen_row((const uint16_t *)c->args->x[row + r] + c->k, c->depth, work->x[r]);
    }
    for (size_t s = 0; s < c->scales; s++) {
        for (size_t r = 0; r < rows; r++) {
            x[r] = work->x[r] + s * c->layout.scale_k;
        }
        wide_bf16(partials + s * rows, !c->starts, rows, x, work->weights + s * c->layout.scale_k, chunk_depth(c, s));
    }
}

static void wide_tile_f32(const struct chunk *c, struct wide_work *work, panel_row *partials, size_t row, size_t rows) {
    const float *x[PANEL_TILE];
    for (size_t s = 0; s < c->scales; s++) {
        for (size_t r = 0; r < rows; r++) {
            x[r] = (const float *)c->args->x[row + r] + c->k + s * c->layout.scale_k;
        }
        wide_f32(partials + s * rows, !c->starts, rows, x, work->weights + s * c->layout.scale_k, chunk_depth(c, s));
    }
}

PANEL_INLINE void wide_panel(const struct panel_args *args, const struct expertd_quantised_format *format, struct wide_work *work,
                             bool bf16) {
    struct chunk c = {.args = args, .format = format, .layout = quantised_layout(format, args->k)};
    memset(work->sums, 0, args->rows * sizeof *work->sums);
    memset(work->unsure, 0, args->rows * sizeof *work->unsure);
    while (chunk_next(&c, WIDE_K)) {
        wide_chunk_weights(&c, work);
        for (size_t row = 0, rows; row < args->rows; row += rows) {
            rows = panel_tile_rows(args->rows, row);
            panel_row *partials = c.starts && c.ends ? work->partials : work->carried + row;
            if (bf16) {
                wide_tile_bf16(&c, work, partials, row, rows);
            } else {
                wide_tile_f32(&c, work, partials, row, rows);
            }
            if (c.ends) {
                chunk_close(&c, row, rows, bf16, work->normal, &work->unsure[row], work->scales, partials, work->sums + row);
            }
        }
    }
    write_sums(args, (const panel_row *)work->sums);
}

void PANEL_TARGET(quantised_bf16)(const struct panel_args *args, const struct expertd_quantised_format *format) {
    if (quantised_ieee(args, format)) {
        return;
    }
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    struct wide_work work;
    wide_panel(args, format, &work, true);
    float_mode_restore(before);
}

void PANEL_TARGET(quantised_f32)(const struct panel_args *args, const struct expertd_quantised_format *format) {
    struct wide_work work;
    float_mode before = float_mode_set_ieee();
    wide_panel(args, format, &work, false);
    float_mode_restore(before);
}
