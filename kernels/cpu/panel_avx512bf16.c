// bf16 sums by VDPBF16PS: two fmas per pair, the odd k first, each rounded and flushed whatever MXCSR says.
// 6 x 64 columns at a time: 24 accumulators, 4 of weights and 1 broadcast of 32 registers; over the whole of K for few rows, in
// blocks of K for many, so that a panel's block stays in L2 over the tiles of rows.
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/backends.h"
#include "kernels/cpu/group_ahead.h"

enum { LANES = 16, PAIR_VECS = KERNEL_PANEL / LANES };

// Two neighbouring elements of a row, which need not be 4-byte aligned, in every lane.
PANEL_INLINE __m512bh pair_broadcast(const uint16_t *x) {
    int pair;
    memcpy(&pair, x, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

PANEL_INLINE __m512bh pair_load(const uint16_t *pairs) {
    return (__m512bh)_mm512_loadu_si512(pairs);
}

PANEL_INLINE void pair_fetch_ahead(const uint16_t *pairs) {
    PANEL_UNROLL for (size_t v = 0; v < PAIR_VECS; v++) {
        _mm_prefetch((const char *)((uintptr_t)(pairs + 2 * v * LANES) + PANEL_AHEAD_BYTES), _MM_HINT_T0);
    }
}

// Each broadcast just before its use: six at once would spill.
PANEL_INLINE void pair_step(__m512 sums[][PAIR_VECS], size_t rows, const uint16_t *const *x, size_t i, const uint16_t *pairs) {
    __m512bh w[PAIR_VECS];
    PANEL_UNROLL for (size_t v = 0; v < PAIR_VECS; v++) {
        w[v] = pair_load(pairs + 2 * v * LANES);
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        __m512bh value = pair_broadcast(x[r] + i);
        PANEL_UNROLL for (size_t v = 0; v < PAIR_VECS; v++) {
            sums[r][v] = _mm512_dpbf16_ps(sums[r][v], value, w[v]);
        }
    }
}

PANEL_INLINE void pair_store(__m512 sums[PAIR_VECS], float *out, size_t columns) {
    if (columns == KERNEL_PANEL) {
        PANEL_UNROLL for (size_t v = 0; v < PAIR_VECS; v++) {
            _mm512_storeu_ps(out + v * LANES, sums[v]);
        }
        return;
    }
    PANEL_UNROLL for (size_t v = 0; v < PAIR_VECS; v++) {
        size_t left = columns > v * LANES ? columns - v * LANES : 0;
        __mmask16 mask = (__mmask16)(left < LANES ? (1u << left) - 1 : 0xffffu);
        _mm512_mask_storeu_ps(out + v * LANES, mask, sums[v]);
    }
}

// Rows [row, row + rows) of the call; `rows` is a constant in each copy, so that the sums are registers.
PANEL_INLINE void pair_rows(const struct panel_args *a, size_t row, size_t rows) {
    __m512 sums[PANEL_TILE][PAIR_VECS];
    const uint16_t *x[PANEL_TILE];
    uint16_t last[PANEL_TILE][2];
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        x[r] = a->x[row + r];
        PANEL_UNROLL for (size_t v = 0; v < PAIR_VECS; v++) {
            sums[r][v] = _mm512_setzero_ps();
        }
    }
    const uint16_t *panel = a->panel;
    for (size_t i = 0; i + 1 < a->k; i += 2) {
        pair_fetch_ahead(panel);
        pair_step(sums, rows, x, i, panel);
        panel += 2 * KERNEL_PANEL;
    }
    if (a->k % 2) {
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            last[r][0] = x[r][a->k - 1];
            last[r][1] = 0;
            x[r] = last[r];
        }
        pair_step(sums, rows, x, 0, panel);
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        pair_store(sums[r], a->out + (row + r) * a->out_stride, a->columns);
    }
}

static void pair_tile(const struct panel_args *args, size_t row, size_t rows) {
    switch (rows) {
    case 1:
        pair_rows(args, row, 1);
        return;
    case 2:
        pair_rows(args, row, 2);
        return;
    case 3:
        pair_rows(args, row, 3);
        return;
    case 4:
        pair_rows(args, row, 4);
        return;
    case 5:
        pair_rows(args, row, 5);
        return;
    default:
        pair_rows(args, row, PANEL_TILE);
        return;
    }
}

static void avx512bf16_panel_bf16(const struct panel_args *args) {
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = panel_tile_rows(args->rows, row);
        pair_tile(args, row, rows);
    }
}

enum {
    PAIR_BLOCK = 1024, // k: a panel's block is 128 KiB
    PAIR_RUN = 32,     // k of a run of the inner loop, between which the next block is prefetched
};

// One tile of rows against one panel over a block of K.
struct pair_pass {
    const uint16_t *x[PANEL_TILE]; // to the block's first k
    const uint16_t *panel;
    size_t depth; // k
    float *sums;
    const char *ahead; // what to fetch into L2, ahead_bytes at each run
    size_t ahead_bytes;
};

// The odd last k is a pair with +0.
PANEL_INLINE void pair_tail(__m512 sums[][PAIR_VECS], size_t rows, const struct pair_pass *pass) {
    uint16_t last[PANEL_TILE][2];
    const uint16_t *x[PANEL_TILE];
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        last[r][0] = pass->x[r][pass->depth - 1];
        last[r][1] = 0;
        x[r] = last[r];
    }
    pair_step(sums, rows, x, 0, pass->panel + (pass->depth - 1) * KERNEL_PANEL);
}

PANEL_INLINE void pair_pass_rows(const struct pair_pass *pass, size_t rows) {
    __m512 sums[PANEL_TILE][PAIR_VECS];
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PAIR_VECS; v++) {
            sums[r][v] = _mm512_load_ps(pass->sums + r * KERNEL_SUMS + v * LANES);
        }
    }
    const uint16_t *panel = pass->panel;
    const char *ahead = pass->ahead;
    size_t even = pass->depth / 2 * 2;
    for (size_t begin = 0; begin < even; begin += PAIR_RUN) {
        size_t end = even - begin < PAIR_RUN ? even : begin + PAIR_RUN;
        for (size_t i = 0; i < pass->ahead_bytes; i += 64) {
            _mm_prefetch(ahead + i, _MM_HINT_T0);
        }
        ahead += pass->ahead_bytes;
        for (size_t i = begin; i < end; i += 2, panel += 2 * KERNEL_PANEL) {
            pair_step(sums, rows, pass->x, i, panel);
        }
    }
    if (pass->depth % 2) {
        pair_tail(sums, rows, pass);
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PAIR_VECS; v++) {
            _mm512_store_ps(pass->sums + r * KERNEL_SUMS + v * LANES, sums[r][v]);
        }
    }
}

static void pair_pass_tile(const struct pair_pass *pass, size_t rows) {
    switch (rows) {
    case 1:
        pair_pass_rows(pass, 1);
        return;
    case 2:
        pair_pass_rows(pass, 2);
        return;
    case 3:
        pair_pass_rows(pass, 3);
        return;
    case 4:
        pair_pass_rows(pass, 4);
        return;
    case 5:
        pair_pass_rows(pass, 5);
        return;
    default:
        pair_pass_rows(pass, PANEL_TILE);
        return;
    }
}

// Block [begin, begin + depth) of K.
static void pair_block(const struct panel_group_args *args, size_t begin, size_t depth) {
    size_t tiles = (args->rows + PANEL_TILE - 1) / PANEL_TILE, tile = 0;
    struct group_ahead_plan plan = group_ahead_plan(args, begin + depth, PAIR_BLOCK, sizeof(uint16_t));
    group_ahead_share(&plan, (depth + PAIR_RUN - 1) / PAIR_RUN, tiles);
    for (size_t row = 0, rows; row < args->rows; row += rows, tile++) {
        rows = panel_tile_rows(args->rows, row);
        struct pair_pass pass = {.depth = depth};
        for (size_t r = 0; r < rows; r++) {
            pass.x[r] = (const uint16_t *)args->x[row + r] + begin;
        }
        for (size_t p = 0; p < args->count; p++) {
            struct group_ahead ahead = group_ahead_at(&plan, p, tile);
            pass.panel = (const uint16_t *)args->panels[p] + begin * KERNEL_PANEL;
            pass.sums = args->sums + row * KERNEL_SUMS + p * KERNEL_PANEL;
            pass.ahead = ahead.at;
            pass.ahead_bytes = ahead.bytes;
            pair_pass_tile(&pass, rows);
        }
    }
}

static void avx512bf16_group_bf16(const struct panel_group_args *args) {
    group_clear(args);
    for (size_t begin = 0; begin < args->k; begin += PAIR_BLOCK) {
        pair_block(args, begin, args->k - begin < PAIR_BLOCK ? args->k - begin : PAIR_BLOCK);
    }
}

const struct kernel_backend backend_avx512bf16 = {.name = "avx512bf16",
                                                  .panel_f32 = avx512_panel_f32,
                                                  .panel_bf16 = avx512bf16_panel_bf16,
                                                  .group_f32 = avx512_group_f32,
                                                  .group_bf16 = avx512bf16_group_bf16,
                                                  .panel_i8 = avx512vnni_panel_i8,
                                                  BACKEND_QUANTISED(avx512),
                                                  BACKEND_ROWS(avx512)};
#endif
