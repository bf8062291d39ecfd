#include "expert/layout/expert_layout.h"

#include <stdlib.h>
#include <string.h>

#include "expert/layout/expert_names.h"
#include "expert/layout/separate_experts.h"
#include "expert/layout/stacked_experts.h"
#include "expert/layout/zero_points.h"

// GPTQModel cuts gpt-oss's gate_up_proj in halves and joins them again to compute: its gate_proj and up_proj hold alternating rows
// (its library Defuser). All other known tools store gate_proj and up_proj themselves: MLX, LLM Compressor, AutoRound.
static FALLIBLE check_separated(const struct tensor_finder *finder, const char *module) {
    static const char KEY[] = "quantization_config.meta.quantizer";
    char quantizer[128];
    const struct config *config = checkpoint_config(finder->checkpoint);
    if (config_value_text(config, KEY, quantizer, sizeof quantizer) && strstr(quantizer, "gptqmodel")) {
        FAIL(
            EXPERTD_ERR_CHECKPOINT,
            "%s: %s: gate_proj and up_proj of this architecture by GPTQModel (%s is %s) may each hold rows of both: which rows are "
            "gate's cannot be told; use a checkpoint with gate_up_proj, or of another quantiser",
            checkpoint_path(finder->checkpoint), module, KEY, quantizer);
    }
    return OK;
}

// For an architecture whose gate and up alternate in one matrix. A file has no mark of that, so only the names with which its tools
// store alternating rows are accepted.
static FALLIBLE check_alternation(const struct tensor_finder *finder, const struct expert_layout *layout, const char *module) {
    if (!layout->set->gate_up) {
        return check_separated(finder, module);
    }
    if (!layout->set->may_alternate) {
        FAIL(
            EXPERTD_ERR_CHECKPOINT,
            "%s: %s.%s: gate and up alternate in this architecture's gate_up_proj; whether they do under this name cannot be told: "
            "store gate_proj and up_proj separately",
            checkpoint_path(finder->checkpoint), module, layout->set->gate_up);
    }
    return OK;
}

static FALLIBLE resolve_separate(struct tensor_finder *finder, const struct expert_layout *layout, bool alternates,
                                 struct layer_tensors *out) {
    const struct layer_params *p = &out->params;
    const struct separate_experts experts = {.module = out->prefix,
                                             .layout = layout,
                                             .width = p->intermediate_size,
                                             .hidden = expert_row_size(p),
                                             .with_bias = p->expert_has_bias,
                                             .alternate = alternates};
    for (uint32_t e = 0; e < p->num_experts; e++) {
        TRY(separate_experts_take(finder, &experts, e, &out->experts[e]));
    }
    return OK;
}

static FALLIBLE resolve_layout(struct tensor_finder *finder, bool alternates, struct layer_tensors *out) {
    struct expert_layout layout;
    TRY(expert_names_find(finder, out->prefix, expertd_activation_is_gated(&out->params.activation), &layout));
    TRY(alternates ? check_alternation(finder, &layout, out->prefix) : OK);
    return layout.arrangement == ARRANGED_STACKED ? stacked_experts_take(finder, &layout, alternates, out)
                                                  : resolve_separate(finder, &layout, alternates, out);
}

// ---- formats, which each matrix has for itself

// As stored. EXPERTD_DTYPE_NONE: codes other than FP8.
static enum expertd_dtype stored_dtype(const struct expert_source *e, int part) {
    if (!e->quantised[part].codes.data) {
        return e->weight[part].dtype;
    }
    enum expertd_weight_code code = e->quantised[part].format.code;
    return code == EXPERTD_CODE_E4M3   ? EXPERTD_DTYPE_F8_E4M3
           : code == EXPERTD_CODE_E5M2 ? EXPERTD_DTYPE_F8_E5M2
                                       : EXPERTD_DTYPE_NONE;
}

// The dtype of up in all experts; EXPERTD_DTYPE_NONE if it differs.
static enum expertd_dtype weight_dtype(const struct layer_tensors *layer) {
    enum expertd_dtype dtype = stored_dtype(&layer->experts[0], PART_UP);
    for (uint32_t e = 1; e < layer->params.num_experts; e++) {
        if (stored_dtype(&layer->experts[e], PART_UP) != dtype) {
            return EXPERTD_DTYPE_NONE;
        }
    }
    return dtype;
}

// ---- orders of k

// Gate and up read the same input row, so both are sorted or neither.
static void share_order_of_gate_and_up(struct expert_source *e) {
    e->quantised[PART_GATE].ordered |= e->quantised[PART_UP].ordered && e->quantised[PART_GATE].codes.data;
    e->quantised[PART_UP].ordered |= e->quantised[PART_GATE].ordered && e->quantised[PART_UP].codes.data;
}

// If the k of one expert are sorted by scale, so are those of all experts in that format, which then have blocks of one shape.
static void share_order_of_format(struct layer_tensors *out, int part, const struct quantised_matrix *ordered) {
    for (uint32_t e = 0; e < out->params.num_experts; e++) {
        struct quantised_matrix *matrix = &out->experts[e].quantised[part];
        matrix->ordered |= matrix->codes.data && quantised_same_format(matrix, ordered);
    }
}

static void share_order(struct layer_tensors *out) {
    const struct quantised_matrix *shared[PART_COUNT] = {NULL}; // the last format that was shared
    for (uint32_t e = 0; e < out->params.num_experts; e++) {
        share_order_of_gate_and_up(&out->experts[e]);
        for (int part = 0; part < PART_COUNT; part++) {
            const struct quantised_matrix *matrix = &out->experts[e].quantised[part];
            if (matrix->ordered && !(shared[part] && quantised_same_format(matrix, shared[part]))) {
                share_order_of_format(out, part, matrix);
                shared[part] = matrix;
            }
        }
    }
}

FALLIBLE expert_layout_resolve(struct tensor_finder *finder, bool alternates, struct layer_tensors *out) {
    out->experts = calloc(out->params.num_experts, sizeof *out->experts);
    if (!out->experts) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a table of %u experts", out->params.num_experts);
    }
    TRY(resolve_layout(finder, alternates, out));
    share_order(out);
    out->weight_dtype = weight_dtype(out);
    return zero_points_check(checkpoint_path(finder->checkpoint), out);
}

FALLIBLE expert_layout_resolve_shared(struct tensor_finder *finder, const char *name, struct layer_tensors *out) {
    const struct layer_params *p = &out->params;
    struct expert_layout layout;
    TRY(expert_names_find_shared(finder, name, expertd_activation_is_gated(&p->shared_activation), &layout));
    const struct separate_experts shared = {
        .module = name, .layout = &layout, .width = p->shared_intermediate_size, .hidden = p->hidden_size};
    TRY(separate_experts_take(finder, &shared, 0, &out->shared));
    share_order_of_gate_and_up(&out->shared);
    return zero_points_check_shared(checkpoint_path(finder->checkpoint), name, &out->shared);
}
