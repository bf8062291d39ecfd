#include "expert/quantised/quantised_tensors.h"

#include <stdio.h>
#include <string.h>

#include "expert/quantised/quantised_take.h"

enum { WORD_BITS = 32, BLOCK_K = 32, BLOCK_BYTES = 16 };

static const uint8_t AWQ_ORDER[8] = {0, 4, 1, 5, 2, 6, 3, 7};

// ---- the format ----

static bool is_among(const enum expertd_dtype dtypes[STORED_DTYPES], enum expertd_dtype dtype) {
    for (size_t i = 0; i < STORED_DTYPES && dtypes[i] != EXPERTD_DTYPE_NONE; i++) {
        if (dtypes[i] == dtype) {
            return true;
        }
    }
    return false;
}

// Is the word one of "fp8|mxfp8"?
static bool is_listed(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; *at;) {
        size_t item = strcspn(at, "|");
        if (item == length && memcmp(at, word, length) == 0) {
            return true;
        }
        at += item + (at[item] == '|');
    }
    return false;
}

static const struct safetensors_entry *codes_of(const struct tensor_finder *finder, const char *module,
                                                const struct stored_format *format) {
    const struct safetensors_entry *codes = quantised_find(finder, module, format->codes);
    return codes && is_among(format->codes_dtypes, codes->view.dtype) ? codes : NULL;
}

static const struct safetensors_entry *scales_of(const struct tensor_finder *finder, const char *module,
                                                 const struct stored_format *format) {
    const struct safetensors_entry *scales = quantised_find(finder, module, format->scales);
    return scales && is_among(format->scale_dtypes, scales->view.dtype) ? scales : NULL;
}

static bool has_format(const struct tensor_finder *finder, const char *module, const struct stored_format *format) {
    return codes_of(finder, module, format) && scales_of(finder, module, format) &&
           (!format->global || quantised_find(finder, module, format->global));
}

bool quantised_exists(const struct tensor_finder *finder, const char *module) {
    for (size_t i = 0; i < STORED_FORMAT_COUNT; i++) {
        if (has_format(finder, module, &STORED_FORMATS[i])) {
            return true;
        }
    }
    return false;
}

static bool is_written_by(const struct quantisation *config, const struct stored_format *format) {
    return config->method[0] ? is_listed(format->methods, config->method) : !format->needs_method;
}

static void add_text(char *text, size_t bytes, const char *module, const char *suffix) {
    size_t used = strlen(text);
    snprintf(text + used, bytes - used, "%s%s%s", used ? " or " : "", module, suffix);
}

FALLIBLE quantised_explain(const struct tensor_finder *finder, const char *module) {
    char candidates[1024] = "", quantised[TENSOR_QUANTISED_TEXT_MAX];
    const struct safetensors_entry *codes = NULL;
    for (size_t i = 0; i < STORED_FORMAT_COUNT; i++) {
        const struct stored_format *format = &STORED_FORMATS[i];
        const struct safetensors_entry *found = codes_of(finder, module, format),
                                       *scales = quantised_find(finder, module, format->scales);
        if (!found) {
            continue;
        }
        codes = found;
        const char *file = checkpoint_file_of(finder->checkpoint, codes);
        if (scales_of(finder, module, format)) { // then only the global scale can be missing
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s%s is missing, the global scale for %s: is the download complete?", file,
                 module, format->global, scales->name);
        }
        if (scales) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s, a dtype that is not supported for the scales of %s", file,
                 scales->name, expertd_dtype_name(scales->view.dtype), codes->name);
        }
        add_text(candidates, sizeof candidates, module, format->scales);
    }
    if (codes) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s%s, but its scales are missing: expected %s",
             checkpoint_file_of(finder->checkpoint, codes), codes->name, expertd_dtype_name(codes->view.dtype),
             tensor_quantised_text(finder, quantised), candidates);
    }
    return OK;
}

// The first format whose tensors exist and that quant_method writes. EXPERTD_ERR_CHECKPOINT: none.
static FALLIBLE find_format(const struct tensor_finder *finder, const struct quantisation *config, const char *module,
                            const struct stored_format **out) {
    const struct stored_format *other = NULL;
    for (size_t i = 0; i < STORED_FORMAT_COUNT; i++) {
        const struct stored_format *format = &STORED_FORMATS[i];
        if (has_format(finder, module, format) && is_written_by(config, format)) {
            *out = format;
            return OK;
        }
        other = !other && has_format(finder, module, format) ? format : other;
    }
    if (!other) {
        TRY(quantised_explain(finder, module));
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: no tensor %s... has codes, although its layer is quantised: is the download complete?",
             checkpoint_path(finder->checkpoint), module);
    }
    const struct safetensors_entry *codes = codes_of(finder, module, other);
    FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensors %s and %s%s look like %s, for which quant_method must be one of %s, but it is \"%s\"",
         checkpoint_file_of(finder->checkpoint, codes), codes->name, module, other->scales, other->name, other->methods,
         config->method);
}

// ---- codes ----

static bool are_words(const struct stored_format *format) {
    return format->layout == CODES_WORDS || format->layout == CODES_WORDS_AWQ || format->layout == CODES_WORDS_N_MAJOR;
}

static struct tensor_shape codes_shape(const struct take *t, unsigned bits) {
    uint64_t n = t->module->n, k = t->module->k;
    switch (t->format->layout) {
    case CODES_PAIRS:
        return (struct tensor_shape){2, {n, take_ceiling(k, 2)}};
    case CODES_BLOCKS:
        return (struct tensor_shape){3, {n, take_ceiling(k, BLOCK_K), BLOCK_BYTES}};
    case CODES_WORDS:
        return (struct tensor_shape){2, {n, take_ceiling(k * bits, WORD_BITS)}};
    case CODES_WORDS_AWQ:
        return (struct tensor_shape){2, {k, take_ceiling(n * bits, WORD_BITS)}};
    case CODES_WORDS_N_MAJOR:
        return (struct tensor_shape){2, {take_ceiling(k * bits, WORD_BITS), n}};
    default:
        return (struct tensor_shape){2, {n, k}};
    }
}

static FALLIBLE check_units(const struct take *t, size_t word) {
    enum code_layout layout = t->format->layout;
    const struct quantised_module *p = t->module;
    bool n_major = layout == CODES_WORDS_N_MAJOR; // its words hold consecutive k, those of its zero points consecutive n
    uint64_t k_unit = layout == CODES_BLOCKS ? BLOCK_K : layout == CODES_PAIRS ? 2 : n_major ? word : 1;
    uint64_t n_unit = n_major || layout == CODES_WORDS_AWQ ? word : 1;
    if (p->k % k_unit != 0 || p->n % n_unit != 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: tensor %s: weights [%llu, %llu] cannot be stored as %s, which requires multiples of %llu and %llu",
             take_file(t, t->codes), t->codes->name, (unsigned long long)p->n, (unsigned long long)p->k, t->format->name,
             (unsigned long long)n_unit, (unsigned long long)k_unit);
    }
    return OK;
}

static struct expertd_code_words code_words(const struct take *t, size_t word) {
    size_t n = t->module->n;
    struct expertd_code_words c = {.data = t->codes->view.data, .bits = t->bits, .word = word};
    c.flip = are_words(t->format) && t->bits == 8 ? 0x80 : 0; // words hold offset binary; INT8 codes are two's complement
    switch (t->format->layout) {
    case CODES_WORDS_AWQ:
        c.n_stride = 1, c.n_word_stride = word, c.k_stride = n, c.k_word_stride = word * n;
        c.order = AWQ_ORDER;
        return c;
    case CODES_WORDS_N_MAJOR:
        c.n_stride = word, c.n_word_stride = word * word, c.k_stride = 1, c.k_word_stride = word * n;
        return c;
    case CODES_WORDS:
        c.n_stride = t->codes->view.shape[1] * word; // the last word of a row may have unused codes
        break;
    default:
        c.n_stride = t->module->k;
        break;
    }
    c.n_word_stride = word * c.n_stride, c.k_stride = 1, c.k_word_stride = word;
    return c;
}

static enum expertd_weight_code code_of(const struct take *t) {
    if (t->format->code_of_dtype) {
        return t->codes->view.dtype == EXPERTD_DTYPE_F8_E5M2 ? EXPERTD_CODE_E5M2 : EXPERTD_CODE_E4M3;
    }
    return are_words(t->format) && t->bits == 8 ? EXPERTD_CODE_INT8 : t->format->code;
}

static FALLIBLE take_codes(struct take *t) {
    t->bits = t->format->layout == CODES_ROWS ? 8 : 4;
    struct tensor_shape shape = codes_shape(t, t->bits), of_8 = codes_shape(t, 8);
    if (are_words(t->format) && t->format->layout != CODES_WORDS_AWQ && take_has_shape(t, t->codes, &of_8)) {
        t->bits = 8;
        shape = of_8;
    }
    if (!take_has_shape(t, t->codes, &shape)) {
        return take_wrong_shape(t, t->codes, &shape);
    }
    size_t word = are_words(t->format) ? WORD_BITS / t->bits : 8;
    TRY(check_units(t, word));
    t->out->codes = code_words(t, word);
    t->out->format.code = code_of(t);
    take_range(t, t->codes);
    return OK;
}

// ---- the matrix ----

// The tensors win: codes and scales exist, and have one meaning.
static FALLIBLE note_left_out(const struct take *t) {
    const char *entry;
    bool is = false;
    if (t->module->first) {
        TRY(quantisation_leaves_out(t->config, t->module->name, &is, &entry));
    }
    if (is) {
        checkpoint_notes_add(checkpoint_notes_of(t->finder->checkpoint), "excluded_but_quantised",
                             "%s excludes %s from quantisation by \"%.128s\", but its codes and scales exist: they are used",
                             t->config->section, t->module->name, entry);
    }
    return OK;
}

static FALLIBLE take(struct take *t) {
    TRY(note_left_out(t));
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
    struct take t = {.finder = finder, .module = module, .out = out};
    *out = (struct quantised_matrix){0};
    TRY(checkpoint_quantisation(finder->checkpoint, &t.config));
    TRY(find_format(finder, t.config, module->name, &t.format));
    out->stored = t.format->name;
    t.codes = codes_of(finder, module->name, t.format);
    t.scales = scales_of(finder, module->name, t.format);
    if (module->experts && (t.format->zeros || t.format->global || t.format->scale_of_k)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s: %s is not supported with all experts in one tensor", take_file(&t, t.codes),
             t.codes->name, t.format->name);
    }
    return take(&t);
}

struct quantised_matrix quantised_of_expert(const struct quantised_matrix *first, uint64_t e) {
    struct quantised_matrix m = *first;
    for (size_t i = 0; i < m.ranges; i++) {
        m.range[i].data = (const char *)m.range[i].data + e * m.range[i].bytes;
    }
    m.codes.data = m.range[0].data;
    m.scales = m.range[1].data;
    return m;
}
