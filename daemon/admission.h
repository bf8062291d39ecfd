// Who may come in: a pure decider over counts and bytes. No clock, no threads: daemon/serve.c guards it and brings the time.
//
// Two steps. A message's size is known only with the message, so a call first takes a read slot (room for the largest message);
// once read, it gives the slot back and is admitted by its true size against the queue's budgets, or refused with a pushback. A
// stream's reads wait for as long as its caller likes, so streams do not use up the slots: each holds room of its own.
#ifndef EXPERTD_DAEMON_ADMISSION_H
#define EXPERTD_DAEMON_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct admission_limits {
    uint32_t read_slots;      // unary messages being read at once
    uint32_t max_streams;     // streams open at once
    uint32_t max_queue;       // requests admitted and not yet answered
    uint64_t max_queue_bytes; // their messages and answers
};

struct admission {
    struct admission_limits limits;
    uint32_t slots_used, streams, queued;
    uint64_t queued_bytes;
    bool loading, draining;
};

void admission_init(struct admission *admission, const struct admission_limits *limits);

// May a request be read at all now? ERR_LOADING, ERR_DRAINING.
FALLIBLE admission_open(const struct admission *admission);

bool admission_take_slot(struct admission *admission); // false: none is free; wait unread
void admission_give_slot(struct admission *admission);

// ERR_QUEUE_FULL where there are too many.
FALLIBLE admission_take_stream(struct admission *admission);
void admission_give_stream(struct admission *admission);

// Admits `bytes` until `deadline_ns`. ERR_QUEUE_FULL, ERR_DEADLINE (already past), ERR_TOO_LARGE (would never fit).
FALLIBLE admission_admit(struct admission *admission, uint64_t bytes, int64_t deadline_ns, int64_t now_ns);
void admission_release(struct admission *admission, uint64_t bytes);

#endif
