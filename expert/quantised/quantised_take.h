// One matrix while it is taken out of a checkpoint, and the steps that fill it in, in this order: the format, codes, scales, zero
// points, global scale, order of k. Private to expert/quantised/.
#ifndef EXPERTD_EXPERT_QUANTISED_QUANTISED_TAKE_H
#define EXPERTD_EXPERT_QUANTISED_QUANTISED_TAKE_H

#include "expert/checkpoint/tensor_finder.h"
#include "expert/quantised/quantised_formats.h"
#include "expert/quantised/quantised_matrix.h"
#include "expert/quantised/quantised_module.h"
#include "expert/quantised/quantised_names.h"

struct take {
    struct tensor_finder *finder;
    const struct quantised_module *module;
    const struct stored_format *format;
    const struct quantisation *config;
    const struct safetensors_entry *codes, *scales;
    unsigned bits;                       // of a code
    bool transposed;                     // the codes are [K, N], [K / 2, N] or [K * bits / 32, N]
    struct quantisation_setting setting; // of config.json, for this module; set by take_scales
    struct quantised_matrix *out;
};

const char *take_file(const struct take *t, const struct safetensors_entry *entry); // the file of the tensor, for messages

// Compares the shape without the dimension of the experts.
bool take_has_shape(const struct take *t, const struct safetensors_entry *entry, const struct tensor_shape *shape);
err_t take_wrong_shape(const struct take *t, const struct safetensors_entry *entry, const struct tensor_shape *expected);

// Have the codes the shape that t->format requires? Sets t->bits and t->transposed.
bool take_codes_fit(struct take *t);
// Do the module's tensors fit a format, in module->orientation?
bool take_fits(struct take *t);
// Have the scales the shape of groups of t->format->scale_k?
bool take_scales_fit(const struct take *t);
// EXPERTD_ERR_CHECKPOINT: the codes of all experts fit both orientations, and nothing tells which is meant. Tensors called X.weight
// are rows.
FALLIBLE take_check_orientation(const struct take *t);
err_t take_wrong_codes(const struct take *t);

// Adds the tensor to the bytes of the matrix, and marks it as taken.
void take_range(struct take *t, const struct safetensors_entry *entry);

// EXPERTD_ERR_CHECKPOINT: the tensors contradict each other or config.json.
FALLIBLE take_recognise(struct take *t); // sets format, codes, scales, bits and transposed
FALLIBLE take_codes(struct take *t);
FALLIBLE take_scales(struct take *t); // after the codes
FALLIBLE take_zeros(struct take *t);  // after the scales, like the rest
FALLIBLE take_global(struct take *t);
FALLIBLE take_order(struct take *t);
void take_original_shape(struct take *t);
void take_extras(struct take *t); // marks the tensors that are ignored

// Quantisers whose weights are not served, and transformations that change the meaning of codes: recognised by the names of their
// tensors, or by quant_method, and refused by name.
// EXPERTD_ERR_CHECKPOINT: one of the module's tensors is written by such a quantiser only, or changes the meaning of the codes.
FALLIBLE quantised_check_foreign(const struct tensor_finder *finder, const struct quantised_names *names);

// EXPERTD_ERR_CHECKPOINT: quant_method is such a quantiser's, although the codes look like `format`.
FALLIBLE quantised_check_method(const struct tensor_finder *finder, const struct quantisation *config,
                                const struct safetensors_entry *codes, const char *format);

// Of GGUF files: the tensor "module.weight" if its elements are codes in blocks (NULL: there is none), and all steps for it.
// EXPERTD_ERR_CHECKPOINT: a type that is not served, or another shape.
const struct safetensors_entry *take_blocks_find(const struct tensor_finder *finder, const char *module);
FALLIBLE take_blocks(struct tensor_finder *finder, const struct quantised_module *module, struct quantised_matrix *out);

static inline uint64_t take_ceiling(uint64_t a, uint64_t b) {
    return a / b + (a % b != 0);
}

#endif
