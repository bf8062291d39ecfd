// The int8 panel kernel, written once over a vector of LANES int32. The including file defines, for its instruction set:
//   vec, LANES               the vector and its int32
//   PANEL_VECS               vectors of columns whose accumulators fit the registers with PANEL_TILE rows
//   vec_load, vec_store
//   QUAD_WORDS               32-bit words that a quad of x (4 k) is prepared as
//   STARTS_AT_OFFSETS        the products are those of x + 128: sums begin with the panel's offsets, not with 0
//   quad_words(x, quads, words)  prepares them, each to be broadcast
//   quad_vec, quad_vec_load  a vector of LANES quads of w, prepared likewise
//   quad_dot(words, w, sum)  sum + the products of one prepared quad of x with each of w; wraps
// and names the result by PANEL_TARGET(name). K goes in chunks through accumulators in memory, as in panel_body.h.
#include <string.h>

#include "kernels/cpu/backends.h"
#include "kernels/weights.h"

enum {
    QUAD_CHUNK = 128, // quads: 32 KiB of a panel
    PANEL_PASS = PANEL_VECS * LANES,
};

typedef int32_t panel_row[KERNEL_PANEL] __attribute__((aligned(64)));
typedef uint32_t quad_row[QUAD_CHUNK * QUAD_WORDS] __attribute__((aligned(64)));
typedef int8_t packed_quads[KERNEL_PANEL][PACKED_I8_K];

// `depth` quads along PANEL_PASS columns from `column`; `rows` is a constant in each copy, so that the sums are registers.
PANEL_INLINE void panel_pass_i8(panel_row *block, size_t rows, quad_row *x, const packed_quads *panel, size_t depth,
                                size_t column) {
    vec sums[PANEL_TILE][PANEL_VECS];
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = vec_load(&block[r][column + v * LANES]);
        }
    }
    for (size_t q = 0; q < depth; q++) {
        quad_vec w[PANEL_VECS];
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            w[v] = quad_vec_load(panel[q][column + v * LANES]);
        }
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
                sums[r][v] = quad_dot(x[r] + q * QUAD_WORDS, w[v], sums[r][v]);
            }
        }
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            vec_store(&block[r][column + v * LANES], sums[r][v]);
        }
    }
}

static void panel_chunk_i8(panel_row *block, size_t rows, quad_row *x, const packed_quads *panel, size_t depth) {
    for (size_t column = 0; column < KERNEL_PANEL; column += PANEL_PASS) {
        switch (rows) {
        case 1:
            panel_pass_i8(block, 1, x, panel, depth, column);
            break;
        case 2:
            panel_pass_i8(block, 2, x, panel, depth, column);
            break;
        case 3:
            panel_pass_i8(block, 3, x, panel, depth, column);
            break;
        case 4:
            panel_pass_i8(block, 4, x, panel, depth, column);
            break;
        case 5:
            panel_pass_i8(block, 5, x, panel, depth, column);
            break;
        default:
            panel_pass_i8(block, PANEL_TILE, x, panel, depth, column);
            break;
        }
    }
}

// `depth` quads of a row from k = `first` on; the last may be short, where w is padded with 0.
static void prepare_quads(const struct panel_i8_args *args, size_t row, size_t first, size_t depth, uint32_t *words) {
    const int8_t *x = args->x[row] + first;
    size_t whole = (args->k - first) / PACKED_I8_K < depth ? depth - 1 : depth;
    quad_words(x, whole, words);
    if (whole < depth) {
        int8_t last[PACKED_I8_K] = {0};
        memcpy(last, x + whole * PACKED_I8_K, args->k - first - whole * PACKED_I8_K);
        quad_words(last, 1, words + whole * QUAD_WORDS);
    }
}

// Rows [row, row + rows) of the call, whole K.
static void panel_tile_i8(const struct panel_i8_args *args, size_t row, size_t rows) {
    const struct packed_i8 *panel = args->panel;
    size_t quads = (args->k + PACKED_I8_K - 1) / PACKED_I8_K;
    panel_row block[PANEL_TILE];
    quad_row x[PANEL_TILE];
    for (size_t r = 0; r < rows; r++) {
        if (STARTS_AT_OFFSETS) {
            memcpy(block[r], panel->offsets, sizeof block[r]);
        } else {
            memset(block[r], 0, sizeof block[r]);
        }
    }
    for (size_t q = 0; q < quads; q += QUAD_CHUNK) {
        size_t depth = quads - q < QUAD_CHUNK ? quads - q : QUAD_CHUNK;
        for (size_t r = 0; r < rows; r++) {
            prepare_quads(args, row + r, q * PACKED_I8_K, depth, x[r]);
        }
        panel_chunk_i8(block, rows, x, panel->quads + q, depth);
    }
    for (size_t r = 0; r < rows; r++) {
        memcpy(args->out + (row + r) * args->out_stride, block[r], args->columns * sizeof *args->out);
    }
}

void PANEL_TARGET(panel_i8)(const struct panel_i8_args *args) {
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = panel_tile_rows(args->rows, row);
        panel_tile_i8(args, row, rows);
    }
}
