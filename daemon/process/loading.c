#include "daemon/process/loading.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/threads/thread_priority.h"
#include "daemon/grpc/rpc.h"
#include "daemon/log/log.h"
#include "daemon/process/notify.h"
#include "daemon/process/placement_file.h"
#include "daemon/process/schedules.h"
#include "expert/engine/engine.h"
#include "expert/loader/model_load.h"
#include "expert/model/memory.h"
#include "expertd/kernels/kernel_select.h"
#include "shard/remote/remote_links.h"

enum { PROGRESS_PERIOD_S = 1, EXTEND_S = 30, SHARDS_LOG_PERIOD_S = 5 };

FALLIBLE loading_select_kernels(const struct options *options) {
    const bool portable = strcmp(options->kernels, "auto") == 0 && strcmp(options->numerics, "portable") == 0;
    return expertd_kernel_select(portable ? "portable" : options->kernels);
}

void loading_choose_priorities(void) {
    const enum thread_urgency urgency = thread_urgency_allowed();
    if (urgency == THREAD_ORDINARY) {
        thread_relax();
    }
    log_line(LOG_LEVEL_INFO, "priorities", "heartbeats=%s compute=%s", thread_urgency_name(urgency),
             urgency == THREAD_ORDINARY ? "relaxed" : "ordinary");
}

void loading_show_progress(void *context, uint64_t done_bytes, uint64_t all_bytes) {
    struct loading_progress *progress = context;
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

struct balanced_placement {
    const struct options *options;
    struct placement_file counts;
};

// The callback of model_load for --placement balanced.
static err_t place_balanced(void *context, const struct layer_params *params, uint32_t ranks, struct placement **out) {
    struct balanced_placement *placing = context;
    const struct options *options = placing->options;
    struct placement_balance balance = {.num_experts = params->num_experts, .ranks = ranks, .replicas = options->replicas};
    TRY_IN(placement_file_find(&placing->counts, params->layer, params->num_experts, &balance.rows), "%s",
           options->placement_counts);
    return placement_balanced(&balance, 1, out);
}

static void warn_suspicious(const char *event, const struct model_suspicious *suspicious, const char *message) {
    char tensor[2 * sizeof suspicious->tensor], file[2 * sizeof suspicious->file];
    if (suspicious->count > 0) {
        log_line(LOG_LEVEL_WARNING, event, "count=%" PRIu64 " tensor=%s file=%s message=\"%s\"", suspicious->count,
                 log_quote(suspicious->tensor, tensor, sizeof tensor), log_quote(suspicious->file, file, sizeof file), message);
    }
}

static void show_notes(const struct checkpoint_notes *notes) {
    char quoted[2 * CHECKPOINT_NOTE_TEXT_MAX];
    for (size_t i = 0; notes && i < notes->count; i++) {
        const struct checkpoint_note *note = &notes->notes[i];
        log_line(LOG_LEVEL_WARNING, "checkpoint_note", "kind=%s count=%" PRIu64 " message=%s", note->kind, note->count,
                 log_quote(note->text, quoted, sizeof quoted));
    }
}

static void show_widened(const struct model *model) {
    for (size_t i = 0; i < model->widened.count; i++) {
        const struct widened_format *format = &model->widened.formats[i];
        char layers[WIDENED_TEXT_MAX];
        log_line(LOG_LEVEL_WARNING, "widened",
                 "format=%s to=%s layers=%s matrices=%" PRIu64 " stored_bytes=%" PRIu64 " bytes=%" PRIu64
                 " message=\"%s: the weights are held in %s, as with --widen; --device cpu computes the codes\"",
                 format->name, expertd_dtype_name(model->compute_dtype), model_widened_layers(model, i, layers), format->matrices,
                 format->stored_bytes, format->bytes, widened_reason(format), expertd_dtype_name(model->compute_dtype));
    }
}

static void warn_odd_weights(const struct model *model) {
    warn_suspicious(
        "scales_not_finite", &model->suspicious_scales,
        "stored scales are NaN or infinite, so results of their experts will be too; this is the first such tensor: check the "
        "file for damage");
    warn_suspicious(
        "matrices_of_zeros", &model->zero_matrices,
        "all bytes of these matrices are 0, and the answers are computed with them; this is the first such tensor: unless "
        "the model has experts of zeros, the file's space was reserved and its download did not end; compare the file's "
        "hash, or download it again (--verify names all such tensors)");
    warn_suspicious(
        "zero_points_of_16", &model->zeros_of_16,
        "4-bit zero points are stored as 15 and are read as 16, as auto-gptq does; GPTQModel carries the added 1 into the next "
        "zero point, so a file made or tested with GPTQModel gives other results here");
}

// NULL without shards in other processes. Before there is a front, links that only say that there will be some, for sizes.
static const struct remote_links *links_of(const struct options *options, const struct loaded *loaded) {
    static const struct remote_links NONE_YET = {0};
    return !options->shard_hosts ? NULL : loaded->front ? front_links(loaded->front) : &NONE_YET;
}

static struct engine_options engine_options_of(const struct options *options, const struct loaded *loaded,
                                               const struct model *model) {
    return (struct engine_options){.model = model,
                                   .limits = layer_limits_for(model, options->max_batch_tokens, options->max_top_k),
                                   .team = loaded->team,
                                   .node_teams = loaded->node_teams,
                                   .devices = loaded->devices,
                                   .weights = loaded->weights,
                                   .shared_memory = {loaded->request_memory.memory, loaded->request_memory.bytes},
                                   .exchange_timeout_ns = (int64_t)options->exchange_timeout_ms * NS_PER_MS,
                                   .links = links_of(options, loaded),
                                   .local_ranks = options->shards};
}

// The scratch of the engine that start_engine will create.
uint64_t loading_scratch_bytes(void *context, const struct model *model) {
    const struct loading_scratch *scratch = context;
    struct engine_options engine = engine_options_of(scratch->options, scratch->loaded, model);
    return engine_scratch_needed(&engine);
}

struct model_options loading_model_options(const struct options *options, const struct loaded *loaded) {
    return (struct model_options){
        .model = options->model,
        .hf_cache = options->hf_cache,
        .compute_dtype = options->compute_dtype,
        .widen = options->widen,
        .quantise = strcmp(options->quantize, "none") == 0 ? NULL : options->quantize,
        .ranks = options->shard_hosts ? front_ranks(options) : options->shards,
        .have_layers = options->have_layers,
        .first_layer = options->first_layer,
        .last_layer = options->last_layer,
        .memory_bytes_max = options->memory_max,
        .topology = &loaded->topology,
        .team = loaded->team,
        .for_devices = loaded->devices != NULL,
        .arithmetic = loaded->devices ? loaded->devices->facts.arithmetic : NULL,
        .arithmetic_f32 = loaded->devices ? loaded->devices->facts.arithmetic_f32 : NULL,
    };
}

// Without the routed experts, which the front's shards load.
static FALLIBLE open_model(struct model_options *options, struct loaded *out) {
    options->parts = MODEL_WITHOUT_EXPERTS;
    options->progress = NULL; // its context does not live as long as the store
    return expert_store_open(options, &out->model, &out->store);
}

static FALLIBLE load_model(const struct options *options, struct loaded *out) {
    struct balanced_placement placing = {.options = options};
    struct loading_scratch scratch = {options, out};
    struct loading_progress progress = {.started_ns = clock_now_ns(), .last_ns = clock_now_ns()};
    struct model_sink sink = {0};
    if (out->weights) {
        sink = device_weights_sink(out->weights);
    }
    struct model_options model = loading_model_options(options, out);
    model.scratch_bytes = loading_scratch_bytes;
    model.scratch_context = &scratch;
    model.sink = out->weights ? &sink : NULL;
    model.progress = loading_show_progress;
    model.progress_context = &progress;
    err_t e = OK;
    if (strcmp(options->placement, "balanced") == 0) {
        model.place = place_balanced;
        model.place_context = &placing;
        e = placement_file_read(options->placement_counts, &placing.counts);
    }
    if (!err_is(e)) {
        e = options->shard_hosts ? open_model(&model, out) : model_load(&model, &out->model);
    }
    placement_file_deinit(&placing.counts);
    TRY(e);
    show_notes(out->model.notes);
    show_widened(&out->model);
    warn_odd_weights(&out->model);
    char quoted[2 * EXPERTD_ERR_MESSAGE_MAX], formats[2 * QUANTISATION_NAME_MAX];
    log_line(LOG_LEVEL_INFO, "loaded",
             "model=%s architecture=%s layers=%zu quantisation=%s shards=%u numerics_id=%s weights_bytes=%zu seconds=%.2f",
             log_quote(out->model.name, quoted, sizeof quoted), out->model.model_type, out->model.num_layers,
             log_quote(model_quantisation(&out->model), formats, sizeof formats), options->shards, out->model.numerics_id,
             (size_t)model_weights_bytes(&out->model), (double)(clock_now_ns() - progress.started_ns) / NS_PER_S);
    return OK;
}

FALLIBLE loading_make_metrics(struct loaded *out) {
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

// Logs the CPU, the memory and the kernels before anything is loaded.
static FALLIBLE log_device(const struct options *options) {
    struct memory_limit limit;
    TRY(memory_available(&limit));
    char quoted[2 * MEMORY_LIMIT_TEXT_MAX];
    if (limit.hidden[0]) {
        log_line(LOG_LEVEL_WARNING, "memory_limit_hidden",
                 "file=%s message=\"the file cannot be read, so the memory limit is unknown and ignored: set --memory-max\"",
                 log_quote(limit.hidden, quoted, sizeof quoted));
    }
    log_line(LOG_LEVEL_INFO, "device",
             "kind=cpu kernels=%s arithmetic=%s layout=%s threads=%u memory_available_bytes=%" PRIu64 " memory_limit=%s",
             expertd_kernel_selected_name(), expertd_kernel_arithmetic_name(EXPERTD_DTYPE_BF16),
             expertd_packed_layout_name(expertd_packed_layout_best(EXPERTD_DTYPE_BF16)), options->threads, limit.bytes,
             log_quote(limit.what, quoted, sizeof quoted));
    return OK;
}

// An instruction set failed its self-check (an emulator, or a CPU that computes wrongly). Results are right, but slower.
static void log_passed_over(void) {
    const char *differs, *name = expertd_kernel_passed_over(&differs);
    if (name) {
        log_line(LOG_LEVEL_WARNING, "kernels_passed_over",
                 "kernels=%s reason=\"its %s differs from the scalar reference on this CPU: %s is used instead, more slowly\"",
                 name, differs, expertd_kernel_selected_name());
    }
}

FALLIBLE loading_log_cpu(const struct options *options) {
    TRY(log_device(options));
    log_passed_over();
    return OK;
}

// Creates one team for all shards. With several memory nodes and shards, creates a team per node in addition.
FALLIBLE loading_start_teams(const struct options *options, struct loaded *out) {
    struct topology_cpus allowed;
    topology_allowed(&allowed);
    topology_read("", &allowed, &out->topology);
    TRY(expertd_team_create(&(struct expertd_team_options){.threads = options->threads, .spin_us = options->spin_us}, &out->team));
    uint32_t teams = out->devices ? 1 : topology_teams(&out->topology, options->shards);
    log_line(LOG_LEVEL_INFO, "teams", "memory_nodes=%u teams=%u threads=%u", out->topology.count, teams, options->threads);
    struct node_teams_options nodes = {.topology = &out->topology, .threads = options->threads, .spin_us = options->spin_us};
    return teams > 1 ? node_teams_create(&nodes, &out->node_teams) : OK;
}

// Opens the requested devices, or one GPU for auto. If there is no free GPU of a tested kind, auto uses the CPU (*out stays NULL)
// and logs the reason.
static FALLIBLE find_devices(const char *device, struct expertd_devices **out) {
    bool is_auto = strcmp(device, "auto") == 0;
    struct expertd_devices_request request;
    if (strcmp(device, "cpu") == 0) {
        return OK;
    }
    TRY(expertd_devices_parse(is_auto ? "cuda" : device, &request));
    request.automatic = is_auto;
    err_t e = expertd_devices_open(&request, out);
    if (is_auto && err_is(e)) {
        char quoted[EXPERTD_ERR_MESSAGE_MAX + 16];
        log_line(LOG_LEVEL_INFO, "device_auto", "kind=cpu reason=%s", log_quote(expertd_err_message(), quoted, sizeof quoted));
        return OK;
    }
    if (!err_is(e) && (*out)->unopened > 0) {
        log_line(LOG_LEVEL_INFO, "device_auto",
                 "kind=%s count=%u left=%u reason=\"--device %s uses all; several at once have been tested in simulation only\"",
                 (*out)->table->kind, (*out)->count, (*out)->unopened, request.kind);
    }
    return err_is(e) ? err_context(e, "device %s", device) : OK;
}

// Do the options ask for the CPU's arithmetic, or for something that only the CPU does?
static bool asks_for_the_cpu(const struct options *options) {
    return strcmp(options->kernels, "auto") != 0 || strcmp(options->numerics, "portable") == 0 || options->shard_hosts;
}

static void log_why_cpu(const struct options *options) {
    if (strcmp(options->kernels, "auto") != 0) {
        log_line(LOG_LEVEL_INFO, "device_auto",
                 "kind=cpu reason=\"--kernels %s selects kernels of the CPU; --device cuda would use GPUs regardless\"",
                 options->kernels);
    } else if (options->shard_hosts) {
        log_line(LOG_LEVEL_INFO, "device_auto", "kind=cpu reason=\"shards in other processes compute on the CPU in this version\"");
    } else {
        log_line(LOG_LEVEL_INFO, "device_auto",
                 "kind=cpu reason=\"--numerics portable asks for the bits that all CPUs can compute, which GPUs do not give\"");
    }
}

const char *loading_device(const struct options *options) {
    return strcmp(options->device, "auto") == 0 && asks_for_the_cpu(options) ? "cpu" : options->device;
}

FALLIBLE loading_open_devices(struct options *options, const char *device, struct loaded *out) {
    TRY(find_devices(device, &out->devices));
    if (!out->devices) {
        return OK;
    }
    out->devices->timeout_ns = (int64_t)options->exchange_timeout_ms * NS_PER_MS; // of each wait, also while loading
    const struct expertd_device_facts *facts = &out->devices->facts;
    char quoted[EXPERTD_DEVICE_NAME_MAX + 16];
    log_line(LOG_LEVEL_INFO, "device", "kind=%s count=%u name=%s arithmetic=%s memory_available_bytes=%" PRIu64,
             out->devices->table->kind, out->devices->count, log_quote(facts->name, quoted, sizeof quoted), facts->arithmetic,
             facts->memory_available);
    if (options->shards == 1) {
        options->shards = out->devices->count;
    }
    if (options->shards < out->devices->count) {
        FAIL(EXPERTD_ERR_CONFIG,
             "shards is %u, but device %s has %u devices: remove shards, or set it to at least the number of devices",
             options->shards, options->device, out->devices->count);
    }
    return OK;
}

struct device_weights_options loading_device_weights_options(const struct options *options, struct expertd_devices *devices) {
    return (struct device_weights_options){.devices = devices,
                                           .spare_bytes = options->move_bytes_max,
                                           .max_batch_tokens = options->max_batch_tokens,
                                           .max_top_k = options->max_top_k};
}

// model_load then reserves the device memory, and copies each expert to its device after packing it.
static FALLIBLE create_device_weights(const struct options *options, struct loaded *out) {
    struct device_weights_options weights = loading_device_weights_options(options, out->devices);
    return out->devices ? device_weights_create(&weights, &out->weights) : OK;
}

static uint64_t saturating_add(uint64_t a, uint64_t b) {
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

// The most memory that messages can use: gRPC's connections, messages being received, and queued requests with their answers.
static uint64_t messages_bytes_max(const struct options *options) {
    const struct rpc_options rpc = {.max_message_bytes = options->max_message_bytes};
    const uint64_t queue = saturating_add(options->max_queue_bytes, options->max_queue_bytes);
    const uint64_t received = options->read_slots * options->max_message_bytes; // the greatest values do not overflow
    return saturating_add(rpc_transport_bytes(&rpc), saturating_add(received, queue));
}

// Memory for messages is not reserved, because few deployments need all of it. But gRPC aborts when an allocation fails.
static FALLIBLE warn_if_memory_short(const struct options *options, const struct engine *engine) {
    struct memory_limit limit;
    char need[MEMORY_TEXT_MAX], have[MEMORY_TEXT_MAX], quoted[2 * MEMORY_LIMIT_TEXT_MAX];
    TRY(memory_available(&limit));
    const uint64_t scratch = engine_scratch_untouched(engine), left = limit.bytes > scratch ? limit.bytes - scratch : 0;
    const uint64_t most = messages_bytes_max(options);
    if (most > left) {
        log_line(
            LOG_LEVEL_WARNING, "memory_short",
            "messages_bytes_max=%" PRIu64 " left_bytes=%" PRIu64 " memory_limit=%s message=\"messages may take %s and %s is left: "
            "many large ones at once could exhaust it and end the daemon; lower max_message_bytes, max_queue_bytes or read_slots\"",
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
             options->shards, engine_scratch_bytes(out->engine), engine_device_bytes(out->engine), out->request_memory.bytes,
             options->max_batch_tokens);
    TRY(warn_if_memory_short(options, out->engine));
    // A request may have more tokens than a batch, because it is computed in pieces. The routes of one token must fit into a batch.
    out->request_limits = layer_limits_for(&out->model, options->max_request_tokens, options->max_top_k);
    if (out->request_limits.max_top_k > out->limits.max_choices) {
        out->request_limits.max_top_k = (uint32_t)out->limits.max_choices;
    }
    out->request_limits.max_choices = (size_t)options->max_request_tokens * out->request_limits.max_top_k; // as Describe reports
    return OK;
}

static FALLIBLE start_mover(const struct options *options, struct loaded *out) {
    struct mover_options mover = {.model = &out->model,
                                  .metrics = out->metrics,
                                  .move_bytes_max = options->move_bytes_max,
                                  .weights_bytes_max = options->memory_max,
                                  .engine = out->engine,
                                  .is_read_only = out->front != NULL};
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

// Schedules exist for products on the CPU only.
static FALLIBLE begin_schedules(const struct options *options, struct loaded *out) {
    if (!out->devices) {
        return schedules_begin(options, &out->model, out->team, &out->schedules);
    }
    if (strcmp(options->tuning, "heuristic") != 0) {
        log_line(LOG_LEVEL_INFO, "tuning", "policy=%s schedules=0 reason=\"devices have no schedules to tune\"", options->tuning);
    }
    return OK;
}

static FALLIBLE create_front(const struct options *options, struct loaded *out) {
    if (!options->shard_hosts) {
        return OK;
    }
    struct front_options front = {.options = options,
                                  .model = &out->model,
                                  .store = out->store,
                                  .topology = &out->topology,
                                  .limits = layer_limits_for(&out->model, options->max_batch_tokens, options->max_top_k),
                                  .loaders = options->threads,
                                  .tls = out->tls};
    return front_create(&front, &out->front);
}

// Waits until each expert is ready on a shard, however long that takes: shards may start later than their front.
static FALLIBLE await_shards(struct loaded *out) {
    if (!out->front) {
        return OK;
    }
    const int64_t begun_ns = clock_now_ns();
    TRY(front_start(out->front));
    shard_view_set(out->shard_view, out->front);
    for (unsigned waited_s = 0; !front_wait(out->front, 1000); waited_s++) {
        char text[FRONT_TEXT_MAX], quoted[2 * FRONT_TEXT_MAX];
        front_waits_for(out->front, text);
        notify_extend_timeout(EXTEND_S);
        notify_status("waiting for shards: %s", text);
        if (waited_s % SHARDS_LOG_PERIOD_S == 0) {
            log_line(LOG_LEVEL_INFO, "waiting_for_shards", "message=%s", log_quote(text, quoted, sizeof quoted));
        }
    }
    log_line(LOG_LEVEL_INFO, "shards_ready", "seconds=%.3f", (double)(clock_now_ns() - begun_ns) / NS_PER_S);
    front_use_metrics(out->front, out->metrics);
    return OK;
}

static FALLIBLE load_all(struct options *options, const char *device, struct serve *serve, const struct loading_listener *listener,
                         struct loaded *out) {
    TRY(loading_open_devices(options, device, out));
    if (out->devices) { // before the model is read, so that a lack of memory is reported at once
        TRY(request_memory_pin(out->devices, options->max_queue_bytes, &out->request_memory));
    }
    if (options->shard_hosts) {
        loading_choose_priorities();
    }
    TRY(loading_start_teams(options, out));
    TRY(create_device_weights(options, out));
    TRY(load_model(options, out));
    TRY(begin_schedules(options, out));
    TRY(create_front(options, out));
    TRY(start_engine(options, out));
    TRY(loading_make_metrics(out));
    TRY(start_mover(options, out));
    TRY(await_shards(out));
    return start_worker(options, serve, listener, out);
}

// Loads on `device`; unloads everything on error. *on_devices: devices were used, also if loading failed.
static FALLIBLE load_on(struct options *options, const char *device, struct serve *serve, const struct loading_listener *listener,
                        struct loaded *out, bool *on_devices) {
    *out = (struct loaded){.tls = listener->tls, .shard_view = listener->shard_view};
    err_t e = load_all(options, device, serve, listener, out);
    *on_devices = out->devices != NULL;
    if (err_is(e)) {
        struct err_copy error;
        err_save(e, &error); // unloading may record another error
        loading_unload(out);
        e = err_restore(&error);
    }
    return e;
}

// With auto, a model that does not fit on the GPU, is not supported there or fails to load there is loaded on the CPU.
FALLIBLE loading_load(struct options *options, struct serve *serve, const struct loading_listener *listener, struct loaded *out) {
    const uint32_t shards = options->shards;
    bool on_devices;
    TRY(loading_log_cpu(options));
    const bool auto_device = strcmp(options->device, "auto") == 0;
    if (auto_device && asks_for_the_cpu(options)) {
        log_why_cpu(options);
    }
    err_t e = load_on(options, loading_device(options), serve, listener, out, &on_devices);
    bool device_failed = e.code == EXPERTD_ERR_UNAVAILABLE || e.code == EXPERTD_ERR_NOMEM || e.code == EXPERTD_ERR_SHARD_LOST;
    if (!auto_device || !on_devices || !device_failed) {
        return e;
    }
    char quoted[EXPERTD_ERR_MESSAGE_MAX + 16];
    log_line(LOG_LEVEL_WARNING, "device_auto", "kind=cpu reason=%s", log_quote(expertd_err_message(), quoted, sizeof quoted));
    options->shards = shards; // loading_open_devices may have changed it
    return load_on(options, "cpu", serve, listener, out, &on_devices);
}

void loading_unload(struct loaded *loaded) {
    worker_stop(loaded->worker);
    if (loaded->front) {
        shard_view_set(loaded->shard_view, NULL);
        front_stop(loaded->front);
    }
    mover_destroy(loaded->mover);
    metrics_destroy(loaded->metrics);
    engine_destroy(loaded->engine);
    front_destroy(loaded->front);
    request_memory_unpin(&loaded->request_memory);
    device_weights_destroy(loaded->weights);
    schedules_end(loaded->schedules);
    holdings_destroy(loaded->holdings);
    if (loaded->store) {
        expert_store_close(loaded->store);
    } else {
        model_deinit(&loaded->model);
    }
    expertd_devices_close(loaded->devices);
    node_teams_destroy(loaded->node_teams);
    expertd_team_destroy(loaded->team);
    *loaded = (struct loaded){0};
}
