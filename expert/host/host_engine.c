#include "expert/host/host_engine.h"

#include <stdlib.h>

#include "expert/host/host_stages.h"
#include "expert/host/host_state.h"
#include "shard/topology.h"

// ---- sizes

static size_t message_bytes(const struct engine *engine) {
    return engine->limits.max_choices * (sizeof(int32_t) + sizeof(float));
}

static void lay_out_pinned(struct scratch_layout *layout, const struct engine *engine, struct batch_input *in) {
    (void)layout, (void)engine, (void)in; // nothing is pinned
}

static void lay_out_input(struct scratch_layout *layout, const struct engine *engine, const struct layer_sizes *sizes,
                          struct batch_input *in) {
    enum expertd_dtype dtype = engine->model->compute_dtype;
    size_t rows = engine->limits.max_tokens * sizes->row_bytes, wide = rows / expertd_dtype_size(dtype) * sizeof(float);
    in->hidden = scratch_piece(layout, rows);
    in->hidden_f32 = dtype != EXPERTD_DTYPE_F32 ? scratch_piece(layout, wide) : (float *)(void *)in->hidden;
}

static struct ffn_sizes ffn_sizes_of(const struct model *model, const struct layer_limits *limits,
                                     const struct layer_sizes *sizes) {
    struct ffn_sizes ffn = {
        .max_hidden_size = model->max_hidden_size,
        .max_intermediate_size = model->max_intermediate_size,
        .max_experts = model->max_experts,
        .max_rows = limits->max_choices,
        .dtype = model->compute_dtype,
        .ordered = sizes->ordered,
    };
    if (sizes->max_latent_size > ffn.max_hidden_size) {
        ffn.max_hidden_size = sizes->max_latent_size;
    }
    if (sizes->shared_intermediate_size > ffn.max_intermediate_size) {
        ffn.max_intermediate_size = sizes->shared_intermediate_size;
    }
    return ffn;
}

static void lay_out(struct scratch_layout *layout, struct engine *engine, const struct layer_sizes *sizes) {
    struct host_engine counted = {0}, *host = engine->host ? engine->host : &counted;
    size_t tokens = engine->limits.max_tokens, choices = engine->limits.max_choices;
    unsigned threads = expertd_team_threads(engine->team);
    host->expanded = sizes->weights_on_input ? scratch_piece(layout, choices * sizes->row_bytes) : NULL;
    host->rows = scratch_piece(layout, threads * engine->limits.max_top_k * sizeof *host->rows);
    if (sizes->shared) {
        host->shared = scratch_piece(layout, tokens * sizes->row_bytes);
        host->shared_scale = scratch_piece(layout, tokens * sizeof *host->shared_scale);
    }
    host->latent = sizes->latent_row_bytes > 0 ? scratch_piece(layout, tokens * sizes->latent_row_bytes) : NULL;
    struct ffn_sizes ffn = ffn_sizes_of(engine->model, &engine->limits, sizes);
    void *memory = scratch_piece(layout, ffn_scratch_bytes(&ffn));
    if (memory) {
        ffn_scratch_init(&host->ffn, &ffn, memory);
    }
}

static uint64_t other_bytes(const struct engine_options *options, const struct layer_sizes *sizes) {
    struct ffn_sizes ffn = ffn_sizes_of(options->model, &options->limits, sizes);
    uint64_t nodes = options->node_teams ? node_teams_count(options->node_teams) : 0;
    struct exchange_options remote = layer_exchange_options(options->model, &options->limits, sizes);
    uint64_t exchange =
        options->limits.max_choices * sizes->expert_row_bytes + (options->links ? exchange_remote_bytes(&remote) : 0);
    return nodes * ffn_scratch_bytes(&ffn) + exchange;
}

// ---- life

static FALLIBLE open(struct engine *engine, const struct engine_options *options) {
    engine->host = calloc(1, sizeof *engine->host);
    if (!engine->host) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the engine on the host");
    }
    engine->host->node_teams = options->node_teams;
    return OK;
}

static FALLIBLE reserve_nodes(struct host_engine *host, const struct ffn_sizes *ffn) {
    uint32_t count = node_teams_count(host->node_teams);
    host->nodes = calloc(count, sizeof *host->nodes);
    if (!host->nodes) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the scratch of %u memory nodes", count);
    }
    for (uint32_t n = 0; n < count; n++) {
        struct host_node *node = &host->nodes[n];
        TRY(arena_init(&node->memory, ffn_scratch_bytes(ffn)));
        topology_prefer(node_teams_node(host->node_teams, n), node->memory.base, node->memory.bytes);
        ffn_scratch_init(&node->ffn, ffn, node->memory.base);
    }
    return OK;
}

static FALLIBLE create_exchange(struct engine *engine, const struct engine_options *options, const struct layer_sizes *sizes) {
    struct exchange_options exchange = layer_exchange_options(engine->model, &engine->limits, sizes);
    struct exchange_over_remote over = {.links = options->links,
                                        .local_ranks = options->local_ranks,
                                        .timeout_ns = engine_exchange_timeout_ns(options),
                                        .piece_bytes = options->remote_piece_bytes};
    return options->links ? exchange_create_remote(&exchange, &over, &engine->exchange)
                          : exchange_create_inproc(&exchange, &engine->exchange);
}

static FALLIBLE reserve(struct engine *engine, const struct engine_options *options, const struct layer_sizes *sizes) {
    struct ffn_sizes ffn = ffn_sizes_of(engine->model, &engine->limits, sizes);
    err_t e = options->node_teams ? reserve_nodes(engine->host, &ffn) : OK;
    if (!err_is(e)) {
        e = create_exchange(engine, options, sizes);
    }
    return err_is(e) ? err_context(e, ENGINE_SCRATCH_CONTEXT, options->limits.max_tokens) : OK;
}

static void close(struct engine *engine) {
    struct host_engine *host = engine->host;
    if (!host) {
        return;
    }
    for (uint32_t n = 0; host->nodes && n < node_teams_count(host->node_teams); n++) {
        arena_deinit(&host->nodes[n].memory);
    }
    free(host->nodes);
    free(host);
}

static uint64_t untouched(const struct engine *engine) {
    uint64_t bytes = 0;
    for (uint32_t n = 0; engine->host->nodes && n < node_teams_count(engine->host->node_teams); n++) {
        bytes += arena_untouched(&engine->host->nodes[n].memory);
    }
    return bytes;
}

const struct engine_backend host_backend = {
    .stages = &host_stages,
    .inputs = 1,
    .message_bytes = message_bytes,
    .lay_out_pinned = lay_out_pinned,
    .lay_out_input = lay_out_input,
    .lay_out = lay_out,
    .other_bytes = other_bytes,
    .open = open,
    .reserve = reserve,
    .close = close,
    .untouched = untouched,
};
