#include "expert/layout/separate_experts.h"

#include "expert/quantised/quantised_tensors.h"

// One matrix [n, k] of plain elements, or of codes (the names of a quantised format).
struct matrix {
    struct expertd_weight_source plain;
    struct quantised_matrix quantised;
};

static FALLIBLE take_matrix(struct tensor_finder *finder, const char *module, uint64_t n, uint64_t k, bool first,
                            struct matrix *out) {
    char name[TENSOR_NAME_MAX];
    *out = (struct matrix){.plain.data = NULL};
    if (quantised_exists(finder, module)) {
        struct quantised_module matrix = {.name = module, .n = n, .k = k, .first = first};
        return quantised_take(finder, &matrix, &out->quantised);
    }
    TRY(quantised_explain(finder, module));
    TRY(expert_names_check_plain(finder, module));
    TRY(expert_names_weight(finder, module, false, name));
    return tensor_take_matrix(finder, name, n, k, &out->plain);
}

static FALLIBLE take_part(struct tensor_finder *finder, const struct separate_experts *x, uint32_t e, enum expert_part part,
                          struct expert_source *out) {
    const struct expert_name_set *set = x->layout->set;
    const char *text = part == PART_GATE ? set->gate : part == PART_UP ? set->up : set->down;
    uint64_t n = part == PART_DOWN ? x->hidden : x->width, k = part == PART_DOWN ? x->width : x->hidden;
    char module[TENSOR_NAME_MAX], bias[TENSOR_NAME_MAX];
    struct matrix matrix;
    TRY(expert_names_module(x->layout, x->module, e, text, module));
    TRY(take_matrix(finder, module, n, k, e == 0, &matrix));
    out->weight[part] = matrix.plain;
    out->quantised[part] = matrix.quantised;
    if (!x->with_bias) {
        return OK;
    }
    TRY(expert_names_bias(finder, module, false, bias));
    return tensor_take_vector(finder, bias, n, &out->bias[part]);
}

// ---- gate and up in one matrix [2I, H] ----

static void split_plain(const struct separate_experts *x, const struct expertd_weight_source *both, struct expert_source *out) {
    struct expertd_weight_source gate = *both, up = *both;
    gate.n_stride = up.n_stride = (x->alternate ? 2 : 1) * both->n_stride;
    up.data = (const char *)both->data + (x->alternate ? 1 : x->width) * both->n_stride * expertd_dtype_size(both->dtype);
    out->weight[PART_GATE] = gate;
    out->weight[PART_UP] = up;
}

static void split_bias(const struct separate_experts *x, const struct vector_source *both, struct expert_source *out) {
    struct vector_source gate = *both, up = *both;
    gate.stride = up.stride = (x->alternate ? 2 : 1) * both->stride;
    up.data = (const char *)both->data + (x->alternate ? 1 : x->width) * both->stride * expertd_dtype_size(both->dtype);
    out->bias[PART_GATE] = gate;
    out->bias[PART_UP] = up;
}

static FALLIBLE take_gate_up(struct tensor_finder *finder, const struct separate_experts *x, uint32_t e,
                             struct expert_source *out) {
    char module[TENSOR_NAME_MAX], bias[TENSOR_NAME_MAX];
    struct matrix both;
    struct vector_source biases;
    TRY(expert_names_module(x->layout, x->module, e, x->layout->set->gate_up, module));
    if (quantised_exists(finder, module)) {
        struct quantised_module matrix = {.name = module, .n = 2 * x->width, .k = x->hidden, .first = e == 0};
        TRY(quantised_take_gate_up(finder, &matrix, x->alternate, &out->quantised[PART_GATE], &out->quantised[PART_UP]));
    } else {
        TRY(take_matrix(finder, module, 2 * x->width, x->hidden, e == 0, &both));
        split_plain(x, &both.plain, out);
    }
    if (!x->with_bias) {
        return OK;
    }
    TRY(expert_names_bias(finder, module, false, bias));
    TRY(tensor_take_vector(finder, bias, 2 * x->width, &biases));
    split_bias(x, &biases, out);
    return OK;
}

FALLIBLE separate_experts_take(struct tensor_finder *finder, const struct separate_experts *x, uint32_t e,
                               struct expert_source *out) {
    const struct expert_name_set *set = x->layout->set;
    if (set->gate) {
        TRY(take_part(finder, x, e, PART_GATE, out));
    }
    TRY(set->gate_up ? take_gate_up(finder, x, e, out) : take_part(finder, x, e, PART_UP, out));
    return take_part(finder, x, e, PART_DOWN, out);
}
