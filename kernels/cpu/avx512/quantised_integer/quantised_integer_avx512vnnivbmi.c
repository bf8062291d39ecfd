// Rows of bf16 against panels of 4-bit codes whose scales are of 16 or 32 k, in whole numbers, where their sums have the bits of
// the contract's fmas (quantised_integer.h).
//
// Rows are made ready once for all panels of a call, and stay for the calls after it that are for the same rows; where there is no
// room for the whole of K they are made ready block by block, and sums go through memory. It all runs in IEEE's default mode:
// integer_rows.h takes no row that the flush of bf16 sums could touch.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/avx512/quantised/panel_scales_avx512.h"
#include "kernels/cpu/avx512/quantised_integer/integer_scale_group.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/prefetch_distance.h"
#include "kernels/cpu/common/quantised_chunk.h"

enum { LANES = 16, ALIGNMENT = 64 };

static enum integer_decode decode_of(const struct expertd_quantised_format *format) {
    return format->code == EXPERTD_CODE_E2M1 ? INTEGER_E2M1 : format->zero_points ? INTEGER_INT4_ZERO_POINT : INTEGER_INT4;
}

static struct integer_kind kind_of(enum integer_decode decode) {
    switch (decode) {
    case INTEGER_E2M1:
        return (struct integer_kind){12, 0.5f};
    case INTEGER_INT4:
        return (struct integer_kind){EXPERTD_INT4_ZERO_MAX / 2, 1.0f};
    default:
        return (struct integer_kind){EXPERTD_INT4_ZERO_MAX, 1.0f};
    }
}

// In a call's scratch.
struct cached {
    struct integer_rows rows;
    size_t scales; // of a block
    bool taken;    // every row could be
};

struct call {
    const struct macrokernel_args *group;
    const struct expertd_quantised_format *format;
    struct quantised_layout layout;
    bool apart; // struct integer_scale's
    struct cached *cached;
    panel_row *sums; // [rows] of the panel at hand
};

_Static_assert(KERNEL_CALL_ROWS <= UINT8_MAX, "rows are told apart by a byte");
_Static_assert(sizeof(struct cached) + 3 * ALIGNMENT +
                       KERNEL_CALL_ROWS * (sizeof(panel_row) + sizeof(struct integer_place) + 1 + VNNI_DIGITS * VNNI_SCALE_K) <=
                   KERNEL_SCRATCH_BYTES,
               "a block has a scale at least");

static char *align_up(char *at) {
    return (char *)(((uintptr_t)at + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

// Where things lie. As many scales as there is room for are a block.
static void place(struct call *c) {
    const struct macrokernel_args *group = c->group;
    c->cached = group->scratch;
    c->sums = (panel_row *)align_up((char *)(c->cached + 1));
    char *at = (char *)(c->sums + group->rows), *end = (char *)group->scratch + KERNEL_SCRATCH_BYTES + group->scratch_more;
    if (group->rows_cached) {
        return;
    }
    struct integer_rows *rows = &c->cached->rows;
    *rows = (struct integer_rows){.rows = group->rows, .scale_k = c->layout.scale_k};
    const size_t scale_bytes = integer_rows_bytes(rows, 1) + integer_digits_bytes(rows, 1);
    const size_t room = ((size_t)(end - at) - ALIGNMENT) / scale_bytes;
    c->cached->scales = room < c->layout.scales ? room : c->layout.scales;
    rows->places = (struct integer_place *)at;
    rows->count = (uint8_t(*)[INTEGER_CLASSES + 1])(rows->places + c->cached->scales * rows->rows);
    rows->not_whole = (uint8_t *)(rows->count + c->cached->scales);
    rows->digits = (int8_t *)align_up((char *)(rows->not_whole + c->cached->scales * rows->rows));
}

// Of the scales from `first` on.
static void make_rows(const struct call *c, size_t first, size_t scales) {
    const struct macrokernel_args *group = c->group;
    const struct integer_kind kind = kind_of(decode_of(c->format));
    const size_t scale_k = c->layout.scale_k;
    struct cached *cached = c->cached;
    cached->taken = true;
    memset(cached->rows.count, 0, scales * sizeof *cached->rows.count);
    for (size_t r = 0; r < group->rows && cached->taken; r++) {
        cached->taken = integer_rows_add(&cached->rows, r, (const uint16_t *)group->x[r] + first * scale_k, scales * scale_k, kind);
    }
}

static void load_factors(const struct call *c, const uint8_t *stored, __m512 global, float *factors, float *zeros) {
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

// Scales [first, first + scales), ascending.
static void multiply_panel(const struct call *c, const uint8_t *panel, size_t first, size_t scales) {
    const struct integer_rows *rows = &c->cached->rows;
    const __m512 global = panel_global(c->format, panel);
    panel_row factors, zeros;
    struct integer_scale s = {.decode = decode_of(c->format),
                              .apart = c->apart,
                              .lines = c->layout.scale_k / VNNI_LINE_K,
                              .codes = panel + quantised_codes_at(&c->layout, first),
                              .factors = factors,
                              .zeros = zeros,
                              .rows = rows->rows,
                              .not_whole = rows->not_whole,
                              .places = rows->places,
                              .digits = rows->digits,
                              .x = c->group->x,
                              .k = first * rows->scale_k,
                              .to = c->sums};
    for (size_t i = 0; i < scales; i++) {
        s.count = rows->count[i];
        load_factors(c, s.codes + c->layout.codes, global, factors, zeros);
        integer_scale_words(&s);
        if (s.count[INTEGER_NOT]) {
            integer_scale_fmas(&s);
        }
        s.codes += c->layout.stride;
        s.not_whole += rows->rows;
        s.places += rows->rows;
        s.digits += VNNI_DIGITS * rows->rows * rows->scale_k;
        s.k += rows->scale_k;
    }
}

// Not inlined: no fma may move across a change of the floating-point mode in the caller.
static __attribute__((noinline)) bool multiply(struct call *c) {
    place(c);
    const size_t block = c->cached->scales, all = c->layout.scales;
    for (size_t first = 0, scales; first < all; first += scales) {
        scales = all - first < block ? all - first : block;
        if (!c->group->rows_cached || block < all) {
            make_rows(c, first, scales);
        }
        for (size_t p = 0; c->cached->taken && p < c->group->count; p++) {
            panel_sums_load(c->group, p, first == 0, c->sums);
            multiply_panel(c, c->group->panels[p], first, scales);
            panel_sums_store(c->group, p, c->sums);
        }
        if (!c->cached->taken) {
            return false;
        }
    }
    return true;
}

static bool takes(const struct expertd_quantised_format *format, const struct quantised_layout *layout, size_t k) {
    return code_has_4_bits(format->code) && (layout->scale_k == VNNI_SCALE_K || layout->scale_k == VNNI_SCALE_K / 2) && k > 0 &&
           k % layout->scale_k == 0;
}

size_t avx512vnni_integer_rows(const struct expertd_quantised_format *format, size_t k) {
    const struct quantised_layout layout = quantised_layout(format, k);
    const struct integer_rows one = {.rows = 1, .scale_k = layout.scale_k};
    if (!takes(format, &layout, k)) {
        return 0;
    }
    const size_t row_bytes =
        integer_rows_bytes(&one, layout.scales) + integer_digits_bytes(&one, layout.scales) + sizeof(panel_row);
    return (KERNEL_DIGITS_CACHED - sizeof(struct cached) - 2 * ALIGNMENT) / row_bytes;
}

static bool multiply_group(const struct macrokernel_args *group, const struct expertd_quantised_format *format, bool apart) {
    struct call c = {.group = group, .format = format, .layout = quantised_layout(format, group->k), .apart = apart};
    if (!takes(format, &c.layout, group->k)) {
        return false;
    }
    float_mode before = float_mode_set_ieee();
    bool done = multiply(&c);
    float_mode_restore(before);
    return done;
}

bool avx512vnni_quantised_integer(const struct macrokernel_args *group, const struct expertd_quantised_format *format) {
    return multiply_group(group, format, false);
}

// Sums that are exact are so in any order.
bool avx512vnni_quantised_integer_apart(const struct macrokernel_args *group, const struct expertd_quantised_format *format) {
    return multiply_group(group, format, true);
}
#endif
