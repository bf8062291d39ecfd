// Synthetic models: the shapes and routers of published models with seeded weights instead of files. For trials, sizing and load
// tests.
#ifndef EXPERTD_EXPERT_SYNTHETIC_SYNTHETIC_H
#define EXPERTD_EXPERT_SYNTHETIC_SYNTHETIC_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "expert/supply/supply.h"

// Does the model's name begin with "synthetic:"?
bool synthetic_is(const char *model);

// Opens synthetic:PRESET[,layers=N][,experts=N][,seed=S][,format=F] as a supply of the selected layers. EXPERTD_ERR_CONFIG: an
// unknown preset or format (the message lists them, and suggests a preset), an unknown key, a number out of range, more layers than
// the model has, a number of experts that the preset's router cannot choose from, or no selected layer that holds experts. On
// success `out` is to be closed by supply_close; it must not be copied, since out->identity points into it.
FALLIBLE synthetic_supply(const char *model, const struct layer_tensors_options *options, struct supply *out);

// The i-th preset's name; NULL past the end.
const char *synthetic_preset(size_t i);

#endif
