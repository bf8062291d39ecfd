// Rows of bf16 against panels of INT4's codes whose scales are of 33 to 128 k, in whole numbers by tiles, where their sums have the
// bits of the contract's fmas (tile_rows.h).
//
// Rows are made ready once for all panels of a call, and stay for the calls after it that are for the same rows; where there is no
// room for the whole of K they are made ready block by block, and sums go through memory. It all runs in IEEE's default mode:
// tile_rows.h takes no row that the flush of bf16 sums could touch.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/amx/tile_scale_group.h"
#include "kernels/cpu/avx512/quantised/panel_scales_avx512.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum { LANES = 16, ALIGNMENT = 64, TILE_PAST = TILE_PLACES * TILE_DIGITS * TILE_K };

// Tiles are the faster where so many of a hundred blocks are whole, which of normal rows are 82, of a gated activation 38; of many
// rows fewer are enough.
enum { ROWS_LARGE_M = 64, INTEGER_MIN = 60, INTEGER_MIN_LARGE_M = 45 };

// In a call's scratch.
struct cached {
    struct tile_rows rows;
    size_t scales; // of a block
    bool taken;    // every row could be, and it is worth it
};

struct call {
    const struct macrokernel_args *group;
    const struct expertd_quantised_format *format;
    struct quantised_layout layout;
    struct cached *cached;
    panel_row *sums, *partials; // [rows] of the panel at hand
};

_Static_assert(sizeof(struct cached) <= INTEGER_CACHED_BYTES, "it stays where other kernels take the call");
_Static_assert(KERNEL_CALL_ROWS <= UINT8_MAX, "rows are told apart by a byte");
_Static_assert(sizeof(struct cached) + 3 * ALIGNMENT + TILE_PAST +
                       KERNEL_CALL_ROWS * (2 * sizeof(panel_row) + sizeof(struct tile_place) + TILE_DIGITS * TILE_SCALE_K) <=
                   KERNEL_SCRATCH_BYTES,
               "a block has a scale at least");

static char *align_up(char *at) {
    return (char *)(((uintptr_t)at + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

static size_t blocks_of(const struct quantised_layout *layout) {
    return (layout->scale_k + TILE_K - 1) / TILE_K;
}

// Where things lie. As many scales as there is room for are a block; a tile of the last rows is read past them.
static void place(struct call *c) {
    const struct macrokernel_args *group = c->group;
    c->cached = group->scratch;
    c->sums = (panel_row *)align_up((char *)(c->cached + 1));
    c->partials = c->sums + group->rows;
    char *at = (char *)(c->partials + group->rows), *end = (char *)group->scratch + KERNEL_SCRATCH_BYTES + group->scratch_more;
    if (group->rows_cached) {
        return;
    }
    struct tile_rows *rows = &c->cached->rows;
    *rows = (struct tile_rows){.rows = group->rows, .scale_k = c->layout.scale_k, .blocks = blocks_of(&c->layout)};
    const size_t scale_bytes = tile_rows_bytes(rows, 1) + tile_digits_bytes(rows, 1);
    const size_t room = ((size_t)(end - at) - ALIGNMENT - TILE_PAST) / scale_bytes;
    c->cached->scales = room < c->layout.scales ? room : c->layout.scales;
    rows->places = (struct tile_place *)at;
    rows->count = (uint8_t(*)[TILE_BLOCKS])(rows->places + c->cached->scales * rows->rows);
    rows->digits = (int8_t *)align_up((char *)(rows->count + c->cached->scales));
}

// Enough of so many blocks?
static bool are_integer(const struct tile_rows *rows, size_t scales, size_t blocks) {
    const size_t least = rows->rows < ROWS_LARGE_M ? INTEGER_MIN : INTEGER_MIN_LARGE_M;
    size_t whole = 0;
    for (size_t s = 0; s < scales; s++) {
        whole += (size_t)rows->count[s][0] + rows->count[s][1];
    }
    return whole * 100 >= rows->rows * blocks * least;
}

// Scales [first, first + scales), those of the block from `index` on. Is it worth while, so far?
static bool make_scales(const struct call *c, size_t first, size_t index, size_t scales) {
    const float code_max = c->format->zero_points ? TILE_CODE_MAX_ZERO_POINT : TILE_CODE_MAX;
    const size_t k = (first + index) * c->layout.scale_k, behind = k + scales * c->layout.scale_k;
    struct tile_rows to = c->cached->rows;
    to.count += index;
    to.places += index * to.rows;
    to.digits += index * tile_digits_bytes(&to, 1);
    return tile_rows_make(&to, c->group->x, k, behind < c->group->k ? behind : c->group->k, code_max) &&
           are_integer(&c->cached->rows, index + scales, (index + scales) * to.blocks);
}

// A few scales show what rows are, before the others are made.
static void make_rows(const struct call *c, size_t first, size_t scales) {
    enum { SMALL_M = 4 };
    const size_t some = scales < SMALL_M ? scales : SMALL_M;
    c->cached->taken = make_scales(c, first, 0, some) && (some == scales || make_scales(c, first, some, scales - some));
}

// A scale of a panel.
struct opened {
    struct tile_scale scale;
    panel_row factors, zeros;
};

static void load_factors(const struct call *c, const uint8_t *stored, __m512 global, struct opened *to) {
    const size_t bytes = quantised_scale_bytes(c->format);
    panel_scales_to(c->format, stored, global, to->factors);
    for (size_t at = 0; at < bytes; at += QUANTISED_LINE) {
        prefetch_line(stored + at, PREFETCH_CODES_INTEL);
    }
    for (size_t v = 0; c->format->zero_points && v < EXPERTD_KERNEL_PANEL; v += LANES) {
        const __m128i points = _mm_loadu_si128((const __m128i *)(stored + bytes + v));
        _mm512_store_ps(to->zeros + v, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(points)));
    }
}

static void open_scale(const struct call *c, const uint8_t *panel, size_t first, size_t index, struct opened *to,
                       digit_codes codes) {
    const struct tile_rows *rows = &c->cached->rows;
    const size_t scale = first + index;
    to->scale = (struct tile_scale){
        .zero_point = c->format->zero_points,
        .depth = quantised_depth(&c->layout, scale, c->group->k),
        .stored = panel + quantised_codes_at(&c->layout, scale),
        .factors = to->factors,
        .zeros = to->zeros,
        .rows = rows->rows,
        .count = rows->count[index],
        .places = rows->places + index * rows->rows,
        .digits = rows->digits + index * rows->blocks * TILE_DIGITS * rows->rows * TILE_K,
        .x = c->group->x,
        .k = scale * rows->scale_k,
        .partials = c->partials,
        .sums = c->sums,
    };
    load_factors(c, panel + quantised_scales_at(&c->layout, scale, c->group->k), panel_global(c->format, panel), to);
    tile_scale_decode(&to->scale, codes);
}

// Scales [first, first + scales), ascending. While one is multiplied the end of the one before is added, and the next one's codes
// have been decoded, so that tiles do not wait for what has just been stored.
static void multiply_panel(const struct call *c, const uint8_t *panel, size_t first, size_t scales) {
    enum { OPENED = 3, DECODED = 2 };
    struct opened opened[OPENED];
    digit_codes codes[DECODED];
    struct tile_pending pending;
    pending.scale = NULL;
    open_scale(c, panel, first, 0, &opened[0], codes[0]);
    for (size_t i = 0; i < scales; i++) {
        if (i + 1 < scales) {
            open_scale(c, panel, first, i + 1, &opened[(i + 1) % OPENED], codes[(i + 1) % DECODED]);
        }
        tile_scale_multiply(&opened[i % OPENED].scale, codes[i % DECODED], &pending);
    }
    tile_scale_epilogue(&pending);
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
    return format->code == EXPERTD_CODE_INT4 && layout->scale_k > TILE_K / 2 && layout->scale_k <= TILE_SCALE_K && k > 0;
}

size_t amx_integer_rows(const struct expertd_quantised_format *format, size_t k) {
    const struct quantised_layout layout = quantised_layout(format, k);
    const struct tile_rows one = {.rows = 1, .scale_k = layout.scale_k, .blocks = blocks_of(&layout)};
    if (!takes(format, &layout, k)) {
        return 0;
    }
    const size_t row_bytes = tile_rows_bytes(&one, layout.scales) + tile_digits_bytes(&one, layout.scales) + 2 * sizeof(panel_row);
    return (KERNEL_DIGITS_CACHED - sizeof(struct cached) - 2 * ALIGNMENT - TILE_PAST) / row_bytes;
}

bool amx_quantised_integer(const struct macrokernel_args *group, const struct expertd_quantised_format *format) {
    struct call c = {.group = group, .format = format, .layout = quantised_layout(format, group->k)};
    if (!takes(format, &c.layout, group->k)) {
        return false;
    }
    float_mode before = float_mode_set_ieee();
    tile_scales_begin(group->rows);
    bool done = multiply(&c);
    tile_scales_end();
    float_mode_restore(before);
    return done;
}
#endif
