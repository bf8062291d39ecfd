// A request's life as a pure state machine: no I/O, no clock, no memory of its own. It says what to do; daemon/serve/serve.c does
// it.
//
//   SLOT -> READING -> ADMITTED -> BATCHED -> COMPUTING -> COMMITTING -> SENT | FAILED
//
// Owned by the completion-queue thread of its call. The answer (result or error) is committed once. Whoever closes, expires or
// fails it, and in whatever order, exactly one REQUEST_DO_RELEASE comes, and not before the compute and the write have let go of
// its memory.
#ifndef EXPERTD_DAEMON_REQUEST_REQUEST_H
#define EXPERTD_DAEMON_REQUEST_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum request_state {
    REQUEST_SLOT,       // waits for a read slot
    REQUEST_READING,    // its message is asked for
    REQUEST_ADMITTED,   // read; being decoded, checked and weighed
    REQUEST_BATCHED,    // with the batcher
    REQUEST_COMPUTING,  // in a batch
    REQUEST_COMMITTING, // its answer is on the way to the transport
    REQUEST_SENT,       // answered with a result
    REQUEST_FAILED,     // answered with an error, or nobody is left to answer
    REQUEST_STATE_COUNT
};

enum request_event_kind {
    REQUEST_SLOT_GRANTED,
    REQUEST_MESSAGE,   // the message is here
    REQUEST_REFUSED,   // unreadable, unfit, over a budget: `error` says
    REQUEST_ENQUEUED,  // the batcher has it
    REQUEST_STARTED,   // it could not be withdrawn: a batch has it
    REQUEST_WITHDRAWN, // the batcher has let go of it
    REQUEST_COMPUTED,  // the batch is done with it; `error` EXPERTD_ERR_OK or why not
    REQUEST_EXPIRED,   // its deadline has passed
    REQUEST_WRITTEN,   // the transport has let go of the answer
    REQUEST_CLOSED,    // the peer is gone: nobody to answer
    REQUEST_EVENT_COUNT
};

struct request_event {
    enum request_event_kind kind;
    enum expertd_err_code error; // REFUSED, COMPUTED
};

// What is to be done now; at most one of them.
enum request_action {
    REQUEST_DO_NOTHING,
    REQUEST_DO_READ,     // ask the transport for the message
    REQUEST_DO_ADMIT,    // decode, check, admit; then ENQUEUED or REFUSED
    REQUEST_DO_WITHDRAW, // take it back from the batcher; then WITHDRAWN or STARTED
    REQUEST_DO_ANSWER,   // commit the result; then WRITTEN
    REQUEST_DO_FAIL,     // commit an error (core->error); then WRITTEN
    REQUEST_DO_RELEASE,  // give back its memory, slot and budgets: the last action
};

struct request_core {
    enum request_state state;
    enum expertd_err_code error; // why it failed
    bool withdrawing;            // WITHDRAW was asked for, its outcome is to come
    bool computing;              // a batch holds its memory
    bool writing;                // the transport holds its answer
    bool closed;
    bool released;
};

void request_core_init(struct request_core *core);
enum request_action request_step(struct request_core *core, const struct request_event *event);

// Waits for its message or its turn, or is computed: a deadline still matters.
static inline bool request_is_waiting(const struct request_core *core) {
    return core->state < REQUEST_COMMITTING && !core->closed;
}

#endif
