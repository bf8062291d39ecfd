#include <string.h>

#include "expert/quantised/quantised_take.h"

static struct tensor_shape zeros_shape(const struct take *t, size_t word, size_t groups) {
    uint64_t n = t->module->n;
    if (t->format->layout == CODES_WORDS) {
        return (struct tensor_shape){2, {take_ceiling(n, word), groups}};
    }
    return t->format->layout == CODES_ROWS ? (struct tensor_shape){2, {n, groups}} : (struct tensor_shape){2, {groups, n / word}};
}

FALLIBLE take_zeros(struct take *t) {
    const struct safetensors_entry *zeros = quantised_find(t->finder, t->module->name, t->format->zeros);
    struct expertd_code_words *c = &t->out->zeros;
    size_t n = t->module->n, word = t->out->codes.word, groups = quantised_scales(&t->out->format, t->module->k);
    if (!zeros && t->format->needs_zeros) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s%s is missing, the zero points of %s: is the download complete?",
             take_file(t, t->codes), t->module->name, t->format->zeros, t->codes->name);
    }
    if (!zeros) {
        return OK;
    }
    struct tensor_shape shape = zeros_shape(t, word, groups);
    if (zeros->view.dtype != t->codes->view.dtype) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s, but the zero points of %s must be %s", take_file(t, zeros), zeros->name,
             expertd_dtype_name(zeros->view.dtype), t->codes->name, expertd_dtype_name(t->codes->view.dtype));
    }
    if (!take_has_shape(t, zeros, &shape)) {
        return take_wrong_shape(t, zeros, &shape);
    }
    *c = (struct expertd_code_words){
        .data = zeros->view.data, .bits = t->bits, .word = word, .order = t->out->codes.order, .flip = t->out->codes.flip};
    switch (t->format->layout) {
    case CODES_WORDS:
        c->n_stride = 1, c->n_word_stride = groups * word, c->k_stride = word, c->k_word_stride = word * word;
        break;
    case CODES_ROWS:
        c->n_stride = groups, c->n_word_stride = word * groups, c->k_stride = 1, c->k_word_stride = word;
        break;
    default:
        c->n_stride = 1, c->n_word_stride = word, c->k_stride = n, c->k_word_stride = word * n;
        c->add = t->format->layout == CODES_WORDS_N_MAJOR && !t->config->zero_points_are_stored_as_is;
        break;
    }
    t->out->format.zero_points = true;
    t->out->zeros_tensor = zeros;
    take_range(t, zeros);
    return OK;
}

// The numbers of a global scale's tensor for each expert: 1, or one for each of the stacked matrices. 0: another shape.
static uint64_t global_numbers(const struct take *t, const struct safetensors_entry *global) {
    const struct expertd_tensor_view *view = &global->view;
    uint64_t elements = 1, experts = t->module->experts, parts = t->module->parts;
    for (uint32_t i = 0; i < view->rank; i++) {
        elements *= view->shape[i]; // the file holds them all, so the product does not overflow
    }
    if (elements == 1 && view->rank <= 2) {
        return 1;
    }
    if (experts == 0 || view->rank == 0 || view->rank > 3 || view->shape[0] != experts) {
        return 0;
    }
    return elements == experts ? 1 : parts > 1 && elements == experts * parts && t->module->n % parts == 0 ? parts : 0;
}

FALLIBLE take_global(struct take *t) {
    const struct safetensors_entry *global = quantised_find(t->finder, t->module->name, t->format->global);
    if (!global) {
        return OK;
    }
    uint64_t numbers = global_numbers(t, global);
    if (!expertd_dtype_is_float16_or_32(global->view.dtype) || numbers == 0) {
        char found[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s %s, but a global scale must be one number%s of F32, F16 or BF16",
             take_file(t, global), global->name, expertd_dtype_name(global->view.dtype),
             expertd_tensor_shape_text(global->view.shape, global->view.rank, found), t->module->experts ? " per expert" : "");
    }
    t->out->global = global->view.data;
    t->out->global_tensor = global;
    t->out->global_dtype = global->view.dtype;
    t->out->global_columns = numbers > 1 ? t->module->n / numbers : 0;
    t->out->format.global = t->format->global_is;
    take_range(t, global);
    return OK;
}

// The k are sorted by scale if desc_act is true in config.json, or if the first expert's g_idx is not in consecutive groups,
// because some files omit desc_act.
FALLIBLE take_order(struct take *t) {
    const struct safetensors_entry *order = quantised_find(t->finder, t->module->name, t->format->scale_of_k);
    struct quantised_matrix *out = t->out;
    uint64_t k = t->module->k, span = out->format.scale_k;
    struct tensor_shape shape = {1, {k}};
    if (!order) {
        return OK;
    }
    if (order->view.dtype != EXPERTD_DTYPE_I32 || !take_has_shape(t, order, &shape)) {
        return take_wrong_shape(t, order, &shape);
    }
    out->scale_of_k = order->view.data;
    take_range(t, order);
    if (span == 0 || span >= k) {
        return OK; // one scale: nothing to sort
    }
    out->ordered = t->config->in_activation_order;
    for (uint64_t i = 0; t->module->first && i < k && !out->ordered; i++) {
        int32_t scale;
        memcpy(&scale, (const char *)order->view.data + i * sizeof scale, sizeof scale);
        out->ordered = scale != (int32_t)(i / span);
    }
    return OK;
}

static bool is_zero(const struct safetensors_entry *entry) {
    const unsigned char *data = entry->view.data;
    for (uint64_t i = 0; i < entry->view.bytes; i++) {
        if (data[i] != 0) {
            return false;
        }
    }
    return true;
}

// Quantisers add a bias of zeros to layers without a bias; any other bias is not taken, so that tensor_none_left refuses it.
void take_extras(struct take *t) {
    for (size_t i = 0; i < STORED_EXTRAS && t->format->extras[i]; i++) {
        const struct safetensors_entry *extra = quantised_find(t->finder, t->module->name, t->format->extras[i]);
        if (extra && (strcmp(t->format->extras[i], ".bias") != 0 || is_zero(extra))) {
            tensor_mark(t->finder, extra);
        }
    }
}
