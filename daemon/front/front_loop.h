// Carries out what the membership decides. Private to daemon/front/. The caller of each function but front_tick holds the mutex.
#ifndef EXPERTD_DAEMON_FRONT_FRONT_LOOP_H
#define EXPERTD_DAEMON_FRONT_FRONT_LOOP_H

#include "daemon/front/front_state.h"

// Passes one event to the membership, whose time is set here, and carries out every action that follows.
void front_event(struct front *front, struct membership_event *event);
// Carries out actions that are waiting, after membership_add or membership_set_load, and what the shards of this process have to
// say.
void front_run(struct front *front);

// The dialler's tick: heartbeats, and the membership's sense of time.
int64_t front_tick(void *context, unsigned thread, int64_t now_ns);

#endif
