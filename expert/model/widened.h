// The quantised weights that a model holds widened because devices have no kernels for them. Those of --widen are not listed. For
// the log, the status page, --inspect and messages. Pure; any thread.
#ifndef EXPERTD_EXPERT_MODEL_WIDENED_H
#define EXPERTD_EXPERT_MODEL_WIDENED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expert/quantised/quantised_matrix.h"

struct supply;

enum { WIDENED_FORMATS_MAX = 16, WIDENED_TEXT_MAX = 256 };

struct widened_format {
    char name[QUANTISED_NAME_MAX]; // "q4_k"; of the last entry "others", if there are more formats than entries
    bool has_kernel;               // devices compute this format: it is of a gate or an up whose partner has another one
    uint64_t matrices;             // of routed experts, one copy of each, and of shared experts
    uint64_t stored_bytes, bytes;  // of these matrices in the files, and widened
};

struct widened {
    struct widened_format formats[WIDENED_FORMATS_MAX];
    size_t count;
    uint64_t stored_bytes, bytes; // sums over the formats
    bool any, all;                // some or all quantised matrices are widened, also by --widen; `all`: or none is quantised
};

// Over all layers of the supply.
void widened_count(const struct supply *supply, struct widened *out);

// The entries of widened->formats that a layer has: bit f stands for entry f. layer: an index of supply->layers.
uint32_t widened_in_layer(const struct supply *supply, size_t layer, const struct widened *widened);

// The names of some entries, a set as above: "q4_k, q5_k". Cut to fit; "..." then stands for the rest. Returns text.
const char *widened_names_text(const struct widened *widened, uint32_t set, char text[WIDENED_TEXT_MAX]);

// Appends an element to a list, the separator only after the first. False: it does not fit, and "..." is appended instead.
bool widened_append(char text[WIDENED_TEXT_MAX], const char *separator, const char *more);

// Why a format is widened, as a sentence without its end.
const char *widened_reason(const struct widened_format *format);

#endif
