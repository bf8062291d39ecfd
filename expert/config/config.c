#include "expert/config/config.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "expert/config/config_state.h"
#include "expert/config/json_text.h"

static const struct bare_number *bare_number_of(const json_t *value) {
    return json_is_string(value) ? bare_number_find(json_string_value(value)) : NULL;
}

// ---- values in messages ----

// Control characters could change the output of a terminal or a log.
void config_replace_control_characters(char *text) {
    for (char *c = text; *c; c++) {
        *c = (unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c;
    }
}

void config_show(const json_t *value, char *out, size_t out_bytes) {
    const struct bare_number *bare = bare_number_of(value);
    if (bare || json_is_string(value)) {
        snprintf(out, out_bytes, "%s", bare ? bare->written : json_string_value(value));
        config_replace_control_characters(out);
        return;
    }
    memset(out, 0, out_bytes); // json_dumpb writes no terminator, and cuts a text that does not fit
    (void)json_dumpb(value, out, out_bytes - 1, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9) | JSON_ENSURE_ASCII);
}

const json_t *config_look_up(const json_t *object, const char *key) {
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

bool config_same_value(const json_t *a, const json_t *b) {
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b) : json_equal(a, b);
}

const struct config *config_text(const struct config *config) {
    return config->text ? config->text : config;
}

const char *config_path(const struct config *config) {
    return config->file;
}

const char *config_prefix(const struct config *config) {
    return config->prefix;
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
    const char *slash = strrchr(config->file, '/');
    bool is_params = strcmp(slash ? slash + 1 : config->file, "params.json") == 0;
    return is_params ? "params.json" : config->names ? "the file's metadata" : "config.json";
}

// ---- values ----

bool config_value_text(const struct config *config, const char *key, char *out, size_t out_bytes) {
    const json_t *value = config_look_up(config->object, key);
    if (!value || json_is_null(value)) {
        return false;
    }
    config_show(value, out, out_bytes);
    return true;
}

void config_write_value(const struct config *config, const char *key, FILE *out) {
    (void)json_dumpf(config_look_up(config->object, key), out, JSON_ENCODE_ANY | JSON_COMPACT); // the caller checks the stream
}

const char *config_key_text(const struct config *config, const char *key, int64_t index, char text[CONFIG_KEY_TEXT_MAX]) {
    char element[32] = "";
    if (index != CONFIG_WHOLE && json_is_array(config_look_up(config->object, key))) {
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

// The value as the file has it, for a message; NULL: "missing". Returns text.
static const char *shown(const json_t *value, char text[CONFIG_VALUE_TEXT_MAX]) {
    char plain[CONFIG_VALUE_TEXT_MAX - sizeof "\"\"..."];
    config_show(value, plain, sizeof plain);
    const char *quote = looks_like_another_type(value) ? "\"" : "", *more = strlen(plain) + 1 == sizeof plain ? "..." : "";
    snprintf(text, CONFIG_VALUE_TEXT_MAX, "%s%s%s%s", quote, value ? plain : "missing", more, quote);
    return text;
}

// Records "FILE: KEY is VALUE" and what follows.
static err_t refuse_value(const struct config *config, const char *key, int64_t index, const json_t *value, const char *rest) {
    char text[CONFIG_VALUE_TEXT_MAX], name[CONFIG_KEY_TEXT_MAX];
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s: %s is %s%s", config->file, config_key_text(config, key, index, name),
                      shown(value, text), rest);
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

err_t config_refuse(const struct config *config, const char *const *keys, int64_t index, const char *rest, ...) {
    char text[EXPERTD_ERR_MESSAGE_MAX / 2];
    const char *key = present_key(config, keys);
    const json_t *value = config_look_up(config->object, key),
                 *element = index == CONFIG_WHOLE ? NULL : json_array_get(value, (size_t)index);
    va_list args;
    va_start(args, rest);
    vsnprintf(text, sizeof text, rest, args);
    va_end(args);
    return refuse_value(config, key, index, element ? element : value, text);
}

// "; text_config is 3, not an object": a nested object with a text model's name that was not taken.
static void text_model_not_taken(const struct config *config, char *text, size_t bytes) {
    char value[CONFIG_VALUE_TEXT_MAX];
    text[0] = '\0';
    for (const char *const *key = CONFIG_TEXT_KEYS; *key && !config->text && config->root && !text[0]; key++) {
        const json_t *object = config_look_up(config->object, *key), *type = json_object_get(object, "model_type");
        if (object && !json_is_null(object)) {
            config_show(type ? type : object, value, sizeof value);
            snprintf(text, bytes, "; %s%s is %s: its keys are not read without a model_type", *key,
                     json_is_object(object) ? ".model_type" : "", json_is_object(object) && !type ? "missing" : value);
        }
    }
}

// Is the value of the key, or its element `index`, null?
static bool is_null_at(const struct config *config, const char *key, int64_t index) {
    const json_t *value = config_look_up(config->object, key);
    return json_is_null(json_is_array(value) && index != CONFIG_WHOLE ? json_array_get(value, (size_t)index) : value);
}

err_t config_missing(const struct config *config, const char *const *keys, int64_t index, const char *expected, ...) {
    char name[CONFIG_KEY_TEXT_MAX], others[256] = "", wanted[128], text_model[192], mend[64];
    const char *key = keys[0];
    size_t used = 0;
    va_list args;
    for (size_t i = 0; keys[i] && !is_null_at(config, key, index); i++) {
        key = is_null_at(config, keys[i], index) ? keys[i] : key;
    }
    for (size_t i = 0; !config->names && keys[i] && used < sizeof others; i++) {
        const char *separator = used ? ", " : "; other names: ";
        used += keys[i] == key ? 0 : (size_t)snprintf(others + used, sizeof others - used, "%s%s", separator, keys[i]);
    }
    va_start(args, expected);
    vsnprintf(wanted, sizeof wanted, expected, args);
    va_end(args);
    text_model_not_taken(config, text_model, sizeof text_model);
    snprintf(mend, sizeof mend, ": is this the model's own %s?", config_label(config));
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s: %s is %s (expected: %s%s)%s%s", config->file,
                      config_key_text(config, key, index, name), is_null_at(config, key, index) ? "null" : "missing", wanted,
                      others, text_model, config->names ? "" : mend);
}

const char *config_values_text(const struct config *config, const char *const *const *settings, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (; *settings; settings++) {
        const char *key = present_key(config, *settings);
        const json_t *value = config_look_up(config->object, key);
        if (value && used < bytes) {
            char name[CONFIG_KEY_TEXT_MAX], written[CONFIG_VALUE_TEXT_MAX];
            config_show(value, written, sizeof written);
            used += (size_t)snprintf(text + used, bytes - used, "%s%s %s", used ? ", " : "",
                                     config_key_text(config, key, CONFIG_WHOLE, name), written);
        }
    }
    return text;
}

// transformers builds a wrapper's text model from a nested object without model_type too; other programs read the outer one.
static FALLIBLE check_untyped_text(const struct config *config, const char *key) {
    const json_t *own = config_look_up(config->object, key);
    bool every_object_has_it = strcmp(key, "architectures") == 0; // a wrapper's class and its text model's
    for (const char *const *text = CONFIG_TEXT_KEYS; *text && config->root && !config->text && !every_object_has_it; text++) {
        const json_t *nested = config_look_up(config_look_up(config->root, *text), key);
        if (nested && !json_is_null(nested) && !(own && config_same_value(own, nested))) {
            char values[2][CONFIG_VALUE_TEXT_MAX], name[CONFIG_KEY_TEXT_MAX];
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "%s: %s is %s, but %s.%s is %s, and %s has no model_type: programs read one or the other; remove %s, or "
                 "give it the text model's model_type",
                 config->file, config_key_text(config, key, CONFIG_WHOLE, name), own ? shown(own, values[0]) : "absent", *text, key,
                 shown(nested, values[1]), *text, *text);
        }
    }
    return OK;
}

FALLIBLE config_is_said_once(const struct config *config, const char *key) {
    const json_t *layer = json_object_getn(config->per_layer, key, strcspn(key, "."));
    char name[CONFIG_KEY_TEXT_MAX];
    if (layer) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: per_layer_config.%s overrides %s, which is not supported: all layers must have the same value", config->file,
             json_string_value(layer), config_key_text(config, key, CONFIG_WHOLE, name));
    }
    const json_t *inner = config_look_up(config->object, key);
    const json_t *outer = config->outer ? config_look_up(config->outer, key) : NULL;
    if (outer && !json_is_null(outer) && !(inner && config_same_value(inner, outer))) {
        char values[2][CONFIG_VALUE_TEXT_MAX];
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: %s is %s, but %s is %s, and both objects have one model_type: programs read one or the other; remove %s",
             config->file, config_key_text(config, key, CONFIG_WHOLE, name), inner ? shown(inner, values[0]) : "absent", key,
             shown(outer, values[1]), config->prefix);
    }
    return check_untyped_text(config, key);
}

// A key of a nested object whose place holds something else must not count as absent.
static FALLIBLE check_objects_of(const struct config *config, const char *key) {
    const json_t *object = config->object;
    for (const char *from = key, *dot; object && (dot = strchr(from, '.')); from = dot + 1) {
        object = json_object_getn(object, from, (size_t)(dot - from));
        if (object && !json_is_null(object) && !json_is_object(object)) {
            char outer[CONFIG_KEY_TEXT_MAX];
            snprintf(outer, sizeof outer, "%.*s", (int)(dot - key), key);
            return refuse_value(config, outer, CONFIG_WHOLE, object, ": expected an object");
        }
    }
    return OK;
}

// The value of a key, or if it is a list and an index is given, that element. NULL: absent or null.
static FALLIBLE value_of(const struct config *config, const char *key, int64_t index, const json_t **out) {
    TRY(config_is_said_once(config, key));
    TRY(check_objects_of(config, key));
    const json_t *value = config_look_up(config->object, key);
    if (index != CONFIG_WHOLE && json_is_array(value)) {
        if ((size_t)index >= json_array_size(value)) {
            char name[CONFIG_KEY_TEXT_MAX];
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s has %zu elements: element %" PRId64 " is missing: expected one for each layer",
                 config->file, config_key_text(config, key, CONFIG_WHOLE, name), json_array_size(value), index);
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
        if (value && *out && !config_same_value(*out, value)) {
            char texts[2][CONFIG_VALUE_TEXT_MAX], names[2][CONFIG_KEY_TEXT_MAX];
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %s and %s is %s, but both name the same setting: one is wrong; remove it",
                 config->file, config_key_text(config, *key, index, names[0]), shown(*out, texts[0]),
                 config_key_text(config, *keys, index, names[1]), shown(value, texts[1]));
        }
        if (value && !*out) {
            *out = value;
            *key = *keys;
        }
    }
    return OK;
}

static const struct config_range ANY_U32 = {0, UINT32_MAX};

static FALLIBLE number_to_u32(const struct config *config, const char *key, int64_t index, const json_t *value,
                              struct config_range range, uint32_t *out) {
    double number = json_number_value(value); // 0 for other types
    bool integer = json_is_integer(value) || (json_is_real(value) && number == floor(number));
    if (!integer || number < range.least || number > range.most) {
        char rest[80];
        snprintf(rest, sizeof rest, ": expected an integer from %" PRIu32 " to %" PRIu32, range.least, range.most);
        return refuse_value(config, key, index, value, rest);
    }
    *out = (uint32_t)number;
    return OK;
}

static FALLIBLE u32_at(const struct config *config, const char *const *keys, int64_t index, struct config_range range,
                       uint32_t *out, bool *found) {
    const char *key;
    const json_t *value;
    TRY(find(config, keys, index, &key, &value));
    *found = value != NULL;
    return value ? number_to_u32(config, key, index, value, range, out) : OK;
}

FALLIBLE config_u32(const struct config *config, const char *const *keys, uint32_t *out, bool *found) {
    return u32_at(config, keys, CONFIG_WHOLE, ANY_U32, out, found);
}

FALLIBLE config_u32_at(const struct config *config, const char *const *keys, size_t index, uint32_t *out, bool *found) {
    return u32_at(config, keys, (int64_t)index, ANY_U32, out, found);
}

FALLIBLE config_u32_in(const struct config *config, const char *const *keys, int64_t index, struct config_range range,
                       uint32_t *out, bool *found) {
    return u32_at(config, keys, index, range, out, found);
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
    return f64_at(config, keys, CONFIG_WHOLE, out, found);
}

FALLIBLE config_f64_at(const struct config *config, const char *const *keys, size_t index, double *out, bool *found) {
    return f64_at(config, keys, (int64_t)index, out, found);
}

FALLIBLE config_bool(const struct config *config, const char *const *keys, bool *out, bool *found) {
    const char *key;
    const json_t *value;
    TRY(find(config, keys, CONFIG_WHOLE, &key, &value));
    *found = value != NULL;
    if (value && !json_is_boolean(value)) {
        return refuse_value(config, key, CONFIG_WHOLE, value, ": expected true or false");
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
    return string_at(config, keys, CONFIG_WHOLE, out, found);
}

FALLIBLE config_string_at(const struct config *config, const char *const *keys, size_t index, const char **out, bool *found) {
    return string_at(config, keys, (int64_t)index, out, found);
}

FALLIBLE config_u32_list(const struct config *config, const char *const *keys, uint32_t *out, size_t max, size_t *count,
                         bool *found) {
    const char *key;
    const json_t *value;
    *count = 0;
    TRY(find(config, keys, CONFIG_WHOLE, &key, &value));
    *found = value != NULL;
    if (!value) {
        return OK;
    }
    if (!json_is_array(value)) {
        return refuse_value(config, key, CONFIG_WHOLE, value, ": expected a list of integers");
    }
    if (json_array_size(value) > max) {
        char name[CONFIG_KEY_TEXT_MAX];
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s has %zu elements: expected at most %zu", config->file,
             config_key_text(config, key, CONFIG_WHOLE, name), json_array_size(value), max);
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        TRY(number_to_u32(config, key, (int64_t)i, json_array_get(value, i), ANY_U32, &out[i]));
    }
    *count = json_array_size(value);
    return OK;
}

FALLIBLE config_list(const struct config *config, const char *key, const char *of, size_t *count) {
    const json_t *value;
    *count = 0;
    TRY(value_of(config, key, CONFIG_WHOLE, &value));
    if (value && !json_is_array(value)) {
        char rest[80];
        snprintf(rest, sizeof rest, ": expected a list of %s", of);
        return refuse_value(config, key, CONFIG_WHOLE, value, rest);
    }
    *count = json_array_size(value);
    return OK;
}

// Of the type that the text has in JSON: a string "false" is true in Python.
static bool is_written(const json_t *value, const char *text, size_t length) {
    char expected[64], *end;
    snprintf(expected, sizeof expected, "%.*s", (int)length, text);
    double number = strtod(expected, &end);
    if (strcmp(expected, "true") == 0 || strcmp(expected, "false") == 0) {
        return json_is_boolean(value) && json_is_true(value) == (expected[0] == 't');
    }
    return *end == '\0' ? json_is_number(value) && json_number_value(value) == number
                        : json_is_string(value) && strcmp(json_string_value(value), expected) == 0;
}

// "silu|swish|gelu" becomes "silu, swish or gelu".
static void list_choices(const char *values, char *out, size_t bytes) {
    size_t used = 0;
    for (const char *at = values, *bar; *at && used < bytes; at = bar + (*bar == '|')) {
        bar = at + strcspn(at, "|");
        used += (size_t)snprintf(out + used, bytes - used, "%s%.*s",
                                 at == values      ? ""
                                 : strchr(at, '|') ? ", "
                                                   : " or ",
                                 (int)(bar - at), at);
    }
}

FALLIBLE config_expect(const struct config *config, const char *key, const char *values) {
    const json_t *value;
    TRY(value_of(config, key, CONFIG_WHOLE, &value));
    for (const char *at = values, *bar; value && *at; at = bar + (*bar == '|')) {
        bar = at + strcspn(at, "|");
        if (is_written(value, at, (size_t)(bar - at))) {
            return OK;
        }
    }
    if (!value) {
        return OK;
    }
    char choices[128] = "", rest[192];
    list_choices(values, choices, sizeof choices);
    snprintf(rest, sizeof rest, ", which is not supported: expected %s", choices);
    return refuse_value(config, key, CONFIG_WHOLE, value, rest);
}

bool config_has(const struct config *config, const char *key) {
    const json_t *value = config_look_up(config->object, key);
    return value && !json_is_null(value);
}

bool config_is_null(const struct config *config, const char *key) {
    return json_is_null(config_look_up(config->object, key));
}

bool config_equal(const struct config *a, const char *key_a, const struct config *b, const char *key_b) {
    const json_t *value_a = config_look_up(a->object, key_a), *value_b = config_look_up(b->object, key_b);
    return value_a == value_b || json_equal(value_a, value_b);
}

size_t config_list_length(const struct config *config, const char *key) {
    return json_array_size(config_look_up(config->object, key));
}

bool config_is_object(const struct config *config, const char *key) {
    return json_is_object(config_look_up(config->object, key));
}

size_t config_object_size(const struct config *config, const char *key) {
    return json_object_size(config_look_up(config->object, key));
}

enum { NAME_SHOWN_MAX = 128 };

// The path of a member in the file, "PREFIX.KEY.NAME"; NULL: no memory.
static char *member_prefix(const struct config *config, const char *key, const char *name) {
    char shown[NAME_SHOWN_MAX + 1], object[CONFIG_KEY_TEXT_MAX], *prefix;
    snprintf(shown, sizeof shown, "%s", name);
    config_replace_control_characters(shown);
    return asprintf(&prefix, "%s.%s", config_key_text(config, key, CONFIG_WHOLE, object), shown) < 0 ? NULL : prefix;
}

static FALLIBLE visit_members(const struct config *config, const char *key, bool objects, config_visitor *visit, void *context) {
    const json_t *object;
    TRY(value_of(config, key, CONFIG_WHOLE, &object));
    if (object && !json_is_object(object)) {
        return refuse_value(config, key, CONFIG_WHOLE, object, ": expected an object");
    }
    json_t *members = (json_t *)(uintptr_t)object; // jansson's iterators take no const
    err_t e = OK;
    for (void *at = json_object_iter(members); at && !err_is(e); at = json_object_iter_next(members, at)) {
        const char *name = json_object_iter_key(at);
        const json_t *value = json_object_iter_value(at);
        char *prefix = member_prefix(config, key, name);
        struct config member = {.file = config->file, .prefix = prefix, .name = name, .object = value};
        if (!prefix) {
            e = err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for the name of a key");
        } else if (objects && !json_is_object(value) && !json_is_null(value) && !json_is_array(value)) {
            e = refuse_value(&(struct config){.file = config->file, .prefix = ""}, prefix, CONFIG_WHOLE, value,
                             ": expected an object");
        } else {
            e = visit(context, &member);
        }
        free(prefix);
    }
    return e;
}

FALLIBLE config_each_member(const struct config *config, const char *key, config_visitor *visit, void *context) {
    return visit_members(config, key, true, visit, context);
}

FALLIBLE config_each_value(const struct config *config, const char *key, config_visitor *visit, void *context) {
    return visit_members(config, key, false, visit, context);
}

FALLIBLE config_each_element(const struct config *config, const char *key, config_visitor *visit, void *context) {
    const json_t *list;
    TRY(value_of(config, key, CONFIG_WHOLE, &list));
    bool is_one = json_is_object(list);
    for (size_t i = 0; i < (is_one ? 1 : json_array_size(list)); i++) {
        char prefix[CONFIG_KEY_TEXT_MAX];
        config_key_text(config, key, is_one ? CONFIG_WHOLE : (int64_t)i, prefix);
        struct config element = {
            .file = config->file, .prefix = prefix, .name = "", .object = is_one ? list : json_array_get(list, i)};
        TRY(visit(context, &element));
    }
    return OK;
}
