// The settings that config.json gives to some modules, in the forms of each quantiser. Private to expert/config/.
#ifndef EXPERTD_EXPERT_CONFIG_QUANTISATION_OVERRIDES_H
#define EXPERTD_EXPERT_CONFIG_QUANTISATION_OVERRIDES_H

#include "expert/config/name_pattern.h"
#include "expert/config/quantisation_setting.h"

struct quantisation_override {
    struct name_pattern *patterns; // one of them must match
    size_t count;
    const char *path; // "quantization_config.dynamic.-:.*shared.*"
    bool of_group;    // of config_groups, where several may name a module
    bool exact;       // of the others an exact name counts, else the first that matches
    bool any_linear;  // names all linear layers
    bool excludes;    // the modules are not quantised
    bool alone;       // the section says nothing about the modules
    struct quantisation_setting setting;
};

struct quantisation_overrides {
    struct quantisation_override *at;
    size_t count;
    struct quantisation_texts texts; // paths and keys of the overrides
    // Some files name each of 50000 modules: exact names are searched in order, other patterns one after the other.
    struct quantisation_exact_name *names; // ascending by name, then by override
    size_t name_count;
    uint32_t *with_patterns; // overrides that have other patterns, ascending
    size_t with_patterns_count;
};

// Reads all overrides of the object `section` ("quantization_config"; "": the whole file). The configuration must outlive *out.
// EXPERTD_ERR_CHECKPOINT: a key of the wrong type, an expression that is not valid, too many of them; *out is then to be closed
// too.
FALLIBLE quantisation_read_overrides(const struct config *config, const char *section, struct quantisation_overrides *out);
// The same of MLX's section, whose members are the modules.
FALLIBLE quantisation_read_mlx_overrides(const struct config *config, const char *section, struct quantisation_overrides *out);
void quantisation_overrides_deinit(struct quantisation_overrides *overrides); // legal on a zeroed struct

enum { QUANTISATION_MATCHES_MAX = 64 };
struct quantisation_matches {
    uint32_t at[QUANTISATION_MATCHES_MAX];  // indices of overrides, ascending
    bool by_name[QUANTISATION_MATCHES_MAX]; // by a name or an expression; else only by the class
    size_t count;
};

// The overrides that name the module; of more than QUANTISATION_MATCHES_MAX the first. EXPERTD_ERR_CHECKPOINT: an expression takes
// too many steps.
FALLIBLE quantisation_matching_overrides(const struct quantisation_overrides *overrides, const char *module,
                                         struct quantisation_matches *out);

#endif
