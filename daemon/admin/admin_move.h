// ApplyPlacement: the mover blocks on a thread of its own, and its progress is streamed to the call. All functions run on the
// server's thread, except admin_move_join.
#ifndef EXPERTD_DAEMON_ADMIN_ADMIN_MOVE_H
#define EXPERTD_DAEMON_ADMIN_ADMIN_MOVE_H

#include "daemon/admin/admin_types.h"

// EXPERTD_ERR_UNAVAILABLE: another move is running. Errors of the request and of admin_check_mover.
FALLIBLE admin_move_start(struct admin_call *call, const struct rpc_buffer *message);
void admin_move_send(struct admin_call *call);    // sends new progress, or the end, unless a write is in progress
void admin_move_collect(struct admin *admin);     // the server's tick: takes new progress, or the end, from the move's thread
void admin_move_abandon(struct admin_call *call); // the call is closed: its move stops after the current step
void admin_move_stop(struct admin *admin);        // the running move stops after its current step
void admin_move_join(struct admin *admin);        // waits for the move's thread and destroys the server

#endif
