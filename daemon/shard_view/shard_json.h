// The shards of a front in /api/status. json_t is only declared here.
#ifndef EXPERTD_DAEMON_SHARD_VIEW_SHARD_JSON_H
#define EXPERTD_DAEMON_SHARD_VIEW_SHARD_JSON_H

#include "daemon/shard_view/shard_view.h"

struct json_t;

// Adds "shards_remote", "shards_local" (lists) and "shards_summary" to the object. A key is missing if memory is.
void shard_json_add(const struct shard_listing *listing, struct json_t *object);

#endif
