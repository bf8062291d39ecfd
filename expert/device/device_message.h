// What the first device is told of a batch, in one copy: every array of it one after another, at the same places of the host's
// pinned memory and of the device's, for a copy of any size costs a small batch 3 us of the host. Other devices get their tiles.
// A pure function of the batch's counts; nothing here is copied. Private to expert/.
#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_MESSAGE_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_MESSAGE_H

#include "expert/layer/engine_internal.h"

// A batch's, or the most that one may have.
struct device_message_counts {
    size_t choices, tokens, shared; // T * K, T, tokens that want the shared experts
    size_t weighed;                 // choices, where the layer weighs inputs; else 0
    size_t tiles;                   // of all devices: the last, so that no place depends on how many there are
};

// What a router on the device makes comes first, so that it comes back in one copy, and the rest can leave without it.
struct device_message {
    int32_t *ids;                      // [choices]
    float *weights;                    // [choices]
    uint32_t *choice_row;              // [choices]
    uint32_t *shared_tokens;           // [shared]
    uint32_t *shared_rows;             // [tokens]
    uint32_t *row_token;               // [choices] of which the plan's rows are filled, as of
    uint32_t *row_choice;              // [weighed]
    struct expertd_device_tile *tiles; // [tiles] of the first device's ranks, then of the next one's
    size_t bytes;
};

// memory: 4-byte aligned, the host's or a device's; NULL: the bytes are only counted.
struct device_message device_message_in(void *memory, const struct device_message_counts *counts);

// The most that a batch within the limits may take, and where its tiles are then.
struct device_message device_message_most(void *memory, const struct model *model, const struct layer_limits *limits);

#endif
