// The loops over one row (conversions, activations, combine, scores, the epilogue), compiled once per instruction set.
// rows_TARGET.c defines `vec`, LANES, the operations on vectors and ROW_TARGET(name), which names the results, and includes this
// body. Every step is IEEE fp32 arithmetic, so all instruction sets give the same bits.
//
// vec_load, vec_store and their variants read or write n values, 1 to LANES, at any alignment. vec_greater(a, b) is a > b ? a : b
// and vec_less(a, b) is a < b ? a : b, so a NaN in b is returned. vec_times_power(p, s) is p * 2^n for s = MATH_ROUND + n.
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "expertd/kernels/activation.h"
#include "expertd/kernels/combine.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/elements/epilogue.h"
#include "kernels/elements/scalar_math_inline.h"

// ---- conversions

// Values [at, at + n) of a row.
PANEL_INLINE vec row_load(enum expertd_dtype dtype, const void *row, size_t at, size_t n) {
    const uint8_t *bytes = row;
    switch (dtype) {
    case EXPERTD_DTYPE_BF16:
        return vec_load_bf16(bytes + 2 * at, n);
    case EXPERTD_DTYPE_F16:
        return vec_load_f16(bytes + 2 * at, n);
    case EXPERTD_DTYPE_F8_E4M3:
        return vec_load_e4m3(bytes + at, n);
    case EXPERTD_DTYPE_F8_E5M2:
        return vec_load_e5m2(bytes + at, n);
    default:
        return vec_load(bytes + 4 * at, n);
    }
}

// Rounds once.
PANEL_INLINE void row_store(vec x, enum expertd_dtype dtype, void *row, size_t at, size_t n) {
    uint8_t *bytes = row;
    switch (dtype) {
    case EXPERTD_DTYPE_BF16:
        vec_store_bf16(bytes + 2 * at, x, n);
        return;
    case EXPERTD_DTYPE_F16:
        vec_store_f16(bytes + 2 * at, x, n);
        return;
    default:
        vec_store(bytes + 4 * at, x, n);
        return;
    }
}

// `dtype` is a constant in each copy, so that the loop does not branch on it.
PANEL_INLINE void row_widen(enum expertd_dtype dtype, const void *src, size_t count, float *dst) {
    size_t at = 0;
    for (; at + LANES <= count; at += LANES) {
        vec_store(dst + at, row_load(dtype, src, at, LANES), LANES);
    }
    if (at < count) {
        vec_store(dst + at, row_load(dtype, src, at, count - at), count - at);
    }
}

PANEL_INLINE void row_narrow(const float *src, size_t count, enum expertd_dtype dtype, void *dst) {
    size_t at = 0;
    for (; at + LANES <= count; at += LANES) {
        row_store(vec_load(src + at, LANES), dtype, dst, at, LANES);
    }
    if (at < count) {
        row_store(vec_load(src + at, count - at), dtype, dst, at, count - at);
    }
}

void ROW_TARGET(widen)(enum expertd_dtype dtype, const void *src, size_t count, float *dst) {
    switch (dtype) {
    case EXPERTD_DTYPE_BF16:
        row_widen(EXPERTD_DTYPE_BF16, src, count, dst);
        return;
    case EXPERTD_DTYPE_F16:
        row_widen(EXPERTD_DTYPE_F16, src, count, dst);
        return;
    case EXPERTD_DTYPE_F8_E4M3:
        row_widen(EXPERTD_DTYPE_F8_E4M3, src, count, dst);
        return;
    case EXPERTD_DTYPE_F8_E5M2:
        row_widen(EXPERTD_DTYPE_F8_E5M2, src, count, dst);
        return;
    default:
        INVARIANT(dtype == EXPERTD_DTYPE_F32);
        row_widen(EXPERTD_DTYPE_F32, src, count, dst);
        return;
    }
}

PANEL_INLINE void row_from_i32(float *sums, size_t count, enum expertd_dtype to) {
    for (size_t i = 0; i < count; i++) {
        int32_t sum;
        memcpy(&sum, &sums[i], sizeof sum);
        sums[i] = expertd_f32_from_i32(sum, to);
    }
}

void ROW_TARGET(from_i32)(float *sums, size_t count, enum expertd_dtype to) {
    if (to == EXPERTD_DTYPE_F32) { // `to` is a constant in each copy, so that the compiler vectorises the loops
        row_from_i32(sums, count, EXPERTD_DTYPE_F32);
    } else {
        row_from_i32(sums, count, EXPERTD_DTYPE_BF16);
    }
}

void ROW_TARGET(narrow)(const float *src, size_t count, enum expertd_dtype dtype, void *dst) {
    switch (dtype) {
    case EXPERTD_DTYPE_BF16:
        row_narrow(src, count, EXPERTD_DTYPE_BF16, dst);
        return;
    case EXPERTD_DTYPE_F16:
        row_narrow(src, count, EXPERTD_DTYPE_F16, dst);
        return;
    default:
        INVARIANT(dtype == EXPERTD_DTYPE_F32);
        row_narrow(src, count, EXPERTD_DTYPE_F32, dst);
        return;
    }
}

// ---- activations

// Vectors computed in lockstep, step by step. Computed one after the other they would fill the out-of-order window with
// instructions that wait for results (silu to bf16 on Zen 5: 5.8 ns for 16 values one after the other, 4.5 in lockstep).
enum { ROW_LOCKSTEP = 4 };
#define ROW_STEP PANEL_UNROLL for (size_t v = 0; v < vecs; v++)

// math_exp for `vecs` vectors.
PANEL_INLINE void row_exp(vec *x, size_t vecs) {
    vec shifted[ROW_LOCKSTEP], minus_n[ROW_LOCKSTEP], low[ROW_LOCKSTEP], r[ROW_LOCKSTEP], q[ROW_LOCKSTEP];
    ROW_STEP x[v] = vec_greater(vec_set(MATH_EXP_LOW), x[v]);
    ROW_STEP x[v] = vec_less(vec_set(MATH_EXP_HIGH), x[v]);
    ROW_STEP shifted[v] = vec_fma(x[v], vec_set(MATH_LOG2_E), vec_set(MATH_ROUND));
    ROW_STEP minus_n[v] = vec_sub(vec_set(MATH_ROUND), shifted[v]);
    ROW_STEP x[v] = vec_fma(minus_n[v], vec_set(MATH_LN2_HIGH), x[v]); // the high part of the remainder
    ROW_STEP low[v] = vec_mul(minus_n[v], vec_set(MATH_LN2_LOW));
    ROW_STEP r[v] = vec_add(x[v], low[v]);
    ROW_STEP q[v] = vec_fma(vec_set(0x1.6a224ep-10f), r[v], vec_set(0x1.123b02p-7f));
    ROW_STEP q[v] = vec_fma(q[v], r[v], vec_set(0x1.5558f8p-5f));
    ROW_STEP q[v] = vec_fma(q[v], r[v], vec_set(0x1.555490p-3f));
    ROW_STEP q[v] = vec_fma(q[v], r[v], vec_set(0x1.fffffcp-2f));
    ROW_STEP r[v] = vec_mul(r[v], r[v]);
    ROW_STEP q[v] = vec_fma(r[v], q[v], low[v]);
    ROW_STEP x[v] = vec_add(vec_set(1.0f), vec_add(x[v], q[v]));
    ROW_STEP x[v] = vec_times_power(x[v], shifted[v]);
}

// 1 + exp(-x).
PANEL_INLINE void row_one_and_exp_of_minus(vec *x, size_t vecs) {
    ROW_STEP x[v] = vec_negate(x[v]);
    row_exp(x, vecs);
    ROW_STEP x[v] = vec_add(vec_set(1.0f), x[v]);
}

struct row_limits {
    float gate, activated, up; // INFINITY: none
    float alpha;
};

static struct row_limits row_limits_of(const struct expertd_activation *a) {
    float limit = a->limit == 0 ? INFINITY : a->limit;
    struct row_limits limits = {INFINITY, INFINITY, INFINITY, a->alpha};
    if (a->kind == EXPERTD_ACTIVATION_SWIGLU_OAI || a->clamp == EXPERTD_CLAMP_BEFORE) {
        limits.gate = limits.up = limit;
    } else if (a->clamp == EXPERTD_CLAMP_AFTER) {
        limits.activated = limits.up = limit;
    }
    return limits;
}

PANEL_INLINE vec row_at_most(vec x, float limit) {
    return vec_less(vec_set(limit), x);
}

PANEL_INLINE vec row_within(vec x, float limit) {
    return vec_greater(vec_set(-limit), row_at_most(x, limit));
}

// Loads sums of a product from `at` on, n of each of `vecs` vectors, and adds their biases, if any.
PANEL_INLINE void row_sums(const float *sums, const float *bias, size_t at, size_t vecs, size_t n, vec *out) {
    ROW_STEP out[v] = vec_load(sums + at + v * LANES, n);
    if (bias) {
        ROW_STEP out[v] = vec_add(out[v], vec_load(bias + at + v * LANES, n));
    }
}

// silu and gelu_tanh: up becomes the activation's output.
PANEL_INLINE void row_gated(vec *gate, vec *up, size_t vecs, const struct row_limits *limits, enum expertd_activation_kind kind) {
    vec denominator[ROW_LOCKSTEP];
    ROW_STEP gate[v] = row_at_most(gate[v], limits->gate);
    ROW_STEP denominator[v] = gate[v];
    if (kind == EXPERTD_ACTIVATION_GELU_TANH) {
        ROW_STEP denominator[v] = vec_fma(vec_set(MATH_GELU_CUBIC), vec_mul(gate[v], gate[v]), vec_set(MATH_GELU_LINEAR));
        ROW_STEP denominator[v] = vec_mul(gate[v], denominator[v]);
    }
    row_one_and_exp_of_minus(denominator, vecs);
    ROW_STEP gate[v] = row_at_most(vec_div(gate[v], denominator[v]), limits->activated);
    ROW_STEP up[v] = vec_mul(gate[v], row_within(up[v], limits->up));
}

PANEL_INLINE void row_swiglu_oai(vec *gate, vec *up, size_t vecs, const struct row_limits *limits) {
    vec denominator[ROW_LOCKSTEP];
    ROW_STEP gate[v] = row_at_most(gate[v], limits->gate);
    ROW_STEP denominator[v] = vec_mul(vec_set(limits->alpha), gate[v]);
    row_one_and_exp_of_minus(denominator, vecs);
    ROW_STEP gate[v] = vec_div(gate[v], denominator[v]);
    ROW_STEP up[v] = vec_mul(vec_add(row_within(up[v], limits->up), vec_set(1.0f)), gate[v]);
}

PANEL_INLINE void row_relu2(vec *up, size_t vecs, const struct row_limits *limits) {
    ROW_STEP up[v] = vec_greater(vec_set(0.0f), row_within(up[v], limits->up));
    ROW_STEP up[v] = vec_mul(up[v], up[v]);
}

// The activation of columns from `at` on, n of each of `vecs` vectors.
PANEL_INLINE void row_activate_at(const struct expertd_activation_args *a, const struct row_limits *limits,
                                  enum expertd_activation_kind kind, enum expertd_dtype dtype, size_t at, size_t vecs, size_t n) {
    vec up[ROW_LOCKSTEP], gate[ROW_LOCKSTEP];
    row_sums(a->up, a->up_bias, at, vecs, n, up);
    if (kind != EXPERTD_ACTIVATION_RELU2) {
        row_sums(a->gate, a->gate_bias, at, vecs, n, gate);
    }
    if (kind == EXPERTD_ACTIVATION_SILU || kind == EXPERTD_ACTIVATION_GELU_TANH) {
        row_gated(gate, up, vecs, limits, kind);
    } else if (kind == EXPERTD_ACTIVATION_SWIGLU_OAI) {
        row_swiglu_oai(gate, up, vecs, limits);
    } else {
        row_relu2(up, vecs, limits);
    }
    ROW_STEP row_store(up[v], dtype, a->out, at + v * LANES, n);
}

// `kind` and `dtype` are constants in each copy.
PANEL_INLINE void row_activate_as(const struct expertd_activation_args *args, enum expertd_activation_kind kind,
                                  enum expertd_dtype dtype) {
    const struct row_limits limits = row_limits_of(args->activation);
    const struct expertd_activation_args a = *args; // a copy, which no store to `out` can change
    size_t at = 0;
    for (; at + ROW_LOCKSTEP * LANES <= a.width; at += ROW_LOCKSTEP * LANES) {
        row_activate_at(&a, &limits, kind, dtype, at, ROW_LOCKSTEP, LANES);
    }
    for (; at + LANES <= a.width; at += LANES) {
        row_activate_at(&a, &limits, kind, dtype, at, 1, LANES);
    }
    if (at < a.width) {
        row_activate_at(&a, &limits, kind, dtype, at, 1, a.width - at);
    }
}

PANEL_INLINE void row_activate(const struct expertd_activation_args *args, enum expertd_activation_kind kind) {
    if (args->dtype == EXPERTD_DTYPE_BF16) {
        row_activate_as(args, kind, EXPERTD_DTYPE_BF16);
    } else {
        row_activate_as(args, kind, EXPERTD_DTYPE_F32);
    }
}

void ROW_TARGET(activation)(const struct expertd_activation_args *args) {
    switch (args->activation->kind) {
    case EXPERTD_ACTIVATION_SILU:
        row_activate(args, EXPERTD_ACTIVATION_SILU);
        return;
    case EXPERTD_ACTIVATION_GELU_TANH:
        row_activate(args, EXPERTD_ACTIVATION_GELU_TANH);
        return;
    case EXPERTD_ACTIVATION_SWIGLU_OAI:
        row_activate(args, EXPERTD_ACTIVATION_SWIGLU_OAI);
        return;
    case EXPERTD_ACTIVATION_RELU2:
        row_activate(args, EXPERTD_ACTIVATION_RELU2);
        return;
    default:
        INVARIANT(!"an activation that is computed");
    }
}

// ---- combine: the weighted sum of the experts' results

enum {
    ROW_SUMS = 8,         // vectors of sums in registers, over all choices
    ROW_AHEAD_BYTES = 512 // prefetch distance: a part of each result row is read in turn, which hardware prefetchers do not follow
};

// Columns from `at` on, n of each of `vecs` vectors; if n < LANES, vecs is 1.
PANEL_INLINE void row_combine(const struct expertd_combine_args *args, enum expertd_dtype dtype, size_t at, size_t vecs, size_t n) {
    const size_t size = dtype == EXPERTD_DTYPE_BF16 ? 2 : 4;
    vec sums[ROW_SUMS];
    PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
        sums[v] = vec_set(0.0f);
    }
    for (size_t j = 0; j < args->choices; j++) {
        const uint8_t *row = args->rows[j];
        if (!row) {
            continue;
        }
        PANEL_UNROLL for (size_t ahead = 0; ahead < vecs * LANES * size; ahead += 64) {
            vec_prefetch((const void *)((uintptr_t)(row + at * size + ahead) + ROW_AHEAD_BYTES));
        }
        vec weight = vec_set(args->weights ? args->weights[j] : 1.0f);
        PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
            vec x = row_load(dtype, row, at + v * LANES, n);
            sums[v] = args->weights ? vec_fma(weight, x, sums[v]) : vec_add(sums[v], x);
        }
    }
    PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
        vec sum = sums[v];
        if (args->routed_scale != 1.0f) {
            sum = vec_mul(sum, vec_set(args->routed_scale));
        }
        if (args->shared) {
            sum = vec_add(sum, row_load(dtype, args->shared, at + v * LANES, n));
        }
        if (args->bias) {
            sum = vec_add(sum, vec_load(args->bias + at + v * LANES, n));
        }
        if (args->averaged) {
            sum = vec_mul(sum, vec_set(0.5f));
        }
        row_store(sum, args->output_dtype, args->out, at + v * LANES, n);
    }
}

PANEL_INLINE void row_combine_all(const struct expertd_combine_args *args, enum expertd_dtype dtype) {
    size_t at = 0;
    for (; at + ROW_SUMS * LANES <= args->width; at += ROW_SUMS * LANES) {
        row_combine(args, dtype, at, ROW_SUMS, LANES);
    }
    for (; at + LANES <= args->width; at += LANES) {
        row_combine(args, dtype, at, 1, LANES);
    }
    if (at < args->width) {
        row_combine(args, dtype, at, 1, args->width - at);
    }
}

void ROW_TARGET(combine)(const struct expertd_combine_args *args) {
    const struct expertd_combine_args a = *args; // a copy, which no store to `out` can change
    if (a.dtype == EXPERTD_DTYPE_BF16) {
        row_combine_all(&a, EXPERTD_DTYPE_BF16);
    } else {
        row_combine_all(&a, EXPERTD_DTYPE_F32);
    }
}

// ---- functions of the router's scores
PANEL_INLINE void row_exp_minus_at(const float *x, float shift, size_t vecs, size_t n, float *out) {
    vec values[ROW_LOCKSTEP];
    ROW_STEP values[v] = vec_sub(vec_load(x + v * LANES, n), vec_set(shift));
    row_exp(values, vecs);
    ROW_STEP vec_store(out + v * LANES, values[v], n);
}

void ROW_TARGET(exp_minus)(const float *x, float shift, size_t count, float *out) {
    size_t at = 0;
    for (; at + ROW_LOCKSTEP * LANES <= count; at += ROW_LOCKSTEP * LANES) {
        row_exp_minus_at(x + at, shift, ROW_LOCKSTEP, LANES, out + at);
    }
    for (; at + LANES <= count; at += LANES) {
        row_exp_minus_at(x + at, shift, 1, LANES, out + at);
    }
    if (at < count) {
        row_exp_minus_at(x + at, shift, 1, count - at, out + at);
    }
}

PANEL_INLINE void row_sigmoid_at(const float *x, size_t vecs, size_t n, float *out) {
    vec values[ROW_LOCKSTEP];
    ROW_STEP values[v] = vec_load(x + v * LANES, n);
    row_one_and_exp_of_minus(values, vecs);
    ROW_STEP vec_store(out + v * LANES, vec_div(vec_set(1.0f), values[v]), n);
}

void ROW_TARGET(sigmoid)(const float *x, size_t count, float *out) {
    size_t at = 0;
    for (; at + ROW_LOCKSTEP * LANES <= count; at += ROW_LOCKSTEP * LANES) {
        row_sigmoid_at(x + at, ROW_LOCKSTEP, LANES, out + at);
    }
    for (; at + LANES <= count; at += LANES) {
        row_sigmoid_at(x + at, 1, LANES, out + at);
    }
    if (at < count) {
        row_sigmoid_at(x + at, 1, count - at, out + at);
    }
}

void ROW_TARGET(sqrt_softplus)(const float *x, size_t count, float *out) {
    for (size_t i = 0; i < count; i++) {
        out[i] = sqrtf(math_softplus(x[i]));
    }
}

void ROW_TARGET(softcap)(const float *restrict x, float cap, size_t count, float *restrict out) {
    for (size_t i = 0; i < count; i++) {
        out[i] = math_softcap(x[i], cap);
    }
}

// ---- the epilogue of a product

// One row. `restrict` tells the compiler that the arrays do not overlap.
static void row_add_scaled(const float *restrict partial, float row_scale, const float *restrict column_scales, size_t columns,
                           float *restrict sums) {
    for (size_t c = 0; c < columns; c++) {
        sums[c] = __builtin_fmaf(partial[c], row_scale * column_scales[c], sums[c]);
    }
}

// The same for scales whose product may not be normal: see struct add_scaled_args.
static void row_add_scaled_one_by_one(const float *partial, float row_scale, const float *column_scales, size_t columns,
                                      float *sums) {
    for (size_t c = 0; c < columns; c++) {
        const float column_scale = column_scales[c], scale = row_scale * column_scale;
        const bool row_is_larger = fabsf(row_scale) > fabsf(column_scale);
        const float larger = row_is_larger ? row_scale : column_scale, smaller = row_is_larger ? column_scale : row_scale;
        if (isnormal(scale) || smaller == 0.0f || !isfinite(larger) || !isfinite(smaller)) {
            sums[c] = __builtin_fmaf(partial[c], scale, sums[c]);
        } else {
            sums[c] = __builtin_fmaf(partial[c] * larger, smaller, sums[c]);
        }
    }
}

// The least and the greatest magnitude of the scales that are not 0; 1 and 0 if all are 0. Magnitudes are compared as bits.
static void row_scale_range(const float *scales, size_t count, float *least, float *greatest) {
    uint32_t least_less_one = UINT32_MAX, most = 0; // subtracting 1 wraps 0 to the greatest value, which excludes it
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &scales[i], sizeof bits);
        bits &= 0x7fffffffu;
        least_less_one = bits - 1 < least_less_one ? bits - 1 : least_less_one;
        most = bits > most ? bits : most;
    }
    *least = most ? expertd_f32_from_bits(least_less_one + 1) : 1.0f;
    *greatest = expertd_f32_from_bits(most);
}

void ROW_TARGET(add_scaled)(const struct add_scaled_args *args) {
    float least, greatest;
    row_scale_range(args->column_scales, args->columns, &least, &greatest);
    for (size_t r = 0; r < args->rows; r++) {
        const size_t at = r * args->stride;
        const float scale = args->row_scales[r], magnitude = fabsf(scale);
        // Rounded products are monotonic in their factors: if the least and the greatest are normal, all are.
        if (scale == 0.0f || (magnitude * least >= FLT_MIN && magnitude * greatest <= FLT_MAX)) {
            row_add_scaled(args->partial + at, scale, args->column_scales, args->columns, args->sums + at);
        } else {
            row_add_scaled_one_by_one(args->partial + at, scale, args->column_scales, args->columns, args->sums + at);
        }
    }
}

PANEL_INLINE void row_epilogue_at(const struct epilogue_args *a, enum expertd_dtype dtype, size_t at, size_t n) {
    vec x;
    row_sums(a->sums, a->bias, at, 1, n, &x);
    x = vec_mul(vec_set(a->alpha), x);
    if (a->beta != 0.0f) {
        x = vec_fma(vec_set(a->beta), row_load(dtype, a->c, at, n), x);
    }
    row_store(x, dtype, a->out, at, n);
}

// `dtype` is a constant in each copy.
PANEL_INLINE void row_epilogue(const struct epilogue_args *args, enum expertd_dtype dtype) {
    const struct epilogue_args a = *args;
    size_t at = 0;
    for (; at + LANES <= a.count; at += LANES) {
        row_epilogue_at(&a, dtype, at, LANES);
    }
    if (at < a.count) {
        row_epilogue_at(&a, dtype, at, a.count - at);
    }
}

PANEL_INLINE void row_epilogue_integers(const struct epilogue_args *a, enum expertd_dtype dtype) {
    enum { PART = 64 };
    const size_t size = expertd_dtype_size(dtype);
    const double alpha = (double)a->alpha, beta = (double)a->beta;
    float c[PART], values[PART];
    for (size_t at = 0; at < a->count; at += PART) {
        const size_t n = a->count - at < PART ? a->count - at : PART;
        row_widen(dtype, (const char *)a->c + at * size, n, c);
        for (size_t i = 0; i < n; i++) {
            int32_t sum;
            memcpy(&sum, &a->sums[at + i], sizeof sum);
            values[i] = f32_from_sum(alpha * sum, beta * (double)c[i], dtype);
        }
        row_narrow(values, n, dtype, (char *)a->out + at * size);
    }
}

void ROW_TARGET(epilogue)(const struct epilogue_args *args) {
    if (args->integers && args->dtype == EXPERTD_DTYPE_F32) {
        row_epilogue_integers(args, EXPERTD_DTYPE_F32);
    } else if (args->integers && args->dtype == EXPERTD_DTYPE_BF16) {
        row_epilogue_integers(args, EXPERTD_DTYPE_BF16);
    } else if (args->integers) {
        row_epilogue_integers(args, EXPERTD_DTYPE_F16);
    } else if (args->dtype == EXPERTD_DTYPE_BF16) {
        row_epilogue(args, EXPERTD_DTYPE_BF16);
    } else {
        row_epilogue(args, args->dtype);
    }
}
