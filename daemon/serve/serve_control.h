// The small unary methods: Describe, OpenRegion, CloseRegion.
#ifndef EXPERTD_DAEMON_SERVE_SERVE_CONTROL_H
#define EXPERTD_DAEMON_SERVE_SERVE_CONTROL_H

#include "daemon/serve/serve_types.h"

// Answers the call. bytes NULL: the call ended without a message, which decodes as an empty one.
void serve_control_message(struct call *call, const uint8_t *bytes, size_t length);

#endif
