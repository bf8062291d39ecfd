// Takes matrices out of a GGUF file whose elements are codes in blocks. Private to expert/.
#ifndef EXPERTD_EXPERT_QUANTISED_QUANTISED_BLOCKS_H
#define EXPERTD_EXPERT_QUANTISED_QUANTISED_BLOCKS_H

#include "expert/checkpoint/tensor_finder.h"
#include "expert/quantised/quantised_matrix.h"
#include "expert/quantised/quantised_module.h"

// The tensor "module.weight" if its elements are codes in blocks; NULL: there is none.
const struct safetensors_entry *quantised_blocks_find(const struct tensor_finder *finder, const char *module);

// As quantised_take. EXPERTD_ERR_CHECKPOINT: a type that is not served, or another shape.
FALLIBLE quantised_blocks_take(struct tensor_finder *finder, const struct quantised_module *module, struct quantised_matrix *out);

#endif
