// bf16 by VDPBF16PS: two FMAs per pair of k, the odd k first, each rounded and flushed regardless of MXCSR. A tile is 6 x 64: of 32
// registers 24 hold sums, 4 weights, 1 a broadcast pair. Kernels for small m pass over all of K at once,
// kernels for large m over one block of K after another (macrokernel_words_body.h).
#if defined(__x86_64__)
#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/avx512/bf16_pair_avx512bf16.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum { LANES = 16, PAIR_VECS = EXPERTD_KERNEL_PANEL / LANES };

PANEL_INLINE __m512bh pair_load(const uint16_t *pairs) {
    return (__m512bh)_mm512_loadu_si512(pairs);
}

PANEL_INLINE void pair_prefetch_ahead(const uint16_t *pairs, struct prefetch_stream ahead) {
    PANEL_UNROLL for (size_t v = 0; v < PAIR_VECS; v++) {
        prefetch_streamed(pairs + 2 * v * LANES, ahead);
    }
}

// Each broadcast comes right before its use: six at once would spill.
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
    if (columns == EXPERTD_KERNEL_PANEL) {
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

// Rows [row, row + rows) of the call. `rows` is a constant in each copy, so that the sums stay in registers.
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
    const struct prefetch_stream ahead = prefetch_stream_ahead();
    for (size_t i = 0; i + 1 < a->k; i += 2) {
        pair_prefetch_ahead(panel, ahead);
        pair_step(sums, rows, x, i, panel);
        panel += 2 * EXPERTD_KERNEL_PANEL;
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
    PANEL_BY_ROWS(rows, pair_rows, args, row);
}

void avx512bf16_panel_bf16(const struct panel_args *args) {
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = panel_tile_rows(args->rows, row);
        pair_tile(args, row, rows);
    }
}

// ---- large m: macrokernel_words_body.h, a word is a pair of k

typedef __m512 vec;
enum { PANEL_VECS = PAIR_VECS };

static inline vec vec_load(const float *p) {
    return _mm512_loadu_ps(p);
}

static inline void vec_store(float *p, vec v) {
    _mm512_storeu_ps(p, v);
}

static inline vec vec_broadcast(const void *p) {
    return (vec)pair_broadcast(p);
}

static inline vec vec_fma(vec a, vec b, vec c) {
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}

// always_inline: gcc 12 regards a function that only prefetches as free of side effects and drops calls of it.
static inline __attribute__((always_inline)) void vec_prefetch(const void *p) {
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

#include "kernels/cpu/common/macrokernel_words_body.h"

// The last k of an odd K: a pair with +0.
static void pair_odd_k(const struct macrokernel_args *args, size_t row, size_t rows) {
    uint16_t last[PANEL_TILE][2];
    size_t pairs = args->k / 2;
    struct words_pass pass = {.words = 1, .begins = pairs == 0 && !args->accumulate};
    for (size_t r = 0; r < rows; r++) {
        last[r][0] = ((const uint16_t *)args->x[row + r])[args->k - 1];
        last[r][1] = 0;
        pass.x[r] = (const char *)last[r];
    }
    for (size_t p = 0; p < args->count; p++) {
        pass.panel = (const float *)args->panels[p] + pairs * EXPERTD_KERNEL_PANEL;
        pass.sums = args->sums + row * KERNEL_SUMS + p * EXPERTD_KERNEL_PANEL;
        words_columns(&pass, rows);
    }
}

void avx512bf16_macrokernel_bf16(const struct macrokernel_args *args) {
    words_macrokernel(args, args->k / 2);
    for (size_t row = 0, rows; args->k % 2 && row < args->rows; row += rows) {
        rows = panel_tile_rows(args->rows, row);
        pair_odd_k(args, row, rows);
    }
}
#endif
