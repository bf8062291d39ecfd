// The messages of ListShards and ChangeShard of expertd.admin.v1. Ownership, errors and threads are as in admin.h.
#ifndef EXPERTD_PROTO_ADMIN_ADMIN_SHARDS_H
#define EXPERTD_PROTO_ADMIN_ADMIN_SHARDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/control/control.h"

// Sizes of texts, with their terminators. Longer ones are refused.
enum { PROTO_SHARD_ADDRESS_MAX = 288, PROTO_SHARD_NAME_MAX = 64, PROTO_SHARD_MESSAGE_MAX = 512 };

// The fields of the message Shard. Texts are UTF-8 when decoded; encoders replace each invalid byte by '?'.
struct proto_shard {
    uint32_t shard;
    char address[PROTO_SHARD_ADDRESS_MAX];
    char state[PROTO_SHARD_NAME_MAX], reason[PROTO_SHARD_NAME_MAX];
    char message[PROTO_SHARD_MESSAGE_MAX];
    bool local, listed, live, draining, drained;
    uint32_t ready, loading, retiring, failed;
    uint64_t bytes, bytes_max, bytes_left, bytes_per_second;
    int64_t heard_age_ns, round_trip_ns;
    uint64_t false_alarms, connections;
    uint64_t batches, pieces, rows, bytes_sent, rows_answered, bytes_received, compute_ns, errors, refused;
    double rows_per_second;
};

struct proto_shards_summary {
    uint32_t shards, live, experts, uncovered;
    bool places;
    uint64_t stalls;
    uint32_t below_copies;
};

struct proto_shards {
    struct proto_shard *items; // [count]
    size_t count;
    struct proto_shards_summary summary;
};
void proto_shards_deinit(struct proto_shards *shards); // legal on a zeroed struct

FALLIBLE proto_encode_list_shards_request(struct proto_bytes *out);
FALLIBLE proto_decode_list_shards_request(const uint8_t *bytes, size_t length); // refuses every field
FALLIBLE proto_encode_list_shards_response(const struct proto_shards *shards, struct proto_bytes *out);
FALLIBLE proto_decode_list_shards_response(const uint8_t *bytes, size_t length, struct proto_shards *out);

enum proto_shard_change {
    PROTO_SHARD_UNSPECIFIED,
    PROTO_SHARD_DRAIN,
    PROTO_SHARD_KEEP,
    PROTO_SHARD_ADD,
    PROTO_SHARD_REMOVE,
    PROTO_SHARD_CHANGES
};

struct proto_change_shard {
    char address[PROTO_SHARD_ADDRESS_MAX]; // not empty when decoded
    enum proto_shard_change change;        // not PROTO_SHARD_UNSPECIFIED when decoded
};

FALLIBLE proto_encode_change_shard_request(const struct proto_change_shard *change, struct proto_bytes *out);
FALLIBLE proto_decode_change_shard_request(const uint8_t *bytes, size_t length, struct proto_change_shard *out);
FALLIBLE proto_encode_change_shard_response(struct proto_bytes *out);
FALLIBLE proto_decode_change_shard_response(const uint8_t *bytes, size_t length);

#endif
