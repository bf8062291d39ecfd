// Layers of equal shape as one row of a table: "layers 3-60" instead of 58 lines. Pure.
#ifndef EXPERTD_CLIENT_EXPERTCTL_PRINT_LAYER_RANGES_H
#define EXPERTD_CLIENT_EXPERTCTL_PRINT_LAYER_RANGES_H

#include <stddef.h>

#include "proto/control/control.h"

struct layer_range {
    const struct describe_layer *first; // [count] neighbours in the description
    size_t count;
};

// The next range from layers[at] on: neighbours whose numbers follow each other and that differ in nothing that the table shows,
// the weights id aside. at < count.
struct layer_range layer_range_next(const struct describe_layer *layers, size_t count, size_t at);

enum { LAYER_RANGE_TEXT_MAX = 24, LAYER_PREFIX_TEXT_MAX = 256 };

// "3" or "3-60".
const char *layer_range_text(const struct layer_range *range, char text[LAYER_RANGE_TEXT_MAX]);

// The range's module prefix: "model.layers.3.mlp.experts", or of several layers "model.layers.*.mlp.experts".
const char *layer_range_prefix(const struct layer_range *range, char text[LAYER_PREFIX_TEXT_MAX]);

#endif
