// A checkpoint's config.json: parsed once, then queried by key. Python's bare NaN, Infinity and -Infinity are accepted. Every error
// names the file and the key. Immutable once open; any thread.
#ifndef EXPERTD_EXPERT_CONFIG_CONFIG_H
#define EXPERTD_EXPERT_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

struct config; // opaque, so that jansson stays in one source file

enum {
    CONFIG_BYTES_MAX = 8 << 20,
    CONFIG_KEY_DEPTH_MAX = 6,
    CONFIG_WHOLE = -1, // in the place of an index: the value itself, also if it is a list
};

FALLIBLE config_open(const char *path, struct config **out);
FALLIBLE config_parse(const char *path, const char *text, size_t length, struct config **out); // path: for messages
// For a configuration that stands for another format's metadata: what the file calls the key, for messages. EXPERTD_ERR_NOMEM.
FALLIBLE config_name_key(struct config *config, const char *key, const char *name);
void config_destroy(struct config *config); // NULL is legal

// The configuration of the text model: the object text_config, language_config, llm_config or thinker_config.text_config if it has
// a model_type, else the whole file. Two such objects that differ are an error when the file is opened. Borrowed.
const struct config *config_text(const struct config *config);

// ---- values
// `keys`: alternative names of one setting, NULL-terminated. The first key that is present and not null is used. Two present keys
// with different values are an error. "ffn_config.moe_top_k" is a key of a nested object. *found is false if no key is present;
// *out is then unchanged. EXPERTD_ERR_CHECKPOINT: a wrong type or range, or a key that per_layer_config overrides. An integer may
// be written as 8.0; a boolean or a string is no number, a number or a string is no boolean.
FALLIBLE config_u32(const struct config *config, const char *const *keys, uint32_t *out, bool *found);
FALLIBLE config_f64(const struct config *config, const char *const *keys, double *out, bool *found); // may be infinite or NaN
FALLIBLE config_bool(const struct config *config, const char *const *keys, bool *out, bool *found);
FALLIBLE config_string(const struct config *config, const char *const *keys, const char **out, bool *found);

// The value, or if it is a list its element `index`. EXPERTD_ERR_CHECKPOINT: the list is shorter. A null element counts as not
// found.
FALLIBLE config_u32_at(const struct config *config, const char *const *keys, size_t index, uint32_t *out, bool *found);
struct config_range {
    uint32_t least, most;
};
FALLIBLE config_u32_in(const struct config *config, const char *const *keys, int64_t index, struct config_range range,
                       uint32_t *out, bool *found);
FALLIBLE config_f64_at(const struct config *config, const char *const *keys, size_t index, double *out, bool *found);
FALLIBLE config_string_at(const struct config *config, const char *const *keys, size_t index, const char **out, bool *found);

// The length of a list; absent or null: 0. EXPERTD_ERR_CHECKPOINT: another type; `of` says what is expected, "class names".
FALLIBLE config_list(const struct config *config, const char *key, const char *of, size_t *count);

// The key must be absent, null, or one of `values` ("silu|swish", "true", "0|1") and of its type.
FALLIBLE config_expect(const struct config *config, const char *key, const char *values);

// A list of up to `max` integers; not found: *count = 0.
FALLIBLE config_u32_list(const struct config *config, const char *const *keys, uint32_t *out, size_t max, size_t *count,
                         bool *found);

// The functions above check that the key is said once; call this function before the functions below, which cannot fail.
// - per_layer_config (transformers 5.23) overrides keys for single layers: {"03": {"num_experts_per_tok": 2}}. No model's own code
//   applies such overrides to a key that this program reads, so these keys must have one value in all layers.
// - A text model's object inside an object of the same model_type: transformers reads the outer one.
// - A text model's object without a model_type: transformers reads it if the class is a wrapper.
// EXPERTD_ERR_CHECKPOINT names the key and both places.
FALLIBLE config_is_said_once(const struct config *config, const char *key);
bool config_is_null(const struct config *config, const char *key);       // present, and null
bool config_has(const struct config *config, const char *key);           // present, and not null
size_t config_list_length(const struct config *config, const char *key); // 0: no list
size_t config_object_size(const struct config *config, const char *key); // 0: no object
bool config_is_object(const struct config *config, const char *key);

// Calls `visit` for each member of the object at `key`, in the order of the file, until one returns an error. `member` is borrowed
// for the call; one that is null or a list has no keys. Absent or null: no call. EXPERTD_ERR_CHECKPOINT: the key is no object, or a
// member is a number, a string or a boolean.
typedef err_t config_visitor(void *context, const struct config *member);
FALLIBLE config_each_member(const struct config *config, const char *key, config_visitor *visit, void *context);
// The same with members of any type; those that are no objects have no keys.
FALLIBLE config_each_value(const struct config *config, const char *key, config_visitor *visit, void *context);
// The same with the elements of a list; an object counts as a list of one, another value as an empty one. An element has no name.
FALLIBLE config_each_element(const struct config *config, const char *key, config_visitor *visit, void *context);

// Are the two values equal, or both absent?
bool config_equal(const struct config *a, const char *key_a, const struct config *b, const char *key_b);

// The name of a member in its object, borrowed from the file's configuration; it may contain any characters.
const char *config_member_name(const struct config *member);

// Writes the value, which must be present, as JSON.
void config_write_value(const struct config *config, const char *key, FILE *out);

// A value as text (`silu`, `true`, `2.5`, `[8, 8]`), cut to out_bytes; false: absent or null.
bool config_value_text(const struct config *config, const char *key, char *out, size_t out_bytes);

// ---- errors and messages. They name a key as the file has it, with its path in the file: "text_config.num_experts"
enum { CONFIG_KEY_TEXT_MAX = 192 };

// Records EXPERTD_ERR_CHECKPOINT, "FILE: KEY is VALUE" and the rest (": expected 1 to 8", a printf format), for the first of `keys`
// that is present; of a list the element `index`, or all of it (CONFIG_WHOLE).
err_t config_refuse(const struct config *config, const char *const *keys, int64_t index, const char *rest, ...)
    __attribute__((format(printf, 4, 5)));
// Records the same code for a setting that no key gives, or that is null, with what was expected (a printf format).
err_t config_missing(const struct config *config, const char *const *keys, int64_t index, const char *expected, ...)
    __attribute__((format(printf, 4, 5)));

// "num_experts 8, hidden_size 64": the keys and values of the settings that are present. `settings` is a NULL-terminated list of
// alternative names. Returns text, cut to `bytes`.
const char *config_values_text(const struct config *config, const char *const *const *settings, char *text, size_t bytes);

// "text_config.num_experts[3]": the key with its path in the file, and the index if it has a list. Returns text.
const char *config_key_text(const struct config *config, const char *key, int64_t index, char text[CONFIG_KEY_TEXT_MAX]);

// The file's path, the path of this object in it ("text_config"; "": the whole file), a key as the file spells it, and what the
// file is, "config.json", "params.json" or "the file's metadata".
const char *config_path(const struct config *config);
const char *config_prefix(const struct config *config);
const char *config_key(const struct config *config, const char *key);
const char *config_label(const struct config *config);

// The exact bytes of the file, for the model's digest. Borrowed.
const char *config_text_bytes(const struct config *config, size_t *length);

#endif
