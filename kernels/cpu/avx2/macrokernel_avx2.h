// Macrokernels for vectors of 8 floats and 16 registers: f32 by macrokernel_words_body.h, bf16 widened into scratch.
//
// Loop order of bf16: blocks of K, panels, passes of 16 columns, tiles of rows. The widened block of one pass is 16 KiB, half of
// L1, and stays there while all tiles of rows read it. The first two tiles widen it while they multiply. With up to four tiles
// nothing widened is stored: each tile widens the packed panel again, because the four instructions that widen a pair hide behind
// 24 FMAs, and stores do not. A block is then twice as long, since none of it has to stay in L1. Rows are widened once for all
// panels of the call. Sums pass through memory between two blocks, which is exact.
//
// With 16 registers for sums and factors, 3 FMAs take at least 5 instructions. So the inner loops have no branch except their end,
// and one base address serves all rows.
//
// The including file has included panel_small_m_avx2.h and fma_avx2.h, and defines the vector operations that panel_small_m_avx2.h
// and macrokernel_words_body.h list.
#include "kernels/cpu/common/macrokernel_words_body.h"

enum {
    WIDENED_BLOCK = 256,       // k; even
    WIDENED_SMALL_M_PARTS = 2, // up to WIDENED_SMALL_M_ROWS rows, a block of K is this many times WIDENED_BLOCK
    WIDENED_SMALL_M_ROWS = 4 * PANEL_TILE,
    WIDENED_ROWS = 120,                      // per pass over the panels: rows, sums and panel of more would not fit L2
    WIDENED_ROW = WIDENED_BLOCK + 2 * LANES, // floats of a widened row; no power of two, or rows would share cache sets
    WIDENED_SLICE = WIDENED_BLOCK * WORDS_PASS,
    WIDENED_RUN = 2 * LANES, // k of an iteration of the inner loop
};
_Static_assert((WIDENED_ROWS * WIDENED_ROW + WIDENED_SLICE) * sizeof(float) <= KERNEL_SCRATCH_BYTES, "scratch");
_Static_assert(WIDENED_ROWS >= WIDENED_SMALL_M_ROWS * (size_t)WIDENED_SMALL_M_PARTS, "scratch");
_Static_assert(!FLUSHES_BEFORE_ROUNDING, "sums are not checked for results that the CPU flushed before rounding");

// The widened weights that a tile finds in the slice buffer, and those that it stores there. The first tile stores the odd k, the
// second the even k: a tile that stored both would have four stores for 24 FMAs, and the stores would delay its loads. With few
// rows a stored copy costs more than it saves.
enum widened_state {
    WIDENED_UNCACHED,   // finds none, stores none
    WIDENED_STORE_ODD,  // finds none, stores the odd k
    WIDENED_STORE_EVEN, // finds the odd k, stores the even ones
    WIDENED_CACHED      // finds all
};

// One tile of rows against WORDS_PASS columns of a panel, over a block of K.
struct widened_pass {
    const float *x;        // the tile's first row; the others follow, WIDENED_ROW floats apart
    size_t depth;          // k; where it is odd, the rows and the panel hold +0 as the last pair's second element
    size_t part;           // floats from one WIDENED_BLOCK of a row to its next one
    const uint16_t *pairs; // the block's first pair, first column of the pass
    float *slice;          // [depth][WORDS_PASS]: the pass's widened columns, in the order of the sums
    float *sums;           // of the first row and column
    bool begins;           // the first block of K: sums start from +0
    struct macrokernel_prefetch ahead;
    struct macrokernel_prefetch *ahead_memory; // also prefetched, once an iteration; NULL: nothing
};

// Loads the tile's sums and prefetches the next tile's.
PANEL_INLINE void widened_load(vec sums[][PANEL_VECS], size_t rows, const struct widened_pass *pass) {
    if (pass->begins) {
        words_clear(sums, rows);
        return;
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        vec_prefetch(pass->sums + (rows + r) * KERNEL_SUMS);
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = vec_load(pass->sums + r * KERNEL_SUMS + v * LANES);
        }
    }
}

PANEL_INLINE void widened_store(vec sums[][PANEL_VECS], size_t rows, float *to) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            vec_store(to + r * KERNEL_SUMS + v * LANES, sums[r][v]);
        }
    }
}

PANEL_INLINE void widened_multiply(vec sums[][PANEL_VECS], size_t rows, const float *x, const vec *w) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        vec value = broadcast_in_order(x + r * WIDENED_ROW);
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = vec_fma(value, w[v], sums[r][v]);
        }
    }
}

// One pair of k, the odd one first. x[0] is the row's element of the odd k, x[even] that of the even k.
PANEL_INLINE void widened_pair(vec sums[][PANEL_VECS], size_t rows, const float *x, size_t even, const uint16_t *pairs,
                               float *slice, enum widened_state state) {
    vec w[PANEL_VECS];
    PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
        float *odd_slice = slice + v * LANES;
        w[v] = state >= WIDENED_STORE_EVEN ? vec_load(odd_slice) : odd_in_order(pairs + 2 * v * LANES);
        if (state == WIDENED_STORE_ODD) {
            vec_store(odd_slice, w[v]);
        }
    }
    widened_multiply(sums, rows, x, w);
    PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
        float *even_slice = slice + WORDS_PASS + v * LANES;
        w[v] = state == WIDENED_CACHED ? vec_load(even_slice) : even_in_order(pairs + 2 * v * LANES);
        if (state == WIDENED_STORE_EVEN) {
            vec_store(even_slice, w[v]);
        }
    }
    widened_multiply(sums, rows, x + even, w);
}

// `rows` and `state` are compile-time constants in each copy, so that the sums stay in registers.
PANEL_INLINE void widened_rows(struct widened_pass *pass, enum widened_state state, size_t rows) {
    vec sums[PANEL_TILE][PANEL_VECS];
    struct macrokernel_prefetch ahead = pass->ahead;
    const float *part = pass->x;
    const uint16_t *pairs = pass->pairs;
    float *slice = pass->slice;
    widened_load(sums, rows, pass);
    for (size_t left = pass->depth, depth; left > 0; left -= depth, part += pass->part) {
        depth = state == WIDENED_UNCACHED && left > WIDENED_BLOCK ? WIDENED_BLOCK : left;
        const float *x = part, *end = x + (depth + 1) / 2 * 2, *runs_end = x + depth / WIDENED_RUN * WIDENED_RUN;
        for (; x < runs_end; x += WIDENED_RUN, pairs += WIDENED_RUN * EXPERTD_KERNEL_PANEL, slice += WIDENED_RUN * WORDS_PASS) {
            if (pass->ahead_memory) {
                macro_prefetch(pass->ahead_memory);
            }
            PANEL_UNROLL for (size_t i = 0; i < LANES; i++) {
                words_prefetch(&ahead);
                widened_pair(sums, rows, x + i, LANES, pairs + 2 * i * EXPERTD_KERNEL_PANEL, slice + 2 * i * WORDS_PASS, state);
            }
        }
        for (; x < end; x += 2, pairs += 2 * EXPERTD_KERNEL_PANEL, slice += 2 * WORDS_PASS) {
            widened_pair(sums, rows, x, 1, pairs, slice, state);
        }
    }
    widened_store(sums, rows, pass->sums);
    pass->ahead = ahead;
}

// Not inlined: the compiler must not move an FMA across the caller's changes of the floating-point mode.
#define WIDENED_TILE_FUNCTION(name, state)                                                                                         \
    static __attribute__((noinline)) void name(struct widened_pass *pass, size_t rows) {                                           \
        PANEL_BY_ROWS(rows, widened_rows, pass, state);                                                                            \
    }

typedef void widened_tile_function(struct widened_pass *pass, size_t rows);
WIDENED_TILE_FUNCTION(widened_uncached, WIDENED_UNCACHED)
WIDENED_TILE_FUNCTION(widened_store_odd, WIDENED_STORE_ODD)
WIDENED_TILE_FUNCTION(widened_store_even, WIDENED_STORE_EVEN)
WIDENED_TILE_FUNCTION(widened_cached, WIDENED_CACHED)

// Widens one row: of each WIDENED_RUN k the odd ones, then the even ones; the rest of the row pair by pair, the odd k first.
static void widened_row(const uint16_t *x, size_t depth, float *to) {
    size_t i = 0;
    for (; i + WIDENED_RUN <= depth; i += WIDENED_RUN) {
        vec_store(to + i, vec_odd(x + i));
        vec_store(to + i + LANES, vec_even(x + i));
    }
    if (i < depth) {
        small_m_widen((const char *)(x + i), (depth - i) * sizeof *x, to + i, SMALL_M_PAIRS);
    }
}

// Rows [row, row + rows) of the call against k [begin, begin + depth) of one of its panels.
struct widened_block {
    const struct macrokernel_args *args;
    size_t row, rows, begin, depth, panel;
    struct macrokernel_prefetch *ahead_memory; // as in struct widened_pass
};

static bool widened_is_small_m(const struct widened_block *block) {
    return block->rows <= WIDENED_SMALL_M_ROWS;
}

// k of the block that begins at k `begin`.
static size_t widened_depth(const struct widened_block *block, size_t begin) {
    size_t left = block->args->k - begin, most = widened_is_small_m(block) ? WIDENED_SMALL_M_PARTS * WIDENED_BLOCK : WIDENED_BLOCK;
    return left < most ? left : most;
}

// The weights that are multiplied after this block: the same block of the next panel, the next block of the first panel, the first
// panel again for the call's remaining rows, or the first panel of the thread's next call. NULL: unknown.
static const uint16_t *widened_next_pairs(const struct widened_block *block) {
    const struct macrokernel_args *args = block->args;
    size_t end = block->begin + block->depth;
    if (block->panel + 1 < args->count) {
        return (const uint16_t *)args->panels[block->panel + 1] + block->begin * EXPERTD_KERNEL_PANEL;
    }
    if (end < args->k) {
        return (const uint16_t *)args->panels[0] + end * EXPERTD_KERNEL_PANEL;
    }
    return block->row + block->rows < args->rows ? args->panels[0] : args->next ? args->next[0] : NULL;
}

// Prefetches this pass's share of the rows' next block of K. The rows are scattered in memory, so widening them would stall.
static void widened_prefetch_rows(const struct widened_block *block, size_t pass) {
    const struct macrokernel_args *args = block->args;
    size_t begin = block->begin + block->depth, bytes = widened_depth(block, begin) * sizeof(uint16_t);
    size_t passes = EXPERTD_KERNEL_PANEL / WORDS_PASS;
    for (size_t r = block->panel * passes + pass; r < block->rows; r += args->count * passes) {
        const char *x = (const char *)args->x[block->row + r] + begin * sizeof(uint16_t);
        for (size_t i = 0; i < bytes; i += 64) {
            vec_prefetch(x + i);
        }
    }
}

// All tiles of rows against the pass's columns.
static void widened_columns(struct widened_pass *pass, size_t rows) {
    bool small_m = rows <= WIDENED_SMALL_M_ROWS;
    widened_tile_function *run = small_m ? widened_uncached : widened_store_odd;
    for (size_t row = 0, tile; row < rows; row += tile) {
        tile = panel_tile_rows(rows, row);
        run(pass, tile);
        run = small_m ? widened_uncached : row == 0 ? widened_store_even : widened_cached;
        pass->x += tile * WIDENED_ROW;
        pass->sums += tile * KERNEL_SUMS;
    }
}

static void widened_panel(const struct widened_block *block) {
    const struct macrokernel_args *args = block->args;
    float *slice = args->scratch;
    const uint16_t *pairs = (const uint16_t *)args->panels[block->panel] + block->begin * EXPERTD_KERNEL_PANEL;
    size_t tiles = (block->rows + PANEL_TILE - 1) / PANEL_TILE, passes = EXPERTD_KERNEL_PANEL / WORDS_PASS;
    size_t prefetches = tiles * passes * ((block->depth + 1) / 2);
    struct widened_pass pass = {
        .depth = block->depth,
        .part = block->rows * WIDENED_ROW,
        .slice = slice,
        .begins = block->begin == 0 && !args->accumulate,
        .ahead_memory = block->ahead_memory,
        .ahead =
            macrokernel_prefetch_over(widened_next_pairs(block), block->depth * EXPERTD_KERNEL_PANEL * sizeof *pairs, prefetches),
    };
    for (size_t i = 0; i < passes; i++) {
        widened_prefetch_rows(block, i);
        pass.pairs = pairs + 2 * i * WORDS_PASS;
        pass.x = slice + WIDENED_SLICE;
        pass.sums = args->sums + block->row * KERNEL_SUMS + block->panel * EXPERTD_KERNEL_PANEL + i * WORDS_PASS;
        widened_columns(&pass, block->rows);
    }
}

// Widens the block's rows to [part][row][WIDENED_ROW].
static void widened_pack_rows(const struct widened_block *block, float *to) {
    for (size_t at = 0; at < block->depth; at += WIDENED_BLOCK) {
        size_t depth = block->depth - at < WIDENED_BLOCK ? block->depth - at : WIDENED_BLOCK;
        for (size_t r = 0; r < block->rows; r++, to += WIDENED_ROW) {
            widened_row((const uint16_t *)block->args->x[block->row + r] + block->begin + at, depth, to);
        }
    }
}

// The prefetch of args->ahead (memory that the caller packs next), spread over all blocks of the call.
static struct macrokernel_prefetch widened_ahead_memory(const struct macrokernel_args *args) {
    size_t tiles = (args->rows + PANEL_TILE - 1) / PANEL_TILE;
    size_t runs = args->count * tiles * (EXPERTD_KERNEL_PANEL / WORDS_PASS) * (args->k / WIDENED_RUN);
    return args->ahead.runs == 0 ? (struct macrokernel_prefetch){0} : macrokernel_prefetch_of(&args->ahead, runs, false);
}

static void widened_blocks(const struct macrokernel_args *args, size_t row, size_t rows,
                           struct macrokernel_prefetch *ahead_memory) {
    struct widened_block block = {.args = args, .row = row, .rows = rows, .ahead_memory = ahead_memory->step ? ahead_memory : NULL};
    for (; block.begin < args->k; block.begin += block.depth) {
        block.depth = widened_depth(&block, block.begin);
        widened_pack_rows(&block, (float *)args->scratch + WIDENED_SLICE);
        for (block.panel = 0; block.panel < args->count; block.panel++) {
            widened_panel(&block);
        }
    }
}

void PANEL_TARGET(macrokernel_bf16)(const struct macrokernel_args *args) {
    size_t calls = (args->rows + WIDENED_ROWS - 1) / WIDENED_ROWS;
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    if (args->rows <= SMALL_M_ROWS_PAIRS) {
        small_m_macrokernel(args, SMALL_M_PAIRS);
        float_mode_restore(before);
        return;
    }
    if (args->k == 0) {
        clear_sums(args);
    }
    struct macrokernel_prefetch ahead_memory = widened_ahead_memory(args);
    for (size_t row = 0, rows; row < args->rows; row += rows, calls--) {
        rows = (args->rows - row + calls - 1) / calls;
        widened_blocks(args, row, rows, &ahead_memory);
    }
    float_mode_restore(before);
}

void PANEL_TARGET(macrokernel_f32)(const struct macrokernel_args *args) {
    if (args->rows <= SMALL_M_ROWS_F32) {
        small_m_macrokernel(args, SMALL_M_F32);
    } else {
        words_macrokernel(args, args->k);
    }
}

// The kernel for more than SMALL_M_ROWS_QUADS rows is in panel_i8_avx2.c.
void PANEL_TARGET(macrokernel_i8)(const struct macrokernel_args *args) {
    if (args->rows <= SMALL_M_ROWS_QUADS) {
        small_m_macrokernel(args, SMALL_M_QUADS);
    } else {
        PANEL_TARGET(large_m_macrokernel_i8)(args);
    }
}
