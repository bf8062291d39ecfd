// Weights from a checkpoint folder. Tensors are read in the mapped files; nothing is copied. Private to expert/.
#ifndef EXPERTD_EXPERT_SUPPLY_CHECKPOINT_SUPPLY_H
#define EXPERTD_EXPERT_SUPPLY_CHECKPOINT_SUPPLY_H

#include "expert/supply/supply.h"

// Opens the folder and finds its selected MoE layers. Errors as checkpoint_open, architecture_find and layer_tensors_find. On
// success `out` is to be closed by supply_close.
FALLIBLE checkpoint_supply(const char *folder, const struct layer_tensors_options *options, struct supply *out);

#endif
