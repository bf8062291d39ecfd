// Takes tensors out of a checkpoint by name, checks shape and dtype, and marks them as taken. A tensor of an MoE block that is not
// taken in the end is an error (layout/block_leftovers.h). One owner, during one load; borrows the checkpoint. Private to
// expert/.
#ifndef EXPERTD_EXPERT_CHECKPOINT_TENSOR_FINDER_H
#define EXPERTD_EXPERT_CHECKPOINT_TENSOR_FINDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/checkpoint/checkpoint.h"
#include "expert/checkpoint/vector_source.h"
#include "expert/config/quantisation.h"
#include "expertd/base/tensor.h"
#include "expertd/kernels/weights.h"

enum { TENSOR_NAME_MAX = SAFETENSORS_NAME_BYTES_MAX + 256, TENSOR_SIZES_TEXT_MAX = 384 };

struct tensor_finder {
    const struct checkpoint *checkpoint;
    bool *taken; // [checkpoint_count]
    // "num_experts 8, hidden_size 64": config.json's keys that give the shapes, for messages; the caller sets it for a layer
    char sizes[TENSOR_SIZES_TEXT_MAX];
    uint64_t bytes; // of the tensors taken since the caller last set it to 0
};

struct tensor_shape {
    uint32_t rank;
    uint64_t dims[EXPERTD_TENSOR_RANK_MAX];
};

FALLIBLE tensor_finder_init(struct tensor_finder *finder, const struct checkpoint *checkpoint);
void tensor_finder_deinit(struct tensor_finder *finder); // legal on a zeroed struct

// Formats a name like printf. EXPERTD_ERR_CHECKPOINT: it does not fit.
FALLIBLE tensor_name(char name[TENSOR_NAME_MAX], const char *format, ...) __attribute__((format(printf, 2, 3)));

bool tensor_exists(const struct tensor_finder *finder, const char *name);
// Finds a tensor of any dtype and shape, and does not take it. NULL: there is none.
const struct safetensors_entry *tensor_look(const struct tensor_finder *finder, const char *name);
bool tensor_is_taken(const struct tensor_finder *finder, const struct safetensors_entry *entry);
// Marks a tensor returned by tensor_look as taken.
void tensor_mark(struct tensor_finder *finder, const struct safetensors_entry *entry);

// Has the tensor the shape? Outermost dimensions of 1 in a GGUF file may be padding; ggml always has four.
bool tensor_has_shape(const struct tensor_finder *finder, const struct expertd_tensor_view *view, const struct tensor_shape *shape);

// The first name that begins with `prefix`; NULL: none.
const char *tensor_first_below(const struct tensor_finder *finder, const char *prefix);

// Takes a tensor of F32, F16 or BF16 elements. EXPERTD_ERR_CHECKPOINT: it is missing (the message names a quantised tensor that
// exists instead), quantised, or of another shape.
FALLIBLE tensor_take(struct tensor_finder *finder, const char *name, const struct tensor_shape *shape,
                     const struct safetensors_entry **out);
// The same with two permitted shapes; *which is the index of the one found.
FALLIBLE tensor_take_either(struct tensor_finder *finder, const char *name, const struct tensor_shape shapes[2], int *which,
                            const struct safetensors_entry **out);

// A vector [n] or [1, n].
FALLIBLE tensor_take_vector(struct tensor_finder *finder, const char *name, uint64_t n, struct vector_source *out);
// A matrix [n, k].
FALLIBLE tensor_take_matrix(struct tensor_finder *finder, const char *name, uint64_t n, uint64_t k,
                            struct expertd_weight_source *out);
// The same for tensors that may have codes in blocks, of any type.
FALLIBLE tensor_take_any_vector(struct tensor_finder *finder, const char *name, uint64_t n, struct vector_source *out);
FALLIBLE tensor_take_any_matrix(struct tensor_finder *finder, const char *name, uint64_t n, uint64_t k, struct matrix_source *out);
// A table of ids [rows, columns], I32 or I64, with at least one row.
FALLIBLE tensor_take_table(struct tensor_finder *finder, const char *name, uint64_t columns, const struct safetensors_entry **out);

// For messages: " (quantization_config says quant_method fp8)", or "" without such a section; returns text.
enum { TENSOR_QUANTISED_TEXT_MAX = 128 };
const char *tensor_quantised_text(const struct tensor_finder *finder, char text[TENSOR_QUANTISED_TEXT_MAX]);

#endif
