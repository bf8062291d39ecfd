// The loops over one row, compiled once per instruction set: rows_TARGET.c defines ROW_TARGET(name), which names its copies, and
// includes this once. Plain C that the compiler vectorises; every step is IEEE's in fp32, so all copies give the same bits.
#include <math.h>
#include <string.h>

#include "kernels/activation.h"
#include "kernels/combine.h"
#include "kernels/cpu/backends.h"
#include "kernels/finish.h"
#include "kernels/scalar_math_inline.h"

enum { ROW_BLOCK = COMBINE_BLOCK };

static void row_add(const float *restrict values, const float *restrict bias, size_t count, float *restrict out) {
    if (!bias) {
        memcpy(out, values, count * sizeof *out);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = values[i] + bias[i];
    }
}

static void row_narrow(const float *restrict values, size_t count, enum dtype dtype, uint8_t *restrict out) {
    if (dtype != DTYPE_BF16) {
        dtype_narrow(values, count, dtype, out);
        return;
    }
    uint16_t narrow[ROW_BLOCK];
    for (size_t i = 0; i < count; i++) {
        narrow[i] = bf16_from_f32(values[i]);
    }
    memcpy(out, narrow, count * sizeof *narrow);
}

static void row_widen(const uint8_t *restrict values, size_t count, enum dtype dtype, float *restrict out) {
    if (dtype != DTYPE_BF16) {
        dtype_widen(dtype, values, count, out);
        return;
    }
    uint16_t narrow[ROW_BLOCK];
    memcpy(narrow, values, count * sizeof *narrow);
    for (size_t i = 0; i < count; i++) {
        out[i] = f32_from_bf16(narrow[i]);
    }
}

// Comparisons with NaN are false, so a NaN stays; with an infinite limit nothing changes.
static inline float row_at_most(float x, float limit) {
    return x > limit ? limit : x;
}

static inline float row_within(float x, float limit) {
    float upper = row_at_most(x, limit);
    return upper < -limit ? -limit : upper;
}

struct row_limits {
    float gate, activated, up; // INFINITY: none
    float alpha;
};

static struct row_limits row_limits_of(const struct activation *a) {
    float limit = a->limit == 0 ? INFINITY : a->limit;
    struct row_limits limits = {INFINITY, INFINITY, INFINITY, a->alpha};
    if (a->kind == ACTIVATION_SWIGLU_OAI || a->clamp == CLAMP_BEFORE) {
        limits.gate = limits.up = limit;
    } else if (a->clamp == CLAMP_AFTER) {
        limits.activated = limits.up = limit;
    }
    return limits;
}

static void row_silu(const float *restrict gate, float *restrict up, size_t count, const struct row_limits *limits) {
    float gate_limit = limits->gate, activated_limit = limits->activated, up_limit = limits->up;
    for (size_t i = 0; i < count; i++) {
        float activated = row_at_most(math_silu(row_at_most(gate[i], gate_limit)), activated_limit);
        up[i] = activated * row_within(up[i], up_limit);
    }
}

static void row_swiglu_oai(const float *restrict gate, float *restrict up, size_t count, const struct row_limits *limits) {
    float gate_limit = limits->gate, up_limit = limits->up, alpha = limits->alpha;
    for (size_t i = 0; i < count; i++) {
        float g = row_at_most(gate[i], gate_limit);
        float u = row_within(up[i], up_limit);
        up[i] = (u + 1.0f) * (g / (1.0f + math_exp(-(alpha * g))));
    }
}

static void row_relu2(float *restrict up, size_t count, const struct row_limits *limits) {
    float up_limit = limits->up;
    for (size_t i = 0; i < count; i++) {
        float u = row_within(up[i], up_limit);
        float r = u < 0.0f ? 0.0f : u;
        up[i] = r * r;
    }
}

// Adds the biases of columns [begin, begin + count) and leaves h in `up`.
static void row_activate(const struct activation_args *args, size_t begin, size_t count, float *restrict up) {
    struct row_limits limits = row_limits_of(args->activation);
    float gate[ROW_BLOCK];
    row_add(args->up + begin, args->up_bias ? args->up_bias + begin : NULL, count, up);
    if (activation_is_gated(args->activation)) {
        row_add(args->gate + begin, args->gate_bias ? args->gate_bias + begin : NULL, count, gate);
    }
    switch (args->activation->kind) {
    case ACTIVATION_SILU:
        row_silu(gate, up, count, &limits);
        return;
    case ACTIVATION_SWIGLU_OAI:
        row_swiglu_oai(gate, up, count, &limits);
        return;
    case ACTIVATION_RELU2:
        row_relu2(up, count, &limits);
        return;
    default:
        INVARIANT(!"an activation that is computed");
    }
}

void ROW_TARGET(activation)(const struct activation_args *args) {
    size_t size = dtype_size(args->dtype);
    for (size_t begin = 0; begin < args->width; begin += ROW_BLOCK) {
        size_t count = args->width - begin < ROW_BLOCK ? args->width - begin : ROW_BLOCK;
        float up[ROW_BLOCK];
        row_activate(args, begin, count, up);
        row_narrow(up, count, args->dtype, (uint8_t *)args->out + begin * size);
    }
}

static void row_accumulate(float *restrict sum, const float *restrict row, const float *weight, size_t count) {
    if (!weight) {
        for (size_t i = 0; i < count; i++) {
            sum[i] = sum[i] + row[i];
        }
        return;
    }
    float w = *weight;
    for (size_t i = 0; i < count; i++) {
        sum[i] = __builtin_fmaf(w, row[i], sum[i]);
    }
}

static void row_scale(float *sum, float scale, size_t count) {
    for (size_t i = 0; i < count; i++) {
        sum[i] *= scale;
    }
}

void ROW_TARGET(combine)(const struct combine_args *args) {
    size_t size = dtype_size(args->dtype), out_size = dtype_size(args->output_dtype);
    for (size_t begin = 0; begin < args->width; begin += COMBINE_BLOCK) {
        size_t count = args->width - begin < COMBINE_BLOCK ? args->width - begin : COMBINE_BLOCK;
        float sum[COMBINE_BLOCK] = {0}, row[COMBINE_BLOCK];
        for (size_t j = 0; j < args->choices; j++) {
            if (args->rows[j]) {
                row_widen((const uint8_t *)args->rows[j] + begin * size, count, args->dtype, row);
                row_accumulate(sum, row, args->weights ? &args->weights[j] : NULL, count);
            }
        }
        if (args->routed_scale != 1.0f) {
            row_scale(sum, args->routed_scale, count);
        }
        if (args->shared) {
            row_widen((const uint8_t *)args->shared + begin * size, count, args->dtype, row);
            row_accumulate(sum, row, NULL, count);
        }
        row_narrow(sum, count, args->output_dtype, (uint8_t *)args->out + begin * out_size);
    }
}

void ROW_TARGET(exp_minus)(const float *x, float shift, size_t count, float *out) {
    for (size_t i = 0; i < count; i++) {
        out[i] = math_exp(x[i] - shift);
    }
}

void ROW_TARGET(sigmoid)(const float *x, size_t count, float *out) {
    for (size_t i = 0; i < count; i++) {
        out[i] = math_sigmoid(x[i]);
    }
}

void ROW_TARGET(sqrt_softplus)(const float *x, size_t count, float *out) {
    for (size_t i = 0; i < count; i++) {
        out[i] = sqrtf(math_softplus(x[i]));
    }
}

// A row at a time, so that the arrays are known not to overlap.
static void row_add_scaled(const float *restrict partial, float row_scale, const float *restrict column_scales,
                           float *restrict sums) {
    for (size_t c = 0; c < KERNEL_PANEL; c++) {
        sums[c] = __builtin_fmaf(partial[c], row_scale * column_scales[c], sums[c]);
    }
}

void ROW_TARGET(add_scaled)(const struct add_scaled_args *args) {
    for (size_t r = 0; r < args->rows; r++) {
        size_t at = r * KERNEL_PANEL;
        row_add_scaled(args->partial + at, args->row_scales[r], args->column_scales, args->sums + at);
    }
}

void ROW_TARGET(finish)(const struct finish_args *args) {
    float values[KERNEL_PANEL], c[KERNEL_PANEL];
    float alpha = args->alpha, beta = args->beta;
    for (size_t i = 0; i < args->count; i++) {
        values[i] = alpha * args->sums[i];
    }
    if (beta != 0.0f) {
        row_widen(args->c, args->count, args->dtype, c);
        for (size_t i = 0; i < args->count; i++) {
            values[i] = __builtin_fmaf(beta, c[i], values[i]);
        }
    }
    row_narrow(values, args->count, args->dtype, args->out);
}
