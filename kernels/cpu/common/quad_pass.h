// Rows of int8 against quads of a panel, a tile of sums at a time, over a vector of LANES int32. The including file defines, for
// its instruction set:
//   vec, LANES               the vector and its int32
//   PANEL_VECS               vectors of columns whose accumulators fit the registers with PANEL_TILE rows
//   vec_load, vec_store
//   QUAD_WORDS               32-bit words that a quad of x (4 k) is prepared as
//   STARTS_AT_OFFSETS        the products are those of x + 128: sums begin with the panel's offsets, not with 0
//   quad_words(x, quads, words)  prepares them, each to be broadcast
//   quad_vec, quad_vec_load  a vector of LANES quads of w, prepared likewise
//   quad_dot(words, w, sum)  sum + the products of one prepared quad of x with each of w; wraps
// Sums pass through memory between stretches of K, which is exact.
#include <string.h>

#include "kernels/cpu/backends.h"
#include "kernels/cpu/common/macrokernel_prefetch.h"
#include "kernels/cpu/common/prefetch_distance.h"
#include "kernels/layout/packed_i8.h"

enum {
    QUAD_BYTES = EXPERTD_KERNEL_PANEL * PACKED_I8_K,
    PANEL_PASS = PANEL_VECS * LANES,
};

typedef int8_t packed_quads[EXPERTD_KERNEL_PANEL][PACKED_I8_K];

// One tile of rows against PANEL_PASS columns of one panel.
struct quad_pass {
    const uint32_t *x[PANEL_TILE]; // prepared
    const packed_quads *panel;
    size_t depth, column; // quads; the pass's first column
    int32_t *sums;        // of the first row, the panel's first column
    size_t sums_stride;
    const char *small_m_ahead;          // few: what the first step fetches,
    size_t small_m_more;                // few: and into L2, so many bytes further; 0: not
    bool small_m_as_codes;              // few: more than QUAD_READ_ROWS fetch as codes are fetched
    size_t step;                        // few: of all tiles' steps, the first
    unsigned shift;                     // few: 0: one tile, 1: two share the fetches
    struct macrokernel_prefetch *ahead; // many
};

PANEL_INLINE void quad_load(vec sums[][PANEL_VECS], size_t rows, const struct quad_pass *p) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = vec_load(p->sums + r * p->sums_stride + p->column + v * LANES);
        }
    }
}

PANEL_INLINE void quad_store(vec sums[][PANEL_VECS], size_t rows, const struct quad_pass *p) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            vec_store(p->sums + r * p->sums_stride + p->column + v * LANES, sums[r][v]);
        }
    }
}

PANEL_INLINE void quad_step(vec sums[][PANEL_VECS], size_t rows, const struct quad_pass *p, size_t q) {
    quad_vec w[PANEL_VECS];
    PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
        w[v] = quad_vec_load(p->panel[q][p->column + v * LANES]);
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = quad_dot(p->x[r] + q * QUAD_WORDS, w[v], sums[r][v]);
        }
    }
}

// `run` has a copy for each number of rows, so that the sums are registers.
#define QUAD_TILE_FUNCTION(name, run)                                                                                              \
    static void name(struct quad_pass *pass, size_t rows) {                                                                        \
        for (pass->column = 0; pass->column < EXPERTD_KERNEL_PANEL; pass->column += PANEL_PASS) {                                  \
            PANEL_BY_ROWS(rows, run, pass);                                                                                        \
        }                                                                                                                          \
    }

// `depth` quads of a row of k elements from quad `first` on; the last may be short, where w is padded with 0.
static void prepare_quads(const int8_t *x, size_t k, size_t first, size_t depth, uint32_t *words) {
    size_t left = k - first * PACKED_I8_K;
    size_t whole = left / PACKED_I8_K < depth ? depth - 1 : depth;
    x += first * PACKED_I8_K;
    quad_words(x, whole, words);
    if (whole < depth) {
        int8_t last[PACKED_I8_K] = {0};
        memcpy(last, x + whole * PACKED_I8_K, left - whole * PACKED_I8_K);
        quad_words(last, 1, words + whole * QUAD_WORDS);
    }
}
