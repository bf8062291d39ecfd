// Takes quantised matrices out of a checkpoint: one row of a table for each way in which quantisers write codes, scales and zero
// points, found from tensor names, dtypes and shapes, and checked against config.json. Private to expert/.
#ifndef EXPERTD_EXPERT_QUANTISED_QUANTISED_TENSORS_H
#define EXPERTD_EXPERT_QUANTISED_QUANTISED_TENSORS_H

#include "expert/checkpoint/tensor_finder.h"
#include "expert/quantised/quantised_matrix.h"

struct quantised_place {
    const char *module; // "model.layers.3.mlp.experts.0.up_proj"
    uint64_t experts;   // the first dimension of each tensor, where all experts are in one; 0: the tensors are of one matrix
    uint64_t n, k;
    bool first; // of the layer: config.json's list of modules left out is looked through
};

// Do tensors of a known format begin with the module's name?
bool quantised_exists(const struct tensor_finder *finder, const char *module);

// out: of expert 0 where there are several. EXPERTD_ERR_CHECKPOINT names the tensor that is missing, or is of another dtype or
// shape than its format and config.json lead to; a method that is not known to write such tensors; a module that config.json leaves
// out.
FALLIBLE quantised_take(struct tensor_finder *finder, const struct quantised_place *place, struct quantised_matrix *out);

// Expert e's matrix of tensors with all experts, from expert 0's.
struct quantised_matrix quantised_of_expert(const struct quantised_matrix *first, uint64_t e);

// Says what is missing where a module has codes, but not all of what a format has. OK: it has no codes either.
FALLIBLE quantised_explain(const struct tensor_finder *finder, const char *module);

#endif
