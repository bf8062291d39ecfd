#include <stdio.h>
#include <string.h>

#include "expert/quantised/quantised_take.h"
#include "expert/quantised/quantised_tensors.h"

static bool is_among(const enum expertd_dtype dtypes[STORED_DTYPES], enum expertd_dtype dtype) {
    for (size_t i = 0; i < STORED_DTYPES && dtypes[i] != EXPERTD_DTYPE_NONE; i++) {
        if (dtypes[i] == dtype) {
            return true;
        }
    }
    return false;
}

static const struct safetensors_entry *of_dtype(const struct quantised_names *names, const char *suffix,
                                                const enum expertd_dtype dtypes[STORED_DTYPES]) {
    const struct safetensors_entry *entry = quantised_named(names, suffix);
    return entry && is_among(dtypes, entry->view.dtype) ? entry : NULL;
}

static const struct safetensors_entry *codes_of(const struct quantised_names *names, const struct stored_format *format) {
    return of_dtype(names, format->codes, format->codes_dtypes);
}

static const struct safetensors_entry *scales_of(const struct quantised_names *names, const struct stored_format *format) {
    return of_dtype(names, format->scales, format->scale_dtypes);
}

static bool has_format(const struct quantised_names *names, const struct stored_format *format) {
    return codes_of(names, format) && scales_of(names, format) && (!format->global || quantised_named(names, format->global)) &&
           (!format->biases || quantised_named(names, format->biases));
}

bool quantised_exists(const struct tensor_finder *finder, const char *module) {
    struct quantised_names names;
    if (checkpoint_is_gguf(finder->checkpoint)) {
        return take_blocks_find(finder, module) != NULL;
    }
    quantised_list(finder, module, &names);
    for (size_t i = 0; i < STORED_FORMAT_COUNT; i++) {
        if (has_format(&names, &STORED_FORMATS[i])) {
            return true;
        }
    }
    return false;
}

// ---- why a module has no format ----

static void add_text(char *text, size_t bytes, const char *module, const char *suffix) {
    size_t used = strlen(text);
    if (!strstr(text, suffix)) {
        snprintf(text + used, bytes - used, "%s%s%s", used ? " or " : "", module, suffix);
    }
}

#define OTHER_DTYPE "the file is damaged, or its quantiser writes a form that is not supported"

static const char *dtype_text(const struct safetensors_entry *entry) {
    return entry->view.dtype == EXPERTD_DTYPE_NONE ? "of an unsupported dtype" : expertd_dtype_name(entry->view.dtype);
}

// A bit for each dtype.
static uint32_t dtype_set(const enum expertd_dtype dtypes[STORED_DTYPES]) {
    uint32_t set = 0;
    for (size_t i = 0; i < STORED_DTYPES && dtypes[i] != EXPERTD_DTYPE_NONE; i++) {
        set |= 1u << dtypes[i];
    }
    return set;
}

// "F32 or BF16". Returns text.
static const char *dtypes_text(uint32_t set, char *text, size_t bytes) {
    size_t used = 0;
    for (uint32_t dtype = 0; dtype < EXPERTD_DTYPE_COUNT && used < bytes; dtype++) {
        const char *separator = used ? " or " : "";
        used += set >> dtype & 1 ? (size_t)snprintf(text + used, bytes - used, "%s%s", separator, expertd_dtype_name(dtype)) : 0;
    }
    return text;
}

// The dtypes that scales of this name may have, beside the codes that exist. Returns text.
static const char *scale_dtypes(const struct quantised_names *names, const char *suffix, char *text, size_t bytes) {
    uint32_t set = 0;
    for (size_t i = 0; i < STORED_FORMAT_COUNT; i++) {
        bool beside = codes_of(names, &STORED_FORMATS[i]) && strcmp(STORED_FORMATS[i].scales, suffix) == 0;
        set |= beside ? dtype_set(STORED_FORMATS[i].scale_dtypes) : 0;
    }
    return dtypes_text(set, text, bytes);
}

// Codes whose name says that they are some, "X.qweight", and whose dtype is another.
static FALLIBLE explain_codes(const struct tensor_finder *finder, const struct quantised_names *names) {
    const struct safetensors_entry *codes = NULL;
    char text[128];
    uint32_t set = 0;
    for (size_t i = 0; i < STORED_FORMAT_COUNT; i++) {
        const struct safetensors_entry *found =
            strcmp(STORED_FORMATS[i].codes, ".weight") == 0 ? NULL : quantised_named(names, STORED_FORMATS[i].codes);
        codes = codes ? codes : found;
        set |= found && found == codes ? dtype_set(STORED_FORMATS[i].codes_dtypes) : 0;
    }
    if (codes) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s, but codes of that name must be %s: " OTHER_DTYPE,
             checkpoint_file_of(finder->checkpoint, codes), codes->name, dtype_text(codes), dtypes_text(set, text, sizeof text));
    }
    return OK;
}

FALLIBLE quantised_explain(const struct tensor_finder *finder, const char *module) {
    char candidates[1024] = "", quantised[TENSOR_QUANTISED_TEXT_MAX];
    const struct safetensors_entry *codes = NULL;
    struct quantised_names names;
    if (checkpoint_is_gguf(finder->checkpoint)) {
        return OK;
    }
    quantised_list(finder, module, &names);
    TRY(quantised_check_foreign(finder, &names));
    for (size_t i = 0; i < STORED_FORMAT_COUNT; i++) {
        const struct stored_format *format = &STORED_FORMATS[i];
        const struct safetensors_entry *found = codes_of(&names, format), *scales = quantised_named(&names, format->scales);
        if (!found) {
            continue;
        }
        codes = found;
        const char *file = checkpoint_file_of(finder->checkpoint, codes);
        if (scales_of(&names, format)) { // then only the global scale or the biases can be missing
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s%s is missing, the %s for %s: is the download complete?", file, module,
                 format->global ? format->global : format->biases, format->global ? "global scale" : "biases", scales->name);
        }
        if (scales) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s, but the scales of %s must be %s: " OTHER_DTYPE, file, scales->name,
                 dtype_text(scales), codes->name, scale_dtypes(&names, format->scales, candidates, sizeof candidates));
        }
        add_text(candidates, sizeof candidates, module, format->scales);
    }
    if (codes) {
        FAIL(
            EXPERTD_ERR_CHECKPOINT,
            "%s: tensor %s is %s%s, but its scales are missing: expected %s (weight_scale_inv and scale mean weight_scale): is the "
            "download complete?",
            checkpoint_file_of(finder->checkpoint, codes), codes->name, expertd_dtype_name(codes->view.dtype),
            tensor_quantised_text(finder, quantised), candidates);
    }
    return explain_codes(finder, &names);
}

// ---- the format ----

// The first format whose tensors exist, and whose codes have the shape that the sizes require. If no shape fits, the format that
// config.json names, else the first whose tensors exist; *fits is false then. NULL: no format.
static const struct stored_format *first_that_fits(struct take *t, const struct quantised_names *names, bool *fits) {
    const struct stored_format *other = NULL;
    *fits = true;
    for (size_t i = 0; i < STORED_FORMAT_COUNT; i++) {
        const struct stored_format *format = &STORED_FORMATS[i];
        if (!has_format(names, format)) {
            continue;
        }
        t->format = format;
        t->codes = codes_of(names, format);
        t->scales = scales_of(names, format);
        if (take_codes_fit(t) && (!format->scales_tell || take_scales_fit(t))) {
            return format;
        }
        bool named = format->family && quantisation_names(t->config, format->family);
        other = !other || named ? format : other;
    }
    *fits = false;
    return other;
}

// quant_method and packing_format may name another format with the same tensors, but they cannot change the meaning of a shape.
static FALLIBLE check_family(const struct take *t) {
    for (size_t i = 0; t->format->family && i < STORED_FORMAT_COUNT; i++) {
        const struct stored_format *other = &STORED_FORMATS[i];
        if (other->family && other != t->format && quantisation_names(t->config, other->family)) {
            char found[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "%s: tensor %s is %s, which for weights [%llu, %llu] is %s, but %s has %s \"%s\", which means %s: one of the two "
                 "is wrong",
                 take_file(t, t->codes), t->codes->name,
                 expertd_tensor_shape_text(t->codes->view.shape, t->codes->view.rank, found), (unsigned long long)t->module->n,
                 (unsigned long long)t->module->k, t->format->name, t->config->section,
                 t->config->packing_key ? t->config->packing_key : "quant_method",
                 t->config->packing_key ? t->config->packing : t->config->method, other->name);
        }
    }
    return OK;
}

// Shapes of qweight that other packings have, for the message.
static FALLIBLE check_other_words(const struct take *t) {
    static const unsigned BITS[] = {2, 3, 5, 6};
    const struct expertd_tensor_view *view = &t->codes->view;
    uint64_t n = t->module->n, k = t->module->k, first = view->rank == 2 ? view->shape[0] : 0, second = view->shape[1];
    char layout[32] = "";
    for (size_t i = 0; i < sizeof BITS / sizeof *BITS; i++) {
        if (first == take_ceiling(k * BITS[i], 32) && second == n) {
            snprintf(layout, sizeof layout, "GPTQ with %u bits", BITS[i]);
        }
    }
    if (first == n && second == take_ceiling(k, 8)) {
        snprintf(layout, sizeof layout, "AWQ in the GEMV layout");
    }
    if (first == k / 16 && second == 2 * n) {
        snprintf(layout, sizeof layout, "GPTQ repacked for Marlin");
    }
    if (t->format->family && layout[0]) {
        char found[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: tensor %s is %s, which for weights [%llu, %llu] is %s: expected GPTQ with 4 or 8 bits, or AWQ in the GEMM layout",
             take_file(t, t->codes), t->codes->name, expertd_tensor_shape_text(view->shape, view->rank, found),
             (unsigned long long)n, (unsigned long long)k, layout);
    }
    return OK;
}

// The GEMV layout of a square matrix has the shape of the GEMM layout.
static FALLIBLE check_awq(const struct take *t) {
    static const char *const KEYS[] = {"version", "format", "checkpoint_format"};
    char text[64];
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS && quantisation_names(t->config, "awq"); i++) {
        if (t->format->layout == CODES_WORDS_AWQ && quantisation_value(t->config, KEYS[i], text, sizeof text) &&
            strcasecmp(text, "gemm") != 0) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "%s: %s.%s is %s, but of AWQ's layouts only gemm is supported: take a checkpoint in that layout",
                 config_path(t->config->config), t->config->section, KEYS[i], text);
        }
    }
    return OK;
}

// Scales have several spellings. Programs differ in which of two they read.
static FALLIBLE check_one_scale(const struct take *t, const struct quantised_names *names) {
    for (size_t i = 0; i < names->count; i++) {
        const struct safetensors_entry *entry = names->entries[i];
        if (entry != t->scales && quantised_is_suffix(entry->name + names->length, t->format->scales)) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s and %s are both scales of %s: it is not known which of them counts; remove one",
                 take_file(t, entry), t->scales->name, entry->name, t->codes->name);
        }
    }
    return OK;
}

bool take_fits(struct take *t) {
    struct quantised_names names;
    bool fits;
    quantised_list(t->finder, t->module->name, &names);
    return first_that_fits(t, &names, &fits) && fits;
}

FALLIBLE take_recognise(struct take *t) {
    struct quantised_names names;
    bool fits;
    quantised_list(t->finder, t->module->name, &names);
    t->format = first_that_fits(t, &names, &fits);
    if (!t->format) {
        TRY(quantised_explain(t->finder, t->module->name));
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: no tensor %s... has codes, although its layer is quantised: is the download complete?",
             checkpoint_path(t->finder->checkpoint), t->module->name);
    }
    t->codes = codes_of(&names, t->format);
    t->scales = scales_of(&names, t->format);
    if (t->format->mlx_mode) {
        TRY(checkpoint_mlx_quantisation(t->finder->checkpoint, &t->config));
    }
    TRY(check_one_scale(t, &names));
    TRY(quantised_check_foreign(t->finder, &names));
    TRY(quantised_check_method(t->finder, t->config, t->codes, t->format->name));
    if (!fits) {
        (void)take_codes_fit(t); // sets the bits and the orientation of the message
        TRY(check_other_words(t));
        return take_wrong_codes(t);
    }
    TRY(take_check_orientation(t));
    TRY(check_family(t));
    return check_awq(t);
}
