// One device's scratch for batches. Its layout is a function of the model and the limits alone, so its size is known before
// anything is reserved. Private to expert/.
#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_SCRATCH_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_SCRATCH_H

#include "expert/layer/engine_state.h"
#include "expertd/kernels/devices.h"
#include "kernels/device/device_plan.h"

// One device's scratch, all device memory.
struct device_scratch {
    void *memory;
    size_t bytes;
    char *inner;                       // [max_choices, I] in D: of one rank at a time
    struct expertd_device_tile *tiles; // [device_message_tiles] of its ranks, one after another; the front's are in its message
    // only on the first device, which is the front
    char *message;              // [device_message_most] of the batch at hand
    char *hidden[BATCH_INPUTS]; // [max_tokens, H] in D, hidden_stride apart: of the batch at hand, and of the next
    char *raw[BATCH_INPUTS];    // [device_landing_bytes] the same as callers sent them, where that is not in D
    char *expanded;             // [max_choices, H] where a layer weighs its inputs
    struct expertd_device_tile *token_tiles[EXPERTD_DEVICE_VARIANTS]; // all tokens in order, for each variant's tiles: written once
    float *logits;                                                    // [max_tokens, router outputs]
    float *shared_scale;                                              // [max_tokens]
    char *shared_inner, *shared;                                      // [max_tokens, shared I], [max_tokens, H] in D
    char *out[BATCH_INPUTS];                                          // [max_tokens, H] in any output dtype
};

// The model's maxima that it is laid out for.
struct device_scratch_needs {
    const struct model *model;
    struct layer_limits limits;
    uint32_t max_outputs, max_shared_width; // over the model's layers
    bool weighs_inputs;
};
struct device_scratch_needs device_scratch_needs_of(const struct model *model, const struct layer_limits *limits);

// first: of the first device, which is the front. Sets every piece in s->memory, and s->bytes; without memory it only counts the
// bytes.
void device_scratch_lay_out(const struct device_scratch_needs *needs, bool first, struct device_scratch *s);

// The most bytes that `tokens` rows take as callers send them, in any dtype, with their scales.
size_t device_landing_bytes(const struct model *model, size_t tokens);

// Bytes from one row of `width` elements in D to the next.
size_t device_scratch_row_bytes(const struct model *model, size_t width);

// Bytes of device memory for batches: the scratch, and with the exchange.
size_t device_scratch_bytes(const struct model *model, const struct layer_limits *limits, uint32_t device);
size_t device_batch_bytes(const struct model *model, const struct layer_limits *limits, struct expertd_devices *devices,
                          uint32_t device);

#endif
