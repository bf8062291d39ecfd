#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/regular_file.h"
#include "expert/config/config.h"
#include "expert/config/config_state.h"
#include "expert/config/json_text.h"

const char *const CONFIG_TEXT_KEYS[] = {"text_config", "language_config", "llm_config", "thinker_config.text_config", NULL};

enum { CONTEXT_BYTES = 40 };

// With the text before the error, because some writers put everything into one line.
static err_t bad_json(const json_error_t *error, const char *text, size_t length) {
    size_t end = error->position > 0 && (size_t)error->position < length ? (size_t)error->position : length;
    size_t bytes = end < CONTEXT_BYTES ? end : CONTEXT_BYTES;
    char context[CONTEXT_BYTES + 1];
    memcpy(context, text + end - bytes, bytes);
    context[bytes] = '\0';
    config_replace_control_characters(context);
    const enum json_error_code code = json_error_code(error);
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "bad JSON in line %d: %s (after: %s): %s", error->line, error->text, context,
                      code == json_error_numeric_overflow ? "no setting has a number as large: correct it"
                      : code == json_error_duplicate_key  ? "remove one of the two"
                                                          : "is the file complete?");
}

static FALLIBLE load(struct config *config) {
    TRY(json_text_check(config->bytes, config->length));
    size_t mark = json_text_mark(config->bytes, config->length);
    const char *text = config->bytes + mark;
    size_t length = config->length - mark, quoted_length = json_text_quote(text, length, NULL);
    char *quoted = malloc(quoted_length + 1);
    if (!quoted) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu bytes", quoted_length);
    }
    json_text_quote(text, length, quoted);
    json_error_t error;
    config->root = json_loadb(quoted, quoted_length, JSON_REJECT_DUPLICATES, &error);
    err_t e = config->root ? OK : bad_json(&error, quoted, quoted_length);
    free(quoted);
    TRY(e);
    if (!json_is_object(config->root)) {
        char value[CONFIG_VALUE_TEXT_MAX];
        config_show(config->root, value, sizeof value);
        FAIL(EXPERTD_ERR_CHECKPOINT, "it is not a JSON object, but %s: expected an object of keys and values: download it again",
             value);
    }
    config->object = config->root;
    return OK;
}

// Records the keys that per_layer_config overrides for one layer with another value.
static FALLIBLE record_overrides_of_layer(struct config *config, const char *layer, const json_t *overrides) {
    char value[CONFIG_VALUE_TEXT_MAX];
    const char *key;
    json_t *override;
    json_object_foreach((json_t *)(uintptr_t)overrides, key, override) { // jansson's iterators take no const; they change nothing
        bool empty = json_is_null(override) || (json_is_array(override) && json_array_size(override) == 0);
        if (strcmp(key, "skip") == 0 && !empty) { // a list of model-specific module names, which may include the MoE block
            config_show(override, value, sizeof value);
            FAIL(EXPERTD_ERR_CHECKPOINT, "per_layer_config.%s.skip is %s: layers without some of their parts are not served", layer,
                 value);
        }
        if (!config_same_value(override, json_object_get(config->object, key)) &&
            json_object_set_new(config->per_layer, key, json_string(layer)) != 0) {
            FAIL(EXPERTD_ERR_NOMEM, "no memory for per_layer_config");
        }
    }
    return OK;
}

// Records the overrides in the per_layer_config of `object`.
static FALLIBLE record_overrides(struct config *config, const json_t *object) {
    const json_t *layers = json_object_get(object, "per_layer_config");
    char value[CONFIG_VALUE_TEXT_MAX];
    const char *layer;
    json_t *overrides;
    if (layers && !json_is_null(layers) && !json_is_object(layers)) {
        config_show(layers, value, sizeof value);
        FAIL(EXPERTD_ERR_CHECKPOINT, "per_layer_config is %s: expected an object with one member for each layer", value);
    }
    json_object_foreach((json_t *)(uintptr_t)layers, layer, overrides) {
        snprintf(value, sizeof value, "%s", layer);
        config_replace_control_characters(value);
        if (*layer == '\0' || layer[strspn(layer, "0123456789")] != '\0') {
            FAIL(EXPERTD_ERR_CHECKPOINT, "per_layer_config has a layer \"%s\": expected a layer's number", value);
        }
        if (!json_is_object(overrides)) {
            char shown[CONFIG_VALUE_TEXT_MAX];
            config_show(overrides, shown, sizeof shown);
            FAIL(EXPERTD_ERR_CHECKPOINT, "per_layer_config.%s is %s: expected an object with the keys of that layer", value, shown);
        }
        TRY(record_overrides_of_layer(config, value, overrides));
    }
    return OK;
}

// A wrapper's per_layer_config applies to its text model, which has the layers.
static FALLIBLE find_per_layer(struct config *config, const json_t *root) {
    config->per_layer = json_object();
    if (!config->per_layer) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for per_layer_config");
    }
    TRY(record_overrides(config, root));
    return config->object == root ? OK : record_overrides(config, config->object);
}

static FALLIBLE make_text(struct config *config, const char *key, const json_t *object) {
    config->text = calloc(1, sizeof *config->text);
    if (!config->text) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a configuration");
    }
    // A multimodal wrapper has a model_type of its own. Without one transformers builds the text model from the outer object.
    bool is_wrapper = !json_equal(json_object_get(object, "model_type"), json_object_get(config->root, "model_type"));
    *config->text =
        (struct config){.file = config->file, .prefix = key, .object = object, .outer = is_wrapper ? NULL : config->root};
    return OK;
}

// Multimodal models have the configuration of their text model in a nested object.
static FALLIBLE find_text(struct config *config) {
    for (const char *const *key = CONFIG_TEXT_KEYS; *key; key++) {
        const json_t *object = config_look_up(config->root, *key);
        if (!json_is_string(json_object_get(object, "model_type"))) {
            continue;
        }
        if (config->text && !json_equal(config->text->object, object)) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "%s and %s both describe a text model and differ: programs read one or the other; remove one",
                 config->text->prefix, *key);
        }
        TRY(config->text ? OK : make_text(config, *key, object));
    }
    return OK;
}

// Takes ownership of `bytes`, also on error.
static FALLIBLE create(const char *path, char *bytes, size_t length, struct config **out) {
    struct config *config = calloc(1, sizeof *config);
    if (!config) {
        free(bytes);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a configuration");
    }
    *config = (struct config){.file = strdup(path), .prefix = "", .bytes = bytes, .length = length};
    err_t e = config->file ? load(config) : err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for a path");
    if (!err_is(e)) {
        e = find_text(config);
    }
    if (!err_is(e)) {
        e = find_per_layer(config, config->root);
    }
    if (!err_is(e) && config->text) {
        e = find_per_layer(config->text, config->root);
    }
    if (err_is(e)) {
        config_destroy(config);
        return err_context(e, "%s", path);
    }
    *out = config;
    return OK;
}

FALLIBLE config_open(const char *path, struct config **out) {
    char *bytes;
    size_t length;
    *out = NULL;
    TRY(regular_file_read(path, CONFIG_BYTES_MAX, &bytes, &length));
    return create(path, bytes, length, out);
}

FALLIBLE config_parse(const char *path, const char *text, size_t length, struct config **out) {
    *out = NULL;
    if (length > CONFIG_BYTES_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s has %zu bytes: expected at most %d", path, length, CONFIG_BYTES_MAX);
    }
    char *bytes = malloc(length + 1);
    if (!bytes) {
        FAIL(EXPERTD_ERR_NOMEM, "%s: no memory for %zu bytes", path, length);
    }
    if (length > 0) {
        memcpy(bytes, text, length);
    }
    bytes[length] = '\0';
    return create(path, bytes, length, out);
}

void config_destroy(struct config *config) {
    if (!config) {
        return;
    }
    if (config->text) {
        json_decref(config->text->per_layer);
        free(config->text);
    }
    json_decref(config->per_layer);
    json_decref(config->names);
    json_decref(config->root);
    free(config->bytes);
    free((char *)(uintptr_t)config->file); // the root owns it
    free(config);
}
