#include "daemon/metrics/metrics.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/metrics/metrics_text.h"

enum {
    METHODS_MAX = 16, // rows of the table; the last one is "other"
    METHOD_NAME_MAX = 32,
    CODES = 17, // gRPC status codes 0 to 16
    CODE_UNKNOWN = 2,
    BUCKETS_MAX = 24,
};

// 10 µs to 10 s in steps of 1, 2.5, 5: from a decode step to a stalled prefill.
static const double STAGE_BOUNDS[] = {1e-5,   2.5e-5, 5e-5, 1e-4,   2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2,
                                      2.5e-2, 5e-2,   1e-1, 2.5e-1, 5e-1,   1.0,  2.5,  5.0,    10.0};
static const double TOKEN_BOUNDS[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
enum {
    STAGE_BOUND_COUNT = sizeof STAGE_BOUNDS / sizeof STAGE_BOUNDS[0],
    TOKEN_BOUND_COUNT = sizeof TOKEN_BOUNDS / sizeof TOKEN_BOUNDS[0],
};

static const char *const STAGE_NAMES[STAGE_COUNT] = {
    [STAGE_QUEUE] = "queue",     [STAGE_ROUTE] = "route",     [STAGE_EXCHANGE] = "exchange",
    [STAGE_COMPUTE] = "compute", [STAGE_COMBINE] = "combine", [STAGE_TOTAL] = "total",
};

static const char *const CODE_NAMES[CODES] = {
    "OK",        "CANCELLED",       "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS",  "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",    "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED",
};

typedef _Atomic uint64_t counter;

struct histogram {
    counter buckets[BUCKETS_MAX]; // [bounds + 1], not cumulative; the last counts values above every bound
    counter sum;                  // nanoseconds or tokens
};

struct method_row {
    _Atomic(const char *) name; // a string literal of the caller; set once
    counter calls[CODES];
};

struct layer_row {
    uint32_t number, num_experts;
    counter tokens, batches;
    counter *expert_rows; // [num_experts], inside `rows` of struct metrics
};

struct metrics {
    struct method_row methods[METHODS_MAX];
    struct histogram stages[STAGE_COUNT];
    struct histogram batch_tokens, batch_requests;
    counter batches_ahead, rows_direct;
    size_t num_layers;
    struct layer_row *layers; // [num_layers]
    counter *rows;            // the experts of all layers
    char *model, *version;
};

static void add(counter *to, uint64_t amount) {
    atomic_fetch_add_explicit(to, amount, memory_order_relaxed);
}

static uint64_t read_counter(counter *from) {
    return atomic_load_explicit(from, memory_order_relaxed);
}

// ---- create and destroy

FALLIBLE metrics_create(const struct metrics_options *options, struct metrics **out) {
    *out = NULL;
    size_t experts = 0;
    for (size_t i = 0; i < options->num_layers; i++) {
        experts += options->num_experts[i];
    }
    struct metrics *metrics = calloc(1, sizeof *metrics);
    if (!metrics) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the metrics");
    }
    metrics->layers = calloc(options->num_layers + 1, sizeof *metrics->layers);
    metrics->rows = calloc(experts + 1, sizeof *metrics->rows);
    metrics->model = strdup(options->model ? options->model : "");
    metrics->version = strdup(options->version ? options->version : "");
    if (!metrics->layers || !metrics->rows || !metrics->model || !metrics->version) {
        metrics_destroy(metrics);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the metrics of %zu experts", experts);
    }
    metrics->num_layers = options->num_layers;
    counter *rows = metrics->rows;
    for (size_t i = 0; i < options->num_layers; i++) {
        struct layer_row *layer = &metrics->layers[i];
        layer->number = options->layers[i];
        layer->num_experts = options->num_experts[i];
        layer->expert_rows = rows;
        rows += layer->num_experts;
    }
    *out = metrics;
    return OK;
}

void metrics_destroy(struct metrics *metrics) {
    if (!metrics) {
        return;
    }
    free(metrics->layers);
    free(metrics->rows);
    free(metrics->model);
    free(metrics->version);
    free(metrics);
}

// ---- counting

// The row of a method, assigned at its first call. Two threads may race for a free row: the loser tries the next one. If the table
// is full, all further methods share the last row.
static struct method_row *find_method(struct metrics *metrics, const char *method) {
    for (size_t i = 0; i + 1 < METHODS_MAX; i++) {
        const char *known = NULL;
        struct method_row *row = &metrics->methods[i];
        if (atomic_compare_exchange_strong(&row->name, &known, method) || strcmp(known, method) == 0) {
            return row;
        }
    }
    struct method_row *last = &metrics->methods[METHODS_MAX - 1];
    atomic_store(&last->name, "other");
    return last;
}

void metrics_call(struct metrics *metrics, const char *method, int grpc_code) {
    int code = grpc_code >= 0 && grpc_code < CODES ? grpc_code : CODE_UNKNOWN;
    add(&find_method(metrics, method)->calls[code], 1);
}

static void observe(struct histogram *histogram, const double *bounds, size_t count, double value, uint64_t amount) {
    size_t bucket = 0;
    while (bucket < count && value > bounds[bucket]) {
        bucket++;
    }
    add(&histogram->buckets[bucket], 1);
    add(&histogram->sum, amount);
}

void metrics_stage(struct metrics *metrics, enum metrics_stage stage, uint64_t nanoseconds) {
    INVARIANT((unsigned)stage < STAGE_COUNT);
    observe(&metrics->stages[stage], STAGE_BOUNDS, STAGE_BOUND_COUNT, (double)nanoseconds / NS_PER_S, nanoseconds);
}

void metrics_batch(struct metrics *metrics, size_t layer_index, uint64_t tokens, uint64_t requests) {
    INVARIANT(layer_index < metrics->num_layers);
    add(&metrics->layers[layer_index].tokens, tokens);
    add(&metrics->layers[layer_index].batches, 1);
    observe(&metrics->batch_tokens, TOKEN_BOUNDS, TOKEN_BOUND_COUNT, (double)tokens, tokens);
    observe(&metrics->batch_requests, TOKEN_BOUNDS, TOKEN_BOUND_COUNT, (double)requests, requests);
}

void metrics_tokens(struct metrics *metrics, size_t layer_index, uint64_t tokens) {
    INVARIANT(layer_index < metrics->num_layers);
    add(&metrics->layers[layer_index].tokens, tokens);
}

void metrics_expert_load(struct metrics *metrics, size_t layer_index, const uint64_t *rows) {
    INVARIANT(layer_index < metrics->num_layers);
    const struct layer_row *layer = &metrics->layers[layer_index];
    for (uint32_t i = 0; i < layer->num_experts; i++) {
        if (rows[i]) {
            add(&layer->expert_rows[i], rows[i]);
        }
    }
}

void metrics_expert_rows(struct metrics *metrics, size_t layer_index, uint64_t *rows) {
    INVARIANT(layer_index < metrics->num_layers);
    const struct layer_row *layer = &metrics->layers[layer_index];
    for (uint32_t i = 0; i < layer->num_experts; i++) {
        rows[i] = read_counter(&layer->expert_rows[i]);
    }
}

double metrics_expert_imbalance(struct metrics *metrics, size_t layer_index) {
    INVARIANT(layer_index < metrics->num_layers);
    const struct layer_row *layer = &metrics->layers[layer_index];
    uint64_t greatest = 0;
    double sum = 0;
    for (uint32_t i = 0; i < layer->num_experts; i++) {
        uint64_t rows = read_counter(&layer->expert_rows[i]);
        greatest = rows > greatest ? rows : greatest;
        sum += (double)rows;
    }
    return sum > 0 ? (double)greatest * layer->num_experts / sum : 0;
}

struct metrics_totals metrics_totals(struct metrics *metrics) {
    struct metrics_totals totals = {0};
    for (size_t i = 0; i < METHODS_MAX; i++) {
        for (size_t code = 0; code < CODES; code++) {
            uint64_t calls = read_counter(&metrics->methods[i].calls[code]);
            *(code ? &totals.calls_failed : &totals.calls_ok) += calls;
        }
    }
    for (size_t i = 0; i < metrics->num_layers; i++) {
        totals.tokens += read_counter(&metrics->layers[i].tokens);
        totals.batches += read_counter(&metrics->layers[i].batches);
    }
    return totals;
}

// ---- rendering

static void put_build_info(const struct metrics *metrics, FILE *out) {
    metrics_put_family(out, "build_info", "gauge", "Always 1; the version and the model served are its labels.");
    fputs("expertd_build_info{version=\"", out);
    metrics_put_label(out, metrics->version);
    fputs("\",model=\"", out);
    metrics_put_label(out, metrics->model);
    fputs("\"} 1\n", out);
}

static void put_calls(struct metrics *metrics, FILE *out) {
    metrics_put_family(out, "calls_total", "counter", "Answered calls, and requests of streams, by method and gRPC status code.");
    for (size_t i = 0; i < METHODS_MAX; i++) {
        const char *name = atomic_load(&metrics->methods[i].name);
        for (size_t code = 0; name && code < CODES; code++) {
            uint64_t calls = read_counter(&metrics->methods[i].calls[code]);
            if (calls) {
                fprintf(out, "expertd_calls_total{method=\"%s\",code=\"%s\"} %" PRIu64 "\n", name, CODE_NAMES[code], calls);
            }
        }
    }
}

// label: "" or `stage="route",`, written before `le`. The sum is divided by `per_unit`.
static void put_histogram(FILE *out, const char *name, const char *label, struct histogram *histogram, const double *bounds,
                          size_t count, double per_unit) {
    uint64_t seen = 0;
    // Each bucket is read once, so that _count is their sum even while other threads add.
    for (size_t i = 0; i <= count; i++) {
        seen += read_counter(&histogram->buckets[i]);
        if (i < count) {
            fprintf(out, "expertd_%s_bucket{%sle=\"%g\"} %" PRIu64 "\n", name, label, bounds[i], seen);
        }
    }
    int length = (int)strlen(label);
    const char *open = length ? "{" : "", *close = length ? "}" : "";
    length -= length > 0; // the comma
    fprintf(out, "expertd_%s_bucket{%sle=\"+Inf\"} %" PRIu64 "\n", name, label, seen);
    fprintf(out, "expertd_%s_sum%s%.*s%s %.9g\n", name, open, length, label, close,
            (double)read_counter(&histogram->sum) / per_unit);
    fprintf(out, "expertd_%s_count%s%.*s%s %" PRIu64 "\n", name, open, length, label, close, seen);
}

static void put_histograms(struct metrics *metrics, FILE *out) {
    char label[METHOD_NAME_MAX];
    metrics_put_family(out, "stage_seconds", "histogram", "Time that requests and batches spend in each stage.");
    for (size_t i = 0; i < STAGE_COUNT; i++) {
        snprintf(label, sizeof label, "stage=\"%s\",", STAGE_NAMES[i]);
        put_histogram(out, "stage_seconds", label, &metrics->stages[i], STAGE_BOUNDS, STAGE_BOUND_COUNT, NS_PER_S);
    }
    metrics_put_family(out, "batch_tokens", "histogram", "Tokens per computed batch.");
    put_histogram(out, "batch_tokens", "", &metrics->batch_tokens, TOKEN_BOUNDS, TOKEN_BOUND_COUNT, 1);
    metrics_put_family(out, "batch_requests", "histogram", "Requests per computed batch.");
    put_histogram(out, "batch_requests", "", &metrics->batch_requests, TOKEN_BOUNDS, TOKEN_BOUND_COUNT, 1);
}

static void put_layers(struct metrics *metrics, FILE *out) {
    metrics_put_family(out, "tokens_total", "counter", "Tokens computed, by layer, including those whose caller no longer waits.");
    for (size_t i = 0; i < metrics->num_layers; i++) {
        struct layer_row *layer = &metrics->layers[i];
        fprintf(out, "expertd_tokens_total{layer=\"%" PRIu32 "\"} %" PRIu64 "\n", layer->number, read_counter(&layer->tokens));
    }
    metrics_put_family(out, "batches_total", "counter", "Batches computed, by layer.");
    for (size_t i = 0; i < metrics->num_layers; i++) {
        struct layer_row *layer = &metrics->layers[i];
        fprintf(out, "expertd_batches_total{layer=\"%" PRIu32 "\"} %" PRIu64 "\n", layer->number, read_counter(&layer->batches));
    }
    metrics_put_family(
        out, "expert_load_imbalance_ratio", "gauge",
        "Rows of the busiest expert over the mean of all experts of the layer, since the start; 0 before the first row.");
    for (size_t i = 0; i < metrics->num_layers; i++) {
        fprintf(out, "expertd_expert_load_imbalance_ratio{layer=\"%" PRIu32 "\"} %.6g\n", metrics->layers[i].number,
                metrics_expert_imbalance(metrics, i));
    }
}

struct gauge_row {
    const char *name, *help;
    uint64_t value;
};

static void put_gauges(const struct metrics_gauges *gauges, FILE *out) {
    const struct gauge_row rows[] = {
        {"ready", "1 while requests are served, 0 while loading or draining.", gauges->ready != 0},
        {"draining", "1 once the daemon is stopping.", gauges->draining != 0},
        {"open_calls", "gRPC calls open now.", gauges->open_calls},
        {"open_connections", "Connections open now on the gRPC addresses, including those that have sent nothing.",
         gauges->open_connections},
        {"queue_requests", "Requests admitted and not yet answered.", gauges->queued_requests},
        {"queue_bytes", "Bytes of the requests admitted and not yet answered.", gauges->queued_bytes},
        {"open_streams", "Streams open now.", gauges->open_streams},
        {"read_slots_used", "Messages of unary calls being read now.", gauges->read_slots},
        {"weights_bytes", "Memory of the packed weights.", gauges->weights_bytes},
        {"scratch_bytes", "Memory reserved for computing.", gauges->scratch_bytes},
        {"resident_memory_bytes", "Resident memory of the process.", gauges->resident_bytes},
        {"open_fds", "Open file descriptors.", gauges->open_fds},
        {"threads", "Threads of the process.", gauges->threads},
        {"regions", "Shared-memory regions, including closed ones in use.", gauges->regions},
        {"region_bytes", "Bytes of the shared-memory regions.", gauges->region_bytes},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].value == METRICS_UNKNOWN) {
            continue;
        }
        metrics_put_family(out, rows[i].name, "gauge", rows[i].help);
        fprintf(out, "expertd_%s %" PRIu64 "\n", rows[i].name, rows[i].value);
    }
}

static void put_certificate(const struct metrics_gauges *gauges, FILE *out) {
    if (gauges->has_certificate) {
        metrics_put_family(out, "tls_certificate_expires_seconds", "gauge",
                           "Seconds until the TLS certificate in use expires; negative after that.");
        fprintf(out, "expertd_tls_certificate_expires_seconds %" PRId64 "\n", gauges->certificate_left_s);
    }
}

void metrics_batch_ahead(struct metrics *metrics) {
    add(&metrics->batches_ahead, 1);
}

void metrics_rows_direct(struct metrics *metrics, uint64_t rows) {
    add(&metrics->rows_direct, rows);
}

static void put_ahead(struct metrics *metrics, FILE *out) {
    metrics_put_family(out, "batches_ahead_total", "counter",
                       "Batches converted and copied to the device while the previous batch was computed.");
    fprintf(out, "expertd_batches_ahead_total %" PRIu64 "\n", read_counter(&metrics->batches_ahead));
    metrics_put_family(out, "rows_direct_total", "counter",
                       "Hidden rows copied to a device directly from their message, without another copy on the host.");
    fprintf(out, "expertd_rows_direct_total %" PRIu64 "\n", read_counter(&metrics->rows_direct));
}

static void put_exchange(const struct metrics_gauges *gauges, FILE *out) {
    metrics_put_family(out, "exchange_rebuilds_total", "counter",
                       "Communicators between devices that replaced a failed one, each after a batch failed with SHARD_LOST.");
    fprintf(out, "expertd_exchange_rebuilds_total %" PRIu64 "\n", gauges->exchange_rebuilds);
}

static void put_refused(const struct metrics_gauges *gauges, FILE *out) {
    metrics_put_family(out, "refused_total", "counter",
                       "Calls, streams, requests and connections refused because a limit was reached, by reason.");
    for (size_t i = 0; i < gauges->num_refused; i++) {
        fprintf(out, "expertd_refused_total{reason=\"%s\"} %" PRIu64 "\n", gauges->refused[i].reason, gauges->refused[i].count);
    }
}

void metrics_render(struct metrics *metrics, const struct metrics_gauges *gauges, FILE *out) {
    put_build_info(metrics, out);
    put_gauges(gauges, out);
    put_certificate(gauges, out);
    put_exchange(gauges, out);
    put_ahead(metrics, out);
    put_refused(gauges, out);
    put_calls(metrics, out);
    put_histograms(metrics, out);
    put_layers(metrics, out);
}
