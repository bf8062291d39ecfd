#include "daemon/process/loading.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/config/placement_file.h"
#include "daemon/grpc/rpc.h"
#include "daemon/process/log.h"
#include "daemon/process/notify.h"
#include "daemon/process/schedules.h"
#include "expert/engine/engine.h"
#include "expert/model/memory.h"
#include "expertd/kernels/kernel_select.h"

enum { PROGRESS_PERIOD_S = 1, EXTEND_S = 30 };

struct progress {
    int64_t started_ns, last_ns;
};

static void show_progress(void *context, uint64_t done_bytes, uint64_t all_bytes) {
    struct progress *progress = context;
    int64_t now_ns = clock_now_ns();
    if (now_ns - progress->last_ns < (int64_t)PROGRESS_PERIOD_S * NS_PER_S) {
        return;
    }
    progress->last_ns = now_ns;
    double spent_s = (double)(now_ns - progress->started_ns) / NS_PER_S;
    double left_s = done_bytes ? spent_s * (double)(all_bytes - done_bytes) / (double)done_bytes : 0;
    log_line(LOG_LEVEL_INFO, "loading", "done_bytes=%" PRIu64 " all_bytes=%" PRIu64 " left_s=%.0f", done_bytes, all_bytes, left_s);
    notify_extend_timeout(EXTEND_S);
    notify_status("loading: %.1f of %.1f GB, %.0f s left", (double)done_bytes / 1e9, (double)all_bytes / 1e9, left_s);
}

struct placing {
    const struct options *options;
    struct placement_file counts;
};

// placement: balanced, for model_load.
static err_t place_balanced(void *context, const struct layer_params *params, uint32_t ranks, struct placement **out) {
    struct placing *placing = context;
    const struct options *options = placing->options;
    struct placement_balance balance = {.num_experts = params->num_experts, .ranks = ranks, .replicas = options->replicas};
    TRY_IN(placement_file_find(&placing->counts, params->layer, params->num_experts, &balance.rows), "%s",
           options->placement_counts);
    return placement_balanced(&balance, 1, out);
}

static void warn_of_odd(const char *event, const struct model_odd *odd, const char *message) {
    char tensor[2 * sizeof odd->tensor], file[2 * sizeof odd->file];
    if (odd->count > 0) {
        log_line(LOG_LEVEL_WARNING, event, "count=%" PRIu64 " tensor=%s file=%s message=\"%s\"", odd->count,
                 log_quote(odd->tensor, tensor, sizeof tensor), log_quote(odd->file, file, sizeof file), message);
    }
}

static void warn_of_what_is_odd(const struct model *model) {
    warn_of_odd("scales_not_finite", &model->odd_scales,
                "stored scales are NaN or infinite, and so will be answers of their experts; this is the first such tensor: is the "
                "file damaged?");
    warn_of_odd("zero_points_of_16", &model->zeros_of_16,
                "zero points of 4 bits are stored as 15 and are read as 16, as auto-gptq does; GPTQModel lets the 1 that is added "
                "run into the next one: a file that was made by it, or tried with it, gives other answers here");
}

struct computing {
    const struct options *options;
    const struct loaded *loaded;
};

static struct engine_options engine_options_of(const struct options *options, const struct loaded *loaded,
                                               const struct model *model) {
    return (struct engine_options){.model = model,
                                   .limits = layer_limits_for(model, options->max_batch_tokens, options->max_top_k),
                                   .team = loaded->team,
                                   .node_teams = loaded->node_teams,
                                   .devices = loaded->devices,
                                   .weights = loaded->weights,
                                   .lent = {loaded->request_memory.memory, loaded->request_memory.bytes},
                                   .exchange_timeout_ns = (int64_t)options->exchange_timeout_ms * NS_PER_MS};
}

// Of the engine that start_engine will make.
static uint64_t scratch_for(void *context, const struct model *model) {
    const struct computing *computing = context;
    struct engine_options engine = engine_options_of(computing->options, computing->loaded, model);
    return engine_scratch_needed(&engine);
}

static FALLIBLE load_model(const struct options *options, struct loaded *out) {
    struct placing placing = {.options = options};
    struct computing computing = {options, out};
    struct progress progress = {.started_ns = clock_now_ns(), .last_ns = clock_now_ns()};
    struct model_sink sink = {0};
    if (out->weights) {
        sink = device_weights_sink(out->weights);
    }
    struct model_options model = {
        .model = options->model,
        .hf_cache = options->hf_cache,
        .compute_dtype = options->compute_dtype,
        .widen = options->widen,
        .ranks = options->shards,
        .have_layers = options->have_layers,
        .first_layer = options->first_layer,
        .last_layer = options->last_layer,
        .memory_bytes_max = options->memory_max,
        .arithmetic = out->devices ? out->devices->facts.arithmetic : NULL,
        .arithmetic_f32 = out->devices ? out->devices->facts.arithmetic_f32 : NULL,
        .scratch_bytes = scratch_for,
        .scratch_context = &computing,
        .topology = &out->topology,
        .team = out->team,
        .sink = out->weights ? &sink : NULL,
        .progress = show_progress,
        .progress_context = &progress,
    };
    err_t e = OK;
    if (strcmp(options->placement, "balanced") == 0) {
        model.place = place_balanced;
        model.place_context = &placing;
        e = placement_file_read(options->placement_counts, &placing.counts);
    }
    if (!err_is(e)) {
        e = model_load(&model, &out->model);
    }
    placement_file_deinit(&placing.counts);
    TRY(e);
    warn_of_what_is_odd(&out->model);
    char quoted[2 * EXPERTD_ERR_MESSAGE_MAX];
    log_line(LOG_LEVEL_INFO, "loaded",
             "model=%s architecture=%s layers=%zu quantisation=%s shards=%u numerics_id=%s weights_bytes=%zu seconds=%.2f",
             log_quote(out->model.name, quoted, sizeof quoted), out->model.model_type, out->model.num_layers,
             model_quantisation(&out->model), out->model.ranks, out->model.numerics_id, (size_t)model_weights_bytes(&out->model),
             (double)(clock_now_ns() - progress.started_ns) / NS_PER_S);
    return OK;
}

static FALLIBLE make_metrics(struct loaded *out) {
    size_t count = out->model.num_layers;
    uint32_t *numbers = calloc(2 * count + 1, sizeof *numbers);
    if (!numbers) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for metrics of %zu layers", count);
    }
    for (size_t i = 0; i < count; i++) {
        numbers[i] = out->model.layers[i].params.layer;
        numbers[count + i] = out->model.layers[i].params.num_experts;
    }
    struct metrics_options options = {
        .layers = numbers,
        .num_experts = numbers + count,
        .num_layers = count,
        .model = out->model.name,
        .version = EXPERTD_VERSION,
    };
    err_t e = metrics_create(&options, &out->metrics);
    free(numbers);
    return e;
}

// What there is to compute with, before any of it is used.
static FALLIBLE log_device(const struct options *options) {
    struct memory_limit limit;
    TRY(memory_available(&limit));
    char quoted[2 * MEMORY_LIMIT_TEXT_MAX];
    if (limit.hidden[0]) {
        log_line(LOG_LEVEL_WARNING, "memory_limit_hidden",
                 "file=%s message=\"it may not be read: what it allows is not known, and not kept to; --memory-max can say it\"",
                 log_quote(limit.hidden, quoted, sizeof quoted));
    }
    log_line(LOG_LEVEL_INFO, "device",
             "kind=cpu kernels=%s arithmetic=%s layout=%s threads=%u memory_available_bytes=%" PRIu64 " memory_limit=%s",
             expertd_kernel_selected_name(), expertd_kernel_arithmetic_name(EXPERTD_DTYPE_BF16),
             expertd_packed_layout_name(expertd_packed_layout_best(EXPERTD_DTYPE_BF16)), options->threads, limit.bytes,
             log_quote(limit.what, quoted, sizeof quoted));
    return OK;
}

// An emulator, or a CPU that computes wrongly: right answers all the same, but slower ones.
static void log_passed_over(void) {
    const char *differs, *name = expertd_kernel_passed_over(&differs);
    if (name) {
        log_line(LOG_LEVEL_WARNING, "kernels_passed_over",
                 "kernels=%s reason=\"its %s differs from the scalar twin on this CPU: %s computes, more slowly\"", name, differs,
                 expertd_kernel_selected_name());
    }
}

// auto never takes kernels whose bits are others, so it says where they would be much faster.
static void log_faster_kernels(const struct options *options) {
    bool usable = false, amx = false;
    const char *name;
    for (size_t i = 0; (name = expertd_kernel_name_at(i, &usable)); i++) {
        amx = amx || (usable && strcmp(name, "amx") == 0);
    }
    if (amx && strcmp(options->kernels, "auto") == 0) {
        log_line(LOG_LEVEL_INFO, "faster_kernels", "kernels=amx reason=%s",
                 "\"--kernels amx multiplies several times as fast where a batch has many tokens; answers then have other bits, "
                 "under numerics_id 1/bf16/cpu_amx, so all replicas must ask for it\"");
    }
}

// One team for the front, and for all shards where there is one memory node; else a team per node beside it.
static FALLIBLE start_teams(const struct options *options, struct loaded *out) {
    struct topology_cpus allowed;
    topology_allowed(&allowed);
    topology_read("", &allowed, &out->topology);
    TRY(expertd_team_create(&(struct expertd_team_options){.threads = options->threads, .spin_us = options->spin_us}, &out->team));
    uint32_t teams = out->devices ? 1 : topology_teams(&out->topology, options->shards);
    log_line(LOG_LEVEL_INFO, "teams", "memory_nodes=%u teams=%u threads=%u", out->topology.count, teams, options->threads);
    struct node_teams_options nodes = {.topology = &out->topology, .threads = options->threads, .spin_us = options->spin_us};
    return teams > 1 ? node_teams_create(&nodes, &out->node_teams) : OK;
}

// What is asked for, or with auto one GPU; where none has shown its kernels right, or one is missing or taken by others, auto is
// the CPU, and the log says why.
static FALLIBLE find_devices(const char *device, struct expertd_devices **out) {
    bool any = strcmp(device, "auto") == 0;
    struct expertd_devices_request request;
    if (strcmp(device, "cpu") == 0) {
        return OK;
    }
    TRY(expertd_devices_parse(any ? "cuda" : device, &request));
    request.unasked = any;
    err_t e = expertd_devices_open(&request, out);
    if (any && err_is(e)) {
        char quoted[EXPERTD_ERR_MESSAGE_MAX + 16];
        log_line(LOG_LEVEL_INFO, "device_auto", "kind=cpu reason=%s", log_quote(expertd_err_message(), quoted, sizeof quoted));
        return OK;
    }
    if (!err_is(e) && (*out)->left > 0) {
        log_line(LOG_LEVEL_INFO, "device_auto",
                 "kind=%s count=%u left=%u reason=\"--device %s takes all: several have run in simulation only\"",
                 (*out)->table->kind, (*out)->count, (*out)->left, request.kind);
    }
    return err_is(e) ? err_context(e, "device %s", device) : OK;
}

// Where the ranks are to be computed; and how many there are: one for each device, or more that share them.
static FALLIBLE open_devices(struct options *options, const char *device, struct loaded *out) {
    TRY(find_devices(device, &out->devices));
    if (!out->devices) {
        return OK;
    }
    out->devices->timeout_ns = (int64_t)options->exchange_timeout_ms * NS_PER_MS; // of each wait, while loading too
    const struct expertd_device_facts *facts = &out->devices->facts;
    char quoted[EXPERTD_DEVICE_NAME_MAX + 16];
    log_line(LOG_LEVEL_INFO, "device", "kind=%s count=%u name=%s arithmetic=%s memory_available_bytes=%" PRIu64,
             out->devices->table->kind, out->devices->count, log_quote(facts->name, quoted, sizeof quoted), facts->arithmetic,
             facts->memory_available);
    if (options->shards == 1) {
        options->shards = out->devices->count;
    }
    if (options->shards < out->devices->count) {
        FAIL(EXPERTD_ERR_CONFIG, "shards is %u, but device %s names %u devices: leave shards out, or give each device one",
             options->shards, options->device, out->devices->count);
    }
    return OK;
}

// Experts go on to the devices as they are packed; the host keeps what is small.
static FALLIBLE make_room_for_weights(const struct options *options, struct loaded *out) {
    struct device_weights_options weights = {.devices = out->devices,
                                             .spare_bytes = options->move_bytes_max,
                                             .max_batch_tokens = options->max_batch_tokens,
                                             .max_top_k = options->max_top_k};
    return out->devices ? device_weights_create(&weights, &out->weights) : OK;
}

static uint64_t add(uint64_t a, uint64_t b) {
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

// What messages may take at most: gRPC's connections with them, those that are being read, those that wait and their answers.
static uint64_t messages_bytes_max(const struct options *options) {
    const struct rpc_options rpc = {.max_message_bytes = options->max_message_bytes};
    const uint64_t queue = add(options->max_queue_bytes, options->max_queue_bytes);
    return add(rpc_transport_bytes(&rpc), add(options->read_slots * options->max_message_bytes, queue)); // both have bounds
}

// They are not reserved, as few ever need as much; but gRPC does not survive an allocation that fails, nor anybody a system that is
// out of memory.
static FALLIBLE warn_of_little_memory(const struct options *options, const struct engine *engine) {
    struct memory_limit limit;
    char need[MEMORY_TEXT_MAX], have[MEMORY_TEXT_MAX], quoted[2 * MEMORY_LIMIT_TEXT_MAX];
    TRY(memory_available(&limit));
    const uint64_t scratch = engine_scratch_untouched(engine), left = limit.bytes > scratch ? limit.bytes - scratch : 0;
    const uint64_t most = messages_bytes_max(options);
    if (most > left) {
        log_line(LOG_LEVEL_WARNING, "memory_short",
                 "messages_bytes_max=%" PRIu64 " left_bytes=%" PRIu64
                 " memory_limit=%s message=\"messages may take %s and %s is left: "
                 "many large ones at once may end the daemon; lower max_message_bytes, max_queue_bytes or read_slots\"",
                 most, left, log_quote(limit.what, quoted, sizeof quoted), memory_text(most, need), memory_text(left, have));
    }
    return OK;
}

static FALLIBLE start_engine(const struct options *options, struct loaded *out) {
    struct engine_options engine = engine_options_of(options, out, &out->model);
    out->limits = engine.limits;
    TRY(engine_create(&engine, &out->engine));
    log_line(LOG_LEVEL_INFO, "engine",
             "shards=%u scratch_bytes=%" PRIu64 " device_bytes=%" PRIu64 " request_memory_bytes=%zu max_batch_tokens=%u",
             out->model.ranks, engine_scratch_bytes(out->engine), engine_device_bytes(out->engine), out->request_memory.bytes,
             options->max_batch_tokens);
    TRY(warn_of_little_memory(options, out->engine));
    // A request may be larger than a batch: it is computed in pieces. One token's choices must fit a batch.
    out->request_limits = layer_limits_for(&out->model, options->max_request_tokens, options->max_top_k);
    if (out->request_limits.max_top_k > out->limits.max_choices) {
        out->request_limits.max_top_k = (uint32_t)out->limits.max_choices;
    }
    out->request_limits.max_choices = (size_t)options->max_request_tokens * out->request_limits.max_top_k; // as callers are told
    return OK;
}

static FALLIBLE start_mover(const struct options *options, struct loaded *out) {
    struct mover_options mover = {.model = &out->model,
                                  .metrics = out->metrics,
                                  .move_bytes_max = options->move_bytes_max,
                                  .weights_bytes_max = options->memory_max,
                                  .engine = out->engine};
    return mover_create(&mover, &out->mover);
}

static FALLIBLE start_worker(const struct options *options, struct serve *serve, const struct loading_listener *listener,
                             struct loaded *out) {
    struct worker_options worker = {
        .model = &out->model,
        .engine = out->engine,
        .limits = {.max_tokens = out->limits.max_tokens,
                   .max_choices = out->limits.max_choices,
                   .max_piece_tokens = options->max_piece_tokens,
                   .max_delay_ns = (int64_t)options->max_queue_delay_us * NS_PER_US},
        .metrics = out->metrics,
        .done = serve_done,
        .batched = serve_batched,
        .context = serve,
        .lost = listener->lost,
        .lost_context = listener->context,
    };
    return worker_start(&worker, &out->worker);
}

// Of this CPU's products: where devices make them, the host has let go of the weights.
static FALLIBLE begin_schedules(const struct options *options, struct loaded *out) {
    if (!out->devices) {
        return schedules_begin(options, &out->model, out->team, &out->schedules);
    }
    if (strcmp(options->tuning, "heuristic") != 0) {
        log_line(LOG_LEVEL_INFO, "tuning", "policy=%s schedules=0 reason=\"devices compute, which have none\"", options->tuning);
    }
    return OK;
}

static FALLIBLE load_all(struct options *options, const char *device, struct serve *serve, const struct loading_listener *listener,
                         struct loaded *out) {
    TRY(open_devices(options, device, out));
    if (out->devices) { // before anything is read: what does not fit is said at once
        TRY(request_memory_pin(out->devices, options->max_queue_bytes, &out->request_memory));
    }
    TRY(start_teams(options, out));
    TRY(make_room_for_weights(options, out));
    TRY(load_model(options, out));
    TRY(begin_schedules(options, out));
    TRY(start_engine(options, out));
    TRY(make_metrics(out));
    TRY(start_mover(options, out));
    return start_worker(options, serve, listener, out);
}

// Whole, or nothing of it. on_devices: were there any, also where it failed.
static FALLIBLE load_on(struct options *options, const char *device, struct serve *serve, const struct loading_listener *listener,
                        struct loaded *out, bool *on_devices) {
    *out = (struct loaded){0};
    err_t e = load_all(options, device, serve, listener, out);
    *on_devices = out->devices != NULL;
    if (err_is(e)) {
        struct err_copy error;
        err_save(e, &error); // taking down must not hide it
        loading_unload(out);
        e = err_restore(&error);
    }
    return e;
}

// With auto nobody asked for GPUs: a model that they have no room for, do not compute, or fail to load, is the CPU's.
FALLIBLE loading_load(struct options *options, struct serve *serve, const struct loading_listener *listener, struct loaded *out) {
    const uint32_t shards = options->shards;
    bool on_devices;
    TRY(log_device(options));
    log_passed_over();
    log_faster_kernels(options);
    bool asked = strcmp(options->device, "auto") != 0, kernels_asked = strcmp(options->kernels, "auto") != 0;
    if (!asked && kernels_asked) {
        log_line(LOG_LEVEL_INFO, "device_auto",
                 "kind=cpu reason=\"--kernels %s names the CPU's: --device cuda takes GPUs all the same\"", options->kernels);
    }
    err_t e = load_on(options, !asked && kernels_asked ? "cpu" : options->device, serve, listener, out, &on_devices);
    bool of_devices = e.code == EXPERTD_ERR_UNAVAILABLE || e.code == EXPERTD_ERR_NOMEM || e.code == EXPERTD_ERR_SHARD_LOST;
    if (asked || !on_devices || !of_devices) {
        return e;
    }
    char quoted[EXPERTD_ERR_MESSAGE_MAX + 16];
    log_line(LOG_LEVEL_WARNING, "device_auto", "kind=cpu reason=%s", log_quote(expertd_err_message(), quoted, sizeof quoted));
    options->shards = shards; // what the devices made of it
    return load_on(options, "cpu", serve, listener, out, &on_devices);
}

void loading_unload(struct loaded *loaded) {
    worker_stop(loaded->worker);
    mover_destroy(loaded->mover);
    metrics_destroy(loaded->metrics);
    engine_destroy(loaded->engine);
    request_memory_unpin(&loaded->request_memory);
    device_weights_destroy(loaded->weights);
    schedules_end(loaded->schedules);
    model_deinit(&loaded->model);
    expertd_devices_close(loaded->devices);
    node_teams_destroy(loaded->node_teams);
    expertd_team_destroy(loaded->team);
    *loaded = (struct loaded){0};
}
