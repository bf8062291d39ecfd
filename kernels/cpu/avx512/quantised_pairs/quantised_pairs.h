// Quantised weights against bf16 rows by VDPBF16PS: the declarations that these files share. Private to kernels/cpu.
//
// VDPBF16PS flushes regardless of MXCSR, and the FMA that closes a partial sum is IEEE's, so all code runs in IEEE mode. Codes
// become bf16 in registers: a pair of k of 16 columns a vector. Each decoder is compiled in a file of its own, to keep compile
// times short.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_PAIRS_QUANTISED_PAIRS_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_PAIRS_QUANTISED_PAIRS_H

#include "kernels/cpu/common/prefetch_distance.h"
#include "kernels/cpu/common/quantised_chunk.h"

enum {
    PAIRS_SMALL_M = 4, // small m: rows up to which a panel is read once, from start to end, without tiles
    PAIRS_TILE = 12,   // rows of a tile at most
    // Words between two pairs of k in a tile's transposed rows: tiles of up to PAIRS_X_SMALL_M rows, larger tiles.
    PAIRS_X_SMALL_M = 8,
    PAIRS_X = 16,
};

typedef uint16_t pairs_row[2 * EXPERTD_KERNEL_PANEL] __attribute__((aligned(64))); // one pair of k of the panel's columns

// Scale groups of a panel, each of full lines of codes.
struct pairs_scales {
    const struct expertd_quantised_format *format;
    const uint8_t *panel;   // from its header on
    const uint8_t *codes;   // of the first scale group
    size_t scales, stride;  // stride: bytes from one scale group's codes to the next one's
    size_t scale_k, last_k; // k of each scale group but the last, and of the last
    const uint8_t *supers;  // super scales of the first scale group, which is the first of its EXPERTD_SUPER_K k; NULL: none
    size_t super_size;      // bytes from one group of super scales to the next one
};

// Small m by scale groups.
struct pairs_small_m {
    struct pairs_scales scales;
    const uint16_t *const *x; // [rows], from the first scale group's first k on
    panel_row *sums;          // [rows]: sum = fma(partial, scale, sum), scale groups ascending
    const float *minus;       // with minima: -(the sum of each row over each scale group), rows minus_stride apart; NULL: no minima
    size_t minus_stride;
};

// A tile of transposed rows (the first pair of k of all rows, then the second, ...) by scale groups, or by a part of one.
struct pairs_tile {
    struct pairs_scales scales;
    bool starts, ends;                 // of a scale group; else partial sums are read from `partials`, or left there
    const uint32_t *x;                 // [pairs][PAIRS_X_SMALL_M or PAIRS_X]
    const panel_row *factors;          // [scales], widened; NULL: the tile widens the stored scales
    size_t stored_bytes;               // factors NULL: bytes of a column's stored scale; 0: the panel has a single one
    bool powers;                       // see pairs_powers: scales are widened to their exponents
    const uint8_t *zeros, *last_zeros; // of the first scale group, `stride` bytes apart, and of the last; NULL: none
    const panel_row *minima;           // [scales], widened; NULL: none
    const float *minus;                // as in struct pairs_small_m
    size_t minus_stride;
    float *partials, *sums; // [rows], KERNEL_SUMS apart
    uintptr_t ahead;        // address that the first line of codes of 16 columns prefetches into L2
    size_t ahead_step;      // bytes by which it advances with each line
};

// 512-bit products that a CPU starts in a cycle: one on Zen 4, two on Zen 5. The latency is six cycles on both.
enum pairs_pace { PAIRS_ONE_A_CYCLE, PAIRS_TWO_A_CYCLE, PAIRS_PACES };

static inline enum pairs_pace pairs_pace(void) {
    return prefetch_as_zen4() ? PAIRS_ONE_A_CYCLE : PAIRS_TWO_A_CYCLE;
}

struct pairs_decoder {
    size_t line_k;
    void (*small_m[PAIRS_PACES][PAIRS_SMALL_M])(const struct pairs_small_m *args); // [rows - 1]
    void (*tile[PAIRS_PACES][PAIRS_TILE])(struct pairs_tile *args);                // [rows - 1], for more than PAIRS_SMALL_M rows
    // wide[i] = pair i of `depth` k. May write to the end of the last line of codes; after an odd depth, the last pair's second
    // half is undefined.
    void (*widen)(const struct expertd_quantised_format *format, const uint8_t *codes, const uint8_t *zeros, size_t depth,
                  pairs_row *wide);
};

extern const struct pairs_decoder pairs_nibble, pairs_nibble_zero_point, pairs_float8, pairs_int8, pairs_int8_zero_point;
// For codes that `widen` has decoded into memory: with many rows one decoding serves several tiles. Tiles only.
extern const struct pairs_decoder pairs_widened;

// For E4M3 in panels without NaN on CPUs that start one product a cycle. Tiles only.
extern const struct pairs_decoder pairs_e4m3;

const struct pairs_decoder *pairs_decoder_of(const struct expertd_quantised_format *format);

// Should partial sums be closed by sum += scalef(partial, exponent) instead of an FMA? For scales that are powers of two only. The
// result is fma(partial, scale, sum) if scalef is exact, that is if MXCSR shows neither overflow nor underflow after pairs_large_m.
// VSCALEFPS runs on Zen 4's adder ports, in parallel with the products; decoding 8-bit codes needs those ports itself. On Zen 5 it
// takes half a product's slot, and eight rows of MXFP4 are .96 as fast with it.
static inline bool pairs_powers(const struct expertd_quantised_format *format, enum pairs_pace pace) {
    return pace == PAIRS_ONE_A_CYCLE && format->scale == EXPERTD_DTYPE_F8_E8M0 && code_has_4_bits(format->code) &&
           !format->scale_of_panel;
}

// More than PAIRS_SMALL_M rows by panels; k is a multiple of a line of codes. Adds to macro->sums. macro->scratch has scratch_bytes
// bytes. panel_k: k of the panels, of which those after macro->k are left out.
void pairs_large_m(const struct macrokernel_args *macro, size_t panel_k, const struct expertd_quantised_format *format,
                   size_t scratch_bytes, enum pairs_pace pace, bool powers);
enum { PAIRS_PART = 40 };                // rows at most of a call with a single panel
enum { PAIRS_PART_SCRATCH = 128 << 10 }; // bytes of scratch of such a call

// avx512bf16vbmi_quantised_macrokernel_bf16, for any number of rows, as on a CPU of that pace.
void pairs_macrokernel(const struct macrokernel_args *macro, const struct expertd_quantised_format *format, enum pairs_pace pace);

#endif
