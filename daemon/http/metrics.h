// Counters and histograms of the daemon: relaxed atomics that any thread adds to, text that the loop thread renders (Prometheus
// 0.0.4). Everything is reserved at start.
#ifndef EXPERTD_DAEMON_HTTP_METRICS_H
#define EXPERTD_DAEMON_HTTP_METRICS_H

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

// One answered call or stream request: method "Forward" | "Stream" | "Describe" ..., a grpc status code.
void metrics_call(struct metrics *metrics, const char *method, int grpc_code);
void metrics_stage(struct metrics *metrics, enum metrics_stage stage, uint64_t nanoseconds);
void metrics_batch(struct metrics *metrics, size_t layer_index, uint64_t tokens, uint64_t requests);
void metrics_batch_ahead(struct metrics *metrics);                                 // taken in while the one before it was computed
void metrics_rows_direct(struct metrics *metrics, uint64_t rows);                  // that left for a device from the message itself
void metrics_tokens(struct metrics *metrics, size_t layer_index, uint64_t tokens); // answered without a batch
// Rows each expert got in one batch, [num_experts of the layer]: kept as totals, shown as max/mean per layer.
void metrics_expert_load(struct metrics *metrics, size_t layer_index, const uint64_t *rows);

// The totals of one layer, [num_experts]; any thread.
void metrics_expert_rows(struct metrics *metrics, size_t layer_index, uint64_t *rows);

struct metrics_count {
    const char *reason; // a label's value
    uint64_t count;
};

#define METRICS_UNKNOWN UINT64_MAX // of a gauge: it is left out

// What is not counted here but asked for at the time of rendering.
struct metrics_gauges {
    bool ready, draining;
    uint64_t open_calls, open_connections, queued_requests, queued_bytes;
    uint64_t weights_bytes, scratch_bytes, resident_bytes;
    uint64_t open_fds, threads;
    uint64_t regions, region_bytes;
    uint64_t exchange_rebuilds;          // since start
    uint64_t open_streams, read_slots;   // taken
    const struct metrics_count *refused; // [num_refused]
    size_t num_refused;
};
// Appends the exposition text to `out` (a memory stream).
void metrics_render(struct metrics *metrics, const struct metrics_gauges *gauges, FILE *out);

// For /api/status and the log: the greatest and the mean rows per expert of a layer; calls and tokens in all.
struct metrics_totals {
    uint64_t calls_ok, calls_failed, tokens, batches;
};
struct metrics_totals metrics_totals(struct metrics *metrics);
double metrics_expert_imbalance(struct metrics *metrics, size_t layer_index); // max / mean, 0 before the first row

#endif
