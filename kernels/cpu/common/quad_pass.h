// Shared by the int8 kernels (panel_i8_body.h, macrokernel_i8_body.h): one tile of rows by quads of a panel, over a vector of
// LANES int32. A quad is 4 k of one column. The including file defines, for its instruction set:
//   vec, LANES               the vector type and its number of int32
//   PANEL_VECS               vectors of columns whose accumulators fit into registers with PANEL_TILE rows
//   vec_load, vec_store
//   QUAD_WORDS               32-bit words into which a quad of x is converted
//   STARTS_AT_OFFSETS        1: the products are those of x + 128, and sums start at the panel's offsets; 0: sums start at 0
//   quad_words(x, quads, words)  converts quads of x to words that can be broadcast
//   quad_vec, quad_vec_load  LANES quads of weights, converted likewise
//   quad_dot(words, w, sum)  sum + the products of one converted quad of x with each quad of w; wraps
// Between two blocks of K sums are stored and loaded, which is exact.
#include <string.h>

#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/macrokernel_prefetch.h"
#include "kernels/cpu/common/prefetch_distance.h"
#include "kernels/layout/packed_i8.h"

enum {
    QUAD_BYTES = EXPERTD_KERNEL_PANEL * PACKED_I8_K,
    PANEL_PASS = PANEL_VECS * LANES,
};

typedef int8_t packed_quads[EXPERTD_KERNEL_PANEL][PACKED_I8_K];

// One tile of rows by PANEL_PASS columns of one panel.
struct quad_pass {
    const uint32_t *x[PANEL_TILE]; // converted rows
    const packed_quads *panel;
    size_t depth, column; // number of quads; the pass's first column
    int32_t *sums;        // of the first row, the panel's first column
    size_t sums_stride;
    // For panel_i8_body.h, as in struct panel_prefetch:
    const char *small_m_prefetch; // address prefetched by the first step
    size_t small_m_more;          // as in struct prefetch_stream
    bool small_m_as_codes;        // with more than QUAD_READ_ROWS rows, prefetch at the distances for codes
    size_t step;                  // index of this tile's first step among the steps of all tiles
    unsigned shift;               // log2 of the number of tiles: 0 or 1
    // For macrokernel_i8_body.h:
    struct macrokernel_prefetch *prefetch;
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

// Defines a function that runs `run` for all columns of a panel, with the copy for the tile's number of rows.
#define QUAD_TILE_FUNCTION(name, run)                                                                                              \
    static void name(struct quad_pass *pass, size_t rows) {                                                                        \
        for (pass->column = 0; pass->column < EXPERTD_KERNEL_PANEL; pass->column += PANEL_PASS) {                                  \
            PANEL_BY_ROWS(rows, run, pass);                                                                                        \
        }                                                                                                                          \
    }

// Converts `depth` quads of a row of k elements, from quad `first` on. An incomplete last quad is padded with 0.
static void prepare_quads(const int8_t *x, size_t k, size_t first, size_t depth, uint32_t *words) {
    size_t left = k - first * PACKED_I8_K;
    size_t complete = left / PACKED_I8_K < depth ? depth - 1 : depth;
    x += first * PACKED_I8_K;
    quad_words(x, complete, words);
    if (complete < depth) {
        int8_t last[PACKED_I8_K] = {0};
        memcpy(last, x + complete * PACKED_I8_K, left - complete * PACKED_I8_K);
        quad_words(last, 1, words + complete * QUAD_WORDS);
    }
}
