#include "kernels/product_lines.h"

#include <string.h>

#include "kernels/backend.h"
#include "kernels/weights.h"

enum { TILE = 64 }; // lines and k of a transposed or decoded block: 8 KiB of bf16 on each side

static float e2m1(size_t code) {
    static const float MAGNITUDES[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return code & 8 ? -MAGNITUDES[code & 7] : MAGNITUDES[code & 7];
}

void line_codes_fill(enum dtype dtype, uint16_t codes[LINE_CODES]) {
    for (size_t code = 0; code < LINE_CODES; code++) {
        float value;
        if (dtype == DTYPE_U8) {
            value = e2m1(code);
        } else {
            value = dtype == DTYPE_F8_E4M3 ? f32_from_e4m3((uint8_t)code) : f32_from_e5m2((uint8_t)code);
        }
        codes[code] = bf16_from_f32(value);
    }
}

float scale_read(enum dtype dtype, const void *scales, size_t index) {
    if (dtype == DTYPE_F8_E8M0) {
        uint8_t exponent = ((const uint8_t *)scales)[index];
        if (exponent == 0xff) {
            return f32_from_bits(0x7fc00000u);
        }
        return f32_from_bits(exponent ? (uint32_t)exponent << 23 : 0x00400000u); // 0 is 2^-127, a subnormal
    }
    float scale;
    memcpy(&scale, (const char *)scales + index * sizeof scale, sizeof scale);
    return scale;
}

// `count` codes from element `at` on.
static void decode(const struct line_reader *reader, const uint8_t *data, size_t at, size_t count, uint16_t *dst) {
    if (reader->from != DTYPE_U8) {
        for (size_t i = 0; i < count; i++) {
            dst[i] = reader->codes[data[at + i]];
        }
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint8_t pair = data[(at + i) / 2];
        dst[i] = reader->codes[(at + i) % 2 ? pair >> 4 : pair & 15];
    }
}

// `count` neighbouring elements from element `at` of the operand on.
static void read_run(const struct line_reader *reader, const void *data, size_t at, size_t count, void *dst) {
    const char *src = (const char *)data + at * dtype_size(reader->from);
    if (reader->from == reader->to) {
        memcpy(dst, src, count * dtype_size(reader->to));
    } else if (reader->to == DTYPE_F32) {
        dtype_widen(reader->from, src, count, dst);
    } else {
        decode(reader, data, at, count, dst);
    }
}

// dst[column][row] = src[row][column] of elements of `size` bytes.
static void transpose(const void *src, size_t rows, size_t columns, void *dst, size_t dst_stride, size_t size) {
    for (size_t c = 0; c < columns; c++) {
        for (size_t r = 0; r < rows; r++) {
            size_t from = r * TILE + c, to = c * dst_stride + r;
            if (size == 1) {
                ((uint8_t *)dst)[to] = ((const uint8_t *)src)[from];
            } else if (size == 2) {
                ((uint16_t *)dst)[to] = ((const uint16_t *)src)[from];
            } else {
                ((uint32_t *)dst)[to] = ((const uint32_t *)src)[from];
            }
        }
    }
}

// Lines that lie side by side: read along the lines, turned block by block.
static void read_across(const struct line_reader *reader, const struct line_range *range, void *dst, size_t dst_stride) {
    const struct product_operand *operand = range->operand;
    size_t size = dtype_size(reader->to);
    uint32_t block[TILE * TILE];
    for (size_t line = 0; line < range->count; line += TILE) {
        size_t lines = range->count - line < TILE ? range->count - line : TILE;
        for (size_t k = 0; k < range->depth; k += TILE) {
            size_t depth = range->depth - k < TILE ? range->depth - k : TILE;
            for (size_t i = 0; i < depth; i++) {
                size_t at = (range->k + k + i) * operand->k_stride + range->first + line;
                read_run(reader, operand->data, at, lines, (char *)block + i * TILE * size);
            }
            transpose(block, depth, lines, (char *)dst + (line * dst_stride + k) * size, dst_stride, size);
        }
    }
}

static void read_along(const struct line_reader *reader, const struct line_range *range, void *dst, size_t dst_stride) {
    const struct product_operand *operand = range->operand;
    size_t size = dtype_size(reader->to);
    for (size_t i = 0; i < range->count; i++) {
        size_t line = range->rows ? range->rows[range->first + i] : range->first + i;
        char *to = (char *)dst + i * dst_stride * size;
        if (operand->k_stride == 1) {
            read_run(reader, operand->data, line * operand->line_stride + range->k, range->depth, to);
            continue;
        }
        for (size_t k = 0; k < range->depth; k++) {
            read_run(reader, operand->data, line * operand->line_stride + (range->k + k) * operand->k_stride, 1, to + k * size);
        }
    }
}

void lines_read(const struct line_reader *reader, const struct line_range *range, void *dst, size_t dst_stride) {
    if (range->operand->line_stride == 1 && range->operand->k_stride != 1 && !range->rows) {
        read_across(reader, range, dst, dst_stride);
    } else {
        read_along(reader, range, dst, dst_stride);
    }
}

void lines_pack(const struct line_reader *reader, const struct line_range *range, void *panel) {
    const struct product_operand *operand = range->operand;
    if (!reader->codes) {
        struct weight_source source = {
            .data = (const char *)operand->data + range->first * operand->line_stride * dtype_size(reader->from),
            .dtype = reader->from,
            .n_stride = operand->line_stride,
            .k_stride = operand->k_stride,
        };
        pack_weights(&source, range->depth, range->count, reader->to, panel);
        return;
    }
    for (size_t k = 0; k < range->depth; k += TILE) { // an even depth, so that pairs do not straddle blocks
        uint16_t block[TILE * TILE];
        struct line_range part = *range;
        part.k = range->k + k;
        part.depth = range->depth - k < TILE ? range->depth - k : TILE;
        lines_read(reader, &part, block, TILE);
        struct weight_source source = {block, DTYPE_BF16, TILE, 1};
        pack_weights(&source, part.depth, part.count, DTYPE_BF16, (uint16_t *)panel + k * KERNEL_PANEL);
    }
}
