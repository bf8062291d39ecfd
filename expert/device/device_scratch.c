#include "expert/device/device_scratch.h"

#include "expert/device/device_engine.h"
#include "expert/device/device_message.h"

enum { PIECE_ALIGN = 256, ROW_ALIGN = 64 };

// A group's last tile may hold one row, but groups without rows have none; and all tokens in order, as one group.
size_t device_engine_tiles(const struct layer_limits *limits, const struct model *model) {
    size_t groups = (size_t)model->max_experts * model->ranks,
           tokens = device_scratch_tiles_over(limits->max_tokens, DEVICE_TILE_ROWS_LEAST);
    size_t most = device_scratch_tiles_over(limits->max_choices, DEVICE_TILE_ROWS_LEAST) +
                  (groups < limits->max_choices ? groups : limits->max_choices);
    return most > tokens ? most : tokens;
}

size_t device_scratch_row_bytes(const struct model *model, size_t width) {
    return (width * expertd_dtype_size(model->compute_dtype) + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
}

struct device_scratch_needs device_scratch_needs_of(const struct model *model, const struct layer_limits *limits) {
    struct device_scratch_needs needs = {.model = model, .limits = *limits};
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct layer_params *p = &model->layers[i].params;
        uint32_t outputs = p->num_experts + p->num_zero_experts;
        needs.max_outputs = outputs > needs.max_outputs ? outputs : needs.max_outputs;
        bool wider = shared_has_expert(p->shared) && p->shared_intermediate_size > needs.max_shared_width;
        needs.max_shared_width = wider ? p->shared_intermediate_size : needs.max_shared_width;
        needs.weighs_inputs = needs.weighs_inputs || p->weights_on_input;
    }
    return needs;
}

// F32's four bytes an element are the most: an F8 row with a scale for 128 elements has fewer, once both begin on a boundary.
size_t device_landing_bytes(const struct model *model, size_t tokens) {
    size_t row = (model->max_hidden_size * sizeof(float) + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
    return tokens * (row + ROW_ALIGN);
}

static void *piece(struct device_scratch *s, size_t bytes) {
    void *at = s->memory ? (char *)s->memory + s->bytes : NULL;
    s->bytes += (bytes + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
    return at;
}

void device_scratch_lay_out(const struct device_scratch_needs *needs, bool first, struct device_scratch *s) {
    const struct model *model = needs->model;
    const struct layer_limits *limits = &needs->limits;
    size_t tokens = limits->max_tokens, choices = limits->max_choices,
           row = device_scratch_row_bytes(model, model->max_hidden_size);
    s->bytes = 0;
    s->inner = piece(s, choices * device_scratch_row_bytes(model, model->max_intermediate_size));
    if (!first) {
        s->tiles = piece(s, device_engine_tiles(limits, model) * sizeof *s->tiles);
        return;
    }
    s->message = piece(s, device_message_most(NULL, model, limits).bytes);
    for (unsigned i = 0; i < BATCH_INPUTS; i++) {
        s->hidden[i] = piece(s, tokens * row);
        s->raw[i] = piece(s, device_landing_bytes(model, tokens));
        s->out[i] = piece(s, tokens * model->max_hidden_size * sizeof(float));
    }
    s->expanded = piece(s, needs->weighs_inputs ? choices * row : 0);
    for (int v = 0; v < EXPERTD_DEVICE_VARIANTS; v++) {
        s->token_tiles[v] = piece(s, device_scratch_tiles_over(tokens, device_variant_rows((enum expertd_device_variant)v)) *
                                         sizeof **s->token_tiles);
    }
    s->logits = piece(s, tokens * needs->max_outputs * sizeof *s->logits);
    s->shared_scale = piece(s, tokens * sizeof *s->shared_scale);
    if (needs->max_shared_width > 0) {
        s->shared_inner = piece(s, tokens * device_scratch_row_bytes(model, needs->max_shared_width));
        s->shared = piece(s, tokens * row);
    }
}

size_t device_engine_scratch_bytes(const struct model *model, const struct layer_limits *limits, uint32_t device) {
    struct device_scratch_needs needs = device_scratch_needs_of(model, limits);
    struct device_scratch counted = {0};
    device_scratch_lay_out(&needs, device == 0, &counted);
    return counted.bytes;
}
