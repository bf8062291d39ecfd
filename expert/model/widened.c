#include "expert/model/widened.h"

#include <stdio.h>
#include <string.h>

#include "expert/supply/supply.h"
#include "kernels/device/device_codes.h"

static const char OTHERS[] = "others", REST[] = "...";

static struct widened_format *entry_of(struct widened *widened, const struct supply_matrix *m) {
    char name[QUANTISED_NAME_MAX];
    quantised_name(m->quantised, name);
    for (size_t i = 0; i < widened->count; i++) {
        if (strcmp(widened->formats[i].name, name) == 0) {
            return &widened->formats[i];
        }
    }
    if (widened->count == WIDENED_FORMATS_MAX) {
        return &widened->formats[WIDENED_FORMATS_MAX - 1];
    }
    struct widened_format *added = &widened->formats[widened->count++];
    added->has_kernel = device_codes_supported(&m->quantised->format);
    snprintf(added->name, sizeof added->name, "%s", widened->count == WIDENED_FORMATS_MAX ? OTHERS : name);
    return added;
}

static void add_matrix(const struct supply *supply, const struct supply_matrix *m, struct widened *out) {
    const bool is_widened = m->widen != EXPERTD_DTYPE_NONE;
    out->any = out->any || is_widened;
    out->all = out->all && is_widened;
    if (!is_widened || supply->widen != SUPPLY_WIDEN_FOR_DEVICES) {
        return;
    }
    struct widened_format *entry = entry_of(out, m);
    const uint64_t stored = supply_matrix_bytes(m), bytes = (uint64_t)m->n * m->k * expertd_dtype_size(m->widen);
    entry->matrices++;
    entry->stored_bytes += stored;
    entry->bytes += bytes;
    out->stored_bytes += stored;
    out->bytes += bytes;
}

static void add_expert(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, struct widened *out) {
    for (int t = SUPPLY_GATE; t <= SUPPLY_DOWN; t++) {
        struct supply_matrix m;
        if (supply_describe(supply, layer, expert, (enum supply_tensor)t, &m) && m.quantised) {
            add_matrix(supply, &m, out);
        }
    }
}

static void add_layer(const struct supply *supply, const struct layer_tensors *layer, struct widened *out) {
    add_expert(supply, layer, SUPPLY_SHARED, out);
    for (uint32_t e = 0; e < layer->params.num_experts; e++) {
        add_expert(supply, layer, e, out);
    }
}

void widened_count(const struct supply *supply, struct widened *out) {
    *out = (struct widened){.all = true};
    for (size_t i = 0; i < supply->count; i++) {
        add_layer(supply, &supply->layers[i], out);
    }
}

uint32_t widened_in_layer(const struct supply *supply, size_t layer, const struct widened *widened) {
    struct widened found = *widened;
    uint32_t set = 0;
    for (size_t i = 0; i < found.count; i++) {
        found.formats[i].matrices = 0;
    }
    if (found.count > 0) {
        add_layer(supply, &supply->layers[layer], &found);
    }
    for (size_t i = 0; i < found.count; i++) {
        set |= (uint32_t)(found.formats[i].matrices > 0) << i;
    }
    return set;
}

// ---- texts

bool widened_append(char text[WIDENED_TEXT_MAX], const char *separator, const char *more) {
    const size_t used = strlen(text), left = WIDENED_TEXT_MAX - used;
    if (used == 0) {
        separator = "";
    }
    const bool fits = 2 * strlen(separator) + strlen(more) + sizeof REST <= left;
    snprintf(text + used, left, "%s%s", separator, fits ? more : REST);
    return fits;
}

const char *widened_names_text(const struct widened *widened, uint32_t set, char text[WIDENED_TEXT_MAX]) {
    bool fits = true;
    text[0] = '\0';
    for (size_t i = 0; i < widened->count && fits; i++) {
        fits = !(set >> i & 1) || widened_append(text, ", ", widened->formats[i].name);
    }
    return text;
}

const char *widened_reason(const struct widened_format *format) {
    return format->has_kernel ? "GPUs multiply gate and up of an expert in one format, and these are in two"
                              : "GPUs have no kernel for this format";
}
