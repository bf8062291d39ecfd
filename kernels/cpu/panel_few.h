// Few rows by vectors of 8 floats and 16 registers: as fast as memory gives the panels, so what counts is how they are read.
//
// Up to four panels are taken in turns, 1 KiB of each. The hardware then follows a stream in each of them, and brings what comes
// next of a panel while the others are multiplied: more than prefetches can, of which a core has fewer on their way (a thread's
// plain reads of four streams: 30 GB/s, of one 22, by prefetches 17). It must see lines in the order of memory and close ahead.
// More rows than one take a turn in passes along its columns, out of that order, and so they fetch the lines of the turn after the
// next: 2 KiB ahead. From 4 KiB on fetches wait for memory themselves, and two rows to four reach .75 to .8 of that.
//
// The including file defines, for its instruction set:
//   vec, LANES               the vector and its floats
//   PANEL_VECS               vectors of columns whose accumulators fit the registers with PANEL_TILE rows
//   vec_load, vec_store, vec_broadcast(p)
//   vec_fma_in_order         a * b + c, and
//   vec_prefetch_in_order    a line of memory: both in the order in which they are written
//   vec_even, vec_odd        LANES packed pairs (a 32-bit word each): the element of even or odd k, widened
//   vec_interleave(a, b, to) a[0] b[0] a[1] b[1] ... to `to`
// and names the results by PANEL_TARGET(name). Rows are copied block by block, those of bf16 widened, in the order of the sums: of
// each pair the odd k first. Sums go through memory between two turns, which is exact.
#include <string.h>

#include "base/dtype.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/float_mode.h"
#include "kernels/cpu/group_ahead.h"

enum {
    FEW_ROWS_F32 = PANEL_TILE, // that are taken in turns. More are as fast or faster where a panel is taken after the other
    FEW_ROWS_PAIRS = 4,        // the same of bf16
    FEW_WORDS = 32,            // of a block of K, f32's k or bf16's pairs
    FEW_ROW = 2 * FEW_WORDS,   // floats of a row's block
    FEW_WORD = KERNEL_PANEL * sizeof(float), // bytes of a panel
    FEW_VECS = KERNEL_PANEL / LANES,
    FEW_FACTORS = 3, // rows whose factors are kept in registers while vectors of a word are widened one by one
    TURN_WORDS = 4,
    TURN_AHEAD = 2, // turns that fetches are ahead
};
_Static_assert(!FLUSHES_BEFORE_ROUNDING, "no sum is checked for what the machine flushed");

// How a vector of a word of a panel becomes floats.
enum few_part { FEW_F32, FEW_ODD, FEW_EVEN };

// A block of K of some of a call's rows.
struct few_block {
    const struct panel_group_args *args;
    size_t row, rows; // of the call
    bool pairs;
    size_t begin, words, end; // of K; where it ends
    float *x;                 // [rows][FEW_ROW]
};

// The rows against some columns of a panel's turn.
struct few_pass {
    const float *x;    // of the first row and word; rows are FEW_ROW apart
    const char *panel; // the first word, first column of the pass
    float *sums;       // of the first row and column; rows are KERNEL_SUMS apart
    uintptr_t ahead;   // the next line to fetch
};

PANEL_INLINE vec few_widen(const char *word, size_t v, enum few_part part) {
    const char *from = word + v * LANES * sizeof(float);
    if (part == FEW_F32) {
        return vec_load((const float *)(const void *)from);
    }
    return part == FEW_ODD ? vec_odd((const uint16_t *)(const void *)from) : vec_even((const uint16_t *)(const void *)from);
}

// One k. What there is less of stays in registers: the rows' factors or the columns'.
PANEL_INLINE void few_step(vec sums[][FEW_VECS], size_t rows, size_t vecs, const float *x, size_t x_stride, const char *word,
                           enum few_part part) {
    if (rows <= FEW_FACTORS) {
        vec factors[FEW_FACTORS];
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            factors[r] = vec_broadcast(x + r * x_stride);
        }
        PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
            vec w = few_widen(word, v, part);
            PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
                sums[r][v] = vec_fma_in_order(factors[r], w, sums[r][v]);
            }
        }
        return;
    }
    vec w[PANEL_VECS];
    PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
        w[v] = few_widen(word, v, part);
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        vec factor = vec_broadcast(x + r * x_stride);
        PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
            sums[r][v] = vec_fma_in_order(factor, w[v], sums[r][v]);
        }
    }
}

PANEL_INLINE void few_word(vec sums[][FEW_VECS], size_t rows, size_t vecs, const float *x, size_t x_stride, const char *word,
                           bool pairs) {
    few_step(sums, rows, vecs, x, x_stride, word, pairs ? FEW_ODD : FEW_F32);
    if (pairs) {
        few_step(sums, rows, vecs, x + 1, x_stride, word, FEW_EVEN);
    }
}

// As many lines as `bytes` hold.
PANEL_INLINE uintptr_t few_fetch(uintptr_t ahead, size_t bytes) {
    PANEL_UNROLL for (size_t at = 0; at < bytes; at += 64) {
        vec_prefetch_in_order((const void *)(ahead + at));
    }
    return ahead + bytes;
}

// Some columns of a turn. Lines ahead are fetched, as many as the columns have, word by word: of f32 all at once, since its words
// are too few fmas to hide between. Every parameter but the pass is a constant in each copy, so that the sums are registers; of the
// last words of K fewer than TURN_WORDS may be left.
PANEL_INLINE void few_columns(struct few_pass *pass, size_t words, size_t rows, size_t vecs, bool pairs) {
    vec sums[PANEL_TILE][FEW_VECS];
    const size_t step = pairs ? 2 : 1, bytes = vecs * LANES * sizeof(float);
    const bool fetches = words == TURN_WORDS && rows > 1;
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
            sums[r][v] = vec_load(pass->sums + r * KERNEL_SUMS + v * LANES);
        }
    }
    if (fetches && !pairs) {
        pass->ahead = few_fetch(pass->ahead, TURN_WORDS * bytes);
    }
    PANEL_UNROLL for (size_t i = 0; i < words; i++) {
        if (fetches && pairs) {
            pass->ahead = few_fetch(pass->ahead, bytes);
        }
        few_word(sums, rows, vecs, pass->x + i * step, FEW_ROW, pass->panel + i * FEW_WORD, pairs);
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
            vec_store(pass->sums + r * KERNEL_SUMS + v * LANES, sums[r][v]);
        }
    }
}

// Where each panel's words of a block begin, and what is fetched while its first turn is taken: the turn that comes TURN_AHEAD
// later.
struct few_streams {
    const char *panel[KERNEL_GROUP];
    uintptr_t ahead[KERNEL_GROUP];
};

static inline struct few_streams few_streams(const struct few_block *block) {
    const struct panel_group_args *args = block->args;
    struct few_streams streams = {{NULL}, {0}};
    for (size_t p = 0; p < args->count; p++) {
        size_t turn = p + TURN_AHEAD;
        streams.panel[p] = (const char *)args->panels[p] + block->begin * FEW_WORD;
        streams.ahead[p] =
            (uintptr_t)args->panels[turn % args->count] + (block->begin + turn / args->count * TURN_WORDS) * FEW_WORD;
    }
    return streams;
}

// A turn of each panel.
PANEL_INLINE void few_round(const struct few_block *block, const struct few_streams *streams, size_t at, size_t words, size_t rows,
                            size_t vecs, bool pairs) {
    float *sums = block->args->sums + block->row * KERNEL_SUMS;
    for (size_t p = 0; p < block->args->count; p++) {
        struct few_pass pass = {
            .x = block->x + at * (pairs ? 2 : 1),
            .panel = streams->panel[p] + at * FEW_WORD,
            .sums = sums + p * KERNEL_PANEL,
            .ahead = streams->ahead[p] + at * FEW_WORD,
        };
        for (size_t column = 0; column < KERNEL_PANEL; column += vecs * LANES) {
            few_columns(&pass, words, rows, vecs, pairs);
            pass.panel += vecs * LANES * sizeof(float);
            pass.sums += vecs * LANES;
        }
    }
}

PANEL_INLINE void few_turns(const struct few_block *block, size_t rows, size_t vecs, bool pairs) {
    struct few_streams streams = few_streams(block);
    size_t at = 0;
    for (; at + TURN_WORDS <= block->words; at += TURN_WORDS) {
        few_round(block, &streams, at, TURN_WORDS, rows, vecs, pairs);
    }
    for (; at < block->words; at++) {
        few_round(block, &streams, at, 1, rows, vecs, pairs);
    }
}

// A copy for each number of rows: one row takes 64 columns in one pass, two and three 32, more 16, but three of bf16 16 too. 8
// chains of fmas at least, or their latency is waited for. Not inlined: no fma may move across a change of the floating-point mode
// in the caller.
static __attribute__((noinline)) void few_turns_f32(const struct few_block *block) {
    switch (block->rows) {
    case 1:
        few_turns(block, 1, FEW_VECS, false);
        return;
    case 2:
        few_turns(block, 2, FEW_VECS / 2, false);
        return;
    case 3:
        few_turns(block, 3, FEW_VECS / 2, false);
        return;
    case 4:
        few_turns(block, 4, PANEL_VECS, false);
        return;
    case 5:
        few_turns(block, 5, PANEL_VECS, false);
        return;
    default:
        few_turns(block, FEW_ROWS_F32, PANEL_VECS, false);
        return;
    }
}

static __attribute__((noinline)) void few_turns_pairs(const struct few_block *block) {
    switch (block->rows) {
    case 1:
        few_turns(block, 1, FEW_VECS, true);
        return;
    case 2:
        few_turns(block, 2, FEW_VECS / 2, true);
        return;
    case 3:
        few_turns(block, 3, PANEL_VECS, true);
        return;
    default:
        few_turns(block, FEW_ROWS_PAIRS, PANEL_VECS, true);
        return;
    }
}

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

static void few_block_rows(const struct few_block *block) {
    const struct panel_group_args *args = block->args;
    size_t k = block->begin * (block->pairs ? 2 : 1), most = block->words * (block->pairs ? 2 : 1);
    size_t depth = args->k - k < most ? args->k - k : most; // an odd k's last word is half empty
    for (size_t r = 0; r < block->rows; r++) {
        const void *x = args->x[block->row + r];
        if (block->pairs) {
            few_widen_row((const uint16_t *)x + k, depth, block->x + r * FEW_ROW);
        } else {
            memcpy(block->x + r * FEW_ROW, (const float *)x + k, depth * sizeof(float));
        }
    }
}

// Any number of rows, some at a time.
static void few_group(const struct panel_group_args *args, bool pairs) {
    float x[PANEL_TILE * FEW_ROW] __attribute__((aligned(64)));
    size_t most = pairs ? FEW_ROWS_PAIRS : FEW_ROWS_F32;
    struct few_block block = {.args = args, .pairs = pairs, .end = pairs ? (args->k + 1) / 2 : args->k, .x = x};
    group_clear(args);
    for (; block.row < args->rows; block.row += block.rows) {
        block.rows = args->rows - block.row < most ? args->rows - block.row : most;
        for (block.begin = 0; block.begin < block.end; block.begin += block.words) {
            block.words = block.end - block.begin < FEW_WORDS ? block.end - block.begin : FEW_WORDS;
            few_block_rows(&block);
            (pairs ? few_turns_pairs : few_turns_f32)(&block);
        }
    }
}

// One panel.
static void few_call(const struct panel_args *args, bool pairs) {
    float sums[PANEL_TILE * KERNEL_SUMS] __attribute__((aligned(64)));
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = args->rows - row < PANEL_TILE ? args->rows - row : PANEL_TILE;
        struct panel_group_args group = {
            .x = args->x + row, .rows = rows, .panels = &args->panel, .count = 1, .k = args->k, .sums = sums};
        few_group(&group, pairs);
        for (size_t r = 0; r < rows; r++) {
            memcpy(args->out + (row + r) * args->out_stride, sums + r * KERNEL_SUMS, args->columns * sizeof(float));
        }
    }
}

void PANEL_TARGET(panel_f32)(const struct panel_args *args) {
    few_call(args, false);
}

void PANEL_TARGET(panel_bf16)(const struct panel_args *args) {
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    few_call(args, true);
    float_mode_restore(before);
}
