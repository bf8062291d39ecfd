// Groups consecutive layers of equal shape into one table row: "3-60" instead of 58 rows. Pure.
#ifndef EXPERTD_CLIENT_EXPERTCTL_PRINT_LAYER_RANGES_H
#define EXPERTD_CLIENT_EXPERTCTL_PRINT_LAYER_RANGES_H

#include <stddef.h>

#include "proto/control/control.h"

struct layer_range {
    const struct describe_layer *first; // [count] consecutive entries of the description
    size_t count;
};

// The range that begins at layers[at]: layers with consecutive numbers that are equal in everything that the table shows, except
// the weights id. at < count.
struct layer_range layer_range_next(const struct describe_layer *layers, size_t count, size_t at);

enum { LAYER_RANGE_TEXT_MAX = 24, LAYER_PREFIX_TEXT_MAX = 256 };

// "3" or "3-60".
const char *layer_range_text(const struct layer_range *range, char text[LAYER_RANGE_TEXT_MAX]);

// The range's module prefix: "model.layers.3.mlp.experts", or for several layers "model.layers.*.mlp.experts".
const char *layer_range_prefix(const struct layer_range *range, char text[LAYER_PREFIX_TEXT_MAX]);

#endif
