// The bf16 kernels with BFMLALT and BFMLALB. Each is one fma of the odd or the even elements of pairs, under FPCR: these are the
// two fmas of the contract, and nothing has to be widened. (BFDOT and BFMMLA round and flush in other ways, so they are not used.)
// Tiles of 6 x 16 columns: of 32 registers 24 are accumulators, 4 weights and 1 a broadcast. K is cut into blocks for small and
// large m, so that only one block of a tile is computed again if FPCR.FZ may have flushed a result wrongly (float_mode.h).
#if defined(__aarch64__)
#include <string.h>

#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/prefetch_distance.h"
#include "kernels/cpu/neon/vector_neon.h"

enum {
    PAIR_BLOCK = 256,               // k of a block: 32 KiB of a panel, 128 KiB of four, which stay in L2 over all tiles; even
    PAIR_PASS = PANEL_VECS * LANES, // columns of a pass
};

// One tile of rows by a panel over a block of K.
struct pair_block {
    const uint16_t *x[PANEL_TILE]; // each row's first k of the block
    const uint16_t *pairs;         // the panel's first k of the block
    size_t depth;                  // k of the block
    float *sums;                   // [rows][stride], 64 columns of each
    size_t stride;
};

// Two neighbouring elements of a row, at any alignment, in every lane.
PANEL_INLINE bfloat16x8_t pair_broadcast(const uint16_t *x) {
    uint32_t pair;
    memcpy(&pair, x, sizeof pair);
    return vreinterpretq_bf16_u32(vdupq_n_u32(pair));
}

PANEL_INLINE void pair_step(vec sums[][PANEL_VECS], size_t rows, const uint16_t *const *x, size_t i, const uint16_t *pairs) {
    bfloat16x8_t w[PANEL_VECS];
    PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
        w[v] = vreinterpretq_bf16_u16(vld1q_u16(pairs + 2 * v * LANES));
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        bfloat16x8_t value = pair_broadcast(x[r] + i);
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = vbfmlaltq_f32(sums[r][v], value, w[v]);
        }
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = vbfmlalbq_f32(sums[r][v], value, w[v]);
        }
    }
}

// `rows` is a constant in each copy, so that the sums are registers. An odd last k is a pair with +0.
PANEL_INLINE void pair_pass(const struct pair_block *b, size_t column, size_t rows) {
    vec sums[PANEL_TILE][PANEL_VECS];
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = vec_load(b->sums + r * b->stride + column + v * LANES);
        }
    }
    const uint16_t *pairs = b->pairs + 2 * column;
    for (size_t i = 0; i + 1 < b->depth; i += 2, pairs += 2 * EXPERTD_KERNEL_PANEL) {
        prefetch_streamed(pairs, prefetch_stream_ahead());
        pair_step(sums, rows, b->x, i, pairs);
    }
    if (b->depth % 2) {
        uint16_t last[PANEL_TILE][2];
        const uint16_t *x[PANEL_TILE];
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            last[r][0] = b->x[r][b->depth - 1];
            last[r][1] = 0;
            x[r] = last[r];
        }
        pair_step(sums, rows, x, 0, pairs);
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            vec_store(b->sums + r * b->stride + column + v * LANES, sums[r][v]);
        }
    }
}

// Not inlined: no fma may move across a change of the floating-point mode in the caller.
static __attribute__((noinline)) void pair_tile(const struct pair_block *b, size_t rows) {
    for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += PAIR_PASS) {
        PANEL_BY_ROWS(rows, pair_pass, b, column);
    }
}

PANEL_INLINE void pair_exact_step(vec sums[PANEL_VECS], uint16_t even, uint16_t odd, const uint16_t *pairs) {
    vec x_even = vdupq_n_f32(expertd_f32_from_bf16(even)), x_odd = vdupq_n_f32(expertd_f32_from_bf16(odd));
    PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
        sums[v] = vec_fma_flushed(x_odd, vec_odd(pairs + 2 * v * LANES), sums[v]);
        sums[v] = vec_fma_flushed(x_even, vec_even(pairs + 2 * v * LANES), sums[v]);
    }
}

// One row by the block, with every fma flushed as the contract says.
static __attribute__((noinline)) void pair_exact_row(const struct pair_block *b, size_t row) {
    const uint16_t *x = b->x[row];
    for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += PAIR_PASS) {
        const uint16_t *pairs = b->pairs + 2 * column;
        float *at = b->sums + row * b->stride + column;
        vec sums[PANEL_VECS];
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[v] = vec_load(at + v * LANES);
        }
        for (size_t i = 0; i < b->depth; i += 2, pairs += 2 * EXPERTD_KERNEL_PANEL) {
            pair_exact_step(sums, x[i], i + 1 < b->depth ? x[i + 1] : 0, pairs);
        }
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            vec_store(at + v * LANES, sums[v]);
        }
    }
}

// pair_tile, repeated by pair_exact_row if the machine may have flushed a result wrongly.
static void pair_checked(const struct pair_block *b, size_t rows) {
    float before[PANEL_TILE][EXPERTD_KERNEL_PANEL];
    for (size_t r = 0; r < rows; r++) {
        memcpy(before[r], b->sums + r * b->stride, sizeof before[r]);
    }
    float_flush_watch();
    pair_tile(b, rows);
    if (float_flush_seen()) {
        for (size_t r = 0; r < rows; r++) {
            memcpy(b->sums + r * b->stride, before[r], sizeof before[r]);
            pair_exact_row(b, r);
        }
    }
}

static size_t block_depth(size_t k, size_t begin) {
    return k - begin < PAIR_BLOCK ? k - begin : PAIR_BLOCK;
}

static void block_rows(struct pair_block *b, const void *const *x, size_t rows, size_t begin) {
    for (size_t r = 0; r < rows; r++) {
        b->x[r] = (const uint16_t *)x[r] + begin;
    }
}

void neonbf16_panel_bf16(const struct panel_args *args) {
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        float sums[PANEL_TILE][EXPERTD_KERNEL_PANEL] = {{0}};
        struct pair_block b = {.sums = sums[0], .stride = EXPERTD_KERNEL_PANEL};
        rows = panel_tile_rows(args->rows, row);
        for (size_t begin = 0; begin < args->k; begin += b.depth) {
            b.depth = block_depth(args->k, begin);
            b.pairs = (const uint16_t *)args->panel + begin * EXPERTD_KERNEL_PANEL;
            block_rows(&b, args->x + row, rows, begin);
            pair_checked(&b, rows);
        }
        for (size_t r = 0; r < rows; r++) {
            memcpy(args->out + (row + r) * args->out_stride, sums[r], args->columns * sizeof *args->out);
        }
    }
    float_mode_restore(before);
}

void neonbf16_macrokernel_bf16(const struct macrokernel_args *args) {
    struct pair_block b = {.stride = KERNEL_SUMS};
    for (size_t r = 0; !args->accumulate && r < args->rows; r++) {
        memset(args->sums + r * KERNEL_SUMS, 0, args->count * EXPERTD_KERNEL_PANEL * sizeof *args->sums);
    }
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    for (size_t begin = 0; begin < args->k; begin += b.depth) {
        b.depth = block_depth(args->k, begin);
        for (size_t row = 0, rows; row < args->rows; row += rows) {
            rows = panel_tile_rows(args->rows, row);
            block_rows(&b, args->x + row, rows, begin);
            for (size_t p = 0; p < args->count; p++) {
                b.pairs = (const uint16_t *)args->panels[p] + begin * EXPERTD_KERNEL_PANEL;
                b.sums = args->sums + row * KERNEL_SUMS + p * EXPERTD_KERNEL_PANEL;
                pair_checked(&b, rows);
            }
        }
    }
    float_mode_restore(before);
}
#endif
