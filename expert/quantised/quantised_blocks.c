// All steps for GGUF files: a matrix whose elements are codes in blocks.
#include "expert/quantised/ggml_blocks.h"
#include "expert/quantised/quantised_take.h"
#include "expert/quantised/quantised_tensors.h"

const struct safetensors_entry *take_blocks_find(const struct tensor_finder *finder, const char *module) {
    char name[TENSOR_NAME_MAX];
    const struct safetensors_entry *entry = err_is(tensor_name(name, "%s.weight", module)) ? NULL : tensor_look(finder, name);
    return entry && entry->blocks ? entry : NULL;
}

static FALLIBLE check_shape(const struct tensor_finder *finder, const struct quantised_module *module,
                            const struct safetensors_entry *entry) {
    const struct tensor_shape shape = module->experts ? (struct tensor_shape){3, {module->experts, module->n, module->k}}
                                                      : (struct tensor_shape){2, {module->n, module->k}};
    const struct expertd_tensor_view *view = &entry->view;
    if (!tensor_has_shape(finder, view, &shape)) {
        char found[EXPERTD_TENSOR_SHAPE_TEXT_MAX], expected[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s, but %s requires %s (%s): the two belong to different models",
             checkpoint_file_of(finder->checkpoint, entry), entry->name, expertd_tensor_shape_text(view->shape, view->rank, found),
             config_label(checkpoint_config(finder->checkpoint)), expertd_tensor_shape_text(shape.dims, shape.rank, expected),
             finder->sizes);
    }
    return OK;
}

// NVFP4 has global scales: [E], or of one matrix [1]. Gemma 4's routing scales have the same name; they include the global scales,
// and are taken before the experts.
static FALLIBLE take_scale_of_blocks(struct tensor_finder *finder, const struct quantised_module *module,
                                     struct quantised_matrix *out) {
    const uint64_t count = module->experts ? module->experts : 1;
    const struct tensor_shape shape = {1, {count}};
    char name[TENSOR_NAME_MAX];
    TRY(tensor_name(name, "%s.scale", module->name));
    const struct safetensors_entry *entry = tensor_look(finder, name);
    if (out->format.scale != EXPERTD_DTYPE_F8_E4M3 || !entry || tensor_is_taken(finder, entry)) {
        return OK;
    }
    TRY(tensor_take(finder, name, &shape, &entry));
    size_t size = expertd_dtype_size(entry->view.dtype);
    out->format.global = EXPERTD_GLOBAL_MULTIPLY;
    out->global = entry->view.data;
    out->global_dtype = entry->view.dtype;
    out->global_tensor = entry;
    out->range[out->ranges++] = (struct byte_range){entry->view.data, size, module->experts ? size : 0};
    return OK;
}

static FALLIBLE format_of(const struct tensor_finder *finder, const struct safetensors_entry *entry,
                          const struct ggml_format **out) {
    *out = ggml_format_of(entry->blocks);
    if (!*out) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s, which is not served: use the model's file in another quantisation (%s)",
             checkpoint_file_of(finder->checkpoint, entry), entry->name, entry->blocks->name, GGML_SERVED);
    }
    return OK;
}

FALLIBLE quantised_check_blocks(const struct tensor_finder *finder, const struct safetensors_entry *entry) {
    const struct ggml_format *format;
    return entry ? format_of(finder, entry, &format) : OK;
}

struct quantised_matrix quantised_of_blocks(const struct safetensors_entry *entry, uint64_t experts, uint64_t k) {
    const struct ggml_format *format = ggml_format_of(entry->blocks);
    const size_t bytes = entry->view.bytes / (experts ? experts : 1);
    INVARIANT(format != NULL);
    return (struct quantised_matrix){
        .format = format->format,
        .codes = {.data = entry->view.data, .bits = ggml_code_bits(format), .n_stride = k},
        .blocks = format,
        .scale_columns = 1,
        .scale_n_stride = 1,
        .stored = entry->blocks->name,
        .scales_tensor = entry,
        .ranges = 1,
        .range = {{entry->view.data, bytes, experts ? bytes : 0}},
    };
}

FALLIBLE take_blocks(struct tensor_finder *finder, const struct quantised_module *module, struct quantised_matrix *out) {
    const struct safetensors_entry *entry = take_blocks_find(finder, module->name);
    INVARIANT(entry != NULL);
    const struct ggml_format *format;
    TRY(format_of(finder, entry, &format));
    TRY(check_shape(finder, module, entry));
    tensor_mark(finder, entry);
    *out = quantised_of_blocks(entry, module->experts, module->k);
    return take_scale_of_blocks(finder, module, out);
}
