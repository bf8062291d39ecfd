// unpacked_k_major.h's kernels: 16 columns at a time, 64 words of each (f32's k, bf16's pairs, int8's quads), turned into L1, where
// up to six rows at a time multiply them. Eight columns at a time are read a line of each, as many streams as the hardware follows;
// the next 64 words of all 16 are fetched meanwhile. Weights that are not the sums' type become f32 as they are turned.
//
// The including file has included panel_small_m_avx2.h and transpose_avx2.h, and names the results by PANEL_TARGET(name).
#include "kernels/cpu/unpacked_k_major.h"

enum {
    ALONG_COLUMNS = PANEL_VECS * LANES,
    ALONG_WORDS = 64,
    ALONG_ROW = 2 * ALONG_WORDS, // floats of a row's block
    ALONG_LINE_WORDS = 16,
};
_Static_assert(ALONG_COLUMNS == 2 * TURN_LINES, "two halves");

typedef uint32_t along_turned[ALONG_WORDS][ALONG_COLUMNS] __attribute__((aligned(64)));

// Some words of some columns.
struct along_block {
    const struct along_args *args;
    enum few_kind kind;
    size_t column, columns; // ALONG_COLUMNS, or what is left
    size_t k, depth;
    along_turned words;
};

// Up to PANEL_TILE rows of it.
struct along_tile {
    float x[PANEL_TILE * ALONG_ROW] __attribute__((aligned(64)));
    float edge[PANEL_TILE * ALONG_COLUMNS] __attribute__((aligned(64))); // the sums, where columns are missing
    float *sums;
    size_t sums_stride, words;
    uintptr_t ahead; // the first column's line of the next block; the others follow ahead_stride apart, their next lines beside it
    size_t ahead_stride, ahead_words; // lines are fetched for each column's first ahead_words words
};

// What of it is there, else 0.
static uint32_t along_word(const char *line, size_t word, size_t bytes) {
    uint32_t value = 0;
    size_t left = bytes - word * sizeof value;
    memcpy(&value, line + word * sizeof value, left < sizeof value ? left : sizeof value);
    return value;
}

// Columns of `bytes` bytes, `stride` apart, to the block's words.
static void along_turn(struct along_block *block, const char *src, size_t stride, size_t bytes) {
    size_t words = (bytes + 3) / 4, whole = block->columns == ALONG_COLUMNS ? bytes / 4 / TURN_LINE_WORDS * TURN_LINE_WORDS : 0;
    for (size_t half = 0; half < ALONG_COLUMNS; half += TURN_LINES) {
        for (size_t w = 0; w < whole; w += TURN_LINE_WORDS) {
            turn_words_to(src + half * stride + w * 4, stride, &block->words[w][half], ALONG_COLUMNS);
        }
    }
    for (size_t w = whole; w < words; w++) {
        for (size_t c = 0; c < ALONG_COLUMNS; c++) {
            block->words[w][c] = c < block->columns ? along_word(src + c * stride, w, bytes) : 0;
        }
    }
}

// Columns of 16-bit elements, `stride` bytes apart, as f32. A copy for each dtype.
PANEL_INLINE void along_widen(struct along_block *block, const char *src, size_t stride, enum expertd_dtype dtype) {
    size_t whole = block->columns == ALONG_COLUMNS ? block->depth / TURN_HALVES * TURN_HALVES : 0, left = block->depth - whole;
    for (size_t half = 0; half < ALONG_COLUMNS; half += TURN_LINES) {
        for (size_t w = 0; w < whole; w += TURN_HALVES) {
            turn_halves_to(dtype, src + half * stride + w * sizeof(uint16_t), stride, (float *)&block->words[w][half],
                           ALONG_COLUMNS);
        }
    }
    for (size_t c = 0; left > 0 && c < ALONG_COLUMNS; c++) {
        float column[ALONG_WORDS] = {0};
        if (c < block->columns) {
            PANEL_TARGET(widen)(dtype, src + c * stride + whole * sizeof(uint16_t), left, column);
        }
        for (size_t i = 0; i < left; i++) {
            memcpy(&block->words[whole + i][c], &column[i], sizeof column[i]);
        }
    }
}

static void along_read(struct along_block *block) {
    const struct along_args *a = block->args;
    size_t size = expertd_dtype_size(a->dtype);
    const char *src = (const char *)a->weights + block->column * a->stride + block->k * size;
    if (block->kind != FEW_F32 || a->dtype == EXPERTD_DTYPE_F32) {
        along_turn(block, src, a->stride, block->depth * size);
    } else if (a->dtype == EXPERTD_DTYPE_F16) {
        along_widen(block, src, a->stride, EXPERTD_DTYPE_F16);
    } else {
        along_widen(block, src, a->stride, EXPERTD_DTYPE_BF16);
    }
}

// `rows` and `kind` are constants in each copy.
PANEL_INLINE void along_rows(const struct along_block *block, const struct along_tile *tile, enum few_kind kind, size_t rows) {
    vec sums[PANEL_TILE][FEW_VECS];
    const float *x = tile->x;
    uintptr_t ahead = tile->ahead;
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = vec_load(tile->sums + r * tile->sums_stride + v * LANES);
        }
    }
    for (size_t word = 0, end; word < tile->words; word = end, ahead += 64) {
        end = tile->words - word < ALONG_LINE_WORDS ? tile->words : word + ALONG_LINE_WORDS;
        uintptr_t line = ahead;
        size_t step = word < tile->ahead_words ? tile->ahead_stride : 0; // 0: the same line again, which costs nothing
        for (size_t w = word; w < end; w++, x += few_factors(kind), line += step) {
            vec_prefetch_in_order((const void *)line);
            few_word(sums, rows, PANEL_VECS, x, ALONG_ROW, (const char *)block->words[w], kind);
        }
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            vec_store(tile->sums + r * tile->sums_stride + v * LANES, sums[r][v]);
        }
    }
}

// Not inlined: no fma may move across a change of the floating-point mode in the caller.
#define ALONG_TILE_FUNCTION(name, kind)                                                                                            \
    static __attribute__((noinline)) void name(const struct along_block *block, const struct along_tile *tile, size_t rows) {      \
        PANEL_BY_ROWS(rows, along_rows, block, tile, kind);                                                                        \
    }

ALONG_TILE_FUNCTION(along_tile_f32, FEW_F32)
ALONG_TILE_FUNCTION(along_tile_pairs, FEW_PAIRS)
ALONG_TILE_FUNCTION(along_tile_quads, FEW_QUADS)

// What the thread reads next: the same columns' next block, or the next columns' first.
static void along_find_ahead(const struct along_block *block, struct along_tile *tile) {
    const struct along_args *a = block->args;
    size_t size = expertd_dtype_size(a->dtype), k = block->k + block->depth, column = block->column;
    if (k == a->k) {
        k = 0;
        column += ALONG_COLUMNS;
    }
    tile->ahead = (uintptr_t)a->weights + column * a->stride + k * size;
    tile->ahead_stride = a->stride;
    tile->ahead_words = column < a->columns ? block->depth * size / 4 : 0;
}

// Rows [row, row + rows) against the block.
static void along_multiply(const struct along_block *block, struct along_tile *tile, size_t row, size_t rows) {
    static void (*const run[])(const struct along_block *, const struct along_tile *, size_t) = {along_tile_f32, along_tile_pairs,
                                                                                                 along_tile_quads};
    const struct along_args *a = block->args;
    const size_t word = few_word_k(block->kind), size = sizeof(float) / word;
    float *sums = a->sums + row * a->sums_stride + block->column;
    bool edge = block->columns < ALONG_COLUMNS, begins = block->k == 0 && !a->goes_on;
    tile->words = (block->depth + word - 1) / word;
    tile->sums = edge ? tile->edge : sums;
    tile->sums_stride = edge ? ALONG_COLUMNS : a->sums_stride;
    for (size_t r = 0; r < rows; r++) {
        few_row((const char *)a->x[row + r] + block->k * size, block->depth, tile->x + r * ALONG_ROW, block->kind);
        if (begins) {
            memset(tile->sums + r * tile->sums_stride, 0, ALONG_COLUMNS * sizeof(float));
        } else if (edge) {
            memcpy(tile->edge + r * ALONG_COLUMNS, sums + r * a->sums_stride, block->columns * sizeof(float));
        }
    }
    run[block->kind](block, tile, rows);
    for (size_t r = 0; edge && r < rows; r++) {
        memcpy(sums + r * a->sums_stride, tile->edge + r * ALONG_COLUMNS, block->columns * sizeof(float));
    }
}

static void along_blocks(const struct along_args *args, enum few_kind kind) {
    struct along_block block;
    struct along_tile tile;
    size_t most = ALONG_WORDS * few_word_k(kind);
    memset(tile.edge, 0, sizeof tile.edge);
    block.args = args, block.kind = kind;
    for (block.column = 0; block.column < args->columns; block.column += ALONG_COLUMNS) {
        block.columns = args->columns - block.column < ALONG_COLUMNS ? args->columns - block.column : ALONG_COLUMNS;
        for (block.k = 0; block.k < args->k; block.k += block.depth) {
            block.depth = args->k - block.k < most ? args->k - block.k : most;
            along_find_ahead(&block, &tile);
            along_read(&block);
            for (size_t row = 0, rows; row < args->rows; row += rows, tile.ahead_words = 0) {
                rows = panel_tile_rows(args->rows, row);
                along_multiply(&block, &tile, row, rows);
            }
        }
    }
}

void PANEL_TARGET(along_f32)(const struct along_args *args) {
    along_blocks(args, FEW_F32);
}

void PANEL_TARGET(along_bf16)(const struct along_args *args) {
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    along_blocks(args, FEW_PAIRS);
    float_mode_restore(before);
}

void PANEL_TARGET(along_i8)(const struct along_args *args) {
    along_blocks(args, FEW_QUADS);
}
