// The panel kernels of vectors of 8 floats and 16 registers. Few rows are as fast as memory gives the panel, so it is fetched in
// one stream, word by word as it lies there, in even shares: while a chunk of K is multiplied, the next one is fetched into L1. One
// row takes 64 columns at once, two and three 32, more 16: 8 chains of fmas at least, or their latency is waited for. (Of a plain
// read by one thread, before and after: one row .49 -> .78, two .47 -> .78, four .44 -> .57, when each 16 columns of 128 k were
// fetched as they were multiplied.)
//
// One row against several panels takes them 1 KiB each in turns, and leaves fetching to the hardware, which then has a stream of
// each to follow: 1.25 to 1.35 of the speed of a panel at a time. With more rows the multiplication holds the loads up, and
// fetching ahead is what pays: in turns or without fetches two rows were .7 to .97, four .6.
//
// The including file defines, for its instruction set:
//   vec, LANES               the vector and its floats
//   PANEL_VECS               vectors of columns whose accumulators fit the registers with PANEL_TILE rows
//   vec_load, vec_store, vec_broadcast(p), vec_fma(a, b, c) = a * b + c, vec_prefetch
//   vec_fma_over             vec_fma for loops that need every register: nothing is kept of c
//   vec_even, vec_odd        LANES packed pairs (a 32-bit word each): the element of even or odd k, widened
//   vec_interleave(a, b, to) a[0] b[0] a[1] b[1] ... to `to`
// and names the results by PANEL_TARGET(name). Rows of bf16 are widened a chunk at a time, in the order of the sums: of each pair
// the odd k first. Sums go through memory between two chunks, which is exact.
#include <string.h>

#include "base/dtype.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/float_mode.h"

enum {
    FEW_WORDS = 32,            // of a chunk: 8 KiB of a panel, f32's k or bf16's pairs
    FEW_ROWS = 2 * PANEL_TILE, // that a panel is read once for
    FEW_VECS = KERNEL_PANEL / LANES,
    ONE_WORDS = 4,   // of each panel in turn, where one row takes several
    FEW_FACTORS = 3, // rows whose factors are kept in registers while vectors of a word are widened one by one
    FEW_LINES = KERNEL_PANEL * sizeof(float) / 64, // of a word of all columns
};
_Static_assert(!FLUSHES_BEFORE_ROUNDING, "no sum is checked for what the machine flushed");

typedef float few_row[KERNEL_PANEL] __attribute__((aligned(64)));
typedef float few_wide[2 * FEW_WORDS] __attribute__((aligned(64)));

// How a vector of a word of a panel becomes floats.
enum few_part { FEW_F32, FEW_ODD, FEW_EVEN };

// One tile of rows against some columns of a panel, over a chunk of K.
struct few_pass {
    const float *x[PANEL_TILE]; // widened where they are bf16
    const char *panel;          // the chunk's first word, first column of the pass
    size_t words;
    few_row *sums; // of the first row
    size_t column;
    uintptr_t ahead;   // the next line of the next chunk
    size_t ahead_step; // 64, or less where more than one tile goes over the chunk
};

PANEL_INLINE vec few_widen(const char *word, size_t v, enum few_part part) {
    const char *from = word + v * LANES * sizeof(float);
    if (part == FEW_F32) {
        return vec_load((const float *)(const void *)from);
    }
    return part == FEW_ODD ? vec_odd((const uint16_t *)(const void *)from) : vec_even((const uint16_t *)(const void *)from);
}

// One k. What there is less of stays in registers: the rows' factors or the columns'.
PANEL_INLINE void few_step(vec sums[][FEW_VECS], size_t rows, size_t vecs, const float *const *x, size_t k, const char *word,
                           enum few_part part) {
    if (rows <= FEW_FACTORS) {
        vec factors[FEW_FACTORS];
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            factors[r] = vec_broadcast(x[r] + k);
        }
        PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
            vec w = few_widen(word, v, part);
            PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
                sums[r][v] = rows < FEW_FACTORS ? vec_fma(factors[r], w, sums[r][v]) : vec_fma_over(factors[r], w, sums[r][v]);
            }
        }
        return;
    }
    vec w[PANEL_VECS];
    PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
        w[v] = few_widen(word, v, part);
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        vec factor = vec_broadcast(x[r] + k);
        PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
            sums[r][v] = vec_fma(factor, w[v], sums[r][v]);
        }
    }
}

// `rows`, `vecs`, `pairs` and `fetches` are constants in each copy, so that the sums are registers.
PANEL_INLINE void few_rows(struct few_pass *pass, size_t rows, size_t vecs, bool pairs, bool fetches) {
    vec sums[PANEL_TILE][FEW_VECS];
    uintptr_t ahead = pass->ahead;
    const char *word = pass->panel;
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
            sums[r][v] = vec_load(&pass->sums[r][pass->column + v * LANES]);
        }
    }
    for (size_t i = 0; i < pass->words; i++, word += KERNEL_PANEL * sizeof(float)) {
        if (fetches) {
            PANEL_UNROLL for (size_t line = 0; line < FEW_LINES * vecs / FEW_VECS; line++, ahead += pass->ahead_step) {
                vec_prefetch((const void *)ahead);
            }
        }
        if (pairs) {
            few_step(sums, rows, vecs, pass->x, 2 * i, word, FEW_ODD);
            few_step(sums, rows, vecs, pass->x, 2 * i + 1, word, FEW_EVEN);
        } else {
            few_step(sums, rows, vecs, pass->x, i, word, FEW_F32);
        }
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
            vec_store(&pass->sums[r][pass->column + v * LANES], sums[r][v]);
        }
    }
    pass->ahead = ahead;
}

// All columns, some at a time.
PANEL_INLINE void few_columns(struct few_pass *pass, size_t rows, size_t vecs, bool pairs) {
    const char *panel = pass->panel;
    for (pass->column = 0; pass->column < KERNEL_PANEL; pass->column += vecs * LANES) {
        pass->panel = panel + pass->column * sizeof(float);
        few_rows(pass, rows, vecs, pairs, true);
    }
}

// A tile's chunk through the copy for its number of rows. Not inlined: no fma may move across a change of the floating-point mode
// in the caller.
#define FEW_TILE_FUNCTION(name, pairs)                                                                                             \
    static __attribute__((noinline)) void name(struct few_pass *pass, size_t rows) {                                               \
        switch (rows) {                                                                                                            \
        case 1:                                                                                                                    \
            few_columns(pass, 1, FEW_VECS, pairs);                                                                                 \
            return;                                                                                                                \
        case 2:                                                                                                                    \
            few_columns(pass, 2, FEW_VECS / 2, pairs);                                                                             \
            return;                                                                                                                \
        case 3:                                                                                                                    \
            few_columns(pass, 3, FEW_VECS / 2, pairs);                                                                             \
            return;                                                                                                                \
        case 4:                                                                                                                    \
            few_columns(pass, 4, PANEL_VECS, pairs);                                                                               \
            return;                                                                                                                \
        case 5:                                                                                                                    \
            few_columns(pass, 5, PANEL_VECS, pairs);                                                                               \
            return;                                                                                                                \
        default:                                                                                                                   \
            few_columns(pass, PANEL_TILE, PANEL_VECS, pairs);                                                                      \
            return;                                                                                                                \
        }                                                                                                                          \
    }

FEW_TILE_FUNCTION(few_tile_f32, false)
FEW_TILE_FUNCTION(few_tile_bf16, true)

// An odd tail and what is missing of the last vectors is +0.
static void few_widen_row(const uint16_t *x, size_t depth, float *to) {
    size_t i = 0;
    for (; i + 2 * LANES <= depth; i += 2 * LANES) {
        vec_interleave(vec_odd(x + i), vec_even(x + i), to + i);
    }
    if (i < depth) {
        uint16_t tail[2 * LANES] = {0};
        memcpy(tail, x + i, (depth - i) * sizeof *tail);
        vec_interleave(vec_odd(tail), vec_even(tail), to + i);
    }
}

// `rows` rows, whose x begin at the chunk, against a chunk of a panel.
static void few_chunk(few_row *sums, size_t rows, const float *const *x, const char *chunk, size_t words, bool pairs) {
    size_t tiles = (rows + PANEL_TILE - 1) / PANEL_TILE;
    struct few_pass pass = {
        .words = words, .ahead = (uintptr_t)chunk + words * KERNEL_PANEL * sizeof(float), .ahead_step = 64 / tiles};
    for (size_t row = 0, tile; row < rows; row += tile) {
        tile = panel_tile_rows(rows, row);
        for (size_t r = 0; r < tile; r++) {
            pass.x[r] = x[row + r];
        }
        pass.panel = chunk;
        pass.sums = sums + row;
        (pairs ? few_tile_bf16 : few_tile_f32)(&pass, tile);
    }
}

static void few_write(few_row *sums, const struct panel_args *args, size_t row, size_t rows) {
    for (size_t r = 0; r < rows; r++) {
        memcpy(args->out + (row + r) * args->out_stride, sums[r], args->columns * sizeof(float));
    }
}

// Rows [row, row + rows) of the call, at most FEW_ROWS, whole K.
static void few_rows_f32(const struct panel_args *args, size_t row, size_t rows) {
    few_row sums[FEW_ROWS];
    memset(sums, 0, rows * sizeof *sums);
    for (size_t k = 0; k < args->k; k += FEW_WORDS) {
        const float *x[FEW_ROWS];
        for (size_t r = 0; r < rows; r++) {
            x[r] = (const float *)args->x[row + r] + k;
        }
        size_t words = args->k - k < FEW_WORDS ? args->k - k : FEW_WORDS;
        few_chunk(sums, rows, x, (const char *)args->panel + k * KERNEL_PANEL * sizeof(float), words, false);
    }
    few_write(sums, args, row, rows);
}

static void few_rows_bf16(const struct panel_args *args, size_t row, size_t rows) {
    few_row sums[FEW_ROWS];
    few_wide wide[FEW_ROWS];
    memset(sums, 0, rows * sizeof *sums);
    for (size_t k = 0; k < args->k; k += 2 * FEW_WORDS) {
        const float *x[FEW_ROWS];
        size_t depth = args->k - k < 2 * FEW_WORDS ? args->k - k : 2 * FEW_WORDS;
        for (size_t r = 0; r < rows; r++) {
            few_widen_row((const uint16_t *)args->x[row + r] + k, depth, wide[r]);
            x[r] = wide[r];
        }
        few_chunk(sums, rows, x, (const char *)args->panel + k * KERNEL_PANEL * sizeof(uint16_t), (depth + 1) / 2, true);
    }
    few_write(sums, args, row, rows);
}

static size_t few_rows_of(const struct panel_args *args, size_t row) {
    return args->rows - row < FEW_ROWS ? args->rows - row : FEW_ROWS;
}

void PANEL_TARGET(panel_f32)(const struct panel_args *args) {
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = few_rows_of(args, row);
        few_rows_f32(args, row, rows);
    }
}

void PANEL_TARGET(panel_bf16)(const struct panel_args *args) {
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = few_rows_of(args, row);
        few_rows_bf16(args, row, rows);
    }
    float_mode_restore(before);
}

// One row against the panels of a call, added to its sums.
PANEL_INLINE void one_row(const struct panel_group_args *args, bool pairs) {
    size_t words = pairs ? (args->k + 1) / 2 : args->k, k_of_word = pairs ? 2 : 1;
    few_wide wide;
    for (size_t begin = 0, end; begin < words; begin = end) {
        end = words - begin < FEW_WORDS ? words : begin + FEW_WORDS;
        const float *x = (const float *)args->x[0] + begin;
        if (pairs) {
            size_t k = 2 * begin, depth = args->k - k < 2 * FEW_WORDS ? args->k - k : 2 * FEW_WORDS;
            few_widen_row((const uint16_t *)args->x[0] + k, depth, wide);
            x = wide;
        }
        for (size_t at = begin; at < end; at += ONE_WORDS) {
            for (size_t p = 0; p < args->count; p++) {
                struct few_pass pass = {
                    .x = {x + (at - begin) * k_of_word},
                    .panel = (const char *)args->panels[p] + at * KERNEL_PANEL * sizeof(float),
                    .words = end - at < ONE_WORDS ? end - at : ONE_WORDS,
                    .sums = (few_row *)(args->sums + p * KERNEL_PANEL),
                };
                few_rows(&pass, 1, FEW_VECS, pairs, false);
            }
        }
    }
}

static __attribute__((noinline)) void one_row_f32(const struct panel_group_args *args) {
    one_row(args, false);
}

static __attribute__((noinline)) void one_row_bf16(const struct panel_group_args *args) {
    one_row(args, true);
}
