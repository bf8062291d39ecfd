// A tile of up to 6 rows against a slice of 16 columns, by vectors of 8 floats and 16 registers. The including file defines first
//   SLICE_ROW_WORDS        words of a row that are packed to one line
//   SLICE_ROW_BYTES        their bytes in the row
//   SLICE_ROW_LINE         bytes of the packed line
// and after it
//   slice_pack_rows(from, to)               packs SLICE_ROW_WORDS words of a row
//   slice_pack_rows_part(from, bytes, to)   the same for fewer bytes, padded with 0
//   slice_word                              see below
//
// Small m reads the slices of a panel round-robin (slices_round_robin_body.h), since memory gives a thread several streams faster
// than one. At large m the first tile reads a slice from memory and the following ones read it from L2; prefetches are spread
// evenly over all tiles.
#include "kernels/cpu/avx2/fma_avx2.h"
#include "kernels/cpu/common/slice_pass.h"

#define SLICE_ROUND_ROBIN
enum {
    SLICE_VECS = 1,      // lines of one word of a slice
    SLICE_LINE_VECS = 2, // vectors of a line
    SLICE_LANES = SLICE_VEC / SLICE_LINE_VECS,
    SLICE_TILE = 6,                 // rows of a tile: 12 sums in 16 registers
    SLICE_PARALLEL_MAX = 4,         // slices of a tile at most
    SLICE_BURST_WORDS = 1024,       // large m: words of a block of K, 64 KiB; the block and the next one fit L2
    SLICE_AHEAD = 4096,             // large m: prefetch distance in bytes past the end of the block
    SLICE_SMALL_M_BURST_WORDS = 64, // small m: words of a slice per burst, 4 KiB; prefetched one burst ahead
    SLICE_PACKED_ROWS = 1 << 30,    // bytes of a row that are packed before the next row: all
    SLICE_PREFETCHES_ROWS = 0,      // 0: the tile does not prefetch rows; slices_body.h does so between tiles
};

// The sums of the first slice's rows, then those of the next slice's rows.
typedef __m256 slice_sums[SLICE_TILE][SLICE_LINE_VECS];

// sums += one word of each row times one word of the slice. x: the first row's word in its packed line; the other rows' follow,
// SLICE_ROW_LINE bytes apart.
PANEL_INLINE void slice_word(slice_sums sums, size_t rows, const char *x, const char *slice);

static inline __m256 vec_broadcast(const float *p) {
    return _mm256_broadcast_ss(p);
}

static inline __attribute__((always_inline)) void vec_prefetch(const void *p) {
    __builtin_prefetch(p);
}

// One k: an element of each row times 16 columns.
PANEL_INLINE void slice_multiply(slice_sums sums, size_t rows, const char *x, __m256 low, __m256 high) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        const __m256 factor = broadcast_in_order((const float *)(x + r * SLICE_ROW_LINE));
        sums[r][0] = fma_in_order(factor, low, sums[r][0]);
        sums[r][1] = fma_in_order(factor, high, sums[r][1]);
    }
}

static size_t slice_tiles(size_t rows) {
    return (rows + SLICE_TILE - 1) / SLICE_TILE;
}

// Slices that a tile multiplies at once: enough independent FMAs to hide their latency.
PANEL_INLINE size_t slices_in_parallel(size_t rows) {
    return rows == 1 ? SLICE_PARALLEL_MAX : rows == 2 ? SLICE_PARALLEL_MAX / 2 : 1;
}

// Small m: memory is the limit. A line of f32 has half of the products of a line of bf16, so the limit is twice as many rows.
static bool slice_round_robin(size_t rows) {
    return rows <= SLICE_TILE * (SLICES_WORD_K == 1 ? 2 : 1);
}

static size_t slice_burst(size_t rows, size_t words) {
    (void)rows;
    return words < SLICE_BURST_WORDS ? words : SLICE_BURST_WORDS;
}

PANEL_INLINE void slice_begin_fetches(struct slice_pass *pass, size_t rows, struct slice_stream stream) {
    const size_t tiles = slice_tiles(rows);
    pass->ahead.at = (uintptr_t)pass->slice + SLICE_BURST_WORDS * SLICE_LINE + SLICE_AHEAD;
    pass->ahead.until = pass->ahead.at;
    pass->ahead.step = (SLICE_LINE + tiles - 1) / tiles;
    pass->ahead.far = true;
    pass->ahead.end = stream.end;
    pass->ahead.next = stream.next;
}

// Prefetches the lines that are due with one packed line of the rows.
PANEL_INLINE void slice_prefetch(struct slice_ahead *ahead) {
    if (ahead->at >= ahead->end) {
        slice_prefetch_on(ahead);
    }
    ahead->until += SLICE_ROW_WORDS * ahead->step;
    for (; ahead->at < ahead->until; ahead->at += SLICE_LINE) {
        prefetch_into((const void *)ahead->at, ahead->far);
    }
}

PANEL_INLINE void slice_load(slice_sums sums, size_t rows, size_t parallel, const struct slice_pass *pass) {
    PANEL_UNROLL for (size_t b = 0; b < parallel; b++) {
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            PANEL_UNROLL for (size_t h = 0; h < SLICE_LINE_VECS; h++) {
                const float *from = pass->sums + r * KERNEL_SUMS + b * SLICE_VEC + h * SLICE_LANES;
                sums[b * rows + r][h] = pass->begins ? _mm256_setzero_ps() : _mm256_load_ps(from);
            }
        }
    }
}

PANEL_INLINE void slice_store(slice_sums sums, size_t rows, size_t parallel, const struct slice_pass *pass) {
    PANEL_UNROLL for (size_t b = 0; b < parallel; b++) {
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            PANEL_UNROLL for (size_t h = 0; h < SLICE_LINE_VECS; h++) {
                _mm256_store_ps(pass->sums + r * KERNEL_SUMS + b * SLICE_VEC + h * SLICE_LANES, sums[b * rows + r][h]);
            }
        }
    }
}

// One packed line of each row. each: where not NULL, one line of each slice is prefetched per word (one row: 1.07 times as fast as
// eight lines at once).
PANEL_INLINE void slice_line(slice_sums sums, size_t rows, size_t parallel, const char *x, const char *slice, size_t slice_bytes,
                             const char *each) {
    PANEL_UNROLL for (size_t i = 0; i < SLICE_ROW_WORDS; i++) {
        PANEL_UNROLL for (size_t b = 0; b < parallel; b++) {
            if (each) {
                prefetch_in_order(each + b * slice_bytes + i * SLICE_LINE);
            }
            slice_word(&sums[b * rows], rows, x + i * WORD_BYTES, slice + b * slice_bytes + i * SLICE_LINE);
        }
    }
}

// `rows` is a compile-time constant in each copy, so that the sums stay in registers.
PANEL_INLINE void slice_rows(struct slice_pass *pass, size_t rows) {
    enum { STEP = SLICE_ROW_WORDS * SLICE_LINE };
    const size_t parallel = slices_in_parallel(rows), between = pass->slice_bytes, packed_rows = rows * SLICE_ROW_LINE;
    const char *slice = pass->slice, *x = pass->x, *end = slice + pass->words * SLICE_LINE;
    const char *lines_end = slice + pass->words / SLICE_ROW_WORDS * STEP;
    slice_sums sums;
    slice_load(sums, rows, parallel, pass);
    if (pass->each) {
        for (const char *each = pass->each; slice < lines_end; slice += STEP, x += packed_rows, each += STEP) {
            slice_line(sums, rows, parallel, x, slice, between, each);
        }
    } else {
        struct slice_ahead ahead = {.at = pass->ahead.at,
                                    .until = pass->ahead.until,
                                    .step = pass->ahead.step,
                                    .end = pass->ahead.end,
                                    .next = pass->ahead.next,
                                    .far = pass->ahead.far};
        for (; slice < lines_end; slice += STEP, x += packed_rows) {
            slice_prefetch(&ahead);
            slice_line(sums, rows, parallel, x, slice, between, NULL);
        }
        pass->ahead.at = ahead.at;
        pass->ahead.until = ahead.until;
        pass->ahead.step = ahead.step;
        pass->ahead.end = ahead.end;
    }
    for (; slice < end; slice += SLICE_LINE, x += WORD_BYTES) {
        PANEL_UNROLL for (size_t b = 0; b < parallel; b++) {
            slice_word(&sums[b * rows], rows, x, slice + b * between);
        }
    }
    slice_store(sums, rows, parallel, pass);
}

#define SLICE_EACH(macro) macro(1) macro(2) macro(3) macro(4) macro(5) macro(6)
