// The engine owns the memory of a batch, reserved at start from the limits, and the backend that computes batches: the host's teams
// or devices. The functions of layer.h compute with it. One thread at a time, except functions marked "any thread".
#ifndef EXPERTD_EXPERT_ENGINE_ENGINE_H
#define EXPERTD_EXPERT_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/layer/engine_options.h"
#include "expert/model/model.h"
#include "shard/exchange_types.h"

struct engine;

// Reserves all memory that batches need. EXPERTD_ERR_NOMEM with figures.
FALLIBLE engine_create(const struct engine_options *options, struct engine **out);
void engine_destroy(struct engine *engine);
uint64_t engine_scratch_bytes(const struct engine *engine);
// Bytes of host memory that engine_create(options) would reserve, without the weights. Reads only the limits, teams and devices of
// the options, and the parameters, shapes and maxima of the model.
uint64_t engine_scratch_needed(const struct engine_options *options);
uint64_t engine_scratch_untouched(const struct engine *engine); // scratch bytes that have no page yet; any thread
uint64_t engine_device_bytes(const struct engine *engine);      // device memory reserved, on all devices; 0 without devices
// Writes the kernel variants that devices may use for the experts of model->layers[layer], such as "mma_16+mma_64"; "" without
// devices. Returns text.
const char *engine_layer_variants(const struct engine *engine, size_t layer, char text[ENGINE_VARIANTS_TEXT_MAX]);

// Moves of experts between ranks. If the weights are on devices, a move must copy them: prepare before the new placement is in
// force, finish after. Any thread, one move at a time, while batches are computed.
bool engine_is_on_devices(const struct engine *engine);
// Sets free_slots [ranks]: the number of further experts for which each rank's device has memory.
void engine_move_free_slots(const struct engine *engine, const struct model_layer *layer, uint32_t *free_slots);
// Copies the experts that `to` adds to `from`, which is in force. `to` is put in force afterwards.
// EXPERTD_ERR_NOMEM: no free slot; EXPERTD_ERR_IO: a copy's digest differs; EXPERTD_ERR_SHARD_LOST: a device failed.
FALLIBLE engine_move_prepare(struct engine *engine, const struct model_layer *layer, const struct shards *from, struct shards *to);
void engine_move_finish(struct engine *engine, const struct model_layer *layer); // frees the slots of experts that moved away

// The state of the exchange between devices, or with remote ranks; all zero without both. Any thread.
struct engine_exchange {
    uint64_t rebuilds; // communicators created to replace an abandoned one, each after an EXPERTD_ERR_SHARD_LOST
    bool lost;         // a device has failed for good: every further batch is EXPERTD_ERR_SHARD_LOST
    struct exchange_remote_state remote;
};
void engine_exchange_state(const struct engine *engine, struct engine_exchange *out);

// True if the input stage of the next batch may run while a batch is computed (layer_pass_input). True for devices.
bool engine_overlaps(const struct engine *engine);

#endif
