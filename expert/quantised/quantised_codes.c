#include <stdio.h>
#include <string.h>

#include "expert/quantised/quantised_take.h"

enum { WORD_BITS = 32, BLOCK_K = 32, BLOCK_BYTES = 16, BYTE_CODES = 8, NIBBLE = 4 };

static const uint8_t AWQ_ORDER[8] = {0, 4, 1, 5, 2, 6, 3, 7};

static bool are_words(const struct take *t) {
    enum code_layout layout = t->format->layout;
    return layout == CODES_WORDS || layout == CODES_WORDS_AWQ || layout == CODES_WORDS_QUARK || layout == CODES_WORDS_N_MAJOR;
}

static bool are_words_along_n(const struct take *t) {
    return t->format->layout == CODES_WORDS_AWQ || t->format->layout == CODES_WORDS_QUARK;
}

static struct tensor_shape swapped(struct tensor_shape shape) {
    uint64_t first = shape.dims[0];
    shape.dims[0] = shape.dims[1];
    shape.dims[1] = first;
    return shape;
}

// The shape of the codes in the orientation t->transposed.
static struct tensor_shape codes_shape(const struct take *t, unsigned bits) {
    uint64_t n = t->module->n, k = t->module->k;
    struct tensor_shape shape = {2, {n, k}};
    switch (t->format->layout) {
    case CODES_PAIRS:
        shape.dims[1] = take_ceiling(k, 2);
        break;
    case CODES_BLOCKS:
        return (struct tensor_shape){3, {n, take_ceiling(k, BLOCK_K), BLOCK_BYTES}};
    case CODES_WORDS:
    case CODES_STREAM:
        shape.dims[1] = take_ceiling(k * bits, WORD_BITS);
        break;
    case CODES_WORDS_AWQ:
    case CODES_WORDS_QUARK:
        return (struct tensor_shape){2, {k, take_ceiling(n * bits, WORD_BITS)}};
    case CODES_WORDS_N_MAJOR:
        return (struct tensor_shape){2, {take_ceiling(k * bits, WORD_BITS), n}};
    default:
        break;
    }
    return t->transposed ? swapped(shape) : shape;
}

static bool may_be_transposed(const struct take *t) {
    enum code_layout layout = t->format->layout;
    return t->module->experts > 0 && (layout == CODES_ROWS || layout == CODES_PAIRS || layout == CODES_WORDS);
}

static bool fits_bits(struct take *t, unsigned bits) {
    struct tensor_shape shape = codes_shape(t, bits);
    t->bits = bits;
    return take_has_shape(t, t->codes, &shape);
}

static bool has_4_bits(const struct take *t) {
    return !t->format->code_of_dtype && (t->format->code == EXPERTD_CODE_INT4 || t->format->code == EXPERTD_CODE_E2M1);
}

// K is a multiple of 32 in such rows, so that at most one of the sizes fits.
static bool fits_stream(struct take *t) {
    static const unsigned BITS[] = {1, 2, 3, 5, 6, 8, NIBBLE}; // the last is named in messages
    for (size_t i = 0; i < sizeof BITS / sizeof *BITS; i++) {
        if (fits_bits(t, BITS[i])) {
            return true;
        }
    }
    return false;
}

// Integers in words have 4 bits, or 8 if only that fits.
static bool fits(struct take *t, bool transposed) {
    t->transposed = transposed;
    if (t->format->layout == CODES_STREAM) {
        return fits_stream(t);
    }
    unsigned least = has_4_bits(t) ? 4 : 8;
    bool may_be_8 = t->format->code == EXPERTD_CODE_INT4 && !are_words_along_n(t);
    if (fits_bits(t, least) || (may_be_8 && fits_bits(t, 8))) {
        return true;
    }
    t->bits = least;
    return false;
}

bool take_codes_fit(struct take *t) {
    switch (t->module->orientation) {
    case QUANTISED_ROWS:
        return fits(t, false);
    case QUANTISED_TRANSPOSED:
        return fits(t, may_be_transposed(t)); // a layout that has one orientation fits either
    default:
        return fits(t, false) || (may_be_transposed(t) && fits(t, true)) || fits(t, false);
    }
}

static bool is_called_weight(const char *name) {
    size_t length = strlen(name), suffix = strlen(".weight");
    return length > suffix && strcmp(name + length - suffix, ".weight") == 0;
}

FALLIBLE take_check_orientation(const struct take *t) {
    struct take other = *t;
    bool doubtful = t->module->orientation == QUANTISED_ANY && may_be_transposed(t) && !is_called_weight(t->codes->name);
    if (doubtful && fits(&other, !t->transposed)) {
        char shape[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL(
            EXPERTD_ERR_CHECKPOINT,
            "%s: tensor %s is %s and may be transposed: its rows and columns are equal in number, and no other tensor tells; store "
            "one tensor for each expert, or gate and up in one tensor",
            take_file(t, t->codes), t->codes->name, expertd_tensor_shape_text(t->codes->view.shape, t->codes->view.rank, shape));
    }
    return OK;
}

err_t take_wrong_codes(const struct take *t) {
    struct tensor_shape shape = codes_shape(t, t->bits);
    return take_wrong_shape(t, t->codes, &shape);
}

static FALLIBLE check_units(const struct take *t, size_t word) {
    enum code_layout layout = t->format->layout;
    const struct quantised_module *p = t->module;
    bool n_major = layout == CODES_WORDS_N_MAJOR; // its words hold consecutive k, those of its zero points consecutive n
    bool k_words = n_major || (layout == CODES_WORDS && t->transposed);
    uint64_t k_unit = layout == CODES_BLOCKS || layout == CODES_STREAM ? BLOCK_K : layout == CODES_PAIRS ? 2 : k_words ? word : 1;
    uint64_t n_unit = n_major || are_words_along_n(t) ? word : 1;
    if (p->k % k_unit != 0 || p->n % n_unit != 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: tensor %s: weights [%llu, %llu] cannot be stored as %s, which requires multiples of %llu and %llu",
             take_file(t, t->codes), t->codes->name, (unsigned long long)p->n, (unsigned long long)p->k, t->format->name,
             (unsigned long long)n_unit, (unsigned long long)k_unit);
    }
    return OK;
}

// Words of consecutive k, of which those of consecutive n are side by side.
static void set_k_words(const struct take *t, size_t word, struct expertd_code_words *c) {
    c->word = word;
    c->n_stride = word, c->n_word_stride = word * word, c->k_stride = 1, c->k_word_stride = word * t->module->n;
}

static void set_rows(size_t n_stride, size_t word, struct expertd_code_words *c) {
    c->word = word;
    c->n_stride = n_stride, c->n_word_stride = word * n_stride, c->k_stride = 1, c->k_word_stride = word;
}

static enum expertd_weight_code code_of(const struct take *t) {
    if (t->format->code_of_dtype) {
        return t->codes->view.dtype == EXPERTD_DTYPE_F8_E5M2 ? EXPERTD_CODE_E5M2 : EXPERTD_CODE_E4M3;
    }
    bool wide = t->format->layout == CODES_STREAM ? t->bits > NIBBLE : t->bits == 8 && t->format->code == EXPERTD_CODE_INT4;
    return wide ? EXPERTD_CODE_INT8 : t->format->code;
}

static struct expertd_code_words code_words(const struct take *t, size_t word) {
    size_t n = t->module->n;
    struct expertd_code_words c = {.data = t->codes->view.data, .bits = t->bits};
    // Words hold offset binary, but INT8 is two's complement.
    c.flip = t->bits == 8 && code_of(t) == EXPERTD_CODE_INT8 && t->format->layout != CODES_ROWS ? 0x80 : 0;
    uint32_t first = t->module->experts > 0;
    switch (t->format->layout) {
    case CODES_WORDS_AWQ:
    case CODES_WORDS_QUARK:
        c.word = word;
        c.n_stride = 1, c.n_word_stride = word, c.k_stride = n, c.k_word_stride = word * n;
        c.order = AWQ_ORDER;
        return c;
    case CODES_WORDS_N_MAJOR:
        set_k_words(t, word, &c);
        return c;
    default:
        break;
    }
    if (t->transposed) {
        set_k_words(t, t->format->layout == CODES_ROWS ? 1 : t->format->layout == CODES_PAIRS ? 2 : word, &c);
        return c;
    }
    // the last word of a row may have unused codes
    set_rows(t->format->layout == CODES_WORDS ? t->codes->view.shape[first + 1] * word : t->module->k, word, &c);
    return c;
}

// ---- INT4 of Quark, whose tensors do not tell the sign and the order of their codes ----

// Reads a key of the section that must have one of two values; *second: it has the second.
static FALLIBLE read_either(const struct take *t, const char *name, const char *const words[2], bool *second) {
    char text[64] = "";
    bool found = quantisation_value(t->config, name, text, sizeof text);
    *second = found && strcmp(text, words[1]) == 0;
    if (!*second && strcmp(text, words[0]) != 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is %s, for which config.json must have %s.%s: expected %s or %s, but it is %s",
             take_file(t, t->codes), t->codes->name, t->format->name,
             t->config->config ? t->config->section : "quantization_config", name, words[0], words[1], found ? text : "absent");
    }
    return OK;
}

// The objects that give some modules other settings, by name or by class.
static const struct layers {
    const char *key, *word; // members without the word are about no experts
} LAYERS[] = {{"layer_quant_config", ""}, {"layer_type_quant_config", "Linear"}};

struct dtype_of_layers {
    const struct take *t;
    const char *dtype;
    const struct layers *layers;
};

static err_t check_layer_dtype(void *context, const struct config *layer) {
    const struct dtype_of_layers *of = context;
    char text[64];
    if (strstr(config_member_name(layer), of->layers->word) && config_value_text(layer, "weight.dtype", text, sizeof text) &&
        strcmp(text, of->dtype) != 0 && strstr(text, "int4")) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: %s.weight.dtype is %s, but %s.global_quant_config.weight.dtype is %s: INT4 of Quark with both is not supported: "
             "take a checkpoint that Quark wrote with one of them",
             config_path(layer), config_prefix(layer), text, of->t->config->section, of->dtype);
    }
    return OK;
}

static FALLIBLE check_layer_dtypes(const struct take *t, const char *dtype) {
    const char *object = t->config->object;
    for (size_t i = 0; i < sizeof LAYERS / sizeof *LAYERS; i++) {
        struct dtype_of_layers of = {t, dtype, &LAYERS[i]};
        char key[128];
        snprintf(key, sizeof key, "%s%s%s", object, object[0] ? "." : "", LAYERS[i].key);
        TRY(config_each_member(t->config->config, key, check_layer_dtype, &of));
    }
    return OK;
}

// Quark packs signed codes (int4) or codes from 0 (uint4), in AWQ's order of nibbles or in order.
static FALLIBLE take_quark(struct take *t) {
    static const char *const DTYPES[2] = {"uint4", "int4"}, *const ORDERS[2] = {"reorder", "order"};
    bool is_signed, in_order;
    TRY(read_either(t, "global_quant_config.weight.dtype", DTYPES, &is_signed));
    TRY(read_either(t, "export.pack_method", ORDERS, &in_order));
    TRY(check_layer_dtypes(t, DTYPES[is_signed]));
    if (!is_signed && !quantised_find(t->finder, t->module->name, t->format->zeros)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s%s is missing, the zero points of %s: is the download complete?",
             take_file(t, t->codes), t->module->name, t->format->zeros, t->codes->name);
    }
    t->out->codes.flip = is_signed ? 0x08 : 0; // to offset binary
    if (in_order) {
        t->out->codes.order = NULL;
    }
    return OK;
}

FALLIBLE take_codes(struct take *t) {
    size_t word = are_words(t) ? WORD_BITS / t->bits : BYTE_CODES;
    TRY(check_units(t, word));
    t->out->codes = code_words(t, word);
    t->out->format.code = code_of(t);
    if (t->format->layout == CODES_STREAM) {
        t->out->affine.bits = t->bits;
        t->out->codes.bits = code_of(t) == EXPERTD_CODE_INT8 ? 8 : NIBBLE;
    }
    TRY(t->format->layout == CODES_WORDS_QUARK ? take_quark(t) : OK);
    take_range(t, t->codes);
    return OK;
}
