// The first pass over a checkpoint's tensor names: which decoder layers hold experts, and under which name. config.json must agree.
// Private to expert/layout/.
#ifndef EXPERTD_EXPERT_LAYOUT_LAYER_SURVEY_H
#define EXPERTD_EXPERT_LAYOUT_LAYER_SURVEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/architecture/architecture_row.h"
#include "expert/checkpoint/checkpoint.h"
#include "expert/layout/block_names.h"
#include "expert/layout/layer_tensors.h"

struct layer_survey {
    const struct checkpoint *checkpoint;
    const struct architecture *architecture;
    uint32_t num_layers;
    struct experts_place *experts; // [num_layers] name NULL: a dense layer
    struct experts_place *others;  // [num_layers] a second module that holds experts of the layer; name NULL: none
    struct experts_place first;    // of any layer
};

// Errors as layer_tensors_find.
FALLIBLE layer_survey_init(struct layer_survey *survey, const struct checkpoint *checkpoint,
                           const struct architecture *architecture);
void layer_survey_deinit(struct layer_survey *survey); // legal on a zeroed struct

// Counts the selected layers that hold experts and compares each selected layer with config.json. Their experts must be in one
// module each, all in one decoder. Errors as layer_tensors_find.
FALLIBLE layer_survey_count(const struct layer_survey *survey, const struct layer_tensors_options *options, size_t *count);

#endif
