#include "expert/foreign/gguf_widths.h"

#include <string.h>

#include "expert/foreign/gguf_members.h"

static const char SHARED_COUNT_KEY[] = "expert_shared_count", SHARED_WIDTH_KEY[] = "expert_shared_feed_forward_length";

static const double PRODUCT_MAX = 0x1p53; // of the integers that a double has exactly

enum { TENSOR_NAME_BYTES = 64 };

const char *gguf_widths_key(const struct gguf_metadata *m) {
    return m->row->width ? m->row->width : "expert_feed_forward_length";
}

bool gguf_widths_is_shared_key(const struct gguf_metadata *m, const char *key) {
    return m->row->shared != GGUF_SHARED_NONE && (strcmp(key, SHARED_COUNT_KEY) == 0 || strcmp(key, SHARED_WIDTH_KEY) == 0);
}

// The length of a row of the tensor; 0: no part has it.
static double row_length(const struct gguf_metadata *m, uint32_t layer, const char *below) {
    char name[TENSOR_NAME_BYTES];
    snprintf(name, sizeof name, "blk.%u.%s.weight", layer, below);
    const struct safetensors_entry *entry = gguf_metadata_tensor(m, name);
    return entry && entry->view.rank > 0 ? (double)entry->view.shape[entry->view.rank - 1] : 0;
}

// The width of a layer's experts; 0: neither the key nor a tensor has it.
static double width_in_layer(const struct gguf_metadata *m, uint32_t layer) {
    const struct gguf_value *value = gguf_metadata_find(m, gguf_widths_key(m));
    double width = 0;
    if (value) {
        return gguf_number(value, value->kind == GGUF_ARRAY ? layer : 0, &width) ? width : 0;
    }
    width = row_length(m, layer, "ffn_down_exps");
    return width > 0 ? width : row_length(m, layer, "ffn_down.0"); // files of 2023
}

// ---- members that are derived, layer by layer

// The width in a layer; 0: none.
typedef double width_of_layer(const struct gguf_metadata *m, uint32_t layer);

static double shared_width_by_tensor(const struct gguf_metadata *m, uint32_t layer) {
    return row_length(m, layer, "ffn_down_shexp");
}

static double shared_width_by_count(const struct gguf_metadata *m, uint32_t layer) {
    double count = 0;
    const struct gguf_value *value = gguf_metadata_find(m, SHARED_COUNT_KEY);
    double width = value && gguf_number(value, 0, &count) ? count * width_in_layer(m, layer) : 0;
    return width < PRODUCT_MAX ? width : PRODUCT_MAX; // which is refused as a width
}

static FALLIBLE layers_of(const struct gguf_metadata *m, uint32_t *out) {
    double blocks = 0;
    bool found;
    TRY(gguf_metadata_integer(m, "block_count", &blocks, &found));
    *out = blocks >= 1 && blocks <= GGUF_LAYERS_MAX ? (uint32_t)blocks : 0;
    return OK;
}

// Writes one number if all layers that have a width have the same, else a list by layer, with null for the others. Nothing if no
// layer has a width, unless `zero`: then 0.
static FALLIBLE write_derived(const struct gguf_metadata *m, const char *member, width_of_layer *width, bool zero) {
    uint32_t layers;
    double only = 0;
    bool differ = false;
    TRY(layers_of(m, &layers));
    for (uint32_t layer = 0; layer < layers; layer++) {
        double here = width(m, layer);
        differ = differ || (here > 0 && only > 0 && here != only);
        only = here > 0 ? here : only;
    }
    if (!differ) {
        if (only > 0 || zero) {
            fprintf(m->json, ",\n \"%s\": %.0f", member, only);
        }
        return OK;
    }
    fprintf(m->json, ",\n \"%s\": ", member);
    for (uint32_t layer = 0; layer < layers; layer++) {
        double here = width(m, layer);
        fputs(layer ? ", " : "[", m->json);
        fprintf(m->json, here > 0 ? "%.0f" : "null", here);
    }
    fputc(']', m->json);
    return OK;
}

// ---- shared experts

// llama.cpp ignores the width here, so that both must say the same.
static FALLIBLE check_agreement(const struct gguf_metadata *m, const struct gguf_value *width) {
    char count_key[GGUF_FULL_KEY_MAX], width_key[GGUF_FULL_KEY_MAX], experts_key[GGUF_FULL_KEY_MAX];
    uint32_t layers;
    TRY(layers_of(m, &layers));
    for (uint32_t layer = 0; layer < layers; layer++) {
        double stated = 0, product = shared_width_by_count(m, layer);
        if (gguf_number(width, width->kind == GGUF_ARRAY ? layer : 0, &stated) && width_in_layer(m, layer) > 0 &&
            stated != product) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is %g, but %s times %s is %g: convert the model again", m->path,
                 gguf_metadata_key(m, SHARED_WIDTH_KEY, width_key), stated, gguf_metadata_key(m, SHARED_COUNT_KEY, count_key),
                 gguf_metadata_key(m, gguf_widths_key(m), experts_key), product);
        }
    }
    return OK;
}

enum shared_source { SHARED_SOURCE_WIDTH, SHARED_SOURCE_COUNT, SHARED_SOURCE_TENSORS };

static enum shared_source shared_source(const struct gguf_metadata *m) {
    bool width = gguf_metadata_find(m, SHARED_WIDTH_KEY) != NULL, count = gguf_metadata_find(m, SHARED_COUNT_KEY) != NULL;
    return width && (m->row->shared == GGUF_SHARED_BY_WIDTH || !count) ? SHARED_SOURCE_WIDTH
           : count                                                     ? SHARED_SOURCE_COUNT
                                                                       : SHARED_SOURCE_TENSORS;
}

static bool is_in_block(const struct gguf_metadata *m) {
    return m->row->shared == GGUF_SHARED_BY_WIDTH || m->row->shared == GGUF_SHARED_BY_COUNT;
}

static FALLIBLE write_shared(const struct gguf_metadata *m) {
    const struct gguf_value *width = gguf_metadata_find(m, SHARED_WIDTH_KEY);
    double count = 0;
    bool found;
    TRY(gguf_metadata_integer(m, SHARED_COUNT_KEY, &count, &found));
    switch (shared_source(m)) {
    case SHARED_SOURCE_WIDTH:
        return gguf_metadata_write(m, GGUF_SHARED_WIDTH_MEMBER, SHARED_WIDTH_KEY, width);
    case SHARED_SOURCE_COUNT:
        if (!(count >= 0 && count < PRODUCT_MAX)) {
            return gguf_metadata_write(m, GGUF_SHARED_WIDTH_MEMBER, SHARED_COUNT_KEY, gguf_metadata_find(m, SHARED_COUNT_KEY));
        }
        TRY(width ? check_agreement(m, width) : OK);
        return write_derived(m, GGUF_SHARED_WIDTH_MEMBER, shared_width_by_count, true);
    default:
        return write_derived(m, GGUF_SHARED_WIDTH_MEMBER, shared_width_by_tensor, m->complete);
    }
}

FALLIBLE gguf_widths_write(const struct gguf_metadata *m) {
    const struct gguf_value *value = gguf_metadata_find(m, gguf_widths_key(m));
    TRY(value ? gguf_metadata_write(m, GGUF_WIDTH_MEMBER, gguf_widths_key(m), value)
              : write_derived(m, GGUF_WIDTH_MEMBER, width_in_layer, false));
    return is_in_block(m) ? write_shared(m) : OK;
}

// ---- names

static FALLIBLE name_shared(const struct gguf_metadata *m, struct config *config) {
    char width[GGUF_FULL_KEY_MAX], text[2 * GGUF_FULL_KEY_MAX];
    switch (shared_source(m)) {
    case SHARED_SOURCE_WIDTH:
        return config_name_key(config, GGUF_SHARED_WIDTH_MEMBER, gguf_metadata_key(m, SHARED_WIDTH_KEY, width));
    case SHARED_SOURCE_COUNT:
        snprintf(text, sizeof text, "%s.%s times %s", m->name, SHARED_COUNT_KEY, gguf_widths_key(m));
        return config_name_key(config, GGUF_SHARED_WIDTH_MEMBER, text);
    default:
        return config_name_key(config, GGUF_SHARED_WIDTH_MEMBER, "width of ffn_down_shexp");
    }
}

FALLIBLE gguf_widths_name(const struct gguf_metadata *m, struct config *config) {
    char full[GGUF_FULL_KEY_MAX];
    const char *key = gguf_widths_key(m);
    bool by_tensor = !gguf_metadata_find(m, key) && config_has(config, GGUF_WIDTH_MEMBER);
    TRY(config_name_key(config, GGUF_WIDTH_MEMBER, by_tensor ? "width of ffn_down_exps" : gguf_metadata_key(m, key, full)));
    return is_in_block(m) ? name_shared(m, config) : OK;
}
