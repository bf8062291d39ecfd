// Unary calls read their message with a read slot: space for one message of the largest size.
#ifndef EXPERTD_DAEMON_SERVE_SERVE_SLOTS_H
#define EXPERTD_DAEMON_SERVE_SERVE_SLOTS_H

#include "daemon/serve/serve_types.h"

void serve_open_unary(struct call *call);                     // reads the call's message, or waits for a slot
void serve_grant_slots(struct serve *serve, unsigned thread); // the thread's tick: free slots go to its waiting requests

#endif
