// The bf16 and int8 kernels with AMX: TDPBF16PS and TDPBSSD. TDPBF16PS sums in another order than pairs of fmas, hence the
// arithmetic cpu_amx: see docs/numerics.md; panel_amx_scalar.c is its scalar twin. docs/notes/amx.md has the measurements.
//
// A pass multiplies 2 x 2 tiles (32 rows by 32 columns), so that four products, 64 cycles, share four loads. Up to 16 rows are 1 x
// 4 tiles. Rows are often a power of two apart in memory and would share cache sets, so they are packed into tiles first, and
// cached for the next call if it has the same rows. All rows pass over a chunk of K of a panel before the next chunk. The panel's
// tiles come from L2 and are loaded with TILELOADDT1, which leaves them out of L1, where the tiles of x stay. Between chunks sums
// are stored and loaded, which is exact.
//
// A pass over few steps is short enough to wait for its arguments, so struct tile_pass is written once and never copied.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "base/sizes.h"
#include "kernels/cpu/amx/amx_config.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/macrokernel_prefetch.h"
#include "kernels/cpu/common/prefetch_distance.h"
#include "kernels/layout/packed_i8.h"

enum {
    BLOCK_TILES = 2,
    BLOCK_ROWS = BLOCK_TILES * AMX_ROWS,
    ROW_BYTES = EXPERTD_KERNEL_PANEL * 4,    // of a panel: one word of each column
    STEP_BYTES = AMX_STEP_WORDS * ROW_BYTES, // of a panel
    TILE_BYTES = AMX_ROWS * AMX_STEP_BYTES,
    BLOCK_BYTES = BLOCK_TILES * TILE_BYTES, // of x: one step of a block of rows
    TILE_COLUMNS = AMX_STEP_WORDS,          // one word each
    HALF_COLUMNS = BLOCK_TILES * TILE_COLUMNS,
    M_TILES = 5,                         // tiles with rows of m: 0 to 3 sums, 4 x. 5 to 7 hold weights; 5 may hold x too
    SUM_TILES = 4,                       // of a pass
    SUMS_BYTES = SUM_TILES * TILE_BYTES, // of a pass
    // Steps of a chunk: a block's rows take 32 KiB and stay in L1 for the whole chunk. The next chunk is prefetched meanwhile. Up
    // to 16 rows, all of K is one chunk.
    CHUNK_STEPS = 16,
    NEAR_ROWS = 64,    // up to this m, sums stay in L1 in the caller's layout
    NEAR_BYTES = 2048, // prefetch distance up to 16 rows: reads 35 GB/s, where a plain read gives 33 and 8 KiB give 29
};

// Scratch of a call.
struct tile_scratch {
    uint8_t *x; // [block of rows][step][BLOCK_TILES] tiles
    size_t x_bytes;
    uint8_t *last;        // [count][STEP_BYTES]: the panels' last steps, padded, if K ends within a step
    uint32_t *sums;       // [AMX_ROWS][stride]: the sums of the last tile of rows, if it has fewer than 16
    uint32_t *chunk_sums; // [passes][SUM_TILES] tiles: sums between chunks. NULL: they stay in tile_call.sums
};

// A macrokernel call in bytes and words, so that bf16 and int8 share the code.
struct tile_call {
    const uint8_t *const *x; // [rows] of row_bytes
    size_t rows, row_bytes;
    const uint8_t *const *panels; // [count], each panel's first word
    size_t count, words;          // words: 32-bit words of K
    uint32_t *sums;               // [rows][stride], EXPERTD_KERNEL_PANEL of each panel
    size_t stride;
    const uint8_t *next; // the next call's first panel, to prefetch, or NULL
    bool accumulate, rows_cached;
    struct tile_scratch scratch;
};

// Where a pass starts: block of rows, panel and column.
struct pass_origin {
    size_t row, panel, column;
    size_t pass; // index among the chunk's passes, over all panels
};

// Steps of K: rows are packed for steps [packed_begin, packed_end); the chunk is steps [begin, end).
struct tile_chunk {
    size_t packed_begin, packed_end, begin, end;
    size_t lines; // to prefetch in each step
};

// The four tiles of sums of a pass in memory: 2 x 2 tiles, or 1 x 4.
struct tile_sums {
    uint32_t *first, *below; // below: the second tile of rows (2 x 2 only)
    size_t right, row_bytes; // right: words from a tile to its right neighbour
};

// Memory to prefetch, `lines` lines a step. It may be past a panel's end.
struct tile_prefetch {
    uintptr_t ahead;
    size_t lines;
};

// A block of rows by a panel or half of one, over one chunk.
struct tile_pass {
    const uint8_t *x, *panel, *last; // last: a padded step that follows the full ones, or NULL
    size_t steps;                    // full steps
    bool begins;                     // sums start at +0; else they are loaded
    struct tile_sums from, to;
    struct tile_prefetch prefetch;
};

// Into L2. The loop count is the same in each step, so that the CPU predicts it: a misprediction would discard the products that
// have been started after it.
PANEL_INLINE void prefetch_lines(struct tile_prefetch *prefetch, size_t lines) {
    for (size_t i = 0; i < lines; i++, prefetch->ahead += 64) {
        prefetch_into((const void *)prefetch->ahead, true);
    }
}

PANEL_INLINE void zero_sums(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

#define TILE_PASSES(name, product)                                                                                                 \
    /* 2 x 2 tiles: two tiles of rows by half of the panel. All loads come first, so that no product waits for another's load. */  \
    PANEL_INLINE void name##_2x2_step(const uint8_t *x, const uint8_t *panel) {                                                    \
        _tile_stream_loadd(6, panel, ROW_BYTES);                                                                                   \
        _tile_stream_loadd(7, panel + AMX_STEP_BYTES, ROW_BYTES);                                                                  \
        _tile_loadd(4, x, AMX_STEP_BYTES);                                                                                         \
        _tile_loadd(5, x + TILE_BYTES, AMX_STEP_BYTES);                                                                            \
        product(0, 4, 6);                                                                                                          \
        product(1, 5, 6);                                                                                                          \
        product(2, 4, 7);                                                                                                          \
        product(3, 5, 7);                                                                                                          \
    }                                                                                                                              \
    static uintptr_t name##_2x2(const struct tile_pass *pass) {                                                                    \
        const uint8_t *x = pass->x, *panel = pass->panel, *end = x + pass->steps * BLOCK_BYTES;                                    \
        struct tile_prefetch prefetch = pass->prefetch;                                                                            \
        const struct tile_sums *sums = &pass->from;                                                                                \
        TILES_MEMORY_BARRIER;                                                                                                      \
        if (pass->begins) {                                                                                                        \
            zero_sums();                                                                                                           \
        } else {                                                                                                                   \
            _tile_loadd(0, sums->first, sums->row_bytes);                                                                          \
            _tile_loadd(1, sums->below, sums->row_bytes);                                                                          \
            _tile_loadd(2, sums->first + sums->right, sums->row_bytes);                                                            \
            _tile_loadd(3, sums->below + sums->right, sums->row_bytes);                                                            \
        }                                                                                                                          \
        for (; x < end; x += BLOCK_BYTES, panel += STEP_BYTES) {                                                                   \
            name##_2x2_step(x, panel);                                                                                             \
            prefetch_lines(&prefetch, prefetch.lines);                                                                             \
        }                                                                                                                          \
        if (pass->last) {                                                                                                          \
            name##_2x2_step(x, pass->last);                                                                                        \
        }                                                                                                                          \
        sums = &pass->to;                                                                                                          \
        _tile_stored(0, sums->first, sums->row_bytes);                                                                             \
        _tile_stored(1, sums->below, sums->row_bytes);                                                                             \
        _tile_stored(2, sums->first + sums->right, sums->row_bytes);                                                               \
        _tile_stored(3, sums->below + sums->right, sums->row_bytes);                                                               \
        TILES_MEMORY_BARRIER;                                                                                                      \
        return prefetch.ahead;                                                                                                     \
    }                                                                                                                              \
    /* 1 x 4 tiles: one tile of rows by all columns of the panel. */                                                               \
    PANEL_INLINE void name##_1x4_step(const uint8_t *x, const uint8_t *panel, struct tile_prefetch *prefetch) {                    \
        _tile_loadd(4, x, AMX_STEP_BYTES);                                                                                         \
        prefetch_lines(prefetch, prefetch->lines / 4);                                                                             \
        _tile_stream_loadd(5, panel, ROW_BYTES);                                                                                   \
        product(0, 4, 5);                                                                                                          \
        prefetch_lines(prefetch, prefetch->lines / 4);                                                                             \
        _tile_stream_loadd(6, panel + AMX_STEP_BYTES, ROW_BYTES);                                                                  \
        product(1, 4, 6);                                                                                                          \
        prefetch_lines(prefetch, prefetch->lines / 4);                                                                             \
        _tile_stream_loadd(7, panel + 2 * AMX_STEP_BYTES, ROW_BYTES);                                                              \
        product(2, 4, 7);                                                                                                          \
        prefetch_lines(prefetch, prefetch->lines / 4);                                                                             \
        _tile_stream_loadd(5, panel + 3 * AMX_STEP_BYTES, ROW_BYTES);                                                              \
        product(3, 4, 5);                                                                                                          \
    }                                                                                                                              \
    static uintptr_t name##_1x4(const struct tile_pass *pass) {                                                                    \
        const uint8_t *x = pass->x, *panel = pass->panel, *end = x + pass->steps * BLOCK_BYTES;                                    \
        struct tile_prefetch prefetch = pass->prefetch;                                                                            \
        const struct tile_sums *sums = &pass->from;                                                                                \
        TILES_MEMORY_BARRIER;                                                                                                      \
        if (pass->begins) {                                                                                                        \
            zero_sums();                                                                                                           \
        } else {                                                                                                                   \
            _tile_loadd(0, sums->first, sums->row_bytes);                                                                          \
            _tile_loadd(1, sums->first + sums->right, sums->row_bytes);                                                            \
            _tile_loadd(2, sums->first + 2 * sums->right, sums->row_bytes);                                                        \
            _tile_loadd(3, sums->first + 3 * sums->right, sums->row_bytes);                                                        \
        }                                                                                                                          \
        for (; x < end; x += BLOCK_BYTES, panel += STEP_BYTES) {                                                                   \
            name##_1x4_step(x, panel, &prefetch);                                                                                  \
        }                                                                                                                          \
        if (pass->last) {                                                                                                          \
            name##_1x4_step(x, pass->last, &prefetch);                                                                             \
        }                                                                                                                          \
        sums = &pass->to;                                                                                                          \
        _tile_stored(0, sums->first, sums->row_bytes);                                                                             \
        _tile_stored(1, sums->first + sums->right, sums->row_bytes);                                                               \
        _tile_stored(2, sums->first + 2 * sums->right, sums->row_bytes);                                                           \
        _tile_stored(3, sums->first + 3 * sums->right, sums->row_bytes);                                                           \
        TILES_MEMORY_BARRIER;                                                                                                      \
        return prefetch.ahead;                                                                                                     \
    }

TILE_PASSES(bf16, _tile_dpbf16ps)
TILE_PASSES(i8, _tile_dpbssd)

// The passes of one element type. They return the address after the last prefetched line.
struct tile_passes {
    uintptr_t (*pass_2x2)(const struct tile_pass *), (*pass_1x4)(const struct tile_pass *);
};

static const struct tile_passes BF16_PASSES = {bf16_2x2, bf16_1x4}, I8_PASSES = {i8_2x2, i8_1x4};

static size_t blocks_of(const struct tile_call *call) {
    return div_up(call->rows, BLOCK_ROWS);
}

// Packs steps [packed_begin, packed_end) of all rows into tiles, padded with 0 past the end of K.
static void pack_rows(const struct tile_call *call, const struct tile_chunk *chunk) {
    size_t steps = chunk->packed_end - chunk->packed_begin, at = chunk->packed_begin * AMX_STEP_BYTES, bytes = call->row_bytes - at;
    size_t full = bytes < steps * AMX_STEP_BYTES ? bytes / AMX_STEP_BYTES : steps;
    __mmask64 mask = (1ull << (bytes - full * AMX_STEP_BYTES) % AMX_STEP_BYTES) - 1;
    for (size_t r = 0; r < call->rows; r++) {
        const uint8_t *from = call->x[r] + at;
        uint8_t *to = call->scratch.x + r / BLOCK_ROWS * steps * BLOCK_BYTES + r % BLOCK_ROWS * AMX_STEP_BYTES;
        size_t s = 0;
        for (; s < full; s++, from += AMX_STEP_BYTES, to += BLOCK_BYTES) {
            _mm512_store_si512(to, _mm512_loadu_si512(from));
        }
        if (s < steps) {
            _mm512_store_si512(to, _mm512_maskz_loadu_epi8(mask, from));
        }
    }
}

// Copies the panels' last step and pads it with 0, if K ends within a step.
static void pad_last(const struct tile_call *call) {
    size_t left = call->words % AMX_STEP_WORDS;
    for (size_t p = 0; left > 0 && p < call->count; p++) {
        uint8_t *last = call->scratch.last + p * STEP_BYTES;
        memcpy(last, call->panels[p] + (call->words - left) * ROW_BYTES, left * ROW_BYTES);
        memset(last + left * ROW_BYTES, 0, STEP_BYTES - left * ROW_BYTES);
    }
}

// Whether the block of rows at `row` has one tile only: the last block may.
static bool has_one_tile(const struct tile_call *call, size_t row) {
    return call->rows - row <= AMX_ROWS;
}

// The sums of the tile of rows at `row`. An incomplete last tile after others has its sums in scratch, because all tiles of sums
// have 16 rows.
static uint32_t *tile_sums(const struct tile_call *call, size_t row, size_t panel) {
    bool separate = call->rows > AMX_ROWS && row + AMX_ROWS > call->rows;
    return (separate ? call->scratch.sums : call->sums + row * call->stride) + panel * EXPERTD_KERNEL_PANEL;
}

// Copies the sums of an incomplete last tile from tile_call.sums to scratch, or back.
static void copy_last_sums(const struct tile_call *call, bool back) {
    size_t rows = call->rows > AMX_ROWS ? call->rows % AMX_ROWS : 0, first = call->rows - rows;
    for (size_t r = 0; r < rows; r++) {
        uint32_t *sums = call->sums + (first + r) * call->stride, *separate = call->scratch.sums + r * call->stride;
        memcpy(back ? sums : separate, back ? separate : sums, call->count * EXPERTD_KERNEL_PANEL * sizeof *sums);
    }
}

// A pass's sums between two chunks; passes have the same order in each chunk.
static struct tile_sums sums_of_chunk(const struct tile_call *call, size_t pass) {
    enum { WORDS = TILE_BYTES / sizeof(uint32_t) };
    uint32_t *sums = call->scratch.chunk_sums + pass * SUM_TILES * WORDS;
    return (struct tile_sums){.first = sums, .below = sums + 2 * WORDS, .right = WORDS, .row_bytes = AMX_STEP_BYTES};
}

// A pass's sums in tile_call.sums.
static struct tile_sums sums_of_call(const struct tile_call *call, const struct pass_origin *origin) {
    return (struct tile_sums){
        .first = tile_sums(call, origin->row, origin->panel) + origin->column,
        .below = has_one_tile(call, origin->row) ? NULL : tile_sums(call, origin->row + AMX_ROWS, origin->panel) + origin->column,
        .right = TILE_COLUMNS,
        .row_bytes = call->stride * sizeof(uint32_t),
    };
}

// A block of rows by one chunk of a panel or of half of one. Returns the address after the last prefetched line.
static uintptr_t run_pass(const struct tile_call *call, const struct tile_chunk *chunk, const struct tile_passes *passes,
                          const struct pass_origin *origin, uintptr_t ahead) {
    size_t packed_steps = chunk->packed_end - chunk->packed_begin, steps = chunk->end - chunk->begin;
    bool padded = chunk->end * AMX_STEP_WORDS > call->words, one_tile = has_one_tile(call, origin->row);
    bool ends = chunk->end * AMX_STEP_WORDS >= call->words, has_chunk_sums = call->scratch.chunk_sums != NULL;
    size_t at = origin->column * sizeof(uint32_t); // byte of the column in a panel's row
    struct tile_pass pass;
    pass.x = call->scratch.x + (origin->row / BLOCK_ROWS * packed_steps + chunk->begin - chunk->packed_begin) * BLOCK_BYTES;
    pass.panel = call->panels[origin->panel] + chunk->begin * STEP_BYTES + at;
    pass.last = padded ? call->scratch.last + origin->panel * STEP_BYTES + at : NULL;
    pass.steps = steps - padded;
    pass.begins = chunk->begin == 0 && !call->accumulate;
    pass.from = has_chunk_sums && chunk->begin > 0 ? sums_of_chunk(call, origin->pass) : sums_of_call(call, origin);
    pass.to = has_chunk_sums && !ends ? sums_of_chunk(call, origin->pass) : sums_of_call(call, origin);
    pass.prefetch.ahead = ahead;
    pass.prefetch.lines = chunk->lines << one_tile; // a panel takes one pass instead of two
    return one_tile ? passes->pass_1x4(&pass) : passes->pass_2x2(&pass);
}

// The address to prefetch from while a chunk of a panel is multiplied: the chunk that follows.
static uintptr_t prefetch_begin(const struct tile_call *call, const struct tile_chunk *chunk, size_t panel) {
    uintptr_t at = (uintptr_t)call->panels[panel];
    if (call->rows <= AMX_ROWS) {
        return at + chunk->begin * STEP_BYTES + NEAR_BYTES;
    }
    if (chunk->end < chunk->packed_end) {
        return at + chunk->end * STEP_BYTES;
    }
    if (panel + 1 < call->count) {
        return (uintptr_t)call->panels[panel + 1] + chunk->packed_begin * STEP_BYTES;
    }
    if (chunk->end * AMX_STEP_WORDS < call->words) {
        return (uintptr_t)call->panels[0] + chunk->end * STEP_BYTES;
    }
    return call->next ? (uintptr_t)call->next : at;
}

// All rows by one chunk of a panel, block by block, so that a block's rows stay in L1 for both halves of the panel.
static void multiply_chunk(const struct tile_call *call, const struct tile_passes *passes, const struct tile_chunk *chunk,
                           size_t panel) {
    struct pass_origin origin = {.panel = panel, .pass = panel * 2 * blocks_of(call)};
    uintptr_t ahead = prefetch_begin(call, chunk, panel);
    for (; origin.row < call->rows; origin.row += BLOCK_ROWS) {
        size_t columns = has_one_tile(call, origin.row) ? (size_t)EXPERTD_KERNEL_PANEL : (size_t)HALF_COLUMNS;
        for (origin.column = 0; origin.column < EXPERTD_KERNEL_PANEL; origin.column += columns, origin.pass++) {
            ahead = run_pass(call, chunk, passes, &origin, ahead);
        }
    }
}

// All rows by the packed steps of all panels, panel by panel, so that memory is read as one stream.
static void multiply_packed(const struct tile_call *call, const struct tile_passes *passes, struct tile_chunk chunk) {
    size_t steps = chunk.packed_end - chunk.packed_begin, most = call->rows <= AMX_ROWS ? steps : (size_t)CHUNK_STEPS;
    most = div_up(steps, div_up(steps, most)); // chunks are as even as possible
    chunk.lines = div_up(STEP_BYTES / 64 / 2, blocks_of(call));
    for (size_t p = 0; p < call->count; p++) {
        for (chunk.begin = chunk.packed_begin; chunk.begin < chunk.packed_end; chunk.begin = chunk.end) {
            chunk.end = chunk.packed_end - chunk.begin < most ? chunk.packed_end : chunk.begin + most;
            multiply_chunk(call, passes, &chunk, p);
        }
    }
}

static void multiply(const struct tile_call *call, const struct tile_passes *passes) {
    size_t steps = div_up(call->words, AMX_STEP_WORDS), steps_max = call->scratch.x_bytes / BLOCK_BYTES / blocks_of(call);
    pad_last(call);
    if (call->accumulate) {
        copy_last_sums(call, false);
    }
    amx_configure(M_TILES, call->rows < AMX_ROWS ? call->rows : AMX_ROWS, AMX_STEP_WORDS);
    for (size_t begin = 0, end; begin < steps; begin = end) {
        end = steps - begin < steps_max ? steps : begin + steps_max;
        struct tile_chunk chunk = {.packed_begin = begin, .packed_end = end};
        if (!call->rows_cached || steps > steps_max) {
            pack_rows(call, &chunk);
        }
        multiply_packed(call, passes, chunk);
    }
    _tile_release();
    copy_last_sums(call, true);
}

// ---- macrokernels

enum {
    MACRO_LAST = KERNEL_PANELS_MAX * STEP_BYTES,
    MACRO_LAST_SUMS = AMX_ROWS * KERNEL_SUMS * 4,
    MACRO_X_BYTES = KERNEL_SCRATCH_BYTES - MACRO_LAST - MACRO_LAST_SUMS, // plus scratch_more
};

// Divides a call's scratch. chunk_sums takes a part of scratch_more, if it fits. The division depends only on the number of rows
// and the size of scratch, so that a later call finds the cached rows.
static struct tile_scratch macro_scratch(const struct macrokernel_args *args) {
    uint8_t *at = args->scratch;
    struct tile_scratch scratch = {.last = at, .sums = (uint32_t *)(at + MACRO_LAST), .x = at + MACRO_LAST + MACRO_LAST_SUMS};
    size_t chunk_sums_bytes = div_up(args->rows, BLOCK_ROWS) * KERNEL_PANELS_MAX * 2 * SUMS_BYTES;
    scratch.x_bytes = MACRO_X_BYTES + args->scratch_more;
    if (args->rows > NEAR_ROWS && args->scratch_more >= chunk_sums_bytes) {
        scratch.chunk_sums = (uint32_t *)scratch.x;
        scratch.x += chunk_sums_bytes;
        scratch.x_bytes -= chunk_sums_bytes;
    }
    return scratch;
}

static void multiply_macrokernel(const struct macrokernel_args *args, size_t element, size_t header,
                                 const struct tile_passes *passes) {
    const uint8_t *panels[KERNEL_PANELS_MAX];
    for (size_t p = 0; p < args->count; p++) {
        panels[p] = (const uint8_t *)args->panels[p] + header;
    }
    struct tile_call call = {
        .x = (const uint8_t *const *)args->x,
        .rows = args->rows,
        .row_bytes = args->k * element,
        .panels = panels,
        .count = args->count,
        .words = div_up(args->k * element, sizeof *call.sums),
        .sums = (uint32_t *)args->sums, // bits
        .stride = KERNEL_SUMS,
        .next = args->next ? (const uint8_t *)args->next[0] + header : NULL,
        .accumulate = args->accumulate,
        .rows_cached = args->rows_cached,
        .scratch = macro_scratch(args),
    };
    if (args->k == 0) {
        clear_sums(args);
        return;
    }
    multiply(&call, passes);
}

void amx_macrokernel_bf16(const struct macrokernel_args *args) {
    multiply_macrokernel(args, sizeof(uint16_t), 0, &BF16_PASSES);
}

void amx_macrokernel_i8(const struct macrokernel_args *args) {
    multiply_macrokernel(args, sizeof(int8_t), sizeof(struct packed_i8), &I8_PASSES);
}

// ---- one panel

enum { ONE_ROWS = BLOCK_ROWS, ONE_X = 16 * BLOCK_BYTES };

// `operands` without rows, sums and scratch.
static void multiply_panel(const struct tile_call *operands, size_t rows, uint32_t *out, size_t out_stride, size_t columns,
                           const struct tile_passes *passes) {
    _Alignas(64) uint8_t x_tiles[ONE_X], last[STEP_BYTES];
    _Alignas(64) uint32_t last_sums[AMX_ROWS][EXPERTD_KERNEL_PANEL], sums[ONE_ROWS][EXPERTD_KERNEL_PANEL] = {{0}};
    struct tile_call call = *operands;
    call.sums = sums[0], call.stride = EXPERTD_KERNEL_PANEL;
    call.scratch = (struct tile_scratch){.x = x_tiles, .x_bytes = ONE_X, .last = last, .sums = last_sums[0]};
    for (size_t row = 0; row < rows; row += call.rows) {
        call.x = operands->x + row;
        call.rows = rows - row < ONE_ROWS ? rows - row : ONE_ROWS;
        if (call.words > 0) {
            multiply(&call, passes);
        }
        for (size_t r = 0; r < call.rows; r++) {
            memcpy(out + (row + r) * out_stride, sums[r], columns * sizeof *out);
        }
    }
}

void amx_panel_bf16(const struct panel_args *args) {
    const uint8_t *panel = args->panel;
    struct tile_call call = {.x = (const uint8_t *const *)args->x,
                             .row_bytes = args->k * sizeof(uint16_t),
                             .panels = &panel,
                             .count = 1,
                             .words = div_up(args->k, 2)};
    multiply_panel(&call, args->rows, (uint32_t *)args->out, args->out_stride, args->columns, &BF16_PASSES);
}
#endif
