// The periodic work of a completion-queue thread.
#ifndef EXPERTD_DAEMON_SERVE_SERVE_TICK_H
#define EXPERTD_DAEMON_SERVE_SERVE_TICK_H

#include <stdint.h>

// The `tick` of rpc_handler; context is the service, index the number of the thread.
int64_t serve_tick(void *context, unsigned index, int64_t now_ns);

#endif
