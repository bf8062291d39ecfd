// The tensors of a module by their names. Quantisers join the suffix with '.' or '_', and write it in several spellings. Pure
// functions; any thread. Private to expert/quantised/.
#ifndef EXPERTD_EXPERT_QUANTISED_QUANTISED_NAMES_H
#define EXPERTD_EXPERT_QUANTISED_QUANTISED_NAMES_H

#include <stdbool.h>

#include "expert/checkpoint/tensor_finder.h"

// Is `rest`, the end of a tensor's name after its module, a spelling of `suffix` (".weight_scale")? "" is one of ".weight".
bool quantised_is_suffix(const char *rest, const char *suffix);

// The tensors whose names begin with a module's name, in ascending order. A module of a known format has fewer than ten; those past
// the limit are not seen, and refused in the end as tensors that no format has.
enum { QUANTISED_NAMES_MAX = 32 };
struct quantised_names {
    size_t length; // of the module's name
    size_t count;
    const struct safetensors_entry *entries[QUANTISED_NAMES_MAX];
};
void quantised_list(const struct tensor_finder *finder, const char *module, struct quantised_names *out);

// The first of them with the suffix, in any spelling. NULL: there is none, or the suffix is NULL.
const struct safetensors_entry *quantised_named(const struct quantised_names *names, const char *suffix);
// The same from the checkpoint.
const struct safetensors_entry *quantised_find(const struct tensor_finder *finder, const char *module, const char *suffix);

#endif
