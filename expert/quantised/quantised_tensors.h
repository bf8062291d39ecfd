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

// The orientations that the shape of a module's codes fits. Both: the matrix is square, or its format has one orientation only.
struct quantised_orientations {
    bool rows, transposed;
};
FALLIBLE quantised_orientations(struct tensor_finder *finder, const struct quantised_module *module,
                                struct quantised_orientations *out);

// Expert e's matrix, computed from the first expert's.
struct quantised_matrix quantised_of_expert(const struct quantised_matrix *first, uint64_t e);

// Of GGUF files: the matrix of rows of k elements in a tensor whose elements are codes in blocks; of several experts the first's.
// The type is served (quantised_check_blocks).
struct quantised_matrix quantised_of_blocks(const struct safetensors_entry *entry, uint64_t experts, uint64_t k);
// EXPERTD_ERR_CHECKPOINT: the tensor's type is not served. entry NULL: OK.
FALLIBLE quantised_check_blocks(const struct tensor_finder *finder, const struct safetensors_entry *entry);

// For a module that does not exist as quantised: EXPERTD_ERR_CHECKPOINT if it has codes but not all tensors of a format; OK if it
// has no codes at all.
FALLIBLE quantised_explain(const struct tensor_finder *finder, const char *module);

// EXPERTD_ERR_CHECKPOINT: the name of a tensor that begins with `below` is of a quantiser that is not served.
FALLIBLE quantised_refuse_foreign(const struct checkpoint *checkpoint, const char *below);

// Is a scale of activations one number, two for gate and up, or so many for each of `experts`? A longer one may be a factor of each
// input, which would change the outputs.
bool quantised_is_number(const struct safetensors_entry *entry, uint64_t experts);

#endif
