// Sums by the tile unit: TDPBF16PS and TDPBSSD, two tiles of rows by two of columns at a time, so that four products share four
// loads. TDPBF16PS is not the pairs' arithmetic: kernels/README.md says what it is, and panel_amx_scalar.c computes it.
//
// Rows lie anywhere, so tiles of x are copied together, a step ahead of the products, which they hide behind. K goes in chunks
// whose tiles of x stay in L1 for the panel's second half; the sums pass through memory between chunks, which is exact.
#if defined(__x86_64__)
#include <immintrin.h>

#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/backends.h"
#include "kernels/packed_i8.h"

enum {
    CHUNK_STEPS = 16, // 32 KiB of x
    BLOCK_TILES = 2,
    BLOCK_ROWS = BLOCK_TILES * AMX_ROWS,
    ROW_BYTES = KERNEL_PANEL * 4,  // of a panel: a word of each column
    TILE_COLUMNS = AMX_STEP_WORDS, // a word each
    HALF = BLOCK_TILES * TILE_COLUMNS,
    TILES = 8,
};

// gcc's tile intrinsics do not say that they read and write memory.
#define TILES_SEE_MEMORY atomic_signal_fence(memory_order_seq_cst)

typedef uint8_t x_tile[AMX_ROWS][AMX_STEP_BYTES];

// One call in bytes and words, which is all that the two element types differ in.
struct tile_call {
    const uint8_t *const *x; // [rows] of row_bytes
    size_t rows, row_bytes;
    const uint8_t *panel; // [words] rows of ROW_BYTES
    size_t words;         // of 32 bits along K
    uint32_t *out;
    size_t out_stride, columns;
};

struct tile_block {
    _Alignas(64) x_tile x[CHUNK_STEPS][BLOCK_TILES];
    _Alignas(64) uint32_t sums[BLOCK_ROWS][KERNEL_PANEL];
    _Alignas(64) uint8_t last[AMX_STEP_WORDS][ROW_BYTES]; // of the panel, where K ends within a step
};

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static void configure(void) {
    struct tile_config config __attribute__((aligned(64))) = {.palette = 1};
    for (int i = 0; i < TILES; i++) {
        config.row_bytes[i] = AMX_STEP_BYTES;
        config.rows[i] = AMX_ROWS;
    }
    TILES_SEE_MEMORY;
    _tile_loadconfig(&config);
}

// Step `step` of K of rows [row, row + count); what lies past a row's end or below the last row is 0.
static inline void gather_step(const struct tile_call *call, size_t row, size_t count, size_t step, x_tile *tiles) {
    size_t at = step * AMX_STEP_BYTES;
    size_t bytes = call->row_bytes - at;
    uint8_t(*to)[AMX_STEP_BYTES] = tiles[0];
    if (bytes >= AMX_STEP_BYTES) {
        for (size_t r = 0; r < count; r++) {
            _mm512_store_si512(to[r], _mm512_loadu_si512(call->x[row + r] + at));
        }
        return;
    }
    __mmask64 mask = (1ull << bytes) - 1;
    for (size_t r = 0; r < count; r++) {
        _mm512_store_si512(to[r], _mm512_maskz_loadu_epi8(mask, call->x[row + r] + at));
    }
}

// The rows of the panel of a step, padded with 0 where K ends within it.
static inline const uint8_t *panel_step(const struct tile_call *call, size_t step, struct tile_block *block) {
    const uint8_t *from = call->panel + step * AMX_STEP_WORDS * ROW_BYTES;
    size_t left = call->words - step * AMX_STEP_WORDS;
    if (left >= AMX_STEP_WORDS) {
        return from;
    }
    memcpy(block->last, from, left * ROW_BYTES);
    memset(block->last[left], 0, (AMX_STEP_WORDS - left) * ROW_BYTES);
    return block->last[0];
}

// Tiles 0 to 3 are sums, 4 and 5 of x, 6 and 7 of the panel.
#define TILE_PASSES(name, product)                                                                                                 \
    /* Steps [first, first + steps) of two tiles of rows, along half of the panel. */                                              \
    static void name##_wide(const struct tile_call *call, size_t row, size_t rows, size_t first, size_t steps, size_t column,      \
                            struct tile_block *block) {                                                                            \
        uint32_t *sums = &block->sums[0][column];                                                                                  \
        TILES_SEE_MEMORY;                                                                                                          \
        _tile_loadd(0, sums, ROW_BYTES);                                                                                           \
        _tile_loadd(1, sums + TILE_COLUMNS, ROW_BYTES);                                                                            \
        _tile_loadd(2, sums + AMX_ROWS * KERNEL_PANEL, ROW_BYTES);                                                                 \
        _tile_loadd(3, sums + AMX_ROWS * KERNEL_PANEL + TILE_COLUMNS, ROW_BYTES);                                                  \
        for (size_t s = 0; s < steps; s++) {                                                                                       \
            if (column == 0 && s + 1 < steps) {                                                                                    \
                gather_step(call, row, rows, first + s + 1, block->x[s + 1]);                                                      \
            }                                                                                                                      \
            const uint8_t *panel = panel_step(call, first + s, block) + column * 4;                                                \
            TILES_SEE_MEMORY;                                                                                                      \
            _tile_loadd(6, panel, ROW_BYTES);                                                                                      \
            _tile_loadd(4, block->x[s][0], AMX_STEP_BYTES);                                                                        \
            product(0, 4, 6);                                                                                                      \
            _tile_loadd(7, panel + AMX_STEP_BYTES, ROW_BYTES);                                                                     \
            product(1, 4, 7);                                                                                                      \
            _tile_loadd(5, block->x[s][1], AMX_STEP_BYTES);                                                                        \
            product(2, 5, 6);                                                                                                      \
            product(3, 5, 7);                                                                                                      \
        }                                                                                                                          \
        _tile_stored(0, sums, ROW_BYTES);                                                                                          \
        _tile_stored(1, sums + TILE_COLUMNS, ROW_BYTES);                                                                           \
        _tile_stored(2, sums + AMX_ROWS * KERNEL_PANEL, ROW_BYTES);                                                                \
        _tile_stored(3, sums + AMX_ROWS * KERNEL_PANEL + TILE_COLUMNS, ROW_BYTES);                                                 \
        TILES_SEE_MEMORY;                                                                                                          \
    }                                                                                                                              \
    /* One tile of rows along the whole panel, for few rows: the panel is read once. */                                            \
    static void name##_flat(const struct tile_call *call, size_t row, size_t rows, size_t first, size_t steps,                     \
                            struct tile_block *block) {                                                                            \
        uint32_t *sums = block->sums[0];                                                                                           \
        TILES_SEE_MEMORY;                                                                                                          \
        _tile_loadd(0, sums, ROW_BYTES);                                                                                           \
        _tile_loadd(1, sums + TILE_COLUMNS, ROW_BYTES);                                                                            \
        _tile_loadd(2, sums + 2 * TILE_COLUMNS, ROW_BYTES);                                                                        \
        _tile_loadd(3, sums + 3 * TILE_COLUMNS, ROW_BYTES);                                                                        \
        for (size_t s = 0; s < steps; s++) {                                                                                       \
            if (s + 1 < steps) {                                                                                                   \
                gather_step(call, row, rows, first + s + 1, block->x[s + 1]);                                                      \
            }                                                                                                                      \
            const uint8_t *panel = panel_step(call, first + s, block);                                                             \
            TILES_SEE_MEMORY;                                                                                                      \
            _tile_loadd(4, block->x[s][0], AMX_STEP_BYTES);                                                                        \
            _tile_loadd(5, panel, ROW_BYTES);                                                                                      \
            product(0, 4, 5);                                                                                                      \
            _tile_loadd(6, panel + AMX_STEP_BYTES, ROW_BYTES);                                                                     \
            product(1, 4, 6);                                                                                                      \
            _tile_loadd(7, panel + 2 * AMX_STEP_BYTES, ROW_BYTES);                                                                 \
            product(2, 4, 7);                                                                                                      \
            _tile_loadd(5, panel + 3 * AMX_STEP_BYTES, ROW_BYTES);                                                                 \
            product(3, 4, 5);                                                                                                      \
        }                                                                                                                          \
        _tile_stored(0, sums, ROW_BYTES);                                                                                          \
        _tile_stored(1, sums + TILE_COLUMNS, ROW_BYTES);                                                                           \
        _tile_stored(2, sums + 2 * TILE_COLUMNS, ROW_BYTES);                                                                       \
        _tile_stored(3, sums + 3 * TILE_COLUMNS, ROW_BYTES);                                                                       \
        TILES_SEE_MEMORY;                                                                                                          \
    }                                                                                                                              \
    static void name##_chunk(const struct tile_call *call, size_t row, size_t rows, size_t first, size_t steps,                    \
                             struct tile_block *block) {                                                                           \
        gather_step(call, row, rows, first, block->x[0]);                                                                          \
        if (rows <= AMX_ROWS) {                                                                                                    \
            name##_flat(call, row, rows, first, steps, block);                                                                     \
            return;                                                                                                                \
        }                                                                                                                          \
        name##_wide(call, row, rows, first, steps, 0, block);                                                                      \
        name##_wide(call, row, rows, first, steps, HALF, block);                                                                   \
    }

TILE_PASSES(bf16, _tile_dpbf16ps)
TILE_PASSES(i8, _tile_dpbssd)

typedef void chunk_function(const struct tile_call *call, size_t row, size_t rows, size_t first, size_t steps,
                            struct tile_block *block);

// Rows [row, row + rows) of the call, whole K.
static void multiply_block(const struct tile_call *call, size_t row, size_t rows, chunk_function *chunk, struct tile_block *block) {
    size_t steps = (call->words + AMX_STEP_WORDS - 1) / AMX_STEP_WORDS;
    memset(block->sums, 0, sizeof block->sums);
    for (size_t s = 0; s < steps; s += CHUNK_STEPS) {
        chunk(call, row, rows, s, steps - s < CHUNK_STEPS ? steps - s : CHUNK_STEPS, block);
    }
    for (size_t r = 0; r < rows; r++) {
        memcpy(call->out + (row + r) * call->out_stride, block->sums[r], call->columns * sizeof *call->out);
    }
}

static void multiply(const struct tile_call *call, chunk_function *chunk) {
    struct tile_block block;
    memset(block.x, 0, sizeof block.x); // rows that are not there
    configure();
    for (size_t row = 0; row < call->rows; row += BLOCK_ROWS) {
        multiply_block(call, row, call->rows - row < BLOCK_ROWS ? call->rows - row : BLOCK_ROWS, chunk, &block);
    }
    _tile_release();
}

static void amx_panel_bf16(const struct panel_args *args) {
    struct tile_call call = {
        .x = (const uint8_t *const *)args->x,
        .rows = args->rows,
        .row_bytes = args->k * 2,
        .panel = args->panel,
        .words = (args->k + 1) / 2,
        .out = (uint32_t *)args->out, // bits
        .out_stride = args->out_stride,
        .columns = args->columns,
    };
    multiply(&call, bf16_chunk);
}

static void amx_panel_i8(const struct panel_i8_args *args) {
    struct tile_call call = {
        .x = (const uint8_t *const *)args->x,
        .rows = args->rows,
        .row_bytes = args->k,
        .panel = (const uint8_t *)args->panel + sizeof(struct packed_i8),
        .words = (args->k + PACKED_I8_K - 1) / PACKED_I8_K,
        .out = (uint32_t *)args->out,
        .out_stride = args->out_stride,
        .columns = args->columns,
    };
    multiply(&call, i8_chunk);
}

const struct kernel_backend backend_amx = {.name = "amx",
                                           .arithmetic = ARITHMETIC_CPU_AMX,
                                           .panel_f32 = avx512_panel_f32,
                                           .panel_bf16 = amx_panel_bf16,
                                           .group_f32 = avx512_group_f32,
                                           .few_f32 = PANEL_TILE,
                                           .panel_i8 = amx_panel_i8,
                                           BACKEND_QUANTISED(avx512),
                                           .across_f32 = avx512_across_f32,
                                           BACKEND_ROWS(avx512)};

const struct kernel_backend backend_amxint8 = {.name = "amxint8",
                                               .panel_f32 = avx512_panel_f32,
                                               .panel_bf16 = avx512_panel_bf16,
                                               .panel_i8 = amx_panel_i8,
                                               .group_f32 = avx512_group_f32,
                                               .group_bf16 = avx512_group_bf16,
                                               .few_f32 = PANEL_TILE,
                                               .few_bf16 = 2 * PANEL_TILE,
                                               BACKEND_QUANTISED(avx512),
                                               BACKEND_ACROSS(avx512),
                                               .along_f32 = avx2_along_f32,
                                               .along_rows_f32 = 8,
                                               BACKEND_ROWS(avx512)};
#endif
