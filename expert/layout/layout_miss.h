// The errors for experts that were not found, or not in a known layout: they list the tensors that look like experts. Pure
// functions of a checkpoint's names; any thread. Private to expert/layout/.
#ifndef EXPERTD_EXPERT_LAYOUT_LAYOUT_MISS_H
#define EXPERTD_EXPERT_LAYOUT_LAYOUT_MISS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "expert/checkpoint/checkpoint.h"

enum { LAYOUT_TENSORS_TEXT_MAX = 512 };

// "24 x model.layers.N.mlp.experts.N.up.weight F32 [4, 6]; ...": the tensors whose name begins with `below`, with numbers replaced
// by N, and how many there are of each kind; without those that begin with `except`, unless it is NULL. below NULL: the tensors
// anywhere whose name looks like that of an expert. "nothing" if there are none. Returns text.
const char *layout_tensors_text(const struct checkpoint *checkpoint, const char *below, const char *except,
                                char text[LAYOUT_TENSORS_TEXT_MAX]);

// Does the name of some tensor look like that of an expert?
bool layout_has_like_experts(const struct checkpoint *checkpoint);

// The error for experts in `module` whose names belong to no layout.
err_t layout_miss(const struct checkpoint *checkpoint, const char *module, bool gated);

#endif
