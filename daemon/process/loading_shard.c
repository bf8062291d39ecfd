#include "daemon/process/loading_shard.h"

#include <inttypes.h>
#include <string.h>

#include "daemon/log/log.h"
#include "daemon/process/schedules.h"
#include "expert/model/memory.h"

enum { HEADROOM_MIN = 128 << 20, HEADROOM_DIVISOR = 16 }; // memory for messages, stacks and the allocator

static FALLIBLE open_store(const struct options *options, struct loaded *out) {
    struct model_options model = loading_model_options(options, out);
    model.parts = MODEL_EXPERTS_ONLY;
    model.memory_bytes_max = 0; // memory_max limits the experts, which are loaded later
    TRY(expert_store_open(&model, &out->model, &out->store));
    TRY(holdings_create(&out->model, &out->holdings));
    return schedules_begin(options, &out->model, out->team, &out->schedules);
}

static uint64_t largest_expert(const struct model *model) {
    uint64_t most = 0;
    for (size_t i = 0; i < model->num_layers; i++) {
        uint64_t bytes = expert_shapes_bytes_max(&model->layers[i].shapes);
        most = bytes > most ? bytes : most;
    }
    return most;
}

// The memory for experts: memory_max, or what the machine has left beside the shard's own needs, if that is less.
static FALLIBLE find_bytes_max(const struct options *options, struct shard_backend *backend) {
    struct memory_limit limit;
    char have[MEMORY_TEXT_MAX], needs[MEMORY_TEXT_MAX], quoted[2 * MEMORY_LIMIT_TEXT_MAX];
    TRY(memory_available(&limit));
    const uint64_t largest = largest_expert(backend->model), share = limit.bytes / HEADROOM_DIVISOR;
    const uint64_t own =
        shard_bytes(backend, options->max_fronts) + 2 * largest * backend->loaders + (share > HEADROOM_MIN ? share : HEADROOM_MIN);
    const uint64_t left = limit.bytes > own ? limit.bytes - own : 0;
    backend->bytes_max = options->memory_max > 0 && options->memory_max < left ? options->memory_max : left;
    if (backend->bytes_max < largest) {
        FAIL(EXPERTD_ERR_NOMEM,
             "no memory for an expert of %s: %s is available (%s), and this shard itself needs up to %s; lower max_fronts, "
             "max_batch_tokens or max_top_k, or raise memory_max",
             memory_text(largest, (char[MEMORY_TEXT_MAX]){0}), memory_text(limit.bytes, have), limit.what, memory_text(own, needs));
    }
    if (options->memory_max > left) {
        log_line(LOG_LEVEL_WARNING, "memory_max_lowered",
                 "from=%" PRIu64 " to=%" PRIu64
                 " memory_limit=%s message=\"%s is available, and this shard itself needs up to %s\"",
                 options->memory_max, left, log_quote(limit.what, quoted, sizeof quoted), memory_text(limit.bytes, have),
                 memory_text(own, needs));
    }
    return OK;
}

FALLIBLE loading_load_shard(const struct options *options, struct shard_service *service, struct loaded *out) {
    *out = (struct loaded){0};
    TRY(loading_log_cpu(options));
    loading_choose_priorities();
    TRY(loading_start_teams(options, out));
    TRY(open_store(options, out));
    TRY(loading_make_metrics(out));
    struct shard_backend backend = {.model = &out->model,
                                    .store = out->store,
                                    .holdings = out->holdings,
                                    .team = out->team,
                                    .topology = &out->topology,
                                    .limits = layer_limits_for(&out->model, options->max_batch_tokens, options->max_top_k),
                                    .loaders = expertd_team_threads(out->team)};
    TRY(find_bytes_max(options, &backend));
    out->limits = out->request_limits = backend.limits;
    TRY(shard_ready(service, &backend));
    log_line(LOG_LEVEL_INFO, "opened",
             "layers=%zu experts_max=%u largest_expert_bytes=%" PRIu64 " experts_bytes_max=%" PRIu64 " own_bytes_max=%" PRIu64
             " numerics_id=%s",
             out->model.num_layers, out->model.max_experts, largest_expert(&out->model), backend.bytes_max,
             shard_bytes(&backend, options->max_fronts), out->model.numerics_id);
    return OK;
}
