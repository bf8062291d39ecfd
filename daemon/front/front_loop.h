// What a front does: carries out the membership's actions, and keeps its time. Private to daemon/front/.
#ifndef EXPERTD_DAEMON_FRONT_FRONT_LOOP_H
#define EXPERTD_DAEMON_FRONT_FRONT_LOOP_H

#include "daemon/front/front_state.h"

extern const struct front_steps FRONT_STEPS;

// The dialler's tick: heartbeats, and the membership's sense of time.
int64_t front_tick(void *context, unsigned thread, int64_t now_ns);

#endif
