#include "expert/layout/separate_experts.h"

#include <inttypes.h>

#include "expert/quantised/quantised_tensors.h"

// One matrix [n, k] of plain elements, or of codes (the names of a quantised format).
struct matrix {
    struct expertd_weight_source plain;
    struct quantised_matrix quantised;
};

// A square parameter X that was cut from a stacked one may be transposed as that one is.
static FALLIBLE check_orientation(const struct tensor_finder *finder, const char *name, uint64_t n, uint64_t k) {
    if (n == k && !expert_names_is_module_weight(name)) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: tensor %s is [%" PRIu64 ", %" PRIu64 "] and may be transposed: its rows and columns are equal in number, and no "
             "other tensor tells; store it in rows of outputs under the name %s.weight, or gate and up in one tensor",
             checkpoint_path(finder->checkpoint), name, n, k, name);
    }
    return OK;
}

// oriented: another tensor tells the orientation of a square parameter.
static FALLIBLE take_matrix(struct tensor_finder *finder, const struct quantised_module *module, bool oriented,
                            struct matrix *out) {
    char name[TENSOR_NAME_MAX];
    *out = (struct matrix){.plain.data = NULL};
    if (quantised_exists(finder, module->name)) {
        return quantised_take(finder, module, &out->quantised);
    }
    TRY(quantised_explain(finder, module->name));
    TRY(expert_names_check_plain(finder, module->name));
    TRY(expert_names_weight(finder, module->name, false, name));
    TRY(tensor_take_matrix(finder, name, module->n, module->k, &out->plain));
    return oriented ? OK : check_orientation(finder, name, module->n, module->k);
}

// The module of a part of expert e. out[-1] is the expert before: is this the first quantised matrix of the part, or the first
// after a plain one? And the first with an order of k, or the first after one without?
static struct quantised_module module_of(const char *name, uint32_t e, int part, const struct expert_source *out) {
    return (struct quantised_module){.name = name,
                                     .first = e == 0 || !out[-1].quantised[part].codes.data,
                                     .decides_order = e == 0 || !out[-1].quantised[part].scale_of_k};
}

static FALLIBLE take_part(struct tensor_finder *finder, const struct separate_experts *x, uint32_t e, enum expert_part part,
                          struct expert_source *out) {
    const struct expert_name_set *set = x->layout->set;
    const char *text = part == PART_GATE ? set->gate : part == PART_UP ? set->up : set->down;
    uint64_t n = part == PART_DOWN ? x->hidden : x->width, k = part == PART_DOWN ? x->width : x->hidden;
    char name[TENSOR_NAME_MAX], bias[TENSOR_NAME_MAX];
    struct matrix matrix;
    TRY(expert_names_module(x->layout, x->module, e, text, name));
    struct quantised_module module = module_of(name, e, part, out);
    module.n = n, module.k = k;
    TRY(take_matrix(finder, &module, set->gate_up != NULL, &matrix));
    out->weight[part] = matrix.plain;
    out->quantised[part] = matrix.quantised;
    if (!x->with_bias) {
        return OK;
    }
    TRY(expert_names_bias(finder, name, false, bias));
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
    char name[TENSOR_NAME_MAX], bias[TENSOR_NAME_MAX];
    struct matrix both;
    struct vector_source biases;
    TRY(expert_names_module(x->layout, x->module, e, x->layout->set->gate_up, name));
    struct quantised_module module = module_of(name, e, PART_UP, out);
    module.n = 2 * x->width, module.k = x->hidden;
    if (quantised_exists(finder, name)) {
        TRY(quantised_take_gate_up(finder, &module, x->alternate, &out->quantised[PART_GATE], &out->quantised[PART_UP]));
    } else {
        TRY(take_matrix(finder, &module, true, &both)); // if it is square, down is not
        split_plain(x, &both.plain, out);
    }
    if (!x->with_bias) {
        return OK;
    }
    TRY(expert_names_bias(finder, name, false, bias));
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
