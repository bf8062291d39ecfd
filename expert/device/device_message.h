// The message that describes one batch to the first device. Its arrays lie one after another, at the same offsets in the host's
// pinned memory and in device memory, so that one copy sends them all. (Each copy, of any size, costs the host 3 us.) The other
// devices get only their tiles. This module computes offsets and copies nothing. Private to expert/.
#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_MESSAGE_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_MESSAGE_H

#include "expert/layer/layer_request.h"
#include "expertd/kernels/device.h"

// Lengths of the arrays: of one batch, or the maximum.
struct device_message_counts {
    size_t choices, tokens, shared; // T * K, T, tokens with shared experts
    size_t weighed;                 // = choices if the layer applies weights to the input, else 0
    size_t tiles;                   // of all devices; the last array, so that no offset depends on its length
};

// ids and weights come first: one copy downloads them if the device routes, and one copy uploads the rest without them.
struct device_message {
    int32_t *ids;                      // [choices]
    float *weights;                    // [choices]
    uint32_t *choice_row;              // [choices]
    uint32_t *shared_tokens;           // [shared]
    uint32_t *shared_rows;             // [tokens]
    uint32_t *row_token;               // [choices] the first plan.rows are used, as in row_choice
    uint32_t *row_choice;              // [weighed]
    struct expertd_device_tile *tiles; // [tiles] those of the first device's ranks, then those of the next device's
    size_t bytes;
};

// memory: the host's or a device's, 4-byte aligned. NULL: the bytes are only counted.
struct device_message device_message_in(void *memory, const struct device_message_counts *counts);

// The largest message within the limits. In every smaller message `tiles` begins at the same offset or earlier.
struct device_message device_message_max(void *memory, const struct model *model, const struct layer_limits *limits);

// The largest number of tiles, of all devices together, of a batch within the limits.
size_t device_message_tiles(const struct layer_limits *limits, const struct model *model);

// Tiles of tile_rows rows that cover one group of `rows` rows.
static inline size_t device_tiles_over(size_t rows, uint32_t tile_rows) {
    return (rows + tile_rows - 1) / tile_rows;
}

#endif
