// The group kernels of vectors of 8 floats and 16 registers: f32 by group_words.h, and bf16 widened into scratch.
//
// bf16: K goes in blocks, and within one a panel at a time, 16 of its columns after another. Of 16 columns a block is 16 KiB, half
// of L1, where it stays while all tiles of rows pass over it; the first one widens it as it multiplies. Rows are widened once for
// all panels of the call. Both are laid out in the order of the sums: of each pair the odd k first. Sums pass through memory
// between two blocks, which is exact.
//
// Where only 16 registers are sums and factors there are 5 instructions to 3 fmas at the least. So the loops have no branch but
// their end, and one base for all rows.
//
// The including file has included panel_few.h and defines what that and group_words.h ask for.
#include "kernels/cpu/group_words.h"

enum {
    WIDENED_BLOCK = 256,                     // k
    WIDENED_ROWS = 120,                      // more are cut: rows, sums and panel would leave L2
    WIDENED_ROW = WIDENED_BLOCK + 2 * LANES, // floats of a widened row; not a power of two, which would share cache sets
    WIDENED_PANEL = WIDENED_BLOCK * KERNEL_PANEL,
};
_Static_assert((WIDENED_PANEL + WIDENED_ROWS * WIDENED_ROW) * sizeof(float) <= KERNEL_SCRATCH_BYTES, "scratch");
_Static_assert(!FLUSHES_BEFORE_ROUNDING, "no sum is checked for what the machine flushed");
_Static_assert(WORDS_RUN % 2 == 0 && WORDS_FETCH == 2, "a fetch for each pair");

// One tile of rows against WORDS_PASS columns of a panel, over a block of K.
struct widened_pass {
    const float *x;        // the tile's first row; the others follow, WIDENED_ROW apart
    size_t depth;          // even
    float *panel;          // [depth][WORDS_PASS]
    const uint16_t *pairs; // what it is to be widened from: the block's first pair, first column of the pass
    float *sums;           // of the first row and column
    struct group_ahead ahead;
};

// Loads the tile's sums, and fetches the next one's.
PANEL_INLINE void widened_load(vec sums[][PANEL_VECS], size_t rows, const float *from) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        vec_prefetch(from + (rows + r) * KERNEL_SUMS);
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = vec_load(from + r * KERNEL_SUMS + v * LANES);
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
        vec value = vec_broadcast(x + r * WIDENED_ROW);
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = vec_fma(value, w[v], sums[r][v]);
        }
    }
}

PANEL_INLINE void widened_step(vec sums[][PANEL_VECS], size_t rows, const float *x, const float *panel) {
    vec w[PANEL_VECS];
    PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
        w[v] = vec_load(panel + v * LANES);
    }
    widened_multiply(sums, rows, x, w);
}

// A pair, whose columns are widened on the way.
PANEL_INLINE void widened_pair(vec sums[][PANEL_VECS], size_t rows, const float *x, const uint16_t *pairs, float *panel) {
    vec w[PANEL_VECS];
    PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
        w[v] = vec_odd(pairs + 2 * v * LANES);
        vec_store(panel + v * LANES, w[v]);
    }
    widened_multiply(sums, rows, x, w);
    PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
        w[v] = vec_even(pairs + 2 * v * LANES);
        vec_store(panel + WORDS_PASS + v * LANES, w[v]);
    }
    widened_multiply(sums, rows, x + 1, w);
}

// `rows` is a constant in each copy of the passes, so that the sums are registers.
PANEL_INLINE void widened_rows(struct widened_pass *pass, size_t rows) {
    vec sums[PANEL_TILE][PANEL_VECS];
    struct group_ahead ahead = pass->ahead;
    const float *x = pass->x, *panel = pass->panel;
    const float *end = x + pass->depth, *runs_end = x + pass->depth / WORDS_RUN * WORDS_RUN;
    widened_load(sums, rows, pass->sums);
    for (; x < runs_end; x += WORDS_RUN, panel += WORDS_RUN * WORDS_PASS) {
        PANEL_UNROLL for (size_t i = 0; i < WORDS_RUN; i++) {
            if (i % WORDS_FETCH == 0) {
                words_fetch(&ahead);
            }
            widened_step(sums, rows, x + i, panel + i * WORDS_PASS);
        }
    }
    for (; x < end; x++, panel += WORDS_PASS) {
        widened_step(sums, rows, x, panel);
    }
    widened_store(sums, rows, pass->sums);
    pass->ahead = ahead;
}

PANEL_INLINE void widened_first_rows(struct widened_pass *pass, size_t rows) {
    vec sums[PANEL_TILE][PANEL_VECS];
    struct group_ahead ahead = pass->ahead;
    const float *x = pass->x, *end = x + pass->depth, *runs_end = x + pass->depth / WORDS_RUN * WORDS_RUN;
    float *panel = pass->panel;
    const uint16_t *pairs = pass->pairs;
    widened_load(sums, rows, pass->sums);
    for (; x < runs_end; x += WORDS_RUN, panel += WORDS_RUN * WORDS_PASS, pairs += WORDS_RUN * KERNEL_PANEL) {
        PANEL_UNROLL for (size_t i = 0; i < WORDS_RUN; i += 2) {
            words_fetch(&ahead);
            widened_pair(sums, rows, x + i, pairs + i * KERNEL_PANEL, panel + i * WORDS_PASS);
        }
    }
    for (; x < end; x += 2, panel += 2 * WORDS_PASS, pairs += 2 * KERNEL_PANEL) {
        widened_pair(sums, rows, x, pairs, panel);
    }
    widened_store(sums, rows, pass->sums);
    pass->ahead = ahead;
}

// Not inlined: no fma may move across a change of the floating-point mode in the caller.
#define WIDENED_TILE_FUNCTION(name, run)                                                                                           \
    static __attribute__((noinline)) void name(struct widened_pass *pass, size_t rows) {                                           \
        switch (rows) {                                                                                                            \
        case 1:                                                                                                                    \
            run(pass, 1);                                                                                                          \
            return;                                                                                                                \
        case 2:                                                                                                                    \
            run(pass, 2);                                                                                                          \
            return;                                                                                                                \
        case 3:                                                                                                                    \
            run(pass, 3);                                                                                                          \
            return;                                                                                                                \
        case 4:                                                                                                                    \
            run(pass, 4);                                                                                                          \
            return;                                                                                                                \
        case 5:                                                                                                                    \
            run(pass, 5);                                                                                                          \
            return;                                                                                                                \
        default:                                                                                                                   \
            run(pass, PANEL_TILE);                                                                                                 \
            return;                                                                                                                \
        }                                                                                                                          \
    }

WIDENED_TILE_FUNCTION(widened_tile, widened_rows)
WIDENED_TILE_FUNCTION(widened_first_tile, widened_first_rows)

// A block of K of some of the call's rows against one of its panels.
struct widened_block {
    const struct panel_group_args *args;
    size_t row, rows, begin, depth, panel;
};

// What is multiplied next: of the next panel, of the next block, or of the panels that the thread takes next.
static const uint16_t *widened_next(const struct widened_block *block) {
    const struct panel_group_args *args = block->args;
    size_t end = block->begin + block->depth;
    if (block->panel + 1 < args->count) {
        return (const uint16_t *)args->panels[block->panel + 1] + block->begin * KERNEL_PANEL;
    }
    if (end < args->k) {
        return (const uint16_t *)args->panels[0] + end * KERNEL_PANEL;
    }
    return block->row + block->rows < args->rows ? args->panels[0] : args->next ? args->next[0] : NULL;
}

// Each panel's share of the rows' next block: they come from everywhere, and would be waited for where they are widened.
static void widened_fetch_rows(const struct widened_block *block) {
    const struct panel_group_args *args = block->args;
    size_t begin = block->begin + block->depth;
    size_t depth = args->k - begin < WIDENED_BLOCK ? args->k - begin : WIDENED_BLOCK;
    for (size_t r = block->panel; r < block->rows; r += args->count) {
        const char *x = (const char *)args->x[block->row + r] + begin * sizeof(uint16_t);
        for (size_t i = 0; i < depth * sizeof(uint16_t); i += 64) {
            vec_prefetch(x + i);
        }
    }
}

static void widened_panel(const struct widened_block *block) {
    const struct panel_group_args *args = block->args;
    float *panel = args->scratch, *wide = panel + WIDENED_PANEL;
    const uint16_t *pairs = (const uint16_t *)args->panels[block->panel] + block->begin * KERNEL_PANEL;
    float *sums = args->sums + block->row * KERNEL_SUMS + block->panel * KERNEL_PANEL;
    size_t tiles = (block->rows + PANEL_TILE - 1) / PANEL_TILE;
    size_t fetches = tiles * (KERNEL_PANEL / WORDS_PASS) * ((block->depth + 1) / 2);
    struct widened_pass pass = {
        .depth = (block->depth + 1) / 2 * 2,
        .ahead = group_ahead_over(widened_next(block), block->depth * KERNEL_PANEL * sizeof *pairs, fetches),
    };
    for (size_t column = 0; column < KERNEL_PANEL; column += WORDS_PASS) {
        pass.panel = panel + column * WIDENED_BLOCK;
        pass.pairs = pairs + 2 * column;
        for (size_t row = 0, rows; row < block->rows; row += rows) {
            rows = panel_tile_rows(block->rows, row);
            pass.x = wide + row * WIDENED_ROW;
            pass.sums = sums + row * KERNEL_SUMS + column;
            (row > 0 ? widened_tile : widened_first_tile)(&pass, rows);
        }
    }
}

static void widened_blocks(const struct panel_group_args *args, size_t row, size_t rows) {
    struct widened_block block = {.args = args, .row = row, .rows = rows};
    float *wide = (float *)args->scratch + WIDENED_PANEL;
    for (; block.begin < args->k; block.begin += block.depth) {
        block.depth = args->k - block.begin < WIDENED_BLOCK ? args->k - block.begin : WIDENED_BLOCK;
        for (size_t r = 0; r < rows; r++) {
            few_widen_row((const uint16_t *)args->x[row + r] + block.begin, block.depth, wide + r * WIDENED_ROW);
        }
        for (block.panel = 0; block.panel < args->count; block.panel++) {
            widened_fetch_rows(&block);
            widened_panel(&block);
        }
    }
}

void PANEL_TARGET(group_bf16)(const struct panel_group_args *args) {
    size_t calls = (args->rows + WIDENED_ROWS - 1) / WIDENED_ROWS;
    group_clear(args);
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    if (args->rows == 1) {
        one_row_bf16(args);
        float_mode_restore(before);
        return;
    }
    for (size_t row = 0, rows; row < args->rows; row += rows, calls--) {
        rows = (args->rows - row + calls - 1) / calls;
        widened_blocks(args, row, rows);
    }
    float_mode_restore(before);
}

void PANEL_TARGET(group_f32)(const struct panel_group_args *args) {
    if (args->rows == 1) {
        group_clear(args);
        one_row_f32(args);
        return;
    }
    words_group(args, args->k);
}
