// Any number of rows against panels that are packed as slices (weights.h), by vectors of 16 words. The including file defines
//   SLICES_TARGET            the kernel's name; SLICES_PANEL: that of one panel, for callers without scratch
//   SLICES_TOGETHER          k of a word
//   slice_multiply(s, w, x)  *s += the word at x by each of w
//
// A tile's rows are laid side by side: 16 words of each, then the next 16 of each. So one register addresses all of them, a word
// comes with its instruction ({1to16}), and a tile of up to 24 rows by 16 columns takes 25 instructions for 24 products. Weights
// are read once, in the order of memory, at an even pace: the hardware follows the stream, which it loses where tiles take turns.
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/backends.h"
#include "kernels/cpu/fetch.h"
#include "kernels/packed_layout.h"
#include "kernels/sizes.h"

enum {
    SLICE_TILE = 24, // rows at once: sums in 24 of 32 registers
    WORD_BYTES = sizeof(uint32_t),
    SLICE_LINE = SLICE_COLUMNS * WORD_BYTES,
    LINE_WORDS = SLICE_LINE / WORD_BYTES, // of a row
    // Bytes ahead that lines are fetched: into L2, asked for again in between (fetch.h), then into L1.
    SLICE_FAR = 12288,
    SLICE_AGAIN = 6144,
    SLICE_NEAR = 2048,
    ROWS_BLOCK = 240 << 10, // bytes of a block of K of rows that are not kept whole
};
_Static_assert((int)ROWS_BLOCK <= (int)KERNEL_SCRATCH_BYTES, "a block of rows");

#if defined(__clang__)
#define SLICE_UNROLL PANEL_UNROLL
#else
#define SLICE_UNROLL _Pragma("GCC unroll 24")
#endif

// A tile against a slice, or a part of K of it.
struct slice_pass {
    const char *slice; // [words] lines
    const char *x;     // [words / LINE_WORDS][rows] lines
    size_t words;
    float *sums; // [rows], KERNEL_SUMS apart
    bool begins; // K: sums begin at +0
    uintptr_t far, again;
    size_t step; // bytes between what two words fetch; 0: the slice has been read by a tile before
};

// `rows` is a constant in each copy, so that the sums are registers.
PANEL_INLINE void slice_rows(const struct slice_pass *pass, size_t rows) {
    const size_t step = pass->step;
    const char *slice = pass->slice, *x = pass->x, *end = slice + pass->words * SLICE_LINE;
    uintptr_t far = pass->far, again = pass->again;
    __m512 sums[SLICE_TILE];
    SLICE_UNROLL for (size_t r = 0; r < rows; r++) {
        sums[r] = _mm512_setzero_ps();
    }
    if (!pass->begins) {
        SLICE_UNROLL for (size_t r = 0; r < rows; r++) {
            sums[r] = _mm512_load_ps(pass->sums + r * KERNEL_SUMS);
        }
    }
    while (slice < end) {
        const char *line_end = end - slice < LINE_WORDS * SLICE_LINE ? end : slice + LINE_WORDS * SLICE_LINE;
        for (; slice < line_end; slice += SLICE_LINE, x += WORD_BYTES, far += step, again += step) {
            fetch_into((const void *)((uintptr_t)slice + SLICE_NEAR), false);
            fetch_into((const void *)far, true);
            fetch_into((const void *)again, true);
            const __m512i w = _mm512_load_si512(slice);
            SLICE_UNROLL for (size_t r = 0; r < rows; r++) {
                slice_multiply(&sums[r], w, x + r * SLICE_LINE);
            }
        }
        x += (rows - 1) * SLICE_LINE; // the line that it has passed was one of `rows`
    }
    SLICE_UNROLL for (size_t r = 0; r < rows; r++) {
        _mm512_store_ps(pass->sums + r * KERNEL_SUMS, sums[r]);
    }
}

#define SLICE_ROWS(rows)                                                                                                           \
    static void slice_rows_##rows(const struct slice_pass *pass) {                                                                 \
        slice_rows(pass, rows);                                                                                                    \
    }
#define SLICE_EACH(what)                                                                                                           \
    what(1) what(2) what(3) what(4) what(5) what(6) what(7) what(8) what(9) what(10) what(11) what(12) what(13) what(14) what(15)  \
        what(16) what(17) what(18) what(19) what(20) what(21) what(22) what(23) what(24)
#define SLICE_NAME(rows) slice_rows_##rows,

SLICE_EACH(SLICE_ROWS)

static void (*const SLICE_COPIES[SLICE_TILE])(const struct slice_pass *pass) = {SLICE_EACH(SLICE_NAME)};

// ---- rows

// The next tile's rows, of those that are left: tiles as even as can be.
static size_t slice_tile_rows(size_t left) {
    return div_up(left, div_up(left, SLICE_TILE));
}

// Of a row's words, in whole lines.
static size_t line_bytes(size_t words) {
    return div_up(words, LINE_WORDS) * SLICE_LINE;
}

// `bytes` of each of a tile's rows from byte `at` on; 0 to the end of the last line.
static void lay_tile(const void *const *x, size_t rows, size_t at, size_t bytes, char *to) {
    for (size_t r = 0; r < rows; r++) {
        const char *from = (const char *)x[r] + at;
        char *line = to + r * SLICE_LINE;
        size_t left = bytes;
        for (; left >= SLICE_LINE; left -= SLICE_LINE, from += SLICE_LINE, line += rows * SLICE_LINE) {
            _mm512_store_si512(line, _mm512_loadu_si512(from));
        }
        if (left) {
            _mm512_store_si512(line, _mm512_maskz_loadu_epi8(((__mmask64)1 << left) - 1, from));
        }
    }
}

// ---- panels

struct slices {
    const struct panel_group_args *args;
    size_t words;      // of K
    size_t begin, end; // words that are multiplied: all of them, or a block
    const char *x;     // by tiles
};

// A slice, or its part in a block: memory that is read in one go, and what is read after it; 0: nothing, or nobody knows.
struct slice_stream {
    uintptr_t end, next;
};

static void lay_rows(const struct slices *s, char *to) {
    const struct panel_group_args *args = s->args;
    const size_t row_bytes = args->k * (WORD_BYTES / SLICES_TOGETHER), at = s->begin * WORD_BYTES, end = s->end * WORD_BYTES;
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = slice_tile_rows(args->rows - row);
        lay_tile(args->x + row, rows, at, (end < row_bytes ? end : row_bytes) - at, to);
        to += rows * line_bytes(s->end - s->begin);
    }
}

// Lines ahead, in the order of use, while a slice is read for the first time.
static void fetch_ahead(struct slice_pass *pass, const struct slice_stream *stream) {
    const uintptr_t at = (uintptr_t)pass->slice;
    pass->step = SLICE_LINE;
    pass->far = at + SLICE_FAR;
    pass->again = at + SLICE_AGAIN;
    if (pass->far >= stream->end) {
        pass->far = stream->next ? stream->next + (pass->far - stream->end) : at;
        pass->again = pass->far;
    }
}

static const char *slice_at(const struct slices *s, const void *panel, size_t slice, size_t word) {
    return (const char *)panel + (slice * s->words + word) * SLICE_LINE;
}

// All rows against a slice.
static void multiply_slice(const struct slices *s, size_t panel, size_t slice, const struct slice_stream *stream) {
    const struct panel_group_args *args = s->args;
    struct slice_pass pass = {
        .slice = slice_at(s, args->panels[panel], slice, s->begin), .words = s->end - s->begin, .begins = s->begin == 0};
    const char *x = s->x;
    fetch_ahead(&pass, stream);
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = slice_tile_rows(args->rows - row);
        pass.x = x;
        pass.sums = args->sums + row * KERNEL_SUMS + panel * KERNEL_PANEL + slice * SLICE_COLUMNS;
        SLICE_COPIES[rows - 1](&pass);
        x += rows * line_bytes(pass.words);
        pass.far = pass.again = (uintptr_t)pass.slice;
        pass.step = 0;
    }
}

// What is read after a panel's words: of the next panel, the next block, or the next call.
static uintptr_t after_panel(const struct slices *s, size_t panel) {
    const struct panel_group_args *args = s->args;
    if (panel + 1 < args->count) {
        return (uintptr_t)slice_at(s, args->panels[panel + 1], 0, s->begin);
    }
    if (s->end < s->words) {
        return (uintptr_t)slice_at(s, args->panels[0], 0, s->end);
    }
    return args->next ? (uintptr_t)args->next[0] : 0;
}

// Slices lie one after another: over the whole of K they are one stream.
static struct slice_stream stream_of(const struct slices *s, size_t panel, size_t slice) {
    enum { SLICES = KERNEL_PANEL / SLICE_COLUMNS };
    const void *at = s->args->panels[panel];
    bool whole = s->end - s->begin == s->words, last = slice + 1 == SLICES;
    return (struct slice_stream){
        .end = (uintptr_t)(whole ? slice_at(s, at, SLICES, 0) : slice_at(s, at, slice, s->end)),
        .next = whole || last ? after_panel(s, panel) : (uintptr_t)slice_at(s, at, slice + 1, s->begin),
    };
}

// ahead: rows that are laid next, a slice's share of them with each.
static void multiply_panels(const struct slices *s, const struct rows_ahead *ahead) {
    enum { SLICES = KERNEL_PANEL / SLICE_COLUMNS };
    for (size_t i = 0; i < s->args->count * SLICES; i++) {
        struct slice_stream stream = stream_of(s, i / SLICES, i % SLICES);
        fetch_rows_share(ahead, i, s->args->count * SLICES);
        multiply_slice(s, i / SLICES, i % SLICES, &stream);
    }
}

static void multiply_whole(const struct slices *s) {
    const struct rows_ahead ahead = {s->args->next_x, s->args->next_rows, 0, s->words * WORD_BYTES};
    multiply_panels(s, &ahead);
}

// Rows are laid a block of K at a time, which all panels take before the next.
static void multiply_blocks(struct slices *s, size_t words, char *scratch) {
    const struct panel_group_args *args = s->args;
    for (s->begin = 0; s->begin < s->words; s->begin = s->end) {
        s->end = s->words - s->begin < words ? s->words : s->begin + words;
        lay_rows(s, scratch);
        struct rows_ahead ahead = {args->x, args->rows, s->end * WORD_BYTES, (s->end - s->begin) * WORD_BYTES};
        if (s->end == s->words) { // the next call's first
            ahead = (struct rows_ahead){args->x, args->next ? args->rows : 0, 0, words * WORD_BYTES};
            if (args->next_rows) {
                ahead.x = args->next_x, ahead.rows = args->next_rows;
            }
        }
        multiply_panels(s, &ahead);
    }
}

void SLICES_TARGET(const struct panel_group_args *args) {
    const size_t words = div_up(args->k, SLICES_TOGETHER), room = KERNEL_SCRATCH_BYTES + args->scratch_more;
    struct slices s = {.args = args, .words = words, .end = words, .x = args->scratch};
    INVARIANT(!args->goes_on);
    if (args->rows == 1 && args->k % SLICES_TOGETHER == 0) {
        s.x = args->x[0];
        multiply_whole(&s);
    } else if (args->rows * line_bytes(words) <= (room < KERNEL_ROWS_KEPT ? room : KERNEL_ROWS_KEPT)) {
        if (!args->rows_kept) {
            lay_rows(&s, args->scratch);
        }
        multiply_whole(&s);
    } else {
        multiply_blocks(&s, ROWS_BLOCK / (args->rows * SLICE_LINE) * LINE_WORDS, args->scratch);
    }
}

void SLICES_PANEL(const struct panel_args *args) {
    enum { BLOCK_WORDS = 128 };
    _Alignas(64) char scratch[SLICE_TILE * BLOCK_WORDS * WORD_BYTES];
    _Alignas(64) float sums[SLICE_TILE * KERNEL_SUMS];
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = slice_tile_rows(args->rows - row);
        struct panel_group_args group = {
            .x = args->x + row, .rows = rows, .panels = &args->panel, .count = 1, .k = args->k, .sums = sums};
        struct slices s = {.args = &group, .words = div_up(args->k, SLICES_TOGETHER), .x = scratch};
        multiply_blocks(&s, BLOCK_WORDS, scratch);
        for (size_t r = 0; r < rows; r++) {
            memcpy(args->out + (row + r) * args->out_stride, sums + r * KERNEL_SUMS, args->columns * sizeof *sums);
        }
    }
}
