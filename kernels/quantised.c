#include "kernels/quantised.h"

#include "kernels/quantised_layout.h"
#include "kernels/sizes.h"

enum {
    SCALE_K_UNIT = 16,
    PANEL_K_BYTES_MAX = 256, // more than a k of a panel takes, with its share of scales and zero points
};

static const char *code_name(enum weight_code code) {
    static const char *const NAMES[CODE_COUNT] = {"E4M3", "E5M2", "E2M1", "INT4", "INT8"};
    return (unsigned)code < CODE_COUNT ? NAMES[code] : "?";
}

static bool is_integer(enum weight_code code) {
    return code == CODE_INT4 || code == CODE_INT8;
}

static bool is_scale(enum dtype dtype) {
    return dtype_is_float16_or_32(dtype) || dtype == DTYPE_F8_E8M0 || dtype == DTYPE_F8_E4M3;
}

FALLIBLE quantised_check(const struct quantised_format *format) {
    if ((unsigned)format->code >= CODE_COUNT) {
        FAIL_FIELD(ERR_INVALID, "code", "code %d of quantised weights is unknown: there are E4M3, E5M2, E2M1, INT4 and INT8",
                   (int)format->code);
    }
    if (!is_scale(format->scale)) {
        FAIL_FIELD(ERR_INVALID, "scale", "scales of quantised weights are %s: they can be F32, BF16, F16, F8_E8M0 or F8_E4M3",
                   dtype_name(format->scale));
    }
    if ((unsigned)format->global > GLOBAL_DIVIDE || (format->global != GLOBAL_NONE && format->scale != DTYPE_F8_E4M3)) {
        FAIL_FIELD(ERR_INVALID, "global", "a global scale goes with scales of F8_E4M3, but these are %s",
                   dtype_name(format->scale));
    }
    if (format->zero_points && !is_integer(format->code)) {
        FAIL_FIELD(ERR_INVALID, "zero_points", "%s codes have no zero points: only INT4 and INT8 do", code_name(format->code));
    }
    if (format->scale_k % SCALE_K_UNIT != 0) {
        FAIL_FIELD(ERR_INVALID, "scale_k", "a scale of quantised weights spans %zu k: it must be a multiple of %d, or 0 for all",
                   format->scale_k, SCALE_K_UNIT);
    }
    return OK;
}

size_t quantised_group_bytes(const struct quantised_format *format, size_t k, size_t n) {
    if (k > SIZE_MAX / PANEL_K_BYTES_MAX) {
        return SIZE_MAX;
    }
    struct quantised_layout layout = quantised_layout(format, k);
    size_t panel = QUANTISED_HEADER;
    if (layout.scales) {
        size_t last = layout.scales - 1;
        panel = quantised_zeros_at(&layout, last, k) + (format->zero_points ? KERNEL_PANEL : 0);
    }
    return size_times(div_up(n, KERNEL_PANEL), panel);
}
