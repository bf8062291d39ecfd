#include "expert/layout/expert_layout.h"

#include <stdlib.h>
#include <string.h>

#include "expert/layout/expert_names.h"
#include "expert/layout/separate_experts.h"
#include "expert/layout/stacked_experts.h"

static const char *const PROJ_NAMES[PART_COUNT] = {"gate_proj", "up_proj", "down_proj"}; // for messages

static bool is_part_absent(const struct expertd_activation *activation, int part) {
    return part == PART_GATE && !expertd_activation_is_gated(activation);
}

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

// Have two matrices the same plain dtype, or the same codes and scales?
static bool is_like(const struct expert_source *a, int part, const struct expert_source *b, int other) {
    const struct quantised_matrix *codes = &a->quantised[part], *others = &b->quantised[other];
    if (!codes->codes.data || !others->codes.data) {
        return !codes->codes.data == !others->codes.data && a->weight[part].dtype == b->weight[other].dtype;
    }
    return quantised_same_format(codes, others);
}

static const char *kind_name(const struct expert_source *e, int part, char text[QUANTISED_NAME_MAX]) {
    return e->quantised[part].codes.data ? quantised_name(&e->quantised[part], text) : expertd_dtype_name(e->weight[part].dtype);
}

// Compares expert e's matrix `part` with the first expert's `other`.
static FALLIBLE check_like(const struct tensor_finder *finder, const struct layer_tensors *out, uint32_t e, int part, int other) {
    const struct expert_source *source = &out->experts[e], *first = &out->experts[0];
    char texts[2][QUANTISED_NAME_MAX];
    if (is_like(source, part, first, other)) {
        return OK;
    }
    if (strcmp(kind_name(source, part, texts[0]), kind_name(first, other, texts[1])) == 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: %s: expert %u's %s and expert 0's %s are %s, but one has scales of %s, the other of %s: a layer must have one "
             "format",
             checkpoint_path(finder->checkpoint), out->prefix, e, PROJ_NAMES[part], PROJ_NAMES[other], texts[0],
             expertd_dtype_name(source->quantised[part].format.scale), expertd_dtype_name(first->quantised[other].format.scale));
    }
    FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s: expert %u's %s is %s, but expert 0's %s is %s: a layer must have one %s",
         checkpoint_path(finder->checkpoint), out->prefix, e, PROJ_NAMES[part], kind_name(source, part, texts[0]),
         PROJ_NAMES[other], kind_name(first, other, texts[1]), first->quantised[other].codes.data ? "format" : "dtype");
}

// All experts of a layer are packed alike; two dtypes in a layer are more likely a broken conversion than intended. Quantised down
// matrices may have another format than gate and up.
static FALLIBLE check_one_dtype(const struct tensor_finder *finder, struct layer_tensors *out) {
    const struct expertd_activation *activation = &out->params.activation;
    bool quantised = out->experts[0].quantised[PART_DOWN].codes.data || out->experts[0].quantised[PART_UP].codes.data;
    for (uint32_t e = 0; e < out->params.num_experts; e++) {
        for (int part = 0; part < PART_COUNT; part++) {
            if (!is_part_absent(activation, part)) {
                int like = quantised && part != PART_DOWN ? PART_UP : PART_DOWN;
                TRY(check_like(finder, out, e, part, like));
            }
        }
    }
    enum expertd_weight_code code = out->experts[0].quantised[PART_UP].format.code;
    enum expertd_dtype of_code = code == EXPERTD_CODE_E4M3   ? EXPERTD_DTYPE_F8_E4M3
                                 : code == EXPERTD_CODE_E5M2 ? EXPERTD_DTYPE_F8_E5M2
                                                             : EXPERTD_DTYPE_NONE;
    out->weight_dtype = quantised ? of_code : out->experts[0].weight[PART_DOWN].dtype;
    return OK;
}

// All blocks of a layer have one shape, so if one expert's k are sorted by scale, the k of all experts are sorted. Gate and up read
// the same input row, so both are sorted or neither.
static void share_order_of_gate_and_up(struct expert_source *e) {
    e->quantised[PART_GATE].ordered |= e->quantised[PART_UP].ordered && e->quantised[PART_GATE].codes.data;
    e->quantised[PART_UP].ordered |= e->quantised[PART_GATE].ordered && e->quantised[PART_UP].codes.data;
}

static void share_order(struct layer_tensors *out) {
    bool ordered[PART_COUNT] = {false};
    for (uint32_t e = 0; e < out->params.num_experts; e++) {
        share_order_of_gate_and_up(&out->experts[e]);
        for (int part = 0; part < PART_COUNT; part++) {
            ordered[part] |= out->experts[e].quantised[part].ordered;
        }
    }
    for (uint32_t e = 0; e < out->params.num_experts; e++) {
        for (int part = 0; part < PART_COUNT; part++) {
            out->experts[e].quantised[part].ordered = ordered[part];
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
    return check_one_dtype(finder, out);
}

// Gate and up are computed as one product.
static FALLIBLE check_shared(const struct tensor_finder *finder, const char *name, const struct expert_source *shared) {
    char texts[2][QUANTISED_NAME_MAX];
    bool gated = shared->weight[PART_GATE].data || shared->quantised[PART_GATE].codes.data;
    bool both = shared->quantised[PART_GATE].codes.data || shared->quantised[PART_UP].codes.data;
    if (!gated || !both || is_like(shared, PART_GATE, shared, PART_UP)) {
        return OK;
    }
    FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s: gate_proj is %s, but up_proj is %s: they must have one format",
         checkpoint_path(finder->checkpoint), name, kind_name(shared, PART_GATE, texts[0]), kind_name(shared, PART_UP, texts[1]));
}

FALLIBLE expert_layout_resolve_shared(struct tensor_finder *finder, const char *name, struct layer_tensors *out) {
    const struct layer_params *p = &out->params;
    struct expert_layout layout;
    TRY(expert_names_find_shared(finder, name, expertd_activation_is_gated(&p->shared_activation), &layout));
    const struct separate_experts shared = {
        .module = name, .layout = &layout, .width = p->shared_intermediate_size, .hidden = p->hidden_size};
    TRY(separate_experts_take(finder, &shared, 0, &out->shared));
    share_order_of_gate_and_up(&out->shared);
    return check_shared(finder, name, &out->shared);
}
