// A checkpoint's config.json: read once, asked by key. Bare Infinity and NaN (Python writes them) are accepted by a small filter
// before jansson. Every getter names the file and the key in its error.
#ifndef EXPERTD_EXPERT_ARCHITECTURE_CONFIG_H
#define EXPERTD_EXPERT_ARCHITECTURE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct config; // opaque: jansson stays in one source file

FALLIBLE config_open(const char *path, struct config **out);
FALLIBLE config_parse(const char *path, const char *text, size_t length, struct config **out);
void config_destroy(struct config *config); // NULL is legal

// The configuration of the text model: `text_config` (or language_config, llm_config, thinker...text_config) where there is one
// with a model_type, else the whole. Borrowed.
const struct config *config_text(const struct config *config);

enum { CONFIG_BYTES_MAX = 8 << 20, CONFIG_KEY_DEPTH_MAX = 6 };

// `keys` is a list of alternatives, NULL-terminated: the first that is present and not null counts; two that are present and differ
// are an error. "ffn_config.moe_top_k" looks into an object. *found false: none is there, *out untouched. EXPERTD_ERR_CHECKPOINT
// for a wrong type or range, and for a key that per_layer_config overrides. config_f64 may give an infinity or NaN.
FALLIBLE config_u32(const struct config *config, const char *const *keys, uint32_t *out, bool *found);
FALLIBLE config_f64(const struct config *config, const char *const *keys, double *out, bool *found);
FALLIBLE config_bool(const struct config *config, const char *const *keys, bool *out, bool *found);
FALLIBLE config_string(const struct config *config, const char *const *keys, const char **out, bool *found);
// A number, or the element `index` of a list of numbers (moe_topk). EXPERTD_ERR_CHECKPOINT where the list is shorter; a null
// element is not found.
FALLIBLE config_u32_at(const struct config *config, const char *const *keys, size_t index, uint32_t *out, bool *found);
FALLIBLE config_f64_at(const struct config *config, const char *const *keys, size_t index, double *out, bool *found);
// A list of integers or of strings; *count 0 and *found false where absent. Elements by config_list_*.
FALLIBLE config_u32_list(const struct config *config, const char *const *keys, uint32_t *out, size_t max, size_t *count,
                         bool *found);
FALLIBLE config_string_at(const struct config *config, const char *const *keys, size_t index, const char **out, bool *found);
// per_layer_config (transformers 5.23) overrides keys for single layers: {"03": {"num_experts_per_tok": 2}}. What is asked for here
// must be the same in all layers, since no model's own code reads more than attention's keys there; those are not asked for. All
// getters above refuse such a key; before those below, which have no error, this says it. EXPERTD_ERR_CHECKPOINT names layer and
// key.
FALLIBLE config_same_in_all_layers(const struct config *config, const char *key);
bool config_is_null(const struct config *config, const char *key);       // present, and null
bool config_has(const struct config *config, const char *key);           // present and not null
size_t config_list_length(const struct config *config, const char *key); // 0 where there is no list
size_t config_object_size(const struct config *config, const char *key); // 0 where there is no object
// Visits each member of the object at `key`, whatever its name, as a configuration of its own, in the order of the file, until one
// returns an error. `member` is borrowed for the visit; one that is no object holds nothing. No object: no visit.
typedef err_t config_visitor(void *context, const struct config *member);
FALLIBLE config_each_member(const struct config *config, const char *key, config_visitor *visit, void *context);
// A value as it stands in the file (`silu`, `true`, `2.5`, `[8, 8]`), cut to fit; false where it is not there or null.
bool config_value_text(const struct config *config, const char *key, char *out, size_t out_bytes);
// The file's name, for messages.
const char *config_path(const struct config *config);

// The exact bytes of the file, for the model's digest. Borrowed.
const char *config_text_bytes(const struct config *config, size_t *length);

#endif
