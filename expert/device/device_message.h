// The message that describes one batch to the first device: all its arrays one after another, at the same offsets in the host's
// pinned memory and in the device's, so that one copy sends it. (Each copy, of any size, costs the host 3 us.) Other devices get
// their tiles only. Pure; nothing is copied here. Private to expert/.
#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_MESSAGE_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_MESSAGE_H

#include "expert/layer/layer_request.h"
#include "expertd/kernels/device.h"

// Of one batch, or the most that a batch may have.
struct device_message_counts {
    size_t choices, tokens, shared; // T * K, T, tokens that want the shared experts
    size_t weighed;                 // choices, where the layer weighs inputs; else 0
    size_t tiles;                   // of all devices; the last array, so that no offset depends on their number
};

// The outputs of a router on the device come first: one copy brings them back, and one without them sends the rest.
struct device_message {
    int32_t *ids;                      // [choices]
    float *weights;                    // [choices]
    uint32_t *choice_row;              // [choices]
    uint32_t *shared_tokens;           // [shared]
    uint32_t *shared_rows;             // [tokens]
    uint32_t *row_token;               // [choices] the first plan.rows are filled, as in row_choice
    uint32_t *row_choice;              // [weighed]
    struct expertd_device_tile *tiles; // [tiles] of the first device's ranks, then of the next one's
    size_t bytes;
};

// memory: 4-byte aligned, the host's or a device's; NULL: the bytes are only counted.
struct device_message device_message_in(void *memory, const struct device_message_counts *counts);

// The largest message of a batch within the limits; its tiles begin where a message's tiles begin at most.
struct device_message device_message_most(void *memory, const struct model *model, const struct layer_limits *limits);

// Tiles of all devices that a batch within the limits may need.
size_t device_message_tiles(const struct layer_limits *limits, const struct model *model);

// Tiles of that many rows over `rows`, as one group.
static inline size_t device_tiles_over(size_t rows, uint32_t tile_rows) {
    return (rows + tile_rows - 1) / tile_rows;
}

#endif
