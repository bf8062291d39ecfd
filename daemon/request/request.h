// The life of a request as a pure state machine: no I/O, no clock, no allocation. It returns the next action, and serve_step in
// daemon/serve/serve.c carries it out.
//
//   SLOT -> READING -> CHECKING -> BATCHED -> COMPUTING -> COMMITTING -> SENT | FAILED
//
// Owned by the completion-queue thread of the request's call. The answer, a result or an error, is committed at most once. Exactly
// one REQUEST_DO_RELEASE is returned, in any order of the other events, and only when neither a batch nor the transport holds
// the request's memory.
#ifndef EXPERTD_DAEMON_REQUEST_REQUEST_H
#define EXPERTD_DAEMON_REQUEST_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum request_state {
    REQUEST_SLOT,       // waits for a read slot
    REQUEST_READING,    // its message was requested from the transport
    REQUEST_CHECKING,   // the message is being decoded, checked and admitted
    REQUEST_BATCHED,    // queued for a batch, or in one
    REQUEST_COMPUTING,  // in a batch: it was too late to withdraw it
    REQUEST_COMMITTING, // the transport is sending its answer
    REQUEST_SENT,       // answered with a result
    REQUEST_FAILED,     // answered with an error, or the peer is gone
    REQUEST_STATE_COUNT
};

enum request_event_kind {
    REQUEST_SLOT_GRANTED,
    REQUEST_MESSAGE,   // the message has arrived
    REQUEST_REFUSED,   // malformed, invalid, or over a budget; `error` is the reason
    REQUEST_ADMITTED,  // valid, and within every budget
    REQUEST_STARTED,   // the withdrawal failed: a batch has the request
    REQUEST_WITHDRAWN, // the withdrawal succeeded: no batch has the request
    REQUEST_COMPUTED,  // no batch has the request any more; `error` is EXPERTD_ERR_OK or the reason of the failure
    REQUEST_EXPIRED,   // its deadline has passed
    REQUEST_WRITTEN,   // the transport no longer holds the answer
    REQUEST_CLOSED,    // the peer is gone
    REQUEST_EVENT_COUNT
};

struct request_event {
    enum request_event_kind kind;
    enum expertd_err_code error; // of REFUSED and COMPUTED
};

enum request_action {
    REQUEST_DO_NOTHING,
    REQUEST_DO_READ,     // request the message from the transport
    REQUEST_DO_ADMIT,    // decode, check and admit it; then ADMITTED or REFUSED
    REQUEST_DO_COMPUTE,  // queue it for a batch; then COMPUTED
    REQUEST_DO_WITHDRAW, // take it out of the queue; then WITHDRAWN or STARTED
    REQUEST_DO_ANSWER,   // send the result; then WRITTEN
    REQUEST_DO_FAIL,     // send core->error; then WRITTEN
    REQUEST_DO_RELEASE,  // free its memory, slot and budgets: the last action
};

struct request_core {
    enum request_state state;
    enum expertd_err_code error; // reason of the failure
    bool withdrawing;            // WITHDRAW was returned, its outcome is not known yet
    bool computing;              // the batcher or a batch holds its memory
    bool writing;                // the transport holds its answer
    bool closed;
    bool released;
};

void request_core_init(struct request_core *core);
enum request_action request_step(struct request_core *core, const struct request_event *event);

// The request has no answer yet: its deadline still applies.
static inline bool request_is_waiting(const struct request_core *core) {
    return core->state < REQUEST_COMMITTING && !core->closed;
}

#endif
