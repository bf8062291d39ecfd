// A pattern for module names, in the syntaxes that quantisers use in config.json. Patterns are untrusted: each comparison has a
// limit of steps and of memory. Immutable after init; any thread. Private to expert/.
#ifndef EXPERTD_EXPERT_CONFIG_NAME_PATTERN_H
#define EXPERTD_EXPERT_CONFIG_NAME_PATTERN_H

#include <stdbool.h>

#include "base/err.h"
#include "expert/config/name_literal.h"

enum name_match {
    NAME_EXACT,      // the whole name
    NAME_COMPONENTS, // a run of the name's components: "mlp.experts" in "model.layers.3.mlp.experts.0.up_proj"
    NAME_GLOB,       // Python's fnmatch: * ? [...], the whole name or a container of it
    NAME_START,      // Python's re.match: a regular expression that matches at the beginning
    NAME_ANYWHERE,   // Python's re.search
};

struct name_pattern {
    enum name_match match;
    const char *text;               // borrowed
    void *program;                  // of a compiled expression; NULL: none
    char literal[NAME_LITERAL_MAX]; // every name that the expression matches contains it; "": not known
};

// EXPERTD_ERR_CHECKPOINT: the expression is not valid, or is too long or too deep. `text` must outlive the pattern.
FALLIBLE name_pattern_init(struct name_pattern *pattern, enum name_match match, const char *text);
void name_pattern_deinit(struct name_pattern *pattern); // legal on a zeroed struct

// EXPERTD_ERR_CHECKPOINT: the comparison takes too many steps.
FALLIBLE name_pattern_matches(const struct name_pattern *pattern, const char *name, bool *matches);

#endif
