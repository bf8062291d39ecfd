// The microkernels for small m: rows of f32 or bf16 by one panel, written once over a vector of LANES floats. The including file
// defines, for its instruction set:
//   vec, LANES               the vector type and its number of floats
//   PANEL_VECS               vectors of columns whose accumulators fit into registers with PANEL_TILE rows
//   vec_load, vec_store, vec_broadcast, vec_fma(a, b, c) = a * b + c
//   vec_fma_flushed          vec_fma with the result of fma_flushed.h, where the machine flushes otherwise (float_mode.h)
//   vec_prefetch             prefetches a line into all levels of cache
//   vec_even, vec_odd        of LANES packed pairs (a 32-bit word each): the element of even or odd k, widened
// and names the results by PANEL_TARGET(name). K is cut into chunks; between two chunks accumulators are stored and loaded, which
// is exact. A chunk of a panel stays in L1 while all passes over its columns use it, and bf16 rows are widened once per chunk.
#include <string.h>

#include "expertd/base/dtype.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum {
    PANEL_CHUNK = 128,               // k of a chunk for two tiles of rows: 32 KiB of an f32 panel, 16 KiB of a bf16 one; even
    PANEL_LONG_CHUNK = 512,          // k of a chunk for one tile, whose reads from memory are then interrupted less often
    PANEL_ROWS = 2 * PANEL_TILE,     // most rows for which a panel is read from memory once
    PANEL_PASS = PANEL_VECS * LANES, // columns of a pass
};

typedef float panel_row[EXPERTD_KERNEL_PANEL] __attribute__((aligned(64)));
typedef float panel_wide[PANEL_LONG_CHUNK] __attribute__((aligned(64)));

PANEL_INLINE size_t panel_chunk_of(size_t rows, size_t left) {
    size_t most = rows > PANEL_TILE || PANEL_PASS < (int)EXPERTD_KERNEL_PANEL ? PANEL_CHUNK : PANEL_LONG_CHUNK;
    return left < most ? left : most;
}

PANEL_INLINE void panel_load(vec sums[][PANEL_VECS], size_t rows, panel_row *from, size_t column) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = vec_load(&from[r][column + v * LANES]);
        }
    }
}

PANEL_INLINE void panel_store(vec sums[][PANEL_VECS], size_t rows, panel_row *to, size_t column) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            vec_store(&to[r][column + v * LANES], sums[r][v]);
        }
    }
}

// sums[r][v] = fma(x[r][i], w[v], sums[r][v]).
PANEL_INLINE void panel_step(vec sums[][PANEL_VECS], size_t rows, const float *const *x, size_t i, const vec *w) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        vec value = vec_broadcast(&x[r][i]);
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = vec_fma(value, w[v], sums[r][v]);
        }
    }
}

// Prefetching while a chunk is multiplied. One tile of rows prefetches a fixed distance ahead. Two tiles prefetch one half of the
// next chunk each, so that memory is not idle while the second tile multiplies from L1 (8 rows of bf16: .57 -> .73 of a plain
// read).
struct panel_prefetch {
    uintptr_t at;      // address prefetched by the first step
    size_t first_step; // index of this tile's first step among the steps of all tiles
    unsigned shift;    // log2 of the number of tiles: 0 or 1
    size_t more;       // as in struct prefetch_stream
};

// Prefetches PANEL_PASS columns of one step; a step multiplies `step_bytes` of a panel.
PANEL_INLINE void panel_prefetch_step(struct panel_prefetch prefetch, size_t step, size_t step_bytes, size_t column) {
    uintptr_t at =
        prefetch.at + ((prefetch.first_step + step) >> prefetch.shift) * step_bytes + column * (step_bytes / EXPERTD_KERNEL_PANEL);
    PANEL_UNROLL for (size_t line = 0; line < PANEL_PASS * (step_bytes / EXPERTD_KERNEL_PANEL); line += 64) {
        prefetch_streamed((const void *)(at + line), (struct prefetch_stream){0, prefetch.more});
    }
}

// `depth` k of a chunk by PANEL_PASS columns from `column` on. `rows` is a constant in each copy, so that the sums are registers.
PANEL_INLINE void panel_pass_f32(panel_row *block, const float *const *x, const float *panel, size_t depth, size_t column,
                                 struct panel_prefetch prefetch, size_t rows) {
    vec sums[PANEL_TILE][PANEL_VECS];
    panel_load(sums, rows, block, column);
    for (size_t i = 0; i < depth; i++) {
        vec w[PANEL_VECS];
        panel_prefetch_step(prefetch, i, EXPERTD_KERNEL_PANEL * sizeof *panel, column);
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            w[v] = vec_load(panel + i * EXPERTD_KERNEL_PANEL + column + v * LANES);
        }
        panel_step(sums, rows, x, i, w);
    }
    panel_store(sums, rows, block, column);
}

// The same for pairs of k, the odd one first; x is padded with +0 to a complete pair.
PANEL_INLINE void panel_pass_bf16(panel_row *block, const float *const *x, const uint16_t *panel, size_t depth, size_t column,
                                  struct panel_prefetch prefetch, size_t rows) {
    vec sums[PANEL_TILE][PANEL_VECS];
    panel_load(sums, rows, block, column);
    for (size_t i = 0; i < depth; i += 2) {
        const uint16_t *pairs = panel + i * EXPERTD_KERNEL_PANEL + 2 * column;
        vec w[PANEL_VECS];
        panel_prefetch_step(prefetch, i / 2, 2 * EXPERTD_KERNEL_PANEL * sizeof *panel, column);
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            w[v] = vec_odd(pairs + 2 * v * LANES);
        }
        panel_step(sums, rows, x, i + 1, w);
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            w[v] = vec_even(pairs + 2 * v * LANES);
        }
        panel_step(sums, rows, x, i, w);
    }
    panel_store(sums, rows, block, column);
}

// One tile of rows by a chunk of a panel, with the copy for its number of rows. Not inlined: no fma may move across a change of the
// floating-point mode in the caller.
#define PANEL_CHUNK_FUNCTION(name, pass, element)                                                                                  \
    static __attribute__((noinline)) void name(panel_row *block, size_t rows, const float *const *x, const element *panel,         \
                                               size_t depth, struct panel_prefetch prefetch) {                                     \
        for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += PANEL_PASS) {                                             \
            PANEL_BY_ROWS(rows, pass, block, x, panel, depth, column, prefetch);                                                   \
        }                                                                                                                          \
    }

PANEL_CHUNK_FUNCTION(panel_chunk_f32, panel_pass_f32, float)
PANEL_CHUNK_FUNCTION(panel_chunk_bf16, panel_pass_bf16, uint16_t)

static void panel_write(panel_row *block, size_t rows, float *out, size_t out_stride, size_t columns) {
    for (size_t r = 0; r < rows; r++) {
        memcpy(out + r * out_stride, block[r], columns * sizeof *out);
    }
}

static void panel_widen(const uint16_t *x, size_t depth, float *wide) {
    for (size_t i = 0; i < depth; i++) {
        wide[i] = expertd_f32_from_bf16(x[i]);
    }
    if (depth % 2) {
        wide[depth] = 0.0f;
    }
}

// All tiles of rows by one chunk, which is in L1 for the second tile. k_of_step: 1, or 2 for pairs of k.
#define PANEL_TILES_FUNCTION(name, chunk_function, element, k_of_step)                                                             \
    static void name(panel_row *block, size_t rows, const float *const *x, const element *chunk, size_t depth) {                   \
        bool two = rows > PANEL_TILE;                                                                                              \
        struct prefetch_stream stream =                                                                                            \
            two ? (struct prefetch_stream){depth * EXPERTD_KERNEL_PANEL * sizeof *chunk, 0} : prefetch_stream_ahead();             \
        struct panel_prefetch prefetch = {(uintptr_t)chunk + stream.near, 0, two, stream.more};                                    \
        for (size_t row = 0, tile; row < rows; row += tile) {                                                                      \
            tile = panel_tile_rows(rows, row);                                                                                     \
            chunk_function(block + row, tile, x + row, chunk, depth, prefetch);                                                    \
            prefetch.first_step += depth / (k_of_step);                                                                            \
        }                                                                                                                          \
    }

PANEL_TILES_FUNCTION(panel_tiles_f32, panel_chunk_f32, float, 1)
PANEL_TILES_FUNCTION(panel_tiles_bf16, panel_chunk_bf16, uint16_t, 2)

// One row by a chunk, with every fma flushed as the contract says, where the machine's flush differs.
static __attribute__((noinline)) void panel_exact_bf16(float *sums, const float *x, const uint16_t *chunk, size_t depth) {
    for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += PANEL_PASS) {
        vec sum[PANEL_VECS];
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sum[v] = vec_load(sums + column + v * LANES);
        }
        for (size_t i = 0; i < depth; i += 2) {
            const uint16_t *pairs = chunk + i * EXPERTD_KERNEL_PANEL + 2 * column;
            vec even = vec_broadcast(&x[i]), odd = vec_broadcast(&x[i + 1]);
            PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
                sum[v] = vec_fma_flushed(odd, vec_odd(pairs + 2 * v * LANES), sum[v]);
                sum[v] = vec_fma_flushed(even, vec_even(pairs + 2 * v * LANES), sum[v]);
            }
        }
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            vec_store(sums + column + v * LANES, sum[v]);
        }
    }
}

// panel_tiles_bf16, repeated by panel_exact_bf16 if the machine may have flushed a result wrongly.
static void panel_checked_bf16(panel_row *block, size_t rows, const float *const *x, const uint16_t *chunk, size_t depth) {
    panel_row before[PANEL_ROWS];
    if (FLUSHES_BEFORE_ROUNDING) {
        memcpy(before, block, rows * sizeof *block);
        float_flush_watch();
    }
    panel_tiles_bf16(block, rows, x, chunk, depth);
    if (float_flush_seen()) {
        memcpy(block, before, rows * sizeof *block);
        for (size_t r = 0; r < rows; r++) {
            panel_exact_bf16(block[r], x[r], chunk, depth);
        }
    }
}

// Rows [row, row + rows) of the call, at most PANEL_ROWS, over the whole of K.
static void panel_rows_f32(const struct panel_args *args, size_t row, size_t rows) {
    const float *panel = args->panel;
    panel_row block[PANEL_ROWS];
    memset(block, 0, rows * sizeof *block);
    for (size_t i = 0, depth; i < args->k; i += depth) {
        const float *x[PANEL_ROWS];
        depth = panel_chunk_of(rows, args->k - i);
        for (size_t r = 0; r < rows; r++) {
            x[r] = (const float *)args->x[row + r] + i;
        }
        panel_tiles_f32(block, rows, x, panel + i * EXPERTD_KERNEL_PANEL, depth);
    }
    panel_write(block, rows, args->out + row * args->out_stride, args->out_stride, args->columns);
}

static void panel_rows_bf16(const struct panel_args *args, size_t row, size_t rows) {
    const uint16_t *panel = args->panel;
    panel_row block[PANEL_ROWS];
    panel_wide wide[PANEL_ROWS];
    memset(block, 0, rows * sizeof *block);
    for (size_t i = 0, depth; i < args->k; i += depth) {
        depth = panel_chunk_of(rows, args->k - i);
        const float *x[PANEL_ROWS];
        for (size_t r = 0; r < rows; r++) {
            panel_widen((const uint16_t *)args->x[row + r] + i, depth, wide[r]);
            x[r] = wide[r];
        }
        panel_checked_bf16(block, rows, x, panel + i * EXPERTD_KERNEL_PANEL, depth);
    }
    panel_write(block, rows, args->out + row * args->out_stride, args->out_stride, args->columns);
}

void PANEL_TARGET(panel_f32)(const struct panel_args *args) {
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = args->rows - row < PANEL_ROWS ? args->rows - row : PANEL_ROWS;
        panel_rows_f32(args, row, rows);
    }
}

void PANEL_TARGET(panel_bf16)(const struct panel_args *args) {
    float_mode before = float_mode_set(FLOAT_MODE_FLUSHED);
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = args->rows - row < PANEL_ROWS ? args->rows - row : PANEL_ROWS;
        panel_rows_bf16(args, row, rows);
    }
    float_mode_restore(before);
}
