// Who reserves memory for batches and computes them: the host (expert/host) or devices (expert/device). One table each;
// engine_create chooses one, and nothing else in expert/ asks which it is. Private to expert/.
#ifndef EXPERTD_EXPERT_LAYER_ENGINE_BACKEND_H
#define EXPERTD_EXPERT_LAYER_ENGINE_BACKEND_H

#include "base/err.h"
#include "expert/layer/engine_options.h"
#include "expert/layer/engine_state.h"
#include "expert/layer/layer_sizes.h"
#include "expert/layer/scratch_layout.h"
#include "expert/layer/stages.h"

struct shards;

// Context of an error that more memory, or smaller batches, would mend: takes limits.max_tokens.
#define ENGINE_SCRATCH_CONTEXT "scratch for batches of %u tokens (lower max_batch_tokens)"

struct engine_backend {
    const struct layer_stages *stages;
    unsigned inputs; // batches whose rows are in memory at once: 1 or BATCH_INPUTS

    // ---- sizes. `engine` has what the options say, and may be one that is only measured
    size_t (*message_bytes)(const struct engine *engine);
    // Pieces at the start of the arena, before the message, for each input: devices read and write them.
    void (*lay_out_pinned)(struct scratch_layout *layout, const struct engine *engine, struct batch_input *in);
    // Each input's pieces that only the host reads and writes.
    void (*lay_out_input)(struct scratch_layout *layout, const struct engine *engine, const struct layer_sizes *sizes,
                          struct batch_input *in);
    // The backend's own scratch.
    void (*lay_out)(struct scratch_layout *layout, struct engine *engine, const struct layer_sizes *sizes);
    // Host memory beside the arena: memory nodes' scratch, the exchange's rows.
    uint64_t (*other_bytes)(const struct engine_options *options, const struct layer_sizes *sizes);

    // ---- life
    // Before the arena is laid out.
    err_t (*open)(struct engine *engine, const struct engine_options *options);
    // Afterwards: everything else that is reserved, and engine->exchange.
    err_t (*reserve)(struct engine *engine, const struct engine_options *options, const struct layer_sizes *sizes);
    void (*close)(struct engine *engine); // legal after any part of the above
    uint64_t (*untouched)(const struct engine *engine);

    // ---- weights that lie on devices: NULL where they lie in the host's memory
    uint64_t (*device_bytes)(const struct engine *engine);
    const char *(*variants)(const struct engine *engine, size_t layer, char text[ENGINE_VARIANTS_TEXT_MAX]);
    void (*move_room)(const struct engine *engine, size_t layer, uint32_t *room);
    err_t (*move_prepare)(struct engine *engine, size_t layer, const struct shards *from, struct shards *to);
    void (*move_finish)(struct engine *engine, size_t layer, const struct shards *in_force);
};

#endif
