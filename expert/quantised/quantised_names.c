#include "expert/quantised/quantised_names.h"

#include <string.h>

// Spellings of one suffix, without the character that joins it. Every engine multiplies by weight_scale_inv, despite its name.
static const struct spelling {
    const char *written, *suffix;
} SPELLINGS[] = {
    {"", "weight"},
    {"packed", "weight_packed"},
    {"scale", "weight_scale"},
    {"scale_inv", "weight_scale"},
    {"weight_scale_inv", "weight_scale"},
    {"qscale_weight", "weight_scale"}, // Mistral's own form, as qscale_act
    {"qscale_act", "input_scale"},
    {"scale_2", "weight_scale_2"},
    {"global_scale", "weight_global_scale"},
    {"zero_point", "weight_zero_point"},
    {"shape", "weight_shape"},
};

bool quantised_is_suffix(const char *rest, const char *suffix) {
    bool joined = rest[0] == '.' || rest[0] == '_';
    if (rest[0] != '\0' && (!joined || rest[1] == '\0')) {
        return false;
    }
    const char *written = rest + joined;
    if (strcmp(written, suffix + 1) == 0) {
        return true;
    }
    for (size_t i = 0; i < sizeof SPELLINGS / sizeof *SPELLINGS; i++) {
        if (strcmp(written, SPELLINGS[i].written) == 0 && strcmp(SPELLINGS[i].suffix, suffix + 1) == 0) {
            return true;
        }
    }
    return false;
}

void quantised_list(const struct tensor_finder *finder, const char *module, struct quantised_names *out) {
    size_t length = strlen(module), count = checkpoint_count(finder->checkpoint);
    *out = (struct quantised_names){.length = length};
    for (size_t i = checkpoint_lower_bound(finder->checkpoint, module); i < count && out->count < QUANTISED_NAMES_MAX; i++) {
        const struct safetensors_entry *entry = checkpoint_at(finder->checkpoint, i);
        if (strncmp(entry->name, module, length) != 0) {
            break;
        }
        char next = entry->name[length];
        if (next == '\0' || next == '.' || next == '_') {
            out->entries[out->count++] = entry;
        }
    }
}

const struct safetensors_entry *quantised_named(const struct quantised_names *names, const char *suffix) {
    for (size_t i = 0; suffix && i < names->count; i++) {
        if (quantised_is_suffix(names->entries[i]->name + names->length, suffix)) {
            return names->entries[i];
        }
    }
    return NULL;
}

const struct safetensors_entry *quantised_find(const struct tensor_finder *finder, const char *module, const char *suffix) {
    struct quantised_names names;
    quantised_list(finder, module, &names);
    return quantised_named(&names, suffix);
}
