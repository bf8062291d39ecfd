// Takes quantised matrices out of a checkpoint: recognises their format (a row of quantised_formats.h) by tensor names and dtypes,
// and checks shapes against it and against config.json. Private to expert/.
#ifndef EXPERTD_EXPERT_QUANTISED_QUANTISED_TENSORS_H
#define EXPERTD_EXPERT_QUANTISED_QUANTISED_TENSORS_H

#include "expert/checkpoint/tensor_finder.h"
#include "expert/quantised/quantised_matrix.h"
#include "expert/quantised/quantised_module.h"

// Does the module have tensors of a known format?
bool quantised_exists(const struct tensor_finder *finder, const char *module);

// *out: the matrix; if the tensors hold all experts, the matrix of the first expert. EXPERTD_ERR_CHECKPOINT: a tensor is missing or
// has an unexpected dtype or shape, the quant_method does not write such tensors, or config.json excludes the module from
// quantisation.
FALLIBLE quantised_take(struct tensor_finder *finder, const struct quantised_module *module, struct quantised_matrix *out);

// The matrices of a module that holds gate and up, n = 2 * I: gate's rows first, or alternating. Sets gate_up->parts. Errors as
// quantised_take, and gate and up share words or blocks that cannot be split.
FALLIBLE quantised_take_gate_up(struct tensor_finder *finder, struct quantised_module *gate_up, bool alternating,
                                struct quantised_matrix *gate, struct quantised_matrix *up);

// The matrices of a fused pair: gate and up in one matrix [2 * I, H], and down [H, I]. The two modules have the same orientation;
// their `orientation` and `parts` are set here. Errors as above, and the two have different orientations.
struct quantised_fused {
    struct quantised_matrix gate, up, down;
};
FALLIBLE quantised_take_fused(struct tensor_finder *finder, struct quantised_module *gate_up, struct quantised_module *down,
                              bool alternating, struct quantised_fused *out);

// Expert e's matrix, computed from the first expert's.
struct quantised_matrix quantised_of_expert(const struct quantised_matrix *first, uint64_t e);

// For a module that does not exist as quantised: EXPERTD_ERR_CHECKPOINT if it has codes but not all tensors of a format; OK if it
// has no codes at all.
FALLIBLE quantised_explain(const struct tensor_finder *finder, const char *module);

// EXPERTD_ERR_CHECKPOINT: the name of a tensor that begins with `below` is of a quantiser that is not served.
FALLIBLE quantised_refuse_foreign(const struct checkpoint *checkpoint, const char *below);

#endif
