// One device's scratch for batches. Its layout depends only on the model and the limits, so its size is known before any memory is
// reserved. Private to expert/.
#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_SCRATCH_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_SCRATCH_H

#include "expert/layer/engine_state.h"
#include "expertd/kernels/devices.h"
#include "kernels/device/device_plan.h"

// All pointers are to device memory.
struct device_scratch {
    void *memory;
    size_t bytes;
    char *inner;                       // [max_choices, I] in D: outputs of gate and up of one rank at a time
    struct expertd_device_tile *tiles; // [device_message_tiles] of its ranks; those of the first device are in `message`
    // The fields below are set for the first device only: it is the front.
    char *message;              // [device_message_max] of the current batch
    char *hidden[BATCH_INPUTS]; // [max_tokens, H] in D, stride hidden_stride: of the current batch and of the next
    char *raw[BATCH_INPUTS];    // [device_raw_bytes] the callers' rows before they are converted to D
    char *expanded;             // [max_choices, H] weighted inputs, if a layer has weights on the input
    struct expertd_device_tile *token_tiles[EXPERTD_DEVICE_VARIANTS]; // over all tokens, for each variant's tile size: written once
    float *logits;                                                    // [max_tokens, router outputs]
    float *shared_scale;                                              // [max_tokens]
    char *shared_inner, *shared;                                      // [max_tokens, shared I], [max_tokens, H] in D
    char *out[BATCH_INPUTS];                                          // [max_tokens, H] in any output dtype
};

// The inputs of the layout.
struct device_scratch_needs {
    const struct model *model;
    struct layer_limits limits;
    uint32_t max_outputs, max_shared_width; // over the model's layers
    bool weighs_inputs;                     // some layer has weights on the input
};
struct device_scratch_needs device_scratch_needs_of(const struct model *model, const struct layer_limits *limits);

// Sets s->bytes, and every pointer to its piece of s->memory. With s->memory NULL the bytes are only counted. first: the device is
// the first one, which is the front.
void device_scratch_lay_out(const struct device_scratch_needs *needs, bool first, struct device_scratch *s);

// The maximum bytes of `tokens` unconverted rows and their scales, over all dtypes that callers may send.
size_t device_raw_bytes(const struct model *model, size_t tokens);

// Stride in bytes of rows of `width` elements in D.
size_t device_scratch_row_bytes(const struct model *model, size_t width);

// Bytes of device memory for batches: of the scratch; of scratch and exchange.
size_t device_scratch_bytes(const struct model *model, const struct layer_limits *limits, uint32_t device);
size_t device_batch_bytes(const struct model *model, const struct layer_limits *limits, struct expertd_devices *devices,
                          uint32_t device);

#endif
