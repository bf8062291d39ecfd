// What computes batches, one at a time: the scratch of a batch, reserved at start from the limits, and the teams or devices that
// run its stages. What is done with it: layer.h. One thread at a time, but where it says any.
#ifndef EXPERTD_EXPERT_LAYER_ENGINE_H
#define EXPERTD_EXPERT_LAYER_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expert/layer/layer.h"
#include "expert/model/model.h"

struct expertd_devices;
struct device_weights; // expert/device/device_weights.h
struct engine;

// Host memory that devices may read: pinned, and left alone until the engine is destroyed.
struct engine_lent {
    const void *memory;
    size_t bytes; // 0: none
};

struct engine_options {
    const struct model *model; // borrowed for the engine's life
    struct layer_limits limits;
    struct expertd_team *team;       // borrowed; of the front, and of all ranks where node_teams is NULL
    struct node_teams *node_teams;   // borrowed, or NULL: each serves the ranks of its memory node
    struct expertd_devices *devices; // borrowed, or NULL: compute the ranks in place of the teams
    struct device_weights *weights;  // borrowed: the devices have the weights; NULL: they are copied from the host's
    struct engine_lent lent;         // large enough requests whose rows lie there are not copied on the host
    int64_t exchange_timeout_ns;     // of a batch on several devices: a rank that takes longer does not answer. 0: 10 s
};

// Reserves everything that a batch needs. EXPERTD_ERR_NOMEM with figures.
FALLIBLE engine_create(const struct engine_options *options, struct engine **out);
void engine_destroy(struct engine *engine);
uint64_t engine_scratch_bytes(const struct engine *engine);
// Of the host's memory, what an engine for options->model would take beside the weights; of the model only the parameters, shapes
// and maxima are read, and of the options what says how it would compute.
uint64_t engine_scratch_needed(const struct engine_options *options);
uint64_t engine_scratch_untouched(const struct engine *engine); // of its bytes, those that no memory stands behind yet; any thread
uint64_t engine_device_bytes(const struct engine *engine);      // of devices' memory, all that is reserved; 0 without any
// What devices may compute the experts of model->layers[layer] by, as "mma_16+mma_64"; "" without devices. Returns text.
enum { ENGINE_VARIANTS_TEXT_MAX = 160 };
const char *engine_layer_variants(const struct engine *engine, size_t layer, char text[ENGINE_VARIANTS_TEXT_MAX]);

// What an engine for such batches takes of a device beside the weights.
size_t engine_bytes_on_device(const struct model *model, const struct layer_limits *limits, struct expertd_devices *devices,
                              uint32_t device);

// Where the weights lie on devices, moves copy them there, on any thread, one at a time, while batches are computed.
bool engine_is_on_devices(const struct engine *engine);
// room: [ranks] experts that fit beside those that are there.
void engine_move_room(const struct engine *engine, const struct model_layer *layer, uint32_t *room);
// Copies to the devices what `to` has and `from`, which is in force, has not. Before `to` is put in force. EXPERTD_ERR_NOMEM: no
// room; EXPERTD_ERR_IO: a copy's digest differs; EXPERTD_ERR_SHARD_LOST: a device failed.
FALLIBLE engine_move_prepare(struct engine *engine, const struct model_layer *layer, const struct shards *from, struct shards *to);
void engine_move_finish(struct engine *engine, const struct model_layer *layer); // afterwards: what moved away makes room

// Of the exchange between devices; all zero on the CPU. Any thread.
struct engine_exchange {
    uint64_t rebuilds; // communicators that took the place of one that was given up, each after an EXPERTD_ERR_SHARD_LOST
    bool lost;         // a device has failed for good: every batch is EXPERTD_ERR_SHARD_LOST from then on
};
void engine_exchange_state(const struct engine *engine, struct engine_exchange *out);

// May the next batch be taken in while one is computed (layer_take_in)? So it is on devices.
bool engine_overlaps(const struct engine *engine);

#endif
