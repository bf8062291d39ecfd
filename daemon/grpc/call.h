// One call: its batches, and the order of the handler's callbacks. All functions run on the call's thread.
#ifndef EXPERTD_DAEMON_GRPC_CALL_H
#define EXPERTD_DAEMON_GRPC_CALL_H

#include "daemon/grpc/rpc_types.h"

struct call_start {
    grpc_call *raw; // owned by the new call
    int method;     // enum rpc_method; RPC_METHOD_COUNT: unknown, the call is refused
    bool counted;   // against max_calls, until released
    int64_t deadline_ns;
};
// refusal NULL: the handler's `opened` gets the call. Otherwise the call ends with this status, and the handler never sees it.
void call_begin(struct rpc_thread *thread, const struct call_start *start, const struct rpc_status *refusal);
// Completes the read or write that was requested after `closed`.
void call_answer_late(struct rpc_call *call);

// Shuts the call's connection down: its peer takes no data. False: the call has no connection any more.
bool call_abandon_connection(struct rpc_call *call);
// Restarts the time limit of a call on thread->stuck, counted from now_ns.
void call_renew_stuck(struct rpc_call *call, int64_t now_ns);

#endif
