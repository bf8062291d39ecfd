// Sums by the tile unit, TDPBF16PS and TDPBSSD. TDPBF16PS is not the pairs' arithmetic: kernels/README.md says what it is, and
// panel_amx_scalar.c computes it.
//
// Two tiles of rows by two of columns at a time, so that four products, 64 cycles, share four loads. Rows lie anywhere, often a
// power of two apart, so tiles of x are copied together first, and stay for the next call where that is for the same rows. A panel
// is taken in chunks of K by all rows; its tiles come from L2 and are not left in L1 (TILELOADDT1), whose place the tiles of x
// need. Sums pass through memory between chunks, which is exact.
//
// A pass over few steps waits for its arguments, so they are made once and read where they are.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "base/sizes.h"
#include "kernels/cpu/amx/amx_config.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/common/macrokernel_prefetch.h"
#include "kernels/cpu/common/prefetch_distance.h"
#include "kernels/layout/packed_i8.h"

enum {
    BLOCK_TILES = 2,
    BLOCK_ROWS = BLOCK_TILES * AMX_ROWS,
    ROW_BYTES = EXPERTD_KERNEL_PANEL * 4, // of a panel: a word of each column
    STEP_BYTES = AMX_STEP_WORDS * ROW_BYTES,
    TILE_BYTES = AMX_ROWS * AMX_STEP_BYTES,
    BLOCK_BYTES = BLOCK_TILES * TILE_BYTES, // of x, a step
    TILE_COLUMNS = AMX_STEP_WORDS,          // a word each
    HALF = BLOCK_TILES * TILE_COLUMNS,
    LEFT = 5, // tiles: 0 to 4 are of sums and of x, 5 to 7 may be of the panel
    SUM_TILES = 4,
    SUMS_BYTES = SUM_TILES * TILE_BYTES, // of a pass
    // Of K, multiplied by all rows before the next are, which are fetched meanwhile: a block's rows are 32 KiB of it, which stay in
    // L1. Up to 16 rows read on and on.
    CHUNK_STEPS = 16,
    NEAR_ROWS = 64,    // whose sums stay in L1 where they are asked for
    NEAR_BYTES = 2048, // ahead of what few rows read: memory gives 35 GB/s, of a plain read's 33, 29 at 8 KiB
};

// What a call needs beside its operands.
struct tile_scratch {
    uint8_t *x; // [block][step][BLOCK_TILES] tiles
    size_t x_bytes;
    uint8_t *last;     // [count][STEP_BYTES]: of the panels, where K ends within a step
    uint32_t *sums;    // [AMX_ROWS][stride] of the last tile of rows, where that is not whole
    uint32_t *between; // [passes][SUM_TILES] tiles: sums between chunks. NULL: they go where they are asked for
};

// A group call in bytes and words, which is all that the two element types differ in.
struct tile_call {
    const uint8_t *const *x; // [rows] of row_bytes
    size_t rows, row_bytes;
    const uint8_t *const *panels; // [count], the first words
    size_t count, words;          // of 32 bits along K
    uint32_t *sums;               // [rows][stride], EXPERTD_KERNEL_PANEL of each panel
    size_t stride;
    const uint8_t *next; // panel, or NULL
    bool goes_on, rows_cached;
    struct tile_scratch scratch;
};

// A pass's block of rows, panel and first column of it.
struct tile_place {
    size_t row, panel, column;
    size_t pass; // of the chunk, over all panels
};

// Steps of K. Of [held, held_end) there are tiles of x, of [first, end) they are multiplied.
struct tile_chunk {
    size_t held, held_end, first, end;
    size_t lines; // to fetch in a step meanwhile
};

// Where a pass's four tiles of sums lie: two tiles of rows, those of a half of the panel each, or one, that of all of it.
struct tile_sums {
    uint32_t *first, *below; // below: of the second tile of rows
    size_t right, row_bytes; // words to the tile beside
};

// What is fetched meanwhile, so many lines a step. It may lie past a panel's end.
struct tile_prefetch {
    uintptr_t ahead;
    size_t lines;
};

// A block of rows against a panel or half of it, over a chunk.
struct tile_pass {
    const uint8_t *x, *panel, *last; // last: in place of the panel's last step, or NULL
    size_t steps;                    // whole
    bool begins;                     // at +0
    struct tile_sums from, to;
    struct tile_prefetch prefetch;
};

// Into L2. A loop whose count a CPU can learn: a misprediction would end what is begun of the products that follow.
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
    /* Two tiles of rows along half of the panel: loads first, so that no product waits for another's. */                          \
    PANEL_INLINE void name##_wide_step(const uint8_t *x, const uint8_t *panel) {                                                   \
        _tile_stream_loadd(6, panel, ROW_BYTES);                                                                                   \
        _tile_stream_loadd(7, panel + AMX_STEP_BYTES, ROW_BYTES);                                                                  \
        _tile_loadd(4, x, AMX_STEP_BYTES);                                                                                         \
        _tile_loadd(5, x + TILE_BYTES, AMX_STEP_BYTES);                                                                            \
        product(0, 4, 6);                                                                                                          \
        product(1, 5, 6);                                                                                                          \
        product(2, 4, 7);                                                                                                          \
        product(3, 5, 7);                                                                                                          \
    }                                                                                                                              \
    static uintptr_t name##_wide(const struct tile_pass *pass) {                                                                   \
        const uint8_t *x = pass->x, *panel = pass->panel, *end = x + pass->steps * BLOCK_BYTES;                                    \
        struct tile_prefetch prefetch = pass->prefetch;                                                                            \
        const struct tile_sums *sums = &pass->from;                                                                                \
        TILES_SEE_MEMORY;                                                                                                          \
        if (pass->begins) {                                                                                                        \
            zero_sums();                                                                                                           \
        } else {                                                                                                                   \
            _tile_loadd(0, sums->first, sums->row_bytes);                                                                          \
            _tile_loadd(1, sums->below, sums->row_bytes);                                                                          \
            _tile_loadd(2, sums->first + sums->right, sums->row_bytes);                                                            \
            _tile_loadd(3, sums->below + sums->right, sums->row_bytes);                                                            \
        }                                                                                                                          \
        for (; x < end; x += BLOCK_BYTES, panel += STEP_BYTES) {                                                                   \
            name##_wide_step(x, panel);                                                                                            \
            prefetch_lines(&prefetch, prefetch.lines);                                                                             \
        }                                                                                                                          \
        if (pass->last) {                                                                                                          \
            name##_wide_step(x, pass->last);                                                                                       \
        }                                                                                                                          \
        sums = &pass->to;                                                                                                          \
        _tile_stored(0, sums->first, sums->row_bytes);                                                                             \
        _tile_stored(1, sums->below, sums->row_bytes);                                                                             \
        _tile_stored(2, sums->first + sums->right, sums->row_bytes);                                                               \
        _tile_stored(3, sums->below + sums->right, sums->row_bytes);                                                               \
        TILES_SEE_MEMORY;                                                                                                          \
        return prefetch.ahead;                                                                                                     \
    }                                                                                                                              \
    /* One tile of rows along the whole panel. */                                                                                  \
    PANEL_INLINE void name##_flat_step(const uint8_t *x, const uint8_t *panel, struct tile_prefetch *prefetch) {                   \
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
    static uintptr_t name##_flat(const struct tile_pass *pass) {                                                                   \
        const uint8_t *x = pass->x, *panel = pass->panel, *end = x + pass->steps * BLOCK_BYTES;                                    \
        struct tile_prefetch prefetch = pass->prefetch;                                                                            \
        const struct tile_sums *sums = &pass->from;                                                                                \
        TILES_SEE_MEMORY;                                                                                                          \
        if (pass->begins) {                                                                                                        \
            zero_sums();                                                                                                           \
        } else {                                                                                                                   \
            _tile_loadd(0, sums->first, sums->row_bytes);                                                                          \
            _tile_loadd(1, sums->first + sums->right, sums->row_bytes);                                                            \
            _tile_loadd(2, sums->first + 2 * sums->right, sums->row_bytes);                                                        \
            _tile_loadd(3, sums->first + 3 * sums->right, sums->row_bytes);                                                        \
        }                                                                                                                          \
        for (; x < end; x += BLOCK_BYTES, panel += STEP_BYTES) {                                                                   \
            name##_flat_step(x, panel, &prefetch);                                                                                 \
        }                                                                                                                          \
        if (pass->last) {                                                                                                          \
            name##_flat_step(x, pass->last, &prefetch);                                                                            \
        }                                                                                                                          \
        sums = &pass->to;                                                                                                          \
        _tile_stored(0, sums->first, sums->row_bytes);                                                                             \
        _tile_stored(1, sums->first + sums->right, sums->row_bytes);                                                               \
        _tile_stored(2, sums->first + 2 * sums->right, sums->row_bytes);                                                           \
        _tile_stored(3, sums->first + 3 * sums->right, sums->row_bytes);                                                           \
        TILES_SEE_MEMORY;                                                                                                          \
        return prefetch.ahead;                                                                                                     \
    }

TILE_PASSES(bf16, _tile_dpbf16ps)
TILE_PASSES(i8, _tile_dpbssd)

// An element type's passes.
struct tile_passes {
    uintptr_t (*wide)(const struct tile_pass *), (*flat)(const struct tile_pass *); // return `ahead`, as far as it came
};

static const struct tile_passes BF16_PASSES = {bf16_wide, bf16_flat}, I8_PASSES = {i8_wide, i8_flat};

static size_t blocks_of(const struct tile_call *call) {
    return div_up(call->rows, BLOCK_ROWS);
}

// Steps [chunk->held, chunk->held_end) of all rows; what lies past a row's end is 0.
static void gather_rows(const struct tile_call *call, const struct tile_chunk *chunk) {
    size_t steps = chunk->held_end - chunk->held, at = chunk->held * AMX_STEP_BYTES, bytes = call->row_bytes - at;
    size_t whole = bytes < steps * AMX_STEP_BYTES ? bytes / AMX_STEP_BYTES : steps;
    __mmask64 mask = (1ull << (bytes - whole * AMX_STEP_BYTES) % AMX_STEP_BYTES) - 1;
    for (size_t r = 0; r < call->rows; r++) {
        const uint8_t *from = call->x[r] + at;
        uint8_t *to = call->scratch.x + r / BLOCK_ROWS * steps * BLOCK_BYTES + r % BLOCK_ROWS * AMX_STEP_BYTES;
        size_t s = 0;
        for (; s < whole; s++, from += AMX_STEP_BYTES, to += BLOCK_BYTES) {
            _mm512_store_si512(to, _mm512_loadu_si512(from));
        }
        if (s < steps) {
            _mm512_store_si512(to, _mm512_maskz_loadu_epi8(mask, from));
        }
    }
}

// The panels' last step, padded with 0 where K ends within it.
static void pad_last(const struct tile_call *call) {
    size_t left = call->words % AMX_STEP_WORDS;
    for (size_t p = 0; left > 0 && p < call->count; p++) {
        uint8_t *last = call->scratch.last + p * STEP_BYTES;
        memcpy(last, call->panels[p] + (call->words - left) * ROW_BYTES, left * ROW_BYTES);
        memset(last + left * ROW_BYTES, 0, STEP_BYTES - left * ROW_BYTES);
    }
}

// The last block, where it has but one tile of rows.
static bool is_flat(const struct tile_call *call, size_t row) {
    return call->rows - row <= AMX_ROWS;
}

// The sums of a tile of rows: the last one's, where it is not whole, lie apart while they are added to.
static uint32_t *tile_sums(const struct tile_call *call, size_t row, size_t panel) {
    bool apart = call->rows > AMX_ROWS && row + AMX_ROWS > call->rows;
    return (apart ? call->scratch.sums : call->sums + row * call->stride) + panel * EXPERTD_KERNEL_PANEL;
}

// Between where they are asked for and where they lie apart.
static void copy_last_sums(const struct tile_call *call, bool back) {
    size_t rows = call->rows > AMX_ROWS ? call->rows % AMX_ROWS : 0, first = call->rows - rows;
    for (size_t r = 0; r < rows; r++) {
        uint32_t *sums = call->sums + (first + r) * call->stride, *apart = call->scratch.sums + r * call->stride;
        memcpy(back ? sums : apart, back ? apart : sums, call->count * EXPERTD_KERNEL_PANEL * sizeof *sums);
    }
}

// Passes come in the same order in each chunk.
static struct tile_sums sums_between(const struct tile_call *call, size_t pass) {
    enum { WORDS = TILE_BYTES / sizeof(uint32_t) };
    uint32_t *sums = call->scratch.between + pass * SUM_TILES * WORDS;
    return (struct tile_sums){.first = sums, .below = sums + 2 * WORDS, .right = WORDS, .row_bytes = AMX_STEP_BYTES};
}

static struct tile_sums sums_asked(const struct tile_call *call, const struct tile_place *place) {
    return (struct tile_sums){
        .first = tile_sums(call, place->row, place->panel) + place->column,
        .below = is_flat(call, place->row) ? NULL : tile_sums(call, place->row + AMX_ROWS, place->panel) + place->column,
        .right = TILE_COLUMNS,
        .row_bytes = call->stride * sizeof(uint32_t),
    };
}

// A block of rows against a chunk of a panel, or of half of one.
static uintptr_t run_pass(const struct tile_call *call, const struct tile_chunk *chunk, const struct tile_passes *passes,
                          const struct tile_place *place, uintptr_t ahead) {
    size_t held = chunk->held_end - chunk->held, steps = chunk->end - chunk->first;
    bool padded = chunk->end * AMX_STEP_WORDS > call->words, flat = is_flat(call, place->row);
    bool ends = chunk->end * AMX_STEP_WORDS >= call->words, between = call->scratch.between != NULL;
    size_t at = place->column * sizeof(uint32_t); // of a panel's row
    struct tile_pass pass;
    pass.x = call->scratch.x + (place->row / BLOCK_ROWS * held + chunk->first - chunk->held) * BLOCK_BYTES;
    pass.panel = call->panels[place->panel] + chunk->first * STEP_BYTES + at;
    pass.last = padded ? call->scratch.last + place->panel * STEP_BYTES + at : NULL;
    pass.steps = steps - padded;
    pass.begins = chunk->first == 0 && !call->goes_on;
    pass.from = between && chunk->first > 0 ? sums_between(call, place->pass) : sums_asked(call, place);
    pass.to = between && !ends ? sums_between(call, place->pass) : sums_asked(call, place);
    pass.prefetch.ahead = ahead;
    pass.prefetch.lines = chunk->lines << flat; // one pass, not two
    return flat ? passes->flat(&pass) : passes->wide(&pass);
}

// What comes after a chunk of a panel.
static uintptr_t next_of(const struct tile_call *call, const struct tile_chunk *chunk, size_t panel) {
    uintptr_t at = (uintptr_t)call->panels[panel];
    if (call->rows <= AMX_ROWS) {
        return at + chunk->first * STEP_BYTES + NEAR_BYTES;
    }
    if (chunk->end < chunk->held_end) {
        return at + chunk->end * STEP_BYTES;
    }
    if (panel + 1 < call->count) {
        return (uintptr_t)call->panels[panel + 1] + chunk->held * STEP_BYTES;
    }
    if (chunk->end * AMX_STEP_WORDS < call->words) {
        return (uintptr_t)call->panels[0] + chunk->end * STEP_BYTES;
    }
    return call->next ? (uintptr_t)call->next : at;
}

// A chunk of a panel against all rows, block by block, so that a block's rows stay in L1 for the panel's other half.
static void multiply_chunk(const struct tile_call *call, const struct tile_passes *passes, const struct tile_chunk *chunk,
                           size_t panel) {
    struct tile_place place = {.panel = panel, .pass = panel * 2 * blocks_of(call)};
    uintptr_t ahead = next_of(call, chunk, panel);
    for (; place.row < call->rows; place.row += BLOCK_ROWS) {
        size_t columns = is_flat(call, place.row) ? (size_t)EXPERTD_KERNEL_PANEL : (size_t)HALF;
        for (place.column = 0; place.column < EXPERTD_KERNEL_PANEL; place.column += columns, place.pass++) {
            ahead = run_pass(call, chunk, passes, &place, ahead);
        }
    }
}

// Panel by panel, so that memory is read in one stream.
static void multiply_held(const struct tile_call *call, const struct tile_passes *passes, struct tile_chunk chunk) {
    size_t steps = chunk.held_end - chunk.held, most = call->rows <= AMX_ROWS ? steps : (size_t)CHUNK_STEPS;
    most = div_up(steps, div_up(steps, most)); // as even as can be
    chunk.lines = div_up(STEP_BYTES / 64 / 2, blocks_of(call));
    for (size_t p = 0; p < call->count; p++) {
        for (chunk.first = chunk.held; chunk.first < chunk.held_end; chunk.first = chunk.end) {
            chunk.end = chunk.held_end - chunk.first < most ? chunk.held_end : chunk.first + most;
            multiply_chunk(call, passes, &chunk, p);
        }
    }
}

static void multiply(const struct tile_call *call, const struct tile_passes *passes) {
    size_t steps = div_up(call->words, AMX_STEP_WORDS), room = call->scratch.x_bytes / BLOCK_BYTES / blocks_of(call);
    pad_last(call);
    if (call->goes_on) {
        copy_last_sums(call, false);
    }
    amx_configure(LEFT, call->rows < AMX_ROWS ? call->rows : AMX_ROWS, AMX_STEP_WORDS);
    for (size_t begin = 0, end; begin < steps; begin = end) {
        end = steps - begin < room ? steps : begin + room;
        struct tile_chunk chunk = {.held = begin, .held_end = end};
        if (!call->rows_cached || steps > room) {
            gather_rows(call, &chunk);
        }
        multiply_held(call, passes, chunk);
    }
    _tile_release();
    copy_last_sums(call, true);
}

// ---- groups of panels

enum {
    MACRO_LAST = KERNEL_PANELS_MAX * STEP_BYTES,
    MACRO_LAST_SUMS = AMX_ROWS * KERNEL_SUMS * 4,
    MACRO_ROOM = KERNEL_SCRATCH_BYTES - MACRO_LAST - MACRO_LAST_SUMS, // and scratch_more
};

// Sums lie between chunks where a thread's scratch has room for them beside rows; how much depends on nothing but those, so that
// kept ones are found again.
static struct tile_scratch macro_scratch(const struct macrokernel_args *args) {
    uint8_t *at = args->scratch;
    struct tile_scratch scratch = {.last = at, .sums = (uint32_t *)(at + MACRO_LAST), .x = at + MACRO_LAST + MACRO_LAST_SUMS};
    size_t between = div_up(args->rows, BLOCK_ROWS) * KERNEL_PANELS_MAX * 2 * SUMS_BYTES;
    scratch.x_bytes = MACRO_ROOM + args->scratch_more;
    if (args->rows > NEAR_ROWS && args->scratch_more >= between) {
        scratch.between = (uint32_t *)scratch.x;
        scratch.x += between;
        scratch.x_bytes -= between;
    }
    return scratch;
}

static void multiply_group(const struct macrokernel_args *args, size_t element, size_t header, const struct tile_passes *passes) {
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
        .goes_on = args->goes_on,
        .rows_cached = args->rows_cached,
        .scratch = macro_scratch(args),
    };
    if (args->k == 0) {
        group_clear(args);
        return;
    }
    multiply(&call, passes);
}

void amx_macrokernel_bf16(const struct macrokernel_args *args) {
    multiply_group(args, sizeof(uint16_t), 0, &BF16_PASSES);
}

void amx_macrokernel_i8(const struct macrokernel_args *args) {
    multiply_group(args, sizeof(int8_t), sizeof(struct packed_i8), &I8_PASSES);
}

// ---- one panel

enum { ONE_ROWS = BLOCK_ROWS, ONE_X = 16 * BLOCK_BYTES };

// `whole` but for rows, sums and scratch.
static void multiply_panel(const struct tile_call *whole, size_t rows, uint32_t *out, size_t out_stride, size_t columns,
                           const struct tile_passes *passes) {
    _Alignas(64) uint8_t x_tiles[ONE_X], last[STEP_BYTES];
    _Alignas(64) uint32_t last_sums[AMX_ROWS][EXPERTD_KERNEL_PANEL], sums[ONE_ROWS][EXPERTD_KERNEL_PANEL] = {{0}};
    struct tile_call call = *whole;
    call.sums = sums[0], call.stride = EXPERTD_KERNEL_PANEL;
    call.scratch = (struct tile_scratch){.x = x_tiles, .x_bytes = ONE_X, .last = last, .sums = last_sums[0]};
    for (size_t row = 0; row < rows; row += call.rows) {
        call.x = whole->x + row;
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
