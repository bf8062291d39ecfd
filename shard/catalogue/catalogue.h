// The experts that a front and its shards talk about: how many each layer has, and the bytes of one. Both sides number them alike:
// the cell of (layer, expert) is layer * stride + expert. Cells whose expert does not exist stay unused. Immutable once
// initialised.
#ifndef EXPERTD_SHARD_CATALOGUE_CATALOGUE_H
#define EXPERTD_SHARD_CATALOGUE_CATALOGUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { CATALOGUE_LAYERS_MAX = 128, CATALOGUE_EXPERTS_MAX = 1024 };

struct expert_id {
    uint16_t layer, expert;
};

struct catalogue {
    uint32_t layers;               // L
    uint32_t stride;               // cells per layer: the most experts that a layer has, rounded up to a multiple of 64
    uint32_t cells;                // layers * stride
    const uint32_t *layer_experts; // [L] E of each layer, at least 1; borrowed
    const uint64_t *expert_bytes;  // [L] the memory of one expert of each layer, at least 1; borrowed
};

// EXPERTD_ERR_INVALID: no layers, too many of them, or a layer with no expert, with too many, or with experts of no bytes.
FALLIBLE catalogue_init(struct catalogue *catalogue, uint32_t layers, const uint32_t *layer_experts, const uint64_t *expert_bytes);

static inline bool catalogue_has(const struct catalogue *catalogue, struct expert_id id) {
    return id.layer < catalogue->layers && id.expert < catalogue->layer_experts[id.layer];
}

static inline uint32_t catalogue_cell(const struct catalogue *catalogue, struct expert_id id) {
    return id.layer * catalogue->stride + id.expert;
}

static inline struct expert_id catalogue_id(const struct catalogue *catalogue, uint32_t cell) {
    return (struct expert_id){(uint16_t)(cell / catalogue->stride), (uint16_t)(cell % catalogue->stride)};
}

static inline uint64_t catalogue_bytes(const struct catalogue *catalogue, uint32_t cell) {
    return catalogue->expert_bytes[cell / catalogue->stride];
}

// The words of a set of cells. A layer's cells fill whole words: layer l has those from l * catalogue_layer_words on.
static inline size_t catalogue_words(const struct catalogue *catalogue) {
    return catalogue->cells / 64;
}

static inline size_t catalogue_layer_words(const struct catalogue *catalogue) {
    return catalogue->stride / 64;
}

#endif
