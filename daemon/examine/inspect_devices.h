// What a model takes on the devices on which a start would compute: the steps of that start up to the first weight. Nothing is
// reserved on a device, and no weight is read. Private to daemon/examine/.
#ifndef EXPERTD_DAEMON_EXAMINE_INSPECT_DEVICES_H
#define EXPERTD_DAEMON_EXAMINE_INSPECT_DEVICES_H

#include "daemon/config/options.h"
#include "daemon/process/loading.h"
#include "expert/loader/model_inspect.h"

struct inspected_devices {
    const struct expertd_devices *devices; // borrowed; NULL: a start computes on the CPU, and nothing else is set
    struct inspection start;               // of the start on devices: numerics_id, refusal, and in shards[0] the host's memory
    struct device_weights_sizes sizes[EXPERTD_DEVICES_MAX];
    uint64_t *layer_bytes;   // [start.count] on all devices; owned; NULL: it was refused before sizes were known
    uint32_t *layer_widened; // [start.count] sets of entries of `widened`; likewise
    struct widened widened;
    char widened_layers[WIDENED_FORMATS_MAX][WIDENED_TEXT_MAX]; // of each entry
};

// loaded: with the devices open. scratch_bytes, scratch_context: as in struct model_options.
void inspect_devices(const struct options *options, const struct loaded *loaded,
                     uint64_t (*scratch_bytes)(void *, const struct model *), void *scratch_context, struct inspected_devices *out);
void inspected_devices_deinit(struct inspected_devices *inspected); // legal on a zeroed struct

#endif
