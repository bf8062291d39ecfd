// Large m of bf16 on CPUs whose VDPBF16PS is missing or slow: both operands are widened to f32. A tile is up to 14 rows by half a
// panel (32 columns), its sums in 28 of 32 registers. The first tile of a block of K widens the half panel as it multiplies (4
// instructions for 56 FMAs) and stores it in cache for the other tiles. Rows are widened once for all panels of a call; where
// the scratch holds all of K, they stay cached for the following calls with the same rows.
#if defined(__x86_64__)
#include "base/sizes.h"
#include "kernels/cpu/avx512/vector_avx512.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/macrokernel_prefetch.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum {
    HALF_VECS = 2,
    HALF_COLUMNS = HALF_VECS * LANES,
    HALF_TILE_ROWS = 14,
    HALF_UNIT_K = LANES,        // consecutive k of one row in the packed rows
    HALF_BLOCK_K = 512,         // k of a block at most: 64 KiB of a widened half panel
    HALF_SMALL_M_BLOCK_K = 128, // the same for up to HALF_SMALL_M_ROWS rows, where memory limits the speed: the block leaves L1
                                // space for prefetched lines
    HALF_SMALL_M_ROWS = 2 * HALF_TILE_ROWS,
    HALF_STEP_K = 4,                        // k of one iteration of the inner loop
    HALF_STEP_PREFETCHES = HALF_STEP_K / 2, // prefetch slots in it
    HALF_L1_DISTANCE = 2048,                // bytes ahead of the current line, from L2 into L1
    HALF_PACK_PREFETCH = 24 * LANES,        // floats ahead of the store of packed rows: prefetches its lines from L2
};

#if defined(__clang__)
#define HALF_UNROLL PANEL_UNROLL
#else
#define HALF_UNROLL _Pragma("GCC unroll 14")
#endif

typedef float half_row[HALF_COLUMNS] __attribute__((aligned(64)));

// The layout of a thread's scratch.
struct half_scratch {
    bool all_k;                  // x holds all of K; else one block
    half_row wide[HALF_BLOCK_K]; // half a panel, [k]
    float x[] __attribute__((aligned(64)));
};
_Static_assert(sizeof(struct half_scratch) + KERNEL_CALL_ROWS * HALF_SMALL_M_BLOCK_K * sizeof(float) <= KERNEL_SCRATCH_BYTES,
               "scratch holds a block of all rows");

// Lines that are prefetched while a block is multiplied. Each slot has a constant number of lines, because a test whether a line is
// due would be mispredicted.
struct half_prefetch {
    uintptr_t at, last;
    size_t lines[HALF_STEP_PREFETCHES];
};

// One tile of rows times half a panel, over a block of K.
struct half_pass {
    const float *x;        // packed rows: [k / HALF_UNIT_K][rows][HALF_UNIT_K]
    const uint16_t *pairs; // the packed panel: the next pair of k is EXPERTD_KERNEL_PANEL pairs on
    half_row *wide;        // the same k, widened
    size_t depth;          // k
    float *sums;           // of the tile's first row and column; rows are KERNEL_SUMS apart
    struct half_prefetch prefetch;
};

// Where a tile takes its weights from.
enum half_source {
    HALF_LOAD_WIDENED,    // from half_pass.wide
    HALF_WIDEN_AND_STORE, // from half_pass.pairs; stores them in half_pass.wide for the next tiles
    HALF_WIDEN_ONLY,      // from half_pass.pairs; there is no next tile
};

PANEL_INLINE void half_prefetch_lines(struct half_prefetch *prefetch, size_t slot) {
    for (size_t n = prefetch->lines[slot]; n > 0; n--) {
        prefetch_into((const void *)prefetch->at, true);
        prefetch->at = prefetch->at < prefetch->last ? prefetch->at + 64 : prefetch->at;
    }
}

// The products of one k.
PANEL_INLINE void half_multiply_k(vec sums[][HALF_VECS], size_t rows, const float *x, vec low, vec high) {
    HALF_UNROLL for (size_t r = 0; r < rows; r++) {
        vec value = vec_broadcast(x + r * HALF_UNIT_K);
        sums[r][0] = vec_fma(value, low, sums[r][0]);
        sums[r][1] = vec_fma(value, high, sums[r][1]);
    }
}

PANEL_INLINE void half_multiply_widened(vec sums[][HALF_VECS], size_t rows, const float *x, const float *wide) {
    half_multiply_k(sums, rows, x, vec_load(wide), vec_load(wide + LANES));
}

PANEL_INLINE void half_store_widened(float *wide, vec low, vec high) {
    vec_store(wide, low);
    vec_store(wide + LANES, high);
}

// The odd elements by a masked load: a vector constant for the mask would take a register from the sums.
PANEL_INLINE vec half_load_odd(const uint16_t *pairs) {
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(0xaaaaaaaau, pairs));
}

// The products of a pair of k, the odd one first.
PANEL_INLINE void half_multiply_pair(vec sums[][HALF_VECS], size_t rows, const float *x, const uint16_t *pairs, half_row *wide,
                                     enum half_source source) {
    if (source == HALF_LOAD_WIDENED) {
        half_multiply_widened(sums, rows, x + 1, wide[1]);
        half_multiply_widened(sums, rows, x, wide[0]);
        return;
    }
    prefetch_into((const void *)((uintptr_t)pairs + HALF_L1_DISTANCE), false);
    prefetch_into((const void *)((uintptr_t)pairs + HALF_L1_DISTANCE + 64), false);
    vec low = half_load_odd(pairs), high = half_load_odd(pairs + 2 * LANES);
    if (source == HALF_WIDEN_AND_STORE) {
        half_store_widened(wide[1], low, high);
    }
    half_multiply_k(sums, rows, x + 1, low, high);
    low = vec_even(pairs), high = vec_even(pairs + 2 * LANES);
    if (source == HALF_WIDEN_AND_STORE) {
        half_store_widened(wide[0], low, high);
    }
    half_multiply_k(sums, rows, x, low, high);
}

// `rows` and `source` are constants in each copy, so that the sums stay in registers.
PANEL_INLINE void half_tile(struct half_pass *pass, size_t rows, enum half_source source) {
    enum { PAIR = 2 * EXPERTD_KERNEL_PANEL }; // elements of one pair of k of the whole panel
    vec sums[HALF_TILE_ROWS][HALF_VECS];
    struct half_prefetch prefetch = pass->prefetch;
    const uint16_t *pairs = pass->pairs;
    half_row *wide = pass->wide;
    const float *x = pass->x;
    HALF_UNROLL for (size_t r = 0; r < rows; r++) {
        sums[r][0] = vec_load(pass->sums + r * KERNEL_SUMS);
        sums[r][1] = vec_load(pass->sums + r * KERNEL_SUMS + LANES);
    }
    for (size_t begin = 0; begin < pass->depth; begin += HALF_UNIT_K, x += rows * HALF_UNIT_K) {
        const size_t left = (pass->depth - begin + 1) / 2 * 2, count = left < HALF_UNIT_K ? left : HALF_UNIT_K;
        const float *at = x, *end = x + count / HALF_STEP_K * HALF_STEP_K;
        for (; at < end; at += HALF_STEP_K) {
            HALF_UNROLL for (size_t i = 0; i < HALF_STEP_PREFETCHES; i++, pairs += PAIR, wide += 2) {
                half_prefetch_lines(&prefetch, i);
                half_multiply_pair(sums, rows, at + 2 * i, pairs, wide, source);
            }
        }
        if (count % HALF_STEP_K) {
            half_multiply_pair(sums, rows, at, pairs, wide, source);
        }
    }
    HALF_UNROLL for (size_t r = 0; r < rows; r++) {
        vec_store(pass->sums + r * KERNEL_SUMS, sums[r][0]);
        vec_store(pass->sums + r * KERNEL_SUMS + LANES, sums[r][1]);
    }
    pass->prefetch = prefetch;
}

#define HALF_CASE(n, source)                                                                                                       \
    case n:                                                                                                                        \
        half_tile(pass, n, source);                                                                                                \
        return;
#define HALF_TILE_FUNCTION(name, source)                                                                                           \
    static void name(struct half_pass *pass, size_t rows) {                                                                        \
        switch (rows) {                                                                                                            \
            HALF_CASE(1, source)                                                                                                   \
            HALF_CASE(2, source)                                                                                                   \
            HALF_CASE(3, source)                                                                                                   \
            HALF_CASE(4, source)                                                                                                   \
            HALF_CASE(5, source)                                                                                                   \
            HALF_CASE(6, source)                                                                                                   \
            HALF_CASE(7, source)                                                                                                   \
            HALF_CASE(8, source)                                                                                                   \
            HALF_CASE(9, source)                                                                                                   \
            HALF_CASE(10, source)                                                                                                  \
            HALF_CASE(11, source)                                                                                                  \
            HALF_CASE(12, source)                                                                                                  \
            HALF_CASE(13, source)                                                                                                  \
        default:                                                                                                                   \
            half_tile(pass, HALF_TILE_ROWS, source);                                                                               \
        }                                                                                                                          \
    }

HALF_TILE_FUNCTION(half_tile_load_widened, HALF_LOAD_WIDENED)
HALF_TILE_FUNCTION(half_tile_widen_and_store, HALF_WIDEN_AND_STORE)
HALF_TILE_FUNCTION(half_tile_widen_only, HALF_WIDEN_ONLY)

// Rows of the tile that begins at `row`. Tiles are as even as possible.
static size_t half_tile_rows(const struct macrokernel_args *args, size_t row) {
    const size_t left = args->rows - row;
    return div_up(left, div_up(left, HALF_TILE_ROWS));
}

// Floats of one packed row of `depth` k.
static size_t half_packed_k(size_t depth) {
    return div_up(depth, HALF_UNIT_K) * HALF_UNIT_K;
}

// Packs `depth` k of all rows from `begin` on, tile by tile, widened; the last unit is padded with +0.
static void half_pack_rows(const struct macrokernel_args *args, size_t begin, size_t depth, float *to) {
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = half_tile_rows(args, row);
        for (size_t k = 0; k < depth; k += HALF_UNIT_K) {
            const __mmask16 mask = depth - k < HALF_UNIT_K ? (__mmask16)((1u << (depth - k)) - 1) : UINT16_MAX;
            for (size_t r = 0; r < rows; r++, to += HALF_UNIT_K) {
                __builtin_prefetch(to + HALF_PACK_PREFETCH, 1);
                const __m256i elements = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)args->x[row + r] + begin + k);
                _mm512_store_si512(to, _mm512_slli_epi32(_mm512_cvtepu16_epi32(elements), 16));
            }
        }
    }
}

// What to prefetch while a block is multiplied by panel `panel`: the panel's next block, or after the last block the thread's next
// panel.
static struct half_prefetch half_next_prefetch(const struct macrokernel_args *args, size_t panel, size_t begin, size_t depth) {
    const bool last_block = begin + depth == args->k;
    const void *const *next = last_block ? args->next : args->panels;
    const size_t steps = div_up(args->rows, HALF_TILE_ROWS) * (EXPERTD_KERNEL_PANEL / HALF_COLUMNS) * (depth / HALF_STEP_K);
    if (!next || steps == 0) {
        return (struct half_prefetch){0};
    }
    const size_t bytes = depth / 2 * 2 * EXPERTD_KERNEL_PANEL * sizeof(uint16_t), lines = div_up(bytes / 64, steps);
    const uint16_t *from = (const uint16_t *)next[panel] + (last_block ? 0 : (begin + depth) * EXPERTD_KERNEL_PANEL);
    return (struct half_prefetch){(uintptr_t)from, (uintptr_t)from + bytes - 64, {div_up(lines, 2), lines / 2}};
}

static void half_multiply_block(const struct macrokernel_args *args, size_t begin, size_t depth) {
    struct half_scratch *scratch = args->scratch;
    const size_t packed_rows = half_packed_k(scratch->all_k ? args->k : depth);
    for (size_t p = 0; p < args->count; p++) {
        struct half_pass pass = {.wide = scratch->wide, .depth = depth, .prefetch = half_next_prefetch(args, p, begin, depth)};
        for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += HALF_COLUMNS) {
            pass.pairs = (const uint16_t *)args->panels[p] + begin * EXPERTD_KERNEL_PANEL + 2 * column;
            for (size_t row = 0, rows; row < args->rows; row += rows) {
                rows = half_tile_rows(args, row);
                pass.x = scratch->x + row * packed_rows + (scratch->all_k ? begin * rows : 0);
                pass.sums = args->sums + row * KERNEL_SUMS + p * EXPERTD_KERNEL_PANEL + column;
                if (rows == args->rows) {
                    half_tile_widen_only(&pass, rows);
                } else {
                    (row == 0 ? half_tile_widen_and_store : half_tile_load_widened)(&pass, rows);
                }
            }
        }
    }
}

// Bytes of a call's scratch for packed rows.
static size_t half_rows_capacity(const struct macrokernel_args *args) {
    return KERNEL_SCRATCH_BYTES + args->scratch_more - sizeof(struct half_scratch);
}

// k of a block, an even number.
static size_t half_block_k(const struct macrokernel_args *args, bool all_k) {
    const size_t capacity = half_rows_capacity(args) / (args->rows * HALF_UNIT_K * sizeof(float)) * HALF_UNIT_K;
    const size_t most = args->rows <= HALF_SMALL_M_ROWS ? HALF_SMALL_M_BLOCK_K : HALF_BLOCK_K;
    return all_k || capacity > most ? most : capacity;
}

// noinline: no FMA may move across the caller's change of the floating-point mode.
static __attribute__((noinline)) void half_multiply_blocks(const struct macrokernel_args *args) {
    struct half_scratch *scratch = args->scratch;
    const size_t block = half_block_k(args, scratch->all_k);
    for (size_t begin = 0; begin < args->k; begin += block) {
        const size_t depth = args->k - begin < block ? args->k - begin : block;
        if (!scratch->all_k) {
            half_pack_rows(args, begin, depth, scratch->x);
        }
        half_multiply_block(args, begin, depth);
    }
}

void avx512_macrokernel_bf16(const struct macrokernel_args *args) {
    struct half_scratch *scratch = args->scratch;
    const size_t bytes = args->rows * half_packed_k(args->k) * sizeof(float);
    if (!args->rows_cached) {
        scratch->all_k = bytes <= half_rows_capacity(args) && bytes <= AVX512_ROWS_CACHED;
        if (scratch->all_k) {
            half_pack_rows(args, 0, args->k, scratch->x);
        }
    }
    clear_sums(args);
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    half_multiply_blocks(args);
    float_mode_restore(before);
}
#endif
