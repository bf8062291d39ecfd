// The shards of this process: what they hold, and the threads that load it. Private to daemon/front/. The caller of each function
// holds the mutex, unless stated otherwise.
#ifndef EXPERTD_DAEMON_FRONT_FRONT_LOCAL_H
#define EXPERTD_DAEMON_FRONT_FRONT_LOCAL_H

#include "daemon/front/front_state.h"

// Before any thread runs. EXPERTD_ERR_NOMEM.
FALLIBLE front_local_create(struct front *front);
void front_local_destroy(struct front *front); // after front_local_stop; legal after a failed front_local_create

FALLIBLE front_local_start(struct front *front); // without the mutex. EXPERTD_ERR_UNAVAILABLE: no thread
void front_local_stop(struct front *front);      // without the mutex. Joins the threads

// MEMBERSHIP_ASSIGN, _RETIRE and _RELEASE for a member of this process.
void front_local_command(struct front *front, const struct membership_action *action);
// Hands out loads, frees copies, and returns what a shard of this process has to tell the membership. False: nothing.
bool front_local_next(struct front *front, struct membership_event *event);

#endif
