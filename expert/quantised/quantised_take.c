#include "expert/quantised/quantised_take.h"

#include <string.h>

const char *take_file(const struct take *t, const struct safetensors_entry *entry) {
    return checkpoint_file_of(t->finder->checkpoint, entry);
}

bool take_has_shape(const struct take *t, const struct safetensors_entry *entry, const struct tensor_shape *shape) {
    const struct expertd_tensor_view *view = &entry->view;
    uint32_t first = t->module->experts > 0;
    return view->rank == shape->rank + first && (!first || view->shape[0] == t->module->experts) &&
           memcmp(view->shape + first, shape->dims, shape->rank * sizeof *shape->dims) == 0;
}

err_t take_wrong_shape(const struct take *t, const struct safetensors_entry *entry, const struct tensor_shape *expected) {
    char found[EXPERTD_TENSOR_SHAPE_TEXT_MAX], text[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
    const struct quantised_module *p = t->module;
    const char *label = config_label(checkpoint_config(t->finder->checkpoint));
    struct tensor_shape full = {.rank = expected->rank + (p->experts > 0), .dims = {p->experts}};
    memcpy(full.dims + (p->experts > 0), expected->dims, expected->rank * sizeof *expected->dims);
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                      "%s: tensor %s is %s, but %s requires %s, for weights [%llu, %llu] as %s: the file or %s (shapes, "
                      "quantization_config) is wrong",
                      take_file(t, entry), entry->name, expertd_tensor_shape_text(entry->view.shape, entry->view.rank, found),
                      label, expertd_tensor_shape_text(full.dims, full.rank, text), (unsigned long long)p->n,
                      (unsigned long long)p->k, t->format->name, label);
}

void take_range(struct take *t, const struct safetensors_entry *entry) {
    struct quantised_matrix *out = t->out;
    uint64_t experts = t->module->experts;
    bool of_each = experts > 0 && entry->view.rank > 0 && entry->view.shape[0] == experts; // else all experts share it
    size_t bytes = of_each ? entry->view.bytes / experts : entry->view.bytes;
    INVARIANT(out->ranges < QUANTISED_RANGES);
    out->range[out->ranges++] = (struct byte_range){entry->view.data, bytes, of_each ? bytes : 0};
    tensor_mark(t->finder, entry);
}
