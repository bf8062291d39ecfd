// Passes events to the membership, and has every action carried out. Private to daemon/front/. The caller holds the mutex.
#ifndef EXPERTD_DAEMON_FRONT_FRONT_STEP_H
#define EXPERTD_DAEMON_FRONT_FRONT_STEP_H

#include "daemon/front/front_state.h"

// Passes one event, whose time is set here, and carries out what follows.
void front_event(struct front *front, struct membership_event *event);
// Carries out what is waiting: after membership_add or membership_set_load, or if a shard of this process has something to say.
void front_run(struct front *front);

#endif
