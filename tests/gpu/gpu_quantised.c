// gpu-quantised [--device cuda|sim]: checks products with quantised weights on a device in every kind of format. Do the tiles for
// decode and for prefill, by mma.sync and by wgmma, give equal bits, and how large is the error against sums in double? K with a
// remainder, and without one, which wgmma needs. On devices with the arithmetic sm_90 the bits must be the twin's. On other GPUs
// differing bits of two variants are reported and are no failure, since variants that are not known to be equal are never mixed.
// Exit status 1 on failure.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expertd/kernels/quantised.h"
#include "kernels/device/device_codes.h"
#include "kernels/device/device_plan.h"
#include "tests/gpu/pieces.h"

enum { N = 136, K_MAX = 640, ROWS = 150, STRIDE = K_MAX * 2, OUT_STRIDE = N * 2, SCALES_MAX = K_MAX / 16 + 1 };
static const size_t DEPTHS[] = {600, K_MAX};

static const struct {
    const char *name;
    struct expertd_quantised_format format;
} FORMATS[] = {
    {"e4m3 128x128", {EXPERTD_CODE_E4M3, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, true, 128}},
    {"e5m2 of columns", {EXPERTD_CODE_E5M2, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, false, 0}},
    {"mxfp8", {EXPERTD_CODE_E4M3, EXPERTD_DTYPE_F8_E8M0, EXPERTD_GLOBAL_NONE, false, false, false, 32}},
    {"mxfp4", {EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E8M0, EXPERTD_GLOBAL_NONE, false, false, false, 32}},
    {"nvfp4", {EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E4M3, EXPERTD_GLOBAL_MULTIPLY, false, false, false, 16}},
    {"int4 g128 with zero points", {EXPERTD_CODE_INT4, EXPERTD_DTYPE_F16, EXPERTD_GLOBAL_NONE, true, false, false, 128}},
    {"int8 g32", {EXPERTD_CODE_INT8, EXPERTD_DTYPE_BF16, EXPERTD_GLOBAL_NONE, false, false, false, 32}},
};

struct check {
    struct pieces pieces;
    size_t k;
    uint8_t codes[N * K_MAX], zeros[N * SCALES_MAX], scales[N * SCALES_MAX * 4];
    _Alignas(64) char x[ROWS * STRIDE], staging[ROWS * OUT_STRIDE];
};

static void fill_scale(struct check *c, enum expertd_dtype dtype, uint8_t *out) {
    float value = ldexpf(1.0f + (float)(pieces_random(&c->pieces) % 1024) / 1024, (int)(pieces_random(&c->pieces) % 5) - 4);
    if (dtype == EXPERTD_DTYPE_F8_E8M0) {
        *out = (uint8_t)(122 + pieces_random(&c->pieces) % 8);
    } else if (dtype == EXPERTD_DTYPE_F8_E4M3) {
        *out = (uint8_t)(0x28 + pieces_random(&c->pieces) % 0x20);
    } else {
        expertd_dtype_narrow(&value, 1, dtype, out);
    }
}

static struct expertd_code_words rows_of_codes(const void *data, size_t k, unsigned bits) {
    return (struct expertd_code_words){
        .data = data, .bits = bits, .word = 8, .n_stride = k, .n_word_stride = 8 * k, .k_stride = 1, .k_word_stride = 8};
}

// Packs random finite codes in the host's layout. The caller frees the result.
static void *pack(struct check *c, const struct expertd_quantised_format *f) {
    size_t scales = device_codes_scales(f, c->k), size = expertd_dtype_size(f->scale), bits = device_codes_bits(f->code);
    for (size_t i = 0; i < sizeof c->codes; i++) {
        uint8_t code = (uint8_t)pieces_random(&c->pieces);
        bool not_finite =
            f->code == EXPERTD_CODE_E4M3 ? (code & 0x7f) == 0x7f : f->code == EXPERTD_CODE_E5M2 && (code & 0x7c) == 0x7c;
        c->codes[i] = not_finite ? code & 0xbf : code;
    }
    for (size_t i = 0; i < N * scales; i++) {
        c->zeros[i] = (uint8_t)(pieces_random(&c->pieces) % 17);
        fill_scale(c, f->scale, c->scales + i * size);
    }
    struct expertd_quantised_source source = {
        .codes = rows_of_codes(c->codes, c->k, (unsigned)bits),
        .scales = c->scales,
        .scale_columns = f->scale_of_panel ? 128 : 1,
        .scale_n_stride = scales,
        .scale_g_stride = 1,
        .global = 0.0117f,
    };
    if (f->zero_points) {
        source.zeros = rows_of_codes(c->zeros, scales, 8);
    }
    void *packed = NULL;
    if (posix_memalign(&packed, 64, expertd_quantised_group_bytes(f, c->k, N)) != 0 ||
        err_is(expertd_pack_quantised(&source, f, c->k, N, packed))) {
        fprintf(stderr, "gpu-quantised: %s\n", expertd_err_message());
        exit(1);
    }
    return packed;
}

static struct expertd_device_matrix upload_matrix(struct check *c, const struct expertd_quantised_format *f, const void *packed) {
    struct device_codes_size bytes = device_codes_bytes(f, N, c->k);
    char *host = malloc(bytes.codes + bytes.scales + bytes.zeros + 1);
    float global = 0.0117f;
    if (!host) {
        exit(1);
    }
    device_codes_pack(f, packed, N, c->k, host, host + bytes.codes, host + bytes.codes + bytes.scales);
    struct expertd_device_matrix matrix = {.dtype = EXPERTD_DTYPE_BF16,
                                           .groups = 1,
                                           .n = N,
                                           .k = (uint32_t)c->k,
                                           .data = pieces_upload(&c->pieces, host, bytes.codes)};
    matrix.quantised =
        (struct expertd_device_quantised){.format = *f, .scales = pieces_upload(&c->pieces, host + bytes.codes, bytes.scales)};
    matrix.quantised.zeros = f->zero_points ? pieces_upload(&c->pieces, host + bytes.codes + bytes.scales, bytes.zeros) : NULL;
    matrix.quantised.globals = f->global != EXPERTD_GLOBAL_NONE ? pieces_upload(&c->pieces, &global, sizeof global) : NULL;
    free(host);
    return matrix;
}

static void multiply(struct check *c, const struct expertd_device_matrix *matrix, enum expertd_device_variant variant,
                     uint16_t *out) {
    struct expertd_device_error error;
    struct expertd_device_tile tiles[ROWS];
    int32_t rows = ROWS;
    struct expertd_device_down args = {.down = *matrix, .out_stride = OUT_STRIDE};
    uint32_t count = device_cut_tiles(&rows, 1, 0, device_variant_rows(variant), tiles);
    memset(c->staging, 0xff, sizeof c->staging);
    args.rows = (struct expertd_device_rows){.dtype = EXPERTD_DTYPE_BF16,
                                             .data = pieces_upload(&c->pieces, c->x, sizeof c->x),
                                             .stride = STRIDE,
                                             .variant = variant,
                                             .tiles = pieces_upload(&c->pieces, tiles, count * sizeof *tiles),
                                             .tile_count = count,
                                             .rows = ROWS};
    args.out = pieces_upload(&c->pieces, c->staging, sizeof c->staging);
    pieces_must(&c->pieces, c->pieces.table->down(c->pieces.device, &args, &error), &error);
    pieces_download(&c->pieces, args.out, sizeof c->staging, out);
}

// Dequantises the weights of a column.
static void dequantise_column(const struct expertd_quantised_format *f, const void *packed, size_t n, size_t depth, float *out) {
    static uint16_t one_hot[K_MAX];
    for (size_t k = 0; k < depth; k++) {
        one_hot[k] = 0x3f80; // 1
        out[k] = expertd_dot_quantised_sm90_reference(f, packed, n, EXPERTD_DTYPE_BF16, one_hot, depth);
        one_hot[k] = 0;
    }
}

// The largest error of an element, relative to the last place of bf16 of the sum of its products' magnitudes.
static double worst_error(const struct check *c, const struct expertd_quantised_format *f, const void *packed,
                          const uint16_t *got) {
    double worst = 0;
    for (size_t n = 0; n < N; n++) {
        float weights[K_MAX];
        dequantise_column(f, packed, n, c->k, weights);
        for (size_t r = 0; r < ROWS; r++) {
            double exact = 0, magnitude = 0;
            for (size_t k = 0; k < c->k; k++) {
                uint16_t x;
                memcpy(&x, c->x + r * STRIDE + k * 2, sizeof x);
                double product = (double)expertd_f32_from_bf16(x) * (double)weights[k];
                exact += product;
                magnitude += fabs(product);
            }
            double error = fabs((double)expertd_f32_from_bf16(got[r * N + n]) - exact) / (magnitude * 0x1p-8);
            worst = error > worst || isnan(error) ? error : worst;
        }
    }
    return worst;
}

static size_t count_differing(const uint16_t *a, const uint16_t *b) {
    size_t count = 0;
    for (size_t i = 0; i < ROWS * N; i++) {
        count += a[i] != b[i];
    }
    return count;
}

static size_t count_unlike_twin(const struct check *c, const struct expertd_quantised_format *f, const void *packed,
                                const uint16_t *got) {
    size_t count = 0;
    for (size_t i = 0; i < ROWS * N; i++) {
        count += got[i] != expertd_bf16_from_f32(expertd_dot_quantised_sm90_reference(f, packed, i % N, EXPERTD_DTYPE_BF16,
                                                                                      c->x + i / N * STRIDE, c->k));
    }
    return count;
}

// The number of the variant's outputs that differ from `first`, the outputs of mma_64.
static size_t compare_variant(struct check *c, const struct expertd_device_matrix *matrix, enum expertd_device_variant variant,
                              const uint16_t *first) {
    static uint16_t out[ROWS * N];
    multiply(c, matrix, variant, out);
    size_t count = count_differing(first, out);
    printf("; %s and mma_64 differ in %zu of %d elements", device_variant_name(variant), count, ROWS * N);
    return count;
}

static bool check_format(struct check *c, size_t i) {
    static uint16_t large[ROWS * N];
    const struct expertd_quantised_format *f = &FORMATS[i].format;
    const struct expertd_device_facts *facts = &c->pieces.devices->facts;
    void *packed = pack(c, f);
    struct expertd_device_matrix matrix = upload_matrix(c, f, packed);
    multiply(c, &matrix, EXPERTD_DEVICE_MMA_64, large);
    double worst = worst_error(c, f, packed, large);
    printf("%-27s k %zu: worst error %.3f of bf16's last place", FORMATS[i].name, c->k, worst);
    size_t differ = compare_variant(c, &matrix, EXPERTD_DEVICE_MMA_16, large), unlike = 0;
    struct device_network_shape shape = {(uint32_t)c->k, 64, f, f, false};
    struct expertd_device_variants variants;
    if (err_is(device_variants_of(&facts->bf16, &shape, EXPERTD_DTYPE_BF16, EXPERTD_DEVICE_VARIANTS, &variants))) {
        return false;
    }
    for (enum expertd_device_variant v = EXPERTD_DEVICE_WGMMA_8; v < EXPERTD_DEVICE_VARIANTS; v++) {
        differ += variants.has >> v & 1 ? compare_variant(c, &matrix, v, large) : 0;
    }
    bool has_twin = strcmp(facts->arithmetic, "sm_90") == 0;
    if (has_twin) {
        unlike = count_unlike_twin(c, f, packed, large);
        printf(", the twin in %zu", unlike);
    }
    printf("\n");
    free(packed);
    pieces_drop(&c->pieces);
    return worst <= 1.0 && (!has_twin || differ + unlike == 0);
}

int main(int argc, char **argv) {
    static struct check c;
    pieces_open(&c.pieces, "gpu-quantised", argc, argv);
    for (size_t i = 0; i < ROWS * STRIDE / 2; i++) {
        float value = ((float)(pieces_random(&c.pieces) % 2001) - 1000) / 500;
        uint16_t rounded = expertd_bf16_from_f32(value);
        memcpy(c.x + i * 2, &rounded, 2);
    }
    bool good = true;
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS * 2; i++) {
        c.k = DEPTHS[i % 2];
        good &= check_format(&c, i / 2);
    }
    pieces_close(&c.pieces);
    return good ? 0 : 1;
}
