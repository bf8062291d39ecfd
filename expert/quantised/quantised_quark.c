// INT4 of Quark, whose tensors do not tell the sign and the order of their codes.
#include <stdio.h>
#include <string.h>

#include "expert/quantised/quantised_take.h"

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
FALLIBLE take_quark(struct take *t) {
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
