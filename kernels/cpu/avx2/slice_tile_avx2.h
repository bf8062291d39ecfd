// A tile of up to 6 rows against a slice of 16 columns, by vectors of 8 floats and 16 registers. The including file defines first
//   SLICE_ROW_WORDS, _BYTES, _LINE   as slice_pack_rows_avx512.h does
// and then
//   slice_pack_rows, slice_pack_rows_part        likewise
//   slice_word
//
// Few rows take the slices of a panel in turns, since memory gives several streams faster than one. Of more the first tile reads a
// slice from memory, those after it from L2, while lines are fetched at one pace over all tiles.
#include "kernels/cpu/avx2/fma_avx2.h"
#include "kernels/cpu/common/slice_pass.h"

#define SLICE_TAKES_TURNS
enum {
    SLICE_VECS = 1,   // lines of a slice's word
    SLICE_HALVES = 2, // vectors of a line
    SLICE_LANES = SLICE_VEC / SLICE_HALVES,
    SLICE_TILE = 6,        // rows at once: sums in 12 of 16 registers
    SLICE_BESIDE_MOST = 4, // slices at once
    SLICE_TURN = 1024,  // words that a tile takes before the next one does: 64 KiB, which stay in L2 with as much that comes next
    SLICE_AHEAD = 4096, // bytes behind a turn that lines are fetched
    SLICE_SMALL_M_TURN = 64, // words that few rows take of a slice before the next one: 4 KiB, while the next turn's are fetched
    SLICE_PACKED_ROWS = 1 << 30, // bytes of a row that are laid in one go: all
    SLICE_FETCHES_ROWS = 0,      // the rows that come next are fetched between tiles
};

// Of each slice's rows, one slice after another.
typedef __m256 slice_sums[SLICE_TILE][SLICE_HALVES];

// sums += a word of each row by a word of the slice. x: that of the first row in its line; the other rows' lines follow.
PANEL_INLINE void slice_word(slice_sums sums, size_t rows, const char *x, const char *slice);

static inline __m256 vec_broadcast(const float *p) {
    return _mm256_broadcast_ss(p);
}

static inline __attribute__((always_inline)) void vec_prefetch(const void *p) {
    __builtin_prefetch(p);
}

// A factor of each row by 16 columns of one k.
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

// Slices that are multiplied side by side: chains of fmas enough, or their latency is waited for.
PANEL_INLINE size_t slice_beside(size_t rows) {
    return rows == 1 ? SLICE_BESIDE_MOST : rows == 2 ? SLICE_BESIDE_MOST / 2 : 1;
}

// So few rows that memory is waited for: bf16 has twice the products of f32 in a line.
static bool slice_in_turns(size_t rows) {
    return rows <= SLICE_TILE * (SLICES_TOGETHER == 1 ? 2 : 1);
}

static size_t slice_turn(size_t rows, size_t words) {
    (void)rows;
    return words < SLICE_TURN ? words : SLICE_TURN;
}

PANEL_INLINE void slice_begin_fetches(struct slice_pass *pass, size_t rows, struct slice_stream stream) {
    const size_t tiles = slice_tiles(rows);
    pass->ahead.at = (uintptr_t)pass->slice + SLICE_TURN * SLICE_LINE + SLICE_AHEAD;
    pass->ahead.until = pass->ahead.at;
    pass->ahead.step = (SLICE_LINE + tiles - 1) / tiles;
    pass->ahead.far = true;
    pass->ahead.end = stream.end;
    pass->ahead.next = stream.next;
}

// The lines that are due with a line of a row.
PANEL_INLINE void slice_prefetch(struct slice_ahead *ahead) {
    if (ahead->at >= ahead->end) {
        slice_prefetch_on(ahead);
    }
    ahead->until += SLICE_ROW_WORDS * ahead->step;
    for (; ahead->at < ahead->until; ahead->at += SLICE_LINE) {
        prefetch_into((const void *)ahead->at, ahead->far);
    }
}

PANEL_INLINE void slice_load(slice_sums sums, size_t rows, size_t beside, const struct slice_pass *pass) {
    PANEL_UNROLL for (size_t b = 0; b < beside; b++) {
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            PANEL_UNROLL for (size_t h = 0; h < SLICE_HALVES; h++) {
                const float *from = pass->sums + r * KERNEL_SUMS + b * SLICE_VEC + h * SLICE_LANES;
                sums[b * rows + r][h] = pass->begins ? _mm256_setzero_ps() : _mm256_load_ps(from);
            }
        }
    }
}

PANEL_INLINE void slice_store(slice_sums sums, size_t rows, size_t beside, const struct slice_pass *pass) {
    PANEL_UNROLL for (size_t b = 0; b < beside; b++) {
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            PANEL_UNROLL for (size_t h = 0; h < SLICE_HALVES; h++) {
                _mm256_store_ps(pass->sums + r * KERNEL_SUMS + b * SLICE_VEC + h * SLICE_LANES, sums[b * rows + r][h]);
            }
        }
    }
}

// A line of each row. each: a line of each slice is fetched with its word (one row 1.07 times as fast as by eight at once).
PANEL_INLINE void slice_line(slice_sums sums, size_t rows, size_t beside, const char *x, const char *slice, size_t slice_bytes,
                             const char *each) {
    PANEL_UNROLL for (size_t i = 0; i < SLICE_ROW_WORDS; i++) {
        PANEL_UNROLL for (size_t b = 0; b < beside; b++) {
            if (each) {
                prefetch_in_order(each + b * slice_bytes + i * SLICE_LINE);
            }
            slice_word(&sums[b * rows], rows, x + i * WORD_BYTES, slice + b * slice_bytes + i * SLICE_LINE);
        }
    }
}

// `rows` is a constant in each copy, so that the sums are registers.
PANEL_INLINE void slice_rows(struct slice_pass *pass, size_t rows) {
    enum { STEP = SLICE_ROW_WORDS * SLICE_LINE };
    const size_t beside = slice_beside(rows), between = pass->slice_bytes, packed_rows = rows * SLICE_ROW_LINE;
    const char *slice = pass->slice, *x = pass->x, *end = slice + pass->words * SLICE_LINE;
    const char *lines_end = slice + pass->words / SLICE_ROW_WORDS * STEP;
    slice_sums sums;
    slice_load(sums, rows, beside, pass);
    if (pass->each) {
        for (const char *each = pass->each; slice < lines_end; slice += STEP, x += packed_rows, each += STEP) {
            slice_line(sums, rows, beside, x, slice, between, each);
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
            slice_line(sums, rows, beside, x, slice, between, NULL);
        }
        pass->ahead.at = ahead.at;
        pass->ahead.until = ahead.until;
        pass->ahead.step = ahead.step;
        pass->ahead.end = ahead.end;
    }
    for (; slice < end; slice += SLICE_LINE, x += WORD_BYTES) {
        PANEL_UNROLL for (size_t b = 0; b < beside; b++) {
            slice_word(&sums[b * rows], rows, x, slice + b * between);
        }
    }
    slice_store(sums, rows, beside, pass);
}

#define SLICE_EACH(what) what(1) what(2) what(3) what(4) what(5) what(6)
