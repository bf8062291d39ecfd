// The transport's callbacks for a call.
#ifndef EXPERTD_DAEMON_SERVE_SERVE_CALL_H
#define EXPERTD_DAEMON_SERVE_SERVE_CALL_H

#include "daemon/serve/serve_types.h"

// Sets the callbacks of calls in serve->handler; its context is the service.
void serve_call_handlers(struct serve *serve);

#endif
