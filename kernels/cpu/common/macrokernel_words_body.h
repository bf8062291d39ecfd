// The macrokernel over 32-bit words of rows and weights: a word is an f32 element, a pair of bf16 where an instruction multiplies
// pairs, or a quad of int8. The including file defines vec, LANES, PANEL_VECS, vec_load, vec_store, vec_prefetch, and
//   vec_broadcast(p)         the word at p, of any alignment, in every lane
//   vec_fma(a, b, c)         a * b + c, of words
// and calls words_macrokernel.
//
// One panel is multiplied over the whole of K before the next panel, so that memory is read as one stream. K is cut into blocks
// that stay in cache while all tiles of rows pass over them; between two blocks the sums are stored and loaded, which is exact.
#include <string.h>

#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/macrokernel_prefetch.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum {
    WORDS_PREFETCH = 2,             // words of the inner loop between two prefetches
    WORDS_PASS = PANEL_VECS * LANES // columns of a pass
};

#ifndef WORDS_TUNED // defined by an including file that sets these constants itself
enum {
    WORDS_BLOCK = 512, // words of a block: 128 KiB of a panel, which stay in L2 with the next block and the rows
    // Up to WORDS_SMALL_M_ROWS rows memory is as slow as the multiplication, and prefetches from memory wait in the buffers that
    // L1 misses need. So the block and the next one must stay in L1, 16 KiB each. More tiles hide the misses and gain nothing from
    // shorter blocks.
    WORDS_SMALL_M_BLOCK = 64,
    WORDS_SMALL_M_ROWS = 16,
    WORDS_INTO_L2 = 1, // 1: blocks go into L2 first where prefetch_blocks_into_l2 says so; on Zen 4 no block is short then
    WORDS_NEAR = 4096, // bytes ahead that they are prefetched from L2 into L1
    WORDS_WAITING_ROWS =
        24, // Intel: most rows for which that is done; with more rows it costs 6 %, since L1's own prefetcher does it
    WORDS_RUN = WORDS_PREFETCH, // words of the inner loop between two branches
    WORDS_ONE_LINE = 0,         // 1: each prefetch is one line without a branch, instead of all lines that are due
};
#endif

// One tile of rows by WORDS_PASS columns of a panel, over a block of K.
struct words_pass {
    const char *x[PANEL_TILE]; // each row's first word of the block
    const float *panel;        // the block's first word, first column of the pass
    size_t words;
    float *sums; // of the first row and column
    bool begins; // this is the first block of K: sums start at +0
    struct macrokernel_prefetch prefetch;
};

PANEL_INLINE void words_load(vec sums[][PANEL_VECS], size_t rows, const struct words_pass *pass) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = vec_load(pass->sums + r * KERNEL_SUMS + v * LANES);
        }
    }
}

PANEL_INLINE void words_clear(vec sums[][PANEL_VECS], size_t rows) {
    static const float ZERO;
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = vec_broadcast(&ZERO);
        }
    }
}

PANEL_INLINE void words_store(vec sums[][PANEL_VECS], size_t rows, const struct words_pass *pass) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            vec_store(pass->sums + r * KERNEL_SUMS + v * LANES, sums[r][v]);
        }
    }
}

// Each word is broadcast just before its use: six broadcasts at once would spill registers.
PANEL_INLINE void words_step(vec sums[][PANEL_VECS], size_t rows, const char *const *x, size_t word, const float *panel) {
    vec w[PANEL_VECS];
    PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
        w[v] = vec_load(panel + v * LANES);
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        vec value = vec_broadcast(x[r] + word * sizeof(float));
        PANEL_UNROLL for (size_t v = 0; v < PANEL_VECS; v++) {
            sums[r][v] = vec_fma(value, w[v], sums[r][v]);
        }
    }
}

PANEL_INLINE void words_prefetch(struct macrokernel_prefetch *prefetch) {
    if (WORDS_ONE_LINE) {
        vec_prefetch((const void *)prefetch->at);
        prefetch->at += prefetch->step;
        return;
    }
    macro_prefetch(prefetch);
}

// Prefetches the pass's columns of a word from L2 into L1.
PANEL_INLINE void words_prefetch_near(const float *panel) {
    PANEL_UNROLL for (size_t column = 0; column < WORDS_PASS; column += 64 / sizeof *panel) {
        prefetch_into((const void *)((uintptr_t)(panel + column) + WORDS_NEAR), false);
    }
}

// The microkernel. `rows` is a constant in each copy, so that the sums are registers.
PANEL_INLINE void words_rows(struct words_pass *pass, size_t rows) {
    vec sums[PANEL_TILE][PANEL_VECS];
    struct macrokernel_prefetch prefetch = pass->prefetch;
    const float *panel = pass->panel;
    size_t words = pass->words, word = 0;
    if (pass->begins) {
        words_clear(sums, rows);
    } else {
        words_load(sums, rows, pass);
    }
    for (; word + WORDS_RUN <= words; word += WORDS_RUN) {
        PANEL_UNROLL for (size_t i = 0; i < WORDS_RUN; i++, panel += EXPERTD_KERNEL_PANEL) {
            if (i % WORDS_PREFETCH == 0) {
                words_prefetch(&prefetch);
            }
            if (prefetch.far && prefetch.again) {
                words_prefetch_near(panel);
            }
            words_step(sums, rows, pass->x, word + i, panel);
        }
    }
    for (; word < words; word++, panel += EXPERTD_KERNEL_PANEL) {
        words_step(sums, rows, pass->x, word, panel);
    }
    words_store(sums, rows, pass);
    pass->prefetch = prefetch;
}

static void words_tile(struct words_pass *pass, size_t rows) {
    PANEL_BY_ROWS(rows, words_rows, pass);
}

// One tile by all columns of a panel.
static void words_columns(struct words_pass *pass, size_t rows) {
    const float *panel = pass->panel;
    float *sums = pass->sums;
    for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += WORDS_PASS) {
        pass->panel = panel + column;
        pass->sums = sums + column;
        words_tile(pass, rows);
    }
    pass->panel = panel;
}

// A block of a panel's words.
struct words_block {
    size_t panel, begin, words;
};

// The first word of the block after this one; NULL: unknown.
static const float *words_next(const struct macrokernel_args *args, const struct words_block *block, size_t words) {
    if (block->begin + block->words < words) {
        return (const float *)args->panels[block->panel] + (block->begin + block->words) * EXPERTD_KERNEL_PANEL;
    }
    if (block->panel + 1 < args->count) {
        return args->panels[block->panel + 1];
    }
    return args->next ? args->next[0] : NULL;
}

// macrokernel_prefetch's `again`, for this CPU.
static size_t words_again(size_t rows) {
    if (!WORDS_INTO_L2) {
        return 0;
    }
    if (prefetch_blocks_into_l2()) {
        return prefetch_as_zen4() || rows <= WORDS_WAITING_ROWS ? PREFETCH_AGAIN : 0;
    }
    return prefetch_as_zen5() ? PREFETCH_AGAIN_NEAR : 0;
}

// call_prefetch: memory to prefetch instead of the next block, or NULL.
static void words_block(const struct macrokernel_args *args, const struct words_block *block, const float *next,
                        struct macrokernel_prefetch *call_prefetch) {
    size_t tiles = (args->rows + PANEL_TILE - 1) / PANEL_TILE;
    size_t fetches = tiles * (EXPERTD_KERNEL_PANEL / WORDS_PASS) * (block->words / WORDS_PREFETCH);
    struct words_pass pass = {
        .panel = (const float *)args->panels[block->panel] + block->begin * EXPERTD_KERNEL_PANEL,
        .words = block->words,
        .begins = block->begin == 0 && !args->accumulate,
        .prefetch = macrokernel_prefetch_over(next, block->words * EXPERTD_KERNEL_PANEL * sizeof *next, fetches),
    };
    pass.prefetch.far = WORDS_INTO_L2 && prefetch_blocks_into_l2();
    pass.prefetch.again = words_again(args->rows);
    if (call_prefetch) {
        pass.prefetch = *call_prefetch;
    }
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = panel_tile_rows(args->rows, row);
        for (size_t r = 0; r < rows; r++) {
            pass.x[r] = (const char *)args->x[row + r] + block->begin * sizeof(float);
        }
        pass.sums = args->sums + row * KERNEL_SUMS + block->panel * EXPERTD_KERNEL_PANEL;
        words_columns(&pass, rows);
    }
    if (call_prefetch) {
        *call_prefetch = pass.prefetch;
    }
}

// Words of a block: at most `limit`, a multiple of WORDS_RUN, so that blocks are as even as possible.
static size_t words_of_block(size_t words, size_t limit) {
    size_t blocks = (words + limit - 1) / limit;
    size_t runs = blocks ? (words / WORDS_RUN + blocks) / blocks : 0;
    return runs * WORDS_RUN < limit ? runs * WORDS_RUN : limit;
}

static size_t words_block_limit(size_t rows) {
    if (WORDS_INTO_L2 && prefetch_as_intel()) {
        return rows > WORDS_WAITING_ROWS ? WORDS_BLOCK : rows > 2 * PANEL_TILE ? WORDS_SMALL_M_BLOCK : WORDS_BLOCK / 2;
    }
    bool small_m = rows <= WORDS_SMALL_M_ROWS && !(WORDS_INTO_L2 && prefetch_as_zen4());
    return small_m ? WORDS_SMALL_M_BLOCK : WORDS_BLOCK;
}

// args->ahead, to be prefetched in even shares by all blocks of the call instead of panels; .step is 0 if there is none.
static struct macrokernel_prefetch words_call_prefetch(const struct macrokernel_args *args, size_t words) {
    size_t tiles = (args->rows + PANEL_TILE - 1) / PANEL_TILE;
    size_t fetches = args->count * tiles * (EXPERTD_KERNEL_PANEL / WORDS_PASS) * (words / WORDS_PREFETCH);
    if (WORDS_ONE_LINE || args->ahead.runs == 0) {
        return (struct macrokernel_prefetch){0};
    }
    return macrokernel_prefetch_of(&args->ahead, fetches, words_again(args->rows) > 0);
}

// Multiplies `words` complete words of K. The caller adds the products of an incomplete last word.
static void words_macrokernel(const struct macrokernel_args *args, size_t words) {
    size_t most = words_of_block(words, words_block_limit(args->rows));
    struct macrokernel_prefetch call_prefetch = words_call_prefetch(args, words);
    for (size_t p = 0; p < args->count; p++) {
        struct words_block block = {.panel = p};
        do {
            block.words = words - block.begin < most ? words - block.begin : most;
            words_block(args, &block, words_next(args, &block, words), call_prefetch.step ? &call_prefetch : NULL);
            block.begin += block.words;
        } while (block.begin < words);
    }
}
