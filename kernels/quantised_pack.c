// Packing, scale by scale: once at load.
#include <string.h>

#include "kernels/quantised_layout.h"

struct packing {
    const struct quantised_source *source;
    const struct quantised_format *format;
    struct quantised_layout layout;
    size_t k, n;
    size_t column;  // the first of the panel
    uint8_t *panel; // all 0
};

static uint8_t read_code(const struct code_source *source, size_t n, size_t k) {
    size_t in_8 = source->order ? source->order[n % 8] : n % 8;
    size_t index = n / 8 * source->n8_stride + in_8 * source->n_stride + k / 8 * source->k8_stride + k % 8 * source->k_stride;
    const uint8_t *data = source->data;
    unsigned code = source->bits == 8 ? data[index] : data[index / 2] >> (index % 2 * 4) & 15;
    return (uint8_t)((code ^ source->flip) + source->add);
}

// The code whose value is 0 with the zero point `zero`.
static uint8_t code_of_zero(const struct quantised_format *format) {
    return format->code == CODE_INT4 && !format->zero_points ? 8 : 0;
}

// Most files have rows of codes as they are to be: eight of 4 bits or four of 8 are then one word, taken apart as a whole.
static bool are_rows(const struct code_source *codes) {
    bool rows = codes->k_stride == 1 && codes->k8_stride == 8 && !codes->order && codes->flip == 0 && codes->add == 0;
    return rows && (codes->bits == 8 || (codes->n_stride % 2 == 0 && codes->n8_stride % 2 == 0));
}

// Even nibbles into the low half, odd ones into the high half.
static uint32_t part_nibbles(uint32_t word) {
    uint32_t even = word & 0x0f0f0f0fu, odd = word >> 4 & 0x0f0f0f0fu;
    even = (even | even >> 4) & 0x00ff00ffu;
    odd = (odd | odd >> 4) & 0x00ff00ffu;
    return ((even | even >> 8) & 0xffffu) | (odd | odd >> 8) << 16;
}

// The line's k of one column, from its row's codes: what quantised_code_at says of each.
static void put_word(const uint8_t *row, size_t line_k, size_t column, uint8_t *lines) {
    uint32_t word;
    unsigned none;
    memcpy(&word, row, sizeof word);
    uint8_t *at = lines + quantised_code_at(line_k, 0, column, &none);
    if (line_k == 8) {
        word = part_nibbles(word);
        memcpy(at, &word, sizeof word);
    } else {
        memcpy(at, row, sizeof(uint16_t));
        memcpy(lines + quantised_code_at(line_k, 2, column, &none), row + 2, sizeof(uint16_t));
    }
}

enum { CHUNK_K = 128 }; // of all columns, before the next: what is written stays in the first cache

// Whole lines of the panel's columns below `columns`. Returns the k that are done, of `depth`.
static size_t pack_rows(const struct packing *p, size_t g, size_t columns, size_t depth, uint8_t *codes) {
    const struct code_source *source = &p->source->codes;
    size_t line_k = p->layout.line_k, done = p->source->k_order || !are_rows(source) ? 0 : depth / line_k * line_k;
    size_t line_bytes = quantised_code_bytes(&p->layout, line_k);
    for (size_t chunk = 0; chunk < done; chunk += CHUNK_K) {
        size_t end = done - chunk < CHUNK_K ? done : chunk + CHUNK_K;
        for (size_t c = 0; c < columns; c++) {
            size_t n = p->column + c;
            size_t index = n / 8 * source->n8_stride + n % 8 * source->n_stride + g * p->layout.scale_k + chunk;
            const uint8_t *row = (const uint8_t *)source->data + index * source->bits / 8;
            for (size_t i = chunk; i < end; i += line_k, row += sizeof(uint32_t)) {
                put_word(row, line_k, c, codes + i / line_k * line_bytes);
            }
        }
    }
    return done;
}

static void pack_codes(const struct packing *p, size_t g) {
    const struct quantised_source *source = p->source;
    uint8_t *codes = p->panel + quantised_codes_at(&p->layout, g);
    uint8_t padding = code_of_zero(p->format);
    size_t depth = quantised_depth(&p->layout, g, p->k);
    size_t columns = p->n - p->column < KERNEL_PANEL ? p->n - p->column : KERNEL_PANEL;
    size_t done = pack_rows(p, g, columns, depth, codes);
    for (size_t c = 0; c < KERNEL_PANEL; c++) {
        for (size_t i = c < columns ? done : 0; i < depth; i++) {
            size_t k = g * p->layout.scale_k + i;
            k = source->k_order ? source->k_order[k] : k;
            uint8_t code = c < columns ? read_code(&source->codes, p->column + c, k) : padding;
            unsigned shift;
            size_t at = quantised_code_at(p->layout.line_k, i, c, &shift);
            codes[at] |= (uint8_t)(code << shift);
        }
    }
}

static FALLIBLE pack_zeros(const struct packing *p, size_t g, size_t count) {
    uint8_t *zeros = p->panel + quantised_zeros_at(&p->layout, g, p->k);
    for (size_t c = 0; c < count; c++) {
        zeros[c] = read_code(&p->source->zeros, p->column + c, g);
        if (p->format->code == CODE_INT4 && zeros[c] > INT4_ZERO_MAX) {
            FAIL_FIELD(ERR_INVALID, "zeros", "the zero point of column %zu, scale %zu is %u: those of INT4 codes are 0 to %d",
                       p->column + c, g, zeros[c], INT4_ZERO_MAX);
        }
    }
    return OK;
}

static FALLIBLE pack_scales(const struct packing *p, size_t g) {
    const struct quantised_source *source = p->source;
    size_t size = dtype_size(p->format->scale);
    uint8_t *scales = p->panel + quantised_scales_at(&p->layout, g, p->k);
    size_t count = p->n - p->column < KERNEL_PANEL ? p->n - p->column : KERNEL_PANEL;
    for (size_t c = 0; c < (p->format->scale_of_panel ? 1 : count); c++) {
        size_t index = (p->column + c) / source->scale_columns * source->scale_n_stride + g * source->scale_g_stride;
        memcpy(scales + c * size, (const uint8_t *)source->scales + index * size, size);
    }
    return p->format->zero_points ? pack_zeros(p, g, count) : OK;
}

static FALLIBLE check_source(const struct quantised_source *source, const struct quantised_format *format, size_t n) {
    unsigned bits = code_has_4_bits(format->code) ? 4 : 8;
    if (source->codes.bits != bits) {
        FAIL_FIELD(ERR_INVALID, "codes", "codes of %u bits cannot be packed as a format of %u", source->codes.bits, bits);
    }
    if (format->zero_points != (source->zeros.data != NULL)) {
        FAIL_FIELD(ERR_INVALID, "zeros", "the format has %s zero points, but the source has %s", format->zero_points ? "" : "no",
                   format->zero_points ? "none" : "some");
    }
    if (format->zero_points && source->zeros.bits != 4 && source->zeros.bits != 8) {
        FAIL_FIELD(ERR_INVALID, "zeros", "zero points of %u bits: they can have 4 or 8", source->zeros.bits);
    }
    if (source->scale_columns == 0) {
        FAIL_FIELD(ERR_INVALID, "scale_columns", "a scale spans 0 columns: it must span at least 1");
    }
    if (format->scale_of_panel && source->scale_columns % KERNEL_PANEL != 0 && source->scale_columns < n) {
        FAIL_FIELD(ERR_INVALID, "scale_columns",
                   "a scale spans %zu of %zu columns: one scale per panel needs a multiple of %d, or all of them",
                   source->scale_columns, n, KERNEL_PANEL);
    }
    return OK;
}

FALLIBLE pack_quantised(const struct quantised_source *source, const struct quantised_format *format, size_t k, size_t n,
                        void *dst) {
    TRY(quantised_check(format));
    TRY(check_source(source, format, n));
    struct packing p = {.source = source, .format = format, .layout = quantised_layout(format, k), .k = k, .n = n, .panel = dst};
    size_t panel_bytes = quantised_group_bytes(format, k, KERNEL_PANEL);
    memset(dst, 0, quantised_group_bytes(format, k, n));
    for (; p.column < n; p.column += KERNEL_PANEL, p.panel += panel_bytes) {
        memcpy(p.panel, &source->global, sizeof source->global);
        for (size_t g = 0; g < p.layout.scales; g++) {
            pack_codes(&p, g);
            TRY(pack_scales(&p, g));
        }
    }
    return OK;
}
