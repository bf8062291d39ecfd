#include "expert/model/layer_shapes.h"

#include <stdlib.h>
#include <string.h>

#include "expert/model/layer_formats.h"

FALLIBLE packed_matrix_size(enum expertd_dtype dtype, const struct expertd_quantised_format *format,
                            const struct supply_matrix *matrix, struct expertd_packed_weights *out) {
    uint64_t elements; // an upper bound, so that expertd_packed_group_bytes cannot overflow
    if (__builtin_mul_overflow((uint64_t)matrix->n + 4096, (uint64_t)matrix->k + 4096, &elements) || elements > INT64_MAX / 8) {
        FAIL(EXPERTD_ERR_NOMEM, "a matrix of %zu x %zu is larger than any memory", matrix->n, matrix->k);
    }
    *out = (struct expertd_packed_weights){.dtype = dtype,
                                           .k = matrix->k,
                                           .n = matrix->n,
                                           .format = format,
                                           .layout = format ? EXPERTD_PACKED_PANELS : expertd_packed_layout_best(dtype)};
    out->group_bytes = format ? expertd_quantised_group_bytes(format, matrix->k, matrix->n)
                              : expertd_packed_group_bytes(dtype, matrix->k, matrix->n);
    return OK;
}

// ---- one shape

// Adds a piece to the block and returns its place.
static FALLIBLE add_piece(struct expert_shape *shape, size_t count, size_t size, size_t *at) {
    size_t bytes, end;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > INT64_MAX - ARENA_ALIGN ||
        __builtin_add_overflow(shape->bytes, arena_rounded(bytes), &end)) {
        FAIL(EXPERTD_ERR_NOMEM, "more than 2^63 bytes of weights");
    }
    *at = shape->bytes;
    shape->bytes = end;
    return OK;
}

static int order_of(int matrix) {
    return matrix == EXPERT_DOWN ? EXPERT_INNER_ORDER : EXPERT_HIDDEN_ORDER;
}

static bool is_ordered(const struct supply_matrix *m) {
    return supply_codes(m) && m->quantised && m->quantised->ordered;
}

static FALLIBLE add_matrix(const struct supply_matrix *m, int i, enum expertd_dtype dtype, struct layer_shape *out) {
    struct expert_shape *shape = &out->shape;
    const struct expertd_quantised_format *codes = supply_codes(m);
    if (codes) {
        out->format[i] = *codes;
    }
    TRY(packed_matrix_size(dtype, codes ? &out->format[i] : NULL, m, &shape->matrix[i]));
    TRY(add_piece(shape, 1, shape->matrix[i].group_bytes, &shape->matrix_at[i]));
    if (is_ordered(m) && shape->order[order_of(i)] == 0) {
        shape->order[order_of(i)] = m->k;
        TRY(add_piece(shape, m->k, sizeof(uint32_t), &shape->order_at[order_of(i)]));
    }
    return OK;
}

// Gate and up read one row. If the k of one are sorted by scale, so must be the k of the other.
static FALLIBLE check_orders(const struct supply *supply, const struct layer_tensors *tensors, uint32_t expert) {
    struct supply_matrix gate, up;
    if (!supply_describe(supply, tensors, expert, SUPPLY_GATE, &gate) ||
        !supply_describe(supply, tensors, expert, SUPPLY_UP, &up) || is_ordered(&gate) == is_ordered(&up)) {
        return OK;
    }
    char name[LAYER_FORMATS_EXPERT_MAX];
    FAIL(EXPERTD_ERR_CHECKPOINT,
         "%s is %s (gate, up, down): gate and up read one row, and only one of them has its k in the order of a g_idx: serve this "
         "model with --widen",
         expert == SUPPLY_SHARED ? "the shared expert" : "an expert", layer_formats_of_expert(supply, tensors, expert, name));
}

FALLIBLE layer_shape_of(const struct supply *supply, const struct layer_tensors *tensors, uint32_t expert, enum expertd_dtype dtype,
                        struct layer_shape *out) {
    struct supply_matrix m;
    *out = (struct layer_shape){0};
    TRY(check_orders(supply, tensors, expert));
    for (int i = 0; i < EXPERT_MATRICES; i++) {
        if (supply_describe(supply, tensors, expert, (enum supply_tensor)(SUPPLY_GATE + i), &m)) {
            TRY(add_matrix(&m, i, dtype, out));
        }
        if (supply_describe(supply, tensors, expert, (enum supply_tensor)(SUPPLY_GATE_BIAS + i), &m)) {
            out->shape.bias[i] = m.k;
            TRY(add_piece(&out->shape, m.k, sizeof(float), &out->shape.bias_at[i]));
        }
    }
    return OK;
}

// ---- all shapes of a layer

// Does the block of `expert` have this shape? Sizes and biases are those of the layer; only formats and orders may differ.
static bool has_shape(const struct supply *supply, const struct layer_tensors *tensors, uint32_t expert,
                      const struct expert_shape *shape) {
    bool ordered[EXPERT_ORDERS] = {false};
    for (int i = 0; i < EXPERT_MATRICES; i++) {
        struct supply_matrix m;
        const struct expertd_quantised_format *format = shape->matrix[i].format;
        bool exists = supply_describe(supply, tensors, expert, (enum supply_tensor)(SUPPLY_GATE + i), &m);
        const struct expertd_quantised_format *codes = exists ? supply_codes(&m) : NULL;
        if ((codes != NULL) != (format != NULL) || (codes && !expertd_quantised_format_equal(format, codes))) {
            return false;
        }
        ordered[order_of(i)] |= exists && is_ordered(&m);
    }
    return ordered[EXPERT_HIDDEN_ORDER] == (shape->order[EXPERT_HIDDEN_ORDER] > 0) &&
           ordered[EXPERT_INNER_ORDER] == (shape->order[EXPERT_INNER_ORDER] > 0);
}

static FALLIBLE add_shape(const struct supply *supply, const struct layer_tensors *tensors, uint32_t expert,
                          enum expertd_dtype dtype, struct layer_shapes *out) {
    if (out->count == EXPERT_SHAPES_MAX) {
        char text[LAYER_FORMATS_EXPERT_MAX];
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "expert %u is %s, after experts in %d other combinations of formats: a layer may have %d of them as they are: serve "
             "this model with --widen",
             expert, layer_formats_of_expert(supply, tensors, expert, text), EXPERT_SHAPES_MAX, EXPERT_SHAPES_MAX);
    }
    TRY_IN(layer_shape_of(supply, tensors, expert, dtype, &out->all[out->count]), "expert %u", expert);
    out->count++;
    return OK;
}

FALLIBLE layer_shapes_find(const struct supply *supply, const struct layer_tensors *tensors, enum expertd_dtype dtype,
                           struct layer_shapes *out) {
    uint32_t experts = tensors->params.num_experts;
    *out = (struct layer_shapes){.of_expert = calloc(experts, sizeof *out->of_expert)};
    if (!out->of_expert) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the shapes of %u experts", experts);
    }
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t s = 0;
        while (s < out->count && !has_shape(supply, tensors, e, &out->all[s].shape)) {
            s++;
        }
        if (s == out->count) {
            TRY(add_shape(supply, tensors, e, dtype, out));
        }
        out->of_expert[e] = (uint8_t)s;
    }
    return OK;
}

void layer_shapes_free(struct layer_shapes *shapes) {
    free(shapes->of_expert);
    shapes->of_expert = NULL;
}
