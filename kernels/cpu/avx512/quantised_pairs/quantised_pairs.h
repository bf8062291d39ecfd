// Quantised weights against rows of bf16 by VDPBF16PS: what the files of that kind share. Private to cpu/quantised_*.
//
// VDPBF16PS flushes whatever MXCSR says, and the closing fma is IEEE's: all of it runs in IEEE's default mode. Codes become bf16,
// pairs of k by 16 columns, in registers. Each way of decoding is a file of its own, and compiles in seconds.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_PAIRS_QUANTISED_PAIRS_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_PAIRS_QUANTISED_PAIRS_H

#include "kernels/cpu/common/prefetch_distance.h"
#include "kernels/cpu/common/quantised_chunk.h"

enum {
    PAIRS_SMALL_M = 4, // rows that a panel is read for once, from its start to its end
    PAIRS_TILE = 12,   // rows at once of more, at most
    // Words from a pair of k of a tile's rows to the next pair: of more rows than the fewer, the more.
    PAIRS_X_SMALL_M = 8,
    PAIRS_X = 16,
};

typedef uint16_t pairs_row[2 * EXPERTD_KERNEL_PANEL] __attribute__((aligned(64))); // a pair of k of the panel's columns

// Some scales of a panel, each of whole lines of codes.
struct pairs_scales {
    const struct expertd_quantised_format *format;
    const uint8_t *panel;   // its header
    const uint8_t *codes;   // of the first scale
    size_t scales, stride;  // bytes from one scale's codes to the next one's
    size_t scale_k, last_k; // k of each but the last, and of the last
};

// Against a few rows.
struct pairs_small_m {
    struct pairs_scales scales;
    const uint16_t *const *x; // [rows], each from the first scale's first k on
    panel_row *sums;          // [rows]: sum = fma(partial, scale, sum), scales ascending
};

// Against a tile of rows whose words have been turned: all rows' first pair of k, then their second. Of a part of one scale too.
struct pairs_tile {
    struct pairs_scales scales;
    bool starts, ends;                 // a scale: else from the partials that are there; else they are left there
    const uint32_t *x;                 // [pairs][PAIRS_X_SMALL_M or PAIRS_X]
    const panel_row *factors;          // [scales], widened; NULL: each is widened where it ends, from behind its codes
    size_t stored_bytes;               // a column's so long there, 0 where there is one for the panel
    bool powers;                       // pairs_powers: of scales the exponents
    const uint8_t *zeros, *last_zeros; // points of the first scale, `stride` apart, and of the last; NULL: there are none
    float *partials, *sums;            // [rows], KERNEL_SUMS apart
    uintptr_t ahead;                   // what is fetched into L2 with the first line of codes of 16 columns
    size_t ahead_step;                 // bytes further with each line
};

// Products that a CPU starts in a cycle: one on Zen 4, two on Zen 5. Their results are there six cycles later on both.
enum pairs_pace { PAIRS_ONE_A_CYCLE, PAIRS_TWO_A_CYCLE, PAIRS_PACES };

static inline enum pairs_pace pairs_pace(void) {
    return prefetch_as_zen4() ? PAIRS_ONE_A_CYCLE : PAIRS_TWO_A_CYCLE;
}

struct pairs_decoder {
    size_t line_k;
    void (*small_m[PAIRS_PACES][PAIRS_SMALL_M])(const struct pairs_small_m *args); // by rows - 1
    void (*tile[PAIRS_PACES][PAIRS_TILE])(struct pairs_tile *args);                // by rows - 1, from PAIRS_SMALL_M + 1 rows on
    // wide[i] = the pair i of `depth` k; writes on to the end of the last line, an odd tail's second half is whatever it holds
    void (*widen)(const struct expertd_quantised_format *format, const uint8_t *codes, const uint8_t *zeros, size_t depth,
                  pairs_row *wide);
};

extern const struct pairs_decoder pairs_nibble, pairs_nibble_zero_point, pairs_float8, pairs_int8, pairs_int8_zero_point;
// Of what `widen` wrote, for rows so many that to decode once for all is faster. Tiles alone.
extern const struct pairs_decoder pairs_widened;

// Of E4M3 whose panel has no NaN, where one product starts in a cycle. Tiles alone.
extern const struct pairs_decoder pairs_e4m3;

const struct pairs_decoder *pairs_decoder_of(const struct expertd_quantised_format *format);

// Scales that are powers of two need no multiplication, of which the products leave no room: sum += scalef(partial, exponent).
// That is fma(partial, scale, sum) where scalef is exact: where it raises neither overflow nor underflow, as MXCSR says after
// pairs_large_m. On Zen 4 its ports are the adder's; to decode 8 bits takes those too. On Zen 5 it takes half a product's place,
// and eight rows of MXFP4 are .96 as fast so.
static inline bool pairs_powers(const struct expertd_quantised_format *format, enum pairs_pace pace) {
    return pace == PAIRS_ONE_A_CYCLE && format->scale == EXPERTD_DTYPE_F8_E8M0 && code_has_4_bits(format->code) &&
           !format->scale_of_panel;
}

// More than PAIRS_SMALL_M rows against panels; K is of whole lines of codes. Sums are added to those of group, whose scratch is of
// scratch_bytes.
void pairs_large_m(const struct macrokernel_args *group, const struct expertd_quantised_format *format, size_t scratch_bytes,
                   enum pairs_pace pace, bool powers);
enum { PAIRS_PART = 40 };                // rows of a call with a single panel at most
enum { PAIRS_PART_SCRATCH = 128 << 10 }; // bytes of its scratch

// Any number of rows: quantised_group_bf16 as if the CPU had that pace.
void pairs_macrokernel(const struct macrokernel_args *group, const struct expertd_quantised_format *format, enum pairs_pace pace);

#endif
