#include "expert/quantised/quantised_matrix.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/safetensors.h"
#include "expert/checkpoint/digest.h"
#include "expert/quantised/ggml_blocks.h"

enum { CHUNK = 256 };

size_t quantised_scales(const struct expertd_quantised_format *format, size_t k) {
    return format->scale_k ? k / format->scale_k + (k % format->scale_k != 0) : k > 0;
}

// ---- from the file's layout to rows ----

// Are the codes already K-contiguous rows that begin at a byte?
static bool are_rows(const struct expertd_code_words *c) {
    bool rows = c->k_stride == 1 && c->k_word_stride == c->word && c->n_word_stride == c->word * c->n_stride && !c->order;
    return rows && c->flip == 0 && c->add == 0 && (c->bits == 8 || c->n_stride % 2 == 0);
}

// Are rows of affine codes to be unpacked?
static bool are_streams(const struct quantised_matrix *m) {
    return m->affine.bits && m->affine.bits != m->codes.bits;
}

static bool codes_are_staged(const struct quantised_matrix *m) {
    return m->ordered || m->blocks || are_streams(m) || !are_rows(&m->codes);
}

struct staging {
    char *memory;
    size_t used;
};

static void *reserve(struct staging *staging, size_t bytes) {
    void *at = staging->memory ? staging->memory + staging->used : NULL;
    staging->used += arena_rounded(bytes);
    return at;
}

// The parts of the staging memory; NULL: not needed.
struct buffers {
    uint32_t *order; // [k]
    uint32_t *next;  // [scales]
    void *sorting;   // scratch of expertd_quantised_codes_as_sorted_rows
    uint8_t *codes;  // [n] rows
    uint8_t *zeros;  // [n][scales]
    // of blocks and affine codes, in format.scale:
    uint8_t *scales, *minima;             // [n][scales]
    float *stored_minima;                 // [n][scales] of affine codes of 8 bits
    uint8_t *super_scales, *super_minima; // [n][supers], where format.scale is I8
};

// Super scales of a row of k codes.
static size_t supers(size_t k) {
    return k / EXPERTD_SUPER_K + (k % EXPERTD_SUPER_K != 0);
}

// Divides `memory`; NULL: only measure. Returns the bytes in use.
static size_t divide_staging(const struct quantised_matrix *m, size_t n, size_t k, char *memory, struct buffers *out) {
    struct staging staging = {.memory = memory};
    *out = (struct buffers){0};
    if (m->ordered) {
        out->order = reserve(&staging, k * sizeof *out->order);
        out->next = reserve(&staging, quantised_scales(&m->format, k) * sizeof *out->next);
        out->sorting = reserve(&staging, expertd_quantised_sorting_bytes(&m->codes, k));
    }
    if (codes_are_staged(m)) {
        out->codes = reserve(&staging, n * quantised_row_bytes(m->codes.bits, k));
    }
    if (m->zeros.data) {
        out->zeros = reserve(&staging, n * quantised_scales(&m->format, k));
    }
    if (m->blocks || m->affine.bits) {
        size_t bytes = n * quantised_scales(&m->format, k) * expertd_dtype_size(m->format.scale);
        out->scales = reserve(&staging, bytes);
        out->minima = m->format.minima ? reserve(&staging, bytes) : NULL;
        out->stored_minima = m->affine.bits == 8 ? reserve(&staging, bytes) : NULL;
    }
    if (m->blocks && m->format.scale == EXPERTD_DTYPE_I8) {
        size_t bytes = n * supers(k) * sizeof(uint16_t);
        out->super_scales = reserve(&staging, bytes);
        out->super_minima = m->format.minima ? reserve(&staging, bytes) : NULL;
    }
    return staging.used;
}

size_t quantised_rows_bytes(const struct quantised_matrix *m, size_t n, size_t k) {
    struct buffers unused;
    return divide_staging(m, n, k, NULL, &unused);
}

static void stage_codes(const struct quantised_matrix *m, const struct buffers *buffers, size_t n, size_t k) {
    if (m->blocks) {
        const struct ggml_parts parts = {buffers->codes, buffers->scales, buffers->minima, buffers->super_scales,
                                         buffers->super_minima};
        ggml_blocks_decode(m->blocks, m->codes.data, n, k, &parts);
    } else if (are_streams(m)) {
        quantised_affine_codes(m, n, k, buffers->codes);
    } else if (buffers->order) {
        expertd_quantised_codes_as_sorted_rows(&m->codes, buffers->order, n, k, buffers->sorting, buffers->codes);
    } else {
        expertd_quantised_codes_as_rows(&m->codes, n, k, buffers->codes);
    }
}

// For zero points that are stored minus one. With 8 bits a stored 255 means 256, which is out of range. With 4 bits a stored 15
// means 16; these are counted.
static FALLIBLE check_zeros(const struct expertd_code_words *c, size_t n, size_t scales, const uint8_t *zeros, size_t *of_16) {
    bool may_be = c->bits == 8 && c->flip && c->add;
    for (size_t i = 0; may_be && i < n * scales; i++) {
        if ((uint8_t)(zeros[i] - c->add) == 0x7f) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "zero point %zu of row %zu is 256, but codes of 8 bits end at 255: the file is damaged",
                 i % scales, i / scales);
        }
    }
    for (size_t i = 0; c->bits == 4 && c->add && i < n * scales; i++) {
        *of_16 += zeros[i] == 16;
    }
    for (size_t i = 0; c->bits == 8 && c->add == 8 && i < n * scales; i++) { // signed bytes of codes of 4 bits
        if (zeros[i] > 15) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "zero point %zu of row %zu is %d, but those of 4 bits are -8 to 7: the file is damaged",
                 i % scales, i / scales, (int8_t)(zeros[i] - 8));
        }
    }
    return OK;
}

// The zero points of symmetric codes must not say anything else.
static FALLIBLE check_unused_zeros(const struct quantised_matrix *m, size_t n, size_t scales) {
    const struct expertd_code_words *c = &m->unused_zeros;
    unsigned first = c->data ? expertd_quantised_code(c, 0, 0) : 0, middle = m->unused_middle;
    bool known = first == middle || (m->unused_may_be_less_one && first == middle - 1) || (m->unused_may_be_zero && first == 0);
    for (size_t row = 0; c->data && row < n; row++) {
        for (size_t g = 0; g < scales; g++) {
            unsigned zero = expertd_quantised_code(c, row, g);
            if (!known || zero != first) {
                FAIL(EXPERTD_ERR_CHECKPOINT,
                     "tensor %s has the zero point %u for group %zu of row %zu, but %s, which means the middle of the codes' range "
                     "(%u) for all: one of the two is wrong",
                     m->zeros_tensor->name, zero, g, row,
                     m->symmetric_text ? m->symmetric_text : "symmetric is absent, which means true", middle);
            }
        }
    }
    return OK;
}

static FALLIBLE check_original_shape(const struct quantised_matrix *m, size_t k) {
    const struct safetensors_entry *shape = m->original_shape;
    int64_t sizes[2];
    int32_t narrow[2];
    if (!shape) {
        return OK;
    }
    if (shape->view.dtype == EXPERTD_DTYPE_I64) {
        memcpy(sizes, shape->view.data, sizeof sizes);
    } else {
        memcpy(narrow, shape->view.data, sizeof narrow);
        sizes[0] = narrow[0], sizes[1] = narrow[1];
    }
    if (sizes[0] != (int64_t)m->original_n || sizes[1] != (int64_t)k) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "tensor %s says that the weights are [%lld, %lld], but config.json requires [%zu, %zu]",
             shape->name, (long long)sizes[0], (long long)sizes[1], m->original_n, k);
    }
    return OK;
}

// Without `sym`, zero points that are all one above or below the middle have two readings: some programs take `sym` to be true and
// do not read them.
static FALLIBLE check_doubted_zeros(const struct quantised_matrix *m, size_t n, size_t scales, const uint8_t *zeros) {
    uint8_t middle = m->format.code == EXPERTD_CODE_INT4 ? 8 : 0, above = (uint8_t)(zeros[0] - middle);
    if (!m->zeros_are_doubted || (above != 1 && above != 0xff)) {
        return OK;
    }
    for (size_t i = 1; i < n * scales; i++) {
        if (zeros[i] != zeros[0]) {
            return OK;
        }
    }
    FAIL(
        EXPERTD_ERR_CHECKPOINT,
        "tensor %s has zero points that are all one %s the middle of the codes' range, and quantization_config has no `sym`: other "
        "programs read such a file in two ways; set sym to true if the weights are symmetric, else to false",
        m->zeros_tensor->name, above == 1 ? "above" : "below");
}

// The scale of a k: by scale_of_k, else by consecutive groups.
static int32_t scale_of(const struct quantised_matrix *m, size_t k) {
    int32_t scale = m->format.scale_k ? (int32_t)(k / m->format.scale_k) : 0;
    if (!m->scale_of_k) {
        return scale;
    }
    memcpy(&scale, (const char *)m->scale_of_k + k * sizeof scale, sizeof scale);
    return scale;
}

static const char *order_setting(const struct quantised_matrix *m) {
    return m->order_is_actorder ? "actorder" : "desc_act";
}

static FALLIBLE check_in_order(const struct quantised_matrix *m, size_t k) {
    size_t span = m->format.scale_k ? m->format.scale_k : k;
    bool unused = m->scale_of_k && scale_of(m, 0) == -1; // compressed-tensors: everywhere -1
    for (size_t i = 0; m->scale_of_k && i < k; i++) {
        if (scale_of(m, i) != (unused ? -1 : (int32_t)(i / span))) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "g_idx gives scale %d to k %zu, but %s %s that the groups of k are consecutive: if the weights were quantised in "
                 "the order of activations, set %s",
                 (int)scale_of(m, i), i, m->ordered_key ? m->ordered_key : order_setting(m),
                 m->ordered_key ? "says" : "is absent, which means",
                 m->order_is_actorder ? "actorder to \"group\"" : "desc_act to true");
        }
    }
    return OK;
}

// Sorts k by scale, stably. Each scale must get exactly the k that it spans. next: [scales], scratch.
static FALLIBLE sort_k(const struct quantised_matrix *m, size_t k, uint32_t *next, uint32_t *order) {
    size_t span = m->format.scale_k ? m->format.scale_k : k, scales = quantised_scales(&m->format, k);
    if (!m->scale_of_k && scales > 1) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "it has no g_idx, but that of other matrices of the layer sorts k: the file is incomplete, or of two quantisations");
    }
    for (size_t g = 0; g < scales; g++) {
        next[g] = (uint32_t)(g * span);
    }
    for (size_t i = 0; i < k; i++) {
        int32_t scale = scale_of(m, i);
        if (scale < 0 || (size_t)scale >= scales) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "g_idx gives scale %d to k %zu, but there are %zu scales: the file, or the group size or %s in config.json is "
                 "wrong",
                 (int)scale, i, scales, m->ordered_key ? m->ordered_key : order_setting(m));
        }
        size_t g = (size_t)scale, end = k - g * span < span ? k : (g + 1) * span;
        if (next[g] == end) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "g_idx gives scale %zu to more than the %zu k of its group: the file or the group size in config.json is wrong", g,
                 end - g * span);
        }
        order[next[g]++] = (uint32_t)i; // the capacities of the groups add up to k, so each group is full at the end
    }
    return OK;
}

// Rows of scales: one for each block of scale_columns rows of the matrix.
static size_t scale_rows(size_t first, size_t n, size_t columns) {
    return (first + n) / columns + ((first + n) % columns != 0);
}

static size_t rows_of_scales(const struct quantised_rows *r, size_t n) {
    return scale_rows(r->source.scale_first, n, r->source.scale_columns);
}

// Copies `count` scales of one row, beginning at g.
static void gather_scales(const struct quantised_rows *r, size_t row, size_t g, size_t count, char *out) {
    size_t size = expertd_dtype_size(r->format.scale);
    const char *at = quantised_rows_scale_at(r, row, g);
    size_t stride = r->source.scale_g_stride * size;
    if (stride == size) {
        memcpy(out, at, count * size);
        return;
    }
    for (size_t i = 0; i < count; i++, at += stride, out += size) {
        switch (size) { // copies of a constant size are moves
        case 1:
            *out = *at;
            break;
        case 2:
            memcpy(out, at, 2);
            break;
        default:
            memcpy(out, at, 4);
            break;
        }
    }
}

// The bits that are all set in NaN and infinite values, and only there: the exponent; E4M3 has one NaN of each sign, E8M0 has one.
static uint32_t not_finite_mask(enum expertd_dtype dtype) {
    switch (dtype) {
    case EXPERTD_DTYPE_F32:
        return 0x7f800000;
    case EXPERTD_DTYPE_BF16:
        return 0x7f80;
    case EXPERTD_DTYPE_F16:
        return 0x7c00;
    default:
        return dtype == EXPERTD_DTYPE_F8_E4M3 ? 0x7f : 0xff;
    }
}

static size_t count_not_finite(enum expertd_dtype dtype, const char *scales, size_t count) {
    uint32_t mask = not_finite_mask(dtype);
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = 0;
        switch (expertd_dtype_size(dtype)) { // copies of a constant size are moves
        case 1:
            memcpy(&bits, scales + i, 1);
            break;
        case 2:
            memcpy(&bits, scales + 2 * i, 2);
            break;
        default:
            memcpy(&bits, scales + 4 * i, 4);
            break;
        }
        found += (bits & mask) == mask;
    }
    return found;
}

// The number of scales that are NaN or infinite. Contiguous runs are counted in one call.
static size_t count_not_finite_scales(const struct quantised_rows *r, size_t n) {
    size_t rows = rows_of_scales(r, n), found = 0;
    bool by_row = r->source.scale_g_stride == 1, contiguous = by_row || r->source.scale_n_stride == 1;
    size_t lines = by_row ? rows : r->scales, length = by_row ? r->scales : rows, run = contiguous ? length : 1;
    for (size_t line = 0; line < lines; line++) {
        for (size_t i = 0; i < length; i += run) {
            found += count_not_finite(r->format.scale,
                                      by_row ? quantised_rows_scale_at(r, line, i) : quantised_rows_scale_at(r, i, line), run);
        }
    }
    return found;
}

static FALLIBLE check_scales(const struct quantised_matrix *m, size_t n, struct quantised_rows *r) {
    if (r->format.global == EXPERTD_GLOBAL_DIVIDE && r->source.global == 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s%sthe global scale, a divisor, is 0: the file is damaged",
             m->global_tensor ? m->global_tensor->name : "", m->global_tensor ? ": " : "");
    }
    r->global_is_not_finite = r->format.global != EXPERTD_GLOBAL_NONE && !isfinite(r->source.global);
    r->not_finite_scales = r->format.scale == EXPERTD_DTYPE_I8 ? 0 : count_not_finite_scales(r, n);
    if (r->source.minima && r->format.scale != EXPERTD_DTYPE_I8) {
        r->not_finite_scales += count_not_finite(r->format.scale, r->source.minima, n * r->scales);
    }
    const size_t count = n * r->source.super_n_stride; // they are dense
    r->not_finite_scales += r->source.super_scales ? count_not_finite(EXPERTD_DTYPE_F16, r->source.super_scales, count) : 0;
    r->not_finite_scales += r->source.super_minima ? count_not_finite(EXPERTD_DTYPE_F16, r->source.super_minima, count) : 0;
    return OK;
}

static struct expertd_code_words row_source(const void *data, unsigned bits, size_t stride) {
    return (struct expertd_code_words){
        .data = data, .bits = bits, .word = 8, .n_stride = stride, .n_word_stride = 8 * stride, .k_stride = 1, .k_word_stride = 8};
}

// The parts of the matrix as they are after stage_codes.
static struct expertd_quantised_source source_of(const struct quantised_matrix *m, const struct buffers *buffers, size_t k) {
    const size_t row_bytes = quantised_row_bytes(m->codes.bits, k), scales = quantised_scales(&m->format, k);
    struct expertd_quantised_source source = {
        .codes = row_source(m->codes.data, m->codes.bits, m->codes.n_stride),
        .scales = m->scales,
        .scale_columns = m->scale_columns,
        .scale_first = m->scale_first,
        .scale_n_stride = m->scale_n_stride,
        .scale_g_stride = m->scale_g_stride,
    };
    if (buffers->codes) {
        source.codes = row_source(buffers->codes, m->codes.bits, m->codes.bits == 8 ? row_bytes : 2 * row_bytes);
    }
    if (buffers->scales) {
        source.scales = buffers->scales;
        source.minima = buffers->minima;
        source.super_scales = buffers->super_scales;
        source.super_minima = buffers->super_minima;
        source.super_n_stride = buffers->super_scales ? supers(k) : 0, source.super_g_stride = 1;
        source.scale_columns = 1, source.scale_n_stride = scales, source.scale_g_stride = 1;
    }
    if (m->global) {
        expertd_dtype_widen(m->global_dtype, m->global, 1, &source.global);
    }
    return source;
}

FALLIBLE quantised_rows_take(const struct quantised_matrix *m, size_t n, size_t k, void *staging, struct quantised_rows *out) {
    struct buffers buffers;
    divide_staging(m, n, k, staging, &buffers);
    *out = (struct quantised_rows){.format = m->format, .scales = quantised_scales(&m->format, k)};
    TRY(check_original_shape(m, k));
    TRY(check_unused_zeros(m, n, out->scales));
    TRY(m->ordered ? sort_k(m, k, buffers.next, buffers.order) : check_in_order(m, k));
    if (codes_are_staged(m)) {
        stage_codes(m, &buffers, n, k);
    }
    if (m->affine.bits) {
        out->stored_minima = buffers.stored_minima;
        out->inexact_minima = quantised_affine_scales(m, n, out->scales, buffers.scales, buffers.minima, buffers.stored_minima);
    }
    out->source = source_of(m, &buffers, k);
    TRY(check_scales(m, n, out));
    if (m->zeros.data) {
        expertd_quantised_codes_as_bytes(&m->zeros, n, out->scales, buffers.zeros);
        TRY(check_zeros(&m->zeros, n, out->scales, buffers.zeros, &out->zeros_of_16));
        TRY(check_doubted_zeros(m, n, out->scales, buffers.zeros));
        out->source.zeros = row_source(buffers.zeros, 8, out->scales);
    }
    out->order = buffers.order;
    return OK;
}

FALLIBLE quantised_rows_check_minima(const struct quantised_rows *rows) {
    if (rows->inexact_minima == 0) {
        return OK;
    }
    FAIL(EXPERTD_ERR_CHECKPOINT,
         "codes of 8 bits are computed less 128, with bias + 128 x scale for the bias, but fp32 does not hold %zu of these sums "
         "exactly: serve this model with --widen",
         rows->inexact_minima);
}

// ---- digest ----

static void digest_scales(const struct quantised_rows *r, size_t n, struct digest *digest) {
    char chunk[CHUNK * sizeof(float)];
    for (size_t row = 0; row < rows_of_scales(r, n); row++) {
        for (size_t g = 0; g < r->scales; g += CHUNK) {
            size_t count = r->scales - g < CHUNK ? r->scales - g : CHUNK;
            gather_scales(r, row, g, count, chunk);
            digest_update(digest, chunk, count * expertd_dtype_size(r->format.scale));
        }
    }
}

void quantised_rows_digest(const struct quantised_rows *r, size_t n, size_t k, struct digest *digest) {
    const struct expertd_code_words *codes = &r->source.codes;
    size_t row_bytes = quantised_row_bytes(codes->bits, k), stride = quantised_row_bytes(codes->bits, codes->n_stride);
    for (size_t row = 0; row < n; row++) {
        digest_update(digest, (const char *)codes->data + row * stride, row_bytes);
    }
    if (r->source.zeros.data) {
        digest_update(digest, r->source.zeros.data, n * r->scales);
    }
    digest_scales(r, n, digest);
    if (r->source.minima) { // dense, like the scales beside them
        const void *minima = r->stored_minima ? r->stored_minima : r->source.minima;
        digest_update(digest, minima, n * r->scales * expertd_dtype_size(r->format.scale));
    }
    const void *const supers[] = {r->source.super_scales, r->source.super_minima};
    for (size_t i = 0; i < 2 && supers[i]; i++) {
        digest_update(digest, supers[i], n * r->source.super_n_stride * sizeof(uint16_t));
    }
    if (r->format.global != EXPERTD_GLOBAL_NONE) {
        digest_f32(digest, r->source.global);
    }
    for (size_t i = 0; r->order && i < k; i++) {
        digest_u32(digest, r->order[i]);
    }
}

// A bit that zero_points does not use: formats without minima keep the ids that they had before the field was added.
enum { HAS_MINIMA = 1 << 1 };

void quantised_digest_format(const struct quantised_matrix *m, struct digest *digest) {
    const struct expertd_quantised_format *f = &m->format;
    digest_u32(digest, f->code);
    digest_text(digest, expertd_dtype_name(f->scale));
    digest_u32(digest, f->global);
    digest_u32(digest, (f->zero_points ? 1 : 0) | (f->minima ? HAS_MINIMA : 0));
    digest_u64(digest, f->scale_k);
    digest_u32(digest, m->ordered);
}

// ---- the matrix ----

uint64_t quantised_stored_bytes(const struct quantised_matrix *m, size_t n, size_t k) {
    if (m->blocks) {
        return (uint64_t)n * ggml_row_bytes(m->blocks, k);
    }
    uint64_t scales = quantised_scales(&m->format, k);
    if (m->affine.bits) {
        return (uint64_t)n * (k * m->affine.bits / 8 + 2 * scales * expertd_dtype_size(m->affine.dtype));
    }
    uint64_t bytes = (uint64_t)n * quantised_row_bytes(m->codes.bits, k);
    bytes += scale_rows(m->scale_first, n, m->scale_columns) * scales * expertd_dtype_size(m->format.scale);
    return bytes + (m->zeros.data ? n * scales * m->zeros.bits / 8 : 0);
}

bool quantised_same_format(const struct quantised_matrix *a, const struct quantised_matrix *b) {
    return expertd_quantised_format_equal(&a->format, &b->format);
}
