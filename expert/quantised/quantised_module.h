// A module of a checkpoint whose matrix is quantised. Private to expert/.
#ifndef EXPERTD_EXPERT_QUANTISED_QUANTISED_MODULE_H
#define EXPERTD_EXPERT_QUANTISED_QUANTISED_MODULE_H

#include <stdbool.h>
#include <stdint.h>

// The matrix to take.
struct quantised_module {
    const char *name; // "model.layers.3.mlp.experts.0.up_proj"
    uint64_t experts; // the first dimension of tensors that hold all experts; 0: the tensors hold one matrix
    uint64_t n, k;
    bool first; // of its layer: check config.json's list of modules that are not quantised
};

#endif
