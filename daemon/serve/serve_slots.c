#include "daemon/serve/serve_slots.h"

#include "base/clock.h"
#include "daemon/serve/serve.h"
#include "daemon/serve/serve_budget.h"

// The message must arrive within the send timeout from here, so that a slow sender does not keep its slot.
static void read_with_slot(struct serve_request *r) {
    int64_t limit_ns = clock_add_ns(clock_now_ns(), r->serve->options.send_timeout_ns);
    r->deadline_ns = limit_ns < r->call->deadline_ns ? limit_ns : r->call->deadline_ns;
    serve_due(r->serve, r->thread, r->deadline_ns);
    serve_step(r, REQUEST_SLOT_GRANTED, EXPERTD_ERR_OK);
}

void serve_open_unary(struct call *call) {
    struct serve_request *r = serve_request_create(call);
    if (!r) {
        return;
    }
    err_t e = serve_may_open(r);
    if (err_is(e)) {
        serve_refuse(r, e);
    } else if (STAILQ_EMPTY(&call->serve->threads[call->thread].slot_queue) && serve_take_slot(r)) {
        read_with_slot(r);
    } else {
        serve_await_slot(r);
        serve_due(call->serve, call->thread, r->deadline_ns);
        rpc_wake(call->serve->server,
                 call->thread); // a slot returned before r was in the list woke no thread: the tick looks again
    }
}

// Each thread serves its own list. Between threads, the first one to take a free slot has it.
void serve_grant_slots(struct serve *serve, unsigned thread) {
    struct serve_request *r;
    while ((r = serve_grant_slot(serve, thread))) {
        serve_leave_waiters(r);
        read_with_slot(r);
    }
}
