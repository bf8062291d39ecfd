// Packs quantised weights from a file's order into panels (quantised_layout.h), once at load.
#include <string.h>

#include "base/err.h"
#include "kernels/layout/pack.h"
#include "kernels/layout/quantised_layout.h"
#include "kernels/packing/quantised_codes.h"

struct packing {
    const struct expertd_quantised_source *source;
    const struct expertd_quantised_format *format;
    const struct kernel_backend *backend;
    struct quantised_layout layout;
    size_t k, n;
    size_t column; // the first of the panel
    uint8_t *panel;
};

static size_t panel_columns(const struct packing *p) {
    return p->n - p->column < EXPERTD_KERNEL_PANEL ? p->n - p->column : EXPERTD_KERNEL_PANEL;
}

// A word of codes whose value is 0. Zero points of padding columns are 0; without zero points INT4's is 8.
static uint32_t zero_word(const struct expertd_quantised_format *format) {
    return format->code == EXPERTD_CODE_INT4 && !format->zero_points ? 0x88888888u : 0;
}

enum {
    ZEROS_G = 16,     // scale groups whose zero points are read together
    CHUNK_WORDS = 64, // words of a column packed together: 16 KiB for a panel, which stay in L1
};

// Fills the words of padding columns, from `columns` on, over `depth` k.
static void pad_columns(const struct packing *p, size_t columns, size_t depth, uint32_t *words) {
    uint32_t zero = zero_word(p->format);
    size_t count = (depth + p->layout.line_k - 1) / p->layout.line_k, left = depth % p->layout.line_k;
    for (size_t w = 0; w < count; w++) {
        uint32_t word = w + 1 == count && left ? zero & ((1u << (left * p->source->codes.bits)) - 1) : zero;
        for (size_t c = columns; c < EXPERTD_KERNEL_PANEL; c++) {
            words[w * EXPERTD_KERNEL_PANEL + c] = word;
        }
    }
}

// Writes lines [line, line + count) of the panel's codes, which may belong to several scale groups.
static void place_codes(const struct packing *p, size_t line, size_t count, const uint32_t *words) {
    size_t lines_of_scale = (p->layout.scale_k + p->layout.line_k - 1) / p->layout.line_k;
    while (count > 0) {
        size_t g = line / lines_of_scale, first = line % lines_of_scale;
        size_t now = lines_of_scale - first < count ? lines_of_scale - first : count;
        p->backend->place_codes(
            &(struct place_args){words, now, p->source->codes.bits,
                                 p->panel + quantised_codes_at(&p->layout, g) + first * EXPERTD_KERNEL_PANEL * sizeof *words});
        words += now * EXPERTD_KERNEL_PANEL, line += now, count -= now;
    }
}

// Packs the panel's codes. A line of k is one word of each column, and belongs to one scale group.
static void pack_codes(const struct packing *p) {
    _Alignas(64) uint32_t words[CHUNK_WORDS * EXPERTD_KERNEL_PANEL];
    size_t columns = panel_columns(p), line_k = p->layout.line_k;
    struct codes_block block = {&p->source->codes, p->source->k_order, p->column, columns, 0, 0};
    for (; block.k < p->k; block.k += CHUNK_WORDS * line_k) {
        block.depth = p->k - block.k < CHUNK_WORDS * line_k ? p->k - block.k : CHUNK_WORDS * line_k;
        codes_to_words(&block, words);
        pad_columns(p, columns, block.depth, words);
        place_codes(p, block.k / line_k, (block.depth + line_k - 1) / line_k, words);
    }
}

static FALLIBLE check_zero(const struct packing *p, size_t c, size_t g, uint8_t zero) {
    if (p->format->code == EXPERTD_CODE_INT4 && zero > EXPERTD_INT4_ZERO_MAX) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "zeros", "the zero point of column %zu, scale %zu is %u: those of INT4 codes are 0 to %d",
                   p->column + c, g, zero, EXPERTD_INT4_ZERO_MAX);
    }
    return OK;
}

// Packs and checks the zero points of scale groups [g, g + count), at most ZEROS_G.
static FALLIBLE pack_group_zeros(const struct packing *p, size_t g, size_t count) {
    uint8_t zeros[EXPERTD_KERNEL_PANEL][ZEROS_G];
    size_t columns = panel_columns(p);
    for (size_t c = 0; c < columns; c++) {
        for (size_t i = 0; i < count; i++) {
            zeros[c][i] = expertd_quantised_code(&p->source->zeros, p->column + c, g + i);
        }
    }
    for (size_t i = 0; i < count; i++) {
        uint8_t *out = p->panel + quantised_zeros_at(&p->layout, g + i, p->k);
        memset(out, 0, EXPERTD_KERNEL_PANEL);
        for (size_t c = 0; c < columns; c++) {
            out[c] = zeros[c][i];
            TRY(check_zero(p, c, g + i, out[c]));
        }
    }
    return OK;
}

// `size` is a compile-time constant at each call, so that the copies are single moves.
static inline __attribute__((always_inline)) void gather_scales(const struct expertd_quantised_source *source, size_t column,
                                                                size_t g, size_t count, size_t size, uint8_t *out) {
    const uint8_t *scales = (const uint8_t *)source->scales + g * source->scale_g_stride * size;
    if (source->scale_columns == 1 && source->scale_n_stride == 1) {
        memcpy(out, scales + column * size, count * size);
        return;
    }
    for (size_t c = 0; c < count; c++) {
        size_t row = source->scale_columns == 1 ? column + c : (source->scale_first + column + c) / source->scale_columns;
        memcpy(out + c * size, scales + row * source->scale_n_stride * size, size);
    }
}

static void pack_scales(const struct packing *p, size_t g) {
    uint8_t *scales = p->panel + quantised_scales_at(&p->layout, g, p->k);
    size_t count = p->format->scale_of_panel ? 1 : panel_columns(p);
    if (count < EXPERTD_KERNEL_PANEL) {
        memset(scales, 0, p->layout.scale_size);
    }
    switch (expertd_dtype_size(p->format->scale)) {
    case 1:
        gather_scales(p->source, p->column, g, count, 1, scales);
        return;
    case 2:
        gather_scales(p->source, p->column, g, count, 2, scales);
        return;
    default:
        gather_scales(p->source, p->column, g, count, 4, scales);
        return;
    }
}

// Bit 7 of each of 8 codes' bytes: set if the code's magnitude is at least `least`.
static uint64_t bytes_at_least(uint64_t codes, unsigned least) {
    const uint64_t ones = 0x0101010101010101u;
    return ((codes & 0x7f * ones) + (128 - least) * ones) & 128 * ones;
}

// Which kinds of codes a line of k of the panel has.
struct line_codes {
    uint64_t special; // not 0: one is NaN or Inf
    uint64_t normal;  // bit 7 of each byte: 0 if a code in that position is 0 or subnormal
};

static struct line_codes classify_line(const uint8_t *codes, unsigned normal, unsigned special) {
    enum { BYTES = EXPERTD_KERNEL_PANEL / QUANTISED_COLUMNS * QUANTISED_LINE };
    struct line_codes found = {0, UINT64_MAX};
    for (size_t i = 0; i < BYTES; i += sizeof(uint64_t)) {
        uint64_t eight;
        memcpy(&eight, codes + i, sizeof eight);
        found.special |= bytes_at_least(eight, special);
        found.normal &= bytes_at_least(eight, normal);
    }
    return found;
}

void quantised_mark_special(const struct expertd_quantised_format *format, size_t k, void *panel) {
    const uint64_t all = 0x8080808080808080u;
    const struct quantised_layout layout = quantised_layout(format, k);
    const unsigned shift = quantised_plain_shift(k), normal = format->code == EXPERTD_CODE_E4M3 ? 0x08 : 0x04;
    uint8_t *header = panel, *plain = header + QUANTISED_PLAIN_AT;
    header[QUANTISED_SPECIAL_AT] = 0;
    if (format->code != EXPERTD_CODE_E4M3 && format->code != EXPERTD_CODE_E5M2) {
        return;
    }
    memset(plain, 0xff, QUANTISED_PLAIN_BITS / 8);
    for (size_t at = 0; at < k; at += layout.line_k) {
        const size_t g = at / layout.scale_k, line = at / layout.line_k,
                     within = quantised_code_bytes(&layout, at - g * layout.scale_k);
        const uint8_t *codes = header + quantised_codes_at(&layout, g) + within;
        const struct line_codes found = classify_line(codes, normal, format->code == EXPERTD_CODE_E4M3 ? 0x7f : 0x7c);
        header[QUANTISED_SPECIAL_AT] |= found.special != 0;
        if (found.normal != all) {
            plain[(line >> shift) / 8] &= (uint8_t) ~(1u << (line >> shift) % 8);
        }
    }
}

static FALLIBLE pack_panel(const struct packing *p) {
    memset(p->panel, 0, QUANTISED_HEADER);
    memcpy(p->panel, &p->source->global, sizeof p->source->global);
    pack_codes(p);
    quantised_mark_special(p->format, p->k, p->panel);
    for (size_t g = 0; g < p->layout.scales; g++) {
        pack_scales(p, g);
    }
    for (size_t g = 0; p->format->zero_points && g < p->layout.scales; g += ZEROS_G) {
        TRY(pack_group_zeros(p, g, p->layout.scales - g < ZEROS_G ? p->layout.scales - g : ZEROS_G));
    }
    return OK;
}

// Checks that codes or zero points are present, and that their words are valid.
static FALLIBLE check_words(const struct expertd_code_words *words, const char *name) {
    if (words->bits != 4 && words->bits != 8) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, name, "%s have %u bits: they must have 4 or 8", name, words->bits);
    }
    if (words->word == 0 || (words->word & (words->word - 1)) != 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, name, "a word of %s has %zu of them: the number must be a power of two, 1 for no words",
                   name, words->word);
    }
    if (!words->data) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, name, "%s are missing: data is NULL", name);
    }
    for (size_t i = 0; words->order && i < words->word; i++) {
        if (words->order[i] >= words->word) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, name, "order[%zu] of %s is %u: it must be below %zu, the number of codes in a word", i,
                       name, words->order[i], words->word);
        }
    }
    return OK;
}

static FALLIBLE check_codes(const struct expertd_quantised_source *source, const struct expertd_quantised_format *format) {
    unsigned bits = code_has_4_bits(format->code) ? 4 : 8;
    TRY(check_words(&source->codes, "codes"));
    if (source->codes.bits != bits) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "codes", "codes of %u bits cannot be packed as a format of %u", source->codes.bits, bits);
    }
    if (format->zero_points != (source->zeros.data != NULL)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "zeros", "the format has %szero points, but the source has %s",
                   format->zero_points ? "" : "no ", format->zero_points ? "none" : "some");
    }
    return format->zero_points ? check_words(&source->zeros, "zeros") : OK;
}

static FALLIBLE check_scales(const struct expertd_quantised_source *source, const struct expertd_quantised_format *format,
                             size_t n) {
    if (!source->scales) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "scales", "scales are missing: scales is NULL");
    }
    if (source->scale_columns == 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "scale_columns", "a scale spans 0 columns: it must span at least 1");
    }
    if (source->scale_first >= source->scale_columns) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "scale_first", "%zu columns precede column 0 in a block of %zu: expected fewer",
                   source->scale_first, source->scale_columns);
    }
    bool panels = source->scale_columns % EXPERTD_KERNEL_PANEL == 0 && source->scale_first % EXPERTD_KERNEL_PANEL == 0;
    if (format->scale_of_panel && !panels && source->scale_columns - source->scale_first < n) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "scale_columns",
                   "a scale spans %zu of %zu columns: one scale per panel needs a multiple of %d, or all of them",
                   source->scale_columns, n, EXPERTD_KERNEL_PANEL);
    }
    return OK;
}

static FALLIBLE check_order(const uint32_t *order, size_t k) {
    for (size_t i = 0; order && i < k; i++) {
        if (order[i] >= k) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, "k_order", "k_order[%zu] is %u, but the codes have %zu k", i, order[i], k);
        }
    }
    return OK;
}

static FALLIBLE check_destination(const void *dst, size_t n) {
    enum { ALIGNMENT = 64 };
    if (n && (!dst || (uintptr_t)dst % ALIGNMENT != 0)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "dst", "dst is %p: it must point to memory that is aligned to %d bytes", dst, ALIGNMENT);
    }
    return OK;
}

FALLIBLE expertd_pack_quantised(const struct expertd_quantised_source *source, const struct expertd_quantised_format *format,
                                size_t k, size_t n, void *dst) {
    TRY(expertd_quantised_check(format));
    TRY(check_destination(dst, n));
    if (k && n) { // else the source is not read
        TRY(check_codes(source, format));
        TRY(check_order(source->k_order, k));
        TRY(check_scales(source, format, n));
    }
    struct packing p = {.source = source, .format = format, .layout = quantised_layout(format, k), .k = k, .n = n, .panel = dst};
    p.backend = kernel_selected();
    size_t panel_bytes = expertd_quantised_group_bytes(format, k, EXPERTD_KERNEL_PANEL);
    for (; p.column < n; p.column += EXPERTD_KERNEL_PANEL, p.panel += panel_bytes) {
        TRY(pack_panel(&p));
    }
    return OK;
}
