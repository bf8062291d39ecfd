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
    // If parts of a GGUF model are missing: the names below a layer of the block's tensors in any layer, each once, ascending.
    const char **of_block; // [of_block_count]
    size_t of_block_count;
};

// Errors as layer_tensors_find.
FALLIBLE layer_survey_init(struct layer_survey *survey, const struct checkpoint *checkpoint,
                           const struct architecture *architecture);
void layer_survey_deinit(struct layer_survey *survey); // legal on a zeroed struct

// If parts of a GGUF model are missing, a layer's tensors are known to be complete only by comparison: EXPERTD_ERR_CHECKPOINT if
// another layer with experts has a tensor of the block that this one lacks, or if no other layer has experts.
FALLIBLE layer_survey_check_siblings(const struct layer_survey *survey, uint32_t layer);

// Counts the selected layers that hold experts and compares each selected layer with config.json. Their experts must be in one
// module each, all in one decoder. Errors as layer_tensors_find.
FALLIBLE layer_survey_count(const struct layer_survey *survey, const struct layer_tensors_options *options, size_t *count);

#endif
