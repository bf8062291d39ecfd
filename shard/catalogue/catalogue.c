#include "shard/catalogue/catalogue.h"

FALLIBLE catalogue_init(struct catalogue *catalogue, uint32_t layers, const uint32_t *layer_experts, const uint64_t *expert_bytes) {
    *catalogue = (struct catalogue){.layers = layers, .layer_experts = layer_experts, .expert_bytes = expert_bytes};
    if (layers == 0 || layers > CATALOGUE_LAYERS_MAX) {
        FAIL(EXPERTD_ERR_INVALID, "%u layers with experts: remote shards serve 1 to %u", layers, CATALOGUE_LAYERS_MAX);
    }
    for (uint32_t layer = 0; layer < layers; layer++) {
        uint32_t experts = layer_experts[layer];
        if (experts == 0 || experts > CATALOGUE_EXPERTS_MAX) {
            FAIL(EXPERTD_ERR_INVALID, "layer %u has %u experts: remote shards serve layers with 1 to %u", layer, experts,
                 CATALOGUE_EXPERTS_MAX);
        }
        if (expert_bytes[layer] == 0) {
            FAIL(EXPERTD_ERR_INVALID, "an expert of layer %u has 0 bytes: each needs some", layer);
        }
        catalogue->stride = experts > catalogue->stride ? experts : catalogue->stride;
    }
    catalogue->stride = (catalogue->stride + 63) / 64 * 64;
    catalogue->cells = layers * catalogue->stride;
    return OK;
}
