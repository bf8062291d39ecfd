#include "expertd/kernels/quantised.h"

#include "base/err.h"
#include "base/sizes.h"
#include "kernels/layout/quantised_layout.h"

enum {
    SCALE_K_UNIT = 16,
    PANEL_K_BYTES_MAX = 256, // upper bound of a panel's bytes per k, scales, zero points and minima included
};

static const char *code_name(enum expertd_weight_code code) {
    static const char *const NAMES[EXPERTD_CODE_COUNT] = {"E4M3", "E5M2", "E2M1", "INT4", "INT8", "UINT4", "IQ4"};
    return (unsigned)code < EXPERTD_CODE_COUNT ? NAMES[code] : "?";
}

static bool is_integer(enum expertd_weight_code code) {
    return code == EXPERTD_CODE_INT4 || code == EXPERTD_CODE_INT8;
}

static bool is_scale(enum expertd_dtype dtype) {
    return expertd_dtype_is_float16_or_32(dtype) || dtype == EXPERTD_DTYPE_F8_E8M0 || dtype == EXPERTD_DTYPE_F8_E4M3 ||
           dtype == EXPERTD_DTYPE_I8;
}

static FALLIBLE check_minima(const struct expertd_quantised_format *format) {
    if (!format->minima) {
        return OK;
    }
    if (format->code != EXPERTD_CODE_UINT4 && format->code != EXPERTD_CODE_INT8) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "minima", "%s codes have no minima: only UINT4 and INT8 do", code_name(format->code));
    }
    if (format->zero_points || format->scale_of_panel) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "minima", "a format with minima cannot have %s",
                   format->zero_points ? "zero points" : "one scale per panel");
    }
    if (!expertd_dtype_is_float16_or_32(format->scale) && format->scale != EXPERTD_DTYPE_I8) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "minima", "minima need scales of F32, BF16, F16 or I8, but the scales are %s",
                   expertd_dtype_name(format->scale));
    }
    return OK;
}

// Scales of I8, which have super scales.
static FALLIBLE check_super(const struct expertd_quantised_format *format) {
    const enum expertd_weight_code code = format->code;
    if (format->scale != EXPERTD_DTYPE_I8) {
        return OK;
    }
    if (code != EXPERTD_CODE_INT4 && code != EXPERTD_CODE_UINT4 && code != EXPERTD_CODE_IQ4 && code != EXPERTD_CODE_INT8) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "scale", "%s codes have no scales of I8: only INT4, UINT4, IQ4 and INT8 do",
                   code_name(code));
    }
    if (format->zero_points || format->scale_of_panel) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "scale", "a format with scales of I8 cannot have %s",
                   format->zero_points ? "zero points" : "one scale per panel");
    }
    if (format->scale_k == 0 || EXPERTD_SUPER_K % format->scale_k != 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "scale_k", "a scale of I8 spans %zu k: it must span 16, 32, 64, 128 or 256",
                   format->scale_k);
    }
    return OK;
}

FALLIBLE expertd_quantised_check(const struct expertd_quantised_format *format) {
    if ((unsigned)format->code >= EXPERTD_CODE_COUNT) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "code",
                   "code %d of quantised weights is unknown: there are E4M3, E5M2, E2M1, INT4, INT8, UINT4 and IQ4",
                   (int)format->code);
    }
    if (!is_scale(format->scale)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "scale",
                   "scales of quantised weights are %s: they can be F32, BF16, F16, F8_E8M0, F8_E4M3 or I8",
                   expertd_dtype_name(format->scale));
    }
    if ((unsigned)format->global > EXPERTD_GLOBAL_DIVIDE ||
        (format->global != EXPERTD_GLOBAL_NONE && format->scale != EXPERTD_DTYPE_F8_E4M3)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "global", "a global scale needs scales of F8_E4M3, but the scales are %s",
                   expertd_dtype_name(format->scale));
    }
    if (format->zero_points && !is_integer(format->code)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "zero_points", "%s codes have no zero points: only INT4 and INT8 do",
                   code_name(format->code));
    }
    if (format->scale_k % SCALE_K_UNIT != 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "scale_k",
                   "a scale of quantised weights spans %zu k: it must span a multiple of %d, or 0 for the whole of K",
                   format->scale_k, SCALE_K_UNIT);
    }
    TRY(check_super(format));
    return check_minima(format);
}

size_t expertd_quantised_group_bytes(const struct expertd_quantised_format *format, size_t k, size_t n) {
    if (k > SIZE_MAX / PANEL_K_BYTES_MAX) {
        return SIZE_MAX;
    }
    struct quantised_layout layout = quantised_layout(format, k);
    size_t panel = QUANTISED_HEADER;
    if (layout.scales) {
        size_t last = layout.scales - 1;
        panel = quantised_zeros_at(&layout, last, k) + layout.zeros_size;
    }
    return size_times(div_up(n, EXPERTD_KERNEL_PANEL), panel);
}
