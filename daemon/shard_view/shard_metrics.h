// The shards of a front in /metrics. The labels `shard` and `address` have as many values as the front has slots.
#ifndef EXPERTD_DAEMON_SHARD_VIEW_SHARD_METRICS_H
#define EXPERTD_DAEMON_SHARD_VIEW_SHARD_METRICS_H

#include <stdio.h>

#include "daemon/shard_view/shard_view.h"
#include "shard/exchange_types.h"

// exchange NULL: no batch has been computed yet.
void shard_metrics_put(const struct shard_listing *listing, const struct exchange_remote_state *exchange, FILE *out);

#endif
