// What the pages say about a shard: its metrics, its part of /api/status and of the status page. Loop thread only.
#ifndef EXPERTD_DAEMON_STATUS_STATUS_SHARD_H
#define EXPERTD_DAEMON_STATUS_STATUS_SHARD_H

#include <stdio.h>

#include "daemon/shard/shard.h"

struct json_t; // of jansson

void status_shard_metrics(struct shard_service *shard, FILE *body); // in the Prometheus text format
struct json_t *status_shard_json(struct shard_service *shard);      // the caller's; NULL: no memory
void status_shard_html(struct shard_service *shard, FILE *body);
uint64_t status_shard_bytes(struct shard_service *shard); // memory of the experts

#endif
