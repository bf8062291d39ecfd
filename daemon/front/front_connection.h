// The connections to shards in other processes: their control streams, message by message, and the life of both streams. Private to
// daemon/front/. The caller of each function holds the mutex.
#ifndef EXPERTD_DAEMON_FRONT_FRONT_CONNECTION_H
#define EXPERTD_DAEMON_FRONT_FRONT_CONNECTION_H

#include "daemon/front/front_state.h"

// MEMBERSHIP_DIAL. A failure becomes an event of front_connection_next.
void front_connection_dial(struct front *front, uint32_t member, uint32_t number);
// MEMBERSHIP_CLOSE, and for every connection at the end. Both streams end soon. Does nothing if the connection has ended.
void front_connection_close(struct front *front, uint32_t member, uint32_t number, const char *why);
// MEMBERSHIP_ASSIGN, _RETIRE, _RELEASE and _DRAIN.
void front_connection_command(struct front *front, const struct membership_action *action);
// The end of a connection that the membership has not heard of. False: there is none.
bool front_connection_next(struct front *front, struct membership_event *event);
// Sends a heartbeat on each connection.
void front_connection_heartbeats(struct front *front);

// The callbacks of row_links.h. They take the mutex themselves.
void front_connection_rows_opened(void *context, uint32_t rank, uint32_t number);
void front_connection_rows_ended(void *context, uint32_t rank, uint32_t number, const char *why);

#endif
