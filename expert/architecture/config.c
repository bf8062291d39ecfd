#include "expert/architecture/config.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/regular_file.h"

struct config {
    char *path;
    const json_t *object; // borrowed from root
    json_t *per_layer;    // keys that per_layer_config gives some layer another value of, each with that layer's number as written
    struct config *text;  // the text model's, where it is another object
    // of the whole only:
    json_t *root;
    char *bytes;
    size_t length;
};

// ---- bare NaN and Infinity ----

// jansson has no such numbers, so they travel as strings that no configuration holds: U+FDD0 is for ever unassigned.
struct bare_number {
    const char *written, *quoted, *text;
    double value;
};
static const struct bare_number BARE_NUMBERS[] = {
    {"NaN", "\"\\uFDD0NaN\"", "\xef\xb7\x90NaN", NAN},
    {"-Infinity", "\"\\uFDD0-Infinity\"", "\xef\xb7\x90-Infinity", -INFINITY},
    {"Infinity", "\"\\uFDD0Infinity\"", "\xef\xb7\x90Infinity", INFINITY},
};
enum { BARE_NUMBER_COUNT = sizeof BARE_NUMBERS / sizeof *BARE_NUMBERS };

// The bare number at `at`, if one is there where a value ends: elsewhere it is left to jansson, which refuses it.
static const struct bare_number *bare_number_at(const char *at, const char *end) {
    for (size_t i = 0; i < BARE_NUMBER_COUNT; i++) {
        size_t length = strlen(BARE_NUMBERS[i].written);
        if ((size_t)(end - at) < length || memcmp(at, BARE_NUMBERS[i].written, length) != 0) {
            continue;
        }
        const char *next = at + length;
        while (next < end && strchr(" \t\r\n", *next) && *next) {
            next++;
        }
        return next < end && (*next == ',' || *next == ']' || *next == '}') ? &BARE_NUMBERS[i] : NULL;
    }
    return NULL;
}

// Where the string that begins at `at` ends: past its closing quote.
static const char *string_end(const char *at, const char *end) {
    for (at++; at < end && *at != '"'; at++) {
        at += *at == '\\' && end - at > 1;
    }
    return at < end ? at + 1 : end;
}

// Copies `text` with bare numbers quoted. *out has room for length times BARE_NUMBER_GROWTH at worst, so it is sized by a first
// pass.
static size_t quote_bare_numbers(const char *text, size_t length, char *out) {
    const char *at = text, *end = text + length;
    size_t used = 0;
    while (at < end) {
        const char *next = *at == '"' ? string_end(at, end) : at + 1;
        const char *from = at;
        size_t bytes = (size_t)(next - at);
        const struct bare_number *bare = *at == 'N' || *at == 'I' || *at == '-' ? bare_number_at(at, end) : NULL;
        if (bare) {
            next = at + strlen(bare->written);
            from = bare->quoted;
            bytes = strlen(bare->quoted);
        }
        if (out) {
            memcpy(out + used, from, bytes);
        }
        used += bytes;
        at = next;
    }
    return used;
}

static const struct bare_number *bare_number_of(const json_t *value) {
    for (size_t i = 0; json_is_string(value) && i < BARE_NUMBER_COUNT; i++) {
        if (strcmp(json_string_value(value), BARE_NUMBERS[i].text) == 0) {
            return &BARE_NUMBERS[i];
        }
    }
    return NULL;
}

// ---- values in messages ----

enum { VALUE_TEXT_MAX = 64 };

// What is printed to terminals and logs.
static void without_controls(char *text) {
    for (char *c = text; *c; c++) {
        *c = (unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c;
    }
}

static void value_text(const json_t *value, char *out, size_t out_bytes) {
    const struct bare_number *bare = bare_number_of(value);
    if (bare || json_is_string(value)) {
        snprintf(out, out_bytes, "%s", bare ? bare->written : json_string_value(value));
        without_controls(out);
        return;
    }
    memset(out, 0, out_bytes); // a text that does not fit is written as far as it does
    (void)json_dumpb(value, out, out_bytes - 1, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9) | JSON_ENSURE_ASCII);
}

// ---- opening ----

static FALLIBLE load(struct config *config) {
    if (memchr(config->bytes, '\0', config->length)) { // jansson would take it for the end, and what follows would pass unread
        FAIL(EXPERTD_ERR_CHECKPOINT, "bad JSON: it holds a NUL byte");
    }
    size_t quoted_length = quote_bare_numbers(config->bytes, config->length, NULL);
    char *quoted = malloc(quoted_length + 1);
    if (!quoted) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu bytes", quoted_length);
    }
    quote_bare_numbers(config->bytes, config->length, quoted);
    json_error_t error;
    config->root = json_loadb(quoted, quoted_length, JSON_REJECT_DUPLICATES, &error);
    free(quoted);
    if (!config->root) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "bad JSON in line %d: %s", error.line, error.text);
    }
    if (!json_is_object(config->root)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "it is no JSON object");
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

static FALLIBLE note_layer(struct config *config, const char *layer, const json_t *own) {
    char value[VALUE_TEXT_MAX];
    const char *key;
    json_t *its;
    json_object_foreach((json_t *)(uintptr_t)own, key, its) { // which changes nothing
        bool skips = strcmp(key, "skip") == 0 && !json_is_null(its) && !(json_is_array(its) && json_array_size(its) == 0);
        if (skips) { // names of modules, each model's own: the block may be among them
            value_text(its, value, sizeof value);
            FAIL(EXPERTD_ERR_CHECKPOINT, "per_layer_config.%s.skip is %s: layers without some of their parts are not served", layer,
                 value);
        }
        if (!same(its, json_object_get(config->object, key)) &&
            json_object_set_new(config->per_layer, key, json_string(layer)) != 0) {
            FAIL(EXPERTD_ERR_NOMEM, "no memory for per_layer_config");
        }
    }
    return OK;
}

// Collects what `from` gives single layers, other than `config` has it.
static FALLIBLE note_layers(struct config *config, const json_t *from) {
    const json_t *layers = json_object_get(from, "per_layer_config");
    char value[VALUE_TEXT_MAX];
    const char *layer;
    json_t *own;
    if (layers && !json_is_null(layers) && !json_is_object(layers)) {
        value_text(layers, value, sizeof value);
        FAIL(EXPERTD_ERR_CHECKPOINT, "per_layer_config is %s: an object of layers is wanted", value);
    }
    json_object_foreach((json_t *)(uintptr_t)layers, layer, own) {
        snprintf(value, sizeof value, "%s", layer);
        without_controls(value);
        if (*layer == '\0' || layer[strspn(layer, "0123456789")] != '\0') {
            FAIL(EXPERTD_ERR_CHECKPOINT, "per_layer_config has a layer \"%s\": a layer's number is wanted", value);
        }
        if (!json_is_object(own)) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "per_layer_config.%s is no object", value);
        }
        TRY(note_layer(config, value, own));
    }
    return OK;
}

// A wrapper's own entries count for its text model too: that is the one that has layers.
static FALLIBLE find_per_layer(struct config *config, const json_t *root) {
    config->per_layer = json_object();
    if (!config->per_layer) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for per_layer_config");
    }
    TRY(note_layers(config, root));
    return config->object == root ? OK : note_layers(config, config->object);
}

// Wrappers of a text model (vision, audio) keep its configuration in an object of their own.
static FALLIBLE find_text(struct config *config) {
    static const char *const PLACES[] = {"text_config", "language_config", "llm_config", "thinker_config.text_config"};
    for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES; i++) {
        const json_t *object = look_up(config->root, PLACES[i]);
        if (!json_is_string(json_object_get(object, "model_type"))) {
            continue;
        }
        config->text = calloc(1, sizeof *config->text);
        if (!config->text || asprintf(&config->text->path, "%s: %s", config->path, PLACES[i]) < 0) {
            free(config->text);
            config->text = NULL;
            FAIL(EXPERTD_ERR_NOMEM, "no memory for a configuration");
        }
        config->text->object = object;
        return OK;
    }
    return OK;
}

// Takes `bytes`, also on error.
static FALLIBLE config_take(const char *path, char *bytes, size_t length, struct config **out) {
    struct config *config = calloc(1, sizeof *config);
    if (!config) {
        free(bytes);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a configuration");
    }
    *config = (struct config){.path = strdup(path), .bytes = bytes, .length = length};
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
    return config_take(path, bytes, length, out);
}

FALLIBLE config_parse(const char *path, const char *text, size_t length, struct config **out) {
    *out = NULL;
    if (length > CONFIG_BYTES_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s has %zu bytes, at most %d are read", path, length, CONFIG_BYTES_MAX);
    }
    char *bytes = malloc(length + 1);
    if (!bytes) {
        FAIL(EXPERTD_ERR_NOMEM, "%s: no memory for %zu bytes", path, length);
    }
    if (length > 0) {
        memcpy(bytes, text, length);
    }
    bytes[length] = '\0';
    return config_take(path, bytes, length, out);
}

void config_destroy(struct config *config) {
    if (!config) {
        return;
    }
    config_destroy(config->text); // which has no text of its own: one level
    json_decref(config->per_layer);
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

const char *config_text_bytes(const struct config *config, size_t *length) {
    *length = config->length;
    return config->bytes;
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

static err_t wrong(const struct config *config, const char *key, const json_t *value, const char *wanted) {
    char text[VALUE_TEXT_MAX];
    value_text(value, text, sizeof text);
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s: %s is %s: %s is wanted", config->path, key, text, wanted);
}

FALLIBLE config_same_in_all_layers(const struct config *config, const char *key) {
    const json_t *layer = json_object_getn(config->per_layer, key, strcspn(key, "."));
    if (layer) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: per_layer_config.%s overrides %s, which is not computed here: all layers must have the same", config->path,
             json_string_value(layer), key);
    }
    return OK;
}

enum { NO_INDEX = -1 };

// The value of a key, or the element of its list where there is an index; NULL where it is not there or null.
static FALLIBLE value_of(const struct config *config, const char *key, int64_t index, const json_t **out) {
    TRY(config_same_in_all_layers(config, key));
    const json_t *value = look_up(config->object, key);
    if (index != NO_INDEX && json_is_array(value)) {
        if ((size_t)index >= json_array_size(value)) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s has %zu elements, number %" PRId64 " is wanted", config->path, key,
                 json_array_size(value), index);
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
            char first[VALUE_TEXT_MAX], second[VALUE_TEXT_MAX];
            value_text(*out, first, sizeof first);
            value_text(value, second, sizeof second);
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s and %s is %s, which mean the same: one is wrong", config->path, *key, first,
                 *keys, second);
        }
        if (value && !*out) {
            *out = value;
            *key = *keys;
        }
    }
    return OK;
}

static FALLIBLE number_to_u32(const struct config *config, const char *key, const json_t *value, uint32_t *out) {
    double number = json_number_value(value); // 0 for what is no number
    bool whole = json_is_integer(value) || (json_is_real(value) && number == floor(number));
    if (!whole || number < 0 || number > UINT32_MAX) {
        return wrong(config, key, value, "a whole number from 0 to 4294967295");
    }
    *out = (uint32_t)number;
    return OK;
}

static FALLIBLE u32_at(const struct config *config, const char *const *keys, int64_t index, uint32_t *out, bool *found) {
    const char *key;
    const json_t *value;
    TRY(find(config, keys, index, &key, &value));
    *found = value != NULL;
    return value ? number_to_u32(config, key, value, out) : OK;
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
        return wrong(config, key, value, "a number");
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
        return wrong(config, key, value, "true or false");
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
        return wrong(config, key, value, "a string");
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
        return wrong(config, key, value, "a list of whole numbers");
    }
    if (json_array_size(value) > max) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s has %zu elements, at most %zu are expected", config->path, key, json_array_size(value),
             max);
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        TRY(number_to_u32(config, key, json_array_get(value, i), &out[i]));
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

size_t config_list_length(const struct config *config, const char *key) {
    return json_array_size(look_up(config->object, key));
}

size_t config_object_size(const struct config *config, const char *key) {
    return json_object_size(look_up(config->object, key));
}

enum { NAME_SHOWN_MAX = 128 };

// A member's name as messages show it, after what it is a member of; NULL: no memory.
static char *member_path(const struct config *config, const char *key, const char *name) {
    char shown[NAME_SHOWN_MAX + 1], *path;
    snprintf(shown, sizeof shown, "%s", name);
    without_controls(shown);
    return asprintf(&path, "%s: %s.%s", config->path, key, shown) < 0 ? NULL : path;
}

FALLIBLE config_each_member(const struct config *config, const char *key, config_visitor *visit, void *context) {
    json_t *object = (json_t *)(uintptr_t)look_up(config->object, key); // jansson's iterators take what they do not change
    err_t e = OK;
    for (void *at = json_object_iter(object); at && !err_is(e); at = json_object_iter_next(object, at)) {
        struct config member = {.path = member_path(config, key, json_object_iter_key(at)), .object = json_object_iter_value(at)};
        e = member.path ? visit(context, &member) : err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for a path");
        free(member.path);
    }
    return e;
}
