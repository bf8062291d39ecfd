// Finds lost tensors of zero points. Matrices of a layer may have different formats; but if formats differ in nothing but zero
// points, and config.json does not say so, a tensor is probably missing, and the codes beside it would be read wrongly. Private to
// expert/layout/.
#ifndef EXPERTD_EXPERT_LAYOUT_ZERO_POINTS_H
#define EXPERTD_EXPERT_LAYOUT_ZERO_POINTS_H

#include "base/err.h"
#include "expert/layout/layer_tensors.h"

// Compares gate and up of all routed experts with each other, and down of all of them. EXPERTD_ERR_CHECKPOINT names both matrices.
// path: of the checkpoint, for the message.
FALLIBLE zero_points_check(const char *path, const struct layer_tensors *layer);

// The same for gate and up of the shared expert in the module `name`.
FALLIBLE zero_points_check_shared(const char *path, const char *name, const struct expert_source *shared);

#endif
