// What expertctl top shows: the daemon's metrics page and its placements as numbers, and what passed between two of them. Pure.
#ifndef EXPERTD_CLIENT_EXPERTCTL_TOP_SAMPLE_H
#define EXPERTD_CLIENT_EXPERTCTL_TOP_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/admin/admin.h"

enum { TOP_BOUNDS_MAX = 64, TOP_SHARDS_MAX = 1024, TOP_TEXT_MAX = 128 };

// Cumulated counts as Prometheus has them; the last bound is +Inf.
struct top_histogram {
    size_t count;
    double bounds[TOP_BOUNDS_MAX], counts[TOP_BOUNDS_MAX];
};

struct top_sample {
    int64_t at_ns;
    char version[TOP_TEXT_MAX], model[TOP_TEXT_MAX];
    bool ready, draining;
    double calls_ok, calls_failed, refused, tokens, batches, batch_requests; // since the start; calls: of Forward and Stream
    double open_calls, open_streams, queue_requests, queue_bytes;
    double resident_bytes, weights_bytes, scratch_bytes, region_bytes, threads, open_fds;
    struct top_histogram total, queue; // seconds of a request: in all, and until its batch began
};

struct top_shard {
    uint32_t experts; // held, over all layers, replicas counted
    double rows;      // copies of an expert share its rows
};

struct top_shards {
    size_t count;
    uint64_t epoch; // greatest of the layers
    struct top_shard items[TOP_SHARDS_MAX];
};

// Reads the page. EXPERTD_ERR_MALFORMED where it is no metrics page of expertd.
FALLIBLE top_read_metrics(const char *page, struct top_sample *out);
// What the shards hold now, and the rows that came between the two. `before` may be of other layers: then all rows since the start.
void top_read_shards(const struct proto_placements *before, const struct proto_placements *now, struct top_shards *out);

// The `share`-quantile (0 to 1) of what was counted between two samples, in seconds, linear within a bucket; 0 where nothing was,
// and the greatest finite bound where it lies beyond.
double top_quantile(const struct top_histogram *before, const struct top_histogram *after, double share);

#endif
