// A module of a checkpoint that holds one quantised matrix, or one of each expert. Constant data. Private to expert/.
#ifndef EXPERTD_EXPERT_QUANTISED_QUANTISED_MODULE_H
#define EXPERTD_EXPERT_QUANTISED_QUANTISED_MODULE_H

#include <stdbool.h>
#include <stdint.h>

enum quantised_orientation {
    QUANTISED_ANY,        // by the codes' shape; if both fit, [N, K]
    QUANTISED_ROWS,       // [N, K]
    QUANTISED_TRANSPOSED, // [K, N]; only tensors that hold all experts
};

// The matrix to take.
struct quantised_module {
    const char *name; // "model.layers.3.mlp.experts.0.up_proj"
    uint64_t experts; // the first dimension of tensors that hold all experts; 0: the tensors hold one matrix
    uint64_t n, k;
    enum quantised_orientation orientation;
    uint32_t parts;     // matrices stacked along n, each of which may have a scale of its own: 2 for gate and up; 0 or 1: one
    bool decides_order; // of k, for all matrices of the part: its g_idx is read even if config.json says that k is not sorted
    bool first;         // of its layer: check config.json's list of modules that are not quantised
};

#endif
