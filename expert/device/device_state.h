// The state of an engine on devices: scratch, weights, and each layer's kernel variants. Used by the engine's thread. Private to
// expert/.
#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_STATE_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_STATE_H

#include "expert/device/device_scratch.h"
#include "expert/model/expert_block.h"
#include "expertd/kernels/devices.h"

struct device_weights;

// The kernel variants that may compute a layer's products.
struct layer_variants {
    struct expertd_device_variants experts[EXPERT_SHAPES_MAX]; // of each shape
    struct expertd_device_variants shared;
};

struct device_engine {
    struct engine *engine;
    struct expertd_devices *devices;
    struct device_weights *weights;
    bool owns_weights; // create copied them from the host; close destroys them
    struct device_scratch scratch[EXPERTD_DEVICES_MAX];
    bool pinned;                     // the engine's pinned memory is registered with the devices
    struct layer_variants *variants; // [model->num_layers]
    // Of the batch's layer, with the shapes of its experts; device_place gives the indices. Each has room for EXPERT_SHAPES_MAX.
    uint32_t *first_tile;                 // [ranks * shapes + 1] index of the first tile of a rank's experts of a shape
    enum expertd_device_variant *variant; // [ranks * shapes] the variant that these tiles are cut for
};

#endif
