// What a shard says on its control stream. Private to daemon/front/.
#ifndef EXPERTD_DAEMON_FRONT_FRONT_REPLIES_H
#define EXPERTD_DAEMON_FRONT_FRONT_REPLIES_H

#include "daemon/front/front_state.h"

enum { FRONT_REPORTS_MAX = SHARD_CONTROL_MESSAGE_MAX }; // an entry of an inventory has at least one byte

// Takes one message; the first is the hello. The caller holds the mutex. Fails with what no correct shard of this model sends: the
// caller ends the connection.
FALLIBLE front_replies_take(struct front_connection *connection, const uint8_t *bytes, size_t length);

#endif
