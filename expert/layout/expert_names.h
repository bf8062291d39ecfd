// The names of the experts' matrices, in every layout that is known: the sets of names, the arrangements, and which of them a
// module of a checkpoint has. The same for all architectures. Pure functions of a checkpoint's names; any thread. Private to
// expert/layout/.
#ifndef EXPERTD_EXPERT_LAYOUT_EXPERT_NAMES_H
#define EXPERTD_EXPERT_LAYOUT_EXPERT_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/checkpoint/tensor_finder.h"

// How the experts are divided into tensors.
enum expert_arrangement {
    ARRANGED_BY_EXPERT, // module.N.gate_proj
    ARRANGED_BY_PART,   // module.gate_proj.N
    ARRANGED_STACKED,   // module.gate_proj, with the experts as first dimension; of a shared expert: one matrix
    ARRANGEMENTS,
};

// Where the names of a set count.
enum expert_names_place {
    NAMES_IN_MODULE,
    // in GGUF files, as tensors of the layer itself:
    NAMES_STACKED_IN_LAYER,
    NAMES_BY_PART_IN_LAYER,
    NAMES_OF_SHARED_IN_LAYER,
};

// Either gate and up, or gate_up, or up alone (experts without a gate); always down.
struct expert_name_set {
    const char *gate, *up;
    const char *gate_up; // both in one matrix, gate first unless the architecture says otherwise
    const char *down;
    bool may_alternate;        // gate_up: the name under which gpt-oss's tools store alternating rows
    bool down_is_untransposed; // DBRX: stacked, down has the shape of gate
    enum expert_names_place place;
};

struct expert_layout {
    const struct expert_name_set *set;
    enum expert_arrangement arrangement;
    const char *number_prefix; // before an expert's number: "" or "expert_"
};

// Is `rest`, the part of a tensor's name after "module.", the name of an expert's tensor? `bare`: the module is the block itself,
// which may also be a dense network; then only tensors that hold all experts are recognised.
bool expert_names_match(const char *rest, const struct expertd_tensor_view *view, bool bare);
// The same for a name in a GGUF file: `rest` is the part after the layer's.
bool expert_names_match_flat(const char *rest);

// Sets *out to the layout of the experts in `module`. If one matrix of a layout is missing altogether, *out is that layout, so that
// the caller reports the tensor. EXPERTD_ERR_CHECKPOINT: no layout (the message lists the tensors), or two.
FALLIBLE expert_names_find(const struct tensor_finder *finder, const char *module, bool gated, struct expert_layout *out);
// The same for a shared expert. Without any known name, *out is gate_proj, up_proj, down_proj, or what GGUF files have.
FALLIBLE expert_names_find_shared(const struct tensor_finder *finder, const char *module, bool gated, struct expert_layout *out);

// The module of one matrix: "module.3.gate_proj".
FALLIBLE expert_names_module(const struct expert_layout *layout, const char *module, uint32_t expert, const char *part,
                             char out[TENSOR_NAME_MAX]);

// The plain tensor of a matrix's module: "X.weight", "X" or "X_weight"; if none exists, "X" if `stacked`, except in a GGUF file,
// else "X.weight". EXPERTD_ERR_CHECKPOINT: two of them exist.
FALLIBLE expert_names_weight(const struct tensor_finder *finder, const char *module, bool stacked, char out[TENSOR_NAME_MAX]);
// The same for its bias: "X.bias" or "X_bias".
FALLIBLE expert_names_bias(const struct tensor_finder *finder, const char *module, bool stacked, char out[TENSOR_NAME_MAX]);

// Is a plain tensor's name "X.weight"? That is the weight of a linear module, with rows of outputs; a parameter "X" may be
// transposed.
bool expert_names_is_module_weight(const char *name);

// For a matrix that is not quantised: EXPERTD_ERR_CHECKPOINT if it is below an adapter.
FALLIBLE expert_names_check_plain(const struct tensor_finder *finder, const char *module);

#endif
