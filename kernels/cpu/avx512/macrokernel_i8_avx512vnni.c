// Large m of int8 by VPDPBUSD. A quad of k is one 32-bit word, so macrokernel_words_body.h does the products. x + 128 is prepared
// for all rows of a call: all of K where the scratch holds it, and then cached for the following calls with the same rows; else a
// block of K at a time.
#if defined(__x86_64__)
#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/backend/backends.h"
#include "kernels/layout/packed_i8.h"

typedef __m512i vec;
enum { LANES = 16, PANEL_VECS = EXPERTD_KERNEL_PANEL / LANES };

static inline vec vec_load(const float *p) {
    return _mm512_loadu_si512(p);
}

static inline void vec_store(float *p, vec v) {
    _mm512_storeu_si512(p, v);
}

PANEL_INLINE vec vec_broadcast(const void *p) {
    int word;
    memcpy(&word, p, sizeof word);
    return _mm512_set1_epi32(word);
}

PANEL_INLINE vec vec_fma(vec a, vec b, vec c) {
    return _mm512_dpbusd_epi32(c, a, b);
}

PANEL_INLINE void vec_prefetch(const void *p) {
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

#include "kernels/cpu/common/macrokernel_words_body.h"

enum {
    WORDS_ROW_PADDING = 16, // more words between two prepared rows than K has, so that the stride is no power of two
    WORDS_BLOCK_UNIT = 16,  // a block that is not all of K is a multiple of so many words
};
_Static_assert(KERNEL_SCRATCH_BYTES / sizeof(uint32_t) / KERNEL_CALL_ROWS >= WORDS_ROW_PADDING + WORDS_BLOCK_UNIT,
               "scratch holds a block of any call");

static const uint32_t ADD_128 = 0x80808080; // XOR adds 128 to each byte

// A block of K of all rows, each element plus 128.
struct prepared_rows {
    uint32_t *words; // [rows][stride]
    size_t stride;
    size_t first, depth; // in quads
};

// The last quad of K may be short; the panel is padded with 0 there.
static void prepare_row(const struct prepared_rows *to, const int8_t *x, size_t k, uint32_t *words) {
    const size_t left = k - to->first * PACKED_I8_K, full = left / PACKED_I8_K < to->depth ? to->depth - 1 : to->depth;
    x += to->first * PACKED_I8_K;
    for (size_t q = 0; q < full; q++) {
        memcpy(&words[q], x + q * PACKED_I8_K, sizeof *words);
        words[q] ^= ADD_128;
    }
    if (full < to->depth) {
        words[full] = 0;
        memcpy(&words[full], x + full * PACKED_I8_K, left - full * PACKED_I8_K);
        words[full] ^= ADD_128;
    }
}

static void prepare_rows(const struct macrokernel_args *args, const struct prepared_rows *to) {
    for (size_t r = 0; r < args->rows; r++) {
        prepare_row(to, args->x[r], args->k, to->words + r * to->stride);
    }
}

// Quads of a block: all of K, or as many as the scratch holds, in blocks as even as possible. The capacity is a multiple of
// WORDS_BLOCK_UNIT, so that rounding a block up to that unit cannot exceed it.
static size_t block_depth(const struct macrokernel_args *args, size_t quads) {
    size_t words = (KERNEL_SCRATCH_BYTES + args->scratch_more) / sizeof(uint32_t) / args->rows;
    size_t capacity = (words - WORDS_ROW_PADDING) / WORDS_BLOCK_UNIT * WORDS_BLOCK_UNIT, blocks = (quads + capacity - 1) / capacity;
    if (blocks <= 1) {
        return quads;
    }
    size_t even = (quads + blocks - 1) / blocks;
    return (even + WORDS_BLOCK_UNIT - 1) / WORDS_BLOCK_UNIT * WORDS_BLOCK_UNIT;
}

// Sums start from the panels' offsets; where the sums continue from earlier k, the offsets are added to them.
static void start_sums(const struct macrokernel_args *args) {
    for (size_t r = 0; r < args->rows; r++) {
        for (size_t p = 0; p < args->count; p++) {
            const int32_t *offsets = ((const struct packed_i8 *)args->panels[p])->offsets;
            int32_t *sums = (int32_t *)args->sums + r * KERNEL_SUMS + p * EXPERTD_KERNEL_PANEL;
            for (size_t c = 0; c < EXPERTD_KERNEL_PANEL; c++) {
                sums[c] = (int32_t)((args->accumulate ? (uint32_t)sums[c] : 0) + (uint32_t)offsets[c]);
            }
        }
    }
}

static void list_panel_quads(const void *const *panels, size_t count, size_t first, const void **quads) {
    for (size_t p = 0; p < count; p++) {
        quads[p] = ((const struct packed_i8 *)panels[p])->quads[first];
    }
}

static void multiply_block(const struct macrokernel_args *args, const struct prepared_rows *block, size_t quads) {
    const void *x[KERNEL_CALL_ROWS], *panels[KERNEL_PANELS_MAX], *next[KERNEL_PANELS_MAX];
    const bool last_block = block->first + block->depth == quads;
    for (size_t r = 0; r < args->rows; r++) {
        x[r] = block->words + r * block->stride;
    }
    list_panel_quads(args->panels, args->count, block->first, panels);
    if (!last_block) {
        list_panel_quads(args->panels, args->count, block->first + block->depth, next);
    } else if (args->next) {
        list_panel_quads(args->next, args->count, 0, next);
    }
    words_macrokernel(&(struct macrokernel_args){.x = x,
                                                 .rows = args->rows,
                                                 .panels = panels,
                                                 .count = args->count,
                                                 .sums = args->sums,
                                                 .next = last_block && !args->next ? NULL : next,
                                                 .accumulate = true,
                                                 .ahead = last_block ? args->ahead : (struct prefetch_range){0}},
                      block->depth);
}

void avx512vnni_macrokernel_i8(const struct macrokernel_args *args) {
    const size_t quads = (args->k + PACKED_I8_K - 1) / PACKED_I8_K, limit = block_depth(args, quads);
    struct prepared_rows block = {.words = args->scratch, .stride = limit + WORDS_ROW_PADDING};
    start_sums(args);
    for (; block.first < quads; block.first += block.depth) {
        block.depth = quads - block.first < limit ? quads - block.first : limit;
        if (!args->rows_cached || block.depth < quads) {
            prepare_rows(args, &block);
        }
        multiply_block(args, &block, quads);
    }
}
#endif
