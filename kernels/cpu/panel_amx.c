// Sums by the tile unit, TDPBF16PS and TDPBSSD. TDPBF16PS is not the pairs' arithmetic: kernels/README.md says what it is, and
// panel_amx_scalar.c computes it.
//
// Two tiles of rows by two of columns at a time, so that four products, 64 cycles, share four loads. Rows lie anywhere, often a
// power of two apart, so tiles of x are copied together first, and stay for the next call where that is for the same rows. A panel
// is taken in chunks of K by all rows; its tiles come from L2 and are not left in L1 (TILELOADDT1), whose place the tiles of x
// need. Sums pass through memory between chunks, which is exact.
#if defined(__x86_64__)
#include <immintrin.h>

#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/group_ahead.h"
#include "kernels/packed_i8.h"
#include "kernels/sizes.h"

enum {
    BLOCK_TILES = 2,
    BLOCK_ROWS = BLOCK_TILES * AMX_ROWS,
    ROW_BYTES = KERNEL_PANEL * 4, // of a panel: a word of each column
    STEP_BYTES = AMX_STEP_WORDS * ROW_BYTES,
    TILE_BYTES = AMX_ROWS * AMX_STEP_BYTES,
    BLOCK_BYTES = BLOCK_TILES * TILE_BYTES, // of x, a step
    TILE_COLUMNS = AMX_STEP_WORDS,          // a word each
    HALF = BLOCK_TILES * TILE_COLUMNS,
    TILES = 8,
    // Of K, multiplied by all rows before the next are, which are fetched meanwhile: 16 KiB of a panel while memory is what is
    // waited for. Up to 16 rows read on and on.
    FEW_STEPS = 4,
    MANY_STEPS = 8,
    WAITING_ROWS = 128,
    NEAR_BYTES = 2048, // ahead of what few rows read: memory gives 35 GB/s, of a plain read's 33, 29 at 8 KiB
};

// gcc's tile intrinsics do not say that they read and write memory.
#define TILES_SEE_MEMORY atomic_signal_fence(memory_order_seq_cst)

// What a call needs beside its operands.
struct tile_scratch {
    uint8_t *x; // [block][step][BLOCK_TILES] tiles
    size_t x_bytes;
    uint8_t *last;  // [count][STEP_BYTES]: of the panels, where K ends within a step
    uint32_t *sums; // [AMX_ROWS][stride] of the last tile of rows, where that is not whole
};

// A group call in bytes and words, which is all that the two element types differ in.
struct tile_call {
    const uint8_t *const *x; // [rows] of row_bytes
    size_t rows, row_bytes;
    const uint8_t *const *panels; // [count], the first words
    size_t count, words;          // of 32 bits along K
    uint32_t *sums;               // [rows][stride], KERNEL_PANEL of each panel
    size_t stride;
    const uint8_t *next; // panel, or NULL
    bool goes_on, rows_kept;
    struct tile_scratch scratch;
};

// Steps of K. Of [held, held_end) there are tiles of x, of [first, end) they are multiplied.
struct tile_chunk {
    size_t held, held_end, first, end;
};

// A block of rows against a panel or half of it, over a chunk.
struct tile_pass {
    const uint8_t *x, *panel, *last; // last: in place of the panel's last step, or NULL
    size_t steps;                    // whole
    uint32_t *sums, *below;          // of the two tiles of rows
    size_t sums_bytes;               // of a row
    bool begins;                     // at +0
    uintptr_t ahead;                 // what is fetched meanwhile, which may lie past a panel's end,
    size_t lines;                    // so many lines a step
};

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

// Tiles 0 to 4 are of sums and of x: of `rows`. 5 to 7 may be of the panel. (50 ns: once a call.)
static void configure(size_t rows) {
    struct tile_config config __attribute__((aligned(64))) = {.palette = 1};
    for (int i = 0; i < TILES; i++) {
        config.row_bytes[i] = AMX_STEP_BYTES;
        config.rows[i] = i <= 4 ? (uint8_t)rows : AMX_ROWS;
    }
    TILES_SEE_MEMORY;
    _tile_loadconfig(&config);
}

// Into L2. A loop whose count a CPU can learn: a misprediction would end what is begun of the products that follow.
PANEL_INLINE void fetch_lines(struct tile_pass *pass, size_t lines) {
    for (size_t i = 0; i < lines; i++, pass->ahead += 64) {
        fetch_into((const void *)pass->ahead, true);
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
        product(2, 5, 6);                                                                                                          \
        product(1, 4, 7);                                                                                                          \
        product(3, 5, 7);                                                                                                          \
    }                                                                                                                              \
    static void name##_wide(struct tile_pass *pass) {                                                                              \
        struct tile_pass p = *pass;                                                                                                \
        TILES_SEE_MEMORY;                                                                                                          \
        if (p.begins) {                                                                                                            \
            zero_sums();                                                                                                           \
        } else {                                                                                                                   \
            _tile_loadd(0, p.sums, p.sums_bytes);                                                                                  \
            _tile_loadd(2, p.below, p.sums_bytes);                                                                                 \
            _tile_loadd(1, p.sums + TILE_COLUMNS, p.sums_bytes);                                                                   \
            _tile_loadd(3, p.below + TILE_COLUMNS, p.sums_bytes);                                                                  \
        }                                                                                                                          \
        for (size_t s = 0; s < p.steps; s++, p.x += BLOCK_BYTES, p.panel += STEP_BYTES) {                                          \
            name##_wide_step(p.x, p.panel);                                                                                        \
            fetch_lines(&p, p.lines);                                                                                              \
        }                                                                                                                          \
        if (p.last) {                                                                                                              \
            name##_wide_step(p.x, p.last);                                                                                         \
        }                                                                                                                          \
        _tile_stored(0, p.sums, p.sums_bytes);                                                                                     \
        _tile_stored(2, p.below, p.sums_bytes);                                                                                    \
        _tile_stored(1, p.sums + TILE_COLUMNS, p.sums_bytes);                                                                      \
        _tile_stored(3, p.below + TILE_COLUMNS, p.sums_bytes);                                                                     \
        TILES_SEE_MEMORY;                                                                                                          \
        pass->ahead = p.ahead;                                                                                                     \
    }                                                                                                                              \
    /* One tile of rows along the whole panel. */                                                                                  \
    PANEL_INLINE void name##_flat_step(const uint8_t *x, const uint8_t *panel, struct tile_pass *pass) {                           \
        _tile_loadd(4, x, AMX_STEP_BYTES);                                                                                         \
        fetch_lines(pass, pass->lines / 4);                                                                                        \
        _tile_stream_loadd(5, panel, ROW_BYTES);                                                                                   \
        product(0, 4, 5);                                                                                                          \
        fetch_lines(pass, pass->lines / 4);                                                                                        \
        _tile_stream_loadd(6, panel + AMX_STEP_BYTES, ROW_BYTES);                                                                  \
        product(1, 4, 6);                                                                                                          \
        fetch_lines(pass, pass->lines / 4);                                                                                        \
        _tile_stream_loadd(7, panel + 2 * AMX_STEP_BYTES, ROW_BYTES);                                                              \
        product(2, 4, 7);                                                                                                          \
        fetch_lines(pass, pass->lines / 4);                                                                                        \
        _tile_stream_loadd(5, panel + 3 * AMX_STEP_BYTES, ROW_BYTES);                                                              \
        product(3, 4, 5);                                                                                                          \
    }                                                                                                                              \
    static void name##_flat(struct tile_pass *pass) {                                                                              \
        struct tile_pass p = *pass;                                                                                                \
        TILES_SEE_MEMORY;                                                                                                          \
        if (p.begins) {                                                                                                            \
            zero_sums();                                                                                                           \
        } else {                                                                                                                   \
            _tile_loadd(0, p.sums, p.sums_bytes);                                                                                  \
            _tile_loadd(1, p.sums + TILE_COLUMNS, p.sums_bytes);                                                                   \
            _tile_loadd(2, p.sums + 2 * TILE_COLUMNS, p.sums_bytes);                                                               \
            _tile_loadd(3, p.sums + 3 * TILE_COLUMNS, p.sums_bytes);                                                               \
        }                                                                                                                          \
        for (size_t s = 0; s < p.steps; s++, p.x += BLOCK_BYTES, p.panel += STEP_BYTES) {                                          \
            name##_flat_step(p.x, p.panel, &p);                                                                                    \
        }                                                                                                                          \
        if (p.last) {                                                                                                              \
            name##_flat_step(p.x, p.last, &p);                                                                                     \
        }                                                                                                                          \
        _tile_stored(0, p.sums, p.sums_bytes);                                                                                     \
        _tile_stored(1, p.sums + TILE_COLUMNS, p.sums_bytes);                                                                      \
        _tile_stored(2, p.sums + 2 * TILE_COLUMNS, p.sums_bytes);                                                                  \
        _tile_stored(3, p.sums + 3 * TILE_COLUMNS, p.sums_bytes);                                                                  \
        TILES_SEE_MEMORY;                                                                                                          \
        pass->ahead = p.ahead;                                                                                                     \
    }

TILE_PASSES(bf16, _tile_dpbf16ps)
TILE_PASSES(i8, _tile_dpbssd)

// An element type's passes.
struct tile_passes {
    void (*wide)(struct tile_pass *), (*flat)(struct tile_pass *);
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

// The sums of a tile of rows: the last one's, where it is not whole, lie apart while they are added to.
static uint32_t *tile_sums(const struct tile_call *call, size_t row, size_t panel) {
    bool apart = call->rows > AMX_ROWS && row + AMX_ROWS > call->rows;
    return (apart ? call->scratch.sums : call->sums + row * call->stride) + panel * KERNEL_PANEL;
}

// Between where they are asked for and where they lie apart.
static void copy_last_sums(const struct tile_call *call, bool back) {
    size_t rows = call->rows > AMX_ROWS ? call->rows % AMX_ROWS : 0, first = call->rows - rows;
    for (size_t r = 0; r < rows; r++) {
        uint32_t *sums = call->sums + (first + r) * call->stride, *apart = call->scratch.sums + r * call->stride;
        memcpy(back ? sums : apart, back ? apart : sums, call->count * KERNEL_PANEL * sizeof *sums);
    }
}

// A block of rows against a chunk of a panel.
static uintptr_t multiply_block(const struct tile_call *call, const struct tile_chunk *chunk, const struct tile_passes *passes,
                                size_t row, size_t panel, uintptr_t ahead) {
    size_t held = chunk->held_end - chunk->held;
    bool padded = chunk->end * AMX_STEP_WORDS > call->words, flat = call->rows - row <= AMX_ROWS;
    struct tile_pass pass = {
        .x = call->scratch.x + (row / BLOCK_ROWS * held + chunk->first - chunk->held) * BLOCK_BYTES,
        .panel = call->panels[panel] + chunk->first * STEP_BYTES,
        .last = padded ? call->scratch.last + panel * STEP_BYTES : NULL,
        .steps = chunk->end - chunk->first - padded,
        .sums = tile_sums(call, row, panel),
        .sums_bytes = call->stride * sizeof *call->sums,
        .begins = chunk->first == 0 && !call->goes_on,
        .ahead = ahead,
        .lines = div_up(STEP_BYTES / 64 / 2, blocks_of(call)) << flat, // one pass, not two
    };
    if (flat) {
        passes->flat(&pass);
        return pass.ahead;
    }
    pass.below = tile_sums(call, row + AMX_ROWS, panel);
    passes->wide(&pass);
    pass.panel += HALF * sizeof *pass.sums;
    pass.last += padded ? HALF * sizeof *pass.sums : 0;
    pass.sums += HALF;
    pass.below += HALF;
    passes->wide(&pass);
    return pass.ahead;
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

static size_t chunk_steps(const struct tile_call *call, size_t steps) {
    size_t most = call->rows <= AMX_ROWS ? steps : call->rows <= WAITING_ROWS ? FEW_STEPS : MANY_STEPS;
    return steps < most ? steps : most;
}

// Panel by panel, so that memory is read in one stream.
static void multiply_held(const struct tile_call *call, const struct tile_passes *passes, struct tile_chunk chunk) {
    for (size_t p = 0; p < call->count; p++) {
        for (chunk.first = chunk.held; chunk.first < chunk.held_end; chunk.first = chunk.end) {
            chunk.end = chunk.first + chunk_steps(call, chunk.held_end - chunk.first);
            uintptr_t ahead = next_of(call, &chunk, p);
            for (size_t row = 0; row < call->rows; row += BLOCK_ROWS) {
                ahead = multiply_block(call, &chunk, passes, row, p, ahead);
            }
        }
    }
}

static void multiply(const struct tile_call *call, const struct tile_passes *passes) {
    size_t steps = div_up(call->words, AMX_STEP_WORDS), room = call->scratch.x_bytes / BLOCK_BYTES / blocks_of(call);
    pad_last(call);
    if (call->goes_on) {
        copy_last_sums(call, false);
    }
    configure(call->rows < AMX_ROWS ? call->rows : AMX_ROWS);
    for (size_t begin = 0, end; begin < steps; begin = end) {
        end = steps - begin < room ? steps : begin + room;
        struct tile_chunk chunk = {.held = begin, .held_end = end};
        if (!call->rows_kept || steps > room) {
            gather_rows(call, &chunk);
        }
        multiply_held(call, passes, chunk);
    }
    _tile_release();
    copy_last_sums(call, true);
}

// ---- groups of panels

enum {
    GROUP_LAST = KERNEL_GROUP * STEP_BYTES,
    GROUP_LAST_SUMS = AMX_ROWS * KERNEL_SUMS * 4,
    GROUP_X = KERNEL_SCRATCH_BYTES - GROUP_LAST - GROUP_LAST_SUMS, // and scratch_more
};

static void multiply_group(const struct panel_group_args *args, size_t element, size_t header, const struct tile_passes *passes) {
    const uint8_t *panels[KERNEL_GROUP];
    uint8_t *scratch = args->scratch;
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
        .rows_kept = args->rows_kept,
        .scratch = {.last = scratch,
                    .sums = (uint32_t *)(scratch + GROUP_LAST),
                    .x = scratch + GROUP_LAST + GROUP_LAST_SUMS,
                    .x_bytes = GROUP_X + args->scratch_more},
    };
    if (args->k == 0) {
        group_clear(args);
        return;
    }
    multiply(&call, passes);
}

void amx_group_bf16(const struct panel_group_args *args) {
    multiply_group(args, sizeof(uint16_t), 0, &BF16_PASSES);
}

void amx_group_i8(const struct panel_group_args *args) {
    multiply_group(args, sizeof(int8_t), sizeof(struct packed_i8), &I8_PASSES);
}

// ---- one panel

enum { ONE_ROWS = BLOCK_ROWS, ONE_X = 16 * BLOCK_BYTES };

// `whole` but for rows, sums and scratch.
static void multiply_panel(const struct tile_call *whole, size_t rows, uint32_t *out, size_t out_stride, size_t columns,
                           const struct tile_passes *passes) {
    _Alignas(64) uint8_t x_tiles[ONE_X], last[STEP_BYTES];
    _Alignas(64) uint32_t last_sums[AMX_ROWS][KERNEL_PANEL], sums[ONE_ROWS][KERNEL_PANEL] = {{0}};
    struct tile_call call = *whole;
    call.sums = sums[0], call.stride = KERNEL_PANEL;
    call.scratch = (struct tile_scratch){x_tiles, ONE_X, last, last_sums[0]};
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
