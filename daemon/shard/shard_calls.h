// The callbacks of rpc.h: finds the stream that one concerns, and passes it on; calls of other methods go to the other handler. The
// tick of each completion-queue thread: time limits, ended sessions, due messages.
#ifndef EXPERTD_DAEMON_SHARD_SHARD_CALLS_H
#define EXPERTD_DAEMON_SHARD_SHARD_CALLS_H

#include "daemon/shard/shard_types.h"

void shard_calls_handle(struct shard_service *service); // fills in service->handler; service->rest is set

#endif
