// A front's shards as a text table and as JSON. json_t is only declared here. Texts may come from hostile peers of the daemon.
#ifndef EXPERTD_CLIENT_EXPERTCTL_PRINT_SHARD_TABLE_H
#define EXPERTD_CLIENT_EXPERTCTL_PRINT_SHARD_TABLE_H

#include <stdbool.h>
#include <stdio.h>

#include "proto/admin/admin_shards.h"

struct json_t;

// Prints a row for each shard, then a sentence for each one that has something to say, and one about all. has_local_rows: the rates
// of the front's own shards are known.
FALLIBLE shard_table_print(const struct proto_shards *shards, bool has_local_rows, FILE *out);

// NULL: no memory.
struct json_t *shard_json(const struct proto_shard *shard);
struct json_t *shard_summary_json(const struct proto_shards_summary *summary);

#endif
