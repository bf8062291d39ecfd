#include "kernels/device/device_codes.h"

#include <string.h>

#include "kernels/cpu/common/quantised_values.h"

struct packing {
    const struct expertd_quantised_format *format; // of the panel
    struct expertd_quantised_format held;          // device_codes_format
    const uint8_t *panel;                          // in the host's layout
    struct quantised_layout layout;
    size_t n, k, units, column; // the panel's first column
};

static size_t columns_of(const struct packing *p) {
    return p->n - p->column < EXPERTD_KERNEL_PANEL ? p->n - p->column : EXPERTD_KERNEL_PANEL;
}

// A code of the panel's format in the one that is held.
static uint8_t held_code(const struct packing *p, unsigned code) {
    return p->format->code == EXPERTD_CODE_IQ4 ? (uint8_t)(int8_t)f32_from_iq4(code) : (uint8_t)code;
}

static void put_codes(const struct packing *p, size_t g, uint8_t *codes) {
    const uint8_t *from = p->panel + quantised_codes_at(&p->layout, g);
    size_t depth = quantised_depth(&p->layout, g, p->k), first = g * p->layout.scale_k, columns = columns_of(p);
    unsigned mask = code_has_4_bits(p->format->code) ? 15 : 255;
    for (size_t i = 0; i < depth; i++) {
        for (size_t c = 0; c < columns; c++) {
            unsigned right, left;
            unsigned code = from[quantised_code_at(p->layout.line_k, i, c, &right)];
            size_t at = device_code_at(p->held.code, p->units, p->column + c, first + i, &left);
            codes[at] |= (uint8_t)(held_code(p, code >> right & mask) << left);
        }
    }
}

static void put_scales(const struct packing *p, size_t g, uint8_t *scales, uint8_t *zeros) {
    const uint8_t *from = p->panel + quantised_scales_at(&p->layout, g, p->k);
    size_t size = expertd_dtype_size(p->format->scale), columns = columns_of(p);
    if (p->format->scale_of_panel) {
        float scale = quantised_scale(p->format, &p->layout, p->k, p->panel, g, 0);
        memcpy(scales + (p->column / EXPERTD_KERNEL_PANEL * p->layout.scales + g) * sizeof scale, &scale, sizeof scale);
    }
    for (size_t c = 0; c < columns; c++) {
        size_t at = ((p->column + c) / DEVICE_CODES_TILE * p->layout.scales + g) * DEVICE_CODES_TILE + c % DEVICE_CODES_TILE;
        if (p->layout.super_size) {
            float scale = quantised_scale(p->format, &p->layout, p->k, p->panel, g, c);
            memcpy(scales + at * sizeof scale, &scale, sizeof scale);
        } else if (!p->format->scale_of_panel) {
            memcpy(scales + at * size, from + c * size, size);
        }
        if (p->format->zero_points) {
            zeros[at] = p->panel[quantised_zeros_at(&p->layout, g, p->k) + c];
        }
    }
}

void device_codes_pack(const struct expertd_quantised_format *format, const void *packed, size_t n, size_t k, void *codes,
                       void *scales, void *zeros) {
    const struct expertd_quantised_format held = device_codes_format(format);
    struct device_codes_size bytes = device_codes_bytes(&held, n, k);
    size_t panel_bytes = expertd_quantised_group_bytes(format, k, EXPERTD_KERNEL_PANEL);
    struct packing p = {.format = format,
                        .held = held,
                        .panel = packed,
                        .layout = quantised_layout(format, k),
                        .n = n,
                        .k = k,
                        .units = device_codes_units(held.code, k)};
    memset(codes, 0, bytes.codes);
    memset(scales, 0, bytes.scales);
    memset(zeros, 0, bytes.zeros);
    for (; p.column < n; p.column += EXPERTD_KERNEL_PANEL, p.panel += panel_bytes) {
        for (size_t g = 0; g < p.layout.scales; g++) {
            put_codes(&p, g, codes);
            put_scales(&p, g, scales, zeros);
        }
    }
}
