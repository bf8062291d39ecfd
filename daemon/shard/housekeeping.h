// The work of every second: silent fronts, load progress.
#ifndef EXPERTD_DAEMON_SHARD_HOUSEKEEPING_H
#define EXPERTD_DAEMON_SHARD_HOUSEKEEPING_H

#include "daemon/shard/shard_types.h"

// Called by the first completion-queue thread's tick. Returns the time of the next work.
int64_t housekeeping_tick(struct shard_service *service, int64_t now_ns);

// Experts that are assigned and not in memory, and their bytes. The caller holds the mutex.
uint32_t housekeeping_loading(const struct shard_service *service, uint64_t *bytes);

#endif
