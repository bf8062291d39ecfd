// Any number of rows by panels that are packed as slices (micropanels; weights.h). The including file defines SLICES_WORD_K, the
// k of a word, and includes a microkernel before this body: slice_tile_narrow_avx512.h, slice_tile_wide_avx512.h or
// slice_tile_avx2.h. This body defines
//   slices_macrokernel       a macrokernel for several panels
//   slices_panel             a panel_kernel for one panel, for callers without scratch
//
// A tile's rows are interleaved: one line of each row, then the next line of each, so that one register addresses all of them.
// Weights are read in memory order at an even pace, which the hardware prefetcher follows; it loses a stream if tiles take
// turns at short bursts.
#include <string.h>

#include "base/err.h"
#include "base/sizes.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/prefetch_distance.h"
#include "kernels/layout/packed_layout.h"

enum {
    SLICES = EXPERTD_KERNEL_PANEL / (SLICE_VECS * SLICE_VEC), // of a panel
    ROWS_BLOCK = 240 << 10, // bytes of interleaved rows in a block of K, if not all of K fits into scratch
};
_Static_assert((int)ROWS_BLOCK <= (int)KERNEL_SCRATCH_BYTES, "a block of rows fits into scratch");

#define SLICE_ROWS(rows)                                                                                                           \
    static __attribute__((noinline)) void slice_rows_##rows(struct slice_pass *pass) {                                             \
        slice_rows(pass, rows);                                                                                                    \
    }
#define SLICE_NAME(rows) slice_rows_##rows,

SLICE_EACH(SLICE_ROWS)

static void (*const SLICE_COPIES[SLICE_TILE])(struct slice_pass *pass) = {SLICE_EACH(SLICE_NAME)};

// ---- rows

// Rows of the next tile, if `left` rows are left: tiles are as even as possible.
static size_t slice_tile_rows(size_t left) {
    return div_up(left, div_up(left, SLICE_TILE));
}

// Bytes of a row of `words` words when interleaved: complete lines.
static size_t packed_rows_bytes(size_t words) {
    return div_up(words, SLICE_ROW_WORDS) * SLICE_ROW_LINE;
}

// Copies a part of a row to lines that are `step` bytes apart. The last line is padded with 0.
PANEL_INLINE void pack_row(const char *from, size_t bytes, char *to, size_t step) {
    for (; bytes >= SLICE_ROW_BYTES; bytes -= SLICE_ROW_BYTES, from += SLICE_ROW_BYTES, to += step) {
        slice_pack_rows(from, to);
    }
    if (bytes) {
        slice_pack_rows_part(from, bytes, to);
    }
}

// Interleaves the rows of one tile: bytes [at, at + bytes) of each.
static void pack_tile_rows(const void *const *x, size_t rows, size_t at, size_t bytes, char *to) {
    for (size_t done = 0; done < bytes; done += SLICE_PACKED_ROWS) {
        const size_t part = bytes - done < SLICE_PACKED_ROWS ? bytes - done : SLICE_PACKED_ROWS;
        for (size_t r = 0; r < rows; r++) {
            pack_row((const char *)x[r] + at + done, part, to + (done / SLICE_ROW_BYTES * rows + r) * SLICE_ROW_LINE,
                     rows * SLICE_ROW_LINE);
        }
    }
}

// ---- panels

struct slices {
    const struct macrokernel_args *args;
    size_t words;      // the whole of K
    size_t begin, end; // the words to multiply: all of them, or a block
    const char *x;     // interleaved rows, tile by tile
};

// Interleaves the rows of all tiles, for words [begin, end).
static void pack_rows(const struct slices *s, char *to) {
    const struct macrokernel_args *args = s->args;
    const size_t row_bytes = args->k * (WORD_BYTES / SLICES_WORD_K), at = s->begin * WORD_BYTES, end = s->end * WORD_BYTES;
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = slice_tile_rows(args->rows - row);
        pack_tile_rows(args->x + row, rows, at, (end < row_bytes ? end : row_bytes) - at, to);
        to += rows * packed_rows_bytes(s->end - s->begin);
    }
}

static const char *slice_at(const struct slices *s, const void *panel, size_t slice, size_t word) {
    return (const char *)panel + (slice * s->words + word) * SLICE_VECS * SLICE_LINE;
}

// The weights that are read after a panel's block: in the next panel, the next block, or the next call. 0: unknown.
static uintptr_t after_panel(const struct slices *s, size_t panel) {
    const struct macrokernel_args *args = s->args;
    if (panel + 1 < args->count) {
        return (uintptr_t)slice_at(s, args->panels[panel + 1], 0, s->begin);
    }
    if (s->end < s->words) {
        return (uintptr_t)slice_at(s, args->panels[0], 0, s->end);
    }
    return args->next ? (uintptr_t)args->next[0] : 0;
}

// A panel's slices are contiguous: over the whole of K they are one stream. In blocks of K each slice is a stream of its own.
static struct slice_stream stream_of(const struct slices *s, size_t panel, size_t slice) {
    const void *at = s->args->panels[panel];
    bool all_k = s->end - s->begin == s->words, last = slice + 1 == SLICES;
    return (struct slice_stream){
        .end = (uintptr_t)(all_k ? slice_at(s, at, SLICES, 0) : slice_at(s, at, slice, s->end)),
        .next = all_k || last ? after_panel(s, panel) : (uintptr_t)slice_at(s, at, slice + 1, s->begin),
    };
}

// All rows by one slice. All tiles of rows multiply one burst (slice_burst words) of the slice before the next burst.
static void multiply_slice(const struct slices *s, size_t panel, size_t slice, struct rows_walk *next_rows) {
    const struct macrokernel_args *args = s->args;
    const size_t words = s->end - s->begin, burst = slice_burst(args->rows, words);
    const struct slice_stream stream = stream_of(s, panel, slice);
    for (size_t word = 0; word < words; word += burst) {
        struct slice_pass pass = {.slice = slice_at(s, args->panels[panel], slice, s->begin + word),
                                  .words = words - word < burst ? words - word : burst,
                                  .begins = s->begin + word == 0,
                                  .rows = next_rows};
        const char *x = s->x;
        slice_begin_fetches(&pass, args->rows, stream);
        for (size_t row = 0, rows; row < args->rows; row += rows) {
            rows = slice_tile_rows(args->rows - row);
            pass.x = x + word / SLICE_ROW_WORDS * rows * SLICE_ROW_LINE;
            pass.sums = args->sums + row * KERNEL_SUMS + panel * EXPERTD_KERNEL_PANEL + slice * SLICE_VECS * SLICE_VEC;
            SLICE_COPIES[rows - 1](&pass);
            x += rows * packed_rows_bytes(words);
        }
    }
}

#ifdef SLICE_ROUND_ROBIN
#include "kernels/cpu/common/slices_round_robin_body.h"
#else
static bool multiply_round_robin(const struct slices *s, const struct prefetch_rows_ahead *ahead) {
    (void)s, (void)ahead;
    return false;
}
#endif

// All rows by all panels. ahead: the rows that are interleaved next, prefetched in even shares.
static void multiply_panels(const struct slices *s, const struct prefetch_rows_ahead *ahead) {
    const size_t slices = s->args->count * SLICES, tiles = div_up(s->args->rows, SLICE_TILE);
    struct rows_walk walk = prefetch_rows_begin(*ahead, slices * tiles * div_up(s->end - s->begin, SLICE_ROW_WORDS));
    if (multiply_round_robin(s, ahead)) {
        return;
    }
    for (size_t i = 0; i < slices; i++) {
        if (!SLICE_PREFETCHES_ROWS) {
            prefetch_rows_share(ahead, i, slices);
        }
        multiply_slice(s, i / SLICES, i % SLICES, &walk);
    }
}

static void multiply_all_k(const struct slices *s) {
    const struct prefetch_rows_ahead ahead = {s->args->next_x, s->args->next_rows, 0, s->words * WORD_BYTES};
    multiply_panels(s, &ahead);
}

// Rows are interleaved one block of K at a time, and multiplied by all panels before the next block.
static void multiply_blocks(struct slices *s, size_t words, char *scratch) {
    const struct macrokernel_args *args = s->args;
    for (s->begin = 0; s->begin < s->words; s->begin = s->end) {
        s->end = s->words - s->begin < words ? s->words : s->begin + words;
        pack_rows(s, scratch);
        struct prefetch_rows_ahead ahead = {args->x, args->rows, s->end * WORD_BYTES, (s->end - s->begin) * WORD_BYTES};
        if (s->end == s->words) { // the first block of the next call
            ahead = (struct prefetch_rows_ahead){args->x, args->next ? args->rows : 0, 0, words * WORD_BYTES};
            if (args->next_rows) {
                ahead.x = args->next_x, ahead.rows = args->next_rows;
            }
        }
        multiply_panels(s, &ahead);
    }
}

// Most bytes of interleaved rows that are cached over the whole of K.
static size_t rows_cached_max(const struct macrokernel_args *args) {
    const size_t scratch_bytes = KERNEL_SCRATCH_BYTES + args->scratch_more;
    return scratch_bytes < KERNEL_ROWS_CACHED ? scratch_bytes : (size_t)KERNEL_ROWS_CACHED;
}

static void slices_macrokernel(const struct macrokernel_args *args) {
    const size_t words = div_up(args->k, SLICES_WORD_K);
    struct slices s = {.args = args, .words = words, .end = words, .x = args->scratch};
    INVARIANT(args->rows > 0 && args->count > 0 && args->k > 0 && !args->accumulate);
    if ((int)SLICE_ROW_BYTES == (int)SLICE_ROW_LINE && args->rows == 1 && args->k % SLICES_WORD_K == 0) {
        s.x = args->x[0]; // one row needs no interleaving
        multiply_all_k(&s);
    } else if (args->rows * packed_rows_bytes(words) <= rows_cached_max(args)) {
        if (!args->rows_cached) {
            pack_rows(&s, args->scratch);
        }
        multiply_all_k(&s);
    } else {
        multiply_blocks(&s, ROWS_BLOCK / (args->rows * SLICE_ROW_LINE) * SLICE_ROW_WORDS, args->scratch);
    }
}

static void slices_panel(const struct panel_args *args) {
    enum { BLOCK_WORDS = 128 };
    _Alignas(64) char scratch[SLICE_TILE * BLOCK_WORDS / SLICE_ROW_WORDS * SLICE_ROW_LINE];
    _Alignas(64) float sums[SLICE_TILE * KERNEL_SUMS];
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = slice_tile_rows(args->rows - row);
        struct macrokernel_args call = {
            .x = args->x + row, .rows = rows, .panels = &args->panel, .count = 1, .k = args->k, .sums = sums};
        struct slices s = {.args = &call, .words = div_up(args->k, SLICES_WORD_K), .x = scratch};
        multiply_blocks(&s, BLOCK_WORDS, scratch);
        for (size_t r = 0; r < rows; r++) {
            memcpy(args->out + (row + r) * args->out_stride, sums + r * KERNEL_SUMS, args->columns * sizeof *sums);
        }
    }
}
