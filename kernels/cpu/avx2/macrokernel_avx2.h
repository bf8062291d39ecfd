// The group kernels of vectors of 8 floats and 16 registers: f32 by macrokernel_words_body.h, and bf16 widened into scratch.
//
// bf16: K goes in blocks, and within one a panel at a time, 16 of its columns after another. Of 16 columns a block is 16 KiB, half
// of L1, where it stays while all tiles of rows pass over it; the first two widen it as they multiply. Up to four tiles take the
// panel as it lies, each widening it anew: a pair's four instructions hide behind 24 fmas, which stores of what is widened do not.
// Then a block is twice as long, for nothing of it need stay in L1. Rows are widened once for all panels of the call. Sums pass
// through memory between two blocks, which is exact.
//
// Where only 16 registers are sums and factors there are 5 instructions to 3 fmas at the least. So the loops have no branch but
// their end, and one base for all rows.
//
// The including file has included panel_small_m_avx2.h and fma_avx2.h, and defines what the former and macrokernel_words_body.h ask
// for.
#include "kernels/cpu/common/macrokernel_words_body.h"

enum {
    WIDENED_BLOCK = 256,       // k; even
    WIDENED_SMALL_M_PARTS = 2, // of few rows such a block is one of several parts
    WIDENED_SMALL_M_ROWS = 4 * PANEL_TILE,
    WIDENED_ROWS = 120,                      // more are cut: rows, sums and panel would leave L2
    WIDENED_ROW = WIDENED_BLOCK + 2 * LANES, // floats of a widened row; not a power of two, which would share cache sets
    WIDENED_SLICE = WIDENED_BLOCK * WORDS_PASS,
    WIDENED_RUN = 2 * LANES, // k of a run of the inner loop
};
_Static_assert((WIDENED_ROWS * WIDENED_ROW + WIDENED_SLICE) * sizeof(float) <= KERNEL_SCRATCH_BYTES, "scratch");
_Static_assert(WIDENED_ROWS >= WIDENED_SMALL_M_ROWS * (size_t)WIDENED_SMALL_M_PARTS, "scratch");
_Static_assert(!FLUSHES_BEFORE_ROUNDING, "no sum is checked for what the machine flushed");

// What a tile finds of a panel's columns and leaves: nothing at all (few rows: it costs more than it saves), the odd k widened by
// the first tile, the even ones by the second. Both by one are four stores to 24 fmas, which hold its loads up.
enum widened_state { WIDENED_NEVER, WIDENED_FIRST, WIDENED_SECOND, WIDENED_BOTH };

// One tile of rows against WORDS_PASS columns of a panel, over a block of K.
struct widened_pass {
    const float *x;        // the tile's first row; the others follow, WIDENED_ROW apart
    size_t depth;          // an odd one's last k is a pair with +0, which the rows hold
    size_t part;           // floats from WIDENED_BLOCK of a row to the next ones
    const uint16_t *pairs; // the block's first pair, first column of the pass
    float *slice;          // [depth][WORDS_PASS]: the pass's columns widened, in the order of the sums
    float *sums;           // of the first row and column
    bool begins;           // K: sums begin at +0
    struct macrokernel_prefetch ahead;
    struct macrokernel_prefetch *elsewhere; // what is fetched besides, once a run; NULL: nothing
};

// Loads the tile's sums, and fetches the next one's.
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

// A pair of k; x[0] is the odd one's factor, x[even] the other's.
PANEL_INLINE void widened_pair(vec sums[][PANEL_VECS], size_t rows, const float *x, size_t even, const uint16_t *pairs,
                               float *slice, enum widened_state state) {
    vec w[PANEL_VECS];
    PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
        float *odd_slice = slice + v * LANES;
        w[v] = state >= WIDENED_SECOND ? vec_load(odd_slice) : odd_in_order(pairs + 2 * v * LANES);
        if (state == WIDENED_FIRST) {
            vec_store(odd_slice, w[v]);
        }
    }
    widened_multiply(sums, rows, x, w);
    PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
        float *even_slice = slice + WORDS_PASS + v * LANES;
        w[v] = state == WIDENED_BOTH ? vec_load(even_slice) : even_in_order(pairs + 2 * v * LANES);
        if (state == WIDENED_SECOND) {
            vec_store(even_slice, w[v]);
        }
    }
    widened_multiply(sums, rows, x + even, w);
}

// `rows` and `state` are constants in each copy of the passes, so that the sums are registers.
PANEL_INLINE void widened_rows(struct widened_pass *pass, enum widened_state state, size_t rows) {
    vec sums[PANEL_TILE][PANEL_VECS];
    struct macrokernel_prefetch ahead = pass->ahead;
    const float *part = pass->x;
    const uint16_t *pairs = pass->pairs;
    float *slice = pass->slice;
    widened_load(sums, rows, pass);
    for (size_t left = pass->depth, depth; left > 0; left -= depth, part += pass->part) {
        depth = state == WIDENED_NEVER && left > WIDENED_BLOCK ? WIDENED_BLOCK : left;
        const float *x = part, *end = x + (depth + 1) / 2 * 2, *runs_end = x + depth / WIDENED_RUN * WIDENED_RUN;
        for (; x < runs_end; x += WIDENED_RUN, pairs += WIDENED_RUN * EXPERTD_KERNEL_PANEL, slice += WIDENED_RUN * WORDS_PASS) {
            if (pass->elsewhere) {
                macro_prefetch(pass->elsewhere);
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

// Not inlined: no fma may move across a change of the floating-point mode in the caller.
#define WIDENED_TILE_FUNCTION(name, state)                                                                                         \
    static __attribute__((noinline)) void name(struct widened_pass *pass, size_t rows) {                                           \
        PANEL_BY_ROWS(rows, widened_rows, pass, state);                                                                            \
    }

typedef void widened_tile_function(struct widened_pass *pass, size_t rows);
WIDENED_TILE_FUNCTION(widened_never, WIDENED_NEVER)
WIDENED_TILE_FUNCTION(widened_first, WIDENED_FIRST)
WIDENED_TILE_FUNCTION(widened_second, WIDENED_SECOND)
WIDENED_TILE_FUNCTION(widened_both, WIDENED_BOTH)

// Of each run the odd k, then the even ones; what is left of a row in pairs, the odd k first.
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

// A block of K of some of the call's rows against one of its panels.
struct widened_block {
    const struct macrokernel_args *args;
    size_t row, rows, begin, depth, panel;
    struct macrokernel_prefetch *elsewhere; // widened_pass's
};

static bool widened_is_small_m(const struct widened_block *block) {
    return block->rows <= WIDENED_SMALL_M_ROWS;
}

// The depth of the block that begins there.
static size_t widened_depth(const struct widened_block *block, size_t begin) {
    size_t left = block->args->k - begin, most = widened_is_small_m(block) ? WIDENED_SMALL_M_PARTS * WIDENED_BLOCK : WIDENED_BLOCK;
    return left < most ? left : most;
}

// What is multiplied next: of the next panel, of the next block, or of the panels that the thread takes next.
static const uint16_t *widened_next(const struct widened_block *block) {
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

// A pass's share of the rows' next block: they come from everywhere, and would be waited for where they are widened.
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

// All rows against the pass's columns.
static void widened_columns(struct widened_pass *pass, size_t rows) {
    bool small_m = rows <= WIDENED_SMALL_M_ROWS;
    widened_tile_function *run = small_m ? widened_never : widened_first;
    for (size_t row = 0, tile; row < rows; row += tile) {
        tile = panel_tile_rows(rows, row);
        run(pass, tile);
        run = small_m ? widened_never : row == 0 ? widened_second : widened_both;
        pass->x += tile * WIDENED_ROW;
        pass->sums += tile * KERNEL_SUMS;
    }
}

static void widened_panel(const struct widened_block *block) {
    const struct macrokernel_args *args = block->args;
    float *slice = args->scratch;
    const uint16_t *pairs = (const uint16_t *)args->panels[block->panel] + block->begin * EXPERTD_KERNEL_PANEL;
    size_t tiles = (block->rows + PANEL_TILE - 1) / PANEL_TILE, passes = EXPERTD_KERNEL_PANEL / WORDS_PASS;
    size_t fetches = tiles * passes * ((block->depth + 1) / 2);
    struct widened_pass pass = {
        .depth = block->depth,
        .part = block->rows * WIDENED_ROW,
        .slice = slice,
        .begins = block->begin == 0 && !args->goes_on,
        .elsewhere = block->elsewhere,
        .ahead = macrokernel_prefetch_over(widened_next(block), block->depth * EXPERTD_KERNEL_PANEL * sizeof *pairs, fetches),
    };
    for (size_t i = 0; i < passes; i++) {
        widened_prefetch_rows(block, i);
        pass.pairs = pairs + 2 * i * WORDS_PASS;
        pass.x = slice + WIDENED_SLICE;
        pass.sums = args->sums + block->row * KERNEL_SUMS + block->panel * EXPERTD_KERNEL_PANEL + i * WORDS_PASS;
        widened_columns(&pass, block->rows);
    }
}

// [part][row][WIDENED_ROW].
static void widened_block_rows(const struct widened_block *block, float *to) {
    for (size_t at = 0; at < block->depth; at += WIDENED_BLOCK) {
        size_t depth = block->depth - at < WIDENED_BLOCK ? block->depth - at : WIDENED_BLOCK;
        for (size_t r = 0; r < block->rows; r++, to += WIDENED_ROW) {
            widened_row((const uint16_t *)block->args->x[block->row + r] + block->begin + at, depth, to);
        }
    }
}

// What all blocks of a call fetch beside panels, which its caller packs next.
static struct macrokernel_prefetch widened_elsewhere(const struct macrokernel_args *args) {
    size_t tiles = (args->rows + PANEL_TILE - 1) / PANEL_TILE;
    size_t runs = args->count * tiles * (EXPERTD_KERNEL_PANEL / WORDS_PASS) * (args->k / WIDENED_RUN);
    return args->ahead.runs == 0 ? (struct macrokernel_prefetch){0} : macrokernel_prefetch_of(&args->ahead, runs, false);
}

static void widened_blocks(const struct macrokernel_args *args, size_t row, size_t rows, struct macrokernel_prefetch *elsewhere) {
    struct widened_block block = {.args = args, .row = row, .rows = rows, .elsewhere = elsewhere->step ? elsewhere : NULL};
    for (; block.begin < args->k; block.begin += block.depth) {
        block.depth = widened_depth(&block, block.begin);
        widened_block_rows(&block, (float *)args->scratch + WIDENED_SLICE);
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
        group_clear(args);
    }
    struct macrokernel_prefetch elsewhere = widened_elsewhere(args);
    for (size_t row = 0, rows; row < args->rows; row += rows, calls--) {
        rows = (args->rows - row + calls - 1) / calls;
        widened_blocks(args, row, rows, &elsewhere);
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

// More rows than are taken in turns: panel_i8_avx2.c.
void PANEL_TARGET(macrokernel_i8)(const struct macrokernel_args *args) {
    if (args->rows <= SMALL_M_ROWS_QUADS) {
        small_m_macrokernel(args, SMALL_M_QUADS);
    } else {
        PANEL_TARGET(large_m_macrokernel_i8)(args);
    }
}
