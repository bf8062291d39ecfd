#include "expert/checkpoint/tensor_finder.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/gguf/ggml_types.h"

#define UNSUPPORTED "this format of quantised weights is not supported: use the model's BF16 checkpoint"

FALLIBLE tensor_finder_init(struct tensor_finder *finder, const struct checkpoint *checkpoint) {
    *finder = (struct tensor_finder){.checkpoint = checkpoint};
    finder->taken = calloc(checkpoint_count(checkpoint) + 1, sizeof *finder->taken);
    if (!finder->taken) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory to mark %zu tensors", checkpoint_count(checkpoint));
    }
    return OK;
}

void tensor_finder_deinit(struct tensor_finder *finder) {
    free(finder->taken);
    *finder = (struct tensor_finder){0};
}

FALLIBLE tensor_name(char name[TENSOR_NAME_MAX], const char *format, ...) {
    va_list args;
    va_start(args, format);
    int length = vsnprintf(name, TENSOR_NAME_MAX, format, args);
    va_end(args);
    if (length < 0 || length >= TENSOR_NAME_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the tensor name %.128s... is too long", name);
    }
    return OK;
}

bool tensor_exists(const struct tensor_finder *finder, const char *name) {
    return checkpoint_find(finder->checkpoint, name) != NULL;
}

const struct safetensors_entry *tensor_look(const struct tensor_finder *finder, const char *name) {
    return checkpoint_find(finder->checkpoint, name);
}

bool tensor_is_taken(const struct tensor_finder *finder, const struct safetensors_entry *entry) {
    return finder->taken[checkpoint_lower_bound(finder->checkpoint, entry->name)];
}

void tensor_mark(struct tensor_finder *finder, const struct safetensors_entry *entry) {
    size_t i = checkpoint_lower_bound(finder->checkpoint, entry->name);
    finder->bytes += finder->taken[i] ? 0 : entry->view.bytes;
    finder->taken[i] = true;
}

const char *tensor_first_below(const struct tensor_finder *finder, const char *prefix) {
    size_t i = checkpoint_lower_bound(finder->checkpoint, prefix);
    if (i == checkpoint_count(finder->checkpoint)) {
        return NULL;
    }
    const char *name = checkpoint_at(finder->checkpoint, i)->name;
    return strncmp(name, prefix, strlen(prefix)) == 0 ? name : NULL;
}

const char *tensor_quantised_text(const struct tensor_finder *finder, char text[TENSOR_QUANTISED_TEXT_MAX]) {
    const struct config *place;
    const char *section = quantisation_section(checkpoint_config(finder->checkpoint), &place);
    char key[64], method[64];
    text[0] = '\0';
    if (!section) {
        return text;
    }
    snprintf(key, sizeof key, "%s.quant_method", section);
    if (config_value_text(place, key, method, sizeof method)) {
        snprintf(text, TENSOR_QUANTISED_TEXT_MAX, " (%s says quant_method %s)", section, method);
    } else {
        snprintf(text, TENSOR_QUANTISED_TEXT_MAX, " (%s names no quant_method)", section);
    }
    return text;
}

// Suffixes that quantisers use instead of "X.weight", or instead of "X" of all experts.
static const char *const QUANTISED_SUFFIXES[] = {".weight_packed", ".qweight",          "_blocks",
                                                 ".weight_scale",  ".weight_scale_inv", ".scale"};

// The name of a quantised tensor that exists instead of `name`; NULL: none.
static const char *found_instead(const struct tensor_finder *finder, const char *name) {
    char instead[TENSOR_NAME_MAX];
    size_t length = strlen(name), suffix = strlen(".weight");
    if (length > suffix && strcmp(name + length - suffix, ".weight") == 0) {
        length -= suffix;
    }
    for (size_t i = 0; i < sizeof QUANTISED_SUFFIXES / sizeof *QUANTISED_SUFFIXES; i++) {
        snprintf(instead, sizeof instead, "%.*s%s", (int)length, name, QUANTISED_SUFFIXES[i]);
        const struct safetensors_entry *entry = checkpoint_find(finder->checkpoint, instead);
        if (entry) {
            return entry->name;
        }
    }
    return NULL;
}

static err_t missing(const struct tensor_finder *finder, const char *name) {
    char quantised[TENSOR_QUANTISED_TEXT_MAX];
    char what[TENSOR_NAME_MAX];
    TRY(checkpoint_require(finder->checkpoint, name)); // listed, but in a file that could not be read
    snprintf(what, sizeof what, "tensor %s", name);
    TRY(checkpoint_require_parts(finder->checkpoint, what));
    const char *instead = found_instead(finder, name), *path = checkpoint_path(finder->checkpoint);
    if (instead) {
        return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s: tensor %s is missing, but %s exists instead%s: " UNSUPPORTED, path,
                          name, instead, tensor_quantised_text(finder, quantised));
    }
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s: tensor %s is missing%s; %s (%s) requires it: is the download complete?",
                      path, name, tensor_quantised_text(finder, quantised), config_label(checkpoint_config(finder->checkpoint)),
                      finder->sizes);
}

bool tensor_has_shape(const struct tensor_finder *finder, const struct expertd_tensor_view *view,
                      const struct tensor_shape *shape) {
    uint32_t first = 0;
    while (checkpoint_is_gguf(finder->checkpoint) && view->rank - first > shape->rank && view->shape[first] == 1) {
        first++;
    }
    return view->rank - first == shape->rank && memcmp(view->shape + first, shape->dims, shape->rank * sizeof *shape->dims) == 0;
}

static FALLIBLE check_dtype(const struct tensor_finder *finder, const struct safetensors_entry *entry) {
    if (expertd_dtype_is_float16_or_32(entry->view.dtype)) {
        return OK;
    }
    char quantised[TENSOR_QUANTISED_TEXT_MAX];
    const char *dtype = entry->blocks                             ? entry->blocks->name
                        : entry->view.dtype == EXPERTD_DTYPE_NONE ? "of an unsupported dtype"
                                                                  : expertd_dtype_name(entry->view.dtype);
    FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s%s: expected F32, F16 or BF16; %s",
         checkpoint_file_of(finder->checkpoint, entry), entry->name, dtype, tensor_quantised_text(finder, quantised),
         entry->view.dtype == EXPERTD_DTYPE_F64 ? "convert the checkpoint to BF16 or F32" : UNSUPPORTED);
}

static FALLIBLE take_either(struct tensor_finder *finder, const char *name, const struct tensor_shape shapes[2], bool blocks,
                            int *which, const struct safetensors_entry **out) {
    const struct safetensors_entry *entry = tensor_look(finder, name);
    if (!entry) {
        return missing(finder, name);
    }
    TRY(entry->blocks && blocks ? OK : check_dtype(finder, entry));
    bool first = tensor_has_shape(finder, &entry->view, &shapes[0]);
    if (!first && !tensor_has_shape(finder, &entry->view, &shapes[1])) {
        char found[EXPERTD_TENSOR_SHAPE_TEXT_MAX], expected[2][EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        expertd_tensor_shape_text(shapes[0].dims, shapes[0].rank, expected[0]);
        expertd_tensor_shape_text(shapes[1].dims, shapes[1].rank, expected[1]);
        bool one = strcmp(expected[0], expected[1]) == 0;
        const char *label = config_label(checkpoint_config(finder->checkpoint));
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s, but %s requires %s%s%s (%s): the two belong to different models",
             checkpoint_file_of(finder->checkpoint, entry), name,
             expertd_tensor_shape_text(entry->view.shape, entry->view.rank, found), label, expected[0], one ? "" : " or ",
             one ? "" : expected[1], finder->sizes);
    }
    tensor_mark(finder, entry);
    *which = first ? 0 : 1;
    *out = entry;
    return OK;
}

FALLIBLE tensor_take_either(struct tensor_finder *finder, const char *name, const struct tensor_shape shapes[2], int *which,
                            const struct safetensors_entry **out) {
    return take_either(finder, name, shapes, false, which, out);
}

FALLIBLE tensor_take(struct tensor_finder *finder, const char *name, const struct tensor_shape *shape,
                     const struct safetensors_entry **out) {
    int which;
    const struct tensor_shape shapes[2] = {*shape, *shape};
    return tensor_take_either(finder, name, shapes, &which, out);
}

static FALLIBLE take_vector(struct tensor_finder *finder, const char *name, uint64_t n, bool blocks, struct vector_source *out) {
    const struct tensor_shape shapes[2] = {{1, {n}}, {2, {1, n}}};
    const struct safetensors_entry *entry = NULL;
    int which;
    TRY(take_either(finder, name, shapes, blocks, &which, &entry));
    INVARIANT(entry != NULL);
    *out = (struct vector_source){
        .data = entry->view.data, .dtype = entry->view.dtype, .stride = 1, .blocks = entry->blocks ? entry : NULL};
    return OK;
}

FALLIBLE tensor_take_vector(struct tensor_finder *finder, const char *name, uint64_t n, struct vector_source *out) {
    return take_vector(finder, name, n, false, out);
}

FALLIBLE tensor_take_any_vector(struct tensor_finder *finder, const char *name, uint64_t n, struct vector_source *out) {
    return take_vector(finder, name, n, true, out);
}

static FALLIBLE take_matrix(struct tensor_finder *finder, const char *name, uint64_t n, uint64_t k, bool blocks,
                            struct matrix_source *out) {
    // GGUF files have a matrix of one row as a vector.
    const bool vector = n == 1 && checkpoint_is_gguf(finder->checkpoint);
    const struct tensor_shape matrix = {2, {n, k}}, shapes[2] = {matrix, vector ? (struct tensor_shape){1, {k}} : matrix};
    const struct safetensors_entry *entry = NULL;
    int which;
    TRY(take_either(finder, name, shapes, blocks, &which, &entry));
    INVARIANT(entry != NULL);
    *out = (struct matrix_source){
        .plain = {.data = entry->view.data, .dtype = entry->view.dtype, .n_stride = k, .k_stride = 1},
        .blocks = entry->blocks ? entry : NULL,
    };
    return OK;
}

FALLIBLE tensor_take_matrix(struct tensor_finder *finder, const char *name, uint64_t n, uint64_t k,
                            struct expertd_weight_source *out) {
    struct matrix_source source;
    TRY(take_matrix(finder, name, n, k, false, &source));
    *out = source.plain;
    return OK;
}

FALLIBLE tensor_take_any_matrix(struct tensor_finder *finder, const char *name, uint64_t n, uint64_t k, struct matrix_source *out) {
    return take_matrix(finder, name, n, k, true, out);
}

FALLIBLE tensor_take_table(struct tensor_finder *finder, const char *name, uint64_t columns, const struct safetensors_entry **out) {
    const struct safetensors_entry *entry = tensor_look(finder, name);
    if (!entry) {
        return missing(finder, name);
    }
    const struct expertd_tensor_view *view = &entry->view;
    bool ids = view->dtype == EXPERTD_DTYPE_I32 || view->dtype == EXPERTD_DTYPE_I64;
    if (!ids || view->rank != 2 || view->shape[0] == 0 || view->shape[0] > INT32_MAX || view->shape[1] != columns) {
        char found[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s%s: expected I32 or I64 of [tokens, %" PRIu64 "]",
             checkpoint_file_of(finder->checkpoint, entry), name, expertd_dtype_name(view->dtype),
             expertd_tensor_shape_text(view->shape, view->rank, found), columns);
    }
    tensor_mark(finder, entry);
    *out = entry;
    return OK;
}
