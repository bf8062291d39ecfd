// The life of a Forward request, as a sequence of named stages.
#ifndef EXPERTD_DAEMON_SERVE_SERVE_H
#define EXPERTD_DAEMON_SERVE_SERVE_H

#include "daemon/serve/serve_types.h"

// All functions run on the thread of the request's call.

// Passes an event to r's state machine and carries the returned actions out. r may be freed when this returns.
void serve_step(struct serve_request *r, enum request_event_kind kind, enum expertd_err_code error);
void serve_refuse(struct serve_request *r, err_t e); // REQUEST_REFUSED with the thread's last error

// A request of this call in its first state, entered into the thread's list. NULL: no memory; the call has been ended with that
// error.
struct serve_request *serve_request_create(struct call *call);
// Starts reading a stream's next message, or ends the stream, if its state calls for it.
void serve_read_stream(struct call *call);

#endif
