// Where an MoE block's parts are in a decoder layer: the names under which checkpoints of any architecture store the block, its
// experts' module, router, selection bias and shared expert. The architecture's row decides which parts exist; its names and all
// known names are searched. Pure functions of a checkpoint's names; any thread. Private to expert/layout/.
#ifndef EXPERTD_EXPERT_LAYOUT_BLOCK_NAMES_H
#define EXPERTD_EXPERT_LAYOUT_BLOCK_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "expert/architecture/architecture_row.h"
#include "expert/checkpoint/tensor_finder.h"

// The experts' module of a layer, as lengths of the beginning of a tensor's name: of "model.layers.3.mlp.experts.0.up_proj.weight",
// "model.layers" is the prefix, "model.layers.3" the layer, "model.layers.3.mlp" the block. In files whose layers have no modules,
// block and module are the layer.
struct experts_place {
    const char *name; // borrowed from the checkpoint; NULL: no experts
    size_t prefix, layer, block, module;
};

// Finds the experts' module that contains a tensor, whose name begins with a layer of place->layer bytes. Sets place->block and
// place->module. False: the tensor is not an expert's.
bool block_names_place(const struct tensor_names *names, const struct safetensors_entry *entry, struct experts_place *place);

// Searches of one layer.
struct block_search {
    const struct tensor_finder *finder;
    const struct tensor_names *names; // of the row
    bool parallel_mlp;                // the row's
    char layer[TENSOR_NAME_MAX];      // "model.layers.3"
    char block[TENSOR_NAME_MAX];      // "model.layers.3.mlp"; equal to layer if the parts are modules of the layer itself
    char module[TENSOR_NAME_MAX];     // the experts' module: "model.layers.3.mlp.experts"
};

enum block_part {
    BLOCK_ROUTER,
    BLOCK_ROUTER_BIAS,
    BLOCK_SELECTION_BIAS,
    BLOCK_TOKEN_EXPERTS,
    BLOCK_ROUTER_NORM,
    BLOCK_EXPERT_SCALE,
    BLOCK_SHARED,
    BLOCK_SHARED_GATE,
    BLOCK_OUTPUT_BIAS,
    BLOCK_LATENT_IN,
    BLOCK_LATENT_OUT,
    BLOCK_OUTPUT_NORM,
    BLOCK_PARTS,
};

// Sets `out` to the tensor (BLOCK_SHARED: the module) of the part; if there is none, to the first name that it could have.
// EXPERTD_ERR_CHECKPOINT: two known names exist.
FALLIBLE block_names_find(const struct block_search *search, enum block_part part, char out[TENSOR_NAME_MAX], bool *exists);

// A module of the layer, the first component (or components) of a name below it: "mlp" of "mlp.gate.weight".
struct block_module {
    const char *name;
    size_t length;
};

enum { BLOCK_MODULES_MAX = 48 };

// The modules of the layer in which every tensor must be used: the block, and all others in which the row has a part. Returns their
// number; some may occur twice.
size_t block_names_modules(const struct block_search *search, const struct layer_params *params,
                           struct block_module out[BLOCK_MODULES_MAX]);

#endif
