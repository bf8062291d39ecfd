// The hellos of both sides: what a front and this shard must agree on.
#ifndef EXPERTD_DAEMON_SHARD_CORE_SHARD_HELLO_H
#define EXPERTD_DAEMON_SHARD_CORE_SHARD_HELLO_H

#include "proto/shard/shard_control.h"

// Compares a front's identity with this shard's. EXPERTD_ERR_INVALID: the message has both values and the remedy.
FALLIBLE shard_hello_compare(const struct shard_identity *front, const struct shard_identity *shard);

struct shard_hello_limits {
    uint64_t max_rows, max_hidden; // of a batch, for which this shard has memory
};
// EXPERTD_ERR_INVALID: a hello without an instance. EXPERTD_ERR_TOO_LARGE: the front's batches are larger than this shard's memory.
FALLIBLE shard_hello_check(const struct shard_front_hello *hello, const struct shard_identity *shard,
                           const struct shard_hello_limits *limits);

#endif
