// The threads "load-N": load experts that the holder assigns, and take those that it frees out of the holdings.
#ifndef EXPERTD_DAEMON_SHARD_LOAD_THREADS_H
#define EXPERTD_DAEMON_SHARD_LOAD_THREADS_H

#include "daemon/shard/shard_types.h"

FALLIBLE load_threads_start(struct shard_service *service); // EXPERTD_ERR_UNAVAILABLE: none could be started
void load_threads_join(struct shard_service *service);      // after service->stopping

#endif
