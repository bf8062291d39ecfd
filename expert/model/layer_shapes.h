// The shapes of a layer's expert blocks, computed from the formats of its tensors. Experts whose matrices have the same formats
// share one shape. Widened and plain matrices have the compute dtype, whatever dtype they are stored in. Private to expert/.
#ifndef EXPERTD_EXPERT_MODEL_LAYER_SHAPES_H
#define EXPERTD_EXPERT_MODEL_LAYER_SHAPES_H

#include "base/err.h"
#include "expert/model/expert_block.h"
#include "expert/supply/supply.h"

// A shape, and the formats that its matrices point to. Must not be copied.
struct layer_shape {
    struct expert_shape shape;
    struct expertd_quantised_format format[EXPERT_MATRICES];
};

struct layer_shapes {
    uint32_t count;
    struct layer_shape all[EXPERT_SHAPES_MAX];
    uint8_t *of_expert; // [E] index into `all`; owned
};

// The shape of one expert's block; expert: SUPPLY_SHARED, or a routed expert. EXPERTD_ERR_CHECKPOINT: the expert cannot be computed
// in its formats, but widened. EXPERTD_ERR_NOMEM: larger than any memory.
FALLIBLE layer_shape_of(const struct supply *supply, const struct layer_tensors *tensors, uint32_t expert, enum expertd_dtype dtype,
                        struct layer_shape *out);

// The shapes of all routed experts. Errors as layer_shape_of; EXPERTD_ERR_CHECKPOINT: more than EXPERT_SHAPES_MAX. Free *out also
// on error.
FALLIBLE layer_shapes_find(const struct supply *supply, const struct layer_tensors *tensors, enum expertd_dtype dtype,
                           struct layer_shapes *out);
void layer_shapes_free(struct layer_shapes *shapes); // legal on a zeroed struct

// Sets everything of *out but its data and groups. format: of codes that stay quantised in memory, borrowed; NULL: plain elements.
FALLIBLE packed_matrix_size(enum expertd_dtype dtype, const struct expertd_quantised_format *format,
                            const struct supply_matrix *matrix, struct expertd_packed_weights *out);

#endif
