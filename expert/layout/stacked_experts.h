// Experts that are stacked: one tensor holds a matrix of all experts. Gate and up may be one tensor; tensors may be transposed.
// Private to expert/layout/.
#ifndef EXPERTD_EXPERT_LAYOUT_STACKED_EXPERTS_H
#define EXPERTD_EXPERT_LAYOUT_STACKED_EXPERTS_H

#include <stdbool.h>

#include "expert/layout/expert_names.h"
#include "expert/layout/layer_tensors.h"

// Sets the matrices and biases of out->experts from the module out->prefix. `alternate`: rows (or columns) of gate and up in one
// tensor alternate, gate first. EXPERTD_ERR_CHECKPOINT as tensor_take and quantised_take, and where the shapes fit two
// orientations.
FALLIBLE stacked_experts_take(struct tensor_finder *finder, const struct expert_layout *layout, bool alternate,
                              struct layer_tensors *out);

#endif
