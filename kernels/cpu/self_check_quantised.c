// The part of the self-check for quantised weights. Panels are random bytes, with NaN codes and scales among them. Many kernels
// have faster code for rows and codes without special values, so each format is also checked with plain ones: no NaN, Inf or values
// near the flush.
#include <math.h>
#include <string.h>

#include "expertd/base/dtype.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/layout/quantised_layout.h"

enum { CHECK_K = 64, CHECK_ROWS = 9, CHECK_PANELS = 2, PANEL_BYTES_MAX = 8 << 10 };

// k: a multiple of every scale group, which some kernels require, and one that leaves a short last group.
static const size_t DEPTHS[] = {CHECK_K, 39};

struct check {
    uint64_t random;
    size_t k;
    uint16_t x[CHECK_ROWS][CHECK_K]; // the first k of each row are used
    _Alignas(64) uint8_t panel[PANEL_BYTES_MAX];
    float got[CHECK_ROWS * EXPERTD_KERNEL_PANEL], want[CHECK_ROWS * EXPERTD_KERNEL_PANEL];
};

static uint32_t next(struct check *check) {
    check->random ^= check->random << 13;
    check->random ^= check->random >> 7;
    check->random ^= check->random << 17;
    return (uint32_t)(check->random >> 16);
}

// Few codes and scales are NaN or Inf, so that most sums are finite; with `plain` none is. Rows' elements are about 1, and some are
// near the flush; with `plain` all are about 1. In the first half of a plain panel all 8-bit floats are normal.
static void fill(struct check *check, size_t bytes, bool plain) {
    for (size_t i = 0; i < bytes; i++) {
        uint8_t byte = (uint8_t)next(check);
        check->panel[i] = (byte & 0x7c) == 0x7c && (plain || next(check) % 16) ? byte ^ 0x40 : byte;
        check->panel[i] |= plain && i < bytes / 2 && !(byte & 0x78) ? 8 : 0;
    }
    for (size_t i = 0; i < CHECK_ROWS * CHECK_K; i++) {
        uint32_t bits = next(check);
        uint32_t exponent = plain || i % 3 ? 124 + (bits >> 16) % 4 : (bits >> 16) % 24;
        check->x[i / CHECK_K][i % CHECK_K] = (uint16_t)((bits & 0x807fu) | exponent << 7);
    }
}

// Zero points of INT4 must be at most EXPERTD_INT4_ZERO_MAX.
static void fill_zeros(struct check *check, const struct expertd_quantised_format *format) {
    struct quantised_layout layout = quantised_layout(format, check->k);
    for (size_t g = 0; format->zero_points && g < layout.scales; g++) {
        uint8_t *zeros = check->panel + quantised_zeros_at(&layout, g, check->k);
        for (size_t c = 0; format->code == EXPERTD_CODE_INT4 && c < EXPERTD_KERNEL_PANEL; c++) {
            zeros[c] = (uint8_t)(next(check) % (EXPERTD_INT4_ZERO_MAX + 1));
        }
    }
}

static int same(const float *got, const float *want, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (expertd_f32_bits(got[i]) != expertd_f32_bits(want[i]) && !(isnan(got[i]) && isnan(want[i]))) {
            return 0;
        }
    }
    return 1;
}

// The same product by the macrokernel, if the backend has one: with the same panel twice, and again with rows_cached.
static int same_by_macrokernel(struct check *check, const struct kernel_backend *backend,
                               const struct expertd_quantised_format *format, const void *const *rows, size_t count) {
    _Alignas(64) char scratch[KERNEL_SCRATCH_BYTES];
    _Alignas(64) float sums[CHECK_ROWS * KERNEL_SUMS];
    const void *panels[CHECK_PANELS] = {check->panel, check->panel};
    struct macrokernel_args call = {
        .x = rows, .rows = count, .panels = panels, .count = CHECK_PANELS, .k = check->k, .sums = sums, .scratch = scratch};
    for (size_t calls = 0; backend->bf16.quantised_large_m && calls < 2; calls++) {
        backend->bf16.quantised_large_m(&call, format);
        call.rows_cached = true;
        for (size_t i = 0; i < count * CHECK_PANELS; i++) {
            size_t r = i / CHECK_PANELS, panel = i % CHECK_PANELS;
            memcpy(check->got, sums + r * KERNEL_SUMS + panel * EXPERTD_KERNEL_PANEL, EXPERTD_KERNEL_PANEL * sizeof *sums);
            if (!same(check->got, check->want + r * EXPERTD_KERNEL_PANEL, EXPERTD_KERNEL_PANEL)) {
                return 0;
            }
        }
    }
    return 1;
}

// The same rows widened to f32.
static int check_f32_rows(struct check *check, const struct kernel_backend *backend,
                          const struct expertd_quantised_format *format) {
    float wide[CHECK_ROWS][CHECK_K];
    const void *rows[CHECK_ROWS];
    for (size_t r = 0; r < CHECK_ROWS; r++) {
        expertd_dtype_widen(EXPERTD_DTYPE_BF16, check->x[r], CHECK_K, wide[r]);
        rows[r] = wide[r];
    }
    struct panel_args args = {rows, CHECK_ROWS, check->panel, check->k, check->got, EXPERTD_KERNEL_PANEL, EXPERTD_KERNEL_PANEL};
    backend->f32.quantised(&args, format);
    args.out = check->want;
    backend_twin(backend)->f32.quantised(&args, format);
    return same(check->got, check->want, CHECK_ROWS * EXPERTD_KERNEL_PANEL);
}

static int check_format(struct check *check, const struct kernel_backend *backend, const struct expertd_quantised_format *format,
                        bool plain) {
    fill(check, expertd_quantised_group_bytes(format, check->k, EXPERTD_KERNEL_PANEL), plain);
    fill_zeros(check, format);
    if (format->global != EXPERTD_GLOBAL_NONE) { // the global scale; 2^-127 is subnormal, so a flush would change it
        memcpy(check->panel, &(float){plain ? 0.0117f : 0x1p-127f}, sizeof(float));
    }
    quantised_mark_special(format, check->k, check->panel);
    const void *rows[CHECK_ROWS];
    for (size_t r = 0; r < CHECK_ROWS; r++) {
        rows[r] = check->x[r];
    }
    for (size_t count = 1; count <= CHECK_ROWS; count += CHECK_ROWS - 1) { // small m, and larger
        struct panel_args args = {rows, count, check->panel, check->k, check->got, EXPERTD_KERNEL_PANEL, EXPERTD_KERNEL_PANEL};
        backend->bf16.quantised(&args, format);
        args.out = check->want;
        backend_twin(backend)->bf16.quantised(&args, format);
        if (!same(check->got, check->want, count * EXPERTD_KERNEL_PANEL) ||
            !same_by_macrokernel(check, backend, format, rows, count)) {
            return 0;
        }
    }
    return check_f32_rows(check, backend, format);
}

bool quantised_self_check(const struct kernel_backend *backend) {
    static const struct expertd_quantised_format CHECKED[] = {
        {.code = EXPERTD_CODE_E2M1, .scale = EXPERTD_DTYPE_F8_E8M0, .scale_k = 32},
        {.code = EXPERTD_CODE_E4M3, .scale = EXPERTD_DTYPE_F32},
        {.code = EXPERTD_CODE_INT4, .scale = EXPERTD_DTYPE_F16, .zero_points = true, .scale_k = 16},
        {.code = EXPERTD_CODE_INT8, .scale = EXPERTD_DTYPE_BF16, .scale_k = 32},
        {.code = EXPERTD_CODE_INT8, .scale = EXPERTD_DTYPE_F32, .zero_points = true, .scale_of_panel = true, .scale_k = 16},
        {.code = EXPERTD_CODE_INT4, .scale = EXPERTD_DTYPE_BF16, .scale_k = 128},
        {.code = EXPERTD_CODE_E2M1, .scale = EXPERTD_DTYPE_F8_E4M3, .global = EXPERTD_GLOBAL_DIVIDE, .scale_k = 16},
        {.code = EXPERTD_CODE_UINT4, .scale = EXPERTD_DTYPE_F32, .minima = true, .scale_k = 32},
        {.code = EXPERTD_CODE_INT8, .scale = EXPERTD_DTYPE_F16, .minima = true, .scale_k = 16},
        {.code = EXPERTD_CODE_UINT4, .scale = EXPERTD_DTYPE_BF16, .minima = true, .scale_k = 64},
        {.code = EXPERTD_CODE_IQ4, .scale = EXPERTD_DTYPE_F16, .scale_k = 32},
        {.code = EXPERTD_CODE_UINT4, .scale = EXPERTD_DTYPE_I8, .minima = true, .scale_k = 32},
    };
    struct check check = {.random = 88172645463325252u};
    for (size_t i = 0; i < 4 * sizeof CHECKED / sizeof *CHECKED; i++) {
        check.k = DEPTHS[i / 2 % 2];
        if (!check_format(&check, backend, &CHECKED[i / 4], i % 2)) {
            return false;
        }
    }
    return true;
}
