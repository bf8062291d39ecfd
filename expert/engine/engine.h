// The engine computes batches, one at a time. It owns the scratch of a batch, reserved at start from the limits, and runs the
// stages on the host's teams or on devices. layer.h computes with it. One thread at a time, except where a function says "any
// thread".
#ifndef EXPERTD_EXPERT_ENGINE_ENGINE_H
#define EXPERTD_EXPERT_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/layer/engine_options.h"
#include "expert/model/model.h"

struct engine;

// Reserves everything that a batch needs. EXPERTD_ERR_NOMEM with figures.
FALLIBLE engine_create(const struct engine_options *options, struct engine **out);
void engine_destroy(struct engine *engine);
uint64_t engine_scratch_bytes(const struct engine *engine);
// Host memory that an engine for options->model would take beside the weights. Reads only the model's parameters, shapes and
// maxima, and the options that decide how the engine would compute.
uint64_t engine_scratch_needed(const struct engine_options *options);
uint64_t engine_scratch_untouched(const struct engine *engine); // scratch bytes without a page behind them yet; any thread
uint64_t engine_device_bytes(const struct engine *engine);      // device memory reserved, on all devices; 0 without devices
// The variants that devices may compute the experts of model->layers[layer] with, such as "mma_16+mma_64"; "" without devices.
// Returns text.
const char *engine_layer_variants(const struct engine *engine, size_t layer, char text[ENGINE_VARIANTS_TEXT_MAX]);

// Where the weights lie on devices, a move of experts copies them there: on any thread, one move at a time, while batches are
// computed.
bool engine_is_on_devices(const struct engine *engine);
// room: [ranks] experts that each rank can hold beside its present ones.
void engine_move_room(const struct engine *engine, const struct model_layer *layer, uint32_t *room);
// Copies to the devices the experts that `to` has and `from`, the placement in force, has not. Before `to` is put in force.
// EXPERTD_ERR_NOMEM: no room; EXPERTD_ERR_IO: a copy's digest differs; EXPERTD_ERR_SHARD_LOST: a device failed.
FALLIBLE engine_move_prepare(struct engine *engine, const struct model_layer *layer, const struct shards *from, struct shards *to);
void engine_move_finish(struct engine *engine, const struct model_layer *layer); // afterwards: frees what moved away

// The state of the exchange between devices; all zero on the host. Any thread.
struct engine_exchange {
    uint64_t rebuilds; // communicators created to replace one that was given up; each followed an EXPERTD_ERR_SHARD_LOST
    bool lost;         // a device has failed for good: every further batch is EXPERTD_ERR_SHARD_LOST
};
void engine_exchange_state(const struct engine *engine, struct engine_exchange *out);

// True where the next batch's input may run while one is computed (layer_pass_input): on devices.
bool engine_overlaps(const struct engine *engine);

#endif
