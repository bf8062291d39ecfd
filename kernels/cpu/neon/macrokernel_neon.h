// NEON's macrokernels, over the vector of the including file, which includes panel_body.h before this. f32:
// macrokernel_words_body.h. bf16 is widened to f32 here. Widening a vector costs as many instructions as the fmas of two rows, so a
// block of a panel is widened once: the first tile of rows widens it while multiplying and stores it to scratch for the other tiles
// (a separate widening pass would wait for its stores). Rows are widened once for all panels. Between two blocks of K sums are
// stored and loaded, which is exact.
//
// Widened layouts: a panel's block is [pair][2][64], a row's block [pairs / LANES][2][LANES]; [0] is the odd k, which is added
// first.
#include "kernels/cpu/common/macrokernel_words_body.h"

enum {
    WIDEN_RUN = 2 * LANES,     // k of a vector of pairs
    MACRO_BLOCK = 256,         // k of a block: 4 widened panels (256 KiB) stay in L2, a tile of rows (6 KiB) in L1
    MACRO_SMALL_M_BLOCK = 128, // k of a block up to MACRO_SMALL_M_ROWS: one widened panel (32 KiB) stays in L1 over all tiles
    MACRO_SMALL_M_ROWS = 48,
    MACRO_ROW = MACRO_BLOCK + LANES, // floats of a widened row; not a power of two, so that rows do not share cache sets
    MACRO_SMALL_M_ROW = MACRO_SMALL_M_BLOCK + LANES,
    MACRO_RUN = WIDEN_RUN,                            // k of the inner loop between two prefetches
    MACRO_PANEL = MACRO_BLOCK * EXPERTD_KERNEL_PANEL, // floats of a widened panel's block
    MACRO_WIDE = KERNEL_PANELS_MAX * MACRO_PANEL,     // floats of all widened panels' blocks
};
_Static_assert((MACRO_WIDE + PANEL_TILE * MACRO_ROW) * sizeof(float) <= KERNEL_SCRATCH_BYTES, "scratch for large m");
_Static_assert(MACRO_SMALL_M_BLOCK *EXPERTD_KERNEL_PANEL + MACRO_SMALL_M_ROWS * MACRO_SMALL_M_ROW <= MACRO_WIDE,
               "scratch for small m");

// Widens `depth` k of a row. `wide` holds complete runs: an odd tail and the rest of the last vector are +0.
static void widen_row(const uint16_t *x, size_t depth, float *wide) {
    for (size_t i = 0; i < depth; i += WIDEN_RUN) {
        uint16_t tail[WIDEN_RUN] = {0};
        const uint16_t *pairs = x + i;
        if (depth - i < WIDEN_RUN) {
            memcpy(tail, pairs, (depth - i) * sizeof *tail);
            pairs = tail;
        }
        vec_store(wide + i, vec_odd(pairs));
        vec_store(wide + i + LANES, vec_even(pairs));
    }
}

// One tile of rows by PANEL_PASS columns of one panel, over a block of K.
struct macro_pass {
    const float *x[PANEL_TILE]; // each row's first k of the block, widened
    size_t depth;               // k of the block
    float *panel;               // the block's first k, first column of the pass, widened
    const uint16_t *pairs;      // the packed pairs, if this pass widens them to `panel`; NULL: `panel` has been written before
    float *sums;                // of the first row and column
    struct macrokernel_prefetch *prefetch;
};

PANEL_INLINE void macro_load(vec sums[][PANEL_VECS], size_t rows, const float *from) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = vec_load(from + r * KERNEL_SUMS + v * LANES);
        }
    }
}

PANEL_INLINE void macro_store(vec sums[][PANEL_VECS], size_t rows, float *to) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            vec_store(to + r * KERNEL_SUMS + v * LANES, sums[r][v]);
        }
    }
}

PANEL_INLINE void macro_step(vec sums[][PANEL_VECS], size_t rows, const float *const *x, size_t i, const float *panel) {
    vec w[PANEL_VECS];
    PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
        w[v] = vec_load(panel + v * LANES);
    }
    panel_step(sums, rows, x, i, w);
}

// One pair of k, which is widened and stored to `panel`.
PANEL_INLINE void macro_widen_step(vec sums[][PANEL_VECS], size_t rows, const float *const *x, size_t i, const uint16_t *pairs,
                                   float *panel) {
    vec w[PANEL_VECS];
    PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
        w[v] = vec_odd(pairs + 2 * v * LANES);
        vec_store(panel + v * LANES, w[v]);
    }
    panel_step(sums, rows, x, i, w);
    PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
        w[v] = vec_even(pairs + 2 * v * LANES);
        vec_store(panel + EXPERTD_KERNEL_PANEL + v * LANES, w[v]);
    }
    panel_step(sums, rows, x, i + LANES, w);
}

// Pairs of the run that begins at `begin`; an odd last k is padded to a pair.
PANEL_INLINE size_t macro_pairs(const struct macro_pass *pass, size_t begin) {
    return pass->depth - begin < MACRO_RUN ? (pass->depth - begin + 1) / 2 : LANES;
}

// `rows` is a constant in each copy of the passes, so that the sums are registers.
PANEL_INLINE void macro_pass_bf16(const struct macro_pass *pass, size_t rows) {
    vec sums[PANEL_TILE][PANEL_VECS];
    struct macrokernel_prefetch prefetch = *pass->prefetch;
    const float *panel = pass->panel;
    macro_load(sums, rows, pass->sums);
    for (size_t begin = 0; begin < pass->depth; begin += MACRO_RUN) {
        size_t end = begin + macro_pairs(pass, begin);
        words_prefetch(&prefetch);
        for (size_t i = begin; i < end; i++, panel += 2 * EXPERTD_KERNEL_PANEL) {
            macro_step(sums, rows, pass->x, i, panel);
            macro_step(sums, rows, pass->x, i + LANES, panel + EXPERTD_KERNEL_PANEL);
        }
    }
    macro_store(sums, rows, pass->sums);
    *pass->prefetch = prefetch;
}

PANEL_INLINE void macro_pass_widen(const struct macro_pass *pass, size_t rows) {
    vec sums[PANEL_TILE][PANEL_VECS];
    struct macrokernel_prefetch prefetch = *pass->prefetch;
    const uint16_t *pairs = pass->pairs;
    float *panel = pass->panel;
    macro_load(sums, rows, pass->sums);
    for (size_t begin = 0; begin < pass->depth; begin += MACRO_RUN) {
        size_t end = begin + macro_pairs(pass, begin);
        words_prefetch(&prefetch);
        for (size_t i = begin; i < end; i++, pairs += 2 * EXPERTD_KERNEL_PANEL, panel += 2 * EXPERTD_KERNEL_PANEL) {
            macro_widen_step(sums, rows, pass->x, i, pairs, panel);
        }
    }
    macro_store(sums, rows, pass->sums);
    *pass->prefetch = prefetch;
}

static void macro_next_columns(struct macro_pass *pass) {
    pass->panel += PANEL_PASS;
    pass->pairs += pass->pairs ? 2 * PANEL_PASS : 0;
    pass->sums += PANEL_PASS;
}

// Not inlined: no fma may move across a change of the floating-point mode in the caller.
#define MACRO_TILE_FUNCTION(name, run)                                                                                             \
    static __attribute__((noinline)) void name(struct macro_pass *pass, size_t rows) {                                             \
        for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += PANEL_PASS, macro_next_columns(pass)) {                   \
            PANEL_BY_ROWS(rows, run, pass);                                                                                        \
        }                                                                                                                          \
    }

MACRO_TILE_FUNCTION(macro_tile_bf16, macro_pass_bf16)
MACRO_TILE_FUNCTION(macro_tile_widen, macro_pass_widen)

// A block of K of the call.
struct macro_block {
    const struct macrokernel_args *args;
    size_t begin, depth;
    struct macrokernel_prefetch prefetch[KERNEL_PANELS_MAX]; // for each panel: its next block, or the next call's panel
};

static struct macro_block macro_begin(const struct macrokernel_args *args, size_t begin, size_t block_max) {
    struct macro_block block = {.args = args, .begin = begin};
    block.depth = args->k - begin < block_max ? args->k - begin : block_max;
    bool ends = begin + block.depth == args->k;
    const void *const *next = ends ? args->next : args->panels;
    size_t tiles = (args->rows + PANEL_TILE - 1) / PANEL_TILE;
    size_t runs = tiles * (EXPERTD_KERNEL_PANEL / PANEL_PASS) * ((block.depth + MACRO_RUN - 1) / MACRO_RUN);
    for (size_t p = 0; next && p < args->count; p++) {
        const uint16_t *from = (const uint16_t *)next[p] + (ends ? 0 : (begin + block.depth) * EXPERTD_KERNEL_PANEL);
        block.prefetch[p] = macrokernel_prefetch_over(from, block.depth * EXPERTD_KERNEL_PANEL * sizeof *from, runs);
    }
    return block;
}

// Prefetches rows of the tile at `row`, or of the next block's first tile: panel `panel`'s share of them. Rows may be anywhere in
// memory, so hardware does not prefetch them.
static void macro_prefetch_rows(const struct macro_block *block, size_t row, size_t panel) {
    const struct macrokernel_args *args = block->args;
    size_t begin = block->begin;
    if (row >= args->rows) {
        row = 0;
        begin += block->depth;
    }
    size_t end = row + PANEL_TILE < args->rows ? row + PANEL_TILE : args->rows;
    size_t depth = args->k - begin < block->depth ? args->k - begin : block->depth;
    for (size_t r = row + panel; r < end; r += args->count) {
        const char *x = (const char *)args->x[r] + begin * sizeof(uint16_t);
        for (size_t i = 0; i < depth * sizeof(uint16_t); i += 64) {
            vec_prefetch(x + i);
        }
    }
}

// Sets the fields of the pass that depend on its tile and panel.
static void macro_set_target(struct macro_block *block, size_t row, size_t panel, struct macro_pass *pass) {
    pass->sums = block->args->sums + row * KERNEL_SUMS + panel * EXPERTD_KERNEL_PANEL;
    pass->prefetch = &block->prefetch[panel];
}

static const uint16_t *macro_row_at(const struct macro_block *block, size_t row) {
    return (const uint16_t *)block->args->x[row] + block->begin;
}

static void macro_multiply_bf16(const struct macro_block *block, size_t panel, size_t tile, size_t rows, struct macro_pass *pass) {
    if (tile > 0) {
        pass->pairs = NULL;
        macro_tile_bf16(pass, rows);
    } else {
        pass->pairs = (const uint16_t *)block->args->panels[panel] + block->begin * EXPERTD_KERNEL_PANEL;
        macro_tile_widen(pass, rows);
    }
}

// One row by the widened columns, with every fma flushed as the contract says.
static __attribute__((noinline)) void macro_exact_bf16(const struct macro_pass *pass, size_t row) {
    const float *x = pass->x[row];
    float *sums = pass->sums + row * KERNEL_SUMS;
    for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += PANEL_PASS) {
        const float *panel = pass->panel + column;
        vec sum[PANEL_VECS];
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sum[v] = vec_load(sums + column + v * LANES);
        }
        for (size_t pair = 0; pair < (pass->depth + 1) / 2; pair++, panel += 2 * EXPERTD_KERNEL_PANEL) {
            const float *at = x + pair / LANES * 2 * LANES + pair % LANES;
            vec odd = vec_broadcast(at), even = vec_broadcast(at + LANES);
            PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
                sum[v] = vec_fma_flushed(odd, vec_load(panel + v * LANES), sum[v]);
                sum[v] = vec_fma_flushed(even, vec_load(panel + EXPERTD_KERNEL_PANEL + v * LANES), sum[v]);
            }
        }
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            vec_store(sums + column + v * LANES, sum[v]);
        }
    }
}

static void macro_copy_sums(size_t rows, const float *from, size_t from_stride, float *to, size_t to_stride) {
    for (size_t r = 0; r < rows; r++) {
        memcpy(to + r * to_stride, from + r * from_stride, EXPERTD_KERNEL_PANEL * sizeof *to);
    }
}

// macro_multiply_bf16, repeated by macro_exact_bf16 if the machine may have flushed a result wrongly.
static void macro_checked_bf16(const struct macro_block *block, size_t panel, size_t tile, size_t rows, struct macro_pass *pass) {
    struct macro_pass first = *pass;
    float before[PANEL_TILE * EXPERTD_KERNEL_PANEL];
    if (FLUSHES_BEFORE_ROUNDING) {
        macro_copy_sums(rows, first.sums, KERNEL_SUMS, before, EXPERTD_KERNEL_PANEL);
        float_flush_watch();
    }
    macro_multiply_bf16(block, panel, tile, rows, pass);
    if (float_flush_seen()) {
        macro_copy_sums(rows, before, EXPERTD_KERNEL_PANEL, first.sums, KERNEL_SUMS);
        for (size_t r = 0; r < rows; r++) {
            macro_exact_bf16(&first, r);
        }
    }
}

// Tile by tile, each tile by all panels.
static void macro_large_m_bf16(struct macro_block *block) {
    const struct macrokernel_args *args = block->args;
    float *panels = args->scratch, *wide = panels + MACRO_WIDE;
    struct macro_pass pass = {.depth = block->depth};
    for (size_t row = 0, rows, tile = 0; row < args->rows; row += rows, tile++) {
        rows = panel_tile_rows(args->rows, row);
        for (size_t r = 0; r < rows; r++) {
            widen_row(macro_row_at(block, row + r), block->depth, wide + r * MACRO_ROW);
            pass.x[r] = wide + r * MACRO_ROW;
        }
        for (size_t p = 0; p < args->count; p++) {
            macro_set_target(block, row, p, &pass);
            macro_prefetch_rows(block, row + rows, p);
            pass.panel = panels + p * MACRO_PANEL;
            macro_checked_bf16(block, p, tile, rows, &pass);
        }
    }
}

// Panel by panel, each panel by all tiles: a widened panel is used only a few times, so it has to stay in L1 until then.
static void macro_small_m_bf16(struct macro_block *block) {
    const struct macrokernel_args *args = block->args;
    float *panel = args->scratch, *wide = panel + MACRO_SMALL_M_BLOCK * EXPERTD_KERNEL_PANEL;
    struct macro_pass pass = {.depth = block->depth};
    for (size_t r = 0; r < args->rows; r++) {
        widen_row(macro_row_at(block, r), block->depth, wide + r * MACRO_SMALL_M_ROW);
    }
    for (size_t p = 0; p < args->count; p++) {
        for (size_t row = 0, rows, tile = 0; row < args->rows; row += rows, tile++) {
            rows = panel_tile_rows(args->rows, row);
            for (size_t r = 0; r < rows; r++) {
                pass.x[r] = wide + (row + r) * MACRO_SMALL_M_ROW;
            }
            macro_set_target(block, row, p, &pass);
            pass.panel = panel;
            macro_checked_bf16(block, p, tile, rows, &pass);
        }
    }
}

static void macro_widening(const struct macrokernel_args *args) {
    bool small_m = args->rows <= MACRO_SMALL_M_ROWS;
    size_t step = small_m ? MACRO_SMALL_M_BLOCK : MACRO_BLOCK;
    clear_sums(args);
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    for (size_t begin = 0; begin < args->k; begin += step) {
        struct macro_block block = macro_begin(args, begin, step);
        (small_m ? macro_small_m_bf16 : macro_large_m_bf16)(&block);
    }
    float_mode_restore(before);
}
