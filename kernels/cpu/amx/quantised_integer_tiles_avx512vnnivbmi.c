// bf16 rows by INT4 weights with scale groups of 33 to 128 k, in exact integer arithmetic with TDPBSSD. tile_rows.h says which sums
// provably have the bits of the contract's fmas; the others are computed by fmas.
//
// Rows are converted to integer digits once for all panels of a call, and cached for later calls with the same rows. If scratch
// cannot hold them for all of K, K is cut into parts, and sums are stored and loaded between two. Everything runs in IEEE's default
// mode: tile_rows.h refuses rows that the flush of bf16 sums could change.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/amx/tile_scale_group.h"
#include "kernels/cpu/avx512/quantised/panel_scales_avx512.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum { LANES = 16, ALIGNMENT = 64, TILE_PAST = TILE_UNIT_ROWS * TILE_DIGITS * TILE_K };

// Tiles are faster than fmas if at least this percentage of blocks is exact; with large m fewer are enough. Of normally distributed
// rows 82 % are exact, of a gated activation's rows 38 %.
enum { ROWS_LARGE_M = 64, INTEGER_MIN = 60, INTEGER_MIN_LARGE_M = 45 };

// The head of a call's scratch.
struct cached {
    struct tile_rows rows;
    size_t scales; // scale groups for which rows are converted at a time
    bool usable;   // all rows were accepted, and enough blocks are exact
};

struct call {
    const struct macrokernel_args *macro;
    const struct expertd_quantised_format *format;
    struct quantised_layout layout;
    struct cached *cached;
    panel_row *sums, *partials; // [rows], of the current panel
};

_Static_assert(sizeof(struct cached) <= INTEGER_CACHED_BYTES, "struct cached stays when another kernel computes the call");
_Static_assert(KERNEL_CALL_ROWS <= UINT8_MAX, "rows are counted in a byte");
_Static_assert(sizeof(struct cached) + 3 * ALIGNMENT + TILE_PAST +
                       KERNEL_CALL_ROWS * (2 * sizeof(panel_row) + sizeof(struct tile_slot) + TILE_DIGITS * TILE_SCALE_K) <=
                   KERNEL_SCRATCH_BYTES,
               "scratch holds at least one scale group");

static char *align_up(char *at) {
    return (char *)(((uintptr_t)at + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

static size_t blocks_of(const struct quantised_layout *layout) {
    return (layout->scale_k + TILE_K - 1) / TILE_K;
}

// Divides the call's scratch. TILE_PAST bytes are left free, because a tile of the last rows is read past their end.
static void split_scratch(struct call *c) {
    const struct macrokernel_args *macro = c->macro;
    c->cached = macro->scratch;
    c->sums = (panel_row *)align_up((char *)(c->cached + 1));
    c->partials = c->sums + macro->rows;
    char *at = (char *)(c->partials + macro->rows), *end = (char *)macro->scratch + KERNEL_SCRATCH_BYTES + macro->scratch_more;
    if (macro->rows_cached) {
        return;
    }
    struct tile_rows *rows = &c->cached->rows;
    *rows = (struct tile_rows){.rows = macro->rows, .scale_k = c->layout.scale_k, .blocks = blocks_of(&c->layout)};
    const size_t scale_bytes = tile_rows_bytes(rows, 1) + tile_digits_bytes(rows, 1);
    const size_t scales_max = ((size_t)(end - at) - ALIGNMENT - TILE_PAST) / scale_bytes;
    c->cached->scales = scales_max < c->layout.scales ? scales_max : c->layout.scales;
    rows->slots = (struct tile_slot *)at;
    rows->count = (uint8_t(*)[TILE_BLOCKS])(rows->slots + c->cached->scales * rows->rows);
    rows->digits = (int8_t *)align_up((char *)(rows->count + c->cached->scales));
}

// Whether enough of the blocks of the first `scales` scale groups are exact. blocks: of one row.
static bool mostly_exact(const struct tile_rows *rows, size_t scales, size_t blocks) {
    const size_t least = rows->rows < ROWS_LARGE_M ? INTEGER_MIN : INTEGER_MIN_LARGE_M;
    size_t exact = 0;
    for (size_t s = 0; s < scales; s++) {
        exact += (size_t)rows->count[s][0] + rows->count[s][1];
    }
    return exact * 100 >= rows->rows * blocks * least;
}

// Converts rows for `scales` scale groups, from first + index on, and stores them from `index` on. False if rows are refused or too
// few blocks have been exact so far.
static bool convert_scales(const struct call *c, size_t first, size_t index, size_t scales) {
    const float code_max = c->format->zero_points ? TILE_CODE_MAX_ZERO_POINT : TILE_CODE_MAX;
    const size_t k = (first + index) * c->layout.scale_k, behind = k + scales * c->layout.scale_k;
    struct tile_rows to = c->cached->rows;
    to.count += index;
    to.slots += index * to.rows;
    to.digits += index * tile_digits_bytes(&to, 1);
    return tile_rows_make(&to, c->macro->x, k, behind < c->macro->k ? behind : c->macro->k, code_max) &&
           mostly_exact(&c->cached->rows, index + scales, (index + scales) * to.blocks);
}

// Converts rows for scale groups [first, first + scales). A sample of scale groups shows whether the others are worth converting.
static void convert_rows(const struct call *c, size_t first, size_t scales) {
    enum { SAMPLE_SCALES = 4 };
    const size_t sample = scales < SAMPLE_SCALES ? scales : SAMPLE_SCALES;
    c->cached->usable =
        convert_scales(c, first, 0, sample) && (sample == scales || convert_scales(c, first, sample, scales - sample));
}

// A scale group of a panel, with its scales and zero points as f32.
struct scale_group {
    struct tile_scale scale;
    panel_row factors, zeros;
};

static void load_factors(const struct call *c, const uint8_t *stored, __m512 global, struct scale_group *to) {
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

static void open_scale_group(const struct call *c, const uint8_t *panel, size_t first, size_t index, struct scale_group *to,
                             digit_codes codes) {
    const struct tile_rows *rows = &c->cached->rows;
    const size_t scale = first + index;
    to->scale = (struct tile_scale){
        .zero_point = c->format->zero_points,
        .depth = quantised_depth(&c->layout, scale, c->macro->k),
        .stored = panel + quantised_codes_at(&c->layout, scale),
        .factors = to->factors,
        .zeros = to->zeros,
        .rows = rows->rows,
        .count = rows->count[index],
        .slots = rows->slots + index * rows->rows,
        .digits = rows->digits + index * rows->blocks * TILE_DIGITS * rows->rows * TILE_K,
        .x = c->macro->x,
        .k = scale * rows->scale_k,
        .partials = c->partials,
        .sums = c->sums,
    };
    load_factors(c, panel + quantised_scales_at(&c->layout, scale, c->macro->k), panel_global(c->format, panel), to);
    tile_scale_decode(&to->scale, codes);
}

// Scale groups [first, first + scales), in ascending order. While one is multiplied, the sums of the previous one are added and the
// codes of the next one are decoded, so that tile loads do not wait for recent stores.
static void multiply_panel(const struct call *c, const uint8_t *panel, size_t first, size_t scales) {
    enum { GROUPS = 3, DECODED = 2 };
    struct scale_group groups[GROUPS];
    digit_codes codes[DECODED];
    struct tile_pending pending;
    pending.scale = NULL;
    open_scale_group(c, panel, first, 0, &groups[0], codes[0]);
    for (size_t i = 0; i < scales; i++) {
        if (i + 1 < scales) {
            open_scale_group(c, panel, first, i + 1, &groups[(i + 1) % GROUPS], codes[(i + 1) % DECODED]);
        }
        tile_scale_multiply(&groups[i % GROUPS].scale, codes[i % DECODED], &pending);
    }
    tile_scale_drain(&pending);
}

// Not inlined: no fma may move across a change of the floating-point mode in the caller.
static __attribute__((noinline)) bool multiply(struct call *c) {
    split_scratch(c);
    const size_t block = c->cached->scales, all = c->layout.scales;
    for (size_t first = 0, scales; first < all; first += scales) {
        scales = all - first < block ? all - first : block;
        if (!c->macro->rows_cached || block < all) {
            convert_rows(c, first, scales);
        }
        for (size_t p = 0; c->cached->usable && p < c->macro->count; p++) {
            panel_sums_load(c->macro, p, first == 0, c->sums);
            multiply_panel(c, c->macro->panels[p], first, scales);
            panel_sums_store(c->macro, p, c->sums);
        }
        if (!c->cached->usable) {
            return false;
        }
    }
    return true;
}

static bool takes(const struct expertd_quantised_format *format, const struct quantised_layout *layout, size_t k) {
    return format->code == EXPERTD_CODE_INT4 && !layout->super_size && layout->scale_k > TILE_K / 2 &&
           layout->scale_k <= TILE_SCALE_K && k > 0;
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

bool amx_quantised_integer(const struct macrokernel_args *macro, const struct expertd_quantised_format *format) {
    struct call c = {.macro = macro, .format = format, .layout = quantised_layout(format, macro->k)};
    if (!takes(format, &c.layout, macro->k)) {
        return false;
    }
    float_mode before = float_mode_set_ieee();
    tile_scales_begin(macro->rows);
    bool done = multiply(&c);
    tile_scales_end();
    float_mode_restore(before);
    return done;
}
#endif
