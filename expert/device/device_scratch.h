// One device's scratch for batches, and how it is laid out: a function of the model and the limits alone, so that it can be counted
// before anything is reserved. Private to expert/.
#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_SCRATCH_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_SCRATCH_H

#include "expert/layer/engine_internal.h"
#include "kernels/device/device_plan.h"

// One device's scratch, all device memory.
struct device_scratch {
    void *memory;
    size_t bytes;
    char *inner;                       // [max_choices, I] in D: of one rank at a time
    struct expertd_device_tile *tiles; // [device_engine_tiles] of its ranks, one after another; the front's are in its message
    // the front's only, which is the first device
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

// What the model's layers ask of it.
struct device_scratch_needs {
    const struct model *model;
    struct layer_limits limits;
    uint32_t max_outputs, max_shared_width; // over the model's layers
    bool weighs_inputs;
};
struct device_scratch_needs device_scratch_needs_of(const struct model *model, const struct layer_limits *limits);

// first: of the first device, which is the front. Sets every piece that lies in s->memory, and s->bytes; without memory the
// bytes are only counted.
void device_scratch_lay_out(const struct device_scratch_needs *needs, bool first, struct device_scratch *s);

// Rows of `tokens` in any dtype that callers send, with their scales: at most so many bytes.
size_t device_landing_bytes(const struct model *model, size_t tokens);

// Bytes from one row of `width` elements in D to the next.
size_t device_scratch_row_bytes(const struct model *model, size_t width);

// Tiles of that many rows over `rows`, as one group.
static inline size_t device_scratch_tiles_over(size_t rows, uint32_t tile_rows) {
    return (rows + tile_rows - 1) / tile_rows;
}

#endif
