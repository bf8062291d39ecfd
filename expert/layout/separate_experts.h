// Experts whose matrices are tensors of their own, one expert in each: module.N.gate_proj, module.gate_proj.N, or of a shared
// expert module.gate_proj. Gate and up may be one matrix. Private to expert/layout/.
#ifndef EXPERTD_EXPERT_LAYOUT_SEPARATE_EXPERTS_H
#define EXPERTD_EXPERT_LAYOUT_SEPARATE_EXPERTS_H

#include <stdbool.h>
#include <stdint.h>

#include "expert/layout/expert_names.h"
#include "expert/layout/layer_tensors.h"

struct separate_experts {
    const char *module;
    const struct expert_layout *layout;
    uint64_t width, hidden; // I, H of the matrices
    bool with_bias;
    bool alternate; // rows of gate and up in one matrix alternate, gate first
};

// Takes the matrices of expert e. EXPERTD_ERR_CHECKPOINT as tensor_take and quantised_take.
FALLIBLE separate_experts_take(struct tensor_finder *finder, const struct separate_experts *experts, uint32_t e,
                               struct expert_source *out);

#endif
