// The kernels of unpacked_k_major.h. 64 words (k of f32, pairs of bf16, quads of int8) of 16 columns are transposed into a buffer
// in L1, which tiles of up to six rows multiply, while the next 64 words of these columns are prefetched. The transposition reads a
// line of each of eight columns at a time: as many streams as the hardware prefetcher follows. F16 and BF16 weights against F32
// rows are widened to f32 while they are transposed.
//
// The including file has included panel_small_m_avx2.h and transpose_avx2.h, and defines PANEL_TARGET(name), which names the
// results.
#include "kernels/cpu/backend/unpacked_k_major.h"

enum {
    K_MAJOR_COLUMNS = PANEL_VECS * LANES,
    K_MAJOR_WORDS = 64,
    K_MAJOR_ROW = 2 * K_MAJOR_WORDS, // floats of a row's block
    K_MAJOR_LINE_WORDS = 16,
};
_Static_assert(K_MAJOR_COLUMNS == 2 * TRANSPOSE_LINES, "a block is two transpositions wide");

typedef uint32_t k_major_transposed[K_MAJOR_WORDS][K_MAJOR_COLUMNS] __attribute__((aligned(64)));

// k [k, k + depth) of columns [column, column + columns), transposed.
struct k_major_block {
    const struct k_major_args *args;
    enum small_m_kind kind;
    size_t column, columns; // columns: K_MAJOR_COLUMNS, or the rest
    size_t k, depth;
    k_major_transposed words;
};

// Up to PANEL_TILE rows that multiply the block.
struct k_major_tile {
    float x[PANEL_TILE * K_MAJOR_ROW] __attribute__((aligned(64)));
    float edge[PANEL_TILE * K_MAJOR_COLUMNS] __attribute__((aligned(64))); // the sums, where there are fewer than K_MAJOR_COLUMNS
    float *sums;
    size_t sums_stride, words;
    uintptr_t ahead;     // first line of the next block's first column: the next address to prefetch
    size_t ahead_stride; // bytes to the next column of that block
    size_t ahead_words;  // words of each column to prefetch
};

// A word of a column of `bytes` bytes; bytes past the end are 0.
static uint32_t k_major_word(const char *line, size_t word, size_t bytes) {
    uint32_t value = 0;
    size_t left = bytes - word * sizeof value;
    memcpy(&value, line + word * sizeof value, left < sizeof value ? left : sizeof value);
    return value;
}

// Transposes columns of `bytes` bytes, `stride` bytes apart, into the block's words.
static void k_major_transpose(struct k_major_block *block, const char *src, size_t stride, size_t bytes) {
    size_t words = (bytes + 3) / 4,
           full = block->columns == K_MAJOR_COLUMNS ? bytes / 4 / TRANSPOSE_LINE_WORDS * TRANSPOSE_LINE_WORDS : 0;
    for (size_t half = 0; half < K_MAJOR_COLUMNS; half += TRANSPOSE_LINES) {
        for (size_t w = 0; w < full; w += TRANSPOSE_LINE_WORDS) {
            transpose_words_to(src + half * stride + w * 4, stride, &block->words[w][half], K_MAJOR_COLUMNS);
        }
    }
    for (size_t w = full; w < words; w++) {
        for (size_t c = 0; c < K_MAJOR_COLUMNS; c++) {
            block->words[w][c] = c < block->columns ? k_major_word(src + c * stride, w, bytes) : 0;
        }
    }
}

// Transposes columns of 16-bit elements, `stride` bytes apart, as f32. `dtype` is a compile-time constant in each copy.
PANEL_INLINE void k_major_widen(struct k_major_block *block, const char *src, size_t stride, enum expertd_dtype dtype) {
    size_t full = block->columns == K_MAJOR_COLUMNS ? block->depth / TRANSPOSE_LINE_ELEMENTS * TRANSPOSE_LINE_ELEMENTS : 0,
           left = block->depth - full;
    for (size_t half = 0; half < K_MAJOR_COLUMNS; half += TRANSPOSE_LINES) {
        for (size_t w = 0; w < full; w += TRANSPOSE_LINE_ELEMENTS) {
            transpose_widened_to(dtype, src + half * stride + w * sizeof(uint16_t), stride, (float *)&block->words[w][half],
                                 K_MAJOR_COLUMNS);
        }
    }
    for (size_t c = 0; left > 0 && c < K_MAJOR_COLUMNS; c++) {
        float column[K_MAJOR_WORDS] = {0};
        if (c < block->columns) {
            PANEL_TARGET(widen)(dtype, src + c * stride + full * sizeof(uint16_t), left, column);
        }
        for (size_t i = 0; i < left; i++) {
            memcpy(&block->words[full + i][c], &column[i], sizeof column[i]);
        }
    }
}

static void k_major_read(struct k_major_block *block) {
    const struct k_major_args *a = block->args;
    size_t size = expertd_dtype_size(a->dtype);
    const char *src = (const char *)a->weights + block->column * a->stride + block->k * size;
    if (block->kind != SMALL_M_F32 || a->dtype == EXPERTD_DTYPE_F32) {
        k_major_transpose(block, src, a->stride, block->depth * size);
    } else if (a->dtype == EXPERTD_DTYPE_F16) {
        k_major_widen(block, src, a->stride, EXPERTD_DTYPE_F16);
    } else {
        k_major_widen(block, src, a->stride, EXPERTD_DTYPE_BF16);
    }
}

// `rows` and `kind` are compile-time constants in each copy.
PANEL_INLINE void k_major_rows(const struct k_major_block *block, const struct k_major_tile *tile, enum small_m_kind kind,
                               size_t rows) {
    vec sums[PANEL_TILE][SMALL_M_VECS];
    const float *x = tile->x;
    uintptr_t ahead = tile->ahead;
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = vec_load(tile->sums + r * tile->sums_stride + v * LANES);
        }
    }
    for (size_t word = 0, end; word < tile->words; word = end, ahead += 64) {
        end = tile->words - word < K_MAJOR_LINE_WORDS ? tile->words : word + K_MAJOR_LINE_WORDS;
        uintptr_t line = ahead;
        size_t step = word < tile->ahead_words ? tile->ahead_stride : 0; // 0: the same line again, which is free
        for (size_t w = word; w < end; w++, x += small_m_factors(kind), line += step) {
            vec_prefetch_in_order((const void *)line);
            small_m_word(sums, rows, PANEL_VECS, x, K_MAJOR_ROW, (const char *)block->words[w], kind);
        }
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            vec_store(tile->sums + r * tile->sums_stride + v * LANES, sums[r][v]);
        }
    }
}

// Not inlined: the compiler must not move an FMA across the caller's changes of the floating-point mode.
#define K_MAJOR_TILE_FUNCTION(name, kind)                                                                                          \
    static __attribute__((noinline)) void name(const struct k_major_block *block, const struct k_major_tile *tile, size_t rows) {  \
        PANEL_BY_ROWS(rows, k_major_rows, block, tile, kind);                                                                      \
    }

K_MAJOR_TILE_FUNCTION(k_major_tile_f32, SMALL_M_F32)
K_MAJOR_TILE_FUNCTION(k_major_tile_pairs, SMALL_M_PAIRS)
K_MAJOR_TILE_FUNCTION(k_major_tile_quads, SMALL_M_QUADS)

// Sets the tile's prefetch address: the next block of the same columns, or the first one of the next columns.
static void k_major_find_ahead(const struct k_major_block *block, struct k_major_tile *tile) {
    const struct k_major_args *a = block->args;
    size_t size = expertd_dtype_size(a->dtype), k = block->k + block->depth, column = block->column;
    if (k == a->k) {
        k = 0;
        column += K_MAJOR_COLUMNS;
    }
    tile->ahead = (uintptr_t)a->weights + column * a->stride + k * size;
    tile->ahead_stride = a->stride;
    tile->ahead_words = column < a->columns ? block->depth * size / 4 : 0;
}

// Rows [row, row + rows) against the block.
static void k_major_multiply(const struct k_major_block *block, struct k_major_tile *tile, size_t row, size_t rows) {
    static void (*const run[])(const struct k_major_block *, const struct k_major_tile *,
                               size_t) = {k_major_tile_f32, k_major_tile_pairs, k_major_tile_quads};
    const struct k_major_args *a = block->args;
    const size_t word = small_m_word_k(block->kind), size = sizeof(float) / word;
    float *sums = a->sums + row * a->sums_stride + block->column;
    bool edge = block->columns < K_MAJOR_COLUMNS, begins = block->k == 0 && !a->accumulate;
    tile->words = (block->depth + word - 1) / word;
    tile->sums = edge ? tile->edge : sums;
    tile->sums_stride = edge ? K_MAJOR_COLUMNS : a->sums_stride;
    for (size_t r = 0; r < rows; r++) {
        small_m_row((const char *)a->x[row + r] + block->k * size, block->depth, tile->x + r * K_MAJOR_ROW, block->kind);
        if (begins) {
            memset(tile->sums + r * tile->sums_stride, 0, K_MAJOR_COLUMNS * sizeof(float));
        } else if (edge) {
            memcpy(tile->edge + r * K_MAJOR_COLUMNS, sums + r * a->sums_stride, block->columns * sizeof(float));
        }
    }
    run[block->kind](block, tile, rows);
    for (size_t r = 0; edge && r < rows; r++) {
        memcpy(sums + r * a->sums_stride, tile->edge + r * K_MAJOR_COLUMNS, block->columns * sizeof(float));
    }
}

static void k_major_blocks(const struct k_major_args *args, enum small_m_kind kind) {
    struct k_major_block block;
    struct k_major_tile tile;
    size_t most = K_MAJOR_WORDS * small_m_word_k(kind);
    memset(tile.edge, 0, sizeof tile.edge);
    block.args = args, block.kind = kind;
    for (block.column = 0; block.column < args->columns; block.column += K_MAJOR_COLUMNS) {
        block.columns = args->columns - block.column < K_MAJOR_COLUMNS ? args->columns - block.column : K_MAJOR_COLUMNS;
        for (block.k = 0; block.k < args->k; block.k += block.depth) {
            block.depth = args->k - block.k < most ? args->k - block.k : most;
            k_major_find_ahead(&block, &tile);
            k_major_read(&block);
            for (size_t row = 0, rows; row < args->rows; row += rows, tile.ahead_words = 0) {
                rows = panel_tile_rows(args->rows, row);
                k_major_multiply(&block, &tile, row, rows);
            }
        }
    }
}

void PANEL_TARGET(k_major_f32)(const struct k_major_args *args) {
    k_major_blocks(args, SMALL_M_F32);
}

void PANEL_TARGET(k_major_bf16)(const struct k_major_args *args) {
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    k_major_blocks(args, SMALL_M_PAIRS);
    float_mode_restore(before);
}

void PANEL_TARGET(k_major_i8)(const struct k_major_args *args) {
    k_major_blocks(args, SMALL_M_QUADS);
}
