#include "expert/engine/engine.h"

#include <stdlib.h>

#include "expert/device/device_engine.h"
#include "expert/host/host_engine.h"
#include "expert/host/host_state.h"
#include "expert/layer/batch.h"
#include "expert/layer/engine_backend.h"
#include "expertd/kernels/grouped_matmul.h"

static const struct engine_backend *backend_for(const struct engine_options *options) {
    return options->devices ? &device_backend : &host_backend;
}

static struct engine engine_of(const struct engine_options *options) {
    const struct engine_backend *backend = backend_for(options);
    return (struct engine){
        .model = options->model,
        .limits = options->limits,
        .team = options->team,
        .devices = options->devices,
        .shared_memory = options->shared_memory,
        .links = options->links,
        .local_ranks = options->local_ranks,
        .backend = backend,
        .stages = backend->stages,
    };
}

// ---- scratch

static void lay_out_indices(struct scratch_layout *layout, const struct engine *engine, const struct layer_sizes *sizes,
                            struct batch_input *in) {
    size_t tokens = engine->limits.max_tokens, row = arena_rounded(engine->model->max_hidden_size * sizeof(float));
    in->router_rows = sizes->router_input ? scratch_piece(layout, tokens * row) : NULL;
    in->token_request = scratch_piece(layout, tokens * sizeof *in->token_request);
    in->shared_tokens = scratch_piece(layout, tokens * sizeof *in->shared_tokens);
    in->shared_rows = scratch_piece(layout, tokens * sizeof *in->shared_rows);
}

static void lay_out_router(struct scratch_layout *layout, struct engine *engine, const struct layer_sizes *sizes) {
    size_t tokens = engine->limits.max_tokens;
    engine->router.logits = scratch_piece(layout, tokens * sizes->router_outputs * sizeof(float));
    engine->router.rows = scratch_piece(layout, expertd_team_threads(engine->team) * sizes->routing_bytes);
    engine->router.routing_bytes = sizes->routing_bytes;
    engine->router.matmul = scratch_piece(layout, expertd_packed_matmul_workspace_bytes(tokens, 1));
}

// Lays out all pieces of the scratch and returns their bytes. With memory NULL the bytes are only counted.
static size_t lay_out(struct engine *engine, const struct layer_sizes *sizes, char *memory) {
    const struct engine_backend *backend = engine->backend;
    const struct model *model = engine->model;
    size_t choices = engine->limits.max_choices;
    struct scratch_layout layout = {.memory = memory};
    for (unsigned i = 0; i < backend->inputs; i++) {
        backend->lay_out_pinned(&layout, engine, &engine->inputs[i]);
    }
    engine->message = scratch_piece(&layout, backend->message_bytes(engine));
    engine->pinned_bytes = layout.used;
    void *plan = scratch_piece(&layout, plan_bytes(choices, 1, model->max_experts, model->ranks));
    for (unsigned i = 0; i < backend->inputs; i++) {
        backend->lay_out_input(&layout, engine, sizes, &engine->inputs[i]);
        lay_out_indices(&layout, engine, sizes, &engine->inputs[i]);
    }
    lay_out_router(&layout, engine, sizes);
    backend->lay_out(&layout, engine, sizes);
    if (memory) {
        plan_init(&engine->plan, plan, choices, 1, model->max_experts, model->ranks);
    }
    return layout.used;
}

// ---- life

static FALLIBLE reserve(struct engine *engine, const struct engine_options *options) {
    struct layer_sizes sizes = layer_sizes_of(engine->model);
    TRY(engine->backend->open(engine, options));
    TRY_IN(arena_init(&engine->arena, lay_out(engine, &sizes, NULL)), ENGINE_SCRATCH_CONTEXT, options->limits.max_tokens);
    lay_out(engine, &sizes, engine->arena.base);
    engine->arena.used = engine->arena.bytes;
    return engine->backend->reserve(engine, options, &sizes);
}

FALLIBLE engine_create(const struct engine_options *options, struct engine **out) {
    *out = NULL;
    struct engine *engine = calloc(1, sizeof *engine);
    struct layer_pass *passes = calloc(BATCH_INPUTS, sizeof *passes);
    if (!engine || !passes) {
        free(engine);
        free(passes);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the engine");
    }
    *engine = engine_of(options);
    engine->passes = passes;
    err_t e = reserve(engine, options);
    if (err_is(e)) {
        engine_destroy(engine);
        return e;
    }
    *out = engine;
    return OK;
}

void engine_destroy(struct engine *engine) {
    if (engine) {
        exchange_destroy(engine->exchange);
        engine->backend->close(engine);
        arena_deinit(&engine->arena);
        free(engine->passes);
        free(engine);
    }
}

uint64_t engine_scratch_needed(const struct engine_options *options) {
    struct engine counted = engine_of(options);
    struct layer_sizes sizes = layer_sizes_of(options->model);
    return lay_out(&counted, &sizes, NULL) + counted.backend->other_bytes(options, &sizes);
}

uint64_t engine_scratch_bytes(const struct engine *engine) {
    struct engine_options options = {.model = engine->model,
                                     .limits = engine->limits,
                                     .team = engine->team,
                                     .node_teams = engine->host ? engine->host->node_teams : NULL,
                                     .devices = engine->devices,
                                     .links = engine->links,
                                     .local_ranks = engine->local_ranks};
    return engine_scratch_needed(&options);
}

uint64_t engine_scratch_untouched(const struct engine *engine) {
    return arena_untouched(&engine->arena) + exchange_untouched(engine->exchange) + engine->backend->untouched(engine);
}

// ---- devices

bool engine_overlaps(const struct engine *engine) {
    return engine->stages->overlaps;
}

bool engine_is_on_devices(const struct engine *engine) {
    return engine->backend->move_prepare != NULL;
}

static size_t index_of(const struct engine *engine, const struct model_layer *layer) {
    return (size_t)(layer - engine->model->layers);
}

void engine_move_free_slots(const struct engine *engine, const struct model_layer *layer, uint32_t *free_slots) {
    engine->backend->move_free_slots(engine, index_of(engine, layer), free_slots);
}

FALLIBLE engine_move_prepare(struct engine *engine, const struct model_layer *layer, const struct shards *from, struct shards *to) {
    return engine->backend->move_prepare(engine, index_of(engine, layer), from, to);
}

void engine_move_finish(struct engine *engine, const struct model_layer *layer) {
    const struct shards *now = shards_take(layer->in_force);
    engine->backend->move_finish(engine, index_of(engine, layer), now);
    shards_release(layer->in_force, now);
}

void engine_exchange_state(const struct engine *engine, struct engine_exchange *out) {
    struct exchange_state state;
    exchange_state(engine->exchange, &state);
    *out = (struct engine_exchange){.rebuilds = state.rebuilds, .lost = state.lost, .remote = state.remote};
}

uint64_t engine_device_bytes(const struct engine *engine) {
    return engine->backend->device_bytes ? engine->backend->device_bytes(engine) : 0;
}

const char *engine_layer_variants(const struct engine *engine, size_t layer, char text[ENGINE_VARIANTS_TEXT_MAX]) {
    text[0] = '\0';
    return engine->backend->variants ? engine->backend->variants(engine, layer, text) : text;
}
