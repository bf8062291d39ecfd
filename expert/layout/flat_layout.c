#include "expert/layout/flat_layout.h"

#include <string.h>

#include "expert/architecture/architecture_names.h"
#include "expert/quantised/quantised_tensors.h"

static const char *const PART_LABELS[PART_COUNT] = {"gate", "up", "down"};

static bool is_absent(const struct layer_tensors *out, int part) {
    return part == PART_GATE && !expertd_activation_is_gated(&out->params.activation);
}

// Rows and columns of a part's matrix.
static uint64_t rows_of(const struct layer_params *p, int part) {
    return part == PART_DOWN ? expert_row_size(p) : p->intermediate_size;
}

static uint64_t columns_of(const struct layer_params *p, int part) {
    return part == PART_DOWN ? p->intermediate_size : expert_row_size(p);
}

static bool exists(const struct tensor_finder *finder, const char *layer, const char *name, const char *suffix) {
    char full[TENSOR_NAME_MAX];
    return !err_is(tensor_name(full, "%s.%s%s", layer, name, suffix)) && tensor_exists(finder, full);
}

// ---- all experts in one tensor

// A tensor [E, n, k], of plain elements or of codes.
struct stack {
    const struct safetensors_entry *plain; // NULL: codes
    struct quantised_matrix codes;         // of the first expert
    const struct safetensors_entry *scale; // [E] the experts' global scales; NULL: none
    uint64_t n, k;
};

// The global scales of NVFP4. Gemma 4 has the scales of the routing weights under that name, which include them.
static FALLIBLE take_scale(struct tensor_finder *finder, const struct layer_tensors *out, const char *module, struct stack *stack) {
    const struct tensor_shape shape = {1, {out->params.num_experts}};
    char name[TENSOR_NAME_MAX], routing[TENSOR_NAME_MAX];
    TRY(tensor_name(name, "%s%s", module, NAMES_GGUF.flat->scale));
    TRY(tensor_name(routing, "%s.%s", out->prefix, NAMES_GGUF.expert_scale));
    bool of_routing = out->params.needs_router_input && strcmp(name, routing) == 0;
    if (of_routing || stack->codes.format.scale != EXPERTD_DTYPE_F8_E4M3 || !tensor_exists(finder, name)) {
        return OK;
    }
    TRY(tensor_take(finder, name, &shape, &stack->scale));
    stack->codes.format.global = EXPERTD_GLOBAL_MULTIPLY;
    return OK;
}

static FALLIBLE take_stack(struct tensor_finder *finder, const struct layer_tensors *out, const char *name, uint64_t n, uint64_t k,
                           struct stack *stack) {
    const uint64_t experts = out->params.num_experts;
    const struct tensor_shape shape = {3, {experts, n, k}};
    char module[TENSOR_NAME_MAX], full[TENSOR_NAME_MAX];
    *stack = (struct stack){.n = n, .k = k};
    TRY(tensor_name(module, "%s.%s", out->prefix, name));
    if (quantised_exists(finder, module)) {
        struct quantised_module matrix = {.name = module, .experts = experts, .n = n, .k = k, .first = true};
        TRY(quantised_take(finder, &matrix, &stack->codes));
        return take_scale(finder, out, module, stack);
    }
    TRY(tensor_name(full, "%s.weight", module));
    return tensor_take(finder, full, &shape, &stack->plain);
}

// Expert e's rows [first, first + rows) of the stack.
static FALLIBLE take_rows(const struct stack *stack, uint64_t e, uint64_t first, int part, struct expert_source *out) {
    if (stack->plain) {
        const struct expertd_tensor_view *view = &stack->plain->view;
        size_t element = (e * stack->n + first) * stack->k;
        out->weight[part] =
            (struct expertd_weight_source){.data = (const char *)view->data + element * expertd_dtype_size(view->dtype),
                                           .dtype = view->dtype,
                                           .n_stride = stack->k,
                                           .k_stride = 1};
        return OK;
    }
    const struct quantised_matrix all = quantised_of_expert(&stack->codes, e);
    struct quantised_matrix *matrix = &out->quantised[part];
    TRY(quantised_take_rows(&all, first, 1, matrix));
    if (stack->scale) {
        matrix->global_dtype = stack->scale->view.dtype;
        matrix->global = (const char *)stack->scale->view.data + e * expertd_dtype_size(matrix->global_dtype);
        matrix->global_tensor = stack->scale;
    }
    return OK;
}

static FALLIBLE spread_stack(const struct stack *stack, uint64_t first, int part, struct layer_tensors *out) {
    for (uint64_t e = 0; e < out->params.num_experts; e++) {
        TRY(take_rows(stack, e, first, part, &out->experts[e]));
    }
    return OK;
}

static FALLIBLE resolve_gate_up(struct tensor_finder *finder, struct layer_tensors *out) {
    const struct layer_params *p = &out->params;
    struct stack stack;
    TRY(take_stack(finder, out, NAMES_GGUF.flat->gate_up, 2 * (uint64_t)p->intermediate_size, expert_row_size(p), &stack));
    TRY(spread_stack(&stack, 0, PART_GATE, out));
    return spread_stack(&stack, p->intermediate_size, PART_UP, out);
}

static FALLIBLE resolve_stacks(struct tensor_finder *finder, struct layer_tensors *out) {
    const struct layer_params *p = &out->params;
    bool fused = exists(finder, out->prefix, NAMES_GGUF.flat->gate_up, ".weight");
    TRY(fused ? resolve_gate_up(finder, out) : OK);
    for (int part = fused ? PART_DOWN : PART_GATE; part < PART_COUNT; part++) {
        struct stack stack;
        if (!is_absent(out, part)) {
            TRY(take_stack(finder, out, NAMES_GGUF.flat->experts[part], rows_of(p, part), columns_of(p, part), &stack));
            TRY(spread_stack(&stack, 0, part, out));
        }
    }
    return OK;
}

// Biases [E, n].
static FALLIBLE take_biases(struct tensor_finder *finder, int part, struct layer_tensors *out) {
    const struct layer_params *p = &out->params;
    const struct tensor_shape shape = {2, {p->num_experts, rows_of(p, part)}};
    const struct safetensors_entry *entry = NULL;
    char name[TENSOR_NAME_MAX];
    TRY(tensor_name(name, "%s.%s.bias", out->prefix, NAMES_GGUF.flat->experts[part]));
    TRY(tensor_take(finder, name, &shape, &entry));
    INVARIANT(entry != NULL);
    for (uint64_t e = 0; e < p->num_experts; e++) {
        size_t at = e * rows_of(p, part) * expertd_dtype_size(entry->view.dtype);
        out->experts[e].bias[part] =
            (struct vector_source){.data = (const char *)entry->view.data + at, .dtype = entry->view.dtype, .stride = 1};
    }
    return OK;
}

// ---- one tensor for each expert

static FALLIBLE take_separate(struct tensor_finder *finder, uint32_t e, int part, struct layer_tensors *out) {
    const struct layer_params *p = &out->params;
    char module[TENSOR_NAME_MAX], name[TENSOR_NAME_MAX];
    TRY(tensor_name(module, "%s.%s.%u", out->prefix, NAMES_GGUF.flat->separate[part], e));
    if (quantised_exists(finder, module)) {
        struct quantised_module matrix = {.name = module, .n = rows_of(p, part), .k = columns_of(p, part), .first = e == 0};
        return quantised_take(finder, &matrix, &out->experts[e].quantised[part]);
    }
    TRY(tensor_name(name, "%s.weight", module));
    return tensor_take_matrix(finder, name, rows_of(p, part), columns_of(p, part), &out->experts[e].weight[part]);
}

static FALLIBLE resolve_separate(struct tensor_finder *finder, struct layer_tensors *out) {
    for (uint32_t e = 0; e < out->params.num_experts; e++) {
        for (int part = 0; part < PART_COUNT; part++) {
            TRY(is_absent(out, part) ? OK : take_separate(finder, e, part, out));
        }
    }
    return OK;
}

FALLIBLE flat_layout_resolve(struct tensor_finder *finder, struct layer_tensors *out) {
    if (!exists(finder, out->prefix, NAMES_GGUF.flat->experts[PART_DOWN], ".weight") &&
        exists(finder, out->prefix, NAMES_GGUF.flat->separate[PART_DOWN], ".0.weight")) {
        return resolve_separate(finder, out);
    }
    TRY(resolve_stacks(finder, out));
    for (int part = 0; part < PART_COUNT; part++) {
        if (out->params.expert_has_bias && !is_absent(out, part)) {
            TRY_IN(take_biases(finder, part, out), "%s's bias", PART_LABELS[part]);
        }
    }
    return OK;
}

// ---- tensors that are left over

static FALLIBLE none_left(const struct tensor_finder *finder, const struct layer_tensors *layer, const char *name) {
    static const struct expert_numbers NONE = {.module = "", .num_experts = UINT32_MAX};
    char block[TENSOR_NAME_MAX], scale[TENSOR_NAME_MAX];
    TRY(tensor_name(block, "%s.%s.", layer->prefix, name));
    TRY(tensor_name(scale, "%sinput_scale", block)); // of activations, which are not quantised here
    const struct safetensors_entry *ignored = tensor_look(finder, scale);
    return tensor_none_left_but(finder, block, &NONE, ignored);
}

FALLIBLE flat_layout_check(const struct tensor_finder *finder, const struct architecture *row, const struct layer_tensors *layer) {
    static const char *const OTHERS[] = {"ffn_gate_inp", "exp_probs_b", "ffn_gate_tid2eid", "ffn_latent_down", "ffn_latent_up"};
    const struct flat_names *flat = NAMES_GGUF.flat;
    for (int part = 0; part < PART_COUNT; part++) {
        TRY(none_left(finder, layer, flat->experts[part]));
        TRY(row->parallel_mlp ? OK : none_left(finder, layer, flat->shared[part]));
    }
    TRY(none_left(finder, layer, flat->gate_up));
    TRY(row->parallel_mlp ? OK : none_left(finder, layer, "ffn_gate_inp_shexp"));
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) {
        TRY(none_left(finder, layer, OTHERS[i]));
    }
    return OK;
}
