// One matrix while it is taken out of a checkpoint, and the steps that fill it in, in this order: codes (quantised_tensors.c),
// scales, zero points, global scale, order of k. Private to expert/quantised/.
#ifndef EXPERTD_EXPERT_QUANTISED_QUANTISED_TAKE_H
#define EXPERTD_EXPERT_QUANTISED_QUANTISED_TAKE_H

#include "expert/checkpoint/tensor_finder.h"
#include "expert/quantised/quantised_formats.h"
#include "expert/quantised/quantised_matrix.h"
#include "expert/quantised/quantised_module.h"

struct take {
    struct tensor_finder *finder;
    const struct quantised_module *module;
    const struct stored_format *format;
    const struct quantisation *config;
    const struct safetensors_entry *codes, *scales;
    unsigned bits;
    struct quantisation_setting setting; // of config.json, for this module; set by take_scales
    struct quantised_matrix *out;
};

// The tensor MODULE SUFFIX; NULL: there is none, or the suffix is NULL.
const struct safetensors_entry *quantised_find(const struct tensor_finder *finder, const char *module, const char *suffix);

const char *take_file(const struct take *t, const struct safetensors_entry *entry); // the file of the tensor, for messages

// Compares the shape without the dimension of the experts.
bool take_has_shape(const struct take *t, const struct safetensors_entry *entry, const struct tensor_shape *shape);
err_t take_wrong_shape(const struct take *t, const struct safetensors_entry *entry, const struct tensor_shape *expected);

// Adds the tensor to the bytes of the matrix, and marks it as taken.
void take_range(struct take *t, const struct safetensors_entry *entry);

// EXPERTD_ERR_CHECKPOINT: the tensors contradict each other or config.json.
FALLIBLE take_scales(struct take *t); // after the codes
FALLIBLE take_zeros(struct take *t);  // after the scales, like the rest
FALLIBLE take_global(struct take *t);
FALLIBLE take_order(struct take *t);
void take_original_shape(struct take *t);
void take_extras(struct take *t); // marks the tensors that are ignored

static inline uint64_t take_ceiling(uint64_t a, uint64_t b) {
    return a / b + (a % b != 0);
}

#endif
