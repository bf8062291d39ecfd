// The struct behind config.h, for config_open.c, which makes it, and config.c, which reads it. Private to expert/config/.
#ifndef EXPERTD_EXPERT_CONFIG_CONFIG_STATE_H
#define EXPERTD_EXPERT_CONFIG_CONFIG_STATE_H

#include <stdbool.h>
#include <stddef.h>

struct json_t; // of jansson

struct config {
    const char *file, *prefix;   // for messages about a key: "FILE: PREFIX.KEY"; prefix "": none. `file` is owned by the root
    const char *name;            // of a member; borrowed from the root
    const struct json_t *object; // borrowed from the root of the file
    struct json_t *per_layer;    // maps a key to the number (as written) of a layer for which per_layer_config overrides it
    struct config *text;         // of the text model; NULL: the same as the file's
    const struct json_t *outer;  // of a text model: the file's object, if other programs may read a key there; NULL: none does
    struct json_t *names;        // maps a key to its name in the file; NULL: keys have their own names
    // NULL and 0 in a text model's struct:
    struct json_t *root;
    char *bytes;
    size_t length;
};

// The keys under which multimodal models have the configuration of their text model; NULL-terminated.
extern const char *const CONFIG_TEXT_KEYS[];

// The value at a key, whose dots select nested objects; NULL: absent.
const struct json_t *config_look_up(const struct json_t *object, const char *key);
bool config_same_value(const struct json_t *a, const struct json_t *b); // 8 and 8.0 are the same

enum { CONFIG_VALUE_TEXT_MAX = 64 };
// The value as the file has it, without quotes, cut to out_bytes.
void config_show(const struct json_t *value, char *out, size_t out_bytes);
void config_replace_control_characters(char *text);

#endif
