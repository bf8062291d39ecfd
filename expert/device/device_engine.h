// A batch's compute on devices (GPUs, or simulated ones): what is reserved for it at creation, and which kernels each layer's
// products may be made by. The stages are device_stages.h's. Private to expert/; used by the engine's thread.
#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_ENGINE_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_ENGINE_H

#include "expert/device/device_scratch.h"
#include "expertd/kernels/devices.h"

struct device_weights;

// What the products of a layer may be made by.
struct layer_variants {
    struct expertd_device_variants experts, shared;
};

struct device_engine {
    struct engine *engine;
    struct expertd_devices *devices;
    struct device_weights *weights;
    bool owns_weights;
    struct device_scratch scratch[EXPERTD_DEVICES_MAX];
    bool pinned;
    struct layer_variants *variants;      // [model->num_layers] what each layer's products may be made by
    uint32_t *first_tile;                 // [ranks + 1] of the batch's tiles
    enum expertd_device_variant *variant; // [ranks] that they are cut for
};

// Reserves scratch for engine->limits; the engine's arrays are laid out. weights: filled and borrowed, or NULL: those of the loaded
// model are copied. EXPERTD_ERR_NOMEM, with figures where the weights are copied.
FALLIBLE device_engine_create(struct engine *engine, struct expertd_devices *devices, struct device_weights *weights,
                              struct device_engine **out);
void device_engine_destroy(struct device_engine *device); // NULL is legal
// Of model->layers[layer]'s experts, as device_variants_text. Returns text.
const char *device_engine_variants(const struct device_engine *device, size_t layer, char text[ENGINE_VARIANTS_TEXT_MAX]);
uint64_t device_engine_bytes(const struct device_engine *device); // of device memory, on all devices

struct device_weights *device_engine_weights(const struct device_engine *device);
size_t device_engine_scratch_bytes(const struct model *model, const struct layer_limits *limits, uint32_t device);

// Rows of the dtype the engine needs to be told of tiles and outputs: bytes of its pinned arrays.
size_t device_engine_tiles(const struct layer_limits *limits, const struct model *model);

#endif
