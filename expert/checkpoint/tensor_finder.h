// Takes tensors out of a checkpoint by name, each checked for shape and dtype, and remembers which were taken: what is left over in
// an MoE block was not understood. Words every error about a tensor. One owner, during one load; borrows the checkpoint.
#ifndef EXPERTD_EXPERT_CHECKPOINT_TENSOR_FINDER_H
#define EXPERTD_EXPERT_CHECKPOINT_TENSOR_FINDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/checkpoint/checkpoint.h"
#include "expert/checkpoint/layer_tensors.h"
#include "expert/quantised/quantisation.h"
#include "expertd/base/tensor.h"

enum { TENSOR_NAME_MAX = SAFETENSORS_NAME_BYTES_MAX + 256 };

struct tensor_finder {
    const struct checkpoint *checkpoint;
    bool *taken;                      // [checkpoint_count]
    struct quantisation quantisation; // what config.json says; read with the first quantised tensor
    bool quantisation_read;
    uint64_t bytes; // of all that were taken since the caller last set it to 0
};

struct tensor_shape {
    uint32_t rank;
    uint64_t dims[EXPERTD_TENSOR_RANK_MAX];
};

FALLIBLE tensor_finder_init(struct tensor_finder *finder, const struct checkpoint *checkpoint);
void tensor_finder_deinit(struct tensor_finder *finder); // legal on a zeroed struct

// printf into a name; EXPERTD_ERR_CHECKPOINT where it does not fit.
FALLIBLE tensor_name(char name[TENSOR_NAME_MAX], const char *format, ...) __attribute__((format(printf, 2, 3)));

bool tensor_exists(const struct tensor_finder *finder, const char *name);
// The tensor of that name, of any dtype and shape; NULL where there is none. Not taken by this.
const struct safetensors_entry *tensor_look(const struct tensor_finder *finder, const char *name);
// Takes a tensor that was looked at.
void tensor_mark(struct tensor_finder *finder, const struct safetensors_entry *entry);

// The first name that begins with `prefix`, NULL where none does.
const char *tensor_first_below(const struct tensor_finder *finder, const char *prefix);

// Takes a tensor of F32, F16 or BF16 elements. EXPERTD_ERR_CHECKPOINT: it is missing (what lies there in its place is named, and
// the quantisation), quantised, or of another shape than config.json leads to.
FALLIBLE tensor_take(struct tensor_finder *finder, const char *name, const struct tensor_shape *shape,
                     const struct safetensors_entry **out);
// The same, in two forms of the shape: *which is 0 or 1.
FALLIBLE tensor_take_either(struct tensor_finder *finder, const char *name, const struct tensor_shape shapes[2], int *which,
                            const struct safetensors_entry **out);

// A vector [n]; [1, n] is the same.
FALLIBLE tensor_take_vector(struct tensor_finder *finder, const char *name, uint64_t n, struct vector_source *out);
// A matrix [n, k].
FALLIBLE tensor_take_matrix(struct tensor_finder *finder, const char *name, uint64_t n, uint64_t k,
                            struct expertd_weight_source *out);
// A table of ids [rows, columns], I32 or I64, of any number of rows but 0.
FALLIBLE tensor_take_table(struct tensor_finder *finder, const char *name, uint64_t columns, const struct safetensors_entry **out);

// The experts' module, and how its numbers run: below num_experts those that compute, then those that are the identity.
// transformers saves weights of the latter too, which nothing reads.
struct expert_numbers {
    const char *module;
    uint32_t num_experts, num_identity_experts;
};

// Every tensor whose name begins with `block` was taken, or is an identity expert's. EXPERTD_ERR_CHECKPOINT names the first that
// was not.
FALLIBLE tensor_none_left(const struct tensor_finder *finder, const char *block, const struct expert_numbers *experts);

// config.json's say, read once. EXPERTD_ERR_CHECKPOINT as quantisation_read.
FALLIBLE tensor_quantisation(struct tensor_finder *finder, const struct quantisation **out);
// " (quantization_config says quant_method fp8)", or "", into text; returns text.
enum { TENSOR_QUANTISED_TEXT_MAX = 128 };
const char *tensor_quantised_text(const struct tensor_finder *finder, char text[TENSOR_QUANTISED_TEXT_MAX]);

// The experts below `module` ("...mlp.experts.") are there, but in no known layout.
err_t tensor_unknown_layout(const struct tensor_finder *finder, const char *module);

#endif
