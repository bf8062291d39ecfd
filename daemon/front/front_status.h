// What operators see of a front's shards, and what they may ask. Any thread, from front_start to front_stop.
#ifndef EXPERTD_DAEMON_FRONT_FRONT_STATUS_H
#define EXPERTD_DAEMON_FRONT_FRONT_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { FRONT_ADDRESS_MAX = 288, FRONT_MESSAGE_MAX = 512 };

struct front;

struct front_shard {
    uint32_t shard; // its number in logs and placements
    char address[FRONT_ADDRESS_MAX];
    const char *state, *reason;      // "ready", "silent": stable names; the reason of the last change of the state
    char message[FRONT_MESSAGE_MAX]; // cause and mend while it is lost or refused; "": none
    bool is_local, is_listed, is_live, is_draining, is_drained;
    uint32_t ready, loading, retiring, failed; // experts
    uint64_t bytes, bytes_max;                 // memory for experts
    uint64_t bytes_left, bytes_per_second;     // of loading, as a remote shard says it
    int64_t heard_age_ns;                      // since the last heartbeat's echo; -1: local, or not connected
    int64_t round_trip_ns;                     // of the last heartbeat; 0: none yet, or not connected
    uint64_t false_alarms;                     // silences that ended before the connection did
    uint64_t connections;                      // rows streams that opened; this and what follows since the start, 0 if local
    uint64_t batches, pieces, rows, bytes_sent, rows_answered, bytes_received, compute_ns, errors, refused;
    double rows_per_second; // sent in the last full second; 0 if local
};

struct front_summary {
    uint32_t slots;        // the most shards that there can be
    uint32_t shards, live; // slots in use, and those that take rows
    uint32_t experts;      // of all layers
    uint32_t uncovered;    // experts without a live holder
    uint32_t below_copies; // experts with fewer live holders than --copies, the uncovered ones too
    bool places;           // this front decides which experts shards hold
    uint64_t stalls;       // ticks that came late: this process did not run
};
void front_summary(struct front *front, struct front_summary *out);

// Writes the shards in the order of their numbers, at most max. Returns their number.
size_t front_shards(struct front *front, struct front_shard *out, size_t max);

// Whether every expert that no live shard holds is being loaded, or its shard is dialled again: a caller may try again. True if
// there is no such expert. At most 10 ms old, because every failed request asks.
bool front_mends(struct front *front);

// Asks the shard to give up its experts, or not any more. They are placed elsewhere first. EXPERTD_ERR_INVALID: no shard has this
// address, or it is one of this process.
FALLIBLE front_drain(struct front *front, const char *address, bool drains);
// Adds the shard HOST:PORT to those of --shard-hosts, until this process ends. EXPERTD_ERR_INVALID: the address, or it may not be
// dialled, or no slot is free.
FALLIBLE front_add(struct front *front, const char *address);
// Forgets the shard once it is drained or its connection has ended. EXPERTD_ERR_INVALID: no shard has this address, or it is one of
// this process.
FALLIBLE front_remove(struct front *front, const char *address);

#endif
