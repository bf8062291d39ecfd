// The budgets of the service: calls, read slots, streams, the queue and each connection's shares (daemon/request/admission.h), and
// the estimate of the queue's duration (daemon/request/backlog.h). One mutex guards all of them.
#ifndef EXPERTD_DAEMON_SERVE_SERVE_BUDGET_H
#define EXPERTD_DAEMON_SERVE_SERVE_BUDGET_H

#include "daemon/serve/serve_types.h"

FALLIBLE serve_enter_call(struct call *call); // EXPERTD_ERR_QUEUE_FULL: its connection has its share of calls
void serve_leave_call(struct call *call);
bool serve_checks_crowded(struct serve *serve); // admission_checks_crowded
FALLIBLE serve_take_stream(struct call *call);

void serve_enter_request(struct serve_request *r); // counts r on its connection
void serve_leave_request(struct serve_request *r); // returns everything that r holds except its read slot

// ---- read slots
FALLIBLE serve_may_open(struct serve_request *r);  // admission_open: before the message is read
bool serve_take_slot(struct serve_request *r);     // false: no slot is free, or the connection has its share
void serve_give_slot(struct serve_request *r);     // legal without a slot
void serve_await_slot(struct serve_request *r);    // puts r into its thread's list
void serve_leave_waiters(struct serve_request *r); // takes r out of it; legal where it is not in it
// Takes a free slot for one of the thread's waiting requests, and returns that request, still in the list. NULL: no slot is free
// for any of them.
struct serve_request *serve_grant_slot(struct serve *serve, unsigned thread);

// ---- the queue
FALLIBLE serve_admit(struct serve_request *r); // admission_admit, and entry into the backlog; after serve_intake
void serve_leave_backlog(struct serve_request *r);
// Delay after which a client should repeat a request that failed with `code`; < 0: never.
int64_t serve_retry_after_ms(struct serve *serve, enum expertd_err_code code);

#endif
