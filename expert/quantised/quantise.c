#include "expert/quantised/quantise.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/arena.h"

enum { SCALE_K_MAX = 128 };

struct quantise_format {
    const char *name, *stored_name;
    struct expertd_quantised_format codes;
    size_t columns; // n that share a scale
    unsigned bits;  // of a code
};

static const struct quantise_format FORMATS[] = {
    {.name = "fp8",
     .stored_name = "fp8_block128",
     .codes = {.code = EXPERTD_CODE_E4M3, .scale = EXPERTD_DTYPE_F32, .scale_of_panel = true, .scale_k = 128},
     .columns = 128,
     .bits = 8},
    {.name = "int8",
     .stored_name = "int8_group128",
     .codes = {.code = EXPERTD_CODE_INT8, .scale = EXPERTD_DTYPE_F32, .scale_k = 128},
     .columns = 1,
     .bits = 8},
    {.name = "int4",
     .stored_name = "int4_group32",
     .codes = {.code = EXPERTD_CODE_INT4, .scale = EXPERTD_DTYPE_BF16, .scale_k = 32},
     .columns = 1,
     .bits = 4},
    {.name = "mxfp4",
     .stored_name = "mxfp4",
     .codes = {.code = EXPERTD_CODE_E2M1, .scale = EXPERTD_DTYPE_F8_E8M0, .scale_k = 32},
     .columns = 1,
     .bits = 4},
};

const struct quantise_format *quantise_find(const char *name) {
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++) {
        if (strcmp(FORMATS[i].name, name) == 0) {
            return &FORMATS[i];
        }
    }
    return NULL;
}

const char *quantise_name(const struct quantise_format *format) {
    return format->name;
}

const char *quantise_stored_name(const struct quantise_format *format) {
    return format->stored_name;
}

const struct expertd_quantised_format *quantise_codes(const struct quantise_format *format) {
    return &format->codes;
}

// ---- staging memory ----

struct buffers {
    float *row;      // [k] one row of the source
    float *extremes; // [groups] of a block of rows: the weight with the greatest magnitude
    uint8_t *codes;  // [n] rows
    char *scales;    // [n / columns][groups]
};

static size_t row_bytes(const struct quantise_format *f, size_t k) {
    return f->bits == 8 ? k : (k + 1) / 2;
}

static size_t blocks_of(size_t count, size_t block) {
    return count / block + (count % block != 0);
}

static size_t divide(const struct quantise_format *f, size_t n, size_t k, char *memory, struct buffers *out) {
    size_t groups = blocks_of(k, f->codes.scale_k), used = 0;
    size_t scales = blocks_of(n, f->columns) * groups * expertd_dtype_size(f->codes.scale);
    size_t sizes[] = {k * sizeof(float), groups * sizeof(float), n * row_bytes(f, k), scales};
    void *parts[sizeof sizes / sizeof *sizes];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        parts[i] = memory ? memory + used : NULL;
        used += arena_rounded(sizes[i]);
    }
    *out = (struct buffers){.row = parts[0], .extremes = parts[1], .codes = parts[2], .scales = parts[3]};
    return used;
}

size_t quantise_staging_bytes(const struct quantise_format *format, size_t n, size_t k) {
    struct buffers unused;
    return divide(format, n, k, NULL, &unused);
}

// ---- scales ----

// Widens row n of the source.
static void read_row(const struct expertd_weight_source *s, size_t n, size_t k, float *out) {
    size_t size = expertd_dtype_size(s->dtype);
    const char *row = (const char *)s->data + n * s->n_stride * size;
    if (s->k_stride == 1) {
        expertd_dtype_widen(s->dtype, row, k, out);
        return;
    }
    for (size_t i = 0; i < k; i++) {
        expertd_dtype_widen(s->dtype, row + i * s->k_stride * size, 1, out + i);
    }
}

// Updates the extreme weight of each group with those of a row.
static FALLIBLE find_extremes(const struct quantise_format *f, size_t n, size_t k, const struct buffers *b) {
    for (size_t i = 0; i < k; i++) {
        float *extreme = &b->extremes[i / f->codes.scale_k];
        if (!isfinite(b->row[i])) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "the weight in row %zu, column %zu is %s, which --quantize cannot quantise: is the file damaged? expertd --verify "
                 "lists such "
                 "tensors",
                 n, i, isnan(b->row[i]) ? "NaN" : "infinite");
        }
        if (fabsf(b->row[i]) > fabsf(*extreme)) {
            *extreme = b->row[i];
        }
    }
    return OK;
}

// Writes the scale of a block, and returns its value as stored. A magnitude too small for the dtype gives scale 0, and codes of 0.
static float write_scale(const struct quantise_format *f, float extreme, char *out) {
    float scale = f->codes.code == EXPERTD_CODE_E4M3   ? fabsf(extreme) / 448
                  : f->codes.code == EXPERTD_CODE_INT8 ? fabsf(extreme) / 127
                                                       : extreme / -8;
    if (f->codes.scale == EXPERTD_DTYPE_F8_E8M0) {
        int exponent = -127;
        if (extreme != 0) {
            (void)frexpf(extreme, &exponent); // the magnitude is in [2^(exponent - 1), 2^exponent)
            exponent -= 3;
            exponent = exponent < -127 ? -127 : exponent;
        }
        *(uint8_t *)out = (uint8_t)(exponent + 127);
        return ldexpf(1.0f, exponent);
    }
    expertd_dtype_narrow(&scale, 1, f->codes.scale, out);
    expertd_dtype_widen(f->codes.scale, out, 1, &scale);
    return scale;
}

// ---- codes ----
// Loops without branches, which compilers vectorise.

// Rounds to an integer, ties to even. |value| <= 2^22.
static float nearest(float value) {
    return value + 0x1.8p23f - 0x1.8p23f;
}

static float limited(float value, float least, float most) {
    value = value < least ? least : value;
    return value > most ? most : value;
}

static void encode_int8(const float *values, size_t count, uint8_t *codes) {
    for (size_t i = 0; i < count; i++) {
        codes[i] = (uint8_t)(int8_t)nearest(limited(values[i], -127, 127));
    }
}

static void encode_int4(const float *values, size_t count, uint8_t *codes) {
    for (size_t i = 0; i < count; i++) {
        codes[i] = (uint8_t)(nearest(limited(values[i], -8, 7)) + 8);
    }
}

static void encode_e2m1(const float *values, size_t count, uint8_t *codes) {
    for (size_t i = 0; i < count; i++) {
        float m = fabsf(values[i]);
        int code = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) + (m > 5.0f);
        codes[i] = (uint8_t)(code | (values[i] < 0 ? 8 : 0));
    }
}

static void encode_e4m3(const float *values, size_t count, uint8_t *codes) {
    for (size_t i = 0; i < count; i++) {
        float m = limited(fabsf(values[i]), 0, 448);
        uint32_t bits = expertd_f32_bits(m);
        uint32_t normal = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120 << 3); // keeps 3 of 23 bits; the bias 127 becomes 7
        uint32_t subnormal = expertd_f32_bits(m + 0x1p14f) - expertd_f32_bits(0x1p14f); // the last bit of 2^14 is 2^-9
        codes[i] = (uint8_t)((m < 0x1p-6f ? subnormal : normal) | (values[i] < 0 ? 0x80 : 0));
    }
}

// values: at most SCALE_K_MAX of one scale group.
static void encode(enum expertd_weight_code code, const float *values, size_t count, uint8_t *codes) {
    switch (code) {
    case EXPERTD_CODE_E4M3:
        encode_e4m3(values, count, codes);
        break;
    case EXPERTD_CODE_E2M1:
        encode_e2m1(values, count, codes);
        break;
    case EXPERTD_CODE_INT4:
        encode_int4(values, count, codes);
        break;
    default:
        encode_int8(values, count, codes);
        break;
    }
}

// Divides a row by its scales, and writes its codes. scales: the values of its groups; 0: all weights of the group are 0.
static void write_codes(const struct quantise_format *f, size_t k, const float *row, const float *scales, uint8_t *out) {
    float values[SCALE_K_MAX];
    uint8_t codes[SCALE_K_MAX];
    for (size_t first = 0; first < k; first += f->codes.scale_k) {
        size_t count = k - first < f->codes.scale_k ? k - first : f->codes.scale_k;
        float scale = scales[first / f->codes.scale_k], divisor = scale == 0 ? 1 : scale;
        for (size_t i = 0; i < count; i++) {
            values[i] = row[first + i] / divisor;
        }
        encode(f->codes.code, values, count, f->bits == 8 ? out + first : codes);
        for (size_t i = 0; f->bits == 4 && i < count; i += 2) {
            out[(first + i) / 2] = (uint8_t)(codes[i] | (i + 1 < count ? codes[i + 1] << 4 : 0));
        }
    }
}

// The rows [first, first + rows), which share scales.
static FALLIBLE quantise_block(const struct quantise_format *f, const struct expertd_weight_source *source, size_t first,
                               size_t rows, size_t k, const struct buffers *b) {
    size_t groups = blocks_of(k, f->codes.scale_k), size = expertd_dtype_size(f->codes.scale);
    char *scales = b->scales + first / f->columns * groups * size;
    memset(b->extremes, 0, groups * sizeof *b->extremes);
    for (size_t n = first; n < first + rows; n++) {
        read_row(source, n, k, b->row);
        TRY(find_extremes(f, n, k, b));
    }
    for (size_t g = 0; g < groups; g++) {
        b->extremes[g] = write_scale(f, b->extremes[g], scales + g * size);
    }
    for (size_t n = first; n < first + rows; n++) {
        if (rows > 1) { // the buffer has the last row
            read_row(source, n, k, b->row);
        }
        write_codes(f, k, b->row, b->extremes, b->codes + n * row_bytes(f, k));
    }
    return OK;
}

FALLIBLE quantise_rows(const struct quantise_format *f, const struct expertd_weight_source *source, size_t n, size_t k,
                       void *staging, struct quantised_rows *out) {
    struct buffers b;
    divide(f, n, k, staging, &b);
    for (size_t first = 0; first < n; first += f->columns) {
        TRY(quantise_block(f, source, first, n - first < f->columns ? n - first : f->columns, k, &b));
    }
    size_t groups = blocks_of(k, f->codes.scale_k), stride = f->bits == 8 ? k : 2 * row_bytes(f, k);
    *out = (struct quantised_rows){.format = f->codes, .scales = groups};
    out->source = (struct expertd_quantised_source){
        .codes = {.data = b.codes,
                  .bits = f->bits,
                  .word = 8,
                  .n_stride = stride,
                  .n_word_stride = 8 * stride,
                  .k_stride = 1,
                  .k_word_stride = 8},
        .scales = b.scales,
        .scale_columns = f->columns,
        .scale_n_stride = groups,
        .scale_g_stride = 1,
    };
    return OK;
}
