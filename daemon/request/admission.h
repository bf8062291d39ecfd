// Decides which calls, streams and requests are admitted. Pure: counts and bytes, no clock, no threads. daemon/serve/serve_budget.c
// guards it with a mutex and passes the time.
//
// A request is admitted in two steps. The size of a message is known only after it was read, so a unary call first takes a read
// slot: space for one message of the largest size. When the message was read, the request returns the slot and is admitted by its
// true size against the queue's budgets, or refused with a retry delay. A stream may wait for its next message for as long as its
// client likes, so it takes no slot: each stream has space for one message, and max_streams bounds the streams.
//
// No connection can take everything. Calls, slots and streams are held for as long as a peer likes: a connection may hold its share
// of them, and at least one. The queue drains by itself: a connection that is alone may fill it. If other connections have requests
// in the queue, each may hold its share. When the queue refuses a connection that holds less than an equal part, each connection
// may hold at most an equal part for the next five seconds.
#ifndef EXPERTD_DAEMON_REQUEST_ADMISSION_H
#define EXPERTD_DAEMON_REQUEST_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

// Bounds of health checks and watches. No limit of the options counts the checks, so that a full server still answers probes.
enum { CHECKS_MAX = 1024, CHECKS_PER_CONNECTION = 16, WATCHES_MAX = 256 };

struct admission_limits {
    uint32_t max_calls;       // open at once: the transport enforces it, here it is the base of a connection's share
    uint32_t read_slots;      // unary messages read at once
    uint32_t max_streams;     // streams open at once
    uint32_t max_queue;       // requests admitted and not yet answered
    uint64_t max_queue_bytes; // their messages and answers
    uint32_t share_percent;   // of each limit that one connection may hold
};

// What one connection holds. Zeroed at first; the caller's memory.
struct admission_share {
    uint32_t calls, checks, watches, slots, streams, queued;
    uint64_t queued_bytes;
    int64_t slot_taken_ns; // when it last took a slot
};

// Reasons of refusals that are not the request's own errors.
enum admission_refusal {
    REFUSED_LOADING,
    REFUSED_DRAINING,
    REFUSED_QUEUE,    // max_queue, max_queue_bytes; CHECKS_MAX, WATCHES_MAX
    REFUSED_SHARE,    // the connection already holds its share
    REFUSED_ESTIMATE, // the estimated wait exceeds its deadline
    REFUSED_DEADLINE, // its deadline has passed
    REFUSED_STREAMS,  // max_streams
    REFUSED_COUNT
};
const char *admission_refusal_name(enum admission_refusal refusal); // "queue": the value of a metrics label

struct admission {
    struct admission_limits limits;
    uint32_t checks, watches, slots_used, streams, queued;
    uint64_t queued_bytes;
    uint32_t holders;    // connections with requests in the queue
    uint32_t contenders; // holders and refused connections, until contended_until_ns
    int64_t contended_until_ns;
    bool loading, draining;
    uint64_t refused[REFUSED_COUNT];
};

void admission_init(struct admission *admission, const struct admission_limits *limits);

// One request.
struct admission_demand {
    uint64_t bytes;
    int64_t deadline_ns;
    int64_t wait_ns; // estimated time until it is computed (backlog_wait_ns)
};

// EXPERTD_ERR_LOADING and EXPERTD_ERR_DRAINING if the daemon serves no requests.
FALLIBLE admission_serving(struct admission *admission);

// Checks whether a request may be read: EXPERTD_ERR_LOADING, EXPERTD_ERR_DRAINING; EXPERTD_ERR_QUEUE_FULL and EXPERTD_ERR_DEADLINE
// if it would be refused at any size (demand->bytes is ignored).
FALLIBLE admission_open(struct admission *admission, const struct admission_share *share, const struct admission_demand *demand,
                        int64_t now_ns);

// EXPERTD_ERR_QUEUE_FULL: the connection has its share of calls.
FALLIBLE admission_take_call(struct admission *admission, struct admission_share *share);
void admission_give_call(struct admission *admission, struct admission_share *share);

// EXPERTD_ERR_QUEUE_FULL: as many as allowed are open, in all or on this connection. A watch also counts as a call.
FALLIBLE admission_take_check(struct admission *admission, struct admission_share *share);
void admission_give_check(struct admission *admission, struct admission_share *share);
// True if many checks are open. Each then has less time to send its message, so that checks without a message do not block probes.
bool admission_checks_crowded(const struct admission *admission);
FALLIBLE admission_take_watch(struct admission *admission, struct admission_share *share);
void admission_give_watch(struct admission *admission, struct admission_share *share);

bool admission_slot_free(const struct admission *admission);
// False: no slot is free, or the connection has its share. The request waits unread.
bool admission_take_slot(struct admission *admission, struct admission_share *share);
void admission_give_slot(struct admission *admission, struct admission_share *share);

// EXPERTD_ERR_LOADING, EXPERTD_ERR_DRAINING; EXPERTD_ERR_QUEUE_FULL: max_streams, or the connection's share.
FALLIBLE admission_take_stream(struct admission *admission, struct admission_share *share);
void admission_give_stream(struct admission *admission, struct admission_share *share);

// Admits a request that was read. EXPERTD_ERR_QUEUE_FULL (a budget, or the estimated wait exceeds the deadline),
// EXPERTD_ERR_DEADLINE (it has passed), EXPERTD_ERR_TOO_LARGE (over max_queue_bytes alone), EXPERTD_ERR_LOADING,
// EXPERTD_ERR_DRAINING.
FALLIBLE admission_admit(struct admission *admission, struct admission_share *share, const struct admission_demand *demand,
                         int64_t now_ns);
void admission_release(struct admission *admission, struct admission_share *share, uint64_t bytes);

#endif
