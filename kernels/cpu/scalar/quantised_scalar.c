// The kernels for quantised weights of the three scalar backends, in portable C. Each piece of a column is widened once and
// multiplied by all rows.
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/fma_flushed.h"
#include "kernels/cpu/common/quantised_values.h"
#include "kernels/cpu/common/row_sums.h"
#include "kernels/cpu/common/tensor_core.h"

enum { PIECE_K = 256 }; // k widened at a time: a multiple of the step of every arithmetic

enum sum_kind { SUMS_F32, SUMS_BF16, SUMS_BF16_AMX, SUMS_BF16_SM90 };

static float sum_bf16(const uint16_t *x, const float *w, size_t depth, float sum) {
    for (size_t i = 0; i < depth; i += 2) {
        int has_odd = i + 1 < depth;
        sum = fma_flushed(has_odd ? expertd_f32_from_bf16(x[i + 1]) : 0.0f, has_odd ? w[i + 1] : 0.0f, sum);
        sum = fma_flushed(expertd_f32_from_bf16(x[i]), w[i], sum);
    }
    return sum;
}

// TDPBF16PS: in each step of `step` k, even and odd k are summed separately; then sum += even + odd.
static float sum_bf16_amx(const uint16_t *x, const float *w, size_t depth, size_t step, float sum) {
    for (size_t begin = 0, end; begin < depth; begin = end) {
        end = depth - begin < step ? depth : begin + step;
        float even = 0.0f, odd = 0.0f;
        for (size_t i = begin; i < end; i += 2) {
            int has_odd = i + 1 < end;
            even = fma_flushed(expertd_f32_from_bf16(x[i]), w[i], even);
            odd = fma_flushed(has_odd ? expertd_f32_from_bf16(x[i + 1]) : 0.0f, has_odd ? w[i + 1] : 0.0f, odd);
        }
        sum = add_flushed(sum, add_flushed(even, odd));
    }
    return sum;
}

// A Hopper GPU's tensor cores: steps of 16 k from the scale group's first k on.
static float sum_bf16_sm90(const uint16_t *x, const float *w, size_t depth, float sum) {
    enum { STEP_K = 16 };
    for (size_t begin = 0; begin < depth; begin += STEP_K) {
        float factors[STEP_K] = {0}, weights[STEP_K] = {0};
        for (size_t i = begin; i < depth && i < begin + STEP_K; i++) {
            factors[i - begin] = expertd_f32_from_bf16(x[i]);
            weights[i - begin] = w[i];
        }
        sum = tensor_core_add(&TENSOR_CORE_SM90_BF16, factors, weights, sum);
    }
    return sum;
}

static float sum_f32(const float *x, const float *w, size_t depth, float sum) {
    for (size_t i = 0; i < depth; i++) {
        sum = __builtin_fmaf(x[i], w[i], sum);
    }
    return sum;
}

// partials[r]: the partial sums of column c and scale group g.
static void sum_scale_group(const struct panel_args *args, const struct expertd_quantised_format *format,
                            const struct quantised_layout *layout, size_t c, size_t g, enum sum_kind kind, float *partials) {
    const uint8_t *panel = args->panel, *codes = panel + quantised_codes_at(layout, g);
    const uint8_t *zeros = format->zero_points ? panel + quantised_zeros_at(layout, g, args->k) : NULL;
    size_t depth = quantised_depth(layout, g, args->k);
    for (size_t i = 0; i < depth; i += PIECE_K) {
        float w[PIECE_K];
        size_t count = depth - i < PIECE_K ? depth - i : PIECE_K, k = g * layout->scale_k + i;
        for (size_t j = 0; j < count; j++) {
            w[j] = quantised_value(format->code, codes, zeros, i + j, c);
        }
        for (size_t r = 0; r < args->rows; r++) {
            const uint16_t *x = args->x[r];
            switch (kind) {
            case SUMS_F32:
                partials[r] = sum_f32((const float *)args->x[r] + k, w, count, partials[r]);
                break;
            case SUMS_BF16:
                partials[r] = sum_bf16(x + k, w, count, partials[r]);
                break;
            case SUMS_BF16_AMX:
                partials[r] = sum_bf16_amx(x + k, w, count, quantised_tile_k(format), partials[r]);
                break;
            case SUMS_BF16_SM90:
                partials[r] = sum_bf16_sm90(x + k, w, count, partials[r]);
                break;
            }
        }
    }
}

// sums[r] = fma(-(the sum of row r over scale group g), minimum, sums[r])
static void subtract_minimum(const struct panel_args *args, const struct quantised_layout *layout, size_t g, enum sum_kind kind,
                             float minimum, float *sums) {
    const size_t depth = quantised_depth(layout, g, args->k), first = g * layout->scale_k;
    for (size_t r = 0; r < args->rows; r++) {
        float minus;
        if (kind == SUMS_F32) {
            row_sums_minus((const float *)args->x[r] + first, false, depth, depth, &minus);
        } else {
            row_sums_minus((const uint16_t *)args->x[r] + first, true, depth, depth, &minus);
        }
        sums[r] = __builtin_fmaf(minus, minimum, sums[r]);
    }
}

static void multiply(const struct panel_args *args, const struct expertd_quantised_format *format, enum sum_kind kind) {
    struct quantised_layout layout = quantised_layout(format, args->k);
    const uint8_t *panel = args->panel;
    for (size_t c = 0; c < args->columns; c++) {
        float sums[KERNEL_CALL_ROWS] = {0};
        for (size_t g = 0; g < layout.scales; g++) {
            float partials[KERNEL_CALL_ROWS] = {0};
            sum_scale_group(args, format, &layout, c, g, kind, partials);
            float scale = quantised_scale(format, &layout, args->k, panel, g, c);
            for (size_t r = 0; r < args->rows; r++) {
                sums[r] = __builtin_fmaf(partials[r], scale, sums[r]);
            }
            if (format->minima) {
                subtract_minimum(args, &layout, g, kind, quantised_minimum(format, &layout, args->k, panel, g, c), sums);
            }
        }
        for (size_t r = 0; r < args->rows; r++) {
            args->out[r * args->out_stride + c] = sums[r];
        }
    }
}

void scalar_quantised_bf16(const struct panel_args *args, const struct expertd_quantised_format *format) {
    multiply(args, format, SUMS_BF16);
}

void scalar_quantised_f32(const struct panel_args *args, const struct expertd_quantised_format *format) {
    multiply(args, format, SUMS_F32);
}

void scalar_amx_quantised_bf16(const struct panel_args *args, const struct expertd_quantised_format *format) {
    multiply(args, format, SUMS_BF16_AMX);
}

void scalar_sm90_quantised_bf16(const struct panel_args *args, const struct expertd_quantised_format *format) {
    multiply(args, format, SUMS_BF16_SM90);
}
