// Reads the figures that expertctl top shows from the daemon's metrics page and placements, and computes the differences between
// two samples. Pure.
#ifndef EXPERTD_CLIENT_EXPERTCTL_TOP_SAMPLE_H
#define EXPERTD_CLIENT_EXPERTCTL_TOP_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/admin/admin.h"

enum { TOP_BOUNDS_MAX = 64, TOP_SHARDS_MAX = 1024, TOP_TEXT_MAX = 128 };

// Cumulative counts as in Prometheus; the last bound is +Inf.
struct top_histogram {
    size_t count;
    double bounds[TOP_BOUNDS_MAX], counts[TOP_BOUNDS_MAX];
};

struct top_sample {
    int64_t at_ns;
    char version[TOP_TEXT_MAX], model[TOP_TEXT_MAX];
    bool ready, draining;
    double calls_ok, calls_failed, refused, tokens, batches, batch_requests; // since the daemon's start; calls: Forward and Stream
    double open_calls, open_streams, queue_requests, queue_bytes;
    double resident_bytes, weights_bytes, scratch_bytes, region_bytes, threads, open_fds;
    struct top_histogram total, queue; // seconds: of a request in all, and until its batch began
};

struct top_shard {
    uint32_t experts; // over all layers; each replica counts
    double rows;      // replicas of an expert share its rows evenly
};

struct top_shards {
    size_t count;
    uint64_t epoch; // the largest of the layers'
    struct top_shard items[TOP_SHARDS_MAX];
};

// Reads the page. EXPERTD_ERR_MALFORMED: not a metrics page of expertd.
FALLIBLE top_read_metrics(const char *page, struct top_sample *out);
// The experts that each shard holds now, and its rows between the two samples. Layers that `before` lacks count all rows since the
// daemon's start.
void top_read_shards(const struct proto_placements *before, const struct proto_placements *now, struct top_shards *out);

// The quantile (fraction 0 to 1) of the values counted between two samples, in seconds, interpolated within a bucket. 0 if nothing
// was counted; at most the largest finite bound.
double top_quantile(const struct top_histogram *before, const struct top_histogram *after, double fraction);

#endif
