#include "kernels/plain/line_reader.h"

#include <string.h>

#include "expertd/kernels/weights.h"
#include "kernels/layout/pack.h"
#include "kernels/layout/packed_i8.h"

enum {
    TILE = 64,       // lines and k of a block that is transposed: 16 KiB of f32
    LINES = 16,      // lines of a block that is converted and packed; divides a panel's columns
    RUN = 256,       // k of that block: 16 KiB of f32
    N_MAJOR_K = 16,  // k of such a block where the operand is N-contiguous
    CACHE_LINE = 64, // bytes
};

static const char *element_at(const struct line_reader *reader, const struct line_range *range, size_t line, size_t k) {
    const struct product_operand *o = range->operand;
    size_t at = line * o->line_stride + k * o->k_stride;
    return (const char *)o->data + (reader->from == EXPERTD_DTYPE_U8 ? at / 2 : at * expertd_dtype_size(reader->from));
}

// `count` neighbouring elements.
static void read_run(const struct line_reader *reader, const char *src, size_t count, void *dst) {
    if (reader->from == reader->to) {
        memcpy(dst, src, count * expertd_dtype_size(reader->to));
        return;
    }
    if (reader->to == EXPERTD_DTYPE_F32) {
        reader->backend->widen(reader->from, src, count, dst);
    } else {
        reader->backend->decode(&(struct decode_args){reader->from, src, count, dst});
    }
}

// Transposes a block of an N-contiguous operand, at most TILE by TILE, in two steps: interleaves neighbouring k into words, then
// transposes the words.
static void transpose_block(const struct line_reader *reader, const struct line_range *block, char *dst, size_t dst_bytes) {
    size_t size = expertd_dtype_size(reader->to), words = (block->depth * size + 3) / 4;
    _Alignas(64) uint32_t rows[TILE * TILE], interleaved[TILE * EXPERTD_KERNEL_PANEL], transposed[TILE * EXPERTD_KERNEL_PANEL];
    for (size_t i = 0; i < block->depth; i++) {
        read_run(reader, element_at(reader, block, block->first, block->k + i), block->count, (char *)rows + i * TILE * size);
    }
    reader->backend->pack_n_major(
        &(struct pack_args){rows, TILE * size, size, block->count, block->depth, interleaved, sizeof interleaved});
    reader->backend->pack_k_major(&(struct pack_args){interleaved, EXPERTD_KERNEL_PANEL * sizeof *interleaved, sizeof *interleaved,
                                                      words, block->count, transposed, sizeof transposed});
    for (size_t line = 0; line < block->count; line++) {
        memcpy(dst + line * dst_bytes, transposed + line * EXPERTD_KERNEL_PANEL, block->depth * size);
    }
}

static void read_n_major(const struct line_reader *reader, const struct line_range *range, char *dst, size_t dst_bytes) {
    size_t size = expertd_dtype_size(reader->to);
    for (size_t line = 0; line < range->count; line += TILE) {
        for (size_t k = 0; k < range->depth; k += TILE) {
            struct line_range block = *range;
            block.first += line, block.k += k;
            block.count = range->count - line < TILE ? range->count - line : TILE;
            block.depth = range->depth - k < TILE ? range->depth - k : TILE;
            transpose_block(reader, &block, dst + line * dst_bytes + k * size, dst_bytes);
        }
    }
}

static void read_k_major(const struct line_reader *reader, const struct line_range *range, char *dst, size_t dst_bytes) {
    size_t size = expertd_dtype_size(reader->to);
    for (size_t i = 0; i < range->count; i++) {
        size_t line = range->rows ? range->rows[range->first + i] : range->first + i;
        if (range->operand->k_stride == 1) {
            read_run(reader, element_at(reader, range, line, range->k), range->depth, dst + i * dst_bytes);
            continue;
        }
        for (size_t k = 0; k < range->depth; k++) {
            read_run(reader, element_at(reader, range, line, range->k + k), 1, dst + i * dst_bytes + k * size);
        }
    }
}

static bool is_n_major(const struct line_range *range) {
    return range->operand->line_stride == 1 && range->operand->k_stride != 1 && !range->rows;
}

struct prefetch_range lines_to_prefetch(const struct line_reader *reader, const struct line_range *range) {
    const struct product_operand *o = range->operand;
    bool n_major = is_n_major(range);
    if (range->rows || range->depth == 0 || range->count == 0 || (!n_major && o->k_stride != 1)) {
        return (struct prefetch_range){0};
    }
    const char *from = element_at(reader, range, range->first, range->k);
    size_t length = n_major ? range->count : range->depth, stride = n_major ? o->k_stride : o->line_stride;
    bool codes = reader->from == EXPERTD_DTYPE_U8; // two a byte
    size_t size = expertd_dtype_size(reader->from);
    return (struct prefetch_range){.from = from,
                                   .runs = n_major ? range->depth : range->count,
                                   .bytes = codes ? (length + 1) / 2 : length * size,
                                   .stride = codes ? stride / 2 : stride * size};
}

void lines_read(const struct line_reader *reader, const struct line_range *range, void *dst, size_t dst_stride) {
    (is_n_major(range) ? read_n_major : read_k_major)(reader, range, dst, dst_stride * expertd_dtype_size(reader->to));
}

// Prefetches the next run of each line, since the hardware prefetcher does not follow so many streams. Into L2, because lines at a
// distance of a power of two share sets of L1.
static void prefetch_runs(const struct line_reader *reader, const struct line_range *runs) {
    size_t bytes = runs->depth * expertd_dtype_size(reader->from);
    for (size_t line = 0; line < runs->count; line++) {
        uintptr_t next = (uintptr_t)element_at(reader, runs, runs->first + line, runs->k + runs->depth);
        for (size_t at = 0; at < bytes; at += CACHE_LINE) {
            __builtin_prefetch((const void *)(next + at), 0, 2);
        }
    }
}

// Packs K-contiguous or strided lines that need conversion: LINES lines at a time, RUN k of each.
static void pack_converted(const struct line_reader *reader, const struct line_range *range, char *panels, size_t panel_bytes) {
    size_t size = expertd_dtype_size(reader->to);
    _Alignas(64) uint32_t block[LINES * RUN];
    for (size_t line = 0; line < range->count; line += LINES) {
        char *columns = panels + line / EXPERTD_KERNEL_PANEL * panel_bytes + line % EXPERTD_KERNEL_PANEL * sizeof(uint32_t);
        for (size_t k = 0; k < range->depth; k += RUN) {
            struct line_range part = *range;
            part.first += line, part.k += k;
            part.count = range->count - line < LINES ? range->count - line : LINES;
            part.depth = range->depth - k < RUN ? range->depth - k : RUN;
            prefetch_runs(reader, &part);
            read_k_major(reader, &part, (char *)block, RUN * size);
            reader->backend->pack_k_major(&(struct pack_args){block, RUN * size, size, part.count, part.depth,
                                                              columns + k * EXPERTD_KERNEL_PANEL * size, panel_bytes});
        }
    }
}

static void prefetch_row(const struct line_reader *reader, const char *row, size_t count) {
    for (size_t at = 0; at < count * expertd_dtype_size(reader->from); at += CACHE_LINE) {
        __builtin_prefetch((const void *)((uintptr_t)row + at));
    }
}

// Packs N-contiguous lines that need conversion: N_MAJOR_K k at a time.
static void pack_converted_n_major(const struct line_reader *reader, const struct line_range *range, char *panels,
                                   size_t panel_bytes) {
    size_t size = expertd_dtype_size(reader->to);
    _Alignas(64) float block[N_MAJOR_K * KERNEL_SUMS];
    for (size_t k = 0; k < range->depth; k += N_MAJOR_K) {
        size_t depth = range->depth - k < N_MAJOR_K ? range->depth - k : N_MAJOR_K;
        for (size_t i = 0; i < depth; i++) {
            prefetch_row(reader, element_at(reader, range, range->first, range->k + k + i + N_MAJOR_K), range->count);
            read_run(reader, element_at(reader, range, range->first, range->k + k + i), range->count,
                     (char *)block + i * KERNEL_SUMS * size);
        }
        reader->backend->pack_n_major(&(struct pack_args){block, KERNEL_SUMS * size, size, range->count, depth,
                                                          panels + k * EXPERTD_KERNEL_PANEL * size, panel_bytes});
    }
}

static void pack_words(const struct line_reader *reader, const struct line_range *range, char *panels, size_t panel_bytes) {
    const struct product_operand *o = range->operand;
    bool n_major = is_n_major(range), k_major = o->k_stride == 1;
    if (reader->from != reader->to || (!n_major && !k_major)) {
        (n_major ? pack_converted_n_major : pack_converted)(reader, range, panels, panel_bytes);
        return;
    }
    size_t size = expertd_dtype_size(reader->to);
    struct pack_args args = {.src = element_at(reader, range, range->first, range->k),
                             .stride = (n_major ? o->k_stride : o->line_stride) * size,
                             .element = size,
                             .lines = range->count,
                             .k = range->depth,
                             .panels = panels,
                             .panel_bytes = panel_bytes};
    (n_major ? reader->backend->pack_n_major : reader->backend->pack_k_major)(&args);
}

void lines_pack(const struct line_reader *reader, const struct line_range *range, void *panels, size_t panel_bytes) {
    size_t count = (range->count + EXPERTD_KERNEL_PANEL - 1) / EXPERTD_KERNEL_PANEL;
    if (range->count % EXPERTD_KERNEL_PANEL) {
        memset((char *)panels + (count - 1) * panel_bytes, 0,
               expertd_packed_group_bytes(reader->to, range->depth, EXPERTD_KERNEL_PANEL));
    }
    if (reader->to != EXPERTD_DTYPE_I8) {
        pack_words(reader, range, panels, panel_bytes);
        return;
    }
    pack_words(reader, range, (char *)panels + sizeof(struct packed_i8), panel_bytes);
    for (size_t p = 0; p < count; p++) {
        struct packed_i8 *panel = (struct packed_i8 *)((char *)panels + p * panel_bytes);
        reader->backend->quad_offsets(
            &(struct offsets_args){panel->quads, (range->depth + PACKED_I8_K - 1) / PACKED_I8_K, panel->offsets});
    }
}
