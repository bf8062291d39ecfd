#include "expert/model/layer_formats.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "expert/quantised/quantise.h"

// Returns false if the expert has no such matrix (a gate).
static bool name_matrix(const struct supply *supply, const struct layer_tensors *tensors, uint32_t expert,
                        enum supply_tensor tensor, char text[QUANTISED_NAME_MAX]) {
    struct supply_matrix m;
    text[0] = '\0';
    if (!supply_describe(supply, tensors, expert, tensor, &m)) {
        return false;
    }
    if (m.quantised) {
        quantised_name(m.quantised, text);
        return true;
    }
    const char *name = m.quantise ? quantise_stored_name(m.quantise) : expertd_dtype_name(m.source.dtype);
    size_t length = 0;
    for (; name[length] && length + 1 < QUANTISED_NAME_MAX; length++) {
        text[length] = (char)tolower((unsigned char)name[length]);
    }
    text[length] = '\0';
    return true;
}

const char *layer_formats_of_expert(const struct supply *supply, const struct layer_tensors *tensors, uint32_t expert,
                                    char text[LAYER_FORMATS_EXPERT_MAX]) {
    char gate[QUANTISED_NAME_MAX], up[QUANTISED_NAME_MAX], down[QUANTISED_NAME_MAX];
    bool gated = name_matrix(supply, tensors, expert, SUPPLY_GATE, gate);
    name_matrix(supply, tensors, expert, SUPPLY_UP, up);
    name_matrix(supply, tensors, expert, SUPPLY_DOWN, down);
    if (gated && strcmp(gate, up) != 0) {
        snprintf(text, LAYER_FORMATS_EXPERT_MAX, "%s+%s+%s", gate, up, down);
    } else if (strcmp(up, down) != 0) {
        snprintf(text, LAYER_FORMATS_EXPERT_MAX, "%s+%s", up, down);
    } else {
        snprintf(text, LAYER_FORMATS_EXPERT_MAX, "%s", up);
    }
    return text;
}

enum { NAMES_MAX = 32 }; // further ones are not told apart

struct name_count {
    char name[LAYER_FORMATS_EXPERT_MAX];
    uint32_t experts;
};

static void count_name(struct name_count *counts, size_t *names, const char *name) {
    size_t i = 0;
    while (i < *names && strcmp(counts[i].name, name) != 0) {
        i++;
    }
    if (i < NAMES_MAX) {
        counts[i].experts++;
        if (i == *names) {
            snprintf(counts[(*names)++].name, LAYER_FORMATS_EXPERT_MAX, "%s", name);
        }
    }
}

static bool has_codes(const struct supply *supply, const struct layer_tensors *tensors, uint32_t expert) {
    struct supply_matrix m;
    bool has = false;
    for (int t = SUPPLY_GATE; t <= SUPPLY_DOWN; t++) {
        has = has || (supply_describe(supply, tensors, expert, (enum supply_tensor)t, &m) && (m.quantised || m.quantise));
    }
    return has;
}

// The name of the most experts, removed from the counts; of equal ones the first. NULL: none is left.
static const char *take_most(struct name_count *counts, size_t names) {
    struct name_count *most = &counts[0];
    for (size_t i = 1; i < names; i++) {
        most = counts[i].experts > most->experts ? &counts[i] : most;
    }
    if (names == 0 || most->experts == 0) {
        return NULL;
    }
    most->experts = 0;
    return most->name;
}

static void list_names(struct name_count *counts, size_t names, char *out, size_t bytes) {
    static const char REST[] = ", ...";
    size_t used = 0;
    for (const char *name; (name = take_most(counts, names));) {
        size_t length = strlen(name) + (used ? 2 : 0);
        if (used + length + sizeof REST > bytes) {
            snprintf(out + used, bytes - used, "%s", REST);
            return;
        }
        used += (size_t)snprintf(out + used, bytes - used, "%s%s", used ? ", " : "", name);
    }
}

bool layer_formats_text(const struct supply *supply, const struct layer_tensors *tensors, char *out, size_t bytes) {
    struct name_count counts[NAMES_MAX] = {0};
    char name[LAYER_FORMATS_EXPERT_MAX];
    size_t names = 0;
    bool codes = false;
    for (uint32_t e = 0; e < tensors->params.num_experts; e++) {
        count_name(counts, &names, layer_formats_of_expert(supply, tensors, e, name));
        codes = codes || has_codes(supply, tensors, e);
    }
    out[0] = '\0';
    if (codes || names > 1 || (names == 1 && strchr(counts[0].name, '+'))) {
        list_names(counts, names, out, bytes);
    }
    return codes;
}
