#include "daemon/status/status.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "daemon/http/html_text.h"
#include "daemon/listen/tcp_listener.h"
#include "daemon/listen/unix_listener.h"
#include "daemon/shard_view/shard_html.h"
#include "daemon/shard_view/shard_json.h"
#include "daemon/shard_view/shard_metrics.h"
#include "daemon/status/own_process.h"
#include "daemon/status/status_shard.h"
#include "daemon/tls/tls_store.h"
#include "expert/engine/engine.h"

enum { REFUSALS = REFUSED_COUNT + 2 };

static struct acceptor_counts connections_of(const struct listeners *listeners) {
    struct acceptor_counts sum = {0};
    for (size_t i = 0; i < OPTIONS_LISTEN_MAX; i++) {
        struct acceptor_counts local = unix_listener_counts(listeners->on_unix[i]),
                               remote = tcp_listener_counts(listeners->on_tcp[i]);
        sum.open += local.open + remote.open;
        sum.turned_away += local.turned_away + remote.turned_away;
    }
    return sum;
}

// Collects the counts of refusals from the modules that refuse: admission, transport and listeners.
static void collect_refused(const struct status *status, const struct serve_counts *counts, struct metrics_count out[REFUSALS]) {
    for (unsigned i = 0; i < REFUSED_COUNT; i++) {
        out[i] = (struct metrics_count){admission_refusal_name((enum admission_refusal)i), counts->refused[i]};
    }
    out[REFUSED_COUNT] = (struct metrics_count){"calls", rpc_calls_refused(status->rpc)};
    out[REFUSED_COUNT + 1] = (struct metrics_count){"connections", connections_of(status->listeners).turned_away};
}

uint64_t status_open_connections(const struct status *status) {
    return connections_of(status->listeners).open;
}

static uint64_t rebuilds_of(const struct status *status) {
    struct engine_exchange exchange;
    if (!status->engine) {
        return 0; // a shard
    }
    engine_exchange_state(status->engine, &exchange);
    return exchange.rebuilds;
}

static bool is_ready(const struct status *status, const struct serve_counts *counts) {
    return counts->ready && !counts->draining && !status->lost;
}

static uint64_t weights_bytes_of(const struct status *status) {
    return model_weights_bytes(status->model) + (status->shard ? status_shard_bytes(status->shard) : 0);
}

static void add_certificate(const struct status *status, struct metrics_gauges *out) {
    if (status->tls) {
        const struct tls_snapshot *snapshot = tls_store_take(status->tls);
        out->has_certificate = snapshot->texts.cert != NULL;
        out->certificate_left_s = snapshot->texts.expires_s - (int64_t)time(NULL);
        tls_store_release(status->tls, snapshot);
    }
}

static struct metrics_gauges gauges_of(const struct status *status, const struct serve_counts *counts) {
    struct own_process_figures own = own_process_read(status->own_process);
    struct metrics_gauges gauges = {
        .ready = is_ready(status, counts),
        .draining = counts->draining,
        .open_calls = counts->open_calls,
        .open_connections = connections_of(status->listeners).open,
        .queued_requests = counts->queued,
        .queued_bytes = counts->queued_bytes,
        .weights_bytes = counts->ready ? weights_bytes_of(status) : 0,
        .scratch_bytes = counts->ready ? status->scratch_bytes : 0,
        .resident_bytes = own.resident_bytes,
        .open_fds = own.open_fds,
        .threads = own.threads,
        .regions = counts->regions,
        .region_bytes = counts->region_bytes,
        .open_streams = counts->streams,
        .read_slots = counts->read_slots,
        .exchange_rebuilds = counts->ready ? rebuilds_of(status) : 0,
    };
    add_certificate(status, &gauges);
    return gauges;
}

// False: there is no front, or none yet. The caller releases *out.
static bool list_shards(const struct status *status, struct shard_listing *out) {
    *out = (struct shard_listing){0};
    return status->shards && !err_is(shard_view_list(status->shards, out));
}

static void put_shard_metrics(const struct status *status, bool is_ready, FILE *body) {
    struct shard_listing listing;
    struct engine_exchange exchange;
    if (list_shards(status, &listing)) {
        if (is_ready) {
            engine_exchange_state(status->engine, &exchange);
        }
        shard_metrics_put(&listing, is_ready ? &exchange.remote : NULL, body);
    }
    shard_listing_deinit(&listing);
}

static struct http_answer metrics_page(const struct status *status, FILE *body) {
    struct serve_counts counts = serve_counts(status->serve);
    struct metrics_gauges gauges = gauges_of(status, &counts);
    struct metrics_count refused[REFUSALS];
    collect_refused(status, &counts, refused);
    gauges.refused = refused;
    gauges.num_refused = REFUSALS;
    if (counts.ready) {
        metrics_render(status->metrics, &gauges, body);
        if (status->shard) {
            status_shard_metrics(status->shard, body);
        }
    } else {
        fprintf(body, "# HELP expertd_ready Whether requests are answered.\n# TYPE expertd_ready gauge\nexpertd_ready 0\n");
    }
    put_shard_metrics(status, counts.ready, body);
    return (struct http_answer){200, "text/plain; version=0.0.4; charset=utf-8"};
}

static const char *state_of(const struct status *status, const struct serve_counts *counts) {
    return counts->draining ? "draining" : status->lost ? "device lost" : counts->ready ? "ready" : "loading";
}

static struct http_answer ready_page(const struct status *status, FILE *body) {
    struct serve_counts counts = serve_counts(status->serve);
    fprintf(body, "%s\n", state_of(status, &counts));
    return (struct http_answer){is_ready(status, &counts) ? 200 : 503, "text/plain; charset=utf-8"};
}

// How the checkpoint stores the layer's experts: "mxfp4", "BF16".
static const char *weights_of(const struct model_layer *layer) {
    return layer->quantisation[0] ? layer->quantisation : expertd_dtype_name(layer->weight_dtype);
}

static json_t *device_json(const struct status *status) {
    const struct expertd_device_facts *facts = &status->devices->facts;
    const struct widened *widened = &status->model->widened;
    return json_pack("{s:s, s:s, s:I, s:s, s:I, s:I, s:I, s:I}", "kind", status->devices->table->kind, "name", facts->name, "count",
                     (json_int_t)status->devices->count, "arithmetic", facts->arithmetic, "memory_bytes",
                     (json_int_t)facts->memory_bytes, "reserved_bytes", (json_int_t)engine_device_bytes(status->engine),
                     "widened_bytes", (json_int_t)widened->bytes, "widened_stored_bytes", (json_int_t)widened->stored_bytes);
}

// The formats that the device holds widened; "": none.
static const char *widened_of(const struct status *status, const struct model_layer *layer, char text[WIDENED_TEXT_MAX]) {
    return widened_names_text(&status->model->widened, layer->widened, text);
}

static json_t *layers_json(const struct status *status) {
    json_t *layers = json_array();
    for (size_t i = 0; i < status->model->num_layers; i++) {
        const struct model_layer *layer = &status->model->layers[i];
        char id[32], variants[ENGINE_VARIANTS_TEXT_MAX];
        snprintf(id, sizeof id, "%016" PRIx64, layer->weights_id);
        json_t *json =
            json_pack("{s:I, s:s, s:I, s:I, s:I, s:s, s:s, s:f}", "layer", (json_int_t)layer->params.layer, "prefix", layer->prefix,
                      "hidden_size", (json_int_t)layer->params.hidden_size, "num_experts", (json_int_t)layer->params.num_experts,
                      "top_k", (json_int_t)layer->params.routing.top_k, "weights_id", id, "weights", weights_of(layer),
                      "expert_load_max_over_mean", metrics_expert_imbalance(status->metrics, i));
        if (layer->shared_quantisation[0]) {
            json_object_set_new(json, "shared_weights", json_string(layer->shared_quantisation));
        }
        if (status->shard) {
            json_object_set_new(json, "experts_held", json_integer(shard_held_of(status->shard, i)));
        }
        if (status->devices) {
            char widened[WIDENED_TEXT_MAX];
            json_object_set_new(json, "device_kernels", json_string(engine_layer_variants(status->engine, i, variants)));
            json_object_set_new(json, "widened", json_string(widened_of(status, layer, widened)));
        }
        json_array_append_new(layers, json);
    }
    return layers;
}

static json_t *refused_json(const struct status *status, const struct serve_counts *counts) {
    struct metrics_count refused[REFUSALS];
    collect_refused(status, counts, refused);
    json_t *object = json_object();
    for (size_t i = 0; i < REFUSALS; i++) {
        json_object_set_new(object, refused[i].reason, json_integer((json_int_t)refused[i].count));
    }
    return object;
}

static json_t *known_json(uint64_t figure) {
    return figure == METRICS_UNKNOWN ? json_null() : json_integer((json_int_t)figure);
}

// model.ranks includes the front's empty slots.
static void add_shards(const struct status *status, bool is_ready, json_t *root) {
    struct shard_listing listing;
    bool is_listed = list_shards(status, &listing);
    if (is_listed) {
        shard_json_add(&listing, root);
    }
    if (is_ready) {
        json_object_set_new(root, "shards", json_integer(is_listed ? listing.summary.shards : status->model->ranks));
    }
    shard_listing_deinit(&listing);
}

static json_t *status_json(const struct status *status) {
    struct serve_counts counts = serve_counts(status->serve);
    struct metrics_gauges gauges = gauges_of(status, &counts);
    json_t *root = json_pack("{s:s, s:s, s:f, s:s, s:I, s:I, s:I, s:o, s:I, s:I, s:I}", "state", state_of(status, &counts),
                             "version", EXPERTD_VERSION, "uptime_s", (double)(clock_now_ns() - status->started_ns) / NS_PER_S,
                             "model_asked", status->model_asked, "open_calls", (json_int_t)counts.open_calls, "queued_requests",
                             (json_int_t)counts.queued, "queued_bytes", (json_int_t)counts.queued_bytes, "resident_bytes",
                             known_json(gauges.resident_bytes), "weights_bytes", (json_int_t)gauges.weights_bytes, "scratch_bytes",
                             (json_int_t)gauges.scratch_bytes, "threads", (json_int_t)status->threads);
    if (root) {
        json_object_set_new(root, "refused", refused_json(status, &counts));
        json_object_set_new(root, "pushback_ms", json_integer(counts.pushback_ms));
    }
    if (root) {
        add_shards(status, counts.ready, root);
    }
    if (root && counts.ready) {
        struct metrics_totals totals = metrics_totals(status->metrics);
        json_object_set_new(root, "model", json_string(status->model->name));
        json_object_set_new(root, "architecture", json_string(status->model->model_type));
        json_object_set_new(root, "numerics_id", json_string(status->model->numerics_id));
        json_object_set_new(root, "kernels", json_string(status->backend));
        json_object_set_new(root, "role", json_string(status->shard ? "shard" : "front"));
        json_object_set_new(root, "calls_ok", json_integer((json_int_t)totals.calls_ok));
        json_object_set_new(root, "calls_failed", json_integer((json_int_t)totals.calls_failed));
        json_object_set_new(root, "tokens", json_integer((json_int_t)totals.tokens));
        json_object_set_new(root, "batches", json_integer((json_int_t)totals.batches));
        if (status->devices) {
            json_object_set_new(root, "device", device_json(status));
        }
        json_object_set_new(root, "layers", layers_json(status));
        if (status->shard) {
            json_object_set_new(root, "shard", status_shard_json(status->shard));
        }
    }
    return root;
}

static struct http_answer api_page(const struct status *status, FILE *body) {
    json_t *root = status_json(status);
    if (!root || json_dumpf(root, body, JSON_INDENT(2)) != 0) {
        json_decref(root);
        return (struct http_answer){500, "text/plain; charset=utf-8"};
    }
    fputc('\n', body);
    json_decref(root);
    return (struct http_answer){200, "application/json"};
}

static void put_layers(const struct status *status, FILE *body) {
    fputs("<table><tr><th>layer<th>experts<th>top k<th>hidden<th>weights<th>busiest expert / mean", body);
    fputs(status->shard     ? "<th>held here</tr>"
          : status->devices ? "<th>widened on the device<th>kernels on the device</tr>"
                            : "</tr>",
          body);
    for (size_t i = 0; i < status->model->num_layers; i++) {
        const struct model_layer *layer = &status->model->layers[i];
        const struct layer_params *p = &layer->params;
        char variants[ENGINE_VARIANTS_TEXT_MAX];
        fprintf(body, "<tr><td>%u<td>%u<td>%u<td>%u<td>", p->layer, p->num_experts, p->routing.top_k, p->hidden_size);
        html_put_text(weights_of(layer), body);
        if (layer->shared_quantisation[0]) {
            fputs(", shared ", body);
            html_put_text(layer->shared_quantisation, body);
        }
        fprintf(body, "<td>%.2f", metrics_expert_imbalance(status->metrics, i));
        if (status->shard) {
            fprintf(body, "<td>%u", shard_held_of(status->shard, i));
        }
        if (status->devices) {
            char widened[WIDENED_TEXT_MAX];
            fprintf(body, "<td>%s<td>%s", widened_of(status, layer, widened), engine_layer_variants(status->engine, i, variants));
        }
        fputs("</tr>", body);
    }
    fputs("</table>", body);
}

static void put_devices(const struct status *status, FILE *body) {
    fprintf(body, "<p>Computed on %u %s: ", status->devices->count, status->devices->count == 1 ? "device" : "devices");
    html_put_text(status->devices->facts.name, body);
    fprintf(body, ", %" PRIu64 " bytes of device memory reserved.</p>", engine_device_bytes(status->engine));
}

static void put_shards(const struct status *status, FILE *body) {
    struct shard_listing listing;
    if (list_shards(status, &listing)) {
        shard_html_put(&listing, body);
    }
    shard_listing_deinit(&listing);
}

static struct http_answer html_page(const struct status *status, FILE *body) {
    struct serve_counts counts = serve_counts(status->serve);
    fputs(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"5\"><title>expertd</title>"
        "<style>body{font:15px/1.5 sans-serif;margin:2em auto;max-width:46em}td,th{padding:.1em 1em .1em 0;text-align:left}</style>"
        "<h1>expertd</h1><p>",
        body);
    fprintf(body, "Version %s, %s, up %" PRId64 " s, serving <b>", EXPERTD_VERSION, state_of(status, &counts),
            (clock_now_ns() - status->started_ns) / NS_PER_S);
    html_put_text(status->model_asked, body);
    fprintf(body, "</b>.</p><p>%u calls open, %u requests queued (%" PRIu64 " bytes).</p>", counts.open_calls, counts.queued,
            counts.queued_bytes);
    if (counts.ready) {
        struct metrics_totals totals = metrics_totals(status->metrics);
        fprintf(body,
                "<p>%" PRIu64 " calls answered, %" PRIu64 " refused or failed; %" PRIu64 " tokens in %" PRIu64 " batches.</p>",
                totals.calls_ok, totals.calls_failed, totals.tokens, totals.batches);
        if (status->devices) {
            put_devices(status, body);
        }
        if (status->shard) {
            status_shard_html(status->shard, body);
        }
        put_layers(status, body);
    }
    put_shards(status, body);
    fputs("<p><a href=\"/metrics\">metrics</a> · <a href=\"/api/status\">status as JSON</a></p></html>\n", body);
    return (struct http_answer){200, "text/html; charset=utf-8"};
}

struct http_answer status_page(void *context, const char *path, FILE *body) {
    const struct status *status = context;
    if (strcmp(path, "/metrics") == 0) {
        return metrics_page(status, body);
    }
    if (strcmp(path, "/health/live") == 0) {
        fputs("live\n", body);
        return (struct http_answer){200, "text/plain; charset=utf-8"};
    }
    if (strcmp(path, "/health/ready") == 0) {
        return ready_page(status, body);
    }
    if (strcmp(path, "/api/status") == 0) {
        return api_page(status, body);
    }
    if (strcmp(path, "/") == 0) {
        return html_page(status, body);
    }
    fprintf(body, "no such page; the pages are /, /metrics, /health/live, /health/ready and /api/status\n");
    return (struct http_answer){404, "text/plain; charset=utf-8"};
}
