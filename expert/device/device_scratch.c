#include "expert/device/device_scratch.h"

#include "expert/device/device_message.h"
#include "expert/layer/layer_sizes.h"
#include "shard/exchange.h"

enum { PIECE_ALIGN = 256, ROW_ALIGN = 64 };

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

// F32 rows are the largest. An F8 row with its scales, one for 128 elements, is smaller even if both are aligned.
size_t device_raw_bytes(const struct model *model, size_t tokens) {
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
        s->tiles = piece(s, device_message_tiles(limits, model) * sizeof *s->tiles);
        return;
    }
    s->message = piece(s, device_message_max(NULL, model, limits).bytes);
    for (unsigned i = 0; i < BATCH_INPUTS; i++) {
        s->hidden[i] = piece(s, tokens * row);
        s->raw[i] = piece(s, device_raw_bytes(model, tokens));
        s->out[i] = piece(s, tokens * model->max_hidden_size * sizeof(float));
    }
    s->expanded = piece(s, needs->weighs_inputs ? choices * row : 0);
    for (int v = 0; v < EXPERTD_DEVICE_VARIANTS; v++) {
        s->token_tiles[v] =
            piece(s, device_tiles_over(tokens, device_variant_rows((enum expertd_device_variant)v)) * sizeof **s->token_tiles);
    }
    s->logits = piece(s, tokens * needs->max_outputs * sizeof *s->logits);
    s->shared_scale = piece(s, tokens * sizeof *s->shared_scale);
    if (needs->max_shared_width > 0) {
        s->shared_inner = piece(s, tokens * device_scratch_row_bytes(model, needs->max_shared_width));
        s->shared = piece(s, tokens * row);
    }
}

size_t device_batch_bytes(const struct model *model, const struct layer_limits *limits, struct expertd_devices *devices,
                          uint32_t device) {
    struct layer_sizes sizes = layer_sizes_of(model);
    struct exchange_options exchange = layer_exchange_options(model, limits, &sizes);
    struct exchange_over_nccl over = {.devices = devices};
    return device_scratch_bytes(model, limits, device) + exchange_nccl_bytes(&exchange, &over, device);
}

size_t device_scratch_bytes(const struct model *model, const struct layer_limits *limits, uint32_t device) {
    struct device_scratch_needs needs = device_scratch_needs_of(model, limits);
    struct device_scratch counted = {0};
    device_scratch_lay_out(&needs, device == 0, &counted);
    return counted.bytes;
}
