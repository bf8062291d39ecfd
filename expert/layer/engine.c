#include "expert/layer/engine_internal.h"

#include <stdlib.h>

#include "base/clock.h"
#include "expert/device/device_engine.h"
#include "expert/device/device_message.h"
#include "expert/device/device_moves.h"
#include "expert/layer/layer_batch.h"
#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/routing.h"

// A batch takes a GPU milliseconds; a simulated one is through with a batch whenever it is asked.
#define EXCHANGE_TIMEOUT_NS ((int64_t)10 * NS_PER_S)
#define JOIN_TIMEOUT_NS ((int64_t)60 * NS_PER_S) // NCCL's bootstrap takes seconds, more on a machine with many GPUs

struct layer_limits layer_limits_for(const struct model *model, uint32_t max_tokens, uint32_t max_top_k) {
    uint32_t top_k = model->max_top_k ? model->max_top_k : 1;
    return (struct layer_limits){
        .max_tokens = max_tokens,
        .max_top_k = max_top_k > top_k ? max_top_k : top_k,
        .max_choices = (size_t)max_tokens * top_k,
    };
}

// What the model's layers ask of the scratch.
struct engine_needs {
    size_t row_bytes;        // of a hidden row in D, rounded
    size_t expert_row_bytes; // of a row that an expert reads or gives
    size_t latent_row_bytes; // the same, of latent experts; 0: there are none
    uint32_t max_latent_size;
    size_t router_outputs;
    size_t routing_bytes;
    bool weights_on_input, shared, ordered, router_input;
    uint32_t shared_intermediate_size;
};

static void take_expert_rows(struct engine_needs *needs, const struct layer_params *p, enum expertd_dtype dtype) {
    size_t bytes = arena_rounded(expert_row_size(p) * expertd_dtype_size(dtype));
    needs->expert_row_bytes = bytes > needs->expert_row_bytes ? bytes : needs->expert_row_bytes;
    if (p->latent_size > needs->max_latent_size) {
        needs->max_latent_size = p->latent_size;
        needs->latent_row_bytes = bytes;
    }
}

static struct engine_needs needs_of(const struct model *model) {
    struct engine_needs needs = {.row_bytes = arena_rounded(model->max_hidden_size * expertd_dtype_size(model->compute_dtype))};
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct layer_params *p = &model->layers[i].params;
        take_expert_rows(&needs, p, model->compute_dtype);
        size_t outputs = p->num_experts + p->num_zero_experts;
        needs.router_outputs = outputs > needs.router_outputs ? outputs : needs.router_outputs;
        size_t bytes = p->has_router ? arena_rounded(expertd_routing_scratch_bytes(&p->routing)) : 0;
        needs.routing_bytes = bytes > needs.routing_bytes ? bytes : needs.routing_bytes;
        needs.weights_on_input |= p->weights_on_input;
        needs.shared |= shared_has_expert(p->shared);
        needs.router_input |= p->needs_router_input;
        needs.ordered |= model->layers[i].ordered;
        if (p->shared_intermediate_size > needs.shared_intermediate_size) {
            needs.shared_intermediate_size = p->shared_intermediate_size;
        }
    }
    return needs;
}

static struct ffn_sizes ffn_sizes_of(const struct engine *engine, const struct engine_needs *needs) {
    const struct model *model = engine->model;
    struct ffn_sizes sizes = {
        .max_hidden_size = model->max_hidden_size,
        .max_intermediate_size = model->max_intermediate_size,
        .max_experts = model->max_experts,
        .max_rows = engine->limits.max_choices,
        .dtype = model->compute_dtype,
        .ordered = needs->ordered,
    };
    if (needs->max_latent_size > sizes.max_hidden_size) {
        sizes.max_hidden_size = needs->max_latent_size;
    }
    if (needs->shared_intermediate_size > sizes.max_intermediate_size) {
        sizes.max_intermediate_size = needs->shared_intermediate_size;
    }
    return sizes;
}

// Every piece of the scratch, once: with memory NULL only its size is summed up, so that the two can never differ.
struct layout {
    char *memory;
    size_t used;
};

static void *piece(struct layout *layout, size_t bytes) {
    void *at = layout->memory ? layout->memory + layout->used : NULL;
    layout->used += arena_rounded(bytes);
    return at;
}

// What devices read and write of it.
static void lay_out_input(struct layout *layout, const struct engine *engine, struct batch_input *in) {
    size_t tokens = engine->limits.max_tokens;
    in->staging = engine->devices ? piece(layout, device_landing_bytes(engine->model, tokens)) : NULL;
    in->outputs = engine->devices ? piece(layout, tokens * engine->model->max_hidden_size * sizeof(float)) : NULL;
}

// Rows in D on the host, where the CPU computes.
static void lay_out_rows(struct layout *layout, const struct engine *engine, const struct engine_needs *needs,
                         struct batch_input *in) {
    if (engine->devices) {
        return;
    }
    enum expertd_dtype dtype = engine->model->compute_dtype;
    size_t rows = engine->limits.max_tokens * needs->row_bytes, wide = rows / expertd_dtype_size(dtype) * sizeof(float);
    in->hidden = piece(layout, rows);
    in->hidden_f32 = dtype != EXPERTD_DTYPE_F32 ? piece(layout, wide) : (float *)(void *)in->hidden;
}

static size_t lay_out(struct engine *engine, const struct engine_needs *needs, char *memory) {
    const struct model *model = engine->model;
    size_t tokens = engine->limits.max_tokens, choices = engine->limits.max_choices;
    unsigned threads = expertd_team_threads(engine->team);
    struct layout layout = {.memory = memory};
    unsigned inputs = engine->devices ? BATCH_INPUTS : 1;
    for (unsigned i = 0; i < inputs; i++) {
        lay_out_input(&layout, engine, &engine->inputs[i]);
    }
    engine->message = piece(&layout, engine->devices ? device_message_most(NULL, model, &engine->limits).bytes
                                                     : choices * (sizeof(int32_t) + sizeof(float)));
    engine->pinned_bytes = layout.used;
    void *plan = piece(&layout, plan_bytes(choices, 1, model->max_experts, model->ranks));
    for (unsigned i = 0; i < inputs; i++) { // what devices do not read
        struct batch_input *in = &engine->inputs[i];
        lay_out_rows(&layout, engine, needs, in);
        in->router_rows =
            needs->router_input ? piece(&layout, tokens * arena_rounded(model->max_hidden_size * sizeof(float))) : NULL;
        in->token_request = piece(&layout, tokens * sizeof *in->token_request);
        in->shared_tokens = piece(&layout, tokens * sizeof *in->shared_tokens);
        in->shared_rows = piece(&layout, tokens * sizeof *in->shared_rows);
    }
    engine->expanded = needs->weights_on_input ? piece(&layout, choices * needs->row_bytes) : NULL;
    engine->rows = piece(&layout, threads * engine->limits.max_top_k * sizeof *engine->rows);
    engine->router.logits = piece(&layout, tokens * needs->router_outputs * sizeof(float));
    engine->router.rows = piece(&layout, threads * needs->routing_bytes);
    engine->router.routing_bytes = needs->routing_bytes;
    engine->router.matmul = piece(&layout, expertd_packed_matmul_workspace_bytes(tokens, 1));
    if (needs->shared) {
        engine->shared = piece(&layout, tokens * needs->row_bytes);
        engine->shared_scale = piece(&layout, tokens * sizeof *engine->shared_scale);
    }
    engine->latent = needs->latent_row_bytes > 0 ? piece(&layout, tokens * needs->latent_row_bytes) : NULL;
    struct ffn_sizes sizes = ffn_sizes_of(engine, needs);
    void *ffn = piece(&layout, ffn_scratch_bytes(&sizes));
    if (memory) {
        plan_init(&engine->plan, plan, choices, 1, model->max_experts, model->ranks);
        ffn_scratch_init(&engine->ffn, &sizes, ffn);
    }
    return layout.used;
}

// Each node's scratch, in memory of its own.
static FALLIBLE create_nodes(struct engine *engine, const struct engine_needs *needs) {
    uint32_t count = node_teams_count(engine->node_teams);
    struct ffn_sizes sizes = ffn_sizes_of(engine, needs);
    engine->nodes = calloc(count, sizeof *engine->nodes);
    if (!engine->nodes) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the scratch of %u memory nodes", count);
    }
    for (uint32_t n = 0; n < count; n++) {
        struct node_scratch *node = &engine->nodes[n];
        TRY(arena_init(&node->memory, ffn_scratch_bytes(&sizes)));
        topology_prefer(node_teams_node(engine->node_teams, n), node->memory.base, node->memory.bytes);
        ffn_scratch_init(&node->ffn, &sizes, node->memory.base);
    }
    return OK;
}

static void destroy_nodes(struct engine *engine) {
    for (uint32_t n = 0; engine->nodes && n < node_teams_count(engine->node_teams); n++) {
        arena_deinit(&engine->nodes[n].memory);
    }
    free(engine->nodes);
}

static struct exchange_options exchange_options_of(const struct model *model, const struct layer_limits *limits,
                                                   const struct engine_needs *needs) {
    return (struct exchange_options){
        .ranks = model->ranks,
        .layers = (uint32_t)model->num_layers,
        .max_tokens = limits->max_tokens,
        .max_rows = limits->max_choices,
        .row_bytes_max = needs->expert_row_bytes,
        .expanded = needs->weights_on_input,
    };
}

size_t engine_bytes_on_device(const struct model *model, const struct layer_limits *limits, struct expertd_devices *devices,
                              uint32_t device) {
    struct engine_needs needs = needs_of(model);
    struct exchange_options exchange = exchange_options_of(model, limits, &needs);
    struct exchange_over_nccl over = {.devices = devices};
    return device_engine_scratch_bytes(model, limits, device) + exchange_nccl_bytes(&exchange, &over, device);
}

static FALLIBLE create_on_devices(struct engine *engine, struct device_weights *weights, const struct exchange_options *exchange,
                                  const struct exchange_over_nccl *over) {
    TRY(device_engine_create(engine, engine->devices, weights, &engine->device));
    return exchange_create_nccl(exchange, over, &engine->exchange);
}

FALLIBLE engine_create(const struct engine_options *options, struct engine **out) {
    *out = NULL;
    struct engine *engine = calloc(1, sizeof *engine);
    struct layer_pass *passes = calloc(BATCH_INPUTS, sizeof *passes);
    if (!engine || !passes) {
        free(engine);
        free(passes);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for an engine");
    }
    engine->passes = passes;
    engine->model = options->model;
    engine->limits = options->limits;
    engine->team = options->team;
    engine->node_teams = options->node_teams;
    engine->devices = options->devices;
    engine->lent = options->lent;
    struct engine_needs needs = needs_of(options->model);
    struct exchange_options exchange = exchange_options_of(options->model, &options->limits, &needs);
    struct exchange_over_nccl over = {
        .devices = options->devices,
        .timeout_ns = options->exchange_timeout_ns ? options->exchange_timeout_ns : EXCHANGE_TIMEOUT_NS,
        .join_timeout_ns = JOIN_TIMEOUT_NS,
    };
    err_t e;
    TRY_OUT(e, arena_init(&engine->arena, lay_out(engine, &needs, NULL)));
    lay_out(engine, &needs, engine->arena.base);
    engine->arena.used = engine->arena.bytes;
    if (engine->node_teams) {
        TRY_OUT(e, create_nodes(engine, &needs));
    }
    if (engine->devices) {
        e = create_on_devices(engine, options->weights, &exchange, &over);
        if (err_is(e)) {
            engine_destroy(engine);
            return e;
        }
    } else {
        TRY_OUT(e, exchange_create_inproc(&exchange, &engine->exchange));
    }
    *out = engine;
    return OK;
out:
    engine_destroy(engine);
    return err_context(e, "scratch for batches of %u tokens (lower max_batch_tokens)", options->limits.max_tokens);
}

void engine_destroy(struct engine *engine) {
    if (engine) {
        exchange_destroy(engine->exchange);
        device_engine_destroy(engine->device);
        destroy_nodes(engine);
        arena_deinit(&engine->arena);
        free(engine->passes);
        free(engine);
    }
}

uint64_t engine_scratch_needed(const struct engine_options *options) {
    struct engine engine = {.model = options->model,
                            .limits = options->limits,
                            .team = options->team,
                            .node_teams = options->node_teams,
                            .devices = options->devices};
    struct engine_needs needs = needs_of(engine.model);
    struct ffn_sizes sizes = ffn_sizes_of(&engine, &needs);
    uint64_t nodes = engine.node_teams ? node_teams_count(engine.node_teams) : 0;
    uint64_t results = engine.devices ? 0 : engine.limits.max_choices * needs.expert_row_bytes; // of the exchange
    return lay_out(&engine, &needs, NULL) + nodes * ffn_scratch_bytes(&sizes) + results;
}

uint64_t engine_scratch_bytes(const struct engine *engine) {
    struct engine_options options = {.model = engine->model,
                                     .limits = engine->limits,
                                     .team = engine->team,
                                     .node_teams = engine->node_teams,
                                     .devices = engine->devices};
    return engine_scratch_needed(&options);
}

uint64_t engine_scratch_untouched(const struct engine *engine) {
    uint64_t bytes = arena_untouched(&engine->arena) + exchange_untouched(engine->exchange);
    for (uint32_t n = 0; engine->nodes && n < node_teams_count(engine->node_teams); n++) {
        bytes += arena_untouched(&engine->nodes[n].memory);
    }
    return bytes;
}

bool engine_is_on_devices(const struct engine *engine) {
    return engine->device != NULL;
}

void engine_move_room(const struct engine *engine, const struct model_layer *layer, uint32_t *room) {
    device_moves_room(device_engine_weights(engine->device), (size_t)(layer - engine->model->layers), engine->model->ranks, room);
}

FALLIBLE engine_move_prepare(struct engine *engine, const struct model_layer *layer, const struct shards *from, struct shards *to) {
    return device_moves_prepare(device_engine_weights(engine->device), (size_t)(layer - engine->model->layers), from, to);
}

void engine_move_finish(struct engine *engine, const struct model_layer *layer) {
    const struct shards *now = shards_take(layer->in_force);
    device_moves_finish(device_engine_weights(engine->device), (size_t)(layer - engine->model->layers), now);
    shards_give_back(layer->in_force, now);
}

void engine_exchange_state(const struct engine *engine, struct engine_exchange *out) {
    struct exchange_state state;
    exchange_state(engine->exchange, &state);
    *out = (struct engine_exchange){.rebuilds = state.rebuilds, .lost = state.lost};
}

uint64_t engine_device_bytes(const struct engine *engine) {
    if (!engine->device) {
        return 0;
    }
    struct engine_needs needs = needs_of(engine->model);
    struct exchange_options exchange = exchange_options_of(engine->model, &engine->limits, &needs);
    struct exchange_over_nccl over = {.devices = engine->devices};
    uint64_t bytes = device_engine_bytes(engine->device);
    for (uint32_t i = 0; i < engine->devices->count; i++) {
        bytes += exchange_nccl_bytes(&exchange, &over, i);
    }
    return bytes;
}

const char *engine_layer_variants(const struct engine *engine, size_t layer, char text[ENGINE_VARIANTS_TEXT_MAX]) {
    text[0] = '\0';
    return engine->device ? device_engine_variants(engine->device, layer, text) : text;
}
