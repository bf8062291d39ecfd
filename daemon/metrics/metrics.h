// Counters and histograms of the daemon. Any thread adds to them (relaxed atomics); the loop thread renders them in the Prometheus
// text format 0.0.4. All memory is reserved at the start.
#ifndef EXPERTD_DAEMON_METRICS_METRICS_H
#define EXPERTD_DAEMON_METRICS_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

enum metrics_stage { STAGE_QUEUE, STAGE_ROUTE, STAGE_EXCHANGE, STAGE_COMPUTE, STAGE_COMBINE, STAGE_TOTAL, STAGE_COUNT };

struct metrics;

struct metrics_options {
    const uint32_t *layers;      // [num_layers] layer numbers
    const uint32_t *num_experts; // [num_layers]
    size_t num_layers;
    const char *model, *version;
};

FALLIBLE metrics_create(const struct metrics_options *options, struct metrics **out);
void metrics_destroy(struct metrics *metrics); // NULL is legal

// One answered call, or request of a stream. method: "Forward", "Stream", "Describe" and so on; a string literal.
void metrics_call(struct metrics *metrics, const char *method, int grpc_code);
void metrics_stage(struct metrics *metrics, enum metrics_stage stage, uint64_t nanoseconds);
void metrics_batch(struct metrics *metrics, size_t layer_index, uint64_t tokens, uint64_t requests);
void metrics_batch_ahead(struct metrics *metrics);                // a batch was converted while the previous one was computed
void metrics_rows_direct(struct metrics *metrics, uint64_t rows); // rows copied to a device directly from their message
void metrics_tokens(struct metrics *metrics, size_t layer_index, uint64_t tokens); // tokens answered without a batch
// Adds the rows per expert of one batch, [num_experts of the layer]. Rendered as max / mean per layer.
void metrics_expert_load(struct metrics *metrics, size_t layer_index, const uint64_t *rows);

// The rows per expert of one layer since the start, [num_experts]. Any thread.
void metrics_expert_rows(struct metrics *metrics, size_t layer_index, uint64_t *rows);

struct metrics_count {
    const char *reason; // value of the label `reason`
    uint64_t count;
};

#define METRICS_UNKNOWN UINT64_MAX // value of a gauge that is not rendered

// Values that other modules supply at the time of rendering.
struct metrics_gauges {
    bool ready, draining;
    uint64_t open_calls, open_connections, queued_requests, queued_bytes;
    uint64_t weights_bytes, scratch_bytes, resident_bytes;
    uint64_t open_fds, threads;
    uint64_t regions, region_bytes;
    uint64_t exchange_rebuilds;          // since the start
    uint64_t open_streams, read_slots;   // in use
    const struct metrics_count *refused; // [num_refused]
    size_t num_refused;
    bool has_certificate;
    int64_t certificate_left_s; // until the TLS certificate expires; negative afterwards
};
// Appends the exposition text to `out` (a memory stream).
void metrics_render(struct metrics *metrics, const struct metrics_gauges *gauges, FILE *out);

// Totals for /api/status and the log.
struct metrics_totals {
    uint64_t calls_ok, calls_failed, tokens, batches;
};
struct metrics_totals metrics_totals(struct metrics *metrics);
double metrics_expert_imbalance(struct metrics *metrics,
                                size_t layer_index); // max / mean of the rows per expert; 0 before the first row

#endif
