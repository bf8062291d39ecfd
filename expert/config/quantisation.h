// The section of config.json that describes the quantisation of the weights: the method, the weights that share a scale, and the
// modules that are not quantised. The tensors determine the format (quantised/quantised_tensors.h), which is then compared with
// this section. Reads an open configuration; any thread. Private to expert/.
#ifndef EXPERTD_EXPERT_CONFIG_QUANTISATION_H
#define EXPERTD_EXPERT_CONFIG_QUANTISATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/config/config.h"

enum { QUANTISATION_SETTINGS_MAX = 8, QUANTISATION_METHOD_MAX = 64 };
#define QUANTISATION_ALL_K UINT32_MAX

// The sizes for a group of modules; 0: not specified.
struct quantisation_setting {
    uint32_t bits;
    uint32_t group_k;          // number of consecutive k that share a scale; QUANTISATION_ALL_K: all
    uint32_t block_n, block_k; // size of a block of weights that share a scale
};

struct quantisation {
    const struct config *config;          // NULL: config.json has no such section
    const char *section;                  // "quantization_config"
    char method[QUANTISATION_METHOD_MAX]; // quant_method; "": not specified
    char packing[QUANTISATION_METHOD_MAX]; // AutoRound's packing_format, or its older name backend: "auto_round:auto_gptq"; "": none
    struct quantisation_setting settings[QUANTISATION_SETTINGS_MAX];
    size_t count;                      // number of settings; 0: none is specified
    bool zero_points_are_stored_as_is; // GPTQ's second form, gptq_v2; the first stores zero points minus one
    bool in_activation_order;          // GPTQ's desc_act: g_idx maps each k to its scale
};

// EXPERTD_ERR_CHECKPOINT names a key of the wrong type, a value that gives the tensors a meaning that is not supported, or more
// than QUANTISATION_SETTINGS_MAX settings.
FALLIBLE quantisation_read(const struct config *config, struct quantisation *out);

// Do packing_format or quant_method name the family "awq" or "gptq"? A packing_format takes precedence.
bool quantisation_names(const struct quantisation *quantisation, const char *family);

// Does config.json exclude the module ("model.layers.3.mlp.experts.0.up_proj") from quantisation? *entry: the matching list entry,
// borrowed. A regular expression may use no operators except '.', ".*", '^' and '$'; other expressions match nothing.
bool quantisation_leaves_out(const struct quantisation *quantisation, const char *module, const char **entry);

#endif
