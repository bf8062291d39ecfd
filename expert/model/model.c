#include "expert/model/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void model_deinit(struct model *model) {
    for (size_t i = 0; i < model->num_layers; i++) {
        struct shards_in_force *in_force = model->layers[i].in_force;
        if (in_force) {
            shards_in_force_deinit(in_force);
        }
    }
    free(model->notes);
    arena_deinit(&model->arena);
    *model = (struct model){0};
}

uint64_t model_weights_bytes(const struct model *model) {
    uint64_t bytes = model->fixed_bytes;
    for (size_t i = 0; i < model->num_layers; i++) {
        struct shards_in_force *in_force = model->layers[i].in_force;
        const struct shards *shards = in_force ? shards_take(in_force) : NULL;
        bytes += shards ? shards->bytes : 0;
        if (shards) {
            shards_release(in_force, shards);
        }
    }
    return bytes;
}

const char *model_quantisation(const struct model *model) {
    const char *name = model->num_layers > 0 ? model->layers[0].quantisation : "";
    for (size_t i = 1; i < model->num_layers; i++) {
        if (strcmp(model->layers[i].quantisation, name) != 0) {
            return "mixed";
        }
    }
    return name[0] ? name : "none";
}

static bool has_widened(const struct model *model, size_t layer, size_t format) {
    return layer < model->num_layers && model->layers[layer].widened >> format & 1;
}

const char *model_widened_layers(const struct model *model, size_t format, char text[WIDENED_TEXT_MAX]) {
    const struct model_layer *layers = model->layers;
    bool fits = true;
    text[0] = '\0';
    for (size_t first = 0, end; first < model->num_layers && fits; first = end) {
        end = first + 1;
        if (!has_widened(model, first, format)) {
            continue;
        }
        while (has_widened(model, end, format) && layers[end].params.layer == layers[end - 1].params.layer + 1) {
            end++;
        }
        char range[32];
        const uint32_t a = layers[first].params.layer, b = layers[end - 1].params.layer;
        snprintf(range, sizeof range, a == b ? "%" PRIu32 : "%" PRIu32 "-%" PRIu32, a, b);
        fits = widened_append(text, ",", range);
    }
    return text;
}

uint64_t model_epoch(const struct model *model) {
    uint64_t latest = 0;
    for (size_t i = 0; i < model->num_layers; i++) {
        uint64_t epoch = model->layers[i].in_force ? shards_epoch(model->layers[i].in_force) : 0;
        latest = epoch > latest ? epoch : latest;
    }
    return latest;
}

const struct model_layer *model_find_layer(const struct model *model, uint32_t layer) {
    size_t low = 0, high = model->num_layers;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        uint32_t number = model->layers[middle].params.layer;
        if (number == layer) {
            return &model->layers[middle];
        }
        if (number < layer) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}
