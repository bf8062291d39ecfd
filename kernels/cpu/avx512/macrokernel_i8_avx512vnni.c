// int8 by VPDPBUSD, many rows: a quad of k is a 32-bit word, and so these are macrokernel_words_body.h's products of words. Rows
// are prepared for all panels at once: x + 128, by as much of K as there is room for, whole where the caller's scratch is large
// enough, and then kept while the thread is at the same rows.
#if defined(__x86_64__)
#include <immintrin.h>

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/backends.h"
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
    WORDS_APART = 16, // more than K from a prepared row to the next, so that they are not a power of two apart
    WORDS_WHOLE = 16, // of a block of K that is not all of it, a multiple
};
_Static_assert(KERNEL_SCRATCH_BYTES / sizeof(uint32_t) / KERNEL_CALL_ROWS >= WORDS_APART + WORDS_WHOLE, "room for any call");

static const uint32_t FLIP = 0x80808080; // adds 128 to each byte

// A block of K of all rows.
struct prepared {
    uint32_t *words; // [rows][stride]
    size_t stride;
    size_t first, depth; // quads
};

// The last quad of K may be short: its panel is padded with 0.
static void prepare_row(const struct prepared *to, const int8_t *x, size_t k, uint32_t *words) {
    const size_t left = k - to->first * PACKED_I8_K, whole = left / PACKED_I8_K < to->depth ? to->depth - 1 : to->depth;
    x += to->first * PACKED_I8_K;
    for (size_t q = 0; q < whole; q++) {
        memcpy(&words[q], x + q * PACKED_I8_K, sizeof *words);
        words[q] ^= FLIP;
    }
    if (whole < to->depth) {
        words[whole] = 0;
        memcpy(&words[whole], x + whole * PACKED_I8_K, left - whole * PACKED_I8_K);
        words[whole] ^= FLIP;
    }
}

static void prepare_rows(const struct macrokernel_args *args, const struct prepared *to) {
    for (size_t r = 0; r < args->rows; r++) {
        prepare_row(to, args->x[r], args->k, to->words + r * to->stride);
    }
}

// Quads of a block: all of K or as many as there is room for, in blocks as even as can be. Room is a multiple of WORDS_WHOLE, so
// that a block rounded up to one is still within it.
static size_t block_depth(const struct macrokernel_args *args, size_t quads) {
    size_t words = (KERNEL_SCRATCH_BYTES + args->scratch_more) / sizeof(uint32_t) / args->rows;
    size_t room = (words - WORDS_APART) / WORDS_WHOLE * WORDS_WHOLE, blocks = (quads + room - 1) / room;
    if (blocks <= 1) {
        return quads;
    }
    size_t even = (quads + blocks - 1) / blocks;
    return (even + WORDS_WHOLE - 1) / WORDS_WHOLE * WORDS_WHOLE;
}

// Sums begin at the panels' offsets, or these are added to those of the k before.
static void begin_sums(const struct macrokernel_args *args) {
    for (size_t r = 0; r < args->rows; r++) {
        for (size_t p = 0; p < args->count; p++) {
            const int32_t *offsets = ((const struct packed_i8 *)args->panels[p])->offsets;
            int32_t *sums = (int32_t *)args->sums + r * KERNEL_SUMS + p * EXPERTD_KERNEL_PANEL;
            for (size_t c = 0; c < EXPERTD_KERNEL_PANEL; c++) {
                sums[c] = (int32_t)((args->goes_on ? (uint32_t)sums[c] : 0) + (uint32_t)offsets[c]);
            }
        }
    }
}

static void list_quads(const void *const *panels, size_t count, size_t first, const void **quads) {
    for (size_t p = 0; p < count; p++) {
        quads[p] = ((const struct packed_i8 *)panels[p])->quads[first];
    }
}

static void multiply_block(const struct macrokernel_args *args, const struct prepared *block, size_t quads) {
    const void *x[KERNEL_CALL_ROWS], *panels[KERNEL_PANELS_MAX], *next[KERNEL_PANELS_MAX];
    const bool ends = block->first + block->depth == quads;
    for (size_t r = 0; r < args->rows; r++) {
        x[r] = block->words + r * block->stride;
    }
    list_quads(args->panels, args->count, block->first, panels);
    if (!ends) {
        list_quads(args->panels, args->count, block->first + block->depth, next);
    } else if (args->next) {
        list_quads(args->next, args->count, 0, next);
    }
    words_macrokernel(&(struct macrokernel_args){.x = x,
                                                 .rows = args->rows,
                                                 .panels = panels,
                                                 .count = args->count,
                                                 .sums = args->sums,
                                                 .next = ends && !args->next ? NULL : next,
                                                 .goes_on = true,
                                                 .ahead = ends ? args->ahead : (struct memory_ahead){0}},
                      block->depth);
}

void avx512vnni_macrokernel_i8(const struct macrokernel_args *args) {
    const size_t quads = (args->k + PACKED_I8_K - 1) / PACKED_I8_K, most = block_depth(args, quads);
    struct prepared block = {.words = args->scratch, .stride = most + WORDS_APART};
    begin_sums(args);
    for (; block.first < quads; block.first += block.depth) {
        block.depth = quads - block.first < most ? quads - block.first : most;
        if (!args->rows_cached || block.depth < quads) {
            prepare_rows(args, &block);
        }
        multiply_block(args, &block, quads);
    }
}
#endif
