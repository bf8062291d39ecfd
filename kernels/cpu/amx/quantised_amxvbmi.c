// bf16 rows by quantised weights with TDPBF16PS, in the arithmetic cpu_amx. Codes are decoded to bf16 tiles in L1, a few steps of K
// at a time; then all rows pass over them, one tile of 16 rows by the whole panel at a time. The partial sums of each scale group
// are stored from tiles to L1 and closed by fmas: sum = fma(partial, scale, sum).
//
// The products take as long as those of bf16 weights, but memory delivers a half or a quarter of the bytes.
//
// Rows are packed into tiles for all of K, if scratch is large enough, and cached for the next call with the same rows.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "base/err.h"
#include "base/sizes.h"
#include "kernels/cpu/amx/amx_config.h"
#include "kernels/cpu/amx/tile_codes.h"
#include "kernels/cpu/avx512/quantised/panel_scales_avx512.h"
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/macrokernel_prefetch.h"
#include "kernels/cpu/common/prefetch_distance.h"
#include "kernels/cpu/common/quantised_chunk.h"
#include "kernels/cpu/common/row_sums.h"

enum {
    CHUNK_STEPS = 4, // steps of a chunk: 16 KiB of decoded tiles, which stay in L1 with as many bytes of partial sums
    LANES = 16,
    ROW_WORDS = CODE_TILE_BYTES / AMX_ROWS / 4, // words of a tile's row
    AHEAD_BYTES = 8192,                         // prefetch distance of codes into L2
    ALIGNMENT = 64,
};

typedef float sum_tile[AMX_ROWS][ROW_WORDS];
typedef sum_tile panel_tiles[CODE_TILES]; // sums of 16 rows by 64 columns

// A call: rows by one panel after the other.
struct tiles_call {
    const struct expertd_quantised_format *format;
    struct quantised_layout layout;
    tile_codes_decoder *decode;
    const void *const *x; // [rows]
    size_t rows, k;
    size_t step_k, scale_steps;    // k of a step; steps of a scale group, except the last group
    size_t full_steps, steps;      // complete steps of K; all steps
    size_t step_lines, last_lines; // lines of codes along K: of a step, of the last step
    size_t step_codes;             // bytes of a step's codes
    size_t last_scale, last_codes; // the last scale group's first step, and bytes of its codes
    const uint8_t *panel;
    __m512 global; // the panel's global scale
    float *sums;   // [rows][stride], of the panel's columns
    size_t stride;
    size_t pairs; // pairs of k per step for which tiles are configured; 0: not yet
    // Scratch.
    uint8_t *tiles;        // [CHUNK_STEPS][CODE_STEP_BYTES]: decoded codes
    panel_tiles *partials; // [CHUNK_STEPS]: partial sums of scale groups
    panel_row *factors;    // [CHUNK_STEPS]: their scales
    panel_row *minima;     // [CHUNK_STEPS]: their minima
    panel_tiles *carried;  // [tiles of rows]: partial sums of a scale group that continues in the next chunk
    uint8_t *x_tiles;      // [tiles of rows][packed_steps]: packed rows
    float *minus;          // [rows][packed_steps], with minima: -(the sum of a row over a scale group), at the group's last step
    size_t packed_steps;   // steps for which rows are packed, from packed_first on
    size_t packed_first;
};

// A chunk: steps [first, end), which are several scale groups or a part of one.
struct tiles_chunk {
    size_t first, end, scales, steps_each; // scale groups, and steps of each
    bool begins, ends;                     // whether the chunk contains a scale group's first step, and its last one
    uintptr_t ahead;                       // memory to prefetch
    size_t lines;                          // lines to prefetch in each step
};

static void configure(struct tiles_call *c, size_t pairs) {
    if (c->pairs != pairs) {
        amx_configure(CODE_TILES + 1, c->rows < AMX_ROWS ? c->rows : AMX_ROWS, pairs);
        c->pairs = pairs;
    }
}

static size_t row_tiles(const struct tiles_call *c) {
    return div_up(c->rows, AMX_ROWS);
}

static size_t x_tile_bytes(const struct tiles_call *c) {
    return AMX_ROWS * c->step_k * sizeof(uint16_t);
}

// The k after the scale group that ends with a step; 0: none does.
static size_t scale_end(const struct tiles_call *c, size_t step) {
    return step + 1 == c->steps ? c->k : (step + 1) % c->scale_steps == 0 ? (step + 1) * c->step_k : 0;
}

// The sums of a row over the scale groups that end in the packed steps.
static void sum_row(const struct tiles_call *c, const uint16_t *x, float *minus) {
    for (size_t s = c->packed_first; s < c->packed_first + c->packed_steps && s < c->steps; s++) {
        const size_t begin = s / c->scale_steps * c->layout.scale_k, end = scale_end(c, s);
        if (end > 0) {
            row_sums_minus(x + begin, true, end - begin, end - begin, minus + s - c->packed_first);
        }
    }
}

// Packs packed_steps steps of all rows into tiles, from step `first` on; padded with 0 past the end of K.
static void pack_rows(struct tiles_call *c, size_t first) {
    const size_t row_bytes = c->step_k * sizeof(uint16_t), tile_bytes = x_tile_bytes(c);
    const __mmask32 all = c->step_k == CODE_STEP_K ? 0xffffffffu : 0xffffu;
    for (size_t r = 0; r < c->rows; r++) {
        const uint16_t *from = (const uint16_t *)c->x[r] + first * c->step_k;
        uint8_t *to = c->x_tiles + r / AMX_ROWS * c->packed_steps * tile_bytes + r % AMX_ROWS * row_bytes;
        for (size_t s = first; s < first + c->packed_steps && s < c->steps; s++, from += c->step_k, to += tile_bytes) {
            const size_t left = c->k - s * c->step_k;
            const __mmask32 valid = left < c->step_k ? (__mmask32)((1u << left) - 1) : all;
            _mm512_mask_storeu_epi16(to, all, _mm512_maskz_loadu_epi16(valid, from));
        }
    }
    c->packed_first = first;
    for (size_t r = 0; c->format->minima && r < c->rows; r++) {
        sum_row(c, c->x[r], c->minus + r * c->packed_steps);
    }
}

static const uint8_t *x_tile(const struct tiles_call *c, size_t tile, size_t step) {
    return c->x_tiles + (tile * c->packed_steps + step - c->packed_first) * x_tile_bytes(c);
}

// ---- codes

// Sets the odd k of a pair to 0. If K is odd, the last pair has no odd k, and the padding of its line of codes is undefined.
static void clear_odd(uint8_t *tiles, size_t pair) {
    for (size_t j = 0; j < CODE_TILES; j++) {
        uint8_t *row = tiles + j * CODE_TILE_BYTES + pair * AMX_STEP_BYTES;
        _mm512_store_si512(row, _mm512_and_si512(_mm512_load_si512(row), _mm512_set1_epi32(0xffff)));
    }
}

// A step of K and its position in the panel. Positions are advanced step by step, because a division takes as long as a step's
// products.
struct step_position {
    size_t step, within;  // index in K; index in the scale group
    const uint8_t *scale; // the scale group's codes
};

static struct step_position first_position(const struct tiles_call *c) {
    return (struct step_position){.scale = c->panel + quantised_codes_at(&c->layout, 0)};
}

PANEL_INLINE void next_step(const struct tiles_call *c, struct step_position *at) {
    at->step++;
    at->within++;
    if (at->within == c->scale_steps) {
        at->within = 0;
        at->scale += c->layout.stride;
    }
}

// The scales of the position's scale group; its zero points follow them.
PANEL_INLINE const uint8_t *stored_scales(const struct tiles_call *c, const struct step_position *at) {
    return at->scale + (at->step - at->within < c->last_scale ? c->layout.codes : c->last_codes);
}

static void decode_step(const struct tiles_call *c, const struct step_position *at, uint8_t *tiles) {
    const bool last = at->step + 1 == c->steps;
    const struct tile_codes codes = {
        .format = c->format,
        .codes = at->scale + at->within * c->step_codes,
        .zeros = stored_scales(c, at) + c->layout.scale_size, // not read if the format has none
        .lines = last ? c->last_lines : c->step_lines,
        .tiles = tiles,
        .ahead = c->rows <= AMX_ROWS ? AHEAD_BYTES : 0,
    };
    c->decode(&codes);
    if (last && c->k % 2) {
        clear_odd(tiles, c->k % c->step_k / 2);
    }
}

// Widens the scales, and the minima if there are any, to entry `slot`.
static void widen_scale(const struct tiles_call *c, const struct step_position *at, size_t slot) {
    const uint8_t *stored = stored_scales(c, at);
    const size_t g = at->step / c->scale_steps;
    group_scales_to(c->format, &c->layout, c->panel, g, stored, c->global, c->factors[slot]);
    if (c->format->minima) {
        group_minima_to(c->format, &c->layout, c->panel, g, stored, c->minima[slot]);
    }
}

// ---- products

PANEL_INLINE void load_sums(const panel_tiles *from) {
    _tile_loadd(0, (*from)[0], AMX_STEP_BYTES);
    _tile_loadd(1, (*from)[1], AMX_STEP_BYTES);
    _tile_loadd(2, (*from)[2], AMX_STEP_BYTES);
    _tile_loadd(3, (*from)[3], AMX_STEP_BYTES);
}

PANEL_INLINE void zero_sums(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

PANEL_INLINE void store_sums(panel_tiles *to) {
    _tile_stored(0, (*to)[0], AMX_STEP_BYTES);
    _tile_stored(1, (*to)[1], AMX_STEP_BYTES);
    _tile_stored(2, (*to)[2], AMX_STEP_BYTES);
    _tile_stored(3, (*to)[3], AMX_STEP_BYTES);
}

PANEL_INLINE void multiply_step(const uint8_t *x, size_t x_row, const uint8_t *codes) {
    _tile_loadd(4, x, x_row);
    _tile_loadd(5, codes, AMX_STEP_BYTES);
    _tile_loadd(6, codes + CODE_TILE_BYTES, AMX_STEP_BYTES);
    _tile_loadd(7, codes + 2 * CODE_TILE_BYTES, AMX_STEP_BYTES);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(5, codes + 3 * CODE_TILE_BYTES, AMX_STEP_BYTES);
    _tile_dpbf16ps(1, 4, 6);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 4, 5);
}

// Partial sums of a tile of rows over several scale groups.
struct closing {
    size_t tile, scales;
    const panel_tiles *partials;         // [scales]
    const panel_row *factors, *minima;   // [scales]
    const float *minus;                  // of the first row and scale group
    size_t minus_of_row, minus_of_scale; // distances of its elements
};

// Closes partial sums: sum = fma(partial, scale, sum), in the order of scales. `scales` is a constant in each copy.
PANEL_INLINE void close_rows(const struct tiles_call *c, const struct closing *closing, size_t rows, size_t scales) {
    const panel_row *stored = closing->factors;
    __m512 factors[CHUNK_STEPS][CODE_TILES];
    PANEL_UNROLL for (size_t s = 0; s < scales; s++) {
        PANEL_UNROLL for (size_t j = 0; j < CODE_TILES; j++) {
            factors[s][j] = _mm512_load_ps(&stored[s][j * LANES]);
        }
    }
    float *sums = c->sums + closing->tile * AMX_ROWS * c->stride;
    for (size_t r = 0; r < rows; r++, sums += c->stride) {
        PANEL_UNROLL for (size_t j = 0; j < CODE_TILES; j++) {
            __m512 sum = _mm512_loadu_ps(sums + j * LANES);
            PANEL_UNROLL for (size_t s = 0; s < scales; s++) {
                sum = _mm512_fmadd_ps(_mm512_load_ps(closing->partials[s][j][r]), factors[s][j], sum);
            }
            _mm512_storeu_ps(sums + j * LANES, sum);
        }
    }
}

// The same with minima: after each scale, sum = fma(minus, minimum, sum).
static void close_rows_minima(const struct tiles_call *c, const struct closing *closing, size_t rows) {
    float *sums = c->sums + closing->tile * AMX_ROWS * c->stride;
    for (size_t r = 0; r < rows; r++, sums += c->stride) {
        PANEL_UNROLL for (size_t j = 0; j < CODE_TILES; j++) {
            __m512 sum = _mm512_loadu_ps(sums + j * LANES);
            for (size_t s = 0; s < closing->scales; s++) {
                const __m512 minus = _mm512_set1_ps(closing->minus[r * closing->minus_of_row + s * closing->minus_of_scale]);
                sum = _mm512_fmadd_ps(_mm512_load_ps(closing->partials[s][j][r]), _mm512_load_ps(&closing->factors[s][j * LANES]),
                                      sum);
                sum = _mm512_fmadd_ps(minus, _mm512_load_ps(&closing->minima[s][j * LANES]), sum);
            }
            _mm512_storeu_ps(sums + j * LANES, sum);
        }
    }
}

static __attribute__((noinline)) void close_scales(const struct tiles_call *c, const struct closing *closing) {
    const size_t left = c->rows - closing->tile * AMX_ROWS, rows = left < AMX_ROWS ? left : AMX_ROWS;
    if (c->format->minima) {
        close_rows_minima(c, closing, rows);
        return;
    }
    switch (closing->scales) {
    case 1:
        close_rows(c, closing, rows, 1);
        return;
    case 2:
        close_rows(c, closing, rows, 2);
        return;
    case 3:
        close_rows(c, closing, rows, 3);
        return;
    default:
        close_rows(c, closing, rows, CHUNK_STEPS);
    }
}

// A row's sums over the scale groups that end in the packed steps, from the group that ends with `step` on.
static const float *minus_at(const struct tiles_call *c, size_t tile, size_t step) {
    return c->minus + tile * AMX_ROWS * c->packed_steps + step - c->packed_first;
}

// One tile of rows by the chunk. Returns the address after the last prefetched line.
static uintptr_t multiply_tile(const struct tiles_call *c, const struct tiles_chunk *chunk, size_t tile) {
    const size_t x_row = c->step_k * sizeof(uint16_t), x_bytes = x_tile_bytes(c), lines = chunk->lines;
    const uint8_t *x = x_tile(c, tile, chunk->first), *codes = c->tiles;
    uintptr_t ahead = chunk->ahead;
    TILES_MEMORY_BARRIER;
    for (size_t i = 0; i < chunk->scales; i++) {
        if (chunk->begins) {
            zero_sums();
        } else {
            load_sums((const panel_tiles *)&c->carried[tile]);
        }
        for (size_t s = 0; s < chunk->steps_each; s++, x += x_bytes, codes += CODE_STEP_BYTES) {
            multiply_step(x, x_row, codes);
            for (size_t l = 0; l < lines; l++, ahead += 64) {
                prefetch_into((const void *)ahead, true);
            }
        }
        store_sums(chunk->ends ? &c->partials[i] : &c->carried[tile]);
    }
    TILES_MEMORY_BARRIER;
    if (chunk->ends) {
        close_scales(c, &(struct closing){.tile = tile,
                                          .scales = chunk->scales,
                                          .partials = (const panel_tiles *)c->partials,
                                          .factors = (const panel_row *)c->factors,
                                          .minima = (const panel_row *)c->minima,
                                          .minus = minus_at(c, tile, chunk->first + chunk->steps_each - 1),
                                          .minus_of_row = c->packed_steps,
                                          .minus_of_scale = chunk->steps_each});
    }
    return ahead;
}

// The chunk at a position: as many complete scale groups as fit, or a part of one. An incomplete last step is a chunk of its own.
static struct tiles_chunk next_chunk(const struct tiles_call *c, const struct step_position *at) {
    const size_t limit = at->step < c->full_steps ? c->full_steps : c->steps, left = limit - at->step;
    const size_t left_of_scale = c->scale_steps - at->within;
    struct tiles_chunk chunk = {.first = at->step, .scales = 1, .begins = at->within == 0, .steps_each = CHUNK_STEPS};
    chunk.steps_each = chunk.steps_each < left_of_scale ? chunk.steps_each : left_of_scale;
    chunk.steps_each = chunk.steps_each < left ? chunk.steps_each : left;
    if (chunk.begins && chunk.steps_each == c->scale_steps) {
        const size_t most = CHUNK_STEPS / c->scale_steps, available = left / c->scale_steps;
        chunk.scales = most < available ? most : available;
    }
    chunk.end = at->step + chunk.scales * chunk.steps_each;
    chunk.ends = chunk.steps_each == left_of_scale || chunk.end == c->steps;
    return chunk;
}

// Widens the chunk's scales, decodes its codes to tiles, and advances the position.
static void decode_chunk(const struct tiles_call *c, const struct tiles_chunk *chunk, struct step_position *at) {
    for (size_t i = 0; i < chunk->scales; i++) {
        widen_scale(c, at, i);
        for (size_t s = 0; s < chunk->steps_each; s++, next_step(c, at)) {
            decode_step(c, at, c->tiles + (at->step - chunk->first) * CODE_STEP_BYTES);
        }
    }
}

static void configure_at(struct tiles_call *c, size_t step) {
    configure(c, (step < c->full_steps ? c->step_k : c->k - step * c->step_k + 1) / 2);
}

static void multiply_large_m(struct tiles_call *c, bool rows_packed) {
    const size_t tiles = row_tiles(c);
    for (struct step_position at = first_position(c); at.step < c->steps;) {
        if (!rows_packed && (at.step == 0 || at.step + CHUNK_STEPS > c->packed_first + c->packed_steps)) {
            pack_rows(c, at.step);
        }
        struct tiles_chunk chunk = next_chunk(c, &at);
        const uint8_t *codes = at.scale + at.within * c->step_codes;
        configure_at(c, at.step);
        decode_chunk(c, &chunk, &at);
        chunk.ahead = (uintptr_t)codes + AHEAD_BYTES;
        const size_t bytes = (uintptr_t)(at.scale + at.within * c->step_codes) - (uintptr_t)codes;
        const size_t passed = tiles * (chunk.end - chunk.first); // steps of all tiles of rows
        INVARIANT(passed > 0);
        chunk.lines = div_up(bytes, 64 * passed);
        for (size_t t = 0; t < tiles; t++) {
            chunk.ahead = multiply_tile(c, &chunk, t);
        }
    }
}

// One tile of rows, step by step. The next step is decoded while a step is multiplied. Partial sums stay in tiles for a whole scale
// group, and are closed one scale group later, because loads right after a tile's store would wait for it.
static void multiply_small_m(struct tiles_call *c, bool rows_packed) {
    struct step_position at = first_position(c), decoded = at;
    float minus[AMX_ROWS];
    struct closing unclosed = {.scales = 1, .minus = minus, .minus_of_row = 1};
    size_t slot = 0;
    decode_step(c, &decoded, c->tiles);
    for (; at.step < c->steps; next_step(c, &at)) {
        const uint8_t *tiles = c->tiles + at.step % CHUNK_STEPS * CODE_STEP_BYTES;
        if (!rows_packed && (at.step == 0 || at.step == c->packed_first + c->packed_steps)) {
            pack_rows(c, at.step);
        }
        next_step(c, &decoded);
        if (decoded.step < c->steps) {
            decode_step(c, &decoded, c->tiles + decoded.step % CHUNK_STEPS * CODE_STEP_BYTES);
        }
        TILES_MEMORY_BARRIER;
        if (at.step == 0 || at.step == c->full_steps) { // the steps' size changes; configuring clears the tiles
            const bool begun = at.within > 0;
            if (begun) {
                store_sums(c->carried);
            }
            configure_at(c, at.step);
            if (begun) {
                load_sums((const panel_tiles *)c->carried);
            }
        }
        if (at.within == 0) {
            zero_sums();
        }
        multiply_step(x_tile(c, 0, at.step), c->step_k * sizeof(uint16_t), tiles);
        if (at.within + 1 == c->scale_steps || at.step + 1 == c->steps) {
            store_sums(&c->partials[slot]);
            widen_scale(c, &at, slot);
            if (unclosed.partials) {
                close_scales(c, &unclosed);
            }
            TILES_MEMORY_BARRIER;
            unclosed.partials = (const panel_tiles *)&c->partials[slot];
            unclosed.factors = (const panel_row *)&c->factors[slot], unclosed.minima = (const panel_row *)&c->minima[slot];
            for (size_t r = 0; c->format->minima && r < c->rows;
                 r++) { // a copy, since other rows' steps may be packed before it is used
                minus[r] = minus_at(c, 0, at.step)[r * c->packed_steps];
            }
            slot = (slot + 1) % CHUNK_STEPS;
        }
    }
    close_scales(c, &unclosed);
}

static void multiply_panel(struct tiles_call *c, bool rows_packed) {
    c->global = panel_global(c->format, c->panel);
    for (size_t r = 0; r < c->rows; r++) {
        memset(c->sums + r * c->stride, 0, EXPERTD_KERNEL_PANEL * sizeof *c->sums);
    }
    if (c->steps > 0) {
        (c->rows <= AMX_ROWS ? multiply_small_m : multiply_large_m)(c, rows_packed);
    }
}

// ---- calls

static tile_codes_decoder *decoder_of(const struct expertd_quantised_format *format) {
    switch (format->code) {
    case EXPERTD_CODE_E2M1:
    case EXPERTD_CODE_UINT4:
    case EXPERTD_CODE_IQ4:
        return tile_codes_nibble;
    case EXPERTD_CODE_INT4:
        return format->zero_points ? tile_codes_nibble_zero_point : tile_codes_nibble;
    case EXPERTD_CODE_INT8:
        return format->zero_points ? tile_codes_int8_zero_point : tile_codes_int8;
    default:
        return tile_codes_float8;
    }
}

static struct tiles_call call_of(const struct expertd_quantised_format *format, const void *const *x, size_t rows, size_t k) {
    struct tiles_call c = {.format = format,
                           .layout = quantised_layout(format, k),
                           .decode = decoder_of(format),
                           .x = x,
                           .rows = rows,
                           .k = k,
                           .step_k = quantised_tile_k(format)};
    c.full_steps = k / c.step_k;
    c.steps = div_up(k, c.step_k);
    c.scale_steps = div_up(c.layout.scale_k, c.step_k);
    c.step_lines = c.step_k / c.layout.line_k;
    c.step_codes = quantised_code_bytes(&c.layout, c.step_k);
    if (k > 0) {
        c.last_lines = div_up(k - (c.steps - 1) * c.step_k, c.layout.line_k);
        c.last_scale = (c.layout.scales - 1) * c.scale_steps;
        c.last_codes = quantised_code_bytes(&c.layout, quantised_depth(&c.layout, c.layout.scales - 1, k));
    }
    return c;
}

enum {
    FIXED_SCRATCH = CHUNK_STEPS * (CODE_STEP_BYTES + sizeof(panel_tiles) + 2 * sizeof(panel_row)),
    TILE_SUMS_BYTES = AMX_ROWS * sizeof(float), // with minima, of a tile of rows and a step
};

// Bytes of a step of a tile of rows.
static size_t step_bytes(const struct tiles_call *c) {
    return x_tile_bytes(c) + (c->format->minima ? TILE_SUMS_BYTES : 0);
}

// Divides `bytes` of scratch, 64-byte aligned. True: rows can be packed for all of K; false: for packed_steps steps at a time.
static bool split_scratch(struct tiles_call *c, uint8_t *scratch, size_t bytes) {
    c->tiles = scratch;
    c->partials = (panel_tiles *)(c->tiles + CHUNK_STEPS * CODE_STEP_BYTES);
    c->factors = (panel_row *)(c->partials + CHUNK_STEPS);
    c->minima = c->factors + CHUNK_STEPS;
    c->carried = (panel_tiles *)(c->minima + CHUNK_STEPS);
    c->x_tiles = (uint8_t *)(c->carried + row_tiles(c));
    const size_t steps_max = (bytes - (size_t)(c->x_tiles - scratch)) / step_bytes(c) / row_tiles(c);
    c->packed_steps = steps_max < c->steps ? steps_max : c->steps;
    c->minus = (float *)(c->x_tiles + row_tiles(c) * c->packed_steps * x_tile_bytes(c));
    return steps_max >= c->steps;
}

_Static_assert(FIXED_SCRATCH +
                       KERNEL_CALL_ROWS / AMX_ROWS * (sizeof(panel_tiles) + CHUNK_STEPS * (CODE_TILE_BYTES + TILE_SUMS_BYTES)) <=
                   KERNEL_SCRATCH_BYTES,
               "scratch holds a chunk of all rows");

// Not inlined: no fma may move across a change of the floating-point mode in the caller.
static __attribute__((noinline)) void multiply_macrokernel(struct tiles_call *c, const struct macrokernel_args *macro) {
    const bool fits = split_scratch(c, macro->scratch, KERNEL_SCRATCH_BYTES + macro->scratch_more);
    if (fits && !macro->rows_cached) {
        pack_rows(c, 0);
    }
    c->stride = KERNEL_SUMS;
    for (size_t p = 0; p < macro->count; p++) {
        c->panel = macro->panels[p];
        c->sums = macro->sums + p * EXPERTD_KERNEL_PANEL;
        multiply_panel(c, fits);
    }
    _tile_release();
}

// Up to this m, other kernels give the same bits faster: tiles take as long for one row as for 16, decoding INT8 is expensive, and
// steps of 16 k leave tiles half empty. integer: avx512vnni_quantised_integer_amx_order takes the format.
static size_t small_m_rows(const struct expertd_quantised_format *format, bool integer) {
    enum { INTEGER_ROWS_OF_16 = 5 };
    const bool half_empty = quantised_tile_k(format) < CODE_STEP_K;
    if (half_empty && integer) {
        return INTEGER_ROWS_OF_16;
    }
    return half_empty || format->code == EXPERTD_CODE_INT8 ? SMALL_M_AMX_ORDER_ROWS : SMALL_M_AMX_ORDER_ROWS - 1;
}

void amxvbmi_quantised_macrokernel_bf16(const struct macrokernel_args *macro, const struct expertd_quantised_format *format) {
    if (macro->k == 0) {
        clear_sums(macro);
        return;
    }
    const bool integer = avx512vnni_integer_rows(format, macro->k) > 0;
    if (macro->rows > small_m_rows(format, integer)) {
        struct tiles_call c = call_of(format, macro->x, macro->rows, macro->k);
        float_mode before = float_mode_set_ieee();
        multiply_macrokernel(&c, macro);
        float_mode_restore(before);
    } else if (!(integer ? avx512vnni_quantised_integer_amx_order : avx512vbmi_quantised_small_m_amx_order)(macro, format)) {
        // Uses no scratch: it must stay as the failed call left it, for calls with rows_cached.
        macrokernel_panel_by_panel(macro, format, amxvbmi_quantised_bf16);
    }
}

size_t amxvbmi_quantised_span(const struct expertd_quantised_format *format, size_t k) {
    const struct tiles_call one = call_of(format, NULL, AMX_ROWS, k);
    const size_t tile_bytes = sizeof(panel_tiles) + one.steps * step_bytes(&one);
    return (KERNEL_DIGITS_CACHED - FIXED_SCRATCH) / tile_bytes * AMX_ROWS;
}

enum { ONE_SCRATCH = FIXED_SCRATCH + sizeof(panel_tiles) + 8 * CODE_TILE_BYTES };

static __attribute__((noinline)) void multiply_one(const struct panel_args *args, const struct expertd_quantised_format *format) {
    _Alignas(ALIGNMENT) uint8_t scratch[ONE_SCRATCH];
    _Alignas(ALIGNMENT) float sums[AMX_ROWS][EXPERTD_KERNEL_PANEL];
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = args->rows - row < AMX_ROWS ? args->rows - row : AMX_ROWS;
        struct tiles_call c = call_of(format, args->x + row, rows, args->k);
        const bool fits = split_scratch(&c, scratch, sizeof scratch);
        if (fits) {
            pack_rows(&c, 0);
        }
        c.panel = args->panel;
        c.sums = sums[0], c.stride = EXPERTD_KERNEL_PANEL;
        multiply_panel(&c, fits);
        for (size_t r = 0; r < rows; r++) {
            memcpy(args->out + (row + r) * args->out_stride, sums[r], args->columns * sizeof(float));
        }
    }
    _tile_release();
}

void amxvbmi_quantised_bf16(const struct panel_args *args, const struct expertd_quantised_format *format) {
    float_mode before = float_mode_set_ieee();
    multiply_one(args, format);
    float_mode_restore(before);
}
#endif
