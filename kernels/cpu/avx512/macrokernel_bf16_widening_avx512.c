// More rows of bf16 than a panel kernel takes, widened to f32: tiles of up to 14 rows by half a panel, whose sums are in 28 of 32
// registers. Of a block of K the first tile widens half a panel as it multiplies, 4 instructions beside 56 fmas, and leaves it in
// cache for the other tiles. Rows are widened once for all panels of a call, and where there is room for the whole of K, once for
// all calls that they are kept for.
#if defined(__x86_64__)
#include "base/sizes.h"
#include "kernels/cpu/avx512/vector_avx512.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/macrokernel_prefetch.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum {
    HALF_VECS = 2,
    HALF = HALF_VECS * LANES,          // columns
    HALF_TILE = 14,                    // rows
    HALF_UNIT = LANES,                 // k of a row that lie side by side
    HALF_BLOCK = 512,                  // k at most: 64 KiB of half a panel, widened
    HALF_SMALL_M_BLOCK = 128,          // of up to two tiles, which wait for memory: it stays in L1 and leaves room for what comes
    HALF_SMALL_M_ROWS = 2 * HALF_TILE, // of those
    HALF_STEP = 4,                     // k of a run of the inner loop
    HALF_FETCHES = HALF_STEP / 2,      // places in it where lines are fetched
    HALF_NEAR = 2048,                  // bytes ahead that lines come from L2
    HALF_PACK_AHEAD = 24 * LANES,      // floats ahead that lines are asked for before they are written: they come from L2
};

#if defined(__clang__)
#define HALF_UNROLL PANEL_UNROLL
#else
#define HALF_UNROLL _Pragma("GCC unroll 14")
#endif

typedef float half_row[HALF] __attribute__((aligned(64)));

// A thread's scratch.
struct half_scratch {
    bool all;                  // of K is in x; else a block
    half_row wide[HALF_BLOCK]; // of half a panel, by k
    float x[] __attribute__((aligned(64)));
};
_Static_assert(sizeof(struct half_scratch) + KERNEL_CALL_ROWS * HALF_SMALL_M_BLOCK * sizeof(float) <= KERNEL_SCRATCH_BYTES,
               "a block of all rows");

// Lines that are fetched as others are multiplied, as many at each place: what is due would be a branch that no one foresees.
struct half_ahead {
    uintptr_t at, last;
    size_t lines[HALF_FETCHES];
};

// One tile of rows against half a panel, over a block of K.
struct half_pass {
    const float *x;        // [k / HALF_UNIT][rows][HALF_UNIT]
    const uint16_t *pairs; // EXPERTD_KERNEL_PANEL pairs apart
    half_row *wide;        // the same once it is widened
    size_t depth;          // k
    float *sums;           // of the first row and column
    struct half_ahead ahead;
};

// Where a tile's columns come from.
enum half_source {
    HALF_WIDENED, // half_pass.wide
    HALF_WIDENS,  // half_pass.pairs, and it leaves them there
    HALF_ALONE,   // half_pass.pairs: no tile comes after it
};

PANEL_INLINE void half_prefetch(struct half_ahead *ahead, size_t place) {
    for (size_t n = ahead->lines[place]; n > 0; n--) {
        prefetch_into((const void *)ahead->at, true);
        ahead->at = ahead->at < ahead->last ? ahead->at + 64 : ahead->at;
    }
}

// A k's sums.
PANEL_INLINE void half_k(vec sums[][HALF_VECS], size_t rows, const float *x, vec low, vec high) {
    HALF_UNROLL for (size_t r = 0; r < rows; r++) {
        vec value = vec_broadcast(x + r * HALF_UNIT);
        sums[r][0] = vec_fma(value, low, sums[r][0]);
        sums[r][1] = vec_fma(value, high, sums[r][1]);
    }
}

PANEL_INLINE void half_widened(vec sums[][HALF_VECS], size_t rows, const float *x, const float *wide) {
    half_k(sums, rows, x, vec_load(wide), vec_load(wide + LANES));
}

PANEL_INLINE void half_leave(float *wide, vec low, vec high) {
    vec_store(wide, low);
    vec_store(wide + LANES, high);
}

// The odd elements without a register that masks the others, which sums need.
PANEL_INLINE vec half_odd(const uint16_t *pairs) {
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(0xaaaaaaaau, pairs));
}

// A pair of k, the odd one first.
PANEL_INLINE void half_pair(vec sums[][HALF_VECS], size_t rows, const float *x, const uint16_t *pairs, half_row *wide,
                            enum half_source source) {
    if (source == HALF_WIDENED) {
        half_widened(sums, rows, x + 1, wide[1]);
        half_widened(sums, rows, x, wide[0]);
        return;
    }
    prefetch_into((const void *)((uintptr_t)pairs + HALF_NEAR), false);
    prefetch_into((const void *)((uintptr_t)pairs + HALF_NEAR + 64), false);
    vec low = half_odd(pairs), high = half_odd(pairs + 2 * LANES);
    if (source == HALF_WIDENS) {
        half_leave(wide[1], low, high);
    }
    half_k(sums, rows, x + 1, low, high);
    low = vec_even(pairs), high = vec_even(pairs + 2 * LANES);
    if (source == HALF_WIDENS) {
        half_leave(wide[0], low, high);
    }
    half_k(sums, rows, x, low, high);
}

// `rows` and `source` are constants in each copy, so that the sums are registers.
PANEL_INLINE void half_rows(struct half_pass *pass, size_t rows, enum half_source source) {
    enum { PAIR = 2 * EXPERTD_KERNEL_PANEL }; // elements of a panel's pairs of a k
    vec sums[HALF_TILE][HALF_VECS];
    struct half_ahead ahead = pass->ahead;
    const uint16_t *pairs = pass->pairs;
    half_row *wide = pass->wide;
    const float *x = pass->x;
    HALF_UNROLL for (size_t r = 0; r < rows; r++) {
        sums[r][0] = vec_load(pass->sums + r * KERNEL_SUMS);
        sums[r][1] = vec_load(pass->sums + r * KERNEL_SUMS + LANES);
    }
    for (size_t begin = 0; begin < pass->depth; begin += HALF_UNIT, x += rows * HALF_UNIT) {
        const size_t left = (pass->depth - begin + 1) / 2 * 2, count = left < HALF_UNIT ? left : HALF_UNIT;
        const float *at = x, *end = x + count / HALF_STEP * HALF_STEP;
        for (; at < end; at += HALF_STEP) {
            HALF_UNROLL for (size_t i = 0; i < HALF_FETCHES; i++, pairs += PAIR, wide += 2) {
                half_prefetch(&ahead, i);
                half_pair(sums, rows, at + 2 * i, pairs, wide, source);
            }
        }
        if (count % HALF_STEP) {
            half_pair(sums, rows, at, pairs, wide, source);
        }
    }
    HALF_UNROLL for (size_t r = 0; r < rows; r++) {
        vec_store(pass->sums + r * KERNEL_SUMS, sums[r][0]);
        vec_store(pass->sums + r * KERNEL_SUMS + LANES, sums[r][1]);
    }
    pass->ahead = ahead;
}

#define HALF_CASE(n, source)                                                                                                       \
    case n:                                                                                                                        \
        half_rows(pass, n, source);                                                                                                \
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
            half_rows(pass, HALF_TILE, source);                                                                                    \
        }                                                                                                                          \
    }

HALF_TILE_FUNCTION(half_tile_widened, HALF_WIDENED)
HALF_TILE_FUNCTION(half_tile_widens, HALF_WIDENS)
HALF_TILE_FUNCTION(half_tile_alone, HALF_ALONE)

// Of the tile that begins at `row`: tiles are as even as can be.
static size_t half_tile_rows(const struct macrokernel_args *args, size_t row) {
    const size_t left = args->rows - row;
    return div_up(left, div_up(left, HALF_TILE));
}

// Floats of a row's `depth` k as they are laid.
static size_t half_packed_rows(size_t depth) {
    return div_up(depth, HALF_UNIT) * HALF_UNIT;
}

// `depth` k of all rows from `begin` on, tile by tile, +0 up to whole units.
static void half_pack_rows(const struct macrokernel_args *args, size_t begin, size_t depth, float *to) {
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = half_tile_rows(args, row);
        for (size_t k = 0; k < depth; k += HALF_UNIT) {
            const __mmask16 there = depth - k < HALF_UNIT ? (__mmask16)((1u << (depth - k)) - 1) : UINT16_MAX;
            for (size_t r = 0; r < rows; r++, to += HALF_UNIT) {
                __builtin_prefetch(to + HALF_PACK_AHEAD, 1);
                const __m256i elements = _mm256_maskz_loadu_epi16(there, (const uint16_t *)args->x[row + r] + begin + k);
                _mm512_store_si512(to, _mm512_slli_epi32(_mm512_cvtepu16_epi32(elements), 16));
            }
        }
    }
}

// What is fetched while panel `panel` is multiplied by a block: the panel's next block, or what the thread takes next.
static struct half_ahead half_ahead_of(const struct macrokernel_args *args, size_t panel, size_t begin, size_t depth) {
    const bool ends = begin + depth == args->k;
    const void *const *next = ends ? args->next : args->panels;
    const size_t steps = div_up(args->rows, HALF_TILE) * (EXPERTD_KERNEL_PANEL / HALF) * (depth / HALF_STEP);
    if (!next || steps == 0) {
        return (struct half_ahead){0};
    }
    const size_t bytes = depth / 2 * 2 * EXPERTD_KERNEL_PANEL * sizeof(uint16_t), lines = div_up(bytes / 64, steps);
    const uint16_t *from = (const uint16_t *)next[panel] + (ends ? 0 : (begin + depth) * EXPERTD_KERNEL_PANEL);
    return (struct half_ahead){(uintptr_t)from, (uintptr_t)from + bytes - 64, {div_up(lines, 2), lines / 2}};
}

static void half_block(const struct macrokernel_args *args, size_t begin, size_t depth) {
    struct half_scratch *scratch = args->scratch;
    const size_t packed_rows = half_packed_rows(scratch->all ? args->k : depth);
    for (size_t p = 0; p < args->count; p++) {
        struct half_pass pass = {.wide = scratch->wide, .depth = depth, .ahead = half_ahead_of(args, p, begin, depth)};
        for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += HALF) {
            pass.pairs = (const uint16_t *)args->panels[p] + begin * EXPERTD_KERNEL_PANEL + 2 * column;
            for (size_t row = 0, rows; row < args->rows; row += rows) {
                rows = half_tile_rows(args, row);
                pass.x = scratch->x + row * packed_rows + (scratch->all ? begin * rows : 0);
                pass.sums = args->sums + row * KERNEL_SUMS + p * EXPERTD_KERNEL_PANEL + column;
                if (rows == args->rows) {
                    half_tile_alone(&pass, rows);
                } else {
                    (row == 0 ? half_tile_widens : half_tile_widened)(&pass, rows);
                }
            }
        }
    }
}

// Bytes of a call's scratch for rows.
static size_t half_room(const struct macrokernel_args *args) {
    return KERNEL_SCRATCH_BYTES + args->scratch_more - sizeof(struct half_scratch);
}

// k of a block: even.
static size_t half_block_k(const struct macrokernel_args *args, bool all) {
    const size_t room = half_room(args) / (args->rows * HALF_UNIT * sizeof(float)) * HALF_UNIT;
    const size_t most = args->rows <= HALF_SMALL_M_ROWS ? HALF_SMALL_M_BLOCK : HALF_BLOCK;
    return all || room > most ? most : room;
}

// Not inlined: no fma may move across a change of the floating-point mode in the caller.
static __attribute__((noinline)) void half_blocks(const struct macrokernel_args *args) {
    struct half_scratch *scratch = args->scratch;
    const size_t block = half_block_k(args, scratch->all);
    for (size_t begin = 0; begin < args->k; begin += block) {
        const size_t depth = args->k - begin < block ? args->k - begin : block;
        if (!scratch->all) {
            half_pack_rows(args, begin, depth, scratch->x);
        }
        half_block(args, begin, depth);
    }
}

void avx512_macrokernel_bf16(const struct macrokernel_args *args) {
    struct half_scratch *scratch = args->scratch;
    const size_t bytes = args->rows * half_packed_rows(args->k) * sizeof(float);
    if (!args->rows_cached) {
        scratch->all = bytes <= half_room(args) && bytes <= AVX512_ROWS_CACHED;
        if (scratch->all) {
            half_pack_rows(args, 0, args->k, scratch->x);
        }
    }
    group_clear(args);
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    half_blocks(args);
    float_mode_restore(before);
}
#endif
