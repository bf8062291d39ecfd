#include "expert/quantised/quantised_tensors.h"

#include <string.h>

#include "expert/quantised/quantised_take.h"

// The tensors win: codes and scales exist, and have one meaning.
static FALLIBLE note_left_out(const struct take *t) {
    const char *entry;
    bool is;
    TRY(quantisation_leaves_out(t->config, t->module->name, &is, &entry));
    if (is) {
        checkpoint_notes_add(checkpoint_notes_of(t->finder->checkpoint), "excluded_but_quantised",
                             "%s excludes %s from quantisation by \"%.128s\", but its codes and scales exist: they are used",
                             t->config->section, t->module->name, entry);
    }
    return OK;
}

// Tensors that leave the meaning of the codes as it is.
static bool is_harmless(const struct stored_format *format, const char *suffix) {
    bool harmless = format->original_shape && quantised_is_suffix(suffix, format->original_shape);
    for (size_t i = 0; i < STORED_EXTRAS && format->extras[i] && !harmless; i++) {
        harmless = strcmp(format->extras[i], ".bias") != 0 && quantised_is_suffix(suffix, format->extras[i]);
    }
    return harmless;
}

// A tensor of the module that the index does not list: zero points or an order of k would give the codes another meaning.
static err_t check_unlisted(void *context, const struct safetensors_entry *entry, const char *file) {
    const struct take *t = context;
    const char *suffix = entry->name + strlen(t->module->name);
    if ((suffix[0] == '.' || suffix[0] == '_') && !is_harmless(t->format, suffix)) {
        FAIL(
            EXPERTD_ERR_CHECKPOINT,
            "%s: tensor %.256s is not in the index, which lists %s of the same module: programs that read complete files use both, "
            "and the result differs; add the tensor to the index, or take it out of the file",
            file, entry->name, t->codes->name);
    }
    return OK;
}

static FALLIBLE take(struct take *t) {
    TRY(note_left_out(t));
    TRY(checkpoint_each_unlisted(t->finder->checkpoint, t->module->name, check_unlisted, t));
    TRY(take_codes(t));
    TRY(take_scales(t));
    TRY(take_zeros(t));
    TRY(take_global(t));
    TRY(take_order(t));
    take_original_shape(t);
    take_extras(t);
    err_t e = expertd_quantised_check(&t->out->format);
    return err_is(e) ? (err_context(e, "%s: tensor %s", take_file(t, t->codes), t->codes->name), (err_t){EXPERTD_ERR_CHECKPOINT})
                     : OK;
}

FALLIBLE quantised_take(struct tensor_finder *finder, const struct quantised_module *module, struct quantised_matrix *out) {
    if (take_blocks_find(finder, module->name)) {
        return take_blocks(finder, module, out);
    }
    struct take t = {.finder = finder, .module = module, .out = out};
    *out = (struct quantised_matrix){0};
    TRY(checkpoint_quantisation(finder->checkpoint, &t.config));
    TRY(take_recognise(&t));
    out->stored = t.format->name;
    return take(&t);
}

static FALLIBLE fits_in(struct tensor_finder *finder, const struct quantised_module *module, enum quantised_orientation orientation,
                        bool *fits) {
    struct quantised_module oriented = *module;
    struct take t = {.finder = finder, .module = &oriented};
    oriented.orientation = orientation;
    TRY(checkpoint_quantisation(finder->checkpoint, &t.config));
    *fits = take_fits(&t);
    return OK;
}

FALLIBLE quantised_orientations(struct tensor_finder *finder, const struct quantised_module *module,
                                struct quantised_orientations *out) {
    if (checkpoint_is_gguf(finder->checkpoint)) {
        *out = (struct quantised_orientations){.rows = true};
        return OK;
    }
    TRY(fits_in(finder, module, QUANTISED_ROWS, &out->rows));
    return fits_in(finder, module, QUANTISED_TRANSPOSED, &out->transposed);
}

FALLIBLE quantised_take_gate_up(struct tensor_finder *finder, struct quantised_module *gate_up, bool alternating,
                                struct quantised_matrix *gate, struct quantised_matrix *up) {
    struct quantised_matrix both;
    gate_up->parts = alternating ? 1 : 2; // which of two scales belongs to alternating rows is not known
    TRY(quantised_take(finder, gate_up, &both));
    TRY_IN(quantised_split(&both, gate_up->n, alternating, gate, up), "%s", gate_up->name);
    return OK;
}

// A pointer into a tensor of the first expert, as a pointer into expert e's.
static const void *of_expert(const struct quantised_matrix *first, const void *data, uint64_t e) {
    for (size_t i = 0; data && i < first->ranges; i++) {
        const struct byte_range *r = &first->range[i];
        uintptr_t at = (uintptr_t)data, begin = (uintptr_t)r->data;
        if (at >= begin && at < begin + r->bytes) {
            return (const char *)data + e * r->expert_stride;
        }
    }
    return data;
}

struct quantised_matrix quantised_of_expert(const struct quantised_matrix *first, uint64_t e) {
    struct quantised_matrix m = *first;
    m.codes.data = of_expert(first, first->codes.data, e);
    m.zeros.data = of_expert(first, first->zeros.data, e);
    m.unused_zeros.data = of_expert(first, first->unused_zeros.data, e);
    m.scales = of_expert(first, first->scales, e);
    m.affine.biases = of_expert(first, first->affine.biases, e);
    m.global = of_expert(first, first->global, e);
    m.scale_of_k = of_expert(first, first->scale_of_k, e);
    for (size_t i = 0; i < m.ranges; i++) {
        m.range[i].data = (const char *)m.range[i].data + e * m.range[i].expert_stride;
    }
    return m;
}
