// Who may come in: a pure decider over counts and bytes. No clock, no threads: daemon/serve/serve.c guards it and brings the time.
//
// Two steps. A message's size is known only with the message, so a call first takes a read slot (room for the largest message);
// once read, it gives the slot back and is admitted by its true size against the queue's budgets, or refused with a pushback. A
// stream's reads wait for as long as its caller likes, so streams do not use up the slots: each holds room of its own.
//
// No connection takes everything. Of calls, slots and streams, which are held for as long as a peer likes, it has its share at
// most, and one at least. The queue drains by itself: one connection may fill it while it is alone. Where others hold places it has
// its share, and for CONTENDED_NS after somebody who held less than an equal part was turned away, an equal part.
#ifndef EXPERTD_DAEMON_REQUEST_ADMISSION_H
#define EXPERTD_DAEMON_REQUEST_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

// Health checks, which no limit below counts: a full server still says how it is.
enum { CHECKS_MAX = 1024, CHECKS_OF_CONNECTION = 16, WATCHES_MAX = 256 };

struct admission_limits {
    uint32_t max_calls;       // open at once; the transport keeps the count of all, this is for the share
    uint32_t read_slots;      // unary messages being read at once
    uint32_t max_streams;     // streams open at once
    uint32_t max_queue;       // requests admitted and not yet answered
    uint64_t max_queue_bytes; // their messages and answers
    uint32_t share_percent;   // of each that one connection may hold
};

// What one connection holds; zeroed at first, the caller's memory.
struct admission_share {
    uint32_t calls, checks, watches, slots, streams, queued;
    uint64_t queued_bytes;
    int64_t slot_taken_ns; // the last one, while it has calls
};

// Why requests were refused, beyond their own faults.
enum admission_refusal {
    REFUSED_LOADING,
    REFUSED_DRAINING,
    REFUSED_QUEUE,    // max_queue, max_queue_bytes; CHECKS_MAX, WATCHES_MAX
    REFUSED_SHARE,    // the connection holds its share
    REFUSED_ESTIMATE, // its deadline comes before its turn would
    REFUSED_DEADLINE, // already past
    REFUSED_STREAMS,  // max_streams
    REFUSED_COUNT
};
const char *admission_refusal_name(enum admission_refusal refusal); // "queue": a label of the metrics

struct admission {
    struct admission_limits limits;
    uint32_t checks, watches, slots_used, streams, queued;
    uint64_t queued_bytes;
    uint32_t holders;    // connections that hold a place in the queue
    uint32_t contenders; // holders and those turned away, until contended_until_ns
    int64_t contended_until_ns;
    bool loading, draining;
    uint64_t refused[REFUSED_COUNT];
};

void admission_init(struct admission *admission, const struct admission_limits *limits);

// What a request asks for.
struct admission_ask {
    uint64_t bytes;
    int64_t deadline_ns;
    int64_t wait_ns; // until it would be done, as backlog.h estimates
};

// Is anybody served? EXPERTD_ERR_LOADING, EXPERTD_ERR_DRAINING.
FALLIBLE admission_serving(struct admission *admission);

// May a request be read at all now? EXPERTD_ERR_LOADING, EXPERTD_ERR_DRAINING; EXPERTD_ERR_QUEUE_FULL where it would be refused
// whatever its size (the ask's bytes do not count).
FALLIBLE admission_open(struct admission *admission, const struct admission_share *share, const struct admission_ask *ask,
                        int64_t now_ns);

// EXPERTD_ERR_QUEUE_FULL where the connection has its share of calls.
FALLIBLE admission_take_call(struct admission *admission, struct admission_share *share);
void admission_give_call(struct admission *admission, struct admission_share *share);

// EXPERTD_ERR_QUEUE_FULL where there are too many, or the connection has its share. Watches are calls besides.
FALLIBLE admission_take_check(struct admission *admission, struct admission_share *share);
void admission_give_check(struct admission *admission, struct admission_share *share);
// Whether so many checks are open that one is to send its message sooner: those that never do keep no probe out.
bool admission_checks_crowded(const struct admission *admission);
FALLIBLE admission_take_watch(struct admission *admission, struct admission_share *share);
void admission_give_watch(struct admission *admission, struct admission_share *share);

bool admission_slot_free(const struct admission *admission);
// False: none is free, or the connection has its share; wait unread.
bool admission_take_slot(struct admission *admission, struct admission_share *share);
void admission_give_slot(struct admission *admission, struct admission_share *share);

// EXPERTD_ERR_LOADING, EXPERTD_ERR_DRAINING; EXPERTD_ERR_QUEUE_FULL where there are too many.
FALLIBLE admission_take_stream(struct admission *admission, struct admission_share *share);
void admission_give_stream(struct admission *admission, struct admission_share *share);

// Admits a request that was read. EXPERTD_ERR_QUEUE_FULL (a budget, or the deadline comes before its turn), EXPERTD_ERR_DEADLINE
// (already past), EXPERTD_ERR_TOO_LARGE (would never fit), EXPERTD_ERR_LOADING, EXPERTD_ERR_DRAINING.
FALLIBLE admission_admit(struct admission *admission, struct admission_share *share, const struct admission_ask *ask,
                         int64_t now_ns);
void admission_release(struct admission *admission, struct admission_share *share, uint64_t bytes);

#endif
