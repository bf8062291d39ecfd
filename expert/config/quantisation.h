// The section of config.json that describes the quantisation of the weights: the method, the weights that share a scale, and the
// modules that differ. The tensors determine the format (quantised/quantised_tensors.h), which is then compared with this section.
// Reads an open configuration, which must outlive it; immutable after reading; any thread. Private to expert/.
#ifndef EXPERTD_EXPERT_CONFIG_QUANTISATION_H
#define EXPERTD_EXPERT_CONFIG_QUANTISATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/config/config.h"
#include "expert/config/name_pattern.h"
#include "expert/config/quantisation_overrides.h"
#include "expert/config/quantisation_setting.h"

enum { QUANTISATION_METHOD_MAX = 64, QUANTISATION_CANDIDATES_MAX = 8 };

struct quantisation {
    bool is_read;
    const struct config *config;           // NULL: config.json has no such section
    const char *object;                    // the section's key in it; "": the whole file
    const char *section;                   // for messages: "text_config.quantization_config", "quantize_config.json"
    char method[QUANTISATION_METHOD_MAX];  // quant_method; "": not specified
    const char *foreign;                   // the quantiser, if its codes have a meaning that is not supported: no key is read. NULL
    char packing[QUANTISATION_METHOD_MAX]; // AutoRound's "auto_round:auto_gptq"; "": not specified
    const char *packing_key;               // "packing_format", or its older name "backend"; NULL: not specified
    struct quantisation_setting base;      // of modules without an override
    struct quantisation_overrides overrides;
    struct name_pattern *ignored; // modules that are not quantised
    size_t ignored_count, ignored_expressions;
    struct quantisation_texts texts;
    bool zero_points_are_stored_as_is; // GPTQ's second form, gptq_v2; the first stores zero points minus one
    bool form_is_unknown;              // AutoRound's packing is none whose form is known
    bool static_groups;                // GPTQ's groups are consecutive although k was quantised in another order
    const char *other_section;         // of config.json, which is not read and says something else; NULL: none
};

// The first object of config.json that describes the quantisation: its key, and in *place the configuration that has it. NULL:
// none.
const char *quantisation_section(const struct config *config, const struct config **place);

// A file beside config.json in which older quantisers write the same facts.
struct quantisation_file {
    const struct config *config; // NULL: there is none; must outlive the quantisation
    const char *name;            // "quantize_config.json"
    const char *object;          // the key of the object with the facts; "": the whole file
    const char *method;          // quant_method, where the file says none
};

// Reads the section of config.json, or without one the file beside it. `beside` may be NULL. What the two say differently, and no
// tensor decides, is refused. EXPERTD_ERR_CHECKPOINT names a key of the wrong type, a value that gives the tensors a meaning that
// is not supported, keys that contradict each other, or an expression that is not valid. On success `out` is to be closed by
// quantisation_deinit.
FALLIBLE quantisation_read(const struct config *config, const struct quantisation_file *beside, struct quantisation *out);
// Reads the section "quantization" that MLX writes and reads: sizes, and objects of single modules by their names. Without it
// out->config is NULL. Errors as above.
FALLIBLE quantisation_read_mlx(const struct config *config, struct quantisation *out);
void quantisation_deinit(struct quantisation *quantisation); // legal on a zeroed struct

// A value of the section as text; false: absent or null. name: "version", "export.pack_method".
bool quantisation_value(const struct quantisation *quantisation, const char *name, char *text, size_t bytes);

// Do packing_format or quant_method name the family "awq" or "gptq"? A packing_format takes precedence.
bool quantisation_names(const struct quantisation *quantisation, const char *family);

// The settings that config.json gives a module ("model.layers.3.mlp.experts.0.up_proj"). Of the groups of config_groups those that
// name the module, by its name or an expression, count before those for all linear layers. Several may be left: then the shapes of
// its tensors decide.
struct quantisation_candidates {
    struct quantisation_setting at[QUANTISATION_CANDIDATES_MAX]; // different; [0] exists
    const char *path[QUANTISATION_CANDIDATES_MAX]; // the override that says it, "quantization_config.config_groups.group_0.weights"
    size_t count;
    bool in_no_group; // config_groups has groups, and none of them names the module: at[0] is the base
};

// Each setting is the section's with the override laid over it. EXPERTD_ERR_CHECKPOINT: an expression takes too many steps.
FALLIBLE quantisation_of_module(const struct quantisation *quantisation, const char *module, struct quantisation_candidates *out);

// Does config.json exclude the module from quantisation? *entry: the text that does, borrowed.
FALLIBLE quantisation_leaves_out(const struct quantisation *quantisation, const char *module, bool *is, const char **entry);

#endif
