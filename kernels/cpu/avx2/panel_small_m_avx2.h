// Small m by vectors of 8 floats and 16 registers. Memory bandwidth is the limit, so the order in which panels are read decides the
// speed.
//
// Up to four panels are read round-robin, in bursts of 1 KiB (BURST_WORDS words of 64 columns). The hardware prefetcher then
// follows one stream per panel, and loads the next part of a panel while the others are multiplied. It keeps more lines in flight
// than software prefetches do: plain reads of four streams give a thread 30 GB/s, of one stream 22, software prefetches 17. It
// requires lines in memory order and a short distance. One row reads a burst in that order. Two rows and more read a burst in
// passes over its columns, out of order, so they prefetch the burst after the next, 2 KiB ahead. At 4 KiB and more the prefetches
// themselves wait for memory, and two to four rows reach .75 to .8 of that speed.
//
// The including file defines, for its instruction set:
//   vec, LANES               the vector and its floats
//   PANEL_VECS               vectors of columns whose accumulators, for PANEL_TILE rows, fit the registers
//   vec_load, vec_store, vec_broadcast(p)
//   vec_fma_in_order         a * b + c
//   vec_prefetch_in_order    prefetches a line; the compiler reorders neither of the two
//   vec_even, vec_odd        the elements of even or odd k of LANES packed pairs (32-bit words), widened
//   vec_even_i8, vec_odd_i8  the elements of even or odd k of LANES packed quads of int8 (32-bit words), as two int16 each
//   vec_add_pairs(a, b, c)   c + the sum of the two int16 products of each word, in wrapping int32
//   vec_interleave(a, b, to) stores a[0] b[0] a[1] b[1] ... at `to`
// and PANEL_TARGET(name), which names the results. Rows are copied block by block; rows of bf16 and int8 are widened, in the order
// of the sums: the odd k of each bf16 pair first. Sums pass through memory between two bursts, which is exact.
#include <string.h>

#include "expertd/base/dtype.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/macrokernel_prefetch.h"
#include "kernels/layout/packed_i8.h"

enum {
    SMALL_M_ROWS_F32 = PANEL_TILE,   // rows up to which round-robin is faster than one panel after the other: f32,
    SMALL_M_ROWS_PAIRS = 4,          // bf16,
    SMALL_M_ROWS_QUADS = PANEL_TILE, // int8
    SMALL_M_WORDS = 32,              // words of a block of K: k of f32, pairs of bf16, quads of int8
    SMALL_M_ROW = 2 * SMALL_M_WORDS, // floats of a row's block
    SMALL_M_WORD = EXPERTD_KERNEL_PANEL * sizeof(float), // bytes of one word of all of a panel's columns
    SMALL_M_VECS = EXPERTD_KERNEL_PANEL / LANES,
    SMALL_M_FACTORS = 3, // rows whose elements are held in registers while the vectors of a word are widened one by one
    BURST_WORDS = 4,
    BURSTS_AHEAD = 2, // prefetch distance
};
_Static_assert(!FLUSHES_BEFORE_ROUNDING, "sums are not checked for results that the CPU flushed before rounding");

// The contents of a 32-bit word: an f32, a pair of bf16 or a quad of int8.
enum small_m_kind { SMALL_M_F32, SMALL_M_PAIRS, SMALL_M_QUADS };

// The part of a word that one step multiplies. A row's factor is a float, or two int16.
enum small_m_part { SMALL_M_ALL, SMALL_M_ODD, SMALL_M_EVEN, SMALL_M_ODD_I8, SMALL_M_EVEN_I8 };

// Floats that a word takes in a row's block.
static inline size_t small_m_factors(enum small_m_kind kind) {
    return kind == SMALL_M_F32 ? 1 : 2;
}

static inline size_t small_m_word_k(enum small_m_kind kind) {
    return kind == SMALL_M_F32 ? 1 : kind == SMALL_M_PAIRS ? 2 : PACKED_I8_K;
}

// Rows [row, row + rows) of a call over a block of K.
struct small_m_block {
    const struct macrokernel_args *args;
    size_t row, rows;
    enum small_m_kind kind;
    size_t begin, words, end; // the block's first word and number of words; the words of K
    float *x;                 // [rows][SMALL_M_ROW]
};

// The rows against some columns of one panel's burst.
struct small_m_pass {
    const float *x;    // of the first row and word; rows are SMALL_M_ROW apart
    const char *panel; // the first word, first column of the pass
    float *sums;       // of the first row and column; rows are KERNEL_SUMS apart
    uintptr_t ahead;   // the next line to prefetch
};

PANEL_INLINE vec small_m_load(const char *word, size_t v, enum small_m_part part) {
    const char *from = word + v * LANES * sizeof(float);
    switch (part) {
    case SMALL_M_ODD:
        return vec_odd((const uint16_t *)(const void *)from);
    case SMALL_M_EVEN:
        return vec_even((const uint16_t *)(const void *)from);
    case SMALL_M_ODD_I8:
        return vec_odd_i8(from);
    case SMALL_M_EVEN_I8:
        return vec_even_i8(from);
    default:
        return vec_load((const float *)(const void *)from);
    }
}

PANEL_INLINE vec small_m_multiply(vec factor, vec w, vec sum, enum small_m_part part) {
    return part >= SMALL_M_ODD_I8 ? vec_add_pairs(factor, w, sum) : vec_fma_in_order(factor, w, sum);
}

// One part of a word. Registers hold the rows' factors or the vectors of weights: those that are fewer.
PANEL_INLINE void small_m_step(vec sums[][SMALL_M_VECS], size_t rows, size_t vecs, const float *x, size_t x_stride,
                               const char *word, enum small_m_part part) {
    if (rows <= SMALL_M_FACTORS) {
        vec factors[SMALL_M_FACTORS];
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            factors[r] = vec_broadcast(x + r * x_stride);
        }
        PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
            vec w = small_m_load(word, v, part);
            PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
                sums[r][v] = small_m_multiply(factors[r], w, sums[r][v], part);
            }
        }
        return;
    }
    vec w[PANEL_VECS];
    PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
        w[v] = small_m_load(word, v, part);
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        vec factor = vec_broadcast(x + r * x_stride);
        PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
            sums[r][v] = small_m_multiply(factor, w[v], sums[r][v], part);
        }
    }
}

PANEL_INLINE void small_m_word(vec sums[][SMALL_M_VECS], size_t rows, size_t vecs, const float *x, size_t x_stride,
                               const char *word, enum small_m_kind kind) {
    const enum small_m_part first[] = {SMALL_M_ALL, SMALL_M_ODD, SMALL_M_EVEN_I8},
                            second[] = {SMALL_M_ALL, SMALL_M_EVEN, SMALL_M_ODD_I8};
    small_m_step(sums, rows, vecs, x, x_stride, word, first[kind]);
    if (kind != SMALL_M_F32) {
        small_m_step(sums, rows, vecs, x + 1, x_stride, word, second[kind]);
    }
}

// Prefetches `bytes` from `ahead` on; returns their end.
PANEL_INLINE uintptr_t small_m_prefetch(uintptr_t ahead, size_t bytes) {
    PANEL_UNROLL for (size_t at = 0; at < bytes; at += 64) {
        vec_prefetch_in_order((const void *)(ahead + at));
    }
    return ahead + bytes;
}

// `vecs` vectors of columns of a burst. As many lines are prefetched as these columns have: word by word, but for f32 all at once,
// since a word of f32 has too few FMAs to hide prefetches between. Every parameter except the pass is a compile-time constant in
// each copy, so that the sums stay in registers. `words` is BURST_WORDS, or 1 at the end of K.
PANEL_INLINE void small_m_columns(struct small_m_pass *pass, size_t words, size_t rows, size_t vecs, enum small_m_kind kind) {
    vec sums[PANEL_TILE][SMALL_M_VECS];
    const size_t step = small_m_factors(kind), bytes = vecs * LANES * sizeof(float);
    const bool prefetches = words == BURST_WORDS && rows > 1;
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
            sums[r][v] = vec_load(pass->sums + r * KERNEL_SUMS + v * LANES);
        }
    }
    if (prefetches && kind == SMALL_M_F32) {
        pass->ahead = small_m_prefetch(pass->ahead, BURST_WORDS * bytes);
    }
    PANEL_UNROLL for (size_t i = 0; i < words; i++) {
        if (prefetches && kind != SMALL_M_F32) {
            pass->ahead = small_m_prefetch(pass->ahead, bytes);
        }
        small_m_word(sums, rows, vecs, pass->x + i * step, SMALL_M_ROW, pass->panel + i * SMALL_M_WORD, kind);
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
            vec_store(pass->sums + r * KERNEL_SUMS + v * LANES, sums[r][v]);
        }
    }
}

// Per panel: where the block's words begin, and the address that is prefetched during its first burst (that of BURSTS_AHEAD bursts
// later).
struct small_m_streams {
    const char *panel[KERNEL_PANELS_MAX];
    uintptr_t ahead[KERNEL_PANELS_MAX];
};

static inline struct small_m_streams small_m_streams(const struct small_m_block *block) {
    const struct macrokernel_args *args = block->args;
    const size_t skip = block->kind == SMALL_M_QUADS ? offsetof(struct packed_i8, quads) : 0;
    struct small_m_streams streams = {{NULL}, {0}};
    for (size_t p = 0; p < args->count; p++) {
        size_t burst = p + BURSTS_AHEAD;
        streams.panel[p] = (const char *)args->panels[p] + skip + block->begin * SMALL_M_WORD;
        streams.ahead[p] =
            (uintptr_t)args->panels[burst % args->count] + skip + (block->begin + burst / args->count * BURST_WORDS) * SMALL_M_WORD;
    }
    return streams;
}

// One burst of each panel: `words` words from word `at` of the block on.
PANEL_INLINE void small_m_round(const struct small_m_block *block, const struct small_m_streams *streams, size_t at, size_t words,
                                size_t rows, size_t vecs, enum small_m_kind kind) {
    float *sums = block->args->sums + block->row * KERNEL_SUMS;
    for (size_t p = 0; p < block->args->count; p++) {
        struct small_m_pass pass = {
            .x = block->x + at * small_m_factors(kind),
            .panel = streams->panel[p] + at * SMALL_M_WORD,
            .sums = sums + p * EXPERTD_KERNEL_PANEL,
            .ahead = streams->ahead[p] + at * SMALL_M_WORD,
        };
        for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += vecs * LANES) {
            small_m_columns(&pass, words, rows, vecs, kind);
            pass.panel += vecs * LANES * sizeof(float);
            pass.sums += vecs * LANES;
        }
    }
}

PANEL_INLINE void small_m_bursts(const struct small_m_block *block, size_t rows, size_t vecs, enum small_m_kind kind) {
    struct small_m_streams streams = small_m_streams(block);
    size_t at = 0;
    for (; at + BURST_WORDS <= block->words; at += BURST_WORDS) {
        small_m_round(block, &streams, at, BURST_WORDS, rows, vecs, kind);
    }
    for (; at < block->words; at++) {
        small_m_round(block, &streams, at, 1, rows, vecs, kind);
    }
}

// A copy for each number of rows. A pass has 64 columns for one row, 32 for two (and for three of f32), 16 for more: at least 8
// independent chains of FMAs, which hide their latency. Not inlined: the compiler must not move an FMA across the caller's changes
// of the floating-point mode.
#define SMALL_M_BURSTS_FUNCTION(name, kind, vecs_of_three)                                                                         \
    static __attribute__((noinline)) void name(const struct small_m_block *block) {                                                \
        switch (block->rows) {                                                                                                     \
        case 1:                                                                                                                    \
            small_m_bursts(block, 1, SMALL_M_VECS, kind);                                                                          \
            return;                                                                                                                \
        case 2:                                                                                                                    \
            small_m_bursts(block, 2, SMALL_M_VECS / 2, kind);                                                                      \
            return;                                                                                                                \
        case 3:                                                                                                                    \
            small_m_bursts(block, 3, vecs_of_three, kind);                                                                         \
            return;                                                                                                                \
        case 4:                                                                                                                    \
            small_m_bursts(block, 4, PANEL_VECS, kind);                                                                            \
            return;                                                                                                                \
        case 5:                                                                                                                    \
            small_m_bursts(block, 5, PANEL_VECS, kind);                                                                            \
            return;                                                                                                                \
        default:                                                                                                                   \
            small_m_bursts(block, PANEL_TILE, PANEL_VECS, kind);                                                                   \
            return;                                                                                                                \
        }                                                                                                                          \
    }

_Static_assert((int)SMALL_M_ROWS_F32 == (int)PANEL_TILE && (int)SMALL_M_ROWS_QUADS == (int)PANEL_TILE,
               "a copy for each number of rows");
SMALL_M_BURSTS_FUNCTION(small_m_bursts_f32, SMALL_M_F32, SMALL_M_VECS / 2)
SMALL_M_BURSTS_FUNCTION(small_m_bursts_quads, SMALL_M_QUADS, PANEL_VECS)

static __attribute__((noinline)) void small_m_bursts_pairs(const struct small_m_block *block) {
    switch (block->rows) {
    case 1:
        small_m_bursts(block, 1, SMALL_M_VECS, SMALL_M_PAIRS);
        return;
    case 2:
        small_m_bursts(block, 2, SMALL_M_VECS / 2, SMALL_M_PAIRS);
        return;
    case 3:
        small_m_bursts(block, 3, PANEL_VECS, SMALL_M_PAIRS);
        return;
    default:
        small_m_bursts(block, SMALL_M_ROWS_PAIRS, PANEL_VECS, SMALL_M_PAIRS);
        return;
    }
}

// The two factors of each of LANES words of a row, in the order of the sums.
PANEL_INLINE void small_m_widen_words(const char *words, float *to, enum small_m_kind kind) {
    const uint16_t *pairs = (const uint16_t *)(const void *)words;
    if (kind == SMALL_M_PAIRS) {
        vec_interleave(vec_odd(pairs), vec_even(pairs), to);
    } else {
        vec_interleave(vec_even_i8(words), vec_odd_i8(words), to);
    }
}

// All words of a row's `bytes`. The output is padded with +0 to whole vectors, and so is an incomplete last word.
PANEL_INLINE void small_m_widen(const char *x, size_t bytes, float *to, enum small_m_kind kind) {
    const size_t step = LANES * sizeof(float);
    size_t at = 0;
    for (; at + step <= bytes; at += step, to += 2 * LANES) {
        small_m_widen_words(x + at, to, kind);
    }
    if (at < bytes) {
        char tail[LANES * sizeof(float)] __attribute__((aligned(4))) = {0};
        memcpy(tail, x + at, bytes - at);
        small_m_widen_words(tail, to, kind);
    }
}

// Copies or widens `depth` k of a row.
static void small_m_row(const char *x, size_t depth, float *to, enum small_m_kind kind) {
    if (kind == SMALL_M_PAIRS) {
        small_m_widen(x, depth * sizeof(uint16_t), to, SMALL_M_PAIRS);
    } else if (kind == SMALL_M_QUADS) {
        small_m_widen(x, depth, to, SMALL_M_QUADS);
    } else {
        memcpy(to, x, depth * sizeof(float));
    }
}

static void small_m_block_rows(const struct small_m_block *block) {
    const struct macrokernel_args *args = block->args;
    size_t k = block->begin * small_m_word_k(block->kind), most = block->words * small_m_word_k(block->kind);
    size_t depth = args->k - k < most ? args->k - k : most; // the last word may be incomplete
    for (size_t r = 0; r < block->rows; r++) {
        small_m_row((const char *)args->x[block->row + r] + block->begin * sizeof(float), depth, block->x + r * SMALL_M_ROW,
                    block->kind);
    }
}

// Any number of rows, up to SMALL_M_ROWS_... at a time.
static void small_m_macrokernel(const struct macrokernel_args *args, enum small_m_kind kind) {
    static void (*const multiply[])(const struct small_m_block *) = {small_m_bursts_f32, small_m_bursts_pairs,
                                                                     small_m_bursts_quads};
    static const size_t rows_most[] = {SMALL_M_ROWS_F32, SMALL_M_ROWS_PAIRS, SMALL_M_ROWS_QUADS};
    float x[PANEL_TILE * SMALL_M_ROW] __attribute__((aligned(64)));
    const size_t most = rows_most[kind], word = small_m_word_k(kind);
    struct small_m_block block = {.args = args, .kind = kind, .end = (args->k + word - 1) / word, .x = x};
    clear_sums(args);
    for (; block.row < args->rows; block.row += block.rows) {
        block.rows = args->rows - block.row < most ? args->rows - block.row : most;
        for (block.begin = 0; block.begin < block.end; block.begin += block.words) {
            block.words = block.end - block.begin < SMALL_M_WORDS ? block.end - block.begin : SMALL_M_WORDS;
            small_m_block_rows(&block);
            multiply[kind](&block);
        }
    }
}

// One panel, without the caller's scratch.
static void small_m_call(const struct panel_args *args, enum small_m_kind kind) {
    float sums[PANEL_TILE * KERNEL_SUMS] __attribute__((aligned(64)));
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = args->rows - row < PANEL_TILE ? args->rows - row : PANEL_TILE;
        struct macrokernel_args call = {
            .x = args->x + row, .rows = rows, .panels = &args->panel, .count = 1, .k = args->k, .sums = sums};
        small_m_macrokernel(&call, kind);
        for (size_t r = 0; r < rows; r++) {
            memcpy(args->out + (row + r) * args->out_stride, sums + r * KERNEL_SUMS, args->columns * sizeof(float));
        }
    }
}

void PANEL_TARGET(panel_f32)(const struct panel_args *args) {
    small_m_call(args, SMALL_M_F32);
}

void PANEL_TARGET(panel_bf16)(const struct panel_args *args) {
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    small_m_call(args, SMALL_M_PAIRS);
    float_mode_restore(before);
}

void PANEL_TARGET(panel_i8)(const struct panel_args *args) {
    small_m_call(args, SMALL_M_QUADS);
}
