// A backend reserves memory for batches and computes them: the host (expert/host) or devices (expert/device). Each implements this
// table. engine_create chooses one; no other code in expert/ depends on the choice. Private to expert/.
#ifndef EXPERTD_EXPERT_LAYER_ENGINE_BACKEND_H
#define EXPERTD_EXPERT_LAYER_ENGINE_BACKEND_H

#include "base/err.h"
#include "expert/layer/engine_options.h"
#include "expert/layer/engine_state.h"
#include "expert/layer/layer_sizes.h"
#include "expert/layer/scratch_layout.h"
#include "expert/layer/stages.h"

struct shards;

// Context of an out-of-memory error; the argument is limits.max_tokens.
#define ENGINE_SCRATCH_CONTEXT "scratch for batches of %u tokens (lower max_batch_tokens)"

struct engine_backend {
    const struct layer_stages *stages;
    unsigned inputs; // batches whose rows are in memory at the same time: 1 or BATCH_INPUTS

    // ---- sizes. `engine` has the fields that engine_options determine; engine_scratch_needed passes an engine without memory
    size_t (*message_bytes)(const struct engine *engine);
    // Pinned pieces of each input, which devices read and write. They lie at the start of the arena, before the message.
    void (*lay_out_pinned)(struct scratch_layout *layout, const struct engine *engine, struct batch_input *in);
    // Pieces of each input that only the host reads and writes.
    void (*lay_out_input)(struct scratch_layout *layout, const struct engine *engine, const struct layer_sizes *sizes,
                          struct batch_input *in);
    // The backend's own scratch.
    void (*lay_out)(struct scratch_layout *layout, struct engine *engine, const struct layer_sizes *sizes);
    // Host memory outside the arena: memory nodes' scratch, the exchange's rows.
    uint64_t (*other_bytes)(const struct engine_options *options, const struct layer_sizes *sizes);

    // ---- life
    // Called before the arena is laid out.
    err_t (*open)(struct engine *engine, const struct engine_options *options);
    // Called after the arena is laid out: reserves everything else and creates engine->exchange.
    err_t (*reserve)(struct engine *engine, const struct engine_options *options, const struct layer_sizes *sizes);
    void (*close)(struct engine *engine);               // legal after a failed open or reserve
    uint64_t (*untouched)(const struct engine *engine); // bytes of the backend's own scratch that have no page yet

    // ---- weights in device memory; NULL on the host. engine.h describes the functions that call these
    uint64_t (*device_bytes)(const struct engine *engine);
    const char *(*variants)(const struct engine *engine, size_t layer, char text[ENGINE_VARIANTS_TEXT_MAX]);
    void (*move_free_slots)(const struct engine *engine, size_t layer, uint32_t *free_slots);
    err_t (*move_prepare)(struct engine *engine, size_t layer, const struct shards *from, struct shards *to);
    void (*move_finish)(struct engine *engine, size_t layer, const struct shards *in_force);
};

#endif
