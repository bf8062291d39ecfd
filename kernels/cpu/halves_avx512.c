// Up to 28 rows of bf16 that is widened, more than a tile of 64 columns has: tiles of up to 14 rows by half a panel, each of which
// widens the weights in registers. A pair costs a tile of 14 rows 56 fmas and 4 instructions of widening. Widened once for all
// tiles and kept, the panel would be twice as many bytes of L1, and storing it as many instructions again (group_body.h, which is
// faster from four such tiles on).
#if defined(__x86_64__)
#include "kernels/cpu/avx512_vec.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/float_mode.h"
#include "kernels/cpu/group_ahead.h"
#include "kernels/cpu/widen_row.h"

enum {
    HALF_VECS = 2,
    HALF = HALF_VECS * LANES,      // columns
    HALF_TILE = 14,                // rows: sums in 28 of 32 registers
    HALF_BLOCK = 256,              // k: 16 KiB of half a panel, and as much of a tile's rows, stay in L1
    HALF_RUN = WIDEN_RUN,          // k of a run of the loop: of a vector of widened pairs
    HALF_ROW = HALF_BLOCK + LANES, // floats of a widened row; not a power of two, which would share cache sets
    HALF_FETCH = 2,                // pairs between which lines are fetched
    HALF_NEAR = 2048,              // bytes ahead that they come from L2
};
_Static_assert(HALVES_ROWS *HALF_ROW * sizeof(float) <= KERNEL_SCRATCH_BYTES, "all rows' block");

#if defined(__clang__)
#define HALF_UNROLL PANEL_UNROLL
#else
#define HALF_UNROLL _Pragma("GCC unroll 14")
#endif

// One tile of rows against half a panel, over a block of K.
struct half_pass {
    const float *x; // [rows][HALF_ROW], as widen_row leaves them
    const uint16_t *pairs;
    size_t depth; // k
    float *sums;  // of the first row and column
    struct group_ahead ahead;
};

PANEL_INLINE void half_step(vec sums[][HALF_VECS], size_t rows, const float *x, vec low, vec high) {
    HALF_UNROLL for (size_t r = 0; r < rows; r++) {
        vec value = vec_broadcast(x + r * HALF_ROW);
        sums[r][0] = vec_fma(value, low, sums[r][0]);
        sums[r][1] = vec_fma(value, high, sums[r][1]);
    }
}

// The odd elements without a register that masks the others.
PANEL_INLINE vec half_odd(const uint16_t *pairs) {
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(0xaaaaaaaau, pairs));
}

PANEL_INLINE void half_pair(vec sums[][HALF_VECS], size_t rows, const float *x, const uint16_t *pairs) {
    half_step(sums, rows, x, half_odd(pairs), half_odd(pairs + 2 * LANES));
    half_step(sums, rows, x + LANES, vec_even(pairs), vec_even(pairs + 2 * LANES));
}

// `rows` is a constant in each copy, so that the sums are registers.
PANEL_INLINE void half_rows(struct half_pass *pass, size_t rows) {
    vec sums[HALF_TILE][HALF_VECS];
    struct group_ahead ahead = pass->ahead;
    const uint16_t *pairs = pass->pairs;
    HALF_UNROLL for (size_t r = 0; r < rows; r++) {
        sums[r][0] = vec_load(pass->sums + r * KERNEL_SUMS);
        sums[r][1] = vec_load(pass->sums + r * KERNEL_SUMS + LANES);
    }
    for (size_t begin = 0; begin < pass->depth; begin += HALF_RUN) {
        const size_t left = (pass->depth - begin + 1) / 2, count = left < LANES ? left : LANES;
        const float *x = pass->x + begin, *end = x + count / HALF_FETCH * HALF_FETCH;
        for (; x < end; x += HALF_FETCH, pairs += HALF_FETCH * 2 * KERNEL_PANEL) {
            group_fetch(&ahead);
            for (size_t i = 0; i < HALF_FETCH; i++) {
                const uint16_t *at = pairs + i * 2 * KERNEL_PANEL;
                fetch_into((const void *)((uintptr_t)at + HALF_NEAR), false);
                fetch_into((const void *)((uintptr_t)at + HALF_NEAR + 64), false);
                half_pair(sums, rows, x + i, at);
            }
        }
        for (; x < pass->x + begin + count; x++, pairs += 2 * KERNEL_PANEL) {
            half_pair(sums, rows, x, pairs);
        }
    }
    HALF_UNROLL for (size_t r = 0; r < rows; r++) {
        vec_store(pass->sums + r * KERNEL_SUMS, sums[r][0]);
        vec_store(pass->sums + r * KERNEL_SUMS + LANES, sums[r][1]);
    }
    pass->ahead = ahead;
}

// Not inlined: no fma may move across a change of the floating-point mode in the caller.
static __attribute__((noinline)) void half_tile(struct half_pass *pass, size_t rows) {
#define HALF_CASE(n)                                                                                                               \
    case n:                                                                                                                        \
        half_rows(pass, n);                                                                                                        \
        return;
    switch (rows) {
        HALF_CASE(1)
        HALF_CASE(2)
        HALF_CASE(3)
        HALF_CASE(4)
        HALF_CASE(5)
        HALF_CASE(6)
        HALF_CASE(7)
        HALF_CASE(8)
        HALF_CASE(9)
        HALF_CASE(10)
        HALF_CASE(11)
        HALF_CASE(12)
        HALF_CASE(13)
    default:
        half_rows(pass, HALF_TILE);
    }
}

// What is fetched while panel `panel` is multiplied by a block: the panel's next block, or what the thread takes next.
static struct group_ahead half_ahead(const struct panel_group_args *args, size_t panel, size_t begin, size_t depth, size_t tiles) {
    const bool ends = begin + depth == args->k;
    const void *const *next = ends ? args->next : args->panels;
    const size_t runs = tiles * (KERNEL_PANEL / HALF) * (depth / 2 / HALF_FETCH);
    struct group_ahead ahead = group_ahead_over(NULL, 0, 0);
    if (next) {
        const uint16_t *from = (const uint16_t *)next[panel] + (ends ? 0 : (begin + depth) * KERNEL_PANEL);
        ahead = group_ahead_over(from, depth * KERNEL_PANEL * sizeof *from, runs);
        ahead.far = true;
    }
    return ahead;
}

static void half_block(const struct panel_group_args *args, size_t begin, size_t depth) {
    const size_t tiles = (args->rows + HALF_TILE - 1) / HALF_TILE;
    float *wide = args->scratch;
    for (size_t r = 0; r < args->rows; r++) {
        widen_row((const uint16_t *)args->x[r] + begin, depth, wide + r * HALF_ROW);
    }
    for (size_t p = 0; p < args->count; p++) {
        struct half_pass pass = {.depth = depth, .ahead = half_ahead(args, p, begin, depth, tiles)};
        for (size_t column = 0; column < KERNEL_PANEL; column += HALF) {
            pass.pairs = (const uint16_t *)args->panels[p] + begin * KERNEL_PANEL + 2 * column;
            for (size_t tile = 0, row = 0, rows; row < args->rows; row += rows, tile++) {
                rows = (args->rows - row + tiles - tile - 1) / (tiles - tile); // as even as can be
                pass.x = wide + row * HALF_ROW;
                pass.sums = args->sums + row * KERNEL_SUMS + p * KERNEL_PANEL + column;
                half_tile(&pass, rows);
            }
        }
    }
}

void avx512_halves_bf16(const struct panel_group_args *args) {
    group_clear(args);
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    for (size_t begin = 0; begin < args->k; begin += HALF_BLOCK) {
        half_block(args, begin, args->k - begin < HALF_BLOCK ? args->k - begin : HALF_BLOCK);
    }
    float_mode_restore(before);
}
#endif
