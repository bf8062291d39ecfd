// The int8 kernels, written once over a vector of LANES int32. The including file defines, for its instruction set:
//   vec, LANES               the vector and its int32
//   PANEL_VECS               vectors of columns whose accumulators fit the registers with PANEL_TILE rows
//   vec_load, vec_store
//   QUAD_WORDS               32-bit words that a quad of x (4 k) is prepared as
//   STARTS_AT_OFFSETS        the products are those of x + 128: sums begin with the panel's offsets, not with 0
//   quad_words(x, quads, words)  prepares them, each to be broadcast
//   quad_vec, quad_vec_load  a vector of LANES quads of w, prepared likewise
//   quad_dot(words, w, sum)  sum + the products of one prepared quad of x with each of w; wraps
// and names the results by PANEL_TARGET(name). Sums pass through memory between chunks, which is exact. Few rows are bound by the
// read of the weights, which is fetched ahead as in panel_body.h; many are group_i8_body.h's.
#include <string.h>

#include "kernels/cpu/backends.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/group_ahead.h"
#include "kernels/packed_i8.h"

enum {
    QUAD_CHUNK = 128,           // quads, few rows: 32 KiB of a panel
    QUAD_ROWS = 2 * PANEL_TILE, // that a panel is read once for
    // Up to so many, lines are used as fast as Zen 4 reads ahead by itself; with more they wait. Of 3 to 6 rows .82-.90 -> .91-.96
    // of the roof, where memory gives 50 GB/s .6-.7 -> .8-.9; one row would be .96 as fast.
    QUAD_READ_ROWS = 2,
    QUAD_BYTES = KERNEL_PANEL * PACKED_I8_K,
    PANEL_PASS = PANEL_VECS * LANES,
};

typedef int32_t panel_row[KERNEL_PANEL] __attribute__((aligned(64)));
typedef uint32_t quad_row[QUAD_CHUNK * QUAD_WORDS] __attribute__((aligned(64)));
typedef int8_t packed_quads[KERNEL_PANEL][PACKED_I8_K];

// One tile of rows against PANEL_PASS columns of one panel.
struct quad_pass {
    const uint32_t *x[PANEL_TILE]; // prepared
    const packed_quads *panel;
    size_t depth, column; // quads; the pass's first column
    int32_t *sums;        // of the first row, the panel's first column
    size_t sums_stride;
    const char *few_ahead;     // few: what the first step fetches,
    size_t few_more;           // few: and into L2, so many bytes further; 0: not
    bool few_as_codes;         // few: more than QUAD_READ_ROWS fetch as codes are fetched
    size_t step;               // few: of all tiles' steps, the first
    unsigned shift;            // few: 0: one tile, 1: two share the fetches
    struct group_ahead *ahead; // many
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

// `rows` is a constant in each copy of the passes, so that the sums are registers.
PANEL_INLINE void quad_pass_few(const struct quad_pass *p, size_t rows) {
    vec sums[PANEL_TILE][PANEL_VECS];
    quad_load(sums, rows, p);
    for (size_t q = 0; q < p->depth; q++) {
        uintptr_t ahead = (uintptr_t)p->few_ahead + ((p->step + q) >> p->shift) * QUAD_BYTES + p->column * PACKED_I8_K;
        PANEL_UNROLL for (size_t line = 0; line < PANEL_PASS * PACKED_I8_K; line += 64) {
            if (rows > QUAD_READ_ROWS && p->few_as_codes) {
                fetch_line((const void *)(ahead + line), FETCH_CODES_ZEN4);
            } else {
                fetch_streamed((const void *)(ahead + line), (struct fetch_stream){0, p->few_more});
            }
        }
        quad_step(sums, rows, p, q);
    }
    quad_store(sums, rows, p);
}

#define QUAD_TILE_FUNCTION(name, run)                                                                                              \
    static void name(struct quad_pass *pass, size_t rows) {                                                                        \
        for (pass->column = 0; pass->column < KERNEL_PANEL; pass->column += PANEL_PASS) {                                          \
            PANEL_BY_ROWS(rows, run, pass);                                                                                        \
        }                                                                                                                          \
    }

QUAD_TILE_FUNCTION(quad_tile_few, quad_pass_few)

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

// Rows [row, row + rows) of the call, at most QUAD_ROWS, whole K.
static void panel_rows_i8(const struct panel_args *args, size_t row, size_t rows) {
    const struct packed_i8 *panel = args->panel;
    size_t quads = (args->k + PACKED_I8_K - 1) / PACKED_I8_K;
    panel_row block[QUAD_ROWS];
    quad_row x[PANEL_TILE];
    for (size_t r = 0; r < rows; r++) {
        if (STARTS_AT_OFFSETS) {
            memcpy(block[r], panel->offsets, sizeof block[r]);
        } else {
            memset(block[r], 0, sizeof block[r]);
        }
    }
    for (size_t q = 0; q < quads; q += QUAD_CHUNK) {
        struct quad_pass pass = {
            .panel = panel->quads + q, .depth = quads - q < QUAD_CHUNK ? quads - q : QUAD_CHUNK, .sums_stride = KERNEL_PANEL};
        pass.shift = rows > PANEL_TILE;
        pass.few_as_codes = !pass.shift && fetch_as_zen4();
        struct fetch_stream stream = pass.shift ? (struct fetch_stream){pass.depth * QUAD_BYTES, 0} : fetch_stream_ahead();
        pass.few_ahead = (const char *)((uintptr_t)pass.panel + stream.near);
        pass.few_more = stream.more;
        for (size_t at = 0, tile; at < rows; at += tile, pass.step += pass.depth) {
            tile = panel_tile_rows(rows, at);
            for (size_t r = 0; r < tile; r++) {
                prepare_quads(args->x[row + at + r], args->k, q, pass.depth, x[r]);
                pass.x[r] = x[r];
            }
            pass.sums = block[at];
            quad_tile_few(&pass, tile);
        }
    }
    for (size_t r = 0; r < rows; r++) {
        memcpy(args->out + (row + r) * args->out_stride, block[r], args->columns * sizeof *args->out);
    }
}

void PANEL_TARGET(panel_i8)(const struct panel_args *args) {
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = args->rows - row < QUAD_ROWS ? args->rows - row : QUAD_ROWS;
        panel_rows_i8(args, row, rows);
    }
}
