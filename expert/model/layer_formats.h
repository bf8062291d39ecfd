// The names of the formats in which a layer's experts are stored, for Describe, the status page and messages. Private to
// expert/.
#ifndef EXPERTD_EXPERT_MODEL_LAYER_FORMATS_H
#define EXPERTD_EXPERT_MODEL_LAYER_FORMATS_H

#include "expert/supply/supply.h"

enum { LAYER_FORMATS_EXPERT_MAX = 3 * QUANTISED_NAME_MAX };

// One expert's formats: "mxfp4" if all matrices have one; "int4_group32+bf16" if down has another; "int4_group32+f16+bf16" for
// gate, up and down if gate and up differ. Returns text. expert: may be SUPPLY_SHARED.
const char *layer_formats_of_expert(const struct supply *supply, const struct layer_tensors *tensors, uint32_t expert,
                                    char text[LAYER_FORMATS_EXPERT_MAX]);

// All formats of the routed experts, the most frequent first: "int4_group32, f16". "": all are plain, of one dtype. Cut to fit;
// "..." then stands for the rest. Returns true if some routed expert has codes.
bool layer_formats_text(const struct supply *supply, const struct layer_tensors *tensors, char *out, size_t bytes);

#endif
