// bf16 rows against panels of 4-bit codes with scale groups of 16 or 32 k, in exact integer arithmetic where that has the bits of
// the contract's FMAs (integer_rows.h).
//
// Rows are converted once for all panels of a call and stay cached for the following calls with the same rows. Where the scratch
// cannot hold all of K, rows are converted block by block and the sums pass through memory. Everything runs in IEEE mode:
// integer_rows_add refuses rows that the flush could change.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/avx512/quantised/panel_scales_avx512.h"
#include "kernels/cpu/avx512/quantised_integer/integer_scale_group.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/prefetch_distance.h"
#include "kernels/cpu/common/quantised_chunk.h"

enum { LANES = 16, ALIGNMENT = 64 };

static enum integer_decode decode_of(const struct expertd_quantised_format *format) {
    return format->code == EXPERTD_CODE_E2M1 ? INTEGER_E2M1 : format->zero_points ? INTEGER_INT4_ZERO_POINT : INTEGER_INT4;
}

static struct integer_code_range code_range_of(enum integer_decode decode) {
    switch (decode) {
    case INTEGER_E2M1:
        return (struct integer_code_range){12, 0.5f};
    case INTEGER_INT4:
        return (struct integer_code_range){EXPERTD_INT4_ZERO_MAX / 2, 1.0f};
    default:
        return (struct integer_code_range){EXPERTD_INT4_ZERO_MAX, 1.0f};
    }
}

// The head of a call's scratch.
struct cached_rows {
    struct integer_rows rows;
    size_t scales; // scale groups of a block
    bool accepted; // integer_rows_add accepted every row
};

struct call {
    const struct macrokernel_args *macro;
    const struct expertd_quantised_format *format;
    struct quantised_layout layout;
    bool amx_order; // see struct integer_scale_group
    struct cached_rows *cached_rows;
    panel_row *sums; // [rows] of the current panel
};

_Static_assert(KERNEL_CALL_ROWS <= UINT8_MAX, "a row number fits a byte");
_Static_assert(sizeof(struct cached_rows) + 3 * ALIGNMENT +
                       KERNEL_CALL_ROWS * (sizeof(panel_row) + sizeof(struct integer_slot) + 1 + VNNI_DIGITS * VNNI_SCALE_K) <=
                   KERNEL_SCRATCH_BYTES,
               "scratch holds a block of at least one scale group");

static char *align_up(char *at) {
    return (char *)(((uintptr_t)at + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

// Divides the scratch. A block is as many scale groups as fit.
static void divide_scratch(struct call *c) {
    const struct macrokernel_args *macro = c->macro;
    c->cached_rows = macro->scratch;
    c->sums = (panel_row *)align_up((char *)(c->cached_rows + 1));
    char *at = (char *)(c->sums + macro->rows), *end = (char *)macro->scratch + KERNEL_SCRATCH_BYTES + macro->scratch_more;
    if (macro->rows_cached) {
        return;
    }
    struct integer_rows *rows = &c->cached_rows->rows;
    *rows = (struct integer_rows){.rows = macro->rows, .scale_k = c->layout.scale_k};
    const size_t scale_bytes = integer_rows_bytes(rows, 1) + integer_digits_bytes(rows, 1);
    const size_t capacity = ((size_t)(end - at) - ALIGNMENT) / scale_bytes;
    c->cached_rows->scales = capacity < c->layout.scales ? capacity : c->layout.scales;
    rows->slots = (struct integer_slot *)at;
    rows->count = (uint8_t(*)[INTEGER_CLASSES + 1])(rows->slots + c->cached_rows->scales * rows->rows);
    rows->inexact_rows = (uint8_t *)(rows->count + c->cached_rows->scales);
    rows->digits = (int8_t *)align_up((char *)(rows->inexact_rows + c->cached_rows->scales * rows->rows));
}

// Converts the rows of scale groups [first, first + scales).
static void convert_rows(const struct call *c, size_t first, size_t scales) {
    const struct macrokernel_args *macro = c->macro;
    const struct integer_code_range range = code_range_of(decode_of(c->format));
    const size_t scale_k = c->layout.scale_k;
    struct cached_rows *cached_rows = c->cached_rows;
    cached_rows->accepted = true;
    memset(cached_rows->rows.count, 0, scales * sizeof *cached_rows->rows.count);
    for (size_t r = 0; r < macro->rows && cached_rows->accepted; r++) {
        cached_rows->accepted =
            integer_rows_add(&cached_rows->rows, r, (const uint16_t *)macro->x[r] + first * scale_k, scales * scale_k, range);
    }
}

static void load_scales(const struct call *c, const uint8_t *stored, __m512 global, float *factors, float *zeros) {
    const size_t bytes = quantised_scale_bytes(c->format);
    panel_scales_to(c->format, stored, global, factors);
    for (size_t at = 0; at < bytes; at += QUANTISED_LINE) {
        prefetch_line(stored + at, PREFETCH_CODES_INTEL);
    }
    for (size_t v = 0; c->format->zero_points && v < EXPERTD_KERNEL_PANEL; v += LANES) {
        const __m128i points = _mm_loadu_si128((const __m128i *)(stored + bytes + v));
        _mm512_store_ps(zeros + v, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(points)));
    }
}

// Scale groups [first, first + scales), ascending.
static void multiply_panel(const struct call *c, const uint8_t *panel, size_t first, size_t scales) {
    const struct integer_rows *rows = &c->cached_rows->rows;
    const __m512 global = panel_global(c->format, panel);
    panel_row factors, zeros;
    struct integer_scale_group s = {.decode = decode_of(c->format),
                                    .amx_order = c->amx_order,
                                    .lines = c->layout.scale_k / VNNI_LINE_K,
                                    .codes = panel + quantised_codes_at(&c->layout, first),
                                    .factors = factors,
                                    .zeros = zeros,
                                    .rows = rows->rows,
                                    .inexact_rows = rows->inexact_rows,
                                    .slots = rows->slots,
                                    .digits = rows->digits,
                                    .x = c->macro->x,
                                    .k = first * rows->scale_k,
                                    .to = c->sums};
    for (size_t i = 0; i < scales; i++) {
        s.count = rows->count[i];
        load_scales(c, s.codes + c->layout.codes, global, factors, zeros);
        integer_scale_group_exact(&s);
        if (s.count[INTEGER_INEXACT]) {
            integer_scale_group_fma(&s);
        }
        s.codes += c->layout.stride;
        s.inexact_rows += rows->rows;
        s.slots += rows->rows;
        s.digits += VNNI_DIGITS * rows->rows * rows->scale_k;
        s.k += rows->scale_k;
    }
}

// noinline: no FMA may move across the caller's change of the floating-point mode.
static __attribute__((noinline)) bool multiply(struct call *c) {
    divide_scratch(c);
    const size_t block = c->cached_rows->scales, all_scales = c->layout.scales;
    for (size_t first = 0, scales; first < all_scales; first += scales) {
        scales = all_scales - first < block ? all_scales - first : block;
        if (!c->macro->rows_cached || block < all_scales) {
            convert_rows(c, first, scales);
        }
        for (size_t p = 0; c->cached_rows->accepted && p < c->macro->count; p++) {
            panel_sums_load(c->macro, p, first == 0, c->sums);
            multiply_panel(c, c->macro->panels[p], first, scales);
            panel_sums_store(c->macro, p, c->sums);
        }
        if (!c->cached_rows->accepted) {
            return false;
        }
    }
    return true;
}

static bool is_supported(const struct expertd_quantised_format *format, const struct quantised_layout *layout, size_t k) {
    const bool code = format->code == EXPERTD_CODE_E2M1 || format->code == EXPERTD_CODE_INT4;
    return code && !layout->super_size && (layout->scale_k == VNNI_SCALE_K || layout->scale_k == VNNI_SCALE_K / 2) && k > 0 &&
           k % layout->scale_k == 0;
}

size_t avx512vnni_integer_rows(const struct expertd_quantised_format *format, size_t k) {
    const struct quantised_layout layout = quantised_layout(format, k);
    const struct integer_rows one = {.rows = 1, .scale_k = layout.scale_k};
    if (!is_supported(format, &layout, k)) {
        return 0;
    }
    const size_t row_bytes =
        integer_rows_bytes(&one, layout.scales) + integer_digits_bytes(&one, layout.scales) + sizeof(panel_row);
    return (KERNEL_DIGITS_CACHED - sizeof(struct cached_rows) - 2 * ALIGNMENT) / row_bytes;
}

static bool multiply_macrokernel(const struct macrokernel_args *macro, const struct expertd_quantised_format *format,
                                 bool amx_order) {
    struct call c = {.macro = macro, .format = format, .layout = quantised_layout(format, macro->k), .amx_order = amx_order};
    if (!is_supported(format, &c.layout, macro->k)) {
        return false;
    }
    float_mode before = float_mode_set_ieee();
    bool done = multiply(&c);
    float_mode_restore(before);
    return done;
}

bool avx512vnni_quantised_integer(const struct macrokernel_args *macro, const struct expertd_quantised_format *format) {
    return multiply_macrokernel(macro, format, false);
}

// The order of additions does not matter to exact sums.
bool avx512vnni_quantised_integer_amx_order(const struct macrokernel_args *macro, const struct expertd_quantised_format *format) {
    return multiply_macrokernel(macro, format, true);
}
#endif
