#include "expert/config/config.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/regular_file.h"
#include "expert/config/json_text.h"

struct config {
    char *path;
    const char *file, *prefix; // for messages about a key: "FILE: PREFIX.KEY"; prefix "": none. Borrowed
    const char *name;          // of a member; borrowed from the root
    const json_t *object;      // borrowed from the root of the file
    json_t *per_layer;         // maps a key to the number (as written) of a layer for which per_layer_config overrides it
    struct config *text;       // of the text model; NULL: the same as the file's
    const json_t *outer;       // of a text model: the file's object, if other programs may read a key there; NULL: none does
    json_t *names;             // maps a key to its name in the file; NULL: keys have their own names
    // NULL and 0 in a text model's struct:
    json_t *root;
    char *bytes;
    size_t length;
};

static const struct bare_number *bare_number_of(const json_t *value) {
    return json_is_string(value) ? bare_number_find(json_string_value(value)) : NULL;
}

// ---- values in messages ----

enum { VALUE_TEXT_MAX = 64 };

// Control characters could change the output of a terminal or a log.
static void replace_control_characters(char *text) {
    for (char *c = text; *c; c++) {
        *c = (unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c;
    }
}

static void value_text(const json_t *value, char *out, size_t out_bytes) {
    const struct bare_number *bare = bare_number_of(value);
    if (bare || json_is_string(value)) {
        snprintf(out, out_bytes, "%s", bare ? bare->written : json_string_value(value));
        replace_control_characters(out);
        return;
    }
    memset(out, 0, out_bytes); // json_dumpb writes no terminator, and cuts a text that does not fit
    (void)json_dumpb(value, out, out_bytes - 1, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9) | JSON_ENSURE_ASCII);
}

// ---- opening ----

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
    free(quoted);
    if (!config->root) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "bad JSON in line %d: %s", error.line, error.text);
    }
    if (!json_is_object(config->root)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "it is not a JSON object");
    }
    config->object = config->root;
    return OK;
}

static const json_t *look_up(const json_t *object, const char *key) {
    for (int depth = 0; depth < CONFIG_KEY_DEPTH_MAX && object; depth++) {
        const char *dot = strchr(key, '.');
        if (!dot) {
            return json_object_get(object, key);
        }
        object = json_object_getn(object, key, (size_t)(dot - key));
        key = dot + 1;
    }
    return NULL;
}

static bool same(const json_t *a, const json_t *b) {
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b) : json_equal(a, b);
}

// Records the keys that per_layer_config overrides for one layer with another value.
static FALLIBLE record_overrides_of_layer(struct config *config, const char *layer, const json_t *overrides) {
    char value[VALUE_TEXT_MAX];
    const char *key;
    json_t *override;
    json_object_foreach((json_t *)(uintptr_t)overrides, key, override) { // jansson's iterators take no const; they change nothing
        bool empty = json_is_null(override) || (json_is_array(override) && json_array_size(override) == 0);
        if (strcmp(key, "skip") == 0 && !empty) { // a list of model-specific module names, which may include the MoE block
            value_text(override, value, sizeof value);
            FAIL(EXPERTD_ERR_CHECKPOINT, "per_layer_config.%s.skip is %s: layers without some of their parts are not served", layer,
                 value);
        }
        if (!same(override, json_object_get(config->object, key)) &&
            json_object_set_new(config->per_layer, key, json_string(layer)) != 0) {
            FAIL(EXPERTD_ERR_NOMEM, "no memory for per_layer_config");
        }
    }
    return OK;
}

// Records the overrides in the per_layer_config of `object`.
static FALLIBLE record_overrides(struct config *config, const json_t *object) {
    const json_t *layers = json_object_get(object, "per_layer_config");
    char value[VALUE_TEXT_MAX];
    const char *layer;
    json_t *overrides;
    if (layers && !json_is_null(layers) && !json_is_object(layers)) {
        value_text(layers, value, sizeof value);
        FAIL(EXPERTD_ERR_CHECKPOINT, "per_layer_config is %s: expected an object with one member for each layer", value);
    }
    json_object_foreach((json_t *)(uintptr_t)layers, layer, overrides) {
        snprintf(value, sizeof value, "%s", layer);
        replace_control_characters(value);
        if (*layer == '\0' || layer[strspn(layer, "0123456789")] != '\0') {
            FAIL(EXPERTD_ERR_CHECKPOINT, "per_layer_config has a layer \"%s\": expected a layer's number", value);
        }
        if (!json_is_object(overrides)) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "per_layer_config.%s is not an object", value);
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
    if (!config->text || asprintf(&config->text->path, "%s: %s", config->path, key) < 0) {
        free(config->text);
        config->text = NULL;
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a configuration");
    }
    config->text->object = object;
    config->text->file = config->path;
    config->text->prefix = key;
    // A multimodal wrapper has a model_type of its own. Without one transformers builds the text model from the outer object.
    bool is_wrapper = !json_equal(json_object_get(object, "model_type"), json_object_get(config->root, "model_type"));
    config->text->outer = is_wrapper ? NULL : config->root;
    return OK;
}

// Multimodal models have the configuration of their text model in a nested object.
static FALLIBLE find_text(struct config *config) {
    static const char *const KEYS[] = {"text_config", "language_config", "llm_config", "thinker_config.text_config"};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        const json_t *object = look_up(config->root, KEYS[i]);
        if (!json_is_string(json_object_get(object, "model_type"))) {
            continue;
        }
        if (config->text && !json_equal(config->text->object, object)) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "%s and %s both describe a text model and differ: programs read one or the other; remove one",
                 config->text->prefix, KEYS[i]);
        }
        TRY(config->text ? OK : make_text(config, KEYS[i], object));
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
    *config = (struct config){.path = strdup(path), .bytes = bytes, .length = length};
    config->file = config->path;
    config->prefix = "";
    err_t e = config->path ? load(config) : err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for a path");
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
    config_destroy(config->text); // the recursion ends there: a text model has no text model
    json_decref(config->per_layer);
    json_decref(config->names);
    json_decref(config->root);
    free(config->bytes);
    free(config->path);
    free(config);
}

const struct config *config_text(const struct config *config) {
    return config->text ? config->text : config;
}

const char *config_path(const struct config *config) {
    return config->path;
}

const char *config_member_name(const struct config *member) {
    return member->name;
}

FALLIBLE config_name_key(struct config *config, const char *key, const char *name) {
    config->names = config->names ? config->names : json_object();
    if (!config->names || json_object_set_new(config->names, key, json_string(name)) != 0) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the names of keys");
    }
    return OK;
}

const char *config_key(const struct config *config, const char *key) {
    const char *name = json_string_value(json_object_get(config->names, key)); // NULL without names
    return name ? name : key;
}

const char *config_text_bytes(const struct config *config, size_t *length) {
    *length = config->length;
    return config->bytes;
}

const char *config_label(const struct config *config) {
    return config->names ? "the file's metadata" : "config.json";
}

// ---- values ----

bool config_value_text(const struct config *config, const char *key, char *out, size_t out_bytes) {
    const json_t *value = look_up(config->object, key);
    if (!value || json_is_null(value)) {
        return false;
    }
    value_text(value, out, out_bytes);
    return true;
}

enum { NO_INDEX = -1 };

// "text_config.num_experts[3]": the key with its path in the file, or its own name there, and the index if it has a list. Returns
// text.
static const char *key_text(const struct config *config, const char *key, int64_t index, char text[CONFIG_KEY_TEXT_MAX]) {
    char element[32] = "";
    if (index != NO_INDEX && json_is_array(look_up(config->object, key))) {
        snprintf(element, sizeof element, "[%" PRId64 "]", index);
    }
    snprintf(text, CONFIG_KEY_TEXT_MAX, "%s%s%s%s", config->prefix, config->prefix[0] ? "." : "", config_key(config, key), element);
    return text;
}

// A string such as "8" or "true", which is shown in quotes.
static bool looks_like_another_type(const json_t *value) {
    const char *text = json_is_string(value) && !bare_number_of(value) ? json_string_value(value) : NULL;
    char *end = NULL;
    if (text) {
        (void)strtod(text, &end);
    }
    return text && (*end == '\0' || strcmp(text, "true") == 0 || strcmp(text, "false") == 0 || strcmp(text, "null") == 0);
}

// Records "FILE: KEY is VALUE" and what follows.
static err_t refuse_value(const struct config *config, const char *key, int64_t index, const json_t *value, const char *rest) {
    char text[VALUE_TEXT_MAX], name[CONFIG_KEY_TEXT_MAX];
    const char *quote = looks_like_another_type(value) ? "\"" : "";
    snprintf(text, sizeof text, "missing");
    if (value) {
        value_text(value, text, sizeof text);
    }
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s: %s is %s%s%s%s", config->file, key_text(config, key, index, name), quote,
                      text, quote, rest);
}

// The first of the keys that is present and not null; the first of all if none is.
static const char *present_key(const struct config *config, const char *const *keys) {
    for (const char *const *key = keys; *key; key++) {
        if (config_has(config, *key)) {
            return *key;
        }
    }
    return *keys;
}

err_t config_refuse(const struct config *config, const char *const *keys, uint32_t index, const char *rest, ...) {
    char text[EXPERTD_ERR_MESSAGE_MAX / 2];
    const char *key = present_key(config, keys);
    const json_t *value = look_up(config->object, key), *element = json_array_get(value, index);
    va_list args;
    va_start(args, rest);
    vsnprintf(text, sizeof text, rest, args);
    va_end(args);
    return refuse_value(config, key, index, element ? element : value, text);
}

err_t config_missing(const struct config *config, const char *const *keys, const char *expected) {
    char name[CONFIG_KEY_TEXT_MAX], others[256] = "";
    size_t used = 0;
    for (const char *const *key = keys + 1; !config->names && *keys && *key && used < sizeof others; key++) {
        used += (size_t)snprintf(others + used, sizeof others - used, "%s%s", used ? ", " : "; other names: ", *key);
    }
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s: %s is missing (expected: %s%s)%s", config->file,
                      key_text(config, keys[0], NO_INDEX, name), expected, others,
                      config->names ? "" : ": is this the model's own config.json?");
}

const char *config_values_text(const struct config *config, const char *const *const *settings, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (; *settings; settings++) {
        const char *key = present_key(config, *settings);
        const json_t *value = look_up(config->object, key);
        if (value && used < bytes) {
            char name[CONFIG_KEY_TEXT_MAX], written[VALUE_TEXT_MAX];
            value_text(value, written, sizeof written);
            used += (size_t)snprintf(text + used, bytes - used, "%s%s %s", used ? ", " : "", key_text(config, key, NO_INDEX, name),
                                     written);
        }
    }
    return text;
}

FALLIBLE config_is_said_once(const struct config *config, const char *key) {
    const json_t *layer = json_object_getn(config->per_layer, key, strcspn(key, "."));
    if (layer) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: per_layer_config.%s overrides %s, which is not supported: all layers must have the same value", config->path,
             json_string_value(layer), key);
    }
    const json_t *inner = look_up(config->object, key), *outer = config->outer ? look_up(config->outer, key) : NULL;
    if (outer && !json_is_null(outer) && !(inner && same(inner, outer))) {
        char values[2][VALUE_TEXT_MAX] = {"absent"};
        if (inner) {
            value_text(inner, values[0], sizeof values[0]);
        }
        value_text(outer, values[1], sizeof values[1]);
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: %s.%s is %s, but %s is %s, and both objects have one model_type: programs read one or the other; remove %s",
             config->file, config->prefix, key, values[0], key, values[1], config->prefix);
    }
    return OK;
}

// The value of a key, or if it is a list and an index is given, that element. NULL: absent or null.
static FALLIBLE value_of(const struct config *config, const char *key, int64_t index, const json_t **out) {
    TRY(config_is_said_once(config, key));
    const json_t *value = look_up(config->object, key);
    if (index != NO_INDEX && json_is_array(value)) {
        if ((size_t)index >= json_array_size(value)) {
            char name[CONFIG_KEY_TEXT_MAX];
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s has %zu elements: element %" PRId64 " is missing: expected one for each layer",
                 config->file, key_text(config, key, NO_INDEX, name), json_array_size(value), index);
        }
        value = json_array_get(value, (size_t)index);
    }
    *out = json_is_null(value) ? NULL : value;
    return OK;
}

static FALLIBLE find(const struct config *config, const char *const *keys, int64_t index, const char **key, const json_t **out) {
    *out = NULL;
    *key = *keys;
    for (; *keys; keys++) {
        const json_t *value = NULL;
        TRY(value_of(config, *keys, index, &value));
        if (value && *out && !same(*out, value)) {
            char first[VALUE_TEXT_MAX], second[VALUE_TEXT_MAX], names[2][CONFIG_KEY_TEXT_MAX];
            value_text(*out, first, sizeof first);
            value_text(value, second, sizeof second);
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s and %s is %s, but both name the same setting: one is wrong; remove it",
                 config->file, key_text(config, *key, index, names[0]), first, key_text(config, *keys, index, names[1]), second);
        }
        if (value && !*out) {
            *out = value;
            *key = *keys;
        }
    }
    return OK;
}

static FALLIBLE number_to_u32(const struct config *config, const char *key, int64_t index, const json_t *value, uint32_t *out) {
    double number = json_number_value(value); // 0 for other types
    bool integer = json_is_integer(value) || (json_is_real(value) && number == floor(number));
    if (!integer || number < 0 || number > UINT32_MAX) {
        return refuse_value(config, key, index, value, ": expected an integer from 0 to 4294967295");
    }
    *out = (uint32_t)number;
    return OK;
}

static FALLIBLE u32_at(const struct config *config, const char *const *keys, int64_t index, uint32_t *out, bool *found) {
    const char *key;
    const json_t *value;
    TRY(find(config, keys, index, &key, &value));
    *found = value != NULL;
    return value ? number_to_u32(config, key, index, value, out) : OK;
}

FALLIBLE config_u32(const struct config *config, const char *const *keys, uint32_t *out, bool *found) {
    return u32_at(config, keys, NO_INDEX, out, found);
}

FALLIBLE config_u32_at(const struct config *config, const char *const *keys, size_t index, uint32_t *out, bool *found) {
    return u32_at(config, keys, (int64_t)index, out, found);
}

static FALLIBLE f64_at(const struct config *config, const char *const *keys, int64_t index, double *out, bool *found) {
    const char *key;
    const json_t *value;
    TRY(find(config, keys, index, &key, &value));
    *found = value != NULL;
    const struct bare_number *bare = bare_number_of(value);
    if (value && !bare && !json_is_number(value)) {
        return refuse_value(config, key, index, value, ": expected a number");
    }
    if (value) {
        *out = bare ? bare->value : json_number_value(value);
    }
    return OK;
}

FALLIBLE config_f64(const struct config *config, const char *const *keys, double *out, bool *found) {
    return f64_at(config, keys, NO_INDEX, out, found);
}

FALLIBLE config_f64_at(const struct config *config, const char *const *keys, size_t index, double *out, bool *found) {
    return f64_at(config, keys, (int64_t)index, out, found);
}

FALLIBLE config_bool(const struct config *config, const char *const *keys, bool *out, bool *found) {
    const char *key;
    const json_t *value;
    TRY(find(config, keys, NO_INDEX, &key, &value));
    *found = value != NULL;
    if (value && !json_is_boolean(value)) {
        return refuse_value(config, key, NO_INDEX, value, ": expected true or false");
    }
    if (value) {
        *out = json_is_true(value);
    }
    return OK;
}

static FALLIBLE string_at(const struct config *config, const char *const *keys, int64_t index, const char **out, bool *found) {
    const char *key;
    const json_t *value;
    TRY(find(config, keys, index, &key, &value));
    *found = value != NULL;
    if (value && (!json_is_string(value) || bare_number_of(value))) {
        return refuse_value(config, key, index, value, ": expected a string");
    }
    if (value) {
        *out = json_string_value(value);
    }
    return OK;
}

FALLIBLE config_string(const struct config *config, const char *const *keys, const char **out, bool *found) {
    return string_at(config, keys, NO_INDEX, out, found);
}

FALLIBLE config_string_at(const struct config *config, const char *const *keys, size_t index, const char **out, bool *found) {
    return string_at(config, keys, (int64_t)index, out, found);
}

FALLIBLE config_u32_list(const struct config *config, const char *const *keys, uint32_t *out, size_t max, size_t *count,
                         bool *found) {
    const char *key;
    const json_t *value;
    *count = 0;
    TRY(find(config, keys, NO_INDEX, &key, &value));
    *found = value != NULL;
    if (!value) {
        return OK;
    }
    if (!json_is_array(value)) {
        return refuse_value(config, key, NO_INDEX, value, ": expected a list of integers");
    }
    if (json_array_size(value) > max) {
        char name[CONFIG_KEY_TEXT_MAX];
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s has %zu elements: expected at most %zu", config->file,
             key_text(config, key, NO_INDEX, name), json_array_size(value), max);
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        TRY(number_to_u32(config, key, (int64_t)i, json_array_get(value, i), &out[i]));
    }
    *count = json_array_size(value);
    return OK;
}

bool config_has(const struct config *config, const char *key) {
    const json_t *value = look_up(config->object, key);
    return value && !json_is_null(value);
}

bool config_is_null(const struct config *config, const char *key) {
    return json_is_null(look_up(config->object, key));
}

bool config_equal(const struct config *a, const char *key_a, const struct config *b, const char *key_b) {
    const json_t *value_a = look_up(a->object, key_a), *value_b = look_up(b->object, key_b);
    return value_a == value_b || json_equal(value_a, value_b);
}

size_t config_list_length(const struct config *config, const char *key) {
    return json_array_size(look_up(config->object, key));
}

bool config_is_object(const struct config *config, const char *key) {
    return json_is_object(look_up(config->object, key));
}

size_t config_object_size(const struct config *config, const char *key) {
    return json_object_size(look_up(config->object, key));
}

enum { NAME_SHOWN_MAX = 128 };

// The path of a member for messages, "FILE: KEY.NAME"; NULL: no memory.
static char *member_path(const struct config *config, const char *key, const char *name) {
    char shown[NAME_SHOWN_MAX + 1], *path;
    snprintf(shown, sizeof shown, "%s", name);
    replace_control_characters(shown);
    return asprintf(&path, "%s: %s.%s", config->path, key, shown) < 0 ? NULL : path;
}

FALLIBLE config_each_member(const struct config *config, const char *key, config_visitor *visit, void *context) {
    json_t *object = (json_t *)(uintptr_t)look_up(config->object, key); // jansson's iterators take no const
    err_t e = OK;
    for (void *at = json_object_iter(object); at && !err_is(e); at = json_object_iter_next(object, at)) {
        const char *name = json_object_iter_key(at);
        struct config member = {.path = member_path(config, key, name), .name = name, .object = json_object_iter_value(at)};
        member.file = member.path;
        member.prefix = "";
        e = member.path ? visit(context, &member) : err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for a path");
        free(member.path);
    }
    return e;
}
