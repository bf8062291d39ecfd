// The periodic work of a completion-queue thread.
#ifndef EXPERTD_DAEMON_SERVE_SERVE_TICK_H
#define EXPERTD_DAEMON_SERVE_SERVE_TICK_H

#include <stdint.h>

// The `tick` of rpc_handler; context is the service.
int64_t serve_tick(void *context, unsigned thread, int64_t now_ns);

#endif
